"""One rate budget for many processes, as arithmetic over a row of text that they share.

A process that has somebody waiting *reserves*: it takes times from the bucket at which it may send, *slots*, and leaves
the bucket, a little further on, to the next. The bucket is that of `calls.bucket`, so that all slots together keep both
readings of the limit. Slots are handed out in their order and for the near future only (`HORIZON`): that bounds the
number of transactions, and what a process takes with it when it dies.

Whose turn it is: whoever asked in vain is on record, by lane and since when. A slot belongs to the first lane of any
process, by the rule of the limiter; in that lane to the process that has waited for longest since its last turn. A turn
is the slots of a fifth of a second, or one. Every process is told when to ask again: shortly before its next turn is
due. One that has not come by then (it died, or is slow) is passed over, and nobody waits for it a second time.

All times are seconds of the store's clock; kept as whole microseconds, to which slots are rounded up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import attrs

from mobilemoney_async.calls.bucket import Bucket, Past, patience
from mobilemoney_async.contract.endpoints import Priority

HORIZON = 0.25
"""Seconds. How far ahead slots are reserved."""

LEAD = 0.05
"""Seconds. How long before its turn is due a process asks."""

# Seconds after which a process that missed its turn is forgotten.
_GRACE = 1.0
# Seconds after the next slot by which everybody who waits has asked again: those before them may have left.
_LONGEST = 5.0
# Seconds. The shortest pause between two times of asking.
_SHORTEST = 0.005
# Seconds by which the clocks of one host's processes may differ. Beyond that the store's clock was set back.
_CLOCKS_DIFFER = 1.0
_MICRO = 1_000_000


@attrs.frozen(kw_only=True)
class Limit:
    """What the budget is: the arguments of `Bucket`."""

    per_minute: float
    burst: int
    window: float
    jitter: float

    def bucket(self) -> Bucket:
        """Return a full one."""
        return Bucket(per_minute=self.per_minute, burst=self.burst, window=self.window, jitter=self.jitter)

    def is_stricter_than(self, other: Limit) -> bool:
        """Return whether this limit rather than the other is kept while both are asked for."""
        return self._order() < other._order()

    def _order(self) -> tuple[float, ...]:
        return (self.per_minute, self.burst, self.window, -self.jitter)


@attrs.frozen
class InLine:
    """Who waits in one lane of a process.

    Attributes:
        number: How many, at least 1.
        waited: For how long the first of them has, seconds.
    """

    number: int
    waited: float


@attrs.frozen(kw_only=True)
class Request:
    """What one process asks for.

    Attributes:
        process: Its name, unlike any other's.
        limit: What it takes the limit to be.
        waiting: Who waits, by lane.
        delay: How long after the transaction looked at the clock its slots can be used, seconds.
        hold: For how long from now nobody is to send, seconds.
        unused: Slots of its own that passed without a request.
    """

    process: str
    limit: Limit
    waiting: Mapping[Priority, InLine]
    delay: float = 0.0
    hold: float = 0.0
    unused: Sequence[float] = ()


@attrs.frozen(kw_only=True)
class Reservation:
    """What it gets.

    Attributes:
        slots: When it may send, one request each, in order.
        ask_again_at: When to ask for more, for those who got none; None where everybody got one.
        unserved: The lanes of those.
        turns: When each lane had its last turn, before these slots.
        bucket: What is used of the budget, these slots included.
    """

    slots: Sequence[float]
    ask_again_at: float | None
    unserved: frozenset[Priority]
    turns: Mapping[Priority, float]
    bucket: Bucket


def reserve(row: str | None, request: Request, now: float) -> tuple[str, Reservation]:
    """Reserve slots, for as many of those who wait as there are slots in the near future.

    Processes should agree on the limit. Where they do not, the stricter one is kept until nobody has asked with it for
    the length of its window.

    Args:
        row: What the last reservation of anybody left, or None.
        request: What is asked for.
        now: The time of the store, looked at when the row was locked.

    Returns:
        What to leave to the next, and the slots.
    """
    budget = _Budget.read(row, request.limit)
    reservation = budget.reserve(request, now)
    return budget.write(), reservation


@attrs.define
class _Line:
    """Those of one process who wait in one lane.

    Attributes:
        number: How many.
        since: When the first of them came, or the process had its last turn in this lane, whichever was later.
        taken: How many slots it has had of its present turn.
    """

    number: int
    since: float
    taken: int = 0


@attrs.define
class _Process:
    """A process in which somebody waits.

    Attributes:
        due_at: When its turn is due, as far as it was known when it asked.
        lines: By lane, none empty.
    """

    due_at: float
    lines: dict[Priority, _Line]


@attrs.define
class _Budget:
    """The row, read.

    Attributes:
        limit: Which is kept.
        confirmed_at: When somebody last asked with that limit.
        at: The latest time that was seen.
        bucket: What is used.
        turns: When each lane had its last turn.
        processes: In which somebody waits.
    """

    limit: Limit
    confirmed_at: float = 0.0
    at: float = 0.0
    bucket: Bucket = attrs.field(default=attrs.Factory(lambda self: self.limit.bucket(), takes_self=True))
    turns: dict[Priority, float] = attrs.field(factory=dict)
    processes: dict[str, _Process] = attrs.field(factory=dict)

    def reserve(self, request: Request, now: float) -> Reservation:
        now = self._follow_clock(now)
        self._agree(request.limit, now)
        if request.hold > 0:
            self.bucket.hold(now + request.hold)
        for slot in request.unused:
            self.bucket.give_back(_round_up(slot))
        self.processes = {name: each for name, each in self.processes.items() if each.due_at + _GRACE >= now}
        own = self._enter(request, now)
        turns = dict(self.turns)
        slots = self._take(request.process, own, now + request.delay)
        ask_again_at = None
        if own.lines:
            lead = LEAD + request.delay
            ask_again_at = self._next_turn(request.process, own, now, lead)
            own.due_at = ask_again_at + lead
        else:
            del self.processes[request.process]
        return Reservation(
            slots=slots, ask_again_at=ask_again_at, unserved=frozenset(own.lines), turns=turns, bucket=self.bucket
        )

    def _follow_clock(self, now: float) -> float:
        """Return a time that is never before one seen: after a reboot, or when a clock was set back, move the past."""
        back = self.at - now
        if back <= 0:
            self.at = now
        elif back > _CLOCKS_DIFFER:
            self._move(-back)
        return self.at

    def _move(self, by: float) -> None:
        past = self.bucket.dump()
        self.bucket.load(
            past._replace(
                grants=[_round_up(each + by) for each in past.grants],
                made_up=[each + by for each in past.made_up],
                held_until=past.held_until + by,
            )
        )
        self.at += by
        self.confirmed_at += by
        self.turns = {lane: at + by for lane, at in self.turns.items()}
        self.processes.clear()  # they ask anew

    def _agree(self, limit: Limit, now: float) -> None:
        """Settle which limit is kept."""
        if limit != self.limit:
            if not (limit.is_stricter_than(self.limit) or now > self.confirmed_at + self.limit.window):
                return
            past = self.bucket.dump()
            self.limit, self.bucket = limit, limit.bucket()
            for at in past.grants:
                self.bucket.take(at)
            # How much the service's bucket holds under the other limit is not known: at the worst, nothing.
            self.bucket.hold(max(now, past.held_until))
        self.confirmed_at = now

    def _enter(self, request: Request, now: float) -> _Process:
        before = self.processes.get(request.process)
        lines: dict[Priority, _Line] = {}
        for lane, waiting in request.waiting.items():
            line = lines[lane] = _Line(waiting.number, now - max(0.0, waiting.waited))
            if before is not None and lane in before.lines:
                line.since = max(line.since, before.lines[lane].since)
                line.taken = before.lines[lane].taken
        own = self.processes[request.process] = _Process(now, lines)
        return own

    def _take(self, name: str, own: _Process, earliest: float) -> list[float]:
        slots: list[float] = []
        while own.lines:
            at = self._next_slot(earliest)
            if at > earliest + HORIZON:
                break
            lane, first = self._whose_turn(at)
            if first != name:
                if self.at < self.processes[first].due_at:
                    break
                del self.processes[first]  # it is late
                continue
            self.bucket.take(at)
            self.turns[lane] = at
            slots.append(at)
            line = own.lines[lane]
            line.number -= 1
            line.taken += 1
            if not line.number:
                del own.lines[lane]
            elif line.taken >= self._turn():
                line.since, line.taken = self.at, 0
        return slots

    def _turn(self) -> int:
        """Return how many slots a turn is."""
        return max(1, int((HORIZON - LEAD) * self.limit.per_minute / 60))

    def _next_slot(self, earliest: float) -> float:
        """Return when the next slot is; never before one that was handed out."""
        return _round_up(max(earliest, self.bucket.ready_at(), self.bucket.last_at()))

    def _whose_turn(self, at: float) -> tuple[Priority, str]:
        """Return the lane that a slot belongs to, and the process."""
        firsts: dict[Priority, tuple[float, str]] = {}
        for name, process in self.processes.items():
            for lane, line in process.lines.items():
                firsts[lane] = min(firsts.get(lane, (math.inf, "")), (line.since, name))
        lanes = sorted(firsts)
        lane = next((each for each in lanes if at >= self._overdue_at(each, firsts[each][0])), lanes[0])
        return lane, firsts[lane][1]

    def _overdue_at(self, lane: Priority, since: float) -> float:
        """Return from when on a lane goes before all others."""
        return max(since, self.turns.get(lane, -math.inf)) + patience(self.limit.per_minute)[lane]

    def _next_turn(self, name: str, own: _Process, now: float, lead: float) -> float:
        """Return when a process should ask again: shortly before its turn, if those before it take theirs."""
        slot = self._next_slot(now)
        interval = 60 / self.limit.per_minute
        due_at = slot + self._slots_before(name, own) * interval
        for lane, line in own.lines.items():
            due_at = min(due_at, max(slot, self._overdue_at(lane, line.since)))
        ask_at = min(due_at - lead, slot + _LONGEST)
        _, first = self._whose_turn(slot)
        if first != name:
            ask_at = max(ask_at, self.processes[first].due_at)  # the slot is ours if nobody has come by then
        return max(ask_at, now + _SHORTEST)

    def _slots_before(self, name: str, own: _Process) -> int:
        """Return how many slots others have before this process: a turn each at most, much may have changed then."""
        lane = min(own.lines)
        rank = (own.lines[lane].since, name)
        before = 0
        for other, process in self.processes.items():
            if other != name:
                number = sum(
                    line.number
                    for each, line in process.lines.items()
                    if each < lane or (each == lane and (line.since, other) < rank)
                )
                taken = process.lines[lane].taken if lane in process.lines else 0
                before += min(number, max(1, self._turn() - taken))
        return before

    @classmethod
    def read(cls, row: str | None, limit: Limit) -> _Budget:
        if row is None:
            return cls(limit)
        raw: dict[str, Any] = json.loads(row)
        budget = cls(Limit(**raw["limit"]))
        budget.at = raw["at"] / _MICRO
        budget.confirmed_at = raw["confirmed_at"] / _MICRO
        budget.bucket.load(
            Past(
                grants=_times(raw["grants"]),
                made_up=_times(raw["made_up"]),
                held_until=-math.inf if raw["held_until"] is None else raw["held_until"] / _MICRO,
                taken=raw["taken"],
            )
        )
        budget.turns = {Priority(int(lane)): at / _MICRO for lane, at in raw["turns"].items()}
        for name, process in raw["processes"].items():
            lines = {
                Priority(int(lane)): _Line(number, since / _MICRO, taken)
                for lane, (number, since, taken) in process["lines"].items()
            }
            budget.processes[name] = _Process(process["due_at"] / _MICRO, lines)
        return budget

    def write(self) -> str:
        past = self.bucket.dump()
        return json.dumps(
            {
                "limit": attrs.asdict(self.limit),
                "at": _micros(self.at),
                "confirmed_at": _micros(self.confirmed_at),
                "held_until": None if past.held_until == -math.inf else _micros(past.held_until),
                "taken": past.taken,
                "turns": {lane.value: _micros(at) for lane, at in self.turns.items()},
                "processes": {
                    name: {
                        "due_at": _micros(each.due_at),
                        "lines": {
                            lane.value: (line.number, _micros(line.since), line.taken)
                            for lane, line in each.lines.items()
                        },
                    }
                    for name, each in self.processes.items()
                },
                "made_up": _steps(past.made_up),
                "grants": _steps(past.grants),
            },
            separators=(",", ":"),
        )


def _micros(at: float) -> int:
    """Return a time in microseconds, none earlier; what is on the grid stays there."""
    nearest = round(at * _MICRO)
    return nearest if nearest / _MICRO >= at else nearest + 1


def _round_up(at: float) -> float:
    return _micros(at) / _MICRO


def _steps(times: Sequence[float]) -> list[int]:
    """Return times as the first and the distances: a third of the text."""
    micros = [_micros(at) for at in times]
    return micros[:1] + [later - sooner for sooner, later in pairwise(micros)]


def _times(steps: Sequence[int]) -> list[float]:
    return [micros / _MICRO for micros in accumulate(steps)]
