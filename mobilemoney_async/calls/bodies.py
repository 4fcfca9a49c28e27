"""Bodies of answers: read to a limit, decompressed to it, and without the secrets of their requests."""

from __future__ import annotations

import functools
import json
import re
import zlib
from contextlib import suppress
from typing import Any, TypeVar

import attrs

from mobilemoney_async.contract.codec import Content
from mobilemoney_async.contract.endpoints import Endpoint
from mobilemoney_async.contract.error_mapping import Answer, read_answer
from mobilemoney_async.contract.plain import forget_unsaid
from mobilemoney_async.errors import ConnectionFailed, MobileMoneyError
from mobilemoney_async.redaction import names_secret
from mobilemoney_async.values import Secret

T = TypeVar("T")

# Bytes of a body, compressed and decompressed: a page of 100 transactions has 50 kB.
_BODY_LIMIT = 1024 * 1024
# `wbits` of zlib. By "deflate" some servers mean zlib's format and some the bare one.
_CODINGS: dict[str, tuple[int, ...]] = {"": (), "identity": (), "gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}
_TOO_LARGE = "the answer is larger than any answer of the contract"
# Shorter ones may be words of an error's code: a token, of a test say, and a secret of a request.
_TOKEN_LENGTH, _SECRET_LENGTH = 12, 4
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")


async def read_body(response: Any) -> Content:
    """Return the body of httpx's response, or raise `ConnectionFailed` if it is no answer of the contract."""
    if response.is_stream_consumed:  # a mock's, or read by a hook of the caller's client
        return Content(response.content)
    coding = response.headers.get("content-encoding", "").strip().lower()
    raw, piece = bytearray(), b""
    try:
        # Not `aiter_bytes`: it decompresses whatever it can, as much as comes of it.
        async for piece in response.stream:
            raw += piece
            if piece and coding not in _CODINGS:
                raise ConnectionFailed("the answer is compressed in a way that was not asked for")
            if len(raw) > _BODY_LIMIT:
                raise ConnectionFailed(_TOO_LARGE)
        return Content(_decompress(raw, _CODINGS.get(coding, ())) if raw else b"")
    finally:
        # The part that arrived may hold a token, which a traceback with locals would show.
        raw.clear()
        piece = b""


def _decompress(raw: bytearray, formats: tuple[int, ...]) -> bytes:
    if not formats:
        return bytes(raw)
    for bits in formats:
        decompressor = zlib.decompressobj(bits)
        with suppress(zlib.error):
            body = decompressor.decompress(raw, _BODY_LIMIT + 1)
            if len(body) > _BODY_LIMIT:
                raise ConnectionFailed(_TOO_LARGE)
            if decompressor.eof and not decompressor.unused_data:
                return body
    raise ConnectionFailed("the answer cannot be decompressed")


def read_value(endpoint: Endpoint[T], answer: Answer, token: Secret | None, content: bytes | None) -> T:
    """Return the value that an answer holds, as `read_answer`; an error quotes no secret of its request.

    Args:
        endpoint: The endpoint.
        answer: The answer.
        token: The token of the request, or None.
        content: The body of the request, or None.
    """
    try:
        return read_answer(endpoint, attrs.evolve(answer, without_secrets=functools.partial(_hide, token, content)))
    except MobileMoneyError:
        forget_unsaid()  # it is no answer whose fields may be missing
        raise


def _hide(token: Secret | None, content: bytes | None, text: str) -> str:
    """Return a text without the token and the body's secrets of a request, also where JSON escapes them."""
    secrets = [token.reveal()] if token is not None and len(token.reveal()) >= _TOKEN_LENGTH else []
    for name, value in _fields(content):
        if isinstance(value, str) and len(value) >= _SECRET_LENGTH and names_secret(name):
            secrets.append(value)
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)
    if not any(each in plain for each in secrets):
        return text
    for each in secrets:
        plain = plain.replace(each, "[redacted]")
    return plain


def _fields(content: bytes | None) -> Any:
    with suppress(ValueError, AttributeError):
        return json.loads(content or b"{}").items()
    return ()
