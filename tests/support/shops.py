"""The example shops over real sockets: server and sandbox in a thread of their own, the test outside like a browser."""

import importlib
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import anyio.from_thread
import attrs
import httpx
import uvicorn

import _mobilemoney_pytest
from mobilemoney_async import AsyncClient, RateLimiter, SQLStore
from mobilemoney_async.sandbox import Sandbox
from tests.support.patience import PATIENCE, until, wait_until
from tests.support.warm import run_pytest_alone

EXAMPLES = Path(__file__).parents[2] / "examples"
SPEED = 100.0
SECRET = "the-secret-part-of-the-path"
# All customers of a test have one address, and few numbers.
NO_LIMITS: dict[str, Any] = {"per_number": None, "per_caller": None}
OPTIONS: dict[str, Any] = {"min_interval": 0.05, "reconcile_every": 0.5, "secret": SECRET, **NO_LIMITS}

T = TypeVar("T")
Serve = Callable[[Callable[[], AsyncClient], dict[str, Any]], AbstractAsyncContextManager[str]]


def load(name: str) -> Any:
    """Import an example: the examples are not installed. Tests do it at their start, not while they are collected."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


def run_tests(folder: Path, *arguments: str) -> int:
    """Run the tests of a shop in its folder, as its user does: all pass, without a warning. Return how many."""
    plugins = ("-p", "anyio.pytest_plugin", "-p", _mobilemoney_pytest.__name__, "-p", "no:cacheprovider")
    ran = run_pytest_alone(folder, *plugins, "-q", "-W", "error", *arguments)
    passed = re.search(r"^(\d+) passed", ran.stdout, re.MULTILINE)
    assert ran.returncode == 0 and passed is not None, ran.stdout + ran.stderr
    return int(passed[1])


@attrs.define(eq=False)
class Shop:
    """A running shop."""

    url: str
    sandbox: Sandbox
    portal: anyio.from_thread.BlockingPortal

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call something of the sandbox in the loop that serves it."""
        return self.portal.call(function, *args)

    def browser(self) -> httpx.Client:
        """Return a client of the shop."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE, verify=False)  # no TLS here, nor its certificates

    def end(self, how: Literal["approve", "decline", "expire"]) -> None:
        """Let the customer of the newest transaction do something."""
        self.call(lambda: getattr(self.sandbox, how)(list(self.sandbox.transactions)[-1]))

    def wait_for(self, order: str, state: str) -> dict[str, Any]:
        """Ask until the order is in a state, and return what the shop says then."""
        answer: dict[str, Any] = {}

        def is_in_it() -> bool:
            nonlocal answer
            answer = browser.get(f"/orders/{order}").json()
            return bool(answer.get("state") == state)

        with self.browser() as browser:
            wait_until(is_in_it)
        return answer


@asynccontextmanager
async def fastapi_shop(make_client: Callable[[], AsyncClient], options: dict[str, Any]) -> AsyncIterator[str]:
    """Serve the FastAPI shop by uvicorn; yield its address."""
    app = load("fastapi_shop").create_app(make_client, **{**OPTIONS, **options})
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1, ws="none", http="h11")
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True


@asynccontextmanager
async def aiohttp_shop(make_client: Callable[[], AsyncClient], options: dict[str, Any]) -> AsyncIterator[str]:
    """Serve the aiohttp shop; yield its address."""
    from aiohttp import web

    app = load("aiohttp_shop").create_app(make_client, **{**OPTIONS, **options})
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


SHOPS: dict[str, Serve] = {"fastapi": fastapi_shop, "aiohttp": aiohttp_shop}


@contextmanager
def running(
    serve: Serve, folder: Path, *, sandbox: Sandbox | None = None, timeout: float = PATIENCE, **options: Any
) -> Iterator[Shop]:
    """Run a shop and a sandbox, each on a socket; the payments are in a file of the folder, and stay there.

    Args:
        serve: One of `SHOPS`.
        folder: Where the store is.
        sandbox: The service; a new one by default.
        timeout: Of the shop's client, seconds.
        options: Of `Backend`.
    """
    service = Sandbox(speed=SPEED) if sandbox is None else sandbox

    @asynccontextmanager
    async def both() -> AsyncIterator[str]:
        async with service.serve() as base_url:

            def make_client() -> AsyncClient:
                return AsyncClient(
                    base_url,
                    auth=service.token,
                    store=SQLStore(f"sqlite:///{folder}/payments.db", grace=0),
                    rate_limiter=RateLimiter(per_minute=60 * SPEED, burst=10, window=60 / SPEED, jitter=0.5 / SPEED),
                    timeout=timeout,
                )

            async with serve(make_client, options) as url:
                yield url

    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(both()) as url,
    ):
        yield Shop(url, service, portal)
