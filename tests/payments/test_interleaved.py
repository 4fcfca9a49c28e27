"""Two transactions of PostgreSQL, one of which comes between a read and an update of the other, leave what either order
of the two would leave: so no lock can be dropped unnoticed.
"""

import functools
import itertools
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeAlias

import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import Acknowledgement, MobileMoneyError, TransactionStatus, TransactionType
from mobilemoney_async.database.clock import Holder
from mobilemoney_async.database.connections import make_engine
from mobilemoney_async.database.engine import timeline
from mobilemoney_async.database.group import is_conflict
from mobilemoney_async.database.leases import change_lease
from mobilemoney_async.database.schema import (
    batch_lines,
    batches,
    budgets,
    changes,
    consumers,
    history,
    leases,
    lock_row,
    payments,
    retries,
    unmatched,
)
from mobilemoney_async.database.url import read_url
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.api import Payments
from mobilemoney_async.payments.creates.attempts import Beginning, NotEchoedError
from mobilemoney_async.payments.creates.creates import IdempotentCreates
from mobilemoney_async.payments.feed.changes import number_changes
from mobilemoney_async.payments.feed.consumers import ConsumerTable
from mobilemoney_async.payments.outbox.outbox import QueueOptions, cancel, enqueue, postpone
from mobilemoney_async.payments.ownership import imports
from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard
from mobilemoney_async.payments.ownership.evidence import Evidence, Listing, Verdict
from mobilemoney_async.payments.ownership.matching import query_for
from mobilemoney_async.payments.ownership.reconciliation import (
    ListCheck,
    ask_for_look,
    mark_stale,
    record_listing,
)
from mobilemoney_async.payments.payouts.batch import PayoutBatch
from mobilemoney_async.payments.payouts.payouts import Payouts
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentRecord, PaymentRequest, PaymentState, Source
from mobilemoney_async.payments.records.rows import JournalEntry
from mobilemoney_async.payments.records.transaction_states import record_seen
from tests.payments.tables import SEEN, insert_line, insert_payment
from tests.support.fakes import NOON, PHONE_NUMBER
from tests.support.patience import PATIENCE, wait_until

LATER = NOON + timedelta(minutes=10)
KEY, RIVAL = "order-1", "order-0"
REQUEST = PaymentRequest(key=KEY, type=TransactionType.COLLECTION, phone_number=PHONE_NUMBER, amount="1000")
LINE = PaymentRequest(key="line-1", type=TransactionType.DISBURSEMENT, phone_number=PHONE_NUMBER, amount="2000")
SEEN_TWO = attrs.evolve(SEEN, id="tx-2")
_accounts = itertools.count(1)

Work: TypeAlias = Callable[[Journal], object]


def event(kind: PaymentEvent, key: str = KEY, **values: Any) -> Work:
    return lambda journal: journal.save(JournalEntry(key, 1, kind, source=Source.ANSWER, at=LATER, **values))


def _record_listing(journal: Journal, verdict: Verdict, **look: Any) -> None:
    listing = Listing(rows=(SEEN,), began_at=LATER, ended_at=LATER, first_day=NOON.date(), is_complete=True)
    record = _begun[journal.account]
    evidence = Evidence(listing=listing, owned={}, searches={record.key: query_for(record)}, grace=0.0)
    record_listing(journal, record, ListCheck(evidence=evidence, verdict=verdict, **look))


def listing(**verdict: Any) -> Work:
    """Record a complete listing that was read for the payment as it is at the beginning."""

    def record(journal: Journal) -> None:
        # Its result is the record as it was before, where the row's lock is not waited for.
        _record_listing(journal, Verdict(**verdict))

    return record


class TheStore:
    """Store whose one transaction is that of the test, as far as what is tested here uses a store."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.account = journal.account
        self.database = self.locks = self.binding = self
        self.newest = self.sole_writer = None
        self.grace = 0.0

    async def open(self) -> None: ...

    async def flush(self, *, key: str) -> None: ...

    async def require_bound(self) -> None: ...

    async def write(self, work: Work, **options: object) -> object:
        return work(self._journal)

    read = write

    async def decide(self, work: Callable[[Journal, datetime], object], utcnow: Callable[[], datetime]) -> object:
        decided = work(self._journal, utcnow())
        if isinstance(decided, StoreError):
            raise decided
        return decided

    async def decide_about(self, key: str, *arguments: Any) -> object:
        return await self.decide(*arguments)

    def hold(self, key: str) -> nullcontext[None]:
        return nullcontext()

    def look_with_conflicts(self, *_: object) -> tuple[None, bool]:
        return None, True


@attrs.frozen
class TheService:
    """Pipeline to a service that shows the transaction `SEEN_TWO`."""

    options: Any = attrs.field(factory=attrs.make_class("Options", {"deadline": attrs.field(default=None)}))
    on_event: None = None

    def utcnow(self) -> datetime:
        return LATER

    async def call(self, *_: object, **__: object) -> object:
        return SimpleNamespace(transaction=SEEN_TWO)


def through(call: Callable[[Any], Coroutine[Any, Any, object]]) -> Work:
    """Make a call that awaits nothing but the store and the service."""

    def work(journal: Journal) -> object:
        try:
            call(TheStore(journal)).send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("it waits for something else")

    return work


def payouts(call: Callable[[Payouts], Coroutine[Any, Any, object]]) -> Work:
    return through(lambda store: call(Payouts(store, lambda: LATER)))


def operator(call: Callable[[Payments], Coroutine[Any, Any, object]]) -> Work:
    service: Any = TheService()
    return through(
        lambda store: call(Payments(store, service.utcnow, pipeline=service, reconciler=service, recovery=store))
    )


def look_up_echo(store: Any) -> Coroutine[Any, Any, object]:
    """Adopt the transaction of an acknowledgement that named another payment."""
    service: Any = TheService()
    creates = IdempotentCreates(store, service, service, store)
    return creates._identify(REQUEST, NotEchoedError(SEEN_TWO.id, "another amount", NOON))


def import_as(key: str) -> Work:
    """Import the unclaimed transaction as the payment of a key."""
    given: dict[str, Any] = {
        "number": PHONE_NUMBER,
        "note": "from the books",
        "now": LATER,
        "wait": timedelta(minutes=2),
        "dates": (),
    }
    return lambda journal: imports._import(journal, key=key, transaction=SEEN_TWO, **given)


def hold(by: str, ttl: float | None) -> Work:
    """Take the lease for reading as a consumer, or give it back."""
    return lambda journal: change_lease(
        journal.connection, journal.account, "consumer:books", by=Holder(by), ttl=ttl, clock=lambda: 100.0
    )


def read_as_consumer(journal: Journal) -> object:
    feed, table = number_changes(journal), ConsumerTable(journal, "books")
    row = table.lock(feed, "oldest", LATER)
    taken = table.take(feed, row, LATER, after=row.number, limit=10, tried=row.tried)
    return [each.number for each in taken.fresh]


def contested(journal: Journal) -> None:
    """Record a listing whose match also fits an earlier attempt of another payment."""
    _record_listing(journal, Verdict(adopt=SEEN_TWO), rival=RIVAL)


def ask(journal: Journal) -> object:
    return ask_for_look(journal, _begun[journal.account], at=LATER)


def send_again(journal: Journal) -> object:
    return Beginning(DuplicateGuard(), REQUEST, 1, 30, asked_at=LATER, since=2).begin(journal, LATER)


def count_up(row: str) -> Work:
    """Change a row of another table that processes share, such as the budget."""

    def count(journal: Journal) -> object:
        account = journal.account + row
        state = int(lock_row(journal.connection, budgets, {"account": account}, state="0").state)
        journal.connection.execute(budgets.update().where(budgets.c.account == account).values(state=str(state + 1)))
        return None

    return count


ACKNOWLEDGED = Acknowledgement(
    transaction_id=SEEN.id,
    reference="REF-1",
    amount=SEEN.amount,
    currency="TZS",
    phone_number=PHONE_NUMBER,
    status_code=TransactionStatus.PENDING,
    status="success",
)
ANSWER = event(PaymentEvent.ACKNOWLEDGE, acknowledgement=ACKNOWLEDGED)
# By state, the transactions that may meet there.
WORKS: Mapping[str, Mapping[str, Work]] = {
    "SENDING": {
        "acknowledged": ANSWER,
        "refused": event(PaymentEvent.REFUSE, is_certain=True),
        "lost": event(PaymentEvent.LOSE, detail="no answer"),
        "stale": lambda journal: mark_stale(journal, now=LATER, stale_after=None, busy=()),
    },
    "UNKNOWN": {
        "acknowledged": ANSWER,
        "listed": listing(adopt=SEEN_TWO),
        "missed": listing(is_clear=True),
        "contested": listing(candidates=("tx-3",)),
        "identified": operator(lambda each: each.identify(KEY, SEEN_TWO.id, note="found")),
        "confirmed absent": operator(lambda each: each.confirm_absent(KEY, note="not there")),
    },
    "ABSENT": {
        "sent again": send_again,
        "listed": listing(adopt=SEEN_TWO),
        "identified": operator(lambda each: each.identify(KEY, SEEN_TWO.id, note="found")),
        "confirmed absent": operator(lambda each: each.confirm_absent(KEY, note="not there")),
    },
    "NOT_SENT": {
        "sent again": send_again,
        "queued": lambda journal: enqueue(journal, REQUEST, QueueOptions(), LATER),
    },
    "REFUSED": {
        "sent again": send_again,
        "listed": listing(adopt=SEEN_TWO),
        "queued": lambda journal: enqueue(journal, REQUEST, QueueOptions(), LATER),
    },
    "QUEUED": {
        "sent again": send_again,
        "cancelled": lambda journal: cancel(journal, KEY, note="stop", at=LATER),
        "postponed": lambda journal: postpone(
            journal, KEY, reason=Reason(PaymentCause.WAITS, "wait"), at=LATER, until=LATER
        ),
        "queued again": lambda journal: enqueue(journal, REQUEST, QueueOptions(priority=5), LATER),
    },
    "ACKNOWLEDGED": {
        "final": lambda journal: record_seen(journal, SEEN, source=Source.POLL, at=LATER),
        "final otherwise": lambda journal: record_seen(
            journal, attrs.evolve(SEEN, status=TransactionStatus.SUCCESS), source=Source.POLL, at=LATER
        ),
        "counted": count_up(""),
        "counted again": count_up(""),
        "made and counted": count_up("/new"),
        "made and counted again": count_up("/new"),
    },
    "REFUSED, while a create waits": {"asked for": ask, "sent again": send_again},
    "UNKNOWN, after another echo": {"acknowledged": ANSWER, "looked up": through(look_up_echo)},
    "UNKNOWN, with an unclaimed transaction": {
        "identified": operator(lambda each: each.identify(KEY, SEEN_TWO.id, note="found")),
        "imported": import_as(KEY),
        "imported under another key": import_as("order-2"),
    },
    "UNKNOWN, with a rival": {
        "contested": contested,
        "rival acknowledged": event(PaymentEvent.ACKNOWLEDGE, key=RIVAL, acknowledgement=ACKNOWLEDGED),
    },
    "ACKNOWLEDGED, with a proposed batch": {
        "approved": payouts(lambda each: each.approve("b1", by="Juma", digest="same")),
        "its duplicate approved": payouts(lambda each: each.approve("b2", by="Neema", digest="same")),
        "cancelled": payouts(lambda each: each.cancel("b1", by="Asha")),
    },
    "ACKNOWLEDGED, with an approved batch": {
        "cancelled": payouts(lambda each: each.cancel("b1", by="Asha")),
        "cancelled by another": payouts(lambda each: each.cancel("b1", by="Neema")),
        "line sent": lambda journal: Beginning(DuplicateGuard(), LINE, 0, 30).begin(journal, LATER),
    },
    "REFUSED, with two retries": {
        "approved": payouts(lambda each: each.approve("r1", by="Juma", digest="one")),
        "another approved": payouts(lambda each: each.approve("r2", by="Juma", digest="other")),
        "sent again": send_again,
        "queued": lambda journal: enqueue(journal, REQUEST, QueueOptions(), LATER),
    },
    "ACKNOWLEDGED, with a consumer": {"read": read_as_consumer, "read by another": read_as_consumer},
    "ACKNOWLEDGED, with a lease that is over": {"leased": hold("me", 60), "leased by another": hold("other", 60)},
}
# These read most, and write whole batches: a transaction comes in between after each of its reads.
PAIRS = [
    pytest.param(
        state,
        one,
        two,
        id=f"{state}: {one}, {two} in between",
        marks=[pytest.mark.slow] if re.search("approved|imported", state + one + two) else [],
    )
    for state, works in WORKS.items()
    for one, two in itertools.permutations(works, 2)
    if one[:6] == two[:6] or "counted" not in one + two
]
TABLES = (payments, history, changes, budgets, batches, leases, consumers, retries, unmatched)
# In one statement: each transaction is tried after each of its reads.
CONTENT = sa.text(
    " UNION ALL ".join(
        f"SELECT '{each.name}', (to_jsonb(t) - 'account')::text FROM {each.name} AS t WHERE account IN (:account, :new)"
        for each in TABLES
    )
)
_begun: dict[str, PaymentRecord] = {}  # payments as their callers have read them before, by account


@pytest.fixture(scope="module")
def engine(postgres_server: Any) -> Iterator[sa.Engine]:
    """Connections as a store opens them, but none is closed because a slow machine leaves a transaction waiting."""
    url = read_url(postgres_server.shared_database()).update_query_dict({"options": "-c timezone=UTC"})
    engine = make_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each attempt the same one: what is left is compared."""
    monkeypatch.setattr("secrets.token_hex", lambda size: size * "6d")


@pytest.mark.parametrize(("state", "one", "two"), PAIRS)
def test_a_transaction_in_between_changes_nothing(engine: sa.Engine, state: str, one: str, two: str) -> None:
    """Whichever read it follows: rows, history, feed and results are those of one order or of the other."""
    (reads, *forth), (_, *back) = (_in_order(engine, state, *each) for each in ((one, two), (two, one)))
    assert reads, "nothing was read"
    for place in range(1, reads + 1):
        account = _begin(engine, state)
        results = _interleave(engine, account, WORKS[state][one], WORKS[state][two], place, after=_reading(state))
        left = [dict(zip((one, two), results, strict=True)), _content(engine, account)]
        assert left in (forth, back), f"read {place}"


def _reading(state: str) -> tuple[str, ...]:
    """Return how the statements begin that a transaction comes in after."""
    # Two histories of one payment meet where both write an entry.
    return ("SELECT", "INSERT") if "rival" in state else ("SELECT",)


@functools.cache
def _in_order(engine: sa.Engine, state: str, *names: str) -> tuple[int, dict[str, object], object]:
    """Run transactions one after the other; return the reads of the first, their results and what they leave."""
    account, found, reads = _begin(engine, state), dict[str, object](), itertools.count()
    for name in names:
        with engine.begin() as connection:
            if name == names[0]:
                _follow(connection, _reading(state), lambda: next(reads))
            found[name] = _result(connection, account, WORKS[state][name])
    return next(reads), found, _content(engine, account)


def _begin(engine: sa.Engine, group: str) -> str:
    """Make a payment in a state, in an account of its own, and return that."""
    account, state = f"account-{next(_accounts)}", group.partition(",")[0]
    values: dict[str, Any] = {"account": account, "state": state, **dict.fromkeys(("created_at", "changed_at"), NOON)}
    if state != "QUEUED":
        values |= dict.fromkeys(("sent_at", "stale_at", "ended_at"), NOON)
    if state == "REFUSED":
        values["is_certain"] = True
    if state == "ACKNOWLEDGED":
        values |= {"transaction_id": SEEN.id, "status": "PENDING"}
    values["walks"] = 2 if state == "ABSENT" else 1
    with engine.begin() as connection:
        insert_payment(connection, **values)
        connection.execute(budgets.insert().values(account=account, state="0"))
        journal = Journal(connection, account)
        journal.note(KEY, at=NOON, what="sent", source=Source.ANSWER, detail=None)
        _prepare(journal, group)
        record = journal.find(KEY)
        assert record is not None
        _begun[account] = record
    return account


def _prepare(journal: Journal, group: str) -> None:
    """Make what the transactions need besides the payment."""
    here: dict[str, Any] = {"account": journal.account}
    run, now = journal.connection.execute, dict.fromkeys(("created_at", "changed_at"), NOON)
    if "rival" in group:
        values = here | now | {"key": RIVAL, "state": "RELEASED", "sent_at": NOON, "ended_at": NOON}
        insert_payment(journal.connection, **values)
        journal.note(RIVAL, at=NOON, what="sent", source=Source.ANSWER, detail=None)
    if "unclaimed" in group:
        insert_line(journal.connection, **here, transaction_id=SEEN_TWO.id)
    if "batch" in group:
        batch = {"name": "salaries", "digest": "same", "state": "proposed", "proposed_by": "Amina", "total": "2000"}
        line = {"line": 2, "key": LINE.key, "phone_number": LINE.phone_number, "amount": LINE.amount}
        for name in ("b1", "b2"):
            run(batches.insert().values(**here, **batch, id=name, lines=1, proposed_at=NOON))
            run(batch_lines.insert().values(**here, **line, batch=name))
    if "retries" in group:
        batch = {"name": "salaries", "state": "proposed", "proposed_by": "Amina", "total": "1000", "parent": "b1"}
        line = {"line": 2, "phone_number": REQUEST.phone_number, "amount": REQUEST.amount, "previous_key": KEY}
        for name, shown in (("r1", "one"), ("r2", "other")):
            run(batches.insert().values(**here, **batch, id=name, digest=shown, lines=1, proposed_at=NOON))
            run(batch_lines.insert().values(**here, **line, batch=name, key=f"{name}-line-2"))
    if "approved" in group:
        payouts(lambda each: each.approve("b1", by="Juma", digest="same"))(journal)
    if "lease" in group:
        run(leases.insert().values(**here, name="consumer:books", holder="one before", until=1.0))
    if "consumer" in group:
        run(consumers.insert().values(**here, name="books", number=0, used_at=NOON))
        acknowledged = (PaymentEvent.ACKNOWLEDGE, PaymentState.ACKNOWLEDGED, "PENDING")
        journal.record(KEY, *acknowledged, at=NOON, source=Source.ANSWER, detail=None)
        number_changes(journal)


def _follow(connection: sa.Connection, after: tuple[str, ...], call: Callable[[], object]) -> None:
    """Call after each read of a connection."""
    timeline(connection)  # which each session reads once

    def follow(_: object, cursor: object, statement: str, *__: object) -> None:
        if statement.startswith(after):
            call()

    sa.event.listen(connection, "after_cursor_execute", follow)


def _interleave(
    engine: sa.Engine, account: str, first: Work, second: Work, place: int, *, after: tuple[str, ...]
) -> tuple[object, object]:
    """Run a transaction, and another one after its n-th read, as far as the locks let it."""
    other = _Other(engine, lambda connection: _result(connection, account, second))
    reads = itertools.count(1)

    def come_between() -> None:
        if next(reads) == place:
            other.start()
            other.wait()

    try:
        with engine.connect() as one, one.begin():
            _follow(one, after, come_between)
            result = _result(one, account, first)
    finally:
        if other.ident is not None:
            other.join(PATIENCE)
    assert other.ident is not None and not other.is_alive()
    return result, other.result


class _Other(threading.Thread):
    """Transaction that is run again as a store runs it, after a deadlock."""

    def __init__(self, engine: sa.Engine, work: Callable[[sa.Connection], object]) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.work = work
        self.pid = 0
        self.result: object = None

    def run(self) -> None:
        is_done = False
        while not is_done:
            is_done = True
            try:
                with self.engine.begin() as connection:
                    driver: Any = connection.connection.dbapi_connection
                    self.pid = driver.info.backend_pid
                    self.result = self.work(connection)
            except sa.exc.SQLAlchemyError as exc:
                is_done, self.result = not is_conflict(exc), repr(exc)

    def wait(self) -> None:
        """Wait until it has ended, or waits for a lock."""
        wait_until(
            lambda: not self.is_alive() or (self.pid and _is_blocked(self.engine, self.pid)),
            pause=0.001,
        )


def _is_blocked(engine: sa.Engine, pid: int) -> bool:
    with engine.connect() as connection:
        blocked = sa.text("SELECT cardinality(pg_blocking_pids(:pid)) > 0")
        return bool(connection.execute(blocked, {"pid": pid}).scalar_one())


def _result(connection: sa.Connection, account: str, work: Work) -> object:
    """Return what can be compared of the result of work; an error that it raises takes it back."""
    try:
        with connection.begin_nested():
            value = work(Journal(connection, account))
    except MobileMoneyError as exc:
        return type(exc).__name__
    if isinstance(value, Exception):
        return str(value)
    state = None if isinstance(value, PayoutBatch) else getattr(value, "state", None)
    return str(state) if state is not None else value


def _content(engine: sa.Engine, account: str) -> object:
    with engine.connect() as connection:
        return sorted(map(repr, connection.execute(CONTENT, {"account": account, "new": f"{account}/new"})))
