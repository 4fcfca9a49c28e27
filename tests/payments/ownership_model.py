"""Model of the rules of ownership: whose is a transaction, and when may a payment be sent (again)? Pure.

It is written from the rules alone, not from the package, and knows neither databases nor requests. Time is whole
seconds on the merchant's clock; the service's clock is `offset` ahead, which its answers show.

Where the rules leave the moment of a look in the list to the store, the model is told what the list has shown (`look`),
and says what may follow from that (`may_own`, `may_be_absent`), rather than when it does.
"""

import copy
from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

import attrs

GRACE, WAIT = 120, 35
SETTLED = GRACE + WAIT + 5
NARROW, CONTACT, CLOCKS, ERROR = 120, 300, 600, 3
MINUTE, HOUR, DAY = 60, 3600, 86_400

Kind: TypeAlias = tuple[str, int]
"""``in`` or ``out``, and a number that stands for phone number and amount."""
State: TypeAlias = Literal["SENDING", "UNKNOWN", "ABSENT", "RELEASED", "SOFT", "REFUSED", "OWNED"]


@attrs.frozen
class Row:
    """Transaction as the list shows it, its time on the service's clock."""

    id: str
    kind: Kind
    time: int
    is_failed: bool = False


@attrs.define
class Attempt:
    """One request: its time, its end (None while it is on its way), and whether it may have made something."""

    start: int
    end: int | None = None
    may_exist: bool = True


@attrs.define
class Record:
    """Payment of a key."""

    key: str
    kind: Kind
    state: State = "SENDING"
    attempts: list[Attempt] = attrs.field(factory=list)
    transaction: str | None = None
    is_adopted: bool = False
    named: tuple[str, ...] = ()  # the candidates that the store has noted
    clear_at: int | None = None  # a list that began `grace` after its end has shown no row near it
    missed_at: list[int] = attrs.field(factory=list)  # such lists without any candidate
    looked: list[int] = attrs.field(factory=list)  # when a whole list was read

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    @property
    def is_open(self) -> bool:
        """It may have made a transaction whose id it does not know."""
        return self.state in {"SENDING", "UNKNOWN"} or (self.state == "SOFT" and self.last.may_exist)

    def end(self, now: int) -> int:
        return now if self.last.end is None else self.last.end


@attrs.define
class Line:
    """Transaction that was seen without an owner; `first_seen` is on our clock."""

    row: Row
    first_seen: int
    is_lost: bool = False
    went_backwards: bool = False
    is_foreign: bool = False


@attrs.define
class Due:
    """Comparison with the service that did not end."""

    since: int
    newest: int
    went_backwards: bool = False


@attrs.define
class Store:
    """All that a backup has."""

    records: dict[str, Record] = attrs.field(factory=dict)
    lines: dict[str, Line] = attrs.field(factory=dict)
    explained: set[str] = attrs.field(factory=set)
    lives: list[list[int]] = attrs.field(factory=list)
    lost_times: list[tuple[int, int, bool]] = attrs.field(factory=list)
    first_record: int | None = None
    due: Due | None = None
    again_at: int | None = None
    went_backwards: bool = False
    others_until: int = 0

    @property
    def owners(self) -> dict[str, Record]:
        return {each.transaction: each for each in self.records.values() if each.transaction is not None}


@attrs.define
class Process:
    """All that a process remembers: first sightings, the newest payment, what no clock can place."""

    sightings: dict[str, int] = attrs.field(factory=dict)
    newest: int | None = None
    due_since: int | None = None
    knows_clock: bool = False
    in_question: list[Row] = attrs.field(factory=list)
    contact_at: int = -MINUTE


@attrs.define
class Model:
    """A merchant's store and its process."""

    offset: int = 0
    sole_writer: bool | None = None
    resend: bool = False
    has_dates: bool = True
    knows_clock: bool = True  # by the last list: its dates, or rows of payments that we acknowledged
    store: Store = attrs.field(factory=Store)
    process: Process = attrs.field(factory=Process)

    # Backups

    def backup(self) -> Store:
        return copy.deepcopy(self.store)

    def restore(self, backup: Store, *, is_restart: bool) -> None:
        self.store = copy.deepcopy(backup)
        if is_restart:
            self.process = Process()

    def word_of_restore(self, now: int) -> None:
        """`payments restored`: it went backwards, and is compared with what it knew until now.

        No life lasts longer than the newest payment: who came after the restore may have kept it going, or begun one.
        """
        own = [each for each in self.store.records.values() if each.last.start <= now and not each.is_adopted]
        for life in self.store.lives:
            life[1] = max(life[0], min(life[1], max((each.last.start for each in own), default=life[0])))
        self.process.due_since = now
        owned = [each.last.start for each in own if each.transaction is not None]
        self.store.due = Due(now, max(owned, default=self.store.first_record or now), went_backwards=True)

    # Windows: narrow for adoption, wide for candidates

    def near(self, row: Row, attempt: Attempt, now: int) -> bool:
        end = now if attempt.end is None else attempt.end
        if not self.knows_clock:
            return attempt.start - MINUTE <= row.time <= end + NARROW + MINUTE
        return attempt.start - ERROR <= row.time - self.offset <= end + NARROW + ERROR

    def wide(self, row: Row, record: Record, now: int) -> bool:
        at = row.time - self.offset
        if not self.knows_clock:
            return True
        return any(each.start - DAY - ERROR <= at <= record.end(now) + DAY + NARROW for each in record.attempts)

    def candidates(self, record: Record, rows: Iterable[Row], now: int) -> list[Row]:
        """The unexplained rows of its kind without an owner, in its wide window."""
        settled = {*self.store.owners, *self.store.explained}
        free = [row for row in rows if row.kind == record.kind and row.id not in settled]
        return [row for row in free if self.wide(row, record, now)]

    # Lives

    def remembers(self, row: Row) -> bool:
        """Whether a life spans the row's time: the store was there, and did not make it."""
        at = row.time - self.offset
        return any(began + SETTLED + ERROR < at < until - ERROR for began, until in self.store.lives)

    @property
    def life_began(self) -> int:
        return self.store.lives[-1][0] if self.store.lives else -1

    def _is_in_contact(self, now: int) -> bool:
        return bool(self.store.lives) and now - self.store.lives[-1][1] < CONTACT

    def keep_contact(self, now: int) -> None:
        """A process that pays or follows stays in contact: written at most once a minute, not while it is behind."""
        if self.why_compare(now) is None and self._is_in_contact(now) and now - self.store.lives[-1][1] >= MINUTE:
            self.store.lives[-1][1] = now

    # The comparison after a lost time

    def why_compare(self, now: int) -> str | None:
        store, newest = self.store, self.process.newest
        sent = [each.last.start for each in store.records.values()]
        if newest is not None and (not sent or max(sent) < newest):
            return "backwards"
        if store.first_record is None:
            return None
        if store.due is not None:
            return "due"
        if store.again_at is not None and now >= store.again_at:
            return "again"
        return None if self._is_in_contact(now) else "life"

    def remember(self) -> None:
        """The process has read the account, and knows when its newest payment was sent."""
        sent = [each.last.start for each in self.store.records.values()]
        self.process.newest = max([*sent, *filter(None, [self.process.newest])], default=None)

    def _newest_owned(self, until: int) -> int:
        owned = [each.last.start for each in self.store.owners.values() if each.last.start <= until]
        return max(owned, default=until if self.store.first_record is None else self.store.first_record)

    def note_due(self, now: int) -> None:
        """What is paid from now on shows nothing. The moment belongs to this process."""
        store = self.store
        backwards = store.went_backwards or self.why_compare(now) == "backwards"
        if store.due is None:
            self.process.due_since = now
            store.due = Due(now, self._newest_owned(now), backwards)
        elif self.process.due_since != store.due.since:
            self.process.due_since = store.due.since = now
        store.due.went_backwards |= backwards

    def _compare(self, rows: Collection[Row], now: int) -> None:
        self.note_due(now)
        store, due = self.store, self.store.due
        assert due is not None
        if not self.knows_clock:
            settled, first = self._settled(), due.newest - DAY - CLOCKS
            self.process.in_question = [row for row in rows if row.id not in settled and row.time >= first]
            if self.process.in_question:
                return  # no row can be placed
        self.process.in_question = []
        start, is_in_contact = due.newest + self.offset - CLOCKS, self._is_in_contact(now)
        settled = self._settled()
        rows = [row for row in rows if row.time >= start and row.id not in settled and not self.remembers(row)]
        signs = [row for row in rows if not self._is_lost_answer(row, rows, now)]
        lost = rows if signs else [row for row in rows if self._is_doubtful(row, due.since, now)]
        if signs:
            store.lost_times.append((start, due.since + self.offset + CLOCKS + 1, due.went_backwards))
        end = due.since + self.offset + CLOCKS
        for row in [each for each in lost if not signs or each.time <= end]:
            line = store.lines.setdefault(row.id, Line(row, now))
            line.is_lost, line.went_backwards = True, line.went_backwards or due.went_backwards
        for line in store.lines.values() if signs else ():
            self._flag_lost(line)
        if due.went_backwards or not is_in_contact:
            store.lives.append([due.since, now])
        settles_at = store.again_at or due.since + GRACE
        is_unsure = (due.went_backwards or bool(signs)) and now < settles_at
        store.again_at = settles_at if is_unsure else None
        store.went_backwards = due.went_backwards and is_unsure
        store.due, self.process.due_since = None, None
        if not store.went_backwards:
            self.process.newest = max((each.last.start for each in store.records.values()), default=None)

    def _settled(self) -> set[str]:
        """Rows that show nothing: owned, explained, lost; and candidates that were first seen in a life."""
        store = self.store
        named = {name for each in store.records.values() if each.is_open for name in each.named}
        known = {
            each.row.id
            for each in store.lines.values()
            if each.is_lost
            or (each.row.id in named and any(start <= each.first_seen <= end for start, end in store.lives))
        }
        return known | store.owners.keys() | store.explained

    def _flag_lost(self, line: Line) -> None:
        """From a lost time, lines written before and after included; never what a life remembers."""
        for start, end, backwards in self.store.lost_times:
            if start <= line.row.time <= end and line.row.id not in {*self.store.owners, *self.store.explained}:
                line.is_lost, line.went_backwards = True, line.went_backwards or backwards

    def is_lost(self, row: Row) -> bool:
        return any(start <= row.time <= end for start, end, _ in self.store.lost_times)

    def _open_of(self, kind: Kind) -> list[Record]:
        return [each for each in self.store.records.values() if each.kind == kind and each.is_open]

    def _is_lost_answer(self, row: Row, rows: Collection[Row], now: int) -> bool:
        """No sign: of a kind no more rows than open attempts, this one near one of them."""
        alike = self._open_of(row.kind)
        is_near = any(self._is_near_earlier(row, each.last, now) for each in alike)
        return is_near and sum(each.kind == row.kind for each in rows) <= len(alike)

    def _is_near_earlier(self, row: Row, attempt: Attempt, now: int) -> bool:
        """Of an attempt of an earlier life, the far edge is `grace`."""
        end = now if attempt.end is None else attempt.end
        return self.near(row, attempt, now) and row.time - self.offset <= end + GRACE

    def _is_doubtful(self, row: Row, began: int, now: int) -> bool:
        """A row that no life spans, of an open attempt of an earlier life: a disbursement, or softly refused."""
        return any(
            each.last.start < began and (each.kind[0] == "out" or each.state == "SOFT")
            for each in self._open_of(row.kind)
        )

    # Lists

    def look(self, rows: Collection[Row], now: int) -> None:
        """The whole list was read: unmatched rows get lines, a comparison that is due is made."""
        is_shown = any((owner := self.store.owners.get(row.id)) and not owner.is_adopted for row in rows)
        self.process.knows_clock |= is_shown
        self.knows_clock = self.has_dates or is_shown
        if now - self.process.contact_at >= MINUTE:
            self.process.contact_at = now
            self.keep_contact(now)
        for row in rows:
            self._note(row, now)
        if self.why_compare(now) is not None and self.sole_writer is not False:
            self._compare(rows, now)
        for record in self.store.records.values():
            record.looked.append(now)
            if record.state == "SENDING" and now >= record.last.start + WAIT + 5:
                record.last.end = record.last.start + WAIT  # its sender has died
            if record.state == "OWNED" or record.end(now) + GRACE > now:
                continue
            found = self.candidates(record, rows, now)
            if not any(self.near(row, each, now) for row in found for each in record.attempts):
                record.clear_at = now  # it stays so: one that is late is of another system
            record.missed_at = [] if found else [*record.missed_at, now]

    def _note(self, row: Row, now: int) -> None:
        store, at = self.store, row.time - self.offset
        if row.id in store.owners and now >= self.process.sightings.get(row.id, now) + SETTLED:
            del self.process.sightings[row.id]  # it was judged: if a backup forgets its owner, it is new
        if store.first_record is None or row.id in store.owners or at < store.first_record - MINUTE:
            return
        is_new = row.id not in self.process.sightings
        first = self.process.sightings.setdefault(row.id, now)
        is_old = is_new and at < now - SETTLED
        if row.id in store.lines or (not is_old and now < first + SETTLED):
            if row.id in store.lines:
                store.lines[row.id].row = row
            return
        line = store.lines[row.id] = Line(row, first)
        self._flag_lost(line)
        is_explained = any(
            self.near(row, attempt, now)
            for each in store.records.values()
            if each.kind == row.kind
            for attempt in each.attempts
        )
        is_known = self.process.knows_clock and not line.is_lost
        if self.sole_writer is None and is_known and self.remembers(row) and not is_explained:
            line.is_foreign = True
            recent = sum(each.is_foreign and now - each.first_seen <= 7 * DAY for each in store.lines.values())
            if recent >= 3 or store.others_until > now:
                store.others_until = now + 30 * DAY

    def open_lines(self) -> list[Line]:
        settled = {*self.store.owners, *self.store.explained}
        return [each for each in self.store.lines.values() if each.row.id not in settled]

    def surplus(self, *, but: str | None = None) -> list[Line]:
        """What is left when each open attempt has taken one of its kind: by distance in time, then id and key."""
        pairs = sorted(
            (abs(line.row.time - self.offset - record.last.start), line.row.id, record.key)
            for line in self.open_lines()
            for record in self._open_of(line.row.kind)
            if record.key != but and self.wide(line.row, record, record.last.start)
        )
        taken, served = set[str](), set[str]()
        for _, name, key in pairs:
            if name not in taken and key not in served:
                taken.add(name)
                served.add(key)
        return [line for line in self.open_lines() if line.row.id not in taken]

    def unclaimed(self, now: int) -> set[str]:
        """The surplus, once nothing of ours can be on its way that it may be; at once what is from a lost time."""
        return {each.row.id for each in self.surplus() if each.is_lost or now - each.first_seen >= SETTLED}

    # What stops a payment

    def stops(self, key: str, kind: Kind, now: int) -> tuple[set[str], set[str]]:
        """Return what certainly stops a payment of a kind under a key, and what may, by keys and transaction ids."""
        surely, perhaps = self._stopping_keys(key, kind)
        if self.sole_writer is False:
            return surely, perhaps
        is_out = kind[0] == "out"
        lines = [each for each in self.open_lines() if each.row.kind == kind and not each.row.is_failed]
        for line in lines:
            if line.is_lost and (is_out or line.went_backwards or self.store.others_until <= now):
                surely.add(line.row.id)
        if not is_out and (due := self.store.due) and (due.went_backwards or self.store.others_until <= now):
            rows = [row for row in self.process.in_question if row.kind == kind and not row.is_failed]
            surely.update({row.id for row in rows} - self.store.owners.keys() - self.store.explained)
        tried = [attempt for each in self.store.records.values() if each.kind == kind for attempt in each.attempts]
        for line in self.surplus(but=key):
            if line not in lines or now - line.first_seen >= (DAY if is_out else HOUR):
                continue
            if self.sole_writer or (is_out and any(self.near(line.row, each, now) for each in tried)):
                surely.add(line.row.id)
            elif is_out and tried:
                perhaps.add(line.row.id)  # the rules do not say how near a row is that fits
        return surely, perhaps

    def _stopping_keys(self, key: str, kind: Kind) -> tuple[set[str], set[str]]:
        surely, perhaps = set[str](), set[str]()
        for each in self.store.records.values():
            if each.key == key or each.kind != kind or each.state not in {"SENDING", "UNKNOWN", "ABSENT"}:
                continue
            if kind[0] == "out" or (each.state != "ABSENT" and each.clear_at is None):
                surely.add(each.key)
            elif each.state != "ABSENT":
                perhaps.add(each.key)  # until the look that was clear was one for this payment
        return surely, perhaps

    def begin(self, key: str, kind: Kind, now: int) -> None:
        """A payment is sent: it is recorded before."""
        store = self.store
        record = store.records.setdefault(key, Record(key, kind))
        record.state, record.clear_at, record.missed_at, record.looked = "SENDING", None, [], []
        record.attempts.append(Attempt(now))
        if store.first_record is None:
            store.first_record = now
            store.lives.append([now, now])
        self.process.newest = max(now, self.process.newest or now)

    def own(self, key: str, transaction: str, *, is_adopted: bool) -> None:
        record = self.store.records[key]
        record.state, record.transaction, record.is_adopted = "OWNED", transaction, is_adopted

    # What a list may show about a payment

    def control(self, record: Record, now: int, *, strictly: bool) -> bool:
        """Own payments before and after the request are shown, and had all ended `grace` before the list began."""
        known = [
            each.last
            for each in self.store.owners.values()
            if each.kind[0] == record.kind[0] and each.end(now) + GRACE <= now and each is not record
            and not (strictly and (len(each.attempts) != 1 or each.is_adopted))
        ]  # fmt: skip
        is_between = any(each.end is not None and each.end <= record.last.start for each in known) and any(
            each.start >= record.end(now) for each in known
        )
        return is_between and record.end(now) + GRACE <= now

    def rivals(self, row: Row, record: Record, now: int) -> list[str]:
        """Other payments that may have made a row as well: open, absent or released ones, and earlier attempts."""
        found = []
        for each in self.store.records.values():
            attempts = each.attempts[:-1] if each.state in {"OWNED", "REFUSED"} else each.attempts
            if (
                each is not record
                and each.kind == row.kind
                and any(attempt.may_exist and self.near(row, attempt, now) for attempt in attempts)
            ):
                found.append(each.key)
        return found

    def may_own(self, record: Record, row: Row, now: int) -> str | None:
        """Return why no machine may give a row to a payment, or None."""
        line = self.store.lines.get(row.id)
        if record.state not in {"UNKNOWN", "ABSENT", "SOFT"} or row not in self.candidates(record, [row], now):
            return "no candidate"
        if not any(self.near(row, each, now) for each in record.attempts):
            return "not near"
        if self.sole_writer is False or self.store.due is not None:
            return "another system, or a comparison that is due"
        if line is not None and line.is_lost:
            return "from a lost time"
        foreign = (each for each in self.store.lines.values() if each.is_foreign and now - each.first_seen < DAY)
        if self.store.others_until > now and any(each.row.kind == row.kind for each in foreign):
            return "another system"
        if record.last.start < self.life_began:
            is_unsure = record.kind[0] == "out" or record.state == "SOFT"
            if not self._is_near_earlier(row, record.last, now) or (is_unsure and not self.remembers(row)):
                return "of an earlier life"
        rivals = self.rivals(row, record, now)
        return f"rivals {rivals}" if rivals else None

    def may_be_absent(self, record: Record, rows: Iterable[Row], now: int) -> str | None:
        """Return why a payment may not be called absent, or None."""
        found = self.candidates(record, rows, now)
        if found:
            return f"candidates {found}"
        if len(record.missed_at) < 2 or record.missed_at[-1] - record.missed_at[0] < GRACE // 2:
            return "not looked twice"
        return None if self.control(record, now, strictly=False) else "no control"
