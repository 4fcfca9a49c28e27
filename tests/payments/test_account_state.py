"""Accounts that are suspended, resumed and removed: every process obeys, and nothing that is open is forgotten."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AccountSuspended,
    AsyncClient,
    InvalidRequest,
    MobileMoneyError,
    NoSuchMerchant,
    PaymentState,
    SQLStore,
)
from mobilemoney_async.events import Event, MerchantSuspended
from mobilemoney_async.sandbox import Sandbox
from tests.payments.hosts import NUMBER, Platform, enqueue, pay, until
from tests.payments.platform import platform_of
from tests.payments.service import on_asyncio
from tests.support.databases import execute

PAYMENT: dict[str, Any] = {"phone_number": NUMBER, "amount": 1000}


async def states(client: AsyncClient) -> dict[str, PaymentState]:
    return {each.key: each.state for each in await client.payments.list()}


@pytest.mark.pairs
async def test_a_suspended_account_pays_nothing_and_may_be_read(store_url: str) -> None:
    """Each way to begin a payment is refused before anything is sent, for clients of their own too, until `resume`."""
    sandbox = Sandbox(merchants=2)
    store = SQLStore(store_url, "shop-1")
    async with sandbox.client(store=store) as client, platform_of(sandbox, store_url) as merchants:
        made = await client.collections.create(**PAYMENT, idempotency_key="before")
        failed = await client.payments.enqueue(type="collection", **PAYMENT, idempotency_key="taken out")
        await client.payments.cancel(failed.key, note="tried")
        batch = await client.payouts.propose([PAYMENT | {"key": "line-1"}], name="wages", by="asha")
        await merchants.suspend("shop-1", note="the merchant asked for it")
        sent = sandbox.requests.total
        said = "account 'shop-1' is suspended: the merchant asked for it; nothing was sent; "
        said += "it pays again after mobilemoney accounts resume shop-1"
        for own in (client, await merchants.client("shop-1")):
            for create in (own.collections.create, own.disbursements.create):
                with pytest.raises(AccountSuspended, match=said) as caught:
                    await create(**PAYMENT, idempotency_key="new")
                assert caught.value.outcome == "not_sent"
                assert (caught.value.state, caught.value.note) == ("SUSPENDED", "the merchant asked for it")
            with pytest.raises(AccountSuspended):
                await own.payments.enqueue(type="disbursement", **PAYMENT, idempotency_key="new")
        with pytest.raises(AccountSuspended):
            await client.payouts.approve(batch.id, by="juma", digest=batch.digest)
        assert sandbox.requests.total == sent
        assert set(await states(client)) == {"before", "taken out"}
        assert (await client.transactions.get(made)).id == made.transaction_id
        again = await client.collections.create(**PAYMENT, idempotency_key="before")
        assert again.transaction_id == made.transaction_id  # which begins nothing
        other = await merchants.client("shop-2")
        await other.collections.create(**PAYMENT, idempotency_key="new")

        await merchants.resume("shop-1")
        await client.disbursements.create(**PAYMENT, idempotency_key="new")
        await client.payouts.approve(batch.id, by="juma", digest=batch.digest)


async def test_a_payment_in_ones_own_transaction_is_refused(store_url: str) -> None:
    """`store.enqueue` raises, and what else the transaction holds can be kept or rolled back."""
    store, sandbox = SQLStore(store_url, "shop-1"), Sandbox()
    async with sandbox.client(store=store) as client, platform_of(sandbox, store_url) as merchants:
        await client.payments.enqueue(type="collection", **PAYMENT, idempotency_key="before")
        await merchants.suspend("shop-1", note="late with its papers")
        engine = sa.create_engine(store_url, poolclass=sa.pool.NullPool)
        for key in ("before", "new"):
            given = {"type": "collection", **PAYMENT, "idempotency_key": key}
            with engine.connect() as connection:
                if key == "before":  # it is queued already
                    assert store.enqueue(connection, **given).state is PaymentState.QUEUED
                else:
                    with pytest.raises(AccountSuspended, match="late with its papers"):
                        store.enqueue(connection, **given)
        assert set(await states(client)) == {"before"}


async def test_a_payment_that_waits_for_the_rate_limit_is_refused(sqlite_file_url: str) -> None:
    """Whatever has looked before: once the suspension is committed, no payment begins."""
    sandbox = Sandbox()
    store = SQLStore(sqlite_file_url, "shop-1")
    async with sandbox.client(store=store) as client, platform_of(sandbox, sqlite_file_url) as merchants:
        refused: list[str] = []

        async def create(number: int) -> None:
            try:
                await client.collections.create(phone_number=NUMBER, amount=1000 + number, idempotency_key=f"{number}")
            except AccountSuspended:
                refused.append(f"{number}")

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(create, number)
            await anyio.sleep(5)
            await merchants.suspend("shop-1", note="now")
        assert len(sandbox.transactions) + len(refused) == 30
        assert 10 <= len(refused) <= 20
        assert refused and not {*refused} & {*await states(client)}


@pytest.mark.slow
@on_asyncio
async def test_every_host_obeys(platform: Platform) -> None:
    """A host leaves an account that another one suspends, and sends what is queued once it is resumed."""
    async with platform.merchants("shop") as shop, platform.host("one") as worker:
        await pay(shop, ["shop-01", "shop-02"])
        await until(lambda: len(worker.accounts) == 2)
        await shop.suspend("shop-01", note="for a while")
        await until(lambda: set(worker.accounts) == {"shop-02"})
        asked = len([each for each in platform.asked if each[2] == "shop-01"])
        await anyio.sleep(20)
        assert len([each for each in platform.asked if each[2] == "shop-01"]) == asked
        await shop.resume("shop-01")
        await enqueue(shop, ["shop-01"])
        await until(lambda: "shop-01" in worker.accounts)
        client = await shop.client("shop-01")
        with anyio.fail_after(60):
            while (await states(client))["queued-1"] is PaymentState.QUEUED:
                await anyio.sleep(1)


@pytest.mark.slow
@on_asyncio
async def test_what_is_open_in_a_removed_account_is_followed_to_its_end(platform: Platform) -> None:
    """Nothing new is sent, also not from the queue; late payments leave it; and then no host has the account."""
    async with platform.merchants("shop") as shop, platform.host("one") as worker:
        await pay(shop, ["shop-01"])
        await enqueue(shop, ["shop-01"], not_before=timedelta(seconds=5))
        await enqueue(shop, ["shop-01"], "late", not_before=timedelta(seconds=5), not_after=timedelta(seconds=20))
        await shop.remove("shop-01", note="it has left")
        with pytest.raises(AccountSuspended, match=r"is removed: it has left; nothing was sent$"):
            await pay(shop, ["shop-01"], "order-2")
        client = await shop.client("shop-01")
        await anyio.sleep(30)
        found = await states(client)
        assert (found["queued-1"], found["late"]) == (PaymentState.QUEUED, PaymentState.NOT_SENT)
        platform.service.finish(platform.service.payments[0])
        with anyio.fail_after(300):
            while (await states(client))["order-1"] is not PaymentState.FINAL:
                await anyio.sleep(1)
        await until(lambda: not worker.accounts)
        assert len(platform.service.payments) == 1


@pytest.mark.slow
@on_asyncio
async def test_no_such_merchant_suspends_once_and_loudly(platform: Platform, caplog: pytest.LogCaptureFixture) -> None:
    """Two hosts serve an account that leaves the vault: one ERROR, one event, and the vault is left alone."""
    left, asked, seen = set[str](), list[str](), list[Event]()

    async def auth(account: str) -> str:
        asked.append(account)
        if account in left:
            raise NoSuchMerchant(f"{account} left in May, +255780000001")
        platform.service.merchants[f"token.of.{account}"] = account
        return f"token.of.{account}"

    def note(account: str, event: Event) -> None:
        seen.extend([event] if isinstance(event, MerchantSuspended) else [])

    options: dict[str, Any] = {"auth": auth, "on_event": note}
    async with platform.merchants("shop") as shop:
        await pay(shop, ["shop-01", "shop-02"])
    left.add("shop-01")
    async with platform.merchants("one", **options) as one, platform.merchants("two", **options) as two:
        async with one.worker() as first, two.worker() as second:
            await until(lambda: bool(seen))
            await until(lambda: {*first.accounts, *second.accounts} == {"shop-02"})
            calls = len(asked)
            await anyio.sleep(30)
            assert asked[calls:] == []
        assert seen == [MerchantSuspended(account="shop-01", reason="shop-01 left in May, +25578…001")]
        (said,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert said.getMessage().startswith(
            "account 'shop-01' is suspended, since auth knows no such merchant (shop-01"
        )
        (status,) = [each async for each in one.overview() if each.account == "shop-01"]
        assert "+255780000001" not in f"{caplog.text} {status.note} {status.last_error}"
        for merchants in (one, two):
            client = await merchants.client("shop-01")
            with pytest.raises(NoSuchMerchant):
                await client.transactions.get("tx-1")
            with pytest.raises(AccountSuspended, match="left in May"):
                await client.collections.create(**PAYMENT, idempotency_key="new")
    assert len(seen) == 1


@pytest.mark.parametrize("note", [None, "", 7])
async def test_a_suspension_has_a_reason(sqlite_file_url: str, note: Any) -> None:
    """Who is called at night finds it beside the account."""
    async with platform_of(Sandbox(), sqlite_file_url) as merchants:
        with pytest.raises(InvalidRequest, match="note must be"):
            await merchants.suspend("shop-1", note=note)
        with pytest.raises(InvalidRequest, match="account must be"):
            await merchants.resume("")
    with pytest.raises(InvalidRequest, match="closed"):
        await merchants.remove("shop-1")


async def test_a_state_of_a_later_release_pays_nothing(sqlite_file_url: str) -> None:
    """What this release does not know is no permission."""
    sandbox = Sandbox()
    async with sandbox.client(store=SQLStore(sqlite_file_url, "shop-1")) as client:
        await client.payments.enqueue(type="collection", **PAYMENT, idempotency_key="k")
        execute(
            sqlite_file_url,
            "INSERT INTO mobilemoney_accounts (account, state) VALUES ('shop-1', 'FROZEN') "
            "ON CONFLICT (account) DO UPDATE SET state = 'FROZEN'",
        )
        with pytest.raises(MobileMoneyError, match="account 'shop-1' is frozen"):
            await client.collections.create(**PAYMENT, idempotency_key="new")
