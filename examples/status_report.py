"""Reports the state of many transactions, as CSV, for a fraction of the requests that one lookup each would cost.

`python examples/status_report.py --sandbox > report.csv` shows it for 1,000 transactions of a sandbox. For the service
itself, set the environment variables of `AsyncClient.from_env`, and give a file with one transaction id in each line:
`python examples/status_report.py ids.txt --since 2026-11-01 > report.csv`.

Exit codes: 0 every transaction was found; 1 some were not, or the service failed; 2 wrong usage.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO

import anyio

from mobilemoney_async import AsyncClient, Lookup, MobileMoneyError, RateLimiter
from mobilemoney_async.events import AttemptEnded, Event
from mobilemoney_async.text import mask_phone_number

COLUMNS = [
    "transaction_id", "type", "status", "amount", "currency", "phone_number", "created_at", "ended_at",
    "failure_reason", "error",
]  # fmt: skip


class RequestCount:
    """Request counter of a client; pass it as `on_event`."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, event: Event) -> None:
        self.total += isinstance(event, AttemptEnded)


async def write_report(client: AsyncClient, ids: Sequence[str], since: date, file: IO[str]) -> Counter[str]:
    """Write a row for each id, in their order; return the number of transactions by state.

    Raises:
        MobileMoneyError: An id is blank, or the client was closed. The error of a single transaction is in its row.
    """
    found = {lookup.transaction_id: lookup async for lookup in client.transactions.get_many(ids, since=since)}
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows(row(found[each]) for each in dict.fromkeys(ids))
    return Counter("not found" if each.transaction is None else str(each.transaction.status) for each in found.values())


def row(lookup: Lookup) -> list[str]:
    """Return the row of one transaction."""
    seen = lookup.transaction
    if seen is None:
        return [lookup.transaction_id, *[""] * 8, str(lookup.error)]
    ended_at = seen.completed_at or seen.failed_at
    return [
        seen.id,
        str(seen.type),
        str(seen.status),
        f"{seen.amount:f}",
        seen.currency,
        mask_phone_number(seen.phone_number),
        seen.created_at.isoformat(),
        "" if ended_at is None else ended_at.isoformat(),
        seen.failure_reason or "",
        "",
    ]


async def sandbox_client(count: RequestCount, payments: int = 1000) -> tuple[AsyncClient, list[str]]:
    """Return a client of a new sandbox, and the ids of payments there."""
    from mobilemoney_async.sandbox import Choices, Sandbox

    sandbox = Sandbox(choices=Choices(rate_limit=None))
    client = sandbox.client(rate_limiter=RateLimiter(per_minute=1_000_000, burst=1000), on_event=count)
    endings = ("789", "039", "408", "129")
    ids = []
    for number in range(payments):
        phone_number = f"+255780000{endings[number % len(endings)]}"
        ids.append((await client.collections.create(phone_number=phone_number, amount=1000 + number)).transaction_id)
    sandbox.advance(3600)
    count.total = 0
    return client, ids


async def run(file: Path | None, since: date) -> int:
    count = RequestCount()
    if file is None:
        client, ids = await sandbox_client(count)
    else:
        client, ids = AsyncClient.from_env(on_event=count), (await anyio.Path(file).read_text("utf-8")).split()
    async with client:
        states = await write_report(client, ids, since, sys.stdout)
    numbers = ", ".join(f"{number} {state}" for state, number in states.most_common())
    print(f"{states.total()} transactions for {count.total} requests: {numbers}", file=sys.stderr)
    return 1 if states["not found"] else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="one transaction id in each line")
    parser.add_argument("--since", type=date.fromisoformat, help="the day on or after which most were created, UTC")
    parser.add_argument("--sandbox", action="store_true", help="try it, on a sandbox")
    given = parser.parse_args(argv)
    if given.sandbox == (given.file is not None):
        parser.error("give a file, or --sandbox")
    try:
        return anyio.run(run, given.file, given.since or datetime.now(UTC).date())
    except (MobileMoneyError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
