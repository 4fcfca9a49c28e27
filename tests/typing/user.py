"""A user's program, checked by mypy and by basedpyright in its strict mode: every type that a user sees is known.

It is never run. Each line is something that a merchant writes, with the type that they may rely on.
"""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, assert_type

import httpx

from mobilemoney_async import (
    Acknowledgement,
    APIError,
    AsyncClient,
    AuthenticationError,
    ConnectionFailed,
    DuplicateSuspected,
    Effect,
    Fees,
    HistoryEntry,
    IdempotencyConflict,
    InvalidCredentials,
    InvalidRequest,
    InvalidToken,
    InvalidTransactionId,
    LoginAuth,
    LoginResult,
    Lookup,
    MobileMoneyError,
    Network,
    Outcome,
    OutcomeUnknown,
    Pagination,
    PaymentRecord,
    PaymentState,
    PermissionDenied,
    Priority,
    RateLimiter,
    RateLimitExceeded,
    RequestTimeout,
    RetryPolicy,
    Schedule,
    Secret,
    ServerError,
    Settlement,
    SQLStore,
    StoreError,
    TokenAuth,
    TokenExpired,
    TokenSource,
    Transaction,
    TransactionNotFound,
    TransactionPage,
    TransactionPager,
    TransactionStatus,
    TransactionType,
    TransportError,
    UnexpectedResponse,
    User,
    WaitTimeout,
    __version__,
)
from mobilemoney_async.polling.poller import Poller, PollerStats
from mobilemoney_async.testing import run_virtual

BASE_URL = "https://pay.example/v1"


class Vault:
    """A token source of one's own, by its shape alone."""

    async def token(self, login: object) -> str:
        return "token"

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        return None


class Shop(AsyncClient):
    """A client of one's own, which keeps its type."""


async def make_clients(transport: httpx.AsyncBaseTransport, http_client: httpx.AsyncClient) -> None:
    source: TokenSource = Vault()
    limiter = RateLimiter(per_minute=60, burst=10, window=60.0, jitter=0.5)
    retry = RetryPolicy(max_attempts=4, first_delay=0.5, factor=2, max_delay=8, max_retry_after=120)
    AsyncClient(BASE_URL, auth="token")
    AsyncClient(BASE_URL, auth=Secret("token"), rate_limiter=limiter, retry=retry, timeout=30, deadline=60)
    AsyncClient(BASE_URL, auth=TokenAuth("token"), transport=transport)
    AsyncClient(BASE_URL, auth=LoginAuth("a@b.example", Secret("password")), http_client=http_client)
    AsyncClient(BASE_URL, auth=source, transport="aiohttp", utcnow=lambda: datetime.now(UTC))
    assert_type(AsyncClient.from_env(timeout=5), AsyncClient)
    assert_type(Shop.from_env(), Shop)
    async with Shop(BASE_URL, auth="token") as shop:
        assert_type(shop, Shop)
        assert_type(shop.with_options(timeout=5, deadline=None, retry=retry, extra_headers={"X-Trace": "1"}), Shop)
        await shop.aclose()


async def pay(client: AsyncClient) -> None:
    asked = await client.collections.create(phone_number="+255680000001", amount=1000)
    sent = await client.disbursements.create(
        phone_number="+255680000001", amount=Decimal(1000), idempotency_key="order-7", extra={"external_id": "order-7"}
    )
    assert_type(asked, Acknowledgement)
    assert_type(sent, Acknowledgement)
    assert_type(sent.transaction_id, str)
    assert_type(sent.amount, Decimal)
    assert_type(sent.status_code, TransactionStatus)
    assert_type(sent.message, str | None)
    assert_type(sent.idempotency_key, str | None)
    paid = await client.transactions.wait(sent.transaction_id, timeout=60, schedule=Schedule(first=1.0, factor=1.5))
    assert_type(paid, Transaction)
    assert_type(Schedule(cap=30.0).delay(0), float)


async def look_up(client: AsyncClient) -> None:
    row = await client.transactions.get("t-1")
    assert_type(row, Transaction)
    assert_type(await client.transactions.get_by_reference("r-1"), Transaction)
    assert_type(await client.transactions.get_by_external_id("order-7"), Transaction)
    assert_type(row.type, TransactionType)
    assert_type(row.status, TransactionStatus)
    assert_type(row.network, Network | None)
    assert_type(row.reference, str | None)
    assert_type(row.amount, Decimal)
    assert_type(row.created_at, datetime | None)
    assert_type(row.completed_at, datetime | None)
    assert_type(row.failure_reason, str | None)
    assert_type(row.fees, Fees | None)
    assert_type(row.settlement, Settlement | None)
    assert_type(row.is_final, bool)
    assert_type(row.succeeded, bool)
    assert_type(row.status.is_known, bool)
    if row.settlement is not None and row.fees is not None:
        assert_type(row.settlement.net_amount, Decimal | None)
        assert_type(row.fees.total_fee, Decimal | None)
        assert_type(row.settlement.settled_at, datetime | None)
    lookups = client.transactions.get_many(["t-1", "t-2"])
    assert_type(lookups, AsyncIterator[Lookup])
    async for lookup in lookups:
        assert_type(lookup.transaction_id, str)
        assert_type(lookup.transaction, Transaction | None)
        assert_type(lookup.error, MobileMoneyError | None)


async def read_history(client: AsyncClient) -> None:
    pager = client.transactions.list(
        status=TransactionStatus.SUCCESS,
        type="collection",
        from_date=date(2025, 1, 1),
        to_date=date(2025, 1, 31),
        limit=100,
        max_items=1000,
    )
    assert_type(pager, TransactionPager)
    async for row in pager:
        assert_type(row, Transaction)
    async for page in pager.pages():
        assert_type(page, TransactionPage)
        assert_type([row.id for row in page], list[str])
        assert_type(len(page), int)
    assert_type(await pager.collect(), list[Transaction])
    page = await client.transactions.page(2, limit=20, status="NEW", type=TransactionType.DISBURSEMENT)
    assert_type(page.transactions, tuple[Transaction, ...])
    assert_type(page.pagination, Pagination)
    assert_type(page.pagination.total_count, int)


async def use_accounts(client: AsyncClient) -> None:
    result = await client.users.login("a@b.example", Secret("password"))
    assert_type(result, LoginResult)
    assert_type(result.access_token, Secret)
    assert_type(result.access_token.reveal(), str)
    assert_type(result.expires_in, int)
    assert_type(result.user, User | None)
    assert_type(await client.users.profile(), dict[str, Any])
    assert_type(await client.users.users_profile(), dict[str, Any])
    assert_type(await client.users.request_otp("+255680000001", purpose="login"), dict[str, Any])
    assert_type(await client.users.verify_otp("+255680000001", "004938"), dict[str, Any])
    assert_type(await client.users.forgot_password("a@b.example"), dict[str, Any])
    assert_type(await client.users.reset_password("a@b.example", "token", Secret("password")), dict[str, Any])
    assert_type(await client.request("GET", "/fees", params={"amount": 1000}), dict[str, Any])
    assert_type(await client.request("POST", "/quotes", json={"amount": "1000"}, effect=Effect.READ), dict[str, Any])


async def handle_errors(client: AsyncClient) -> None:  # noqa: C901 (one branch for each class)
    try:
        await client.collections.create(phone_number="+255680000001", amount=1000)
    except InvalidRequest as exc:
        assert_type(exc.argument, str)
    except OutcomeUnknown as exc:
        assert_type(exc.idempotency_key, str)
        assert_type(exc.sent_at, datetime)
    except (InvalidCredentials, InvalidToken, TokenExpired) as exc:
        assert_type(exc, InvalidCredentials | InvalidToken | TokenExpired)
    except ServerError as exc:
        assert_type(exc.excerpt, str)
        assert_type(exc.content_type, str | None)
    except RateLimitExceeded as exc:
        assert_type(exc.retry_after, float | None)
    except (AuthenticationError, PermissionDenied, TransactionNotFound, InvalidTransactionId, APIError) as exc:
        assert_type(exc.status_code, int)
        assert_type(exc.code, str | None)
        assert_type(exc.message, str)
    except UnexpectedResponse as exc:
        assert_type(exc.path, str | None)
        assert_type(exc.status_code, int)
    except (ConnectionFailed, RequestTimeout, TransportError) as exc:
        assert_type(exc.outcome, Literal["not_sent", "refused", "unknown"])
    except WaitTimeout as exc:
        assert_type(exc.transaction_id, str)
    except MobileMoneyError as exc:
        assert_type(exc.idempotency_key, str | None)


async def follow(client: AsyncClient, acknowledgement: Acknowledgement) -> None:
    async with client.poller(timeout=600, min_interval=10) as poller:
        assert_type(poller, Poller)
        poller.track(acknowledgement, timeout=60)
        assert_type(poller.hint(acknowledgement.transaction_id), bool)
        assert_type(await poller.wait(acknowledgement.transaction_id), Transaction)
        async for outcome in poller.outcomes(forever=True):
            assert_type(outcome, Outcome)
            assert_type(outcome.transaction, Transaction | None)
            assert_type(outcome.error, MobileMoneyError | None)
        assert_type(poller.pending, int)
        assert_type(poller.stats, PollerStats)
        assert_type(poller.stats.mean_lag, float | None)


async def remember(base_url: str) -> None:
    store = SQLStore(
        "sqlite:///payments.db", account="shop", grace=300, key="sixteen or more", resend_absent_collections=True
    )
    async with AsyncClient(base_url, auth="token", store=store) as client:
        payments = await client.payments.list("UNKNOWN", type="collection", limit=10)
        assert_type(payments, list[PaymentRecord])
        assert_type(await client.payments.list([PaymentState.UNKNOWN, PaymentState.ABSENT]), list[PaymentRecord])
        assert_type(await client.payments.unresolved(), list[PaymentRecord])
        assert_type(await client.payments.reconcile(stale_after=0), list[PaymentRecord])
        payment = await client.payments.confirm_absent("order-7", note="Asha looked")
        assert_type(payment, PaymentRecord)
        assert_type(await client.payments.find(["order-7", "REF-1"], state="ACKNOWLEDGED"), list[PaymentRecord])
        assert_type(await client.payments.get("order-7"), PaymentRecord | None)
        assert_type(payment.state, PaymentState)
        assert_type(payment.amount, Decimal)
        assert_type(payment.sent_at, datetime | None)
        assert_type(payment.transaction, Transaction | None)
        assert_type(payment.candidates, tuple[str, ...])
        assert_type(payment.history, tuple[HistoryEntry, ...])
        assert_type(payment.is_unresolved, bool)
        try:
            await client.collections.create(phone_number="+255680000001", amount=1000, idempotency_key="order-8")
        except DuplicateSuspected as exc:
            assert_type((exc.other_key, exc.transaction_id), tuple[str | None, str | None])
        except IdempotencyConflict as exc:
            assert_type(exc.idempotency_key, str | None)
        except StoreError as exc:
            assert_type(exc.outcome, Literal["not_sent", "refused", "unknown"])
    store.close()


async def pace(limiter: RateLimiter) -> None:
    async with limiter as same:
        assert_type(same, RateLimiter)
    await limiter.acquire(Priority.BULK)
    assert_type(limiter.has_capacity(), bool)
    limiter.hold(1.5)


async def greet(name: str) -> str:
    return f"{name} {__version__}"


def run() -> None:
    assert_type(run_virtual(greet, "mobilemoney-async"), str)
