"""Errors of a login as text for the database, so that another process raises the same. Pure.

Errors carry no secret, so neither does the text. Their causes stay where they happened.
"""

from __future__ import annotations

import json

from mobilemoney_async import errors
from mobilemoney_async.errors import MobileMoneyError


def dump_login_error(error: MobileMoneyError) -> str:
    """Return an error as text: its class, its arguments and its attributes as far as JSON knows them."""
    said = {
        "type": type(error).__name__,
        "args": [str(each) for each in error.args],
        "attributes": {name: value for name, value in vars(error).items() if _is_plain(value)},
    }
    return json.dumps(said)


def load_login_error(text: str) -> MobileMoneyError:
    """Return the error that a text was made of; of a class or text that is not known here, one that says only that."""
    try:
        said = json.loads(text)
        kind = getattr(errors, said["type"])
        error: MobileMoneyError = kind.__new__(kind)
        error.args = tuple(str(each) for each in said["args"])
        vars(error).update(said["attributes"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return MobileMoneyError("the login failed in another process")
    return error if isinstance(error, MobileMoneyError) else MobileMoneyError("the login failed in another process")


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)
