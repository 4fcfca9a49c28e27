"""Requests that the plan may choose, and what comes of them, as values."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.errors import MobileMoneyError, WaitTimeout
from mobilemoney_async.polling.pending import Pending


@attrs.frozen
class Page:
    """Ask for a page of the list.

    Attributes:
        number: From 1.
        status: The state whose payments it lists, None for all.
    """

    number: int
    status: TransactionStatus | None = None


@attrs.frozen
class ById:
    """Ask for one payment."""

    transaction_id: str


Request: TypeAlias = Page | ById


@attrs.frozen(kw_only=True)
class Ending:
    """How the following of one payment ended.

    Attributes:
        transaction_id: Which.
        transaction: In its final state, or None.
        error: Why there is none, or None.
        lag: How late the news is, an estimate in seconds; None where nothing is known.
    """

    transaction_id: str
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None
    lag: float | None = None


@attrs.define(eq=False)
class Asked:
    """A request that is on its way.

    Attributes:
        request: What was asked.
        at: When, monotonic seconds.
        expected: The payments that the answer should show.
        before: When those of them fell due whose look this is, and how many looks they had had.
    """

    request: Request
    at: float
    expected: list[Pending]
    before: dict[Pending, tuple[float, int]]


def timed_out(payment: Pending, now: float) -> WaitTimeout:
    """Return the error with which the following of a payment ends at its deadline."""
    state = "not seen" if payment.transaction is None else str(payment.transaction.status)
    return WaitTimeout(
        f"not final after {round(now - payment.tracked_at, 1):g} s: {state}",
        transaction_id=payment.id,
        transaction=payment.transaction,
    )
