"""Behaviour that `contract.md` leaves open: one choice for each point, and the rate limit in each of its readings."""

import collections
from decimal import Decimal
from typing import Any, Literal

import attrs
from attrs import validators

PER_MINUTE = 60
BURST = 10
_TOLERANCE = 1e-6
"""Seconds of rounding error by which a request may be early."""

RateLimitReading = Literal["both", "bucket", "window", "fixed"]
ListOrder = Literal["newest-first", "oldest-first"]


def _status(default: int) -> int:
    status: int = attrs.field(default=default, validator=[validators.ge(400), validators.lt(600)])
    return status


def _seconds(default: float, *more: Any) -> float:
    seconds: float = attrs.field(default=default, validator=[validators.ge(0.0), *more])
    return seconds


def _percent(instance: object, attribute: "attrs.Attribute[Decimal]", value: object) -> None:
    if not (isinstance(value, Decimal) and 0 <= value <= 100):
        raise ValueError(f"{attribute.name} must be a Decimal from 0 to 100")


@attrs.frozen(kw_only=True)
class Choices:
    """Choices of the sandbox for every point that the contract leaves open.

    All durations are seconds at speed 1. The ones under "Pace" are divided by the sandbox's speed; lifetimes are not.

    Args:
        status_invalid_transaction_id: HTTP status of INVALID_TRANSACTION_ID (section 7).
        status_rate_limit_exceeded: HTTP status of RATE_LIMIT_EXCEEDED (section 7).
        status_invalid_credentials: HTTP status of invalid_credentials (section 7).
        status_insufficient_permissions: HTTP status of insufficient_permissions (section 7).
        transaction_id_pattern: Regular expression; an id that it does not match whole is malformed (section 4.3).
        default_page_size: `limit` of a list request without one, 1 to 100 (section 8).
        oversized_limit: Treatment of a `limit` over 100: `"clamp"` it, or `"refuse"` the request with HTTP 400.
        list_order: Order of the list by creation (section 4.4).
        list_lag: Pace. Time from its creation until a transaction appears in the list.
        lookup_lag: Pace. Time from its creation until a transaction can be looked up.
        rate_limit: The reading of "60 requests per minute, short bursts of 10" that is enforced (section 8), for each
            merchant over all accepted requests, logins included. `"bucket"`: ten tokens, one more each second.
            `"window"`: at most 60 in any 60 seconds. `"both"`: the two together, the strictest reading. `"fixed"`: at
            most 60 in each minute, counted from the sandbox's start. None: no limit.
        failed_logins_before_lock: Refused logins in a row after which an account's logins are answered with
            RATE_LIMIT_EXCEEDED; None for never (section 5, point 6).
        lock_seconds: Duration of such a lock.
        otp_lifetime: Time in which a one-time password can be verified.
        reset_token_lifetime: Time in which a password reset token can be used.
        latency: Pace. From a request to its answer.
        gateway_timeout: Pace. The longest latency: a slower answer is replaced by HTTP 504 at that moment, although
            the request was processed.
        median_delay: Pace. Median time to the final state of an ordinary payment; log-normal around it.
        longest_delay: Pace. The longest such time.
        decided_delay: Pace. Time to the final state for the magic numbers that end in a fixed way.
        late_delay: Pace. Time to the final state for the magic number that succeeds late.
        prompt_lifetime: Pace. Time after which an unanswered prompt ends in TIMEOUT.
        hidden_for: Pace. Time in which payments of the magic number for it are missing from lookups and list.
        merchant_fee_percent: The merchant's fee on a successful collection, percent of the amount.
        customer_fee_percent: The customer's fee on top of it, percent of the amount.

    Raises:
        ValueError: A value is out of its range.
    """

    status_invalid_transaction_id: int = _status(400)
    status_rate_limit_exceeded: int = _status(429)
    status_invalid_credentials: int = _status(401)
    status_insufficient_permissions: int = _status(403)
    transaction_id_pattern: str = r"[A-Za-z0-9_-]{1,64}"
    default_page_size: int = attrs.field(default=20, validator=[validators.ge(1), validators.le(100)])
    oversized_limit: Literal["clamp", "refuse"] = attrs.field(
        default="clamp", validator=validators.in_(("clamp", "refuse"))
    )
    list_order: ListOrder = attrs.field(
        default="newest-first", validator=validators.in_(("newest-first", "oldest-first"))
    )
    list_lag: float = _seconds(0.0)
    lookup_lag: float = _seconds(0.0)
    rate_limit: RateLimitReading | None = attrs.field(
        default="both", validator=validators.in_(("both", "bucket", "window", "fixed", None))
    )
    failed_logins_before_lock: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(1)))
    lock_seconds: float = _seconds(300.0)
    otp_lifetime: float = _seconds(300.0)
    reset_token_lifetime: float = _seconds(3600.0)
    latency: float = _seconds(0.0)
    gateway_timeout: float = _seconds(60.0)
    median_delay: float = _seconds(15.0, validators.gt(0.0))
    longest_delay: float = _seconds(100.0)
    decided_delay: float = _seconds(5.0)
    late_delay: float = _seconds(180.0)
    prompt_lifetime: float = _seconds(120.0)
    hidden_for: float = _seconds(90.0)
    merchant_fee_percent: Decimal = attrs.field(default=Decimal("1.5"), validator=_percent)
    customer_fee_percent: Decimal = attrs.field(default=Decimal("0.5"), validator=_percent)


@attrs.frozen(kw_only=True)
class RateBudget:
    """Rest of one merchant's request limit at one moment.

    Args:
        bucket_left: Requests that the bucket holds, 0 to `burst`; a fraction, since it fills steadily.
        window_used: Requests accepted within the last `window_seconds`; under the reading `"fixed"`, since that minute
            began.
        per_window: The most requests that are accepted in the window.
        burst: Requests that a full bucket holds.
        window_seconds: Real seconds: 60 divided by the sandbox's speed.
        next_in: Real seconds until a request is accepted; 0 for now.
    """

    bucket_left: float
    window_used: int
    per_window: int
    burst: int
    window_seconds: float
    next_in: float


class RateLimit:
    """Request limit of one merchant: "60 requests per minute, short bursts of 10" (`contract.md` section 8).

    Every reading of these words is counted side by side over the accepted requests; `Choices.rate_limit` says which of
    them may reject. A rejected request counts in none. The speed multiplies the rate and divides the minute.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self._rate = speed * PER_MINUTE / 60
        self._minute = 60 / speed
        self._tokens = float(BURST)
        self._counted_at = 0.0
        self._recent: collections.deque[float] = collections.deque(maxlen=PER_MINUTE)

    def wait(self, reading: RateLimitReading | None, now: float) -> float:
        """Return the seconds by which a request that comes now is too early; 0 if it may pass."""
        waits = []
        if reading in ("bucket", "both"):
            waits.append((1 - self._tokens_at(now)) / self._rate)
        if reading in ("window", "both") and len(self._recent) == PER_MINUTE:
            waits.append(self._recent[0] + self._minute - now)
        if reading == "fixed" and self._used(reading, now) == PER_MINUTE:
            waits.append((self._minute_index(now) + 1) * self._minute - now)
        longest = max(waits, default=0.0)
        return longest if longest > _TOLERANCE else 0.0

    def use(self, now: float) -> None:
        """Count one accepted request."""
        self._tokens = self._tokens_at(now) - 1
        self._counted_at = now
        self._recent.append(now)

    def budget(self, reading: RateLimitReading | None, now: float) -> RateBudget:
        """Return the rest of the limit; `next_in` is of this reading."""
        return RateBudget(
            bucket_left=self._tokens_at(now),
            window_used=self._used(reading, now),
            per_window=PER_MINUTE,
            burst=BURST,
            window_seconds=self._minute,
            next_in=self.wait(reading, now),
        )

    def _used(self, reading: RateLimitReading | None, now: float) -> int:
        """Return the requests that were accepted in this minute, or in the last 60 seconds."""
        if reading == "fixed":
            return sum(self._minute_index(at) == self._minute_index(now) for at in self._recent)
        return sum(now - at < self._minute - _TOLERANCE for at in self._recent)

    def _tokens_at(self, now: float) -> float:
        return min(BURST, self._tokens + (now - self._counted_at) * self._rate)

    def _minute_index(self, now: float) -> int:
        return int((now + _TOLERANCE) // self._minute)
