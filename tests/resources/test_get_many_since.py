"""Many lookups through pages of the history: few requests, nothing missed."""

from datetime import date, datetime
from typing import Any

import anyio
import pytest

from mobilemoney_async import InvalidRequest, RateLimiter, TransactionNotFound
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.behaviour import Choices, ListOrder


def fill(sandbox: Sandbox, count: int) -> list[str]:
    """Put payments of right now into the list."""
    for _ in range(count):
        sandbox.ask("+255681234501", "1000")
    return [*sandbox.transactions][-count:]


@pytest.mark.parametrize("order", ["newest-first", "oldest-first"])
async def test_six_hundred_of_today_cost_some_ten_requests(order: ListOrder) -> None:
    """Pages show a hundred each, and ids too old for them are looked up."""
    sandbox = Sandbox(choices=Choices(list_order=order))
    yesterday = fill(sandbox, 2)
    sandbox.advance(86_400)
    today = fill(sandbox, 600)
    async with sandbox.client() as client:
        wanted = [*today, *yesterday]
        lookups = [lookup async for lookup in client.transactions.get_many(wanted, since=sandbox.now.date())]
    assert sorted(lookup.transaction_id for lookup in lookups) == sorted(wanted)
    assert all(lookup.transaction is not None for lookup in lookups)
    assert sandbox.requests.total <= 10


async def test_a_few_of_many_are_looked_up() -> None:
    """Where pages show less than lookups would, they are left alone after the first two."""
    sandbox = Sandbox()
    ids = fill(sandbox, 3000)
    async with sandbox.client() as client:
        wanted = [ids[0], ids[500], "txn_unknown"]
        today = sandbox.now.date()
        lookups = {each.transaction_id: each async for each in client.transactions.get_many(wanted, since=today)}
    assert lookups.keys() == set(wanted)
    assert isinstance(lookups["txn_unknown"].error, TransactionNotFound)
    assert sandbox.requests.count("transactions") <= 2


async def test_a_failing_list_leaves_lookups() -> None:
    """Where the list does not work, every id is looked up."""
    sandbox = Sandbox()
    ids = fill(sandbox, 5)
    sandbox.script(faults.server_error(processed=False), on="transactions", probability=1.0)
    async with sandbox.client() as client:
        found = [each async for each in client.transactions.get_many(ids, since=sandbox.now.date())]
    assert {each.transaction_id for each in found if each.transaction} == set(ids)


async def test_a_cancelled_reader_may_ask_again() -> None:
    """A lookup that was cancelled on its way is not lost."""
    sandbox = Sandbox(choices=Choices(latency=1.0, rate_limit=None))
    ids = fill(sandbox, 150)
    async with sandbox.client(rate_limiter=RateLimiter(6000, 100)) as client:
        lookups = client.transactions.get_many(ids, since=sandbox.now.date())
        with anyio.move_on_after(0.5):
            await anext(lookups)
        found = {each.transaction_id async for each in lookups}
    assert found == set(ids)


async def test_a_reader_that_leaves_ends_it() -> None:
    """After aclose nothing more comes, before the lookups and among them."""
    sandbox = Sandbox()
    ids = fill(sandbox, 250)
    async with sandbox.client() as client:
        for since in (sandbox.now.date(), date(2999, 1, 1)):
            lookups: Any = client.transactions.get_many(ids, since=since)
            await anext(lookups)
            await lookups.aclose()
            assert len([each async for each in lookups]) <= 10


async def test_a_closed_client_is_said_so() -> None:
    """It is the caller's mistake, and not an answer."""
    sandbox = Sandbox()
    client = sandbox.client()
    lookups = client.transactions.get_many(["a", "b"], since=date(2026, 1, 1))
    await client.aclose()
    with pytest.raises(InvalidRequest):
        await anext(lookups)


async def test_since_is_a_date() -> None:
    """A datetime is refused rather than cut."""
    async with Sandbox().client() as client:
        with pytest.raises(InvalidRequest, match="not datetime") as caught:
            client.transactions.get_many(["a"], since=datetime(2026, 1, 1))  # noqa: DTZ001
        assert caught.value.argument == "since"
