"""Classes of the service's rows: whose is each? Pure; `searches.read_row_facts` reads the facts.

Each row has one class, whoever reads it, and in whichever order the pages come. No word about a payment changes a row's
class, only a payment that has its id, or a word about that very row. The callers differ in what they do with a class:
evidence for one payment (`reconciler`), the observer of pages (`unclaimed`), the comparison after a restore
(`recovery`), and the audit.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import attrs

from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.payments.ownership.comparison import Lives, Span
from mobilemoney_async.payments.ownership.matching import Skew

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
