"""Pays the salaries of the payroll, from several processes, and follows them to their final states.

All state is in the store. So each process here may be killed at any moment.
"""

import itertools
import multiprocessing
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mobilemoney_async import AsyncClient, MobileMoneyError, RateLimiter, SQLStore
from payroll_file import BadFileError, Salary
from payroll_status import Payment, Status

# Requests of one process at once: enough to use the whole rate limit while answers are slow. A kill leaves few unknown.
AT_ONCE = 4


@dataclass(frozen=True)
class Job:
    """Settings of the payroll; goes to each process."""

    store: str = field(repr=False)
    processes: int
    grace: float
    stale_after: float | None
    wait: float
    retry_failed: bool
    speed: float

    def client(self) -> AsyncClient:
        """Make a client; address and credentials come from the environment."""
        return AsyncClient.from_env(
            store=SQLStore(self.store, grace=self.grace, key=os.environ.get("MOBILEMONEY_STORE_KEY")),
            rate_limiter=RateLimiter(per_minute=60 * self.speed, burst=10, window=60 / self.speed),
        )


async def prepare(job: Job, salaries: Sequence[Salary]) -> list[Payment]:
    """Look up each salary in the store. Sends no money.

    Raises:
        BadFileError: The file differs from a payment that was sent already.
    """
    async with job.client() as client:
        await client.users.profile()  # finds a wrong address or password before the first payment
        await client.payments.reconcile(stale_after=job.stale_after)
        payments = [await look_up(client, each, retry_failed=job.retry_failed) for each in salaries]
    wrong = [
        f"line {each.salary.line}: {each.salary.employee} has another number or amount than the payment sent before, "
        f"which is {each.status}"
        for each in payments
        if each.contradicts
    ]
    if wrong:
        raise BadFileError(wrong)
    return payments


async def look_up(client: AsyncClient, salary: Salary, *, retry_failed: bool) -> Payment:
    """Return a salary with the last key used for it; or with a new key, if that is requested and safe."""
    payment = Payment(salary, salary.key, await client.payments.get(salary.key))
    for attempt in itertools.count(2):
        if payment.status not in {Status.FAILED, Status.REFUSED, Status.NOT_SENT} or payment.record is None:
            break
        key = f"{salary.key}/{attempt}"
        following = Payment(salary, key, await client.payments.get(key))
        needs_new_key = payment.status is Status.FAILED or payment.contradicts
        if following.record is None and not (retry_failed and needs_new_key):
            break
        payment = following
    return payment


def pay(job: Job, payments: Sequence[Payment]) -> dict[str, str]:
    """Send the due payments, from several processes; return the errors by key."""
    due = [each for each in payments if each.is_due]
    spawn, errors = multiprocessing.get_context("spawn"), dict[str, str]()
    workers, answers = [], list[Connection]()
    for share in divide(due, job.processes):
        answer, theirs = spawn.Pipe(duplex=False)
        worker = spawn.Process(target=work, args=(job, share, theirs), daemon=True)
        worker.start()
        theirs.close()  # so that the pipe ends when the worker ends, also if it is killed
        workers.append(worker)
        answers.append(answer)
    with progress_bar() as progress:
        bar = progress.add_task("sent", total=len(due))
        while answers:
            ready = wait(answers)
            for answer in [each for each in answers if each in ready]:
                try:
                    key, error = answer.recv()
                except (EOFError, OSError):
                    answers.remove(answer)
                    continue
                if error is not None:
                    errors[key] = error
                progress.advance(bar)
    for worker in workers:
        worker.join()
        if worker.exitcode:
            print(
                f"a worker died ({worker.exitcode}): the payments it did not send are among `not sent`", file=sys.stderr
            )
    return errors


def divide(payments: Sequence[Payment], shares: int) -> list[list[Payment]]:
    """Divide payments among processes. Duplicates stay together: in one process the second waits for the first."""
    kinds: dict[tuple[str, int], int] = {}
    divided: list[list[Payment]] = [[] for _ in range(shares)]
    for each in payments:
        kind = (each.salary.phone_number, each.salary.amount)
        divided[kinds.setdefault(kind, len(kinds) % shares)].append(each)
    return [share for share in divided if share]


def work(job: Job, share: Sequence[Payment], answers: Connection) -> None:
    """Pay a share: the main function of a worker process."""
    with suppress(KeyboardInterrupt):  # the parent reports it
        anyio.run(pay_share, job, share, answers)


async def pay_share(job: Job, share: Sequence[Payment], answers: Connection) -> None:
    waiting = iter(share)

    async def pay_some() -> None:
        for payment in waiting:  # all tasks take from the same iterator
            answers.send((payment.key, await send(client, payment)))

    try:
        async with job.client() as client, anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(pay_some)
    except* BrokenPipeError:
        pass  # the parent is dead: sent payments are in the store, and the next run continues


async def send(client: AsyncClient, payment: Payment) -> str | None:
    """Pay one salary; return the error, or None. The result is in the store."""
    salary = payment.salary
    try:
        await client.disbursements.create(
            phone_number=salary.phone_number, amount=salary.amount, idempotency_key=payment.key
        )
    except MobileMoneyError as error:
        return str(error)
    return None


async def settle(job: Job, payments: Sequence[Payment]) -> list[Payment]:
    """Follow payments, and reconcile unknown ones, until none is open or the time is over.

    The poller writes every final state into the store, so this function reads the store.
    """
    async with job.client() as client, client.poller(min_interval=1 / job.speed) as poller:
        latest = {each.key: await refresh(client, each) for each in payments}
        reconcile_at = anyio.current_time() + job.grace / 4
        with progress_bar() as progress, anyio.move_on_after(job.wait):
            bar = progress.add_task("settled", total=len(latest))
            while still_open := [each for each in latest.values() if each.is_open]:
                progress.update(bar, completed=len(latest) - len(still_open))
                for each in still_open:
                    if each.record is not None and each.record.transaction_id is not None:
                        poller.track(each.record.transaction_id)
                await anyio.sleep(5 / job.speed)
                if anyio.current_time() >= reconcile_at:
                    with suppress(MobileMoneyError):  # if the list cannot be read now, try later
                        await client.payments.reconcile()  # costs nothing when nothing is unknown
                    reconcile_at = anyio.current_time() + job.grace / 4
                latest |= {each.key: await refresh(client, each) for each in still_open}
            progress.update(bar, completed=len(latest))
    return list(latest.values())


async def refresh(client: AsyncClient, payment: Payment) -> Payment:
    """Return a payment with its present record."""
    return replace(payment, record=await client.payments.get(payment.key))


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description:>7}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
