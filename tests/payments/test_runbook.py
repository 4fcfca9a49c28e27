"""The runbook for backup and restore, executed line by line as it stands in the docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import DuplicateSuspected, SQLStore
from mobilemoney_async.sandbox import Sandbox
from tests.support.commands import served
from tests.support.databases import Postgres

RUNBOOK = re.compile(r"<!-- runbook: begin -->\n```bash\n(.*?)```", re.DOTALL)
NUMBER, ERASED = "+255780000789", "+255780000029"


def read_lines() -> list[str]:
    found = RUNBOOK.search(Path("docs/operations.md").read_text("utf-8"))
    assert found is not None
    return found[1].splitlines()


class Shell:
    """Shell of an operator, who types one line after the other."""

    def __init__(self, folder: Path, tools: Path, **variables: str) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), str(tools), os.environ["PATH"]])
        self._folder, self.variables = folder, {**os.environ, **variables, "PATH": path}

    def type(self, line: str) -> str:
        """Type a line that works, and return what it prints."""
        done = subprocess.run(
            ["bash", "-euc", f"{line}\nenv -0 >&2"],
            check=False,
            cwd=self._folder,
            env=self.variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
        if line.startswith("export "):
            name = line.removeprefix("export ").partition("=")[0]
            pairs = (each.partition("=") for each in done.stderr.split("\0"))
            self.variables[name] = next(value for key, _, value in pairs if key.endswith(name))
        return done.stdout


@pytest.mark.slow
@pytest.mark.real_time
def test_a_platform_is_restored_by_the_runbook(postgres_server: Postgres, tmp_path: Path) -> None:
    """What the backup has forgotten is not paid twice, what was erased stays so, and the books agree in the end."""
    lines, sandbox = read_lines(), Sandbox(merchants=2, speed=600)
    assert len(lines) == 10
    url = sa.make_url(postgres_server.new_database())
    store = url.render_as_string(hide_password=False)

    async def pay(key: str, number: str, where: str = store) -> str:
        async with sandbox.client(store=SQLStore(where, "shop-1", grace=1)) as client:
            made = await client.collections.create(number, 5_000, idempotency_key=key)
            async with client.poller(resume=True) as poller:
                await poller.wait(made)
            return made.transaction_id

    anyio.run(lambda: pay("before", ERASED))
    anyio.run(lambda: pay("known", "+255780000039"))
    with served(sandbox) as base_url:
        shell = Shell(
            tmp_path,
            postgres_server.tools,
            PGHOST=str(url.query["host"]),
            PGUSER=str(url.username),
            PGDATABASE=str(url.database),
            MOBILEMONEY_STORE=store,
            MOBILEMONEY_RESTORED=url.set(database="restored").render_as_string(hide_password=False),
            MOBILEMONEY_BASE_URL=base_url,
            MOBILEMONEY_TOKEN=sandbox.token,
        )
        shell.type(lines[0])
        transaction = anyio.run(lambda: pay("forgotten", NUMBER))
        anyio.run(lambda: SQLStore(store, "shop-1").erase(phone_number=ERASED))
        shell.type(lines[1])
        for line in lines[2:6]:
            shell.type(line)
        restored = shell.variables["MOBILEMONEY_RESTORED"]
        assert shell.variables["MOBILEMONEY_STORE"] == restored
        assert "1 of payment_records" in shell.type(lines[6])
        assert "shop-1" in shell.type(lines[7])
        shell.type(lines[8])
        with pytest.raises(DuplicateSuspected):
            anyio.run(lambda: pay("forgotten", NUMBER, restored))
        shell.variables |= {"KEY": "forgotten", "ID": transaction}
        shell.type(lines[9])
        assert anyio.run(lambda: pay("forgotten", NUMBER, restored)) == transaction
    assert len(sandbox.transactions) == 3
