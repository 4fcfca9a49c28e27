"""Coverage-guided fuzzing of what reads foreign bytes: answers, error texts, numbers, callbacks, mobilemoney.toml, CSV
files of payouts and of transactions to recover (atheris, libFuzzer).

    python -m tests.fuzz -max_total_time=120 NEW tests/fuzz/corpus

The first byte chooses the reader. New inputs are kept in the directory NEW. `nox -s fuzz` runs it for two minutes. An
input that breaks a law is written to a file `crash-…`; add it to the corpus with the fix.
"""

import re
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["mobilemoney_async"]):
    from mobilemoney_async.callbacks.names import candidates
    from mobilemoney_async.cli.failures import WrongUsage
    from mobilemoney_async.cli.unclaimed import read_pairs
    from mobilemoney_async.configuration.profiles import read_profiles
    from mobilemoney_async.contract import endpoints
    from mobilemoney_async.contract.comparison import international, may_be_number, read_date, same_number
    from mobilemoney_async.contract.error_mapping import Answer, read_answer
    from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
    from mobilemoney_async.payments.payouts.rows import digest, keys_of, read_rows, total_of
    from mobilemoney_async.text import redact, shown_id

ENDPOINTS = [each for each in vars(endpoints).values() if isinstance(each, endpoints.Endpoint)]
STATUSES = [200, 201, 204, 400, 401, 404, 409, 429, 500, 503]
OWN = "+255780000789"
FILE = Path(tempfile.mkdtemp(), "mobilemoney.toml")


def read(data: bytes) -> None:
    """Any status and any bytes give a value or one of our errors, of printable texts."""
    endpoint, status, body = ENDPOINTS[data[0] % len(ENDPOINTS)], STATUSES[data[1] % len(STATUSES)], data[2:]
    try:
        read_answer(endpoint, Answer(status_code=status, content_type=body[:80].decode("latin-1"), body=body))
    except MobileMoneyError as exc:
        for each in (str(exc), *(each for each in vars(exc).values() if isinstance(each, str))):
            check_text(each)


def check_text(text: str) -> None:
    """An error's text fits into a log, and onto a terminal."""
    assert text.isprintable()
    assert len(text) <= 500


def clean(data: bytes) -> None:
    """A cleaned text is one printable line without a whole phone number."""
    for text in (redact(data.decode("utf-8", "replace"), 500), shown_id(data.decode("utf-8", "replace"))):
        check_text(text)
        assert not re.search(r"\+[0-9]{9,}", text)


def compare(data: bytes) -> None:
    """Any text may stand where a number or a date is expected."""
    text = data.decode("utf-8", "replace")
    same_number(text, OWN), may_be_number(text, OWN), international(text), read_date(text)


def call_back(data: bytes) -> None:
    """Any body of a callback names payments or none."""
    candidates(data)


def configure(data: bytes) -> None:
    """Any mobilemoney.toml is read, or refused with a sentence."""
    FILE.write_bytes(data)
    try:
        read_profiles(FILE, {})
    except InvalidRequest as exc:
        check_text(str(exc))


def import_rows(data: bytes) -> None:
    """Any file of payouts is read, or refused with a sentence; what is read has a digest, keys and a total."""
    for is_local in (False, True):
        try:
            rows = read_rows(data, local_numbers=is_local)
            assert len(keys_of(digest(rows), rows)) == len(rows)
            assert total_of(rows) > 0
        except InvalidRequest as exc:
            check_text(str(exc))


def import_pairs(data: bytes) -> None:
    """Any file of transactions to recover is read, or refused with a sentence."""
    FILE.write_bytes(data)
    try:
        keys, numbers = read_pairs([], FILE)
        assert keys
        assert set(numbers) <= set(keys.values())
    except WrongUsage:
        pass


TARGETS = [read, read, clean, compare, call_back, configure, import_rows, import_pairs]


def one_input(data: bytes) -> None:
    if len(data) > 3:
        TARGETS[data[0] % len(TARGETS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
