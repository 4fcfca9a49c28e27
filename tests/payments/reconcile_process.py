"""Process of a merchant, for `test_listing_costs`: reconciles on command, and prints the payments that it found."""

import sys

import anyio

from mobilemoney_async import AsyncClient, SQLStore


async def main(base_url: str, store_url: str, token: str) -> None:
    async with AsyncClient(base_url, auth=token, store=SQLStore(store_url, grace=0)) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        for record in await client.payments.reconcile():
            print(record.key, record.transaction_id)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
