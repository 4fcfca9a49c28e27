"""HTML of the page and its parts, and the files that the page loads."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import jinja2
from markupsafe import Markup
from starlette.responses import Response

from mobilemoney_async.sandbox.page import labels
from mobilemoney_async.sandbox.page.snapshot import Snapshot
from mobilemoney_async.sandbox.phones import PIN, TRIES

_HERE = Path(__file__).parent
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}

REGIONS = (
    "mask-form", "by-hand", "phone-list", "summary", "transactions", "requests", "clock-face", "faults-on",
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
    TONES=labels.TONES,
    RATES=labels.RATES,
    JUMPS=labels.JUMPS,
    static={name: f"/static/{name}?v={hashlib.sha256(body).hexdigest()[:12]}" for name, body in _FILES.items()},
)
_ENVIRONMENT.filters.update(
    money=labels.money,
    duration=labels.duration,
    clock_time=labels.clock_time,
    day=labels.day,
    speed=labels.speed,
    result=labels.result,
)


@attrs.frozen
class Parts:
    """Parts of a snapshot as HTML, by id; the region `phone-list` is all phones together."""

    regions: Mapping[str, str]
    phones: Mapping[str, str]


def write_page(snapshot: Snapshot, **details: Any) -> str:
    """Return the whole page; `details` are the values that only forms change."""
    return _write("page", snapshot=snapshot, cards=_write_phones(snapshot).values(), **details)


def write_answer(**details: Any) -> str:
    """Return the answer to a form sent by htmx: the parts that the event stream does not send."""
    return _write("answer", **details)


def write_parts(snapshot: Snapshot) -> Parts:
    """Return each part that changes."""
    phones = _write_phones(snapshot)
    return Parts({name: _write(name, snapshot=snapshot, cards=phones.values()) for name in REGIONS}, phones)


def _write_phones(snapshot: Snapshot) -> dict[str, Markup]:
    # Safe: the template escapes its values.
    return {
        f"phone-{key}": Markup(_write("phone", snapshot=snapshot, key=key, phone=phone))  # noqa: S704
        for key, phone in snapshot.phones.items()
    }


def _write(name: str, **values: Any) -> str:
    return _ENVIRONMENT.get_template(f"{name.replace('-', '_')}.html").render(values)
