"""Rows and tables of the store, made past its own code: those of today, and those of older releases."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mobilemoney_async import Network, Transaction, TransactionStatus, TransactionType
from tests.support.fakes import NOON

SEEN = Transaction(
    id="tx-1",
    reference="REF-1",
    external_id="order/7",
    type=TransactionType.COLLECTION,
    amount=Decimal(1000),
    currency="TZS",
    phone_number="+255780000789",
    network=Network.AIRTEL_MONEY,
    status=TransactionStatus.FAILED,
    created_at=NOON,
)


def insert_payment(connection: sa.Connection, table: str = "mobilemoney_payment_records", **changes: Any) -> None:
    """Insert a row with changed values, past the journal."""
    values: dict[str, Any] = {
        "account": "default",
        "key": "order-1",
        "type": "collection",
        "phone_number": "+255780000789",
        "amount": "1000",
        "extra_digest": "",
        "state": "UNKNOWN",
        "attempt": 1,
        "created_at": "2026-01-02 12:00:00",
        "changed_at": "2026-01-02 12:00:00",
        "is_adopted": False,
        "walks": 0,
        **({"priority": 0} if table == "mobilemoney_payment_records" else {}),
    }
    values |= changes
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)


OLD = ["version 1", "version 2"]


def make_old_tables(connection: sa.Connection, which: str) -> None:
    """Make the tables as an older release made them, or migrated them; to version 2 in four statements."""
    scripts = [f"version_1.{connection.dialect.name}.sql", *(["version_2.sql"] if which == "version 2" else [])]
    for script in scripts:
        text = Path(__file__).with_name(script).read_text(encoding="utf-8")
        for statement in text.split(";\n"):
            connection.execute(sa.text(statement or "SELECT 1"))


def insert_old(connection: sa.Connection, *entries: str, **values: Any) -> None:
    """Insert a payment of version 1 or 2, with entries of its history."""
    insert_payment(connection, "mobilemoney_payments", **values)
    number = connection.execute(sa.text("SELECT max(id) FROM mobilemoney_payments")).scalar_one()
    moment = "'2026-01-02 12:00:00'"
    entry = f"INSERT INTO mobilemoney_history (payment_id, at, what, source) VALUES (:id, {moment}, :what, 'poll')"
    for what in entries:
        connection.execute(sa.text(entry), {"id": number, "what": what})
