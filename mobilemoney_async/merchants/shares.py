"""Which host serves which account: a function of the hosts and of the accounts with work. Pure.

An account stays where it is. One that no host has goes to the host that ranks first for it, of those below their share:
so hosts that see the same agree without a word, and a host that comes or goes moves only what it takes or has left.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

# Part of its share that a host may have too much, until it gives some back: so many at a time at most, since others
# have to start each of them again, and none while so many wait for a host.
_SLACK, _MOST_GIVEN, _MOST_WAITING = 0.1, 10, 50


@attrs.frozen
class Shares:
    """Accounts with work.

    Attributes:
        loads: The number of those that each host has, for all hosts that take accounts.
        waiting: Those that no living host has.
        leaving: The number of those of hosts that take no more.
    """

    loads: Mapping[str, int]
    waiting: Sequence[str] = ()
    leaving: int = 0

    @property
    def each(self) -> int:
        """The share of each host."""
        return math.ceil((sum(self.loads.values()) + len(self.waiting) + self.leaving) / len(self.loads))

    def allotted(self, host: str) -> Iterator[str]:
        """Yield the waiting accounts that a host is to take."""
        loads, share = dict(self.loads), self.each
        for account in self.waiting:
            taker = max((each for each in loads if loads[each] < share), key=lambda each: _rank(each, account))
            loads[taker] += 1
            if taker == host:
                yield account

    def surplus(self, host: str) -> int:
        """Return how many accounts a host is to give back now."""
        load = self.loads[host]
        if load <= (1 + _SLACK) * self.each or len(self.waiting) >= _MOST_WAITING:
            return 0
        return min(load - self.each, _MOST_GIVEN)


def _rank(host: str, account: str) -> bytes:
    return hashlib.blake2b(f"{host} {account}".encode(), digest_size=8).digest()
