"""The lease: at most one has it at any time, by the clock that all of them read."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async.database.clock import LONGEST, Lease

TTL = 4.0


def test_the_first_who_asks_has_it() -> None:
    """A free lease goes to the process that asks, for its time."""
    lease = Lease().taken("a", 100.0, TTL)
    assert lease == Lease(holder="a", epoch=1, until=104.0)
    assert lease.ends_at(103.9) == 104.0
    assert lease.ends_at(104.0) is None


def test_its_holder_renews_it() -> None:
    """The holder keeps it by asking again, also late, as long as no other has asked; it did not change hands."""
    lease = Lease().taken("a", 100.0, TTL)
    assert lease.taken("a", 101.0, TTL) == Lease(holder="a", epoch=1, until=105.0)
    assert lease.taken("a", 500.0, TTL) == Lease(holder="a", epoch=1, until=504.0)


def test_another_gets_it_when_it_has_run_out() -> None:
    """A process that asks too early changes nothing; once it has run out it changes hands."""
    lease = Lease().taken("a", 100.0, TTL)
    assert lease.taken("b", 103.9, TTL) is lease
    assert lease.taken("b", 104.0, TTL) == Lease(holder="b", epoch=2, until=108.0)


def test_it_can_be_given_back() -> None:
    """Only the holder can give it back; the next one has it at once."""
    lease = Lease().taken("a", 100.0, TTL)
    assert lease.released("b") is lease
    free = lease.released("a")
    assert free.ends_at(100.0) is None
    assert free.taken("b", 100.0, TTL) == Lease(holder="b", epoch=2, until=104.0)
    assert free.taken("a", 100.0, TTL).epoch == 2


def test_an_end_of_another_clock_is_not_believed() -> None:
    """After a restart the host's clock restarts too: a lease from before does not stop all processes for days."""
    lease = Lease().taken("a", 1_000_000.0, TTL)
    assert lease.ends_at(10.0) is None
    assert lease.taken("b", 10.0, TTL).holder == "b"
    assert Lease(holder="a", until=10.0 + LONGEST).ends_at(10.0) is not None


@attrs.define
class Believer:
    """Belief of a process that it holds the lease until then."""

    until: float = 0.0


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "release", "wait"]),
        st.sampled_from("abc"),
        st.floats(min_value=0, max_value=3 * TTL, allow_nan=False),
        st.floats(min_value=0, max_value=TTL, allow_nan=False),
    ),
    max_size=40,
)


@given(steps)
def test_never_two_at_once(script: list[tuple[str, str, float, float]]) -> None:
    """Whatever happens when, no two processes both hold it; each counts from before it asked."""
    now, lease = 0.0, Lease()
    holders = {name: Believer() for name in "abc"}
    for what, name, wait, latency in script:
        now += wait
        if what == "take":
            began = now
            now += latency
            before = lease
            lease = lease.taken(name, now, TTL)
            assert lease.epoch >= before.epoch
            assert (lease.epoch > before.epoch) == (lease.holder != before.holder)
            holders[name].until = began + TTL if lease.holder == name else 0.0
        elif what == "release":
            lease = lease.released(name)
            holders[name].until = 0.0
        assert sum(holder.until > now for holder in holders.values()) <= 1
