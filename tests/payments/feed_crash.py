"""Writers and readers of a feed that are killed at random: ``python -m tests.payments.feed_crash URL CHANGES KILLS``.

Eight processes make payments, queued in a merchant's own transaction that stays open for a moment. One reader keeps its
cursor in a table of its own, in the transaction of its books; two share the name of a consumer. The program ends with 0
once the readers have every change, and leaves the tables `books` and `handled` to the test.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import psycopg

from mobilemoney_async import Acknowledgement, AsyncClient, SQLStore, StoreError, Transaction
from mobilemoney_async.database.serialization import load
from mobilemoney_async.payments.creates.attempts import Beginning
from mobilemoney_async.payments.feed import feed
from mobilemoney_async.payments.outbox.outbox import read_order
from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import find_all
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentState, Source
from mobilemoney_async.payments.records.rows import JournalEntry
from mobilemoney_async.payments.records.transaction_states import record_seen
from mobilemoney_async.payments.store import account_store
from tests.contract import samples
from tests.payments.crash_worker import fork
from tests.support.databases import dsn
from tests.support.patience import PATIENCE

WRITERS = 8
STATES = ("QUEUED", "SENDING", "ACKNOWLEDGED", "FINAL")

TABLES = """
CREATE TABLE books (n bigserial, key text, state text);
CREATE TABLE place (cursor text);
INSERT INTO place VALUES (NULL);
CREATE TABLE handled (n bigserial, pid int, key text, state text)
"""


def connect(url: str, **options: Any) -> psycopg.Connection[Any]:
    """Return a merchant's own connection."""
    return psycopg.connect(dsn(url), **options)


def order(key: str) -> dict[str, Any]:
    """Return the arguments of a payment's `enqueue`: no two are of one kind."""
    writer, number = map(int, key.split("-"))
    return {
        "type": "collection",
        "phone_number": f"+25568123450{writer}",
        "amount": 1_000 + number,
        "idempotency_key": key,
    }


async def write(url: str, seed: int, writer: int, payments: int) -> None:
    """Take some payments from their queue to their final states, from wherever a killed process has left them."""
    dice, store = random.Random(seed), SQLStore(url)
    parts, keys = account_store(store), [f"{writer}-{number}" for number in range(payments)]
    known = await parts.read(lambda journal: {each.key for each in find_all(journal, keys) if each.is_final})
    with connect(url) as books:
        for key in keys:
            state = PaymentState.FINAL if key in known else None
            while state is not PaymentState.FINAL:
                if state is None:
                    store.enqueue(books, **order(key))
                    await anyio.sleep(dice.random() / 100)
                    (books.commit if dice.random() < 0.9 else books.rollback)()
                state = await parts.write(partial(go_on, key=key, steps=dice.choice((1, 1, 2))))


def go_on(journal: Journal, key: str, steps: int) -> PaymentState | None:
    """Make the next changes of a payment in one transaction, and return its state, or None if there is no payment."""
    for _ in range(steps):
        take_step(journal, key)
    record = journal.find(key)
    return None if record is None else record.state


def take_step(journal: Journal, key: str) -> None:
    """Make the next change of a payment, if there is one."""
    record, now = journal.find(key), datetime.now(UTC)
    if record is None:
        return
    if record.state is PaymentState.QUEUED:
        request, _ = read_order(**order(key), extra=None, not_before=None, not_after=None, priority=0, now=now)
        Beginning(DuplicateGuard(), request, record.attempt, 60.0).begin(journal, now)
    elif record.state is PaymentState.SENDING:
        body = samples.acknowledgement(transaction_id=f"T-{key}", reference=f"R-{key}", amount=str(record.amount))
        answer = load(Acknowledgement, json.dumps(body | {"phone_number": record.phone_number}))
        entry = JournalEntry(key, None, PaymentEvent.ACKNOWLEDGE, source=Source.ANSWER, at=now, acknowledgement=answer)
        assert journal.save(entry) is None
    elif record.state is PaymentState.ACKNOWLEDGED:
        shown = samples.settled(id=f"T-{key}", amount=str(record.amount), phone_number=record.phone_number)
        assert record_seen(journal, load(Transaction, json.dumps(shown)), source=Source.POLL, at=now) is None


async def keep_books(url: str, seed: int) -> None:
    """Read with a cursor that is kept beside the books: each change exactly once."""
    async with AsyncClient("https://service.example/v1", auth="token", store=SQLStore(url)) as client:
        with connect(url) as books:
            (place,) = books.execute("SELECT cursor FROM place").fetchone() or (None,)
            books.commit()
            async for change in client.payments.changes(after=place):
                books.execute("INSERT INTO books (key, state) VALUES (%s, %s)", (change.key, change.state))
                books.execute("UPDATE place SET cursor = %s", (change.cursor,))
                books.commit()


async def consume(url: str, seed: int) -> None:
    """Read as the consumer that two processes are; some changes fail."""
    dice = random.Random(seed)
    feed._LEASE, feed._RIVAL_PAUSE = 4.0, 0.3
    async with AsyncClient("https://service.example/v1", auth="token", store=SQLStore(url)) as client:
        with connect(url, autocommit=True) as books:
            while True:
                # Another process may have taken over: begin again.
                with suppress(StoreError):
                    async with aclosing(client.payments.changes(consumer="shared", start="oldest")) as changes:
                        async for change in changes:
                            if dice.random() < 0.002:
                                await change.failed("at random")
                                continue
                            values = (os.getpid(), change.key, change.state)
                            books.execute("INSERT INTO handled (pid, key, state) VALUES (%s, %s, %s)", values)
                            # Now and then; always once the payment has ended, as of what comes again last.
                            if dice.random() < 0.1 or (change.record is not None and change.record.is_final):
                                await change.done()


def is_complete(url: str, changes: int) -> bool:
    """Return whether both kinds of readers have all changes."""
    with connect(url) as books:
        row = books.execute(
            "SELECT (SELECT count(*) FROM books), (SELECT count(*) FROM (SELECT DISTINCT key, state FROM handled) AS h)"
        ).fetchone()
    return row is not None and min(row) >= changes


def main(url: str, changes: int, kills: int) -> None:
    """Run the processes, and kill so many at random, until all have done their work."""
    dice, payments = random.Random(kills), changes // WRITERS // len(STATES)
    end = time.monotonic() + PATIENCE  # real time: of its own limit
    works: dict[int, tuple[Any, ...]] = {}

    def start(*work: Any) -> None:
        works[fork(work[0], url, dice.randrange(1_000_000), *work[1:])] = work

    for writer in range(WRITERS):
        start(write, writer, payments)
    for reader in (keep_books, consume, consume):
        start(reader)
    try:
        while not is_complete(url, payments * WRITERS * len(STATES)):
            assert time.monotonic() < end, "the readers are late"  # real time: of its own limit
            time.sleep(dice.uniform(0.1, 0.8))  # real time: the moment of the kill
            if kills:
                os.kill(dice.choice(list(works)), signal.SIGKILL)
                kills -= 1
                time.sleep(0.01)  # real time: until it has ended; if not, it is reaped later
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                work, code = works.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])
                assert code in {0, -signal.SIGKILL}, (work, code)
                if code:
                    start(*work)
    finally:
        for pid in works:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
