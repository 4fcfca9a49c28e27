"""Which host serves which account: laws of a pure function."""

from __future__ import annotations

import math
from itertools import islice

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async.merchants.shares import Shares

ACCOUNTS = [f"shop-{number}" for number in range(40)]


@attrs.define
class Platform:
    """Hosts that take accounts, and the host of each account with work, if it has one."""

    hosts: set[str]
    owners: dict[str, str | None]

    def shares(self) -> Shares:
        served = [owner for owner in self.owners.values() if owner is not None]
        return Shares(
            loads={host: served.count(host) for host in self.hosts},
            waiting=sorted(account for account, owner in self.owners.items() if owner is None),
            leaving=sum(owner not in self.hosts for owner in served),
        )

    def renew(self, most: int) -> None:
        """Let all hosts claim, as they see the rows at one moment, and give back what they have too much."""
        shares, taken = self.shares(), dict[str, str]()
        for host in self.hosts:
            allotted = list(islice(shares.allotted(host), most))
            assert not taken.keys() & allotted, "two hosts take one account"
            taken |= dict.fromkeys(allotted, host)
        assert most < len(shares.waiting) or taken.keys() == set(shares.waiting), "an account is nobody's"
        for host in self.hosts:
            own = [account for account, owner in self.owners.items() if owner == host]
            self.owners |= dict.fromkeys(own[: shares.surplus(host)], None)
        self.owners |= taken

    def settle(self, most: int) -> None:
        for _ in range(60):
            self.renew(most)

    def leave(self, host: str) -> None:
        self.hosts.discard(host)
        self.owners = {account: None if owner == host else owner for account, owner in self.owners.items()}


def moved(before: dict[str, str | None], after: dict[str, str | None]) -> int:
    return sum(before[account] != owner for account, owner in after.items() if account in before)


steps = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "stop", "work", "done"]), st.integers(0, len(ACCOUNTS) - 1)),
    max_size=12,
)


@pytest.mark.slow
@given(steps=steps, most=st.integers(1, 50))
def test_each_account_has_one_host_whatever_comes_and_goes(steps: list[tuple[str, int]], most: int) -> None:
    """No account has two, none waits while a host takes some, none has many more than its share, and few move."""
    platform = Platform({"host-0"}, dict.fromkeys(ACCOUNTS[:20]))
    platform.settle(most)
    for what, number in steps:
        host, before = f"host-{number % 7}", dict(platform.owners)
        left = sum(owner == host for owner in before.values())
        if what == "join":
            joins = host not in platform.hosts
            platform.hosts.add(host)
            platform.settle(most)
            limit = math.ceil(1.1 * platform.shares().each) if joins else 0
            assert moved(before, platform.owners) <= limit
        elif what == "leave" and len(platform.hosts) > 1:
            platform.leave(host)
            platform.settle(most)
            assert moved(before, platform.owners) <= left
        elif what == "stop" and len(platform.hosts) > 1:  # it takes none any more, and serves what it has
            platform.hosts.discard(host)
            platform.settle(most)
            platform.leave(host)
        elif what == "work":
            platform.owners.setdefault(ACCOUNTS[number])
        elif what == "done":
            platform.owners.pop(ACCOUNTS[number], None)
        platform.settle(most)
        shares = platform.shares()
        assert not shares.waiting
        assert all(load <= (1.1 * shares.each) for load in shares.loads.values())


def test_hosts_that_see_the_same_agree_and_share_evenly() -> None:
    """Also where few accounts wait; and those that a host has stay with it."""
    shares = Shares(loads={"a": 2, "b": 0, "c": 1}, waiting=ACCOUNTS[:6])
    allotted = {host: list(shares.allotted(host)) for host in shares.loads}
    assert {host: len(some) for host, some in allotted.items()} == {"a": 1, "b": 3, "c": 2}
    assert sorted(account for some in allotted.values() for account in some) == sorted(ACCOUNTS[:6])


def test_accounts_are_given_back_only_as_fast_as_others_start_them() -> None:
    """A few at a time, none for a small difference, and none while many wait."""
    assert Shares(loads={"a": 130, "b": 0}).surplus("a") == 10
    assert Shares(loads={"a": 71, "b": 59}).surplus("a") == 6 - 6
    assert Shares(loads={"a": 72, "b": 58}).surplus("a") == 7
    assert Shares(loads={"a": 130, "b": 0}, waiting=ACCOUNTS).surplus("a") == 10
    assert Shares(loads={"a": 130, "b": 0}, waiting=[*ACCOUNTS, *ACCOUNTS]).surplus("a") == 0
