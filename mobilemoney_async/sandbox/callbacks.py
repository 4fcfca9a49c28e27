"""Callbacks to a merchant's URL, sent while `Sandbox.serve` runs.

The contract says that status changes are reported by callback, and shows neither payload nor signature nor retries
(section 6). When one is sent, how often and with which body is an invention of this sandbox.
"""

import bisect
import collections
import enum
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
from mobilemoney_async.sandbox.payments import TransactionBook
from mobilemoney_async.sandbox.states import Payment

TIMEOUT = 5.0
"""Real seconds for a receiver's answer, and the most that an answer waits for a callback before it."""

SENT_SHOWN = 100

MOST_WAITING = 1000
"""The most callbacks that wait or are being sent; further ones are dropped."""

_AT_ONCE = 20
_SHORTEST_PAUSE = 0.001
"""Real seconds. The event loop's time would not pass in a pause shorter than its resolution."""

_HEADERS = {"content-type": "application/json", "user-agent": "mobilemoney-sandbox"}

LATE_BY = 30.0
"""Seconds of the service's time, whatever the sandbox's speed."""


class CallbackMode(enum.StrEnum):
    """Mode in which status changes are reported: when, and how often."""

    ONCE = "once"
    TWICE = "twice"
    """The same callback is sent a second time, as by a service that saw no answer to the first."""
    LATE = "late"
    """`LATE_BY` seconds of the service's time after the change."""
    BEFORE_ANSWER = "before-answer"
    """A new transaction is reported too, before the request that made it is answered; changes as with `ONCE`."""


class CallbackKind(enum.StrEnum):
    """Content of a callback."""

    CREATED = "created"
    CHANGED = "changed"
    REPEATED = "repeated"
    FORGED = "forged"


@attrs.frozen(eq=False)
class _Callback:
    """Callback to send, at a time in seconds of the service's time since the sandbox's start."""

    url: str = attrs.field(repr=False)
    kind: CallbackKind
    transaction_id: str
    reference: str
    status: str
    due_at: float
    # Set when it was delivered, or cannot be.
    done: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    @property
    def body(self) -> bytes:
        """The body; its fields are an invention of this sandbox."""
        fields = {"transaction_id": self.transaction_id, "reference": self.reference, "status": self.status}
        return encode(fields)


@attrs.frozen(kw_only=True)
class SentCallback:
    """Result of one callback.

    Args:
        at: Time of sending by the service's clock; aware UTC.
        url: The receiver.
        transaction_id: The transaction; made up if the callback is forged.
        kind: The content.
        status: The receiver's HTTP status; None if there was no answer.
        error: The reason why there was none, readable; None if there was one.
    """

    at: datetime
    url: str = attrs.field(repr=False)
    transaction_id: str
    kind: CallbackKind
    status: int | None
    error: str | None


class CallbackSender:
    """Sender of callbacks while `Sandbox.serve` runs. Changes at other times are not reported."""

    body_note: str = (
        "The service documents neither payload nor signature of its callbacks. This sandbox sends a JSON object with "
        '"transaction_id", "reference" and "status", unsigned.'
    )

    def __init__(self, book: TransactionBook, clock: Clock, dice: random.Random) -> None:
        self._book = book
        self._clock = clock
        self._dice = dice
        self._url: str | None = None
        self._mode = CallbackMode.ONCE
        self._waiting: list[_Callback] = []  # in the order in which they are due
        self._sending: set[_Callback] = set()
        self._sent: collections.deque[SentCallback] = collections.deque(maxlen=SENT_SHOWN)
        self._runs = 0
        self._wake: anyio.Event | None = None  # of the runs that pause
        # The newest callback about a new transaction.
        self._announcement: _Callback | None = None
        book.watch(self._follow)

    @property
    def url(self) -> str | None:
        """The receiver of status changes; None for none."""
        return self._url

    @property
    def mode(self) -> CallbackMode:
        """The mode in which status changes are reported."""
        return self._mode

    @property
    def sent(self) -> tuple[SentCallback, ...]:
        """The results of the newest `SENT_SHOWN` callbacks, newest first."""
        return tuple(self._sent)

    def configure(self, url: str | None, mode: CallbackMode | str = CallbackMode.ONCE) -> None:
        """Report each status change from now on.

        Args:
            url: The receiver: http or https, with a host. None stops it, and drops the callbacks that wait.
            mode: When and how often to report.

        Raises:
            ValueError: `url` is not such a URL, or there is no such mode.
        """
        if url is not None:
            _check(url)
        try:
            mode = CallbackMode(mode)
        except ValueError:
            raise ValueError(f"mode must be one of: {', '.join(CallbackMode)}") from None
        self._url, self._mode = url, mode
        if url is None:
            self._waiting.clear()
        self.wake()

    def forge(self, url: str | None = None) -> str:
        """Send a callback that claims the success of a transaction that does not exist.

        Args:
            url: The receiver; None for the configured URL.

        Returns:
            The made-up transaction id.

        Raises:
            ValueError: `url` is not an http or https URL with a host, or is None and none is configured.
        """
        if url is None:
            url = self._url
        if url is None:
            raise ValueError("url is missing: pass one here or configure one")
        _check(url)
        transaction_id, reference = f"txn_{self._dice.getrandbits(80):020x}", f"REF{self._dice.getrandbits(48):012X}"
        forged = _Callback(url, CallbackKind.FORGED, transaction_id, reference, "SUCCESS", self._clock.seconds())
        self._add(forged)
        self.wake()
        return transaction_id

    async def reported_before(self, handle: Callable[[Request], Reply], request: Request) -> Reply:
        """Handle a request; wait at most `TIMEOUT` for a callback that must arrive before its answer.

        Cancelled while it waits, the request has taken effect.
        """
        # No await between these lines, so a new announcement belongs to this request and no other.
        earlier = self._announcement
        reply = handle(request)
        announcement = self._announcement
        if announcement is not None and announcement is not earlier:
            with anyio.move_on_after(TIMEOUT):
                await announcement.done.wait()
        return reply

    async def run(self) -> None:
        """Send the callbacks that are due, until cancelled; unfinished deliveries are then cut off."""
        self._runs += 1
        slots = anyio.CapacityLimiter(_AT_ONCE)
        http: httpx.AsyncClient | None = None
        try:
            async with AsyncExitStack() as clients, anyio.create_task_group() as tasks:
                while True:
                    now = self._clock.seconds()
                    self._book.settle(now)
                    while self._waiting and self._waiting[0].due_at <= now:
                        if http is None:
                            # Only when needed: it reads the certificates, which takes longer than all the rest.
                            # No proxy: the receiver is a program of the merchant's, on this machine or near it.
                            http = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False)
                            clients.push_async_callback(http.aclose)
                        callback = self._waiting.pop(0)
                        self._sending.add(callback)
                        tasks.start_soon(self._deliver, callback, http, slots)
                    await self._pause()
        finally:
            # The task group has ended all deliveries of this run. Requests in `reported_before` may still wait for one.
            self._runs -= 1
            self.wake()  # an event belongs to its loop
            if not self._runs:
                for callback in (*self._sending, *self._waiting):
                    self._finish(callback)

    def wake(self) -> None:
        """Check at once for callbacks that are due, for example after a change of the clock."""
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    async def _pause(self) -> None:
        """Wait until a callback or an event is due, or `wake` is called."""
        # Taken before the due times are read, without an await: a change after that sets this event.
        wake = self._wake = self._wake or anyio.Event()
        with anyio.move_on_after(self._until_due()):
            await wake.wait()

    def _until_due(self) -> float:
        dues = [callback.due_at for callback in self._waiting[:1]]
        if self._url is not None:
            dues.append(self._book.next_due())
        return max(_SHORTEST_PAUSE, min(map(self._clock.unscaled_until, dues), default=math.inf))

    def _follow(self, payment: Payment) -> None:
        """Report a new transaction, or a change of its state."""
        if not self._runs:
            return
        if self._url is not None:
            for callback in self._report(payment, self._url):
                if self._add(callback) and callback.kind is CallbackKind.CREATED:
                    self._announcement = callback
        self.wake()  # also for a new transaction, which may end before all others

    def _report(self, payment: Payment, url: str) -> list[_Callback]:
        at = payment.created_at if payment.ended_at is None else payment.ended_at
        kinds = [CallbackKind.CHANGED]
        if payment.ended_at is None:
            kinds = [CallbackKind.CREATED] if self._mode is CallbackMode.BEFORE_ANSWER else []
        elif self._mode is CallbackMode.TWICE:
            kinds.append(CallbackKind.REPEATED)
        elif self._mode is CallbackMode.LATE:
            at += LATE_BY
        return [_Callback(url, kind, payment.id, payment.reference, payment.status, at) for kind in kinds]

    def _add(self, callback: _Callback) -> bool:
        if len(self._waiting) + len(self._sending) >= MOST_WAITING:
            self._note(callback, self._now(), error=f"not sent: {MOST_WAITING} are waiting")
            return False
        bisect.insort(self._waiting, callback, key=lambda each: each.due_at)
        return True

    def _finish(self, callback: _Callback) -> None:
        self._sending.discard(callback)
        callback.done.set()

    async def _deliver(self, callback: _Callback, http: httpx.AsyncClient, slots: anyio.CapacityLimiter) -> None:
        at, status, error = self._now(), None, None
        # Cancelled here, the delivery still counts as done: a request in `reported_before` may wait for it.
        try:
            async with slots:
                at = self._now()
                with anyio.fail_after(TIMEOUT):
                    # Streamed, so that only the head of the answer is read.
                    async with http.stream("POST", callback.url, content=callback.body, headers=_HEADERS) as answer:
                        status = answer.status_code
        except (TimeoutError, httpx.TimeoutException):
            error = f"no answer within {TIMEOUT:g} s"
        except httpx.ConnectError:
            error = "cannot connect"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            # Only the class: the text may repeat the URL, and with it a secret of the receiver's.
            error = f"not delivered: {type(exc).__name__}"
        finally:
            self._finish(callback)
        self._note(callback, at, status=status, error=error if status is None else None)

    def _note(self, callback: _Callback, at: datetime, *, error: str | None, status: int | None = None) -> None:
        self._sent.appendleft(
            SentCallback(
                at=at,
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
    """Refuse a URL that no callback can be sent to, without repeating it: it may hold a secret."""
    try:
        parts = httpx.URL(url)
        port_is_fine = parts.port is None or 0 < parts.port < 65536
        is_fine = parts.scheme in ("http", "https") and parts.host != "" and port_is_fine
    except (httpx.InvalidURL, TypeError, ValueError):  # the last for a host that is not a name
        is_fine = False
    if not is_fine:
        raise ValueError("url must be an http:// or https:// URL with a host")
