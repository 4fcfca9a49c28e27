"""Network between a process and the service: every failure of the table of retries, at every byte."""

from __future__ import annotations

import contextvars
import json
from collections.abc import AsyncIterator

import anyio
import httpx

from tests.simulation.loop import PROCESS, Life
from tests.simulation.service import MERCHANT, Answer
from tests.simulation.world import World

# The numbers of the requests that a call of the shop has sent.
SENT: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("simulated_call", default=None)
BASE_URL = "https://service.example/v1"


class _Stream(httpx.AsyncByteStream):
    """Body of an answer, which may end or stop early."""

    def __init__(self, world: World, body: bytes, cut: int | None, how: str) -> None:
        self._world, self._body, self._cut, self._how = world, body, cut, how

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._cut is None:
            yield self._body
            return
        if self._cut:
            yield self._body[: self._cut]
        await anyio.sleep(self._world.dice("wire").uniform(0, 0.5))
        if self._how == "stalls":
            await anyio.sleep_forever()
        if self._how == "breaks":
            raise httpx.ReadError("connection reset")
        if self._how == "ends":
            raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")


class Network(httpx.AsyncBaseTransport):
    """Network as one process sees it."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Bring a request to the service, and its answer back, or not."""
        world, dice = self._world, self._world.dice("wire")
        number = world.next_request()
        name = f"#{number} {request.method} {request.url.path.removeprefix('/v1')}"
        world.departures.append(world.now())
        if (sent := SENT.get()) is not None:
            sent.append(number)
        await world.point(f"before {name}")
        if world.strikes("no_connection"):
            world.note(f"{name}: no connection")
            await anyio.sleep(dice.uniform(0, 3))
            raise httpx.ConnectError("connection refused")
        if world.strikes("connect_timeout"):
            world.note(f"{name}: no connection in time")
            await anyio.sleep(dice.uniform(1, 25))
            raise httpx.ConnectTimeout("too late")
        await anyio.sleep(dice.choice([0.001, 0.05, 0.2]))
        life = PROCESS.get()
        assert life is not None
        life.require_alive()
        content = b"".join([piece async for piece in request.stream])  # type: ignore[union-attr]
        return await self._send(name, request, content, number, life)

    async def _send(self, name: str, request: httpx.Request, content: bytes, number: int, life: Life) -> httpx.Response:
        world, dice = self._world, self._world.dice("wire")
        if b"order" in content:
            self._let_others_pay(request.url.path, json.loads(content))
        if world.strikes("request_broken"):
            world.note(f"{name}: broken while it was sent")
            raise httpx.WriteError("broken pipe")
        if world.strikes("request_lost"):
            world.note(f"{name}: lost on its way there")
            return await self._no_answer()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        arrival = 0.0
        if world.strikes("request_late"):
            arrival = dice.uniform(0, min(world.plan.grace, 60.0) - 5)
        done: list[Answer] = []
        arrived = anyio.Event()

        def arrive() -> None:
            world.on_arrival(_order(content))
            answer = world.service.answer(
                request.method, str(request.url), token if scheme == "Bearer" else None, content, number
            )
            world.note(f"{name} {_body(content)}→ {answer.status} {answer.says}", "service")
            done.append(answer)
            arrived.set()

        # On its way it needs its process no more: it arrives also if that dies now.
        world.loop.call_later(arrival + dice.choice([0.001, 0.05, 0.5]), arrive, context=contextvars.Context())
        await world.point(f"during {name}")
        is_stopped = b"order" in content and world.strikes("sender_stops")
        if is_stopped:
            world.stop(life, f"during {name}", dice.uniform(40, 200))
        await arrived.wait()
        if is_stopped and dice.random() < 0.5:  # nobody has kept its connection
            world.note(f"{name}: its answer is gone")
            raise httpx.ReadError("connection reset")
        await anyio.sleep(dice.choice([0.001, 0.05, 0.3]))
        return await self._bring_back(name, done[0], number)

    def _let_others_pay(self, path: str, body: dict[str, str]) -> None:
        """Let other systems pay the same number at about the same time."""
        world, dice = self._world, self._world.dice("others")
        make, context = world.service.make_beside, contextvars.Context()
        # A store that does not know its own merchant takes another's payment of the same kind for its own.
        if world.strikes("other_merchant") and world.knows_merchant():
            world.loop.call_later(dice.uniform(0, 60), make, path, body, "merchant-2", context=context)
        if world.strikes("other_system"):
            if world.plan.sole_writer is not False:  # else an assumption: the same kind is taken for the merchant's own
                body = {**body, "amount": "26000"}
            world.loop.call_later(dice.uniform(0, 60), make, path, body, MERCHANT, context=context)

    async def _bring_back(self, name: str, answer: Answer, number: int) -> httpx.Response:
        world, dice = self._world, self._world.dice("wire")
        if world.strikes("answer_lost"):
            world.note(f"{name}: its answer is lost")
            world.service.note_trouble(number)
            return await self._no_answer()
        if world.strikes("answer_late"):
            await anyio.sleep(dice.uniform(1, 40))
        cut, how = None, ""
        if world.strikes("answer_cut"):
            cut, how = (
                dice.randint(0, max(0, len(answer.body) - 1)),
                dice.choice(["stalls", "breaks", "ends", "is cut"]),
            )
            world.note(f"{name}: its answer {how} after {cut} of {len(answer.body)} bytes")
        await world.point(f"after {name}")
        return httpx.Response(answer.status, headers=answer.headers, stream=_Stream(world, answer.body, cut, how))

    async def _no_answer(self) -> httpx.Response:
        if self._world.dice("wire").random() < 0.5:
            raise httpx.ReadError("connection reset")
        if self._world.dice("wire").random() < 0.5:
            raise httpx.RemoteProtocolError("server disconnected")
        await anyio.sleep_forever()
        raise AssertionError


def _order(content: bytes) -> str | None:
    """Return the key of the payment that a request asks for, if it asks for one."""
    return json.loads(content).get("order") if content else None


def _body(content: bytes) -> str:
    return f"{content.decode()} " if b"order" in content else ""
