"""Rows of the store, made past its own code."""

from decimal import Decimal
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


def edit(url: str, change: sa.Executable) -> None:
    """Change a database as someone at its console does."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(change)
    engine.dispose()


def insert_payment(connection: sa.Connection, **changes: Any) -> None:
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
        "priority": 0,
    }
    values |= changes
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO mobilemoney_payment_records ({names}) VALUES ({marks})"), values)
