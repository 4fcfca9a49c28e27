"""Sources of the bearer token: one login for all calls, ahead of time, and never hammered."""

import asyncio
import logging
from concurrent.futures import CancelledError
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    AuthenticationError,
    ConnectionFailed,
    InvalidCredentials,
    InvalidRequest,
    InvalidToken,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    PermissionDenied,
    RateLimiter,
    RequestTimeout,
    RetryPolicy,
    Secret,
    ServerError,
    TokenAuth,
    TransportError,
    UnexpectedResponse,
)
from tests.contract import samples
from tests.support.fakes import (
    C2B,
    EMAIL,
    LOGIN,
    PASSWORD,
    CountingSource,
    FakeTransport,
    Hang,
    Sent,
    Step,
    acknowledgement,
    logged_in,
    look_up,
    make_client,
    pay,
    refusal,
    script,
    service,
    settle,
)
from tests.support.server import Response

WIDE = {"per_minute": 600_000, "burst": 10_000}


class LoginService(FakeTransport):
    """A service with logins that give ``login-1``, ``login-2`` …, and which accepts every token that is not revoked.

    Attributes:
        faults: Of the next logins, in place of an answer.
        delay: How long a login takes, seconds.
        expires_in: The lifetime of a token in the answer of its login.
        revoked: Tokens that are refused.
        accepts_nothing: Whether every token is.
    """

    def __init__(self, *faults: Step, delay: float = 0.0, expires_in: int = 3600) -> None:
        super().__init__(self._answer)
        self.faults = list(faults)
        self.delay = delay
        self.expires_in = expires_in
        self.revoked: set[str] = set()
        self.accepts_nothing = False

    @property
    def logins(self) -> int:
        return self.paths.count(LOGIN)

    @property
    def calls(self) -> list[Sent]:
        return [sent for sent in self.sent if sent.path != LOGIN]

    async def _answer(self, sent: Sent) -> Step:
        if sent.path == LOGIN:
            number = self.logins
            await anyio.sleep(self.delay)
            return self.faults.pop(0) if self.faults else logged_in(f"login-{number}", self.expires_in)
        if self.accepts_nothing or sent.token is None or sent.token in self.revoked:
            return refusal("invalid_token", 401)
        return service(sent.path)


def log_in(transport: LoginService, **options: Any) -> AsyncClient:
    options.setdefault("rate_limiter", RateLimiter(**WIDE))
    return make_client(transport, auth=LoginAuth(EMAIL, PASSWORD), **options)


@pytest.fixture
def transport() -> LoginService:
    return LoginService()


@pytest.fixture
def client(transport: LoginService) -> AsyncClient:
    return log_in(transport)


async def gather(calls: int, client: AsyncClient) -> list[MobileMoneyError | None]:
    """Make calls side by side and return their errors, None for a success."""
    results: list[MobileMoneyError | None] = []

    async def one() -> None:
        try:
            await look_up(client)
        except MobileMoneyError as exc:
            results.append(exc)
        else:
            results.append(None)

    async with anyio.create_task_group() as tasks:
        for _ in range(calls):
            tasks.start_soon(one)
    return results


# -- one login for all calls -------------------------------------------------------------------------------------------


async def test_fifty_calls_at_once_share_one_login() -> None:
    transport = LoginService(delay=2)
    assert await gather(50, log_in(transport)) == [None] * 50
    assert transport.logins == 1
    assert {sent.token for sent in transport.calls} == {"login-1"}


async def test_a_login_says_who_we_are_and_carries_no_token(transport: LoginService) -> None:
    for password in (PASSWORD, Secret(PASSWORD)):
        await look_up(make_client(transport, auth=LoginAuth(EMAIL, password)))
    for login in transport.sent[::2]:
        assert (login.method, login.path) == ("POST", LOGIN)
        assert login.body == b'{"email":"merchant@example.com","password":"correct horse battery"}'
        assert "authorization" not in login.headers


@pytest.mark.parametrize(
    ("fault", "logins"), [(Response(503), 4), (httpx.ReadError("x"), 4), (refusal("invalid_credentials", 401), 1)]
)
async def test_the_failure_of_a_login_is_shared_by_all_who_waited_for_it(fault: Step, logins: int) -> None:
    """Fifty calls that wait for one login learn its failure; they do not log in one after the other.

    Where the login had no usable answer they try again by their retry policy, together: nothing of theirs was sent.
    """
    transport = LoginService(*[fault] * 50, delay=2)
    results = await gather(50, log_in(transport))
    assert transport.logins == logins
    assert transport.calls == []
    assert len({type(error) for error in results}) == 1
    assert {error.outcome for error in results if error} == {"not_sent"}
    assert len({id(error) for error in results}) == 50


@pytest.mark.parametrize("fault", [Response(503), httpx.ReadError("x"), httpx.ConnectError("x"), Response.html(200)])
async def test_a_login_that_fails_in_passing_costs_a_pause(fault: Step) -> None:
    """Calls survive a login service that is away for a moment, creates too."""
    transport = LoginService(fault, fault, fault, delay=2)
    client = log_in(transport)
    assert await gather(50, client) == [None] * 50
    assert transport.logins == 4
    await pay(client)


async def test_a_cancelled_leader_does_not_fail_its_followers() -> None:
    """The call that happens to log in may be cancelled; the others that wait for the token get one."""
    transport = LoginService(delay=2)
    client = log_in(transport)
    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(1):
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(look_up, client)
                await settle()
                for _ in range(5):
                    tasks.start_soon(look_up, client)
                await anyio.sleep_forever()
    assert transport.logins == 2
    assert len(transport.calls) == 5


async def test_logins_that_deadlines_cut_short_come_further_and_further_apart() -> None:
    """Calls that are too impatient for a login do not hammer the service; one that waits gets its token for all."""
    transport = LoginService(delay=1)
    client = log_in(transport, deadline=0.5)
    start = anyio.current_time()
    while anyio.current_time() < start + 10:
        assert {type(error) for error in await gather(5, client)} == {RequestTimeout}
    assert transport.logins == 5  # at 0, 0.5, 1.5, 3.5 and 7.5 s
    await look_up(client.with_options(deadline=None))
    assert await gather(5, client) == [None] * 5
    assert transport.logins == 6
    await anyio.sleep(3600)
    start = anyio.current_time()
    while anyio.current_time() < start + 2:
        await gather(5, client)
    assert transport.logins == 9  # after one that was answered, again at 0, 0.5 and 1.5 s


async def test_followers_may_be_cancelled_too() -> None:
    transport = LoginService(delay=2)
    client = log_in(transport)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_up, client)
        await settle()
        with anyio.move_on_after(1) as scope:
            await look_up(client)
        assert scope.cancelled_caught
    assert (transport.logins, len(transport.calls)) == (1, 1)


# -- renewal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lifetime", "serves"), [(3600, 3600 - 61), (100, 89)])
async def test_a_token_is_renewed_ahead_of_its_end(lifetime: int, serves: float) -> None:
    """A token of an hour is used for 59 minutes, then a new one is fetched before anything is refused."""
    transport = LoginService(expires_in=lifetime)
    client = log_in(transport)
    await look_up(client)
    await anyio.sleep(serves)
    await look_up(client)
    assert transport.logins == 1
    await anyio.sleep(2)
    await look_up(client)
    assert transport.logins == 2
    assert transport.calls[-1].token == "login-2"


async def test_during_a_renewal_ahead_of_time_the_old_token_goes_on(
    transport: LoginService, client: AsyncClient
) -> None:
    """Only the one call that renews waits for the renewal."""
    await look_up(client)
    await anyio.sleep(3600 - 30)
    transport.delay = 5
    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_up, client)
        await settle()
        await gather(20, client)
        assert anyio.current_time() == start
    assert [sent.token for sent in transport.calls[1:]] == ["login-1"] * 20 + ["login-2"]


@pytest.mark.parametrize("fault", [Response(503), httpx.ReadError("x"), refusal("invalid_credentials", 401)])
async def test_a_renewal_that_fails_falls_back_on_the_token_that_still_holds(
    transport: LoginService, client: AsyncClient, fault: Step, caplog: pytest.LogCaptureFixture
) -> None:
    """A login that fails ahead of time is a warning, not a failed payment; it is tried again after a while."""
    await look_up(client)
    await anyio.sleep(3600 - 30)
    transport.faults.append(fault)
    await gather(10, client)
    assert transport.logins == 2
    assert [sent.token for sent in transport.calls] == ["login-1"] * 11
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    await anyio.sleep(10)
    await look_up(client)
    assert transport.logins == 3
    assert transport.calls[-1].token == "login-3"


@pytest.mark.parametrize("expires_in", [0, -1, 1, 5, 10**400])
async def test_a_strange_lifetime_neither_breaks_a_call_nor_hammers_the_login(expires_in: int) -> None:
    """A service that answers 0 or 1 second is not asked for a token with every call: logins are limited."""
    transport = LoginService(expires_in=expires_in, delay=3)
    client = log_in(transport)
    assert await gather(20, client) == [None] * 20
    await look_up(client)
    assert transport.logins == 1


# -- refused tokens ----------------------------------------------------------------------------------------------------


async def test_a_revoked_token_costs_one_login_for_all_calls() -> None:
    """Fifty calls that find their token revoked renew it once and all succeed."""
    transport = LoginService(delay=1)
    client = log_in(transport)
    await look_up(client)
    transport.revoked.add("login-1")
    assert await gather(50, client) == [None] * 50
    assert transport.logins == 2


async def test_a_late_refusal_of_an_old_token_does_not_throw_the_new_one_away(
    transport: LoginService, client: AsyncClient
) -> None:
    """A slow 401 for yesterday's token makes its call go again with today's, without a login."""
    await look_up(client)
    answer = anyio.Event()
    normal = transport._answer

    async def slow_once(sent: Sent) -> Step:
        transport.handler = normal
        await answer.wait()
        return refusal("token_expired", 401)

    async with anyio.create_task_group() as tasks:
        transport.handler = slow_once
        tasks.start_soon(look_up, client)
        await settle()
        transport.revoked.add("login-1")
        await look_up(client)
        assert transport.logins == 2
        answer.set()
    assert transport.logins == 2
    assert [sent.token for sent in transport.calls][-1] == "login-2"


@pytest.mark.parametrize("lost", [1, 10])
async def test_a_create_whose_renewal_fails_once_goes_through(
    transport: LoginService, client: AsyncClient, lost: int
) -> None:
    """A payment that meets an expired token and then a lost login is made all the same, and once, or was not sent."""
    await look_up(client)
    transport.revoked.add("login-1")
    transport.faults.extend([Response(503)] * lost)
    if lost == 1:
        await pay(client)
        assert (transport.logins, len(transport.calls)) == (3, 3)
    else:
        with pytest.raises(ServerError) as caught:
            await pay(client)
        assert (caught.value.outcome, len(transport.calls)) == ("not_sent", 2)


# -- refused logins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (refusal("insufficient_permissions", 403), PermissionDenied),
        (refusal("account_locked", 401), AuthenticationError),
        (refusal("invalid_token", 401), InvalidToken),
    ],
)
async def test_any_refusal_of_a_login_begins_a_pause(fault: Response, kind: type[MobileMoneyError]) -> None:
    transport = LoginService(*[fault] * 10)
    client = log_in(transport)
    for _ in range(5):
        with pytest.raises(kind):
            await look_up(client)
    assert transport.logins == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (httpx.ConnectError("x"), ConnectionFailed),
        (httpx.ReadError("x"), ConnectionFailed),
        (Hang(), RequestTimeout),
        (Response(500), ServerError),
        (Response(200), UnexpectedResponse),
        (Response(302), UnexpectedResponse),
        (Response.html(200), UnexpectedResponse),
        (Response.json({"success": True, "expires_in": 3600}), UnexpectedResponse),
        (refusal("invalid_credentials", 200), InvalidCredentials),
        (refusal("invalid_credentials", 403), InvalidCredentials),
    ],
)
async def test_a_create_that_could_not_log_in_was_not_sent(fault: Step, kind: type[Exception]) -> None:
    """However the login fails, the create behind it never left: no OutcomeUnknown, no money moved."""
    transport = LoginService(fault)
    with pytest.raises(kind) as caught:
        await pay(log_in(transport, retry=RetryPolicy(max_attempts=1)))
    assert isinstance(caught.value, MobileMoneyError)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert caught.value.outcome == "not_sent"
    assert caught.value.idempotency_key is not None
    assert transport.logins == 1
    assert transport.calls == []


@pytest.mark.parametrize(
    "rejection", [refusal("RATE_LIMIT_EXCEEDED", 429, retry_after=5), Response(429, b"<html>", {"retry-after": "5"})]
)
async def test_a_rate_limited_login_waits_and_goes_again(rejection: Step) -> None:
    """It is no refusal of the credentials: all calls wait for `retry_after`, also that of a gateway's page."""
    transport = LoginService(rejection)
    client = log_in(transport)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(look_up, client)
            await anyio.sleep(1)
    assert [sent.at - transport.sent[0].at for sent in transport.sent if sent.path == LOGIN] == [0, pytest.approx(5)]


@pytest.mark.parametrize(
    ("shown", "is_ours"),
    [
        (f" {EMAIL.upper()}", True),
        ("m***t@example.com", True),
        ("***@example.com", True),
        ("mer…@e•••le.com", True),
        ("***", True),
        ("owner@example.com", False),
        ("x***t@example.com", False),
        ("m***t@example.org", False),
        ("m*z*@example.com", False),
        (f"{EMAIL}*{EMAIL}", False),
    ],
)
async def test_a_login_of_another_user_is_refused_and_not_repeated_in_a_circle(shown: str, is_ours: bool) -> None:
    """The address may be masked. After two that are another's, logins are as rare as refused ones."""
    transport = LoginService(*9 * [Response.json(samples.login(user={"id": 1, "email": shown}))])
    client = log_in(transport)
    for _ in range(10):
        if is_ours:
            await look_up(client)
            continue
        with pytest.raises(UnexpectedResponse, match="another e-mail"):
            await look_up(client)
        await anyio.sleep(20)
    assert transport.logins == (1 if is_ours else 6)


@pytest.mark.parametrize("token", ["two\nlines", "nul\x00", "spa ce", "", "naïve"])
async def test_a_token_that_would_break_the_header_is_refused(token: str) -> None:
    """A login that answers with a token unfit for a header sends nothing on, and does not show the token."""
    transport = LoginService(*4 * [logged_in(token)])
    with pytest.raises(UnexpectedResponse) as caught:
        await pay(log_in(transport))
    assert transport.calls == []
    assert caught.value.outcome == "not_sent"
    assert token == "" or token not in str(caught.value)


# -- a long queue ------------------------------------------------------------------------------------------------------


async def test_a_login_does_not_queue_behind_the_payments_that_wait_for_it() -> None:
    """If the token runs out in the middle of a long run, the run goes on within seconds and within the limit."""
    transport = LoginService(delay=2)
    client = log_in(transport, rate_limiter=RateLimiter())
    await look_up(client)
    await anyio.sleep(3600 - 100)
    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(400):
            tasks.start_soon(pay, client)
    times = [sent.at - start for sent in transport.sent[2:]]
    assert len(times) == 401
    assert max(times) <= 402 / 0.98
    assert max(later - sooner for sooner, later in zip(times, times[10:], strict=False)) <= 21.5
    assert min(later - sooner for sooner, later in zip(times, times[60:], strict=False)) >= 60


async def test_places_that_waited_for_a_login_are_not_used_in_a_heap() -> None:
    """A token that is revoked in the middle of a run, and a slow login: the calls that waited go at the steady rate."""
    transport = LoginService(delay=25)
    client = log_in(transport, rate_limiter=RateLimiter())
    await look_up(client)
    await anyio.sleep(120)
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(pay, client)
        await anyio.sleep(5.2)
        transport.revoked.add("login-1")
    times = [sent.at for sent in transport.sent]
    assert min(later - sooner for sooner, later in zip(times, times[11:], strict=False)) >= 1 - 0.5
    assert transport.logins == 2


# -- other sources -----------------------------------------------------------------------------------------------------


class Vault(CountingSource):
    """A source that fails for some time: a result is an exception to raise, or no token."""

    def __init__(self, result: Any, *, times: int = 10_000) -> None:
        super().__init__()
        self.result, self.times = result, times

    async def token(self, login: object) -> str:
        self.times -= 1
        if self.times < 0:
            return await super().token(login)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result  # type: ignore[no-any-return]


# asyncio's own: of a refresh that others wait for too, and that was cancelled.
CANCELLED = asyncio.CancelledError("sealed-5f3")
NO_TOKENS = [LookupError("sealed-5f3"), OSError("sealed-5f3"), CANCELLED, "two-5f3\nlines", "", None, 7, b"bytes"]


@pytest.mark.parametrize("result", NO_TOKENS)
async def test_an_error_of_a_source_of_ones_own_is_a_failure_of_the_wire(result: Any) -> None:
    """A call fails after its attempts, with the source's error as the cause; nothing was sent, no token is shown."""
    transport = FakeTransport()
    with pytest.raises(TransportError, match=r"^auth (failed: \w+Error|gave no secret: .*) \(4 attempts\)$") as caught:
        await pay(make_client(transport, auth=Vault(result)))
    assert caught.value.outcome == "not_sent"
    assert "5f3" not in str(caught.value)
    kind = type(result) if isinstance(result, Exception) else InvalidRequest
    assert type(caught.value.__cause__) is (CancelledError if result is CANCELLED else kind)
    assert transport.sent == []


@pytest.mark.parametrize("result", NO_TOKENS)
async def test_a_source_that_fails_for_some_time_ends_no_poller(result: Any) -> None:
    """A poller goes on once the source gives a token again."""
    source = Vault(result, times=3)
    async with make_client(FakeTransport(), auth=source) as client, client.poller() as poller:
        poller.track("txn_1")
        await anyio.sleep(60)
        assert source.asked > 0


@pytest.mark.parametrize("code", ["invalid_token", "no_entry"])
@pytest.mark.parametrize("gives_another", [True, False])
async def test_a_source_that_fails_to_note_a_refused_token_changes_no_call(
    code: str, caplog: pytest.LogCaptureFixture, *, gives_another: bool
) -> None:
    """A call with another token is sent again, and otherwise ends by the refusal; the log shows no text of yours."""

    class Forgetful(CountingSource):
        async def token(self, login: object) -> str:
            token = await super().token(login)
            return token if gives_another else "token-1"

        def rejected(self, token: Secret, *, replacement: bool) -> None:
            super().rejected(token, replacement=replacement)
            raise LookupError("sealed-5f3")

    transport = FakeTransport(script(refusal(code, 401), acknowledgement()))
    client = make_client(transport, auth=Forgetful())
    if code == "invalid_token" and gives_another:
        await pay(client)
    else:
        with pytest.raises(AuthenticationError) as caught:
            await pay(client)
        assert caught.value.outcome == "refused"
    assert caplog.messages == ["a refused token could not be reported: auth failed: LookupError"]


async def test_a_source_that_repeats_a_refused_token_ends_the_call() -> None:
    """A source without another token is not asked in a circle."""

    class Stubborn(CountingSource):
        def rejected(self, token: Secret, *, replacement: bool) -> None:
            self.refused.append((token.reveal(), replacement))

    source = Stubborn()
    transport = FakeTransport(lambda sent: refusal("invalid_token", 401))
    with pytest.raises(InvalidToken):
        await look_up(make_client(transport, auth=source))
    assert len(transport.sent) == 1
    assert source.refused == [("token-1", False)]


@pytest.mark.parametrize("secret", ["an-issued-token", Secret("an-issued-token")])
async def test_an_issued_token_is_sent_as_it_is(secret: str | Secret) -> None:
    for auth in (secret, TokenAuth(secret)):
        transport = FakeTransport()
        await look_up(make_client(transport, auth=auth))
        assert transport.sent[0].headers["authorization"] == "Bearer an-issued-token"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        *((each, "auth must be ") for each in ("", "two\nlines", "a b", "\x7f", "ü", None, 7, b"x")),
        *((each, "without the quotation marks") for each in ('"issued"', "'issued'", '"issued', "'")),
    ],
)
async def test_an_issued_token_that_is_none_is_refused(token: Any, said: str) -> None:
    """A token pasted with a line break, or from a file with its quotation marks, is refused at once, and not shown."""
    with pytest.raises(InvalidRequest, match=said) as caught:
        TokenAuth(token)
    hidden = str(token or "").strip("\"'")
    assert not hidden or hidden not in str(caught.value)


@pytest.mark.parametrize(
    ("email", "password"),
    [("", "x"), (" ", "x"), ("a@b", ""), ("a@b", Secret(" ")), ("a@b", Secret("")), (None, "x"), ("a@b", 7)],
)
async def test_credentials_that_are_none_are_refused(email: Any, password: Any) -> None:
    with pytest.raises(InvalidRequest):
        LoginAuth(email, password)


# -- no token where none belongs ---------------------------------------------------------------------------------------


async def test_login_and_password_calls_carry_no_token() -> None:
    """The calls that the contract lists as without Authorization go without, and ask for no token."""
    source = CountingSource()
    transport = FakeTransport()
    client = make_client(transport, auth=source)
    await client.users.login(EMAIL, PASSWORD)
    await client.users.forgot_password(EMAIL)
    await client.users.reset_password(EMAIL, "reset-token", "new password")
    assert [sent.token for sent in transport.sent] == [None, None, None]
    assert source.asked == 0


# -- refused creates ---------------------------------------------------------------------------------------------------


class Gate(LoginService):
    """A service behind a proxy that answers creates with a page of its own under 401, and passes all else on."""

    async def _answer(self, sent: Sent) -> Step:
        return Response.html(401) if sent.path == C2B else await super()._answer(sent)


@pytest.mark.parametrize("pause", [1.0, 120.0])
@pytest.mark.parametrize(
    "copy",
    [
        lambda client: client.with_options(timeout=5.0),
        lambda client: client.with_options(deadline=60.0, extra_headers={"X-Trace": "1"}),
        lambda client: client.with_options(retry=RetryPolicy(max_attempts=1)).with_options(timeout=7.0),
    ],
)
async def test_a_proxy_that_answers_creates_costs_few_logins(copy: Any, pause: float) -> None:
    """A token is not proven bad by a proxy's page: it is renewed once in a quarter of an hour, by any copy of a client.

    And reads, which the proxy passes, go on.
    """
    transport = Gate()
    client = log_in(transport)
    start = anyio.current_time()
    for _ in range(15):
        with pytest.raises(AuthenticationError):
            await pay(copy(client))
        await look_up(copy(client))
        await anyio.sleep(pause)
    assert transport.logins <= 2 + (anyio.current_time() - start) / 900 + (anyio.current_time() - start) / 3540


async def test_clients_with_one_login_object_share_what_was_learned_of_its_token() -> None:
    """A client for each create is no way around the limit either."""
    transport, auth = Gate(), LoginAuth(EMAIL, PASSWORD)
    for _ in range(5):
        async with make_client(transport, auth=auth, rate_limiter=RateLimiter(**WIDE)) as client:
            with pytest.raises(AuthenticationError):
                await pay(client)
    assert transport.logins == 2


@pytest.mark.parametrize(
    ("call", "every", "seconds", "most"),
    [
        pytest.param(look_up, 5, 3600, 40, marks=pytest.mark.slow),
        (look_up, 120, 7200, 32),
        (pay, 120, 7200, 32),
    ],
)
async def test_tokens_that_are_never_accepted_are_few_however_rare_the_calls_are(
    transport: LoginService, call: Any, every: float, seconds: float, most: int
) -> None:
    """A call costs two logins at most, and ends in InvalidToken; soon there are no more logins for a while.

    A call every two minutes by a fresh copy of a client is not a login, or two, every two minutes.
    """
    transport.accepts_nothing = True
    client = log_in(transport)
    start = anyio.current_time()
    while anyio.current_time() < start + seconds:
        with pytest.raises(InvalidToken):
            await call(client.with_options(timeout=5.0))
        assert transport.logins <= (most if len(transport.calls) > 2 else 2)
        await anyio.sleep(every)


async def test_a_source_of_ones_own_learns_of_replacements_from_every_copy_of_a_client() -> None:
    """`replacement` says the same, whether one client pays or a copy for each create."""
    source = CountingSource()
    client = make_client(FakeTransport(lambda sent: Response(401)), auth=source)
    for timeout in (5.0, 6.0, 7.0):
        with pytest.raises(AuthenticationError):
            await pay(client.with_options(timeout=timeout))
    assert source.refused == [("token-1", False), ("token-2", True), ("token-3", True)]
