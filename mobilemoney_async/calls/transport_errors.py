"""Failures of a transport, and their proofs about a request.

Whether a request was *provably not sent* is decided here, by one table of exceptions and one veto: once a transport
other than httpx's own pool has begun to read the body, the service may have it. On transports of our own making the
converse holds too: a body that was never read, or that aiohttp then had no connection to write to, was not sent.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence

import attrs

from mobilemoney_async.errors import ConnectionFailed, RequestTimeout, TransportError

# By name, so that one table serves httpx, httpcore, httpx2 and aiohttp without importing them. After any other error
# the request may have been sent.
_NOT_SENT = frozenset(
    {
        # httpx, httpx2, httpcore, httpcore2
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
        "InvalidURL",
        # aiohttp
        "ClientConnectorError",
        "ConnectionTimeoutError",
        "ClientProxyConnectionError",
        "ClientHttpProxyError",
        # the standard library
        "ConnectionRefusedError",
        "gaierror",
    }
)
_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"})
_TIMEOUTS = frozenset({"TimeoutException", "TimeoutError", "ServerTimeoutError"})
# OpenSSL's numbers of the faults of a certificate.
_CERTIFICATE = {
    9: "certificate is not valid yet",
    10: "certificate has expired",
    18: "certificate is of an unknown authority (self-signed)",
    19: "certificate is of an unknown authority",
    20: "certificate is of an unknown authority",
    21: "certificate is of an unknown authority",
    62: "certificate is for another name",
    64: "certificate is for another address",
}
_LATE = "no connection in time"
_BY_NAME = {
    "ConnectTimeout": _LATE,
    "ConnectionTimeoutError": _LATE,
    "PoolTimeout": "no connection was free in time",
    "BrokenResourceError": "the connection was closed while it began",
    "EndOfStream": "the connection was closed while it began",
    "RemoteProtocolError": "the connection was closed while it began, or it is no HTTP",
    "BadHttpMessage": "the answer is no HTTP",
    "BadStatusLine": "the answer is no HTTP",
    "ServerDisconnectedError": "the connection was closed while it began",
    "ClientConnectionResetError": "the connection was closed while it began",
}


@attrs.define(eq=False)
class Flight:
    """Progress of one request.

    Attributes:
        begun: Whether the transport has begun to read the body, after which the service may have it.
        proves_unsent: Whether `begun` being False proves that nothing was sent.
        is_direct: Whether httpx's own pool sends it, so that its connection errors decide alone. A caller's transport
            or client may have sent the request before, and retried; a mock of the pool in a test reads the body of a
            request that it then does not send.
        is_suspect: Whether the answer may be that to another request: then its connection is closed.
        checks: Each raises if the request must not be sent any more: called once there is a connection, which may have
            taken long.
    """

    begun: bool = False
    proves_unsent: bool = False
    is_direct: bool = False
    is_suspect: bool = False
    checks: Sequence[Callable[[], None]] = ()

    def check(self) -> None:
        """Raise if the request must not be sent any more."""
        for each in self.checks:
            each()

    async def trace(self, event: str, info: object) -> None:
        """Check before a byte is written. Called by httpcore with each event of a request."""
        if event.endswith(".send_request_headers.started"):
            self.check()

    @property
    def may_have_arrived(self) -> bool:
        """True if the service may have the request."""
        return self.begun or not self.proves_unsent


def map_error(exc: Exception, flight: Flight, peer: str) -> TransportError:
    """Return our error for a failure of a transport, with an outcome that says whether the request may have arrived.

    Args:
        exc: The failure.
        flight: The request's progress.
        peer: The host that was to be reached, for the text.
    """
    chain = _library_errors(exc)
    origin = type(chain[-1])
    not_sent = flight.proves_unsent and (not flight.begun or _was_not_written(chain[-1]))
    if flight.is_direct or not flight.begun:
        not_sent = not_sent or all(map(_is_not_sent, chain))
    kind = RequestTimeout if {cls.__name__ for cls in origin.__mro__} & _TIMEOUTS else ConnectionFailed
    # The texts of other libraries may hold URLs, or bytes of the answer.
    reason = connection_fault(exc) if not_sent else None
    if reason is None:
        text = f"{origin.__name__}: {'not sent' if not_sent else 'sent, no answer'}"
        return kind(text, outcome="not_sent" if not_sent else "unknown")
    error = kind(f"cannot connect to {peer}: {reason}; nothing was sent", outcome="not_sent")
    error.peer = peer
    return error


def connection_fault(exc: BaseException | None) -> str | None:
    """Return why there is no connection, by an exception or its causes; None if they do not say.

    Of their texts, which may quote an answer, nothing is shown.
    """
    named = None
    for _ in range(10):  # some chains are circles
        if exc is None:
            break
        if isinstance(exc, BaseExceptionGroup):  # of all addresses of a host
            exc = exc.exceptions[0]
        if library(type(exc)) in {"builtins", "ssl", "socket"} and (reason := _of_system(exc)) is not None:
            return reason
        if type(exc).__name__ in {"ProxyError", "ClientHttpProxyError"}:
            status = re.match("[45][0-9]{2}", f"{getattr(exc, 'status', None) or (*exc.args, '')[0]}")
            return f"the proxy answered {status[0]}" if status else "the proxy refused"
        named = _BY_NAME.get(type(exc).__name__, named)
        # httpcore's pool raises its errors "from None".
        exc = exc.__cause__ or (exc.__context__ if library(type(exc)) in {"httpcore", "httpcore2"} else None)
    return named


def _of_system(exc: BaseException) -> str | None:
    """Return why there is no connection, by an error of the operating system or of TLS."""
    match exc:
        case ssl.SSLCertVerificationError():
            return _CERTIFICATE.get(getattr(exc, "verify_code", 0), "certificate is not trusted")
        case ssl.SSLError():
            return (
                f"no TLS connection ({getattr(exc, 'reason', None) or type(exc).__name__}): is this a port for https?"
            )
        case socket.gaierror():
            return "no answer from the name server" if exc.errno == socket.EAI_AGAIN else "name not known"
        case ConnectionRefusedError():
            return "connection refused"
        case OSError(errno=int() as number) if number > 0:
            return os.strerror(number).lower()
        case _:
            return None


def _library_errors(exc: BaseException) -> list[BaseException]:
    """Return an exception and its causes, as far as they are an HTTP library's.

    httpx-aiohttp turns every broken connection into a ConnectTimeout, so its cause must prove the same: a lost answer
    behind a harmless name would be money sent twice.
    """
    chain = [exc]
    while (cause := chain[-1].__cause__) is not None and library(type(cause)) in _LIBRARIES and cause not in chain:
        chain.append(cause)
    return chain


def _is_not_sent(exc: BaseException) -> bool:
    """Return whether an exception, by itself, proves that nothing was sent."""
    libraries = _LIBRARIES | {"builtins", "socket"}
    return any(cls.__name__ in _NOT_SENT and library(cls) in libraries for cls in type(exc).__mro__)


def _was_not_written(exc: BaseException) -> bool:
    """Return whether aiohttp has found the connection closed before it wrote the only piece of the body.

    The text tells: a connection that is lost after the write raises the same class.
    """
    shown = (library(type(exc)), type(exc).__name__, *exc.args)
    return shown == ("aiohttp", "ClientConnectionResetError", "Cannot write to closing transport")


def library(cls: type) -> str:
    """Return the name of the package that a class comes from."""
    return cls.__module__.partition(".")[0]
