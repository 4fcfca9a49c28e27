"""History: the processes' lives, the faults and then the calm, one after another."""

from __future__ import annotations

import contextvars
import math
import os
import pickle
import random
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import anyio
import attrs

from tests.simulation import laws
from tests.simulation.loop import PROCESS, Life
from tests.simulation.merchant import Merchant, Order
from tests.simulation.plan import Plan
from tests.simulation.service import Payment
from tests.simulation.world import Happening, World, run_world
from tests.support.databases import Postgres

# The pauses between two openings after the faults have stopped, seconds, and for how long each lasts.
CALM = (60, 300, 600, 1_800, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 86_400, 86_400, 2 * 86_400, 3 * 86_400)
CALM_MINUTES = 3
# Real seconds after which a history that stands still is killed, by the system.
_LONGEST = 900


@attrs.define(eq=False)
class History:
    """One world, from its first order to the calm."""

    world: World
    orders: dict[str, Order] = attrs.field(factory=dict)
    merchants: dict[str, Merchant] = attrs.field(factory=dict)

    async def run(self) -> None:
        """Live through it."""
        world, plan, dice = self.world, self.world.plan, self.world.dice("days")
        world.service.on_change.append(self._call_back_later)
        world.on_arrival = partial(laws.check_arrival, world)
        if not plan.has_store:
            await self._run_without_store()
            return
        began = 0.0
        for opening in range(plan.openings):
            self._draw_orders(opening)
            world.note(f"opens, for {plan.minutes:g} minutes, {len(self.orders)} orders", "shop")
            await self._open(plan.minutes * 60, lambda: not laws.unsettled(world, self.orders))
            if world.strikes("restored_backup") and world.restore_backup():
                # Its newest payment is older than five minutes, and the list shows what was paid last: the conditions
                # under which docs/database.md promises that the store is found to be behind.
                await anyio.sleep(400 + plan.grace)
            began = world.now()
            await anyio.sleep(dice.choice([1, 60, 3_600, 12 * 3_600, 86_400]))
        world.is_calm = True
        world.skew = 0.0
        world.service.heal()
        world.note(f"faults have stopped after {began:.0f} s: the world calms down", "world")
        for pause in CALM:
            await self._open(CALM_MINUTES * 60, lambda: not laws.unsettled(world, self.orders))
            if not laws.unsettled(world, self.orders):
                break
            await anyio.sleep(pause)
        if plan.rush:
            await self._rush()
        world.is_audited = True
        await self._open(2 * plan.grace + 120, lambda: world.audited is not None)
        laws.check_end(world, self.orders)
        world.note("the end")

    async def _run_without_store(self) -> None:
        for opening in range(self.world.plan.openings):
            self._draw_orders(opening)
            await self._open(self.world.plan.minutes * 60)
            await anyio.sleep(3_600)
        laws.check_always(self.world)
        self.world.note("the end")

    async def _rush(self) -> None:
        """Queue many payments at once, and look how long they take."""
        world = self.world
        world.note(f"{self.world.plan.rush} orders at once", "shop")
        made = {
            f"order-{len(self.orders) + number}": Order(
                key=f"order-{len(self.orders) + number}",
                type="collection",
                phone_number="+255681234501",
                amount=30_000 + number,
                at=world.now(),
                is_queued=world.plan.rush < 60,
            )
            for number in range(world.plan.rush)
        }
        self.orders.update(made)
        for _ in range(12):
            await self._open(1_200, lambda: not laws.unsettled(world, self.orders))
        if world.plan.rush < 60:
            laws.check_rush(world, list(made))

    def _draw_orders(self, opening: int) -> None:
        plan, dice = self.world.plan, random.Random(f"{self.world.plan.seed}/orders {opening}")
        share = plan.orders // plan.openings + (opening < plan.orders % plan.openings)
        at = self.world.now()
        for _ in range(share):
            number = len(self.orders)
            at += dice.uniform(120, plan.pause) if plan.pause else 0.0
            order = Order(
                key=f"order-{number}",
                type=dice.choice(["collection", "collection", "disbursement"]),
                phone_number=f"+25568123450{dice.randrange(plan.numbers)}",
                amount=dice.choice(plan.amounts),
                at=at if plan.pause else at + dice.uniform(0, plan.minutes * 40),
                is_queued=dice.random() < 0.5,
            )
            self.orders[order.key] = order

    async def _open(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run all processes for some time, and end them in order, or kill them."""
        world, plan = self.world, self.world.plan
        world.later.clear()
        async with anyio.create_task_group() as tasks:
            for number in range(world.running):
                tasks.start_soon(self._keep_alive, number)
            until, seen = world.now() + seconds, dict[str, float]()
            backup_at = world.now() + world.dice("backup").uniform(0, seconds)
            while world.now() < until and not (done() and not world.has_stopped):
                await anyio.sleep(10)
                laws.check_always(world)
                if world.is_calm and not world.plan.rush:
                    laws.check_prompt(world, seen)
                if plan.pause and not world.is_calm:
                    laws.check_in_time(world)
                if world.now() > backup_at and not world.is_calm and laws.has_sent(world):
                    world.disk.make_backup()
                    backup_at = math.inf
            tasks.cancel_scope.cancel()
        if not self._troubles():  # what one has left behind may outlast the next opening
            laws.check_quiet(world)

    def _troubles(self) -> int:
        """Return how often something has kept a process from recording what it knows."""
        names = ("killed", "commit_lost", *(f"database_{each}" for each in ("fails", "full", "away", "slow")))
        return sum(self.world.counts[each] for each in names)

    async def _keep_alive(self, number: int) -> None:
        """Run a process, again and again after its deaths."""
        world, dice = self.world, self.world.dice("lives")
        turn = world.counts[f"run of {number}"]
        while True:
            await anyio.sleep(max(0.0, world.dark_until - world.now()))
            turn += 1
            world.counts[f"run of {number}"] = turn
            life = Life(f"process {number + 1}.{turn}", late=self._late())
            ended = world.ended[life.name] = anyio.Event()
            merchant = self.merchants[life.name] = Merchant(world, number, self.orders)
            world.lives[number] = life
            context = contextvars.Context()
            context.run(PROCESS.set, life)
            world.note("begins", life.name)
            scope = anyio.CancelScope()
            life.end = scope.cancel
            world.loop.create_task(self._live(merchant, scope, ended), context=context)
            try:
                await ended.wait()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    # As its own doing: one that is stopped takes notice later.
                    world.loop.call_soon(scope.cancel, context=context)
                    with anyio.move_on_after(30):
                        await ended.wait()
                    if not ended.is_set():
                        world.kill(life, "since it does not end")
                raise
            await anyio.sleep(dice.choice([0.1, 2.0, 30.0]))

    async def _live(self, merchant: Merchant, scope: anyio.CancelScope, ended: anyio.Event) -> None:
        world = self.world
        try:
            with scope:
                await merchant.run()
            world.note("ends")
        except Exception as exc:  # noqa: BLE001 (a program that ends by an error is started again)
            world.note(f"ends by {exc!r}"[:400])
            if not world.strikes_happened("database_fails", "commit_lost", "database_full", "database_away"):
                world.breaks(f"a process ends by {_leaf(exc)!r}"[:400])
        finally:
            ended.set()

    def _late(self) -> partial[float]:
        world = self.world
        return partial(_late_by, world, world.dice("late"))

    def _call_back_later(self, payment: Payment) -> None:
        """Send a callback at the end of a payment, or not, or twice, and forged ones."""
        world = self.world
        times = [payment.ends_at + 0.5] * (1 + world.strikes("callback_doubled"))
        if world.strikes("callback_lost"):
            times = []
        if world.strikes("callback_forged"):
            times.append(world.now() + 0.001)
        for at in times:
            world.loop.call_at(at, self._call_back, payment, context=contextvars.Context())

    def _call_back(self, payment: Payment) -> None:
        world = self.world
        alive = [life for life in world.lives.values() if not life.is_dead and not world.ended[life.name].is_set()]
        if not alive:
            return
        life = world.dice("callbacks").choice(alive)
        receiver = self.merchants[life.name].receiver
        if receiver is not None:
            context = contextvars.Context()
            context.run(PROCESS.set, life)
            body = b'{"id": "%s", "status": "SUCCESS"}' % payment.id.encode()
            world.loop.create_task(_receive(receiver, body), context=context)


async def _receive(receiver: object, body: bytes) -> None:
    await receiver.receive(body, {"content-type": "application/json"})  # type: ignore[attr-defined]


def _late_by(world: World, dice: random.Random) -> float:
    if world.is_calm or not world.plan.late:
        return 0.0
    return dice.uniform(0, world.plan.late)


def _leaf(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


@attrs.frozen(kw_only=True)
class Result:
    """Result of one history.

    Attributes:
        hours: How long it was, and `seconds` how much of a processor's time that took.
        broken: The laws that were broken.
    """

    plan: Plan
    happenings: tuple[Happening, ...]
    broken: tuple[str, ...]
    digest: str
    hours: float
    seconds: float
    payments: int
    requests: int
    faults: dict[str, int]

    @property
    def lines(self) -> tuple[str, ...]:
        """The history, line by line."""
        return tuple(map(str, self.happenings))


@attrs.frozen
class Playing:
    """History that runs in a forked process: nothing of another history changes it."""

    child: int
    source: int

    def result(self) -> Result:
        """Wait for its end.

        Raises:
            RuntimeError: The simulator has failed. Its message is the traceback.
        """
        with open(self.source, "rb") as pipe:
            sent = pipe.read()
        os.waitpid(self.child, 0)
        result, error = pickle.loads(sent) if sent else (None, "the history's process was killed")
        if result is None:
            raise RuntimeError(error)
        return result  # type: ignore[no-any-return]


def play(plan: Plan, *, is_trio: bool = False, server: Postgres | None = None) -> Result:
    """Run the history of a plan; as `start` and `Playing.result`."""
    return start(plan, is_trio=is_trio, server=server).result()


def start(plan: Plan, *, is_trio: bool = False, server: Postgres | None = None) -> Playing:
    """Start the history of a plan, beside others."""
    source, sink = os.pipe()
    with warnings.catch_warnings():
        # Test runners have threads. The child gets none of them, and uses nothing that they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(_LONGEST)
        _send(sink, partial(_play_here, plan, is_trio=is_trio, server=server))
    os.close(sink)
    return Playing(child, source)


def _send(sink: int, work: Callable[[], Result]) -> NoReturn:
    """Send the result of some work, or its traceback, and end this process without any clean-up of its parent's."""
    try:
        try:
            sent: tuple[Result | None, str | None] = work(), None
        except BaseException:  # noqa: BLE001 (the parent raises it)
            sent = None, traceback.format_exc()
        signal.alarm(0)  # the parent may read the results of others first
        with open(sink, "wb") as pipe:
            pickle.dump(sent, pipe)
    finally:
        os._exit(0)


def _play_here(plan: Plan, *, is_trio: bool, server: Postgres | None) -> Result:
    began = time.process_time()
    if is_trio:
        plan = plan.without("stop", "sender_stops")
    world = run_world(plan, lambda world: History(world).run(), is_trio=is_trio, server=server)
    return Result(
        plan=plan,
        happenings=tuple(world.history),
        broken=tuple(world.broken),
        digest=world.digest(),
        hours=world.now() / 3600,
        seconds=time.process_time() - began,
        payments=len(world.service.payments),
        requests=len(world.departures),
        faults={name: count for name, count in sorted(world.counts.items()) if not name.startswith("run of")},
    )
