"""Retries of batches: the lines that failed, as a new batch that is to be approved.

Invariant: of all payments that were made for a line, at most one can move money. A payment names the one that a retry
has made in its place (``next_key``). That is written in the transaction that queues the new payment, under the lock of
the old payment's row, if the old payment has failed for certain and names none yet. From then on the old key is used
up: neither a create, nor another batch with the same keys, nor another retry can use it. The transactions of the old
payments are looked up before the proposal, and before the approval: a failed one may have turned to SUCCESS. One that
does so later stops the new payment as it begins (`Journal.repeated`). A restored backup has forgotten retries, and
staff pay at the dashboard: a line stays out if a payment like it was imported, is lost or was explained since its first
one was made (`find_obstacles`).

Critical sections: the parent's row is locked while its retry is made, so that two people get one. The rows of the old
payments are locked, in the order of their keys, while the retry is approved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.schema import Row, batches
from mobilemoney_async.payments.payouts.queries import (
    PROPOSED,
    find_chains,
    find_keys,
    find_lines,
    find_obstacles,
    find_payments,
    find_row,
    insert_batch,
    nothing_changed,
    obstacle,
)
from mobilemoney_async.payments.payouts.rows import PayoutRow
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentEvent, PaymentState, Source

# Lines that an error names, and characters of the parent's name in that of its retry.
_MOST_NAMED, _NAME = 3, 180


def find_open(journal: Journal, parent: str) -> str | None:
    """Return the id of the retry of a batch that is to be approved, if there is one."""
    found = journal.rows(batches, batches.c.parent == parent, batches.c.state == PROPOSED, limit=1)
    return found[0].id if found else None


def transactions_of(journal: Journal, found: Mapping[str, Row]) -> Sequence[str]:
    """Return the transactions that are to be looked up before lines are paid again, by one payment of each line."""
    chains = find_chains(journal, found).values()
    rows = (row for chain in chains if obstacle(chain) is None for row in chain)
    return [row.transaction_id for row in rows if row.transaction_id is not None]


def make_retry(journal: Journal, parent: str, shown: Mapping[str, Transaction], *, by: str, at: datetime) -> str:
    """Record the retry of a batch, and return its id; return the one that is to be approved if there is one.

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
        return found
    if batch.approved_at is None:
        raise nothing_changed(f"batch {parent!r} was not approved: none of its lines was sent")
    lines = find_lines(journal, batch.id)
    chains = find_chains(journal, find_payments(journal, batch.id))
    number = journal.count(batches, batches.c.parent == batch.id) + 1
    new = {line.key: f"{batch.id}-retry-{number}-{line.line}" for line in lines}
    obstacles = find_obstacles(journal, chains, new, shown)
    rows = [
        PayoutRow(
            line=line.line,
            key=new[line.key],
            phone_number=line.phone_number,
            amount=line.amount,
            info={} if line.info is None else json.loads(line.info),
            previous_key=chains[line.key][-1].key,
        )
        for line in lines
        if line.key not in obstacles
    ]
    if not rows:
        named = [f"line {line.line}: {obstacles[line.key]}" for line in lines[:_MOST_NAMED]]
        named += ["and more"] if lines[_MOST_NAMED:] else []
        raise nothing_changed(f"no line of batch {parent!r} can be paid again ({'; '.join(named)})")
    name = f"{batch.name[:_NAME]}, retry {number}"
    return insert_batch(journal, rows, name=name, by=by, at=at, parent=batch.id)


def replace(
    journal: Journal, lines: Sequence[Row], shown: Mapping[str, Transaction], *, batch: str, at: datetime
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
    obstacles = find_obstacles(journal, chains, {key: line.key for key, line in replaced.items()}, shown)
    for key, line in replaced.items():
        why = obstacles.get(key)
        if why is None and (last := chains[key][-1].key) != key:
            why = f"it was paid again under the key {last!r}"
        if why is not None:
            said = f"line {line.line} of batch {batch!r} repeats payment {key!r}, which must not be paid again"
            raise nothing_changed(f"{said}: {why}; cancel this retry, and ask for a new one")
    # The key of a refused one could be used again otherwise.
    refused = {key for key, chain in chains.items() if chain[-1].state == PaymentState.REFUSED}
    for key, line in replaced.items():
        state = {"state": PaymentState.CANCELLED, "changed_at": at} if key in refused else {}
        journal.change(key, {"next_key": line.key, **state})
    if refused:
        said = f"paid again in batch {batch}"
        cancelled = (PaymentEvent.CANCEL, PaymentState.CANCELLED)
        journal.record_all(refused, *cancelled, at=at, source=Source.PERSON, detail=said)
