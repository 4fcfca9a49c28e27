"""Pays the salaries of a file: Asha proposes it, Juma approves it, and any number of processes send it.

`python examples/payroll.py demo examples/salaries.csv` shows it with no account and no money. For the service itself,
set the environment variables of `AsyncClient.from_env`, and name the store that remembers the payments:

    export MOBILEMONEY_STORE=sqlite:///payroll.db
    python examples/payroll.py propose salaries.csv --by Asha
    python examples/payroll.py approve 4f1c0a2b9d3e --by Juma --digest …
    python examples/payroll.py send 4f1c0a2b9d3e

After any failure, also a power cut, start `send` again with the same store. Each salary is paid once.

Exit codes: 0 fine, and after `send` every employee is paid; 1 the service or the store failed; 2 wrong usage, or a file
that cannot be paid as it is; 3 a payment is open or its result is unknown; 4 none is open, but some have failed or were
refused.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mobilemoney_async import AsyncClient, InvalidRequest, MobileMoneyError, PayoutBatch, RateLimiter, SQLStore
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.text import mask_phone_number

OPEN = ("QUEUED", "SENDING", "ACKNOWLEDGED")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("propose", "demo"):
        added = commands.add_parser(name)
        added.add_argument("file", type=Path, help="CSV with the columns phone_number and amount; others are kept")
    commands.choices["propose"].add_argument("--by", required=True, metavar="NAME")
    approve = commands.add_parser("approve")
    approve.add_argument("--by", required=True, metavar="NAME")
    approve.add_argument("--digest", required=True, help="the digest that propose has shown")
    send = commands.add_parser("send")
    for each in (approve, send):
        each.add_argument("batch")
    for each in (send, commands.choices["demo"]):
        each.add_argument("--wait", type=float, default=600, metavar="S", help="for open payments without a change")
        each.add_argument("--grace", type=float, default=120, metavar="S", help="see SQLStore")
        each.add_argument("--speed", type=float, default=1, metavar="X", help="of a sandbox: X times the rate limit")
    return parser.parse_args(argv)


async def send(client: AsyncClient, batch_id: str, *, wait: float, speed: float) -> int:
    """Send what is approved, and follow it until nothing is open, or nothing changes any more.

    The backend's dispatcher sends, its poller follows, its reconciler looks for payments with an unknown result. All of
    them share the work with other processes; all state is in the store.
    """
    async with Backend(client, min_interval=1 / speed, reconcile_every=20 / speed):
        states, left = dict[str, int](), wait
        while left > 0:
            batch = await client.payouts.get(batch_id)
            is_new = batch.states != states
            states, left = dict(batch.states), wait if is_new else left - 1 / speed
            if is_new:
                counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
                print(f"{batch.name}: {counts}", file=sys.stderr, flush=True)
            if not any(states.get(each) for each in (*OPEN, "UNKNOWN")):
                break
            await asyncio.sleep(1 / speed)
    return await report(client, batch)


async def report(client: AsyncClient, batch: PayoutBatch) -> int:
    """Print the paid sum and every other salary; return the exit code."""
    lines = await client.payouts.report(batch.id)
    paid = [line.amount for line in lines if line.state == "SUCCESS"]
    print(f"paid: {len(paid)} of {batch.lines} salaries, {sum(paid):,} of {batch.total:,} TZS")
    for line in lines:
        if line.state != "SUCCESS":
            number = mask_phone_number(line.phone_number)
            print(f"line {line.line}  {line.key}  {line.amount:,} TZS  {number}  {line.state}  {line.reason or ''}")
    if any(line.state in {*OPEN, "UNKNOWN", "ABSENT"} for line in lines):
        return 3
    return 0 if len(paid) == batch.lines else 4


def show(batch: PayoutBatch) -> int:
    print(f"batch {batch.id}: {batch.lines} salaries, {batch.total:,} TZS, {batch.state}, digest {batch.digest}")
    for line, reason in batch.duplicates.items():
        print(f"line {line}: paid twice? {reason}")
    for line, reason in batch.warnings.items():
        print(f"line {line}: {reason}")
    return 0


def make_client(given: argparse.Namespace, url: str) -> AsyncClient:
    """Make a client; address and credentials come from the environment."""
    speed = getattr(given, "speed", 1)
    return AsyncClient.from_env(
        store=SQLStore(url, grace=getattr(given, "grace", 120), key=os.environ.get("MOBILEMONEY_STORE_KEY")),
        rate_limiter=RateLimiter(per_minute=60 * speed, burst=10, window=60 / speed),
        timeout=max(1.0, 30 / speed),
    )


async def demo(given: argparse.Namespace) -> int:
    """Play all parts, with a sandbox and a temporary store."""
    sandbox, given.speed, given.grace = Sandbox(speed=20), 20, 2
    with tempfile.TemporaryDirectory() as folder:
        async with sandbox.serve() as base_url:
            os.environ.pop("MOBILEMONEY_EMAIL", None)
            os.environ |= {"MOBILEMONEY_BASE_URL": base_url, "MOBILEMONEY_TOKEN": sandbox.token}
            async with make_client(given, f"sqlite:///{folder}/payroll.db") as client:
                batch = await client.payouts.propose(given.file.read_bytes(), name=given.file.stem, by="Asha")
                show(batch)
                await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
                code = await send(client, batch.id, wait=min(given.wait, 4), speed=given.speed)
            print(f"The sandbox has paid {len(sandbox.ledger)} salaries, {sandbox.ledger.disbursed:,} TZS.")
    return code


async def work(given: argparse.Namespace) -> int:
    if given.command == "demo":
        return await demo(given)
    url = os.environ.get("MOBILEMONEY_STORE")
    if not url:
        raise InvalidRequest("set MOBILEMONEY_STORE: the store remembers the payments", argument="MOBILEMONEY_STORE")
    async with make_client(given, url) as client:
        if given.command == "propose":
            content = given.file.read_bytes()
            return show(await client.payouts.propose(content, name=given.file.stem, by=given.by))
        if given.command == "approve":
            return show(await client.payouts.approve(given.batch, by=given.by, digest=given.digest))
        return await send(client, given.batch, wait=given.wait, speed=given.speed)


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    try:
        return asyncio.run(work(given))
    except InvalidRequest as error:
        print(f"nothing was sent: {error}", file=sys.stderr)
        return 2
    except (MobileMoneyError, OSError) as error:
        print(f"stopped: {error}\nStart again: each salary is paid once.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted. Start again: each salary is paid once.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
