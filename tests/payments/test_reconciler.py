"""Reconciliation of unknown payments: nothing wrong is adopted, and nothing that exists is called absent."""

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from datetime import timedelta
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    Acknowledgement,
    APIError,
    AsyncClient,
    DuplicateSuspected,
    InvalidRequest,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentCause,
    RequestTimeout,
    RetryPolicy,
    SQLStore,
    StoreError,
)
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.magic import PREFIX
from tests.payments.second_world import BOTH
from tests.payments.service import (
    ORDER,
    PHONE_NUMBER,
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

MADE = faults.lost(processed=True)
NOT_MADE = faults.lost(processed=False)
REFUSED_SOFTLY = faults.server_error(422, processed=False)
HOUR = 3600.0
# Its payments are missing from the list at first.
HIDDEN = f"{PREFIX}304"


async def create(
    client: AsyncClient, key: str = "order-1", direction: str = "collections", **changes: Any
) -> Acknowledgement:
    """Create a payment, by default a collection."""
    creates = client.collections if direction == "collections" else client.disbursements
    return await creates.create(**{**ORDER, "idempotency_key": key, **changes})


async def lose(world: World, client: AsyncClient, key: str = "order-1", *, made: bool, **changes: Any) -> None:
    """Create a payment without an answer."""
    on = "b2c" if changes.get("direction") == "disbursements" else "c2b"
    rule = world.sandbox.script(MADE if made else NOT_MADE, on=on)
    with pytest.raises(OutcomeUnknown):
        await create(client, key, **changes)
    assert rule.fired == 1


async def lose_for_good(world: World, client: AsyncClient) -> None:
    """Create a payment that is not made, and let it be found absent."""
    async with between_others(client):
        await lose(world, client, made=False)
    await world.advance(200)
    await miss(world, client)
    assert (await get(client)).state == "ABSENT"


def stranger(world: World, *, phone_number: str = PHONE_NUMBER, amount: str = "1000") -> str:
    """Let another system of the merchant's create a collection now, and return its id."""
    answer = world.sandbox.ask(phone_number, amount)
    return str(json.loads(answer.body)["transaction_id"])


# Matches


async def test_one_match_is_adopted(world: World, client: AsyncClient) -> None:
    """A payment that the list shows is found, with its state, and the next call under its key gets it."""
    await lose(world, client, made=True)
    await world.advance(200)
    (found,) = await client.payments.reconcile()
    assert (found.state, found.transaction_id, found.is_adopted) == ("FINAL", world.made[0], True)
    assert found.status == "SUCCESS"
    assert found.transaction is not None
    assert found.transaction.id == world.made[0]
    assert await client.payments.reconcile() == []
    assert (await create(client)).transaction_id == world.made[0]
    record = await get(client)
    assert world.sent == 1
    assert [(entry.what, entry.source, entry.detail) for entry in record.history][2:] == [
        ("adopted", "reconcile", world.made[0]),
        ("final", "reconcile", "SUCCESS"),
    ]


async def test_a_payment_that_is_still_pending_is_adopted_as_such(sqlite_file_url: str) -> None:
    world = make_world(sqlite_file_url, median_delay=1000)
    async with world.client() as client:
        await lose(world, client, made=True)
        (found,) = await client.payments.reconcile()
    assert (found.state, found.status, found.transaction) == ("ACKNOWLEDGED", "PENDING", None)


@pytest.mark.slow
@on_asyncio
async def test_many_unknown_payments_are_found_in_one_listing(world: World) -> None:
    """One listing serves any number of unknown payments; each gets its own transaction, or none."""
    async with world.client() as client:
        for number in range(12):
            await lose(world, client, f"order-{number}", made=number % 3 != 0, amount=100 + number)
        listings = world.sandbox.requests.count("transactions")
        found = await client.payments.reconcile()
        # The page with the rows, and the empty one that proves its end.
        assert world.sandbox.requests.count("transactions") == listings + 2
    assert len(found) == 12
    for record in found:
        number = int(record.key.removeprefix("order-"))
        if number % 3:
            assert record.transaction_id is not None
            assert world.sandbox.transactions[record.transaction_id].amount == str(100 + number)
        else:
            assert record.state == "UNKNOWN"


@pytest.mark.slow
@BOTH
async def test_a_cancelled_reconciliation_leaves_nothing_half_done(store_url: str) -> None:
    """Cancelled at any request, it has recorded a listing for all its payments or for none, and holds up nobody."""
    world, lost = make_world(store_url), {f"order-{number}": number % 2 == 0 for number in range(4)}
    made = {key for key, is_made in lost.items() if is_made}
    async with world.client() as client, world.client() as other:
        async with between_others(client):
            for number, (key, is_made) in enumerate(lost.items()):
                await lose(world, client, key, made=is_made, amount=100 + number)
        await world.advance(300)
        for last in range(1, 20):
            requests = 0
            with anyio.CancelScope() as scope:

                def cancel(request: httpx.Request, last: int = last, scope: anyio.CancelScope = scope) -> None:
                    nonlocal requests
                    requests += 1
                    if requests == last:
                        scope.cancel()

                world.line.before = cancel
                await client.payments.reconcile()
            world.line.before = None
            assert rows(store_url, "SELECT holder FROM mobilemoney_leases WHERE name = 'reconcile'") in ([], [(None,)])
            found = {key for key in lost if (await get(other, key)).transaction_id is not None}
            assert found in (set(), made)
            assert len({(await get(other, key)).walks for key in lost.keys() - found}) == 1
            if not scope.cancelled_caught:
                break
        assert last > 2
        began_at = anyio.current_time()
        await other.payments.reconcile()
        assert anyio.current_time() == began_at
        assert {key for key in lost if (await get(other, key)).transaction_id is not None} == made


@pytest.mark.slow
@on_asyncio
async def test_several_matches_are_for_someone_to_decide(world: World, client: AsyncClient) -> None:
    """If two transactions may be the payment it stays unknown, and names them; duplicates stay blocked."""
    await lose(world, client, made=True)
    other = stranger(world)
    record = await get(client)
    for _ in range(4):
        (record,) = await client.payments.reconcile()
        await world.advance(200)
    assert record.state == "UNKNOWN"
    assert record.is_ambiguous
    assert record.candidates == tuple(sorted([world.made[0], other]))
    with pytest.raises(OutcomeUnknown, match="identify the right one") as caught:
        await create(client)
    assert " or ".join(record.candidates) in str(caught.value)
    with pytest.raises(DuplicateSuspected):
        await create(client, "order-2")
    record = await get(client)
    assert [entry.what for entry in record.history] == ["sent", "unknown", "ambiguous"]
    assert world.sent == 1


# Absence


@on_one
async def test_an_unreadable_row_that_was_explained_keeps_no_payment_open(world: World, client: AsyncClient) -> None:
    """It may be the payment, until an operator has said what it is."""

    def add(page: dict[str, Any]) -> None:
        page["transactions"] += [{**row, "id": "t-odd", "amount": "many"} for row in page["transactions"][:1]]

    async with between_others(client):
        await lose(world, client, made=False)
    world.line.change_page = add
    await world.advance(200)
    await miss(world, client)
    record = await get(client)
    assert (record.state, record.cause) == ("UNKNOWN", PaymentCause.UNREADABLE)
    await client.payments.explain("t-odd", note="Asha: sold at the till")
    await world.advance(HOUR)
    await miss(world, client)
    assert (await get(client)).state == "ABSENT"


@pytest.mark.slow
@on_asyncio
async def test_absence_takes_two_listings_after_the_grace_period(world: World) -> None:
    """A payment is absent after two listings after its grace period, half of that apart: not earlier, not after one."""
    async with world.client(world.store(grace=100.0)) as client:
        async with between_others(client):
            await lose(world, client, made=False)
        for _ in range(5):
            assert [each.state for each in await client.payments.reconcile()] == ["UNKNOWN"]
            await world.advance(19)
        (record,) = await client.payments.reconcile()
        assert (record.state, record.walks) == ("UNKNOWN", 0)
        await world.advance(6)
        (record,) = await client.payments.reconcile()
        assert (record.state, record.walks) == ("UNKNOWN", 1)
        await world.advance(45)
        (record,) = await client.payments.reconcile()
        assert (record.state, record.walks) == ("UNKNOWN", 1)
        await world.advance(6)
        (record,) = await client.payments.reconcile()
        assert (record.state, record.walks) == ("ABSENT", 2)
        with pytest.raises(OutcomeUnknown, match="confirm-absent"):
            await create(client)
    assert world.sent == 3


@pytest.mark.slow
@pytest.mark.parametrize("has_later", [True, False])
@pytest.mark.parametrize("direction", ["collections", "disbursements"])
@on_one
async def test_a_lost_collection_stops_its_kind_until_a_list_has_not_shown_it(
    world: World, client: AsyncClient, direction: str, has_later: bool
) -> None:
    """Its customer approves each prompt, so an abandoned cart stops nothing; a disbursement waits for an operator."""
    await create(client, "order-0", direction=direction, amount=7)
    await lose(world, client, made=False, direction=direction)
    with pytest.raises(DuplicateSuspected):
        await create(client, "order-2", direction=direction)
    await world.advance(130)
    await client.payments.reconcile()
    if has_later:
        await create(client, "order-1b", direction=direction, amount=7)
        await world.advance(130)
    await world.advance(100)
    await client.payments.reconcile()
    assert (await get(client)).state == ("ABSENT" if has_later else "UNKNOWN")
    if direction == "disbursements":
        with pytest.raises(DuplicateSuspected):
            await create(client, "order-2", direction=direction)
    else:
        answer = await create(client, "order-2", direction=direction)
        assert (await get(client, "order-2")).transaction_id == answer.transaction_id
    await client.payments.reconcile()
    assert (await get(client)).state == ("ABSENT" if has_later else "UNKNOWN")


@pytest.mark.slow
@on_asyncio
async def test_nothing_is_absent_without_an_earlier_payment_to_compare_with(world: World, client: AsyncClient) -> None:
    """It stays unknown, and says why; without a later one, see the next test."""
    stranger(world, amount="5")
    await world.advance(HOUR)
    await lose(world, client, made=False)
    await create(client, "after", amount=7)
    await world.advance(300)
    await miss(world, client)
    record = await get(client)
    assert (record.state, record.walks) == ("UNKNOWN", 2)
    assert record.reason == "no earlier payment to compare with"
    with pytest.raises(OutcomeUnknown, match="No earlier payment"):
        await create(client)


@pytest.mark.slow
@on_sqlite
async def test_a_later_payment_is_what_an_absence_waits_for(world: World, client: AsyncClient) -> None:
    """A quiet merchant's payment is looked for again once there is a later one to compare with, and not before."""
    await create(client, "before", amount=7)
    await lose(world, client, made=False)
    await world.advance(10 * HOUR)
    await miss(world, client)
    assert (await get(client)).reason == "no later payment to compare with"
    with pytest.raises(OutcomeUnknown, match="No later payment to compare with"):
        await create(client)
    asked = listings(world)
    await client.payments.reconcile()
    assert listings(world) == asked
    await create(client, "after", amount=7)
    asked = listings(world)
    await client.payments.reconcile()
    assert listings(world) == asked
    await world.advance(121)
    (record,) = await client.payments.reconcile()
    assert record.state == "ABSENT"


@pytest.mark.slow
@on_one
async def test_payments_that_stay_unknown_are_looked_for_ever_more_rarely(world: World) -> None:
    """Of a payment that nothing shows, the time to the next look grows with its age."""
    async with world.client() as client:
        await lose(world, client, made=False)
        at: list[float] = []
        while anyio.current_time() < 24 * HOUR:
            asked = world.sandbox.requests.count("transactions")
            await client.payments.reconcile()
            if world.sandbox.requests.count("transactions") > asked:
                at.append(anyio.current_time())
            await world.advance(max(60, anyio.current_time() / 15))
    late = [each for each in at if each > 200]
    assert len(at) - len(late) == 4  # within the grace period at each call, a minute apart
    assert 4 <= len(late) <= 6
    assert all(2.9 * first <= second <= 3.3 * first for first, second in pairwise(late))


@pytest.mark.slow
@on_one
async def test_a_look_before_its_time_costs_no_whole_listing(world: World) -> None:
    """Nor does one for an absent payment that nobody asks for, even where it may be sent again."""

    async def asked(work: Callable[[], Awaitable[object]]) -> int:
        before = world.sandbox.requests.count("transactions")
        await work()
        return world.sandbox.requests.count("transactions") - before

    async def ask_by_create() -> None:
        with pytest.raises(OutcomeUnknown):
            await create(client)

    async with world.client(world.store(resend_absent_collections=True)) as client:
        for _ in range(250):
            stranger(world, amount="500")
        await world.advance(HOUR)
        async with between_others(client):
            await lose(world, client, made=False)
        assert await asked(client.payments.reconcile) == 1
        assert (await get(client)).cause is PaymentCause.IN_GRACE
        await world.advance(130)
        assert await asked(client.payments.reconcile) == 1
        assert await asked(ask_by_create) == 1
        await world.advance(61)
        assert await asked(client.payments.reconcile) == 1 + 4  # near its send, then three pages and an empty one
        assert (await get(client)).state == "ABSENT"
        await world.advance(600)
        assert await asked(client.payments.reconcile) <= 3


async def test_listings_that_fail_do_not_count(sqlite_file_url: str) -> None:
    """A list that cannot be read to its end says nothing of absence, and nothing is recorded."""
    world = make_world(sqlite_file_url)
    async with world.client(retry=RetryPolicy(max_attempts=1)) as client:
        await lose(world, client, made=False)
        await world.advance(300)
        for fault in (faults.html_page(502), faults.truncated(), faults.empty_body(), faults.lost(processed=True)):
            world.sandbox.script(fault, on="transactions")
            with pytest.raises(MobileMoneyError):
                await client.payments.reconcile()
        record = await get(client)
    assert (record.state, record.walks) == ("UNKNOWN", 0)


@pytest.mark.slow
@on_asyncio
async def test_a_payment_that_shows_up_late_is_found_though_it_was_called_absent(store_url: str) -> None:
    """The list may leave out one payment longer than the grace period: called absent, it is adopted all the same."""
    world = make_world(store_url, hidden_for=300)
    async with world.client(world.store(grace=10.0)) as client:
        async with between_others(client):
            await lose(world, client, made=True, phone_number=HIDDEN)
        await world.advance(20)
        await miss(world, client)
        assert (await get(client)).state == "ABSENT"
        for _ in range(8):
            await world.advance(120)
            await client.payments.reconcile()
        record = await get(client)
        assert record.transaction_id == world.made[1]
        assert (await create(client, phone_number=HIDDEN)).transaction_id == world.made[1]
    assert world.sent == 3


# Confirmations


@pytest.mark.slow
@on_asyncio
async def test_someone_may_release_a_key(world: World, client: AsyncClient) -> None:
    """Only after a confirmation the key sends again; the confirmation is kept with its note."""
    await lose_for_good(world, client)
    released = await client.payments.confirm_absent("order-1", note="asked the customer, Asha")
    assert released.state == "RELEASED"
    assert await client.payments.unresolved() == []
    answer = await create(client)
    assert world.made[2:] == [answer.transaction_id]
    record = await get(client)
    assert record.attempt == 2
    (word,) = [entry for entry in record.history if entry.what == "confirmed"]
    assert (word.source, word.detail) == ("person", "asked the customer, Asha")


@pytest.mark.costly("runs lines of payments/ownership/reconciliation.py that no quick test runs")
async def test_an_absence_is_confirmed_after_the_grace_period(world: World, client: AsyncClient) -> None:
    """Until then a payment may exist without being in any list, which the error says with the time."""
    await lose(world, client, made=False)
    await world.advance(114)
    with pytest.raises(StoreError, match=r"until 2026-01-02 12:02:05 UTC: confirm it then"):
        await client.payments.confirm_absent("order-1", note="not on the dashboard")
    assert (await get(client)).state == "UNKNOWN"
    await world.advance(6)
    assert (await client.payments.confirm_absent("order-1", note="not on the dashboard")).state == "RELEASED"


@pytest.mark.slow
@pytest.mark.parametrize("has_dates", [True, False])
async def test_a_lagging_list_does_not_mislead_a_duplicate(sqlite_file_url: str, has_dates: bool) -> None:
    """If a late transaction is listed late, it is not given to the duplicate of its order."""
    world = make_world(sqlite_file_url, list_lag=60)
    world.line.has_dates = has_dates
    async with world.client() as client:
        await lose(world, client, made=False)
        await world.advance(100)
        late = stranger(world)  # of the first order, which the service has only now worked off
        await world.advance(22)
        await client.payments.reconcile()
        assert (await get(client)).candidates == ()
        await client.payments.confirm_absent("order-1", note="not on the dashboard")
        await lose(world, client, "order-2", made=False)
        await world.advance(45)
        await client.payments.reconcile()
        second = await get(client, "order-2")
    assert (second.state, second.candidates) == ("UNKNOWN", (late,))


@pytest.mark.slow
@pytest.mark.parametrize("is_erased", [False, True])
async def test_a_late_transaction_of_a_payment_that_was_sent_again_is_no_others(
    sqlite_file_url: str, is_erased: bool
) -> None:
    """Whether the number of that payment has been erased since or not."""
    world = make_world(sqlite_file_url, median_delay=5.0, longest_delay=10.0)
    async with world.client(world.store(grace=30)) as client:
        await lose(world, client, made=False)
        await world.advance(32)
        await client.payments.confirm_absent("order-1", note="not on the dashboard")
        await create(client)
        async with client.poller(resume=True) as poller:
            _ = [outcome async for outcome in poller.outcomes()]
        assert (await get(client)).is_final
        if is_erased:
            await world.store().erase(phone_number=PHONE_NUMBER)
        late = stranger(world)  # of the first request, which the service has only now worked off
        await lose(world, client, "order-2", made=False)
        await world.advance(32)
        for _ in range(2):  # the suspicion is told once
            await client.payments.reconcile()
            second = await get(client, "order-2")
            assert (second.state, second.candidates, second.cause) == ("UNKNOWN", (late,), PaymentCause.RIVAL)
            assert "'order-1'" in str(second.reason)
            assert [each.what for each in (await get(client)).history].count("contradiction") == 1
            await world.advance(300)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["absent", "long ago", "refused", "not sent", "of another kind"])
@on_one
async def test_a_payment_that_was_sent_again_rightly_does_not_matter(world: World, first: str) -> None:
    """Earlier attempts that cannot be the transaction leave a lost duplicate to be found as usual."""
    async with world.client(world.store(grace=0), retry=RetryPolicy(max_attempts=1)) as client:
        if first in {"refused", "not sent"}:
            if first == "not sent":
                world.line.refuse = 1
            else:
                world.sandbox.script(faults.rate_limited(), on="c2b")
            with pytest.raises(MobileMoneyError):
                await create(client)
        else:
            async with between_others(client):
                await lose(world, client, made=False, amount=7 if first == "of another kind" else 1000)
            if first == "absent":
                await world.advance(5)
                await miss(world, client)
                assert (await get(client)).state == "ABSENT"
            await world.advance(125)
            await client.payments.confirm_absent("order-1", note="not on the dashboard")
        await create(client, amount=7 if first == "of another kind" else 1000)
        await world.advance(300 if first == "long ago" else 0)
        await lose(world, client, "order-2", made=True)
        await client.payments.reconcile()
        assert (await get(client, "order-2")).is_adopted
        assert all(entry.what != "contradiction" for entry in (await get(client)).history)


async def test_payments_that_cannot_be_confirmed_absent(sqlite_file_url: str) -> None:
    """A payment that is known, on its way or was never made cannot be confirmed absent."""
    world = make_world(sqlite_file_url)
    async with world.client() as client, world.client() as other:

        async def meanwhile() -> None:
            with pytest.raises(StoreError, match="on its way"):
                await other.payments.confirm_absent("order-1", note="no")

        world.line.meanwhile(meanwhile)
        await create(client)
        for key in ("order-1", "order-2"):
            with pytest.raises(StoreError):
                await client.payments.confirm_absent(key, note="no")
        for key, note in (("", "no"), ("order-1", ""), ("order-1", " ")):
            with pytest.raises(InvalidRequest):
                await client.payments.confirm_absent(key, note=note)
        assert (await get(client)).state == "ACKNOWLEDGED"


@on_sqlite
async def test_a_payment_of_a_dead_process_may_be_confirmed_absent(world: World, client: AsyncClient) -> None:
    """A payment that was on its way in a process that has died can be called absent once it is stale."""
    await leave(world)
    with pytest.raises(StoreError, match="on its way"):
        await client.payments.confirm_absent("order-1", note="n")
    await world.advance(131)
    assert (await client.payments.confirm_absent("order-1", note="n")).state == "RELEASED"


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", ["incomplete", "hidden", "away"])
async def test_an_absence_of_an_hour_ago_is_not_enough_to_send_again(sqlite_file_url: str, obstacle: str) -> None:
    """An absent collection is not sent on the evidence of a look that is too old, if a look now shows nothing."""
    world = make_world(sqlite_file_url)
    async with world.client(world.store(resend_absent_collections=True)) as client:
        await lose_for_good(world, client)
        await world.advance(HOUR)
        if obstacle == "hidden":
            world.sandbox.script(faults.list_lag(10 * HOUR), on="transactions", times=9)
        elif obstacle == "away":
            world.sandbox.script(faults.html_page(503), on="transactions", times=99)
        else:
            world.line.change_page = count(50)
        with pytest.raises((OutcomeUnknown, StoreError)):
            await create(client)
        assert (world.sent, (await get(client)).state) == (3, "ABSENT")
        world.sandbox.clear_script()
        world.line.change_page = None
        await world.advance(60)
        assert (await create(client)).transaction_id == world.made[-1]
    assert world.sent == 4


@pytest.mark.slow
async def test_an_absent_collection_that_was_seen_after_all_is_not_sent_again(sqlite_file_url: str) -> None:
    """If a list shows a candidate, and then hides it again, two more listings are needed to send again."""
    world = make_world(sqlite_file_url)
    async with world.client(world.store(resend_absent_collections=True)) as client:
        await lose_for_good(world, client)
        stranger(world), stranger(world)
        await world.advance(200)
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await create(client)
            record = await get(client)
            assert (record.state, record.is_ambiguous) == ("ABSENT", True)
            world.sandbox.script(faults.list_lag(1000), on="transactions")
    assert world.sent == 3


# Looks that a create waits for


def listings(world: World) -> int:
    """Return the number of list requests so far."""
    return world.sandbox.requests.count("transactions")


def slow_list(world: World, seconds: float) -> None:
    """Let each page take a time."""

    async def wait(request: httpx.Request) -> None:
        if request.url.path.endswith("/transactions"):
            await anyio.sleep(seconds)

    world.line.before = wait


@pytest.mark.slow
@on_asyncio
async def test_processes_believe_the_look_of_another(world: World) -> None:
    """Of four processes that ask for a lost payment at once, one reads the list, and the others believe its result."""
    slow_list(world, 2)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(world.client()) for _ in range(4)]
        await lose(world, clients[0], made=False)

        async def ask(client: AsyncClient) -> None:
            with pytest.raises(OutcomeUnknown):
                await create(client)

        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(ask, client)
        assert listings(world) == 1
        await world.advance(121)
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(client.payments.reconcile)
        assert listings(world) == 2


async def test_a_deadline_ends_the_wait_for_another_process(sqlite_file_url: str) -> None:
    """A create that waits for another process to read the list ends at its deadline, and leaves that one alone."""
    world = make_world(sqlite_file_url)
    async with world.client() as client, world.client(deadline=2.0) as other:
        await lose(world, client, made=True)
        slow_list(world, 4)
        async with anyio.create_task_group() as group:
            group.start_soon(client.payments.reconcile)
            await anyio.sleep(0.5)
            began = anyio.current_time()
            with pytest.raises(OutcomeUnknown):
                await create(other)
            assert anyio.current_time() == pytest.approx(began + 2)
        assert (await get(client)).is_adopted


@on_asyncio
async def test_a_released_key_is_looked_for_once(world: World, client: AsyncClient) -> None:
    """`reconcile` makes the last look for a key that was confirmed absent: its next create needs no list request."""
    await lose(world, client, made=False)
    await world.advance(200)
    await client.payments.confirm_absent("order-1", note="not on the dashboard")
    (record,) = await client.payments.reconcile()
    assert record.looked_at is not None
    asked = listings(world)
    assert await client.payments.reconcile() == []
    await create(client)
    assert listings(world) == asked
    assert world.sent == 2
    await lose(world, client, "order-2", made=False, amount=2000)
    await world.advance(200)
    await client.payments.confirm_absent("order-2", note="not on the dashboard")
    assert len(await client.payments.reconcile()) == 1
    for _ in range(2):
        await world.advance(900)
        assert await client.payments.reconcile() == []


@pytest.mark.slow
async def test_a_list_that_is_too_long_for_a_create(sqlite_file_url: str) -> None:
    """Where the deadline of a create is too short for the look that it needs, `reconcile` makes it, also later."""
    world = make_world(sqlite_file_url)
    world.line.has_dates = True
    stranger(world, amount="5")
    async with world.client(deadline=2.0) as client:
        await lose(world, client, made=False)
        await world.advance(125)
        await client.payments.confirm_absent("order-1", note="not on the dashboard")
        await client.payments.reconcile()
        await world.advance(HOUR)
        slow_list(world, 1.5)
        with pytest.raises(RequestTimeout, match=r"payments\.reconcile") as caught:
            await create(client)
        assert caught.value.outcome == "not_sent"
        assert world.sent == 1
        await client.payments.reconcile()
        await create(client)
    assert world.sent == 2


@pytest.mark.slow
@pytest.mark.parametrize(("days", "direction"), [(0, "collections"), (0, "disbursements"), (3, "disbursements")])
@on_asyncio
async def test_one_listing_serves_all_refused_keys(
    world: World, client: AsyncClient, days: int, direction: str
) -> None:
    """Eight payments that were refused, without a code of the contract, are sent again after one listing."""
    async with between_others(client, direction):
        world.sandbox.script(REFUSED_SOFTLY, on="POST *", times=8)
        for number in range(8):
            with pytest.raises(APIError):
                await create(client, f"order-{number}", direction, amount=100 + number)
    await world.advance(200 + days * 24 * HOUR)
    for number in range(8):
        await create(client, f"order-{number}", direction, amount=100 + number)
    # After days of silence, the store is compared with its service, too.
    assert listings(world) == (4 if days else 2)
    assert len(world.made) == 10


@pytest.mark.slow
@on_sqlite
async def test_a_disbursement_that_was_just_refused_waits_for_the_list(world: World, client: AsyncClient) -> None:
    """Within the grace period a look proves little: the key is not sent yet, and needs no decision of an operator."""
    order = {**ORDER, "idempotency_key": "order-1"}
    async with between_others(client, "disbursements"):
        world.sandbox.script(REFUSED_SOFTLY, on="b2c")
        with pytest.raises(APIError):
            await client.disbursements.create(**order)
    with pytest.raises(StoreError, match="try again in a few minutes") as caught:
        await client.disbursements.create(**order)
    assert caught.value.outcome == "not_sent"
    record = await get(client)
    assert (record.state, record.cause) == ("REFUSED", PaymentCause.IN_GRACE)
    await world.advance(121)
    answer = await client.disbursements.create(**order)
    assert world.made[-1] == answer.transaction_id


@on_one
async def test_a_look_that_shows_nothing_of_a_refused_key_is_repeated_after_the_grace_period(
    world: World, client: AsyncClient
) -> None:
    """Not before: it is refused for all that is known, and an early look would prove as little again."""
    async with between_others(client):
        world.sandbox.script(REFUSED_SOFTLY, on="c2b")
        with pytest.raises(APIError):
            await create(client)
    world.line.change_page = lambda page: page["transactions"].append({"id": "t-odd"})
    with pytest.raises(StoreError):
        await create(client)
    for seconds, looks in ((60, 0), (70, 1)):
        await world.advance(seconds)
        assert len(await client.payments.reconcile()) == looks


async def test_a_payment_in_a_spelling_of_the_list_becomes_final(sqlite_file_url: str) -> None:
    """A list may have its own form of numbers: an adopted payment is final all the same, in any final state."""
    world = make_world(sqlite_file_url)

    def spell(body: dict[str, Any]) -> None:
        for row in body["transactions"]:
            row["phone_number"] = row["phone_number"].replace("+255", "0")

    world.line.change_page = spell
    expired = f"{PREFIX}408"
    async with world.client() as client:
        async with between_others(client):
            await lose(world, client, made=True, phone_number=expired)
        await world.advance(HOUR)
        await client.payments.reconcile()
        record = await get(client)
    assert (record.state, record.status) == ("FINAL", "TIMEOUT")
    assert record.transaction is not None
    assert record.transaction.is_final


# The list


def count(total: int) -> Callable[[dict[str, Any]], None]:
    """Return a change of a page: the total that it counts."""
    return lambda body: body["pagination"].update(total_count=total)


@pytest.mark.costly("runs lines of payments/ownership/recovery.py that no quick test runs")
@on_one
async def test_a_payment_of_last_year_is_found_among_its_own_days(world: World, client: AsyncClient) -> None:
    """An old unknown payment is looked for in its days; the listing leaves out all days since."""
    world.line.has_dates = True
    await lose(world, client, made=True)
    await world.advance(40 * 24 * HOUR)
    for number in range(500):
        stranger(world, amount=str(5000 + number))
    await create(client, "order-1b", amount=4)
    await world.advance(HOUR)
    await lose(world, client, "order-2", made=True, amount=3)
    asked = world.sandbox.requests.count("transactions")
    old, new = await client.payments.reconcile()
    assert new.state in {"ACKNOWLEDGED", "FINAL"}
    # After forty days with so many strangers the store may have been restored: no machine adopts.
    assert (old.state, len(old.candidates)) == ("UNKNOWN", 1)
    assert world.sandbox.requests.count("transactions") - asked < 6


# Clocks


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [-3 * HOUR, 0.7, 600.0])
@pytest.mark.parametrize("evidence", ["dates", "own payments", "none"])
@on_one
async def test_a_clock_that_is_wrong(world: World, ahead: float, evidence: str) -> None:
    """However wrong a clock is, a payment that exists is never absent; with samples of the clock it is found.

    One that does not exist is found absent where own payments show the clock.
    """
    world.ahead = timedelta(seconds=ahead)
    world.line.has_dates = evidence == "dates"
    async with world.client() as client:
        async with between_others(client) if evidence == "own payments" else nullcontext():
            await lose(world, client, made=True)
            true = world.made[-1]
            await lose(world, client, "order-2", made=False, amount=5)
        await world.advance(300)
        await miss(world, client)
        found, missed = await get(client), await get(client, "order-2")
    if evidence == "none":  # after a pause nothing shows that the store has lost nothing
        assert (found.state, found.candidates) == ("UNKNOWN", (true,))
    else:
        assert found.transaction_id == true
    assert missed.state == ("ABSENT" if evidence == "own payments" else "UNKNOWN")


@pytest.mark.parametrize("ahead", [-3 * HOUR, 3 * HOUR])
@pytest.mark.parametrize("evidence", ["dates", "own payments"])
@on_one
async def test_an_earlier_gift_of_another_system_is_not_taken_for_ours(
    world: World, ahead: float, evidence: str
) -> None:
    """A transaction that was created long before the payment was sent, on the service's clock, is not adopted."""
    world.ahead = timedelta(seconds=ahead)
    world.line.has_dates = evidence == "dates"
    stranger(world)
    await world.advance(2 * HOUR)
    async with world.client() as client:
        if evidence == "own payments":
            await create(client, "earlier", amount=77)
        await lose(world, client, made=False)
        await world.advance(300)
        record = await get(client)
        for _ in range(3):
            (record,) = await client.payments.reconcile()
            await world.advance(1)
    assert record.transaction_id is None


@pytest.mark.slow
@pytest.mark.parametrize("by", [-2 * HOUR, 2 * HOUR])
@pytest.mark.parametrize("has_dates", [True, False])
@on_one
async def test_a_clock_that_was_set_meanwhile(world: World, client: AsyncClient, by: float, has_dates: bool) -> None:
    """Payments from before a clock was set do not make a later one that exists look absent."""
    world.line.has_dates = has_dates
    await create(client, "earlier", amount=77)
    world.ahead = timedelta(seconds=by)
    await lose(world, client, made=True)
    await world.advance(300)
    for _ in range(3):
        await client.payments.reconcile()
        await world.advance(1)
    record = await get(client)
    assert record.state != "ABSENT"
    assert record.transaction_id in {None, world.made[-1]}


# Payments of a dead process


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.0])
async def test_the_clock_of_a_sandbox_moves_that_of_its_clients(sqlite_file_url: str, rate: float) -> None:
    """After `sandbox.advance(...)` a client of the sandbox still finds its payment where it was sent."""
    sandbox = Sandbox()
    store = SQLStore(sqlite_file_url, grace=0)
    async with sandbox.client(store=store, timeout=1) as client:
        sandbox.run_clock(rate)
        for day in range(3):
            sandbox.advance(10 * 86_400)
            sandbox.script(faults.lost(processed=True), on="c2b")
            with pytest.raises(OutcomeUnknown):
                await client.collections.create(**ORDER, idempotency_key=f"order-{day}")
            (record,) = await client.payments.reconcile()
            assert record.is_adopted


async def test_stale_payments_are_found_out(world: World, client: AsyncClient) -> None:
    """A payment of a dead process is left alone while its request may live, or as long as the caller says."""
    await leave(world)
    assert await client.payments.reconcile() == []
    assert await client.payments.reconcile(stale_after=60) == []
    assert [each.state for each in await client.payments.unresolved()] == ["SENDING"]
    (record,) = await client.payments.reconcile(stale_after=0)
    assert record.transaction_id == world.made[0]


@on_sqlite
async def test_without_a_word_stale_is_what_no_request_can_outlive(world: World, client: AsyncClient) -> None:
    """By default a payment of a dead process counts as unknown when its time-out, and a margin, are over."""
    began_at = anyio.current_time()
    await leave(world)
    await world.advance(9 - (anyio.current_time() - began_at))
    assert await client.payments.reconcile() == []
    await world.advance(2)
    (record,) = await client.payments.reconcile()
    assert record.transaction_id == world.made[0]


@on_sqlite
async def test_what_this_process_sends_is_never_stale(world: World, client: AsyncClient) -> None:
    """`stale_after=0` does not concern the payments that this very process is sending."""

    async def meanwhile() -> None:
        assert await client.payments.reconcile(stale_after=0) == []

    world.line.meanwhile(meanwhile)
    await create(client)
    assert world.happened() == ["sent", "acknowledged"]


@pytest.mark.parametrize("stale_after", [-1, float("nan"), "0", True])
@on_one
async def test_an_age_that_is_none(client: AsyncClient, stale_after: Any) -> None:
    with pytest.raises(InvalidRequest, match="stale_after"):
        await client.payments.reconcile(stale_after=stale_after)


# Contradictions: a process that was taken for dead, and was not


Meanwhile = Callable[[AsyncClient], Awaitable[None]]


async def _found_out(other: AsyncClient) -> None:
    await other.payments.reconcile(stale_after=0)


async def _called_absent(other: AsyncClient) -> None:
    await other.payments.reconcile(stale_after=0)
    await create(other, "after", amount=8)
    for _ in range(2):
        await anyio.sleep(1)
        await other.payments.reconcile()
    assert (await get(other)).state == "ABSENT"


async def _released(other: AsyncClient) -> None:
    await other.payments.reconcile(stale_after=0)
    await other.payments.confirm_absent("order-1", note="mistaken")


async def _sent_again(other: AsyncClient) -> None:
    await _released(other)
    await create(other)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("meanwhile", [_found_out, _called_absent, _released])
async def test_a_late_answer_is_welcome(world: World, meanwhile: Meanwhile) -> None:
    """The answer of a process that counted as dead is recorded, in any state of the payment."""
    async with world.client() as client, world.client(world.store(grace=0)) as other:
        await create(other, "before", amount=7)
        world.line.meanwhile(lambda: meanwhile(other))
        answer = await create(client)
        record = await get(other)
        assert record.transaction_id == answer.transaction_id == world.made[-1]
        assert record.history[-1].what == "acknowledged"
        assert (await create(other)).transaction_id == answer.transaction_id
    assert [each.amount for each in world.sandbox.transactions.values()].count("1000") == 1


@pytest.mark.costly("runs lines of payments/records/journal.py that no quick test runs")
async def test_a_late_answer_after_the_key_was_sent_again_is_a_contradiction(world: World) -> None:
    """Two payments under one key, by a wrong confirmation, are reported: raised, and kept in the history."""
    async with world.client() as client, world.client(world.store(grace=0)) as other:
        world.line.meanwhile(lambda: _sent_again(other))
        with pytest.raises(MobileMoneyError) as caught:
            await create(client)
        assert caught.value.outcome == "unknown"
        error: BaseException | None = caught.value
        while error is not None and not isinstance(error, StoreError):
            error = error.__cause__
        assert error is not None
        record = await get(other)
        first, second = world.made
        assert record.transaction_id == first
        assert [entry.what for entry in record.history].count("contradiction") == 1
        assert record.history[-1].what == "contradiction"
        assert record.history[-1].detail is not None
        assert second in record.history[-1].detail
        assert second in str(error)
        assert (await create(client)).transaction_id == first


@pytest.mark.slow
async def test_a_late_loss_makes_the_evidence_of_absence_start_anew(sqlite_file_url: str) -> None:
    """Listings before the request had really ended prove nothing about its absence."""
    world = make_world(sqlite_file_url)
    async with world.client() as client, world.client(world.store(grace=1)) as other:
        world.sandbox.script(NOT_MADE, on="c2b")

        async def meanwhile() -> None:
            await other.payments.reconcile(stale_after=0)
            await anyio.sleep(2)
            await other.payments.reconcile()
            assert (await get(other)).walks == 1

        world.line.meanwhile(meanwhile)
        with pytest.raises(OutcomeUnknown):
            await create(client)
        await other.payments.reconcile()
        assert (await get(other)).walks == 0
        await world.advance(2)
        await other.payments.reconcile()
        assert ((await get(other)).state, (await get(other)).walks) == ("UNKNOWN", 1)


@pytest.mark.slow
@on_asyncio
async def test_history_is_complete_and_only_grows(world: World) -> None:
    """Through a whole life each entry stays as it was, in order, and each change of state is there."""
    seen: list[Any] = []

    async def look(client: AsyncClient) -> None:
        nonlocal seen
        history = [*(await get(client)).history]
        assert history[: len(seen)] == seen
        assert [entry.at for entry in history] == sorted(entry.at for entry in history)
        seen = history

    async with world.client(world.store(grace=5), retry=RetryPolicy(max_attempts=1)) as client:
        world.line.refuse = 1
        with pytest.raises(MobileMoneyError):
            await create(client)
        await look(client)
        await lose(world, client, made=False)
        await look(client)
        others = [stranger(world), stranger(world)]
        await client.payments.reconcile()
        await look(client)
        await world.advance(5)
        await client.payments.confirm_absent("order-1", note="Asha")
        for each in others:
            await client.payments.explain(each, note="Asha paid them by hand")
        await look(client)
        await create(client, "duplicate-1")
        await world.advance(48 * HOUR)
        async with between_others(client):
            await lose(world, client, made=False)
        await world.advance(10)
        await miss(world, client)
        await look(client)
        await client.payments.confirm_absent("order-1", note="Juma")
        await lose(world, client, made=True)
        await world.advance(200)
        await client.payments.reconcile()
        await look(client)
    assert others
    assert [entry.what for entry in seen] == [
        *("sent", "not_sent"),
        *("sent", "unknown", "ambiguous", "confirmed"),
        *("sent", "unknown", "absent", "confirmed"),
        *("sent", "unknown", "adopted", "final"),
    ]
