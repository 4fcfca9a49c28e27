"""Observer of the service's list: rows that no payment of the store owns, paid twice or by another system.

Every page of the list that any part of a client reads is compared with the store, without a request of its own. A row
without an owner gets a line in the table (`unmatched`); one so young that its payment may still be on its way is
remembered until it is not. `grace` and a time-out after it was first seen, what no open attempt may have made is
reported once.

`AccountStore.seen` remembers the rows, so a page of known rows asks nothing of the database:

- True: a payment has acknowledged it, so it also shows which merchant is ours.
- False: it is history, of another merchant, or was found in the list by its payment.
- a time: nothing owns it yet, and it is judged from then on.
- its status: it was reported, or explained.

Critical section: of several processes that report a row at once, the one that has noted so does it. A task that is
cancelled meanwhile ends that first, inside a shield. Other tasks may change `seen` at each await, to the same end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import international, shift
from mobilemoney_async.contract.models import Transaction, UnreadableRow
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import unmatched
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import TransactionUnclaimed, emit
from mobilemoney_async.payments.ownership.binding import Binding
from mobilemoney_async.payments.ownership.comparison import RowClass, RowFacts
from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard
from mobilemoney_async.payments.ownership.matching import (
    Match,
    Skew,
    estimate_skew,
    is_within,
    match,
    may_be_within,
    own_samples,
    query_for,
)
from mobilemoney_async.payments.ownership.searches import read_row_facts
from mobilemoney_async.payments.ownership.surplus import find_attempt, open_attempts, surplus
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks, merchant_of, owners
from mobilemoney_async.payments.records.reasons import OTHERS_PAY
from mobilemoney_async.payments.records.record import OPEN, UNREADABLE, PaymentRecord, UnclaimedTransaction
from mobilemoney_async.payments.records.rows import digest
from mobilemoney_async.payments.records.transaction_states import compare_final_states
from mobilemoney_async.payments.records.unmatched import (
    IS_OPEN,
    IS_OWNED,
    Line,
    add_line,
    find_lines,
    lines_of,
    shown_values,
    thin,
)
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.tasks import shielded
from mobilemoney_async.text import shown_id, shown_text
from mobilemoney_async.values import valid_name

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Surplus transactions of an account. Some places are kept for those that may be paid twice.
_MOST, _MOST_STRANGERS = 1_000, 900
# Rows within a week that prove another system, and for how long that holds after the last one.
_PROOF, _WEEK, _MONTH = 3, timedelta(days=7), timedelta(days=30)
# The time between two warnings, and after a failure of the store.
_QUIET = timedelta(minutes=5)
_MOST_NAMED = 3
# The time between two looks whether the store's life goes on.
_CONTACT = timedelta(minutes=1)

_columns = unmatched.c
# Lines to report; due ones that an open attempt may have made; and whether others had no room.
_Recorded: TypeAlias = tuple[list[UnclaimedTransaction], list[Line], bool]


class UnclaimedObserver:
    """Observer of the transaction list for one client with a store.

    Args:
        store: Of the account.
        binding: Of the account; another merchant's list is not compared.
        pipeline: Of the client.
    """

    def __init__(self, store: AccountStore, binding: Binding, pipeline: Pipeline) -> None:
        self._store = store
        self._binding = binding
        self._seen = store.seen
        self._utcnow = pipeline.utcnow
        self._wait = store.settles_after(pipeline.options.timeout)
        self._on_event = pipeline.on_event
        # As rows of our own payments show it; None if none does yet.
        self._skew: Skew | None = None
        self._is_full = False
        self._unreported: list[UnclaimedTransaction] = []
        self._quiet_until: datetime | None = None
        self._paused_until: datetime | None = None
        self._contact_at: datetime | None = None

    async def observe(self, rows: Sequence[Transaction], unreadable: Sequence[UnreadableRow] = ()) -> None:
        """Compare the rows of a page with the store, and report those that no payment claims.

        Errors are logged: the page itself is fine. A cancelled call may leave rows to the next page that shows them.
        """
        now = self._utcnow()
        if self._unreported:
            self._warn(now)
        if self._contact_at is None or now - self._contact_at >= _CONTACT:
            self._contact_at = now
            with suppress(StoreError):  # the next page is not far
                await self._binding.keep_contact()
        await compare_final_states(self._store, rows, now=now, on_event=self._on_event)
        if self._store.sole_writer is False:
            return  # what no payment claims is of other systems
        rows = [*rows, *(_of_unknown_kind(each) for each in unreadable)]
        seen = self._seen.get
        new = [row for row in rows if not isinstance(seen(row.id), bool) and self._is_new(row, now)]
        if not new or (self._paused_until is not None and now < self._paused_until):
            return
        try:
            await self._compare(rows, new, now)
        except StoreError as exc:
            self._paused_until = now + _QUIET
            warn_of_store("the list is not compared with the store now", exc)
        except Exception as exc:
            self._paused_until = now + _QUIET
            logger.warning("the list is not compared with the store now: %s", exc, exc_info=True)

    def _is_new(self, row: Transaction, now: datetime) -> bool:
        """Return whether the store has to be asked about a row that is not known to be owned or settled."""
        known = self._seen.get(row.id)
        if isinstance(known, datetime):
            return now >= known
        is_known = known == row.status or (known is not None and _is_unreadable(row))
        return not is_known and valid_name(row.id) is not None

    async def _compare(self, rows: Sequence[Transaction], new: Sequence[Transaction], now: datetime) -> None:
        own = [row.id for row in rows if self._seen.get(row.id) is True][:_MOST_NAMED]
        ids = [*own, *(row.id for row in new)]
        account, owned, lines, merchant_id = await self._store.read(lambda journal: _look(journal, rows, ids))
        if account is None or account.number_key is None or account.first_record_at is None:
            return  # before the first payment
        if not self._binding.is_known(account.host, account.credentials):
            await self._binding.require_bound()
        for transaction_id, record in owned.items():
            self._store.remember(transaction_id, not record.is_adopted)
        self._skew = estimate_skew(own_samples((owned.get(row.id), row) for row in rows)) or self._skew
        # On the service's clock.
        facts = RowFacts(merchant_id=merchant_id, began_at=shift(account.first_record_at, self._clock_offset))
        fresh, changed, is_due = list[tuple[Transaction, datetime]](), list[Transaction](), False
        readable = list[str]()
        for row in (each for each in new if each.id not in owned):
            line = lines.get(row.id)
            if line is not None and _is_unreadable(line.shown) and line.shown.state == OPEN and not _is_unreadable(row):
                readable.append(row.id)
                line = None
            if line is None:
                due_at = self._due_at(row, facts, now)
                if due_at is not None:
                    fresh.append((row, due_at))
                continue
            changed += [row] if line.shown.status != row.status and not _is_unreadable(row) else []
            if line.shown.state != OPEN or line.told_at is not None:
                self._store.remember(row.id, str(row.status))
            else:
                is_due = is_due or now >= line.due_at
                self._store.remember(row.id, max(line.due_at, now))
        if fresh or changed or is_due or readable:
            work = partial(self._record, account=account, fresh=fresh, changed=changed, readable=readable, now=now)
            await shielded(partial(self._write, work, now))  # once it is noted, a row is reported by this task or never

    @property
    def _clock_offset(self) -> timedelta:
        """How far the service's clock is ahead at least; nothing if that is not known."""
        return timedelta(0) if self._skew is None else self._skew.low

    def _due_at(self, row: Transaction, facts: RowFacts, now: datetime) -> datetime | None:
        """Return from when a row without an owner is judged, if it is to have a line now; else remember it."""
        made_at, known = row.created_at, self._seen.get(row.id)
        if facts.classify(row, self._skew) is not RowClass.UNMATCHED:
            self._store.remember(row.id, False)
            return None
        due_at = known if isinstance(known, datetime) else now + self._wait
        is_old = made_at is None or made_at < shift(now, self._clock_offset - self._wait)
        self._store.remember(row.id, due_at)
        return due_at if is_old or now >= due_at else None

    async def _write(self, work: Callable[[Journal], _Recorded], now: datetime) -> None:
        """Write lines by `_record`, and report the unclaimed ones."""
        told, waiting, is_full = await self._store.write(work)
        self._seen.update((each.transaction_id, str(each.status)) for each in told)
        # A row that an open attempt may have made is looked at again, since that may have made another one.
        self._seen.update((each.id, now + self._wait) for each in waiting)
        self._report(told, now, is_full=is_full)

    def _record(
        self,
        journal: Journal,
        *,
        account: sa.Row[Any],
        fresh: Sequence[tuple[Transaction, datetime]],
        changed: Sequence[Transaction],
        readable: Sequence[str],
        now: datetime,
    ) -> _Recorded:
        """Add lines for rows, each with when it is judged, and new states of others; lines that are `readable` go."""
        for row in changed:
            number = international(row.phone_number)
            shown = None if number is None else digest(account.number_key, number)
            known = sa.func.coalesce(_columns.number_digest, shown)
            is_it, values = _columns.transaction_id == row.id, shown_values(row)
            # One that was explained before any list had shown it gets all of that.
            journal.change_rows(unmatched, is_it, _columns.status == "", **values)
            journal.change_rows(unmatched, is_it, status=values["status"], number_digest=known)
        if readable:
            journal.delete_rows(unmatched, _columns.transaction_id.in_(readable), _columns.type == UNREADABLE, IS_OPEN)
        thin(journal, now)
        count, is_full = journal.count(unmatched, IS_OPEN, ~_columns.is_lost), False
        facts = read_row_facts(journal, [], {}, settled=self._wait) if fresh else RowFacts()
        attempts, foreign, unkept = open_attempts(journal), list[datetime](), 0
        for row, due_at in fresh:
            like = find_attempt(journal, row, self._clock_offset)
            lost = facts.lost_time(row, self._skew)
            is_foreign = self._is_foreign(row, like, facts)
            made_at = shift(row.created_at or now, -self._clock_offset)
            foreign += [made_at] if is_foreign else []
            most = _MOST_STRANGERS if like is None else _MOST
            if lost is None and count >= most and not any(self._may_have_made(each, row) for each in attempts):
                is_full, unkept = True, unkept + (is_foreign and made_at >= now - _WEEK)
                continue
            is_new = add_line(
                journal,
                row,
                account.number_key,
                first_at=due_at - self._wait,
                due_at=due_at,
                now=now,
                like=like,
                flags={
                    "is_lost": lost is not None,
                    "went_backwards": lost is not None and lost.went_backwards,
                    "is_foreign": is_foreign,
                },
            )
            count += is_new
        if foreign:
            self._note_others(journal, max(foreign), now, known_until=account.others_until, unkept=unkept)
        lines = find_lines(journal, IS_OPEN)
        left = {each.id for each in surplus(lines, attempts, account.number_key)}
        due = [each for each in lines if each.told_at is None and each.due_at <= now]
        told, is_untold = list[UnclaimedTransaction](), _columns.told_at.is_(None)
        for each in (each.shown for each in due if each.id in left):
            is_it = _columns.transaction_id == each.transaction_id
            # Another process may have done so since the line was read.
            if journal.change_rows(unmatched, is_it, is_untold, told_at=now):
                journal.publish_unclaimed(each.transaction_id, str(each.status), at=now)
                told.append(each)
        return told, [each for each in due if each.id not in left], is_full

    def _is_foreign(self, row: Transaction, like: PaymentRecord | None, facts: RowFacts) -> bool:
        """Return whether another system made a row: the store was there, and no payment of its kind was on its way."""
        is_near = like is not None and is_within(row, *query_for(like).window(self._skew))
        is_asked = self._store.sole_writer is None and not is_near and not _is_unreadable(row)
        return is_asked and facts.classify(row, self._skew) is RowClass.REMEMBERED

    def _may_have_made(self, attempt: PaymentRecord, row: Transaction) -> bool:
        """Return whether a row is a candidate of an open attempt."""
        query = query_for(attempt)
        return match(query, row) is not Match.NONE and may_be_within(row, *query.reach(self._skew))

    def _note_others(
        self, journal: Journal, made_at: datetime, now: datetime, *, known_until: datetime | None, unkept: int
    ) -> None:
        """Note, and say once, that other systems of the merchant's pay too, if enough rows prove it.

        While that is known, one more row is enough, also one that found no room and is shown again.
        """
        until = shift(made_at, _MONTH)
        if until <= max(now, known_until or now):
            return
        known_until = journal.lock_account().others_until  # another process may have said so by now
        is_known = known_until is not None and now < known_until
        recent = (_columns.is_foreign, _columns.first_seen_at >= now - _WEEK, ~IS_OWNED)
        if not is_known and journal.count(unmatched, *recent) + unkept < _PROOF:
            return
        journal.change_account(others_until=until)
        if not is_known:
            logger.warning(
                "another system of the merchant of account %r pays too: its transactions are no longer a reason to "
                "stop collections; say so with %s",
                journal.account,
                OTHERS_PAY,
            )

    def _report(self, made: Sequence[UnclaimedTransaction], now: datetime, *, is_full: bool) -> None:
        for each in made:
            kind, status = shown_text(str(each.type)), shown_text(str(each.status))
            event = TransactionUnclaimed(
                transaction_id=each.transaction_id, type=kind, status=status, fits_key=each.fits_key
            )
            emit(self._on_event, event)
        self._unreported += made
        self._warn(now)
        if is_full and not self._is_full:
            self._is_full = True
            logger.warning(
                "no payment of account %r claims more transactions than are recorded: if other systems of yours pay "
                "too, say so with %s",
                self._store.account,
                OTHERS_PAY,
            )

    def _warn(self, now: datetime) -> None:
        """Log the transactions of the last minutes in one line, unless there was one a short time ago."""
        if not self._unreported or (self._quiet_until is not None and now < self._quiet_until):
            return
        some, self._unreported, self._quiet_until = self._unreported, [], now + _QUIET
        known = [each for each in some if not _is_unreadable(each)]
        stopping = sum(each.is_gap or self._store.sole_writer is True for each in known)
        logger.warning(
            "no payment of account %r claims %d of the transactions at the service, of which %d may be paid twice%s: "
            "%s%s; see payments.unclaimed(), or mobilemoney payments unclaimed",
            self._store.account,
            len(some),
            sum(each.fits_key is not None for each in some),
            f", and {stopping} stop others of their kinds" if stopping else "",
            ", ".join(shown_id(each.transaction_id) for each in some[:_MOST_NAMED]),
            ", …" if len(some) > _MOST_NAMED else "",
        )


def _of_unknown_kind(row: UnreadableRow) -> Transaction:
    """Return a row that cannot be read as a transaction that fits no payment, until the list shows the rest of it."""
    return Transaction(
        id=row.id or "",
        type=TransactionType(UNREADABLE),
        amount=Decimal(0),
        currency="",
        phone_number="",
        status=TransactionStatus(""),
        created_at=row.created_at,
    )


def _is_unreadable(row: Transaction | UnclaimedTransaction) -> bool:
    return row.type == UNREADABLE and row.status == ""


def _look(
    journal: Journal, rows: Sequence[Transaction], ids: Sequence[str]
) -> tuple[sa.Row[Any] | None, Mapping[str, PaymentRecord], Mapping[str, Line], str | None]:
    """Look some of the rows up.

    Returns:
        The account's row, None before its first payment; the payments that own them, by transaction id; the lines of
        others, by id; and the account's merchant, if known.
    """
    owned = owners(journal, ids)
    return journal.find_account(), owned, lines_of(journal, ids), merchant_of(journal, rows, owned)


def record_lost(
    journal: Journal, rows: Sequence[Transaction], lines: Sequence[Line], now: datetime, *, went_backwards: bool
) -> int:
    """Note rows and lines as transactions of a time that the store has forgotten, and return how many are new.

    A row may have a line: it was taken for another system's, since the list was read before the store was compared.
    """
    key = DuplicateGuard().begin(journal, now)
    flags = {"is_lost": True, "went_backwards": went_backwards}
    count = sum(add_line(journal, row, key, first_at=now, due_at=now, now=now, flags=flags) for row in rows)
    for some in chunks([*(row.id for row in rows), *(line.id for line in lines)]):
        is_new = (_columns.transaction_id.in_(some), IS_OPEN, ~_columns.is_lost)
        count += journal.change_rows(unmatched, *is_new, **flags)
    return count
