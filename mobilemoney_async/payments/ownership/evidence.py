"""Evidence for the states of payments: in acknowledgements, and in listings of the transaction list. Pure.

The contract leaves open which errors a create has, and the list's order, freshness, default range and spelling. So
nothing is concluded from silence:

- *Acknowledged* is a payment with an acknowledgement that echoes the amount and the number that were asked for
  (`contract.comparison`). If it does not, its transaction is looked up, and is ours only if it is the payment by all
  that it shows (`names`).
- *Adopted* is a row that fits by type, number and amount, in the contract's spelling or in one that own payments
  prove; in the window of the send; with no other row that may be the payment within a day; and if no other payment of
  ours may be that row (`judge`).
- *Absent* may be said after a listing that was read as a whole, covers the payment's days, has no unreadable row near
  it, shows no row that may be the payment, and passes its positive control (`control`): the nearest own payments before
  and after it are shown, and recognised by the very rule that looks for it.
- A bisection, which reads a part of the list, may find a payment. It never shows that one is absent.

Assumptions that are left (docs/evidence.md has them for the merchant):

- A list that shows the payments before and after a time hides no single transaction between them, in any state.
- The service does not write one payment with another amount, another number or the other type, and its neighbours
  rightly. Numbers that are cut, masked or missing, and unknown words for the type, are no contradiction.
- A request that was given up takes effect within `grace` or never, and the list shows it by then.
- No other system of the merchant makes the same payment in the same minutes.
"""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property
from itertools import chain

import attrs

from mobilemoney_async.contract.comparison import ERASED, international, shift
from mobilemoney_async.contract.models import Transaction, UnreadableRow
from mobilemoney_async.payments.ownership.matching import (
    ANY_FORM,
    ClockSample,
    KindIndex,
    Match,
    PaymentQuery,
    Skew,
    Spellings,
    estimate_skew,
    is_within,
    learn,
    match,
    may_be_within,
    own_samples,
    query_for,
    row_kind,
)
from mobilemoney_async.payments.records.reasons import PaymentCause, Reason
from mobilemoney_async.payments.records.record import PaymentRecord
from mobilemoney_async.text import shown_id

_DAY = timedelta(days=1)
# Farthest time zone from UTC.
_ZONES = timedelta(hours=14)
# Own payments nearest to a search: their timestamps show the service's clock.
_WITNESSES = 5
# Own payments on each side of a search that the list must show, and how far away they may be.
_COMPARED, _FARTHEST = 3, timedelta(days=7)
_MOST_NAMED = 3
_NOT_WHOLE = Reason(PaymentCause.NOT_WHOLE)
_COMPARE = "if it stays so, compare the list yourself, then mobilemoney payments restored --compared --note TEXT"

STEADY: timedelta = timedelta(minutes=10)
"""What the service's clock may be set by around a payment: one that is adopted or compared with, or a forgotten one."""


@attrs.frozen(kw_only=True)
class Listing:
    """Listing of some days of the transaction list.

    Attributes:
        rows: The transactions that were shown.
        unreadable: The rows that cannot be read.
        dates: The service's clock, by the Date headers of the answers.
        began_at: When it began, on our clock.
        ended_at: When it ended, on our clock.
        first_day: The first day that was asked for.
        last_day: The last one; None for all days up to the present.
        is_complete: Whether all pages of those days were read, without a gap, to an empty or the last page.
        covered: Of a bisection, the service times between which all rows are known; None if there are none.
        counted: Of a full listing, the number of rows that the service counts; None if that is not known.
    """

    rows: tuple[Transaction, ...]
    unreadable: tuple[UnreadableRow, ...] = ()
    dates: tuple[ClockSample, ...] = ()
    began_at: datetime
    ended_at: datetime
    first_day: date
    last_day: date | None = None
    is_complete: bool = False
    covered: tuple[datetime, datetime] | None = None
    counted: int | None = None

    @property
    def shortfall(self) -> str:
        """The reason why it is not complete, with the numbers that contradict each other, if they do."""
        shown = len(self.rows) + len(self.unreadable)
        if self.counted is None or shown >= self.counted:
            return str(_NOT_WHOLE)
        return f"{_NOT_WHOLE}: the service counts {self.counted:,} transactions, and has shown {shown:,}"

    @property
    def ids(self) -> list[str]:
        """The ids of the transactions that were shown, of those that cannot be read too."""
        unreadable = (row.id for row in self.unreadable if row.id is not None)
        return [*(row.id for row in self.rows), *unreadable]

    def flaw(self, since: datetime, settled: Container[str | None]) -> str | None:
        """Return why it may not show every transaction from a time on that is not `settled`, or None."""
        if self.covered is None and not self.is_complete:
            return f"{self.shortfall}; {_COMPARE}"
        late = (row.id for row in self.unreadable if row.created_at is None or row.created_at >= since)
        for name in (each for each in late if each not in settled):
            said = _COMPARE if name is None else f"find out what {shown_id(name)} is, and explain it"
            return f"{Reason(PaymentCause.UNREADABLE)}; {said}"
        return None

    def asked(self, start: datetime, end: datetime) -> bool:
        """Return whether the days asked for hold a span on the service's clock.

        The service's time zone is undocumented, and so is whether the last day is included.
        """
        if self.first_day > shift(start, -_ZONES).date():
            return False
        return self.last_day is None or self.last_day >= shift(end, _ZONES + _DAY).date()

    def knows(self, start: datetime, end: datetime) -> bool:
        """Return whether all rows of a span on the service's clock were read."""
        if self.is_complete and self.asked(start, end):
            return True
        return self.covered is not None and self.covered[0] <= start and end <= self.covered[1]


@attrs.frozen(kw_only=True)
class Verdict:
    """Conclusion from one listing about a payment.

    Attributes:
        adopt: The transaction that it is, or None.
        candidates: Ids of the transactions that it may be, if none is certain.
        is_clear: Whether the listing is complete and readable, covers the payment, and shows no such transaction.
        has_none_near: Whether it is complete and readable, and shows no such transaction near the send.
        reason: The reason if neither is so, or if its control has not passed.
    """

    adopt: Transaction | None = None
    candidates: tuple[str, ...] = ()
    is_clear: bool = False
    has_none_near: bool = False
    reason: Reason | None = None

    @property
    def absent_ok(self) -> bool:
        """Whether the listing counts for the payment's absence: it is clear, and its control has passed."""
        return self.is_clear and self.reason is None


@attrs.frozen(kw_only=True)
class Evidence:
    """Evidence in one listing, for all payments that are looked for in it.

    Attributes:
        listing: What was read.
        owned: The payments that own its transactions, by transaction id, as of `owners_of_rows`.
        searches: All payments that may be an unowned transaction, by key: those to be judged, and others on their way,
            unknown, absent, softly refused or released, or with a known transaction that the listing does not show.
        grace: Seconds for which the list may miss a payment after the end of its request.
        hidden: Payments with a known transaction that the listing does not show, though it covers their days.
        explained_ids: Transactions that an operator has explained: they are none of these payments.
        merchant_id: The account's merchant at the service, if known.
    """

    listing: Listing
    owned: Mapping[str, PaymentRecord]
    searches: Mapping[str, PaymentQuery]
    grace: float
    hidden: Sequence[PaymentRecord] = ()
    explained_ids: Container[str] = ()
    merchant_id: str | None = None

    @cached_property
    def spellings(self) -> Spellings:
        """Spellings that the owned transactions prove."""
        return learn(self.listing.rows, self.owned, merchant_id=self.merchant_id)

    @cached_property
    def _rows(self) -> Mapping[str, Transaction]:
        return {row.id: row for row in self.listing.rows}

    @cached_property
    def _free(self) -> KindIndex[Transaction]:
        """Rows that nothing claims."""
        free = KindIndex[Transaction]()
        for row in self.listing.rows:
            if self._is_mistaken(row) or not self._is_settled_id(row.id):
                free.add(row_kind(row), row)
        return free

    @cached_property
    def _searched(self) -> KindIndex[str]:
        searched = KindIndex[str]()
        for key, query in self.searches.items():
            searched.add(query.kind, key)
        return searched

    @cached_property
    def _witnesses(self) -> Sequence[ClockSample]:
        return own_samples((self.owned.get(row.id), row) for row in self.listing.rows)

    def _is_settled_id(self, id: str | None) -> bool:
        """Return whether a transaction cannot be any payment that is searched for."""
        return id is not None and (id in self.owned or id in self.explained_ids)

    def _is_mistaken(self, row: Transaction) -> bool:
        """Return whether a row contradicts the payment that owns it: an acknowledgement had the id of another one."""
        owner = self.owned.get(row.id)
        if owner is None or (row.amount, row.phone_number) == (owner.amount, owner.phone_number):
            return False
        return match(query_for(owner), row, self.spellings) is Match.NONE

    def skew(self, query: PaymentQuery) -> Skew | None:
        """Return how far the service's clock was ahead when a payment was sent, or None if nothing shows it.

        The timestamps of our own payments show it best, since they are compared; the nearest ones show it for that
        time. Without any, the Date headers show it for now.
        """
        place = bisect.bisect_left(self._witnesses, query.sent_at, key=lambda sample: sample.began_at)
        nearest = sorted(
            self._witnesses[max(0, place - _WITNESSES) : place + _WITNESSES],
            key=lambda sample: abs(sample.began_at - query.sent_at),
        )
        own = estimate_skew(nearest[:_WITNESSES])
        return estimate_skew(self.listing.dates) if own is None else attrs.evolve(own, is_own=True)

    def knows(self, key: str) -> bool:
        """Return whether all rows were read of the time in which a payment may have been made."""
        query = self.searches[key]
        return self.listing.knows(*query.window(self.skew(query)))

    def control(self, query: PaymentQuery, known: Iterable[PaymentRecord]) -> Reason | None:
        """Compare the listing with payments that are known to exist, before and after a search.

        Returns the reason why it shows no absence, one of `CONTRADICTIONS` where it is no evidence at all; or None.

        Of `known` count the nearest three on each side that have a transaction and are of the search's type (the list
        may treat the other type otherwise), at most seven days away, and in the days that were asked for. Their request
        must have ended before the search was sent, or have begun after the search was given up, and have ended at least
        `grace` before the listing began. A list that hides any other such payment may hide the lost one, too.

        A part of the list passes no control; the reason then says first what a whole one would lack, too.
        """
        skew = self.skew(query)
        witnesses = self._nearest(query, known)
        earlier = [record for record, own in witnesses if own.ended_at <= query.sent_at]
        later = [record for record, own in witnesses if own.sent_at >= query.ended_at]
        if self.listing.is_complete:
            hidden = [record for record, _ in self._nearest(query, self.hidden)]
            sides = (self._with_place(each, skew)[:_COMPARED] for each in (earlier, later))
            compared = [*chain.from_iterable(sides), *self._with_place(hidden, skew)]
            reason = next(filter(None, (self._contradiction(record, skew) for record in compared)), None)
            if reason is not None:
                return reason
        if not self.is_settled(query.ended_at):
            return Reason(PaymentCause.IN_GRACE)
        if not earlier:
            begin = query.window(skew)[0]
            has_older = any(row.created_at is not None and row.created_at <= begin for row in self.listing.rows)
            is_too_old = self.listing.is_complete and not has_older
            return Reason(PaymentCause.TOO_OLD if is_too_old else PaymentCause.NO_EARLIER)
        if not later:
            return Reason(PaymentCause.NO_LATER)
        if not self.listing.is_complete:
            return _NOT_WHOLE
        for side in (earlier, later):
            if not self._with_place(side, skew):
                is_untimed = any(self._is_untimed(record) for record in side)
                return Reason(PaymentCause.UNTIMED if is_untimed else PaymentCause.OTHER_DAYS)
        return None

    def _nearest(
        self, query: PaymentQuery, known: Iterable[PaymentRecord]
    ) -> Sequence[tuple[PaymentRecord, PaymentQuery]]:
        """Return the payments that a listing of all days could be compared with, nearest first."""
        found = []
        for record in known:
            own = query_for(record)
            distance = abs(own.sent_at - query.sent_at)
            is_near = record.type == query.type and distance <= _FARTHEST
            if is_near and record.transaction_id and self.is_settled(own.ended_at):
                found.append((distance, record, own))
        return [(record, own) for _, record, own in sorted(found, key=lambda each: each[0])]

    def _with_place(self, records: Iterable[PaymentRecord], skew: Skew | None) -> Sequence[PaymentRecord]:
        """Return those of some payments that have a place in the days that were asked for."""
        return [
            each for each in records if not self._is_untimed(each) and self.listing.asked(*query_for(each).window(skew))
        ]

    def _is_untimed(self, record: PaymentRecord) -> bool:
        """Return whether a payment's row has no readable time, and so no place: it is neither shown nor hidden.

        Nor can the row of an erased payment be recognised that shows no whole number.
        """
        row = self._rows.get(record.transaction_id or "")
        if row is None:
            return False
        number = self.owned.get(row.id, record).phone_number
        return row.created_at is None or (number.startswith(ERASED) and international(row.phone_number) is None)

    def is_settled(self, ended_at: datetime) -> bool:
        """Return whether the listing began after the grace period of a request that ended at a time."""
        return shift(ended_at, timedelta(seconds=self.grace)) <= self.listing.began_at

    def _contradiction(self, record: PaymentRecord, skew: Skew | None) -> Reason | None:
        """Return the reason why the listing does not show a payment as the search would find it, or None if it does."""
        row = self._rows.get(record.transaction_id or "")
        if row is None:
            is_unreadable = any(each.id == record.transaction_id for each in self.listing.unreadable)
            return Reason(PaymentCause.UNREADABLE) if is_unreadable else Reason(PaymentCause.HIDDEN, record.key)
        own = query_for(self.owned.get(row.id, record))
        # A lost payment is seen up to a day off. Some minutes off is no reason to distrust the list.
        is_near = is_within(row, *own.window(skew, STEADY))
        if is_near and match(own, row, self.spellings) is Match.CERTAIN:
            return None
        return Reason(PaymentCause.ALTERED, record.key)

    def judge(self, key: str, control: Reason | None) -> Verdict:
        """Return the conclusion about one of the payments that are searched for; `control` as of that."""
        query = self.searches[key]
        skew = self.skew(query)
        first, last = query.reach(skew)
        near: dict[str, tuple[Match, Transaction]] = {}
        for row in self._free.find(query.kind):
            is_near = may_be_within(row, first, last)
            fit = match(query, row, self.spellings) if is_near else Match.NONE
            if fit is not Match.NONE:
                near[row.id] = (Match.POSSIBLE if row.id in self.owned else fit, row)
        flaw = self._flaw(query, skew)
        if not near:
            if flaw is not None:
                return Verdict(reason=flaw if self.listing.is_complete else control or flaw)
            return Verdict(is_clear=True, has_none_near=True, reason=control)
        ids = sorted(near)
        fit, row = near[ids[0]]
        if len(near) == 1 and fit is Match.CERTAIN and self._is_believed(query, row, skew):
            rival = self._rival(key, row, skew)
            if rival is None:
                return Verdict(adopt=row)
            return Verdict(candidates=(row.id,), reason=Reason(PaymentCause.RIVAL, rival))
        window = query.window(skew)
        # Only our own payments show the clock of that time: without them no row is far away.
        is_known = flaw is None and skew is not None and skew.is_own
        is_far = is_known and not any(may_be_within(row, *window) for _, row in near.values())
        return Verdict(candidates=tuple(ids), has_none_near=is_far, reason=may_be(ids))

    def keep_candidates(self, verdict: Verdict, candidates: Iterable[str]) -> Verdict:
        """Return a verdict without candidates with those of earlier that the list still shows, whatever it shows."""
        shown = tuple(each for each in candidates if each in self._rows and not self._is_settled_id(each))
        if not shown:
            return verdict
        return attrs.evolve(verdict, candidates=shown, is_clear=False, has_none_near=False)

    def _is_believed(self, query: PaymentQuery, row: Transaction, skew: Skew | None) -> bool:
        """Return whether a row that is alone may be adopted: it is in the window, and the window is known."""
        start, end = query.window(skew)
        if not is_within(row, start, end) or not self.listing.knows(start, end):
            return False
        if skew is not None and skew.high - skew.low > STEADY:
            return False
        # A part of the list has to show its own clock.
        return self.listing.is_complete or (skew is not None and skew.is_own)

    def _rival(self, key: str, row: Transaction, skew: Skew | None) -> str | None:
        """Return the key of another payment that may be a row as well, or None."""
        for rival in self._searched.find(row_kind(row)):
            other = self.searches[rival]
            # A payment is seen some minutes off where a clock was set: it is a rival all the same.
            is_seen = may_be_within(row, *other.window(skew, STEADY))
            if rival != key and is_seen and match(other, row, self.spellings) is not Match.NONE:
                return rival
        return None

    def _flaw(self, query: PaymentQuery, skew: Skew | None) -> Reason | None:
        """Return the reason why the listing may have missed a payment, apart from its control, or None."""
        if not self.listing.is_complete:
            return _NOT_WHOLE
        if not self.listing.asked(*query.window(skew)):
            return Reason(PaymentCause.OTHER_DAYS)
        first, last = query.reach(skew)
        for row in self.listing.unreadable:
            is_near = row.created_at is None or first <= row.created_at <= last
            if is_near and not self._is_settled_id(row.id):
                return Reason(PaymentCause.UNREADABLE)
        return None


def may_be(transaction_ids: Sequence[str], cause: PaymentCause = PaymentCause.CANDIDATES) -> Reason:
    """Return the reason of a payment that may be one of some transactions."""
    named = [*map(shown_id, transaction_ids[:_MOST_NAMED]), *(["another"] if transaction_ids[_MOST_NAMED:] else [])]
    return Reason(cause, " or ".join(named))


def names(query: PaymentQuery, transaction: Transaction, skew: Skew | None) -> bool:
    """Return whether a transaction is the payment that was sent, looked up by the id of our own acknowledgement.

    Because of that id its number may be in any form. `skew` is from the Date header of the answer, if there is one.
    """
    fit = match(query, transaction, ANY_FORM)
    return fit is Match.CERTAIN and is_within(transaction, *query.window(skew))
