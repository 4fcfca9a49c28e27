"""What is worth asking now. Pure: time arrives as an argument, and what to do is returned.

One page of the list shows a hundred payments for the price of one lookup. So of all requests that would show a payment
which is due, the one with the most to tell is chosen (`choice.py`).

Politeness: each payment has the advised schedule of its own (contract, section 6; `looks.py`). A request is made only
if it is expected to show a payment that is due; it answers all others that it shows as well.

Invariants:
- Nothing pending, nothing asked.
- A state is believed only from a row with the payment's own id, and ends the following only where the contract calls it
  final. Absence from a page proves nothing: it only makes the payment one that is asked for by its id.
- Every payment is asked about in the end: the longer it has not been seen, the more it weighs, without a bound.
"""

from __future__ import annotations

import math

from mobilemoney_async.contract.limits import UNSEEN_GRACE, Schedule
from mobilemoney_async.contract.models import PageAnswer, Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.errors import InvalidTransactionId, MobileMoneyError, TransactionNotFound
from mobilemoney_async.polling.asking import Asked, ById, Ending, Page, Request, timed_out
from mobilemoney_async.polling.choice import Choice
from mobilemoney_async.polling.hazard import Hazard
from mobilemoney_async.polling.hints import HintAllowance
from mobilemoney_async.polling.lessons import Lessons
from mobilemoney_async.polling.listing import Listing
from mobilemoney_async.polling.looks import Looks
from mobilemoney_async.polling.misses import Misses
from mobilemoney_async.polling.pending import Book, Pending
from mobilemoney_async.polling.rest import Rest
from mobilemoney_async.polling.search import Search
from mobilemoney_async.polling.trust import Trust
from mobilemoney_async.polling.views import Views

# A payment that is followed by a bare id may be of any age. It is taken to be at least so old, seconds.
_BARE_AGE = 60.0
# A new payment whose following goes on here has a place at the end of the list for so long, seconds.
_PLACED = 30.0


class Plan:
    """Which request to make, and what its answer means. All times are monotonic seconds.

    Args:
        schedule: The pauses between two looks at one payment.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._book = Book()
        self._looks = Looks(schedule, self._book)
        self._listing = Listing()
        self._hazard = Hazard()
        self._search = Search()
        self._unplaced: list[Pending] = []  # created before the list was known, in their order
        self._supposed: dict[Pending, None] = {}  # placed at the end of the list by habit, and not seen yet
        self._pages_on_the_way = 0
        self._trust = Trust()
        self._views = Views(book=self._book, listing=self._listing, hazard=self._hazard)
        self._hints = HintAllowance()
        self._hinted = 0
        self._lessons = Lessons(looks=self._looks, hazard=self._hazard, trust=self._trust, views=self._views)
        self._misses = Misses(book=self._book, listing=self._listing, trust=self._trust)
        self._rest = Rest(longest=30.0)
        self._list_rest = Rest(longest=300.0)
        self._lookups_fail = False
        self._choice = Choice(
            book=self._book,
            looks=self._looks,
            listing=self._listing,
            hazard=self._hazard,
            search=self._search,
            trust=self._trust,
            views=self._views,
        )
        self._worth_from: float | None = None  # None when it has to be worked out anew

    def __len__(self) -> int:
        return len(self._book)

    def __contains__(self, transaction_id: str) -> bool:
        return self._book.get(transaction_id) is not None

    # What is followed

    def track(
        self, transaction_id: str, now: float, *, is_new: bool, deadline: float, tracked_at: float | None = None
    ) -> bool:
        """Follow a payment; return False if it is followed already.

        Args:
            transaction_id: Which.
            now: Now.
            is_new: Whether it was certainly created just now. If so, or if it likely was, its first look is due after
                the schedule's first pause, otherwise at once.
            deadline: When to give it up, infinite for never.
            tracked_at: Since when another process has followed it, whose work goes on here: its pauses are those of
                its age.
        """
        self._worth_from = None
        if transaction_id in self:
            return False
        began = now if tracked_at is None else min(tracked_at, now)
        is_dated, is_new = is_new, is_new or self._lessons.habit.is_new
        looks, due = self._looks.first(began, now, is_new=is_new)
        payment = Pending(
            transaction_id,
            now=began,
            created_at=began if is_new else began - _BARE_AGE,
            due=due,
            deadline=deadline,
            is_dated=is_dated,
            is_new=is_new,
        )
        payment.looks = looks
        self._book.add(payment)
        if not (is_dated or self._lessons.habit.is_listed) or now - began > _PLACED:
            self._search.add(payment)
            return True
        if not is_dated:
            self._supposed[payment] = None
        if self._listing.is_known:
            self._book.place(payment, self._listing.add_own(now))
        else:
            self._unplaced.append(payment)
            if len(self._unplaced) > 2 * len(self._book):  # a service without a list
                self._unplaced = [each for each in self._unplaced if self._is_followed(each)]
        return True

    def forget(self, transaction_id: str) -> None:
        """Follow a payment no longer, if it is followed: nobody waits for it here."""
        payment = self._book.get(transaction_id)
        if payment is not None:
            self._end(payment)

    def hint(self, transaction_id: str, now: float) -> bool:
        """Take note that a payment may have changed; return whether it is asked about soon for that.

        Hints may be forged: unknown ids are ignored, and so are hints beyond five at once and one a second.
        """
        payment = self._book.get(transaction_id)
        if payment is None or payment.hinted or not self._hints.take(now):
            return False
        self._worth_from = None
        payment.hinted = True
        self._hinted += 1
        self._book.set_due(payment, min(payment.due, now))
        return True

    def give_up(self, now: float) -> list[Ending]:
        """End the following of what is past its deadline."""
        return [self._end(payment, error=timed_out(payment, now)) for payment in self._book.past_deadline(now)]

    # What to ask

    def give_up_at(self) -> float:
        """Return when the next payment is to be given up, infinite for never."""
        return self._book.first_deadline()

    @property
    def is_urgent(self) -> bool:
        """Whether somebody said that something has changed."""
        return self._hinted > 0

    def ready_at(self) -> float:
        """Return from when on there is something to ask, infinite if there is nothing until an answer comes."""
        if self._pages_on_the_way and not self._listing.is_known:
            return math.inf
        first = max(self._book.first_due(), self._rest.until)
        if first == math.inf or self._list_rest.until > first:
            return first
        if self._worth_from is None:
            self._worth_from = self._choice.worth_from(first)
        return self._worth_from

    def choose(self, now: float) -> Request | None:
        """Return what to ask now, or None if there is nothing."""
        if self.ready_at() > now:
            return None
        use_list = self._list_rest.until <= now
        if use_list and not self._listing.is_known:
            return Page(1)
        return self._choice.most_telling(now, use_list=use_list)

    def ask(self, request: Request, now: float) -> Asked:
        """Note that a request goes out now."""
        self._worth_from = None
        expected = self._expected(request, now)
        if isinstance(request, Page) and request.status is not None:
            self._views.asked(request.status, now)
        elif isinstance(request, Page):
            self._pages_on_the_way += 1
            self._search.asked(request, self._listing, now)
        before = {}
        for payment in self._choice.for_whose_sake(expected, now):
            before[payment] = payment.due, payment.looks
            self._look(payment, now, by_id=isinstance(request, ById))
        return Asked(request=request, at=now, expected=expected, before=before)

    # What came of it

    def take_page(self, asked: Asked, answer: PageAnswer, now: float) -> list[Ending]:
        """Learn from a page.

        Args:
            asked: The request.
            answer: The service's answer.
            now: Now.

        Returns:
            How the following of payments has ended by it.
        """
        self._worth_from = None
        assert isinstance(asked.request, Page)
        self._rest.clear()
        self._lessons.service_time.saw(answer.transactions, now)
        if asked.request.status is not None:
            return self._take_filtered(asked, asked.request.status, answer, now)
        self._pages_on_the_way -= 1
        self._list_rest.clear()
        was_known, was_newest_first = self._listing.is_known, self._listing.newest_first
        ordinals = self._listing.observe(asked.request.number, answer, now)
        if not was_known:
            self._place_unplaced(now)
        rows = self._followed_rows(answer)
        found = sum(self._search.remove(payment) for payment in rows)
        endings = self._take_rows(asked, rows, ordinals, now)
        self._misses.learn_missing(asked, rows, now)
        for payment in list(self._misses.take(asked, rows)):
            self._looks.take_back(payment, asked)
            if payment.ordinal is None and payment in self._supposed:
                self._suppose_no_longer()
        self._search.took(
            asked.request,
            self._listing,
            now,
            found=found,
            rows=len(answer.transactions),
            turned=self._listing.newest_first != was_newest_first,
        )
        return endings

    def take_transaction(self, asked: Asked, row: Transaction, now: float) -> list[Ending]:
        """Learn from a lookup, as from a page. A row with another id than asked for is not believed."""
        self._worth_from = None
        assert isinstance(asked.request, ById)
        if row.id != asked.request.transaction_id:
            self.fail(asked, now, is_unreadable=True)
            return []
        self._lookup_answered()
        self._lessons.service_time.saw([row], now)
        payment = self._book.get(row.id)
        if payment is None:
            return []
        if payment.listed and (row.is_final or self._choice.is_telling(payment, asked.at)):
            self._lessons.check(payment, row, asked.at)
        ending = self._saw(payment, row, asked.at, now)
        return [] if ending is None else [ending]

    def fail(self, asked: Asked, now: float, *, is_unreadable: bool) -> None:
        """Note that a request failed for a reason that says nothing about its payments.

        Args:
            asked: The request.
            now: Now.
            is_unreadable: Whether there was an answer, outside the contract: the same may be said again.
        """
        self._worth_from = None
        if isinstance(asked.request, ById):
            payment = self._book.get(asked.request.transaction_id)
            if payment is not None:
                payment.failures += 1
                if is_unreadable and payment.failures > 1 and not self._rest.is_on:
                    # It is this payment that cannot be read: others can.
                    self._looks.put_off(payment, now)
                    return
        self._rest.extend(now, asked.at)
        if isinstance(asked.request, ById):
            self._lookups_fail = True
            return  # its look is used up: what always fails must not be asked again and again
        status = asked.request.status
        if status is not None:
            self._views.failed(status, now)
        else:
            self._pages_on_the_way -= 1
            self._search.failed(asked.request)
            self._list_rest.extend(now, asked.at)
        for payment in asked.before:
            self._looks.take_back(payment, asked)
            if is_unreadable and status is None and self._is_followed(payment):
                self._book.place(payment, None)

    def refuse(self, asked: Asked, error: MobileMoneyError, now: float) -> list[Ending]:
        """Note that the service does not know a payment, or not by this id; as `take_page`."""
        self._worth_from = None
        assert isinstance(asked.request, ById)
        self._lookup_answered()
        payment = self._book.get(asked.request.transaction_id)
        # What the service has shown before exists, whatever it says now.
        if payment is None or payment.seen:
            return []
        self._search.remove(payment)
        is_early = now - payment.tracked_at < UNSEEN_GRACE
        if isinstance(error, TransactionNotFound) and is_early:
            return []
        if not isinstance(error, TransactionNotFound | InvalidTransactionId):
            return []
        return [self._end(payment, error=error)]

    # Inside

    def _take_rows(
        self, asked: Asked, rows: dict[Pending, tuple[Transaction, int]], ordinals: list[float], now: float
    ) -> list[Ending]:
        """Learn from the rows of a page of all states."""
        endings = []
        expected, expected_ends = set(asked.expected), 0.0
        at = asked.at - self._trust.delay(asked.at)
        for payment, (row, index) in rows.items():
            if not payment.listed and payment.is_dated:
                self._trust.saw_new(is_shown=True)
            payment.listed = True
            payment.misses = 0
            if payment not in expected and self._looks.is_soon(payment, asked.at):
                self._look(payment, asked.at, by_id=False)
            expected_ends += self._choice.untaught_chance(payment, asked.at)
            ending = self._saw(payment, row, at, now, paged_at=asked.at)
            if ending is not None:
                endings.append(ending)
            else:
                payment.open_at = asked.at
                self._book.place(payment, ordinals[index])
        self._trust.saw_page(asked.at, ended=len(endings), expected=expected_ends)
        return endings

    def _lookup_answered(self) -> None:
        self._rest.clear()
        if self._lookups_fail:  # it was not the list alone that was away
            self._lookups_fail = False
            self._list_rest.clear()

    def _take_filtered(self, asked: Asked, status: TransactionStatus, answer: PageAnswer, now: float) -> list[Ending]:
        """Learn from a page of one state: what it shows, and nothing from what it does not."""
        at = asked.at - self._trust.delay(asked.at)
        wanted = [payment for payment in asked.expected if self._is_followed(payment)]
        expected = self._views.endings_among(wanted, at)
        rows = self._followed_rows(answer)
        seen = [self._saw(payment, row, at, now, paged_at=asked.at) for payment, (row, _) in rows.items()]
        endings = [ending for ending in seen if ending is not None]
        passed = [payment for payment in wanted if payment not in rows]
        self._views.took(status, answer, now, at=at, ended=len(endings), expected=expected, passed=passed)
        return endings

    def _expected(self, request: Request, now: float) -> list[Pending]:
        if isinstance(request, Page) and request.status is not None:
            return self._views.wanted(request.status, now)
        if isinstance(request, Page):
            return self._book.between(*self._listing.window(request.number, now))
        payment = self._book.get(request.transaction_id)
        return [] if payment is None else [payment]

    def _followed_rows(self, answer: PageAnswer) -> dict[Pending, tuple[Transaction, int]]:
        """Return the rows of what is followed, each once, with their numbers on the page from 0."""
        rows: dict[Pending, tuple[Transaction, int]] = {}
        for index, row in enumerate(answer.transactions):
            payment = self._book.get(row.id)
            if payment is not None:
                rows.setdefault(payment, (row, index))
        return rows

    def _is_followed(self, payment: Pending) -> bool:
        return self._book.get(payment.id) is payment

    def _look(self, payment: Pending, now: float, *, by_id: bool) -> None:
        """Count a look of a payment's schedule. One that a hint asked for is on top of the schedule."""
        saves = self._choice.saves_looks and not by_id
        self._looks.count(payment, now, saves=saves, is_extra=payment.hinted)
        self._no_longer_hinted(payment)

    def _saw(
        self, payment: Pending, row: Transaction, at: float, now: float, *, paged_at: float = math.inf
    ) -> Ending | None:
        """Learn from a row; `at` is when its state was true at the earliest, `paged_at` when its page was asked for."""
        payment.failures = 0
        self._supposed.pop(payment, None)
        if row.is_final:
            lag = self._lessons.saw_end(payment, row, paged_at, now)
            return self._end(payment, transaction=row, lag=lag)
        self._lessons.saw_open(payment, row, at, now)
        return None

    def _end(
        self,
        payment: Pending,
        *,
        transaction: Transaction | None = None,
        error: MobileMoneyError | None = None,
        lag: float | None = None,
    ) -> Ending:
        self._worth_from = None
        self._search.remove(payment)
        self._supposed.pop(payment, None)
        self._no_longer_hinted(payment)
        self._book.remove(payment)
        return Ending(transaction_id=payment.id, transaction=transaction, error=error, lag=lag)

    def _place_unplaced(self, now: float) -> None:
        """Place what was created before the list was known: last in the list, in the order of its creation."""
        last = self._listing.length(now)
        for back, payment in enumerate(reversed(self._unplaced)):
            if self._is_followed(payment):
                self._book.place(payment, max(0.0, last - back))
        self._unplaced.clear()

    def _suppose_no_longer(self) -> None:
        """Look everywhere for what was placed at the end of the list by habit: one of them is not there."""
        self._lessons.habit.missed()
        for payment in self._supposed:
            self._book.place(payment, None)
            self._search.add(payment)
        self._supposed.clear()

    def _no_longer_hinted(self, payment: Pending) -> None:
        self._hinted -= payment.hinted
        payment.hinted = False
