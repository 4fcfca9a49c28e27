"""A program that a test kills changes nothing from then on, and a second one over the same database is its restart."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from mobilemoney_async import AsyncClient, PaymentChange, PaymentState, SQLStore
from mobilemoney_async.contrib.backend import Backend
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.testing import killed_at_end

PAYS = "+255780000789"


@asynccontextmanager
async def program(sandbox: Sandbox, folder: Path, settled: list[str | None]) -> AsyncIterator[Backend]:
    """Run a backend, as a web application does."""

    async def settle(change: PaymentChange) -> None:
        settled.append(change.key)

    store = SQLStore(f"sqlite:///{folder / 'payments.db'}")
    async with sandbox.client(store=store) as client, Backend(client, on_settled=settle, name="shop") as backend:
        yield backend
    store.close()


@pytest.mark.costly("runs lines of contrib/backend.py, polling/coordinator.py that no quick test runs")
@pytest.mark.parametrize(("seconds", "state"), [(0.0, PaymentState.SENDING), (3.0, PaymentState.ACKNOWLEDGED)])
async def test_the_restart_finds_what_the_dead_one_had_recorded(
    tmp_path: Path, seconds: float, state: PaymentState
) -> None:
    """Nothing is recorded, sent or settled after the death, and the restarted program settles the payment once."""
    sandbox, settled = Sandbox(), list[str | None]()
    sandbox.script(faults.latency(5), on="c2b")
    async with killed_at_end(program(sandbox, tmp_path, settled)) as dead:
        await dead.collect("order-1", phone_number=PAYS, amount=1000, patience=2.5 + seconds)
    async with program(sandbox, tmp_path, settled) as restarted:
        found = await restarted.client.payments.get("order-1")
        assert found is not None and found.state is state
        with anyio.fail_after(600):
            while not settled:
                await anyio.sleep(1)
    assert (settled, len(sandbox.transactions)) == (["order-1"], 1)


async def test_a_failed_block_is_no_death(tmp_path: Path) -> None:
    """A failed assertion of the test is raised, and the program closes as it would without this."""
    sandbox, store = Sandbox(), SQLStore(f"sqlite:///{tmp_path / 'payments.db'}")

    @asynccontextmanager
    async def counts_at_its_end() -> AsyncIterator[AsyncClient]:
        async with sandbox.client(store=store) as client:
            try:
                yield client
            finally:
                ended.append(len(await client.payments.list()))

    ended = list[int]()
    with pytest.raises(AssertionError, match="of the test"):
        async with killed_at_end(counts_at_its_end()):
            raise AssertionError("of the test")
    assert ended == [0]
    async with killed_at_end(counts_at_its_end()):
        pass  # its store refuses to count, which is nobody's concern
    assert ended == [0]
    async with counts_at_its_end():
        pass
    assert ended == [0, 0]
    store.close()
