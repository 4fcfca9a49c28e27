"""Leases in the database: tasks that one process of an account does at a time."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.database.clock import Holder, Lease
from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.database.schema import leases, lock_row
from mobilemoney_async.errors import StoreError
from mobilemoney_async.tasks import shielded, task_group

# Seconds for which a lease is given back, also if that is cancelled.
_SHIELD = 5.0


def change_lease(
    connection: sa.Connection,
    account: str,
    name: str,
    *,
    by: Holder,
    ttl: float | None,
    clock: Clock,
    only_renew: bool = False,
) -> bool:
    """Take or renew a lease for `ttl` seconds, or give it back (None); return whether `by` has it then, or had it.

    With `only_renew` it is left as it is if another one has had it since.
    """
    place = {"account": account, "name": name}
    row = lock_row(connection, leases, place)
    before = read_lease(row)
    if only_renew and not before.is_held_by(by):
        return False
    lease = before.released(by) if ttl is None else before.taken(by, clock(), ttl)
    here = (leases.c[column] == value for column, value in place.items())
    connection.execute(leases.update().where(*here).values(attrs.asdict(lease)))
    return before.is_held_by(by) or lease.is_held_by(by)


def new_holder(host: str | None) -> Holder:
    """Return a new holder of leases, of a host with a claim that protects it, or of none."""
    return Holder(uuid.uuid4().hex, host)


def read_lease(row: sa.Row[Any]) -> Lease:
    """Return the lease of a row."""
    return Lease(holder=row.holder, host=row.host, epoch=row.epoch, until=row.until, written=row.written)


@attrs.frozen
class TaskLease:
    """Lease of one task of an account, for one holder; `ttl` is in seconds."""

    _database: Database
    _account: str
    _name: str
    _by: Holder
    ttl: float

    async def take(self) -> bool:
        """Take the lease or renew it; return whether the holder has it then."""
        return await self._change(self.ttl)

    async def give_back(self) -> None:
        """Give the lease back, if the holder has it."""
        await self._change(None)

    @asynccontextmanager
    async def held(self, *, poll: float) -> AsyncGenerator[None]:
        """Take the lease, trying every so many seconds, and keep it until the block ends."""
        try:
            while True:
                if await self.take():
                    break
                await anyio.sleep(poll)
            async with renewed(self.take, every=self.ttl / 3):
                yield
        finally:
            # Cancelled or not, the lease is free again; where the store is away, it ends by itself.
            await shielded(self.give_back, timeout=_SHIELD, ignored=StoreError)

    async def _change(self, ttl: float | None) -> bool:
        held, _ = await self._database.timed(
            lambda connection, clock: change_lease(
                connection, self._account, self._name, by=self._by, ttl=ttl, clock=clock
            ),
            share_key=(self._account, self._name),
        )
        return held


@asynccontextmanager
async def renewed(renew: Callable[[], Awaitable[object]], *, every: float) -> AsyncGenerator[None]:
    """Renew a lease every so many seconds until the block ends.

    A renewal that fails is tried again at the next time: work that must not go on without the lease looks itself.
    """

    async def keep() -> None:
        while True:
            await anyio.sleep(every)
            with suppress(StoreError):
                await renew()

    async with task_group() as tasks:
        tasks.start_soon(keep)
        yield
