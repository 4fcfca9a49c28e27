"""Rows of the store, made past its own code."""

from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async import TransactionStatus
from mobilemoney_async.database.schema import unmatched
from mobilemoney_async.payments.records.record import PaymentState, stops_kind
from tests.contract.test_models import PENDING
from tests.support.databases import execute
from tests.support.fakes import NOON

SEEN = attrs.evolve(
    PENDING,
    id="tx-1",
    reference="REF-1",
    external_id="order/7",
    phone_number="+255780000789",
    status=TransactionStatus.FAILED,
    created_at=NOON,
)


def edit(url: str, change: sa.Executable) -> None:
    """Change a database as someone at its console does."""
    execute(url, change)


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
    values.setdefault("stops_kind", stops_kind(PaymentState(values["state"]), values["type"]))
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO mobilemoney_payment_records ({names}) VALUES ({marks})"), values)


def insert_line(connection: sa.Connection, state: str = "open", **changes: Any) -> None:
    """Insert an unmatched transaction; with the state "claimed" one that a payment, which is inserted too, owns."""
    values: dict[str, Any] = {
        "account": "default",
        "transaction_id": "tx-1",
        "type": "collection",
        "amount": "1000",
        "shown_number": "+25578***0789",
        "status": "SUCCESS",
        "explained_at": NOON if state == "explained" else None,
        "is_lost": False,
    }
    values |= dict.fromkeys(("created_at", "first_seen_at", "due_at", "changed_at", "told_at"), NOON) | changes
    connection.execute(unmatched.insert().values(**values))
    if state == "claimed":
        name = values["transaction_id"]
        insert_payment(connection, account=values["account"], key=name, state="FINAL", transaction_id=name)
