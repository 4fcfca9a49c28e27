"""Host of a platform, to be killed or stopped at any moment: a process that runs the worker of all accounts.

A nursery forks them: see `crash_worker`. Each of its requests carries its pid, the name of its claims, and when it was
sent.
"""

import json
import os
import ssl
import sys
import time

import anyio
import attrs
import httpx

from mobilemoney_async import Merchants, SQLStore
from tests.payments.crash_worker import fork, run_nursery


@attrs.frozen
class Job:
    """Job of all hosts."""

    base_url: str
    store_url: str


class Named(httpx.AsyncHTTPTransport):
    """Connections of one account."""

    def __init__(self, host: str, context: ssl.SSLContext) -> None:
        super().__init__(verify=context)
        self._host = host

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["x-host"] = f"{self._host} {time.time()}"  # real time: when the host sent it
        return await super().handle_async_request(request)


async def work(job: Job) -> None:
    """Serve until the process is killed."""
    context, host = ssl.create_default_context(), list[str]()

    async def auth(account: str) -> str:
        return f"token.of.{account}"

    async with Merchants(
        job.base_url,
        store=SQLStore(job.store_url, grace=1.0),
        auth=auth,
        transport=lambda account: Named(host[0], context),
    ) as merchants:
        worker = merchants.worker()
        host.append(f"{os.getpid()} {worker._claims.host}")
        async with worker:
            await anyio.sleep_forever()


def main() -> None:
    """Run the nursery."""
    job = Job(**json.loads(sys.stdin.readline()))
    run_nursery(lambda seed: fork(work, job))


if __name__ == "__main__":
    main()
