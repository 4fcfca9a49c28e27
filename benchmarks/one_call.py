"""CPU of the client process for one call, one at a time, over loopback."""

from __future__ import annotations

from benchmarks import peers
from benchmarks.common import MICRO, Row, at_most, event_loop, interleave, repeated_async, size
from benchmarks.loopback import serving

_ROUNDS, _CALLS = size((25, 150), (1, 2))
_PEERS = ("openai", "stripe", "anthropic")


def run() -> list[Row]:
    """Compare one lookup through our client with bare httpx and with other services' clients."""
    with serving(peers.BODIES) as addresses, event_loop() as (runner, closing):
        calls = {
            "ours": peers.ours(addresses, closing),
            "bare": peers.bare(addresses, closing),
            "openai": peers.openai_(addresses, closing),
            "stripe": peers.stripe_(addresses, closing),
            "anthropic": peers.anthropic_(addresses, closing),
        }
        contestants = {name: repeated_async(runner, call, _CALLS) for name, call in calls.items()}
        figures = interleave(contestants, _ROUNDS)

    case, cost = "CPU of one call, one at a time", f"{figures.cost('ours') * MICRO:.0f} µs"
    against = f"bare httpx with the same decode, {figures.cost('bare') * MICRO:.0f} µs"
    best = min(_PEERS, key=figures.cost)
    others = ", ".join(f"{name} {figures.cost(name) * MICRO:.0f} µs" for name in _PEERS)
    return [
        Row(case, cost, against, "at most 0.92x", *at_most(figures.ratio("ours", "bare"), 0.92)),
        Row(case, cost, f"the best of {others}", "at most 0.8x", *at_most(figures.ratio("ours", best), 0.8)),
    ]
