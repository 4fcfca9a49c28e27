"""Sentences of `mobilemoney watch` and of the dashboard: each is said where it is true, and only there."""

import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import pytest
import sqlalchemy as sa
from rich.console import Console

from mobilemoney_async import SQLStore, Transaction
from mobilemoney_async.calls.bucket import Past
from mobilemoney_async.cli.views.dashboard.page import Board
from mobilemoney_async.cli.views.overview import View
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Clock
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sharing.overview import read_overview
from tests.payments.service import on_asyncio
from tests.payments.tables import SEEN, insert_line, insert_payment
from tests.sandbox.page_user import Elements
from tests.support.databases import sqlite_url
from tests.support.fakes import NOON

pytestmark = pytest.mark.slow

Row: TypeAlias = Callable[[sa.Connection, Clock], object]

ENDED: Transaction = SEEN.from_dict(SEEN.to_dict() | {"failed_at": (NOON - timedelta(seconds=7)).isoformat()})


def payment(key: str, state: str, *, sent: float | None = 240, recorded: float = 3 * 3600, **values: Any) -> Row:
    """Return a payment that was recorded and sent some seconds ago."""
    values |= {"key": key, "state": state, "amount": str(crc32(key.encode()))}
    values |= {"created_at": f"{NOON - timedelta(seconds=recorded):%F %T}"}
    values["sent_at"] = None if sent is None else f"{NOON - timedelta(seconds=sent):%F %T}"
    return lambda connection, _: insert_payment(connection, **values)


def change(key: str, state: str, status: str | None = None, *, ago: float = 30) -> Row:
    at = NOON - timedelta(seconds=ago)
    values = {"account": "default", "name": key, "entry": len(state), "state": state, "status": status, "at": at}
    return lambda connection, _: connection.execute(schema.changes.insert(), values)


def stranger(state: str) -> Row:
    return lambda connection, _: insert_line(connection, state)


def account(due_since: datetime | None) -> Row:
    values = {"account": "default", "due_since": due_since}
    return lambda connection, _: connection.execute(schema.accounts.insert(), values)


def lease(name: str, *, lasts: float = 60) -> Row:
    values = {"account": "default", "name": name, "holder": "h"}
    return lambda connection, clock: connection.execute(schema.leases.insert(), {**values, "until": clock() + lasts})


def budget(granted: int, *, ahead: int = 0) -> Row:
    """Return the use of the limit by some requests of this moment, by a clock that may be ahead, seconds."""

    def insert(connection: sa.Connection, clock: Clock) -> None:
        at = clock() + ahead
        state: dict[str, Any] = {"limit": {"per_minute": 60.0, "burst": 10, "window": 60.0, "jitter": 0.0}}
        state |= {"at": at, "confirmed_at": at, "turns": {}, "processes": {}}
        state["past"] = Past(grants=[at] * granted, made_up=[], held_until=-math.inf, taken=granted)
        connection.execute(schema.budgets.insert(), {"account": "default", "state": json.dumps(state)})

    return insert


FOLLOWED, SENT_BY = lease("poller"), lease("dispatcher")
QUEUED = [payment(f"q{number:02}", "QUEUED", sent=None) for number in range(70)]
ENDS = [change("a", "ACKNOWLEDGED", "PENDING"), change("b", "FINAL", "SUCCESS"), change("c", "FINAL", "FAILED")]
TIMED = [payment("c", "FINAL", transaction=dump(ENDED)), *ENDS]
PENDING = payment("p", "ACKNOWLEDGED", transaction_id="txn-p")
CONTRADICTED = payment("c", "ACKNOWLEDGED", transaction_id="txn-c", cause="OTHER_MERCHANT", about="txn-c")
LOST = payment("s", "SENDING", stale_at=f"{NOON:%F %T}")
SENDING = payment("s", "SENDING", stale_at=f"{NOON + timedelta(seconds=1):%F %T}")
CLOSED = [payment(state, state) for state in ("FINAL", "REFUSED", "NOT_SENT", "RELEASED", "CANCELLED")]
KEPT = payment("w", "QUEUED", sent=None, cause="WAITS", about="it exceeds per_payment")
DELAYED = payment("d", "QUEUED", sent=None, cause="DELAYED", about="no connection")
NEED_YOU: list[Sequence[Row]] = [[payment("u", "UNKNOWN")], [payment("a", "ABSENT")], [LOST], [CONTRADICTED], [KEPT]]
# Recorded long ago, and sent just now; the one that was sent first was recorded last.
FROM_THE_QUEUE = payment("q", "ACKNOWLEDGED", transaction_id="txn-q", sent=30)
LATER = payment("l", "ACKNOWLEDGED", transaction_id="txn-l", sent=240, recorded=250)

# A sentence, the stores of which it is true, and those of which it is not.
SENTENCES: dict[str, tuple[Sequence[Sequence[Row]], Sequence[Sequence[Row]]]] = {
    "the oldest for 4 min": ([[FROM_THE_QUEUE, LATER]], [[FROM_THE_QUEUE], []]),
    "Pending 0 no payment is open": ([[], CLOSED], [QUEUED[:1], [SENDING], [PENDING], *NEED_YOU]),
    "open in other states: 3": ([[*QUEUED[:1], SENDING, CONTRADICTED]], [[PENDING, *QUEUED[:1], SENDING], CLOSED]),
    "open in other states: 2": ([[KEPT, SENDING]], [[KEPT]]),
    "no payment has ended within the hour": ([[], [change("a", "FINAL", ago=3700)], ENDS[:1]], [ENDS[1:2], ENDS[2:]]),
    "not known: the service shows no time for the latest ends": (
        [[payment("b", "FINAL", transaction=dump(SEEN)), *ENDS], ENDS],
        [TIMED, []],
    ),
    "from the final state to this store, usually": ([TIMED], [ENDS, []]),
    "No payment is unknown, absent, contradicted or kept": ([[], [PENDING, SENDING, DELAYED], CLOSED], NEED_YOU),
    "no transaction is recorded as unclaimed": ([[stranger("explained")], [stranger("claimed")]], [[stranger("open")]]),
    "No program follows the pending payments": (
        [[PENDING], [PENDING, lease("poller", lasts=-1)]],
        [[PENDING, FOLLOWED], QUEUED[:1], [CONTRADICTED]],
    ),
    "no process follows the pending payments": ([[PENDING, SENT_BY]], [[PENDING, FOLLOWED], []]),
    "No program sends the queue": ([QUEUED[:1], [*QUEUED[:1], FOLLOWED]], [[*QUEUED[:1], SENT_BY], []]),
    "no process sends the queued payments": ([QUEUED[:1]], [[*QUEUED[:1], SENT_BY], []]),
    "New payments may wait": ([[account(NOON)]], [[account(None)], []]),
    "new payments may wait": ([[account(NOON)]], [[account(None)], []]),
    "Queue 1 not being sent": ([QUEUED[:1]], [[*QUEUED[:1], SENT_BY]]),
    "Queue 2 payments in it need you": ([[*QUEUED[:1], KEPT, SENT_BY]], [[*QUEUED[:1], DELAYED, SENT_BY], [KEPT]]),
    "It could not be sent: it exceeds per_payment.": ([[KEPT]], [[DELAYED]]),
    "Queue 0 empty": ([[SENT_BY], CLOSED], [QUEUED[:1], [*QUEUED[:1], SENT_BY]]),
    "Queue 70 done at 12:01:00 UTC at the earliest": ([[*QUEUED, SENT_BY]], [QUEUED]),
    "queued 10, done in 0 s at the earliest": ([[*QUEUED[:10], SENT_BY]], [QUEUED[:10], [*QUEUED, SENT_BY]]),
    "queued 70, done in 1 min at the earliest": ([[*QUEUED, SENT_BY, budget(60)]], [QUEUED]),
    "Rate limit \N{EN DASH} not known": ([[], [budget(3, ahead=900)]], [[budget(3)]]),
    "Rate limit 3 of 60 requests count now": ([[budget(3)]], [[budget(4)], []]),
    "limit 3 of 60 requests used": ([[budget(3)]], [[budget(4)], []]),
    "Not seen yet: while this dashboard ran, the store showed no use of the limit.": ([[]], [[budget(1)], [budget(0)]]),
    "at most 3 requests counted at once": ([[budget(3)]], [[budget(4)], []]),
    "full height: 60, the limit": ([[budget(3)]], [[]]),
    "Payments first recorded since midnight in Dar es Salaam, 21:00 UTC None yet": (
        [[], [payment("y", "FINAL", recorded=86_400)]],
        [[PENDING]],
    ),
    "first recorded today, since midnight in Tanzania": ([[PENDING]], [[payment("y", "FINAL", recorded=86_400)], []]),
    "Payments that need you: 1": (NEED_YOU, [[PENDING, SENDING, *QUEUED[:1], DELAYED], CLOSED]),
    "need you 1": (NEED_YOU, [[PENDING, SENDING, *QUEUED[:1], DELAYED], CLOSED]),
    "Transactions that no payment claims: 1": ([[stranger("open")]], [[stranger("explained")], []]),
    "unclaimed 1": ([[stranger("open")]], [[stranger("explained")], []]),
    "last full minute 1 made, 1 succeeded, 1 failed": ([ENDS], [ENDS[:2], [change("a", "ACKNOWLEDGED", ago=0)]]),
    "last hour 1 made, 1 succeeded, 1 failed": ([ENDS], [ENDS[:2], [change("a", "ACKNOWLEDGED", ago=3700)]]),
    "In this hour 1 payments were made, 1 succeeded and 1 failed.": ([ENDS], [ENDS[:2], []]),
    "minutes, 1 at most": ([ENDS[:2]], [ENDS, ENDS[:1]]),
    "the first 5 of 6; all: mobilemoney payments list --unresolved": (
        [[payment(f"u{number}", "UNKNOWN") for number in range(6)]],
        [[payment(f"u{number}", "UNKNOWN") for number in range(5)]],
    ),
    "and 1 more: mobilemoney payments list --unresolved": (
        [[payment(f"u{number:02}", "UNKNOWN") for number in range(51)]],
        [[payment(f"u{number:02}", "UNKNOWN") for number in range(50)]],
    ),
}


async def shown(folder: Path, rows: Sequence[Row]) -> str:
    """Return what both views say of a new store with some rows, at noon."""
    store = SQLStore(sqlite_url(folder))
    own = account_store(store)
    own.database.wall_clock.host = NOON.timestamp

    def fill(connection: sa.Connection, clock: Clock) -> None:
        for each in rows:
            each(connection, clock)

    await own.database.timed(fill, durable=True)
    board = Board(store)
    await board.look_again()
    console = Console(width=200, highlight=False, force_terminal=True, color_system=None)
    with console.capture() as watched:
        console.print(View("default", unmasked=False, latest=await read_overview(own)), crop=False)
    store.close()
    page = Elements(board.write())
    return " ".join([page.text, *page.values("aria-label"), *watched.get().split()])


@on_asyncio
async def test_a_sentence_is_said_where_it_is_true_and_only_there(tmp_path: Path) -> None:
    """A store with the opposite says something else. Sentences share stores: each is looked at once."""
    said, wrong = dict[tuple[Row, ...], str](), list[tuple[str, int]]()
    for sentence, (true, untrue) in SENTENCES.items():
        for number, rows in enumerate([*true, *untrue]):
            if (key := tuple(rows)) not in said:
                folder = tmp_path / str(len(said))
                folder.mkdir()
                said[key] = await shown(folder, rows)
            if (sentence in said[key]) is not (number < len(true)):
                wrong.append((sentence, number))
    assert wrong == []
