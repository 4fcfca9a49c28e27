"""The feed of changes: in order, nothing skipped, resumed where a consumer was done."""

from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, InvalidCursor, InvalidRequest, PaymentChange, PaymentState, StoreError
from mobilemoney_async.database.schema import accounts, changes, payments
from mobilemoney_async.events import ChangeParked, Event
from mobilemoney_async.payments.feed.changes import number_changes, prune_changes
from mobilemoney_async.payments.feed.consumers import MOST_TRIES
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.store import account_store
from tests.payments.service import (
    ORDER,
    Outage,
    World,
    make_world,
    on_asyncio,
    on_one,
    on_sqlite,
    record_seen,
    rows,
    write,
)
from tests.payments.steps import record_of, settle

pytestmark = pytest.mark.pairs


async def pay(client: AsyncClient, *keys: str) -> None:
    for number, key in enumerate(keys):
        await client.collections.create(**{**ORDER, "amount": 1000 + number}, idempotency_key=key)


async def page(client: AsyncClient, **options: Any) -> list[PaymentChange]:
    return [change async for change in client.payments.changes(forever=False, **options)]


def shown(found: list[PaymentChange]) -> list[tuple[str | None, str]]:
    return [(change.key, str(change.state)) for change in found]


MADE = [("a", "SENDING"), ("a", "ACKNOWLEDGED"), ("b", "SENDING"), ("b", "ACKNOWLEDGED")]


async def test_each_change_is_shown_in_order_with_its_payment_as_it_is_now(world: World) -> None:
    """A page begins behind its cursor, and each change has the payment's record, from any process."""
    async with world.client() as client, world.client() as other:
        await pay(client, "a", "b")
        found = await page(other)
        assert shown(found) == MADE
        assert [change.record.state for change in found if change.record] == [PaymentState.ACKNOWLEDGED] * 4
        assert [str(change.status) for change in found] == ["None", "PENDING"] * 2
        assert shown(await page(client, after=found[1].cursor)) == MADE[2:]
        assert shown(await page(client, after=found[0].cursor, limit=2)) == MADE[1:3]
        assert await page(client, after=found[-1].cursor) == []
        assert await page(client, start="now") == []


async def test_a_reader_waits_for_the_next_change_and_hears_it_promptly(world: World) -> None:
    """Of another process within a second of virtual time, however many readers wait."""
    heard: list[str | None] = []

    async def read(client: AsyncClient) -> None:
        async for change in client.payments.changes():
            heard.append(change.key)
            if change.state is PaymentState.ACKNOWLEDGED:
                return

    async with world.client() as writer, world.client() as reader, anyio.create_task_group() as tasks:
        await writer.payments.unresolved()
        for _ in range(5):
            tasks.start_soon(read, reader)
        await anyio.sleep(1)
        with anyio.fail_after(60):
            await pay(writer, "a")
            while len(heard) < 10:
                await anyio.sleep(0.1)
    assert heard == ["a"] * 10


@on_asyncio
async def test_a_change_that_commits_late_is_never_passed(postgres_url: str) -> None:
    """A transaction that stays open hides its change, and holds up nobody; its change comes after the others."""
    world = make_world(postgres_url)
    async with world.client() as client:
        await pay(client, "a")
        engine = sa.create_engine(postgres_url, poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            late = {"type": "collection", "phone_number": ORDER["phone_number"], "amount": 5, "idempotency_key": "late"}
            world.store().enqueue(connection, **late)
            first = await page(client)
            assert shown(first) == MADE[:2]
            await client.disbursements.create(**ORDER, idempotency_key="c")
            found = await page(client, after=first[-1].cursor)
            assert shown(found) == [("c", "SENDING"), ("c", "ACKNOWLEDGED")]
            connection.commit()
        assert shown(await page(client, after=found[-1].cursor)) == [("late", "QUEUED")]


async def test_a_consumer_goes_on_behind_the_last_change_that_is_done(world: World) -> None:
    """Also in another process, and whether or not the first one closed its iterator."""
    async with world.client() as client, world.client() as other:
        await pay(client, "a", "b")
        with pytest.raises(StoreError, match="no consumer 'books'"):
            await page(client, consumer="books")
        async with aclosing(client.payments.changes(consumer="books", start="oldest")) as feed:
            first = await anext(feed)
            assert first.key == "a" and first.state is PaymentState.SENDING
            second = await anext(feed)
            await second.done()
            assert shown([await anext(feed)]) == MADE[2:3]
        assert shown(await page(other, consumer="books")) == MADE[2:]
        assert shown(await page(other, consumer="ledger", start="now")) == []
        (books, ledger) = await client.payments.consumers()
        assert (books.name, books.behind, ledger.behind) == ("books", 2, 0)
        await client.payments.forget_consumer("books")
        with pytest.raises(StoreError):
            await client.payments.forget_consumer("books")
        assert shown(await page(client, consumer="books", start="oldest")) == MADE


async def test_one_process_at_a_time_reads_as_a_consumer(world: World) -> None:
    """The other one waits; it goes on at once when the first one closes, and after a minute when it is silent."""
    async with world.client() as one, world.client() as other:
        await pay(one, "a")
        feed = one.payments.changes(consumer="books", start="oldest")
        held = await anext(feed)
        waiting = other.payments.changes(consumer="books")
        with anyio.move_on_after(5):
            pytest.fail(f"two read at once: {await anext(waiting)}")
        await feed.aclose()
        assert (await anext(waiting)).key == "a"
        with pytest.raises(StoreError, match="closed"):
            await held.done()
        if not world.url.startswith("sqlite"):
            return  # PostgreSQL's clock is not virtual
        silent = one.payments.changes(consumer="books")
        with anyio.fail_after(90):
            late = await anext(silent)
        assert late.key == "a"


async def test_a_consumer_goes_on_once_the_database_is_back(sqlite_file_url: str) -> None:
    """It does not wait for the place of its own iterator, which the error that ended it keeps alive."""
    world = make_world(sqlite_file_url)
    store = world.store()
    async with world.client(store) as client:
        await pay(client, "a")
        outage = Outage(account_store(store).database)
        feed = client.payments.changes(consumer="books", start="oldest")
        await (await anext(feed)).done()
        outage.away = True
        with pytest.raises(StoreError) as kept:
            while True:
                await anext(feed)
        outage.away = False
        with anyio.fail_after(5):
            next_one = client.payments.changes(consumer="books")
            assert (await anext(next_one)).state is PaymentState.ACKNOWLEDGED
        assert kept.tb is not None
        with anyio.move_on_after(5):  # nor does the old one read beside it
            pytest.fail(f"two read at once: {await anext(feed)}")


async def test_a_slow_handler_keeps_its_place_until_another_process_takes_over(sqlite_file_url: str) -> None:
    """Its `done` counts while nobody else reads; afterwards it raises, and what is not done is handed out again."""
    world = make_world(sqlite_file_url)
    async with world.client() as one, world.client() as other:
        await pay(one, "a", "b")
        feed = one.payments.changes(consumer="books", start="oldest")
        first = await anext(feed)
        await anyio.sleep(45)
        await first.done()
        second = await anext(feed)
        await anyio.sleep(70)
        with anyio.fail_after(300):
            rival = other.payments.changes(consumer="books")
            taken = [await anext(rival) for _ in range(3)]
            assert first.cursor not in {each.cursor for each in taken}
            with pytest.raises(StoreError, match="another process has taken over") as caught:
                await second.done()
            assert caught.value.outcome == "not_sent"
            await taken[0].done()
            await rival.aclose()
            assert {(await anext(feed)).cursor for _ in range(2)} == {each.cursor for each in taken[1:]}


async def test_a_reader_that_slept_begins_again_where_another_process_left(sqlite_file_url: str) -> None:
    """What it had read is handed out again, unless the other one has handled it: nothing is skipped."""
    world = make_world(sqlite_file_url)
    async with world.client() as one, world.client() as other:
        await pay(one, "a", "b")
        feed = one.payments.changes(consumer="books", start="oldest")
        found = [await anext(feed) for _ in range(4)]
        await anyio.sleep(70)
        with anyio.fail_after(300):
            rival = other.payments.changes(consumer="books")
            taken = await anext(rival)
            handled = {taken.cursor}

            async def go_on() -> None:
                while len(handled) < len(found):
                    change = await anext(feed)
                    handled.add(change.cursor)
                    await change.done()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(go_on)
                await anyio.sleep(5)
                assert handled == {taken.cursor}  # two do not read at once
                await taken.done()
                await rival.aclose()
    assert handled == {each.cursor for each in found}


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_reader_that_slept_hands_out_nothing_that_is_done(sqlite_file_url: str, is_done: bool) -> None:
    """Also where the other process has left again: its page may be older than what that one has handled."""
    world = make_world(sqlite_file_url)
    async with world.client() as one, world.client() as other:
        await pay(one, "a", "b")
        feed = one.payments.changes(consumer="books", start="oldest")
        first = await anext(feed)
        await anyio.sleep(70)
        with anyio.move_on_after(10):
            async for change in other.payments.changes(consumer="books"):
                await change.done()
        if is_done:
            with pytest.raises(StoreError, match="another process has taken over"):
                await first.done()
        await pay(one, "c")
        with anyio.fail_after(60):
            assert (await anext(feed)).key == "c"


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
@on_asyncio
async def test_a_change_that_fails_comes_again_and_holds_up_no_other_payment(sqlite_file_url: str) -> None:
    """Later changes of its payment wait for it; after ten times it is parked, and its payment goes on."""
    world, events = make_world(sqlite_file_url), list[Event]()
    handled: list[tuple[str | None, str]] = []
    failed: list[float] = []
    async with world.client(on_event=events.append) as client:
        await pay(client, "a", "b")
        with anyio.move_on_after(3_600):
            async for change in client.payments.changes(consumer="books", start="oldest"):
                if (change.key, change.state) == ("a", PaymentState.SENDING):
                    failed.append(anyio.current_time())
                    await change.failed(ValueError("token 0123456789012345678901234567890123456789"))
                else:
                    handled.append((change.key, str(change.state)))
                    await change.done()
                if change.state is PaymentState.ACKNOWLEDGED and change.key == "a":
                    break
        (consumer,) = await client.payments.consumers()
    assert handled == [*MADE[2:], MADE[1]]
    assert len(failed) == MOST_TRIES
    pauses = [after - before for before, after in pairwise(failed)]
    assert pauses == sorted(pauses) and pauses[-1] > 100
    (parked,) = consumer.parked
    assert parked.name == "a" and "0123456789" not in (parked.error or "")
    assert [each for each in events if isinstance(each, ChangeParked)] == [
        ChangeParked(consumer="books", key="a", cursor=events[-1].cursor)  # type: ignore[union-attr]
    ]


@on_sqlite
async def test_a_change_whose_handler_ends_the_process_comes_again_later(client: AsyncClient) -> None:
    """After a pause, while other payments go on; at once, where the reader was closed."""
    await pay(client, "a", "b")
    async with aclosing(client.payments.changes(consumer="books", start="oldest")) as feed:
        assert (await anext(feed)).key == "a"
    dead = client.payments.changes(consumer="books")
    assert (await anext(dead)).key == "a"
    async with aclosing(client.payments.changes(consumer="books")) as feed:
        with anyio.fail_after(90):
            assert (await anext(feed)).key == "b"
            await (await anext(feed)).done()
            assert (await anext(feed)).key == "a"


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_reader_that_ends_lets_another_process_go_on_at_once(world: World, is_cancelled: bool) -> None:
    """At its end, or cancelled, it gives its place back, as when it is closed."""
    async with world.client() as one, world.client() as other:
        await pay(one, "a")
        with anyio.move_on_after(1) as scope:
            async for change in one.payments.changes(consumer="books", start="oldest", forever=is_cancelled):
                await change.done()
        assert scope.cancelled_caught is is_cancelled
        await pay(one, "b")
        with anyio.fail_after(5):
            assert (await anext(other.payments.changes(consumer="books"))).key == "b"


async def test_closing_one_consumer_leaves_the_others_of_its_process_alone(sqlite_file_url: str) -> None:
    """Another process goes on as the closed one, and waits as the other one."""
    world = make_world(sqlite_file_url)
    async with world.client() as one, world.client() as other:
        await pay(one, "a")
        books, mail = (one.payments.changes(consumer=name, start="oldest") for name in ("books", "mail"))
        kept, _ = await anext(books), await anext(mail)
        await mail.aclose()
        assert (await anext(other.payments.changes(consumer="mail"))).key == "a"
        with anyio.move_on_after(5):
            pytest.fail(f"two read at once: {await anext(other.payments.changes(consumer='books'))}")
        await kept.done()


@on_sqlite
async def test_a_consumer_that_has_failed_at_everything_is_not_behind(client: AsyncClient) -> None:
    """Its payments lag behind, the consumer does not: it would hold back the pruning of the feed."""
    await pay(client, "a", "b")
    feed = client.payments.changes(consumer="books", start="oldest")
    for key in ("a", "b"):
        change = await anext(feed)
        assert (change.key, change.state) == (key, PaymentState.SENDING)
        await change.failed("out of order")
    (consumer,) = await client.payments.consumers()
    assert (consumer.behind, consumer.lagging) == (1, ("a", "b"))
    await pay(client, "c")
    for state in (PaymentState.SENDING, PaymentState.ACKNOWLEDGED):
        change = await anext(feed)
        assert (change.key, change.state) == ("c", state)
        await change.done()
    (consumer,) = await client.payments.consumers()
    assert (consumer.behind, consumer.lagging) == (0, ("a", "b"))


@on_sqlite
async def test_a_transaction_that_was_forgotten_since_may_fail_like_any_other(
    world: World, client: AsyncClient
) -> None:
    """Explained ones are thinned after thirty days: their changes have neither a payment nor a transaction."""
    await write(world, lambda journal: journal.publish_unclaimed("tx-9", "SUCCESS", at=world.utcnow()))
    feed = client.payments.changes(consumer="books", start="oldest")
    change = await anext(feed)
    assert (change.key, change.transaction) == (None, None)
    await change.failed("unknown to the books")
    (consumer,) = await client.payments.consumers()
    assert consumer.lagging == ("tx-9",)


@pytest.mark.parametrize("slept", [0, 40])
async def test_a_change_whose_done_the_store_has_not_recorded_comes_again(sqlite_file_url: str, slept: float) -> None:
    """Your handler need not remember it, whether or not the reader's lease had to be renewed for it."""
    world = make_world(sqlite_file_url)
    store = world.store()
    outage = Outage(account_store(store).database)
    async with world.client(store) as client:
        await pay(client, "a")
        feed = client.payments.changes(consumer="books", start="oldest")
        first = await anext(feed)
        await anyio.sleep(slept)
        outage.away = True
        with pytest.raises(StoreError):
            await first.done()
        outage.away = False
        with anyio.fail_after(60):
            again = await anext(feed)
        assert again.cursor == first.cursor
        await again.done()


async def test_a_cursor_that_would_skip_changes_is_refused(world: World) -> None:
    """One of another store, one ahead of the feed, one of a change that is no longer the same, one that was pruned."""
    async with world.client() as client, world.client(world.store(account="other")) as other:
        await pay(client, "a", "b")
        await pay(other, "z")
        found = await page(client)
        epoch, number, check = found[1].cursor.split("-", maxsplit=2)
        for wrong in ("", "x", f"{epoch}-{number}-0-00000000", f"00000000-{number}-{check}", f"{epoch}-99-{check}"):
            with pytest.raises(InvalidRequest if not wrong else InvalidCursor):
                await page(client, after=wrong)
        with pytest.raises(InvalidCursor):
            await page(other, after=found[1].cursor)
        for transaction_id in world.made:
            world.sandbox.approve(transaction_id)
        for key in ("a", "b"):
            assert (await record_of(client, key)).transaction_id is not None
        await settle(client)
        await write(world, lambda journal: prune_changes(journal, world.utcnow() + timedelta(days=1)))
        with pytest.raises(InvalidCursor, match="behind"):
            await page(client, after=found[1].cursor)


@pytest.mark.slow
@on_one
async def test_old_changes_go_once_every_consumer_is_done_and_the_payment_has_ended(
    world: World, client: AsyncClient
) -> None:
    """Never what is not final, never what a consumer has not handled."""
    await pay(client, "a")
    await settle(client)
    await pay(client, "b")
    later = world.utcnow() + timedelta(days=100)

    def prune(journal: Journal) -> list[tuple[str, str]]:
        prune_changes(journal, later - timedelta(days=90))
        rows = journal.connection.execute(sa.select(changes.c.name, changes.c.state).order_by(changes.c.number))
        return [tuple(row) for row in rows]

    feed = client.payments.changes(consumer="books", start="oldest")
    first = await anext(feed)
    assert len(await write(world, prune)) == 5
    await first.done()
    assert len(await write(world, prune)) == 4
    for _ in range(4):
        await (await anext(feed)).done()
    await feed.aclose()
    assert await write(world, prune) == [("b", "SENDING"), ("b", "ACKNOWLEDGED")]


async def test_changes_of_a_payment_that_was_moved_away_hold_nothing_up(
    world: World, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers get them without a record, and they are pruned like others, by one or by thousands at a time."""
    await pay(client, "a", "b")
    await write(world, lambda journal: journal.delete_rows(payments, payments.c.key == "a"))
    found = await page(client)
    assert shown(found) == MADE
    assert [change.record and change.record.key for change in found] == [None, None, "b", "b"]
    await consume(client)
    monkeypatch.setattr("mobilemoney_async.payments.feed.changes._AT_ONCE", 1)
    assert await prune(world, client) == MADE[2:]


@on_sqlite
async def test_arguments_are_refused_by_name(client: AsyncClient) -> None:
    """Before anything is read."""
    wrong: list[dict[str, Any]] = [
        {"consumer": " "},
        {"consumer": "books", "start": "soon"},
        {"consumer": "books", "after": "x"},
        {"consumer": "books", "limit": 3},
        {"after": "x", "start": "now"},
        {"limit": 0},
        {"limit": True},
        {"start": []},
        {"after": 5},
    ]
    for each in wrong:
        with pytest.raises(InvalidRequest):
            client.payments.changes(**each)
    await pay(client, "a")
    (first, *_) = await page(client)
    with pytest.raises(InvalidRequest, match="consumer"):
        await first.done()


async def test_a_limit_makes_a_page(client: AsyncClient) -> None:
    """It ends where there is nothing more, so that a job of cron takes what there is."""
    await pay(client, "a", "b")
    with anyio.fail_after(60):
        assert shown([change async for change in client.payments.changes(limit=3)]) == MADE[:3]
        assert shown([change async for change in client.payments.changes(limit=100)]) == MADE


async def test_a_change_that_was_handled_in_the_end_is_done_after_a_restart(
    sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a quiet shop, where no other change comes after it, and with its payment's later changes."""
    monkeypatch.setattr("mobilemoney_async.payments.feed.feed._PAGE", 1)
    world = make_world(sqlite_file_url)
    tries: list[tuple[str | None, str]] = []
    async with world.client() as client:
        await pay(client, "a")
        with anyio.fail_after(600):
            async for change in client.payments.changes(consumer="books", start="oldest"):
                tries.append((change.key, str(change.state)))
                if len(tries) <= 2:
                    await change.failed("away")
                else:
                    await change.done()
                if change.state is PaymentState.ACKNOWLEDGED:
                    break
        assert tries == [MADE[0], MADE[0], MADE[0], MADE[1]]
    async with world.client() as client:
        assert await page(client, consumer="books") == []
        (books,) = await client.payments.consumers()
        assert (books.behind, books.lagging) == (0, ())


async def test_a_change_of_an_earlier_page_may_fail(sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that works on many at once says so when it knows."""
    monkeypatch.setattr("mobilemoney_async.payments.feed.feed._PAGE", 1)
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await pay(client, "a", "b")
        async with aclosing(client.payments.changes(consumer="books", start="oldest")) as feed:
            changes = [await anext(feed) for _ in range(4)]
            await changes[0].failed("away")
            await changes[3].done()
            with anyio.fail_after(60):
                again = await anext(feed)
                assert (again.key, str(again.state)) == MADE[0]
                await again.done()
                later = await anext(feed)
                assert (later.key, str(later.state)) == MADE[1]
                await later.done()
        assert await page(client, consumer="books") == []


@on_sqlite
async def test_one_done_counts_for_what_came_again_before_it(client: AsyncClient) -> None:
    """A handler may take a hundred changes, and be done with the last one."""
    await pay(client, "a")
    async with aclosing(client.payments.changes(consumer="books", start="oldest")) as feed:
        await (await anext(feed)).failed("away")
        await anyio.sleep(3)
        await pay(client, "b")
        found = [await anext(feed) for _ in range(3)]
        assert shown(found) == [MADE[0], *MADE[2:]]
        await found[-1].done()
        assert shown([await anext(feed)]) == MADE[1:2]
    (books,) = await client.payments.consumers()
    assert books.behind == 0


async def test_a_reader_that_is_left_keeps_nobody_waiting(store_url: str) -> None:
    """The process goes on as the consumer at once, another one once the client is closed; the change comes later."""
    world, keys = make_world(store_url), ["a", "b", "c", "d"]
    found = list[str | None]()

    async def read(client: AsyncClient) -> PaymentChange | None:
        with anyio.fail_after(1):
            async for change in client.payments.changes(consumer="books", start="oldest"):
                found.append(change.key)
                return change
        return None

    async with world.client() as client:
        await pay(client, *keys)
        held = [await read(client), await read(client)]
    with anyio.move_on_after(1):
        async with world.client() as client:
            async for change in client.payments.changes(consumer="books"):
                found.append(change.key)
                await anyio.sleep_forever()
    async with world.client() as other:
        held.append(await read(other))
    assert found == keys and len(held) == 3


async def test_a_reader_notices_a_store_that_was_restored_under_it(world: World, client: AsyncClient) -> None:
    """As after a failover that has lost the last changes: it raises, and a consumer goes on where the store is."""
    await pay(client, "a", "b")
    pages, feed = client.payments.changes(), client.payments.changes(consumer="books", start="oldest")
    for _ in range(3):
        await anext(pages), await anext(feed)
    await anext(pages)
    last = await anext(feed)
    idle = client.payments.changes(start="now", forever=False)
    assert [change async for change in idle] == []

    def restore(journal: Journal) -> None:
        journal.delete_rows(changes, changes.c.number > 2)
        journal.change_rows(accounts, feed_last=2)

    await write(world, restore)
    await pay(client, "c", "d", "e")
    for reader in (pages, idle):
        with pytest.raises(InvalidCursor):
            await anext(reader)
    with pytest.raises(StoreError, match="restored"):
        await last.done()
    assert [(await anext(feed)).key for _ in range(8)] == ["a", "a", "c", "c", "d", "d", "e", "e"]


async def prune(world: World, client: AsyncClient) -> list[tuple[str, str]]:
    """Delete what is older than ninety days, ninety-five days from now; return what is left."""
    until, after = world.utcnow() + timedelta(days=5), 0
    while (upto := await write(world, partial(prune_changes, until=until, after=after))) is not None:
        after = upto
    return [(each.key or "", str(each.state)) for each in await page(client)]


async def read_on(client: AsyncClient) -> None:
    """Read the changes, as a program's cursor does."""
    await page(client)


async def consume(client: AsyncClient) -> None:
    async for change in client.payments.changes(consumer="books", start="oldest", forever=False):
        await change.done()


async def follow(client: AsyncClient) -> None:
    async with client.poller(resume=True):
        await anyio.sleep(5)


async def reconcile(client: AsyncClient) -> None:
    await client.payments.reconcile()


@pytest.mark.costly("no quick test prunes by a reader")
@pytest.mark.parametrize("number_them", [read_on, consume, follow, reconcile])
async def test_whoever_numbers_changes_prunes_them(
    store_url: str, number_them: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute at most: a shop that never reconciles keeps no old changes, nor does a worker, with its pollers."""
    world, prunings = make_world(store_url), list[int]()

    def count(journal: Journal, until: datetime, after: int = 0) -> int | None:
        prunings.append(after)
        assert len(prunings) < 20
        return prune_changes(journal, until, after)

    async with world.client(world.store(keep_changes=0.0001)) as client:
        await pay(client, "a")
        await settle(client)
        await pay(client, "open")
        await world.advance(120)
        monkeypatch.setattr("mobilemoney_async.payments.feed.feed.prune_changes", count)
        monkeypatch.setattr("mobilemoney_async.payments.feed.changes._AT_ONCE", 1)
        for _ in range(4):
            await number_them(client)
        assert {*found_in(store_url)} == {"open"}
        assert prunings == [*range(1 + max(prunings))]
        await world.advance(61)
        await number_them(client)
        assert prunings.count(0) == 2


@pytest.mark.parametrize("choice", [{}, {"consumer": "books", "start": "oldest"}])
async def test_a_reader_waits_behind_changes_that_were_pruned(
    sqlite_file_url: str, choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of the feed: it reads once, and hears of the next change."""
    world, readings = make_world(sqlite_file_url), list[float]()

    def count(journal: Journal) -> Any:
        readings.append(1)
        assert len(readings) < 20
        return number_changes(journal)

    async with world.client() as client:
        await pay(client, "a")
        await settle(client)
        assert await prune(world, client) == []
        monkeypatch.setattr("mobilemoney_async.payments.feed.feed.number_changes", count)
        feed = client.payments.changes(**choice)
        with anyio.move_on_after(3):
            await anext(feed)
        if "consumer" in choice:  # one that is cancelled is closed
            feed = client.payments.changes(**choice)
        await pay(client, "b")
        assert (await anext(feed)).key == "b"
        await feed.aclose()


def found_in(url: str) -> list[str]:
    return [name for (name,) in rows(url, "SELECT name FROM mobilemoney_changes ORDER BY number, at")]


async def test_a_reader_may_stop_among_the_changes_of_payments_that_stay_open(
    world: World, client: AsyncClient
) -> None:
    """The changes of open payments stay; a reader that begins with them goes on from its cursor."""
    await pay(client, "open")
    (first, second) = await page(client)
    await pay(client, "a")
    for transaction_id in world.made[1:]:
        world.sandbox.approve(transaction_id)
        await see(client, world, transaction_id)
    assert await prune(world, client) == [("open", "SENDING"), ("open", "ACKNOWLEDGED")]
    for old in (first, second):
        with pytest.raises(InvalidCursor, match="behind"):
            await page(client, after=old.cursor)
    (again, _) = await page(client)
    assert shown(await page(client, after=again.cursor)) == [("open", "ACKNOWLEDGED")]
    assert len(await page(client, consumer="books", start="oldest")) == 2


async def test_a_reader_gets_no_feed_with_a_hole(world: World, client: AsyncClient) -> None:
    """Each pruning counts, also one of lower numbers than an earlier one, which a consumer had not read until then."""
    await pay(client, "open", "paid")
    world.sandbox.approve(world.made[1])
    await see(client, world, world.made[1])
    assert await prune(world, client) == [("open", "SENDING"), ("open", "ACKNOWLEDGED")]
    idle = client.payments.changes(start="now", forever=False)
    assert [change async for change in idle] == []
    (first, second) = await page(client)
    async for change in client.payments.changes(consumer="books", start="oldest", forever=False):
        await change.done()
    world.sandbox.approve(world.made[0])
    await see(client, world, world.made[0])
    assert await prune(world, client) == [("open", "FINAL")]
    for old in (first, second):
        with pytest.raises(InvalidCursor, match="behind"):
            await page(client, after=old.cursor)
    assert shown([change async for change in idle]) == [("open", "FINAL")]


async def see(client: AsyncClient, world: World, transaction_id: str) -> None:
    """Record a transaction as the service shows it."""
    await record_seen(world, await client.transactions.get(transaction_id))


@pytest.mark.slow
@on_one
async def test_a_change_that_comes_again_is_not_pruned(world: World, client: AsyncClient) -> None:
    """Nor are the later changes of its payment, however long the consumer is away."""
    await pay(client, "a")
    await settle(client)
    async with aclosing(client.payments.changes(consumer="books", start="oldest")) as feed:
        await (await anext(feed)).failed("away")
        await pay(client, "b")
        for _ in range(2):
            await (await anext(feed)).done()
    assert [key for key, _ in await prune(world, client)] == ["a"] * 3 + ["b"] * 2
