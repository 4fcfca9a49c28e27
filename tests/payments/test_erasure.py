"""Erasure: numbers and names go, and what money needs stays; nothing is erased while a payment is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AccountSuspended,
    AsyncClient,
    DisbursementLimits,
    Erasure,
    IdempotencyConflict,
    InvalidRequest,
    LimitExceeded,
    PaymentCause,
    PaymentState,
    SQLStore,
    StoreError,
)
from mobilemoney_async.database.schema import METADATA, payments
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.text import mask_phone_number
from tests.payments.platform import platform_of
from tests.payments.second_world import DAY, GRACE, Order, World, make_world
from tests.payments.service import on_asyncio
from tests.payments.steps import approved, dispatch, settle
from tests.payments.test_misbehaving_list import SPELLINGS
from tests.support.databases import execute
from tests.support.fakes import NOON
from tests.support.second_service import ListBehaviour, error

pytestmark = [pytest.mark.slow, pytest.mark.pairs]  # each opens a store, pays and follows to a final state

NUMBER, OTHER, STAYS_OPEN = "+255780000789", "+255781234567", "+255780000129"
NAME = "Juma Mwinyi"


@asynccontextmanager
async def shop(url: str, account: str = "shop-1") -> AsyncIterator[tuple[AsyncClient, SQLStore, Sandbox]]:
    sandbox, store = Sandbox(), SQLStore(url, account, key="0123456789abcdef")
    async with sandbox.client(store=store) as client:
        yield client, store, sandbox


async def pay(client: AsyncClient, number: str = NUMBER, key: str = "order-1", amount: int = 15_000) -> None:
    await client.collections.create(number, amount, idempotency_key=key, extra={"description": f"for {NAME}"})


def everything(url: str) -> str:
    """Return all that the database holds, as text."""
    return "\n".join(str(row) for table in METADATA.sorted_tables for row in execute(url, sa.select(table)))


def rows(url: str, table: str) -> list[Mapping[str, Any]]:
    return [row._mapping for row in execute(url, sa.select(METADATA.tables[table]))]


def back_up(url: str, backup: str) -> None:
    execute(url, f"VACUUM INTO '{sa.make_url(backup).database}'")


async def test_an_erased_recipient_is_still_the_same_one(sqlite_file_url: str) -> None:
    """For the limit of a day, and for the review of a file that is proposed again; no digest is of the number alone."""
    sandbox, store = Sandbox(), SQLStore(sqlite_file_url, "shop-1", key="0123456789abcdef")
    limits = DisbursementLimits(per_recipient_a_day=100_000)
    file = f"phone_number,amount\n{NUMBER},90000\n"
    async with sandbox.client(store=store, disbursement_limits=limits) as client:
        first = await approved(client, file)
        await dispatch(client, 5)
        await settle(client)
        await store.erase(phone_number=NUMBER)
        with pytest.raises(LimitExceeded, match="10,000 TZS are left"):
            await client.disbursements.create(NUMBER, 20_000, idempotency_key="more")
        again = await client.payouts.propose(file, name="salaries", by="Asha")
        assert again.duplicates[2].startswith("this very payment is SUCCESS")
        assert again.duplicates[2].endswith("it is made once")
        assert again.repeats == "1 of 1 lines keep their payments (1 SUCCESS), and are not paid again"
        assert (again.new_recipients, again.exceeds) == ((), None)
        other = await client.payouts.propose(f"{file}{NUMBER},10001\n", name="salaries", by="Asha")
        assert "of the same amount to the same number is SUCCESS" in other.duplicates[2]
        assert other.exceeds is not None
        assert "line 2 of batch" in other.exceeds
        await client.payouts.approve(again.id, by="Juma", digest=again.digest)
        assert len(sandbox.transactions) == 1
        assert first.digest not in {
            row["digest"] for row in rows(sqlite_file_url, "mobilemoney_batches") if row["id"] == first.id
        }
        keys = {row["key"] for row in rows(sqlite_file_url, "mobilemoney_payment_records")}
        assert not any(first.digest[:24] in key for key in keys)


async def test_what_a_consumer_and_a_pause_said_goes_too(sqlite_file_url: str) -> None:
    """The error of a program's own handler, and the reason of a pause, may name a customer."""
    async with shop(sqlite_file_url) as (client, store, _):
        order: dict[str, Any] = {"type": "disbursement", "phone_number": NUMBER, "amount": 5000}
        await client.payments.enqueue(**order, idempotency_key="order-1", extra={"customer": NAME})
        digests = [row["extra_digest"] for row in rows(sqlite_file_url, "mobilemoney_payment_records")]
        async with client.dispatcher() as dispatcher:
            await anyio.sleep(5)
            dispatcher.pause(f"{NAME} has complained, {NUMBER}")
            await anyio.sleep(5)
        await settle(client)
        changes = client.payments.changes(consumer="books", start="oldest", forever=False)
        async for change in changes:
            await change.failed(ValueError(f"no address of {NAME}, {NUMBER}"))
            break
        await changes.aclose()
        done = await store.erase_account("shop-1")
    assert done.rows == {"mobilemoney_payment_records": 1, "mobilemoney_retries": 1}
    text = everything(sqlite_file_url)
    assert NAME not in text and NUMBER not in text and digests[0] not in text


async def test_a_row_that_is_erased_counts_once(sqlite_file_url: str) -> None:
    """A customer who comes back and is erased again has new rows only."""
    async with shop(sqlite_file_url) as (client, store, _):
        for key in ("order-1", "order-2"):
            given: dict[str, Any] = {"type": "collection", "phone_number": NUMBER, "amount": 3}
            await client.payments.enqueue(**given, idempotency_key=key)
            await client.payments.cancel(key, note=f"{NAME} has called")
            done = await store.erase(phone_number=NUMBER)
            assert done.rows == {"mobilemoney_payment_records": 1, "mobilemoney_payment_history": 1}


async def test_a_number_goes_and_the_money_stays(store_url: str) -> None:
    """No table shows the number or the customer's name; amounts, keys, ids, states and times are as before."""
    async with shop(store_url) as (client, store, _):
        await pay(client)
        await pay(client, OTHER, "order-2")
        await settle(client)
        await client.payments.enqueue(type="disbursement", phone_number=NUMBER, amount=7, idempotency_key="refund")
        await client.payments.cancel("refund", note=f"asha: {NAME} called")
        before = {each.key: each for each in await client.payments.list()}
        assert NUMBER[1:] in everything(store_url) and NAME in everything(store_url)
        done = await store.erase(phone_number="+255 780 000 789")
        assert done.account == "shop-1"
        assert done.rows["mobilemoney_payment_records"] == 2
        told = everything(store_url)
        assert NUMBER[4:] not in told and NAME not in told
        assert OTHER in told
        for record in await client.payments.list():
            was = before[record.key]
            assert (record.amount, record.state, record.status, record.transaction_id, record.sent_at) == (
                *(was.amount, was.state, was.status, was.transaction_id, was.sent_at),
            )
        assert [(each.account, each.digest, each.rows) for each in await store.erasures()] == [
            ("shop-1", done.digest, {})
        ]
        assert NUMBER[4:] not in repr(await client.payments.get("order-1"))


async def test_a_key_still_names_the_same_payment(store_url: str) -> None:
    """Nothing is paid twice after an erasure; the key with another number is a conflict, as before."""
    async with shop(store_url) as (client, store, sandbox):
        await pay(client)
        await settle(client)
        (payment,) = sandbox.transactions
        await store.erase(phone_number=NUMBER)
        again = await client.collections.create(
            NUMBER, 15_000, idempotency_key="order-1", extra={"description": f"for {NAME}"}
        )
        assert again.transaction_id == payment
        with pytest.raises(IdempotencyConflict, match="another phone number"):
            await pay(client, OTHER)
        assert len(sandbox.transactions) == 1
        await pay(client, key="order-2")  # a new purchase of the same customer
        await settle(client)
        records = {each.key: each for each in await client.payments.list()}
        assert records["order-2"].phone_number == NUMBER
        assert records["order-1"].cause is None  # the list shows its number, and contradicts nothing


async def test_a_key_that_was_not_paid_may_be_paid_later(store_url: str) -> None:
    """The payment of a later attempt has its number again: it could not be found without."""
    async with shop(store_url) as (client, store, _):
        given: dict[str, Any] = {"type": "collection", "phone_number": NUMBER, "amount": 9}
        for key in ("again", "queued again"):
            await client.payments.enqueue(**given, idempotency_key=key, not_after=timedelta(milliseconds=1))
        await anyio.sleep(1)
        async with client.dispatcher():
            with anyio.fail_after(60):
                while {each.state for each in await client.payments.list()} != {PaymentState.NOT_SENT}:
                    await anyio.sleep(1)
        await store.erase(phone_number=NUMBER)
        await client.collections.create(NUMBER, 9, idempotency_key="again")
        await settle(client)
        await client.payments.enqueue(**given, idempotency_key="queued again")
        assert {each.phone_number for each in await client.payments.list()} == {NUMBER}


@pytest.mark.parametrize("way", ["pending", "unknown", "refused softly", "queued", "batch"])
async def test_it_is_refused_while_something_is_open(store_url: str, way: str) -> None:
    """The error names the keys, nothing is changed, and later it can be done."""
    async with shop(store_url) as (client, store, sandbox):
        await pay(client)
        await settle(client)
        said = "payments 'open' of account 'shop-1' are open"
        if way == "pending":
            await pay(client, NUMBER, "open", 3)
        elif way == "unknown":
            sandbox.by_hand = True
            await pay(client, NUMBER, "open", 3)
        elif way == "refused softly":
            await pay(client, NUMBER, "open", 3)
            refused = {"state": "REFUSED", "is_certain": False, "transaction_id": None}
            execute(store_url, payments.update().where(payments.c.key == "open").values(refused))
        elif way == "queued":
            given: dict[str, Any] = {"type": "collection", "phone_number": NUMBER, "amount": 3}
            await client.payments.enqueue(**given, idempotency_key="open")
        else:
            batch = await client.payouts.propose(f"phone_number,amount\n{NUMBER},3\n", name="wages", by="asha")
            said = f"batches '{batch.id}' of account 'shop-1' are open"
        before = everything(store_url)
        for erase in (store.erase(phone_number=NUMBER), store.erase_account("shop-1")):
            with pytest.raises(StoreError, match=said) as caught:
                await erase
            assert caught.value.outcome == "not_sent"
        assert everything(store_url) == before


async def test_a_payment_that_stays_pending_holds_it_up_for_a_month(store_url: str) -> None:
    """Nobody can end one that the service does not end, or whose merchant's credentials are gone. Its end is heard."""
    async with shop(store_url) as (client, store, sandbox):
        sandbox.by_hand = True
        await pay(client)
        (name,) = sandbox.transactions
        for days in (29, 31):
            earlier = datetime.now(UTC) - timedelta(days=days)
            execute(store_url, payments.update().values(changed_at=earlier))
            if days < 30:
                with pytest.raises(StoreError, match="payments 'order-1' of account 'shop-1' are open"):
                    await store.erase(phone_number=NUMBER)
        assert (await store.erase(phone_number=NUMBER)).rows["mobilemoney_payment_records"] == 1
        sandbox.approve(name)
        await settle(client)
        record = await client.payments.get("order-1")
        assert record is not None and record.is_final and record.reason is None
        assert NUMBER not in str(execute(store_url, sa.select(payments)))


async def test_a_whole_account_is_erased_and_pays_no_more(store_url: str) -> None:
    """Its numbers, notes, logins and the key of its digests are gone; its neighbour is as it was."""
    async with shop(store_url) as (client, store, _), shop(store_url, "shop-2") as (neighbour, _, _):
        await pay(client)
        await pay(client, OTHER, "order-2")
        await pay(neighbour)
        await settle(client)
        await settle(neighbour)
        await store.erase(phone_number=NUMBER)
        has_turned = payments.update().where(payments.c.account == "shop-1", payments.c.key == "order-1")
        execute(store_url, has_turned.values(cause="CHANGED", about="FAILED"))
        (first, _) = await client.payments.list()
        await client.payments.explain(str(first.transaction_id), note=f"{NAME} was paid")
        done = await store.erase_account("shop-1")
        assert (done.digest, done.rows["mobilemoney_payment_records"]) == ("account", 1)
        assert f"{NAME} was paid" not in everything(store_url)
        of_account = [row for row in rows(store_url, "mobilemoney_accounts") if row["account"] == "shop-1"]
        assert [(row["number_key"], row["credentials"], row["state"]) for row in of_account] == [
            (None, None, "REMOVED")
        ]
        assert not [row for row in rows(store_url, "mobilemoney_logins") if row["account"] == "shop-1"]
        assert OTHER not in everything(store_url)
        assert (await neighbour.payments.list())[0].phone_number == NUMBER
        with pytest.raises(StoreError, match="removed"):
            await pay(client, key="new")
        with pytest.raises(AccountSuspended, match="removed"):
            await client.payouts.propose(f"phone_number,amount\n{NUMBER},3\n", name="wages", by="asha")
        assert [each.state for each in await client.payments.list()] == [PaymentState.FINAL] * 2
    async with platform_of(Sandbox(), store_url) as merchants:
        with pytest.raises(StoreError, match="account 'shop-1' was erased: its merchant needs another account"):
            await merchants.resume("shop-1")


async def test_an_account_that_sent_nothing_leaves_no_number_to_try(sqlite_file_url: str) -> None:
    """Two accounts keep one number as two digests: under a key of each, though neither has sent anything."""
    for account in ("shop-1", "shop-2"):
        async with shop(sqlite_file_url, account) as (client, store, _):
            await client.payments.enqueue(
                type="disbursement", phone_number=NUMBER, amount=5_000, idempotency_key="order-1"
            )
            await client.payments.cancel("order-1", note="not wanted")
            await store.erase_account(account)
    assert len({row["phone_number"] for row in rows(sqlite_file_url, "mobilemoney_payment_records")}) == 2


async def test_a_restored_backup_is_erased_again(sqlite_file_url: str, tmp_path: Any) -> None:
    """The list, kept outside of the backup, is enough: it holds digests, and the backup has their key."""
    async with shop(sqlite_file_url) as (client, store, _):
        await pay(client)
        await pay(client, OTHER, "order-2")
        await settle(client)
        backup = f"sqlite:///{tmp_path}/backup.db"
        back_up(sqlite_file_url, backup)
        await store.erase(phone_number=NUMBER)
        kept = [each.to_dict() for each in await store.erasures()]
    assert NUMBER[1:] not in str(kept)
    assert NUMBER[1:] in everything(backup)
    restored = SQLStore(backup)
    (done,) = await restored.repeat_erasures([Erasure.from_dict(each) for each in kept])
    assert done.rows["mobilemoney_payment_records"] == 1
    assert NUMBER[1:] not in everything(backup) and OTHER[1:] in everything(backup)
    assert await restored.repeat_erasures([Erasure.from_dict(each) for each in kept]) == []
    restored.close()


@on_asyncio
async def test_an_open_payment_keeps_no_other_erasure_from_being_repeated(sqlite_file_url: str, tmp_path: Any) -> None:
    """Neither of its account, nor of those after it; the error names it, and the list may be repeated again."""
    backup = f"sqlite:///{tmp_path}/backup.db"
    async with shop(sqlite_file_url) as (client, store, _), shop(sqlite_file_url, "shop-2") as (neighbour, _, _):
        await pay(neighbour)
        await pay(client)
        await settle(neighbour)
        await settle(client)
        await pay(client, OTHER, "order-2")
        back_up(sqlite_file_url, backup)
        await settle(client)
        for number in (NUMBER, OTHER):
            await store.erase(phone_number=number)
        await store.erase_account("shop-2")
        kept = await store.erasures()
    restored = SQLStore(backup)
    said = "2 erasures were repeated, 1 refused: payments 'order-2' of account 'shop-1' are open"
    with pytest.raises(StoreError, match=said):
        await restored.repeat_erasures(kept)
    assert NUMBER[1:] not in everything(backup) and OTHER[1:] in everything(backup)
    restored.close()


@on_asyncio
async def test_a_payment_that_cannot_be_read_leaves_its_number_whole(sqlite_file_url: str, tmp_path: Any) -> None:
    """Half of an erasure would look like all of it. The error names the payment: `recover` takes what is shown now."""
    backup = f"sqlite:///{tmp_path}/backup.db"
    async with shop(sqlite_file_url) as (client, store, _):
        for key in ("order-1", "order-2"):
            await pay(client, key=key)
            await settle(client)
        back_up(sqlite_file_url, backup)
        await store.erase(phone_number=NUMBER)
        kept = await store.erasures()
    execute(backup, payments.update().where(payments.c.key == "order-2").values(transaction="{"))
    restored = SQLStore(backup, "shop-1")
    for erase in (partial(restored.repeat_erasures, kept), partial(restored.erase, phone_number=NUMBER)):
        with pytest.raises(StoreError, match="transaction that cannot be read, of 'order-2': nothing was erased"):
            await erase()
        assert {row["phone_number"] for row in rows(backup, "mobilemoney_payment_records")} == {NUMBER}
    restored.close()


@pytest.mark.parametrize("listed", [None, "text", [{"account": "shop-1"}]])
async def test_what_is_no_list_of_erasures_is_refused(sqlite_file_url: str, listed: Any) -> None:
    """By the name of the argument."""
    async with shop(sqlite_file_url) as (_, store, _):
        with pytest.raises(InvalidRequest, match=r"erasures must be those that store\.erasures"):
            await store.repeat_erasures(listed)


async def test_an_account_that_the_store_does_not_know_is_not_erased(store_url: str) -> None:
    """Its name may be misspelt: nothing is written, and a merchant of that name may come."""
    async with shop(store_url) as (_, store, _):
        with pytest.raises(StoreError, match="the store has nothing of account 'shop-2': nothing was erased"):
            await store.erase_account("shop-2")
    async with shop(store_url, "shop-2") as (client, _, _):
        await pay(client)


async def test_a_number_that_is_not_there_is_said(store_url: str) -> None:
    """An operator who mistypes does not believe that it is done."""
    async with shop(store_url) as (client, store, _):
        with pytest.raises(StoreError, match="account 'shop-1' has no payment or transaction of this number"):
            await store.erase(phone_number=NUMBER)
        await pay(client)
        await settle(client)
        with pytest.raises(StoreError, match="has no payment or transaction of this number"):
            await store.erase(phone_number=OTHER)
        with pytest.raises(InvalidRequest, match="phone_number"):
            await store.erase(phone_number="0788")


async def pay_and_settle(world: World, client: AsyncClient, key: str, number: str) -> None:
    await world.pay(client, [Order(key, "collections", number)])
    world.service.finish(world.service.payments[-1])
    await settle(client)


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize(("spelling", "cause"), [(None, None), ("national", None), ("masked", PaymentCause.UNTIMED)])
@on_asyncio
async def test_an_erased_payment_is_evidence_as_before(
    sqlite_file_url: str, spelling: str | None, cause: PaymentCause | None, hides: bool
) -> None:
    """A list that hides it may hide a lost one, too; one that shows it shows an absence, if by a whole number."""
    world = make_world(sqlite_file_url, resend=True)
    hidden = set[str]()
    behaviour = ListBehaviour(hide=lambda payment: payment.owner in hidden)
    if spelling is not None:
        behaviour.spell = SPELLINGS[spelling]
    world.service.list = behaviour
    async with world.client() as client:
        store = SQLStore(sqlite_file_url)
        if hides:
            await pay_and_settle(world, client, "earlier", OTHER)
        await pay_and_settle(world, client, "erased", NUMBER)
        await store.erase(phone_number=NUMBER)
        hidden.update({"erased", "lost"} if hides else set())
        await anyio.sleep(600)
        lost = Order("lost", "collections", STAYS_OPEN)
        await world.lose(client, lost, made=hides)
        await anyio.sleep(600)
        await pay_and_settle(world, client, "later", OTHER)
        await world.reconcile(client, GRACE, GRACE, GRACE, 600)
        record = await world.get(client, "lost")
        if hides:
            await world.attempt(client, lost)
            assert (record.cause, len(world.made("lost"))) == (PaymentCause.HIDDEN, 1)
        else:
            assert (record.cause, record.state is PaymentState.ABSENT) == (cause, cause is None)
            assert NUMBER[4:] not in everything(sqlite_file_url)
            assert (await world.get(client, "erased")).phone_number.startswith("erased:")


@pytest.mark.parametrize(("spelling", "twice"), [("national", {NUMBER}), ("masked", set[str]())])
@on_asyncio
async def test_an_erased_payment_is_paid_twice_only_by_its_own_number(
    sqlite_file_url: str, spelling: str, twice: set[str]
) -> None:
    """The sale of a stranger is none to refund; where the list shows no whole number, nothing tells them apart."""
    world = make_world(sqlite_file_url)
    world.service.list.spell = SPELLINGS[spelling]
    async with world.client() as client:
        await pay_and_settle(world, client, "erased", NUMBER)
        await SQLStore(sqlite_file_url).erase(phone_number=NUMBER)
        strangers = {}
        for number in (NUMBER, OTHER):
            payment = world.service.make("collection", number, "5000")
            world.service.finish(payment)
            strangers[payment.id] = number
        await anyio.sleep(600)
        today = world.utcnow().date()
        report = await client.payments.audit(from_date=today, to_date=today)
    kinds = {strangers[str(each.transaction_id)]: str(each.kind) for each in report.differences}
    assert kinds == {number: "paid_twice" if number in twice else "unclaimed" for number in (NUMBER, OTHER)}


async def test_texts_of_the_service_that_name_the_customer_go(sqlite_file_url: str) -> None:
    """Of an answer, of a refusal in the history, and of a final state, also one that comes later; a code stays.

    A note about another final state than the first goes, too.
    """
    world, order = make_world(sqlite_file_url), Order("order-1", "disbursements", NUMBER)
    world.service.acknowledge = lambda row: {**row, "message": f"sent to {NAME}"}
    async with world.client() as client:
        refuse = error(403, "insufficient_permissions", f"{NAME} is barred")
        await world.answered(client, order, lambda *_: refuse, made=False)
        await world.pay(client, [order])
        (payment,) = world.service.payments
        payment.failure_reason = f"{NAME} has moved"
        world.service.finish(payment, "FAILED")
        await settle(client)
        assert everything(sqlite_file_url).count(NAME) == 4  # the last in the message to pollers
        payment.status = "SUCCESS"
        await world.read(client)
        await client.payments.explain(payment.id, note=f"{NAME} says that it failed")
        await SQLStore(sqlite_file_url).erase(phone_number=NUMBER)
        assert NAME not in everything(sqlite_file_url)
        for state in ("SUCCESS", "FAILED"):
            payment.status = state
            await client.payments.recover({"order-1": payment.id}, note="asked the service")
            assert NAME not in everything(sqlite_file_url)
        record = await world.get(client, "order-1")
        assert record.transaction is not None and record.transaction.failure_reason == "erased"
        assert [each.detail for each in record.history[:4]] == ["attempt 1", "erased", "attempt 2", payment.id]


@pytest.mark.parametrize("days", [0, 32])
@on_asyncio
async def test_notes_of_transactions_without_a_payment_go(sqlite_file_url: str, days: int) -> None:
    """Of the number, also of one without payments, a month later, and where the list shows it after the note.

    Of a transaction whose whole number no list has shown, they go with the account.
    """
    world = make_world(sqlite_file_url)
    store = SQLStore(sqlite_file_url)

    def sell(number: str) -> str:
        payment = world.service.make("collection", number, "5000")
        world.service.finish(payment)
        return payment.id

    async with world.client() as client:
        await pay_and_settle(world, client, "order-1", NUMBER)
        await anyio.sleep(600)
        notes = {sell(NUMBER): "mine", sell(OTHER): "other", "t-000900": "never shown"}
        await world.read(client)
        notes[sell(NUMBER)] = "shown later"
        async for change in client.payments.changes(consumer="books", start="oldest", forever=False):
            if change.transaction is not None and change.key is None:
                await change.failed(ValueError(f"no customer of {notes[change.transaction.transaction_id]}"))
            else:
                await change.done()
        for name, note in notes.items():
            await client.payments.explain(name, note=f"{NAME}: {note}")
        await anyio.sleep(days * DAY)
        sell(STAYS_OPEN)
        await world.read(client)
    done = await store.erase(phone_number=NUMBER)
    left = everything(sqlite_file_url)
    assert [each for each in notes.values() if f"{NAME}: {each}" in left] == ["other", "never shown"]
    assert ("no customer of mine" in left, "no customer of other" in left) == (False, True)
    assert done.rows["mobilemoney_unmatched"] == 2
    await store.erase(phone_number=OTHER)
    assert "other" not in everything(sqlite_file_url)
    with pytest.raises(StoreError, match="no payment or transaction of this number"):
        await store.erase(phone_number=OTHER)
    await store.erase_account("default")
    left = everything(sqlite_file_url)
    assert NAME not in left and mask_phone_number(STAYS_OPEN) not in left


async def test_the_number_of_a_mere_transaction_is_erased_again(sqlite_file_url: str, tmp_path: Any) -> None:
    """In a backup in which no payment has it."""
    world = make_world(sqlite_file_url)
    backup = f"sqlite:///{tmp_path}/backup.db"
    async with world.client() as client:
        await pay_and_settle(world, client, "order-1", NUMBER)
        world.service.make("collection", OTHER, "7")
        await world.read(client)
        back_up(sqlite_file_url, backup)
        kept = await SQLStore(sqlite_file_url).erase(phone_number=OTHER)
        world.service.make("collection", OTHER, "8")
        await world.read(client)
        again = await SQLStore(sqlite_file_url).erase(phone_number=OTHER)
        assert again.rows == {"mobilemoney_unmatched": 1}  # what was erased before counts no more
        # The transactions are still to be explained.
        assert [each.phone_number for each in await client.payments.unclaimed()] == ["erased", "erased"]
    restored = SQLStore(backup)
    (done,) = await restored.repeat_erasures([kept])
    assert (done.digest, done.rows) == (kept.digest, {"mobilemoney_unmatched": 1})
    assert mask_phone_number(OTHER) not in everything(backup)
    assert await restored.repeat_erasures([kept]) == []
    restored.close()


async def test_a_backup_from_before_the_key_of_the_digests_is_refused(sqlite_file_url: str) -> None:
    """Nothing shows whether its numbers are those of the list: an operator is not told that all is done."""
    kept = Erasure(account="shop-1", digest="0" * 64, at=NOON)
    async with shop(sqlite_file_url) as (client, store, _):
        assert await store.repeat_erasures([kept]) == []  # it has no number
        given: dict[str, Any] = {"type": "disbursement", "phone_number": NUMBER, "amount": 3}
        await client.payments.enqueue(**given, idempotency_key="order-1")
        await client.payments.cancel("order-1", note="no")
        with pytest.raises(StoreError):
            await store.repeat_erasures([kept])
        await client.collections.create(phone_number=OTHER, amount=3, idempotency_key="order-2")
        with pytest.raises(StoreError):  # its key is newer than the list
            await store.repeat_erasures([kept])
        later = await store.erase(phone_number=NUMBER)
        assert await store.repeat_erasures([later]) == []
