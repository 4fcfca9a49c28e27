"""A merchant's worker process, which may be killed at any moment: it creates orders until each has its transaction.

Run as a program this is a nursery: it imports everything once and then forks a worker for each `start`, so that a
restart takes milliseconds. It imports nothing of the tests; they hold the pids and do the killing.

    standard input, a line each                         the answer, a line each
    {"base_url": …, …}            (first, the `Job`)    (none)
    start SEED                                          the pid of a new worker
    reap                                                [[pid, exit code], …] of the workers that ended
"""

import json
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from decimal import Decimal

import anyio
import attrs

from mobilemoney_async import Acknowledgement, AsyncClient, MobileMoneyError, RateLimiter, RetryPolicy, SQLStore

ONCE_MORE = RetryPolicy(max_attempts=2, first_delay=0.01, max_delay=0.01)
"""Quick, since everything is on one machine."""


@attrs.frozen
class Order:
    """Payment of one customer, or to one recipient. Its key is its `external_id`, for the tests to see."""

    key: str
    is_collection: bool
    phone_number: str
    amount: int


@attrs.frozen
class Job:
    """Job of all workers."""

    base_url: str
    token: str
    store_url: str
    grace: float
    timeout: float
    tasks: int
    answers: str
    """File for a line `key transaction-id` for each acknowledgement that a caller got."""
    orders: Sequence[Order]


def wide_open() -> RateLimiter:
    """Return a limiter that never makes a request wait."""
    return RateLimiter(per_minute=600_000, burst=10_000)


async def create(client: AsyncClient, order: Order) -> Acknowledgement:
    """Make the payment of an order."""
    creates = client.collections if order.is_collection else client.disbursements
    return await creates.create(
        phone_number=order.phone_number,
        amount=order.amount,
        idempotency_key=order.key,
        extra={"external_id": order.key},
    )


async def go_through(
    client: AsyncClient,
    orders: Sequence[Order],
    *,
    tasks: int,
    answered: Callable[[Order, Acknowledgement], None],
    failed: Callable[[Order, MobileMoneyError], None] = lambda order, error: None,
) -> list[Order]:
    """Try each order once, some of them side by side, and return those that have no acknowledgement yet."""
    coming, left = iter(orders), []

    async def work() -> None:
        for order in coming:
            try:
                answer = await create(client, order)
            except MobileMoneyError as exc:
                failed(order, exc)
                left.append(order)
            else:
                assert answer.amount == Decimal(order.amount)
                answered(order, answer)

    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(work)
    return left


async def _work_off(job: Job, seed: int) -> None:
    orders = list(job.orders)
    dice = random.Random(seed)
    answers = os.open(job.answers, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(order: Order, answer: Acknowledgement) -> None:
        os.write(answers, f"{order.key} {answer.transaction_id}\n".encode())

    client = AsyncClient(
        job.base_url,
        auth=job.token,
        store=SQLStore(job.store_url, grace=job.grace),
        timeout=job.timeout,
        retry=ONCE_MORE,
        rate_limiter=wide_open(),
    )
    async with client:
        while orders:
            dice.shuffle(orders)
            orders = await go_through(client, orders, tasks=job.tasks, answered=note)
            with suppress(MobileMoneyError):  # the list came too late: there is a next time
                # With the default of `stale_after`: the other workers are alive.
                await client.payments.reconcile()
            await anyio.sleep(0.1)


def fork(work: Callable[..., Awaitable[object]], *arguments: object) -> int:
    """Run an async function in a process of its own, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        anyio.run(work, *arguments)
        code = 0
    except BaseException:  # noqa: BLE001 (whatever it is, the child must not go on as its parent)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap(alive: set[int]) -> list[tuple[int, int]]:
    ended = []
    for pid in sorted(alive):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            alive.remove(pid)
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def run_nursery(start: Callable[[int], int]) -> None:
    """Run the nursery until standard input ends; no worker outlives it. `start` forks one, and returns its pid."""
    alive: set[int] = set()
    try:
        for line in sys.stdin:
            command, *arguments = line.split()
            if command == "start":
                pid = start(int(arguments[0]))
                alive.add(pid)
                print(pid, flush=True)
            else:
                print(json.dumps(_reap(alive)), flush=True)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Run the nursery of `_work_off`."""
    warnings.simplefilter("error")
    told = json.loads(sys.stdin.readline())
    job = Job(**{**told, "orders": [Order(**order) for order in told["orders"]]})
    run_nursery(lambda seed: fork(_work_off, job, seed))


if __name__ == "__main__":
    main()
