"""The bytes of every public method on the wire, and its result from the answer."""

import datetime as dt
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
import respx

from mobilemoney_async import AsyncClient, Secret, TransactionStatus, TransactionType, __version__
from tests.contract import samples

Act = Callable[[AsyncClient], Awaitable[Any]]

HEADERS = {
    "host": "pay.example",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": f"mobilemoney-async/{__version__}",
}
BEARER = {"authorization": "Bearer tok.en"}


@pytest.fixture
def service() -> Iterator[respx.MockRouter]:
    with respx.mock(base_url="https://pay.example") as router:
        yield router


async def sent(service: respx.MockRouter, act: Act, answer: Any) -> tuple[httpx.Request, Any]:
    """Make one call that is answered with JSON; return the request as it went, and the result of the call."""
    route = service.route().respond(200, json=answer)
    async with AsyncClient("https://pay.example/v1", auth="tok.en") as client:
        value = await act(client)
    assert route.call_count == 1
    return route.calls.last.request, value


def look_up(name: str) -> Act:
    return lambda c: c.transactions.get(name)


FOUND = samples.found(reference="r-1")
PAGE = samples.page(samples.transaction())

# name: (call, method, raw target below /v1, answer)
READS: dict[str, tuple[Act, str, Any]] = {
    **{
        name: (look_up(given), f"/payment-service/transaction/{quoted}", samples.found(id=given))
        for name, given, quoted in (
            ("get", "t-1", "t-1"),
            ("get, slash", "a/b", "a%2Fb"),
            ("get, plus", "a+b", "a%2Bb"),
            ("get, percent", "%2e%2e", "%252e%252e"),
            ("get, query", "a?b#c&d=e", "a%3Fb%23c%26d%3De"),
            ("get, unicode", "ñ 😀", "%C3%B1%20%F0%9F%98%80"),
            ("get, dots", "../x", "..%2Fx"),
        )
    },
    "reference": (
        lambda c: c.transactions.get_by_reference("r-1"),
        "/payment-service/transaction?reference=r-1",
        FOUND,
    ),
    "reference, quoted": (
        lambda c: c.transactions.get_by_reference("a+b/c&d é"),
        "/payment-service/transaction?reference=a%2Bb%2Fc%26d%20%C3%A9",
        samples.found(reference="a+b/c&d é"),
    ),
    "reference, dots": (
        lambda c: c.transactions.get_by_reference(".."),
        "/payment-service/transaction?reference=..",
        samples.found(reference=".."),
    ),
    "external id": (
        lambda c: c.transactions.get_by_external_id("order 7%"),
        "/payment-service/transaction?external_id=order%207%25",
        samples.found(external_id="order 7%"),
    ),
    "page": (lambda c: c.transactions.page(), "/payment-service/transactions?page=1&limit=100", PAGE),
    "page, all filters": (
        lambda c: c.transactions.page(
            3,
            status=TransactionStatus.FAILED,
            type=TransactionType.DISBURSEMENT,
            from_date=dt.date(2025, 1, 31),
            to_date=dt.date(2025, 2, 1),
            limit=20,
        ),
        "/payment-service/transactions?page=3&limit=20&status=FAILED&type=disbursement&from=2025-01-31&to=2025-02-01",
        PAGE | {"pagination": samples.pagination(current_page=3)},
    ),
    "page, new words": (
        lambda c: c.transactions.page(status="ON HOLD", type="Disbursement"),
        "/payment-service/transactions?page=1&limit=100&status=ON%20HOLD&type=disbursement",
        PAGE,
    ),
    "list": (lambda c: c.transactions.list().collect(), "/payment-service/transactions?page=1&limit=100", PAGE),
    "list, all filters": (
        lambda c: c.transactions.list(
            status="SUCCESS", type="collection", from_date=dt.date(2025, 1, 1), to_date=dt.date(2025, 1, 1), limit=1
        ).collect(),
        "/payment-service/transactions?page=1&limit=1&status=SUCCESS&type=collection&from=2025-01-01&to=2025-01-01",
        PAGE,
    ),
    "wait": (
        lambda c: c.transactions.wait("a/b"),
        "/payment-service/transaction/a%2Fb",
        samples.found(id="a/b", status="SUCCESS"),
    ),
    "profile": (lambda c: c.users.profile(), "/user-service/profile", {"id": 7}),
    "users_profile": (lambda c: c.users.users_profile(), "/user-service/users/profile", {"id": 7}),
    "request": (
        lambda c: c.request("get", "/fees/a%2Fb;v=1", params={"q": "a+b &é", "n": 5}),
        "/fees/a%2Fb;v=1?q=a%2Bb%20%26%C3%A9&n=5",
        {"fee": 1},
    ),
}


@pytest.mark.parametrize("name", READS)
async def test_reads(service: respx.MockRouter, name: str) -> None:
    """A read is a GET of exactly this target, with the token and without a body."""
    act, target, answer = READS[name]
    request, _ = await sent(service, act, answer)
    assert request.method == "GET"
    assert request.url.raw_path == f"/v1{target}".encode()
    assert request.content == b""
    assert dict(request.headers) == HEADERS | BEARER
    assert len(request.headers.raw) == len(request.headers)


ACKNOWLEDGED = samples.acknowledgement()

POSTS: dict[str, tuple[Act, str, bool, bytes, Any]] = {
    "collection": (
        lambda c: c.collections.create(phone_number="+255 680-000-001", amount=1000),
        "/payment-service/airtel/c2b",
        True,
        b'{"phone_number":"+255680000001","amount":"1000"}',
        ACKNOWLEDGED,
    ),
    "disbursement": (
        lambda c: c.disbursements.create(
            phone_number="+255680000001",
            amount=Decimal("1E+3"),
            extra={"external_id": "é-7", "meta": {"n": 1, "ok": True, "none": None}},
        ),
        "/payment-service/airtel/b2c",
        True,
        '{"phone_number":"+255680000001","amount":"1000","external_id":"é-7","meta":{"n":1,"ok":true,"none":null}}'.encode(),
        samples.acknowledgement(status_code="PROCESSING"),
    ),
    "login": (
        lambda c: c.users.login("a@b.example", Secret("pä'ss\"")),
        "/user-service/login",
        False,
        '{"email":"a@b.example","password":"pä\'ss\\""}'.encode(),
        samples.login(),
    ),
    "request_otp": (
        lambda c: c.users.request_otp("+255680000001"),
        "/user-service/request-otp",
        True,
        b'{"phone_number":"+255680000001","purpose":"transaction_verification"}',
        {},
    ),
    "request_otp, purpose": (
        lambda c: c.users.request_otp("+255 680 000 001", "login"),
        "/user-service/request-otp",
        True,
        b'{"phone_number":"+255680000001","purpose":"login"}',
        {},
    ),
    "verify_otp": (
        lambda c: c.users.verify_otp("+255680000001", "004938"),
        "/user-service/verify-otp",
        True,
        b'{"phone_number":"+255680000001","otp_code":"004938"}',
        {},
    ),
    "forgot_password": (
        lambda c: c.users.forgot_password("a@b.example"),
        "/user-service/forgot-password",
        False,
        b'{"email":"a@b.example"}',
        {},
    ),
    "reset_password": (
        lambda c: c.users.reset_password("a@b.example", "reset-1", Secret("new-1")),
        "/user-service/reset-password",
        False,
        b'{"email":"a@b.example","reset_token":"reset-1","new_password":"new-1"}',
        {},
    ),
    "request": (
        lambda c: c.request("POST", "/payment-service/bulk", json={"amount": "5", "to": ["+255680000001"]}),
        "/payment-service/bulk",
        True,
        b'{"amount":"5","to":["+255680000001"]}',
        {"accepted": 1},
    ),
}


@pytest.mark.parametrize("name", POSTS)
async def test_posts(service: respx.MockRouter, name: str) -> None:
    """A post is exactly these bytes; login, forgot-password and reset-password carry no token."""
    act, target, bearer, body, answer = POSTS[name]
    request, _ = await sent(service, act, answer)
    assert request.method == "POST"
    assert request.url.raw_path == f"/v1{target}".encode()
    assert request.content == body
    framing = {"content-type": "application/json", "content-length": str(len(body))}
    assert dict(request.headers) == HEADERS | framing | (BEARER if bearer else {})
    assert len(request.headers.raw) == len(request.headers)


async def test_a_body_less_post_has_no_content_type(service: respx.MockRouter) -> None:
    request, value = await sent(service, lambda c: c.request("DELETE", "/hooks/7", effect="session"), {"ok": True})
    assert (request.method, request.content) == ("DELETE", b"")
    assert dict(request.headers) == HEADERS | BEARER
    assert value == {"ok": True}


async def test_get_many_looks_each_up_by_its_id(service: respx.MockRouter) -> None:
    """Every id of a bulk lookup is quoted like a single one."""
    route = service.route().respond(200, json=FOUND)
    async with AsyncClient("https://pay.example/v1", auth="tok.en") as client:
        lookups = [lookup async for lookup in client.transactions.get_many(["a/b", "t-2"])]
    assert {call.request.url.raw_path for call in route.calls} == {
        b"/v1/payment-service/transaction/a%2Fb",
        b"/v1/payment-service/transaction/t-2",
    }
    assert {lookup.transaction_id for lookup in lookups} == {"a/b", "t-2"}


async def test_a_base_url_with_a_trailing_slash_is_the_same(service: respx.MockRouter) -> None:
    route = service.get("/v1/user-service/profile").respond(200, json={})
    async with AsyncClient("https://pay.example/v1/", auth="tok.en") as client:
        assert await client.users.profile() == {}
    assert route.calls.last.request.url.raw_path == b"/v1/user-service/profile"


class TestAnswers:
    @pytest.mark.parametrize("name", ["get", "reference", "external id", "wait"])
    async def test_a_lookup_returns_the_transaction(self, service: respx.MockRouter, name: str) -> None:
        asked = {"id": "t-1" if name == "get" else "a/b", "reference": "r-1", "external_id": "order 7%"}
        _, value = await sent(service, READS[name][0], samples.found(**asked, status="SUCCESS"))
        assert (value.id, value.amount, value.succeeded) == (asked["id"], Decimal(1000), True)

    async def test_a_page_returns_rows_and_pagination(self, service: respx.MockRouter) -> None:
        _, value = await sent(service, READS["page"][0], PAGE)
        assert [row.id for row in value.transactions] == ["t-1"]
        assert (value.pagination.current_page, value.pagination.total_count) == (1, 1)

    async def test_a_login_returns_a_secret_token(self, service: respx.MockRouter) -> None:
        _, value = await sent(service, POSTS["login"][0], samples.login())
        assert value.access_token == Secret("header.payload.signature")
        assert (value.expires_in, value.user.email) == (3600, "a@b.example")

    @pytest.mark.parametrize("name", ["request_otp", "verify_otp", "forgot_password", "reset_password"])
    async def test_undocumented_bodies_come_as_they_are(self, service: respx.MockRouter, name: str) -> None:
        """An answer of a shape that the contract does not show is the JSON object itself."""
        _, value = await sent(service, POSTS[name][0], {"status": "success", "ttl": 60})
        assert value == {"status": "success", "ttl": 60}

    @pytest.mark.parametrize("name", ["request_otp", "verify_otp", "forgot_password", "reset_password"])
    async def test_an_empty_body_is_an_empty_object(self, service: respx.MockRouter, name: str) -> None:
        service.route().respond(204)
        async with AsyncClient("https://pay.example/v1", auth="tok.en") as client:
            assert await POSTS[name][0](client) == {}

    @pytest.mark.parametrize("name", ["profile", "users_profile", "request"])
    async def test_fractions_of_undocumented_bodies_are_exact(self, service: respx.MockRouter, name: str) -> None:
        service.route().respond(200, content=b'{"balance": 10.10}')
        async with AsyncClient("https://pay.example/v1", auth="tok.en") as client:
            assert await READS[name][0](client) == {"balance": Decimal("10.10")}


class TestCoverage:
    @pytest.mark.parametrize("resource", ["collections", "disbursements", "transactions", "users"])
    async def test_every_public_method_is_pinned(self, resource: str) -> None:
        """A method that is added to a resource must show its request here."""
        pinned = {"get_many"}
        for row in (*READS.values(), *POSTS.values()):
            act: Any = row[0]
            pinned.update(act.__code__.co_names)
        async with AsyncClient("https://pay.example/v1", auth="tok.en") as client:
            public = {name for name in dir(getattr(client, resource)) if not name.startswith("_")}
        assert public <= pinned
