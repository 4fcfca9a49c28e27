"""Profiles, login, one-time and forgotten passwords: refused arguments, and calls that are never sent twice."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    ConnectionFailed,
    InvalidCredentials,
    InvalidRequest,
    MobileMoneyError,
    Secret,
    ServerError,
    UnexpectedResponse,
)
from tests.contract import samples
from tests.support.fakes import connect, in_turn

Act = Callable[[AsyncClient], Awaitable[Any]]
NUMBER = "+255680000001"
SECRET = "hunter2-hunter2"

SESSION: dict[str, Act] = {
    "login": lambda c: c.users.login("a@b.example", SECRET),
    "request_otp": lambda c: c.users.request_otp(NUMBER),
    "verify_otp": lambda c: c.users.verify_otp(NUMBER, SECRET),
    "forgot_password": lambda c: c.users.forgot_password("a@b.example"),
    "reset_password": lambda c: c.users.reset_password("a@b.example", SECRET, SECRET),
}

REFUSED: list[tuple[str, Act]] = [
    ("email", lambda c: c.users.login("", SECRET)),
    ("password", lambda c: c.users.login("a@b.example", "")),
    ("password", lambda c: c.users.login("a@b.example", Secret(" "))),
    ("password", lambda c: c.users.login("a@b.example", None)),  # type: ignore[arg-type]
    ("phone_number", lambda c: c.users.request_otp("0680000001")),
    ("purpose", lambda c: c.users.request_otp(NUMBER, "")),
    ("phone_number", lambda c: c.users.verify_otp("680", "004938")),
    ("otp_code", lambda c: c.users.verify_otp(NUMBER, "")),
    ("otp_code", lambda c: c.users.verify_otp(NUMBER, 4938)),  # type: ignore[arg-type]
    ("email", lambda c: c.users.forgot_password(" ")),
    ("email", lambda c: c.users.reset_password("", SECRET, SECRET)),
    ("reset_token", lambda c: c.users.reset_password("a@b.example", "", SECRET)),
    ("new_password", lambda c: c.users.reset_password("a@b.example", SECRET, Secret(""))),
]


@pytest.mark.parametrize(("argument", "act"), REFUSED)
async def test_an_odd_argument_is_refused_before_anything_is_sent(argument: str, act: Act) -> None:
    """A code given as a number would lose its leading zeros; an empty password is a mistake."""
    async with connect(in_turn({})) as (client, service):
        with pytest.raises(InvalidRequest) as caught:
            await act(client)
    assert caught.value.argument == argument
    assert service.sent == []


@pytest.mark.parametrize("name", SESSION)
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.ReadError("reset"), ConnectionFailed),
        (({}, 502), ServerError),
        (([], 200), UnexpectedResponse),
    ],
)
async def test_what_may_have_been_processed_is_not_sent_again(
    name: str, answer: Any, kind: type[MobileMoneyError]
) -> None:
    """A one-time password is not sent twice, and a login attempt is not used up, by a retry behind your back."""
    async with connect(in_turn(answer)) as (client, service):
        with pytest.raises(kind) as caught:
            await SESSION[name](client)
    assert caught.value.outcome == "unknown"
    assert caught.value.idempotency_key is None
    assert len(service.sent) == 1


async def test_wrong_credentials_are_told_at_once() -> None:
    """A login that the service refuses is not tried again: attempts are limited."""
    body = {"success": False, "error": "invalid_credentials", "message": f"no user with password={SECRET}"}
    async with connect(in_turn((body, 401))) as (client, service):
        with pytest.raises(InvalidCredentials) as caught:
            await client.users.login("a@b.example", SECRET)
    assert SECRET not in f"{caught.value!r} {vars(caught.value)}"
    assert len(service.sent) == 1


async def test_a_login_leaves_the_client_s_own_token_alone() -> None:
    """`users.login` is a call like any other; `LoginAuth` logs a client in."""
    async with connect(in_turn(samples.login(), {"id": 7}), auth="issued") as (client, service):
        result = await client.users.login("a@b.example", SECRET)
        assert await client.users.profile() == {"id": 7}
    assert result.access_token == Secret("header.payload.signature")
    assert "authorization" not in service.sent[0].headers
    assert service.sent[1].headers["authorization"] == "Bearer issued"


@pytest.mark.parametrize("act", [lambda c: c.users.profile(), lambda c: c.users.users_profile()])
async def test_a_profile_is_read_again_where_no_answer_came(act: Act) -> None:
    async with connect(in_turn(({}, 502), {"id": 7})) as (client, service):
        assert await act(client) == {"id": 7}
    assert len(service.sent) == 2
