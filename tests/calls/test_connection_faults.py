"""A service that cannot be reached: the error says why and where, on every transport, and nothing was sent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute

from mobilemoney_async import AsyncClient, ConnectionFailed, RetryPolicy
from mobilemoney_async.calls import transport_pool
from tests.support.certificates import certificate, serve

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings(
        "ignore:.*(BasicAuth|proxy_auth).* deprecated:DeprecationWarning"
    ),  # of httpx-aiohttp, for a proxy
    pytest.mark.parametrize(
        ("anyio_backend", "transport"),
        [("asyncio", None), ("trio", None), ("asyncio", "aiohttp")],
        indirect=["anyio_backend"],
        ids=["asyncio", "trio", "aiohttp"],
    ),
]


@pytest.fixture(autouse=True)
def fresh_trust(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the clients of this test read anew what they trust, and use no proxy of this machine."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    transport_pool.ssl_context.cache_clear()
    yield
    transport_pool.ssl_context.cache_clear()


async def fault(base_url: str, transport: Any) -> str:
    """Return the text of the error of a payment."""
    retry = RetryPolicy(max_attempts=2, first_delay=0)
    async with AsyncClient(base_url, auth="secret-token", transport=transport, retry=retry) as client:
        with pytest.raises(ConnectionFailed) as caught:
            await client.collections.create("+255681234567", 15_000)
    assert caught.value.outcome == "not_sent"
    assert not any(hidden in str(caught.value) for hidden in ("secret", "681234567"))
    return str(caught.value)


async def closed_port() -> int:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port: int = listener.extra(SocketAttribute.local_port)
    return port


async def test_a_name_that_there_is_not(transport: Any) -> None:
    # Without a network, no name server answers.
    assert await fault("https://nope.invalid/v1", transport) in {
        f"cannot connect to nope.invalid: {reason}; nothing was sent (2 attempts)"
        for reason in ("name not known", "no answer from the name server")
    }


async def test_a_closed_port(transport: Any) -> None:
    at = f"127.0.0.1:{await closed_port()}"
    assert await fault(f"http://{at}/v1", transport) == (
        f"cannot connect to {at}: connection refused; nothing was sent (2 attempts)"
    )


@pytest.mark.parametrize(
    ("days", "name", "reason"),
    [
        (-2, "localhost", "certificate has expired"),
        (9, "pay.example", "certificate is for another name"),
        (9, "localhost", "certificate is of an unknown authority (self-signed)"),
    ],
)
async def test_a_certificate_that_does_not_prove_who_it_is(
    transport: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, days: int, name: str, reason: str
) -> None:
    """The three mistakes have three remedies, so they are told apart."""
    file = certificate(tmp_path, days=days, name=name)
    if "authority" not in reason:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with serve(file) as port:
        text = await fault(f"https://localhost:{port}/v1", transport)
    assert text == f"cannot connect to localhost:{port}: {reason}; nothing was sent (2 attempts)"


async def test_a_port_that_speaks_no_tls(transport: Any) -> None:
    async with serve(None, lambda: b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        text = await fault(f"https://127.0.0.1:{port}/v1", transport)
    assert text.startswith(f"cannot connect to 127.0.0.1:{port}: no TLS connection (")
    assert "is this a port for https?; nothing was sent" in text


async def test_a_proxy_that_is_away_or_refuses(transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, without its user and password: the service is not at fault."""
    user = "" if transport == "aiohttp" else "me:secret@"  # httpx-aiohttp cannot pass them to every aiohttp
    port = await closed_port()
    monkeypatch.setenv("HTTPS_PROXY", f"http://{user}127.0.0.1:{port}")
    assert await fault("https://pay.example/v1", transport) == (
        f"cannot connect to pay.example through the proxy 127.0.0.1:{port}: connection refused; nothing was sent "
        "(2 attempts)"
    )
    async with serve(None, lambda: b"HTTP/1.1 407 secret\r\nContent-Length: 0\r\n\r\n") as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{user}127.0.0.1:{port}")
        assert await fault("https://pay.example/v1", transport) == (
            f"cannot connect to pay.example through the proxy 127.0.0.1:{port}: the proxy answered 407; nothing was "
            "sent (2 attempts)"
        )
    async with serve(None, lambda: b"hello\r\n\r\n") as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{user}127.0.0.1:{port}")
        said = await fault("https://pay.example/v1", transport)
        assert said.startswith(f"cannot connect to pay.example through the proxy 127.0.0.1:{port}: the ")
        assert "no HTTP" in said
