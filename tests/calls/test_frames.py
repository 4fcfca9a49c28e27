"""Frames of an error: a crash reporter sends their locals, and finds no token, password, code, phone number or body.

Whichever way a call is left, and whatever library sends it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    InvalidRequest,
    LoginAuth,
    MobileMoneyError,
    RetryPolicy,
    Secret,
    SQLStore,
    TokenAuth,
)
from mobilemoney_async.callbacks import CallbackReceiver
from tests.calls.ways import connect
from tests.support.fakes import (
    EMAIL,
    LOGIN,
    PASSWORD,
    PHONE_NUMBER,
    FakeTransport,
    acknowledgement,
    logged_in,
    make_client,
    refusal,
    script,
)
from tests.support.frames import leaks
from tests.support.server import NeverAnswer, Reply, Request, Trickle, serve

ISSUED, FRESH, CODE, NEW_PASSWORD = "issued-8f3a.token", "fresh-77bc.token", "482913", "tr0ub4dor"
NOTE, KEY = "ring0788", "hunter2-key"
SECRETS = [ISSUED, FRESH, CODE, NEW_PASSWORD, NOTE, KEY, PASSWORD, PHONE_NUMBER, PHONE_NUMBER[1:], PHONE_NUMBER[4:]]
NOBODY: Any = None
ONCE = RetryPolicy(max_attempts=1)

Call = Callable[[AsyncClient], Awaitable[object]]


async def pay(client: AsyncClient) -> None:
    await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, extra={"note": NOTE, "msisdn": 780000789})


async def verify(client: AsyncClient) -> None:
    await client.users.verify_otp(PHONE_NUMBER, CODE)


async def request(client: AsyncClient) -> None:
    await client.request("POST", f"/x/{PHONE_NUMBER}", params={"phone": PHONE_NUMBER}, json={"to": [{"note": NOTE}]})


async def reset(client: AsyncClient) -> None:
    await client.users.reset_password(EMAIL, ISSUED, NEW_PASSWORD)


CALLS: list[Call] = [pay, verify, request, reset]


class Leaving:
    """Call that is left at its n-th await, or else goes on to its end.

    Args:
        call: The call.
        at: The number of the await.
        leave: Leaves it, or returns the error that the await then raises.

    Attributes:
        has_ended: Whether it came to its end before.
    """

    def __init__(self, call: Awaitable[object], at: int, leave: Callable[[], BaseException | None]) -> None:
        self._call, self._left, self._leave = call, at, leave
        self.has_ended = False

    def __await__(self) -> Generator[Any, Any, None]:
        steps: Any = self._call.__await__()
        sent, error = None, None
        while True:
            try:
                trap = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration:
                self.has_ended = True
                return
            sent, error = None, None
            self._left -= 1
            if not self._left and (error := self._leave()) is not None:
                if trap is not None:
                    trap.cancel()  # asyncio's future, which nobody waits for any more
                continue
            try:
                sent = yield trap
            except BaseException as exc:  # noqa: BLE001 (the call gets it)
                error = exc


class Interruption(BaseException):
    """Error that ends a program, as KeyboardInterrupt does, with which the loop of the test would end too."""


async def trickle(request: Request) -> Reply:
    answer = logged_in(FRESH) if request.target == LOGIN else acknowledgement()
    return Trickle(answer, 0.01, 60)


@pytest.mark.parametrize(
    ("by", "anyio_backend"),
    [("cancelling", "asyncio"), ("cancelling", "trio"), ("interrupting", "asyncio")],  # trio has no other way
    indirect=["anyio_backend"],
)
async def test_a_call_that_is_left_at_any_await_keeps_no_secret_in_a_frame(
    by: str, way: str, anyio_backend_name: str
) -> None:
    """Cancelled or interrupted while it logs in, sends, or has read half an answer. Each await: this takes a second."""
    found, at, left, has_ended = list[str](), 0, set[type](), False

    async def attempt(base_url: str) -> None:
        nonlocal has_ended
        async with connect(way, base_url, auth=(EMAIL, PASSWORD), retry=ONCE) as client:
            with anyio.CancelScope() as scope:
                call = Leaving(pay(client), at, scope.cancel if by == "cancelling" else Interruption)
                try:
                    await call
                except BaseException as exc:
                    found.extend(f"await {at}: {each}" for each in leaks(exc, SECRETS))
                    left.add(type(exc))
                    if by == "cancelling":
                        raise
            has_ended = call.has_ended

    async with serve(trickle) as server:
        while not has_ended:
            at += 1
            async with anyio.create_task_group() as tasks:  # a task of its own: an interrupted one is beyond use
                tasks.start_soon(attempt, server.base_url)
    assert found == []
    assert at > 8
    assert (anyio.get_cancelled_exc_class() if by == "cancelling" else Interruption) in left


@pytest.mark.parametrize("call", CALLS)
async def test_a_time_out_around_a_call_keeps_no_secret_in_a_frame(
    way: str, call: Call, anyio_backend_name: str
) -> None:
    """The program's own time-out, around a server that says nothing."""

    async def handler(request: Request) -> Reply:
        return NeverAnswer()

    async with serve(handler) as server:
        async with connect(way, server.base_url, auth=ISSUED, retry=ONCE, timeout=20.0) as client:
            for _ in range(2):
                with pytest.raises(TimeoutError) as caught:
                    if anyio_backend_name == "asyncio":
                        async with asyncio.timeout(2):
                            await call(client)
                    else:
                        with anyio.fail_after(2):
                            await call(client)
                assert leaks(caught.value, SECRETS) == []
            with pytest.raises(MobileMoneyError) as failed:
                await call(client)
            assert leaks(failed.value, SECRETS) == []


WRONG: list[Call] = [
    lambda client: client.collections.create("0780000789", 1000),
    lambda client: client.collections.create(PHONE_NUMBER, "a lot"),
    lambda client: client.collections.create("1000", PHONE_NUMBER),
    lambda client: client.collections.create(780000789, 1000),  # type: ignore[arg-type]
    lambda client: client.collections.create(PHONE_NUMBER, 1000, idempotency_key="needs-a-store"),
    lambda client: client.collections.create(PHONE_NUMBER, 1000, extra={"amount": NOTE}),
    lambda client: client.collections.create(PHONE_NUMBER, 1000, extra={"note": [{"a": NOTE}, 1.5]}),
    lambda client: client.collections.create(PHONE_NUMBER, 1000, extra=[NOTE]),  # type: ignore[arg-type]
    lambda client: client.collections.create(PHONE_NUMBER, 1000, extra={"note": f"\ud800{NOTE}"}),
    lambda client: client.users.request_otp(PHONE_NUMBER, ""),
    lambda client: client.users.request_otp("0780000789"),
    lambda client: client.users.verify_otp(PHONE_NUMBER, f"{CODE}\ud800"),
    lambda client: client.users.verify_otp(PHONE_NUMBER, 482913),  # type: ignore[arg-type]
    lambda client: client.users.verify_otp("0780000789", CODE),
    lambda client: client.users.login("", PASSWORD),
    lambda client: client.users.login(EMAIL, f"{PASSWORD}\ud800"),
    lambda client: client.users.reset_password("", ISSUED, NEW_PASSWORD),
    lambda client: client.users.reset_password(EMAIL, f"{ISSUED}\ud800", NEW_PASSWORD),
    lambda client: client.request("", f"/{PHONE_NUMBER}", json={"note": NOTE}),
    lambda client: client.request("POST", f"/{PHONE_NUMBER}?", json={"note": NOTE}),
    lambda client: client.request("POST", "/x", json={"note": NOTE, "amount": 1.5}),
    lambda client: client.request("POST", "/x", json={"note": NOTE, "x": {NOTE}}),
    lambda client: client.request("POST", "/x", json=[NOTE]),  # type: ignore[arg-type]
    lambda client: client.request("POST", "/x", json={"note": NOTE}, effect="free"),
    lambda client: client.request("GET", "/x", params={"phone": PHONE_NUMBER, "x": 1.5}),  # type: ignore[dict-item]
]


async def test_a_wrong_argument_is_refused_without_a_secret_in_a_frame() -> None:
    """Neither the wrong one nor those beside it are in the locals of our frames, from the first statement on."""
    client = make_client(FakeTransport(), auth=ISSUED)
    for number, call in enumerate(WRONG):
        with pytest.raises(InvalidRequest) as caught:
            await call(client)
        assert leaks(caught.value, SECRETS) == [], number
    await client.aclose()
    for call in CALLS:
        with pytest.raises(InvalidRequest) as caught:
            await call(client)
        assert leaks(caught.value, SECRETS) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: AsyncClient("https://x", auth=f"{ISSUED}\n"),
        lambda: AsyncClient("ftp://x", auth=ISSUED),
        lambda: AsyncClient("ftp://x", auth=(EMAIL, PASSWORD)),
        lambda: AsyncClient("https://x", auth=("", PASSWORD)),
        lambda: AsyncClient("https://x", auth=(EMAIL, f"{PASSWORD}\ud800")),
        lambda: AsyncClient("https://x", auth=[EMAIL, PASSWORD]),  # type: ignore[arg-type]
        lambda: AsyncClient("https://x", auth={"email": EMAIL, "password": PASSWORD}),  # type: ignore[arg-type]
        lambda: AsyncClient("https://x", auth=(EMAIL, PASSWORD, "")),  # type: ignore[arg-type]
        lambda: AsyncClient("https://x", auth=ISSUED.encode()),  # type: ignore[arg-type]
        lambda: AsyncClient(f"https://shop:{PASSWORD}@x", auth=ISSUED),
        lambda: AsyncClient(base_url=f"https://shop:{PASSWORD}@x:99999", auth=ISSUED),
        lambda: AsyncClient("https://x", auth=ISSUED, store=f"mysql://shop:{PASSWORD}@db/x"),
        lambda: AsyncClient("https://x", auth=ISSUED).with_options(extra_headers={"X-Key": f"{KEY}\n"}),
        lambda: AsyncClient("https://x", auth=ISSUED).with_options(timeout=-1, extra_headers={"X-Key": KEY}),
        lambda: TokenAuth(f"{ISSUED}\n"),
        lambda: TokenAuth(Secret(f"{ISSUED}\n")),
        lambda: LoginAuth("", PASSWORD),
        lambda: LoginAuth(EMAIL, f"{PASSWORD}\ud800"),
        lambda: SQLStore(f"postgresql://shop:{PASSWORD}@db:port/x"),
        lambda: SQLStore("sqlite://", key=KEY),
        lambda: SQLStore("sqlite:///x.db", account="", key=KEY),
        lambda: SQLStore("sqlite:///x.db", key=KEY),
        lambda: CallbackReceiver(NOBODY, secret=KEY),
        lambda: CallbackReceiver(NOBODY, secret=f"{KEY}/{KEY}"),
        lambda: CallbackReceiver(NOBODY, secret=KEY, verify="x"),  # type: ignore[arg-type]
        lambda: CallbackReceiver(NOBODY, secret=KEY + KEY, keep=-1),
    ],
)
async def test_what_is_made_with_a_wrong_argument_shows_no_secret(make: Callable[[], object]) -> None:
    """Nor do the constructors: a token is often wrong by a line end only."""
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert leaks(caught.value, SECRETS) == []


@pytest.mark.parametrize("more", [{}, {"MOBILEMONEY_BASE_URL": "https://x", "MOBILEMONEY_EMAIL": EMAIL}])
def test_a_wrong_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> None:
    """A forgotten variable is the first error of most deployments."""
    monkeypatch.delenv("MOBILEMONEY_BASE_URL", raising=False)
    for name, value in {"MOBILEMONEY_TOKEN": ISSUED, "MOBILEMONEY_STORE_KEY": KEY, **more}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest) as caught:
        AsyncClient.from_env()
    assert leaks(caught.value, SECRETS) == []


def test_a_client_that_was_refused_can_be_shown() -> None:
    """A crash reporter takes the `repr` of each local."""
    assert repr(AsyncClient.__new__(AsyncClient)) == "<AsyncClient None>"


@pytest.mark.parametrize(
    "answer",
    [
        refusal("invalid_token", 401),
        refusal("insufficient_permissions", 403),
        refusal("RATE_LIMIT_EXCEEDED", 429, 9999),
        httpx.ReadError(f"{ISSUED} {PHONE_NUMBER}"),
        httpx.ConnectError(f"{ISSUED} {PHONE_NUMBER}"),
        RuntimeError(f"{ISSUED} {PHONE_NUMBER}"),
        KeyError(ISSUED),
        KeyboardInterrupt(),
        SystemExit(3),
    ],
)
@pytest.mark.parametrize("call", CALLS)
async def test_a_refused_or_failed_call_keeps_no_secret_in_a_frame(answer: Any, call: Call) -> None:
    """Whatever the transport raises, errors that end the program included."""
    if isinstance(answer, Exception):
        client = make_client(FakeTransport(script(*[answer] * 4)), auth=ISSUED, retry=ONCE)
    else:

        def fail(sent: object) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        client = make_client(FakeTransport(fail), auth=ISSUED, retry=ONCE)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (SystemExit too)
        await call(client)
    assert leaks(caught.value, SECRETS) == []


async def test_an_error_that_the_program_handles_stays_as_it_is() -> None:
    """Who pays in an `except` clause finds the first error again, with its text, its frames and its causes."""
    client = make_client(FakeTransport(lambda sent: httpx.ReadError("x")), auth=ISSUED, retry=ONCE)
    try:
        raise LookupError("the order") from ValueError("its cause")
    except LookupError as exc:
        handled = exc
        with pytest.raises(MobileMoneyError) as caught:
            await pay(client)
    assert (handled.args, f"{handled.__cause__}") == (("the order",), "its cause")
    assert handled.__traceback__ is not None
    each: BaseException | None = caught.value
    while each is not None and not isinstance(each, LookupError):
        each = each.__context__
    assert isinstance(each, LookupError)
