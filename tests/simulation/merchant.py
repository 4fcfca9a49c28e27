"""The merchant: its processes, its shop with books of its own, its customers' orders and its operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import attrs

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    InvalidCursor,
    LoginAuth,
    MobileMoneyError,
    PaymentChange,
    PaymentRecord,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.callbacks import CallbackReceiver
from tests.simulation.disk import Books
from tests.simulation.service import EMAIL, MERCHANT, PASSWORD, Payment
from tests.simulation.wire import BASE_URL, SENT, Network
from tests.simulation.world import World, check_text

TABLES = (
    "CREATE TABLE IF NOT EXISTS shop_orders (key TEXT PRIMARY KEY, is_queued INTEGER)",
    "CREATE TABLE IF NOT EXISTS shop_books (n INTEGER PRIMARY KEY, key TEXT, state TEXT, status TEXT, cursor TEXT)",
    "CREATE TABLE IF NOT EXISTS shop_shipped (n INTEGER PRIMARY KEY, key TEXT, state TEXT, status TEXT, cursor TEXT)",
    "CREATE TABLE IF NOT EXISTS shop_place (place TEXT)",
)
PAYABLE = {PaymentState.NOT_SENT, PaymentState.REFUSED, PaymentState.RELEASED}


@attrs.frozen(kw_only=True)
class Order:
    """Order of a customer, at a time of the world."""

    key: str
    type: str
    phone_number: str
    amount: int
    at: float
    is_queued: bool

    def arguments(self, *, has_key: bool = True) -> dict[str, Any]:
        """Return the arguments of its payment."""
        named = {"idempotency_key": self.key} if has_key else {}
        return {"phone_number": self.phone_number, "amount": self.amount, "extra": {"order": self.key}, **named}


@attrs.define(eq=False)
class Merchant:
    """One process of the merchant.

    Attributes:
        number: Of the process: the first one's operators work in it.
        receiver: Gets the callbacks.
    """

    world: World
    number: int
    orders: dict[str, Order]
    store: SQLStore = attrs.field(init=False)
    client: AsyncClient = attrs.field(init=False)
    receiver: CallbackReceiver | None = None

    async def run(self) -> None:
        """Run everything that a merchant's process runs, until it is cancelled."""
        world, plan = self.world, self.world.plan
        if not plan.has_store:
            await self._run_without_store()
            return
        self.store = SQLStore(
            world.disk.url,
            grace=plan.grace,
            key="key-of-the-store-1",
            resend_absent_collections=plan.resend,
            sole_writer=plan.sole_writer,
        )
        auth, network = LoginAuth(EMAIL, PASSWORD), Network(world)
        async with AsyncClient(
            BASE_URL, auth=auth, transport=network, store=self.store, timeout=plan.timeout
        ) as self.client:
            await self.client.payments.unresolved()  # makes the tables
            await world.in_books(_make_tables)
            async with (
                self.client.poller(resume=True) as poller,
                self.client.dispatcher(),
                anyio.create_task_group() as tasks,
            ):
                self.receiver = CallbackReceiver(poller)
                dice, pace = world.dice(f"shop {self.number}"), max(5.0, plan.idle)
                for work, longest in (
                    (self._take_orders, 20.0),
                    (self._reconcile, 120.0),
                    (self._read_books, pace),
                    (self._ship, pace),
                    (self._decide, 200.0),
                    *([(self._audit, 5.0)] if world.is_audited and not self.number else []),
                ):
                    tasks.start_soon(self._repeat, work, dice.uniform(longest / 4, longest))

    async def _run_without_store(self) -> None:
        auth, network = LoginAuth(EMAIL, PASSWORD), Network(self.world)
        async with AsyncClient(BASE_URL, auth=auth, transport=network, timeout=self.world.plan.timeout) as self.client:
            await self._repeat(self._call_once, 5.0)

    async def _call_once(self) -> None:
        """Pay for each order with one call, and wait for its end."""
        for order in self.orders.values():
            if order.at <= self.world.now() and order.key not in self.world.called:
                self.world.called.add(order.key)
                answer = await self._pay(order)
                if answer is None:
                    continue
                final = await self.client.transactions.wait(answer.transaction_id, timeout=60)
                made = next((each for each in self.world.made[order.key] if each.id == final.id), None)
                if made is None or made.status(self.world.now()) != final.status:
                    self.world.breaks(f"{order.key} is {final.id} and {final.status}, which is not so at the service")

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause: float) -> None:
        while True:
            try:
                await work()
            except MobileMoneyError as error:
                self._note(f"{work.__name__.strip('_')}: {error!r}"[:300], error)
            await anyio.sleep(pause)

    def _note(self, what: str, error: Exception | None = None) -> None:
        check_text(self.world, what if error is None else f"{what} {error} {error!r}")
        self.world.note(what)

    # The shop

    async def _take_orders(self) -> None:
        """Pay what customers have ordered, and try again what was not paid."""
        world, dice = self.world, self.world.dice("orders")
        ended = {PaymentState.FINAL, PaymentState.CANCELLED}
        records = {each.key: each for each in await self.client.payments.list()}
        check_text(world, f"{records}")
        for order in list(self.orders.values()):
            is_over = order.key in records and records[order.key].state in ended
            if is_over or order.at > world.now() or order.key in world.later:
                continue
            if hash_of(order.key) % world.running != self.number and not world.strikes("order_twice"):
                continue
            record = await self.client.payments.get(order.key)
            if record is not None and record.state in PAYABLE and world.strikes("customer_later"):
                world.later.add(order.key)
                continue
            if self._is_placed(order, record):
                await self._place(order)
            elif record is None or self._may_go_again(record):
                await self._pay(order)
            elif record.state is PaymentState.QUEUED and world.strikes("order_cancelled"):
                with suppress(StoreError):
                    await self.client.payments.cancel(order.key, note="the customer has gone")
                    self._note(f"cancels {order.key}")
            if dice.random() < 0.1:
                await anyio.sleep(dice.uniform(0, 2))

    def _may_go_again(self, record: PaymentRecord) -> bool:
        if record.state is PaymentState.QUEUED:
            return self.world.strikes("order_hastened")
        is_absent = record.state is PaymentState.ABSENT and self.world.plan.resend and record.type == "collection"
        return is_absent or record.state in PAYABLE

    def _is_placed(self, order: Order, record: PaymentRecord | None) -> bool:
        """Return whether an order is queued now, perhaps again."""
        is_over = record is not None and record.state in {PaymentState.NOT_SENT, PaymentState.REFUSED}
        return order.is_queued and (record is None or (is_over and self.world.dice("orders").random() < 0.5))

    async def _place(self, order: Order) -> None:
        def place(connection: Books) -> None:
            connection.execute("INSERT INTO shop_orders VALUES (?, 1) ON CONFLICT DO NOTHING", (order.key,))
            # Hosts' clocks that jump take none out of the queue that has time left.
            end = timedelta(hours=1) if self.world.strikes_hosts else None
            self.store.enqueue(connection.raw, type=order.type, not_after=end, **order.arguments())

        await self.world.in_books(place)
        self._note(f"places {order.key}: {order.type} of {order.amount}, queued")

    async def _pay(self, order: Order) -> Acknowledgement | None:
        creates = self.client.collections if order.type == "collection" else self.client.disbursements
        self._note(f"asks for {order.key}: {order.type} of {order.amount}")
        patience = 1_000_000.0
        if self.world.strikes("customer_leaves"):
            patience = self.world.dice("patience").uniform(0, 10)
        answer: Acknowledgement | None = None
        with anyio.move_on_after(patience) as scope:
            sent: list[int] = []
            SENT.set(sent)
            try:
                answer = await creates.create(**order.arguments(has_key=self.world.plan.has_store))
                self._note(f"{order.key} is {answer.transaction_id}")
            except MobileMoneyError as error:
                self._note(f"{order.key}: {type(error).__name__} {error.outcome}: {error}"[:300], error)
                made = [each.id for each in self.world.made.get(order.key, ()) if each.request in sent]
                if error.outcome == "not_sent" and made:
                    self.world.breaks(f"{order.key} is called not sent, and this very call has made {made}")
                if error.outcome == "refused" and self.world.clear(order.key) and is_documented(error):
                    self.world.breaks(f"{order.key} is called refused with a documented code, and exists")
        if scope.cancelled_caught:
            self._note(f"{order.key}: its customer did not wait")
        return answer

    # The books

    async def _read_books(self) -> None:
        """Read the feed with a cursor that is kept in the books' own transaction."""
        (place,) = await self.world.in_books(lambda books: books.execute("SELECT place FROM shop_place").fetchone())
        try:
            async for change in self.client.payments.changes(after=place):
                if not await self.world.in_books(_booking(change, place)):
                    self._note("books: another process is ahead")
                    return
                check_text(self.world, f"{change!r}")
                self._note(f"books: {change.key} {change.state} {change.status}")
                place = change.cursor
        except InvalidCursor:
            self._note("books: the feed cannot go on from the cursor")
            if not self.world.is_doubted:
                self.world.breaks("a cursor is invalid although no backup was restored")
            await self.world.in_books(lambda books: books.execute("UPDATE shop_place SET place = NULL").rowcount)

    async def _ship(self) -> None:
        """Read the feed as a named consumer, whose place the store keeps."""
        async for change in self.client.payments.changes(consumer="ship", start="oldest"):
            if self.world.strikes("books_fail"):
                await change.failed("no paper")
                continue
            values = (change.key, change.state, change.status, change.cursor)
            await self.world.in_books(
                lambda books, values=values: books.execute(  # type: ignore[misc]
                    "INSERT INTO shop_shipped (key, state, status, cursor) VALUES (?, ?, ?, ?)", values
                )
            )
            await change.done()

    # The operators

    async def _reconcile(self) -> None:
        for record in await self.client.payments.reconcile():
            self._note(f"reconcile: {record.key} is {record.state} {record.reason or ''}")

    async def _audit(self) -> None:
        """Read the whole list twice, so that what no payment claims is reported, and compare the books with it."""
        world = self.world
        if world.audited is None:
            for pause in (world.plan.grace + world.plan.timeout + 10, 0):
                async for _ in self.client.transactions.list():
                    pass
                await anyio.sleep(pause)
            days = timedelta(days=30)
            report = await self.client.payments.audit(
                from_date=(world.utcnow() - days).date(), to_date=world.utcnow().date()
            )
            world.audited = {str(each.transaction_id) for each in report.differences}
            check_text(world, f"{report}")
            self._note(f"audit: {len(report.differences)} differences")

    async def _decide(self) -> None:
        """Let an operator look at what is open, and at the service's dashboard, and decide."""
        payments, world = self.client.payments, self.world
        if world.plan.pause and not world.is_calm:
            return
        for record in await payments.unresolved():
            if record.sent_at is None or record.state is PaymentState.SENDING:
                continue
            if record.is_final:
                self._note(f"operator: {record.key} has ended as it did first")
                await payments.explain(str(record.transaction_id), note="asked the service")
                continue
            age = (world.utcnow() - record.sent_at).total_seconds()
            if age > 2 * world.plan.grace + world.plan.timeout + 60:
                with suppress(StoreError):
                    await self._decide_about(record)
        for row in await payments.unclaimed():
            made = next((each for each in world.service.payments if each.id == row.transaction_id), None)
            known = None if made is None or made.owner is None else await payments.get(made.owner)
            # Also before the store has been compared, where a process died meanwhile: an own order is no other payment.
            is_forgotten = made is not None and made.owner is not None and (known is None or not known.attempt)
            if row.is_gap or is_forgotten:
                await self._import(row.transaction_id)
            elif known is not None and known.is_unresolved and known.state is not PaymentState.SENDING:
                continue  # which is decided about above, once it is old enough
            elif (world.utcnow() - row.first_seen_at).total_seconds() > 1800:
                self._note(f"operator: explains {row.transaction_id}")
                await payments.explain(row.transaction_id, note="looked on the dashboard")

    async def _import(self, transaction_id: str) -> None:
        """Let an operator import a transaction under the key of its order, or under one of its own.

        A second transaction of a key gets a key of its own; so does that of a key which was in the restored store's
        queue, and was cancelled then.
        """
        made = next(each for each in self.world.service.payments if each.id == transaction_id)
        known = None if made.owner is None else await self.client.payments.get(made.owner)
        is_taken = known is not None and (known.transaction_id or known.state is PaymentState.CANCELLED)
        key = f"extra-{transaction_id}" if made.owner is None or is_taken else made.owner
        self._note(f"operator: imports {transaction_id} of {made.owner} as {key}")
        names = {transaction_id: made.phone_number}
        await self.client.payments.recover({key: transaction_id}, note="found in the books", phone_numbers=names)

    async def _decide_about(self, record: PaymentRecord) -> None:
        payments, world = self.client.payments, self.world
        mine = [each for each in world.made.get(record.key, []) if each.made_at <= world.now()]
        others = [each for each in world.service.payments if each.owner != record.key]
        is_wrong = world.strikes("operator_wrong")
        if is_wrong:
            world.wrong.add(record.key)
        if is_wrong and others and (not mine or self.world.dice("operator").random() < 0.5):
            await self._mistake(record, self.world.dice("operator").choice(others))
        elif mine and not is_wrong:
            self._note(f"operator: {record.key} is {mine[0].id}")
            await payments.identify(record.key, mine[-1].id, note="seen on the dashboard")
        else:
            self._note(f"operator: {record.key} does not exist{' (WRONG)' if mine else ''}")
            at = world.now()
            await payments.confirm_absent(record.key, note="not on the dashboard")
            world.words.append((record.key, at if not mine else world.now()))
            for each in record.candidates:
                owner = next(payment.owner for payment in world.service.payments if payment.id == each)
                known = None if owner is None else await payments.get(owner)
                # A restored store may have paid an order again: then this one is of nobody.
                if owner is None or (known is not None and known.transaction_id not in {None, each}):
                    self._note(f"operator: explains {each}")
                    await payments.explain(each, note="another payment")

    async def _mistake(self, record: PaymentRecord, other: Payment) -> None:
        """Let an operator take a payment for another's transaction."""
        self._note(f"operator: {record.key} is {other.id} of {other.owner} (WRONG)")
        self.world.wrong |= {record.key, str(other.owner)}
        await self.client.payments.identify(record.key, other.id, note="in a hurry")
        shown: tuple[object, ...] = other.merchant, other.type, int(other.amount), other.phone_number
        if shown != (MERCHANT, record.type, record.amount, record.phone_number):
            self.world.breaks(f"{record.key} was identified as {other.id}, which is of another kind")


def is_documented(error: MobileMoneyError) -> bool:
    """Return whether a refusal has a code of the contract's section 7 that fits a create."""
    code = str(getattr(error, "code", None))
    return code in {"RATE_LIMIT_EXCEEDED", "invalid_token", "token_expired", "insufficient_permissions"}


def hash_of(key: str) -> int:
    """Return a number for a key, the same in each run."""
    return int(key.rpartition("-")[2])


def _make_tables(books: Books) -> None:
    for each in TABLES:
        books.execute(each)
    books.execute("INSERT INTO shop_place SELECT NULL WHERE NOT EXISTS (SELECT 1 FROM shop_place)")


def _booking(change: PaymentChange, place: str | None) -> Callable[[Books], bool]:
    """Return the transaction that books one change, and moves the place from where it was read."""
    values = (change.key, change.state, change.status, change.cursor)

    def book(books: Books) -> bool:
        if (
            books.execute(
                "UPDATE shop_place SET place = ? WHERE coalesce(place, '') = coalesce(?, '')", (change.cursor, place)
            ).rowcount
            != 1
        ):
            return False
        books.execute("INSERT INTO shop_books (key, state, status, cursor) VALUES (?, ?, ?, ?)", values)
        return True

    return book
