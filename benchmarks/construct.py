"""Constructing the second client of a process, CPU time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx

from benchmarks.common import MICRO, Row, at_most, interleave, repeated, repeated_async, size
from mobilemoney_async import AsyncClient, ConnectionFailed, RetryPolicy

_ROUNDS = size(25, 1)
_REFUSED = "https://127.0.0.1:1"


def _ours() -> AsyncClient:
    return AsyncClient(f"{_REFUSED}/v1", auth="benchmark-token", retry=RetryPolicy(max_attempts=1))


async def _ours_and_call() -> None:
    async with _ours() as client:
        with suppress(ConnectionFailed):
            await client.transactions.get("txn_1")


async def _httpx_and_call() -> None:
    async with httpx.AsyncClient() as client:
        with suppress(httpx.ConnectError):
            await client.get(f"{_REFUSED}/v1/payment-service/transaction/txn_1")


def run() -> list[Row]:
    """Compare constructing a client, and constructing one and connecting with it, to httpx's."""
    with asyncio.Runner() as runner:
        figures = interleave(
            {
                "ours": repeated(_ours, 200),
                "httpx": repeated(httpx.AsyncClient, 2),
                "ours, called": repeated_async(runner, _ours_and_call, 20),
                "httpx, called": repeated_async(runner, _httpx_and_call, 2),
            },
            _ROUNDS,
        )
    return [
        Row(
            case,
            f"{figures.cost(mine) * MICRO:,.0f} µs",
            f"{against}, {figures.cost(theirs) * MICRO:,.0f} µs",
            "at most 0.1x",
            *at_most(figures.ratio(mine, theirs), 0.1),
        )
        for case, mine, against, theirs in (
            ("construct the second client of a process", "ours", "`httpx.AsyncClient()`", "httpx"),
            ("the same and its first connection, refused", "ours, called", "the same with httpx", "httpx, called"),
        )
    ]
