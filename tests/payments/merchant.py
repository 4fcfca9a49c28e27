"""A merchant with hundreds of orders at a service full of faults, and the checks that no payment is made twice or lost.

Each order tells the service its key as `external_id`, by which the library identifies nothing: so the service's book
shows the owner of each transaction, and the store is compared with that.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
import attrs
import httpx

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    MobileMoneyError,
    PaymentRecord,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.payments.records.record import LISTINGS
from mobilemoney_async.sandbox import Choices, Fault, Sandbox, faults
from tests.payments.crash_worker import ONCE_MORE, Order, go_through, wide_open
from tests.payments.steps import record_of
from tests.support.patience import PATIENCE

FAULTS: list[Fault] = [
    faults.refused(),
    faults.drop(processed=False),
    faults.drop(processed=True),
    faults.lost(processed=True),
    faults.server_error(500, processed=False),
    faults.server_error(500, processed=True),
    faults.truncated(),
    faults.empty_body(),
    faults.html_page(502),
    faults.html_page(504, processed=True),
]
SHARE = 0.3

_REUSABLE = {"refused", "not_sent", "confirmed"}


def faulty_sandbox(seed: int) -> Sandbox:
    """Return a service on which 30 % of the creates meet a fault, each kind as often as the others."""
    choices = Choices(rate_limit=None, latency=0.02, list_lag=0.5)
    sandbox = Sandbox(seed=seed, balance=10**9, choices=choices)
    each = SHARE / len(FAULTS)
    for number, fault in enumerate(FAULTS):
        # A rule is asked only where those before it have not struck.
        sandbox.script(fault, on="POST", probability=each / (1 - each * number))
    return sandbox


def make_orders(seed: int, count: int) -> list[Order]:
    """Return orders in both directions, to 20 phone numbers over three amounts: most have a duplicate."""
    dice = random.Random(seed)
    return [
        Order(
            key=f"order-{number}",
            is_collection=dice.random() < 0.5,
            phone_number=f"+2556812340{dice.randrange(20):02d}",
            amount=dice.choice([1_000, 2_500, 10_000]),
        )
        for number in range(count)
    ]


def hold_against_the_book(sandbox: Sandbox, orders: Sequence[Order], records: Mapping[str, PaymentRecord]) -> None:
    """Check that no order moves money twice, and that the store is right about each, or says that it does not know."""
    made: dict[str | None, list[str]] = defaultdict(list)
    for payment in sandbox.transactions.values():
        made[payment.external_id].append(payment.id)
    assert made.keys() <= {order.key for order in orders}
    for order in orders:
        exist, record = made[order.key], records.get(order.key)
        assert len(exist) <= 1, f"{order.key} was sent twice"
        if record is None:
            assert not exist, f"{order.key} is unknown to the store"
        elif record.transaction_id is not None:
            assert exist == [record.transaction_id], f"{order.key} has another's transaction"
        elif record.state not in {PaymentState.SENDING, PaymentState.UNKNOWN}:
            assert not exist, f"{order.key} is {record.state}, and exists"


@attrs.define
class Merchant:
    """Merchant with one client, and notes of all its answers."""

    sandbox: Sandbox
    client: AsyncClient
    orders: Sequence[Order]
    told: dict[str, str] = attrs.field(factory=dict)
    errors: Counter[type[MobileMoneyError]] = attrs.field(factory=Counter)

    async def try_all(self, orders: Sequence[Order], *, tasks: int = 60) -> list[Order]:
        return await go_through(self.client, orders, tasks=tasks, answered=self.note, failed=self.note_error)

    def note(self, order: Order, answer: Acknowledgement) -> None:
        assert self.told.setdefault(order.key, answer.transaction_id) == answer.transaction_id

    def note_error(self, order: Order, error: MobileMoneyError) -> None:
        assert error.idempotency_key == order.key
        assert error.outcome != "refused", "the service refuses nothing here"
        self.errors[type(error)] += 1

    async def check(self) -> dict[str, PaymentRecord]:
        records = {record.key: record for record in await self.client.payments.list()}
        hold_against_the_book(self.sandbox, self.orders, records)
        for key, transaction_id in self.told.items():
            assert records[key].transaction_id == transaction_id, f"what was said of {key} is not what is kept"
        return records

    async def check_histories(self) -> None:
        for order in self.orders:
            record = await record_of(self.client, order.key)
            whats = [entry.what for entry in record.history]
            # An absent attempt may be suspected of the payment of its duplicate, never of its own.
            suspicions = [entry.detail or "" for entry in record.history if entry.what == "contradiction"]
            assert not [each for each in suspicions if self.made().get(order.key, "none") in each], record
            # Between two sends it was known that there is no payment.
            sends = "".join("S" if what == "sent" else "n" if what in _REUSABLE else "-" for what in whats)
            assert all("n" in between for between in sends.split("S")[1:-1]), record

    def made(self) -> dict[str | None, str]:
        """Return the transaction of each order that has one, by the service's book."""
        return {payment.external_id: payment.id for payment in self.sandbox.transactions.values()}

    async def identify(self) -> None:
        """Decide which transaction each ambiguous payment is, as an operator would who finds it in the dashboard."""
        made = self.made()
        for record in await self.client.payments.unresolved():
            with suppress(StoreError):  # its request may be on its way: the next time
                if record.is_ambiguous and record.key in made:
                    await self.client.payments.identify(record.key, made[record.key], note="seen in the dashboard")
                elif record.is_ambiguous:
                    await self.client.payments.confirm_absent(record.key, note="not in the dashboard")

    async def say_the_word(self) -> int:
        """Look for each payment that two looks have not shown, as an operator would, and confirm that it is absent.

        The last ones stay unknown, since no later payment shows that the list is complete.
        """
        made = self.made()
        missing = [each for each in await self.client.payments.unresolved() if is_missing(each)]
        for record in missing:
            assert record.key not in made, f"{record.key} was not found"
            await self.client.payments.confirm_absent(record.key, note="not in the dashboard")
        return len(missing)


def is_missing(record: PaymentRecord) -> bool:
    """Return whether a payment is absent, or unknown only because there are no payments to compare with."""
    is_unknown = record.state is PaymentState.UNKNOWN and record.walks >= LISTINGS and not record.is_ambiguous
    return record.state is PaymentState.ABSENT or is_unknown


def all_is_paid(sandbox: Sandbox, orders: Sequence[Order]) -> None:
    """Check the ledger: each order has moved its money, once."""
    sandbox.advance(3600)
    moved = Counter(sandbox.transactions[entry.transaction_id].external_id for entry in sandbox.ledger)
    assert moved == Counter(order.key for order in orders)
    assert sandbox.ledger.collected == sum(order.amount for order in orders if order.is_collection)
    assert sandbox.ledger.disbursed == sum(order.amount for order in orders if not order.is_collection)


def creates(sandbox: Sandbox) -> int:
    return sandbox.requests.count("c2b") + sandbox.requests.count("b2c")


class Held(httpx.AsyncBaseTransport):
    """Brings requests to a sandbox, and holds the answers back until they are released."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._inner = sandbox.transport()
        self.let_go = anyio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        await self.let_go.wait()
        return response


def open_merchant(
    sandbox: Sandbox,
    store_url: str,
    orders: Sequence[Order],
    *,
    grace: float = 0.0,
    timeout: float = PATIENCE,
    **more: Any,
) -> Merchant:
    store = SQLStore(store_url, grace=grace)
    client = sandbox.client(store=store, timeout=timeout, retry=ONCE_MORE, rate_limiter=wide_open(), **more)
    return Merchant(sandbox, client, orders)
