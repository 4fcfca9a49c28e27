"""What became of payments, handed to whoever reads.

Outcomes form a chain, each with a link to the next. A reader holds the link it has come to, and the chain the one that
nobody has read beyond, so that what everybody has read is freed by itself, and what nobody has read yet waits for the
next reader.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Self

import anyio
import anyio.lowlevel
import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import MobileMoneyError

UNREAD = 10_000
"""How many outcomes wait for a reader at most, where nobody reads; beyond it the oldest are dropped."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of one payment that was followed.

    Attributes:
        transaction_id: Which.
        transaction: In its final state, whichever that is: look at ``succeeded``. None where it was not reached.
        error: Why it was not: `WaitTimeout` with the transaction as last seen, `TransactionNotFound` or
            `InvalidTransactionId`. Otherwise None.
    """

    transaction_id: str
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None


class _Link:
    """One outcome, once it is there."""

    __slots__ = ("next", "number", "outcome")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.outcome: Outcome | None = None
        self.next: _Link | None = None


class Outcomes:
    """All outcomes in their order, from the first that nobody has read.

    Args:
        is_idle: Whether nothing is pending.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._end = self._frontier = _Link(0)
        self._news = anyio.Event()
        self._is_closed = False

    def add(self, outcome: Outcome) -> None:
        """Hand on an outcome."""
        link = self._end
        link.outcome = outcome
        self._end = link.next = _Link(link.number + 1)
        if self._end.number - self._frontier.number > UNREAD and self._frontier.next is not None:
            self._frontier = self._frontier.next
        self.wake()

    def close(self) -> None:
        """Let the readers end once they have read everything."""
        self._is_closed = True
        self.wake()

    def wake(self) -> None:
        """Let the readers look whether anything is left to wait for."""
        self._news.set()
        self._news = anyio.Event()

    def read(self, *, forever: bool) -> AsyncIterator[Outcome]:
        """Return a reader, which begins with the first outcome that nobody has read."""
        return _Reader(self, self._frontier, forever=forever)

    async def after(self, link: _Link, *, forever: bool) -> _Link | None:
        """Return the link after one whose outcome is there, waiting for it; None where there will be none."""
        while link.next is None:
            if self._is_closed or (self._is_idle() and not forever):
                return None
            await self._news.wait()
        if link.next.number > self._frontier.number:
            self._frontier = link.next
        return link.next


class _Reader:
    def __init__(self, outcomes: Outcomes, link: _Link, *, forever: bool) -> None:
        self._outcomes = outcomes
        self._link = link
        self._forever = forever

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        await anyio.lowlevel.checkpoint()
        after = await self._outcomes.after(self._link, forever=self._forever)
        if after is None:
            raise StopAsyncIteration
        outcome, self._link = self._link.outcome, after
        assert outcome is not None
        return outcome
