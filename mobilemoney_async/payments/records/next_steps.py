"""Next steps for people, with an open payment or a transaction that no payment claims. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import attrs

from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.payments.records.reasons import TRIED, PaymentCause
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState, UnclaimedTransaction, is_stale
from mobilemoney_async.text import arguments, command_line, option

GRACE: timedelta = timedelta(seconds=120)
"""The grace period of a store that sets none."""

NOTE: tuple[str, str] = ("--note", "YOUR NAME: WHAT YOU SAW")
"""The option that each decision needs."""

RECONCILE: tuple[str, str] = ("payments", "reconcile")
"""The command that looks for payments in the service's list."""

# Candidates that are named.
_MOST_NAMED = 3
_MINUTE = timedelta(minutes=1)
# Age at which a payment without a final state may be gone from the service: no rule of the contract says so.
_OVERDUE = timedelta(days=1)
# Causes that another listing will hardly remove.
_WILL_NOT_CHANGE = frozenset({PaymentCause.NO_EARLIER, PaymentCause.TOO_OLD, PaymentCause.HIDDEN, PaymentCause.ALTERED})


@attrs.frozen
class NextStep:
    """Next step: a text, and the command lines for it, each as the arguments of ``mobilemoney``.

    As a text it is short, since an error has room for 500 characters.
    """

    text: str
    commands: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        lines = " or ".join(command_line(*each) for each in self.commands).replace(f"'{NOTE[1]}'", "TEXT")
        return f"{self.text} By: {lines}" if lines else self.text


_STEPS: Mapping[PaymentState, str] = {
    PaymentState.CANCELLED: "It was cancelled, and its key is used up. Nothing is left to do.",
    PaymentState.NOT_SENT: "It never reached the service: its key may be used again.",
    PaymentState.REFUSED: "The service refused it: its key may be used again after you have fixed the reason.",
    PaymentState.FINAL: "Nothing is left to do.",
}


def next_step(record: PaymentRecord, now: datetime, *, grace: timedelta = GRACE) -> NextStep:
    """Return the next step for a payment, by its state and the cause for which it is open.

    Args:
        record: The payment.
        now: The time.
        grace: For how long the list may not show it after the end of its request, as of the store.
    """
    if record.is_ambiguous:
        return _choose(record)
    if record.cause is PaymentCause.CHANGED:
        said = (
            f"It had ended, and {record.reason}. Ask the service which is true: take the new state, or keep the first."
        )
        name = str(record.transaction_id)
        return NextStep(said, (recover(record.key, name), explain(name)))
    if record.state is PaymentState.RELEASED and record.candidates:  # an acknowledgement has named one
        name = record.candidates[0]
        said = (
            f"Someone has confirmed that it does not exist, but its acknowledgement named transaction {name}: recover "
        )
        said += "it if it is this payment, or explain it. Nothing is sent before that."
        return NextStep(said, (recover(record.key, name), explain(name)))
    if record.state is PaymentState.RELEASED:
        said = "Someone has confirmed that it does not exist. Nothing sends it again by itself: "
        if record.has_extra:  # which no command line has, and without them the key is another payment's
            said += "let your program create it again, under its key and with its extra fields, "
        else:
            said += "create it under its key, "
        commands = () if record.has_extra else (_create(record),)
        return NextStep(f"{said}which looks in the list first, or leave it.", commands)
    if record.state in _STEPS and record.is_certain:
        return NextStep(_STEPS[record.state])
    return _OPEN.get(record.state, _send_again)(record, now, grace)


def unclaimed_step(transaction: UnclaimedTransaction) -> NextStep:
    """Return the next step for a transaction that no payment claims."""
    name = transaction.transaction_id
    if transaction.is_gap:
        return forgotten_step(name)
    key = transaction.fits_key
    if key is None:
        return NextStep("Find out what it is, then explain it.", (explain(name),))
    said = f"It may be the payment {key}, made twice. If that has no transaction of its own, recover it"
    return NextStep(f"{said}; else find out what it is, then explain it.", (recover(key, name), explain(name)))


def forgotten_step(transaction_id: str, key: str = "KEY", why: str = "The store has forgotten it") -> NextStep:
    """Return the next step for a transaction of a time that the store has lost."""
    said = f"{why}, and it stops payments of its kind. Import it under its key, or explain it."
    return NextStep(said, (recover(key, transaction_id), explain(transaction_id)))


def explain(transaction_id: str, note: Sequence[str] = NOTE) -> tuple[str, ...]:
    """Return the command that explains a transaction."""
    return arguments("payments", "explain", transaction_id, options=note)


def recover(key: str, transaction_id: str, note: Sequence[str] = NOTE) -> tuple[str, ...]:
    """Return the command that imports a transaction as a payment; the contract leaves the format of an id open."""
    pair = (key, "=", transaction_id) if "=" in transaction_id else (f"{key}={transaction_id}",)
    return arguments("payments", "recover", *pair, options=note)


def identify(key: str, transaction_id: str) -> tuple[str, ...]:
    """Return the command that makes a transaction a payment's."""
    return arguments("payments", "identify", key, transaction_id, options=NOTE)


def cancel(key: str) -> tuple[str, ...]:
    """Return the command that takes a payment out of the queue."""
    return arguments("payments", "cancel", key, options=NOTE)


def _create(record: PaymentRecord) -> tuple[str, ...]:
    # PHONE stands for the number: the command line is printed where numbers are masked.
    name = "collect" if record.type is TransactionType.COLLECTION else "disburse"
    return (name, "PHONE", f"{record.amount:f}", *option("key", record.key))


def _confirm(record: PaymentRecord) -> tuple[str, ...]:
    return arguments("payments", "confirm-absent", record.key, options=NOTE)


def _choose(record: PaymentRecord) -> NextStep:
    some = record.candidates[:_MOST_NAMED]
    said = "It may be one of several transactions" if len(record.candidates) > 1 else "It may be this transaction"
    return NextStep(
        f"{said}. Compare with your orders: identify the right one, or explain each that is no order of yours.",
        (*(identify(record.key, each) for each in some), *map(explain, some)),
    )


def _wait_in_queue(record: PaymentRecord, now: datetime, grace: timedelta) -> NextStep:
    is_later = record.not_before is not None and record.not_before > now
    when = f" from {_at(record.not_before, now)} on" if is_later and record.not_before is not None else ""
    said = f"It could not be sent: {record.reason}. " if record.cause in TRIED else ""
    if record.cause is PaymentCause.HELD:
        said += "Decide first what holds it: a transaction may be this payment, made already. Else you may cancel it."
        return NextStep(said, (("payments", "unclaimed"), cancel(record.key)))
    return NextStep(f"{said}A dispatcher sends it{when}: wait, or cancel it.", (cancel(record.key),))


def _wait_for_answer(record: PaymentRecord, now: datetime, grace: timedelta) -> NextStep:
    if is_stale(record, now):
        return NextStep("Its sender seems to have died. Look for it in the service's list.", (RECONCILE,))
    until = "" if record.stale_at is None else f" until {_at(record.stale_at, now)}"
    return NextStep(f"It is being sent: wait{until}.")


def _follow(record: PaymentRecord, now: datetime, grace: timedelta) -> NextStep:
    follow = arguments("watch", record.transaction_id or "")
    if record.is_contradicted:
        said = f"Its end is not believed: {record.reason}. Ask the service, then follow it again"
        if record.cause is PaymentCause.OTHER_PAYMENT:
            taken = recover(record.key, record.transaction_id or "")
            return NextStep(f"{said}, or take its end as it is shown.", (follow, taken))
        return NextStep(f"{said}.", (follow,))
    sent_at = record.sent_at or record.created_at
    if now - sent_at > _OVERDUE:
        said = f"It was sent at {_at(sent_at, now)}, and has shown no final state. Follow it; the audit of its day "
        audit = ("payments", "audit", "--from", f"{sent_at:%Y-%m-%d}")
        return NextStep(f"{said}says whether the service still shows it.", (follow, audit))
    return NextStep("It exists. Follow it to its final state.", (follow,))


def _decide(record: PaymentRecord, now: datetime, grace: timedelta) -> NextStep:
    said = "Two listings have not shown it, explained transactions aside."
    return NextStep(f"{said} {_look_elsewhere(record)}", (_confirm(record),))


def _send_again(record: PaymentRecord, now: datetime, grace: timedelta) -> NextStep:
    said = "use its key again, which looks in the list first, and then sends"
    if record.cause is PaymentCause.UNCOMPARED:
        said = f"{record.reason}, so from {_at(_settled_at(record, grace), now)} on {said}"
    return NextStep(f"Refused as far as is known: {said}.")


def _find(record: PaymentRecord, now: datetime, grace: timedelta) -> NextStep:
    """Return the next step for a payment with an unknown result, which no listing has shown so far."""
    settled_at = _settled_at(record, grace)
    look_at = max(settled_at, record.next_look_at or settled_at)
    again = "Reconcile again now." if look_at <= now else f"Reconcile again at {_at(look_at, now)}."
    reason = f"{record.reason[:1].upper()}{record.reason[1:]}" if record.reason else ""
    if record.cause is None and record.looked_at is None and record.next_look_at is None:
        late = f" That may show it until {_at(settled_at, now)}." if now < settled_at else ""
        said = f"Look for it in the service's list.{late} No look has ended since its request did."
        return NextStep(said, (RECONCILE,))
    if now < settled_at:
        return NextStep(f"The list may show it until {_at(settled_at, now)}. {again}", (RECONCILE,))
    if record.cause is None:
        seen = "One listing has not shown it, and a second one decides."
        if record.looked_at is None:
            seen = "The pages of its time have not shown it, and a whole listing decides."
        return NextStep(f"{seen} {again}", (RECONCILE,))
    if record.cause is PaymentCause.NO_LATER:
        settled = f"{grace.total_seconds():g} s after the next {record.type}"
        said = f"{reason}. {again[:-1]}, or {settled}. Or decide. {_look_elsewhere(record)}"
        return NextStep(said, (RECONCILE, _confirm(record)))
    if record.cause in _WILL_NOT_CHANGE:
        return NextStep(f"{reason}. {_look_elsewhere(record)}", (_confirm(record),))
    return NextStep(f"{reason}. {again} If it stays so, ask the service.", (RECONCILE,))


_OPEN: Mapping[PaymentState, Callable[[PaymentRecord, datetime, timedelta], NextStep]] = {
    PaymentState.QUEUED: _wait_in_queue,
    PaymentState.SENDING: _wait_for_answer,
    PaymentState.UNKNOWN: _find,
    PaymentState.ABSENT: _decide,
    PaymentState.ACKNOWLEDGED: _follow,
}


def _look_elsewhere(record: PaymentRecord) -> str:
    person = "customer" if record.type is TransactionType.COLLECTION else "recipient"
    return f"Look on the service's dashboard, or ask the {person}. If it does not exist, confirm that."


def _settled_at(record: PaymentRecord, grace: timedelta) -> datetime:
    return (record.ended_at or record.changed_at) + grace


def _at(at: datetime, now: datetime) -> str:
    """Return a time of UTC to the minute, by which it has come; with the date where that is another one."""
    shown = at if at.second == at.microsecond == 0 else at.replace(second=0, microsecond=0) + _MINUTE
    return f"{shown:%H:%M} UTC" if shown.date() == now.date() else f"{shown:%Y-%m-%d %H:%M} UTC"
