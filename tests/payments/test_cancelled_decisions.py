"""A decision that is cancelled, such as by a web request whose client has left, is made as a whole or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

import anyio
import attrs
import pytest

from mobilemoney_async import (
    AsyncClient,
    DisbursementLimits,
    LimitExceeded,
    Merchants,
    MobileMoneyError,
    PayoutBatch,
    RateLimiter,
)
from mobilemoney_async.database.engine import Database
from tests.payments.platform import NUMBER, PAYS, Platform
from tests.payments.service import rows
from tests.payments.steps import dispatch, settle

FAILS = "+255780000089"
FILE = f"phone_number,amount\n{PAYS},50000\n{FAILS},60000\n"
# All that the decisions change, without times and ids that differ from run to run.
CHANGED = (
    "state FROM mobilemoney_payment_records ORDER BY key",
    "state FROM mobilemoney_batches ORDER BY state",
    "count(*) FROM mobilemoney_batch_lines",
    "explained_at IS NOT NULL FROM mobilemoney_unmatched ORDER BY transaction_id",
    "went_backwards FROM mobilemoney_accounts WHERE account = 'shop-1'",
    "state FROM mobilemoney_accounts WHERE account = 'shop-1'",
    "count(*) FROM mobilemoney_erasures",
    "count(*) FROM mobilemoney_payment_records WHERE phone_number LIKE 'erased%'",
)


@attrs.define(eq=False)
class Office:
    """Office of a platform, in which one account is looked after."""

    platform: Platform
    merchants: Merchants
    client: AsyncClient
    batch: PayoutBatch | None = None
    stranger: str = ""

    def look(self) -> list[Any]:
        """Return what decisions change, as it is in the database."""
        return [rows(self.platform.url, f"SELECT {each}") for each in CHANGED]


Act: TypeAlias = Callable[[Office], Awaitable[object]]


async def propose(office: Office) -> None:
    office.batch = await office.client.payouts.propose(FILE, name="wages", by="Asha")


async def approve(office: Office) -> None:
    assert office.batch is not None
    await office.client.payouts.approve(office.batch.id, by="Juma", digest=office.batch.digest)


async def retry(office: Office) -> None:
    assert office.batch is not None
    office.batch = await office.client.payouts.retry(office.batch.id, by="Asha")


async def stop(office: Office) -> None:
    assert office.batch is not None
    await office.client.payouts.cancel(office.batch.id, by="Neema")


async def send(office: Office) -> None:
    await dispatch(office.client, 5)
    await settle(office.client)


async def pay(office: Office) -> None:
    await office.client.collections.create(PAYS, 1000, idempotency_key="order-1")
    await settle(office.client)


async def pay_elsewhere(office: Office) -> None:
    sandbox = office.platform.sandbox
    async with sandbox.client(auth=sandbox.tokens["shop-1"]) as other_system:
        office.stranger = (await other_system.disbursements.create(NUMBER, 7000)).transaction_id
    for _ in range(2):
        await office.client.transactions.page()
        await anyio.sleep(200)


async def erase(office: Office) -> None:
    await office.platform.store().erase(phone_number=PAYS)


async def erase_account(office: Office) -> None:
    await office.platform.store().erase_account("shop-1")


async def explain(office: Office) -> None:
    await office.client.payments.explain(office.stranger, note="Asha: the till")


async def recover(office: Office) -> None:
    await office.client.payments.recover({"imported": office.stranger}, note="Asha: the till")


async def restored(office: Office) -> None:
    await office.client.payments.restored(note="Asha: backup of Monday")


async def suspend(office: Office) -> None:
    await office.merchants.suspend("shop-1", note="late")


async def remove(office: Office) -> None:
    await office.merchants.remove("shop-1", note="closed")


async def audit(office: Office) -> None:
    today = office.platform.sandbox.now.date()
    await office.client.payments.audit(from_date=today - timedelta(days=1), to_date=today)


async def overview(office: Office) -> None:
    _ = [each async for each in office.merchants.overview(everything=True)]


@pytest.mark.parametrize(
    ("before", "act"),
    [
        ((), propose),
        ((propose,), approve),
        ((propose, approve), stop),
        pytest.param((propose, approve, send), retry, marks=pytest.mark.slow),
        pytest.param((propose, approve, send, retry), approve, marks=pytest.mark.slow),
        ((pay,), erase),
        ((pay,), erase_account),
        ((pay, pay_elsewhere), explain),
        ((pay, pay_elsewhere), recover),
        ((pay,), restored),
        ((pay,), suspend),
        ((pay,), remove),
        ((pay,), audit),
        ((pay,), overview),
    ],
)
async def test_a_decision_is_made_as_a_whole_or_not_at_all(
    sqlite_file_url: str, monkeypatch: pytest.MonkeyPatch, before: tuple[Act, ...], act: Act
) -> None:
    """Wherever the cancellation strikes, before and after each use of the store; made again, it is made once."""
    platform, plain = Platform(sqlite_file_url), Database._run
    uses, at, scope = 0, 0, anyio.CancelScope()

    async def run(database: Database, work: Any) -> Any:
        nonlocal uses
        uses += 1
        if uses == at:
            scope.cancel()
        result = await plain(database, work)
        if uses == -at:
            scope.cancel()
        return result

    async with platform.merchants() as merchants:
        office = Office(platform, merchants, await merchants.client("shop-1"))
        for each in before:
            await each(office)
        first, seen = office.look(), list[list[Any]]()
        with monkeypatch.context() as patch:
            patch.setattr(Database, "_run", run)
            for place in range(2, 40):
                uses, at = 0, place // 2 * (-1) ** place
                with anyio.CancelScope() as scope:
                    await act(office)
                if not scope.cancelled_caught:
                    break
                seen.append(office.look())
                if seen[-1] != first:
                    break
            else:
                pytest.fail("it never ends")
        last = office.look()
        with suppress(MobileMoneyError):  # it says that this is done already
            await act(office)
        assert office.look() == last or act is propose  # each proposal is a batch
    assert (last == first) is (act in {audit, overview})
    assert all(each in (first, last) for each in seen)


async def test_a_cancelled_payment_that_was_not_sent_uses_up_no_limit(sqlite_file_url: str) -> None:
    """One that waited for its turn, and was cancelled, leaves the day's limit to the next."""
    platform = Platform(sqlite_file_url)
    sandbox = platform.sandbox
    async with sandbox.client(
        auth=sandbox.tokens["shop-1"],
        store=platform.store(),
        rate_limiter=RateLimiter(per_minute=60, burst=1),
        disbursement_limits=DisbursementLimits(per_day=1000),
    ) as client:
        await client.transactions.list()
        with anyio.move_on_after(0.2) as scope:
            await client.disbursements.create(NUMBER, 1000, idempotency_key="left")
        assert scope.cancelled_caught
        await client.disbursements.create(PAYS, 1000, idempotency_key="next")
        with pytest.raises(LimitExceeded):
            await client.disbursements.create(NUMBER, 1000, idempotency_key="left")
    assert platform.paid == [(PAYS, "1000")]
