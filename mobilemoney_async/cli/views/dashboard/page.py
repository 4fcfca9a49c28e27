"""Page of the dashboard: its content, its HTML and its event stream. It reads the store every few seconds.

Each text of the store is shown with unprintable characters escaped, as text, and isolated from the text around it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode
from weakref import WeakValueDictionary

import anyio
import attrs
import jinja2
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from mobilemoney_async.cli.accounts import because
from mobilemoney_async.cli.options import Service
from mobilemoney_async.cli.payments import command_lines
from mobilemoney_async.cli.views.overview import sent_for, shown_state
from mobilemoney_async.database.schema import find_version
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.records.account_status import AccountNeed, AccountStatus
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.next_steps import NextStep, next_step, unclaimed_step
from mobilemoney_async.payments.store import SQLStore, account_store
from mobilemoney_async.sandbox.page.app import guarded
from mobilemoney_async.sandbox.page.fragments import ASSETS, EventStream
from mobilemoney_async.sandbox.page.snapshot import TONES, money
from mobilemoney_async.sharing.accounts import read_accounts
from mobilemoney_async.sharing.overview import MinuteCount, Overview, read_overview
from mobilemoney_async.text import shown_name, visible

T = TypeVar("T")

_HERE = Path(__file__).parent
# Seconds between two readings of the store, and the least pause after one, as a multiple of its time.
_PAUSE, _SHARE = 2.0, 10
_HOUR = timedelta(hours=1)
_NOT_KEPT = {"cache-control": "no-store"}
_TONES: Mapping[str, str] = {
    **{str(status): tone for status, tone in TONES.items()},
    **dict.fromkeys(("REFUSED", "UNKNOWN", "ABSENT"), "bad"),
    **dict.fromkeys(("CANCELLED", "NOT_SENT", "RELEASED"), "late"),
}
_FILES: Mapping[str, Response] = {
    **ASSETS,
    "dashboard.css": Response(
        (_HERE / "dashboard.css").read_bytes(),
        headers={"cache-control": ASSETS["page.css"].headers["cache-control"]},
        media_type="text/css; charset=utf-8",
    ),
}


def _shown(value: Any) -> Any:
    """Return a value for a template: a text without phone numbers and commands to the reader's eye."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(shown_name(value))


def axis_end(minutes: Sequence[MinuteCount]) -> int:
    """Return a round number, at least 5, that no minute has more payments than."""
    most = max(5, *(max(each.made, each.succeeded + each.failed) for each in minutes))
    size = int("1" + "0" * (len(str(most)) - 1))
    return next(each * size for each in (1, 2, 5, 10) if each * size >= most)


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_shown,
)
_TEMPLATES.globals.update(
    TONES=_TONES,
    static={name: f"/static/{name}?v={hashlib.sha256(each.body).hexdigest()[:12]}" for name, each in _FILES.items()},
)
_TEMPLATES.filters.update(
    because=because,
    sent_for=sent_for,
    money=money,
    breakable=lambda text: Markup("_<wbr>").join(map(_shown, str(text).split("_"))),
    state=shown_state,
    unclaimed_step=unclaimed_step,
    next_step=lambda record, now: next_step(record, now.at, grace=timedelta(seconds=now.grace)),
    name=lambda text: hashlib.sha256(str(text).encode()).hexdigest()[:12],
    axis_end=axis_end,
    whole=lambda text: _shown(text) == text,
)
_ACCOUNTS, _LIST = _TEMPLATES.get_template("accounts.html"), _TEMPLATES.get_template("account_list.html")
_PAGE, _REGIONS = _TEMPLATES.get_template("dashboard.html"), _TEMPLATES.get_template("regions.html")

REGIONS = ("as_of", "trouble", "attention", "figures", "hour", "limit", "today")
"""Parts of the page that change: macros of regions.html."""


class Board:
    """Content of the page: the newest overview of a store, the use of the rate limit, and a failure of the store.

    The store keeps the requests of the last minute only. The page has seen the rest of the last hour itself.
    """

    def __init__(self, store: SQLStore, service: Service | None = None) -> None:
        self.name: str = store.account
        self._store = store
        self._service = service or Service()
        account_store(store).database.require_file()
        self._overview: Overview | None = None
        self._trouble: str | None = None
        # The most requests in one reading, by minute.
        self._used: dict[datetime, int] = {}
        self.parts: Mapping[str, str] = {}

    async def follow(self) -> None:
        """Look again and again."""
        await _follow(lambda: [self])

    async def look_again(self) -> None:
        """Read the store, and write the parts of the page again. A store that is away leaves the last figures."""
        try:
            self._overview = found = await self.read(read_overview)
            self._trouble = None
        except StoreError as exc:
            self._trouble = str(exc)
        else:
            minute = found.at.replace(second=0, microsecond=0)
            if found.requests is not None:
                self._used[minute] = max(found.requests.used, self._used.get(minute, 0))
            self._used = {at: used for at, used in self._used.items() if at > minute - _HOUR}
        values: dict[str, Any] = {"now": self._overview, "reason": self._trouble, "used": self._used}
        values["lines"] = lambda step: command_lines(step, self._service)
        values["line"] = lambda *words: command_lines(NextStep("", (words,)), self._service)[0]
        regions = _REGIONS.make_module(values)
        self.parts = {name: getattr(regions, name)() for name in REGIONS}

    async def read(self, work: Callable[[AccountStore], Awaitable[T]]) -> T:
        """Return the result of a reading.

        Raises:
            StoreError: The store failed, or there is none.
        """
        store = account_store(self._store)
        file = store.database.file
        if file is not None and not await anyio.Path(file).exists():
            raise StoreError(f"there is no file {file}", outcome="not_sent")
        try:
            # Reading makes missing tables: that is for the programs that pay.
            if self._overview is None and await store.database.peek(find_version) is None:
                raise StoreError("it has no tables yet: your program makes them", outcome="not_sent")
            return await work(store)
        finally:
            if file is not None:
                # Between two readings a file may be replaced, by a backup say: nothing of the old one stays open.
                self._store.close()

    def write(self, live: str = "/live") -> str:
        """Return the whole page, which follows an event stream."""
        return _PAGE.render(name=self.name, parts=self.parts, live=live)

    async def open(self, account: str | None) -> Board | None:
        """Return the board of an account: this one, which has no others."""
        return self if account is None else None


class AccountsBoard:
    """Content of the page of all accounts: those that need someone, by reason, and the boards of those it opened."""

    def __init__(self, store: SQLStore, service: Service | None = None) -> None:
        self.name: str = "all accounts"
        self._store, self._service = store, service or Service()
        self._whole = Board(store, self._service)
        self._statuses: list[AccountStatus] | None = None
        self._boards: WeakValueDictionary[str, Board] = WeakValueDictionary()  # those that a page follows
        self.parts: Mapping[str, str] = {}

    async def follow(self) -> None:
        """Look again and again, also at the accounts that someone has open."""
        await _follow(lambda: [self, *self._boards.values()])

    async def look_again(self) -> None:
        """Read the store, and write the list again. A store that is away leaves the last one."""
        reason = None
        try:
            self._statuses = await self._whole.read(lambda store: read_accounts(store, everything=True))
        except StoreError as exc:
            reason = str(exc)
        needing = [each for each in self._statuses or () if each.needs]
        # Each account once, under its most serious reason.
        groups = [(need, [each for each in needing if each.needs[0] == need]) for need in AccountNeed]
        values = {"statuses": self._statuses, "needing": needing, "groups": [each for each in groups if each[1]]}
        self.parts = {"accounts": _LIST.render(reason=reason, **values)}

    def write(self, live: str = "/live") -> str:
        """Return the whole page."""
        return _ACCOUNTS.render(parts=self.parts)

    async def open(self, account: str | None) -> Board | AccountsBoard | None:
        """Return the board of an account of the store, this one without a name, or None."""
        if account is None:
            return self
        found = self._boards.get(account)
        if found is None and any(each.account == account for each in self._statuses or ()):
            found = Board(self._store.for_account(account), attrs.evolve(self._service, account=account))
            await found.look_again()
            found = self._boards.setdefault(account, found)  # another page may have opened it meanwhile
        return found


async def _follow(boards: Callable[[], Sequence[Board | AccountsBoard]]) -> None:
    while True:
        began = anyio.current_time()
        for board in boards():
            await board.look_again()
        await anyio.sleep(max(_PAUSE, _SHARE * (anyio.current_time() - began)))


def create_page(board: Board | AccountsBoard) -> ASGIApp:
    """Make the page of a board, which answers requests from other websites with HTTP 403."""

    async def opened(account: str | None) -> Board | AccountsBoard:
        found = await board.open(account)
        if found is None:
            raise HTTPException(404, "The store knows no such account. The list is at /.\n")
        return found

    async def show(request: Request) -> Response:
        account = request.query_params.get("account")
        found = await opened(account)
        live = "/live" if account is None else f"/live?{urlencode({'account': account})}"
        return HTMLResponse(found.write(live), headers=_NOT_KEPT)

    async def follow(request: Request) -> Response:
        found = await opened(request.query_params.get("account"))
        stream = EventStream(lambda: found.parts)
        return StreamingResponse(stream, headers=_NOT_KEPT, media_type="text/event-stream")

    async def load(request: Request) -> Response:
        return _FILES.get(request.path_params["name"]) or PlainTextResponse("Not found. The page is at /.\n", 404)

    routes = [Route("/", show), Route("/live", follow), Route("/static/{name}", load)]
    return guarded(Starlette(routes=routes))
