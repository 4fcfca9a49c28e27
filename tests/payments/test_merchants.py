"""Many merchants in one process, each with a client of its own: nothing is mixed up, and idle ones are closed."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    InvalidCredentials,
    InvalidRequest,
    InvalidToken,
    LoginAuth,
    Merchants,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentState,
    Secret,
    SQLStore,
    StoreError,
    TransportError,
)
from mobilemoney_async.calls import transport
from mobilemoney_async.client import ClientOwner
from mobilemoney_async.payments.records.record import PaymentEvent, Source
from mobilemoney_async.payments.records.rows import JournalEntry
from mobilemoney_async.payments.store import account_store
from tests.calls.test_surplus_answers import surplus
from tests.contract import samples
from tests.payments.hosts import token_of, utcnow
from tests.payments.second_world import BOTH
from tests.payments.service import on_asyncio
from tests.payments.steps import record_of
from tests.support.second_service import BASE_URL, SecondService, error
from tests.support.server import NeverAnswer, Request, Response, serve

NUMBER = "+255681234567"
PASSWORD = "correct-horse-battery"
CALL = "tx-1"


@attrs.define(eq=False)
class Pool(httpx.AsyncBaseTransport):
    """Connections of one client, which notices when it is closed under a request."""

    platform: Platform
    in_flight: int = 0
    is_open: bool = True
    was_cut: bool = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert self.is_open
        self.in_flight += 1
        try:
            return await self.platform.answer(request)
        finally:
            self.in_flight -= 1

    async def aclose(self) -> None:
        self.was_cut |= self.in_flight > 0
        await anyio.lowlevel.checkpoint()
        self.is_open = False


@attrs.define(eq=False)
class Platform:
    """The service, with an account for each token, and the platform's vault.

    Attributes:
        secrets: What the vault has, by account: a token, or the password of a login.
        asked: The accounts whose secrets were asked for, in order.
        before_auth: Awaited before the vault answers, with the account.
        answer_first: Answers in place of the service where it returns an answer, with the token; it may raise or wait.
        pools: All that were made.
    """

    service: SecondService = attrs.field(factory=lambda: SecondService(utcnow=utcnow))
    secrets: dict[str, Any] = attrs.field(factory=dict)
    passwords: dict[str, str] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)
    before_auth: Callable[[str], Any] | None = None
    answer_first: Callable[[str], Any] | None = None
    pools: list[Pool] = attrs.field(factory=list)
    asking: set[str] = attrs.field(factory=set)

    def open(self, *accounts: str) -> None:
        """Open accounts at the service, each with a token."""
        for each in accounts:
            self.secrets[each] = f"token.of.{each}"
            self.service.merchants[f"token.of.{each}"] = each

    def replace(self, account: str, token: str, *, merchant: str | None = None) -> None:
        """Replace the token of an account, at the service and in the vault."""
        self.service.merchants = {
            known: name for known, name in self.service.merchants.items() if name != (merchant or account)
        }
        self.service.merchants.pop(self.secrets[account], None)
        self.service.merchants[token] = merchant or account
        self.secrets[account] = token

    async def auth(self, account: str) -> Any:
        """Return the secret of an account, of which one task at a time may ask."""
        assert account not in self.asking
        self.asking.add(account)
        try:
            self.asked.append(account)
            await anyio.lowlevel.checkpoint()
            if self.before_auth is not None:
                await self.before_auth(account)
            return self.secrets[account]
        finally:
            self.asking.discard(account)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.answer_first is not None and (answer := await self.answer_first(token)) is not None:
            assert isinstance(answer, httpx.Response)
            return answer
        if request.url.path.endswith("/login"):
            return self.log_in(json.loads(await request.aread()))
        return await self.service.handle_async_request(request)

    def log_in(self, body: dict[str, str]) -> httpx.Response:
        account = body["email"].partition("@")[0]
        if self.passwords.get(account) != body["password"]:
            return httpx.Response(401, json={"success": False, "error": "invalid_credentials", "message": "no"})
        token = f"login.{account}.{len(self.service.merchants)}"
        self.service.merchants[token] = account
        return httpx.Response(
            200, json=samples.login(access_token=token, expires_in=3600, user={"id": 1, "email": body["email"]})
        )

    @property
    def open_pools(self) -> int:
        return sum(each.is_open for each in self.pools)

    @asynccontextmanager
    async def merchants(self, url: str | SQLStore, **options: Any) -> AsyncIterator[Merchants]:
        store = SQLStore(url) if isinstance(url, str) else url
        given = {"store": store, "auth": self.auth, "utcnow": utcnow, **options}
        async with Merchants(BASE_URL, **given) as merchants:
            yield merchants


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """Return a platform; at the end, no pool was closed under a request."""
    platform = Platform()

    def make_pool(base_url: str, *, aiohttp: bool) -> Pool:
        platform.pools.append(Pool(platform))
        return platform.pools[-1]

    monkeypatch.setattr(transport, "make_pool", make_pool)
    yield platform
    assert not any(each.was_cut for each in platform.pools)


def shops(count: int) -> list[str]:
    return [f"shop-{number}" for number in range(count)]


async def pay(client: AsyncClient, key: str = "order-1", **changes: Any) -> str:
    given = {"phone_number": NUMBER, "amount": 1000, "extra": {"order": key}, **changes}
    return (await client.collections.create(idempotency_key=key, **given)).transaction_id


async def look_up(client: AsyncClient) -> None:
    """Make a call that needs the account's token."""
    with pytest.raises(MobileMoneyError, match="TRANSACTION_NOT_FOUND"):
        await client.transactions.get(CALL)


# What is shared, and what is not


@pytest.mark.slow
async def test_each_request_carries_its_own_accounts_token(store_url: str, platform: Platform) -> None:
    """Whoever pays at the same time, and however often clients are closed: each payment is its own merchant's."""
    platform.open(*shops(12))
    async with platform.merchants(store_url, max_open=3) as merchants:

        async def shop(account: str) -> None:
            for number in range(2):
                transaction_id = await pay(await merchants.client(account), f"{account}-{number}", amount=1000 + number)
                record = await record_of(await merchants.client(account), f"{account}-{number}")
                assert record.transaction_id == transaction_id

        async with anyio.create_task_group() as tasks:
            for account in shops(12):
                tasks.start_soon(shop, account)
    made = platform.service.payments
    assert len(made) == 24
    assert all(each.owner is not None and each.owner.startswith(f"{each.merchant_id}-") for each in made)
    assert sorted(set(platform.asked)) == sorted(shops(12))
    assert platform.open_pools == 0


@pytest.mark.parametrize("way", [None, "aiohttp"])
async def test_a_surplus_answer_never_reaches_another_account(
    sqlite_file_url: str, anyio_backend_name: str, way: Any
) -> None:
    """It comes on a connection that no other account uses."""
    if anyio_backend_name == "trio" and way == "aiohttp":
        way = None  # aiohttp has no trio
    other = Response.json(samples.found(id="tx-7", external_id="the other merchant's", amount="99"))
    answer, tokens = surplus(other), list[str | None]()

    async def handler(request: Request) -> Response:
        tokens.append(request.header("authorization"))
        return await answer(request)

    async with (
        serve(handler) as server,
        Merchants(
            server.base_url, store=SQLStore(sqlite_file_url), auth=token_of, transport=way, max_open=2
        ) as merchants,
    ):
        for account in ("one", "two", "three"):
            found = await (await merchants.client(account)).transactions.get("tx-7")
            assert found.external_id != "the other merchant's"
        assert server.connections == 3
    assert tokens == [f"Bearer token.of.{account}" for account in ("one", "two", "three")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "http://pay.example"},
        {"store": "payments.db"},
        {"auth": "token"},
        {"max_open": 0},
        {"max_open": True},
        {"timeout": 0},
        {"deadline": -1},
        {"retry": 3},
        {"transport": "httpx"},
        {"transport": httpx.MockTransport(lambda request: httpx.Response(200))},  # it would carry all accounts' answers
        {"on_event": 7},
        {"on_event": anyio.sleep},
    ],
)
def test_wrong_arguments_are_refused_at_once(sqlite_file_url: str, wrong: dict[str, Any]) -> None:
    """Not at the first call of the first account."""
    given = {"base_url": BASE_URL, "store": SQLStore(sqlite_file_url), "auth": Platform().auth}
    with pytest.raises(InvalidRequest) as caught:
        Merchants(**{**given, **wrong})
    assert caught.value.argument in wrong


async def test_events_come_with_their_account(sqlite_file_url: str, platform: Platform) -> None:
    """So that a platform can count by merchant."""
    platform.open(*shops(2))
    seen: list[tuple[str, str]] = []
    async with platform.merchants(
        sqlite_file_url, on_event=lambda account, event: seen.append((account, type(event).__name__))
    ) as merchants:
        for account in shops(2):
            await look_up(await merchants.client(account))
    assert {account for account, _ in seen} == set(shops(2))
    assert ("shop-1", "AttemptEnded") in seen


# Opened when used, closed when idle


async def test_a_client_is_made_once_while_someone_uses_it(store_url: str, platform: Platform) -> None:
    """Tasks that ask at once get the same, and so does one that asks while another holds it."""
    platform.open("shop-0", "shop-1")
    clients: list[AsyncClient] = []
    async with platform.merchants(store_url, max_open=1) as merchants:

        async def ask() -> None:
            clients.append(await merchants.client("shop-0"))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask)
        assert len(set(map(id, clients))) == 1
        await look_up(await merchants.client("shop-1"))
        await look_up(clients[0])
        assert await merchants.client("shop-0") is clients[0]


async def test_the_one_that_was_used_least_recently_is_closed(sqlite_file_url: str, platform: Platform) -> None:
    """Its handle opens itself again, with the same token."""
    platform.open(*shops(3))
    async with platform.merchants(sqlite_file_url, max_open=2) as merchants:
        first, second, third = [await merchants.client(each) for each in shops(3)]
        for client in (first, second, first, third):
            await look_up(client)
        assert [each.is_open for each in platform.pools] == [True, False, True]
        await look_up(second)
        assert [each.is_open for each in platform.pools] == [False, False, True, True]
        assert await pay(second) == "t-000001"
        assert platform.asked == shops(3)
    assert platform.open_pools == 0


async def test_what_nobody_holds_is_forgotten(sqlite_file_url: str, platform: Platform) -> None:
    """A thousand accounts that came once cost no more than those that are open."""
    platform.open(*shops(30))
    async with platform.merchants(sqlite_file_url, max_open=5) as merchants:
        left = weakref.WeakSet[AsyncClient]()
        for account in shops(30):
            client = await merchants.client(account)
            left.add(client)
            await look_up(client)
        gc.collect()
        assert len(left) <= 6
        assert platform.open_pools == 5
        assert repr(merchants) == f"<Merchants {BASE_URL}: 5 open>"


async def test_connections_of_an_idle_account_are_closed_after_seconds(
    sqlite_file_url: str, platform: Platform
) -> None:
    """When another account is used: no pool would use them any more."""
    platform.open(*shops(3))
    async with platform.merchants(sqlite_file_url) as merchants:
        for account in shops(2):
            await look_up(await merchants.client(account))
        assert platform.open_pools == 2
        await anyio.sleep(6)
        await look_up(await merchants.client("shop-2"))
        assert [each.is_open for each in platform.pools] == [False, False, True]


async def test_one_call_does_not_close_the_connections_of_all_others(sqlite_file_url: str, platform: Platform) -> None:
    """It would wait for hundreds of them: the next calls go on with that."""
    platform.open(*shops(24))
    async with platform.merchants(sqlite_file_url) as merchants:
        for account in shops(24):
            await look_up(await merchants.client(account))
        await anyio.sleep(6)
        client = await merchants.client("shop-0")
        await look_up(client)
        assert platform.open_pools > 1
        await look_up(client)
        assert platform.open_pools == 1


async def test_a_client_may_be_used_as_any_other(sqlite_file_url: str, platform: Platform) -> None:
    """`async with`, `aclose` and `with_options` do no harm."""
    platform.open("shop-0")
    async with platform.merchants(sqlite_file_url) as merchants:
        async with await merchants.client("shop-0") as client:
            await look_up(client)
        await client.aclose()
        await look_up(client.with_options(timeout=5))
        await look_up(await merchants.client("shop-0"))
        assert len(platform.pools) == 1
    with pytest.raises(InvalidRequest, match="closed"):
        await client.transactions.get(CALL)
    with pytest.raises(InvalidRequest, match="merchants must be open"):
        await merchants.client("shop-0")
    await merchants.aclose()


@BOTH
async def test_a_client_is_not_closed_during_a_call(
    store_url: str, platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    """More than `max_open` are open then, of which one warning tells; `Pool` fails if a request loses its pool."""
    platform.open(*shops(4))
    platform.service.answer_after = 3.0
    async with platform.merchants(store_url, max_open=2) as merchants:

        async def shop(account: str, key: str) -> None:
            await pay(await merchants.client(account), key)

        for number in range(2):
            async with anyio.create_task_group() as tasks:
                for account in shops(4):
                    tasks.start_soon(shop, account, f"order-{number}")
                await anyio.sleep(2)
                assert platform.open_pools == 4
            assert platform.open_pools == 2
            await anyio.sleep(600)
    assert [each.message for each in caplog.records if "max_open" in each.message] == [
        "more than max_open=2 clients are open, since all of them are in use"
    ]
    assert len(platform.service.payments) == 8


@BOTH
@pytest.mark.parametrize("use", ["poller", "dispatcher", "consumer", "unwritten"])
async def test_what_goes_on_keeps_its_client_open(store_url: str, platform: Platform, use: str) -> None:
    """A poller and a dispatcher between two requests, a consumer between two changes, an answer not recorded yet."""
    platform.open(*shops(3))
    store = SQLStore(store_url)
    async with platform.merchants(store, max_open=1) as merchants:
        client = await merchants.client("shop-0")
        transaction_id = await pay(client)

        async def others() -> bool:
            for account in ("shop-1", "shop-2"):
                await look_up(await merchants.client(account))
            return platform.pools[0].is_open

        if use == "poller":
            async with client.poller() as poller:
                poller.track(transaction_id)
                assert await others()
        elif use == "dispatcher":
            async with client.dispatcher():
                assert await others()
        elif use == "consumer":
            changes = client.payments.changes(consumer="books", start="oldest")
            change = await anext(changes)
            assert await others()
            await change.done()
            await changes.aclose()
        else:
            parts = account_store(store.for_account("shop-0"))
            late = JournalEntry("order-1", 1, PaymentEvent.LOSE, source=Source.ANSWER, at=utcnow())
            parts.keep(late)
            assert await others()
            with suppress(StoreError):  # that payment has its answer
                await parts.save(late)
        assert not await others() or use in {"poller", "dispatcher"}
        await look_up(await merchants.client("shop-1"))
        assert not platform.pools[0].is_open


async def test_a_consumer_that_was_left_does_not_keep_its_client_open(store_url: str, platform: Platform) -> None:
    """Its lease is given back with the client, so that another process goes on at once."""
    platform.open(*shops(2))
    async with platform.merchants(store_url, max_open=1) as merchants:
        client = await merchants.client("shop-0")
        await pay(client)
        async for _ in client.payments.changes(consumer="books", start="oldest"):
            break
        gc.collect()
        await look_up(await merchants.client("shop-1"))
        assert not platform.pools[0].is_open
        assert not account_store(SQLStore(store_url)).consuming
        async with platform.merchants(store_url) as others:
            again = (await others.client("shop-0")).payments.changes(consumer="books")
            with anyio.fail_after(5):
                assert (await anext(again)).key == "order-1"
            await again.aclose()


async def test_a_client_that_is_used_while_it_is_closed_keeps_that_connection(
    sqlite_file_url: str, platform: Platform
) -> None:
    """Another account may be closing it while its own next call begins: the connection goes after that call."""
    platform.open("shop-0")
    async with platform.merchants(sqlite_file_url) as merchants, anyio.create_task_group() as tasks:
        client = await merchants.client("shop-0")
        platform.service.answer_after = 5.0
        tasks.start_soon(pay, client)
        await anyio.sleep(1)
        await ClientOwner(client).close_idle()
        assert platform.pools[0].is_open
        await anyio.sleep(5)
        assert [each.is_open for each in platform.pools] == [False]
        await look_up(client)
        assert [each.is_open for each in platform.pools] == [False, True]


async def test_a_consumer_of_a_client_that_rests_is_left_when_all_is_closed(store_url: str, platform: Platform) -> None:
    """A reader needs no request to the service, so it may begin while the client rests."""
    platform.open(*shops(2))
    async with platform.merchants(store_url, max_open=1) as merchants:
        client = await merchants.client("shop-0")
        await pay(client)
        await look_up(await merchants.client("shop-1"))
        assert not platform.pools[0].is_open
        changes = client.payments.changes(consumer="books", start="oldest")
        await (await anext(changes)).done()
    async with platform.merchants(store_url) as others:
        client = await others.client("shop-0")
        await pay(client, "order-2", amount=2000)
        began = anyio.current_time()
        again = client.payments.changes(consumer="books")
        assert (await anext(again)).key is not None
        assert anyio.current_time() < began + 5
        await again.aclose()


@BOTH
async def test_payments_in_flight_when_all_is_closed_are_recorded(store_url: str) -> None:
    """Each ends as unknown, in the store too; nothing is lost, and nothing is called refused."""

    async def handler(request: Request) -> NeverAnswer | Response:
        return NeverAnswer()

    failures: list[MobileMoneyError] = []
    store = SQLStore(store_url)
    async with serve(handler) as server:
        async with anyio.create_task_group() as tasks:
            async with Merchants(server.base_url, store=store, auth=token_of, utcnow=utcnow) as merchants:

                async def shop(account: str) -> None:
                    client = await merchants.client(account)
                    try:
                        await pay(client)
                    except MobileMoneyError as exc:
                        failures.append(exc)

                for account in shops(5):
                    tasks.start_soon(shop, account)
                while len(server.requests) < 5:
                    await anyio.sleep(0.1)
        assert [type(each) for each in failures] == [OutcomeUnknown] * 5
        async with Merchants(server.base_url, store=store, auth=token_of, utcnow=utcnow) as merchants:
            for account in shops(5):
                record = await record_of(await merchants.client(account), "order-1")
                assert record.state is PaymentState.UNKNOWN


# Secrets


@on_asyncio
async def test_a_cancelled_task_of_the_vault_fails_the_call(sqlite_file_url: str, platform: Platform) -> None:
    """Nobody cancelled the call itself: a cancellation would end its task, or its dispatcher, without a word."""
    platform.open("shop-0")

    async def vault(_: str) -> None:
        refresh = asyncio.ensure_future(anyio.sleep(3600))
        asyncio.get_running_loop().call_later(1, refresh.cancel)
        await refresh

    platform.before_auth = vault
    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        with pytest.raises(TransportError, match=r"^auth of account 'shop-0' failed: CancelledError$") as caught:
            await pay(client)
        assert caught.value.outcome == "not_sent"
        await anyio.sleep(2)
        with anyio.move_on_after(0.5) as scope:
            await pay(client)
        assert scope.cancelled_caught


@pytest.mark.slow
async def test_an_error_of_the_vault_fails_the_call_and_the_next_one_asks_again(
    store_url: str, platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the account and the kind of error, carries it as its cause, and quotes nothing of it."""
    caplog.set_level(logging.DEBUG)
    platform.open(*shops(2))
    is_away = True

    async def vault(account: str) -> None:
        if is_away and account == "shop-0":
            raise LookupError("no lease for hunter2-the-secret")

    platform.before_auth = vault
    async with platform.merchants(store_url) as merchants:
        client = await merchants.client("shop-0")
        with pytest.raises(TransportError, match=r"^auth of account 'shop-0' failed: LookupError$") as caught:
            await pay(client)
        assert caught.value.outcome == "not_sent"
        assert isinstance(caught.value.__cause__, LookupError)
        async with client.poller() as poller:
            poller.track("t-000009")
            await anyio.sleep(20)
        await pay(await merchants.client("shop-1"))
        is_away = False
        await anyio.sleep(2)
        await pay(client)
    assert [each.merchant_id for each in platform.service.payments] == ["shop-1", "shop-0"]
    assert "hunter2" not in caplog.text


async def test_the_vault_is_asked_once_by_all_calls_of_an_account(sqlite_file_url: str, platform: Platform) -> None:
    """Also if the task that asks is cancelled: then the next one asks. A failure is shared by those who waited."""
    platform.open("shop-0")
    started = anyio.Event()

    async def slow(account: str) -> None:
        started.set()
        await anyio.sleep(1)
        if len(platform.asked) == 2:
            raise LookupError("once")

    platform.before_auth = slow
    async with platform.merchants(sqlite_file_url) as merchants, anyio.create_task_group() as tasks:
        client = await merchants.client("shop-0")
        with anyio.CancelScope() as first:
            async with anyio.create_task_group() as inner:
                inner.start_soon(look_up, client)
                await started.wait()
                for _ in range(6):
                    tasks.start_soon(look_up, client)
                first.cancel()
        await anyio.sleep(60)
        assert len(platform.asked) == 3


@pytest.mark.costly("runs lines of merchants/account_auth.py that no quick test runs")
@pytest.mark.parametrize("secret", [7, None, "two words", b"token"])
async def test_a_secret_that_is_none_fails_the_call_and_no_poller(
    sqlite_file_url: str, platform: Platform, secret: Any
) -> None:
    """By an error that names the account, not the secret. The pollers go on with one that is."""
    platform.open("shop-0")
    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        number = await pay(client)
        platform.replace("shop-0", "another")
        platform.secrets["shop-0"] = secret
        async with client.poller() as poller:
            poller.track(number)
            await anyio.sleep(30)
            with pytest.raises(TransportError, match=r"^auth of account 'shop-0' gave no secret: ") as caught:
                await pay(client, "order-2")
            assert caught.value.outcome == "not_sent"
            assert "two words" not in str(caught.value)
            assert isinstance(caught.value.__cause__, InvalidRequest)
            platform.secrets["shop-0"] = "another"
            platform.service.finish_after = 0.0
            with anyio.fail_after(120):
                assert (await poller.wait(number)).is_final


@pytest.mark.parametrize("kind", ["text", "Secret"])
async def test_a_token_that_was_replaced_is_picked_up(store_url: str, platform: Platform, kind: str) -> None:
    """Within the call that finds the old one refused; a payment is sent once, after the new one is known to be ours."""
    platform.open("shop-0")
    async with platform.merchants(store_url) as merchants:
        client = await merchants.client("shop-0")
        await pay(client)
        platform.replace("shop-0", "second.token")
        if kind == "Secret":
            platform.secrets["shop-0"] = Secret("second.token")
        lookups = platform.service.lookups
        await anyio.sleep(60)
        await pay(client, "order-2", amount=2000)
        assert platform.service.lookups == lookups + 1
        platform.replace("shop-0", "third.token")
        await anyio.sleep(60)
        await look_up(client)
        await pay(client, "order-3", amount=3000)
    assert len(platform.asked) == 3
    assert [each.owner for each in platform.service.payments] == ["order-1", "order-2", "order-3"]


async def test_another_merchants_secret_pays_nothing(store_url: str, platform: Platform) -> None:
    """A vault that mixes merchants up, when a token is replaced: the payment is not sent with the other's."""
    platform.open("shop-0", "shop-1")
    async with platform.merchants(store_url) as merchants:
        client = await merchants.client("shop-0")
        await pay(client)
        platform.replace("shop-0", "strange.token", merchant="shop-1")
        await anyio.sleep(600)
        for _ in range(2):
            with pytest.raises(StoreError, match="another merchant") as caught:
                await pay(client, "order-2", amount=2000)
            assert caught.value.outcome == "not_sent"
        # The service still accepts what the vault gave, so that nothing but this shows the mistake.
        platform.service.merchants["right.token"] = "shop-0"
        platform.secrets["shop-0"] = "right.token"
        await anyio.sleep(60)
        await pay(client, "order-2", amount=2000)
    assert [each.merchant_id for each in platform.service.payments] == ["shop-0", "shop-0"]


async def test_credentials_that_made_no_payment_are_not_the_merchants(sqlite_file_url: str, platform: Platform) -> None:
    """A vault mixes two merchants up before an account's first payment, and again later: the other one pays nothing."""
    platform.open("shop-0", "shop-1")
    right, platform.secrets["shop-0"] = platform.secrets["shop-0"], platform.secrets["shop-1"]

    async def refuse(token: str) -> httpx.Response | None:
        if token == right:
            return None
        platform.secrets["shop-0"] = right
        return httpx.Response(401, json={"success": False, "error": "invalid_token", "message": "no"})

    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        await client.payments.reconcile()
        platform.answer_first = refuse
        await anyio.sleep(11)
        await pay(client)
        await anyio.sleep(600)
        await pay(client, "order-2", amount=2000)
    platform.secrets["shop-0"], platform.answer_first = platform.secrets["shop-1"], None
    async with platform.merchants(sqlite_file_url) as merchants:
        with pytest.raises(StoreError) as caught:
            await pay(await merchants.client("shop-0"), "order-3", amount=3000)
        assert caught.value.outcome == "not_sent"
    assert [each.merchant_id for each in platform.service.payments] == ["shop-0", "shop-0"]


@pytest.mark.costly("no quick test has a poller beside a vault that gives another merchant's secret")
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    "secret", ["token.of.shop-1", pytest.param(LoginAuth("shop-1@example.com", PASSWORD), marks=pytest.mark.slow)]
)
async def test_with_another_merchants_secret_nothing_is_asked(
    sqlite_file_url: str, platform: Platform, caplog: pytest.LogCaptureFixture, secret: Any
) -> None:
    """One lookup shows it, and once a minute the log says so; a poller goes on once the vault answers otherwise."""
    platform.open("shop-0", "shop-1")
    platform.passwords["shop-1"] = PASSWORD
    asked: list[str] = []

    async def note(token: str) -> None:
        asked.append(token)

    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        number = await pay(client)
        async with client.poller(resume=True) as poller:
            await anyio.sleep(130)  # its payment is older than `grace` by then
            del platform.service.merchants["token.of.shop-0"]
            platform.secrets["shop-0"], platform.answer_first = secret, note
            caplog.clear()
            for _ in range(2):
                await anyio.sleep(60)
                for call in (pay(client, "order-2"), client.transactions.get(number), client.payments.reconcile()):
                    with pytest.raises(StoreError, match="another merchant"):
                        await call
            assert [each for each in asked if each not in {"", "token.of.shop-0"}] == asked[-1:]
            assert 2 <= caplog.text.count("nothing is concluded with these credentials") <= 3
            platform.replace("shop-0", "right.token")
            platform.service.finish_after = 0.0
            with anyio.fail_after(600):
                assert (await poller.wait(number)).is_final


async def test_with_a_secret_that_could_not_be_checked_nothing_is_asked(
    sqlite_file_url: str, platform: Platform
) -> None:
    """It may be another merchant's; once that is known, the vault is asked again."""
    platform.open("shop-0", "shop-1")
    async with platform.merchants(sqlite_file_url) as merchants:
        number = await pay(await merchants.client("shop-0"))
    await anyio.sleep(200)
    right, platform.secrets["shop-0"] = platform.secrets["shop-0"], platform.secrets["shop-1"]
    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        platform.service.answer_lookup = lambda request: error(503, None)
        for call in (pay(client, "order-2", amount=2000), client.transactions.get(number)):
            with pytest.raises(StoreError, match="could not be checked"):
                await call
        platform.service.answer_lookup = lambda request: None
        platform.secrets["shop-0"] = right
        await anyio.sleep(10)
        with pytest.raises(StoreError, match="another merchant"):
            await client.transactions.get(number)
        assert (await client.transactions.get(number)).id == number
    assert [each.owner for each in platform.service.payments] == ["order-1"]


async def test_a_merchant_whose_transaction_was_not_found_once_pays_again(
    sqlite_file_url: str, platform: Platform
) -> None:
    """The service was wrong about an old one: within an hour its secret, which the vault has replaced, is accepted."""
    platform.open("shop-0")
    async with platform.merchants(sqlite_file_url) as merchants:
        await pay(await merchants.client("shop-0"))
    await anyio.sleep(1000)
    platform.replace("shop-0", "second.token")
    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        platform.service.answer_lookup = lambda request: error(404, "TRANSACTION_NOT_FOUND")
        for _ in range(30):
            with pytest.raises(StoreError):
                await pay(client, "order-2", amount=2000)
            await anyio.sleep(100)
        assert platform.service.lookups == 1
        platform.service.answer_lookup = lambda request: None
        await anyio.sleep(700)
        await pay(client, "order-2", amount=2000)


async def test_a_secret_is_checked_again_where_lookups_lag(sqlite_file_url: str, platform: Platform) -> None:
    """The one payment of an account may not be found yet: another host's token of the merchant is refused till then."""
    platform.open("shop-0")
    async with platform.merchants(sqlite_file_url) as merchants:
        await pay(await merchants.client("shop-0"))
    platform.secrets["shop-0"] = "second.token"
    platform.service.merchants["second.token"] = "shop-0"
    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        platform.service.answer_lookup = lambda request: error(404, "TRANSACTION_NOT_FOUND")
        for _ in range(2):
            with pytest.raises(StoreError, match="not yet") as caught:
                await pay(client, "order-2", amount=2000)
            assert caught.value.outcome == "not_sent"
        assert platform.service.lookups == 1
        platform.service.answer_lookup = lambda request: None
        await anyio.sleep(10)
        await pay(client, "order-2", amount=2000)


async def test_a_token_that_stays_refused_is_not_asked_for_all_the_time(
    sqlite_file_url: str, platform: Platform
) -> None:
    """The vault is asked every 10 s at most, whatever the number of calls, and each call says what is wrong."""
    platform.secrets["shop-0"] = "wrong.token"
    async with platform.merchants(sqlite_file_url) as merchants:
        client = await merchants.client("shop-0")
        for _ in range(30):
            with pytest.raises(InvalidToken):
                await client.transactions.get(CALL)
            await anyio.sleep(1)
        assert 3 <= len(platform.asked) <= 4


@pytest.mark.costly("runs lines of merchants/account_auth.py that no quick test runs")
async def test_a_password_that_was_replaced_is_picked_up(store_url: str, platform: Platform) -> None:
    """Within the pause after the refused login too, which is the old password's."""
    platform.secrets["shop-0"] = LoginAuth("shop-0@example.com", PASSWORD)
    platform.passwords["shop-0"] = PASSWORD
    async with platform.merchants(store_url) as merchants:
        client = await merchants.client("shop-0")
        await pay(client)
        platform.passwords["shop-0"] = "another-" + PASSWORD
        platform.service.merchants.clear()
        with pytest.raises(InvalidCredentials):
            await pay(client, "order-2", amount=2000)
        platform.secrets["shop-0"] = LoginAuth("shop-0@example.com", "another-" + PASSWORD)
        await anyio.sleep(11)
        await pay(client, "order-2", amount=2000)
    assert [each.merchant_id for each in platform.service.payments] == ["shop-0", "shop-0"]


# Stores


async def test_accounts_have_their_stores_by_a_function(tmp_path: Any, platform: Platform) -> None:
    """It is called once at a time for an account; its errors pass; another account does not wait for it."""
    platform.open(*shops(4))
    stores = [SQLStore(f"sqlite:///{tmp_path}/{number}.db") for number in range(2)]
    asked: list[str] = []

    async def store_of(account: str) -> SQLStore:
        asked.append(account)
        if account == "shop-3":
            raise LookupError(account)
        await anyio.sleep(5 if account == "shop-0" else 0)
        return stores[int(account[-1]) % 2]

    given: dict[str, Any] = {"store": store_of}
    async with platform.merchants(stores[0], **given) as merchants, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(merchants.client, "shop-0")
        await anyio.sleep(1)
        await pay(await merchants.client("shop-1"))
        assert anyio.current_time() < 2
        with pytest.raises(LookupError):
            await merchants.client("shop-3")
        await pay(await merchants.client("shop-0"))
        await pay(await merchants.client("shop-2"))
        assert sorted(asked) == shops(4)
        for number, names in enumerate((["shop-0", "shop-2"], ["shop-1"])):
            for account in shops(3):
                parts = account_store(stores[number].for_account(account))
                newest = await parts.read(lambda journal: journal.find("order-1", lock=False))
                assert (newest is not None) == (account in names)


async def test_a_store_function_that_returns_none_is_refused(sqlite_file_url: str, platform: Platform) -> None:
    """By an error of the argument `store`."""

    async def store_of(account: str) -> Any:
        await anyio.lowlevel.checkpoint()

    given: dict[str, Any] = {"store": store_of}
    async with platform.merchants(sqlite_file_url, **given) as merchants:
        with pytest.raises(InvalidRequest, match="store must be"):
            await merchants.client("shop-0")


async def test_a_cancelled_task_of_the_store_function_is_an_error(sqlite_file_url: str, platform: Platform) -> None:
    """Nobody cancelled the task that asks for the client."""

    async def store_of(account: str) -> SQLStore:
        raise asyncio.CancelledError

    async with platform.merchants(sqlite_file_url, store=store_of) as merchants:
        with pytest.raises(CancelledError):
            await merchants.client("shop-0")


# One that misbehaves


@attrs.define(eq=False)
class Loud:
    """An account that misbehaves in one way."""

    trouble: str
    token: str = "token.of.loud"

    async def vault(self, account: str) -> None:
        if account == "loud" and self.trouble == "slow vault":
            await anyio.sleep_forever()

    async def answer(self, token: str) -> httpx.Response | None:
        if token == self.token and self.trouble == "silent service":
            await anyio.sleep_forever()
        if token == self.token and self.trouble == "dead host":
            await anyio.sleep(25)
            raise httpx.ConnectTimeout("no route")
        return None

    async def shout(self, merchants: Merchants) -> None:
        client = await merchants.client("loud")
        while True:
            with pytest.raises((InvalidToken, TransportError)):
                await client.transactions.get(CALL)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("trouble", ["wrong token", "slow vault", "dead host", "silent service"])
async def test_an_account_that_misbehaves_costs_the_others_nothing(
    store_url: str, platform: Platform, trouble: str
) -> None:
    """Sixty quiet accounts get their answers at once, in no time of the virtual clock."""
    loud, took = Loud(trouble), list[float]()
    platform.open(*shops(60), "loud")
    if trouble == "wrong token":
        platform.secrets["loud"] = "wrong.token"
    platform.before_auth, platform.answer_first = loud.vault, loud.answer
    async with platform.merchants(store_url, max_open=15) as merchants, anyio.create_task_group() as tasks:

        async def ask(account: str) -> None:
            began = anyio.current_time()
            await look_up(await merchants.client(account))
            took.append(anyio.current_time() - began)

        for _ in range(15):
            tasks.start_soon(loud.shout, merchants)
        await anyio.sleep(30)
        async with anyio.create_task_group() as asking:
            for account in shops(60):
                asking.start_soon(ask, account)
        tasks.cancel_scope.cancel()
    assert len(took) == 60
    assert max(took) < 1
