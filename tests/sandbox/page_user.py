"""User of the phone page, without a browser: reads the page and sends its forms."""

import html.parser
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import httpx

from mobilemoney_async.sandbox import Payment, Sandbox
from tests.sandbox.service import create

ADDRESS = "http://127.0.0.1:8765"
# The number of an ordinary customer on the page.
WRITTEN = "+255 681 000 001"


class Elements(html.parser.HTMLParser):
    """Elements of a piece of HTML: ids, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.attributes.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, *names: str) -> set[str]:
        """Return the values of these attributes."""
        return {found[name] for _, found in self.attributes for name in names if name in found}


async def check_that_all_is_its_own(http: httpx.AsyncClient) -> Elements:
    """See that a page loads nothing from elsewhere, and that the browser may load nothing else."""
    answer = await http.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    elements = Elements(answer.text)
    assert not [name for _, found in elements.attributes for name in found if name.startswith("on") or name == "style"]
    for path in elements.values("src", "href") - {"/"}:
        if path.startswith("#"):
            assert path[1:] in elements.ids
            continue
        assert path.startswith("/static/")
        loaded = await http.get(path)
        assert loaded.status_code == 200 and loaded.content and "immutable" in loaded.headers["cache-control"]
    return elements


class PageUser:
    """User of a sandbox's page, who sends plain forms as a browser without JavaScript does."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.app = sandbox.app
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=ADDRESS)

    async def see(self) -> str:
        """Return the text of the page."""
        return Elements(await self.source()).text

    async def source(self) -> str:
        answer = await self.http.get("/")
        assert answer.status_code == 200
        return answer.text

    async def post(self, path: str, **fields: str) -> httpx.Response:
        return await self.http.post(path, data=fields)

    async def do(self, path: str, **fields: str) -> None:
        """Send a form that works."""
        answer = await self.post(path, **fields)
        assert answer.status_code == 303, Elements(answer.text).text
        assert answer.headers["location"].startswith("/")


async def ask(sandbox: Sandbox, phone_number: str, amount: int = 15_000, **more: str) -> str:
    """Create a collection as any program does, and return its id."""
    return await create(sandbox, phone_number, str(amount), **more)


class Reader:
    """Connection to the event stream, at the level of ASGI: on any loop, also in virtual time."""

    def __init__(self, user: PageUser, cookie: str = "") -> None:
        self._app = user.app
        self._headers = [(b"host", b"127.0.0.1:8765"), *([(b"cookie", cookie.encode())] if cookie else [])]
        self.sent: list[Mapping[str, Any]] = []
        self.left = anyio.Event()

    async def read(self) -> None:
        """Stay until `left` is set or the stream ends."""
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/live",
            "query_string": b"",
            "headers": self._headers,
            "server": ("127.0.0.1", 8765),
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)

    @property
    def chunks(self) -> list[str]:
        """The received text, one string for each event or comment."""
        bodies = (message["body"].decode() for message in self.sent if message["type"] == "http.response.body")
        return [body for body in bodies if body]

    @property
    def ended(self) -> bool:
        """True if the server ended the stream."""
        return bool(self.sent) and self.sent[-1].get("more_body") is False


def only(sandbox: Sandbox) -> Payment:
    """Return the only payment."""
    (payment,) = sandbox.transactions.values()
    return payment
