"""One line for each request that a server front answered, with no secret and no whole phone number."""

import logging
import re
from urllib.parse import unquote

from mobilemoney_async.sandbox.messages import Reply, Request, Wire

logger: logging.Logger = logging.getLogger("mobilemoney_async.sandbox")

_PHONE_NUMBER = re.compile(r"[+]?[0-9]{8,15}")


def log(request: Request, reply: Reply, *, seconds: float) -> None:
    """Write the line: method, path and query, status or how the answer failed to arrive, milliseconds."""
    outcome = str(reply.status) if reply.wire is Wire.ANSWERED else reply.wire.value
    logger.info("%s %s %s %.0f ms", request.method, target(request), outcome, seconds * 1000)


def log_gone(request: Request, *, seconds: float) -> None:
    """Write the line for a client that left before its answer came."""
    logger.info("%s %s client left %.0f ms", request.method, target(request), seconds * 1000)


def target(request: Request) -> str:
    """Give path and query, phone numbers masked."""
    path = "/".join(map(_masked, request.path.split("/")))
    query = "&".join(f"{name}={_masked(value)}" for name, value in request.query.items())
    return f"{path}?{query}" if query else path


def _masked(text: str) -> str:
    plain = unquote(text).strip()
    return f"{plain[:6]}…{plain[-3:]}" if _PHONE_NUMBER.fullmatch(plain) else text
