"""Records of payments and their state machine. Pure: the store only keeps the decisions made here.

    (none) ──enqueue──▶ QUEUED ──send──▶ SENDING
                          ├──cancel──▶ CANCELLED
                          └──withdraw──▶ NOT_SENT
    (none) ──send──▶ SENDING ──answer──▶ ACKNOWLEDGED ──final state seen──▶ FINAL
                       │  └──no usable answer──▶ UNKNOWN ──found in the list──▶ ACKNOWLEDGED
                       │                            └──two listings without it──▶ ABSENT
                       ├──refused──▶ REFUSED ──send──▶ SENDING
                       └──provably not sent──▶ NOT_SENT ──send──▶ SENDING; of a queued payment: QUEUED
    UNKNOWN, ABSENT ──confirmed absent──▶ RELEASED ──send──▶ SENDING
    REFUSED, RELEASED ──a match in the list──▶ UNKNOWN
    ACKNOWLEDGED, FINAL ──our own acknowledgement, where the list's row was taken for it──▶ ACKNOWLEDGED

Invariants: money is sent only by the event SEND. `clearance` allows it: at once where the payment certainly does not
exist, and otherwise only after a look in the list. A known result is never taken back: an event that does not fit is a
contradiction, which is kept in the payment's history and raised.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal

import attrs

from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.payments.records.reasons import KEEPS, PaymentCause
from mobilemoney_async.text import id_repr, mask_phone_number, note_repr, text_repr


class PaymentState(enum.StrEnum):
    """State of a payment in the store."""

    QUEUED = "QUEUED"
    """Recorded, and to be sent by a dispatcher."""
    CANCELLED = "CANCELLED"
    """Taken out of the queue. Its key is used up."""
    SENDING = "SENDING"
    """The request may be on its way. If its process dies, the result is unknown."""
    UNKNOWN = "UNKNOWN"
    """Sent, without a usable answer: it may or may not exist."""
    ABSENT = "ABSENT"
    """Unknown, and two full listings after the grace period have not shown it."""
    NOT_SENT = "NOT_SENT"
    """Provably not sent. The key may be used again."""
    REFUSED = "REFUSED"
    """Refused by the service. The key may be used again: at once after a code of the contract, else after a look."""
    RELEASED = "RELEASED"
    """Confirmed absent by someone. The key may be used again, after a last look in the list."""
    ACKNOWLEDGED = "ACKNOWLEDGED"
    """It exists, and its transaction is known."""
    FINAL = "FINAL"
    """Its transaction's final state was seen."""

    @classmethod
    def _missing_(cls, value: object) -> PaymentState | None:
        # In either case: it is typed on command lines.
        return next((each for each in cls if isinstance(value, str) and each.value == value.upper()), None)


class PaymentEvent(enum.Enum):
    """Event of a payment; the value is its name in the history."""

    ENQUEUE = "queued"
    CANCEL = "cancelled"
    WITHDRAW = "withdrawn"
    SEND = "sent"
    ACKNOWLEDGE = "acknowledged"
    REFUSE = "refused"
    FAIL_UNSENT = "not_sent"
    REQUEUE = "put_back"
    LOSE = "unknown"
    ADOPT = "adopted"
    MISS = "absent"
    CONFIRM_ABSENT = "confirmed"
    DOUBT = "doubted"
    FINISH = "final"


class Source(enum.StrEnum):
    """Source of an event."""

    CALLER = "caller"
    ANSWER = "answer"
    POLL = "poll"
    RECONCILE = "reconcile"
    PERSON = "person"


UNIDENTIFIED: frozenset[PaymentState] = frozenset({PaymentState.SENDING, PaymentState.UNKNOWN, PaymentState.ABSENT})
"""States of a payment that may exist, as an unknown transaction; see `stops_kind`."""

CLOSED: frozenset[PaymentState] = (
    frozenset(PaymentState) - UNIDENTIFIED - {PaymentState.QUEUED, PaymentState.ACKNOWLEDGED}
)
"""States of a payment of which nothing is under way, or still to be found out."""

REUSABLE: frozenset[PaymentState] = frozenset(
    {PaymentState.QUEUED, PaymentState.NOT_SENT, PaymentState.REFUSED, PaymentState.RELEASED}
)
"""States of a payment that does not exist, as far as is known: see `clearance`."""

_LOOKED_FOR = frozenset({PaymentState.REFUSED, PaymentState.QUEUED})

LISTINGS = 2
"""Full listings after the grace period that must miss a payment before it is absent."""

# Seconds for which a look in the list is valid at least.
_SHORTEST_LOOK = 30.0

_S, _E = PaymentState, PaymentEvent
# What the end of a request makes of its payment.
_RESULTS: Mapping[PaymentEvent, PaymentState] = {
    _E.ACKNOWLEDGE: _S.ACKNOWLEDGED,
    _E.REFUSE: _S.REFUSED,
    _E.FAIL_UNSENT: _S.NOT_SENT,
    _E.REQUEUE: _S.QUEUED,
    _E.LOSE: _S.UNKNOWN,
}
TRANSITIONS: Mapping[tuple[PaymentState, PaymentEvent], PaymentState] = {
    **{(state, _E.SEND): _S.SENDING for state in REUSABLE},
    (_S.ABSENT, _E.SEND): _S.SENDING,  # of collections, if the merchant has allowed it in general: `clearance`
    (_S.NOT_SENT, _E.ENQUEUE): _S.QUEUED,
    (_S.REFUSED, _E.ENQUEUE): _S.QUEUED,
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.REFUSED, _E.CANCEL): _S.CANCELLED,  # its payout is made under another key
    (_S.QUEUED, _E.WITHDRAW): _S.NOT_SENT,
    # Counted as dead, or absent from a list that lags, a request may still end: what missed it proves nothing then.
    **{(state, event): target for state in UNIDENTIFIED for event, target in _RESULTS.items()},
    # Recorded again, since the answer of the database was lost.
    (_S.REFUSED, _E.REFUSE): _S.REFUSED,
    (_S.NOT_SENT, _E.FAIL_UNSENT): _S.NOT_SENT,
    (_S.QUEUED, _E.REQUEUE): _S.QUEUED,
    (_S.CANCELLED, _E.REQUEUE): _S.CANCELLED,
    (_S.UNKNOWN, _E.MISS): _S.ABSENT,
    **{(state, _E.CONFIRM_ABSENT): _S.RELEASED for state in (_S.UNKNOWN, _S.ABSENT)},
    # Before the key is used again, an answer counts more than a confirmation.
    (_S.RELEASED, _E.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.RELEASED, _E.LOSE): _S.UNKNOWN,  # only of one that names a transaction, see `rows.problem_of`
    # It counts more than a row of the list, too: only where the transaction was adopted, see `rows.problem_of`.
    **{(state, _E.ACKNOWLEDGE): _S.ACKNOWLEDGED for state in (_S.ACKNOWLEDGED, _S.FINAL)},
    # The list shows a transaction that it may be: of a refusal, only if that had no code of the contract.
    **{(state, _E.DOUBT): _S.UNKNOWN for state in (_S.RELEASED, _S.REFUSED, _S.QUEUED)},
    # The list shows its transaction; of payments that do not exist as far as is known, an operator says so.
    **{(state, _E.ADOPT): _S.ACKNOWLEDGED for state in (_S.UNKNOWN, _S.ABSENT, _S.CANCELLED, *REUSABLE)},
    (_S.ACKNOWLEDGED, _E.FINISH): _S.FINAL,
}
"""Every move. A pair that is not here contradicts what is known."""


@attrs.frozen(kw_only=True)
class PaymentRequest:
    """Payment that a caller asks for, in the form that is compared with earlier requests under its key.

    Attributes:
        amount: Whole TZS, as digits.
        extra_digest: Of the extra fields of the request; empty where there are none.
        external_id: The one among the extra fields, to find the payment by.
    """

    key: str
    type: TransactionType
    phone_number: str = attrs.field(repr=mask_phone_number)
    amount: str
    extra_digest: str = ""
    external_id: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class HistoryEntry(Data):
    """Entry in the history of a payment.

    Attributes:
        at: Its time.
        what: ``queued``, ``cancelled``, ``withdrawn`` (from the queue; the key may be used again), ``sent``,
            ``acknowledged``, ``refused``, ``not_sent``, ``put_back`` (into the queue: not sent, or refused for a reason
            that is not the payment's), ``unknown``, ``adopted``, ``absent``, ``confirmed``, ``doubted``, ``final``,
            ``explained`` (someone keeps its first final state), ``ambiguous``, or ``contradiction``.
        source: ``caller``, ``answer``, ``poll``, ``reconcile`` or ``person``.
        detail: A transaction id, a final status, an error, or someone's note.
    """

    at: datetime
    what: str
    source: str
    detail: str | None = attrs.field(default=None, repr=note_repr)


@attrs.frozen(kw_only=True)
class PaymentRecord(Data):
    """Record of one payment in the store.

    Attributes:
        key: Its idempotency key.
        type: Collection or disbursement.
        phone_number: The customer's or recipient's number.
        amount: Whole TZS.
        state: Its state.
        attempt: The number of times that it was sent or about to be, from 1; 0 before the first time.
        created_at: When it was first recorded.
        changed_at: When it was last changed.
        sent_at: When it was last sent.
        ended_at: When that request ended, or was given up as lost; None while it is on its way, and where someone has
            named a transaction of another time.
        stale_at: The time from which a payment that is being sent counts as unknown.
        transaction_id: The service's transaction, once known.
        reference: The service's reference, once known.
        external_id: Your reference: the `external_id` that was sent among the ``extra`` fields, or that the final
            transaction shows; None if there is none.
        has_extra: Whether it was asked for with ``extra`` fields; False if they are erased or unknown.
        status: The transaction's state as last recorded, or None.
        transaction: The transaction in its final state, or None.
        is_adopted: Whether its transaction was found in the service's list, rather than acknowledged to us.
        candidates: Of an unknown payment: transactions that it may be, if there are several, or one that is not
            certain. Someone has to decide: see `identify`.
        walks: The number of full listings after the grace period that have not shown it.
        is_certain: False for a refusal without a code of the contract: the payment is refused as far as is known.
        reason: Why an unknown payment could not be called absent, why a queued one was not sent yet, or why the final
            state of an acknowledged one is not believed; or None. A sentence for people: programs compare `cause`.
        cause: The cause of that reason, or None.
        looked_at: When the last full listing ended that was begun after its request and has not shown it, or None.
        is_controlled: Whether that listing showed your payments from before and after it, as it should.
        next_look_at: The time from which `payments.reconcile` looks for it again; None if it does so at any time, or if
            the state leaves nothing to look for.
        not_before: Of a queued payment: the time before which it is not sent, yours or, after a failure, that of the
            dispatcher; or None.
        not_after: Of a payment that was queued: the time from which it is not sent any more, or None.
        priority: Of a queued payment: higher ones are sent first.
        error: Its last error, redacted, or None.
        history: Its history, oldest first; filled by ``payments.get`` only.
    """

    key: str
    type: TransactionType
    phone_number: str = attrs.field(repr=mask_phone_number)
    amount: Decimal
    state: PaymentState
    attempt: int
    created_at: datetime
    changed_at: datetime
    sent_at: datetime | None = None
    ended_at: datetime | None = None
    stale_at: datetime | None = None
    transaction_id: str | None = attrs.field(default=None, repr=id_repr)
    reference: str | None = attrs.field(default=None, repr=id_repr)
    status: TransactionStatus | None = None
    transaction: Transaction | None = None
    is_adopted: bool = False
    candidates: tuple[str, ...] = ()
    walks: int = 0
    is_certain: bool = True
    reason: str | None = None
    cause: PaymentCause | None = None
    looked_at: datetime | None = None
    is_controlled: bool = False
    next_look_at: datetime | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    priority: int = 0
    error: str | None = None
    external_id: str | None = attrs.field(default=None, repr=text_repr)
    has_extra: bool = False
    history: tuple[HistoryEntry, ...] = ()

    @property
    def is_unresolved(self) -> bool:
        """True if its result is unknown, or a request may be on its way."""
        return self.state in UNIDENTIFIED

    @property
    def is_ambiguous(self) -> bool:
        """True if it may be one of several transactions, or one that is not certain."""
        return self.state in UNIDENTIFIED and bool(self.candidates)

    @property
    def is_contradicted(self) -> bool:
        """True if the service shows its transaction's final state otherwise than it should be: see `reason`."""
        return self.state in {PaymentState.ACKNOWLEDGED, PaymentState.FINAL} and self.cause is not None

    @property
    def is_kept(self) -> bool:
        """True if it stays in the queue, perhaps until someone decides: see `reason`."""
        return self.state is PaymentState.QUEUED and self.cause in KEEPS

    @property
    def is_late(self) -> bool:
        """True if it was not sent, and left the queue only after its `not_after`."""
        is_over = self.not_after is not None and self.not_after <= self.changed_at
        return is_over and self.state is PaymentState.NOT_SENT

    @property
    def is_final(self) -> bool:
        """True once its transaction's final state was seen."""
        return self.state is PaymentState.FINAL


OPEN, EXPLAINED, CLAIMED = "open", "explained", "claimed"
"""States of a transaction that no payment claimed when it was judged."""

UNREADABLE = "unreadable"
"""Type of a transaction of which the list shows the id and nothing else that can be read."""


@attrs.frozen(kw_only=True)
class UnclaimedTransaction(Data):
    """Transaction of the service that no payment of the store claims.

    Attributes:
        transaction_id: Its id.
        type: Collection or disbursement; ``unreadable``, with an amount of 0, while the list's row cannot be read: it
            stops no payment.
        amount: Whole TZS.
        phone_number: The customer's or recipient's number, masked.
        status: Its state, as the list last showed it.
        created_at: When the service took it, on the service's clock; None if the list does not show a readable time.
        first_seen_at: When the list first showed it, on our clock.
        fits_key: The payment that it may be a second time, by its idempotency key; None if there is none.
        state: ``open``; ``explained`` by someone; or ``claimed`` by a payment since.
        note: The explanation, or None.
        explained_by: The name that was given with it, or None.
        is_gap: Whether it is of a time that the store has forgotten, as after a restored backup. It stops other
            payments of its kind until a payment claims it (`recover`, `identify`), or someone explains it.
    """

    transaction_id: str = attrs.field(repr=id_repr)
    type: TransactionType
    amount: Decimal
    phone_number: str
    status: TransactionStatus
    created_at: datetime | None
    first_seen_at: datetime
    fits_key: str | None = None
    state: str = OPEN
    note: str | None = attrs.field(default=None, repr=text_repr)
    explained_by: str | None = attrs.field(default=None, repr=text_repr)
    is_gap: bool = False


def stops_kind(state: PaymentState, type: TransactionType | str) -> bool:
    """Return whether a payment in a state keeps others of its kind from being sent: it may exist, unidentified.

    An absent collection does not: its customer approves each prompt.
    """
    is_absent_disbursement = state is PaymentState.ABSENT and type == TransactionType.DISBURSEMENT
    return is_absent_disbursement or state in {PaymentState.SENDING, PaymentState.UNKNOWN}


def move(state: PaymentState, event: PaymentEvent) -> PaymentState | None:
    """Return the state after an event, or None where the event contradicts the state."""
    return TRANSITIONS.get((state, event))


class Clearance(enum.Enum):
    """Answer to the question whether a key that was used may be sent again."""

    SEND = enum.auto()
    LOOK = enum.auto()
    """Only after a look in the service's list, if that does not show the payment."""
    WAIT = enum.auto()
    """Not before a look after the grace period."""
    DOUBT = enum.auto()
    """Not by machine: someone has to decide."""
    NEVER = enum.auto()
    """It exists, or may exist."""


def clearance(
    record: PaymentRecord, now: datetime | None, *, absent_suffices: bool = True, grace: float = 0.0
) -> Clearance:
    """Return whether a key that was used may be sent again; docs/evidence.md has the reasons.

    Args:
        record: The record of its payment.
        now: The time; None where the age of the last look does not matter.
        absent_suffices: Whether an absent collection may be sent without someone's confirmation.
        grace: Seconds, as of the store; a look stays valid for as long, or for half a minute.
    """
    if record.candidates:
        return Clearance.NEVER
    if record.state is PaymentState.NOT_SENT or (record.state in _LOOKED_FOR and record.is_certain):
        return Clearance.SEND
    is_collection = record.type == TransactionType.COLLECTION
    is_absent = record.state is PaymentState.ABSENT and absent_suffices and is_collection and record.walks >= LISTINGS
    if not is_absent and record.state not in {*_LOOKED_FOR, PaymentState.RELEASED}:
        return Clearance.NEVER
    if not _has_looked(record, now, grace):
        return Clearance.LOOK
    if record.is_controlled or record.state is PaymentState.RELEASED:
        return Clearance.SEND
    return Clearance.LOOK if is_absent else _clear_without_control(record, now, grace)


def _has_looked(record: PaymentRecord, now: datetime | None, grace: float) -> bool:
    if record.looked_at is None or now is None:
        return record.looked_at is not None
    # One that seems to come was made by a clock that was ahead, and is set right now: it says nothing of its age.
    return abs(now - record.looked_at) <= timedelta(seconds=max(grace, _SHORTEST_LOOK))


def _clear_without_control(record: PaymentRecord, now: datetime | None, grace: float) -> Clearance:
    """Return whether a refused payment may be sent again that a look has not shown, compared with nothing.

    Of a new merchant, or a quiet one: nothing shows how late the list is, so a look before the end of the grace period
    is not enough.
    """
    if not record.walks:
        ended_at, span = record.ended_at or record.changed_at, timedelta(seconds=grace)
        return Clearance.WAIT if now is not None and now - ended_at < span else Clearance.LOOK
    if record.type == TransactionType.COLLECTION:
        return Clearance.SEND
    if record.next_look_at is None:
        return Clearance.DOUBT
    # A later payment will show it.
    return Clearance.WAIT if now is not None and now < record.next_look_at else Clearance.LOOK


def withdrawal(record: PaymentRecord, now: datetime, *, asked_at: datetime | None) -> str | None:
    """Return why a payment of the queue is not sent any more, or not now, or None.

    Args:
        record: Its record.
        now: The time.
        asked_at: When a caller's create began; None for a dispatcher, which sends queued payments only.
    """
    if record.state is not PaymentState.QUEUED:  # for a create, `Journal.was_taken_out` counts
        return f"it is {record.state}, not queued" if asked_at is None else None
    if asked_at is None and record.not_before is not None and now < record.not_before:
        return f"it waits until {record.not_before:%Y-%m-%d %H:%M:%S} UTC"  # a dispatcher had it in hand
    end = record.not_after
    # A create that began later is a new wish.
    if end is None or now < end or (asked_at is not None and asked_at >= end):
        return None
    return f"it was to be sent before {end:%Y-%m-%d %H:%M:%S} UTC"


def is_stale(record: PaymentRecord, now: datetime) -> bool:
    """Return whether a payment that is being sent must have lost its sender."""
    return record.state is PaymentState.SENDING and record.stale_at is not None and now >= record.stale_at
