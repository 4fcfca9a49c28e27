"""The client itself: how it is made, shared, configured, used for other endpoints, and closed."""

import datetime as dt
import gc
import inspect
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    Effect,
    InvalidRequest,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentState,
    RateLimiter,
    RequestTimeout,
    RetryPolicy,
    Secret,
    ServerError,
    SQLStore,
    StoreError,
    TokenAuth,
)
from mobilemoney_async.payments.store import account_store
from tests.contract import samples
from tests.support.arguments import wrong
from tests.support.databases import sqlite_url
from tests.support.fakes import BASE_URL, FakeTransport, Hang, Sent, Step, connect, in_turn
from tests.support.server import Request, Response, serve
from tests.support.warm import run_without

NUMBER = "+255680000001"
VARIABLES = ("PROFILE", "CONFIG", "BASE_URL", "TOKEN", "EMAIL", "PASSWORD", "STORE", "STORE_KEY")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"MOBILEMONEY_{name}", raising=False)


# Tokens travel over https, or stay on this machine; an address with a user or a query is a mistake.
LEAKING = (
    "pay.example/v1|//pay.example/v1|http://pay.example/v1|http://10.0.0.1/v1|http://localhost.example/v1|"
    "http://127.0.0.1.example/v1|http://0.0.0.0/v1|http://127.0.0.1@pay.example/v1|ftp://localhost/v1|https:///v1|"
    "https://|https://user@pay.example/v1|https://user:secret@pay.example/v1|https://@pay.example/v1|"
    "https://pay.example/v1?key=1|https://pay.example/v1?|https://pay.example/v1#top|https://pay.example/v1#|"
    "https://pay.example:99999/v1|https://pay.example:x/v1|https://10.0.0.256/v1|https://[v1.a]/v1|"
    "https://pay.example\x7f/v1|"
    "https://[::1/v1|https://pay example/v1|https://pay.example/v1\n|https://pâyments.example/v1"
)


class AsyncRejected(TokenAuth):
    """Source that waits for nothing to be told: its `rejected` would never run."""

    async def rejected(self, token: Secret, *, replacement: bool) -> None:  # type: ignore[override]
        raise AssertionError


REFUSED = [
    *wrong(
        base_url=["", None, 7, b"https://pay.example/v1", *LEAKING.split("|")],
        auth=["", "two words", "line\nbreak", None, ("a@b.example", "secret", "more"), AsyncRejected("x")],
        timeout=[0, None, float("inf")],
        deadline=[0, True],
        retry=[3, None],
        rate_limiter=[60],
        store=["payments.db", ...],
        transport=["httpx", ...],
        http_client=[..., httpx.Client],
        utcnow=["now", dt.datetime(2026, 1, 31, tzinfo=dt.UTC)],
    ),
    ("email", {"auth": ("", "secret")}),
    ("http_client", {"http_client": ..., "transport": "aiohttp"}),
]


class TestMaking:
    @pytest.mark.parametrize(("argument", "change"), REFUSED, ids=repr)
    def test_an_odd_argument_is_refused_by_name(self, argument: str, change: dict[str, Any]) -> None:
        """A mistake in the configuration is reported at once, by name and without its value."""
        arguments: dict[str, Any] = {"base_url": BASE_URL, "auth": "token"} | change
        with pytest.raises(InvalidRequest) as caught:
            AsyncClient(**arguments)
        assert caught.value.argument == argument
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        "base_url",
        ["https://pay.example:8443/v1", "http://LOCALHOST:80/v1", "http://127.1.2.3/v1/", "http://[::1]:8765/v1"],
    )
    def test_http_is_for_loopback_only(self, base_url: str) -> None:
        """A token never travels in the clear."""
        client = AsyncClient(base_url, auth="token")
        assert repr(client) == f"<AsyncClient {base_url.rstrip('/')}>"

    def test_it_needs_no_event_loop_and_leaves_nothing_behind(self) -> None:
        """A client may be made at import time, and one that was never used need not be closed."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            AsyncClient(BASE_URL, auth=LoginAuth("a@b.example", "secret"))
            gc.collect()

    def test_its_signature_reads_well(self) -> None:
        """An option that was not given is not None, and `help()` shows it."""
        assert "timeout: 'float | _Unset' = <unset>" in str(inspect.signature(AsyncClient.with_options))

    def test_its_repr_shows_no_secret(self) -> None:
        client = AsyncClient(BASE_URL, auth=TokenAuth("hunter2"))
        assert "hunter2" not in f"{client!r} {vars(client)!r}"


class TestTheCallersOwn:
    @pytest.mark.parametrize(
        ("time", "returned"),
        [(dt.datetime.fromisoformat("2026-01-31T12:00"), "a naive datetime"), ("noon", "str"), (None, "NoneType")],
    )
    @pytest.mark.parametrize("has_store", [True, False])
    async def test_a_clock_without_a_zone_is_refused_at_its_first_use(
        self, time: Any, returned: str, *, has_store: bool, tmp_path: Path
    ) -> None:
        """Nothing is sent and nothing is recorded by a time that may be hours off."""
        store = SQLStore(sqlite_url(tmp_path)) if has_store else None
        async with connect(in_turn(samples.acknowledgement()), store=store, utcnow=lambda: time) as (client, service):
            with pytest.raises(
                InvalidRequest, match=rf"^utcnow must be .* aware .*; it returned {returned}$"
            ) as caught:
                await client.collections.create(NUMBER, 1000, idempotency_key="order-1" if has_store else None)
            assert caught.value.argument == "utcnow"
            assert service.sent == []

    async def test_a_clock_of_another_zone_tells_the_time_in_utc(self) -> None:
        """An aware time is what it is."""
        nairobi = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone(dt.timedelta(hours=3)))
        async with connect(in_turn(({}, 502)), utcnow=lambda: nairobi) as (client, _):
            with pytest.raises(OutcomeUnknown) as caught:
                await client.collections.create(NUMBER, 1000)
        assert caught.value.sent_at.isoformat() == "2026-01-31T09:00:00+00:00"

    async def test_a_transport_stays_open(self) -> None:
        """You close your own transport."""
        service = FakeTransport(in_turn({}))
        async with AsyncClient(BASE_URL, auth="token", transport=service) as client:
            await client.users.profile()
        assert not service.closed
        assert len(service.sent) == 1


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set variables of the environment beside an address and a token."""

    def set_all(**variables: str) -> None:
        for name, value in {"BASE_URL": BASE_URL, "TOKEN": "token", **variables}.items():
            monkeypatch.setenv(f"MOBILEMONEY_{name}", value)

    return set_all


class TestFromEnv:
    @pytest.mark.parametrize(
        ("variables", "argument"),
        [
            ({}, "MOBILEMONEY_BASE_URL"),
            ({"BASE_URL": BASE_URL}, "MOBILEMONEY_TOKEN"),
            ({"TOKEN": "token"}, "MOBILEMONEY_BASE_URL"),
            ({"BASE_URL": " ", "TOKEN": "token"}, "MOBILEMONEY_BASE_URL"),
            ({"BASE_URL": "http://pay.example/v1", "TOKEN": "token"}, "base_url"),
            ({"BASE_URL": BASE_URL, "TOKEN": "to ken"}, "MOBILEMONEY_TOKEN"),
            ({"BASE_URL": BASE_URL, "TOKEN": "token", "EMAIL": "a@b.example"}, "MOBILEMONEY_EMAIL"),
            ({"BASE_URL": BASE_URL, "EMAIL": "a@b.example"}, "MOBILEMONEY_PASSWORD"),
            ({"BASE_URL": BASE_URL, "EMAIL": "a@b.example", "PASSWORD": ""}, "MOBILEMONEY_PASSWORD"),
            ({"BASE_URL": BASE_URL, "PASSWORD": "secret"}, "MOBILEMONEY_TOKEN"),
            ({"BASE_URL": BASE_URL, "TOKEN": "token", "STORE": "mysql://host/payments"}, "url"),
            ({"BASE_URL": BASE_URL, "TOKEN": "token", "STORE": "sqlite://:memory:"}, "url"),
            ({"BASE_URL": BASE_URL, "TOKEN": "token", "STORE": "sqlite:///p.db", "STORE_KEY": "secret"}, "key"),
        ],
        ids=repr,
    )
    def test_what_is_missing_or_contradicts_is_named(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], argument: str
    ) -> None:
        """A half-configured deployment does not start."""
        for name, value in variables.items():
            monkeypatch.setenv(f"MOBILEMONEY_{name}", value)
        with pytest.raises(InvalidRequest) as caught:
            AsyncClient.from_env()
        assert caught.value.argument == argument
        assert "secret" not in str(caught.value)

    def test_all_that_is_missing_is_named_at_once(self) -> None:
        text = "set MOBILEMONEY_BASE_URL; and MOBILEMONEY_TOKEN, or MOBILEMONEY_EMAIL and MOBILEMONEY_PASSWORD"
        with pytest.raises(InvalidRequest, match=f"^{text}$"):
            AsyncClient.from_env()

    async def test_credentials_of_the_program_win(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those of the environment are not read then: they may be incomplete, or contradict each other."""
        monkeypatch.setenv("MOBILEMONEY_BASE_URL", BASE_URL)
        for name in ("TOKEN", "EMAIL", "PASSWORD_FILE"):
            monkeypatch.setenv(f"MOBILEMONEY_{name}", "/missing")
        await AsyncClient.from_env(auth="token").aclose()

    def test_the_sandbox_has_its_credentials_printed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MOBILEMONEY_PROFILE", "sandbox")
        with pytest.raises(InvalidRequest, match=r"^set MOBILEMONEY_TOKEN, .*; `mobilemoney sandbox` prints them$"):
            AsyncClient.from_env()

    @pytest.mark.parametrize("base_url", [5, "https://[::bad", "pay.example"])
    @pytest.mark.parametrize("profile", ["", "sandbox"])
    def test_an_address_that_is_none(self, monkeypatch: pytest.MonkeyPatch, profile: str, base_url: object) -> None:
        monkeypatch.setenv("MOBILEMONEY_PROFILE", profile)
        with pytest.raises(InvalidRequest, match=r"^base_url must be "):
            AsyncClient.from_env(base_url=base_url, auth="token")

    async def test_another_service_gets_nothing_of_a_profile(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A profile's token never goes to the URL that a program gives, unless it is the profile's."""
        file = tmp_path / "mobilemoney.toml"
        file.write_text(f'[profiles.shop]\nbase_url = "{BASE_URL}"\ntoken = "secret"\n')
        file.chmod(0o600)
        monkeypatch.setenv("MOBILEMONEY_CONFIG", str(file))
        monkeypatch.setenv("MOBILEMONEY_PROFILE", "shop")
        with pytest.raises(InvalidRequest, match=r"^set MOBILEMONEY_TOKEN"):
            AsyncClient.from_env(base_url="https://other.example/v1")
        await AsyncClient.from_env(base_url=BASE_URL).aclose()

    async def test_a_profile(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A program is configured as the command line is, and a variable wins over the file."""
        (tmp_path / "token").write_text("from-a-file\n")
        file = tmp_path / "mobilemoney.toml"
        file.write_text(f'[profiles.shop]\nbase_url = "{BASE_URL}"\ntoken_file = "token"\ntimeout = 7\n')
        monkeypatch.setenv("MOBILEMONEY_CONFIG", str(file))
        monkeypatch.setenv("MOBILEMONEY_PROFILE", "shop")
        service, once = FakeTransport(lambda sent: Hang()), RetryPolicy(max_attempts=1)
        for token, timeout, given in (("from-a-file", 7, {}), ("from-the-environment", 1, {"timeout": 1})):
            async with AsyncClient.from_env(transport=service, retry=once, **given) as client:
                with pytest.raises(MobileMoneyError):
                    await client.users.profile()
            sent = service.sent.pop()
            assert (sent.url.host, sent.headers["authorization"]) == (httpx.URL(BASE_URL).host, f"Bearer {token}")
            assert anyio.current_time() - sent.at == pytest.approx(timeout)
            monkeypatch.setenv("MOBILEMONEY_TOKEN", "from-the-environment")

    async def test_a_file_is_read_for_a_profile_only(
        self, environ: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A program of variables does not care what lies in its folder."""
        (tmp_path / "mobilemoney.toml").write_text("nonsense")
        monkeypatch.chdir(tmp_path)
        environ()
        await AsyncClient.from_env().aclose()

    async def test_a_token(self, environ: Callable[..., None]) -> None:
        """Blanks around a value, such as a line break from a file, do not count."""
        environ(BASE_URL=f"{BASE_URL}\n", TOKEN=" token ")
        service = FakeTransport(in_turn({}))
        async with AsyncClient.from_env(transport=service) as client:
            await client.users.profile()
        assert str(service.sent[0].url) == f"{BASE_URL}/user-service/profile"
        assert service.sent[0].headers["authorization"] == "Bearer token"

    async def test_an_e_mail_and_a_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The password is taken as it is, blanks included."""
        for name, value in (("BASE_URL", BASE_URL), ("EMAIL", "a@b.example"), ("PASSWORD", " pass word ")):
            monkeypatch.setenv(f"MOBILEMONEY_{name}", value)
        service = FakeTransport(in_turn(samples.login(), {}))
        async with AsyncClient.from_env(transport=service) as client:
            await client.users.profile()
        assert service.sent[0].body == b'{"email":"a@b.example","password":" pass word "}'
        assert service.sent[1].headers["authorization"] == "Bearer header.payload.signature"

    async def test_arguments_win(self, environ: Callable[..., None]) -> None:
        environ(BASE_URL="https://other.example/v1", TOKEN="other")
        service = FakeTransport(in_turn({}))
        async with AsyncClient.from_env(base_url=BASE_URL, auth=Secret("mine"), transport=service) as client:
            await client.users.profile()
        assert service.sent[0].url.host == "payments.example"
        assert service.sent[0].headers["authorization"] == "Bearer mine"

    @pytest.mark.real_time
    async def test_a_store(self, environ: Callable[..., None], tmp_path: Path) -> None:
        """With a store's URL in the environment, creates are remembered."""
        environ(STORE=f" {sqlite_url(tmp_path)}\n", STORE_KEY="a key of the merchant's")
        service = FakeTransport(in_turn(samples.acknowledgement()))
        async with AsyncClient.from_env(transport=service) as client:
            for _ in range(2):
                await client.collections.create(phone_number=NUMBER, amount=1000, idempotency_key="order-1")
            assert [record.key for record in await client.payments.list()] == ["order-1"]
        assert len(service.sent) == 1

    @pytest.mark.real_time
    async def test_a_store_of_one_s_own_wins(self, environ: Callable[..., None], tmp_path: Path) -> None:
        """`store=None` makes a client without one, whatever the environment holds."""
        environ(STORE="nonsense")
        async with AsyncClient.from_env(store=None) as client:
            with pytest.raises(InvalidRequest, match=r"^store must be given to AsyncClient"):
                _ = client.payments
        store = SQLStore(sqlite_url(tmp_path), account="shop")
        async with AsyncClient.from_env(store=store) as client:
            assert await client.payments.list() == []

    def test_a_subclass_makes_its_own_kind(self, environ: Callable[..., None]) -> None:
        class Mine(AsyncClient):
            pass

        environ()
        client = Mine.from_env()
        assert type(client) is Mine
        assert type(client.with_options(timeout=100)) is Mine


# A program in an interpreter without an extra.
WITHOUT = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
"""
WITHOUT_A_STORE = """
import anyio
from mobilemoney_async import InvalidRequest, SQLStore
from mobilemoney_async.sandbox import Sandbox


async def main():
    async with Sandbox().client() as client:
        print((await client.collections.create(phone_number="+255681234567", amount=1)).status_code)


anyio.run(main)
for url, options in STORES:
    try:
        SQLStore(url, **options)
        print("made")
    except InvalidRequest as exc:
        print(exc)
"""


class TestExtras:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("blocked", "stores", "said"),
        [
            (["sqlalchemy", "psycopg", "cryptography"], [("sqlite:///p.db", {})], ["store"]),
            (
                ["psycopg", "cryptography"],
                [
                    ("postgresql+psycopg://host/payments", {}),
                    ("postgresql://host/payments", {}),
                    ("sqlite:///p.db", {"key": "sixteen or longer"}),
                    ("sqlite:///p.db", {}),
                ],
                ["postgres", "postgres", "store", None],
            ),
        ],
        ids=["without SQLAlchemy", "with it"],
    )
    def test_only_what_needs_an_extra_asks_for_it(
        self, blocked: list[str], stores: list[tuple[str, dict[str, Any]]], said: list[str | None]
    ) -> None:
        """Without SQLAlchemy everything but a store works, and a store's error names the extra to install."""
        ran = run_without(f"BLOCKED, STORES = {blocked!r}, {stores!r}\n{WITHOUT}{WITHOUT_A_STORE}")
        assert ran.returncode == 0, ran.stderr
        status, *shown = ran.stdout.splitlines()
        assert status == "PENDING"
        for line, extra in zip(shown, said, strict=True):
            assert line == "made" if extra is None else f'pip install "mobilemoney-async[{extra}]"' in line

    @pytest.mark.slow
    @pytest.mark.parametrize("blocked", [["sqlalchemy", "aiohttp"], ["psycopg", "cryptography"]], ids=" ".join)
    def test_every_name_can_be_looked_at_without_an_extra(self, blocked: list[str]) -> None:
        """`import *`, `help()` and `getmembers` work: a class that needs an extra is refused when it is made."""
        code = f"BLOCKED = {blocked!r}\n{WITHOUT}\nfrom mobilemoney_async import *\nimport inspect, pydoc\n"
        code += "from mobilemoney_async.contrib.backend import Backend\n"
        code += "import mobilemoney_async as package\n"
        code += "names = {name for name, _ in inspect.getmembers(package)}\n"
        code += "text = pydoc.render_doc(package)\n"
        code += "print(set(package.__all__) <= names & {*dir()} | {'__version__'}, bool(text))"
        ran = run_without(code)
        assert ran.stdout == "True True\n", ran.stderr

    @pytest.mark.parametrize(
        ("imported", "unwanted"),
        [
            ("import mobilemoney_async", "sqlalchemy psycopg cryptography"),
            ("from mobilemoney_async import AsyncClient", "cattrs .events .calls.instrumentation .calls.logins"),
            ("from mobilemoney_async import AsyncClient", ".polling.poller"),
        ],
    )
    def test_the_import_takes_along_what_every_program_uses(self, imported: str, unwanted: str) -> None:
        """A program pays nothing at the start for a store, events, logins or pollers that it does not use."""
        names = {f"mobilemoney_async{each}" if each.startswith(".") else each for each in unwanted.split()}
        ran = run_without(f"import sys\n{imported}\nprint({{*sys.modules}} & {names!r})")
        assert ran.stdout == "set()\n", ran.stderr


@pytest.mark.real_time
class TestStore:
    async def test_variants_remember_in_the_same_store(self, tmp_path: Path) -> None:
        """A key is used once, whichever variant of a client uses it."""
        store = SQLStore(sqlite_url(tmp_path))
        async with connect(in_turn(samples.acknowledgement()), store=store) as (client, service):
            first = await client.collections.create(phone_number=NUMBER, amount=1000, idempotency_key="order-1")
            variant = client.with_options(timeout=100)
            again = await variant.collections.create(phone_number=NUMBER, amount=1000, idempotency_key="order-1")
            assert first.transaction_id == again.transaction_id
            assert [record.key for record in await variant.payments.list()] == ["order-1"]
            await variant.aclose()
            assert len(await client.payments.list()) == 1
        assert len(service.sent) == 1

    async def test_a_machine_that_slept_before_the_request_does_not_send_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a suspension others may have taken the payment for lost: it is not sent, and its key stays usable."""
        now = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)
        store = SQLStore(sqlite_url(tmp_path))
        write = account_store(store).database.write

        async def write_and_sleep(*args: Any, **options: Any) -> Any:
            nonlocal now
            result = await write(*args, **options)
            now += dt.timedelta(minutes=10)
            return result

        async with connect(in_turn(samples.acknowledgement()), store=store, utcnow=lambda: now) as (client, service):
            monkeypatch.setattr(account_store(store).database, "write", write_and_sleep)
            with pytest.raises(StoreError) as caught:
                await client.collections.create(phone_number=NUMBER, amount=1000, idempotency_key="order-1")
            assert caught.value.outcome == "not_sent"
            assert service.sent == []
            monkeypatch.undo()
            await client.collections.create(phone_number=NUMBER, amount=1000, idempotency_key="order-1")
            # The others compare the store with its service, after the silence.
            assert [each.method for each in service.sent].count("POST") == 1

    @pytest.mark.parametrize("is_shown", [True, False])
    async def test_a_machine_that_slept_while_it_connected_does_not_send_the_request(
        self, tmp_path: Path, is_shown: bool
    ) -> None:
        """Not a byte of it, or its head alone: it wakes with a connection, and others have given the payment up."""
        now = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)
        url = sqlite_url(tmp_path)

        async def answer(request: Request) -> Response:
            await request.read()
            return Response.json(samples.acknowledgement() if request.method == "POST" else samples.page())

        class Sleeping(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                nonlocal now
                if request.method == "POST":
                    now += dt.timedelta(minutes=10)
                    await other.payments.reconcile()
                    record = await other.payments.get("order-1")
                    assert record is not None
                    assert record.state is PaymentState.UNKNOWN
                if not is_shown:  # as by a transport that tells nothing of its connections
                    request.extensions.pop("trace", None)
                return await super().handle_async_request(request)

        options: dict[str, Any] = {"utcnow": lambda: now, "retry": RetryPolicy(max_attempts=1)}
        async with (
            serve(answer) as server,
            AsyncClient(server.base_url, auth="token", store=SQLStore(url), **options) as other,
            Sleeping() as transport,
            AsyncClient(server.base_url, auth="token", store=SQLStore(url), transport=transport, **options) as client,
        ):
            with pytest.raises(RequestTimeout) as caught:
                await client.collections.create(phone_number=NUMBER, amount=1000, idempotency_key="order-1")
            record = await client.payments.get("order-1")
        assert caught.value.outcome == "not_sent"
        assert record is not None
        assert record.state is PaymentState.NOT_SENT
        assert [each for each in server.requests if each.method == "POST" and (is_shown or each.complete)] == []


class TestWithOptions:
    async def test_what_is_not_given_stays(self) -> None:
        """Options add up over several steps; the first client keeps its own."""
        policy = RetryPolicy(max_attempts=2, first_delay=0)
        async with connect(lambda sent: Hang(), timeout=9, deadline=20, retry=policy) as (client, _):
            longer = client.with_options(timeout=15)
            free = longer.with_options(deadline=None)
            variants = {client: 18, client.with_options(): 18, longer: 20, free: 30, free.with_options(deadline=5): 5}
            for variant, seconds in [*variants.items(), (client, 18)]:
                start = anyio.current_time()
                with pytest.raises(MobileMoneyError):
                    await variant.users.profile()
                assert anyio.current_time() - start == pytest.approx(seconds)

    async def test_it_works_for_every_resource(self) -> None:
        """Fewer attempts on a variant are fewer attempts there, and there only."""
        async with connect(in_turn(({}, 502))) as (client, service):
            hasty = client.with_options(retry=RetryPolicy(max_attempts=1))
            for act in (hasty.users.profile, lambda: hasty.transactions.get("t-1"), lambda: hasty.request("GET", "/x")):
                with pytest.raises(ServerError):
                    await act()
            assert len(service.sent) == 3
            with pytest.raises(ServerError):
                await client.users.profile()
            assert len(service.sent) == 7

    async def test_it_shares_limiter_and_token(self) -> None:
        """One login and one limit serve all variants."""
        handler = in_turn(samples.login(), {})
        auth = LoginAuth("a@b.example", "secret")
        async with connect(handler, auth=auth, rate_limiter=RateLimiter(burst=1, jitter=0)) as (client, service):
            await client.users.profile()
            await client.with_options(timeout=100).users.profile()
        assert len(service.sent) == 3
        assert service.times[2] - service.times[1] == pytest.approx(1, abs=1e-3)

    async def test_closing_it_closes_nothing(self) -> None:
        """A variant may be made and left anywhere; closing the first client closes all."""
        async with connect(in_turn({"id": 7})) as (client, _):
            async with client.with_options(timeout=100) as variant:
                assert await variant.users.profile() == {"id": 7}
            assert await variant.users.profile() == {"id": 7}
            assert await client.users.profile() == {"id": 7}
        with pytest.raises(InvalidRequest, match="closed"):
            await variant.users.profile()

    @pytest.mark.parametrize(
        ("argument", "options"),
        wrong(
            timeout=[0, None],
            deadline=[-1],
            retry=[None],
            extra_headers=[
                [("X-Trace", "1")],
                *({"X-Trace": each} for each in (1, "a\r\nAuthorization: Bearer x", "é", "a ", "\ta", " ")),
                *({each: "1"} for each in ("X Trace", "", 5, "Authorization", "authorization", "HOST")),
                *({each: "1"} for each in ("Content-Type", "content-length", "Transfer-Encoding")),
                *({each: "1"} for each in ("Accept-Encoding", "content-encoding", "Expect", "Range")),
            ],
        ),
        ids=repr,
    )
    async def test_an_odd_option_is_refused(self, argument: str, options: dict[str, Any]) -> None:
        """Headers that are ours to set, and line breaks in a value, are refused."""
        async with connect(in_turn({})) as (client, _):
            with pytest.raises(InvalidRequest) as caught:
                client.with_options(**options)
        assert caught.value.argument == argument

    async def test_extra_headers_are_sent_and_add_up(self) -> None:
        """A later header replaces an earlier one, however it is spelt; none is sent twice."""
        async with connect(in_turn({})) as (client, service):
            variant = client.with_options(extra_headers={"X-Trace": "1", "X-Team": "a"})
            variant = variant.with_options(extra_headers={"x-trace": "2", "user-agent": "shop/1.0"})
            await variant.users.profile()
            await client.users.profile()
        sent, plain = (request.headers for request in service.sent)
        assert sent.get_list("x-trace") == ["2"]
        assert sent["x-team"] == "a"
        assert sent.get_list("user-agent") == ["shop/1.0"]
        assert "x-trace" not in plain
        assert plain["user-agent"].startswith("mobilemoney-async/")

    async def test_extra_headers_are_hidden_in_tracebacks(self) -> None:
        """A header may hold a key of yours."""
        async with connect(in_turn({})) as (client, _):
            variant = client.with_options(extra_headers={"X-Key": "hunter2"})
            assert "hunter2" not in f"{vars(variant)!r}"


class TestRequest:
    @pytest.mark.parametrize(
        ("argument", "call"),
        wrong(
            method=["", "GET /x", None],
            path=[
                "",
                "x",
                "/x?y=1",
                "/x#y",
                "/x y",
                "/é",
                "/{id}",
                "/x\n",
                "/../x",
                "/x/..",
                "/x/%2E%2e/y",
                "/./x",
                None,
            ],
            params=[
                {"a": 1.5},
                {"a": True},
                {"a": None},
                {1: "a"},
                {"a": "\ud800"},
                {"\ud800": "a"},
                [("a", "b")],
                "a=b",
            ],
            json=[[1], "text", {"amount": 1.5}, {"a": {1: 2}}, {"a": ...}],
            effect=["write", 5],
        ),
        ids=repr,
    )
    async def test_an_odd_argument_is_refused_before_anything_is_sent(
        self, argument: str, call: dict[str, Any]
    ) -> None:
        """No path climbs out of the base URL, and no float goes out."""
        arguments: dict[str, Any] = {"method": "POST", "path": "/x"} | call
        async with connect(in_turn({})) as (client, service):
            with pytest.raises(InvalidRequest) as caught:
                await client.request(**arguments)
        assert caught.value.argument == argument
        assert service.sent == []

    @pytest.mark.parametrize(
        ("method", "effect", "requests"),
        [
            *((method, None, 1) for method in ("POST", "put", "PATCH", "DELETE")),
            *((method, None, 4) for method in ("GET", "get", "OPTIONS")),
            *(("POST", effect, 4) for effect in (Effect.READ, "read")),
            *(("POST", effect, 1) for effect in (Effect.SESSION, "session", Effect.MONEY, "money")),
        ],
    )
    async def test_what_is_not_a_read_moves_money_unless_you_say_otherwise(
        self, method: str, effect: Any, requests: int
    ) -> None:
        """An unknown endpoint is never called twice by accident, and its error has a key; a search may be repeated."""
        is_money = requests == 1 and effect not in {Effect.SESSION, "session"}
        async with connect(in_turn(({}, 502))) as (client, service):
            with pytest.raises(OutcomeUnknown if is_money else ServerError) as caught:
                await client.request(method, "/payment-service/bulk", json={"amount": "5"}, effect=effect)
        assert bool(caught.value.idempotency_key) == is_money
        assert [request.method for request in service.sent] == [method.upper()] * requests

    @pytest.mark.parametrize("status", [200, 201, 204])
    @pytest.mark.parametrize("body", [b"", b" \r\n"])
    async def test_money_that_is_answered_with_nothing_is_unknown(self, status: int, body: bytes) -> None:
        """An empty success proves nothing about money, not even HTTP 204; of a read or a session call 204 is enough."""

        async def handler(sent: Sent) -> Step:
            return Response(status, body)

        async with connect(handler) as (client, service):
            for effect in ("money", Effect.MONEY, None):
                with pytest.raises(OutcomeUnknown) as caught:
                    await client.request("POST", "/payment-service/bulk", json={"amount": "5"}, effect=effect)
                assert caught.value.outcome == "unknown"
            assert len(service.sent) == 3
            if status == 204:
                assert await client.request("DELETE", "/hooks/7", effect="session") == {}
                assert await client.request("GET", "/hooks/7") == {}

    async def test_the_answer_is_the_json_object(self) -> None:
        async def handler(sent: Sent) -> Step:
            return Response(200, b'{"balance": 10.10, "rows": [1, null]}')

        async with connect(handler) as (client, _):
            assert await client.request("GET", "/balance", {"on": "2025-06-01", "n": 5}) == {
                "balance": Decimal("10.10"),
                "rows": [1, None],
            }

    async def test_an_error_body_is_its_error(self) -> None:
        async with connect(in_turn({"status": "error", "error_code": "CLOSED"})) as (client, _):
            with pytest.raises(MobileMoneyError, match=r"^CLOSED \(HTTP 200\)$"):
                await client.request("GET", "/balance")


class TestClosing:
    async def test_a_closed_client_refuses_calls(self) -> None:
        """A use after the end is reported as such, with nothing sent."""
        async with connect(in_turn({})) as (client, service):
            pager = client.transactions.list()
        await client.aclose()  # twice is once
        for act in (
            client.users.profile,
            pager.collect,
            lambda: client.request("POST", "/x"),
            lambda: client.transactions.get("t-1"),
            lambda: client.transactions.wait("t-1"),
        ):
            with pytest.raises(InvalidRequest, match=r"^the client is closed$") as caught:
                await act()
            assert caught.value.argument == "client"
        with pytest.raises(InvalidRequest, match="closed"):
            async with client:
                raise AssertionError
        assert service.sent == []

    async def test_an_error_in_the_block_is_the_caller_s(self) -> None:
        """The caller's exception leaves the block as it is, not in a group."""
        with pytest.raises(KeyError):
            async with connect(in_turn({})):
                raise KeyError
