"""Stores behind a service that lags, has another clock or is away; processes that live on; other merchants' lists."""

import traceback
import uuid
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AsyncClient,
    DuplicateSuspected,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentCause,
    PaymentState,
    RateLimiter,
    SQLStore,
    StoreError,
    TransactionNotFound,
)
from mobilemoney_async.database.schema import accounts, payments
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.events import PaymentFinal, PaymentGivenUp, StoreBehind
from mobilemoney_async.payments.ownership import unclaimed as module
from mobilemoney_async.payments.records.queries import check_health
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sharing import poller as shared_poller
from tests.contract import samples
from tests.payments.second_world import DAY, GRACE, HOUR, KINDS, MINUTE, Order, World, make_world, number, order
from tests.payments.service import Vault, on_asyncio
from tests.payments.tables import edit
from tests.payments.test_recovery import forget, sell, stopped
from tests.support.databases import execute
from tests.support.scale import crossed
from tests.support.second_service import TOKEN, ListBehaviour, Payment, SecondService, error

pytestmark = pytest.mark.pairs

OTHER_TOKEN = "token.of.merchant-2"


def let_run(world: World, ahead: timedelta) -> None:
    """Let the service's clock be ahead of ours."""
    world.service.utcnow = lambda: world.utcnow() + ahead


# Stores that are behind their service


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ahead", "old", "newest_first", "kind"),
    [
        *(
            (ahead, 0, newest_first, KINDS[(number + newest_first) % 2])
            for number, ahead in enumerate([timedelta(minutes=4), timedelta(hours=3), timedelta(minutes=-4)])
            for newest_first in (True, False)
        ),
        *((timedelta(0), 10, newest_first, kind) for newest_first, kind in zip((True, False), KINDS, strict=True)),
    ],
    ids=str,
)
async def test_a_service_with_another_clock_or_a_long_list(
    world: World, kind: str, ahead: timedelta, old: int, newest_first: bool
) -> None:
    """Its clock may be off by minutes, or show another time zone: nothing that the store forgot is paid again.

    Nor where that is between pages of long before and the last one.
    """
    let_run(world, ahead)
    world.service.list = ListBehaviour(newest_first=newest_first, page_size=4)
    async with world.client() as client:
        await world.pay(client, [order(kind, f"old {each}", 300 + each) for each in range(old)])
        await anyio.sleep(HOUR if old else 0)
    orders = await sell(world, kind, forgotten=8 if old else 3)
    await anyio.sleep(10 * MINUTE)
    async with world.client() as client:
        await stopped(world, client, orders)
        await world.pay(client, [order(kind, "new", 200)])


@pytest.mark.parametrize("is_said", [True, False])
async def test_a_forgotten_row_without_a_time_stops_its_kind(world: World, *, is_said: bool) -> None:
    """It may be of any time, also where only the other rows show the loss."""
    orders = await sell(world, "disbursements", forgotten=2)
    (lost,) = world.made(orders[0].key)
    world.service.list = ListBehaviour(spell=lambda row: {**row, "created_at": None} if row["id"] == lost else row)
    await anyio.sleep(10 * MINUTE)
    async with world.client() as client:
        if is_said:
            await client.payments.restored(note="Asha: backup of noon")
            await world.reconcile(client, 2 * GRACE, 2 * GRACE)
        await stopped(world, client, orders)
        await world.pay(client, [order("disbursements", "new", 300)])


@pytest.mark.slow
async def test_what_is_paid_until_a_comparison_is_repeated_hides_no_loss(world: World) -> None:
    """The list is late by 25 minutes, and collections go on: the repetition begins where the first comparison did."""
    orders = await sell(world, "disbursements", forgotten=2)
    world.service.list = ListBehaviour(lag=timedelta(minutes=25))
    async with world.client(store=SQLStore(world.url, grace=30 * MINUTE)) as client:
        await client.payments.restored(note="Asha: backup of noon")
        assert isinstance(await world.attempt(client, orders[0]), StoreError)
        for each in range(8):
            await anyio.sleep(5 * MINUTE)
            await world.pay(client, [order("collections", f"new {each}", 300 + each)])
            await client.payments.reconcile()
        await stopped(world, client, orders)


@pytest.mark.parametrize("is_said", [True, False])
async def test_a_store_that_went_backwards_is_told_though_another_loss_was_told_today(
    world: World, *, is_said: bool
) -> None:
    """Where another system pays, a loss that nothing shows is told once a day; someone's word is not put off."""
    events = list[Any]()
    orders = await sell(world, "collections", forgotten=1)
    now = world.utcnow()
    edit(world.url, accounts.update().values(lost_at=now, others_until=now + timedelta(days=9)))
    await anyio.sleep(10 * MINUTE)
    async with world.client(on_event=events.append) as client:
        if is_said:
            await client.payments.restored(note="Asha: backup of noon")
        await world.pay(client, [order("collections", "new", 300)])
        await world.reconcile(client, 2 * GRACE)
        assert [each.is_gap for each in await client.payments.unclaimed()] == [True]
    assert [event.transactions for event in events if isinstance(event, StoreBehind)] == [1] * is_said
    assert world.posts(orders[0].key) == 1


async def test_where_others_pay_no_repeated_comparison_is_left(world: World) -> None:
    """It would begin at its old time once the setting is taken back, and count all that others have paid as lost."""
    columns = (accounts.c.again_at, accounts.c.known_until, accounts.c.went_backwards)
    orders = await sell(world, "collections", forgotten=1)
    await anyio.sleep(10 * MINUTE)
    async with world.client() as client:
        await stopped(world, client, orders)
    (held,) = execute(world.url, sa.select(*columns))
    assert None not in held
    async with world.client(store=SQLStore(world.url, grace=GRACE, sole_writer=False)) as client:
        await world.pay(client, [order("collections", "new", 300)])
    assert execute(world.url, sa.select(*columns)) == [(None, None, False)]


async def test_a_disbursement_that_waits_for_the_rate_limit_stops_at_the_word(sqlite_file_url: str) -> None:
    """It has passed the check of the store before someone said that a backup was restored."""
    world = make_world(sqlite_file_url)  # PostgreSQL shares the limit by its own clock
    async with world.client(rate_limiter=RateLimiter(per_minute=2, burst=1)) as client, world.client() as operator:
        await world.pay(client, [order("disbursements", "first")])
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(world.attempt, client, order("disbursements", "waits", 2))
            await anyio.sleep(1)
            await operator.payments.restored(note="Asha: backup of noon")
        assert (world.posts("waits"), await operator.payments.get("waits")) == (0, None)


async def test_a_count_of_more_than_was_asked_for_holds_up_nobody_with_older_payments(world: World) -> None:
    """A service may count all rows, whatever days are asked for: older ones show that the list goes no further."""
    world.service.list = ListBehaviour(total_count=lambda count: count + 7)
    async with world.client() as client:
        await world.pay(client, [order("collections", "old")])
        await anyio.sleep(5 * DAY)
        await world.pay(client, [order("disbursements", "newest", 2)])
        await anyio.sleep(HOUR)
        await client.payments.restored(note="Asha: to be sure")
        await world.reconcile(client, 1, 2 * GRACE)
        await world.pay(client, [order("disbursements", "new", 3)])


def flawed(flaw: str, lost: str) -> ListBehaviour:
    """Return a list that is not whole, for the sake of one row."""
    flaws = {
        "hidden, though counted": ListBehaviour(hide=lambda each: each.id == lost, total_count=lambda count: count + 1),
        "without an amount": ListBehaviour(spell=lambda row: {**row, "amount": None} if row["id"] == lost else row),
        "without an id": ListBehaviour(spell=lambda row: {**row, "id": None} if row["id"] == lost else row),
        "on no page": ListBehaviour(page_size=1, cut=lambda page, rows: rows if page == 1 else []),
    }
    return flaws[flaw]


@pytest.mark.parametrize(
    ("flaw", "is_said"), crossed(["hidden, though counted", "without an amount", "on no page"], [True, False])
)
async def test_a_list_that_is_not_whole_ends_no_comparison(world: World, flaw: str, *, is_said: bool) -> None:
    """After an operator's word, or a row of the loss: what it does not show may be forgotten. A collection goes on."""
    orders = await sell(world, "disbursements", forgotten=2)
    (lost,) = world.made(orders[0].key)
    await anyio.sleep(10 * MINUTE)
    world.service.list = flawed(flaw, lost)
    async with world.client() as client:
        if is_said:
            await client.payments.restored(note="Asha: backup of noon")
        await world.reconcile(client, 2 * GRACE, 2 * GRACE)
        await stopped(world, client, [*orders, order("disbursements", "new", 300)])
        await world.pay(client, [order("collections", "other", 301)])
        world.service.list = ListBehaviour()
        await world.reconcile(client, MINUTE, 2 * GRACE)
        await stopped(world, client, orders)
        assert {each.transaction_id for each in await client.payments.unclaimed()} >= {lost}
        await world.pay(client, [order("disbursements", "new", 300)])


@pytest.mark.slow
@pytest.mark.parametrize("flaw", ["hidden, though counted", "without an id"])
async def test_someone_who_has_compared_the_list_ends_a_comparison_that_no_machine_ends(
    world: World, flaw: str
) -> None:
    """Disbursements go on in each process. What was found stops its kind, and so does what the list shows later."""
    hidden, found = await sell(world, "disbursements", forgotten=2)
    ((lost,), (shown,)) = (world.made(each.key) for each in (hidden, found))
    word, new = "Asha: compared", [order("disbursements", f"new {each}", 300 + each) for each in range(3)]
    await anyio.sleep(10 * MINUTE)
    world.service.list = flawed(flaw, lost)
    async with world.client() as client, world.client() as other:
        with pytest.raises(StoreError):  # none is due
            await client.payments.restored(note=word, compared=True)
        await client.payments.restored(note="Asha: backup of noon")
        for each in (client, other):
            await world.reconcile(each, 2 * GRACE, DAY)
            await stopped(world, each, new[:1])
        days = {"from_date": world.utcnow().date() - timedelta(days=2), "to_date": world.utcnow().date()}
        commands = [step for each in (await client.payments.audit(**days)).differences for step in each.commands]
        assert any(step[:3] == ("payments", "restored", "--compared") for step in commands)
        await client.payments.restored(note=word, compared=True)
        assert {each.transaction_id for each in await client.payments.unclaimed() if each.is_gap} == {shown}
        await stopped(world, other, [found])
        await world.pay(other, new[:1])
        await world.pay(client, new[1:2])
        with pytest.raises(StoreError):
            await client.payments.restored(note=word, compared=True)
        world.service.list = ListBehaviour()
        await world.reconcile(client, HOUR, 2 * GRACE)
        await world.read(client)
        await stopped(world, other, [hidden, found])
        await world.pay(other, new[2:])


@pytest.mark.parametrize(("is_whole", "is_backup_of_then"), [(True, False), (False, False), (False, True)])
async def test_a_word_that_someone_has_compared_counts_once_grace_is_over(
    world: World, is_whole: bool, is_backup_of_then: bool
) -> None:
    """Earlier the list need not show what is lost, to anyone; and one that is whole by then needs no word."""
    orders = await sell(world, "disbursements", forgotten=1)
    (lost,) = world.made(orders[0].key)
    word, new = "Asha: compared", order("disbursements", "new", 300)
    if not is_whole:
        world.service.list = flawed("hidden, though counted", lost)
    async with world.client() as client:
        if is_backup_of_then:  # taken while a comparison was to be repeated
            edit(world.url, accounts.update().values(went_backwards=True, again_at=world.utcnow() - timedelta(days=1)))
        else:
            await client.payments.restored(note="Asha: backup of noon")
        for seconds in (5, GRACE / 4, GRACE / 4):
            await anyio.sleep(seconds)
            with pytest.raises(StoreError):
                await client.payments.restored(note=word, compared=True)
            await stopped(world, client, [*orders, new])
        await anyio.sleep(GRACE)
        if is_whole:
            await stopped(world, client, orders)
        else:
            await client.payments.restored(note=word, compared=True)
        await world.pay(client, [new])


@pytest.mark.parametrize("ahead", [timedelta(hours=3), timedelta(hours=-3)], ids=str)
@pytest.mark.parametrize("shows_clock", [True, False])
async def test_what_no_list_has_shown_is_as_old_as_the_service_s_clock_says(
    sqlite_file_url: str, ahead: timedelta, shows_clock: bool
) -> None:
    """It may be a payment on its way for minutes, not for hours; the clock is that of own payments, or of an answer."""
    world = make_world(sqlite_file_url)
    let_run(world, ahead)
    async with world.client() as client:
        await world.pay(client, [order("collections")])
        world.service.finish(world.service.payments[0])
        if not shows_clock:
            world.service.shows_clock = False
            async with client.poller(timeout=60) as poller:
                poller.track(world.service.payments[0].id)
                await poller.wait(world.service.payments[0].id)
        made = world.service.make("collection", number(2), "5000")
        with pytest.raises(StoreError, match="on its way"):
            await client.payments.recover({"till": made.id}, note="Asha: our books")
        await anyio.sleep(2 * GRACE)
        await client.payments.recover({"till": made.id}, note="Asha: our books")
    world.service.shows_clock, world.url = False, f"{world.url}-empty"
    await anyio.sleep(4 * HOUR)
    async with world.client() as client:  # neither shows it
        await client.payments.recover({"till": made.id}, note="Asha: our books")


async def test_the_clock_of_a_payment_of_last_week_says_nothing_of_today_s(sqlite_file_url: str) -> None:
    """A service whose clock was put right since shows a transaction of this minute, which may be on its way."""
    world = make_world(sqlite_file_url)
    let_run(world, timedelta(hours=3))
    world.service.shows_clock, world.service.finish_after = False, 1.0
    async with world.client() as client:
        await world.pay(client, [order("collections")])
        async with client.poller(resume=True) as poller:
            assert len([each async for each in poller.outcomes()]) == 1
        let_run(world, timedelta(0))
        await anyio.sleep(8 * DAY)
        made = world.service.make("collection", number(2), "5000")
        with pytest.raises(StoreError, match="on its way"):
            await client.payments.recover({"till": made.id}, note="Asha: our books")


async def test_the_clock_that_one_answer_shows_counts_for_all_imports(sqlite_file_url: str) -> None:
    """Three hours ahead, it would make of each a payment on its way."""
    world = make_world(sqlite_file_url)
    let_run(world, timedelta(hours=3))

    def show_clock_once(request: httpx.Request) -> None:
        world.service.shows_clock = request.url.path.endswith(made[0].id)

    async with world.client() as client:
        made = [world.service.make("collection", number(each), "5000") for each in (2, 3)]
        await anyio.sleep(10 * MINUTE)
        world.service.answer_lookup = show_clock_once
        found = await client.payments.recover({each.id: each.id for each in made}, note="Asha: our books")
        assert len(found) == 2


@pytest.mark.parametrize(("kind", "how"), crossed(KINDS, ["forgotten", "identified", "recovered", "queued"]))
async def test_a_transaction_of_a_forgotten_request_is_not_compared_by_its_time(
    world: World, kind: str, how: str
) -> None:
    """Also where its key was used again: the list shows it long before that request, and hides or alters nothing.

    Without that, the store knows its time by the service's clock only.
    """
    let_run(world, timedelta(hours=3 * (kind == "disbursements")))
    world.sole_writer, twice = False, order(kind, "twice")
    async with world.client() as client:
        await world.pay(client, [order(kind, "known", 100), twice])
        forget(world.url, "twice")
        await anyio.sleep(DAY)
        await world.pay(client, [order(kind, "before", 101)])
        if how == "queued":
            asked: dict[str, Any] = {
                "type": f"{kind.removesuffix('s')}",
                "phone_number": twice.phone_number,
                "amount": twice.amount,
            }
            await client.payments.enqueue(**asked, idempotency_key=twice.key)
        elif how != "forgotten":
            await world.lose(client, twice, made=False)
        await anyio.sleep(10 * MINUTE)
        if how == "identified":
            await client.payments.identify(twice.key, world.made("twice")[0], note="Asha: our books")
        else:
            await client.payments.recover({twice.key: world.made("twice")[0]}, note="Asha: our books")
        await world.lose(client, order(kind, "lost", 200), made=False)
        await anyio.sleep(10 * MINUTE)
        await world.pay(client, [order(kind, "later", 201)])
        await world.reconcile(client, 2 * GRACE, HOUR)
        assert (await world.get(client, "lost")).state == PaymentState.ABSENT


async def test_a_payment_that_was_identified_is_compared(world: World, client: AsyncClient, kind: str) -> None:
    """A list that hides it may hide a lost one, too."""
    await world.pay(client, [order(kind, "before", 101)])
    await world.lose(client, order(kind, "named"), made=True)
    (name,) = world.made("named")
    await client.payments.identify("named", name, note="Asha: our books")
    await world.lose(client, order(kind, "lost", 200), made=False)
    await world.pay(client, [order(kind, "later", 201)])
    world.service.list.hide = lambda payment: payment.id == name
    await world.reconcile(client, 2 * GRACE, HOUR)
    record = await world.get(client, "lost")
    assert (record.state, record.cause) == (PaymentState.UNKNOWN, PaymentCause.HIDDEN)


@pytest.mark.slow
async def test_an_empty_list_shows_nothing(world: World, kind: str) -> None:
    """A list without any payment of ours stops nothing; but it is compared once more after the grace period."""
    orders = await sell(world, kind)
    await anyio.sleep(10 * MINUTE)
    world.service.list = ListBehaviour(empty_until=world.utcnow() + timedelta(seconds=10))
    async with world.client() as client:
        await world.pay(client, [order(kind, "new", 200)])
        await anyio.sleep(GRACE)
        await stopped(world, client, orders)
        await world.pay(client, [order(kind, "another", 201)])


async def test_a_list_that_is_cut_stops_nothing(world: World, kind: str) -> None:
    """A list of one day shows nothing of a merchant that rested for three, and costs two comparisons."""
    async with world.client() as client:
        await world.pay(client, [order(kind, "old")])
    await anyio.sleep(3 * DAY)
    world.service.list = ListBehaviour(most_days=0.001)
    async with world.client() as client:
        for last in range(5):
            await world.pay(client, [order(kind, f"new {last}", 2 + last)])
            await anyio.sleep(GRACE + 1)
        assert world.service.lists == 2


@pytest.mark.costly("runs lines of payments/ownership/unclaimed.py that no quick test runs")
async def test_a_list_that_is_read_before_the_first_payment(world: World, kind: str) -> None:
    """A poller may list the forgotten payments long before one is tried again: until then they are strangers."""
    orders = await sell(world, kind)
    await anyio.sleep(10 * MINUTE)
    async with world.client() as client:
        await world.read(client)
        await world.read(client)
        assert {each.is_gap for each in await client.payments.unclaimed()} == {False}
        await stopped(world, client, orders)
        assert {each.is_gap for each in await client.payments.unclaimed()} == {True}


@pytest.mark.costly("runs lines of payments/ownership/unclaimed.py that no quick test runs")
async def test_rows_that_were_reported_before_a_living_process_looks(world: World, kind: str) -> None:
    """Rolled back under two living processes, one of which reports its own lost payments first: all are stopped."""
    orders = [order(kind, f"forgotten {each}", each) for each in range(5)]
    async with world.client() as client, world.client() as other:
        await world.pay(client, [order(kind, "kept", 100)])
        await world.read(other)
        for each in orders:
            await anyio.sleep(1)
            await world.pay(client, [each])
        forget(world.url, "forgotten%")
        await world.read(other)
        assert len(await other.payments.unclaimed()) == len(orders)
        await stopped(world, client, orders)
        assert {each.is_gap for each in await other.payments.unclaimed()} == {True}


async def test_a_rollback_during_a_payment(world: World, client: AsyncClient, kind: str) -> None:
    """Its result has no record any more: the call says so, and the process goes on."""
    lost = order(kind, "forgotten", 1)
    await world.pay(client, [order(kind, "kept", 100)])
    await anyio.sleep(MINUTE)
    world.service.answer_after = 20.0
    answers: list[Any] = []

    async def pay() -> None:
        answers.append(await world.attempt(client, lost))

    async with anyio.create_task_group() as group:
        group.start_soon(pay)
        await anyio.sleep(5)
        forget(world.url, "forgotten%")
    assert isinstance(answers[0], OutcomeUnknown)
    assert world.made("forgotten")[0] in str(answers[0])
    world.service.answer_after = 0.0
    await stopped(world, client, [lost])
    await anyio.sleep(GRACE)
    await world.pay(client, [order(kind, "new", 200)])
    await stopped(world, client, [lost])


async def test_a_merchant_whose_other_systems_pay_ends_the_stop(world: World, kind: str) -> None:
    """What another till made in a silent time stops its kind; the message names `sole_writer=False`, which ends it."""
    async with world.client() as client:
        await world.pay(client, [order(kind, "first", 100)])
    await anyio.sleep(10 * MINUTE)
    world.service.make(order(kind).kind.removesuffix("s"), number(1), "5000")
    async with world.client() as client:
        said = await world.attempt(client, order(kind))
        assert isinstance(said, DuplicateSuspected)
        assert "sole_writer=False" in str(said)
    async with world.client(store=SQLStore(world.url, grace=GRACE, sole_writer=False)) as client:
        await world.pay(client, [order(kind)])


@pytest.mark.parametrize("deadline", [None, 4.0])
async def test_a_list_that_hangs_does_not_hold_up_collections(world: World, deadline: float | None) -> None:
    """A collection waits for ten seconds, or for half its deadline, and the next ones not at all."""
    async with world.client() as client:
        await world.pay(client, [order("collections", "first", 100)])
    await anyio.sleep(10 * MINUTE)
    world.service.latency = 1000.0
    async with world.client() as client:
        for each, patience in enumerate((10.0 if deadline is None else deadline / 2, 0.0, 0.0)):
            began = anyio.current_time()
            await world.pay(client.with_options(deadline=deadline), [order("collections", f"k{each}", each)])
            assert patience <= anyio.current_time() - began < patience + 0.1
        said = await world.attempt(client, order("disbursements", "payout", 9))
        assert "no answer came in time" in str(said)


async def test_what_the_store_knows_is_not_forgotten(store_url: str, kind: str) -> None:
    """Neither a transaction that an acknowledgement named wrongly, nor one that was refused softly days ago."""
    world, events = make_world(store_url), list[Any]()
    async with world.client(on_event=events.append) as client:
        await world.pay(client, [order(kind, "first", 100)])
        await world.answered(client, order(kind, "refused", 1), lambda request, payment: error(403, "NEW"), made=True)
        await anyio.sleep(3 * DAY)
        await world.pay(client, [order(kind, "later", 101)])

        def shrink(row: dict[str, Any]) -> dict[str, Any]:
            world.service.payments[-1].amount = "4000"
            return {**row, "amount": "4000"}

        world.service.acknowledge = shrink
        said = await world.attempt(client, Order("named", kind, number(2), 7000))
        assert isinstance(said, OutcomeUnknown)
        world.service.acknowledge = lambda row: row
        await world.read(client)
        await anyio.sleep(10 * MINUTE)
    async with world.client(on_event=events.append) as client:
        await world.pay(client, [order(kind, "last", 102)])
        assert world.made("named")[0] not in {each.transaction_id for each in await client.payments.unclaimed()}
    assert not [event for event in events if isinstance(event, StoreBehind)]


@pytest.mark.slow
async def test_a_gap_leaves_room_for_payments_made_twice(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of forgotten transactions do not keep a payment that was made twice from being reported."""
    monkeypatch.setattr(module, "_MOST", 2)
    world, twice = make_world(store_url), order("collections", "twice", 50)
    await sell(world, "collections")
    await anyio.sleep(HOUR)
    async with world.client() as client:
        await world.pay(client, [order("collections", "new", 200)])
        await anyio.sleep(HOUR)
        world.service.repeats = 2
        await world.pay(client, [twice])
        world.service.repeats = 1
        await world.read(client)
        assert [each.fits_key for each in await client.payments.unclaimed() if not each.is_gap] == ["twice"]


# Another merchant


def two_merchants(url: str) -> World:
    world = make_world(url)
    world.service.merchants = {TOKEN: "merchant-1", OTHER_TOKEN: "merchant-2"}
    return world


async def test_another_merchants_poller_concludes_nothing(store_url: str) -> None:
    """It does not begin, since it would ask for the payments of all processes; nor does `identify`."""
    world = two_merchants(store_url)
    async with world.client() as client:
        await world.pay(client, [order("collections")])
    async with world.client(auth=OTHER_TOKEN) as client:
        with pytest.raises(StoreError, match="another merchant"):
            async with client.poller():
                raise AssertionError
        with pytest.raises(StoreError, match="another merchant"):
            await client.payments.identify("k", "t-000001", note="Asha")


@pytest.mark.parametrize("kind", ["collections", "disbursements"])
async def test_payments_wait_for_one_check_of_their_credentials(sqlite_file_url: str, kind: str) -> None:
    """Not each for a check of its own, one after the other, where the inquiry is away."""
    world = two_merchants(sqlite_file_url)
    async with world.client() as client, world.client(auth=OTHER_TOKEN) as other:
        await world.pay(client, [order("collections", "first", 1)])
        world.service.answer_lookup = lambda request: error(503, None)
        for count in (1, 4):
            await anyio.sleep(10)  # for as long the failure of the last one counts
            world.service.lookups, began_at = 0, anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for each in range(count):
                    tasks.start_soon(world.attempt, other, order(kind, f"{count}.{each}", 10 * count + each))
            took = anyio.current_time() - began_at
            assert (world.service.lookups, took < 20) == (4, True)


async def test_a_transaction_of_another_amount_ends_no_payment(
    sqlite_file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another service may use the same ids: what it shows of them is no final state, in the store or as an outcome."""
    world, events = make_world(sqlite_file_url), list[Any]()
    async with world.client(on_event=events.append) as client:
        await world.pay(client, [order("collections"), order("collections", "k2", 2), order("collections", "k3", 3)])
        first, second, third = world.service.payments
        first.amount, second.phone_number, third.type = "777", "+255680000000", "disbursement"
        for payment in world.service.payments:
            world.service.finish(payment)
        async with client.poller(timeout=60) as poller:
            for payment in world.service.payments:
                poller.track(payment.id)
            outcomes = [each async for each in poller.outcomes()]
            assert {(each.transaction, type(each.error)) for each in outcomes} == {(None, StoreError)}
            assert sorted(each.transaction_id for each in outcomes) == [each.id for each in world.service.payments]
            with pytest.raises(StoreError, match="payment 'k': transaction t-000001 has another"):
                await poller.wait(first.id)
            (record, *_) = unresolved = await client.payments.unresolved()
            assert [(each.state, each.error) for each in unresolved] == [
                (PaymentState.ACKNOWLEDGED, f"transaction {each.id} has another type, amount, currency or phone number")
                for each in world.service.payments
            ]
            assert record.reason == record.error
            # It may be tracked again, and is final once the service is right.
            poller.track(first.id)
            with pytest.raises(StoreError):
                await poller.wait(first.id)
            first.amount = "5000"
            poller.track(first.id)
            assert (await poller.wait(first.id)).succeeded
        states = [each.state for each in await client.payments.list()]
        assert states == [PaymentState.FINAL, PaymentState.ACKNOWLEDGED, PaymentState.ACKNOWLEDGED]
        assert [each.key for each in await client.payments.unresolved()] == ["k2", "k3"]
        ended = await world.get(client, "k")
        assert [entry.what for entry in ended.history] == ["sent", "acknowledged", "contradiction", "final"]
        assert (ended.reason, ended.error) == (None, None)
        assert client._store is not None
        now = world.utcnow()
        health = await client._store.account_store.database.peek(lambda each: check_health(each, "default", now))
        assert health.unresolved == 2
    assert caplog.text.count("has another type, amount, currency or phone number") == 4
    assert [each.error for each in events if isinstance(each, PaymentGivenUp)] == ["StoreError"] * 4
    assert len([each for each in events if isinstance(each, PaymentFinal)]) == 1


@pytest.mark.slow
async def test_all_processes_hear_that_a_final_state_contradicts_the_record(world: World) -> None:
    """The one that asks the service for all, and the others."""
    async with world.client() as client, world.client() as other:
        await world.pay(client, [order("collections")])
        (payment,) = world.service.payments
        async with client.poller(timeout=60) as first, other.poller(timeout=60) as second:
            first.track(payment.id)
            second.track(payment.id)
            await anyio.sleep(10)
            payment.amount = "777"
            world.service.finish(payment)
            for poller in (first, second):
                with pytest.raises(StoreError, match="has another type, amount, currency or phone number"):
                    await poller.wait(payment.id)


async def test_a_message_that_cannot_be_read_back_stalls_no_other_payment(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error of its payment, with a line in the log; the state itself is in the record."""
    world, events = make_world(store_url), list[Any]()
    monkeypatch.setattr(shared_poller, "dump", lambda shown: "{" if shown.id == "t-000001" else dump(shown))
    async with world.client(on_event=events.append) as client:
        await world.pay(client, [order("collections", f"k{each}", each) for each in (1, 2)])
        async with client.poller(timeout=60) as poller:
            for payment in world.service.payments:
                poller.track(payment.id)
            await anyio.sleep(5)  # open states go the same way, and are left out
            for payment in world.service.payments:
                world.service.finish(payment)
            outcomes = {each.transaction_id: each async for each in poller.outcomes()}
        assert isinstance(outcomes["t-000001"].error, StoreError)
        assert outcomes["t-000002"].transaction is not None
        assert [each.error for each in events if isinstance(each, PaymentGivenUp)] == ["StoreError"]
        assert {each.state for each in await client.payments.list()} == {PaymentState.FINAL}
    assert "message about transaction t-000001: the store holds a transaction that cannot be read" in caplog.text


async def test_a_time_that_someone_has_edited_is_an_error_of_ours(sqlite_file_url: str) -> None:
    """SQLite keeps any text as a time. Nothing of the text is shown, and payments of other keys go on."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await world.pay(client, [order("collections", f"k{each}", each) for each in (1, 2)])
        execute(world.url, "UPDATE mobilemoney_payment_records SET changed_at = '+255681234567' WHERE key = 'k1'")
        with pytest.raises(StoreError, match="a row that cannot be read") as caught:
            await client.payments.list()
        assert "681234567" not in "".join(traceback.format_exception(caught.value))
        assert await client.payments.get("k2") is not None


@pytest.mark.costly("runs lines of payments/ownership/comparison.py that no quick test runs")
@on_asyncio
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("accounts", "credentials", b"\xff"),
        ("accounts", "due_since", "0001-01-01 00:00:00.000000"),
        ("accounts", "due_since", "9999-12-31 23:59:59.000000"),
        ("logins", "good_until", "later"),
        ("logins", "refused_anew", ""),
        ("logins", "held_until", b"\xff"),
        ("schema", "version", "{"),
        ("schema", "version", 0),
    ],
)
async def test_a_row_of_the_account_that_someone_has_edited_is_an_error_of_ours(
    sqlite_file_url: str, table: str, column: str, value: Any
) -> None:
    """SQLite keeps any value in a column. Nothing is sent while the row makes no sense."""
    sandbox = Sandbox()
    auth = (sandbox.email, sandbox.password)
    async with sandbox.client(store=sqlite_file_url, auth=auth) as client:
        await client.collections.create(number(1), 5_000, idempotency_key="k1")
    execute(sqlite_file_url, f"UPDATE mobilemoney_{table} SET {column} = :value", {"value": value})
    async with sandbox.client(store=sqlite_file_url, auth=auth) as client:
        with pytest.raises(StoreError, match=r"cannot be read|does not show the version") as caught:
            await client.collections.create(number(2), 5_000, idempotency_key="k2")
    assert caught.value.outcome == "not_sent"
    assert len(sandbox.transactions) == 1


async def test_a_payment_of_the_first_day_of_the_calendar_stops_no_other(world: World) -> None:
    """A row that was edited: the store is compared with its service all the same, and payments go on."""
    async with world.client() as client:
        await world.pay(client, [order("collections", "k1", 1)])
    edit(world.url, payments.update().values(sent_at=datetime.min.replace(tzinfo=UTC)))
    await anyio.sleep(2 * HOUR)
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "k2", 2)])


async def test_a_record_that_cannot_be_read_hides_no_other(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its state counts, its error names the fault, and the log has one line; a row without sense is a `StoreError`."""
    world, account = make_world(store_url), f"account-{uuid.uuid4()}"  # the log has each once in a process
    async with world.client(store=SQLStore(store_url, account=account, grace=GRACE)) as client:
        await world.pay(client, [order("collections", f"k{each}", each) for each in (1, 2)])
        async with client.poller(timeout=60) as poller:
            for payment in world.service.payments:
                world.service.finish(payment)
                poller.track(payment.id)
            assert len([each async for each in poller.outcomes()]) == 2
        row = payments.update().where(payments.c.account == account, payments.c.key == "k1")
        edit(store_url, row.values(transaction="{"))
        for _ in range(2):
            first, second = await client.payments.list()
            assert (first.state, str(first.status), first.transaction) == (PaymentState.FINAL, "SUCCESS", None)
            assert first.error == "the store holds a transaction that cannot be read"
            assert second.transaction is not None
        await client.payments.reconcile()
        edit(store_url, row.values(state="odd"))
        with pytest.raises(StoreError, match="cannot read its payment 'k1'"):
            await client.payments.get("k1")
        for amount in ("1e999999999", "9" * 26, "1_000", "+250", "NaN", ""):
            edit(store_url, row.values(state="FINAL", amount=amount))
            with pytest.raises(StoreError, match="cannot read its payment 'k1'"):
                await client.payments.get("k1")
        edit(store_url, row.values(amount="250", candidates="[" * 100_000))
        with pytest.raises(StoreError, match="a row that cannot be read") as caught:
            await client.payments.list()
        assert caught.value.outcome == "not_sent"
    assert (
        caplog.text.count(f"payment 'k1' of account {account!r}: the store holds a transaction that cannot be read")
        == 1
    )


@pytest.mark.slow
async def test_a_merchant_is_known_from_its_first_final_state_on(
    world: World, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """At no extra request: another merchant's state under the id of a later payment ends that payment no more.

    What is shown under an id that was only found in the list teaches nothing, and `rebind` forgets.
    """
    await world.lose(client, order("collections", "found", 3), made=True)
    await world.reconcile(client, 5.0)
    await world.pay(client, [order("collections", "k1", 1), order("collections", "k2", 2)])
    found, first, second = world.service.payments
    found.merchant_id = second.merchant_id = "merchant-2"
    world.service.list = ListBehaviour(all_merchants=True)
    async with client.poller(timeout=60) as poller:
        for payment in (found, first, second):
            world.service.finish(payment)
            poller.track(payment.id)
            if payment is second:
                with pytest.raises(StoreError, match="payment 'k2': transaction t-000003 is another merchant's"):
                    await poller.wait(payment.id)
            else:
                assert (await poller.wait(payment.id)).succeeded
        await client.payments.rebind(note="Asha: the merchant's id has changed")
        poller.track(second.id)
        assert (await poller.wait(second.id)).succeeded
    assert caplog.text.count("is another merchant's") == 1


async def test_a_transaction_of_another_merchant_ends_no_payment(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the account's merchant is known, what is shown under the id of a payment must be its own."""
    world = two_merchants(store_url)
    world.service.merchants |= {"new.token.of.merchant-1": "merchant-1"}
    async with world.client() as client:
        await world.pay(client, [order("collections")])
    # New credentials: a transaction is looked up with them first, which shows the merchant.
    await anyio.sleep(10 * MINUTE)
    async with world.client(auth="new.token.of.merchant-1") as client:
        await world.pay(client, [order("collections", "k2", 2)])
        shown = samples.found(id="t-000002", amount="5000", status="SUCCESS", phone_number=number(2))
        shown["transaction"] |= {"merchant_id": "merchant-2"}
        world.service.answer_lookup = lambda request: httpx.Response(200, json=shown)
        world.service.list = ListBehaviour(hide=lambda payment: True)
        async with client.poller(timeout=60) as poller:
            poller.track("t-000002")
            assert [type(each.error) async for each in poller.outcomes()] == [StoreError]
        record = await client.payments.get("k2")
        assert record is not None
        assert record.state is PaymentState.ACKNOWLEDGED
    assert "is another merchant's" in caplog.text


@pytest.mark.parametrize("how", ["adopted", "recovered"])
async def test_an_account_of_found_payments_alone_refuses_another_merchant(sqlite_file_url: str, how: str) -> None:
    """After a total loss all payments are recovered ones: a vault's mistake would pay from another merchant's money."""
    world = two_merchants(sqlite_file_url)
    world.service.merchants |= {"new.token.of.merchant-1": "merchant-1"}
    async with world.client() as client:
        if how == "adopted":
            await world.lose(client, order("collections", "found", 1), made=True)
            await world.reconcile(client, 5.0)
        else:
            made = world.service.make("collection", number(1), "5000")
            await anyio.sleep(2 * GRACE)
            await client.payments.recover({"found": made.id}, note="Asha: our books")
        assert (await world.get(client, "found")).transaction_id is not None
    await anyio.sleep(2 * GRACE)
    async with world.client(auth=OTHER_TOKEN) as other:
        said = await world.attempt(other, order("disbursements", "new", 2))
        assert (type(said), world.posts("new")) == (StoreError, 0), said
    async with world.client(auth="new.token.of.merchant-1") as client:
        await world.pay(client, [order("disbursements", "new", 2)])


async def test_another_merchants_list_is_not_compared(store_url: str) -> None:
    """Its transactions are neither recorded nor do they stop ours."""
    world = two_merchants(store_url)
    strict: dict[str, Any] = {"grace": GRACE, "sole_writer": True}
    async with world.client(store=SQLStore(world.url, **strict)) as client:
        await world.pay(client, [order("disbursements", "first", 100)])
    world.service.make("disbursement", number(1), "5000", merchant_id="merchant-2")
    async with world.client(auth=OTHER_TOKEN, store=SQLStore(world.url, **strict)) as client:
        await world.read(client)
        await world.read(client)
        assert await client.payments.unclaimed(None) == []


async def test_an_account_that_moved_to_a_service_with_a_past(world: World, kind: str) -> None:
    """After `rebind`, neither its past nor that it does not know our old transactions stops a payment."""
    for last in range(10):  # its ids are not those of the new service
        world.service.make("collection", number(400 + last), "5000", merchant_id="merchant-2")
    async with world.client() as client:
        await world.pay(client, [order(kind, "old", 100)])
    await anyio.sleep(HOUR)
    new = SecondService(utcnow=world.utcnow)
    for last in range(3):
        new.make("collection", number(300 + last), "5000", created_at=world.utcnow() - timedelta(minutes=20))
    moved = World(world.url, new, world.utcnow)
    async with moved.client(base_url="https://moved.example/v1") as client:
        assert "payments rebind" in str(await moved.attempt(client, order(kind)))
        with pytest.raises(StoreError, match="payments rebind"):
            await client.payments.reconcile()
        assert new.posts == new.lists == 0
        await client.payments.rebind(note="Asha: the service has moved")
        for last in range(3):
            await moved.pay(client, [order(kind, f"new {last}", 10 + last)])
            await anyio.sleep(10 * MINUTE)


@pytest.mark.parametrize("age", [GRACE, 10.0])
async def test_new_credentials_while_lookups_lag(world: World, age: float) -> None:
    """A payment of just now may not be found yet: one older than the grace period is looked up, or else the oldest."""
    world.service.merchants = {TOKEN: "merchant-1", "new.token": "merchant-1"}

    def lag(request: httpx.Request) -> httpx.Response | None:
        latest: Payment = world.service.payments[-1]
        return error(404, "TRANSACTION_NOT_FOUND") if request.url.path.endswith(latest.id) else None

    world.service.answer_lookup = lag
    async with world.client() as client, world.client(auth="new.token") as other:
        await world.pay(client, [order("disbursements", "old", 1)])
        await anyio.sleep(age)
        await world.pay(client, [order("disbursements", "just now", 2)])
        await world.pay(other, [order("disbursements", "third", 3)])


async def test_a_poller_begins_while_nothing_can_be_looked_up(sqlite_file_url: str) -> None:
    """It waits for the service, and for tokens, as ever: only another merchant's account keeps it from beginning."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await world.pay(client, [order("collections")])
    vault = Vault("of.nobody")
    vault.failure = OSError("the vault is away")
    auths: list[Any] = ["no.token", vault]
    for auth in auths:
        async with world.client(auth=auth) as client, client.poller():
            pass


class Rotating:
    """Source of tokens that change every hour."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def token(self, login: object) -> str:
        token = f"token.of.{self._world.utcnow():%j.%H}"
        self._world.service.merchants[token] = "merchant-1"
        return token

    def rejected(self, token: object, *, replacement: bool) -> None:
        raise AssertionError


async def test_tokens_that_change_every_hour_cost_one_lookup(world: World) -> None:
    """Those of one source are the same credentials, also for clients with other options."""
    async with world.client() as client:
        await world.pay(client, [order("collections", "first", 100)])
    async with world.client(auth=Rotating(world)) as client:
        for hour in range(5):
            await world.pay(client.with_options(timeout=20.0), [order("collections", f"k{hour}", hour)])
            await anyio.sleep(HOUR)
        assert world.service.lookups == 1


@pytest.mark.slow
async def test_each_of_many_credentials_is_looked_at_once(world: World) -> None:
    """Thirty processes with a token each look an own transaction up once, and not before each payment."""
    async with AsyncExitStack() as stack:
        clients = []
        for each in range(30):
            world.service.merchants[f"token.{each}"] = "merchant-1"
            clients.append(await stack.enter_async_context(world.client(auth=f"token.{each}")))
        for number, client in enumerate([*clients, *clients[:5]]):
            await world.pay(client, [order("collections", f"{number}", number)])
        assert world.service.lookups <= len(clients)
        world.service.merchants["token.of.merchant-2"] = "merchant-2"
        async with world.client(auth="token.of.merchant-2") as other:
            said = await world.attempt(other, order("collections", "other", 100))
            assert isinstance(said, StoreError), said
            assert world.posts("other") == 0


async def test_an_account_that_was_bound_anew_looks_at_older_credentials_again(world: World) -> None:
    """A client that was known before `rebind` looks its own transaction up, once."""
    world.service.merchants = {TOKEN: "merchant-1", "new.token": "merchant-1"}
    async with world.client() as client, world.client(auth="new.token") as other:
        await world.pay(client, [order("collections", "first", 1)])
        await other.payments.rebind(note="Asha: the merchant's id has changed")
        await world.pay(client, [order("collections", "second", 2), order("collections", "third", 3)])
        assert world.service.lookups == 1


async def test_credentials_that_are_refused_raise_that(world: World) -> None:
    """Not that the account cannot be checked: the payment would be refused, too."""
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "first", 100)])
    async with world.client(auth="no.token") as client:
        said = await world.attempt(client, order("disbursements"))
        assert isinstance(said, MobileMoneyError)
        assert not isinstance(said, StoreError)


@pytest.mark.parametrize("fault", ["of another payment", "not known"])
async def test_an_import_that_stops_names_its_row_and_those_before_it(sqlite_file_url: str, fault: str) -> None:
    """The first is imported and stays so: the error says which key failed, and never that nothing was changed."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        made = [world.service.make("collection", number(each), "5000") for each in (1, 2, 3)]
        await anyio.sleep(2 * GRACE)
        keys = {f"old-{each}": row.id for each, row in enumerate(made, 1)}
        keys["old-2"] = "txn_unknown" if fault == "not known" else keys["old-1"]
        expected: type[MobileMoneyError] = TransactionNotFound if fault == "not known" else StoreError
        with pytest.raises(expected) as caught:
            await client.payments.recover(keys, note="Asha: our books")
        assert f"'old-2'={keys['old-2']}" in str(caught.value) and "1 of 3" in str(caught.value)
        assert "nothing was changed" not in str(caught.value)
        found = [await client.payments.get(key) for key in keys]
    assert [each is not None and each.transaction_id for each in found] == [made[0].id, False, False]


async def test_what_was_explained_before_a_list_showed_it_is_imported_all_the_same(world: World) -> None:
    """Someone was wrong, and says so later; the line has what the list has shown since."""
    async with world.client() as client, world.client(store=None) as till:
        await world.pay(client, [order("collections", "own", 1)])
        answer = await till.disbursements.create(phone_number=number(2), amount=700)
        name = answer.transaction_id
        await client.payments.explain(name, note="Asha: the till's")
        await anyio.sleep(HOUR)
        for _ in range(2):
            await world.read(client)
            await anyio.sleep(MINUTE)
        (line,) = [each for each in await client.payments.unclaimed(state=None) if each.transaction_id == name]
        assert (int(line.amount), str(line.type), line.created_at is None) == (700, "disbursement", False)
        (record,) = await client.payments.recover({"order-21": name}, note="Asha: it was order-21 after all")
        assert (record.key, record.transaction_id, int(record.amount)) == ("order-21", name, 700)
