"""`mobilemoney accounts …`: the accounts of a platform's store, which one needs someone, and their states."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import attrs
import typer

from mobilemoney_async.cli import output
from mobilemoney_async.cli.app import add_command, command_group
from mobilemoney_async.cli.failures import Refused, WrongUsage, copyable, say
from mobilemoney_async.cli.options import (
    AsJSON,
    Service,
    SkipQuestion,
    check,
    read_phone_number,
    require_yes,
    with_service,
)
from mobilemoney_async.cli.stores import find_store, require_tables, run_with_account, run_with_sql_store
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.payments.records.account_status import (
    AccountNeed,
    AccountState,
    AccountStatus,
    Erasure,
    describe,
)
from mobilemoney_async.payments.records.reasons import RESTORED
from mobilemoney_async.text import arguments, command_line, visible
from mobilemoney_async.values import require_text

if TYPE_CHECKING:
    from mobilemoney_async.payments.book import PaymentBook
    from mobilemoney_async.payments.records.account_store import AccountStore
    from mobilemoney_async.payments.store import SQLStore

T = TypeVar("T")

OF_THE_DATABASE = ("store", "profile", "config")

accounts_app: typer.Typer = command_group(
    help="Accounts of a platform's store: which one needs someone, and which may pay.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage.",
    no_args_is_help=True,
)


def of_all_accounts(
    need: AccountNeed, work: Callable[[PaymentBook], Awaitable[Sequence[T]]], service: Service
) -> dict[str, Sequence[T]]:
    """Run work on the payments of each account of the store that needs someone for a reason; no service is needed."""

    async def run_all(store: SQLStore) -> dict[str, Sequence[T]]:
        from mobilemoney_async.payments.book import PaymentBook
        from mobilemoney_async.payments.store import account_store

        statuses = [each for each in await read_all(account_store(store)) if need in each.needs]
        books = {each.account: PaymentBook(account_store(store.for_account(each.account))) for each in statuses}
        return {account: await work(book) for account, book in books.items()}

    return run_with_sql_store("payments", run_all, find_store(service))


def print_by_account(
    found: Mapping[str, Sequence[T]], columns: Sequence[Column[T]], *, as_json: bool, unmasked: bool = False
) -> None:
    """Print rows of several accounts: as one list of JSON objects with their accounts, or as a table for each."""
    if as_json:
        rows = [(account, row) for account, some in found.items() for row in output.plain(some, unmasked=unmasked)]
        output.print_json([{"account": account, **row} for account, row in rows])
        return
    for account, some in found.items():
        print(visible(f"account {account}"))
        output.print_table(columns, some)
    if not found:
        say("payments", "no account of the store has any")


def because(status: AccountStatus) -> str:
    """Return why an account is in its state, why its queue is paused, and its last failure, with whole commands."""
    is_said = status.note is not None or status.state is not AccountState.ACTIVE
    state = describe(status.state, status.note) if is_said else None
    until = "" if status.paused_until is None else f" until {status.paused_until:%H:%M:%S} UTC"
    paused = None if status.paused is None else f"paused{until}: {status.paused}"
    failure = status.last_error if AccountNeed.FAILING in status.needs else None
    return copyable("; ".join(filter(None, (state, paused, failure))))


ACCOUNT_COLUMNS: tuple[Column[AccountStatus], ...] = (
    Column("account", lambda each: each.account, is_id=True),
    Column("needs someone", lambda each: ", ".join(each.needs), min_width=12),
    *map(output.count_column, ("pending", "unknown", "unmatched", "queued")),
    Column("because", because, min_width=20),
)

_REPEAT = "Erase again what `erasures --json` has listed, after a backup was restored."
Account = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's name in the store.")]
Note = Annotated[str, typer.Option(metavar="TEXT", help="Your name and reason; kept in the store.")]


@add_command(accounts_app, "list")
@with_service(*OF_THE_DATABASE)
def list_accounts(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also accounts that need nobody.")] = False,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """List the accounts that need someone, and why. Needs no service."""
    statuses = run_with_account("accounts", partial(read_all, everything=everything), find_store(service))
    nothing = "the store has no accounts" if everything else "no account needs anyone"
    output.print_found("accounts", statuses, ACCOUNT_COLUMNS, nothing, as_json=as_json)


async def read_all(store: AccountStore, *, everything: bool = False) -> list[AccountStatus]:
    """Return the accounts of a store that need someone, or all; refuse a store without tables."""
    from mobilemoney_async.sharing.accounts import read_accounts

    await require_tables(store)
    return await read_accounts(store, everything=everything)


@add_command(accounts_app, "suspend")
@with_service(*OF_THE_DATABASE)
def suspend(*, account: Account, note: Note, service: Service) -> None:
    """Suspend an account on every host: it begins no payment until resume. Needs no service.

    Queued payments wait, and no worker serves the account. Requests under way go on. The account need not have a
    payment yet.
    """
    _change(account, AccountState.SUSPENDED, note, service)


@add_command(accounts_app, "resume")
@with_service(*OF_THE_DATABASE)
def resume(
    *,
    account: Account,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Your name and reason; kept in the store.")] = None,
    service: Service,
) -> None:
    """Let an account pay again that was suspended or removed. Needs no service."""
    _change(account, AccountState.ACTIVE, note, service)


@add_command(accounts_app, "remove")
@with_service(*OF_THE_DATABASE)
def remove(*, account: Account, note: Note, service: Service) -> None:
    """Remove an account: nothing new, and open payments are followed to their end. Needs no service.

    Queued payments are not sent, and stay queued until you cancel them. The store keeps all that it knows.
    """
    _change(account, AccountState.REMOVED, note, service)


@add_command(accounts_app, "restored")
@with_service(*OF_THE_DATABASE)
def restored(*, note: Note, service: Service) -> None:
    """Say that the whole database was restored from a backup, before anything is paid with it. Needs no service.

    Each account is then compared with the service before its next payment, as after `payments restored`.
    """
    text = check(partial(require_text, "note"), note, "--note must say who you are, and which backup it was")

    async def work(store: AccountStore) -> tuple[int, tuple[int, Decimal]]:
        from mobilemoney_async.payments.ownership.searches import note_restored, queued_payouts

        await require_tables(store)
        count = await store.decide(lambda journal, at: note_restored(journal.connection, text, at))
        return count, await store.read(lambda journal: queued_payouts(journal.connection))

    count, queued = run_with_account("accounts", work, find_store(service))
    some = "1 account is compared with the service before its next payment."
    print(some if count == 1 else f"{count:,} accounts are compared with the service before their next payments.")
    others = "For each account that the backup does not know: mobilemoney payments restored --account NAME --note TEXT"
    print(visible(copyable(others)))
    say_queued(*queued, option=" --account NAME")


def say_queued(count: int, total: Decimal, option: str = "") -> None:
    """Say which disbursements of a restored store wait in its queue, if any do."""
    if count:
        waiting = f"{output.counted(count, 'queued disbursement')} of {output.money(total)}"
        print(visible(copyable(f"{waiting}: {RESTORED}{option}")))


@add_command(accounts_app, "erase")
@with_service(*OF_THE_DATABASE)
def erase(
    *,
    account: Annotated[str | None, typer.Argument(metavar="[ACCOUNT]", help="The account; none with --repeat.")] = None,
    phone: Annotated[str | None, typer.Option("--phone", metavar="PHONE", help="Erase this number alone.")] = None,
    repeat: Annotated[Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help=_REPEAT)] = None,
    yes: SkipQuestion = False,
    service: Service,
) -> None:
    """Erase a phone number from an account, or all numbers, notes and logins of it. Needs no service.

    Amounts, keys, ids and times stay, and digests in place of numbers. It is refused while a payment is open. It cannot
    be taken back.
    """
    if (account is None) == (repeat is None) or (phone is not None and account is None):
        raise WrongUsage("give an account, with --phone or without, or --repeat FILE")
    listed = None if repeat is None else _read_erasures(repeat)
    number = read_phone_number(phone, find_store(service))
    whose = f"account {account!r}"
    what = whose if number is None else f"the number {output.phone(number, unmasked=False)} of {whose}"
    if listed is None and not yes:
        require_yes(f"Erase {what} for ever?", otherwise="nothing was erased")

    async def work(store: SQLStore) -> list[Erasure]:
        if listed is not None:
            return await store.repeat_erasures(listed)
        if number is None:
            return [await store.erase_account(str(account))]
        return [await store.for_account(str(account)).erase(phone_number=number)]

    done = run_with_sql_store("accounts", work, find_store(service))
    if not done:
        print("nothing is left to erase")
    for each in done:
        told = ", ".join(f"{count} of {table.removeprefix('mobilemoney_')}" for table, count in each.rows.items())
        print(visible(f"{each.account}: erased {told or 'nothing'}"))


@add_command(accounts_app, "erasures")
@with_service(*OF_THE_DATABASE)
def list_erasures(*, as_json: AsJSON = False, service: Service) -> None:
    """List the erasures, to keep outside of the database's backups. Needs no service."""
    found = run_with_sql_store("accounts", lambda store: store.erasures(), find_store(service))
    columns: tuple[Column[Erasure], ...] = (
        Column("account", lambda each: each.account, is_id=True),
        Column("erased", lambda each: each.digest[:16], min_width=8),
        output.time_column("at, UTC", "at"),
    )
    output.print_found("accounts", found, columns, "nothing was erased so far", as_json=as_json, unmasked=True)


def _read_erasures(file: Path) -> list[Erasure]:
    try:
        listed = json.loads(file.read_text("utf-8"))
        if not isinstance(listed, list):
            raise TypeError
        return [Erasure.from_dict(each) for each in listed]
    except (ValueError, TypeError, RecursionError) as exc:
        raise WrongUsage(f"{file} is no list of `mobilemoney accounts erasures --json`") from exc


def _change(account: str, state: AccountState, note: str | None, service: Service) -> None:
    async def work(store: AccountStore) -> bool:
        from mobilemoney_async.sharing.accounts import read_accounts

        known = {status.account for status in await read_accounts(store, everything=True)}
        if account not in known and state is not AccountState.SUSPENDED:
            shown = command_line("accounts", "list", "--all", *service.flags)
            raise Refused(f"the store knows no account {account!r}; {shown} shows them")
        if account not in known:  # a wrong name would suspend nobody, and look done
            again = command_line(*arguments("accounts", "resume", account, options=service.flags))
            said = f"the store has nothing of it yet; if the name is wrong: {again}, and suspend the right one"
            say("accounts", f"account {account!r} is new: {said}")
        return await store.change_state(state, note, None)

    settings = find_store(attrs.evolve(service, account=account))
    if run_with_account("accounts", work, settings):
        print(visible(f"{account}: {state}"))
    else:
        say("accounts", f"account {account!r} is {state.lower()} already")
