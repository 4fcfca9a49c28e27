"""The promise of the whole: under any faults, one create moves money once at most, and no report says otherwise."""

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    Transaction,
)
from mobilemoney_async.sandbox import Choices, Fault, Sandbox, faults
from tests.calls.ways import WAYS, connect

ORDERS = 150
FAULTS: list[Fault] = [
    faults.refused(),
    faults.drop(processed=False),
    faults.drop(processed=True),
    faults.drop(processed=True, reset=True),
    faults.lost(processed=True),
    faults.lost(processed=False),
    faults.server_error(500, processed=True),
    faults.server_error(503, processed=False),
    faults.html_page(502),
    faults.html_page(504, processed=True),
    faults.empty_body(),
    faults.truncated(),
    faults.rate_limited(2),
    faults.token_expired(),
    faults.unknown_fields(),
    faults.unknown_status(),
    faults.nulls(),
]


def faulty_sandbox(seed: int, **choices: Any) -> Sandbox:
    """Return a service on which a third of all requests meets a fault."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    sandbox = Sandbox(seed=seed, balance=10**9, now=now, choices=Choices(latency=0.05, **choices))
    for fault in FAULTS:
        sandbox.script(fault, probability=0.02)
    return sandbox


async def place_orders(client: AsyncClient, sandbox: Sandbox, seed: int, *, count: int = ORDERS, least: int) -> None:
    """Pay many orders at once, and hold the service's book against each answer; more than `least` are accepted."""
    dice = random.Random(seed)
    answers: dict[int, Acknowledgement | MobileMoneyError] = {}

    async def order(number: int) -> None:
        creates = dice.choice([client.collections, client.disbursements])
        try:
            # The amount names the order, so that the service's book can be held against the answers.
            answers[number] = await creates.create(phone_number=f"+2556812340{number % 20:02d}", amount=1_000 + number)
        except MobileMoneyError as exc:
            answers[number] = exc

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(order, number)

    booked = Counter(int(payment.amount) - 1_000 for payment in sandbox.transactions.values())
    assert len(answers) == count
    assert max(booked.values()) == 1, "a payment was sent twice"
    for number, answer in answers.items():
        if isinstance(answer, Acknowledgement):
            assert sandbox.transactions[answer.transaction_id].amount == str(1_000 + number)
        elif not isinstance(answer, OutcomeUnknown):
            assert answer.outcome in {"not_sent", "refused"}
            assert booked[number] == 0, f"{answer!r} hides a payment"
    kinds = Counter(type(answer) for answer in answers.values())
    assert kinds[Acknowledgement] > least
    assert kinds[OutcomeUnknown] > 0
    assert sandbox.requests.rejections == 0


@pytest.mark.parametrize("seed", range(3))
async def test_every_order_moves_money_once_at_most(seed: int) -> None:
    """Each create ends as accepted, refused, not sent or unknown, and the service's book agrees with each answer."""
    sandbox = faulty_sandbox(seed)
    async with sandbox.client(auth=LoginAuth(sandbox.email, sandbox.password), timeout=5) as client:
        await place_orders(client, sandbox, seed, least=ORDERS // 2)


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize(
    ("anyio_backend", "way"),
    [(loop, way) for loop in ("asyncio", "trio") for way in WAYS if (loop, way) != ("trio", "aiohttp")],
    indirect=["anyio_backend"],
)
async def test_every_order_moves_money_once_at_most_over_each_wire(way: str) -> None:
    """The same over real connections, by each HTTP library, as our own pool or the caller's."""
    sandbox = faulty_sandbox(0, rate_limit=None)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(sandbox.serve()) as base_url:
        auth = LoginAuth(sandbox.email, sandbox.password)
        # A lost answer is waited for as long. On a busy machine many are late, and count as lost.
        async with connect(way, base_url, auth=auth, timeout=10) as client:  # real time: as said
            await place_orders(client, sandbox, 0, count=ORDERS // 3, least=0)


@pytest.mark.parametrize("seed", range(3))
async def test_following_survives_the_same_faults(seed: int) -> None:
    """Payments are followed to the state that the service's book shows, whatever happens to the lookups."""
    sandbox = faulty_sandbox(seed)
    finals: list[Transaction] = []

    async def follow(client: AsyncClient, transaction_id: str) -> None:
        finals.append(await client.transactions.wait(transaction_id))

    auth = LoginAuth(sandbox.email, sandbox.password)
    async with sandbox.client(auth=auth, timeout=5) as client:
        accepted: list[str] = []
        while len(accepted) < 20:
            try:
                answer = await client.collections.create(phone_number=f"+2556812340{len(accepted):02d}", amount=500)
            except MobileMoneyError:
                continue
            accepted.append(answer.transaction_id)
        async with anyio.create_task_group() as group:
            for transaction_id in accepted:
                group.start_soon(follow, client, transaction_id)

    assert sorted(final.id for final in finals) == sorted(accepted)
    for final in finals:
        assert final.is_final
        assert str(final.status) == sandbox.transactions[final.id].status


@pytest.mark.slow
async def test_at_full_use_of_the_limit_nothing_is_rejected() -> None:
    """Ten minutes of saturation use 99 % of the strictest reading of the limit, without a rejection."""
    sandbox = Sandbox(choices=Choices(latency=0.05))

    async def work(client: AsyncClient) -> None:
        while True:
            await client.users.profile()

    async with sandbox.client() as client:
        with anyio.move_on_after(600):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(work, client)
    assert sandbox.requests.rejections == 0
    assert sandbox.requests.total >= 594
