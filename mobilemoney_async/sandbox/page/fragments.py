"""HTML of the page and its parts."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import jinja2
from markupsafe import Markup

from mobilemoney_async.sandbox.page import labels
from mobilemoney_async.sandbox.page.snapshot import PhoneView, Snapshot

_HERE = Path(__file__).parent

REGIONS = (
    "mask-form", "by-hand", "phone-list", "summary", "transactions", "requests", "clock-face", "faults-on",
    "fault-list", "sent", "announcement",
)  # fmt: skip
"""The parts that change: the id of the outermost element, and with `_` the name of the template."""

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(RATES=labels.RATES, JUMPS=labels.JUMPS)


@attrs.frozen
class Asset:
    """File that the page loads.

    Args:
        path: Its URL path, with a hash of its content.
        body: Its bytes.
        content_type: Its media type.
    """

    path: str
    body: bytes
    content_type: str


@attrs.frozen
class Parts:
    """Parts of a snapshot as HTML.

    Args:
        regions: By id; `phone-list` is all phones together.
        phones: Each phone by itself, by id, in their order.
    """

    regions: Mapping[str, str]
    phones: Mapping[str, str]


def write_page(snapshot: Snapshot, **details: Any) -> str:
    """Return the whole page; `details` are the values that only forms change."""
    paths = {name: asset.path for name, asset in ASSETS.items()}
    return _ENVIRONMENT.get_template("page.html").render(
        snapshot=snapshot, cards=_write_phones(snapshot).values(), static=paths, **details
    )


def write_answer(**details: Any) -> str:
    """Return the answer to a form sent by htmx: the parts that the event stream does not send."""
    return _ENVIRONMENT.get_template("answer.html").render(**details)


def write_parts(snapshot: Snapshot) -> Parts:
    """Return each part that changes."""
    phones = _write_phones(snapshot)
    templates = {name: _ENVIRONMENT.get_template(f"{name.replace('-', '_')}.html") for name in REGIONS}
    values = {"snapshot": snapshot, "cards": phones.values()}
    return Parts({name: template.render(values) for name, template in templates.items()}, phones)


def _write_phones(snapshot: Snapshot) -> dict[str, Markup]:
    return {f"phone-{each.key}": _write_phone(each, snapshot.clock.short, snapshot.pin) for each in snapshot.phones}


@functools.lru_cache(maxsize=200)
def _write_phone(phone: PhoneView, time: str, pin: str) -> Markup:
    """Return one phone; cached, since every open page shows the same phones several times a second."""
    # Safe: the template escapes its values.
    return Markup(_ENVIRONMENT.get_template("phone.html").render(phone=phone, time=time, pin=pin))  # noqa: S704


def _read_assets() -> dict[str, Asset]:
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
    assets = {}
    for file in sorted((_HERE / "static").iterdir()):
        body = file.read_bytes()
        version = hashlib.sha256(body).hexdigest()[:12]
        assets[file.name] = Asset(f"/static/{file.name}?v={version}", body, f"{types[file.suffix]}; charset=utf-8")
    return assets


ASSETS: Mapping[str, Asset] = MappingProxyType(_read_assets())
"""Files that the page loads, by name."""
