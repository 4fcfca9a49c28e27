"""Readers of the feed in detail: where they begin and end, what `done` and `failed` count for, who has the place."""

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mobilemoney_async import AsyncClient, InvalidCursor, PaymentChange, SQLStore, StoreError
from mobilemoney_async.database.schema import changes, consumers
from mobilemoney_async.payments.feed.changes import prune_changes, read_changes
from mobilemoney_async.payments.feed.consumers import MOST_TRIES
from mobilemoney_async.payments.feed.feed import ChangePages
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.testing import run_virtual
from tests.payments.service import PHONE_NUMBER, World, make_world, on_asyncio, write
from tests.support.databases import execute
from tests.support.patience import PATIENCE


@pytest.fixture
async def world(sqlite_file_url: str) -> World:
    """One on SQLite: `test_changes` tries readers on both databases."""
    return make_world(sqlite_file_url)


@pytest.fixture
async def feed(client: AsyncClient) -> AsyncIterator[Any]:
    """What a consumer reads, from the oldest change on."""
    async with aclosing(client.payments.changes(consumer="books", start="oldest")) as changes:
        yield changes


def join_since(before: set[threading.Thread]) -> None:
    """Let new threads end: one of anyio knows its event loop until then, which may come late on a busy machine."""
    for each in {*threading.enumerate()} - before:
        each.join(PATIENCE)


def test_a_reader_that_has_waited_keeps_no_event_loop(sqlite_file_url: str) -> None:
    """So a program may run many of them on one store, one after the other."""
    store, loops = SQLStore(sqlite_file_url), weakref.WeakSet[asyncio.AbstractEventLoop]()

    async def read() -> None:
        loops.add(asyncio.get_running_loop())
        async with make_world(sqlite_file_url).client(store) as client:
            with anyio.move_on_after(2):
                await anext(client.payments.changes())

    before = {*threading.enumerate()}
    for _ in range(2):
        run_virtual(read)
    join_since(before)
    gc.collect()
    assert not loops
    store.close()


CHOICES: list[dict[str, Any]] = [{}, {"consumer": "books"}]


async def enqueue(client: AsyncClient, keys: str) -> None:
    """Make a change of each key."""
    for key in keys:
        order: dict[str, Any] = {"type": "collection", "phone_number": PHONE_NUMBER, "amount": 1000 + ord(key)}
        await client.payments.enqueue(**order, idempotency_key=key)


async def take(feed: Any, count: int) -> list[PaymentChange]:
    return [await anext(feed) for _ in range(count)]


def keys(found: list[PaymentChange]) -> str:
    return "".join(change.key or "?" for change in found)


async def rest(client: AsyncClient) -> str:
    """Return the keys of what a restarted process reads as the consumer now."""
    return keys([change async for change in client.payments.changes(consumer="books", forever=False)])


async def behind(client: AsyncClient) -> tuple[int, str]:
    (consumer,) = await client.payments.consumers()
    return consumer.behind, "".join(consumer.lagging)


# Begin and end


@pytest.mark.costly("runs lines of payments/feed/feed.py that no quick test runs")
@on_asyncio
@pytest.mark.parametrize("choice", CHOICES)
async def test_start_now_is_behind_all_changes_however_many_were_never_read(
    sqlite_file_url: str, choice: dict[str, Any]
) -> None:
    """As after an import of thousands into a store whose feed nobody has used."""
    world = make_world(sqlite_file_url)
    store = world.store()
    async with world.client(store) as client:
        await client.payments.unresolved()
        new = {"account": "default", "entry": 1, "state": "QUEUED", "at": world.utcnow()}
        rows = [{**new, "name": f"k{number}"} for number in range(10_001)]
        await account_store(store).write(lambda journal: journal.execute(changes.insert(), rows))
        feed = client.payments.changes(**choice, start="now")
        await feed.begin()
        await enqueue(client, "a")
        assert keys(await take(feed, 1)) == "a"
        assert [change async for change in client.payments.changes(start="now", forever=False)] == []


@pytest.mark.parametrize("choice", CHOICES)
async def test_a_reader_can_be_cancelled_between_any_two_changes(client: AsyncClient, choice: dict[str, Any]) -> None:
    """Though it has read them all at once, and others run in between."""
    found = list[PaymentChange]()
    await enqueue(client, "abcd")
    with anyio.CancelScope() as scope:
        async for change in client.payments.changes(**choice, start="oldest", forever=False):
            found.append(change)
            if len(found) == 2:
                scope.cancel()
    assert keys(found) == "ab"


@pytest.mark.parametrize("choice", CHOICES)
async def test_a_closed_reader_ends(client: AsyncClient, choice: dict[str, Any]) -> None:
    """What it had read ahead is not handed out; a consumer begins again there, and closing twice is no fault."""
    await enqueue(client, "abc")
    feed = client.payments.changes(**choice, start="oldest", forever=False)
    await take(feed, 2)
    await feed.aclose()
    await feed.aclose()
    assert keys([change async for change in feed]) == ("abc" if choice else "")


async def test_a_consumer_that_is_closed_while_a_task_reads_begins_again(client: AsyncClient, feed: Any) -> None:
    """That task gets the change which comes again, also where it had one on its page."""
    await enqueue(client, "ab")
    await take(feed, 1)
    found = list[PaymentChange]()

    async def read() -> None:
        found.extend(await take(feed, 1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(feed.aclose)
    assert keys(found) == "a"


async def test_a_reader_that_starts_over_gets_what_comes_next(client: AsyncClient) -> None:
    """Neither what it had read ahead, nor what is after its old cursor: that one is of another feed."""
    await enqueue(client, "abc")
    feed = client.payments.changes()
    assert isinstance(feed, ChangePages)
    await take(feed, 1)
    feed.restart()
    await feed.begin()
    await enqueue(client, "d")
    assert keys(await take(feed, 1)) == "d"


async def test_changes_that_are_pruned_while_a_page_is_read_are_not_skipped(
    world: World, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL another process may delete them between two statements: the cursor is refused, as any older one."""
    times = list[int]()

    def prune_and_read(journal: Journal, *arguments: Any, **options: Any) -> Any:
        times.append(len(times))
        if len(times) == 1:
            prune_changes(journal, world.utcnow() + timedelta(days=1))
        return read_changes(journal, *arguments, **options)

    await enqueue(client, "a")
    await client.payments.cancel("a", note="no")
    await enqueue(client, "b")
    (first, *_) = [change async for change in client.payments.changes(forever=False)]
    monkeypatch.setattr("mobilemoney_async.payments.feed.feed.read_changes", prune_and_read)
    with pytest.raises(InvalidCursor, match="behind"):
        await anext(client.payments.changes(after=first.cursor))


async def test_a_consumer_that_is_forgotten_leaves_nothing_to_the_next_one_of_its_name(
    client: AsyncClient, feed: Any
) -> None:
    """No change that was to come again, either."""
    await enqueue(client, "a")
    (change,) = await take(feed, 1)
    await change.failed("away")
    await feed.aclose()
    await client.payments.forget_consumer("books")
    await anyio.sleep(3)
    again = client.payments.changes(consumer="books", start="now", forever=False)
    assert keys([change async for change in again]) == ""


async def test_what_another_account_holds_back_is_pruned_here(world: World, client: AsyncClient) -> None:
    """Of a payment with the same key."""
    async with world.client(world.store(account="other")) as other:
        for each in (client, other):
            await enqueue(each, "a")
            await each.payments.cancel("a", note="no")
        (change,) = await take(other.payments.changes(consumer="books", start="oldest"), 1)
        await change.failed("away")
        await write(world, lambda journal: prune_changes(journal, world.utcnow() + timedelta(days=1)))
        left = [[change async for change in each.payments.changes(forever=False)] for each in (client, other)]
        assert [keys(found) for found in left] == ["", "aa"]


async def test_new_changes_of_another_account_keep_no_old_ones_here(world: World, client: AsyncClient) -> None:
    """Where numbers begin later here, since the first ones are gone."""
    for key, days in (("a", 1), ("b", -1)):
        await enqueue(client, key)
        await client.payments.cancel(key, note="no")
        if key == "b":
            assert keys([each async for each in client.payments.changes(forever=False)]) == "bb"
            await anyio.sleep(2 * 86_400)
            async with world.client(world.store(account="other")) as other:
                await enqueue(other, "a")
                assert keys([each async for each in other.payments.changes(forever=False)]) == "a"
        until = world.utcnow() + timedelta(days=days)
        await write(world, partial(prune_changes, until=until))
    assert [each async for each in client.payments.changes(forever=False)] == []


async def test_a_page_of_nothing_but_held_back_changes_is_not_the_last_one(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that ends where there is no more goes on behind it."""
    monkeypatch.setattr("mobilemoney_async.payments.feed.feed._PAGE", 1)
    await enqueue(client, "a")
    await client.payments.cancel("a", note="no")
    await enqueue(client, "b")
    found = list[PaymentChange]()
    async for change in client.payments.changes(consumer="books", start="oldest", forever=False):
        found.append(change)
        await change.failed("away")
    assert keys(found) == "ab"


# What `done` and `failed` count for


async def test_a_failed_change_passes_no_other_that_is_open(client: AsyncClient, feed: Any) -> None:
    """Whatever was done before: each change that was neither done nor failed comes again after a restart."""
    await enqueue(client, "abcde")
    found = await take(feed, 4)
    await found[0].done()
    found += await take(feed, 1)
    await found[4].failed("away")
    assert await behind(client) == (4, "e")
    await feed.aclose()
    assert await rest(client) == "bcd"


async def test_failed_changes_in_their_order_leave_nothing_behind(client: AsyncClient, feed: Any) -> None:
    """Each is kept by itself: the consumer's place goes on, after one that was done too."""
    await enqueue(client, "abcdef")
    found = await take(feed, 5)
    await found[0].done()
    await found[1].failed("away")
    assert await behind(client) == (4, "b")
    await found[2].failed("away")
    assert await behind(client) == (3, "bc")
    await found[4].failed("away")
    assert await behind(client) == (3, "bce")
    await found[3].failed("away")
    assert await behind(client) == (2, "bcde")
    await found[4].done()
    await feed.aclose()
    assert await rest(client) == "f"


async def test_a_change_that_is_held_back_is_not_waited_for(client: AsyncClient, feed: Any) -> None:
    """The next one that is handed out may fail too, and the consumer's place is behind both."""
    await enqueue(client, "ab")
    first, second = await take(feed, 2)
    await first.failed("away")
    await second.done()
    await client.payments.cancel("a", note="no")
    await enqueue(client, "c")
    (third,) = await take(feed, 1)
    assert third.key == "c"
    await third.failed("away")
    assert await behind(client) == (0, "ac")


async def test_a_change_comes_again_on_time_whatever_came_between(client: AsyncClient, feed: Any) -> None:
    """Two seconds after it failed."""
    await enqueue(client, "a")
    (first,) = await take(feed, 1)
    await first.failed("away")
    began = anyio.current_time()
    await anyio.sleep(1.5)
    await enqueue(client, "b")
    assert keys(await take(feed, 2)) == "ba"
    assert anyio.current_time() - began < 2.1


@on_asyncio
async def test_a_change_that_ends_each_reader_uses_up_no_other_s_tries(client: AsyncClient, feed: Any) -> None:
    """A try counts when the change is handed out: of two that failed in an outage, only the bad one is parked."""
    await enqueue(client, "ab")
    for each in await take(feed, 2):
        await each.failed("the books are away")
    await feed.aclose()
    handed = ""
    for _ in range(MOST_TRIES):
        await anyio.sleep(301)  # a job of cron
        async for change in client.payments.changes(consumer="books", forever=False):
            handed += str(change.key)
            if change.key == "a":
                break  # as by an error of the handler
            await change.done()
    assert handed == "a" + "b" + "a" * (MOST_TRIES - 2)
    (consumer,) = await client.payments.consumers()
    assert [each.name for each in consumer.parked] == ["a"]


@on_asyncio
async def test_a_change_that_is_gone_is_not_waited_for(sqlite_file_url: str, client: AsyncClient, feed: Any) -> None:
    """Though it was to come again: its reader waits, and hears of the next one."""
    await enqueue(client, "a")
    (change,) = await take(feed, 1)
    await change.failed("away")
    execute(sqlite_file_url, changes.delete())
    with anyio.move_on_after(10) as scope:
        await take(feed, 1)
    assert scope.cancelled_caught
    await enqueue(client, "b")
    assert keys(await take(feed, 1)) == "b"


async def test_done_counts_for_what_was_handed_out_before_it_and_for_nothing_else(
    client: AsyncClient, feed: Any
) -> None:
    """Where changes come again between new ones, in either direction."""
    await enqueue(client, "ab")
    first, second = await take(feed, 2)
    await first.failed("away")
    await anyio.sleep(3)
    again = await take(feed, 1)
    assert keys(again) == "a"
    await second.done()
    assert await behind(client) == (0, "a")
    await enqueue(client, "c")
    await take(feed, 1)
    await again[0].done()
    assert await behind(client) == (1, "")
    await enqueue(client, "d")
    await feed.aclose()
    async with aclosing(client.payments.changes(consumer="books")) as later:
        found = await take(later, 2)
        await found[0].failed("away")
        await anyio.sleep(3)
        again = await take(later, 1)
        assert keys(again) == "c"
        await again[0].done()
        assert await behind(client) == (0, "")


async def test_of_two_that_came_again_the_first_may_be_done(client: AsyncClient, feed: Any) -> None:
    """The second is not, and the other way round both are."""
    await enqueue(client, "abc")
    for change in await take(feed, 3):
        await change.failed("away")
    await anyio.sleep(3)
    found = await take(feed, 3)
    await found[0].done()
    assert await behind(client) == (0, "bc")
    await found[2].done()
    assert await behind(client) == (0, "")


async def test_a_change_may_be_done_after_all(client: AsyncClient, feed: Any) -> None:
    """A handler that has said `failed` too early takes it back; the payment's later changes come at once."""
    await enqueue(client, "a")
    await client.payments.cancel("a", note="no")
    await enqueue(client, "b")
    (first,) = await take(feed, 1)
    await first.failed("away")
    await first.done()
    found = await take(feed, 2)
    assert sorted(keys(found)) == ["a", "b"]
    await found[0].done()
    await found[1].done()
    await feed.aclose()
    assert await rest(client) == ""


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [2, 0, 1], [1], [2]])
async def test_several_changes_of_a_payment_may_fail(client: AsyncClient, feed: Any, order: list[int]) -> None:
    """In any order: all that are not done come again in their own, and hold up no other payment."""
    await enqueue(client, "a")
    await client.payments.cancel("a", note="no", reusable=True)
    await enqueue(client, "a")
    found = await take(feed, 3)
    for each in order:
        await found[each].failed("away")
    await feed.aclose()
    await enqueue(client, "b")
    read = list[PaymentChange]()
    while await behind(client) != (0, ""):
        async for change in client.payments.changes(consumer="books", forever=False):
            read.append(change)
            await change.done()
        await anyio.sleep(3)
    assert [each.cursor for each in read if each.key == "a"] == [each.cursor for each in found]
    assert keys(read) == "baaa"


@pytest.mark.slow
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@on_asyncio
async def test_several_changes_of_a_payment_may_fail_for_ever(client: AsyncClient, feed: Any, order: list[int]) -> None:
    """Each is parked in its turn, after ten tries, and the consumer goes on."""
    await enqueue(client, "a")
    await client.payments.cancel("a", note="no")
    found = await take(feed, 2)
    for each in order:
        await found[each].failed("away")
    await enqueue(client, "b")
    tries = Counter([str(found[0].state)])
    for _ in range(24):
        async for change in client.payments.changes(consumer="books", forever=False):
            tries[str(change.state)] += change.key == "a"
            await (change.done() if change.key == "b" else change.failed("away"))
        await anyio.sleep(400)
    (consumer,) = await client.payments.consumers()
    assert (consumer.behind, consumer.lagging) == (0, ())
    assert [each.number for each in consumer.parked] == [1, 2]
    assert tries == {"QUEUED": 10, "CANCELLED": 10}


async def test_a_parked_change_may_be_done_after_all(client: AsyncClient, feed: Any) -> None:
    """The next one of its payment waits already, and comes once."""
    await enqueue(client, "a")
    await client.payments.cancel("a", note="no")
    found = list[PaymentChange]()
    for _ in range(10):
        found += await take(feed, 1)
        await found[-1].failed("away")
        await anyio.sleep(400)
    await found[-1].done()
    assert not (await client.payments.consumers())[0].parked
    await feed.aclose()
    assert await rest(client) == "a"


async def test_a_slow_reader_of_a_consumer_that_is_forgotten_does_not_begin_anew(client: AsyncClient) -> None:
    """A handler of more than a minute looks dead to others: its reader says so, and skips nothing."""
    async with aclosing(client.payments.changes(consumer="books", start="now")) as feed:
        await feed.begin()
        await enqueue(client, "a")
        change = await anext(feed)
        await anyio.sleep(75)
        await client.payments.forget_consumer("books")
        await enqueue(client, "b")
        with pytest.raises(StoreError):
            await change.done()
        with pytest.raises(StoreError, match="no consumer 'books'"):
            await anext(feed)


async def test_a_consumer_that_is_read_is_not_forgotten(client: AsyncClient, sqlite_file_url: str) -> None:
    """It would begin behind the change that wakes the reader, and nobody would hear of that payment.

    So one that is missing all the same is not made again.
    """
    async with aclosing(client.payments.changes(consumer="books", start="oldest")) as feed:
        await enqueue(client, "a")
        await (await anext(feed)).done()
        with pytest.raises(StoreError, match="a process reads as consumer 'books'"):
            await client.payments.forget_consumer("books")
        execute(sqlite_file_url, consumers.delete())
        await enqueue(client, "b")
        with pytest.raises(StoreError, match="no consumer 'books'"):
            await anext(feed)
    assert not await client.payments.consumers()


# Places


@pytest.mark.slow
@on_asyncio
async def test_a_reader_that_waits_for_changes_keeps_its_place(sqlite_file_url: str) -> None:
    """However long nothing happens, no other process takes it."""
    world = make_world(sqlite_file_url)
    heard = list[str]()

    async def read(client: AsyncClient, name: str) -> None:
        async for change in client.payments.changes(consumer="books", start="now"):
            heard.append(f"{name}: {change.key}")
            await change.done()

    async with world.client() as one, world.client() as other, anyio.create_task_group() as tasks:
        await one.payments.unresolved()
        tasks.start_soon(read, one, "one")
        await anyio.sleep(1)
        tasks.start_soon(read, other, "other")
        for number in range(2):
            await anyio.sleep(65 + 9 * number)
            await enqueue(one, "ab"[number])
        await anyio.sleep(2)
        tasks.cancel_scope.cancel()
    assert heard == [f"one: {key}" for key in "ab"]
