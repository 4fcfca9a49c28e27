"""`mobilemoney sandbox` and the table of magic numbers, as functions."""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from mobilemoney_async.cli import sandbox as command
from mobilemoney_async.cli.app import app
from mobilemoney_async.cli.sandbox import numbers, run_sandbox
from mobilemoney_async.sandbox import Sandbox

URL, TOKEN = "export MOBILEMONEY_BASE_URL", "export MOBILEMONEY_TOKEN"


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """Undo the command's changes of its logger."""
    logger = logging.getLogger("mobilemoney_async.sandbox")
    before = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


def test_options_reach_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    async def serve(sandbox: Sandbox, host: str, port: int) -> None:
        made.append((sandbox.speed, sandbox.by_hand, sandbox.balance, len(sandbox.tokens), host, port))

    monkeypatch.setattr(command, "_serve", serve)
    given = ["--speed", "3", "--by-hand", "--host", "0.0.0.0", "--port", "0", "--merchants", "40", "--balance", "5000"]
    for arguments in (["sandbox", *given], ["sandbox"]):
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert made == [(3, True, 5000, 40, "0.0.0.0", 0), (1, False, Sandbox().balance, 1, "127.0.0.1", 8765)]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What it prints where it is stopped at once, by an error or in order."""

    def run(error: type[BaseException] | None = None, **options: Any) -> str:
        async def stopped() -> None:
            if error is not None:
                raise error

        monkeypatch.setattr(command, "until_stopped", stopped)
        run_sandbox(port=0, **options)
        return capsys.readouterr().out

    return run


def test_in_a_container_the_address_is_one_that_the_client_takes(printed: Callable[..., str]) -> None:
    """0.0.0.0 stands for every address, loopback included, and the client sends tokens over http to loopback only."""
    assert re.match(rf"{URL}=http://127\.0\.0\.1:\d+/v1\n", printed(host="0.0.0.0"))


def test_an_interrupt_that_is_no_signal_ends_it_too(printed: Callable[..., str]) -> None:
    assert printed(KeyboardInterrupt).endswith("stopped\n")


def test_the_tokens_of_many_merchants_are_printed(printed: Callable[..., str]) -> None:
    """`--merchants 3` prints a token for each, and the address at which a platform reads them."""
    out = printed(merchants=3)
    assert re.search(r"as JSON: http://127\.0\.0\.1:\d+/merchants\.json\n", out)
    assert re.findall(r"^(shop-\d)  sbx_\w+$", out, re.MULTILINE) == ["shop-1", "shop-2", "shop-3"]


def test_signals_end_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers are printed last, so that is when to send the signal."""

    def print_and_signal() -> None:
        numbers()
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(command, "numbers", print_and_signal)
    run_sandbox(port=0)
    assert capsys.readouterr().out.endswith("stopped\n")


def test_a_pipe_that_closed_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends quietly though nobody reads what it says: the port was free."""

    async def leave() -> None:
        os.close(reader)

    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(command, "until_stopped", leave)
        run_sandbox(port=0)


def test_an_obstacle_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="speed"):
        run_sandbox(port=0, speed=0)
    in_use = pytest.raises(SystemExit, match="cannot listen on")
    with socket.create_server(("127.0.0.1", 0)) as taken, in_use:
        run_sandbox(port=taken.getsockname()[1])
    with pytest.raises(SystemExit, match=r"203\.0\.113\.1") as elsewhere:
        run_sandbox(port=0, host="203.0.113.1")  # of no interface here
    assert "running there already" not in str(elsewhere.value)
    monkeypatch.delitem(sys.modules, "mobilemoney_async.sandbox.asgi", raising=False)
    monkeypatch.delitem(sys.modules, "mobilemoney_async.sandbox.server", raising=False)
    monkeypatch.delattr("mobilemoney_async.sandbox.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit, match=r"mobilemoney-async\[sandbox\]"):
        run_sandbox(port=0)
