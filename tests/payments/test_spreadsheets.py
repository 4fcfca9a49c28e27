"""Batches of payouts from spreadsheets: .xlsx files, and columns with names of the merchant's own."""

import builtins
import io
import traceback
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mobilemoney_async import InvalidRequest
from mobilemoney_async.payments.payouts.rows import digest, read_rows
from tests.support.sheets import cell, xlsx

NUMBER = "+255681234567"
HEADER = ("phone_number", "amount", "name")

HEAD = "<row r='1'>" + cell("A1", "phone_number") + cell("B1", "amount") + cell("C1", "key") + "</row>"
PAID = cell("A2", NUMBER) + cell("B2", 500)


def raw(sheet_data: str, *, before: str = "", folder: str = "worksheets/", sheet: str = "<sheet ") -> bytes:
    """Return a file with this content of its sheet, below the header."""
    file, made = io.BytesIO(), zipfile.ZipFile(io.BytesIO(xlsx({})))
    with made, zipfile.ZipFile(file, "w") as parts:
        for name in made.namelist():
            content = made.read(name).decode().replace("worksheets/", folder)
            content = content.replace("<sheet ", sheet).replace("<sheetData>", f"{before}<sheetData>{HEAD}{sheet_data}")
            parts.writestr(name.replace("worksheets/", folder), content)
    return file.getvalue()


def refused(rows: Any, **options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_rows(rows, **options)
    return str(caught.value)


@pytest.mark.parametrize("way", ["bytes", "open file", "path", "path as text"])
def test_a_sheet_pays_what_the_same_csv_pays(way: str, tmp_path: Path) -> None:
    """The rows, their lines and their digest are the same; blank rows and columns do not matter, nor an empty sheet."""
    content = xlsx({2: HEADER, 4: (f" {NUMBER}", 15_000, "Asha"), 5: (NUMBER, "2000.00", 7)}, {})
    (tmp_path / "salaries.xlsx").write_bytes(content)
    path = tmp_path / "salaries.xlsx"
    given: dict[str, Any] = {
        "bytes": content,
        "path": path,
        "path as text": str(path),
        "open file": io.BytesIO(content),
    }
    read = read_rows(given[way])
    assert [(row.line, row.phone_number, row.amount, row.info["name"]) for row in read] == [
        (4, NUMBER, "15000", "Asha"),
        (5, NUMBER, "2000", "7"),
    ]
    assert digest(read) == digest(read_rows(f"\n{','.join(HEADER)}\n\n{NUMBER},15000,Asha\n{NUMBER},2000,7\n"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((NUMBER, 0.5), "cell B2 is no text and no whole number"),
        ((NUMBER, "9007199254740993"), None),
        ((NUMBER, 9007199254740992), "cell B2"),
        ((NUMBER, 1e20), "cell B2"),
        ((255681234567.5, 1000), "cell A2"),
        ((NUMBER, 1000, 1.5), "cell C2"),
        ((NUMBER, -5), "amount must be"),
        ((255681234567, 1000), "phone_number does not begin with +"),
        ((NUMBER, "15,000"), "line 2: amount must be"),
    ],
    ids=str,
)
def test_a_number_counts_only_with_all_its_digits(row: tuple[object, ...], said: str | None) -> None:
    """A number cell is whole and below 2**53, or is refused with its cell: a spreadsheet keeps no more digits."""
    content = xlsx({1: ("phone_number", "amount", "key"), 2: row})
    if said is None:
        assert read_rows(content)[0].amount == row[1]
    else:
        assert said in refused(content)


def test_a_phone_number_may_be_a_number() -> None:
    """It is its digits, read as Tanzanian where you ask for it; the approver sees a cut one."""
    content = xlsx({1: HEADER, 2: (255681234567, 1000), 3: (681234567, 1000)})
    assert [row.phone_number for row in read_rows(content, local_numbers=True)] == [NUMBER, NUMBER]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04 and more", "no .xlsx that can be read"),
        (xlsx({1: HEADER}, {1: HEADER}), "several sheets"),
        (xlsx({}), "line 1 must be the header"),
        (xlsx({1: HEADER, 2: (NUMBER, 1000, "#N/A")}), "shows an error"),
        (xlsx({1: HEADER, 2: (NUMBER, 1000, "=A1")}), "cell C2 has a formula without its value: open the"),
        (xlsx({1: HEADER, 2: (NUMBER, 1000, "Asha", "more")}), "another number of values"),
        (xlsx({1: HEADER, 3: ("0681", 1000)}), "line 3: "),
    ],
    ids=["damaged", "two sheets", "empty", "an error", "a formula", "a cell too many", "a wrong row"],
)
def test_a_file_that_is_not_clear_is_refused_whole(content: bytes, said: str) -> None:
    """Nothing is guessed, and nothing recorded; the row is that of the sheet."""
    assert said in refused(content)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ('<c r="C2" t="str"><f>A1</f></c>', "cell C2 has a formula without its value"),
        ('<c r="C2"><f><![CDATA[A1<2]]></f></c>', "marks between its cells"),
        ('<c r="C2"><f>A1</f><!-- x --></c>', "comments or marks"),
        ('<c r="C2"><v>7<!-- x -->8</v></c>', "comments or marks"),
        ('<c t = "e"><v>#REF!</v></c>', "cell C2 shows an error"),
        ('<c r="C2" t="&#101;"><v>#REF!</v></c>', "cell C2 shows an error"),
        ('<c r="C2" t="str"><v>k</v><f>A1</f></c>', "cell C2 cannot be read for certain"),
        ('<c r="C2"><v>7</v><v/></c>', "cell C2 cannot be read for certain"),
        ('<c r="C2" t="inlineStr"><v>k</v></c>', "cell C2 cannot be read for certain"),
        ('<c r="?2"><v>7</v></c>', ""),
        ('<c r="?2" t="e"><v>7</v></c>', ""),
        ('<c r="C2"><v>7</v>', "no .xlsx that can be read (ParseError)"),
    ],
)
@pytest.mark.parametrize("folder", ["worksheets/", "", "Worksheets/"])
def test_a_cell_that_would_read_as_blank_is_refused(key: str, said: str, folder: str) -> None:
    """The batch would get keys of its content without a word, and pay again."""
    message = refused(raw(f'<row r="2">{PAID}{key}</row>', folder=folder))
    assert said in message
    assert "681234567" not in message


@pytest.mark.parametrize("key", ['<c r="C2" t="str"><f>A1</f><v></v></c>', '<c r="C2" t="str"/>', ""])
def test_a_cell_that_is_blank_is_none_that_was_not_read(key: str) -> None:
    assert read_rows(raw(f'<row r="2">{PAID}{key}</row>'))[0].key is None


def test_hidden_lines_and_columns_pay_nobody() -> None:
    """A filter may hide them from the person who proposes the file. Empty ones do not matter."""
    rows = f'<row r="2">{PAID}</row><row r="3" hidden="1"><c r="A3"/></row>'
    for columns, said in (("28", None), ("2", "hidden columns hold something (B, C)")):
        content = raw(rows, before=f'<cols><col min="{columns}" max="16384" hidden="1"/></cols>')
        assert said in refused(content) if said else len(read_rows(content)) == 1
    for row, hidden in ((4, "1"), (5, "true"), (7, "1"), (8, "0")):
        rows += f'<row r="{row}" hidden="{hidden}">{PAID.replace("2", str(row))}</row>'
    assert "hidden: lines 4-5, 7: show" in refused(raw(rows))
    flat = "".join(f'<row r="{row}" ht="{high}">{PAID.replace("2", str(row))}</row>' for row, high in ((2, 15), (3, 0)))
    assert "line 3" in refused(raw(flat))
    assert "line 2" in refused(raw(f'<row hidden="1">{PAID}</row>'))  # the next one, where it has no number
    assert "(B)" in refused(raw(f"<row>{PAID}</row>", before='<cols><col min="2" max="2" width="0.1"/></cols>'))
    unused = '<sheetFormatPr zeroHeight="1" defaultRowHeight="15"/>'  # of rows that are not written
    assert len(read_rows(raw(f'<row r="2">{PAID}</row>', before=unused))) == 1
    low = '<sheetFormatPr zeroHeight="1" defaultRowHeight="0"/>'
    assert "line 1" in refused(raw(f'<row r="2" ht="15">{PAID}</row>', before=low))
    for first, said in (("2", "(A)"), ("1", None)):
        columns = f'<cols><col min="{first}" max="9" width="9"/></cols>'
        content = raw(f'<row r="2">{PAID}</row>', before=f'<sheetFormatPr defaultColWidth="0"/>{columns}')
        assert said in refused(content) if said else len(read_rows(content)) == 1
    for state in ("hidden", "veryHidden"):
        said = refused(raw(f'<row r="2">{PAID}</row>', sheet=f'<sheet state="{state}" '))
        assert said.endswith("the sheet with the rows is hidden: show it")


@pytest.mark.slow
def test_a_sheet_that_would_fill_the_memory_is_refused() -> None:
    """Some kilobytes may unpack to gigabytes: their size is checked first."""
    file = io.BytesIO(xlsx({1: HEADER}))
    with zipfile.ZipFile(file, "a", compression=zipfile.ZIP_DEFLATED) as parts:
        for number in range(6):
            parts.writestr(f"xl/media/{number}", bytes(40_000_000))
    assert "too large" in refused(file.getvalue())


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "python_calamine":
            raise ModuleNotFoundError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    assert 'pip install "mobilemoney-async[xlsx]"' in refused(xlsx({1: HEADER}))


@pytest.mark.parametrize(
    "rows",
    [
        f"Namba;Kiasi;Jina\n{NUMBER};1000;Asha\n",
        xlsx({1: ("Namba", "Kiasi", "Jina"), 2: (NUMBER, 1000, "Asha")}),
        [{"Namba": NUMBER, "Kiasi": 1000, "Jina": "Asha"}],
    ],
    ids=["CSV", ".xlsx", "mappings"],
)
def test_columns_may_have_names_of_your_own(rows: Any) -> None:
    """The other columns keep theirs, and the digest is that of the same rows under our names."""
    (row,) = read_rows(rows, columns={"phone_number": "Namba", "amount": "Kiasi"})
    assert (row.phone_number, row.amount, row.info) == (NUMBER, "1000", {"Jina": "Asha"})
    assert digest([row]) == digest(read_rows(f"phone_number,amount,Jina\n{NUMBER},1000,Asha\n"))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"phone_number": "Namba", "amount": "Kiasi", "key": "Rejea"}, "it lacks Rejea"),
        ({"amount": "Kiasi"}, "it lacks phone_number"),
        ({"phone_number": "Namba", "amount": "Namba"}, "columns must be a mapping to different names"),
        ({"sum": "Kiasi"}, "columns must be a mapping of phone_number, amount or key"),
        ({"amount": ""}, "columns must be"),
        ("amount=Kiasi", "columns must be a mapping of"),
    ],
    ids=str,
)
def test_wrong_names_of_columns_are_refused(columns: Any, said: str) -> None:
    """A column that you have named must be there: a key that is missed would be another payment."""
    assert said in refused(f"Namba;Kiasi\n{NUMBER};1000\n", columns=columns)


@pytest.mark.parametrize(
    "rows",
    [
        f"phone_number,amount,other\n{NUMBER},15 000,{NUMBER}\n",
        f"phone_number,amount,other\n{NUMBER},1.5,{NUMBER}\n".encode(),
        f'phone_number,amount\n{NUMBER},1\n"{NUMBER},1\n',
        xlsx({1: HEADER, 2: (int(NUMBER), 1.5, NUMBER)}),
        xlsx({1: (NUMBER,)}, {1: (NUMBER,)}),
        raw(f'<row r="2">{PAID}<c r="C2" t="inlineStr"><v>k</v></c></row>'),
        raw(f'<row r="2" hidden="1">{PAID}</row>'),
        [{"phone_number": NUMBER, "amount": "1.5", "other": NUMBER}],
        [{"phone_number": NUMBER, "amount": 1, "Namba": NUMBER}],
    ],
    ids=["CSV", "bytes", "no CSV", ".xlsx", "two sheets", "a cell", "hidden", "mappings", "twice"],
)
def test_no_frame_of_ours_shows_a_number_of_a_file(rows: Any) -> None:
    """Crash reporters send the locals of each frame."""
    with pytest.raises(InvalidRequest) as caught:
        read_rows(rows, columns={"phone_number": "Namba"} if isinstance(rows, list) and "Namba" in rows[0] else None)
    error: BaseException | None = caught.value
    while error is not None:
        frames = traceback.TracebackException.from_exception(error, capture_locals=True).stack
        ours = [frame for frame in frames if "/mobilemoney_async/" in frame.filename]
        assert [frame.name for frame in ours if "681234567" in str(frame.locals)] == []
        error = error.__context__
