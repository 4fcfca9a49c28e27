"""Calls with 50 at once, over loopback, with the limiter wide open: over httpx, and with the extra `aiohttp`."""

from __future__ import annotations

import time

from benchmarks import peers
from benchmarks.common import MICRO, Row, at_least, at_most, event_loop, interleave, repeated_async, size
from benchmarks.loopback import serving

_AT_ONCE = 50
_ROUNDS, _CALLS = size((25, 500), (1, _AT_ONCE))


def run() -> list[Row]:
    """Compare 50 lookups at once through our client with bare httpx-aiohttp and with openai's client."""
    with serving(peers.BODIES) as addresses, event_loop() as (runner, closing):
        calls = {
            "ours": peers.ours(addresses, closing, aiohttp=True),
            "bare": peers.bare(addresses, closing, aiohttp=True),
            "openai": peers.openai_(addresses, closing),
            "openai's aiohttp client": peers.openai_(addresses, closing, aiohttp=True),
        }
        contestants = {
            name: repeated_async(runner, call, _CALLS, at_once=_AT_ONCE, clock=time.perf_counter)
            for name, call in calls.items()
        }
        figures = interleave(contestants, _ROUNDS)
        over_httpx = {"ours": peers.ours(addresses, closing), "bare": peers.bare(addresses, closing)}
        cpu = interleave(
            {name: repeated_async(runner, call, _CALLS, at_once=_AT_ONCE) for name, call in over_httpx.items()}, _ROUNDS
        )

    def rate(name: str) -> str:
        return f"{1 / figures.cost(name):,.0f}/s"

    case, ours = "calls with 50 at once, `aiohttp` extra", rate("ours")
    with_aiohttp = "openai's aiohttp client"
    ratio = figures.ratio(with_aiohttp, "ours")
    return [
        Row(
            case,
            ours,
            f"bare httpx-aiohttp, {rate('bare')}",
            "at least 1.05x",
            *at_least(figures.ratio("bare", "ours"), 1.05),
        ),
        Row(case, ours, f"openai, {rate('openai')}", "at least 2.5x", *at_least(figures.ratio("openai", "ours"), 2.5)),
        Row(case, ours, f"{with_aiohttp}, {rate(with_aiohttp)}", "", f"{ratio:.2f}x"),
        Row(
            "CPU of a call with 50 at once, default transport",
            f"{cpu.cost('ours') * MICRO:.0f} µs",
            f"bare httpx, {cpu.cost('bare') * MICRO:.0f} µs",
            "at most 0.85x",
            *at_most(cpu.ratio("ours", "bare"), 0.85),
        ),
    ]
