"""A backend that is killed while its orders wait for the rate limit."""

from contextlib import AsyncExitStack

import anyio
import pytest

from mobilemoney_async import SQLStore
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.contrib.orders import OrderState
from mobilemoney_async.sandbox import Choices, Sandbox
from tests.support.patience import PATIENCE
from tests.support.talk import talk

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.soak,
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),  # the sandbox serves sockets there only
]

ORDERS = 4


async def test_kill_9_while_orders_wait_rings_no_phone_too_late(store_url: str) -> None:
    """Another process takes those out of the queue that have waited for too long, and sends none of them."""
    sandbox, send_within = Sandbox(choices=Choices(rate_limit=None)), 3.0
    async with AsyncExitStack() as stack:
        base_url = await stack.enter_async_context(sandbox.serve())
        arguments = (base_url, store_url, sandbox.token, str(ORDERS), str(send_within))
        process = await stack.enter_async_context(talk("tests.payments.process", "take_orders", *arguments))
        with anyio.fail_after(PATIENCE):
            said = [await process.line() for _ in range(ORDERS)]
            process.kill()
            await process.wait()
        assert said == [OrderState.PENDING, *[OrderState.SENDING] * (ORDERS - 1)]
        await anyio.sleep(send_within)  # real time: they have waited for too long then
        client = await stack.enter_async_context(sandbox.client(store=SQLStore(store_url)))
        backend = await stack.enter_async_context(Backend(client))
        with anyio.fail_after(PATIENCE):
            for number in range(1, ORDERS):
                statuses = [status async for status in backend.watch(f"order-{number}")]
                assert (statuses[-1].state, statuses[-1].reason) == (OrderState.NOT_MADE, "TOO_LATE")
    assert len(sandbox.transactions) == 1
