"""Which transaction of the service a payment is, told from the transaction list. Pure.

The list shows no key of ours. What it shows is type, phone number, amount, and when the service took the request, on
the service's clock. So a payment is looked for in the window of its send, on that clock; and since nobody vouches for
clocks, only a match that is alone and near is believed. One that is farther off is no match, but no absence either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType

_DAY = timedelta(days=1)
# Of the service's timestamps and its Date header, which are cut to a second.
_GRAIN = timedelta(seconds=1)
# Beyond what a clock was seen to differ: it drifts, and the service may stamp a little later than it answers.
_SLACK = timedelta(seconds=2)
# A request may lie in a queue of the service's for as long after we gave it up.
_LATE = timedelta(seconds=120)
# How far a match may lie outside its window and still forbid to call the payment absent, and to adopt another. The
# clock may have been set since it was seen, by hours where somebody took a time zone for another.
_NEAR = _DAY
# Where nothing is known of the service's clock, nearer is believed, and any match forbids.
_UNKNOWN_SLACK = timedelta(seconds=60)
_FIRST_MOMENT, _LAST_MOMENT = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@attrs.frozen(kw_only=True)
class Skew:
    """How far the service's clock is ahead of ours: somewhere between two bounds."""

    low: timedelta
    high: timedelta


@attrs.frozen(kw_only=True)
class ClockSample:
    """A moment of ours at which the service's clock was seen.

    Attributes:
        shown: What it showed, cut to a second or not.
        began_at: Our time before it was read.
        ended_at: Our time after it was read.
    """

    shown: datetime
    began_at: datetime
    ended_at: datetime

    @property
    def skew(self) -> Skew:
        """What it says of the clock."""
        return Skew(low=self.shown - self.ended_at, high=self.shown + _GRAIN - self.began_at)


def read_date(header: str) -> datetime | None:
    """Return the time of a Date header, or None where it has none."""
    try:
        moment = parsedate_to_datetime(header)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter on the first and the last day of the calendar
        return None


def estimate_skew(sightings: Sequence[ClockSample]) -> Skew | None:
    """Return bounds on the difference of the clocks, or None where the service's was never seen.

    Sightings that agree narrow each other. Where they do not, a clock was set in between, and either may hold.
    """
    if not sightings:
        return None
    skews = [each.skew for each in sightings]
    low, high = max(each.low for each in skews), min(each.high for each in skews)
    if low > high:
        low, high = min(each.low for each in skews), max(each.high for each in skews)
    return Skew(low=low, high=high)


@attrs.frozen(kw_only=True)
class PaymentQuery:
    """One payment to be found.

    Attributes:
        type: Of the payment.
        phone_number: Of the payment.
        amount: Of the payment, as digits.
        sent_at: When it was sent, on our clock.
        ended_at: When the request was given up, on our clock.
    """

    type: TransactionType
    phone_number: str = attrs.field(repr=False)
    amount: str
    sent_at: datetime
    ended_at: datetime

    def fits(self, row: Transaction) -> bool:
        """Return whether a transaction is of this kind, whenever it was made."""
        return (
            row.type == self.type
            and _digits(row.phone_number) == _digits(self.phone_number)
            and f"{row.amount:f}".partition(".")[0] == self.amount
            and row.amount == row.amount.to_integral_value()
        )

    def window(self, skew: Skew | None) -> tuple[datetime, datetime]:
        """Return the first and the last time, on the service's clock, that are believed."""
        if skew is None:
            return self.sent_at - _UNKNOWN_SLACK, self.ended_at + _LATE + _UNKNOWN_SLACK
        return self.sent_at + skew.low - _SLACK, self.ended_at + skew.high + _LATE + _SLACK

    def reach(self, skew: Skew | None) -> tuple[datetime, datetime]:
        """Return the first and the last time at which a match forbids to call the payment absent."""
        if skew is None:
            return _FIRST_MOMENT, _LAST_MOMENT
        start, end = self.window(skew)
        return start - _NEAR, end + _NEAR


@attrs.frozen(kw_only=True)
class Verdict:
    """What one complete walk says of a payment.

    Attributes:
        adopt: The transaction that it is, or None.
        candidates: Those that it may be, where it is none for certain. Neither: the walk has not shown it.
    """

    adopt: Transaction | None = None
    candidates: tuple[str, ...] = ()

    @property
    def is_miss(self) -> bool:
        """Whether nothing was found that it could be."""
        return self.adopt is None and not self.candidates


def judge(search: PaymentQuery, rows: Iterable[Transaction], skew: Skew | None) -> Verdict:
    """Return what a complete walk says of a payment.

    Args:
        search: The payment.
        rows: Transactions that no payment of the store has claimed.
        skew: Of the service's clock.
    """
    first, last = search.reach(skew)
    near = [row for row in rows if search.fits(row) and first <= row.created_at <= last]
    start, end = search.window(skew)
    if len(near) == 1 and start <= near[0].created_at <= end:
        return Verdict(adopt=near[0])
    return Verdict(candidates=tuple(sorted(row.id for row in near)))


@attrs.frozen(kw_only=True)
class DateRange:
    """Days of the list in which some payments are looked for.

    Attributes:
        first: The first day.
        last: The last day.
        searches: The payments, by their keys.
    """

    first: date
    last: date
    searches: Mapping[str, PaymentQuery]


def date_ranges(searches: Mapping[str, PaymentQuery]) -> list[DateRange]:
    """Return the days to be walked, earliest first: an old unknown payment must not cost the walk of all days since.

    Each span has a day to spare on either side, and one more at its end, since nobody says whose days the service
    means, whether the last is within, and what its clock shows.
    """
    found: list[DateRange] = []
    for key, search in sorted(searches.items(), key=lambda item: item[1].sent_at):
        start, end = search.window(None)
        first, last = (start - _DAY).date(), (end + 2 * _DAY).date()
        if found and first <= found[-1].last:
            before = found.pop()
            first, last = before.first, max(last, before.last)
            found.append(DateRange(first=first, last=last, searches={**before.searches, key: search}))
        else:
            found.append(DateRange(first=first, last=last, searches={key: search}))
    return found


def _digits(phone_number: str) -> str:
    return "".join(character for character in phone_number if character.isdigit())
