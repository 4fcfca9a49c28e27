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
from typing import TYPE_CHECKING, Any

from mobilemoney_async.contract.codec import Content
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.text import name_lines
from mobilemoney_async.values import HiddenText, import_advice

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SIGNATURE = b"PK\x03\x04"
"""First bytes of the file."""

# Bytes that its parts may have, once they are unpacked.
_MOST_UNPACKED = 200_000_000
_SAVE = "open the file in a spreadsheet program, and save it"
# The reader stops at a comment, and shows marked text as nothing. Spreadsheet programs write neither between cells.
_NO_CELL = re.compile(rb"sheetData\b.*?<[!?]", re.DOTALL)
_HIDDEN = {"1", "true"}


def unfit(problem: str) -> InvalidRequest:
    """Return the error for a file, or one of its rows."""
    return InvalidRequest(problem, argument="rows")


class OddCell(HiddenText):
    """Text of a cell that is no text and no number with exact digits; `place` is its name, such as C7."""

    place: str


def require_plain(name: str, cell: object) -> None:
    """Raise `InvalidRequest` for a cell of which no one can say what its author wrote, such as 2.0261128e+19."""
    if isinstance(cell, OddCell):
        raise unfit(f"cell {cell.place} is no text and no whole number below 2**53: {name} must be one")


class _Sheet(list[Any]):
    """Rows that a traceback with locals does not show."""

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


def read_sheet(content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of the only sheet that has any, with their numbers.

    Raises:
        InvalidRequest: The extra is missing, or the file is damaged, too large, or has errors or several such sheets.
    """
    try:
        import python_calamine
    except ImportError as exc:
        raise unfit(f"an .xlsx file {import_advice('xlsx', exc)}") from exc
    try:
        places = _check_parts(content)
        book = python_calamine.CalamineWorkbook.from_object(io.BytesIO(content))
        sheets = [_Sheet(book.get_sheet_by_name(name).to_python(skip_empty_area=False)) for name in book.sheet_names]
    except (
        python_calamine.CalamineError,
        zipfile.BadZipFile,
        NotImplementedError,
        OSError,
        SyntaxError,  # ElementTree's ParseError is one
        ValueError,
    ) as exc:
        if isinstance(exc, InvalidRequest):
            raise
        raise unfit(f"the file is no .xlsx that can be read ({type(exc).__name__})") from None
    filled = [
        (sheet, each.visible)
        for sheet, each in zip(sheets, book.sheets_metadata, strict=True)
        if any(any(cell != "" for cell in row) for row in sheet)
    ]
    if filled[1:]:
        raise unfit("the file has several sheets with rows: keep one")
    for sheet, shown in filled:
        if shown != python_calamine.SheetVisibleEnum.Visible:
            raise unfit("the sheet with the rows is hidden: show it")
        for number, column in places:
            if not (0 < number <= len(sheet) and 0 < column <= len(sheet[0])) or sheet[number - 1][column - 1] == "":
                raise unfit(f"cell {_letters(column)}{number} cannot be read for certain: {_SAVE}")
        for number, row in enumerate(sheet, 1):
            yield number, [_text(cell, number, column) for column, cell in enumerate(row, 1)]


def _check_parts(content: bytes) -> list[tuple[int, int]]:
    """Return the places of the cells that must not read as empty ones, by row and column."""
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        if sum(each.file_size for each in parts.infolist()) > _MOST_UNPACKED:
            raise unfit("the file is too large: divide it")
        contents = (Content(parts.read(each)) for each in parts.infolist())  # a sheet may be in any folder
        return [place for part in contents if part.find(b"sheetData") >= 0 for place in _check_sheet(part)]


def _check_sheet(sheet: Content) -> Iterator[tuple[int, int]]:
    """Refuse what the reader does not tell: it shows odd cells as empty ones, and hidden rows and columns as any.

    A key would be left out, and the row paid again; and people would be paid whom nobody saw.
    """
    from xml.etree import ElementTree as ET

    if _NO_CELL.search(sheet):
        raise unfit(f"a sheet has comments or marks between its cells: {_SAVE}")
    sized, width, height = list[tuple[range, bool]](), "1", "1"
    rows, columns, row = list[int](), set[int](), 0
    for _, element in ET.iterparse(io.BytesIO(sheet)):  # noqa: S314 - expat limits what entities become
        kind = element.tag.rpartition("}")[2]
        if kind == "sheetFormatPr":  # its zeroHeight hides rows that are not written, and so have no cells
            width, height = element.get("defaultColWidth", width), element.get("defaultRowHeight", height)
        elif kind == "col":
            span = range(int(element.get("min", 0)), int(element.get("max", 0)) + 1)
            sized.append((span, _is_hidden(element, "width", width)))
        elif kind == "row":
            row = int(element.get("r", row + 1))
            filled = dict(_filled_cells(element, row))
            # A shared text may be an empty one.
            yield from ((row, column) for column, cell in filled.items() if cell.get("t") != "s")
            if filled and _is_hidden(element, "ht", height):
                rows.append(row)
            is_narrow = float(width) < 1
            columns.update(at for at in filled if next((hidden for span, hidden in sized if at in span), is_narrow))
            element.clear()
    if rows:
        raise unfit(f"hidden: {name_lines(rows)}: show (remove the filter) or delete them")
    if columns:
        named = ", ".join(map(_letters, sorted(columns)[:10]))
        raise unfit(f"hidden columns hold something ({named}): show or delete them")


def _is_hidden(element: Element, size: str, default: str) -> bool:
    """Return whether no reader sees a row or a column: it is hidden, or not a point high or a character wide."""
    return element.get("hidden") in _HIDDEN or float(element.get(size, default)) < 1


def _filled_cells(element: Element, row: int) -> Iterator[tuple[int, Element]]:
    column = 0
    for cell in element.iterfind("{*}c"):
        column = _column(cell.get("r", "")) or column + 1
        if _is_filled(cell, row, column):
            yield column, cell


def _is_filled(cell: Element, row: int, column: int) -> bool:
    kind, parts = cell.get("t"), {part.tag.rpartition("}")[2]: part for part in cell}
    if kind == "e":
        raise unfit(f"cell {_letters(column)}{row} shows an error, such as #N/A: correct it")
    formula = parts.get("f")
    is_filled = any("".join(part.itertext()).strip() for part in cell if part is not formula)
    is_empty_text = kind == "str" and "v" in parts
    if formula is not None and not is_filled and not is_empty_text:
        raise unfit(f"cell {_letters(column)}{row} has a formula without its value: {_SAVE}")
    return is_filled


def _text(cell: float | str | bool | date | datetime | time | timedelta, row: int, column: int) -> str:
    if isinstance(cell, str):
        return HiddenText(cell.strip())
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return HiddenText(int(cell))
    odd = OddCell(cell.isoformat() if isinstance(cell, date | time) else cell)
    odd.place = f"{_letters(column)}{row}"
    return odd


def _column(place: str) -> int:
    number = 0
    for letter in place.rstrip("0123456789"):
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _letters(column: int) -> str:
    letters = ""
    while column > 0:
        column, letter = divmod(column - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters
