"""Matching of payments with rows of the transaction list. Pure.

The list shows no key of ours. It shows type, phone number and amount, and when the service took the request, on the
service's clock. So a payment is looked for in the window of its send, on that clock; and since clocks cannot be
trusted, only a single match nearby is believed. One that is farther off is no match, but no absence either.

Amounts are compared by value. Numbers may have other forms than the contract's: `match` says how well a row fits. A row
counts as another payment's only if it contradicts ours; a form that proves nothing is a possible match, and so is a
word for the type that the contract does not have.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

import attrs

from mobilemoney_async.contract.comparison import (
    CURRENCY,
    NumberForm,
    local_digits,
    may_be_number,
    own_local_digits,
    read_date,
    same_number,
    shift,
)
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.payments.records.record import REUSABLE, PaymentRecord
from mobilemoney_async.values import is_id

T = TypeVar("T")

Kind: TypeAlias = tuple[Decimal, str | None]
"""Amount, and the digits that each spelling of a number shows, or None if they may differ."""

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
    """Bounds on how far the service's clock is ahead of ours.

    Attributes:
        low: The least.
        high: The most.
        is_own: Whether the rows of our own payments show it, rather than Date headers.
    """

    low: timedelta
    high: timedelta
    is_own: bool = False


@attrs.frozen(kw_only=True)
class ClockSample:
    """Reading of the service's clock, cut to a second or not, and our time before and after it."""

    shown: datetime
    began_at: datetime
    ended_at: datetime

    @property
    def skew(self) -> Skew:
        """Bounds that follow from this sample."""
        return Skew(low=self.shown - self.ended_at, high=self.shown - self.began_at + _GRAIN)


def read_sample(date: str | None, *, began_at: datetime, ended_at: datetime) -> ClockSample | None:
    """Return the reading of the service's clock that the Date header of an answer is, or None if it has no time."""
    shown = read_date(date or "")
    return None if shown is None else ClockSample(shown=shown, began_at=began_at, ended_at=ended_at)


def own_samples(pairs: Iterable[tuple[PaymentRecord | None, Transaction | None]]) -> list[ClockSample]:
    """Return the service's clock by transactions and the payments that own them, in the order of their sends.

    An adopted payment was found by this very clock: it is no evidence for it.
    """
    samples = [
        ClockSample(shown=row.created_at, began_at=record.sent_at, ended_at=record.ended_at)
        for record, row in pairs
        if record is not None and not record.is_adopted and record.sent_at and record.ended_at
        if row is not None and row.created_at is not None
    ]
    return sorted(samples, key=lambda sample: sample.began_at)


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
    """Search of the list for one payment: its kind, and when it was sent and its request given up, on our clock.

    `is_refused` says that it was refused, as far as is known.
    """

    type: TransactionType
    phone_number: str = attrs.field(repr=False)
    amount: str
    sent_at: datetime
    ended_at: datetime
    is_refused: bool = False

    @property
    def kind(self) -> Kind:
        """Its place in a `KindIndex`."""
        return Decimal(self.amount), own_local_digits(self.phone_number)

    def window(self, skew: Skew | None, spare: timedelta = timedelta(0)) -> tuple[datetime, datetime]:
        """Return the first and the last time of a match that is believed, on the service's clock, and a time to spare.

        That is for a clock that was set.
        """
        if skew is None:
            return shift(self.sent_at, -_UNKNOWN_SLACK - spare), shift(self.ended_at, _LATE + _UNKNOWN_SLACK + spare)
        early, late = skew.low - _SLACK - spare, skew.high + _LATE + _SLACK + spare
        return shift(self.sent_at, early), shift(self.ended_at, late)

    def reach(self, skew: Skew | None) -> tuple[datetime, datetime]:
        """Return the first and the last time at which a match forbids calling the payment absent."""
        if skew is None:
            return _FIRST_MOMENT, _LAST_MOMENT
        return self.window(skew, _NEAR)


def query_for(record: PaymentRecord) -> PaymentQuery:
    """Return the search of the list for a payment that was sent."""
    assert record.sent_at is not None
    return PaymentQuery(
        type=record.type,
        phone_number=record.phone_number,
        amount=f"{record.amount:f}",
        sent_at=record.sent_at,
        ended_at=record.sent_at if record.ended_at is None else record.ended_at,
        is_refused=record.state in REUSABLE,
    )


def is_within(row: Transaction, start: datetime, end: datetime) -> bool:
    """Return whether a row shows a time in a span. A row without a readable time is in no span that is believed."""
    return row.created_at is not None and start <= row.created_at <= end


def may_be_within(row: Transaction, start: datetime, end: datetime) -> bool:
    """Return whether a row may be of a span. A row without a readable time may be of any time."""
    return row.created_at is None or start <= row.created_at <= end


class Match(enum.Enum):
    """How well a row fits a payment, apart from its time."""

    CERTAIN = "certain"
    """Type, number and amount agree, the number in the contract's form or in one that rows of own payments prove."""
    POSSIBLE = "possible"
    """Nothing contradicts: it may be the payment, but is never adopted by machine."""
    NONE = "none"
    """Another type, number or amount, or another merchant's row."""


@attrs.frozen(kw_only=True)
class Spellings:
    """Spellings of the list, as rows of own payments prove them.

    Attributes:
        forms: The forms of numbers.
        merchant_id: The account's merchant at the service, if known. A row of another one is not ours.
        is_marked: Whether a row that does not show that merchant proves nothing: our own ones show it, or some rows are
            of other merchants.
    """

    forms: frozenset[NumberForm] = frozenset()
    merchant_id: str | None = None
    is_marked: bool = False


UNPROVEN: Spellings = Spellings()
"""No spelling but the contract's."""

ANY_FORM: Spellings = Spellings(forms=frozenset(NumberForm))
"""The number in any form, as of a transaction that our own acknowledgement names."""


def learn(rows: Iterable[Transaction], owned: Mapping[str, PaymentRecord], merchant_id: str | None) -> Spellings:
    """Return the spellings that rows prove, by the payments that own them; `owned` is by transaction id.

    An adopted payment proves none: it was found by its spelling.
    """
    forms: set[NumberForm] = set()
    merchants, own_merchants = set[str | None](), set[str | None]()
    for row in rows:
        record = owned.get(row.id)
        merchants.add(row.merchant_id)
        if record is None or record.is_adopted or row.amount != record.amount:
            continue
        form = same_number(row.phone_number, record.phone_number)
        if form is not None:
            forms.add(form)
            own_merchants.add(row.merchant_id)
    is_marked = (bool(own_merchants) and all(own_merchants)) or len(merchants - {None}) > 1
    return Spellings(forms=frozenset(forms), merchant_id=merchant_id, is_marked=is_marked)


def match(query: PaymentQuery, row: Transaction, spellings: Spellings = UNPROVEN) -> Match:
    """Return how well a row fits a payment, at any time and in any status: a failed payment was made, too."""
    if row.amount != Decimal(query.amount):
        return Match.NONE
    if row.merchant_id and spellings.merchant_id and row.merchant_id != spellings.merchant_id:
        return Match.NONE
    is_ours = not spellings.is_marked or row.merchant_id == spellings.merchant_id is not None
    is_usual = is_id(row.id) and is_ours and row.currency.strip().upper() == CURRENCY
    fits = (
        Match.CERTAIN if is_usual else Match.POSSIBLE,
        _fit_type(query.type, str(row.type)),
        _fit_number(query.phone_number, row.phone_number, spellings.forms),
    )
    return next(each for each in (Match.NONE, Match.POSSIBLE, Match.CERTAIN) if each in fits)


def _fit_type(type: TransactionType, text: str) -> Match:
    """Return how well a text fits a type: only the contract's word for the other type contradicts."""
    if text == type:
        return Match.CERTAIN
    is_other = any(each == text.strip().casefold() for each in TransactionType)
    return Match.NONE if is_other and text.strip().casefold() != type else Match.POSSIBLE


def _fit_number(own: str, shown: str, forms: Container[NumberForm]) -> Match:
    form = same_number(shown, own)
    if form is NumberForm.EXACT or (form is not None and form in forms):
        return Match.CERTAIN
    return Match.POSSIBLE if may_be_number(shown, own) else Match.NONE


def row_kind(row: Transaction) -> Kind:
    """Return the place of a row in a `KindIndex`."""
    return row.amount, local_digits(row.phone_number)


class KindIndex(Generic[T]):
    """Index of queries or rows by amount and number: thousands of each are compared in one listing.

    It finds everything that `match` may accept, and leaves out most of the rest.
    """

    def __init__(self) -> None:
        self._of_amount: dict[Decimal, list[T]] = {}
        self._of_kind: dict[Kind, list[T]] = {}

    def add(self, kind: Kind, thing: T) -> None:
        """Add a thing under the kind of its row or query."""
        self._of_amount.setdefault(kind[0], []).append(thing)
        self._of_kind.setdefault(kind, []).append(thing)

    def find(self, kind: Kind) -> Iterable[T]:
        """Return the things that a row or a query may fit."""
        amount, digits = kind
        if digits is None:
            return self._of_amount.get(amount, ())
        return chain.from_iterable(self._of_kind.get((amount, each), ()) for each in (digits, None))


@attrs.frozen(kw_only=True)
class DateRange:
    """Days of the list, the first to the last, in which some payments are looked for, by their keys."""

    first: date
    last: date
    keys: Sequence[str]


def date_ranges(spans: Mapping[str, tuple[datetime, datetime]]) -> list[DateRange]:
    """Return the days to be listed for some spans of time, earliest first: an old one must not cost the days since.

    Each range has a day to spare on either side, and one more at its end: the service's time zone, its clock, and
    whether its last day is included are undocumented.
    """
    found: list[DateRange] = []
    for key, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        first, last = (start - _DAY).date(), (end + 2 * _DAY).date()
        keys: Sequence[str] = ()
        if found and first <= found[-1].last:
            before = found.pop()
            first, last, keys = before.first, max(last, before.last), before.keys
        found.append(DateRange(first=first, last=last, keys=(*keys, key)))
    return found
