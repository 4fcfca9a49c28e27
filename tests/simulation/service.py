"""The service of a world, from contract.md alone: it keeps the truth, and does not always tell it.

Shares no code with the package. What it is by nature (order and spelling of its list, its clock) and how often it lies
are drawn from the seed.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import attrs

Row: TypeAlias = dict[str, Any]
# Fields of a row that may hold anything, and hide nothing.
SIDE_FIELDS = ("reference", "network", "merchant_id", "completed_at", "failed_at", "fees", "settlement")
KINDS = {"c2b": ("collection", "PENDING"), "b2c": ("disbursement", "PROCESSING")}
ENDS = {
    "collection": (("SUCCESS", 6), ("FAILED", 2), ("TIMEOUT", 1)),
    "disbursement": (("SUCCESS", 6), ("FAILED", 1), ("INSUFFICIENT_FUNDS", 1)),
}
EMAIL, PASSWORD = "asha@shop.example", "a-password-that-nobody-shows"
MERCHANT = "merchant-1"


@attrs.define(eq=False, kw_only=True)
class Payment:
    """Transaction at the service.

    Attributes:
        owner: The merchant's key, which the create carried as the extra field `order`; no answer shows it.
        request: The number of the request that made it: two of the same number were made by a proxy.
        merchant: Whose it is.
        is_denied: Whether its create was refused, or so it seemed; `is_troubled` whether no answer acknowledged it.
        end: Its final state, and `ends_at` when it gets there, in seconds of the world.
        turns_at: When it is a success after all, against the contract.
    """

    id: str
    number: int
    type: str
    amount: str
    phone_number: str
    created_at: datetime
    made_at: float
    owner: str | None
    request: int
    end: str
    ends_at: float
    merchant: str = MERCHANT
    is_denied: bool = False
    is_troubled: bool = False
    turns_at: float = math.inf

    def status(self, now: float) -> str:
        """Return its state at a time of the world."""
        if now >= self.turns_at:
            return "SUCCESS"
        first = "PENDING" if self.type == "collection" else "PROCESSING"
        return self.end if now >= self.ends_at else first


@attrs.frozen(kw_only=True)
class Nature:
    """What a service is, for the whole of its life."""

    newest_first: bool = True
    default_days: int | None = None
    default_limit: int = 20
    page_size: int = 100
    ids_grow: bool = True
    lag: float = 0.0
    has_date: bool = True
    ahead: float = 0.0
    drift: float = 0.0
    masked: bool = False
    microseconds: bool = False
    echoes_cents: bool = False
    ignores_type: bool = False
    token_life: int = 3600

    @classmethod
    def drawn(cls, dice: random.Random) -> Nature:
        """Return any nature."""
        chance = dice.random
        return cls(
            newest_first=chance() < 0.7,
            default_days=dice.choice([None, None, 1, 7, 30]),
            default_limit=dice.choice([10, 20, 50]),
            page_size=dice.choice([100, 100, 20, 10]),
            ids_grow=chance() < 0.5,
            lag=dice.choice([0.0, 0.0, 3.0, 20.0, 60.0]),
            has_date=chance() < 0.7,
            ahead=dice.choice([0.0, 0.0, dice.uniform(-5, 5), dice.uniform(-300, 300), 10_800.0]),
            drift=dice.choice([0.0, dice.uniform(-5e-5, 5e-5)]),
            masked=chance() < 0.15,
            microseconds=chance() < 0.3,
            echoes_cents=chance() < 0.2,
            ignores_type=chance() < 0.2,
            token_life=dice.choice([3600, 3600, 600]),
        )


@attrs.frozen
class Answer:
    """Answer of the service; the body may be no JSON."""

    status: int
    body: bytes
    headers: dict[str, str]
    says: str


Chance: TypeAlias = Callable[[str], bool]


def payment_error(code: str | None, **more: Any) -> Row:
    """Return an error body of the payment service."""
    return {"status": "error", "message": "no", **({} if code is None else {"error_code": code}), **more}


@attrs.define(eq=False)
class Service:
    """The service.

    Attributes:
        now: The world's time, seconds.
        began: The moment of time 0.
        chance: Whether a fault of a name strikes now.
        odd: The side fields of transactions that hold something else, by id.
        requests: How many creates have arrived, those repeated by a proxy once.
        settles: Seconds after a payment from which a listing without it says something.
    """

    now: Callable[[], float]
    began: datetime
    nature: Nature
    chance: Chance
    dice: random.Random
    settles: float
    payments: list[Payment] = attrs.field(factory=list)
    tokens: dict[str, float] = attrs.field(factory=dict)
    odd: dict[str, Row] = attrs.field(factory=dict)
    lists_empty_until: float = 0.0
    lists_lag_until: float = 0.0
    long_lag: float = 0.0
    missed: dict[Payment, float] = attrs.field(factory=dict)  # the time of the last answer without it
    hole: Payment | None = None
    hole_until: float = 0.0
    listed_at: float = -math.inf
    lied_until: float = -math.inf
    leap: float = 0.0
    on_change: list[Callable[[Payment], None]] = attrs.field(factory=list)

    def utcnow(self) -> datetime:
        """Return the service's clock."""
        now = self.now()
        return self.began + timedelta(seconds=now * (1 + self.nature.drift) + self.nature.ahead + self.leap)

    def answer(self, method: str, url: str, token: str | None, content: bytes, request: int) -> Answer:
        """Process one request."""
        parts = urlsplit(url)
        path = parts.path.removeprefix("/v1")
        if self.chance("service_clock_jumps"):
            self.leap = self.dice.choice([self.dice.uniform(-3, 3), self.dice.uniform(-60, 60)])
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if path == "/user-service/login":
            return self._login(json.loads(content))
        if token is None or self.tokens.get(token, -1) < self.now() or self.chance("token_lost"):
            self.tokens.pop(token or "", None)
            code = "token_expired" if self.dice.random() < 0.5 else "invalid_token"
            return self._json(401, {"success": False, "error": code, "message": "log in"}, code)
        if self.chance("rate_limited"):
            return self._json(429, payment_error("RATE_LIMIT_EXCEEDED", retry_after=self.dice.randint(1, 5)), "rate")
        if method == "POST" and path.startswith("/payment-service/airtel/"):
            return self._create(path.rpartition("/")[2], json.loads(content), request)
        if self.chance("server_error"):
            return self._json(self.dice.choice([500, 503]), payment_error(None), "server error")
        if path == "/payment-service/transactions":
            return self._list(query)
        if path.startswith("/payment-service/transaction"):
            return self._one(path.removeprefix("/payment-service/transaction"), query)
        return self._json(404, payment_error(None), "no such path")

    def _json(self, status: int, body: Any, says: str) -> Answer:
        return self._bytes(status, json.dumps(body).encode(), says, "application/json")

    def _bytes(self, status: int, body: bytes, says: str, kind: str) -> Answer:
        headers = {"content-type": kind, "content-length": str(len(body))}
        if self.nature.has_date:
            headers["date"] = self.utcnow().strftime("%a, %d %b %Y %H:%M:%S GMT")
        return Answer(status, body, headers, says)

    def _login(self, body: Row) -> Answer:
        if body != {"email": EMAIL, "password": PASSWORD}:
            return self._json(
                401, {"success": False, "error": "invalid_credentials", "message": "no"}, "wrong password"
            )
        token = f"secret.token.{len(self.tokens) + 1}-{self.dice.getrandbits(64):x}"
        self.tokens[token] = self.now() + self.nature.token_life
        user = {"id": 1, "email": EMAIL, "first_name": "Asha", "last_name": "Mushi", "user_type": "Merchant"}
        answer = {"success": True, "access_token": token, "token_type": "Bearer", "expires_in": self.nature.token_life}
        return self._json(200, {**answer, "user": {**user, "kyc_status": "approved"}}, "token")

    def heal(self) -> None:
        """End what is wrong with the list."""
        self.lists_empty_until = self.lists_lag_until = self.hole_until = 0.0

    def make_beside(self, path: str, body: Row, merchant: str) -> None:
        """Make a transaction of somebody who pays the same number."""
        self.make(KINDS[path.rpartition("/")[2]][0], {**body, "order": None}, 0, merchant)

    def make(self, kind: str, body: Row, request: int, merchant: str = MERCHANT) -> Payment:
        """Make a transaction; its customer's decision is drawn."""
        number = len(self.payments) + 1
        ends = ENDS[kind]
        end = self.dice.choices([each for each, _ in ends], [weight for _, weight in ends])[0]
        # Approves at once, looks for the phone, sleeps, pays late.
        after = self.dice.choices(
            [self.dice.uniform(1, 10), self.dice.uniform(10, 120), self.dice.uniform(300, 1800)], [6, 3, 1]
        )[0]
        name = number if self.nature.ids_grow else self.dice.getrandbits(40)
        payment = Payment(
            id=f"t-{name:012d}",
            number=number,
            type=kind,
            amount=body["amount"],
            phone_number=body["phone_number"],
            created_at=self.utcnow(),
            made_at=self.now(),
            owner=body.get("order"),
            request=request,
            end=end,
            ends_at=self.now() + after,
            merchant=merchant,
        )
        if end != "SUCCESS" and self.chance("end_turns"):
            payment.turns_at = payment.ends_at + 900
        self.payments.append(payment)
        for each in self.on_change:
            each(payment)
        return payment

    def note_trouble(self, request: int) -> None:
        """Note that no answer has acknowledged what a request has made."""
        for each in self.payments:
            each.is_troubled |= each.request == request

    def _create(self, kind: str, body: Row, request: int) -> Answer:
        if self.chance("refused_before"):
            return self._refusal("refused")
        if self.chance("server_error"):
            return self._json(self.dice.choice([500, 502, 503]), payment_error(None), "server error, nothing made")
        payment = self.make(KINDS[kind][0], body, request)
        if self.chance("proxy_repeats"):
            self.make(KINDS[kind][0], body, request)
        payment.is_denied = payment.is_troubled = True
        if self.chance("lie_refused"):
            return self._refusal(f"LIE: refused, but made {payment.id}")
        if self.chance("proxy_401"):
            return self._json(401, {"detail": "proxy: who are you?"}, f"made {payment.id}, and a proxy answers")
        payment.is_denied = False
        if self.chance("error_after"):
            return self._error_after(payment)
        said, payment.is_troubled = payment, False
        if self.chance("answers_mixed"):
            # One of the last ones, or another merchant's.
            foreign = attrs.evolve(payment, id=f"f-{request}", amount="777", phone_number="+255680000007")
            said = self.dice.choice([*self.payments[-4:-1], foreign])
            is_alike = (said.amount, said.phone_number) == (payment.amount, payment.phone_number)
            if is_alike and not self.chance("answers_alike"):
                said = payment  # an acknowledgement that echoes the request has the payment's id: an assumption
        echo = {"amount": said.amount, "phone_number": said.phone_number}
        if self.nature.echoes_cents:
            echo["amount"] += ".00"
        acknowledgement = {
            "status": "success",
            "message": "accepted",
            "transaction_id": said.id,
            "reference": f"R{said.number:08d}",
            "currency": "TZS",
            "status_code": said.status(-math.inf),
            **echo,
        }
        return self._json(200, acknowledgement, f"made {payment.id}" + (f", says {said.id}" * (said is not payment)))

    def _refusal(self, says: str) -> Answer:
        status = self.dice.choice([400, 403, 422, 404, 409, 200])
        code = self.dice.choice([None, "LIMIT", "TRANSACTION_NOT_FOUND", "INVALID_TRANSACTION_ID", "BLOCKED"])
        return self._json(status, payment_error(code), f"{says} ({status} {code})")

    def _error_after(self, payment: Payment) -> Answer:
        says = f"made {payment.id}, and answers an error"
        choice = self.dice.randrange(3)
        if choice == 0:
            return self._json(self.dice.choice([500, 502, 504]), payment_error(None), says)
        if choice == 1:
            return self._bytes(502, b"<html>Bad gateway</html>", says, "text/html")
        return self._bytes(200, b"", says, "application/json")

    def _row(self, payment: Payment) -> Row:
        now, status = self.now(), payment.status(self.now())
        if self.chance("status_stale"):
            now, status = payment.made_at, payment.status(-math.inf)
        number = payment.phone_number
        row: Row = {
            "id": payment.id,
            "reference": f"R{payment.number:08d}",
            "type": payment.type,
            "amount": payment.amount,
            "currency": "TZS",
            "phone_number": f"{number[:6]}****{number[-3:]}" if self.nature.masked else number,
            "network": "airtel_money",
            "status": status,
            "created_at": self._text(payment.created_at),
            "merchant_id": payment.merchant,
        }
        ended = self._text(payment.created_at + timedelta(seconds=min(payment.ends_at, now) - payment.made_at))
        if status == "SUCCESS":
            row["completed_at"] = ended
            if payment.type == "collection":
                row["fees"] = {"merchant_fee": "0.00", "customer_fee": "0.00", "total_fee": "0.00"}
                settled = {"settled_at": ended, "settlement_batch": ended[:10]}
                row["settlement"] = {"net_amount": f"{payment.amount}.00", **settled}
        elif status == "FAILED":
            row |= {"failed_at": ended, "failure_reason": "RECIPIENT_NOT_FOUND"}
        if payment.id not in self.odd:  # for good: an answer without it would show all
            field = self.dice.choice(SIDE_FIELDS)
            value: Any = self.dice.choice([None, "", [], {}, False])
            self.odd[payment.id] = {field: value} if self.chance("side_field_odd") else {}
        return row | self.odd[payment.id]

    def _text(self, at: datetime) -> str:
        pattern = "%Y-%m-%dT%H:%M:%S.%fZ" if self.nature.microseconds else "%Y-%m-%dT%H:%M:%SZ"
        return at.strftime(pattern)

    def _one(self, rest: str, query: dict[str, str]) -> Answer:
        if self.chance("lookup_lost"):
            return self._json(404, payment_error("TRANSACTION_NOT_FOUND"), "LIE: not found")
        is_mixed = self.chance("lookups_mixed")
        for payment in self.payments:
            names = {"id": payment.id, "reference": f"R{payment.number:08d}"}
            wanted = {"id": rest.removeprefix("/")} if rest.startswith("/") else query
            if wanted.items() <= names.items():
                row = self._row(self.dice.choice(self.payments) if is_mixed else payment)
                return self._json(200, {"status": "success", "transaction": row}, f"{row['id']} {row['status']}")
        return self._json(404, payment_error("TRANSACTION_NOT_FOUND"), "not found")

    def _list(self, query: dict[str, str]) -> Answer:
        page = int(query.get("page", 1))
        limit = min(int(query.get("limit", self.nature.default_limit)), self.nature.page_size)
        self.listed_at = now = self.now()
        if self.chance("list_empty"):
            self.lists_empty_until = now + self.dice.choice([0.0, 60.0, 3600.0])
        if self.chance("list_lag"):
            self.lists_lag_until, self.long_lag = now + self.dice.uniform(60, 3600), self.dice.uniform(10, 3600)
        lost = [each for each in self.payments if each.is_troubled and not each.is_denied and each not in self.missed]
        if lost and self.chance("list_miss"):
            self.missed[self.dice.choice(lost)] = math.inf
        shown = [each for each in self._shown(query, now) if not self._misses(each, now)]
        if self.chance("list_cap"):
            # It keeps only so many of them: the newest or the oldest.
            most, self.lied_until = self.dice.randint(0, 10), max(self.lied_until, now)
            shown = shown[len(shown) - most :] if self.dice.random() < 0.7 else shown[:most]
        # An assumption: a collection that seemed refused is sent again after a look that nothing confirms.
        sure = [each for each in self.payments if each.is_denied and each.type == "collection" and each not in shown]
        shown += [each for each in self._asked_for(query, now) if each in sure]
        shown.sort(key=lambda each: each.number)
        if self.nature.newest_first:
            shown.reverse()
        if self.chance("list_shuffled"):
            self.dice.shuffle(shown)
        if shown and now >= self.hole_until and self.chance("list_hole"):
            # Counted, and not shown: a payment with which something went wrong before, if there is one.
            self.hole = self.dice.choice([each for each in shown if each.is_troubled] or shown)
            self.hole_until = now + self.dice.uniform(60, 3600)
        hole = self.hole if now < self.hole_until else None
        rows: list[Any] = [self._row(each) for each in shown[(page - 1) * limit : page * limit] if each is not hole]
        if rows and self.chance("list_unreadable"):
            rows[self.dice.randrange(len(rows))] = self.dice.choice([None, {}, {"id": 7}, "row"])
            self.lied_until = max(self.lied_until, now)
        if rows and self.chance("list_gap"):  # it moved to another page while this one was read
            del rows[self.dice.randrange(len(rows))]
            self.lied_until = max(self.lied_until, now)
        pages = math.ceil(len(shown) / limit)
        self.lied_until = max(self.lied_until, self.lists_empty_until, self.lists_lag_until, self.hole_until)
        pagination = {"current_page": page, "total_pages": pages, "total_count": len(shown), "per_page": limit}
        body = {"status": "success", "transactions": rows, "pagination": pagination}
        return self._json(200, body, f"page {page} of {pages}, {len(rows)} rows of {len(shown)} {_asked(query)}")

    def _misses(self, payment: Payment, now: float) -> bool:
        """Return whether an answer neither counts nor shows a payment: of those that say something, only the first."""
        last = self.missed.get(payment, -math.inf)
        if last == math.inf and now >= payment.made_at + self.settles:
            self.missed[payment] = now
        return last in {math.inf, now}

    def _shown(self, query: dict[str, str], now: float) -> list[Payment]:
        if now < self.lists_empty_until:
            return []
        lag = self.long_lag if now < self.lists_lag_until else self.nature.lag
        return [each for each in self._asked_for(query, now) if each.made_at <= now - lag]

    def _asked_for(self, query: dict[str, str], now: float) -> list[Payment]:
        start, end = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        if "from" in query:
            start = _day(query["from"])
        elif self.nature.default_days is not None:
            start = self.utcnow() - timedelta(days=self.nature.default_days)
        if "to" in query:
            end = _day(query["to"]) + timedelta(days=1)
        return [
            each
            for each in self.payments
            if each.made_at <= now - self.nature.lag
            and start <= each.created_at < end
            and query.get("status", each.status(now)) == each.status(now)
            and (self.nature.ignores_type or query.get("type", each.type) == each.type)
        ]


def _asked(query: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(query.items()))


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
