"""A customer in a browser pays, and sees how it ends. Screenshots go where MOBILEMONEY_SCREENSHOTS says, if it does."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait

from mobilemoney_async.sandbox import faults
from tests.browser.test_phone_page import CONTRAST
from tests.support.patience import PATIENCE
from tests.support.shops import Shop, fastapi_shop, running

PAYS, STUCK, LOST, NO_ANSWER = (f"+255780000{n}" for n in ("789", "129", "202", "203"))
NARROW, WIDE = (360, 760), (1440, 900)
ENDS = {
    "approve": ("succeeded", "Paid. Thank you!"),
    "decline": ("failed", "The payment failed"),
    "expire": ("expired", "Time ran out"),
}
UNNAMED = """
return [...document.querySelectorAll("input, button, a")].filter((e) => e.offsetParent)
  .filter((e) => !(e.labels && e.labels.length) && !e.textContent.trim()).map((e) => e.outerHTML);
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    # A request whose answer is lost is given up soon; a payment whose answer is late is found, too.
    with running(fastapi_shop, tmp_path_factory.mktemp("shop"), timeout=3.0) as shop:  # real time: see above
        yield shop


class Customer:
    """What a customer does and sees."""

    def __init__(self, chrome: webdriver.Chrome, shop: Shop, name: str) -> None:
        self.chrome = chrome
        self.shop = shop
        self.name = name

    def look(self, size: tuple[int, int], scheme: str) -> None:
        """Take a screen of a size, light or dark, and a clean browser."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, path: str = "/") -> None:
        self.chrome.get(self.shop.url + path)

    def pay(self, phone_number: str) -> None:
        field = self.chrome.find_element(By.ID, "phone")
        field.clear()
        field.send_keys(phone_number, Keys.ENTER)

    def sees(self, state: str) -> WebElement:
        """Wait until the page shows a state, and return it."""

        def find(chrome: webdriver.Chrome) -> WebElement | bool:
            section = chrome.find_element(By.ID, "payment")
            return section if section.get_attribute("data-state") == state and section.is_displayed() else False

        found = WebDriverWait(self.chrome, PATIENCE, poll_frequency=0.05).until(find, f"never {state}")
        self.show(state)
        assert isinstance(found, WebElement)
        return found

    def show(self, what: str) -> None:
        """Check what is on the screen for everybody's eyes, and keep a picture."""
        folder = os.environ.get("MOBILEMONEY_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.chrome.save_screenshot(str(Path(folder) / f"{self.name}-{what}.png"))
        assert self.chrome.execute_script(CONTRAST) == []
        assert self.chrome.execute_script(UNNAMED) == []
        root = "return document.documentElement"
        assert self.chrome.execute_script(f"{root}.scrollWidth <= {root[7:]}.clientWidth")


@pytest.fixture
def customer(
    chromium: webdriver.Chrome, shop: Shop, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Customer]]:
    def arrive(size: tuple[int, int] = NARROW, scheme: str = "light") -> Customer:
        customer = Customer(chromium, shop, request.node.callspec.id if hasattr(request.node, "callspec") else "shop")
        customer.look(size, scheme)
        customer.open()
        return customer

    chromium.get_log("browser")  # type: ignore[no-untyped-call]
    yield arrive
    # A refused order is an error of HTTP, which Chromium mentions; anything else is ours.
    said = [each["message"] for each in chromium.get_log("browser")]  # type: ignore[no-untyped-call]
    assert [each for each in said if "422" not in each and "409" not in each] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1440"])
@pytest.mark.parametrize("how", ENDS, ids=["pays", "declines", "late"])
def test_a_customer_pays_and_sees_how_it_ends(
    customer: Callable[..., Customer],
    shop: Shop,
    size: tuple[int, int],
    scheme: str,
    how: Literal["approve", "decline", "expire"],
) -> None:
    """Success, failure and time-out are shown as they happen, readable on a phone and on a desk, light and dark."""
    state, headline = ENDS[how]
    here = customer(size, scheme)
    here.show("form")
    here.pay(STUCK)
    here.sees("pending")
    shop.end(how)
    section = here.sees(state)
    assert section.find_element(By.ID, "headline").text == headline
    assert "15,000 TZS" in section.text
    assert section.get_attribute("aria-busy") == "false"
    assert section.find_element(By.ID, "new").is_displayed()
    assert headline in here.chrome.title


def test_a_customer_is_not_told_that_an_unknown_payment_failed(customer: Callable[..., Customer]) -> None:
    """While nobody knows, the page says so and offers no second payment."""
    here = customer()
    here.pay(LOST)
    section = here.sees("finding_out")
    assert "do not pay again" in section.text
    assert not section.find_element(By.ID, "again").is_displayed()
    assert not section.find_element(By.ID, "new").is_displayed()


def test_a_customer_learns_what_became_of_an_unknown_payment(customer: Callable[..., Customer]) -> None:
    """A payment whose request got no proper answer is found, and its end is shown like any other."""
    here = customer()
    here.pay(NO_ANSWER)
    here.sees("succeeded")


def test_a_reload_shows_the_same_order(customer: Callable[..., Customer], shop: Shop) -> None:
    """A customer who reloads the page, or comes back, sees the payment that is open, and where it went."""
    here = customer()
    here.pay(STUCK)
    order = here.sees("pending").find_element(By.ID, "order").text
    here.chrome.refresh()
    assert here.sees("pending").find_element(By.ID, "order").text == order
    shop.end("approve")
    here.sees("succeeded")


def test_a_wrong_number_is_explained_beside_the_field(customer: Callable[..., Customer]) -> None:
    """A number of no mobile phone is refused beside the field, which has the focus and says that it is wrong."""
    here = customer()
    here.pay("0222 111 000")
    error = here.chrome.find_element(By.ID, "phone-error")
    WebDriverWait(here.chrome, PATIENCE).until(lambda _: error.is_displayed())
    here.show("wrong-number")
    field = here.chrome.switch_to.active_element
    assert field.get_attribute("id") == "phone"
    assert field.get_attribute("aria-invalid") == "true"
    assert "phone-error" in str(field.get_attribute("aria-describedby"))
    assert "0788 500 000" in error.text
    here.pay(PAYS.replace("+255", "0"))
    here.sees("succeeded")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_customer_corrects_a_number_that_the_service_refused(
    customer: Callable[..., Customer], shop: Shop, scheme: str
) -> None:
    """The order is the first number's: beside this error is the way to a new order, which the second number pays."""
    here = customer(scheme=scheme)
    error = here.chrome.find_element(By.ID, "phone-error")
    new = here.chrome.find_element(By.ID, "other")
    shop.call(lambda: shop.sandbox.script(faults.server_error(422, processed=False), on="c2b"))
    here.pay(STUCK)
    WebDriverWait(here.chrome, PATIENCE).until(lambda _: error.is_displayed())
    assert not new.is_displayed()
    here.pay(PAYS)
    WebDriverWait(here.chrome, PATIENCE).until(lambda _: new.is_displayed() and error.is_displayed())
    here.show("other-number")
    assert here.chrome.switch_to.active_element.get_attribute("id") == "phone"
    new.click()
    WebDriverWait(here.chrome, PATIENCE).until(staleness_of(new))
    here.pay(PAYS)
    here.sees("succeeded")


@pytest.mark.parametrize("is_paid", [False, True], ids=["open", "paid"])
def test_a_payment_of_another_tab_is_shown(customer: Callable[..., Customer], shop: Shop, is_paid: bool) -> None:
    """A second number for an order with a payment shows this payment, and offers no other while it is open."""
    here = customer()
    order = here.chrome.execute_script("return document.body.dataset.order")
    with shop.browser() as tab:
        tab.post(f"/orders/{order}", json={"item": "coffee", "phone_number": STUCK}).raise_for_status()
    if is_paid:
        shop.end("approve")
        shop.wait_for(order, "succeeded")
    here.pay(PAYS)
    section = here.sees("succeeded" if is_paid else "pending")
    assert section.find_element(By.ID, "order").text == order
    assert section.find_element(By.ID, "new").is_displayed() == is_paid
    assert not here.chrome.find_element(By.ID, "checkout").is_displayed()
    if not is_paid:
        shop.end("approve")
        here.sees("succeeded")


def test_everything_is_reached_by_keyboard(customer: Callable[..., Customer], shop: Shop) -> None:
    """Tab leads from the items to the number and to the button, in this order, and the news takes the focus."""
    here = customer()
    body = here.chrome.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    met = []
    for _ in range(3):
        focused = here.chrome.switch_to.active_element
        met.append(focused.get_attribute("id") or focused.get_attribute("name"))
        focused.send_keys(Keys.TAB)
    assert met == ["item", "phone", "pay"]
    here.pay(STUCK)
    here.sees("pending")
    assert here.chrome.switch_to.active_element.get_attribute("id") == "headline"
    shop.end("approve")
    here.sees("succeeded")
