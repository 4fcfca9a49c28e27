"""A person works the phone page in a headless Chromium. Pictures go where MOBILEMONEY_SCREENSHOTS says, if it does."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sandbox.callbacks import CallbackMode
from mobilemoney_async.sandbox.fault_switches import SWITCHES
from tests.browser.phone_page import ASHA, JUMA, NEEMA, PATIENCE, Served, play_a_morning, serving
from tests.support.chromium import headless, set_screen
from tests.support.server import Request, Response, serve

NARROW, WIDE = (360, 760), (1440, 900)
CLIPBOARD = "return navigator.clipboard.readText()"

# WCAG 2.2: 1.4.3 (contrast).
CONTRAST = """
const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (!/, 0\\)$/.test(c)) return c; } };
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
const ids = all("[id]").map((e) => e.id);
if (new Set(ids).size !== ids.length) wrong.push(["ids", ids.filter((id, i) => ids.indexOf(id) !== i)]);
return wrong;
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with headless(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(Sandbox(by_hand=True)) as served:
        yield served


class Person:
    """What a person at the page does and sees."""

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

    def until(self, condition: Callable[..., Any], what: str, *arguments: Any) -> Any:
        """Wait until a condition holds.

        A missing element, and one that the page has replaced, are looked up again. Chromium reports the latter in
        several ways, "does not belong to the document" among them.
        """

        def holds(_: webdriver.Chrome) -> Any:
            try:
                return condition(*arguments)
            except WebDriverException:
                return False

        return WebDriverWait(self.chrome, PATIENCE, poll_frequency=0.05).until(holds, what)

    @property
    def text(self) -> str:
        return self.chrome.find_element(By.TAG_NAME, "main").text

    def sees(self, *texts: str) -> None:
        for text in texts:
            self.until(lambda text: text in self.text, f"never {text!r}", text)

    def press(self, name: str) -> None:
        """Press a button, and wait for what comes of it."""

        def pressed() -> bool:
            button = self.chrome.find_element(By.ID, name)
            self.chrome.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
            button.click()
            return True

        self.until(pressed, f"no button {name}")

    def type(self, name: str, *keys: str) -> None:
        self.find(name).send_keys(*keys)

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.chrome).send_keys(*keys).perform()

    def holds(self, name: str, what: Callable[..., Any], *arguments: Any) -> None:
        """Press a button, and wait for what it does to the sandbox."""
        self.press(name)
        self.until(lambda: self.served.call(what, *arguments), f"{name} never worked")

    @property
    def focused(self) -> str:
        return str(self.chrome.switch_to.active_element.get_attribute("id"))


@pytest.fixture
def person(chromium: webdriver.Chrome, served: Served) -> Iterator[Person]:
    chromium.get("about:blank")
    chromium.delete_all_cookies()
    chromium.get_log("browser")  # type: ignore[no-untyped-call]
    yield Person(chromium, served)
    # The page is not to ask a sandbox that is gone: that would be said in the next test's log.
    chromium.get("about:blank")
    said = [each["message"] for each in chromium.get_log("browser")]  # type: ignore[no-untyped-call]
    # Chromium itself mentions that something was refused.
    assert [each for each in said if "status of 422" not in each] == []


def show(person: Person, name: str) -> None:
    """Check what is on the screen for everybody's eyes and hands, and keep a picture."""
    folder = os.environ.get("MOBILEMONEY_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        person.chrome.save_screenshot(str(Path(folder) / f"phone-page-{name}.png"))
    script = person.chrome.execute_script
    assert script(STRUCTURE) == []
    assert script(CONTRAST) == []
    assert script(SMALL) == []
    assert script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_payment_is_made_on_the_page(person: Person, served: Served) -> None:
    """What the client asks for rings on the page, is paid there with the PIN, and is seen final by the client."""
    person.open()
    person.sees("No phone has been asked to pay yet")
    payment = served.ask(ASHA, 15_000)
    end = served.wait_for(payment)
    person.sees("+255 681 000 142", "TZS 15,000", "PENDING")
    person.type(f"pin-{payment}", "1234")
    person.press(f"pay-{payment}")
    transaction = end.result(PATIENCE)
    assert transaction.succeeded
    assert transaction.amount == 15_000
    person.sees("Paid", "SUCCESS", "10,014,775.00", "POST /v1/payment-service/airtel/c2b")
    announcement = person.chrome.find_element(By.ID, "announcement")
    person.until(lambda: "SUCCESS" in str(announcement.get_attribute("textContent")), "never announced")


def test_a_wrong_pin_leaves_tries_until_the_last(person: Person, served: Served) -> None:
    """A wrong PIN is said at once, its field is empty again and has the focus; the third one declines."""
    person.open(NARROW)
    payment = served.ask(ASHA, 15_000)
    end = served.wait_for(payment)
    for left in ("2 tries left", "1 try left"):
        person.type(f"pin-{payment}", "0000", Keys.ENTER)
        person.sees(f"Wrong PIN: {left}")
        person.until(lambda: person.find(f"pin-{payment}").get_attribute("value") == "", "the PIN stayed")
        assert person.focused == f"pin-{payment}"
    person.type(f"pin-{payment}", "0000", Keys.ENTER)
    transaction = end.result(PATIENCE)
    assert (transaction.status, transaction.failure_reason) == ("FAILED", "PAYMENT_NOT_APPROVED")
    person.sees("Not paid", "FAILED", "PAYMENT_NOT_APPROVED")


@pytest.mark.parametrize(
    ("control", "status", "shown"), [("decline", "FAILED", "Not paid"), ("expire", "TIMEOUT", "Expired")]
)
def test_a_prompt_is_declined_or_expires(person: Person, served: Served, control: str, status: str, shown: str) -> None:
    """A customer who does not pay is seen by the client as one who declined, or did not answer."""
    person.open()
    payment = served.ask(ASHA, 15_000)
    end = served.wait_for(payment)
    person.press(f"{control}-{payment}")
    assert end.result(PATIENCE).status == status
    person.sees(shown, status)


def test_a_prompt_expires_by_itself_when_the_clock_jumps(person: Person, served: Served) -> None:
    """Nobody needs to wait two minutes to see a payment time out."""
    person.open()
    end = served.wait_for(served.ask(ASHA, 15_000))
    person.sees("left")
    person.press("jump-600")
    assert end.result(PATIENCE).status == "TIMEOUT"
    person.sees("Expired", "TIMEOUT")


def test_a_half_typed_pin_survives_the_news(person: Person, served: Served) -> None:
    """While prompts come, count down and end around it, the focus stays and nothing typed or folded out is lost."""
    person.open()
    payment = served.ask(ASHA, 15_000)
    person.type("callback-url", "http://half")
    person.press("connect")
    person.until(lambda: person.find("connect").get_attribute("open"), "never folded out")
    person.type(f"pin-{payment}", "12")
    other = served.ask(JUMA, 2_000)
    person.sees("+255 753 000 911")
    served.call(served.sandbox.switches.turn_on, "slow", once=False)
    served.call(served.sandbox.advance, 30)
    person.sees("Slow answer", "1:2")
    served.call(served.sandbox.enter_pin, payment, "0000")
    person.sees("2 tries left")
    served.call(served.sandbox.approve, other)
    person.sees("SUCCESS")
    assert person.focused == f"pin-{payment}"
    person.keys("34")
    assert person.find(f"pin-{payment}").get_attribute("value") == "1234"
    assert person.find("callback-url").get_attribute("value") == "http://half"
    assert person.find("connect").get_attribute("open")
    person.keys(Keys.ENTER)
    person.until(lambda: served.sandbox.transactions[payment].status == "SUCCESS", "never paid")
    assert person.find("callback-url").get_attribute("value") == "http://half"
    assert person.find("connect").get_attribute("open")


def test_everything_works_by_keyboard(person: Person, served: Served) -> None:
    """Tab leads past a skip link to the phones, Enter pays, and the focus stays at the phone whose prompt is gone."""
    payment = served.ask(ASHA, 15_000)
    person.open()
    person.keys(Keys.TAB)
    assert person.chrome.switch_to.active_element.text == "Skip to the phones"
    person.keys(Keys.ENTER)
    met = []
    for _ in range(4):
        person.keys(Keys.TAB)
        met.append(person.focused)
        outline = "return getComputedStyle(document.activeElement).outlineStyle"
        assert person.chrome.execute_script(outline) != "none", met
    assert met == ["by-hand-yes", "by-hand-no", f"pin-{payment}", f"pay-{payment}"]
    ActionChains(person.chrome).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    person.keys("1234", Keys.ENTER)
    person.sees("Paid")
    person.until(lambda: person.focused.startswith("number-"), "the focus is lost")


def test_the_clock_is_run_from_the_page(person: Person, served: Served) -> None:
    """Speed, pause and jumps act on the service's time, and the page shows it."""
    sandbox = served.sandbox
    person.open()
    for rate in (5, 20, 100):
        person.holds(f"rate-{rate}", lambda rate: sandbox.clock_rate == rate, rate)
        person.sees(f"{rate} times as fast as real time")
    person.holds("pause", lambda: sandbox.clock_rate == 0)
    person.sees("Paused", "Resume")
    before = served.call(lambda: sandbox.now)
    for seconds in (10, 60, 600, 3600):
        person.holds(f"jump-{seconds}", lambda seconds: (sandbox.now - before).total_seconds() >= seconds, seconds)
    assert served.call(lambda: sandbox.now - before).total_seconds() == 10 + 60 + 600 + 3600
    person.sees(f"{served.call(lambda: sandbox.now):%H:%M:%S}")
    person.holds("pause", lambda: sandbox.clock_rate == 100)
    person.holds("rate-1", lambda: sandbox.clock_rate == 1)


def test_every_fault_is_switched_from_the_page(person: Person, served: Served) -> None:
    """Each fault can be on for the next request, or until it is switched off, and all go off at once."""
    sandbox = served.sandbox

    def is_on(index: int, once: bool) -> bool:
        state = sandbox.switches.states()[index]
        return state.is_on and state.once == once

    def is_off(index: int) -> bool:
        return not sandbox.switches.states()[index].is_on

    person.open()
    for index, switch in enumerate(SWITCHES):
        person.holds(f"once-{switch.slug}", is_on, index, True)
        person.holds(f"off-{switch.slug}", is_off, index)
        person.holds(f"keep-{switch.slug}", is_on, index, False)
    person.sees(*(f"{switch.label}\nOn until switched off" for switch in SWITCHES))
    person.holds("on-off-slow", lambda: not sandbox.switches.states()[0].is_on)
    person.holds("all-off", lambda: not any(state.is_on for state in sandbox.switches.states()))
    person.sees("None: every request is answered normally")


def test_a_fault_strikes_the_chosen_requests(person: Person, served: Served) -> None:
    """A fault for one endpoint strikes it once, is counted, and is off again."""
    person.open()
    person.type("endpoint", "transactions")
    person.press("once-unknown-fields")
    person.sees("On for the next request, on transactions")
    served.call(served.client.users.profile)
    served.call(served.client.transactions.page, 1)
    person.sees("struck 1×", "fault: unknown fields", "None: every request is answered normally")  # noqa: RUF001
    assert person.find("endpoint").get_attribute("value") == "transactions"


def test_callbacks_reach_a_real_receiver(person: Person, served: Served) -> None:
    """Each mode of the callback sender, and a forged callback, arrive at a program of the merchant's."""
    bodies: list[bytes] = []

    async def receive(request: Request) -> Response:
        bodies.append(await request.read())
        return Response.json({})

    def came(number: int) -> list[bytes]:
        person.until(lambda: len(bodies) >= number, f"never {number} callbacks")
        found = bodies[:]
        bodies.clear()
        return found

    with served.portal.wrap_async_context_manager(serve(receive)) as receiver:
        person.open()
        person.type("callback-url", receiver.base_url)
        for mode, number in ((CallbackMode.ONCE, 1), (CallbackMode.TWICE, 2), (CallbackMode.BEFORE_ANSWER, 2)):
            person.type("callback-mode", {"o": "once", "t": "twice", "b": "before"}[mode[0]])
            person.holds("callback-save", lambda mode: served.sandbox.callbacks.mode is mode, mode)
            payment = served.ask(ASHA, 15_000)
            served.call(served.sandbox.approve, payment)
            assert all(payment.encode() in body for body in came(number))
        person.type("callback-mode", "30")
        person.holds("callback-save", lambda: served.sandbox.callbacks.mode is CallbackMode.LATE)
        served.call(served.sandbox.approve, served.ask(ASHA, 15_000))
        assert bodies == []
        person.press("jump-60")
        came(1)
        person.press("callback-forge")
        (forged,) = came(1)
        assert b"SUCCESS" in forged
        person.sees("forged", "HTTP 200", "repeated", "created", "Callbacks go to http://127.0.0.1:")


def test_a_wrong_url_is_explained_beside_its_field(person: Person, served: Served) -> None:
    """A URL that no callback can be sent to stays in its field, with the reason beside it."""
    person.open(NARROW)
    person.type("callback-url", "ftp://example.com/hook")
    person.press("callback-save")
    error = person.find("callback-url-error")
    assert "http://" in error.text
    field = person.find("callback-url")
    assert field.get_attribute("value") == "ftp://example.com/hook"
    assert "callback-url-error" in str(field.get_attribute("aria-describedby"))
    show(person, "wrong-url")
    assert served.sandbox.callbacks.url is None


def test_phones_answer_by_themselves_when_told_to(person: Person, served: Served) -> None:
    """The switch above the phones decides whether a person or the sandbox answers."""
    person.open()
    person.holds("by-hand-no", lambda: not served.sandbox.by_hand)
    served.ask(ASHA, 15_000)
    person.sees("Answers automatically")
    person.press("jump-600")
    person.sees("Paid")
    person.holds("by-hand-yes", lambda: served.sandbox.by_hand)


def test_masked_numbers_are_nowhere_on_the_page(person: Person, served: Served) -> None:
    """Masked, no whole number is in the document, not from the stream and not after a reload, in any open window."""
    served.ask(ASHA, 15_000)
    person.open()
    person.sees("+255 681 000 142")
    first = person.chrome.current_window_handle
    person.chrome.switch_to.new_window("window")
    try:
        person.open()
        person.press("mask")
        for _ in range(2):
            person.sees("+255 ••• ••• 142")
            assert person.find("mask").get_attribute("aria-pressed") == "true"
            assert "681 000" not in person.chrome.page_source
            person.chrome.refresh()
        person.chrome.switch_to.window(first)
        person.until(lambda: "681 000" not in person.chrome.page_source, "the other window still shows it")
        served.ask(JUMA, 2_000)
        person.sees("+255 ••• ••• 911")
        assert "753 000" not in person.chrome.page_source
        person.press("mask")
        person.sees("+255 753 000 911")
    finally:
        for handle in person.chrome.window_handles:
            if handle != first:
                person.chrome.switch_to.window(handle)
                person.chrome.close()
        person.chrome.switch_to.window(first)


def test_the_page_works_without_javascript(person: Person, served: Served) -> None:
    """Every control is a plain form: without scripts a payment is made by PIN and a reload."""
    person.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        payment = served.ask(ASHA, 15_000)
        person.open()
        person.type(f"pin-{payment}", "1234", Keys.ENTER)
        person.sees("Paid")
        person.press("rate-20")
        person.sees("20 times as fast as real time")
        assert "load it again" in person.chrome.find_element(By.TAG_NAME, "body").text
    finally:
        person.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert served.sandbox.transactions[payment].status == "SUCCESS"


def test_the_page_says_when_the_sandbox_is_gone_and_comes_back(chromium: webdriver.Chrome) -> None:
    """A page that outlives its sandbox says so, and shows the new one as soon as it answers."""
    with serving(Sandbox(by_hand=True)) as served:
        person = Person(chromium, served)
        person.open()
        served.ask(ASHA, 15_000)
        person.sees("+255 681 000 142")
        port = int(served.page.rstrip("/").rpartition(":")[2])
    lost = person.find("lost")
    person.until(lost.is_displayed, "never said that it is gone")
    with serving(Sandbox(by_hand=True), port) as served:
        served.ask(NEEMA, 2_000)
        person.sees("+255 620 000 377")
        person.until(lambda: not lost.is_displayed(), "still says that it is gone")
        assert "+255 681 000 142" not in person.text
        chromium.get("about:blank")


def test_the_token_is_copied(person: Person, served: Served) -> None:
    """Base URL and token are one press away from a program."""
    permissions = {"origin": served.page.rstrip("/"), "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    person.open()
    person.chrome.execute_cdp_cmd("Browser.grantPermissions", permissions)
    for source, text in (("base-url", served.base_url), ("token", served.sandbox.token)):
        assert person.find(source).text == text
        person.chrome.find_element(By.CSS_SELECTOR, f"[data-copy={source}]").click()
        person.until(lambda text: person.chrome.execute_script(CLIPBOARD) == text, f"{source} was not copied", text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1440"])
def test_the_page_is_clear_to_everybody(person: Person, served: Served, size: tuple[int, int], scheme: str) -> None:
    """Structure, names, contrast and targets hold, empty and in use, on a phone and on a desk, light and dark."""
    person.open(size, scheme)
    show(person, f"empty-{size[0]}-{scheme}")
    play_a_morning(served)
    person.sees("2 tries left", "TIMEOUT", "fault: unknown fields")
    show(person, f"morning-{size[0]}-{scheme}")
