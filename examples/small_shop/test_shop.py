"""What a shop must do, whatever happens: docs/testing-your-shop.md has the rules. They hold on Django too."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import anyio
import httpx
import pytest

from mobilemoney_async.sandbox import Fault, Sandbox, faults
from mobilemoney_async.testing import killed_at_end

PAYS = "+255780000789"
DECLINES = "+255780000039"
NEVER_ANSWERS = "+255780000129"
HIDDEN = "+255780000304"  # pays, but lookups and list show it late

Open = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]
pytestmark = pytest.mark.anyio


async def click(browser: httpx.AsyncClient, order: str = "order-1", phone_number: str = PAYS) -> None:
    answer = await browser.post(f"/orders/{order}", json={"phone_number": phone_number})
    assert answer.status_code == (202 if answer.json() == "open" else 200)


async def state(browser: httpx.AsyncClient, order: str = "order-1", after: str = "open") -> str:
    with anyio.fail_after(600):  # seconds of virtual time
        while (now := (await browser.get(f"/orders/{order}")).json()) == after:
            await anyio.sleep(5)
    return now


async def test_a_customer_pays(open_shop: Open, mobilemoney_sandbox: Sandbox) -> None:
    async with open_shop() as browser:
        await click(browser)
        await click(browser)  # a second click is the same order
        assert await state(browser) == "ship"
    assert mobilemoney_sandbox.ledger.collected == 15_000


async def test_a_customer_declines(open_shop: Open, mobilemoney_sandbox: Sandbox) -> None:
    async with open_shop() as browser:
        await click(browser, phone_number=DECLINES)
        assert await state(browser) == "unpaid"
    assert mobilemoney_sandbox.ledger.collected == 0


@pytest.mark.parametrize(
    "fault",
    [
        faults.lost(processed=True),
        faults.drop(processed=True),
        faults.html_page(502, processed=True),
    ],
    ids=lambda fault: fault.name,
)
async def test_the_answer_is_lost(open_shop: Open, mobilemoney_sandbox: Sandbox, fault: Fault) -> None:
    mobilemoney_sandbox.script(fault, on="c2b")
    async with open_shop() as browser:
        await click(browser)
        assert await state(browser) == "ship"
    assert len(mobilemoney_sandbox.transactions) == 1


@pytest.mark.parametrize(
    ("seconds", "sent"),
    [(0, 0), (1, 1), (4, 1)],
    ids=["before the payment", "before its answer", "before the customer"],
)
async def test_the_shop_dies(open_shop: Open, mobilemoney_sandbox: Sandbox, seconds: int, sent: int) -> None:
    mobilemoney_sandbox.script(faults.latency(3), on="c2b")
    async with killed_at_end(open_shop()) as browser:
        await click(browser)
        await anyio.sleep(seconds)
    assert len(mobilemoney_sandbox.transactions) == sent
    async with open_shop() as browser:  # the restart
        assert await state(browser) == "ship"
    assert len(mobilemoney_sandbox.transactions) == 1


async def test_a_late_success_is_refunded(open_shop: Open, mobilemoney_sandbox: Sandbox) -> None:
    async with open_shop() as browser:
        await click(browser, phone_number=NEVER_ANSWERS)
        await anyio.sleep(10)
        await browser.post("/orders/order-1/give-up")
        (transaction_id,) = mobilemoney_sandbox.transactions
        mobilemoney_sandbox.approve(transaction_id)  # after all
        assert await state(browser, after="given up") == "refund"


@pytest.mark.parametrize(
    ("phone_number", "fault"),
    [
        (PAYS, faults.list_lag(60)),
        (PAYS, faults.list_lag(10**9)),
        (HIDDEN, faults.list_lag(0)),
    ],
    ids=["late", "empty", "without the row"],
)
async def test_the_list_is_wrong(
    open_shop: Open, mobilemoney_sandbox: Sandbox, phone_number: str, fault: Fault
) -> None:
    async with open_shop() as browser:
        await click(browser, "order-0")
        assert await state(browser, "order-0") == "ship"

        # Only the list can show what became of this one.
        mobilemoney_sandbox.script(faults.lost(processed=True), on="c2b")
        wrong = mobilemoney_sandbox.script(fault, on="transactions", probability=1)
        await click(browser, phone_number=phone_number)
        await anyio.sleep(150)
        await click(browser, phone_number=phone_number)  # impatient
        await anyio.sleep(10)
        assert wrong.fired
        assert len(mobilemoney_sandbox.transactions) == 2

        wrong.cancel()
        assert await state(browser) == "ship"
    assert len(mobilemoney_sandbox.transactions) == 2
