"""`mobilemoney payments unclaimed`, `explain`, `recover` and `rebind`: the store compared with its service."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mobilemoney_async.cli import output
from mobilemoney_async.cli.accounts import of_all_accounts, print_by_account, say_queued
from mobilemoney_async.cli.failures import ExitCode, WrongUsage, copyable, say
from mobilemoney_async.cli.options import (
    AllAccounts,
    AsJSON,
    Service,
    SkipQuestion,
    Unmasked,
    read_phone_number,
    require_phone_number,
    require_yes,
    with_service,
)
from mobilemoney_async.cli.payments import OthersPay, command_lines, payment_columns, writers
from mobilemoney_async.cli.stores import OF_THE_STORE, find_store, run_with_account, run_with_service, run_with_store
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.cli.transactions import DAYS, read_day
from mobilemoney_async.configuration.settings import Settings
from mobilemoney_async.contract.comparison import may_be_number
from mobilemoney_async.payments.payouts.spreadsheet import SIGNATURE, read_sheet, require_plain
from mobilemoney_async.payments.records.account_status import AccountNeed
from mobilemoney_async.payments.records.next_steps import NextStep
from mobilemoney_async.payments.records.reasons import NOTHING_SHOWS
from mobilemoney_async.payments.records.record import CLAIMED, OPEN, UnclaimedTransaction
from mobilemoney_async.text import csv_cell, shown_id, shown_text, visible

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.payments.audit.report import AuditReport, AuditTotal
    from mobilemoney_async.payments.book import PaymentBook
    from mobilemoney_async.payments.records.journal import Journal

_PAIRS = "Payments to import: a key of yours and its transaction; KEY = TRANSACTION_ID, apart, where the id holds =."
_CSV_HEADER = (
    *("kind", "type", "status", "settlement_batch", "count", "amount", "fees", "net"),
    *("key", "transaction_id", "reason", "advice"),
)
_COMPARED = "Say that you have compared it yourself, where its list is never read as a whole: disbursements go on."
_CSV = "Payments to import: a CSV or .xlsx file with the header key,transaction_id or key,transaction_id,phone_number."


def _state(transaction: UnclaimedTransaction) -> str:
    note = output.said(transaction.note, unmasked=False)
    return f"{transaction.state}: {note}" if note else transaction.state


UNCLAIMED_COLUMNS: tuple[Column[UnclaimedTransaction], ...] = (
    Column("transaction", lambda each: each.transaction_id, is_id=True),
    *output.payment_columns(unmasked=True),  # the store has masked them
    Column("status", lambda each: shown_text(each.status), min_width=7),
    output.time_column("made, UTC", "created_at"),
    Column("paid twice?", lambda each: each.fits_key or "", is_id=True),
    Column("state", _state, min_width=5),
)


@with_service(*OF_THE_STORE)
def list_unclaimed(
    *,
    show_all: Annotated[bool, typer.Option("--all", help="Also those that are explained or claimed by now.")] = False,
    as_json: AsJSON = False,
    all_accounts: AllAccounts = False,
    service: Service,
) -> None:
    """List transactions at the service that no payment of the store claims. Needs no service.

    One that fits a payment may be that payment made twice. Look it up, then use explain.
    """
    if all_accounts:
        if show_all or service.account is not None:
            raise typer.BadParameter("goes without --all and --account", param_hint="--all-accounts")
        of_each = of_all_accounts(AccountNeed.UNMATCHED, lambda book: book.unclaimed(OPEN), service)
        print_by_account(of_each, UNCLAIMED_COLUMNS, as_json=as_json)
        return
    store = find_store(service)
    found = run_with_store(lambda book: book.unclaimed(None if show_all else OPEN), store)
    nothing = _none(store, f"no such transactions of account {store.account!r}")
    output.print_found("payments", found, UNCLAIMED_COLUMNS, nothing, as_json=as_json)


@with_service(*OF_THE_STORE)
def explain_transaction(
    *,
    transaction_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[TRANSACTION_ID]…", help="One or several that `unclaimed` lists.")
    ] = None,
    before: Annotated[str | None, typer.Option(metavar="DAY", help=f"All that were made before a day: {DAYS}.")] = None,
    phone: Annotated[str | None, typer.Option(metavar="NUMBER", help="All that may be of a phone number.")] = None,
    lost: Annotated[bool, typer.Option("--lost", help="With a filter: also those of a lost time.")] = False,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Your name and the explanation; kept with each.")],
    yes: SkipQuestion = False,
    service: Service,
) -> None:
    """Explain transactions that no payment claims, after you have looked. Needs no service.

    They then keep no payment from being sent. Of a payment whose final state has changed, this keeps the first one.
    Instead of ids you may give filters: their transactions are listed, and explained after you have agreed.
    """
    day, store = read_day("--before", before), find_store(service)
    is_filtered = day is not None or phone is not None
    if bool(transaction_ids) is is_filtered or (lost and not is_filtered):
        raise WrongUsage("give either ids, or --before and --phone (with --lost, if you want)")
    names = list(transaction_ids or ())
    if is_filtered:
        number = read_phone_number(phone, store)
        listed = run_with_store(lambda book: book.unclaimed(), store)
        found = [each for each in listed if _is_chosen(each, day, number, lost=lost)]
        if not found:
            say("payments", f"no such transactions of account {store.account!r}")
            return
        output.print_table(UNCLAIMED_COLUMNS, found)
        if not yes:
            require_yes(f"Explain {output.counted(len(found), 'transaction')}?", otherwise="nothing was changed")
        names = [each.transaction_id for each in found]

    async def explain(book: PaymentBook) -> None:
        for each in names:
            explained = await book.explain(each, note=note)
            is_seen = bool(explained.type) or explained.state == CLAIMED  # else the store has the word alone
            said = "It stops no payment any more." if is_seen else "No list has shown this id so far: check it."
            print(visible(f"{explained.transaction_id}: {explained.state}. {said}"))

    run_with_store(explain, store)


def _is_chosen(transaction: UnclaimedTransaction, before: date | None, number: str | None, *, lost: bool) -> bool:
    """Return whether the filters of `explain_transaction` choose a transaction."""
    made_at = transaction.created_at
    is_early = before is None or (made_at is not None and made_at.date() < before)
    is_of_number = number is None or may_be_number(transaction.phone_number, number)
    return is_early and is_of_number and (lost or not transaction.is_gap)


@with_service()
def recover(
    *,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="[KEY=TRANSACTION_ID]…", help=_PAIRS)] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help=_CSV)] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Your name and reason, for an import.")] = None,
    as_json: AsJSON = False,
    unmasked: Unmasked = False,
    service: Service,
) -> None:
    """Import transactions that the store has forgotten, as after a restored backup; without any, list them.

    Each is imported as the payment of a key, which your own books know, and then stops no payment any more. Sends no
    money. The list needs no service; an import takes the service and the credentials as reconcile does.
    """
    keys, numbers = read_pairs(pairs or [], file)
    if keys:
        if note is None:
            raise typer.BadParameter("an import needs --note", param_hint="--note")
        text, settings = note, service.settings()
        for name, number in numbers.items():
            numbers[name] = require_phone_number(number, settings, f"phone_number of transaction {name}")
        done = run_with_service(lambda client: client.payments.recover(keys, note=text, phone_numbers=numbers), service)
        output.print_found("payments", done, payment_columns(unmasked=unmasked), "", as_json=as_json, unmasked=unmasked)
        return
    store = find_store(service)
    found = [
        each for each in run_with_store(lambda book: book.unclaimed(None), store) if each.is_gap and each.state == OPEN
    ]
    if as_json:
        output.print_json(output.plain(found, unmasked=False))
    elif found:
        output.print_table(UNCLAIMED_COLUMNS, found)
        said = "import each under its key: mobilemoney payments recover KEY=TRANSACTION_ID… --note TEXT"
        say("payments", copyable(said))
    else:
        said = f"the store has forgotten no transactions of account {store.account!r}, as far as is known"
        said = f"{said}; after a restored backup first run mobilemoney payments reconcile"
        say("payments", _none(store, copyable(said)))


def _none(store: Settings, said: str) -> str:
    """Return the sentence that there are no such transactions, or why nothing shows any."""
    return copyable(NOTHING_SHOWS) if store.store_options.get("sole_writer") is False else said


def read_pairs(pairs: Sequence[str], file: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the transaction of each key, and the whole phone numbers of some transactions."""
    rows, left = list[dict[str, str]](), [*pairs]
    while left:
        is_apart = left[1:2] == ["="]  # so that each side may hold one, as base64 does
        key, _, name = [*left, ""][:3] if is_apart else left[0].rpartition("=")
        rows.append({"key": key, "transaction_id": name})
        del left[: 3 if is_apart else 1]
    if file is not None:
        rows += _read_file(file)
    for row in rows:
        if not row.get("key") or not row.get("transaction_id"):
            raise WrongUsage(
                "each payment needs a key and a transaction: KEY=TRANSACTION_ID, with spaces around = where the id "
                "holds one, or a row with both columns"
            )
    keys = {row["key"]: row["transaction_id"] for row in rows}
    if len(keys) < len(rows):
        raise WrongUsage("a key is given twice")
    return keys, {row["transaction_id"]: row["phone_number"] for row in rows if row.get("phone_number")}


def _read_file(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV, which may have semicolons or tabs, or of an .xlsx, by the names of their columns."""
    content = file.read_bytes()
    try:
        if content.startswith(SIGNATURE):
            lines = [row for _, row in read_sheet(content)]
        else:
            text = content.decode("utf-8-sig")
            first = text.lstrip().partition("\n")[0]
            delimiter = max(",;\t", key=first.count)
            lines = list(
                csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
            )
    except (UnicodeDecodeError, csv.Error) as exc:
        raise WrongUsage(f"{file} is not a CSV file in UTF-8") from exc
    header, *rows = [line for line in lines if any(map(str.strip, line))] or [[]]
    if not rows:
        raise WrongUsage(f"{file} names no payments")
    names = [cell.strip() for cell in header]
    named = [name for name in names if name]
    if len({*named}) < len(named) or any(any(map(str.strip, row[len(names) :])) for row in rows):
        raise WrongUsage(f"{file} has a column twice, or a row with more cells than the header")
    table = [dict(zip(names, row, strict=False)) for row in rows]
    for row in table:
        for name in ("key", "transaction_id", "phone_number"):
            require_plain(name, row.get(name))
    return [{name: cell.strip() for name, cell in row.items()} for row in table]


@with_service()
def audit(
    *,
    from_day: Annotated[str, typer.Option("--from", metavar="DAY", help=f"The first day: {DAYS}.")],
    to_day: Annotated[str, typer.Option("--to", metavar="DAY", help="The last day, in the same form.")] = "today",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print totals and differences as CSV.")] = False,
    as_json: AsJSON = False,
    others_pay: OthersPay = False,
    service: Service,
) -> None:
    """Compare the store with the service's transaction list, for some days. Sends no money.

    Takes the service and the credentials as reconcile does. Exit code 1 if something differs, for cron to report.
    """
    if as_csv and as_json:
        raise WrongUsage("give either --csv or --json")
    first, last = read_day("--from", from_day), read_day("--to", to_day)
    assert first is not None and last is not None
    if first > last:
        raise WrongUsage("--from must be no later than --to")

    async def work(client: AsyncClient) -> AuditReport:
        with output.waiting("reading the list"):
            return await client.payments.audit(from_date=first, to_date=last)

    found = run_with_service(work, service, **writers(others_pay=others_pay))
    if as_json:
        output.print_json(output.plain(found, unmasked=False))
    elif as_csv:
        print_audit_as_csv(found)
    else:
        print_audit(found, service)
    if not found.is_clean:
        raise typer.Exit(ExitCode.ERROR)


@with_service()
def restored(
    *,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Your name, and which backup it was, or what you saw.")],
    compared: Annotated[bool, typer.Option("--compared", help=_COMPARED)] = False,
    service: Service,
) -> None:
    """Say that the store was restored from a backup, before anything is paid with it.

    It is then compared with the service before the next payment. Takes the service and the credentials as reconcile
    does. Sends nothing.
    """
    _note(lambda client: client.payments.restored(note=note, compared=compared), service)
    settings = service.settings()
    others_pay = settings.store_options.get("sole_writer") is False  # as the warning has said
    if compared:
        said = f"The comparison of account {settings.account!r} is over. What it has found stays: see"
        if not others_pay:
            print(visible(copyable(f"{said} mobilemoney payments unclaimed")))
        return
    if not others_pay:
        said = f"Account {settings.account!r} is compared with the service before its next payment."
        print(visible(f"{said} {copyable('Of all accounts of the store: mobilemoney accounts restored')}"))
    from mobilemoney_async.payments.ownership.searches import queued_payouts

    def read(journal: Journal) -> tuple[int, Decimal]:
        return queued_payouts(journal.connection, account=settings.account)

    say_queued(*run_with_account("payments", lambda store: store.read(read), settings))


@with_service()
def rebind(
    *, note: Annotated[str, typer.Option(metavar="TEXT", help="Your name and reason.")], service: Service
) -> None:
    """Bind the store's account to this base URL and these credentials, if they are of the same merchant.

    Takes the service and the credentials as reconcile does. Sends nothing.
    """
    _note(lambda client: client.payments.rebind(note=note), service)
    said = f"Account {service.settings().account!r} is bound to this base URL and these credentials."
    print(visible(f"{said} Restart its other processes."))


def _note(word: Callable[[AsyncClient], Awaitable[None]], service: Service) -> None:
    """Note a word for the account, and say if the store has no payment of that: its name may be wrong."""

    async def work(client: AsyncClient) -> bool:
        await word(client)
        return bool(await client.payments.list(limit=1))

    if not run_with_service(work, service):
        said = f"the store has no payment of account {service.settings().account!r}"
        say("payments", f"{said}: if the name is wrong, run this again with the right one")


def print_audit(report: AuditReport, service: Service) -> None:
    """Print the totals and the differences of an audit."""
    totals: tuple[Column[AuditTotal], ...] = (
        output.TYPE,
        Column("status", lambda each: shown_text(each.status), min_width=7),
        Column("settlement", lambda each: each.settlement_batch or "", min_width=5),
        output.count_column("count"),
        Column("gross", lambda each: f"{each.gross:,f}", is_number=True),
        Column("fees", lambda each: _shown(each.fees), is_number=True),
        Column("net", lambda each: _shown(each.net), is_number=True),
    )
    if report.totals:
        output.print_table(totals, report.totals)
    if report.unsettled:
        some = ", ".join(map(shown_id, report.unsettled[:5]))
        more = ", …" if report.unsettled[5:] else ""
        output.show(
            "",
            output.literal(
                f"without a settlement: {output.counted(len(report.unsettled), 'collection')}: {some}{more}"
            ),
        )
    if report.on_its_way:
        some = output.counted(len(report.on_its_way), "transaction")
        output.show("", output.literal(f"on their way: {some} that no payment claims yet; audit again in some minutes"))
    for each in report.differences:
        amount = "" if each.amount is None else f", {output.money(each.amount)}"
        output.show("", output.literal(f"{each.kind}{amount}: {each.reason}"), output.sentence(f"  → {each.advice}"))
        step = NextStep(each.advice, tuple(map(tuple, each.commands)))
        output.show(*map(output.command, command_lines(step, service)))
    said = "nothing differs" if report.is_clean else f"differences: {len(report.differences):,}"
    shown = output.counted(report.transactions, "transaction"), output.counted(report.payments, "payment")
    print(visible(f"{shown[0]} at the service, {shown[1]} of account {service.settings().account!r}; {said}."))


def _shown(amount: Decimal | None) -> str:
    return "not shown" if amount is None else f"{amount:,f}"


def print_audit_as_csv(report: AuditReport) -> None:
    """Print an audit as CSV, as long as someone reads it: a row for each total, then for each difference."""
    data = output.plain(report, unmasked=False)
    rows = [{"kind": "total", "amount": each["gross"], **each} for each in data["totals"]] + data["differences"]
    cells = ([row.get(name) for name in _CSV_HEADER] for row in rows)
    with output.ignoring_closed_pipe():
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_CSV_HEADER)
        writer.writerows(["" if each is None else csv_cell(str(each)) for each in row] for row in cells)
        sys.stdout.flush()
