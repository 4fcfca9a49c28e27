"""What is known of payments that are followed. Pure, but for what it tells."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import anyio
import attrs

from mobilemoney_async.cli.failures import ExitCode
from mobilemoney_async.cli.service import command_line
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import MobileMoneyError

# So many ids are named in one line.
_MOST_NAMED = 10


class News(str, enum.Enum):
    """What is new about a payment; the value is how lines and JSON call it."""

    OPEN = "open"
    """Seen, and not final."""
    FINAL = "final"
    """Seen in its final state, whichever that is."""
    NOT_SHOWN = "not_shown"
    """Not shown by the service so far; it may be too new. It is looked for further, for two minutes."""
    NOT_KNOWN = "not_known"
    """The service knows no such transaction."""

    def __str__(self) -> str:
        return self.value


NEWS_IN_WORDS: Mapping[News, str] = {
    News.OPEN: "open",
    News.FINAL: "final",
    News.NOT_SHOWN: "not shown so far; if it is not new, check the id and the profile",
    News.NOT_KNOWN: "the service does not know it: check the id and the profile",
}
"""For people."""


@attrs.frozen(kw_only=True)
class Change:
    """Something new about one payment.

    Attributes:
        transaction_id: Which.
        news: What.
        at: When it was seen here.
        transaction: As seen, or None where it is not known.
        error: Why it is not known, or None.
    """

    transaction_id: str
    news: News
    at: datetime
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None


class Board:
    """What is known of some payments.

    Args:
        ids: Their transaction ids, in the order in which they are shown; each counts once.
        tell: Is told of each change.
    """

    def __init__(self, ids: Iterable[str], tell: Callable[[Change], object]) -> None:
        self._latest: dict[str, Change | None] = dict.fromkeys(ids)
        self._open = dict.fromkeys(self._latest)
        self._ended = anyio.Event()
        self._tell = tell

    @property
    def latest(self) -> Mapping[str, Change | None]:
        """The latest change of each payment, by id; None where nothing was seen yet."""
        return self._latest

    @property
    def open(self) -> list[str]:
        """Those whose final state was not seen, in their order."""
        return list(self._open)

    @property
    def unknown(self) -> list[str]:
        """Those that the service does not know, in their order."""
        return [each.transaction_id for each in self._latest.values() if each and each.news is News.NOT_KNOWN]

    @property
    def all_succeeded(self) -> bool:
        """Whether every one of them went through."""
        return all(each and each.transaction and each.transaction.succeeded for each in self._latest.values())

    def saw(self, transaction: Transaction) -> None:
        """Take note of what the service showed of a payment."""
        self._change(transaction.id, News.FINAL if transaction.is_final else News.OPEN, transaction=transaction)

    def missed(self, transaction_id: str, error: MobileMoneyError) -> None:
        """Take note that the service does not show a payment yet: how soon it does is not documented."""
        self._change(transaction_id, News.NOT_SHOWN, error=error)

    def refused(self, transaction_id: str, error: MobileMoneyError) -> None:
        """Take note that the service does not know a payment."""
        self._change(transaction_id, News.NOT_KNOWN, error=error)

    async def wait_until_ended(self) -> None:
        """Wait until nothing is open any more."""
        if self._open:
            await self._ended.wait()

    def _change(
        self,
        transaction_id: str,
        news: News,
        *,
        transaction: Transaction | None = None,
        error: MobileMoneyError | None = None,
    ) -> None:
        if transaction_id not in self._open:
            return  # what has ended does not change any more
        before = self._latest[transaction_id]
        if before and before.transaction and transaction and before.transaction.status == transaction.status:
            return
        if news in {News.FINAL, News.NOT_KNOWN}:
            del self._open[transaction_id]
            if not self._open:
                self._ended.set()
        change = Change(
            transaction_id=transaction_id, news=news, at=datetime.now(UTC), transaction=transaction, error=error
        )
        self._latest[transaction_id] = change
        self._tell(change)


def exit_code(board: Board) -> ExitCode:
    """Return how a command ends that has followed the payments of a board.

    An id that nobody knows is an error, and comes before payments that are still open, which come before payments that
    ended otherwise than well.
    """
    if board.unknown:
        return ExitCode.ERROR
    if board.open:
        return ExitCode.NOT_FINAL
    return ExitCode.FINE if board.all_succeeded else ExitCode.NOT_SUCCESSFUL


def still_open(board: Board, flags: Sequence[str] = ()) -> list[str]:
    """Return lines about what is still open on a board, and how to go on; none where nothing is.

    Args:
        board: After the following.
        flags: Which service it was; see `Service.flags`.
    """
    ids = board.open
    if not ids:
        return []
    named = " ".join(ids[:_MOST_NAMED]) + (f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else "")
    what = "1 payment is" if len(ids) == 1 else f"{len(ids)} payments are"
    again = command_line("watch", *(ids if len(ids) <= _MOST_NAMED else ["ID..."]), *flags)
    return [f"{what} still open, and may end without us: {named}", f"to go on following: {again}"]
