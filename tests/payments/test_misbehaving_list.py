"""The store against a service that knows the truth, and whose list misbehaves now in one way, now in another.

The model knows which payment each transaction is for: see `second_world`, which has the laws. The list may be late,
short, filtered, reordered, spelt in other ways, empty, unreadable, or say wrong things of its pages, but in each of its
moods it treats rows by their time, their type, or all alike: no list of which it hides a single row for ever can be
told from one that does not have it. Operators may be wrong here.
"""

import asyncio
import itertools
import logging
import math
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import attrs
import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    MobileMoneyError,
    PaymentRecord,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.testing import VirtualClockEventLoop
from tests.payments.second_world import (
    BOTH,
    DAY,
    GRACE,
    HOUR,
    KINDS,
    MINUTE,
    TYPES,
    Order,
    World,
    last_again,
    lose_answer,
    make_world,
    masked,
    national,
    number,
    refuse,
    reshuffled,
    unreadable,
)
from tests.payments.service import Outage
from tests.support.databases import sqlite_url
from tests.support.scale import examples
from tests.support.second_service import ListBehaviour, Payment, Row, error

# Seconds after a failure for which the list is not asked for again.
_BACKOFF = 10.0

T = TypeVar("T")
Answer = Callable[[httpx.Request, Payment | None], httpx.Response | None]

# Four kinds of payments, and duplicates of each. The last two have numbers that look alike when they are masked.
_KINDS = {
    "a": ("collections", "+255681234567"),
    "b": ("disbursements", "+255681234567"),
    "c": ("collections", "+255689994567"),
    "d": ("disbursements", "+255681000001"),
}
ORDERS = {
    f"{name}{each}": Order(f"{name}{each}", kind, phone_number)
    for name, (kind, phone_number) in _KINDS.items()
    for each in range(3)
}


def _answer(make: Callable[[], httpx.Response]) -> Answer:
    return lambda request, payment: make()


def _fail_to_connect(request: httpx.Request, payment: Payment | None) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


# Whether the service has made the payment, which not every answer leaves open, and the answer.
PLANS: dict[str, tuple[set[bool], Answer]] = {
    "acknowledged": ({True}, lambda request, payment: None),
    "answer lost": ({True, False}, lose_answer),
    "400 with an unknown code": ({True, False}, _answer(lambda: error(400, "TRANSACTION_TIMEOUT"))),
    "403 without a code": ({True, False}, _answer(lambda: error(403, None))),
    "409": ({True, False}, _answer(lambda: error(409, "SOMETHING_ELSE"))),
    "404 TRANSACTION_NOT_FOUND": ({True, False}, _answer(lambda: error(404, "TRANSACTION_NOT_FOUND"))),
    "200 with an unknown code": ({True, False}, _answer(lambda: error(200, "SOMETHING_ELSE"))),
    "502": ({True, False}, _answer(lambda: httpx.Response(502, text="<html>"))),
    "insufficient_permissions": ({False}, refuse),
    "not sent": ({False}, _fail_to_connect),
}


def _spell(**spellings: Callable[[Row], Any]) -> Callable[[Row], Row]:
    return lambda row: {**row, **{name: spell(row) for name, spell in spellings.items()}}


_TYPES = {"collection": "c2b", "disbursement": "b2c"}
SPELLINGS: dict[str, Callable[[Row], Any]] = {
    "national": national,
    "without a plus": _spell(phone_number=lambda row: row["phone_number"][1:]),
    "masked": masked,
    "hidden": _spell(phone_number=lambda row: "***"),
    "c2b": _spell(type=lambda row: _TYPES[row["type"]]),
    "capitals": _spell(type=lambda row: row["type"].upper()),
    "one type": _spell(type=lambda row: "payment"),
    "decimals": _spell(amount=lambda row: f"{row['amount']}.00"),
    "every other national": lambda row: national(row) if row["id"][-1] in "02468" else row,
    "unreadable": _spell(amount=lambda row: "a lot"),
    "some unreadable": lambda row: SPELLINGS["unreadable"](row) if row["id"][-1] in "37" else row,
    "some nothing": lambda row: None if row["id"][-1] in "37" else row,
}


# Ways to misbehave: what each changes, in a world as it is now.
MOODS: dict[str, Callable[[World], dict[str, Any]]] = {
    "half a minute behind": lambda world: {"lag": timedelta(seconds=30)},
    "five minutes behind": lambda world: {"lag": timedelta(minutes=5)},
    "a day behind": lambda world: {"lag": timedelta(days=1)},
    "a day where no from is sent": lambda world: {"default_days": 1},
    "ten minutes, whatever is sent": lambda world: {"most_days": 1 / 144},
    "a day, whatever is sent": lambda world: {"most_days": 1},
    "empty for ten seconds": lambda world: {"empty_until": world.utcnow() + timedelta(seconds=10)},
    "empty for an hour": lambda world: {"empty_until": world.utcnow() + timedelta(hours=1)},
    "oldest first": lambda world: {"newest_first": False},
    "by number": lambda world: {"order": lambda payment: payment.phone_number},
    "another order on each page": lambda world: reshuffled(),
    "the newest three alone": lambda world: {
        "hide": lambda payment: payment.number <= len(world.service.payments) - 3,
        "beyond": last_again,
    },
    "total_count 0": lambda world: {"total_count": lambda count: 0},
    "total_count capped": lambda world: {"total_count": lambda count: min(count, 3)},
    "total_count too large": lambda world: {"total_count": lambda count: count + 50},
    "last page shown again": lambda world: {"beyond": last_again},
    "pages of one": lambda world: {"page_size": 1},
    "pages of three": lambda world: {"page_size": 3},
    "every merchant's": lambda world: {"all_merchants": True},
    "collections alone": lambda world: {"hide": lambda payment: payment.type == "disbursement"},
    "disbursements alone": lambda world: {"hide": lambda payment: payment.type == "collection"},
    "a row that is none": lambda world: {"extra": [None]},
    "a row without a time": lambda world: {"extra": [{"id": "x", "amount": "abc"}]},
    "a row that cannot be read": lambda world: {"extra": [{"id": "x", "created_at": world.utcnow().isoformat()}]},
    **{f"spelt: {name}": lambda world, spell=spell: {"spell": spell} for name, spell in SPELLINGS.items()},  # type: ignore[misc]
}


@attrs.define(eq=False)
class Process:
    """Worker process of the merchant: it may die at any time."""

    store: SQLStore
    outage: Outage
    client: AsyncClient


keys = st.sampled_from(sorted(ORDERS))
processes = st.integers(0, 1)
some_kinds = st.sampled_from([KINDS, KINDS[:1], KINDS[1:]])
moods = st.lists(st.sampled_from(sorted(MOODS)), min_size=1, max_size=3, unique=True)


class Shop(RuleBasedStateMachine):
    """A merchant with two processes and one store."""

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("mobilemoney_async").disabled = True
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner(loop_factory=VirtualClockEventLoop)
        self.numbers = itertools.count(100)
        self.behaves_since: float | None = 0.0
        self.fails_until = 0.0
        self.dismissed: set[str] = set()
        self.wrong: list[str] = []

    @initialize(resend=st.booleans(), kinds=some_kinds)
    def open(self, resend: bool, kinds: list[str]) -> None:
        self.world: World = make_world(sqlite_url(Path(self.folder.name)), resend=resend)
        self.workers = [self.start(), self.start()]
        self.sell(count=2, kinds=kinds)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something on the one loop of all processes."""

        async def main() -> T:
            return await work()

        return self.runner.run(main())

    def start(self) -> Process:
        """Start a process."""
        store = SQLStore(self.world.url, grace=GRACE, resend_absent_collections=self.world.resend)
        client = self.world.client(store=store, timeout=30.0)
        assert isinstance(client, AsyncClient)
        return Process(store, Outage(account_store(store).database), client)

    async def records(self) -> dict[str, PaymentRecord]:
        return {record.key: record for record in await self.workers[0].client.payments.list()}

    # What the merchant does

    @rule(count=st.integers(1, 3), kinds=some_kinds)
    def sell(self, count: int, kinds: list[str]) -> None:
        """Make payments that meet no fault, and fit nothing else."""

        async def work() -> None:
            for _ in range(count):
                for kind in kinds:
                    last = next(self.numbers)
                    order = Order(f"sold {last}", kind, number(last), 900)
                    said = await self.world.attempt(self.workers[0].client, order)
                    # A disbursement may have to wait until a list can be read that fails, or failed a moment ago.
                    waits = kind == "disbursements" and anyio.current_time() < self.fails_until
                    assert isinstance(said, Acknowledgement) or (waits and type(said) is StoreError), said
                await anyio.sleep(1)

        self.run(work)

    @rule(who=processes, key=keys, plan=st.sampled_from(sorted(PLANS)), made=st.booleans())
    def order(self, who: int, key: str, plan: str, made: bool) -> None:
        """Ask for a payment, whether for the first time or again."""
        allowed, answer = PLANS[plan]

        async def work() -> None:
            is_shown = await self.is_shown(key)
            posts = self.world.posts(key)
            said = await self.world.answered(
                self.workers[who].client, ORDERS[key], answer, made=made if made in allowed else not made
            )
            if is_shown and self.world.posts(key) > posts:
                self.wrong.append(f"{key} was sent again, though the list has long shown its payment")
            if isinstance(said, Acknowledgement) and (await self.records())[key].transaction_id != said.transaction_id:
                self.wrong.append(f"{key} was acknowledged before it was recorded")
            await anyio.sleep(1)

        self.run(work)

    async def is_shown(self, key: str) -> bool:
        """Return whether the list has shown what the last request of a key made, for longer than a look is valid."""
        if self.behaves_since is None or anyio.current_time() <= self.behaves_since + GRACE:
            return False
        made = self.last_made(key)
        return made is not None and made not in self.dismissed

    def last_made(self, key: str) -> str | None:
        """Return the transaction that the last request of a key has made, if any."""
        posts = [event for event in self.world.service.log if event.what == "post" and event.owner == key]
        return posts[-1].made[0] if posts and posts[-1].made else None

    @rule(
        who=processes,
        key=keys,
        plan=st.sampled_from(sorted({*PLANS} - {"acknowledged"})),
        made=st.booleans(),
        names=moods,
        kinds=some_kinds,
        seconds=st.sampled_from([GRACE + 1, 10 * MINUTE, DAY]),
    )
    def order_and_search(
        self, *, who: int, key: str, plan: str, made: bool, names: list[str], kinds: list[str], seconds: float
    ) -> None:
        """Let the list misbehave as long as a payment is looked for, which was asked for between others."""
        self.sell(count=1, kinds=kinds)
        self.time_passes(seconds=30.0)
        self.order(who=who, key=key, plan=plan, made=made)
        self.time_passes(seconds=30.0)
        self.sell(count=1, kinds=kinds)
        self.time_passes(seconds=seconds)
        self.the_list_misbehaves(names=names)
        self.reconcile(who=who, is_new=True)
        self.the_laws_hold()
        self.order(who=1 - who, key=key, plan="acknowledged", made=True)
        self.the_laws_hold()
        self.the_list_behaves()

    @rule(who=processes, key=keys, made=st.booleans(), seconds=st.sampled_from([0.0, 10.0, 100.0]))
    def die_in_the_middle(self, who: int, key: str, made: bool, seconds: float) -> None:
        """Let a process end while it waits for an answer, and start another one."""
        service, process = self.world.service, self.workers[who]

        async def work() -> None:
            service.answer_after = 1000.0
            async with anyio.create_task_group() as group:
                # An answer that never arrives.
                group.start_soon(self.answered, process.client, ORDERS[key], _answer(lambda: error(500, None)), made)
                await anyio.sleep(seconds + 0.5)
                process.outage.away = True
                group.cancel_scope.cancel()
            service.answer_after = 0.0
            process.store.close()

        self.run(work)
        self.workers[who] = self.start()

    async def answered(self, client: AsyncClient, order: Order, answer: Answer, made: bool) -> None:
        await self.world.answered(client, order, answer, made=made)

    @rule(who=processes)
    def restart(self, who: int) -> None:
        """Let a process end in good order, and start another one."""
        self.run(self.workers[who].client.aclose)
        self.workers[who].store.close()
        self.workers[who] = self.start()

    @rule(who=processes, is_new=st.booleans())
    def reconcile(self, who: int, is_new: bool) -> None:
        async def work() -> None:
            with suppress(MobileMoneyError):
                await self.workers[who].client.payments.reconcile()
            if is_new:
                await anyio.sleep(GRACE)
                with suppress(MobileMoneyError):
                    await self.workers[who].client.payments.reconcile()

        self.run(work)

    # Operators

    @rule(number=st.integers(0, 11))
    def someone_confirms(self, number: int) -> None:
        """Say that a payment does not exist, rightly or wrongly."""

        async def work() -> None:
            records = [each for each in (await self.records()).values() if each.key in ORDERS and each.is_unresolved]
            if records:
                await self.confirm(records[number % len(records)])

        self.run(work)

    async def confirm(self, record: PaymentRecord) -> None:
        with suppress(StoreError):  # it may still be on its way
            await self.world.confirm(self.workers[0].client, record.key)
            self.dismissed |= {*record.candidates}

    @rule(number=st.integers(0, 11))
    def someone_identifies(self, number: int) -> None:
        """Name the transaction of an unknown payment, rightly."""

        async def work() -> None:
            records = [each for each in (await self.records()).values() if each.is_unresolved]
            if records:
                await self.identify(records[number % len(records)])

        self.run(work)

    async def identify(self, record: PaymentRecord) -> bool:
        made = self.last_made(record.key)
        if made is None:
            return False
        with suppress(StoreError):
            await self.workers[0].client.payments.identify(record.key, made, note="Asha found the receipt")
        return True

    # The world around

    @rule(seconds=st.sampled_from([1.0, 30.0, GRACE + 1, 10 * MINUTE, HOUR, 5 * HOUR, DAY, 3 * DAY]))
    def time_passes(self, seconds: float) -> None:
        self.run(lambda: anyio.sleep(seconds))

    @rule(kind=st.sampled_from(KINDS))
    def another_merchant_pays(self, kind: str) -> None:
        self.run(lambda: self.make(TYPES[kind], number(next(self.numbers)), "900", merchant_id="merchant-2"))

    async def make(self, type: str, phone_number: str, amount: str, **more: Any) -> None:
        self.world.service.make(type, phone_number, amount, **more)

    @rule(names=moods)
    def the_list_misbehaves(self, names: list[str]) -> None:
        async def work() -> None:
            changes: dict[str, Any] = {}
            for name in names:
                changes |= MOODS[name](self.world)
            self.world.service.list = ListBehaviour(**changes)

        self.behaves_since = None
        self.run(work)

    @rule()
    def the_list_fails(self) -> None:
        self.behaves_since, self.fails_until = None, math.inf
        self.world.service.answer_list = unreadable

    @rule()
    def the_list_behaves(self) -> None:
        async def work() -> None:
            self.world.service.list, self.world.service.answer_list = ListBehaviour(), lambda request: None
            self.fails_until = min(self.fails_until, anyio.current_time() + _BACKOFF)
            if self.behaves_since is None:
                self.behaves_since = anyio.current_time()

        self.run(work)

    # The laws

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "workers"):
            assert not self.wrong, self.wrong
            self.run(lambda: self.world.hold(self.workers[0].client))

    def teardown(self) -> None:
        """In the end, with a list that behaves, everything that exists is found, reported, or openly unknown."""
        try:
            if hasattr(self, "workers"):
                self.run(self.end)
        finally:
            self.runner.close()
            for process in getattr(self, "workers", ()):
                process.store.close()
            self.folder.cleanup()
            logging.getLogger("mobilemoney_async").disabled = False

    async def end(self) -> None:
        world, client = self.world, self.workers[0].client
        world.service.list, world.service.answer_list = ListBehaviour(), lambda request: None
        self.behaves_since = anyio.current_time()
        await anyio.sleep(_BACKOFF)
        await world.pay(client, [Order(f"last {kind}", kind, number(next(self.numbers)), 900) for kind in KINDS])
        await world.come_to_rest(client)
        await world.hold(client)
        for _ in range(3):
            # An operator decides, which frees the duplicates; then each key that has a payment is used once more.
            for record in (await self.records()).values():
                assert record.state is not PaymentState.SENDING, record
                if record.is_unresolved and not await self.identify(record):
                    await self.confirm(record)
            for key, order in ORDERS.items():
                if self.last_made(key) is not None:
                    posts, is_shown = world.posts(key), await self.is_shown(key)
                    await world.attempt(client, order)
                    assert not is_shown or world.posts(key) == posts, f"{key} was sent again although it is shown"
        await world.read(client)
        await world.hold(client, at_end=True, known=self.dismissed)
        for process in self.workers:
            await process.client.aclose()


SETTINGS = settings(
    max_examples=examples(8),
    stateful_step_count=200 if examples(1) > 1 else 30,
    suppress_health_check=[*HealthCheck],
)

TestShop = pytest.mark.soak(Shop.TestCase)
TestShop.settings = SETTINGS


SAID = "the list could not be read as a whole: the service counts 5 transactions, and has shown 2"


@pytest.mark.costly("runs lines of payments/audit/report.py that no quick test runs")
@BOTH
async def test_audit_and_reconcile_say_that_they_could_not_read_all(
    world: World, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Both numbers are in the audit's difference and in the log; no payment becomes absent by such a list."""
    await world.pay(client, [Order("before", "collections", number(1))])
    await world.lose(client, Order("never", "collections", number(2)), made=False)
    await world.pay(client, [Order("after", "collections", number(3))])
    world.service.list = ListBehaviour(total_count=lambda shown: shown + 3)
    await world.reconcile(client, 1.0, GRACE + 5, GRACE + 5, HOUR)
    never = await world.get(client, "never")
    assert (never.state, never.reason) == (PaymentState.UNKNOWN, "the list could not be read as a whole")
    assert SAID in caplog.messages
    today = world.utcnow().date()
    report = await client.payments.audit(from_date=today - timedelta(days=1), to_date=today)
    assert [each.reason for each in report.differences if each.kind == "incomplete"] == [SAID]
    world.service.list = ListBehaviour()
    report = await client.payments.audit(from_date=today - timedelta(days=1), to_date=today)
    assert not [each for each in report.differences if each.kind == "incomplete"]
