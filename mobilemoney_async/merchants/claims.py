"""Claims: which host of a platform serves which account, and where there is something to do.

All of it are rows of the table of leases, so that no new table is needed. `(account, "worker")` is the claim of an
account in which work is due; its column `followed` says which work. `("", "worker <host>")` says that a host takes any.
`("", "work")` is the look for work, which one host at a time makes; `followed` is the number of accounts with work.

Critical section: a claim changes hands under its row's lock, and only after its end by the database's clock. A host
counts its own claims to an earlier end, by its own clock, which goes on while the process is stopped.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import attrs
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from mobilemoney_async.calls.pipeline import ClaimEndedError
from mobilemoney_async.cancellation import shielded
from mobilemoney_async.database.clock import SETBACK
from mobilemoney_async.database.engine import Clock, Database, ahead
from mobilemoney_async.database.schema import insert_missing, leases, stores
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.due import Work, accounts_with_work
from mobilemoney_async.payments.queries import chunks

logger: logging.Logger = logging.getLogger("mobilemoney_async")

TTL = 7.0
"""Length of a claim, seconds. A host renews all of its claims every second."""

# Seconds by which a host counts its claims to end earlier: for a request to arrive, and clocks that drift.
_MARGIN = 1.0
# Seconds between two looks for work, for which the row of a dead host is kept, and for giving claims back at the end.
_LOOK, _KEPT, _SHIELD = 2.0, 60.0, 10.0
# Part of its accounts that a host may have too many, until it gives some back: so many in a second at most, and none
# while so many wait for a host.
_SLACK, _MOST_GIVEN, _MOST_WAITING = 0.1, 10, 50
# Renewals in a row after which a lock is no other host's.
_LOCKED_LONG = 3
_CLAIM, _LOOK_NAME, _HOST = "worker", "work", "worker "
_FREE: dict[str, Any] = {"holder": None, "until": 0.0, "written": 0.0}

_here = leases.c
_IS_CLAIM = _here.name == _CLAIM


@attrs.define(eq=False)
class Claim:
    """Claim of this host to one account.

    Attributes:
        account: The account.
        host: Name of this host.
        until: When it ends unless it is renewed, on the event loop's clock.
        work: The work that is due in the account.
        has_rivals: Whether there were other hosts when it was renewed last.
        poller: Of a poller whose lease is renewed along with the claim: its name, and the two numbers of the row.
        ttl: Seconds for which the host has it after each renewal.
    """

    account: str
    host: str
    until: float
    work: Work
    has_rivals: bool = False
    poller: tuple[str, int, int] | None = None
    ttl: float = TTL
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    def require(self) -> None:
        """Raise `ClaimEndedError` if another host may serve the account by now."""
        if anyio.current_time() >= self.until:
            said = "another host may serve this account by now"
            said = said if self.has_rivals else "the account's claim has ended: the store was not reached for too long"
            raise ClaimEndedError(said, outcome="not_sent")

    def note_poller(self, name: str | None, followed: int, told: int) -> None:
        """Note the poller that holds the account's lease, if it is one of this host."""
        self.poller = None if name is None else (name, followed, told)

    def note_work(self, work: Work) -> None:
        """Note which work is due."""
        if work != self.work:
            self.work = work
            self._changed.set()
            self._changed = anyio.Event()

    async def is_due(self, work: Work) -> None:
        """Wait until some work is due."""
        while not self.work & work:
            await self._changed.wait()

    async def is_done(self, work: Work, *, linger: float) -> None:
        """Wait until some work has not been due for so many seconds."""
        while True:
            while self.work & work:
                await self._changed.wait()
            with anyio.move_on_after(linger):
                await self.is_due(work)
                continue
            return


@attrs.frozen
class Renewal:
    """Result of a renewal: new claims, those that another host has by now, and how many to give back."""

    new: Sequence[Claim]
    lost: Sequence[Claim]
    surplus: int
    looks: bool  # this host makes the next look for work
    has_rivals: bool  # there are other hosts


@attrs.frozen
class _Asked:
    """What one renewal is to do: hosts and accounts by name, and the most claims that it may add."""

    host: str
    held: Sequence[str]
    pollers: Sequence[str]
    given_back: Collection[str]
    most: int


@attrs.frozen
class _Found:
    """Rows of one renewal, by account: the work of the own claims and of new ones, and the own pollers.

    Claims that another transaction has locked are kept, and not renewed: each ends by itself unless that ends.
    """

    kept: dict[str, int]
    locked: frozenset[str]
    new: dict[str, int]
    pollers: dict[str, tuple[str, int, int]]
    surplus: int
    looks: bool
    has_rivals: bool


class Claims:
    """Claims of one host in one database."""

    def __init__(self, database: Database, grace: float, utcnow: Callable[[], datetime]) -> None:
        self._database = database
        self._grace = grace
        self._utcnow = utcnow
        self.host: str = uuid.uuid4().hex
        self.held: dict[str, Claim] = {}
        self._locked: dict[str, int] = {}  # for how many renewals, by account

    async def require_service(self, address: str) -> None:
        """Note the address of the service that all workers of the store serve, unless one is noted.

        Raises:
            StoreError: They serve another one; or the store failed.
        """

        def note(connection: sa.Connection) -> str:
            connection.execute(stores.update().where(stores.c.service.is_(None)).values(service=address))
            return str(connection.execute(sa.select(stores.c.service)).scalar_one())

        if (noted := await self._database.write(note)) != address:
            said = (
                f"the workers of this store serve {noted}, and this one is for {address}: it takes no account; use a "
                "store of its own, or, if the service has moved, end all workers and set mobilemoney_schema.service "
                "to NULL"
            )
            logger.error(said)
            raise StoreError(said, outcome="not_sent")

    async def renew(self, *, given_back: Collection[str], most: int) -> Renewal:
        """Renew all claims and give some back, in one transaction, and claim further accounts, `most` at most.

        A host that takes none now, since it leaves or cannot start those that it has, counts in nobody's share.

        Raises:
            StoreError: The store failed. The claims end by themselves; call it again, with the same arguments.
        """
        began, kept = anyio.current_time(), {each: self.held[each] for each in self.held if each not in given_back}
        pollers = [claim.poller[0] for claim in kept.values() if claim.poller is not None]
        asked = _Asked(self.host, sorted(kept), pollers, sorted(given_back), most)
        with ahead():
            found, _ = await self._database.timed(lambda connection, clock: _renew(connection, clock, asked))
        until = began + TTL - _MARGIN
        lost = [claim for account, claim in kept.items() if account not in found.kept]
        self._locked = {account: self._locked.get(account, 0) + 1 for account in found.locked}
        for account, times in self._locked.items():
            if times == _LOCKED_LONG:
                logger.warning("another transaction has locked the claim of account %r, which ends like that", account)
        for claim in lost:
            claim.until, claim.poller = -math.inf, None
        self.held = {account: claim for account, claim in kept.items() if account in found.kept}
        for account, claim in self.held.items():
            claim.has_rivals = found.has_rivals
            if account not in found.locked:
                claim.until = until
            if claim.poller is not None:
                claim.poller = found.pollers.get(account)
            claim.note_work(Work(found.kept[account]))
        new = [Claim(each, self.host, until, Work(due), found.has_rivals) for each, due in found.new.items()]
        self.held |= {claim.account: claim for claim in new}
        return Renewal(new, lost, found.surplus, found.looks, found.has_rivals)

    async def look(self) -> None:
        """Look for the accounts in which work is due, for all hosts.

        Raises:
            StoreError: The store failed.
        """
        at = self._utcnow()
        work = await self._database.read(lambda connection: accounts_with_work(connection, at, self._grace))
        await self._database.timed(lambda connection, clock: _note_work(connection, clock, work))

    async def leave(self) -> None:
        """Give all claims back; if the store fails, they end by themselves."""
        self.held.clear()

        def work(connection: sa.Connection) -> None:
            connection.execute(leases.update().where(_unlocked(_IS_CLAIM, _here.holder == self.host)).values(_FREE))
            connection.execute(leases.delete().where(_unlocked(*_is(_HOST + self.host))))

        await shielded(partial(self._database.write, work, durable=False), timeout=_SHIELD, ignored=StoreError)


def _renew(connection: sa.Connection, clock: Clock, asked: _Asked) -> _Found:
    run, own, is_own = connection.execute, _HOST + asked.host, _here.holder == asked.host
    now = clock()
    renewed = {"until": now + TTL, "written": now}
    takes_some = asked.most > 0
    alive = {"holder": asked.host, **renewed} | ({} if takes_some else {"until": now})
    if not run(leases.update().where(_unlocked(*_is(own))).values(alive)).rowcount:
        run(insert_missing(leases, connection.dialect.name), {"account": "", "name": own, **alive})
    if asked.given_back:
        is_given = _is_among(connection, _here.account, asked.given_back)
        run(leases.update().where(_unlocked(_IS_CLAIM, is_given, is_own)).values(_FREE))
    is_held = _is_among(connection, _here.account, asked.held)
    kept, seen = dict[str, int](), dict[str, tuple[str, int, int]]()
    locked = frozenset[str]()
    if asked.held:
        work = (_here.account, _here.followed)
        own_ones = leases.update().where(_unlocked(_IS_CLAIM, is_held, is_own)).values(renewed).returning(*work)
        kept = {row.account: row.followed for row in run(own_ones)}
        if len(kept) < len(asked.held):
            rest = sa.select(*work).where(_IS_CLAIM, is_held, is_own)
            others = {row.account: row.followed for row in run(rest) if row.account not in kept}
            kept, locked = kept | others, frozenset(others)
    if asked.pollers:
        is_poller = (_here.name == "poller", is_held, _is_among(connection, _here.holder, asked.pollers))
        # One that is locked renews itself, or gives its lease back.
        run(leases.update().where(_unlocked(*is_poller)).values(renewed))
        rows = run(sa.select(_here.account, _here.holder, _here.followed, _here.told).where(*is_poller))
        seen = {row.account: (row.holder, row.followed, row.told) for row in rows}
    shared = {row.name: row for row in run(sa.select(leases).where(_here.account == ""))}
    living = {name for name, row in shared.items() if name.startswith(_HOST) and row.until > now}
    hosts = len(living | {own})
    look = shared.get(_LOOK_NAME)
    share, busy = math.ceil((0 if look is None else look.followed) / hosts), sum(due != 0 for due in kept.values())
    new = _claim(connection, asked.host, now, min(asked.most, share - busy))
    looks = takes_some and _takes_look(connection, look, now)
    return _Found(kept, locked, new, seen, _surplus(connection, now, busy, share), looks, hosts > 1)


def _surplus(connection: sa.Connection, now: float, busy: int, share: int) -> int:
    """Return how many accounts with work to give back now: other hosts have to start each of them anew."""
    if busy <= share + _SLACK * share:
        return 0
    waiting = connection.execute(sa.select(_here.account).where(*_is_waiting(now)).limit(_MOST_WAITING)).all()
    return min(busy - share, _MOST_GIVEN) if len(waiting) < _MOST_WAITING else 0


def _claim(connection: sa.Connection, host: str, now: float, most: int) -> dict[str, int]:
    """Claim accounts with work that no living host has, and end the leases there of claims before."""
    if most <= 0:
        return {}
    run = connection.execute
    free = sa.select(_here.account, _here.followed).where(*_is_waiting(now))
    new = {row.account: row.followed for row in run(free.limit(most).with_for_update(skip_locked=True))}
    if new:
        taken = leases.update().where(_IS_CLAIM, _here.account.in_(new))
        run(taken.values(holder=host, until=now + TTL, written=now, epoch=_here.epoch + 1))
        # Of a dead host, or of one that gave the account back and not the lease, since the database failed just then.
        was_claimed = _here.holder.like("%.%")
        run(leases.update().where(_unlocked(_here.account.in_(new), ~_IS_CLAIM, was_claimed)).values(_FREE))
    return new


def _takes_look(connection: sa.Connection, known: sa.Row[Any] | None, now: float) -> bool:
    """Return whether the next look for work is due, and becomes this host's."""
    if known is None:
        connection.execute(insert_missing(leases, connection.dialect.name), {"account": "", "name": _LOOK_NAME})
    elif now < known.until and known.written <= now + SETBACK:
        return False
    # A host that holds the row and stands still must not hold up the renewals of all others.
    is_due = _unlocked(*_is(_LOOK_NAME), (_here.until <= now) | _is_ahead(now))
    look = leases.update().where(is_due).values(until=now + _LOOK, written=now)
    return connection.execute(look.returning(_here.name)).first() is not None


def _note_work(connection: sa.Connection, clock: Clock, work: dict[str, Work]) -> None:
    """Write which work is due: into the claims that are there, new ones, or none any more."""
    run, known = connection.execute, sa.select(_here.account, _here.followed).where(_IS_CLAIM)
    noted = {row.account: row.followed for row in run(known)}
    new = [{"account": each, "name": _CLAIM, "followed": int(due)} for each, due in work.items() if each not in noted]
    if new:
        run(insert_missing(leases, connection.dialect.name), new)
    changed = {each: int(work.get(each, 0)) for each, due in noted.items() if due != work.get(each, 0)}
    for due in set(changed.values()):
        for some in chunks(each for each in changed if changed[each] == due):
            run(leases.update().where(_unlocked(_IS_CLAIM, _here.account.in_(some))).values(followed=due))
    now = clock()
    # Counted anew, as `Lease` does it.
    run(leases.update().where(_unlocked(_is_ahead(now))).values(until=now + _here.until - _here.written, written=now))
    run(leases.delete().where(_unlocked(_IS_CLAIM, _here.followed == 0, _here.until <= now)))
    is_old = (_here.account == "", _here.name.startswith(_HOST), _here.until <= now - _KEPT)
    run(leases.delete().where(_unlocked(*is_old)))
    run(leases.update().where(_unlocked(*_is(_LOOK_NAME))).values(followed=len(work)))


def _is_waiting(now: float) -> Iterable[sa.ColumnElement[bool]]:
    """Return the conditions of the accounts with work that no living host has."""
    return _IS_CLAIM, _here.followed != 0, _here.until <= now


def _is_ahead(now: float) -> sa.ColumnElement[bool]:
    """Return the condition of a lease that was written before the clock was set back."""
    return _here.written > now + SETBACK


def _is(name: str) -> Iterable[sa.ColumnElement[bool]]:
    """Return the conditions of a row that belongs to no account."""
    return _here.account == "", _here.name == name


def _is_among(connection: sa.Connection, column: sa.Column[str], names: Collection[str]) -> sa.ColumnElement[bool]:
    """Return a condition for the rows of some names.

    One array on PostgreSQL: its driver takes longer to read hundreds of parameters than the server for the statement.
    """
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal([*names], postgresql.ARRAY(sa.Text)))
    return column.in_(names)


def _unlocked(*where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return a condition for those rows that nobody has locked, which are locked then: nobody waits for another."""
    rows = sa.select(_here.account, _here.name).where(*where).with_for_update(skip_locked=True)
    return sa.tuple_(_here.account, _here.name).in_(rows)
