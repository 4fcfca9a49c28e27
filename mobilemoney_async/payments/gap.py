"""Signs that a store is behind its service: a backup was restored, or a failover has lost commits. Pure.

Such a store has forgotten payments, and would make them again under the same keys. Its own data show it where they
went backwards. Otherwise the list shows it: its newest rows are of no payment that the store knows, and none that it
knows was sent after them. A restored backup always looks quiet at first, so a quiet store is compared before it pays.
Where one process makes all payments, its memory suffices: if the store has the newest one, it has lost none.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.payments.matching import (
    Match,
    PaymentQuery,
    Skew,
    Spellings,
    is_within,
    match,
    query_for,
    shift,
    time_of,
)
from mobilemoney_async.payments.records import PaymentRecord

UNREADABLE, LOST, BEHIND = "unreadable", "lost", "behind"
"""Reasons why new payments of an account wait: disbursements until the list could be read; disbursements until the list
must show the payments that the store has lost; all of them until the forgotten time has been listed."""

_QUIET, _ROUTINE = timedelta(minutes=5), timedelta(hours=1)
# Where both clocks agree, an open payment may be a row within a day of its send.
_CLOCKS_AGREE = Skew(low=timedelta(0), high=timedelta(0))


class Suspicion(enum.Enum):
    """Reason to compare a store with its service."""

    BACKWARDS = "the store has lost payments that this process knows of"
    MOVED = "the database was recovered, or another server has taken over"
    OPEN = "an earlier comparison did not end"
    QUIET = "the store has seen no payment for five minutes, and other processes may have made some"
    ROUTINE = "the last comparison was an hour ago"


# SQLite keeps anything in a column, if someone edits it.
_A_TEXT = attrs.validators.optional(attrs.validators.instance_of(str))


def _check_doubt(instance: object, attribute: attrs.Attribute[datetime | None], value: datetime | None) -> None:
    """Refuse a time that is not of this program: it is compared with days around it, and the calendar has ends."""
    if value is not None and not 2000 < value.year < 9000:
        raise ValueError


@attrs.frozen(kw_only=True)
class AccountFacts:
    """Facts about an account, of one time.

    Attributes:
        newest: When the store's newest payment was sent; None if none was. One that is queued counts once it is sent.
        remembered: The newest payment that this process knew of, before it read the others.
        unguarded_at: The newest payment of another process that this one has seen: it would not miss later ones. None
            if there is none.
        timeline_now: PostgreSQL's timeline, or None.
        merchant_id: The account's merchant at the service, if known.
        host: That of the service's base URL, or None.
        credentials: The names of the credentials that are known to be the merchant's, in one text.
        first_record_at: The time of its first payment.
        checked_at: When it was last compared with the service.
        doubted_at: Since when a comparison is to be made or repeated, or None.
        known_until: The service's time until which the store had forgotten nothing then.
        stopped: `UNREADABLE`, `LOST`, `BEHIND` or None.
        gap_at: When there were last forgotten transactions that no payment claims; None if there are none.
        timeline: PostgreSQL's timeline at the last comparison.
    """

    newest: datetime | None = None
    remembered: datetime | None = None
    unguarded_at: datetime | None = None
    timeline_now: int | None = None
    merchant_id: str | None = attrs.field(default=None, validator=_A_TEXT)
    host: str | None = attrs.field(default=None, validator=_A_TEXT)
    credentials: str | None = attrs.field(default=None, validator=_A_TEXT)
    first_record_at: datetime | None = None
    checked_at: datetime | None = None
    doubted_at: datetime | None = attrs.field(default=None, validator=_check_doubt)
    known_until: datetime | None = None
    stopped: str | None = attrs.field(default=None, validator=_A_TEXT)
    gap_at: datetime | None = None
    timeline: int | None = None

    @property
    def lost_until(self) -> datetime | None:
        """Time of the newest payment that this process knew of, if the store has lost it."""
        is_lost = self.remembered is not None and (self.newest is None or self.newest < self.remembered)
        return self.remembered if is_lost else None

    @property
    def has_moved(self) -> bool:
        """True if the database was recovered since the last comparison, or another server has taken over."""
        return None not in (self.timeline, self.timeline_now) and self.timeline != self.timeline_now


def suspicion(facts: AccountFacts, now: datetime, *, grace: float) -> Suspicion | None:
    """Return why a store is to be compared with its service before it sends a payment, or None.

    An empty store has nothing to compare. After a gap was found, the store is compared once more `grace` seconds later:
    the list may have been late.
    """
    newest = facts.newest
    if facts.stopped is not None:
        return Suspicion.OPEN
    if facts.lost_until is not None:
        return Suspicion.BACKWARDS
    if newest is None:
        return None
    if facts.has_moved:
        return Suspicion.MOVED
    if facts.doubted_at is not None and now - facts.doubted_at >= timedelta(seconds=grace):
        return Suspicion.OPEN
    checked_at = facts.checked_at or facts.first_record_at
    if now - max(newest, checked_at or newest) >= _QUIET and not _is_guarded(newest, facts.unguarded_at, now):
        return Suspicion.QUIET
    return Suspicion.ROUTINE if checked_at is None or now - checked_at >= _ROUTINE else None


def _is_guarded(newest: datetime, unguarded_at: datetime | None, now: datetime) -> bool:
    """Return whether this process would miss any payment that the store has lost."""
    return unguarded_at is None or (unguarded_at < newest and now - unguarded_at >= _ROUTINE)


@attrs.frozen(kw_only=True)
class Comparison:
    """Comparison of some pages of the list with a store.

    Attributes:
        rows: The transactions that the pages show.
        owned: The payments that own some of them, by transaction id.
        recorded: The transactions of which the store knows that no payment claims them, or that an open one may.
        open_payments: Payments that a row may be, such as those with an unknown result.
        types: The types of payment that the account makes; none if that is not known.
        merchant_id: The account's merchant, if known.
        doubted_at: Payments that were sent later do not show that the store is complete.
    """

    rows: Sequence[Transaction]
    owned: Mapping[str, PaymentRecord]
    recorded: Container[str] = ()
    open_payments: Iterable[PaymentQuery] = ()
    types: frozenset[TransactionType] = frozenset()
    merchant_id: str | None = None
    doubted_at: datetime

    @property
    def known_until(self) -> datetime | None:
        """Time until which rows that the store knows show it complete, or None if the pages show none."""
        known = (row for row in self.rows if row.created_at is not None and self._is_known(row))
        return max(map(self._known_at, known), default=None)

    @property
    def shows_gap(self) -> bool:
        """True if the newest rows are forgotten, other than second transactions of payments that the store knows."""
        return not all(map(self._is_second, self.forgotten(self.known_until)))

    def forgotten(self, since: datetime | None) -> list[Transaction]:
        """Return the rows, since a time of the service, that may be payments of the store, and that it lacks.

        There is no last time: the service's clock may be ahead of ours by hours.
        """
        return [
            row
            for row in self.rows
            if row.created_at is not None
            and (since is None or row.created_at >= since)
            and row.id not in self.owned
            and row.id not in self.recorded
            and self._may_be_ours(row)
        ]

    def _is_known(self, row: Transaction) -> bool:
        owner = self.owned.get(row.id)
        return row.id in self.recorded or (owner is not None and (owner.sent_at or owner.created_at) <= self.doubted_at)

    def _known_at(self, row: Transaction) -> datetime:
        """Return when the payment of a row was sent, on the service's clock.

        What the store had begun until then it knows. It may have forgotten a payment that was sent later and took
        effect earlier. One that was found in the list may have taken effect after its request was given up.
        """
        owner = self.owned.get(row.id)
        if owner is None or owner.sent_at is None:
            return time_of(row)
        query = query_for(owner)
        start, end = query.window(_CLOCKS_AGREE) if owner.is_adopted else (query.sent_at, query.ended_at)
        return shift(time_of(row), start - end)

    def _may_be_ours(self, row: Transaction) -> bool:
        if row.merchant_id and self.merchant_id and row.merchant_id != self.merchant_id:
            return False
        if self.types and any(row.type == each for each in TransactionType if each not in self.types):
            return False
        fits = (each.reach(_CLOCKS_AGREE) for each in self.open_payments if _fits(each, row))
        return not any(is_within(row, start, end) for start, end in fits)

    def _is_second(self, row: Transaction) -> bool:
        """Return whether a row is rather a payment that the store knows, made twice: a proxy has repeated it."""
        queries = (query_for(record) for record in self.owned.values() if record.sent_at is not None)
        windows = (query.window(None) for query in queries if _fits(query, row))
        return any(is_within(row, start, end) for start, end in windows)


def _fits(query: PaymentQuery, row: Transaction) -> bool:
    return match(query, row, Spellings()) is not Match.NONE
