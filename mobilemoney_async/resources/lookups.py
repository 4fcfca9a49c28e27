"""Many lookups side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Self

import anyio
import attrs

from mobilemoney_async.contract.limits import BURST
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.errors import MobileMoneyError
from mobilemoney_async.resources.ahead import start


@attrs.frozen(kw_only=True)
class Lookup:
    """What became of one lookup: a transaction or an error.

    Attributes:
        transaction_id: The id that was looked up.
        transaction: The transaction, or None.
        error: Why there is none, or None.
    """

    transaction_id: str
    transaction: Transaction | None = None
    error: MobileMoneyError | None = None


class Lookups:
    """Looks up ids side by side and yields each `Lookup` as it arrives.

    A reader that stops asking stops the lookups: what is on its way ends by itself, and nothing more is sent.
    """

    def __init__(self, ids: Iterable[str], get: Callable[[str], Awaitable[Transaction]]) -> None:
        self._ids = deque(ids)
        self._get = get
        self._flying = 0
        self._arrived: deque[Lookup | Exception] = deque()
        self._arrival = anyio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Lookup:
        await anyio.lowlevel.checkpoint()
        while not self._arrived:
            while self._ids and self._flying < BURST:
                self._flying += 1
                start(partial(self._look_up, self._ids.popleft()))
            if not self._flying:
                raise StopAsyncIteration
            self._arrival = anyio.Event()
            await self._arrival.wait()
        arrived = self._arrived.popleft()
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    async def aclose(self) -> None:
        """Send nothing more; what is on its way ends by itself."""
        self._ids.clear()
        await anyio.lowlevel.checkpoint()

    async def _look_up(self, transaction_id: str) -> None:
        try:
            transaction = await self._get(transaction_id)
            self._arrived.append(Lookup(transaction_id=transaction_id, transaction=transaction))
        except MobileMoneyError as exc:
            self._arrived.append(Lookup(transaction_id=transaction_id, error=exc))
        except Exception as exc:  # noqa: BLE001 (a caller's own token source may raise anything)
            self._arrived.append(exc)
        finally:
            self._flying -= 1
            self._arrival.set()
