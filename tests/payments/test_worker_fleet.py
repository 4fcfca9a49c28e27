"""Hosts of a platform, real processes on PostgreSQL, of which one is killed and one stands still for a while.

Judged at the end: the database notes each host of an account, and the service each request. On a busy machine a request
arrives late, so that what counts is when it was sent.
"""

import bisect
import itertools
import os
import signal
import time
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import attrs
import psycopg
import pytest

from mobilemoney_async import SQLStore
from tests.payments.nursery import nursery
from tests.payments.worker_process import Job
from tests.support.databases import dsn
from tests.support.patience import until
from tests.support.scale import soak
from tests.support.second_service import Payment, SecondService
from tests.support.server import Request, Response, serve

NUMBER = "+255681234567"
# At night 3,000 accounts on four hosts, for ten minutes before one dies.
IS_NIGHT = soak(4) > 4
ACCOUNTS, HOSTS, LONG = (3_000, 4, 600.0) if IS_NIGHT else ({1: 40}.get(soak(4), soak(500)), 8, 0.0)
# Seconds that a request may be under way: one that a stopped process finishes when it goes on took longer.
UNDER_WAY = 5.0
NOTE_HOSTS = """
CREATE TABLE hosts (account text, host text, at float8);
CREATE FUNCTION note_host() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO hosts VALUES (NEW.account, NEW.host, extract(epoch FROM clock_timestamp()));
  RETURN NULL;
END $$;
CREATE TRIGGER note_host AFTER UPDATE ON mobilemoney_account_claims FOR EACH ROW
  WHEN (NEW.host IS DISTINCT FROM OLD.host) EXECUTE FUNCTION note_host();
"""


@attrs.frozen(order=True)
class Sent:
    """Request that came to the service: when it was sent, by this machine's clock, and by which host."""

    at: float
    pid: int
    host: str
    what: str


def utcnow() -> datetime:
    return datetime.now(UTC)


@attrs.define(eq=False)
class Service:
    """Services of all accounts, one each: a request of one does not look through the payments of the others.

    Attributes:
        services: By account.
        asked: The requests of each account.
    """

    services: defaultdict[str, SecondService] = attrs.field(
        factory=lambda: defaultdict(partial(SecondService, utcnow=utcnow))
    )
    asked: defaultdict[str, list[Sent]] = attrs.field(factory=lambda: defaultdict(list))

    @property
    def payments(self) -> list[Payment]:
        return [payment for service in self.services.values() for payment in service.payments]

    async def handle(self, request: Request) -> Response:
        token = (request.header("authorization") or "").removeprefix("Bearer ")
        account = token.removeprefix("token.of.")
        pid, host, at = (request.header("x-host") or "").split()
        began = max(float(at), time.time() - UNDER_WAY)  # real time: when the host sent it, stopped ones apart
        self.asked[account].append(Sent(began, int(pid), host, f"{request.method} {request.target}"))
        service = self.services[account]
        service.merchants = {token: account}
        return await service.handle(request)

    def finish(self) -> None:
        """Let all payments succeed."""
        for service in self.services.values():
            for payment in service.payments:
                service.finish(payment)

    def is_calm(self) -> bool:
        """Return whether the first looks at new payments are over: of three accounts, one was asked for in 5 s."""
        now = time.time()  # real time: it begins to count early or late
        return 3 * sum(sent[-1].at > now - 5 for sent in self.asked.values()) < len(self.asked)

    def held_by(self, pid: int) -> set[str]:
        """Return the accounts whose latest request came from a host."""
        return {account for account, sent in self.asked.items() if sent[-1].pid == pid}


def queue(url: str, accounts: list[str]) -> int:
    """Queue a payment in each account, and more in every tenth; return how many these are."""
    store, count = SQLStore(url), 0
    with closing(psycopg.connect(dsn(url))) as connection:
        for number, account in enumerate(accounts):
            for each in range(5 if number % 10 == 0 else 1):
                key = f"{account}-{each}"
                store.for_account(account).enqueue(
                    connection,
                    type="collection",
                    phone_number=NUMBER,
                    amount=1000 + each,
                    idempotency_key=key,
                    extra={"external_id": key},
                )
                count += 1
        connection.commit()
    return count


def unclaimed(connection: psycopg.Connection[Any], asked: dict[str, list[Sent]]) -> list[tuple[str, Sent]]:
    """Return the requests that a host sent without having the account's claim then."""
    hosts = defaultdict[str, list[tuple[float, str | None]]](list)
    for account, host, at in connection.execute("SELECT account, host, at FROM hosts ORDER BY at").fetchall():
        hosts[account].append((at, host))

    def host_at(account: str, at: float) -> str | None:
        place = bisect.bisect_right(hosts[account], at, key=lambda each: each[0])
        return hosts[account][place - 1][1] if place else None

    return [(account, each) for account in asked for each in asked[account] if host_at(account, each.at) != each.host]


@pytest.mark.soak
@pytest.mark.real_time
@pytest.mark.stops
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_hosts_share_all_accounts_whatever_happens_to_some_of_them(postgres_url: str) -> None:
    """Killed, stopped and continued: no account has two hosts, or none in the end, no limit or payment is exceeded."""
    accounts = [f"shop-{number:04}" for number in range(ACCOUNTS)]
    expected = queue(postgres_url, accounts)
    service = Service()
    with closing(psycopg.connect(dsn(postgres_url), autocommit=True)) as claims:
        claims.execute(NOTE_HOSTS)
        async with (
            serve(service.handle) as server,
            nursery(Job(server.base_url, postgres_url), "tests.payments.worker_process") as hosts,
        ):
            for _ in range(HOSTS):
                await hosts.start()
            await until(lambda: len(service.payments) == expected and service.is_calm())
            await anyio.sleep(LONG)  # real time: the length of the run
            killed, stopped, *_ = sorted(hosts.alive)
            assert service.held_by(killed) and service.held_by(stopped)
            hosts.kill(killed)
            os.kill(stopped, signal.SIGSTOP)
            # The new hosts look at all of them.
            await until(lambda: not service.held_by(killed) and not service.held_by(stopped))
            await anyio.sleep(12)  # real time: until the stopped one's claims have run out for itself too
            os.kill(stopped, signal.SIGCONT)
            await until(lambda: len(service.held_by(stopped)) > 0)
            service.finish()
            await until(lambda: count_final(claims) == expected)
        assert unclaimed(claims, service.asked) == []
    made = [(each.merchant_id, each.external_id, each.amount) for each in service.payments]
    assert len(set(made)) == len(made) == expected
    for asked in service.asked.values():
        for (first, begin), (last, end) in itertools.combinations(enumerate(sorted(asked)), 2):
            seconds = end.at - begin.at
            assert last - first + 1 <= (min(60, 12 + seconds) if seconds < 60 else 12 + seconds), asked


def count_final(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM mobilemoney_payment_records WHERE state = 'FINAL'").fetchone()
    assert row is not None
    return int(row[0])
