"""Spreadsheets as Excel writes them."""

import io
import zipfile
from collections.abc import Mapping
from xml.sax.saxutils import escape

_OFFICE = "http://schemas.openxmlformats.org"
_MAIN = f'xmlns="{_OFFICE}/spreadsheetml/2006/main"'
_RELATIONS = f'xmlns="{_OFFICE}/package/2006/relationships"'
_TYPE = f"{_OFFICE}/officeDocument/2006/relationships"
_CONTENT = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def cell(place: str, value: object) -> str:
    """Return a cell: a text as one, a formula as one that was never computed, and the number or error that it shows."""
    if isinstance(value, str) and value.startswith("="):
        return f'<c r="{place}"><f>{value[1:]}</f><v/></c>'
    if isinstance(value, str) and not value.startswith("#"):
        return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    kind = ' t="e"' if isinstance(value, str) else ""
    return f'<c r="{place}"{kind}><v>{value}</v></c>'


def write_row(number: int, cells: tuple[object, ...]) -> str:
    written = (cell(f"{chr(65 + at)}{number}", each) for at, each in enumerate(cells) if each is not None)
    return f'<row r="{number}">{"".join(written)}</row>'


def xlsx(*sheets: Mapping[int, tuple[object, ...]]) -> bytes:
    """Return a file with rows by their numbers, from column A on; None leaves a cell out."""
    file, numbers = io.BytesIO(), range(1, len(sheets) + 1)
    with zipfile.ZipFile(file, "w") as parts:
        override = '<Override PartName="/xl/{}" ContentType="{}.{}+xml"/>'
        types = override.format("workbook.xml", _CONTENT, "sheet.main")
        types += "".join(override.format(f"worksheets/sheet{number}.xml", _CONTENT, "worksheet") for number in numbers)
        relation = '<Relationship Id="r{}" Type="{}/{}" Target="{}"/>'
        to_sheets = (relation.format(number, _TYPE, "worksheet", f"worksheets/sheet{number}.xml") for number in numbers)
        named = "".join(f'<sheet name="s{number}" sheetId="{number}" r:id="r{number}"/>' for number in numbers)
        parts.writestr("[Content_Types].xml", f'<Types xmlns="{_OFFICE}/package/2006/content-types">{types}</Types>')
        first = relation.format(1, _TYPE, "officeDocument", "xl/workbook.xml")
        parts.writestr("_rels/.rels", f"<Relationships {_RELATIONS}>{first}</Relationships>")
        parts.writestr(
            "xl/_rels/workbook.xml.rels", f"<Relationships {_RELATIONS}>{''.join(to_sheets)}</Relationships>"
        )
        parts.writestr("xl/workbook.xml", f'<workbook {_MAIN} xmlns:r="{_TYPE}"><sheets>{named}</sheets></workbook>')
        for number, sheet in zip(numbers, sheets, strict=True):
            rows = "".join(write_row(*each) for each in sheet.items())
            parts.writestr(
                f"xl/worksheets/sheet{number}.xml", f"<worksheet {_MAIN}><sheetData>{rows}</sheetData></worksheet>"
            )
    return file.getvalue()
