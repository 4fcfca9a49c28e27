"""Obstacles to paying a line again: its payments have not failed, or a retry that the store has forgotten may have.

After a backup was restored, a line stays out if a payment like it was imported, is lost or was explained since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from mobilemoney_async.contract.comparison import differences
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.database.schema import Row, payments, unmatched
from mobilemoney_async.payments.ownership.comparison import CLOCKS
from mobilemoney_async.payments.payouts.queries import obstacle
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.rows import UNKNOWN_EXTRA, digest, to_record
from mobilemoney_async.payments.records.unmatched import FAILED, IS_OWNED, MAY_HAVE_PAID, find_lines, kept_forms
from mobilemoney_async.text import arguments, command_line


def find_obstacles(
    journal: Journal,
    chains: Mapping[str, Sequence[Row]],
    new: Mapping[str, str],
    shown: Mapping[str, Transaction] | None = None,
) -> dict[str, str]:
    """Return which lines cannot be paid again, each with the reason.

    Args:
        journal: The store.
        chains: All payments of each line that has some.
        new: The key of each line in the retry. A payment that was imported under it is no obstacle: it is not sent.
        shown: The transactions of the payments, as the service shows them now, by id; None if nothing was looked up.
    """
    why = {key: found for key in new if (found := _obstacle_now(chains.get(key, ()), shown)) is not None}
    last = {key: chains[key][-1] for key in new if key not in why}
    since = min((row.created_at for row in last.values()), default=None)
    if since is None:
        return why
    columns, table = payments.c, unmatched.c
    imported = journal.rows(payments, columns.extra_digest == UNKNOWN_EXTRA, columns.created_at > since - CLOCKS)
    is_said, is_young = table.is_lost | table.explained_at.is_not(None), table.created_at > since - CLOCKS
    lines = find_lines(journal, ~IS_OWNED, MAY_HAVE_PAID, is_said, table.created_at.is_(None) | is_young)
    amounts = {Decimal(row.amount) for row in imported} | {line.shown.amount for line in lines}
    secret = journal.number_key()
    for key, row in last.items():
        if Decimal(row.amount) not in amounts:
            continue
        own, forms = {new[key], *(each.key for each in chains[key])}, kept_forms(journal, [row.phone_number])
        start, kind, record = row.created_at - CLOCKS, (row.type, Decimal(row.amount)), to_record(row)
        for other in imported:
            may_have_paid = other.status not in FAILED or other.cause is not None
            is_like = (other.type, Decimal(other.amount)) == kind and other.phone_number in forms
            if is_like and may_have_paid and other.created_at > start and other.key not in own:
                why[key] = f"payment {other.key!r}, which was imported, may have paid it"
        for line in lines:
            made_at = line.shown.created_at
            if line.is_of(record, digest(secret, row.phone_number)) and (made_at is None or made_at > start):
                command = command_line(
                    *arguments("payments", "recover", f"{new[key]}={line.id}"), options=("--note", "TEXT")
                )
                why[key] = f"transaction {line.id} may have paid it: if it did, {command}"
    return why


def _obstacle_now(chain: Sequence[Row], shown: Mapping[str, Transaction] | None) -> str | None:
    why = obstacle(chain)
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
