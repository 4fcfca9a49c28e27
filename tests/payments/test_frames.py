"""Frames of the errors of creates with a store: their locals hold no phone number, no note and no token."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    DuplicateSuspected,
    IdempotencyConflict,
    InvalidRequest,
    Merchants,
    MobileMoneyError,
    OutcomeUnknown,
    RetryPolicy,
    SQLStore,
    StoreError,
    TransportError,
)
from tests.support.fakes import EMAIL, PASSWORD, FakeTransport, make_client, refusal, script
from tests.support.frames import leaks

PHONE, NOTE, TOKEN = "+255780000789", "ring0788", "login-token-1"
ORDER: dict[str, Any] = {"phone_number": PHONE, "amount": 1000, "extra": {"note": NOTE, "external_id": "ext-1"}}
SECRETS = [PHONE, PHONE[1:], PHONE[4:], NOTE, PASSWORD, TOKEN]
LOST = httpx.ReadError("x")


async def conflict(client: AsyncClient) -> None:
    await client.collections.create(**ORDER, idempotency_key="order-1")
    await client.collections.create(**ORDER | {"amount": 2000}, idempotency_key="order-1")


async def duplicate(client: AsyncClient) -> None:
    with pytest.raises(OutcomeUnknown):
        await client.disbursements.create(**ORDER, idempotency_key="order-1")
    await client.disbursements.create(**ORDER, idempotency_key="order-2")


async def lose(client: AsyncClient) -> None:
    await client.disbursements.create(**ORDER, idempotency_key="order-1")


async def again(client: AsyncClient) -> None:
    with pytest.raises(OutcomeUnknown):
        await client.disbursements.create(**ORDER, idempotency_key="order-1")
    await client.disbursements.create(**ORDER, idempotency_key="order-1")


async def queue(client: AsyncClient) -> None:
    await client.payments.enqueue(type="collection", **ORDER, idempotency_key="order-1")
    await client.payments.enqueue(type="collection", **ORDER | {"amount": 7}, idempotency_key="order-1")


async def misqueue(client: AsyncClient) -> None:
    await client.payments.enqueue(type="x", **ORDER, idempotency_key="order-1")


Case = tuple[Callable[[AsyncClient], Awaitable[None]], type[MobileMoneyError], Any]


@pytest.mark.parametrize(
    ("call", "kind", "answer"),
    [
        (conflict, IdempotencyConflict, None),
        (duplicate, DuplicateSuspected, LOST),
        (lose, OutcomeUnknown, LOST),
        (again, OutcomeUnknown, LOST),
        (lose, MobileMoneyError, refusal("insufficient_permissions", 403)),
        (queue, IdempotencyConflict, None),
        (misqueue, InvalidRequest, None),
    ],
)
@pytest.mark.pairs
async def test_an_error_of_a_create_with_a_store_keeps_no_secret_in_a_frame(
    store_url: str, call: Callable[[AsyncClient], Awaitable[None]], kind: type[MobileMoneyError], answer: Any
) -> None:
    """Conflicts, duplicates and lost answers: neither our frames nor SQLAlchemy's show what was to be paid to whom."""

    def handler(sent: Any) -> Any:
        return answer if answer is not None and sent.path.endswith(("c2b", "b2c")) else None

    plain = script()
    transport = FakeTransport(lambda sent: handler(sent) or plain(sent))
    async with make_client(
        transport, auth=(EMAIL, PASSWORD), store=SQLStore(store_url), retry=RetryPolicy(max_attempts=1)
    ) as client:
        with pytest.raises(kind) as caught:
            await call(client)
    assert leaks(caught.value, SECRETS) == []


@pytest.mark.parametrize("given", [f"{TOKEN}\n", ("shop@example.com", PASSWORD), {"token": TOKEN}])
async def test_a_wrong_secret_of_a_vault_is_in_no_frame(given: Any, tmp_path: Path) -> None:
    """A token is often wrong by a line end only, or of another kind."""

    async def auth(account: str) -> Any:
        return given

    store = SQLStore(f"sqlite:///{tmp_path / 'payments.db'}")
    async with Merchants("https://x.test", store=store, auth=auth, transport=lambda _: FakeTransport()) as merchants:
        client = await merchants.client("shop-1")
        with pytest.raises(TransportError) as caught:
            await client.users.profile()
    assert leaks(caught.value, SECRETS) == []


@pytest.mark.slow
async def test_an_error_of_the_database_keeps_no_secret_in_a_frame(tmp_path: Path) -> None:
    """The statement that failed had the number and the note among its parameters."""
    file = tmp_path / "payments.db"
    async with make_client(FakeTransport(), auth=(EMAIL, PASSWORD), store=f"sqlite:///{file}") as client:
        await client.payments.list()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(
                "CREATE TRIGGER none BEFORE INSERT ON mobilemoney_payment_records BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        with pytest.raises(StoreError) as caught:
            await client.collections.create(**ORDER, idempotency_key="order-1")
    assert leaks(caught.value, SECRETS) == []
