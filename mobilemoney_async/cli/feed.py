"""`mobilemoney payments changes` and `consumers`: the feed of changes and its readers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mobilemoney_async.cli import output
from mobilemoney_async.cli.failures import say
from mobilemoney_async.cli.options import AsJSON, Service, with_service
from mobilemoney_async.cli.stores import OF_THE_STORE, find_store, run_with_store
from mobilemoney_async.cli.tables import Column
from mobilemoney_async.payments.feed.payment_change import PaymentChange
from mobilemoney_async.text import shown_text

After = Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on behind this one.", show_default="oldest")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]


@with_service(*OF_THE_STORE)
def list_changes(*, after: After = None, limit: Limit = 100, as_json: AsJSON = False, service: Service) -> None:
    """List changes of payments in the order of the feed. Needs no service."""
    store = find_store(service)

    async def read(book: Any) -> list[PaymentChange]:
        return [change async for change in book.changes(after=after, limit=limit)]

    found = run_with_store(read, store)
    columns: tuple[Column[PaymentChange], ...] = (
        output.time_column("at, UTC", "at"),
        Column("payment", lambda each: each.key or "", is_id=True),
        Column("state", lambda each: "unclaimed" if each.state is None else str(each.state)),
        Column("status", lambda each: "" if each.status is None else shown_text(each.status), min_width=7),
        Column("transaction", lambda each: _transaction_of(each) or "", is_id=True),
        Column("cursor", lambda each: each.cursor, is_id=True),
    )
    if as_json:
        names = ("cursor", "key", "state", "status", "at")
        values = [{name: getattr(each, name) for name in names} | {"id": _transaction_of(each)} for each in found]
        output.print_json(output.plain(values, unmasked=False))
    elif found:
        output.print_table(columns, found)
    else:
        say("payments", f"no such changes of account {store.account!r}")


@with_service(*OF_THE_STORE)
def list_consumers(*, as_json: AsJSON = False, service: Service) -> None:
    """List the named consumers of the feed. Needs no service.

    Lagging payments wait for a change that comes again; parked changes failed ten times, each with its last error.
    """
    store = find_store(service)
    found = run_with_store(lambda book: book.consumers(), store)
    columns: tuple[Column[Any], ...] = (
        Column("consumer", lambda each: each.name, min_width=6),
        output.count_column("behind"),
        output.time_column("used, UTC", "used_at"),
        Column("lagging", lambda each: ", ".join(each.lagging), min_width=7),
        Column("parked", lambda each: "; ".join(f"{one.name}: {one.error}" for one in each.parked), min_width=7),
    )
    output.print_found("payments", found, columns, f"no consumers of account {store.account!r}", as_json=as_json)


def _transaction_of(change: PaymentChange) -> str | None:
    shown = change.record or change.transaction
    return None if shown is None else shown.transaction_id
