"""Logs: one line an attempt, and no secret in any log, repr or traceback with locals."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from mobilemoney_async import AsyncClient, LoginAuth, MobileMoneyError, RetryPolicy, Secret, TokenAuth
from tests.support.fakes import (
    EMAIL,
    PASSWORD,
    PHONE_NUMBER,
    TOKEN,
    FakeTransport,
    Hang,
    logged_in,
    make_client,
    pay,
    refusal,
    replies,
    script,
)
from tests.support.frames import leaks
from tests.support.server import Close, Cut, Reply, Response, serve

OTP = "918273"
RESET_TOKEN = "reset-me-please-0123456789"
NEW_PASSWORD = "an even better battery"
LOGIN_TOKEN = "login.token-that-nobody-may-see"
SECRETS = [TOKEN, LOGIN_TOKEN, PASSWORD, OTP, RESET_TOKEN, NEW_PASSWORD, PHONE_NUMBER, PHONE_NUMBER.lstrip("+")]


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


async def look_up(client: AsyncClient) -> None:
    await client.transactions.get("tx-secret-id")


async def verify(client: AsyncClient) -> None:
    await client.users.verify_otp(PHONE_NUMBER, OTP)


async def log_in(client: AsyncClient) -> None:
    await client.users.login(EMAIL, PASSWORD)


async def reset(client: AsyncClient) -> None:
    await client.users.reset_password(EMAIL, RESET_TOKEN, NEW_PASSWORD)


EVERYTHING = [pay, look_up, verify, log_in, reset]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return our own lines, at DEBUG."""
    caplog.set_level(logging.DEBUG, logger="mobilemoney_async")
    ours = ("mobilemoney_async", logging.DEBUG)
    return lambda: [each.getMessage() for each in caplog.records if (each.name, each.levelno) == ours]


async def test_one_line_for_each_attempt(lines: Callable[[], list[str]]) -> None:
    """Method, path template, status, duration, attempt: enough to follow a call, and no id."""
    transport = FakeTransport(script(Response(503), httpx.ReadError("x"), Response(503)))
    client = make_client(transport, retry=RetryPolicy(first_delay=0))
    await look_up(client)
    head = "GET /payment-service/transaction/{transaction_id}: "
    assert lines() == [
        f"{head}503 in 0.000 s, attempt 1",
        f"{head}no answer in 0.000 s, attempt 2",
        f"{head}503 in 0.000 s, attempt 3",
        f"{head}200 in 0.000 s, attempt 4",
    ]


async def test_a_time_out_is_logged_with_its_length(lines: Callable[[], list[str]]) -> None:
    transport = FakeTransport(lambda sent: Hang())
    with pytest.raises(MobileMoneyError):
        await pay(make_client(transport, timeout=12.5))
    assert lines() == ["POST /payment-service/airtel/c2b: no answer in 12.500 s, attempt 1"]


async def test_the_login_has_a_line_of_its_own(lines: Callable[[], list[str]]) -> None:
    await look_up(make_client(FakeTransport(), auth=LoginAuth(EMAIL, PASSWORD)))
    assert [line.partition(":")[0] for line in lines()] == [
        "POST /user-service/login",
        "GET /payment-service/transaction/{transaction_id}",
    ]


async def test_without_debug_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve(replies(Response(503))) as server, make_client(base_url=server.base_url) as client:
        await look_up(client)
    assert caplog.records == []


FAULTS: list[Reply] = [
    Response(503, f"token={TOKEN} phone {PHONE_NUMBER} otp {OTP}".encode()),
    Response.html(502, f"<h1>{PHONE_NUMBER} password: {PASSWORD}</h1>"),
    Response.json({"status": "error", "message": f"bad phone {PHONE_NUMBER}", "error_code": "X"}, 400),
    Response.json({"status": "success", "phone_number": PHONE_NUMBER}),
    Response.json({"success": True, "access_token": LOGIN_TOKEN, "expires_in": "soon"}),
    Cut(logged_in(LOGIN_TOKEN), after=150),
    Close(),
    Close(reset=True),
    refusal("invalid_token", 401),
    refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=1),
]


@pytest.mark.parametrize("call", EVERYTHING)
@pytest.mark.parametrize("fault", FAULTS)
async def test_no_secret_is_shown_whatever_happens(
    call: Callable[[AsyncClient], Awaitable[None]], fault: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    """No token, password, one-time password or whole phone number: not in any log, error, repr or our own frames."""
    caplog.set_level(logging.DEBUG)
    for auth in (TOKEN, LoginAuth(EMAIL, PASSWORD)):
        await fail_in_every_way(call, fault, auth)
    for record in caplog.records:
        assert secrets_in(f"{record.getMessage()} {record.args}") == [], record.name


async def fail_in_every_way(call: Callable[[AsyncClient], Awaitable[None]], fault: Reply, auth: Any) -> None:
    async with serve(replies(*[fault] * 20)) as server:
        retry = RetryPolicy(max_attempts=2)
        async with make_client(base_url=server.base_url, auth=auth, retry=retry) as client:
            error = await error_of(call(client))
            assert secrets_in(f"{client!r} {vars(client)!r}") == []
    if error is not None:
        assert secrets_in(f"{error} {error!r} {error.__cause__} {error.__cause__!r} {vars(error)}") == []
        assert leaks(error, SECRETS) == []


async def error_of(call: Awaitable[None]) -> MobileMoneyError | None:
    try:
        await call
    except MobileMoneyError as exc:
        return exc
    return None


def test_what_holds_a_secret_does_not_show_it() -> None:
    assert repr(TokenAuth(TOKEN)) == "TokenAuth(value=Secret('…'))"
    assert repr(LoginAuth(EMAIL, PASSWORD)) == "LoginAuth(…)"
    assert TOKEN not in f"{Secret(TOKEN)} {Secret(TOKEN)!r}"
    assert TOKEN not in repr(make_client(FakeTransport())._pipeline)
