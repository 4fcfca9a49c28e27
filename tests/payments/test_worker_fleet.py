"""Hosts of a platform, real processes on PostgreSQL, of which one is killed and one stands still for a while.

Judged at the service: it looks at each request's arrival whose claim the account is, by the database.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any

import anyio
import anyio.to_thread
import attrs
import psycopg
import pytest
import sqlalchemy as sa

from mobilemoney_async import SQLStore
from tests.contract import samples
from tests.payments.nursery import nursery
from tests.payments.worker_process import Job
from tests.support.processes import module_command
from tests.support.scale import soak
from tests.support.server import Request, Response, serve

NUMBER = "+255681234567"
HOSTS = 8
ACKNOWLEDGED = {"status": "success", "message": "accepted", "currency": "TZS", "status_code": "PENDING"}
UNSERVED = (
    "SELECT account FROM mobilemoney_leases WHERE name = 'worker' AND followed <> 0 "
    "AND until < extract(epoch FROM clock_timestamp())"
)


@attrs.define(eq=False)
class Service:
    """Service of all accounts, and the judge.

    Attributes:
        claims: A session of the database.
        arrivals: The requests of each account: when, and the pid of the host.
        unclaimed: Those that came from a host without the account's claim.
        made: The key of each payment that was made, by id.
        ids: The ids of each account.
        is_final: Whether all payments have succeeded by now.
    """

    claims: psycopg.Connection[Any]
    arrivals: defaultdict[str, list[tuple[float, int]]] = attrs.field(factory=lambda: defaultdict(list))
    unclaimed: list[tuple[float, int, str, str]] = attrs.field(factory=list)
    made: dict[str, tuple[str, str, str]] = attrs.field(factory=dict)
    ids: defaultdict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))
    is_final: bool = False
    _numbers: Any = attrs.field(factory=itertools.count)

    async def answer(self, request: Request) -> Response:
        body, account = await request.read(), (request.header("authorization") or "").removeprefix("Bearer token.of.")
        pid, _, host = (request.header("x-host") or "").partition(" ")
        row = self.claims.execute(
            "SELECT holder FROM mobilemoney_leases WHERE account = %s AND name = 'worker'", (account,)
        ).fetchone()
        self.arrivals[account].append((time.monotonic(), int(pid)))
        if row != (host,):
            self.unclaimed.append((time.monotonic(), int(pid), account, f"{request.method} {request.target}"))
        if request.method == "POST":
            order = request.json()
            number = f"t-{next(self._numbers):06}"
            self.made[number] = account, order["external_id"], order["amount"]
            self.ids[account].append(number)
            shown = {name: order[name] for name in ("phone_number", "amount")}
            return Response.json({**ACKNOWLEDGED, **shown, "transaction_id": number, "reference": f"R-{number}"})
        assert not body
        if "/transactions" in request.target:
            return Response.json(samples.page(*map(self.row, reversed(self.ids[account]))))
        return Response.json({"status": "success", "transaction": self.row(request.target.rpartition("/")[2])})

    def row(self, number: str) -> dict[str, Any]:
        account, key, amount = self.made[number]
        names = {"id": number, "reference": f"R-{number}", "merchant_id": account, "external_id": key}
        row = samples.settled if self.is_final else samples.transaction
        return row(**names, amount=amount, phone_number=NUMBER)

    def is_calm(self) -> bool:
        """Return whether the first looks at new payments are over: of three accounts, one was asked for in 5 s."""
        now = time.monotonic()
        return 3 * sum(came[-1][0] > now - 5 for came in self.arrivals.values()) < len(self.arrivals)

    def held_by(self, pid: int) -> set[str]:
        """Return the accounts whose latest request came from a host."""
        return {account for account, came in self.arrivals.items() if came[-1][1] == pid}


def plain(url: str) -> str:
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def queue(url: str, accounts: list[str]) -> int:
    """Queue a payment in each account, and more in every tenth; return how many these are."""
    store, count = SQLStore(url), 0
    with closing(psycopg.connect(plain(url))) as connection:
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


async def until(condition: Callable[[], object], patience: float) -> None:
    with anyio.fail_after(patience):
        while not condition():
            await anyio.sleep(0.2)


async def watch_claims(url: str, spans: dict[str, float]) -> None:
    """Note for how long each account with work had no host, at most, in seconds."""
    since: dict[str, float] = {}
    with closing(psycopg.connect(plain(url), autocommit=True)) as connection:
        while True:
            free = {row[0] for row in await anyio.to_thread.run_sync(lambda: connection.execute(UNSERVED).fetchall())}
            now = time.monotonic()
            since = {each: since.get(each, now) for each in free}
            spans.update({each: max(spans.get(each, 0.0), now - at) for each, at in since.items()})
            await anyio.sleep(0.5)


@pytest.mark.soak
@pytest.mark.untraced
@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_hosts_share_all_accounts_whatever_happens_to_some_of_them(postgres_url: str) -> None:
    """Killed, stopped and continued: no account has two hosts or none for long, no limit or payment is exceeded."""
    accounts = [f"shop-{number:04}" for number in range(soak(500))]  # 2,000 at night
    expected, spans = queue(postgres_url, accounts), dict[str, float]()
    with closing(psycopg.connect(plain(postgres_url), autocommit=True)) as claims:
        service = Service(claims)
        async with (
            serve(service.answer) as server,
            nursery(Job(server.base_url, postgres_url), module_command("tests.payments.worker_process")) as hosts,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(HOSTS):
                await hosts.start()
            await until(lambda: len(service.made) == expected and service.is_calm(), 400)
            tasks.start_soon(watch_claims, postgres_url, spans)
            killed, stopped, *_ = sorted(hosts.alive)
            lost, frozen = service.held_by(killed), service.held_by(stopped)
            assert lost
            assert frozen
            hosts.kill(killed)
            os.kill(stopped, signal.SIGSTOP)
            at = time.monotonic()
            await until(lambda: not service.held_by(killed) and not service.held_by(stopped), 60)
            taken = {each: service.arrivals[each] for each in lost | frozen}
            await anyio.sleep(max(0.0, at + 12 - time.monotonic()))
            os.kill(stopped, signal.SIGCONT)
            await until(lambda: len(service.held_by(stopped)) > 0, 60)
            service.is_final = True
            await until(lambda: count_final(claims) == expected, 120)
            tasks.cancel_scope.cancel()
    assert service.unclaimed == []
    assert max(spans.values(), default=0.0) < 15
    assert max(Counter(service.made.values()).values()) == 1
    assert len(service.made) == expected
    # A payment is looked at every half minute at the latest; those of a new host are looked at at once. With all
    # accounts busy at the same time, two cores take that much longer.
    late = {each: min(when for when, _ in came if when > at) - at for each, came in taken.items()}
    assert max(late.values()) < 15 + 15 * max(1, len(accounts) / 500), late
    for came in service.arrivals.values():
        for (first, (begin, _)), (last, (end, _)) in itertools.combinations(enumerate(came), 2):
            assert last - first + 1 <= min(60, 12 + (end - begin)), came


def count_final(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM mobilemoney_payment_records WHERE state = 'FINAL'").fetchone()
    assert row is not None
    return int(row[0])
