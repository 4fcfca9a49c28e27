"""`mobilemoney demo`: money moving through a sandbox, from the prompt to the final state."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import anyio
import attrs

from mobilemoney_async.calls.limiter import RateLimiter
from mobilemoney_async.calls.tokens import LoginAuth
from mobilemoney_async.cli.demo_report import Progress, print_history, print_summary
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE, Schedule
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.polling.outcomes import Outcome
from mobilemoney_async.polling.poller import PollerStats
from mobilemoney_async.sandbox import Sandbox

_BALANCE = 500_000
# Seconds of real time, whatever the speed: how far apart requests of one process may drift on a busy machine.
_JITTER = 0.25
# Up to so many payments the history is read in small pages, to show that it is.
_FEW = 100


@attrs.frozen
class Order:
    """One payment of the demonstration."""

    type: TransactionType
    phone_number: str
    amount: Decimal


def plan(payments: int) -> list[Order]:
    """Return 25 collections and 5 disbursements, with one failure of each documented kind among them, or more.

    Args:
        payments: How many; those beyond 30 are ordinary collections, and no fewer than 30 are returned.
    """
    failing = ["+255780000029", "+255780000039", "+255780000048", "+255780000069", "+255780000408"]
    customers = [f"+2556812345{number:02d}" for number in range(19)]
    payers = [*customers[:10], *failing, *customers[10:], "+255780000301"]
    collections = [
        Order(TransactionType.COLLECTION, phone_number, Decimal(1_000 * (1 + index % 9)))
        for index, phone_number in enumerate(payers)
    ]
    disbursements = [
        Order(TransactionType.DISBURSEMENT, "+255681234601", Decimal(25_000)),
        Order(TransactionType.DISBURSEMENT, "+255780000089", Decimal(4_000)),
        Order(TransactionType.DISBURSEMENT, "+255681234602", Decimal(15_000)),
        Order(TransactionType.DISBURSEMENT, "+255780000119", Decimal(3_000)),
        Order(TransactionType.DISBURSEMENT, "+255681234603", Decimal(9_000_000)),  # more than the balance
    ]
    more = [
        Order(TransactionType.COLLECTION, f"+25568200{number:04d}", Decimal(1_000 * (1 + number % 9)))
        for number in range(payments - len(collections) - len(disbursements))
    ]
    return [*collections, *disbursements, *more]


async def run_demo(speed: float, payments: int) -> None:
    """Run the demonstration and print it.

    Args:
        speed: The sandbox's, more than 0.
        payments: How many, at least 30.

    Raises:
        ImportError: The extra `sandbox` is not installed.
        MobileMoneyError: A call failed that should not.
    """
    sandbox = Sandbox(speed=speed, balance=_BALANCE)
    async with contextlib.AsyncExitStack() as stack:
        base_url = await stack.enter_async_context(sandbox.serve())
        client = await stack.enter_async_context(
            AsyncClient(
                base_url,
                auth=LoginAuth(sandbox.email, sandbox.password),
                rate_limiter=RateLimiter(
                    per_minute=REQUESTS_PER_MINUTE * speed, burst=BURST, window=60 / speed, jitter=_JITTER
                ),
            )
        )
        print(f"sandbox at {base_url}, {speed:g} times as fast as the service; its money is simulated", flush=True)
        orders = plan(payments)
        started = anyio.current_time()
        finals, stats = await _pay_all(client, orders, speed)
        page_size = 10 if len(orders) <= _FEW else 100
        history = await client.transactions.list(limit=page_size).collect()
        took = anyio.current_time() - started
    print_history(history, page_size)
    print_summary(finals, sandbox, stats, took)


async def _pay_all(client: AsyncClient, orders: list[Order], speed: float) -> tuple[list[Transaction], PollerStats]:
    schedule = Schedule(first=1 / speed, factor=1.5, cap=30 / speed)
    finals: list[Transaction] = []

    async def create(order: Order) -> None:
        creates = client.collections if order.type == TransactionType.COLLECTION else client.disbursements
        poller.track(await creates.create(phone_number=order.phone_number, amount=order.amount))
        progress.created()

    with Progress(len(orders)) as progress:
        async with client.poller(min_interval=1 / speed, schedule=schedule) as poller:
            try:
                async with anyio.create_task_group() as group:
                    for order in orders:
                        group.start_soon(create, order)
                    outcomes = poller.outcomes(forever=True)
                    while len(finals) < len(orders):
                        finals.append(_final(await anext(outcomes)))
                        progress.ended(finals[-1])
            except ExceptionGroup as failures:
                raise _first(failures) from failures
            return finals, poller.stats


def _final(outcome: Outcome) -> Transaction:
    if outcome.error is not None:
        raise outcome.error
    assert outcome.transaction is not None
    return outcome.transaction


def _first(failure: Exception) -> Exception:
    while isinstance(failure, ExceptionGroup):
        failure = failure.exceptions[0]
    return failure
