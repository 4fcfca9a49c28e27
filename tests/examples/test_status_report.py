"""The status report example: what it says, and what it costs."""

import csv
import io
from collections import Counter
from pathlib import Path

import anyio
import pytest

from mobilemoney_async.sandbox import Choices, Sandbox
from tests.support.shops import load


@pytest.mark.slow
def test_a_thousand_transactions_cost_ten_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """A report of 1,000 transactions of a day has a row for each and takes one request for a hundred."""
    assert load("status_report").main(["--sandbox"]) == 0
    shown = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert len({row["transaction_id"] for row in rows}) == 1000
    assert Counter(row["status"] for row in rows) == dict.fromkeys(("SUCCESS", "FAILED", "TIMEOUT", "PENDING"), 250)
    assert rows[1]["failure_reason"] == "PAYMENT_NOT_APPROVED"
    assert {row["phone_number"] for row in rows} == {f"+25578…{each}" for each in ("789", "039", "408", "129")}
    assert shown.err.startswith("1000 transactions for 10 requests: 250 ")


def test_what_is_not_found_is_a_row_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are in the order of the ids, one for each distinct id; what the service does not know is said in its row."""
    sandbox = Sandbox(choices=Choices(rate_limit=None))

    async def create() -> str:
        async with sandbox.client() as client:
            made = await client.collections.create(phone_number="+255780000789", amount=5000)
            return made.transaction_id

    known = anyio.run(create)
    report = load("status_report")
    monkeypatch.setattr(report.AsyncClient, "from_env", sandbox.client)
    (tmp_path / "ids.txt").write_text(f"txn_none\n{known}\ntxn_none\n")
    assert report.main([str(tmp_path / "ids.txt"), "--since", sandbox.now.date().isoformat()]) == 1
    shown = capsys.readouterr()
    first, second = csv.DictReader(io.StringIO(shown.out))
    assert (first["transaction_id"], first["status"]) == ("txn_none", "")
    assert "TRANSACTION_NOT_FOUND" in first["error"]
    assert (second["transaction_id"], second["status"], second["amount"]) == (known, "PENDING", "5000")
    assert shown.err.startswith("2 transactions for 2 requests: ")


@pytest.mark.parametrize("arguments", [[], ["ids.txt", "--sandbox"], ["ids.txt", "--since", "yesterday"]])
def test_wrong_usage_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It is a file or the sandbox, and a day is a day."""
    with pytest.raises(SystemExit) as stopped:
        load("status_report").main(arguments)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_missing_file_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no file nothing is asked."""
    report = load("status_report")
    monkeypatch.setattr(report.AsyncClient, "from_env", Sandbox().client)
    assert report.main([str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err
