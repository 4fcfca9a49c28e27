"""The in-process front: an httpx transport that asks the engine, and fails as a real socket would."""

from collections.abc import AsyncIterator, Callable

import anyio
import anyio.lowlevel
import httpx

from mobilemoney_async.sandbox.messages import Reply, Request, Wire

_DEFAULT_READ_TIMEOUT = 5.0
"""httpx's own, seconds, for requests that state none."""


class SandboxTransport(httpx.AsyncBaseTransport):
    """Carries requests to the engine of one sandbox, in no time except the delays that the engine asks for.

    Args:
        handle: Gives the reply to a request.
    """

    def __init__(self, handle: Callable[[Request], Reply]) -> None:
        self._handle = handle

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request.

        If it is cancelled before it reaches the engine nothing happens; while it waits for the answer, everything has.

        Raises:
            httpx.ConnectError: The fault is a refused connection.
            httpx.RemoteProtocolError: It is a connection that closes without an answer.
            httpx.ReadError: It is a connection that is torn down.
            httpx.ReadTimeout: No answer came within the request's read time-out.
        """
        body = await request.aread()
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
    """Wait as long as the answer takes, but no longer than the client does."""
    timeout = request.extensions.get("timeout", {}).get("read", _DEFAULT_READ_TIMEOUT)
    if reply.wire is not Wire.LOST and (timeout is None or reply.delay <= timeout):
        await anyio.sleep(reply.delay)
        return
    if timeout is None:
        await anyio.sleep_forever()
    await anyio.sleep(timeout)
    raise httpx.ReadTimeout("The read operation timed out", request=request)
