"""What the demonstration shows: live progress, the history, a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from types import TracebackType
from typing import Self

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.polling.poller import PollerStats
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.values import mask_phone_number

_HISTORY_ROWS = 8


class Progress:
    """Bars on a terminal, a line for each final payment elsewhere."""

    def __init__(self, total: int) -> None:
        self._console = Console()
        self._bars = Bars(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[states]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._requested = self._bars.add_task("requested", total=total, states="")
        self._final = self._bars.add_task("final", total=total, states="")
        self._states: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def created(self) -> None:
        """Count a payment that the service has accepted."""
        self._bars.advance(self._requested)

    def ended(self, transaction: Transaction) -> None:
        """Count a payment that has reached its final state."""
        self._states[str(transaction.status)] += 1
        states = "  ".join(f"{state} {count}" for state, count in sorted(self._states.items()))
        self._bars.update(self._final, advance=1, states=states)
        if not self._console.is_terminal:
            number = mask_phone_number(transaction.phone_number)
            print(f"{transaction.type} of {transaction.amount:,} TZS, {number}: {_state(transaction)}", flush=True)


def print_history(history: list[Transaction], page_size: int) -> None:
    """Print the beginning of the history, which was read in pages of some size."""
    title = f"history: {_HISTORY_ROWS} of {len(history)} transactions, read in pages of {page_size}"
    table = Table(title=title, box=None)
    table.collapse_padding, table.pad_edge = True, False
    for column in ("type", "phone", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("amount", "fee", "settled"):
        table.add_column(column, no_wrap=True, justify="right")
    for transaction in history[:_HISTORY_ROWS]:
        table.add_row(
            str(transaction.type),
            mask_phone_number(transaction.phone_number),
            _state(transaction),
            f"{transaction.amount:,}",
            "" if transaction.fees is None else f"{transaction.fees.total_fee:,}",
            "" if transaction.settlement is None else f"{transaction.settlement.net_amount:,}",
        )
    Console().print(table)


def print_summary(finals: list[Transaction], sandbox: Sandbox, stats: PollerStats, took: float) -> None:
    """Print how the payments ended, what money moved, and what it cost in requests.

    Args:
        finals: The payments in their final states.
        sandbox: Which knows what really happened.
        stats: Of the poller that followed them.
        took: Seconds.
    """
    outcomes = Table(title="how the payments ended", box=SIMPLE)
    outcomes.add_column("state")
    for column in ("all", "collections", "disbursements"):
        outcomes.add_column(column, justify="right")
    counts = Counter((str(final.status), str(final.type)) for final in finals)
    for state in sorted({str(final.status) for final in finals}, key=lambda state: (state != "SUCCESS", state)):
        by_type = [counts[state, str(kind)] for kind in TransactionType]
        outcomes.add_row(state, str(sum(by_type)), *map(str, by_type))
    console = Console()
    console.print(outcomes)

    collected = _total(finals, TransactionType.COLLECTION)
    disbursed = _total(finals, TransactionType.DISBURSEMENT)
    fees = sum((final.fees.total_fee for final in finals if final.fees is not None), Decimal(0))
    figures = Table(title="what it took", show_header=False, box=SIMPLE)
    figures.add_column()
    figures.add_column(justify="right")
    figures.add_row("collected, TZS", f"{collected:,}")
    figures.add_row("fees, TZS", f"{fees:,}")
    figures.add_row("disbursed, TZS", f"{disbursed:,}")
    same = (collected, disbursed) == (sandbox.ledger.collected, sandbox.ledger.disbursed)
    figures.add_row("agrees with the service's ledger", "yes" if same else "NO")
    figures.add_row("requests", str(sandbox.requests.total))
    figures.add_row("requests per confirmed payment, besides its create", f"{stats.requests / len(finals):.2f}")
    figures.add_row("logins", str(sandbox.requests.logins))
    figures.add_row("rate-limit rejections", str(sandbox.requests.rejections))
    figures.add_row("seconds", f"{took:.1f}")
    console.print(figures)


def _state(transaction: Transaction) -> str:
    return f"{transaction.status} {transaction.failure_reason or ''}".rstrip()


def _total(finals: Iterable[Transaction], kind: TransactionType) -> Decimal:
    return sum((final.amount for final in finals if final.succeeded and final.type == kind), Decimal(0))
