"""``client.payouts``: batches of disbursements that one person proposes and another approves.

Proposing checks and records, approving queues all lines in one transaction, and a dispatcher sends them. So each step
is done as a whole or not at all, and may be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias, overload

import attrs

from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.contract.codec import Fields
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import Row, batches
from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.errors import TransactionNotFound
from mobilemoney_async.events import Handler
from mobilemoney_async.payments.creates.creates import payment_request
from mobilemoney_async.payments.creates.disbursement_limits import lock_limits, require_batch_within
from mobilemoney_async.payments.outbox.outbox import QueueOptions, cancel_batch, enqueue_all
from mobilemoney_async.payments.payouts.batch import PayoutBatch, PayoutLine, read_person, write_report
from mobilemoney_async.payments.payouts.queries import (
    APPROVED,
    CANCELLED,
    PROPOSED,
    count_states,
    find_all_payments,
    find_keys,
    find_lines,
    find_payments,
    find_row,
    hand_over,
    insert_batch,
    nothing_changed,
    require_approvable,
    to_batch,
    to_line,
)
from mobilemoney_async.payments.payouts.retry import find_open, make_retry, replace, transactions_of
from mobilemoney_async.payments.payouts.review import duplicates_of, find_batch, lines_to_queue
from mobilemoney_async.payments.payouts.rows import Rows, read_rows, warnings_of
from mobilemoney_async.payments.records.account_status import AccountState
from mobilemoney_async.payments.records.account_store import AccountStore, suspended
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentRequest, PaymentState
from mobilemoney_async.payments.records.transaction_states import compare_final_states
from mobilemoney_async.resources.bulk_lookup import Lookup
from mobilemoney_async.values import refuse, require_integer, require_name, require_text

LookUp: TypeAlias = Callable[[Iterable[str]], AsyncIterator[Lookup]]
"""Function that looks up transactions by their ids."""

# States of payments that may still be stopped: one that is on its way may come back.
_STOPPABLE = frozenset(map(str, (PaymentState.QUEUED, PaymentState.SENDING, PaymentState.NOT_SENT)))


@attrs.define(eq=False, slots=False)
class Payouts:
    """Batches of one account. Every method raises `StoreError` if the database fails or cannot be reached."""

    _store: AccountStore = attrs.field(repr=False)
    _utcnow: Callable[[], datetime] = attrs.field(repr=False)
    _limits: DisbursementLimits | None = None
    _look_up: LookUp | None = attrs.field(default=None, repr=False)
    _on_event: Handler | None = attrs.field(default=None, repr=False)

    async def propose(
        self, rows: Rows, *, name: str, by: str, local_numbers: bool = False, columns: Mapping[str, str] | None = None
    ) -> PayoutBatch:
        """Check a batch as a whole, and record it for someone else to approve. Nothing is sent.

        A row that names no key gets one from the content of the whole batch and its number: the same content, proposed
        twice, is paid once. To pay the same people the same amounts again next month, give it a column for the month.

        Args:
            rows: Text, open file or path of a CSV in UTF-8 with the header ``phone_number,amount[,key][,…]``,
                separated by commas, semicolons or tabs; path, bytes or open file of an .xlsx (extra ``xlsx``) with this
                header; or mappings with these keys; 50,000 at most. Other columns come back in the report; ``type``
                and ``currency`` must be ``disbursement`` and ``TZS`` where they are given.
            name: Of the batch, such as ``salaries 2026-11``, at most 200 characters.
            by: Your name, at most 200 characters. Your program checks who you are.
            local_numbers: Whether numbers may be written without their country code (``0788 500 000``), as Tanzanian.
            columns: The file's names of our columns where they are others, such as ``{"amount": "Kiasi"}``.

        Raises:
            InvalidRequest: An argument is invalid, or rows are: it names their lines. Or the extra is missing.
            AccountSuspended: The account is removed.
        """
        hidden = Fields(rows)
        del rows
        title, proposer = require_name("name", name), read_person(by)
        read = read_rows(hidden, local_numbers=local_numbers, columns=columns)

        def record(journal: Journal, now: datetime) -> PayoutBatch:
            account = journal.find_account()
            if account is not None and account.state == AccountState.REMOVED:  # and erased, perhaps
                raise suspended(journal.account, account.state, account.state_note)
            made = insert_batch(journal, read, name=title, by=proposer, at=now)
            return find_batch(journal, made, now, self._limits)

        return await self._store.decide(record, self._utcnow)

    async def approve(self, id: str, *, by: str, digest: str) -> PayoutBatch:
        """Queue all lines of a batch, in one transaction. A dispatcher sends them: ``client.dispatcher()``.

        Approving it again changes nothing. Look at the ``duplicates`` of the result: `cancel` stops what is not sent.

        Args:
            id: The batch.
            by: Your name: another one than the proposer's, by more than case, blanks, accents and punctuation.
            digest: The one that you were shown with the batch.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such batch, it is cancelled, the digest is another one, or you have proposed it. Or
                it is a retry, and a payment that it repeats is not shown as failed any more. Or another process uses
                one of its keys at this very moment: approve it again.
            MobileMoneyError: It is a retry, and a transaction could not be looked up; nothing was queued.
            IdempotencyConflict: A key was used for another payment; nothing was queued.
            LimitExceeded: The batch exceeds one of the client's `DisbursementLimits`, together with what was sent in
                the last 24 hours, and what is queued; nothing was queued.
        """
        approver, shown = read_person(by), require_text("digest", digest).strip()
        name, limits = require_name("id", id), self._limits

        def look(journal: Journal) -> Sequence[str]:
            batch = find_row(journal, name)
            require_approvable(batch, by=approver, digest=shown)
            if batch.parent is None or batch.state != PROPOSED:
                return ()
            replaced = (line.previous_key for line in find_lines(journal, batch.id))
            return transactions_of(journal, find_keys(journal, filter(None, replaced)))

        # Of a retry, once more: the approver may come days after the proposer.
        seen = await self._see(await self._store.read(look))

        def approve(journal: Journal, now: datetime) -> PayoutBatch:
            if limits is not None:
                lock_limits(journal)
            # All batches of this content wait for each other, since they have the same keys; in one order, against
            # deadlocks.
            alike = journal.select(batches).where(batches.c.digest == shown).order_by(batches.c.id)
            journal.execute(alike.with_for_update()).all()
            batch = find_row(journal, name, lock=True)
            require_approvable(batch, by=approver, digest=shown)
            lines = find_lines(journal, batch.id)
            duplicates: Mapping[int, str] = {}
            if batch.state == PROPOSED:
                used = find_payments(journal, batch.id)
                replace(journal, lines, seen, batch=batch.id, at=now)
                if limits is not None:
                    require_batch_within(journal, limits, batch.id, lines_to_queue(lines, used), at=now)
                duplicates = duplicates_of(journal, lines, used, now)
                orders = [_order(batch.id, line) for line in lines]
                enqueue_all(journal, orders, now, used=used)
                journal.change_rows(
                    batches, batches.c.id == batch.id, state=APPROVED, approved_by=approver, approved_at=now
                )
            found = find_batch(journal, batch.id, now)
            return attrs.evolve(found, duplicates=duplicates, warnings=warnings_of(lines))

        return await self._store.decide(approve, self._utcnow)

    async def retry(self, id: str, *, by: str) -> PayoutBatch:
        """Propose the lines of a batch that failed once more, as a new batch for someone else to approve.

        They are the lines that were refused for certain, and those that failed: the transaction of each is looked up
        first, and before the approval. The others are in ``left_out`` of the batch. The new payments have keys of their
        own, and once the retry is approved the old keys are used up. So at most one payment of a line can move money.

        Asked again, or by two people at once, this returns the retry that is still to be approved. A retry may be
        retried, too. A cancelled call has proposed it or not: call it again.

        Args:
            id: The batch, which was approved.
            by: Your name, as for `propose`.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such batch, it was not approved, or none of its lines can be paid again.
            MobileMoneyError: A transaction could not be looked up; nothing was recorded.
        """
        person, name, now = read_person(by), require_name("id", id), self._utcnow()

        def look(journal: Journal) -> PayoutBatch | Sequence[str]:
            found = find_open(journal, find_row(journal, name).id)
            if found is not None:
                return find_batch(journal, found, now, self._limits)
            return transactions_of(journal, find_payments(journal, name))

        failed = await self._store.read(look)
        if isinstance(failed, PayoutBatch):
            return failed
        seen, now = await self._see(failed), self._utcnow()

        def make(journal: Journal) -> PayoutBatch:
            return find_batch(journal, make_retry(journal, name, seen, by=person, at=now), now, self._limits)

        return await self._store.write(make)

    async def _see(self, ids: Sequence[str]) -> Mapping[str, Transaction]:
        """Look up the transactions of lines that are to be paid again; the store records those that have turned."""
        seen: dict[str, Transaction] = {}
        if not ids:
            return seen
        if self._look_up is None:
            raise refuse("payouts", "those of a client: a retry looks up transactions")
        async for each in self._look_up(ids):
            if each.transaction is not None:
                seen[each.transaction_id] = each.transaction
            elif each.error is not None and not isinstance(each.error, TransactionNotFound):
                raise each.error
        await compare_final_states(self._store, [*seen.values()], now=self._utcnow(), on_event=self._on_event)
        return seen

    async def cancel(self, id: str, *, by: str) -> PayoutBatch:
        """Stop the lines of a batch that are not sent yet, but those that another approved batch has under their keys.

        Cancelling it again changes nothing.

        Args:
            id: The batch.
            by: Your name; the proposer's and the approver's will do.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such batch, or none of its payments waits to be sent.
        """
        person, name = read_person(by), require_name("id", id)

        def stop(journal: Journal, now: datetime) -> PayoutBatch:
            batch = find_row(journal, name, lock=True)  # two people may decide at once
            if batch.state == APPROVED and not count_states(journal, batch.id).keys() & _STOPPABLE:
                raise nothing_changed(f"no payment of batch {id!r} waits to be sent")
            hand_over(journal, batch.id)
            cancel_batch(journal, batch.id, note=f"{person}: batch {batch.id} was cancelled", at=now)
            if batch.state != CANCELLED:
                journal.change_rows(
                    batches, batches.c.id == batch.id, state=CANCELLED, cancelled_by=person, cancelled_at=now
                )
            return find_batch(journal, batch.id, now)

        return await self._store.decide(stop, self._utcnow)

    async def get(self, id: str) -> PayoutBatch:
        """Return a batch as it is now.

        Raises:
            InvalidRequest: The id is blank.
            StoreError: There is no such batch.
        """
        name, now = require_name("id", id), self._utcnow()
        return await self._store.read(lambda journal: find_batch(journal, name, now, self._limits))

    async def list(self, *, limit: int = 100) -> list[PayoutBatch]:
        """Return the batches that were proposed last, newest first, without their duplicates and warnings.

        Raises:
            InvalidRequest: The limit is not at least 1.
        """
        most = min(require_integer("limit", limit, 1), 2**63 - 1)  # as for payments.list

        def latest(journal: Journal) -> list[PayoutBatch]:
            newest = (batches.c.proposed_at.desc(), batches.c.id)
            return [to_batch(journal, each) for each in journal.rows(batches, order_by=newest, limit=most)]

        return await self._store.read(latest)

    @overload
    async def report(self, id: str) -> Sequence[PayoutLine]: ...

    @overload
    async def report(self, id: str, format: Literal["csv", "json"]) -> str: ...

    async def report(self, id: str, format: str | None = None) -> Sequence[PayoutLine] | str:
        """Return the lines of a batch with their payments, as `PayoutLine` or as the text of a file.

        Args:
            id: The batch.
            format: ``csv`` or ``json`` for the text of a file, with whole phone numbers; None for `PayoutLine`. In a
                CSV, a text that a spreadsheet would run as a formula gets an apostrophe in front.

        Raises:
            InvalidRequest: An argument is invalid.
            StoreError: There is no such batch.
        """
        name = require_name("id", id)
        if format not in (None, "csv", "json"):
            raise refuse("format", "csv, json or None", format)

        def read(journal: Journal) -> tuple[Row, Mapping[str, Sequence[Row]], Sequence[Row]]:
            batch = find_row(journal, name)
            own = {} if batch.approved_at is None else find_payments(journal, batch.id)
            return batch, find_all_payments(journal, own), find_lines(journal, batch.id)

        batch, found, lines = await self._store.read(read)

        def report() -> Sequence[PayoutLine] | str:
            warnings = warnings_of(lines)
            made = [to_line(each, found.get(each.key, ()), batch, warnings.get(each.line)) for each in lines]
            return made if format is None else write_report(made, format)

        # Of many lines it takes seconds: neither the event loop nor a transaction, which the server may end, waits.
        return await run_in_thread(report)


def _order(batch: str, line: Row) -> tuple[PaymentRequest, QueueOptions]:
    body = {"phone_number": line.phone_number, "amount": line.amount}
    request = payment_request(TransactionType.DISBURSEMENT, body, line.key)
    return request, QueueOptions(batch=batch, line=line.line, previous_key=line.previous_key)
