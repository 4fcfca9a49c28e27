"""`mobilemoney sandbox`: serve the sandbox and its phone page, and print the magic numbers. It needs no rich."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mobilemoney_async.cli.app import add_command, command_group
from mobilemoney_async.cli.output import ignoring_closed_pipe

if TYPE_CHECKING:
    from mobilemoney_async.sandbox import Sandbox

sandbox_app: typer.Typer = command_group(help="The service on your own machine, with simulated money.")

Speed = Annotated[
    float, typer.Option(min=0.01, max=1000.0, help="Divides the sandbox's delays and multiplies its rate limit.")
]

Balance = Annotated[
    int, typer.Option(metavar="TZS", min=0, help="Each merchant's opening balance, which pays disbursements.")
]


@sandbox_app.callback(invoke_without_command=True)
def sandbox(
    context: typer.Context,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port on loopback; 0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 within a container.")
    ] = "127.0.0.1",
    speed: Speed = 1.0,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Answer for the customers yourself, on the phone page.")
    ] = False,
    merchants: Annotated[
        int, typer.Option(min=1, max=10_000, help="Merchants, each with its own token, at one address.")
    ] = 1,
    balance: Balance = 10_000_000,
) -> None:
    """Serve the sandbox and its phone page until Ctrl-C."""
    if context.invoked_subcommand is None:
        run_sandbox(port, host, speed=speed, by_hand=by_hand, merchants=merchants, balance=balance)


@add_command(sandbox_app, "numbers")
def numbers() -> None:
    """Print the magic phone numbers and their effects."""
    from mobilemoney_async.sandbox import MAGIC_NUMBERS

    for row in MAGIC_NUMBERS.values():
        print(f"{row.phone_number}  {row.applies_to:<12}  {row.meaning}", flush=True)


def run_sandbox(port: int, host: str = "127.0.0.1", **options: Any) -> None:
    """Serve a sandbox and its phone page until Ctrl-C (or SIGTERM), and log each request on standard error.

    The options are those of `Sandbox`.

    Raises:
        SystemExit: With a message: the extra `sandbox` is missing, the port is in use, or `speed` is not positive.
    """
    from mobilemoney_async.sandbox import Sandbox

    try:
        # Fresh ids: the store of a program may know the payments of an earlier run.
        sandbox = Sandbox(run=secrets.token_hex(8), **options)
        run_server("sandbox", lambda: _serve(sandbox, host, port), host, port)
    except (ImportError, ValueError) as exc:
        raise SystemExit(f"mobilemoney sandbox: {exc}") from exc


def run_server(command: str, serve: Callable[[], Awaitable[None]], host: str, port: int) -> None:
    """Run a server that ends with Ctrl-C; raise `SystemExit` with a message if it cannot listen on its port."""
    import anyio

    try:
        anyio.run(serve, backend="asyncio")
    except OSError as exc:
        # By its number: asyncio's own text repeats the address. Errors of names have negative ones.
        reason = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
        advice = f"is a {command} running there already? --port 0 takes a free port"
        said = f"cannot listen on {host}, port {port}: {reason}"
        is_used = exc.errno == errno.EADDRINUSE
        raise SystemExit(f"mobilemoney {command}: {said}{f'; {advice}' if is_used else ''}") from exc
    except KeyboardInterrupt:
        # On platforms without signal receivers, Ctrl-C arrives as this error, after a clean stop.
        with ignoring_closed_pipe():
            print("stopped", flush=True)


async def _serve(sandbox: Sandbox, host: str, port: int) -> None:
    _log_to_standard_error()
    async with sandbox.serve(host, port) as served:
        # What they stand for, and the client sends tokens to.
        base_url = served.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        with ignoring_closed_pipe("the sandbox serves on"):
            print(f"export MOBILEMONEY_BASE_URL={base_url}\nexport MOBILEMONEY_TOKEN={sandbox.token}")
            print(f"email: {sandbox.email}\npassword: {sandbox.password}")
            print(f"phone page: {base_url.removesuffix('v1')}\n", flush=True)
            if len(sandbox.tokens) > 1:
                print(f"tokens of all merchants, as JSON: {base_url.removesuffix('v1')}merchants.json")
                print("\n".join(f"{name}  {token}" for name, token in sandbox.tokens.items()) + "\n", flush=True)
            numbers()
        await until_stopped()
    with ignoring_closed_pipe():
        print("stopped", flush=True)


async def until_stopped() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    import anyio

    if sys.platform == "win32":  # pragma: no cover
        await anyio.sleep_forever()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(aiter(signals))


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("mobilemoney_async.sandbox")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
