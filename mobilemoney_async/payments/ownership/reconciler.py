"""Reconciler of unknown payments with the service's transaction list (contract, section 4.4).

A payment is looked for near the time of its send first, which takes few pages. Only one that this does not find, after
the grace period, costs a listing of whole days; and the longer it stays unknown, the rarer those are. Each of them
serves all payments of its days that the list may show.

Critical section: one task of a process and one process of an account at a time reads the list, under the lease
`reconcile`. The others wait, and find its results in the store: a payment that was judged since they asked is not
looked for again. No transaction is open while the list is read, so any payment may have changed by then:
`record_listing` looks again, under the row's lock.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.comparison import shift
from mobilemoney_async.contract.endpoints import Priority
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.leases import TaskLease, new_holder
from mobilemoney_async.database.schema import unmatched
from mobilemoney_async.errors import APIError, TransactionNotFound
from mobilemoney_async.payments.feed.feed import prune
from mobilemoney_async.payments.ownership.comparison import RowClass, far_edge, is_of_lost_life
from mobilemoney_async.payments.ownership.evidence import Evidence, Listing, Verdict, may_be
from mobilemoney_async.payments.ownership.listing import Lister
from mobilemoney_async.payments.ownership.matching import date_ranges, query_for
from mobilemoney_async.payments.ownership.reconciliation import (
    ListCheck,
    ask_for_look,
    find_rival,
    mark_stale,
    record_listing,
)
from mobilemoney_async.payments.ownership.searches import doubtful, hidden, read_row_facts, searchable
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.due import Due, due, neighbours
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.queries import chunks, find_all, merchant_of, owners_of_rows, select
from mobilemoney_async.payments.records.reasons import CONTRADICTIONS, PaymentCause
from mobilemoney_async.payments.records.record import (
    Clearance,
    PaymentRecord,
    PaymentState,
    clearance,
)
from mobilemoney_async.payments.records.rows import digest
from mobilemoney_async.payments.records.unmatched import IS_OWNED, explained, find_lines

# Payments that were sent within such a time of each other are looked for together.
_CLUSTER, _DAY = timedelta(hours=1), timedelta(days=1)
# Seconds: the length of the lease, between two looks whether another process has given it back, and for giving it back
# though the call was cancelled.
_LEASE, _PAUSE = 30.0, 1.0
# Payments that are judged in one transaction.
_AT_ONCE = 100


class Reconciler:
    """Reconciler of one client."""

    def __init__(self, store: AccountStore, pipeline: Pipeline) -> None:
        self._store = store
        self._utcnow = pipeline.utcnow
        self._lister = Lister(pipeline)
        self._lease = TaskLease(store.database, store.account, "reconcile", new_holder(pipeline.host), _LEASE)
        self._settled = store.settles_after(pipeline.options.timeout)

    async def run(
        self,
        wanted: PaymentRecord | None = None,
        *,
        before: Callable[[], Awaitable[object]],
        stale_after: float | None = None,
    ) -> list[PaymentRecord]:
        """Look for every unknown payment that is due, and record the results; see `Payments.reconcile`.

        With `wanted` also for that one, and only unless that was done since it was read: of many tasks and processes
        that ask at once, one reads the list, and serves the others too. If the call is cancelled, the next one looks
        for it. `before` is awaited before the list is read for any.

        Raises:
            StoreError: The store failed.
            MobileMoneyError: The list could not be read; nothing was changed.
        """
        key = None if wanted is None else wanted.key
        await self._store.database.open()
        await self._store.flush(key=key)
        if wanted is None:
            await prune(self._store, self._utcnow)
        busy = self._store.locks.held(but=key)

        def begin(journal: Journal, now: datetime) -> tuple[list[PaymentRecord], PaymentRecord | None]:
            mark_stale(journal, now, busy=busy, stale_after=stale_after)
            own = None if wanted is None else ask_for_look(journal, wanted, at=now)
            return select(journal, states=(PaymentState.UNKNOWN, PaymentState.ABSENT)), own

        found, own = await self._store.decide(begin, self._utcnow)
        if wanted is not None and own is None:
            return []
        keys, asked = {record.key for record in found}, await self._due(key)
        if asked:
            await before()
            async with self._store.locks.hold(("reconcile",)):  # while the list is read and judged
                # The own payment as it was asked for: another task may have looked for it since.
                await self._under_lease([*(each.record for each in asked), *filter(None, [own])], key)
        return await self._store.read(lambda journal: find_all(journal, keys.union(each.record.key for each in asked)))

    async def _due(self, key: str | None) -> list[Due]:
        now = self._utcnow()
        return await self._store.read(lambda journal: due(journal, now, key=key, grace=self._store.grace))

    async def _under_lease(self, asked: Sequence[PaymentRecord], key: str | None) -> None:
        """Look for the payments that are due, as the only process of the account.

        While this waits, for a task or a process that reads the list, the payments that were `asked` for may be judged.
        """
        before = {record.key: _last_look(record) for record in asked}
        async with self._lease.held(poll=_PAUSE):
            payments = [
                each
                for each in await self._due(key)
                if before.get(each.record.key, _last_look(each.record)) == _last_look(each.record)
            ]
            if payments:
                await self._look(payments, key)

    async def _look(self, payments: Sequence[Due], key: str | None) -> None:
        """Look for payments: near their sends, where that may be enough, and then in whole days."""
        left, failures = {each.record.key: each for each in payments}, list[APIError]()
        clusters = _clusters(each.record for each in payments if not self._is_listed_whole(each, key))
        for cluster in reversed(clusters):
            windows = [query_for(record).window(None) for record in cluster]
            start = shift(min(start for start, _ in windows), self._store.clock_offset)
            end = shift(max(end for _, end in windows), self._store.clock_offset)
            keys = {record.key for record in cluster}
            listing = await self._read(self._lister.near(start, end), failures, is_asked=key in keys)
            if listing is None:
                left = {each: found for each, found in left.items() if each not in keys}
                continue
            evidence, judged = await self._judge(listing, cluster, key)
            for record in judged:
                if not _needs_whole_days(left[record.key], record, evidence):
                    del left[record.key]
        await self._look_in_whole_days([each.record for each in left.values()], key, failures)
        if failures and key is None:
            raise failures[0]

    async def _read(self, reading: Awaitable[Listing], failures: list[APIError], *, is_asked: bool) -> Listing | None:
        """Return a listing, or None and add the failure: a service may refuse days of long ago.

        That is no reason to leave later payments unknown, nor to refuse a create, unless its own was to be looked for.
        """
        try:
            return await reading
        except APIError as exc:
            if is_asked or type(exc) not in {APIError, TransactionNotFound}:
                raise
            failures.append(exc)
            return None

    async def _look_in_whole_days(
        self, payments: Sequence[PaymentRecord], key: str | None, failures: list[APIError]
    ) -> None:
        clusters = {cluster[0].key: cluster for cluster in _clusters(payments)}
        spans = {each: await self._span(cluster) for each, cluster in clusters.items()}
        for days in reversed([*date_ranges(spans)]):
            asked = {record.key: record for each in days.keys for record in clusters[each]}
            # Read before the listing: one that is confirmed absent during it needs another look.
            others = await self._store.read(functools.partial(searchable, first=days.first, last=days.last))
            reading = self._lister.complete(days.first, days.last, lane=Priority.BULK)
            listing = await self._read(reading, failures, is_asked=key in asked)
            if listing is None:
                continue
            also = [each for each in others if each.key not in asked and listing.asked(*query_for(each).window(None))]
            await self._judge(listing, [*asked.values(), *also], key, is_whole=True)

    def _is_listed_whole(self, payment: Due, key: str | None) -> bool:
        """Return whether a payment is looked for in whole days: an absent one only where it may be sent again."""
        if payment.record.state is not PaymentState.ABSENT or payment.record.key != key:
            return payment.in_whole_days
        may_send = clearance(payment.record, None, absent_suffices=self._store.resend_absent_collections)
        return may_send is not Clearance.NEVER

    async def _span(self, cluster: Sequence[PaymentRecord]) -> tuple[datetime, datetime]:
        """Return the time to list for some payments, with the nearest ones that the listing is compared with."""
        settled_at = self._utcnow() - timedelta(seconds=self._store.grace)
        # The first and the last of each type; the others are between them.
        edges = {record.type: record for record in reversed(cluster)}, {record.type: record for record in cluster}

        def find(journal: Journal) -> list[PaymentRecord]:
            ends = [each for side in edges for each in side.values()]
            return [other for each in ends for other in neighbours(journal, each, settled_at=settled_at, most=1)]

        windows = [query_for(record).window(None) for record in (*cluster, *await self._store.read(find))]
        return min(start for start, _ in windows), max(end for _, end in windows)

    async def _judge(
        self, listing: Listing, payments: Sequence[PaymentRecord], asked: str | None, *, is_whole: bool = False
    ) -> tuple[Evidence, list[PaymentRecord]]:
        """Record the results of a listing for some payments, a hundred in a transaction; return them as they are."""
        grace = self._store.grace

        def read(journal: Journal) -> Evidence:
            owned = owners_of_rows(journal, listing.rows)
            searches = {each.key: query_for(each) for each in (*doubtful(journal, listing.first_day), *payments)}
            return Evidence(
                listing=listing,
                owned=owned,
                hidden=hidden(journal, listing, grace),
                explained_ids=explained(journal, [each for each in listing.ids if each not in owned]),
                searches=searches,
                grace=grace,
                merchant_id=merchant_of(journal, listing.rows, owned),
            )

        evidence = await self._store.read(read)
        skew = evidence.skew(evidence.searches[payments[0].key])
        if skew is not None and skew.is_own:
            offset = (skew.low + skew.high) / 2
            # Pages at a mistaken date of a row would show nothing, that mistake neither: it would stay for ever.
            self._store.clock_offset = offset if abs(offset) <= 2 * _DAY else timedelta(0)

        def judge(some: Sequence[PaymentRecord], journal: Journal) -> list[PaymentRecord]:
            return [self._judge_one(journal, record, evidence, is_whole=is_whole, asked=asked) for record in some]

        parts = chunks(payments, _AT_ONCE)
        return evidence, [each for some in parts for each in await self._store.write(functools.partial(judge, some))]

    def _obstacle(
        self, journal: Journal, record: PaymentRecord, row: Transaction, evidence: Evidence
    ) -> PaymentCause | None:
        """Return why no machine may give a row to a payment, though nothing else fits, or None."""
        if self._store.sole_writer is False:
            return PaymentCause.OTHER_SYSTEM
        account, began_at = journal.find_account(), evidence.listing.began_at
        assert account is not None  # made with its first payment
        has_others = account.others_until is not None and account.others_until > began_at
        if has_others and self._store.sole_writer is None:
            foreign = find_lines(
                journal, unmatched.c.is_foreign, ~IS_OWNED, unmatched.c.first_seen_at >= began_at - _DAY
            )
            of_number = digest(account.number_key, record.phone_number)
            if any(each.is_of(record, of_number) for each in foreign):
                return PaymentCause.OTHER_SYSTEM
        query, facts = query_for(record), read_row_facts(journal, [row], {}, settled=self._settled)
        skew = evidence.skew(query)
        if account.due_since is not None or facts.classify(row, skew) is RowClass.LOST:
            return PaymentCause.FORGOTTEN
        if query.sent_at >= facts.lives.began_at:
            return None
        # Of an earlier life: the store may have forgotten another payment of the kind.
        made_at = row.created_at
        is_late = made_at is None or skew is None or made_at > far_edge(query, skew, evidence.grace)
        is_unsure = is_of_lost_life(query) and not facts.lives.remember(made_at, skew)
        return PaymentCause.FORGOTTEN if is_late or is_unsure else None

    def _judge_one(
        self, journal: Journal, record: PaymentRecord, evidence: Evidence, *, is_whole: bool, asked: str | None
    ) -> PaymentRecord:
        query = evidence.searches[record.key]
        skew = evidence.skew(query)
        settled_at = evidence.listing.began_at - timedelta(seconds=evidence.grace)
        control = evidence.control(query, neighbours(journal, record, settled_at=settled_at))
        verdict, rival = evidence.judge(record.key, control), None
        if verdict.adopt is not None:
            cause = self._obstacle(journal, record, verdict.adopt, evidence)
            only = (verdict.adopt.id,)
            verdict = verdict if cause is None else Verdict(candidates=only, reason=may_be(only, cause))
        if verdict.adopt is not None:
            rival = find_rival(journal, record.key, verdict.adopt, query=query, skew=skew)
        elif not verdict.candidates:
            verdict = evidence.keep_candidates(verdict, record.candidates)
        check = ListCheck(
            evidence=evidence,
            verdict=verdict,
            rival=rival,
            is_contradicted=control is not None and control.cause in CONTRADICTIONS,
            is_part=not is_whole and not evidence.listing.is_complete,
            is_asked=record.key == asked,
        )
        return record_listing(journal, record, check)


def _needs_whole_days(before: Due, record: PaymentRecord, evidence: Evidence) -> bool:
    """Return whether a payment must be looked for in whole days, after a look near its send that changed `before`."""
    if evidence.listing.is_complete or record.state not in {PaymentState.UNKNOWN, PaymentState.ABSENT}:
        return False
    if record.candidates:
        # A part of the list can show a match, and leave open whether there is another one.
        return before.is_due or record.candidates != before.record.candidates
    # The clock of the rows may show that the pages were of another time.
    return not evidence.knows(record.key) and record.state is PaymentState.UNKNOWN and before.is_due


def _last_look(record: PaymentRecord) -> object:
    """Return a value that a look for a payment changes."""
    return record.state, record.attempt, record.looked_at, record.next_look_at


def _clusters(payments: Iterable[PaymentRecord]) -> list[list[PaymentRecord]]:
    """Return payments in groups that were sent at about the same time."""
    clusters: list[list[PaymentRecord]] = []
    last: datetime | None = None
    for record in sorted(payments, key=lambda record: query_for(record).sent_at):
        query = query_for(record)
        if last is None or query.sent_at > last + _CLUSTER:
            clusters.append([])
        clusters[-1].append(record)
        last = query.ended_at
    return clusters
