"""How commands end: exit codes, one line that says what to do next, Ctrl-C, and the question before money."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import typer
from anyio.lowlevel import checkpoint

from mobilemoney_async import AuditReport, errors
from mobilemoney_async.cli import doctor
from mobilemoney_async.cli.failures import ExitCode, Refused, conclude, explain, run
from mobilemoney_async.cli.options import confirm_money
from mobilemoney_async.cli.unclaimed import print_audit_as_csv
from mobilemoney_async.configuration.settings import Settings
from tests.support.patience import PATIENCE
from tests.support.terminal import TERMINAL, terminal


def of_database(text: str) -> errors.StoreError:
    """Return the error of a database that failed."""
    error = errors.StoreError(text)
    error.is_database = True
    return error


NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENDINGS: list[tuple[Exception, ExitCode, str]] = [
    (errors.InvalidRequest("amount must be digits", argument="amount"), ExitCode.USAGE, "amount must be digits"),
    (errors.OutcomeUnknown("lost", idempotency_key="k", sent_at=NOW), ExitCode.UNRESOLVED, "do not send it again"),
    (errors.WaitTimeout("late", transaction_id="t"), ExitCode.NOT_FINAL, "mobilemoney watch"),
    (errors.ConnectionFailed("ConnectError: not sent", outcome="not_sent"), ExitCode.ERROR, "mobilemoney doctor"),
    (errors.RequestTimeout("ReadTimeout"), ExitCode.ERROR, "mobilemoney doctor"),
    (errors.UnexpectedResponse("html", status_code=400), ExitCode.ERROR, "version prefix"),
    (errors.InvalidCredentials("x", status_code=400), ExitCode.ERROR, "do not guess"),
    (errors.InvalidToken("x", status_code=400), ExitCode.ERROR, "mobilemoney login"),
    (errors.TokenExpired("x", status_code=400), ExitCode.ERROR, "mobilemoney login"),
    (errors.PermissionDenied("x", status_code=400), ExitCode.ERROR, "permission"),
    (errors.TransactionNotFound("x", status_code=400), ExitCode.ERROR, "check the id"),
    (errors.InvalidTransactionId("x", status_code=400), ExitCode.ERROR, "copy the id"),
    (errors.RateLimitExceeded("x", status_code=400), ExitCode.ERROR, "wait a minute"),
    (errors.RateLimitExceeded("x", status_code=429, is_certain=False), ExitCode.ERROR, "gateway"),
    (errors.ServerError("x", status_code=400), ExitCode.ERROR, "try again later"),
    (errors.APIError("x", status_code=400), ExitCode.ERROR, "APIError (HTTP 400): x"),
    (errors.IdempotencyConflict("x"), ExitCode.ERROR, "payments show"),
    (errors.DuplicateSuspected("x", other_key="k"), ExitCode.ERROR, "payments reconcile"),
    (errors.AccountSuspended("it is suspended", state="SUSPENDED"), ExitCode.ERROR, "it is suspended"),
    (errors.NoSuchMerchant(), ExitCode.ERROR, "no such merchant"),
    (of_database("the store failed: locked"), ExitCode.ERROR, "mobilemoney doctor"),
    (errors.StoreError("payment 'k' is FINAL"), ExitCode.ERROR, "payment 'k' is FINAL"),
    (
        errors.LimitExceeded("it exceeds per_day", limit="per_day", most=Decimal(9), left=Decimal(4)),
        ExitCode.ERROR,
        "it exceeds per_day; pay less",
    ),
    (errors.InvalidCursor("the cursor is ahead of the feed"), ExitCode.ERROR, "ahead of the feed"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), ExitCode.USAGE, "/x: No such file"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), ExitCode.USAGE, "the working directory no longer"),
    (Refused("nobody is there", ExitCode.USAGE), ExitCode.USAGE, "nobody is there"),
]


def settings(**changes: object) -> Settings:
    values = {"profile": "shop", "base_url": "https://pay.example/v1", "is_production": True, **changes}
    return Settings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exc", "exit_code", "text"), ENDINGS, ids=[f"{n}-{type(e[0]).__name__}" for n, e in enumerate(ENDINGS)]
)
def test_every_error_is_one_line_and_an_exit_code(
    exc: Exception, exit_code: ExitCode, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the command, says what happened and what to do next; a group of errors counts as its first."""
    for raised in (exc, ExceptionGroup("tasks", [ExceptionGroup("inner", [exc])])):
        ended = conclude("get", raised)
        assert ended is not None
        assert ended.exit_code == exit_code
        shown = capsys.readouterr()
        assert shown.err.startswith("mobilemoney get: ")
        assert text in shown.err
        assert shown.err.count("\n") == 1
        assert not shown.out


def test_every_class_of_the_tree_has_an_ending() -> None:
    """No error of the library is left to a traceback."""
    covered = {type(exc) for exc, _, _ in ENDINGS}
    leaves = {each for each in _subclasses(errors.MobileMoneyError) if not list(_subclasses(each))}
    assert leaves <= covered


def _subclasses(cls: type[Exception]) -> Iterator[type[Exception]]:
    for each in cls.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from _subclasses(each)


def test_faults_of_ours_are_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    """What no person can do anything about keeps its traceback; a reader that has left is told nothing."""
    for exc in (ValueError("x"), ZeroDivisionError(), BrokenPipeError(errno.EPIPE, "x")):
        assert conclude("get", exc) is None
    assert capsys.readouterr() == ("", "")


@contextmanager
def nobody_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let standard output be a pipe whose reader has left."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1, encoding="utf-8") as output, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        yield


@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_that_leaves_hides_no_problem(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor | head -1` exits as `doctor` does, and so do others whose exit code says what was found."""
    given = dict.fromkeys(("profile", "config", "store", "account")) | {"base_url": "http://pay.example/v1"}
    with nobody_reads(monkeypatch), pytest.raises(typer.Exit) as caught:
        doctor.doctor(timeout=PATIENCE, as_json=as_json, all_accounts=False, **given)
    assert caught.value.exit_code == ExitCode.ERROR
    day: dict[str, Any] = {"from_date": NOW.date(), "to_date": NOW.date()}
    with nobody_reads(monkeypatch):
        print_audit_as_csv(AuditReport(transactions=0, payments=0, differences=[], totals=[], **day))


def test_no_text_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What a service says is shown on one line, without its control characters."""
    conclude("get", errors.APIError("no\x1b[2J\nway", status_code=400))
    assert capsys.readouterr().err == "mobilemoney get: APIError (HTTP 400): no[2J way\n"


def test_where_it_failed_is_said() -> None:
    """A connection that failed is named with its URL; where nobody configured one, the sandbox is proposed."""
    exc = errors.ConnectionFailed("ConnectError: not sent", outcome="not_sent")
    assert explain(exc, settings())[0].startswith("https://pay.example/v1: ConnectError")
    built_in = settings(sources={"base_url": "built in"})
    assert "start one with mobilemoney sandbox" in explain(exc, built_in)[0]


class TestRun:
    def test_it_returns_what_the_work_returns(self) -> None:
        """A command that ends well is left alone."""

        async def work() -> str:
            await checkpoint()
            return "done"

        assert run("get", work) == "done"

    def test_it_ends_the_program_where_the_work_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The exit code is the error's; what is no error of a person's is raised as it is."""

        async def work() -> None:
            raise errors.WaitTimeout("late", transaction_id="t")

        with pytest.raises(typer.Exit) as ended:
            run("watch", work)
        assert ended.value.exit_code == 4
        assert capsys.readouterr().err.startswith("mobilemoney watch: late; ")

        async def broken() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run("watch", broken)


PROGRAM = """
import anyio, sys, typer
from mobilemoney_async.cli.failures import run

async def work():
    print("working", flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print("cleaning up", flush=True)
        with anyio.CancelScope(shield=True):
            await (anyio.sleep_forever() if sys.argv[1:] == ["stuck"] else anyio.sleep(0))
        print("clean", flush=True)

app = typer.Typer(add_completion=False)

@app.command()
def main(how: str = typer.Argument("")):
    run("watch", work, open_work=lambda: ["payment tx_1 is still open: mobilemoney watch tx_1"])

app()
"""


@pytest.mark.costly("no quick test interrupts a command in a terminal")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_cleans_up_and_says_what_is_open(name: str) -> None:
    """Ctrl-C and SIGTERM let the work end in order; what is still open is told, and the exit code is 130."""
    with terminal(program=f"{TERMINAL}\n{PROGRAM}") as screen:
        screen.wait_for("working")
        screen.interrupt(name)
        assert screen.end() == 130, screen.text
    assert screen.text.replace("^C", "").splitlines() == [
        "working",
        "cleaning up",
        "clean",
        "mobilemoney watch: interrupted",
        "mobilemoney watch: payment tx_1 is still open: mobilemoney watch tx_1",
    ]


# A signal goes to a thread that does not block it, and interrupts no wait of another.
ELSEWHERE = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
"""


@pytest.mark.parametrize("before", ["", ELSEWHERE], ids=["in its wait", "elsewhere"])
def test_a_second_interrupt_ends_at_once(before: str) -> None:
    """A cleanup that hangs is not in the way of a person who presses Ctrl-C again; what is open is told even so.

    Nor is a wait that the signal does not interrupt itself, as it comes right before it, or to another thread.
    """
    with terminal("stuck", program=f"{TERMINAL}\n{before}{PROGRAM}") as screen:
        screen.wait_for("working")
        screen.interrupt()
        screen.wait_for("cleaning up")
        screen.interrupt()
        assert screen.end() == 130, screen.text
    assert "payment tx_1 is still open" in screen.text
    assert "Traceback" not in screen.text


class TestConfirm:
    def test_simulated_money_moves_without_a_question(self) -> None:
        """A sandbox asks nothing, and --yes has agreed beforehand."""
        confirm_money(settings(is_production=False), "collect")
        confirm_money(settings(), "collect", yes=True)
