"""The poller as one of those that share a store: one of them asks, and all learn what came of it.

It stands between a poller and its plan, and takes the plan's place in what it says about the poller's own payments.
Who owns what: this process's payments and their deadlines are here. What is asked about is in the plan, which has
something in it only while this process holds the lease: then it is what all processes follow. An ending is handed out
once the store has it, to every poller by the same way.

A store that fails delays. The holder asks no longer than its lease lasts, since it cannot know whether it still is the
holder, and everything else waits until the store is back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import anyio
import anyio.abc

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.polling.followers import Followers
from mobilemoney_async.polling.own import Own, OwnPayment
from mobilemoney_async.polling.pacing import HintThrottle
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.sharing import Fleet, Followed, Incoming, News, Outgoing
from mobilemoney_async.values import refuse

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# What is followed is followed for so long after it was last said, seconds: that of a process that died is let go then.
# It is said again after half of it.
_HOLD = 3600.0
# Between two looks for what those that died no longer follow, seconds.
_SWEEP = 15.0
# Without an answer for so long, seconds, asking is left to another process: it may be this one that cannot.
_UNWELL = 120.0
# Between two turns that only what others said makes necessary, seconds.
_BREATH = 0.05
# Until the next attempt to listen to the others, seconds.
_DEAF = 5.0
# Between two attempts while the store fails, seconds: the first, and the longest.
_PAUSES = 0.25, 2.0


class Member:
    """This process's part.

    Args:
        fleet: Where the others are met.
        plan: What to ask, while that is for this process to do.
        utcnow: The wall clock.
        hand_out: Gets the endings of this process's payments.
        wake: Called when there may be something to ask, or to give up.
    """

    def __init__(
        self,
        fleet: Fleet,
        plan: Planner,
        *,
        utcnow: Callable[[], datetime],
        hand_out: Callable[[list[News]], None],
        wake: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._plan = plan
        self._utcnow = utcnow
        self._hand_out = hand_out
        self._wake = wake
        self._own = Own()
        self._told = Outgoing()
        self._hints = HintThrottle()
        self._stirred = anyio.Event()
        self._is_listening = False
        self._has_failed = False
        self._pause = _PAUSES[0]
        self._has_joined = False
        self._turn_at = self._peek_at = math.inf
        self._turned_at = self._not_before = -math.inf
        self._say_again_at = math.inf
        # As the holder.
        self._epoch: int | None = None
        self._held_until = -math.inf
        self._followers = Followers()
        self._settling: set[str] = set()
        self._sweep_at = 0.0
        self._idle_since = 0.0
        self._faulty_since = math.inf
        self._stands_back_until = -math.inf

    def __len__(self) -> int:
        return len(self._own)

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._own

    # What this process follows: as `Plan` has it

    def track(self, transaction_id: str, now: float, *, is_new: bool, deadline: float) -> bool:
        """Follow a payment; return False if it is followed already."""
        if transaction_id in self._own:
            return False
        if "\x00" in transaction_id:
            raise refuse("payment", "an id of the service")  # PostgreSQL has no such text
        own = self._own.add(transaction_id, now, is_new=is_new, deadline=deadline)
        self._say(own, now)
        self._stir(now)
        return True

    def hint(self, transaction_id: str, now: float) -> bool:
        """Take note that a payment may have changed; return whether this process asks about it soon for that."""
        if transaction_id not in self._own:
            return False
        if transaction_id in self._plan:
            return self._plan.hint(transaction_id, now)
        if transaction_id not in self._told.hinted and self._hints.take(now):
            self._told.hinted.add(transaction_id)
            self._stir(now)
        return False

    def give_up_at(self) -> float:
        """Return when the next payment is to be given up, infinite for never."""
        return self._own.first_deadline()

    def give_up(self, now: float) -> list[News]:
        """End the following of what is past its deadline."""
        endings = self._own.give_up(now)
        for each in endings:
            self._told.tracked.pop(each.transaction_id, None)
            self._told.withdrawn.add(each.transaction_id)
        if endings:
            self._stir(now)
        return endings

    # Asking

    def may_ask(self, now: float) -> bool:
        """Return whether it is for this process to ask, and will be for long enough that the request goes out."""
        return now < self._held_until - self._fleet.ttl / 4

    def failed(self, now: float) -> None:
        """Note that a request failed: if all do for long, another process may fare better."""
        self._faulty_since = min(self._faulty_since, now)

    def settle(self, endings: Iterable[News], rows: Iterable[Transaction]) -> None:
        """Take what came of a request that was answered.

        Args:
            endings: How payments ended by it.
            rows: What the service showed.
        """
        self._faulty_since = math.inf
        for each in endings:
            self._settling.add(each.transaction_id)
            self._own.saw(each.transaction_id, each.transaction)
            self._told.news.append(
                News(transaction_id=each.transaction_id, transaction=each.transaction, error=each.error, lag=each.lag)
            )
        for row in rows:
            if row.is_final:
                continue
            self._own.saw(row.id, row)
            news = News(transaction_id=row.id, transaction=row)
            if self._followers.is_worth_telling(news):
                self._told.news.append(news)
        if self._told.news:
            self._stir(anyio.current_time())

    # Keeping in touch

    async def run(self) -> None:
        """Keep the lease, say what there is to say, and hand out what is heard; for ever."""
        while True:
            now = anyio.current_time()
            if self._turn_at <= now:
                await self._take_turn()
            elif self._peek_at <= now:
                await self._peek()
            else:
                stirred = self._stirred
                with anyio.CancelScope(deadline=min(self._turn_at, self._peek_at)):
                    await stirred.wait()

    async def listen(self) -> None:
        """Have a turn whenever another process has said something, where that can be heard; for ever."""
        while True:
            try:
                if not await self._fleet.listen():
                    return
                self._is_listening = True
            except Exception:  # noqa: BLE001 (what cannot be heard is seen, a little later)
                self._is_listening = False
                await anyio.sleep(_DEAF)
                continue
            if self._own or self._epoch is not None:
                self._stir(max(anyio.current_time(), self._turned_at + _BREATH))

    async def leave(self) -> None:
        """Let another go on at once. Where the store fails the lease runs out by itself."""
        if self._has_failed or not self._has_joined:
            return
        with anyio.CancelScope(shield=True):
            try:
                await self._fleet.leave(self._told.news)
            except Exception as exc:  # noqa: BLE001 (it must not take the place of what ended the block)
                logger.warning("the payments stay followed for a while, the store failed: %s", _what(exc))

    # Inside

    def _say(self, own: OwnPayment, now: float) -> None:
        """Prepare to say that a payment is followed."""
        at = self._utcnow()
        self._told.tracked[own.id] = Followed(
            transaction_id=own.id,
            follower=self._fleet.follower,
            is_new=own.is_new,
            tracked_at=at - timedelta(seconds=now - own.tracked_at),
            until=at + timedelta(seconds=min(_HOLD, own.deadline - now)),
            has_deadline=own.deadline < math.inf,
        )

    def _stir(self, at: float) -> None:
        """Have a turn then, or as soon as the store may be asked again."""
        at = max(at, self._not_before)
        if at < self._turn_at:
            self._turn_at = at
            self._stirred.set()
            self._stirred = anyio.Event()

    async def _take_turn(self) -> None:
        now = anyio.current_time()
        if now >= self._say_again_at:
            self._say_again_at = now + _HOLD / 2
            for own in self._own:
                self._say(own, now)
        told, self._told = self._told, Outgoing()
        # What comes to be said from here on is for the next turn.
        self._turn_at = self._peek_at = math.inf
        try:
            learned = await self._fleet.turn(
                told,
                wants_lease=self._wants_lease(now),
                wanted=self._own,
                reads_on=len(self._own) > len(told.tracked),
            )
        except BaseException as exc:
            self._told = told.and_then(self._told)
            if not isinstance(exc, Exception):
                raise
            self._failed(exc)
            return
        if not self._has_joined:
            self._has_joined = True
            self._say_again_at = now + _HOLD / 2
        self._turned_at = now
        self._works()
        for news in told.news:
            if news.is_ending:
                self._settling.discard(news.transaction_id)
                self._followers.end(news.transaction_id)
        self._absorb(learned, now)
        self._schedule(learned.lease_ends_at)

    async def _peek(self) -> None:
        self._peek_at = math.inf
        try:
            peek = await self._fleet.peek()
        except Exception as exc:  # noqa: BLE001 (whatever it is, it must not end the poller)
            self._failed(exc)
            return
        self._works()
        if peek.has_news or (self._epoch is None and peek.lease_ends_at is None):
            self._stir(anyio.current_time())
        else:
            self._schedule(peek.lease_ends_at)

    def _wants_lease(self, now: float) -> bool:
        if self._is_unwell(now):
            return False
        if self._own or self._followers:
            self._idle_since = now
            return True
        return self._epoch is not None and now < self._idle_since + self._fleet.linger

    def _is_unwell(self, now: float) -> bool:
        """Return whether to stand back, so that another process may ask: this one has had no answer for long."""
        if (
            self._epoch is not None
            and now > self._faulty_since + _UNWELL
            and self._followers.has_others_than(self._fleet.follower)
        ):
            logger.warning("no answer for %.0f s: leaves asking to another process", now - self._faulty_since)
            self._faulty_since = math.inf
            self._stands_back_until = now + 2 * self._fleet.ttl
        return now < self._stands_back_until

    def _schedule(self, lease_ends_at: float | None) -> None:
        """Decide when to get in touch next."""
        now = anyio.current_time()
        if self._told:
            self._stir(now)
        poll = self._fleet.listening_poll if self._is_listening else self._fleet.poll
        if self._epoch is not None:
            self._stir(self._turned_at + self._fleet.ttl / 4)
            self._peek_at = now + poll if self._followers or self._own else math.inf
        elif self._own:
            self._stir(self._say_again_at)
            self._peek_at = min(now + poll, math.inf if lease_ends_at is None else max(now, lease_ends_at))
        else:
            self._peek_at = math.inf

    def _absorb(self, learned: Incoming, began: float) -> None:
        """Take in what was learned in a turn that began then."""
        if not learned.holds:
            self._held_until = -math.inf
            self._follow_nothing()
            self._epoch = None
        else:
            # From the beginning of the turn: the store gave the lease later than that, so it ends later, too.
            self._held_until = began + self._fleet.ttl
            if learned.epoch != self._epoch:
                self._follow_nothing()
                self._epoch = learned.epoch
                logger.debug("this process asks for the payments of all")
        endings = []
        for news in learned.news:
            if news.is_ending:
                self._followers.end(news.transaction_id)
                self._plan.forget(news.transaction_id)
                if self._own.remove(news.transaction_id):
                    endings.append(
                        News(
                            transaction_id=news.transaction_id,
                            transaction=news.transaction,
                            error=news.error,
                            lag=news.lag,
                        )
                    )
            else:
                self._own.saw(news.transaction_id, news.transaction)
        if learned.holds:
            self._follow(learned.followed)
        self._hand_out(endings)
        self._wake()

    def _follow(self, changes: Iterable[Followed]) -> None:
        """Follow what all processes follow."""
        now, utcnow = anyio.current_time(), self._utcnow()
        for change in changes:
            if change.transaction_id in self._settling:
                continue  # its ending is about to be told
            if not self._followers.take(change, utcnow):
                self._plan.forget(change.transaction_id)
                continue
            tracked_at = now - (utcnow - change.tracked_at).total_seconds()
            self._plan.track(change.transaction_id, now, is_new=change.is_new, deadline=math.inf, tracked_at=tracked_at)
            if change.is_hinted:
                self._plan.hint(change.transaction_id, now)
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP
            for transaction_id in self._followers.expired(utcnow):
                self._plan.forget(transaction_id)

    def _follow_nothing(self) -> None:
        for transaction_id in self._followers:
            self._plan.forget(transaction_id)
        self._followers = Followers()

    def _failed(self, exc: Exception) -> None:
        if not self._has_failed:
            logger.warning("following payments waits for the store: %s", _what(exc))
        self._has_failed = True
        now = anyio.current_time()
        self._not_before = now + self._pause
        self._pause = min(_PAUSES[1], 2 * self._pause)
        self._turn_at = math.inf
        self._stir(now)

    def _works(self) -> None:
        if self._has_failed:
            logger.info("the store is back: following payments goes on")
        self._has_failed = False
        self._pause = _PAUSES[0]
        self._not_before = -math.inf


def _what(exc: Exception) -> str:
    return str(exc) if isinstance(exc, MobileMoneyError) else type(exc).__name__
