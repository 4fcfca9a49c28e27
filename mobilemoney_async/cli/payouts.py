"""`mobilemoney payouts …`: batches of payouts that one person proposes and another approves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio
import typer

from mobilemoney_async.cli import output
from mobilemoney_async.cli.app import add_command, command_group
from mobilemoney_async.cli.failures import ExitCode, Refused, run, say
from mobilemoney_async.cli.options import AsJSON, Service, require_yes, with_service
from mobilemoney_async.cli.output import Column
from mobilemoney_async.cli.payments import OF_THE_STORE, find_store, open_store_of, run_with_service
from mobilemoney_async.payments.payout_batch import digest, read_rows

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.payments.payout_batch import PayoutBatch
    from mobilemoney_async.payments.payouts import Payouts

T = TypeVar("T")

payouts_app: typer.Typer = command_group(
    help="Batches of payouts: one person proposes, another approves.",
    epilog="Exit codes: 0 fine, 1 an error, 2 wrong usage, 3 a payout is unknown, 4 some are not final, 5 some failed.",
    no_args_is_help=True,
)

_FILE = "CSV with the header phone_number,amount[,key][,…]; other columns come back in the report."
File = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help=_FILE)]
Id = Annotated[str, typer.Argument(metavar="ID", help="The batch: propose prints its id.")]
By = Annotated[str, typer.Option(metavar="NAME", help="Your name; kept with the batch.")]
_LOCAL = "Numbers may be written without their country code, 0788 500 000, as Tanzanian."
LocalNumbers = Annotated[bool, typer.Option("--local-numbers", help=_LOCAL)]
OptionalId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The batch; without one, the latest are listed.")
]
Digest = Annotated[str | None, typer.Option("--digest", metavar="DIGEST", help="The digest that you have seen.")]
_SEND = "Send the payouts now and follow them, instead of leaving that to a dispatcher of your program."
Send = Annotated[bool, typer.Option("--send", help=_SEND)]
# Seconds between two looks at the progress.
_LOOK = 1.0
_PAID, _OPEN = "SUCCESS", ("QUEUED", "SENDING", "ACKNOWLEDGED", "UNKNOWN", "ABSENT")


@add_command(payouts_app, "check")
def check(file: File, *, local_numbers: LocalNumbers = False) -> None:
    """Check a file, and show its totals. Records and sends nothing."""

    async def work() -> None:
        rows = read_rows(_read(file), local_numbers=local_numbers)
        total = sum((Decimal(row.amount) for row in rows), Decimal(0))
        output.show(f"{len(rows)} payouts, {output.money(total)}, digest {digest(rows)}")

    run("payouts", work)


@add_command(payouts_app, "propose")
@with_service(*OF_THE_STORE)
def propose(
    *,
    file: File,
    by: By,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the batch.", show_default="the file's")] = None,
    local_numbers: LocalNumbers = False,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Record a batch for another person to approve. Sends nothing.

    Shows its totals, its digest, and lines that look as if they were paid twice.
    """
    text = _read(file)
    batch = _run(
        lambda payouts: payouts.propose(text, name=name or file.stem, by=by, local_numbers=local_numbers), service
    )
    _print(batch, as_json=as_json)
    if not as_json:
        say("payouts", f"another person approves it: mobilemoney payouts approve {batch.id} --by NAME")


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
    service: Service,
) -> None:
    """Queue all payouts of a batch. You must not be its proposer.

    Shows the batch and asks, unless you give its digest and --yes.
    """
    if yes and shown is None:
        raise typer.BadParameter("--yes needs --digest", param_hint="--yes")
    batch = _run(lambda payouts: payouts.get(id), service)
    if not yes:
        _print(batch, as_json=False)
        require_yes(
            f"Do you approve {batch.lines} payouts of {output.money(batch.total)}?", otherwise="nothing is queued"
        )
    expected = shown or batch.digest
    approved = _run(lambda payouts: payouts.approve(id, by=by, digest=expected), service)
    if send:
        _send(approved.id, service)
    else:
        _print(approved, as_json=False)


@add_command(payouts_app, "cancel")
@with_service(*OF_THE_STORE)
def cancel(*, id: Id, by: By, as_json: AsJSON = False, service: Service) -> None:
    """Stop the payouts of a batch that are not sent yet."""
    _print(_run(lambda payouts: payouts.cancel(id, by=by), service), as_json=as_json)


@add_command(payouts_app, "status")
@with_service()
def status(
    *,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The batch; without one, the latest are listed.")
    ] = None,
    send: Send = False,
    as_json: AsJSON = False,
    service: Service,
) -> None:
    """Show the latest batches, or one with the states of its payouts."""
    if id is None:
        found = _run(lambda payouts: payouts.list(), service)
        if as_json:
            output.print_json(output.plain(found, unmasked=False))
        else:
            output.show(output.new_table(_columns(), found))
    elif send:
        _send(id, service)
    else:
        _print(_run(lambda payouts: payouts.get(id), service), as_json=as_json)


@add_command(payouts_app, "report")
@with_service(*OF_THE_STORE)
def report(*, id: Id, as_json: AsJSON = False, service: Service) -> None:
    """Print the lines of a batch with their payments, as CSV or JSON, with whole phone numbers."""
    text = _run(lambda payouts: payouts.report(id, "json" if as_json else "csv"), service)
    print(text.rstrip("\n"))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise Refused(f"{file} cannot be read as UTF-8 text: {exc}") from exc


def _run(work: Callable[[Payouts], Awaitable[T]], service: Service) -> T:
    """Run work that needs the store alone."""
    settings = find_store(service)

    async def with_store() -> T:
        store = open_store_of(settings)
        from mobilemoney_async.payments.payouts import Payouts  # needs the extra, which opening a store checks
        from mobilemoney_async.payments.store import account_store

        try:
            parts = account_store(store)
            return await work(Payouts(parts, parts.database.wall_clock.utcnow))
        finally:
            store.close()

    return run("payouts", with_store)


def _send(id: str, service: Service) -> None:
    """Send and follow the payouts of a batch, with their progress, until none is open."""

    async def work(client: AsyncClient) -> PayoutBatch:
        with output.waiting("sending") as show:
            async with client.poller(resume=True) as poller, client.dispatcher() as dispatcher:
                while True:
                    batch, stats = await client.payouts.get(id), dispatcher.stats
                    for record in await client.payments.list("ACKNOWLEDGED"):
                        poller.track(record.transaction_id or "")
                    left = sum(batch.states.get(each, 0) for each in _OPEN)
                    until = "" if stats.finishes_at is None else f", sent by {output.moment(stats.finishes_at)} UTC"
                    show(f"{_states(batch)}{until}" + (f"; paused: {stats.paused}" if stats.paused else ""))
                    if not left - sum(batch.states.get(each, 0) for each in ("UNKNOWN", "ABSENT")):
                        return batch
                    await anyio.sleep(_LOOK)

    batch = run_with_service(work, service)
    _print(batch, as_json=False)
    states = batch.states
    if states.get("UNKNOWN") or states.get("ABSENT"):
        say("payouts", "some results are unknown: mobilemoney payments reconcile finds them out")
        raise typer.Exit(ExitCode.UNRESOLVED)
    if states.get(_PAID, 0) < batch.lines:
        raise typer.Exit(ExitCode.NOT_SUCCESSFUL)


def _print(batch: PayoutBatch, *, as_json: bool) -> None:
    if as_json:
        output.print_json(output.plain(batch, unmasked=False))
        return
    decided = f"{batch.decided_by}, {output.moment(batch.decided_at)} UTC" if batch.decided_by else None
    facts = {
        "batch": batch.id,
        "name": batch.name,
        "state": batch.state,
        "payouts": f"{batch.lines:,}",
        "total": output.money(batch.total),
        "digest": batch.digest,
        "proposed by": f"{batch.proposed_by}, {output.moment(batch.proposed_at)} UTC",
        "decided by": decided,
        "states": _states(batch),
        **{f"line {line}": f"paid twice? {reason}" for line, reason in batch.duplicates.items()},
    }
    output.show_facts(facts)


def _states(batch: PayoutBatch) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(batch.states.items()))


def _columns() -> tuple[Column[PayoutBatch], ...]:
    return (
        Column("batch", lambda each: each.id, min_width=6),
        Column("name", lambda each: each.name, min_width=5),
        Column("payouts", lambda each: f"{each.lines:,}", is_number=True),
        Column("TZS", lambda each: f"{each.total:,f}", is_number=True),
        Column("state", lambda each: each.state),
        Column("proposed, UTC", lambda each: output.moment(each.proposed_at), min_width=5),
        Column("states", _states, min_width=8),
    )
