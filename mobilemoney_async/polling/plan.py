"""What is worth asking now. Pure: time arrives as an argument, and what to do is returned.

One page of the list shows a hundred payments for the price of one lookup. So of all requests that would show a payment
which is due, the plan chooses the one with the most to tell: for each payment that it shows, the chance that it has
ended since it was last seen open, times how long ago that was. This is the waiting that the request is expected to end.

Politeness: each payment has the advised schedule of its own (contract, section 6). A request is made only if it is
expected to show a payment that is due; it answers all others that it shows as well.

Invariants:
- Nothing pending, nothing asked.
- A state is believed only from a row with the payment's own id, and ends the following only where the contract calls it
  final. Absence from a page proves nothing: it only makes the payment one that is asked for by its id.
- Every payment is asked about in the end: the longer it has not been seen, the more it weighs, without a bound.
"""

from __future__ import annotations

import math
from datetime import datetime

from mobilemoney_async.contract.limits import UNSEEN_GRACE, Schedule
from mobilemoney_async.contract.models import PageAnswer, Transaction
from mobilemoney_async.errors import InvalidTransactionId, MobileMoneyError, TransactionNotFound, WaitTimeout
from mobilemoney_async.polling.asking import Asked, ById, Ending, Page, Request
from mobilemoney_async.polling.hazard import Hazard
from mobilemoney_async.polling.hints import HintAllowance
from mobilemoney_async.polling.listing import Listing
from mobilemoney_async.polling.pending import Book, Pending
from mobilemoney_async.polling.rest import Rest
from mobilemoney_async.polling.search import Search
from mobilemoney_async.polling.trust import Trust

# How many of the payments that have been due for longest, and on how many pages, take part in a decision: what bounds
# its cost.
_CANDIDATES = 24
_CANDIDATE_PAGES = 6
# A payment that is followed by a bare id may be of any age. It is taken to be at least so old, seconds.
_BARE_AGE = 60.0
# A payment that is shown anyway has had its look if it falls due within this share of its pause.
_SOON = 0.25
# Whatever is learned about old payments, one in so many seconds may end: so that none weighs nothing.
_LONGEST_LIFE = 14_400.0
# A callback's hint weighs as much as if the payment had certainly ended so long ago, seconds.
_HINT = 60.0
# How many rows a payment may be off its expected place before a page that lacks it says anything: where others add
# rows, and where nobody else does, but creates that are on their way are counted twice or not at all.
_BLUR = 8.0
_OVERLAP = 2.0
# Of how many payments that no page had shown before the share that pages show is averaged.
_HITS = 20


class Plan:
    """Which request to make, and what its answer means. All times are monotonic seconds.

    Args:
        schedule: The pauses between two looks at one payment.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._book = Book()
        self._listing = Listing()
        self._hazard = Hazard()
        self._search = Search()
        self._unplaced: list[Pending] = []  # created before the list was known, in their order
        self._pages_on_the_way = 0
        self._hits = 0.9
        self._trust = Trust()
        self._hints = HintAllowance()
        self._hinted = 0
        self._rest = Rest(longest=30.0)
        self._list_rest = Rest(longest=300.0)

    def __len__(self) -> int:
        return len(self._book)

    def __contains__(self, transaction_id: str) -> bool:
        return self._book.get(transaction_id) is not None

    # What is followed

    def track(self, transaction_id: str, now: float, *, is_new: bool, deadline: float) -> bool:
        """Follow a payment; return False if it is followed already.

        Args:
            transaction_id: Which.
            now: Now.
            is_new: Whether it was created just now. If so its first look is due after the schedule's first pause,
                otherwise at once.
            deadline: When to give it up, infinite for never.
        """
        if transaction_id in self:
            return False
        created_at = now if is_new else now - _BARE_AGE
        due = now + self._schedule.delay(0) if is_new else now
        payment = Pending(transaction_id, now=now, created_at=created_at, due=due, deadline=deadline, is_new=is_new)
        self._book.add(payment)
        if not is_new:
            self._search.add(payment)
        elif self._listing.is_known:
            self._book.place(payment, self._listing.add_own(now))
        else:
            self._unplaced.append(payment)
            if len(self._unplaced) > 2 * len(self._book):  # a service without a list
                self._unplaced = [each for each in self._unplaced if self._is_followed(each)]
        return True

    def hint(self, transaction_id: str, now: float) -> bool:
        """Take note that a payment may have changed; return whether it is asked about soon for that.

        Hints may be forged: unknown ids are ignored, and so are hints beyond five at once and one a second.
        """
        payment = self._book.get(transaction_id)
        if payment is None or payment.hinted or not self._hints.take(now):
            return False
        payment.hinted = True
        self._hinted += 1
        self._book.set_due(payment, min(payment.due, now))
        return True

    def give_up(self, now: float) -> list[Ending]:
        """End the following of what is past its deadline."""
        endings = []
        for payment in self._book.past_deadline(now):
            state = "not seen" if payment.transaction is None else str(payment.transaction.status)
            error = WaitTimeout(
                f"not final after {now - payment.tracked_at:.0f} s: {state}",
                transaction_id=payment.id,
                transaction=payment.transaction,
            )
            endings.append(self._end(payment, error=error))
        return endings

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
        return max(self._book.first_due(), self._rest.until)

    def choose(self, now: float) -> Request | None:
        """Return what to ask now, or None if there is nothing."""
        if self.ready_at() > now:
            return None
        use_list = self._list_rest.until <= now
        if use_list and not self._listing.is_known:
            return Page(1)
        due = self._book.longest_due(now, _CANDIDATES)
        listed = [payment for payment in due if payment.listed]
        if listed and self._trust.wants_check:
            return ById(max(listed, key=lambda payment: now - payment.created_at).id)
        return self._most_telling(due, now, use_list=use_list)

    def _most_telling(self, due: list[Pending], now: float, *, use_list: bool) -> Request:
        """Return the request that ends the most waiting; each shows one of the given payments, all of them due."""
        weights = {payment: self._weight(payment, now) for payment in due}
        weightiest = max(due, key=weights.__getitem__)
        best: Request = ById(weightiest.id)
        most = weights[weightiest]
        if not use_list:
            return best
        for number in self._candidate_pages(due, now):
            weight = self._page_weight(number, now)
            if weight > most:
                best, most = Page(number), weight
        sweep = self._search.next(self._listing, now)
        wanted = max((weights[payment] for payment in due if payment in self._search), default=0.0)
        if sweep is not None and sweep[1] * wanted > most:
            best = sweep[0]
        return best

    def _candidate_pages(self, due: list[Pending], now: float) -> list[int]:
        """Return the numbers of the pages that should show what has been due for longest, and of the newest."""
        pages: dict[int, None] = {}
        for payment in due:
            if payment.ordinal is not None and len(pages) < _CANDIDATE_PAGES:
                pages[self._listing.page_of(payment.ordinal, now)] = None
        if pages:
            pages[self._listing.head(0, now)] = None
        return list(pages)

    def ask(self, request: Request, now: float) -> Asked:
        """Note that a request goes out now."""
        expected = self._expected(request, now)
        if isinstance(request, Page):
            self._pages_on_the_way += 1
            self._search.asked(request, self._listing, now)
        before = {}
        for payment in expected:
            if self._is_soon(payment, now):
                before[payment] = payment.due, payment.looks
                self._look(payment, now)
        return Asked(request=request, at=now, expected=expected, before=before)

    # What came of it

    def take_page(self, asked: Asked, answer: PageAnswer, now: float, utcnow: datetime) -> list[Ending]:
        """Learn from a page.

        Args:
            asked: The request.
            answer: The service's answer.
            now: Now.
            utcnow: The same by the wall clock.

        Returns:
            How the following of payments has ended by it.
        """
        assert isinstance(asked.request, Page)
        self._pages_on_the_way -= 1
        self._rest.clear()
        self._list_rest.clear()
        was_known = self._listing.is_known
        ordinals = self._listing.observe(asked.request.number, answer, now)
        if not was_known:
            self._place_unplaced(now)
        endings = []
        shown: set[Pending] = set()
        found = 0
        for row, ordinal in zip(answer.transactions, ordinals, strict=True):
            payment = self._book.get(row.id)
            if payment is None or payment in shown:
                continue
            shown.add(payment)
            found += self._search.remove(payment)
            if not payment.listed and payment.is_new:
                self._hits += (1 - self._hits) / _HITS
            payment.listed = True
            payment.misses = 0
            if payment not in asked.before and self._is_soon(payment, asked.at):
                self._look(payment, asked.at)
            ending = self._saw(payment, row, asked.at - self._trust.delay, now, utcnow)
            if ending is not None:
                endings.append(ending)
            else:
                self._book.place(payment, ordinal)
        self._trust.saw_page(ended=len(endings))
        self._miss(asked, shown, now)
        self._search.took(asked.request, self._listing, now, found=found, rows=len(answer.transactions))
        return endings

    def take_transaction(self, asked: Asked, row: Transaction, now: float, utcnow: datetime) -> list[Ending]:
        """Learn from a lookup, as from a page. A row with another id than asked for is not believed."""
        assert isinstance(asked.request, ById)
        if row.id != asked.request.transaction_id:
            self.fail(asked, now, is_unreadable=True)
            return []
        self._rest.clear()
        payment = self._book.get(row.id)
        if payment is None:
            return []
        if payment.listed:
            self._trust.checked(has_ended=row.is_final)
        ending = self._saw(payment, row, asked.at, now, utcnow)
        return [] if ending is None else [ending]

    def fail(self, asked: Asked, now: float, *, is_unreadable: bool) -> None:
        """Note that a request failed for a reason that says nothing about its payments.

        Args:
            asked: The request.
            now: Now.
            is_unreadable: Whether there was an answer, outside the contract: the same may be said again.
        """
        self._rest.extend(now, asked.at)
        if isinstance(asked.request, ById):
            return  # its look is used up: what always fails must not be asked again and again
        self._pages_on_the_way -= 1
        self._search.failed(asked.request)
        self._list_rest.extend(now, asked.at)
        for payment in asked.before:
            self._restore(payment, asked)
            if is_unreadable and self._is_followed(payment):
                self._book.place(payment, None)

    def refuse(self, asked: Asked, error: MobileMoneyError, now: float) -> list[Ending]:
        """Note that the service does not know a payment, or not by this id; as `take_page`."""
        assert isinstance(asked.request, ById)
        self._rest.clear()
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

    def _weight(self, payment: Pending, at: float) -> float:
        """Return how long news of a payment, as things were at a time, is expected to have been waiting."""
        unseen = at - payment.seen_at
        if unseen <= 0:
            return 0.0
        if payment.hinted:
            return unseen + _HINT
        age = payment.seen_at - payment.created_at
        # The mean chance to have ended over the time since it was seen, by Simpson's rule; none at the beginning.
        chance = (4 * self._hazard.chance(age, age + unseen / 2) + self._hazard.chance(age, age + unseen)) / 6
        return max(chance, min(1.0, unseen / _LONGEST_LIFE)) * unseen

    def _page_weight(self, number: int, now: float) -> float:
        payments = self._book.between(*self._listing.window(number, now))
        if not any(payment.due <= now for payment in payments):
            return 0.0
        shown = now - self._trust.delay
        return sum(self._weight(each, shown) * (1.0 if each.listed else self._hits) for each in payments)

    def _expected(self, request: Request, now: float) -> list[Pending]:
        if isinstance(request, Page):
            return self._book.between(*self._listing.window(request.number, now))
        payment = self._book.get(request.transaction_id)
        return [] if payment is None else [payment]

    def _is_followed(self, payment: Pending) -> bool:
        return self._book.get(payment.id) is payment

    def _is_soon(self, payment: Pending, now: float) -> bool:
        return payment.due - now <= _SOON * self._schedule.delay(payment.looks)

    def _look(self, payment: Pending, now: float) -> None:
        """Count a look of a payment's schedule. One that a hint asked for is on top of the schedule."""
        if payment.hinted:
            self._no_longer_hinted(payment)
        else:
            payment.looks += 1
        self._book.set_due(payment, max(now, payment.due) + self._schedule.delay(payment.looks))

    def _restore(self, payment: Pending, asked: Asked) -> None:
        """Take back a look that showed nothing, where it was one."""
        if payment in asked.before and self._is_followed(payment):
            due, payment.looks = asked.before[payment]
            self._book.set_due(payment, due)

    def _saw(self, payment: Pending, row: Transaction, at: float, now: float, utcnow: datetime) -> Ending | None:
        """Learn from a row; `at` is when its state was true at the earliest."""
        age = (utcnow - row.created_at).total_seconds()
        if not payment.is_new and age > now - payment.created_at:
            payment.created_at = now - age
            payment.seen_at = max(payment.seen_at, payment.created_at)
            self._slow_down(payment, now, age)
        if row.is_final:
            return self._end(payment, transaction=row, lag=self._learn_end(payment, row, now))
        start = payment.seen_at - payment.created_at
        self._hazard.lived(start, at - payment.created_at)
        payment.seen = True
        payment.seen_at = max(payment.seen_at, at)
        if payment.deadline < math.inf:
            payment.transaction = row
        return None

    def _learn_end(self, payment: Pending, row: Transaction, now: float) -> float | None:
        """Learn when a payment ended, and return how long ago that was, as far as the row or the looks tell."""
        if not payment.is_new and not payment.seen:
            return None
        earliest, latest = payment.seen_at - payment.created_at, now - payment.created_at
        ended_at = row.completed_at or row.failed_at
        if ended_at is None:
            self._hazard.ended(earliest, latest)
            return (latest - earliest) / 2
        age = (ended_at - row.created_at).total_seconds()
        if payment.listed:
            self._trust.saw_end(earliest - age)
        age = min(latest, max(earliest, age))
        self._hazard.lived(earliest, age)
        self._hazard.ended(age, age)
        return latest - age

    def _slow_down(self, payment: Pending, now: float, age: float) -> None:
        """Let a payment that turns out to be old have the pauses of its age."""
        passed = 0.0
        for look in range(payment.looks):
            passed += self._schedule.delay(look)
        looks = payment.looks
        while passed < age and self._schedule.delay(looks) < self._schedule.cap:
            passed += self._schedule.delay(looks)
            looks += 1
        if looks != payment.looks:
            payment.looks = looks
            self._book.set_due(payment, now + self._schedule.delay(looks))

    def _end(
        self,
        payment: Pending,
        *,
        transaction: Transaction | None = None,
        error: MobileMoneyError | None = None,
        lag: float | None = None,
    ) -> Ending:
        self._search.remove(payment)
        self._no_longer_hinted(payment)
        self._book.remove(payment)
        return Ending(transaction_id=payment.id, transaction=transaction, error=error, lag=lag)

    def _miss(self, asked: Asked, shown: set[Pending], now: float) -> None:
        """Ask by id for what the page should have shown and did not."""
        assert isinstance(asked.request, Page)
        low, high = self._listing.window(asked.request.number, asked.at)
        blur = _BLUR if self._listing.has_strangers else _OVERLAP
        for payment in asked.expected:
            if payment in shown or not self._is_followed(payment) or payment.ordinal is None:
                continue
            self._restore(payment, asked)
            payment.misses += 1
            # Near the edge it may be on the next page, but not time and again.
            if low + blur < payment.ordinal <= high - blur or payment.misses > 1:
                if not payment.listed:
                    self._hits -= self._hits / _HITS
                self._book.place(payment, None)

    def _place_unplaced(self, now: float) -> None:
        """Place what was created before the list was known: last in the list, in the order of its creation."""
        last = self._listing.length(now)
        for back, payment in enumerate(reversed(self._unplaced)):
            if self._is_followed(payment):
                self._book.place(payment, max(0.0, last - back))
        self._unplaced.clear()

    def _no_longer_hinted(self, payment: Pending) -> None:
        self._hinted -= payment.hinted
        payment.hinted = False
