"""`mobilemoney payments …`: look into a store of payments, find out about unknown ones, and say what a person knows.

Exit codes: 0 fine; 1 an error, or the person said no; 2 wrong usage; 3, with ``--exit-code`` only, something is
unresolved. Only `reconcile` and `identify` talk to the service. What is secret comes from the environment, never from
an argument, which other users of the machine can read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer

from mobilemoney_async.cli import payments_report as report
from mobilemoney_async.client import AsyncClient
from mobilemoney_async.errors import InvalidRequest, MobileMoneyError
from mobilemoney_async.payments.records import UNIDENTIFIED, PaymentRecord, PaymentState
from mobilemoney_async.payments.store import SQLStore

if TYPE_CHECKING:
    from mobilemoney_async.payments.payments import PaymentBook

T = TypeVar("T")

ERROR, USAGE, UNRESOLVED = 1, 2, 3
# How many payments are listed where nobody says.
_MANY = 100
# As SQLAlchemy reads a URL: up to the first @, and within the query.
_PASSWORD = re.compile(r"^[^:]*://[^:/]*:[^@]+@|[?&](ssl)?password=", re.IGNORECASE)
_SQLITE_FILE = re.compile(r"sqlite(?:\+pysqlite)?:///(?!file:)([^?]+)(?:\?.*)?")

payments_app: typer.Typer = typer.Typer(
    help="The payments of a store: what became of each, and what nobody knows.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage, 3 something is unresolved (only with --exit-code).",
    no_args_is_help=True,
)


def _no_password(context: typer.Context, url: str) -> str:
    source = context.get_parameter_source("store")
    if source is not None and source.name == "COMMANDLINE" and _PASSWORD.search(url):
        raise typer.BadParameter(
            "a URL with a password belongs in MOBILEMONEY_STORE (or the password in PGPASSWORD or ~/.pgpass): "
            "other users of this machine can read arguments"
        )
    return url


Store = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="MOBILEMONEY_STORE",
        callback=_no_password,
        help="The store: sqlite:///payments.db or postgresql+psycopg://user@host/database. "
        "Where the URL holds a password, give it by the environment.",
        show_default=False,
    ),
]
Account = Annotated[str, typer.Option(metavar="NAME", help="Whose payments, where merchants share a database.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The payment's idempotency key.", show_default=False)]
Note = Annotated[
    str, typer.Option(metavar="TEXT", help="Who says so and why; kept in the payment's history.", show_default=False)
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Unmasked = Annotated[bool, typer.Option("--unmasked", help="Show phone numbers whole.")]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 3 where a payment is unknown or absent: for monitoring.")
]


@payments_app.command("list")
def list_payments(
    *,
    store: Store,
    account: Account = "default",
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
    exit_code: ExitCode = False,
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

    records = _run(look, store, account)
    shown = (records[:limit] if limit else records)[::-1]
    if as_json:
        report.print_json([report.plain(record, unmasked=unmasked) for record in shown])
    elif shown:
        report.print_payments(shown, unmasked=unmasked)
    else:
        _say(f"no such payments of account {account!r}")
    if len(shown) < len(records):
        _say(f"these are the newest {limit}; there are more (--limit 0 shows all)")
    _exit_for(shown, exit_code=exit_code)


@payments_app.command()
def show(
    *, store: Store, key: Key, account: Account = "default", as_json: AsJSON = False, unmasked: Unmasked = False
) -> None:
    """Show one payment with everything that happened to it, and what to do next. Needs no service."""
    record = _run(lambda book: book.get(key), store, account)
    if record is None:
        raise _missing(key, account)
    if as_json:
        report.print_json(report.plain(record, unmasked=unmasked))
    else:
        report.print_payment(record, _utcnow(), unmasked=unmasked)


@payments_app.command(
    # Here, since a docstring of several lines would be shown with its line breaks.
    help="Find out what became of unknown payments, from the service's transaction list. Sends no money.\n\n"
    "Takes the service and the credentials from the environment: MOBILEMONEY_BASE_URL, and MOBILEMONEY_TOKEN or "
    "MOBILEMONEY_EMAIL and MOBILEMONEY_PASSWORD; MOBILEMONEY_STORE_KEY where the store has a key."
)
def reconcile(
    *,
    store: Store,
    account: Account = "default",
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
    exit_code: ExitCode = False,
) -> None:
    """Find out what became of unknown payments."""

    async def find_out() -> tuple[list[PaymentRecord], list[PaymentRecord]]:
        async with AsyncClient.from_env(store=_open(store, account, grace=grace)) as client:
            looked_for = await client.payments.reconcile(stale_after=stale_after)
            return looked_for, await client.payments.unresolved()

    looked_for, left = _guarded(find_out)
    if as_json:
        report.print_json([report.plain(record, unmasked=unmasked) for record in looked_for])
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
    store: Store,
    key: Key,
    note: Note,
    account: Account = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask back.")] = False,
    unmasked: Unmasked = False,
) -> None:
    """Say that an unknown or absent payment does not exist."""
    before = _run(lambda book: book.get(key), store, account)
    if before is None:
        raise _missing(key, account)
    if not yes:
        report.print_payment(before, _utcnow(), unmasked=unmasked)
        report.print_warning()
        typer.confirm("Do you say that this payment does not exist?", abort=True, err=True)

    async def say(book: PaymentBook) -> PaymentRecord:
        now = await book.get(key)
        # What was shown is what the person's word is about.
        if now is None or (now.attempt, now.candidates) != (before.attempt, before.candidates):
            raise _Refused(f"payment {key!r} has changed meanwhile: look at it again")
        return await book.confirm_absent(key, note=note)

    record = _run(say, store, account)
    typer.echo(f"{record.key}: {record.state}. {report.advice(record, _utcnow())}")


@payments_app.command(
    help="Say which transaction an unknown or absent payment is, after you have looked. Sends no money.\n\n"
    "The transaction is fetched first, and must be of the payment's type, phone number and amount. Takes the service "
    "and the credentials from the environment, as reconcile does."
)
def identify(
    *,
    store: Store,
    key: Key,
    transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION_ID", help="Which it is.", show_default=False)],
    note: Note,
    account: Account = "default",
) -> None:
    """Say which transaction an unknown or absent payment is."""

    async def say() -> PaymentRecord:
        async with AsyncClient.from_env(store=_open(store, account)) as client:
            return await client.payments.identify(key, transaction_id, note=note)

    record = _guarded(say)
    typer.echo(f"{record.key}: {record.state}. {report.advice(record, _utcnow())}")


class _Refused(Exception):
    """What a person is told instead of a result."""


def _run(work: Callable[[PaymentBook], Awaitable[T]], url: str, account: str) -> T:
    """Run work on what the store alone knows."""

    async def on_the_store() -> T:
        store = _open(url, account)
        from mobilemoney_async.payments.payments import PaymentBook  # needs the extra, which the store asks for

        try:
            return await work(PaymentBook(store, _utcnow))
        finally:
            store.close()

    return _guarded(on_the_store)


def _open(url: str, account: str, **options: Any) -> SQLStore:
    file = _SQLITE_FILE.fullmatch(url)
    if file is not None and not Path(file[1]).exists():
        # A store makes its database on first use; a person who looks for payments has mistyped the name of one.
        raise _Refused(f"there is no file {file[1]}")
    return SQLStore(url, account, key=os.environ.get("MOBILEMONEY_STORE_KEY") or None, **options)


def _guarded(work: Callable[[], Awaitable[T]]) -> T:
    try:
        return anyio.run(work, backend="asyncio")
    except (MobileMoneyError, _Refused) as exc:
        _say(" ".join(str(exc).split()))
        raise typer.Exit(USAGE if isinstance(exc, InvalidRequest) else ERROR) from exc


def _missing(key: str, account: str) -> typer.Exit:
    _say(f"there is no payment {key!r} of account {account!r}")
    return typer.Exit(ERROR)


def _exit_for(records: Sequence[PaymentRecord], *, exit_code: bool) -> None:
    now = _utcnow()
    if exit_code and any(report.needs_attention(record, now) for record in records):
        raise typer.Exit(UNRESOLVED)


def _say(text: str) -> None:
    typer.echo(f"mobilemoney payments: {text}", err=True)


def _utcnow() -> datetime:
    return datetime.now(UTC)
