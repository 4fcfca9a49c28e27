"""The payroll example: real processes that are killed, the sandbox over a socket, and its ledger at the end."""

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import anyio
import attrs
import pytest

from mobilemoney_async import SQLStore
from mobilemoney_async.payments.payments import PaymentBook
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Choices, Sandbox, faults
from tests.support.processes import environment
from tests.support.scale import soak
from tests.support.shops import EXAMPLES, load

PROGRAM = EXAMPLES / "payroll.py"
HEAD = "month,employee,phone_number,amount\n"
TWINS = ["2026-11,twin-1,+255681999999,500000", "2026-11,twin-2,+255681999999,500000"]
ROWS = [f"2026-11,E{number:03d},+2556812345{number:02d},{400_000 + 1000 * number}" for number in range(22)]
OPTIONS = ["--processes", "3", "--grace", "0.4", "--stale-after", "0", "--wait", "60"]
SPEED = 20.0


def write(folder: Path, *rows: str, head: str = HEAD) -> Path:
    file = folder / "salaries.csv"
    file.write_text(head + "".join(f"{row}\n" for row in rows), "utf-8")
    return file


@attrs.define(eq=False)
class Payroll:
    """The program, with one file, one store and one sandbox."""

    sandbox: Sandbox
    command: list[str]
    env: dict[str, str]
    store_url: str

    async def run(self) -> tuple[int, str]:
        """Run it to its end; return its exit code and what it said."""
        with anyio.fail_after(240):
            ran = await anyio.run_process(self.command, env=self.env, check=False)
        assert re.match(rb"[0-9]+ of 24 salaries are in the store already\n", ran.stderr)
        assert b"Traceback" not in ran.stderr, ran.stderr.decode()
        return ran.returncode, ran.stdout.decode()

    async def kill(self, dice: random.Random) -> bool:
        """Run it, and kill all of its processes at a random moment; return whether it was still at work."""
        until = self.sandbox.requests.total + dice.randint(1, 10)
        async with await anyio.open_process(
            self.command, env=self.env, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            with anyio.fail_after(120):
                while self.sandbox.requests.total < until and process.returncode is None:
                    await anyio.sleep(0.005)
                await anyio.sleep(dice.uniform(0, 0.1))
            if process.returncode is not None:
                return False
            os.killpg(process.pid, signal.SIGKILL)
        return True

    async def confirm_absent(self, said: str) -> int:
        """Do what the report says about absent payments, as a person who has looked; return how many there were."""
        book = PaymentBook(account_store(SQLStore(self.store_url)), lambda: self.sandbox.now)
        absent = [each for each in await book.unresolved() if each.walks >= 2 and not each.is_ambiguous]
        claimed = {record.transaction_id for record in await book.list()}
        for record in absent:
            assert re.search(rf"^absent: .*confirm-absent(.|\n)* {record.key} ", said, re.MULTILINE)
            for transaction in self.sandbox.transactions.values():
                kind = (transaction.phone_number, Decimal(transaction.amount))
                assert kind != (record.phone_number, record.amount) or transaction.id in claimed
            await book.confirm_absent(record.key, note="looked")
        return len(absent)


@pytest.mark.anyio
@pytest.mark.soak
@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_each_salary_is_paid_once_however_often_it_is_killed(tmp_path: Path) -> None:
    """Killed at any moment and started again, the program pays each salary once, and says what it does not know."""
    dice = random.Random(int(os.environ.get("PAYROLL_SEED", "11")))  # always the same, but for who tries others
    file = write(tmp_path, *ROWS, *TWINS)
    store_url = f"sqlite:///{tmp_path / 'payroll.db'}"
    sandbox = Sandbox(speed=SPEED, balance=10**9, choices=Choices(latency=1.0, median_delay=4.0, longest_delay=8.0))
    sandbox.script(faults.drop(processed=False), on="b2c")
    sandbox.script(faults.drop(processed=True), on="b2c")
    async with sandbox.serve() as base_url:
        command = [sys.executable, str(PROGRAM), str(file), "--store", store_url, "--speed", f"{SPEED}", *OPTIONS]
        env = environment(MOBILEMONEY_BASE_URL=base_url, MOBILEMONEY_TOKEN=sandbox.token)
        payroll = Payroll(sandbox, command, env, store_url)
        kills = [await payroll.kill(dice) for _ in range(soak(4))]
        assert any(kills)
        code, said = await payroll.run()
        assert code == 3, said
        assert await payroll.confirm_absent(said) >= 1
        for _ in range(2):  # a twin of what was absent waits until that is paid
            code, said = await payroll.run()
            if code == 0:
                break
        assert code == 0, said
        requests = sandbox.requests.count("b2c")
        assert await payroll.run() == (0, said)
        assert sandbox.requests.count("b2c") == requests
    owed = Counter((row.split(",")[2], Decimal(row.split(",")[3])) for row in [*ROWS, *TWINS])
    assert Counter((entry.phone_number, entry.amount) for entry in sandbox.ledger) == owed
    assert len(sandbox.transactions) == len(ROWS) + len(TWINS)
    assert said.startswith("paid: 24 of 24 salaries, ")


def test_the_sample_shows_every_ending(tmp_path: Path) -> None:
    """Without an account the program pays the sample file in a sandbox, and says what to do about each salary."""
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(EXAMPLES / "salaries.csv"), "--sandbox"],
        capture_output=True,
        text=True,
        env=environment(MOBILEMONEY_EMAIL="nobody@example.com"),
        timeout=240,
        check=False,
    )
    assert ran.returncode == 3, ran.stderr
    paid, failed, absent, sandbox = ran.stdout.strip().split("\n\n")
    assert paid == "paid: 5 of 7 salaries, 3,570,000 of 5,250,000 TZS"
    assert re.fullmatch(r"failed: .* --retry-failed\.\n  line 6 .*E005 .*RECIPIENT_NOT_FOUND", failed)
    assert re.match(r"absent: .*confirm-absent.*\n  line 8  payroll-2026-11/E007  980,000 TZS  \+25578…204 ", absent)
    assert sandbox == "The sandbox has paid 5 salaries, 3,570,000 TZS."
    assert not re.search(r"[0-9]{9}", ran.stdout + ran.stderr)


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        ("", ["line 1: the columns must be month,employee,phone_number,amount"]),
        ("employee,amount\nE1,5\n", ["line 1: the columns must be month,employee,phone_number,amount"]),
        (HEAD, ["there is no salary in it"]),
        (HEAD + "2026-11,E1,+255681234501,850000\n2026-11,E2,+255681234502,120", ["was the file cut off?"]),
        (
            HEAD + "2026-13,E/1,0681234501,8.5\n\n2026-11,E2,+255681234502,1\n2026-11,E2,+255681234503,2\n"
            "2026-12,E3,+255681234503,2\n2026-11,E4,+255681234504\n2026-11,E5,+255681234505,1,000\n",
            [
                "line 2: month must be ",
                "line 2: employee must be letters",
                "line 2: phone_number",
                "line 2: amount",
                "line 5: employee E2 is in line 4 too",
                "line 6: month differs from line 4",
                "line 7: not 4 values",
                "line 8: not 4 values",
            ],
        ),
        (HEAD + '2026-11,E1,"+255681234501,1\n', ["unexpected end of data"]),
    ],
)
def test_a_wrong_file_is_refused_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, problems: list[str]
) -> None:
    """All problems of a file are told at once, with their lines and without what is private, and nothing is sent."""
    file = write(tmp_path, head=content)
    assert load("payroll").main([str(file), "--store", "sqlite:///never-made.db"]) == 2
    said = capsys.readouterr().err.splitlines()[1:]
    assert len(said) == len(problems)
    for line, problem in zip(said, problems, strict=True):
        assert problem in line
        assert "681234" not in line


def test_what_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in another encoding and one that is not there are refused as well; a mark of Excel's is not in the way."""
    payroll = load("payroll")
    (tmp_path / "latin.csv").write_bytes(HEAD.encode() + "2026-11,Zoë,+255681234501,1\n".encode("latin-1"))
    for name in ("latin.csv", "none.csv"):
        assert payroll.main([str(tmp_path / name), "--store", "sqlite:///never-made.db"]) == 2
        assert "it cannot be read as UTF-8 text" in capsys.readouterr().err
    (salary,) = payroll.read_salaries(write(tmp_path, "2026-11,E1,+255 681-234 501,5000.00", head="\ufeff" + HEAD))
    assert (salary.key, salary.phone_number, salary.amount) == ("payroll-2026-11/E1", "+255681234501", 5000)
    assert "681" not in repr(salary)


def test_what_has_failed_is_paid_anew_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed row is refused while the old one may count; what failed is paid under a new key with --retry-failed."""
    payroll, paying = load("payroll"), load("payroll_paying")
    sandbox = Sandbox(speed=SPEED, choices=Choices(rate_limit=None, decided_delay=1.0))
    good, dead = "+255780000789", "+255780000089"
    store_url = f"sqlite:///{tmp_path / 'payroll.db'}"

    def run(*rows: str, retry: bool = False) -> str:
        job = payroll.Job(
            store=store_url,
            processes=1,
            grace=1.0,
            stale_after=None,
            wait=20.0,
            retry_failed=retry,
            speed=SPEED,
        )
        salaries = payroll.read_salaries(write(tmp_path, *rows))

        async def everything() -> str:
            try:
                payments = await payroll.prepare(job, salaries)
            except payroll.BadFileError as error:
                return str(error)
            async with job.client() as client:
                for each in payments:
                    if each.is_due:
                        await paying.send(client, each)
            code = payroll.report(await payroll.settle(job, payments), {})
            return f"{code} {capsys.readouterr().out}"

        return anyio.run(everything)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paying.AsyncClient, "from_env", sandbox.client)
        first, second = f"2026-11,E1,{good},1000", f"2026-11,E2,{dead},2000"
        assert run(first, second).startswith("4 paid: 1 of 2 salaries, 1,000 of 3,000 TZS\n\nfailed: ")
        assert run(first, second).startswith("4 paid: 1 of 2 ")
        assert "line 3: E2 has another number or amount than the payment sent before, which is failed" in run(
            first, f"2026-11,E2,{good},2000"
        )
        assert "before, which is paid" in run(f"2026-11,E1,{good},1001", second, retry=True)
        assert len(sandbox.transactions) == 2
        assert run(first, f"2026-11,E2,{good},2000", retry=True).startswith("0 paid: 2 of 2 salaries, 3,000 of 3,000")
        for retry in (False, True):
            assert run(first, f"2026-11,E2,{good},2000", retry=retry).startswith("0 paid: 2 of 2 ")
    assert [entry.amount for entry in sandbox.ledger] == [1000, 2000]
    assert len(sandbox.transactions) == 3
