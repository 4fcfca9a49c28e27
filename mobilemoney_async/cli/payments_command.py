"""`mobilemoney payments …`: look into a store of payments, find out about unknown ones, and say what a person knows.

Exit codes: 0 fine; 1 an error, or the person said no; 2 wrong usage; 3, with ``--exit-code`` only, something is
unresolved. Only `reconcile` and `identify` talk to the service, which somebody must have named.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import attrs
import typer

from mobilemoney_async.cli import payments_report as report
from mobilemoney_async.cli.failures import ExitCode, Refused, require_service, require_yes, run, say
from mobilemoney_async.cli.lazy import lazy_group
from mobilemoney_async.cli.options import (
    AccountOption,
    AsJSON,
    BaseURLOption,
    ConfigOption,
    ProfileOption,
    StoreOption,
    Unmasked,
)
from mobilemoney_async.cli.service import missing_file
from mobilemoney_async.cli.settings import Settings, load_settings, open_client, open_store
from mobilemoney_async.cli.text import plain, print_json
from mobilemoney_async.payments.records import UNIDENTIFIED, PaymentRecord, PaymentState
from mobilemoney_async.values import Secret

if TYPE_CHECKING:
    from mobilemoney_async.payments.payments import PaymentBook
    from mobilemoney_async.payments.store import SQLStore

T = TypeVar("T")

# How many payments are listed where nobody says.
_MANY = 100

payments_app: typer.Typer = typer.Typer(
    cls=lazy_group(),
    help="The payments of a store: what became of each, and what nobody knows.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage, 3 something is unresolved (only with --exit-code).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
)


Key = Annotated[str, typer.Argument(metavar="KEY", help="The payment's idempotency key.", show_default=False)]
Note = Annotated[
    str, typer.Option(metavar="TEXT", help="Who says so and why; kept in the payment's history.", show_default=False)
]
SaysUnresolved = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 3 where a payment is unknown or absent: for monitoring.")
]


@payments_app.command("list")
def list_payments(
    *,
    store: StoreOption = None,
    account: AccountOption = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    state: Annotated[
        list[PaymentState] | None,
        typer.Option(
            metavar="STATE",
            case_sensitive=False,
            help=f"Only payments in this state, or in several: {', '.join(PaymentState)}.",
            show_default=False,
        ),
    ] = None,
    unresolved: Annotated[
        bool,
        typer.Option("--unresolved", help="Only payments of which nobody knows what became, or that are being sent."),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How many, the newest of them; 0 for all.",
            show_default=f"{_MANY}; with --unresolved all",
        ),
    ] = None,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
    exit_code: SaysUnresolved = False,
) -> None:
    """List payments, oldest first. Needs no service."""
    if state and unresolved:
        raise typer.BadParameter("give either --state or --unresolved", param_hint="--unresolved")
    if limit is None:
        limit = 0 if unresolved else _MANY
    wanted = UNIDENTIFIED if unresolved else state or None

    async def look(book: PaymentBook) -> list[PaymentRecord]:
        # One more than are shown tells whether there are more.
        return await book.list(wanted, limit=limit + 1 if limit else None, newest_first=True)

    books = _find_books(store, account, profile, config)
    records = _run(look, books)
    shown = (records[:limit] if limit else records)[::-1]
    if as_json:
        print_json([plain(record, unmasked=unmasked) for record in shown])
    elif shown:
        report.print_payments(shown, unmasked=unmasked)
    else:
        say("payments", f"no such payments of account {books.account!r}")
    if len(shown) < len(records):
        say("payments", f"these are the newest {limit}; there are more (--limit 0 shows all)")
    _exit_for(shown, exit_code=exit_code)


@payments_app.command()
def show(
    *,
    store: StoreOption = None,
    key: Key,
    account: AccountOption = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
) -> None:
    """Show one payment with everything that happened to it, and what to do next. Needs no service."""
    books = _find_books(store, account, profile, config)
    record = _run(lambda book: book.get(key), books)
    if record is None:
        raise _missing(key, books)
    if as_json:
        print_json(plain(record, unmasked=unmasked))
    else:
        report.print_payment(record, _utcnow(), unmasked=unmasked)


@payments_app.command(
    # Here, since a docstring of several lines would be shown with its line breaks.
    help="Find out what became of unknown payments, from the service's transaction list. Sends no money.\n\n"
    "Takes the service and the credentials from a profile, or from the environment: MOBILEMONEY_BASE_URL, and "
    "MOBILEMONEY_TOKEN or MOBILEMONEY_EMAIL and MOBILEMONEY_PASSWORD; MOBILEMONEY_STORE_KEY where the store has a key."
)
def reconcile(
    *,
    store: StoreOption = None,
    account: AccountOption = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    stale_after: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Count a payment that is being sent as unknown when it was sent so long ago. "
            "0 only where no other process is alive.",
            show_default="when its request must have ended",
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="For how long a payment may exist that the list does not show: the same as your program's.",
        ),
    ] = 120.0,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
    exit_code: SaysUnresolved = False,
) -> None:
    """Find out what became of unknown payments."""
    settings = require_service(load_settings(profile, config, base_url, store, account))

    async def find_out() -> tuple[list[PaymentRecord], list[PaymentRecord]]:
        async with open_client(settings, store=_open(_books_of(settings), grace=grace)) as client:
            looked_for = await client.payments.reconcile(stale_after=stale_after)
            return looked_for, await client.payments.unresolved()

    looked_for, left = run("payments", find_out, settings=settings)
    if as_json:
        print_json([plain(record, unmasked=unmasked) for record in looked_for])
    else:
        report.print_reconciled(looked_for, left, _utcnow(), unmasked=unmasked)
    _exit_for(left, exit_code=exit_code)


@payments_app.command(
    help="Say that an unknown or absent payment does not exist, after you have looked. Needs no service.\n\n"
    "Your program may then use its key again, and money moves when it does. If the payment exists after all, the "
    "customer pays twice, or you do. So look first where it would show: on the service's dashboard, or by asking the "
    "service or the customer."
)
def confirm_absent(
    *,
    store: StoreOption = None,
    key: Key,
    note: Note,
    account: AccountOption = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask back.")] = False,
    unmasked: Unmasked = False,
) -> None:
    """Say that an unknown or absent payment does not exist."""
    books = _find_books(store, account, profile, config)
    before = _run(lambda book: book.get(key), books)
    if before is None:
        raise _missing(key, books)
    if not yes:
        report.print_payment(before, _utcnow(), unmasked=unmasked)
        if not before.is_unresolved:
            raise Refused(f"payment {key!r} is {before.state}, not unknown or absent: nothing was changed")
        report.print_warning()
        require_yes("Do you say that this payment does not exist?", otherwise="nothing was changed")

    async def confirm(book: PaymentBook) -> PaymentRecord:
        now = await book.get(key)
        # What was shown is what the person's word is about.
        if now is None or (now.attempt, now.candidates) != (before.attempt, before.candidates):
            raise Refused(f"payment {key!r} has changed meanwhile: look at it again")
        return await book.confirm_absent(key, note=note)

    record = _run(confirm, books)
    typer.echo(f"{record.key}: {record.state}. {report.advice(record, _utcnow())}")


@payments_app.command(
    help="Say which transaction an unknown or absent payment is, after you have looked. Sends no money.\n\n"
    "The transaction is fetched first, and must be of the payment's type, phone number and amount. Takes the service "
    "and the credentials as reconcile does."
)
def identify(
    *,
    store: StoreOption = None,
    key: Key,
    transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION_ID", help="Which it is.", show_default=False)],
    note: Note,
    account: AccountOption = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
) -> None:
    """Say which transaction an unknown or absent payment is."""
    settings = require_service(load_settings(profile, config, base_url, store, account))

    async def look_and_say() -> PaymentRecord:
        async with open_client(settings, store=_open(_books_of(settings))) as client:
            return await client.payments.identify(key, transaction_id, note=note)

    record = run("payments", look_and_say, settings=settings)
    typer.echo(f"{record.key}: {record.state}. {report.advice(record, _utcnow())}")


@attrs.frozen
class _Books:
    """Which payments of which database."""

    url: str = attrs.field(repr=False)
    account: str
    key: Secret | None


def _find_books(store: str | None, account: str | None, profile: str | None, config: str | None) -> _Books:
    """Return the store that is named: no service is spoken to, so none has to be."""
    url = store or os.environ.get("MOBILEMONEY_STORE", "").strip()
    if url and profile is None and config is None:
        key = os.environ.get("MOBILEMONEY_STORE_KEY")
        return _Books(url, "default" if account is None else account, Secret(key) if key else None)
    return _books_of(load_settings(profile, config, None, store, account))


def _books_of(settings: Settings) -> _Books:
    if settings.store is None:
        raise Refused(
            f"profile {settings.profile} has no store: name one with --store, MOBILEMONEY_STORE or in the profile",
            ExitCode.USAGE,
        )
    return _Books(settings.store, settings.account, settings.store_key)


def _run(work: Callable[[PaymentBook], Awaitable[T]], books: _Books) -> T:
    """Run work on what the store alone knows."""

    async def on_the_store() -> T:
        store = _open(books)
        from mobilemoney_async.payments.payments import PaymentBook  # needs the extra, which the store asks for

        try:
            return await work(PaymentBook(store))
        finally:
            store.close()

    return run("payments", on_the_store)


def _open(books: _Books, **options: Any) -> SQLStore:
    file = missing_file(books.url)
    if file is not None:
        # A person who looks for payments has mistyped the name of the store.
        raise Refused(f"there is no file {file}: check the name of the store; a payment with it makes one")
    return open_store(books.url, books.account, key=books.key, **options)


def _missing(key: str, books: _Books) -> typer.Exit:
    say("payments", f"there is no payment {key!r} of account {books.account!r}")
    return typer.Exit(ExitCode.ERROR)


def _exit_for(records: Sequence[PaymentRecord], *, exit_code: bool) -> None:
    now = _utcnow()
    if exit_code and any(report.needs_attention(record, now) for record in records):
        raise typer.Exit(ExitCode.UNRESOLVED)


def _utcnow() -> datetime:
    return datetime.now(UTC)
