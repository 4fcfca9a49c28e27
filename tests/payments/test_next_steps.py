"""The next step for people: it fits the reason, says when, and has the whole command line."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.payments.records.next_steps import NOTE, RECONCILE, next_step, unclaimed_step
from mobilemoney_async.payments.records.reasons import PaymentCause
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState, UnclaimedTransaction

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=10)
CONFIRM = ("payments", "confirm-absent", "order 1", *NOTE)
AGAIN = "A reason. Reconcile again {when}. If it stays so, ask the service."
NOT_SHOWN = "Two listings have not shown it, explained transactions aside."
ELSEWHERE = "Look on the service's dashboard, or ask the customer. If it does not exist, confirm that."


def record(state: PaymentState, **changes: Any) -> PaymentRecord:
    """Return a payment that was sent a minute before noon, in vain until then."""
    values: dict[str, Any] = {"type": TransactionType.COLLECTION, "phone_number": "+255780000789"}
    values |= {"amount": Decimal(1), "attempt": 1, "created_at": NOON, "changed_at": NOON, "ended_at": NOON}
    return PaymentRecord(key="order 1", state=state, **(values | changes))


def unknown(cause: PaymentCause | None, **changes: Any) -> PaymentRecord:
    return record(PaymentState.UNKNOWN, cause=cause, reason=None if cause is None else "a reason", **changes)


def test_an_unknown_payment_within_the_grace_period_is_looked_for_again_after_it() -> None:
    """Also right after reconcile: not "run reconcile", but when; with the grace period of the store."""
    new = next_step(unknown(None), NOON)
    said = (
        "Look for it in the service's list. That may show it until 12:02 UTC. No look has ended since its request did."
    )
    assert new.text == said
    assert (
        next_step(unknown(None), LATER).text
        == "Look for it in the service's list. No look has ended since its request did."
    )
    for cause in (PaymentCause.IN_GRACE, PaymentCause.NO_LATER):
        looked_for = unknown(cause, looked_at=NOON, next_look_at=NOON)
        step = next_step(looked_for, NOON + timedelta(seconds=5))
        assert step.text == "The list may show it until 12:02 UTC. Reconcile again at 12:02 UTC."
        assert step.commands == (RECONCILE,)
        longer = next_step(looked_for, NOON, grace=timedelta(hours=13)).text
        assert longer.endswith("Reconcile again at 2026-11-24 01:00 UTC.")
    assert "12:03 UTC" in next_step(unknown(None, ended_at=NOON + timedelta(microseconds=1)), NOON).text


@pytest.mark.parametrize(
    ("cause", "looked", "said", "commands"),
    [
        (
            None,
            False,
            "The pages of its time have not shown it, and a whole listing decides. Reconcile again {when}.",
            (RECONCILE,),
        ),
        (None, True, "One listing has not shown it, and a second one decides. Reconcile again {when}.", (RECONCILE,)),
        (
            PaymentCause.IN_GRACE,
            True,
            AGAIN,
            (RECONCILE,),
        ),
        (
            PaymentCause.NO_LATER,
            True,
            f"A reason. Reconcile again {{when}}, or 120 s after the next collection. Or decide. {ELSEWHERE}",
            (RECONCILE, CONFIRM),
        ),
        *(
            (PaymentCause(cause), True, f"A reason. {ELSEWHERE}", (CONFIRM,))
            for cause in ("NO_EARLIER", "TOO_OLD", "HIDDEN", "ALTERED")
        ),
        *(
            (
                PaymentCause(cause),
                False,
                AGAIN,
                (RECONCILE,),
            )
            for cause in ("NOT_WHOLE", "OTHER_DAYS", "UNREADABLE", "UNTIMED")
        ),
    ],
)
def test_the_step_fits_the_reason(
    cause: PaymentCause | None, looked: bool, said: str, commands: tuple[tuple[str, ...], ...]
) -> None:
    """It is reconcile only where that may help, and never before reconcile would look."""
    due = unknown(cause, looked_at=NOON if looked else None, next_look_at=NOON)
    assert next_step(due, LATER).text == said.format(when="now")
    assert next_step(due, LATER).commands == commands
    early = unknown(cause, looked_at=NOON if looked else None, next_look_at=LATER + timedelta(minutes=5))
    assert next_step(early, LATER).text == said.format(when="at 12:15 UTC")


def test_a_payment_that_may_be_a_transaction_is_identified_or_the_transaction_explained() -> None:
    """Each candidate has its command lines: a word about the payment alone would change no transaction."""
    step = next_step(unknown(PaymentCause.CANDIDATES, candidates=("tx-1", "tx-2")), NOON)
    identify = (("payments", "identify", "order 1", each, *NOTE) for each in ("tx-1", "tx-2"))
    explain = (("payments", "explain", each, *NOTE) for each in ("tx-1", "tx-2"))
    assert step.commands == (*identify, *explain)
    assert step.text.startswith("It may be one of several transactions.")


@pytest.mark.parametrize(
    ("given", "said", "commands"),
    [
        (record(PaymentState.SENDING, stale_at=LATER), "It is being sent: wait until 12:10 UTC.", ()),
        (
            record(PaymentState.SENDING, stale_at=NOON),
            "Its sender seems to have died. Look for it in the service's list.",
            (RECONCILE,),
        ),
        (
            record(PaymentState.ABSENT),
            f"{NOT_SHOWN} {ELSEWHERE}",
            (CONFIRM,),
        ),
        (
            record(PaymentState.ABSENT, type=TransactionType.DISBURSEMENT),
            f"{NOT_SHOWN} {ELSEWHERE.replace('customer', 'recipient')}",
            (CONFIRM,),
        ),
        (
            record(PaymentState.ACKNOWLEDGED, transaction_id="tx-1"),
            "It exists. Follow it to its final state.",
            (("watch", "tx-1"),),
        ),
        (
            record(PaymentState.ACKNOWLEDGED, transaction_id="tx-1", sent_at=NOON - timedelta(days=2)),
            "It was sent at 2026-11-21 12:00 UTC, and has shown no final state. Follow it; the audit of its day ",
            (("watch", "tx-1"), ("payments", "audit", "--from", "2026-11-21")),
        ),
        (
            record(
                PaymentState.ACKNOWLEDGED,
                transaction_id="tx-1",
                cause=PaymentCause.OTHER_PAYMENT,
                reason="it is another",
            ),
            "Its end is not believed: it is another. Ask the service, then follow it again, or take its end as it is",
            (("watch", "tx-1"), ("payments", "recover", "order 1=tx-1", *NOTE)),
        ),
        (
            record(
                PaymentState.ACKNOWLEDGED, transaction_id="tx-1", cause=PaymentCause.OTHER_MERCHANT, reason="it is odd"
            ),
            "Its end is not believed: it is odd. Ask the service, then follow it again.",
            (("watch", "tx-1"),),
        ),
        (
            record(PaymentState.RELEASED),
            "Someone has confirmed that it does not exist. Nothing sends it again by itself: create it under its key, ",
            (("collect", "PHONE", "1", "--key", "order 1"),),
        ),
        (
            record(PaymentState.RELEASED, has_extra=True),
            "Someone has confirmed that it does not exist. Nothing sends it again by itself: let your program create",
            (),
        ),
        (
            record(PaymentState.QUEUED),
            "A dispatcher sends it: wait, or cancel it.",
            (("payments", "cancel", "order 1", *NOTE),),
        ),
        (
            record(PaymentState.QUEUED, not_before=LATER, cause=PaymentCause.WAITS, reason="no connection"),
            "It could not be sent: no connection. A dispatcher sends it from 12:10 UTC on: wait, or cancel it.",
            (("payments", "cancel", "order 1", *NOTE),),
        ),
        (
            record(PaymentState.QUEUED, not_before=LATER, cause=PaymentCause.HELD, reason="tx-1 is alike"),
            "It could not be sent: tx-1 is alike. Decide first what holds it: a transaction may be this payment",
            (("payments", "unclaimed"), ("payments", "cancel", "order 1", *NOTE)),
        ),
        (
            record(PaymentState.REFUSED, is_certain=False),
            "Refused as far as is known: use its key again, which looks in the list first, and then sends.",
            (),
        ),
        (
            record(PaymentState.REFUSED, is_certain=False, cause=PaymentCause.UNCOMPARED, reason="late"),
            "Refused as far as is known: late, so from 12:02 UTC on use its key again, which looks in the list first",
            (),
        ),
    ],
)
def test_other_states_have_their_steps(given: PaymentRecord, said: str, commands: tuple[tuple[str, ...], ...]) -> None:
    step = next_step(given, NOON)
    assert step.text.startswith(said) and step.commands == commands


@pytest.mark.parametrize("state", PaymentState)
@pytest.mark.parametrize("cause", [None, *PaymentCause])
def test_every_state_and_cause_has_a_step(state: PaymentState, cause: PaymentCause | None) -> None:
    """In whole sentences, whatever is missing."""
    step = next_step(record(state, cause=cause, reason="a reason" if cause else None), LATER)
    assert re.fullmatch(r"[A-Z].*[.]", step.text) and "None" not in step.text


def test_a_transaction_that_no_payment_claims_is_explained_or_imported() -> None:
    """With the payment that it may be a second time."""
    values: dict[str, Any] = {"type": TransactionType.COLLECTION, "amount": Decimal(1), "phone_number": "+25578…789"}
    values |= {"status": TransactionStatus.SUCCESS, "created_at": NOON, "first_seen_at": NOON}
    twice = unclaimed_step(UnclaimedTransaction(transaction_id="tx-1", fits_key="order-1", **values))
    assert twice.text.startswith("It may be the payment order-1, made twice.")
    explain = ("payments", "explain", "tx-1", *NOTE)
    assert twice.commands == (("payments", "recover", "order-1=tx-1", *NOTE), explain)
    forgotten = unclaimed_step(UnclaimedTransaction(transaction_id="tx-1", is_gap=True, **values))
    assert forgotten.commands == (("payments", "recover", "KEY=tx-1", *NOTE), explain)
