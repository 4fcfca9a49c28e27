"""Pays out from a taskiq queue in Redis: each order once, even if workers are killed and jobs are delivered twice.

Workers: `taskiq worker --app-dir examples taskiq_payouts:broker`. Address, credentials and store come from the
environment variables of `AsyncClient.from_env`, MOBILEMONEY_STORE included; the queue comes from REDIS_URL.
Jobs: `python examples/taskiq_payouts.py examples/payouts.csv`, as often as you like.

A job is acknowledged when it is done. If it cannot be done yet, or its worker was killed, Redis delivers it again,
to any worker. The order is the payment's key: the same key may be tried again after any failure.
"""

import asyncio
import csv
import logging
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import anyio
from taskiq import Context, TaskiqDepends, TaskiqEvents, TaskiqState
from taskiq_redis import RedisStreamBroker

from mobilemoney_async import (
    APIError,
    AsyncClient,
    IdempotencyConflict,
    InvalidRequest,
    LimitExceeded,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentRecord,
    PaymentState,
    RateLimiter,
)

SPEED = float(os.environ.get("SANDBOX_SPEED", "1"))  # of a sandbox; all times below follow it
DELIVER_AGAIN_AFTER = 600 / SPEED  # seconds; a job that takes longer runs twice, which is harmless
FOLLOW_FOR = RECONCILE_EVERY = 60 / SPEED
LOOKS = 2  # in the service's list, after the grace period, that have not shown a payment
LOOK_FOR = 3600 / SPEED

logger = logging.getLogger("payouts")
broker = RedisStreamBroker(
    os.environ.get("REDIS_URL", "redis://localhost:6379"),
    queue_name="payouts",
    consumer_id="0",  # jobs queued before the first worker started count too
    idle_timeout=int(DELIVER_AGAIN_AFTER * 1000),
    xread_count=10,  # a worker takes few jobs ahead, since their idle time runs too
    unacknowledged_batch_size=20_000,  # Redis looks through ten times as many for jobs of dead workers: all of them
    maxlen=200_000,  # the stream keeps finished jobs: 60 MB, and more than a day's jobs at the service's limit
)


async def live(state: TaskiqState) -> None:
    """Own the client and the poller, for the life of a worker.

    The task that opens a poller must close it. Taskiq runs its two events in two tasks, so this is a task of its own.
    """
    limiter = RateLimiter(per_minute=60 * SPEED, burst=10, window=60 / SPEED)
    try:
        async with (
            AsyncClient.from_env(rate_limiter=limiter, timeout=10) as client,
            client.poller(resume=True, min_interval=1 / SPEED) as poller,
        ):
            state.client, state.poller = client, poller
            state.opened.set()
            while not state.closing.is_set():
                await reconcile.kiq()  # a new job also makes taskiq-redis look for the jobs of dead workers
                with anyio.move_on_after(RECONCILE_EVERY):
                    await state.closing.wait()
    except Exception:
        logger.critical("this worker stops, and taskiq starts another", exc_info=True)
        signal.raise_signal(signal.SIGTERM)
    finally:
        state.opened.set()


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def start(state: TaskiqState) -> None:
    state.opened, state.closing = asyncio.Event(), asyncio.Event()
    state.life = asyncio.create_task(live(state))
    await state.opened.wait()


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def stop(state: TaskiqState) -> None:
    state.closing.set()
    await state.life


@broker.task("pay_out", ack_type="manual")
async def pay_out(order: str, phone_number: str, amount: str, job: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Pay an order, unless it is paid already."""
    creates = job.state.client.disbursements
    try:
        await creates.create(phone_number=phone_number, amount=amount, idempotency_key=order)
    except OutcomeUnknown as error:
        logger.warning("%s: %s", order, error)  # never sent again: `reconcile` finds out, `follow` waits for it
    except MobileMoneyError as error:
        if not needs_operator(error, amount):
            logger.warning("%s: not paid, retried in some minutes: %s", order, error)
            return
        logger.error("%s: an operator must look: %s", order, error)  # noqa: TRY400
        if not isinstance(error, APIError) or error.is_certain:
            await job.ack()
            return
        # The answer does not prove that no money has moved: `reconcile` may still find the payment.
    await follow.kiq(order)
    await job.ack()


def needs_operator(error: MobileMoneyError, amount: str) -> bool:
    """Return whether a retry is useless."""
    if isinstance(error, InvalidRequest):
        return error.argument != "client"  # the client is closed when this worker is about to stop
    if isinstance(error, LimitExceeded):
        return Decimal(amount) > error.most  # more than the limit itself: no later time has room for it
    # A subclass of APIError, such as AuthenticationError, concerns all orders: a retry may succeed.
    return type(error) in {APIError, IdempotencyConflict}


@broker.task("follow", ack_type="manual")
async def follow(order: str, job: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Follow an order's payment until it is final, and report it, at least once."""
    with anyio.move_on_after(FOLLOW_FOR) as patience:
        while True:
            payment = await job.state.client.payments.get(order)
            if payment is not None and payment.transaction_id is not None:
                final = payment.transaction or await job.state.poller.wait(payment.transaction_id)
                logger.info("%s: %s", order, final.status)  # here: your books
                break
            state = payment and payment.state
            # The last payments have no later one that would prove their absence: an operator looks after two looks.
            # For a payment that is refused as far as is known, the service is asked once only.
            is_refused = state is PaymentState.REFUSED and not payment.is_certain
            is_open = state in {PaymentState.SENDING, PaymentState.UNKNOWN} or is_refused
            is_open = is_open and payment.walks < (1 if is_refused else LOOKS)
            if not is_open or payment.is_ambiguous or is_old(payment):
                logger.error("%s: %s, an operator must look: `mobilemoney payments show %s`", order, state, order)
                break
            await anyio.sleep(5 / SPEED)
    if patience.cancelled_caught:
        await follow.kiq(order)  # behind the payments that wait to be sent
    await job.ack()


def is_old(payment: PaymentRecord) -> bool:
    """Return whether the list would have shown a payment long ago, if it could be read."""
    return payment.sent_at is None or datetime.now(UTC) - payment.sent_at > timedelta(seconds=LOOK_FOR)


@broker.task("reconcile")
async def reconcile(job: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Reconcile unknown payments. Costs no request while there is none."""
    try:
        await job.state.client.payments.reconcile()
    except MobileMoneyError as error:
        logger.warning("not reconciled yet: %s", error)


async def enqueue(payouts: list[dict[str, str]]) -> None:
    """Queue payouts. One that is queued twice is still paid once."""
    await broker.startup()
    for each in payouts:
        await pay_out.kiq(each["order"], each["phone_number"], each["amount"])
    await broker.shutdown()


if __name__ == "__main__":
    payouts = list(csv.DictReader(Path(sys.argv[1]).read_text("utf-8").splitlines()))
    if any({*each} != {"order", "phone_number", "amount"} or None in each.values() for each in payouts):
        sys.exit("nothing was queued: every line must have order, phone_number, amount")
    asyncio.run(enqueue(payouts))
    print(len(payouts), "payouts queued")
