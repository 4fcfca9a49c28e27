"""Rate budget of many processes, as arithmetic over a row of text that they share. Pure.

A process with requests in line *reserves*: it takes *slots* from the bucket, times at which it may send, and leaves the
bucket to the next process. The bucket is that of `calls.bucket`, so that all slots together keep both readings of the
limit. Slots are handed out in order and for the near future only (`HORIZON`): that bounds the number of transactions,
and the slots that are lost when a process dies.

Turns: the row records each process that got too few slots, by lane and time. A slot belongs to the first lane of any
process, by the rule of the limiter; in that lane to the process that has waited for longest since its last turn. A turn
is the slots of a fifth of a second, or one. Every process gets the time to ask again: shortly before its next turn is
due. One that has not asked by then (it died, or is slow) is skipped, and forgotten.

All times are seconds of the store's clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mobilemoney_async.calls.bucket import Bucket, Past, Usage, patience
from mobilemoney_async.contract.endpoints import Priority
from mobilemoney_async.database.clock import SETBACK

HORIZON = 0.25
"""The time ahead for which slots are reserved, seconds."""

LEAD = 0.05
"""The time before its turn is due at which a process asks, seconds."""

# Seconds after which a process that missed its turn is forgotten.
_GRACE = 1.0
# Seconds after the next slot by which each waiting process has asked again: those before it may have left.
_LONGEST = 5.0
# The shortest pause between two requests of a process for slots, seconds.
_SHORTEST = 0.005


@attrs.frozen(kw_only=True)
class Limit:
    """Limit of the budget: the arguments of `Bucket`."""

    per_minute: float
    burst: int
    window: float
    jitter: float

    def bucket(self) -> Bucket:
        """Return a full bucket."""
        return Bucket(**attrs.asdict(self))

    @property
    def rank(self) -> tuple[float, ...]:
        """Rank among the limits that processes ask for: the one with the lowest is the strictest, and is kept."""
        return (self.per_minute, self.burst, self.window, -self.jitter)


@attrs.frozen
class InLine:
    """Number of requests, at least 1, that wait in one lane of a process, and seconds that the first has waited."""

    number: int
    waited: float


@attrs.frozen(kw_only=True)
class ReservationRequest:
    """Request of one process for slots.

    Attributes:
        process: Its unique name.
        limit: The limit that it was given.
        waiting: Its requests in line, by lane.
        delay: The time from the transaction's reading of the clock until its slots can be used, seconds.
        hold: The time from now for which no process may send, seconds.
    """

    process: str
    limit: Limit
    waiting: Mapping[Priority, InLine]
    delay: float = 0.0
    hold: float = 0.0


@attrs.frozen(kw_only=True)
class Reservation:
    """Slots that one process got.

    Attributes:
        slots: The times at which it may send, one request each, in order.
        ask_again_at: When to ask for more; None if each request in line got a slot.
        unserved: The lanes of those that got none.
        turns: The time of each lane's last turn, before these slots.
        bucket: The used part of the budget, these slots included.
    """

    slots: Sequence[float]
    ask_again_at: float | None
    unserved: frozenset[Priority]
    turns: Mapping[Priority, float]
    bucket: Bucket


def reserve(row: str | None, request: ReservationRequest, now: float) -> tuple[str, Reservation]:
    """Reserve slots, for as many requests in line as there are slots in the near future.

    Processes should agree on the limit. If they do not, the stricter one is kept until no process has asked with it for
    the length of its window.

    Args:
        row: The row after the last reservation of any process, or None. The next one is returned.
        request: The request.
        now: The time of the store, read while the row was locked.
    """
    budget = _Budget(request.limit) if row is None else _Budget.read(row, now)
    reservation = budget.reserve(request, now)
    return budget.write(), reservation


def find_usage(row: str | None, now: float) -> tuple[Usage, Limit] | None:
    """Return the used part of the budget at a time of the store, and the limit.

    None before the first reservation, and where the clock has been set back since the last one, as by a reboot.
    """
    if not row or json.loads(row)["at"] > now + SETBACK:
        return None
    budget = _Budget.read(row, now)
    return budget.bucket.usage(now), budget.limit


@attrs.define
class _Line:
    """Requests of one process in one lane.

    The first has been in line since it came, or since the process's last turn in this lane. Of its present turn the
    process has taken some slots.
    """

    number: int
    since: float
    taken: int = 0


@attrs.define
class _Process:
    """Process with requests in line, in no empty lines; its turn is due then, as estimated when it asked."""

    due_at: float
    lines: dict[Priority, _Line]


@attrs.define
class _Budget:
    """Contents of the row.

    Attributes:
        limit: The limit that is kept.
        confirmed_at: When a process last asked with that limit.
        at: The latest time of the store that was read.
        turns: The time of each lane's last turn.
        processes: Those with requests in line.
    """

    limit: Limit
    confirmed_at: float = 0.0
    at: float = 0.0
    bucket: Bucket = attrs.field(default=attrs.Factory(lambda self: self.limit.bucket(), takes_self=True))
    turns: dict[Priority, float] = attrs.field(factory=dict)
    processes: dict[str, _Process] = attrs.field(factory=dict)

    def reserve(self, request: ReservationRequest, now: float) -> Reservation:
        now = self.at = max(self.at, now)
        self._agree(request.limit, now)
        if request.hold > 0:
            self.bucket.hold(now + request.hold)
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

    def _agree(self, limit: Limit, now: float) -> None:
        """Choose the limit that is kept."""
        if limit != self.limit:
            if not (limit.rank < self.limit.rank or now > self.confirmed_at + self.limit.window):
                return
            past = self.bucket.dump()
            self.limit, self.bucket = limit, limit.bucket()
            for at in past.grants:
                self.bucket.take(at)
            # The contents of the service's bucket under the other limit are unknown: at the worst, nothing.
            self.bucket.hold(max(now, past.held_until))
        self.confirmed_at = now

    def _enter(self, request: ReservationRequest, now: float) -> _Process:
        own = self.processes.setdefault(request.process, _Process(now, {}))
        earlier, own.lines = own.lines, {}
        for lane, waiting in request.waiting.items():
            since = now - max(0.0, waiting.waited)
            before = earlier.get(lane, _Line(0, since))
            own.lines[lane] = _Line(waiting.number, max(since, before.since), before.taken)
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
        """Return the number of slots in a turn."""
        return max(1, int((HORIZON - LEAD) * self.limit.per_minute / 60))

    def _next_slot(self, earliest: float) -> float:
        """Return the time of the next slot; never before one that was handed out."""
        return max(earliest, self.bucket.ready_at(), self.bucket.last_at())

    def _whose_turn(self, at: float) -> tuple[Priority, str]:
        """Return the lane and the process that a slot belongs to."""
        firsts: dict[Priority, tuple[float, str]] = {}
        for name, process in self.processes.items():
            for lane, line in process.lines.items():
                firsts[lane] = min(firsts.get(lane, (math.inf, "")), (line.since, name))
        lanes = sorted(firsts)
        lane = next((each for each in lanes if at >= self._overdue_at(each, firsts[each][0])), lanes[0])
        return lane, firsts[lane][1]

    def _overdue_at(self, lane: Priority, since: float) -> float:
        """Return the time from which a lane goes before all others."""
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
            ask_at = max(ask_at, self.processes[first].due_at)  # the slot is ours if that one has not asked by then
        return max(ask_at, now + _SHORTEST)

    def _slots_before(self, name: str, own: _Process) -> int:
        """Return the number of slots before this process: at most a turn for each other, since much may change."""
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
    def read(cls, row: str, now: float) -> _Budget:
        """Return the contents of a row. If the clock was set back, by a reboot say, the past moves along."""
        raw: dict[str, Any] = json.loads(row)
        shift = now - raw["at"] if raw["at"] > now + SETBACK else 0.0
        budget = cls(Limit(**raw["limit"]), confirmed_at=raw["confirmed_at"] + shift, at=raw["at"] + shift)
        grants, made_up, held_until, taken = raw["past"]
        budget.bucket.load(
            Past(
                grants=[at + shift for at in grants],
                made_up=[at + shift for at in made_up],
                held_until=held_until + shift,
                taken=taken,
            )
        )
        budget.turns = {Priority(int(lane)): at + shift for lane, at in raw["turns"].items()}
        if not shift:  # else they ask again
            for name, process in raw["processes"].items():
                lines = {Priority(int(lane)): _Line(**line) for lane, line in process["lines"].items()}
                budget.processes[name] = _Process(process["due_at"], lines)
        return budget

    def write(self) -> str:
        kept = attrs.asdict(self, filter=lambda field, _: field.name != "bucket")
        return json.dumps({**kept, "past": self.bucket.dump()}, separators=(",", ":"))
