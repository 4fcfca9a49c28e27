"""The audit: what differs between the store and the service, in words."""

from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import APIError, AsyncClient, AuditReport, InvalidRequest, OutcomeUnknown, RateLimiter
from mobilemoney_async.database.schema import payments
from mobilemoney_async.events import Event, LimiterWaited
from mobilemoney_async.sandbox import Choices, faults
from tests.payments import second_world
from tests.payments.service import ORDER, PHONE_NUMBER, World, make_world, on_one
from tests.payments.steps import settle
from tests.payments.tables import edit
from tests.support.scale import crossed

pytestmark = pytest.mark.pairs


async def audit(world: World, client: AsyncClient) -> AuditReport:
    today = world.utcnow().date()
    return await client.payments.audit(from_date=today, to_date=today)


async def pay(client: AsyncClient, *amounts: int) -> None:
    for amount in amounts:
        await client.collections.create(**{**ORDER, "amount": amount}, idempotency_key=f"k{amount}")


async def finish(client: AsyncClient) -> None:
    """Let all payments end, and see it: a poller that waited for them would look twice in each second."""
    await anyio.sleep(Choices().longest_delay)
    await settle(client)


def change(world: World, key: str, **values: Any) -> None:
    """Change a row behind the library's back."""
    edit(world.url, payments.update().where(payments.c.key == key).values(values))


async def test_books_that_agree_are_clean_and_come_with_their_totals(world: World) -> None:
    """By type, status and settlement batch, with gross, fees and net."""
    async with world.client() as client:
        await pay(client, 1000, 2000)
        await finish(client)
        await client.disbursements.create(**ORDER, idempotency_key="d")
        report = await audit(world, client)
    assert report.is_clean and (report.transactions, report.payments, report.unsettled) == (3, 3, [])
    collected = next(each for each in report.totals if each.type == "collection")
    assert (collected.count, collected.gross, collected.status) == (2, Decimal(3000), "SUCCESS")
    assert collected.fees is not None and collected.settlement_batch is not None
    assert collected.net == collected.gross - collected.fees < 3000
    disbursed = next(each for each in report.totals if each.type == "disbursement")
    assert (disbursed.gross, disbursed.fees, disbursed.net) == (Decimal(1000), None, None)  # not shown, so not 0


@pytest.mark.costly("runs lines of payments/audit/report.py, payments/audit/audit.py that no quick test runs")
async def test_each_kind_of_difference_has_a_reason_and_a_next_step(world: World) -> None:
    """A stranger, a second payment, another state or amount, an unknown result, one that is gone or hidden."""

    def hide(body: dict[str, Any]) -> None:
        body["transactions"] = [row for row in body["transactions"] if not row["amount"].startswith("80")]
        body["pagination"]["total_count"] -= 1

    world.line.change_page = hide
    async with world.client() as client, world.client(store=world.store(account="other system")) as other:
        for amount in (70, 80):
            await pay(client, amount)
            await anyio.sleep(900)
        await pay(client, 1000, 2000, 3000, 6000)
        await finish(client)
        await pay(client, 4000)
        await pay(other, 77, 1000)
        world.sandbox.script(faults.server_error(422, processed=True), on="c2b")
        with pytest.raises(APIError):
            await pay(client, 7000)
        world.sandbox.script(faults.lost(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await pay(client, 5000)
        world.sandbox.script(faults.lost(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await pay(client, 9000)
        await finish(other)
        change(world, "k2000", amount="2001")
        change(world, "k3000", transaction_id="txn_gone", sent_at=world.utcnow() - timedelta(seconds=80))
        change(world, "k6000", status="FAILED")
        await anyio.sleep(60)
        report = await audit(world, client)
        assert AuditReport.from_dict(report.to_dict()) == report
        found = {(str(each.kind), each.key) for each in report.differences}
        advice = {each.key: each.advice for each in report.differences if each.kind == "state"}
        (hidden,) = (each.reason for each in report.differences if (each.kind, each.key) == ("missing", "k80"))
        commands = {(str(each.kind), each.key): each.commands for each in report.differences}
        may_be_it, may_be_refused = (
            next(each.commands for each in report.differences if f"may be payment 'k{amount}'" in each.reason)
            for amount in (9000, 7000)
        )
    assert "follow it" in advice["k4000"] and "ask the service" in advice["k6000"]
    assert ("unclaimed", None) in found
    assert ("paid_twice", "k1000") in found
    assert ("content", "k2000") in found
    assert ("missing", "k3000") in found
    assert hidden.endswith("of payment 'k80', but the service knows it")
    assert ("state", "k4000") in found
    assert ("unresolved", "k5000") in found
    assert all(each.reason and each.advice for each in report.differences)
    assert commands["unresolved", "k5000"] == (("payments", "reconcile"),)
    assert [each[:3] for each in may_be_it] == [("payments", "reconcile"), ("payments", "identify", "k9000")]
    # Not identify, which takes an unknown payment alone.
    assert [each[:2] for each in may_be_refused] == [("payments", "recover"), ("payments", "explain")]
    assert may_be_refused[0][2].startswith("k7000=")
    assert commands["missing", "k3000"] == (("payments", "show", "k3000"),)
    assert commands["paid_twice", "k1000"][0][:2] == commands["unclaimed", None][0][:2] == ("payments", "explain")
    assert commands["state", "k4000"][0][0] == "watch"
    assert PHONE_NUMBER not in repr(report)


async def test_a_list_that_cannot_be_read_as_a_whole_is_not_clean(world: World, client: AsyncClient) -> None:
    """And nothing is called missing because of it; while nothing can be looked up, a single payment is."""
    await pay(client, 1000, 2000, 3000)
    world.sandbox.script(faults.list_lag(3600), on="GET transactions", times=100)
    report = await audit(world, client)
    assert {str(each.kind) for each in report.differences} <= {"incomplete"}
    world.sandbox.script(faults.server_error(processed=False), on="GET transaction", times=100)
    await anyio.sleep(600)
    world.line.paths.clear()
    report = await audit(world, client)
    assert {str(each.kind) for each in report.differences} == {"incomplete"}
    assert len({each for each in world.line.paths if "/transaction/" in each}) == 1


@on_one
async def test_an_audit_lets_all_others_go_first(world: World) -> None:
    """Its look-ups, too, of what the list does not show."""
    events: list[Event] = []
    async with world.client() as client:
        await pay(client, 1000, 2000)
    await anyio.sleep(600)
    world.sandbox.script(faults.list_lag(3600), on="GET transactions", times=100)
    slow = RateLimiter(per_minute=60, burst=1)
    async with world.client(rate_limiter=slow, on_event=events.append) as client:
        await audit(world, client)
    assert {each.lane for each in events if isinstance(each, LimiterWaited)} == {"BULK"}


async def test_other_days_are_not_compared(world: World, client: AsyncClient) -> None:
    """Nor is anything changed."""
    await pay(client, 1000)
    yesterday = world.utcnow().date() - timedelta(days=1)
    before = await client.payments.list()
    report = await client.payments.audit(from_date=yesterday, to_date=yesterday)
    assert (report.is_clean, report.payments, report.transactions) == (True, 0, 0)
    assert await client.payments.list() == before
    wrong: list[tuple[Any, Any]] = [("2026-01-01", yesterday), (yesterday, world.utcnow()), (date.max, yesterday)]
    for first, last in wrong:
        with pytest.raises(InvalidRequest):
            await client.payments.audit(from_date=first, to_date=last)


def by_the_days_of(world: World, zone: timedelta, *, excludes_last: bool = False) -> None:
    """Let the days of the service's list begin at another hour, or `to` be the first day that it leaves out.

    All of its rows are on one page.
    """
    days: dict[str, date] = {}
    spare = timedelta(days=excludes_last)

    def ask_for_all(request: httpx.Request) -> None:
        if request.url.path.endswith("/transactions"):
            asked = {name: request.url.params.get(name, "9999-01-01") for name in ("from", "to")}
            days.update({name: date.fromisoformat(day) for name, day in asked.items()})
            request.url = request.url.copy_with(query=b"limit=100")

    def leave_out(body: dict[str, Any]) -> None:
        moments = ((row, datetime.fromisoformat(row["created_at"]) + zone) for row in body["transactions"])
        body["transactions"] = [row for row, at in moments if days["from"] <= at.date() <= days["to"] - spare]
        body["pagination"]["total_count"] = len(body["transactions"])

    world.line.before, world.line.change_page = ask_for_all, leave_out


def change_rows(world: World, change: Callable[[dict[str, Any]], object]) -> None:
    """Let the list show each row in another way."""
    world.line.change_page = lambda body: [change(row) for row in body["transactions"]]


@pytest.mark.parametrize(("hours", "excludes_last"), crossed([-11, 3, 13], [True, False]))
async def test_the_days_of_the_service_may_begin_at_another_hour(
    sqlite_file_url: str, hours: int, excludes_last: bool
) -> None:
    """Its list may leave out the last day, too: every payment of a day of UTC is compared, and no other."""
    world = make_world(sqlite_file_url)
    by_the_days_of(world, timedelta(hours=hours), excludes_last=excludes_last)
    async with world.client() as client:
        for amount in range(1, 7):  # every ten hours from 12:00 on
            await pay(client, amount)
            await finish(client)
            await anyio.sleep(10 * 3600)
        day = world.utcnow().date() - timedelta(days=2)  # of the third and the fourth
        change(world, "k3", amount="99")
        change(world, "k4", transaction_id="txn_gone")
        change(world, "k5", transaction_id="txn_lost")
        report = await client.payments.audit(from_date=day, to_date=day)
    assert (report.transactions, report.payments) == (2, 2)
    assert {(str(each.kind), each.key) for each in report.differences} == {
        ("content", "k3"),
        ("missing", "k4"),
        ("unclaimed", None),
    }


@pytest.mark.parametrize("count", [3, 60])
async def test_a_list_that_shows_nothing_is_not_clean(world: World, count: int) -> None:
    """Not even where each payment of the store can be looked up: a second one for a payment would not be seen."""
    async with world.client() as client:
        await pay(client, *range(1, count + 1))
        await finish(client)
        await anyio.sleep(24 * 3600)
        world.line.change_page = lambda body: body.update(
            transactions=[], pagination=body["pagination"] | {"total_count": 0}
        )
        day = world.utcnow().date() - timedelta(days=1)
        report = await client.payments.audit(from_date=day, to_date=day)
    assert [str(each.kind) for each in report.differences] == ["incomplete"]
    assert str(count) in report.differences[0].reason


async def test_a_list_that_masks_numbers_and_names_types_in_its_own_way_is_no_difference(world: World) -> None:
    """Only what contradicts is: another amount, number, type, currency or merchant, each in words."""
    async with world.client() as client:
        await pay(client, 1000, 2000)

        def mask(row: dict[str, Any]) -> None:
            row |= {"phone_number": "+255…", "type": "C2B"}

        def contradict(row: dict[str, Any]) -> None:
            row |= {"phone_number": "+255700000000", "type": "disbursement", "currency": "KES", "amount": "999.50"}

        def swap(row: dict[str, Any]) -> None:
            row |= {"type": "disbursement"} if Decimal(row["amount"]) == 1000 else {}

        change_rows(world, mask)
        assert (await audit(world, client)).is_clean
        change_rows(world, swap)
        (only,) = (await audit(world, client)).differences
        assert only.reason == "payment 'k1000': the type is collection here, and disbursement at the service"
        change_rows(world, contradict)
        found = (await audit(world, client)).differences
        (first,) = (each for each in found if each.key == "k1000")
    for said in ("1000 here, and 999.50", "currency", "phone number", "collection here, and disbursement"):
        assert said in first.reason


@pytest.mark.slow
async def test_explained_transactions_and_those_of_other_systems_are_no_differences(world: World) -> None:
    """With `sole_writer=False`, only what fits a payment of yours within a day is one."""
    sole, shared = world.store(grace=1), world.store(grace=1, sole_writer=False)
    async with world.client(store=sole) as client, world.client(store=world.store(account="till")) as other:
        await pay(client, 1000)
        await finish(client)
        await pay(other, 77)
        await audit(world, client)
        await anyio.sleep(30)
        (found,) = (await audit(world, client)).differences
        assert found.kind == "unclaimed" and found.transaction_id is not None
        async with world.client(store=shared) as modest:
            assert (await audit(world, modest)).is_clean
        await client.payments.explain(found.transaction_id, note="Asha: the old till")
        assert (await audit(world, client)).is_clean


@pytest.mark.slow
async def test_paid_twice_is_only_what_may_have_moved_money_twice_within_a_day(world: World) -> None:
    """A customer who pays again after a failure, or again next week, has not paid twice."""
    failing: dict[str, Any] = {"phone_number": "+255780000039", "amount": 1000}
    till = world.store(account="till", sole_writer=False)
    async with world.client() as client, world.client(store=till) as other:
        await client.collections.create(**failing, idempotency_key="fails")
        await pay(client, 2000)
        await finish(client)
        first = world.utcnow().date()
        await other.collections.create(**failing)
        await other.collections.create(**{**ORDER, "amount": 2000})
        await anyio.sleep(3 * 86_400)
        await other.collections.create(**{**ORDER, "amount": 2000}, idempotency_key="next week")
        await anyio.sleep(121)
        report = await client.payments.audit(from_date=first, to_date=world.utcnow().date())
    kinds = Counter(str(each.kind) for each in report.differences)
    assert kinds == {"unclaimed": 2, "paid_twice": 1}


async def test_a_row_without_a_time_may_be_a_payment_of_any_time(sqlite_file_url: str) -> None:
    """The audit compares it all the same."""
    world = make_world(sqlite_file_url)
    async with world.client() as client, world.client(store=world.store(account="till", sole_writer=False)) as other:
        await pay(client, 1000)
        await other.collections.create(**ORDER)
        change_rows(world, lambda row: row.pop("created_at"))
        await anyio.sleep(600)
        report = await audit(world, client)
    assert "paid_twice" in {str(each.kind) for each in report.differences}


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (("FINAL", "FAILED"), ("FINAL", "SUCCESS"), ["paid_twice"]),
        (("FINAL", "FAILED"), ("ACKNOWLEDGED", "PENDING"), ["paid_twice"]),
        (("FINAL", "FAILED"), ("FINAL", "FAILED"), []),
        (("RELEASED", None), ("FINAL", "FAILED"), ["unresolved"]),
        (("RELEASED", None), ("FINAL", "SUCCESS"), ["paid_twice"]),
        (("FINAL", "FAILED"), ("SENDING", None), ["unresolved"]),
    ],
)
async def test_beside_other_systems_each_payment_of_its_kind_may_be_a_transaction(
    sqlite_file_url: str, first: tuple[str, str | None], second: tuple[str, str | None], found: list[str]
) -> None:
    """Not the nearest alone; also one that was called absent, and one whose request is younger than the transaction."""
    world = second_world.make_world(sqlite_file_url)
    world.sole_writer = False
    async with world.client() as client:
        for key, (state, status) in (("first", first), ("second", second)):
            await world.pay(client, [second_world.Order(key, "collections", second_world.number(1))])
            payment, values = world.service.payments[-1], {"state": state, "status": status}
            if status is None:
                world.service.payments.remove(payment)
                values["transaction_id"] = None
            else:
                world.service.finish(payment, status)
            edit(world.url, payments.update().where(payments.c.key == key).values(values))
            if key == "first":
                await anyio.sleep(300)
                stranger = world.service.make("collection", payment.phone_number, payment.amount, id="stranger")
                world.service.finish(stranger)
                await anyio.sleep(900)
        today = world.utcnow().date()
        report = await client.payments.audit(from_date=today, to_date=today)
    assert [str(each.kind) for each in report.differences if each.transaction_id == "stranger"] == found
    assert not report.on_its_way


async def test_an_audit_while_payments_are_sent_calls_none_of_them_unclaimed(store_url: str) -> None:
    """Also those that are sent after the list was begun, and answered after it was read."""
    world = make_world(store_url, median_delay=4000.0, longest_delay=8000.0)
    world.line.before = lambda request: anyio.sleep(2.0 if request.method == "GET" else 0.0)
    world.line.after = lambda request: anyio.sleep(0.0 if request.method == "GET" else 3.0)
    reports = list[AuditReport]()
    async with world.client(store=world.store(grace=0)) as client, anyio.create_task_group() as tasks:

        async def look() -> None:
            reports.append(await audit(world, client))

        for number in range(8):
            tasks.start_soon(pay, client, 1000 + number)
            tasks.start_soon(look)
            await anyio.sleep(1)
    assert [each.reason for report in reports for each in report.differences] == []
    assert all(report.on_its_way for report in reports[:4])


@pytest.mark.parametrize("ahead", [timedelta(minutes=-10), timedelta(minutes=10)])
async def test_a_stranger_is_on_its_way_until_it_is_older_than_the_grace_period(
    sqlite_file_url: str, ahead: timedelta
) -> None:
    """By the service's clock, as the own payments show it."""
    world = make_world(sqlite_file_url, median_delay=4000.0, longest_delay=8000.0)
    world.ahead = ahead
    async with world.client() as client, world.client(store=world.store(account="till")) as other:
        await pay(client, 1000)
        await pay(other, 77)
        await anyio.sleep(100)
        young = await audit(world, client)
        assert young.is_clean and young.on_its_way == world.made[1:]
        await anyio.sleep(30)
        old = await audit(world, client)
        assert not old.on_its_way and [str(each.kind) for each in old.differences] == ["unclaimed"]


@pytest.mark.slow
async def test_what_is_on_its_way_or_ends_while_the_list_is_read_is_as_it_should_be(store_url: str) -> None:
    """And a payment that the list may show before its answer has come is no stranger."""
    world = make_world(store_url, latency=5.0, median_delay=4.0, longest_delay=25.0)
    async with world.client(timeout=15.0) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(pay, client, 1000)
        await anyio.sleep(6)
        tasks.start_soon(pay, client, 2000)
        await anyio.sleep(1.5)
        tasks.start_soon(settle, client)
        report = await audit(world, client)
        tasks.cancel_scope.cancel()
    assert [(str(each.kind), each.reason) for each in report.differences] == []


async def test_rows_that_cannot_be_read_are_said_and_their_payments_are_not_missing(world: World) -> None:
    """Nor does a transaction that cannot be looked up end the audit."""
    async with world.client() as client:
        await pay(client, 1000, 2000, 3000)
        change_rows(world, lambda row: row.update({"amount": "many"} if row["amount"].startswith("2000") else {}))
        (found,) = (await audit(world, client)).differences
        assert found.kind == "incomplete" and "cannot be read: 1" in found.reason
        world.sandbox.script(faults.server_error(processed=False), on="GET transaction", times=100)
        kinds = {str(each.kind) for each in (await audit(world, client)).differences}
        assert kinds == {"incomplete"}
        world.sandbox.clear_script()
        await anyio.sleep(600)
        later = Counter(str(each.kind) for each in (await audit(world, client)).differences)
        assert later == {"incomplete": 1, "state": 3}


async def test_a_payment_that_nothing_shows_yet_is_missing_after_the_grace_period(sqlite_file_url: str) -> None:
    """Neither the list nor a lookup need show a payment at once."""
    world = make_world(sqlite_file_url, list_lag=400.0, lookup_lag=400.0)
    async with world.client() as client:
        await pay(client, 1000)
        await anyio.sleep(100)
        assert (await audit(world, client)).is_clean
        await anyio.sleep(30)
        assert [str(each.kind) for each in (await audit(world, client)).differences] == ["missing"]


@pytest.mark.parametrize("amount", [f"{10**17 + 1}.01", "0"])
async def test_totals_are_exact_and_of_this_merchant_alone(world: World, amount: str) -> None:
    """To the last of twenty digits; rows of another merchant are not counted."""
    async with world.client() as client:
        await pay(client, 1, 2, 3)
        shown = iter(["mer_0001", "mer_0001", "mer_other"])
        change_rows(world, lambda row: row.update(merchant_id=next(shown), amount=amount))
        report = await audit(world, client)
    assert [(each.count, each.gross) for each in report.totals] == [(2, 2 * Decimal(amount))]
    assert report.transactions == 2


async def test_a_transaction_in_another_currency_is_a_difference_and_in_no_total(world: World) -> None:
    """Whoever pays too, and however young it is; the shilling's usual names are no other currency."""
    shared = world.store(sole_writer=False)
    async with world.client(store=shared) as client, world.client(store=world.store(account="till")) as other:
        await pay(client, 1000)
        await pay(other, 5000)
        change_rows(world, lambda row: row.update(currency="USD" if row["amount"].startswith("5000") else "TShs"))
        report = await audit(world, client)
        (found,) = report.differences
        assert (found.kind, found.transaction_id, found.amount) == ("unclaimed", world.made[1], None)
        assert found.commands[0][:2] == ("payments", "explain") and not report.on_its_way
        assert [(each.count, each.gross) for each in report.totals] == [(1, Decimal(1000))]
        change_rows(world, lambda row: row.update(currency="USD"))  # also of a payment of ours
        report = await audit(world, client)
    assert [str(each.kind) for each in report.differences] == ["content", "unclaimed"]
    assert not report.totals


@pytest.mark.slow
@on_one
async def test_a_day_costs_its_pages(world: World, client: AsyncClient) -> None:
    """A request for a hundred transactions, and a few more, in the lane that gives way to all others."""
    async with anyio.create_task_group() as tasks:
        for amount in range(1, 202):
            tasks.start_soon(pay, client, amount)
    world.line.paths.clear()
    report = await audit(world, client)
    assert (report.transactions, [*report.differences]) == (201, [])
    assert len(world.line.paths) <= 3 + 3
