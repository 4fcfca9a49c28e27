"""The overview of a platform's accounts: who needs someone, in a few statements, and the same on every host."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AccountNeed,
    AccountState,
    AccountStatus,
    InvalidRequest,
    Merchants,
    OutcomeUnknown,
    SQLStore,
)
from mobilemoney_async.database.schema import accounts
from mobilemoney_async.events import AccountsCounted, Event
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sharing.accounts import read_accounts
from tests.payments.hosts import NUMBER, Platform, pay
from tests.payments.platform import platform_of
from tests.payments.service import on_asyncio
from tests.payments.tables import insert_line, insert_payment
from tests.payments.test_group_commit import heard
from tests.support.fakes import NOON

STUCK = "+255780000129"


async def rows(merchants: Merchants, **options: Any) -> dict[str, AccountStatus]:
    return {each.account: each async for each in merchants.overview(**options)}


@pytest.mark.pairs
async def test_accounts_that_need_someone_are_listed_with_the_reason(store_url: str) -> None:
    """Each reason is seen on a host that has only the store; an account that is well is listed when asked for."""
    sandbox, seen = Sandbox(merchants=6), list[tuple[str, Event]]()
    async with platform_of(sandbox, store_url) as merchants:
        for number, account in enumerate(sandbox.tokens):
            client = await merchants.client(account)
            for each in range(number + 1):
                await client.collections.create(STUCK, 1000 + each, idempotency_key=f"order-{each}")
        sandbox.script(faults.drop(processed=False), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await (await merchants.client("shop-2")).collections.create(NUMBER, 7, idempotency_key="lost")
        await merchants.suspend("shop-3", note="late")
        async with (await merchants.client("shop-4")).dispatcher() as dispatcher:
            dispatcher.pause("the treasurer is away")
        for account in ("shop-5", "shop-6"):
            given: dict[str, Any] = {"phone_number": NUMBER, "amount": 9, "idempotency_key": "queued"}
            await (await merchants.client(account)).payments.enqueue(type="collection", **given)
        await merchants.remove("shop-5")
    await add_stranger(store_url, "shop-2")
    async with platform_of(sandbox, SQLStore(store_url), on_event=lambda *told: seen.append(told)) as other:
        found = await rows(other)
        assert {account: each.needs for account, each in found.items()} == {
            "shop-2": (AccountNeed.UNMATCHED, AccountNeed.UNKNOWN),
            "shop-3": (AccountNeed.SUSPENDED,),
            "shop-4": (AccountNeed.PAUSED,),
            "shop-5": (AccountNeed.QUEUED,),
        }
        assert list(found) == sorted(found)
        assert (found["shop-2"].pending, found["shop-2"].unknown, found["shop-2"].unmatched) == (2, 1, 1)
        assert (found["shop-3"].state, found["shop-3"].note) == (AccountState.SUSPENDED, "late")
        assert found["shop-4"].paused == "the treasurer is away"
        assert (found["shop-5"].state, found["shop-5"].queued) == (AccountState.REMOVED, 1)
        everything = await rows(other, everything=True)
        assert list(everything) == list(sandbox.tokens)
        assert (everything["shop-6"].pending, everything["shop-6"].queued, everything["shop-6"].needs) == (6, 1, ())
    counted = AccountsCounted(
        database=account_store(SQLStore(store_url)).database.name,
        accounts=6,
        needing=dict.fromkeys(AccountNeed, 0)
        | {"unmatched": 1, "unknown": 1, "suspended": 1, "paused": 1, "queued": 1},
    )
    assert seen == [("", counted)] * 2
    assert AccountStatus.from_dict(found["shop-2"].to_dict()) == found["shop-2"]


async def add_stranger(url: str, account: str) -> None:
    """Add a transaction that no payment claims."""
    store = SQLStore(url, account)
    await account_store(store).database.write(lambda connection: insert_line(connection, account=account))
    store.close()


@pytest.mark.parametrize("count", [3, 300])
async def test_it_asks_as_few_questions_for_any_number_of_accounts(store_url: str, count: int) -> None:
    """Nine statements, for three accounts and for three hundred."""
    asked: list[str] = []
    store = SQLStore(store_url)

    def fill(connection: sa.Connection) -> None:
        connection.execute(accounts.insert(), [{"account": f"shop-{number}"} for number in range(count)])
        for number in range(3):
            insert_payment(connection, account=f"shop-{number}", key="order-1", state="ACKNOWLEDGED")

    await account_store(store).database.write(fill)
    with heard(asked):
        found = await read_accounts(account_store(store), everything=True)
    store.close()
    assert sum(each.pending for each in found) == 3
    assert len(found) == count
    assert len([each for each in asked if "mobilemoney_" in each]) <= 9


async def test_a_removed_account_is_behind_only_while_a_payment_of_it_is_open(store_url: str) -> None:
    """Nobody serves the others any more, whose merchants' credentials are gone: no alert would ever end."""
    store = SQLStore(store_url)
    values = {"due_since": NOON, "went_backwards": True, "state": AccountState.REMOVED.value}

    def fill(connection: sa.Connection) -> None:
        connection.execute(accounts.insert(), [{"account": name, **values} for name in ("shop-1", "shop-2")])
        insert_payment(connection, account="shop-2", key="order-1", state="ACKNOWLEDGED")

    await account_store(store).database.write(fill)
    found = await read_accounts(account_store(store), everything=True)
    store.close()
    assert {each.account: each.needs for each in found} == {"shop-1": (), "shop-2": (AccountNeed.BEHIND,)}


async def test_a_worker_that_has_ended_counts_nobody(platform: Platform) -> None:
    """So that an alert on its last count ends with it."""
    counted = list[Any]()
    async with platform.merchants("shop") as shop:
        await pay(shop, ["shop-01"])
        await shop.suspend("shop-01", note="late")
    async with platform.merchants("one", on_event=lambda *told: counted.append(told[1])) as one:
        async with one.worker():
            await anyio.sleep(2)
        found = [each for each in counted if isinstance(each, AccountsCounted)]
        assert [(each.accounts, each.needing["suspended"]) for each in found] == [(1, 1), (0, 0)]


@pytest.mark.slow
@on_asyncio
async def test_what_a_worker_cannot_serve_is_seen_from_everywhere(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vault that fails for one merchant shows in the overview of another host, and no more once it is well."""
    monkeypatch.setattr("mobilemoney_async.merchants.worker._REPORT", 10.0)
    monkeypatch.setattr("mobilemoney_async.sharing.accounts._FAILING", timedelta(minutes=1))
    is_broken, counted = True, list[Event]()

    async def auth(account: str) -> str:
        if account == "shop-01" and is_broken:
            raise OSError("vault: token tkn-secret is sealed")
        platform.service.merchants[f"token.of.{account}"] = account
        return f"token.of.{account}"

    def note(account: str, event: Event) -> None:
        counted.extend([event] if isinstance(event, AccountsCounted) and not account else [])

    async with platform.merchants("shop") as shop:
        await pay(shop, ["shop-01", "shop-02"])
        async with platform.merchants("one", auth=auth, on_event=note) as one, one.worker():
            with anyio.fail_after(150):
                while "shop-01" not in (found := await rows(shop)):
                    await anyio.sleep(5)
            assert found["shop-01"].needs == (AccountNeed.FAILING,)
            assert found["shop-01"].last_error == "auth of account 'shop-01' failed: OSError"
            assert set(found) == {"shop-01"}
            is_broken = False
            with anyio.fail_after(500):
                while await rows(shop):
                    await anyio.sleep(5)
    assert any(each.needing["failing"] == 1 for each in counted if isinstance(each, AccountsCounted))


async def test_of_several_databases_one_is_named(sqlite_file_url: str) -> None:
    """A function of the account names no database to read, and a store names no other."""
    stores = [SQLStore(sqlite_file_url), SQLStore(f"{sqlite_file_url}2")]

    async def store_of(account: str) -> SQLStore:
        return stores[account.endswith("2")]

    sandbox = Sandbox(merchants=2)
    async with platform_of(sandbox, store_of) as merchants, platform_of(sandbox, stores[0]) as of_one:
        for account in sandbox.tokens:
            await (await merchants.client(account)).collections.create(STUCK, 1000, idempotency_key="order-1")
        found = [await rows(merchants, store=store, everything=True) for store in stores]
        assert [list(each) for each in found] == [["shop-1"], ["shop-2"]]
        assert list(await rows(of_one, store=stores[0].for_account("shop-2"), everything=True)) == ["shop-1"]
        for given, wrong in [(merchants, None), (merchants, sqlite_file_url), (of_one, stores[1])]:
            with pytest.raises(InvalidRequest, match="database") as caught:
                await rows(given, store=wrong)
            assert caught.value.argument == "store"
            with pytest.raises(InvalidRequest, match="database"):
                given.worker(store=wrong)  # type: ignore[arg-type]
