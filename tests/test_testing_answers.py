"""Single answers for a merchant's own tests are read by the client as the service's would be."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import anyio
import httpx
import pytest
import respx

from mobilemoney_async import (
    APIError,
    AsyncClient,
    InvalidRequest,
    LoginAuth,
    RetryPolicy,
    TransactionStatus,
)
from mobilemoney_async.testing import (
    Routes,
    acknowledgement_answer,
    error_answer,
    login_answer,
    page_answer,
    transaction_answer,
    transaction_record,
)
from tests.contract.test_error_mapping import CODES
from tests.support.fakes import BASE_URL, EMAIL, PASSWORD, PHONE_NUMBER, TOKEN, make_client

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def routes() -> Iterator[Routes]:
    with respx.mock as router:
        yield Routes(router)


def client(**options: Any) -> AsyncClient:
    return make_client(**{"retry": ONCE, **options})


async def test_every_endpoint_of_a_payment_has_a_route(routes: Routes) -> None:
    """The values that a test puts into an answer come out of the client as its own types."""
    routes.login(login_answer("issued-by-the-test"))
    routes.create_collection(acknowledgement_answer("tx-1", amount=Decimal(15_000)))
    routes.create_disbursement(acknowledgement_answer("tx-2", status_code="PROCESSING", reference="REF-9"))
    lookups = routes.get_transaction(transaction_answer("tx-1", amount=15_000), transaction_id="tx-1")
    routes.find_transaction(transaction_answer("tx-2", "FAILED", type="disbursement", external_id="order-2"))
    pages = routes.list_transactions(
        page_answer(transaction_record("tx-1"), total_pages=2),
        page_answer(transaction_record("tx-2", "TIMEOUT"), page=2, total_pages=2),
    )
    async with client(auth=LoginAuth(EMAIL, PASSWORD)) as ours:
        prompt = await ours.collections.create(phone_number=PHONE_NUMBER, amount=15_000)
        assert prompt.transaction_id == "tx-1"
        assert (prompt.amount, prompt.status_code) == (Decimal(15_000), TransactionStatus.PENDING)
        payout = await ours.disbursements.create(phone_number=PHONE_NUMBER, amount=1000)
        assert (payout.status_code, payout.reference) == ("PROCESSING", "REF-9")
        paid = await ours.transactions.get("tx-1")
        assert paid.succeeded and paid.completed_at is not None
        assert paid.settlement is not None and paid.settlement.net_amount == 15_000
        failed = await ours.transactions.get_by_external_id("order-2")
        assert (failed.status, failed.failure_reason, failed.external_id) == (
            "FAILED",
            "RECIPIENT_NOT_FOUND",
            "order-2",
        )
        assert [row.status async for row in ours.transactions.list()] == ["SUCCESS", "TIMEOUT"]
    assert pages.call_count == 2
    assert lookups.calls.last.request.headers["authorization"] == "Bearer issued-by-the-test"


@pytest.mark.parametrize("base_url", [BASE_URL, "http://127.0.0.1:8000/v1"])
async def test_answers_come_in_turn_and_the_last_for_ever(routes: Routes, base_url: str) -> None:
    """A script of answers needs no counting; the address of the client does not matter."""
    route = routes.get_transaction(
        transaction_answer(status="PENDING"), httpx.ConnectError("gone"), transaction_answer()
    )
    async with client(base_url=base_url, retry=RetryPolicy(max_attempts=2)) as ours:
        seen = [(await ours.transactions.get("tx-1")).status for _ in range(4)]
    assert seen == ["PENDING", "SUCCESS", "SUCCESS", "SUCCESS"]
    assert route.call_count == 5


@pytest.mark.parametrize("code", CODES)
async def test_errors_are_those_of_the_contract(routes: Routes, code: str) -> None:
    """Each code of the contract raises its own error, without a status to look up."""
    routes.get_transaction(error_answer(code))
    async with client(auth=TOKEN) as ours:
        with pytest.raises(CODES[code]):
            await ours.transactions.get("tx-1")


async def test_a_rejection_says_when_to_come_again(routes: Routes) -> None:
    """The seconds that a test names are those that the client waits."""
    routes.get_transaction(error_answer("RATE_LIMIT_EXCEEDED", retry_after=30), transaction_answer())
    started = anyio.current_time()
    async with client(retry=RetryPolicy()) as ours:
        await ours.transactions.get("tx-1")
    assert 30 <= anyio.current_time() - started < 35


async def test_a_code_outside_the_contract_needs_a_status(routes: Routes) -> None:
    """A merchant may pin the service's real answer, once that is known."""
    with pytest.raises(InvalidRequest, match="status"):
        error_answer("AMOUNT_TOO_LARGE")
    routes.create_collection(error_answer("AMOUNT_TOO_LARGE", status=422))
    async with client() as ours:
        with pytest.raises(APIError) as refused:
            await ours.collections.create(phone_number=PHONE_NUMBER, amount=1000)
    assert (refused.value.code, refused.value.status_code) == ("AMOUNT_TOO_LARGE", 422)


def test_what_is_no_answer_is_refused(routes: Routes) -> None:
    """A float is no amount here either, and a route without an answer is a mistake."""
    with pytest.raises(InvalidRequest, match="amount"):
        transaction_record(amount=10.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="answers"):
        routes.login()
