"""Model of the transaction list: order, length, growth, and how far it is behind. Pure.

The contract documents neither order nor freshness (section 4.4). In either order a row keeps its *place*, its number
counted from the oldest: rows are added, and none is taken away. So a row that was shown once can be found again, and a
new payment's place follows from the length of the list.

Nothing here is relied on: a payment that is not at its place is looked up by its id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

import attrs

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, Transaction

# Seconds over which the growth of the list is averaged.
_MEMORY = 20.0
# A count beyond this is none: places are floats.
_MOST_ROWS = 10**9
# Rows a second of others from which places are known only roughly.
_FEW_STRANGERS = 0.05
# A page shows an order if this share of its rows, half a page apart, is in it.
_ORDERLY = 0.75
# Differences between the service's timestamps and our clock below this mean nothing, seconds.
_NOISE = 2.0
# A row dated so far ahead of our clock tells nothing of the service's, seconds.
_FUTURE = 86_400.0
# The list is taken to be at most so far behind, seconds.
_LONGEST_DELAY = 600.0
# While no page is requested, the measured delay halves in this time, seconds.
_HALF_LIFE = 600.0
# A payment that is missing is expected at so much more than its age, at the latest after so many seconds.
_LATER = 1.5
_LONGEST_MISSING = 120.0
# Where pages show no ending, they are four times as late as it seemed, or at least so late, seconds.
_NOT_LESS = 10.0
# After so many pages in a row without an ending, a payment that they show open is looked up.
_DOUBT = 8


@attrs.define
class ListModel:
    """The list, as far as its pages have shown it."""

    is_known: bool = False  # by any page
    newest_first: bool = True  # until shown otherwise
    page_size: int = PAGE_SIZE_MAX
    _total: int = 0
    _counted_at: float = 0.0
    _own: int = 0
    _strangers: float = 0.0  # rows a second that others add

    @property
    def has_strangers(self) -> bool:
        """True if others add rows, so that places are known only roughly."""
        return self._strangers > _FEW_STRANGERS

    def add_own(self, now: float) -> float:
        """Count a payment that was just created, and return its place."""
        self._own += 1
        return self.length(now)

    def length(self, now: float) -> float:
        """Return the expected number of rows."""
        return self._total + self._own + self._strangers * max(0.0, now - self._counted_at)

    def page_of(self, place: float, now: float) -> int:
        """Return the number of the page that should show a place."""
        if self.newest_first:
            return int(max(0.0, self.length(now) - place) // self.page_size) + 1
        return max(1, math.ceil(place / self.page_size))

    def places(self, page: int, now: float) -> tuple[float, float]:
        """Return the places that a page should show: from above the first to the second."""
        if not self.newest_first:
            return (page - 1) * self.page_size, page * self.page_size
        length = self.length(now)
        return length - page * self.page_size, math.inf if page == 1 else length - (page - 1) * self.page_size

    def pages(self, now: float) -> int:
        """Return the expected number of pages, at least 1."""
        return max(1, math.ceil(self.length(now) / self.page_size))

    def head(self, depth: int, now: float) -> int:
        """Return the number of the page so many pages away from the newest rows; 0 is their own."""
        return depth + 1 if self.newest_first else max(1, self.pages(now) - depth)

    def observe(self, page: int, answer: PageAnswer, now: float) -> list[float]:
        """Learn from the page of a number, and return the places of its rows."""
        rows = answer.transactions
        if 0 < answer.pagination.per_page <= PAGE_SIZE_MAX:
            self.page_size = max(len(rows), answer.pagination.per_page)
        newest_first = _is_newest_first(rows)
        if newest_first is not None:
            self.newest_first = newest_first
        before = (page - 1) * self.page_size
        total = self._count(page, answer)
        elapsed = now - self._counted_at
        if self.is_known and elapsed > 0:
            rate = max(0.0, (total - self._total - self._own) / elapsed)
            self._strangers += (rate - self._strangers) * -math.expm1(-elapsed / _MEMORY)
        self.is_known = True
        self._total, self._own, self._counted_at = total, 0, now
        if self.newest_first:
            return [float(total - before - index) for index in range(len(rows))]
        return [float(before + index + 1) for index in range(len(rows))]

    def _count(self, page: int, answer: PageAnswer) -> int:
        """Return the number of rows: the service's, or the known one where that is impossible by the page itself."""
        rows, claimed = len(answer.transactions), answer.pagination.total_count
        is_full = rows >= self.page_size
        pages = answer.pagination.total_pages if is_full else 0
        pages = pages if pages <= _MOST_ROWS else 0
        least = (page - 1) * self.page_size + rows if rows else 0
        if pages > page:
            least = max(least, (pages - 1) * self.page_size + 1)
        if least <= claimed <= _MOST_ROWS:
            return claimed
        return max(least + (is_full and pages <= page), self._total + self._own)


def _is_newest_first(rows: Sequence[Transaction]) -> bool | None:
    """Return the order of rows, None if they have none. A few may be out of order, as in a list by endings."""
    ages = [row.created_at for row in rows if row.created_at is not None]
    half = len(ages) // 2
    pairs = [pair for pair in zip(ages, ages[len(ages) - half :], strict=False) if pair[0] != pair[1]]
    newer = sum(first > second for first, second in pairs)
    if not pairs or 1 - _ORDERLY < newer / len(pairs) < _ORDERLY:
        return None
    return 2 * newer > len(pairs)


@attrs.define
class ListFreshness:
    """Delay of pages behind lookups. A final state is believed wherever it is shown, an open one may be old."""

    missing: float = 0.0  # a new payment is missing from the list for so long, an estimate in seconds
    checks: int = 0  # lookups of payments that pages show open, since a page showed an ending
    _open_pages: int = 0  # pages since then
    _delay: float = 0.0
    _paged_at: float = 0.0

    def delay(self, now: float) -> float:
        """Return the delay of the list, seconds; it fades, so that a list that was late is tried again."""
        return self._delay * 0.5 ** (max(0.0, now - self._paged_at) / _HALF_LIFE) if self._delay else 0.0

    @property
    def is_doubtful(self) -> bool:
        """True if it is time to look up a payment that pages show open: each time after so many without an ending."""
        return self._open_pages >= _DOUBT * (self.checks + 1)

    def saw_page(self, sent_at: float, *, has_endings: bool) -> None:
        """Note a page, and whether it showed an ending."""
        self._delay, self._paged_at = self.delay(sent_at), max(sent_at, self._paged_at)
        self._open_pages += 1
        if has_endings:
            self._open_pages = self.checks = 0

    def saw_new(self, age: float) -> None:
        """Note the age at which a page showed a new payment for the first time, seconds."""
        self.missing = min(self.missing, age)

    def missed_new(self, age: float) -> bool:
        """Note the age at which a page did not show a new payment yet; return whether it may be there later."""
        if age >= _LONGEST_MISSING:
            return False
        self.missing = max(self.missing, min(_LONGEST_MISSING, _LATER * (age + 1)))
        return True

    def saw_end(self, open_after: float, shown_after: float) -> None:
        """Note the delay of one ending.

        It is given in seconds from the end to the latest page that still showed the payment open, which may be
        negative, and to the page that showed the end, infinite if a lookup did.
        """
        if open_after > _NOISE:
            is_silent = self._open_pages >= _DOUBT
            late = max(_NOT_LESS, 4 * self._delay) if is_silent and shown_after == math.inf else open_after
            self._delay = min(_LONGEST_DELAY, max(self._delay, late))
        self._delay = max(0.0, min(self._delay, shown_after))


@attrs.define
class ServerClock:
    """The service's clock, as far as its rows show it: none of them is from its future, or else it is ignored.

    It is at least as late as the newest row, so ages are lower bounds: right to a few seconds where payments are made
    all the time, too young where none are.
    """

    _ahead: float = -math.inf  # of the monotonic clock, seconds

    def saw(self, rows: Iterable[Transaction], now: float, *, our_time: float = math.inf) -> None:
        """Learn from rows that the service has just shown at a time of our own clock, seconds since 1970."""
        times = (row.created_at.timestamp() for row in rows if row.created_at is not None)
        newest = max((at for at in times if at <= our_time + _FUTURE), default=-math.inf)
        self._ahead = max(self._ahead, newest - now)

    def age(self, created_at: datetime, now: float) -> float:
        """Return the least age of a row that was seen, seconds."""
        return max(0.0, now + self._ahead - created_at.timestamp())
