"""Security of the phone page: refused requests, and masked numbers."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from mobilemoney_async.sandbox import Fault, Sandbox
from mobilemoney_async.sandbox.messages import Reply
from mobilemoney_async.sandbox.page import snapshot
from mobilemoney_async.sandbox.page.app import create_page, refusal
from tests.sandbox.page_user import ADDRESS, WRITTEN, Elements, PageUser, ask, check_that_all_is_its_own, only
from tests.sandbox.service import ORDINARY, http


async def test_foreign_texts_are_escaped(user: PageUser, sandbox: Sandbox) -> None:
    """A reference, a path or a URL is shown as text, and never becomes markup."""
    nasty = "\"><img src=x onerror=alert(1)>'{{7*7}}"
    await ask(sandbox, ORDINARY, external_id=nasty)
    async with http(sandbox) as client:
        await client.get("/%3Cimg%20src=x%3E")
    sandbox.callbacks.configure("http://127.0.0.1:9/?" + "a=<b>&c='d'")
    source = await user.source()
    assert "<img src=x" not in source
    assert "onerror=alert(1)>'{{7*7}}" in Elements(source).text
    assert {tag for tag, _ in Elements(source).attributes} & {"img", "script"} == {"img", "script"}
    assert [found for tag, found in Elements(source).attributes if tag == "img" and found["src"] == "x"] == []


async def test_foreign_texts_are_short_and_harmless(user: PageUser, sandbox: Sandbox) -> None:
    """No text of a program makes the page long, hides a part of it or turns it around."""
    hostile = "<script>\u202e" + 10_000 * "x"
    sandbox.decline(await ask(sandbox, ORDINARY, external_id=hostile), hostile)
    fault = Fault(name=hostile, instead=lambda _: Reply(status=500, code=hostile))
    sandbox.script(fault, on="GET")
    async with http(sandbox, sandbox.add_account(hostile).token) as client:
        await client.get(f"/{hostile}")
        await client.request(10_000 * "M", "/")
        await client.post("/payment-service/airtel/c2b", json={"phone_number": ORDINARY, "amount": "7"})
    sandbox.callbacks.configure(f"http://{30 * 'host.'}example:9/")
    for masked in ("no", "yes"):
        await user.do("/mask", masked=masked)
        source = await user.source()
        assert "Pay <b>&lt;script&gt;�xxx" in source
        assert "\u202e" not in source
        # The URL of callbacks is whole in its field only.
        assert max(map(len, Elements(source).text.split())) <= snapshot.TEXT + 1


# Masking


async def test_masked_numbers_are_nowhere_in_the_page(user: PageUser, sandbox: Sandbox) -> None:
    """With numbers masked the whole number is not in the page, wherever it stood; the choice outlives a reload."""
    await ask(sandbox, ORDINARY, external_id=ORDINARY)
    async with http(sandbox) as client:
        await client.get(f"/payment-service/transaction/{ORDINARY}")
        await client.get("/payment-service/transaction/%2B255681000001")
    assert WRITTEN in await user.see()
    await user.do("/mask", masked="yes")
    for source in (await user.source(), await user.source()):
        assert "+255 ••• ••• 001" in source
        assert "681000001" not in re.sub(r"[\s-]", "", Elements(source).text)
        assert "681000001" not in source
        assert only(sandbox).reference in source
    await user.do("/phones/ask", phone_number=ORDINARY, amount="10")
    asked = await user.source()
    assert "Asked +255 ••• ••• 001" in Elements(asked).text and "681000001" not in asked
    await user.do("/mask", masked="no")
    assert WRITTEN in await user.see()
    assert (await user.post("/mask", masked="perhaps")).status_code == 422


def test_phone_numbers_are_masked_and_ids_are_not() -> None:
    """Ids of the service stay readable; every text that could be a phone number is masked."""
    assert snapshot.mask_within("/v1/payment-service/transaction/txn_0123456789012345678a") == (
        "/v1/payment-service/transaction/txn_0123456789012345678a"
    )
    assert snapshot.mask_within("call 255681000001 now") == "call 2556 ••• ••• 001 now"
    assert snapshot.mask("12345") == "•••"
    assert snapshot.phone_number("12345", masked=False) == "12345"


# Refused requests


@pytest.mark.parametrize(
    ("method", "headers", "passes"),
    [
        ("GET", {"host": "127.0.0.1:8765"}, True),
        ("GET", {"host": "localhost:8765"}, True),
        ("GET", {"host": "phones.localhost"}, True),
        ("GET", {"host": "[::1]:8765"}, True),
        ("GET", {"host": "192.168.1.5:8765"}, True),
        ("GET", {"host": "192.168.1.6:8765"}, False),
        ("GET", {"host": "evil.example"}, False),
        ("GET", {"host": "127.0.0.1.evil.example"}, False),
        ("GET", {"host": "localhost.evil.example"}, False),
        ("GET", {"host": "[::1"}, False),
        ("GET", {"host": "evil.example@localhost"}, False),
        ("GET", {"host": "evil.example[::1]"}, False),
        ("GET", {"host": "localhost/evil.example"}, False),
        ("GET", {}, False),
        ("POST", {"host": "127.0.0.1:8765"}, True),
        ("POST", {"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:8765"}, True),
        ("POST", {"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:8000"}, False),
        ("POST", {"host": "127.0.0.1:8765", "origin": "http://localhost:8765"}, False),
        ("POST", {"host": "127.0.0.1:8765", "origin": "https://evil.example"}, False),
        ("POST", {"host": "127.0.0.1:8765", "origin": "null"}, False),
        ("POST", {"host": "127.0.0.1:8765", "origin": ""}, False),
        ("POST", {"host": "127.0.0.1:8765", "sec-fetch-site": "same-origin"}, True),
        ("POST", {"host": "127.0.0.1:8765", "sec-fetch-site": "none"}, True),
        ("POST", {"host": "127.0.0.1:8765", "sec-fetch-site": "same-site"}, False),
        ("POST", {"host": "127.0.0.1:8765", "sec-fetch-site": "cross-site"}, False),
        ("POST", {"host": "evil.example", "origin": "http://evil.example"}, False),
    ],
    ids=str,
)
def test_the_page_knows_its_own_requests(method: str, headers: dict[str, str], passes: bool) -> None:
    """A request passes if it is made under an address of this machine, and a form only from the page itself."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "headers": pairs, "server": ("192.168.1.5", 8765)}
    assert (refusal(scope) is None) == passes


@pytest.mark.parametrize(
    "headers",
    [
        *({"origin": each} for each in ("https://evil.example", "http://[", "http://[::1", "//[", "http://]")),
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example"},
    ],
    ids=str,
)
async def test_another_website_can_do_nothing(user: PageUser, sandbox: Sandbox, headers: dict[str, str]) -> None:
    """A form that another website posts, or one under a name that only points here, gets 403 and has no effect."""
    payment = await ask(sandbox, ORDINARY)
    fields = {"transaction_id": payment, "pin": "1234", "phone_number": ORDINARY, "amount": "1"}
    for path in ("/phones/pin", "/phones/ask"):
        answer = await user.http.post(path, data=fields, headers=headers)
        assert answer.status_code == 403
        assert "page" in answer.text or "websites" in answer.text
    assert only(sandbox).status == "PENDING"


async def test_the_page_loads_nothing_from_elsewhere(user: PageUser) -> None:
    """The page needs no network: everything it loads is its own, and the browser may load nothing else."""
    await check_that_all_is_its_own(user.http)
    assert (await user.http.get("/")).headers["cache-control"] == "no-store"
    assert "url(" not in (await user.http.get("/static/page.css")).text


async def test_shipped_files_have_their_licence(user: PageUser) -> None:
    """htmx comes with its licence."""
    answer = await user.http.get("/static/htmx.LICENSE.txt")
    assert "Permission to use, copy, modify" in answer.text


@pytest.mark.once
async def test_the_bill_of_materials_is_of_these_files(user: PageUser) -> None:
    """It names each file that others wrote, in the version that is shipped."""
    bill = json.loads((Path(__file__).parents[2] / "sbom.cdx.json").read_text("utf-8"))
    for each in bill["components"]:
        answer = await user.http.get(f"/static/{each['bom-ref']}")
        assert [{"alg": "SHA-256", "content": hashlib.sha256(answer.content).hexdigest()}] == each["hashes"]
    assert f'version="{bill["components"][0]["version"]}"' in (await user.http.get("/static/htmx.min.js")).text


@pytest.mark.parametrize("path", ["/nothing", "/static/nothing.js", "/static/../app.py", "/static/%2e%2e%2fapp.py"])
async def test_there_is_nothing_else(user: PageUser, path: str) -> None:
    """Other paths get a 404 that names the paths of page and API."""
    answer = await user.http.get(path)
    assert answer.status_code == 404
    assert "The page is at /, the API under /v1" in answer.text


async def test_every_id_is_there_once(user: PageUser, sandbox: Sandbox) -> None:
    """Ids are unique, and whatever refers to one finds it."""
    for last in "12":
        payment = await ask(sandbox, ORDINARY[:-1] + last)
        sandbox.enter_pin(payment, "0000")
        sandbox.approve(await ask(sandbox, ORDINARY[:-1] + last))
    sandbox.switches.turn_on("slow")
    elements = Elements(await user.source())
    assert len(elements.ids) == len(set(elements.ids))
    for names in elements.values("for", "aria-labelledby", "aria-describedby", "data-copy"):
        assert set(names.split()) <= set(elements.ids)


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"pin=" + b"1" * 30_000, "application/x-www-form-urlencoded", 413),
        (b"{}", "application/json", 415),
        (b"pin=%FF", "application/x-www-form-urlencoded", 400),
        (b"\xff=1", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a=1" for _ in range(50)), "application/x-www-form-urlencoded", 400),
    ],
    ids=["too long", "JSON", "no UTF-8, quoted", "no UTF-8", "many fields"],
)
@pytest.mark.parametrize("path", ["/phones/pin", "/mask"])
async def test_a_malformed_form_is_refused(user: PageUser, path: str, content: bytes, kind: str, status: int) -> None:
    """Every answer is a page that names the error."""
    answer = await user.http.post(path, content=content, headers={"content-type": kind})
    assert answer.status_code == status
    assert Elements(answer.text).ids.count("main") == 1


async def test_the_page_can_stand_alone(sandbox: Sandbox) -> None:
    """`create_page` gives a whole ASGI application, with a lifespan for servers that want one."""
    sent: list[str] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    page = create_page(sandbox)
    await page({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url=ADDRESS) as client:
        assert (await client.get("/")).status_code == 200
