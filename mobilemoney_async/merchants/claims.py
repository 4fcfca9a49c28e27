"""Claims: which host of a platform serves which account, and where there is something to do.

Critical section: a claim changes hands under its row's lock, and only after its end by the database's clock. A host
counts its own claims to an earlier end, by its own clock, which goes on while the process is stopped.

No statement waits for a locked row: its work is left out, and done a second later.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.collaborators import ClaimEndedError
from mobilemoney_async.database.clock import SETBACK
from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.database.schema import account_claims, hosts, insert_missing, is_among, leases, stores
from mobilemoney_async.errors import StoreError
from mobilemoney_async.merchants.shares import Shares
from mobilemoney_async.payments.records.due import DueWork, accounts_with_work
from mobilemoney_async.payments.records.queries import chunks
from mobilemoney_async.tasks import Signal, shielded

logger: logging.Logger = logging.getLogger("mobilemoney_async")

TTL = 7.0
"""Length of a claim, seconds. A host renews all of its claims every second."""

# Seconds by which a host counts its claims to end earlier: for a request to arrive, and clocks that drift.
_MARGIN = 1.0
# Seconds between two looks for work, and for giving claims back at the end.
_LOOK, _SHIELD = 2.0, 10.0
_FREE: dict[str, Any] = {"host": None, "until": 0.0}

_claim = account_claims.c
_HAS_WORK = _claim.work != 0


@attrs.define(eq=False)
class Claim:
    """Claim of this host to one account.

    Attributes:
        account: The account.
        host: Name of this host.
        until: When it ends unless it is renewed, on the event loop's clock.
        work: The work that is due in the account.
        poller: Of a poller whose lease is renewed along with the claim: its name, and the two numbers of the row.
        ttl: Seconds for which the host has it after each renewal.
    """

    account: str
    host: str
    until: float
    work: DueWork
    poller: tuple[str, int, int] | None = None
    ttl: float = TTL
    _changed: Signal = attrs.field(factory=Signal)

    def require(self) -> None:
        """Raise `ClaimEndedError` if another host may serve the account by now."""
        if anyio.current_time() >= self.until:
            said = "the account's claim has ended: it was not renewed in time"
            raise ClaimEndedError(said, outcome="not_sent")

    def note_work(self, work: DueWork) -> None:
        """Note which work is due."""
        if work != self.work:
            self.work = work
            self._changed.send()

    async def is_due(self, work: DueWork) -> None:
        """Wait until some work is due."""
        while not self.work & work:
            await self._changed.wait()

    async def is_done(self, work: DueWork, *, linger: float) -> None:
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


@attrs.frozen(kw_only=True)
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
        found, _ = await self._database.timed(
            lambda connection, clock: self._renew(
                connection, clock(), sorted(kept), pollers, given_back=sorted(given_back), most=most
            ),
            own_thread=True,
        )
        until = began + TTL - _MARGIN
        lost = [claim for account, claim in kept.items() if account not in found.kept]
        self._locked = {account: self._locked.get(account, 0) + 1 for account in found.locked}
        for account in (each for each, times in self._locked.items() if times == 3):  # no other host's
            logger.warning("another transaction has locked the claim of account %r, which ends like that", account)
        for claim in lost:
            claim.until, claim.poller = -math.inf, None
        self.held = {account: claim for account, claim in kept.items() if account in found.kept}
        for account, claim in self.held.items():
            if account not in found.locked:
                claim.until = until
            if claim.poller is not None:
                claim.poller = found.pollers.get(account)
            claim.note_work(DueWork(found.kept[account]))
        new = [Claim(each, self.host, until, DueWork(due)) for each, due in found.new.items()]
        self.held |= {claim.account: claim for claim in new}
        return Renewal(new, lost, found.surplus, found.looks)

    def _renew(
        self,
        connection: sa.Connection,
        now: float,
        held: Sequence[str],
        pollers: Sequence[str],
        *,
        given_back: Sequence[str],
        most: int,
    ) -> _Found:
        """Renew, give back and claim accounts; `pollers` are those with leases that are renewed along with that."""
        run, host, is_own = connection.execute, self.host, _claim.host == self.host
        living = {row.host: row.looked_at for row in run(sa.select(hosts).where(hosts.c.until > now))}
        # Not before the next one is due, unless the clock was set back since.
        looks = most > 0 and not any(now - _LOOK < looked_at <= now + SETBACK for looked_at in living.values())
        _note_host(connection, host, {"until": now + TTL} | ({"looked_at": now} if looks else {}), takes_some=most > 0)
        if given_back:
            is_given = is_among(connection, _claim.account, given_back)
            run(_update(account_claims, is_given, is_own).values(_FREE))
        kept, locked, seen = dict[str, int](), frozenset[str](), dict[str, tuple[str, int, int]]()
        if held:
            is_held = is_among(connection, _claim.account, held)
            renewed = _update(account_claims, is_held, is_own).values(until=now + TTL)
            kept = {row.account: row.work for row in run(renewed.returning(_claim.account, _claim.work))}
            if len(kept) < len(held):
                rest = sa.select(account_claims).where(is_held, is_own)
                others = {row.account: row.work for row in run(rest) if row.account not in kept}
                kept, locked = kept | others, frozenset(others)
        if pollers:
            here, lease = leases.c, {"until": now + TTL, "written": now}
            accounts, holders = (is_among(connection, *some) for some in ((here.account, held), (here.holder, pollers)))
            is_poller = (here.name == "poller", accounts, holders)
            # One that is locked renews itself, or gives its lease back.
            run(_update(leases, *is_poller).values(lease))
            rows = run(
                sa.select(here.account, here.holder, here.subscription_number, here.message_number).where(*is_poller)
            )
            seen = {row.account: (row.holder, row.subscription_number, row.message_number) for row in rows}
        new, surplus = dict[str, int](), 0
        if most > 0:
            shares = _shares(connection, {*living, host}, now)
            new = _claim_all(connection, host, list(islice(shares.allotted(host), most)), now)
            surplus = shares.surplus(host)
        return _Found(kept=kept, locked=locked, new=new, pollers=seen, surplus=surplus, looks=looks)

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
            connection.execute(_update(account_claims, _claim.host == self.host).values(_FREE))
            connection.execute(_delete(hosts, hosts.c.host == self.host))

        await shielded(partial(self._database.write, work, durable=False), timeout=_SHIELD, ignored=StoreError)


def _note_host(connection: sa.Connection, host: str, row: dict[str, float], *, takes_some: bool) -> None:
    """Write the row of a host that takes accounts; one that takes none has no row."""
    is_own = hosts.c.host == host
    if not takes_some:
        connection.execute(_delete(hosts, is_own))
    elif not connection.execute(_update(hosts, is_own).values(row)).rowcount:
        connection.execute(insert_missing(hosts, connection.dialect.name), {"host": host, **row})


def _shares(connection: sa.Connection, takers: Collection[str], now: float) -> Shares:
    busy = sa.select(_claim.host, sa.func.count().label("number")).where(_HAS_WORK, _claim.until > now)
    loads = {row.host: int(row.number) for row in connection.execute(busy.group_by(_claim.host))}
    waiting = sa.select(_claim.account).where(_HAS_WORK, _claim.until <= now).order_by(_claim.account)
    return Shares(
        loads={each: loads.get(each, 0) for each in takers},
        waiting=connection.execute(waiting).scalars().all(),
        leaving=sum(number for each, number in loads.items() if each not in takers),
    )


def _claim_all(connection: sa.Connection, host: str, accounts: Sequence[str], now: float) -> dict[str, int]:
    """Claim accounts that no living host has, and end the leases there of claims before; return the work of each."""
    if not accounts:
        return {}
    free = _update(account_claims, _claim.account.in_(accounts), _claim.until <= now)
    taken = free.values(host=host, until=now + TTL).returning(_claim.account, _claim.work)
    new = {row.account: row.work for row in connection.execute(taken)}
    # Of a dead host, or of one that gave the account back and not the lease, since the database failed just then.
    claimed = _update(leases, leases.c.account.in_(new), leases.c.host.is_not(None))
    connection.execute(claimed.values(holder=None, host=None, until=0.0, written=0.0))
    return new


def _note_work(connection: sa.Connection, clock: Clock, work: dict[str, DueWork]) -> None:
    """Write which work is due: into the claims that are there, new ones, or none any more."""
    run, now = connection.execute, clock()
    noted = {row.account: row.work for row in run(sa.select(_claim.account, _claim.work))}
    new = [{"account": each, "work": int(due)} for each, due in work.items() if each not in noted]
    if new:
        run(insert_missing(account_claims, connection.dialect.name), new)
    changed = {each: int(work.get(each, 0)) for each, due in noted.items() if due != work.get(each, 0)}
    for due in set(changed.values()):
        for some in chunks(each for each in changed if changed[each] == due):
            run(_update(account_claims, _claim.account.in_(some)).values(work=due))
    for table in (account_claims, hosts):
        # Written before the clock was set back: counted again, since its host counts by a clock of its own.
        run(_update(table, table.c.until > now + TTL + SETBACK).values(until=now + TTL))
    run(_delete(account_claims, ~_HAS_WORK, _claim.until <= now))
    run(_delete(hosts, hosts.c.until <= now))


def _update(table: sa.Table, *where: sa.ColumnElement[bool]) -> sa.Update:
    """Return the statement that changes rows that are not locked."""
    return table.update().where(_unlocked(table, where))


def _delete(table: sa.Table, *where: sa.ColumnElement[bool]) -> sa.Delete:
    """Return the statement that deletes rows that are not locked."""
    return table.delete().where(_unlocked(table, where))


def _unlocked(table: sa.Table, where: Iterable[sa.ColumnElement[bool]]) -> sa.ColumnElement[bool]:
    """Return a condition for those rows that are not locked, which are locked then: no process waits for another."""
    rows = sa.select(*table.primary_key).where(*where).with_for_update(skip_locked=True)
    return sa.tuple_(*table.primary_key).in_(rows)
