"""Laws: what holds at each moment, and what holds once faults have stopped and the world is calm."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from tests.simulation.merchant import Order
from tests.simulation.service import MERCHANT, Payment
from tests.simulation.world import World

_RECORDS = """SELECT key, state, is_certain, transaction_id, status, candidates, cause
FROM mobilemoney_payment_records ORDER BY key"""
_TIMES = """SELECT key, type, CASE WHEN transaction_id IS NULL THEN 'open' ELSE 'known' END, sent_at, ended_at
FROM mobilemoney_payment_records WHERE (state = 'UNKNOWN' AND candidates IS NULL)
OR (transaction_id IS NOT NULL AND attempt = 1) ORDER BY key"""
_LATE = """SELECT key, not_after FROM mobilemoney_payment_records
WHERE state = 'NOT_SENT' AND not_after IS NOT NULL ORDER BY key"""
PROMPT = 100.0
CERTAIN = ("RATE_LIMIT_EXCEEDED", "invalid_token", "token_expired", "insufficient_permissions")
GONE = {"ABSENT", "NOT_SENT", "CANCELLED"}


def check_always(world: World) -> None:
    """Check the laws that hold at each moment, by the database and the truth at the service."""
    _check_sends(world)
    if not has_records(world):
        return
    for key, not_after in world.disk.look(_LATE) if world.disk.has_server else ():
        if (left := (not_after - world.utcnow()).total_seconds()) > 0:
            world.breaks(f"{key} left the queue as late, with {left:.0f} s left")
    for key, state, is_certain, transaction_id, status, *_ in world.disk.look(_RECORDS):
        if key in world.wrong:
            continue
        _check_end_stays(world, key, state, status)
        exists = world.clear(key)
        if exists and not world.is_restored and (state in GONE or (state == "REFUSED" and is_certain)):
            world.breaks(f"{key} is {state}, and exists: {exists[-1].id}")
        if transaction_id is None or key.startswith("extra-"):
            continue
        payment = next((each for each in world.service.payments if each.id == transaction_id), None)
        if payment is None or payment.owner != key:
            # Of another system's payment of the same kind, see the assumptions in docs/payments.md.
            world.breaks(f"{key} is taken for {transaction_id}, which is {payment and payment.owner}")
        elif state == "FINAL" and status not in {payment.status(world.now()), *_earlier_ends(world, payment)}:
            world.breaks(f"{key} is FINAL and {status}, but {payment.status(world.now())} at the service")


def _earlier_ends(world: World, payment: Payment) -> list[str]:
    return [payment.end] if world.now() >= payment.turns_at else []


def _check_turned(world: World, payment: Payment, states: dict[str, Any]) -> None:
    """Check that a final state which has changed on pages that were read is told, once."""
    key, *_, cause = states.get(str(payment.owner), (None, None))
    if key is None or states[key][3] != payment.id or states[key][4] not in _earlier_ends(world, payment):
        return
    query = f"SELECT what, detail FROM mobilemoney_payment_history WHERE key = '{key}'"
    entries = world.disk.look(query)
    told = sum(what == "contradiction" and "was finally" in detail for what, detail in entries)
    is_decided = any(what == "explained" for what, _ in entries)
    if (cause == "CHANGED") is is_decided or told != 1:
        world.breaks(f"{payment.id} of {key} was {payment.end}, is {payment.status(world.now())}, told {told} times")


def _check_end_stays(world: World, key: str, state: str, status: str) -> None:
    before = world.ended_states.get(key)
    if before not in {None, (state, status)} and not world.is_restored:
        world.breaks(f"{key} was {before}, and is {state} {status}")
    if state in {"FINAL", "CANCELLED"}:
        world.ended_states[key] = state, status


def check_arrival(world: World, key: str | None) -> None:
    """Check, as a create arrives at the service, what the store knew of its key when it was sent."""
    if key is None or not has_records(world) or key in world.wrong or world.is_restored:
        return
    query = "SELECT what, at, detail FROM mobilemoney_payment_history WHERE key = '{}' ORDER BY number"
    entries = [entry for entry in world.disk.look(query.format(key)) if entry[0] != "queued"]
    last = max((place for place, (what, *_) in enumerate(entries) if what == "sent"), default=0)
    now = world.utcnow()
    for what, at, _ in entries[last + 1 :]:
        given_up = _moment(at)
        if what == "unknown" and now - given_up > timedelta(seconds=world.plan.grace + 5):
            world.breaks(f"{key} arrives after the grace period: it was given up at {given_up:%H:%M:%S}")
    before, _, detail = entries[last - 1] if last else ("", "", "")
    is_soft = before == "refused" and not any(code in (detail or "") for code in CERTAIN)
    needs_look = is_soft or before in {"absent", "confirmed"}
    if needs_look and world.now() - world.service.listed_at > max(world.plan.grace, 30.0) + 180:
        world.breaks(f"{key} is sent again after it was {before}, on a look that is too old")


def _moment(at: object) -> datetime:
    return datetime.fromisoformat(str(at)).replace(tzinfo=UTC)


def check_prompt(world: World, seen: dict[str, float]) -> None:
    """Check that a poller finds each final state in time; `seen` has when payments were first seen in this opening."""
    ends = {each.id: each.ends_at for each in world.service.payments}
    for key, state, _, transaction_id, *_ in world.disk.look(_RECORDS) if has_records(world) else ():
        if state == "ACKNOWLEDGED":
            since = max(seen.setdefault(key, world.now()), ends.get(transaction_id, 0.0))
            if world.now() > since + PROMPT:
                world.breaks(f"{key} has been {transaction_id} for {world.now() - since:.0f} s, and is not FINAL")


def check_in_time(world: World) -> None:
    """Check that no payment stays unknown that could be compared with others a quarter of an hour ago.

    Except where it has candidates, and while it was just sent: the two listings after the grace period take their time.
    """
    if not has_records(world):
        return
    grace, rows = timedelta(seconds=world.plan.grace), world.disk.look(_TIMES)
    times = [(*each[:3], *(None if at is None else _moment(at) for at in each[3:])) for each in rows]
    for key, kind, state, sent_at, ended_at in times:
        if state != "open":
            continue
        known = [each for each in times if each[1] == kind and each[2] == "known"]
        earlier = [end for *_, sent, end in known if end <= sent_at and sent >= sent_at - timedelta(days=7)]
        settled = [end + grace for *_, sent, end in known if sent >= ended_at]
        since = max(min(settled), ended_at + 2 * grace) if earlier and settled else world.utcnow()
        if world.utcnow() > since + timedelta(minutes=15):
            world.breaks(f"{key} could be compared since {since:%H:%M:%S}, and is UNKNOWN")


def check_quiet(world: World) -> None:
    """Check that processes that ended in order have recorded the end of each request, and given their leases back."""
    if not has_records(world):
        return
    for key, state, *_ in world.disk.look(_RECORDS):
        if state == "SENDING":
            world.breaks(f"{key} is SENDING, though all processes have ended in order")
    for (name,) in world.disk.look("SELECT name FROM mobilemoney_leases WHERE holder IS NOT NULL ORDER BY name"):
        world.breaks(f"the lease {name} is held, though all processes have ended in order")


def check_rush(world: World, keys: list[str]) -> None:
    """Check that the limit is used when there is work: a dispatcher sends 45 payments a minute."""
    made = sorted(world.made[key][0].made_at for key in keys if world.made.get(key))
    if len(made) > 1 and (took := made[-1] - made[0]) > (most := len(made) * 60 / 45 + 10):
        world.breaks(f"{len(made)} queued payments took {took:.1f} s to be sent, more than {most:.1f} s")


def has_records(world: World) -> bool:
    """Return whether the tables of the package and of the shop are there."""
    return {"mobilemoney_payment_records", "shop_place"} <= world.disk.tables()


def has_sent(world: World) -> bool:
    """Return whether the database knows a payment's transaction: an empty one cannot be compared with the service."""
    query = "SELECT count(*) FROM mobilemoney_payment_records WHERE transaction_id IS NOT NULL"
    return has_records(world) and world.disk.look(query) != [(0,)]


def _check_sends(world: World) -> None:
    """Check that no key has two transactions without a word in between; those of one request are a proxy's."""
    for key, made in world.made.items():
        if key in world.wrong or (world.is_restored and not _is_noticed(world, made)):
            continue
        for one, next_one in pairwise(made):
            words = [at for each, at in world.words if each == key and one.made_at <= at <= next_one.made_at]
            if one.request != next_one.request and not words:
                world.breaks(f"{key} was made twice: {one.id} and {next_one.id}")


def _is_noticed(world: World, made: list[Payment]) -> bool:
    """Return whether a store that has forgotten a payment must notice that before it sends it again.

    A disbursement waits until the list could be read; a list that lies may show nothing. A forgotten one that ended
    without success stops nothing.
    """
    lies = world.service.lied_until >= world.restored_at
    if made[0].type != "disbursement" or lies or world.plan.sole_writer is False:
        return False
    return any(each.status(made[-1].made_at) in {"PENDING", "PROCESSING", "SUCCESS"} for each in made[:-1])


def check_rate(world: World) -> None:
    """Check that requests left at no higher rate than any reading of the contract's section 8 allows."""
    times, left, last = world.departures, 10.0, 0.0
    for index, at in enumerate(times):
        if index >= 60 and at - times[index - 60] < 60.0 - 1e-6:
            world.breaks(f"61 requests in {at - times[index - 60]:.3f} s at {at:.3f}")
        left = min(10.0, left + (at - last)) - 1.0
        last = at
        if left < -1e-6:
            world.breaks(f"the bucket of 10 at one a second was overdrawn at {at:.3f}")


def unsettled(world: World, orders: dict[str, Order]) -> list[str]:
    """Return the orders that are not at their end."""
    if not has_records(world):
        return list(orders)
    states = {row[0]: row for row in world.disk.look(_RECORDS)}
    books = defaultdict(list)
    for key, state in world.disk.look("SELECT key, state FROM shop_books ORDER BY n"):
        books[key].append(state)
    return [
        key
        for key in orders
        if key not in states
        or states[key][1] not in {"FINAL", "CANCELLED"}
        or (books[key] or [""])[-1] != states[key][1]
    ]


def check_end(world: World, orders: dict[str, Order]) -> None:
    """Check the laws of a calm world: nothing waits, and books and service agree or the difference is listed."""
    check_always(world)
    check_rate(world)
    if world.audited is None:
        world.breaks("the audit at the end was never done")
    states = {row[0]: row for row in world.disk.look(_RECORDS)}
    for key in unsettled(world, orders):
        world.breaks(f"{key} waits for ever: {states.get(key)}")
    unclaimed = {row[0] for row in world.disk.look("SELECT transaction_id FROM mobilemoney_unmatched")}
    for payment in world.service.payments:
        _check_listed(world, payment, states, unclaimed)
        _check_turned(world, payment, states)
    if not world.is_doubted:
        _check_feed(world, states)


def _check_listed(world: World, payment: Payment, states: dict[str, Any], unclaimed: set[str]) -> None:
    is_foreign = payment.merchant != MERCHANT or world.plan.sole_writer is False
    if is_foreign or payment.id in unclaimed | (world.audited or set()):
        return
    if not any(row[3] == payment.id or payment.id in (row[5] or "") for row in states.values()):
        world.breaks(f"{payment.id} of {payment.owner} is in no record, and not reported")


def _check_feed(world: World, states: dict[str, Any]) -> None:
    """Check that each reader got every change of the feed, in order; the one with a cursor exactly once."""
    feed = world.disk.look(
        "SELECT name, state, number FROM mobilemoney_changes WHERE number IS NOT NULL AND entry > 0 ORDER BY number"
    )
    entries: dict[str, list[str]] = defaultdict(list)
    for name, state, _ in feed:
        entries[name].append(state)
    for table, is_exact in (("shop_books", True), ("shop_shipped", False)):
        read: dict[str, list[str]] = defaultdict(list)
        for key, state in world.disk.look(f"SELECT key, state FROM {table} WHERE key IS NOT NULL ORDER BY n"):
            if is_exact or not read[key] or read[key][-1] != state:
                read[key].append(state)
        for key, row in states.items():
            wanted = entries[key] if is_exact else _without_repeats(entries[key])
            if wanted and wanted[-1] != row[1]:
                world.breaks(f"the feed ends with {wanted[-1]} for {key}, which is {row[1]}")
            if is_exact and read[key] != wanted:
                world.breaks(f"{table} has {read[key]} for {key}, the feed {wanted}")
            if not is_exact and not _contains(read[key], wanted):
                world.breaks(f"{table} has {read[key]} for {key}, which lacks some of {wanted}")


def _without_repeats(states: list[str]) -> list[str]:
    return [each for each, before in zip(states, [None, *states], strict=False) if each != before]


def _contains(read: list[str], wanted: list[str]) -> bool:
    """Return whether a list contains another one, in order."""
    rest = iter(read)
    return all(each in rest for each in wanted)
