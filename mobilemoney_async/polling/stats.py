"""How a poller is doing, as a value."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class PollerStats:
    """How a poller is doing.

    Attributes:
        tracked: Payments ever tracked.
        pending: Payments followed now.
        final: Payments whose final state was seen.
        unresolved: Payments that ended without one: given up, not found, malformed id.
        pages: Pages asked for.
        lookups: Lookups by id.
        faults: Requests among them that failed for a reason that says nothing about a payment.
        mean_lag: How late the latest final states were seen, an estimate in seconds; None before the first.
        next_request_in: Seconds until there is something to ask, 0 for now, None for never, or where another process
            asks. The rate limit may make it later.
    """

    tracked: int
    pending: int
    final: int
    unresolved: int
    pages: int
    lookups: int
    faults: int
    mean_lag: float | None
    next_request_in: float | None

    @property
    def requests(self) -> int:
        """Requests in all."""
        return self.pages + self.lookups
