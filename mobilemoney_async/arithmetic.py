"""Exact arithmetic of amounts, whatever decimal context the caller's thread has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Context, DivisionByZero, InvalidOperation, Overflow, localcontext
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# An amount of an answer has 39 digits at most.
_EXACT = Context(prec=200, traps=[DivisionByZero, InvalidOperation, Overflow])


def exactly(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that computes with amounts, and neither awaits nor calls the caller's code."""

    @functools.wraps(function)
    def compute(*args: P.args, **kwargs: P.kwargs) -> T:
        with localcontext(_EXACT):
            return function(*args, **kwargs)

    return compute
