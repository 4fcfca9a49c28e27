"""Tracebacks in logs: no text of an answer, no secret, no terminal sequence, whatever library sends the request."""

import io
import json
import logging
import traceback
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mobilemoney_async import AsyncClient, MobileMoneyError, RetryPolicy
from tests.calls.ways import WAYS, connect
from tests.contract import samples
from tests.support.fakes import PHONE_NUMBER, TOKEN, pay, replies
from tests.support.server import Close, Raw, Reply, serve

# Markers of an answer's text, beside what may never be shown.
FOREIGN = "ring0788"
TEXT = f"{FOREIGN} \x1b[31m\u202e {PHONE_NUMBER} token={TOKEN} "
LATIN = f"{FOREIGN} \x1b[31m {PHONE_NUMBER} token={TOKEN} ".encode()
HIDDEN = [TOKEN, PHONE_NUMBER, PHONE_NUMBER[1:], "\x1b", "\\x1b", "\u202e"]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def body(content: bytes, *headers: bytes, status: bytes = b"200 OK") -> Raw:
    """Return an answer with a body."""
    named = b"".join(each + b"\r\n" for each in headers)
    return Raw(b"HTTP/1.1 " + status + b"\r\n" + named + b"Content-Length: %d\r\n\r\n" % len(content) + content)


def plain(value: Any) -> bytes:
    return json.dumps(value).encode()


ROW = samples.transaction(id="tx-1")
ANSWERS: dict[str, Reply] = {
    "status line": Raw(b"HTTP/1.1 " + LATIN + b"\r\n\r\n"),
    "no HTTP": Raw(LATIN * 3 + b"\r\n\r\n"),
    "version": Raw(b"HTTP/9.9 200 " + LATIN + b"\r\n\r\n"),
    "header name": Raw(HEAD + LATIN + b": x\r\nContent-Length: 0\r\n\r\n"),
    "header value": Raw(HEAD + b"X-Note: a\0b" + LATIN + b"\r\nContent-Length: 0\r\n\r\n"),
    "folded header": Raw(HEAD + b" " + LATIN + b"\r\n\r\n"),
    "content length": Raw(HEAD + b"Content-Length: " + LATIN + b"\r\n\r\n"),
    "two lengths": Raw(HEAD + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\n" + LATIN),
    "transfer encoding": Raw(HEAD + b"Transfer-Encoding: " + LATIN + b"\r\n\r\n"),
    "chunk size": Raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + LATIN + b"\r\n"),
    "cut chunk": Raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\n" + LATIN),
    "cut body": Raw(HEAD + b"Content-Length: 9999\r\n\r\n" + LATIN),
    "coding": body(LATIN, b"Content-Encoding: " + LATIN.replace(b"\x1b", b"")),
    "gzip": body(LATIN, b"Content-Encoding: gzip"),
    "cut gzip": body(zlib.compress(LATIN * 100, wbits=31)[:40], b"Content-Encoding: gzip"),
    "surplus": Raw(HEAD + b"Content-Length: 2\r\n\r\n{}" + LATIN),
    "redirect": body(LATIN, b"Location: http://" + FOREIGN.encode() + b"/", status=b"302 " + FOREIGN.encode()),
    "charset": body(LATIN, b"Content-Type: application/json; charset=" + FOREIGN.encode()),
    "continue": Raw(b"HTTP/1.1 100 " + LATIN + b"\r\n\r\n"),
    "nothing": Close(),
    "reset": Close(reset=True),
    "html": body(f"<html>{TEXT}".encode(), status=b"502 Bad"),
    "no json": body(f'{{"{TEXT}":'.encode()),
    "no utf-8": body(b'{"status":"\xff' + LATIN + b'"}'),
    "a name": body(plain({"status": "success", TEXT: TEXT, "transaction": {TEXT: TEXT}})),
    "types": body(plain({"status": "success", "transaction": dict.fromkeys(ROW, TEXT)})),
    "a list": body(plain({"status": "success", "transaction": [TEXT], "transactions": {TEXT: TEXT}})),
    "a time": body(plain({"status": "success", "transaction": ROW | {"created_at": TEXT}})),
    "money": body(plain({"status": "success", "transaction": ROW | {"amount": TEXT}})),
    "rows": body(plain(samples.page(*[ROW | {"created_at": TEXT, "id": TEXT}] * 3))),
    "another's id": body(plain(samples.found(id=TEXT))),
    "an acknowledgement": body(plain(samples.acknowledgement(transaction_id=TEXT))),
    "deep": body(b"[" * 900 + plain(TEXT) + b"]" * 900),
    "an error": body(
        plain({"status": "error", "error_code": TEXT, "message": TEXT}), status=b"400 " + FOREIGN.encode()
    ),
}


async def read_list(client: AsyncClient) -> None:
    await client.transactions.list().collect()


@pytest.mark.costly("runs lines of calls/transport.py that no quick test runs")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
# aiohttp 3.12.0 gives the connection of a body that was cut back only when it is deleted, and warns of that.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function Connection.__del__")
async def test_a_logged_traceback_holds_no_text_of_an_answer(way: str) -> None:
    """`logger.exception` prints every cause and context of an error: none quotes what the other side has sent."""
    logger, stream = logging.getLogger("merchant"), io.StringIO()
    logger.propagate, logger.handlers = False, [logging.StreamHandler(stream)]
    calls: list[Callable[[AsyncClient], Awaitable[object]]] = [pay, read_list]
    shown = 0
    for name, reply in ANSWERS.items():
        async with serve(replies(*[reply] * len(calls))) as server:
            for call in calls:
                retry = RetryPolicy(max_attempts=1)
                async with connect(way, server.base_url, retry=retry, timeout=2.0) as client:
                    try:
                        await call(client)
                    except MobileMoneyError as error:
                        shown += 1
                        logger.exception("paying failed")
                        _check_all(error, f"{name} {call.__name__}")
        assert [each for each in HIDDEN if each in stream.getvalue()] == [], name
        stream.seek(0)
        stream.truncate()
    assert shown > 1.5 * len(ANSWERS)


def _check_all(error: BaseException, where: str) -> None:
    """Look also at causes and contexts that a traceback leaves out: crash reporters send them."""
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None:
            continue
        text = "".join(traceback.format_exception_only(each)) + repr(each)
        if not type(each).__module__.startswith("mobilemoney_async"):
            found = traceback.TracebackException.from_exception(each, capture_locals=True)
            text += "".join(f"{frame.locals}" for frame in found.stack)  # crash reporters send these, too
        # Our own text may quote the service's words, redacted. No other error does.
        hidden = HIDDEN if isinstance(each, MobileMoneyError) else [*HIDDEN, FOREIGN]
        assert [secret for secret in hidden if secret in text] == [], f"{where}: {each!r}"
        todo += [each.__cause__, each.__context__]
        todo += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
