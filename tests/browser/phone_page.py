"""Sandbox with its phone page over a socket, and the picture of it in the README.

    python -m tests.browser.phone_page docs/images/phone-page.png

makes the picture again (from the checkout, with the group `browser` installed).
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio.from_thread
import attrs

from mobilemoney_async import AsyncClient, Schedule, Transaction
from mobilemoney_async.sandbox import Sandbox
from tests.support.chromium import headless, set_screen
from tests.support.patience import PATIENCE

ASHA, JUMA, NEEMA = "+255681000142", "+255753000911", "+255620000377"

T = TypeVar("T")


@attrs.define(eq=False)
class Served:
    """Sandbox that is served in a thread of its own, and a client of it there."""

    sandbox: Sandbox
    client: AsyncClient
    base_url: str
    portal: anyio.from_thread.BlockingPortal

    @property
    def page(self) -> str:
        """URL of the phone page."""
        return self.base_url.removesuffix("v1")

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call something, or await it, in the loop that serves."""
        return self.portal.call(lambda: function(*args, **options))

    def ask(self, phone_number: str, amount: int) -> str:
        """Let the client ask a customer to pay, and return the transaction's id."""
        created = self.call(self.client.collections.create, phone_number=phone_number, amount=amount)
        return str(created.transaction_id)

    def wait_for(self, transaction_id: str) -> "Future[Transaction]":
        """Let the client follow a payment to its end."""
        schedule = Schedule(first=0.5, factor=1.2, cap=2.0)
        wait = self.client.transactions.wait
        return self.portal.start_task_soon(lambda: wait(transaction_id, timeout=PATIENCE, schedule=schedule))


@contextmanager
def serving(sandbox: Sandbox, port: int = 0) -> Iterator[Served]:
    """Serve a sandbox and its page."""
    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(sandbox.serve(port=port)) as base_url:
            client = portal.call(lambda: AsyncClient(base_url, auth=sandbox.token))
            with portal.wrap_async_context_manager(client):
                yield Served(sandbox, client, base_url, portal)


def play_a_morning(served: Served) -> None:
    """Play a merchant's morning: open prompts, some history, and a fault that is on."""
    sandbox, call = served.sandbox, served.call
    call(sandbox.run_clock, 0)
    call(sandbox.enter_pin, served.ask(ASHA, 42_000), "1234")
    call(sandbox.advance, 95)
    call(sandbox.decline, served.ask(JUMA, 8_500))
    call(sandbox.advance, 61)
    call(served.client.disbursements.create, phone_number=ASHA, amount=120_000)
    call(sandbox.advance, 100)
    call(sandbox.expire, served.ask(NEEMA, 3_000))
    call(sandbox.advance, 64)
    call(sandbox.switches.turn_on, "unknown-fields")
    call(sandbox.switches.turn_on, "error-500-before", once=False, on="b2c")
    call(served.client.transactions.page, 1)
    served.ask(JUMA, 15_000)
    call(sandbox.advance, 21)
    call(sandbox.enter_pin, served.ask(ASHA, 64_500), "0000")
    call(sandbox.advance, 13)
    served.ask(NEEMA, 2_000)
    call(sandbox.run_clock, 1)


def take_picture(path: Path) -> None:
    """Save a picture of the page on that morning."""
    sandbox = Sandbox(seed=8, by_hand=True, now=datetime(2026, 3, 2, 9, 35, 12, tzinfo=UTC))
    with tempfile.TemporaryDirectory() as folder, serving(sandbox) as served, headless(Path(folder)) as chrome:
        play_a_morning(served)
        set_screen(chrome, 1440, 1000, "light")
        chrome.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        chrome.get(served.page)
        path.parent.mkdir(parents=True, exist_ok=True)
        chrome.save_screenshot(str(path))


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]))
