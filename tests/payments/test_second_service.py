"""The promises of the store against a second service, whose list and answers are allowed by the contract and odd."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mobilemoney_async import Acknowledgement, OutcomeUnknown, PaymentState
from tests.payments.second_world import KINDS, Order, World, make_world
from tests.support.second_service import ListBehaviour

pytestmark = pytest.mark.anyio

PHONE_NUMBER = "+255681234501"


@pytest.fixture
def world(tmp_path: Path, anyio_backend: Any) -> World:
    return make_world(f"sqlite:///{tmp_path / 'payments.db'}")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_payment_goes_from_its_create_to_its_final_state(world: World, kind: str) -> None:
    """A second reading of the contract agrees with ours, from the create to settlement and history."""
    world.service.finish_after = 15.0
    async with world.client() as client:
        made = await getattr(client, kind).create(phone_number=PHONE_NUMBER, amount=5000, idempotency_key="k")
        async with client.poller() as poller:
            with anyio.fail_after(600):
                final = await poller.wait(made.transaction_id)
        assert final.succeeded and final.amount == 5000
        assert (await client.transactions.get_by_reference(made.reference)).id == made.transaction_id
        assert [each.id async for each in client.transactions.list()] == [made.transaction_id]
        record = await client.payments.get("k")
    assert record is not None and record.state is PaymentState.FINAL
    assert world.service.posts == 1


LISTS = {
    "newest first": ListBehaviour(),
    "oldest first": ListBehaviour(newest_first=False),
    "pages of twenty": ListBehaviour(page_size=20),
    "half a minute behind": ListBehaviour(lag=timedelta(seconds=30)),
    "a day where no date is asked for": ListBehaviour(default_days=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LISTS)
async def test_a_lost_answer_is_found_in_the_list(world: World, kind: str, name: str) -> None:
    """Whatever order, page size, delay or range the list has, the payment is adopted, and the key never sends again."""
    world.service.list, order = LISTS[name], Order("lost", kind, PHONE_NUMBER)
    async with world.client() as client:
        for number in range(30):  # other payments around it
            await client.collections.create(
                phone_number=PHONE_NUMBER, amount=100 + number, idempotency_key=f"k{number}"
            )
        assert isinstance(await world.lose(client, order, made=True), OutcomeUnknown)
        await anyio.sleep(60)
        await client.payments.reconcile()
        record = await client.payments.get("lost")
        again = await world.attempt(client, order)
    assert record is not None and record.state is PaymentState.ACKNOWLEDGED and record.is_adopted
    assert isinstance(again, Acknowledgement)
    assert again.transaction_id == record.transaction_id == world.service.payments[-1].id
    assert world.service.posts == 31
