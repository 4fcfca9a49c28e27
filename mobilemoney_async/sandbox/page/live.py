"""Event stream (server-sent events) with the changes of the sandbox, one for each open page."""

from collections.abc import Callable, Iterable

import anyio
from starlette.types import Message, Receive, Scope, Send

from mobilemoney_async.sandbox.asgi import until_left
from mobilemoney_async.sandbox.page.fragments import Parts

TICK = 0.3
"""Seconds between two snapshots of the sandbox."""

_KEEP_ALIVE = 50
"""Unchanged snapshots after which a comment is sent, so that no proxy closes the connection as idle."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
]


class EventStream:
    """Event stream of one page: sends the changed parts until the page closes, the server stops or it is ended.

    Only this stream updates the page. If the answer to a form updated it too, the page could show the older of the two,
    and nothing would correct it.

    The first event holds all parts, so a page that connects again is complete at once. At most one event is being sent:
    a slow page skips the changes in between.

    Args:
        look: Returns the current parts of the page.
    """

    def __init__(self, look: Callable[[], Parts]) -> None:
        self._look = look
        self._wake = anyio.Event()
        self._is_over = False

    def wake(self) -> None:
        """Send changes at once, after an action on a page."""
        self._wake.set()

    def end(self) -> None:
        """End the stream, so that the page connects again."""
        self._is_over = True
        self._wake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_changes, send, tasks.cancel_scope)
            await until_left(receive)
            tasks.cancel_scope.cancel()

    async def _send_changes(self, send: Send, scope: anyio.CancelScope) -> None:
        shown: Parts | None = None
        quiet = 0
        while not self._is_over:
            parts = self._look()
            changes = [] if parts is shown else changed(shown, parts)
            shown = parts
            quiet = 0 if changes else quiet + 1
            if changes:
                await send(_body(as_event(changes)))
            elif quiet % _KEEP_ALIVE == 0:
                await send(_body(b":\n\n"))
            # No await between the wait and the new event, so no `wake` is lost, also not while an event is being sent.
            with anyio.move_on_after(TICK):
                await self._wake.wait()
                self._wake = anyio.Event()
        await send(_body(b"", more=False))
        scope.cancel()


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


def _body(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
