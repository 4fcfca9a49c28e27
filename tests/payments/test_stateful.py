"""The store against a model that knows the truth: orders, faults, crashes, clocks and people, in any order.

The model is the second service, which gets each order's key in an extra field that its list does not show. The
assumptions of the store hold here too: no other system pays for the same merchant, the merchant's clock does not jump,
the service has processed and listed a request within the grace period, and confirmations are true.
"""

import asyncio
import json
import logging
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import attrs
import httpx
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mobilemoney_async import (
    AsyncClient,
    MobileMoneyError,
    OutcomeUnknown,
    RateLimiter,
    RetryPolicy,
    SQLStore,
    StoreError,
)
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.testing import VirtualClockEventLoop
from tests.payments.service import Outage
from tests.payments.steps import record_of
from tests.support.fakes import NOON
from tests.support.scale import examples, soak
from tests.support.second_service import BASE_URL, TOKEN, Payment, SecondService, error

T = TypeVar("T")

_TIMEOUT = 5.0
_LATEST = 60.0
_LAG = 20.0

# Three kinds of payments, and duplicates of each.
_KINDS = {
    "a": ("collection", "+255681234501", "1000"),
    "b": ("disbursement", "+255681234501", "1000"),
    "c": ("collection", "+255681234502", "1000"),
}
KINDS = {f"{name}{number}": kind for name, kind in _KINDS.items() for number in range(4)}
PLANS = [
    "answer",
    "refuse",
    "not sent",
    "lose the answer",
    "lose the request",
    "process late",
    "hang before",
    "hang after",
    "500 after",
    "rate limit",
]

# Of a request that outlives its sender: its place then, and whether the service still gets it.
FATES = [("hang before", False), ("hang before", True), ("hang after", True), ("process late", False)]


@attrs.define(eq=False, kw_only=True)
class Service(SecondService):
    """The second service with a plan for each request, which it may get late, or after its sender's death.

    Attributes:
        ahead: How far its clock is ahead of the merchant's, which is true.
        lags: Whether its list is behind.
        look: Returns the transactions that the store knows, by key.
    """

    late: list[tuple[float, str]] = attrs.field(factory=list)
    plans: dict[str, str] = attrs.field(factory=dict)
    may_exist: set[str] = attrs.field(factory=set)
    alive: set[str] = attrs.field(factory=set)
    made_at: dict[str, float] = attrs.field(factory=dict)
    ahead: timedelta = timedelta(0)
    has_jumped: bool = False
    lags: bool = False
    wrong: list[str] = attrs.field(factory=list)
    look: Callable[[], dict[str, Any]] = dict

    def __attrs_post_init__(self) -> None:
        self.list.page_size, self.list.hide = 3, self._is_behind

    def _is_behind(self, payment: Payment) -> bool:
        return self.made_at[payment.id] > anyio.current_time() - (_LAG if self.lags else 0.0)

    def settle(self) -> None:
        """Process the delayed requests."""
        for due_at, key in [*self.late]:
            if due_at <= anyio.current_time():
                self.late.remove((due_at, key))
                self.process(key, due_at)

    def process(self, key: str, at: float | None = None) -> None:
        """Let a request take effect, now or at the time when it was due."""
        self.make(*KINDS[key], owner=key, at=at)

    def make(self, type: str, phone_number: str, amount: str, **more: Any) -> Payment:
        if any(made.owner == more["owner"] for made in self.payments):
            self.wrong.append(f"{more['owner']} was paid twice")
        due_at = more.pop("at", None)
        at = anyio.current_time() if due_at is None else due_at
        created_at = NOON + timedelta(seconds=at) + self.ahead
        payment = super().make(type, phone_number, amount, **{**more, "created_at": created_at})
        self.made_at[payment.id] = at
        return payment

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.settle()
        if request.method != "POST":
            return await super().handle_async_request(request)
        # Peeked at, so that a refused connection has not begun to read.
        key = json.loads(request.content)["order"]
        plan = self.plans.pop(key, "answer")
        if plan == "not sent":
            raise httpx.ConnectError("All connection attempts failed")
        await request.aread()
        self._check(key)
        if plan == "refuse":
            return self._dated(error(400, "NOT_TODAY"))
        if plan == "rate limit":
            return self._dated(error(429, "RATE_LIMIT_EXCEEDED", retry_after=1))
        self.may_exist.add(key)
        if plan == "lose the request":
            raise httpx.ReadError("reset")
        if plan == "process late":
            self.late.append((anyio.current_time() + _LATEST, key))
            await anyio.sleep_forever()
        if plan == "hang before":
            await self._hang(key)
        answer = await super().handle_async_request(request)
        if plan == "hang after":
            await self._hang(key)
        if plan == "lose the answer":
            raise httpx.ReadError("reset")
        return self._dated(httpx.Response(500)) if plan == "500 after" else answer

    async def _hang(self, key: str) -> None:
        self.alive.add(key)
        try:
            await anyio.sleep(_TIMEOUT - 0.5)
        finally:
            self.alive.discard(key)

    def may_appear(self, key: str) -> bool:
        """Return whether a payment exists or may still come to exist."""
        is_made = any(made.owner == key for made in self.payments)
        return is_made or key in self.alive or any(key == late for _, late in self.late)

    def _check(self, key: str) -> None:
        """See that this request may be sent.

        A lost collection that a whole list has not shown near its send, once the grace period was over, stops no other:
        it does not exist, unless the service's clock has jumped meanwhile.
        """
        if key in self.may_exist:
            self.wrong.append(f"{key} was sent again without a confirmation")
        known = self.look()
        is_collection = KINDS[key][0] == "collection"
        for other, kind in KINDS.items():
            if other == key or kind != KINDS[key] or known.get(other):
                continue
            if (not self.has_jumped and self.may_appear(other)) if is_collection else other in self.may_exist:
                self.wrong.append(f"{key} was sent while its duplicate {other} was not identified")


@attrs.define(eq=False)
class Process:
    """A worker process of the merchant: it may die at any time."""

    store: SQLStore
    outage: Outage
    client: AsyncClient
    tasks: set[asyncio.Task[None]] = attrs.field(factory=set)


keys = st.sampled_from(sorted(KINDS))
processes = st.integers(0, 1)


class Shop(RuleBasedStateMachine):
    """Everything that may happen to a merchant."""

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("mobilemoney_async").disabled = True
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "payments.db"
        self.url = f"sqlite:///{path}"
        self.engine = sa.create_engine(self.url, poolclass=sa.pool.NullPool)
        self.runner = asyncio.Runner(loop_factory=VirtualClockEventLoop)
        self.service = Service(utcnow=lambda: self.now() + self.service.ahead)
        self.service.look = self.identified
        self.owned: dict[str, str] = {}
        self.workers = [self.start(), self.start()]
        self.run(self.workers[0].client.payments.list)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something on the one loop of all processes."""

        async def main() -> T:
            return await work()

        return self.runner.run(main())

    def start(self) -> Process:
        """Start a process."""
        store = SQLStore(self.url)
        client = AsyncClient(
            BASE_URL,
            auth=TOKEN,
            store=store,
            transport=self.service,
            timeout=_TIMEOUT,
            deadline=20.0,
            retry=RetryPolicy(max_attempts=2, first_delay=0.1),
            rate_limiter=RateLimiter(per_minute=600_000, burst=10_000),
            utcnow=self.now,
        )
        return Process(store, Outage(account_store(store).database), client)

    def now(self) -> datetime:
        """Return the true time."""
        return NOON + timedelta(seconds=anyio.current_time())

    def rows(self) -> dict[str, tuple[str, str | None]]:
        """Return the state and the transaction of each key, through another connection."""
        with self.engine.connect() as connection:
            found = connection.execute(sa.text("SELECT key, state, transaction_id FROM mobilemoney_payment_records"))
            return {row[0]: (row[1], row[2]) for row in found}

    def identified(self) -> dict[str, Any]:
        """Return the transactions that are known."""
        return {key: transaction_id for key, (_, transaction_id) in self.rows().items()}

    def truth(self, key: str) -> str | None:
        """Return the transaction of a key, if there is one."""
        return next((made.id for made in self.service.payments if made.owner == key), None)

    async def create(self, process: Process, key: str) -> None:
        """Create a payment, and hold the answer against the truth."""
        kind, phone_number, amount = KINDS[key]
        creates = process.client.collections if kind == "collection" else process.client.disbursements
        try:
            answer = await creates.create(
                phone_number=phone_number, amount=amount, idempotency_key=key, extra={"order": key}
            )
        except (OutcomeUnknown, StoreError):
            return
        except MobileMoneyError as exc:
            # Said of a payment that exists, it would be paid for twice.
            if self.truth(key) is not None:
                self.service.wrong.append(f"{key} exists, and the caller was told {exc.outcome}")
            return
        if answer.transaction_id != self.truth(key):
            self.service.wrong.append(f"{key} is {self.truth(key)}, and the caller was told {answer.transaction_id}")
        if self.identified().get(key) != answer.transaction_id:
            self.service.wrong.append(f"{key} was answered before it was recorded")

    @rule(key=keys, who=processes, plan=st.sampled_from(PLANS), patience=st.sampled_from([0.0, 0.3, 10.0]))
    def order(self, key: str, who: int, plan: str, patience: float) -> None:
        """Ask for a payment, and wait for a while, or not, before something else happens."""
        process = self.workers[who]
        self.service.plans[key] = plan

        async def work() -> None:
            task = asyncio.create_task(self.create(process, key))
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard)
            await asyncio.wait([task], timeout=patience)
            await anyio.sleep(0.01)

        self.run(work)

    @rule(who=processes, orders=st.dictionaries(keys, st.sampled_from(PLANS), min_size=2, max_size=6))
    def order_many(self, who: int, orders: dict[str, str]) -> None:
        """Ask for several at once, some of them in both processes."""
        self.service.plans |= orders

        async def work() -> None:
            async with anyio.create_task_group() as group:
                for number, key in enumerate([*orders, *orders][: len(orders) + 2]):
                    group.start_soon(self.create, self.workers[(who + number) % 2], key)

        self.run(work)

    async def dispatch(self, process: Process, seconds: float) -> None:
        """Send what is queued for so many seconds."""
        try:
            async with process.client.dispatcher(per_minute=600):
                await anyio.sleep(seconds)
        except StoreError:
            return
        except Exception as exc:  # noqa: BLE001 (of a task that is not awaited)
            self.service.wrong.append(f"the dispatcher ended: {exc!r}")

    @rule(
        orders=st.dictionaries(keys, st.sampled_from(PLANS), min_size=1, max_size=6),
        who=processes,
        seconds=st.sampled_from([0.0, 0.3, 3.0, 50.0]),
        patience=st.sampled_from([0.3, 70.0]),
    )
    def enqueue(self, orders: dict[str, str], who: int, seconds: float, patience: float) -> None:
        """Queue payments, some of which are known already, and let them be sent for a while, or not."""
        process = self.workers[who]
        self.service.plans |= orders

        async def work() -> None:
            for key in orders:
                kind, phone_number, amount = KINDS[key]
                order: dict[str, Any] = {"type": kind, "phone_number": phone_number, "amount": amount}
                with suppress(StoreError):
                    await process.client.payments.enqueue(**order, idempotency_key=key, extra={"order": key})
            if seconds:
                task = asyncio.create_task(self.dispatch(process, seconds))
                process.tasks.add(task)
                task.add_done_callback(process.tasks.discard)
                await asyncio.wait([task], timeout=patience)
                await anyio.sleep(0.01)

        self.run(work)

    @rule(key=keys, who=processes)
    def cancel(self, key: str, who: int) -> None:
        """Take a payment out of the queue, if it is in it and was never sent, as far as is known."""

        async def work() -> None:
            with suppress(StoreError):
                await self.workers[who].client.payments.cancel(key, note="not wanted")

        self.run(work)

    @rule(seconds=st.sampled_from([0.5, 6.0, 30.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        """Let time pass for all processes."""

        async def work() -> None:
            await anyio.sleep(seconds)
            self.service.settle()

        self.run(work)

    @rule(who=processes, stale_after=st.sampled_from([None, None, 3.0, 0.0]))
    def reconcile(self, who: int, stale_after: float | None) -> None:
        """Find out; also where a process is wrongly taken for dead."""

        async def work() -> None:
            with suppress(StoreError):
                await self.workers[who].client.payments.reconcile(stale_after=stale_after)

        self.run(work)

    @rule(who=processes)
    def time_tells(self, who: int) -> None:
        """Let the grace period pass, and look twice."""
        self.time_passes(130.0)
        for _ in range(2):
            self.reconcile(who, None)
            self.time_passes(0.5)

    @rule(who=processes, number=st.integers(0, 11))
    def someone_confirms(self, who: int, number: int) -> None:
        """Say that a payment is absent, which is true: it does not exist, and cannot come to exist."""
        unresolved = [key for key, (state, _) in self.rows().items() if state in {"UNKNOWN", "ABSENT"}]
        spoken_of = [key for key in unresolved if not self.service.may_appear(key)] or ["c3"]
        key = spoken_of[number % len(spoken_of)]
        if self.service.may_appear(key):
            return

        async def work() -> None:
            before = self.rows().get(key, ("", None))[0]
            try:
                await self.workers[who].client.payments.confirm_absent(key, note="looked")
            except StoreError as exc:
                fails = self.workers[who].outage.fails
                # An answer that an outage has kept from the store is written first.
                may_say_so = f"{key!r} is REFUSED" in str(exc) or "may exist without being in the list" in str(exc)
                if before in {"UNKNOWN", "ABSENT"} and not may_say_so and not fails(self.workers[who].outage.writes):
                    raise
            else:
                self.service.may_exist.discard(key)

        self.run(work)

    @rule(who=processes, is_processed=st.booleans())
    def crash(self, who: int, is_processed: bool) -> None:
        """Kill a process in the middle of whatever it does, and start another."""
        process = self.workers[who]

        async def work() -> None:
            process.outage.away = True
            alive = {*self.service.alive}
            for task in [*process.tasks]:
                task.cancel()
            while process.tasks:
                await anyio.sleep(0.05)
            for key in alive - self.service.alive:
                if is_processed and self.truth(key) is None:  # it was on the wire
                    self.service.process(key)
            process.store.close()

        self.run(work)
        self.workers[who] = self.start()

    @rule(key=keys, who=processes, fate=st.sampled_from(FATES), seconds=st.sampled_from([0.0, 3.0, 15.0]))
    def die_in_the_middle(self, key: str, who: int, fate: tuple[str, bool], seconds: float) -> None:
        """Kill a process while it sends, and let the other one find out sooner or later."""
        plan, is_processed = fate
        self.order(key, who, plan, 0.0)
        self.crash(who, is_processed)
        self.time_passes(0.5 + seconds)
        self.reconcile(1 - who, None if seconds else 0.0)

    @rule(who=processes, fails=st.sampled_from(["never", "once", "for long"]))
    def database_falters(self, who: int, fails: str) -> None:
        """Let the database fail for a process: for one write, or until it is said to be back."""
        outage = self.workers[who].outage
        now = outage.writes
        if fails == "for long":
            outage.fails = lambda number: number > now + 1
        else:
            outage.fails = lambda number: fails == "once" and number == now + 2

    @rule(
        hours=st.sampled_from([-3.0, -0.2, 0.0, 0.2, 3.0]),
        has_dates=st.booleans(),
        is_newest_first=st.booleans(),
        lags=st.booleans(),
        size=st.sampled_from([1, 3, 100]),
    )
    def the_service_changes(self, hours: float, has_dates: bool, is_newest_first: bool, lags: bool, size: int) -> None:
        """Set the service's clock, and change how its list looks."""
        service = self.service
        ahead = timedelta(hours=hours)
        service.has_jumped = service.has_jumped or (ahead != service.ahead and bool(service.may_exist))
        service.ahead = ahead
        service.shows_clock, service.lags = has_dates, lags
        service.list.newest_first, service.list.page_size = is_newest_first, size

    @invariant()
    def nothing_went_wrong(self) -> None:
        """No key was paid or sent twice, no duplicate was sent too early, no caller got a wrong answer."""
        assert not self.service.wrong

    @invariant()
    def each_payment_has_its_own_transaction(self) -> None:
        """A record's transaction is the one that the service made for its key, and it is never lost again."""
        rows = self.rows()
        for key, (state, transaction_id) in rows.items():
            if transaction_id is not None:
                assert transaction_id == self.truth(key), f"{key} was taken for {transaction_id}"
                assert state in {"ACKNOWLEDGED", "FINAL"}
                self.owned[key] = transaction_id
        for key, transaction_id in self.owned.items():
            assert rows[key][1] == transaction_id

    @invariant()
    def what_exists_is_not_denied(self) -> None:
        """A payment that exists or may come to exist is never absent, and never free to be sent again."""
        for key, (state, _) in self.rows().items():
            if self.service.may_appear(key):
                denied = {"ABSENT", "RELEASED", "NOT_SENT", "REFUSED", "QUEUED", "CANCELLED"}
                assert state not in denied, f"{key} is {state}"

    @invariant()
    def one_unidentified_of_a_kind(self) -> None:
        """Of a kind there is one unidentified payment at most, of collections one that exists or may come to exist."""
        has_jumped = self.service.has_jumped
        unidentified = [key for key, (state, _) in self.rows().items() if state in {"SENDING", "UNKNOWN", "ABSENT"}]
        kinds = [
            KINDS[key]
            for key in unidentified
            if KINDS[key][0] == "disbursement" or (not has_jumped and self.service.may_appear(key))
        ]
        assert len(kinds) == len({*kinds})

    def teardown(self) -> None:
        """In the end everything that exists is found, or openly unresolved."""
        try:
            self.run(self._finish)
            self.nothing_went_wrong()
            self.each_payment_has_its_own_transaction()
            self.what_exists_is_not_denied()
        finally:
            self.runner.close()
            for process in self.workers:
                process.store.close()
            self.folder.cleanup()
            logging.getLogger("mobilemoney_async").disabled = False

    async def _finish(self) -> None:
        self.service.plans.clear()
        for process in self.workers:
            process.outage.fails = lambda number: False
        await anyio.sleep(200)
        self.service.settle()
        self.service.lags = False
        for _ in range(2):
            for process in self.workers:
                await process.client.payments.reconcile()
                await anyio.sleep(1)
        for key, (state, transaction_id) in self.rows().items():
            assert state != "SENDING", f"{key} is still on its way"
            if self.truth(key) is not None and transaction_id is None:
                record = await record_of(self.workers[0].client, key)
                assert record.is_ambiguous, f"{key} exists, and was not found"
        with self.engine.connect() as connection:
            said = connection.execute(
                sa.text("SELECT detail FROM mobilemoney_payment_history WHERE what = 'contradiction'")
            )
            assert not [row[0] for row in said if "belongs to another" in row[0]]
        for process in self.workers:
            assert not process.tasks
            assert not account_store(process.store).locks.held()
            assert not account_store(process.store).unwritten
            await process.client.aclose()


TestShop = pytest.mark.soak(Shop.TestCase)
TestShop.settings = settings(
    max_examples=examples(soak(32)), stateful_step_count=25, suppress_health_check=[*HealthCheck]
)
