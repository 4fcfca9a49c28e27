"""Numbers of the contract: rates, page sizes, polling advice (sections 5, 6 and 8)."""

from __future__ import annotations

import attrs

from mobilemoney_async.values import require_factor, require_seconds

REQUESTS_PER_MINUTE = 60
BURST = 10
POLLING_INTERVAL = 10.0
"""Seconds; the recommended polling rate is one request in this time."""
PAGE_SIZE_MAX = 100
TOKEN_LIFETIME = 3600
"""Seconds; of a login token with an implausible lifetime of its own."""

UNSEEN_GRACE = 120.0
"""Seconds for which a lookup's "not found" is doubted while waiting: the contract does not say how soon a new
transaction can be looked up."""


def check_seconds(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    """Refuse anything but a number of seconds more than 0; a validator of attrs."""
    require_seconds(attribute.name, value)


def check_factor(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    """Refuse anything but a number of at least 1; a validator of attrs."""
    require_factor(attribute.name, value)


def growing_pause(number: int, *, first: float, factor: float, cap: float) -> float:
    """Return a pause that grows by a factor each time, up to a cap, seconds; the number of the first is 0."""
    try:
        return min(cap, first * factor**number)
    except OverflowError:  # so many that only the cap is left
        return cap


@attrs.frozen(kw_only=True)
class Schedule:
    """Schedule of growing pauses between two looks at one payment; the contract's advice by default (section 6).

    Args:
        first: The first pause, seconds, more than 0.
        factor: The ratio of each pause to the one before, at least 1.
        cap: The longest pause, seconds, more than 0.

    Raises:
        InvalidRequest: A value is out of its range.
    """

    first: float = attrs.field(default=1.0, validator=check_seconds)
    factor: float = attrs.field(default=1.5, validator=check_factor)
    cap: float = attrs.field(default=30.0, validator=check_seconds)

    def delay(self, look: int) -> float:
        """Return the pause after a look, seconds.

        Args:
            look: The number of the look, 0 for the first.
        """
        return growing_pause(look, first=self.first, factor=self.factor, cap=self.cap)
