"""Retries that a restored store has forgotten: a line stays out if one may have paid it since it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from mobilemoney_async.database.schema import payments, unmatched
from mobilemoney_async.payments.ownership.comparison import CLOCKS
from mobilemoney_async.payments.payouts.queries import obstacle
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.rows import UNKNOWN_EXTRA, digest, to_record
from mobilemoney_async.payments.records.unmatched import FAILED, IS_OWNED, MAY_HAVE_PAID, find_lines, kept_forms
from mobilemoney_async.text import arguments, command_line


def found_since(
    journal: Journal, chains: Mapping[str, Sequence[sa.Row[Any]]], new: Mapping[str, str]
) -> dict[str, str]:
    """Return which failed lines a payment that the store had forgotten may have paid since, each with the reason.

    Args:
        journal: The store.
        chains: All payments of each line.
        new: The key of each line in the retry. A payment that was imported under it is no obstacle: it is not sent.
    """
    last = {key: chain[-1] for key, chain in chains.items() if obstacle(chain) is None}
    since = min((row.created_at for row in last.values()), default=None)
    if since is None:
        return {}
    columns, table, why = payments.c, unmatched.c, dict[str, str]()
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
