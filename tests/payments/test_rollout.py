"""Rolling a release out: hosts are replaced one after the other, and payments go on."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from anyio.abc import TaskGroup

from mobilemoney_async import PaymentState
from mobilemoney_async.merchants.worker import Worker
from tests.payments.hosts import Platform, enqueue, pay, shops, until
from tests.payments.service import on_asyncio


class Host:
    """Host whose program is stopped in order, and started again."""

    def __init__(self, platform: Platform, name: str, tasks: TaskGroup) -> None:
        self._platform, self._name, self._tasks = platform, name, tasks
        self._starts = 0
        self._leave, self._ended = anyio.Event(), anyio.Event()
        self.worker: Worker | None = None

    def start(self) -> None:
        self._starts += 1
        self._leave, self._ended = anyio.Event(), anyio.Event()
        self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        async with self._platform.host(f"{self._name}.{self._starts}") as self.worker:
            await self._leave.wait()
        self.worker = None
        self._ended.set()

    async def stop(self) -> None:
        self._leave.set()
        await self._ended.wait()

    @property
    def accounts(self) -> set[str]:
        return set() if self.worker is None else {*self.worker.accounts}


@pytest.mark.slow
@on_asyncio
async def test_two_hosts_restart_one_after_the_other(platform: Platform) -> None:
    """Each account is served by one host at a time, by the other within seconds, and every payment is made once."""
    accounts = shops(8)
    async with platform.merchants("shop") as shop, anyio.create_task_group() as tasks:
        one, two = Host(platform, "one", tasks), Host(platform, "two", tasks)
        await pay(shop, accounts)
        one.start()
        two.start()
        await until(lambda: len(one.accounts) == len(two.accounts) == 4)
        for number, (host, other) in enumerate([(one, two), (two, one)]):
            await enqueue(shop, accounts, f"queued-{number}", amount=2000 + number)
            await host.stop()
            asked = len(platform.asked)
            await until(lambda: other.accounts == {*accounts}, 6)  # noqa: B023 (awaited here)
            assert len({name for _, name, _ in platform.asked[asked:]}) <= 1
            host.start()
            await until(lambda: len(one.accounts) == len(two.accounts) == 4)
            assert not one.accounts & two.accounts
        with anyio.fail_after(300):
            while len(platform.service.payments) < 3 * len(accounts):
                await anyio.sleep(1)
        for payment in platform.service.payments:
            platform.service.finish(payment)
        for account in accounts:
            client = await shop.client(account)
            with anyio.fail_after(300):
                while {each.state for each in await client.payments.list()} != {PaymentState.FINAL}:
                    await anyio.sleep(1)
        await one.stop()
        await two.stop()
    made = Counter((each.merchant_id, str(each.amount)) for each in platform.service.payments)
    assert set(made.values()) == {1} and len(made) == 3 * len(accounts)
    hosts = {host for _, host, _ in platform.asked}
    assert {"one.1", "one.2", "two.1", "two.2"} <= hosts
