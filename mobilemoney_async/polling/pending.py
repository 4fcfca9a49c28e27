"""The payments that are followed, and where to find them: by id, by place in the list, by when they are due. Pure."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from mobilemoney_async.contract.models import Transaction

_SHELF = 100
_NEVER = -math.inf


class Pending:
    """One payment that is followed. Times are monotonic seconds.

    Attributes:
        id: Its transaction id.
        tracked_at: Since when it is followed.
        created_at: When it was created, as far as is known.
        seen_at: When it was last known to be open.
        passed_at: When a filtered page last did not show it, which says that it was open, or that the page is no good.
        passed_share: How far such a page is to be believed in that, 0 to 1.
        due: When the advised schedule next allows to ask about it.
        looks: How many looks of the schedule it has had.
        ordinal: Its place in the list, None where that is unknown: it is then asked for by its id.
        listed: Whether a page has ever shown it.
        open_at: When a page was last asked for that showed it as open, which may have been old news.
        misses: How many pages in a row should have shown it and did not.
        failures: How many lookups of it in a row have failed.
        seen: Whether the service has ever shown it, by page or by id.
        is_dated: Whether its creation is known, since it was tracked by its acknowledgement.
        is_new: Whether it is taken to have been created when it was tracked.
        hinted: Whether somebody said that something changed.
        deadline: When it is given up, infinite for never.
        transaction: As last seen. Kept only where a deadline may tell it to somebody: it is the largest part.
    """

    __slots__ = (
        "created_at",
        "deadline",
        "due",
        "failures",
        "hinted",
        "id",
        "is_dated",
        "is_new",
        "listed",
        "looks",
        "misses",
        "open_at",
        "ordinal",
        "passed_at",
        "passed_share",
        "seen",
        "seen_at",
        "tracked_at",
        "transaction",
    )

    def __init__(
        self,
        transaction_id: str,
        *,
        now: float,
        created_at: float,
        due: float,
        deadline: float,
        is_dated: bool,
        is_new: bool,
    ) -> None:
        self.id: str = transaction_id
        self.tracked_at: float = now
        self.created_at: float = created_at
        self.seen_at: float = created_at
        self.passed_at: float = _NEVER
        self.passed_share: float = 0.0
        self.due: float = due
        self.looks: int = 0
        self.ordinal: float | None = None
        self.listed: bool = False
        self.open_at: float = _NEVER
        self.misses: int = 0
        self.failures: int = 0
        self.seen: bool = False
        self.is_dated: bool = is_dated
        self.is_new: bool = is_new
        self.hinted: bool = False
        self.deadline: float = deadline
        self.transaction: Transaction | None = None

    @property
    def last_looked_for(self) -> float:
        """When it was last seen open, or not seen where a filtered page would have shown its ending."""
        return max(self.seen_at, self.passed_at)


class _Timers:
    """Payments by a time of theirs, earliest first. An entry that is out of date is dropped when it comes up."""

    __slots__ = ("_attribute", "_heap", "_ticket")

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute
        self._heap: list[tuple[float, int, Pending]] = []
        self._ticket = itertools.count()

    def set(self, payment: Pending, at: float) -> None:
        setattr(payment, self._attribute, at)
        if at < math.inf:
            heapq.heappush(self._heap, (at, next(self._ticket), payment))

    def first(self) -> float:
        """Return the earliest time, infinite if there is none."""
        while self._heap and not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now: float, limit: int) -> list[Pending]:
        """Take out payments whose time has come, at most so many."""
        taken: list[Pending] = []
        while len(taken) < limit and self.first() <= now:
            taken.append(heapq.heappop(self._heap)[2])
        return taken

    def tidy(self, most: int) -> None:
        """Drop what is out of date, if it is more than what can be valid."""
        if len(self._heap) > 2 * most + 1000:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def _is_valid(self, entry: tuple[float, int, Pending]) -> bool:
        return bool(getattr(entry[2], self._attribute) == entry[0])


class Book:
    """All payments that are followed. Every change costs the logarithm of their number at most."""

    def __init__(self) -> None:
        self._by_id: dict[str, Pending] = {}
        self._shelves: dict[int, dict[str, Pending]] = {}
        self._top = 0
        self._due = _Timers("due")
        self._deadlines = _Timers("deadline")

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._by_id.values())

    def get(self, transaction_id: str) -> Pending | None:
        """Return a payment, or None if it is not followed."""
        return self._by_id.get(transaction_id)

    def add(self, payment: Pending) -> None:
        """Follow a payment."""
        self._by_id[payment.id] = payment
        self._due.set(payment, payment.due)
        self._deadlines.set(payment, payment.deadline)

    def remove(self, payment: Pending) -> None:
        """Follow a payment no longer."""
        del self._by_id[payment.id]
        self.place(payment, None)
        payment.due = payment.deadline = math.nan  # equal to nothing: its timers are out of date
        self._due.tidy(len(self))
        self._deadlines.tidy(len(self))

    def set_due(self, payment: Pending, at: float) -> None:
        """Set when a payment may be asked about."""
        if payment.due != at:
            self._due.set(payment, at)

    def first_due(self) -> float:
        """Return when the first payment falls due, infinite if there is none."""
        return self._due.first()

    def longest_due(self, now: float, limit: int) -> list[Pending]:
        """Return the payments that have been due for longest, at most so many."""
        due = list(dict.fromkeys(self._due.take(now, limit)))
        for payment in due:
            self._due.set(payment, payment.due)
        return due

    def first_deadline(self) -> float:
        """Return when the first payment is given up, infinite if none is."""
        return self._deadlines.first()

    def past_deadline(self, now: float) -> list[Pending]:
        """Return the payments to be given up now; they are to be removed."""
        return self._deadlines.take(now, len(self))

    def place(self, payment: Pending, ordinal: float | None) -> None:
        """Note where in the list a payment is; None for nowhere that is known."""
        before, payment.ordinal = payment.ordinal, ordinal
        if before is not None:
            shelf = self._shelves[int(before // _SHELF)]
            del shelf[payment.id]
            if not shelf:
                del self._shelves[int(before // _SHELF)]
        if ordinal is not None:
            number = int(ordinal // _SHELF)
            self._top = max(self._top, number)
            self._shelves.setdefault(number, {})[payment.id] = payment

    def between(self, low: float, high: float) -> list[Pending]:
        """Return the payments with ordinals above `low` and up to `high`, which are a page apart."""
        first = max(0, int(low // _SHELF))
        last = self._top if high == math.inf else min(self._top, int(high // _SHELF))
        return [
            payment
            for number in range(first, last + 1)
            for payment in self._shelves.get(number, {}).values()
            if payment.ordinal is not None and low < payment.ordinal <= high
        ]
