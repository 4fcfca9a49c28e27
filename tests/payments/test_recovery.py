"""Stores that are behind their service, and accounts that are bound to their merchant; see also the unclaimed ones."""

import json
import logging
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    DuplicateSuspected,
    MobileMoneyError,
    PaymentState,
    RateLimiter,
    RequestTimeout,
    SQLStore,
    StoreError,
    Transaction,
    TransactionStatus,
    TransactionType,
)
from mobilemoney_async.database import schema, serialization
from mobilemoney_async.events import AccountMismatch, LimiterWaited, StoreBehind
from mobilemoney_async.payments.ownership.comparison import (
    AccountFacts,
    Comparison,
    must_compare,
)
from mobilemoney_async.payments.ownership.duplicates import SUSPECT, DuplicateGuard, require_remembered
from mobilemoney_async.payments.ownership.matching import PaymentQuery, Skew
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentRequest
from mobilemoney_async.payments.records.rows import digest
from mobilemoney_async.payments.store import account_store
from tests.payments.second_world import GRACE, HOUR, MINUTE, Order, World, make_world, number, order, refuse, unreadable
from tests.payments.service import Delay, on_sqlite
from tests.payments.tables import edit, insert_line
from tests.support.fakes import NOON
from tests.support.second_service import TOKEN, ListBehaviour, error

pytestmark = pytest.mark.pairs

FAR = datetime.max.replace(tzinfo=UTC)
SECOND = timedelta(seconds=1)


def at(minutes: float) -> Any:
    return NOON + timedelta(minutes=minutes)


KNOWN = {"newest": at(0), "first_record_at": at(0), "life_until": at(0)}


class TestWhen:
    """When a store is compared with its service."""

    @pytest.mark.parametrize(
        ("facts", "minutes", "expected"),
        [
            ({}, 0, False),
            ({"life_until": at(0)}, 9, False),
            (KNOWN, 4.9, False),
            (KNOWN, 5, True),
            ({"first_record_at": at(0)}, 0, True),
            (KNOWN | {"life_until": FAR}, 99, True),
            (KNOWN | {"remembered": at(0)}, 1, False),
            (KNOWN | {"remembered": at(0) + SECOND}, 1, True),
            ({"remembered": at(0)}, 1, True),
            (KNOWN | {"timeline": 1, "timeline_now": 2}, 1, True),
            (KNOWN | {"timeline": 1, "timeline_now": None}, 1, False),
            (KNOWN | {"timeline": None, "timeline_now": 2}, 1, False),
            (KNOWN | {"due_since": at(0)}, 1, True),
            (KNOWN | {"again_at": at(2)}, 1.9, False),
            (KNOWN | {"again_at": at(2)}, 2, True),
        ],
    )
    def test_when(self, facts: dict[str, Any], minutes: float, expected: bool) -> None:
        """Where a life begins, and at once where the store itself went backwards; never of an empty store.

        A life that lasts into the future is of a wrong clock.

        A time at the end of the calendar, in a row that was edited, raises nothing.
        """
        assert must_compare(AccountFacts(**facts), at(minutes)) is expected


def row(name: str, minutes: float, type: str = "collection", **changes: Any) -> Transaction:
    values: dict[str, Any] = {
        "id": name,
        "reference": name,
        "type": TransactionType(type),
        "amount": Decimal(5000),
        "currency": "TZS",
        "phone_number": number(1),
        "network": "airtel_money",
        "status": TransactionStatus.SUCCESS,
        "created_at": at(minutes),
    }
    return Transaction(**{**values, **changes})


def open_payment(minutes: float, type: str = "collection", *, is_refused: bool = False) -> PaymentQuery:
    return PaymentQuery(
        type=TransactionType(type),
        phone_number=number(1),
        amount="5000",
        sent_at=at(minutes),
        ended_at=at(minutes),
        is_refused=is_refused,
    )


def signs(rows: list[Transaction], *searches: PaymentQuery) -> tuple[list[str], list[str]]:
    """Return the rows that show a store to be behind, and those that no machine adopts; its life began at 30."""
    exact = Skew(low=timedelta(0), high=timedelta(0))
    compared = Comparison(rows=rows, searches=searches, skew=exact, began_at=at(30), grace=GRACE)
    return [each.id for each in compared.signs], [each.id for each in compared.doubtful]


class TestComparison:
    """What shows that a store is behind its service."""

    def test_rows_without_an_owner(self) -> None:
        """Each is a sign; none is where there is no row."""
        assert signs([]) == ([], [])
        assert signs([row("1", 9), row("2", 40)]) == (["1", "2"], [])

    def test_lost_answers(self) -> None:
        """No sign are rows near open payments of their kind, as long as there are no more of them than payments."""
        first, second = open_payment(9), open_payment(10)
        assert signs([row("1", 9)], first) == ([], [])
        assert signs([row("1", 9), row("2", 10)], first, second) == ([], [])
        assert signs([row("1", 9), row("2", 10)], first) == (["1", "2"], [])
        assert signs([row("1", 9, phone_number=number(2))], first) == (["1"], [])
        assert signs([row("1", 20)], first) == (["1"], [])

    def test_the_far_edge_of_an_earlier_life(self) -> None:
        """A payment of an earlier life was made within `grace`; one of this life up to two minutes later than that."""
        assert signs([row("1", 11)], open_payment(9)) == ([], [])
        assert signs([row("1", 11.02)], open_payment(9)) == (["1"], [])
        assert signs([row("1", 42.02)], open_payment(40)) == ([], [])

    def test_what_no_machine_adopts(self) -> None:
        """A disbursement or a refused payment of an earlier life may be one that was forgotten, with the same kind."""
        payout = row("1", 9, "disbursement")
        assert signs([payout], open_payment(9, "disbursement")) == ([], ["1"])
        assert signs([row("1", 9)], open_payment(9, is_refused=True)) == ([], ["1"])
        assert signs([row("1", 40, "disbursement")], open_payment(40, "disbursement")) == ([], [])


async def sell(world: World, kind: str, *, kept: int = 1, forgotten: int = 3) -> list[Order]:
    """Pay from one process, let the store forget the later payments, and return these."""
    orders = [order(kind, f"forgotten {each}", each) for each in range(forgotten)]
    async with world.client() as client:
        await world.pay(client, [order(kind, f"kept {each}", 100 + each) for each in range(kept)])
        await anyio.sleep(MINUTE)
        await world.pay(client, orders)
    forget(world.url, "forgotten%")
    return orders


TABLES = [schema.unmatched, schema.lives, schema.lost_times]
TABLES += [schema.payments, schema.history, schema.changes, schema.accounts]


def dump(url: str, tables: Iterable[sa.Table] = TABLES) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of tables, by default of those of payments: a backup."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        return {each.name: [dict(row) for row in connection.execute(sa.select(each)).mappings()] for each in tables}


def replace(url: str, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Restore a backup while processes are at work."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        for name, rows in tables.items():
            table = schema.METADATA.tables[name]
            connection.execute(table.delete())
            if rows:
                connection.execute(table.insert(), rows)


def forget(url: str, keys: str) -> None:
    """Take payments back, as a failover that loses commits does."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        for table, key in (("payment_history", "key"), ("payment_records", "key"), ("changes", "name")):
            connection.execute(sa.text(f"DELETE FROM mobilemoney_{table} WHERE {key} LIKE :keys"), {"keys": keys})
        newest = connection.execute(sa.select(sa.func.max(schema.payments.c.sent_at))).scalar_one() or NOON
        connection.execute(schema.lives.delete().where(schema.lives.c.began_at > newest))
        connection.execute(schema.lives.update().where(schema.lives.c.until > newest).values(until=newest))


async def stopped(world: World, client: AsyncClient, orders: list[Order]) -> None:
    """Try payments again: none is sent."""
    posts = world.service.posts
    for each in orders:
        said = await world.attempt(client, each)
        assert isinstance(said, StoreError), said
        assert said.outcome == "not_sent"
    assert world.service.posts == posts


@pytest.mark.slow
@on_sqlite
async def test_a_store_in_contact_asks_for_no_list(world: World, client: AsyncClient, kind: str) -> None:
    """However quiet its business is: `reconcile` keeps the contact. After five minutes without, one list is read."""
    for each in range(4):
        await world.pay(client, [order(kind, f"own {each}", each)])
        for _ in range(5):
            await anyio.sleep(2 * MINUTE)
            await client.payments.reconcile()
    assert world.service.lists == 0
    await anyio.sleep(6 * MINUTE)
    await world.pay(client, [order(kind, "later", 60)])
    assert world.service.lists == 1
    await world.pay(client, [order(kind, "another", 61)])
    assert world.service.lists == 1


async def test_a_store_that_follows_by_lookups_alone_stays_in_contact(sqlite_file_url: str) -> None:
    """The list is away for twenty minutes, single transactions are shown: then a disbursement waits for no list."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "first", 100)])
        world.service.answer_list = lambda request: error(500, None)
        for _ in range(10):
            await anyio.sleep(2 * MINUTE)
            await client.transactions.get(world.service.payments[0].id)
        await world.pay(client, [order("disbursements", "next", 101)])


@pytest.mark.parametrize("part", ["poller", pytest.param("dispatcher", marks=pytest.mark.slow)])
async def test_a_process_with_nothing_to_do_stays_in_contact(sqlite_file_url: str, part: str) -> None:
    """Its poller or dispatcher is open for six quiet minutes: then a disbursement waits for no list."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "first", 100)])
        async with getattr(client, part)():
            await anyio.sleep(6 * MINUTE)
        await world.pay(client, [order("disbursements", "next", 101)])
    assert world.service.lists == 0


@pytest.mark.slow
@pytest.mark.parametrize("pause", [5, 50, 100])
async def test_a_lost_answer_at_the_end_of_a_job_is_found_by_the_next(sqlite_file_url: str, pause: float) -> None:
    """A payout's answer is too late for tonight's job, which ends with it: tomorrow's finds that it was made."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        for each in range(2):
            await world.pay(client, [order("disbursements", f"first {each}", 100 + each)])
            await anyio.sleep(3 * MINUTE + pause * each)
        world.service.answer_after = 90.0
        await world.attempt(client, order("disbursements", "last"))
    world.service.answer_after = 0.0
    await anyio.sleep(8 * HOUR)
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "next", 102)])
        await world.reconcile(client, *[2 * MINUTE] * 5)
        assert [(await world.get(client, "last")).transaction_id] == world.made("last")


@pytest.mark.costly("no quick test would miss what binding.keep_contact asks for after a lost answer")
async def test_a_failover_while_an_answer_is_lost(world: World, client: AsyncClient, kind: str) -> None:
    """The end of that attempt is no contact over the time that the store has lost: nothing of it is paid again."""
    lost = order(kind, "forgotten", 1)
    for each in range(5):
        await world.pay(client, [order(kind, f"kept {each}", 100 + each)])
        await anyio.sleep(4 * MINUTE)
    world.service.answer_after = 90.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.attempt, client, order(kind, "on its way", 110))
        await anyio.sleep(1)
        world.service.answer_after = 0.0
        await world.pay(client, [lost])
        forget(world.url, "forgotten%")
    await stopped(world, client, [lost])
    await anyio.sleep(2 * GRACE)
    await stopped(world, client, [lost])


async def test_a_deadline_during_a_comparison_names_the_list(sqlite_file_url: str) -> None:
    """Nothing was sent. Once `reconcile` has made the comparison, the same call goes through, and asks for no list."""
    world = make_world(sqlite_file_url)
    payout = order("disbursements", "payout", 1)
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "first", 100)])
    await anyio.sleep(10 * MINUTE)
    async with world.client(deadline=4.0) as client:
        world.service.latency = 1000.0
        said = await world.attempt(client, payout)
        assert isinstance(said, RequestTimeout) and said.outcome == "not_sent"
        assert "the service's list was not read yet: call payments.reconcile()" in str(said)
        world.service.latency = 0.0
        await client.payments.reconcile()
        lists = world.service.lists
        await world.pay(client, [payout])
        assert world.service.lists == lists


async def test_a_lost_payment_that_the_list_does_not_show_yet(world: World, client: AsyncClient) -> None:
    """Disbursements wait for the grace period, since it is certain that something was lost; collections go on."""
    lost = order("disbursements", "forgotten", 1)
    await world.pay(client, [order("disbursements", "kept", 100)])
    await anyio.sleep(MINUTE)
    world.service.list = ListBehaviour(lag=timedelta(seconds=GRACE - 10))
    await world.pay(client, [lost])
    forget(world.url, "forgotten%")
    await stopped(world, client, [lost, order("disbursements", "new", 2)])
    assert world.service.lists == 1  # it is not asked for with each payment
    await world.pay(client, [order("collections", "collection", 3)])
    await anyio.sleep(GRACE)
    await stopped(world, client, [lost])
    await world.pay(client, [order("disbursements", "new", 2)])


@pytest.mark.slow
async def test_a_list_that_is_late_completes_the_gap(world: World, kind: str) -> None:
    """What the list shows within the grace period after the first comparison is of the gap, too."""
    orders = await sell(world, kind)
    await anyio.sleep(10 * MINUTE)
    late = order(kind, "forgotten late", 50)
    async with world.client() as client:
        world.service.make("collection" if kind == "collections" else "disbursement", late.phone_number, "5000")
        world.service.list = ListBehaviour(lag=timedelta(seconds=GRACE - 10))
        await stopped(world, client, orders)
        await anyio.sleep(GRACE)
        await stopped(world, client, [late])
        await world.pay(client, [order(kind, "new", 200)])


@pytest.mark.slow
async def test_a_list_that_cannot_be_read(world: World) -> None:
    """Collections go on, disbursements wait; the comparison is made up for, whatever was paid meanwhile."""
    lost = await sell(world, "disbursements")
    await anyio.sleep(HOUR)
    world.service.answer_list = unreadable
    async with world.client() as client:
        await world.pay(client, [order("collections", "sold", 300)])
        await stopped(world, client, [*lost, order("disbursements", "new", 200)])
    world.service.answer_list = lambda request: None
    await anyio.sleep(MINUTE)
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "new", 200)])
        await stopped(world, client, lost)


@pytest.mark.slow
async def test_a_busy_merchant_is_never_stopped(world: World, client: AsyncClient, kind: str) -> None:
    """Routine comparisons stop nothing, whether the list can be read or not, is late or empty."""
    for each in range(24):
        behaviour = [ListBehaviour(), ListBehaviour(lag=timedelta(hours=2)), ListBehaviour(total_count=lambda _: 0)]
        world.service.list = behaviour[each % 3]
        world.service.answer_list = unreadable if each % 4 == 3 else lambda request: None
        await world.pay(client, [order(kind, f"k{each}", each)])
        await anyio.sleep(4 * MINUTE)


@pytest.mark.parametrize("head", ["25568***", "XXXXXX"])
async def test_masked_numbers_stop_what_fits_them(world: World, kind: str, head: str) -> None:
    """Where the list shows a part of a number, that part counts; an import then needs the whole number."""
    world.service.list = ListBehaviour(spell=lambda row: {**row, "phone_number": head + row["phone_number"][-4:]})
    orders = await sell(world, kind, forgotten=2)
    await anyio.sleep(HOUR)
    async with world.client() as client:
        await stopped(world, client, orders)
        await world.pay(client, [order(kind, "new", 9_200)])
        payments: Any = client.payments
        name = world.made("forgotten 0")[0]
        await payments.recover({"forgotten 0": name}, note="Asha", phone_numbers={name: orders[0].phone_number})
        await world.pay(client, orders[:1])


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, True),
        ({"state": "explained"}, False),
        ({"state": "claimed"}, False),
        ({"status": "FAILED"}, False),
        ({"status": "TIMEOUT"}, False),
        ({"status": "UNDER_REVIEW"}, True),
        ({"is_lost": False}, False),
        ({"amount": "1001"}, False),
        ({"shown_number": "25578***0780"}, False),
        ({"shown_number": "***789"}, True),
        ({"shown_number": "***780"}, False),
        ({"type": "disbursement"}, False),
        ({"type": "C2B"}, True),
        ({"account": "another"}, False),
        ({"number_digest": digest("", "+255780000789")}, False),  # of a whole number, which is compared elsewhere
        # Compared there by its type too, which must be a known one.
        ({"number_digest": digest("", "+255780000789"), "type": "C2B"}, True),
        ({"number_digest": digest("", "+255780000780"), "type": "C2B"}, False),
    ],
    ids=str,
)
def test_a_forgotten_transaction_with_a_masked_number_stops_what_it_may_be(
    changes: dict[str, Any], stops: bool
) -> None:
    """One that has failed, or is known, stops nothing, and nor does one that is certainly another payment."""
    engine = sa.create_engine("sqlite://")
    schema.METADATA.create_all(engine)
    request = PaymentRequest(key="k", type=TransactionType.COLLECTION, phone_number="+255780000789", amount="1000")
    with engine.begin() as connection:
        insert_line(connection, **{"account": "a", "is_lost": True, "shown_number": "25578***0789", **changes})
        with pytest.raises(DuplicateSuspected) if stops else nullcontext():
            require_remembered(Journal(connection, "a"), request)
    engine.dispose()


def test_a_forgotten_transaction_stops_no_payment_of_another_kind() -> None:
    """Also where one of its kind is not claimed, and stops nothing, since it fits no payment; others fit one."""
    engine = sa.create_engine("sqlite://")
    schema.METADATA.create_all(engine)
    request = PaymentRequest(key="k", type=TransactionType.COLLECTION, phone_number="+255780000789", amount="1000")
    guard = DuplicateGuard()
    with engine.begin() as connection:
        insert_line(connection, account="a", is_lost=True, amount="777")
        journal = Journal(connection, "a")
        checks = guard.parameters(journal, request, NOON)
        insert_line(connection, account="a", transaction_id="tx-2", number_digest=checks["of_digest"])
        others = ({"number_digest": "another"}, {"amount": "1001"}, {"type": "disbursement"}, {"state": "explained"})
        for name, other in enumerate(others, 3):
            line = {"number_digest": checks["of_digest"], "fits_key": "old", **other}
            insert_line(connection, account="a", transaction_id=f"tx-{name}", **line)
        guard.require_unsuspected(journal, request, "tx-2", checks)
    engine.dispose()


def test_a_payment_is_compared_with_the_lines_of_its_kind_only() -> None:
    """However many transactions nothing owns, and whether they show whole numbers or not."""
    engine = sa.create_engine("sqlite://")
    schema.METADATA.create_all(engine)
    compiled = sa.select(SUSPECT[True]).compile(engine)
    with engine.begin() as connection:
        asked = f"EXPLAIN QUERY PLAN {compiled}", (None,) * len(compiled.positiontup or ())
        plan = [row.detail for row in connection.exec_driver_sql(*asked) if "_unmatched" in row.detail]
    engine.dispose()
    assert len(plan) == 2
    assert all("(account=? AND number_digest=? AND type=? AND amount=?)" in each for each in plan), plan


async def test_another_merchant_is_reported_and_an_operator_may_rebind(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One event and one warning; new credentials of the same merchant are accepted by themselves."""
    caplog.set_level(logging.WARNING)
    world, events = make_world(store_url), list[Any]()
    world.service.merchants = {TOKEN: "merchant-1", "new.token": "merchant-1", "other.token": "merchant-2"}
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "first", 1)])
    limiter = RateLimiter(burst=1)
    await limiter.acquire()
    async with world.client(auth="new.token", rate_limiter=limiter, on_event=events.append) as client:
        await world.pay(client, [order("disbursements", "second", 2)])
        assert world.service.lookups == 1
        waited = [each.lane for each in events if isinstance(each, LimiterWaited)]
        print(waited, world.service.lists)
        assert waited[0] == "PAYMENT"  # every payment waits for it
    async with world.client(auth="other.token", on_event=events.append) as client:
        await stopped(world, client, [order("collections", "third", 3), order("disbursements", "fourth", 4)])
        assert len([event for event in events if isinstance(event, AccountMismatch)]) == 1
        assert len(caplog.records) == 1
        payments: Any = client.payments
        for call in (payments.reconcile(), payments.recover({"k": "t"}, note="Asha")):
            with pytest.raises(StoreError, match="rebind"):
                await call
        await payments.rebind(note="Asha:\0 the service has moved")
        await world.pay(client, [order("collections", "third", 3)])
    assert not [event for event in events if isinstance(event, StoreBehind)]


async def test_new_credentials_that_cannot_be_checked(world: World, kind: str) -> None:
    """Nothing is sent with them until they are, and ten seconds after the look-up works again they are."""
    world.service.merchants = {TOKEN: "merchant-1", "new.token": "merchant-1"}
    async with world.client() as client:
        await world.pay(client, [order(kind, "first", 1)])
    world.service.answer_lookup = lambda request: error(500, None)
    async with world.client(auth="new.token") as client:
        said = await world.attempt(client, order(kind, "second", 2))
        assert (type(said), world.posts("second")) == (StoreError, 0), said
        world.service.answer_lookup = lambda request: None
        await anyio.sleep(10)
        await world.pay(client, [order(kind, "second", 2)])


async def test_new_credentials_that_show_another_payment_pay_nothing(sqlite_file_url: str) -> None:
    """Under the id of ours: two merchants may have the same ids."""
    world, events = make_world(sqlite_file_url), list[Any]()
    world.service.merchants = {TOKEN: "merchant-1", "new.token": "merchant-1"}
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "first", 1)])
    world.service.payments[0].amount = "7"
    async with world.client(auth="new.token", on_event=events.append) as client:
        await stopped(world, client, [order("collections", "second", 2)])
    assert len([event for event in events if isinstance(event, AccountMismatch)]) == 1


@pytest.mark.parametrize("haste", ["timeout", "deadline"])
async def test_a_look_up_that_was_too_slow_for_one_caller(world: World, haste: str) -> None:
    """It stops that caller only: others, which wait longer, look for themselves."""
    world.service.merchants = {TOKEN: "merchant-1", "new.token": "merchant-1"}
    async with world.client() as client:
        await world.pay(client, [order("collections", "first", 1)])
    world.service.latency = 3.0
    async with world.client(auth="new.token") as client:
        hasty: dict[str, Any] = {haste: 1.0}
        with pytest.raises(StoreError):
            await client.with_options(**hasty).payments.reconcile()
        await world.pay(client, [order("collections", "second", 2)])


async def test_a_key_that_was_sent_again_in_the_forgotten_time(store_url: str, kind: str) -> None:
    """A key that the store knows as refused for certain is stopped as well, and may be imported."""
    world, again = make_world(store_url), order(kind, "again", 1)
    async with world.client() as client:
        await world.pay(client, [order(kind, "first", 100)])
        await world.answered(client, again, refuse, made=False)
    await anyio.sleep(MINUTE)
    made = world.service.make("collection" if kind == "collections" else "disbursement", again.phone_number, "5000")
    await anyio.sleep(HOUR)
    async with world.client() as client:
        said = await world.attempt(client, again)
        assert isinstance(said, DuplicateSuspected), said
        payments: Any = client.payments
        (record,) = await payments.recover({"again": made.id}, note="Asha")
        assert record.transaction_id == made.id
        assert isinstance(await world.attempt(client, again), Acknowledgement)
        assert world.posts("again") == 1


@pytest.mark.parametrize("was_cancelled", [True, False])
async def test_a_key_that_was_cancelled_here_and_sent_in_the_forgotten_time(
    world: World, client: AsyncClient, was_cancelled: bool
) -> None:
    """An operator's word gives it its transaction; it is followed and told as each payment, and never sent."""
    ordered: dict[str, Any] = {"type": "disbursement", "phone_number": number(1), "amount": 5000}
    await client.payments.enqueue(**ordered, idempotency_key="salary")
    if was_cancelled:
        await client.payments.cancel("salary", note="Asha: paid in cash")
    made = world.service.make("disbursement", number(1), "5000")
    await anyio.sleep(HOUR)
    (record,) = await client.payments.recover({"salary": made.id}, note="Asha: our books")
    assert (record.state, record.transaction_id) == (PaymentState.ACKNOWLEDGED, made.id)
    world.service.finish(made)
    async with client.poller(resume=True) as poller:
        await poller.wait(made.id)
    told = [each.state async for each in client.payments.changes(forever=False)]
    assert told[-2:] == [PaymentState.ACKNOWLEDGED, PaymentState.FINAL]
    assert (await client.payments.enqueue(**ordered, idempotency_key="salary")).state is PaymentState.FINAL
    assert not world.service.posts


# Another merchant


OTHER_HOST = "https://sandbox.second.example/v1"


@pytest.mark.parametrize("other", [{"base_url": OTHER_HOST}, {"auth": "token.of.a.trial"}], ids=str)
async def test_an_account_may_move_before_its_first_payment(sqlite_file_url: str, other: dict[str, str]) -> None:
    """The first payment is bound to its host and token, and no later one looks a transaction up for them."""
    world = make_world(sqlite_file_url)
    async with world.client(**other) as client:
        await client.payments.reconcile()
    async with world.client() as client:
        await world.pay(client, [order("collections", "a", 1), order("collections", "b", 2)])
    assert "lookup" not in {event.what for event in world.service.log}


# A store that is behind its service


@pytest.mark.parametrize("what", ["another payment", "another attempt"])
async def test_a_backup_that_is_restored_beneath_a_process(world: World, what: str) -> None:
    """The store has the newest payment of the process, but lacks one of another process, or one that was sent again."""
    asked = order("disbursements", "asked")
    async with world.client() as client, world.client() as other:
        if what == "another attempt":
            await world.answered(client, asked, refuse, made=False)
        await world.pay(client, [order("disbursements", "kept 0", 100)])
        await anyio.sleep(MINUTE)
        await world.pay(other, [order("disbursements", "kept 1", 101)])
        await anyio.sleep(MINUTE)
        await world.pay(client, [order("disbursements", "kept 2", 102)])
        await anyio.sleep(MINUTE)
        tables = dump(world.url)
        await world.pay(client if what == "another attempt" else other, [asked])
        replace(world.url, tables)
        await anyio.sleep(10 * MINUTE)
        await stopped(world, client, [asked])


@pytest.mark.costly("runs lines of payments/ownership/imports.py that no quick test runs")
async def test_what_was_forgotten_is_imported_under_its_keys(
    store_url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An explanation lifts the stop of one kind; an import does, and its keys then return what they have made.

    An hour later the account has no gap any more: its creates look for none.
    """
    world, events = make_world(store_url), list[Any]()
    forgotten = [order(kind, f"forgotten {each}", each) for each in range(12)]
    async with world.client() as client:
        await world.pay(client, [order(kind, "kept", 100)])
        backup = dump(world.url, schema.METADATA.sorted_tables)
        await world.pay(client, forgotten)
    replace(world.url, backup)
    await anyio.sleep(HOUR)
    async with world.client(on_event=events.append) as client:
        for each in forgotten[:3]:
            assert isinstance(await world.attempt(client, each), DuplicateSuspected)
        payments: Any = client.payments
        gap = [each for each in await payments.unclaimed() if each.is_gap]
        assert len(gap) == len(forgotten)
        assert [event.transactions for event in events if isinstance(event, StoreBehind)] == [len(gap)]
        assert caplog.text.count("behind the service") == 1
        stopped: Any = await world.attempt(client, forgotten[0])
        assert "payments recover" in str(stopped) and "payments explain" in str(stopped)
        keys = {each.key: world.made(each.key)[0] for each in forgotten}
        shown = json.loads(serialization.dump(await client.transactions.get(keys["forgotten 0"])))
        others = ({"amount": "900000"}, {"amount": "1.5"}, {"phone_number": "+255781234567"})
        for change in others:
            body = {"status": "success", "transaction": shown | change}
            world.service.answer_lookup = lambda _, body=body: httpx.Response(200, json=body)  # type: ignore[misc]
            with pytest.raises(StoreError, match=r"another amount or phone number") as refused:
                await payments.recover({"forgotten 0": shown["id"]}, note="Asha: what the list showed was another")
            assert refused.value.outcome == "not_sent"
        world.service.answer_lookup = lambda _: error(404, "TRANSACTION_NOT_FOUND")  # the list suffices for so many
        client._pipeline.limiter.hold(1)
        assert [each.key for each in await payments.recover(keys, note="Asha: our books")] == list(keys)
        assert {each.lane for each in events if isinstance(each, LimiterWaited)} == {"BULK"}  # all others go first
        await payments.recover(keys, note="Asha: again")
        world.service.answer_lookup = lambda request: None
        posts = world.service.posts
        await world.pay(client, forgotten)
        assert world.service.posts == posts
        assert await payments.unclaimed() == []
        await world.reconcile(client, 0.0)
        await world.hold(client, at_end=True)
        with pytest.raises(StoreError, match="is payment 'forgotten 0' already"):
            await payments.recover({"new": keys["forgotten 0"]}, note="Asha: wrong")
        for note in ("lost_at IS NOT NULL", "lost_at IS NULL"):
            with sa.create_engine(world.url, poolclass=sa.NullPool).connect() as connection:
                assert connection.execute(sa.text(f"SELECT {note} FROM mobilemoney_accounts")).scalar_one()
            await anyio.sleep(HOUR)
            await world.pay(client, [order(kind, f"later {note}", 50 + len(note))])


@pytest.mark.costly("runs lines of payments/outbox/outbox.py, payments/ownership/imports.py that no quick test runs")
async def test_a_restored_store_with_queued_payments_is_still_quiet(world: World) -> None:
    """What is enqueued after a backup was restored does not pass for a payment that the service has seen."""
    forgotten = [order("disbursements", f"forgotten {each}", each) for each in range(3)]
    async with world.client() as client:
        await world.pay(client, [order("disbursements", "kept", 100)])
        backup = dump(world.url, schema.METADATA.sorted_tables)
        await world.pay(client, forgotten)
    replace(world.url, backup)
    await anyio.sleep(10 * MINUTE)
    async with world.client() as client:
        payments: Any = client.payments
        for each in forgotten:
            asked = {"type": "disbursement", "phone_number": each.phone_number, "amount": each.amount}
            await payments.enqueue(**asked, idempotency_key=each.key)
        posts = world.service.posts
        async with client.dispatcher():
            await anyio.sleep(MINUTE)
        assert world.service.posts == posts
        keys = {each.key: world.made(each.key)[0] for each in forgotten}
        imported = await payments.recover(keys, note="Asha: our books")
        assert [(each.key, each.attempt, each.transaction_id) for each in imported] == [
            (key, 1, name) for key, name in keys.items()
        ]
        await world.hold(client, at_end=True)


@pytest.mark.slow
@pytest.mark.parametrize("is_living", [True, False])
async def test_a_backup_from_before_the_first_payment_pays_nothing_again(
    world: World, kind: str, is_living: bool
) -> None:
    """It holds a queued payment only: a new process compares it, and a living one drops the key of its digests."""
    orders = [order(kind, f"order {each}", each) for each in range(3)]
    later: dict[str, Any] = {"type": "disbursement", "phone_number": number(99), "amount": 1}
    async with world.client() as client:
        await client.payments.enqueue(**later, idempotency_key="later", not_before=timedelta(days=9))
        backup = dump(world.url)
        await anyio.sleep(10 * MINUTE)
        await world.pay(client, orders)
        posts = world.service.posts
        await anyio.sleep(10 * MINUTE)
        replace(world.url, backup)
        if is_living:
            await try_again(world, client, orders)
    if not is_living:
        await anyio.sleep(3 * HOUR)
        async with world.client() as client:
            await try_again(world, client, orders)
    assert world.service.posts == posts


async def try_again(world: World, client: AsyncClient, orders: list[Order]) -> None:
    """Try orders again at once, and once the list has to show what was made."""
    for pause in (0, GRACE + MINUTE):
        await anyio.sleep(pause)
        for each in orders:
            assert isinstance(await world.attempt(client, each), MobileMoneyError)


@pytest.mark.slow
async def test_a_call_whose_deadline_ends_as_it_takes_the_lease_gives_it_back(sqlite_file_url: str) -> None:
    """The next payment, of another process, does not wait for a comparison that nobody makes."""
    world, store = make_world(sqlite_file_url), SQLStore(sqlite_file_url, grace=GRACE)
    delay = Delay(account_store(store).database)
    async with world.client(store=store, deadline=5.0) as client, world.client() as other:
        await world.pay(client, [Order("A", "disbursements", number(1))])
        await anyio.sleep(24 * HOUR)
        for order in (Order("B", "collections", number(2)), Order("C", "disbursements", number(3))):
            delay.seconds = 20.0
            assert isinstance(await world.attempt(client, order), MobileMoneyError)
            delay.seconds, began = 0.0, anyio.current_time()
            await world.pay(other, [Order(f"{order.key}2", "disbursements", number(4))])
            assert anyio.current_time() - began < 5
            await anyio.sleep(24 * HOUR)


async def test_old_payments_that_were_moved_away_are_no_forgotten_ones(sqlite_file_url: str) -> None:
    """As docs/database.md says how: neither for the comparison of a new life, nor in a listing of their day."""
    world, columns = make_world(sqlite_file_url), schema.payments.c
    async with world.client() as client:
        await world.pay(client, [Order("old", "disbursements", number(1))])
        await anyio.sleep(3 * 24 * HOUR)
        await world.pay(client, [Order("newest", "disbursements", number(2))])
    await anyio.sleep(40 * 24 * HOUR)
    (made, newest) = (payment.created_at for payment in world.service.payments)
    edit(world.url, schema.payments.delete().where(columns.changed_at < made + timedelta(days=1)))
    edit(world.url, schema.accounts.update().values(first_record_at=made + timedelta(days=1.5)))
    assert newest > made + timedelta(days=2)
    async with world.client() as client:
        await world.pay(client, [Order("again", "disbursements", number(1))])
        for _ in range(2):
            await world.read(client)
            await anyio.sleep(HOUR)
        assert await client.payments.unclaimed() == []


@pytest.mark.parametrize("is_hidden", [False, True])
async def test_a_failover_in_the_first_life_of_an_account_is_noticed(postgres_url: str, is_hidden: bool) -> None:
    """Before it ever paused: the server that has taken over lacks the last payment, and has another timeline.

    Also where PostgreSQL has shown none at the first payment: it is noted once it does.
    """
    world, salary = make_world(postgres_url), Order("salary", "disbursements", number(2), 50_000)
    async with world.client() as client:
        await world.pay(client, [Order("first", "disbursements", number(1))])
        if is_hidden:
            edit(world.url, schema.accounts.update().values(timeline=None))
        await anyio.sleep(2 * MINUTE)
        await world.pay(client, [Order("next", "disbursements", number(1))])
        await world.pay(client, [salary])
    edit(world.url, schema.payments.delete().where(schema.payments.c.key == salary.key))
    edit(world.url, schema.accounts.update().values(timeline=schema.accounts.c.timeline - 1))
    async with world.client() as client:
        assert isinstance(await world.attempt(client, salary), DuplicateSuspected | StoreError)
    assert len(world.service.payments) == 3
