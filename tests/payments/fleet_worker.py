"""A process of the fleet, to be killed: ``python -m tests.payments.fleet_worker NAME STORE_URL BASE_URL LOOP TTL ID…``.

It says a line when it follows its payments, and one for each outcome.
"""

import sys

import anyio

from mobilemoney_async import AsyncClient
from tests.payments.till import make_fleet, make_poller, wide


async def main(*arguments: str) -> None:
    name, store_url, base_url, _, ttl, *numbers = arguments
    fleet = make_fleet(store_url, ttl=float(ttl))
    async with (
        AsyncClient(base_url, auth=name, rate_limiter=wide()) as client,
        make_poller(client, fleet) as poller,
    ):
        for number in numbers:
            poller.track(number)
        print("following", flush=True)
        async for outcome in poller.outcomes():
            assert outcome.transaction is not None
            print(outcome.transaction_id, outcome.transaction.status, flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:], backend=sys.argv[4])
