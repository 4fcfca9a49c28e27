"""A platform's fleet: accounts on hosts and databases, measured small, and reckoned up to 10,000 accounts on 100 hosts.

`python benchmarks/fleet.py [--accounts 60] [--hosts 2] [--databases 2]`, by itself; a minute. Hosts are processes, each
with one `Merchants`; databases are PostgreSQL servers; the service is in the host's process. Prints what was measured,
and what follows from it for larger fleets. Run as a module with arguments of its own it is one host.

Not called `platform.py`: a script in this folder would then import it in place of the standard library's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread

sys.path.append(str(Path(__file__).parents[1]))  # for a run as a script

from benchmarks.common import ask, connect, module_command, size, sync

EACH = 8  # creates of an account in the measured burst: with the first one, what its limit lets pass at once
AT_ONCE = 50  # creates of a host
CORES = 8  # of a database server, on paper
MOST_SESSIONS = 9  # of a process at a server, on paper: a small fleet has fewer
FLEETS = (
    (1000, 4, 1, False),
    (1000, 10, 1, False),
    (10_000, 100, 1, False),
    (10_000, 100, 10, False),
    (10_000, 100, 10, True),
)
READ = size(5.0, 0.5)  # seconds until each has read its payments
IDLE = size(20.0, 1.0)  # seconds for which each account only follows its open payments


@dataclass(frozen=True)
class Unit:
    """What one thing costs here."""

    create: float  # CPU seconds of the host
    create_in_database: float  # CPU seconds of the server
    following: float  # CPU seconds of the host a second, for an account with open payments
    following_in_database: float  # the same of the server
    sessions: float  # of one process at one server, at most
    account: float  # bytes
    process: float  # bytes, without accounts


# One host


async def host(urls: Sequence[str], accounts: Sequence[str]) -> None:
    """Make payments when told to, follow them, and report each time."""
    from mobilemoney_async import Merchants, SQLStore
    from tests.support.second_service import SecondService

    stores = [SQLStore(url) for url in urls]
    services = {
        account: SecondService(utcnow=lambda: datetime.now(UTC), merchants={f"token.of.{account}": account})
        for account in accounts
    }

    async def store_of(account: str) -> SQLStore:
        return stores[zlib.crc32(account.encode()) % len(stores)]

    async def auth(account: str) -> str:
        return f"token.of.{account}"

    limiter, empty = anyio.CapacityLimiter(AT_ONCE), resident()
    async with (
        Merchants("https://pay.example/v1", store=store_of, auth=auth, transport=services.__getitem__) as merchants,
        AsyncExitStack() as stack,
    ):

        async def pay(account: str, number: int) -> None:
            async with limiter:
                client = await merchants.client(account)
                await client.collections.create(
                    phone_number="+255681234567", amount=1000 + number, idempotency_key=f"order-{number}"
                )

        async def pay_all(numbers: Sequence[int]) -> None:
            async with anyio.create_task_group() as tasks:
                for number in numbers:
                    for account in accounts:
                        tasks.start_soon(pay, account, number)

        await pay_all([0])
        await told()
        began, cpu = time.perf_counter(), time.process_time()
        await pay_all(range(1, 1 + EACH))
        report(seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)
        pollers = {
            account: await stack.enter_async_context((await merchants.client(account)).poller(resume=True))
            for account in accounts
        }
        await anyio.sleep(READ)
        await told()
        cpu = time.process_time()
        await anyio.sleep(IDLE)
        report(cpu=time.process_time() - cpu, bytes=resident() - empty, empty=empty)
        await told()
        lags: list[float] = []
        ended = time.perf_counter()

        async def see(account: str, transaction_id: str) -> None:
            await pollers[account].wait(transaction_id)
            lags.append(time.perf_counter() - ended)

        async with anyio.create_task_group() as tasks:
            for account, service in services.items():
                for payment in service.payments:
                    service.finish(payment)
                tasks.start_soon(see, account, service.payments[-1].id)
        report(lags=lags)


def report(**found: Any) -> None:
    print(json.dumps(found), flush=True)


async def told() -> None:
    """Wait for the parent's word."""
    report(ready=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


# The fleet


def measure(accounts: int, hosts: int, databases: int) -> Unit:
    """Run a fleet and return its unit costs; prints what it did."""
    from tests.support.databases import postgres

    with ExitStack() as stack:
        urls = [stack.enter_context(postgres()).new_database() for _ in range(databases)]
        for url in urls:
            sync(url)
        shares = [[f"shop-{number}" for number in range(accounts)][each::hosts] for each in range(hosts)]
        processes = [stack.enter_context(start(urls, share)) for share in shares]
        receive(processes, "ready")
        bare = statistics.mean(bare_commits(url) for url in urls)
        before = [server_cpu(url) for url in urls]
        made = go(processes, "seconds")
        after = [server_cpu(url) for url in urls]
        before_following, at = receive_ready(processes, urls)
        followed = go(processes, "bytes")
        after_following, took = [server_cpu(url) for url in urls], time.perf_counter() - at
        sessions = max(sessions_of(url) for url in urls)
        receive(processes, "ready")
        lags = sorted(lag for each in go(processes, "lags") for lag in each["lags"])
        for process in processes:
            process.wait(60)
    creates = accounts * EACH
    seconds = max(each["seconds"] for each in made)
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    print(f"{accounts} accounts, {hosts} hosts, {databases} databases, {machine}")
    print(f"  creates: {creates / seconds:,.0f}/s; one connection's INSERTs and commits: {bare:,.0f}/s")
    print(f"  sessions of one server at most: {sessions}")
    print(f"  lag of the poller: median {statistics.median(lags):.1f} s, longest {lags[-1]:.1f} s")
    in_following = sum(b - a for a, b in zip(before_following, after_following, strict=True))
    return Unit(
        create=sum(each["cpu"] for each in made) / creates,
        create_in_database=sum(b - a for a, b in zip(before, after, strict=True)) / creates,
        following=sum(each["cpu"] for each in followed) / IDLE / accounts,
        following_in_database=in_following / took / accounts,
        sessions=MOST_SESSIONS,
        account=sum(each["bytes"] for each in followed) / accounts,
        process=statistics.mean(each["empty"] for each in followed),
    )


def show(unit: Unit) -> None:
    for name, factor, kind in (
        ("create", 1e3, "ms CPU of the host for a create"),
        ("create_in_database", 1e3, "ms CPU of PostgreSQL for a create"),
        ("following", 1e3, "ms CPU of the host a second for an account with open payments"),
        ("following_in_database", 1e3, "ms CPU of PostgreSQL a second for it"),
        ("sessions", 1, "sessions of a host at each database"),
        ("account", 1e-3, "kB for an account that pays and follows"),
        ("process", 1e-6, "MB for a process without accounts"),
    ):
        print(f"  {getattr(unit, name) * factor:.2f} {kind}")


def start(urls: Sequence[str], accounts: Sequence[str]) -> subprocess.Popen[str]:
    command = module_command("benchmarks.fleet", "host", json.dumps(urls), json.dumps(accounts))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def receive(processes: Sequence[subprocess.Popen[str]], name: str) -> list[dict[str, Any]]:
    """Return the next report of each host."""
    found = []
    for process in processes:
        output: IO[str] | None = process.stdout
        assert output is not None
        found.append(json.loads(output.readline()))
        assert name in found[-1], found[-1]
    return found


def receive_ready(processes: Sequence[subprocess.Popen[str]], urls: Sequence[str]) -> tuple[list[float], float]:
    """Wait until each host is ready; return what the servers have used, and the time."""
    receive(processes, "ready")
    return [server_cpu(url) for url in urls], time.perf_counter()


def go(processes: Sequence[subprocess.Popen[str]], name: str) -> list[dict[str, Any]]:
    """Let all hosts go on, and return their reports."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return receive(processes, name)


def sessions_of(url: str) -> int:
    own = "datname = current_database() AND pid <> pg_backend_pid()"
    return int(ask(url, f"SELECT count(*) FROM pg_stat_activity WHERE {own}"))


def server_cpu(url: str) -> float:
    """Return the CPU seconds of a server and all its processes, also of those that have ended."""
    main = int(ask(url, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)"))
    used = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("ascii").rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(stat.parent.name) == main:
            used += sum(map(int, fields[11:15]))
        elif int(fields[1]) == main:
            used += sum(map(int, fields[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


def bare_commits(url: str) -> float:
    """Return how many INSERTs and commits one connection makes in a second."""
    with closing(connect(url)) as connection:
        connection.execute("CREATE TABLE bare (id int)")
        connection.commit()
        began = time.perf_counter()
        for number in range(300):
            connection.execute("INSERT INTO bare VALUES (%s)", [number])
            connection.commit()
        return 300 / (time.perf_counter() - began)


# On paper


def reckon(unit: Unit, *, accounts: int, hosts: int, databases: int, apart: bool, rate: float) -> str:
    """Return a row: what a fleet needs where each account has open payments all the time.

    Args:
        unit: What was measured.
        accounts: In all.
        hosts: In all; one process on each.
        databases: PostgreSQL servers of `CORES` cores.
        apart: Whether a host serves the accounts of one database only; otherwise those of all.
        rate: Creates a minute of each account.
    """
    creates = accounts * rate / 60
    host_cores = (creates * unit.create + accounts * unit.following) / hosts
    server_cores = (creates * unit.create_in_database + accounts * unit.following_in_database) / databases
    sessions = unit.sessions * hosts / (databases if apart else 1)
    memory = (unit.process + unit.account * accounts / hosts) / 1e6
    share, first = max(
        (sessions / 100, "of max_connections=100"),
        (server_cores / CORES, f"of {CORES} cores of a server"),
        (host_cores, "of the one core that a process can use"),
    )
    figures = (f"{creates:,.0f}", f"{host_cores:.2f}", f"{server_cores:.2f}", f"{sessions:,.0f}", f"{memory:,.0f}")
    fleet = (f"{accounts:,}", f"{hosts}", f"{databases}{', apart' if apart else ''}")
    return f"| {' | '.join([*fleet, *figures])} | {share:.0%} {first} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("accounts", size(60, 2)), ("hosts", size(2, 1)), ("databases", size(2, 1))):
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    unit = measure(given.accounts, given.hosts, given.databases)
    show(unit)
    names = ("accounts", "hosts", "databases", "creates/s", "cores of a host", "of a server", "sessions of a server")
    print("|", " | ".join([*names, "MB of a host", "first limit"]), "|")
    print("|" + "---|" * 9)
    for accounts, hosts, databases, apart in FLEETS:
        for rate in (0.6, 6.0):
            print(reckon(unit, accounts=accounts, hosts=hosts, databases=databases, apart=apart, rate=rate))


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        anyio.run(host, json.loads(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        main()
