"""Transactions that no payment claims: payments made twice, and those of other systems."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import attrs
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    DuplicateSuspected,
    InvalidRequest,
    PaymentCause,
    PaymentState,
    SQLStore,
    StoreError,
    UnclaimedTransaction,
)
from mobilemoney_async.database.schema import accounts, payments
from mobilemoney_async.database.schema import unmatched as table
from mobilemoney_async.events import ChangeParked, Event, TransactionUnclaimed
from mobilemoney_async.payments.ownership import surplus
from mobilemoney_async.payments.ownership import unclaimed as module
from tests.payments.second_world import (
    DAY,
    GRACE,
    HOUR,
    MINUTE,
    TYPES,
    Order,
    World,
    make_world,
    masked,
    national,
    number,
    order,
    refuse,
    unclaimed,
)
from tests.payments.tables import edit
from tests.support.databases import execute
from tests.support.fakes import NOON
from tests.support.patience import PATIENCE
from tests.support.second_service import ListBehaviour, Payment

pytestmark = pytest.mark.pairs


async def begin(world: World, client: AsyncClient) -> None:
    """Make the account's first payment: older rows are history."""
    await world.pay(client, [Order("first", "collections", number(600), 700)])
    await anyio.sleep(4 * MINUTE)


# Paid twice?

Pays = Callable[[World, AsyncClient, Order], Any]


async def a_proxy_repeats(world: World, client: AsyncClient, asked: Order) -> str:
    world.service.repeats = 2
    await world.pay(client, [asked])
    world.service.repeats = 1
    return world.made(asked.key)[1]


async def another_system_pays(world: World, client: AsyncClient, asked: Order) -> str:
    await world.pay(client, [asked])
    await anyio.sleep(20)
    return world.service.make(TYPES[asked.kind], asked.phone_number, str(asked.amount)).id


async def an_operator_pays_first(world: World, client: AsyncClient, asked: Order) -> str:
    # A store that has just seen a payment is not taken for a restored backup.
    await world.pay(client, [Order("just before", asked.kind, number(601), 700)])
    made = world.service.make(TYPES[asked.kind], asked.phone_number, str(asked.amount))
    world.service.finish(made)
    await anyio.sleep(20)
    await world.pay(client, [asked])
    return made.id


async def a_refusal_was_none(world: World, client: AsyncClient, asked: Order) -> str:
    await world.answered(client, asked, refuse, made=True)
    return world.made(asked.key)[0]


async def a_word_was_wrong(world: World, client: AsyncClient, asked: Order) -> str:
    world.service.list = ListBehaviour(lag=timedelta(minutes=5))
    await world.lose(client, asked, made=True)
    await anyio.sleep(GRACE + MINUTE)
    await world.confirm(client, asked.key)
    assert isinstance(await world.attempt(client, asked), Acknowledgement)
    await anyio.sleep(10 * MINUTE)
    return world.made(asked.key)[0]


TWICE: dict[str, Pays] = {
    "a proxy repeats the request": a_proxy_repeats,
    "another system pays": another_system_pays,
    "an operator has paid by hand": an_operator_pays_first,
    "a certain refusal was none": a_refusal_was_none,
    "an operator's word was wrong": a_word_was_wrong,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWICE)
async def test_a_second_transaction_is_reported_and_stops_a_third(
    world: World, client: AsyncClient, kind: str, name: str
) -> None:
    """It is unclaimed, and a new disbursement of its kind waits for an operator's explanation: no more money leaves.

    A collection does not wait: its customer approves it, and the store has lost nothing.
    """
    asked = order(kind)
    await begin(world, client)
    second = await TWICE[name](world, client, asked)
    await world.read(client)
    assert await unclaimed(client) == {second}
    new = Order("new", kind, asked.phone_number)
    if kind == "disbursements":
        stopped = await world.attempt(client, new)
        assert isinstance(stopped, DuplicateSuspected), stopped
        assert (stopped.other_key, stopped.transaction_id, stopped.outcome) == (None, second, "not_sent")
        assert asked.phone_number not in str(stopped)
        assert world.posts("new") == 0
        await client.payments.explain(second, note="Asha refunded it")
    assert isinstance(await world.attempt(client, new), Acknowledgement)
    said = await client.payments.explain(second, note="refunded", by="Asha")
    assert (said.state, said.note, said.explained_by) == ("explained", "refunded", "Asha")
    await world.read(client)
    assert await unclaimed(client) == set()


async def test_a_suspicion_stops_a_kind_for_a_while(store_url: str, kind: str) -> None:
    """Of a sole writer a collection waits for an hour, a disbursement for a day; the report stays."""
    world, asked = make_world(store_url), order(kind)
    async with world.client(
        store=SQLStore(world.url, grace=GRACE, sole_writer=kind == "collections" or None)
    ) as client:
        await begin(world, client)
        second = await another_system_pays(world, client, asked)
        await world.read(client)
        least, most = (50 * MINUTE, 2 * HOUR) if kind == "collections" else (23 * HOUR, 2 * DAY)
        await anyio.sleep(least)
        assert isinstance(await world.attempt(client, Order("soon", kind, asked.phone_number)), DuplicateSuspected)
        await anyio.sleep(most)
        assert isinstance(await world.attempt(client, Order("late", kind, asked.phone_number)), Acknowledgement)
        assert second in await unclaimed(client)


@pytest.mark.parametrize("sole_writer", [None, True, False])
async def test_strangers_are_reported_unless_others_pay_too(world: World, sole_writer: bool | None) -> None:
    """A row that fits no attempt is reported, and stops its kind for a sole writer; with others it is not reported."""
    options: dict[str, Any] = {"grace": GRACE, "sole_writer": sole_writer}
    async with world.client(store=SQLStore(world.url, **options)) as client:
        await begin(world, client)
        made = world.service.make("collection", number(1), "5000")
        await world.read(client)
        assert await unclaimed(client) == (set() if sole_writer is False else {made.id})
        said = await world.attempt(client, order("collections"))
        assert isinstance(said, DuplicateSuspected if sole_writer else Acknowledgement), said


@pytest.mark.parametrize("hours", [-3, 0, 3])
async def test_what_is_older_than_the_account_is_history(world: World, hours: int) -> None:
    """Transactions from before the store's first record are not reported, nor is what the store claims.

    What came after is, whatever the service's clock shows.
    """
    world.service.utcnow = lambda: world.utcnow() + timedelta(hours=hours)
    for each in range(5):
        world.service.make("collection", number(each), "5000")
    await anyio.sleep(HOUR)
    async with world.client() as client:
        await begin(world, client)
        await world.pay(client, [order("collections"), order("disbursements", "k2")])
        second = await a_proxy_repeats(world, client, order("collections", "k3", 7))
        await world.read(client)
        assert await unclaimed(client) == {second}


@pytest.mark.slow
async def test_a_row_that_an_open_payment_may_be_is_its_candidate(world: World, client: AsyncClient, kind: str) -> None:
    """An unknown payment may have made one transaction: of two of its kind, one is a stranger, whichever that is."""
    asked = order(kind)
    await begin(world, client)
    world.service.repeats = 2
    await world.lose(client, asked, made=True)
    world.service.repeats = 1
    await world.read(client)
    await world.reconcile(client, 0.0)
    assert len(await unclaimed(client) & {*world.made("k")}) == 1
    first, second = world.made("k")
    assert set((await world.get(client, "k")).candidates) == {first, second}
    # A word about a payment says nothing of the other transaction, which is among its results.
    identified = await client.payments.identify("k", second, note="Asha found the receipt")
    assert (identified.transaction_id, identified.candidates) == (second, (first,))
    await world.read(client)
    assert await unclaimed(client) == {first}


@pytest.mark.costly("runs lines of payments/feed/feed.py, payments/feed/consumers.py that no quick test runs")
@pytest.mark.usefixtures("unhurried")
async def test_readers_of_the_feed_get_an_unclaimed_transaction_and_the_log_its_id(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that cannot handle it ten times has it parked, as any change: it has no key to name it by."""
    world, events = make_world(store_url), list[Event]()
    async with world.client(on_event=events.append) as client:
        await begin(world, client)
        second = await another_system_pays(world, client, order("collections"))
        await world.read(client)
        cursors = set[str]()
        async for change in client.payments.changes(consumer="books", start="oldest"):
            if change.key is not None:
                continue
            assert change.transaction is not None and change.transaction.transaction_id == second
            cursors.add(change.cursor)
            await change.failed("unknown to the books")
            if any(isinstance(each, ChangeParked) for each in events):
                break
        (consumer,) = await client.payments.consumers()
    assert [each for each in events if isinstance(each, ChangeParked)] == [
        ChangeParked(consumer="books", key=None, cursor=cursors.pop())
    ]
    assert [each.name for each in consumer.parked] == [second]
    assert f"could not handle a change of '{second}' 10 times" in caplog.text


# Which rows are judged, and when


async def a_poller(client: AsyncClient, ids: list[str]) -> None:
    async with client.poller(timeout=60) as poller:
        for each in ids:
            poller.track(each)
        async for _ in poller.outcomes():
            pass


async def a_bulk_lookup(client: AsyncClient, ids: list[str]) -> None:
    async for _ in client.transactions.get_many(ids, since=NOON.date()):
        pass


async def a_reconciliation(client: AsyncClient, ids: list[str]) -> None:
    await client.payments.reconcile()


@pytest.mark.slow
@pytest.mark.parametrize("look", [a_poller, a_bulk_lookup, a_reconciliation])
async def test_every_page_counts(
    world: World, client: AsyncClient, look: Callable[[AsyncClient, list[str]], Any]
) -> None:
    """Whatever reads the list, a repeated payment is noticed, at no request of its own."""
    await begin(world, client)
    second = await a_proxy_repeats(world, client, order("collections"))
    await world.pay(client, [Order(f"many {each}", "collections", number(50 + each)) for each in range(12)])
    if look is a_reconciliation:
        await world.lose(client, Order("lost", "collections", number(9)), made=False)
    ids = [payment.id for payment in world.service.payments if payment.id != second]
    for _ in range(2):
        await anyio.sleep(GRACE + MINUTE)
        await look(client, ids[1:])
    assert await unclaimed(client) == {second}


async def test_a_page_of_known_rows_asks_nothing_of_the_store(
    world: World, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The good path costs no query: the rows of this process's own payments are known."""
    await world.pay(client, [order("collections", f"k{each}", each) for each in range(5)])

    def fail(*_: Any) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(module, "_look", fail)
    page = await client.transactions.page()
    assert len(page) == 5
    assert world.service.lists == 1


async def test_a_payment_on_its_way_is_left_alone(store_url: str, kind: str) -> None:
    """The list may show a payment long before its answer comes; that is no second payment."""
    world, asked = make_world(store_url), order(kind)
    async with world.client(timeout=400.0) as client, world.client(timeout=10.0) as other:
        await begin(world, client)
        world.service.answer_after = 390.0
        async with anyio.create_task_group() as group:
            group.start_soon(world.attempt, client, asked)
            await anyio.sleep(1)
            await world.read(other)
            assert await unclaimed(other) == set()
        await world.read(other)
        assert await unclaimed(other) == set()
        assert (await world.get(other, "k")).state is PaymentState.ACKNOWLEDGED


async def test_a_row_is_judged_once_it_was_seen_for_long_enough(store_url: str, kind: str) -> None:
    """Another process may be about to record it: two looks within the grace period and a time-out prove nothing."""
    world, asked = make_world(store_url), order(kind)
    async with world.client(timeout=30.0) as client:
        await begin(world, client)
        second = await another_system_pays(world, client, asked)
        await client.transactions.page()
        await anyio.sleep(GRACE + 30 + 4)
        await client.transactions.page()
        assert await unclaimed(client) == set()
        await anyio.sleep(1)
        await client.transactions.page()
        (found,) = await client.payments.unclaimed()
        assert found.transaction_id == second
        assert found.first_seen_at < world.utcnow() - timedelta(seconds=GRACE + 30)


@pytest.mark.slow
async def test_processes_that_read_the_list_once_judge_what_others_have_seen(store_url: str, kind: str) -> None:
    """As commands in cron do."""
    world, asked = make_world(store_url), order(kind)
    async with world.client() as client:
        await begin(world, client)
        second = await another_system_pays(world, client, asked)
    await anyio.sleep(10 * MINUTE)
    async with world.client() as command:
        await command.transactions.page()
        assert await unclaimed(command) == set()
    await anyio.sleep(10 * MINUTE)
    async with world.client() as command:
        await command.transactions.page()
        assert await unclaimed(command) == {second}


async def test_of_two_processes_that_judge_a_row_at_once_one_reports_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL lets both read it as new: whoever notes first that it was reported has done so."""
    world, events, both = make_world(postgres_url), list[Event](), threading.Barrier(2)

    def wait(*arguments: Any) -> Any:
        both.wait(PATIENCE)
        return surplus.surplus(*arguments)

    async with world.client(on_event=events.append) as client, world.client(on_event=events.append) as other:
        await begin(world, client)
        await another_system_pays(world, client, order("collections"))
        await anyio.sleep(10 * MINUTE)
        for each in (client, other):
            await each.transactions.page()
        await anyio.sleep(10 * MINUTE)
        monkeypatch.setattr(module, "surplus", wait)
        async with anyio.create_task_group() as tasks:
            for each in (client, other):
                tasks.start_soon(each.transactions.page)
    assert len([each for each in events if isinstance(each, TransactionUnclaimed)]) == 1


async def test_a_row_that_nobody_has_read_for_weeks_is_reported(world: World, client: AsyncClient) -> None:
    await begin(world, client)
    made = world.service.make("collection", number(1), "5000")
    await anyio.sleep(20 * DAY)
    await world.read(client)
    assert await unclaimed(client) == {made.id}


async def test_rows_of_another_merchant_are_not_reported(world: World, client: AsyncClient) -> None:
    """The merchant is the one of the rows that our own acknowledgements name."""
    world.service.list = ListBehaviour(all_merchants=True)
    await begin(world, client)
    world.service.make("collection", number(600), "700", merchant_id="merchant-2")
    await world.read(client)
    assert await unclaimed(client) == set()


async def test_a_row_that_cannot_be_read_is_listed_by_its_id_until_it_can(world: World, client: AsyncClient) -> None:
    """Its kind is unknown: it stops nothing. Readable again, it is judged as any other one, or as it was explained."""
    history = world.service.make("disbursement", number(3), "900", created_at=world.utcnow() - timedelta(days=2)).id
    await begin(world, client)
    await world.pay(client, [order("disbursements")])
    rows = [world.service.make("disbursement", number(1), "5000", status="SUCCESS") for _ in range(2)]
    odd = {each.id for each in rows}
    hidden = {**{each: {"amount": None} for each in odd}, history: {"amount": None, "created_at": None}}
    world.service.list = ListBehaviour(spell=lambda row: {**row, **hidden.get(row["id"], {})})
    await world.read(client)
    found = await client.payments.unclaimed()
    assert {each.transaction_id for each in found} == {*odd, history}
    assert {(str(each.type), int(each.amount), each.fits_key) for each in found} == {("unreadable", 0, None)}
    assert isinstance(await world.attempt(client, order("disbursements", "new")), Acknowledgement)
    first, second = sorted(odd)
    await client.payments.explain(first, note="Asha asked the service")
    world.service.list = ListBehaviour()
    await world.read(client)
    (left,) = await client.payments.unclaimed()
    assert (left.transaction_id, str(left.type), int(left.amount)) == (second, "disbursement", 5000)
    assert left.fits_key == "k"
    (said,) = await client.payments.unclaimed("explained")
    assert (said.transaction_id, str(said.type), int(said.amount)) == (first, "disbursement", 5000)
    assert isinstance(await world.attempt(client, order("disbursements", "newer")), DuplicateSuspected)


SPELLINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "masked, of another word": lambda row: {**masked(row), "type": "C2B"},
    "national": national,
    "local": lambda row: {**row, "phone_number": row["phone_number"][4:]},
    "with zeros": lambda row: {**row, "phone_number": "00" + row["phone_number"][1:]},
    "with a fraction": lambda row: {**row, "amount": f"{row['amount']}.00"},
}


@pytest.mark.parametrize("name", SPELLINGS)
async def test_a_repeated_payment_is_noticed_in_any_spelling(world: World, client: AsyncClient, name: str) -> None:
    """The new key of its kind is stopped, although the list does not spell its number or type as we do."""
    asked = order("disbursements")
    world.service.list = ListBehaviour(spell=SPELLINGS[name])
    await begin(world, client)
    second = await a_proxy_repeats(world, client, asked)
    await world.read(client)
    (found,) = await client.payments.unclaimed()
    assert (found.transaction_id, found.fits_key, found.type) == (second, "k", "disbursement")
    assert isinstance(await world.attempt(client, order("disbursements", "new")), DuplicateSuspected)


async def test_what_an_earlier_attempt_has_made_fits_its_key(world: World, client: AsyncClient) -> None:
    """Where the list masks numbers, too, and shows it long after the payment was sent again."""
    asked = order("disbursements")
    world.service.list = ListBehaviour(spell=masked, hide=lambda payment: payment.owner == "k")
    await begin(world, client)
    first = await a_refusal_was_none(world, client, asked)
    await anyio.sleep(3 * HOUR)
    await world.pay(client, [asked])
    world.service.list = ListBehaviour(spell=masked)
    await world.read(client)
    (found,) = await client.payments.unclaimed()
    assert (found.transaction_id, found.fits_key) == (first, "k")


# What is done about them


@pytest.mark.slow
async def test_a_key_that_was_not_sent_waits_too(world: World, client: AsyncClient) -> None:
    """An operator may have paid by hand while the network was away: the order is not paid again by its own key."""
    asked = order("disbursements")

    def refused(request: httpx.Request, payment: Payment | None) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    await begin(world, client)
    await world.answered(client, asked, refused, made=False)
    assert (await world.get(client, "k")).state is PaymentState.NOT_SENT
    paid = world.service.make("disbursement", asked.phone_number, "5000")
    await world.read(client)
    stopped = await world.attempt(client, asked)
    assert isinstance(stopped, DuplicateSuspected), stopped
    assert (await world.get(client, "k")).state is PaymentState.NOT_SENT
    await client.payments.explain(paid.id, note="Asha tested the dashboard")
    assert isinstance(await world.attempt(client, asked), Acknowledgement)


async def test_what_fails_later_stops_nothing_any_more(world: World, client: AsyncClient) -> None:
    asked = order("disbursements")
    await begin(world, client)
    await another_system_pays(world, client, asked)
    await world.read(client)
    assert isinstance(await world.attempt(client, order("disbursements", "new")), DuplicateSuspected)
    world.service.finish(world.service.payments[-1], "INSUFFICIENT_FUNDS")
    await client.transactions.page()
    (found,) = await client.payments.unclaimed()
    assert found.status == "INSUFFICIENT_FUNDS"
    assert isinstance(await world.attempt(client, order("disbursements", "new")), Acknowledgement)


async def test_each_new_status_on_a_page_is_shown(world: World, client: AsyncClient) -> None:
    """Of two unclaimed transactions that end between two readings of the list both are shown as they are."""
    await begin(world, client)
    found = [world.service.make("collection", number(each), "900") for each in (8, 9)]
    await world.read(client)
    for each in found:
        world.service.finish(each, "INSUFFICIENT_FUNDS")
    await client.transactions.page()
    assert [each.status for each in await client.payments.unclaimed()] == ["INSUFFICIENT_FUNDS"] * 2


async def test_beside_other_systems_no_match_is_adopted(store_url: str, kind: str) -> None:
    """With `sole_writer=False` a payment in the list may be another system's: someone decides."""
    world, asked = make_world(store_url), order(kind)
    async with world.client(store=SQLStore(world.url, grace=GRACE, sole_writer=False)) as client:
        await begin(world, client)
        await world.pay(client, [Order("before", kind, number(10))])
        await world.lose(client, asked, made=True)
        await anyio.sleep(MINUTE)
        await world.pay(client, [Order("after", kind, number(11))])
        await world.reconcile(client, GRACE + MINUTE, GRACE + MINUTE)
        record = await world.get(client, "k")
        assert (record.state, record.candidates) == (PaymentState.UNKNOWN, tuple(world.made("k")))
        await client.payments.identify("k", record.candidates[0], note="Asha found the receipt")


async def test_a_transaction_that_a_payment_claims_later_is_no_longer_unclaimed(
    world: World, client: AsyncClient
) -> None:
    """As when someone identifies it: it is not explained by hand as well."""
    asked = order("collections")
    await begin(world, client)
    second = await another_system_pays(world, client, asked)
    await world.read(client)
    await world.lose(client, order("collections", "new", 2), made=False)
    edit(world.url, payments.update().where(payments.c.key == "new").values(phone_number=asked.phone_number))
    await client.payments.identify("new", second, note="Asha found the receipt")
    assert await client.payments.unclaimed() == []
    (found,) = await client.payments.unclaimed("claimed")
    assert found.transaction_id == second
    with pytest.raises(StoreError, match="is a payment of this store"):
        await client.payments.explain(second, note="no")


async def test_the_list_of_unclaimed_transactions(world: World, client: AsyncClient) -> None:
    """It says all that an operator needs, without a whole phone number, and keeps the explanation."""
    asked = order("collections")
    await begin(world, client)
    second = await another_system_pays(world, client, asked)
    made_at = world.utcnow()
    await world.read(client)
    (found,) = await client.payments.unclaimed()
    assert found == UnclaimedTransaction(
        transaction_id=second,
        type=found.type,
        amount=found.amount,
        phone_number="+25568…101",
        status=found.status,
        created_at=made_at,
        first_seen_at=made_at,
        fits_key="k",
    )
    assert (str(found.type), f"{found.amount}", str(found.status)) == ("collection", "5000", "PENDING")
    explained = await client.payments.explain(second, note="Asha\0 refunded it")
    assert (explained.state, explained.note) == ("explained", "Asha refunded it")
    assert await client.payments.unclaimed("explained") == await client.payments.unclaimed(None) == [explained]
    unseen = await client.payments.explain("t-999", note="Asha will pay it by hand")
    assert (unseen.state, unseen.note) == ("explained", "Asha will pay it by hand")
    again = await client.payments.explain(second, note="Asha refunded it on Monday")
    assert again.note == "Asha refunded it on Monday"
    for refused, arguments in (
        (InvalidRequest, {"transaction_id": " ", "note": "x"}),
        (InvalidRequest, {"transaction_id": second, "note": " "}),
    ):
        with pytest.raises(refused):
            await client.payments.explain(**arguments)
    wrong: list[Any] = ["OPEN", []]
    for state in wrong:
        with pytest.raises(InvalidRequest, match="state must be"):
            await client.payments.unclaimed(state)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_match_of_a_kind_that_another_system_pays_is_for_someone_to_decide(
    sqlite_file_url: str, is_gone: bool
) -> None:
    """Once three rows within a week have shown that there is one, unless all is said to be paid by the store now."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await begin(world, client)
        theirs = [world.service.make("collection", number(last), "5000") for last in range(1, 4)]
        await world.read(client)
        await client.payments.explain(theirs[0].id, note="Asha's till")
    world.sole_writer = True if is_gone else None
    async with world.client() as client:
        await world.lose(client, order("collections"), made=True)
        await world.reconcile(client, GRACE + MINUTE)
        record = await world.get(client, "k")
    found = (PaymentState.ACKNOWLEDGED, None) if is_gone else (PaymentState.UNKNOWN, PaymentCause.OTHER_SYSTEM)
    assert (record.state, record.cause) == found


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(hours=2)])
async def test_one_of_many_payments_of_a_kind_is_no_other_systems(
    store_url: str, ahead: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is compared with the payments that were sent around it, however many there are of its kind."""
    monkeypatch.setattr(surplus, "_MOST_COMPARED", 1)
    monkeypatch.setattr(module, "_PROOF", 1)
    world, kind = make_world(store_url), "disbursements"
    world.service.utcnow = lambda: world.utcnow() + ahead
    async with world.client() as client:
        for each in range(4):
            await world.pay(client, [order(kind, f"float {each}")])
            await anyio.sleep(2 * MINUTE)
            await client.transactions.page()
        await world.lose(client, order(kind), made=True)
        for _ in range(2):
            await anyio.sleep(2 * MINUTE)
            await client.transactions.page()
        await world.reconcile(client, MINUTE)
        record = await world.get(client, "k")
    assert (record.state, record.cause) == (PaymentState.ACKNOWLEDGED, None)


@pytest.mark.parametrize("room", [1, 3, 900])
async def test_each_row_of_another_system_prolongs_the_finding(
    sqlite_file_url: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three prove it, and then it holds for thirty days after each, whether there is room for their lines or not."""
    monkeypatch.setattr(module, "_MOST_STRANGERS", room)
    world, lasts = make_world(sqlite_file_url), list[timedelta | None]()
    async with world.client() as client:
        for last in (1, 2, 3):
            await world.pay(client, [order("collections", f"own {last}", 50 + last)])
            await anyio.sleep(4 * MINUTE)
            for each in range(2 if last == 1 else 1):
                world.service.make("collection", number(3 * last + each), "5000")
            made_at = world.utcnow()
            await world.read(client)
            (row,) = execute(world.url, sa.select(accounts))
            lasts.append(row.others_until and row.others_until - made_at)
            await anyio.sleep(4 * DAY * last)
    assert lasts[0] is None
    assert all(each is not None and abs(each - timedelta(days=30)) < timedelta(minutes=10) for each in lasts[1:]), lasts


@pytest.mark.parametrize("shown", [2, 3])
async def test_what_a_payment_owns_is_no_proof_of_another_system(sqlite_file_url: str, shown: int) -> None:
    """Neither that there is one, nor that it pays a kind, once someone has said whose it is."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await begin(world, client)
        for first, last in [(0, 3)] if shown == 3 else [(0, 2), (2, 3)]:
            made = [world.service.make("collection", number(each), "5000") for each in range(first, last)]
            await world.read(client)
            if first == 0:
                await client.payments.recover({each.id: each.id for each in made}, note="Asha's")
            else:
                await client.payments.explain(made[0].id, note="the till's")
        await world.lose(client, order("collections", last=0 if shown == 3 else 2), made=True)
        await world.reconcile(client, GRACE + MINUTE)
        record = await world.get(client, "k")
    assert (record.state, record.cause) == (PaymentState.ACKNOWLEDGED, None)


async def test_the_digest_of_a_number_needs_the_key_of_its_database(world: World) -> None:
    """The table of unclaimed transactions alone shows nobody's number."""
    async with world.client() as client:
        await begin(world, client)
        await another_system_pays(world, client, order("collections"))
        await world.read(client)
    (row,), (kept,) = (execute(world.url, sa.select(each)) for each in (table, accounts))
    assert len(row.number_digest) == len(kept.number_key) == 64
    assert number(1)[-9:] not in "".join(map(str, row))


@pytest.mark.parametrize("value", [0, 1, "yes"])
def test_sole_writer_is_a_bool_or_none(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="sole_writer must be a bool or None"):
        SQLStore("sqlite:///payments.db", sole_writer=value)


async def test_explanations_are_kept_for_a_month(world: World, client: AsyncClient) -> None:
    """An old explanation is dropped when another transaction is recorded."""
    await begin(world, client)
    for last, pause in ((1, 29 * DAY), (2, 2 * DAY), (3, 0.0)):
        made = world.service.make("collection", number(last), "5000")
        await world.read(client)
        await client.payments.explain(made.id, note="Asha's till")
        await anyio.sleep(pause)
    assert [each.phone_number[-3:] for each in await client.payments.unclaimed("explained")] == ["102", "103"]


# Reports


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sole_writer", [None, True])
async def test_each_is_an_event_and_many_are_one_warning(
    store_url: str, caplog: pytest.LogCaptureFixture, sole_writer: bool | None
) -> None:
    """A flood of strangers is one line in five minutes, with their number, how many stop others, and the first few."""
    world, events = attrs.evolve(make_world(store_url), sole_writer=sole_writer), list[Event]()
    async with world.client(on_event=events.append) as client, world.client(on_event=events.append) as other:
        await begin(world, client)
        second = await another_system_pays(world, client, order("collections"))
        caplog.clear()
        await world.read(client)
        await world.read(other)
        said = [each for each in events if isinstance(each, TransactionUnclaimed)]
        assert said == [TransactionUnclaimed(transaction_id=second, type="collection", status="PENDING", fits_key="k")]
        (line,) = warnings(caplog)
        assert "claims 1 of the transactions at the service, of which 1 may be paid twice" in line
        assert ("twice, and 1 stop others of their kinds: " in line) is (sole_writer is True)
        assert second in line
        for each in range(2, 4):
            for last in range(5):
                world.service.make("disbursement", number(10 * each + last), "900")
            await client.transactions.page()
            await anyio.sleep(GRACE + 36)
            await client.transactions.page()
        assert len([each for each in events if isinstance(each, TransactionUnclaimed)]) == 11
        # The second five come within five minutes of the warning of the first five: a page after that names them.
        for found in world.service.payments[-10:-5], world.service.payments[-5:]:
            (line,) = (each for each in warnings(caplog) if "another system" not in each)
            assert "claims 5 of the transactions at the service, of which 0 may be paid twice" in line
            assert found[0].id in line
            await anyio.sleep(5 * MINUTE)
            await client.transactions.page()


async def test_another_system_is_reported_by_one_of_two_processes(
    sqlite_file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reads rows of its own that prove it, at the same moment."""
    world = make_world(sqlite_file_url)
    async with world.client() as one, world.client() as two, anyio.create_task_group() as tasks:
        for kind, client in (("collections", one), ("disbursements", two)):
            await world.pay(client, [order(kind, kind)])
        await world.reconcile(one, *[2 * MINUTE] * 3)
        for last in range(2, 5):
            for kind in TYPES.values():
                world.service.make(kind, number(last), "5000")
        await world.reconcile(one, *[2 * MINUTE] * 2)
        caplog.clear()
        for kind, client in (("collection", one), ("disbursement", two)):
            tasks.start_soon(client.transactions.list(type=kind).collect)
    assert len([each for each in warnings(caplog) if "another system" in each]) == 1


async def test_strangers_beyond_the_most_are_left_out(
    store_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message offers `sole_writer=False`; a payment made twice is reported all the same."""
    monkeypatch.setattr(module, "_MOST", 4)
    monkeypatch.setattr(module, "_MOST_STRANGERS", 3)
    world = make_world(store_url)
    async with world.client() as client:
        await begin(world, client)
        for each in range(9):
            world.service.make("disbursement", number(20 + each), "900")
        await world.read(client)
        assert len(await client.payments.unclaimed()) == 3
        second = await another_system_pays(world, client, order("collections"))
        await world.read(client)
        found = await client.payments.unclaimed()
        assert len(found) == 4
        assert second in {each.transaction_id for each in found}
        await anyio.sleep(HOUR)
        await world.read(client)
        assert len(await client.payments.unclaimed()) == 4
        (line,) = (each for each in warnings(caplog) if "than are recorded" in each)
        assert "store_options = { sole_writer = false } in the profile" in line
        # What an unknown payment may have made is kept as well.
        world.service.repeats = 2
        await world.lose(client, order("disbursements", "lost"), made=True)
        other = world.service.make("disbursement", number(40), "900").id
        await world.read(client)
        first, again = world.made("lost")
        await client.payments.identify("lost", first, note="Asha saw it")
        assert {each.transaction_id for each in await client.payments.unclaimed()} & {other, again} == {again}


async def test_what_was_explained_before_a_list_has_shown_it_is_not_reported(sqlite_file_url: str) -> None:
    """Neither at once nor with the next one that nobody claims."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await begin(world, client)
        explained, other = (world.service.make("disbursement", number(each), "900").id for each in (20, 21))
        await client.payments.explain(explained, note="Asha: the till paid it")
        for _ in range(2):
            await world.read(client)
            await anyio.sleep(HOUR)
        found = [change.transaction async for change in client.payments.changes(forever=False)]
    assert [each.transaction_id for each in found if each is not None] == [other]


@pytest.mark.parametrize("error", [StoreError("the store failed: disk", outcome="not_sent"), ZeroDivisionError()])
async def test_a_failing_store_harms_no_page(
    world: World,
    client: AsyncClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """The page is returned, the failure is logged once, and the comparison goes on later."""

    def fail(*_: Any) -> None:
        raise error

    await begin(world, client)
    second = await another_system_pays(world, client, order("collections"))
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_look", fail)
        for _ in range(3):
            assert len(await client.transactions.page()) == 3
    assert len(warnings(caplog)) == 1
    await anyio.sleep(5 * MINUTE)
    await world.read(client)
    assert await unclaimed(client) == {second}


async def test_a_cancelled_call_loses_no_report(store_url: str) -> None:
    """Cancelled while a row is recorded, a call reports it first; cancelled before, the next page does."""
    world, events = make_world(store_url), list[Event]()
    async with world.client(on_event=events.append) as client:
        await begin(world, client)
        second = await another_system_pays(world, client, order("collections"))
        await client.transactions.page()
        await anyio.sleep(GRACE + MINUTE)
        with anyio.CancelScope() as scope:

            async def cancel() -> None:
                scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(client.transactions.page)
                group.start_soon(cancel)
        await client.transactions.page()
        assert await unclaimed(client) == {second}
        assert len([each for each in events if isinstance(each, TransactionUnclaimed)]) == 1
