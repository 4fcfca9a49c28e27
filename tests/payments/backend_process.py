"""Process of a merchant's backend, for `test_backend_killed`: takes orders, most of which wait for the rate limit."""

import sys

import anyio

from mobilemoney_async import AsyncClient, RateLimiter, SQLStore
from mobilemoney_async.contrib.backend import Backend

PAYS = "+255780000789"


async def main(base_url: str, store_url: str, token: str, orders: int, send_within: float) -> None:
    limiter = RateLimiter(per_minute=1, burst=1)
    async with (
        AsyncClient(base_url, auth=token, store=SQLStore(store_url), rate_limiter=limiter) as client,
        Backend(client, per_minute=1, send_within=send_within) as backend,
    ):
        for number in range(orders):
            patience = 0 if number else 60.0
            status = await backend.collect(f"order-{number}", phone_number=PAYS, amount=1 + number, patience=patience)
            print(status.state, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
