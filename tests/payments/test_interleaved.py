"""Two transactions of PostgreSQL, one of which comes between a read and an update of the other, leave what either order
of the two would leave: so no lock can be dropped unnoticed.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import Acknowledgement, TransactionStatus, TransactionType
from mobilemoney_async.database.schema import budgets, changes, history, lock_row, payments
from mobilemoney_async.database.url import is_conflict, make_engine, read_url
from mobilemoney_async.payments.evidence import Verdict, Walk
from mobilemoney_async.payments.journal import Journal, JournalEntry
from mobilemoney_async.payments.outbox import QueueOptions, cancel, enqueue, postpone
from mobilemoney_async.payments.reconciliation import Look, adopt, mark_stale, record_listing
from mobilemoney_async.payments.records import PaymentEvent, PaymentRecord, PaymentRequest, Source
from tests.payments.tables import SEEN, insert_payment
from tests.support.fakes import NOON, PHONE_NUMBER

PATIENCE = 60.0  # for what must happen, on any busy machine, seconds
LATER = NOON + timedelta(minutes=10)
KEY = "order-1"
REQUEST = PaymentRequest(key=KEY, type=TransactionType.COLLECTION, phone_number=PHONE_NUMBER, amount="1000")
SEEN_TWO = attrs.evolve(SEEN, id="tx-2")
_accounts = itertools.count(1)

Work: TypeAlias = Callable[[Journal], object]


def event(kind: PaymentEvent, **values: Any) -> Work:
    return lambda journal: journal.save(JournalEntry(KEY, 1, kind, source=Source.ANSWER, at=LATER, **values))


def listing(**verdict: Any) -> Work:
    """Record a complete listing that was read for the payment as it is at the beginning."""
    walk = Walk(rows=(SEEN,), began_at=LATER, ended_at=LATER, first_day=NOON.date(), is_complete=True)
    look = Look(walk=walk, verdict=Verdict(**verdict), grace=0.0)

    def record(journal: Journal) -> None:
        # Its result is the record as it was before, where the row's lock is not waited for.
        record_listing(journal, _begun[journal.account], look)

    return record


def identify(journal: Journal) -> object:
    return adopt(journal, _begun[journal.account], SEEN_TWO, source=Source.PERSON, at=LATER)


def send_again(journal: Journal) -> object:
    return journal.begin(REQUEST, expected=1, sent_at=LATER, lives=30)


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
        "missed": listing(absent_ok=True, is_clear=True),
        "contested": listing(candidates=("tx-3",)),
        "identified": identify,
        "confirmed absent": event(PaymentEvent.CONFIRM_ABSENT),
    },
    "ABSENT": {
        "sent again": send_again,
        "listed": listing(adopt=SEEN_TWO),
        "identified": identify,
        "confirmed absent": event(PaymentEvent.CONFIRM_ABSENT),
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
        "postponed": lambda journal: postpone(journal, KEY, reason="wait", until=LATER),
        "queued again": lambda journal: enqueue(journal, REQUEST, QueueOptions(priority=5), LATER),
    },
    "ACKNOWLEDGED": {
        "final": lambda journal: journal.record_seen(SEEN, source=Source.POLL, at=LATER),
        "final otherwise": lambda journal: journal.record_seen(
            attrs.evolve(SEEN, status=TransactionStatus.SUCCESS), source=Source.POLL, at=LATER
        ),
        "counted": count_up(""),
        "counted again": count_up(""),
        "made and counted": count_up("/new"),
        "made and counted again": count_up("/new"),
    },
}
PAIRS = [
    pytest.param(state, one, two, id=f"{state}: {one}, {two} in between")
    for state, works in WORKS.items()
    for one, two in itertools.permutations(works, 2)
    if one[:6] == two[:6] or "counted" not in one + two
]
_begun: dict[str, PaymentRecord] = {}  # payments as their callers have read them before, by account


@pytest.fixture(scope="module")
def engine(postgres_server: Any) -> Iterator[sa.Engine]:
    """Connections as a store opens them."""
    engine = make_engine(read_url(postgres_server.shared_database()))
    yield engine
    engine.dispose()


@pytest.mark.parametrize(("state", "one", "two"), PAIRS)
def test_a_transaction_in_between_changes_nothing(engine: sa.Engine, state: str, one: str, two: str) -> None:
    """Whichever read it follows: rows, history, feed and results are those of one order or of the other."""
    first, second = WORKS[state][one], WORKS[state][two]
    orders = []
    for is_reversed in (False, True):
        account, found = _begin(engine, state), {}
        for name, work in [(one, first), (two, second)][:: -1 if is_reversed else 1]:
            with engine.begin() as connection:
                found[name] = _result(work(Journal(connection, account)))
        orders.append((found, _content(engine, account)))
    for place in itertools.count(1):
        account = _begin(engine, state)
        results = _interleave(engine, account, first, second, place)
        if results is None:
            assert place > 1, "nothing was read"
            return
        assert (dict(zip((one, two), results, strict=True)), _content(engine, account)) in orders, f"read {place}"


def _begin(engine: sa.Engine, state: str) -> str:
    """Make a payment in a state, in an account of its own, and return that."""
    account = f"account-{next(_accounts)}"
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
        journal.note(KEY, at=NOON, what="sent", source=Source.ANSWER, detail=None, is_first=True)
        record = journal.find(KEY)
        assert record is not None
        _begun[account] = record
    return account


def _interleave(engine: sa.Engine, account: str, first: Work, second: Work, place: int) -> tuple[object, object] | None:
    """Run a transaction, and another one after its n-th read, as far as the locks let it; None without such a read."""
    other = _Other(engine, lambda connection: _result(second(Journal(connection, account))))
    reads = itertools.count(1)

    def after(connection: sa.Connection, cursor: object, statement: str, *_: object) -> None:
        if connection is one and statement.startswith("SELECT") and next(reads) == place:
            other.start()
            other.wait()

    sa.event.listen(engine, "after_cursor_execute", after)
    try:
        with engine.connect() as one, one.begin():
            result = _result(first(Journal(one, account)))
    finally:
        sa.event.remove(engine, "after_cursor_execute", after)
        if other.ident is not None:
            other.join(PATIENCE)
    assert not other.is_alive()
    return None if other.ident is None else (result, other.result)


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
        until = time.monotonic() + PATIENCE
        while self.is_alive() and not (self.pid and _is_blocked(self.engine, self.pid)):
            assert time.monotonic() < until
            time.sleep(0.001)


def _is_blocked(engine: sa.Engine, pid: int) -> bool:
    with engine.connect() as connection:
        blocked = sa.text("SELECT cardinality(pg_blocking_pids(:pid)) > 0")
        return bool(connection.execute(blocked, {"pid": pid}).scalar_one())


def _result(value: object) -> object:
    """Return what can be compared of a result."""
    if isinstance(value, Exception):
        return str(value)
    state = getattr(value, "state", None)
    return str(state) if state is not None else value


def _content(engine: sa.Engine, account: str) -> object:
    with engine.connect() as connection:
        found = []
        for table, order in ((payments, "key"), (history, "number"), (changes, "entry"), (budgets, "account")):
            here = table.c.account.in_([account, f"{account}/new"])
            statement = sa.select(table).where(here).order_by(table.c[order])
            found.append([row[1:] for row in connection.execute(statement)])
        return found
