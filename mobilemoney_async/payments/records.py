"""What is known of a payment, and how that may change. Pure: the store only keeps what is decided here.

    (none) ──send──▶ SENDING ──answer──▶ ACKNOWLEDGED ──final state seen──▶ FINAL
                       │  └──no usable answer──▶ UNKNOWN ──found in the list──▶ ACKNOWLEDGED
                       │                            └──two walks without it──▶ ABSENT
                       ├──refused──▶ REFUSED ──send──▶ SENDING
                       └──provably not sent──▶ NOT_SENT ──send──▶ SENDING
    UNKNOWN, ABSENT ──a person's word──▶ RELEASED ──send──▶ SENDING

Invariants: money is sent only by the event SEND, which is allowed only where the payment certainly does not exist, or
a person has said so. What a payment has become is never taken back: whatever does not fit is a contradiction, which is
kept in its history and raised.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

import attrs

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.values import mask_phone_number


class PaymentState(str, enum.Enum):
    """What is known of a payment."""

    SENDING = "SENDING"
    """The request may be on its way. Of a process that died meanwhile, nobody knows."""
    UNKNOWN = "UNKNOWN"
    """Sent, without a usable answer: it may or may not exist."""
    ABSENT = "ABSENT"
    """Unknown, and two complete walks of the service's list after the grace period have not shown it."""
    NOT_SENT = "NOT_SENT"
    """Provably not sent. The key may be used again."""
    REFUSED = "REFUSED"
    """The service said no. The key may be used again."""
    RELEASED = "RELEASED"
    """A person has said that it does not exist. The key may be used again."""
    ACKNOWLEDGED = "ACKNOWLEDGED"
    """It exists, and its transaction is known."""
    FINAL = "FINAL"
    """Its transaction's final state was seen."""

    def __str__(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> PaymentState | None:
        # In either case: it is typed on command lines.
        return next((each for each in cls if isinstance(value, str) and each.value == value.upper()), None)


class Event(enum.Enum):
    """What may happen to a payment; the value is how its history calls it."""

    SEND = "sent"
    ACKNOWLEDGE = "acknowledged"
    REFUSE = "refused"
    FAIL_UNSENT = "not_sent"
    LOSE = "unknown"
    ADOPT = "adopted"
    MISS = "absent"
    CONFIRM_ABSENT = "confirmed"
    FINISH = "final"


class Source(str, enum.Enum):
    """Who says so."""

    ANSWER = "answer"
    POLL = "poll"
    RECONCILE = "reconcile"
    PERSON = "person"

    def __str__(self) -> str:
        return self.value


UNIDENTIFIED: frozenset[PaymentState] = frozenset({PaymentState.SENDING, PaymentState.UNKNOWN, PaymentState.ABSENT})
"""It may exist, and nobody knows which transaction it would be. At most one of a kind; see `schema.payments`."""

REUSABLE: frozenset[PaymentState] = frozenset({PaymentState.NOT_SENT, PaymentState.REFUSED, PaymentState.RELEASED})
"""It does not exist, so its key may be used again."""

WALKS = 2
"""How many complete walks after the grace period have to miss a payment before it is absent."""

_S, _E = PaymentState, Event
TRANSITIONS: Mapping[tuple[PaymentState, Event], PaymentState] = {
    **{(state, _E.SEND): _S.SENDING for state in REUSABLE},
    (_S.SENDING, _E.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.SENDING, _E.REFUSE): _S.REFUSED,
    (_S.SENDING, _E.FAIL_UNSENT): _S.NOT_SENT,
    (_S.SENDING, _E.LOSE): _S.UNKNOWN,
    # Said again, since the answer of the database was lost.
    (_S.REFUSED, _E.REFUSE): _S.REFUSED,
    (_S.NOT_SENT, _E.FAIL_UNSENT): _S.NOT_SENT,
    # Taken for dead, the process that sent it may still learn what came of it.
    (_S.UNKNOWN, _E.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.UNKNOWN, _E.REFUSE): _S.REFUSED,
    (_S.UNKNOWN, _E.FAIL_UNSENT): _S.NOT_SENT,
    (_S.UNKNOWN, _E.LOSE): _S.UNKNOWN,
    (_S.UNKNOWN, _E.ADOPT): _S.ACKNOWLEDGED,
    (_S.UNKNOWN, _E.MISS): _S.ABSENT,
    (_S.UNKNOWN, _E.CONFIRM_ABSENT): _S.RELEASED,
    # Its request lived for longer than was thought: what has missed it proves nothing.
    (_S.ABSENT, _E.LOSE): _S.UNKNOWN,
    # A list may lag for longer than the grace period.
    (_S.ABSENT, _E.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.ABSENT, _E.REFUSE): _S.REFUSED,
    (_S.ABSENT, _E.FAIL_UNSENT): _S.NOT_SENT,
    (_S.ABSENT, _E.ADOPT): _S.ACKNOWLEDGED,
    (_S.ABSENT, _E.CONFIRM_ABSENT): _S.RELEASED,
    (_S.ABSENT, _E.SEND): _S.SENDING,  # of collections, where the merchant has said so once and for all: `may_send`
    # Before the key is used again, the truth is welcome even against a person's word.
    (_S.RELEASED, _E.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.ACKNOWLEDGED, _E.FINISH): _S.FINAL,
}
"""Every move. A pair that is not here contradicts what is known."""


@attrs.frozen(kw_only=True)
class PaymentRequest:
    """What a caller asks for, as it is compared with what was asked before.

    Attributes:
        key: The idempotency key.
        type: Collection or disbursement.
        phone_number: In international format.
        amount: Whole TZS, as digits.
        extra_digest: Of the extra fields of the request; empty where there are none.
        external_id: The one among the extra fields, to find the payment by.
    """

    key: str
    type: TransactionType
    phone_number: str = attrs.field(repr=mask_phone_number)
    amount: str
    extra_digest: str = ""
    external_id: str | None = None


@attrs.frozen(kw_only=True)
class HistoryEntry:
    """One thing that happened to a payment.

    Attributes:
        at: When.
        what: ``sent``, ``acknowledged``, ``refused``, ``not_sent``, ``unknown``, ``adopted``, ``absent``,
            ``confirmed``, ``final``, ``ambiguous``, or ``contradiction``.
        source: Who says so: ``answer``, ``poll``, ``reconcile`` or ``person``.
        detail: More about it: a transaction id, a final status, an error, a person's note.
    """

    at: datetime
    what: str
    source: str
    detail: str | None = None


@attrs.frozen(kw_only=True)
class PaymentRecord:
    """What the store knows of one payment.

    Attributes:
        key: Its idempotency key.
        type: Collection or disbursement.
        phone_number: The customer's or recipient's number.
        amount: Whole TZS.
        state: What is known.
        attempt: How many times it was sent or about to be, from 1.
        created_at: When it was first recorded.
        changed_at: When something was last recorded.
        sent_at: When it was last sent.
        ended_at: When that request ended, or was given up for lost; None while it is on its way.
        stale_at: From when on a payment that is being sent counts as unknown.
        transaction_id: The service's transaction, once known.
        reference: The service's reference, once known.
        external_id: Your reference: the `external_id` that was sent among the ``extra`` fields, or that the final
            transaction shows; None where there is none.
        status: The transaction's state as last recorded, or None.
        transaction: The transaction in its final state, or None.
        is_adopted: Whether its transaction was found in the service's list, rather than acknowledged to us.
        candidates: Of an unknown payment: transactions that it may be, where there are several, or one that is not
            certain. A person decides.
        walks: How many complete walks after the grace period have not shown it.
        error: What went wrong last, redacted, or None.
        history: Everything that happened, oldest first; filled by ``payments.get`` only.
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
    transaction_id: str | None = None
    reference: str | None = None
    status: TransactionStatus | None = None
    transaction: Transaction | None = None
    is_adopted: bool = False
    candidates: tuple[str, ...] = ()
    walks: int = 0
    error: str | None = None
    external_id: str | None = None
    history: tuple[HistoryEntry, ...] = ()

    @property
    def is_unresolved(self) -> bool:
        """Whether nobody knows what became of it, or a request may be on its way."""
        return self.state in UNIDENTIFIED

    @property
    def is_ambiguous(self) -> bool:
        """Whether it may be one of several transactions, or one that is not certain."""
        return self.state in UNIDENTIFIED and bool(self.candidates)

    @property
    def is_final(self) -> bool:
        """Whether its transaction's final state was seen."""
        return self.state is PaymentState.FINAL


def move(state: PaymentState, event: Event) -> PaymentState | None:
    """Return the state after an event, or None where the event contradicts the state."""
    return TRANSITIONS.get((state, event))


def may_send(record: PaymentRecord, *, absent_suffices: bool) -> bool:
    """Return whether a key that was used may be sent again.

    Args:
        record: What is known of it.
        absent_suffices: Whether an absent collection is sent again without a person's word.
    """
    if record.state is PaymentState.ABSENT:
        if record.candidates or record.walks < WALKS:  # it was seen, or something that may be it
            return False
        return absent_suffices and record.type == TransactionType.COLLECTION
    return record.state in REUSABLE


def is_stale(record: PaymentRecord, now: datetime) -> bool:
    """Return whether a payment that is being sent must have lost its sender."""
    return record.state is PaymentState.SENDING and record.stale_at is not None and now >= record.stale_at
