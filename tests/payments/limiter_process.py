"""Process that saturates a shared limit, for `test_shared_limiter`: it reports each request until it is stopped."""

import sys
from contextlib import closing

import anyio

from mobilemoney_async import RateLimiter
from mobilemoney_async.database.engine import Database
from mobilemoney_async.sharing.limiter import SharedLimiter


class Recording(SharedLimiter):
    """Notes the slots that it uses, by the store's clock: those are exact, whatever the machine is busy with."""

    def __init__(self, limiter: RateLimiter, database: Database, account: str) -> None:
        super().__init__(limiter, database, account)
        self.used: list[float] = []
        slots, take, undo = self._slots, self._slots.take, self._slots.undo

        def note_taken(now: float) -> None:
            take(now)
            self.used.append(slots._last)

        def note_undone() -> None:
            undo()
            self.used.remove(slots._last)

        self._slots.take, self._slots.undo = note_taken, note_undone  # type: ignore[method-assign]


def fast() -> RateLimiter:
    """Return a limit of 1200 a minute, to be tested in seconds."""
    return RateLimiter(1200, 10, window=3, jitter=0.1)


async def main(database: Database) -> None:
    limiter = Recording(fast(), database, "merchant")
    await database.read(lambda connection: None)  # imports and connections take their time
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)

    async def keep_going() -> None:
        while True:
            await limiter.acquire()
            print(limiter.used[-1], anyio.current_time(), flush=True)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(keep_going)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    with closing(Database(sys.argv[1])) as database:
        anyio.run(main, database)
