"""What the sandbox was asked: for tests to assert on, with neither secrets nor bodies."""

import collections
from collections.abc import Iterator, Sequence
from typing import overload

import attrs

KEPT = 100_000
"""Entries; the oldest are dropped beyond it, the counts are not."""


@attrs.frozen(kw_only=True)
class LoggedRequest:
    """One request that the sandbox saw, or that a fault kept from it.

    Args:
        method: HTTP method.
        path: Without the query.
        endpoint: The endpoint's name as in scripts, None if there is no such endpoint.
        status: The HTTP status that was sent, None if no answer was.
        code: The error code in the answer, None if there was none.
        fault: Name of the scripted or magic fault that struck it, None if none did.
        authorized: Whether it carried an Authorization header.
        at: When it came, seconds since the sandbox's start.
    """

    method: str
    path: str
    endpoint: str | None
    status: int | None
    code: str | None
    fault: str | None
    authorized: bool
    at: float


class RequestLog:
    """The requests in the order in which they came: the newest `KEPT`."""

    def __init__(self) -> None:
        self._entries: collections.deque[LoggedRequest] = collections.deque(maxlen=KEPT)
        self._by_endpoint: collections.Counter[str | None] = collections.Counter()
        self._rejections = 0

    @overload
    def __getitem__(self, index: int) -> LoggedRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LoggedRequest]: ...
    def __getitem__(self, index: int | slice) -> LoggedRequest | Sequence[LoggedRequest]:
        return list(self._entries)[index] if isinstance(index, slice) else self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[LoggedRequest]:
        return reversed(self._entries)

    @property
    def total(self) -> int:
        """Requests since the start."""
        return self._by_endpoint.total()

    @property
    def logins(self) -> int:
        """Login requests since the start, whatever became of them."""
        return self.count("login")

    @property
    def rejections(self) -> int:
        """Requests that were really too many, since the start: rejections by a fault are not counted."""
        return self._rejections

    def count(self, endpoint: str | None) -> int:
        """Requests since the start to the endpoint of this name; None for those to no endpoint."""
        return self._by_endpoint[endpoint]

    def add(self, entry: LoggedRequest) -> None:
        """Add the newest."""
        self._entries.append(entry)
        self._by_endpoint[entry.endpoint] += 1
        self._rejections += entry.code == "RATE_LIMIT_EXCEEDED" and entry.fault is None
