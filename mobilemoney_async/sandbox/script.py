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
        fired: Number of strikes.
    """

    faults: tuple[Fault, ...]
    _method: str
    _endpoint: str
    _times: int | None
    _probability: float
    fired: int = attrs.field(default=0, init=False)

    @property
    def spent(self) -> bool:
        """True if it will never strike again."""
        return self._times is not None and self.fired >= self._times

    def cancel(self) -> None:
        """End the rule: it never strikes again."""
        self._times = self.fired

    def fits(self, method: str, endpoint: str | None) -> bool:
        """Return whether it may strike this request."""
        if self.spent or self._method not in ("*", method):
            return False
        return self._endpoint == "*" or fnmatch.fnmatchcase(endpoint or "", self._endpoint)

    def strikes(self, method: str, endpoint: str | None, dice: random.Random) -> bool:
        """Decide whether it strikes this request, and count it if so; random numbers are drawn only for a match."""
        if not self.fits(method, endpoint):
            return False
        if self._probability < 1 and dice.random() >= self._probability:
            return False
        self.fired += 1
        return True


class Script:
    """Sequence of rules in the order in which they were added; a request meets the first that strikes.

    Args:
        dice: Decides rules with a probability.
    """

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
        """Return the faults that strike this request, and count them.

        Args:
            method: HTTP method.
            endpoint: Name of the endpoint, None for an unknown one.
        """
        for rule in self._rules:
            if rule.strikes(method, endpoint, self._dice):
                if rule.spent:
                    self._rules.remove(rule)
                return rule.faults
        return ()


def make_rule(faults: tuple[Fault, ...], *, on: str | None, times: int | None, probability: float = 1.0) -> Rule:
    """Make a rule; see `Sandbox.script`.

    Raises:
        ValueError: No fault, an `on` that no request can match, `times` below 1 or a probability outside 0 to 1.
    """
    if not faults:
        raise ValueError("script() needs at least one fault")
    if times is not None and times < 1:
        raise ValueError("times must be at least 1")
    if not 0 <= probability <= 1:
        raise ValueError("probability must be between 0 and 1")
    method, endpoint = _pattern(on)
    return Rule(faults, method, endpoint, times, probability)


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
