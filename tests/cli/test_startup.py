"""The list of commands: quick to show, true to the commands, completed by the shell, and documented."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from mobilemoney_async import TransactionStatus
from tests.support.commands import MOBILEMONEY, run_alone
from tests.support.patience import PATIENCE
from tests.support.processes import environment

with warnings.catch_warnings():
    # What the lowest typer that is allowed takes from the newest click is deprecated there.
    warnings.simplefilter("ignore", DeprecationWarning)
    from mobilemoney_async.cli.app import COMMANDS, app
    from mobilemoney_async.cli.failures import ExitCode

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
# What a list of commands needs none of: the client and what it brings, the sandbox, databases, tables.
HEAVY = ("httpx", "anyio", "asyncio", "ssl", "msgspec", "cattrs", "sqlalchemy", "starlette", "uvicorn", "rich.table")
OURS = ("calls", "client", "contract", "payments", "polling", "resources", "sandbox")


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as the console script does, which is called `mobilemoney`."""
    variables = environment(COLUMNS="100", TERM="dumb", **variables)
    return run_alone(*arguments, env=variables)


def test_the_list_of_commands_loads_nothing_heavy() -> None:
    """`mobilemoney --help` imports neither the client nor anything that it brings: it is there at once."""
    report = (
        "import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))"
    )
    command = [sys.executable, "-c", f"{report}; {MOBILEMONEY}", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)
    assert ran.returncode == 0, ran.stderr
    assert "collect" in ran.stdout
    loaded = json.loads(ran.stderr)
    unwanted = (*HEAVY, *(f"mobilemoney_async.{name}" for name in OURS))
    assert [
        name for name in loaded if name in unwanted or name.startswith(tuple(f"{each}." for each in unwanted))
    ] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_list_says_what_the_command_says(command: Any) -> None:
    """The line about a command is the first sentence of its own help."""
    assert command.listed().get_short_help_str(500) == command.load().get_short_help_str(500)


def test_without_a_command_the_list_is_shown() -> None:
    """Groups by what they are for, each command with its whole line."""
    ran = run()
    assert ran.returncode in {0, 2}  # by the version of typer
    shown = ran.stdout + ran.stderr
    assert re.findall(r"^(\w.*):$", shown, re.MULTILINE) == ["Options", "Payments", "Account", "Trying it out"]
    assert "..." not in shown.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    "arguments",
    [
        *("otp verify +255681234501 s3cr3t", "otp s3cr3t", "login s3cr3t", "login --email a@b.example s3cr3t x"),
        *("s3cr3t", "qzxkjv", "otp qzxkjv", "payments qzxkjv list"),
    ],
)
def test_a_surplus_argument_is_not_shown(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be a secret, given where no command reads one."""
    with pytest.raises(SystemExit) as ended:
        app(arguments.split(), prog_name="mobilemoney")
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert "s3cr3t" not in said.err
    assert "qzxkjv" not in said.err
    assert "81234501" not in said.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["lst"], "mobilemoney: No such command; did you mean list; see mobilemoney --help"),
        (["--bogus"], "mobilemoney: No such option: --bogus"),
        (
            ["disburse", "+255681234567", "1000", "--key", "--no-wait"],
            "mobilemoney disburse: --key has no value, since --no-wait follows; if that is the value: --key=--no-wait",
        ),
        (
            ["payments", "explain", "tx-1", "--note", "-y"],
            "mobilemoney payments explain: --note has no value, since",
        ),
        (["payouts", "cancel", "1", "--by", "--", "x"], "mobilemoney payouts cancel: --by has no value, since -- "),
        (
            ["payments", "list", "--account", "--json"],
            "mobilemoney payments list: --account has no value, since",
        ),
        (["sandbox", "--host", "--by-hand"], "mobilemoney sandbox: --host has no value, since --by-hand follows"),
        (["list", "--profile", ""], "mobilemoney list: the value of --profile is empty; see mobilemoney list --help"),
        (["payments", "cancel", "x", "--note="], "mobilemoney payments cancel: the value of --note is empty"),
        (
            ["payments", "show", "-key"],
            "mobilemoney payments show: No such option: -k; an id or key that begins with - goes behind --; see ",
        ),
        (["sandbox", "nubers"], "mobilemoney sandbox: No such command; did you mean numbers"),
        (["otp", "request"], "mobilemoney otp request: Missing argument 'PHONE'"),
        (["profile", "--profile"], "mobilemoney profile: Option '--profile' requires an argument"),
        (["profile", "--profile", "shp"], "mobilemoney profile: there is no profile 'shp'"),
        (["profile", "--config", "/nowhere.toml"], "mobilemoney profile: /nowhere.toml: No such file or directory"),
        (["doctor", "--store", "postgresql://u:s3cr3t@h/d"], "mobilemoney doctor: Invalid value for '--store'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It names the command, what is wrong, and where to look; and shows no secret again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("PROFILE", "CONFIG", "BASE_URL", "TOKEN", "STORE"):
        monkeypatch.delenv(f"MOBILEMONEY_{name}", raising=False)
    with pytest.raises(SystemExit) as ended:
        app(arguments, prog_name="mobilemoney")
    shown = capsys.readouterr()
    assert ended.value.code in {1, 2}
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert "s3cr3t" not in shown.err


class TestCompletion:
    def complete(self, words: str, folder: Path) -> list[str]:
        """Return what bash offers for the last of these words."""
        variables = {
            "_MOBILEMONEY_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            "XDG_CONFIG_HOME": str(folder),
        }
        ran = run(**variables)
        assert not ran.stderr
        return ran.stdout.split()

    @pytest.mark.slow
    def test_commands_and_profiles_are_completed(self, tmp_path: Path) -> None:
        """The shell knows the commands, their options, and the profiles of the file."""
        file = tmp_path / "mobilemoney" / "mobilemoney.toml"
        file.parent.mkdir()
        file.write_text('[profiles.shop]\nbase_url = "https://pay.example/v1"\n', "utf-8")
        assert self.complete("mobilemoney log", tmp_path) == ["login", "logout"]
        assert "--no-save" in self.complete("mobilemoney login --no", tmp_path)
        assert self.complete("mobilemoney doctor --profile s", tmp_path) == ["sandbox", "shop"]
        assert self.complete("mobilemoney payments rec", tmp_path) == ["reconcile", "recover"]
        assert self.complete("mobilemoney list --status ", tmp_path) == [*TransactionStatus]
        assert self.complete("mobilemoney list --type ", tmp_path) == ["collection", "disbursement"]

    def test_the_shell_gets_its_script(self) -> None:
        """`--show-completion` prints what the shell needs."""
        ran = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
        assert ran.returncode == 0, ran.stderr
        assert "_MOBILEMONEY_COMPLETE" in ran.stdout


def _commands() -> dict[str, Any]:
    """Return each command as it is typed, with the real one behind it: not what stands for it in a list."""
    found: dict[str, Any] = {}
    for command in COMMANDS:
        loaded = command.load()
        inside = getattr(loaded, "commands", {})
        if not inside or loaded.invoke_without_command:
            found[command.name] = loaded
        for name in inside:
            _, found[f"{command.name} {name}"], _ = loaded.resolve_command(loaded.context_class(loaded), [name])
    return found


class TestDocumented:
    def test_every_command_has_its_place_in_the_docs(self) -> None:
        """docs/cli.md documents the commands that exist, and no other."""
        headings = re.findall(r"^#{3,4} `mobilemoney ([^`]+)`$", PAGE, re.MULTILINE)
        assert sorted(headings) == sorted(_commands())

    def test_every_exit_code_is_explained(self) -> None:
        """The table of exit codes is that of the code."""
        rows = re.findall(r"^\| (\d+) \| ", PAGE, re.MULTILINE)
        assert rows == [str(int(code)) for code in ExitCode]

    def test_every_option_that_an_example_shows_exists(self) -> None:
        """No example shows a command or an option that there is not."""
        commands = _commands()
        lines = re.findall(r"^\$ (?:[A-Z_]+=\S+ )*mobilemoney (.+)$", PAGE, re.MULTILINE)
        assert len(lines) > 15
        for line in lines:
            words = re.split(r" (?:\||<|>|&) ?", line)[0].split()
            path = max((path for path in commands if words[: len(path.split())] == path.split()), key=len)
            known = {option for each in commands[path].params for option in (*each.opts, *each.secondary_opts)}
            assert {word for word in words if re.match("--[a-z]", word)} <= known, line
