"""The times between requests: the schedule of each payment, the pace of all, pauses after faults, hints. Pure."""

from __future__ import annotations

import math
from collections import deque

import attrs

from mobilemoney_async.calls.bucket import Usage
from mobilemoney_async.contract.limits import Schedule
from mobilemoney_async.polling.tracked import TrackedPayment, TrackedPayments

# A shown payment has had its look if it falls due within this share of its pause.
_SOON = 0.25
# Looks that a payment can save up. The rest are lost: no payment is left alone for long, or requested in bunches.
_SAVED = 5
# Longest pause of a payment with unreadable lookups while others can be read, seconds.
_LONGEST_UNREADABLE = 600.0
# Looks due within so many seconds before this process took over were not made by the process before, seconds.
_TAKEN_OVER = 5.0
# Longest interval of the pacer, seconds. The limiter serves the poller's lane about that often.
_LONGEST_INTERVAL = 10.0
# A shorter history says too little about a minute's use, seconds.
_SHORTEST_HISTORY = 10.0
# Requests per window left to others: they come less evenly.
_RESERVE = 1
# After such a wait in line the limit is exhausted, seconds.
_LONG_WAIT = 5.0
# Hints believed at once, and per second.
_HINTS_AT_ONCE = 5.0
_HINTS_PER_SECOND = 1.0
# Seconds for which further hints of a payment are ignored.
_HINT_PAUSE = 10.0


@attrs.frozen
class LookupSchedule:
    """Advised schedule of each payment (contract, section 6).

    A look that the schedule allows may be taken later: a look saved while an ending is unlikely is spent when it is
    likely. At any age a payment has had no more looks than the schedule would have made by then. That holds for pages,
    which show others as well. Two lookups of one payment by its id are a pause of the schedule apart.
    """

    _schedule: Schedule
    _payments: TrackedPayments

    def of_age(self, since: float, now: float, *, is_new: bool) -> tuple[int, float]:
        """Return the looks that the schedule of a payment has had until now, and the time of the next."""
        looks, due = 0, since + self._schedule.delay(0) if is_new else since
        while due < now - _TAKEN_OVER:
            looks += 1
            pause = self._schedule.delay(looks)
            # Once the pauses stop growing, the next look is one pause from now.
            due = due + pause if self._schedule.delay(looks + 1) > pause else now + pause
        return looks, due

    def is_soon(self, payment: TrackedPayment, now: float) -> bool:
        """Return whether an answer that shows a payment counts as a look at it."""
        return payment.due - now <= _SOON * self._schedule.delay(payment.looks)

    def count(self, payment: TrackedPayment, now: float, *, saves: bool) -> None:
        """Count a look; that of a hint is on top of the schedule."""
        payment.looks += payment.hinted_at is None
        pause = self._schedule.delay(payment.looks)
        saved = _SAVED * pause if saves and payment.hinted_at is None else 0.0
        self._payments.due.move(payment, max(now - saved, payment.due) + pause)

    def last_moment(self, payment: TrackedPayment) -> float:
        """Return the time until which a look can be saved: later one would be lost, or the latest be too long ago."""
        looks = payment.looks
        saved = sum(self._schedule.delay(look) for look in range(looks + 1, looks + _SAVED))
        return max(payment.due, min(payment.due + saved, payment.seen_at + self._schedule.cap))

    def put_off(self, payment: TrackedPayment, now: float) -> None:
        """Double the pause of a payment with unreadable lookups."""
        pause = min(_LONGEST_UNREADABLE, self._schedule.cap * 2 ** min(10, payment.failures - 1))
        self._payments.due.move(payment, max(payment.due, now + pause))


@attrs.define(kw_only=True)
class Backoff:
    """Pause that doubles with each fault, from the first length to the longest, and ends with the first answer."""

    _longest: float
    _first: float = 1.0
    until: float = -math.inf  # monotonic seconds; minus infinity outside a pause
    _began: float = -math.inf
    _next: float = attrs.Factory(lambda backoff: backoff._first, takes_self=True)

    @property
    def is_on(self) -> bool:
        """True if the latest answer was a fault."""
        return self.until > -math.inf

    def extend(self, now: float, sent_at: float) -> None:
        """Begin a pause, longer than the one before, unless the failed request was sent before that began."""
        if sent_at < self._began:
            return
        self._began = now
        self.until = now + self._next
        self._next = min(self._longest, 2 * self._next)

    def clear(self) -> None:
        """End the pause."""
        self.until = -math.inf
        self._next = self._first


@attrs.define
class HintThrottle:
    """Token bucket of five hints at one a second, each payment's at one in ten: hints can be forged."""

    _left: float = _HINTS_AT_ONCE
    _at: float = 0.0

    def take(self, payment: TrackedPayment, now: float) -> bool:
        """Take a token for a payment's hint; return False if none is left."""
        left = min(_HINTS_AT_ONCE, self._left + (now - self._at) * _HINTS_PER_SECOND)
        if left < 1 or now < payment.next_hint_at:
            return False
        self._left, self._at, payment.next_hint_at = left - 1, now, now + _HINT_PAUSE
        return True


@attrs.define
class Pacer:
    """Even distances between the poller's requests, as far as others leave room under the limit.

    A poller that sent whenever the limiter allows would use up the burst and then the minute, and see nothing in the
    pause that follows: bunches cost lag. So the poller spreads its share of the minute evenly. The share is the part
    that others leave, and is measured.
    """

    _min_interval: float  # the shortest time between two requests, seconds
    _own: deque[float] = attrs.field(factory=deque)
    _began: float = math.inf
    _sent_at: float = -math.inf
    _waited: float = 0.0

    def may_send(self, now: float) -> bool:
        """Return whether the shortest interval has passed."""
        return now >= self._sent_at + self._min_interval

    def sent(self, now: float, waited: float) -> None:
        """Note that a request goes out, after so many seconds in line."""
        self._sent_at = now
        self._waited = waited
        self._own.append(now)

    def queue_at(self, now: float, usage: Usage) -> float:
        """Return the time to get in line for the next request."""
        interval = self._interval(now, usage)
        if self._waited >= _LONG_WAIT and interval == _LONGEST_INTERVAL:
            # The limiter serves only its line, and the wait there is longer than any interval. If it turns out to be
            # short, the poller gets in line again (`came_early`). Where there is spare, it was the store that was slow.
            return self._sent_at
        return self._sent_at + max(self._min_interval, interval - self._waited)

    def came_early(self) -> None:
        """Note that the line was shorter than before: the turn came within the shortest interval."""
        self._waited = 0.0

    def _interval(self, now: float, usage: Usage) -> float:
        while self._own and self._own[0] <= now - usage.window:
            self._own.popleft()
        others = max(0, usage.granted - len(self._own))
        self._began = min(self._began, now)
        history = max(_SHORTEST_HISTORY, usage.history, now - self._began)
        # As if the history went on for a whole window.
        others_later = others * usage.window / min(usage.window, history)
        spare = usage.limit - _RESERVE - others_later
        return min(_LONGEST_INTERVAL, usage.window / spare) if spare > 0 else _LONGEST_INTERVAL
