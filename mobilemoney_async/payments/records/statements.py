"""Statements of the journal about one payment, built once.

Building one costs SQLAlchemy as much as SQLite takes to run it, several times for each create. Values that differ from
call to call are bound parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.database.schema import STOPS_KIND, accounts, changes, history, payments
from mobilemoney_async.payments.records.record import PaymentEvent

_columns = payments.c
OF_ACCOUNT, OF_KEY = sa.bindparam("of_account", type_=sa.Text), sa.bindparam("of_key", type_=sa.Text)
PAYMENTS = sa.select(payments).where(_columns.account == OF_ACCOUNT)
BY_KEY = PAYMENTS.where(_columns.key == OF_KEY)
BY_KEY_LOCKED = BY_KEY.with_for_update()
BY_KEY_IF_FREE = BY_KEY.with_for_update(skip_locked=True)
ACCOUNT = sa.select(accounts).where(accounts.c.account == OF_ACCOUNT)
CHANGE_ACCOUNT = accounts.update().where(accounts.c.account == OF_ACCOUNT)


def account_column(name: str) -> sa.Label[Any]:
    """Return a column of the account `of_account`, None before its first payment, as one of another statement."""
    return ACCOUNT.with_only_columns(accounts.c[name]).scalar_subquery().label(f"account_{name}")


DUPLICATE = PAYMENTS.where(
    _columns.type == sa.bindparam("of_type"),
    _columns.phone_number == sa.bindparam("of_phone_number"),
    _columns.amount == sa.bindparam("of_amount"),
    _columns.key != OF_KEY,
    STOPS_KIND,
)
DUPLICATE_KEY = DUPLICATE.with_only_columns(_columns.key).limit(1).scalar_subquery().label("duplicate")
CONFLICTS: Sequence[sa.Label[Any]] = (
    BY_KEY.with_only_columns(_columns.state).scalar_subquery().label("used"),
    DUPLICATE_KEY,
)
"""Records of the same key and of the payment that stops its kind, not None if there is one, as columns of another
statement; see `Journal.kind`."""
_owner = payments.alias()
OWNER = (
    sa.select(_owner.c.key)
    .where(_owner.c.account == OF_ACCOUNT, _owner.c.transaction_id == sa.bindparam("of_transaction"))
    .scalar_subquery()
    .label("owner")
)
# The columns that decide about an event of a payment.
SAVED = (
    sa.select(
        *(_columns[name] for name in ("key", "type", "phone_number", "amount", "state", "attempt", "status")),
        *(_columns[name] for name in ("ended_at", "transaction_id", "is_adopted", "batch", "previous_key", "next_key")),
        _columns.stops_kind,
        OWNER,
    )
    .where(_columns.account == OF_ACCOUNT, _columns.key == OF_KEY)
    .with_for_update()
)
CHANGE = payments.update().where(_columns.account == OF_ACCOUNT, _columns.key == OF_KEY)
UPDATE = CHANGE.returning(payments)
_last = history.alias()
_NEXT_NUMBER = (
    sa.select(sa.func.coalesce(sa.func.max(_last.c.number), 0) + 1)
    .where(_last.c.account == OF_ACCOUNT, _last.c.key == OF_KEY)
    .scalar_subquery()
)
_texts = {name: sa.bindparam(name, type_=sa.Text) for name in ("what", "source", "detail")}
_at = sa.bindparam("of_at", type_=history.c.at.type)
NOTE = history.insert().values(account=OF_ACCOUNT, key=OF_KEY, **_texts, number=_NEXT_NUMBER, at=_at).inline()
NEXT_ENTRY = sa.select(_NEXT_NUMBER.label("number"))
TAKEN_OUT = sa.select(history.c.number).where(
    *(history.c.account == OF_ACCOUNT, history.c.key == OF_KEY, history.c.number >= sa.bindparam("of_number")),
    history.c.what.in_([PaymentEvent.CANCEL.value, PaymentEvent.WITHDRAW.value]),
)
# Clocks of processes may differ a little: the changes of a payment are ordered by their times.
_later = sa.select(sa.func.max(changes.c.at)).where(
    changes.c.account == OF_ACCOUNT, changes.c.name == OF_KEY, changes.c.at > _at
)
_CHANGED = changes.insert().values(account=OF_ACCOUNT, name=OF_KEY, entry=_NEXT_NUMBER)
_CHANGED = _CHANGED.values(state=sa.bindparam("of_state"), status=sa.bindparam("of_status"))
PUBLISH = _CHANGED.values(at=sa.func.coalesce(_later.scalar_subquery(), _at)).inline()
PUBLISH_AT = _CHANGED.values(at=_at).inline()
# All of these by one statement, which SQLite does not know.
RECORD = NOTE.add_cte(PUBLISH.cte("published"))
CHANGE_AND_RECORD = CHANGE.add_cte(NOTE.cte("noted"), PUBLISH.cte("published"))
LATER = sa.select(changes.c.name, sa.func.max(changes.c.at).label("last")).group_by(changes.c.name)
