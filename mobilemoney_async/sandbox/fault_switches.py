"""Fault switches: each of the sandbox's faults, to be turned on and off by hand while it runs."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import attrs

from mobilemoney_async.sandbox import faults
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.script import Rule, make_rule


@attrs.frozen(kw_only=True)
class Switch:
    """One fault that can be turned on.

    Args:
        slug: Its name in programs and URLs: small letters, digits and hyphens.
        label: For people, a few words.
        description: For people: what the client sees, and what really happened. One sentence.
        fault: Makes the fault.
        on: Which requests it strikes unless told otherwise, as in `Sandbox.script`; None for every request.
        decides: Whether it takes the place of the whole answer. What does not only shapes the answer, so that several
            can strike one request together.
    """

    slug: str
    label: str
    description: str
    fault: Callable[[], Fault]
    on: str | None = None
    decides: bool = True


@attrs.frozen(kw_only=True)
class SwitchState:
    """A switch at one moment.

    Args:
        switch: Which.
        is_on: Whether it will strike. One that is on for one request turns itself off when it struck.
        once: Whether it is, or was when it was on last, on for one request only.
        on: Which requests it strikes, or struck when it was on last; None for every request.
        fired: How often it struck since the sandbox's start.
    """

    switch: Switch
    is_on: bool
    once: bool
    on: str | None
    fired: int


SWITCHES: tuple[Switch, ...] = (
    Switch(
        slug="slow",
        label="Slow answer",
        description="The answer comes 5 seconds late; the request takes effect at once.",
        fault=lambda: faults.latency(5),
        decides=False,
    ),
    Switch(
        slug="gateway-timeout",
        label="Gateway time-out",
        description="After 60 seconds comes HTTP 504 in place of the answer; the request took effect.",
        fault=lambda: faults.latency(90),
    ),
    Switch(
        slug="refused",
        label="Connection refused",
        description="Nobody listens: the request is never sent. Over a socket the connection is reset instead.",
        fault=faults.refused,
    ),
    Switch(
        slug="closed-before",
        label="Connection closed, nothing processed",
        description="The connection is closed without an answer; the request has no effect.",
        fault=lambda: faults.drop(processed=False),
    ),
    Switch(
        slug="closed-after",
        label="Connection closed, processed",
        description="The connection is closed without an answer, although the request took effect.",
        fault=lambda: faults.drop(processed=True),
    ),
    Switch(
        slug="reset-before",
        label="Connection reset, nothing processed",
        description="The connection is torn down without an answer; the request has no effect.",
        fault=lambda: faults.drop(processed=False, reset=True),
    ),
    Switch(
        slug="reset-after",
        label="Connection reset, processed",
        description="The connection is torn down without an answer, although the request took effect.",
        fault=lambda: faults.drop(processed=True, reset=True),
    ),
    Switch(
        slug="request-lost",
        label="Request lost",
        description="No answer ever comes; the request has no effect.",
        fault=lambda: faults.lost(processed=False),
    ),
    Switch(
        slug="answer-lost",
        label="Answer lost",
        description="No answer ever comes, although the request took effect.",
        fault=lambda: faults.lost(processed=True),
    ),
    Switch(
        slug="error-500-before",
        label="HTTP 500, nothing processed",
        description="HTTP 500 with an error code that nobody documented; the request has no effect.",
        fault=lambda: faults.server_error(500, processed=False),
    ),
    Switch(
        slug="error-500-after",
        label="HTTP 500, processed",
        description="HTTP 500 with an error code that nobody documented, although the request took effect.",
        fault=lambda: faults.server_error(500, processed=True),
    ),
    Switch(
        slug="error-503-before",
        label="HTTP 503, nothing processed",
        description="HTTP 503 with an error code that nobody documented; the request has no effect.",
        fault=lambda: faults.server_error(503, processed=False),
    ),
    Switch(
        slug="proxy-502-before",
        label="Proxy's 502 page, nothing processed",
        description="HTTP 502 with a proxy's HTML page; the request has no effect.",
        fault=lambda: faults.html_page(502, processed=False),
    ),
    Switch(
        slug="proxy-504-after",
        label="Proxy's 504 page, processed",
        description="HTTP 504 with a proxy's HTML page at once, although the request took effect.",
        fault=lambda: faults.html_page(504, processed=True),
    ),
    Switch(
        slug="empty-before",
        label="Empty answer, nothing processed",
        description="HTTP 200 without a body; the request has no effect.",
        fault=lambda: faults.empty_body(processed=False),
    ),
    Switch(
        slug="empty-after",
        label="Empty answer, processed",
        description="HTTP 200 without a body, although the request took effect.",
        fault=lambda: faults.empty_body(processed=True),
    ),
    Switch(
        slug="truncated",
        label="Answer cut off",
        description="Half of the answer's body comes, then the connection ends; the request took effect.",
        fault=faults.truncated,
    ),
    Switch(
        slug="rate-limited",
        label="Rate limit",
        description="RATE_LIMIT_EXCEEDED, retry after 1 second, whatever the real count; the request has no effect.",
        fault=faults.rate_limited,
    ),
    Switch(
        slug="token-expired",
        label="Token expired",
        description="HTTP 401 token_expired, whatever the token; the request has no effect.",
        fault=faults.token_expired,
    ),
    Switch(
        slug="unknown-fields",
        label="Unknown fields",
        description="The answer carries fields that the contract does not know.",
        fault=faults.unknown_fields,
        decides=False,
    ),
    Switch(
        slug="unknown-status",
        label="Unknown status",
        description="Transactions are reported as UNDER_REVIEW, a status that the contract does not know.",
        fault=faults.unknown_status,
        decides=False,
    ),
    Switch(
        slug="nulls",
        label="Nulls",
        description="Optional fields of a transaction that are absent come as null.",
        fault=faults.nulls,
        decides=False,
    ),
    Switch(
        slug="oldest-first",
        label="List from the oldest",
        description="The transaction list starts with the oldest.",
        fault=lambda: faults.list_order("oldest-first"),
        on="transactions",
        decides=False,
    ),
    Switch(
        slug="list-lag",
        label="List lags behind",
        description="The transaction list leaves out what is younger than 30 seconds.",
        fault=lambda: faults.list_lag(30),
        on="transactions",
        decides=False,
    ),
)
"""All of them, in the order in which a page shows them."""

_BY_SLUG: Mapping[str, Switch] = MappingProxyType({switch.slug: switch for switch in SWITCHES})


@attrs.define(eq=False)
class _Setting:
    """What a switch was last turned on for."""

    switch: Switch
    once: bool
    on: str | None
    rule: Rule


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
        self._settings: dict[str, _Setting] = {}
        self._fired_before: dict[str, int] = {}

    def turn_on(self, slug: str, *, once: bool = True, on: str | None = None) -> None:
        """Turn a switch on, or change what it is on for; of several it then counts as the one turned on last.

        Args:
            slug: Of one of `SWITCHES`.
            once: Whether for the next request only, or until it is turned off.
            on: Which requests, as in `Sandbox.script`; None for the switch's own choice, `"*"` for every request.

        Raises:
            ValueError: There is no such switch, or no request can match `on`.
        """
        switch = _find(slug)
        if on is None:
            on = switch.on
        rule = make_rule((switch.fault(),), on=on, times=1 if once else None)
        self.turn_off(slug)
        previous = self._settings.pop(slug, None)
        if previous is not None:
            self._fired_before[slug] = self._fired_before.get(slug, 0) + previous.rule.fired
        self._settings[slug] = _Setting(switch, once, None if on == "*" else on, rule)

    def turn_off(self, slug: str) -> None:
        """Turn a switch off; one that is off stays so.

        Raises:
            ValueError: There is no such switch.
        """
        setting = self._settings.get(_find(slug).slug)
        if setting is not None:
            setting.rule.cancel()

    def all_off(self) -> None:
        """Turn every switch off."""
        for slug in self._settings:
            self.turn_off(slug)

    def states(self) -> tuple[SwitchState, ...]:
        """Every switch, in the order of `SWITCHES`."""
        return tuple(map(self._state, SWITCHES))

    def pick(self, method: str, endpoint: str | None) -> tuple[Fault, ...]:
        """Give the faults that this request meets, and count them; see ``Script.pick``."""
        fitting = [setting for setting in self._settings.values() if setting.rule.fits(method, endpoint)]
        chosen = [setting for setting in fitting if setting.once][:1]
        chosen += [setting for setting in fitting if not setting.once and not setting.switch.decides]
        if not any(setting.switch.decides for setting in chosen):
            chosen += [setting for setting in fitting if not setting.once and setting.switch.decides][:1]
        for setting in chosen:
            setting.rule.fired += 1
        # What shapes the answer goes first: whatever decides it has the last word, in the request log too.
        chosen.sort(key=lambda setting: setting.switch.decides)
        return tuple(fault for setting in chosen for fault in setting.rule.faults)

    def _state(self, switch: Switch) -> SwitchState:
        fired = self._fired_before.get(switch.slug, 0)
        setting = self._settings.get(switch.slug)
        if setting is None:
            return SwitchState(switch=switch, is_on=False, once=True, on=switch.on, fired=fired)
        return SwitchState(
            switch=switch,
            is_on=not setting.rule.spent,
            once=setting.once,
            on=setting.on,
            fired=fired + setting.rule.fired,
        )


def _find(slug: str) -> Switch:
    try:
        return _BY_SLUG[slug]
    except KeyError:
        raise ValueError(f"there is no switch {slug!r}; there are: {', '.join(_BY_SLUG)}") from None
