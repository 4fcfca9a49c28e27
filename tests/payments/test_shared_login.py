"""One login token for all processes of a merchant.

A `Worker` stands for a process: it has a login object, a connection pool and a memory of its own, and shares nothing
with the others but the database.
"""

import asyncio
import hashlib
import itertools
import logging
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from mobilemoney_async import (
    ConnectionFailed,
    InvalidCredentials,
    InvalidRequest,
    InvalidToken,
    LoginAuth,
    MobileMoneyError,
    PermissionDenied,
    Secret,
    ServerError,
    StoreError,
    TokenSource,
)
from mobilemoney_async.contract.models import LoginResult
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.database.engine import Database
from mobilemoney_async.database.serialization import dump
from mobilemoney_async.sharing.login import SharedLogin
from mobilemoney_async.sharing.login_row import LoginRow, load_failure
from tests.payments.test_cancelled_twice import cancel_twice
from tests.support.databases import execute
from tests.support.fakes import EMAIL, LOGIN, PASSWORD, logged_in
from tests.support.fakes import service as answer_of
from tests.support.patience import PATIENCE
from tests.support.server import Reply, Request, serve
from tests.support.talk import talk

KEY = "a key of the merchant's"
ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


class Service:
    """Gives ``token-1``, ``token-2`` …

    Attributes:
        logins: The passwords of all logins, oldest first.
        faults: The errors of the next logins.
        delay: How long a login takes, seconds.
    """

    def __init__(self, *faults: MobileMoneyError, delay: float = 0.0, expires_in: int = 3600) -> None:
        self.logins: list[str] = []
        self.times: list[float] = []
        self.faults = list(faults)
        self.delay = delay
        self.expires_in = expires_in

    async def login(self, email: str, password: Secret) -> LoginResult:
        self.logins.append(password.reveal())
        self.times.append(anyio.current_time())
        token = f"token-{len(self.logins)}"
        await anyio.sleep(self.delay)  # real time: the answer's
        if self.faults:
            raise self.faults.pop(0)
        return LoginResult(
            success=True, access_token=Secret(token), token_type="Bearer", expires_in=self.expires_in, user=None
        )


class Worker:
    """A process that calls the service."""

    def __init__(self, url: str, service: Service, *, password: str = PASSWORD, **options: Any) -> None:
        self.service = service
        self.database = Database(url)
        account = options.pop("account", "merchant")
        cipher = TokenCipher(account, options.pop("key", None))
        self.source = SharedLogin(LoginAuth(EMAIL, password), self.database, account, cipher, **options)

    async def token(self) -> str:
        return (await self.source.token(self.service.login)).reveal()

    async def fails(self) -> type[MobileMoneyError]:
        """Return the error of a call that needs a token."""
        with pytest.raises(MobileMoneyError) as caught:
            await self.token()
        return caught.type


class Workers:
    """Makes workers, and closes their connections."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.made: list[Worker] = []

    def __call__(self, service: Service, **options: Any) -> Worker:
        worker = Worker(self.url, service, **options)
        self.made.append(worker)
        return worker


@contextmanager
def make_workers(url: str) -> Iterator[Workers]:
    made = Workers(url)
    yield made
    for worker in made.made:
        worker.database.close()


@pytest.fixture
def workers(store_url: str) -> Iterator[Workers]:
    """Workers on each kind of database, in real time."""
    with make_workers(store_url) as made:
        yield made


@pytest.fixture
def virtual_workers(sqlite_file_url: str) -> Iterator[Workers]:
    """Workers on SQLite, for an hour in virtual time."""
    with make_workers(sqlite_file_url) as made:
        yield made


async def together(*workers: Worker) -> list[str | type[MobileMoneyError]]:
    """Let workers get a token side by side, and return the tokens."""
    got: list[str | type[MobileMoneyError]] = []

    async def one(worker: Worker) -> None:
        try:
            got.append(await worker.token())
        except MobileMoneyError as exc:
            got.append(type(exc))

    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(one, worker)
    return got


def refused() -> MobileMoneyError:
    return InvalidCredentials("no", status_code=401, code="invalid_credentials")


def rows(url: str) -> list[Any]:
    """Return the contents of the database."""
    return [row._mapping for row in execute(url, "SELECT * FROM mobilemoney_logins")]


def change_rows(url: str, changes: str, **values: object) -> None:
    execute(url, f"UPDATE mobilemoney_logins SET {changes}", values)


# -- one login for all -------------------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_a_process_that_starts_later_takes_the_token_that_is_there(workers: Workers) -> None:
    """A worker that is started again does not log in; and in memory the token costs no query."""
    service = Service()
    assert await workers(service, key=KEY).token() == "token-1"
    late = workers(service, key=KEY)
    assert await late.token() == "token-1"
    late.database.timed = late.database.write = None  # type: ignore[method-assign, assignment]
    assert await late.token() == "token-1"
    assert len(service.logins) == 1


async def test_a_holder_that_dies_delays_the_others_by_seconds(virtual_workers: Workers) -> None:
    """A process that is killed while it logs in is replaced by another, once its lease has run out."""
    service = Service()
    dead = virtual_workers(service).source
    await dead._change(lambda row, now: row.visited("dead", now, ttl=5, refused=None, may_log_in=True))
    start = anyio.current_time()
    assert await together(virtual_workers(service), virtual_workers(service)) == ["token-1"] * 2
    assert len(service.logins) == 1
    assert 4.5 < anyio.current_time() - start < 6.5


async def test_a_slow_login_keeps_its_lease(virtual_workers: Workers) -> None:
    """A login that takes longer than a lease is not made by a second process too."""
    service = Service(delay=60)
    assert await together(*[virtual_workers(service) for _ in range(3)]) == ["token-1"] * 3
    assert len(service.logins) == 1


async def test_a_cancelled_leader_leaves_the_login_to_the_next(virtual_workers: Workers) -> None:
    """When the call that logs in is cancelled, another call does at once, in this process or another."""
    service = Service(delay=60)
    leader, other = virtual_workers(service), virtual_workers(service)
    got: list[str] = []

    async def follow(worker: Worker) -> None:
        got.append(await worker.token())

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as doomed:
            doomed.start_soon(leader.token)
            while not service.logins:
                await anyio.sleep(0.01)
            tasks.start_soon(follow, leader)
            tasks.start_soon(follow, other)
            service.delay = 0.1
            doomed.cancel_scope.cancel()
    assert got == ["token-2", "token-2"]
    assert len(service.logins) == 2


async def test_logins_that_are_cancelled_in_a_row_come_further_and_further_apart(virtual_workers: Workers) -> None:
    """As with a login of one process's own; meanwhile the token of another one serves."""
    service = Service(delay=1)
    worker, other = virtual_workers(service), virtual_workers(service)
    start = anyio.current_time()
    while anyio.current_time() < start + 5:
        with anyio.move_on_after(0.5):
            await worker.token()
    assert 3 <= len(service.logins) <= 4
    token = await other.token()
    assert await worker.token() == token
    assert anyio.current_time() < start + 7


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
async def test_a_login_that_is_cancelled_twice_delays_no_other_process(virtual_workers: Workers, steps: int) -> None:
    """Not while the first one gives the lease back, either."""
    service = Service(delay=60)
    leader, other = virtual_workers(service), virtual_workers(service)
    doomed = asyncio.create_task(leader.token())
    while not service.logins:
        await anyio.sleep(0.01)
    service.delay = 0.0
    await cancel_twice(doomed, steps)
    start = anyio.current_time()
    assert await other.token() == "token-2"
    assert anyio.current_time() == start


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_task_of_asyncio_that_is_cancelled_in_the_database_delays_its_process_by_nothing(
    virtual_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain `task.cancel()` leaves a transaction that takes the lease to itself; the next call logs in at once."""
    worker = virtual_workers(Service())
    timed = worker.database.timed

    loop = asyncio.get_running_loop()

    async def cancelled(work: Any) -> Any:
        def work_and_cancel(*args: Any) -> Any:
            loop.call_soon_threadsafe(doomed.cancel)
            return work(*args)

        return await timed(work_and_cancel)

    with monkeypatch.context() as patched:
        patched.setattr(worker.database, "timed", cancelled)
        doomed = asyncio.create_task(worker.token())
        with pytest.raises(asyncio.CancelledError):
            await doomed
    while not [row for row in rows(virtual_workers.url) if row["holder"]]:
        await anyio.lowlevel.checkpoint()
    start = anyio.current_time()
    assert await worker.token() == "token-1"
    assert anyio.current_time() == start


async def test_an_unexpected_error_of_a_login_comes_out_as_itself(virtual_workers: Workers) -> None:
    """A bug in a caller's own transport is not wrapped in a group, and blocks no other call."""
    service = Service()
    worker = virtual_workers(service)

    async def broken(email: str, password: Secret) -> LoginResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await worker.source.token(broken)
    assert await virtual_workers(service).token() == "token-1"


@pytest.mark.slow
async def test_accounts_and_credentials_keep_to_themselves(virtual_workers: Workers) -> None:
    """A token belongs to one account and one e-mail and password; a new password does not use the old one's token."""
    service = Service()
    assert await virtual_workers(service).token() == "token-1"
    assert await virtual_workers(service, account="another").token() == "token-2"
    assert await virtual_workers(service, password="changed").token() == "token-3"
    assert await virtual_workers(service).token() == "token-1"
    assert await virtual_workers(service, password="changed").token() == "token-3"
    assert service.logins == [PASSWORD, PASSWORD, "changed"]


@pytest.mark.real_time
async def test_a_login_object_may_serve_two_stores(store_url: str, tmp_path: Path) -> None:
    """The state of a login in one store does not leak into another, nor into the `LoginAuth` itself."""
    service, auth = Service(), LoginAuth(EMAIL, PASSWORD)
    databases = Database(store_url), Database(f"sqlite:///{tmp_path / 'other.db'}")
    sources = [SharedLogin(auth, database, "merchant", TokenCipher("merchant")) for database in databases]
    everyone: list[TokenSource] = [*sources, auth]
    assert [await source.token(service.login) for source in everyone] == ["token-1", "token-2", "token-3"]
    sources[0].rejected(Secret("token-1"), replacement=False)
    assert [await source.token(service.login) for source in everyone] == ["token-4", "token-2", "token-3"]
    for database in databases:
        database.close()


# -- renewal -----------------------------------------------------------------------------------------------------------


async def test_one_process_renews_ahead_of_the_end_while_the_others_go_on(virtual_workers: Workers) -> None:
    """Shortly before a token ends one process fetches the next, and no other call waits for it."""
    service = Service()
    first, *others = [virtual_workers(service) for _ in range(4)]
    assert await together(first, *others) == ["token-1"] * 4
    await anyio.sleep(3600 - 70)
    assert await together(first, *others) == ["token-1"] * 4
    await anyio.sleep(20)
    service.delay = 5
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.token)
        while len(service.logins) < 2:
            await anyio.lowlevel.checkpoint()
        start = anyio.current_time()
        assert await together(*others) == ["token-1"] * 3
        assert anyio.current_time() == start
    await anyio.sleep(1)
    assert await together(first, *others) == ["token-2"] * 4
    assert len(service.logins) == 2


async def test_a_renewal_that_fails_falls_back_on_the_token_that_still_holds(
    virtual_workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """A login that is refused ahead of time fails no call of any process until the token ends; it is logged once."""
    service = Service()
    one, other = virtual_workers(service), virtual_workers(service)
    assert await together(one, other) == ["token-1"] * 2
    await anyio.sleep(3600 - 50)
    service.faults = [refused()] * 2
    assert await together(one, other) == ["token-1"] * 2
    assert len(service.logins) == 2
    assert len(caplog.records) == 1
    await anyio.sleep(11)
    assert await together(one, other) == ["token-1"] * 2
    assert len(service.logins) == 3
    await anyio.sleep(21)
    await together(one, other)
    await anyio.sleep(1)
    assert await together(one, other) == ["token-4"] * 2


# -- refused tokens ----------------------------------------------------------------------------------------------------


async def test_a_refused_token_costs_one_login_for_all(virtual_workers: Workers) -> None:
    """Every process that finds the token refused gets the same new one, and none discards a newer one."""
    service = Service(delay=0.1)
    all_of_them = [virtual_workers(service) for _ in range(3)]
    assert await together(*all_of_them) == ["token-1"] * 3
    first, second, third = all_of_them
    first.source.rejected(Secret("token-1"), replacement=False)
    second.source.rejected(Secret("token-1"), replacement=False)
    assert await together(first, second) == ["token-2"] * 2
    third.source.rejected(Secret("token-1"), replacement=False)
    first.source.rejected(Secret("token-1"), replacement=False)
    assert await together(*all_of_them) == ["token-2"] * 3
    assert len(service.logins) == 2


async def test_tokens_that_are_refused_at_once_begin_a_pause_for_all(virtual_workers: Workers) -> None:
    """If the service refuses one new token after the other, the processes together do not log in again and again."""
    service = Service()
    one, other = virtual_workers(service), virtual_workers(service)
    for number in (1, 2):
        for worker in (one, other):
            assert await worker.token() == f"token-{number}"
        for worker in (one, other):
            worker.source.rejected(Secret(f"token-{number}"), replacement=True)
    assert await one.fails() is InvalidToken
    assert await other.fails() is InvalidToken
    assert len(service.logins) == 2
    await anyio.sleep(11)
    assert await together(one, other) == ["token-3"] * 2


async def test_creates_of_short_lived_processes_cost_few_logins(virtual_workers: Workers) -> None:
    """A proxy that answers creates with a page under 401: a process for each create is not a login for each."""
    service, poller = Service(), virtual_workers(Service())
    poller.service = service
    for _ in range(10):
        worker = virtual_workers(service)
        token = await worker.token()
        worker.source.suspected(Secret(token))
        assert await worker.token() == await poller.token()
        await anyio.sleep(60)
    assert len(service.logins) == 2


async def test_processes_that_suspect_a_token_at_once_renew_it_once(virtual_workers: Workers) -> None:
    """None of them fails for it, and the one that comes last gets the others' new token."""
    service = Service()
    workers = [virtual_workers(service) for _ in range(3)]
    assert await together(*workers) == ["token-1"] * 3
    for worker in workers:
        worker.source.suspected(Secret("token-1"))
    assert await together(*workers) == ["token-2"] * 3
    for worker in workers:
        worker.source.suspected(Secret("token-2"))
    assert await together(*workers) == ["token-2"] * 3
    assert len(service.logins) == 2


async def test_a_token_refused_while_the_row_is_read_does_not_come_back(
    virtual_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refusal a call does not get the same token again."""
    service = Service()
    worker = virtual_workers(service)
    assert await worker.token() == "token-1"
    await anyio.sleep(3600 - 50)
    # Another process is about to renew it.
    await worker.source._change(lambda row, now: row.visited("other", now, ttl=5, refused=None, may_log_in=True))
    timed = worker.database.timed

    async def and_refused(*args: Any, **options: Any) -> Any:
        result = await timed(*args, **options)
        worker.source.rejected(Secret("token-1"), replacement=False)
        return result

    monkeypatch.setattr(worker.database, "timed", and_refused)
    assert await worker.token() == "token-2"


# -- refused logins ----------------------------------------------------------------------------------------------------


async def test_a_refused_login_fails_all_processes_at_once(virtual_workers: Workers) -> None:
    """Processes with a wrong password learn it from the first of them: the service limits login attempts."""
    service = Service(*[refused()] * 10, delay=0.1)
    all_of_them = [virtual_workers(service) for _ in range(4)]
    assert await together(*all_of_them) == [InvalidCredentials] * 4
    assert await virtual_workers(service).fails() is InvalidCredentials
    assert len(service.logins) == 1


async def test_refused_credentials_are_not_hammered_by_a_fleet(virtual_workers: Workers) -> None:
    """A wrong password, and calls of three processes for an hour: a handful of logins, at growing distances."""
    service = Service(*[refused()] * 1000)
    all_of_them = [virtual_workers(service) for _ in range(3)]
    start = anyio.current_time()
    while anyio.current_time() < start + 700:
        for worker in all_of_them:
            assert await worker.fails() is InvalidCredentials
        await anyio.sleep(5)
    pauses = [later - sooner for sooner, later in itertools.pairwise(service.times)]
    assert pauses == pytest.approx([10, 20, 40, 80, 160, 320], abs=6)


async def test_the_refusal_of_another_process_says_all_that_its_own_would(virtual_workers: Workers) -> None:
    """Code that looks at an error's class, code or status need not care which process met it."""
    service = Service(PermissionDenied("not today", status_code=403, code="insufficient_permissions"))
    await virtual_workers(service).fails()
    with pytest.raises(PermissionDenied) as caught:
        await virtual_workers(service).token()
    assert (caught.value.status_code, caught.value.code) == (403, "insufficient_permissions")
    assert "not today" in str(caught.value)


async def test_new_credentials_do_not_inherit_a_pause(virtual_workers: Workers) -> None:
    """The right password is not delayed by the failures of a wrong one."""
    service = Service(refused())
    assert await virtual_workers(service, password="wrong").fails() is InvalidCredentials
    assert await virtual_workers(service).token() == "token-2"


async def test_a_connection_that_fails_holds_back_its_own_process_only(virtual_workers: Workers) -> None:
    """A host without a network does not keep the others from logging in, and takes their token."""
    service = Service(ConnectionFailed("no route", outcome="not_sent"))
    cut_off, other = virtual_workers(service), virtual_workers(service)
    assert await cut_off.fails() is ConnectionFailed
    assert await cut_off.fails() is ConnectionFailed
    assert len(service.logins) == 1
    assert await other.token() == "token-2"
    assert await cut_off.token() == "token-2"


async def test_a_connection_that_fails_ahead_of_time_is_tried_again_after_a_pause(virtual_workers: Workers) -> None:
    """While its token holds, a process without a network neither fails a call nor tries with every call."""
    service = Service()
    worker = virtual_workers(service)
    await worker.token()
    await anyio.sleep(3600 - 50)
    service.faults = [ConnectionFailed("no route", outcome="not_sent")]
    assert [await worker.token() for _ in range(5)] == ["token-1"] * 5
    assert len(service.logins) == 2
    worker.source._state = worker.source._state.renewed_from(0)
    assert await worker.token() == "token-1"
    assert len(service.logins) == 2
    await anyio.sleep(0.3)
    assert await worker.token() == "token-3"


async def test_a_login_without_a_usable_answer_begins_a_short_pause_for_all(virtual_workers: Workers) -> None:
    """The service may have counted it, so the next login waits; not for long."""
    service = Service(ServerError("away", status_code=503))
    assert await virtual_workers(service).fails() is ServerError
    other = virtual_workers(service)
    assert await other.fails() is ServerError
    await anyio.sleep(0.3)
    assert await other.token() == "token-2"


# -- the database ------------------------------------------------------------------------------------------------------


def away(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the database from a worker."""

    async def fail(*args: object, **options: object) -> None:
        await anyio.lowlevel.checkpoint()
        raise StoreError("the store failed", outcome="not_sent")

    monkeypatch.setattr(worker.database, "timed", fail)


async def test_without_a_database_a_token_in_memory_goes_on_to_its_end(
    virtual_workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls do not fail because the store is away, before the token has ended; that is logged once."""
    service = Service()
    worker = virtual_workers(service)
    await worker.token()
    await anyio.sleep(3600 - 50)
    with monkeypatch.context() as patched:
        away(worker, patched)
        for _ in range(4):
            assert await worker.token() == "token-1"
            await anyio.sleep(10)
        assert len(caplog.records) == 1
        await anyio.sleep(20)
        assert await worker.fails() is StoreError
    assert len(service.logins) == 1
    assert await worker.token() == "token-2"


async def test_a_login_whose_token_cannot_be_stored_is_used_all_the_same(
    virtual_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that fails after the login costs the others a login of their own, not this call its token."""
    service = Service(delay=1)
    worker = virtual_workers(service)
    with monkeypatch.context() as patched:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.token)
            while not service.logins:
                await anyio.lowlevel.checkpoint()
            away(worker, patched)
        assert await worker.token() == "token-1"
    assert await virtual_workers(service).token() == "token-2"
    assert await worker.token() == "token-1"


async def test_a_refusal_that_cannot_be_stored_holds_back_its_own_process(
    virtual_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a database a wrong password is not tried with every call."""
    service = Service(*[refused()] * 5, delay=1)
    worker = virtual_workers(service)
    with monkeypatch.context() as patched:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.fails)
            while not service.logins:
                await anyio.lowlevel.checkpoint()
            away(worker, patched)
    await anyio.sleep(6)
    assert await worker.fails() is InvalidCredentials
    assert len(service.logins) == 1


@pytest.mark.real_time
async def test_a_database_that_cannot_be_reached_is_a_store_error() -> None:
    """Without a token the call raises the failure of the store, and no login is made."""
    service = Service()
    worker = Worker("sqlite:////nonexistent/folder/payments.db", service)
    assert await worker.fails() is StoreError
    assert service.logins == []


async def test_after_the_host_was_started_anew_stored_times_are_not_believed(virtual_workers: Workers) -> None:
    """SQLite's times count from the host's start: neither a token nor a pause of an earlier one is used."""
    service = Service()
    assert await virtual_workers(service).token() == "token-1"
    ahead = 30 * 86_400
    change_rows(
        virtual_workers.url,
        "renew_from = renew_from + :n, good_until = good_until + :n, written = written + :n, "
        "holder = 'dead', held_until = good_until, failure = '{}', paused_until = good_until",
        n=ahead,
    )
    assert await virtual_workers(service).token() == "token-2"


async def test_rows_of_credentials_long_gone_are_removed(virtual_workers: Workers) -> None:
    """Tokens of old passwords do not stay in the database."""
    service = Service()
    await virtual_workers(service, password="old").token()
    change_rows(virtual_workers.url, "written = written - 90000, good_until = good_until - 90000")
    await virtual_workers(service).token()
    assert [row["token"] for row in rows(virtual_workers.url)] == ["clear:token-2"]


def test_who_lost_the_lease_does_not_throw_away_what_the_next_holder_got() -> None:
    """A process that was suspended while it logged in wakes up after another did its work."""
    row, logs_in = LoginRow().visited("slow", 0.0, ttl=5, refused=None, may_log_in=True)
    assert logs_in
    assert not row.visited("next", 4.0, ttl=5, refused=None, may_log_in=True)[1]
    row, logs_in = row.visited("next", 6.0, ttl=5, refused=None, may_log_in=True)
    assert logs_in
    assert row.kept("slow", 6.5, ttl=5) == row
    row = row.finished("next", 7.0, lambda state, now: state.logged_in(Secret("new"), 3600, began=6.0, now=now))
    assert row.finished("slow", 8.0, lambda state, now: state.failed(refused(), now)) == row
    assert row.visited("third", 9.0, ttl=5, refused=None, may_log_in=True) == (row, False)


# -- real processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_processes_log_in_once_also_after_another_was_killed_while_it_did(store_url: str) -> None:
    """`kill -9` in the middle of a login leaves nothing behind that keeps the others from one of their own."""
    logins: list[str] = []
    tokens: set[str | None] = set()
    arrived = anyio.Event()

    async def handle(request: Request) -> Reply:
        if request.target != LOGIN:
            tokens.add(request.header("authorization"))
            return answer_of(request.target)
        logins.append(request.target)
        arrived.set()
        await (anyio.sleep_forever() if len(logins) == 1 else anyio.sleep(0.2))  # real time: the answer's
        return logged_in(f"token-{len(logins)}")

    async with serve(handle) as server, AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(PATIENCE))
        doomed, *others = [
            # The others' lease is longer than any stop of a busy machine.
            await stack.enter_async_context(
                talk("tests.payments.process", "log_in", server.base_url, store_url, "55" if number else "1.5")
            )
            for number in range(3)
        ]
        assert {await process.line() for process in (doomed, *others)} == {"ready"}
        await doomed.tell("go")
        await arrived.wait()
        doomed.kill()
        await doomed.wait()
        for process in others:
            await process.tell("go")
        assert [await process.wait() for process in others] == [0] * 2
    assert len(logins) == 2
    assert tokens == {"Bearer token-2"}


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, KEY.encode(), Secret(KEY), None])
async def test_under_a_key_nothing_in_the_database_is_a_secret(virtual_workers: Workers, key: Any) -> None:
    """A reader of the database or a backup finds neither the token nor the password, nor a way to guess it.

    Without a key the token lies there in clear text, as the documentation says, and no password.
    """
    await virtual_workers(Service(), key=key).token()
    said, guess = repr(rows(virtual_workers.url)), TokenCipher("merchant").name(EMAIL, Secret(PASSWORD))
    assert ("token-1" in said) is (guess in said) is (key is None)
    assert PASSWORD not in said
    assert EMAIL not in said


@pytest.mark.parametrize("keyless_first", [True, False])
async def test_a_process_without_the_key_leaves_no_token_in_clear_text_beside_others_with_it(
    virtual_workers: Workers, keyless_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs in by itself and keeps the token in memory, before and after the renewal; what it wrote is deleted."""
    service = Service()
    keyed, keyless = virtual_workers(service, key=KEY), virtual_workers(service)
    for worker in (keyless, keyed) if keyless_first else (keyed, keyless):
        await worker.token()
    for _ in range(3):
        held = [row["token"] or "" for row in rows(virtual_workers.url)]
        assert not any("token-" in each for each in held)
        assert [each.partition(":")[0] for each in held if each] == ["aesgcm"]
        token = await keyless.token()
        assert await keyless.token() == token != await keyed.token()
        await anyio.sleep(3590)
        await together(keyless, keyed)
    late = virtual_workers(service)
    await late.token()
    assert "MOBILEMONEY_STORE_KEY" in caplog.text


async def test_on_a_platform_a_host_without_the_key_leaves_no_token_in_clear_text(
    virtual_workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of an account that no other host serves; an hour after the last key is gone, tokens are shared in clear."""
    service = Service()
    await virtual_workers(service, key=KEY, account="shop-1").token()
    keyless = virtual_workers(service, account="shop-2")
    token = await keyless.token()
    assert await keyless.token() == token
    assert sorted((row["token"] or "").partition(":")[0] for row in rows(virtual_workers.url)) == ["", "aesgcm"]
    assert "MOBILEMONEY_STORE_KEY" in caplog.text
    await anyio.sleep(3601)
    assert await keyless.token() == await virtual_workers(service, account="shop-2").token()


@pytest.mark.real_time
async def test_a_wrong_key_finds_no_token_and_says_so(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """A process with another key logs in by itself, breaks nothing of the others, and logs a warning once."""
    service = Service()
    assert await workers(service, key=KEY).token() == "token-1"
    wrong = workers(service, key="another key of somebody")
    assert await wrong.token() == "token-2"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "another key" in caplog.text
    assert await workers(service, key=KEY).token() == "token-1"
    assert "token-" not in caplog.text


@pytest.mark.parametrize(
    "text", ["", "clear:token-9", "aesgcm:", "aesgcm:!", "aesgcm:AAAAAAAAAAAAAAAAAAAAAAAAAAAA", "ü"]
)
async def test_a_row_that_was_tampered_with_is_no_token(virtual_workers: Workers, text: str) -> None:
    """A token encrypted with another key is not used: the process logs in again."""
    service = Service()
    await virtual_workers(service, key=KEY).token()
    change_rows(virtual_workers.url, "token = :text", text=text)
    assert await virtual_workers(service, key=KEY).token() == "token-2"
    assert await virtual_workers(service, key=KEY).token() == "token-2"


def test_a_platform_stretches_its_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of its thousands of accounts, whose names of credentials differ."""
    stretched: list[str] = []

    def scrypt(password: bytes, *, dklen: int, **others: object) -> bytes:
        stretched.append("once")
        return bytes(dklen)

    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    platform = TokenCipher("platform", "a key that no other test has")
    names = {platform.for_account(f"shop-{number}").name_token(Secret("token")) for number in range(100)}
    assert (len(names), stretched) == (100, ["once"])


def test_a_sealed_token_belongs_to_its_row() -> None:
    """A token that was copied into the row of another account or other credentials is not opened there."""
    one, other = TokenCipher("one", KEY), TokenCipher("other", KEY)
    name = one.name(EMAIL, Secret(PASSWORD))
    sealed = one.encrypt(Secret("the-token"), name)
    assert sealed != one.encrypt(Secret("the-token"), name)
    assert one.decrypt(sealed, name) == "the-token"
    assert one.decrypt(sealed, one.name(EMAIL, Secret("another"))) is None
    assert other.decrypt(sealed, name) is None
    assert TokenCipher("one").decrypt(sealed, name) is None


@pytest.mark.slow
def test_names_of_credentials_differ_with_each_part() -> None:
    """Moving a letter from the e-mail to the password, or to another account, makes other credentials."""
    parts = [("a", "bc", "d", None), ("a", "b", "cd", None), ("ab", "c", "d", None), ("a", "bc", "d", KEY)]
    names = {TokenCipher(account, key).name(email, Secret(password)) for account, email, password, key in parts}
    assert len(names) == 4
    assert names == {TokenCipher(account, key).name(email, Secret(word)) for account, email, word, key in parts}


@pytest.mark.parametrize("key", ["", "fifteen letters", b"fifteen letters", 12345678901234567890, bytearray(20)])
def test_a_key_that_is_none_is_refused(key: Any) -> None:
    """A key is a str or bytes of at least 16 characters, and is not quoted in the error."""
    with pytest.raises(InvalidRequest, match="key must be ") as caught:
        TokenCipher("merchant", key)
    assert "fifteen" not in str(caught.value)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key but without `cryptography` the error names the extra; without a key it is not needed."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidRequest, match=r'pip install "mobilemoney-async\[store\]"'):
        TokenCipher("merchant", KEY)
    assert TokenCipher("merchant").decrypt("clear:token", "name") == "token"


def test_nothing_secret_shows_itself(tmp_path: Path) -> None:
    """Neither repr shows a key, a password or a token."""
    source = SharedLogin(
        LoginAuth(EMAIL, PASSWORD), Database(f"sqlite:///{tmp_path / 'a.db'}"), "merchant", TokenCipher("merchant", KEY)
    )
    shown = f"{source!r} {source._cipher!r} {source._state!r}"
    assert KEY not in shown
    assert PASSWORD not in shown
    assert EMAIL not in shown


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"type": "Any"}', '{"type": "APIError", "args": 1}', '{"type": "X"}']
)
def test_a_failure_that_cannot_be_read_is_still_one(text: str) -> None:
    """A login error of a newer release does not crash an older one."""
    error = load_failure(text)
    assert type(error) is MobileMoneyError
    assert str(load_failure(dump(refused()))) == str(refused())
