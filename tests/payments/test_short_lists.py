"""A list that counts more transactions than it shows: nothing is concluded from it, and that is said."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mobilemoney_async import PaymentState
from tests.payments.second_world import BOTH, GRACE, HOUR, Order, make_world, number
from tests.support.second_service import ListBehaviour

pytestmark = pytest.mark.anyio

SAID = "the list could not be read as a whole: the service counts 5 transactions, and has shown 2"


@pytest.mark.costly("runs lines of payments/audit_report.py that no quick test runs")
@BOTH
async def test_audit_and_reconcile_say_that_they_could_not_read_all(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both numbers are in the audit's difference and in the log; no payment becomes absent by such a list."""
    world = make_world(store_url)
    async with world.client() as client:
        await world.pay(client, [Order("before", "collections", number(1))])
        await world.lose(client, Order("never", "collections", number(2)), made=False)
        await world.pay(client, [Order("after", "collections", number(3))])
        world.service.list = ListBehaviour(total_count=lambda shown: shown + 3)
        await world.reconcile(client, 1.0, GRACE + 5, GRACE + 5, HOUR)
        never = await world.get(client, "never")
        assert (never.state, never.reason) == (PaymentState.UNKNOWN, "the list could not be read as a whole")
        assert SAID in caplog.messages
        today = world.utcnow().date()
        report = await client.payments.audit(from_date=today - timedelta(days=1), to_date=today)
        assert [each.reason for each in report.differences if each.kind == "incomplete"] == [SAID]
        world.service.list = ListBehaviour()
        report = await client.payments.audit(from_date=today - timedelta(days=1), to_date=today)
        assert not [each for each in report.differences if each.kind == "incomplete"]
