"""A merchant at the second service, and the laws of evidence: they hold however the list and the answers behave.

The laws are read off the service's own log, by the merchant's key that each create carries in the extra field `order`
and that no answer shows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime, timedelta
from typing import Any

import anyio
import attrs
import httpx
import pytest

from mobilemoney_async import (
    Acknowledgement,
    AsyncClient,
    MobileMoneyError,
    PaymentRecord,
    PaymentState,
    RateLimiter,
    SQLStore,
)
from tests.support.fakes import NOON
from tests.support.scale import soak
from tests.support.second_service import (
    BASE_URL,
    TOKEN,
    Event,
    ListBehaviour,
    Payment,
    Row,
    SecondService,
    dropped,
    error,
)

KINDS = ["collections", "disbursements"]
TYPES = {"collections": "collection", "disbursements": "disbursement"}
GRACE = 120.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

# Both databases and both loops, in half the time of all four pairs.
BOTH = pytest.mark.parametrize(
    ("anyio_backend", "store_url"), [("asyncio", "sqlite"), ("trio", "postgresql")], indirect=True
)

# The same with `resend` off and on; all four combinations at full scale.
RESEND = pytest.mark.parametrize(
    ("anyio_backend", "store_url", "resend"),
    [
        pytest.param("asyncio", "sqlite", False, id="sqlite"),
        pytest.param("trio", "postgresql", True, id="postgresql-resend"),
        *(
            pytest.param(backend, store, resend, id=f"{store}{'-resend' * resend}", marks=pytest.mark.soak)
            for backend, store, resend in (("trio", "sqlite", True), ("asyncio", "postgresql", False))
            if soak(4) >= 4
        ),
    ],
    indirect=["anyio_backend", "store_url"],
)


def number(last: int) -> str:
    """Return a phone number. The first 900 differ in the digits that a masked number shows."""
    return f"+25568{1000 + last // 900:04d}{100 + last % 900:03d}"


@attrs.frozen
class Order:
    """Payment that the merchant wants."""

    key: str
    kind: str
    phone_number: str
    amount: int = 5000


def order(kind: str, key: str = "k", last: int = 1) -> Order:
    """Return an order of the usual amount."""
    return Order(key, kind, number(last))


@attrs.define(eq=False)
class World:
    """A merchant's clients and their store, and the second service, on one virtual clock.

    Attributes:
        url: Of the store.
        service: The service.
        utcnow: The clock of both.
        resend: Whether absent collections are sent again without an operator.
        sole_writer: As of the store.
    """

    url: str
    service: SecondService
    utcnow: Callable[[], datetime]
    resend: bool = False
    sole_writer: bool | None = None

    def client(self, **options: Any) -> AbstractAsyncContextManager[AsyncClient]:
        """Return a client of a new process."""
        chosen: dict[str, Any] = {
            "auth": TOKEN,
            "transport": self.service,
            "utcnow": self.utcnow,
            "store": SQLStore(
                self.url, grace=GRACE, resend_absent_collections=self.resend, sole_writer=self.sole_writer
            ),
            "rate_limiter": RateLimiter(per_minute=600_000, burst=10_000),
        }
        return AsyncClient(options.pop("base_url", BASE_URL), **{**chosen, **options})

    async def attempt(self, client: AsyncClient, order: Order) -> Acknowledgement | MobileMoneyError:
        """Ask for a payment, and return the answer or the error."""
        creates = client.collections if order.kind == "collections" else client.disbursements
        try:
            return await creates.create(
                phone_number=order.phone_number,
                amount=order.amount,
                idempotency_key=order.key,
                extra={"order": order.key},
            )
        except MobileMoneyError as error:
            return error

    async def pay(self, client: AsyncClient, orders: Iterable[Order]) -> None:
        """Make payments that meet no fault: afterwards the store knows their transactions."""
        for order in orders:
            answer = await self.attempt(client, order)
            assert isinstance(answer, Acknowledgement), answer

    async def lose(self, client: AsyncClient, order: Order, *, made: bool) -> Acknowledgement | MobileMoneyError:
        """Ask for a payment that the service makes or not, and whose answer is lost."""
        return await self.answered(client, order, lose_answer, made=made)

    async def answered(
        self,
        client: AsyncClient,
        order: Order,
        answer: Callable[[httpx.Request, Payment | None], httpx.Response | None],
        *,
        made: bool,
    ) -> Acknowledgement | MobileMoneyError:
        """Ask for a payment that the service makes or not, and answers so."""
        service = self.service
        before = service.answer_create, service.makes
        service.answer_create, service.makes = answer, made
        try:
            return await self.attempt(client, order)
        finally:
            service.answer_create, service.makes = before

    async def confirm(self, client: AsyncClient, key: str) -> None:
        """Let an operator say that a payment does not exist."""
        await client.payments.confirm_absent(key, note="Asha looked on the dashboard")
        self.service.log.append(Event(what="word", at=self.utcnow(), owner=key))

    async def get(self, client: AsyncClient, key: str) -> PaymentRecord:
        """Return the record of a key that was used."""
        record = await client.payments.get(key)
        assert record is not None, key
        return record

    async def reconcile(self, client: AsyncClient, *pauses: float) -> None:
        """Reconcile after each of some pauses, in seconds."""
        for pause in pauses:
            await anyio.sleep(pause)
            with suppress(MobileMoneyError):
                await client.payments.reconcile()

    async def come_to_rest(self, client: AsyncClient) -> None:
        """Let the list be as it should, and the time pass in which everything has been looked for again."""
        self.service.list = ListBehaviour()
        self.service.answer_list = lambda request: None
        await self.reconcile(client, GRACE + MINUTE, GRACE + MINUTE, 5 * HOUR, DAY)
        await self.read(client)

    async def read(self, client: AsyncClient) -> None:
        """Read the list twice, with the time between that makes a row which no payment claims a suspicion."""
        for pause in (0.0, GRACE + MINUTE):
            await anyio.sleep(pause)
            async for _ in client.transactions.list():
                pass

    async def hold(self, client: AsyncClient, *, at_end: bool = False, known: Collection[str] = ()) -> None:
        """Check the laws; at the end, an operator knows of some transactions."""
        records = {record.key: record for record in await client.payments.list()}
        wrong = broken_laws(self.service, records)
        if at_end:
            since = self.utcnow() - timedelta(days=5)
            wrong += unaccounted(self.service, records, {*await unclaimed(client), *known}, since=since)
        assert not wrong, "\n".join(wrong)

    def made(self, key: str) -> list[str]:
        """Return the transactions of a key."""
        return [payment.id for payment in self.service.payments if payment.owner == key]

    def posts(self, key: str) -> int:
        """Return how often a key was sent."""
        return sum(event.what == "post" and event.owner == key for event in self.service.log)


def make_world(url: str, *, resend: bool = False) -> World:
    """Return a world whose clock begins at noon, and follows the loop."""
    began: list[float] = []

    def utcnow() -> datetime:
        began[:] = began or [anyio.current_time()]
        return NOON + timedelta(seconds=anyio.current_time() - began[0])

    return World(url, SecondService(utcnow=utcnow), utcnow, resend)


def lose_answer(request: httpx.Request, payment: Payment | None) -> httpx.Response:
    """Close the connection before the answer."""
    raise dropped(request)


def refuse(request: httpx.Request, payment: Payment | None) -> httpx.Response:
    """Refuse a create for certain."""
    return error(403, "insufficient_permissions")


def refuse_softly(request: httpx.Request, payment: Payment | None) -> httpx.Response:
    """Refuse a create without a code of the contract."""
    return error(400, "TRANSACTION_TIMEOUT")


def unreadable(request: httpx.Request) -> httpx.Response:
    """Close the connection before a page of the list."""
    raise dropped(request)


def masked(row: Row) -> Row:
    """Return a row without the middle of its number."""
    return {**row, "phone_number": f"{row['phone_number'][1:6]}***{row['phone_number'][-4:]}"}


def national(row: Row) -> Row:
    """Return a row with its number as it is dialled in the country."""
    return {**row, "phone_number": f"0{row['phone_number'][4:]}"}


def reshuffled() -> dict[str, Any]:
    """Return a behaviour of the list: it is in another order on each page."""
    turn = [0]

    def begin(shown: int) -> None:
        turn[0] = shown

    return {"order": lambda payment: hash((turn[0], payment.number)), "before": begin}


def last_again(page: int, last: int) -> int:
    """Return the last page for one behind it."""
    return last


def outcome(record: PaymentRecord) -> str:
    """Return how the store sees a payment: ``found``, ``open`` (openly unknown), ``absent``, or its state."""
    if record.transaction_id is not None:
        return "found"
    if is_openly_unknown(record):
        return "open"
    return "absent" if record.state is PaymentState.ABSENT else str(record.state)


def is_openly_unknown(record: PaymentRecord) -> bool:
    """Return whether a payment is unknown and says why: by its candidates, or by a reason."""
    return record.state is PaymentState.UNKNOWN and bool(record.candidates or record.reason)


async def unclaimed(client: AsyncClient) -> set[str]:
    """Return the transactions that no payment claims."""
    return {each.transaction_id for each in await client.payments.unclaimed()}


def broken_laws(service: SecondService, records: Mapping[str, PaymentRecord], *, grace: float = GRACE) -> list[str]:
    """Return how the laws are broken that hold at any time. Of records without a fault there is none.

    - A key whose payment was made is sent again only after an operator's word, and after a look in the list that is not
      older than `grace`.
    - A payment that exists is not absent, unless an operator said so since it was made.
    - A record's transaction is the one that the service made for its key, and no two records have the same one.
    """
    wrong = [*_sent_twice(service, grace)]
    for key, record in records.items():
        if record.state is PaymentState.ABSENT and _exists(service, key):
            wrong.append(f"{key} is ABSENT, and exists")
    owners = {payment.id: payment.owner for payment in service.payments}
    claimed: dict[str, str] = {}
    for key, record in records.items():
        if record.transaction_id is None:
            continue
        owner = owners.get(record.transaction_id, "nothing")
        if owner != key:
            wrong.append(f"{key} was taken for {record.transaction_id}, which is {owner or 'a stranger'}")
        if record.transaction_id in claimed:
            wrong.append(f"{key} and {claimed[record.transaction_id]} have one transaction")
        claimed[record.transaction_id] = key
    return wrong


def _sent_twice(service: SecondService, grace: float) -> Iterable[str]:
    """Yield the creates that a key which had made a payment was not allowed to send."""
    for key in {event.owner for event in service.log if event.what == "post" and event.owner is not None}:
        has_made = has_word = False
        looked_at: datetime | None = None
        for event in service.log:
            if event.what == "page":
                looked_at = event.at
            elif event.owner == key and event.what == "word":
                has_word = True
            elif event.owner == key and event.what == "post":
                if has_made and not has_word:
                    yield f"{key} was sent again although its payment exists"
                elif has_made and (looked_at is None or looked_at < event.at - timedelta(seconds=grace)):
                    yield f"{key} was sent again after a word, without a look"
                if event.made:
                    has_made, has_word, looked_at = True, False, None


def _exists(service: SecondService, key: str) -> bool:
    """Return whether the last word on a key, if there is any, is older than a payment of it."""
    exists = False
    for event in service.log:
        if event.owner == key:
            exists = (exists or bool(event.made)) and event.what != "word"
    return exists


def unaccounted(
    service: SecondService,
    records: Mapping[str, PaymentRecord],
    reports: Collection[str],
    *,
    since: datetime = NOON,
) -> list[str]:
    """Return the transactions of our merchant that stay unnoticed in the end.

    Each must be claimed by a record, be reported as unclaimed, be a candidate, or be that of a payment which is openly
    unknown. Strangers, second transactions and what an operator's word is about are reported since a time only.
    """
    claimed = {record.transaction_id for record in records.values()}
    candidates = {each for record in records.values() for each in record.candidates}
    wrong = []
    for payment in service.payments:
        if payment.merchant_id != "merchant-1" or payment.id in {*claimed, *candidates, *reports}:
            continue
        record = None if payment.owner is None else records.get(payment.owner)
        if record is not None and is_openly_unknown(record):
            continue
        alone = payment.owner is not None and [each.owner for each in service.payments].count(payment.owner) == 1
        has_word = record is not None and record.state is PaymentState.RELEASED
        if (alone and not has_word) or payment.created_at >= since:
            state = "no record" if record is None else str(record.state)
            wrong.append(f"{payment.id} of {payment.owner or 'a stranger'} ({state}) is neither claimed nor reported")
    return wrong
