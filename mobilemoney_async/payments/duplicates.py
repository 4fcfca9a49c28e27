"""Guard of the payments that begin against those that may be made already, in the transaction of `Journal.begin`.

Duplicates are unidentified payments of the same kind, which the unique index finds, and transactions in the service's
list that no payment claims (`payments.unclaimed`). For these the check is a part of the statement that begins the
payment, since each create pays for it.

Numbers of unclaimed transactions are kept as digests. Their key is a secret of the database, made with the account's
first payment: so all processes have the same one, whether or not their stores have a key.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import same_number
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.schema import accounts, insert_missing, unclaimed
from mobilemoney_async.errors import DuplicateSuspected
from mobilemoney_async.payments.records import CLAIMED, OPEN, PaymentRecord, PaymentRequest, PaymentState

# For how long after its first sighting an unclaimed transaction stops other payments of its kind.
_STOPS = {TransactionType.COLLECTION: timedelta(hours=1), TransactionType.DISBURSEMENT: timedelta(days=1)}

_FAILED = ("FAILED", "TIMEOUT", "INSUFFICIENT_FUNDS")
# Digits of a masked number that rule out others.
_TELLING = 4

_columns = unclaimed.c
_STOPS_FOR_A_WHILE = sa.and_(
    _columns.state == OPEN,
    _columns.first_seen_at > sa.bindparam("of_seen_since"),
    sa.or_(_columns.fits_key.is_not(None), sa.bindparam("of_strict", type_=sa.Boolean)),
)
SUSPECT: sa.ColumnElement[str | None] = (
    sa.select(_columns.transaction_id)
    .where(
        _columns.account == sa.bindparam("of_account"),
        _columns.number_digest == sa.bindparam("of_digest"),
        _columns.type == sa.bindparam("of_type"),
        _columns.amount == sa.bindparam("of_amount"),
        # What a store that was behind has forgotten stops for as long as no payment claims it.
        sa.or_(_STOPS_FOR_A_WHILE, sa.and_(_columns.is_gap, _columns.state != CLAIMED)),
        sa.bindparam("of_guarded", type_=sa.Boolean),
    )
    .order_by(_columns.first_seen_at)
    .limit(1)
    .scalar_subquery()
    .label("suspect")
)
"""Unclaimed transaction that a payment may be, as a column of another statement; see `DuplicateGuard.parameters`."""

_ACCOUNT = sa.select(accounts.c.first_record_at, accounts.c.number_key).where(
    accounts.c.account == sa.bindparam("of_account")
)


@attrs.define(eq=False)
class DuplicateGuard:
    """Guard of one account's payments.

    Attributes:
        account: The account.
        sole_writer: As for `SQLStore`.
    """

    account: str
    sole_writer: bool | None = None
    _key: str | None = attrs.field(default=None, init=False, repr=False)

    def parameters(self, connection: sa.Connection, request: PaymentRequest, now: datetime) -> Mapping[str, Any]:
        """Return the parameters of `SUSPECT` for a payment that begins; note the time of the account's first one."""
        key = self._key or self.number_key(connection, now)
        return {
            "of_account": self.account,
            "of_digest": digest(key, request.phone_number),
            "of_type": str(request.type),
            "of_amount": request.amount,
            "of_seen_since": now - _STOPS[request.type],
            "of_strict": self.sole_writer is True,
            "of_guarded": self.sole_writer is not False,
        }

    def number_key(self, connection: sa.Connection, now: datetime) -> str:
        """Return the account's secret key of the digests; make it, and note the time, if it has none."""
        here = {"of_account": self.account}
        row = connection.execute(_ACCOUNT, here).one_or_none()
        if row is not None and None not in row:
            # Kept once it is committed: this transaction may be rolled back.
            self._key = str(row.number_key)
            return self._key
        new = {"first_record_at": now, "number_key": secrets.token_hex(32)}
        if row is None:
            connection.execute(insert_missing(accounts, connection.dialect.name), {"account": self.account})
        missing = {name: sa.func.coalesce(accounts.c[name], value) for name, value in new.items()}
        noted = accounts.update().where(accounts.c.account == self.account).values(missing)
        return str(connection.execute(noted.returning(accounts.c.number_key)).scalar_one())


def digest(key: str, phone_number: str) -> str:
    """Return the digest of a number, ``+`` and digits, under the key of its account."""
    return hmac.digest(key.encode(), phone_number.encode(), "sha256").hex()


def claim(connection: sa.Connection, account: str, transaction_id: str, at: datetime) -> None:
    """Note that a payment claims a transaction, if it is among the unclaimed ones."""
    here = (_columns.account == account, _columns.transaction_id == transaction_id)
    connection.execute(unclaimed.update().where(*here).values(state=CLAIMED, changed_at=at))


def forgotten(transaction_id: str) -> DuplicateSuspected:
    """Return the error for a payment that may be a transaction which the store has forgotten."""
    return DuplicateSuspected(
        f"the store has forgotten payments, and transaction {transaction_id} at the service may be this one: nothing "
        f"was sent; import it under its key with: mobilemoney payments recover KEY={transaction_id} --note TEXT (if "
        "other systems of yours pay too, use SQLStore(..., sole_writer=False))",
        transaction_id=transaction_id,
    )


def require_remembered(connection: sa.Connection, account: str, request: PaymentRequest) -> None:
    """Raise `DuplicateSuspected` for a forgotten transaction that shows a part of its number only, or no known type.

    Those that show both are compared in the statement that begins the payment.
    """
    is_partial = sa.or_(_columns.number_digest.is_(None), _columns.type.not_in([*map(str, TransactionType)]))
    rows = connection.execute(
        sa.select(unclaimed).where(
            _columns.account == account,
            _columns.is_gap,
            _columns.state != CLAIMED,
            _columns.amount == request.amount,
            _columns.status.not_in(_FAILED),
            is_partial,
        )
    )
    for row in rows:
        is_other = row.type != request.type and row.type in set(TransactionType)
        shows_little = sum(map(str.isdigit, row.shown_number)) < _TELLING
        if not is_other and (shows_little or same_number(row.shown_number, request.phone_number) is not None):
            raise forgotten(row.transaction_id)


def require_unsuspected(connection: sa.Connection, account: str, transaction_id: str | None) -> None:
    """Raise `DuplicateSuspected` if there is an unclaimed transaction that a payment may be."""
    if transaction_id is not None:
        here = (_columns.account == account, _columns.transaction_id == transaction_id)
        if connection.execute(sa.select(_columns.is_gap).where(*here)).scalar_one():
            raise forgotten(transaction_id)
        raise DuplicateSuspected(
            f"transaction {transaction_id} at the service has the same type, amount and phone number, and no payment "
            "of this store claims it: nothing was sent, since the payment may be made already; if it is not, say what "
            f"the transaction is with payments.explain({transaction_id!r}, note=…), and try again",
            transaction_id=transaction_id,
        )


def duplicate_suspected(duplicate: PaymentRecord) -> DuplicateSuspected:
    """Return the error for a payment with an unidentified duplicate."""
    state = "on its way" if duplicate.state is PaymentState.SENDING else str(duplicate.state)
    return DuplicateSuspected(
        f"a {duplicate.type} of the same amount for the same phone number is {state} under the key {duplicate.key!r}: "
        "nothing was sent; this one may be sent once that one is found or confirmed absent",
        other_key=duplicate.key,
    )
