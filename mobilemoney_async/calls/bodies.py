"""Bodies of answers: read to a limit, and decompressed to it."""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any

from mobilemoney_async.contract.codec import Content
from mobilemoney_async.errors import ConnectionFailed

# Bytes of a body, compressed and decompressed: a page of 100 transactions has 50 kB.
_BODY_LIMIT = 1024 * 1024
# `wbits` of zlib. By "deflate" some servers mean zlib's format and some the bare one.
_CODINGS: dict[str, tuple[int, ...]] = {"": (), "identity": (), "gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}
_TOO_LARGE = "the answer is larger than any answer of the contract"


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
