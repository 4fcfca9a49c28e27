"""Comparison of a store with its service: has it forgotten payments, as a restored backup has? Pure.

Such a store would make them again under the same keys. Three things show it:

- The store itself went backwards: it lacks a payment that this process has made, PostgreSQL has another timeline, or an
  operator says so.
- A *life* begins. A store keeps its lives: the times in which its processes have written without a pause of five
  minutes. A backup brings back only the lives before it, so the first payment of a life is compared with the list.
- The list: rows since the store's newest payment that no payment owns, other than answers that were lost.

What the service made inside a life, and no payment owns, is another system's: the store was there and did not make it.

Each row of the list has one class (`RowFacts`), whoever reads it, and in whichever order the pages come. No word about
a payment changes a row's class, only a payment that has its id, or a word about that very row. The callers differ in
what they do with a class: evidence for one payment (`reconciler`), the observer of pages (`unclaimed`), the comparison
after a restore (`recovery`), and the audit.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.payments.ownership.matching import Match, PaymentQuery, Skew, is_within, match

CONTACT: timedelta = timedelta(minutes=5)
"""The longest pause inside a life."""

CLOCKS: timedelta = timedelta(minutes=10)
"""What the clocks of the service and of our processes may have been set by."""


# SQLite keeps anything in a column, if someone edits it.
_A_TEXT = attrs.validators.optional(attrs.validators.instance_of(str))


def _check_time(instance: object, attribute: attrs.Attribute[datetime | None], value: datetime | None) -> None:
    """Refuse a time that is not of this program: it is compared with days around it, and the calendar has ends."""
    if value is not None and not 2000 < value.year < 9000:
        raise ValueError


@attrs.frozen(kw_only=True)
class AccountFacts:
    """Facts about an account, of one time.

    Attributes:
        newest: When the store's newest payment was sent; None if none was. One that is queued counts once it is sent.
        remembered: The newest payment that this process knew of, before it read the others.
        timeline_now: PostgreSQL's timeline, or None.
        merchant_id: The account's merchant at the service, if known.
        host: That of the service's base URL, or None.
        credentials: The names of the credentials that are known to be the merchant's, in one text.
        first_record_at: The time of its first payment.
        queued_since: When the oldest payment was queued that waits for the first one to be sent, or None.
        life_until: Until when the latest life is known to have lasted, or None.
        due_since: Since when a comparison is due, or None.
        known_until: When the newest payment was sent that the store had then.
        again_at: The time from which the comparison is repeated, or None.
        went_backwards: Whether the store itself has shown that it has lost payments.
        lost_at: When there were last transactions of a forgotten time that no payment owns; None if there are none.
        others_until: Until when other systems of the merchant's count as paying too, or None.
        timeline: PostgreSQL's timeline at the first payment, and then at the last comparison.
        state: That of the account, None if it is active; see `payments.account_store`.
        state_note: Why it is not.
    """

    newest: datetime | None = None
    remembered: datetime | None = None
    timeline_now: int | None = None
    merchant_id: str | None = attrs.field(default=None, validator=_A_TEXT)
    host: str | None = attrs.field(default=None, validator=_A_TEXT)
    credentials: str | None = attrs.field(default=None, validator=_A_TEXT)
    first_record_at: datetime | None = None
    queued_since: datetime | None = None
    life_until: datetime | None = None
    due_since: datetime | None = attrs.field(default=None, validator=_check_time)
    known_until: datetime | None = attrs.field(default=None, validator=_check_time)
    again_at: datetime | None = None
    went_backwards: bool | None = None
    lost_at: datetime | None = None
    others_until: datetime | None = None
    timeline: int | None = None
    state: str | None = None
    state_note: str | None = None

    @property
    def lost_until(self) -> datetime | None:
        """Time of the newest payment that this process knew of, if the store has lost it."""
        is_lost = self.remembered is not None and (self.newest is None or self.newest < self.remembered)
        return self.remembered if is_lost else None

    @property
    def has_moved(self) -> bool:
        """True if the database was recovered since the last comparison, if any, or another server has taken over."""
        return None not in (self.timeline, self.timeline_now) and self.timeline != self.timeline_now

    @property
    def shows_loss(self) -> bool:
        """True if the store itself shows that it has lost payments, or may have."""
        return bool(self.went_backwards) or self.lost_until is not None or self.has_moved

    def is_in_use(self, now: datetime) -> bool:
        """Return whether the account may have paid: a backup from before that may have queued payments only."""
        is_old = self.queued_since is not None and now - self.queued_since > CONTACT
        return self.first_record_at is not None or is_old

    def is_in_contact(self, now: datetime) -> bool:
        """Return whether a life goes on; one that lasts into the future is of a clock that was wrong."""
        return self.life_until is not None and abs(now - self.life_until) < CONTACT

    def settles_at(self, now: datetime, grace: timedelta) -> datetime:
        """Return when a list must show all that is lost: `grace` after it was first tried.

        While none is due, a time that has passed is of an earlier comparison, which a backup has brought back.
        """
        known = self.again_at
        return now + grace if known is None or (known <= now and self.due_since is None) else known

    def has_others(self, now: datetime) -> bool:
        """Return whether other systems of the merchant's pay too."""
        return self.others_until is not None and now < self.others_until


def must_compare(facts: AccountFacts, now: datetime) -> bool:
    """Return whether a store is to be compared with its service before it sends a payment.

    An empty store has nothing to compare, unless someone has said that it was restored.
    """
    begins_life = facts.is_in_use(now) and not facts.is_in_contact(now)
    return begins_life or is_comparison_due(facts, now)


def is_comparison_due(facts: AccountFacts, now: datetime) -> bool:
    """Return whether a store is to be compared with its service for another reason than that a life begins."""
    if facts.lost_until is not None or facts.due_since is not None:
        return True
    is_again = facts.again_at is not None and now >= facts.again_at
    return facts.is_in_use(now) and (facts.has_moved or is_again)


@attrs.frozen
class Span:
    """Time of the service's clock, or of ours: a life, or a time that the store has lost."""

    start: datetime
    end: datetime
    went_backwards: bool = False

    def holds(self, at: datetime | None) -> bool:
        """Return whether a moment lies in it."""
        return at is not None and self.start <= at <= self.end


@attrs.frozen(kw_only=True)
class Lives:
    """Lives of a store, on our clock.

    Attributes:
        spans: The lives.
        settled: For how long after its beginning a life may show payments of before.
    """

    spans: Sequence[Span]
    settled: timedelta

    @property
    def began_at(self) -> datetime:
        """When the latest life began; long ago, if there is none."""
        return max((each.start for each in self.spans), default=datetime.min.replace(tzinfo=UTC))

    def hold(self, at: datetime) -> bool:
        """Return whether a moment on our clock lies in a life."""
        return any(each.holds(at) for each in self.spans)

    def remember(self, at: datetime | None, skew: Skew | None, *, before: datetime | None = None) -> bool:
        """Return whether a moment on the service's clock lies in a life, whatever its clock shows.

        With `before`, in one that began before that moment, on the service's clock.
        """
        if at is None or skew is None or skew.high - skew.low > CLOCKS:
            return False
        low, high = shift(at, -skew.high), shift(at, -skew.low)
        spans = [each for each in self.spans if before is None or shift(each.start, skew.high) < before]
        return any(each.start + self.settled < low and high < each.end for each in spans)


@attrs.frozen(kw_only=True)
class DueComparison:
    """Comparison that is due.

    Attributes:
        facts: About the account.
        since: Since when.
        newest: When the newest payment of that time was sent; of an account without one, when its first record is of.
        went_backwards: Whether the store itself shows that it has lost payments, or may have.
    """

    facts: AccountFacts
    since: datetime
    newest: datetime
    went_backwards: bool

    def lost_time(self, skew: Skew) -> Span:
        """Return the time that the store has lost, if it has lost any."""
        return Span(shift(self.newest, skew.low - CLOCKS), shift(self.since, skew.high + CLOCKS), self.went_backwards)


@attrs.frozen(kw_only=True)
class Comparison:
    """Rows of the list that no payment owns, compared with a store.

    Attributes:
        rows: Those from the sending of the store's newest payment on, as of when the comparison became due, and less
            what the clocks may differ by; and those without a time. Without those of other merchants, the explained
            ones, and those that a life of the store remembers.
        searches: The searches for the open attempts.
        skew: How far the service's clock is ahead.
        began_at: When the present life begins.
        grace: The store's grace period, seconds.
    """

    rows: Sequence[Transaction]
    searches: Collection[PaymentQuery]
    skew: Skew
    began_at: datetime
    grace: float

    @property
    def signs(self) -> list[Transaction]:
        """Rows that show that the store is behind: all that have a time, and are not lost answers."""
        return [row for row in self.rows if row.created_at is not None and not self._is_lost_answer(row)]

    @property
    def doubtful(self) -> list[Transaction]:
        """Rows that no machine gives to a payment of an earlier life, since the store may have forgotten another."""
        earlier = [each for each in self.searches if each.sent_at < self.began_at and is_of_lost_life(each)]
        return [row for row in self.rows if any(_fits(each, row) for each in earlier)]

    def _is_lost_answer(self, row: Transaction) -> bool:
        """Return whether a row is near an open payment, and its kind has no more rows than open payments."""
        alike = [each for each in self.searches if _fits(each, row)]
        is_near = any(self._is_near(each, row) for each in alike)
        return is_near and sum(_fits(alike[0], each) for each in self.rows) <= len(alike)

    def _is_near(self, query: PaymentQuery, row: Transaction) -> bool:
        start, end = query.window(self.skew)
        if query.sent_at < self.began_at:
            end = far_edge(query, self.skew, self.grace)
        return is_within(row, start, end)


def _fits(query: PaymentQuery, row: Transaction) -> bool:
    """Return whether a row is of a payment's kind, as far as it is shown."""
    return match(query, row) is not Match.NONE


def is_of_lost_life(query: PaymentQuery) -> bool:
    """Return whether a payment of an earlier life adopts only rows that a life remembers.

    A collection is approved by its customer, and its answer is lost most often; the others are paid by nobody's leave.
    """
    return query.type == TransactionType.DISBURSEMENT or query.is_refused


def far_edge(query: PaymentQuery, skew: Skew, grace: float) -> datetime:
    """Return until when a payment of an earlier life may have been made, on the service's clock."""
    return shift(query.ended_at, skew.low + timedelta(seconds=grace))


# A row may be older than the account's first record by as much, if it fits a payment: clocks differ.
_SLACK = timedelta(minutes=1)
_NO_LIVES = Lives(spans=(), settled=timedelta(0))


class RowClass(enum.Enum):
    """Class of a row of the list."""

    OWNED = "a payment has its id"
    EXPLAINED = "someone has said what it is"
    OTHER_MERCHANT = "it shows another merchant"
    REMEMBERED = "the store was in contact when it was made: an open attempt's, or another system's"
    LOST = "it is of a time that the store has lost"
    HISTORY = "it is older than the account's first payment"
    UNMATCHED = "none of these: it may be an open attempt's, or a forgotten payment's"


@attrs.frozen(kw_only=True)
class RowFacts:
    """Facts that give rows their classes.

    Attributes:
        owned: Ids of transactions that payments own.
        explained: Ids of those that someone has explained.
        lost: Ids of those that are known to be of a lost time.
        lost_times: The times that the store has lost, on the service's clock.
        lives: The lives of the store.
        merchant_id: The account's merchant, if known.
        began_at: When the account made its first payment, on the service's clock; None if that is not asked.
    """

    owned: Collection[str] = ()
    explained: Collection[str] = ()
    lost: Collection[str] = ()
    lost_times: Sequence[Span] = ()
    lives: Lives = _NO_LIVES
    merchant_id: str | None = None
    began_at: datetime | None = None

    def classify(self, row: Transaction, skew: Skew | None) -> RowClass:
        """Return the class of a row; `skew` is how far the service's clock is ahead, None if that is not known."""
        if row.id in self.owned:
            return RowClass.OWNED
        if row.id in self.explained:
            return RowClass.EXPLAINED
        if row.merchant_id and self.merchant_id and row.merchant_id != self.merchant_id:
            return RowClass.OTHER_MERCHANT
        if row.id in self.lost or self.lost_time(row, skew) is not None:
            return RowClass.LOST
        if self.lives.remember(row.created_at, skew):
            return RowClass.REMEMBERED
        if self.began_at is not None and row.created_at is not None and row.created_at < shift(self.began_at, -_SLACK):
            return RowClass.HISTORY
        return RowClass.UNMATCHED

    def lost_time(self, row: Transaction, skew: Skew | None) -> Span | None:
        """Return the lost time that a row is of, or None."""
        return next((each for each in self.lost_times if is_of(each, row.created_at, self.lives, skew)), None)


def is_of(lost: Span, at: datetime | None, lives: Lives, skew: Skew | None) -> bool:
    """Return whether a moment is of a lost time: not if a life remembers it that began before that time.

    In a later life clocks that were set may show what was made before it.
    """
    return lost.holds(at) and not lives.remember(at, skew, before=lost.start)
