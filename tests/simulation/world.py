"""World: one seed, one history. It gives the package its clock, its randomness, its wire and its database runner."""

from __future__ import annotations

import contextvars
import functools
import gc
import hashlib
import itertools
import logging
import random
import re
import secrets
import sqlite3
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import anyio
import attrs
import psycopg
import sqlalchemy as sa
from anyio._backends import _asyncio as backend

from mobilemoney_async.database import change_watch, connections, encryption, engine, group
from mobilemoney_async.database.connections import make_engine
from mobilemoney_async.merchants import account_auth
from mobilemoney_async.payments.feed import feed
from mobilemoney_async.payments.outbox import dispatcher
from mobilemoney_async.payments.ownership import binding, duplicates
from mobilemoney_async.sharing import login
from mobilemoney_async.sharing.poller import StoreChannel
from mobilemoney_async.testing import virtual_time
from tests.simulation.disk import Books, PostgresDisk, SQLiteDisk
from tests.simulation.loop import PROCESS, Life, Livelock, SimulatedLoop, numbered, ordered_scope
from tests.simulation.plan import Plan
from tests.simulation.service import PASSWORD, Payment, Service
from tests.simulation.trio_loop import TrioLoop
from tests.support.databases import Postgres

T = TypeVar("T")
BEGAN = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
LONGEST = 40 * 86_400.0


class Broken(AssertionError):
    """A law that does not hold."""


@attrs.frozen
class Happening:
    """One line of the history."""

    at: float
    who: str
    what: str

    @property
    def when(self) -> str:
        """Time since the world began."""
        return clock(self.at)

    def __str__(self) -> str:
        return f"{self.when}  {self.who:<12}  {self.what}"


def clock(at: float) -> str:
    """Return a time of the world as days and hours since it began."""
    days, rest = divmod(at, 86_400)
    return f"{int(days)}d {int(rest // 3600):02d}:{int(rest % 3600 // 60):02d}:{rest % 60:06.3f}"


@attrs.define(eq=False)
class World:
    """Everything that one history has.

    Attributes:
        history: All that has happened.
        words: The keys that an operator has called absent, with the times.
        wrong: The keys about which an operator was wrong.
        departures: The times at which requests left.
        broken: The laws that were seen broken.
        called: The orders of a merchant without a store that have had their call.
        later: The orders that their customers will pay for in another opening.
        is_calm: Whether faults have stopped.
        audited: The transactions that differ by the audit at the end.
        ended_states: The last state and status of each payment that was seen at its end.
        timeline: That of the database's server: a failover changes it.
        on_arrival: Is told the key of each create that arrives at the service, and None of other requests.
        is_restored: Whether the database was restored from a backup.
        is_doubted: Whether the package took it for restored, as it does where the last transaction before a pause is
            one that nobody claims: then its feed begins anew, and readers with a cursor read all of it again.
    """

    plan: Plan
    disk: SQLiteDisk | PostgresDisk
    loop: SimulatedLoop | TrioLoop
    service: Service = attrs.field(init=False)
    history: list[Happening] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)
    words: list[tuple[str, float]] = attrs.field(factory=list)
    wrong: set[str] = attrs.field(factory=set)
    made: dict[str, list[Payment]] = attrs.field(factory=dict)
    departures: list[float] = attrs.field(factory=list)
    broken: list[str] = attrs.field(factory=list)
    lives: dict[int, Life] = attrs.field(factory=dict)
    ended: dict[str, anyio.Event] = attrs.field(factory=dict)
    called: set[str] = attrs.field(factory=set)
    later: set[str] = attrs.field(factory=set)
    is_calm: bool = False
    is_over: bool = False
    is_audited: bool = False
    audited: set[str] | None = None
    is_restored: bool = False
    restored_at: float = 0.0
    is_doubted: bool = False
    timeline: int = 1
    skew: float = 0.0
    full_until: float = 0.0
    slow_until: float = 0.0
    away_until: float = 0.0
    dark_until: float = 0.0
    ended_states: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    on_arrival: Callable[[str | None], object] = bool
    _dice: dict[str, random.Random] = attrs.field(factory=dict)
    _requests: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))

    def __attrs_post_init__(self) -> None:
        self.service = Service(
            self.now, BEGAN, self.plan.nature, self.strikes, self.dice("service"), self.plan.grace + self.plan.timeout
        )
        self.service.on_change.append(self._note_made)

    def dice(self, name: str) -> random.Random:
        """Return a source of chance for one purpose: what is drawn for one does not change the others."""
        return self._dice.setdefault(name, random.Random(f"{self.plan.seed}/{name}"))

    def now(self) -> float:
        """Return the time since the world began, seconds."""
        return self.loop.time()

    def host_time(self) -> float:
        """Return the clock of the merchant's host, seconds since 1970."""
        return BEGAN.timestamp() + self.now() * (1 + self.plan.drift) + self.skew

    def store_time(self) -> float:
        """Return the clock that the store's times are of: that of the server, if there is one, or of the host."""
        return BEGAN.timestamp() + self.now() + 0.7 if self.disk.has_server else self.host_time()

    def utcnow(self) -> datetime:
        """Return the same, as the merchant's people and laws look at it."""
        return datetime.fromtimestamp(self.store_time(), UTC)

    def next_request(self) -> int:
        """Return the number of a request."""
        return next(self._requests)

    @property
    def has_stopped(self) -> bool:
        """Return whether a process is stopped that will go on."""
        return any(life.is_stopped and not life.is_dead for life in self.lives.values())

    @property
    def running(self) -> int:
        """Return how many processes the merchant runs now."""
        return min(2, self.plan.processes) if self.is_calm else self.plan.processes

    def note(self, what: str, who: str | None = None) -> None:
        """Write a line of the history."""
        life = PROCESS.get()
        if self.is_over or (life is not None and life.is_dead):
            return
        if who is None:
            who = "world" if life is None else life.name
        self.history.append(Happening(self.now(), who, re.sub(r"/\S*/world-\w+", "<folder>", what)))

    def breaks(self, law: str) -> None:
        """Note that a law is broken, once."""
        life, law = PROCESS.get(), law[:400]
        if law not in self.broken and not self.is_over and (life is None or not life.is_dead):
            self.broken.append(law)
            self.note(f"LAW BROKEN: {law}", "laws")

    def note_failure(self, what: dict[str, Any]) -> None:
        """Note that a callback of the simulator has failed: the history is worth nothing then."""
        if "handle" in what:
            self.breaks(f"the simulator has failed: {what.get('exception')!r}")

    def strikes(self, fault: str) -> bool:
        """Return whether a fault happens now, by its weight."""
        weight = self.plan.weights.get(fault, 0.0)
        if self.is_calm or not weight or self.dice(f"fault {fault}").random() >= weight:
            return False
        self.counts[fault] += 1
        return True

    @property
    def strikes_hosts(self) -> bool:
        """Return whether the wall clocks of hosts may jump."""
        return self.disk.has_server and "wall_clock_jumps" in self.plan.weights

    def strikes_happened(self, *faults: str) -> bool:
        """Return whether one of some faults has happened."""
        return any(self.counts[each] for each in faults)

    def _note_made(self, payment: Payment) -> None:
        if payment.owner is not None:
            self.made.setdefault(payment.owner, []).append(payment)

    def clear(self, key: str) -> list[Payment]:
        """Return the payments of a key that were made since the last word on it."""
        spoken = max((at for each, at in self.words if each == key), default=-1.0)
        return [each for each in self.made.get(key, []) if each.made_at > spoken]

    # Death, and things that happen to a process at any await

    def kill(self, life: Life, why: str) -> None:
        """End a process as SIGKILL does."""
        if not life.is_dead:
            self.note(f"killed {why}", life.name)
            self.counts["killed"] += 1
            self.loop.kill(life)
            for each in life.engines:
                each.dispose()
            self.ended[life.name].set()

    def cut_power(self) -> None:
        """End all processes at once; the commits that were not synced to the disk are lost, and the host is away."""
        self.note("the power is cut", "world")
        for life in self.lives.values():
            if not life.is_dead and not self.ended[life.name].is_set():
                self.kill(life, "by the power cut")
        if self.disk.lose_unsynced():
            self.note("database: commits that were not synced are lost", "world")
        self.dark_until = self.now() + 90

    async def point(self, where: str) -> None:
        """Let happen to the running process what may happen to it here."""
        life = PROCESS.get()
        if life is None:
            return
        life.require_alive()
        if self.strikes("crash"):
            self.kill(life, where)
            await self.loop.create_future()
        if self.strikes("power_cut"):
            self.loop.call_soon(self.cut_power, context=contextvars.Context())
            await self.loop.create_future()
        if self.strikes("stop"):
            self.stop(life, where, self.dice("stop").choice([0.5, 3.0, 15.0, 60.0, 400.0]))
        if self.strikes("clock_jumps"):
            self.skew = self.dice("skew").uniform(-2, 2)
            self.note(f"the host's clock is now {self.skew:+.3f} s off", "world")
        if self.disk.has_server and self.strikes("wall_clock_jumps"):
            self.skew = self.dice("wall clock").uniform(-3, 3) * 3_600
            self.note(f"the hosts' clocks are now {self.skew / 60:+.0f} minutes off", "world")

    def stop(self, life: Life, where: str, seconds: float) -> None:
        """Stop a process as SIGSTOP does, for a while."""
        self.note(f"stopped for {seconds:g} s {where}", life.name)
        life.is_stopped = True
        self.loop.call_at(self.now() + seconds, self._resume, life, context=contextvars.Context())

    def _resume(self, life: Life) -> None:
        if not life.is_dead:
            self.note("goes on", life.name)
            self.loop.resume(life)

    # The database

    def knows_merchant(self) -> bool:
        """Return whether the store knows whose transactions are its own."""
        query = "SELECT count(*) FROM mobilemoney_accounts WHERE merchant_id <> ''"
        return self.plan.has_store and self.disk.look(query) != [(0,)]

    async def run_inline(self, work: Callable[[], T], *, limiter: object = None) -> T:
        """Run a piece of work of the database, in place of a thread: at a time of the seed's, in one step."""
        dice = self.dice("disk")
        if PROCESS.get() is not None:
            self._trouble()
        is_slow = self.now() < self.slow_until and not self.is_calm
        await anyio.sleep(dice.uniform(0, 8) if is_slow else dice.choice([0.0, 0.0, 0.001, 0.02]))
        await self.point("before a transaction")
        try:
            return work()
        finally:
            # Its task may be cancelled now, but gets that at its next await only.
            with anyio.CancelScope(shield=True):
                await self.point("after a transaction")
                life = PROCESS.get()
                if life is not None and self.strikes("process_sleeps"):
                    self.stop(life, "after a transaction", dice.uniform(100, 900))
                await anyio.sleep(dice.choice([0.0, 0.001, 0.005]))

    def _trouble(self) -> None:
        """Let the database be full, slow or away for a while."""
        for fault in ("full", "slow", "away"):
            if self.strikes(f"database_{fault}"):
                seconds = self.dice("trouble").choice([0.5, 5.0, 20.0, 60.0])
                setattr(self, f"{fault}_until", self.now() + seconds)
                self.note(f"the database is {fault} for {seconds:g} s", "world")

    def run_transaction(self, run: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run one transaction, which may fail before its end, or after it although it was committed."""
        writes = options.get("writes", False)
        if PROCESS.get() is not None and not self.is_calm:
            trouble = "disk I/O error" if self.strikes("database_fails") else None
            if self.now() < self.away_until:
                trouble = "unable to open database file"
            elif writes and self.now() < self.full_until:
                trouble = "database or disk is full"
            if self.disk.has_server and self.strikes("serialization"):
                self.note("database: a transaction fails because of another")
                raise sa.exc.OperationalError("statement", {}, psycopg.errors.SerializationFailure())
            if trouble is not None:
                self.note(f"database: {trouble}")
                raise sa.exc.OperationalError("statement", {}, sqlite3.OperationalError(trouble))
        if self.plan.weights.get("power_cut") and not self.is_calm and writes:
            self.disk.note_commit(is_durable=options.get("durable", True))
        done = run(*args, **options)
        if PROCESS.get() is not None and writes and self.strikes("commit_lost"):
            self.note("database: a commit is done, and reported as failed")
            raise sa.exc.OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))
        return done

    async def in_books(self, work: Callable[[Books], T]) -> T:
        """Run a transaction of the merchant's own on the same database."""
        return await self.run_inline(lambda: self.disk.transact(work))

    def restore_backup(self) -> bool:
        """Bring the database back to its last backup, while no process runs; return whether there is one."""
        known = {key for (key,) in self.disk.look("SELECT key FROM mobilemoney_payment_records")}
        if is_there := self.disk.restore_backup():
            left = {key for (key,) in self.disk.look("SELECT key FROM mobilemoney_payment_records")}
            self.is_restored = self.is_doubted = True
            self.restored_at = self.now()
            self.timeline += 1
            self.note(f"the database is restored from a backup, and has forgotten {sorted(known - left)}", "world")
        return is_there

    def read_clock(self, database: Any) -> float:
        """Return the clock of the database's server, which is not the host's; see `Database`."""
        asked_at, shown = database.wall_clock.host(), self.store_time()
        database.wall_clock.seen(shown, after=asked_at, before=asked_at)
        return shown

    def remember_engine(self, url: sa.URL, **options: Any) -> sa.Engine:
        """Return a new engine, whose connections end with its process."""
        made, life = make_engine(url, **options), PROCESS.get()
        if life is not None:
            life.engines.append(made)
        return made

    def read_notices(self, read: Callable[[Any], None], wire: Any) -> None:
        """Read what the server has told a listener, or lose it."""
        if self.strikes("notify_lost"):
            wire.consume_input()
            while wire.notifies() is not None:
                self.note("database: a notice is lost")
            return
        read(wire)

    def digest(self) -> str:
        """Return the digest of the history."""
        return hashlib.sha256("\n".join(map(str, self.history)).encode()).hexdigest()[:16]


class LogLaw(logging.Handler):
    """Holds the log to the law that it shows no secret and no whole phone number; writes it into the history."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Check a line."""
        line = self.format(record)
        check_text(self._world, line)
        if "the store is behind the service" in line:
            self._world.is_doubted = True
        if record.levelno >= logging.INFO:
            self._world.note(f"log {record.levelname}: {line.splitlines()[0]}")


_SECRET = re.compile(rf"{PASSWORD}|secret\.token|key-of-the-store|68123450[0-9]")


def check_text(world: World, text: str) -> None:
    """Hold a text for operators to the law that it shows no secret and no whole phone number."""
    if found := _SECRET.search(text):
        world.breaks(f"a secret in a log line or an error: {text[max(0, found.start() - 60) : found.end() + 20]}")


async def run_aside(work: Callable[[], T]) -> T:
    """Run a computation, in place of a thread: one at work stops the clock, also that of a process which is stopped."""
    await anyio.lowlevel.checkpoint()
    return work()


def give_from_outside(world: World) -> None:
    """Give the package the world's clock, chance and runner, until this process ends."""
    ids, tokens = world.dice("ids"), world.dice("tokens")
    run = connections.Connections.transact

    def transact(self: Any, *args: Any, **options: Any) -> Any:
        return world.run_transaction(functools.partial(run, self), *args, **options)

    watch = SimpleNamespace(time=world.host_time, sleep=lambda seconds: None)
    for target, name, value in (
        *((module, "run_in_thread", world.run_inline) for module in (engine, group)),
        *((module, "run_in_thread", run_aside) for module in (account_auth, binding, login)),
        (engine, "clock_stands_still", lambda: False),
        (engine, "time", watch),
        *((module, "monotonic", world.now) for module in (engine, connections)),
        (connections.Connections, "transact", transact),
        (connections, "make_engine", world.remember_engine),
        *(_of_server(world) if world.disk.has_server else ()),
        (change_watch, "_ChangeReader", numbered(change_watch._ChangeReader)),
        (change_watch, "_POLL", world.plan.idle),
        (feed, "_RIVAL_PAUSE", max(1.0, world.plan.idle)),
        (StoreChannel, "poll", world.plan.idle),
        (dispatcher, "_LOOK", world.plan.idle),
        (encryption, "_scrypt", _stretch),
        (backend, "CancelScope", ordered_scope()),
        (uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
        (secrets, "token_hex", lambda size=32: tokens.randbytes(size).hex()),
    ):
        getattr(target, name)  # what is gone from the package cannot be replaced
        setattr(target, name, value)
    random.seed(f"{world.plan.seed}/package")
    logger = logging.getLogger("mobilemoney_async")
    logger.handlers[:] = [LogLaw(world)]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


def _stretch(password: bytes, salt: bytes, length: int) -> bytes:
    """Return a key in no time: nobody tries passwords here."""
    return hashlib.pbkdf2_hmac("sha256", password, salt, 1, length)


def _of_server(world: World) -> Iterator[tuple[Any, str, Any]]:
    """Yield what is replaced where the database is a server: its clock and timeline, and what it tells listeners."""
    read = change_watch.ChangeWatch._read

    def read_clock(self: Any, connection: sa.Connection) -> float:
        return world.read_clock(self)

    def read_notices(self: Any, wire: Any) -> None:
        world.read_notices(functools.partial(read, self), wire)

    yield engine.Database, "_read_clock", read_clock
    yield change_watch.ChangeWatch, "_read", read_notices
    for module in (binding, duplicates):
        yield module, "timeline", lambda connection: world.timeline
    yield virtual_time, "_GRACE", 0.0002
    yield virtual_time, "_PATIENCE", 0.0  # a socket that listens owes no answer, and no other one is read by the loop


def run_world(
    plan: Plan, main: Callable[[World], Awaitable[None]], *, is_trio: bool = False, server: Postgres | None = None
) -> World:
    """Run a world to its end, and return it with its history and the laws that it broke.

    For a process of its own: what it changes stays so.
    """
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="world-", dir=parent, ignore_cleanup_errors=True) as folder:
        loop = TrioLoop() if is_trio else SimulatedLoop()
        disk = SQLiteDisk(Path(folder)) if server is None else PostgresDisk(server)
        world = World(plan, disk, loop)
        gc.disable()  # it would close what the dead have left, at any time
        sys.unraisablehook = lambda unraisable: None
        give_from_outside(world)
        if isinstance(loop, SimulatedLoop):
            loop.set_exception_handler(lambda _, what: world.note_failure(what))
        try:
            loop.run_until_complete(_bounded(world, main))
        except Livelock as exc:
            world.breaks(str(exc))
        world.is_over = True
        return world


async def _bounded(world: World, main: Callable[[World], Awaitable[None]]) -> None:
    with anyio.move_on_after(LONGEST) as scope:
        await main(world)
    if scope.cancelled_caught:
        world.breaks(f"the world has not come to its end in {timedelta(seconds=LONGEST)}")
