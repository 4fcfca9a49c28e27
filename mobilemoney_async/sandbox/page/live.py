"""The news of the sandbox as server-sent events, one stream for each page that is open."""

from collections.abc import Callable, Iterable

import anyio
from starlette.types import Message, Receive, Scope, Send

from mobilemoney_async.sandbox.asgi import until_left
from mobilemoney_async.sandbox.page.fragments import Parts

TICK = 0.3
"""Seconds between two looks at the sandbox."""

_SIGN_OF_LIFE = 50
"""After so many quiet looks a comment is sent, for whatever stands between and closes quiet connections."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
]


class Stream:
    """Tells one page what changed, until it closes, the server stops or it is hung up.

    It alone says what the page shows of the sandbox: were the answer to a form another source, the page could show the
    older of the two, and nothing would put it right.

    The first event holds everything, so a page that connects again is whole at once. No more than one event is on its
    way: a page that reads slowly skips what happened in between.

    Args:
        look: Gives the parts of the page as they are.
    """

    def __init__(self, look: Callable[[], Parts]) -> None:
        self._look = look
        self._wake = anyio.Event()
        self._is_over = False

    def wake(self) -> None:
        """Look at once: something was done on a page."""
        self._wake.set()

    def hang_up(self) -> None:
        """End, so that the page connects again."""
        self._is_over = True
        self._wake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell, send, tasks.cancel_scope)
            await until_left(receive)
            tasks.cancel_scope.cancel()

    async def _tell(self, send: Send, scope: anyio.CancelScope) -> None:
        shown: Parts | None = None
        quiet = 0
        while not self._is_over:
            parts = self._look()
            news = [] if parts is shown else changed(shown, parts)
            shown = parts
            quiet = 0 if news else quiet + 1
            if news:
                await send(_body(as_event(news)))
            elif quiet % _SIGN_OF_LIFE == 0:
                await send(_body(b":\n\n"))
            with anyio.move_on_after(TICK):
                await self._wake.wait()
                self._wake = anyio.Event()
        await send(_body(b"", more=False))
        scope.cancel()


def changed(before: Parts | None, after: Parts) -> list[str]:
    """Return the HTML of what differs: all of it if nothing was shown before.

    While the same phones are shown in the same order, only those that changed are among it.
    """
    if before is None:
        return list(after.regions.values())
    same_phones = list(before.phones) == list(after.phones)
    news = [
        html
        for name, html in after.regions.items()
        if html != before.regions[name] and not (name == "phone-list" and same_phones and after.phones)
    ]
    if same_phones:
        news += [html for name, html in after.phones.items() if html != before.phones[name]]
    return news


def as_event(parts: Iterable[str]) -> bytes:
    """Write parts as one server-sent event, each to be merged into the element that has its id."""
    lines: list[str] = []
    for part in parts:
        start, tag_end = part.lstrip().split(">", 1)
        lines += f'{start} hx-swap-oob="outerMorph">{tag_end}'.splitlines()
    return "".join(f"data: {line}\n" for line in lines if line.strip()).encode() + b"\n"


def _body(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
