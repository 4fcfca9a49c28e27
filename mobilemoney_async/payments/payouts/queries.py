"""Queries for batches of payouts, inside one transaction: their lines, payments, states and obstacles to a retry."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.contract.comparison import ERASED, differences, shift
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.database.schema import Row, batch_lines, batches, payments, unmatched
from mobilemoney_async.database.serialization import load, load_amount
from mobilemoney_async.errors import StoreError
from mobilemoney_async.payments.payouts.batch import PayoutBatch, PayoutLine, is_same_person, word_of
from mobilemoney_async.payments.payouts.rows import PayoutRow, digest, keys_of, total_of
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.next_steps import next_step, recover
from mobilemoney_async.payments.records.queries import chunks, same, select_among
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentRecord, PaymentState, move
from mobilemoney_async.payments.records.rows import UNKNOWN_EXTRA, to_record
from mobilemoney_async.payments.records.rows import digest as keyed
from mobilemoney_async.payments.records.unmatched import FAILED, IS_OWNED, MAY_HAVE_PAID, kept_forms
from mobilemoney_async.payments.records.unmatched import find_lines as find_unmatched
from mobilemoney_async.text import command_line, shown_name

PROPOSED, APPROVED, CANCELLED = "proposed", "approved", "cancelled"
"""States of a batch."""

# Columns that a batch has as they are.
_PEOPLE = ("proposed_by", "proposed_at", "approved_by", "approved_at", "cancelled_by", "cancelled_at")
_AS_THEY_ARE = ("id", "name", "digest", "state", "lines", *_PEOPLE)
_IS_OF_LINE = sa.and_(payments.c.account == same(batch_lines.c.account), payments.c.key == batch_lines.c.key)

_MOVED = "a payment of it was moved away"

# How much older than a line, by either clock, what may have paid it is shown at most: the service's may be set.
_CLOCKS = timedelta(days=1)


def nothing_changed(reason: str) -> StoreError:
    """Return the error for a step that a batch does not allow."""
    return StoreError(f"{reason}: nothing was changed", outcome="not_sent")


def require_second_person(by: str, batch: PayoutBatch | Row) -> None:
    """Raise `StoreError` if the approver of a batch is its proposer."""
    if is_same_person(by, batch.proposed_by):
        proposer = shown_name(batch.proposed_by)
        raise nothing_changed(f"batch {batch.id!r} was proposed by {proposer}: someone else has to approve it")


def require_approvable(batch: Row, *, by: str, digest: str) -> None:
    """Raise `StoreError` if a batch was proposed by its approver, has another digest than shown, or is cancelled."""
    require_second_person(by, batch)
    if digest != batch.digest:
        raise nothing_changed(f"the digest is not that of batch {batch.id!r}: look at it again")
    if batch.state == CANCELLED:
        raise nothing_changed(f"batch {batch.id!r} was cancelled by {shown_name(batch.cancelled_by)}")


def insert_batch(
    journal: Journal,
    rows: Sequence[PayoutRow],
    *,
    name: str,
    by: str,
    at: datetime,
    parent: str | None = None,
) -> str:
    """Record a batch that is to be approved, and return its id; `parent` is the one that a retry repeats."""
    new, content = uuid.uuid4().hex[:12], digest(rows)
    batch = {"id": new, "name": name, "digest": content, "parent": parent, "proposed_by": by, "proposed_at": at}
    journal.insert(batches, state=PROPOSED, lines=len(rows), total=f"{total_of(rows):f}", **batch)
    # Under the account's secret key: a digest of numbers alone would show them to a program that tries all.
    keys = keys_of(keyed(journal.ensure_number_key(), content), rows)
    lines = [
        {
            "account": journal.account,
            "batch": new,
            "line": row.line,
            "key": key,
            "phone_number": row.phone_number,
            "amount": row.amount,
            "info": json.dumps(dict(row.info)) if row.info else None,
            "previous_key": row.previous_key,
        }
        for row, key in zip(rows, keys, strict=True)
    ]
    for some in chunks(lines, 1_000):
        journal.execute(batch_lines.insert(), some)
    return new


def find_row(journal: Journal, id: str, *, lock: bool = False) -> Row:
    """Return a batch, or raise `StoreError` if there is none; locked until the commit, if asked for."""
    statement = journal.select(batches).where(batches.c.id == id)
    row = journal.execute(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise nothing_changed(f"there is no batch {id!r}")
    return row


def hand_over(journal: Journal, id: str) -> None:
    """Let payments of a batch that may still be sent be those of another approved one which has the same keys."""
    may_be_sent = (payments.c.batch == id, payments.c.state.in_([PaymentState.QUEUED, PaymentState.SENDING]))
    own = set(journal.execute(journal.select(payments, payments.c.key).where(*may_be_sent)).scalars())
    for other in journal.rows(batches, batches.c.state == APPROVED, batches.c.id != id, order_by=[batches.c.id]):
        keys = journal.execute(journal.select(batch_lines, batch_lines.c.key).where(batch_lines.c.batch == other.id))
        for some in chunks(own.intersection(keys.scalars())):  # of years of batches few share a key
            journal.change_rows(payments, *may_be_sent, payments.c.key.in_(some), batch=other.id)


def find_lines(journal: Journal, id: str) -> Sequence[Row]:
    """Return the lines of a batch, in their order."""
    return journal.rows(batch_lines, batch_lines.c.batch == id, order_by=[batch_lines.c.line])


def _of_lines(statement: sa.Select[Any], account: str, id: str) -> sa.Select[Any]:
    """Join the lines of a batch with the payments under their keys; an earlier batch may have queued some.

    Lines without a payment stay, so that PostgreSQL begins with the lines whatever it knows of the tables: the other
    way round, it reads all lines again for each payment.
    """
    both = batch_lines.outerjoin(payments, _IS_OF_LINE)
    return statement.select_from(both).where(batch_lines.c.account == account, batch_lines.c.batch == id)


def find_payments(journal: Journal, id: str) -> dict[str, Row]:
    """Return the payments under the keys of a batch's lines, by key."""
    found = journal.execute(_of_lines(sa.select(payments), journal.account, id))
    return {row.key: row for row in found if row.key is not None}


def can_queue(row: Row) -> bool:
    """Return whether an approval queues an earlier payment again."""
    return move(PaymentState(row.state), PaymentEvent.ENQUEUE) is not None


def find_chains(journal: Journal, found: Mapping[str, Row]) -> dict[str, list[Row]]:
    """Return all payments of each line, oldest first, by the key of one: each retry has made one in place of the last.

    One that was moved away ends them (docs/database.md).

    Args:
        journal: The store.
        found: The ones, by key.
    """
    chains = {key: [row] for key, row in found.items()}
    for link, end in (("previous_key", 0), ("next_key", -1)):
        grown = chains
        while others := {key: other for key, rows in grown.items() if (other := getattr(rows[end], link)) is not None}:
            linked = find_keys(journal, others.values())
            grown = {key: chains[key] for key, other in others.items() if other in linked}
            for key, rows in grown.items():
                rows.insert(len(rows) if end else 0, linked[others[key]])
    return chains


def find_keys(journal: Journal, keys: Iterable[str], *, lock: bool = False) -> dict[str, Row]:
    """Return the payments under some keys; locked until the commit, if asked for, in one order against deadlocks."""
    statement = sa.select(payments).order_by(payments.c.key)
    rows = select_among(journal, statement.with_for_update() if lock else statement, payments.c.key, sorted(keys))
    return {row.key: row for row in rows}


def find_all_payments(journal: Journal, found: Mapping[str, Row]) -> dict[str, list[Row]]:
    """Return the payments of each line, oldest first, by the key of the batch's own: of one that was retried, all."""
    retried = {key: row for key, row in found.items() if row.next_key is not None}
    return {key: [row] for key, row in found.items()} | find_chains(journal, retried)


def decisive(chain: Sequence[Row]) -> Row:
    """Return the payment that says whether a line is paid: a paid one, else the last that was not cancelled."""
    paid = [row for row in chain if line_state(row) == TransactionStatus.SUCCESS]
    return (paid or [row for row in chain if row.state != PaymentState.CANCELLED] or chain)[-1]


def find_released(journal: Journal, id: str) -> list[PaymentRecord]:
    """Return the payments of a batch's lines that were confirmed absent: no step of a batch sends them."""
    chains = find_all_payments(journal, find_payments(journal, id)).values()
    return [to_record(row) for row in map(decisive, chains) if row.state == PaymentState.RELEASED]


def released_step(row: Row) -> str:
    """Return the next step for a payment that was confirmed absent."""
    return str(next_step(to_record(row), row.changed_at))


def obstacle(chain: Sequence[Row]) -> str | None:
    """Return why a line cannot be paid again, by all its payments; None if all of them have failed for certain."""
    for number, row in enumerate(chain):
        if row.state == PaymentState.FINAL and row.status != TransactionStatus.SUCCESS:
            if row.cause is not None:
                return f"the service shows another final state of payment {row.key!r} than before"
        elif row.state == PaymentState.REFUSED and not row.is_certain:
            said = f"payment {row.key!r} was refused without a code of the contract, and may exist"
            return said if number else f"{said}: propose and approve the same content again, which looks for it first"
        elif row.state == PaymentState.RELEASED:
            return f"payment {row.key!r} is RELEASED: {released_step(row)}"
        elif row.state != PaymentState.REFUSED and (
            row.state != PaymentState.CANCELLED or (not number and row.next_key is None)
        ):
            return f"payment {row.key!r} is {line_state(row)}"
    if chain and chain[-1].phone_number.startswith(ERASED):
        return "its phone number was erased"
    return None if chain else _MOVED


def find_obstacles(
    journal: Journal,
    chains: Mapping[str, Sequence[Row]],
    new: Mapping[str, str],
    shown: Mapping[str, Transaction] | None = None,
) -> dict[str, str]:
    """Return which lines cannot be paid again, each with the reason.

    A line stays out if a payment like it was imported, is lost or was explained since its first payment was made: by a
    retry that a restored store has forgotten, or at the dashboard, it may be paid.

    Args:
        journal: The store.
        chains: All payments of each line that has some.
        new: The key of each line in the retry. A payment that was imported under it is no obstacle: it is not sent.
        shown: The transactions of the payments, as the service shows them now, by id; None if nothing was looked up.
    """
    why = {key: found for key in new if (found := _obstacle_now(chains.get(key, ()), shown)) is not None}
    starts = {key: _start(chains[key]) for key in new if key not in why}
    since = min(starts.values(), default=None)
    if since is None:
        return why
    columns, table = payments.c, unmatched.c
    imported = journal.rows(payments, columns.extra_digest == UNKNOWN_EXTRA, columns.created_at > since)
    is_said, is_young = table.is_lost | table.explained_at.is_not(None), table.created_at > since
    lines = find_unmatched(journal, ~IS_OWNED, MAY_HAVE_PAID, is_said, table.created_at.is_(None) | is_young)
    amounts = {Decimal(row.amount) for row in imported} | {line.shown.amount for line in lines}
    secret = journal.number_key()
    for key, start in starts.items():
        row = chains[key][-1]
        if Decimal(row.amount) not in amounts:
            continue
        own, forms = {new[key], *(each.key for each in chains[key])}, kept_forms(journal, [row.phone_number])
        kind, record = (row.type, Decimal(row.amount)), to_record(row)
        for other in imported:
            may_have_paid = other.status not in FAILED or other.cause is not None
            is_like = (other.type, Decimal(other.amount)) == kind and other.phone_number in forms
            if is_like and may_have_paid and other.created_at > start and other.key not in own:
                why[key] = f"payment {other.key!r}, which was imported, may have paid it"
        for line in lines:
            made_at = line.shown.created_at
            if line.is_of(record, keyed(secret, row.phone_number)) and (made_at is None or made_at > start):
                command = command_line(*recover(new[key], line.id, ("--note", "TEXT")))
                why[key] = f"transaction {line.id} may have paid it: if it did, {command}"
    return why


def _start(chain: Sequence[Row]) -> datetime:
    """Return since when, on the service's clock, something may have paid a line: a refused payment shows only ours."""
    shown = (record.transaction and record.transaction.created_at for record in map(to_record, chain))
    return shift(min([*(row.created_at for row in chain), *filter(None, shown)]), -_CLOCKS)


def _obstacle_now(chain: Sequence[Row], shown: Mapping[str, Transaction] | None) -> str | None:
    why = obstacle(chain)
    if why is None and (chain[0].previous_key is not None or chain[-1].next_key is not None):
        return _MOVED  # it may have been paid by that one
    if why is None and shown is not None and not all(_has_failed(row, shown) for row in chain):
        return "its transaction is not shown as failed"
    return why


def _has_failed(row: Row, shown: Mapping[str, Transaction]) -> bool:
    """Return whether the transaction of a payment, if it has one, is shown as failed."""
    seen = None if row.transaction_id is None else shown.get(row.transaction_id)
    if seen is None:
        return row.transaction_id is None
    is_own = not any(differences(seen, row))
    return is_own and seen.is_final and seen.status != TransactionStatus.SUCCESS


def to_batch(journal: Journal, row: Row) -> PayoutBatch:
    """Return the batch that a row holds."""
    return PayoutBatch(
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        total=load_amount(row.total),
        retry_of=row.parent,
        states={} if row.approved_at is None else _count_lines(journal, row.id),
    )


def _count_lines(journal: Journal, id: str) -> Mapping[str, int]:
    """Return the number of lines in each state, as of `PayoutLine.state`."""
    found = Counter(count_states(journal, id))
    # Not as IS NOT NULL, which would let PostgreSQL begin with the payments: see `_of_lines`.
    is_retried = sa.func.coalesce(payments.c.next_key, "") != ""
    retried = journal.execute(_of_lines(sa.select(payments), journal.account, id).where(is_retried))
    own = {row.key: row for row in retried}
    for key, chain in find_chains(journal, own).items():
        found[line_state(own[key])] -= 1
        found[line_state(decisive(chain))] += 1
    return +found


def count_states(journal: Journal, id: str) -> Mapping[str, int]:
    """Return the number of the batch's own payments in each state: not of those that a retry has made."""
    columns = payments.c
    kinds = _of_lines(sa.select(columns.state, columns.status, sa.func.count().label("number")), journal.account, id)
    found: Counter[str] = Counter()
    for row in journal.execute(kinds.group_by(columns.state, columns.status)):
        if row.state is not None:
            found[line_state(row)] += row.number
    return found


def line_state(row: Row) -> str:
    """Return the state of a payment, or of its transaction once that is final."""
    return str(row.status if row.state == PaymentState.FINAL else row.state)


def to_line(line: Row, chain: Sequence[Row], batch: Row, warning: str | None) -> PayoutLine:
    """Return a line with its payments, oldest first: its own one, and those that retries have made."""
    row = decisive(chain) if chain else None
    record = None if row is None else to_record(row)
    transaction = None if record is None else record.transaction
    return PayoutLine(
        line=line.line,
        key=line.key,
        phone_number=line.phone_number,
        amount=load_amount(line.amount),
        state=batch.state if row is None else line_state(row),
        transaction_id=None if record is None else record.transaction_id,
        fee=None if transaction is None or transaction.fees is None else transaction.fees.total_fee,
        reason=_reason(line.key, chain, batch.id),
        warning=warning,
        info={} if line.info is None else load(dict, line.info),
    )


def _reason(key: str, chain: Sequence[Row], batch: str) -> str | None:
    own = next((row for row in chain if row.key == key), None)
    if own is None:
        return None
    other = None if own.batch == batch else f"of batch {own.batch}" if own.batch else "made before this batch"
    later = None
    if own.next_key is not None:
        last = chain[-1]
        said = (f"tried again under the key {last.key!r}: {word_of(line_state(last))}", _why(last))
        later = ", ".join(filter(None, said)) if last.next_key is None else f"{_MOVED}: {last.next_key!r}"
    return "; ".join(filter(None, (other, _why(own), later))) or None


def _why(row: Row) -> str | None:
    record = to_record(row)
    # The reason first: a final payment has one if the service shows another end now.
    return record.reason or (record.error if record.transaction is None else record.transaction.failure_reason)
