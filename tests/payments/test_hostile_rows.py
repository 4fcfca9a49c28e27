"""Rows and acknowledgements twisted in any field, at random: no state is believed against the truth, nothing stalls."""

import json
import random
import re
import unicodedata
from collections.abc import Callable
from datetime import timedelta
from decimal import localcontext
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import Acknowledgement, AsyncClient, MobileMoneyError, OutcomeUnknown, PaymentState
from mobilemoney_async.events import TransactionUnclaimed
from tests.payments.second_world import BOTH, GRACE, HOUR, MINUTE, Order, World, make_world, number
from tests.support.scale import soak
from tests.support.second_service import ListBehaviour, Payment, Row

EDGES = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00", "9999-12-31"]
EVIL = "\x1b[31m\0\u202e\u2066 +255680000009 "
UNPRINTABLE = re.compile("[\0-\x1f\x7f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("shown", EDGES[:2])
async def test_a_row_at_the_end_of_the_calendar_stalls_nothing(world: World, client: AsyncClient, shown: str) -> None:
    """One of a payment of ours, or of a stranger: the list is read and compared, and once it is right all is found."""
    await world.pay(client, [Order("before", "collections", number(1))])
    await world.lose(client, Order("lost", "collections", number(2)), made=True)
    world.service.make("disbursement", number(3), "77")
    world.service.list = ListBehaviour(spell=lambda row: {**row, "created_at": shown})
    await world.reconcile(client, 1.0, GRACE, *[4 * MINUTE] * 5)
    await world.read(client)
    await client.payments.unclaimed()
    assert (await world.get(client, "lost")).state is PaymentState.UNKNOWN
    await world.pay(client, [Order("after", "collections", number(4))])
    world.service.list = ListBehaviour()
    await client.payments.reconcile()
    await world.reconcile(client, *[4 * MINUTE] * 25)
    assert (await world.get(client, "lost")).transaction_id == "t-000002"


@pytest.mark.new_database
async def test_times_are_read_in_any_time_zone_and_style(store_url: str) -> None:
    """Whatever the settings of the database are, also at the end of the calendar."""
    if store_url.startswith("postgresql"):
        url = sa.make_url(store_url)
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        with engine.begin() as connection:
            for setting in ("timezone TO 'Africa/Dar_es_Salaam'", "datestyle TO 'SQL, DMY'"):
                connection.exec_driver_sql(f'ALTER DATABASE "{url.database}" SET {setting}')
    world = make_world(store_url)
    async with world.client() as client:
        await world.pay(client, [Order("before", "collections", number(1))])
        world.service.make("disbursement", number(3), "77")
        last = "9999-12-31T23:59:59Z"
        world.service.list = ListBehaviour(
            spell=lambda row: row if row["amount"] != "77" else {**row, "created_at": last}
        )
        for _ in range(3):
            await world.read(client)
        assert [f"{each.created_at:%Y}" for each in await client.payments.unclaimed()] == ["9999"]


async def test_an_event_of_an_unclaimed_transaction_shows_no_foreign_text(sqlite_file_url: str) -> None:
    """Type and status are the service's words: printable and redacted in an event, as in every log."""
    world, events = make_world(sqlite_file_url), list[Any]()
    async with world.client(on_event=events.append) as client:
        await world.pay(client, [Order("before", "collections", number(1))])
        stranger = world.service.make("disbursement", number(3), "77")
        stranger.type = stranger.status = EVIL
        with localcontext(prec=1):  # the caller's, which rounds no amount of ours
            for _ in range(3):
                await world.read(client)
        (found,) = await client.payments.unclaimed()
    (event,) = (each for each in events if isinstance(each, TransactionUnclaimed))
    assert found.amount == 77
    assert found.status == EVIL.replace("\0", "")  # otherwise the value itself is as the service shows it
    for text in (event.type, event.status, repr(found)):
        assert not UNPRINTABLE.search(text)
    assert "+255680000009" not in event.type + event.status


def twist_row(draw: random.Random, row: Row) -> Any:
    """Return a row that differs from the truth in one field, or in nothing but its spelling."""
    digits = row["phone_number"][4:]
    other = {"collection": "disbursement", "disbursement": "collection"}[row["type"]]
    odd: dict[str, list[Any]] = {
        "id": [row["id"].upper(), row["id"] + " ", row["id"] + "\u200b", "", None, 5, EVIL],
        "type": [other, "c2b", row["type"].title(), "", None, EVIL],
        "amount": [
            "7",
            "-5000",
            "5e3",
            "5000.00",
            "05000",
            5000,
            "12345678901234567890",
            "NaN",
            None,
            "\u0665000",
            "1e99999",
        ],
        "phone_number": [f"0{digits}", "+255780000000", "******", EVIL, None, "", row["phone_number"][:7] + "***"],
        "status": ["PENDING", "PROCESSING", row["status"].lower(), "REVERSED", EVIL, None, 7],
        "created_at": [*EDGES, "0000-01-01T00:00:00Z", "2026-11-22T12:00:00", 1_700_000_000, EVIL, None],
        "merchant_id": ["merchant-2", "", None, 5, EVIL],
        "fees": [{"merchant_fee": "-1", "customer_fee": "1e400", "total_fee": None}, [], EVIL],
        "settlement": [{"net_amount": "-5", "settled_at": EDGES[0], "settlement_batch": EVIL}],
        "completed_at": ["2026-13-01T00:00:00Z", EDGES[1], EVIL],
        "external_id": [EVIL * 99, "\0", "é" * 30_000 + "," * 20_001, 5],
        "reference": ["", EVIL, "\0", unicodedata.normalize("NFD", "é"), None],
        "currency": ["USD", "tzs", None],
    }
    name = draw.choice([*odd, "", ""])
    if name:
        return {**row, name: draw.choice(odd[name])}
    return draw.choice(
        [None, 5, EVIL, [], {}, {key: value for key, value in row.items() if key != draw.choice([*row])}]
    )


def twist_body(draw: random.Random, body: bytes) -> httpx.Response:
    """Return an answer that no contract knows."""
    message = json.dumps({"status": "error", "error_code": draw.choice(["NEW", EVIL, ""]), "message": EVIL})
    contents = [
        b"\xef\xbb\xbf" + body,
        b"<html>" + EVIL.encode(),
        message.encode(),
        body[: len(body) // 2],
        body + body,
        b"[" + body + b"]",
        body.replace(b'"status"', b'"status":"error","status"', 1),
        re.sub(rb'"(total_count|current_page|per_page)": ?(\d+)', rb'"\1": "\2"', body),
        b'{"status":"success","transaction":NaN,"transactions":NaN}',
        b'{"status":"success","message":"\\ud800"}',
        b"",
    ]
    return httpx.Response(draw.choice([200, 200, 200, 500, 502, 409]), content=draw.choice(contents))


@pytest.mark.soak
@BOTH
@pytest.mark.parametrize("seed", range(soak(4)))
async def test_no_twisted_answer_is_believed(store_url: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Final states are the service's own, no key is sent twice, no text is foreign; later the truth is found."""
    draw, world, events = random.Random(seed), make_world(store_url), list[Any]()
    orders = [Order(f"k{each}", draw.choice(["collections", "disbursements"]), number(each)) for each in range(8)]
    texts = list[str]()
    lies = _Lies(draw, world)
    async with world.client(on_event=events.append) as client:
        async with client.poller(timeout=300, resume=True):
            for _ in range(14):
                try:
                    await _step(draw, world, client, draw.choice(orders))
                except MobileMoneyError as error:
                    texts.append(str(error))
                await anyio.sleep(draw.choice([0.5, 5, 30, 90]))
        lies.end()
        await world.reconcile(client, GRACE, GRACE, 3 * HOUR)
        async with client.poller(timeout=300, resume=True) as poller:
            for payment in world.service.payments:
                poller.track(payment.id)
            async for outcome in poller.outcomes():
                if outcome.transaction is not None:
                    assert str(outcome.transaction.status) == "SUCCESS"
                else:
                    texts.append(str(outcome.error))
        await world.hold(client)
        for record in await client.payments.list():
            known = await world.get(client, record.key)
            texts += [repr(known), *(entry.detail or "" for entry in known.history)]
            assert known.state is not PaymentState.FINAL or str(known.status) == "SUCCESS"
            assert bool(world.made(record.key)) or known.state is not PaymentState.FINAL
    for text in (*texts, *(record.getMessage() for record in caplog.records), *map(repr, events)):
        assert not UNPRINTABLE.search(text), ascii(text)
        assert "+255680000009" not in text, ascii(text)


class _Lies:
    """Lies of the service in a third of its answers, until their end. A payment succeeds after 20 seconds."""

    def __init__(self, draw: random.Random, world: World) -> None:
        self._draw, self._world = draw, world
        service = world.service
        service.finish_after = 20.0
        service.list = ListBehaviour(spell=self._spell)
        service.acknowledge = self._acknowledge
        service.answer_list = service.answer_lookup = self._answer
        service.answer_create = self._create

    def end(self) -> None:
        service = self._world.service
        service.list, service.acknowledge = ListBehaviour(), lambda row: row
        service.answer_list = service.answer_lookup = lambda request: None
        service.answer_create = lambda request, payment: None

    def _spell(self, row: Row) -> Any:
        return twist_row(self._draw, row) if self._draw.random() < 0.3 else row

    def _acknowledge(self, row: Row) -> Row:
        odd: dict[str, list[Any]] = {
            "transaction_id": [*(each.id for each in self._world.service.payments), "", None, EVIL],
            "amount": ["7", "5000.00", None, 5000],
            "phone_number": ["+255780000000", None, EVIL],
            "status_code": ["SUCCESS", "FAILED", EVIL, None],
            "status": ["accepted", "error", None],
            "currency": ["USD", "tzs"],
            "message": [EVIL * 99, None, 5],
        }
        name = self._draw.choice([*odd])
        return {**row, name: self._draw.choice(odd[name])} if self._draw.random() < 0.4 else row

    def _answer(self, request: httpx.Request) -> httpx.Response | None:
        return twist_body(self._draw, b'{"status": "success"}') if self._draw.random() < 0.15 else None

    def _create(self, request: httpx.Request, payment: Payment | None) -> httpx.Response | None:
        return twist_body(self._draw, b'{"status": "success"}') if self._draw.random() < 0.15 else None


async def _step(draw: random.Random, world: World, client: AsyncClient, order: Order) -> None:
    calls: list[Callable[[], Any]] = [
        client.payments.reconcile,
        client.payments.unclaimed,
        client.transactions.list().collect,
        lambda: client.transactions.wait("t-000001", timeout=60),
        lambda: client.payments.audit(from_date=world.utcnow().date(), to_date=world.utcnow().date()),
    ]
    if draw.random() < 0.5:
        await draw.choice(calls)()
        return
    answer = await world.attempt(client, order)
    assert isinstance(answer, Acknowledgement | MobileMoneyError)
    if isinstance(answer, OutcomeUnknown):
        raise answer


@BOTH
async def test_with_an_unknown_clock_no_row_is_far_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in local time may show the lost payment hours before it was sent: its kind stays stopped."""
    world.service.utcnow = lambda: world.utcnow() - timedelta(hours=3)
    monkeypatch.setattr(world.service, "_dated", lambda response: response)
    async with world.client() as client:
        await world.lose(client, Order("lost", "collections", number(1)), made=True)
        await world.reconcile(client, GRACE + MINUTE, MINUTE)
        assert isinstance(await world.attempt(client, Order("again", "collections", number(1))), MobileMoneyError)
        assert not world.posts("again")
