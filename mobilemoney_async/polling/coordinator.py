"""Coordinator of the pollers that share a store: one of them makes the requests, and all get the results.

It stands between a poller and its planner, and takes the planner's place for the poller's own payments. This process's
payments and their deadlines are here. The planner is empty unless this process holds the lease: then it has the
payments of all processes. Every poller hands an outcome out the same way, once the store has it.

A store that fails delays. The holder makes requests no longer than its lease lasts, since it cannot know whether it
still is the holder, and everything else waits until the store is back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import anyio
import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.polling.pacing import Backoff, HintThrottle
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.sharing import (
    Incoming,
    Outgoing,
    PollerChannel,
    StatusUpdate,
    Subscription,
    Subscriptions,
    warn_of_store,
)
from mobilemoney_async.polling.tracked import TrackedPayment, TrackedPayments
from mobilemoney_async.tasks import Signal, shielded
from mobilemoney_async.values import require_name

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Length of a subscription, seconds: those of a process that died end then. It is renewed after half of it.
_HOLD = 3600.0
# A payment that is no longer tracked ended at this distance, by any host's clock.
_LONG_AGO = timedelta(days=1)
# Interval between two checks for expired subscriptions, seconds.
_SWEEP = 15.0
# After so long without an answer another process makes the requests, seconds: the fault may be this one's.
_STEP_DOWN_AFTER = 120.0
# For so long it leaves the lease to them then, seconds: also with a claim: its leases last an hour.
_STAND_BACK = 8.0
# Times between two attempts while the store fails, seconds: the first, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 2.0


@attrs.define(kw_only=True, eq=False)
class Coordinator:
    """This process's part in sharing one poller.

    Two tasks of the poller use it: `run`, and the requests that end in `settle` or `failed`. All state
    changes between two awaits, so none needs a lock; only `run` calls `PollerChannel.sync`, one at a time. `hand_out`
    gets the results of this process's payments; `wake` is called when there may be a request to make.
    """

    _channel: PollerChannel
    _planner: Planner  # empty while another process makes the requests
    _utcnow: Callable[[], datetime]
    _hand_out: Callable[[list[StatusUpdate]], None]
    _wake: Callable[[], None]
    _local: TrackedPayments = attrs.field(factory=TrackedPayments)
    _outgoing: Outgoing = attrs.field(factory=Outgoing)
    _hints: HintThrottle = attrs.field(factory=HintThrottle)
    _changed: Signal = attrs.field(factory=Signal)
    _backoff: Backoff = attrs.field(factory=lambda: Backoff(first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
    _sync_at: float = math.inf
    _check_at: float = math.inf
    _synced_at: float = -math.inf  # the beginning of the latest sync, minus infinity before the first
    # By both clocks: the other processes judge by the wall clock, which may be set ahead.
    _renew_at: float = -math.inf
    _renew_by: datetime = attrs.field(default=attrs.Factory(lambda self: self._utcnow(), takes_self=True))
    # As the holder.
    _epoch: int | None = None
    _held_until: float = -math.inf
    _subscriptions: Subscriptions = attrs.field(factory=Subscriptions)
    _settling: set[str] = attrs.field(factory=set)  # their endings are on the way to the store
    _sweep_at: float = 0.0
    _idle_since: float = 0.0
    _faulty_since: float = math.inf
    _stands_back_until: float = -math.inf

    def __len__(self) -> int:
        return len(self._local)

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._local

    # This process's payments, as in `Planner`

    def track(
        self, transaction_id: str, now: float, *, is_new: bool, deadline: float, tracked_at: float | None = None
    ) -> bool:
        """Track a payment; return False if it is tracked already. See `Planner.track`."""
        if transaction_id in self._local:
            return False
        require_name("payment", transaction_id)  # one that the database refuses would stop all messages
        began = now if tracked_at is None else tracked_at
        payment = TrackedPayment(transaction_id, tracked_at=began, due=math.inf, deadline=deadline, is_new=is_new)
        self._local.add(payment)
        self._state(payment, now)
        self._request_sync(now)
        return True

    def hint(self, transaction_id: str, now: float) -> bool:
        """Note that a payment may have changed; return whether that brings a request of this process forward."""
        payment = self._local.get(transaction_id)
        if payment is not None and transaction_id in self._planner:
            return self._planner.hint(transaction_id, now)
        stated = self._outgoing.subscriptions.get(transaction_id)
        if payment is not None and (stated is None or not stated.is_hinted) and self._hints.take(payment, now):
            self._state(payment, now, is_hinted=True)
            self._request_sync(now)
        return False

    def give_up_at(self) -> float:
        """Return the time at which the next payment is given up, infinite for never."""
        return self._local.deadlines.first()

    def give_up(self, now: float) -> list[StatusUpdate]:
        """Stop tracking the payments that are past their deadline."""
        updates = self._local.give_up(now)
        at = self._utcnow()
        for each in updates:
            self._outgoing.subscriptions[each.transaction_id] = Subscription(
                transaction_id=each.transaction_id,
                follower=self._channel.follower,
                is_new=False,
                tracked_at=at,
                until=at - _LONG_AGO,
            )
        if updates:
            self._request_sync(now)
        return updates

    # Requests

    def may_send(self, now: float) -> bool:
        """Return whether this process holds the lease for long enough that a request goes out in time."""
        return now < self._held_until - self._channel.ttl / 4

    def failed(self, now: float) -> None:
        """Note that a request failed: if all do for long, another process makes them."""
        self._faulty_since = min(self._faulty_since, now)

    def settle(self, endings: Iterable[StatusUpdate], rows: Iterable[Transaction]) -> None:
        """Take all rows of an answer, and the endings among them, which the sync that stores them hands out."""
        self._faulty_since = math.inf
        for each in endings:
            self._settling.add(each.transaction_id)
            self._keep(each)
            self._outgoing.updates.append(each)
        for row in rows:
            if row.is_final:
                continue
            update = StatusUpdate(transaction_id=row.id, transaction=row)
            self._keep(update)
            if self._subscriptions.is_wanted(update):
                self._outgoing.updates.append(update)
        if self._outgoing.updates:
            self._request_sync(anyio.current_time())

    # Exchange with the others

    async def run(self) -> None:
        """Keep the lease, exchange messages, and hand out results; for ever."""
        while True:
            now = anyio.current_time()
            if self._sync_at <= now:
                await self._sync()
            elif self._check_at <= now:
                await self._check_updates()
            else:
                # No await since the times were read: a `_request_sync` in between cannot be missed.
                await self._changed.wait(until=min(self._sync_at, self._check_at))

    async def leave(self) -> None:
        """Give the lease back, so that another process goes on at once. If the store fails, it runs out by itself."""
        if self._backoff.is_on or self._synced_at == -math.inf:
            return
        # The poller's tasks have ended. The block may be left by a cancellation, and news would be lost.
        try:
            await shielded(lambda: self._channel.leave(self._outgoing.updates))
        except Exception as exc:  # noqa: BLE001 (it must not take the place of the error that ended the block)
            warn_of_store("the payments stay tracked for a while, the store failed", exc)

    # Inside

    def _keep(self, update: StatusUpdate) -> None:
        """Keep a payment's state, if it is one of this process's: its `WaitTimeout` carries it."""
        payment = self._local.get(update.transaction_id)
        if payment is not None and update.transaction is not None:
            payment.keep(update.transaction)

    def _state(self, payment: TrackedPayment, now: float, *, is_hinted: bool = False) -> None:
        """Add the statement that a payment is tracked to the next sync."""
        at = self._utcnow()
        self._outgoing.subscriptions[payment.id] = Subscription(
            transaction_id=payment.id,
            follower=self._channel.follower,
            is_new=payment.is_new,
            tracked_at=at - timedelta(seconds=now - payment.tracked_at),
            until=at + timedelta(seconds=min(_HOLD, payment.deadline - now)),
            has_deadline=payment.deadline < math.inf,
            is_hinted=is_hinted,
        )

    def _request_sync(self, at: float) -> None:
        """Take a sync at a time, or as soon as the store may be tried again."""
        at = max(at, self._backoff.until)
        if at < self._sync_at:
            self._sync_at = at
            self._changed.send()

    async def _sync(self) -> None:
        now = anyio.current_time()
        if self._must_renew(now):
            self._renew_at, self._renew_by = now + _HOLD / 2, self._utcnow() + timedelta(seconds=_HOLD / 2)
            for payment in self._local:
                if payment.id not in self._outgoing.subscriptions:
                    self._state(payment, now)
        # During this sync other tasks track, hint and settle: they add to the next sync's messages. If this one fails
        # or is cancelled, both are joined, in this order.
        sent, self._outgoing = self._outgoing, Outgoing()
        self._sync_at = self._check_at = math.inf
        try:
            incoming = await self._channel.sync(sent, wants_lease=self._wants_lease(now), wanted=self._local)
        except BaseException as exc:
            self._outgoing = sent.and_then(self._outgoing)
            if not isinstance(exc, Exception):
                raise
            self._failed(exc)
            return
        self._synced_at = now
        self._works()
        for update in sent.updates:
            if update.is_ending:
                self._settling.discard(update.transaction_id)
                self._subscriptions.end(update.transaction_id)
        self._apply(incoming, now)
        self._schedule(incoming.lease_ends_at)

    async def _check_updates(self) -> None:
        self._check_at = math.inf
        try:
            check = await self._channel.check_updates()
        except Exception as exc:  # noqa: BLE001 (whatever it is, it must not end the poller)
            self._failed(exc)
            return
        self._works()
        now = anyio.current_time()
        if check.has_updates or (self._epoch is None and check.lease_ends_at is None) or self._must_renew(now):
            self._request_sync(now)
        else:
            self._schedule(check.lease_ends_at)

    def _must_renew(self, now: float) -> bool:
        return now >= self._renew_at or self._utcnow() >= self._renew_by

    def _wants_lease(self, now: float) -> bool:
        if self._steps_down(now):
            return False
        if self._local or self._subscriptions:
            self._idle_since = now
            return True
        return self._epoch is not None and now < self._idle_since + self._channel.linger

    def _steps_down(self, now: float) -> bool:
        """Return whether to leave the lease to another process: this one has had no answer for long."""
        if (
            self._epoch is not None
            and now > self._faulty_since + _STEP_DOWN_AFTER
            and self._subscriptions.has_others_than(self._channel.follower)
        ):
            said = "no answer for %.0f s: another process makes the requests%s"
            logger.warning(said, now - self._faulty_since, self._channel.whose)
            self._faulty_since = math.inf
            self._stands_back_until = now + _STAND_BACK
        return now < self._stands_back_until

    def _schedule(self, lease_ends_at: float | None) -> None:
        """Set the times of the next sync and check."""
        now = anyio.current_time()
        check_at = now + self._channel.poll
        if self._outgoing:
            self._request_sync(now)
        if self._epoch is not None:
            self._request_sync(self._synced_at + self._channel.ttl / 4)
            self._check_at = check_at if self._subscriptions or self._local else math.inf
        elif self._local:
            self._request_sync(self._renew_at)
            self._check_at = min(check_at, math.inf if lease_ends_at is None else max(now, lease_ends_at))
        else:
            self._check_at = math.inf

    def _apply(self, incoming: Incoming, began: float) -> None:
        """Take the messages of a sync that began at a time.

        There is no await in here: lease, planner and subscriptions change together for the poller's tasks.
        """
        if not incoming.holds:
            self._held_until = -math.inf
            self._track_nothing()
            self._epoch = None
        else:
            # Counted from the beginning of the sync: the store gave the lease later, so it ends later, too.
            self._held_until = began + self._channel.ttl
            if incoming.epoch != self._epoch:
                self._track_nothing()
                self._epoch = incoming.epoch
                logger.debug("this process makes the requests for all")
        endings = []
        for update in incoming.updates:
            if update.is_ending:
                self._subscriptions.end(update.transaction_id)
                self._planner.forget(update.transaction_id)
                payment = self._local.get(update.transaction_id)
                if payment is not None:
                    self._local.remove(payment)
                    endings.append(update)
            else:
                self._keep(update)
        if incoming.holds:
            self._track_all(incoming.subscriptions)
        self._hand_out(endings)
        self._wake()

    def _track_all(self, changes: Iterable[Subscription]) -> None:
        """Track the payments of all processes."""
        now, utcnow = anyio.current_time(), self._utcnow()
        for change in changes:
            if change.transaction_id in self._settling:
                continue  # its ending is on the way to the store
            if not self._subscriptions.take(change, utcnow):
                self._planner.forget(change.transaction_id)
                continue
            tracked_at = now - (utcnow - change.tracked_at).total_seconds()
            self._planner.track(
                change.transaction_id, now, is_new=change.is_new, deadline=math.inf, tracked_at=tracked_at
            )
            if change.is_hinted:
                self._planner.hint(change.transaction_id, now)
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP
            for transaction_id in self._subscriptions.expired(utcnow):
                self._planner.forget(transaction_id)

    def _track_nothing(self) -> None:
        for transaction_id in self._subscriptions:
            self._planner.forget(transaction_id)
        self._subscriptions = Subscriptions()

    def _failed(self, exc: Exception) -> None:
        if not self._backoff.is_on:
            warn_of_store("the poller waits for the store", exc)
        now = anyio.current_time()
        self._backoff.extend(now, now)
        self._sync_at = math.inf
        self._request_sync(now)

    def _works(self) -> None:
        if self._backoff.is_on:
            logger.info("the store is back: the poller goes on")
        self._backoff.clear()
