"""In-process front: an httpx transport that calls the engine, and fails as a real socket would."""

from collections.abc import AsyncIterator, Callable

import anyio
import anyio.lowlevel
import httpx

from mobilemoney_async.sandbox.messages import Reply, Request, Wire

_DEFAULT_READ_TIMEOUT = 5.0
"""httpx's default, seconds, for requests without a read time-out."""


class SandboxTransport(httpx.AsyncBaseTransport):
    """Transport to the engine of one sandbox, without delays except those of the reply.

    Args:
        handle: Returns the reply to a request.
    """

    def __init__(self, handle: Callable[[Request], Reply]) -> None:
        self._handle = handle

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request.

        Cancelled before the engine is called, the request has no effect; cancelled later, it was processed, and only
        the answer is lost.

        Raises:
            httpx.ConnectError: The fault is a refused connection.
            httpx.RemoteProtocolError: The fault is a connection that closes without an answer.
            httpx.ReadError: The fault is a connection that is reset.
            httpx.ReadTimeout: No answer came within the request's read time-out.
        """
        body = await request.aread()
        # The last point at which a cancelled request has no effect.
        await anyio.lowlevel.checkpoint()
        reply = self._handle(
            Request(
                method=request.method,
                path=request.url.raw_path.decode("ascii").partition("?")[0],
                query=dict(request.url.params),
                headers=request.headers,
                body=body,
            )
        )
        if reply.wire is Wire.REFUSED:
            raise httpx.ConnectError("All connection attempts failed", request=request)
        await _wait_for(reply, request)
        if reply.wire is Wire.CLOSED:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
        if reply.wire is Wire.RESET:
            raise httpx.ReadError("Connection reset by peer", request=request)
        return httpx.Response(
            reply.status,
            headers=reply.headers,
            stream=_BodyStream(reply, request),
            extensions={"http_version": b"HTTP/1.1"},
            request=request,
        )


class _BodyStream(httpx.AsyncByteStream):
    def __init__(self, reply: Reply, request: httpx.Request) -> None:
        self._reply = reply
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await anyio.lowlevel.checkpoint()
        yield self._reply.sent_body
        if self._reply.wire is Wire.TRUNCATED:
            received, expected = len(self._reply.sent_body), len(self._reply.body)
            raise httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body "
                f"(received {received} bytes, expected {expected})",
                request=self._request,
            )


async def _wait_for(reply: Reply, request: httpx.Request) -> None:
    """Wait for the delay of the reply, at most for the client's read time-out."""
    timeout = request.extensions.get("timeout", {}).get("read", _DEFAULT_READ_TIMEOUT)
    if reply.wire is not Wire.LOST and (timeout is None or reply.delay <= timeout):
        await anyio.sleep(reply.delay)
        return
    if timeout is None:
        await anyio.sleep_forever()
    await anyio.sleep(timeout)
    raise httpx.ReadTimeout("The read operation timed out", request=request)
