"""Certificates that tests make for themselves, and a service behind one."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.patience import PATIENCE

_LOOPBACK = IPv4Address("127.0.0.1")  # which, unlike a name, needs no thread to be resolved
_KEY_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def certificate(folder: Path, *, days: int, name: str = "localhost") -> Path:
    """Make a certificate for a host and for 127.0.0.1, signed by itself, that ends in so many days; with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=days, hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(_LOOPBACK)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        # What Python 3.13 asks for.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_KEY_USAGE, critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / "localhost.pem"
    path.write_bytes(made.public_bytes(encoding) + key.private_bytes(encoding, form, serialization.NoEncryption()))
    return path


@asynccontextmanager
async def serve(certificate: Path | None, answer: Callable[[], bytes] = bytes) -> AsyncIterator[int]:
    """Serve one answer to everything on loopback, over TLS with a certificate; yields the port."""

    async def converse(stream: ByteStream) -> None:
        async with stream:
            with anyio.move_on_after(PATIENCE):
                try:
                    await stream.receive()
                    await stream.send(answer())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

    listener: Any = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listener = TLSListener(listener, context, standard_compatible=False)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(listener.serve, converse))
        yield port
        tasks.cancel_scope.cancel()
