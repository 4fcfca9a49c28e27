"""Collections and disbursements: checked before anything is sent, and distinguished by their keys."""

import json
import re
import types
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    InvalidRequest,
    OutcomeUnknown,
    RetryPolicy,
    Secret,
    SQLStore,
    TransactionStatus,
    UnexpectedResponse,
)
from mobilemoney_async.resources.creates import Collections, Disbursements
from tests.contract import samples
from tests.support.arguments import wrong
from tests.support.databases import sqlite_url
from tests.support.fakes import connect, in_turn

NUMBER = "+255680000001"

Pick = Callable[[AsyncClient], Collections | Disbursements]
both = pytest.mark.parametrize(
    "pick", [lambda c: c.collections, lambda c: c.disbursements], ids=["collections", "disbursements"]
)


class TestKeys:
    @both
    async def test_a_key_is_made(self, pick: Pick) -> None:
        """Every payment has a name of its own, to find it by in your own records."""
        async with connect(in_turn(samples.acknowledgement())) as (client, service):
            answers = [await pick(client).create(phone_number=NUMBER, amount=1000) for _ in range(3)]
        keys = {answer.idempotency_key for answer in answers}
        assert len(keys) == 3
        assert all(key and re.fullmatch("[0-9a-f]{32}", key) for key in keys)
        assert not any(b"idempotency" in request.body.lower() for request in service.sent)
        assert not any("idempotency" in name for request in service.sent for name in request.headers)

    @both
    async def test_a_given_key_needs_a_store(self, pick: Pick, tmp_path: Path) -> None:
        """Without one the same key would make a second payment. It is on the answer, whatever the service answers."""
        service = in_turn(samples.acknowledgement(idempotency_key="theirs"))
        async with connect(service) as (client, asked):
            with pytest.raises(InvalidRequest, match=r"^idempotency_key needs a client with a store") as caught:
                await pick(client).create(phone_number=NUMBER, amount=1000, idempotency_key="order-7")
            assert caught.value.argument == "idempotency_key"
            assert asked.sent == []
        async with connect(service, store=SQLStore(sqlite_url(tmp_path))) as (client, _):
            answer = await pick(client).create(phone_number=NUMBER, amount=1000, idempotency_key="order-7")
        assert answer.idempotency_key == "order-7"

    @both
    @pytest.mark.parametrize("key", ["", " ", "k" * 201, "\ud800", 7, b"key", Secret("key")])
    async def test_an_unfit_key_is_refused(self, pick: Pick, key: Any) -> None:
        async with connect(in_turn(samples.acknowledgement())) as (client, service):
            with pytest.raises(InvalidRequest, match=r"^idempotency_key must be ") as caught:
                await pick(client).create(phone_number=NUMBER, amount=1000, idempotency_key=key)
        assert caught.value.argument == "idempotency_key"
        assert service.sent == []

    async def test_the_longest_key(self, tmp_path: Path) -> None:
        async with connect(in_turn(samples.acknowledgement()), store=SQLStore(sqlite_url(tmp_path))) as (client, _):
            answer = await client.collections.create(phone_number=NUMBER, amount=1000, idempotency_key="k" * 200)
        assert answer.idempotency_key == "k" * 200


class TestErrors:
    @both
    async def test_also_on_a_refused_argument_and_a_closed_client(self, pick: Pick) -> None:
        async with connect(in_turn(samples.acknowledgement())) as (client, service):
            with pytest.raises(InvalidRequest) as caught:
                await pick(client).create(phone_number=NUMBER, amount=0)
            assert caught.value.idempotency_key
            assert caught.value.outcome == "not_sent"
        with pytest.raises(InvalidRequest, match="closed") as caught:
            await pick(client).create(phone_number=NUMBER, amount=1000)
        assert caught.value.idempotency_key
        assert service.sent == []

    async def test_an_answer_of_the_wrong_shape_names_the_place(self) -> None:
        async with connect(in_turn(samples.acknowledgement(transaction_id=None))) as (client, _):
            with pytest.raises(OutcomeUnknown) as caught:
                await client.collections.create(phone_number=NUMBER, amount=1000)
        assert isinstance(caught.value.__cause__, UnexpectedResponse)
        assert caught.value.__cause__.path == "$.transaction_id"


REFUSED = wrong(
    amount=[10.0, True, 0, "-5", "10.50", Decimal("NaN")],
    phone_number=["0680000001", None],
    extra=[
        *({"a": value} for value in ([{"b": float("nan")}], {1.5}, {1: "a"}, ..., "\ud800", Decimal("NaN"))),
        *({"fee": 1.5}, {"phone_number": "+255680000002"}, {"amount": "1"}, {1: "a"}, [("a", 1)], "a=1"),
    ],
)


class TestArguments:
    @both
    @pytest.mark.parametrize(("argument", "change"), REFUSED, ids=repr)
    async def test_a_wrong_argument_is_refused_before_anything_is_sent(
        self, pick: Pick, argument: str, change: dict[str, Any]
    ) -> None:
        """A float is never money, and `extra` never another recipient or amount."""
        arguments: dict[str, Any] = {"phone_number": NUMBER, "amount": 5} | change
        async with connect(in_turn(samples.acknowledgement())) as (client, service):
            with pytest.raises(InvalidRequest) as caught:
                await pick(client).create(**arguments)
        assert caught.value.argument == argument
        assert service.sent == []

    @pytest.mark.parametrize("extra", [{}, types.MappingProxyType({})])
    async def test_no_extra_fields(self, extra: Any) -> None:
        async with connect(in_turn(samples.acknowledgement())) as (client, service):
            await client.collections.create(phone_number=NUMBER, amount=1000, extra=extra)
        assert json.loads(service.sent[0].body) == {"phone_number": NUMBER, "amount": "1000"}

    async def test_extra_fields_are_added(self) -> None:
        """A field that the contract does not show goes out beside those that it does; a Decimal as its digits."""
        extra = types.MappingProxyType({"external_id": "order-7", "tip": Decimal("1.50"), "pin": Secret("0000")})
        async with connect(in_turn(samples.acknowledgement())) as (client, service):
            await client.collections.create(phone_number=NUMBER, amount=1000, extra=extra)
        assert json.loads(service.sent[0].body) == {
            "phone_number": NUMBER,
            "amount": "1000",
            "external_id": "order-7",
            "tip": "1.50",
            "pin": "0000",
        }


async def test_an_acknowledgement_leads_to_its_transaction() -> None:
    """`transaction_id` of the acknowledgement is the `id` of the transaction; `status_code` is its first state."""
    handler = in_turn(samples.acknowledgement(status_code="PROCESSING"), samples.found(status="SUCCESS"))
    async with connect(handler) as (client, service):
        accepted = await client.disbursements.create(phone_number=NUMBER, amount=1000)
        paid = await client.transactions.wait(accepted.transaction_id)
    assert isinstance(accepted, Acknowledgement)
    assert accepted.status_code is TransactionStatus.PROCESSING
    assert (accepted.status, accepted.amount) == ("success", Decimal(1000))
    assert paid.id == accepted.transaction_id == service.sent[-1].id
    assert NUMBER not in repr(accepted)


SENT_AT = datetime(2025, 6, 1, 12, tzinfo=UTC)
OTHERS: dict[str, dict[str, Any]] = {
    "amount": {"amount": "900"},
    "phone number": {"phone_number": "+255680000002"},
    "currency": {"currency": "KES"},
    # That of the other type, and one that the contract gives for none.
    "first state": {"status_code": "SUCCESS"},
    "phone number and first state": {"status_code": "QUEUED", "phone_number": ""},
    "amount and currency and phone number and status and first state": dict.fromkeys(
        ["amount", "currency", "phone_number", "status", "status_code"]
    ),
}


def _found(status: int = 200, **changes: Any) -> tuple[dict[str, Any], int]:
    body = {"status": "success", "transaction": samples.transaction(**changes)} if status == 200 else {"error": "no"}
    return body, status


class TestAcknowledgements:
    """Without a store: an acknowledgement counts if it names what was asked for."""

    @both
    @pytest.mark.parametrize(
        "echo", [{"amount": "1000.00"}, {"phone_number": "0680000001"}, {"phone_number": "25568***0001"}], ids=str
    )
    async def test_another_spelling_is_no_contradiction(self, pick: Pick, echo: dict[str, Any]) -> None:
        async with connect(in_turn(samples.acknowledgement(**echo))) as (client, service):
            await pick(client).create(phone_number=NUMBER, amount=1000)
        assert len(service.sent) == 1

    @both
    @pytest.mark.parametrize("name", OTHERS)
    async def test_another_payment_is_looked_up(self, pick: Pick, name: str) -> None:
        """If the transaction of its id is the payment, the acknowledgement is right but for its echo."""
        answers = (samples.acknowledgement(**OTHERS[name]), _found())
        async with connect(in_turn(*answers), utcnow=lambda: SENT_AT) as (client, service):
            if pick(client) is client.disbursements:
                with pytest.raises(OutcomeUnknown, match=f"names another {name}.* transaction t-1") as caught:
                    await pick(client).create(phone_number=NUMBER, amount=1000)
                assert caught.value.idempotency_key
            else:
                answer = await pick(client).create(phone_number=NUMBER, amount=1000)
                assert (answer.amount, answer.phone_number, answer.currency) == (Decimal(1000), NUMBER, "TZS")
                assert (answer.status, answer.status_code) == ("success", TransactionStatus.PENDING)
        assert [request.method for request in service.sent] == ["POST", "GET"]

    @pytest.mark.parametrize(
        "found",
        [
            _found(amount="900"),
            _found(phone_number="+255680000002"),
            _found(created_at="2025-06-01T11:00:00Z"),
            _found(created_at="2025-06-01T12:10:00Z"),
            _found(404),
            httpx.ConnectError("All connection attempts failed"),
        ],
        ids=["amount", "number", "before", "after", "not found", "away"],
    )
    async def test_what_is_not_the_payment_leaves_it_unknown(self, found: Any) -> None:
        """The error names the transaction, which may be the payment, and nothing is sent again."""
        answers = (samples.acknowledgement(amount="900"), found)
        options: dict[str, Any] = {"utcnow": lambda: SENT_AT, "retry": RetryPolicy(max_attempts=1)}
        async with connect(in_turn(*answers), **options) as (client, service):
            with pytest.raises(OutcomeUnknown, match="t-1") as caught:
                await client.collections.create(phone_number=NUMBER, amount=1000)
        assert caught.value.outcome == "unknown"
        assert caught.value.sent_at == SENT_AT
        assert [request.method for request in service.sent] == ["POST", "GET"]
