"""Pays the salaries of one month, each once, from several processes that share one store.

`python examples/payroll.py examples/salaries.csv --sandbox` shows it with no account and no money. For the service
itself, set what `AsyncClient.from_env` reads, and say where payments are remembered:
`python examples/payroll.py salaries.csv --store sqlite:///payroll.db --processes 3`.

Whatever happens, a power cut included: start it again, with the same file and the same store. Each salary is paid once.

Exit codes: 0 everybody is paid; 1 the service or the store failed; 2 wrong usage, or a file that cannot be paid as it
is, of which nothing was sent; 3 something is open; 4 nothing is open, but something was refused or has failed; 130
interrupted.
"""

import argparse
import csv
import enum
import io
import itertools
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mobilemoney_async import (
    AsyncClient,
    InvalidRequest,
    MobileMoneyError,
    PaymentRecord,
    PaymentState,
    RateLimiter,
    SQLStore,
)
from mobilemoney_async.values import mask_phone_number, normalise_amount, normalise_phone_number

# The month is in the file: one from the calendar, or typed anew, could be another one at the restart, and pay twice.
COLUMNS = ["month", "employee", "phone_number", "amount"]
# Requests of one process: enough to use the rate limit up while answers are slow, and a kill leaves few unknown.
AT_ONCE = 4
UNSENT = {PaymentState.NOT_SENT, PaymentState.REFUSED, PaymentState.RELEASED}


class Standing(enum.Enum):
    """What is known of a salary; the value says what to do about it."""

    PAID = "nothing is left to do."
    FAILED = "accepted, and no money moved. Mend the cause and start again with --retry-failed."
    REFUSED = "the service said no. Mend the cause and start again, with --retry-failed if the row has changed."
    NOT_SENT = "nothing was sent, or it provably did not arrive. Start again."
    ON_ITS_WAY = "accepted, and not final yet. Start again later; do not pay it in another way."
    UNKNOWN = "it may be paid or not. Start again later, which finds out; do not pay it in another way."
    AMBIGUOUS = (
        "it may be one of the transactions named. Compare them. If it is none of them, say so with "
        "`mobilemoney payments confirm-absent KEY --note …` and start again."
    )
    ABSENT = (
        "the service's list does not show it. Look on its dashboard, or ask the employee. If it is not paid, say so "
        "with `mobilemoney payments confirm-absent KEY --note …` and start again."
    )

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Job:
    """How to pay; goes to each process."""

    store: str = field(repr=False)
    processes: int
    grace: float
    stale_after: float | None
    wait: float
    retry_failed: bool
    speed: float

    def client(self) -> AsyncClient:
        """Make a client; the service and the credentials come from the environment."""
        return AsyncClient.from_env(
            store=SQLStore(self.store, grace=self.grace, key=os.environ.get("MOBILEMONEY_STORE_KEY")),
            rate_limiter=RateLimiter(per_minute=60 * self.speed, burst=10, window=60 / self.speed),
        )


@dataclass(frozen=True)
class Salary:
    """One row of the file."""

    line: int
    month: str
    employee: str
    phone_number: str = field(repr=False)
    amount: int

    @property
    def key(self) -> str:
        """The name of this payment, whenever and wherever it is made."""
        return f"payroll-{self.month}/{self.employee}"


@dataclass(frozen=True)
class Payment:
    """A salary, the key under which it is paid, and what the store knows of that."""

    salary: Salary
    key: str
    record: PaymentRecord | None = None

    @property
    def standing(self) -> Standing:
        """Where it stands."""
        record = self.record
        if record is None or record.state in {PaymentState.NOT_SENT, PaymentState.RELEASED}:
            return Standing.NOT_SENT
        if record.state is PaymentState.REFUSED:
            return Standing.REFUSED
        if record.transaction is not None and record.is_final:
            return Standing.PAID if record.transaction.succeeded else Standing.FAILED
        if record.is_unresolved:
            absent = Standing.ABSENT if record.state is PaymentState.ABSENT else Standing.UNKNOWN
            return Standing.AMBIGUOUS if record.is_ambiguous else absent
        return Standing.ON_ITS_WAY

    @property
    def is_due(self) -> bool:
        """Whether it is to be sent."""
        return self.record is None or self.record.state in UNSENT

    @property
    def is_open(self) -> bool:
        """Whether waiting may tell more."""
        return self.standing in {Standing.ON_ITS_WAY, Standing.UNKNOWN}

    @property
    def contradicts(self) -> bool:
        """Whether the file says something else than what was sent, or tried, under this key."""
        told = (self.salary.phone_number, self.salary.amount)
        return self.record is not None and told != (self.record.phone_number, int(self.record.amount))


class BadFileError(Exception):
    """The file cannot be paid as it is."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))


def read_salaries(file: Path) -> list[Salary]:
    """Read and check the whole file, so that nothing is sent of one that is wrong or half there.

    Raises:
        BadFileError: With all problems at once.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError([f"it cannot be read as UTF-8 text: {error}"]) from error
    problems = [] if text.endswith("\n") else ["the last line has no line end: was the file cut off?"]
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    salaries: dict[str, Salary] = {}
    try:
        if rows.fieldnames != COLUMNS:
            raise BadFileError([f"line 1: the columns must be {','.join(COLUMNS)}"])
        for row in rows:
            wrong = list(check(row)) or list(add(salaries, rows.line_num, row))
            problems += [f"line {rows.line_num}: {each}" for each in wrong]
    except csv.Error as error:
        problems.append(f"line {rows.line_num}: {error}")
    if problems or not salaries:
        raise BadFileError(problems or ["there is no salary in it"])
    return list(salaries.values())


def check(row: dict[str, str]) -> Iterator[str]:
    """Say what is wrong with a row by itself."""
    if set(row) != set(COLUMNS) or None in row.values():
        yield f"not {len(COLUMNS)} values"
        return
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", row["month"]):
        yield "month: such as 2026-11"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", row["employee"]):
        yield "employee: letters, digits, '.', '_' and '-'"
    for column, normalise in (("phone_number", normalise_phone_number), ("amount", normalise_amount)):
        try:
            normalise(row[column])
        except InvalidRequest as error:
            yield str(error)


def add(salaries: dict[str, Salary], line: int, row: dict[str, str]) -> Iterator[str]:
    """Add a row that is right by itself; say what is wrong with it beside the others."""
    phone_number, amount = normalise_phone_number(row["phone_number"]), int(normalise_amount(row["amount"]))
    salary = Salary(line, row["month"], row["employee"], phone_number, amount)
    earlier = salaries.setdefault(salary.employee, salary)
    if earlier is not salary:
        yield f"employee: {salary.employee} is in line {earlier.line} too"
    first = next(iter(salaries.values()))
    if salary.month != first.month:
        yield f"month: another than in line {first.line}"


async def prepare(job: Job, salaries: Sequence[Salary]) -> list[Payment]:
    """Find out what is known of each salary. Sends no money.

    Raises:
        BadFileError: The file says something else than what was sent already.
    """
    async with job.client() as client:
        await client.users.profile()  # what is wrong with all of them is better found before the first
        await client.payments.reconcile(stale_after=job.stale_after)
        payments = [await look_up(client, each, retry_failed=job.retry_failed) for each in salaries]
    wrong = [
        f"line {each.salary.line}: {each.salary.employee} has another number or amount than what was sent before, "
        f"which is {each.standing}"
        for each in payments
        if each.contradicts
    ]
    if wrong:
        raise BadFileError(wrong)
    return payments


async def look_up(client: AsyncClient, salary: Salary, *, retry_failed: bool) -> Payment:
    """Return a salary with the last key that was used for it; or with a new one, if that is asked for and right."""
    payment = Payment(salary, salary.key, await client.payments.get(salary.key))
    for attempt in itertools.count(2):
        if payment.standing not in {Standing.FAILED, Standing.REFUSED, Standing.NOT_SENT} or payment.record is None:
            break
        key = f"{salary.key}/{attempt}"
        following = Payment(salary, key, await client.payments.get(key))
        needs_new_key = payment.standing is Standing.FAILED or payment.contradicts
        if following.record is None and not (retry_failed and needs_new_key):
            break
        payment = following
    return payment


def pay(job: Job, payments: Sequence[Payment]) -> dict[str, str]:
    """Send what is due, from several processes; return by key what went wrong."""
    due = [each for each in payments if each.is_due]
    spawn, errors = multiprocessing.get_context("spawn"), dict[str, str]()
    workers, answers = [], list[Connection]()
    for share in divide(due, job.processes):
        answer, theirs = spawn.Pipe(duplex=False)
        worker = spawn.Process(target=work, args=(job, share, theirs), daemon=True)
        worker.start()
        theirs.close()  # so that the pipe ends when the worker does, however that is
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
            print(f"a worker died ({worker.exitcode}): what it did not send is among what is not sent", file=sys.stderr)
    return errors


def divide(payments: Sequence[Payment], shares: int) -> list[list[Payment]]:
    """Divide payments among processes. Twins stay together: in one process the second waits for the first."""
    kinds: dict[tuple[str, int], int] = {}
    divided: list[list[Payment]] = [[] for _ in range(shares)]
    for each in payments:
        kind = (each.salary.phone_number, each.salary.amount)
        divided[kinds.setdefault(kind, len(kinds) % shares)].append(each)
    return [share for share in divided if share]


def work(job: Job, share: Sequence[Payment], answers: Connection) -> None:
    """Pay a share: the whole of a worker process."""
    with suppress(KeyboardInterrupt):  # the parent says so
        anyio.run(pay_share, job, share, answers)


async def pay_share(job: Job, share: Sequence[Payment], answers: Connection) -> None:
    waiting = iter(share)

    async def pay_some() -> None:
        for payment in waiting:  # all of them take from the same
            answers.send((payment.key, await send(client, payment)))

    try:
        async with job.client() as client, anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(pay_some)
    except* BrokenPipeError:
        pass  # the parent is gone: what was sent is in the store, and the next run goes on


async def send(client: AsyncClient, payment: Payment) -> str | None:
    """Pay one salary; return what went wrong. What became of it is in the store."""
    salary = payment.salary
    try:
        await client.disbursements.create(
            phone_number=salary.phone_number, amount=salary.amount, idempotency_key=payment.key
        )
    except MobileMoneyError as error:
        return str(error)
    return None


async def settle(job: Job, payments: Sequence[Payment]) -> list[Payment]:
    """Follow payments, and find out about unknown ones, until nothing is open or the time is up.

    The poller writes every final state into the store, so that is where to look.
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
                    with suppress(MobileMoneyError):  # where the list cannot be read, later
                        await client.payments.reconcile()  # costs nothing when nothing is unknown
                    reconcile_at = anyio.current_time() + job.grace / 4
                latest |= {each.key: await refresh(client, each) for each in still_open}
            progress.update(bar, completed=len(latest))
    return list(latest.values())


async def refresh(client: AsyncClient, payment: Payment) -> Payment:
    """Return a payment with what the store knows of it."""
    return replace(payment, record=await client.payments.get(payment.key))


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description:>7}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def report(payments: Sequence[Payment], errors: dict[str, str]) -> int:
    """Print what is paid, and all else with what to do about it; return the exit code."""
    paid = [each.salary.amount for each in payments if each.standing is Standing.PAID]
    total = sum(each.salary.amount for each in payments)
    print(f"paid: {len(paid)} of {len(payments)} salaries, {sum(paid):,} of {total:,} TZS")
    left = {each.standing for each in payments} - {Standing.PAID}
    for standing in (each for each in Standing if each in left):
        print(f"\n{standing}: {standing.value}")
        for each in payments:
            if each.standing is standing:
                salary, number = each.salary, mask_phone_number(each.salary.phone_number)
                what = f"line {salary.line}  {each.key}  {salary.amount:,} TZS  {number}  {why(each, errors)}"
                print(f"  {what.rstrip()}")
    if not left:
        return 0
    return 4 if left <= {Standing.FAILED, Standing.REFUSED} else 3


def why(payment: Payment, errors: dict[str, str]) -> str:
    record = payment.record
    if record is not None and record.transaction is not None:
        return record.transaction.failure_reason or str(record.transaction.status)
    if record is not None:
        return " ".join(record.candidates) or record.error or ""
    return errors.get(payment.key, "")


@contextmanager
def own_sandbox(job: Job) -> Iterator[Job]:
    """Start a sandbox in a thread, and let the job be paid there, from a store of its own."""
    from mobilemoney_async.sandbox import Sandbox

    sandbox = Sandbox(speed=20)
    with tempfile.TemporaryDirectory() as folder, start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(sandbox.serve()) as base_url:
            os.environ.pop("MOBILEMONEY_EMAIL", None)
            os.environ |= {"MOBILEMONEY_BASE_URL": base_url, "MOBILEMONEY_TOKEN": sandbox.token}
            yield replace(job, store=f"sqlite:///{folder}/payroll.db", grace=2.0, speed=sandbox.speed)
            ledger = portal.call(lambda: sandbox.ledger)
            print(f"\nThe sandbox has paid {len(ledger)} salaries, {ledger.disbursed:,} TZS.")


def arguments(argv: Sequence[str] | None) -> tuple[Path, Job, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help=f"CSV with the columns {','.join(COLUMNS)}")
    parser.add_argument("--store", default=os.environ.get("MOBILEMONEY_STORE"), help="default: MOBILEMONEY_STORE")
    parser.add_argument("--processes", type=int, default=2, choices=range(1, 33), metavar="N", help="default: 2")
    parser.add_argument("--retry-failed", action="store_true", help="pay anew what has failed for certain")
    parser.add_argument("--wait", type=float, default=600, metavar="S", help="follow payments for so long: 600 s")
    parser.add_argument("--grace", type=float, default=120, metavar="S", help="see SQLStore: 120 s")
    parser.add_argument(
        "--stale-after", type=float, metavar="S", help="see payments.reconcile; 0: no other run is alive"
    )
    parser.add_argument("--sandbox", action="store_true", help="try it, with a sandbox and a store that it throws away")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="of a sandbox: X times the rate limit")
    given = vars(parser.parse_args(argv))
    file, is_sandbox = given.pop("file"), given.pop("sandbox")
    if given["store"] is None and not is_sandbox:
        parser.error("--store or MOBILEMONEY_STORE says where payments are remembered")
    return file, Job(**given | {"store": given["store"] or ""}), is_sandbox


def run(job: Job, salaries: Sequence[Salary]) -> int:
    payments = anyio.run(prepare, job, salaries)
    known = sum(each.record is not None for each in payments)
    # Of a restart with another store, this is the sign.
    print(f"{known} of {len(payments)} salaries are in the store already", file=sys.stderr)
    errors = pay(job, payments)
    return report(anyio.run(settle, job, payments), errors)


def main(argv: Sequence[str] | None = None) -> int:
    file, job, is_sandbox = arguments(argv)
    try:
        salaries = read_salaries(file)
        with own_sandbox(job) if is_sandbox else nullcontext(job) as job_there:
            return run(job_there, salaries)
    except BadFileError as error:
        print(f"{file}: nothing was sent, since\n{error}", file=sys.stderr)
        return 2
    except MobileMoneyError as error:
        print(f"stopped: {error}\nStart again: each salary is paid once.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted. Start again: each salary is paid once.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
