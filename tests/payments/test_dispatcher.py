"""The dispatcher of queued payments: its pace, its pauses, its lease, its figures, and its end."""

import json
import re
import sqlite3
from contextlib import closing
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    APIError,
    AsyncClient,
    InvalidRequest,
    LoginAuth,
    OutcomeUnknown,
    PaymentState,
    RateLimitExceeded,
    RetryPolicy,
    SQLStore,
)
from mobilemoney_async.database.schema import payments
from mobilemoney_async.events import DispatcherPaused, Event
from mobilemoney_async.payments.outbox.outbox import postpone
from mobilemoney_async.payments.outbox.pauses import Pause, save_pause
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Choices, Sandbox, faults
from mobilemoney_async.sandbox.messages import Reply, auth_error, payment_error
from mobilemoney_async.sharing.overview import read_overview
from tests.payments.service import PHONE_NUMBER, Delay, Line, Outage, World, make_world, on_asyncio, write
from tests.payments.steps import dispatch, record_of
from tests.payments.tables import edit
from tests.support.fakes import NOON

NO_RETRIES = RetryPolicy(max_attempts=1)
ORDER: dict[str, Any] = {"type": "collection", "phone_number": PHONE_NUMBER, "amount": 1000}


@pytest.fixture
async def world(sqlite_file_url: str) -> World:
    """One on SQLite, but where a test makes its own."""
    return make_world(sqlite_file_url)


async def enqueue(client: AsyncClient, count: int, *, start: int = 0, **options: Any) -> None:
    for number in range(start, start + count):
        await client.payments.enqueue(**{**ORDER, "amount": 1000 + number, **options}, idempotency_key=f"k{number:02}")


def refuse(world: World, code: str, message: str = "no", *, times: int = 1) -> None:
    reply = payment_error(422, code, message)
    world.sandbox.script(faults.Fault(name="refusal", instead=partial(_answer, reply)), on="c2b", times=times)


def _answer(reply: Reply, _: object) -> Reply:
    return reply


async def tries(world: World, seconds: int) -> list[int]:
    """Return the seconds at which a connection was refused, while time passes."""
    found, began, left = list[int](), anyio.current_time(), world.line.refuse
    for _ in range(seconds):
        await anyio.sleep(1)
        if world.line.refuse < left:
            found.append(round(anyio.current_time() - began))
            left = world.line.refuse
    return found


def pauses(events: list[Event]) -> list[str]:
    return [each.reason for each in events if isinstance(each, DispatcherPaused)]


# Pauses


@pytest.mark.slow
@on_asyncio
async def test_the_pauses_while_nothing_can_be_sent_grow_to_five_minutes(world: World) -> None:
    """Each is twice the last one. The oldest payment is tried, and keeps its place: later ones do not overtake it."""
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 4)
        world.line.refuse = 100
        async with client.dispatcher(per_minute=600):
            found = await tries(world, 16)
            records = [await record_of(client, f"k{number:02}") for number in range(4)]
            found += [16 + each for each in await tries(world, 610)]
    assert [later - earlier for earlier, later in pairwise(found)] == pytest.approx(
        [5, 10, 20, 40, 80, 160, 300], abs=1.5
    )
    assert [(record.attempt, record.not_before) for record in records] == [(3, None)] + 3 * [(0, None)]


@pytest.mark.costly("runs lines of payments/outbox/outbox.py, payments/outbox/dispatcher.py that no quick test runs")
@on_asyncio
async def test_an_outage_that_strikes_many_on_their_way_is_one_pause(world: World) -> None:
    """Ten payments of which the network takes the connection at once wait for as long as one would, not for minutes."""
    events = list[Event]()

    async def connect_in_vain(request: httpx.Request) -> None:
        await anyio.sleep(3)
        raise httpx.ConnectTimeout("connect time-out")

    world.line.before = connect_in_vain
    async with world.client(retry=NO_RETRIES, on_event=events.append) as client:
        await enqueue(client, 10)
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(5)
            assert dispatcher.stats.paused is not None and len(pauses(events)) == 1
            world.line.before = None
            await anyio.sleep(55)
            assert len(world.made) == 10


@pytest.mark.parametrize("answer", [(503, "maintenance"), (403, "account_locked")])
async def test_a_login_that_fails_pauses_it(world: World, answer: tuple[int, str]) -> None:
    """Nothing was refused, and nothing was sent: the payments stay in the queue."""
    events, (status, code) = list[Event](), answer
    body = json.dumps({"success": False, "error": code, "message": "no"}).encode()
    reply = Reply(status=status, body=body, code=code)
    world.sandbox.script(faults.Fault(name="login", instead=partial(_answer, reply)), on="login", times=100)
    auth = LoginAuth(world.sandbox.email, world.sandbox.password)
    async with world.client(auth=auth, retry=NO_RETRIES, on_event=events.append) as client:
        await enqueue(client, 2)
        async with client.dispatcher() as dispatcher:
            await anyio.sleep(20)
            assert (dispatcher.stats.sent, dispatcher.stats.queued) == (0, 2)
            assert dispatcher.stats.paused is not None and len(pauses(events)) == 1


@pytest.mark.slow
async def test_a_lack_of_permission_may_be_one_payments_own(world: World) -> None:
    """Nothing was made; but the others go first, in case it is that payment which may not be made."""
    reply = auth_error(403, "insufficient_permissions", "no")
    world.sandbox.script(faults.Fault(name="permission", instead=partial(_answer, reply)), on="c2b", times=1)
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 3)
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(8)
            assert (dispatcher.stats.sent, dispatcher.stats.queued) == (2, 1)
            await anyio.sleep(40)
            assert (dispatcher.stats.sent, dispatcher.stats.queued) == (3, 0)


@pytest.mark.slow
@on_asyncio
async def test_each_outage_is_reported_and_begins_with_a_short_pause(world: World) -> None:
    """A payment that was sent ends the last one, and so does one that was refused: the service was reached."""
    events = list[Event]()
    async with world.client(retry=NO_RETRIES, on_event=events.append) as client:
        await enqueue(client, 10)
        async with client.dispatcher(per_minute=30) as dispatcher:
            for outage in range(3):
                world.line.refuse = 2
                await anyio.sleep(14)
                assert dispatcher.stats.paused is not None and len(pauses(events)) == outage + 1
                if outage == 1:
                    refuse(world, "NO_FLOAT")
                await anyio.sleep(4)
                stats = dispatcher.stats
                assert (stats.paused, stats.sent) == (None, world.sent)
    assert [each.count("ConnectError") for each in pauses(events)] == [1, 1, 1]


async def test_a_successor_that_can_send_ends_the_pause_that_it_finds(world: World) -> None:
    """Where the dispatcher has died that could not send, no process says for minutes that nothing is sent."""
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 5)
        world.line.refuse = 100
        async with client.dispatcher(per_minute=600) as first:
            await anyio.sleep(36)
            assert "ConnectError" in (first.stats.paused or "")
        world.line.refuse = 0
        async with client.dispatcher(per_minute=600) as successor:
            await anyio.sleep(3)
            assert (successor.stats.sent > 0, successor.stats.paused) == (True, None)
        async with client.dispatcher(per_minute=600) as third:
            await anyio.sleep(1)
            assert third.stats.paused is None


async def test_an_obstacle_of_one_type_does_not_stop_the_other(world: World) -> None:
    """While no collection can be sent, payouts go on."""

    def fail(request: httpx.Request) -> None:
        if "c2b" in request.url.path:
            raise httpx.ConnectError("All connection attempts failed")

    world.line.before = fail
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 3)
        await enqueue(client, 3, start=10, type="disbursement")
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(4)
            assert (dispatcher.stats.sent, len(world.made)) == (3, 3)
            assert "ConnectError" in (dispatcher.stats.paused or "")


@pytest.mark.slow
async def test_a_dispatcher_that_is_resumed_while_it_counts_the_queue_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of either type can be sent; the store is being asked when the program calls `resume`."""
    world.line.refuse, read = 1000, AccountStore.read
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 1)
        await enqueue(client, 1, start=10, type="disbursement")
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(2)
            assert dispatcher.stats.paused

            async def resume_and_read(*arguments: Any, **options: Any) -> Any:
                monkeypatch.undo()
                dispatcher.resume()
                return await read(*arguments, **options)

            monkeypatch.setattr(AccountStore, "read", resume_and_read)
            await anyio.sleep(2.5)
            assert AccountStore.read is read
            world.line.refuse = 0
            dispatcher.resume()
            await anyio.sleep(60)
    assert world.sent == 2


async def test_a_reason_of_its_own_delays_one_payment_by_half_a_minute(world: World) -> None:
    """Nor is it an obstacle for those of its type, which go on at their pace."""
    events = list[Event]()
    async with world.client(retry=NO_RETRIES, on_event=events.append) as client:
        world.sandbox.script(faults.lost(processed=False), on="c2b", times=1)
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="lost")
        await enqueue(client, 4)
        began = world.utcnow()
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(2)
            waiting = await record_of(client, "k00")
            assert waiting.not_before is not None and "lost" in (waiting.reason or "")
            assert (waiting.not_before - began).total_seconds() == pytest.approx(30, abs=1)
            assert (dispatcher.stats.sent, dispatcher.stats.paused, pauses(events)) == (3, None, [])


async def test_a_queued_payment_that_may_exist_holds_up_no_other(world: World) -> None:
    """It waits for someone's decision, half a minute at a time; nothing of it was sent, so it is no unknown result."""
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 3)
        _doubt(world.url, "k00")
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(2)
            waiting = await record_of(client, "k00")
            assert (waiting.state, waiting.cause) == (PaymentState.QUEUED, PaymentCause.WAITS)
            assert waiting.not_before is not None and waiting.not_before > world.utcnow() + timedelta(seconds=20)
            assert (dispatcher.stats.sent, dispatcher.stats.paused, world.sent) == (2, None, 2)


async def test_a_payment_that_is_taken_out_of_the_queue_is_no_unknown_result(world: World) -> None:
    """Five in a row that may exist, and repeat a payment that was made, pause nothing: none of them was sent."""
    async with world.client(retry=NO_RETRIES) as client:
        await client.collections.create(phone_number=PHONE_NUMBER, amount=5, idempotency_key="first")
        await enqueue(client, 5, priority=1)
        await enqueue(client, 1, start=5)
        _doubt(world.url, "k04", "previous_key = 'first'")
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(2)
            assert (dispatcher.stats.sent, dispatcher.stats.paused, world.sent) == (1, None, 2)
    assert world.states() == ["ACKNOWLEDGED", *["CANCELLED"] * 5, "ACKNOWLEDGED"]


def _doubt(url: str, below: str, *more: str) -> None:
    """Let queued payments, up to a key, be ones that may exist."""
    with closing(sqlite3.connect(url.partition("///")[2])) as connection, connection:
        columns = ", ".join(["candidates = '[\"t-1\"]'", "sent_at = created_at", *more])
        connection.execute(f"UPDATE mobilemoney_payment_records SET {columns} WHERE key BETWEEN 'k00' AND ?", [below])


@pytest.mark.slow
@on_asyncio
async def test_any_number_of_payments_that_may_exist_take_no_place_in_the_pace(world: World) -> None:
    """All of them are tried again and again, ahead of the customers who come meanwhile: these are sent at once."""
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 30)
        _doubt(world.url, "k99")
        async with client.dispatcher() as dispatcher:
            await anyio.sleep(45)
            await enqueue(client, 3, start=50)
            await anyio.sleep(5)
            assert (dispatcher.stats.sent, dispatcher.stats.paused, world.sent) == (3, None, 3)


async def test_a_payment_that_waits_has_its_turn_by_when_it_is_due(world: World) -> None:
    """Behind those that were due before it, whenever it was queued."""
    async with world.client() as client:
        await enqueue(client, 1, not_before=timedelta(seconds=60))
        await anyio.sleep(30)
        await enqueue(client, 1, start=1)
        await anyio.sleep(60)
        await dispatch(client, 1, per_minute=600)
    assert [json.loads(body)["amount"] for body in world.line.posts] == ["1001", "1000"]


@pytest.mark.slow
@on_asyncio
async def test_the_record_has_the_latest_reason_or_that_of_a_look(world: World) -> None:
    """A pause of the queue replaces the reason of an earlier one; not what a look in the list has shown."""
    async with world.client(world.store(grace=600), retry=NO_RETRIES) as client:
        refuse(world, "ODD")
        with pytest.raises(APIError):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="k00")
        await enqueue(client, 2)
        world.line.refuse = 1
        async with client.dispatcher(per_minute=600):
            await anyio.sleep(4)
            looked, unsent = [await record_of(client, f"k{number:02}") for number in range(2)]
            assert looked.looked_at is not None and "ConnectError" in (unsent.reason or "")
            world.sandbox.script(faults.lost(processed=False), on="c2b", times=1)
            with pytest.raises(OutcomeUnknown):
                await client.collections.create(phone_number=PHONE_NUMBER, amount=1001, idempotency_key="lost")
            await anyio.sleep(60)
            looked, unsent = [await record_of(client, f"k{number:02}") for number in range(2)]
    # The reason is that of the last try, so it has its time.
    assert re.fullmatch(r"at 20\d\d-\d\d-\d\d \d\d:\d\d UTC, .*'lost'.*", unsent.reason or "")
    assert (looked.cause, unsent.cause) == (PaymentCause.IN_GRACE, PaymentCause.HELD)


@on_asyncio
@pytest.mark.parametrize("before", [PaymentCause.WAITS, PaymentCause.DELAYED, PaymentCause.HELD])
async def test_after_a_look_too_a_later_try_has_its_own_reason(world: World, before: PaymentCause) -> None:
    """A limit that was raised since, say, is no reason any more: only what the look itself has shown stays."""
    async with world.client() as client:
        await enqueue(client, 1)
        edit(world.url, payments.update().values(looked_at=world.utcnow(), cause=before, about="a limit"))
        later = Reason(PaymentCause.DELAYED, "the list cannot be read")
        await write(world, partial(postpone, key="k00", reason=later, at=world.utcnow(), until=None))
        record = await record_of(client, "k00")
    assert record.cause is later.cause and str(record.reason).endswith(str(later.about))


@pytest.mark.costly("runs lines of payments/outbox/dispatcher.py that no quick test runs")
@on_asyncio
async def test_a_payment_that_the_store_cannot_put_off_is_not_tried_at_full_speed(world: World) -> None:
    """Its record does not say when to try again: the dispatcher rests instead, as after any obstacle."""
    store = SQLStore(world.url)
    async with world.client(retry=NO_RETRIES) as client:
        world.sandbox.script(faults.lost(processed=False), on="c2b", times=1)
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="lost")
        await enqueue(client, 1)
    outage = Outage(account_store(store).database, fails=lambda number: True)
    async with world.client(store) as client, client.dispatcher(per_minute=600) as dispatcher:
        await anyio.sleep(60)
        assert dispatcher.stats.paused is not None
        assert 2 <= outage.writes <= 5


async def test_a_pause_that_cannot_be_shown_is_kept_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that other processes do not see it."""
    store = SQLStore(world.url)
    async with world.client() as client:
        await enqueue(client, 1)
    outage = Outage(account_store(store).database, fails=lambda number: number >= 5)
    world.line.refuse = 100
    async with world.client(store, retry=NO_RETRIES) as client, client.dispatcher() as dispatcher:
        await anyio.sleep(2)
        assert dispatcher.stats.paused == "ConnectError: not sent"
        assert outage.writes == 5  # the last one was to show it
    assert "other dispatchers do not show" in caplog.text


@pytest.mark.costly("runs lines of payments/outbox/dispatcher.py that no quick test runs")
@on_asyncio
async def test_refusals_pause_the_dispatcher_only_in_a_row(world: World, client: AsyncClient) -> None:
    """A payment that is taken in between shows that the reason is gone, and so does one of another reason."""
    await enqueue(client, 85)
    async with client.dispatcher(per_minute=600) as dispatcher:
        refuse(world, "NO_FLOAT", times=19)
        await anyio.sleep(1.95)
        assert dispatcher.stats.sent == 20
        refuse(world, "NO_FLOAT", times=19)
        refuse(world, "CLOSED")
        refuse(world, "NO_FLOAT", times=100)
        await anyio.sleep(7)
        assert (dispatcher.stats.sent, dispatcher.stats.finishes_at) == (60, None)
        assert "20 collections in a row were refused" in (dispatcher.stats.paused or "")
        dispatcher.resume()
        await anyio.sleep(5)
        assert dispatcher.stats.sent == 80


@pytest.mark.slow
@on_asyncio
async def test_unknown_results_in_a_row_let_the_rest_of_the_queue_wait(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Each costs someone a look. One at a time is tried, after growing pauses, until one has an answer."""
    events = list[Event]()
    world.sandbox.script(faults.drop(processed=False), on="c2b", times=1000)
    async with world.client(SQLStore(world.url, account="shop-1"), on_event=events.append) as client:
        await enqueue(client, 20)
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(200)
            assert 5 <= dispatcher.stats.sent == world.sent <= 14
            assert [reason.partition(":")[0] for reason in pauses(events)] == ["5 results in a row are unknown"]
            world.sandbox.clear_script()
            await anyio.sleep(170)
            assert dispatcher.stats.queued == 0
        assert sum(each.state is PaymentState.UNKNOWN for each in await client.payments.list()) <= 14
    assert "queued payment 'k00' of account 'shop-1' has an unknown result" in caplog.text
    assert "no collection of account 'shop-1' can be sent" in caplog.text


@pytest.mark.slow
@on_asyncio
async def test_unknown_results_pause_the_dispatcher_only_in_a_row(world: World) -> None:
    """A payment that is refused in between shows that the service answers, and so does one that is taken."""
    drop = partial(world.sandbox.script, faults.drop(processed=False), on="c2b", times=4)
    async with world.client(retry=NO_RETRIES) as client, client.dispatcher(per_minute=600) as dispatcher:
        drop()
        refuse(world, "CLOSED")
        drop()
        await enqueue(client, 10)
        await anyio.sleep(3)
        drop()
        await enqueue(client, 4, start=10)
        await anyio.sleep(3)
        assert (dispatcher.stats.sent, dispatcher.stats.paused) == (14, None)


@pytest.mark.slow
@on_asyncio
async def test_unknown_results_of_one_type_are_counted_whatever_the_other_does(world: World) -> None:
    """Payouts that are paid in between say nothing about collections, which wait; the payouts go on as before."""
    events = list[Event]()
    world.sandbox.script(faults.drop(processed=False), on="c2b", times=1000)
    async with world.client(retry=NO_RETRIES, on_event=events.append) as client:
        for each in range(20):
            await enqueue(client, 1, start=2 * each)
            await enqueue(client, 1, start=2 * each + 1, type="disbursement")
        async with client.dispatcher(per_minute=600, pause_after=None) as dispatcher:
            await anyio.sleep(8)
            assert [reason.partition(":")[0] for reason in pauses(events)] == ["5 results in a row are unknown"]
            await anyio.sleep(10)
            assert 26 <= world.sent <= 36
            assert dispatcher.stats.queued == 40 - world.sent
            dispatcher.resume()
            assert dispatcher.stats.paused is None
        records = await client.payments.list()
    assert sum(each.state is PaymentState.ACKNOWLEDGED for each in records) == 20


@pytest.mark.slow
@on_asyncio
async def test_after_a_resume_as_many_refusals_pause_it_again(world: World) -> None:
    """It counts from the beginning, and reports each pause once, also where answers take long."""
    events = list[Event]()
    world.line.answer_after = 0.7
    async with world.client(on_event=events.append) as client:
        await enqueue(client, 70)
        refuse(world, "NO_FLOAT", times=100)
        async with client.dispatcher(per_minute=600) as dispatcher:
            for number in (1, 2):
                await anyio.sleep(10)
                assert 20 * number <= world.sent <= 28 * number
                assert len(pauses(events)) == number
                dispatcher.resume()
                assert dispatcher.stats.paused is None
            await anyio.sleep(1.5)
            dispatcher.pause("+255780000789 is at the till")
            await anyio.sleep(10)
            assert dispatcher.stats.paused == "+25578…789 is at the till"  # in logs, events and every view


@on_asyncio
async def test_an_end_that_cannot_be_read_stops_no_payment(world: World) -> None:
    """A transaction of an earlier version, say, among the last ones that have failed."""
    async with world.client() as client:
        await enqueue(client, 2)
        await dispatch(client, 2, per_minute=600)
        edit(world.url, payments.update().values(state="FINAL", status="FAILED", transaction="{"))
        await enqueue(client, 1, start=2)
        edit(world.url, payments.update().where(payments.c.key == "k00").values(transaction=None))
        async with client.dispatcher(per_minute=600, pause_after=2) as dispatcher:
            await anyio.sleep(2)
            assert str(dispatcher.stats.paused).startswith("2 collections in a row ended as FAILED")
            dispatcher.resume()
            await anyio.sleep(2)
        assert world.sent == 3


async def run_dry(client: AsyncClient, dispatcher: Any) -> int:
    """Let payouts be sent while the float is empty, until the dispatcher pauses; return how many were."""
    with anyio.fail_after(600):
        while dispatcher.stats.paused is None and dispatcher.stats.queued:
            await anyio.sleep(1)
    await anyio.sleep(20)
    return sum(each.state is PaymentState.FINAL for each in await client.payments.list())


@pytest.mark.costly("no quick test has many equal final states")
@pytest.mark.usefixtures("unhurried")
@pytest.mark.pairs
async def test_an_empty_float_pauses_every_dispatcher_of_the_account(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each payout is accepted, and ends later; one that succeeds between shows that the float is not empty."""
    choices = Choices(rate_limit=None, median_delay=2.0)
    sandbox, events = Sandbox(now=NOON, balance=0, choices=choices), list[Event]()
    world = World(store_url, sandbox, Line(sandbox))
    async with world.client(on_event=events.append) as client, world.client() as other:
        await enqueue(client, 20, type="disbursement")
        async with client.poller(resume=True), client.dispatcher(per_minute=45, pause_after=5) as first:
            with anyio.fail_after(60):
                while first.stats.sent < 1:
                    await anyio.sleep(1)
            ended = await run_dry(client, first)
            assert 5 <= ended < 10
            reason = "5 disbursements in a row ended as INSUFFICIENT_FUNDS; no money moved"
            assert first.stats.paused == reason
            assert pauses(events) == [reason] and reason in caplog.text
        assert (await read_overview(account_store(world.store()))).paused == reason
        async with other.poller(resume=True), other.dispatcher(per_minute=45, pause_after=5) as second:
            await anyio.sleep(5)
            assert second.stats.paused == reason
            assert sum(each.state is PaymentState.FINAL for each in await client.payments.list()) == ended
            second.resume()
            assert 5 <= await run_dry(other, second) - ended < 10
        async with other.dispatcher(per_minute=45, pause_after=None) as third:
            third.resume()
            await anyio.sleep(30)
            assert (third.stats.paused, third.stats.queued) == (None, 0)


@pytest.mark.slow
@pytest.mark.pairs
async def test_a_pause_of_the_program_is_kept_and_shown_elsewhere(store_url: str) -> None:
    """Also once its block is left; and so is one that ends by itself, until it ends."""
    world = make_world(store_url)
    async with world.client(retry=NO_RETRIES) as client, world.client(retry=NO_RETRIES) as other:
        async with client.dispatcher() as first:
            first.pause("closing time")
        await enqueue(client, 1)
        async with other.dispatcher() as second:
            await anyio.sleep(3)
            assert (second.stats.paused, second.stats.paused_until, world.sent) == ("closing time", None, 0)
            second.resume()
            await anyio.sleep(3)
            assert (second.stats.paused, world.sent) == (None, 1)
            world.line.refuse = 1
            await enqueue(client, 1, start=1)
            async with client.dispatcher() as first:
                await anyio.sleep(4)
                assert "ConnectError" in (first.stats.paused or "") and first.stats.paused_until is not None
                await anyio.sleep(60)
                assert (first.stats.paused, second.stats.paused, world.sent) == (None, None, 2)
                assert (await read_overview(account_store(world.store()))).paused is None


@pytest.mark.parametrize("pause_after", [0, True, "20", 2.5])
async def test_a_number_of_ends_that_is_none_is_refused(world: World, pause_after: Any) -> None:
    """By the name of the argument."""
    async with world.client() as client:
        with pytest.raises(InvalidRequest, match="pause_after must be"):
            client.dispatcher(pause_after=pause_after)


async def test_a_paused_dispatcher_goes_on_at_once_when_it_is_resumed(world: World) -> None:
    """However slow its pace, and it counts the queue while it is paused."""
    async with world.client() as client, client.dispatcher(per_minute=1) as dispatcher:
        await enqueue(client, 1)
        await anyio.sleep(1)
        dispatcher.pause()
        await enqueue(client, 3, start=1)
        await anyio.sleep(5)
        assert (dispatcher.stats.queued, dispatcher.stats.paused) == (3, "the program has paused it")
        dispatcher.resume()
        await anyio.sleep(0.1)
        assert world.sent == 2


# Pace


@pytest.mark.parametrize("per_minute", [80, 90])
async def test_a_pace_is_exact(world: World, client: AsyncClient, per_minute: int) -> None:
    """Neither faster nor slower by a hundredth."""
    pause = 60 / per_minute
    await enqueue(client, 14)
    async with client.dispatcher(per_minute=per_minute):
        await anyio.sleep(12 * pause - 0.05)
        assert world.sent == 12
        await anyio.sleep(0.1)
        assert world.sent == 13


async def test_a_payment_of_the_same_kind_waits_for_the_first_one_and_the_others_do_not(world: World) -> None:
    """Two of one type, number and amount are never on their way at once; another amount, number or type may go."""
    world.line.answer_after = 4.0
    async with world.client() as client:
        alike = [ORDER, ORDER, {**ORDER, "amount": 5}, {**ORDER, "phone_number": "+255681234599"}]
        for number, order in enumerate([*alike, {**ORDER, "type": "disbursement"}]):
            await client.payments.enqueue(**order, idempotency_key=f"k{number}")
        async with client.dispatcher(per_minute=600):
            await anyio.sleep(2)
            records = {record.key: record.state for record in await client.payments.list()}
            assert records.pop("k1") is PaymentState.QUEUED
            assert {*records.values()} == {PaymentState.SENDING}
            await anyio.sleep(4)
            assert world.sent == 5


@pytest.mark.slow
@on_asyncio
async def test_many_payments_that_wait_for_others_of_their_kind_hold_up_no_other(world: World) -> None:
    """Nineteen are on their way, and twice as many are like them: the one behind goes."""
    world.line.answer_after = 4.0
    async with world.client() as client:
        await enqueue(client, 19)
        for number in range(39):
            order = {**ORDER, "amount": 1000 + (number % 19 if number < 38 else 19)}
            await client.payments.enqueue(**order, idempotency_key=f"later {number:02}")
        async with client.dispatcher(per_minute=600):
            await anyio.sleep(3)
            assert world.sent == 20
            assert world.states().count("QUEUED") == 38


async def test_one_payment_at_a_time_waits_for_the_rate_limit(world: World) -> None:
    """However long that takes: it stays in the queue like the others, and can be paused, or cancelled."""
    async with world.client(retry=NO_RETRIES) as client:
        world.sandbox.script(faults.rate_limited(60), on="c2b", times=1)
        with pytest.raises(RateLimitExceeded):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=5, idempotency_key="now")
        await enqueue(client, 5)
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(40)
            dispatcher.pause()
            await anyio.sleep(60)
    assert world.sent == 1


async def test_a_payment_that_waits_for_the_list_holds_up_the_others_for_ten_seconds(world: World) -> None:
    """However long the list takes that may show it; a pause of another process by then leaves it in the queue."""

    async def dawdle(request: httpx.Request) -> None:
        if request.method == "GET":
            await anyio.sleep(60)

    async with world.client(world.store(grace=1), retry=NO_RETRIES, timeout=120.0) as client:
        refuse(world, "ODD")
        with pytest.raises(APIError):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000, idempotency_key="k00")
        await enqueue(client, 3)
        await anyio.sleep(180)
        world.line.before = dawdle
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(9)
            assert dispatcher.stats.sent == 0
            await anyio.sleep(3)
            assert dispatcher.stats.sent == 2
            await write(world, partial(save_pause, pause=Pause("closing time")))
            await anyio.sleep(120)
            assert (dispatcher.stats.paused, world.states()[0]) == ("closing time", "QUEUED")


async def test_a_dispatcher_is_used_once(world: World) -> None:
    """Entered again it would send nothing, and say so nowhere."""
    async with world.client() as client:
        dispatcher = client.dispatcher()
        async with dispatcher:
            pass
        with pytest.raises(InvalidRequest, match="dispatcher must be a new one"):
            async with dispatcher:
                pass


# Figures


@pytest.mark.slow
@on_asyncio
async def test_the_figures_say_when_the_last_queued_payment_will_have_been_sent(world: World) -> None:
    """At the pace, or at its own time if that is later; of a process that does not dispatch they say nothing."""
    async with world.client() as client, world.client() as other:
        await enqueue(client, 30)
        async with client.dispatcher(per_minute=30) as dispatcher:
            await anyio.sleep(20.1)
            assert (dispatcher.stats.sent, dispatcher.stats.queued) == (11, 20)
            expected = world.utcnow() + timedelta(seconds=40)
            assert dispatcher.stats.finishes_at == pytest.approx(expected, abs=timedelta(seconds=3))
            async with other.dispatcher() as rival:
                await anyio.sleep(3)
                assert (rival.stats.queued, rival.stats.finishes_at, rival.stats.paused) == (18, None, None)
            later = world.utcnow() + timedelta(hours=2)
            await enqueue(client, 1, start=50, not_before=later)
            await anyio.sleep(3)
            assert dispatcher.stats.finishes_at == later
            dispatcher.pause()
            assert dispatcher.stats.finishes_at is None


async def test_the_figures_count_what_was_sent_whatever_its_result(world: World) -> None:
    """Unknown, refused or taken; not what could not be sent."""
    async with world.client(retry=NO_RETRIES) as client:
        await enqueue(client, 7)
        world.line.refuse = 1
        world.sandbox.script(faults.drop(processed=True), on="c2b", times=2)
        refuse(world, "NO_FLOAT", times=2)
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(8)
            assert (dispatcher.stats.sent, world.sent) == (7, 7)
            assert repr(dispatcher) == "<Dispatcher: 0 queued, 7 sent>"
    counts = {each: world.states().count(each) for each in ("UNKNOWN", "REFUSED", "ACKNOWLEDGED", "QUEUED")}
    assert counts == {"UNKNOWN": 2, "REFUSED": 2, "ACKNOWLEDGED": 3, "QUEUED": 0}


# Processes, and the end


async def test_an_idle_dispatcher_writes_to_the_database_no_more_than_every_five_seconds(world: World) -> None:
    """It renews its lease halfway; what it asks in between writes nothing."""
    store = SQLStore(world.url)
    database, writes = account_store(store).database, list[float]()
    timed = database.timed

    async def count(work: Any, **options: Any) -> Any:
        writes.append(anyio.current_time())
        return await timed(work, **options)

    database.timed = count  # type: ignore[method-assign]
    async with world.client(store) as client, client.dispatcher():
        await anyio.sleep(60)
    pauses = [later - earlier for earlier, later in pairwise(writes)]
    assert len(writes) <= 14 and max(pauses) < 10


async def test_a_dispatcher_that_is_left_hands_over_within_two_seconds(store_url: str) -> None:
    """It gives its lease back, rather than let the next process wait until that ends."""
    world = make_world(store_url)
    async with world.client() as one, world.client() as other, anyio.create_task_group() as tasks:
        await enqueue(one, 4)
        async with one.dispatcher(per_minute=60):
            await anyio.sleep(0.5)
            tasks.start_soon(partial(dispatch, other, 4, per_minute=600))
            await anyio.sleep(0.1)
            assert world.sent == 1
        await anyio.sleep(2.5)
        assert world.sent == 4


@pytest.mark.slow
async def test_a_dispatcher_that_waits_for_the_rate_limit_stays_the_only_one(world: World) -> None:
    """Another one that took over would need a place of its own for the same payment, and count it as sent."""
    async with world.client(retry=NO_RETRIES) as client, world.client(retry=NO_RETRIES) as other:
        world.sandbox.script(faults.rate_limited(60), on="c2b", times=2)
        for number, each in enumerate((client, other)):
            with pytest.raises(RateLimitExceeded):
                await each.collections.create(phone_number=PHONE_NUMBER, amount=5 + number, idempotency_key=str(number))
        await enqueue(client, 1)
        async with client.dispatcher(per_minute=600) as one:
            await anyio.sleep(1)
            async with other.dispatcher(per_minute=600) as two:
                await anyio.sleep(30)
                assert one.stats.finishes_at is not None is two.stats.finishes_at
                await anyio.sleep(40)
                assert (one.stats.sent, two.stats.sent, world.sent) == (1, 0, 3)


async def test_a_dispatcher_whose_lease_ends_while_the_database_is_away_sends_nothing(world: World) -> None:
    """Its payment waits for the rate limit, and is left to the process that dispatches by then: it alone counts it."""
    store = SQLStore(world.url)
    outage = Outage(account_store(store).database)
    async with world.client(store, retry=NO_RETRIES) as client, world.client(retry=NO_RETRIES) as other:
        for number, each in enumerate((client, other)):
            world.sandbox.script(faults.rate_limited(15), on="c2b", times=1)
            with pytest.raises(RateLimitExceeded):
                await each.collections.create(phone_number=PHONE_NUMBER, amount=5 + number, idempotency_key=str(number))
        await enqueue(client, 1)
        async with client.dispatcher() as one, other.dispatcher() as two:
            await anyio.sleep(1)
            outage.away = True
            await anyio.sleep(13.5)  # just before the limit ends
            outage.away = False
            await anyio.sleep(8)
            assert (one.stats.sent, two.stats.sent, world.sent) == (0, 1, 3)


async def test_a_dispatcher_whose_lease_ended_while_it_was_renewed_sends_nothing(world: World) -> None:
    """As on a machine that was asleep: another process may dispatch by now."""
    store = SQLStore(world.url)
    delay = Delay(account_store(store).database)
    async with world.client(store) as client, client.dispatcher(per_minute=600):
        await anyio.sleep(1)
        delay.seconds = 11.0
        await anyio.sleep(6)
        await enqueue(client, 2)
        await anyio.sleep(60)
        assert world.sent == 0
        delay.seconds = 0.0
        await anyio.sleep(15)
        assert world.sent == 2


@pytest.mark.parametrize(
    ("answers_in", "ends_in", "state"), [(8, 8, PaymentState.ACKNOWLEDGED), (40, 10, PaymentState.UNKNOWN)]
)
async def test_the_end_waits_ten_seconds_for_answers(
    world: World, answers_in: float, ends_in: float, state: PaymentState
) -> None:
    """Nothing else is begun; a payment without an answer is unknown, and left to reconcile."""
    world.line.answer_after = answers_in
    async with world.client(timeout=60.0) as client:
        await enqueue(client, 3)
        async with client.dispatcher(per_minute=60) as dispatcher:
            await anyio.sleep(0.5)
            ended_at = anyio.current_time()
        assert anyio.current_time() - ended_at == pytest.approx(ends_in, abs=0.6)
        assert dispatcher.stats.paused == "the dispatcher is closed"
        assert [record.state for record in await client.payments.list()] == [state, *[PaymentState.QUEUED] * 2]
    assert world.sent == 1
