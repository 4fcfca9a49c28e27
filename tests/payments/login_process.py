"""Process of a merchant, for `test_shared_login`: makes calls on command, and prints the token it used."""

import sys

import anyio

from mobilemoney_async import AsyncClient, LoginAuth, RateLimiter
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.database.engine import Database
from mobilemoney_async.sharing.login import SharedLogin
from tests.support.fakes import EMAIL, PASSWORD


async def main(base_url: str, store_url: str, lease: float) -> None:
    database = Database(store_url)
    cipher = TokenCipher("merchant", "a key of the merchant's")
    source = SharedLogin(LoginAuth(EMAIL, PASSWORD), database, "merchant", cipher, lease=lease)
    limiter = RateLimiter(per_minute=600_000, burst=10_000)
    async with AsyncClient(base_url, auth=source, rate_limiter=limiter) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(client.transactions.get, "tx-1")
    database.close()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]))
