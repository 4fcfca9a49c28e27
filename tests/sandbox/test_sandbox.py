"""Sandbox as a test uses it: its state, decisions about payments, and its clock."""

import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import anyio
import pytest

from mobilemoney_async.sandbox import Choices, IllegalTransitionError, Sandbox
from mobilemoney_async.sandbox.clock import Clock
from mobilemoney_async.testing import run_virtual
from tests.sandbox.service import ORDINARY, START, STUCK, SUCCEEDS, create, http


async def test_a_payment_in_virtual_time() -> None:
    """`created_at` and the final state follow the event loop's clock."""
    sandbox = Sandbox(now=START)
    async with http(sandbox) as client:
        await anyio.sleep(10)
        transaction_id = await create(sandbox, SUCCEEDS)
        assert (await client.get("/user-service/profile")).status_code == 200
        assert not list(sandbox.ledger)
        await anyio.sleep(5)
        record = (await client.get(f"/payment-service/transaction/{transaction_id}")).json()["transaction"]
    assert record["created_at"] == "2025-03-31T23:59:10.000Z"
    assert record["completed_at"] == "2025-03-31T23:59:15.000Z"
    assert sandbox.balance == 10_000_000 + 985
    assert sandbox.transactions[transaction_id].status == record["status"] == "SUCCESS"
    assert sandbox.now == START + timedelta(seconds=15)
    assert [entry.endpoint for entry in sandbox.requests] == ["c2b", "profile", "transaction"]


async def test_a_person_can_decide() -> None:
    sandbox = Sandbox(now=START, balance="1500.50", choices=Choices(rate_limit=None))
    approved, declined, expired, failed = [await create(sandbox, STUCK) for _ in range(4)]
    paid, refused, too_much = [await create(sandbox, STUCK, endpoint="b2c") for _ in range(3)]
    with pytest.raises(IllegalTransitionError, match="disbursement"):
        sandbox.expire(paid)
    await anyio.sleep(1)
    assert sandbox.approve(paid).status == "SUCCESS"
    assert sandbox.approve(too_much).status == "INSUFFICIENT_FUNDS"
    assert sandbox.approve(approved).ended_at == 1.0
    assert sandbox.decline(declined).failure_reason == "PAYMENT_NOT_APPROVED"
    assert sandbox.decline(refused).failure_reason == "UNSPECIFIED_FAILURE"
    assert sandbox.decline(failed, "LINE_BUSY").failure_reason == "LINE_BUSY"
    assert sandbox.expire(expired).status == "TIMEOUT"
    assert sandbox.balance == Decimal("1485.50")
    for decide in (sandbox.approve, sandbox.decline, sandbox.expire):
        with pytest.raises(IllegalTransitionError):
            decide(approved)
    with pytest.raises(KeyError):
        sandbox.approve("txn_unknown")


async def test_secrets_can_be_read_where_a_person_would() -> None:
    sandbox = Sandbox()
    async with http(sandbox) as client:
        ask = {"phone_number": ORDINARY, "purpose": "transaction_verification"}
        await client.post("/user-service/request-otp", json=ask)
        verify = {"phone_number": ORDINARY, "otp_code": sandbox.last_otp(ORDINARY)}
        assert (await client.post("/user-service/verify-otp", json=verify)).status_code == 200
        await client.post("/user-service/forgot-password", json={"email": sandbox.email})
        reset = {
            "email": sandbox.email,
            "reset_token": sandbox.last_reset_token(sandbox.email),
            "new_password": "another",
        }
        assert (await client.post("/user-service/reset-password", json=reset)).status_code == 200
    assert sandbox.password == "another"


async def test_accounts_and_tokens_of_a_test() -> None:
    sandbox = Sandbox()
    other = sandbox.add_account("other@example.com")
    read_only = sandbox.issue_token(["read"])
    async with http(sandbox) as client:
        await create(sandbox, STUCK)
        for token, status, count in ((sandbox.issue_token(), 200, 1), (read_only, 200, 1), (other.token, 200, 0)):
            listed = await client.get("/payment-service/transactions", headers={"Authorization": f"Bearer {token}"})
            assert (listed.status_code, len(listed.json()["transactions"])) == (status, count)
    assert sandbox.token not in repr(sandbox)
    assert other.token not in repr(other)
    assert other.password not in repr(other)
    assert repr(sandbox) == "Sandbox(speed=1.0, transactions=1)"


@pytest.mark.parametrize(
    ("name", "values"),
    [("speed", [0.0, -1.0, float("inf"), float("nan")]), ("balance", ["much", "NaN", -1, 1.5, True])],
)
def test_a_number_that_cannot_be_is_refused(name: str, values: list[Any]) -> None:
    """Money is never a float."""
    for value in values:
        with pytest.raises(TypeError if value in (1.5, True) else ValueError, match=name):
            Sandbox(**{name: value})


def test_the_start_must_be_aware() -> None:
    with pytest.raises(ValueError, match="aware"):
        Sandbox(now=datetime(2025, 1, 1))  # noqa: DTZ001 - that is the point
    east = timezone(timedelta(hours=3))
    assert Sandbox(now=datetime(2025, 1, 1, tzinfo=east)).now == datetime(2024, 12, 31, 21, tzinfo=UTC)


def test_the_clock_stands_still_outside_a_loop_and_goes_on_in_the_next() -> None:
    clock = Clock(START)
    assert clock.seconds() == 0.0

    async def live(seconds: float) -> float:
        clock.seconds()
        await anyio.sleep(seconds)
        clock.advance(100)
        return clock.seconds()

    assert run_virtual(live, 5) == 105.0
    assert clock.seconds() == 105.0
    assert run_virtual(live, 2, backend="trio") == 207.0
    assert clock.seconds() == 207.0


def test_by_default_the_clock_agrees_with_the_computer() -> None:
    clock = Clock()
    before = datetime.now(UTC)

    async def read() -> datetime:
        return clock.start + timedelta(seconds=clock.seconds())

    first, second = run_virtual(read), run_virtual(read)
    assert before <= first <= second <= datetime.now(UTC)
    clock.advance(1000)
    assert run_virtual(read) >= second + timedelta(seconds=1000)


@pytest.mark.parametrize("missing", [("starlette", "starlette.requests"), ("uvicorn",), ("jinja2",)], ids=str)
def test_importing_the_sandbox_needs_no_extra(monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]) -> None:
    """Without a package of the extra the in-process front works, and the others name the extra to install."""
    import mobilemoney_async.sandbox.page.app  # so that all of these modules are put back afterwards
    import mobilemoney_async.sandbox.server  # noqa: F401

    for module in list(sys.modules):
        if module.startswith(("mobilemoney_async.sandbox.page", "mobilemoney_async.sandbox.server")):
            monkeypatch.delitem(sys.modules, module)
    for module in ("page", "server"):
        monkeypatch.delattr(f"mobilemoney_async.sandbox.{module}", raising=False)
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    sandbox = Sandbox()
    sandbox.transport()
    with pytest.raises(ImportError, match=r'pip install "mobilemoney-async\[sandbox\]"'):
        sandbox.app  # noqa: B018 - the property raises

    async def serve() -> None:
        async with sandbox.serve():
            pytest.fail("it cannot be served")

    with pytest.raises(ImportError, match=r'pip install "mobilemoney-async\[sandbox\]"'):
        run_virtual(serve)


async def test_options_of_its_client_take_precedence() -> None:
    sandbox = Sandbox()
    from mobilemoney_async import LoginAuth, RateLimiter

    async with http(sandbox) as own:
        client = sandbox.client(
            http_client=own, auth=LoginAuth(sandbox.email, sandbox.password), rate_limiter=RateLimiter()
        )
        async with client:
            await client.users.profile()
    assert sandbox.requests.logins == 1


async def test_one_address_serves_many_merchants() -> None:
    """Each of three merchants has a token of its own, and sees its own payments only."""
    sandbox = Sandbox(merchants=3)
    assert list(sandbox.tokens) == ["shop-1", "shop-2", "shop-3"]
    assert sandbox.tokens["shop-1"] == sandbox.token
    for name, token in sandbox.tokens.items():
        async with sandbox.client(auth=token) as client:
            assert [each async for each in client.transactions.list()] == []
            await client.collections.create(phone_number="+255681234567", amount=1_000)
            assert [each.amount async for each in client.transactions.list()] == [1_000]
        assert sandbox.rate_budget(sandbox.merchants[name]).window_used == 3
    assert len(sandbox.transactions) == 3


@pytest.mark.parametrize("merchants", [0, 10_001, 2.0, True])
def test_a_number_of_merchants_that_is_none_is_refused(merchants: Any) -> None:
    """The error names the argument and its range."""
    with pytest.raises(ValueError, match="merchants must be an int from 1 to 10000"):
        Sandbox(merchants=merchants)
