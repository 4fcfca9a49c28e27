"""The worker: which host serves which account, and what it does there."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AsyncClient,
    InvalidRequest,
    Merchants,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.client import ClientOwner
from mobilemoney_async.database import connections as connections_module
from mobilemoney_async.database import engine as engine_module
from mobilemoney_async.database.connections import THREADS, Connections
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.leases import TaskLease
from mobilemoney_async.database.schema import METADATA, account_claims, accounts, hosts, leases, payments
from mobilemoney_async.merchants.claims import TTL, Claim, Claims
from mobilemoney_async.merchants.worker import save_failures
from mobilemoney_async.payments.records.due import DueWork
from mobilemoney_async.payments.store import account_store
from tests.contract import samples
from tests.payments.hosts import NUMBER, Platform, enqueue, pay, shops, utcnow
from tests.payments.service import on_asyncio
from tests.payments.steps import dispatch, record_of
from tests.support.databases import execute, sqlite_url
from tests.support.fakes import NOON
from tests.support.second_service import BASE_URL, dropped
from tests.support.server import Request, Response, serve


class Away:
    """Lets the stores of some hosts refuse to write."""

    def __init__(self, platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts, plain = set[str](), Database._run

        async def run(database: Database, work: Any) -> Any:
            if work.writes and any(account_store(platform.stores[host]).database is database for host in self.hosts):
                raise StoreError("the store failed: away", outcome="not_sent")
            return await plain(database, work)

        monkeypatch.setattr(Database, "_run", run)


# What a worker does


@pytest.mark.costly("runs lines of merchants/worker.py, payments/outbox/dispatcher.py that no quick test runs")
@on_asyncio
async def test_a_worker_sends_follows_and_reconciles(platform: Platform) -> None:
    """In every account with something to do, which nobody has to name; and it sends nothing once all is done."""

    def lose(request: httpx.Request, payment: object) -> None:
        raise dropped(request)

    async with platform.merchants("shop") as merchants:
        await pay(merchants, ["pending"])
        await enqueue(merchants, ["queued"])
        platform.service.answer_create = lose
        with pytest.raises(OutcomeUnknown):
            await pay(merchants, ["unknown"])
        platform.service.answer_create = lambda request, payment: None
        async with platform.host("one") as worker:
            await anyio.sleep(4)
            assert worker.dispatcher("queued") is not None
            await anyio.sleep(4)
            assert worker.accounts == {"pending", "queued", "unknown"}
            assert repr(worker) == "<Worker: 3 accounts>"
            platform.service.finish_after = 10.0
            await anyio.sleep(50)
            for account in ("pending", "queued", "unknown"):
                (record,) = await (await merchants.client(account)).payments.list()
                assert record.state is PaymentState.FINAL, record
            assert not worker.accounts
            asked = len(platform.asked)
            await anyio.sleep(20)
            assert len(platform.asked) == asked
            await enqueue(merchants, ["queued"], "queued-2", amount=3000)
            await anyio.sleep(8)
            assert worker.accounts == {"queued"}
    assert Counter(each.owner for each in platform.service.payments).most_common(1)[0][1] == 1
    assert len(platform.service.payments) == 4


@pytest.mark.costly("runs lines of merchants/worker.py that no quick test runs")
@on_asyncio
async def test_the_answer_to_the_last_payment_of_a_queue_may_take_long(platform: Platform) -> None:
    """Nothing else is to be done in the account, but its host waits: given up, it would have an unknown result."""

    async def answer_late(account: str) -> None:
        await anyio.sleep(28)

    platform.answer_first = answer_late
    async with platform.merchants("shop") as merchants:
        await enqueue(merchants, ["queued"])
        async with platform.host("one"):
            await anyio.sleep(35)
        record = await record_of(await merchants.client("queued"), "queued-1")
    assert record.state is PaymentState.ACKNOWLEDGED
    assert "unknown" not in {each.what for each in record.history}


@pytest.mark.costly("runs lines of merchants/worker.py that no quick test runs")
async def test_a_cancelled_worker_gives_its_accounts_back(platform: Platform) -> None:
    """Cancellation of the program ends the parts first, and then the claims."""
    async with platform.merchants("shop") as merchants:
        await pay(merchants, shops(2))
        with anyio.move_on_after(6) as scope:
            async with platform.host("one") as worker:
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert not worker.accounts
        claims = sa.select(account_claims.c.account, account_claims.c.host)
        assert sorted(execute(platform.url, claims)) == [(each, None) for each in shops(2)]


async def test_merchants_that_are_closed_end_their_worker_first(platform: Platform) -> None:
    """Inside its block, too: the accounts are given back, and nothing is asked for any more."""
    async with platform.merchants("shop") as merchants, platform.merchants("one") as working:
        await pay(merchants, shops(2))
        async with working.worker() as worker:
            await anyio.sleep(6)
            assert len(worker.accounts) == 2
            await working.aclose()
            assert not worker.accounts
            asked = len(platform.asked)
            await anyio.sleep(60)
            assert len(platform.asked) == asked
        claims = sa.select(account_claims.c.account, account_claims.c.host)
        assert sorted(execute(platform.url, claims)) == [(each, None) for each in shops(2)]
        assert not execute(platform.url, sa.select(hosts))
        with pytest.raises(InvalidRequest, match="merchants must be open"):
            async with working.worker():
                raise AssertionError


async def test_merchants_that_are_closed_while_their_worker_reports_end_no_block(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends, and the block goes on: a shutdown of a server is no failure of it."""
    write, closed = Database.write, list[bool]()

    async def auth(account: str) -> str:
        raise OSError

    async def close() -> None:
        await working.aclose()
        closed.append(True)

    async def write_and_close(self: Database, work: Any, **options: Any) -> Any:
        result = await write(self, work, **options)
        if getattr(work, "func", None) is save_failures:
            tasks.start_soon(close)
            await anyio.sleep(5)
        return result

    monkeypatch.setattr(Database, "write", write_and_close)
    async with anyio.create_task_group() as tasks:
        async with platform.merchants("one", auth=auth, on_event=lambda account, event: None) as working:
            client = await working.client("shop")
            with pytest.raises(MobileMoneyError):
                await client.transactions.page()
            async with working.worker():
                await anyio.sleep(10)
                assert closed


async def test_an_error_of_the_block_leaves_it_as_it_is(platform: Platform) -> None:
    """Not inside a group of errors."""
    with pytest.raises(KeyError):
        async with platform.host("one"):
            raise KeyError("mine")


@pytest.mark.parametrize(
    ("serves", "same", "others"),
    [
        ("https://a.example/v1", "https://A.example:443/v1/", ["https://a.example/v2", "https://b.example/v1"]),
        (
            "https://a.example:8443/v1",
            "https://a.example:8443/v1",
            ["https://a.example/v1", "https://a.example:9443/v1"],
        ),
        ("http://127.0.0.1:8000/v1", "http://localhost:9000/v1", ["https://localhost/v1", "https://a.example/v1"]),
    ],
)
@pytest.mark.pairs
async def test_a_worker_for_another_service_is_refused_before_it_takes_anything(
    store_url: str, serves: str, same: str, others: Iterable[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one for the sandbox on production's store, whatever is queued; those for the service go on."""
    platform = Platform(store_url)
    async with platform.merchants("shop", base_url=serves) as shop, shop.worker():
        pass
    async with platform.merchants("shop", base_url=serves) as shop:
        await enqueue(shop, shops(1))
    for base_url in others:
        async with platform.merchants("other", base_url=base_url) as other:
            with pytest.raises(StoreError, match="end all workers and set mobilemoney_schema"):
                async with other.worker():
                    raise AssertionError
    assert len(caplog.messages) == 2
    assert execute(store_url, sa.select(hosts)) == execute(store_url, sa.select(account_claims)) == []
    assert platform.asked == []
    async with platform.merchants("one", base_url=same) as merchants, merchants.worker() as worker:
        while not worker.accounts:
            await anyio.sleep(1)


@pytest.mark.costly("runs lines of polling/requests.py, merchants/worker.py that no quick test runs")
@on_asyncio
async def test_a_host_whose_store_is_away_serves_nothing_until_it_is_back(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another host takes over within ten seconds; the first one goes on with what is its own by then."""
    accounts, outage = shops(4), Away(platform, monkeypatch)
    async with platform.merchants("shop") as merchants, platform.host("one") as one:
        await pay(merchants, accounts)
        await anyio.sleep(6)
        assert one.accounts == set(accounts)
        async with platform.host("two") as two:
            outage.hosts.add("one")
            await anyio.sleep(10)
            assert two.accounts == set(accounts)
            outage.hosts.clear()
            await anyio.sleep(20)
            assert all(platform.hosts_of(each)[:2] == ["one", "two"] for each in accounts)
            # Two of them have come back, and no account was asked for by both in turns.
            assert sorted(len(platform.hosts_of(each)) for each in accounts) == [2, 2, 3, 3]
            assert len(one.accounts) == len(two.accounts) == 2
            assert not one.accounts & two.accounts
    assert "the worker waits for the store" in caplog.text
    assert "this host was away" in caplog.text  # of all at once, or in turn where rows are locked


@pytest.mark.slow
@on_asyncio
async def test_a_host_alone_names_no_other_one(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After an outage of its store, in which all of its claims end."""
    outage = Away(platform, monkeypatch)
    async with platform.merchants("shop") as merchants, platform.host("one") as worker:
        await enqueue(merchants, ["shop"], not_before=timedelta(seconds=30))
        await anyio.sleep(5)
        assert worker.accounts == {"shop"}
        outage.hosts.add("one")
        await anyio.sleep(20)
        outage.hosts.clear()
        await anyio.sleep(40)
        assert len(platform.service.payments) == 1
    assert "the account's claim has ended" in caplog.text
    assert "other host" not in caplog.text


@pytest.mark.slow
@on_asyncio
@pytest.mark.parametrize("pause_after", [2, None])
async def test_its_dispatchers_pause_after_as_many_equal_ends(platform: Platform, pause_after: int | None) -> None:
    """A platform whose shops take orders of strangers says None, as a shop of its own does."""

    async def refuse(account: str) -> httpx.Response:
        return httpx.Response(422, json={"status": "error", "error_code": "INVALID_PHONE_NUMBER", "message": "no"})

    async with platform.merchants("shop") as merchants:
        for number in range(3):
            await enqueue(merchants, ["shop-1"], f"order-{number}", amount=1000 + number)
        platform.answer_first = refuse
        with pytest.raises(InvalidRequest, match=r"pause_after must be .*, not 0"):
            merchants.worker(pause_after=0)
        async with merchants.worker(pause_after=pause_after):
            await anyio.sleep(20)
        (status,) = [each async for each in merchants.overview(everything=True)]
    assert (status.queued, status.paused is None) == ((1, False) if pause_after else (0, True))


@pytest.mark.costly("runs lines of payments/outbox/dispatcher.py that no quick test runs")
@on_asyncio
async def test_one_loud_account_does_not_keep_others_waiting(platform: Platform) -> None:
    """Its service is down, and dozens of its payments are queued and pending."""

    async def answer(account: str) -> httpx.Response | None:
        return httpx.Response(503, text="down") if account == "loud" else None

    async with platform.merchants("shop") as merchants:
        await pay(merchants, ["loud"])
        for number in range(60):
            await enqueue(merchants, ["loud"], f"many-{number}", amount=5000 + number)
        platform.answer_first = answer
        async with platform.host("one"):
            await anyio.sleep(10)
            began = anyio.current_time()
            await enqueue(merchants, shops(5))
            await anyio.sleep(8)
    made = {each.merchant_id for each in platform.service.payments}
    assert made == {"loud", *shops(5)}
    assert all(at < began + 8 for at, _, account in platform.asked if account in shops(5))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["auth", "store"])
@on_asyncio
async def test_accounts_whose_vault_hangs_do_not_keep_others_from_being_started(platform: Platform, what: str) -> None:
    """A few are started at once: one that waits for its secret, or for its store, is not among them."""
    stores = SQLStore(platform.url, grace=5)

    async def auth(account: str) -> str:
        if account != "good" and what == "auth":
            await anyio.sleep_forever()
        return f"token.of.{account}"

    async def store(account: str) -> SQLStore:
        if account != "good":
            await anyio.sleep_forever()
        return stores

    options: dict[str, Any] = {"auth": auth} | ({"store": store} if what == "store" else {})
    platform.service.merchants["token.of.good"] = "good"
    async with platform.merchants("shop") as merchants, platform.merchants("one", **options) as working:
        await pay(merchants, shops(15))
        async with working.worker(store=stores if what == "store" else None) as worker:
            await anyio.sleep(6)
            assert len(worker.accounts) == 15
            await enqueue(merchants, ["good"])
            await anyio.sleep(8)
    assert "good" in {each.merchant_id for each in platform.service.payments}


async def test_a_dispatcher_goes_on_whose_lease_could_not_be_given_back(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one of the same claim has it at once, rather than a minute later."""

    async def give_back(lease: TaskLease) -> None:
        raise StoreError("the store failed: away", outcome="not_sent")

    monkeypatch.setattr(TaskLease, "give_back", give_back)
    async with platform.merchants() as merchants:
        client = ClientOwner(await merchants.client("shop")).claimed(Claim("shop", "host", math.inf, DueWork.DISPATCH))
        for number in (1, 2):
            await enqueue(merchants, ["shop"], f"queued-{number}", amount=1000 * number)
            await dispatch(client, 5)
            assert len(platform.service.payments) == number


async def test_a_queued_payment_is_not_put_off_because_its_claim_ended(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with it: the next host sends it at once."""
    claim, checks = Claim("shop", "host", math.inf, DueWork.DISPATCH), 0
    plain = Claim.require

    def require(asked: Claim) -> None:
        nonlocal checks
        checks += 1
        if checks == 2:  # the first one is the dispatcher's own
            asked.until = anyio.current_time()
        plain(asked)

    async with platform.merchants() as merchants:
        await pay(merchants, ["shop"])
        await enqueue(merchants, ["shop"])
        client = await merchants.client("shop")
        monkeypatch.setattr(Claim, "require", require)
        async with ClientOwner(client).claimed(claim).dispatcher():
            await anyio.sleep(10)
        assert checks > 2
        record = await record_of(client, "queued-1")
        assert (record.state, record.not_before) == (PaymentState.QUEUED, None)
        async with ClientOwner(client).claimed(Claim("shop", "other", math.inf, DueWork.DISPATCH)).dispatcher():
            await anyio.sleep(3)
        assert len(platform.service.payments) == 2


@pytest.mark.costly("runs lines of merchants/worker.py, payments/outbox/dispatcher.py that no quick test runs")
@pytest.mark.parametrize(
    ("owner", "error", "said"),
    [
        (Merchants, RuntimeError("a bug"), "account 'shop-00' cannot be served"),
        (AsyncClient, StoreError("full", outcome="not_sent"), "the worker goes on later: full"),
        (AsyncClient, RuntimeError("a bug"), "'shop-00': DISPATCH fails, and is tried again after 5 s: a bug"),
    ],
)
@on_asyncio
async def test_what_fails_in_one_account_is_tried_again(
    platform: Platform, caplog: pytest.LogCaptureFixture, owner: type, error: Exception, said: str
) -> None:
    """Its claim stays, so that no other host tries at once; the other accounts go on, and the log names the account."""
    method, left = "client" if owner is Merchants else "dispatcher", [error]
    plain = getattr(owner, method)

    def fail_first(self: Any, *arguments: Any, **options: Any) -> Any:
        account = arguments[0] if arguments else self._store.account_store.account
        if left and account == "shop-00" and self is not merchants:
            raise left.pop()
        return plain(self, *arguments, **options)

    async with platform.merchants("shop") as merchants, platform.host("one"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, method, fail_first)
            await enqueue(merchants, shops(2))
            await anyio.sleep(5)
        assert {each.merchant_id for each in platform.service.payments} == {"shop-01"}
        await anyio.sleep(60 if owner is Merchants else 20)
        assert {each.merchant_id for each in platform.service.payments} == set(shops(2))
    assert said in caplog.text


@pytest.mark.costly("runs lines of merchants/worker.py, merchants/claims.py that no quick test runs")
@on_asyncio
async def test_a_pause_outlasts_an_empty_queue(platform: Platform) -> None:
    """What is queued next waits for `resume`, too."""
    async with platform.merchants("shop") as merchants, platform.host("one") as worker:
        await enqueue(merchants, ["shop"], not_before=timedelta(seconds=30))
        with anyio.fail_after(60):
            while (dispatcher := worker.dispatcher("shop")) is None:
                await anyio.sleep(0.1)
        dispatcher.pause("the float is empty")
        client = await merchants.client("shop")
        await client.payments.cancel("queued-1", note="not needed")
        await anyio.sleep(5)
        assert worker.dispatcher("shop") is None
        await enqueue(merchants, ["shop"], "queued-2")
        await anyio.sleep(20)
        assert not platform.service.payments
        dispatcher = worker.dispatcher("shop")
        assert dispatcher is not None
        assert dispatcher.stats.paused == "the float is empty"
        dispatcher.resume()
        await anyio.sleep(5)
        assert len(platform.service.payments) == 1


@pytest.mark.slow
@on_asyncio
async def test_clients_of_a_worker_do_not_count_as_open(platform: Platform, caplog: pytest.LogCaptureFixture) -> None:
    """`max_open` is for those of the program's own calls."""
    async with platform.merchants("one", max_open=1) as merchants:
        await pay(merchants, shops(3))
        async with merchants.worker() as worker:
            await anyio.sleep(6)
            assert len(worker.accounts) == 3
            await pay(merchants, ["other"])
            assert repr(merchants) == f"<Merchants {BASE_URL}: 1 open>"
    assert "max_open" not in caplog.text


@pytest.mark.slow
@on_asyncio
async def test_a_worker_follows_for_other_processes(platform: Platform) -> None:
    """A program that waits for a payment gets its result from the worker's requests."""
    async with platform.merchants("shop") as merchants, platform.host("one"):
        await pay(merchants, ["shop"])
        await anyio.sleep(6)
        platform.asked.clear()
        client = await merchants.client("shop")
        async with client.poller(resume=True) as poller:
            platform.service.finish_after = 20.0
            async for outcome in poller.outcomes():
                assert outcome.transaction is not None
                assert outcome.transaction.succeeded
    assert {host for _, host, _ in platform.asked} == {"one"}


@pytest.mark.slow
@on_asyncio
async def test_an_account_with_one_pending_payment_costs_no_transaction_of_its_own(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside those of its requests: claims, leases and messages of all accounts are read and renewed together."""
    plain, count = Connections.transact, 0

    def transact(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return plain(*arguments, **options)

    async with platform.merchants("shop") as merchants:
        await pay(merchants, shops(20))
    async with platform.host("one") as worker:
        await anyio.sleep(15)
        assert len(worker.accounts) == 20
        monkeypatch.setattr(Connections, "transact", transact)
        platform.asked.clear()
        await anyio.sleep(20)
    # Every second one renewal, one look at the changes every half second, two for work every two seconds.
    assert count <= len(platform.asked) + 20 * (1 + 2 + 1) + 20 * 2, (count, len(platform.asked))


@pytest.mark.slow
@on_asyncio
async def test_a_host_serves_several_databases_with_a_worker_for_each(
    platform: Platform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both send and follow. An account whose database the function does not name any more is served by none."""
    stores = [SQLStore(platform.url, grace=5), SQLStore(sqlite_url(tmp_path), grace=5)]
    moved = set[str]()

    async def store_of(account: str) -> SQLStore:
        return stores[account in moved or account.endswith("2")]

    async with platform.merchants("shop", store=store_of) as shop:
        await enqueue(shop, ["shop-01", "shop-02", "shop-11"])
    moved.add("shop-11")
    async with platform.merchants("one", store=store_of) as one:
        async with one.worker(store=stores[0]) as first, one.worker(store=stores[1]) as second:
            await anyio.sleep(10)
            assert set(first.accounts) == {"shop-01", "shop-11"}
            assert set(second.accounts) == {"shop-02"}
            for payment in platform.service.payments:
                platform.service.finish(payment)
            await anyio.sleep(60)
        assert len(platform.service.payments) == 2
        for account in ("shop-01", "shop-02"):
            record = await record_of(await one.client(account), "queued-1")
            assert record.status == "SUCCESS"
        (status,) = [each async for each in one.overview(store=stores[0])]
        assert (status.account, status.queued) == ("shop-11", 1)
        assert "the function store names another database for it" in str(status.last_error)
        assert [each async for each in one.overview(store=stores[1])] == []
    said = {each.message for each in caplog.records}
    assert said == {f"account 'shop-11' cannot be served: {status.last_error}"}


# The claims


def claims_of(url: str) -> Claims:
    return Claims(Database(url), 120.0, utcnow)


async def renew(claims: Claims, *, most: int = 100, given_back: Iterable[str] = ()) -> Any:
    renewal = await claims.renew(given_back=list(given_back), most=most)
    if renewal.looks:
        await claims.look()
    return renewal


async def with_work(url: str, count: int) -> None:
    """Queue a payment in each account."""
    platform = Platform(url)
    async with platform.merchants() as merchants:
        await enqueue(merchants, shops(count))


@pytest.mark.slow
async def test_accounts_spread_evenly_as_hosts_come_and_go(store_url: str) -> None:
    """Each account has one host at any moment, and no host has many more than its share."""
    await with_work(store_url, 12)
    one, two, three = hosts = [claims_of(store_url) for _ in range(3)]
    await renew(one)
    assert (await renew(one, most=5)).new  # in batches
    assert len(one.held) == 5
    await renew(one)
    assert sorted(one.held) == shops(12)
    for joining, share in ((two, 6), (three, 4)):
        await renew(joining)
        for each in hosts[: hosts.index(joining) + 1]:
            surplus = (await renew(each)).surplus
            await renew(each, given_back=list(each.held)[:surplus])
        for each in hosts[: hosts.index(joining) + 1]:
            await renew(each)
            assert share - 1 <= len(each.held) <= share + 1
    held = [account for each in hosts for account in each.held]
    assert sorted(held) == shops(12)
    await two.leave()
    for each in (one, three):
        await renew(each)
    assert sorted([*one.held, *three.held]) == shops(12)


async def test_a_host_that_takes_no_accounts_counts_in_nobodys_share(store_url: str) -> None:
    """One that waits at its end for an answer, or cannot start what it has: the others serve all the rest."""
    await with_work(store_url, 6)
    one, two = claims_of(store_url), claims_of(store_url)
    await renew(one)
    await renew(one, most=1)
    await renew(one, most=0)
    await renew(two)
    assert (sorted(one.held), sorted(two.held)) == (shops(1), shops(6)[1:])


async def test_accounts_of_a_dead_host_are_taken_over_within_ten_seconds(sqlite_file_url: str) -> None:
    """With all leases of claims there; should it wake up, it sends nothing more."""
    await with_work(sqlite_file_url, 3)
    dead, other = claims_of(sqlite_file_url), claims_of(sqlite_file_url)
    await renew(dead)
    await renew(dead)
    claim = dead.held["shop-00"]
    claim.require()
    holders = {"reconcile": dead.host, "poller": dead.host, "other": "gone", "dispatcher": None}
    values = [{"account": "shop-00", "name": name, "holder": "0" * 32, "host": host} for name, host in holders.items()]
    execute(sqlite_file_url, leases.insert(), values)
    await anyio.sleep(TTL - 1)
    await renew(other)
    assert not other.held
    with pytest.raises(StoreError, match="claim has ended") as caught:
        claim.require()
    assert caught.value.outcome == "not_sent"
    await anyio.sleep(2)
    await renew(other)
    assert sorted(other.held) == shops(3)
    renewal = await renew(dead)
    assert {each.account for each in renewal.lost} == set(shops(3))
    held = sa.select(leases.c.name).where(leases.c.account == "shop-00", leases.c.holder.is_not(None))
    assert sorted(execute(sqlite_file_url, held)) == [("dispatcher",)]


@pytest.mark.parametrize("back", [3.0, 30.0, 300.0])
async def test_a_clock_that_goes_back_keeps_no_account_waiting(
    postgres_url: str, back: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another host takes those of a dead one over within two claims, new accounts are found, and it is said once."""
    now, gone_back = 1_000_000.0, 0.0
    clock: sa.Select[Any] = sa.select(sa.bindparam("now", type_=sa.Double(), callable_=lambda: now - gone_back))
    monkeypatch.setattr(engine_module, "_POSTGRESQL_CLOCK", clock)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(time=lambda: now))
    monkeypatch.setattr(engine_module, "monotonic", lambda: now)
    await with_work(postgres_url, 2)
    dead, other = claims_of(postgres_url), claims_of(postgres_url)
    for each in (dead, dead, other):
        await renew(each)
    assert sorted(dead.held) == shops(2)
    gone_back = back
    await with_work(postgres_url, 3)
    for second in range(round(2 * TTL)):
        await renew(other)
        assert second >= TTL or {*other.held} <= {"shop-02"}
        now += 1
    assert sorted(other.held) == shops(3)
    assert caplog.text.count("the clock of the database has gone back by") == 1


async def test_a_host_that_stands_still_during_its_renewal_holds_up_nobody(postgres_url: str) -> None:
    """Renewals and looks of others pass by the rows that it has locked; one host looks in two seconds."""
    await with_work(postgres_url, 2)
    claims, still = claims_of(postgres_url), claims_of(postgres_url)
    await renew(still, most=1)
    assert not (await claims.renew(given_back=[], most=100)).looks
    assert len(claims.held) == 1
    execute(postgres_url, hosts.update().values(looked_at=0.0))  # as after two seconds
    with locked(postgres_url, hosts, {"host": still.host}):
        assert (await claims.renew(given_back=[], most=100)).looks
        await claims.look()
        assert not (await still.renew(given_back=[], most=1)).looks
    assert sorted([*claims.held, *still.held]) == shops(2)


@pytest.mark.slow
async def test_a_host_serves_an_account_that_it_takes_again_while_the_old_parts_end(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts end during the renewal that takes the account again: it is not given back then."""
    renew, mode = Claims.renew, "plain"

    async def busy(claims: Claims, **options: Any) -> Any:
        if claims is not first._claims:
            return await renew(claims, **options)
        if mode == "away":
            raise StoreError("away", outcome="not_sent")
        renewal = await renew(claims, **options)
        while renewal.new and first.accounts:  # as if the database was slow to answer
            await anyio.sleep(0.1)
        return renewal

    async def answer_late(account: str) -> None:
        await anyio.sleep(18)

    monkeypatch.setattr(Claims, "renew", busy)
    async with platform.merchants("one") as merchants, merchants.worker() as first:
        await pay(merchants, ["a"])
        await enqueue(merchants, ["a"], "queued")
        platform.answer_first = answer_late
        await anyio.sleep(6)
        assert first.accounts == {"a"}
        mode = "away"
        async with platform.host("two") as second:
            await anyio.sleep(9)
            assert second.accounts == {"a"}
            mode = "slow"
            await anyio.sleep(2)
            assert first.accounts == {"a"}  # it waits for the answer
        await anyio.sleep(20)
        assert first.accounts == {*first._claims.held} == {"a"}
        assert not first._given_back


@contextmanager
def locked(url: str, table: sa.Table, key: Mapping[str, Any]) -> Iterator[None]:
    """Lock a row, as an operator's open transaction does."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        here = (table.c[name] == value for name, value in key.items())
        assert connection.execute(sa.select(table).where(*here).with_for_update()).one()
        yield


@on_asyncio
@pytest.mark.slow
async def test_a_locked_row_concerns_its_own_account(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever row it is: hosts claim, renew, look and leave, and the other accounts pay, send and follow."""
    monkeypatch.setattr(connections_module, "PATIENCE", 1)
    platform, numbers = Platform(postgres_url), itertools.count(1)
    async with platform.merchants() as merchants, platform.merchants("two") as others:
        for account in shops(2):
            client = await merchants.client(account)
            async with client.poller(resume=True):
                await pay(merchants, [account])
                await anyio.sleep(1)  # until it has its lease
        await enqueue(merchants, shops(2))
        claims, other = claims_of(postgres_url), claims_of(postgres_url)
        for each in (claims, claims, other):
            await renew(each)
        assert sorted(claims.held) == shops(2)
        tables = [each for each in METADATA.tables.values() if each.primary_key]
        rows = {  # one of each name, such as that of a lease, in each table
            (table.name, getattr(row, "name", "")): (table, dict(row._mapping))
            for table in tables
            for row in execute(postgres_url, sa.select(*table.primary_key))
            if getattr(row, "account", "") != "shop-01"
        }
        assert {name for name, _ in rows} > {"mobilemoney_leases", "mobilemoney_budgets", "mobilemoney_accounts"}
        for table, key in rows.values():
            with locked(postgres_url, table, key):
                for each in (claims, other):
                    renewal = await renew(each)
                    assert not renewal.lost
                assert sorted(claims.held) == shops(2)
                await claims.look()
                client, name = await others.client("shop-01"), f"order-{next(numbers)}"
                async with client.poller(resume=True) as poller:
                    made = await client.collections.create(
                        phone_number=NUMBER, amount=3000 + next(numbers), idempotency_key=f"{name}-a"
                    )
                    platform.service.finish(platform.service.payments[-1])
                    assert (await poller.wait(made)).succeeded
                await client.payments.reconcile()
                assert [each async for each in client.payments.changes(limit=1)]
    with locked(postgres_url, account_claims, {"account": "shop-00"}):
        await claims.leave()


@on_asyncio
async def test_work_that_waits_for_a_lock_leaves_its_thread_to_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tasks want the locked row of one account, those of the others are done meanwhile; then all are."""
    monkeypatch.setattr(connections_module, "_LOCK_TRY", "50ms")
    await with_work(postgres_url, 1)
    database, key, done = Database(postgres_url), {"account": "shop-00", "key": "queued-1"}, list[int]()

    async def touch() -> None:
        changed = payments.update().values(priority=1)
        done.append(await database.write(lambda connection: connection.execute(changed).rowcount))

    async with anyio.create_task_group() as tasks:
        with locked(postgres_url, payments, key):
            for _ in range(4 * THREADS):
                tasks.start_soon(touch)
            for _ in range(3):
                assert await database.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar_one()) == 1
            assert not done
    assert done == 4 * THREADS * [1]
    database.close()


async def test_a_locked_claim_ends_alone(postgres_url: str) -> None:
    """Its account is served no more once it ends, and again when the lock is gone, unless another host has it."""
    await with_work(postgres_url, 2)
    claims = claims_of(postgres_url)
    await renew(claims)
    await renew(claims)
    with locked(postgres_url, account_claims, {"account": "shop-00"}):
        for _ in range(round(TTL)):
            await anyio.sleep(1)
            assert not (await renew(claims)).lost
        with pytest.raises(StoreError):
            claims.held["shop-00"].require()
        claims.held["shop-01"].require()
    await renew(claims)
    claims.held["shop-00"].require()


async def test_the_failure_of_a_locked_account_keeps_no_other_from_its_own(postgres_url: str) -> None:
    """That of the locked one comes with its next failure: no host waits for an operator's open transaction."""
    database, failures = Database(postgres_url), dict.fromkeys(shops(3), "auth fails")
    save = partial(save_failures, failures=failures, at=NOON)
    await database.write(partial(save_failures, failures={"shop-01": "of yesterday"}, at=NOON))
    with locked(postgres_url, accounts, {"account": "shop-01"}):
        await database.write(save)
    shown = sa.select(accounts.c.error).order_by(accounts.c.account)
    assert execute(postgres_url, shown) == [("auth fails",), ("of yesterday",), ("auth fails",)]
    await database.write(save)
    assert {row.error for row in execute(postgres_url, shown)} == {"auth fails"}
    database.close()


async def test_accounts_without_work_are_claimed_by_nobody(store_url: str) -> None:
    """Their claims are given back, and their rows go. One that is queued for later or on its way is no work."""
    await with_work(store_url, 2)
    platform, claims = Platform(store_url), claims_of(store_url)
    await renew(claims)
    await renew(claims)
    claim = claims.held["shop-00"]
    assert claim.work is DueWork.DISPATCH
    async with platform.merchants() as merchants:
        for account in shops(2):
            await (await merchants.client(account)).payments.cancel("queued-1", note="not wanted")
            await enqueue(merchants, [account], "queued-2", not_before=timedelta(hours=1))
    await claims.look()
    await renew(claims)
    with anyio.fail_after(20):
        await claim.is_done(DueWork.DISPATCH, linger=10)
    await renew(claims, given_back=shops(2))
    assert not claims.held
    on_its_way = payments.update().where(payments.c.account == "shop-00", payments.c.key == "queued-2")
    execute(store_url, on_its_way.values(state="SENDING", stale_at=utcnow() + timedelta(minutes=1)))
    await claims.look()
    assert not (await renew(claims)).new


async def test_nothing_is_sent_without_a_claim(platform: Platform) -> None:
    """The claim is checked right before the socket: a payment is recorded as not sent, and may be sent again."""
    async with platform.merchants() as merchants:
        client = await merchants.client("shop")
        await pay(merchants, ["shop"])
        asked = len(platform.asked)
        lost = ClientOwner(client).claimed(Claim("shop", "host", anyio.current_time() - 1, DueWork.DISPATCH))
        with pytest.raises(StoreError, match="claim has ended") as caught:
            await lost.collections.create(phone_number=NUMBER, amount=7000, idempotency_key="order-2")
        assert caught.value.outcome == "not_sent"
        with pytest.raises(StoreError):
            await lost.transactions.get("t-000001")
        assert len(platform.asked) == asked
        record = await record_of(client, "order-2")
        assert record.state is PaymentState.NOT_SENT
        await client.collections.create(phone_number=NUMBER, amount=7000, idempotency_key="order-2")
    assert len(platform.service.payments) == 2


@pytest.mark.parametrize("way", [None, "aiohttp"])
async def test_a_claim_that_ends_while_the_connection_is_made_stops_the_request(
    sqlite_file_url: str, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    """A process that stands still just then sends no payment when it goes on, over either library."""
    claim, checks = Claim("shop", "host", math.inf, DueWork.DISPATCH), 0

    def require() -> None:
        nonlocal checks
        checks += 1
        if checks > 1:  # after the pipeline's own check
            raise StoreError("another host may serve this account by now", outcome="not_sent")

    monkeypatch.setattr(Claim, "require", lambda self: require())

    async def handler(request: Request) -> Response:
        await request.read()
        return Response.json(samples.acknowledgement())

    async def auth(account: str) -> str:
        return "token"

    transport = None if anyio_backend_name == "trio" else way  # aiohttp has no trio
    async with (
        serve(handler) as server,
        Merchants(server.base_url, store=SQLStore(sqlite_file_url), auth=auth, transport=transport) as merchants,
    ):
        client = ClientOwner(await merchants.client("shop")).claimed(claim)
        with pytest.raises(MobileMoneyError) as caught:
            await client.collections.create(phone_number=NUMBER, amount=7000, idempotency_key="order-1")
        assert caught.value.outcome == "not_sent"
        record = await record_of(client, "order-1")
        assert record.state is PaymentState.NOT_SENT
        assert not any(request.complete for request in server.requests)
