"""Payouts that a second person approves: nothing before, each once after."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import anyio
import pytest

from mobilemoney_async import IdempotencyConflict, InvalidRequest, PaymentState, StoreError
from mobilemoney_async.payments.payout_batch import PayoutLine, digest, read_rows
from tests.payments.service import PHONE_NUMBER, make_world

pytestmark = pytest.mark.anyio

FILE = "phone_number,amount,employee\n+255681234501,50000,E1\n+255 681 234 502,60000,E2\n"


async def test_a_batch_is_sent_only_after_another_person_has_approved_what_was_shown(store_url: str) -> None:
    """Then each line once, however often it is approved; the report has each line's result."""
    world = make_world(store_url)
    async with world.client() as client:
        batch = await client.payouts.propose(FILE, name="salaries", by="Asha")
        assert (batch.lines, batch.total, batch.state) == (2, Decimal(110_000), "proposed")
        assert not batch.duplicates
        for by, shown in (("Asha", batch.digest), ("ASHA", batch.digest), ("Juma", "0" * 64)):
            with pytest.raises(StoreError, match="nothing was changed"):
                await client.payouts.approve(batch.id, by=by, digest=shown)
        assert await client.payments.list() == []
        await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        approved = await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        assert (approved.state, approved.decided_by, dict(approved.states)) == ("approved", "Juma", {"QUEUED": 2})
        async with client.dispatcher(), client.poller() as poller:
            await anyio.sleep(10)
            for record in await client.payments.list(PaymentState.ACKNOWLEDGED):
                poller.track(record.transaction_id or "")
            async for _ in poller.outcomes():
                pass
        assert dict((await client.payouts.get(batch.id)).states) == {"SUCCESS": 2}
        lines = await client.payouts.report(batch.id)
        assert [(line.line, line.state, dict(line.info)) for line in lines] == [
            (2, "SUCCESS", {"employee": "E1"}),
            (3, "SUCCESS", {"employee": "E2"}),
        ]
        assert isinstance(lines[0], PayoutLine) and PHONE_NUMBER not in repr(lines)
        header, first, _ = (await client.payouts.report(batch.id, "csv")).splitlines()
        assert header == "line,key,phone_number,amount,state,transaction_id,fee,reason,employee"
        assert first.startswith(f"2,{lines[0].key},+255681234501,50000,SUCCESS,{lines[0].transaction_id},")
        assert [row["employee"] for row in json.loads(await client.payouts.report(batch.id, "json"))] == ["E1", "E2"]
        assert [each.id for each in await client.payouts.list()] == [batch.id]
    assert world.sent == 2


async def test_a_file_that_is_proposed_twice_pays_once(store_url: str) -> None:
    """Its duplicates are shown; approving it again finds the payments of the first time."""
    world = make_world(store_url)
    async with world.client() as client:
        for _ in range(2):
            batch = await client.payouts.propose(io.StringIO(FILE), name="salaries", by="Asha")
            await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
            async with client.dispatcher():
                await anyio.sleep(10)
        again = await client.payouts.propose(FILE, name="other name", by="Asha")
        assert set(again.duplicates) == {2, 3} and "this very payment" in again.duplicates[2]
        other = await client.payouts.propose(FILE.replace("E1", "E7"), name="other content", by="Asha")
        assert "same amount to the same number" in other.duplicates[3]
    assert world.sent == 2


async def test_cancelling_stops_what_is_not_sent_yet(store_url: str) -> None:
    """Before the approval all of it, afterwards the rest."""
    world = make_world(store_url)
    async with world.client() as client:
        first = await client.payouts.propose(FILE, name="salaries", by="Asha")
        await client.payouts.cancel(first.id, by="Asha")
        with pytest.raises(StoreError, match="cancelled"):
            await client.payouts.approve(first.id, by="Juma", digest=first.digest)
        second = await client.payouts.propose(FILE.replace("E1", "E3"), name="salaries", by="Asha")
        await client.payouts.approve(second.id, by="Juma", digest=second.digest)
        async with client.dispatcher(per_minute=1):
            await anyio.sleep(5)
        cancelled = await client.payouts.cancel(second.id, by="Juma")
        assert dict(cancelled.states) == {"ACKNOWLEDGED": 1, "CANCELLED": 1}
        with pytest.raises(StoreError, match="no batch"):
            await client.payouts.get("nothing")
    assert world.sent == 1


async def test_a_key_of_another_payment_stops_the_whole_batch(store_url: str) -> None:
    """Nothing is half queued."""
    world = make_world(store_url)
    async with world.client() as client:
        await client.payments.enqueue(
            type="disbursement", phone_number=PHONE_NUMBER, amount=1, idempotency_key="salary-2"
        )
        rows = [{"phone_number": PHONE_NUMBER, "amount": 100 + each, "key": f"salary-{each}"} for each in range(4)]
        batch = await client.payouts.propose(rows, name="salaries", by="Asha")
        with pytest.raises(IdempotencyConflict):
            await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        assert [record.key for record in await client.payments.list()] == ["salary-2"]
        assert (await client.payouts.get(batch.id)).state == "proposed"


WRONG: list[tuple[Any, str]] = [
    ("", "header"),
    ("phone_number,amount\n", "no rows"),
    ("phone,amount\n+255681234501,1\n", "header"),
    ("phone_number,amount,amount\n+255681234501,1,1\n", "header"),
    ("phone_number,amount\n+255681234501,1\n0788,5\n+255681234501,1.5\n", "line 3: phone_number.*line 4: amount"),
    ("phone_number,amount\n+255681234501\n", "line 2"),
    ("phone_number,amount\n+255681234501,1,2\n", "line 2"),
    ("phone_number,amount,key\n+255681234501,1,a\n+255681234502,1,a\n", "line 3: key 'a' is in line 2"),
    ('phone_number,amount\n"+255681234501,1\n', "line"),
    ([{"amount": 1}], "line 1: has no phone_number"),
    ([{"phone_number": "+255681234501", "amount": 1.5}], "line 1: amount"),
    (["x"], "line 1"),
    (7, "rows"),
]


@pytest.mark.parametrize(("rows", "said"), WRONG)
def test_wrong_rows_are_refused_with_their_lines(rows: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"(?s){said}"):
        read_rows(rows)


def test_local_numbers_are_read_only_if_asked_for() -> None:
    file = "phone_number,amount\n0681 234 501,1\n255681234502,1\n+255681234503,1\n681234504,1\n"
    with pytest.raises(InvalidRequest, match="line 2"):
        read_rows(file)
    assert [row.phone_number[-3:] for row in read_rows(file, local_numbers=True)] == ["501", "502", "503", "504"]
    with pytest.raises(InvalidRequest, match="line 2"):
        read_rows("phone_number,amount\n+441234567890,1\n", local_numbers=True)


def test_the_digest_is_of_the_content_alone() -> None:
    """A byte-order mark, blanks in the header and the way of quoting change nothing; any other column does."""
    plain = digest(read_rows(FILE))
    assert digest(read_rows("\ufeff" + FILE.replace(",employee", ", employee"))) == plain
    assert digest(read_rows(FILE.replace("E1", '"E1"').replace("\n", "\r\n"))) == plain
    assert digest(read_rows(FILE.replace("E1", "E9"))) != plain
