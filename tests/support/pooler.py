"""Pooler of PostgreSQL in transaction mode, as PgBouncer is one: each transaction has the session that is idle longest.

Like PgBouncer it names a server process of its own to its clients, refuses `options`, and passes on no notices.
"""

import queue
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa

_PROTOCOL, _SSL, _GSS = 196608, 80877103, 80877104
_READY = b"Z\0\0\0\5I"


@contextmanager
def pooler(url: str, *, sessions: int = 3) -> Iterator[str]:
    """Run a pooler in front of a server with a socket in a folder and no password; yield the URL through it."""
    place = sa.make_url(url)
    assert place.database is not None
    idle = queue.Queue[tuple[socket.socket, bytes]]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        folder, user = place.query["host"], place.username or ""
        opened = [_open_session(f"{folder}/.s.PGSQL.5432", user, place.database) for _ in range(sessions)]
        for each in opened:
            idle.put(each)
        threading.Thread(target=_accept, args=(server, idle), daemon=True).start()
        try:
            through = place.difference_update_query(["host"])
            yield through.set(host="127.0.0.1", port=server.getsockname()[1]).render_as_string(hide_password=False)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for session, _ in opened:  # a thread may still have it, and would put it back
                with suppress(OSError):
                    session.shutdown(socket.SHUT_RDWR)
                session.close()


def _open_session(path: str, user: str, database: str) -> tuple[socket.socket, bytes]:
    """Return a session, and what its server has said of itself."""
    session = socket.socket(socket.AF_UNIX)
    session.connect(path)
    said = f"user\0{user}\0database\0{database}\0\0".encode()
    session.sendall(struct.pack("!II", 8 + len(said), _PROTOCOL) + said)
    settings = b""
    while (message := _read(session))[:1] != b"Z":
        settings += message if message[:1] == b"S" else b""
    return session, settings


def _accept(server: socket.socket, idle: queue.Queue[tuple[socket.socket, bytes]]) -> None:
    with suppress(OSError):  # it is closed
        while True:
            client, _ = server.accept()
            threading.Thread(target=_serve, args=(client, idle), daemon=True).start()


def _serve(client: socket.socket, idle: queue.Queue[tuple[socket.socket, bytes]]) -> None:
    session: tuple[socket.socket, bytes] | None = None
    with suppress(OSError), client:
        begin = _read(client, kind=0)
        while struct.unpack("!I", begin[4:8])[0] in {_SSL, _GSS}:
            client.sendall(b"N")
            begin = _read(client, kind=0)
        if b"\0options\0" in begin:
            said = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
            client.sendall(b"E" + struct.pack("!I", 4 + len(said)) + said)
            return
        session = idle.get()
        client.sendall(b"R\0\0\0\x08\0\0\0\0" + session[1] + b"K\0\0\0\x0c\x7f\xff\xff\xff\0\0\0\1" + _READY)
        message = _READY
        while True:
            if message == _READY:  # no transaction is open
                idle.put(session)
                session = None
            if (request := _read(client))[:1] == b"X":
                break
            session = session or idle.get()
            session[0].sendall(request)
            if request[:1] in b"QS":
                answer = b""
                while (message := _read(session[0]))[:1] != b"Z":
                    answer += message if message[:1] != b"A" else b""
                client.sendall(answer + message)
    if session is not None:
        session[0].close()


def _read(peer: socket.socket, *, kind: int = 1) -> bytes:
    """Read a message; raise `OSError` at the end. The first one of a connection has no letter for its kind."""
    head = _receive(peer, kind + 4)
    return head + _receive(peer, struct.unpack("!I", head[kind:])[0] - 4)


def _receive(peer: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = peer.recv(size - len(received))
        if not part:
            raise ConnectionError
        received += part
    return received
