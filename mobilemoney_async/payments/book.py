"""Payments of a store, and the decisions that someone may make about them: without the service."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import attrs

from mobilemoney_async.contract.codec import Fields
from mobilemoney_async.contract.states import TransactionType, require_type
from mobilemoney_async.errors import StoreError
from mobilemoney_async.events import Handler
from mobilemoney_async.payments.feed.changes import number_changes
from mobilemoney_async.payments.feed.consumers import ConsumerState, list_consumers
from mobilemoney_async.payments.feed.feed import ChangePages, ConsumerChanges, forget_unread
from mobilemoney_async.payments.outbox.outbox import cancel, enqueue, hold, read_order
from mobilemoney_async.payments.ownership.reconciliation import look_again, lose_stale
from mobilemoney_async.payments.ownership.surplus import find_unclaimed, with_fitting
from mobilemoney_async.payments.records import queries
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import (
    CLAIMED,
    EXPLAINED,
    OPEN,
    PaymentEvent,
    PaymentRecord,
    PaymentState,
    Source,
    UnclaimedTransaction,
    is_stale,
    move,
)
from mobilemoney_async.payments.records.rows import JournalEntry
from mobilemoney_async.payments.records.transaction_states import keep_final_state
from mobilemoney_async.payments.records.unmatched import explain
from mobilemoney_async.values import (
    hide,
    hide_text,
    normalise_phone_number,
    refuse,
    require_integer,
    require_moment,
    require_name,
    require_text,
)

Changes: TypeAlias = ChangePages | ConsumerChanges
"""Async iterator over `PaymentChange`; ``aclose()`` ends it."""

_MOST_NAMES = 100


@attrs.define(eq=False, slots=False)
class PaymentBook:
    """Payments of one account, from the store alone, without the service. Nothing here moves money.

    Every method raises `StoreError` if the database fails or cannot be reached.

    Args:
        store: Keeps the payments.
        utcnow: The wall clock: returns an aware UTC datetime; by default that which all processes of the store share.
        on_event: Handler of events.
    """

    _store: AccountStore = attrs.field(repr=False)
    _utcnow: Callable[[], datetime] = attrs.field(repr=False)
    _on_event: Handler | None = attrs.field(default=None, repr=False)

    @_utcnow.default
    def _default_clock(self) -> Callable[[], datetime]:
        return self._store.database.wall_clock.utcnow

    async def get(self, key: str) -> PaymentRecord | None:
        """Return the payment of an idempotency key with its history, or None if the key was never used.

        Raises:
            InvalidRequest: The key is blank.
        """
        name = require_name("key", key)
        # Shared, so that it does not stand behind writers that wait for a lock of SQLite.
        return await self._store.read(lambda journal: queries.find_with_history(journal, name), share_key=name)

    async def list(
        self,
        state: PaymentState | str | Iterable[PaymentState | str] | None = None,
        *,
        type: TransactionType | str | None = None,
        since: datetime | None = None,
        phone_number: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> builtins.list[PaymentRecord]:
        """Return payments, oldest first, without their histories.

        Args:
            state: Only those in this state, or in one of these.
            type: Only collections or disbursements.
            since: Only those first recorded at this time or later; an aware datetime.
            phone_number: Only those of this number, which finds no erased one.
            limit: At most so many, from 1. Without one, all of them: there may be a million.
            newest_first: Whether to begin with the payment that was first recorded last.

        Raises:
            InvalidRequest: An argument has a wrong type or value.
        """
        phone_number = hide_text(phone_number)
        begin = None if since is None else require_moment("since", since)
        # No database has more rows, and none takes a larger number.
        limit = None if limit is None else min(require_integer("limit", limit, 1), 2**63 - 1)
        states = _check_states(state)
        kind = None if type is None else require_type(type)
        number = None if phone_number is None else normalise_phone_number(phone_number)
        return await self._store.read(
            lambda journal: queries.select(
                journal,
                states=states,
                type=kind,
                since=begin,
                phone_number=number,
                limit=limit,
                newest_first=newest_first,
            )
        )

    async def find(
        self, names: str | Iterable[str], *, state: PaymentState | str | Iterable[PaymentState | str] | None = None
    ) -> builtins.list[PaymentRecord]:
        """Return the payments with a name, oldest first, without their histories.

        A name is a transaction id, the service's reference, an external id or an idempotency key: a callback or a
        customer may quote any of them. It is always one indexed query, so you may pass names from strangers. A
        cancelled call changes nothing.

        Args:
            names: One, or up to 100; of at most 200 characters each.
            state: Only those in this state, or in one of these.

        Returns:
            The newest 100 at most for each kind of name: only an external id may belong to many payments.

        Raises:
            InvalidRequest: An argument has a wrong type or value.
        """
        if not isinstance(names, Iterable):
            raise refuse("names", "a str or several", names)
        asked = [names] if isinstance(names, str) else [*names]
        if len(asked) > _MOST_NAMES:
            raise refuse("names", f"at most {_MOST_NAMES} names")
        for each in asked:
            require_name("names", each)
        states = _check_states(state)
        return await self._store.read(
            lambda journal: queries.find_named(journal, asked, states=states, most=_MOST_NAMES)
        )

    async def unresolved(self) -> builtins.list[PaymentRecord]:
        """Return the payments with an unknown result, those on their way now included, oldest first.

        Also payments whose transaction is shown as final with another type, amount, number or merchant: they are
        ``ACKNOWLEDGED``, and `reason` says why they stay open. And those ``FINAL`` ones whose final state has changed,
        and those ``QUEUED`` ones that are not sent as they are (`is_kept`): above a limit of yours, say.
        """
        return await self._store.read(queries.unresolved)

    async def confirm_absent(self, key: str, *, note: str) -> PaymentRecord:
        """Confirm, after someone has looked, that an unknown or absent payment does not exist.

        Its key may then be used again, and money is sent again when it is: after one more look in the service's list. A
        transaction of its kind that is found there makes the payment unknown once more: say of each of its `candidates`
        what it is (`explain`, or `identify` with another payment's key), for this word changes none of them. Within the
        store's `grace` after the request, a payment may exist without being in any list: it is refused until then.

        Args:
            key: The payment's idempotency key.
            note: The reason and your name; kept in the payment's history.

        Returns:
            The payment as it is now, with the `candidates` that are left: open transactions of its kind.

        Raises:
            InvalidRequest: The key or the note is blank.
            StoreError: There is no such payment, it is neither unknown nor absent, a request of it may still be on its
                way, or ended within the last `grace` seconds.
        """
        require_name("key", key)
        require_text("note", note)
        grace = timedelta(seconds=self._store.grace)

        def confirm(journal: Journal, now: datetime) -> PaymentRecord | StoreError:
            record = lock_unresolved(journal, key, now)
            until = (record.ended_at or record.changed_at) + grace
            if now < until:
                raise StoreError(
                    f"payment {key!r} may exist without being in the list until {until:%Y-%m-%d %H:%M:%S} UTC: "
                    "confirm it then",
                    outcome="not_sent",
                )
            event = PaymentEvent.CONFIRM_ABSENT
            done = journal.apply(JournalEntry(key, record.attempt, event, source=Source.PERSON, at=now, detail=note))
            return done if isinstance(done, StoreError) else with_fitting(journal, done, record.candidates)

        return await self._store.decide_about(key, confirm, self._utcnow)

    async def enqueue(
        self,
        *,
        type: TransactionType | str,
        phone_number: str,
        amount: int | Decimal | str,
        idempotency_key: str,
        extra: Mapping[str, Any] | None = None,
        not_before: datetime | timedelta | None = None,
        not_after: datetime | timedelta | None = None,
        priority: int = 0,
    ) -> PaymentRecord:
        """Record a payment, in a transaction of its own, for a dispatcher to send; see `SQLStore.enqueue`.

        A cancelled call may have recorded it.
        """
        phone_number, amount = hide(phone_number), hide_text(amount)
        fields = None if extra is None else Fields.of(extra)
        del extra
        await self._store.database.open()
        now = self._utcnow()
        order = read_order(
            type=type,
            phone_number=phone_number,
            amount=amount,
            idempotency_key=idempotency_key,
            extra=fields,
            not_before=not_before,
            not_after=not_after,
            priority=priority,
            now=now,
        )
        return await self._store.write(lambda journal: enqueue(journal, *order, now))

    async def hold(self, keys: Iterable[str], time: timedelta) -> None:
        """Let no dispatcher send these payments for a time from now, as far as they are queued: a create does, say.

        One that waits for longer anyway, by its `not_before`, goes on to do so.

        Raises:
            InvalidRequest: A key is blank, or the time is no timedelta from 0 to 365 days.
        """
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise refuse("keys", "an iterable of keys", keys)
        if not isinstance(time, timedelta) or not timedelta(0) <= time <= timedelta(days=365):
            raise refuse("time", "a timedelta from 0 to 365 days", time)
        names = sorted({require_name("keys", each) for each in keys})
        if names:
            await self._store.decide(lambda journal, now: hold(journal, names, until=now + time), self._utcnow)

    async def cancel(self, key: str, *, note: str, reusable: bool = False) -> PaymentRecord:
        """Take a payment out of the queue: no dispatcher sends it. Its key is used up, unless it was refused before.

        Tries that provably did not reach the service count as none. One that was refused before it was queued again,
        without a code of the contract, may exist: it goes back to ``REFUSED``, and a match in the list still counts.

        Args:
            key: The payment's idempotency key.
            note: The reason and your name; kept in the payment's history.
            reusable: Whether the key may be used again: the payment is then as one that was not sent.

        Returns:
            The payment, in the state ``CANCELLED`` or ``REFUSED``; with `reusable`, ``NOT_SENT`` or ``REFUSED``.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: There is no such payment, or it is not queued. One that is being sent may come back into the
                queue: cancel it then.
        """
        name, text = require_name("key", key), require_text("note", note)
        event = PaymentEvent.WITHDRAW if reusable else PaymentEvent.CANCEL
        await self._store.flush(key=name)
        # Beside a create of this event loop, which may wait for the rate limit: the row's lock decides.
        return await self._store.decide(
            lambda journal, now: cancel(journal, name, note=text, at=now, event=event), self._utcnow
        )

    async def unclaimed(self, state: str | None = OPEN) -> builtins.list[UnclaimedTransaction]:
        """Return the transactions in the service's list that no payment of this store claims, first seen first.

        Every page of the list that a client with this store reads is compared. A transaction is among them `grace` and
        a request's time-out after it was first seen, unless a payment with an unknown result may have made it.

        Args:
            state: ``open``, ``explained`` by someone, or ``claimed`` by a payment since; None for all.

        Raises:
            InvalidRequest: The state is another one.
        """
        if state not in (OPEN, EXPLAINED, CLAIMED, None):
            raise refuse("state", f"{OPEN}, {EXPLAINED}, {CLAIMED} or None", state)
        now = self._utcnow()
        return await self._store.read(lambda journal: find_unclaimed(journal, state, now))

    async def explain(self, transaction_id: str, *, note: str, by: str | None = None) -> UnclaimedTransaction:
        """Say, after someone has looked, what a transaction is that is no payment of this store. It stops no payment.

        Of a payment whose final state has changed (`unresolved`), this keeps the first one; `recover` with its key
        takes the one that is shown now.

        Args:
            transaction_id: One of `unclaimed`, a candidate of a payment, or one that no list has shown so far.
            note: The explanation; kept with it.
            by: Your name, if the note does not say it.

        Returns:
            The transaction as it is now.

        Raises:
            InvalidRequest: An argument is blank.
            StoreError: A payment claims it.
        """
        name, text = require_name("transaction_id", transaction_id), require_text("note", note)
        who = None if by is None else require_name("by", by)

        def say(journal: Journal, now: datetime) -> UnclaimedTransaction | None:
            status = keep_final_state(journal, name, note=text, at=now)
            look_again(journal, name, at=now)
            return explain(journal, name, note=text, by=who, at=now, status=status)

        said = await self._store.decide(say, self._utcnow)
        if said is None:
            raise StoreError(f"transaction {name!r} is a payment of this store", outcome="not_sent")
        return said

    def changes(
        self,
        *,
        consumer: str | None = None,
        start: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        forever: bool | None = None,
    ) -> Changes:
        """Return an iterator over the changes of the account's payments, for your books.

        Each change of a payment's state is one entry, from the first request to the final state, and so is a
        transaction that no payment claims. Changes of one payment come in their order, and none is ever skipped: a
        change gets its place after it is committed.

        *As a consumer*, the store keeps your place: ``async for change in payments.changes(consumer="books",
        start="oldest")``, and ``await change.done()`` once your own books are committed. Each change comes at least
        once, also after a crash. One process at a time reads under a name; another one goes on within about a minute of
        the last ``done`` if that one dies, and at once after ``aclose()``. Handle a change in less than half a minute.
        One that your handler cannot take comes again after a growing pause, after `PaymentChange.failed` or when it has
        ended the process, ten times at most, while other payments go on; then it is parked.

        *With a cursor*, your own transaction keeps the place: ``payments.changes(after=cursor, limit=500)``, and
        ``change.cursor`` goes into the same transaction as your books. So each change counts exactly once.

        Args:
            consumer: The name of a consumer, at most 200 characters.
            start: Where to begin, ``"oldest"`` or ``"now"``: for a consumer at its first use, when it must be
                given, and later without effect. Otherwise where there is no cursor; ``"oldest"`` by default.
            after: A cursor to go on behind.
            limit: At most so many changes, from 1; not for a consumer.
            forever: Whether to wait for more at the end; by default unless there is a `limit`.

        Raises:
            InvalidRequest: An argument has a wrong type or value, or two contradict each other.
            InvalidCursor: From the iterator: it cannot go on from the cursor without skipping changes.
            StoreError: From the iterator: the store failed, or there is no such consumer and no `start`.
        """
        if start not in ("oldest", "now", None):
            raise refuse("start", '"oldest" or "now"', start)
        if consumer is not None:
            if after is not None or limit is not None:
                raise refuse(
                    "after" if limit is None else "limit", "left out with consumer=: the store keeps its place"
                )
            name = require_name("consumer", consumer)
            options = {"utcnow": self._utcnow, "on_event": self._on_event, "is_endless": forever is not False}
            return ConsumerChanges(self._store, name, start=start, **options)
        if after is not None and start is not None:
            raise refuse("start", "left out with after=, which says where to begin")
        most = None if limit is None else require_integer("limit", limit, 1)
        place = None if after is None else require_text("after", after)
        is_endless = limit is None if forever is None else forever
        return ChangePages(self._store, place, start == "now", most, is_endless, self._utcnow)

    async def consumers(self) -> builtins.list[ConsumerState]:
        """Return the consumers of the account's changes, with their places and their parked changes."""
        return await self._store.write(lambda journal: list_consumers(journal, number_changes(journal)))

    async def forget_consumer(self, name: str) -> None:
        """Delete a consumer that is used no more: changes are kept until every consumer is done with them.

        Raises:
            InvalidRequest: The name is blank.
            StoreError: There is no such consumer, or a process reads as it, or did in the last minute and was killed.
        """
        await forget_unread(self._store, require_name("name", name))


def lock_unresolved(journal: Journal, key: str, now: datetime) -> PaymentRecord:
    """Return an unknown or absent payment, locked until the commit, for a decision about it.

    Raises:
        StoreError: It is neither.
    """
    record = journal.find(key, lock=True)
    if record is None:
        raise StoreError(f"there is no payment {key!r}", outcome="not_sent")
    if is_stale(record, now):
        lost = lose_stale(journal, record, now, source=Source.PERSON)
        if isinstance(lost, StoreError):
            raise lost
        record = lost
    elif move(record.state, PaymentEvent.CONFIRM_ABSENT) is None:
        state = "on its way" if record.state is PaymentState.SENDING else str(record.state)
        said = f"payment {key!r} is {state}, not unknown or absent"
        if record.state in {PaymentState.RELEASED, PaymentState.REFUSED}:
            said += "; if it exists after all: mobilemoney payments recover KEY=TRANSACTION_ID --note TEXT"
        raise StoreError(said, outcome="not_sent")
    return record


def _check_states(state: object) -> builtins.list[PaymentState] | None:
    if state is None:
        return None
    asked: builtins.list[Any] = [state] if isinstance(state, str) or not isinstance(state, Iterable) else [*state]
    try:
        return [PaymentState(each) for each in asked]
    except ValueError:
        raise refuse("state", f"one or more of {', '.join(map(str, PaymentState))}", state) from None
