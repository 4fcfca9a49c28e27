"""Limits of disbursements without a store: those that this process has sent in the last 24 hours."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import attrs

from mobilemoney_async.arithmetic import exactly
from mobilemoney_async.configuration.disbursement_limits import A_DAY, DisbursementLimits, require_within
from mobilemoney_async.errors import APIError, CallOutcome, MobileMoneyError
from mobilemoney_async.tasks import LoopClock


@attrs.define(eq=False)
class RecentDisbursements:
    """Disbursements of one client and its copies that may have moved money, oldest first, with their limits."""

    limits: DisbursementLimits
    sent: dict[LimitedAttempt, float] = attrs.field(factory=dict, init=False)
    _clock: LoopClock = attrs.field(factory=LoopClock, init=False)

    @exactly
    def begin(self, attempt: LimitedAttempt) -> None:
        """Count a disbursement that is about to be sent, or raise `LimitExceeded`."""
        now, amount = self._clock.now(), Decimal(attempt.amount)
        self.sent.pop(attempt, None)
        self.sent = {each: at for each, at in self.sent.items() if at > now - A_DAY.total_seconds()}
        own = (Decimal(each.amount) for each in self.sent if each.phone_number == attempt.phone_number)
        everything = (Decimal(each.amount) for each in self.sent)
        require_within(self.limits, amount, to_recipient=sum(own, Decimal(0)), in_all=sum(everything, Decimal(0)))
        self.sent[attempt] = now


@attrs.define(eq=False)
class LimitedAttempt:
    """Recorder of one disbursement, which the pipeline calls around each attempt."""

    recent: RecentDisbursements = attrs.field(repr=False)
    phone_number: str = attrs.field(repr=False)
    amount: str

    async def sending(self, lives: float) -> float:
        """Count it, or raise `LimitExceeded`."""
        self.recent.begin(self)
        return math.inf

    async def answered(self, answer: Any) -> None:
        """Do nothing: it counts."""

    async def failed(self, outcome: CallOutcome, error: MobileMoneyError | None) -> None:
        """Count it no more if it has certainly moved no money."""
        if outcome == "not_sent" or (outcome == "refused" and isinstance(error, APIError) and error.is_certain):
            self.recent.sent.pop(self, None)
