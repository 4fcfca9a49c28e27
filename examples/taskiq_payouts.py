"""Pays out from a taskiq queue in Redis: each order once, though workers are killed and jobs are delivered twice.

Workers: `taskiq worker --app-dir examples taskiq_payouts:broker`. The service and the credentials come from what
`AsyncClient.from_env` reads, MOBILEMONEY_STORE included, the queue from REDIS_URL.
Jobs: `python examples/taskiq_payouts.py examples/payouts.csv`, as often as you like.

A job is acknowledged when it is done. Where it cannot be done yet, or its worker was killed, Redis delivers it again,
to any worker. The order is the payment's key: whatever happened before, the same key may be tried again.
"""

import asyncio
import csv
import logging
import os
import signal
import sys
from pathlib import Path

import anyio
from taskiq import Context, TaskiqDepends, TaskiqEvents, TaskiqState
from taskiq_redis import RedisStreamBroker

from mobilemoney_async import (
    APIError,
    AsyncClient,
    IdempotencyConflict,
    InvalidRequest,
    MobileMoneyError,
    OutcomeUnknown,
    PaymentState,
    RateLimiter,
)

SPEED = float(os.environ.get("SANDBOX_SPEED", "1"))  # a sandbox may be faster than life: then all of this is
DELIVER_AGAIN_AFTER = 600 / SPEED  # seconds; a job that takes longer runs twice, which does no harm
FOLLOW_FOR = RECONCILE_EVERY = 60 / SPEED

logger = logging.getLogger("payouts")
broker = RedisStreamBroker(
    os.environ.get("REDIS_URL", "redis://localhost:6379"),
    queue_name="payouts",
    consumer_id="0",  # what was queued before the first worker came counts too
    idle_timeout=int(DELIVER_AGAIN_AFTER * 1000),
    xread_count=10,  # a worker takes few that it cannot begin yet: their time runs too
    maxlen=200_000,  # the stream keeps jobs that are done: 60 MB, and more than a day's at the service's limit
)


async def live(state: TaskiqState) -> None:
    """Own the client and the poller, for the life of a worker.

    What opens a poller has to close it too. Taskiq's two events are two tasks, so it is neither of them.
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
                await reconcile.kiq()  # as a job: only when one has come, taskiq-redis looks for those of dead workers
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
        if needs_a_person(error):
            logger.error("%s: not paid, and a person has to look: %s", order, error)  # noqa: TRY400
            await job.ack()
        else:
            logger.warning("%s: not paid, again in some minutes: %s", order, error)
        return
    await follow.kiq(order)
    await job.ack()


def needs_a_person(error: MobileMoneyError) -> bool:
    """Whether it is of no use to try again. Either way this try has moved no money."""
    if isinstance(error, InvalidRequest):
        return error.argument != "client"  # which is closed when this worker is about to stop
    return type(error) in {APIError, IdempotencyConflict}  # kinds of APIError, as AuthenticationError, are about us


@broker.task("follow", ack_type="manual")
async def follow(order: str, job: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Follow an order's payment until it is final, and say so: at least once."""
    with anyio.move_on_after(FOLLOW_FOR) as patience:
        while True:
            payment = await job.state.client.payments.get(order)
            if payment is not None and payment.transaction_id is not None:
                final = payment.transaction or await job.state.poller.wait(payment.transaction_id)
                logger.info("%s: %s", order, final.status)  # here: your books
                break
            state = payment and payment.state
            if state not in {PaymentState.SENDING, PaymentState.UNKNOWN} or payment.is_ambiguous:
                logger.error("%s: %s, and a person has to look: `mobilemoney payments show %s`", order, state, order)
                break
            await anyio.sleep(5 / SPEED)
    if patience.cancelled_caught:
        await follow.kiq(order)  # behind what waits to be paid
    await job.ack()


@broker.task("reconcile")
async def reconcile(job: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Find out about payments of which nobody knows what became. Costs no request while there is none."""
    try:
        await job.state.client.payments.reconcile()
    except MobileMoneyError as error:
        logger.warning("not found out yet: %s", error)


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
