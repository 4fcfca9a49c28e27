"""State machine of payments: every state and every event, and the cases in which money may be sent again."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import attrs
import pytest

from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.payments.records.account_status import AccountState, AccountStatus
from mobilemoney_async.payments.records.record import (
    REUSABLE,
    TRANSITIONS,
    UNIDENTIFIED,
    Clearance,
    HistoryEntry,
    PaymentEvent,
    PaymentRecord,
    PaymentRequest,
    PaymentState,
    UnclaimedTransaction,
    clearance,
    is_stale,
    move,
    withdrawal,
)
from tests.support.fakes import NOON, PHONE_NUMBER

# A row for each state; an event that is not in a row contradicts it.
ROWS = {
    "QUEUED": "REQUEUE-QUEUED SEND-SENDING CANCEL-CANCELLED WITHDRAW-NOT_SENT ADOPT-ACKNOWLEDGED DOUBT-UNKNOWN",
    "CANCELLED": "REQUEUE-CANCELLED ADOPT-ACKNOWLEDGED",
    "SENDING": "REQUEUE-QUEUED ACKNOWLEDGE-ACKNOWLEDGED REFUSE-REFUSED FAIL_UNSENT-NOT_SENT LOSE-UNKNOWN",
    "UNKNOWN": "REQUEUE-QUEUED ACKNOWLEDGE-ACKNOWLEDGED REFUSE-REFUSED FAIL_UNSENT-NOT_SENT LOSE-UNKNOWN "
    "ADOPT-ACKNOWLEDGED MISS-ABSENT CONFIRM_ABSENT-RELEASED",
    "ABSENT": "REQUEUE-QUEUED ACKNOWLEDGE-ACKNOWLEDGED REFUSE-REFUSED FAIL_UNSENT-NOT_SENT LOSE-UNKNOWN "
    "ADOPT-ACKNOWLEDGED CONFIRM_ABSENT-RELEASED SEND-SENDING",
    "NOT_SENT": "SEND-SENDING FAIL_UNSENT-NOT_SENT ADOPT-ACKNOWLEDGED ENQUEUE-QUEUED",
    "REFUSED": "ENQUEUE-QUEUED SEND-SENDING CANCEL-CANCELLED REFUSE-REFUSED ADOPT-ACKNOWLEDGED DOUBT-UNKNOWN",
    "RELEASED": "SEND-SENDING ACKNOWLEDGE-ACKNOWLEDGED LOSE-UNKNOWN ADOPT-ACKNOWLEDGED DOUBT-UNKNOWN",
    # Only where a row of the list was taken for it.
    "ACKNOWLEDGED": "ACKNOWLEDGE-ACKNOWLEDGED FINISH-FINAL",
    "FINAL": "ACKNOWLEDGE-ACKNOWLEDGED",
}
TABLE = {
    PaymentState[state]: {
        PaymentEvent[event]: PaymentState[to] for event, to in (each.split("-") for each in row.split())
    }
    for state, row in ROWS.items()
}


def record(state: PaymentState, **changes: Any) -> PaymentRecord:
    """Return a collection's record."""
    made = PaymentRecord(
        key="order-1",
        type=TransactionType.COLLECTION,
        phone_number=PHONE_NUMBER,
        amount=Decimal(1000),
        state=state,
        attempt=1,
        created_at=NOON,
        changed_at=NOON,
        sent_at=NOON,
        stale_at=NOON + timedelta(seconds=35),
        walks=2 if state is PaymentState.ABSENT else 0,
    )
    return attrs.evolve(made, **changes)


@pytest.mark.parametrize(("state", "event"), [*product(PaymentState, PaymentEvent)])
def test_every_state_and_event(state: PaymentState, event: PaymentEvent) -> None:
    """A payment moves as the table says, and any event that is not in it is a contradiction."""
    assert move(state, event) is TABLE[state].get(event)


def test_the_table_has_no_other_rows() -> None:
    assert len(TRANSITIONS) == sum(len(row) for row in TABLE.values())


def test_what_exists_is_never_taken_back() -> None:
    """No event leads from a payment that exists to one that may be sent again."""
    reached, left = set[PaymentState](), [PaymentState.ACKNOWLEDGED]
    while left:
        state = left.pop()
        reached.add(state)
        left += [after for (before, _), after in TRANSITIONS.items() if before is state and after not in reached]
    assert reached == {PaymentState.ACKNOWLEDGED, PaymentState.FINAL}


def test_every_state_is_one_of_three_kinds() -> None:
    """A payment exists, or does not, or is unknown; a state is never two of these. A cancelled one never will exist."""
    exists = {PaymentState.ACKNOWLEDGED, PaymentState.FINAL}
    assert not UNIDENTIFIED & REUSABLE
    assert UNIDENTIFIED | REUSABLE | exists | {PaymentState.CANCELLED} == set(PaymentState)


def test_money_is_sent_only_where_it_does_not_exist_as_far_as_is_known() -> None:
    """The event that sends is open to reusable keys, and to absent ones, which `clearance` guards."""
    senders = {state for (state, event) in TRANSITIONS if event is PaymentEvent.SEND}
    assert senders == REUSABLE | {PaymentState.ABSENT}


def test_nothing_is_released_without_a_confirmation() -> None:
    """Only a confirmation makes a payment released."""
    assert {event for (_, event), after in TRANSITIONS.items() if after is PaymentState.RELEASED} == {
        PaymentEvent.CONFIRM_ABSENT
    }


GRACE = 120.0
DISBURSEMENT = {"type": TransactionType.DISBURSEMENT}
SOFT = {"is_certain": False, "ended_at": NOON}
JUST_LOOKED = {"looked_at": NOON + timedelta(seconds=190)}
LOOKED_EARLIER = {"looked_at": NOON + timedelta(seconds=10)}
LOOKED_AHEAD = {"looked_at": NOON + timedelta(days=1)}  # by a clock that was set right since
CONTROLLED = {"is_controlled": True}
QUEUED, REFUSED, RELEASED, ABSENT = (
    PaymentState.QUEUED,
    PaymentState.REFUSED,
    PaymentState.RELEASED,
    PaymentState.ABSENT,
)


@pytest.mark.parametrize(
    ("state", "changes", "expected"),
    [
        (PaymentState.NOT_SENT, {}, Clearance.SEND),
        (REFUSED, {}, Clearance.SEND),
        (QUEUED, {}, Clearance.SEND),
        # Queued again after a refusal: as the refusal itself.
        (QUEUED, SOFT, Clearance.LOOK),
        (QUEUED, {**SOFT, **LOOKED_EARLIER, **CONTROLLED}, Clearance.LOOK),
        (QUEUED, {**SOFT, **JUST_LOOKED, **CONTROLLED}, Clearance.SEND),
        (QUEUED, {**SOFT, **JUST_LOOKED, "walks": 1, **DISBURSEMENT}, Clearance.DOUBT),
        (PaymentState.CANCELLED, {**JUST_LOOKED, **CONTROLLED}, Clearance.NEVER),
        # Refused without a code of the contract: only after a look that passed its control, or after the grace period.
        (REFUSED, SOFT, Clearance.LOOK),
        (REFUSED, {**SOFT, **LOOKED_EARLIER, **CONTROLLED}, Clearance.LOOK),
        (REFUSED, {**SOFT, **JUST_LOOKED, **CONTROLLED}, Clearance.SEND),
        (REFUSED, {**SOFT, **JUST_LOOKED}, Clearance.LOOK),
        (REFUSED, {**SOFT, **JUST_LOOKED, "ended_at": NOON + timedelta(seconds=180)}, Clearance.WAIT),
        (REFUSED, {**SOFT, **JUST_LOOKED, "walks": 1}, Clearance.SEND),
        (REFUSED, {**SOFT, **JUST_LOOKED, "walks": 1, **DISBURSEMENT}, Clearance.DOUBT),
        (REFUSED, {**SOFT, **JUST_LOOKED, **CONTROLLED, **DISBURSEMENT}, Clearance.SEND),
        # An operator decided: one more look, without a control.
        (RELEASED, {}, Clearance.LOOK),
        (RELEASED, LOOKED_EARLIER, Clearance.LOOK),
        (RELEASED, JUST_LOOKED, Clearance.SEND),
        (RELEASED, LOOKED_AHEAD, Clearance.LOOK),
        # A machine decides, of collections only, and only after a look that passed its control.
        (ABSENT, {}, Clearance.LOOK),
        (ABSENT, JUST_LOOKED, Clearance.LOOK),
        (ABSENT, {**JUST_LOOKED, **CONTROLLED}, Clearance.SEND),
        (ABSENT, {**LOOKED_EARLIER, **CONTROLLED}, Clearance.LOOK),
        (ABSENT, {**LOOKED_AHEAD, **CONTROLLED}, Clearance.LOOK),
        (ABSENT, {**JUST_LOOKED, **CONTROLLED, **DISBURSEMENT}, Clearance.NEVER),
        (ABSENT, {**JUST_LOOKED, **CONTROLLED, "walks": 1}, Clearance.NEVER),
        *((each, {"candidates": ("tx-1",), **JUST_LOOKED, **CONTROLLED}, Clearance.NEVER) for each in PaymentState),
        (PaymentState.SENDING, {**JUST_LOOKED, **CONTROLLED}, Clearance.NEVER),
        (PaymentState.UNKNOWN, {**JUST_LOOKED, **CONTROLLED}, Clearance.NEVER),
        (PaymentState.ACKNOWLEDGED, {**JUST_LOOKED, **CONTROLLED}, Clearance.NEVER),
        (PaymentState.FINAL, {**JUST_LOOKED, **CONTROLLED}, Clearance.NEVER),
    ],
)
def test_which_key_may_be_sent_again(state: PaymentState, changes: dict[str, Any], expected: Clearance) -> None:
    """A key is sent again at once only if its payment certainly does not exist; otherwise the list is asked first."""
    now = NOON + timedelta(seconds=200)
    assert clearance(record(state, **changes), now, absent_suffices=True, grace=GRACE) is expected


def test_an_absent_payment_is_sent_again_by_machine_only_where_the_merchant_allows_it() -> None:
    looked = record(ABSENT, **JUST_LOOKED, **CONTROLLED)
    assert clearance(looked, NOON, absent_suffices=False, grace=GRACE) is Clearance.NEVER


def test_a_look_counts_for_the_grace_period_or_half_a_minute() -> None:
    """To the microsecond; and where nothing but the look was compared, it must have come after the grace period."""
    tick = timedelta(microseconds=1)
    looked = record(REFUSED, **SOFT, **CONTROLLED, looked_at=NOON)
    for grace, valid in ((120.0, 120), (5.0, 30)):
        until = NOON + timedelta(seconds=valid)
        assert clearance(looked, until, grace=grace) is Clearance.SEND
        assert clearance(looked, until + tick, grace=grace) is Clearance.LOOK
    over_at, early = NOON + timedelta(seconds=GRACE), record(REFUSED, **SOFT, looked_at=NOON + timedelta(seconds=100))
    assert clearance(early, over_at - tick, grace=GRACE) is Clearance.WAIT
    assert clearance(early, over_at, grace=GRACE) is Clearance.LOOK


def test_a_look_at_the_end_of_the_calendar_raises_nothing() -> None:
    """A row may have been edited."""
    far = datetime.max.replace(tzinfo=UTC)
    looked = record(REFUSED, **SOFT, looked_at=far)
    assert clearance(looked, NOON, grace=GRACE) is Clearance.LOOK
    assert clearance(attrs.evolve(looked, looked_at=NOON, ended_at=far), NOON, grace=GRACE) is Clearance.WAIT


def test_under_the_lock_of_a_row_the_age_of_a_look_does_not_matter() -> None:
    """The caller has judged it before: only what another process may have changed counts."""
    looked = record(ABSENT, **LOOKED_EARLIER, **CONTROLLED)
    assert clearance(looked, None) is Clearance.SEND
    assert clearance(record(REFUSED, **SOFT), None) is Clearance.LOOK
    assert clearance(record(REFUSED, **SOFT, **LOOKED_EARLIER), None) is Clearance.LOOK


@pytest.mark.parametrize("state", PaymentState)
def test_only_a_payment_that_is_being_sent_grows_stale(state: PaymentState) -> None:
    """A payment that is being sent counts as unknown from its time on, not before; no other ever does."""
    made = record(state)
    assert made.stale_at is not None
    assert not is_stale(made, made.stale_at - timedelta(microseconds=1))
    assert is_stale(made, made.stale_at) is (state is PaymentState.SENDING)
    assert not is_stale(record(state, stale_at=None), NOON + timedelta(days=365))


@pytest.mark.parametrize("state", PaymentState)
def test_a_dispatcher_sends_only_what_is_queued_and_not_late(state: PaymentState) -> None:
    """A caller's create sends the rest as well, but nothing that has grown late since it began."""
    moment, kept = timedelta(seconds=1), record(state, not_after=NOON)
    is_queued = state is PaymentState.QUEUED
    for now in (NOON - moment, NOON, NOON + moment):
        assert (withdrawal(record(state), now, asked_at=None) is None) is is_queued
        assert (withdrawal(kept, now, asked_at=None) is None) is (is_queued and now < NOON)
        assert (withdrawal(kept, now, asked_at=NOON - moment) is None) is (not is_queued or now < NOON)
        assert withdrawal(kept, now, asked_at=NOON) is None


@pytest.mark.parametrize("state", PaymentState)
def test_a_payment_is_late_if_it_was_not_sent_before_its_end(state: PaymentState) -> None:
    """One that was sent, or was taken back before, is not."""
    moment, is_unsent = timedelta(seconds=1), state is PaymentState.NOT_SENT
    assert not record(state).is_late
    assert not record(state, not_after=NOON + moment).is_late
    assert record(state, not_after=NOON).is_late is record(state, not_after=NOON - moment).is_late is is_unsent


def test_a_record_says_what_it_is() -> None:
    """`is_unresolved`, `is_ambiguous` and `is_final` follow from the state."""
    assert [state for state in PaymentState if record(state).is_unresolved] == [
        PaymentState.SENDING,
        PaymentState.UNKNOWN,
        PaymentState.ABSENT,
    ]
    assert [state for state in PaymentState if record(state).is_final] == [PaymentState.FINAL]
    assert not record(PaymentState.UNKNOWN).is_ambiguous
    assert record(PaymentState.UNKNOWN, candidates=("tx-1", "tx-2")).is_ambiguous
    assert not record(PaymentState.ACKNOWLEDGED, candidates=("tx-1",)).is_ambiguous


def test_no_whole_phone_number_is_shown() -> None:
    """Neither an order nor a record shows a whole phone number in its repr."""
    order = PaymentRequest(key="order-1", type=TransactionType.COLLECTION, phone_number=PHONE_NUMBER, amount="1000")
    assert PHONE_NUMBER not in repr(order)
    assert PHONE_NUMBER not in repr(record(PaymentState.UNKNOWN))


def test_no_whole_phone_number_of_a_note_is_shown() -> None:
    """What a person has written is redacted in a repr; the attribute has it whole."""
    note = f"Asha called {PHONE_NUMBER}"
    entry = HistoryEntry(at=NOON, what="confirmed", source="person", detail=note)
    line = UnclaimedTransaction(
        transaction_id="tx-1",
        type=TransactionType.COLLECTION,
        amount=Decimal(1000),
        phone_number="",
        status=TransactionStatus.SUCCESS,
        created_at=None,
        first_seen_at=NOON,
        note=note,
    )
    others: dict[str, Any] = dict.fromkeys(each.name for each in attrs.fields(AccountStatus))
    status = AccountStatus(**{**others, "state": AccountState.SUSPENDED, "note": note})
    for each in (entry, line, status):
        assert "Asha called +" in repr(each) and PHONE_NUMBER[1:] not in repr(each)
    assert PHONE_NUMBER[1:] not in repr(attrs.evolve(entry, detail=f"called:{PHONE_NUMBER[1:]}"))
    assert "'txn-0123456789-0123456789abcdef'" in repr(attrs.evolve(entry, detail="txn-0123456789-0123456789abcdef"))
    assert entry.detail == line.note == status.note == note


def test_the_words_of_states() -> None:
    """A state prints as its word, which `payments.list` takes."""
    assert [str(state) for state in PaymentState] == [
        "QUEUED",
        "CANCELLED",
        "SENDING",
        "UNKNOWN",
        "ABSENT",
        "NOT_SENT",
        "REFUSED",
        "RELEASED",
        "ACKNOWLEDGED",
        "FINAL",
    ]


def test_a_state_is_read_in_either_case_and_nothing_else_is_one() -> None:
    """As it is typed on a command line."""
    assert PaymentState("queued") is PaymentState("QUEUED") is PaymentState.QUEUED
    for other in ("PAID", "", 7):
        with pytest.raises(ValueError, match="not a valid PaymentState"):
            PaymentState(other)  # type: ignore[arg-type]
