"""The lease: at most one has it at any time, by the clock that all of them read."""

from collections.abc import Callable

import anyio
import attrs
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import StoreError
from mobilemoney_async.database.clock import SETBACK, Holder, Lease
from mobilemoney_async.database.connections import make_engine
from mobilemoney_async.database.leases import change_lease, read_lease, renewed
from mobilemoney_async.database.schema import leases
from mobilemoney_async.database.url import read_url

TTL = 4.0
A, B = Holder("a"), Holder("b")


@pytest.mark.parametrize("back", [0.5, 2.0, 30.0, 1_000_000.0])
def test_a_clock_that_goes_back_prolongs_it_once_at_most(back: float) -> None:
    """PostgreSQL's is set, that of a host restarts with it: whoever asks counts the lease anew, from then on."""
    lease, now = Lease().taken(A, 2_000_000.0, TTL), 2_000_000.0 - back
    assert lease.taken(B, now, TTL).holder == "a"
    assert lease.taken(B, now, TTL).taken(B, now + TTL + SETBACK, TTL).holder == "b"


@attrs.define
class Believer:
    """Belief of a process that it holds the lease until then."""

    until: float = 0.0


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "release", "wait", "set back"]),
        st.sampled_from("abc"),
        st.floats(min_value=0, max_value=3 * TTL, allow_nan=False),
        st.floats(min_value=0, max_value=TTL, allow_nan=False),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(steps)
def test_never_two_at_once(script: list[tuple[str, str, float, float]]) -> None:
    """Whatever happens when, no two processes both hold it; each counts from before it asked, by a clock of its own."""
    now, lease, back = 0.0, Lease(), 0.0
    holders = {name: Believer() for name in "abc"}
    for what, name, wait, latency in script:
        now += wait
        if what == "set back":
            back += latency
        if what == "take":
            began = now
            now += latency
            before = lease
            lease = lease.taken(Holder(name), now - back, TTL)
            assert lease.epoch >= before.epoch
            assert (lease.epoch > before.epoch) == (lease.holder != before.holder)
            holders[name].until = began + TTL if lease.holder == name else 0.0
        elif what == "release":
            lease = lease.released(Holder(name))
            holders[name].until = 0.0
        assert sum(holder.until > now for holder in holders.values()) <= 1


# -- in the database ---------------------------------------------------------------------------------------------------


def test_a_lease_in_the_database_is_one_account_s_and_one_task_s(store_url: str) -> None:
    """Of two processes one has it, until it gives it back or lets it run out; others are not touched by that."""
    now = 1000.0
    engine = make_engine(read_url(store_url))

    def ask(by: str, ttl: float | None = TTL, *, account: str = "one", name: str = "poller") -> bool:
        with engine.begin() as connection:
            return change_lease(connection, account, name, by=Holder(by), ttl=ttl, clock=lambda: now)

    def rows() -> dict[tuple[str, str], Lease]:
        with engine.connect() as connection:
            found = connection.execute(sa.select(leases)).all()
        return {(row.account, row.name): read_lease(row) for row in found}

    assert ask("a")
    assert not ask("b")
    assert ask("b", account="other") and ask("c", name="dispatcher")
    others = {key: lease for key, lease in rows().items() if key != ("one", "poller")}
    assert len(others) == 2
    now += TTL / 2
    assert ask("a")  # renewed
    now += TTL / 2
    assert not ask("b")
    assert not ask("b", None)  # it has nothing to give back
    assert rows()["one", "poller"] == Lease(holder="a", epoch=1, until=1000.0 + 1.5 * TTL, written=1000.0 + TTL / 2)
    now += TTL / 2
    assert ask("b")  # it had run out
    assert ask("b", None)
    assert rows()["one", "poller"] == Lease(epoch=2)
    assert ask("a")
    assert rows() == {**others, ("one", "poller"): Lease(holder="a", epoch=3, until=now + TTL, written=now)}
    engine.dispose()


class Renewals:
    """Renewals of a lease, some of which fail.

    Attributes:
        times: When they were made, seconds from the start.
    """

    def __init__(self, fails: Callable[[int], bool] = lambda number: False) -> None:
        self.start = anyio.current_time()
        self.times: list[float] = []
        self._fails = fails

    async def renew(self) -> None:
        self.times.append(anyio.current_time() - self.start)
        if self._fails(len(self.times)):
            raise StoreError("away")


async def test_a_lease_is_renewed_as_long_as_its_work_lasts() -> None:
    """A store that is away for a moment ends nothing: the next renewal is in time. Afterwards there are none."""
    renewals = Renewals(lambda number: number == 2)
    async with renewed(renewals.renew, every=3):
        await anyio.sleep(10)
    assert anyio.current_time() - renewals.start == 10
    await anyio.sleep(30)
    assert renewals.times == [3, 6, 9]


async def test_work_under_a_lease_that_fails_raises_its_own_error() -> None:
    """Not a group of errors; and the lease is not renewed for work that has ended."""
    renewals, error = Renewals(), LookupError("x")
    with pytest.raises(LookupError) as caught:
        async with renewed(renewals.renew, every=3):
            await anyio.sleep(4)
            raise error
    assert caught.value is error
    await anyio.sleep(30)
    assert renewals.times == [3]


async def test_work_under_a_lease_that_is_cancelled_is_renewed_no_more() -> None:
    renewals = Renewals()
    with anyio.move_on_after(7) as scope:
        async with renewed(renewals.renew, every=3):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    await anyio.sleep(30)
    assert renewals.times == [3, 6]
