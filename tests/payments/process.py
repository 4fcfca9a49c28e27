"""Processes of a merchant: ``python -m tests.payments.process NAME …``. They begin on command."""

import sys

import anyio

from mobilemoney_async import AsyncClient, LoginAuth, RateLimiter, SQLStore
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.database.engine import Database
from mobilemoney_async.sharing.login import SharedLogin
from tests.support.fakes import EMAIL, PASSWORD


def wait() -> None:
    """Wait for the command."""
    print("ready", flush=True)
    sys.stdin.readline()


async def reconcile(base_url: str, store_url: str, token: str) -> None:
    """Reconcile, and print the payments that were found."""
    async with AsyncClient(base_url, auth=token, store=SQLStore(store_url, grace=0)) as client:
        wait()
        for record in await client.payments.reconcile():
            print(record.key, record.transaction_id)


async def log_in(base_url: str, store_url: str, lease: str) -> None:
    """Make calls by a shared login."""
    database = Database(store_url)
    cipher = TokenCipher("merchant", "a key of the merchant's")
    source = SharedLogin(LoginAuth(EMAIL, PASSWORD), database, "merchant", cipher, lease=float(lease))
    limiter = RateLimiter(per_minute=600_000, burst=10_000)
    async with AsyncClient(base_url, auth=source, rate_limiter=limiter) as client:
        wait()
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(client.transactions.get, "tx-1")
    database.close()


if __name__ == "__main__":
    anyio.run(globals()[sys.argv[1]], *sys.argv[2:])
