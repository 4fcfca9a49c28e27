"""What pieces of work ask and write together: each gets its own answer, and no write overtakes another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPICursor

from mobilemoney_async import AsyncClient, MobileMoneyError, PaymentRecord, PaymentState, SQLStore, StoreError
from mobilemoney_async.database.bulk import Bulk, Statement, answer, write
from mobilemoney_async.payments.store import account_store
from tests.payments.test_group_commit import Gate, make_marks, marks
from tests.support.fakes import BASE_URL
from tests.support.second_service import TOKEN, SecondService

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

_TABLE = sa.table("group_marks", sa.column("number", sa.Integer))
_given = sa.bindparam("of_number", type_=sa.Integer)
_INSERT = Statement(_TABLE.insert().from_select(["number"], sa.select(_given)))
_NEGATE = Statement(_TABLE.update().where(_TABLE.c.number == _given).values(number=-_TABLE.c.number))
_FIND = Statement(sa.select(_TABLE.c.number).where(_TABLE.c.number == _given), by=("of_number",))
_SAY = Statement(sa.select(sa.bindparam("of_said", type_=sa.Text).label("of_said")), by=("of_said",))
COUNT = 12


def number(value: int) -> dict[str, int]:
    """Return the parameters of the statements above."""
    return {"of_number": value}


@contextmanager
def each_statement(hook: Callable[[str], None]) -> Any:
    """Call a hook with the text of each statement."""

    def call(connection: sa.Connection, cursor: DBAPICursor, text: str, *_: object) -> None:
        hook(text)

    sa.event.listen(sa.Engine, "before_cursor_execute", call)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", call)


async def create_behind_a_gate(
    client: AsyncClient, store: SQLStore, until: AbstractContextManager[None], count: int = COUNT
) -> dict[int, Any]:
    """Make payments at once, while the first look of the process holds up their looks; return what each got."""
    gate, found = Gate(), dict[int, Any]()

    async def create(each: int) -> None:
        key, phone = f"order-{each}", f"+25568{each:07}"
        try:
            found[each] = await client.collections.create(phone_number=phone, amount=1000, idempotency_key=key)
        except MobileMoneyError as exc:
            found[each] = exc

    await create(0)  # the account's secret, and its place under the limit
    with until, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            account = account_store(store)
            tasks.start_soon(partial(account.read, lambda journal: gate.work(journal.connection), joins="0"))
            await gate.wait()
            for each in range(1, count):
                tasks.start_soon(create, each)
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
    return found


async def records(client: AsyncClient, count: int = COUNT) -> list[PaymentRecord]:
    """Return the records of the payments, with their histories."""
    found = [await client.payments.get(f"order-{each}") for each in range(count)]
    return [each for each in found if each is not None]


async def test_payments_that_are_made_together_are_recorded_as_if_alone(store_url: str) -> None:
    """Each has its own record, history and changes; what they ask and write is one statement for many of them."""
    service, store, texts = SecondService(utcnow=now), SQLStore(store_url), list[str]()
    async with AsyncClient(BASE_URL, auth=TOKEN, transport=service, store=store) as client:
        found = await create_behind_a_gate(client, store, each_statement(texts.append))
        kept = await records(client)
        changes = [each async for each in client.payments.changes(forever=False)]
    assert [each.transaction_id for each in kept] == [found[each].transaction_id for each in range(COUNT)]
    for record in kept:
        assert record.state is PaymentState.ACKNOWLEDGED
        assert [entry.what for entry in record.history] == ["sent", "acknowledged"]
        assert [each.state for each in changes if each.key == record.key] == ["SENDING", "ACKNOWLEDGED"]
        assert record.sent_at == record.created_at == record.history[0].at
    assert any("json_" in text for text in texts)
    assert len(texts) < 6 * COUNT


async def test_two_answers_with_one_transaction_are_one_payment(store_url: str) -> None:
    """Both acknowledgements come together: the second is refused, as if it had come later."""
    store = SQLStore(store_url)
    arrived, waiting = anyio.Event(), list[httpx.Request]()

    class Together(SecondService):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            if request.method == "POST" and len(self.payments) > 1:
                waiting.append(request)
                if len(waiting) == 2:
                    arrived.set()
                await arrived.wait()
            return response

    service = Together(utcnow=now)
    service.acknowledge = lambda row: row if len(service.payments) == 1 else {**row, "transaction_id": "TXN-TWICE"}
    async with AsyncClient(BASE_URL, auth=TOKEN, transport=service, store=store) as client:
        found = await create_behind_a_gate(client, store, each_statement(lambda _: None), count=3)
        states = [each.state for each in await records(client, 3)]
    failed = [each for each in found.values() if isinstance(each, MobileMoneyError)]
    assert [(type(each).__name__, each.outcome) for each in failed] == [("OutcomeUnknown", "unknown")]
    assert sorted(states) == ["ACKNOWLEDGED", "ACKNOWLEDGED", "SENDING"]


async def test_a_database_that_refuses_statements_for_several_accounts_gets_single_ones(postgres_url: str) -> None:
    """As one that keeps accounts on several servers: the work runs alone, and later work asks by itself at once."""
    service, store, refused = SecondService(utcnow=now), SQLStore(postgres_url), list[str]()

    def refuse(text: str) -> None:
        if "json_to_recordset" in text:
            refused.append(text)
            raise sa.exc.NotSupportedError(text, None, Unsupported())

    async with AsyncClient(BASE_URL, auth=TOKEN, transport=service, store=store) as client:
        found = await create_behind_a_gate(client, store, each_statement(refuse))
        kept = await records(client)
    assert not [each for each in found.values() if isinstance(each, Exception)]
    assert [each.state for each in kept] == ["ACKNOWLEDGED"] * COUNT
    assert len(refused) == 1


async def test_writes_of_one_row_keep_their_order(store_url: str) -> None:
    """Also where an earlier piece of work has a statement of the later kind in line."""
    database = await make_marks(store_url)

    def work(connection: sa.Connection) -> list[Any]:
        bulk = Bulk(connection)
        write(connection, _INSERT, (1,), number(1))
        write(connection, _INSERT, (2,), number(2))
        write(connection, _NEGATE, (1,), number(1))
        write(connection, _INSERT, (1,), number(1))  # only possible once the other one is negative
        seen = [answer(connection, _FIND, number(each)) for each in (1, 3)]
        write(connection, _NEGATE, (2,), number(2))
        bulk.flush()
        return seen

    assert [each and each.number for each in await database.write(work)] == [1, None]
    assert await marks(database) == [-2, -1, 1]
    database.close()


async def test_an_answer_is_that_of_its_own_row_and_is_given_once(store_url: str) -> None:
    """What is asked again is read again."""
    database = await make_marks(store_url)

    def work(connection: sa.Connection) -> list[Any]:
        bulk = Bulk(connection)
        _INSERT.execute(connection, [number(1), number(2)])
        bulk.ask((_FIND, number(each)) for each in (1, 2, 3))
        write(connection, _NEGATE, (1,), number(1))
        return [answer(connection, _FIND, number(each)) for each in (3, 2, 1, 1)]

    assert [each and each.number for each in await database.write(work)] == [None, 2, 1, None]
    database.close()


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
async def test_what_json_cannot_hold_is_asked_alone(store_url: str, odd: str) -> None:
    """A text is never cut: the database gets it as it is, or refuses it by itself."""
    database, gate, found = await make_marks(store_url), Gate(), dict[str, Any]()

    async def ask(text: str) -> None:
        values = {"of_said": text}
        try:
            found[text] = await database.read(
                lambda connection: answer(connection, _SAY, values).of_said,
                joins=("account", text),
                ahead=lambda _: [(_SAY, values)],
            )
        except StoreError as exc:
            found[text] = exc.outcome

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(database.read, gate.work, joins=("account", "0")))
            await gate.wait()
            for text in ("plain", odd):
                tasks.start_soon(ask, text)
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
    assert found["plain"] == "plain"
    assert found[odd] in {odd, "not_sent"}
    database.close()


async def test_work_of_one_name_is_never_in_one_transaction(store_url: str) -> None:
    """What the second one asks is asked when the first one is committed."""
    database, gate, seen = await make_marks(store_url), Gate(), list[bool]()

    def claim(connection: sa.Connection) -> None:
        found = answer(connection, _FIND, number(7))
        seen.append(found is not None)
        if found is None:
            write(connection, _INSERT, (7,), number(7))

    async def run(name: str) -> None:
        await database.write(claim, joins=("account", name), ahead=lambda _: [(_FIND, number(7))])

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(database.write, gate.work, joins=("account", "0")))
            await gate.wait()
            for _ in range(3):
                tasks.start_soon(run, "same")
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
    assert seen == [False, True, True]
    assert await marks(database) == [7]
    database.close()


class Unsupported(Exception):
    """Error of a driver: the database does not know this kind of statement."""

    sqlstate = "0A000"


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)
