"""Comparison of a store with its service before it sends payments, or finds any in the list.

A store that is behind its service would pay forgotten payments again: `comparison` has the signs. All that the service
shows of the forgotten time is kept as unmatched transactions of a lost time, which stop keys of their kind until
someone imports or explains them.

Critical section: one process of an account at a time compares, under the lease `recovery`. Others wait for its result
in the store: disbursements for as long as it takes, collections ten seconds. No transaction is open during a request.
Where the process dies, the call is cancelled, or the list cannot be read, the comparison stays due: the next payment
makes it, or `Payments.reconcile`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.leases import TaskLease, new_holder
from mobilemoney_async.database.schema import accounts, lost_times, unmatched
from mobilemoney_async.errors import MobileMoneyError, StoreError
from mobilemoney_async.events import StoreBehind, emit
from mobilemoney_async.payments.feed.changes import new_epoch
from mobilemoney_async.payments.ownership.binding import Binding, Memory, payment_delayed
from mobilemoney_async.payments.ownership.comparison import (
    CLOCKS,
    AccountFacts,
    Comparison,
    DueComparison,
    RowClass,
    Span,
    is_comparison_due,
    is_of,
    must_compare,
)
from mobilemoney_async.payments.ownership.duplicates import require_placed, require_remembered
from mobilemoney_async.payments.ownership.evidence import Listing, may_be
from mobilemoney_async.payments.ownership.listing import Lister
from mobilemoney_async.payments.ownership.matching import Skew, estimate_skew, own_samples, query_for
from mobilemoney_async.payments.ownership.searches import (
    begin_life,
    find_lives,
    newest_known,
    newest_owned,
    note_restored,
    pause_payouts,
    read_row_facts,
)
from mobilemoney_async.payments.ownership.surplus import open_attempts
from mobilemoney_async.payments.ownership.unclaimed import record_lost
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import owners
from mobilemoney_async.payments.records.reasons import NOTHING_SHOWS, OTHERS_PAY
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentRequest
from mobilemoney_async.payments.records.unmatched import FAILED, IS_OPEN, Line, explained, find_lines, lines_of
from mobilemoney_async.tasks import shielded
from mobilemoney_async.text import printable

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Seconds: the lease, and between two looks whether another process has ended its comparison.
_LEASE, _PAUSE = 30.0, 0.3
# Seconds for which a list that could not be read, or not as a whole, is not asked for again; a collection's patience.
_BACKOFF, _LONG_BACKOFF, _PATIENCE = 10.0, 60.0, 10.0
# Own payments, the latest ones, that show the service's clock.
_WITNESSES = 5
_DAY, _MONTH, _TIME = timedelta(days=1), timedelta(days=30), accounts.c.lost_at.type
_UNREADABLE, _NOT_YET = "its list cannot be read", "its list may not show yet what the store has lost"
_TO_COMPARE, _NOT_NOTED = "has to be compared with the service before a disbursement", "was not noted as compared"
_SAID_SINCE = "someone has said meanwhile that it was restored, or was compared"
_IN_QUESTION = frozenset({RowClass.LOST, RowClass.UNMATCHED})
_NO_CLOCK = (
    "the service's clock is not known, and no machine can tell what transaction {} is: decide by mobilemoney payments "
    "identify, recover or explain"
)
# Where nothing shows it, rows of a day before and after are in question.
_ANY_CLOCK = Skew(low=-_DAY, high=_DAY)

_Listed: TypeAlias = tuple[Listing, Mapping[str, PaymentRecord], Skew]


class _UnreadableError(Exception):
    """Comparison that the list did not allow."""


# Whether the account has transactions of a forgotten time that no payment owns.
_HAS_LOST = sa.exists().where(unmatched.c.account == accounts.c.account, unmatched.c.is_lost, IS_OPEN)


class Recovery:
    """Comparison of one client's store with its service.

    Attributes:
        binding: That of the client's account.
        memory: Shared with the clients of other options.
    """

    def __init__(self, store: AccountStore, pipeline: Pipeline, memory: Memory) -> None:
        self.memory: Memory = memory
        self.binding: Binding = Binding(store, pipeline, self.memory)
        self._store = store
        self._pipeline = pipeline
        self._lister = Lister(pipeline)
        self._grace = timedelta(seconds=store.grace)
        self._settled = store.settles_after(pipeline.options.timeout)

    async def admit(self, request: PaymentRequest, facts: AccountFacts) -> bool:
        """Compare the store with its service if that is due before a payment is sent.

        Returns:
            Whether that took time, in which the payment may have changed.

        Raises:
            StoreError: The payment has to wait, or the account is another merchant's; nothing was sent.
            DuplicateSuspected: The payment may be one that the store has forgotten.
        """
        is_collection = request.type == TransactionType.COLLECTION
        await self.binding.require_bound(facts)
        if self._store.sole_writer is False:
            if (facts.due_since, facts.again_at) != (None, None):  # others pay, too: the newest rows may be theirs
                await self.binding.save(due_since=None, known_until=None, again_at=None, went_backwards=False)
            return False
        now = self._pipeline.utcnow()
        if facts.lost_at is not None:
            has_others = facts.has_others(now)
            await self._store.read(lambda journal: require_remembered(journal, request, has_others=has_others))
        if not must_compare(facts, now):
            self.memory.in_question = ()
            await self.binding.keep_contact(facts)
            if facts.went_backwards and not is_collection:
                raise payment_delayed(f"{_TO_COMPARE}, but {_NOT_YET}")
            return False
        patience = min(_PATIENCE, (self._pipeline.options.deadline or math.inf) / 2) if is_collection else None
        try:
            return await self._compare_alone(facts, patience)
        except _UnreadableError as exc:
            if not is_collection:
                raise payment_delayed(f"{_TO_COMPARE}, but {exc}") from exc.__cause__
            await self.note_due()  # the process with the lease may have died before it did
            if facts.shows_loss or not facts.has_others(now):
                await self._store.read(lambda journal: require_placed(journal, request, now, self.memory.in_question))
        return False

    async def restored(self, note: str, *, is_compared: bool) -> None:
        """Note someone's word that the store was restored from a backup: it is compared before anything is paid.

        Or that they have compared it themselves: that ends the comparison that is due, if no machine can make it now.
        Rows of the lost time which the list shows later are forgotten payments all the same.

        Raises:
            StoreError: None is due, or the list need not show yet what is lost.
        """
        account = self._store.account
        if self._store.sole_writer is False:
            logger.warning(NOTHING_SHOWS)
            if not is_compared:
                await self._store.write(lambda journal: pause_payouts(journal.connection, account), share_key="")
            return
        if is_compared:
            await self._end_comparison(note)
            return
        self._store.due_since = now = self._pipeline.utcnow()
        word = partial(note_restored, note=note, now=now, account=account)
        await self._store.write(lambda journal: word(journal.connection), share_key="")

    async def _end_comparison(self, note: str) -> None:
        facts = await self.binding.read()
        if not (facts.went_backwards or is_comparison_due(facts, self._pipeline.utcnow())):
            raise payment_delayed("needs no comparison with the service, and nothing was noted")
        with suppress(MobileMoneyError):  # it may never be readable
            await self.compare()
        facts, now = await self.binding.read(), self._pipeline.utcnow()
        if not (facts.went_backwards or is_comparison_due(facts, now)):  # the list is whole by now
            await self.binding.save(note=printable(note))
            return
        settles_at = facts.settles_at(now, self._grace)
        if now < settles_at:
            await self.binding.save(again_at=settles_at)
            raise payment_delayed(f"{_NOT_NOTED}: {_NOT_YET}; say so after {settles_at:%Y-%m-%d %H:%M:%S} UTC")
        due, clock = await self._note_due(facts), Skew(low=self._store.clock_offset, high=self._store.clock_offset)
        lost = due.lost_time(clock) if due.went_backwards else None
        if not await shielded(partial(self._save, due, (), lost, clock, note=printable(note))):
            raise payment_delayed(f"{_NOT_NOTED}: {_SAID_SINCE}")

    async def resume(self) -> None:
        """Make a comparison that did not end, if there is one, and raise as `compare` does.

        One for a new life costs a request, and is left to the next payment, or to `compare`.
        """
        facts = await self.binding.read()
        if is_comparison_due(facts, self._pipeline.utcnow()):
            await self.compare()
        else:
            await self.binding.keep_contact(facts)

    async def compare(self) -> None:
        """Make a comparison that is due, if there is one: before any payment is looked for in the list.

        Where the list may not show the lost payments yet, it stays due, and no payment adopts a transaction.

        Raises:
            MobileMoneyError: The list could not be read.
        """
        facts = await self.binding.read()
        if self._store.sole_writer is False or not must_compare(facts, self._pipeline.utcnow()):
            return
        self.memory.unreadable_until = -math.inf
        try:
            await self._compare_alone(facts, None)
        except _UnreadableError as exc:
            if isinstance(exc.__cause__, MobileMoneyError):
                raise exc.__cause__ from None

    async def _compare_alone(self, facts: AccountFacts, patience: float | None) -> bool:
        """Compare the store as the only process of the account, or wait for the one that does.

        Args:
            facts: About the account.
            patience: Seconds; None for as long as it takes.

        Returns:
            Whether that took time.

        Raises:
            _UnreadableError: The list did not allow it, or not in time.
        """
        holder = new_holder(self._pipeline.host)
        lease = TaskLease(self._store.database, self._store.account, "recovery", holder, _LEASE)
        try:
            with anyio.fail_after(patience):
                while not await lease.take():
                    await anyio.sleep(_PAUSE)
                    facts = await self.binding.read()
                    if not must_compare(facts, self._pipeline.utcnow()):
                        return True
        except BaseException as exc:
            if not isinstance(exc, StoreError):  # the lease may be taken all the same
                await shielded(lease.give_back, timeout=_PATIENCE, ignored=StoreError)
            if isinstance(exc, TimeoutError):
                raise _UnreadableError(_UNREADABLE) from None
            raise
        async with lease.held(poll=_PAUSE):
            facts = await self.binding.read()  # another process may have ended its comparison just now
            if must_compare(facts, self._pipeline.utcnow()):
                await self._compare(facts, patience)
        return True

    async def _compare(self, facts: AccountFacts, patience: float | None) -> None:
        """Compare the store with its service, and record the result.

        Raises:
            _UnreadableError: The list could not be read, or may not show the lost payments yet.
        """
        due = await self._note_due(facts)
        cause, backoff = None, _BACKOFF
        if anyio.current_time() >= self.memory.unreadable_until:
            try:
                with anyio.fail_after(patience):
                    obstacle, backoff = await self._look(due)
                if obstacle is None:
                    return
            except StoreError:
                raise
            except (MobileMoneyError, TimeoutError) as exc:
                cause, obstacle = exc, f"{_UNREADABLE}: {str(exc) or 'no answer came in time'}"
            self.memory.unreadable_until, self.memory.obstacle = anyio.current_time() + backoff, obstacle
        raise _UnreadableError(self.memory.obstacle) from cause

    async def note_due(self) -> None:
        """Note a comparison that is due, unless it is: a payment that is made or imported before it shows nothing."""
        facts, is_compared = await self.binding.read(), self._store.sole_writer is not False
        if is_compared and facts.due_since is None and must_compare(facts, self._pipeline.utcnow()):
            await self._note_due(facts)

    async def _note_due(self, facts: AccountFacts) -> DueComparison:
        """Return the comparison that is due, as noted in the store: payments from now on show nothing.

        Its moment belongs to this process: one that a backup has brought back is dated again.
        """
        now = self._pipeline.utcnow()
        went_backwards = facts.shows_loss
        if went_backwards:
            self._store.forget_settled()
        since = self._store.due_since
        if since is None or since != facts.due_since:
            self._store.due_since = since = now
        newest = await self._store.read(partial(newest_known, facts=facts, until=since))
        if (facts.due_since, facts.known_until, facts.went_backwards) != (since, newest, went_backwards):
            await self.binding.save(due_since=since, known_until=newest, went_backwards=went_backwards)
        return DueComparison(facts=facts, since=since, newest=newest, went_backwards=went_backwards)

    async def _look(self, due: DueComparison) -> tuple[str | None, float]:
        """Compare the list with the store; return why it does not suffice, or None, and when to look again."""
        listing, owned, skew = await self._list(due)
        comparison, has_own, flaw = await self._store.read(lambda each: self._read(each, listing, owned, due, skew))
        if comparison.rows and skew == _ANY_CLOCK:
            self.memory.in_question = [row for row in comparison.rows if str(row.status) not in FAILED]
            return _NO_CLOCK.format(may_be([row.id for row in comparison.rows]).about), _BACKOFF
        self.memory.in_question = ()
        rows, lost = comparison.doubtful, None
        if comparison.signs or (due.went_backwards and any(row.created_at is None for row in comparison.rows)):
            lost = due.lost_time(skew)
            rows = [row for row in comparison.rows if row.created_at is None or lost.holds(row.created_at)]
        flaw = flaw if due.went_backwards or lost else None  # else nothing shows that any is to be found
        # A list without any payment of ours proves nothing, and where some are lost it may be late for others.
        is_unsure = due.went_backwards or lost is not None or not has_own
        facts, settles_at = due.facts, due.since + self._grace
        if facts.again_at is not None and facts.due_since is None and facts.lost_until is None and not facts.has_moved:
            settles_at = facts.again_at  # this repeats a comparison; else a backup has brought back an old time
        again_at = settles_at if is_unsure and listing.began_at < settles_at else None
        # Once they are noted, lost transactions are reported by this task or never.
        if not await shielded(partial(self._save, due, rows, lost, skew, again_at=again_at, flaw=flaw)):
            return _SAID_SINCE, _BACKOFF
        if flaw is not None:
            logger.warning("account %r waits with disbursements to be compared: %s", self._store.account, flaw)
            return flaw, _LONG_BACKOFF
        return _NOT_YET if again_at is not None and due.went_backwards else None, _BACKOFF

    async def _list(self, due: DueComparison) -> _Listed:
        """Read the rows from the sending of the newest known payment on."""
        start = shift(due.newest, self._store.clock_offset - CLOCKS)
        listing, owned, skew = await self._list_since(start, due)
        needed = shift(due.newest, skew.low - CLOCKS)
        if needed < start and not listing.is_complete:
            return await self._list_since(needed, due)
        return listing, owned, skew

    async def _list_since(self, start: datetime, due: DueComparison) -> _Listed:
        """Read the rows of a time, the payments that own them, and how far the service's clock is ahead.

        The rows of our own payments show that, or else the Date headers, or nothing (`_ANY_CLOCK`).
        """
        end = due.since + _DAY  # the end of the list, whatever the service's clock shows
        first_day = (due.newest - _DAY).date()  # one to spare, since the service's time zone is undocumented
        listing = await self._lister.near(start, end, first_day)
        if listing.covered is None and not listing.is_complete:
            listing = await self._lister.near(start, end, first_day - _MONTH)  # older rows end it, whatever is counted
        if listing.covered is None and not listing.is_complete:
            listing = await self._lister.complete(first_day)
        owned = await self._store.read(lambda journal: owners(journal, listing.ids))
        samples = own_samples((owned.get(row.id), row) for row in listing.rows)
        skew = estimate_skew(samples[-_WITNESSES:]) or estimate_skew(listing.dates)
        if skew is None or skew.high - skew.low > CLOCKS:
            skew = _ANY_CLOCK
        return listing, owned, skew

    def _read(
        self, journal: Journal, listing: Listing, owned: Mapping[str, PaymentRecord], due: DueComparison, skew: Skew
    ) -> tuple[Comparison, bool, str | None]:
        """Return the comparison of the rows, whether any is owned, where payments own some, and what the list lacks."""
        open_ones = open_attempts(journal)
        facts = read_row_facts(journal, listing.rows, owned, settled=self._settled)
        noted = set(facts.lost)
        # Candidates that the store has seen before: not those that were found while it was to be compared.
        named = {name for each in open_ones for name in each.candidates}
        known = lines_of(journal, named.intersection(row.id for row in listing.rows))
        noted.update(name for name, each in known.items() if facts.lives.hold(each.shown.first_seen_at))
        since = shift(due.newest, skew.low - CLOCKS)
        rows = [row for row in listing.rows if row.id not in noted and facts.classify(row, skew) in _IN_QUESTION]
        undated = [row for row in rows if row.created_at is None]  # of any time
        rows = [row for row in rows if row.created_at is not None and row.created_at >= since]
        rows += undated if rows or due.went_backwards else []
        comparison = Comparison(
            rows=rows,
            searches=[query_for(each) for each in open_ones],
            skew=skew,
            began_at=due.since,
            grace=self._store.grace,
        )
        settled = {*owned, *explained(journal, [each for each in listing.ids if each not in owned])}
        return comparison, bool(owned) or newest_owned(journal, due.since) is None, listing.flaw(since, settled)

    async def _save(
        self,
        due: DueComparison,
        rows: Sequence[Transaction],
        lost: Span | None,
        skew: Skew,
        *,
        flaw: str | None = None,
        again_at: datetime | None = None,
        **values: Any,
    ) -> bool:
        """Write the result of a comparison, with `values` of the account, and report what is lost.

        Where the list has a `flaw`, what it shows is of the lost time, and the comparison stays due.

        Returns:
            Whether it was written: not if someone has said meanwhile that the store was restored, or was compared.
        """
        facts, now = due.facts, self._pipeline.utcnow()
        values |= {"lost_at": sa.case((_HAS_LOST, sa.literal(now, _TIME))), "went_backwards": True}
        if flaw is None:
            known = None if again_at is None else due.newest  # payments until then show nothing either
            values |= {"due_since": None, "known_until": known, "again_at": again_at, "timeline": facts.timeline_now}
            values["went_backwards"] = due.went_backwards and again_at is not None
        else:  # from when on someone may say that they have compared it
            values["again_at"] = facts.settles_at(due.since, self._grace)

        def record(journal: Journal) -> int | None:
            if journal.lock_account().due_since != due.since:
                return None
            lines: list[Line] = []
            if lost is not None:
                journal.insert(lost_times, **attrs.asdict(lost))
                lives = find_lives(journal, self._settled)
                inside = find_lines(journal, IS_OPEN, unmatched.c.created_at.between(lost.start, lost.end))
                lines = [each for each in inside if is_of(lost, each.shown.created_at, lives, skew)]
            count = record_lost(journal, rows, lines, now, went_backwards=due.went_backwards)
            if flaw is None and (due.went_backwards or not facts.is_in_contact(now)):
                begin_life(journal, due.since, now)
            # Cursors of the time that the store has forgotten name other changes now.
            epoch = {"feed_epoch": new_epoch()} if count and lost is not None else {}
            journal.change_rows(accounts, **values, **epoch)
            return count

        count = await self._store.write(record)
        is_recent = facts.lost_at is not None and due.since - facts.lost_at < _DAY and facts.has_others(due.since)
        if count and lost is not None and (due.went_backwards or not is_recent):
            self._report(count, lost.start)
        if count is not None and flaw is None:
            self._store.due_since = None
            if facts.lost_until is not None:  # the account's row says so from now on
                self._store.newest = facts.newest
        return count is not None

    def _report(self, count: int, since: datetime) -> None:
        emit(self._pipeline.on_event, StoreBehind(transactions=count, since=since))
        logger.warning(
            "the store is behind the service, as after a restored backup: %d transactions of account %r since %s "
            "belong to no payment in it; others of their kinds are stopped until you import or explain them: see "
            "mobilemoney payments unclaimed; if other systems of yours pay too, say so with %s",
            count,
            self._store.account,
            f"{since:%Y-%m-%d %H:%M:%S} UTC",
            OTHERS_PAY,
        )
