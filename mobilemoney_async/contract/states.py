"""Enums of the contract, to which values may be added, and its final states (contract, section 3).

Invariant: a status is final only by the contract's table for that type of transaction. A value that the
contract does not list keeps its text and is never taken for final.
"""

from __future__ import annotations

import enum
from typing import Any, Self

from mobilemoney_async.text import shown_text
from mobilemoney_async.values import refuse


class OpenEnum(str, enum.Enum):
    """String enum that takes unknown values: they keep their text, compare equal to it, and pickle."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        # Not registered with the enum: a service that invents values must not fill our memory.
        return str.__new__(cls, value)._unregistered(value)

    def _unregistered(self, value: str) -> Self:
        self._name_, self._value_ = repr(shown_text(value))[1:-1], value
        return self

    def __reduce_ex__(self, protocol: object) -> tuple[type[Self], tuple[str]]:
        # Early releases of Python 3.11 copy and pickle a member by its name, which others than the contract's lack.
        return type(self), (str(self.value),)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {shown_text(self.value)!r}>"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def is_known(self) -> bool:
        """True if the contract lists this value."""
        return type(self).__members__.get(self.name) is self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"title": cls.__name__, "description": cls.__doc__ or "", **open_schema(cls)}


def open_schema(cl: type[OpenEnum]) -> dict[str, Any]:
    """Return the JSON Schema of any text, for the service may add values."""
    listed = [str(each) for each in cl]
    return {"anyOf": [{"enum": listed}, {}], "type": "string", "examples": listed}


class TransactionStatus(OpenEnum):
    """State of a transaction."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"


class TransactionType(OpenEnum):
    """Type of a transaction: money asked for or sent."""

    COLLECTION = "collection"
    DISBURSEMENT = "disbursement"


class Network(OpenEnum):
    """Mobile-money network."""

    AIRTEL_MONEY = "airtel_money"


_FINAL: dict[str, frozenset[str]] = {
    TransactionType.COLLECTION: frozenset(
        {TransactionStatus.SUCCESS, TransactionStatus.FAILED, TransactionStatus.TIMEOUT}
    ),
    TransactionType.DISBURSEMENT: frozenset(
        {TransactionStatus.SUCCESS, TransactionStatus.FAILED, TransactionStatus.INSUFFICIENT_FUNDS}
    ),
}
# Of a type that the contract does not list, only the states that are final for both listed types are final.
_FINAL_FOR_ANY_TYPE = frozenset.intersection(*_FINAL.values())


_INITIAL: dict[str, TransactionStatus] = {
    TransactionType.COLLECTION: TransactionStatus.PENDING,
    TransactionType.DISBURSEMENT: TransactionStatus.PROCESSING,
}


def initial_status(transaction_type: str) -> TransactionStatus:
    """Return the state in which a transaction begins, and which its acknowledgement shows (sections 3, 4.1, 4.2)."""
    return _INITIAL[transaction_type]


def require_type(value: object) -> TransactionType:
    """Return the type that is asked for, in upper or lower case, or raise `InvalidRequest`.

    Another one would find nothing, as if there were no such payments.
    """
    for each in TransactionType:
        if isinstance(value, str) and value.lower() == each:
            return each
    raise refuse("type", "collection or disbursement", value)


def is_final(transaction_type: str, status: str) -> bool:
    """Return whether a transaction of this type no longer changes its state."""
    return status in _FINAL.get(transaction_type, _FINAL_FOR_ANY_TYPE)
