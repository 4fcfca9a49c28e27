"""One at a time, by name."""

import threading

import anyio
import pytest

from mobilemoney_async.payments.records.account_store import KeyedLock
from tests.support.patience import PATIENCE


async def test_names_are_forgotten() -> None:
    """A name that is neither held nor waited for takes no memory, also after errors and cancelled waits."""
    turns = KeyedLock()
    assert list(turns.held()) == []
    with pytest.raises(LookupError):
        async with turns.hold("key"):
            raise LookupError
    async with turns.hold("key"):
        with anyio.move_on_after(1) as scope:
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    async with turns.hold("key"):
                        pytest.fail("it is not its turn")

                group.start_soon(wait)
        assert scope.cancelled_caught
        assert list(turns.held()) == ["key"]
    assert list(turns.held()) == []


async def test_who_waits_is_held_too() -> None:
    """A name counts as held from the first task that asks for it until the last one has had it."""
    turns = KeyedLock()
    async with anyio.create_task_group() as group:

        async def work() -> None:
            async with turns.hold("key"):
                await anyio.sleep(1)

        group.start_soon(work)
        group.start_soon(work)
        await anyio.sleep(1.5)
        assert list(turns.held()) == ["key"]
        await anyio.sleep(1)
        assert list(turns.held()) == []


async def test_what_the_caller_has_does_not_count() -> None:
    """A task may leave out a name that it holds itself."""
    turns = KeyedLock()
    async with turns.hold("own"), turns.hold("other"):
        assert list(turns.held(but="own")) == ["other"]


@pytest.mark.real_time
@pytest.mark.parametrize("other_loop", ["asyncio", "trio"])
async def test_loops_in_other_threads_do_not_wait_for_each_other(other_loop: str) -> None:
    """Each event loop has its own line for a name; a name held in any of them is seen in all."""
    turns, taken, done = KeyedLock(), threading.Event(), threading.Event()

    async def take() -> None:
        async with turns.hold("key"), turns.hold("theirs"):
            taken.set()
            await anyio.to_thread.run_sync(done.wait, 60)

    thread = threading.Thread(target=anyio.run, args=(take,), kwargs={"backend": other_loop})
    thread.start()
    try:
        assert await anyio.to_thread.run_sync(taken.wait, 60)
        with anyio.fail_after(PATIENCE):
            async with turns.hold("key"):
                assert set(turns.held()) == {"key", "theirs"}
                assert set(turns.held(but="key")) == {"key", "theirs"}  # the other loop's
    finally:
        done.set()
        await anyio.to_thread.run_sync(thread.join)
    assert not turns.held()
