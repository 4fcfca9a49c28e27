"""Whose is this transaction? Restored backups with open payments, tills, and operators who decide.

Each story: a backup, what was paid after it, a restore, and then the job that tries its orders again. K is one kind of
payment: type, number and amount.
"""

from datetime import datetime, timedelta
from typing import Any

import anyio
import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    DuplicateSuspected,
    MobileMoneyError,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.database.leases import TaskLease, new_holder
from mobilemoney_async.database.schema import accounts, lives
from mobilemoney_async.events import StoreBehind
from mobilemoney_async.payments.ownership.searches import note_restored
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.testing import killed_at_end
from tests.payments.second_world import (
    GRACE,
    HOUR,
    MINUTE,
    TYPES,
    Order,
    World,
    make_world,
    number,
    order,
    refuse_softly,
)
from tests.payments.test_recovery import dump, replace
from tests.support.databases import execute
from tests.support.second_service import ListBehaviour, error

pytestmark = [pytest.mark.pairs, pytest.mark.slow]


async def settle(world: World, client: AsyncClient, kind: str) -> None:
    """Make the first payments of a life that is old enough to remember what was made in it."""
    for each in range(3):
        await world.pay(client, [order(kind, f"first {each}", 100 + each)])
        await anyio.sleep(2 * MINUTE)


async def restore(world: World, tables: dict[str, Any], pause: float = 10 * MINUTE) -> None:
    """Put a backup back after a while, in which no process is alive."""
    await anyio.sleep(pause)
    replace(world.url, tables)


async def forget(world: World, kind: str, *pauses: float, after: float = 10 * MINUTE) -> list[Order]:
    """Pay an order after each pause, put a backup of before back after another one, and return the orders."""
    orders = [order(kind, f"order-{number}", number) for number in range(1, len(pauses) + 1)]
    async with world.client() as client:
        await settle(world, client, kind)
        tables = dump(world.url)
        for pause, each in zip(pauses, orders, strict=True):
            await anyio.sleep(pause)
            await world.pay(client, [each])
    await restore(world, tables, after)
    return orders


async def is_stopped(world: World, client: AsyncClient, asked: Order) -> None:
    """Try an order again: it is not paid a second time."""
    before = world.posts(asked.key)
    said = await world.attempt(client, asked)
    assert isinstance(said, MobileMoneyError), said
    assert world.posts(asked.key) == before


async def say_restored(world: World, client: AsyncClient, of: str) -> None:
    """Say that a backup was restored, of an account or of the whole database."""
    if of == "account":
        await client.payments.restored(note="Asha restored the backup of noon")
    else:
        parts = account_store(SQLStore(world.url))
        await parts.decide(lambda journal, at: note_restored(journal.connection, "Asha: noon", at), world.utcnow)


@pytest.mark.parametrize("is_listed", [True, False])
async def test_an_open_payment_that_was_made_hides_no_forgotten_one(world: World, kind: str, is_listed: bool) -> None:
    """The operator identifies order-1 rightly: order-2's transaction is surplus at once, and order-2 is not paid."""
    first, second = order(kind, "order-1"), order(kind, "order-2")
    async with world.client() as client:
        await settle(world, client, kind)
        await world.lose(client, first, made=True)
        tables = dump(world.url)
        await anyio.sleep(20)
        await client.payments.identify("order-1", world.made("order-1")[0], note="Asha found the receipt")
        await world.pay(client, [second])
    await restore(world, tables)
    (one,), (two,) = world.made("order-1"), world.made("order-2")
    async with world.client() as client:
        if is_listed:
            await client.payments.reconcile()
            assert set((await world.get(client, "order-1")).candidates) == {one, two}
        await is_stopped(world, client, second)
        await client.payments.identify("order-1", one, note="Asha found the receipt")
        if is_listed:
            assert [each.transaction_id for each in await client.payments.unclaimed()] == [two]
        await is_stopped(world, client, second)
        with pytest.raises(StoreError):
            await client.payments.recover({"order-2": one}, note="Asha: wrong")
        await client.payments.recover({"order-2": two}, note="Asha: our books")
        await world.pay(client, [first, second])
        await world.hold(client, at_end=True)
    assert (world.posts("order-1"), world.posts("order-2")) == (1, 1)


async def test_a_word_waits_for_a_request_whose_process_died(world: World, kind: str) -> None:
    """The grace period begins when the request must have ended, and not when it was sent."""
    world.service.answer_after = 10 * GRACE
    async with anyio.create_task_group() as tasks:
        async with killed_at_end(world.client(timeout=40.0)) as dead:
            tasks.start_soon(world.attempt, dead, order(kind, "order-1"))
            await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    world.service.answer_after = 0.0
    async with world.client() as client:
        await anyio.sleep(GRACE + 30)
        with pytest.raises(StoreError, match="confirm it then"):
            await world.confirm(client, "order-1")
        await anyio.sleep(20)
        await world.confirm(client, "order-1")


async def test_a_process_that_goes_on_forgets_whose_a_transaction_was(world: World, kind: str) -> None:
    """The store goes back under it: what it has paid since is listed, though nothing shows the service's clock."""
    world.service.shows_clock = False
    async with world.client() as client:
        await world.lose(client, order(kind, "order-1"), made=False)
        tables = dump(world.url)
        await anyio.sleep(2 * MINUTE)
        await world.pay(client, [order(kind, "order-2", 2)])
        replace(world.url, tables)
        await world.reconcile(client, GRACE, GRACE, GRACE)
        assert [each.transaction_id for each in await client.payments.unclaimed()] == world.made("order-2")


async def test_a_lost_payment_that_is_confirmed_absent_hides_no_forgotten_one(world: World, kind: str) -> None:
    """A word about order-1 changes no transaction: that of order-2, which the backup has forgotten, still stops it."""
    events = list[Any]()
    first, second = order(kind, "order-1"), order(kind, "order-2")
    async with world.client() as client:
        await settle(world, client, kind)
        await world.lose(client, first, made=False)
        tables = dump(world.url)
        await anyio.sleep(GRACE + MINUTE)
        await world.confirm(client, "order-1")
        await world.pay(client, [second])
    await restore(world, tables)
    (two,) = world.made("order-2")
    async with world.client(on_event=events.append) as client:
        await client.payments.reconcile()
        assert (await world.get(client, "order-1")).state == PaymentState.UNKNOWN
        await world.confirm(client, "order-1")
        await is_stopped(world, client, second)
        await client.payments.recover({"order-2": two}, note="Asha: our books")
        await world.pay(client, [second])
        await world.hold(client, at_end=True)
    assert world.posts("order-2") == 1
    assert [event.transactions for event in events if isinstance(event, StoreBehind)] == [1]


async def test_a_forgotten_payment_that_became_a_candidate_is_forgotten_all_the_same(world: World, kind: str) -> None:
    """Nothing shows the service's clock, so the comparison waits, and order-2's transaction is first order-1's."""
    events = list[Any]()
    world.service.shows_clock = False
    first, second = order(kind, "order-1"), order(kind, "order-2")
    async with world.client() as client:
        await world.lose(client, first, made=False)
        tables = dump(world.url)
        await anyio.sleep(GRACE + MINUTE)
        await world.confirm(client, "order-1")
        await world.pay(client, [second])
    await restore(world, tables)
    (two,) = world.made("order-2")
    async with world.client(on_event=events.append) as client:
        await world.reconcile(client, 0.0, GRACE, GRACE)
        assert (await world.get(client, "order-1")).candidates == (two,)
        said = await world.attempt(client, order("disbursements", "another", 202))
        assert isinstance(said, StoreError) and f"what transaction {two} is: decide by" in str(said)
        await world.pay(client, [order("collections", "new", 200)])  # its row shows the clock
        await world.reconcile(client, GRACE, GRACE)
        await world.attempt(client, order(kind, "another", 201))
        await world.confirm(client, "order-1")
        await is_stopped(world, client, second)
        assert [(each.transaction_id, each.is_gap) for each in await client.payments.unclaimed()] == [(two, True)]
    assert [event.transactions for event in events if isinstance(event, StoreBehind)] == [1]


@pytest.mark.parametrize("is_explained", [True, False])
async def test_what_no_clock_can_place_stops_the_payments_of_its_kind(
    world: World, kind: str, is_explained: bool
) -> None:
    """Nothing tells whether order-2 was paid before the store went back: somebody has to say what the row is."""
    world.service.shows_clock = False
    second, other = order(kind, "order-2", 2), order("collections", "other", 3)
    async with world.client() as client:
        await world.lose(client, order(kind, "order-1"), made=False)
        tables = dump(world.url)
        await anyio.sleep(2 * MINUTE)
        await world.pay(client, [second])
    await restore(world, tables)
    (two,) = world.made("order-2")
    async with world.client() as client:
        await is_stopped(world, client, second)
        if kind == "collections":
            assert "may have forgotten" in str(await world.attempt(client, second))
        if is_explained:
            await client.payments.explain(two, note="Asha: of the old shop")
        await world.pay(client, [other])  # of another kind; its row shows the clock
        await anyio.sleep(10)
        if is_explained:
            await world.pay(client, [second])
        else:
            await is_stopped(world, client, second)
            await client.payments.recover({"order-2": two}, note="Asha: our books")
            await world.pay(client, [second])
    assert world.posts("order-2") == 1 + is_explained


async def test_what_another_process_has_placed_is_in_question_no_more(world: World) -> None:
    """A till's row of a kind, made in a life, stops that kind only until some process knows the clock."""
    world.service.shows_clock = False
    second, kind = order("collections", "order-2", 2), "collections"
    async with world.client() as one, world.client() as two:
        await world.lose(one, order(kind, "order-1"), made=False)
        await world.reconcile(one, *[4 * MINUTE] * 3)
        world.service.make(TYPES[kind], second.phone_number, str(second.amount), owner="till")
        await world.reconcile(one, *[4 * MINUTE] * 2)
        await anyio.sleep(10 * MINUTE)
        await is_stopped(world, one, second)
        await world.pay(two, [order(kind, "third", 3)])
        await anyio.sleep(20)
        await world.pay(two, [order(kind, "fourth", 4)])  # compares the store: the list shows the clock now
        await world.pay(one, [order(kind, "fifth", 5)])
        await anyio.sleep(10 * MINUTE)
        world.service.answer_list = lambda request: error(500, "DOWN")
        await world.pay(one, [second])
    assert world.posts("order-2") == 1


async def test_an_operator_may_say_whose_a_candidate_is(world: World, kind: str) -> None:
    """`recover` takes a transaction that another open payment may be, too."""
    first, second = order(kind, "order-1"), order(kind, "order-2")
    async with world.client() as client:
        await settle(world, client, kind)
        await world.lose(client, first, made=True)
        other = world.service.make(TYPES[kind], second.phone_number, str(second.amount), owner="order-2")
        await world.reconcile(client, 20.0, GRACE, GRACE)
        assert other.id in (await world.get(client, "order-1")).candidates
        await client.payments.recover({"order-2": other.id}, note="Asha: paid at the till, for order-2")
        await world.pay(client, [second])
        await world.reconcile(client, 5 * MINUTE)
        assert (await world.get(client, "order-1")).transaction_id == world.made("order-1")[0]
    assert world.posts("order-2") == 0


@pytest.mark.parametrize("is_explained", [True, False])
async def test_a_lost_payment_is_absent_once_its_candidate_is_decided(
    world: World, kind: str, is_explained: bool
) -> None:
    """Whether someone explains it or gives it to another key, the next looks do not wait for hours."""
    async with world.client() as client:
        await settle(world, client, kind)
        await world.lose(client, order(kind, "order-1"), made=False)
        await anyio.sleep(10 * MINUTE)
        await world.pay(client, [order(kind, "later", 200)])
        other = world.service.make(TYPES[kind], number(1), "5000")
        await world.reconcile(client, *[2 * MINUTE] * 8)
        assert (await world.get(client, "order-1")).candidates == (other.id,)
        if is_explained:
            await client.payments.explain(other.id, note="Asha: the till's")
        else:
            await client.payments.recover({"order-2": other.id}, note="Asha: paid at the till, for order-2")
        await world.reconcile(client, *[2 * MINUTE] * 3)
        record = await world.get(client, "order-1")
        assert (record.state, record.candidates, record.reason) == (PaymentState.ABSENT, (), None)


@pytest.mark.parametrize("pause", [20.0, 170.0])
async def test_a_payment_after_the_newest_one_of_its_kind_is_forgotten(world: World, kind: str, pause: float) -> None:
    """It looks as if a proxy had repeated the newest one, and is stopped all the same."""
    first, second = order(kind, "order-1"), order(kind, "order-2")
    async with world.client() as client:
        await settle(world, client, kind)
        await world.pay(client, [first])
        tables = dump(world.url)
        await anyio.sleep(pause)
        await world.pay(client, [second])
    await restore(world, tables, 8 * HOUR)
    async with world.client() as client:
        await is_stopped(world, client, second)
        assert [each.transaction_id for each in await client.payments.unclaimed()] == world.made("order-2")


async def test_a_refused_payment_of_the_backup_adopts_no_forgotten_one(world: World, kind: str) -> None:
    """order-1 was refused, and order-2 made five seconds later: its row is the only one in order-1's window."""
    first, second = order(kind, "order-1"), order(kind, "order-2")
    async with world.client() as client:
        await settle(world, client, kind)
        await world.answered(client, first, refuse_softly, made=False)
        tables = dump(world.url)
        await anyio.sleep(5)
        await world.pay(client, [second])
        await anyio.sleep(MINUTE)
    await restore(world, tables)
    async with world.client() as client:
        await world.reconcile(client, 0.0, GRACE, GRACE)
        assert (await world.get(client, "order-1")).transaction_id is None
        await is_stopped(world, client, second)
        await client.payments.recover({"order-2": world.made("order-2")[0]}, note="Asha: our books")
        await world.pay(client, [second])
        await world.hold(client, at_end=True)


async def test_both_types_are_compared_at_once(world: World, kind: str) -> None:
    """Whichever is paid first, and also where the backup has no payment with a known transaction."""
    forgotten = [order("collections", "sold", 1), order("disbursements", "paid out", 2)]
    async with world.client() as client:
        await world.lose(client, order("collections", "open", 9), made=False)
        tables = dump(world.url)
        await anyio.sleep(MINUTE)
        await world.pay(client, forgotten)
    await restore(world, tables)
    async with world.client() as client:
        await world.pay(client, [order(kind, "new", 200)])
        for each in forgotten:
            await is_stopped(world, client, each)


@pytest.mark.parametrize("sole_writer", [None, True])
async def test_a_till_is_no_restored_backup(world: World, kind: str, sole_writer: bool | None) -> None:
    """What another system pays while the store is in contact stops nothing, and is not taken for ours.

    Where there is said to be no other system, it is one of ours that nobody knows of.
    """
    events, world.sole_writer = list[Any](), sole_writer
    async with world.client(on_event=events.append) as client:
        await settle(world, client, kind)
        for each in range(4):
            world.service.make(TYPES[kind], number(1), "5000")
            await world.reconcile(client, 2 * MINUTE)
            await world.pay(client, [order(kind, f"shop {each}", 50 + each)])
            await world.read(client)
        assert not [event for event in events if isinstance(event, StoreBehind)]
        assert len(await client.payments.unclaimed()) == 4
        said = await world.attempt(client, order(kind, "same kind"))
        assert isinstance(said, DuplicateSuspected if sole_writer else Acknowledgement)


async def test_a_masked_row_stops_its_kind_where_all_is_ours(sqlite_file_url: str, kind: str) -> None:
    """As one with a whole number does, as far as it shows one; without any digit it would stop every customer."""
    world = attrs.evolve(make_world(sqlite_file_url), sole_writer=True)
    shown = {number(3): "********"}
    world.service.list.spell = lambda row: {
        **row,
        "phone_number": shown.get(row["phone_number"], f"XXXXXX{row['phone_number'][-4:]}"),
    }
    async with world.client() as client:
        await settle(world, client, kind)
        world.service.make(TYPES[kind], number(3), "5000")
        made = world.service.make(TYPES[kind], number(1), "5000")
        await world.read(client)
        await world.pay(client, [order(kind, "another customer's", 2)])
        said = await world.attempt(client, order(kind, "same kind"))
        assert isinstance(said, DuplicateSuspected), said
        assert said.transaction_id == made.id
        await client.payments.explain(made.id, note="Asha's phone")
        await world.pay(client, [order(kind, "same kind")])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sole_writer", [None, True])
async def test_what_a_till_made_at_night_stops_no_collection(
    sqlite_file_url: str, sole_writer: bool | None, masked: bool
) -> None:
    """Also where the list masks numbers; but it does once all payments are said to go through the store."""
    world, of_night = make_world(sqlite_file_url), order("collections", "of the night's kind")
    if masked:
        world.service.list.spell = lambda row: {**row, "phone_number": f"XXXXXX{row['phone_number'][-4:]}"}
    async with world.client() as client:
        await settle(world, client, "collections")
        for each in range(3):
            world.service.make("collection", number(70 + each), "5000")
        await world.read(client)
    await anyio.sleep(6 * HOUR)
    lost = world.service.make("collection", of_night.phone_number, str(of_night.amount))
    await anyio.sleep(6 * HOUR)
    world.sole_writer = sole_writer
    async with world.client() as client:
        await world.pay(client, [order("collections", "first of the day", 90)])
        assert lost.id in {each.transaction_id for each in await client.payments.unclaimed() if each.is_gap}
        await anyio.sleep(2 * HOUR)
        said = await world.attempt(client, order("disbursements", "refund"))
        assert isinstance(said, Acknowledgement), said
        said = await world.attempt(client, of_night)
        assert isinstance(said, DuplicateSuspected if sole_writer else Acknowledgement), said


async def test_what_a_till_made_before_the_backup_is_of_no_lost_time(world: World, kind: str) -> None:
    """The store was in contact then: only what was made after the backup is forgotten."""
    forgotten = order(kind, "forgotten", 3)
    async with world.client() as client:
        await settle(world, client, kind)
        await world.reconcile(client, *[2 * MINUTE] * 8)
        await world.pay(client, [order(kind, "newest", 4)])
        await anyio.sleep(MINUTE)
        till = world.service.make(TYPES[kind], number(2), "5000")
        await world.reconcile(client, *[2 * MINUTE] * 3)
        await world.read(client)
        tables = dump(world.url)
        await world.pay(client, [forgotten])
    await restore(world, tables)
    async with world.client() as client:
        await is_stopped(world, client, forgotten)
        shown = {each.transaction_id: each.is_gap for each in await client.payments.unclaimed()}
    assert shown == {till.id: False, world.made("forgotten")[0]: True}


async def test_a_word_that_the_store_was_restored(world: World, kind: str) -> None:
    """It is compared at once, although its backup is too young to be noticed; an audit names what is lost."""
    (forgotten,) = await forget(world, kind, 0, after=MINUTE)
    async with world.client() as client:
        await client.payments.restored(note="Asha restored the backup of noon")
        await is_stopped(world, client, forgotten)
        days = {"from_date": world.utcnow().date() - timedelta(days=1), "to_date": world.utcnow().date()}
        (difference,) = (await client.payments.audit(**days)).differences
        assert difference.commands[0][:2] == ("payments", "recover"), difference
        await anyio.sleep(GRACE)
        await world.pay(client, [order(kind, "new", 200)])
        await is_stopped(world, client, forgotten)


async def test_a_word_about_one_account_shortens_no_life_of_another(sqlite_file_url: str) -> None:
    """What that account has lost is no other's."""
    world = make_world(sqlite_file_url)
    of_other = sa.select(lives.c.until).where(lives.c.account == "other")
    async with world.client() as client, world.client(store=SQLStore(world.url, account="other")) as other:
        await settle(world, other, "collections")
        await world.reconcile(other, *[MINUTE] * 3)
        before = execute(world.url, of_other)
        await client.payments.restored(note="Asha restored the backup of noon")
    assert before == execute(world.url, of_other) != []


async def test_a_word_counts_from_the_first_payment_on_where_no_transaction_is_known(sqlite_file_url: str) -> None:
    """Whatever is paid until the comparison: it hides nothing that was forgotten before."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await world.lose(client, order("collections", "lost"), made=False)
        await client.payments.restored(note="Asha restored the backup of noon")
    ((first, known),) = execute(world.url, sa.select(accounts.c.first_record_at, accounts.c.known_until))
    assert first == known is not None


@pytest.mark.parametrize(("is_said_of", "later"), [("account", 0), ("database", 0), ("account", 6 * MINUTE)])
async def test_a_word_after_other_commands(world: World, kind: str, is_said_of: str, later: float) -> None:
    """Those that read the list have kept the life of a young backup going: nothing is remembered of the lost time.

    Nor does the newest forgotten payment count, which someone has imported.
    """
    first, second = await forget(world, kind, MINUTE, 45, after=MINUTE)
    async with world.client() as client:
        await client.payments.reconcile()
        if later:
            await anyio.sleep(3 * MINUTE)
            await client.payments.recover({second.key: world.made(second.key)[0]}, note="Asha: she showed it")
            await world.reconcile(client, later)
        await say_restored(world, client, is_said_of)
        await world.reconcile(client, GRACE)
        await is_stopped(world, client, first)


@pytest.mark.parametrize("is_said_of", ["account", None])
async def test_an_import_before_the_comparison_hides_no_other_payment(
    world: World, kind: str, is_said_of: str | None
) -> None:
    """What the store knew last is as of the word, or as of the first command after the restore."""
    first, second = await forget(world, kind, 20 * MINUTE, 20 * MINUTE)
    async with world.client() as client:
        if is_said_of is not None:
            await say_restored(world, client, is_said_of)
        await client.payments.recover({second.key: world.made(second.key)[0]}, note="Asha: the customer showed it")
        await world.reconcile(client, 0, GRACE)
        await is_stopped(world, client, first)


async def test_a_word_while_the_list_cannot_be_read(world: World, kind: str) -> None:
    """A collection has gone on meanwhile: what the store knew before it counts, as when that became due."""
    (forgotten,) = await forget(world, kind, 20 * MINUTE, after=20 * MINUTE)
    readable, world.service.answer_list = world.service.answer_list, lambda request: error(503, "DOWN")
    async with world.client() as client:
        await world.pay(client, [order("collections", "order-2", 2)])
        world.service.answer_list = readable
        await say_restored(world, client, "account")
        await world.reconcile(client, 0, GRACE)
        await is_stopped(world, client, forgotten)


async def test_a_command_that_adopts_nothing_ends_no_comparison(world: World, kind: str) -> None:
    """`payments reconcile --others-pay`, after the word: the shop has to compare its store all the same."""
    (forgotten,) = await forget(world, kind, 0, after=MINUTE)
    async with world.client() as client:
        await client.payments.restored(note="Asha restored the backup of noon")
    async with attrs.evolve(world, sole_writer=False).client() as command:
        await command.payments.reconcile()
    async with world.client() as client:
        await is_stopped(world, client, forgotten)


@pytest.mark.parametrize("kind", ["collections"])
async def test_a_collection_that_does_not_wait_for_a_dead_process_hides_nothing(world: World, kind: str) -> None:
    """A process died when it had just begun to compare; what is paid before another one does so shows nothing."""
    (forgotten,) = await forget(world, kind, 20 * MINUTE, after=20 * MINUTE)
    lease = TaskLease(account_store(SQLStore(world.url)).database, "default", "recovery", new_holder(None), 30.0)
    async with world.client() as client:
        await client.payments.list()  # the tables are open
        assert await lease.take()
        await world.pay(client, [order(kind, "order-2", 2)])
        await lease.give_back()  # it has ended
        await is_stopped(world, client, forgotten)


@pytest.mark.parametrize("is_said_of", ["account", "database"])
async def test_a_word_about_a_backup_from_before_the_first_payment(world: World, kind: str, is_said_of: str) -> None:
    """A store that knows of no payment may have forgotten all of them, however long ago they were made."""
    async with world.client() as client:
        await client.payments.reconcile()  # the account is known
        tables = dump(world.url)
        await world.pay(client, [first := order(kind, "order-1")])
    await restore(world, tables, 2 * HOUR)
    async with world.client() as client:
        await say_restored(world, client, is_said_of)
        await is_stopped(world, client, first)
        await anyio.sleep(2 * GRACE)
        await is_stopped(world, client, first)
        await world.pay(client, [order(kind, "new", 200)])


async def test_a_second_restored_backup_is_waited_for_as_the_first(world: World) -> None:
    """It holds what an earlier word has left: payouts wait anew, until the list shows what this one has lost."""
    second = order("disbursements", "order-2")
    async with world.client() as client:
        await settle(world, client, "disbursements")
        await client.payments.restored(note="Asha, on Monday")
        await client.payments.reconcile()
        await anyio.sleep(2 * GRACE)
        tables = dump(world.url)
        await world.pay(client, [order("disbursements", "between", 200)])
        await anyio.sleep(10 * MINUTE)
        world.service.list.lag = timedelta(seconds=100)
        await world.pay(client, [second])
    replace(world.url, tables)
    async with world.client() as client:
        await client.payments.restored(note="Asha, on Tuesday")
        await is_stopped(world, client, second)
        await anyio.sleep(2 * GRACE)
        await is_stopped(world, client, second)


async def test_a_word_during_a_comparison_is_not_lost(world: World) -> None:
    """What was compared before it does not suffice: payouts wait until the list shows what was lost."""
    second = order("disbursements", "order-2")
    async with world.client() as client:
        await settle(world, client, "disbursements")
    tables = dump(world.url)
    await anyio.sleep(10 * MINUTE)
    async with world.client() as client:
        world.service.list.lag = timedelta(seconds=100)
        await world.pay(client, [second])
    replace(world.url, tables)
    world.service.latency = 5.0
    async with world.client() as client, world.client() as operator, anyio.create_task_group() as tasks:
        tasks.start_soon(world.attempt, client, order("disbursements", "new", 200))
        await anyio.sleep(1)
        await operator.payments.restored(note="Asha restored the backup of noon")
        await anyio.sleep(20)
        await is_stopped(world, client, second)
        await anyio.sleep(2 * GRACE)
        await is_stopped(world, client, second)


async def test_a_clock_that_was_ahead_hides_no_restored_backup(world: World, kind: str) -> None:
    """A life that lasts into the future is none: the payments of the restored store are compared."""
    ahead, second = timedelta(), order(kind, "order-2")

    def clock() -> datetime:
        return world.utcnow() + ahead

    async with world.client(utcnow=clock) as client:
        await settle(world, client, kind)
        ahead = timedelta(hours=1)
        await world.pay(client, [order(kind, "ahead", 300)])
        ahead = timedelta()
    tables = dump(world.url)
    await anyio.sleep(15 * MINUTE)
    async with world.client(utcnow=clock) as client:
        await world.pay(client, [second])
    await restore(world, tables)
    async with world.client(utcnow=clock) as client:
        await is_stopped(world, client, second)
        await anyio.sleep(GRACE)
        await is_stopped(world, client, second)


@pytest.mark.slow
async def test_a_released_payment_is_sent_though_the_list_hides_another_one(world: World) -> None:
    """A person has decided: the listing must not show the payment itself, and nothing else is asked of it."""
    async with world.client() as client:
        await world.pay(client, [order("collections", "before", 500)])
        world.service.list = ListBehaviour(hide=lambda payment: payment.owner == "before")
        await anyio.sleep(MINUTE)
        await world.lose(client, order("collections", "order-1"), made=False)
        await anyio.sleep(MINUTE)
        await world.pay(client, [order("collections", "after", 501)])
        await anyio.sleep(GRACE + MINUTE)
        await world.confirm(client, "order-1")
        await world.pay(client, [order("collections", "order-1")])
