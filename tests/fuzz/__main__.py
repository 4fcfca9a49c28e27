"""Coverage-guided fuzzing of what reads foreign bytes: answers, error texts, numbers, callbacks (atheris, libFuzzer).

    python -m tests.fuzz -max_total_time=120 NEW tests/fuzz/corpus

The first byte chooses the reader. New inputs are kept in the directory NEW. `nox -s fuzz` runs it for two minutes. An
input that breaks a law is written to a file `crash-…`; add it to the corpus with the fix.
"""

import re
import sys

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["mobilemoney_async"]):
    from mobilemoney_async.callbacks.names import candidates
    from mobilemoney_async.contract import endpoints
    from mobilemoney_async.contract.comparison import international, may_be_number, read_date, same_number
    from mobilemoney_async.contract.error_mapping import Answer, read_answer
    from mobilemoney_async.errors import MobileMoneyError
    from mobilemoney_async.values import redact

ENDPOINTS = [each for each in vars(endpoints).values() if isinstance(each, endpoints.Endpoint)]
STATUSES = [200, 201, 204, 400, 401, 404, 409, 429, 500, 503]
OWN = "+255780000789"


def read(data: bytes) -> None:
    """Any status and any bytes give a value or one of our errors, of printable texts."""
    endpoint, status, body = ENDPOINTS[data[0] % len(ENDPOINTS)], STATUSES[data[1] % len(STATUSES)], data[2:]
    try:
        read_answer(endpoint, Answer(status_code=status, content_type=body[:80].decode("latin-1"), body=body))
    except MobileMoneyError as exc:
        texts = [str(exc), *(each for each in vars(exc).values() if isinstance(each, str))]
        assert all(each.isprintable() and len(each) <= 500 for each in texts)


def clean(data: bytes) -> None:
    """A cleaned text is one printable line without a whole phone number."""
    text = redact(data.decode("utf-8", "replace"), 500)
    assert text.isprintable()
    assert len(text) <= 500
    assert not re.search(r"\+[0-9]{9,}", text)


def compare(data: bytes) -> None:
    """Any text may stand where a number or a date is expected."""
    text = data.decode("utf-8", "replace")
    same_number(text, OWN), may_be_number(text, OWN), international(text), read_date(text)


def call_back(data: bytes) -> None:
    """Any body of a callback names payments or none."""
    candidates(data)


TARGETS = [read, read, clean, compare, call_back]


def one_input(data: bytes) -> None:
    if len(data) > 3:
        TARGETS[data[0] % len(TARGETS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
