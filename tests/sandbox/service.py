"""Driver of the pure engine, at any time and without an event loop."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import httpx

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.engine import Engine
from mobilemoney_async.sandbox.messages import Reply, Request

START = datetime(2025, 3, 31, 23, 59, 0, tzinfo=UTC)
ORDINARY = "+255681000001"
SUCCEEDS = "+255780000789"
STUCK = "+255780000129"


def http(sandbox: Sandbox, token: str | None = None, **options: Any) -> httpx.AsyncClient:
    """Return a program of the merchant's: in process, or as these options say."""
    where = {"transport": sandbox.transport(), "base_url": sandbox.base_url}
    return httpx.AsyncClient(headers={"Authorization": f"Bearer {token or sandbox.token}"}, **{**where, **options})


async def create(
    sandbox: Sandbox, phone_number: str = ORDINARY, amount: str = "1000", *, endpoint: str = "c2b", **more: Any
) -> str:
    """Make a payment as a program does, and return its id."""
    token = more.pop("token", None)
    async with http(sandbox, token) as client:
        body = {"phone_number": phone_number, "amount": amount, **more}
        answer = await client.post(f"/payment-service/airtel/{endpoint}", json=body)
    return str(answer.json()["transaction_id"])


@attrs.frozen
class Answer:
    """Reply, and its JSON."""

    reply: Reply

    @property
    def status(self) -> int:
        return self.reply.status

    @property
    def json(self) -> Any:
        return json.loads(self.reply.body)

    @property
    def error(self) -> tuple[int, str]:
        """HTTP status and code of an error, read from the body in either shape."""
        fields = self.json
        if "error_code" in fields:
            assert fields["status"] == "error"
            code = fields["error_code"]
        else:
            assert fields["success"] is False
            code = fields["error"]
        assert fields["message"]
        assert code == self.reply.code
        return self.status, code


class Service:
    """Engine with one account, and its time."""

    def __init__(
        self, *, speed: float = 1.0, seed: int = 0, balance: int = 100_000, choices: Choices | None = None
    ) -> None:
        self.engine = Engine(
            start=START, speed=speed, seed=seed, balance=Decimal(balance), choices=choices or Choices(rate_limit=None)
        )
        self.account = self.engine.open_account("merchant@example.com")
        self.now = 0.0
        self.unscaled_now: float | None = None

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> Answer:
        """Send a request; bytes as `body` go as they are, anything else as JSON."""
        sent = {"Authorization": f"Bearer {self.account.token if token is None else token}"}
        if body is not None:
            sent["Content-Type"] = "application/json"
        request = Request(
            method=method,
            path="/v1" + path,
            query=query or {},
            headers={name.lower(): value for name, value in {**sent, **(headers or {})}.items()},
            body=body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode(),
        )
        return Answer(self.engine.handle(request, self.now, self.unscaled_now))

    def collect(self, phone_number: str = ORDINARY, amount: str = "1000", **more: Any) -> Answer:
        body = {"phone_number": phone_number, "amount": amount, **more}
        return self.send("POST", "/payment-service/airtel/c2b", body)

    def disburse(self, phone_number: str = ORDINARY, amount: str = "1000", **more: Any) -> Answer:
        body = {"phone_number": phone_number, "amount": amount, **more}
        return self.send("POST", "/payment-service/airtel/b2c", body)

    def get(self, transaction_id: str) -> Answer:
        return self.send("GET", f"/payment-service/transaction/{transaction_id}")

    def list(self, **query: str) -> Answer:
        return self.send(
            "GET", "/payment-service/transactions", query={name.rstrip("_"): value for name, value in query.items()}
        )

    def login(self, email: str | None = None, password: str | None = None) -> Answer:
        body = {"email": email or self.account.email, "password": password or self.account.password}
        return self.send("POST", "/user-service/login", body, token="")
