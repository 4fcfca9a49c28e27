"""Pages of the list that break the contract, read by field or by row. Imported when first needed: few pages need it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from mobilemoney_async.contract.converter import answers, field_reader
from mobilemoney_async.contract.models import Fees, PageAnswer, RowsAnswer, Settlement, Transaction, UnreadableRow
from mobilemoney_async.contract.plain import DecodeError

# In place of the position of a page, and of the length of the list, where it does not show them.
_UNKNOWN = {"current_page": 0, "per_page": 0, "total_pages": -1, "total_count": -1}

# The field of a row that msgspec refuses, as its error names it.
_PLACE = re.compile(r"at `\$\.transactions\[\d+\]\.(?:(fees|settlement)\.)?(\w+)`\Z")
_PARTS = {"fees": Fees, "settlement": Settlement}


def repair_page(plain: Any) -> tuple[PageAnswer, set[str]] | None:
    """Return plain JSON values as a page, and the names of the fields that the converter has read in each row.

    Those are the fields that msgspec refuses. None if that is not enough: the values may be changed then.
    """
    repaired, parts = set[str](), set[str | None]()
    while True:
        try:
            return msgspec.convert(plain, PageAnswer), repaired
        except msgspec.ValidationError as exc:
            place = _PLACE.search(str(exc))
        # A part is read as a whole, or field by field: what was read is no JSON any more.
        if place is None or place[2] in repaired | parts:
            return None
        part, name = place.groups()
        repaired.add(name)
        parts.add(part)
        read = field_reader(_PARTS[part] if part else Transaction, name)
        for row in plain["transactions"]:
            holder = row.get(part) if part and isinstance(row, dict) else row
            if isinstance(holder, dict) and name in holder:
                try:
                    holder[name] = read(holder[name])
                except ValueError:
                    return None


def structure_page(plain: Any) -> RowsAnswer:
    """Return plain JSON values as a page, row by row, each as strictly as ever.

    Raises:
        DecodeError: It is no page: its rows are no array.
    """
    rows, shown = (plain.get("transactions"), plain.get("pagination")) if isinstance(plain, dict) else (None, None)
    counts = shown if isinstance(shown, dict) else {}
    known = {name: value if _is_count(value := counts.get(name)) else unknown for name, unknown in _UNKNOWN.items()}
    page = answers.read(
        {**plain, "transactions": [], "pagination": known} if isinstance(rows, list) else plain, PageAnswer
    )
    readable, unreadable = list[Transaction](), list[UnreadableRow]()
    for row in rows or []:
        try:
            readable.append(answers.read(row, Transaction))
        except DecodeError as exc:
            row_id, created_at = _shown(row, "id"), _shown(row, "created_at")
            unreadable.append(UnreadableRow(id=row_id, created_at=created_at, reason=f"{exc}"))
    return RowsAnswer(
        transactions=tuple(readable),
        unreadable=tuple(unreadable),
        pagination=page.pagination,
        status=page.status,
        success=page.success,
    )


def _is_count(value: object) -> bool:
    try:
        return answers.read(value, int) >= 0
    except DecodeError:
        return False


def _shown(row: Any, name: str) -> Any:
    """Return one field of a row that cannot be read, or None if it cannot be read either."""
    try:
        return getattr(answers.read({name: row[name]}, UnreadableRow), name)
    except (DecodeError, KeyError, TypeError, IndexError):
        return None
