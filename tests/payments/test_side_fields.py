"""A side field of an answer that cannot be read changes nothing of a payment: it is followed, found and compared."""

import json
from datetime import timedelta
from itertools import cycle
from typing import Any

import httpx
import pytest

from mobilemoney_async import AsyncClient, LoginAuth, OutcomeUnknown, PaymentState
from tests.contract import samples
from tests.payments.second_world import GRACE, HOUR, Order, World, make_world, number
from tests.support.second_service import SecondService

pytestmark = pytest.mark.pairs

# JSON texts in place of a side field. Its name is that of a field of a transaction, or of a part of one.
TEXTS = cycle(["null", '""', "[]", "{}", "17", "true", "1e999999999", '"\\ud800"', '"\\u0000"', '"x"', "[[]]", "-5.5"])
FIELDS = ["reference", "network", "created_at", "external_id", "completed_at", "failed_at", "failure_reason"]
FIELDS += ["fees", "settlement", "total_fee", "merchant_fee", "net_amount", "settled_at", "settlement_batch"]
TIMED = [each for each in FIELDS if each != "created_at"]


class Twisted(httpx.AsyncBaseTransport):
    """The service with another JSON text in place of one field, in every answer."""

    def __init__(self, service: SecondService) -> None:
        self._service = service
        self.field, self.text = "", ""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._service.handle_async_request(request)
        body = json.dumps(_replaced(json.loads(answer.content), self.field)).replace('"@"', self.text)
        return httpx.Response(answer.status_code, content=body, headers={"date": answer.headers["date"]})


def _replaced(value: Any, field: str) -> Any:
    if isinstance(value, list):
        return [_replaced(each, field) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: "@" if name == field else _replaced(each, field) for name, each in value.items()}
    return {**found, field: "@"} if "created_at" in value and field in FIELDS[:9] else found


def twisted(store_url: str) -> tuple[World, Twisted]:
    world = make_world(store_url)
    return world, Twisted(world.service)


@pytest.mark.slow
async def test_a_payment_ends_as_it_would_have(store_url: str) -> None:
    """Whatever one side field of the answers holds: acknowledgement, get, wait, list and audit show the payment."""
    world, wire = twisted(store_url)
    async with world.client(transport=wire) as client:
        for place, (field, text) in enumerate(zip(FIELDS, TEXTS, strict=False)):
            wire.field, wire.text = field, text
            order = Order(f"order-{place}", "collections", number(place))
            await world.pay(client, [order])
            payment = world.service.payments[-1]
            assert (await client.transactions.get(payment.id)).status == "PENDING", (field, text)
            world.service.finish(payment)
            final = await client.transactions.wait(payment.id)
            assert (final.id, final.status) == (payment.id, "SUCCESS"), (field, text)
            assert final.amount == order.amount
            assert len(await client.transactions.list()) == place + 1, (field, text)
            await client.payments.reconcile()
        today = world.utcnow().date()
        report = await client.payments.audit(from_date=today, to_date=today)
        # The only difference: nobody followed them.
        assert [each.kind for each in report.differences] == ["state"] * (place + 1)
        assert report.transactions == place + 1


@pytest.mark.slow
async def test_the_poller_follows_it_to_its_end(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also by the pages of the list, and also without any time of the service."""
    world, wire = twisted(store_url)
    orders = [Order(f"order-{place}", "collections", number(place)) for place in range(6)]
    for field, text in zip(["created_at", "fees", "network"], TEXTS, strict=False):
        wire.field, wire.text = field, text
        async with world.client(transport=wire) as client, client.poller() as poller:
            for each in orders:
                poller.track(await client.collections.create(phone_number=each.phone_number, amount=each.amount))
            for payment in world.service.payments:
                world.service.finish(payment)
            found = [each async for each in poller.outcomes()]
            assert {each.transaction.status for each in found if each.transaction} == {"SUCCESS"}
            assert len(found) == len(orders)
    said = [
        each.getMessage() for each in caplog.records if "Transaction.created_at cannot be read" in each.getMessage()
    ]
    assert len(said) <= 1  # once a process


@pytest.mark.slow
async def test_a_lost_payment_is_found_by_its_core(store_url: str) -> None:
    """Its type, number, amount and time are enough: no reference, network, fees or settlement is needed."""
    world, wire = twisted(store_url)
    async with world.client(transport=wire) as client:
        for place, (field, text) in enumerate(zip(TIMED, TEXTS, strict=False)):
            wire.field, wire.text = field, text
            await world.pay(client, [Order(f"before-{place}", "collections", number(3 * place))])
            await world.lose(client, Order(f"lost-{place}", "collections", number(3 * place + 1)), made=True)
            lost = world.service.payments[-1]
            await world.pay(client, [Order(f"after-{place}", "collections", number(3 * place + 2))])
            await world.reconcile(client, 1.0, GRACE)
            record = await world.get(client, f"lost-{place}")
            assert (record.transaction_id, record.state) == (lost.id, PaymentState.ACKNOWLEDGED), (field, text)


@pytest.mark.costly("runs lines of payments/ownership/unclaimed.py that no quick test runs")
async def test_a_row_without_a_time_may_be_of_any_time(world: World, client: AsyncClient) -> None:
    """It is a candidate of its kind: neither adopted nor absent. Payments of other kinds are decided as ever."""
    await world.pay(client, [Order("before", "collections", number(1))])
    await world.lose(client, Order("lost", "collections", number(2)), made=True)
    hidden = world.service.payments[-1]
    await world.lose(client, Order("never", "collections", number(3)), made=False)
    await world.pay(client, [Order("after", "collections", number(4))])
    world.service.list.spell = lambda row: {**row, "created_at": None} if row["id"] == hidden.id else row
    await world.reconcile(client, 1.0, GRACE + 5, GRACE + 5, HOUR)
    lost, never = await world.get(client, "lost"), await world.get(client, "never")
    assert (lost.state, lost.candidates) == (PaymentState.UNKNOWN, (hidden.id,))
    assert never.state is PaymentState.ABSENT
    await world.hold(client)


@pytest.mark.costly("runs lines of payments/ownership/evidence.py that no quick test runs")
async def test_a_row_without_a_time_is_no_control(world: World, client: AsyncClient) -> None:
    """Known payments that the list shows without a time prove nothing about the times around them."""
    await world.pay(client, [Order("before", "collections", number(1))])
    await world.lose(client, Order("never", "collections", number(2)), made=False)
    await world.pay(client, [Order("after", "collections", number(3))])
    world.service.list.spell = lambda row: {**row, "created_at": ""}
    await world.reconcile(client, 1.0, GRACE + 5, GRACE + 5, HOUR)
    assert (await world.get(client, "never")).state is PaymentState.UNKNOWN
    assert await client.payments.unclaimed() == []


async def test_a_transaction_looked_up_for_an_acknowledgement_needs_a_time() -> None:
    """Without one it may be an old payment of the same kind: the result is unknown, and names it."""
    world = make_world("sqlite:///unused.db")
    world.service.acknowledge = lambda row: {**row, "amount": "7"}
    world.service.answer_lookup = lambda request: httpx.Response(
        200, json=samples.found(id="t-000001", amount="5000", phone_number=number(1), created_at=0)
    )
    async with world.client(store=None) as client:
        with pytest.raises(OutcomeUnknown, match="t-000001"):
            await client.collections.create(phone_number=number(1), amount=5000)


@pytest.mark.parametrize("user", [None, [], {}, {"id": "u-7"}, {"email": None}, {"id": 7, "email": ["x"]}])
async def test_a_login_needs_no_user(user: Any) -> None:
    """A token and its lifetime are enough, whatever the answer says about the user."""
    expected = timedelta(hours=1).total_seconds()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/login"):
            return httpx.Response(200, json=samples.login(user=user))
        return httpx.Response(200, json=samples.found())

    auth = LoginAuth("a@b.example", "secret")
    async with AsyncClient("https://service.example/v1", auth=auth, transport=httpx.MockTransport(answer)) as client:
        assert (await client.users.login("a@b.example", "secret")).expires_in == expected
        assert (await client.transactions.get("t-1")).id == "t-1"
