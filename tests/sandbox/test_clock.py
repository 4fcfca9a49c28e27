"""Clock of the sandbox: two hands, one of which can be sped up, slowed down or stopped."""

from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async.sandbox import Choices, Sandbox
from mobilemoney_async.sandbox.behaviour import RateLimitReading
from mobilemoney_async.sandbox.clock import FASTEST, Clock
from mobilemoney_async.sandbox.faults import html_page
from mobilemoney_async.testing import run_virtual
from tests.sandbox.service import ORDINARY, START, SUCCEEDS, Service, http
from tests.support.scale import examples


async def test_the_services_time_runs_at_the_chosen_rate() -> None:
    """Rate 1 is normal, 20 is twenty times as fast, 0 is paused, and no change of the rate makes time jump."""
    sandbox = Sandbox(now=START)
    passed = 0.0
    assert sandbox.clock_rate == 1
    for rate in (1, 20, 0, 0.5, FASTEST, 1):
        sandbox.run_clock(rate)
        assert sandbox.clock_rate == rate
        assert (sandbox.now - START).total_seconds() == pytest.approx(passed)
        await anyio.sleep(10)
        passed += 10 * rate
        assert (sandbox.now - START).total_seconds() == pytest.approx(passed)


@pytest.mark.parametrize("rate", [-1, -0.001, 1000.1, float("nan"), float("inf"), True, "5", None])
def test_a_rate_out_of_range_is_refused(rate: Any) -> None:
    sandbox = Sandbox()
    sandbox.run_clock(5)
    with pytest.raises(ValueError, match=r"rate must be a number from 0 \(paused\) to 1000"):
        sandbox.run_clock(rate)
    assert sandbox.clock_rate == 5


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_jump_is_a_number_of_seconds_ahead(seconds: float) -> None:
    sandbox = Sandbox(now=START)
    with pytest.raises(ValueError, match="seconds must be a number"):
        sandbox.advance(seconds)
    assert sandbox.now == START


async def test_a_jump_is_the_same_at_every_rate() -> None:
    sandbox = Sandbox(now=START)
    for rate in (0, 20):
        sandbox.run_clock(rate)
        before = sandbox.now
        sandbox.advance(3600)
        assert sandbox.now - before == timedelta(hours=1)


Moves = st.lists(
    st.tuples(st.sampled_from(["sleep", "run", "advance"]), st.floats(0, 1000, allow_subnormal=False)), max_size=12
)


@given(Moves)
@settings(max_examples=examples(50))
def test_neither_hand_ever_goes_back(moves: list[tuple[str, float]]) -> None:
    """After any sequence of changes, service time is the sum of the real times multiplied by their rates."""

    async def live() -> None:
        clock = Clock(START)
        service = unscaled = 0.0
        for move, amount in moves:
            before = clock.seconds(), clock.unscaled_seconds()
            if move == "sleep":
                await anyio.sleep(amount)
                service, unscaled = service + amount * clock.rate, unscaled + amount
            elif move == "run":
                clock.run(amount)
            else:
                clock.advance(amount)
                service, unscaled = service + amount, unscaled + amount
            assert clock.seconds() >= before[0]
            assert clock.unscaled_seconds() >= before[1]
            assert clock.seconds() == pytest.approx(service, abs=1e-6)
            assert clock.unscaled_seconds() == pytest.approx(unscaled, abs=1e-6)

    run_virtual(live)


def test_how_long_it_is_until_then() -> None:
    clock = Clock(START)
    assert clock.unscaled_until(10) == 10
    clock.run(20)
    assert clock.unscaled_until(10) == 0.5
    clock.run(0)
    assert clock.unscaled_until(10) == float("inf")
    assert clock.unscaled_until(0) == 0


def test_a_pause_lasts_from_one_event_loop_to_the_next() -> None:
    """Between two loops the clock follows the computer's, as far as its rate lets it."""
    clock = Clock()
    clock.run(0)

    async def read() -> float:
        clock.seconds()
        await anyio.sleep(100)
        return clock.seconds()

    first = run_virtual(read)
    assert run_virtual(read) == first
    clock.run(1)
    assert run_virtual(read) >= first + 99.9


async def test_pending_payments_follow_it() -> None:
    """A payment stays open while the clock is paused, and ends early while it runs fast."""
    sandbox = Sandbox(now=START)
    sandbox.run_clock(0)
    async with sandbox.client() as client:
        prompt = await client.collections.create(phone_number=SUCCEEDS, amount=1000)
        await anyio.sleep(7200)
        assert not sandbox.transactions[prompt.transaction_id].ended_at
        sandbox.run_clock(100)
        await anyio.sleep(0.06)
        payment = await client.transactions.get(prompt.transaction_id)
        assert (payment.succeeded, payment.created_at) == (True, START)
    assert payment.completed_at == START + timedelta(seconds=5)


async def test_lifetimes_follow_it() -> None:
    """A login token outlives any pause, and its hour is over early while the clock runs fast."""
    sandbox = Sandbox(now=START)
    sandbox.run_clock(0)
    async with http(sandbox) as client:
        login = await client.post("/user-service/login", json={"email": sandbox.email, "password": sandbox.password})
        client.headers["Authorization"] = f"Bearer {login.json()['access_token']}"
        await anyio.sleep(7200)
        assert (await client.get("/user-service/profile")).status_code == 200
        sandbox.run_clock(100)
        await anyio.sleep(37)
        assert (await client.get("/user-service/profile")).json()["error"] == "token_expired"


async def test_every_answer_shows_it() -> None:
    """The Date header, also of refusals and faults, follows the service's clock, as `created_at` does."""
    sandbox = Sandbox(now=START)
    async with http(sandbox) as client:
        assert (await client.get("/user-service/profile")).headers["date"] == format_datetime(START, usegmt=True)
        sandbox.advance(3600)
        sandbox.script(html_page())
        later = format_datetime(START + timedelta(hours=1), usegmt=True)
        assert (await client.get("/user-service/profile")).headers["date"] == later


@pytest.mark.parametrize("rate", [0, 0.01, 1000])
async def test_a_clients_own_limit_stays_right_whatever_the_clock_does(rate: float) -> None:
    """The request limit is counted by the time that a client measures too: none is rejected that kept to it."""
    sandbox = Sandbox(now=START)
    async with sandbox.client() as client:
        for number in range(90):
            if number == 5:
                sandbox.run_clock(rate)
            await client.users.profile()
    assert (sandbox.requests.total, sandbox.requests.rejections) == (90, 0)


def test_the_lock_after_refused_logins_lasts_as_long_as_it_says() -> None:
    """`retry_after` is in the client's seconds, so the lock ends by them too."""
    service = Service(choices=Choices(rate_limit=None, failed_logins_before_lock=1, lock_seconds=30))
    service.unscaled_now = 0.0
    assert service.login(password="wrong").status == 401
    service.now = 1000.0
    assert service.login().json["retry_after"] == 30
    service.unscaled_now = 30.0
    assert service.login().status == 200


async def test_the_rest_of_the_limit_can_be_read() -> None:
    sandbox = Sandbox(now=START, speed=2)
    full = sandbox.rate_budget()
    assert (full.bucket_left, full.window_used, full.next_in) == (10, 0, 0)
    assert (full.burst, full.per_window, full.window_seconds) == (10, 60, 30)
    async with sandbox.client() as client:
        for _ in range(10):
            await client.users.profile()
    sandbox.run_clock(0)
    await anyio.sleep(0.25)
    used = sandbox.rate_budget()
    assert 0 <= used.bucket_left < 1
    assert used.window_used == 10
    assert used.next_in == pytest.approx((1 - used.bucket_left) / 2)
    await anyio.sleep(30)
    assert sandbox.rate_budget() == full


@pytest.mark.parametrize(("reading", "used", "next_in"), [("fixed", 1, 0), ("window", 2, 0), (None, 2, 0)])
def test_the_budget_is_that_of_the_reading_in_force(
    reading: RateLimitReading | None, used: int, next_in: float
) -> None:
    service = Service(choices=Choices(rate_limit=reading))
    for at in (59.0, 61.0):
        service.now = at
        service.collect(ORDINARY)
    budget = service.engine.rate_budget(service.account, 62.0)
    assert (budget.window_used, budget.next_in) == (used, next_in)
    assert service.engine.rate_budget(service.account, 121.0).window_used == 0
