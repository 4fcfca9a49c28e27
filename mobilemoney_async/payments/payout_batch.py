"""Batches of payouts as values: rows, read and checked as a whole, and the report of their payments. Pure."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, TextIO, TypeAlias

import attrs

from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import (
    mask_phone_number,
    normalise_amount,
    normalise_phone_number,
    refuse,
    require_name,
    tanzanian,
)

Rows: TypeAlias = str | TextIO | Iterable[Mapping[str, Any]]
"""Text or open file of a CSV with the header phone_number,amount[,key][,…], or mappings with these keys."""

# Problems that an error names.
_MOST_NAMED = 20
_NEEDED = ("phone_number", "amount")


@attrs.frozen(kw_only=True)
class PayoutRow:
    """Row of a batch.

    Attributes:
        line: Its line, from 1 for the first row; in a file, where the header is line 1, from 2.
        key: The idempotency key that the row names, or None.
        phone_number: The recipient's number.
        amount: Whole TZS, as digits.
        info: The other columns.
    """

    line: int
    key: str | None
    phone_number: str = attrs.field(repr=False)
    amount: str
    info: Mapping[str, str]


def read_rows(rows: Rows, *, local_numbers: bool = False) -> list[PayoutRow]:
    """Return all rows, or raise one error with all problems.

    Args:
        rows: The rows.
        local_numbers: Whether numbers may be written without their country code, by `values.tanzanian`.

    Raises:
        InvalidRequest: There are none, or a row is wrong. It names the lines.
    """
    found: list[PayoutRow] = []
    problems: list[str] = []
    lines_of_keys: dict[str, int] = {}
    for line, row in _numbered(rows):
        try:
            read = _read_row(line, row, tanzanian if local_numbers else normalise_phone_number)
            earlier = line if read.key is None else lines_of_keys.setdefault(read.key, line)
            if earlier != line:
                problems.append(f"line {line}: key {read.key!r} is in line {earlier}, too")
            found.append(read)
        except InvalidRequest as exc:
            problems.append(f"line {line}: {exc}")
    if not found and not problems:
        problems.append("there are no rows")
    if problems:
        more = len(problems) - _MOST_NAMED
        listed = "; ".join([*problems[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
        raise InvalidRequest(f"rows: nothing was recorded: {listed}", argument="rows")
    return found


def digest(rows: Iterable[PayoutRow]) -> str:
    """Return the digest of the content of a batch, in hexadecimal digits."""
    content = [[row.key, row.phone_number, row.amount, sorted(row.info.items())] for row in rows]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def default_key(content: str, row: PayoutRow) -> str:
    """Return the key of a row that names none: the same file, proposed twice, pays once."""
    return row.key if row.key is not None else f"payout-{content[:24]}-{row.line}"


def _numbered(rows: Rows) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if isinstance(rows, str) or hasattr(rows, "read"):
        text: Any = io.StringIO(rows, newline="") if isinstance(rows, str) else rows
        reader = csv.DictReader(text, strict=True)
        try:
            names = [name.strip().lstrip("\ufeff") for name in reader.fieldnames or ()]
            missing = [name for name in _NEEDED if name not in names]
            if missing or len(set(names)) < len(names):
                said = f"a CSV with the header phone_number,amount[,key][,…], each column once, not {','.join(names)!r}"
                raise refuse("rows", said)
            reader.fieldnames = names
            for row in reader:
                yield reader.line_num, row
        except csv.Error as exc:
            raise InvalidRequest(f"rows: line {reader.line_num}: {exc}", argument="rows") from None
        return
    if not isinstance(rows, Iterable):
        raise refuse("rows", "the text or an open file of a CSV, or an iterable of mappings", rows)
    yield from enumerate(rows, 1)


def _read_row(line: int, row: Mapping[Any, Any], read_number: Callable[[str], str]) -> PayoutRow:
    if not isinstance(row, Mapping):
        raise refuse("row", "a mapping with phone_number and amount", row)
    if None in row or any(value is None for value in row.values()):
        raise InvalidRequest("has another number of values than the header", argument="rows")
    for name in _NEEDED:
        if name not in row:
            raise InvalidRequest(f"has no {name}", argument="rows")
    key, amount, number = row.get("key"), row["amount"], row["phone_number"]
    amount = amount.strip() if isinstance(amount, str) else amount
    info = {str(name): str(value) for name, value in row.items() if name not in {"key", *_NEEDED}}
    return PayoutRow(
        line=line,
        key=None if key is None or key == "" else require_name("key", key),
        phone_number=read_number(number),
        amount=normalise_amount(amount),
        info=info,
    )


@attrs.frozen(kw_only=True)
class PayoutLine:
    """Line of a batch, with its payment.

    Attributes:
        line: Its line in the file.
        key: The idempotency key of its payment.
        phone_number: The recipient's number.
        amount: Whole TZS.
        state: ``proposed`` or ``cancelled``; once approved the payment's state, such as ``QUEUED`` or ``UNKNOWN``, and
            when it is final that of the transaction, such as ``SUCCESS``.
        transaction_id: The service's transaction, once known.
        fee: The total fee in TZS, where the service shows one, or None.
        reason: Why it failed, was refused, waits or is unknown, or None.
        info: The other columns of the file.
    """

    line: int
    key: str
    phone_number: str = attrs.field(repr=mask_phone_number)
    amount: Decimal
    state: str
    transaction_id: str | None = None
    fee: Decimal | None = None
    reason: str | None = None
    info: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class PayoutBatch:
    """Batch of payouts.

    Attributes:
        id: Its id, for the other calls.
        name: Its name.
        digest: The digest of its content: `approve` takes what the approver was shown.
        state: ``proposed``, ``approved`` or ``cancelled``.
        proposed_by: The person who proposed it.
        proposed_at: When.
        decided_by: The person who approved or cancelled it, or None.
        decided_at: When, or None.
        lines: The number of its lines.
        total: The sum of their amounts, TZS.
        duplicates: For a proposed batch, why some lines look as if they were paid twice, by line: the same recipient
            and amount in an earlier line, or in a payment of the last thirty days. Someone has to look; nothing is
            stopped.
        states: For an approved one, the number of lines in each state, as of `PayoutLine.state`.
    """

    id: str
    name: str
    digest: str
    state: str
    proposed_by: str
    proposed_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    lines: int
    total: Decimal
    duplicates: Mapping[int, str] = attrs.field(factory=dict)
    states: Mapping[str, int] = attrs.field(factory=dict)


def write_report(lines: Sequence[PayoutLine], format: str) -> str:
    """Return the text of a file with the lines of a batch."""
    rows = [
        {
            "line": each.line,
            "key": each.key,
            "phone_number": each.phone_number,
            "amount": f"{each.amount:f}",
            "state": each.state,
            "transaction_id": each.transaction_id,
            "fee": None if each.fee is None else f"{each.fee:f}",
            "reason": each.reason,
            **each.info,
        }
        for each in lines
    ]
    if format == "json":
        return json.dumps(rows, indent=2, ensure_ascii=False)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
