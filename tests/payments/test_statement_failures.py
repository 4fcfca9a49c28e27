"""The database fails at any one statement: no payment is made twice, no call goes on for ever, errors are clear."""

import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import AsyncClient, MobileMoneyError, OutcomeUnknown, StoreError
from mobilemoney_async.payments.records.record import PaymentEvent, Source
from mobilemoney_async.payments.records.rows import JournalEntry
from mobilemoney_async.payments.store import account_store
from tests.payments.service import ORDER, World, make_world, on_asyncio
from tests.payments.steps import record_of
from tests.support.databases import execute
from tests.support.scale import soak

pytestmark = on_asyncio

MOST = 400  # statements of one call, however often it tries again
KEY = "order-1"
_accounts = itertools.count(1)


class Serialization(Exception):
    """Error of PostgreSQL by which a transaction has to be run again."""

    sqlstate = "40001"


ERRORS: dict[str, Callable[[], Exception]] = {
    "operational": lambda: sa.exc.OperationalError("", None, OSError("disk I/O error")),
    "integrity": lambda: sa.exc.IntegrityError("", None, ValueError("CHECK constraint failed: no +255681234501")),
    "internal": lambda: sa.exc.InternalError("", None, RuntimeError("cache lookup failed")),
    "serialization": lambda: sa.exc.OperationalError("", None, Serialization("could not serialize access")),
}


class Fault:
    """Failure of a database at its n-th statement from now on.

    Args:
        at: The number of the statement, from 1; a commit counts as one. 0 lets all succeed.
        error: One of `ERRORS`, or "closed": the connection is lost.
        is_lasting: Whether all later ones fail too.
    """

    def __init__(self, at: int, error: str, *, is_lasting: bool = False) -> None:
        self.at = at
        self.error = error
        self.is_lasting = is_lasting
        self.seen = 0

    def execute(self, connection: sa.Connection, *_: Any) -> None:
        self.strike(connection)

    def strike(self, connection: sa.Connection) -> None:
        self.seen += 1
        if self.seen > MOST:
            pytest.fail("the call goes on for ever")
        if self.at and (self.seen == self.at or (self.is_lasting and self.seen > self.at)):
            if self.error != "closed":
                error = ERRORS[self.error]()
                raise error
            driver: Any = connection.connection.dbapi_connection
            driver.close()

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Let the statements of all databases go through this."""
        listeners = {"before_cursor_execute": self.execute, "commit": self.strike}
        for name, listener in listeners.items():
            sa.event.listen(sa.Engine, name, listener)
        try:
            yield
        finally:
            for name, listener in listeners.items():
                sa.event.remove(sa.Engine, name, listener)


async def create(client: AsyncClient) -> None:
    await client.collections.create(**ORDER, idempotency_key=KEY)


async def nothing(world: World, client: AsyncClient) -> None:
    """Leave the key unused, in a store that is open."""
    assert await client.payments.get(KEY) is None


async def not_sent(world: World, client: AsyncClient) -> None:
    """Let the first attempt fail, provably not sent."""
    world.line.refuse = 4
    with pytest.raises(MobileMoneyError):
        await create(client)


async def queued(world: World, client: AsyncClient) -> None:
    """Let the payment wait in the queue."""
    await client.payments.enqueue(type="collection", **ORDER, idempotency_key=KEY)


async def lost(world: World, client: AsyncClient) -> None:
    """Let the service make the payment, and lose the answer."""

    def lose(_: object) -> None:
        world.line.after = None
        raise ConnectionResetError

    world.line.after = lose
    with pytest.raises(OutcomeUnknown):
        await create(client)
    await world.advance(140)


async def made(world: World, client: AsyncClient) -> None:
    """Make the payment, and let the customer pay."""
    await create(client)
    await world.advance(200)


async def reconcile(client: AsyncClient) -> None:
    await client.payments.reconcile()


async def look_up(client: AsyncClient) -> None:
    record = await record_of(client, KEY)
    assert record.transaction_id is not None
    await client.transactions.get(record.transaction_id)


async def cancel(client: AsyncClient) -> None:
    await client.payments.cancel(KEY, note="no longer wanted")


CASES: dict[str, tuple[Callable[[World, AsyncClient], Awaitable[None]], Callable[[AsyncClient], Awaitable[None]]]] = {
    "first create": (nothing, create),
    "create again": (not_sent, create),
    "create from the queue": (queued, create),
    "create after a lost answer": (lost, create),
    "reconcile": (lost, reconcile),
    "lookup of a final state": (made, look_up),
    "cancel": (queued, cancel),
}
FAULTS = [(error, is_lasting) for error in (*ERRORS, "closed") for is_lasting in (False, True)]
FAULTS.remove(("serialization", True))  # that is waited for, ten real seconds


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run transactions again without their pauses."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
async def test_whichever_statement_fails_the_payment_is_made_once(store_url: str, case: str) -> None:
    """A call ends with its result, with `StoreError` or as unknown; "not_sent" is true; afterwards all is found out.

    By default a twentieth of the statements fail, in one way each; at full scale all of them, in two; at night in all.
    """
    dry = Fault(0, "operational")
    await _run(store_url, case, dry)
    assert dry.seen > 3
    ways = [*itertools.product(range(1, dry.seen + 1), FAULTS)]
    step = {1: 199, 4: 5}.get(soak(4), 1)  # no multiple of the ways, so that they take turns
    for at, (error, is_lasting) in ways[len(case) % step :: step]:
        await _run(store_url, case, Fault(at, error, is_lasting=is_lasting))


async def _run(url: str, case: str, fault: Fault) -> None:
    prepare, call = CASES[case]
    world = make_world(url)
    store = world.store(account=f"account-{next(_accounts)}")
    async with world.client(store) as client:
        await prepare(world, client)
        sent, failure = world.sent, None
        with fault.armed(), anyio.fail_after(600):
            try:
                await call(client)
            except MobileMoneyError as exc:
                failure = exc
        where = f"{fault.error} at statement {fault.at}{' and later' * fault.is_lasting}: {failure!r}"
        assert world.sent - sent <= 1, where
        if failure is not None:
            assert isinstance(failure, StoreError | OutcomeUnknown), where
            assert fault.error != "serialization", where
            assert failure.outcome in {"not_sent", "unknown"}
            assert failure.outcome == "unknown" or world.sent == sent, where
            assert str(ORDER["phone_number"])[1:] not in f"{failure}{failure!r}"
        await world.advance(140)  # less than five minutes since the last statement that held: in one life of the store
        # The database works again: what is open is found out, and the key is never a second payment.
        for _ in range(3):
            await client.payments.reconcile()
            await world.advance(61)
        if case != "cancel":
            await create(client)
        record = await record_of(client, KEY)
        if case != "cancel":
            assert [record.transaction_id] == world.made, where
        else:
            assert str(record.state) in {"QUEUED", "CANCELLED"}, where
            assert world.made == []
        whats = [entry.what for entry in record.history]
        assert "contradiction" not in whats, where
        if world.made:
            assert whats.count("acknowledged") + whats.count("adopted") == 1, where


TRIGGERS = {
    "sqlite": """
        CREATE TRIGGER no_change BEFORE UPDATE ON mobilemoney_payment_records
        BEGIN SELECT RAISE(ABORT, 'accounts are closed'); END
    """,
    "postgresql": """
        CREATE FUNCTION no_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'accounts are closed' USING ERRCODE = 'check_violation'; END $$;
        CREATE TRIGGER no_change BEFORE UPDATE ON mobilemoney_payment_records EXECUTE FUNCTION no_change()
    """,
}


@pytest.mark.new_database
async def test_a_row_that_may_not_be_changed_is_an_error_and_no_endless_loop(world: World, client: AsyncClient) -> None:
    """A rule of the merchant's database that forbids the update ends the create at once, with its reason."""
    fault = Fault(0, "operational")
    await not_sent(world, client)
    execute(world.url, TRIGGERS[sa.make_url(world.url).get_backend_name()])
    with fault.armed(), pytest.raises(StoreError, match="accounts are closed") as caught:
        await create(client)
    assert caught.value.outcome == "not_sent"
    assert world.sent == 0
    assert world.states() == ["NOT_SENT"]


@pytest.mark.new_database
async def test_a_doubt_that_the_database_forbids_says_why(store_url: str) -> None:
    """Only another unknown payment of the same kind is named as the reason, and only where there is one."""
    world, at = make_world(store_url), datetime(2026, 11, 22, 12, tzinfo=UTC)
    store = world.store()
    async with world.client(store) as client:
        await client.collections.create(**ORDER, idempotency_key="earlier")
        softly = "state = 'REFUSED', is_certain = FALSE, stops_kind = FALSE"
        execute(store_url, f"UPDATE mobilemoney_payment_records SET {softly}")
        entry = JournalEntry("earlier", 1, PaymentEvent.DOUBT, source=Source.RECONCILE, at=at)
        world.line.after = lose
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(**ORDER, idempotency_key="later")
        refused = await account_store(store).write(lambda journal: journal.apply(entry))
        assert isinstance(refused, StoreError)
        assert "payment 'later' of the same kind is unidentified" in str(refused)
        execute(store_url, "UPDATE mobilemoney_payment_records SET amount = '7' WHERE key = 'later'")
        execute(store_url, TRIGGERS[sa.make_url(store_url).get_backend_name()])
        with pytest.raises(StoreError, match="accounts are closed"):
            await account_store(store).write(lambda journal: journal.apply(entry))
        assert sorted(world.states()) == ["REFUSED", "UNKNOWN"]


def lose(request: httpx.Request) -> None:
    """Close the connection before the answer."""
    raise httpx.ReadError("closed", request=request)
