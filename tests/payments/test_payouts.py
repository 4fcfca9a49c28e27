"""Payouts that a second person approves: nothing before, each once after."""

import csv
import io
import itertools
import json
import re
import threading
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import anyio
import attrs
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AsyncClient,
    ConnectionFailed,
    Fees,
    IdempotencyConflict,
    InvalidRequest,
    OutcomeUnknown,
    PaymentState,
    RetryPolicy,
    StoreError,
)
from mobilemoney_async.cli.views.payouts import batch_columns, facts_of
from mobilemoney_async.database import schema
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.payments.payouts.batch import PayoutLine
from mobilemoney_async.payments.payouts.rows import digest, read_rows, warnings_of
from mobilemoney_async.sandbox import faults
from tests.payments.service import ORDER, PHONE_NUMBER, World, make_world, on_asyncio, on_sqlite, rows
from tests.payments.steps import approved, dispatch, record_of, settle
from tests.payments.tables import edit, insert_payment
from tests.support.databases import OTHERS, execute
from tests.support.patience import until

pytestmark = pytest.mark.pairs

FILE = "phone_number,amount,employee\n+255681234501,50000,E1\n+255 681 234 502,60000,E2\n"


@pytest.mark.costly("runs lines of payments/payouts/batch.py that no quick test runs")
async def test_a_batch_is_sent_only_after_another_person_has_approved_what_was_shown(
    world: World, client: AsyncClient
) -> None:
    """Then each line once, however often it is approved; the report has each line's result."""
    batch = await client.payouts.propose(FILE, name="salaries", by="Asha")
    assert (batch.lines, batch.total, batch.state) == (2, Decimal(110_000), "proposed")
    assert not batch.duplicates
    selves = ("Asha", "ASHA", " A sha", "As\u200bha", "\uff21sha", "Asha.", "\u00c1sha", "Asha\ufe0f")
    with pytest.raises(InvalidRequest, match="by must be a name with letters"):
        await client.payouts.approve(batch.id, by="...", digest=batch.digest)
    for by, shown in (*((each, batch.digest) for each in selves), ("Juma", "0" * 64)):
        with pytest.raises(StoreError, match="nothing was changed"):
            await client.payouts.approve(batch.id, by=by, digest=shown)
    assert await client.payments.list() == []
    await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
    approved = await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
    assert (approved.state, approved.approved_by, dict(approved.states)) == ("approved", "Juma", {"QUEUED": 2})
    await dispatch(client, 10)
    await settle(client)
    assert dict((await client.payouts.get(batch.id)).states) == {"SUCCESS": 2}
    (paid,) = [each.transaction for each in await client.payments.list() if each.amount == 50_000]
    assert paid is not None
    fees = Fees(merchant_fee=Decimal(7), customer_fee=Decimal(2), total_fee=Decimal(9))
    own = schema.payments.update().where(schema.payments.c.transaction_id == paid.id)
    edit(world.url, own.values(transaction=dump(attrs.evolve(paid, fees=fees))))
    lines = await client.payouts.report(batch.id)
    assert [(line.line, line.state, dict(line.info)) for line in lines] == [
        (2, "SUCCESS", {"employee": "E1"}),
        (3, "SUCCESS", {"employee": "E2"}),
    ]
    assert isinstance(lines[0], PayoutLine) and PHONE_NUMBER not in repr(lines)
    header, first, _ = (await client.payouts.report(batch.id, "csv")).splitlines()
    assert header == "line,key,phone_number,amount,state,transaction_id,fee,reason,warning,employee"
    assert first.startswith(f"2,{lines[0].key},+255681234501,50000,SUCCESS,{lines[0].transaction_id},9,")
    assert [row["employee"] for row in json.loads(await client.payouts.report(batch.id, "json"))] == ["E1", "E2"]
    assert [each.id for each in await client.payouts.list(limit=2**63)] == [batch.id]
    assert world.sent == 2


@on_asyncio
@on_sqlite
async def test_numbers_in_names_are_masked(client: AsyncClient) -> None:
    """In a repr, an error and masked data, and in what the commands show; a month in the name stays."""
    person = "Juma 0681-234 502"
    batch = await client.payouts.propose(FILE, name=f"salaries 2026-11 {PHONE_NUMBER}", by=person)
    with pytest.raises(StoreError) as own:
        await client.payouts.approve(batch.id, by=person, digest=batch.digest)
    batch = await client.payouts.cancel(batch.id, by=person)
    with pytest.raises(StoreError) as cancelled:
        await client.payouts.approve(batch.id, by="Asha", digest=batch.digest)
    cells = [column.cell(batch) for column in batch_columns()]
    shown = [repr(batch), batch.to_json(mask=True), str(facts_of(batch)), str(cells)]
    for text in (*shown, str(own.value), str(cancelled.value)):
        assert not re.search(r"681\D?234\D?50", text), text
    assert all("salaries 2026-11" in text for text in shown)
    assert batch.to_dict()["cancelled_by"] == person


@pytest.mark.parametrize("theirs", ["amount", "phone_number"])
async def test_a_row_with_two_columns_for_one_of_ours_is_refused(world: World, theirs: str) -> None:
    """As a file is: of a net amount and an amount, nothing says which one is paid."""
    row = {"phone_number": PHONE_NUMBER, "amount": 500_000, "net": 100_000}
    async with world.client() as client:
        with pytest.raises(InvalidRequest, match="row 1: a column is there twice"):
            await client.payouts.propose([row], name="salaries", by="Asha", columns={theirs: "net"})
        assert await client.payouts.list() == []


async def test_a_file_that_is_proposed_twice_pays_once(world: World, client: AsyncClient) -> None:
    """Its duplicates are shown; approving it again finds the payments of the first time."""
    for _ in range(2):
        await approved(client, io.StringIO(FILE))
        await dispatch(client, 10)
    again = await client.payouts.propose(FILE, name="other name", by="Asha")
    assert set(again.duplicates) == {2, 3} and "this very payment" in again.duplicates[2]
    assert again.repeats == "2 of 2 lines keep their payments (2 ACKNOWLEDGED), and are not paid again"
    third = await client.payouts.propose(FILE.replace("E1", "E9"), name="x", by="Asha")
    fourth = await client.payouts.propose(FILE.replace("E1", "E9"), name="x", by="Asha")
    assert third.repeats is None
    assert fourth.repeats is not None and f"batch {third.id} has the same content" in fourth.repeats
    other = await client.payouts.propose(FILE.replace("E1", "E7"), name="other content", by="Asha")
    assert "same amount to the same number" in other.duplicates[3]
    await anyio.sleep(1)
    last = await client.payouts.propose(FILE, name="x", by="Asha")
    assert [each.id for each in await client.payouts.list(limit=1)] == [last.id]
    assert world.sent == 2


async def test_the_same_salaries_in_two_proposed_batches_are_shown_for_both(client: AsyncClient) -> None:
    """And by the approval: whoever approves both can cancel one. Lines with one key are one payment, and not shown."""
    row = {"phone_number": "+255681234502", "amount": 60_000, "key": "k1"}
    second, third = [
        await client.payouts.propose([row, *more], name="x", by="Asha") for more in ((), [ORDER | {"key": "k0"}])
    ]
    assert not third.duplicates
    await client.payouts.cancel(third.id, by="Asha")
    first = await client.payouts.propose(FILE, name="x", by="Asha")
    said = "line {} of batch {}, which is to be approved, pays the same amount to the same number"
    assert dict(first.duplicates) == {3: said.format(1, second.id)}
    assert dict((await client.payouts.get(second.id)).duplicates) == {1: said.format(3, first.id)}
    approved = await client.payouts.approve(first.id, by="Juma", digest=first.digest)
    assert dict(approved.duplicates) == dict(first.duplicates)
    assert not (await client.payouts.approve(first.id, by="Juma", digest=first.digest)).duplicates
    other = await client.payouts.approve(second.id, by="Juma", digest=second.digest)
    assert "of the same amount to the same number is QUEUED" in other.duplicates[1]
    old, late = [{**row, "amount": 5, "key": key} for key in ("k2", "k3")]
    await client.payouts.propose([old], name="x", by="Asha")
    await anyio.sleep(31 * 86_400)
    assert not (await client.payouts.propose([late], name="x", by="Asha")).duplicates


@on_asyncio
async def test_the_lines_of_a_batch_are_listed_and_sent_in_their_order(world: World, client: AsyncClient) -> None:
    """Not in that of their keys as texts, where line 10 comes before line 2: `list(limit=3)` shows the last ones."""
    rows = [{"phone_number": PHONE_NUMBER, "amount": 1_000 + line} for line in range(1, 13)]
    await approved(client, rows)
    latest = await client.payments.list(limit=3, newest_first=True)
    assert [record.amount for record in latest] == [1_012, 1_011, 1_010]
    assert [record.amount for record in await client.payments.list()] == [*range(1_001, 1_013)]
    await dispatch(client, 2, per_minute=600)
    assert [int(each.amount) for each in world.sandbox.transactions.values()] == [*range(1_001, 1_013)]


async def test_lines_to_one_number_and_cut_numbers_are_shown_and_not_refused(client: AsyncClient) -> None:
    """Before the approval and after it, computed anew each time; digest and keys are those of the lines alone."""
    numbers = ["+255681234501", "+255681234502", "+255681234501", "+255681000000", "+255681234501"]
    rows = [{"phone_number": number, "amount": 1_000 + place} for place, number in enumerate(numbers)]
    batch = await client.payouts.propose(rows, name="salaries", by="Asha")
    shared, cut = (
        "3 lines pay this number: lines 1, 3, 5",
        "the number ends in 000000: a spreadsheet may have rounded it",
    )
    assert dict(batch.warnings) == {1: shared, 3: shared, 4: cut, 5: shared}
    assert set(batch.duplicates) == {3, 5} and "line 1 pays another amount" in batch.duplicates[5]
    assert dict((await client.payouts.get(batch.id)).warnings) == dict(batch.warnings)
    lines = await client.payouts.report(batch.id)
    assert [line.warning for line in lines] == [shared, None, shared, cut, shared]
    await client.disbursements.create(phone_number=numbers[1], amount=1_001)
    again = await client.payouts.propose(rows, name="salaries", by="Asha")
    assert set(again.duplicates) == {2, 3, 5} and dict(again.warnings) == dict(batch.warnings)
    assert again.digest == batch.digest
    assert [line.key for line in await client.payouts.report(again.id)] == [line.key for line in lines]
    approved = await client.payouts.approve(again.id, by="Juma", digest=batch.digest)
    assert dict(approved.warnings) == dict(batch.warnings)
    assert PHONE_NUMBER not in repr(approved)


async def test_one_line_pays_once_whatever_blank_lines_and_separators_its_file_has(client: AsyncClient) -> None:
    """Nor if it is proposed as rows instead: the key has the digest, and the number of the row.

    A line whose payment is not this batch's says whose it is.
    """
    one = "phone_number,amount\n+255681234501,50000\n"
    rows = [{"phone_number": "+255681234501", "amount": 50_000}]
    paid_by: list[str] = []
    for content in (one, one.replace("\n+", "\r\n\r\n,\r\n+"), one.replace(",", ";"), one.encode(), rows):
        batch = await approved(client, content, "x")
        (line,) = await client.payouts.report(batch.id)
        assert line.reason == (f"of batch {paid_by[0]}" if paid_by else None)
        paid_by.append(batch.id)
    assert len(await client.payments.list()) == 1
    order: dict[str, Any] = {"phone_number": "+255681234502", "amount": 2_000}
    await client.payments.enqueue(type="disbursement", **order, idempotency_key="order-1")
    batch = await approved(client, [order | {"key": "order-1"}], "y")
    assert [line.reason for line in await client.payouts.report(batch.id)] == ["made before this batch"]


@pytest.mark.slow
async def test_the_approver_sees_large_lines_new_recipients_and_the_last_total(client: AsyncClient) -> None:
    """The last batch is that of the same name but for its digits: last month's."""
    numbers = [f"+2556812345{each:02d}" for each in range(10, 17)]
    rows = [{"phone_number": number, "amount": 1_000 + place} for place, number in enumerate(numbers)]
    first = await client.payouts.propose(rows[:3], name="salaries 2026-10", by="Asha")
    assert (first.last_total, first.new_recipients) == (None, (1, 2, 3))
    assert [line.line for line in first.largest] == [3, 2, 1]
    await client.payouts.approve(first.id, by="Juma", digest=first.digest)
    await dispatch(client, 10)
    await settle(client)
    other = await client.payouts.propose(rows, name="prizes 2026-11", by="Asha")
    second = await client.payouts.propose(rows, name="Salaries 2026-11", by="Asha")
    assert (other.last_total, second.last_total) == (None, Decimal(3_003))
    assert second.new_recipients == (4, 5, 6, 7)
    assert [(line.line, int(line.amount), line.state) for line in second.largest] == [
        (line, 1_000 + line - 1, "proposed") for line in (7, 6, 5, 4, 3)
    ]
    assert (await client.payouts.get(first.id)).largest == ()


async def test_cancelling_stops_what_is_not_sent_yet(world: World, client: AsyncClient) -> None:
    """Before the approval all of it, afterwards the rest; the names of all three persons stay."""
    first = await client.payouts.propose(FILE, name="salaries", by="Asha")
    await client.payouts.cancel(first.id, by="Asha")
    with pytest.raises(StoreError, match="cancelled"):
        await client.payouts.approve(first.id, by="Juma", digest=first.digest)
    second = await approved(client, FILE.replace("E1", "E3"))
    await dispatch(client, 5, per_minute=1)
    cancelled = await client.payouts.cancel(second.id, by="Neema")
    assert await client.payouts.cancel(second.id, by="Asha") == cancelled
    assert dict(cancelled.states) == {"ACKNOWLEDGED": 1, "CANCELLED": 1}
    assert (cancelled.state, cancelled.approved_by, cancelled.cancelled_by) == ("cancelled", "Juma", "Neema")
    line = (await client.payouts.report(second.id))[1]
    record = await record_of(client, line.key)
    assert [each.what for each in record.history] == ["queued", "cancelled"]
    assert [each.state async for each in client.payments.changes(forever=False)][-1] is PaymentState.CANCELLED
    with pytest.raises(StoreError, match="no batch"):
        await client.payouts.get("nothing")
    third = await approved(client, [{**ORDER, "key": line.key + "-"}], "third")
    await dispatch(client, 10)
    fourth = await approved(client, [{**ORDER, "key": line.key + "+"}], "fourth")
    await client.payments.cancel(line.key + "+", note="Neema")  # one by one: none of it was sent
    for batch in (third, fourth):
        with pytest.raises(StoreError, match=r"no payment of batch '.*' waits to be sent: nothing was changed"):
            await client.payouts.cancel(batch.id, by="Asha")
    assert world.sent == 2


async def test_changes_keep_their_order_where_the_clock_of_who_cancels_is_behind(world: World) -> None:
    """Each line is queued and then cancelled, for all readers of the feed."""
    async with world.client() as client:
        batch = await approved(client, FILE)
        world.ahead = timedelta(seconds=3)
        await client.payouts.cancel(batch.id, by="Asha")
        found = [change async for change in client.payments.changes(forever=False)]
    for key in {change.key for change in found}:
        queued, cancelled = [change for change in found if change.key == key]
        assert (queued.state, cancelled.state) == (PaymentState.QUEUED, PaymentState.CANCELLED)
        assert queued.at == cancelled.at


async def test_cancelling_a_second_batch_leaves_the_payments_of_the_first_alone(client: AsyncClient) -> None:
    """A clerk who tidies up a file that was proposed twice stops no salary; the second report does not claim them."""
    first, second = [await client.payouts.propose(FILE, name="salaries", by="Asha") for _ in range(2)]
    await client.payouts.approve(first.id, by="Juma", digest=first.digest)
    await client.payouts.cancel(second.id, by="Asha")
    states = [(await client.payouts.get(each.id)).states for each in (first, second)]
    assert states == [{"QUEUED": 2}, {}]
    assert {line.state for line in await client.payouts.report(second.id)} == {"cancelled"}


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_line_that_a_program_queues_again_stays_one_of_its_batch(client: AsyncClient, is_late: bool) -> None:
    """Whoever cancels the batch afterwards stops it, too; where that was done before, it is the program's alone."""
    batch = await approved(client, [{**ORDER, "key": "E1"}])
    await client.payments.cancel("E1", note="Asha: wait", reusable=True)
    for _ in range(is_late):
        await client.payouts.cancel(batch.id, by="Asha")
    await client.payments.enqueue(type="disbursement", **ORDER, idempotency_key="E1")
    cancelled = await client.payouts.cancel(batch.id, by="Asha")
    assert dict(cancelled.states) == {"QUEUED" if is_late else "CANCELLED": 1}


async def test_cancelling_one_of_two_approved_batches_of_a_file_stops_no_line(client: AsyncClient) -> None:
    """Whichever it is: each line is paid once, by the other one."""
    first, second = [await client.payouts.propose(FILE, name="salaries", by="Asha") for _ in range(2)]
    for each in (first, second):
        await client.payouts.approve(each.id, by="Juma", digest=each.digest)
    await client.payouts.cancel(first.id, by="Asha")
    assert dict((await client.payouts.get(second.id)).states) == {"QUEUED": 2}
    assert {line.reason for line in await client.payouts.report(first.id)} == {f"of batch {second.id}"}
    await client.payouts.cancel(second.id, by="Asha")
    assert dict((await client.payouts.get(second.id)).states) == {"CANCELLED": 2}


async def test_a_batch_that_was_cancelled_by_mistake_says_that_the_same_file_pays_nothing(client: AsyncClient) -> None:
    """Its keys are used up: whoever approves the file again is told before, and other content is paid."""
    first = await approved(client, FILE)
    await client.payouts.cancel(first.id, by="Asha")
    again = await client.payouts.propose(FILE, name="salaries", by="Asha")
    for said in again.duplicates.values():
        assert "CANCELLED" in said and "it is not made again; other content, or another key, is" in said
    assert dict((await client.payouts.approve(again.id, by="Juma", digest=again.digest)).states) == {"CANCELLED": 2}
    other = await client.payouts.propose(FILE.replace("E1", "E1 again"), name="salaries", by="Asha")
    assert not other.duplicates
    assert dict((await client.payouts.approve(other.id, by="Juma", digest=other.digest)).states) == {"QUEUED": 2}


@pytest.mark.slow
async def test_a_line_that_could_not_be_sent_is_stopped_too(world: World) -> None:
    """Whether it waits for the next attempt, or is on its way in vain at that very moment."""
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        batch = await approved(client, FILE)
        world.line.refuse = 1
        async with client.dispatcher():
            await anyio.sleep(2)
            waiting = await client.payouts.get(batch.id)
            assert dict(waiting.states) == {"QUEUED": 2} and not world.sent
            await client.payouts.cancel(batch.id, by="Asha")
            await anyio.sleep(30)
        assert dict((await client.payouts.get(batch.id)).states) == {"CANCELLED": 2}
        batch = await approved(client, FILE.replace("E1", "E8"))

        async def cancel_meanwhile(request: Any) -> None:
            await client.payouts.cancel(batch.id, by="Asha")
            raise httpx.ConnectError("All connection attempts failed")

        world.line.before = cancel_meanwhile
        await dispatch(client, 30)
        assert dict((await client.payouts.get(batch.id)).states) == {"CANCELLED": 2}
    assert not world.made


@pytest.mark.slow
async def test_a_line_of_a_cancelled_batch_that_comes_back_unsent_is_cancelled(world: World) -> None:
    """A create fails to send it just after the cancellation: nobody need cancel again, and no dispatcher sends it."""
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        batch = await approved(client, FILE)
        line = (await client.payouts.report(batch.id))[0]

        async def cancel_meanwhile() -> None:
            await client.payouts.cancel(batch.id, by="Asha")
            raise httpx.ConnectError("All connection attempts failed")

        world.line.meanwhile(cancel_meanwhile)
        with pytest.raises(ConnectionFailed):
            order: dict[str, Any] = {
                "phone_number": line.phone_number,
                "amount": line.amount,
                "idempotency_key": line.key,
            }
            await client.disbursements.create(**order)
        assert dict((await client.payouts.get(batch.id)).states) == {"CANCELLED": 2}
        record = await record_of(client, line.key)
        assert [each.what for each in record.history] == ["queued", "sent", "put_back", "cancelled"]
        await dispatch(client, 60)
    assert not world.made


@pytest.mark.real_time
async def test_a_line_that_comes_back_while_its_batch_is_cancelled_waits_for_that(postgres_url: str) -> None:
    """Neither misses the other: the line is cancelled, and not left in the queue."""
    world = make_world(postgres_url)
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        batch = await approved(client, FILE)
        line = (await client.payouts.report(batch.id))[0]

        async def create() -> None:
            with pytest.raises(ConnectionFailed):
                await client.disbursements.create(
                    phone_number=line.phone_number, amount=line.amount, idempotency_key=line.key
                )

        world.line.refuse = 1
        with engine.connect() as cancelling:
            cancelling.execute(sa.select(schema.batches.c.id).where(schema.batches.c.id == batch.id).with_for_update())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(create)
                waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")
                with engine.connect() as other:
                    await until(lambda: other.execute(waiting).scalar_one())
                cancelling.execute(
                    schema.batches.update().where(schema.batches.c.id == batch.id).values(state="cancelled")
                )
                cancelling.commit()
        assert (await client.payouts.report(batch.id))[0].state == "CANCELLED"
    engine.dispose()
    assert not world.made


async def test_two_people_who_approve_at_once_queue_it_once(world: World) -> None:
    """From two processes; one who cancels at the same time either stops all of it, or is too late for none."""
    async with world.client() as client, world.client() as other:
        batch = await client.payouts.propose(FILE, name="salaries", by="Asha")
        async with anyio.create_task_group() as tasks:
            for number, each in enumerate((client, other) * 3):
                tasks.start_soon(partial(each.payouts.approve, batch.id, by=f"Juma {number}", digest=batch.digest))
        approved = await other.payouts.get(batch.id)
        assert dict(approved.states) == {"QUEUED": 2}
        again = await client.payouts.approve(batch.id, by="Neema", digest=batch.digest)
        assert again == approved
        with pytest.raises(StoreError, match="digest"):
            await client.payouts.approve(batch.id, by="Neema", digest="0" * 64)
        again, third = [await client.payouts.propose(FILE.replace("E1", "E5"), name="x", by="Asha") for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            for each, same in ((client, again), (other, third)) * 3:
                tasks.start_soon(partial(each.payouts.approve, same.id, by="Juma", digest=same.digest))
        assert len(await client.payments.list()) == 4


@pytest.mark.real_time
async def test_an_approval_beside_a_payment_under_one_of_its_keys_says_so(postgres_url: str) -> None:
    """And queues nothing. Repeated, it takes that for the line's."""
    world, engine = make_world(postgres_url), sa.create_engine(postgres_url, poolclass=sa.NullPool)
    async with world.client() as client:
        batch = await client.payouts.propose([{"phone_number": PHONE_NUMBER, "amount": 700}], name="x", by="Asha")

        async def approve() -> None:
            with pytest.raises(StoreError, match="uses one of these keys at this very moment: nothing was queued"):
                await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)

        with engine.connect() as creating, engine.connect() as other:
            (key,) = creating.execute(sa.select(schema.batch_lines.c.key)).scalars()
            insert_payment(creating, key=key, type="disbursement", phone_number=PHONE_NUMBER, amount="700")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(approve)
                waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")
                await until(lambda: other.execute(waiting).scalar_one())
                creating.commit()
        approved = await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        assert dict(approved.states) == {"UNKNOWN": 1}
    engine.dispose()


@pytest.mark.slow
async def test_duplicates_are_those_that_may_have_been_paid(world: World) -> None:
    """A payment that has failed for certain is none, nor one that never was sent; an unknown or a queued one is."""
    dead = "+255780000089"  # fails
    numbers = (PHONE_NUMBER, dead, "+255681234502", "+255681234503")
    rows = [{"phone_number": number, "amount": 700} for number in numbers]
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        for number in (PHONE_NUMBER, dead):
            await client.disbursements.create(phone_number=number, amount=700)
        await settle(client)
        world.sandbox.script(faults.drop(processed=True), on="b2c")
        with pytest.raises(OutcomeUnknown):
            await client.disbursements.create(phone_number="+255681234502", amount=700, idempotency_key="lost")
        other: dict[str, Any] = {"phone_number": PHONE_NUMBER, "amount": 5}
        await client.payments.enqueue(type="collection", **other, idempotency_key="someone's")
        rent: dict[str, Any] = {**other, "extra": {"description": "rent"}}
        await client.payments.enqueue(type="disbursement", **rent, idempotency_key="with-extra")
        late: dict[str, Any] = {"phone_number": numbers[3], "amount": 700, "not_before": timedelta(days=30)}
        await client.payments.enqueue(type="disbursement", idempotency_key="late", **late)
        batch = await client.payouts.propose(rows, name="again", by="Asha")
        assert set(batch.duplicates) == {1, 3, 4}
        assert "SUCCESS" in batch.duplicates[1] and "'lost'" in batch.duplicates[3]
        named = [{**other, "key": key} for key in ("someone's", "with-extra")]
        found = (await client.payouts.propose(named, name="x", by="Asha")).duplicates
        assert all(found[line].endswith("the batch cannot be approved") for line in (1, 2))
        await anyio.sleep(31 * 86_400)
        assert set((await client.payouts.get(batch.id)).duplicates) == {4}
        await dispatch(client, 60)
        assert [record.sent_at is None for record in await client.payments.list() if record.key == "late"] == [False]
        assert set((await client.payouts.get(batch.id)).duplicates) == {4}


async def test_a_spreadsheet_runs_nothing_of_a_report(client: AsyncClient) -> None:
    """Cells that begin like a formula get an apostrophe, lines stay lines, and numbers stay numbers."""
    rows = [
        {"phone_number": PHONE_NUMBER, "amount": 1, "=HYPERLINK()": "+SUM(A1)", "note": "\t=1+1", "more": "a\r\n@b"},
        {"phone_number": PHONE_NUMBER, "amount": 2, "name": "-2+3"},
    ]
    batch = await client.payouts.propose(rows, name="x", by="Asha")
    text = await client.payouts.report(batch.id, "csv")
    header, first, second = csv.reader(io.StringIO(text, newline=""))
    assert header[-4:] == ["'=HYPERLINK()", "note", "more", "name"]
    assert first[2] == PHONE_NUMBER and first[-4:] == ["'+SUM(A1)", "\\t=1+1", "a\\r\\n@b", ""]
    assert second[-1] == "'-2+3"
    assert json.loads(await client.payouts.report(batch.id, "json"))[1]["name"] == "-2+3"
    wrong: list[Any] = ["xml", []]
    for each in wrong:
        with pytest.raises(InvalidRequest, match="format"):
            await client.payouts.report(batch.id, each)


@pytest.mark.parametrize("format", ["csv", "json"])
@on_sqlite
async def test_a_report_is_proposed_as_it_is_and_pays_nothing_twice(client: AsyncClient, format: Any) -> None:
    """Its own columns are known, lines keep their keys, and the columns of the file come back once more."""
    batch = await approved(client, FILE)
    await dispatch(client, 10)
    text = await client.payouts.report(batch.id, format)
    again = await client.payouts.propose(json.loads(text) if format == "json" else text, name="x", by="Asha")
    assert again.repeats is not None and again.repeats.startswith("2 of 2 lines keep their payments")
    await client.payouts.approve(again.id, by="Juma", digest=again.digest)
    before, after = [await client.payouts.report(each.id) for each in (batch, again)]
    assert [line.key for line in after] == [line.key for line in before]
    assert [dict(line.info) for line in after] == [{"employee": "E1"}, {"employee": "E2"}]
    assert len(await client.payments.list()) == 2


def test_a_key_to_which_a_report_may_have_added_an_apostrophe_is_refused() -> None:
    """The key without it, and the key with it, are two payments. In a file of one's own it is part of the key."""
    head = "line,key,phone_number,amount,state,transaction_id,fee,reason,warning\n"
    for key in ("'=1+1", "a;'=1"):
        with pytest.raises(InvalidRequest, match="line 2: key may have got an apostrophe"):
            read_rows(f"{head}2,{key},+255681234501,5,FAILED,,,,\n")
    (row,) = read_rows(f"{head}2,it's,+255681234501,5,FAILED,,,,\n")
    assert (row.key, dict(row.info)) == ("it's", {})
    (row,) = read_rows("key,phone_number,amount\n'=1+1,+255681234501,5\n")
    assert row.key == "'=1+1"


async def test_a_line_that_someone_has_edited_is_an_error_of_ours(world: World, client: AsyncClient) -> None:
    """Its other columns are no mapping any more."""
    batch = await client.payouts.propose([{"phone_number": PHONE_NUMBER, "amount": 1, "x": 1}], name="x", by="Asha")
    edit(world.url, schema.batch_lines.update().values(info="5"))
    with pytest.raises(StoreError, match="the store holds a dict that cannot be read"):
        await client.payouts.report(batch.id, "csv")


@on_asyncio
async def test_a_report_is_made_outside_the_transaction(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And outside the event loop: of 50,000 lines it takes so long that the server would end the transaction."""
    threads, idle = set[int](), list[Any]()

    def look(lines: Any) -> Any:
        threads.add(threading.get_ident())
        idle.extend(rows(postgres_url, "SELECT state FROM pg_stat_activity WHERE state LIKE 'idle in %'"))
        return warnings_of(lines)

    async with make_world(postgres_url).client() as client:
        batch = await client.payouts.propose(FILE, name="salaries", by="Asha")
        monkeypatch.setattr("mobilemoney_async.payments.payouts.payouts.warnings_of", look)
        assert await client.payouts.report(batch.id, "csv")
    assert not idle
    assert threads and threading.get_ident() not in threads


@pytest.mark.slow
async def test_a_thousand_lines_are_proposed_and_listed(client: AsyncClient) -> None:
    """And approved, and cancelled: each is one transaction, and the total is exact."""
    text = "phone_number,amount\n" + "".join(f"+2556{each:08d},{10**19 + each}\n" for each in range(1_000))
    batch = await client.payouts.propose(text, name="salaries", by="Asha")
    assert int(batch.total) == 10**22 + 999 * 500
    assert [each.lines for each in await client.payouts.list(limit=1)] == [1_000]
    await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
    cancelled = await client.payouts.cancel(batch.id, by="Asha")
    assert dict(cancelled.states) == {"CANCELLED": 1_000}


@pytest.mark.slow
@pytest.mark.real_time
async def test_cancelling_reads_the_changes_of_the_account_once(postgres_url: str) -> None:
    """And not for each line, where PostgreSQL takes them to be none: it looked after an approval was rolled back."""
    world, lines = make_world(postgres_url), 400
    rows = [{"phone_number": f"+255681{each:06d}", "amount": 5_000, "key": f"k{each}"} for each in range(lines)]
    query = partial(execute, postgres_url)

    async def count_reads() -> int:
        """Count what was read so far: a session has reported all of it once it has ended."""
        statement = f"SELECT 1 FROM pg_stat_activity WHERE {OTHERS} AND backend_type = 'client backend'"
        await until(lambda: not query(statement))
        changes = "FROM pg_stat_user_tables WHERE relname = 'mobilemoney_changes'"
        ((number,),) = await anyio.to_thread.run_sync(query, f"SELECT seq_tup_read + idx_tup_fetch {changes}")
        return int(number)

    async with world.client() as client:
        await client.payments.enqueue(**{**ORDER, "type": "disbursement", "amount": 1}, idempotency_key="k0")
        batch = await client.payouts.propose(rows, name="salaries", by="Asha")
        with pytest.raises(IdempotencyConflict):
            await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        await anyio.to_thread.run_sync(query, "ANALYZE")
        batch = await approved(client, rows[1:])
    before = await count_reads()
    async with world.client() as client:
        cancelled = await client.payouts.cancel(batch.id, by="Asha")
    assert dict(cancelled.states) == {"CANCELLED": lines - 1}
    assert await count_reads() - before < 5 * lines


async def test_a_key_of_another_payment_stops_the_whole_batch(client: AsyncClient) -> None:
    """Nothing is half queued."""
    await client.payments.enqueue(type="disbursement", phone_number=PHONE_NUMBER, amount=1, idempotency_key="salary-2")
    rows = [{"phone_number": PHONE_NUMBER, "amount": 100 + each, "key": f"salary-{each}"} for each in range(4)]
    batch = await client.payouts.propose(rows, name="salaries", by="Asha")
    with pytest.raises(IdempotencyConflict):
        await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
    assert [record.key for record in await client.payments.list()] == ["salary-2"]
    assert (await client.payouts.get(batch.id)).state == "proposed"


HEAD = "phone_number,amount"
WRONG: list[tuple[Any, str]] = [
    ("", "lacks phone_number and amount"),
    (f"{HEAD}\n\n , \n", "no rows"),
    ("phone,amount\n+255681234501,1\n", "header .*: it lacks phone_number"),
    ("+255681234501,50000\n", "header"),
    (f"{HEAD},amount\n+255681234501,1,1\n", "twice"),
    (f"{HEAD}\n+255681234501,1\n\n0788,5\n+255681234501,1.5\n", "line 4: phone_number.*line 5: amount"),
    (f'{HEAD},x\n+255681234501,1,"a\nb"\n0788,5,\n', "lines 2-3 have a quoted cell of several lines"),
    (f"{HEAD}\n+255681234501\n", "line 2"),
    (f"{HEAD}\n+255681234501,1,2\n", "line 2"),
    (f"{HEAD},\n+255681234501,1,2\n", "line 2"),
    (f"{HEAD},key\n+255681234501,1,a\n+255681234502,1,a\n", "line 3: key 'a' is in line 2, too"),
    (f"{HEAD},state\n+255681234501,1,SUCCESS\n", "'state' is one of the report's own"),
    (f"{HEAD}, Key\n+255681234501,1,a\n", "line 2: column 'Key' would not count as key"),
    ([{"phone_number": 255681234501, "amount": 1}], "line 1: phone_number must be in international format"),
    ([{"phone_number": PHONE_NUMBER, "amount": 1, "idempotency_key": "a"}], "column 'idempotency_key' would not"),
    (f"{HEAD},type\n+255681234501,1,collection\n", "line 2: type must be disbursement"),
    (f"{HEAD},currency\n+255681234501,1,USD\n", "line 2: currency must be TZS"),
    (f'{HEAD}\n"+255681234501,1\n', "line 2: unexpected end"),
    (f'{HEAD}\n+255681234501,"50,000"\n', "line 2: amount"),
    (f"{HEAD}\n2.55682E+11,1\n", "line 2: phone_number"),
    (
        f"{HEAD}\n" + "+255681234501,1.5\n" * 9_999 + "\n0788,1\n",
        "lines 2-10000: amount.*; line 10002: phone",
    ),
    (f"{HEAD}\n" + "+255681234501,0\n+255681234501,1\n" * 99, r"lines 2, 4, .*, 20 and more, 99 in all: amount"),
    (f"{HEAD},x\n+255681234501,1,\ud800\n", "line 2: has lone surrogates"),
    (f"{HEAD},n\n+255681234501,1,Zo\xeb\n".encode("latin-1"), "not UTF-8"),
    (io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8"), "not UTF-8"),
    (io.StringIO(f"{HEAD}\n" + "x" * 20_000_000), "more than 20,000,000 characters"),
    (io.BytesIO(f"{HEAD},n\n+255681234501,1,{'é' * 10_000_000}\n".encode()), "more than 20,000,000 characters"),
    (io.BytesIO(b"\xff" * 20_000_000), "not UTF-8"),  # as long as one may be
    (f"{HEAD}{',x' * 199}\n", "line 1 has more than 200 columns"),
    (itertools.repeat({"phone_number": PHONE_NUMBER, "amount": 1}), "more than 50,000 rows"),
    ([{"amount": 1}], "line 1: has no phone_number"),
    ([{"phone_number": "+255681234501", "amount": 1.5}], "line 1: amount"),
    ([{"phone_number": PHONE_NUMBER, "amount": 1, "id": 10**5000}], "line 1: has a value that is too large"),
    ([{"phone_number": PHONE_NUMBER, "amount": 1, "ids": [-(10**5000)]}], "line 1: has a value that is too large"),
    ([{"phone_number": PHONE_NUMBER, "amount": 1, 10**5000: "x"}], "line 1: has a value that is too large"),
    ({"phone_number": "+255681234501", "amount": 1}, "rows must be"),
    (["x"], "line 1"),
    (7, "rows"),
    # A quote too many would leave people out; collections and dollars are no payouts, whatever the case.
    (f'{HEAD},x\n+255681234501,1,"a\n+255681234502,1,b"\n+255681234503,1,c\n', "lines 2-3 have a quoted cell"),
    (f'{HEAD},x\r\n\r\n+255681234501,1,"a\r\n"\r\n', "lines 3-4 have"),
    (f'{HEAD},"x\n+255681234501,1,a"\n+255681234502,1,b\n', "lines 1-2 have"),
    (f"{HEAD},Type\n+255681234501,1,collection\n", "line 2: Type must be disbursement"),
    ([{"phone_number": PHONE_NUMBER, "amount": 1, "Currency ": "USD"}], "line 1: Currency must be TZS"),
]


@pytest.mark.costly("runs lines of payments/payouts/batch.py that no quick test runs")
@pytest.mark.parametrize(("rows", "said"), WRONG)
def test_wrong_rows_are_refused_with_their_lines(rows: Any, said: str) -> None:
    """All at once, and without their numbers."""
    with pytest.raises(InvalidRequest, match=f"(?s){said}") as raised:
        read_rows(rows)
    assert "681234501" not in str(raised.value)


def test_local_numbers_are_read_only_if_asked_for() -> None:
    file = "phone_number,amount\n0681 234 501,1\n255681234502,1\n+255681234503,1\n681234504,1\n"
    with pytest.raises(InvalidRequest, match=r"lines 2-3, 5: .*\(--local-numbers\)"):
        read_rows(file)
    assert [row.phone_number[-3:] for row in read_rows(file, local_numbers=True)] == ["501", "502", "503", "504"]
    with pytest.raises(InvalidRequest, match="line 2"):
        read_rows("phone_number,amount\n+441234567890,1\n", local_numbers=True)


def test_the_digest_is_of_the_content_alone() -> None:
    """A byte-order mark, blanks, separators, empty columns and quotes change nothing; any other column does."""
    plain = digest(read_rows(FILE))
    assert digest(read_rows(FILE.replace("\n", ",,\n"))) == plain
    assert digest(read_rows(FILE.replace(",", "\t"))) == plain
    assert digest(read_rows(io.BytesIO(FILE.encode("utf-8-sig")))) == plain
    assert digest(read_rows("\ufeff" + FILE.replace(",employee", ", employee"))) == plain
    assert digest(read_rows(FILE.replace("E1", ' "E1"').replace("\n", "\r\n"))) == plain
    assert digest(read_rows(FILE.replace("E1", "E9"))) != plain
