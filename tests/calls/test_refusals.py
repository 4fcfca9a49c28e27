"""What an answer to a call proves: every status with every kind of body, for each effect, from the design's table."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import (
    APIError,
    AsyncClient,
    AuthenticationError,
    Effect,
    InvalidToken,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    RateLimitExceeded,
    UnexpectedResponse,
)
from mobilemoney_async.testing import run_virtual
from tests.support.fakes import (
    EMAIL,
    LOGIN,
    PASSWORD,
    PHONE_NUMBER,
    CountingSource,
    FakeTransport,
    acknowledgement,
    look_up,
    make_client,
    pay,
    script,
    service,
    verify,
)
from tests.support.scale import examples
from tests.support.server import Response

CALLS: dict[Effect, Callable[[AsyncClient], Awaitable[object]]] = {
    Effect.READ: look_up,
    Effect.SESSION: verify,
    Effect.MONEY: pay,
}

# -- the table ---------------------------------------------------------------------------------------------------------

STATUSES = [200, 201, 302, *range(400, 416), 418, *range(421, 430), 431, 451, 499, *range(500, 505), 520]
PROXY = {407, 502, 503, 504}
REFUSING = {400, 403, 404, 405, 410, 413, 414, 415, 422}


def payment(code: str | None) -> dict[str, Any]:
    return {"status": "error", "message": "no", "retry_after": 7} | ({} if code is None else {"error_code": code})


def auth(code: str | None) -> dict[str, Any]:
    return {"success": False, "message": "no", "retry_after": 7} | ({} if code is None else {"error": code})


BODIES: dict[str, Any] = {
    "rate limit": payment("RATE_LIMIT_EXCEEDED"),
    "rate limit in the other shape": auth("RATE_LIMIT_EXCEEDED"),
    "invalid token": auth("invalid_token"),
    "expired token": auth("token_expired"),
    "permissions": auth("insufficient_permissions"),
    "credentials": auth("invalid_credentials"),
    "not found": payment("TRANSACTION_NOT_FOUND"),
    "malformed id": payment("INVALID_TRANSACTION_ID"),
    "another code": payment("TRANSACTION_TIMEOUT"),
    "another code in the other shape": auth("account_locked"),
    "a misspelt code": payment("rate_limit_exceeded"),
    "no code": payment(None),
    "no code in the other shape": auth(None),
    "html": b"<html><body>Forbidden</body></html>",
    "empty": b"",
    "another shape": {"detail": "Not Found", "retry_after": 7},
    "truncated": b'{"status": "error", "error_code": "RATE_LIMIT_EXC',
}
# Verdicts: the call is made again (at once, after a pause, after `retry_after`, with a new token), or raises.
AGAIN, HELD, REPLAYED = "again", "held and again", "replayed with a new token"
RAISED, CERTAINLY, SOFTLY, SOFTLY_HELD, SOFTLY_RENEWED, UNKNOWN, UNKNOWN_HELD = (
    "raised",
    "refused for certain",
    "refused as far as is known",
    "the same, and the limiter is held",
    "the same, and later calls renew the token",
    "unknown",
    "unknown, and the limiter is held",
)


# The rows of the design's table, for a read, a session call and a create. First those of the contract's codes.
BY_CODE: dict[str, tuple[str, str, str]] = {
    "rate limit": (HELD, HELD, HELD),
    "rate limit in the other shape": (HELD, HELD, HELD),
    "invalid token": (REPLAYED, REPLAYED, REPLAYED),
    "expired token": (REPLAYED, REPLAYED, REPLAYED),
    "permissions": (RAISED, RAISED, CERTAINLY),
    "credentials": (RAISED, RAISED, CERTAINLY),
    "not found": (RAISED, RAISED, UNKNOWN),
    "malformed id": (RAISED, RAISED, UNKNOWN),
}
UNUSABLE = {"html", "empty", "another shape", "truncated"}


def verdicts(status: int, name: str) -> tuple[str, str, str]:
    """Return the verdicts on one answer."""
    if name in BY_CODE:
        read, session, create = BY_CODE[name]
        return read, session, create if status not in PROXY else UNKNOWN_HELD if create is HELD else UNKNOWN
    if status == 401:
        return REPLAYED, RAISED, SOFTLY_RENEWED
    refused = SOFTLY_HELD if status == 429 else SOFTLY if status in REFUSING else UNKNOWN
    if name == "another shape":  # of a create, any JSON object that does not say success
        return AGAIN, RAISED, refused
    if status >= 500 or name in UNUSABLE:
        return AGAIN, RAISED, UNKNOWN
    return HELD if status == 429 else RAISED, RAISED, refused


def response(status: int, name: str) -> Response:
    body = BODIES[name]
    return Response(status, body) if isinstance(body, bytes) else Response.json(body, status)


def is_success(status: int, name: str, effect: Effect) -> bool:
    """Return whether an answer is none of an error: the contract does not show the bodies of session calls."""
    return status in {200, 201} and effect is Effect.SESSION and name in {"empty", "another shape"}


async def check(status: int, name: str, effect: Effect) -> None:
    """Let a call get one such answer, then good ones, and hold it against the table."""
    verdict = dict(zip(Effect, verdicts(status, name), strict=True))[effect]
    source = CountingSource()
    transport = FakeTransport(script(response(status, name)))
    client = make_client(transport, auth=source)
    error: MobileMoneyError | None = None
    try:
        await CALLS[effect](client)
    except MobileMoneyError as exc:
        error = exc
    assert (error is None) == (verdict in {AGAIN, HELD, REPLAYED})
    assert len(transport.sent) == (2 if error is None else 1)
    if error is not None:
        await look_up(client)  # another call, which may have to wait, or to renew the token
    first, second = transport.sent
    is_held = verdict in {HELD, SOFTLY_HELD, UNKNOWN_HELD}
    assert second.at - first.at == pytest.approx(7) if is_held else second.at - first.at <= 1
    is_renewed = verdict in {REPLAYED, SOFTLY_RENEWED}
    assert source.refused == ([("token-1", False)] if is_renewed else [])
    assert second.token == ("token-2" if is_renewed else "token-1")
    if effect is not Effect.MONEY or error is None:
        assert not isinstance(error, OutcomeUnknown)
        return
    assert error.idempotency_key
    if verdict in {UNKNOWN, UNKNOWN_HELD}:
        assert isinstance(error, OutcomeUnknown)
        assert isinstance(error.__cause__, APIError | UnexpectedResponse)
        assert error.outcome == error.__cause__.outcome == "unknown"
        assert not getattr(error.__cause__, "is_certain", False)
        return
    assert isinstance(error, APIError)
    assert (error.outcome, error.is_certain, error.status_code) == ("refused", verdict == CERTAINLY, status)
    if verdict != CERTAINLY:
        assert type(error) is (AuthenticationError if status == 401 else APIError)


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("name", BODIES)
async def test_every_answer_has_the_effect_that_the_design_gives_it(name: str, effect: Effect) -> None:
    """A create is sent again only after a documented rejection, and refused for certain only by a documented code."""
    for status in STATUSES:
        if not is_success(status, name, effect):
            await check(status, name, effect)


# -- laws --------------------------------------------------------------------------------------------------------------

REPEATABLE = {"RATE_LIMIT_EXCEEDED", "invalid_token", "token_expired"}
PROVING = REPEATABLE | {"insufficient_permissions", "invalid_credentials"}
CODES = [
    *PROVING,
    "TRANSACTION_NOT_FOUND",
    "INVALID_TRANSACTION_ID",
    "TRANSACTION_TIMEOUT",
    "Invalid_Token",
    "",
    None,
    5,
]
fields = {
    "status": st.sampled_from(["error", "success", "ERROR", 500, None]),
    "success": st.sampled_from([False, True, None, "false"]),
    "error_code": st.sampled_from(CODES),
    "error": st.sampled_from(CODES),
    "message": st.sampled_from(["no", None, 5, "invalid_token", "RATE_LIMIT_EXCEEDED"]),
    "retry_after": st.sampled_from([0, 1, "2", -1, None]),
    "transaction_id": st.sampled_from(["tx-9", "", None]),
    "transaction": st.sampled_from([{"id": "tx-9"}, {}, None]),
}
objects = st.fixed_dictionaries({}, optional=fields)
accepted = json.loads(acknowledgement().body)
bodies = st.one_of(
    objects,
    objects.map(lambda given: accepted | given),
    objects.map(lambda given: {"data": given}),
    objects.map(lambda given: [given]),
).map(lambda value: json.dumps(value).encode())
damaged = st.tuples(bodies, st.integers(0, 60), st.binary(max_size=3)).map(
    lambda given: given[0][: given[1]] + given[2] + given[0][given[1] :]
)
answers = st.builds(
    Response,
    st.sampled_from(STATUSES) | st.integers(200, 599),
    bodies | damaged | st.binary(max_size=40),
    st.sampled_from([{}, {"retry-after": "3"}, {"retry-after": "soon"}, {"content-type": "text/html"}]),
)


def read(step: Response) -> dict[str, Any]:
    """Return the fields of a body, or none where it is no JSON object."""
    try:
        body = json.loads(step.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def proves(step: Response, codes: set[str]) -> bool:
    """Return whether an answer has one of these codes in one of the contract's fields, and names no payment."""
    body = read(step)
    named = body.get("transaction_id") or body.get("transaction")
    return not named and (body.get("error_code") in list(codes) or body.get("error") in list(codes))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(steps=st.lists(answers, min_size=1, max_size=6))
@settings(max_examples=examples(300))
def test_no_answer_sends_money_twice_or_refuses_it_without_evidence(backend: Any, steps: list[Response]) -> None:
    """Only a documented rejection repeats a create, and only a documented code proves a refusal, whatever comes."""

    async def main() -> None:
        transport = FakeTransport(script(*steps))
        error: MobileMoneyError | None = None
        try:
            await pay(make_client(transport, auth=CountingSource()))
        except MobileMoneyError as exc:
            error = exc
        creates = sum(sent.method == "POST" for sent in transport.sent)  # others look a transaction up
        seen = steps[:creates]
        repeated = seen if creates > len(steps) else seen[:-1]
        assert all(proves(step, REPEATABLE) for step in repeated)
        if error is None or isinstance(error, OutcomeUnknown):
            assert error is None or error.outcome == "unknown"
            return
        assert isinstance(error, APIError)
        assert error.outcome == "refused"
        assert error.is_certain == (error.code in PROVING)
        if error.is_certain:
            assert proves(seen[-1], PROVING)
        else:
            assert seen[-1].status in REFUSING | {401, 429}

    run_virtual(main, backend=backend)


# -- the rows of their own ---------------------------------------------------------------------------------------------


async def test_the_header_holds_the_limiter_too() -> None:
    """A proxy that limits the rate has only the Retry-After header to say for how long."""
    body = b'{"status": "error", "message": "slow down"}'
    transport = FakeTransport(script(Response(429, body, {"retry-after": "20"})))
    client = make_client(transport)
    with pytest.raises(APIError) as caught:
        await pay(client)
    assert type(caught.value) is APIError
    assert (caught.value.outcome, caught.value.is_certain, caught.value.retry_after) == ("refused", False, 20.0)
    await look_up(client)
    assert transport.sent[1].at - transport.sent[0].at == pytest.approx(20)


@pytest.mark.parametrize("body", [b"<html>401</html>", b"", b'{"success": false, "error": "account_locked"}'])
async def test_a_read_whose_new_token_gets_a_401_too_raises(body: bytes) -> None:
    """A token is renewed once for a read, by the status alone; that both were refused is final."""
    source = CountingSource()
    transport = FakeTransport(lambda sent: Response(401, body))
    with pytest.raises(AuthenticationError) as caught:
        await look_up(make_client(transport, auth=source))
    assert type(caught.value) is (AuthenticationError if b"locked" in body else InvalidToken)
    assert not caught.value.is_certain
    assert source.refused == [("token-1", False), ("token-2", True)]


async def test_a_replayed_create_may_still_be_refused_softly() -> None:
    """A create is replayed for the documented code; a proxy's page for the new token ends it."""
    source = CountingSource()
    transport = FakeTransport(script(response(401, "expired token"), response(401, "html")))
    with pytest.raises(AuthenticationError) as caught:
        await pay(make_client(transport, auth=source))
    assert (caught.value.outcome, caught.value.is_certain) == ("refused", False)
    assert source.refused == [("token-1", False), ("token-2", True)]


@pytest.mark.parametrize("code", [None, "RATE_LIMIT_EXCEEDED"])
async def test_a_create_waits_for_a_login_that_is_rejected_for_the_rate(code: str | None) -> None:
    """Whatever is in the body of the login's 429: the create itself was not sent, so it may wait and go on."""
    rejected = Response.json(payment(code), 429)
    transport = FakeTransport(script(rejected, then=lambda sent: service(sent.path)))
    await pay(make_client(transport, auth=LoginAuth(EMAIL, PASSWORD)))
    assert transport.paths[:2] == [LOGIN, LOGIN]
    assert transport.sent[1].at - transport.sent[0].at >= 7


async def test_a_read_waits_out_a_429_without_the_code() -> None:
    """Attempt by attempt, and raises what the service said in the end."""
    transport = FakeTransport(lambda sent: response(429, "no code"))
    with pytest.raises(RateLimitExceeded) as caught:
        await look_up(make_client(transport))
    assert len(transport.sent) == 4
    assert not caught.value.is_certain
    times = [sent.at for sent in transport.sent]
    assert anyio.current_time() == times[-1]
    assert [round(later - times[0]) for later in times] == [0, 7, 14, 21]


@pytest.mark.parametrize("body", [b"<html>429</html>", b"", b"[]"])
async def test_a_read_waits_as_long_as_a_proxys_page_asks(body: bytes) -> None:
    """A gateway that limits the rate answers with a page of its own, and asks in the header."""
    transport = FakeTransport(script(Response(429, body, {"retry-after": "20"})))
    await look_up(make_client(transport))
    assert transport.sent[1].at - transport.sent[0].at == pytest.approx(20)


async def test_a_refusal_in_a_shape_of_its_own_shows_what_was_said() -> None:
    """Without a message of the contract, the beginning of the body says what is wrong, without the phone number."""
    said = {"detail": [{"loc": ["body", "amount"], "msg": f"too small for {PHONE_NUMBER}"}]}
    client = make_client(FakeTransport(script(Response.json(said, 422))))
    with pytest.raises(APIError, match="too small") as caught:
        await pay(client)
    assert (caught.value.outcome, caught.value.is_certain, caught.value.code) == ("refused", False, None)
    assert PHONE_NUMBER not in str(caught.value) + repr(caught.value)
