"""The taskiq example: a real Redis, worker processes that are killed, and the sandbox over a socket."""

import logging
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import attrs
import pytest
import redis

from mobilemoney_async import AsyncClient, DisbursementLimits, MobileMoneyError, OutcomeUnknown, RateLimiter, SQLStore
from mobilemoney_async.sandbox import Sandbox, faults
from tests.support.fleet import SPEED, Fleet, fleet_environment, kill, make_sandbox
from tests.support.patience import PATIENCE
from tests.support.processes import environment
from tests.support.redis_server import redis_server
from tests.support.scale import soak
from tests.support.shops import EXAMPLES, load
from tests.support.warm import SCRIPT, warm

example = partial(load, "taskiq_payouts")
PROGRAM = EXAMPLES / "taskiq_payouts.py"
IMPORTED = ("taskiq", "taskiq_redis", "mobilemoney_async.payments.api", "sqlalchemy.dialects.sqlite")
WORKER = [sys.executable, "-m", "taskiq", "worker", "--workers=1", f"--app-dir={EXAMPLES}", "taskiq_payouts:broker"]
TWINS = ("+255681999999", 500_000)
ORDERS = {
    **{f"refund-{number}": (f"+25568123{4_500 + number}", 5_000 + 100 * number) for number in range(soak(57))},
    "refund-nobody": ("+255780000089", 700_000),
    "twin-1": TWINS,
    "twin-2": TWINS,
}
ENDS = re.compile(r"(?:refund|twin)-\w+(?=: (?:SUCCESS|FAILED)$)", re.MULTILINE)

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


@attrs.define(eq=False, kw_only=True)
class Payouts(Fleet):
    """The example, with one queue and one store."""

    queue: redis.Redis

    def worker(self) -> AbstractAsyncContextManager[anyio.abc.Process]:
        """Run a worker, killed at the end at the latest."""
        return self.process(*WORKER)

    async def enqueue(self, orders: Iterable[str]) -> None:
        """Queue orders by the example's own command."""
        file = self.folder / "payouts.csv"
        rows = ["order,phone_number,amount", *(f"{each},{ORDERS[each][0]},{ORDERS[each][1]}" for each in orders)]
        file.write_text("\n".join(rows))
        assert await self.run(PROGRAM, str(file)) == f"{len(rows) - 1} payouts queued\n"

    def unfinished(self) -> int:
        """Return how many jobs were delivered and not acknowledged."""
        summary: Any = self.queue.xpending("payouts", "taskiq")
        return int(summary["pending"])

    async def find_out(self) -> None:
        """Do what a person does about payments that were lost on their way, for as long as the test lasts.

        A worker that is killed between its record and its first byte leaves such a payment. The person is told by the
        list after the grace period; here there is no need to wait for that.
        """
        limiter = RateLimiter(per_minute=60 * SPEED, burst=10, window=60 / SPEED)
        store = SQLStore(self.env["MOBILEMONEY_STORE"], grace=0)
        base_url, token = self.env["MOBILEMONEY_BASE_URL"], self.env["MOBILEMONEY_TOKEN"]
        async with AsyncClient(base_url, auth=token, store=store, rate_limiter=limiter) as client:
            while True:
                with suppress(MobileMoneyError):  # what fails now is found out the next time
                    await client.payments.reconcile()
                    for record in await client.payments.unresolved():
                        if record.walks >= example().LOOKS and not record.is_ambiguous:
                            await client.payments.confirm_absent(record.key, note="looked")
                            await self.enqueue([record.key])
                await anyio.sleep(1)  # real time: an operator who looks now and then


@asynccontextmanager
async def payouts(folder: Path) -> AsyncIterator[Payouts]:
    sandbox = make_sandbox()
    with redis_server() as redis_url, redis.Redis.from_url(redis_url) as queue:
        async with sandbox.serve() as base_url:
            env = fleet_environment(sandbox, base_url, folder, REDIS_URL=redis_url)
            yield Payouts(sandbox=sandbox, folder=folder, env=env, imported=IMPORTED, queue=queue)


@pytest.mark.soak
@pytest.mark.real_time
@on_asyncio
async def test_each_order_is_paid_once_though_workers_are_killed(tmp_path: Path) -> None:
    """Queued twice and with workers killed on the way, each order is paid once and followed to its final state."""
    async with payouts(tmp_path) as run:
        async with run.worker() as first, run.worker() as second:
            await run.until(lambda: run.said().count("Listening started") == 2)
            # A payment that has none before it to compare the list with is never called absent.
            await run.enqueue([next(iter(ORDERS))])
            await run.until(lambda: bool(ENDS.findall(run.said())))
            run.sandbox.script(faults.drop(processed=True), on="b2c", times=2)
            for worker in (first, second):
                run.strike(partial(kill, worker), after=soak(13))
            await run.enqueue([*ORDERS, *list(ORDERS)[::3]])
            await run.until(lambda: None not in {first.returncode, second.returncode})
        assert run.unfinished()
        async with run.worker() as third, anyio.create_task_group() as group:
            group.start_soon(run.find_out)
            await run.until(lambda: set(ENDS.findall(run.said())) == set(ORDERS))
            group.cancel_scope.cancel()
            await run.until(lambda: run.unfinished() == 0)
            third.terminate()
            with anyio.fail_after(PATIENCE):
                assert await third.wait() == 0
    sandbox = run.sandbox
    owed = Counter((phone_number, Decimal(amount)) for phone_number, amount in ORDERS.values())
    made = Counter((each.phone_number, Decimal(each.amount)) for each in sandbox.transactions.values())
    assert made == owed
    del owed[ORDERS["refund-nobody"][0], Decimal(700_000)]
    assert Counter((entry.phone_number, entry.amount) for entry in sandbox.ledger) == owed
    print(run.said())
    assert "Traceback" not in run.said()
    assert "681234" not in run.said()


@attrs.define(eq=False)
class Job:
    """What taskiq gives a task: the worker's state, and a way to acknowledge."""

    state: Any
    acknowledged: int = 0

    async def ack(self) -> None:
        self.acknowledged += 1


@asynccontextmanager
async def worker_state(sandbox: Sandbox, folder: Path, **options: Any) -> AsyncIterator[Any]:
    """Open what a worker has, in this process."""
    store = SQLStore(f"sqlite:///{folder / 'payouts.db'}", grace=0)
    async with sandbox.client(store=store, **options) as client, client.poller(resume=True) as poller:
        yield SimpleNamespace(client=client, poller=poller)


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the orders that are queued to be followed."""
    names: list[str] = []

    async def kiq(order: str) -> None:
        names.append(order)

    monkeypatch.setattr(example().follow, "kiq", kiq)
    return names


@pytest.mark.slow
@on_asyncio
@pytest.mark.parametrize("wrong", ["phone number", "amount", "refused", "cancelled"])
async def test_an_order_that_cannot_be_paid_is_left_to_a_person(
    wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, queued: list[str]
) -> None:
    """An order that the library or the service refuses is told to a person, and not tried for ever.

    It is followed where the answer does not prove that no money has moved.
    """
    sandbox = Sandbox()
    async with worker_state(sandbox, tmp_path) as state:
        job = Job(state)
        if wrong == "amount":  # another one than before
            await example().pay_out("order-1", "+255681234567", "4000", job=Job(state))
        if wrong == "refused":
            sandbox.script(faults.server_error(422, processed=False), on="b2c")
        number = "0681 765 432" if wrong == "phone number" else "+255681234567"
        if wrong == "cancelled":
            order: dict[str, Any] = {"phone_number": number, "amount": 5000, "idempotency_key": "order-1"}
            await state.client.payments.enqueue(type="disbursement", **order)
            await state.client.payments.cancel("order-1", note="paid in cash")
        await example().pay_out("order-1", number, "5000", job=job)
    assert job.acknowledged == 1
    assert re.match("order-1: an operator must look: ", caplog.messages[-1])
    assert number[-6:] not in caplog.text
    assert queued == ([] if wrong in {"phone number", "cancelled"} else ["order-1"])
    assert sum(each.amount == "5000" for each in sandbox.transactions.values()) == 0


@on_asyncio
@pytest.mark.parametrize("wrong", ["network", "permission", "closed", "twin"])
async def test_an_order_that_cannot_be_paid_now_is_delivered_again(
    wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, queued: list[str]
) -> None:
    """A job whose payment was provably not sent is not acknowledged, and the next delivery pays it."""
    sandbox = Sandbox()
    token = sandbox.issue_token(["read"]) if wrong == "permission" else sandbox.token
    async with worker_state(sandbox, tmp_path, auth=token, timeout=1) as state:
        job = Job(state)
        if wrong == "network":
            sandbox.script(faults.refused(), on="b2c", times=20)
        if wrong == "closed":
            await state.client.aclose()
        if wrong == "twin":
            sandbox.script(faults.lost(processed=False), on="b2c")
            with pytest.raises(OutcomeUnknown):
                await state.client.disbursements.create(
                    phone_number="+255681234567", amount=5000, idempotency_key="order-0"
                )
        await example().pay_out("order-1", "+255681234567", "5000", job=job)
        assert (job.acknowledged, queued) == (0, [])
        assert re.match("order-1: not paid, retried in some minutes: ", caplog.messages[-1])
        if wrong == "twin":
            await state.client.payments.confirm_absent("order-0", note="looked")
    sandbox.clear_script()
    async with worker_state(sandbox, tmp_path) as state:
        await example().pay_out("order-1", "+255681234567", "5000", job=(job := Job(state)))
    assert (job.acknowledged, queued) == (1, ["order-1"])
    assert len(sandbox.transactions) == 1


@on_asyncio
@pytest.mark.parametrize("limit", ["per_payment", "per_recipient_a_day", "per_day"])
async def test_what_a_limit_never_lets_go_is_left_to_a_person(
    limit: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, queued: list[str]
) -> None:
    """An order above the limit itself is not tried for ever; one that has to wait for a day is."""
    sandbox, limits = Sandbox(), DisbursementLimits(**{limit: 6000})
    async with worker_state(sandbox, tmp_path, disbursement_limits=limits) as state:
        await example().pay_out("order-1", "+255681234567", "6001", job=(job := Job(state)))
        assert (job.acknowledged, queued) == (1, [])
        assert re.match("order-1: an operator must look: ", caplog.messages[-1])
        for order in ("order-2", "order-3"):
            await example().pay_out(order, "+255681234567", "5000", job=(job := Job(state)))
        assert job.acknowledged == (limit == "per_payment")


@pytest.mark.slow
@on_asyncio
async def test_an_unknown_outcome_is_followed_until_a_person_has_to_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payment that may exist is never sent again: it is found, or a person is told that it was not, or cannot be."""
    caplog.set_level(logging.INFO, "payouts")
    sandbox = Sandbox()
    async with worker_state(sandbox, tmp_path, timeout=1) as state:
        for order, is_processed in {"found": True, "absent": False}.items():
            sandbox.script(faults.lost(processed=is_processed), on="b2c")
            for _ in range(2):  # delivered twice
                await example().pay_out(order, f"+25568123456{is_processed:d}", "5000", job=Job(state))
        assert queued == ["found", "found", "absent", "absent"]
        sandbox.script(faults.server_error(422, processed=False), on="b2c")
        await example().pay_out("refused", "+255681234568", "5000", job=Job(state))
        for _ in range(2):
            await example().reconcile(job=Job(state))
        for order in ("found", "absent", "refused", "never-made"):
            await example().follow(order, job=(job := Job(state)))
            assert job.acknowledged == 1
        # Where the list cannot be read, no look counts.
        sandbox.script(faults.lost(processed=False), on="b2c")
        await example().pay_out("unread", "+255681234569", "5000", job=Job(state))
        monkeypatch.setattr(example(), "LOOK_FOR", -3600)  # the clock of the store is virtual
        await example().follow("unread", job=Job(state))
    assert len(sandbox.transactions) == sandbox.requests.count("b2c") - 3 == 1
    assert caplog.messages[-6:] == [
        "found: SUCCESS",
        "absent: UNKNOWN, an operator must look: `mobilemoney payments show absent`",
        "refused: REFUSED, an operator must look: `mobilemoney payments show refused`",
        "never-made: None, an operator must look: `mobilemoney payments show never-made`",
        *caplog.messages[-2:-1],  # the answer to the create
        "unread: UNKNOWN, an operator must look: `mobilemoney payments show unread`",
    ]


@pytest.mark.slow
@on_asyncio
async def test_a_payment_that_takes_long_makes_room(tmp_path: Path, queued: list[str]) -> None:
    """A job that follows an open payment ends after a minute, and another one goes on."""
    async with worker_state(Sandbox(), tmp_path) as state:
        await example().pay_out("open", "+255780000129", "5000", job=Job(state))
        started_at = anyio.current_time()
        await example().follow("open", job=(job := Job(state)))
        assert anyio.current_time() - started_at == pytest.approx(60, abs=1)
    assert (job.acknowledged, queued) == (1, ["open", "open"])


@pytest.mark.slow
@pytest.mark.real_time
def test_no_number_of_jobs_that_are_retried_hides_those_of_a_dead_worker() -> None:
    """Asked as taskiq-redis asks, Redis gives a job of long ago that stands behind others of just now."""
    with redis_server() as redis_url, redis.Redis.from_url(redis_url) as queue:
        queue.xgroup_create("payouts", "taskiq", mkstream=True)
        pipe = queue.pipeline()
        for number in range(1_001):
            pipe.xadd("payouts", {"data": number})
        *_, last = pipe.execute()
        queue.xreadgroup("taskiq", "alive", {"payouts": ">"})
        queue.xclaim("payouts", "taskiq", "dead", 0, [last], idle=3_600_000)
        broker = example().broker
        _, claimed, _ = queue.xautoclaim(
            "payouts", "taskiq", "alive", broker.idle_timeout, count=broker.unacknowledged_batch_size
        )
    assert [each for each, _ in claimed] == [last]


@pytest.mark.slow
def test_a_wrong_file_is_not_queued(tmp_path: Path) -> None:
    """Of a file with a line that is cut, nothing is queued."""
    file = tmp_path / "payouts.csv"
    file.write_text("order,phone_number,amount\norder-1,+255681234567,5000\norder-2,+255681234567\n")
    ran = warm(*IMPORTED).run(SCRIPT, str(PROGRAM), str(file), env=environment(), seconds=PATIENCE)
    assert ran.returncode == 1
    assert ran.stderr == "nothing was queued: every line must have order, phone_number, amount\n"
