"""The file of the payroll: salaries, read and checked as a whole."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mobilemoney_async import InvalidRequest
from mobilemoney_async.values import normalise_amount, normalise_phone_number

# The month is in the file. A month from the calendar, or typed again, could differ at the restart, and pay twice.
COLUMNS = ["month", "employee", "phone_number", "amount"]


@dataclass(frozen=True)
class Salary:
    """Salary of one employee: one row of the file."""

    line: int
    month: str
    employee: str
    phone_number: str = field(repr=False)
    amount: int

    @property
    def key(self) -> str:
        """Idempotency key of this payment, the same at each start."""
        return f"payroll-{self.month}/{self.employee}"


class BadFileError(Exception):
    """The file cannot be paid as it is."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))


def read_salaries(file: Path) -> list[Salary]:
    """Read and check the whole file, so that nothing of a wrong or incomplete file is sent.

    Raises:
        BadFileError: With all problems at once.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError([f"it cannot be read as UTF-8 text: {error}"]) from error
    problems = [] if text.endswith("\n") else ["the last line has no line end: was the file cut off?"]
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    salaries: dict[str, Salary] = {}
    try:
        if rows.fieldnames != COLUMNS:
            raise BadFileError([f"line 1: the columns must be {','.join(COLUMNS)}"])
        for row in rows:
            wrong = list(check(row)) or list(add(salaries, rows.line_num, row))
            problems += [f"line {rows.line_num}: {each}" for each in wrong]
    except csv.Error as error:
        problems.append(f"line {rows.line_num}: {error}")
    if problems or not salaries:
        raise BadFileError(problems or ["there is no salary in it"])
    return list(salaries.values())


def check(row: dict[str, str]) -> Iterator[str]:
    """Yield the problems of a row by itself."""
    if set(row) != set(COLUMNS) or None in row.values():
        yield f"not {len(COLUMNS)} values"
        return
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", row["month"]):
        yield "month must be such as 2026-11"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", row["employee"]):
        yield "employee must be letters, digits, '.', '_' and '-'"
    for column, normalise in (("phone_number", normalise_phone_number), ("amount", normalise_amount)):
        try:
            normalise(row[column])
        except InvalidRequest as error:
            yield str(error)


def add(salaries: dict[str, Salary], line: int, row: dict[str, str]) -> Iterator[str]:
    """Add a correct row; yield its conflicts with the other rows."""
    phone_number, amount = normalise_phone_number(row["phone_number"]), int(normalise_amount(row["amount"]))
    salary = Salary(line, row["month"], row["employee"], phone_number, amount)
    earlier = salaries.setdefault(salary.employee, salary)
    if earlier is not salary:
        yield f"employee {salary.employee} is in line {earlier.line} too"
    first = next(iter(salaries.values()))
    if salary.month != first.month:
        yield f"month differs from line {first.line}"
