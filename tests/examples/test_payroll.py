"""The payroll example: two people, real processes that are killed, the sandbox over a socket, and its ledger."""

import os
import random
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mobilemoney_async import PaymentState, SQLStore
from mobilemoney_async.sandbox import Choices, Sandbox, faults
from tests.support.commands import COMMANDS
from tests.support.patience import PATIENCE, until
from tests.support.processes import environment
from tests.support.scale import soak
from tests.support.shops import EXAMPLES, load
from tests.support.warm import SCRIPT, warm

PROGRAM = str(EXAMPLES / "payroll.py")
HEAD = "month,employee,phone_number,amount\n"
TWINS = ["2026-11,twin-1,+255681999999,500000", "2026-11,twin-2,+255681999999,500000"]
ROWS = [f"2026-11,E{number:03d},+2556812345{number:02d},{400_000 + 1000 * number}" for number in range(4)]
SPEED = 20.0


def write(folder: Path, *rows: str) -> Path:
    file = folder / "salaries.csv"
    file.write_text(HEAD + "".join(f"{row}\n" for row in rows), "utf-8")
    return file


@pytest.mark.soak
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_each_salary_is_paid_once_however_often_its_senders_are_killed(tmp_path: Path) -> None:
    """Sent by processes that are killed at any moment; an operator decides about what is unknown."""
    dice = random.Random(int(os.environ.get("PAYROLL_SEED", "11")))  # always the same, but for who tries others
    file, database = write(tmp_path, *ROWS, *TWINS), tmp_path / "payroll.db"
    store_url = f"sqlite:///{database}"
    sandbox = Sandbox(speed=SPEED, balance=10**9, choices=Choices(latency=1.0, median_delay=4.0, longest_delay=8.0))
    sandbox.script(faults.drop(processed=False), on="b2c")
    sandbox.script(faults.drop(processed=True), on="b2c")

    async def run(*words: str) -> tuple[int, str]:
        program = partial(warm(*COMMANDS).run, SCRIPT, PROGRAM, *words, env=env, seconds=PATIENCE)
        ran = await anyio.to_thread.run_sync(program)
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.returncode, ran.stdout

    async def kill() -> None:
        """Run two senders, and kill both at a random moment."""
        enough = sandbox.requests.total + dice.randint(1, 10)
        sender = partial(warm(*COMMANDS).piped, SCRIPT, PROGRAM, *sending, env=env)
        with sender() as (first, *_), sender() as (second, *_):
            await until(lambda: sandbox.requests.total >= enough or all(each.has_ended for each in (first, second)))
            for each in (first, second):
                each.signal(signal.SIGKILL)
        with closing(sqlite3.connect(database)) as opened, opened:
            opened.execute("UPDATE mobilemoney_leases SET until = 0")  # as if the time of their leases were over

    async with sandbox.serve() as base_url:
        env = environment(MOBILEMONEY_BASE_URL=base_url, MOBILEMONEY_TOKEN=sandbox.token, MOBILEMONEY_STORE=store_url)
        _, proposed = await run("propose", str(file), "--by", "Asha")
        named = re.match(r"batch (\w+): 6 salaries, .*, digest (\w+)\nline 7: paid twice", proposed)
        assert named is not None, proposed
        batch, digest = named.groups()
        async with sandbox.client(store=SQLStore(store_url)) as client:
            await client.payouts.approve(batch, by="Juma", digest=digest)
        sending = ("send", batch, "--speed", f"{SPEED}", "--grace", "0.4", "--wait", "7")
        for _ in range(soak(4)):
            await kill()
        code, said = await run(*sending)
        async with sandbox.client(store=SQLStore(store_url, grace=0.4)) as client:
            for record in await client.payments.unresolved():
                assert code == 3 and re.search(rf"{record.key} .* (UNKNOWN|ABSENT)", said)
                if record.candidates:  # an operator looks at the service
                    await client.payments.identify(record.key, record.candidates[0], note="looked")
                    continue
                await client.payments.confirm_absent(record.key, note="looked")
                await client.disbursements.create(
                    phone_number=record.phone_number, amount=record.amount, idempotency_key=record.key
                )
            assert PaymentState.RELEASED not in {each.state for each in await client.payments.list()}
        assert await run(*sending) == (0, "paid: 6 of 6 salaries, 2,606,000 of 2,606,000 TZS\n")
    owed = Counter((row.split(",")[2], Decimal(row.split(",")[3])) for row in [*ROWS, *TWINS])
    assert Counter((entry.phone_number, entry.amount) for entry in sandbox.ledger) == owed
    assert len(sandbox.transactions) == len(ROWS) + len(TWINS)


@pytest.mark.slow
def test_the_sample_shows_every_ending() -> None:
    """Without an account the program plays all parts in a sandbox, and says what is left to do."""
    variables = environment(MOBILEMONEY_EMAIL="nobody@example.com")
    demo = ("demo", str(EXAMPLES / "salaries.csv"))
    ran = warm(*COMMANDS).run(SCRIPT, PROGRAM, *demo, env=variables, seconds=PATIENCE)
    assert ran.returncode == 3, ran.stderr
    batch, twice, *shared, paid, failed, unknown, sandbox = ran.stdout.splitlines()
    assert re.match(r"batch \w+: 7 salaries, 5,250,000 TZS, proposed, digest ", batch)
    assert twice == "line 5: paid twice? line 4 pays the same amount to the same number"
    assert shared == [f"line {line}: 2 lines pay this number: lines 4-5" for line in (4, 5)]
    assert paid == "paid: 5 of 7 salaries, 3,570,000 of 5,250,000 TZS"
    assert re.match(r"line 6  payout-\S+  700,000 TZS  \+25578…089  FAILED  RECIPIENT_NOT_FOUND", failed)
    assert re.match(r"line 8  payout-\S+  980,000 TZS  \+25578…204  (UNKNOWN|ABSENT)  ", unknown)
    assert sandbox == "The sandbox has paid 5 salaries, 3,570,000 TZS."
    assert not re.search(r"\+[0-9]{9}", ran.stdout + ran.stderr)


def test_a_wrong_file_is_refused_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its problems are said at once, with their lines and without numbers; nothing is recorded."""
    payroll = load("payroll")
    file = write(tmp_path, "2026-11,E1,0681234501,8.5", "", "2026-11,E2,+255681234502")
    monkeypatch.delenv("MOBILEMONEY_STORE", raising=False)
    assert payroll.main(["propose", str(file), "--by", "Asha"]) == 2
    assert "set MOBILEMONEY_STORE" in capsys.readouterr().err
    monkeypatch.setenv("MOBILEMONEY_STORE", f"sqlite:///{tmp_path}/never-made.db")
    monkeypatch.setenv("MOBILEMONEY_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("MOBILEMONEY_TOKEN", "token")
    assert payroll.main(["propose", str(file), "--by", "Asha"]) == 2
    said = capsys.readouterr().err
    assert "line 2: phone_number" in said and "line 4: has another number of values" in said and "681234" not in said
    assert payroll.main(["propose", str(tmp_path / "none.csv"), "--by", "Asha"]) == 1
    assert not list(tmp_path.glob("*.db"))
