"""What `contract.md` leaves open, decided here, each decision switchable."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import attrs
from attrs import validators

RateLimitReading = Literal["both", "bucket", "window", "fixed"]
ListOrder = Literal["newest-first", "oldest-first"]

_seconds: "Callable[[Any, attrs.Attribute[float], float], Any]" = validators.ge(0.0)


@attrs.frozen(kw_only=True)
class Choices:
    """The sandbox's reading of every point that the contract does not show.

    All durations are seconds at speed 1. The ones under "Pace" are divided by the sandbox's speed; lifetimes are not.

    Args:
        status_invalid_transaction_id: HTTP status of INVALID_TRANSACTION_ID (section 7).
        status_rate_limit_exceeded: HTTP status of RATE_LIMIT_EXCEEDED (section 7).
        status_invalid_credentials: HTTP status of invalid_credentials (section 7).
        status_insufficient_permissions: HTTP status of insufficient_permissions (section 7).
        transaction_id_pattern: Regular expression; an id that it does not match whole is malformed (section 4.3).
        default_page_size: `limit` of a list request that names none, 1 to 100 (section 8).
        oversized_limit: What happens to a `limit` over 100: `"clamp"` it, or `"refuse"` the request with HTTP 400.
        list_order: Order of the list by creation (section 4.4).
        list_lag: Pace. How long after its creation a transaction first shows up in the list.
        lookup_lag: Pace. How long after its creation a transaction can first be looked up.
        rate_limit: Which reading of "60 requests per minute, short bursts of 10" is enforced (section 8), for each
            merchant over all accepted requests, logins included. `"bucket"`: ten tokens, one more each second.
            `"window"`: at most 60 in any 60 seconds. `"both"`: the two together, the strictest reading. `"fixed"`: at
            most 60 in each minute, counted from the sandbox's start. None: no limit.
        failed_logins_before_lock: Refused logins in a row after which an account's logins are answered with
            RATE_LIMIT_EXCEEDED; None for never (section 5, point 6).
        lock_seconds: How long such a lock lasts.
        otp_lifetime: How long a one-time password can be verified.
        reset_token_lifetime: How long a password reset token can be used.
        latency: Pace. From a request to its answer.
        gateway_timeout: Pace. The longest accepted latency: a slower answer is replaced by HTTP 504 at that moment,
            although the request was processed.
        median_delay: Pace. Median time to the final state of an ordinary payment; log-normal around it.
        longest_delay: Pace. The longest such time.
        decided_delay: Pace. Time to the final state for the magic numbers that end in a fixed way.
        late_delay: Pace. Time to the final state for the magic number that succeeds late.
        prompt_lifetime: Pace. How long an unanswered prompt stays open before it ends in TIMEOUT.
        hidden_for: Pace. How long the magic number for it stays missing from lookups and list.
        merchant_fee_percent: What the merchant pays on a successful collection, percent of the amount.
        customer_fee_percent: What the customer pays on top of it, percent of the amount.

    Raises:
        ValueError: A value is out of its range.
    """

    status_invalid_transaction_id: int = attrs.field(default=400, validator=[validators.ge(400), validators.lt(600)])
    status_rate_limit_exceeded: int = attrs.field(default=429, validator=[validators.ge(400), validators.lt(600)])
    status_invalid_credentials: int = attrs.field(default=401, validator=[validators.ge(400), validators.lt(600)])
    status_insufficient_permissions: int = attrs.field(default=403, validator=[validators.ge(400), validators.lt(600)])
    transaction_id_pattern: str = r"[A-Za-z0-9_-]{1,64}"
    default_page_size: int = attrs.field(default=20, validator=[validators.ge(1), validators.le(100)])
    oversized_limit: Literal["clamp", "refuse"] = attrs.field(
        default="clamp", validator=validators.in_(("clamp", "refuse"))
    )
    list_order: ListOrder = attrs.field(
        default="newest-first", validator=validators.in_(("newest-first", "oldest-first"))
    )
    list_lag: float = attrs.field(default=0.0, validator=_seconds)
    lookup_lag: float = attrs.field(default=0.0, validator=_seconds)
    rate_limit: RateLimitReading | None = attrs.field(
        default="both", validator=validators.in_(("both", "bucket", "window", "fixed", None))
    )
    failed_logins_before_lock: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(1)))
    lock_seconds: float = attrs.field(default=300.0, validator=_seconds)
    otp_lifetime: float = attrs.field(default=300.0, validator=_seconds)
    reset_token_lifetime: float = attrs.field(default=3600.0, validator=_seconds)
    latency: float = attrs.field(default=0.0, validator=_seconds)
    gateway_timeout: float = attrs.field(default=60.0, validator=_seconds)
    median_delay: float = attrs.field(default=15.0, validator=[_seconds, validators.gt(0.0)])
    longest_delay: float = attrs.field(default=100.0, validator=_seconds)
    decided_delay: float = attrs.field(default=5.0, validator=_seconds)
    late_delay: float = attrs.field(default=180.0, validator=_seconds)
    prompt_lifetime: float = attrs.field(default=120.0, validator=_seconds)
    hidden_for: float = attrs.field(default=90.0, validator=_seconds)
    merchant_fee_percent: Decimal = Decimal("1.5")
    customer_fee_percent: Decimal = Decimal("0.5")
