"""Receiver of callbacks, which makes them hints for a poller (contract, section 6).

The contract documents neither payload nor signature. So a callback may only *name* a payment, anywhere in its body.
State and amount of the payment are always fetched.

Invariants: nothing that arrives raises. Constants bound the cost of one body, and only a payment that the poller
follows already, or that the merchant's own `find` returns, leads to a request to the service.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio
import attrs

from mobilemoney_async.callbacks.names import MAX_BODY, MAX_CANDIDATES, candidates
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.redaction import names_secret
from mobilemoney_async.tasks import callers_code
from mobilemoney_async.text import redact
from mobilemoney_async.values import Secret, conceal, refuse, require_integer, require_text

logger: logging.Logger = logging.getLogger("mobilemoney_async")

_KNOWN_NAMES = 30_000
_EARLY_NAMES = 2_000
# Seconds for which the unknown names of a callback are remembered: longer than a create takes.
_EARLY_FOR = 60.0
_KEPT_TEXT = 2_000
_KEPT_HEADERS = 32
# Characters that a path has as they are: with a slash, or one that is quoted, a route may not find it.
_SECRET = re.compile(r"[A-Za-z0-9._~-]{16,}")
# `find` may ask a database: so many times at once, and once more a second.
_FINDS = 5.0


Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""Headers as frameworks have them: a mapping, or pairs, of text or bytes."""
Verify: TypeAlias = Callable[[bytes, Mapping[str, str]], bool | Awaitable[bool]]
"""Function of the raw body and the headers, names in lower case; returns True if the service sent them."""
Find: TypeAlias = Callable[[Sequence[str]], Awaitable[Iterable[str]]]
"""Async function that returns the transaction ids of the merchant's open payments among some names."""

K = TypeVar("K")
V = TypeVar("V")


class CallbackStatus(str, enum.Enum):
    """Result of reading a callback."""

    ACCEPTED = "accepted"
    """It was read."""
    WRONG_TOKEN = "wrong_token"  # noqa: S105 (no secret)
    """It did not come by the secret address."""
    TOO_LARGE = "too_large"
    """It has more than `MAX_BODY` bytes, and was not read."""
    NOT_VERIFIED = "not_verified"
    """`verify` did not return True."""

    def __str__(self) -> str:
        return self.value


@attrs.frozen(kw_only=True)
class CallbackResult:
    """Result of one callback.

    Attributes:
        status: Whether it was read, or why not.
        candidates: The number of its texts that may be the name of a payment.
        transaction_ids: Of the payments that it names, as far as the receiver knows the names or the poller follows
            them.
        is_duplicate: Whether the same body came before and is still kept.
    """

    status: CallbackStatus
    candidates: int = 0
    transaction_ids: tuple[str, ...] = ()
    is_duplicate: bool = False

    @property
    def accepted(self) -> bool:
        """True if it was read."""
        return self.status is CallbackStatus.ACCEPTED


@attrs.frozen(kw_only=True)
class KeptCallback:
    """Callback as it came, kept so that you can learn the format.

    Attributes:
        body: The beginning of the body, redacted: tokens, codes, phone numbers and long numbers do not show.
        headers: The headers, redacted the same way, by lower-case name.
        size: Of the whole body, bytes.
        times: The number of times that the same body came.
    """

    body: str
    headers: Mapping[str, str]
    size: int
    times: int = 1


class Following(Protocol):
    """Poller, as far as a receiver needs it."""

    def track(self, payment: Acknowledgement | str, *, timeout: float | None = None) -> None:
        """Follow a payment."""

    def hint(self, transaction_id: str) -> bool:
        """Note that a payment may have changed; return whether it is followed."""


def _remember(latest: OrderedDict[K, V], key: K, value: V, size: int) -> None:
    """Set a key of a mapping, which keeps the keys set last, at most `size` of them."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > size:
        latest.popitem(last=False)


class CallbackReceiver:
    """Receiver that turns callbacks into hints for a poller, under any web framework.

    Hand the payments that you create to `track` rather than to the poller's own, so that a callback is understood
    under any of their names: transaction id, the service's reference, your idempotency key, or others that you give.
    The poller follows a payment whether or not a callback for it ever comes.

    Args:
        poller: Follows the payments; see `AsyncClient.poller`.
        verify: Returns True if the service sent this raw body with these headers (lower-case names); sync or async. An
            exception of it counts as no.
        secret: Has to come with every callback as its `token`: part of the address that only you and the service know.
            At least 16 letters, digits, ``-``, ``.``, ``_`` or ``~`` of ASCII, such as `secrets.token_urlsafe(24)`.
        find: Returns the transaction ids of your open payments among some names; for callbacks of payments that
            another process follows. Asked for bodies that name nothing known here, 5 times at once and once a second
            at most. The ids are tracked, so it must leave out final payments.
        keep: Number of different bodies to keep, redacted, at least 0.

    Raises:
        InvalidRequest: An argument is invalid.
    """

    def __init__(
        self,
        poller: Following,
        *,
        verify: Verify | None = None,
        secret: str | Secret | None = None,
        find: Find | None = None,
        keep: int = 100,
    ) -> None:
        secret = None if secret is None else conceal(secret)
        for argument, function in (("verify", verify), ("find", find)):
            if function is not None and not callable(function):
                raise refuse(argument, "a function or None", function)
        if secret is not None and not (isinstance(secret, Secret) and _SECRET.fullmatch(secret.reveal())):
            raise refuse("secret", "a str or Secret of at least 16 ASCII letters, digits, '-', '.', '_' or '~'")
        self._poller, self._verify, self._find, self._secret = poller, verify, find, secret
        self._keep = require_integer("keep", keep, 0)
        self._kept: OrderedDict[bytes, KeptCallback] = OrderedDict()
        self._known: OrderedDict[str, str] = OrderedDict()  # name -> transaction id
        self._early: OrderedDict[str, float] = OrderedDict()  # unknown name -> end of its time
        self._finds, self._found_at = _FINDS, 0.0

    def track(self, payment: Acknowledgement | str, *names: str, timeout: float | None = None) -> None:
        """Let the poller follow a payment, and learn its names. A callback that came before counts as well.

        Args:
            payment: The acknowledgement of a create, or a transaction id.
            names: Further names that a callback may use, such as an external id.
            timeout: As for the poller's `track`, seconds.

        Raises:
            InvalidRequest: An argument is invalid, or the poller is not open.
        """
        for name in names:
            require_text("names", name)
        self._poller.track(payment, timeout=timeout)
        transaction_id = payment if isinstance(payment, str) else payment.transaction_id
        own = () if isinstance(payment, str) else (payment.reference, payment.idempotency_key)
        named = list(filter(None, (transaction_id, *own, *names)))
        for name in named:
            _remember(self._known, name, transaction_id, _KNOWN_NAMES)
        if max(self._early.pop(name, 0.0) for name in named) > anyio.current_time():
            self._hint(transaction_id)

    async def receive(self, body: bytes, headers: Headers = (), *, token: str | None = None) -> CallbackResult:
        """Take a callback. Whatever its bytes hold, it raises nothing and makes no request to the service.

        A cancelled call has done all of its work or a part of it; the same callback may come again.

        Args:
            body: The raw body. One of more than `MAX_BODY` bytes is not read.
            headers: Of the request. Of a name that comes several times the last counts.
            token: The secret part of the address that it came by.

        Raises:
            InvalidRequest: The body is not bytes, such as one that is read already.
        """
        token = token and conceal(token)  # an error keeps this frame
        await anyio.lowlevel.checkpoint()
        if not isinstance(body, bytes | bytearray):
            raise refuse("body", "the raw body, as bytes", type(body))
        if self._secret is not None and (token is None or self._secret != token):  # a Secret compares in constant time
            return CallbackResult(status=CallbackStatus.WRONG_TOKEN)
        if len(body) > MAX_BODY:
            return CallbackResult(status=CallbackStatus.TOO_LARGE)
        fields = _plain_headers(headers)
        if not await self._is_verified(body, fields):
            return CallbackResult(status=CallbackStatus.NOT_VERIFIED)
        is_duplicate, names = self._keep_body(body, fields), candidates(body)
        return CallbackResult(
            status=CallbackStatus.ACCEPTED,
            candidates=len(names),
            transaction_ids=tuple(self._hint_at(names) or await self._look_up(names)),
            is_duplicate=is_duplicate,
        )

    @property
    def kept(self) -> tuple[KeptCallback, ...]:
        """The latest different bodies that were accepted, oldest first."""
        return tuple(self._kept.values())

    def __repr__(self) -> str:
        return f"<CallbackReceiver: {len(self._kept)} kept>"

    async def _is_verified(self, body: bytes, headers: Mapping[str, str]) -> bool:
        if self._verify is None:
            return True
        try:
            with callers_code():
                answer = self._verify(body, headers)
                return (await answer if inspect.isawaitable(answer) else answer) is True
        except Exception as exc:  # noqa: BLE001 (a caller's code may raise anything, and its text may quote the body)
            logger.warning("verifying a callback failed: %s", type(exc).__name__)
            return False

    def _hint_at(self, names: Sequence[str]) -> list[str]:
        """Hint at the payments of these names, and return their ids; remember the unknown names."""
        named: dict[str, None] = {}
        until = anyio.current_time() + _EARLY_FOR
        for name in names:
            transaction_id = self._known.get(name, name)
            if self._hint(transaction_id) or name in self._known:  # or it was handed to the poller itself
                named[transaction_id] = None
            else:
                _remember(self._early, name, until, _EARLY_NAMES)
        return list(named)

    def _hint(self, transaction_id: str) -> bool:
        try:
            return self._poller.hint(transaction_id)
        except InvalidRequest as exc:
            # No id, or a poller that is closed: the service need not know.
            logger.debug("a callback gave no hint: %s", exc)
            return False

    async def _look_up(self, names: Sequence[str]) -> list[str]:
        """Ask `find` for the payments of these names, track and hint at them, and return their ids."""
        now = anyio.current_time()
        self._finds, self._found_at = min(_FINDS, self._finds + now - self._found_at), now
        if self._find is None or not names or self._finds < 1:
            return []
        self._finds -= 1
        try:
            with callers_code():
                found = list(dict.fromkeys(await self._find(names)))[:MAX_CANDIDATES]
            for transaction_id in found:
                self.track(transaction_id)
                self._hint(transaction_id)
        except Exception as exc:  # noqa: BLE001 (as above)
            logger.warning("looking up the names in a callback failed: %s", type(exc).__name__)
            return []
        return found

    def _keep_body(self, body: bytes, headers: Mapping[str, str]) -> bool:
        """Keep a body; return whether it is there already."""
        digest = hashlib.sha256(body).digest()
        if (old := self._kept.get(digest)) is not None:
            kept = attrs.evolve(old, times=old.times + 1)
        else:
            hidden = {**headers, **dict.fromkeys(filter(names_secret, headers), "[redacted]")}
            shown = {redact(name, 100): redact(value, 100) for name, value in islice(hidden.items(), _KEPT_HEADERS)}
            text = body[: 2 * _KEPT_TEXT].decode(errors="replace")
            kept = KeptCallback(body=redact(text, _KEPT_TEXT), headers=shown, size=len(body))
        _remember(self._kept, digest, kept, self._keep)
        return old is not None


def _plain_headers(headers: Headers) -> dict[str, str]:
    pairs: Any = headers.items() if isinstance(headers, Mapping) else headers
    text = [[each.decode("latin-1") if isinstance(each, bytes) else each for each in pair] for pair in pairs]
    return {name.lower(): value for name, value in text}
