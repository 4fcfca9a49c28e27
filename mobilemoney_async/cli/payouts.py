"""`mobilemoney payouts …`: batches of payouts that one person proposes and another approves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio
import typer

from mobilemoney_async.cli import output
from mobilemoney_async.cli.app import add_command, command_group
from mobilemoney_async.cli.clients import missing_file
from mobilemoney_async.cli.failures import ExitCode, Refused, copyable, say
from mobilemoney_async.cli.options import (
    AsJSON,
    Service,
    Unmasked,
    Yes,
    require_service,
    require_yes,
    with_service,
)
from mobilemoney_async.cli.payments import find_put_off
from mobilemoney_async.cli.payout_queue import confirm_sending, resume_queue, say_released, say_what_is_queued
from mobilemoney_async.cli.stores import OF_THE_STORE, find_store, names_settings, run_with_account, run_with_service
from mobilemoney_async.cli.views.payouts import (
    batch_columns,
    count_lines,
    describe_progress,
    facts_of,
    line_columns,
    notes_of,
    progress,
)
from mobilemoney_async.payments.payouts.batch import FAILED, PayoutBatch, PayoutLine, word_of
from mobilemoney_async.payments.payouts.rows import MOST_TEXT, digest, read_rows, total_of, warnings_of
from mobilemoney_async.text import command_line

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.payments.outbox.dispatcher import DispatcherStats
    from mobilemoney_async.payments.payouts.payouts import Payouts
    from mobilemoney_async.payments.records.account_store import AccountStore

T = TypeVar("T")

payouts_app: typer.Typer = command_group(
    help="Batches of payouts: one person proposes, another approves.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage or a wrong file; with --send also 3 the result of a payout "
    "is unknown, 4 some are not sent or not final, 5 some have failed, were refused or cancelled.",
    no_args_is_help=True,
)

_FILE = "CSV in UTF-8, or .xlsx, with the header phone_number,amount[,key][,…]; other columns come back in the report."
File = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help=_FILE)]
Id = Annotated[str, typer.Argument(metavar="ID", help="The batch: propose prints its id.")]
OptionalId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The batch; without one, the latest are listed.")
]
By = Annotated[str, typer.Option(metavar="NAME", help="Your name; kept with the batch.")]
_LOCAL = "Numbers may be written without their country code, 0788 500 000, as Tanzanian."
LocalNumbers = Annotated[bool, typer.Option("--local-numbers", help=_LOCAL)]
_COLUMNS = "The file's own names of our columns: phone_number=Namba,amount=Kiasi."
Columns = Annotated[str | None, typer.Option("--columns", metavar="NAME=THEIRS,…", help=_COLUMNS)]
_SEND = "Send what is queued in this account now, and follow the batch, unless a program of yours does."
Send = Annotated[bool, typer.Option("--send", help=_SEND)]
Resume = Annotated[bool, typer.Option("--resume", help="Let a paused queue go on: alone, or with --send.")]
# Lines of a page of `payouts show`.
_PAGE = 50
# Seconds between two looks at the progress.
_LOOK = 1.0
# Seconds without a change after which to stop, with payouts that are open, and with unknown ones alone.
_PATIENCE, _PATIENCE_UNKNOWN = 1_800.0, 300.0


@add_command(payouts_app, "check")
@with_service("profile", "config")
def check(
    *,
    file: File,
    local_numbers: LocalNumbers = False,
    columns: Columns = None,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Check a file, and show its totals. Records and sends nothing.

    Duplicates of earlier payments are shown by propose, which has the store.
    """
    are_local = local_numbers or (names_settings(service) and service.settings().local_numbers)
    rows = read_rows(_read(file), local_numbers=are_local, columns=_read_columns(columns))
    total, content = total_of(rows), digest(rows)
    warnings = warnings_of(rows)
    if as_json:
        facts = {"lines": len(rows), "total": total, "digest": content, "warnings": warnings}
        output.print_json(output.plain(facts, unmasked=False))
    else:
        shown = {"payouts": f"{len(rows):,}", "total": output.money(total), "digest": content}
        output.show_facts(shown | notes_of({}, warnings))


@add_command(payouts_app, "propose")
@with_service(*OF_THE_STORE)
def propose(
    *,
    file: File,
    by: By,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the batch.", show_default="the file's")] = None,
    local_numbers: LocalNumbers = False,
    columns: Columns = None,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Record a batch for another person to approve. Sends nothing.

    Shows its totals, its digest, and lines that look as if they were paid twice, or to a wrong number.
    """
    content, names, settings = _read(file), _read_columns(columns), find_store(service)
    new = missing_file(settings)

    async def work(payouts: Payouts) -> PayoutBatch:
        are_local = local_numbers or settings.local_numbers
        return await payouts.propose(content, name=name or file.stem, by=by, local_numbers=are_local, columns=names)

    batch = _run(work, service, makes_file=True)
    if new is not None:
        say("payouts propose", f"{new} is a new store: it knows of no earlier payments, and so of no duplicates")
    _print(batch, as_json=as_json)
    if not as_json:
        _say_approve("payouts propose", batch, service)


@add_command(payouts_app, "approve")
@with_service()
def approve(
    *,
    id: Id,
    by: By,
    shown: Annotated[
        str | None, typer.Option("--digest", metavar="DIGEST", help="The digest that you have seen.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the question; needs --digest.")] = False,
    send: Send = False,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Queue all payouts of a batch. You must not be its proposer.

    Shows the batch and asks, unless you give its digest and --yes. A dispatcher sends them: with --send this command,
    or payouts status --send, or a program of yours.
    """
    if yes and shown is None:
        raise typer.BadParameter("--yes needs --digest", param_hint="--yes")
    settings = require_service(service.settings()) if send else None

    async def look(payouts: Payouts) -> PayoutBatch:
        from mobilemoney_async.payments.payouts.queries import require_second_person

        found = await payouts.get(id)
        require_second_person(by, found)  # before the question: `approve` refuses it as well
        return found

    batch = _run(look, service)
    if batch.retry_of is not None:
        require_service(service.settings())  # before the question: the transactions are looked up
    if not yes:
        output.show_facts(facts_of(batch))
        require_yes(
            f"Do you approve {batch.lines:,} payouts of {output.money(batch.total)}?", otherwise="nothing was queued"
        )
    if settings is not None:
        confirm_sending(settings, id, service, yes=yes)
    expected = shown or batch.digest

    def decide(payouts: Payouts) -> Awaitable[PayoutBatch]:
        return payouts.approve(id, by=by, digest=expected)

    if batch.retry_of is None:
        approved = _run(decide, service)
    else:
        approved = run_with_service(lambda client: decide(client.payouts), service, command="payouts")
    if send:
        _send(approved.id, service, as_json=as_json)
        return
    _print(approved, as_json=as_json)
    if not as_json:
        _say_sent_by(approved, service)
        say_released(approved, service)


@add_command(payouts_app, "retry")
@with_service()
def retry(*, id: Id, by: By, as_json: AsJSON = False, service: Service) -> None:
    """Propose the payouts of a batch that failed once more, for another person to approve. Sends nothing.

    Looks their transactions up first. Says which payouts are left out, and why. Asked again, it shows the same retry.
    """
    batch = run_with_service(lambda client: client.payouts.retry(id, by=by), service, command="payouts")
    _print(batch, as_json=as_json)
    if not as_json:
        _say_approve("payouts retry", batch, service)


@add_command(payouts_app, "cancel")
@with_service(*OF_THE_STORE)
def cancel(*, id: Id, by: By, as_json: AsJSON = False, service: Service) -> None:
    """Stop the payouts of a batch that are not sent yet."""
    _print(_run(lambda payouts: payouts.cancel(id, by=by), service), as_json=as_json)


@add_command(payouts_app, "status")
@with_service()
def status(
    *,
    id: OptionalId = None,
    send: Send = False,
    resume: Resume = False,
    yes: Yes = False,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Show the latest batches, or one with the states of its payouts.

    With --send it sends what is queued in the account, and follows this batch until none of its payouts is open. It may
    be killed, and run again. With --resume alone it lets a paused queue go on, which a program of yours sends.
    """
    _check_options(id, send=send, resume=resume, yes=yes)
    if id is None and resume:
        resume_queue(service, yes=yes)
    elif id is None:
        found = _run(lambda payouts: payouts.list(), service)
        if as_json:
            for each in found:
                output.print_json_line(output.plain(each, unmasked=False))
        elif found:
            output.print_table(batch_columns(), found)
        else:
            say("payouts status", f"there are no batches of account {find_store(service).account!r}")
    elif send:
        settings = require_service(service.settings())
        batch = _run(lambda payouts: payouts.get(id), service)
        if batch.approved_at is None:
            approve = command_line("payouts", "approve", id, "--by", "NAME", *service.store_flags)
            advice = f"; another person approves it: {approve}" if batch.state == "proposed" else ""
            raise Refused(f"batch {id!r} is {batch.state}, not approved: nothing is sent{advice}")
        if resume:
            resume_queue(service, yes=yes, with_batch=True)
        confirm_sending(settings, id, service, yes=yes)
        _send(id, service, as_json=as_json)
    else:
        batch = _run(lambda payouts: payouts.get(id), service)
        _print(batch, as_json=as_json)
        say_released(batch, service)


def _check_options(id: str | None, *, send: bool, resume: bool, yes: bool) -> None:
    if id is None and send:
        raise typer.BadParameter("--send needs the ID of a batch", param_hint="--send")
    if id is not None and resume and not send:
        raise typer.BadParameter("--resume goes with --send, or without ID", param_hint="--resume")
    if yes and not (send or resume):
        raise typer.BadParameter("--yes goes with --send or --resume", param_hint="--yes")


@add_command(payouts_app, "show")
@with_service(*OF_THE_STORE)
def show(
    *,
    id: Id,
    page: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Of 50 lines.")] = 1,
    largest: Annotated[bool, typer.Option("--largest", help="The largest lines first.")] = False,
    unmasked: Unmasked = False,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Show the lines of a batch, page after page, with the warnings before an approval."""

    async def work(payouts: Payouts) -> tuple[PayoutBatch, Sequence[PayoutLine]]:
        return await payouts.get(id), await payouts.report(id)

    batch, lines = _run(work, service)
    pages = max(1, -(-len(lines) // _PAGE))
    if page > pages:
        raise typer.BadParameter(f"the last page is {pages}", param_hint="--page")
    if largest:
        lines = sorted(lines, key=lambda each: (-each.amount, each.line))
    shown = lines[(page - 1) * _PAGE : page * _PAGE]
    if as_json:
        for each in shown:
            output.print_json_line(output.plain(each, unmasked=unmasked))
        return
    notes = {line: f"paid twice? {reason}" for line, reason in batch.duplicates.items()}
    output.print_table(line_columns(notes, unmasked=unmasked), shown)
    if page < pages:
        options = ("--largest",) * largest + ("--unmasked",) * unmasked
        next_page = command_line("payouts", "show", id, "--page", str(page + 1), *options, *service.store_flags)
        say("payouts show", f"page {page:,} of {pages:,}; the next one: {next_page}")


@add_command(payouts_app, "report")
@with_service(*OF_THE_STORE)
def report(*, id: Id, as_json: AsJSON = False, service: Service) -> None:
    """Print the lines of a batch with their payments, as CSV or JSON, with whole phone numbers.

    In a CSV, a text that a spreadsheet would run as a formula (=, +, -, @) gets an apostrophe in front.
    """
    text = _run(lambda payouts: payouts.report(id, "json" if as_json else "csv"), service)
    print("\n".join(text.splitlines()))


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as content:
            return content.read(MOST_TEXT + 1)
    except OSError as exc:
        raise Refused(f"{file} cannot be read: {exc.strerror}", ExitCode.USAGE) from exc


def _read_columns(text: str | None) -> Mapping[str, str] | None:
    """Return the names of the option ``--columns``."""
    pairs = [each.partition("=") for each in text.split(",")] if text is not None else []
    if not all(theirs for _, _, theirs in pairs) or len({ours.strip() for ours, _, _ in pairs}) < len(pairs):
        raise Refused("--columns must be such as phone_number=Namba,amount=Kiasi", ExitCode.USAGE)
    return {ours.strip(): theirs for ours, _, theirs in pairs} or None


def _run(work: Callable[[Payouts], Awaitable[T]], service: Service, *, makes_file: bool = False) -> T:
    """Run work that needs the store alone."""

    async def with_store(store: AccountStore) -> T:
        from mobilemoney_async.payments.payouts.payouts import Payouts

        return await work(Payouts(store, store.database.wall_clock.utcnow, settings.disbursement_limits))

    settings = find_store(service)
    return run_with_account("payouts", with_store, settings, makes_file=makes_file)


def _send(id: str, service: Service, *, as_json: bool) -> None:
    """Send and follow the payouts of a batch, with their progress, until none is open."""

    async def work(client: AsyncClient) -> tuple[PayoutBatch, DispatcherStats]:
        from mobilemoney_async.contrib.backend import Backend

        with progress() as show:
            async with Backend(client) as backend:
                last, changed_at = (dict[str, int](), -1), anyio.current_time()
                said = set[str]()
                while True:
                    batch, stats = await client.payouts.get(id), backend.dispatcher.stats
                    show(describe_progress(batch, stats))
                    if batch.states.get("QUEUED"):
                        await _say_why_they_wait(client, said)
                    now = anyio.current_time()
                    if last != (dict(batch.states), stats.sent):
                        last, changed_at = (dict(batch.states), stats.sent), now
                    is_paused = stats.paused is not None and stats.paused_until is None  # else it goes on by itself
                    if is_paused or now > changed_at + _patience(batch):
                        return batch, stats
                    await anyio.sleep(_LOOK)

    def left() -> Iterable[str]:
        yield f"nothing is lost; to go on: {command_line('payouts', 'status', id, '--send', *service.flags)}"

    batch, stats = run_with_service(work, service, command="payouts", open_work=left)
    _print(batch, as_json=as_json)
    say_released(batch, service)
    say_what_is_queued(id, service)
    if stats.paused is not None and _open(batch):
        account = run_with_account(
            "payouts", lambda store: store.read(lambda journal: journal.find_account()), find_store(service)
        )
        # Of an account that is suspended the reason names the way back, which --resume is not.
        must_resume = stats.paused_until is None and (account is None or account.state is None)
        say("payouts", f"stopped: {copyable(stats.paused)}; {next(iter(left()))}{' --resume' if must_resume else ''}")
        raise typer.Exit(ExitCode.NOT_FINAL)
    lines = _run(lambda payouts: payouts.report(id), service)
    failed = (each for each in lines if word_of(each.state) in {FAILED, "refused"})
    _require_paid(batch, Counter(output.said(each.reason or each.state, unmasked=False) for each in failed), service)


async def _say_why_they_wait(client: AsyncClient, said: set[str]) -> None:
    """Say why payments could not be sent, and what to do, once for each key that was not said."""
    now = datetime.now(UTC)
    for each in await find_put_off(client.payments):
        is_put_off = each.not_before is not None and each.not_before > now  # else its reason may be gone
        if is_put_off and each.key not in said:
            said.add(each.key)
            say("payouts", f"payment {each.key!r} waits: {copyable(str(each.reason))}")


def _require_paid(batch: PayoutBatch, reasons: Counter[str], service: Service) -> None:
    """Exit with the code of a batch that is not paid as a whole; `reasons` are those of the lines that failed."""
    words = count_lines(batch)
    if words.get("unknown"):
        listing = command_line("payments", "list", "--unresolved", *service.store_flags)
        say("payouts", f"some results are unknown: do not pay them in another way; see {listing}")
        raise typer.Exit(ExitCode.UNRESOLVED)
    if _open(batch) or words.get("not sent"):
        raise typer.Exit(ExitCode.NOT_FINAL)
    if words.get("failed") or words.get("refused"):
        next_step = command_line("payouts", "retry", batch.id, "--by", "NAME", *service.flags)
        why = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common(3))
        say("payouts", f"failed: {why}; once the reason is gone, those go again by: {next_step}")
    if words.get("paid", 0) < batch.lines:
        raise typer.Exit(ExitCode.NOT_SUCCESSFUL)


def _open(batch: PayoutBatch) -> bool:
    """Return whether results are still to come, without someone's help."""
    return any(batch.states.get(each) for each in ("QUEUED", "SENDING", "ACKNOWLEDGED"))


def _patience(batch: PayoutBatch) -> float:
    """Return the seconds for which to wait for a change."""
    return _PATIENCE if _open(batch) else _PATIENCE_UNKNOWN if batch.states.get("UNKNOWN") else -1.0


def _say_sent_by(batch: PayoutBatch, service: Service) -> None:
    if batch.states.get("QUEUED"):
        next_step = command_line("payouts", "status", batch.id, "--send", *service.flags)
        say("payouts approve", f"a dispatcher of your program sends them, or: {next_step}")
    elif not batch.states.get("RELEASED"):
        say("payouts approve", "nothing is left to send")


def _say_approve(command: str, batch: PayoutBatch, service: Service) -> None:
    next_step = command_line("payouts", "approve", batch.id, "--by", "NAME", *service.store_flags)
    say(command, f"nothing is sent; another person approves it: {next_step}")


def _print(batch: PayoutBatch, *, as_json: bool) -> None:
    if as_json:
        output.print_json(output.plain(batch, unmasked=False))
    else:
        output.show_facts(facts_of(batch))
