"""Socket front (extra `sandbox`): the ASGI application under uvicorn's HTTP/1.1 protocol, in the running loop.

uvicorn's own `Server` is not used: it takes over the signal handlers, wakes ten times a second and ends the process
when it cannot start. Its protocol class is all that a sandbox needs, and a subclass can drop connections.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from mobilemoney_async.sandbox.asgi import CONNECTION, SandboxApp

# Seconds until the tasks of connections that were cut are cancelled, and then until they are abandoned.
_LEAVING = 1.0
_SHUTDOWN_TIMEOUT = 5.0

# Seconds. Longer than clients keep idle connections (httpx: 5), so that the server is never the one that closes a
# connection just as a payment is being sent on it.
_KEEP_ALIVE = 75

_LINGER_NOT_AT_ALL = struct.pack("ii", 1, 0)


class _State(ServerState):
    """uvicorn's connections and tasks, and whether the server has been closed."""

    is_closed = False


class _Protocol(H11Protocol):
    """uvicorn's protocol, which lets the application end its connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, CONNECTION: partial(_end_connection, transport)}
        # A connection that was accepted just before the end arrives here after it.
        if isinstance(self.server_state, _State) and self.server_state.is_closed:
            transport.abort()


@asynccontextmanager
async def serve(
    app: SandboxApp, *, host: str, port: int, background: Callable[[], Coroutine[Any, Any, None]]
) -> AsyncIterator[str]:
    """Serve until the context is left; then all connections are cut, and `background` is cancelled.

    Yields scheme, host and port of the server; raises as `Sandbox.serve` does.
    """
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,  # the service's clock is the sandbox's, which may be far from the computer's
        timeout_keep_alive=_KEEP_ALIVE,
    )
    config.load()
    state = _State()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: _Protocol(config=config, server_state=state, app_state={}, _loop=loop), host, port, reuse_address=True
    )
    bound_to, bound_port = listener.sockets[0].getsockname()[:2]
    worker = asyncio.create_task(background())
    try:
        # Cancelling the caller raises here, so the cleanup below always runs.
        yield origin(bound_to, bound_port)
    finally:
        worker.cancel()
        listener.close()
        state.is_closed = True
        for connection in list(state.connections):
            assert isinstance(connection, _Protocol), "every connection was made above"
            connection.transport.abort()
        await _end({worker, *state.tasks})
    if worker.done() and not worker.cancelled():
        worker.result()  # it only ends when cancelled, or by an error, which must be raised


def _end_connection(transport: asyncio.Transport, *, reset: bool) -> None:
    if not reset:
        transport.close()
        return
    # With no time to linger, closing sends RST in place of FIN.
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)
    transport.abort()


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Wait for the tasks of cut connections, then cancel the rest."""
    for grace in (_LEAVING, _SHUTDOWN_TIMEOUT):
        # Shielded: a cancelled caller still waits for the tasks, so that none outlives the server.
        with anyio.CancelScope(shield=True):
            _, tasks = await asyncio.wait(tasks, timeout=grace)
        if not tasks:
            return
        for task in tasks:
            task.cancel()


def origin(address: str, port: int) -> str:
    """Return the origin of an IP address and port, `http://` included."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
