"""`mobilemoney payments …`: the payments of a store, and decisions about those with an unknown result.

Only `reconcile` and `identify` talk to the service, which the user must have named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mobilemoney_async.cli import output
from mobilemoney_async.cli.accounts import of_all_accounts, print_by_account
from mobilemoney_async.cli.app import LazyCommand, add_command, command_group
from mobilemoney_async.cli.failures import OF_THE_SERVICE, ExitCode, Refused, copyable, say
from mobilemoney_async.cli.options import (
    AllAccounts,
    AsJSON,
    Service,
    SkipQuestion,
    Unmasked,
    read_phone_number,
    require_yes,
    with_service,
)
from mobilemoney_async.cli.stores import OF_THE_STORE, find_store, run_with_service, run_with_store, say_of_queue
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.configuration.settings import Settings
from mobilemoney_async.payments.records.account_status import AccountNeed
from mobilemoney_async.payments.records.next_steps import GRACE, RECONCILE, NextStep, next_step
from mobilemoney_async.payments.records.record import (
    HistoryEntry,
    PaymentEvent,
    PaymentRecord,
    PaymentState,
    Source,
    is_stale,
)
from mobilemoney_async.text import command_line, shown_text, visible

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.payments.book import PaymentBook

T = TypeVar("T")

# The default of `payments list --limit`.
_LIMIT = 100

payments_app: typer.Typer = command_group(
    LazyCommand("changes", "feed:list_changes", "List changes of payments in the order of the feed.", "Commands"),
    LazyCommand("consumers", "feed:list_consumers", "List the named consumers of the feed.", "Commands"),
    *(
        LazyCommand(name, f"unclaimed:{function}", summary, "Commands")
        for name, function, summary in (
            ("unclaimed", "list_unclaimed", "List transactions at the service that no payment of the store claims."),
            ("explain", "explain_transaction", "Explain transactions that no payment claims."),
            ("recover", "recover", "Import transactions that no payment owns, as after a restored backup."),
            ("audit", "audit", "Compare the store with the service's transaction list, for some days."),
            ("restored", "restored", "Say that the store was restored from a backup."),
            ("rebind", "rebind", "Bind the store's account to this base URL and these credentials."),
        )
    ),
    help="Payments in your store, and those with an unknown result.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage, 3 a payment is unresolved (only with --exit-code).",
    no_args_is_help=True,
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The payment's idempotency key.")]
_NAME = "Its idempotency key, or else its transaction id, the service's reference or its external id."
Name = Annotated[str, typer.Argument(metavar="KEY", help=_NAME)]
Note = Annotated[str, typer.Option(metavar="TEXT", help="Your name and reason; kept in the payment's history.")]
UnresolvedCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 3 if a payment needs someone: for monitoring.")
]
_STATES = f"Only payments in this state, or in several: {', '.join(PaymentState)}."
State = Annotated[list[PaymentState] | None, typer.Option(metavar="STATE", case_sensitive=False, help=_STATES)]
Unresolved = Annotated[
    bool, typer.Option("--unresolved", help="Only payments with an unknown result, being sent, or kept in the queue.")
]
_PHONE = "Only payments of this customer's number, as for collect. An erased number is not found."
Phone = Annotated[str | None, typer.Option("--phone", metavar="NUMBER", help=_PHONE)]
_NEWEST = f"At most so many, the newest; 0 for all. Default: {_LIMIT}; with --unresolved all."
Limit = Annotated[int | None, typer.Option(min=0, help=_NEWEST)]
_STALE = "Count a payment in SENDING as unknown if it was sent so long ago. 0 only if no other process is alive."
StaleAfter = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help=_STALE, show_default="when its request must have ended"),
]
_GRACE = "How long an existing payment may be missing from the list: the same as your program's."
Grace = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help=_GRACE, show_default="as the profile says, or 120")
]
OthersPay = Annotated[bool, typer.Option("--others-pay", help="As sole_writer=False in your program: adopt nothing.")]


def writers(*, others_pay: bool) -> dict[str, Any]:
    """Return the option of `SQLStore` for ``--others-pay``; without it the profile's counts."""
    return {"sole_writer": False} if others_pay else {}


@add_command(payments_app, "list")
@with_service(*OF_THE_STORE)
def list_payments(
    *,
    state: State = None,
    unresolved: Unresolved = False,
    phone: Phone = None,
    limit: Limit = None,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
    exit_code: UnresolvedCode = False,
    all_accounts: AllAccounts = False,
    service: Service,
) -> None:
    """List the newest payments, in the order in which they were recorded. Needs no service."""
    if state and unresolved:
        raise typer.BadParameter("give either --state or --unresolved", param_hint="--unresolved")
    if all_accounts:
        if not unresolved or limit or service.account is not None:
            said = "goes with --unresolved, and without --limit and --account"
            raise typer.BadParameter(said, param_hint="--all-accounts")
        find_open = partial(_unresolved, number=read_phone_number(phone, find_store(service)))
        of_each = of_all_accounts(AccountNeed.UNKNOWN, find_open, service)
        print_by_account(of_each, payment_columns(unmasked=unmasked), as_json=as_json, unmasked=unmasked)
        _exit_for([record for records in of_each.values() for record in records], exit_code=exit_code)
        return
    if limit is None:
        limit = 0 if unresolved else _LIMIT
    # One more than the output shows whether there are more.
    most = limit + 1 if limit else None
    store = find_store(service)
    number = read_phone_number(phone, store)

    async def find(book: PaymentBook) -> list[PaymentRecord]:
        if unresolved:
            return (await _unresolved(book, number=number))[::-1][:most]
        return await book.list(state or None, phone_number=number, limit=most, newest_first=True)

    records = run_with_store(find, store)
    shown = (records[:limit] if limit else records)[::-1]
    columns, nothing = payment_columns(unmasked=unmasked), f"no such payments of account {store.account!r}"
    output.print_found("payments", shown, columns, nothing, as_json=as_json, unmasked=unmasked)
    if not as_json:
        say_of_queue(shown, store)
    if len(shown) < len(records):
        say("payments", f"these are the newest {limit}; there are more (--limit 0 shows all)")
    _exit_for(shown, exit_code=exit_code)


@add_command(payments_app, "show")
@with_service(*OF_THE_STORE)
def show_payment(*, key: Name, as_json: AsJSON = False, unmasked: Unmasked = False, service: Service) -> None:
    """Show one payment with its history and the next step. Needs no service."""
    store = find_store(service)
    record = run_with_store(partial(_find_named, name=key, account=store.account), store)
    if as_json:
        output.print_json(output.plain(record, unmasked=unmasked))
    else:
        print_payment(record, service, unmasked=unmasked)
        say_of_queue([record], store)


@add_command(payments_app, "reconcile")
@with_service()
def reconcile(
    *,
    stale_after: StaleAfter = None,
    grace: Grace = None,
    others_pay: OthersPay = False,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
    exit_code: UnresolvedCode = False,
    service: Service,
) -> None:
    """Look up payments with an unknown result in the service's transaction list. Sends no money.

    Takes the service and the credentials from a profile, or from the environment: MOBILEMONEY_BASE_URL, and
    MOBILEMONEY_TOKEN or MOBILEMONEY_EMAIL and MOBILEMONEY_PASSWORD; MOBILEMONEY_STORE_KEY if the store has a key.
    """

    async def work(client: AsyncClient) -> tuple[list[PaymentRecord], list[PaymentRecord], list[PaymentRecord]]:
        payments = client.payments
        looked_up = await payments.reconcile(stale_after=stale_after)
        return looked_up, await payments.unresolved(), await find_put_off(payments)

    options: dict[str, Any] = {} if grace is None else {"grace": grace}
    looked_up, left, put_off = run_with_service(work, service, **options, **writers(others_pay=others_pay))
    if as_json:
        output.print_json(output.plain(looked_up, unmasked=unmasked))
    else:
        given = [
            *(["--grace", f"{grace:g}"] if grace is not None else []),
            *(["--others-pay"] if others_pay else []),
        ]
        print_step = partial(_print_next_step, service=service, grace=grace, options=given)
        account = service.settings().account
        with output.ignoring_closed_pipe():
            print_reconciled(looked_up, left, account, unmasked=unmasked, print_step=print_step)
            for each in put_off:
                if not each.is_kept:  # those that are, however many, are left
                    print_step(each)
    _exit_for(left, exit_code=exit_code)


@add_command(payments_app, "confirm-absent")
@with_service(*OF_THE_STORE)
def confirm_absent(
    *,
    key: Key,
    note: Note,
    yes: SkipQuestion = False,
    unmasked: Unmasked = False,
    service: Service,
) -> None:
    """Confirm that an unknown or absent payment does not exist, after you have looked. Needs no service.

    Your program may then use its key again, and sends money when it does. If the payment exists after all, the customer
    pays twice, or you do. So look for it first: on the service's dashboard, or ask the service or the customer.
    """
    store = find_store(service)
    before = _find_record(key, store)
    if not yes:
        print_payment(before, service, unmasked=unmasked)
        if not before.is_unresolved:
            raise Refused(f"payment {key!r} is {before.state}, not unknown or absent: nothing was changed")
        output.show("If you confirm that it does not exist, its key may be used again: money is then sent again.")
        output.show("If it exists after all, the payment is made twice.")
        require_yes("Do you confirm that this payment does not exist?", otherwise="nothing was changed")

    async def confirm(book: PaymentBook) -> PaymentRecord:
        now = await book.get(key)
        # The user decided about the record on the screen; another process may have changed it since.
        if now is None or (now.attempt, now.candidates) != (before.attempt, before.candidates):
            raise Refused(f"payment {key!r} has changed in the meantime: look at it again")
        return await book.confirm_absent(key, note=note)

    _print_next_step(run_with_store(confirm, store), service)


@add_command(payments_app, "cancel")
@with_service(*OF_THE_STORE)
def cancel(
    *,
    key: Key,
    note: Note,
    reusable: Annotated[bool, typer.Option("--reusable", help="Its key may be used again: it was not sent.")] = False,
    yes: SkipQuestion = False,
    unmasked: Unmasked = False,
    service: Service,
) -> None:
    """Take a queued payment out of the queue: nothing sends it. Needs no service.

    Its key is used up, unless --reusable. A payment that was refused before, as far as is known, is REFUSED again.
    """
    store = find_store(service)
    if not yes:
        before = _find_record(key, store)
        print_payment(before, service, unmasked=unmasked)
        if before.state is not PaymentState.QUEUED:
            raise Refused(f"payment {key!r} is {before.state}, not queued: nothing was changed")
        after = "may be used again" if reusable else "is used up"
        require_yes(f"Cancel this payment? Its key {after}.", otherwise="nothing was changed")
    cancelled = run_with_store(lambda book: book.cancel(key, note=note, reusable=reusable), store)
    _print_next_step(cancelled, service)


@add_command(payments_app, "identify")
@with_service()
def identify(
    *,
    key: Key,
    transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION_ID", help="Its id.")],
    note: Note,
    service: Service,
) -> None:
    """Confirm that an unknown or absent payment is a transaction, after you have looked. Sends no money.

    The transaction is fetched first. Its type, phone number and amount must match. Takes the service and the
    credentials as reconcile does.
    """
    found = run_with_service(lambda client: client.payments.identify(key, transaction_id, note=note), service)
    _print_next_step(found, service)


async def find_put_off(payments: PaymentBook) -> list[PaymentRecord]:
    """Return queued payments that could not be sent: as a rule, the oldest of the queue were tried first."""
    return [each for each in await payments.list(PaymentState.QUEUED, limit=_LIMIT) if each.reason is not None]


async def _unresolved(book: PaymentBook, *, number: str | None) -> list[PaymentRecord]:
    return [each for each in await book.unresolved() if number in {None, each.phone_number}]


async def _find_named(book: PaymentBook, *, name: str, account: str) -> PaymentRecord:
    """Return the payment with a key, or else with another name, with its history."""
    record = await book.get(name)
    if record is not None:
        return record
    keys = [each.key for each in await book.find(name)]
    if len(keys) > 1:
        raise Refused(f"several payments have the name {name!r}: show one by its key: {', '.join(map(repr, keys))}")
    record = await book.get(keys[0]) if keys else None
    if record is None:
        raise Refused(f"there is no payment {name!r} of account {account!r}")
    say("payments", f"{name!r} is a name of the payment with the key {record.key!r}")
    return record


def _find_record(key: str, settings: Settings) -> PaymentRecord:
    async def find(book: PaymentBook) -> PaymentRecord:
        record = await book.get(key)
        if record is None:
            raise Refused(f"there is no payment {key!r} of account {settings.account!r}")
        return record

    return run_with_store(find, settings)


def _exit_for(records: Sequence[PaymentRecord], *, exit_code: bool) -> None:
    if exit_code and any(needs_attention(record, datetime.now(UTC)) for record in records):
        raise typer.Exit(ExitCode.UNRESOLVED)


def command_lines(step: NextStep, service: Service, *of_reconcile: str) -> list[str]:
    """Return the command lines of a next step, with the options that were given, and those of reconcile for that."""
    lines: list[str] = []
    for words in step.commands:
        needs_service = words[0] != "payments" or words[1] in OF_THE_SERVICE
        options = [*(of_reconcile if words == RECONCILE else ())]
        options += service.flags if needs_service else service.store_flags
        lines.append(command_line(*words, options=options))
    return lines


def needs_attention(record: PaymentRecord, now: datetime) -> bool:
    """Return whether someone has to look: the result will not come with the answer to the payment's request."""
    is_open = record.is_unresolved and (record.state is not PaymentState.SENDING or is_stale(record, now))
    return is_open or record.is_contradicted or record.is_kept


def payment_columns(*, unmasked: bool) -> tuple[Column[PaymentRecord], ...]:
    """Return the columns of a table of payments."""
    return (
        Column("key", lambda each: each.key, is_id=True),
        *output.payment_columns(unmasked=unmasked),
        Column("state", _state, min_width=16),
        output.time_column("sent, UTC", "sent_at"),
        Column("transaction", lambda each: each.transaction_id or " ".join(each.candidates), is_id=True),
    )


def print_payment(record: PaymentRecord, service: Service, *, unmasked: bool) -> None:
    """Print all facts of one payment, its next step and its history."""
    step = next_step(record, datetime.now(UTC), grace=_grace(service))
    facts = {
        "key": record.key,
        "type": str(record.type),
        "amount": output.money(record.amount),
        "phone number": output.phone(record.phone_number, unmasked=unmasked),
        "state": _state(record),
        "attempts": str(record.attempt),
        "first recorded": output.moment(record.created_at),
        "last sent": output.moment(record.sent_at),
        "request ended": output.moment(record.ended_at),
        "transaction": f"{record.transaction_id or ''}{', found in the list' if record.is_adopted else ''}",
        "reference": record.reference,
        "candidates": " ".join(record.candidates),
        "full listings without it": str(record.walks or ""),
        "last look in the list": output.moment(record.looked_at),
        "not called absent because": record.reason if record.state is PaymentState.UNKNOWN else None,
        "failure": None if record.transaction is None else shown_text(record.transaction.failure_reason or ""),
        "error": record.error,
        "what to do": copyable(step.text),
    }
    output.show_facts(facts)
    if step.commands:
        output.show(*map(output.command, command_lines(step, service)))

    def said(entry: HistoryEntry) -> str:
        # Of the others none holds a number; some name long ids, and so does what someone adopts, before the note.
        parts = (entry.detail or "").split(": ", 1 if entry.what == PaymentEvent.ADOPT.value else 0)
        return ": ".join(output.said(each, unmasked=unmasked or entry.source != Source.PERSON) for each in parts)

    columns: tuple[Column[HistoryEntry], ...] = (
        output.time_column("at, UTC", "at"),
        Column("what", lambda each: each.what, min_width=5),
        Column("source", lambda each: each.source, min_width=5),
        Column("detail", said, min_width=5),
    )
    if record.history:
        output.show("", output.new_table(columns, record.history))


def print_reconciled(
    looked_up: Sequence[PaymentRecord],
    left: Sequence[PaymentRecord],
    account: str,
    *,
    unmasked: bool,
    print_step: Callable[[PaymentRecord], None],
) -> None:
    """Print the results of a reconciliation, the next steps, and the number of payments that are left."""
    now = datetime.now(UTC)
    if looked_up:
        output.print_table(payment_columns(unmasked=unmasked), looked_up)
    elif not left:
        print(visible(f"No payment of account {account!r} has an unknown result."))
    for record in {each.key: each for each in (*looked_up, *left)}.values():
        if record.is_unresolved or record.is_contradicted or record.is_kept:
            print_step(record)
    resolved = sum(not record.is_unresolved for record in looked_up)
    waiting = sum(needs_attention(record, now) for record in left)
    print(f"{resolved} resolved, {waiting} still unresolved, {len(left) - waiting} being sent.")


def _grace(service: Service, given: float | None = None) -> timedelta:
    options = find_store(service).store_options
    return timedelta(seconds=options.get("grace", GRACE.total_seconds()) if given is None else given)


def _print_next_step(
    record: PaymentRecord, service: Service, grace: float | None = None, options: Sequence[str] = ()
) -> None:
    """Print the next step for a payment, and the command lines, those for reconcile with some options."""
    step = next_step(record, datetime.now(UTC), grace=_grace(service, grace))
    lines = (f"  {each}" for each in command_lines(step, service, *options))
    print("\n".join(map(visible, (f"{record.key}: {record.state}. {copyable(step.text)}", *lines))))


def _state(record: PaymentRecord) -> str:
    status = f" {shown_text(record.status)}" if record.status is not None else ""
    is_said = record.state is PaymentState.QUEUED or record.is_contradicted
    cause = f", {record.cause.lower()}" if record.cause is not None and is_said else ""
    return f"{record.state}{status}{cause}{', ambiguous' if record.is_ambiguous else ''}"
