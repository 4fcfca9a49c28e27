"""The command line as its user runs it: in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mobilemoney_async import AsyncClient, LoginAuth, __version__
from mobilemoney_async.sandbox import MAGIC_NUMBERS
from tests.support.commands import MOBILEMONEY, Command, run_alone, started
from tests.support.commands import run as run_inside
from tests.support.warm import run_without

PLAIN = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `mobilemoney` with these arguments."""
    return run_alone(*arguments, env=PLAIN)


def run_command_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with these arguments where a module is not installed."""
    return run_without(f"import sys; sys.modules[{module!r}] = None; {MOBILEMONEY}", *arguments, env=PLAIN)


@pytest.mark.slow
def test_demo_shows_every_kind_of_ending() -> None:
    """The demonstration exits 0 with the counts by final state, the money moved and no rate-limit rejection."""
    ran = run("demo", "--speed", "40")
    assert ran.returncode == 0, ran.stderr
    figures = dict(re.findall(r"^ *(\S.*?)  +([\d,.]+|yes|NO)\b", ran.stdout, re.MULTILINE))
    assert {state: figures[state] for state in ("SUCCESS", "FAILED", "TIMEOUT", "INSUFFICIENT_FUNDS")} == {
        "SUCCESS": "22",
        "FAILED": "6",
        "TIMEOUT": "1",
        "INSUFFICIENT_FUNDS": "1",
    }
    assert figures["rate-limit rejections"] == "0"
    assert figures["logins"] == "1"
    assert figures["agrees with the service's ledger"] == "yes"
    for reason in ("PAYER_NOT_FOUND", "PAYMENT_NOT_APPROVED", "INSUFFICIENT_BALANCE", "RECIPIENT_NOT_FOUND"):
        assert reason in ran.stdout
    assert not re.search(r"\+\d{8}", ran.stdout), "a whole phone number was shown"


def test_numbers_prints_the_whole_table() -> None:
    """`mobilemoney sandbox numbers` prints every magic number with its meaning."""
    ran = run_inside("sandbox", "numbers", COLUMNS="100")
    assert ran.exit_code == 0
    for number, row in MAGIC_NUMBERS.items():
        assert re.search(rf"^{re.escape(number)} .*{re.escape(row.meaning)}$", ran.stdout, re.MULTILINE)


@pytest.mark.slow
def test_version() -> None:
    """`mobilemoney --version` prints the version, and so does `python -m mobilemoney_async`."""
    assert run("--version").stdout == f"mobilemoney-async {__version__}\n"
    module = [sys.executable, "-m", "mobilemoney_async", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, check=True).stdout.endswith(f"{__version__}\n")


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_says_which_to_install(missing: str) -> None:
    """Without the extra `cli` the command names it in one line and exits 2."""
    ran = run_command_without(missing, "demo")
    assert ran.returncode == 2
    assert ran.stderr == 'mobilemoney: the command line needs an extra: pip install "mobilemoney-async[cli]"\n'


@pytest.mark.slow
@pytest.mark.parametrize("command", [["demo"], ["sandbox", "--port", "0"]])
def test_without_the_sandbox_extra_the_command_says_so(command: list[str]) -> None:
    """Without the extra `sandbox` the commands that serve it name it in one line."""
    ran = run_command_without("uvicorn", *command)
    assert ran.returncode == 1
    assert 'pip install "mobilemoney-async[sandbox]"' in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_without_the_store_extra_the_doctor_checks_the_rest(tmp_path: Path) -> None:
    """Without the extra `store`, the doctor checks all the same; a store is a problem that names the extra."""
    doctor = ("doctor", "--base-url", "http://127.0.0.1:9/v1")
    ran = run_command_without("sqlalchemy", *doctor)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "ok       store          none" in ran.stdout
    ran = run_command_without("sqlalchemy", *doctor, "--store", f"sqlite:///{tmp_path}/new.db")
    assert 'problem  store          store needs an extra: pip install "mobilemoney-async[store]"' in ran.stdout


@pytest.mark.parametrize("speed", ["0", "-1", "abc"])
def test_a_speed_out_of_range_is_refused(speed: str) -> None:
    """A speed that is no positive number is refused before anything starts."""
    ran = run_inside("demo", "--speed", speed)
    assert ran.exit_code == 2
    assert "--speed" in ran.stderr


@pytest.fixture
def sandbox() -> Iterator[tuple[Command, dict[str, str]]]:
    """`mobilemoney sandbox` on a free port, and what it printed of itself."""
    with started("sandbox", "--port", "0", "--speed", "50", env=PLAIN) as command:
        printed: dict[str, str] = {}
        while line := command.read_line().strip():
            name, value = re.split(": |=", line.removeprefix("export MOBILEMONEY_"), maxsplit=1)
            printed[name] = value
        yield command, printed


@pytest.mark.slow
@pytest.mark.real_time
async def test_the_served_sandbox_takes_payments_and_stops_on_ctrl_c(sandbox: tuple[Command, dict[str, str]]) -> None:
    """A program that knows only what the command printed can log in, collect and see the final state."""
    command, printed = sandbox
    assert set(printed) == {"BASE_URL", "TOKEN", "email", "password", "phone page"}
    for auth in (printed["TOKEN"], LoginAuth(printed["email"], printed["password"])):
        async with AsyncClient(printed["BASE_URL"], auth=auth) as client:
            prompt = await client.collections.create(phone_number="+255780000789", amount=100)
            assert (await client.transactions.wait(prompt.transaction_id)).succeeded
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        assert (await http.get(printed["phone page"])).status_code == 200
    command.interrupt()
    status, out, log = command.end()
    assert (status, out.endswith("stopped\n")) == (0, True)
    assert len([line for line in out.splitlines() if line.startswith("+255")]) == len(MAGIC_NUMBERS)
    assert "POST /v1/payment-service/airtel/c2b" in log
    assert "Traceback" not in log
    assert not any(secret in log for secret in (printed["TOKEN"], printed["password"]))
