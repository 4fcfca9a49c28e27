"""Rows of a batch of payouts, read from a file or mappings and checked as a whole."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, BinaryIO, TextIO, TypeAlias
from unicodedata import normalize

import attrs

from mobilemoney_async.contract.codec import Content, Fields
from mobilemoney_async.contract.comparison import CURRENCY
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.payments.payouts.batch import REPORT_COLUMNS
from mobilemoney_async.payments.payouts.spreadsheet import SIGNATURE, read_sheet, require_plain, unfit
from mobilemoney_async.text import csv_cell, name_lines
from mobilemoney_async.values import (
    HiddenText,
    can_encode,
    hide_text,
    normalise_amount,
    normalise_phone_number,
    number_advice,
    refuse,
    require_key,
    require_name,
    tanzanian,
    two_amounts,
)

Rows: TypeAlias = str | bytes | os.PathLike[str] | TextIO | BinaryIO | Iterable[Mapping[str, Any]]
"""CSV or .xlsx with the header phone_number,amount[,key][,…]: text, open file or path; or mappings with these keys."""

MOST_ROWS = 50_000
"""Rows of one batch at most: nineteen hours of the rate limit."""

MOST_TEXT = 20_000_000
"""Characters of a file at most; of one in bytes, so many bytes."""

# Columns of a file, and problems that an error names.
_MOST_COLUMNS, _MOST_NAMED = 200, 10
_NEEDED = ("phone_number", "amount")
# Two cells of an amount that a comma may have divided, and the mark of a row with them: the name of no column.
_THOUSANDS, _DIVIDED = re.compile(r"[0-9]{1,3}\n[0-9]{3}"), object()

# End of a number that a spreadsheet has shown as 2.55681E+11, and saved so.
_CUT = "000000"
_LIKE_KEY = {"key", "idempotency_key", "idempotency key", "idempotency-key"}
# Columns with one possible value: a list of collections, or of another currency, is no batch of payouts.
_FIXED = {"type": str(TransactionType.DISBURSEMENT), "currency": CURRENCY}


@attrs.frozen(kw_only=True)
class PayoutRow:
    """Row of a batch.

    Attributes:
        line: The line on which it begins, from 2 in a file, where the header is line 1; of mappings, its number from 1.
        key: The idempotency key that the row names, or None.
        phone_number: The recipient's number.
        amount: Whole TZS, as digits.
        info: The other columns.
        previous_key: Of a retry, the key of the payment that it replaces.
    """

    line: int
    key: str | None
    phone_number: str = attrs.field(repr=False)
    amount: str
    info: Mapping[str, str] = attrs.field(repr=False)
    previous_key: str | None = None


class _Row(dict[Any, Any]):
    """Cells by the names of their columns, which a traceback with locals does not show."""

    def __repr__(self) -> str:
        return f"<row of {len(self)} cells>"


def read_rows(
    rows: Rows | Fields, *, local_numbers: bool = False, columns: Mapping[str, str] | None = None
) -> list[PayoutRow]:
    """Return all rows, or raise one error with all problems.

    Args:
        rows: The rows, or `Fields` of them: the files and mappings of a merchant are full of numbers.
        local_numbers: Whether numbers may be written without their country code, by `values.tanzanian`.
        columns: The file's names of the columns phone_number, amount and key, where they are others.

    Raises:
        InvalidRequest: There are none, or too many, or a row is wrong. It names the lines.
    """
    rows = Fields.of(rows)
    names = _check_columns({} if columns is None else columns)
    found: list[PayoutRow] = []
    problems: dict[str, list[int]] = {}
    keys: dict[str, tuple[int, str]] = {}
    for number, (line, row) in enumerate(_numbered(rows, names), 1):
        if number > MOST_ROWS:
            raise _wrong(f"there are more than {MOST_ROWS:,} rows: divide them")
        try:
            read = _read_row(line, row, local_numbers=local_numbers)
            if read.key is not None:
                earlier, key = keys.setdefault(normalize("NFKC", read.key).casefold(), (line, read.key))
                if earlier != line:
                    said = f"is in line {earlier}, too" if key == read.key else f"looks like that of line {earlier}"
                    problems.setdefault(f"key {read.key!r} {said}", []).append(line)
            found.append(read)
        except InvalidRequest as exc:
            problems.setdefault(str(exc), []).append(line)
    without = [read.line for read in found if read.key is None]
    if keys and without:  # the key that would be made of the content changes with any other line, and pays again
        problems["key is blank, and other lines have one: fill in all, or none"] = without
    if problems:
        named = [f"{name_lines(lines)}: {problem}" for problem, lines in problems.items()]
        more = [f"and {len(named) - _MOST_NAMED:,} more problems"] if named[_MOST_NAMED:] else []
        raise _wrong("; ".join([*named[:_MOST_NAMED], *more]))
    if not found:
        raise _wrong("there are no rows")
    return found


def digest(rows: Iterable[PayoutRow]) -> str:
    """Return the digest of the content of a batch, in hexadecimal digits. Blank lines and quotes are no content."""
    content = [[row.key, row.phone_number, row.amount, sorted(row.info.items())] for row in rows]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def keys_of(content: str, rows: Iterable[PayoutRow]) -> list[str]:
    """Return the keys of a batch's rows, by its digest: the same content, proposed twice, pays once.

    The default key has the number of the row, not its line: a blank line more must not make other payments.
    """
    return [row.key or f"payout-{content[:24]}-{number}" for number, row in enumerate(rows, 1)]


def total_of(rows: Iterable[PayoutRow]) -> Decimal:
    """Return the sum of the amounts, exactly."""
    return Decimal(sum(int(row.amount) for row in rows))


def warnings_of(rows: Iterable[Any]) -> Mapping[int, str]:
    """Return the warnings about the numbers of rows, or lines of a batch, by line. Nothing is refused."""
    lines: dict[str, list[int]] = {}
    for row in rows:
        lines.setdefault(row.phone_number, []).append(row.line)
    found: dict[int, str] = {}
    for number, own in lines.items():
        shared = f"{len(own):,} lines pay this number: {name_lines(own)}" if own[1:] else ""
        cut = f"the number ends in {_CUT}: a spreadsheet may have rounded it" if number.endswith(_CUT) else ""
        if shared or cut:
            found |= dict.fromkeys(own, "; ".join(filter(None, (shared, cut))))
    return dict(sorted(found.items()))


def _wrong(problem: str) -> InvalidRequest:
    return unfit(f"rows: nothing was recorded: {problem}")


def _check_columns(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Return our names of columns by the file's."""
    if not isinstance(columns, Mapping) or not {*columns} <= {*_NEEDED, "key"}:
        raise refuse("columns", "a mapping of phone_number, amount or key to the file's name of that column")
    names = {require_name("columns", theirs).strip(): ours for ours, theirs in columns.items()}
    if len(names) < len(columns):
        raise refuse("columns", "a mapping to different names")
    return names


def _numbered(rows: Fields, columns: Mapping[str, str]) -> Iterator[tuple[int, Mapping[Any, Any]]]:
    """Yield rows with their lines. One of a file with another number of cells than the header has a value of None."""
    content = _read_content(rows)
    if isinstance(content, Content):
        try:
            sheet = list(read_sheet(content))
        except InvalidRequest as exc:
            raise _wrong(str(exc)) from exc
        yield from _read_table(sheet, columns)
        return
    if content is not None:
        yield from _read_csv(content, columns)
        return
    if not isinstance(rows.reveal(), Iterable) or isinstance(rows.reveal(), Mapping):
        raise refuse("rows", "the text or an open file of a CSV, or an iterable of mappings", type(rows.reveal()))
    for number, row in enumerate(map(_hide_row, rows.reveal()), 1):
        yield number, _rename(number, row, columns) if isinstance(row, _Row) else row


def _hide_row(row: object) -> Any:
    return _Row((name, hide_text(value)) for name, value in row.items()) if isinstance(row, Mapping) else type(row)


def _rename(number: int, row: _Row, columns: Mapping[str, str]) -> _Row:
    named = _Row((columns.get(name, name), value) for name, value in row.items())
    if len(named) < len(row):
        raise _wrong(f"row {number}: a column is there twice, under the file's name and under ours")
    return named


def _is_path(rows: object) -> bool:
    return isinstance(rows, os.PathLike) or (isinstance(rows, str) and rows.endswith(".xlsx") and "\n" not in rows)


def _hide_content(content: object) -> HiddenText | Content | None:
    if isinstance(content, bytes | bytearray):
        return Content(content)
    return HiddenText(content) if isinstance(content, str) else None


def _read_content(rows: Fields) -> HiddenText | Content | None:
    """Return the text of a CSV, the bytes of an .xlsx, or None if the rows are neither."""
    try:
        if _is_path(rows.reveal()):
            with open(rows.reveal(), "rb") as file:
                text = _hide_content(file.read(MOST_TEXT + 1))
        else:
            is_file = hasattr(rows.reveal(), "read")
            text = _hide_content(rows.reveal().read(MOST_TEXT + 1) if is_file else rows.reveal())
        # Before it is decoded: a text that was cut at so many bytes may have fewer characters.
        if text is not None and len(text) > MOST_TEXT:
            raise _wrong(f"the file has more than {MOST_TEXT:,} characters: divide it")
        if isinstance(text, bytes) and not text.startswith(SIGNATURE):
            text = HiddenText(text.decode("utf-8"))
    except UnicodeDecodeError:
        raise _wrong("the file is not UTF-8 text: save it as CSV in UTF-8, or as .xlsx") from None
    except OSError as exc:
        raise _wrong(f"the file cannot be read: {exc.strerror}") from None
    return text


def _read_csv(text: str, columns: Mapping[str, str]) -> Iterator[tuple[int, Mapping[Any, Any]]]:
    """Yield the rows of a CSV that are not blank. Spreadsheets may separate by semicolons or tabs."""
    text = HiddenText(text.removeprefix("\ufeff"))
    delimiter = max(",;\t", key=lambda each: _fit_header(text, each, columns))
    yield from _read_table(_csv_rows(text, delimiter), columns, is_by_comma=delimiter == ",")


def _csv_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = _csv_reader(text, delimiter)
    line = 1
    try:
        for cells in map(_hide_cells, reader):
            if reader.line_num > line:  # a quote too many would take whole rows into its cell
                raise _wrong(f"lines {line}-{reader.line_num} have a quoted cell of several lines: write it on one")
            yield line, cells
            line += 1
    except csv.Error as exc:
        raise _wrong(f"line {line}: {exc}") from None


def _hide_cells(cells: Iterable[str]) -> list[str]:
    return [HiddenText(cell.strip()) for cell in cells]


def _read_table(
    rows: Iterable[tuple[int, list[str]]], columns: Mapping[str, str], *, is_by_comma: bool = False
) -> Iterator[tuple[int, Mapping[Any, Any]]]:
    """Yield the rows that are not blank below the header, by its names."""
    names: list[str] = []
    for line, cells in rows:
        if not names and any(cells):
            names = _read_header(line, cells, columns)
        elif any(cells):
            yield line, _named(names, cells, is_by_comma=is_by_comma)
    if not names:
        _read_header(1, names, columns)


def _named(names: Sequence[str], cells: Sequence[str], *, is_by_comma: bool) -> _Row:
    """Return a row by the names of its columns, with a mark if it does not fit the header."""
    row = _Row(zip(names, cells, strict=False))
    extra = cells[len(names) :]
    has_blank_end = bool(names) and not names[-1]
    nameless = [cell for name, cell in zip(names, cells, strict=False) if not name]
    if is_by_comma and _may_be_divided(names, cells):
        row[_DIVIDED] = None
    elif len(cells) < len(names) or (extra and not has_blank_end) or any([*extra, *nameless]):
        row[None] = None
    return row


def _csv_reader(text: str, delimiter: str) -> Any:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)


def _fit_header(text: str, delimiter: str, columns: Mapping[str, str]) -> tuple[int, int]:
    """Return how well a delimiter divides the first line that is not blank: the needed columns, then all cells."""
    try:
        cells = next((cells for cells in map(_hide_cells, _csv_reader(text, delimiter)) if any(cells)), [])
    except csv.Error:
        return 0, 0
    return len({columns.get(cell, cell) for cell in cells}.intersection(_NEEDED)), len(cells)


def _may_be_divided(names: Sequence[str], cells: Sequence[str]) -> bool:
    """Return whether the comma of an amount such as 15,000 may have divided it into two cells."""
    place = names.index("amount")
    return _THOUSANDS.fullmatch("\n".join(cells[place : place + 2])) is not None


def _read_header(line: int, cells: list[str], columns: Mapping[str, str]) -> list[str]:
    # The names are not quoted: in a file without a header they are a person's number.
    if len(cells) > _MOST_COLUMNS:
        raise _wrong(f"line {line} has more than {_MOST_COLUMNS} columns")
    names = [columns.get(cell, cell) for cell in cells]
    named = [name for name in names if name]
    theirs = {ours: name for name, ours in columns.items()}
    missing = [theirs.get(name, name) for name in (*_NEEDED, *theirs) if name not in named]
    if missing or len(set(named)) < len(named):
        problem = f"it lacks {' and '.join(dict.fromkeys(missing))}" if missing else "a column is there twice"
        hint = "" if columns else "; columns (--columns) gives the file's own names"
        hint += "; a file's path is a pathlib.Path" if len(cells) == 1 else ""
        raise _wrong(f"line {line} must be the header phone_number,amount[,key][,…]: {problem}{hint}")
    return names


def _read_row(line: int, row: Mapping[Any, Any], *, local_numbers: bool) -> PayoutRow:
    if not isinstance(row, Mapping):
        raise refuse("row", "a mapping with phone_number and amount", row)
    if _DIVIDED in row:
        said = "separate the cells by semicolons, save the amounts without commas, or put another column after the"
        raise unfit(f"an amount such as 15,000 may be divided here: {said} amount")
    if None in row or row.get(""):
        raise unfit("has another number of values than the header")
    for name in (*_NEEDED, "key"):
        require_plain(name, row.get(name))
    missing = [name for name in _NEEDED if name not in row]
    if missing:
        raise unfit(f"has no {missing[0]}")
    return PayoutRow(
        line=line,
        key=_read_key(row),
        phone_number=_read_number(row["phone_number"], local_numbers=local_numbers),
        amount=_read_amount(row["amount"]),
        info=_read_info(row),
    )


def _is_report(row: Mapping[Any, Any]) -> bool:
    """Return whether a row is of our own report: only its key, number and amount are read, and columns of the user."""
    return row.keys() >= {*REPORT_COLUMNS}


def _read_key(row: Mapping[Any, Any]) -> str | None:
    key = row.get("key")
    if key is None or key == "":
        return None
    plain = key.removeprefix("'").replace(";'", ";") if _is_report(row) and isinstance(key, str) else key
    if isinstance(plain, str) and plain != key and csv_cell(plain) == key:  # another key would pay again
        problem = "key may have got an apostrophe from the report: write it as it was, without the report's columns"
        raise InvalidRequest(problem, argument="key")
    return str(require_key("key", key))  # plain, for errors that name it


def _read_info(row: Mapping[Any, Any]) -> Mapping[str, str]:
    """Return the other columns of a row."""
    known = {"key", *_NEEDED, *(REPORT_COLUMNS if _is_report(row) else ())}
    others = [(name, value) for name, value in row.items() if name and name not in known]
    try:
        info = _Row((str(name), HiddenText("" if value is None else value)) for name, value in others)
    except ValueError:  # an int of more digits than Python writes
        raise unfit("has a value that is too large for a text") from None
    taken = [name for name in REPORT_COLUMNS if name in info]
    if taken:
        raise unfit(f"column {taken[0]!r} is one of the report's own: rename yours")
    for name, value in info.items():
        plain = normalize("NFKC", name).strip().casefold()
        if plain in _LIKE_KEY:  # keys made of the content in place of these would pay again after any change
            raise unfit(f"column {name!r} would not count as key: name it key, or otherwise")
        only = _FIXED.get(plain)
        if only and value.strip().casefold() not in {"", only.casefold()}:
            raise unfit(f"{name.strip()} must be {only}, or left out")
    if not can_encode("".join([*info, *info.values()])):
        raise unfit("has lone surrogates: UTF-8 has none")
    return info


def _read_amount(amount: Any) -> str:
    if not isinstance(amount, str):
        return normalise_amount(amount)
    try:
        return normalise_amount(amount.strip())
    except InvalidRequest:
        accepted = "a whole number of TZS above 0, in digits such as 15000"
        raise refuse("amount", accepted, advice=two_amounts(amount.strip())) from None


def _read_number(text: str, *, local_numbers: bool) -> str:
    if local_numbers:
        return tanzanian(text)
    with suppress(InvalidRequest):
        return normalise_phone_number(text)
    advice = number_advice(text) if isinstance(text, str) else ""
    if not advice and _is_local(text):
        said = "local_numbers (--local-numbers) reads it as Tanzanian"
        problem = f"phone_number does not begin with + and a country code: {said}"
        raise InvalidRequest(problem, argument="phone_number")
    raise refuse("phone_number", "in international format, such as +255681234567", advice=advice)


def _is_local(text: str) -> bool:
    try:
        tanzanian(text)
    except InvalidRequest:
        return False
    return True
