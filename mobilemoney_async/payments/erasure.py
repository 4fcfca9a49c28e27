"""Erasure of a phone number or of an account's numbers, names and notes, as privacy laws ask for.

These stay: amounts, ids, keys, states and times, and for each number a digest under the account's secret key. So a
payment that the service lists as final is still the same, an idempotency key still names the same payment, and a
transaction that is a payment made twice is still found. Nothing is erased while a payment is open, since its number is
what it is found by, unless it has been pending for a month.

Critical section: one transaction, which begins with the lock of the account's row, as other decisions about an account.
A payment that begins during that for the same number keeps it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED
from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.database.schema import (
    IS_CONTRADICTED,
    WAS_REFUSED_SOFTLY,
    accounts,
    batch_lines,
    batches,
    erasures,
    history,
    logins,
    payments,
    retries,
    subscriptions,
    unmatched,
)
from mobilemoney_async.database.serialization import dump, load
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.payouts.queries import PROPOSED
from mobilemoney_async.payments.records.account_status import AccountState, Erasure
from mobilemoney_async.payments.records.account_store import WHOLE_ACCOUNT
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import CLOSED, PaymentState, Source
from mobilemoney_async.payments.records.rows import (
    ENDS_IN_ERROR,
    ERASED_EXTRA,
    ERASED_TEXT,
    UNKNOWN_EXTRA,
    digest,
    without_person,
)

# For how long a payment that was refused softly or released is compared with the list by its number; a pending one is
# looked up by its id, and the service may never end it.
_COMPARED = timedelta(days=30)
_MOST_NAMED = 20
_columns = payments.c
# An entry of the history with someone's note, or the text of an error. Other contradictions name a transaction.
_IS_FREE = sa.or_(
    history.c.source == str(Source.PERSON),
    sa.and_(
        history.c.source == str(Source.ANSWER),
        sa.or_(
            history.c.what.in_([each.value for each in ENDS_IN_ERROR]),
            *((history.c.what == "contradiction") & history.c.detail.like(f"{each.value}:%") for each in ENDS_IN_ERROR),
        ),
    ),
)
# An unmatched transaction with a note, or the digits of its number.
_IS_LEFT = sa.or_(unmatched.c.note.is_not(None), unmatched.c.shown_number.not_in(("", ERASED_TEXT)))


def erase_number(journal: Journal, number: str, at: datetime) -> Erasure:
    """Erase a phone number from one account.

    Raises:
        StoreError: A payment of the number is open, or a batch with it waits for approval; the error names them.
    """
    if number not in _numbers(journal, number) and not _has_lines(journal, digest(journal.number_key(), number)):
        said = f"account {journal.account!r} has no payment or transaction of this number: nothing was erased"
        raise StoreError(said, outcome="not_sent")
    journal.lock_account()
    key = journal.ensure_number_key()
    _require_closed(journal, _columns.phone_number == number, batch_lines.c.phone_number == number, at)
    return _note(journal, digest(key, number), _erase(journal, key, [number], at), at)


def erase_account(journal: Journal, at: datetime, *, is_repeated: bool = False) -> Erasure:
    """Erase all numbers, names and notes of an account, its logins, and the key of its digests; remove it.

    Raises:
        StoreError: A payment of it is open, or a batch waits for approval; the error names them. Or the store has
            nothing of it: the name may be misspelt, and another merchant's to come.
    """
    if not (is_repeated or any(journal.rows(table, limit=1) for table in (accounts, payments, batches))):
        said = f"the store has nothing of account {journal.account!r}: nothing was erased"
        raise StoreError(said, outcome="not_sent")
    journal.lock_account()
    key = journal.ensure_number_key()  # one that has sent nothing has none yet
    _require_closed(journal, sa.true(), sa.true(), at)
    rows = _erase(journal, key, _numbers(journal), at)
    _erase_notes(journal, rows, sa.true())  # of numbers that were erased before, too
    _erase_lines(journal, rows, sa.true(), sa.true())
    for table in (logins, subscriptions):
        rows[table.name] = journal.delete_rows(table)
    nothing = dict.fromkeys(("note", "credentials", "number_key", "error", "state_note", "paused"))
    journal.change_account(state=str(AccountState.REMOVED), state_at=at, **nothing)
    return _note(journal, WHOLE_ACCOUNT, rows, at)


def repeat(journal: Journal, at: datetime, *, listed: Sequence[Erasure]) -> tuple[list[Erasure], list[StoreError]]:
    """Repeat the erasures of a list, as after a backup was restored; return them, and why others were refused."""
    wanted, done, refused = {each.digest for each in listed}, list[Erasure](), list[StoreError]()
    works = [partial(erase_account, journal, at, is_repeated=True)]
    if WHOLE_ACCOUNT not in wanted:
        row, numbers = journal.lock_account(), _numbers(journal)
        of_digest = {digest(row.number_key or "", number): number for number in numbers}
        works = [partial(erase_number, journal, of_digest[each], at) for each in sorted(wanted & of_digest.keys())]
        works += [
            partial(_erase_of_lines, journal, each, at)
            for each in sorted(wanted - of_digest.keys())
            if _has_lines(journal, each)
        ]
        # Made with the first payment, which the backup did not have.
        is_new = row.first_record_at is not None and row.first_record_at > max(each.at for each in listed)
        if numbers and not works and (row.number_key is None or is_new):
            said = f"account {journal.account!r} has no key to compare its numbers by, or one from after this list"
            return [], [StoreError(f"{said}: erase each by itself", outcome="not_sent")]
    for work in works:
        try:
            with journal.connection.begin_nested():  # one that is refused has changed nothing
                done.append(work())
        except StoreError as exc:
            refused.append(exc)
    return done, refused


def list_erasures(connection: sa.Connection, account: str | None = None) -> list[Erasure]:
    """Return the erasures of one account or of all, oldest first."""
    statement = sa.select(erasures).order_by(erasures.c.at, erasures.c.account, erasures.c.digest)
    if account is not None:
        statement = statement.where(erasures.c.account == account)
    return [Erasure(account=row.account, digest=row.digest, at=row.at) for row in connection.execute(statement)]


def _numbers(journal: Journal, number: str | None = None) -> list[str]:
    """Return the numbers of an account that are not erased, or the one that is asked for."""
    found = set[str]()
    for table in (payments, batch_lines):
        is_wanted = table.c.phone_number.not_like(f"{ERASED}%") if number is None else table.c.phone_number == number
        statement = journal.select(table, table.c.phone_number).where(is_wanted).distinct()
        found.update(journal.execute(statement).scalars())
    return sorted(found)


def _require_closed(journal: Journal, of_payment: Any, of_line: Any, at: datetime) -> None:
    stays_open = sa.or_(_columns.state.in_((PaymentState.RELEASED, PaymentState.ACKNOWLEDGED)), WAS_REFUSED_SOFTLY)
    is_recent = sa.and_(_columns.changed_at >= at - _COMPARED, stays_open)
    is_open = sa.or_(_columns.state.not_in({*CLOSED, PaymentState.ACKNOWLEDGED}), IS_CONTRADICTED, is_recent)
    still_open = journal.select(payments, _columns.key).where(of_payment, is_open).order_by(_columns.key)
    with_line = journal.select(batch_lines, batch_lines.c.batch).where(of_line)
    waiting = journal.rows(batches, batches.c.state == PROPOSED, batches.c.id.in_(with_line))
    open_keys = list(journal.execute(still_open.limit(_MOST_NAMED + 1)).scalars())
    ids = [batch.id for batch in waiting]
    if open_keys or ids:
        more = ", …" if len(open_keys) > _MOST_NAMED else ""
        named = [f"payments {', '.join(map(repr, open_keys[:_MOST_NAMED]))}{more}"] if open_keys else []
        named += [f"batches {', '.join(map(repr, ids))}"] if ids else []
        said = (
            f"{' and '.join(named)} of account {journal.account!r} are open, or may still be found: nothing was erased"
        )
        raise StoreError(said, outcome="not_sent")


def _erase(journal: Journal, key: str, numbers: Sequence[str], at: datetime) -> Counter[str]:
    """Replace numbers, and texts that may name their owners, in the tables of an account; return the rows by table."""
    rows = Counter[str]()
    stays_pending = sa.and_(_columns.state == PaymentState.ACKNOWLEDGED, _columns.changed_at < at - _COMPARED)
    is_closed = sa.or_(_columns.state.in_(CLOSED), stays_pending)  # not one that has begun meanwhile
    for number in numbers:
        marked = f"{ERASED}{digest(key, number)}"
        closed = journal.select(payments).where(_columns.phone_number == number, is_closed)
        # Locked: another attempt might begin.
        for row in journal.execute(closed.order_by(_columns.key).with_for_update()).all():
            values = {
                "phone_number": marked,
                "transaction": _without_person(Transaction, row.transaction, row.key),
                "acknowledgement": _without_person(Acknowledgement, row.acknowledgement, row.key),
                # An imported payment stays one: its times are not of a request.
                "extra_digest": UNKNOWN_EXTRA if row.extra_digest == UNKNOWN_EXTRA else ERASED_EXTRA,
            }
            journal.change(row.key, values | dict.fromkeys(("extra", "error", "about")))
            rows[payments.name] += 1
        marked_ones = journal.select(payments, _columns.key).where(_columns.phone_number == marked)
        _erase_notes(journal, rows, history.c.key.in_(marked_ones))
        of_line = batch_lines.c.phone_number == number
        # Their digest is of the numbers, under no key: with the rest of the batch one could try numbers.
        for batch in {line.batch for line in journal.rows(batch_lines, of_line)}:
            journal.change_rows(batches, batches.c.id == batch, digest=secrets.token_hex(32))
        rows[batch_lines.name] += journal.change_rows(batch_lines, of_line, phone_number=marked, info=None)
        ids = marked_ones.with_only_columns(_columns.transaction_id)
        is_own = unmatched.c.transaction_id.in_(ids)  # explained, since its final state has changed
        of_changes = retries.c.name.in_(marked_ones), retries.c.name.in_(ids)
        _erase_lines(journal, rows, sa.or_(unmatched.c.number_digest == digest(key, number), is_own), *of_changes)
        of_message = (subscriptions.c.transaction_id.in_(ids), subscriptions.c.has_ended)
        rows[subscriptions.name] += journal.delete_rows(subscriptions, *of_message)
        has_number = (subscriptions.c.transaction_id.in_(ids), subscriptions.c.transaction.is_not(None))
        for row in journal.rows(subscriptions, *has_number):  # about a payment that is pending still
            here = (subscriptions.c.transaction_id == row.transaction_id, subscriptions.c.follower == row.follower)
            said = _without_person(Transaction, row.transaction, row.transaction_id)
            journal.change_rows(subscriptions, *here, transaction=said)
    return rows


def _erase_notes(journal: Journal, rows: Counter[str], of_payment: sa.ColumnElement[bool]) -> None:
    """Replace notes of people and texts of errors in the histories of payments, and count them."""
    is_left = (history.c.detail != ERASED_TEXT, _IS_FREE)
    rows[history.name] += journal.change_rows(history, of_payment, *is_left, detail=ERASED_TEXT)


def _erase_lines(
    journal: Journal, rows: Counter[str], of_line: sa.ColumnElement[bool], *of_changes: sa.ColumnElement[bool]
) -> None:
    """Replace numbers and notes of unmatched transactions, and the errors of their changes and others; count them."""
    number = sa.case((unmatched.c.shown_number == "", ""), else_=ERASED_TEXT)
    rows[unmatched.name] += journal.change_rows(unmatched, of_line, _IS_LEFT, shown_number=number, note=None)
    ids = journal.select(unmatched, unmatched.c.transaction_id).where(of_line)
    of_error = (sa.or_(retries.c.name.in_(ids), *of_changes), retries.c.error != ERASED_TEXT)
    rows[retries.name] += journal.change_rows(retries, *of_error, error=ERASED_TEXT)


def _erase_of_lines(journal: Journal, name: str, at: datetime) -> Erasure:
    """Erase the number of a digest that only unmatched transactions have."""
    rows = Counter[str]()
    _erase_lines(journal, rows, unmatched.c.number_digest == name)
    return _note(journal, name, rows, at)


def _has_lines(journal: Journal, name: str) -> bool:
    """Return whether unmatched transactions have the number of a digest, and are not erased."""
    return journal.count(unmatched, unmatched.c.number_digest == name, _IS_LEFT) > 0


def _without_person(kind: type[Any], text: str | None, name: str) -> str | None:
    try:
        return None if text is None else dump(without_person(load(kind, text)))
    except StoreError as exc:
        raise StoreError(f"{exc}, of {name!r}: nothing was erased", outcome="not_sent") from exc


def _note(journal: Journal, name: str, rows: Counter[str], at: datetime) -> Erasure:
    """List an erasure; one that is repeated shows its last time."""
    if not journal.change_rows(erasures, erasures.c.digest == name, at=at):
        journal.insert(erasures, digest=name, at=at)
    return Erasure(account=journal.account, digest=name, at=at, rows=dict(+rows))
