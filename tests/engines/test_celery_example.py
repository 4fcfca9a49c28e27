"""The Celery example: a real Redis, workers that are killed, and the sandbox over a socket."""

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from mobilemoney_async import DisbursementLimits, DuplicateSuspected, PermissionDenied, SQLStore
from mobilemoney_async.sandbox import Sandbox, faults
from tests.support.fleet import Fleet, fleet_environment, kill, make_sandbox
from tests.support.patience import PATIENCE
from tests.support.processes import environment
from tests.support.redis_server import redis_server
from tests.support.shops import EXAMPLES, load
from tests.support.warm import SCRIPT, warm

pytestmark = [pytest.mark.once, pytest.mark.slow]  # on the Python for which nox installs the engines

example = partial(load, "celery_payouts")
PROGRAM = EXAMPLES / "celery_payouts.py"
IMPORTED = ("celery.app.task", "mobilemoney_async.contrib.backend", "mobilemoney_async.payments.api")
CELERY = (sys.executable, "-m", "celery", "--workdir", str(EXAMPLES), "-A", "celery_payouts", "worker")
WORKER = (*CELERY, "--without-gossip", "--without-mingle", "--loglevel=INFO")
ORDERS = {
    **{f"refund-{number}": (f"+25568123{4_500 + number}", 5_000 + 100 * number) for number in range(9)},
    "refund-nobody": ("+255780000089", 700_000),
}

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


def in_books(file: Path) -> dict[str, str]:
    """Return the orders in the books with their final states."""
    with closing(sqlite3.connect(file)) as books:
        return dict(books.execute("SELECT id, status FROM orders").fetchall())


@pytest.mark.soak
@pytest.mark.real_time
@on_asyncio
async def test_each_order_is_paid_once_though_workers_are_killed(tmp_path: Path) -> None:
    """A worker is killed during a payment, then one of a worker's processes; two answers are lost; jobs come twice."""
    sandbox, file, books = make_sandbox(), tmp_path / "payouts.csv", tmp_path / "books.db"
    lines = [f"{order},{number},{amount}" for order, (number, amount) in ORDERS.items()]
    file.write_text("\n".join(["order,phone_number,amount", *lines, *lines[::3]]))
    with redis_server() as redis_url:
        async with sandbox.serve() as base_url:
            # Celery's name for a socket.
            queue = redis_url.replace("unix://", "redis+socket://")
            env = fleet_environment(sandbox, base_url, tmp_path, REDIS_URL=queue, BOOKS=str(books))
            fleet = Fleet(sandbox=sandbox, folder=tmp_path, env=env, imported=IMPORTED)
            assert await fleet.run(PROGRAM, str(file)) == f"{len(lines) + len(lines[::3])} payouts queued\n"
            async with (
                fleet.process(*WORKER, "--concurrency=1") as first,
                fleet.process(sys.executable, str(PROGRAM), "books") as keeper,
            ):
                fleet.strike(partial(kill, first), after=2)
                await first.wait()
                assert len(sandbox.transactions) == 3
                sandbox.script(faults.drop(processed=True), on="b2c", times=2)
                async with fleet.process(*WORKER, "--concurrency=2") as second:
                    fleet.strike(partial(kill_child, second.pid))
                    await fleet.until(lambda: set(in_books(books)) == set(ORDERS))
                    second.terminate()
                    with anyio.fail_after(PATIENCE):
                        assert await second.wait() == 0
                keeper.terminate()
                with anyio.fail_after(PATIENCE):
                    assert await keeper.wait() == 0
    assert "signal 9 (SIGKILL)" in fleet.said()
    made = Counter((each.phone_number, Decimal(each.amount)) for each in sandbox.transactions.values())
    assert made == Counter((number, Decimal(amount)) for number, amount in ORDERS.values())
    assert Counter(in_books(books).values()) == {"SUCCESS": 9, "FAILED": 1}
    assert "681234" not in fleet.said()


def kill_child(pid: int) -> None:
    """Kill one of the processes that run a worker's jobs."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    subprocess.run(["kill", f"-{signal.SIGKILL:d}", children[0]], check=True)


@contextmanager
def worker(sandbox: Sandbox, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[None]:
    """Open what a process of a worker has, in this process."""
    client = sandbox.client(store=SQLStore(f"sqlite:///{folder / 'payouts.db'}", grace=0), timeout=PATIENCE, **options)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client) as opened:
        monkeypatch.setattr(example().Worker, "portal", portal, raising=False)
        monkeypatch.setattr(example().Worker, "client", opened, raising=False)
        yield


@pytest.mark.parametrize(("wrong", "error"), [("permission", PermissionDenied), ("duplicate", DuplicateSuspected)])
def test_an_order_that_cannot_be_paid_now_is_tried_again(
    wrong: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose payment was provably not sent is retried, and then it is paid."""
    from celery.exceptions import Retry

    sandbox = Sandbox()
    with worker(
        sandbox, tmp_path, monkeypatch, auth=sandbox.issue_token(["read"]) if wrong == "permission" else sandbox.token
    ):
        if wrong == "duplicate":
            sandbox.script(faults.drop(processed=False), on="b2c")
            example().pay_out("order-0", "+255681234567", "5000")
        with pytest.raises(Retry) as caught:
            example().pay_out("order-1", "+255681234567", "5000")
        assert isinstance(caught.value.__cause__, error)
        assert not sandbox.transactions
        sandbox.clear_script()
        if wrong == "duplicate":
            opened = example().Worker
            opened.portal.call(partial(opened.client.payments.confirm_absent, "order-0", note="looked"))
    with worker(sandbox, tmp_path, monkeypatch):
        example().pay_out("order-1", "+255681234567", "5000")
    assert len(sandbox.transactions) == 1


def test_a_worker_whose_client_was_not_opened_keeps_its_jobs() -> None:
    """A failed job would be acknowledged: a worker without a token would empty the queue."""
    from celery.exceptions import Retry

    assert example().Worker.client is None
    with pytest.raises(Retry):
        example().pay_out("order-1", "+255681234567", "5000")


def test_a_process_on_a_busy_machine_has_time_to_open_its_client() -> None:
    """Celery kills a process that is late, and starts the next one, which is late too: nothing would be paid."""
    from celery import Celery

    assert example().app.conf.worker_proc_alive_timeout >= 10 * Celery().conf.worker_proc_alive_timeout


def test_a_job_that_cannot_be_queued_again_stays_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis refuses the new job, being full: the old one must not be dropped."""
    from celery.exceptions import Reject

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("max number of clients reached")

    task = example().pay_out
    monkeypatch.setattr(task, "apply_async", refuse)
    task.push_request(called_directly=False, id="order-1", args=("order-1", "+255681234567", "5000"), kwargs={})
    try:
        with pytest.raises(Reject) as caught:
            task.run(*task.request.args)
    finally:
        task.pop_request()
    assert caught.value.requeue


@pytest.mark.parametrize("wrong", ["phone number", "amount", "refused", "cancelled", "limit"])
def test_an_order_that_cannot_be_paid_is_left_to_an_operator(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An order that the library or the service refuses is logged as an error, and not tried for ever."""
    sandbox = Sandbox()
    number = "0681 765 432" if wrong == "phone number" else "+255681234567"
    limits = DisbursementLimits(per_day=4999 if wrong == "limit" else 9000)
    with worker(sandbox, tmp_path, monkeypatch, disbursement_limits=limits):
        if wrong == "amount":  # another one than before
            example().pay_out("order-1", number, "4000")
        if wrong == "refused":
            sandbox.script(faults.server_error(422, processed=False), on="b2c")
        if wrong == "cancelled":
            opened = example().Worker
            order = {"type": "disbursement", "phone_number": number, "amount": 5000, "idempotency_key": "order-1"}
            opened.portal.call(partial(opened.client.payments.enqueue, **order))
            opened.portal.call(partial(opened.client.payments.cancel, "order-1", note="paid in cash"))
        example().pay_out("order-1", number, "5000")
    assert caplog.messages[-1].startswith("order-1: an operator must look: ")
    assert number[-6:] not in caplog.text
    assert not any(each.amount == "5000" for each in sandbox.transactions.values())


def test_an_unknown_result_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is not retried, and a second delivery sends nothing."""
    sandbox = Sandbox()
    with worker(sandbox, tmp_path, monkeypatch):
        sandbox.script(faults.drop(processed=True), on="b2c")
        for _ in range(2):
            example().pay_out("order-1", "+255681234567", "5000")
    assert len(sandbox.transactions) == 1


def test_a_wrong_file_is_not_queued(tmp_path: Path) -> None:
    """Of a file with a line that is cut, nothing is queued."""
    file = tmp_path / "payouts.csv"
    file.write_text("order,phone_number,amount\norder-1,+255681234567,5000\norder-2,+255681234567\n")
    ran = warm(*IMPORTED).run(SCRIPT, str(PROGRAM), str(file), env=environment(), seconds=PATIENCE)
    assert ran.returncode == 1
    assert ran.stderr == "nothing was queued: every line must have order, phone_number, amount\n"
