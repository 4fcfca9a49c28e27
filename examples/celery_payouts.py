"""Pays out from a Celery queue in Redis: each order once, even if workers are killed and jobs are delivered twice.

Workers: `celery --workdir examples -A celery_payouts worker`. Address, credentials and store come from the
environment variables of `AsyncClient.from_env`, MOBILEMONEY_STORE included; the queue comes from REDIS_URL.
Jobs: `python examples/celery_payouts.py examples/payouts.csv`, as often as you like.
Books: `python examples/celery_payouts.py books`, once or twice: follows the payments, finds out about unknown ones, and
writes each final state into the table `orders` of BOOKS, an SQLite file.

A job ends with the answer to its create. The order is the payment's key: the same key may be tried again after any
failure. Nobody waits for a result in a worker.
"""

import csv
import os
import signal
import sqlite3
import sys
from contextlib import ExitStack, closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from celery import Celery, Task, signals
from celery.exceptions import Reject
from celery.utils.log import get_task_logger

from mobilemoney_async import (
    APIError,
    AsyncClient,
    IdempotencyConflict,
    InvalidRequest,
    LimitExceeded,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentChange,
    RateLimiter,
)
from mobilemoney_async.contrib.backend import Backend

SPEED = float(os.environ.get("SANDBOX_SPEED", "1"))  # of a sandbox; all times below follow it
DELIVER_AGAIN_AFTER = 600 / SPEED  # seconds; a job that takes longer runs twice, which is harmless
RETRY_AFTER = 60 / SPEED  # seconds; less than that, since a job that waits is not acknowledged either
BOOKS = os.environ.get("BOOKS", "books.db")

logger = get_task_logger(__name__)
app = Celery("payouts", broker=os.environ.get("REDIS_URL", "redis://localhost:6379"))
app.conf.update(
    task_acks_late=True,  # a job whose worker is killed is delivered again,
    task_reject_on_worker_lost=True,  # also if only the process that runs it is killed
    broker_transport_options={
        "visibility_timeout": DELIVER_AGAIN_AFTER,
        "unacked_restore_interval": 10 / SPEED,  # seconds between two looks for the jobs of dead workers,
        "unacked_restore_throttle": 1,  # each of which looks
    },
    worker_proc_alive_timeout=60,  # seconds for `start`: Celery kills a process that is late, and each one after it
    worker_prefetch_multiplier=1,  # a worker takes few jobs ahead, since their time runs too
    accept_content=["json"],
    task_ignore_result=True,  # the results are in the store
)


class Worker:
    """What one process of a worker has: an event loop in a thread, and a client in it."""

    portal: BlockingPortal
    client: AsyncClient | None = None
    stack = ExitStack()


def open_client() -> AsyncClient:
    limiter = RateLimiter(per_minute=60 * SPEED, burst=10, window=60 / SPEED)
    return AsyncClient.from_env(rate_limiter=limiter, timeout=10)


@signals.worker_process_init.connect
def start(**_: Any) -> None:
    """Open the client after the fork: neither a client nor a loop survives one."""
    Worker.portal = Worker.stack.enter_context(start_blocking_portal())
    Worker.client = Worker.stack.enter_context(Worker.portal.wrap_async_context_manager(open_client()))


@signals.worker_process_shutdown.connect
def stop(**_: Any) -> None:
    Worker.stack.close()


@app.task(name="pay_out", bind=True, max_retries=None)
def pay_out(job: Task, order: str, phone_number: str, amount: str) -> None:
    """Pay an order, unless it is paid already."""
    if Worker.client is None:  # Celery logs why `start` has failed, and goes on; a job that failed would be lost
        logger.error("%s: no client in this process: see why its start has failed, and use the prefork pool", order)
        retry(job)
    create = Worker.client.disbursements.create
    try:
        Worker.portal.call(partial(create, phone_number=phone_number, amount=amount, idempotency_key=order))
    except OutcomeUnknown as error:
        # No failure, and no retry: `books` finds out about it.
        logger.warning("%s: %s", order, error)
    except MobileMoneyError as error:
        # No later time has room for more than a limit itself.
        is_too_much = isinstance(error, LimitExceeded) and Decimal(amount) > error.most
        # A subclass of APIError, such as AuthenticationError, concerns all orders: a retry may succeed.
        if is_too_much or type(error) in {APIError, IdempotencyConflict, InvalidRequest}:
            # Only `is_certain` proves that no money has moved: otherwise `books` may find the payment later.
            logger.error("%s: an operator must look: %s", order, error)  # noqa: TRY400
        else:
            logger.warning("%s: not paid, retried soon: %s", order, error)
            retry(job)


def retry(job: Task) -> NoReturn:
    """Try a job again later; where Redis refuses the new job, this one stays in the queue."""
    try:
        raise job.retry(countdown=RETRY_AFTER)
    except Reject as refused:  # Celery would drop the job
        raise Reject(refused.reason, requeue=True) from refused


async def write_book(change: PaymentChange) -> None:
    """Write a final state into the books; a change may come twice."""
    with closing(sqlite3.connect(BOOKS)) as books, books:
        books.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (change.key, change.status or change.state))
    print(f"{change.key}: {change.status or change.state}", flush=True)


async def keep_books() -> None:
    with closing(sqlite3.connect(BOOKS)) as books, books:
        books.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, status TEXT)")
    intervals = {"min_interval": 1 / SPEED, "reconcile_every": 60 / SPEED}
    async with open_client() as client, Backend(client, on_settled=write_book, name="books", **intervals):
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as stopped:
            print("the books are open", flush=True)
            async for _ in stopped:
                break


def enqueue(payouts: list[dict[str, str]]) -> None:
    """Queue payouts: our key is their job's id. One that is queued twice is still paid once."""
    for each in payouts:
        pay_out.apply_async((each["order"], each["phone_number"], each["amount"]), task_id=each["order"])


if __name__ == "__main__":
    if sys.argv[1] == "books":
        sys.exit(anyio.run(keep_books))
    payouts = list(csv.DictReader(Path(sys.argv[1]).read_text("utf-8").splitlines()))
    if any({*each} != {"order", "phone_number", "amount"} or None in each.values() for each in payouts):
        sys.exit("nothing was queued: every line must have order, phone_number, amount")
    enqueue(payouts)
    print(len(payouts), "payouts queued")
