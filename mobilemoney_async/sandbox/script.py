"""Scripted faults: rules that match requests with faults."""

import fnmatch
import random

import attrs

from mobilemoney_async.sandbox.endpoints import METHODS, ROUTES
from mobilemoney_async.sandbox.faults import Fault


@attrs.define(eq=False)
class Rule:
    """Rule by which faults strike matching requests together; `make_rule` makes it.

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
    probability: float
    _pattern: tuple[str, str]
    _is_cancelled: bool = attrs.field(default=False, init=False)
    fired: int = attrs.field(default=0, init=False)

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

    def add(self, faults: tuple[Fault, ...], *, on: str | None, times: int | None, probability: float) -> Rule:
        """Add a rule; see `Sandbox.script`."""
        rule = make_rule(faults, on=on, times=times, probability=probability)
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


def make_rule(faults: tuple[Fault, ...], *, on: str | None, times: int | None, probability: float = 1.0) -> Rule:
    """Make a rule, or raise `ValueError`; see `Sandbox.script`."""
    if not faults:
        raise ValueError("script() needs at least one fault")
    if times is not None and times < 1:
        raise ValueError("times must be at least 1")
    if not 0 <= probability <= 1:
        raise ValueError("probability must be between 0 and 1")
    return Rule(faults, None if on == "*" else on, times, probability, _pattern(on))


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
