"""One payment as `collect` and `disburse` make it: what is known of it, and what the person is told.

Invariants: a key that we made is printed before the request is sent. However the command ends, the person is told what
is known of the payment and how to go on; where nobody knows whether it exists, that is what they are told.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import anyio
import attrs

from mobilemoney_async.cli.advice import explain
from mobilemoney_async.cli.board import Board, Change, still_open
from mobilemoney_async.cli.failures import ExitCode, Refused, say
from mobilemoney_async.cli.following import Refusals, follow
from mobilemoney_async.cli.live import waiting
from mobilemoney_async.cli.service import Service, command_line
from mobilemoney_async.cli.settings import Settings
from mobilemoney_async.cli.text import phone, plain, print_json_line, visible
from mobilemoney_async.cli.transactions_report import print_change
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, CREATE_DISBURSEMENT
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.errors import (
    DuplicateSuspected,
    IdempotencyConflict,
    MobileMoneyError,
    OutcomeUnknown,
    StoreError,
)
from mobilemoney_async.events import AttemptEnded, Event
from mobilemoney_async.payments.records import PaymentRecord

# How long an interrupted command looks into its store, seconds.
_LAST_LOOK = 5.0
_CREATES = {CREATE_COLLECTION.path, CREATE_DISBURSEMENT.path}


@attrs.frozen(kw_only=True)
class Order:
    """What the person asks for.

    Attributes:
        type: Collection or disbursement.
        phone_number: The customer's or recipient's.
        amount: Whole TZS, in digits.
        key: The idempotency key, or None where there is no store to keep it.
        unmasked: Whether the number is shown whole.
    """

    type: TransactionType
    phone_number: str = attrs.field(repr=False)
    amount: str
    key: str | None
    unmasked: bool

    @property
    def command(self) -> str:
        """The command that asks for it."""
        return "collect" if self.type == TransactionType.COLLECTION else "disburse"

    def __str__(self) -> str:
        verb, preposition = ("collect", "from") if self.type == TransactionType.COLLECTION else ("send", "to")
        return f"{verb} {int(self.amount):,} TZS {preposition} {phone(self.phone_number, unmasked=self.unmasked)}"


class Payment:
    """One payment.

    Args:
        order: What is asked for, checked.
        settings: Of the service.
        service: As the person chose it.
        as_json: Whether each event is a line of JSON.

    Attributes:
        board: What is known of the transaction, once there is one.
    """

    def __init__(self, order: Order, settings: Settings, service: Service, *, as_json: bool) -> None:
        self.board: Board | None = None
        self._order = order
        self._settings = settings
        self._service = service
        self._as_json = as_json
        self._refusals = Refusals()
        self._answer: Acknowledgement | None = None
        self._changes: list[Change] = []
        # Of a create that was interrupted: whether it may have reached the service, as far as this process can tell,
        # and what the store says.
        self._may_have_arrived = False
        self._was_attempted = False
        self._is_store_away = False
        self._record: PaymentRecord | None = None
        self._began = datetime.now(UTC)

    def heard(self, event: Event) -> None:
        """Take note of what the client did."""
        self._refusals(event)
        if isinstance(event, AttemptEnded) and event.path in _CREATES:
            self._was_attempted = True
            self._may_have_arrived = event.outcome in {"unknown", "cancelled", "answered"}

    def tell_key(self) -> None:
        """Print the key that was made, if there is one."""
        key = self._order.key
        if key is not None and self._as_json:
            self._print_event("sending", idempotency_key=key)
        elif key is not None:
            say(self._order.command, f"the key of this payment is {key}")

    async def send(self, client: AsyncClient) -> None:
        """Send it, or find it under its key.

        A cancelled call has found out, where there is a store, how far the payment has come.

        Raises:
            Refused: No money moved, or nobody knows; says what to do next.
        """
        order = self._order
        creates = client.collections if order.type == TransactionType.COLLECTION else client.disbursements
        self._began = datetime.now(UTC)
        try:
            with waiting(str(order)):
                self._answer = await creates.create(
                    phone_number=order.phone_number, amount=order.amount, idempotency_key=order.key
                )
        except OutcomeUnknown as exc:
            raise Refused("; ".join([str(exc), *self._how_to_find_out()]), ExitCode.UNRESOLVED) from exc
        except MobileMoneyError as exc:
            raise self._refusal(exc) from exc
        except anyio.get_cancelled_exc_class():
            await self._look_into_store(client)
            raise
        if not self._was_attempted:
            say(order.command, "this key has been used before: nothing was sent, and this is that payment")
        self._acknowledged(self._answer)

    async def follow(self, client: AsyncClient, timeout: float) -> None:
        """Follow what was sent until it is final, or the time is up.

        Args:
            client: The same.
            timeout: Seconds, more than 0.

        Raises:
            Refused: The service no longer accepts who we are, or does not know the payment; says how to go on.
        """
        assert self.board is not None
        assert self._answer is not None
        try:
            with waiting(f"{self._line(str(self._answer.status_code))}; Ctrl-C ends the watching"):
                await follow(
                    client,
                    self.board,
                    refusals=self._refusals,
                    acknowledgement=self._answer,
                    is_recorded=self._settings.store is not None,
                    timeout=timeout,
                )
        except MobileMoneyError as exc:
            text, _ = explain(exc, self._settings)
            raise Refused("; ".join([text, *self.still_open()]), ExitCode.NOT_FINAL) from exc
        finally:
            # Here, where nothing moves on the terminal any more.
            for change in self._changes:
                with _unless_nobody_reads():
                    print_change(change, as_json=self._as_json, unmasked=self._order.unmasked)
        if self.board.unknown:
            raise Refused(
                "the service has accepted the payment and does not show it: nobody knows whether it exists; do not "
                "send it again before you have asked the service",
                ExitCode.UNRESOLVED,
            )

    def still_open(self) -> list[str]:
        """Return lines about what is open after an interrupt, and how to go on."""
        if self.board is not None:
            return still_open(self.board, self._service.flags)
        record = self._record
        if record is not None and record.transaction_id is not None:
            again = command_line("watch", record.transaction_id, *self._service.flags)
            return [f"the payment exists: {record.transaction_id}", f"to follow it: {again}"]
        if record is not None:
            is_unknown = record.is_unresolved
        else:
            is_unknown = self._is_store_away or (self._settings.store is None and self._may_have_arrived)
        if is_unknown:
            return ["nobody knows whether the payment exists", *self._how_to_find_out()]
        return ["nothing was sent"]

    def _acknowledged(self, answer: Acknowledgement) -> None:
        self.board = Board([answer.transaction_id], self._changes.append)
        if self._as_json:
            self._print_event(
                "acknowledged",
                idempotency_key=self._order.key,
                transaction_id=answer.transaction_id,
                acknowledgement=attrs.evolve(answer, idempotency_key=None),
            )
        else:
            with _unless_nobody_reads():
                print(f"{visible(answer.transaction_id)}  {self._line(str(answer.status_code))}", flush=True)

    def _refusal(self, exc: MobileMoneyError) -> Refused:
        text, code = explain(exc, self._settings)
        if isinstance(exc, DuplicateSuspected):
            reconcile = command_line("payments", "reconcile", *self._service.flags)
            show = command_line("payments", "show", exc.other_key, *self._service.store_flags)
            text = f"{exc}; find out about the other one first: {reconcile}, or look at it: {show}"
        elif isinstance(exc, IdempotencyConflict):
            show = command_line("payments", "show", self._order.key or "", *self._service.store_flags)
            text = f"{exc}; look at that payment: {show}; another payment needs another key"
        elif not isinstance(exc, StoreError):  # which says itself what was sent, and knows of earlier payments
            text = {"not_sent": "nothing was sent: ", "refused": "no money moved: "}.get(exc.outcome, "") + text
        return Refused(text, code)

    def _line(self, state: str) -> str:
        order = self._order
        number = phone(order.phone_number, unmasked=order.unmasked)
        return visible(f"{order.type} of {int(order.amount):,} TZS, {number}: {state}")

    def _how_to_find_out(self) -> list[str]:
        """Return what to do about a payment of which nobody knows whether it exists."""
        if self._order.key is not None:
            key = shlex.quote(self._order.key)
            return [
                f"the same command with --key {key} looks for it first, and never sends it twice",
                f"{command_line('payments', 'reconcile', *self._service.flags)} looks for it too, and sends nothing",
            ]
        # Earlier than it was sent, since the service's clock is not ours.
        day = f"{self._began - timedelta(hours=1):%Y-%m-%d}"
        look = command_line("list", "--type", str(self._order.type), "--from", day, *self._service.flags)
        return [f"do not send it again before you have looked whether it is there: {look}"]

    async def _look_into_store(self, client: AsyncClient) -> None:
        if self._order.key is None:
            return
        self._is_store_away = True
        with anyio.move_on_after(_LAST_LOOK, shield=True):
            try:
                self._record = await client.payments.get(self._order.key)
                self._is_store_away = False
            except StoreError as exc:
                say(self._order.command, f"the store does not say how far it came: {exc}")

    def _print_event(self, event: str, **fields: object) -> None:
        line = {"event": event, "at": datetime.now(UTC), **fields}
        with _unless_nobody_reads():
            print_json_line(plain(line, unmasked=self._order.unmasked))


@contextmanager
def _unless_nobody_reads() -> Iterator[None]:
    """Print nothing more once the reader of a pipe has left: the exit code still tells what became of the payment."""
    try:
        yield
    except BrokenPipeError:
        # The descriptor itself, so that what is buffered does not fail at the program's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
