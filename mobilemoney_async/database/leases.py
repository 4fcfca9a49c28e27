"""Leases in the database: tasks that one process of an account does at a time."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.database.clock import Holder, Lease
from mobilemoney_async.database.engine import Clock
from mobilemoney_async.database.schema import leases, lock_row
from mobilemoney_async.errors import StoreError
from mobilemoney_async.waiting import task_group

T = TypeVar("T")


def change_lease(
    connection: sa.Connection, account: str, name: str, *, by: Holder, ttl: float | None, clock: Clock
) -> bool:
    """Take or renew a lease for `ttl` seconds, or give it back (None); return whether `by` has it then, or had it."""
    place = {"account": account, "name": name}
    row = lock_row(connection, leases, place)
    before = read_lease(row)
    lease = before.released(by) if ttl is None else before.taken(by, clock(), ttl)
    here = (leases.c[column] == value for column, value in place.items())
    connection.execute(leases.update().where(*here).values(attrs.asdict(lease)))
    return before.is_held_by(by) or lease.is_held_by(by)


def new_holder(host: str | None) -> Holder:
    """Return a new holder of leases, of a host whose claim of the account protects it, or of none."""
    return Holder(uuid.uuid4().hex, host)


def read_lease(row: sa.Row[Any]) -> Lease:
    """Return the lease of a row."""
    return Lease(holder=row.holder, host=row.host, epoch=row.epoch, until=row.until, written=row.written)


async def while_renewed(work: Callable[[], Awaitable[T]], renew: Callable[[], Awaitable[object]], *, every: float) -> T:
    """Run work, and renew a lease every so many seconds until it ends. Return its result, or raise its error.

    A renewal that fails is tried again at the next time: work that must not go on without the lease looks itself.
    """

    async def keep() -> None:
        while True:
            await anyio.sleep(every)
            with suppress(StoreError):
                await renew()

    result: list[T] = []
    async with task_group() as tasks:
        tasks.start_soon(keep)
        result.append(await work())
    return result[0]
