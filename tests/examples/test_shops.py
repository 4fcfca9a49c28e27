"""The example shops on FastAPI and aiohttp: servers and sandbox over sockets, a customer's requests from outside."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from mobilemoney_async.contrib.backend import Backend
from tests.support.patience import PATIENCE
from tests.support.shops import SECRET, SHOPS, Serve, Shop, running

PAYS, STUCK, NO_ANSWER = (f"+255780000{n}" for n in ("789", "129", "203"))
CALLBACKS = "/mobilemoney/callbacks"


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Let no answer come early because the machine is busy."""
    with pytest.MonkeyPatch.context() as patch:
        defaults = Backend.collect.__kwdefaults__
        assert defaults is not None and "patience" in defaults
        patch.setitem(defaults, "patience", PATIENCE)
        patch.setattr("mobilemoney_async.contrib.fastapi._CALLBACK_SECONDS", PATIENCE)
        yield


@pytest.fixture(scope="module", params=SHOPS)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running(SHOPS[request.param], tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture
def order(request: pytest.FixtureRequest) -> str:
    return f"order-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]}"


def pay(shop: Shop, order: str, phone_number: str = PAYS, *, item: str = "coffee") -> httpx.Response:
    with shop.browser() as browser:
        return browser.post(f"/orders/{order}", json={"item": item, "phone_number": phone_number})


def transactions(shop: Shop) -> set[str]:
    return shop.call(lambda: set(shop.sandbox.transactions))


@pytest.mark.costly("runs lines of contrib/fastapi.py that no quick test runs")
@pytest.mark.parametrize(
    ("how", "state", "collected"),
    [("approve", "succeeded", [15_000]), ("decline", "failed", []), ("expire", "expired", [])],
)
def test_a_checkout_answers_at_once_and_its_end_is_told(
    shop: Shop, order: str, how: Literal["approve", "decline", "expire"], state: str, collected: list[int]
) -> None:
    """The checkout is answered while the customer has yet to approve; status and events tell how it ends."""
    before = transactions(shop)
    answer = pay(shop, order, STUCK)
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    (transaction_id,) = transactions(shop) - before
    told: list[dict[str, Any]] = []
    with shop.browser() as browser, browser.stream("GET", f"/orders/{order}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
                if len(told) == 1:
                    shop.call(getattr(shop.sandbox, how), transaction_id)
    assert [each["state"] for each in told[:-1]] == ["pending", state]
    assert told[-1] == {}
    with shop.browser() as browser:
        again = browser.get(f"/orders/{order}")
    assert again.status_code == 200
    assert again.json()["amount"] == "15000"
    moved = shop.call(lambda: [each.amount for each in shop.sandbox.ledger if each.transaction_id == transaction_id])
    assert moved == collected


@pytest.mark.slow
def test_one_order_is_one_payment(shop: Shop, order: str) -> None:
    """Ten clicks at once, a click afterwards and one after the end ask the customer once."""
    answers: list[httpx.Response] = []
    before = transactions(shop)
    clicks = [threading.Thread(target=lambda: answers.append(pay(shop, order))) for _ in range(10)]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join()
    assert {each.json()["state"] for each in answers} <= {"pending", "succeeded"}
    shop.wait_for(order, "succeeded")
    assert pay(shop, order).json()["state"] == "succeeded"
    assert len(transactions(shop) - before) == 1


@pytest.mark.slow
def test_an_unknown_outcome_is_no_error_and_is_found_out(shop: Shop, order: str) -> None:
    """Where the service gives no proper answer the customer hears "we are finding out", and then the truth."""
    before = transactions(shop)
    answer = pay(shop, order, NO_ANSWER)
    assert answer.status_code == 202
    assert answer.json()["state"] == "finding_out"
    assert "finding out" in answer.json()["detail"]
    assert shop.wait_for(order, "succeeded")["reference"]
    assert len(transactions(shop) - before) == 1


@pytest.mark.costly("runs lines of contrib/fastapi.py, polling/coordinator.py that no quick test runs")
def test_a_callback_brings_the_news(shop: Shop, order: str) -> None:
    """A callback under the secret address is answered with 204; others get no further than a status."""
    before = transactions(shop)
    reference = pay(shop, order, STUCK).json()["reference"]
    shop.call(shop.sandbox.approve, *(transactions(shop) - before))
    with shop.browser() as browser:
        for path, body, status in [
            (CALLBACKS, reference.encode(), 404),
            (f"{CALLBACKS}/{SECRET}x", reference.encode(), 404),
            (f"{CALLBACKS}/{SECRET}", b"x" * 70_000, 413),
            (f"{CALLBACKS}/{SECRET}", b"\xff{[", 204),
            (f"{CALLBACKS}/{SECRET}", json.dumps({"what": [reference]}).encode(), 204),
        ]:
            answer = browser.post(path, content=body)
            assert (answer.status_code, answer.content) == (status, b"")
    shop.wait_for(order, "succeeded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "status", "argument"),
    [
        ({"phone_number": "0222111000"}, 422, "phone_number"),
        ({"item": "gold"}, 422, None),
        ({"amount": 1}, 202, None),
    ],
)
def test_a_wrong_value_is_named(
    shop: Shop, order: str, change: dict[str, Any], status: int, argument: str | None
) -> None:
    """What the customer should mend is named; the price is the shop's, whatever the customer sends."""
    with shop.browser() as browser:
        answer = browser.post(f"/orders/{order}", json={"item": "coffee", "phone_number": PAYS, **change})
    assert answer.status_code == status
    assert answer.json().get("argument") == argument
    if status == 202:
        assert shop.wait_for(order, "succeeded")["amount"] == "15000"
    else:
        with shop.browser() as browser:
            assert browser.get(f"/orders/{order}").status_code == 404


def test_an_order_is_not_paid_twice_in_two_ways(shop: Shop, order: str) -> None:
    """The same order for another item is a conflict, in the words of a problem."""
    pay(shop, order)
    answer = pay(shop, order, item="tea")
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["order"] == order


def test_unknown_orders_are_not_found(shop: Shop, order: str) -> None:
    """Nobody learns anything from a number that is no order."""
    with shop.browser() as browser:
        assert browser.get(f"/orders/{order}").status_code == 404
        assert browser.get(f"/orders/{order}/events").status_code == 404
        assert browser.get("/orders/short").status_code in {404, 422}
        assert browser.get("/", params={"order": "<script>"}).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHOPS)
def test_a_restart_resumes(kind: str, tmp_path: Path, order: str) -> None:
    """An order that was open when the shop stopped is known after its next start, and its end is seen."""
    with running(SHOPS[kind], tmp_path) as shop:
        pay(shop, order, STUCK)
        (transaction_id,), sandbox = transactions(shop), shop.sandbox
    sandbox.approve(transaction_id)
    with running(SHOPS[kind], tmp_path, sandbox=sandbox) as shop:
        assert shop.wait_for(order, "succeeded")["amount"] == "15000"


def test_the_page_loads_nothing_from_elsewhere(shop: Shop) -> None:
    """The page and its two files come from the shop, with a policy that allows nothing else."""
    with shop.browser() as browser:
        for path in ("/", "/shop.css", "/shop.js"):
            answer = browser.get(path)
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "http://" not in answer.text and "https://" not in answer.text


@pytest.mark.slow
@pytest.mark.parametrize("serve", SHOPS.values(), ids=SHOPS)
def test_a_stranger_is_stopped(serve: Serve, tmp_path: Path) -> None:
    """Over a limit the checkout answers 429 with the time to wait, and shows an order that exists as always."""
    with running(serve, tmp_path, per_number=(1, 600.0), per_caller=(2, 600.0)) as shop:
        answers = [
            pay(shop, f"order-{n:016d}", number) for n, number in enumerate((STUCK, STUCK, PAYS, "+255681000001"))
        ]
        assert [each.status_code for each in answers] == [202, 429, 202, 429]
        assert 1 <= int(answers[3].headers["Retry-After"]) <= 600
        assert pay(shop, f"order-{0:016d}", STUCK).status_code == 202
        assert len(transactions(shop)) == 2


def test_a_body_without_end_is_refused(shop: Shop, order: str) -> None:
    """A checkout with a large body is refused while it is read, with or without its length."""

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" " * 10_000

    headers = {"Content-Type": "application/json"}
    with shop.browser() as browser:
        for body in (b" " * 3_000_000, endless()):
            with contextlib.suppress(httpx.TransportError):  # the shop has closed the connection before all was sent
                assert browser.post(f"/orders/{order}", content=body, headers=headers).status_code == 413


def test_a_body_of_brackets_is_a_wrong_value(shop: Shop, order: str) -> None:
    """JSON that is nested too deeply to be read is the customer's mistake, not a failure of the shop."""
    headers = {"Content-Type": "application/json"}
    with shop.browser() as browser:
        assert browser.post(f"/orders/{order}", content=b"[" * 50_000, headers=headers).status_code in {400, 422}
