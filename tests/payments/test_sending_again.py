"""A key that was sent is sent again only after a look, and the look must show what the last decision calls for."""

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    Acknowledgement,
    APIError,
    AsyncClient,
    OutcomeUnknown,
    PaymentCause,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.database.connections import database_failure
from mobilemoney_async.events import Event, PaymentUnknown
from mobilemoney_async.payments.ownership.reconciler import Reconciler
from mobilemoney_async.payments.records.next_steps import next_step
from mobilemoney_async.payments.store import account_store
from tests.payments.second_world import (
    DAY,
    GRACE,
    HOUR,
    KINDS,
    MINUTE,
    RESEND,
    TYPES,
    Order,
    World,
    is_openly_unknown,
    lose_answer,
    make_world,
    number,
    order,
    outcome,
    refuse_softly,
    unreadable,
)
from tests.payments.service import Outage
from tests.support.scale import crossed
from tests.support.second_service import ListBehaviour, Payment, Row, error

pytestmark = pytest.mark.pairs


Answer = Callable[[httpx.Request, Payment | None], httpx.Response]
ANSWERS: dict[str, Answer] = {"answer lost": lose_answer, "refused softly": refuse_softly}
HOW = pytest.mark.parametrize("how", ANSWERS)


async def pay_another(world: World, client: AsyncClient, kind: str, key: str) -> None:
    """Make a payment that the store knows, and that fits nothing else."""
    await world.pay(client, [Order(key, kind, number(500), 900)])


async def ask_between_others(world: World, client: AsyncClient, asked: Order, how: str, *, made: bool) -> None:
    """Ask for a payment without an acknowledgement, a minute after one that the store knows and before another."""
    await pay_another(world, client, asked.kind, "before")
    await anyio.sleep(MINUTE)
    await world.answered(client, asked, ANSWERS[how], made=made)
    await anyio.sleep(MINUTE)
    await pay_another(world, client, asked.kind, "after")


async def ask_all_refused_softly(world: World, client: AsyncClient, orders: Sequence[Order]) -> None:
    """Have payments refused softly between two that the store knows, and wait until they may be looked for."""
    await pay_another(world, client, orders[0].kind, "before")
    for each in orders:
        await world.answered(client, each, refuse_softly, made=False)
    await anyio.sleep(MINUTE)
    await pay_another(world, client, orders[0].kind, "after")
    await anyio.sleep(GRACE + MINUTE)


@pytest.mark.slow
@RESEND
@HOW
async def test_a_list_that_was_behind_is_looked_at_again(store_url: str, kind: str, resend: bool, how: str) -> None:
    """A list that shows payments late costs nothing: the key's next use finds the payment, and sends nothing."""
    world, asked = make_world(store_url, resend=resend), order(kind)
    world.service.list = ListBehaviour(lag=timedelta(minutes=5))
    async with world.client() as client:
        await ask_between_others(world, client, asked, how, made=True)
        await world.reconcile(client, 70.0, 2.0, 60.0)
        await world.attempt(client, asked)
        await world.hold(client)
        await world.reconcile(client, *[4 * MINUTE] * 5)
        again = await world.attempt(client, asked)
        assert isinstance(again, Acknowledgement), again
        assert again.transaction_id == world.made("k")[0]
        assert world.posts("k") == 1
        await world.hold(client, at_end=True)


@pytest.mark.slow
@RESEND
async def test_a_wrong_word_is_checked_by_a_last_look(store_url: str, kind: str, resend: bool) -> None:
    """Somebody confirmed an absence too early: what the list shows by then becomes a candidate, and nothing is sent."""
    world, asked = make_world(store_url, resend=resend), order(kind)
    world.service.list = ListBehaviour(lag=timedelta(minutes=5))
    async with world.client() as client:
        await ask_between_others(world, client, asked, "answer lost", made=True)
        await world.reconcile(client, 70.0)
        await world.confirm(client, "k")
        await anyio.sleep(HOUR)
        assert isinstance(await world.attempt(client, asked), OutcomeUnknown)
        record = await world.get(client, "k")
        assert (record.state, record.candidates) == (PaymentState.UNKNOWN, (world.made("k")[0],))
        assert record.history[-1].detail == record.candidates[0]
        await client.payments.identify("k", record.candidates[0], note="Asha found the receipt")
        assert isinstance(await world.attempt(client, asked), Acknowledgement)
        assert world.posts("k") == 1
        await world.hold(client, at_end=True)


@pytest.mark.slow
async def test_a_dismissed_candidate_stops_nothing_again(world: World, client: AsyncClient, kind: str) -> None:
    """Once an operator has said what each of the candidates is, and that the payment does not exist, its key sends."""
    asked = order(kind)
    await pay_another(world, client, kind, "before")
    await world.lose(client, asked, made=False)
    for _ in range(2):  # another system's
        await anyio.sleep(10)
        world.service.make(TYPES[kind], asked.phone_number, "5000")
    await world.reconcile(client, GRACE + MINUTE)
    record = await world.get(client, "k")
    assert set(record.candidates) == {"t-000002", "t-000003"}
    await world.confirm(client, "k")
    assert isinstance(await world.attempt(client, asked), OutcomeUnknown)
    for each in record.candidates:
        await client.payments.explain(each, note="Asha: the till")
    await world.confirm(client, "k")
    await anyio.sleep(MINUTE)
    again = await world.attempt(client, asked)
    assert isinstance(again, Acknowledgement), again
    assert world.made("k") == [again.transaction_id]
    await world.hold(client)


@pytest.mark.costly(
    "runs lines of payments/ownership/reconciliation.py, payments/creates/creates.py that no quick test runs"
)
async def test_a_word_about_one_payment_says_nothing_of_another(world: World, client: AsyncClient, kind: str) -> None:
    """Dismissed as candidate of one key, a transaction still keeps the key that has made it from being sent again."""
    first, second = order(kind, "first"), order(kind, "second")
    await pay_another(world, client, kind, "before")
    await anyio.sleep(MINUTE)
    await world.answered(client, first, refuse_softly, made=True)
    await world.lose(client, second, made=False)
    await anyio.sleep(MINUTE)
    await pay_another(world, client, kind, "after")
    await world.reconcile(client, GRACE + MINUTE)
    assert (await world.get(client, "second")).candidates == tuple(world.made("first"))
    await world.confirm(client, "second")
    await anyio.sleep(HOUR)
    await world.attempt(client, first)
    assert world.posts("first") == 1
    await client.payments.identify("first", world.made("first")[0], note="Asha found the receipt")
    assert isinstance(await world.attempt(client, second), Acknowledgement)
    await world.hold(client, at_end=True)


async def test_a_word_needs_no_comparison(world: World, client: AsyncClient, kind: str) -> None:
    """A new merchant's operator confirms an absence: one look without a match is enough."""
    asked = order(kind)
    await world.lose(client, asked, made=False)
    await anyio.sleep(GRACE)
    await world.confirm(client, "k")
    lists = world.service.lists
    again = await world.attempt(client, asked)
    assert isinstance(again, Acknowledgement), again
    assert world.service.lists > lists
    await world.hold(client, at_end=True)


@pytest.mark.parametrize(("kind", "state"), crossed(KINDS, ["REFUSED", "RELEASED"]))
async def test_nothing_is_sent_while_the_list_cannot_be_read(
    world: World, client: AsyncClient, kind: str, state: str
) -> None:
    """Without a look the call fails, before anything is sent; the payment stays as it is, and the key works later."""
    asked = order(kind)
    how = "refused softly" if state == "REFUSED" else "answer lost"
    await ask_between_others(world, client, asked, how, made=False)
    await anyio.sleep(GRACE + MINUTE)
    if state == "RELEASED":
        await world.confirm(client, "k")
        await anyio.sleep(2 * GRACE)
    world.service.answer_list = unreadable
    failed = await world.attempt(client, asked)
    assert isinstance(failed, StoreError), failed
    assert failed.outcome == "not_sent"
    assert ("confirmed absent" in str(failed)) is (state == "RELEASED")
    assert (await world.get(client, "k")).state == state
    assert world.posts("k") == 1
    world.service.answer_list = lambda request: None
    await anyio.sleep(MINUTE)
    assert isinstance(await world.attempt(client, asked), Acknowledgement)
    await world.hold(client, at_end=True)


async def test_a_look_that_the_store_cannot_make_does_not_blame_the_list(
    world: World, client: AsyncClient, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction may hold the payment: one that has queued it again, and is open."""
    asked = order(kind)
    await ask_between_others(world, client, asked, "refused softly", made=False)
    await anyio.sleep(GRACE + MINUTE)

    async def run(*_: Any, **__: Any) -> None:
        raise database_failure()

    monkeypatch.setattr(Reconciler, "run", run)
    failed = await world.attempt(client, asked)
    assert isinstance(failed, StoreError) and failed.outcome == "not_sent"
    assert "the store is busy" in str(failed) and "cannot be read" not in str(failed)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
async def test_an_absent_collection_is_sent_once_its_candidates_are_explained(store_url: str, rows: int) -> None:
    """What the list showed to a create was sold at the till: the customer, who comes again, is asked to pay at once."""
    world, asked = make_world(store_url, resend=True), order("collections")
    async with world.client() as client:
        await ask_between_others(world, client, asked, "answer lost", made=False)
        await world.reconcile(client, GRACE + MINUTE, GRACE + MINUTE)
        await anyio.sleep(HOUR)
        for _ in range(rows):
            world.service.make("collection", asked.phone_number, "5000", status="SUCCESS")
        said = await world.attempt(client, asked)
        assert isinstance(said, OutcomeUnknown)
        for name in (await world.get(client, "k")).candidates:
            assert all(f"mobilemoney payments {word} {name} " in str(said) for word in ("identify k", "explain"))
            record = await world.get(client, "k")
            assert record.state is PaymentState.ABSENT and name in (record.reason or "")
            await client.payments.explain(name, note="Asha: sold at the till")
        record = await world.get(client, "k")
        assert (record.state, record.candidates, record.reason) == (PaymentState.ABSENT, (), None)
        assert isinstance(await world.attempt(client, asked), Acknowledgement)
        await world.hold(client)


async def test_a_soft_refusal_of_a_new_merchant(world: World, client: AsyncClient, kind: str) -> None:
    """Where the store knows no payment to compare with, a collection is sent again, and a disbursement waits."""
    asked = order(kind)
    assert isinstance(await world.answered(client, asked, refuse_softly, made=False), APIError)
    lists = list[int]()
    for _ in range(2):  # one look serves the whole grace period
        await anyio.sleep(GRACE / 3)
        assert isinstance(await world.attempt(client, asked), StoreError)
        lists.append(world.service.lists)
    assert lists[0] == lists[1]
    await anyio.sleep(GRACE / 3 + MINUTE)
    again = await world.attempt(client, asked)
    if kind == "collections":
        assert isinstance(again, Acknowledgement), again
    else:
        assert isinstance(again, OutcomeUnknown), again
        record = await world.get(client, "k")
        assert is_openly_unknown(record)
        assert record.history[-1].detail == record.reason
        assert world.posts("k") == 1
        await world.confirm(client, "k")
        assert isinstance(await world.attempt(client, asked), Acknowledgement)
    assert world.posts("k") == 2
    await world.hold(client, at_end=True)


async def test_a_soft_refusal_waits_for_a_later_payment(world: World, client: AsyncClient, kind: str) -> None:
    """A refused disbursement is sent again once a later payment can be compared with; nobody has to decide."""
    asked = order(kind)
    await pay_another(world, client, kind, "before")
    await anyio.sleep(MINUTE)
    await world.answered(client, asked, refuse_softly, made=False)
    await anyio.sleep(GRACE + MINUTE)
    await pay_another(world, client, kind, "after")
    again = await world.attempt(client, asked)
    if kind == "disbursements":
        assert isinstance(again, StoreError) and again.outcome == "not_sent", again
        await anyio.sleep(GRACE + MINUTE)
        again = await world.attempt(client, asked)
    assert isinstance(again, Acknowledgement), again
    await world.hold(client, at_end=True)


@pytest.mark.slow
async def test_a_look_that_ended_since_a_create_asked_serves_it(
    store_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the create was held up, and reads which payments are due only after that look."""
    world, find_due, has_looked = make_world(store_url), Reconciler._due, anyio.Event()
    orders = [Order(f"k{each}", kind, number(each)) for each in range(2)]

    async def late(self: Reconciler, key: str | None) -> Any:
        if key == "k1":
            await has_looked.wait()
        return await find_due(self, key)

    monkeypatch.setattr(Reconciler, "_due", late)
    async with world.client() as client:
        await ask_all_refused_softly(world, client, orders)
        async with anyio.create_task_group() as group:
            group.start_soon(world.pay, client, orders[1:])
            await anyio.wait_all_tasks_blocked()
            await world.pay(client, orders[:1])
            lists = world.service.lists
            has_looked.set()
        assert world.service.lists == lists


@pytest.mark.costly("runs lines of payments/ownership/reconciler.py that no quick test runs")
async def test_a_look_that_ended_meanwhile_serves_a_create(
    store_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create that is about to look in the list uses the look that another process has just ended."""
    world, asked, lists = make_world(store_url), order(kind), list[int]()
    store = SQLStore(world.url, grace=GRACE)
    async with world.client() as client, world.client(store=store) as other:
        await ask_between_others(world, client, asked, "refused softly", made=False)
        await anyio.sleep(GRACE + MINUTE)
        database = account_store(store).database
        run = database._run

        async def look_first(work: Any) -> Any:
            if work.writes and not lists:
                await client.payments.reconcile()
                lists.append(world.service.lists)
            return await run(work)

        monkeypatch.setattr(database, "_run", look_first)
        assert isinstance(await world.attempt(other, asked), Acknowledgement)
        assert lists == [world.service.lists]
        await world.hold(client, at_end=True)


@pytest.mark.slow
@HOW
async def test_a_soft_refusal_and_its_duplicate(world: World, client: AsyncClient, kind: str, how: str) -> None:
    """Two keys of one kind, the first refused softly: neither gets the other's transaction, however it went."""
    pairs = list(itertools.product([True, False], repeat=2))
    await pay_another(world, client, kind, "before")
    await anyio.sleep(MINUTE)
    for place, made in enumerate(pairs):
        for which, answer in enumerate((refuse_softly, ANSWERS[how])):
            key = f"{['first', 'second'][which]} of {place}: {['not made', 'made'][made[which]]}"
            await world.answered(client, order(kind, key, place), answer, made=made[which])
            await anyio.sleep(10)
    await anyio.sleep(MINUTE)
    await pay_another(world, client, kind, "after")
    await world.reconcile(client, GRACE + MINUTE, GRACE + MINUTE)
    await world.hold(client)
    for record in await client.payments.list():
        if ":" in record.key:
            await world.attempt(client, Order(record.key, kind, record.phone_number))
    await world.hold(client)
    await world.come_to_rest(client)
    await world.hold(client, at_end=True)


# Acknowledgements

FIRST = {"PENDING": "PROCESSING", "PROCESSING": "PENDING"}
OTHERS: dict[str, Callable[[Row], Row]] = {
    "amount": lambda row: {**row, "amount": "900"},
    "number": lambda row: {**row, "phone_number": number(500)},
    "currency": lambda row: {**row, "currency": "KES"},
    "status": lambda row: {**row, "status": "failed"},
    "state of the other type": lambda row: {**row, "status_code": FIRST[row["status_code"]]},
    "state in which nothing begins": lambda row: {**row, "status_code": "SUCCESS"},
    "nothing but the id": lambda row: {"transaction_id": row["transaction_id"]},
    "values of other types": lambda row: {**dict.fromkeys(row, 7), "transaction_id": row["transaction_id"]},
}


async def test_an_echo_that_contradicts_is_looked_up(world: World, client: AsyncClient, kind: str) -> None:
    """The acknowledgement has our id and somebody else's values: the transaction of that id decides."""
    for place, (name, world.service.acknowledge) in enumerate(OTHERS.items()):
        again = await world.attempt(client, order(kind, name, place))
        assert isinstance(again, Acknowledgement), again
        assert [again.transaction_id] == world.made(name)
        assert world.service.lookups == place + 1
    await world.hold(client, at_end=True)


async def test_an_echo_that_contradicts_while_the_store_is_away_leaves_the_result_unknown(
    store_url: str, kind: str
) -> None:
    """Neither the service nor the store can say whose transaction it is, and the error says so."""
    world, store = make_world(store_url), SQLStore(store_url)
    outage = Outage(account_store(store).database)

    def look_up(request: httpx.Request) -> None:
        outage.away = True

    world.service.acknowledge = next(iter(OTHERS.values()))
    world.service.answer_lookup = look_up
    events: list[Event] = []
    async with world.client(store=store, on_event=events.append) as client:
        said = await world.attempt(client, order(kind, "k"))
        assert isinstance(said, OutcomeUnknown)
        outage.away = False
    (unknown,) = [each for each in events if isinstance(each, PaymentUnknown)]
    assert (unknown.idempotency_key, unknown.sent_at) == ("k", said.sent_at)


@pytest.mark.slow
async def test_what_an_acknowledgement_has_named_stays_a_candidate(
    world: World, client: AsyncClient, kind: str
) -> None:
    """A payment is not absent before someone has explained the transaction that its acknowledgement has named."""
    asked = order(kind)

    def name_a_stranger(request: httpx.Request, payment: Payment | None) -> httpx.Response:
        values = {"transaction_id": "t-000002", "reference": "R2", "amount": "800", "phone_number": number(600)}
        shown = {"status": "success", "message": "accepted", "currency": "TZS", "status_code": "PENDING"}
        return httpx.Response(200, json={**shown, **values})

    await pay_another(world, client, kind, "before")  # t-000001
    world.service.make(TYPES[kind], number(600), "800")  # t-000002
    await anyio.sleep(MINUTE)
    assert isinstance(await world.answered(client, asked, name_a_stranger, made=False), OutcomeUnknown)
    await anyio.sleep(MINUTE)
    await pay_another(world, client, kind, "after")
    await world.reconcile(client, GRACE + MINUTE, GRACE + MINUTE, HOUR)
    record = await world.get(client, "k")
    assert (record.state, record.candidates) == (PaymentState.UNKNOWN, ("t-000002",))
    world.service.list = ListBehaviour(hide=lambda payment: payment.id == "t-000002")
    await world.reconcile(client, 5 * HOUR, GRACE)
    record = await world.get(client, "k")
    assert (record.state, record.candidates) == (PaymentState.UNKNOWN, ("t-000002",))
    await client.payments.explain("t-000002", note="Asha: sold at the till")
    await world.reconcile(client, GRACE, GRACE)
    record = await world.get(client, "k")
    assert (record.state, record.candidates) == (PaymentState.ABSENT, ())
    assert world.posts("k") == 1


async def name_another_amount(world: World, client: AsyncClient, kind: str) -> None:
    """Ask for a payment that the service makes, acknowledges and shows with 4,999: t-000001."""

    def change(request: httpx.Request, payment: Payment | None) -> None:
        assert payment is not None
        payment.amount = "4999"

    world.service.acknowledge = lambda row: {**row, "amount": "4999"}
    assert isinstance(await world.answered(client, order(kind), change, made=True), OutcomeUnknown)
    world.service.acknowledge = lambda row: row
    await anyio.sleep(GRACE + MINUTE)


async def test_a_word_does_not_send_again_what_an_acknowledgement_has_named(
    world: World, client: AsyncClient, kind: str
) -> None:
    """Neither the word that the payment does not exist, nor a list that hides the transaction, lets its key be sent."""
    await name_another_amount(world, client, kind)
    world.service.list = ListBehaviour(hide=lambda payment: True)
    await client.payments.confirm_absent("k", note="Asha: no 5000 on the dashboard")
    released = await world.get(client, "k")
    assert released.candidates == ("t-000001",)
    assert "or explain it" in next_step(released, world.utcnow()).text
    said = await world.attempt(client, order(kind))
    assert isinstance(said, OutcomeUnknown)
    assert "t-000001" in str(said)
    assert world.posts("k") == 1


async def test_what_an_acknowledgement_has_named_can_be_identified(
    world: World, client: AsyncClient, kind: str
) -> None:
    """Someone who knows that the named transaction is the payment says so, though its amount is another one."""
    await name_another_amount(world, client, kind)
    done = await client.payments.identify("k", "t-000001", note="Asha: a fee was taken off")
    assert (done.state, done.transaction_id, done.candidates) == (PaymentState.ACKNOWLEDGED, "t-000001", ())
    # Its end is another payment's, which no machine believes: someone takes it as it is.
    world.service.finish(world.service.payments[0])
    async with client.poller(timeout=60) as poller:
        poller.track("t-000001")
        assert [type(each.error) async for each in poller.outcomes()] == [StoreError]
    contradicted = await world.get(client, "k")
    assert (contradicted.state, contradicted.cause) == (PaymentState.ACKNOWLEDGED, PaymentCause.OTHER_PAYMENT)
    assert [each[1] for each in next_step(contradicted, world.utcnow()).commands] == ["t-000001", "recover"]
    (ended,) = await client.payments.recover({"k": "t-000001"}, note="Asha: it is this payment all the same")
    assert (ended.state, ended.status, ended.cause, ended.error) == (PaymentState.FINAL, "SUCCESS", None, None)
    assert ended.transaction is not None and ended.transaction.amount == 4999
    assert await client.payments.unresolved() == []
    # It counts as any other end: one that turns is told, and may be taken.
    world.service.finish(world.service.payments[0], "FAILED")
    await client.transactions.page()
    assert [each.cause for each in await client.payments.unresolved()] == [PaymentCause.CHANGED]
    (turned,) = await client.payments.recover({"k": "t-000001"}, note="Asha: the service says FAILED")
    assert (turned.state, turned.status, turned.cause) == (PaymentState.FINAL, "FAILED", None)


async def test_an_audit_knows_what_an_acknowledgement_has_named(world: World, client: AsyncClient, kind: str) -> None:
    """Though its amount is another one: the advice to explain it would have its payment sent again."""
    await name_another_amount(world, client, kind)
    today = world.utcnow().date()
    report = await client.payments.audit(from_date=today, to_date=today)
    assert {(each.kind, each.key) for each in report.differences} == {("unresolved", "k")}
    of_row = next(each for each in report.differences if each.transaction_id == "t-000001")
    assert of_row.commands[0][:4] == ("payments", "identify", "k", "t-000001")


@pytest.mark.parametrize(("kind", "hours"), crossed(KINDS, [20, 30]))
async def test_a_soft_refusal_is_looked_for_after_days_without_a_look(
    world: World, client: AsyncClient, kind: str, hours: int
) -> None:
    """Every process was down, say: a payment that was made all the same is not silently refused for ever."""
    await pay_another(world, client, kind, "before")
    await anyio.sleep(MINUTE)
    await world.answered(client, order(kind), refuse_softly, made=True)
    await anyio.sleep(hours * HOUR)
    await pay_another(world, client, kind, "after")
    await world.reconcile(client, GRACE + MINUTE)
    record = await world.get(client, "k")
    assert record.state is PaymentState.UNKNOWN or record.transaction_id is not None, record


async def test_an_old_soft_refusal_holds_up_no_later_payment(world: World, client: AsyncClient, kind: str) -> None:
    """A service may refuse days of long ago: later ones are looked for, and a create is told of its own alone."""
    await pay_another(world, client, kind, "long ago")
    await world.answered(client, order(kind), refuse_softly, made=False)
    await world.lose(client, order(kind, "unknown", 3), made=False)
    await anyio.sleep(4 * DAY)

    def refuse_old_days(request: httpx.Request) -> httpx.Response | None:
        first = request.url.params.get("from")
        is_old = first is not None and first < (world.utcnow() - timedelta(days=2)).date().isoformat()
        return error(422, None) if is_old else None

    await pay_another(world, client, kind, "before")
    await anyio.sleep(MINUTE)
    world.service.answer_list = refuse_old_days
    await world.lose(client, order(kind, "lost", 2), made=False)
    await world.answered(client, order(kind, "refused", 4), refuse_softly, made=False)
    await anyio.sleep(MINUTE)
    await pay_another(world, client, kind, "after")
    await world.reconcile(client, *[GRACE] * 4)
    assert (await world.get(client, "lost")).state is PaymentState.ABSENT
    with pytest.raises(APIError):
        await client.payments.reconcile()
    assert isinstance(await world.attempt(client, order(kind, "refused", 4)), Acknowledgement)


async def test_a_list_that_is_never_whole_is_not_read_for_ever(world: World, client: AsyncClient, kind: str) -> None:
    """For a soft refusal of days ago, which such a list can never say anything of."""
    await pay_another(world, client, kind, "before")
    await world.answered(client, order(kind), refuse_softly, made=False)
    world.service.list = ListBehaviour(total_count=lambda count: count + 1)
    await anyio.sleep(2 * DAY)
    await pay_another(world, client, kind, "after")
    await world.reconcile(client, MINUTE)
    before = len(world.service.log)
    await world.reconcile(client, *[MINUTE] * 20)
    assert len(world.service.log) == before


@pytest.mark.slow
async def test_another_match_does_not_hide_what_an_acknowledgement_has_named(
    world: World, client: AsyncClient, kind: str
) -> None:
    """Once each of the two is explained, and the absence confirmed, the key is sent again."""
    await name_another_amount(world, client, kind)
    world.service.make(TYPES[kind], number(1), "5000")  # the same customer, at the till
    await world.reconcile(client, HOUR)
    assert (await world.get(client, "k")).candidates == ("t-000002", "t-000001")
    await client.payments.explain("t-000002", note="Asha: sold at the till")
    await world.reconcile(client, HOUR)
    assert (await world.get(client, "k")).candidates == ("t-000001",)
    await client.payments.explain("t-000001", note="Asha: an order of the till")
    await client.payments.confirm_absent("k", note="Asha: no 5000 on the dashboard")
    assert isinstance(await world.attempt(client, order(kind)), Acknowledgement)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["t-000001", "t-999999"], ids=["another of ours", "nothing"])
async def test_an_acknowledgement_of_another_payment_is_not_ours(
    world: World, client: AsyncClient, kind: str, other: str
) -> None:
    """It names another number, amount and id: the result is unknown, and the payment itself is found in the list."""
    await pay_another(world, client, kind, "before")  # t-000001
    await anyio.sleep(MINUTE)
    named = {"transaction_id": other, "reference": f"R-{other}", "amount": "900", "phone_number": number(500)}
    world.service.acknowledge = lambda row: {**row, **named}
    assert isinstance(await world.attempt(client, order(kind)), OutcomeUnknown)
    await world.hold(client)
    world.service.acknowledge = lambda row: row
    await anyio.sleep(MINUTE)
    await pay_another(world, client, kind, "after")
    await world.reconcile(client, GRACE + MINUTE, GRACE + MINUTE)
    await world.attempt(client, order(kind))
    await world.hold(client)
    assert outcome(await world.get(client, "k")) in {"found", "open"}
    assert world.posts("k") == 1
