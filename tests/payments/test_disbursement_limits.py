"""No process, batch or queue sends more than the limits, alone or together with others."""

import pickle
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    DisbursementLimits,
    InvalidRequest,
    LimitExceeded,
    Merchants,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentState,
    PermissionDenied,
    RetryPolicy,
)
from tests.payments.second_world import BOTH, DAY, World, lose_answer, make_world, number
from tests.payments.steps import approved, dispatch, settle
from tests.support.second_service import BASE_URL, TOKEN, Payment, error

pytestmark = pytest.mark.anyio

LIMITS = DisbursementLimits(per_payment=1_000, per_recipient_a_day=1_500, per_day=3_000)
ONCE = RetryPolicy(max_attempts=1)


async def pay(client: AsyncClient, last: int, amount: int, **options: Any) -> None:
    await client.disbursements.create(phone_number=number(last), amount=amount, **options)


def sent(world: World) -> int:
    """Return the sum of what may have moved money."""
    return sum(int(each.amount) for each in world.service.payments if each.status != "FAILED")


async def exceeds(client: AsyncClient, last: int, amount: int) -> tuple[str, int]:
    """Return the limit that a disbursement exceeds, and what is left of it."""
    with pytest.raises(LimitExceeded, match=f"a disbursement of {amount:,} TZS exceeds .*; nothing was sent") as raised:
        await pay(client, last, amount)
    assert (raised.value.outcome, raised.value.most) == ("not_sent", getattr(LIMITS, raised.value.limit))
    assert pickle.loads(pickle.dumps(raised.value)).left == raised.value.left
    return raised.value.limit, int(raised.value.left)


@pytest.mark.parametrize("has_store", [True, False])
async def test_each_limit_holds_and_says_what_is_left(sqlite_file_url: str, has_store: bool) -> None:
    """With a store, and without one; collections are not limited, and a day later all is left again.

    The sums are exact, whatever decimal context the caller computes in.
    """
    world = make_world(sqlite_file_url)
    options: dict[str, Any] = {} if has_store else {"store": None}
    with localcontext(prec=1):
        async with world.client(disbursement_limits=LIMITS, **options) as client:
            assert await exceeds(client, 1, 1_001) == ("per_payment", 1_000)
            await pay(client, 1, 1_000)
            assert await exceeds(client, 1, 600) == ("per_recipient_a_day", 500)
            await pay(client.with_options(timeout=9.0), 1, 500)
            await pay(client, 2, 1_000)
            assert await exceeds(client, 3, 501) == ("per_day", 500)
            await client.collections.create(phone_number=number(3), amount=9_000)
            await anyio.sleep(DAY + 1)
            await pay(client, 1, 1_000)
    assert [int(each.amount) for each in world.service.payments] == [1_000, 500, 1_000, 9_000, 1_000]


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("has_store", [True, False])
async def test_what_may_have_moved_money_counts_and_nothing_else(world: World, has_store: bool) -> None:
    """A lost answer and a soft refusal do; what was refused for certain, or never sent, does not."""
    answers: Mapping[int, Any] = {
        1: (lose_answer, OutcomeUnknown),
        2: (lambda request, payment: error(400, "SOME_LIMIT"), MobileMoneyError),
        3: (lambda request, payment: error(403, "insufficient_permissions"), PermissionDenied),
        4: (refuse_connection, MobileMoneyError),
    }
    options: dict[str, Any] = {"retry": ONCE} if has_store else {"retry": ONCE, "store": None}
    async with world.client(disbursement_limits=LIMITS, **options) as client:
        for last, (answer, raised) in answers.items():
            world.service.answer_create = answer
            with pytest.raises(raised):
                await pay(client, last, 700)
        world.service.answer_create = lambda request, payment: None
        assert await exceeds(client, 1, 900) == ("per_recipient_a_day", 800)
        assert await exceeds(client, 2, 900) == ("per_recipient_a_day", 800)
        await pay(client, 3, 1_000)
        assert await exceeds(client, 4, 601) == ("per_day", 600)


def refuse_connection(request: httpx.Request, payment: Payment | None) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.slow
@BOTH
async def test_a_failed_payment_counts_no_more_once_the_store_knows(world: World) -> None:
    """Another process may know it: the store does."""
    async with world.client(disbursement_limits=LIMITS) as client, world.client() as other:
        await pay(client, 1, 1_000)
        assert await exceeds(client, 1, 1_000) == ("per_recipient_a_day", 500)
        world.service.finish(world.service.payments[0], "FAILED")
        await settle(other)
        await pay(client, 1, 1_000)


@BOTH
async def test_processes_at_once_do_not_exceed_a_limit_together(world: World) -> None:
    """Each sees what the others have begun, although none of it is answered yet."""
    world.service.answer_after = 2.0
    refused: list[str] = []

    async def try_to_pay(client: AsyncClient, last: int) -> None:
        try:
            await pay(client, last, 500)
        except LimitExceeded as exc:
            refused.append(exc.limit)

    async with world.client(disbursement_limits=LIMITS) as client, world.client(disbursement_limits=LIMITS) as other:
        async with anyio.create_task_group() as tasks:
            for last in range(10):
                tasks.start_soon(try_to_pay, (client, other)[last % 2], last)
    assert (sent(world), refused) == (3_000, ["per_day"] * 4)


@BOTH
async def test_a_batch_that_exceeds_a_limit_cannot_be_approved(world: World) -> None:
    """Nothing is queued; what other batches have queued counts, and lines that have payments count once."""

    def rows(*amounts: int, first: int = 0) -> list[dict[str, Any]]:
        return [{"phone_number": number(first + place), "amount": amount} for place, amount in enumerate(amounts)]

    async with world.client(disbursement_limits=LIMITS) as client:
        tries = {
            "per_payment": (rows(1, 1_001), "line 2 of"),
            "per_recipient_a_day": ([*rows(800), *rows(701)], "line 2 of"),
            "per_day": (rows(1_000, 1_000, 1_000, 1), "line 4 of"),
        }
        for limit, (lines, said) in tries.items():
            batch = await client.payouts.propose(lines, name="x", by="Asha")
            with pytest.raises(LimitExceeded, match=said) as raised:
                await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
            assert raised.value.limit == limit and (await client.payouts.get(batch.id)).state == "proposed"
        assert await client.payments.list() == []
        for _ in range(2):  # the second one has the payments of the first
            await approved(client, rows(1_000, 1_000))
        assert await exceeds(client, 5, 1_000 - 1 + 2) == ("per_payment", 1_000)
        await pay(client, 5, 600)
        assert await exceeds(client, 6, 401) == ("per_day", 400)
        await dispatch(client, 10)
    assert sent(world) == 2_600


@pytest.mark.slow
@BOTH
async def test_a_queued_payment_that_exceeds_a_limit_waits_with_its_reason(world: World) -> None:
    """Others go on; it is sent once older ones are a day old. A full queue does not stop itself."""
    async with world.client(disbursement_limits=LIMITS) as client:
        order: dict[str, Any] = {"type": "disbursement", "amount": 800}
        for each in range(5):
            await client.payments.enqueue(**order, phone_number=number(each), idempotency_key=f"k{each}")
        await client.payments.enqueue(
            **{**order, "amount": 1_001}, phone_number=number(9), idempotency_key="big", priority=5
        )
        async with client.dispatcher(per_minute=600) as dispatcher:
            await anyio.sleep(60)
            assert sent(world) == 2_400 and "per_day" in str(dispatcher.stats.paused)
            waiting = await client.payments.list(PaymentState.QUEUED)
            # Each begins with its time.
            said = {each.key: str(each.reason).partition(" UTC, ")[2] for each in waiting if each.reason}
            assert {key: reason.split(" of the ")[0] for key, reason in said.items()} == {
                "big": "a disbursement of 1,001 TZS exceeds per_payment",
                **dict.fromkeys(("k3", "k4"), "a disbursement of 800 TZS exceeds per_day"),
            }
            assert {each.key for each in await client.payments.unresolved()} == said.keys()
        await anyio.sleep(DAY)
        await dispatch(client, 10, per_minute=600)
    assert sent(world) == 4_000


async def test_of_a_queue_what_was_there_before_counts(sqlite_file_url: str) -> None:
    """Payouts that are queued, and then made at once, go as far as the limit reaches; a new one waits for the queue."""
    world = make_world(sqlite_file_url)
    enough = DisbursementLimits(per_day=3_000)
    async with world.client(disbursement_limits=enough) as client:
        for last in range(1, 5):
            await client.payments.enqueue(
                type="disbursement", phone_number=number(last), amount=1_000, idempotency_key=f"out-{last}"
            )
            await anyio.sleep(1)
        with pytest.raises(LimitExceeded):
            await pay(client, 5, 100)
        for last in (3, 1, 2):
            await pay(client, last, 1_000, idempotency_key=f"out-{last}")
        with pytest.raises(LimitExceeded):
            await pay(client, 4, 1_000, idempotency_key="out-4")
    assert sent(world) == 3_000


@pytest.mark.slow
@BOTH
async def test_each_merchant_has_its_own_limits(world: World) -> None:
    """A function of the account returns them, and one for all counts for each account alone."""

    async def secret(account: str) -> str:
        return TOKEN

    own = {"shop-1": DisbursementLimits(per_day=1_000), "shop-2": DisbursementLimits(per_day=2_000)}
    for limits, allowed in ((own.get, (1_000, 2_000, 9_000)), (DisbursementLimits(per_day=3_000), (3_000,) * 2)):
        async with Merchants(
            BASE_URL,
            store=world.url,
            auth=secret,
            transport=lambda account: world.service,
            disbursement_limits=limits,
            utcnow=world.utcnow,
        ) as merchants:
            for place, most in enumerate(allowed, 1):
                client = await merchants.client(f"shop-{place}")
                await anyio.sleep(DAY + 1)
                await pay(client, place, most)
                if most < 9_000:
                    with pytest.raises(LimitExceeded):
                        await pay(client, place, 1)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, "disbursement_limits must be one limit at least"),
        ({"per_day": 0}, "per_day must be whole TZS above 0"),
        ({"per_payment": 1.5}, "per_payment must be whole TZS"),
        ({"per_payment": Decimal("NaN")}, "per_payment must be whole TZS"),
        ({"per_recipient_a_day": "15,000"}, "per_recipient_a_day must be whole TZS"),
        ({"per_day": 10**15 + 1}, "per_day must be .* at most 1,000,000,000,000,000"),
    ],
)
def test_wrong_limits_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        DisbursementLimits(**limits)
    with pytest.raises(InvalidRequest, match="disbursement_limits must be a DisbursementLimits or None"):
        AsyncClient("https://x.example/v1", auth="t", disbursement_limits=limits)  # type: ignore[arg-type]


def test_limits_are_amounts() -> None:
    """As those of a payment: an int, a Decimal or digits."""
    limits = DisbursementLimits(per_payment="5000.00", per_day=Decimal(7))
    assert limits == DisbursementLimits(per_payment=5_000, per_recipient_a_day=None, per_day=7)


async def test_an_earlier_attempt_of_a_line_does_not_count_beside_it(sqlite_file_url: str) -> None:
    """A payment that was refused without a code may be a line of a batch: it is paid once, whichever attempt did."""
    world = make_world(sqlite_file_url)
    async with world.client(disbursement_limits=LIMITS, retry=ONCE) as client:
        world.service.answer_create = lambda request, payment: error(400, "SOME_LIMIT")
        with pytest.raises(MobileMoneyError):
            await pay(client, 1, 900, idempotency_key="k1")
        file = f"phone_number,amount,key\n{number(1)},900,k1\n"
        batch = await client.payouts.propose(file, name="x", by="Asha")
        assert batch.exceeds is None
        approved = await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        assert approved.states == {"QUEUED": 1}
        more = await client.payouts.propose(file.replace("k1", "k2"), name="x", by="Asha")
        assert more.exceeds is not None
        assert "600 TZS are left" in more.exceeds
