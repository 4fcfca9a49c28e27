"""`mobilemoney payments changes` and `consumers`."""

from pathlib import Path

import pytest

from mobilemoney_async import SQLStore
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.testing import run_virtual
from tests.cli.test_payments import NUMBER, pay, run, run_json
from tests.support.databases import sqlite_url


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two payments of which a consumer could not handle the first change."""
    url, sandbox = sqlite_url(tmp_path), Sandbox(choices=Choices(rate_limit=None))
    pay(sandbox, url, "order-1", "order-2")

    async def fail() -> None:
        async with sandbox.client(store=SQLStore(url)) as client:
            async for change in client.payments.changes(consumer="books", start="oldest"):
                await change.failed("away")
                break

    run_virtual(fail)
    return url


def test_changes_are_listed_from_a_cursor(url: str) -> None:
    """Each with the cursor that the next call goes on behind; as a table without phone numbers, or as JSON."""
    found = run_json("changes", "--limit", "3", "--store", url)
    assert [(each["key"], each["state"]) for each in found] == [
        ("order-1", "SENDING"),
        ("order-1", "ACKNOWLEDGED"),
        ("order-2", "SENDING"),
    ]
    (last,) = run_json("changes", "--after", found[-1]["cursor"], "--store", url)
    table = run("changes", "--after", found[-1]["cursor"], "--store", url, COLUMNS="200").stdout
    assert last["cursor"] in table and "ACKNOWLEDGED" in table and NUMBER not in table
    assert "no such changes" in run("changes", "--after", last["cursor"], "--store", url).stderr
    wrong = run("changes", "--after", "x", "--store", url)
    assert wrong.exit_code == 1 and "the cursor is none of this library's" in wrong.stderr


def test_consumers_are_listed_with_what_they_could_not_handle(url: str, tmp_path: Path) -> None:
    """An operator sees who is behind."""
    (books,) = run_json("consumers", "--store", url)
    assert (books["name"], books["behind"], books["lagging"]) == ("books", 3, ["order-1"])
    assert "order-1" in run("consumers", "--store", url, COLUMNS="200").stdout
    assert "no consumers" in run("consumers", "--store", sqlite_url(tmp_path)).stderr
