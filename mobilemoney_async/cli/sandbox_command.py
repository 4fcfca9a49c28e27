"""`mobilemoney sandbox` and `mobilemoney numbers`, as plain functions; they print plain lines and need no rich."""

import logging
import os
import signal
import sys

import anyio

from mobilemoney_async.sandbox import MAGIC_NUMBERS, Sandbox


def run_sandbox(
    *,
    port: int = 8765,
    speed: float = 1.0,
    host: str = "127.0.0.1",
    seed: int = 0,
    by_hand: bool = False,
) -> None:
    """Serve a sandbox and its phone page until Ctrl-C (or SIGTERM), and log each request in one line on standard error.

    Args:
        port: TCP port; 0 takes a free one.
        speed: Divides delays and multiplies the rate limit.
        host: Address to listen on.
        seed: For ids, delays, token and password.
        by_hand: Whether payments of ordinary numbers wait for a person; it can be changed on the phone page.

    Raises:
        SystemExit: With a message: the extra `sandbox` is missing, the port is in use, or `speed` is not positive.
    """
    try:
        sandbox = Sandbox(speed=speed, seed=seed, by_hand=by_hand)
        anyio.run(_serve, sandbox, host, port, backend="asyncio")
    except (ImportError, ValueError) as exc:
        raise SystemExit(f"mobilemoney sandbox: {exc}") from exc
    except OSError as exc:
        # By its number: asyncio's own text says the address again.
        reason = os.strerror(exc.errno) if exc.errno else str(exc)
        raise SystemExit(
            f"mobilemoney sandbox: cannot listen on {host}:{port}: {reason}; is a sandbox running there already? "
            "--port 0 takes a free port"
        ) from exc
    except KeyboardInterrupt:
        # Where signals cannot be received as values, Ctrl-C arrives as this, after a clean stop.
        print("stopped", flush=True)


def print_numbers() -> None:
    """Print the magic phone numbers: number, what it applies to, meaning."""
    for row in MAGIC_NUMBERS.values():
        print(f"{row.phone_number}  {row.applies_to:<12}  {row.meaning}", flush=True)


async def _serve(sandbox: Sandbox, host: str, port: int) -> None:
    _log_to_standard_error()
    async with sandbox.serve(host, port) as base_url:
        print(f"base url: {base_url}", flush=True)
        print(f"token: {sandbox.token}", flush=True)
        print(f"email: {sandbox.email}", flush=True)
        print(f"password: {sandbox.password}", flush=True)
        print(f"phone page: {base_url.removesuffix('v1')}", flush=True)
        print(flush=True)
        print_numbers()
        await _until_stopped()
    print("stopped", flush=True)


async def _until_stopped() -> None:
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
