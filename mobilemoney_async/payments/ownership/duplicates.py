"""Guard of the payments that begin against those that may be made already, in the transaction of `Beginning`.

What stops a payment:

1. a payment of its kind under another key that may exist (`records.stops_kind`), which the unique index finds; or a
   disbursement of its kind that had failed and is shown as paid, until someone decides;
2. an unmatched transaction of its kind from a time that the store has forgotten;
3. of disbursements, a surplus one of its kind that fits a payment ever made, for a day;
4. with ``sole_writer=True``, any surplus one of its kind: a collection for an hour, a disbursement for a day.

For the last three the check is a part of the statement that begins the payment, since each create pays for it. What
that finds is looked at once more: an open attempt may have made it (`unmatched.surplus`).

The key of the digests is a secret of the database, made with the account's first payment: so all processes have the
same one, whether or not their stores have a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs
import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.database.engine import timeline
from mobilemoney_async.database.schema import IS_CONTRADICTED, accounts, payments, unmatched
from mobilemoney_async.errors import DuplicateSuspected
from mobilemoney_async.payments.ownership.matching import Match, PaymentQuery, match
from mobilemoney_async.payments.ownership.searches import begin_life
from mobilemoney_async.payments.ownership.surplus import open_attempts, surplus
from mobilemoney_async.payments.records.journal import HAS_TURNED, Journal
from mobilemoney_async.payments.records.next_steps import forgotten_step, next_step, unclaimed_step
from mobilemoney_async.payments.records.queries import owners
from mobilemoney_async.payments.records.reasons import OTHERS_PAY
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentRequest, PaymentState
from mobilemoney_async.payments.records.rows import digest, new_number_key
from mobilemoney_async.payments.records.statements import OF_ACCOUNT, account_column
from mobilemoney_async.payments.records.unmatched import (
    FAILED,
    IS_OPEN,
    MAY_HAVE_PAID,
    explained,
    find_lines,
    lines_of,
)

# For how long after its first sighting a surplus transaction stops other payments of its kind.
_STOPS = {TransactionType.COLLECTION: timedelta(hours=1), TransactionType.DISBURSEMENT: timedelta(days=1)}

_columns = unmatched.c
_STOPS_FOR_A_WHILE = sa.and_(
    _columns.first_seen_at > sa.bindparam("of_seen_since"),
    sa.or_(
        sa.bindparam("of_strict", type_=sa.Boolean),
        sa.and_(sa.bindparam("of_payout", type_=sa.Boolean), _columns.fits_key.is_not(None)),
    ),
)
_others = sa.exists().where(accounts.c.account == OF_ACCOUNT, accounts.c.others_until > sa.bindparam("of_now"))
# Where other systems pay too, what they made in a lost time stops no collection, unless payments are lost for certain.
_STOPS_AS_LOST = sa.and_(
    _columns.is_lost,
    sa.or_(
        sa.bindparam("of_strict", type_=sa.Boolean),
        sa.bindparam("of_payout", type_=sa.Boolean),
        _columns.went_backwards,
        ~_others,
    ),
)


def _suspects(*where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    of_kind = (_columns.type == sa.bindparam("of_type"), _columns.amount == sa.bindparam("of_amount"))
    is_guarded = sa.bindparam("of_guarded", type_=sa.Boolean)
    here = (_columns.account == OF_ACCOUNT, *where, *of_kind, MAY_HAVE_PAID, IS_OPEN, is_guarded)
    return sa.select(_columns.transaction_id).where(*here).limit(1)


_of_number = _suspects(
    _columns.number_digest == sa.bindparam("of_digest"), sa.or_(_STOPS_AS_LOST, _STOPS_FOR_A_WHILE)
).order_by(_columns.is_lost.desc(), _columns.first_seen_at)
# A row with a part of its number fits no payment that is known, and lost ones were compared before. In one subquery
# with the others, in an order, or by a bare time, it would be found by reading many lines of the account.
_in_part = _suspects(
    _columns.number_digest.is_(None),
    ~_columns.is_lost,
    sa.func.coalesce(_columns.first_seen_at, _columns.first_seen_at) > sa.bindparam("of_seen_since"),
)
_either = sa.func.coalesce(_of_number.scalar_subquery(), _in_part.scalar_subquery())
# Two, as psycopg reads a statement of more than 4,096 characters again each time: the longer one has a few less, by a
# short alias.
SUSPECT: Mapping[bool, sa.Label[Any]] = {
    False: _of_number.scalar_subquery().label("suspect"),
    True: _either.label("suspect"),
}
"""Unmatched transaction that a payment may be, as a column of another statement, by `DuplicateGuard.is_strict`; its
parameters are `DuplicateGuard.parameters`."""

NUMBER_KEY: sa.Label[Any] = account_column("number_key")
"""The account's secret key of the digests, as a column of another statement."""

_earlier = payments.alias("earlier")
TURNED: sa.Label[Any] = (
    sa.select(_earlier.c.key)
    .where(
        _earlier.c.account == OF_ACCOUNT,
        _earlier.c.type == sa.bindparam("of_type"),
        _earlier.c.amount == sa.bindparam("of_amount"),
        _earlier.c.phone_number.in_([sa.bindparam("of_phone_number"), sa.bindparam("of_erased")]),
        _earlier.c.cause == HAS_TURNED[0],
        _earlier.c.about == HAS_TURNED[1],
        IS_CONTRADICTED,
        sa.bindparam("of_payout", type_=sa.Boolean),
    )
    .limit(1)
    .scalar_subquery()
    .label("turned")
)
"""Disbursement of the kind that had failed and is shown as paid, until someone decides, as a column like `SUSPECT`."""


@attrs.define(eq=False)
class DuplicateGuard:
    """Guard of one account's payments.

    Attributes:
        sole_writer: As for `SQLStore`.
    """

    sole_writer: bool | None = None
    _key: str | None = attrs.field(default=None, init=False, repr=False)

    def parameters(self, journal: Journal, request: PaymentRequest, now: datetime) -> Mapping[str, Any]:
        """Return the parameters of `SUSPECT` and `TURNED` for a payment; note the time of the account's first one."""
        number = digest(self._key or self.begin(journal, now), request.phone_number)
        return {
            "of_account": journal.account,
            "of_phone_number": request.phone_number,
            "of_erased": f"{ERASED}{number}",
            "of_digest": number,
            "of_type": str(request.type),
            "of_amount": request.amount,
            "of_now": now,
            "of_seen_since": now - _STOPS[request.type],
            "of_strict": self.is_strict,
            "of_payout": request.type == TransactionType.DISBURSEMENT,
            "of_guarded": self.sole_writer is not False,
        }

    @property
    def is_strict(self) -> bool:
        """Whether every payment of the merchant's is the store's."""
        return self.sole_writer is True

    def has(self, number_key: str | None) -> bool:
        """Return whether the key of the digests is the account's; forget one that is not."""
        is_own = self._key in {None, number_key}
        self._key = self._key if is_own else None
        return is_own

    def begin(self, journal: Journal, now: datetime) -> str:
        """Return the account's secret key of the digests; note the time of its first payment if this is that."""
        row = journal.find_account()
        if row is not None and None not in (row.first_record_at, row.number_key):
            # Kept once it is committed: this transaction may be rolled back.
            self._key = str(row.number_key)
            return self._key
        row = journal.lock_account()
        begin_life(journal, now, now)
        key = str(row.number_key or new_number_key())
        first = {"first_record_at": now, "timeline": timeline(journal.connection)}
        journal.change_locked_account(number_key=key, **(first if row.first_record_at is None else {}))
        return key

    def require_unsuspected(
        self, journal: Journal, request: PaymentRequest, suspect: str | None, checks: Mapping[str, Any]
    ) -> None:
        """Raise `DuplicateSuspected` if a payment may be an unmatched transaction.

        Args:
            journal: In the transaction that begins the payment.
            request: The payment.
            suspect: What `SUSPECT` has found.
            checks: Its parameters.
        """
        if suspect is None:
            return
        if any(each.shown.is_gap for each in lines_of(journal, [suspect]).values()):
            raise lost_payment_error(suspect, request.key)
        of_kind = [_columns[name] == checks[f"of_{name}"] for name in ("type", "amount")]
        may_fit = sa.or_(_columns.number_digest == checks["of_digest"], _columns.number_digest.is_(None))
        lines = find_lines(journal, *of_kind, may_fit, IS_OPEN)
        lines = [each for each in lines if each.shows_number_of(request, checks["of_digest"])]
        attempts = [each for each in open_attempts(journal) if each.key != request.key]
        for line in surplus(lines, attempts, self._key or journal.number_key()):
            is_new = line.shown.first_seen_at > checks["of_seen_since"] and line.shown.status not in FAILED
            if is_new and (self.is_strict or line.shown.fits_key is not None):
                raise DuplicateSuspected(
                    f"transaction {line.id} at the service has the same type, amount and phone number, and no payment "
                    "claims it: nothing was sent, since this one may be made already. Explain it only if it is "
                    f"another. {unclaimed_step(line.shown)}",
                    transaction_id=line.id,
                )


def lost_payment_error(transaction_id: str, key: str, why: str = "The store has forgotten it") -> DuplicateSuspected:
    """Return the error for a payment that may be a transaction which the store has forgotten, or may have."""
    return DuplicateSuspected(
        f"transaction {transaction_id} at the service may be this payment: nothing was sent. "
        f"{forgotten_step(transaction_id, key, why)} (if other systems of yours pay too, say so: {OTHERS_PAY})",
        transaction_id=transaction_id,
    )


def require_remembered(journal: Journal, request: PaymentRequest, *, has_others: bool = False) -> None:
    """Raise `DuplicateSuspected` for a forgotten transaction that shows a part of its number only, or no known type.

    Those that show both are compared in the statement that begins the payment. If other systems pay too, a collection
    is stopped only by what is lost for certain.
    """
    is_partial = sa.or_(_columns.number_digest.is_(None), _columns.type.not_in([*map(str, TransactionType)]))
    is_spared = has_others and request.type == TransactionType.COLLECTION
    here = (_columns.is_lost, IS_OPEN, _columns.amount == request.amount, MAY_HAVE_PAID)
    is_certain = _columns.went_backwards if is_spared else sa.true()
    of_number = digest(journal.number_key(), request.phone_number)
    for line in find_lines(journal, *here, is_partial, is_certain):
        if line.is_of(request, of_number):
            raise lost_payment_error(line.id, request.key)


def require_placed(journal: Journal, request: PaymentRequest, now: datetime, rows: Iterable[Transaction]) -> None:
    """Raise `DuplicateSuspected` for one of some rows that may be the payment, unless it is owned or explained by now.

    They may be of a time that the store has lost, and nothing shows the service's clock: no machine can tell.
    """
    query = PaymentQuery(
        type=request.type, phone_number=request.phone_number, amount=request.amount, sent_at=now, ended_at=now
    )
    ids = [row.id for row in rows if match(query, row) is not Match.NONE]
    decided = {*owners(journal, ids), *explained(journal, ids)}
    for name in ids:
        if name not in decided:
            raise lost_payment_error(name, request.key, "The store may have forgotten it")


def duplicate_suspected(duplicate: PaymentRecord) -> DuplicateSuspected:
    """Return the error for a payment with an unidentified duplicate."""
    state = "on its way" if duplicate.state is PaymentState.SENDING else str(duplicate.state)
    step: object = "This one may be sent once that one is found or confirmed absent."
    if duplicate.state is PaymentState.FINAL:
        step = next_step(duplicate, duplicate.changed_at)
    return DuplicateSuspected(
        f"a {duplicate.type} of the same amount for the same phone number is {state} under the key {duplicate.key!r}: "
        f"nothing was sent. {step}",
        other_key=duplicate.key,
    )
