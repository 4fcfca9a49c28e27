"""Shrinking: a failing history with fewer orders, processes and faults, as long as it breaks the same law."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.simulation.cases import Case
from tests.simulation.history import Result, play
from tests.simulation.plan import Plan


def same_law(one: Result, other: Result) -> bool:
    """Return whether two histories break a law in common, whatever its numbers are."""
    return bool(_laws(one) & _laws(other))


def _laws(result: Result) -> set[str]:
    return {re.sub(r"t-\d+|order-\d+|[\d.]+|\[.*?\]", "", each) for each in result.broken}


def shrink(found: Result, *, most: int = 60) -> Result:
    """Return the smallest failing history that so many attempts find."""
    best, is_better = found, True
    while is_better:
        is_better = False
        for plan in _smaller(best.plan):
            most -= 1
            if most < 0:
                return best
            tried = play(plan)
            if same_law(tried, found):
                best, is_better = tried, True
                break
    return best


def timeline(result: Result) -> str:
    """Return a history that breaks a law for people: when, who and what; the laws; and how to run it again."""
    case = Case.of(result.plan)
    again = f"again: python -m tests.simulation {case.options()}\nas a test, in tests/simulation/cases.py: {case!r},"
    return "\n".join([*result.lines, *(f"BROKEN: {law}" for law in result.broken), again])


def _smaller(plan: Plan) -> Iterator[Plan]:
    if plan.rush:
        yield plan.resized(rush=0)
    for name in ("processes", "openings"):
        if getattr(plan, name) > 1:
            yield plan.resized(**{name: 1})
    for orders in (1, 2, plan.orders // 2, plan.orders - 1):
        if 0 < orders < plan.orders:
            yield plan.resized(orders=orders)
    names = list(plan.weights)
    for size in (len(names) // 2, len(names) // 4, 1):
        for start in range(0, len(names) if size else 0, max(1, size)):
            yield plan.without(*names[start : start + size])
