"""``client.payments``: the payments of a store, compared with the service."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import date, datetime
from typing import Self

import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.configuration.disbursement_limits import DisbursementLimits
from mobilemoney_async.contract.endpoints import GET_TRANSACTION
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.audit.audit import audit
from mobilemoney_async.payments.audit.report import AuditReport
from mobilemoney_async.payments.book import PaymentBook, lock_unresolved
from mobilemoney_async.payments.creates.creates import IdempotentCreates
from mobilemoney_async.payments.feed.feed import leave_consumers
from mobilemoney_async.payments.ownership.binding import Memory
from mobilemoney_async.payments.ownership.imports import assign, import_transactions
from mobilemoney_async.payments.ownership.reconciler import Reconciler
from mobilemoney_async.payments.ownership.recovery import Recovery
from mobilemoney_async.payments.ownership.surplus import with_fitting
from mobilemoney_async.payments.ownership.unclaimed import UnclaimedObserver
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentRecord
from mobilemoney_async.tasks import shielded
from mobilemoney_async.text import printable
from mobilemoney_async.values import (
    normalise_phone_number,
    refuse,
    require_date,
    require_identifier,
    require_key,
    require_name,
    require_seconds,
    require_text,
)


@attrs.define(eq=False, slots=False)
class Payments(PaymentBook):
    """Payments of one account, from the store and the service. Nothing here moves money.

    Every method raises `StoreError` if the database fails or cannot be reached.
    """

    _pipeline: Pipeline = attrs.field(kw_only=True, repr=False)
    _reconciler: Reconciler = attrs.field(kw_only=True, repr=False)
    _recovery: Recovery = attrs.field(kw_only=True, repr=False)

    async def reconcile(self, *, stale_after: float | None = None) -> builtins.list[PaymentRecord]:
        """Look for unknown payments in the service's transaction list (contract, section 4.4), and record the results.

        Each is looked for in the window of its send, by type, phone number and amount, among the transactions that no
        payment of this store owns. A single, certain match is adopted. Several matches, or one that is not certain,
        become the payment's `candidates`, and someone has to look. A payment that two full listings after the grace
        period have not shown becomes absent; it is sent again only after `confirm_absent`.

        A cancelled call has recorded nothing, or all results of some of the days.

        Args:
            stale_after: Seconds, at least 0, after which a payment that another process is sending counts as unknown.
                By default the end of its request. 0 if you know that no other process is alive: at the start of the
                only worker, say.

        Returns:
            The payments that were looked for, as they are now.

        Raises:
            InvalidRequest: `stale_after` is out of its range.
            MobileMoneyError: The list could not be read; nothing wrong was recorded.
        """
        if stale_after is not None:
            require_seconds("stale_after", stale_after, allow_zero=True)
        await self._recovery.binding.require_bound()
        await self._recovery.resume()
        return await self._reconciler.run(stale_after=stale_after, before=self._recovery.compare)

    async def recover(
        self, keys: Mapping[str, str], *, note: str, phone_numbers: Mapping[str, str] | None = None
    ) -> builtins.list[PaymentRecord]:
        """Import transactions that no payment owns, each under its key: of a restored backup, say.

        A store that is behind its service keeps such transactions among the `unclaimed` ones, with `is_gap`, and stops
        other payments of their kinds until each is imported or explained. Your own books know the keys. A transaction
        may also be a candidate of another payment with an unknown result: whose it is, you say.

        A cancelled call has imported some of them, or all. You may import a transaction again under the same key.

        Args:
            keys: For each idempotency key, the id of its transaction. A key may be new, or that of a payment that is
                queued, cancelled, not sent, refused, unknown, absent or confirmed absent; or of one whose own
                transaction has another final state now, or cannot be read in the store: what is shown is then taken.
            note: The reason and your name; kept in the payments' histories.
            phone_numbers: The whole phone number of each transaction of which the service shows only a part, by its id.

        Returns:
            The payments as they are now, in the same order.

        Raises:
            InvalidRequest: An argument is blank or of a wrong type.
            StoreError: A transaction belongs to a payment, is of another kind than the key's payment, or so young that
                it may be a payment on its way; a key belongs to another transaction, or a phone number is missing.
                Those before it were imported, and the error names the key.
            MobileMoneyError: A transaction could not be fetched. Those before it were imported, as above.
        """
        if not isinstance(keys, Mapping):
            raise refuse("keys", "a mapping of keys to transaction ids", keys)
        pairs = {require_key("keys", key): require_identifier("keys", each) for key, each in keys.items()}
        numbers = {name: normalise_phone_number(each) for name, each in (phone_numbers or {}).items()}
        text = require_text("note", note)
        await self._recovery.binding.require_bound()
        await self._recovery.note_due()
        return await import_transactions(self._store, self._pipeline, pairs, note=text, phone_numbers=numbers)

    async def audit(self, *, from_date: date, to_date: date) -> AuditReport:
        """Compare the store with the service's transaction list, for some days (contract, section 4.4).

        The days are UTC's. It costs one request for a hundred transactions, in the part of the rate limit that payments
        leave, and a few more: the list is read from the day before to two days after, since the zone of the service's
        days is not documented, nor whether the last one is included. It sends no money and may be cancelled. A final
        state that has changed at the service is recorded as a contradiction.

        Args:
            from_date: The first day, UTC.
            to_date: The last day, UTC.

        Raises:
            InvalidRequest: An argument is no date, or the last day is before the first one.
            MobileMoneyError: The list could not be read.
        """
        if require_date("to_date", to_date) < require_date("from_date", from_date):
            raise refuse("to_date", "not before from_date", to_date)
        await self._recovery.binding.require_bound()
        return await audit(self._store, self._pipeline, from_date, to_date)

    async def restored(self, *, note: str, compared: bool = False) -> None:
        """Say that this store was restored from a backup: it is compared with the service before anything is paid.

        Or say that you have compared it yourself, where the service's list can never be read as a whole, and
        disbursements wait. It counts once `grace` is over: look on the service's dashboard for what the list lacks, and
        `recover` it first. What was found stays, and a payment of that time which the list shows later is forgotten
        too, as far as the service's clock is right to ten minutes. A process that remembers a lost payment compares all
        the same: restart it.

        A store notices that by itself where more than five minutes have passed since the backup's last write. Call this
        before the first payment, and it holds for younger backups too: disbursements then wait for `grace` seconds,
        until the list must show all that is lost. With ``sole_writer=False`` nothing is compared, which a warning says,
        since the list may show what other systems paid. A cancelled call may have noted it.

        Queued disbursements wait until someone resumes: cancel again those that were cancelled since the backup.

        Args:
            note: The reason and your name; kept with the account.
            compared: Whether you have compared it: the comparison that is due is over.

        Raises:
            InvalidRequest: The note is blank.
            StoreError: `compared`, and no comparison is due, or `grace` is not over since the list was first tried.
        """
        text = require_text("note", note)
        await self._store.database.open()
        await self._recovery.restored(text, is_compared=compared)

    async def rebind(self, *, note: str) -> None:
        """Bind the store's account to this client's base URL and credentials, after someone has looked.

        An account belongs to the merchant of its transactions. Another host, or credentials that cannot look up one of
        its transactions, are refused with `StoreError`, since they may be another merchant's or a sandbox's. Call this
        where the same merchant has moved.

        Args:
            note: The reason and your name; kept with the account.

        Raises:
            InvalidRequest: The note is blank.
        """
        await self._recovery.binding.rebind(printable(require_text("note", note)))

    async def identify(self, key: str, transaction_id: str, *, note: str) -> PaymentRecord:
        """Decide, after someone has looked, which transaction an unknown or absent payment is.

        The transaction is fetched first, and must be of the payment's type, number, amount and currency, unless its own
        acknowledgement has named it.

        Args:
            key: The payment's idempotency key.
            transaction_id: The transaction: one of its `candidates`, say.
            note: The reason and your name; kept in the payment's history.

        Returns:
            The payment as it is now, with the `candidates` that are left: this word says nothing of them. One that is
            this transaction already stays as it is, unless another end of it was seen.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such payment, it is neither unknown nor absent, a request of it may still be on its
                way, or the transaction is of another kind or belongs to another payment.
            MobileMoneyError: The transaction could not be fetched.
        """
        require_name("key", key)
        require_text("note", note)
        identifiers = {"transaction_id": require_identifier("transaction_id", transaction_id)}
        await self._recovery.binding.require_bound()
        transaction = (await self._pipeline.call(GET_TRANSACTION, identifiers=identifiers)).transaction

        def identify(journal: Journal, now: datetime) -> PaymentRecord | StoreError:
            record = journal.find(key, lock=True)
            is_same = record is not None and record.transaction_id == transaction.id and record.cause is None
            if record is not None and is_same:  # by the same word of another, say
                return with_fitting(journal, record)
            done = assign(journal, lock_unresolved(journal, key, now), transaction, note=note, now=now)
            return done if isinstance(done, StoreError) else with_fitting(journal, done)

        return await self._store.decide_about(key, identify, self._utcnow)


@attrs.define(eq=False)
class ClientStore:
    """Store of one client: what the client does with it, and whether it counts among the store's clients."""

    account_store: AccountStore
    limits: DisbursementLimits | None
    recovery: Recovery
    creates: IdempotentCreates
    payments: Payments
    is_attached: bool = False

    @classmethod
    def assemble(
        cls, store: AccountStore, pipeline: Pipeline, limits: DisbursementLimits | None, memory: Memory | None = None
    ) -> Self:
        """Return the store of a client with this pipeline; `memory` is shared with its clients of other options."""
        memory = Memory() if memory is None else memory
        recovery, reconciler = Recovery(store, pipeline, memory), Reconciler(store, pipeline)
        pipeline.admission = recovery.binding if recovery.binding.has_vault else None
        if pipeline.observer is None:
            pipeline.observer = UnclaimedObserver(store, recovery.binding, pipeline)
        creates = IdempotentCreates(store, pipeline, reconciler, recovery, limits)
        payments = Payments(
            store,
            pipeline.utcnow,
            pipeline.on_event,
            pipeline=pipeline,
            reconciler=reconciler,
            recovery=recovery,
        )
        return cls(store, limits, recovery, creates, payments)

    def sharing(self, pipeline: Pipeline) -> Self:
        """Return the store of a client with other options; it does not count by itself."""
        return self.assemble(self.account_store, pipeline, self.limits, self.recovery.memory)

    def attach(self) -> None:
        """Count among the store's clients."""
        if not self.is_attached:
            self.account_store.attach()
            self.is_attached = True

    async def leave(self) -> None:
        """Write what is not written yet, also when cancelled, and count no longer; a second call does nothing."""
        is_attached, self.is_attached = self.is_attached, False
        if not is_attached:
            return
        try:
            await shielded(self.creates.aclose)
            if self.account_store.clients == 1:
                await leave_consumers(self.account_store)
        finally:
            self.account_store.detach()
