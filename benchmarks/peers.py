"""Peer clients for the comparison, pointed to the loopback server. Each makes one call and decodes it.

Each reads a resource of its own service, with an answer in that service's shape and of about the same size, without
retries. All are asyncio clients with their own connection pool, and are closed with the given stack.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import httpx
import httpx_aiohttp
import openai
import stripe

from benchmarks.bodies import anthropic_batch, one_transaction, openai_batch, stripe_refund
from mobilemoney_async import AsyncClient, RateLimiter
from mobilemoney_async.contract.endpoints import GET_TRANSACTION

Call = Callable[[], Awaitable[Any]]

ID = "txn_1aa5148c01a8c3f5"
_TOKEN = "benchmark-token"

BODIES: Mapping[str, bytes] = {
    "service": one_transaction(),
    "openai": openai_batch(),
    "anthropic": anthropic_batch(),
    "stripe": stripe_refund(),
}
"""Answer of the loopback server to each client."""


def wide_open() -> RateLimiter:
    """Return a limiter that works as usual and lets every request pass at once."""
    return RateLimiter(per_minute=60_000_000, burst=1_000_000)


def ours(addresses: Mapping[str, str], closing: AsyncExitStack, *, aiohttp: bool = False) -> Call:
    """Return a lookup through our client, over httpx's pool or httpx-aiohttp's."""
    client = AsyncClient(
        f"{addresses['service']}/v1",
        auth=_TOKEN,
        rate_limiter=wide_open(),
        transport="aiohttp" if aiohttp else None,
    )
    closing.push_async_callback(client.aclose)
    return lambda: client.transactions.get(ID)


def bare(addresses: Mapping[str, str], closing: AsyncExitStack, *, aiohttp: bool = False) -> Call:
    """Return the same lookup through httpx and nothing else, decoded in the same way."""
    transport = httpx_aiohttp.AiohttpTransport() if aiohttp else None
    client = httpx.AsyncClient(headers={"Authorization": f"Bearer {_TOKEN}"}, timeout=30, transport=transport)
    closing.push_async_callback(client.aclose)
    url = f"{addresses['service']}/v1/payment-service/transaction/{ID}"

    async def call() -> object:
        response = await client.get(url)
        return GET_TRANSACTION.read(response.content).transaction

    return call


def openai_(addresses: Mapping[str, str], closing: AsyncExitStack, *, aiohttp: bool = False) -> Call:
    """Return openai's lookup of a batch."""
    http_client = openai.DefaultAioHttpClient() if aiohttp else None
    client = openai.AsyncOpenAI(
        api_key=_TOKEN, base_url=f"{addresses['openai']}/v1", max_retries=0, http_client=http_client
    )
    closing.push_async_callback(client.close)
    return lambda: client.batches.retrieve("batch_67f7bfc50b288190893e242d9fa93c52")


def anthropic_(addresses: Mapping[str, str], closing: AsyncExitStack) -> Call:
    """Return anthropic's lookup of a batch."""
    client = anthropic.AsyncAnthropic(api_key=_TOKEN, base_url=addresses["anthropic"], max_retries=0)
    closing.push_async_callback(client.close)
    return lambda: client.messages.batches.retrieve("msgbatch_013Zva2CMHLNnXjNJJKqJ2EF")


def stripe_(addresses: Mapping[str, str], closing: AsyncExitStack) -> Call:
    """Return stripe's lookup of a refund."""
    http_client = stripe.HTTPXClient()
    closing.push_async_callback(http_client.close_async)
    client = stripe.StripeClient(
        f"sk_test_{_TOKEN}",
        base_addresses={"api": addresses["stripe"]},
        max_network_retries=0,
        http_client=http_client,
    )
    return lambda: client.v1.refunds.retrieve_async("re_1Nispe2eZvKYlo2Cd31jOCgZ")
