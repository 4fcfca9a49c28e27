"""`mobilemoney demo`: simulated money in a sandbox, from the payment request to the final state."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from mobilemoney_async.calls.limiter import RateLimiter
from mobilemoney_async.calls.tokens import LoginAuth
from mobilemoney_async.cli.failures import Refused, run
from mobilemoney_async.cli.following import ChangeKind, Refusals, StatusChange, Watchlist, follow, print_change
from mobilemoney_async.cli.output import money, new_table, show, show_facts
from mobilemoney_async.cli.sandbox import Speed
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.cli.views.watch import live_table
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE, Schedule
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.sandbox import Sandbox

if TYPE_CHECKING:
    from mobilemoney_async.polling.poller import Poller, PollerStats

_BALANCE = 500_000
# Seconds of real time, at any speed: the drift between requests of one process on a busy machine.
_JITTER = 0.25


def demo(
    speed: Speed = 20.0,
    payments: Annotated[int, typer.Option(min=30, max=10_000, help="How many payments to make and follow.")] = 30,
) -> None:
    """Watch simulated payments from the request to their final states.

    The payments are made in a sandbox on this machine. Takes some 20 s.
    """
    try:
        run("demo", lambda: run_demo(speed, payments))
    except ImportError as exc:
        raise Refused(str(exc)) from exc


def plan(payments: int) -> list[tuple[TransactionType, str, int]]:
    """Return type, phone number and amount of each payment: 5 disbursements, and 25 collections or more.

    One failure of each documented kind is among them. The disbursements come first: later there is more money.
    """
    payouts = {
        "+255681234601": 25_000,
        "+255780000089": 4_000,
        "+255681234602": 15_000,
        "+255780000119": 3_000,
        "+255681234603": 9_000_000,  # more than the balance
    }
    special = ["029", "039", "048", "069", "408", "301"]
    payers = [f"+255780000{number}" for number in special]
    payers += [f"+25568123{number:04d}" for number in range(payments - len(payouts) - len(special))]
    return [
        *((TransactionType.DISBURSEMENT, number, amount) for number, amount in payouts.items()),
        *((TransactionType.COLLECTION, number, 1_000 * (1 + index % 9)) for index, number in enumerate(payers)),
    ]


async def run_demo(speed: float, payments: int) -> None:
    """Run the demonstration and print it; raise `ImportError` without the extra `sandbox`."""
    sandbox, refusals = Sandbox(speed=speed, balance=_BALANCE), Refusals()
    limiter = RateLimiter(per_minute=REQUESTS_PER_MINUTE * speed, burst=BURST, window=60 / speed, jitter=_JITTER)
    auth = LoginAuth(sandbox.email, sandbox.password)
    async with sandbox.serve() as base_url:
        print(f"sandbox at {base_url}, {speed:g} times as fast as the service; its money is simulated", flush=True)
        async with AsyncClient(base_url, auth=auth, rate_limiter=limiter, on_event=refusals) as client:
            started = anyio.current_time()
            finals, stats = await _pay_all(client, payments, speed, refusals)
            took = anyio.current_time() - started
    _print_figures(finals, sandbox, stats, took)


async def _pay_all(
    client: AsyncClient, payments: int, speed: float, refusals: Refusals
) -> tuple[list[Transaction], PollerStats]:
    """Create and follow payments, and return their final states and the poller's statistics."""
    is_table = sys.stdout.isatty()

    def report(change: StatusChange) -> None:
        if change.error is not None:
            raise change.error
        if change.kind is ChangeKind.FINAL and not is_table:  # the table reads the watchlist
            print_change(change, as_json=False, unmasked=False)

    async def create(kind: TransactionType, phone_number: str, amount: int, poller: Poller) -> None:
        creates = client.collections if kind == TransactionType.COLLECTION else client.disbursements
        answer = await creates.create(phone_number=phone_number, amount=amount)
        watchlist.add(answer.transaction_id)
        poller.track(answer)

    async def create_all(poller: Poller) -> None:
        pollers.append(poller)
        async with anyio.create_task_group() as group:
            for payment in plan(payments):
                group.start_soon(create, *payment, poller)

    pollers: list[Poller] = []
    watchlist = Watchlist((), report)
    schedule = Schedule(first=1 / speed, factor=1.5, cap=30 / speed)
    with live_table(watchlist) if is_table else nullcontext():
        await follow(client, watchlist, create_all, refusals=refusals, min_interval=1 / speed, schedule=schedule)
    seen = [change.transaction for change in watchlist.latest.values() if change is not None]
    return [each for each in seen if each is not None], pollers[0].stats


def _print_figures(finals: list[Transaction], sandbox: Sandbox, stats: PollerStats, took: float) -> None:
    """Print the final states by type, the money that moved, and the requests and seconds that it took.

    The sandbox's ledger and its count of requests are the truth.
    """
    counts = Counter((str(final.status), str(final.type)) for final in finals)
    rows = []
    for state in sorted({state for state, _ in counts}, key=lambda state: (state != "SUCCESS", state)):
        by_type = [counts[state, str(kind)] for kind in TransactionType]
        rows.append([state, str(sum(by_type)), *map(str, by_type)])
    names = ("final state", "all", "collections", "disbursements")
    columns = [Column(name, itemgetter(index), is_number=index > 0) for index, name in enumerate(names)]
    show("", new_table(columns, rows), "")
    collected = _total(finals, TransactionType.COLLECTION)
    disbursed = _total(finals, TransactionType.DISBURSEMENT)
    fees = sum((final.fees.total_fee or Decimal(0) for final in finals if final.fees is not None), Decimal(0))
    agrees = (collected, disbursed) == (sandbox.ledger.collected, sandbox.ledger.disbursed)
    show_facts(
        {
            "collected": money(collected),
            "fees": money(fees),
            "disbursed": money(disbursed),
            "agrees with the service's ledger": "yes" if agrees else "NO",
            "requests": str(sandbox.requests.total),
            "requests per confirmed payment, besides its create": f"{stats.requests / len(finals):.2f}",
            "logins": str(sandbox.requests.logins),
            "rate-limit rejections": str(sandbox.requests.rejections),
            "seconds": f"{took:.1f}",
        }
    )


def _total(finals: list[Transaction], kind: TransactionType) -> Decimal:
    return sum((final.amount for final in finals if final.succeeded and final.type == kind), Decimal(0))
