"""Phone page in a headless Chromium. Set MOBILEMONEY_SCREENSHOTS to a folder to keep pictures."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from mobilemoney_async.sandbox import Sandbox
from tests.browser.phone_page import ASHA, JUMA, NEEMA, Served, play_a_morning, serving
from tests.support.chromium import set_screen
from tests.support.patience import PATIENCE

QUIET, OTHER = "+255754000555", "+255755000666"
NARROW, WIDE = (360, 760), (1440, 900)
UNFOLD = "for (const part of document.querySelectorAll('details')) part.open = true"
CLIPBOARD = "return navigator.clipboard.readText()"
# What is pressed is remembered where a page that the press loads finds it, too. Without scripts nobody can know, and
# nothing moves.
AIM = """
const [button] = arguments;
sessionStorage.pressed = matchMedia("(scripting: none)").matches ? "yes" : "";
button.addEventListener("click", () => { sessionStorage.pressed = "yes"; }, { capture: true, once: true });
button.scrollIntoView({ block: "center", behavior: "instant" });
"""

# WCAG 2.2: 1.4.3 (contrast).
CONTRAST = """
const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (!/, 0\\)$/.test(c)) return c; } return "rgb(255, 255, 255)"; };
const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
return [...document.querySelectorAll("body *")]
  .filter((e) => own(e) && e.checkVisibility() && !e.matches(":disabled, option"))
  .map((e) => { const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName, e.textContent.trim().slice(0, 30)]; })
  .filter(([ratio]) => ratio < 4.5);
"""
# 2.5.5 (target size); links in running text may be smaller.
SMALL = """
return [...document.querySelectorAll("button, select, input:not([type=hidden]), summary, nav a")]
  .filter((e) => e.checkVisibility()).map((e) => [e.getBoundingClientRect(), e.outerHTML.slice(0, 90)])
  .filter(([r]) => r.width < 43.9 || r.height < 43.9).map(([r, html]) => [r.width, r.height, html]);
"""
# 1.3.1, 4.1.2: a name for each control, landmark and progress bar; one h1, no level left out; unique ids.
STRUCTURE = """
const all = (selector) => [...document.querySelectorAll(selector)];
const text = (id) => document.getElementById(id)?.textContent.trim() ?? "";
const named = (e) => e.getAttribute("aria-label") || [...(e.labels || [])].map((l) => l.textContent).join("")
  || (e.getAttribute("aria-labelledby") || "").split(" ").map(text).join("");
const wrong = [];
for (const e of all("input:not([type=hidden]), select, meter, progress, nav, section, aside, [role=group]"))
  if (!named(e)) wrong.push(["unnamed", e.outerHTML.slice(0, 90)]);
for (const e of all("button, a, summary"))
  if (!named(e) && !e.textContent.trim()) wrong.push(["unnamed", e.outerHTML.slice(0, 90)]);
for (const e of all("img")) if (!e.hasAttribute("alt")) wrong.push(["no alt", e.src]);
const levels = all("h1, h2, h3, h4, h5, h6").filter((e) => e.checkVisibility()).map((e) => +e.tagName[1]);
if (levels.filter((l) => l === 1).length !== 1) wrong.push(["h1", levels]);
levels.forEach((l, i) => { if (i && l > levels[i - 1] + 1) wrong.push(["heading left out", levels]); });
for (const tag of ["header", "nav", "main", "aside", "footer"])
  if (all(`body > ${tag}, header > ${tag}, main ${tag}`).length !== 1) wrong.push(["landmark", tag]);
const same = (list) => list.filter((each, i) => list.indexOf(each) !== i);
for (const name of same(all("form").map(named).filter(Boolean))) wrong.push(["forms with one name", name]);
const controls = all("main button, main input:not([type=hidden]), main select");
for (const name of same(controls.map((e) => named(e) || e.textContent)))
  wrong.push(["controls with one name", name]);
const ids = all("[id]").map((e) => e.id);
if (new Set(ids).size !== ids.length) wrong.push(["ids", same(ids)]);
return wrong;
"""


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(Sandbox(by_hand=True)) as served:
        yield served


class PageUser:
    """User of the page in Chromium."""

    def __init__(self, chrome: webdriver.Chrome, served: Served) -> None:
        self.chrome = chrome
        self.served = served

    def open(self, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        set_screen(self.chrome, *size, scheme)
        self.chrome.get(self.served.page)

    def find(self, name: str) -> WebElement:
        """Wait for an element by its id."""
        element = self.until(lambda: self.chrome.find_element(By.ID, name), f"no {name}")
        assert isinstance(element, WebElement)
        return element

    def until(self, condition: Callable[..., Any], failure: str, *arguments: Any) -> Any:
        """Wait until a condition holds.

        A missing element, and one that the page has replaced, are looked up again. Chromium reports the latter in
        several ways, "does not belong to the document" among them.
        """

        def holds(_: webdriver.Chrome) -> Any:
            try:
                return condition(*arguments)
            except WebDriverException:
                return False

        return WebDriverWait(self.chrome, PATIENCE, poll_frequency=0.05).until(holds, failure)

    @property
    def text(self) -> str:
        return self.chrome.find_element(By.TAG_NAME, "main").text

    def sees(self, *texts: str) -> None:
        for text in texts:
            self.until(lambda text: text in self.text, f"never {text!r}", text)

    def press(self, name: str) -> None:
        """Press a button by its id or selector, once it is there.

        An update can move the button away under the mouse: a press that did not reach it is made again.
        """
        selector = name if name.startswith("#") else f"#{name}"

        def pressed() -> bool:
            button = self.chrome.find_element(By.CSS_SELECTOR, selector)
            self.chrome.execute_script(AIM, button)
            button.click()
            return bool(self.chrome.execute_script("return sessionStorage.pressed"))

        self.until(pressed, f"no button {name}")

    def unfold(self, name: str) -> None:
        """Fold a part out, if it is folded in."""
        if not self.find(name).get_attribute("open"):
            self.press(f"#{name} > summary")
        self.until(lambda: self.find(name).get_attribute("open"), f"{name} never folded out")

    def type(self, name: str, *keys: str) -> None:
        self.find(name).send_keys(*keys)

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.chrome).send_keys(*keys).perform()

    @property
    def focused(self) -> str:
        return str(self.chrome.switch_to.active_element.get_attribute("id"))


@pytest.fixture
def user(chromium: webdriver.Chrome, served: Served) -> Iterator[PageUser]:
    chromium.get("about:blank")
    chromium.delete_all_cookies()
    chromium.get_log("browser")  # type: ignore[no-untyped-call]
    yield PageUser(chromium, served)
    # Requests of the page to a stopped sandbox would be in the next test's log.
    chromium.get("about:blank")
    said = [each["message"] for each in chromium.get_log("browser")]  # type: ignore[no-untyped-call]
    # Chromium itself mentions that something was refused.
    assert [each for each in said if "status of 422" not in each] == []


def show(user: PageUser, name: str) -> None:
    """Check structure, contrast and target sizes of the screen, and keep a picture."""
    folder = os.environ.get("MOBILEMONEY_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        user.chrome.save_screenshot(str(Path(folder) / f"phone-page-{name}.png"))
    script = user.chrome.execute_script
    assert script(STRUCTURE) == []
    assert script(CONTRAST) == []
    assert script(SMALL) == []
    assert script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_payment_is_made_on_the_page(user: PageUser, served: Served) -> None:
    """A collection of the client appears on the page, is paid there with the PIN, and is final for the client."""
    user.open()
    user.sees("No phone has been asked to pay yet")
    payment = served.ask(ASHA, 15_000)
    end = served.wait_for(payment)
    user.sees("+255 681 000 142", "TZS 15,000", "PENDING")
    user.type(f"pin-{payment}", "1234")
    user.press(f"pay-{payment}")
    transaction = end.result(PATIENCE)
    assert transaction.succeeded
    assert transaction.amount == 15_000
    user.sees("Paid", "SUCCESS", "10,014,775.00", "POST /v1/payment-service/airtel/c2b")
    announcement = user.chrome.find_element(By.ID, "announcement")
    user.until(lambda: "SUCCESS" in str(announcement.get_attribute("textContent")), "never announced")


def test_a_wrong_pin_leaves_tries_until_the_last(user: PageUser, served: Served) -> None:
    """A wrong PIN is reported at once, its field is emptied and keeps the focus; the third one declines."""
    user.open(NARROW)
    payment = served.ask(ASHA, 15_000)
    end = served.wait_for(payment)
    for left in ("2 tries left", "1 try left"):
        user.type(f"pin-{payment}", "0000", Keys.ENTER)
        user.sees(f"Wrong PIN: {left}")
        user.until(lambda: user.find(f"pin-{payment}").get_attribute("value") == "", "the PIN stayed")
        assert user.focused == f"pin-{payment}"
    user.type(f"pin-{payment}", "0000", Keys.ENTER)
    transaction = end.result(PATIENCE)
    assert (transaction.status, transaction.failure_reason) == ("FAILED", "PAYMENT_NOT_APPROVED")
    user.sees("Not paid", "FAILED", "PAYMENT_NOT_APPROVED")


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1440"])
def test_the_page_alone_shows_a_payment(user: PageUser, served: Served, size: tuple[int, int]) -> None:
    """On an empty page two presses and a PIN ask a customer, and pay; the form keeps its values for the next."""
    user.open(size)
    user.press("ask-send")
    user.sees("Asked +255 681 234 567 to pay 15,000 TZS", "PENDING")
    (payment,) = served.sandbox.transactions
    user.type(f"pin-{payment}", "1234", Keys.ENTER)
    user.sees("SUCCESS", "Paid", "10,014,775.00")
    user.type("ask-magic", "HTTP 500")
    assert user.find("ask-number").get_attribute("value") == "+255780000203"
    user.press("ask-send")
    user.sees("Asked +255 780 000 203", "A program would get: HTTP 500 INTERNAL_ERROR.")
    show(user, f"asked-{size[0]}")
    assert user.find("ask-magic").get_attribute("value") == "+255780000203"
    user.type("ask-number", Keys.BACKSPACE, "9")
    assert user.find("ask-magic").get_attribute("value") == ""
    user.press("ask-send")
    user.sees("Asked +255 780 000 209")


def test_one_phone_on_a_wide_screen_stands_beside_the_merchant(user: PageUser, served: Served) -> None:
    """It leaves no row of empty space; two phones stand above the merchant."""
    user.open(WIDE)
    tops = "return ['.phones-section', '.merchant'].map(s => document.querySelector(s).getBoundingClientRect().top)"
    served.ask(ASHA, 1_000)
    user.sees("1,000")
    user.until(lambda: len({*user.chrome.execute_script(tops)}) == 1, "the merchant is not beside the phone")
    show(user, "one-phone-1440")
    served.ask(JUMA, 2_000)
    user.sees("2,000")
    user.until(lambda: len({*user.chrome.execute_script(tops)}) == 2, "the merchant is beside two phones")


def test_wrong_input_of_a_payment_is_explained_beside_its_field(user: PageUser, served: Served) -> None:
    """The sentence stands beside the field and nowhere else, the focus stays, and the right input removes it."""
    user.open(NARROW)
    user.type("ask-amount", Keys.BACKSPACE * 5, "<b>1,5", Keys.ENTER)
    error = user.find("ask-amount-error")
    assert error.text == "Enter whole TZS, digits only, such as 15000."
    assert user.focused == "ask-amount"
    assert user.find("ask-amount").get_attribute("value") == "<b>1,5"
    assert user.text.count("digits only") == 1
    show(user, "wrong-amount")
    assert not served.sandbox.transactions
    user.keys(Keys.BACKSPACE * 6, "15", Keys.ENTER)
    user.sees("to pay 15 TZS")
    assert not user.chrome.find_elements(By.ID, "ask-amount-error")
    assert user.focused == "ask-amount"


def test_phones_that_wait_come_first_and_the_others_are_a_row(user: PageUser, served: Served) -> None:
    """Five phones are short on a small screen; a line unfolds to its history, and stays so while updates come."""
    play_a_morning(served)
    for number in (QUIET, OTHER):
        served.call(served.sandbox.approve, served.ask(number, 9_000))
    user.open(NARROW)
    user.sees("+255 755 000 666", "+255 754 000 555")
    height = "return document.documentElement.scrollHeight"
    assert user.chrome.execute_script(height) < 4_000
    top = "return Math.max(...[...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().top))"
    assert user.chrome.execute_script(top, ".prompt") < user.chrome.execute_script(top, ".line:first-child")
    line = user.chrome.find_element(By.CSS_SELECTOR, ".line details")
    name = str(line.get_attribute("id"))
    user.unfold(name)
    user.unfold("group-1")
    user.find("keep-refused").send_keys(Keys.ENTER)
    user.sees("Connection refused, not processed\nOn until you switch it off")
    served.call(served.sandbox.ask, ASHA, "77")
    user.sees("TZS 77")
    assert user.find(name).get_attribute("open") and user.find("group-1").get_attribute("open")
    show(user, "row-360")


def test_foreign_texts_do_not_break_the_page(user: PageUser, served: Served) -> None:
    """Texts of 10,000 characters, with markup and bidirectional marks, neither widen a small page nor run."""
    hostile = "<script>document.title='broken'</script>\u202e" + 10_000 * "W"
    body = {"phone_number": ASHA, "amount": "15000", "external_id": hostile}
    headers = {"Authorization": f"Bearer {served.sandbox.token}"}
    answer = httpx.post(f"{served.base_url}/payment-service/airtel/c2b", json=body, headers=headers)
    served.call(served.sandbox.decline, answer.json()["transaction_id"], hostile)
    httpx.get(f"{served.base_url}/{10_000 * 'W'}")
    user.open(NARROW)
    user.sees("<script>document.title")
    user.unfold("requests-fold")
    show(user, "hostile")
    assert user.chrome.title == "Mobile money sandbox"


def test_a_half_typed_pin_survives_updates(user: PageUser, served: Served) -> None:
    """While prompts come, count down and end around it, the focus stays and nothing typed or folded out is lost."""
    user.open()
    payment = served.ask(ASHA, 15_000)
    user.type("callback-url", "http://half")
    for name in ("connect", "ask"):
        user.unfold(name)
    user.type("ask-number", "9")
    user.type("ask-amount", "0")
    user.type(f"pin-{payment}", "12")
    other = served.ask(JUMA, 2_000)
    user.sees("+255 753 000 911")
    served.call(served.sandbox.switches.turn_on, "slow", once=False)
    served.call(served.sandbox.advance, 30)
    user.sees("Slow answer", "1:2")
    served.call(served.sandbox.enter_pin, payment, "0000")
    user.sees("2 tries left")
    served.call(served.sandbox.approve, other)
    user.sees("SUCCESS")
    assert user.focused == f"pin-{payment}"
    user.keys("34")
    assert user.find(f"pin-{payment}").get_attribute("value") == "1234"
    user.keys(Keys.ENTER)
    user.until(lambda: served.sandbox.transactions[payment].status == "SUCCESS", "never paid")
    typed = {"callback-url": "http://half", "ask-number": "+2556812345679", "ask-amount": "150000"}
    assert {name: user.find(name).get_attribute("value") for name in typed} == typed
    assert user.find("connect").get_attribute("open")


def test_everything_works_by_keyboard(user: PageUser, served: Served) -> None:
    """Tab leads past a skip link to the phones, Enter pays; the focus stays at the phone, or goes to one that waits."""
    payment = served.ask(ASHA, 15_000)
    user.open()
    user.keys(Keys.TAB)
    assert user.chrome.switch_to.active_element.text == "Skip to the phones"
    user.keys(Keys.ENTER)
    met = []
    for _ in range(9):
        user.keys(Keys.TAB)
        met.append(user.focused)
        outline = "return getComputedStyle(document.activeElement).outlineStyle"
        assert user.chrome.execute_script(outline) != "none", met
    ask = ["ask-title", "ask-number", "ask-magic", "ask-amount", "ask-send"]
    assert met == ["by-hand-yes", "by-hand-no", *ask, f"pin-{payment}", f"pay-{payment}"]
    ActionChains(user.chrome).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    user.keys("1234", Keys.ENTER)
    user.sees("Paid")
    user.until(lambda: user.focused.startswith("number-"), "the focus is lost")
    first, _ = served.ask(JUMA, 2_000), served.ask(NEEMA, 3_000)
    user.type(f"pin-{first}", "1234", Keys.ENTER)
    heading = "+255 620 000 377"
    user.until(lambda: user.chrome.switch_to.active_element.text.endswith(heading), "the focus is lost")


def test_masked_numbers_are_nowhere_on_the_page(user: PageUser, served: Served) -> None:
    """Masked, no whole number is in the document, not from the stream and not after a reload, in any open window."""
    served.ask(ASHA, 15_000)
    user.open()
    user.sees("+255 681 000 142")
    first = user.chrome.current_window_handle
    user.chrome.switch_to.new_window("window")
    try:
        user.open()
        user.press("mask")
        for _ in range(2):
            user.sees("+255 ••• ••• 142")
            assert user.find("mask").get_attribute("aria-pressed") == "true"
            assert "681 000" not in user.chrome.page_source
            user.chrome.refresh()
        user.chrome.switch_to.window(first)
        user.until(lambda: "681 000" not in user.chrome.page_source, "the other window still shows it")
        served.ask(JUMA, 2_000)
        user.sees("+255 ••• ••• 911")
        assert "753 000" not in user.chrome.page_source
        user.press("mask")
        user.sees("+255 753 000 911")
    finally:
        for handle in user.chrome.window_handles:
            if handle != first:
                user.chrome.switch_to.window(handle)
                user.chrome.close()
        user.chrome.switch_to.window(first)


def test_the_page_works_without_javascript(user: PageUser, served: Served) -> None:
    """Every control is a plain form: without scripts a payment is made by PIN and a reload."""
    user.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        payment = served.ask(ASHA, 15_000)
        user.open()
        user.type(f"pin-{payment}", "1234", Keys.ENTER)
        user.sees("Paid")
        user.unfold("ask")
        user.type("ask-magic", "the request is lost", Keys.ENTER)
        user.press("ask-send")
        user.sees("NO PAYMENT", "A program would get: no answer.")
        user.press("rate-20")
        user.sees("20 times as fast as real time")
        assert "load it again" in user.chrome.find_element(By.TAG_NAME, "body").text
    finally:
        user.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert served.sandbox.transactions[payment].status == "SUCCESS"


def test_the_page_says_when_the_sandbox_is_gone_and_comes_back(chromium: webdriver.Chrome) -> None:
    """A page that outlives its sandbox says so, and shows the new one as soon as it answers."""
    with serving(Sandbox(by_hand=True)) as served:
        user = PageUser(chromium, served)
        user.open()
        served.ask(ASHA, 15_000)
        user.sees("+255 681 000 142")
        port = int(served.page.rstrip("/").rpartition(":")[2])
    lost = user.find("lost")
    user.until(lost.is_displayed, "never said that it is gone")
    with serving(Sandbox(by_hand=True), port) as served:
        served.ask(NEEMA, 2_000)
        user.sees("+255 620 000 377")
        user.until(lambda: not lost.is_displayed(), "still says that it is gone")
        assert "+255 681 000 142" not in user.text
        chromium.get("about:blank")


def test_address_token_and_programs_are_copied(user: PageUser, served: Served) -> None:
    """One press copies the base URL, the token or one of the two programs, also while updates come."""
    permissions = {"origin": served.page.rstrip("/"), "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    user.open()
    user.chrome.execute_cdp_cmd("Browser.grantPermissions", permissions)
    user.unfold("connect")
    texts = {name: user.find(name).text for name in ("base-url", "token", "shell", "python")}
    assert (texts["base-url"], texts["token"]) == (served.base_url, served.sandbox.token)
    assert served.base_url in texts["shell"] and texts["python"].startswith("import anyio\n")
    for source, text in texts.items():
        served.ask(ASHA, 1_000)
        user.press(f"#connect [data-copy={source}]")
        user.until(lambda text: user.chrome.execute_script(CLIPBOARD) == text, f"{source} was not copied", text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1440"])
def test_the_page_is_accessible(user: PageUser, served: Served, size: tuple[int, int], scheme: str) -> None:
    """Structure, names, contrast and targets hold, empty and in use, on a phone and on a desk, light and dark."""
    user.open(size, scheme)
    user.chrome.execute_script(UNFOLD)
    show(user, f"empty-{size[0]}-{scheme}")
    play_a_morning(served)
    user.sees("2 tries left", "TIMEOUT", "fault: unknown fields")
    show(user, f"morning-{size[0]}-{scheme}")
