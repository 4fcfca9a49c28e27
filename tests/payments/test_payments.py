"""Results and refusals of `client.payments`."""

import json
import random
import string
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import anyio
import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AsyncClient,
    InvalidRequest,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentState,
    RetryPolicy,
    SQLStore,
    StoreError,
    TransactionNotFound,
    TransactionStatus,
)
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import faults
from tests.payments.service import ORDER, PHONE_NUMBER, World, get, make_world, on_one, record_seen
from tests.payments.tables import insert_payment
from tests.support.fakes import PHONE_NUMBER as PAYS
from tests.support.fakes import FakeTransport, acknowledgement, make_client
from tests.support.server import Response


async def fill(world: World) -> None:
    """Put a payment in each of five states into the database."""
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        await client.collections.create(**ORDER, idempotency_key="acknowledged")
        await world.advance(10)
        world.line.refuse = 1
        with pytest.raises(MobileMoneyError):
            await client.collections.create(**ORDER, idempotency_key="not sent")
        world.sandbox.script(faults.lost(processed=False), on="b2c")
        with pytest.raises(OutcomeUnknown):
            await client.disbursements.create(**ORDER, idempotency_key="unknown")
        world.sandbox.script(faults.lost(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(**ORDER, idempotency_key="released")
        await world.advance(125)
        await client.payments.confirm_absent("released", note="asked")
        with pytest.raises(StoreError, match=r"RELEASED, not .* if it exists after all: .* recover KEY="):
            await client.payments.identify("released", world.made[0], note="it exists")
    async with world.client(auth=world.sandbox.issue_token(["read"])) as client:
        with pytest.raises(MobileMoneyError):
            await client.disbursements.create(phone_number=PHONE_NUMBER, amount=7, idempotency_key="refused")


async def test_any_limit_is_taken_and_no_other_type(client: AsyncClient) -> None:
    """A limit larger than any database is as good as none; a mistyped type is refused, not found empty."""
    await client.collections.create(**ORDER, idempotency_key="order-1")
    (payment,) = await client.payments.list(type="collection", limit=10**30)
    assert payment.key == "order-1"
    for kind in ("colection", "collections", "", 7):
        with pytest.raises(InvalidRequest, match="type must be collection or disbursement"):
            await client.payments.list(type=kind)  # type: ignore[arg-type]


async def test_payments_are_listed(world: World) -> None:
    """Payments are listed oldest first, by one state or several, by type, since a time, and up to a number."""
    async with world.client() as client:
        assert await client.payments.list() == []
        assert await client.payments.unresolved() == []
    began = world.utcnow()
    await fill(world)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["acknowledged", "not sent", "unknown", "released", "refused"]),
        ({"state": PaymentState.UNKNOWN}, ["unknown"]),
        ({"state": "unknown"}, ["unknown"]),
        ({"state": "UNKNOWN"}, ["unknown"]),
        ({"state": ["REFUSED", PaymentState.NOT_SENT]}, ["not sent", "refused"]),
        ({"state": []}, []),
        ({"type": "disbursement"}, ["unknown", "refused"]),
        ({"type": "disbursement", "state": "REFUSED"}, ["refused"]),
        ({"since": began + timedelta(seconds=5)}, ["not sent", "unknown", "released", "refused"]),
        ({"since": began + timedelta(days=1)}, []),
        ({"limit": 2}, ["acknowledged", "not sent"]),
    ]
    async with world.client() as client:
        for arguments, expected in cases:
            assert [each.key for each in await client.payments.list(**arguments)] == expected, arguments
        assert [each.key for each in await client.payments.unresolved()] == ["unknown"]
        assert all(not each.history for each in await client.payments.list())


@pytest.mark.parametrize(
    ("call", "argument", "value"),
    [
        *(("list", "state", each) for each in ("gone", 7, ["UNKNOWN", "gone"])),
        *(("list", "type", each) for each in ("", 7)),
        *(("list", "since", each) for each in (datetime(2026, 1, 1), "2026-01-01")),  # noqa: DTZ001
        ("list", "since", datetime.min.replace(tzinfo=timezone(timedelta(hours=3)))),
        *(("list", "limit", each) for each in (0, -1, "3", True)),
        *(("find", "names", each) for each in ("", 7, None, ["order-1", " "], ["order-1", 7], ["a\0b"], ["x" * 201])),
        pytest.param("find", "names", ["\ud800"], id="find-names-surrogate"),
        pytest.param("find", "names", [f"order-{number}" for number in range(101)], id="find-names-many"),
        ("find", "state", "gone"),
        *(("get", "key", each) for each in ("", " ", 7, "a\0b")),
    ],
    ids=str,
)
@on_one
async def test_what_list_and_find_refuse(client: AsyncClient, call: str, argument: str, value: Any) -> None:
    """An argument that makes no sense, or a text that cannot be a payment's name, is refused by its name."""
    given = {"names": "order-1"} if call == "find" else {}
    with pytest.raises(InvalidRequest) as caught:
        await getattr(client.payments, call)(**{**given, argument: value})
    assert caught.value.argument == argument


async def test_payments_are_found_by_any_name(world: World) -> None:
    """A transaction id, a reference, an external id and a key all find their payment, in whatever state it is."""
    async with world.client() as client, world.client(store=world.store(account="other")) as other:
        first = await client.collections.create(**ORDER, idempotency_key="order-1", extra={"external_id": "shop/1"})
        second = await client.disbursements.create(**ORDER, idempotency_key="order-2")
        world.sandbox.approve(second.transaction_id)
        await client.payments.reconcile()
        assert first.reference is not None
        assert second.reference is not None
        for name in (first.transaction_id, first.reference, "shop/1", "order-1"):
            (found,) = await client.payments.find(name)
            assert (found.key, found.external_id, found.history) == ("order-1", "shop/1", ())
            assert await other.payments.find(name) == []
        names = [second.reference, "order-2", "order-1", "shop/1", "forged", first.transaction_id]
        assert [each.key for each in await client.payments.find(names)] == ["order-1", "order-2"]
        assert await client.payments.find(names, state="UNKNOWN") == []
        assert len(await client.payments.find(iter(names), state=[PaymentState.ACKNOWLEDGED, "FINAL"])) == 2
        assert await client.payments.find(names, state=[]) == []
        assert await client.payments.find([]) == []
        assert await client.payments.find(["shop/%", "ORDER-1", "'; --"]) == []


async def test_of_many_payments_with_one_external_id_the_newest_are_found(world: World, client: AsyncClient) -> None:
    """A hundred at most: a customer asks about one of these."""
    await client.payments.list()  # makes the tables

    def insert(connection: sa.Connection) -> None:
        for number in range(102):
            at = f"2026-01-02 12:{number % 60:02}:{number // 60:02}"
            insert_payment(connection, key=f"{at} {number}", created_at=at, external_id="cart", state="FINAL")

    await account_store(world.store()).database.write(insert)
    found = [each.key for each in await client.payments.find("cart")]
    assert len(found) == 100 and found == sorted(found)
    assert "2026-01-02 12:00:00 0" not in found and "2026-01-02 12:00:01 60" not in found


async def test_the_external_id_that_the_service_shows_is_found(world: World, client: AsyncClient) -> None:
    """Where a final transaction has an external id that was not sent by us, the payment goes by it from then on."""
    made = await client.collections.create(**ORDER, idempotency_key="order-1")
    shown = attrs.evolve(await client.transactions.get(made.transaction_id), external_id="shop/1")
    ended = attrs.evolve(shown, status=TransactionStatus.FAILED)
    await record_seen(world, ended)
    (record,) = await client.payments.find("shop/1")
    assert (record.external_id, record.transaction) == ("shop/1", ended)


async def test_a_final_state_stays_whatever_the_service_shows_later(world: World, client: AsyncClient) -> None:
    """Another final state is an error, and one entry of the payment's history."""
    made = await client.collections.create(**ORDER, idempotency_key="order-1")
    shown = await client.transactions.get(made.transaction_id)
    said = []
    for status in (TransactionStatus.SUCCESS, TransactionStatus.FAILED):
        ended = attrs.evolve(shown, status=status)
        said.append(await record_seen(world, ended))
    assert said[0] is None and "was finally SUCCESS, and is FAILED" in str(said[1])
    record = await client.payments.get("order-1")
    assert record is not None and record.status == TransactionStatus.SUCCESS
    assert [each.what for each in record.history] == ["sent", "acknowledged", "final", "contradiction"]


@on_one
@pytest.mark.parametrize(
    "other", [{"amount": Decimal(1)}, {"phone_number": "+255689999999"}, {"currency": "USD"}], ids=str
)
async def test_the_end_of_another_payment_is_not_recorded(
    world: World, client: AsyncClient, other: dict[str, Any]
) -> None:
    """What the service shows under a payment's id ends that payment only if it may be the same one."""
    made = await client.collections.create(**ORDER, idempotency_key="order-1")
    shown = await client.transactions.get(made.transaction_id)
    ended = attrs.evolve(shown, status=TransactionStatus.SUCCESS, **other)
    said = await record_seen(world, ended)
    assert "another type, amount, currency or phone number" in str(said)
    record = await get(client)
    assert record.state is PaymentState.ACKNOWLEDGED


@pytest.mark.slow
@pytest.mark.pairs
async def test_a_payment_that_was_shown_otherwise_is_looked_up_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer with another currency is not believed, and a paid order hears of its payment all the same."""
    monkeypatch.setattr("mobilemoney_async.polling.poller._LOOK_AGAIN", 4.0)
    async with world.client() as client, client.poller(resume=True) as poller:
        outcomes = poller.outcomes(forever=True)

        def change(page: Any) -> None:
            for row in page["transactions"]:
                row["currency"] = "USD"

        world.line.change_page = change
        for key in ("order-1", "order-2"):  # a page is worth more than lookups
            await client.collections.create(phone_number="+255780000789", amount=1000, idempotency_key=key)
        with anyio.fail_after(60):
            assert isinstance((await anext(outcomes)).error, StoreError)
            world.line.change_page = None
            while (record := await client.payments.get("order-1")) is None or not record.is_final:
                await anyio.sleep(1)


async def test_a_reference_of_any_length_is_recorded(store_url: str) -> None:
    """A name that is too long for an index does not keep a payment from being recorded."""
    reference = "".join(random.Random(0).choices(string.printable, k=20_000))
    answer = json.loads(acknowledgement().body) | {"reference": reference}
    transport = FakeTransport(lambda sent: Response.json(answer))
    async with make_client(transport, store=SQLStore(store_url)) as client:
        extra = {"external_id": reference}
        await client.collections.create(phone_number=PAYS, amount=1000, idempotency_key="order-1", extra=extra)
        (record,) = await client.payments.find("order-1")
        assert (record.state, record.reference, record.external_id) == (PaymentState.ACKNOWLEDGED, reference, None)


async def test_a_store_outlives_its_clients(world: World) -> None:
    """One store serves one client after the other, and several at once."""
    store = world.store()
    async with world.client(store) as one:
        async with world.client(store) as other:
            await other.collections.create(**ORDER, idempotency_key="k")
        assert await one.payments.get("k") is not None
    async with world.client(store) as late:
        assert await late.payments.get("k") is not None


# Decisions that an unknown payment is a certain transaction


async def lose_among_others(world: World, client: AsyncClient, other: AsyncClient) -> tuple[str, str]:
    """Create a payment and lose its answer, and the same by a system without a store; return both ids."""
    world.sandbox.script(faults.drop(processed=True), on="c2b")
    with pytest.raises(OutcomeUnknown):
        await client.collections.create(**ORDER, idempotency_key="order-1")
    (ours,) = world.made
    theirs = await other.collections.create(**ORDER)
    return ours, theirs.transaction_id


def make_other(world: World) -> Any:
    """Return a client of another system: without a store."""
    return world.sandbox.client()


@pytest.mark.real_time
async def test_an_ambiguous_payment_becomes_the_transaction_that_someone_names(world: World) -> None:
    """Its key then gives that transaction, and duplicates may be sent again."""
    async with world.client() as client, make_other(world) as other:
        ours, theirs = await lose_among_others(world, client, other)
        (record,) = await client.payments.reconcile()
        assert record.candidates == tuple(sorted([ours, theirs]))
        record = await client.payments.identify("order-1", ours, note="Asha asked the customer")
        assert (record.state, record.transaction_id, record.candidates) == ("ACKNOWLEDGED", ours, ())
        answer = await client.collections.create(**ORDER, idempotency_key="order-1")
        assert answer.transaction_id == ours
        await client.collections.create(**ORDER, idempotency_key="order-2")
        found = await get(client)
    last = found.history[-1]
    assert (last.what, last.source, last.detail) == ("adopted", "person", f"{ours}: Asha asked the customer")


@pytest.mark.real_time
async def test_a_transaction_of_another_kind_is_not_taken(sqlite_file_url: str) -> None:
    """A mistyped id is refused if the transaction has another phone number or amount."""
    world = make_world(sqlite_file_url)
    async with world.client() as client, make_other(world) as other:
        await lose_among_others(world, client, other)
        wrong = await other.collections.create(**{**ORDER, "amount": 77})
        with pytest.raises(StoreError, match=r" has another amount \(77, not \d+\) than payment"):
            await client.payments.identify("order-1", wrong.transaction_id, note="no")
        with pytest.raises(TransactionNotFound):
            await client.payments.identify("order-1", "txn_nobody", note="no")
        for key, transaction_id, note in (("", "x", "y"), ("x", "", "y"), ("x", "y", " ")):
            with pytest.raises(InvalidRequest):
                await client.payments.identify(key, transaction_id, note=note)
        record = await get(client)
    assert record.state == "UNKNOWN"


@pytest.mark.real_time
async def test_a_transaction_belongs_to_one_payment(sqlite_file_url: str) -> None:
    """A transaction of another payment cannot be given to a second one, nor can a known payment be changed.

    Who says the same as someone before gets the payment.
    """
    world = make_world(sqlite_file_url)
    async with world.client() as client, make_other(world) as other:
        ours, theirs = await lose_among_others(world, client, other)
        for note in ("yes", "yes, says another"):
            assert (await client.payments.identify("order-1", ours, note=note)).transaction_id == ours
        with pytest.raises(StoreError, match="not unknown or absent"):
            await client.payments.identify("order-1", theirs, note="no")
        world.sandbox.script(faults.drop(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(**ORDER, idempotency_key="order-2")
        with pytest.raises(StoreError, match="belongs to another payment") as caught:
            await client.payments.identify("order-2", ours, note=f"Asha called {PHONE_NUMBER}")
        assert PHONE_NUMBER not in str(caught.value)
        with pytest.raises(StoreError, match="there is no payment"):
            await client.payments.identify("order-3", ours, note="no")
