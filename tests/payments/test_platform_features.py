"""Features of one merchant on a platform: each decision, file and reader is of its own account."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

from mobilemoney_async import InvalidRequest, OutcomeUnknown, PaymentState, StoreError, TransactionNotFound
from mobilemoney_async.callbacks import CallbackReceiver
from mobilemoney_async.sandbox import faults
from tests.payments.platform import NUMBER, PAYS, STAYS_OPEN, Platform
from tests.payments.steps import dispatch, settle

pytestmark = pytest.mark.pairs

FILE = f"phone_number,amount\n{NUMBER},50000\n{PAYS},60000\n"


@pytest.fixture
async def platform(store_url: str) -> Platform:
    return Platform(store_url)


async def test_a_batch_is_of_its_account(platform: Platform) -> None:
    """Two merchants with the same file pay it once each, and nobody approves, retries or reads that of another."""
    async with platform.merchants() as merchants:
        one, two = await merchants.client("shop-1"), await merchants.client("shop-2")
        first = await one.payouts.propose(FILE, name="salaries", by="Asha")
        for act in (
            two.payouts.get(first.id),
            two.payouts.report(first.id),
            two.payouts.approve(first.id, by="Juma", digest=first.digest),
            two.payouts.retry(first.id, by="Juma"),
            two.payouts.cancel(first.id, by="Juma"),
        ):
            with pytest.raises((InvalidRequest, StoreError), match=first.id):
                await act
        second = await two.payouts.propose(FILE, name="salaries", by="Asha")
        assert second.digest == first.digest
        assert (second.repeats, dict(second.duplicates)) == (None, {})
        await one.payouts.approve(first.id, by="Juma", digest=first.digest)
        assert (await two.payouts.get(second.id)).state == "proposed"
        assert await two.payments.list() == []
        await two.payouts.approve(second.id, by="Juma", digest=second.digest)
        assert [each.id for each in await one.payouts.list()] == [first.id]
        for client in (one, two):
            await dispatch(client, 5)
    assert platform.paid == sorted([(NUMBER, "50000"), (PAYS, "60000")] * 2)


async def test_an_audit_is_of_its_account(platform: Platform) -> None:
    """A transaction that another system made for one merchant is a difference of its books alone."""
    sandbox = platform.sandbox
    async with platform.merchants() as merchants, sandbox.client(auth=sandbox.tokens["shop-1"]) as other_system:
        one, two = await merchants.client("shop-1"), await merchants.client("shop-2")
        for client in (one, two):
            await client.collections.create(NUMBER, 1000, idempotency_key="order-1")
        stranger = (await other_system.collections.create(PAYS, 7000)).transaction_id
        await anyio.sleep(200)
        today = sandbox.now.date()
        days = {"from_date": today - timedelta(days=1), "to_date": today}
        differences = (await one.payments.audit(**days)).differences
        found = [(str(each.kind), each.transaction_id) for each in differences if each.kind != "state"]
        assert found == [("unclaimed", stranger)]
        report = await two.payments.audit(**days)
        assert (report.transactions, report.payments) == (1, 1)
        assert {str(each.kind) for each in report.differences} <= {"state"}


async def test_an_audit_on_another_host_says_the_same(platform: Platform) -> None:
    """While the first host pays: what is on its way there is no difference here."""
    sandbox = platform.sandbox
    async with platform.merchants() as paying, platform.merchants() as auditing:
        one = await paying.client("shop-1")
        await one.collections.create(STAYS_OPEN, 1000, idempotency_key="order-1")
        days = {"from_date": sandbox.now.date(), "to_date": sandbox.now.date()}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: one.disbursements.create(STAYS_OPEN, 2000, idempotency_key="order-2"))
            found = await (await auditing.client("shop-1")).payments.audit(**days)
        assert found.is_clean
        here, there = await one.payments.audit(**days), await (await auditing.client("shop-1")).payments.audit(**days)
        assert here.to_dict() == there.to_dict()
        assert (here.is_clean, here.payments) == (True, 2)


async def test_what_no_payment_claims_is_of_its_account(platform: Platform) -> None:
    """Nobody explains or imports a transaction of another merchant; a word about one account stops no other."""
    sandbox = platform.sandbox
    async with platform.merchants() as merchants, sandbox.client(auth=sandbox.tokens["shop-1"]) as other_system:
        one, two = await merchants.client("shop-1"), await merchants.client("shop-2")
        for client in (one, two):
            await client.disbursements.create(NUMBER, 1000, idempotency_key="order-1")
        stranger = (await other_system.disbursements.create(NUMBER, 1000)).transaction_id
        for client in (one, two):
            await client.transactions.page()
        await anyio.sleep(200)
        for client in (one, two):
            await client.transactions.page()
        assert [each.transaction_id for each in await one.payments.unclaimed()] == [stranger]
        assert await two.payments.unclaimed() == []
        with pytest.raises(TransactionNotFound):
            await two.payments.recover({"imported": stranger}, note="Asha")
        await one.payments.restored(note="Asha: backup of Monday")
        await two.disbursements.create(NUMBER, 1000, idempotency_key="order-2")
        (imported,) = await one.payments.recover({"imported": stranger}, note="Asha: the till paid it")
        assert (imported.key, imported.transaction_id) == ("imported", stranger)
        assert await one.payments.unclaimed() == []
        assert await two.payments.get("imported") is None


@pytest.mark.slow
async def test_a_number_is_erased_in_its_account(platform: Platform) -> None:
    """While other hosts serve both: the customer's number stays with the merchant who was not asked."""
    async with platform.merchants() as merchants, platform.merchants() as other_host:
        for account in ("shop-1", "shop-2"):
            client = await merchants.client(account)
            await client.collections.create(PAYS, 1000, idempotency_key="order-1")
            await settle(client)
        async with (await other_host.client("shop-1")).poller(resume=True):
            done = await platform.store("shop-1").erase(phone_number=PAYS)
        assert done.rows["mobilemoney_payment_records"] == 1
        (erased,) = await (await other_host.client("shop-1")).payments.list()
        (kept,) = await (await other_host.client("shop-2")).payments.list()
        assert (erased.phone_number.startswith("erased:"), kept.phone_number) == (True, PAYS)
        for account in ("shop-1", "shop-2"):
            await (await other_host.client(account)).collections.create(PAYS, 1000, idempotency_key="order-1")
    assert len(platform.sandbox.transactions) == 2


@pytest.mark.costly("no quick test hands a callback to a host that does not ask for the account's payments")
async def test_a_callback_to_any_host_reaches_the_one_that_asks(platform: Platform) -> None:
    """Another host asks for the account's payments; a callback of another merchant's payment makes no request."""
    sandbox = platform.sandbox
    async with platform.merchants() as web, platform.merchants() as asking:
        client = await web.client("shop-1")
        made = await client.collections.create(STAYS_OPEN, 1000, idempotency_key="order-1")
        foreign = await (await web.client("shop-2")).collections.create(STAYS_OPEN, 1000, idempotency_key="order-1")
        async with (await asking.client("shop-1")).poller(resume=True):
            await anyio.sleep(2)
            async with client.poller(resume=True) as poller:
                await anyio.sleep(60)
                sandbox.approve(made.transaction_id)
                called_at, asked = anyio.current_time(), sandbox.requests.total
                receiver = CallbackReceiver(poller)
                assert (await receiver.receive(foreign.transaction_id.encode())).transaction_ids == ()
                result = await receiver.receive(b'{"id": "%s"}' % made.transaction_id.encode())
                assert result.transaction_ids == (made.transaction_id,)
                assert (await poller.wait(made.transaction_id)).succeeded
                assert anyio.current_time() - called_at <= 5
                assert sandbox.requests.total - asked <= 2


async def test_a_lost_payment_is_found_in_its_account(platform: Platform) -> None:
    """Two merchants asked the same customer for the same amount; the list of one says nothing of the other."""
    sandbox = platform.sandbox
    async with platform.merchants() as merchants:
        one, two = await merchants.client("shop-1"), await merchants.client("shop-2")
        for client in (one, two):
            await client.collections.create(PAYS, 500, idempotency_key="earlier")
        sandbox.script(faults.drop(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await one.collections.create(NUMBER, 1000, idempotency_key="order-1")
        sandbox.script(faults.drop(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await two.collections.create(NUMBER, 1000, idempotency_key="order-1")
        await anyio.sleep(200)
        for client in (one, two):
            await client.payments.reconcile()
        lost, found = await one.payments.get("order-1"), await two.payments.get("order-1")
        assert lost is not None and found is not None
        assert (lost.state, lost.transaction_id) == (PaymentState.UNKNOWN, None)
        assert found.is_adopted and found.transaction_id in sandbox.transactions


async def test_a_fault_is_logged_with_its_account(platform: Platform, caplog: pytest.LogCaptureFixture) -> None:
    """Of three hundred accounts, an operator sees which one's service does not answer."""
    async with platform.merchants() as merchants:
        client = await merchants.client("shop-1")
        made = await client.collections.create(PAYS, 1000, idempotency_key="order-1")
        platform.sandbox.script(faults.refused(), on="GET")
        async with client.poller(resume=True) as poller:
            assert (await poller.wait(made)).succeeded
    assert "the poller of account 'shop-1' goes on after: " in caplog.text
