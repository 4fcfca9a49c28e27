"""The feed with many processes that are killed at random."""

import subprocess
from collections import defaultdict

import anyio
import pytest

from mobilemoney_async import SQLStore
from mobilemoney_async.payments.store import account_store
from tests.payments.feed_crash import STATES, TABLES, connect
from tests.support.processes import module_command
from tests.support.scale import soak

# By default, in `nox -s soak`, and in `nox -t nightly`.
CHANGES, KILLS = {1: (480, 4), 4: (5_000, 20)}.get(soak(4), (20_000, 60))


@pytest.mark.soak
@pytest.mark.new_database
def test_no_reader_skips_a_change_however_often_processes_are_killed(postgres_url: str) -> None:
    """Eight writers and three readers: none skipped, none out of order; exactly once with a cursor of one's own."""
    anyio.run(account_store(SQLStore(postgres_url)).database.open)
    with connect(postgres_url) as books:
        books.execute(TABLES)
    command = module_command("tests.payments.feed_crash", postgres_url, str(CHANGES), str(KILLS))
    subprocess.run(command, check=True)  # it has a limit of its own
    with connect(postgres_url) as books:
        exactly = books.execute("SELECT key, state FROM books ORDER BY n").fetchall()
        at_least = books.execute("SELECT key, state FROM handled ORDER BY n").fetchall()
    for found in (exactly, list(dict.fromkeys(at_least))):
        of_each = defaultdict[str, list[str]](list)
        for key, state in found:
            of_each[key].append(state)
        assert set(map(tuple, of_each.values())) == {STATES}
        assert len(found) == len(of_each) * len(STATES) == CHANGES // 32 * 32
