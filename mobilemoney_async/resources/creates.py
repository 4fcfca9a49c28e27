"""Creates of collections and disbursements: the two calls that move money (contract, sections 4.1 and 4.2)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar, Protocol

import anyio
import attrs

from mobilemoney_async.calls.collaborators import AnswerFacts
from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.codec import Fields, encode
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, CREATE_DISBURSEMENT, GET_TRANSACTION, Endpoint
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contract.states import TransactionType, initial_status
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.resources.recent_disbursements import LimitedAttempt, RecentDisbursements
from mobilemoney_async.text import shown_id
from mobilemoney_async.values import hide, hide_text, normalise_amount, normalise_phone_number, refuse, require_key

# How far a transaction's time may be from that of its request, apart from a difference of the clocks.
_SLACK = timedelta(seconds=60)


class PaymentCreator(Protocol):
    """Creates that a store remembers by their keys."""

    async def create(
        self, endpoint: Endpoint[Acknowledgement], body: Fields, *, idempotency_key: str
    ) -> Acknowledgement:
        """Make a payment once for its key."""
        ...


@attrs.define(eq=False, slots=False)
class _Creates:
    _endpoint: ClassVar[Endpoint[Acknowledgement]]
    _type: ClassVar[TransactionType]

    _pipeline: Pipeline = attrs.field(repr=False)
    _idempotent: PaymentCreator | None = attrs.field(default=None, repr=False)
    _recent: RecentDisbursements | None = attrs.field(default=None, repr=False)

    async def create(
        self,
        phone_number: str,
        amount: int | Decimal | str,
        *,
        idempotency_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Acknowledgement:
        """Ask the service to move money (contract, sections 4.1 and 4.2).

        The answer means that the request was accepted, not that the payment was made: follow it to its final state
        with ``client.transactions.wait(acknowledgement)``.

        The request is sent again only where it provably never reached the service, or was rejected before it was
        processed (rate limit, token). Cancelling this call while the request is on its way leaves it unknown whether
        the payment exists, as a crash would.

        With a store (``AsyncClient(store=...)``) the payment is recorded before it is sent and its id before this
        returns. The same key then gives the same payment, whatever happens in between: the same acknowledgement without
        a request; or, while the result of the first request is unknown, `OutcomeUnknown` after a look at the list.

        Args:
            phone_number: The customer's or recipient's number: ``+`` and 8 to 15 digits; spaces and hyphens are
                dropped.
            amount: Whole TZS, more than 0, as ``int``, integral ``Decimal`` or ``str`` of digits; never ``float``.
            idempotency_key: With a store: your name for this payment, at most 200 characters; one is made where you
                give none. It is on the answer and on every error, and is never sent: the service takes no such key.
            extra: More fields for the request body, which the contract does not show (such as a merchant reference).

        Returns:
            The acknowledgement, with the new transaction's id.

        Raises:
            InvalidRequest: An argument is invalid; nothing was sent.
            OutcomeUnknown: The request may have reached the service and has no usable answer: none, or an
                acknowledgement with another amount, phone number or first state, whose transaction is not this payment
                either. Not a failure: look before you pay again.
            APIError: The service refused. No money moved if ``is_certain``; otherwise that is not proven: look before
                you pay again. See its subclasses.
            LimitExceeded: A disbursement exceeds one of the client's `DisbursementLimits`; nothing was sent.
            TransportError: The request was provably not sent, however often it was tried; no money moved.
            IdempotencyConflict: With a store: the key was used for another payment, or for a cancelled one; nothing was
                sent.
            DuplicateSuspected: With a store: a payment of this type and amount for this phone number is unresolved
                under another key; nothing was sent.
            StoreError: With a store: it failed or cannot be reached, and nothing was sent by this call. (Where the
                answer cannot be recorded, `OutcomeUnknown` is raised, with this as its cause.) Either way the same key
                is safe to use again.
        """
        phone_number, amount = hide(phone_number), hide_text(amount)
        fields = None if extra is None else Fields.of(extra)
        del extra
        key = uuid.uuid4().hex if idempotency_key is None else require_key("idempotency_key", idempotency_key)
        if self._idempotent is None and idempotency_key is not None:
            raise InvalidRequest(
                "idempotency_key needs a client with a store, as in AsyncClient(..., store=SQLStore(url)): without one "
                "the same key would make a second payment",
                argument="idempotency_key",
            )
        try:
            body = create_body(phone_number, amount, fields)
            if self._idempotent is None:
                answer = await self._create(body, key)
            else:
                answer = await self._idempotent.create(self._endpoint, body, idempotency_key=key)
        except MobileMoneyError as exc:
            exc.idempotency_key = key
            raise
        return attrs.evolve(answer, idempotency_key=key)

    async def _create(self, body: Fields, key: str) -> Acknowledgement:
        """Make a payment without a store, and return an acknowledgement that names it.

        One that names something else may be another payment's: only the transaction of its id shows that.
        """
        # Here, since it takes a hundredth of the package's import; and before anything is sent.
        from mobilemoney_async.contract.comparison import CURRENCY, contradiction, read_date

        asked: dict[str, str] = {"type": self._type, **{name: body[name] for name in ("phone_number", "amount")}}
        sent_at, began = self._pipeline.utcnow(), anyio.current_time()
        counted = None if self._recent is None else LimitedAttempt(self._recent, body["phone_number"], body["amount"])
        answer = await self._pipeline.call(self._endpoint, body=body, idempotency_key=key, recorder=counted)
        problem = contradiction(answer, **asked)
        if problem is None:
            return answer
        # From here on, a cancelled call leaves the payment unknown, as one does while the request is on its way.
        cause: MobileMoneyError | None = None
        deadline = self._pipeline.options.deadline
        with anyio.move_on_after(None if deadline is None else deadline - (anyio.current_time() - began)):
            try:
                facts, identifiers = AnswerFacts(), {"transaction_id": answer.transaction_id}
                named = (await self._pipeline.call(GET_TRANSACTION, identifiers=identifiers, facts=facts)).transaction
                now = self._pipeline.utcnow()
                # On the service's clock, if it shows it: not made before the request, nor after it.
                at = read_date(facts.date or "") or now
                is_new = named.created_at is not None and -_SLACK <= at - named.created_at <= now - sent_at + _SLACK
                if is_new and contradiction(named, **asked) is None:
                    return attrs.evolve(
                        answer,
                        amount=Decimal(asked["amount"]),
                        phone_number=str(asked["phone_number"]),
                        currency=CURRENCY,
                        status_code=initial_status(self._type),
                        status="success",
                    )
            except MobileMoneyError as exc:
                cause = exc
        said = f"{problem}: the payment may be transaction {shown_id(answer.transaction_id)}, or may not exist"
        raise self._pipeline.unknown(said, key, sent_at, cause=cause)


@attrs.define(eq=False, slots=False)
class Collections(_Creates):
    """Payments asked from customers, by a prompt on the phone."""

    _endpoint = CREATE_COLLECTION
    _type = TransactionType.COLLECTION


@attrs.define(eq=False, slots=False)
class Disbursements(_Creates):
    """Money sent to recipients' wallets."""

    _endpoint = CREATE_DISBURSEMENT
    _type = TransactionType.DISBURSEMENT


def create_body(phone_number: str, amount: int | Decimal | str, extra: Fields | None = None) -> Fields:
    """Return the body of a create as it is sent.

    Raises:
        InvalidRequest: An argument is invalid.
    """
    body: dict[str, Any] = {"phone_number": normalise_phone_number(phone_number), "amount": normalise_amount(amount)}
    return Fields(body if extra is None else body | _check_extra(extra).reveal())


def _check_extra(extra: Fields) -> Fields:
    if not isinstance(extra.reveal(), Mapping) or not all(isinstance(name, str) for name in extra.reveal()):
        raise refuse("extra", "a mapping with str keys", type(extra.reveal()))
    if not extra.reveal().keys().isdisjoint({"phone_number", "amount"}):
        raise InvalidRequest("extra must not hold phone_number or amount", argument="extra")
    fields = Fields(dict(extra.reveal()))
    encode("extra", fields)
    return fields
