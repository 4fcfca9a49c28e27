"""Second service: the contract written once more, from contract.md alone, as a transport that misbehaves on request.

It shares no code with the package, nor with the sandbox. Each point that the contract leaves open is a setting here:
the answer to a create, and the order, freshness, range and spelling of the list. The defaults are harmless.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import anyio
import attrs
import httpx

from tests.support.server import Request, Response

BASE_URL = "https://second.example/v1"
TOKEN = "token.of.merchant-1"
_FIRST_MOMENT = datetime.min.replace(tzinfo=UTC)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
KINDS = {"c2b": ("collection", "PENDING"), "b2c": ("disbursement", "PROCESSING")}


@attrs.define(eq=False, kw_only=True)
class Payment:
    """One transaction at the service.

    Attributes:
        id: Its id, by default its number in order of creation.
        owner: The merchant's key of it, which the create carried as the extra field `order`. No answer shows it.
    """

    number: int
    type: str
    amount: str
    phone_number: str
    status: str
    created_at: datetime
    merchant_id: str
    external_id: str | None = None
    owner: str | None = None
    ended_at: datetime | None = None
    failure_reason: str = "RECIPIENT_NOT_FOUND"
    id: str = attrs.field(default=attrs.Factory(lambda self: f"t-{self.number:06d}", takes_self=True))

    @property
    def reference(self) -> str:
        return f"R{self.number:08d}"


Row: TypeAlias = dict[str, Any]


@attrs.frozen(kw_only=True)
class Event:
    """One event at the service or at the merchant, in the order of `SecondService.log`.

    Attributes:
        what: ``post`` (a create arrived), ``page`` (of the list), ``lookup``, or ``word``: an operator has confirmed
            that a payment does not exist.
        at: Its time on the service's clock.
        owner: The merchant's key, of a create and of a word.
        made: The ids of the transactions that a create has made.
    """

    what: str
    at: datetime
    owner: str | None = None
    made: tuple[str, ...] = ()


@attrs.define(eq=False, kw_only=True)
class ListBehaviour:
    """The list as this service shows it (contract, section 4.4: order, freshness and default range are not shown).

    Attributes:
        lag: How far behind the list is.
        default_days: How much of the past it shows where no `from` is sent; None for all.
        most_days: How much of the past it shows, whatever is asked for; None for all.
        empty_until: Until when it shows nothing, with a `total_count` of 0.
        newest_first: Its order.
        order: Another order: a key to sort its payments by.
        total_count: The count that it shows for a true count.
        page_size: The most rows of a page.
        all_merchants: Whether it shows the payments of every merchant.
        spell: Changes a row before it is shown; it may return something that is no row.
        hide: The payments that it never shows.
        extra: Rows that it shows in addition on each first page, readable or not.
        beyond: The page that it shows for one beyond its last, by the two numbers; raises `LookupError` to refuse it.
        cut: Changes the rows of a page, by its number.
        before: Called before each page, with the number of pages shown so far: the list changes while it is read.
    """

    lag: timedelta = timedelta(0)
    default_days: float | None = None
    most_days: float | None = None
    empty_until: datetime | None = None
    newest_first: bool = True
    order: Callable[[Payment], Any] | None = None
    total_count: Callable[[int], int] = lambda count: count
    page_size: int = 100
    all_merchants: bool = False
    spell: Callable[[Row], Any] = lambda row: row
    hide: Callable[[Payment], bool] = lambda payment: False
    extra: list[Any] = attrs.field(factory=list)
    beyond: Callable[[int, int], int] = lambda page, last: page
    cut: Callable[[int, list[Any]], list[Any]] = lambda page, rows: rows
    before: Callable[[int], None] = lambda shown: None


def error(status: int, code: str | None, message: str = "no", **more: Any) -> httpx.Response:
    """Return an error of the payment service, in the shape of the contract's section 7."""
    body: Row = {"status": "error", "message": message, **more}
    if code is not None:
        body["error_code"] = code
    return httpx.Response(status, json=body)


def dropped(request: httpx.Request) -> httpx.ReadError:
    """Return the failure of a connection that was closed before an answer came."""
    return httpx.ReadError("connection closed", request=request)


CreateAnswer: TypeAlias = Callable[[httpx.Request, "Payment | None"], "httpx.Response | None"]


@attrs.define(eq=False, kw_only=True)
class SecondService(httpx.AsyncBaseTransport):
    """The service as an httpx transport.

    Attributes:
        utcnow: The service's clock.
        merchants: The merchant of each bearer token.
        payments: All transactions, oldest first.
        posts: How many creates have arrived.
        lists: How many pages of the list were asked for.
        lookups: How many single transactions were asked for.
        log: All of these, one after another.
        queries: What each request has asked for behind its path.
        list: How the list behaves.
        makes: Whether a create makes a transaction.
        repeats: How many transactions one create makes, as behind a proxy that repeats requests.
        answer_create: Answers a create in place of the acknowledgement; returns None for the acknowledgement, and may
            raise.
        answer_list: Answers a request for a page in place of it; returns None for the page, and may raise.
        answer_lookup: The same for a single transaction.
        acknowledge: Changes the acknowledgement before it is sent.
        answer_after: Seconds that a create's answer takes, once the payment is made.
        latency: Seconds that every other answer takes.
        finish_after: Seconds until a payment succeeds; None for never.
        shows_clock: Whether the answers have a Date header.
    """

    utcnow: Callable[[], datetime]
    merchants: dict[str, str] = attrs.field(factory=lambda: {TOKEN: "merchant-1"})
    payments: list[Payment] = attrs.field(factory=list)
    posts: int = 0
    lists: int = 0
    lookups: int = 0
    log: list[Event] = attrs.field(factory=list)
    queries: list[httpx.QueryParams] = attrs.field(factory=list)
    list: ListBehaviour = attrs.field(factory=ListBehaviour)
    makes: bool = True
    repeats: int = 1
    answer_create: CreateAnswer = lambda request, payment: None
    answer_list: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
    answer_lookup: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
    acknowledge: Callable[[Row], Row] = lambda row: row
    answer_after: float = 0.0
    latency: float = 0.0
    finish_after: float | None = None
    shows_clock: bool = True

    # What happens at the service

    def make(self, type: str, phone_number: str, amount: str, **more: Any) -> Payment:
        """Make a transaction, as another system of the merchant may, or an operator at the dashboard."""
        payment = Payment(
            number=len(self.payments) + 1,
            type=type,
            amount=amount,
            phone_number=phone_number,
            **{
                "status": dict(KINDS.values())[type],
                "created_at": self.utcnow(),
                "merchant_id": "merchant-1",
                **more,
            },
        )
        self.payments.append(payment)
        return payment

    def finish(self, payment: Payment, status: str = "SUCCESS") -> None:
        """Bring a transaction to a final state."""
        payment.status, payment.ended_at = status, self.utcnow()

    # The wire

    async def handle(self, request: Request) -> Response:
        """Answer a request on a socket."""
        content, url = await request.read(), f"http://second.example{request.target}"
        sent = httpx.Request(request.method, url, headers=request.headers, content=content)
        answer = await self.handle_async_request(sent)
        return Response(answer.status_code, answer.content, {"content-type": "application/json"})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1")
        self.queries.append(request.url.params)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        merchant_id = self.merchants.get(token) if scheme == "Bearer" else None
        if merchant_id is None:
            body = {"success": False, "error": "invalid_token", "message": "malformed or expired"}
            return self._dated(httpx.Response(401, json=body))
        self._settle()
        if request.method == "POST" and path.startswith("/payment-service/airtel/"):
            answer = self._create(request, path.rpartition("/")[2], await request.aread(), merchant_id)
            await anyio.sleep(self.answer_after)
            return self._dated(answer)
        await anyio.sleep(self.latency)
        query = {name: values[0] for name, values in parse_qs(request.url.query.decode()).items()}
        if path == "/payment-service/transactions":
            self.list.before(self.lists)
            self.lists += 1
            self.log.append(Event(what="page", at=self.utcnow()))
            return self._dated(self.answer_list(request) or self._page(query, merchant_id))
        if path.startswith("/payment-service/transaction"):
            self.lookups += 1
            self.log.append(Event(what="lookup", at=self.utcnow()))
            one = self._one(path.removeprefix("/payment-service/transaction"), query, merchant_id)
            return self._dated(self.answer_lookup(request) or one)
        return self._dated(httpx.Response(200, json={"status": "success"}))

    def _dated(self, response: httpx.Response) -> httpx.Response:
        if self.shows_clock:
            response.headers["date"] = self.utcnow().strftime("%a, %d %b %Y %H:%M:%S GMT")
        return response

    def _settle(self) -> None:
        if self.finish_after is None:
            return
        for payment in self.payments:
            due = payment.created_at + timedelta(seconds=self.finish_after)
            if payment.ended_at is None and due <= self.utcnow():
                payment.status, payment.ended_at = "SUCCESS", due

    def _create(self, request: httpx.Request, kind: str, content: bytes, merchant_id: str) -> httpx.Response:
        self.posts += 1
        body = json.loads(content)
        kind_of_payment, state = KINDS[kind]
        made = [
            self.make(
                kind_of_payment,
                body["phone_number"],
                body["amount"],
                merchant_id=merchant_id,
                external_id=body.get("external_id"),
                owner=body.get("order"),
            )
            for _ in range(self.repeats if self.makes else 0)
        ]
        ids = tuple(each.id for each in made)
        self.log.append(Event(what="post", at=self.utcnow(), owner=body.get("order"), made=ids))
        payment = made[0] if made else None
        answer = self.answer_create(request, payment)
        if answer is not None:
            return answer
        assert payment is not None, "a service that makes nothing has to answer by `answer_create`"
        acknowledgement = {
            "status": "success",
            "message": "accepted",
            "transaction_id": payment.id,
            "reference": payment.reference,
            "amount": body["amount"],
            "currency": "TZS",
            "phone_number": body["phone_number"],
            "status_code": state,
        }
        return httpx.Response(200, json=self.acknowledge(acknowledgement))

    def _one(self, rest: str, query: dict[str, str], merchant_id: str) -> httpx.Response:
        wanted = {"id": rest.removeprefix("/")} if rest.startswith("/") else query
        for payment in self.payments:
            shown = {"id": payment.id, "reference": payment.reference, "external_id": payment.external_id}
            if payment.merchant_id == merchant_id and wanted.items() <= shown.items():
                return httpx.Response(200, json={"status": "success", "transaction": self._row(payment)})
        return error(404, "TRANSACTION_NOT_FOUND", "no such transaction")

    def _page(self, query: dict[str, str], merchant_id: str) -> httpx.Response:
        now, behaviour = self.utcnow(), self.list
        page, limit = int(query.get("page", 1)), min(int(query.get("limit", 20)), behaviour.page_size)
        start, end = _FIRST_MOMENT, now - behaviour.lag if behaviour.lag else _LAST_MOMENT
        if behaviour.most_days is not None:
            start = max(start, now - timedelta(days=behaviour.most_days))
        if "from" in query:
            start = max(start, _day(query["from"]))
        elif behaviour.default_days is not None:
            start = max(start, now - timedelta(days=behaviour.default_days))
        if "to" in query:
            end = min(end, _day(query["to"]) + timedelta(days=1) - timedelta(microseconds=1))
        filters = [(key, query[key]) for key in ("status", "type") if key in query]
        shown = [
            each
            for each in self.payments
            if start <= each.created_at <= end
            and (behaviour.all_merchants or each.merchant_id == merchant_id)
            and not behaviour.hide(each)
            and all(getattr(each, key) == value for key, value in filters)
        ]
        if behaviour.empty_until is not None and now < behaviour.empty_until:
            shown = []
        if behaviour.newest_first:
            shown.reverse()
        if behaviour.order is not None:
            shown.sort(key=behaviour.order)
        last = max(1, -(-len(shown) // limit))
        try:
            page = page if page <= last else behaviour.beyond(page, last)
        except LookupError:
            return error(404, None, "no such page")
        rows = [behaviour.spell(self._row(each)) for each in shown[(page - 1) * limit : page * limit]]
        rows = behaviour.cut(page, rows)
        if page == 1:
            rows = [*behaviour.extra, *rows]
        pagination = {
            "current_page": page,
            "total_pages": -(-behaviour.total_count(len(shown)) // limit),
            "total_count": behaviour.total_count(len(shown)),
            "per_page": limit,
        }
        return httpx.Response(200, json={"status": "success", "transactions": rows, "pagination": pagination})

    @staticmethod
    def _row(payment: Payment) -> Row:
        row: Row = {
            "id": payment.id,
            "reference": payment.reference,
            "type": payment.type,
            "amount": payment.amount,
            "currency": "TZS",
            "phone_number": payment.phone_number,
            "network": "airtel_money",
            "status": payment.status,
            "created_at": _text(payment.created_at),
            "merchant_id": payment.merchant_id,
        }
        if payment.external_id is not None:
            row["external_id"] = payment.external_id
        if payment.status == "SUCCESS":
            row["completed_at"] = _text(payment.ended_at or payment.created_at)
            if payment.type == "collection":
                fee, amount = Decimal("0.00"), Decimal(payment.amount).quantize(Decimal("0.01"))
                row["fees"] = {"merchant_fee": str(fee), "customer_fee": str(fee), "total_fee": str(fee)}
                row["settlement"] = {
                    "net_amount": str(amount),
                    "settled_at": row["completed_at"],
                    "settlement_batch": "B1",
                }
        elif payment.status == "FAILED":
            row |= {
                "failed_at": _text(payment.ended_at or payment.created_at),
                "failure_reason": payment.failure_reason,
            }
        return row


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
