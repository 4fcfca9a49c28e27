"""The overview of a store: right figures, from reads alone, each by an index."""

import itertools
import json
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, OutcomeUnknown, RateLimiter, SQLStore, StoreError, Transaction
from mobilemoney_async.calls.bucket import Past
from mobilemoney_async.contract.limits import BURST, REQUESTS_PER_MINUTE
from mobilemoney_async.database import schema
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sharing import overview as module
from mobilemoney_async.sharing.budget import find_usage
from mobilemoney_async.sharing.overview import Overview, read_overview
from tests.payments.service import ORDER, World, make_world, on_asyncio, on_one
from tests.payments.tables import SEEN, insert_line, insert_payment
from tests.payments.test_schema import note_plans
from tests.support.databases import sqlite_url
from tests.support.fakes import NOON

SUCCEEDS, DECLINED, STAYS_OPEN = "+255780000789", "+255780000039", "+255780000129"


async def look(world: World, store: SQLStore | None = None) -> Overview:
    own = account_store(world.store() if store is None else store)
    try:
        return await read_overview(own, world.utcnow())
    finally:
        own.database.close()


async def write(url: str, work: Any) -> None:
    database = Database(url)
    await database.write(work)
    database.close()


def totals(found: Overview) -> dict[tuple[str, str, str], tuple[int, Decimal]]:
    return {
        (str(each.type), str(each.state), str(each.status or "")): (each.count, each.amount) for each in found.today
    }


async def test_an_empty_store_has_nothing_and_invents_nothing(store_url: str) -> None:
    """No payments, sixty empty minutes, and no figure for what nobody has measured."""
    found = await look(make_world(store_url))
    assert (found.today, found.sending, found.pending, found.unknown, found.queued) == ([], 0, 0, 0, 0)
    assert (found.lag, found.requests, found.queue_done_at) == (None, None, None)
    assert (found.has_poller, found.has_dispatcher, found.is_stopped) == (False, False, False)
    assert [each.at for each in found.minutes] == [NOON - timedelta(minutes=59 - number) for number in range(60)]
    assert not any(each.made or each.succeeded or each.failed for each in found.minutes)


@pytest.mark.slow
@pytest.mark.pairs
async def test_a_day_of_payments_is_counted_by_what_became_of_them(store_url: str) -> None:
    """Sums are exact, what is open is named oldest first, and endings are counted in their minutes."""
    world = make_world(store_url, median_delay=5.0, longest_delay=20.0)

    def lose(request: httpx.Request) -> None:
        raise httpx.ReadTimeout("lost", request=request)

    async with world.client() as client, client.poller() as poller:
        for number, phone_number in enumerate((SUCCEEDS, SUCCEEDS, DECLINED, STAYS_OPEN)):
            made = await client.collections.create(
                phone_number=phone_number, amount=1_000 + number, idempotency_key=f"order-{number}"
            )
            poller.track(made)
        await client.disbursements.create(phone_number=STAYS_OPEN, amount=7, idempotency_key="payout")
        world.line.after = lose
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(**ORDER, idempotency_key="lost")
        world.line.after = None
        await client.payments.enqueue(type="disbursement", **ORDER, idempotency_key="later")
        await world.advance(60)
        found = await look(world)
    assert totals(found) == {
        ("collection", "FINAL", "SUCCESS"): (2, Decimal(2001)),
        ("collection", "FINAL", "FAILED"): (1, Decimal(1002)),
        ("collection", "ACKNOWLEDGED", "PENDING"): (1, Decimal(1003)),
        ("collection", "UNKNOWN", ""): (1, Decimal(1000)),
        ("disbursement", "ACKNOWLEDGED", "PROCESSING"): (1, Decimal(7)),
        ("disbursement", "QUEUED", ""): (1, Decimal(1000)),
    }
    assert (found.sending, found.pending, found.unknown, found.queued) == (0, 2, 1, 1)
    assert [each.key for each in found.oldest_pending] == ["order-3", "payout"]
    assert [each.key for each in found.needs_attention] == ["lost"]
    assert sum(each.made for each in found.minutes) == 5
    assert (sum(each.succeeded for each in found.minutes), sum(each.failed for each in found.minutes)) == (2, 1)
    assert sum(each.made for each in found.minutes[-1:]) == 0
    assert found.has_poller
    assert found.lag is not None
    assert 0 <= found.lag < 30
    assert Overview.from_dict(json.loads(found.to_json())).to_dict() == found.to_dict()
    assert STAYS_OPEN not in found.to_json(mask=True)


@on_asyncio
async def test_a_day_begins_at_midnight_in_tanzania(world: World, client: AsyncClient) -> None:
    """At 21:00 UTC: a payment of a minute before is yesterday's, and still open."""
    await world.advance(9 * 3600 - 60)
    await client.collections.create(phone_number=STAYS_OPEN, amount=1_000, idempotency_key="yesterday")
    before = await look(world)
    await world.advance(61)
    found = await look(world)
    assert (before.pending, found.pending, found.today) == (1, 1, [])
    assert before.day_began_at == datetime(2026, 1, 1, 21, tzinfo=UTC)
    assert found.day_began_at == datetime(2026, 1, 2, 21, tzinfo=UTC)
    assert sum(each.count for each in before.today) == 1


@on_asyncio
async def test_sums_are_exact(store_url: str) -> None:
    """Of amounts of any size, and of as many as there are: no digit is lost."""
    amounts = [10**20 - 1, 10**20 - 2, 10**9, 999_999_999, 1]

    def fill(connection: sa.Connection) -> None:
        for number, amount in enumerate(amounts):
            insert_payment(connection, key=f"k{number}", amount=str(amount))

    await write(store_url, fill)
    with localcontext(prec=1):  # the caller's
        found = await look(make_world(store_url))
    assert totals(found) == {("collection", "UNKNOWN", ""): (5, Decimal(sum(amounts)))}


@pytest.mark.costly("runs lines of sharing/overview.py that no quick test runs")
@on_asyncio
async def test_the_end_of_the_queue_is_estimated_while_somebody_sends_it(world: World) -> None:
    """By the rate limit, and not before the last payment may go; without a dispatcher it never ends."""
    async with world.client(rate_limiter=RateLimiter()) as client:
        for number in range(40):
            await client.payments.enqueue(
                type="collection",
                phone_number=SUCCEEDS,
                amount=1_000 + number,
                idempotency_key=f"k{number}",
                not_before=timedelta(hours=1),
            )
        assert (await look(world)).queue_done_at is None
        async with client.dispatcher():
            await world.advance(1)
            found = await look(world)
            assert found.has_dispatcher
            assert found.queue_done_at == NOON + timedelta(hours=1)
            await write(world.url, lambda each: each.execute(schema.payments.update().values(not_before=None)))
            await world.advance(30)
            found = await look(world)
            seconds = 60 * max(0, found.queued - BURST) / REQUESTS_PER_MINUTE
            assert 0 < found.queued < 40
            assert found.queue_done_at == found.at + timedelta(seconds=seconds)
            assert found.requests is not None
            # On PostgreSQL the server's clock counts the limit, and virtual time is none of its.
            assert 0 < found.requests.used <= found.requests.limit == 60
        assert not (await look(world)).has_dispatcher


async def test_a_clock_that_was_set_back_leaves_no_figure_of_the_limit() -> None:
    """After a reboot the requests of before would seem to be of this minute."""
    limit = {"per_minute": 60.0, "burst": 10, "window": 60.0, "jitter": 0.0}
    row = json.dumps(
        {
            "limit": limit,
            "at": 900.0,
            "confirmed_at": 900.0,
            "turns": {},
            "processes": {},
            "past": Past(grants=[900.0], made_up=[901.0], held_until=-math.inf, taken=1),
        }
    )
    assert find_usage(None, 900.0) is find_usage("", 900.0) is find_usage(row, 800.0) is None
    used = find_usage(row, 901.0)
    assert used is not None
    assert (used[0].granted, used[0].limit, used[1].per_minute) == (1, 60, 60.0)
    later = find_usage(row, 990.0)
    assert later is not None
    assert later[0].granted == 0


@on_asyncio
async def test_what_needs_a_decision_is_shown(world: World) -> None:
    """Unknown payments, one whose sender has died, a contradicted one, and transactions that nobody claims."""
    states: list[dict[str, Any]] = [
        {"state": "UNKNOWN"},
        {"state": "ABSENT"},
        {"state": "SENDING", "stale_at": NOON},
        {"state": "SENDING", "stale_at": NOON + timedelta(seconds=1)},
        {"state": "ACKNOWLEDGED", "transaction_id": "t-4", "cause": "OTHER_MERCHANT"},
        {"state": "ACKNOWLEDGED", "transaction_id": "t-5"},
        {"state": "FINAL", "transaction_id": "t-6"},
        {"state": "QUEUED", "cause": "WAITS", "about": "above a limit"},
        {"state": "QUEUED", "cause": "DELAYED", "about": "no connection"},
        {"state": "QUEUED"},
    ]

    def fill(connection: sa.Connection) -> None:
        for number, values in enumerate(states):
            at = {"created_at": NOON, "changed_at": NOON}
            row = {**values, **at, "key": f"k{number}", "amount": str(number + 1), "account": "default"}
            fixed = {"type": "collection", "phone_number": SUCCEEDS, "extra_digest": "", "attempt": 1}
            connection.execute(schema.payments.insert(), {**fixed, **row})
        for number in range(60):
            insert_line(connection, "explained" if number == 0 else "open", transaction_id=f"s-{number:02}")
        connection.execute(schema.accounts.insert(), {"account": "default", "due_since": NOON})

    await write(world.url, fill)
    found = await look(world)
    assert [each.key for each in found.needs_attention] == ["k0", "k1", "k2", "k4", "k7"]
    assert (found.sending, found.pending, found.unknown) == (1, 1, 5)
    assert (found.queued, found.kept, found.needs_attention[-1].reason) == (3, 1, "above a limit")
    assert [each.key for each in found.oldest_pending] == ["k5"]
    assert (found.unclaimed, len(found.unclaimed_first)) == (59, 50)
    assert found.unclaimed_first[0].transaction_id == "s-01"
    assert found.is_stopped
    other = await look(world, world.store(account="another"))
    assert (other.unknown, other.unclaimed, other.is_stopped, other.today) == (0, 0, False, [])


@on_asyncio
@pytest.mark.parametrize("numbered", [0, 250, 400])
async def test_the_last_hour_is_found_among_many_changes(
    store_url: str, numbered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not they have numbers, and whatever was recorded late in between."""
    monkeypatch.setattr(module, "_FIRST_SPAN", 8)
    monkeypatch.setattr(module, "_AROUND", 4)
    world = make_world(store_url)

    def fill(connection: sa.Connection) -> None:
        for number in range(1, 401):
            at = NOON - timedelta(seconds=30 * (400 - number) + 1)
            # A merchant's transaction that was open for minutes.
            is_late = number % 40 in {0, 1, 2}
            state = "QUEUED" if is_late else "FINAL" if number % 2 else "ACKNOWLEDGED"
            values = {"account": "default", "name": f"k{number}", "entry": 1, "state": state, "status": "SUCCESS"}
            at = at - timedelta(minutes=9) if is_late else at
            mark = number if number <= numbered else None
            connection.execute(schema.changes.insert(), {**values, "at": at, "number": mark})
        connection.execute(schema.accounts.insert(), {"account": "default", "feed_last": numbered})

    await write(store_url, fill)
    found = await look(world)
    expected = [number for number in range(1, 401) if number % 40 not in {0, 1, 2} and 30 * (400 - number) + 1 <= 3540]
    assert sum(each.succeeded for each in found.minutes) == sum(number % 2 for number in expected)
    assert sum(each.made for each in found.minutes) == sum(number % 2 == 0 for number in expected)
    assert found.minutes[-1].made + found.minutes[-1].succeeded == 0  # noon's own minute has just begun
    assert found.minutes[-2].succeeded == 1
    assert found.lag is None  # their payments have no transactions


@on_asyncio
async def test_the_lag_is_that_of_the_latest_ends(world: World) -> None:
    """The median, so that one payment which was found late does not hide the others; never below nothing."""

    async def lag_of(*seconds: int) -> float | None:
        def fill(connection: sa.Connection) -> None:
            for table in (schema.payments, schema.changes):
                connection.execute(table.delete())
            for number, late in enumerate(seconds):
                seen: Transaction = SEEN.from_dict(
                    SEEN.to_dict() | {"failed_at": (NOON - timedelta(seconds=late)).isoformat()}
                )
                insert_payment(
                    connection, key=f"k{number}", amount=str(number + 1), state="FINAL", transaction=dump(seen)
                )
                change = {"account": "default", "name": f"k{number}", "entry": 1, "state": "FINAL", "at": NOON}
                connection.execute(schema.changes.insert(), change)

        await write(world.url, fill)
        return (await look(world)).lag

    assert await lag_of(3, 1, 600) == 3
    assert await lag_of(-5) == 0


@on_asyncio
async def test_nothing_is_written_and_no_writer_is_waited_for(
    world: World, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that is open all day is in nobody's way, and nobody is in its."""
    await client.collections.create(**ORDER, idempotency_key="k")
    own = account_store(world.store())
    await own.database.open()

    run = own.database._run

    async def refuse(work: Any) -> Any:
        assert not work.writes
        return await run(work)

    monkeypatch.setattr(own.database, "_run", refuse)
    engine = sa.create_engine(world.url)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.dialect.name == "sqlite" else "SELECT 1")
        connection.execute(sa.text("UPDATE mobilemoney_payment_records SET walks = 1"))
        with anyio.fail_after(30):
            assert (await read_overview(own, world.utcnow())).pending == 1
    engine.dispose()
    own.database.close()


@on_one
async def test_a_store_that_fails_says_so(world: World) -> None:
    """As `StoreError`, as from every other method."""
    await look(world)
    await write(world.url, lambda each: each.execute(sa.text("DROP TABLE mobilemoney_budgets")))
    with pytest.raises(StoreError, match="the store failed"):
        await look(world)


@pytest.mark.slow
@on_asyncio
async def test_every_statement_uses_an_index(store_url: str) -> None:
    """However many payments there are, none but the open ones and those of today are read."""
    plans = list[str]()

    def row_of(number: int) -> dict[str, Any]:
        at = NOON - timedelta(days=30) + timedelta(minutes=number)
        values: dict[str, Any] = {"account": "default", "state": "FINAL", "key": f"k{number}", "amount": "1000"}
        values |= {"type": "collection", "phone_number": SUCCEEDS, "extra_digest": "", "attempt": 1}
        return values | {"created_at": at, "changed_at": at}

    def explain(connection: sa.Connection) -> None:
        rows = [row_of(number) for number in range(5_000)]
        connection.execute(schema.payments.insert(), rows)
        changed = [
            {
                "account": "default",
                "name": row["key"],
                "entry": 1,
                "state": "FINAL",
                "at": row["created_at"],
                "number": at,
            }
            for at, row in enumerate(rows, 1)
        ]
        connection.execute(schema.changes.insert(), changed)
        connection.execute(schema.accounts.insert(), {"account": "default", "feed_last": len(rows)})
        for number in range(5):
            insert_payment(connection, key=f"today-{number}", amount=str(number + 1))
        connection.execute(sa.text("ANALYZE"))
        note_plans(connection, plans)
        module._read(Journal(connection, "default"), NOON, 0.0, 120.0)

    await write(store_url, explain)
    assert len(plans) > 10
    for plan in plans:
        for table in ("payment_records", "changes", "history"):
            assert f"SCAN mobilemoney_{table}" not in plan, plan
            assert f"Seq Scan on mobilemoney_{table}" not in plan, plan


QUESTIONS: dict[str, Callable[[AsyncClient, AccountStore], Awaitable[object]]] = {
    "unresolved": lambda client, store: client.payments.unresolved(),
    "the newest": lambda client, store: client.payments.list(limit=5, newest_first=True),
    "one": lambda client, store: client.payments.get("order-7"),
    "the overview": lambda client, store: read_overview(store, NOON),
}


@on_asyncio
async def test_what_is_over_makes_no_question_dearer(tmp_path: Path) -> None:
    """Of 500 payments all but one are final and of last year: SQLite takes no more steps than beside 20."""
    few, many = [await _count_steps(sqlite_url(tmp_path), count) for count in (20, 500)]
    assert [question for question in QUESTIONS if many[question] > 2 * few[question]] == [], (few, many)


async def _count_steps(url: str, count: int) -> dict[str, int]:
    """Return how many hundreds of SQLite's steps each question takes beside so many payments."""
    last_year = {"created_at": "2025-03-01 12:00:00", "changed_at": "2025-03-01 12:00:00", "status": "SUCCESS"}
    database, steps = Database(url), itertools.count()

    def fill(connection: sa.Connection) -> None:
        for number in range(count):
            insert_payment(connection, key=f"order-{number}", state="FINAL", amount=str(1000 + number), **last_year)
        insert_payment(connection, key="lost")

    await database.write(fill)
    database.close()

    def count_steps(dbapi: Any, _: object) -> None:
        dbapi.set_progress_handler(lambda: next(steps) and None, 100)

    sa.event.listen(sa.Engine, "connect", count_steps)
    try:
        async with make_world(url).client() as client:
            assert client._store is not None
            taken = {}
            for question, ask in QUESTIONS.items():
                await ask(client, client._store.account_store)
                began = next(steps)
                await ask(client, client._store.account_store)
                taken[question] = next(steps) - began
            return taken
    finally:
        sa.event.remove(sa.Engine, "connect", count_steps)
