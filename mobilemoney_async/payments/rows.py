"""The rows of payments: how one is found, changed and read. Used by `bookkeeping` only.

The statements are made once: making one costs SQLAlchemy as much as SQLite takes to execute it, several times for each
create. What differs from call to call is a bound parameter.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.database.schema import IS_UNIDENTIFIED, history, payments
from mobilemoney_async.database.serialization import load_transaction
from mobilemoney_async.payments.records import PaymentRecord, PaymentRequest, PaymentState

_columns = payments.c
_of_account = sa.select(payments).where(_columns.account == sa.bindparam("of_account"))

_BY_KEY = _of_account.where(_columns.key == sa.bindparam("of_key"))
_BY_KEY_LOCKED = _BY_KEY.with_for_update()
_BY_TRANSACTION = _of_account.where(_columns.transaction_id == sa.bindparam("of_transaction"))
_BY_TRANSACTION_LOCKED = _BY_TRANSACTION.with_for_update()
_TWIN = _of_account.where(
    _columns.type == sa.bindparam("of_type"),
    _columns.phone_number == sa.bindparam("of_phone_number"),
    _columns.amount == sa.bindparam("of_amount"),
    _columns.key != sa.bindparam("of_key"),
    IS_UNIDENTIFIED,
)
_UPDATE = payments.update().where(_columns.id == sa.bindparam("of_id")).returning(payments)
_INSERT = {
    name: dialect.insert(payments).on_conflict_do_nothing().returning(_columns.id)
    for name, dialect in (("postgresql", postgresql), ("sqlite", sqlite))
}
_NOTE = history.insert().inline()
_OWNER = sa.select(_columns.key).where(
    _columns.account == sa.bindparam("of_account"), _columns.transaction_id == sa.bindparam("of_transaction")
)


def by_key(connection: sa.Connection, account: str, key: str, *, lock: bool = False) -> sa.Row[Any] | None:
    """Return the row of a key."""
    statement = _BY_KEY_LOCKED if lock else _BY_KEY
    return connection.execute(statement, {"of_account": account, "of_key": key}).one_or_none()


def by_transaction(
    connection: sa.Connection, account: str, transaction_id: str, *, lock: bool = False
) -> sa.Row[Any] | None:
    """Return the row that has claimed a transaction."""
    statement = _BY_TRANSACTION_LOCKED if lock else _BY_TRANSACTION
    return connection.execute(statement, {"of_account": account, "of_transaction": transaction_id}).one_or_none()


def owner(connection: sa.Connection, account: str, transaction_id: str) -> str | None:
    """Return the key of the payment that has claimed a transaction."""
    key: str | None = connection.execute(
        _OWNER, {"of_account": account, "of_transaction": transaction_id}
    ).scalar_one_or_none()
    return key


def twin(connection: sa.Connection, account: str, order: PaymentRequest) -> sa.Row[Any] | None:
    """Return the row of the unidentified payment of the same kind under another key."""
    kind = {
        "of_account": account,
        "of_type": str(order.type),
        "of_phone_number": order.phone_number,
        "of_amount": order.amount,
        "of_key": order.key,
    }
    return connection.execute(_TWIN, kind).one_or_none()


def insert(connection: sa.Connection, values: dict[str, Any]) -> int | None:
    """Make a row and return its number, or None where a unique index does not allow it."""
    made: int | None = connection.execute(_INSERT[connection.dialect.name], values).scalar_one_or_none()
    return made


def update(connection: sa.Connection, payment_id: int, values: dict[str, Any]) -> sa.Row[Any]:
    """Change a row and return it as it is then."""
    return connection.execute(_UPDATE, {"of_id": payment_id, **values}).one()


def note(connection: sa.Connection, entry: dict[str, Any]) -> None:
    """Add an entry to the history."""
    connection.execute(_NOTE, entry)


def read(row: sa.Row[Any]) -> PaymentRecord:
    """Return what a row says."""
    return PaymentRecord(
        key=row.key,
        type=TransactionType(row.type),
        phone_number=row.phone_number,
        amount=Decimal(row.amount),
        state=PaymentState(row.state),
        attempt=row.attempt,
        created_at=row.created_at,
        changed_at=row.changed_at,
        sent_at=row.sent_at,
        ended_at=row.ended_at,
        stale_at=row.stale_at,
        transaction_id=row.transaction_id,
        reference=row.reference,
        status=None if row.status is None else TransactionStatus(row.status),
        transaction=None if row.transaction is None else load_transaction(row.transaction),
        candidates=() if row.candidates is None else tuple(json.loads(row.candidates)),
        is_adopted=bool(row.is_adopted),
        walks=row.walks,
        error=row.error,
        external_id=row.external_id,
    )
