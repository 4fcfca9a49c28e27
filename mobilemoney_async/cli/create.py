"""`mobilemoney collect` and `mobilemoney disburse`: ask for money, or send it, and follow the payment to its end.

Invariants: a key that the command makes is printed before the request is sent. Whatever ends the command, it prints the
state of the payment as far as known, and the next step; an unknown result is reported as unknown.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import anyio
import attrs
import typer

from mobilemoney_async import errors
from mobilemoney_async.cli import following, options
from mobilemoney_async.cli.clients import missing_file, open_client
from mobilemoney_async.cli.failures import ExitCode, Refused, WrongUsage, copyable, explain, run, say
from mobilemoney_async.cli.options import Service, Unmasked, Yes, with_service
from mobilemoney_async.cli.output import ignoring_closed_pipe, phone, plain, print_json_line, waiting
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.configuration.settings import Settings
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, CREATE_DISBURSEMENT
from mobilemoney_async.contract.models import Acknowledgement
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.events import AttemptEnded, Event
from mobilemoney_async.payments.records.next_steps import cancel
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState
from mobilemoney_async.polling.poller import Poller
from mobilemoney_async.tasks import shielded
from mobilemoney_async.text import arguments, command_line, option, shown_text, visible
from mobilemoney_async.values import normalise_amount, require_key, two_amounts

# The default of --timeout, seconds.
_TIMEOUT = 300.0
# For the lookup in the store after an interrupt, seconds.
_LAST_LOOKUP = 5.0
_CREATES = {CREATE_COLLECTION.path, CREATE_DISBURSEMENT.path}

PhoneNumber = Annotated[str, typer.Argument(metavar="PHONE", help="+ and 8 to 15 digits: +255681234567.")]
Amount = Annotated[str, typer.Argument(metavar="AMOUNT", help="Whole TZS, in digits: 15000.")]
_KEY_HELP = "Your name for the payment, its idempotency key: at most one payment is made under it. Needs a store."
Key = Annotated[
    str | None, typer.Option(metavar="KEY", help=_KEY_HELP, show_default="with a store, one is made and printed")
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Follow the payment to its final state: exit code 0 means success.")
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long to follow the payment.")]
AsEvents = Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON, for programs.")]


def _command(kind: TransactionType, first_line: str, ends: str) -> Callable[..., None]:
    """Return the command of one type of payment; both have the same options."""

    @with_service()
    def create(
        phone_number: PhoneNumber,
        amount: Amount,
        *,
        key: Key = None,
        wait: Wait = True,
        timeout: Timeout = _TIMEOUT,
        yes: Yes = False,
        as_json: AsEvents = False,
        unmasked: Unmasked = False,
        service: Service,
    ) -> None:
        request = PaymentArguments(kind, phone_number, amount, key, unmasked, as_json)
        _create(request, service, wait=wait, timeout=timeout, yes=yes)

    create.__doc__ = f"""{first_line}

    With a store the payment is recorded under its key before it is sent: the same command with the same key never sends
    it twice. Without a store, never repeat the command before you have looked with list.

    Exit codes: {ends}, 4 not final in time, 3 unknown whether the payment exists, or refused without a documented code,
    1 an error and no money moved, 2 wrong usage and nothing was sent, 130 Ctrl-C.
    """
    return create


collect: Callable[..., None] = _command(
    TransactionType.COLLECTION,
    "Ask a customer to pay, and wait until the payment succeeds or fails.",
    "0 paid (with --no-wait: accepted), 5 not paid",
)
disburse: Callable[..., None] = _command(
    TransactionType.DISBURSEMENT,
    "Send money to a wallet, and wait until the payment succeeds or fails.",
    "0 sent (with --no-wait: accepted), 5 not sent in the end",
)


@attrs.frozen
class PaymentArguments:
    """Payment that the user asks for, and how its output is shown."""

    type: TransactionType
    phone_number: str = attrs.field(repr=False)
    amount: str
    key: str | None = None
    unmasked: bool = False
    as_json: bool = False

    @property
    def command(self) -> str:
        """The command for it."""
        return "collect" if self.type == TransactionType.COLLECTION else "disburse"

    def __str__(self) -> str:
        verb, preposition = ("collect", "from") if self.type == TransactionType.COLLECTION else ("send", "to")
        return f"{verb} {int(self.amount):,} TZS {preposition} {phone(self.phone_number, unmasked=self.unmasked)}"


def _create(request: PaymentArguments, service: Service, *, wait: bool, timeout: float, yes: bool) -> None:
    command, is_key_given = request.command, request.key is not None
    options.check_timeout(timeout)
    settings = service.settings()
    request = _checked(request, settings)
    if settings.store is not None:
        options.require_service(settings)
    new = missing_file(settings)
    risk = "" if new is None or not is_key_given else f", by {new}, a new store, which knows no payment under any key"
    options.confirm_money(settings, f"{request}{risk}", yes=yes)
    payment = PaymentRun(request, settings, service)

    async def work() -> None:
        async with open_client(settings, on_event=payment.note_event) as client:
            if not is_key_given:
                payment.print_key()
            elif not await client.payments.list(limit=1):
                said = f"the store has no payment of account {settings.account!r} yet: it knows none under this key"
                say(command, f"{said}; one in another store, folder or account would be another payment")
            await payment.send(client, is_followed=wait)
            if wait:
                await payment.follow(client, timeout)

    run(command, work, open_work=payment.still_open, settings=settings)
    if wait and payment.watchlist is not None:
        following.finish(command, payment.watchlist, service.flags)
    if payment.has_failed:
        raise typer.Exit(ExitCode.NOT_SUCCESSFUL)


def _checked(request: PaymentArguments, settings: Settings) -> PaymentArguments:
    """Return a request with normal phone number and amount, and with a key if there is a store."""
    number = options.require_phone_number(request.phone_number, settings)
    accepted = "AMOUNT must be whole TZS, more than 0, in digits such as 15000"
    two = two_amounts(request.amount)
    amount = options.check(normalise_amount, request.amount, f"{accepted}; {two}" if two else accepted)
    key = request.key
    has_store = settings.store is not None
    if key is not None and not has_store:
        advice = "the same command again would be a second payment; give --store, or name a store in the profile"
        raise WrongUsage(f"--key needs a store: without one the key is not saved, and {advice}")
    if key is not None:
        said = "--key must be at most 200 characters, not blank, without white space around it, line ends, "
        options.check(partial(require_key, "key"), key, f"{said}invisible characters and blanks other than spaces")
    elif has_store:
        key = f"cli-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    return attrs.evolve(request, phone_number=number, amount=amount, key=key)


class PaymentRun:
    """One payment from the request to the final state; its watchlist holds the transaction, once there is one."""

    def __init__(self, request: PaymentArguments, settings: Settings, service: Service) -> None:
        self.watchlist: following.Watchlist | None = None
        self._request, self._settings, self._service = request, settings, service
        self._refusals = following.Refusals()
        self._answer: Acknowledgement | None = None
        self._changes: list[following.StatusChange] = []
        self._was_attempted = False
        # After an interrupted or refused create: the record in the store, or without one whether the request may have
        # arrived.
        self._record: PaymentRecord | None = None
        self._is_unknown = False
        self._began = datetime.now(UTC)

    def note_event(self, event: Event) -> None:
        """Note an event of the client: whether the request was sent, and may have arrived."""
        self._refusals(event)
        if isinstance(event, AttemptEnded) and event.path in _CREATES:
            self._was_attempted = True
            self._is_unknown = event.outcome in {"unknown", "cancelled", "answered"}

    def print_key(self) -> None:
        """Print the key that the command made, if there is one."""
        key = self._request.key
        if key is not None and self._request.as_json:
            self._print("sending", idempotency_key=key)
        elif key is not None and not say(self._request.command, f"the key of this payment is {key}"):
            raise Refused("nothing was sent: the key of the payment cannot be printed")

    async def send(self, client: AsyncClient, *, is_followed: bool = True) -> None:
        """Send the payment, or find it under its key; one that is not followed is shown as the store knows it.

        A cancelled call may have sent it. With a store, the call then reads the payment's record before it ends.

        Raises:
            Refused: No money moved, or the result is unknown; names the next step.
        """
        request = self._request
        creates = client.collections if request.type == TransactionType.COLLECTION else client.disbursements
        self._began = datetime.now(UTC)
        try:
            with waiting(str(request)):
                self._answer = await creates.create(
                    phone_number=request.phone_number, amount=request.amount, idempotency_key=request.key
                )
        except errors.OutcomeUnknown as exc:
            raise Refused("; ".join([str(exc), *self._how_to_find_out()]), ExitCode.UNRESOLVED) from exc
        except errors.IdempotencyConflict as exc:
            raise self._conflict(exc, await client.payments.get(request.key or "")) from exc
        except MobileMoneyError as exc:
            if not (isinstance(exc, errors.StoreError) and exc.is_database):
                await self._read_record(client)
            raise self._refusal(exc) from exc
        except anyio.get_cancelled_exc_class():
            await self._read_record(client)
            raise
        answer, state = self._answer, shown_text(str(self._answer.status_code))
        if not self._was_attempted:
            say(request.command, "this key has been used before: nothing was sent, and this is that payment")
            await self._read_record(client)
            record = self._record
            if record is not None and record.is_contradicted:
                show = arguments("payments", "show", record.key, options=self._service.store_flags)
                say(request.command, f"{record.reason}: {command_line(*show)}")
            if not is_followed and record is not None and record.status is not None:
                state = shown_text(str(record.status))  # later than the acknowledgement
        self.watchlist = following.Watchlist([answer.transaction_id], self._changes.append)
        self._print(
            "acknowledged",
            f"{answer.transaction_id}  {self._line(state)}",
            status=state,
            idempotency_key=request.key,
            transaction_id=answer.transaction_id,
            acknowledgement=attrs.evolve(answer, idempotency_key=None),
        )

    @property
    def has_failed(self) -> bool:
        """Whether its record, where that was read, shows a final state other than success."""
        record = self._record
        return record is not None and record.is_final and record.status != TransactionStatus.SUCCESS

    async def follow(self, client: AsyncClient, timeout: float) -> None:
        """Follow the payment until it is final, or the time is up.

        Raises:
            Refused: The service no longer accepts the credentials, or does not know the payment; names the next step.
        """
        answer = self._answer
        assert self.watchlist is not None and answer is not None

        async def begin(poller: Poller) -> None:
            poller.track(answer)

        try:
            with waiting(f"{self._line(shown_text(answer.status_code))}; Ctrl-C ends the watching"):
                await following.follow(client, self.watchlist, begin, refusals=self._refusals, timeout=timeout)
        except MobileMoneyError as exc:
            text, _ = explain(exc, self._settings)
            raise Refused("; ".join([text, *self.still_open()]), ExitCode.NOT_FINAL) from exc
        finally:
            # After the moving line has left the terminal.
            for change in self._changes:
                following.print_change(change, as_json=self._request.as_json, unmasked=self._request.unmasked)
        if self.watchlist.unknown:
            text = "the service has accepted the payment and does not show it: it is unknown whether it exists"
            advice = "do not send it again before you have asked the service"
            raise Refused(f"{text}; {advice}", ExitCode.UNRESOLVED)

    def still_open(self) -> list[str]:
        """Return lines about the open payment after an interrupt, and the next step."""
        if self.watchlist is not None:
            return following.still_open(self.watchlist, self._service.flags)
        record = self._record
        if record is not None and record.transaction_id is not None:
            again = command_line(*arguments("watch", record.transaction_id, options=self._service.flags))
            return [f"the payment exists: {record.transaction_id}", f"to follow it: {again}"]
        if self._is_unknown if record is None else record.is_unresolved:
            return ["it is unknown whether the payment exists", *self._how_to_find_out()]
        return ["nothing was sent", *self._still_queued()]

    def _still_queued(self) -> list[str]:
        """Return a line about a payment that was in the queue, and is still, with the command that takes it out."""
        if self._record is None or self._record.state is not PaymentState.QUEUED:
            return []
        take_out = command_line(*cancel(self._record.key), options=self._service.store_flags)
        return [f"it stays in the queue, and a dispatcher sends it, unless you cancel it: {take_out}"]

    def _refusal(self, exc: MobileMoneyError) -> Refused:
        text, code = explain(exc, self._settings)
        if isinstance(exc, errors.DuplicateSuspected) and exc.other_key is None:
            listed = command_line("payments", "unclaimed", *self._service.store_flags)
            text = f"{copyable(str(exc))}; look at it: {listed}"
        elif isinstance(exc, errors.DuplicateSuspected):
            reconcile = command_line("payments", "reconcile", *self._service.flags)
            show = command_line(*arguments("payments", "show", exc.other_key or "", options=self._service.store_flags))
            text = f"{exc}; resolve the other payment first: {reconcile}, or look at it: {show}"
        elif not isinstance(exc, errors.StoreError):  # the store's text says itself whether it was sent
            is_certain = not isinstance(exc, errors.APIError) or exc.is_certain
            refused = "no money moved: " if is_certain else "refused, as far as is known: "
            text = {"not_sent": "nothing was sent: ", "refused": refused}.get(exc.outcome, "") + text
            if exc.outcome == "refused" and not is_certain:
                text, code = "; ".join([text, *self._how_to_find_out()]), ExitCode.UNRESOLVED
        return Refused("; ".join([text, *self._still_queued()]), code)

    def _conflict(self, exc: errors.IdempotencyConflict, record: PaymentRecord | None) -> Refused:
        request = self._request
        show = command_line(*arguments("payments", "show", request.key or "", options=self._service.store_flags))
        advice = "another payment needs another key"
        kept = None if record is None else (record.type, record.phone_number, f"{record.amount:f}", record.has_extra)
        if kept == (request.type, request.phone_number, request.amount, True):
            # Under another key it would be paid beside the program that has the extra fields.
            advice = "it has extra fields, which this command has not: let your program create it, under its key"
        return Refused(f"{exc}; look at that payment: {show}; {advice}", ExitCode.ERROR)

    def _line(self, state: str) -> str:
        request = self._request
        number = phone(request.phone_number, unmasked=request.unmasked)
        return visible(f"{request.type} of {int(request.amount):,} TZS, {number}: {state}")

    def _how_to_find_out(self) -> list[str]:
        """Return the next steps for a payment with an unknown result."""
        if self._request.key is not None:
            key = shlex.join(option("key", self._request.key))
            return [
                f"the same command with {key} looks for it first, and never sends it twice",
                f"{command_line('payments', 'reconcile', *self._service.flags)} looks for it too, and sends nothing",
            ]
        # An hour earlier, since the service's clock may differ from ours.
        day = f"{self._began - timedelta(hours=1):%Y-%m-%d}"
        listing = command_line("list", "--type", str(self._request.type), "--from", day, *self._service.flags)
        return [f"do not send it again before you have looked for it: {listing}"]

    async def _read_record(self, client: AsyncClient) -> None:
        if self._request.key is None:
            return
        # Where the call is being cancelled, this read may take a few more seconds. Until it has ended, the result is
        # unknown. After it the record decides, and without a record nothing was sent.
        self._is_unknown = True
        try:
            await shielded(partial(self._find_record, client, self._request.key), timeout=_LAST_LOOKUP)
        except errors.StoreError as exc:
            say(self._request.command, f"the store cannot show the payment's state: {exc}")

    async def _find_record(self, client: AsyncClient, key: str) -> None:
        self._record = await client.payments.get(key)
        self._is_unknown = False

    def _print(self, event: str, text: str = "", **fields: object) -> None:
        """Print an event: its text, or with ``--json`` its fields."""
        with ignoring_closed_pipe(text):
            if self._request.as_json:
                line = {"event": event, "at": datetime.now(UTC), **fields}
                print_json_line(plain(line, unmasked=self._request.unmasked))
            else:
                print(visible(text), flush=True)
