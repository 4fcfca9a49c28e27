"""Side fields that an answer does not show, or shows as something else: each is said once a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class SideFields(NamedTuple):
    """Side fields of an answer.

    Attributes:
        shown: Those which the contract shows always: that one is missing is noted, too.
        otherwise: Values in place of fields that cannot be read, where these are neither None nor the default.
    """

    shown: tuple[str, ...] = ()
    otherwise: Mapping[str, Any] = {}


ANSWERS: dict[Any, SideFields] = {}
"""Bodies of the service, and the objects in them, that are read by their core fields; the models add theirs."""

# Fields of the contract with the kinds of value below: a service cannot fill our memory.
_noted: set[tuple[str, str, str]] = set()
_unsaid: list[tuple[str, str, str]] = []


def note(owner: str, field: str, value: object) -> None:
    """Note that a field cannot be read, for the log; each field and kind of value once."""
    noted = (owner, field, _kind_of(value))
    if noted not in _noted:
        _noted.add(noted)
        _unsaid.append(noted)


def forget_unsaid() -> None:
    """Forget the notes that the log does not have yet: what was read is no such answer."""
    _noted.difference_update(_unsaid)
    _unsaid.clear()


def take_unsaid() -> list[str]:
    """Return the sentences that the log does not have yet. None of them shows a value."""
    if not _unsaid:
        return []
    said = "{}.{} cannot be read in an answer of the service, and counts as missing: it is {}"
    taken = [said.format(*noted) for noted in _unsaid]
    _unsaid.clear()
    return taken


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "missing or null"
        case bool():
            return "true or false"
        case str():
            return "another text" if value else "an empty text"
        case Mapping():
            return "an object"
        case list():
            return "a list"
        case _:
            return "a number"
