"""Options of a client: checks of its arguments.

Every function raises `InvalidRequest` for a wrong argument, before anything is sent.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeAlias

import attrs

from mobilemoney_async._version import __version__
from mobilemoney_async.calls.limiter import Limiter, RateLimiter
from mobilemoney_async.calls.retry import RetryPolicy
from mobilemoney_async.calls.tokens import LoginAuth, TokenAuth, TokenSource
from mobilemoney_async.contract.codec import Fields
from mobilemoney_async.contract.endpoints import Effect
from mobilemoney_async.contract.limits import check_seconds
from mobilemoney_async.values import HiddenText, Secret, can_encode, conceal, hide_text, refuse

P = ParamSpec("P")

DEFAULT_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": f"mobilemoney-async/{__version__}",
}

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?", re.ASCII)

Auth: TypeAlias = str | Secret | tuple[str, str | Secret] | TokenSource
"""Type of `AsyncClient`'s argument ``auth``: an issued token, e-mail and password, or a source of tokens."""

# Arguments of other clients, by the way to say the same here.
_OTHER_NAMES = {
    "token api_key access_token bearer_token": "auth=, an issued token",
    "email username password": "auth=(email, password)",
    "max_retries retries": "retry=RetryPolicy(max_attempts=…)",
    "url host": "base_url=",
    "database database_url store_url": "store=",
    "headers default_headers": "client.with_options(extra_headers=…)",
    "proxy proxies": "http_client=, or HTTPS_PROXY in the environment",
    "verify cert": "http_client=",
}
_OUR_HEADERS = frozenset(
    {
        *("authorization", "content-type", "content-length", "host", "transfer-encoding"),
        *("accept-encoding", "content-encoding", "expect", "range"),  # which change the answer, or make it unreadable
    }
)


def _check_retry(instance: object, attribute: attrs.Attribute[RetryPolicy], value: RetryPolicy) -> None:
    if not isinstance(value, RetryPolicy):
        raise refuse("retry", "a RetryPolicy", value)


@attrs.frozen(kw_only=True)
class Options:
    """Options of each call, as arguments of `AsyncClient`; `with_options` may change them."""

    timeout: float = attrs.field(validator=check_seconds)
    deadline: float | None = attrs.field(validator=attrs.validators.optional(check_seconds))
    retry: RetryPolicy = attrs.field(validator=_check_retry)
    headers: Mapping[str, str]

    def changed(self, changes: Mapping[str, Any], extra_headers: Fields) -> Options:
        """Return the options with changes, and with more headers, if any."""
        headers = self.headers
        if extra_headers.reveal() is not None:
            headers = _merge(headers, _check_headers(extra_headers))
        return attrs.evolve(self, **changes, headers=headers)


def refuse_unknown(options: Iterable[str]) -> None:
    """Raise `TypeError` for arguments that `AsyncClient` does not have; it names the right one where there is one."""
    for name in options:
        right = next((right for names, right in _OTHER_NAMES.items() if name in names.split()), None)
        raise TypeError(f"AsyncClient has no argument {name!r}{'' if right is None else f'; give {right}'}")


def allow_no_auth(init: Callable[P, None]) -> Callable[P, None]:
    """Return a client's constructor that refuses a missing ``auth`` in the words for a wrong one, and hides secrets."""

    @functools.wraps(init)
    def checked(*args: P.args, **options: P.kwargs) -> None:
        # Here, in the first frame that has it: a traceback with locals shows no secret of a wrong argument.
        options["auth"] = _concealed(options.get("auth"))
        options["store"] = hide_text(options.get("store"))
        args = tuple(map(hide_text, args))  # type: ignore[assignment]
        if "base_url" in options:
            options["base_url"] = hide_text(options["base_url"])
        init(*args, **options)

    return checked


def _concealed(auth: Any) -> Any:
    if isinstance(auth, tuple) and len(auth) == 2:
        return auth[0], conceal(auth[1])
    return auth if callable(getattr(auth, "token", None)) else conceal(auth)


def check_auth(auth: Auth) -> TokenSource:
    """Return the source of the token."""
    if isinstance(auth, str | Secret):
        return TokenAuth(auth)
    if isinstance(auth, tuple) and len(auth) == 2:
        return LoginAuth(*auth)
    if not callable(getattr(auth, "token", None)):
        raise refuse("auth", "a token, (email, password), TokenAuth, LoginAuth or a TokenSource", auth)
    if inspect.iscoroutinefunction(getattr(auth, "rejected", None)):
        raise refuse("auth", "a TokenSource with a plain function rejected", advice="nothing awaits an async one")
    return auth


def check_limiter(rate_limiter: Limiter | None) -> Limiter:
    """Return the rate limiter, by default one of the contract's limit."""
    if rate_limiter is None:
        return RateLimiter()
    if not isinstance(rate_limiter, Limiter):
        raise refuse("rate_limiter", "a RateLimiter", rate_limiter)
    return rate_limiter


def check_handler(handler: object) -> None:
    """Refuse a handler of events that cannot be called, or that nothing would await."""
    accepted = "a plain function"
    if handler is not None and not callable(handler):
        raise refuse("on_event", accepted, handler)
    if inspect.iscoroutinefunction(handler):
        raise refuse("on_event", accepted, advice="nothing awaits an async one")


def check_clock(utcnow: Callable[[], datetime] | None) -> Callable[[], datetime] | None:
    """Return a caller's wall clock, if any; it raises `InvalidRequest` where it returns no aware datetime."""
    if utcnow is None:
        return None
    accepted = "a function that returns an aware datetime, such as lambda: datetime.now(UTC)"
    if not callable(utcnow):
        raise refuse("utcnow", accepted, utcnow)

    def checked() -> datetime:
        now = utcnow()
        if isinstance(now, datetime) and now.utcoffset() is not None:
            return now.astimezone(UTC)
        kind = "a naive datetime" if isinstance(now, datetime) else type(now).__name__
        raise refuse("utcnow", accepted, advice=f"it returned {kind}")

    return checked


def hosts_now() -> datetime:
    """Return the time of the host's clock."""
    return datetime.now(UTC)


def check_method(method: str) -> str:
    """Return an HTTP method in upper case, or refuse it."""
    if not isinstance(method, str) or not re.fullmatch("[A-Za-z]+", method, re.ASCII):
        raise refuse("method", "an HTTP method, such as GET", method)
    return method.upper()


def check_path(path: str) -> str:
    """Return a path below the base URL, or refuse it."""
    if not isinstance(path, str) or not re.fullmatch(r"/[!$&-;=@-Z_a-z~%]*", path) or _climbs(path):
        raise refuse("path", "a path below the base URL with a leading slash, quoted, without query or '..'", path)
    return path


def check_body(fields: Fields) -> Fields | None:
    """Return the fields of a JSON body, if there is one, or refuse them."""
    if fields.reveal() is None:
        return None
    if not isinstance(fields.reveal(), Mapping):
        raise refuse("json", "a mapping", type(fields.reveal()))
    return Fields(dict(fields.reveal()))


def check_effect(effect: Effect | str | None, method: str) -> Effect:
    """Return the effect of a call, by default that of its method, or refuse it."""
    if effect is None:
        return Effect.READ if method in {"GET", "HEAD", "OPTIONS"} else Effect.MONEY
    try:
        return Effect(effect)
    except ValueError as exc:
        raise refuse("effect", '"read", "session" or "money"', effect) from exc


def _check_headers(headers: Fields) -> dict[str, str]:
    """Return headers that hide their values, or refuse those that cannot be sent or that the client sets itself."""
    if not isinstance(headers.reveal(), Mapping):
        raise refuse("extra_headers", "a mapping of str to str", type(headers.reveal()))
    if not all(map(_is_name, headers.reveal())):
        raise refuse("extra_headers", f"valid header names other than {', '.join(sorted(_OUR_HEADERS))}")
    if not all(isinstance(value, str) and _HEADER_VALUE.fullmatch(value) for value in headers.reveal().values()):
        raise refuse("extra_headers", "a mapping to values of visible ASCII characters, without blanks at an end")
    return {name: HiddenText(value) for name, value in headers.reveal().items()}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(_HEADER_NAME.fullmatch(name)) and name.lower() not in _OUR_HEADERS


def _merge(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return both, the new ones in place of the old: a name is the same in upper and lower case."""
    replaced = {name.lower() for name in new}
    return {**{name: value for name, value in old.items() if name.lower() not in replaced}, **new}


def check_params(params: Fields) -> dict[str, str | int]:
    """Return the parameters of a query string, which hide themselves, or refuse them."""
    if params.reveal() is None:
        return {}
    if isinstance(params.reveal(), Mapping) and all(_is_parameter(*each) for each in params.reveal().items()):
        return {name: HiddenText(f"{value}") for name, value in params.reveal().items()}
    raise refuse("params", "a mapping of str to str or int, all of which can be encoded")


def _is_parameter(name: object, value: object) -> bool:
    is_plain = isinstance(name, str) and isinstance(value, str | int) and not isinstance(value, bool)
    return is_plain and can_encode(f"{name}{value}")


def _climbs(path: str) -> bool:
    """Return whether a path has segments that a URL resolves away."""
    return any(segment in {".", ".."} for segment in path.lower().replace("%2e", ".").split("/"))
