"""Files of scripted faults for the sandbox: TOML that says which requests meet which faults.

    [[rule]]
    fault = "lost"            # a function of `mobilemoney_async.sandbox.faults`, or a switch of the phone page
    processed = true          # its parameters stand beside it
    on = "POST c2b"           # on, times and probability are those of `Sandbox.script`

    [[rule]]
    faults = [{ fault = "latency", seconds = 3 }, { fault = "truncated" }]   # several at once

What faults there are, and what they take, is read off that module and off the switches of the phone page: there is no
second list. Nothing here prints.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, get_args

import attrs

from mobilemoney_async.sandbox import faults as fault_functions
from mobilemoney_async.sandbox.fault_switches import SWITCHES
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.sandbox import Sandbox
from mobilemoney_async.sandbox.script import make_rule

_RULE_KEYS = ("on", "times", "probability")
_HEADER = re.compile(r"[ \t]*\[\[[ \t]*rule[ \t]*\]\]")
# Statuses that a client can be given as the last word on its request (RFC 9110, section 15).
_STATUSES = range(200, 600)


class ScriptFileError(ValueError):
    """A file of faults is not what it should be; says where, and what is accepted."""


@attrs.frozen(kw_only=True)
class Parameter:
    """What a fault takes.

    Attributes:
        name: As in the file.
        type: `bool`, `int`, `float` or `str`.
        default: What it is where the file does not say; the class's `REQUIRED` where it must.
        words: Of a text, the only ones that are accepted; empty for any.
    """

    REQUIRED: ClassVar[object] = inspect.Parameter.empty

    name: str
    type: type
    default: Any
    words: tuple[str, ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether the file must say it."""
        return self.default is self.REQUIRED

    @property
    def accepts(self) -> str:
        """What it accepts, for people."""
        if self.words:
            return " or ".join(f'"{each}"' for each in self.words)
        if self.name == "status":
            return f"an HTTP status, {_STATUSES.start} to {_STATUSES.stop - 1}"
        return {
            bool: "true or false",
            int: "a whole number, 0 or more",
            float: "a number, 0 or more",
            str: "a text that is not blank",
        }[self.type]

    def __str__(self) -> str:
        default = f"{str(self.default).lower() if self.type is bool else self.default} where it is left out"
        return f"{self.name}: {self.accepts}{'' if self.is_required else f'; {default}'}"

    def read(self, value: object) -> Any:
        """Return a value of the file as the fault takes it.

        Raises:
            ScriptFileError: It is not what this parameter accepts.
        """
        if self.type is bool:
            is_right = isinstance(value, bool)
        elif self.type is str:
            is_right = isinstance(value, str) and bool(value.strip()) and (not self.words or value in self.words)
        else:
            is_right = _is_number(value, self.type) and (self.name != "status" or value in _STATUSES)
        if not is_right:
            raise ScriptFileError(f"{self.name} must be {self.accepts}")
        return value


@attrs.frozen(kw_only=True)
class KnownFault:
    """A fault that a file may name.

    Attributes:
        name: As in the file.
        meaning: One sentence.
        parameters: By name.
        make: Makes it.
        on: Which requests it strikes where the file does not say, or None for every one.
        is_switch: Whether it is a switch of the phone page: a fault whose parameters are chosen.
    """

    name: str
    meaning: str
    parameters: Mapping[str, Parameter]
    make: Callable[..., Fault]
    on: str | None = None
    is_switch: bool = False

    def read(self, values: Mapping[str, object]) -> Fault:
        """Return the fault with the parameters of a file.

        Raises:
            ScriptFileError: One is unknown, missing, or not what it accepts.
        """
        for name in values:
            if name not in self.parameters:
                takes = ", ".join(self.parameters) or "nothing"
                raise ScriptFileError(f"unknown key {name!r}; {self.name} takes {takes}")
        given: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if name in values:
                given[name] = parameter.read(values[name])
            elif parameter.is_required:
                raise ScriptFileError(f"{name} is missing: {parameter.accepts}")
        return self.make(**given)


@attrs.frozen(kw_only=True)
class ScriptedRule:
    """One rule of a file.

    Attributes:
        faults: Strike together.
        names: Of the faults, as in the file.
        on: Which requests, or None for every one.
        times: How often at most, or None.
        probability: Of striking, or None for always.
    """

    faults: tuple[Fault, ...]
    names: tuple[str, ...]
    on: str | None = None
    times: int | None = None
    probability: float | None = None

    def __str__(self) -> str:
        if self.times is not None:
            often = "once" if self.times == 1 else f"{self.times} times"
        else:
            often = "once" if self.probability is None else "without end"
        chance = "" if self.probability is None or self.probability == 1 else f", with probability {self.probability:g}"
        return f"{' and '.join(self.names)} on {self.on or 'every request'}, {often}{chance}"


def _known_faults() -> dict[str, KnownFault]:
    known = {}
    for name, function in inspect.getmembers(fault_functions, inspect.isfunction):
        signature = inspect.signature(function, eval_str=True)
        if name.startswith("_") or signature.return_annotation is not Fault:
            continue
        parameters = {each.name: _parameter(each) for each in signature.parameters.values()}
        meaning = (inspect.getdoc(function) or "").partition("\n")[0]
        known[name] = KnownFault(name=name, meaning=meaning, parameters=MappingProxyType(parameters), make=function)
    for switch in SWITCHES:
        plain = KnownFault(
            name=switch.slug,
            meaning=switch.description,
            parameters=MappingProxyType({}),
            make=switch.fault,
            on=switch.on,
            is_switch=True,
        )
        # Where both have a name, they are the same fault.
        known.setdefault(switch.slug, plain)
    return known


def _parameter(parameter: inspect.Parameter) -> Parameter:
    words = get_args(parameter.annotation)  # of a Literal; of anything else, none
    kind = str if words else parameter.annotation
    return Parameter(name=parameter.name, type=kind, default=parameter.default, words=words)


KNOWN_FAULTS: Mapping[str, KnownFault] = MappingProxyType(_known_faults())
"""Every fault of `mobilemoney_async.sandbox.faults` by its name, and every switch of the phone page by its own."""


def read_script(path: Path) -> list[ScriptedRule]:
    """Return the rules of a file, all of them checked.

    Args:
        path: Of a TOML file.

    Raises:
        ScriptFileError: It cannot be read, is not TOML, or a rule is not what it should be: names the file, the line
            where it is known, and the rule.
    """
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except OSError as exc:
        raise ScriptFileError(f"{path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ScriptFileError(f"{path}: not UTF-8 text") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ScriptFileError(f"{path}: not TOML: {exc}") from exc
    tables = document.pop("rule", None)
    if document:
        raise ScriptFileError(f"{path}: unknown key {next(iter(document))!r}; a script is a list of [[rule]] tables")
    if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        raise ScriptFileError(f"{path}: no rule; a script is a list of [[rule]] tables")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    rules = []
    for index, table in enumerate(tables):
        try:
            rules.append(_read_rule(table))
        except ScriptFileError as exc:
            # Tables may be written otherwise than under headers; then only their number says which it is.
            line = f":{lines[index]}" if len(lines) == len(tables) else ""
            raise ScriptFileError(f"{path}{line}: rule {index + 1}: {exc}") from exc
    return rules


def play(rules: list[ScriptedRule], sandbox: Sandbox) -> None:
    """Let rules strike a sandbox's coming requests, in their order."""
    for rule in rules:
        sandbox.script(*rule.faults, on=rule.on, times=rule.times, probability=rule.probability)


def _read_rule(table: Mapping[str, Any]) -> ScriptedRule:
    settings = {name: table[name] for name in _RULE_KEYS if name in table}
    rest = {name: value for name, value in table.items() if name not in _RULE_KEYS}
    if "faults" in rest:
        several = rest.pop("faults")
        if rest:
            raise ScriptFileError(f"unknown key {next(iter(rest))!r} beside faults: each fault has its own parameters")
        if not isinstance(several, list) or not several or not all(isinstance(each, dict) for each in several):
            raise ScriptFileError('faults must be a list of tables, such as [{ fault = "truncated" }]')
        chosen = [_read_fault(each) for each in several]
    else:
        chosen = [_read_fault(rest)]
    settings = _read_settings(settings)
    if settings["on"] is None and len(chosen) == 1:
        settings["on"] = chosen[0][1].on
    rule = ScriptedRule(
        faults=tuple(fault for _, _, fault in chosen), names=tuple(name for name, _, _ in chosen), **settings
    )
    try:
        # The script's own checks: of `on` above all, which only the sandbox's routes can tell.
        make_rule(rule.faults, on=rule.on, times=rule.times)
    except ValueError as exc:
        raise ScriptFileError(str(exc)) from exc
    return rule


def _read_fault(table: Mapping[str, Any]) -> tuple[str, KnownFault, Fault]:
    """Return a fault of a file: with its parameters as they stand there, as it is known, and made."""
    values = dict(table)
    name = values.pop("fault", None)
    if not isinstance(name, str) or name not in KNOWN_FAULTS:
        said = "fault is missing" if name is None else f"unknown fault {name!r}"
        close = difflib.get_close_matches(str(name), KNOWN_FAULTS, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        functions = ", ".join(known.name for known in KNOWN_FAULTS.values() if not known.is_switch)
        raise ScriptFileError(
            f"{said}; {guess}known are {functions}, and the switches that mobilemoney sandbox script --list shows"
        )
    try:
        fault = KNOWN_FAULTS[name].read(values)
    except ValueError as exc:
        raise ScriptFileError(f"{name}: {exc}") from exc
    shown = ", ".join(f"{key}={_toml(value)}" for key, value in values.items())
    return (f"{name}({shown})" if shown else name), KNOWN_FAULTS[name], fault


def _read_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    on, times, probability = (table.get(name) for name in _RULE_KEYS)
    if on is not None and not isinstance(on, str):
        raise ScriptFileError('on must be a text, such as "POST c2b"')
    if times is not None and (not _is_number(times, int) or times < 1):
        raise ScriptFileError("times must be a whole number, 1 or more")
    if probability is not None and not (_is_number(probability, float) and probability <= 1):
        raise ScriptFileError("probability must be a number from 0 to 1")
    return {"on": on, "times": times, "probability": probability}


def _is_number(value: object, kind: type) -> bool:
    """Return whether a value of a file is a number of this kind, finite and not negative."""
    allowed = int if kind is int else (int, float)
    return isinstance(value, allowed) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _toml(value: object) -> str:
    return json.dumps(value)  # what TOML's scalars have in common with JSON's: booleans, numbers, quotes
