"""Creates under a key: recorded before they are sent, never repeated, and never lost."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, cast

import anyio
import httpx
import pytest

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    ConnectionFailed,
    DuplicateSuspected,
    IdempotencyConflict,
    InvalidRequest,
    MobileMoneyError,
    OutcomeUnknown,
    PermissionDenied,
    RetryPolicy,
    SQLStore,
    StoreError,
    TransactionType,
)
from mobilemoney_async.events import Event, PaymentUnknown
from mobilemoney_async.payments.creates import attempts
from mobilemoney_async.payments.creates.creates import payment_request
from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.record import PaymentState
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Fault, faults
from tests.payments.service import (
    ORDER,
    PHONE_NUMBER,
    TWO_MINUTES,
    World,
    between_others,
    get,
    leave,
    make_world,
    miss,
    on_asyncio,
    on_one,
    on_sqlite,
    rows,
)
from tests.support.databases import execute
from tests.support.fakes import FakeTransport

UNANSWERED: Mapping[str, Fault] = {
    "dropped after": faults.drop(processed=True),
    "reset after": faults.drop(processed=True, reset=True),
    "time-out after": faults.lost(processed=True),
    "500 after": faults.server_error(500, processed=True),
    "502 page after": faults.html_page(502, processed=True),
    "empty": faults.empty_body(),
    "truncated": faults.truncated(),
    "dropped before": faults.drop(processed=False),
    "time-out before": faults.lost(processed=False),
    "500 before": faults.server_error(500, processed=False),
    "502 page before": faults.html_page(502),
}


async def create(client: AsyncClient, key: str | None = "order-1", **changes: Any) -> Acknowledgement:
    """Create a collection."""
    return await client.collections.create(**{**ORDER, "idempotency_key": key, **changes})


async def test_the_record_is_on_disk_before_the_socket_is_touched(world: World) -> None:
    """Another connection sees the payment before the service does, and its id before the caller."""
    seen: list[list[str]] = []
    world.line.before = lambda request: seen.append([*world.states(), *world.happened()])
    async with world.client() as client:
        answer = await create(client)
        assert world.ids() == [answer.transaction_id]
        assert world.states() == ["ACKNOWLEDGED"]
        assert world.happened() == ["sent", "acknowledged"]
    assert seen == [["SENDING", "sent"]]
    assert world.made == [answer.transaction_id]


async def test_a_record_says_everything(client: AsyncClient) -> None:
    """The request, its time and its result can be read under the key, with the history."""
    assert await client.payments.get("order-1") is None
    answer = await client.disbursements.create(phone_number="+255 681 234 501", amount="1000", idempotency_key="k")
    record = await get(client, "k")
    assert (record.type, record.phone_number, record.amount) == ("disbursement", PHONE_NUMBER, Decimal(1000))
    assert (record.transaction_id, record.reference) == (answer.transaction_id, answer.reference)
    assert (record.status, record.transaction, record.attempt) == ("PROCESSING", None, 1)
    assert record.sent_at is not None
    assert record.ended_at is not None
    assert record.created_at == record.sent_at <= record.ended_at == record.changed_at
    assert [(entry.what, entry.source) for entry in record.history] == [("sent", "answer"), ("acknowledged", "answer")]
    assert record.history[-1].detail == answer.transaction_id


@on_sqlite
async def test_without_a_key_one_is_made(world: World, client: AsyncClient) -> None:
    """A create without a key is recorded too, under a key that is on the answer and on every error."""
    answer = await create(client, None)
    assert answer.idempotency_key is not None
    await get(client, answer.idempotency_key)
    world.sandbox.script(faults.lost(processed=True), on="c2b")
    with pytest.raises(OutcomeUnknown) as caught:
        await create(client, None)
    assert await client.payments.get(caught.value.idempotency_key) is not None


async def test_the_same_key_gives_the_same_acknowledgement(world: World) -> None:
    """A key gives its acknowledgement again without a request: later, after a restart, and when it is final."""
    async with world.client() as client:
        first = await create(client)
        assert await create(client) == first
    async with world.client() as client:
        assert await create(client) == first
        world.sandbox.approve(first.transaction_id)
        async with client.poller(resume=True) as poller:
            assert (await poller.wait(first.transaction_id)).succeeded
        assert world.states() == ["FINAL"]
        asked = len(world.line.paths)
        assert await create(client) == first
    assert (world.sent, len(world.line.paths)) == (1, asked)


async def test_many_callers_of_one_key(store_url: str) -> None:
    """Thirty callers in two processes that ask for one key at once send one request, and all get its answer."""
    world = make_world(store_url, latency=0.3)
    answers: list[Acknowledgement] = []
    async with world.client() as one, world.client() as other, anyio.create_task_group() as group:

        async def ask(client: AsyncClient) -> None:
            answers.append(await create(client))

        for number in range(30):
            group.start_soon(ask, other if number % 2 else one)
    assert world.sent == len(world.made) == 1
    assert len(answers) == 30
    assert {answer.transaction_id for answer in answers} == {*world.made}


@pytest.mark.slow
@pytest.mark.pairs
async def test_many_callers_of_a_key_that_fails(world: World) -> None:
    """Where the one request of many callers has no answer, all of them learn so, and none sends again."""
    world.sandbox.script(faults.lost(processed=False), on="c2b")
    errors: list[OutcomeUnknown] = []
    async with world.client() as one, world.client() as other, anyio.create_task_group() as group:

        async def ask(client: AsyncClient) -> None:
            with pytest.raises(OutcomeUnknown) as caught:
                await create(client)
            errors.append(caught.value)

        for number in range(6):
            group.start_soon(ask, other if number % 2 else one)
    assert world.sent == 1
    assert {error.idempotency_key for error in errors} == {"order-1"}
    assert len(errors) == 6


OTHER: list[dict[str, Any]] = [
    {"amount": 1001},
    {"phone_number": "+255681234502"},
    {"extra": {"external_id": "x"}},
]


@pytest.mark.parametrize("other", OTHER, ids=str)
@pytest.mark.parametrize("state", ["ACKNOWLEDGED", "UNKNOWN", "NOT_SENT"])
@on_one
async def test_a_key_is_for_one_payment(world: World, other: dict[str, Any], state: str) -> None:
    """A key with another amount, phone number or extra field is a conflict that names it, in any state of the first."""
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        if state == "UNKNOWN":
            world.sandbox.script(faults.lost(processed=True), on="c2b")
        world.line.refuse = state == "NOT_SENT"
        try:
            await create(client)
        except MobileMoneyError as exc:
            assert state != "ACKNOWLEDGED", exc  # noqa: PT017
        assert world.states() == [state]
        sent = world.sent
        with pytest.raises(IdempotencyConflict) as caught:
            await create(client, **other)
        assert (caught.value.outcome, caught.value.idempotency_key) == ("not_sent", "order-1")
        assert str(caught.value).endswith(f"that one has another {next(iter(other)).replace('_', ' ')}")
        with pytest.raises(IdempotencyConflict, match=r"another type$"):
            await client.disbursements.create(**ORDER, idempotency_key="order-1")
    assert world.sent == sent
    assert PHONE_NUMBER not in str(caught.value)


async def test_a_conflict_while_the_first_is_on_its_way(sqlite_file_url: str) -> None:
    """A conflict is raised in another process at once, while the first request is still on its way."""
    world = make_world(sqlite_file_url)

    async def meanwhile(request: httpx.Request) -> None:
        async with world.client() as other:
            with pytest.raises(IdempotencyConflict):
                await create(other, amount=5)

    world.line.before = meanwhile
    async with world.client() as client:
        await create(client)
    assert world.sent == 1


@on_sqlite
async def test_the_same_payment_in_other_words(world: World, client: AsyncClient) -> None:
    """The format of a number and the order of extra fields make no other payment."""
    first = await create(client, extra={"a": 1, "b": {"c": [1, "2"], "d": None}})
    again = await create(
        client,
        phone_number="+255 681-234-501",
        amount=Decimal("1000.00"),
        extra={"b": {"d": None, "c": (1, "2")}, "a": 1},
    )
    assert again == first
    with pytest.raises(IdempotencyConflict):
        await create(client, extra={"a": 1, "b": {"c": ["2", 1], "d": None}})
    assert world.sent == 1


@on_asyncio
async def test_a_key_is_of_its_account(world: World) -> None:
    """Two accounts in one database share no keys, no duplicates and no transactions."""
    async with world.client(world.store(account="one")) as one, world.client(world.store(account="two")) as two:
        first, second = await create(one), await create(two)
        assert first.transaction_id != second.transaction_id
        world.sandbox.script(faults.lost(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await create(one, "order-2")
        await create(two, "order-2")
        assert [each.key for each in await one.payments.unresolved()] == ["order-2"]
        assert await two.payments.unresolved() == []
        assert len(await two.payments.list()) == 2


async def test_a_refused_key_may_be_used_again(world: World) -> None:
    """A refusal is recorded, and the same key is sent when it is asked for again."""
    async with world.client(auth=world.sandbox.issue_token(["read"])) as client:
        with pytest.raises(PermissionDenied):
            await create(client)
        record = await get(client)
        assert record.state == "REFUSED"
        assert record.error is not None
        assert "insufficient_permissions" in record.error
    async with world.client() as client:
        answer = await create(client)
        record = await get(client)
    assert (record.attempt, record.error, record.transaction_id) == (2, None, answer.transaction_id)
    # No look or listing of the first attempt says anything about the second.
    assert (record.walks, record.looked_at, record.next_look_at, record.reason) == (0, None, None, None)
    assert [entry.what for entry in record.history] == ["sent", "refused", "sent", "acknowledged"]


async def test_what_was_not_sent_may_be_sent(world: World) -> None:
    """Where provably nothing was sent, that is recorded, and the key goes when it is asked for again."""
    world.line.refuse = 2
    async with world.client(retry=RetryPolicy(max_attempts=2)) as client:
        with pytest.raises(ConnectionFailed) as caught:
            await create(client)
        assert caught.value.outcome == "not_sent"
        assert world.states() == ["NOT_SENT"]
        await create(client)
    assert world.happened() == ["sent", "not_sent", "sent", "not_sent", "sent", "acknowledged"]
    assert len(world.made) == 1


@pytest.mark.costly(
    "runs lines of payments/records/queries.py, payments/ownership/reconciler.py that no quick test runs"
)
async def test_the_error_of_an_unknown_payment_says_what_is_known_and_who_has_to_do_what(sqlite_file_url: str) -> None:
    """Of one that the list does not show, a confirmation lets it be sent again; of others, from a time on."""
    world, said = make_world(sqlite_file_url), list[str]()
    store = world.store(resend_absent_collections=False)
    async with world.client(store) as client:

        async def ask() -> None:
            with pytest.raises(OutcomeUnknown) as caught:
                await create(client)
            assert (caught.value.outcome, caught.value.idempotency_key) == ("unknown", "order-1")
            said.append(str(caught.value))

        async with between_others(client):
            world.sandbox.script(faults.lost(processed=False), on="c2b", times=1)
            await ask()
        await ask()
        with pytest.raises(StoreError) as early:
            await client.payments.confirm_absent("order-1", note="Asha: not on the dashboard")
        await world.advance(TWO_MINUTES)
        await miss(world, client)
        assert world.states()[1] == "ABSENT"
        await ask()
    assert "no answer within 5 s" in said[0]
    assert "may or may not exist; nothing was sent now. The list may show it until" in said[1]
    assert "Reconcile again at" in said[1] and "confirm it then" in str(early.value)
    assert "nothing was sent now. Two listings have not shown it" in said[2] and "confirm-absent order-1" in said[2]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (faults.rate_limited(1), "refused"),
        (faults.token_expired(), "refused"),
    ],
    ids=["rate", "token"],
)
@on_asyncio
async def test_each_attempt_is_recorded(sqlite_file_url: str, fault: Fault, said: str) -> None:
    """An attempt that the retry table repeats is recorded each time, before it is sent."""

    class Renewing:
        async def token(self, login: object) -> str:
            return world.sandbox.token if world.sent == 0 else world.sandbox.issue_token()

        def rejected(self, token: object, *, replacement: bool) -> None: ...

    world = make_world(sqlite_file_url)
    world.sandbox.script(fault, on="c2b")
    seen: list[list[str]] = []
    world.line.before = lambda request: seen.append(world.states())
    async with world.client(auth=Renewing()) as client:
        answer = await create(client)
        record = await get(client)
    assert seen == [["SENDING"], ["SENDING"]]
    assert world.happened() == ["sent", said, "sent", "acknowledged"]
    assert (record.attempt, record.transaction_id) == (2, answer.transaction_id)
    assert len(world.made) == 1


@pytest.mark.parametrize("fault", UNANSWERED.values(), ids=UNANSWERED)
@on_one
async def test_without_an_answer_nobody_knows(world: World, client: AsyncClient, fault: Fault) -> None:
    """A create without a usable answer raises `OutcomeUnknown` with its key and time, and says so in the database."""
    world.sandbox.script(fault, on="c2b")
    before = world.utcnow()
    with pytest.raises(OutcomeUnknown) as caught:
        await create(client)
    assert caught.value.idempotency_key == "order-1"
    assert before <= caught.value.sent_at <= world.utcnow()
    (record,) = await client.payments.unresolved()
    assert (record.state, record.key) == ("UNKNOWN", "order-1")
    assert record.error is not None
    assert world.happened() == ["sent", "unknown"]
    assert world.sent == 1


@on_one
async def test_each_error_of_an_unknown_payment_is_an_event(world: World) -> None:
    """An alarm rings as its deadline ends the request, and as its key is asked for again."""
    events: list[Event] = []
    world.sandbox.script(faults.lost(processed=False), on="c2b")
    async with world.client(on_event=events.append) as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await create(client.with_options(deadline=3.0))
        with pytest.raises(OutcomeUnknown):
            await create(client)
    sent_at = caught.value.sent_at
    assert [each for each in events if isinstance(each, PaymentUnknown)] == [
        PaymentUnknown(idempotency_key="order-1", sent_at=sent_at, error="RequestTimeout"),
        PaymentUnknown(idempotency_key="order-1", sent_at=sent_at, error="OutcomeUnknown"),
    ]


@on_one
async def test_the_same_key_finds_its_payment(world: World, client: AsyncClient) -> None:
    """A payment that exists, though its answer was lost, is found under its key, and the key gives it from then on."""
    world.sandbox.script(faults.lost(processed=True), on="c2b")
    with pytest.raises(OutcomeUnknown):
        await create(client)
    found = await create(client)
    assert world.made == [found.transaction_id]
    assert found.reference == world.sandbox.transactions[found.transaction_id].reference
    assert (found.amount, found.phone_number, found.status_code) == (Decimal(1000), PHONE_NUMBER, "PENDING")
    assert found.idempotency_key == "order-1"
    assert await create(client) == found
    record = await get(client)
    assert world.sent == 1
    assert record.is_adopted
    assert [(entry.what, entry.source) for entry in record.history] == [
        ("sent", "answer"),
        ("unknown", "answer"),
        ("adopted", "reconcile"),
    ]


@pytest.mark.slow
@on_one
async def test_the_same_key_is_never_sent_again_by_itself(world: World, client: AsyncClient) -> None:
    """A payment that is not found stays unknown however often its key is asked for, and is never sent again."""
    async with between_others(client):
        world.sandbox.script(faults.lost(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await create(client)
    for _ in range(5):
        with pytest.raises(OutcomeUnknown) as caught:
            await create(client)
        assert caught.value.idempotency_key == "order-1"
        await world.advance(600)
    record = await get(client)
    assert world.sent == 3
    assert len(world.made) == 2
    assert record.state == "ABSENT"


async def test_the_list_cannot_be_read(sqlite_file_url: str) -> None:
    """Where the list cannot be read either, the key stays unknown: that error is the cause."""
    world = make_world(sqlite_file_url)
    world.sandbox.script(faults.lost(processed=True), on="c2b")
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        with pytest.raises(OutcomeUnknown):
            await create(client)
        world.sandbox.script(faults.html_page(503), on="transactions")
        with pytest.raises(OutcomeUnknown) as caught:
            await create(client)
        assert caught.value.__cause__ is not None
        await create(client)
    assert world.sent == 1


# Duplicates


async def test_no_duplicate_of_an_unknown_payment(world: World) -> None:
    """While the result of a payment is unknown, no other one of its kind is sent: here, or elsewhere."""
    world.sandbox.script(faults.lost(processed=True), on="c2b")
    async with world.client() as client, world.client() as other:
        with pytest.raises(OutcomeUnknown):
            await create(client)
        for each in (client, other):
            with pytest.raises(DuplicateSuspected) as caught:
                await create(each, "order-2")
            assert (caught.value.other_key, caught.value.outcome) == ("order-1", "not_sent")
            assert "UNKNOWN under the key 'order-1': nothing was sent" in str(caught.value)
            assert caught.value.idempotency_key == "order-2"
            assert PHONE_NUMBER not in str(caught.value)
        assert world.sent == 1
        assert world.states() == ["UNKNOWN"]
        # Other kinds are not concerned.
        await create(client, "order-3", amount=1001)
        await create(client, "order-4", phone_number="+255681234502")
        await client.disbursements.create(**ORDER, idempotency_key="order-5")


async def test_no_duplicate_of_a_payment_on_its_way_elsewhere(world: World) -> None:
    """While another process sends a payment, one of the same kind under another key is not sent; afterwards it is."""
    async with world.client() as client, world.client() as other:

        async def meanwhile() -> None:
            with pytest.raises(DuplicateSuspected, match="on its way under the key 'order-1'") as caught:
                await create(other, "order-2")
            assert caught.value.other_key == "order-1"

        world.line.meanwhile(meanwhile)
        await create(client)
        await create(other, "order-2")
    assert world.sent == len(world.made) == 2


async def test_duplicates_of_one_process_go_one_after_the_other(store_url: str) -> None:
    """Identical gifts are legitimate: in one process they wait for each other, and each is made."""
    world = make_world(store_url, latency=0.2)
    flying = 0
    most = 0

    async def begin(request: httpx.Request) -> None:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)

    async def end(request: httpx.Request) -> None:
        nonlocal flying
        flying -= 1

    world.line.before, world.line.after = begin, end
    store = world.store()
    async with world.client(store) as client, world.client(store) as same, anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(create, same if number % 2 else client, f"gift-{number}")
    assert world.sent == len(world.made) == 6
    assert most == 1
    assert sorted(str(each) for each in world.ids()) == sorted(world.made)


async def test_duplicates_of_two_processes_race(store_url: str) -> None:
    """Of duplicates in two processes the database lets one be sent at a time: the other is refused, or comes later."""
    world = make_world(store_url, latency=0.2)
    made: list[str] = []
    refused: list[str] = []
    async with world.client() as one, world.client() as other, anyio.create_task_group() as group:

        async def ask(client: AsyncClient, key: str) -> None:
            try:
                made.append((await create(client, key)).transaction_id)
            except DuplicateSuspected as exc:
                assert exc.other_key != key  # noqa: PT017
                refused.append(key)

        for number in range(6):
            group.start_soon(ask, other if number % 2 else one, f"gift-{number}")
    assert len(made) + len(refused) == 6
    assert sorted(made) == sorted(world.made)
    assert world.sent == len(made) >= 1
    assert {*rows(world.url, "SELECT state FROM mobilemoney_payment_records")} == {("ACKNOWLEDGED",)}


async def test_a_key_that_may_be_used_again_has_no_duplicate_either(sqlite_file_url: str) -> None:
    """A key that was not sent is refused too while a payment of its kind is unknown."""
    world = make_world(sqlite_file_url)
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        world.line.refuse = 1
        with pytest.raises(ConnectionFailed):
            await create(client)
        world.sandbox.script(faults.lost(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await create(client, "order-2")
        with pytest.raises(DuplicateSuspected):
            await create(client)
        await create(client, "order-2")
        await create(client)
    assert world.sent == len(world.made) == 2


async def test_a_duplicate_that_comes_between_two_attempts(sqlite_file_url: str) -> None:
    """While an attempt waits for its retry a duplicate elsewhere may go; if its result is unknown, the first ends."""
    world = make_world(sqlite_file_url)
    world.line.refuse = 1
    patient = RetryPolicy(first_delay=10.0, max_delay=10.0)
    async with world.client(retry=patient) as client, world.client() as other, anyio.create_task_group() as group:

        async def first() -> None:
            with pytest.raises(DuplicateSuspected) as caught:
                await create(client)
            assert caught.value.other_key == "order-2"

        group.start_soon(first)
        await anyio.sleep(1)
        assert world.states() == ["NOT_SENT"]
        world.sandbox.script(faults.drop(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await create(other, "order-2")
    assert len(world.made) == 1


@pytest.mark.slow
@pytest.mark.pairs
async def test_a_record_of_a_process_that_died_blocks_until_it_is_found_out(world: World, client: AsyncClient) -> None:
    """A payment that a dead process left on its way counts as unknown once no request can live: then it is found."""
    await leave(world)
    with anyio.move_on_after(3) as scope:
        await create(client)
    assert scope.cancelled_caught  # it waits for the process that may be alive
    with pytest.raises(DuplicateSuspected):
        await create(client, "order-2")
    await world.advance(10)
    assert (await create(client)).transaction_id == world.made[0]
    assert world.sent == 1


# Arguments


@pytest.mark.parametrize("key", ["", " ", "x" * 201, 7, "\ud800", "a\0b"], ids=ascii)
@on_asyncio
async def test_a_key_that_no_database_can_hold(world: World, client: AsyncClient, key: Any) -> None:
    """A key that cannot be kept is refused before anything is recorded or sent."""
    with pytest.raises(InvalidRequest, match="idempotency_key"):
        await create(client, key)
    assert world.sent == 0


@pytest.mark.parametrize("key", ["x" * 200, "Auftrag Nr. 7/ä - '; DROP TABLE", "😀", "a b", "a%s:b"], ids=ascii)
@on_asyncio
async def test_any_other_key_is_a_key(world: World, client: AsyncClient, key: str) -> None:
    """Keys are compared exactly, whatever is in them."""
    first = await create(client, key)
    assert await create(client, key) == first
    assert (await get(client, key)).key == key
    assert world.sent == 1


@on_asyncio
async def test_keys_differ_by_case_and_by_blanks(world: World, client: AsyncClient) -> None:
    for key in ("Order", "order", "or der"):
        await create(client, key)
    assert world.sent == 3


@pytest.mark.parametrize("account", ["", "x" * 201, "a\0b", "\ud800", 7], ids=ascii)
def test_an_account_that_no_database_can_hold(sqlite_file_url: str, account: Any) -> None:
    with pytest.raises(InvalidRequest, match="account"):
        make_world(sqlite_file_url).store(account=account)


EMPTY_PAGE = httpx.Response(
    200,
    json={
        "status": "success",
        "transactions": [],
        "pagination": {"current_page": 1, "total_pages": 1, "total_count": 0, "per_page": 100},
    },
)
HOSTILE = ["tx\x00", "a" * 5000, "😀\u202e", "'; --", " ", " tx "]


@pytest.mark.parametrize("text", HOSTILE, ids=["nul", "long", "beyond", "quoted", "blank", "padded"])
@on_asyncio
async def test_whatever_the_service_says_is_recorded(world: World, text: str) -> None:
    """No text of the service's, in an answer or a refusal, keeps the store from recording the result of a payment."""
    answers = [
        httpx.Response(400, json={"status": "error", "error_code": "X", "message": f"no{text}"}),
        httpx.Response(503, content=f"<h1>{text}".encode()),
    ]
    service = FakeTransport(lambda sent: answers.pop(0) if sent.method == "POST" else EMPTY_PAGE)
    async with world.client(transport=service) as client:
        with pytest.raises(MobileMoneyError):
            await create(client)
        assert world.states() == ["REFUSED"]
        record = await client.payments.get("order-1")
        assert record is not None and record.ended_at is not None
        await world.advance(TWO_MINUTES)
        with pytest.raises(OutcomeUnknown):
            await create(client)
        assert world.states() == ["UNKNOWN"]


@pytest.mark.parametrize("text", HOSTILE, ids=["nul", "long", "beyond", "quoted", "blank", "padded"])
@pytest.mark.parametrize("field", ["transaction_id", "status_code"])
@on_asyncio
async def test_an_id_that_no_database_can_hold_is_no_usable_answer(world: World, text: str, field: str) -> None:
    """An acknowledgement is recorded whatever its texts, or the payment is unknown; the store goes on either way."""
    body = {
        "status": "success",
        "transaction_id": "t-1" if field == "status_code" else text,
        "reference": "r-1" if field == "status_code" else text,
        "amount": "1000",
        "currency": "TZS",
        "phone_number": PHONE_NUMBER,
        "status_code": f"PENDING{text}" if field == "status_code" else "PENDING",
        "message": text,
    }
    async with world.client(transport=FakeTransport(lambda sent: httpx.Response(200, json=body))) as client:
        try:
            answer = await create(client)
        except OutcomeUnknown:
            assert world.states() == ["UNKNOWN"]
        else:
            assert world.ids() == [answer.transaction_id] == ["t-1" if field == "status_code" else text.strip()]


@pytest.mark.new_database
async def test_a_result_that_the_database_does_not_take_holds_up_its_own_payment_only(sqlite_file_url: str) -> None:
    """It is kept until it can be written; creates under other keys go on meanwhile."""
    world = make_world(sqlite_file_url)
    async with world.client() as client:
        await create(client, "order-1", amount=1)
        execute(
            sqlite_file_url,
            "CREATE TRIGGER refuse BEFORE UPDATE ON mobilemoney_payment_records "
            "WHEN NEW.key = 'order-2' AND NEW.state <> 'SENDING' BEGIN SELECT RAISE(ABORT, 'refused'); END",
        )
        with pytest.raises(OutcomeUnknown, match="the store failed"):
            await create(client, "order-2", amount=2)
        await create(client, "order-3", amount=3)
        with pytest.raises(StoreError, match="the store failed"):
            await create(client, "order-2", amount=2)
        execute(sqlite_file_url, "DROP TRIGGER refuse")
        await create(client, "order-4", amount=4)
    assert world.states() == ["ACKNOWLEDGED"] * 4


async def test_a_create_that_waits_for_another_process_returns_within_a_second_of_its_end(sqlite_file_url: str) -> None:
    """However long that one takes: looks do not become rarer than one a second."""
    world = make_world(sqlite_file_url)
    world.line.answer_after = 22.0
    async with world.client(timeout=60.0) as one, world.client(timeout=60.0) as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(one.collections.create, **ORDER, idempotency_key="a"))
            await anyio.sleep(0.1)
            began = anyio.current_time()
            await other.collections.create(**ORDER, idempotency_key="a")
            assert anyio.current_time() - began < 23
    assert world.sent == 1


async def test_a_create_that_had_to_wait_for_a_busy_store_is_sent(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times are those of its transaction: a process that is behind does not undo what it has recorded."""
    store, clock, now = account_store(SQLStore(store_url)), [100.0], datetime.now(UTC)
    monkeypatch.setattr(attempts, "monotonic", lambda: clock[0])
    monkeypatch.setattr(attempts, "clock_stands_still", lambda: False)
    write = AccountStore.write

    async def wait_and_write(*arguments: Any, **options: Any) -> Any:
        clock[0] += 8
        return await write(*arguments, **options)

    monkeypatch.setattr(AccountStore, "write", wait_and_write)
    request, binding = payment_request(TransactionType.COLLECTION, ORDER, "order-1"), cast("Any", None)  # not used here
    attempt = attempts.RecordedAttempts(store, binding, DuplicateGuard(), request, None, lambda: now)
    assert await attempt.sending(30.0) == 8 + 5
    record = await store.read(lambda journal: journal.find("order-1"))
    assert record is not None
    assert record.state is PaymentState.SENDING
    assert record.sent_at == now + timedelta(seconds=8)
    assert record.stale_at == now + timedelta(seconds=8 + 30 + 5)
