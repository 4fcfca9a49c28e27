"""Retries of batches: the lines that failed, as a new batch that is to be approved.

Invariant: of all payments that were made for a line, at most one can move money. A payment names the one that a retry
has made in its place (``next_key``). That is written in the transaction that queues the new payment, under the lock of
the old payment's row, if the old payment has failed for certain and names none yet. From then on the old key is used
up: neither a create, nor another batch with the same keys, nor another retry can use it. The transactions of the old
payments are looked up before the proposal, and before the approval: a failed one may have turned to SUCCESS. One that
does so later stops the new payment as it begins (`Journal.repeated`). A restored backup has forgotten the retries made
since: a line stays out if a payment like it was imported, is lost or was explained since it failed (`lost_retries`).

Critical sections: the parent's row is locked while its retry is made, so that two people get one. The rows of the old
payments are locked, in the order of their keys, while the retry is approved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.contract.comparison import differences
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.database.schema import batches, payments
from mobilemoney_async.payments.payouts.batch import PayoutBatch
from mobilemoney_async.payments.payouts.lost_retries import found_since
from mobilemoney_async.payments.payouts.queries import (
    PROPOSED,
    find_chains,
    find_keys,
    find_lines,
    find_payments,
    find_row,
    insert_batch,
    nothing_changed,
    obstacle,
)
from mobilemoney_async.payments.payouts.review import find_batch
from mobilemoney_async.payments.payouts.rows import PayoutRow
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentState, Source

# Lines that an error names, and characters of the parent's name in that of its retry.
_MOST_NAMED, _NAME = 3, 180


def find_open(journal: Journal, parent: str) -> str | None:
    """Return the id of the retry of a batch that is to be approved, if there is one."""
    found = journal.rows(batches, batches.c.parent == parent, batches.c.state == PROPOSED, limit=1)
    return found[0].id if found else None


def transactions_of(journal: Journal, found: Mapping[str, sa.Row[Any]]) -> Sequence[str]:
    """Return the transactions that are to be looked up before lines are paid again, by one payment of each line."""
    chains = find_chains(journal, found).values()
    rows = (row for chain in chains if obstacle(chain) is None for row in chain)
    return [row.transaction_id for row in rows if row.transaction_id is not None]


def make_retry(
    journal: Journal, parent: str, shown: Mapping[str, Transaction], *, by: str, at: datetime
) -> PayoutBatch:
    """Record the retry of a batch, and return it; return the one that is to be approved if there is one.

    Args:
        journal: The store.
        parent: The batch.
        shown: The transactions of the lines, as the service shows them now, by id.
        by: The name of its proposer.
        at: Now.

    Raises:
        StoreError: The batch was not approved, or none of its lines can be paid again.
    """
    batch = find_row(journal, parent, lock=True)  # two people may ask at once
    if (found := find_open(journal, batch.id)) is not None:
        return find_batch(journal, found, at)
    if batch.approved_at is None:
        raise nothing_changed(f"batch {parent!r} was not approved: none of its lines was sent")
    lines = find_lines(journal, batch.id)
    chains = find_chains(journal, find_payments(journal, batch.id))
    number = journal.count(batches, batches.c.parent == batch.id) + 1
    new = {line.key: f"{batch.id}-retry-{number}-{line.line}" for line in lines}
    lost = found_since(journal, chains, new)
    taken, reasons = list[tuple[sa.Row[Any], str]](), list[str]()
    for line in lines:
        chain = chains.get(line.key, [])
        why = _obstacle_now(chain, shown) or lost.get(line.key)
        if why is None:
            taken.append((line, chain[-1].key))
        else:
            reasons.append(f"line {line.line}: {why}")
    if not taken:
        named = [*reasons[:_MOST_NAMED], *(["and more"] if reasons[_MOST_NAMED:] else [])]
        said = f"no line of batch {parent!r} can be paid again"
        raise nothing_changed(f"{said} ({'; '.join(named)})")
    rows = [_row(line, new[line.key]) for line, _ in taken]
    made = insert_batch(
        journal,
        rows,
        [str(row.key) for row in rows],
        name=f"{batch.name[:_NAME]}, retry {number}",
        by=by,
        at=at,
        previous=[key for _, key in taken],
        parent=batch.id,
    )
    return find_batch(journal, made, at)


def _row(line: sa.Row[Any], key: str) -> PayoutRow:
    info = {} if line.info is None else json.loads(line.info)
    return PayoutRow(line=line.line, key=key, phone_number=line.phone_number, amount=line.amount, info=info)


def _obstacle_now(chain: Sequence[sa.Row[Any]], shown: Mapping[str, Transaction]) -> str | None:
    """Return why a line cannot be paid again, by all its payments and their transactions as shown now; or None."""
    why = obstacle(chain)
    if why is None and not all(_has_failed(row, shown) for row in chain):
        return "its transaction is not shown as failed"
    return why


def _has_failed(row: sa.Row[Any], shown: Mapping[str, Transaction]) -> bool:
    """Return whether the transaction of a payment, if it has one, is shown as failed."""
    seen = None if row.transaction_id is None else shown.get(row.transaction_id)
    if seen is None:
        return row.transaction_id is None
    is_own = not any(differences(seen, row))
    return is_own and seen.is_final and seen.status != TransactionStatus.SUCCESS


def replace(
    journal: Journal, lines: Sequence[sa.Row[Any]], shown: Mapping[str, Transaction], *, batch: str, at: datetime
) -> None:
    """Use up the keys of the payments that the lines of a retry replace; for other lines do nothing.

    Args:
        journal: The store.
        lines: Of the retry.
        shown: The transactions of the payments, as the service shows them now, by id.
        batch: The retry.
        at: Now.

    Raises:
        StoreError: One of them has not failed, or is not shown as failed any more, or was replaced already.
    """
    replaced = {each.previous_key: each for each in lines if each.previous_key is not None}
    if not replaced:
        return
    chains = find_chains(journal, find_keys(journal, replaced, lock=True))
    lost = found_since(journal, chains, {key: line.key for key, line in replaced.items()})
    for key, line in replaced.items():
        chain = chains.get(key, [])
        why = _obstacle_now(chain, shown) or lost.get(key)
        if why is None and chain[-1].key != key:
            why = f"it was paid again under the key {chain[-1].key!r}"
        if why is not None:
            said = f"line {line.line} of batch {batch!r} repeats payment {key!r}, which must not be paid again"
            raise nothing_changed(f"{said}: {why}; cancel this retry, and ask for a new one")
    columns = payments.c
    here = (columns.account == journal.account, columns.key == sa.bindparam("of_key"))
    named = payments.update().where(*here).values(next_key=sa.bindparam("of_next"))
    journal.execute(named, [{"of_key": key, "of_next": line.key} for key, line in replaced.items()])
    refused = [key for key, chain in chains.items() if chain[-1].state == PaymentState.REFUSED]
    if refused:
        # Its key could be used again otherwise.
        state = PaymentState.CANCELLED
        stopped = payments.update().where(*here).values(state=str(state), changed_at=at)
        journal.execute(stopped, [{"of_key": key} for key in refused])
        said = f"paid again in batch {batch}"
        journal.record_all(refused, PaymentEvent.CANCEL, state, at=at, source=Source.PERSON, detail=said)
