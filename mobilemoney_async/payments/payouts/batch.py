"""Batches of payouts as values, and the report of their payments. Pure."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal

import attrs

from mobilemoney_async.contract.data import Data
from mobilemoney_async.text import csv_cell, mask_phone_number, name_repr, text_repr
from mobilemoney_async.values import refuse, require_name

WORDS: Mapping[str, str] = {
    "proposed": "proposed",
    "QUEUED": "queued",
    "SENDING": "being sent",
    "ACKNOWLEDGED": "accepted",
    "SUCCESS": "paid",
    "UNKNOWN": "unknown",
    "ABSENT": "unknown",
    "REFUSED": "refused",
    "NOT_SENT": "not sent",
    "RELEASED": "not sent",
    "CANCELLED": "cancelled",
    "cancelled": "cancelled",
}
"""States of a line in words, in the order of the progress; any other final state has failed."""

FAILED: str = "failed"
"""The word for any other final state."""


def word_of(state: str) -> str:
    """Return the state of a line in a word."""
    return WORDS.get(state, FAILED)


def read_person(by: object) -> str:
    """Return a person's name without blanks around it, or raise `InvalidRequest`."""
    name = " ".join(require_name("by", by).split())
    if not _letters(name):
        raise refuse("by", "a name with letters")
    return name


def is_same_person(one: str, other: str) -> bool:
    """Return whether two names differ in case, blanks, accents and punctuation at most."""
    return _letters(one) == _letters(other)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", name).casefold()))


@attrs.frozen(kw_only=True)
class PayoutLine(Data):
    """Line of a batch, with its payment.

    Attributes:
        line: Its line in the file.
        key: The idempotency key of its payment.
        phone_number: The recipient's number.
        amount: Whole TZS.
        state: ``proposed`` or ``cancelled``; once approved the payment's state, such as ``QUEUED`` or ``UNKNOWN``, and
            when it is final that of the transaction, such as ``SUCCESS``. After a retry, that of the payment which has
            paid the line, or else of the last one that was not cancelled.
        transaction_id: The service's transaction, once known: that of the payment that has the state.
        fee: The total fee in TZS, where the service shows one, or None.
        reason: Why it failed, was refused, waits or is unknown, and under which key a retry pays it, or None.
        warning: A thing to check before the approval, as in ``PayoutBatch.warnings``, or None.
        info: The other columns of the file.
    """

    line: int
    key: str
    phone_number: str = attrs.field(repr=mask_phone_number)
    amount: Decimal
    state: str
    transaction_id: str | None = None
    fee: Decimal | None = None
    reason: str | None = attrs.field(default=None, repr=text_repr)
    warning: str | None = None
    info: Mapping[str, str] = attrs.field(factory=dict, repr=False)


REPORT_COLUMNS: tuple[str, ...] = tuple(name for name in attrs.fields_dict(PayoutLine) if name != "info")
"""Our own columns of a report."""


@attrs.frozen(kw_only=True)
class PayoutBatch(Data):
    """Batch of payouts.

    Attributes:
        id: Its id, for the other calls.
        name: Its name.
        digest: The digest of its content: `approve` takes what the approver was shown.
        state: ``proposed``, ``approved`` or ``cancelled``.
        proposed_by: The name of its proposer, as it was given: nothing here checks who you are.
        proposed_at: When.
        approved_by: The name of its approver, or None.
        approved_at: When, or None.
        cancelled_by: The name of the person who has cancelled it, before or after its approval, or None.
        cancelled_at: When, or None.
        lines: The number of its lines.
        total: The sum of their amounts, TZS.
        duplicates: Of a proposed batch, and of the one that `approve` has queued: why some lines look as if they were
            paid twice, by line. The same recipient is in an earlier line, or with the same amount in a payment or
            another proposed batch of the last thirty days, or the key is in use. Someone has to look; nothing is
            stopped. Empty in a list of batches.
        warnings: Of a proposed batch, and of the one that `approve` returns: other things to check. Several lines
            pay one number, or a number ends in 000000, as a spreadsheet may have rounded it. Nothing is stopped.
        states: Of an approved one: the number of lines in each state, as of a line's ``state``.
        largest: Of a proposed one: its five largest lines, the largest first.
        new_recipients: Of a proposed one: the lines with numbers that no disbursement of the store was paid to.
        last_total: Of a proposed one: the total of the batch that was approved last under the same name, whatever
            its digits: that of ``salaries 2026-10`` for ``salaries 2026-11``. None if there is none, or it is a retry.
        repeats: Of a proposed one: a sentence if lines have payments already, as of a file that was proposed before:
            they are not paid again. Or None.
        exceeds: Of a proposed one: a sentence if its approval, were it now, exceeded the client's `DisbursementLimits`.
            Or None.
        retry_of: Of a retry: the batch with the lines that are paid again, or None.
        left_out: Of a proposed retry: why other lines of that batch, which it has not paid, are not in it, by line.
    """

    id: str
    name: str = attrs.field(repr=name_repr)
    digest: str
    state: str
    proposed_by: str = attrs.field(repr=name_repr)
    proposed_at: datetime
    approved_by: str | None = attrs.field(default=None, repr=name_repr)
    approved_at: datetime | None = None
    cancelled_by: str | None = attrs.field(default=None, repr=name_repr)
    cancelled_at: datetime | None = None
    lines: int
    total: Decimal
    duplicates: Mapping[int, str] = attrs.field(factory=dict)
    warnings: Mapping[int, str] = attrs.field(factory=dict)
    states: Mapping[str, int] = attrs.field(factory=dict)
    largest: tuple[PayoutLine, ...] = ()
    new_recipients: tuple[int, ...] = ()
    last_total: Decimal | None = None
    repeats: str | None = None
    exceeds: str | None = None
    retry_of: str | None = None
    left_out: Mapping[int, str] = attrs.field(factory=dict)


def write_report(lines: Sequence[PayoutLine], format: str) -> str:
    """Return the text of a file with the lines of a batch. No cell of a CSV is a formula: see `text.csv_cell`."""
    rows = [{name: _cell(getattr(each, name)) for name in REPORT_COLUMNS} | dict(each.info) for each in lines]
    if format == "json":
        return json.dumps(rows, indent=2, ensure_ascii=False)
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(csv_cell, names))
    writer.writerows([csv_cell(str("" if row.get(name) is None else row[name])) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value
