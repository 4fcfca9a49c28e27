"""Event stream (server-sent events) with the changes of the sandbox, one for each open page."""

from collections.abc import AsyncIterator, Callable, Iterable

import anyio

from mobilemoney_async.sandbox.page.fragments import Parts

TICK = 0.3
"""Seconds between two snapshots of the sandbox."""

_KEEP_ALIVE = 50
"""Unchanged snapshots after which a comment is sent, so that no proxy closes the connection as idle."""


class EventStream(AsyncIterator[bytes]):
    """Event stream of one page: the changed parts, until the page closes, the server stops or it is ended.

    Only this stream updates the page. If the answer to a form updated it too, the page could show the older of the two,
    and nothing would correct it.

    The first event holds all parts, so a page that connects again is complete at once. At most one event is being sent:
    a slow page skips the changes in between.
    """

    def __init__(self, look: Callable[[], Parts]) -> None:
        self._look = look
        self._wake = anyio.Event()
        self._is_over = False
        self._shown: Parts | None = None
        self._quiet = 0

    def wake(self) -> None:
        """Send changes at once, after an action on a page."""
        self._wake.set()

    def end(self) -> None:
        """End the stream, so that the page connects again."""
        self._is_over = True
        self._wake.set()

    async def __anext__(self) -> bytes:
        """Wait for the next event or comment. Cancelled, it has changed nothing."""
        while True:
            if self._shown is not None:
                # No await between the wait and the new event, so no `wake` is lost, also not while an event is sent.
                with anyio.move_on_after(TICK):
                    await self._wake.wait()
                    self._wake = anyio.Event()
            if self._is_over:
                raise StopAsyncIteration
            parts = self._look()
            changes = [] if parts is self._shown else changed(self._shown, parts)
            self._shown = parts
            self._quiet = 0 if changes else self._quiet + 1
            if changes:
                return as_event(changes)
            if self._quiet % _KEEP_ALIVE == 0:
                return b":\n\n"


def changed(before: Parts | None, after: Parts) -> list[str]:
    """Return the HTML of the parts that differ, or of all parts if none was shown before.

    While the same phones are shown in the same order, each changed phone is a part of its own.
    """
    if before is None:
        return list(after.regions.values())
    same_phones = list(before.phones) == list(after.phones)
    differing = [
        html
        for name, html in after.regions.items()
        if html != before.regions[name] and not (name == "phone-list" and same_phones and after.phones)
    ]
    if same_phones:
        differing += [html for name, html in after.phones.items() if html != before.phones[name]]
    return differing


def as_event(parts: Iterable[str]) -> bytes:
    """Return parts as one server-sent event, each for the element with its id."""
    lines: list[str] = []
    for part in parts:
        start, tag_end = part.lstrip().split(">", 1)
        lines += f'{start} hx-swap-oob="outerMorph">{tag_end}'.splitlines()
    return "".join(f"data: {line}\n" for line in lines if line.strip()).encode() + b"\n"
