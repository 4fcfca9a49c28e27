"""The store against the model of its rules, on the same random histories.

Each step is done by the library through its public interface, and by the model. Then both must agree: on what was sent,
on what was refused with `DuplicateSuspected` and why, on which transaction each key owns, which keys are absent, and
which transactions are listed as unclaimed. And whatever they agree on: no key is paid twice without an operator's word
about that very transaction, but where the documents say so.
"""

import asyncio
import logging
import math
import tempfile
from collections import Counter
from collections.abc import Awaitable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mobilemoney_async import (
    AsyncClient,
    DuplicateSuspected,
    MobileMoneyError,
    PaymentRecord,
    PaymentState,
    RateLimiter,
    RetryPolicy,
    SQLStore,
    StoreError,
)
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.testing import VirtualClockEventLoop
from tests.payments.ownership_model import GRACE, MINUTE, SETTLED, WAIT, Kind, Model, Process, Record, Row, State, Store
from tests.payments.second_world import TYPES, number
from tests.payments.service import Outage
from tests.payments.test_recovery import dump, replace
from tests.support.databases import Postgres, sqlite_url
from tests.support.fakes import NOON
from tests.support.scale import examples
from tests.support.second_service import BASE_URL, TOKEN, Payment, SecondService, dropped, error

_GRID = 20
_DIRECTIONS = {"in": "collections", "out": "disbursements"}

# What the service does with a create, and whether it makes a transaction: now, later, or not.
FAULTS = {
    "ok": ("ack", 0),
    "answer lost": ("none", 0),
    "late": ("none", 60),
    "soft, made": ("soft", 0),
    "died, made": ("died", 0),
    "request lost": ("none", None),
    "soft": ("soft", None),
    "refused": ("refused", None),
    "died": ("died", None),
}


class Difference(AssertionError):
    """Library and model disagree."""


@attrs.frozen
class Config:
    """Merchant of a history."""

    kinds: tuple[Kind, ...]
    sole_writer: bool | None = None
    resend: bool = False
    offset: int = 0
    has_dates: bool = True


@attrs.frozen
class Backup:
    """Of both sides."""

    at: int
    model: Store
    content: Any


class History:
    """A merchant, the service, and the model."""

    def __init__(self, url: str, config: Config) -> None:
        self.url, self.config = url, config
        self.model = Model(config.offset, config.sole_writer, config.resend, config.has_dates, config.has_dates)
        self.service = SecondService(utcnow=lambda: self.utcnow() + timedelta(seconds=config.offset))
        self.service.shows_clock = config.has_dates
        self.service.list.hide = lambda payment: self.visible_at.get(payment.id, 0) > self.now
        self.service.list.spell = self._show
        self.service.answer_list = self._answer_list
        self.service.answer_create = self._answer_create
        self.visible_at: dict[str, int] = {}
        self.shown: dict[str, Row] = {}
        self.late: list[tuple[int, str, Kind, int, bool]] = []
        self.is_readable = True
        self.fault, self.lag, self.fails = "ok", 0, False
        self.backups: list[Backup] = []
        self.kinds: dict[str, Kind] = {}
        self.log: list[str] = []
        self.tainted: set[str] = set()
        self.tainted_kinds: set[Kind] = set()
        self.restored_from: Backup | None = None
        self.exempt: Counter[str] = Counter()
        self.why: dict[str, str | None] = {}
        self.is_hasty = False
        self.events: list[Any] = []

    # Time and the service

    @property
    def now(self) -> int:
        """The time on the grid: a process that dies takes a second for it."""
        return math.floor((anyio.current_time() - self.began + 0.001) / _GRID) * _GRID

    def utcnow(self) -> datetime:
        return NOON + timedelta(seconds=round(anyio.current_time() - self.began, 2))

    async def advance(self, seconds: float) -> None:
        until = math.ceil((anyio.current_time() - self.began - 0.001) / _GRID) * _GRID + seconds
        while self.late and min(self.late)[0] <= until:
            each = min(self.late)
            self.late.remove(each)
            await anyio.sleep(max(0, each[0] - self.now))  # real time: none, the clock is virtual
            self._make(*each[1:])
        await anyio.sleep(max(0, until - (anyio.current_time() - self.began)))  # real time: none, the clock is virtual

    def _make(self, key: str | None, kind: Kind, lag: int, fails: bool) -> None:
        direction = TYPES[_DIRECTIONS[kind[0]]]
        self._made(self.service.make(direction, number(kind[1]), "5000", owner=key), key, lag, fails)

    def _made(self, payment: Payment, key: str | None, lag: int, fails: bool) -> None:
        self.visible_at[payment.id] = self.now + lag
        if fails:
            self.service.finish(payment, "FAILED")
        self.say("MADE", payment.id, key, "failed" if fails else "")
        twice = [each.id for each in self.of(key) if each.status != "FAILED" and each is not payment]
        if key is not None and twice and key not in self.tainted and self.kinds[key] not in self.tainted_kinds:
            why = self.why.get(key)
            if why is None:
                raise Difference(f"PAID TWICE: {key} by {twice} and {payment.id}")
            self.exempt[why] += 1
            self.tainted.add(key)

    def of(self, key: str | None) -> list[Payment]:
        return [each for each in self.service.payments if each.owner == key]

    def _show(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] not in self.shown:
            self.shown[row["id"]] = self.row(row["id"])
        return row

    def row(self, name: str) -> Row:
        payment = next(each for each in self.service.payments if each.id == name)
        at = round((payment.created_at - NOON).total_seconds())
        return Row(name, self.kind_of(payment), at, payment.status == "FAILED")

    def kind_of(self, payment: Payment) -> Kind:
        return next(
            each
            for each in self.config.kinds
            if (TYPES[_DIRECTIONS[each[0]]], number(each[1])) == (payment.type, payment.phone_number)
        )

    def _answer_list(self, request: httpx.Request) -> httpx.Response | None:
        return None if self.is_readable else error(500, None)

    def _answer_create(self, request: httpx.Request, payment: Payment | None) -> httpx.Response | None:
        result, after = FAULTS[self.fault]
        self.has_arrived()
        if payment is not None:
            self._made(payment, payment.owner, self.lag, self.fails)
        elif after:
            lag = min(self.lag, GRACE - after)
            self.late.append((self.now + after, self.key, self.kinds[self.key], lag, self.fails))
        if result == "soft":
            return error(403, "NEW")
        if result == "refused":
            return error(403, "insufficient_permissions")
        if result == "none":
            raise dropped(request)
        return error(500, None) if result == "died" else None  # which never arrives

    # Processes

    def start(self) -> None:
        self.store = SQLStore(
            self.url,
            grace=GRACE,
            resend_absent_collections=self.config.resend,
            sole_writer=self.config.sole_writer,
        )
        self.client = AsyncClient(
            BASE_URL,
            auth=TOKEN,
            transport=self.service,
            utcnow=self.utcnow,
            store=self.store,
            timeout=float(WAIT),
            rate_limiter=RateLimiter(per_minute=600_000, burst=10_000),
            retry=RetryPolicy(max_attempts=1),
            on_event=self.events.append,
        )
        self.outage = Outage(account_store(self.store).database)

    async def stop(self) -> None:
        await self.client.aclose()
        self.store.close()

    # Steps

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        self.began = anyio.current_time()
        self.start()
        try:
            for seconds, name, *arguments in [*steps, (0, "rest")]:
                await self.advance(seconds)
                self.shown, self.lists = {}, self.service.lists
                self.is_readable = True
                await getattr(self, name)(*arguments)
                asks = name in {"create", "reconcile", "read", "rest"} or arguments[:1] in (["identify"], ["recover"])
                if asks:
                    self.model.remember()
                await self.advance(0)
                await self.compare()
        finally:
            self.outage.away = False
            await self.stop()

    def say(self, *what: Any) -> None:
        self.log.append(f"{self.now:6} " + " ".join(map(str, what)))

    @property
    def has_read(self) -> bool:
        return self.is_readable and self.service.lists > self.lists

    def look(self) -> None:
        """Let the model see what the list has shown in this step."""
        if self.has_read:
            self.model.look([*self.shown.values()], self.now)
            return
        is_guarded = self.config.sole_writer is not False
        if self.service.lists > self.lists and is_guarded and self.model.why_compare(self.now) is not None:
            self.model.note_due(self.now)

    async def observed(self) -> dict[str, PaymentRecord]:
        return {each.key: each for each in await self.client.payments.list()}

    async def create(self, number: int, fault: str, is_readable: bool, lag: int, fails: bool) -> None:
        """Somebody asks for a payment, whether for the first time or again."""
        key = f"k{number}"
        kind = self.kinds.setdefault(key, self.config.kinds[number % len(self.config.kinds)])
        self.key, self.fault, self.lag, self.fails, self.is_readable = key, fault, lag, fails, is_readable
        self.service.makes = FAULTS[fault][1] == 0
        self.why[key] = self._excuse(kind, is_readable)
        before, posts, is_compared = self.now, self.posts(key), self.model.why_compare(self.now) is None
        said = await self._ask(key, kind, dies=FAULTS[fault][0] == "died")
        is_sent = self.posts(key) > posts
        named = (getattr(said, "other_key", None), getattr(said, "transaction_id", None))
        how = "readable" if is_readable else "unreadable"
        self.say("create", key, kind, fault, how, "SENT" if is_sent else "not sent", type(said).__name__, *named)
        self.look()
        observed = await self.observed()
        for each in self.model.store.records.values():
            if each.key != key:
                self.follow(each, observed.get(each.key))
        is_behind = self._judge(key, kind, said, is_sent=is_sent)
        is_admitted = is_sent or is_behind or (isinstance(said, DuplicateSuspected) and bool(said.transaction_id))
        if is_compared and is_admitted and self.config.sole_writer is not False:
            self.model.keep_contact(self.now)
        if is_sent:
            self.model.begin(key, kind, before if self.now - before < _GRID else self.now)
            self._finish(key, FAULTS[fault][0])
        elif (record := self.model.store.records.get(key)) is not None:
            self.follow(record, observed.get(key))

    def _judge(self, key: str, kind: Kind, said: object, *, is_sent: bool) -> bool:
        """Compare what a create has done with the rules; return whether a disbursement waits for a comparison."""
        model = self.model
        surely, perhaps = model.stops(key, kind, self.now)
        is_due = model.store.due is not None or model.store.went_backwards
        is_behind = kind[0] == "out" and self.config.sole_writer is not False and is_due
        never, must = self.clearance(model.store.records.get(key))
        if isinstance(said, DuplicateSuspected) and (said.other_key or said.transaction_id) not in surely | perhaps:
            raise Difference(
                f"{key} is stopped by {said.other_key or said.transaction_id}, which stops nothing: {said}"
            )
        if is_sent and (surely or is_behind or never):
            raise Difference(f"{key} was sent, though it is stopped by {surely or never or 'a comparison'}")
        if not is_sent and must and not (surely or perhaps or is_behind):
            raise Difference(f"{key} was not sent, though nothing stops it: {said!r}")
        return is_behind

    def _finish(self, key: str, result: str) -> None:
        """Let the model have the answer."""
        record = self.model.store.records[key]
        if result == "died":
            self.model.process = Process()
            return
        record.last.end = record.last.start
        if result == "ack":
            self.model.own(key, self.of(key)[-1].id, is_adopted=False)
        else:
            record.state = _RESULTS[result]
            record.last.may_exist = result != "refused"

    async def _ask(self, key: str, kind: Kind, *, dies: bool) -> object:
        creates = getattr(self.client, _DIRECTIONS[kind[0]])
        said, is_over = list[object](), anyio.Event()
        self.has_arrived = is_over.set

        async def ask() -> None:
            try:
                order = {"phone_number": number(kind[1]), "amount": 5000, "idempotency_key": key}
                said.append(await creates.create(**order, extra={"order": key}))
            except MobileMoneyError as exc:
                said.append(exc)
            is_over.set()

        if not dies:
            await ask()
            return said[0]
        self.service.answer_after = 1000.0
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await is_over.wait()
            self.outage.away = not said
            group.cancel_scope.cancel()
        self.service.answer_after = 0.0
        if not said:
            self.store.close()
            self.start()
        return said[0] if said else None

    def posts(self, key: str) -> int:
        return sum(event.what == "post" and event.owner == key for event in self.service.log)

    def _excuse(self, kind: Kind, is_readable: bool) -> str | None:
        """Return why the documents allow that this create makes a second payment, or None."""
        model, backup = self.model, self.restored_from
        if backup is None:
            return None
        store, is_out = model.store, kind[0] == "out"
        is_unsettled = store.again_at is not None or model.why_compare(self.now) == "life"
        opened = [each for each in store.records.values() if each.is_open and each.kind == kind]
        reasons = {
            "restored without notice, and too soon": self.is_hasty,
            "sole_writer=False after a restore": self.config.sole_writer is False,
            "collections go on while the list cannot be read": not is_out
            and (not is_readable or (store.due is not None and not model.process.in_question)),
            "collections go on until the list can show the last `grace`": not is_out and is_unsettled,
            "another system was found": not is_out and store.others_until > self.now,
            "an open collection of the backup adopts the only row near it": not is_out
            and any(each.last.start <= backup.at for each in opened),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def clearance(self, record: Record | None) -> tuple[str | None, bool]:
        """Return why a key may not be sent for its own sake, or None; and whether it must be, if nothing stops it."""
        model, now, rows = self.model, self.now, [*self.shown.values()] if self.has_read else []
        if record is None or record.state == "REFUSED":
            return None, True
        is_absent = record.state == "ABSENT"
        if record.state == "UNKNOWN" and self.has_read:
            is_absent = model.may_be_absent(record, rows, now) is None
        if record.state not in {"SOFT", "RELEASED"} and not (is_absent and model.resend and record.kind[0] == "in"):
            return f"is {record.state}", False
        found = model.candidates(record, rows, now)
        looked = [each for each in record.looked if each >= record.end(now) and now - each <= GRACE]
        if found or not looked:
            return f"candidates {found}" if found else "no look", False
        is_released = record.state == "RELEASED"
        if is_released or model.control(record, now, strictly=False):
            is_certain = is_released or (record.state == "ABSENT" and model.control(record, now, strictly=True))
            return None, self.has_read and is_certain
        is_late = any(each >= record.end(now) + GRACE for each in looked)
        return (None if record.state == "SOFT" and record.kind[0] == "in" and is_late else "no control"), False

    async def reconcile(self, is_readable: bool) -> None:
        self.is_readable = is_readable
        said: object = None
        try:
            await self.client.payments.reconcile()
        except MobileMoneyError as exc:
            said = exc
        self.say("reconcile", "readable" if is_readable else "unreadable", type(said).__name__, [*self.shown])
        why = self.model.why_compare(self.now)
        if why is None:
            self.model.keep_contact(self.now)
        self.look()

    async def read(self) -> None:
        """Somebody looks at the list."""
        if self.model.why_compare(self.now) == "backwards":
            return  # until the comparison, the process remembers the rows of the time that the store has lost
        async for _ in self.client.transactions.list():
            pass
        self.say("read", [*self.shown])
        due = self.model.why_compare(self.now)
        if due is None or self.config.sole_writer is False:
            self.look()
        else:
            for row in self.shown.values():
                self.model._note(row, self.now)

    async def till(self, number: int, lag: int, fails: bool) -> None:
        self._make(None, self.config.kinds[number % len(self.config.kinds)], lag, fails)

    async def backup(self) -> None:
        if self.model.store.first_record is None:
            return  # an empty store can detect nothing
        self.say("backup")
        self.backups.append(Backup(self.now, self.model.backup(), dump(self.url)))

    async def restore(self, which: int, how: str) -> None:
        if not self.backups:
            return
        backup = self.backups[which % len(self.backups)]
        self.say("RESTORE", how, "of", backup.at, {key: each.state for key, each in backup.model.records.items()})
        if how != "live":
            await self.stop()
        replace(self.url, backup.content)
        if how != "live":
            self.start()
        self.model.restore(backup.model, is_restart=how != "live")
        active = max((until for _, until in backup.model.lives), default=0)
        last = max((self.row(each.id).time - self.config.offset for each in self.service.payments), default=0)
        is_soon = self.now - active < 300 or self.now - last < GRACE or bool(self.late)
        self.is_hasty = is_soon and self.model.why_compare(self.now) != "backwards"
        self.restored_from = backup
        if how == "late word":
            await self.reconcile(True)
            await self.compare()
        if how.endswith("word"):
            await self.client.payments.restored(note="Asha restored it")
            self.model.word_of_restore(self.now)
            self.is_hasty = False

    async def restart(self) -> None:
        self.say("restart")
        await self.stop()
        self.start()
        self.model.process = Process()

    async def rest(self) -> None:
        """Reconcile every two minutes for a while: all that can be decided is decided."""
        for _ in range(9):
            if all(each.state in {"OWNED", "REFUSED", "ABSENT"} for each in self.model.store.records.values()):
                break
            self.shown, self.lists = {}, self.service.lists
            await self.reconcile(True)
            await self.compare()
            await self.advance(2 * MINUTE)
        self.shown, self.lists = {}, self.service.lists
        await self.read()
        await self.compare()
        observed = await self.observed()
        for record in self.model.store.records.values():
            await self.in_time(record, observed[record.key])

    async def in_time(self, record: Record, observed: PaymentRecord) -> None:
        """A lost payment is absent, and one that was made is adopted, once later ones have settled."""
        model, now = self.model, self.now
        if record.state != "UNKNOWN" or not model.control(record, now - 15 * MINUTE, strictly=True):
            return
        rows = [self.row(each.id) for each in self.service.payments]
        found = model.candidates(record, rows, now)
        if not found and model.store.due is None:
            raise Difference(f"{record.key} is not ABSENT in time: {observed.reason}, {observed.next_look_at}")
        others = [each for each in model.store.records.values() if each.kind == record.kind and each is not record]
        is_alone = all(each.state == "OWNED" and len(each.attempts) == 1 for each in others)
        if len(found) == 1 and is_alone and model.may_own(record, found[0], now) is None:
            raise Difference(f"{record.key} has not adopted {found[0].id} in time: {observed.reason}")

    # Operators

    async def word(self, what: str, number: int, is_right: bool) -> None:
        """An operator says something, which may be wrong."""
        await getattr(self, f"_{what}")(number, is_right)

    def _choose_open(self, number: int) -> Record | None:
        found = [each for each in self.model.store.records.values() if each.state not in {"OWNED", "REFUSED"}]
        return found[number % len(found)] if found else None

    async def _confirm_absent(self, number: int, is_right: bool) -> None:
        record, now = self._choose_open(number), self.now
        if record is None:
            return
        is_wrong = bool(self.of(record.key)) or any(each[1] == record.key for each in self.late)
        if is_right and is_wrong:
            return
        may = record.state in {"UNKNOWN", "ABSENT"} and now >= record.end(now) + GRACE
        word = self.client.payments.confirm_absent(record.key, note="Asha")
        done = await self._say(word, "confirm_absent", record.key)
        if done != may and not (record.state == "SENDING" and now >= record.last.start + WAIT + 5 + GRACE):
            raise Difference(f"confirm_absent({record.key}): {done}, expected {may}")
        if done:
            record.state, record.last.may_exist, record.looked = "RELEASED", False, []
            record.last.end = record.last.start + WAIT if record.last.end is None else record.last.end
            if is_wrong:
                self.taint(record.key)

    async def _identify(self, number: int, is_right: bool) -> None:
        record = self._choose_open(number)
        if record is None:
            return
        alike = [each for each in self.service.payments if self.kind_of(each) == record.kind]
        alike = [each for each in alike if not is_right or each.owner == record.key]
        if not alike:
            return
        chosen = alike[number % len(alike)]
        may = record.state in {"UNKNOWN", "ABSENT"} and chosen.id not in self.model.store.owners
        word = self.client.payments.identify(record.key, chosen.id, note="Asha")
        done = await self._say(word, "identify", record.key, chosen.id)
        if done != may and record.state != "SENDING":
            raise Difference(f"identify({record.key}, {chosen.id}): {done}, expected {may}")
        if done:
            record.last.end = record.end(self.now)
            self.model.own(record.key, chosen.id, is_adopted=True)
            if chosen.owner != record.key:
                self.taint(record.key, chosen.owner)

    async def _explain(self, number: int, is_right: bool) -> None:
        if not self.service.payments:
            return
        chosen, store = self.service.payments[number % len(self.service.payments)], self.model.store
        holder = store.records.get(chosen.owner or "")
        is_wrong = chosen.owner is not None and (holder is None or holder.state != "OWNED")
        if is_right and is_wrong:
            return
        done = await self._say(self.client.payments.explain(chosen.id, note="Asha"), "explain", chosen.id)
        if done != (chosen.id not in store.owners):
            raise Difference(f"explain({chosen.id}): {done}")
        if done:
            store.explained.add(chosen.id)
            if is_wrong:
                self.taint(chosen.owner)

    async def _recover(self, number: int, is_right: bool) -> None:
        if not self.service.payments:
            return
        chosen, store, now = self.service.payments[number % len(self.service.payments)], self.model.store, self.now
        key, row = chosen.owner if is_right else f"k{number}", self.row(chosen.id)
        holder, line = store.records.get(key or ""), store.lines.get(chosen.id)
        if key is None or self.kinds.get(key) != row.kind or (holder is not None and holder.transaction == chosen.id):
            return
        may = chosen.id not in store.owners and (holder is None or holder.state not in {"OWNED", "SENDING"})
        is_young = line is not None and not line.is_lost and now < line.first_seen + SETTLED
        is_listed = self.config.sole_writer is not False  # else no line is written
        is_young = is_young and is_listed and chosen.id not in store.explained
        is_unseen = (line is None or not is_listed) and now < row.time + abs(self.config.offset) + SETTLED
        done = await self._say(self.client.payments.recover({key: chosen.id}, note="Asha"), "recover", key, chosen.id)
        if done and (not may or is_young):
            raise Difference(f"recover({key}, {chosen.id}) was accepted")
        if not done and may and not (is_young or is_unseen):
            raise Difference(f"recover({key}, {chosen.id}) was refused")
        if done:
            if holder is None:
                self.model.begin(key, row.kind, min(row.time, now))
            holder = store.records[key]
            holder.last.end = holder.last.start if holder.last.end is None else holder.last.end
            self.model.own(key, chosen.id, is_adopted=True)
            if chosen.owner != key:
                self.taint(key, chosen.owner)

    def taint(self, *keys: str | None) -> None:
        self.tainted.update(each for each in keys if each is not None)
        self.tainted_kinds.update(self.kinds[each] for each in keys if each is not None)

    async def _say(self, work: Awaitable[object], *about: str) -> bool:
        try:
            await work
        except StoreError as exc:
            self.say(*about, "refused:", exc)
            return False
        self.say(*about, "done")
        return True

    # Comparison

    def follow(self, record: Record, observed: PaymentRecord | None) -> None:
        """Let the model take the change that the library has made in this step, if the rules allow it."""
        if observed is None:
            raise Difference(f"{record.key} has no record")
        record.named = observed.candidates
        state: State = _STATES.get(observed.state, observed.state.value)  # type: ignore[assignment]
        if state == "REFUSED" and not observed.is_certain:
            state = "SOFT"
        if state == record.state == "SOFT" and observed.walks and record.clear_at is not None:
            record.last.may_exist = False
        if (state, observed.transaction_id) == (record.state, record.transaction):
            return
        if record.state == "SENDING" and self.now >= record.last.start + WAIT + 5:
            record.state, record.last.end = "UNKNOWN", record.last.start + WAIT
            self.follow(record, observed)
            return
        change = f"{record.key}: {record.state} -> {state} {observed.transaction_id or ''} ({observed.reason})"
        self.say("  ", change)
        why = self._objection(record, state, observed.transaction_id)
        if why is not None:
            raise Difference(f"{change}, though: {why}")
        if observed.transaction_id is None:
            record.state = state
            return
        self.model.own(record.key, observed.transaction_id, is_adopted=True)
        owner = next(each.owner for each in self.service.payments if each.id == observed.transaction_id)
        if owner != record.key:
            self._is_wrong(record, owner, observed.transaction_id)

    def _objection(self, record: Record, state: State, transaction: str | None) -> str | None:
        """Return why the library may not bring a payment to a state, by what the list has shown in this step."""
        model, now, rows = self.model, self.now, [*self.shown.values()] if self.has_read else []
        if transaction is not None:
            row = self.shown.get(transaction) if self.has_read else None
            return "it was not shown" if row is None else model.may_own(record, row, now)
        if state == "ABSENT" and record.state == "UNKNOWN" and self.has_read:
            return model.may_be_absent(record, rows, now)
        if state == "UNKNOWN" and record.state in {"ABSENT", "SOFT", "RELEASED"}:
            is_payout = record.state == "SOFT" and record.kind[0] == "out"
            is_doubted = is_payout and not model.control(record, now, strictly=True)
            has_looked = any(now - each <= GRACE for each in record.looked)
            return None if (is_doubted and has_looked) or model.candidates(record, rows, now) else "no candidates"
        return "nothing was read, or there is no such change"

    def _is_wrong(self, record: Record, owner: str | None, name: str) -> None:
        why = None
        if owner is None:
            why = "a row of another system is adopted"
        elif self.is_hasty or self.tainted & {record.key, owner} or record.kind in self.tainted_kinds:
            why = "hasty or tainted"
        elif self.restored_from is not None and record.kind[0] == "in":
            why = "an open collection of the backup adopts the only row near it"
        if why is None:
            raise Difference(f"WRONG OWNER: {record.key} has adopted {name}, which is {owner}'s")
        self.exempt[why] += 1
        self.taint(record.key, owner)

    async def compare(self) -> None:
        observed = await self.observed()
        for record in self.model.store.records.values():
            self.follow(record, observed.get(record.key))
        if extra := observed.keys() - self.model.store.records.keys():
            raise Difference(f"unexpected records of {extra}")
        unclaimed = {each.transaction_id for each in await self.client.payments.unclaimed()}
        expected = self.model.unclaimed(self.now)
        # A row that is young may stay in memory, or have a line since it is from a lost time.
        new = unclaimed - self.model.store.lines.keys()
        unclaimed -= {each for each in new if self.model.is_lost(self.row(each))}
        if self.config.offset and not self.model.process.knows_clock:
            return  # until a row of ours shows the clock, the observer takes no other sign of it
        if self.config.offset and len(unclaimed) == len(expected):
            return  # which row is nearest in time to an attempt, the store finds without the service's clock
        if unclaimed != expected and self.config.sole_writer is not False:
            raise Difference(f"listed as unclaimed: {sorted(unclaimed)}, expected {sorted(expected)}")


_RESULTS: dict[str, State] = {"none": "UNKNOWN", "soft": "SOFT", "refused": "REFUSED"}
_STATES: dict[PaymentState, str] = {PaymentState.ACKNOWLEDGED: "OWNED", PaymentState.FINAL: "OWNED"}
_PAUSES = [0, 20, 40, 60, 140, 200, 300, 400, 1000, 4000]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    kinds = draw(
        st.sampled_from(
            [
                (("in", 1),),
                (("out", 1),),
                (("in", 1), ("in", 2)),
                (("in", 1), ("out", 1)),
                (("out", 1), ("out", 2)),
            ]
        )
    )
    return Config(
        kinds,
        sole_writer=draw(st.sampled_from([None, None, None, True, False])),
        resend=draw(st.booleans()),
        offset=draw(st.sampled_from([0, 0, 20, -240, 240])),
        has_dates=draw(st.sampled_from([True, True, False])),
    )


_seconds = st.sampled_from(_PAUSES)
_lags = st.sampled_from([0, 0, 40, 120])
_restores = st.sampled_from(["cold", "cold", "word", "late word", "live"])
_fails = st.sampled_from([False] * 9 + [True])
_readable = st.sampled_from([True] * 5 + [False])


def _creates(keys: st.SearchStrategy[int], faults: list[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(_seconds, st.just("create"), keys, st.sampled_from(faults), _readable, _lags, _fails)


_any_create = _creates(st.integers(0, 3), ["ok", "ok", "ok", *FAULTS])
_words = st.tuples(
    _seconds,
    st.just("word"),
    st.sampled_from(["identify", "confirm_absent", "recover", "explain"]),
    st.integers(0, 5),
    st.sampled_from([True, True, False]),
)
steps = st.one_of(
    _any_create,
    _any_create,
    _any_create,
    _creates(st.integers(4, 9), ["ok"]),
    st.tuples(_seconds, st.just("reconcile"), _readable),
    st.tuples(_seconds, st.just("reconcile"), _readable),
    st.tuples(_seconds, st.just("read")),
    _words,
    _words,
    st.tuples(_seconds, st.just("till"), st.integers(0, 1), st.sampled_from([0, 60, 120]), _fails),
    st.tuples(_seconds, st.just("backup")),
    st.tuples(_seconds, st.just("restore"), st.integers(0, 3), _restores),
    st.tuples(_seconds, st.just("restart")),
    st.tuples(_seconds, st.just("rest")),
)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Draw payments, some of them open; a backup, what it forgets, a restore; and what everybody does then."""
    if draw(st.booleans()):
        return draw(st.lists(steps, min_size=3, max_size=25))
    looks = st.one_of(st.tuples(_seconds, st.just("reconcile"), st.just(True)), st.tuples(_seconds, st.just("rest")))
    sold = _creates(st.integers(4, 9), ["ok"])
    first = [*draw(st.lists(sold, max_size=3)), *draw(st.lists(_any_create, max_size=2))]
    first += draw(st.lists(looks, max_size=1))
    forgotten = draw(st.lists(st.one_of(_any_create, _any_create, sold, looks, _words), min_size=1, max_size=6))
    restore = st.tuples(
        st.sampled_from([20, 160, 400, 3000, 9000]),
        st.just("restore"),
        st.just(0),
        _restores,
    )
    after = st.one_of(_any_create, _any_create, _any_create, sold, looks, _words, _words)
    return [*first, (20, "backup"), *forgotten, draw(restore), *draw(st.lists(after, min_size=2, max_size=12))]


def play(url: str, config: Config, history: list[tuple[Any, ...]]) -> History:
    """Let both sides do a history; raise `Difference` with its log."""
    logging.getLogger("mobilemoney_async").disabled = True
    with asyncio.Runner(loop_factory=VirtualClockEventLoop) as runner:
        done = History(url, config)
        try:
            runner.run(done.run(history))
        except (Difference, AssertionError, KeyError) as exc:
            raise Difference(f"{exc}\n{config}\n{history}\n" + "\n".join(done.log)) from exc
        finally:
            logging.getLogger("mobilemoney_async").disabled = False
    return done


@pytest.mark.slow
@settings(max_examples=examples(15), suppress_health_check=[*HealthCheck])
@given(config=configs(), history=histories())
def test_store_and_model_agree_on_sqlite(config: Config, history: list[tuple[Any, ...]]) -> None:
    """Whatever happens to a merchant, the store sends, stops, owns and lists what the rules say."""
    with tempfile.TemporaryDirectory() as folder:
        play(sqlite_url(Path(folder)), config, history)


@pytest.mark.slow
@settings(max_examples=examples(4), suppress_health_check=[*HealthCheck])
@given(config=configs(), history=histories())
def test_store_and_model_agree_on_postgresql(
    postgres_server: Postgres, config: Config, history: list[tuple[Any, ...]]
) -> None:
    """On PostgreSQL it does the same."""
    play(postgres_server.shared_database(), config, history)
