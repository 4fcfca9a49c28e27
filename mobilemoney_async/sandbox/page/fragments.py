"""HTML of the page and its parts, the event stream that updates them, and the files that the page loads."""

import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import jinja2
from starlette.responses import Response

from mobilemoney_async.sandbox.magic import MAGIC_NUMBERS
from mobilemoney_async.sandbox.page.snapshot import TONES, Snapshot, duration, money, result, time_of_day
from mobilemoney_async.sandbox.phones import PIN, TRIES
from mobilemoney_async.sandbox.states import Kind

_HERE = Path(__file__).parent
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}

REGIONS = (
    "mask-form", "by-hand", "asked", "phone-list", "summary", "transactions", "requests", "clock-face", "faults-on",
    "fault-list", "sent", "announcement",
)  # fmt: skip
"""The parts that change: the id of the outermost element, and with `_` the name of the template."""

_FILES: Mapping[str, bytes] = {file.name: file.read_bytes() for file in sorted((_HERE / "static").iterdir())}

ASSETS: Mapping[str, Response] = {
    name: Response(
        body,
        headers={"cache-control": "max-age=31536000, immutable"},
        media_type=f"{_MEDIA_TYPES[Path(name).suffix]}; charset=utf-8",
    )
    for name, body in _FILES.items()
}
"""Files that the page loads, by name. Their addresses hold a hash of the content, so browsers may keep them."""

DOCUMENT = Response((_HERE.parent / "openapi.json").read_bytes(), media_type="application/json")
"""OpenAPI document of the contract, made by docs/openapi.py."""

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(
    PIN=PIN,
    TRIES=TRIES,
    TONES=TONES,
    magic=[row for row in MAGIC_NUMBERS.values() if row.steers(Kind.COLLECTION)],
    static={name: f"/static/{name}?v={hashlib.sha256(body).hexdigest()[:12]}" for name, body in _FILES.items()},
)
_ENVIRONMENT.filters.update(money=money, duration=duration, result=result, time_of_day=time_of_day)

TICK = 0.3
"""Seconds between two snapshots of the sandbox."""

_KEEP_ALIVE = 50
"""Unchanged snapshots after which a comment is sent, so that no proxy closes the connection as idle."""


def write_parts(snapshot: Snapshot) -> dict[str, str]:
    """Return the HTML of each part that changes, by id."""
    return {name: write(name, snapshot=snapshot) for name in REGIONS}


def write(name: str, **values: Any) -> str:
    """Return the HTML of a template."""
    return _ENVIRONMENT.get_template(f"{name.replace('-', '_')}.html").render(values)


class EventStream(AsyncIterator[bytes]):
    """Server-sent events of one page: the changed parts, until the page closes, the server stops or it is ended.

    Only this stream updates the page. If the answer to a form updated it too, the page could show the older of the two,
    and nothing would correct it. The first event holds all parts, so a page that connects again is complete at once. At
    most one event is being sent: a slow page skips the changes in between.
    """

    def __init__(self, look: Callable[[], Mapping[str, str]]) -> None:
        self._look = look
        self._wake = anyio.Event()
        self._is_over = False
        self._shown: Mapping[str, str] = {}
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
            if self._shown:
                # No await between the wait and the new event, so no `wake` is lost, also not while an event is sent.
                with anyio.move_on_after(TICK):
                    await self._wake.wait()
                    self._wake = anyio.Event()
            if self._is_over:
                raise StopAsyncIteration
            parts = self._look()
            # Streams share unchanged parts, and most of them send the same event.
            changes = () if parts is self._shown else _changes(parts, self._shown)
            self._shown = parts
            self._quiet = 0 if changes else self._quiet + 1
            if changes:
                return as_event(changes)
            if self._quiet % _KEEP_ALIVE == 0:
                return b":\n\n"


def _changes(parts: Mapping[str, str], shown: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(html for name, html in parts.items() if html != shown.get(name))


@functools.lru_cache(maxsize=8)
def as_event(parts: tuple[str, ...]) -> bytes:
    """Return parts as one server-sent event, each for the element with its id."""
    lines: list[str] = []
    for part in parts:
        start, tag_end = part.lstrip().split(">", 1)
        lines += f'{start} hx-swap-oob="outerMorph">{tag_end}'.splitlines()
    return "".join(f"data: {line}\n" for line in lines if line.strip()).encode() + b"\n"
