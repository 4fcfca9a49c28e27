"""Many lookups side by side: values as they arrive, errors among them, and nothing sent for a reader that has left."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

from mobilemoney_async import (
    AsyncClient,
    ConnectionFailed,
    InvalidRequest,
    Lookup,
    MobileMoneyError,
    RateLimiter,
    RetryPolicy,
    Secret,
    ServerError,
    TransactionNotFound,
    TransportError,
)
from mobilemoney_async.testing import run_virtual
from tests.support.fakes import Sent, Step, connect, found, refusal
from tests.support.server import Response

ONCE = RetryPolicy(max_attempts=1)


def ids(count: int) -> list[str]:
    return [f"t-{number}" for number in range(count)]


async def slowly(sent: Sent) -> Step:
    """Answer the lookup of `t-<n>` after n seconds."""
    await anyio.sleep(float(sent.url.path.rpartition("-")[2]))
    return found(sent)


async def test_each_id_is_looked_up_and_named() -> None:
    """Every lookup holds the id that it is for, and its transaction."""
    async with connect(found) as (client, service):
        lookups = [lookup async for lookup in client.transactions.get_many(ids(25))]
    assert sorted(lookup.transaction_id for lookup in lookups) == sorted(ids(25))
    for lookup in lookups:
        assert lookup.transaction is not None
        assert lookup.transaction.id == lookup.transaction_id
        assert lookup.error is None
    assert len(service.sent) == 25


async def test_they_come_in_order_of_arrival() -> None:
    """A slow lookup does not hold up the others."""
    async with connect(slowly) as (client, _):
        start = anyio.current_time()
        arrived = [
            (lookup.transaction_id, anyio.current_time() - start)
            async for lookup in client.transactions.get_many(["t-5", "t-1", "t-3"])
        ]
    assert [name for name, _ in arrived] == ["t-1", "t-3", "t-5"]
    assert [at for _, at in arrived] == pytest.approx([1, 3, 5])


async def test_errors_are_values() -> None:
    """One lookup that fails does not end the others."""

    async def handler(sent: Sent) -> Step:
        match sent.id:
            case "missing":
                return refusal("TRANSACTION_NOT_FOUND", 404)
            case "broken":
                return Response(502, b"<html>")
            case "lost":
                raise httpx.ConnectError("refused")
            case _:
                return found(sent)

    async with connect(handler, retry=ONCE) as (client, _):
        wanted = ["missing", "t-1", "broken", "lost", "t-2"]
        lookups = {lookup.transaction_id: lookup async for lookup in client.transactions.get_many(wanted)}
    assert {name: type(lookup.error) for name, lookup in lookups.items()} == {
        "missing": TransactionNotFound,
        "broken": ServerError,
        "lost": ConnectionFailed,
        "t-1": type(None),
        "t-2": type(None),
    }
    assert all((lookup.transaction is None) is (lookup.error is not None) for lookup in lookups.values())


async def test_an_id_that_is_given_twice_is_looked_up_once() -> None:
    async with connect(found) as (client, service):
        lookups = [lookup async for lookup in client.transactions.get_many(["t-1", "t-2", "t-1"] * 3)]
    assert sorted(lookup.transaction_id for lookup in lookups) == ["t-1", "t-2"]
    assert len(service.sent) == 2


async def test_no_ids_are_no_lookups() -> None:
    async with connect(found) as (client, service):
        assert [lookup async for lookup in client.transactions.get_many([])] == []
    assert service.sent == []


async def test_at_most_ten_are_on_their_way() -> None:
    """As many as the contract's burst: more would only queue in the limiter."""

    async def handler(sent: Sent) -> Step:
        await anyio.sleep(1)
        return found(sent)

    async with connect(handler) as (client, service):
        start = anyio.current_time()
        count = len([lookup async for lookup in client.transactions.get_many(ids(35))])
        assert anyio.current_time() - start == pytest.approx(4)
    assert count == 35
    assert service.most == 10


async def test_the_contract_s_limit_is_kept() -> None:
    """Under the default limiter 100 lookups are never rejected, and go at the full rate."""
    async with connect(found, rate_limiter=RateLimiter()) as (client, service):
        assert len([lookup async for lookup in client.transactions.get_many(ids(100))]) == 100
    for first, second in zip(service.times, service.times[60:], strict=False):
        assert second - first >= 60
    assert service.times[-1] - service.times[0] < 105


async def test_nothing_is_sent_before_somebody_reads() -> None:
    async with connect(found) as (client, service):
        lookups = client.transactions.get_many(ids(5))
        await anyio.sleep(10)
        assert service.sent == []
        assert isinstance(await anext(lookups), Lookup)


async def test_a_reader_that_stops_stops_the_sending() -> None:
    """After a `break` the requests on their way end by themselves, and the rest is never sent."""
    async with connect(slowly) as (client, service):
        async for lookup in client.transactions.get_many(ids(50)):
            if lookup.transaction_id == "t-3":
                break
        sent = len(service.sent)
        assert sent <= 13
        await anyio.sleep(100)
        assert len(service.sent) == sent
        assert service.flying == 0
        assert (await client.transactions.get("t-0")).id == "t-0"


async def test_it_may_be_closed() -> None:
    """`contextlib.aclosing` works, and sends nothing more."""
    async with connect(slowly) as (client, service):
        lookups: Any = client.transactions.get_many(ids(50))
        await anext(lookups)
        await lookups.aclose()
        assert len([lookup async for lookup in lookups]) == 9  # those on their way
    assert len(service.sent) == 10


async def test_a_cancelled_reader_may_go_on() -> None:
    """A lookup that arrives after its reader was cancelled waits for the next reader."""
    async with connect(slowly) as (client, service):
        lookups = client.transactions.get_many(["t-2", "t-4"])
        with anyio.move_on_after(1) as scope:
            await anext(lookups)
        assert scope.cancelled_caught
        await anyio.sleep(10)
        rest = [lookup.transaction_id async for lookup in lookups]
    assert sorted(rest) == ["t-2", "t-4"]
    assert len(service.sent) == 2


@pytest.mark.parametrize(("steps", "sent"), [(2, 2), (30, 12)])
def test_tasks_that_the_program_cancels_lose_no_id(steps: int, sent: int) -> None:
    """One that cancels all others, as some do at their end, may go on to read: before they begin, and under way."""

    async def main() -> None:
        async with connect(slowly) as (client, service):
            reader = asyncio.create_task(read(client))
            for _ in range(steps):
                await asyncio.sleep(0)
            others = asyncio.all_tasks() - {reader, asyncio.current_task()}
            assert len(others) == 10
            for task in others:
                task.cancel()
            errors = await reader
            assert sorted(errors) == sorted(ids(12))
            assert [type(each) for each in errors.values() if each is not None] == [TransportError] * 10
            assert len(service.sent) == sent

    async def read(client: AsyncClient) -> dict[str, MobileMoneyError | None]:
        return {each.transaction_id: each.error async for each in client.transactions.get_many(ids(12))}

    run_virtual(main)


class Vault:
    """A caller's own token source, which fails on its second call."""

    def __init__(self, failures: Iterator[Exception | None]) -> None:
        self.failures = failures

    async def token(self, login: object) -> str:
        if failure := next(self.failures):
            raise failure
        return "token"

    def rejected(self, token: Secret, *, replacement: bool) -> None: ...


async def test_a_failure_of_the_caller_s_own_token_source_is_a_value() -> None:
    """It is the error of the lookups that got no token; the others are kept."""
    source = Vault(itertools.chain([None, None], itertools.repeat(OSError("the vault is sealed"))))
    async with connect(found, auth=source) as (client, service):
        errors = [lookup.error async for lookup in client.transactions.get_many(ids(3)) if lookup.error is not None]
    assert [type(error) for error in errors] == [TransportError] * (3 - len(service.sent))
    assert all(isinstance(error.__cause__, OSError) for error in errors)
    assert errors


@pytest.mark.parametrize("wanted", ["t-1", b"t-1", None, 5, ["t-1", ""], ["t-1", ".."], ["t-1", None], [["t-1"]]])
async def test_all_ids_are_checked_before_the_first_is_sent(wanted: Any) -> None:
    """A single str is not an iterable of ids, and one blank id sends nothing at all."""
    async with connect(found) as (client, service):
        with pytest.raises(InvalidRequest) as caught:
            client.transactions.get_many(wanted)
        assert caught.value.argument == "ids"
        await anyio.sleep(1)
    assert service.sent == []


async def test_a_generator_of_ids_will_do() -> None:
    async with connect(found) as (client, _):
        lookups = client.transactions.get_many(f"t-{number}" for number in range(3))
        assert len([lookup async for lookup in lookups]) == 3


async def test_a_client_closed_meanwhile_gives_errors_as_values() -> None:
    """If the client is closed under a running loop, the loop ends; it does not hang."""
    async with connect(found) as (client, service):
        outcomes: list[Lookup] = []
        async for lookup in client.transactions.get_many(ids(30)):
            outcomes.append(lookup)
            await client.aclose()
    assert len(outcomes) == 30
    closed = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert all(isinstance(each, InvalidRequest) for each in closed)
    assert len(closed) == 30 - len(service.sent)
