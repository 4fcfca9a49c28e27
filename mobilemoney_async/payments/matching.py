"""Matching of payments with rows of the transaction list. Pure.

The list shows no key of ours. It shows type, phone number and amount, and when the service took the request, on the
service's clock. So a payment is looked for in the window of its send, on that clock; and since clocks cannot be
trusted, only a single match nearby is believed. One that is farther off is no match, but no absence either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType

_DAY = timedelta(days=1)
# Resolution of the service's timestamps and its Date header.
_GRAIN = timedelta(seconds=1)
# Added to the difference that was measured: clocks drift, and the service may stamp a little later than it answers.
_SLACK = timedelta(seconds=2)
# A request may wait in a queue of the service for as long after we gave it up.
_LATE = timedelta(seconds=120)
# How far outside its window a match still forbids calling the payment absent, and adopting another. The clock may have
# been set since it was measured, by hours after a mistake in the time zone.
_NEAR = _DAY
# With an unknown clock of the service: added to the window, and any match at all forbids.
_UNKNOWN_SLACK = timedelta(seconds=60)
_FIRST_MOMENT, _LAST_MOMENT = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@attrs.frozen(kw_only=True)
class Skew:
    """Bounds on how far the service's clock is ahead of ours."""

    low: timedelta
    high: timedelta


@attrs.frozen(kw_only=True)
class ClockSample:
    """Reading of the service's clock, cut to a second or not, and our time before and after it."""

    shown: datetime
    began_at: datetime
    ended_at: datetime

    @property
    def skew(self) -> Skew:
        """Bounds that follow from this sample."""
        return Skew(low=self.shown - self.ended_at, high=self.shown + _GRAIN - self.began_at)


def read_date(header: str) -> datetime | None:
    """Return the time of a Date header, or None if it has none."""
    try:
        moment = parsedate_to_datetime(header)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter on the first and the last day of the calendar
        return None


def estimate_skew(samples: Sequence[ClockSample]) -> Skew | None:
    """Return bounds on the difference of the clocks, or None without a sample.

    Samples that agree narrow each other. If they do not, a clock was set in between, and either may hold.
    """
    if not samples:
        return None
    skews = [each.skew for each in samples]
    low, high = max(each.low for each in skews), min(each.high for each in skews)
    if low > high:
        low, high = min(each.low for each in skews), max(each.high for each in skews)
    return Skew(low=low, high=high)


@attrs.frozen(kw_only=True)
class PaymentQuery:
    """Search of the list for one payment: its kind, and when it was sent and its request given up, on our clock."""

    type: TransactionType
    phone_number: str = attrs.field(repr=False)
    amount: str
    sent_at: datetime
    ended_at: datetime

    def fits(self, row: Transaction) -> bool:
        """Return whether a transaction is of this kind, at any time."""
        return (
            row.type == self.type
            and _digits(row.phone_number) == _digits(self.phone_number)
            and f"{row.amount:f}".partition(".")[0] == self.amount
            and row.amount == row.amount.to_integral_value()
        )

    def window(self, skew: Skew | None) -> tuple[datetime, datetime]:
        """Return the first and the last time of a match that is believed, on the service's clock."""
        if skew is None:
            return self.sent_at - _UNKNOWN_SLACK, self.ended_at + _LATE + _UNKNOWN_SLACK
        return self.sent_at + skew.low - _SLACK, self.ended_at + skew.high + _LATE + _SLACK

    def reach(self, skew: Skew | None) -> tuple[datetime, datetime]:
        """Return the first and the last time at which a match forbids calling the payment absent."""
        if skew is None:
            return _FIRST_MOMENT, _LAST_MOMENT
        start, end = self.window(skew)
        return start - _NEAR, end + _NEAR


@attrs.frozen(kw_only=True)
class Verdict:
    """Conclusion from one full listing about a payment.

    Attributes:
        adopt: The transaction that it is, or None.
        candidates: Those that it may be, if none is certain. Neither: the listing has not shown it.
    """

    adopt: Transaction | None = None
    candidates: tuple[str, ...] = ()


def judge(query: PaymentQuery, rows: Iterable[Transaction], skew: Skew | None) -> Verdict:
    """Return the conclusion about a payment from a full listing, of which `rows` are those that no payment owns."""
    first, last = query.reach(skew)
    near = [row for row in rows if query.fits(row) and first <= row.created_at <= last]
    start, end = query.window(skew)
    if len(near) == 1 and start <= near[0].created_at <= end:
        return Verdict(adopt=near[0])
    return Verdict(candidates=tuple(sorted(row.id for row in near)))


@attrs.frozen(kw_only=True)
class DateRange:
    """Days of the list, the first to the last, in which some payments are looked for, by their keys."""

    first: date
    last: date
    queries: Mapping[str, PaymentQuery]


def date_ranges(queries: Mapping[str, PaymentQuery]) -> list[DateRange]:
    """Return the days to be listed, earliest first: an old unknown payment must not cost the days since.

    Each range has a day to spare on either side, and one more at its end: the service's time zone, its clock, and
    whether its last day is included are undocumented.
    """
    found: list[DateRange] = []
    for key, query in sorted(queries.items(), key=lambda item: item[1].sent_at):
        start, end = query.window(None)
        first, last = (start - _DAY).date(), (end + 2 * _DAY).date()
        merged: Mapping[str, PaymentQuery] = {}
        if found and first <= found[-1].last:
            before = found.pop()
            first, last, merged = before.first, max(last, before.last), before.queries
        found.append(DateRange(first=first, last=last, queries={**merged, key: query}))
    return found


def _digits(phone_number: str) -> str:
    return "".join(character for character in phone_number if character.isdigit())
