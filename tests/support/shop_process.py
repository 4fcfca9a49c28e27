"""The FastAPI shop as a process: ``python -m tests.support.shop_process PORT BASE_URL TOKEN STORE_URL SPEED GRACE``.

It says its port (PORT 0 takes a free one) when customers may come, and stops on SIGTERM within GRACE seconds. Each
final change that `on_settled` gets is a line of the file beside the store, ``….settled``.
"""

import socket
import sys

import uvicorn

from mobilemoney_async import AsyncClient, PaymentChange, RateLimiter, SQLStore
from mobilemoney_async.payments.feed import feed
from tests.support.shops import NO_LIMITS, load


def main(*arguments: str) -> None:
    port, base_url, token, store_url, speed, grace = arguments
    pace, half = float(speed), int(float(grace) / 2)

    def make_client() -> AsyncClient:
        return AsyncClient(
            base_url,
            auth=token,
            # A collection that is not on the list after this long does not exist, and may be sent again.
            store=SQLStore(store_url, grace=2.0, resend_absent_collections=True),
            rate_limiter=RateLimiter(per_minute=60 * pace, burst=10, window=60 / pace, jitter=0.5 / pace),
        )

    async def on_settled(change: PaymentChange) -> None:
        if change.status is None:
            return
        with open(f"{store_url.removeprefix('sqlite:///')}.settled", "a") as book:  # noqa: ASYNC230
            book.write(f"{change.key} {change.status}\n")

    feed._LEASE = 2.0  # after a crash, nobody waits a minute
    options = {"min_interval": 0.05, "reconcile_every": 0.5, "drain": half, **NO_LIMITS}
    options |= {"on_settled": on_settled, "name": "shop"}
    app = load("fastapi_shop").create_app(make_client, **options)
    # Where the machine stalls, no kept connection is to be closed just as a customer uses it again.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=half, timeout_keep_alive=600)
    with socket.create_server(("127.0.0.1", int(port)), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
