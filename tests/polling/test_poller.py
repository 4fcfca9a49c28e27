"""The poller against the sandbox, in virtual time on both loops: its promises to its users."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    ConnectionFailed,
    InvalidRequest,
    InvalidTransactionId,
    LoginAuth,
    Outcome,
    Priority,
    Schedule,
    TransactionNotFound,
    TransactionStatus,
    WaitTimeout,
)
from mobilemoney_async.contract.endpoints import LIST_TRANSACTIONS
from mobilemoney_async.events import Event, PaymentGivenUp
from mobilemoney_async.polling.poller import Poller
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.messages import Reply
from mobilemoney_async.testing import page_answer, transaction_answer, transaction_record
from tests.support.arguments import wrong
from tests.support.fakes import FakeTransport, Sent, Step, make_client

ORDINARY = "+255681234501"
SUCCEEDS = "+255780000789"
STUCK = "+255780000129"
EXPIRES = "+255780000408"
HIDDEN = "+255780000304"


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox()


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[AsyncClient]:
    async with sandbox.client() as client:
        yield client


@pytest.fixture
async def poller(client: AsyncClient) -> AsyncIterator[Poller]:
    async with client.poller() as poller:
        yield poller


async def pay(client: AsyncClient, phone_number: str = SUCCEEDS) -> Acknowledgement:
    return await client.collections.create(phone_number=phone_number, amount=1000)


def asked(sandbox: Sandbox) -> int:
    return sandbox.requests.count("transactions") + sandbox.requests.count("transaction")


async def test_many_payments_end_each_once(sandbox: Sandbox, client: AsyncClient, poller: Poller) -> None:
    """Collections and disbursements that are tracked come out as outcomes in their final states, each once."""
    for phone_number in (SUCCEEDS, "+255780000029", EXPIRES, ORDINARY):
        poller.track(await pay(client, phone_number))
    for phone_number in (SUCCEEDS, "+255780000089"):
        poller.track(await client.disbursements.create(phone_number=phone_number, amount=500))
    poller.track(await client.disbursements.create(phone_number=ORDINARY, amount=999_999_999))
    assert poller.pending == 7
    outcomes = [outcome async for outcome in poller.outcomes()]
    assert poller.pending == 0
    stats = poller.stats
    assert sorted(str(each.transaction.status) for each in outcomes if each.transaction) == [
        "FAILED",
        "FAILED",
        "INSUFFICIENT_FUNDS",
        "SUCCESS",
        "SUCCESS",
        "SUCCESS",
        "TIMEOUT",
    ]
    assert {each.transaction_id for each in outcomes} == set(sandbox.transactions)
    assert (stats.tracked, stats.final, stats.unresolved, stats.pending, stats.faults) == (7, 7, 0, 0, 0)
    assert stats.requests == stats.pages + stats.lookups == asked(sandbox) < 45
    assert stats.mean_lag is not None
    assert stats.mean_lag < 15
    assert stats.next_request_in is None


async def test_any_number_may_wait_for_one_payment(sandbox: Sandbox) -> None:
    """Several tasks wait for a payment; later ones get the same at once; a cancelled one harms no other."""
    got: list[str] = []

    async def wait(poller: Poller, transaction_id: str) -> None:
        got.append(str((await poller.wait(transaction_id)).status))

    async with sandbox.client() as client, client.poller() as poller:
        acknowledgement = await pay(client)
        poller.track(acknowledgement)
        with anyio.move_on_after(1) as impatient:
            await poller.wait(acknowledgement.transaction_id)
        assert impatient.cancelled_caught
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(wait, poller, acknowledgement.transaction_id)
        assert got == ["SUCCESS"] * 5
        before = asked(sandbox)
        assert (await poller.wait(acknowledgement.transaction_id)).succeeded
        assert asked(sandbox) == before


async def test_several_readers_get_every_outcome_each(client: AsyncClient, poller: Poller) -> None:
    """Each consumer of outcomes has its own; a later one begins with the first unread outcome."""
    first, second = poller.outcomes(), poller.outcomes()
    poller.track(await pay(client))
    poller.track(await pay(client))
    a = [outcome.transaction_id async for outcome in first]
    b = [outcome.transaction_id async for outcome in second]
    assert a == b
    assert len(a) == 2
    assert [outcome async for outcome in poller.outcomes()] == []
    poller.track(await pay(client))
    await anyio.sleep(60)
    assert len([outcome async for outcome in poller.outcomes()]) == 1


async def test_outcomes_run_on_for_a_service(sandbox: Sandbox) -> None:
    """With forever=True the iterator waits for payments to come, and ends when the poller is closed."""
    got: list[Outcome] = []

    async def read(poller: Poller) -> None:
        got.extend([outcome async for outcome in poller.outcomes(forever=True)])

    async with sandbox.client() as client, anyio.create_task_group() as group:
        async with client.poller() as poller:
            group.start_soon(read, poller)
            await anyio.sleep(100)
            poller.track(await pay(client))
            await anyio.sleep(100)
            poller.track(await pay(client))
            await anyio.sleep(100)
    assert len(got) == 2


async def test_nothing_pending_no_request(sandbox: Sandbox, client: AsyncClient, poller: Poller) -> None:
    """An idle poller makes no request, before the first payment and after the last."""
    await anyio.sleep(1000)
    assert asked(sandbox) == 0
    await poller.wait((await pay(client)).transaction_id)
    before = asked(sandbox)
    await anyio.sleep(1000)
    assert asked(sandbox) == before


async def test_twice_is_once_and_ended_is_ended(client: AsyncClient, poller: Poller) -> None:
    """Tracking a payment again neither doubles its outcome nor asks about it again."""
    acknowledgement = await pay(client)
    poller.track(acknowledgement)
    poller.track(acknowledgement.transaction_id)
    assert len([outcome async for outcome in poller.outcomes()]) == 1
    poller.track(acknowledgement)
    assert poller.pending == 0
    assert [outcome async for outcome in poller.outcomes()] == []


async def test_a_payment_is_given_up_on_time_and_may_be_tracked_again(sandbox: Sandbox) -> None:
    """At its timeout a payment ends as a WaitTimeout with its latest state; tracked again, its late end comes."""
    async with sandbox.client() as client, client.poller(timeout=30) as poller:
        acknowledgement = await pay(client, STUCK)
        number = acknowledgement.transaction_id
        started = anyio.current_time()
        poller.track(acknowledgement)
        with pytest.raises(WaitTimeout) as caught:
            await poller.wait(number)
        assert anyio.current_time() - started == pytest.approx(30)
        assert caught.value.transaction.status == TransactionStatus.PENDING
        (outcome,) = [outcome async for outcome in poller.outcomes()]
        assert isinstance(outcome.error, WaitTimeout)
        assert outcome.transaction is None
        poller.track(number, timeout=1000)
        sandbox.approve(number)
        assert (await poller.wait(number)).succeeded
        stats = poller.stats
        assert (stats.tracked, stats.final, stats.unresolved) == (2, 1, 1)


async def test_a_payment_may_be_tracked_again_as_its_event_says_that_it_is_given_up(sandbox: Sandbox) -> None:
    """By the handler itself: whoever waits from then on gets the new ending, not the old error."""

    def go_on(event: Event) -> None:
        if isinstance(event, PaymentGivenUp):
            follower.track(event.transaction_id, timeout=1000)

    async with sandbox.client(on_event=go_on) as client, client.poller(timeout=30) as follower:
        number = (await pay(client, STUCK)).transaction_id
        follower.track(number)
        await anyio.sleep(31)
        sandbox.approve(number)
        assert (await follower.wait(number)).succeeded


async def test_what_was_given_up_stays_so_until_it_is_tracked_again(client: AsyncClient, poller: Poller) -> None:
    """Waiting for a payment that was given up raises at once, each time, with the length of the tracking."""
    acknowledgement = await pay(client, STUCK)
    poller.track(acknowledgement, timeout=0.5)
    for _ in range(2):
        with pytest.raises(WaitTimeout, match=r"not final after 0\.5 s: not seen"):
            await poller.wait(acknowledgement.transaction_id)
    assert poller.pending == 0


async def test_a_payment_that_is_given_up_in_an_outage_says_so(sandbox: Sandbox) -> None:
    """The cause of a WaitTimeout is the fault for which the service could not be asked, for readers and waiters."""
    async with sandbox.client() as client, client.poller(timeout=60) as poller:
        number = (await pay(client, STUCK)).transaction_id
        outage = sandbox.script(faults.refused(), probability=1.0)
        poller.track(number)
        with pytest.raises(WaitTimeout) as caught:
            await poller.wait(number)
        assert isinstance(caught.value.__cause__, ConnectionFailed)
        (outcome,) = [outcome async for outcome in poller.outcomes()]
        assert isinstance(outcome.error, WaitTimeout)
        assert isinstance(outcome.error.__cause__, ConnectionFailed)
        outage.cancel()
        poller.track(number, timeout=100)
        with pytest.raises(WaitTimeout) as caught:
            await poller.wait(number)
        assert caught.value.__cause__ is None


async def test_what_the_service_does_not_know_ends_as_a_value(poller: Poller) -> None:
    """An unknown id is not found after two minutes, a malformed one at once; neither ends the poller."""
    poller.track("txn_unknown")
    poller.track("no such id!")
    started = anyio.current_time()
    ended = {outcome.transaction_id: outcome.error async for outcome in poller.outcomes()}
    assert isinstance(ended["txn_unknown"], TransactionNotFound)
    assert isinstance(ended["no such id!"], InvalidTransactionId)
    assert 120 <= anyio.current_time() - started < 160
    with pytest.raises(TransactionNotFound):
        await poller.wait("txn_unknown")


@pytest.mark.parametrize("code", ["", "ROUTE_NOT_FOUND"])
async def test_a_404_without_the_contracts_code_ends_no_payment(sandbox: Sandbox, code: str) -> None:
    """A 404 of a router says nothing about the transaction: poller and wait go on, and report its final state."""
    reply = Reply(status=404, body=json.dumps({"status": "error", "error_code": code}).encode(), code=code)
    no_route = Fault(name="no route", instead=lambda choices: reply)
    sandbox.script(*[no_route] * 12, on="GET")
    async with sandbox.client() as client, client.poller() as poller:
        acknowledgement = await pay(client, ORDINARY)
        poller.track(acknowledgement)
        assert (await poller.wait(acknowledgement.transaction_id)).is_final
        sandbox.script(no_route, on="GET")
        assert (await client.transactions.wait(acknowledgement.transaction_id)).is_final


async def test_a_payment_that_is_hidden_at_first_is_not_lost(client: AsyncClient, poller: Poller) -> None:
    """Missing from lookups and list for 90 s, it still comes out in its final state."""
    acknowledgement = await pay(client, HIDDEN)
    poller.track(acknowledgement)
    assert (await poller.wait(acknowledgement.transaction_id)).is_final


async def test_a_row_from_the_future_makes_no_payment_old() -> None:
    """Another payment of 2099 in the list: the end of one that is tracked by its id is seen as soon as ever."""
    ends_at, made = anyio.current_time() + 6, datetime.now(UTC).isoformat()

    def answer(sent: Sent) -> Step:
        status = "PENDING" if anyio.current_time() < ends_at else "SUCCESS"
        if sent.path.endswith("tx-1"):
            return transaction_answer("tx-1", status, created_at=made)
        odd = transaction_record("tx-2", "PENDING", created_at="2099-01-01T00:00:00Z")
        return page_answer(odd, transaction_record("tx-1", status, created_at=made))

    async with make_client(FakeTransport(answer)) as client, client.poller() as poller:
        with anyio.fail_after(12):
            await poller.wait("tx-1")


async def test_a_hint_brings_the_state_within_a_second(sandbox: Sandbox, client: AsyncClient, poller: Poller) -> None:
    """After a callback, the state is there within a second; hints for unknown ids cost nothing."""
    acknowledgement = await pay(client, STUCK)
    poller.track(acknowledgement)
    await anyio.sleep(200)
    sandbox.approve(acknowledgement.transaction_id)
    assert not poller.hint("somebody else's")
    assert poller.hint(acknowledgement.transaction_id)
    assert poller.hint(acknowledgement.transaction_id), "it is tracked, whether or not the hint counts"
    with anyio.fail_after(1):
        assert (await poller.wait(acknowledgement.transaction_id)).succeeded
    assert not poller.hint(acknowledgement.transaction_id), "it has ended"


async def test_the_merchant_chooses_the_interval(sandbox: Sandbox) -> None:
    """With min_interval=10, the contract's recommended rate, no two requests are closer than ten seconds."""
    async with sandbox.client() as client, client.poller(min_interval=10) as poller:
        for _ in range(10):
            poller.track(await pay(client, ORDINARY))
        assert len([outcome async for outcome in poller.outcomes()]) == 10
    times = [entry.at for entry in sandbox.requests if entry.endpoint in {"transactions", "transaction"}]
    assert all(later - earlier >= 10 - 1e-6 for earlier, later in itertools.pairwise(times))


async def test_other_pauses_may_be_given(sandbox: Sandbox) -> None:
    """A schedule of one's own stands in place of the advised one."""
    async with sandbox.client() as client, client.poller(schedule=Schedule(first=20, factor=1, cap=20)) as poller:
        poller.track(await pay(client, STUCK))
        await anyio.sleep(101)
    assert asked(sandbox) == 5


FAULTS: dict[str, Callable[[], Any]] = {
    "refused": faults.refused,
    "closed": lambda: faults.drop(processed=True),
    "reset": lambda: faults.drop(processed=True, reset=True),
    "lost": lambda: faults.lost(processed=True),
    "5xx": lambda: faults.server_error(processed=False),
    "html": faults.html_page,
    "empty": faults.empty_body,
    "truncated": faults.truncated,
    "rate limit": lambda: faults.rate_limited(retry_after=3),
    "token": faults.token_expired,
    "unknown status": faults.unknown_status,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_delays_and_loses_nothing(sandbox: Sandbox, fault: str) -> None:
    """Whatever strikes half of the requests, every payment comes out in its true final state."""
    async with sandbox.client(timeout=5.0) as client, client.poller() as poller:
        for _ in range(5):
            poller.track(await pay(client, ORDINARY))
        sandbox.script(FAULTS[fault](), on="GET *", probability=0.5)
        with anyio.fail_after(600):
            outcomes = [outcome async for outcome in poller.outcomes()]
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert outcome.transaction is not None
        assert outcome.transaction.status == str(sandbox.transactions[outcome.transaction_id].status)


@pytest.mark.parametrize("lag", [2.0, 60.0])
async def test_a_list_that_is_late_serves_while_no_lookup_does(lag: float) -> None:
    """A payment that the first pages do not show is looked for in the list again."""
    sandbox = Sandbox(choices=Choices(list_lag=lag))
    sandbox.script(faults.server_error(processed=False), on="transaction", probability=1.0)
    async with sandbox.client() as client, client.poller() as poller:
        poller.track(await pay(client))
        with anyio.fail_after(300):
            outcomes = [outcome async for outcome in poller.outcomes()]
    assert [each.transaction is not None for each in outcomes] == [True]


async def test_an_outage_is_outlasted(sandbox: Sandbox, client: AsyncClient, poller: Poller) -> None:
    """After an hour in which nothing works, few requests have been wasted, and the payments come out."""
    for _ in range(3):
        poller.track(await pay(client))
    outage = sandbox.script(faults.refused(), probability=1.0)
    await anyio.sleep(3600)
    assert outage.fired < 150
    assert poller.stats.faults == outage.fired
    outage.cancel()
    with anyio.fail_after(40):
        assert len([outcome async for outcome in poller.outcomes()]) == 3


async def test_one_lost_answer_does_not_hold_up_the_others(
    sandbox: Sandbox, client: AsyncClient, poller: Poller
) -> None:
    """While one request waits for its time-out, further ones go out."""
    first = await pay(client)
    poller.track(first)
    await anyio.sleep(4)
    sandbox.script(faults.lost(processed=True), on="GET *", times=1)
    poller.track(await pay(client))
    with anyio.fail_after(15):
        await poller.wait(first.transaction_id)


async def test_a_token_source_that_breaks_is_a_fault(sandbox: Sandbox) -> None:
    """An exception in the caller's own token source delays the poller and does not end it."""

    class Vault:
        is_broken = False

        async def token(self, login: object) -> str:
            if self.is_broken:
                raise KeyError("no such secret")
            return sandbox.token

        def rejected(self, token: object, *, replacement: bool) -> None:
            raise AssertionError

    vault = Vault()
    async with sandbox.client(auth=vault) as client, client.poller() as poller:
        poller.track(await pay(client))
        vault.is_broken = True
        await anyio.sleep(60)
        assert poller.stats.faults > 1
        vault.is_broken = False
        with anyio.fail_after(60):
            assert len([outcome async for outcome in poller.outcomes()]) == 1


async def test_a_token_that_runs_out_is_renewed(sandbox: Sandbox) -> None:
    """A renewal and its replay are neither a fault nor past the limit."""
    auth = LoginAuth(sandbox.email, sandbox.password)
    async with sandbox.client(auth=auth) as client, client.poller() as poller:
        poller.track(await pay(client))
        sandbox.script(faults.token_expired(), on="GET *", times=1)
        assert len([outcome async for outcome in poller.outcomes()]) == 1
        assert poller.stats.faults == 0
    assert sandbox.requests.logins == 2
    assert sandbox.requests.rejections == 0


@pytest.mark.parametrize(("age", "granted"), [(0.0, 1), (3.0, 2)])
async def test_a_reserved_slot_counts_once(client: AsyncClient, age: float, granted: int) -> None:
    """One that lay unused, during a login say, is acquired again: used late, it would come on top of later ones."""
    pipeline, slot = client._pipeline, anyio.current_time()
    await pipeline.limiter.acquire(Priority.POLL)
    await anyio.sleep(age)
    await pipeline.call(LIST_TRANSACTIONS, lane=Priority.POLL, granted_at=slot)
    assert pipeline.limiter.usage().granted == granted
    await pipeline.call(LIST_TRANSACTIONS, lane=Priority.POLL)
    assert pipeline.limiter.usage().granted == granted + 1


@pytest.mark.parametrize("error", [KeyError("mine"), ExceptionGroup("mine", [ValueError("one")]), KeyboardInterrupt()])
async def test_the_callers_own_exception_leaves_as_itself(client: AsyncClient, error: BaseException) -> None:
    """An exception of the block leaves it unwrapped, as the same object."""
    caught: BaseException | None = None
    try:
        async with client.poller() as poller:
            poller.track(await pay(client))
            await anyio.sleep(2)
            raise error
    except BaseException as exc:  # noqa: BLE001 (KeyboardInterrupt among them)
        caught = exc
    assert caught is error


async def test_closing_ends_waiters_and_readers(sandbox: Sandbox) -> None:
    """Whoever waits when the block is left is told so; afterwards the poller takes nothing more."""
    ended: list[str] = []

    async def wait(poller: Poller, transaction_id: str) -> None:
        with pytest.raises(InvalidRequest, match="poller"):
            await poller.wait(transaction_id)
        ended.append("waiter")

    async def read(poller: Poller) -> None:
        async for _ in poller.outcomes():
            raise AssertionError
        ended.append("reader")

    async with sandbox.client() as client, anyio.create_task_group() as group:
        async with client.poller() as poller:
            acknowledgement = await pay(client, STUCK)
            poller.track(acknowledgement)
            group.start_soon(wait, poller, acknowledgement.transaction_id)
            group.start_soon(read, poller)
            await anyio.sleep(5)
    assert sorted(ended) == ["reader", "waiter"]
    for use in (poller.track, poller.hint):
        with pytest.raises(InvalidRequest):
            use(acknowledgement.transaction_id)
    with pytest.raises(InvalidRequest):
        poller.outcomes()
    with pytest.raises(InvalidRequest):
        async with poller:
            raise AssertionError


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.0, 1.2, 1.5, 2.6, 3.7, 7.0])
async def test_cancelling_anywhere_leaves_a_working_client(moment: float) -> None:
    """Cancelled while it sleeps, is in line or awaits an answer, the poller is gone at once, and the client works."""
    sandbox = Sandbox(choices=Choices(latency=0.8))
    async with sandbox.client() as client:
        acknowledgement = await pay(client)
        started = anyio.current_time()
        with anyio.move_on_after(moment) as scope:
            async with client.poller() as poller:
                poller.track(acknowledgement)
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert anyio.current_time() - started == pytest.approx(moment)
        before = asked(sandbox)
        await anyio.sleep(60)
        assert asked(sandbox) == before
        assert (await client.transactions.get(acknowledgement.transaction_id)).succeeded


async def test_a_client_that_is_closed_under_the_poller_ends_it(sandbox: Sandbox) -> None:
    """A fault that waiting cannot fix is an error, not wrapped in a group."""
    client = sandbox.client()
    acknowledgement = await pay(client)
    with pytest.raises(InvalidRequest, match="closed"):
        async with client.poller() as poller:
            poller.track(acknowledgement)
            await client.aclose()
            await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("argument", "options"), wrong(timeout=[0, 10**400], min_interval=[-1, "1"], schedule=[3], resume=["no", None])
)
async def test_arguments_are_checked(argument: str, options: dict[str, Any]) -> None:
    """An argument that the poller cannot use is refused at construction, by its name."""
    async with Sandbox().client() as client:
        with pytest.raises(InvalidRequest) as caught:
            client.poller(**options)
        assert caught.value.argument == argument


async def test_payments_are_checked() -> None:
    """A blank id or a timeout of nothing is refused at once."""
    async with Sandbox().client() as client, client.poller() as poller:
        for payment in ("", " ", "..", 3):
            with pytest.raises(InvalidRequest):
                poller.track(payment)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a transaction id, an Acknowledgement or a Transaction, not None"):
            poller.track(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            poller.track("txn-1", timeout=0)
        assert poller.pending == 0
        assert repr(poller) == "<Poller: 0 pending>"


@pytest.mark.costly("runs lines of polling/poller.py that no quick test runs")
async def test_payments_go_first(sandbox: Sandbox) -> None:
    """Under creates without end the poller takes one request in ten seconds or so, and the creates the rest."""

    async def create_for_ever(client: AsyncClient) -> None:
        while True:
            await pay(client, STUCK)

    async with sandbox.client() as client, client.poller() as poller, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(create_for_ever, client)
        for _ in range(40):
            poller.track(await pay(client, STUCK))
        await anyio.sleep(600)
        group.cancel_scope.cancel()
    assert sandbox.requests.rejections == 0
    assert sandbox.requests.count("c2b") > 500
    times = [entry.at for entry in sandbox.requests if entry.endpoint in {"transactions", "transaction"}]
    assert len(times) >= 55
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 25


async def test_every_coroutine_is_a_checkpoint(client: AsyncClient, poller: Poller) -> None:
    """Waiting for a payment that has ended still lets other tasks run."""
    number = (await pay(client)).transaction_id
    await poller.wait(number)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await poller.wait(number)
    assert scope.cancelled_caught
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anext(poller.outcomes())
    assert scope.cancelled_caught
    assert len([outcome async for outcome in poller.outcomes()]) == 1
