"""A hostile service: any status, shape, framing, compression and size, over raw sockets; a program of its own.

    python -m tests.calls.hostile_service WAY LOOP COUNT SEED

Makes each kind of answer once and COUNT cases at random, by one way of sending, on the virtual clock, and prints each
case that breaks the law as a line of JSON, then the number of cases. The law: a call ends in a value or in one of our
errors, within its time-out and a second, within 64 MiB over the start, with a text that is printable, short and without
the phone number and the token; and a create that came to the service never says that it was not sent.
"""

import itertools
import json
import random
import re
import resource
import socket
import struct
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, cast

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from mobilemoney_async import AsyncClient, MobileMoneyError, RetryPolicy
from mobilemoney_async.testing import run_virtual
from tests.calls.ways import connect
from tests.contract import samples

PHONE_NUMBER = "+255780000789"
TOKEN = "issued.token-of-the-tests"
TIMEOUT = 5.0
MOST_MEMORY = 64 * 1024  # KiB
EMAIL, PASSWORD = "shop@example.com", "correct-horse-battery"

_SPACES = b" " * 65_536
_ROW = json.dumps(samples.settled()).encode()
_GOOD = {
    "lookup": json.dumps(samples.found(id="tx-1", phone_number=PHONE_NUMBER)).encode(),
    "create": json.dumps(samples.acknowledgement(phone_number=PHONE_NUMBER, amount="1000")).encode(),
    "list": json.dumps(samples.page(samples.transaction())).encode(),
    "login": json.dumps(samples.login(user={"id": 1, "email": EMAIL})).encode(),
}
_TEXT = f"\x1b]0;x\x07\u202e {PHONE_NUMBER} +255.780.000.789 {TOKEN} token={TOKEN} ".encode()

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _error(code: object, **more: object) -> bytes:
    return json.dumps({"status": "error", "error_code": code, "message": _TEXT.decode() * 40, **more}).encode()


def _rows(row: bytes, count: int) -> bytes:
    return b'{"status":"success","transactions":[%s],"pagination":{}}' % b",".join([row] * count)


SHAPES: dict[str, Callable[[str], bytes]] = {
    "good": lambda kind: _GOOD[kind],
    "another's": lambda kind: _GOOD["create" if kind == "lookup" else "lookup"],
    "another's id": lambda _: json.dumps(samples.acknowledgement(transaction_id=_TEXT.decode(), amount="1")).encode(),
    "another's login": lambda _: _GOOD["login"].replace(EMAIL.encode(), b"other@example.com"),
    "none": lambda _: b"",
    "html": lambda _: b"<html>" + _TEXT * 50,
    "utf-16": lambda _: _TEXT.decode().encode("utf-16") * 20,
    "utf-32": lambda _: _error(_TEXT.decode()).decode().encode("utf-32"),
    "other digits": lambda _: json.dumps({"message": PHONE_NUMBER.translate(_RAISED)}).encode(),
    "escapes": lambda _: b'{"error":"%s"}' % b"".join(b"%%%x" % each for each in PHONE_NUMBER.encode()),
    "no utf-8": lambda _: b'{"status":"\xff\xfe\x80"}',
    "noughts": lambda _: bytes(50_000),
    "cut": lambda kind: _GOOD[kind][:-20],
    "rows {}": lambda _: _rows(b"{}", 250_000),
    "rows []": lambda _: _rows(b"[]", 250_000),
    "rows": lambda _: _rows(_ROW, 1_500),
    "broken rows": lambda _: _rows(_ROW.replace(b'"amount": "', b'"amount": "_'), 1_500),
    "objects": lambda _: b'{"status":"error","error":[%s]}' % b",".join([b'{"":{}}'] * 130_000),
    "keys": lambda _: b"{%s}" % b",".join(b'"%x":0' % number for number in range(100_000)),
    "deep list": lambda _: b"[" * 500_000,
    "deep object": lambda _: b'{"status":"error","transaction":' * 900 + b"1" + b"}" * 900,
    "huge amount": lambda kind: _GOOD[kind].replace(b'"1000"', b'"1e999999999"'),
    "odd amount": lambda kind: _GOOD[kind].replace(b'"1000"', b'" +1_000"'),
    "huge number": lambda kind: _GOOD[kind].replace(b'"1000"', b"1" * 900_000),
    "long id": lambda kind: _GOOD[kind].replace(b'"tx-1"', b'"%s"' % (b"x" * 500_000)),
    "long number": lambda kind: _GOOD[kind].replace(PHONE_NUMBER.encode(), b"1*" * 300_000),
    "error": lambda _: _error("SOMETHING_ELSE"),
    "code": lambda _: _error(_TEXT.decode() * 1000),
    "rate limit": lambda _: _error("RATE_LIMIT_EXCEEDED", retry_after=10**30),
    "not found": lambda _: _error("TRANSACTION_NOT_FOUND"),
    "token": lambda _: _error("invalid_token"),
    "null": lambda _: b"null",
    "number": lambda _: b"1" * 900_000,
    "text": lambda _: json.dumps(_TEXT.decode() * 5_000).encode(),
    "base64": lambda _: b'{"status":"error","message":"%s"}' % (b"aA0_-pin" * 100_000),
    "digits": lambda _: b'{"status":"error","message":"%s"}' % (b"1 2-" * 200_000),
}
STATUSES = [200, 200, 200, 201, 204, 206, 301, 304, 400, 401, 403, 404, 409, 418, 422, 429, 499, 500, 502, 503, 599]
CODINGS = [
    *("", "", "", "identity", "gzip", "deflate", "bare deflate", "gzip, gzip", "br", "zstd", "x\u00ff"),
    *("no gzip", "cut gzip", "gzip and more", "long gzip name"),
]
SIZES = ["as it is", "as it is", "1 MiB", "16 MiB", "endless"]
FRAMINGS = [
    *("length", "length", "chunked", "close", "short", "long", "both", "two lengths", "minus", "bad chunk"),
    *("endless chunk size", "tiny chunks", "trickle", "stall", "reset", "no head", "endless head", "many headers"),
    *("endless 100", "odd status", "long headers", "nothing", "surplus", "half a head"),
]


class Case(NamedTuple):
    """One case: what the service answers, and to which call."""

    status: int
    shape: str
    framing: str
    coding: str
    size: str
    kind: str


def cases(count: int, seed: int) -> Iterator[Case]:
    """Return each shape, framing, coding and size beside an otherwise good answer, and as many others at random."""
    kinds = ["lookup", "create", "list", "login"]
    turn = itertools.cycle(kinds)
    yield from (Case(status, shape, "length", "", "as it is", next(turn)) for status in (200, 400) for shape in SHAPES)
    yield from (Case(200, "good", framing, "", "as it is", next(turn)) for framing in sorted(set(FRAMINGS)))
    for size in ("as it is", "16 MiB"):
        yield from (Case(200, "good", "length", coding, size, next(turn)) for coding in sorted(set(CODINGS)))
    choice = random.Random(seed).choice
    axes = (STATUSES, [*SHAPES], FRAMINGS, CODINGS, SIZES, kinds)
    yield from (Case(*map(choice, axes)) for _ in range(count))  # type: ignore[arg-type]


def _plain(case: Case) -> Iterator[bytes]:
    yield SHAPES[case.shape](case.kind)
    more = {"as it is": 0, "1 MiB": 16, "16 MiB": 256, "endless": 20_000}[case.size]
    yield from itertools.repeat(_SPACES, more)


def _deflated(body: Iterator[bytes], bits: int) -> Iterator[bytes]:
    packer, spaces = zlib.compressobj(1, wbits=bits), b""
    for piece in body:
        # Blocks of the same bytes, each by itself, are compressed once: endless bodies cost the service nothing.
        if piece is not _SPACES or not spaces:
            packed = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
            yield packed
            spaces = packed if piece is _SPACES else b""
        else:
            yield spaces
    yield packer.flush()


def encoded(case: Case) -> Iterator[bytes]:
    """Return the body as it is compressed, a piece at a time."""
    body = _plain(case)
    match case.coding:
        case "gzip":
            return _deflated(body, 31)
        case "gzip, gzip":
            return _deflated(_deflated(body, 31), 31)
        case "deflate":
            return _deflated(body, 15)
        case "bare deflate":
            return _deflated(body, -15)
        case "cut gzip":
            return (piece[:-9] for piece in _deflated(body, 31))
        case "gzip and more":
            return itertools.chain(_deflated(body, 31), [b"more"])
        case "long gzip name":
            return itertools.chain([b"\x1f\x8b\x08\x08\0\0\0\0\0\0"], itertools.repeat(b"x" * 65_536, 1_000))
        case _:
            return body


def _chunks(body: Iterator[bytes], size: int = 65_536) -> Iterator[bytes]:
    for piece in body:
        for at in range(0, len(piece), size):
            part = piece[at : at + size]
            yield b"%x\r\n%s\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def answer(case: Case) -> Iterator[bytes | float]:  # noqa: C901, PLR0911, PLR0912 (a table)
    """Return the bytes of an answer, and pauses in seconds."""
    body = encoded(case)
    first = next(body, b"")
    coding = {"bare deflate": "deflate", "no gzip": "gzip", "cut gzip": "gzip", "gzip and more": "gzip"}.get(
        case.coding, "gzip" if case.coding == "long gzip name" else case.coding
    )
    head = f"HTTP/1.1 {case.status} X\r\ncontent-type: application/json\r\n".encode()
    if coding:
        head += b"content-encoding: " + coding.encode("latin-1") + b"\r\n"
    whole = itertools.chain([first], body)
    framed = itertools.chain([head, b"transfer-encoding: chunked\r\n\r\n"], _chunks(whole))
    match case.framing:
        case "chunked":
            return framed
        case "tiny chunks":
            return itertools.chain([head, b"transfer-encoding: chunked\r\n\r\n"], _chunks(iter([first[:20_000]]), 1))
        case "bad chunk":
            return iter([head + b"transfer-encoding: chunked\r\n\r\nzz\r\n", first])
        case "endless chunk size":
            return itertools.chain(
                [head + b"transfer-encoding: chunked\r\n\r\n"], itertools.cycle([b"0" * 65_536, 0.1])
            )
        case "both":
            return itertools.chain([head, b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"], _chunks(whole))
        case "close":
            return itertools.chain([head, b"connection: close\r\n\r\n"], whole)
        case "two lengths":
            return iter([head + b"content-length: 5\r\ncontent-length: 7\r\n\r\n", first])
        case "minus":
            return iter([head + b"content-length: -5\r\n\r\n", first])
        case "no head":
            return iter([_TEXT * 100])
        case "half a head":
            return iter([head[:20]])
        case "nothing":
            return iter([])
        case "endless head":
            return itertools.chain([head + b"x: "], itertools.cycle([b"x" * 65_536, 0.1]))
        case "many headers":
            return itertools.chain([head], itertools.cycle([b"x: y\r\n" * 1_000, 0.1]))
        case "endless 100":
            # The pauses let the virtual clock go on.
            return itertools.cycle([b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.1])
        case "odd status":
            return iter([b"HTTP/1.1 99999 \x1b[31m\r\ncontent-length: 0\r\n\r\n"])
        case "long headers":
            odd = (
                b"content-type: " + b"x " * 3_000 + b"\r\nretry-after: " + b"9" * 5_000 + b"\r\ndate: " + b"1 " * 2_000
            )
            return iter([b"HTTP/1.1 %d X\r\n%s\r\ncontent-length: %d\r\n\r\n" % (case.status, odd, len(first)), first])
        case "trickle":
            return (piece for byte in head + first for piece in (bytes([byte]), 1.0))
        case "stall":
            return iter([head + b"content-length: %d\r\n\r\n" % (len(first) + 1), first, 60.0])
    length = len(first) if case.size == "as it is" else 5_000_000_000
    length += {"short": 7, "long": -7}.get(case.framing, 0)
    framing = b"content-length: %d\r\n\r\n" % max(0, length)
    surplus = [b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\n{}"] if case.framing == "surplus" else []
    return itertools.chain([head + framing], whole, surplus)


class Service:
    """The service: answers every request with the case at hand, then closes."""

    case: Case
    is_asked: bool = False

    async def serve(self, stream: SocketStream) -> None:
        with suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead):
            async with stream:
                reader = BufferedByteReceiveStream(stream)
                head = await reader.receive_until(b"\r\n\r\n", 65_536)
                self.is_asked = True
                if found := re.search(rb"content-length: (\d+)", head, re.IGNORECASE):
                    await reader.receive_exactly(int(found[1]))
                for piece in answer(self.case):
                    await (anyio.sleep(piece) if isinstance(piece, float) else stream.send(piece))
                if self.case.framing == "reset":
                    linger = struct.pack("ii", 1, 0)
                    stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def _memory() -> int:
    """Return the greatest memory of this process since the last call, KiB; where it is not Linux, since the start."""
    if not _RESET.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    peak = re.search(r"VmHWM:\s+(\d+)", _STATUS.read_text())
    assert peak is not None
    _RESET.write_text("5")
    return int(peak[1])


def _is_clean(text: str) -> bool:
    digits = "".join(str(unicodedata.digit(each, "")) for each in text)
    is_private = "780000789" in digits or any(each in text for each in (TOKEN, PASSWORD))
    return text.isprintable() and len(text) <= 500 and not is_private


async def call(client: AsyncClient, kind: str) -> object:
    if kind == "create":
        return await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
    if kind == "list":
        return await client.transactions.list(max_items=10_000).collect()
    if kind == "login":
        return await client.users.login(EMAIL, PASSWORD)
    return await client.transactions.get("tx-1")


async def judge(client: AsyncClient, service: Service, case: Case) -> str | None:
    """Make the call of a case; return how it breaks the law, or None."""
    began = anyio.current_time()
    service.case, service.is_asked = case, False
    broken = None
    try:
        await call(client, case.kind)
    except MobileMoneyError as exc:
        texts = [str(exc), *(each for each in vars(exc).values() if isinstance(each, str))]
        if not all(map(_is_clean, texts)):
            broken = f"a text: {texts!a}"[:600]
        elif case.kind == "create" and exc.outcome == "not_sent" and service.is_asked:
            broken = f"it says that it was not sent: {exc}"
    except Exception as exc:  # noqa: BLE001 (the law)
        broken = f"a foreign exception: {type(exc).__name__}"
    if anyio.current_time() - began > TIMEOUT + 1:
        broken = f"it took {anyio.current_time() - began} s"
    return broken


async def main() -> None:
    way, _, count, seed = sys.argv[1:]
    service, number = Service(), 0
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, service.serve)
        base_url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
        once = RetryPolicy(max_attempts=1, max_retry_after=0)
        async with connect(way, base_url, auth=TOKEN, retry=once, timeout=TIMEOUT) as client:
            for kind in _GOOD:  # imports, and what is kept for later calls
                for shape in ("good", "cut", "html", "broken rows"):
                    await judge(client, service, Case(200, shape, "length", "", "as it is", kind))
            start = _memory()
            for case in cases(int(count), int(seed)):
                number += 1
                broken = await judge(client, service, case)
                peak = _memory()
                if peak - start > MOST_MEMORY:
                    broken = f"it took {(peak - start) // 1024} MiB"
                if broken is not None:
                    print(json.dumps([*case, broken]), flush=True)
        tasks.cancel_scope.cancel()
    print(number)


def start() -> None:
    """Run the program, with its arguments from the command line."""
    run_virtual(main, backend=cast(Literal["asyncio", "trio"], sys.argv[2]))


if __name__ == "__main__":
    start()
