"""A platform in one process: the sandbox with many merchants, a store, and any number of hosts in virtual time."""

from __future__ import annotations

from typing import Any

import attrs

from mobilemoney_async import Merchants, RetryPolicy, SQLStore
from mobilemoney_async.sandbox import Sandbox

NUMBER, PAYS, STAYS_OPEN = "+255681234501", "+255780000789", "+255780000129"


@attrs.define(eq=False)
class Platform:
    """Merchants of one store at one service, which share a clock.

    Attributes:
        url: Of the store.
        sandbox: The service of `shop-1` and `shop-2`.
    """

    url: str
    sandbox: Sandbox = attrs.field(factory=lambda: Sandbox(merchants=2))

    def store(self, account: str = "shop-1") -> SQLStore:
        """Return a store of its own: another process, as far as stores can tell."""
        return SQLStore(self.url, account)

    def merchants(self, **options: Any) -> Merchants:
        """Return the merchants of a host, which must be entered."""
        return platform_of(self.sandbox, SQLStore(self.url), **options)

    @property
    def paid(self) -> list[tuple[str, str]]:
        """The number and amount of each transaction of the service, sorted."""
        return sorted((each.phone_number, str(each.amount)) for each in self.sandbox.transactions.values())


def platform_of(sandbox: Sandbox, store: Any, **options: Any) -> Merchants:
    """Return the merchants of a host; their tokens come from the sandbox, as from a vault."""

    async def auth(account: str) -> str:
        return sandbox.tokens[account]

    given: dict[str, Any] = {
        "store": store,
        "auth": auth,
        "transport": lambda account: sandbox.transport(),
        "retry": RetryPolicy(max_attempts=1),
        "utcnow": lambda: sandbox.now,
    }
    return Merchants(sandbox.base_url, **{**given, **options})
