"""`mobilemoney demo`: simulated money in a sandbox, from the payment request to the final state."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import anyio
import attrs
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from mobilemoney_async.calls.limiter import RateLimiter
from mobilemoney_async.calls.tokens import LoginAuth
from mobilemoney_async.cli.failures import Refused, run
from mobilemoney_async.cli.following import Refusals, StatusChange, Watchlist, follow
from mobilemoney_async.cli.sandbox import Speed
from mobilemoney_async.cli.transactions import describe, state_of
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE, Schedule
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.values import mask_phone_number

if TYPE_CHECKING:
    from mobilemoney_async.polling.poller import Poller, PollerStats

_BALANCE = 500_000
# Seconds of real time, at any speed: the drift between requests of one process on a busy machine.
_JITTER = 0.25
# Up to so many payments, the history is read in small pages, to show several of them.
_FEW = 100
_HISTORY_ROWS = 8


def demo(
    speed: Speed = 20.0,
    payments: Annotated[int, typer.Option(min=30, max=10_000, help="How many payments to make and follow.")] = 30,
) -> None:
    """Watch simulated payments from the request to their final states.

    The payments are made in a sandbox on this machine. Takes some 20 s.
    """

    async def work() -> None:
        try:
            await run_demo(speed, payments)
        except ImportError as exc:
            raise Refused(str(exc)) from exc

    run("demo", work)


@attrs.frozen
class DemoPayment:
    """One payment of the demonstration."""

    type: TransactionType
    phone_number: str
    amount: Decimal


def plan(payments: int) -> list[DemoPayment]:
    """Return 25 collections and 5 disbursements or more, with one failure of each documented kind among them.

    Args:
        payments: Their number, at least 30; those beyond 30 are ordinary collections.
    """
    failing = ["+255780000029", "+255780000039", "+255780000048", "+255780000069", "+255780000408"]
    customers = [f"+2556812345{number:02d}" for number in range(19)]
    customers += [f"+25568200{number:04d}" for number in range(payments - 30)]
    payers = [*customers[:10], *failing, *customers[10:19], "+255780000301", *customers[19:]]
    payouts = {
        "+255681234601": 25_000,
        "+255780000089": 4_000,
        "+255681234602": 15_000,
        "+255780000119": 3_000,
        "+255681234603": 9_000_000,  # more than the balance
    }
    collections = [
        DemoPayment(TransactionType.COLLECTION, phone_number, Decimal(1_000 * (1 + index % 9)))
        for index, phone_number in enumerate(payers)
    ]
    disbursements = [
        DemoPayment(TransactionType.DISBURSEMENT, number, Decimal(amount)) for number, amount in payouts.items()
    ]
    return [*collections[:25], *disbursements, *collections[25:]]


async def run_demo(speed: float, payments: int) -> None:
    """Run the demonstration and print it.

    Args:
        speed: The sandbox's, more than 0.
        payments: Their number, at least 30.

    Raises:
        ImportError: The extra `sandbox` is not installed.
        MobileMoneyError: A call failed that should not.
    """
    sandbox, refusals = Sandbox(speed=speed, balance=_BALANCE), Refusals()
    limiter = RateLimiter(per_minute=REQUESTS_PER_MINUTE * speed, burst=BURST, window=60 / speed, jitter=_JITTER)
    async with contextlib.AsyncExitStack() as stack:
        base_url = await stack.enter_async_context(sandbox.serve())
        auth = LoginAuth(sandbox.email, sandbox.password)
        client = await stack.enter_async_context(
            AsyncClient(base_url, auth=auth, rate_limiter=limiter, on_event=refusals)
        )
        print(f"sandbox at {base_url}, {speed:g} times as fast as the service; its money is simulated", flush=True)
        planned = plan(payments)
        started = anyio.current_time()
        finals, stats = await _pay_all(client, planned, speed, refusals)
        page_size = 10 if len(planned) <= _FEW else 100
        history = await client.transactions.list(limit=page_size).collect()
        took = anyio.current_time() - started
    _print_history(history, page_size)
    _print_outcomes(finals)
    _print_figures(finals, sandbox, stats, took)


async def _pay_all(
    client: AsyncClient, planned: list[DemoPayment], speed: float, refusals: Refusals
) -> tuple[list[Transaction], PollerStats]:
    """Create and follow payments, and return their final states and the poller's statistics."""
    finals: list[Transaction] = []

    def report(change: StatusChange) -> None:
        if change.error is not None:
            raise change.error
        if change.transaction is not None and change.transaction.is_final:
            finals.append(change.transaction)
            bars.count_final(change.transaction)

    async def create(payment: DemoPayment, poller: Poller) -> None:
        creates = client.collections if payment.type == TransactionType.COLLECTION else client.disbursements
        answer = await creates.create(phone_number=payment.phone_number, amount=payment.amount)
        watchlist.add(answer.transaction_id)
        poller.track(answer)
        bars.count_created()

    async def create_all(poller: Poller) -> None:
        pollers.append(poller)
        async with anyio.create_task_group() as group:
            for payment in planned:
                group.start_soon(create, payment, poller)

    pollers: list[Poller] = []
    watchlist = Watchlist((), report)
    schedule = Schedule(first=1 / speed, factor=1.5, cap=30 / speed)
    with _Bars(len(planned)) as bars:
        await follow(client, watchlist, create_all, refusals=refusals, min_interval=1 / speed, schedule=schedule)
    return finals, pollers[0].stats


class _Bars:
    """Progress bars on a terminal; elsewhere a line for each final payment."""

    def __init__(self, total: int) -> None:
        self._console = Console()
        self._progress = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[states]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._created = self._progress.add_task("requested", total=total, states="")
        self._final = self._progress.add_task("final", total=total, states="")
        self._states: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def count_created(self) -> None:
        """Count a payment that the service has accepted."""
        self._progress.advance(self._created)

    def count_final(self, transaction: Transaction) -> None:
        """Count a final payment."""
        self._states[str(transaction.status)] += 1
        states = "  ".join(f"{state} {count}" for state, count in sorted(self._states.items()))
        self._progress.update(self._final, advance=1, states=states)
        if not self._console.is_terminal:
            print(describe(transaction, unmasked=False), flush=True)


def _print_history(history: list[Transaction], page_size: int) -> None:
    """Print the beginning of a history that was read in pages of this size."""
    title = f"history: {_HISTORY_ROWS} of {len(history)} transactions, read in pages of {page_size}"
    table = Table(title=title, box=None)
    table.collapse_padding, table.pad_edge = True, False
    for column in ("type", "phone", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("amount", "fee", "settled"):
        table.add_column(column, no_wrap=True, justify="right")
    for transaction in history[:_HISTORY_ROWS]:
        table.add_row(
            str(transaction.type),
            mask_phone_number(transaction.phone_number),
            state_of(transaction),
            f"{transaction.amount:,}",
            "" if transaction.fees is None else f"{transaction.fees.total_fee:,}",
            "" if transaction.settlement is None else f"{transaction.settlement.net_amount:,}",
        )
    Console().print(table)


def _print_outcomes(finals: list[Transaction]) -> None:
    """Print the number of payments in each final state."""
    table = Table(title="how the payments ended", box=SIMPLE)
    table.add_column("state")
    for column in ("all", "collections", "disbursements"):
        table.add_column(column, justify="right")
    counts = Counter((str(final.status), str(final.type)) for final in finals)
    for state in sorted({str(final.status) for final in finals}, key=lambda state: (state != "SUCCESS", state)):
        by_type = [counts[state, str(kind)] for kind in TransactionType]
        table.add_row(state, str(sum(by_type)), *map(str, by_type))
    Console().print(table)


def _print_figures(finals: list[Transaction], sandbox: Sandbox, stats: PollerStats, took: float) -> None:
    """Print the money that moved, and the requests and seconds that it took.

    Args:
        finals: The payments in their final states.
        sandbox: Its ledger and its count of requests are the truth.
        stats: The poller's.
        took: Seconds.
    """
    collected = _total(finals, TransactionType.COLLECTION)
    disbursed = _total(finals, TransactionType.DISBURSEMENT)
    fees = sum((final.fees.total_fee for final in finals if final.fees is not None), Decimal(0))
    agrees = (collected, disbursed) == (sandbox.ledger.collected, sandbox.ledger.disbursed)
    table = Table(title="summary", show_header=False, box=SIMPLE)
    table.add_column()
    table.add_column(justify="right")
    for name, value in {
        "collected, TZS": f"{collected:,}",
        "fees, TZS": f"{fees:,}",
        "disbursed, TZS": f"{disbursed:,}",
        "agrees with the service's ledger": "yes" if agrees else "NO",
        "requests": str(sandbox.requests.total),
        "requests per confirmed payment, besides its create": f"{stats.requests / len(finals):.2f}",
        "logins": str(sandbox.requests.logins),
        "rate-limit rejections": str(sandbox.requests.rejections),
        "seconds": f"{took:.1f}",
    }.items():
        table.add_row(name, value)
    Console().print(table)


def _total(finals: Iterable[Transaction], kind: TransactionType) -> Decimal:
    return sum((final.amount for final in finals if final.succeeded and final.type == kind), Decimal(0))
