"""Tests of the shop. Each customer's number decides how the payment ends: `mobilemoney sandbox numbers`."""

from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa
from conftest import Open
from models import OPEN, PAID, UNPAID, Order, Place, Shipment
from wiring import URL

from load import cart
from mobilemoney_async import SQLStore
from mobilemoney_async.sandbox import Choices, Sandbox, faults

pytestmark = pytest.mark.anyio
ORDER = "order-0123456789"
SHIPPED = sa.select(Order.number).join(Shipment)


async def pay(browser: httpx.AsyncClient, phone_number: str, order: str = ORDER) -> httpx.Response:
    return await browser.post(f"/orders/{order}", json=cart(phone_number))


async def settled(browser: httpx.AsyncClient, order: str = ORDER) -> str:
    while (answer := await browser.get(f"/orders/{order}")).status_code == 202:
        await anyio.sleep(5)
    await anyio.sleep(2)  # for the books
    return str(answer.json()["state"])


def rows(database: sa.Engine, statement: sa.Select[Any]) -> list[tuple[object, ...]]:
    with database.connect() as connection:
        return [tuple(row) for row in connection.execute(statement)]


@pytest.mark.mobilemoney(choices=Choices(prompt_lifetime=20))  # seconds, in place of two minutes
@pytest.mark.parametrize(
    ("phone_number", "shown", "shipments"),
    [
        ("0780 000 789", "succeeded", 1),
        ("0780 000 039", "failed", 0),
        ("0780 000 408", "expired", 0),
        ("0780 000 203", "succeeded", 1),  # paid, but the answer to our request was lost
    ],
)
async def test_what_is_paid_is_shipped_once(
    open_shop: Open, database: sa.Engine, phone_number: str, shown: str, shipments: int
) -> None:
    async with open_shop() as first, open_shop() as second:  # two workers, both read the changes
        assert [(await pay(browser, phone_number)).status_code for browser in (first, second)] == [202, 202]
        assert await settled(first) == shown
    assert rows(database, sa.select(Order.state)) == [(PAID if shipments else UNPAID,)]
    assert len(rows(database, SHIPPED)) == shipments


async def test_an_order_without_its_payment_is_not_recorded(open_shop: Open, database: sa.Engine) -> None:
    async with open_shop() as browser:
        answer = await pay(browser, "0222 111 000")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_phone_number")
    assert answer.json()["message"] == "Please enter a Tanzanian mobile number, such as 0788 500 000."
    assert rows(database, sa.select(Order.id)) == []


async def test_books_that_were_closed_go_on_where_they_were(
    open_shop: Open, database: sa.Engine, mobilemoney_sandbox: Sandbox
) -> None:
    async with open_shop() as browser:
        await pay(browser, "0780 000 129")  # open until somebody decides
        await anyio.sleep(3)
    (transaction_id,) = mobilemoney_sandbox.transactions
    mobilemoney_sandbox.approve(transaction_id)
    async with open_shop() as browser:
        assert await settled(browser) == "succeeded"
    assert rows(database, SHIPPED) == [(ORDER,)]


async def test_books_of_a_restored_database_begin_again(open_shop: Open, database: sa.Engine) -> None:
    async with open_shop() as browser:
        await pay(browser, "0780 000 789")
        assert await settled(browser) == "succeeded"
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE feed_place SET cursor = '00000000-1-0'"))  # from before the restore
    async with open_shop() as browser:
        await pay(browser, "0780 000 778", "order-0000000000000002")
        assert await settled(browser, "order-0000000000000002") == "succeeded"
    assert len(rows(database, SHIPPED)) == 2


async def test_the_place_of_the_books_needs_no_migration(open_shop: Open, database: sa.Engine) -> None:
    """It is made by the first worker, and kept by the others."""
    async with open_shop() as browser, open_shop():
        await pay(browser, "0780 000 789")
        assert await settled(browser) == "succeeded"
    async with open_shop():  # a worker that starts later does not begin the books again
        assert rows(database, sa.select(Place.name, Place.cursor.is_(None))) == [("books", False)]
    assert rows(database, SHIPPED) == [(ORDER,)]


async def test_the_service_is_away_for_a_minute(
    open_shop: Open, database: sa.Engine, mobilemoney_sandbox: Sandbox
) -> None:
    mobilemoney_sandbox.script(faults.refused(), times=10)
    async with open_shop() as browser:
        assert (await pay(browser, "0780 000 789")).status_code == 202
        assert await settled(browser) == "succeeded"
    assert len(mobilemoney_sandbox.transactions) == len(rows(database, SHIPPED)) == 1


async def lose(open_shop: Open) -> None:
    """Click, where a fault loses the payment. The shop is closed during the grace period, so nothing looks: quick."""
    async with open_shop() as browser:
        await anyio.sleep(2)  # for the books
        answer = await pay(browser, "0780 000 789")
        assert (answer.status_code, "amount" in answer.json()) == (202, True)
        await anyio.sleep(5)
    await anyio.sleep(150)  # longer than the grace period


async def release(sandbox: Sandbox) -> None:
    """Staff has looked: mobilemoney payments confirm-absent."""
    async with sandbox.client(store=SQLStore(URL.render_as_string(hide_password=False))) as staff:
        await staff.payments.confirm_absent(ORDER, note="Asha looked")


async def test_a_lost_payment_is_paid_by_the_next_click_once_staff_has_looked(
    open_shop: Open, database: sa.Engine, mobilemoney_sandbox: Sandbox
) -> None:
    mobilemoney_sandbox.script(faults.drop(processed=False), on="c2b", times=2)  # it is lost, and once more
    for _ in range(2):
        await lose(open_shop)
        async with open_shop() as browser:
            assert (await browser.get(f"/orders/{ORDER}")).json()["state"] == "finding_out"
        await release(mobilemoney_sandbox)
    async with open_shop() as browser:
        await anyio.sleep(2)  # for the books
        answer = await pay(browser, "0780 000 789")
        assert (answer.status_code, "amount" in answer.json()) == (202, True)
        assert await settled(browser) == "succeeded"
    assert len(mobilemoney_sandbox.transactions) == len(rows(database, SHIPPED)) == 1


async def test_an_order_whose_lost_payment_cannot_be_sent_again_is_unpaid(
    open_shop: Open, database: sa.Engine, mobilemoney_sandbox: Sandbox
) -> None:
    """Also if two workers get clicks at once. It holds nothing until a click can look into the service's list."""
    mobilemoney_sandbox.script(faults.drop(processed=False), on="c2b")
    await lose(open_shop)
    await release(mobilemoney_sandbox)
    away = mobilemoney_sandbox.script(faults.html_page(502), on="transactions", probability=1)
    async with open_shop() as first, open_shop() as second:
        await anyio.sleep(2)  # for the books
        answers: list[int] = []

        async def click(browser: httpx.AsyncClient) -> None:
            answers.append((await pay(browser, "0780 000 789")).status_code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(click, first)
            tasks.start_soon(click, second)
        assert 503 in answers
        assert rows(database, sa.select(Order.state)) == [(UNPAID,)]
        away.cancel()
        assert (await pay(second, "0780 000 789")).status_code == 202
        assert rows(database, sa.select(Order.state)) == [(OPEN,)]
        assert await settled(first) == "succeeded"
    assert len(mobilemoney_sandbox.transactions) == len(rows(database, SHIPPED)) == 1


async def test_an_order_that_is_sent_again_stays_open_though_the_books_are_late(
    open_shop: Open, database: sa.Engine, mobilemoney_sandbox: Sandbox
) -> None:
    mobilemoney_sandbox.script(faults.drop(processed=False), on="c2b")
    await lose(open_shop)
    async with open_shop() as browser:
        with database.connect() as another:  # a worker that reads the changes, and is slow
            another.execute(sa.select(Place).with_for_update())
            await release(mobilemoney_sandbox)
            assert (await pay(browser, "0780 000 789")).status_code == 202
        await anyio.sleep(3)
        assert rows(database, sa.select(Order.state)) != [(UNPAID,)]


async def test_a_payment_that_waits_for_an_unknown_one_is_not_said_to_be_on_its_way(
    open_shop: Open, mobilemoney_sandbox: Sandbox
) -> None:
    """Of the same number and amount: nobody knows yet whether the customer has paid."""
    mobilemoney_sandbox.script(faults.drop(processed=False))
    async with open_shop() as browser:
        await pay(browser, "0780 000 789")
        await anyio.sleep(5)
        await pay(browser, "0780 000 789", "order-0000000000000002")
        await anyio.sleep(5)
        assert (await browser.get("/orders/order-0000000000000002")).json()["state"] == "finding_out"


async def test_an_order_keeps_its_cart(open_shop: Open, database: sa.Engine) -> None:
    """The number is used for one cart: what is paid is what was ordered."""
    async with open_shop() as browser:
        await pay(browser, "0780 000 789")
        with database.begin() as connection:
            connection.execute(sa.update(Order).values(cart={"item": "another"}))
        assert (await pay(browser, "0780 000 789")).status_code == 409


async def test_a_stranger_cannot_ring_a_phone_all_day(open_shop: Open) -> None:
    async with open_shop() as browser:
        answers = [await pay(browser, "0780 000 789", f"order-{number:016d}") for number in range(6)]
    assert [answer.status_code for answer in answers] == [202] * 5 + [429]
