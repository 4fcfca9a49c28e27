"""Exceptions, as tracebacks and crash reporters may show them, which keep the locals of each frame."""

from __future__ import annotations

import ssl
from contextlib import suppress

from mobilemoney_async.errors import MobileMoneyError


def without_frames(exc: BaseException | None, outer: BaseException | None = None) -> BaseException | None:
    """Cut the frames so far from an exception, its causes and contexts: their locals may hold a token or an answer.

    Foreign errors also lose their texts, which may quote an answer, and their attributes. Errors of the operating
    system keep their texts; cancellations too, by which anyio knows its scopes.

    Args:
        exc: The exception, which is changed.
        outer: The exception that was being handled before, which stays as it is.

    Returns:
        The exception, or None if it still shows a text and must not be shown.
    """
    return _cut(exc, outer, set())


def _cut(exc: BaseException | None, outer: BaseException | None, seen: set[int]) -> BaseException | None:
    if exc is None or exc is outer:
        return exc
    if id(exc) in seen:
        return None
    seen.add(id(exc))
    cause, context, is_suppressed = exc.__cause__, exc.__context__, exc.__suppress_context__
    inside = exc.exceptions if isinstance(exc, BaseExceptionGroup) else ()
    is_shown = None not in [_cut(each, outer, seen) for each in inside]
    if isinstance(exc, Exception) and not isinstance(exc, MobileMoneyError) and not inside:
        is_shown = _clear(exc)
    exc.__traceback__ = None
    exc.__cause__, exc.__context__ = _cut(cause, outer, seen), _cut(context, outer, seen)
    exc.__suppress_context__ = is_suppressed
    return exc if is_shown else None


def _clear(exc: Exception) -> bool:
    """Take its text and its attributes from a foreign error; return whether it shows no text any more."""
    with suppress(AttributeError):
        del exc.__notes__
    if isinstance(exc, ssl.SSLError) or (isinstance(exc, OSError) and exc.errno is not None):
        if type(exc).__module__ not in {"builtins", "ssl", "socket"}:
            exc.args = (exc.errno, exc.strerror)  # aiohttp's hold the key of a connection, with a proxy's password
        return True
    exc.args = ()
    with suppress(Exception):  # without its arguments, a class of its own may have no text
        if str(exc):
            return False
    exc.__dict__.clear()  # such as the request, with its headers
    return True
