"""Which callbacks a merchant's URL gets, and when: pure decisions, which `callback_sender` carries out.

The contract says that status changes are reported by callback, and shows neither payload nor signature nor retries
(section 6). When one is sent, how often and with which body is the sandbox's own invention.
"""

import enum
import heapq
import itertools

import attrs

from mobilemoney_async.sandbox.messages import encode
from mobilemoney_async.sandbox.payments import Payment

LATE_BY = 30.0
"""Seconds of the service's time, whatever the sandbox's speed."""


class CallbackMode(enum.StrEnum):
    """When, and how often, a status change is reported."""

    ONCE = "once"
    TWICE = "twice"
    """The same callback comes a second time, as from a service that saw no answer to the first."""
    LATE = "late"
    """`LATE_BY` seconds of the service's time after the change."""
    BEFORE_ANSWER = "before-answer"
    """A new transaction is reported too, before the request that made it is answered; changes as with `ONCE`."""


class CallbackKind(enum.StrEnum):
    """What a callback reports."""

    CREATED = "created"
    CHANGED = "changed"
    REPEATED = "repeated"
    FORGED = "forged"


@attrs.define(eq=False, kw_only=True)
class Callback:
    """One callback to send.

    Args:
        url: Where to.
        transaction_id: Of which transaction; made up if it is forged.
        kind: What it reports.
        body: JSON.
        due_at: When, seconds of the service's time since the sandbox's start.
    """

    url: str = attrs.field(repr=False)
    transaction_id: str
    kind: CallbackKind
    body: bytes = attrs.field(repr=False)
    due_at: float


class CallbackQueue:
    """The callbacks that wait to be sent.

    Attributes:
        url: Where status changes are reported; None for nowhere.
        mode: How.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.mode: CallbackMode = CallbackMode.ONCE
        self._waiting: list[tuple[float, int, Callback]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def configure(self, url: str | None, mode: CallbackMode) -> None:
        """Report what happens from now on there; with None, forget what waits too."""
        self.url, self.mode = url, mode
        if url is None:
            self._waiting.clear()

    def report(self, payment: Payment) -> list[Callback]:
        """Say which callbacks a new transaction, or one that changed its state, gives rise to."""
        if self.url is None:
            return []
        at = payment.created_at if payment.ended_at is None else payment.ended_at
        kinds = [CallbackKind.CHANGED]
        if payment.ended_at is None:
            kinds = [CallbackKind.CREATED] if self.mode is CallbackMode.BEFORE_ANSWER else []
        elif self.mode is CallbackMode.TWICE:
            kinds.append(CallbackKind.REPEATED)
        elif self.mode is CallbackMode.LATE:
            at += LATE_BY
        body = _body(payment.id, payment.reference, payment.status)
        return [Callback(url=self.url, transaction_id=payment.id, kind=kind, body=body, due_at=at) for kind in kinds]

    def add(self, callback: Callback) -> None:
        """Let it wait until it is due."""
        heapq.heappush(self._waiting, (callback.due_at, next(self._numbers), callback))

    def next_due(self) -> float | None:
        """Say when the next is due, seconds since the sandbox's start; None if none waits."""
        return self._waiting[0][0] if self._waiting else None

    def take_due(self, now: float) -> list[Callback]:
        """Take out those that are due by now, in order."""
        due = []
        while self._waiting and self._waiting[0][0] <= now:
            due.append(heapq.heappop(self._waiting)[2])
        return due


def forged(url: str, *, transaction_id: str, reference: str, now: float) -> Callback:
    """Make a callback that claims the success of a transaction which nobody ever made."""
    body = _body(transaction_id, reference, "SUCCESS")
    return Callback(url=url, transaction_id=transaction_id, kind=CallbackKind.FORGED, body=body, due_at=now)


def _body(transaction_id: str, reference: str, status: str) -> bytes:
    return encode({"transaction_id": transaction_id, "reference": reference, "status": str(status)})
