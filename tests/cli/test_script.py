"""`mobilemoney sandbox script`: a sandbox whose requests meet the faults of a file."""

import inspect
import re
from pathlib import Path

import anyio
import pytest

from mobilemoney_async import AsyncClient, OutcomeUnknown, RetryPolicy
from mobilemoney_async.cli.script_file import KNOWN_FAULTS, ScriptFileError, play, read_script
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.fault_switches import SWITCHES
from tests.support.commands import run, started

EVERYTHING = """
[[rule]]                      # the first create: accepted, and the answer is lost
fault = "drop"
processed = true
on = "POST c2b"

[[rule]]
faults = [{ fault = "unknown_status", value = "HELD" }, { fault = "nulls" }]
on = "GET"
times = 2

[[rule]]
fault = "oldest-first"
probability = 1
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "faults.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_fault_can_be_named() -> None:
    """A script may name each function of the faults module, with all its parameters, and each switch of the page."""
    for name, function in inspect.getmembers(faults, inspect.isfunction):
        if inspect.signature(function).return_annotation is faults.Fault and not name.startswith("_"):
            assert list(KNOWN_FAULTS[name].parameters) == list(inspect.signature(function).parameters)
    for switch in SWITCHES:
        assert KNOWN_FAULTS[switch.slug].read({}).name == switch.fault().name


@pytest.mark.anyio
async def test_rules_strike_as_the_file_says(tmp_path: Path) -> None:
    """Faults, parameters, requests and times are those of the file, in its order."""
    sandbox = Sandbox()
    rules = read_script(write(tmp_path, EVERYTHING))
    assert list(map(str, rules)) == [
        "drop(processed=true) on POST c2b, once",
        'unknown_status(value="HELD") and nulls on GET, 2 times',
        "oldest-first on transactions, without end",
    ]
    play(rules, sandbox)
    async with sandbox.client() as client:
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(phone_number="+255681234501", amount=1_000)
        await client.collections.create(phone_number="+255681234502", amount=2_000)
        first, second = sandbox.transactions
        for _ in range(2):
            assert (await client.transactions.get(first)).status == "HELD"
        assert (await client.transactions.get(first)).status == "PENDING"
        assert [each.id for each in await client.transactions.list().collect()] == [first, second]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": no rule"),
        ("[[rule]", ": not TOML: "),
        ("rule = 1", ": no rule"),
        ("[[rules]]", ": unknown key 'rules'"),
        ("[[rule]]\nprocessed = true", ":1: rule 1: fault is missing; known are drop, "),
        ('[[rule]]\nfault = "lots"', ":1: rule 1: unknown fault 'lots'; did you mean 'lost'? known are drop, "),
        (
            '[[rule]]\nfault = "nulls"\n\n[[rule]]\nfault = "lost"',
            ":4: rule 2: lost: processed is missing: true or false",
        ),
        ('[[rule]]\nfault = "lost"\nprocessed = 1', ":1: rule 1: lost: processed must be true or false"),
        ('[[rule]]\nfault = "latency"\nseconds = -1', "latency: seconds must be a number, 0 or more"),
        ('[[rule]]\nfault = "latency"\nseconds = inf', "latency: seconds must be a number, 0 or more"),
        ('[[rule]]\nfault = "rate_limited"\nretry_after = 1.5', "retry_after must be a whole number, 0 or more"),
        ('[[rule]]\nfault = "html_page"\nstatus = 99', "html_page: status must be an HTTP status, 200 to 599"),
        ('[[rule]]\nfault = "list_order"\norder = "any"', 'order must be "newest-first" or "oldest-first"'),
        ('[[rule]]\nfault = "unknown_status"\nvalue = " "', "value must be a text that is not blank"),
        ('[[rule]]\nfault = "latency"\nsecs = 1', "latency: unknown key 'secs'; latency takes seconds"),
        ('[[rule]]\nfault = "slow"\nseconds = 1', "slow: unknown key 'seconds'; slow takes nothing"),
        ('[[rule]]\nfault = "nulls"\non = "POST pay"', "no request can match on='POST pay'; give a method"),
        ('[[rule]]\nfault = "nulls"\non = 1', "on must be a text"),
        ('[[rule]]\nfault = "nulls"\ntimes = 0', "times must be a whole number, 1 or more"),
        ('[[rule]]\nfault = "nulls"\nprobability = 2', "probability must be a number from 0 to 1"),
        ("[[rule]]\nfaults = []", "faults must be a list of tables"),
        ('[[rule]]\nfaults = [{ fault = "nulls" }]\nprocessed = true', "unknown key 'processed' beside faults"),
        ('rule = [{ fault = "lots" }]', "faults.toml: rule 1: unknown fault"),
    ],
)
def test_a_file_that_is_not_right_is_refused(text: str, said: str, tmp_path: Path) -> None:
    """An error names the file, the line where it is known, the rule, and what is accepted."""
    path = write(tmp_path, text)
    with pytest.raises(ScriptFileError) as caught:
        read_script(path)
    assert str(caught.value).startswith(f"{path}:")
    assert said in str(caught.value)


class TestCommand:
    def test_it_lists_the_faults(self) -> None:
        """--list prints every fault with what it takes, and an example that is right."""
        shown = run("sandbox", "script", "--list")
        assert shown.exit_code == 0
        assert all(re.search(rf"^{re.escape(name)}: ", shown.stdout, re.MULTILINE) for name in KNOWN_FAULTS)
        assert "    reset: true or false; false where it is left out\n" in shown.stdout

    def test_its_example_is_right(self, tmp_path: Path) -> None:
        """The example of --list can be served as it stands."""
        shown = run("sandbox", "script", "--list").stdout
        path = write(tmp_path, shown[shown.index("# The first") :])
        checked = run("sandbox", "script", str(path), "--check")
        assert (checked.exit_code, checked.stderr) == (0, "")
        assert checked.stdout.splitlines() == [
            "rule 1: lost(processed=true) on POST c2b, once",
            "rule 2: latency(seconds=3) and truncated on GET transaction, without end, with probability 0.2",
        ]

    def test_a_wrong_file_is_not_served(self, tmp_path: Path) -> None:
        """What is wrong with a file, or that there is none, is one line, and exit code 2."""
        for arguments in ([str(write(tmp_path, "[[rule]]"))], [str(tmp_path / "none.toml")], []):
            result = run("sandbox", "script", *arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert re.fullmatch(r"mobilemoney sandbox script: .*\n", result.stderr)

    def test_it_serves(self, tmp_path: Path) -> None:
        """A client of the sandbox that is served meets the faults of the file, and Ctrl-C stops it."""
        path = write(tmp_path, '[[rule]]\nfault = "server_error"\nprocessed = true\non = "c2b"\n')

        async def pay(base_url: str, token: str) -> None:
            async with AsyncClient(base_url, auth=token, retry=RetryPolicy(max_attempts=1)) as client:
                with pytest.raises(OutcomeUnknown):
                    await client.collections.create(phone_number="+255681234501", amount=1_000)
                assert (await client.collections.create(phone_number="+255681234501", amount=1_000)).transaction_id

        # The options of the sandbox may stand before the command, and its own behind it.
        with started("sandbox", "--speed", "7", "script", str(path), "--port", "0") as process:
            assert process.read_line() == "rule 1: server_error(processed=true) on c2b, once\n"
            printed = dict(process.read_line().strip().split(": ", 1) for _ in range(2))
            anyio.run(pay, printed["base url"], printed["token"])
            process.interrupt()
            code, output, _ = process.end()
        assert code == 0
        assert output.endswith("stopped\n")
