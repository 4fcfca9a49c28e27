"""Callbacks."""

import collections
import enum
import heapq
import itertools
import math
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime

import anyio
import attrs
import httpx

from mobilemoney_async.sandbox.clock import Clock
from mobilemoney_async.sandbox.messages import Reply, Request, encode
from mobilemoney_async.sandbox.payments import PaymentBook
from mobilemoney_async.sandbox.states import Payment

LATE_BY = 30.0
"""Seconds of the service's time, whatever the sandbox's speed."""


class CallbackMode(enum.StrEnum):
    """When, and how often, a status change is reported."""

    ONCE = "once"
    TWICE = "twice"
    """The same callback comes a second time, as from a service that saw no answer to the first."""
    LATE = "late"
    """`LATE_BY` seconds of the service's time after the change."""
    BEFORE_ANSWER = "before-answer"
    """A new transaction is reported too, before the request that made it is answered; changes as with `ONCE`."""


class CallbackKind(enum.StrEnum):
    """What a callback reports."""

    CREATED = "created"
    CHANGED = "changed"
    REPEATED = "repeated"
    FORGED = "forged"


@attrs.define(eq=False, kw_only=True)
class Callback:
    """One callback to send.

    Args:
        url: Where to.
        transaction_id: Of which transaction; made up if it is forged.
        kind: What it reports.
        body: JSON.
        due_at: When, seconds of the service's time since the sandbox's start.
    """

    url: str = attrs.field(repr=False)
    transaction_id: str
    kind: CallbackKind
    body: bytes = attrs.field(repr=False)
    due_at: float


class CallbackQueue:
    """The callbacks that wait to be sent.

    Attributes:
        url: Where status changes are reported; None for nowhere.
        mode: How.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.mode: CallbackMode = CallbackMode.ONCE
        self._waiting: list[tuple[float, int, Callback]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def configure(self, url: str | None, mode: CallbackMode) -> None:
        """Report what happens from now on there; with None, forget what waits too."""
        self.url, self.mode = url, mode
        if url is None:
            self._waiting.clear()

    def report(self, payment: Payment) -> list[Callback]:
        """Say which callbacks a new transaction, or one that changed its state, gives rise to."""
        if self.url is None:
            return []
        at = payment.created_at if payment.ended_at is None else payment.ended_at
        kinds = [CallbackKind.CHANGED]
        if payment.ended_at is None:
            kinds = [CallbackKind.CREATED] if self.mode is CallbackMode.BEFORE_ANSWER else []
        elif self.mode is CallbackMode.TWICE:
            kinds.append(CallbackKind.REPEATED)
        elif self.mode is CallbackMode.LATE:
            at += LATE_BY
        body = _body(payment.id, payment.reference, payment.status)
        return [Callback(url=self.url, transaction_id=payment.id, kind=kind, body=body, due_at=at) for kind in kinds]

    def add(self, callback: Callback) -> None:
        """Let it wait until it is due."""
        heapq.heappush(self._waiting, (callback.due_at, next(self._numbers), callback))

    def next_due(self) -> float | None:
        """Say when the next is due, seconds since the sandbox's start; None if none waits."""
        return self._waiting[0][0] if self._waiting else None

    def take_due(self, now: float) -> list[Callback]:
        """Take out those that are due by now, in order."""
        due = []
        while self._waiting and self._waiting[0][0] <= now:
            due.append(heapq.heappop(self._waiting)[2])
        return due


def forged(url: str, *, transaction_id: str, reference: str, now: float) -> Callback:
    """Make a callback that claims the success of a transaction which nobody ever made."""
    body = _body(transaction_id, reference, "SUCCESS")
    return Callback(url=url, transaction_id=transaction_id, kind=CallbackKind.FORGED, body=body, due_at=now)


def _body(transaction_id: str, reference: str, status: str) -> bytes:
    return encode({"transaction_id": transaction_id, "reference": reference, "status": str(status)})


TIMEOUT = 5.0
"""Real seconds that a receiver has for its answer, and that an answer is held at most for a callback before it."""

SENT_SHOWN = 100

MOST_WAITING = 1000
"""Callbacks that may wait or be on their way; what comes on top is not sent."""

_AT_ONCE = 20
_SHORTEST_PAUSE = 0.001
"""Real seconds. A pause shorter than the event loop's resolution would not let its time pass at all."""

_HEADERS = {"content-type": "application/json", "user-agent": "mobilemoney-sandbox"}


@attrs.frozen(kw_only=True)
class SentCallback:
    """What became of one callback.

    Args:
        at: When it was sent, by the sandbox's clock; aware UTC.
        url: Where to.
        transaction_id: Of which transaction; made up if it is forged.
        kind: What it reported.
        status: The receiver's HTTP status; None if there was no answer.
        error: Why there was none, for people; None if there was one.
    """

    at: datetime
    url: str = attrs.field(repr=False)
    transaction_id: str
    kind: CallbackKind
    status: int | None
    error: str | None


class CallbackSender:
    """Sends callbacks while `Sandbox.serve` runs. What changes while nothing is served is not reported.

    Args:
        book: Its changes are reported.
        clock: The sandbox's.
        dice: Makes up ids.
    """

    body_note: str = (
        "The service documents neither the payload nor a signature of its callbacks. This body is the sandbox's own: "
        'a JSON object with "transaction_id", "reference" and "status", unsigned.'
    )

    def __init__(self, book: PaymentBook, clock: Clock, dice: random.Random) -> None:
        self._book = book
        self._clock = clock
        self._dice = dice
        self._queue = CallbackQueue()
        self._sent: collections.deque[SentCallback] = collections.deque(maxlen=SENT_SHOWN)
        self._runs = 0
        self._on_their_way = 0
        self._wakes: set[anyio.Event] = set()
        self._announced: dict[Callback, anyio.Event] = {}
        # Is set when the newest callback about a new transaction was delivered, or could not be.
        self._announcement: anyio.Event | None = None
        book.watch(self._follow)

    @property
    def url(self) -> str | None:
        """Where status changes are reported; None for nowhere."""
        return self._queue.url

    @property
    def mode(self) -> CallbackMode:
        """When and how often they are."""
        return self._queue.mode

    @property
    def sent(self) -> tuple[SentCallback, ...]:
        """The newest `SENT_SHOWN` callbacks that were sent or could not be, newest first."""
        return tuple(self._sent)

    def configure(self, url: str | None, mode: CallbackMode | str = CallbackMode.ONCE) -> None:
        """Report each status change from now on.

        Args:
            url: Where to: http or https, with a host. None stops it, and forgets what was not sent yet.
            mode: When and how often.

        Raises:
            ValueError: `url` is no such URL, or there is no such mode.
        """
        if url is not None:
            _check(url)
        try:
            mode = CallbackMode(mode)
        except ValueError:
            raise ValueError(f"mode must be one of: {', '.join(CallbackMode)}") from None
        self._queue.configure(url, mode)
        self.wake()

    def forge(self, url: str | None = None) -> str:
        """Send a callback about a transaction that does not exist, saying that it succeeded.

        Args:
            url: Where to; None for the configured URL.

        Returns:
            The transaction id that was made up.

        Raises:
            ValueError: `url` is no http or https URL with a host, or is None and none is configured.
        """
        if url is None:
            url = self._queue.url
        if url is None:
            raise ValueError("url is missing: give one here or configure one")
        _check(url)
        transaction_id, reference = f"txn_{self._dice.getrandbits(80):020x}", f"REF{self._dice.getrandbits(48):012X}"
        self._add(forged(url, transaction_id=transaction_id, reference=reference, now=self._clock.seconds()))
        self.wake()
        return transaction_id

    async def reported_before(self, handle: Callable[[Request], Reply], request: Request) -> Reply:
        """Handle a request; if the transaction that it made is to be reported before the answer, wait for that.

        Not longer than `TIMEOUT`. If it is cancelled meanwhile, the request has taken effect.
        """
        earlier = self._announcement
        reply = handle(request)
        if self._announcement is not None and self._announcement is not earlier:
            with anyio.move_on_after(TIMEOUT):
                await self._announcement.wait()
        return reply

    async def run(self) -> None:
        """Send what is due, until cancelled; what is on its way is then cut off."""
        self._runs += 1
        slots = anyio.CapacityLimiter(_AT_ONCE)
        http: httpx.AsyncClient | None = None
        try:
            async with AsyncExitStack() as clients, anyio.create_task_group() as tasks:
                while True:
                    self._book.settle(self._clock.seconds())
                    for callback in self._queue.take_due(self._clock.seconds()):
                        if http is None:
                            # Not before it is needed: it reads the certificates, which takes longer than all the rest.
                            # No proxy: the receiver is a program of the merchant's, near by.
                            http = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False)
                            clients.push_async_callback(http.aclose)
                        self._on_their_way += 1
                        tasks.start_soon(self._deliver, callback, http, slots)
                    await self._pause()
        finally:
            self._runs -= 1
            if not self._runs:
                self._forget_deliveries()

    def wake(self) -> None:
        """Look at once what is due: something changed, for example the clock."""
        for wake in self._wakes:
            wake.set()

    async def _pause(self) -> None:
        """Wait until something is due, or `wake` is called."""
        wake = anyio.Event()
        self._wakes.add(wake)
        try:
            with anyio.move_on_after(self._until_due()):
                await wake.wait()
        finally:
            self._wakes.discard(wake)

    def _until_due(self) -> float:
        dues = [self._queue.next_due()]
        if self._queue.url is not None:
            dues.append(self._book.next_due())
        waits = [self._clock.unscaled_until(due) for due in dues if due is not None]
        return max(_SHORTEST_PAUSE, min(waits, default=math.inf))

    def _follow(self, payment: Payment) -> None:
        if not self._runs:
            return
        for callback in self._queue.report(payment):
            if self._add(callback) and callback.kind is CallbackKind.CREATED:
                self._announcement = self._announced[callback] = anyio.Event()
        self.wake()  # for a new transaction too: it may end sooner than any other

    def _add(self, callback: Callback) -> bool:
        if len(self._queue) + self._on_their_way >= MOST_WAITING:
            self._note(callback, error=f"not sent: {MOST_WAITING} are waiting")
            return False
        self._queue.add(callback)
        return True

    def _forget_deliveries(self) -> None:
        """Clear up after deliveries that were cut off, some of them before their first step."""
        self._on_their_way = 0
        for announcement in self._announced.values():
            announcement.set()
        self._announced.clear()

    async def _deliver(self, callback: Callback, http: httpx.AsyncClient, slots: anyio.CapacityLimiter) -> None:
        try:
            async with slots:
                await self._post(callback, http)
        finally:
            self._on_their_way -= 1
            announcement = self._announced.pop(callback, None)
            if announcement is not None:
                announcement.set()

    async def _post(self, callback: Callback, http: httpx.AsyncClient) -> None:
        status, error = None, None
        at = self._now()
        try:
            with anyio.fail_after(TIMEOUT):
                # Streamed, so that nothing of the answer beyond its head is read.
                async with http.stream("POST", callback.url, content=callback.body, headers=_HEADERS) as answer:
                    status = answer.status_code
        except (TimeoutError, httpx.TimeoutException):
            error = f"no answer within {TIMEOUT:g} s"
        except httpx.ConnectError:
            error = "cannot connect"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            # By its class: the text may repeat the URL, and with it a secret of the receiver's.
            error = f"not delivered: {type(exc).__name__}"
        self._note(callback, at=at, status=status, error=error if status is None else None)

    def _note(
        self, callback: Callback, *, error: str | None, status: int | None = None, at: datetime | None = None
    ) -> None:
        self._sent.appendleft(
            SentCallback(
                at=at or self._now(),
                url=callback.url,
                transaction_id=callback.transaction_id,
                kind=callback.kind,
                status=status,
                error=error,
            )
        )

    def _now(self) -> datetime:
        return self._book.datetime_at(self._clock.seconds())


def _check(url: str) -> None:
    """Refuse what no callback can be sent to, without repeating it: it may hold a secret."""
    try:
        parts = httpx.URL(url)
        port_is_fine = parts.port is None or 0 < parts.port < 65536
        is_fine = parts.scheme in ("http", "https") and parts.host != "" and port_is_fine
    except (httpx.InvalidURL, TypeError, ValueError):  # the last for a host that is no name
        is_fine = False
    if not is_fine:
        raise ValueError("url must be an http:// or https:// URL with a host")
