"""Dashboard of a store in a headless Chromium. Set MOBILEMONEY_SCREENSHOTS to a folder to keep pictures."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import attrs
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from mobilemoney_async import AsyncClient, MobileMoneyError, RetryPolicy, SQLStore
from mobilemoney_async.cli.views.dashboard.page import Board, create_page
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.server import serve
from tests.browser.test_phone_page import CLIPBOARD, CONTRAST, NARROW, SMALL, STRUCTURE, WIDE, PageUser
from tests.support.chromium import set_screen

HOSTILE = "<script>document.title='taken'</script>+255681234501"
DISBURSED, CUSTOMER = "+255681234601", "+255681234501"


@attrs.define(eq=False)
class Shop:
    """Program that pays with a store, and a dashboard of that store, in a thread of their own."""

    file: Path
    portal: anyio.from_thread.BlockingPortal
    client: AsyncClient
    sandbox: Sandbox

    def collect(self, key: str, fault: faults.Fault | None = None) -> None:
        """Ask a customer to pay; with a fault, with an unknown result."""
        if fault is not None:
            self.sandbox.script(fault, on="c2b")
        create = self.client.collections.create
        try:
            self.portal.call(lambda: create(CUSTOMER, 15_000 + len(key), idempotency_key=key))
        except MobileMoneyError:
            assert fault is not None

    def enqueue(self, key: str) -> None:
        enqueue = self.client.payments.enqueue
        self.portal.call(lambda: enqueue(type="disbursement", phone_number=DISBURSED, amount=900, idempotency_key=key))

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Let the customers pay, and a poller follow the payments."""
        for each in self.sandbox.transactions.values():
            self.sandbox.approve(each.id)
        with self.portal.wrap_async_context_manager(self.client.poller(resume=True, min_interval=0.2)):
            yield

    @contextmanager
    def dashboard(self, port: int = 0) -> Iterator[str]:
        """Serve a dashboard that looks often, and yield its address."""
        store = SQLStore(f"sqlite:///{self.file}")
        board = Board(store)

        async def follow() -> None:
            while True:
                await board.look_again()
                await anyio.sleep(0.2)  # real time: how often it looks

        self.portal.call(board.look_again)
        page = serve(create_page(board), host="127.0.0.1", port=port, background=follow)
        with self.portal.wrap_async_context_manager(page) as origin:
            yield f"{origin}/"
        store.close()


class Operator(PageUser):
    """Operator who looks at a dashboard."""

    def __init__(self, chrome: webdriver.Chrome, url: str) -> None:
        self.chrome = chrome
        self.url = url

    def open(self, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        set_screen(self.chrome, *size, scheme)
        self.chrome.get(self.url)

    def show(self, name: str) -> None:
        """Check what is on the screen for everybody's eyes, and keep a picture."""
        folder, script = os.environ.get("MOBILEMONEY_SCREENSHOTS"), self.chrome.execute_script
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.chrome.save_screenshot(str(Path(folder) / f"dashboard-{name}.png"))
        assert script(STRUCTURE.replace('"aside", ', "")) == []
        assert script(CONTRAST) == []
        assert script(SMALL) == []
        assert script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    file, sandbox = tmp_path / "payments.db", Sandbox(by_hand=True, choices=Choices(rate_limit=None))
    with anyio.from_thread.start_blocking_portal() as portal:
        options: dict[str, Any] = {"store": SQLStore(f"sqlite:///{file}"), "retry": RetryPolicy(max_attempts=1)}
        client = portal.call(lambda: sandbox.client(**options))
        with portal.wrap_async_context_manager(client):
            yield Shop(file, portal, client, sandbox)


@pytest.fixture
def operator(chromium: webdriver.Chrome, shop: Shop) -> Iterator[Operator]:
    shop.collect("order-1")
    chromium.get_log("browser")  # type: ignore[no-untyped-call]
    with shop.dashboard() as url:
        yield Operator(chromium, url)
        chromium.get("about:blank")
    assert chromium.get_log("browser") == []  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1440"])
def test_the_dashboard_is_accessible(operator: Operator, shop: Shop, size: tuple[int, int], scheme: str) -> None:
    """Structure, names, contrast and targets hold, on a quiet day and on a bad one, with the tables folded out."""
    operator.open(size, scheme)
    operator.sees("No payment is unknown")
    operator.show(f"quiet-{size[0]}-{scheme}")
    with shop.settled():
        operator.sees("SUCCESS")
    shop.collect(HOSTILE, faults.drop(processed=True))
    shop.collect("order-with-a-long-key-" * 6, faults.drop(processed=True))
    shop.enqueue("payout-1")
    operator.sees("Payments that need you: 2", "No program sends the queue", "QUEUED")
    for name in ("hour-table", "limit-table"):
        operator.press(name)
    operator.show(f"bad-{size[0]}-{scheme}")
    assert operator.chrome.title == "Payments of default"


def test_the_sums_of_today_stay_in_their_card_on_a_small_screen(operator: Operator, shop: Shop) -> None:
    """Sums of thousands of millions, too: they stand below their state."""
    create = shop.client.payments.enqueue
    for place in range(2):
        order: dict[str, Any] = {"phone_number": f"+25568123460{place}", "amount": 3_480_000_000}
        shop.portal.call(partial(create, type="disbursement", **order, idempotency_key=f"large-{place}"))
    operator.open(NARROW)
    operator.sees("6,960,000,000")
    operator.show("today-360")
    assert operator.chrome.execute_script(OUTSIDE) == []


OUTSIDE = """
const right = document.querySelector('#today').getBoundingClientRect().right;
return [...document.querySelectorAll('#today *')].filter(each => each.getBoundingClientRect().right > right)
  .map(each => each.textContent.trim());
"""


def test_the_page_follows_the_store(operator: Operator, shop: Shop) -> None:
    """Without a reload new payments and their ends are shown, and a table that was folded out stays so."""
    operator.open()
    operator.sees("Pending\n1", "made: 1")
    operator.press("hour-table")
    shop.collect("order-2")
    operator.sees("Pending\n2", "made: 2")
    with shop.settled():
        operator.sees("Pending\n0", "no payment is open", "succeeded: 2")
    assert operator.find("hour-table").get_attribute("open")


def test_a_key_is_copied_by_keyboard(operator: Operator, shop: Shop) -> None:
    """Tab leads past a skip link to the payments that need someone; Enter copies the key of one."""
    shop.collect("order-2", faults.drop(processed=True))
    operator.open()
    operator.sees("order-2")
    permissions = {"origin": operator.url.rstrip("/"), "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    operator.chrome.execute_cdp_cmd("Browser.grantPermissions", permissions)
    operator.keys(Keys.TAB, Keys.ENTER, Keys.TAB, Keys.ENTER)
    operator.until(lambda: operator.chrome.execute_script(CLIPBOARD) == "order-2", "the key was not copied")


def test_what_is_away_is_said_and_comes_back(chromium: webdriver.Chrome, shop: Shop) -> None:
    """A store that is away leaves the last figures, with their time; a dashboard that has ended is named too."""
    shop.collect("order-1")
    with shop.dashboard() as url:
        operator = Operator(chromium, url)
        operator.open(NARROW)
        away = shop.file.rename(shop.file.with_suffix(".away"))
        operator.sees("The store cannot be read.", "there is no file", "The figures below are of", "Pending\n1")
        operator.show("away")
        away.rename(shop.file)
        operator.until(lambda: "cannot be read" not in operator.text, "it never came back")
        port = int(url.rstrip("/").rpartition(":")[2])
    lost = operator.find("lost")
    operator.until(lost.is_displayed, "never said that it is gone")
    with shop.dashboard(port):
        operator.until(lambda: not lost.is_displayed(), "still says that it is gone")
        chromium.get("about:blank")
