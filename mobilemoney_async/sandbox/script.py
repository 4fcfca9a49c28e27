"""Scripts and switches: rules that strike requests with faults, written by a test or turned on by hand."""

import collections
import fnmatch
import random
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import attrs

from mobilemoney_async.sandbox import faults
from mobilemoney_async.sandbox.endpoints import METHODS, ROUTES
from mobilemoney_async.sandbox.faults import Fault


@attrs.define(eq=False, kw_only=True)
class Rule:
    """Rule by which faults strike matching requests together; `Sandbox.script` makes it.

    Attributes:
        faults: The faults.
        on: The requests that it strikes; None for every request.
        times: The most strikes; None for no limit.
        probability: Of striking a matching request.
        fired: Number of strikes.
    """

    faults: tuple[Fault, ...]
    on: str | None
    times: int | None
    probability: float = 1.0
    fired: int = attrs.field(default=0, init=False)
    _pattern: tuple[str, str] = attrs.field(init=False)
    _is_cancelled: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if not self.faults:
            raise ValueError("script() needs at least one fault")
        if not all(isinstance(fault, Fault) for fault in self.faults):
            raise TypeError("script() takes faults, such as faults.token_expired(), with its parentheses")
        if self.times is not None and self.times < 1:
            raise ValueError("times must be at least 1")
        if not 0 <= self.probability <= 1:
            raise ValueError("probability must be between 0 and 1")
        self._pattern = _pattern(self.on)
        self.on = None if self.on == "*" else self.on

    @property
    def spent(self) -> bool:
        """True if it will never strike again."""
        return self._is_cancelled or (self.times is not None and self.fired >= self.times)

    def cancel(self) -> None:
        """End the rule: it never strikes again."""
        self._is_cancelled = True

    def fits(self, method: str, endpoint: str | None) -> bool:
        """Return whether it may strike this request."""
        wanted_method, wanted_endpoint = self._pattern
        if self.spent or wanted_method not in ("*", method):
            return False
        return wanted_endpoint == "*" or fnmatch.fnmatchcase(endpoint or "", wanted_endpoint)


class Script:
    """Sequence of rules in the order in which they were added; a request meets the first that strikes."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> Rule:
        """Add a rule after the others, and return it."""
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()

    def pick(self, method: str, endpoint: str | None) -> tuple[Fault, ...]:
        """Return the faults that strike a request, and count them; `endpoint` is None for an unknown one."""
        for rule in self._rules:
            # Random numbers are drawn only for a match.
            if rule.fits(method, endpoint) and (rule.probability == 1 or self._dice.random() < rule.probability):
                rule.fired += 1
                if rule.spent:
                    self._rules.remove(rule)
                return rule.faults
        return ()


def _pattern(on: str | None) -> tuple[str, str]:
    """Split `on` into a method and a pattern for the endpoint's name; refuse one that no request can match."""
    words = (on or "").split()
    method = words.pop(0) if words and words[0] in METHODS else "*"
    endpoint = words.pop(0) if words else "*"
    known = any(method in ("*", route.method) and fnmatch.fnmatchcase(route.name, endpoint) for route in ROUTES)
    if words or not known:
        names = ", ".join(sorted({route.name for route in ROUTES}))
        raise ValueError(f"no request can match on={on!r}; give a method, an endpoint or both, of: {names}")
    return method, endpoint


@attrs.frozen
class Switch:
    """One fault that can be turned on.

    Args:
        slug: Its name in programs and URLs: small letters, digits and hyphens.
        sees: The program's view, a few words.
        description: The same in a sentence, for the page.
        processed: Whether the request took effect, which the program cannot see; None where the answer is a whole one.
        fault: Makes the fault.
        group: The heading on the page.
        on: The requests that it strikes by default, as in `Sandbox.script`; None for every request.
    """

    slug: str
    sees: str
    description: str
    processed: bool | None
    fault: Callable[[], Fault]
    group: str = attrs.field(default="An unusual answer", kw_only=True)
    on: str | None = attrs.field(default=None, kw_only=True)

    @property
    def label(self) -> str:
        """Its name on the page."""
        return self.sees if self.processed is None else f"{self.sees}, {'' if self.processed else 'not '}processed"

    @property
    def decides(self) -> bool:
        """Whether it replaces the whole answer. Others shape it, so that several can strike one request together."""
        return self.processed is not None


@attrs.frozen(kw_only=True)
class SwitchState:
    """A switch at one moment.

    Args:
        switch: The switch.
        is_on: Whether it will strike. A switch that is on for one request turns itself off after it struck.
        once: Whether it is, or was when it was on last, on for one request only.
        on: The requests that it strikes, or struck when it was on last; None for every request.
        fired: Number of times it struck since the sandbox's start.
    """

    switch: Switch
    is_on: bool
    once: bool
    on: str | None
    fired: int


def _both(slug: str, sees: str, description: str, fault: Callable[..., Fault], **options: str) -> tuple[Switch, ...]:
    """Make the two switches of a fault that strikes before the request is processed, or after."""
    return tuple(
        Switch(f"{slug}-{when}", sees, description, processed, partial(fault, processed=processed), **options)
        for when, processed in (("before", False), ("after", True))
    )


# fmt: off
_NONE, _ERROR = {"group": "No answer"}, {"group": "An error"}
SWITCHES: tuple[Switch, ...] = (
    Switch("refused", "Connection refused", "No connection is made. Over a socket it is reset instead.", False,
           faults.refused, **_NONE),
    *_both("closed", "Connection closed", "The connection is closed without an answer.", faults.drop, **_NONE),
    *_both("reset", "Connection reset", "The connection is reset without an answer.", partial(faults.drop, reset=True),
           **_NONE),
    Switch("request-lost", "Time-out", "No answer ever comes.", False, partial(faults.lost, processed=False), **_NONE),
    Switch("answer-lost", "Time-out", "No answer ever comes.", True, partial(faults.lost, processed=True), **_NONE),
    Switch("rate-limited", "Rate limit", "RATE_LIMIT_EXCEEDED, retry after 1 second, whatever the real count.", False,
           faults.rate_limited, **_ERROR),
    Switch("token-expired", "Token expired", "HTTP 401 token_expired, whatever the token.", False,
           faults.token_expired, **_ERROR),
    *_both("error-500", "HTTP 500", "With an undocumented error code.", partial(faults.server_error, 500), **_ERROR),
    Switch("error-503-before", "HTTP 503", "With an undocumented error code.", False,
           partial(faults.server_error, 503, processed=False), **_ERROR),
    Switch("proxy-502-before", "Proxy's 502 page", "HTTP 502 with a proxy's HTML page.", False,
           partial(faults.html_page, 502, processed=False), **_ERROR),
    Switch("proxy-504-after", "Proxy's 504 page", "HTTP 504 with a proxy's HTML page, at once.", True,
           partial(faults.html_page, 504, processed=True), **_ERROR),
    Switch("gateway-timeout", "Gateway time-out", "HTTP 504 after 60 seconds.", True, partial(faults.latency, 90),
           **_ERROR),
    *_both("empty", "Empty answer", "HTTP 200 without a body.", faults.empty_body),
    Switch("truncated", "Answer cut off", "Half of the body comes, then the connection ends.", True, faults.truncated),
    Switch("slow", "Slow answer", "It comes 5 seconds late.", None, partial(faults.latency, 5)),
    Switch("unknown-fields", "Unknown fields", "Fields that the contract does not know.", None, faults.unknown_fields),
    Switch("unknown-status", "Unknown status", "Transactions are UNDER_REVIEW, which the contract does not know.", None,
           faults.unknown_status),
    Switch("nulls", "Nulls", "Absent fields of a transaction come as null.", None, faults.nulls),
    Switch("oldest-first", "List from the oldest", "The transaction list starts with the oldest.", None,
           partial(faults.list_order, "oldest-first"), on="transactions"),
    Switch("list-lag", "List lags behind", "The list leaves out transactions younger than 30 seconds.", None,
           partial(faults.list_lag, 30), on="transactions"),
)
# fmt: on
"""All of them, in the order of the page."""

_BY_SLUG: Mapping[str, Switch] = MappingProxyType({switch.slug: switch for switch in SWITCHES})


class SwitchBoard:
    """The switches of one sandbox.

    A request that a scripted rule strikes (`Sandbox.script`) meets no switch. Any other meets:

    - of the switches that are on for one request, the one that was turned on first, so that each has a request of its
      own;
    - of those that are on until they are turned off, every one that only shapes the answer; and, if nothing else
      decides the answer as a whole, the one that does and was turned on first.

    `Sandbox.clear_script` leaves the switches alone, and `all_off` the script.
    """

    def __init__(self) -> None:
        # By slug, in the order in which they were turned on last.
        self._rules: dict[str, Rule] = {}
        self._fired: collections.Counter[str] = collections.Counter()

    def turn_on(self, slug: str, *, once: bool = True, on: str | None = None) -> None:
        """Turn a switch on, or change its setting; of several switches it then counts as the one turned on last.

        Args:
            slug: Of one of `SWITCHES`.
            once: True for the next request only, False until it is turned off.
            on: The requests that it strikes, as in `Sandbox.script`; None for the switch's default, `"*"` for every
                request.

        Raises:
            ValueError: There is no such switch, or no request can match `on`.
        """
        switch = _find(slug)
        rule = Rule(faults=(switch.fault(),), on=switch.on if on is None else on, times=1 if once else None)
        self._rules.pop(slug, None)
        self._rules[slug] = rule

    def turn_off(self, slug: str) -> None:
        """Turn a switch off, if it is on.

        Raises:
            ValueError: There is no such switch.
        """
        rule = self._rules.get(_find(slug).slug)
        if rule is not None:
            rule.cancel()

    def all_off(self) -> None:
        """Turn every switch off."""
        for rule in self._rules.values():
            rule.cancel()

    def states(self) -> tuple[SwitchState, ...]:
        """Return the state of every switch, in the order of `SWITCHES`."""
        return tuple(map(self._state, SWITCHES))

    def pick(self, method: str, endpoint: str | None) -> tuple[Fault, ...]:
        """Return the faults that strike this request, and count them."""
        fitting = [slug for slug, rule in self._rules.items() if rule.fits(method, endpoint)]
        for_one = [slug for slug in fitting if self._rules[slug].times]
        candidates = for_one[:1] + [slug for slug in fitting if slug not in for_one]
        deciding = [slug for slug in candidates if _BY_SLUG[slug].decides]
        # The one that decides the answer comes last and has the last word.
        chosen = [slug for slug in candidates if slug not in deciding] + deciding[:1]
        for slug in chosen:
            self._rules[slug].fired += 1
            self._fired[slug] += 1
        return tuple(fault for slug in chosen for fault in self._rules[slug].faults)

    def _state(self, switch: Switch) -> SwitchState:
        rule = self._rules.get(switch.slug)
        return SwitchState(
            switch=switch,
            is_on=rule is not None and not rule.spent,
            once=rule is None or rule.times is not None,
            on=switch.on if rule is None else rule.on,
            fired=self._fired[switch.slug],
        )


def _find(slug: str) -> Switch:
    try:
        return _BY_SLUG[slug]
    except KeyError:
        raise ValueError(f"there is no switch {slug!r}; there are: {', '.join(_BY_SLUG)}") from None
