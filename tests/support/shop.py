"""A merchant's busy day in virtual time: payments created at a rate, tracked in some way, timed to the moment.

The service is the sandbox: it enforces the strictest reading of the limit, payments end log-normally with a median of
15 s, every eighth or so waits in vain for its customer until the prompt expires after 120 s, and every answer takes
50 ms. Strangers are payments of others in the same list.
"""

import heapq
import math
import random
import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

import anyio
import attrs

from mobilemoney_async import Acknowledgement, AsyncClient
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.states import Payment

TIMEOUT_SHARE = 0.12
CUSTOMER = "+255681234501"
ABSENT_CUSTOMER = "+255780000408"
LATENCY = 0.05
CALLBACK_DELAY = 0.3

Order = Literal["newest-first", "oldest-first"]

Track = Callable[[Acknowledgement], None]
"""Starts to track a payment."""

Ended = Callable[[str], None]
"""Notes that a payment's final state was seen."""

Trade = Callable[[Track], Awaitable[None]]
"""Creates payments for ever, and hands each to be tracked."""

Hint = Callable[[str], object]
"""Takes the id of a payment that has ended, as a callback names it."""

Callbacks = Callable[[Hint], Awaitable[None]]
"""Sends callbacks for ever."""

Follow = Callable[[AsyncClient, Ended, Trade], Awaitable[None]]
"""Tracks payments: opens its resources, then awaits the third argument."""


@attrs.frozen(kw_only=True)
class Figures:
    """Figures of one day, once things had settled.

    Attributes:
        wanted: Creates that were wanted a minute.
        confirmed: Final states seen a minute.
        mean: The mean lag from a final state to its being seen, seconds.
        p95: Its 95th percentile.
        rejections: By the service's limit, since the start.
        requests: Requests for states for each final state seen.
    """

    wanted: float
    confirmed: float
    mean: float
    p95: float
    rejections: int
    requests: float


class Shop:
    """Creates payments, and knows when each ended and when that was seen.

    Args:
        wanted: Creates a minute.
        strangers: Payments a minute that others add to the list.
        order: Of the list.
        seed: For everything that is left to chance.
        evenly: Whether the creates come at equal distances, or at random.
        choices: Choices that the contract leaves open.
    """

    def __init__(
        self,
        wanted: float,
        *,
        strangers: float = 0.0,
        order: Order = "newest-first",
        seed: int = 1,
        evenly: bool = True,
        choices: Choices | None = None,
    ) -> None:
        self.wanted = wanted
        self.strangers = strangers
        self.evenly = evenly
        self.dice = random.Random(seed)
        self.sandbox = Sandbox(seed=seed, choices=choices or Choices(latency=LATENCY, list_order=order))
        self.seen: list[tuple[float, float]] = []  # when, and how late

    async def run(self, follow: Follow, *, minutes: float, settle: float = 4.0) -> Figures:
        """Run the day and return its figures without the first minutes.

        Args:
            follow: Tracks the payments.
            minutes: In all.
            settle: The minutes that do not count.
        """
        async with self.sandbox.client() as client:
            began = anyio.current_time()
            with anyio.move_on_after(60 * minutes):
                await follow(client, self._ended, partial(self._trade, client))
            assert anyio.current_time() >= began + 60 * minutes
        return self._figures(60 * settle, 60 * minutes)

    async def send_callbacks(self, hint: Hint) -> None:
        """Hint at each payment 0.3 s after its end, for ever: every callback arrives."""
        book, clock = self.sandbox._engine.book, self.sandbox._clock
        ended: list[tuple[float, str]] = []

        def note(payment: Payment) -> None:
            if payment.ended_at is not None:
                heapq.heappush(ended, (payment.ended_at + CALLBACK_DELAY, payment.id))

        book.watch(note)
        while True:
            now = clock.seconds()
            book.settle(now)
            while ended and ended[0][0] <= now + 1e-6:
                hint(heapq.heappop(ended)[1])
            due_at = min(book.next_due(), ended[0][0] if ended else math.inf, now + 1)
            await anyio.sleep(max(1e-3, due_at - now))

    def _figures(self, since: float, until: float) -> Figures:
        lags = [lag for at, lag in self.seen if since <= at <= until]
        requests = self.sandbox.requests
        asked = requests.count("transactions") + requests.count("transaction")
        return Figures(
            wanted=self.wanted,
            confirmed=60 * len(lags) / (until - since),
            mean=statistics.mean(lags) if lags else float("inf"),
            p95=statistics.quantiles(lags, n=20)[-1] if len(lags) > 1 else float("inf"),
            rejections=requests.rejections,
            requests=asked / max(1, len(self.seen)),
        )

    def _ended(self, transaction_id: str) -> None:
        now = (self.sandbox.now - self.sandbox._engine.book.datetime_at(0)).total_seconds()
        ended_at = self.sandbox.transactions[transaction_id].ended_at
        assert ended_at is not None, "seen final before it was"
        self.seen.append((now, now - ended_at))

    async def _trade(self, client: AsyncClient, track: Track) -> None:
        """Create payments for ever, whether or not the earlier ones have been let through."""
        async with anyio.create_task_group() as group:
            if self.strangers:
                group.start_soon(self._add_strangers)
            if not self.wanted:
                return
            while True:
                group.start_soon(self._create, client, track)
                await anyio.sleep(60 / self.wanted if self.evenly else self.dice.expovariate(self.wanted / 60))

    async def _create(self, client: AsyncClient, track: Track) -> None:
        phone_number = ABSENT_CUSTOMER if self.dice.random() < TIMEOUT_SHARE else CUSTOMER
        track(await client.collections.create(phone_number=phone_number, amount=1000))

    async def _add_strangers(self) -> None:
        """Let payments of others appear in the list, past the limit, since they come from elsewhere."""
        while True:
            self.sandbox.ask(ABSENT_CUSTOMER if self.dice.random() < TIMEOUT_SHARE else CUSTOMER, "500")
            await anyio.sleep(self.dice.expovariate(self.strangers / 60))
