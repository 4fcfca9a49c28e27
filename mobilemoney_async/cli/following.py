"""Follows payments to their final states, for `collect`, `disburse` and `watch`: asks, waits, and tells a board.

Leaving off, by time-out or Ctrl-C, ends nothing but the following.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import anyio

from mobilemoney_async.cli.board import Board
from mobilemoney_async.cli.failures import say
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.errors import (
    AuthenticationError,
    InvalidTransactionId,
    MobileMoneyError,
    PermissionDenied,
    TransactionNotFound,
)
from mobilemoney_async.events import AttemptEnded, Event, TokenRenewed
from mobilemoney_async.polling.poller import Poller

# What passes is told again after so long, seconds.
_SAME_WARNING = 60.0
# So many refused requests in a row, of whichever kind, are no passing fault.
_REFUSALS = 3
_REFUSED = {"AuthenticationError", "InvalidCredentials", "InvalidToken", "TokenExpired", "PermissionDenied"}


class Refusals:
    """Notices that the service no longer accepts who we are. Give it to the client as ``on_event``.

    The poller waits faults out, and this one does not pass by itself.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._many = anyio.Event()

    def __call__(self, event: Event) -> None:
        """Take note of what the client did."""
        if isinstance(event, TokenRenewed):
            self._count(event.error, at_least=_REFUSALS)
        elif isinstance(event, AttemptEnded):
            self._count(event.error)

    async def wait(self) -> None:
        """Wait until there were many in a row, and begin to count anew."""
        await self._many.wait()
        self._in_a_row, self._many = 0, anyio.Event()

    def _count(self, error: str | None, *, at_least: int = 0) -> None:
        self._in_a_row = max(self._in_a_row + 1, at_least) if error in _REFUSED else 0
        if self._in_a_row >= _REFUSALS:
            self._many.set()


class _Warnings(logging.Handler):
    """Says the library's warnings in our lines, each once a minute."""

    def __init__(self, command: str) -> None:
        super().__init__(logging.WARNING)
        self._command = command
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.created - self._said.get(text, -math.inf) > _SAME_WARNING:
            self._said[text] = record.created
            say(self._command, text)


@contextmanager
def saying_warnings(command: str) -> Iterator[None]:
    """Say on standard error what the library waits out meanwhile.

    Args:
        command: Whose lines they are.
    """
    logger, handler = logging.getLogger("mobilemoney_async"), _Warnings(command)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def follow(
    client: AsyncClient,
    board: Board,
    *,
    refusals: Refusals,
    acknowledgement: Acknowledgement | None = None,
    is_recorded: bool,
    timeout: float | None,
) -> None:
    """Follow the payments of a board until all are final, or are not known, or the time is up.

    Passing faults are waited out.

    Args:
        client: Asks; it tells `refusals` of its events.
        board: Knows what is followed, and is told what is seen.
        refusals: Of this client.
        acknowledgement: Of the one payment on the board, where it was created just now.
        is_recorded: Whether the client has a store, which is to learn of the final states.
        timeout: Seconds in all, more than 0; None for as long as it takes.

    Raises:
        AuthenticationError: The service does not accept who we are.
        PermissionDenied: We may not look.
    """
    try:
        with anyio.move_on_after(math.inf if timeout is None else timeout):
            async with client.poller() as poller, anyio.create_task_group() as group:
                group.start_soon(_watch_refusals, client, board, refusals)
                group.start_soon(_read_outcomes, board, poller)
                if acknowledgement is None:
                    group.start_soon(_look_first, client, board, poller, is_recorded)
                else:
                    poller.track(acknowledgement)
                await board.wait_until_ended()
                group.cancel_scope.cancel()
    except ExceptionGroup as failures:
        raise _first(failures) from failures


async def _look_first(client: AsyncClient, board: Board, poller: Poller, is_recorded: bool) -> None:
    """Show how things stand, and give to the poller what is not final."""
    since = (datetime.now(UTC) - timedelta(days=1)).date()
    async for lookup in client.transactions.get_many(board.open, since=since):
        if isinstance(lookup.error, AuthenticationError | PermissionDenied):
            raise lookup.error
        if isinstance(lookup.error, InvalidTransactionId):
            board.refused(lookup.transaction_id, lookup.error)
        elif lookup.transaction is None or not lookup.transaction.is_final or is_recorded:
            # Of a final one too, the store learns by the poller.
            poller.track(lookup.transaction_id)
            if isinstance(lookup.error, TransactionNotFound):
                board.missed(lookup.transaction_id, lookup.error)
            elif lookup.transaction is not None and not lookup.transaction.is_final:
                board.saw(lookup.transaction)
        else:
            board.saw(lookup.transaction)


async def _read_outcomes(board: Board, poller: Poller) -> None:
    async for outcome in poller.outcomes(forever=True):
        if outcome.transaction is not None:
            board.saw(outcome.transaction)
        elif outcome.error is not None:
            board.refused(outcome.transaction_id, outcome.error)


async def _watch_refusals(client: AsyncClient, board: Board, refusals: Refusals) -> None:
    """Raise what the service says where it refuses request after request."""
    while True:
        await refusals.wait()
        try:
            for transaction_id in board.open[:1]:
                board.saw(await client.transactions.get(transaction_id))
        except (AuthenticationError, PermissionDenied):
            raise
        except MobileMoneyError:
            continue  # the poller goes on, and so do the refusals, if that is what they are


def _first(failure: Exception) -> Exception:
    while isinstance(failure, ExceptionGroup):
        failure = failure.exceptions[0]
    return failure
