"""Model of the transaction list: order, length, growth, and how far it is behind. Pure.

The contract documents neither order nor freshness (section 4.4). In either order a row keeps its *place*, its number
counted from the oldest: rows are added, and none is taken away. So a row that was shown once can be found again, and a
new payment's place follows from the length of the list.

Nothing here is relied on: a payment that is not at its place is looked up by its id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from mobilemoney_async.contract.limits import PAGE_SIZE_MAX
from mobilemoney_async.contract.models import PageAnswer, Transaction

# Seconds over which the growth of the list is averaged.
_MEMORY = 20.0
# Rows a second of others from which places are known only roughly.
_FEW_STRANGERS = 0.05
# A page shows an order if this share of its rows, half a page apart, is in it.
_ORDERLY = 0.75
# Differences between the service's timestamps and our clock below this mean nothing, seconds.
NOISE = 2.0
# The list is taken to be at most so far behind, seconds.
_LONGEST_DELAY = 600.0
# While no page is requested, the measured delay halves in this time, seconds.
_HALF_LIFE = 600.0
# Where pages show no ending, they are four times as late as it seemed, or at least so late, seconds.
_NOT_LESS = 10.0
# Endings over which the delay is averaged.
_DELAYS = 5
# The list is doubted after so many pages that were likely to show an ending and did not. An unlikely one counts less.
_DOUBT = 3.0
_TRUST = 12.0
_LEAST = 0.15
# A payment that is missing is expected at so much more than its age, at the latest after so many seconds.
_LATER = 1.5
_LONGEST_MISSING = 120.0


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
        """Return the number of rows: the service's, or the known one where the page itself contradicts that."""
        rows, claimed = len(answer.transactions), answer.pagination.total_count
        is_full = rows >= self.page_size
        pages = answer.pagination.total_pages if is_full else 0
        least = (page - 1) * self.page_size + rows if rows else 0
        if pages > page:
            least = max(least, (pages - 1) * self.page_size + 1)
        if claimed >= least:
            return claimed
        return max(least + (is_full and pages <= page), self._total + self._own)


def _is_newest_first(rows: Sequence[Transaction]) -> bool | None:
    """Return the order of rows, None if they have none. A few may be out of order, as in a list by endings."""
    half = len(rows) // 2
    pairs = [
        (first.created_at, second.created_at) for first, second in zip(rows, rows[len(rows) - half :], strict=False)
    ]
    newer = sum(first > second for first, second in pairs)
    older = sum(first < second for first, second in pairs)
    if max(newer, older) < _ORDERLY * (newer + older) or newer == older:
        return None
    return newer > older


@attrs.define
class ListFreshness:
    """Delay of pages behind lookups. A final state is believed wherever it is shown, an open one may be old."""

    missing: float = 0.0  # a new payment is missing from the list for so long, an estimate in seconds
    _delay: float = 0.0
    _paged_at: float = 0.0
    _ends: int = 0
    _unshown: float = 0.0
    _is_proven: bool = False

    def delay(self, now: float) -> float:
        """Return the delay of the list, seconds; it fades, so that a list that was late is tried again."""
        return self._delay * 0.5 ** (max(0.0, now - self._paged_at) / _HALF_LIFE) if self._delay else 0.0

    @property
    def is_doubtful(self) -> bool:
        """True if pages that should have shown an ending did not: a payment that they show open is then looked up."""
        return self._unshown >= (_TRUST if self._is_proven else _DOUBT)

    def saw_page(self, sent_at: float, *, ended: int, expected: float) -> None:
        """Note the number of endings on a page, and the number that was expected."""
        self._delay, self._paged_at = self.delay(sent_at), max(sent_at, self._paged_at)
        if ended:
            self._unshown, self._is_proven = 0.0, True
        else:
            self._unshown += min(1.0, max(_LEAST, expected))

    def saw_new(self, *, shown: float, missing: float) -> None:
        """Note the age of the youngest new payment that the newest page showed, seconds, infinite if it showed none.

        Also that of the oldest one that it did not show, if that is younger; 0 if there is none.
        """
        # A payment that is missing is not expected right afterwards: until it is listed, pages would be in vain.
        least = 0.0 if not missing else min(_LONGEST_MISSING, shown, _LATER * (missing + 1))
        self.missing = max(min(self.missing, shown), least)

    def saw_end(self, open_after: float, shown_after: float) -> None:
        """Note the delay of one ending.

        It is given in seconds from the end to the latest page that still showed the payment open, which may be
        negative, and to the page that showed the end, infinite if a lookup did.
        """
        late = min(_LONGEST_DELAY, open_after) if open_after > NOISE else 0.0
        bound = max(self._delay, late) if shown_after >= self._delay else max(0.0, late, shown_after)
        self._ends = min(_DELAYS, self._ends + 1)
        self._delay += (bound - self._delay) / self._ends

    def checked(self, *, is_late: bool) -> None:
        """Note a lookup of a payment that pages had shown open: whether it had ended before the latest of them."""
        if is_late and self.is_doubtful:
            self._delay = min(_LONGEST_DELAY, max(_NOT_LESS, 4 * self._delay))
        self._unshown = 0.0
        self._is_proven = self._is_proven and not is_late


@attrs.define
class ServerClock:
    """The service's clock, as far as its rows show it: none of them is from its future.

    It is at least as late as the newest row, so ages are lower bounds: right to a few seconds where payments are made
    all the time, too young where none are.
    """

    _ahead: float = -math.inf  # of the monotonic clock, seconds

    def saw(self, rows: Iterable[Transaction], now: float) -> None:
        """Learn from rows that the service has just shown."""
        newest = max((row.created_at.timestamp() for row in rows), default=-math.inf)
        self._ahead = max(self._ahead, newest - now)

    def age(self, row: Transaction, now: float) -> float:
        """Return the least age of a row that was seen, seconds."""
        return max(0.0, now + self._ahead - row.created_at.timestamp())
