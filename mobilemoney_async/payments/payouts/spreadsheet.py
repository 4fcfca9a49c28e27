"""Sheet of an .xlsx file as rows of text (extra `xlsx`).

Its numbers are floats: one that is whole and below 2**53 becomes its digits at once, any other is marked. A phone
number that a spreadsheet has cut to 2.55681E+11 is whole, too.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta

from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import HiddenText, import_advice

SIGNATURE = b"PK\x03\x04"
"""First bytes of the file."""

# Bytes that its parts may have, once they are unpacked.
_MOST_UNPACKED = 200_000_000
# The reader shows these cells as empty ones: a key would be left out.
_ODD_CELLS = {
    "a cell shows an error, such as #N/A: correct it": re.compile(rb"<(?:\w+:)?c\b[^>]*\bt=[\"']e[\"']"),
    "a cell has a formula without its value: open the file in a spreadsheet program, and save it": re.compile(
        # A value that is an empty text has the type str.
        rb"<(?:\w+:)?c\b(?![^>]*\bt=[\"']str[\"'])[^>]*>\s*"
        rb"<(?:\w+:)?f\b(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)\s*"
        rb"(?:<(?:\w+:)?v\s*/>\s*|<(?:\w+:)?v>\s*</(?:\w+:)?v>\s*)?</(?:\w+:)?c>"
    ),
}


class OddCell(HiddenText):
    """Text of a cell that is no text and no number with exact digits; `place` is its name, such as C7."""

    place: str


def read_sheet(content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of the only sheet that has any, with their numbers.

    Raises:
        InvalidRequest: The extra is missing, or the file is damaged, too large, or has errors or several such sheets.
    """
    try:
        import python_calamine
    except ImportError as exc:
        raise InvalidRequest(f"an .xlsx file {import_advice('xlsx', exc)}", argument="rows") from exc
    try:
        _check_parts(content)
        book = python_calamine.CalamineWorkbook.from_object(io.BytesIO(content))
        sheets = [book.get_sheet_by_name(name).to_python(skip_empty_area=False) for name in book.sheet_names]
    except (python_calamine.CalamineError, zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as exc:
        if isinstance(exc, InvalidRequest):
            raise
        raise InvalidRequest(f"the file is no .xlsx that can be read ({type(exc).__name__})", argument="rows") from None
    filled = [sheet for sheet in sheets if any(any(cell != "" for cell in row) for row in sheet)]
    if filled[1:]:
        raise InvalidRequest("the file has several sheets with rows: keep one", argument="rows")
    for sheet in filled:
        for number, row in enumerate(sheet, 1):
            yield number, [_text(cell, number, column) for column, cell in enumerate(row, 1)]


def _check_parts(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        if sum(each.file_size for each in parts.infolist()) > _MOST_UNPACKED:
            raise InvalidRequest("the file is too large: divide it", argument="rows")
        for each in parts.infolist():
            sheet = parts.read(each) if each.filename.startswith("xl/worksheets/") else b""
            for said, odd in _ODD_CELLS.items():
                if odd.search(sheet):
                    raise InvalidRequest(said, argument="rows")


def _text(cell: float | str | bool | date | datetime | time | timedelta, row: int, column: int) -> str:
    if isinstance(cell, str):
        return HiddenText(cell.strip())
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return HiddenText(int(cell))
    odd = OddCell(cell.isoformat() if isinstance(cell, date | time) else cell)
    letters = ""
    while column:
        column, letter = divmod(column - 1, 26)
        letters = chr(ord("A") + letter) + letters
    odd.place = f"{letters}{row}"
    return odd
