"""Reasons why payments are open: a cause, which programs compare, and its subject; the sentence is for people."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Mapping
from typing import Any

import attrs

from mobilemoney_async.text import option

OTHERS_PAY: str = (
    "SQLStore(..., sole_writer=False), and store_options = { sole_writer = false } in the profile of the commands"
)
"""How a program and an operator say that other systems of the merchant pay too."""

NOTHING_SHOWS: str = (
    "where other systems pay too (sole_writer=False) nothing shows which payments the store has lost: look for those "
    "of your books in mobilemoney list, and import each by mobilemoney payments recover"
)
"""What an operator does there."""

RESTORED: str = (
    "the store was restored from a backup: cancel again what was cancelled since, and then: "
    "mobilemoney payouts status --resume"
)
"""Why queued disbursements wait for an operator: a cancellation is forgotten, too."""


def reason_of_pause(row: Any, account: str | None = None) -> str | None:
    """Return why nothing is sent from the queue, or no disbursement, by the account's row; commands name an account."""
    restored = RESTORED if account is None else f"{RESTORED} {shlex.join(option('account', account))}"
    return "; ".join(filter(None, [row.paused, row.payouts_wait and restored])) or None


class PaymentCause(enum.StrEnum):
    """Cause for which a payment is open; its sentence is ``PaymentRecord.reason``."""

    # Of a payment that the list has not shown.
    IN_GRACE = "IN_GRACE"
    """The list was read within the grace period."""
    NO_EARLIER = "NO_EARLIER"
    """No earlier payment of its type is known to compare the list with."""
    TOO_OLD = "TOO_OLD"
    """No earlier payment is known, and the list shows nothing as old as the payment."""
    NO_LATER = "NO_LATER"
    """No later payment of its type has settled yet to compare the list with."""
    NOT_WHOLE = "NOT_WHOLE"
    """The list could not be read as a whole."""
    OTHER_DAYS = "OTHER_DAYS"
    """The list was not read for all days of the payment, or of those that it is compared with."""
    UNREADABLE = "UNREADABLE"
    """A row of the list cannot be read."""
    UNTIMED = "UNTIMED"
    """The list shows no time for the payments to compare it with, or no whole number of an erased one."""
    HIDDEN = "HIDDEN"
    """The list does not show another payment of yours."""
    ALTERED = "ALTERED"
    """The list shows another payment of yours otherwise than it was made."""
    # Of a payment that the list may have shown.
    CANDIDATES = "CANDIDATES"
    """It may be one of its `candidates`."""
    RIVAL = "RIVAL"
    """Its only candidate may be another payment as well."""
    OTHER_SYSTEM = "OTHER_SYSTEM"
    """Its only candidate may be another system's payment."""
    FORGOTTEN = "FORGOTTEN"
    """The store has forgotten its transaction."""
    # Of other payments.
    UNCOMPARED = "UNCOMPARED"
    """It was refused, and nothing shows how late the list is."""
    WAITS = "WAITS"
    """It is queued, and cannot be sent as it is: it exceeds a limit of yours, say."""
    DELAYED = "DELAYED"
    """It is queued, and could not be sent: nor could others, or one like it is being sent. It is tried again."""
    HELD = "HELD"
    """It is queued, and an earlier payment like it has to be found out about first, perhaps by your staff."""
    OTHER_PAYMENT = "OTHER_PAYMENT"
    """Its transaction is final, with another type, amount, currency or phone number."""
    OTHER_MERCHANT = "OTHER_MERCHANT"
    """Its transaction is final, and another merchant's."""
    CHANGED = "CHANGED"
    """The service shows another final state than before."""


_SENTENCES: Mapping[PaymentCause, str] = {
    PaymentCause.IN_GRACE: "the list was read within the grace period, and may show it later",
    PaymentCause.NO_EARLIER: "no earlier payment to compare with",
    PaymentCause.TOO_OLD: "the list shows nothing as old as the payment",
    PaymentCause.NO_LATER: "no later payment to compare with",
    PaymentCause.NOT_WHOLE: "the list could not be read as a whole",
    PaymentCause.OTHER_DAYS: "the list was not read for all days of the payment",
    PaymentCause.UNREADABLE: "a row of the list cannot be read",
    PaymentCause.UNTIMED: "the list shows no time, or a part of an erased number, for the payments to compare with",
    PaymentCause.HIDDEN: "the list does not show payment {about!r}",
    PaymentCause.ALTERED: "the list shows payment {about!r} with another type, phone number, amount or time",
    PaymentCause.CANDIDATES: "it may be transaction {about}",
    PaymentCause.RIVAL: "its transaction may be payment {about!r} as well",
    PaymentCause.OTHER_SYSTEM: "it may be transaction {about}: other systems of the merchant pay too",
    PaymentCause.FORGOTTEN: "the store has forgotten transaction {about}",
    PaymentCause.UNCOMPARED: "nothing shows how late the list is",
    PaymentCause.WAITS: "{about}",
    PaymentCause.DELAYED: "{about}",
    PaymentCause.HELD: "{about}",
    PaymentCause.OTHER_PAYMENT: "transaction {about} has another type, amount, currency or phone number",
    PaymentCause.OTHER_MERCHANT: "transaction {about} is another merchant's",
    PaymentCause.CHANGED: "the service shows its final state as {about} now",
}


LACKS: frozenset[PaymentCause] = frozenset(
    {PaymentCause.IN_GRACE, PaymentCause.NO_EARLIER, PaymentCause.TOO_OLD, PaymentCause.NO_LATER}
)
"""Causes for which no listing can show that a payment is absent: time has to pass, or another payment to settle."""

KEEPS: frozenset[PaymentCause] = frozenset({PaymentCause.WAITS, PaymentCause.HELD})
"""Causes for which a payment stays in the queue, perhaps until someone decides."""

TRIED: frozenset[PaymentCause] = KEEPS | {PaymentCause.DELAYED}
"""Causes of a payment that stays in the queue, since it could not be sent."""

CONTRADICTIONS: frozenset[PaymentCause] = frozenset(
    {PaymentCause.UNREADABLE, PaymentCause.HIDDEN, PaymentCause.ALTERED}
)
"""Causes for which a listing is no evidence: it does not show a payment of ours as it was made."""


@attrs.frozen
class Reason:
    """Reason why a payment is open.

    Attributes:
        cause: The cause.
        about: Its subject: the key of another payment, transactions, or an error; None where that is clear.
    """

    cause: PaymentCause
    about: str | None = None

    def __str__(self) -> str:
        return _SENTENCES[self.cause].format(about=self.about)
