"""Any answer gives a value or one of our errors; which one, follows from the body first and the status second."""

import json
import re
import tracemalloc
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import (
    APIError,
    AuthenticationError,
    Effect,
    InvalidCredentials,
    InvalidToken,
    InvalidTransactionId,
    MobileMoneyError,
    PermissionDenied,
    RateLimitExceeded,
    ServerError,
    TokenExpired,
    TransactionNotFound,
    UnexpectedResponse,
)
from mobilemoney_async.contract import endpoints
from mobilemoney_async.contract.endpoints import (
    CREATE_COLLECTION,
    FIND_TRANSACTION,
    GET_TRANSACTION,
    LIST_TRANSACTIONS,
    LOGIN,
    PROFILE,
    REQUEST_OTP,
    Endpoint,
    read_rows,
    undocumented,
)
from mobilemoney_async.contract.error_mapping import Answer, read_answer
from mobilemoney_async.contract.models import TransactionAnswer
from tests.contract import samples
from tests.contract.samples import to_bytes
from tests.support.scale import examples

ENDPOINTS: list[Endpoint[Any]] = [
    *(value for value in vars(endpoints).values() if isinstance(value, Endpoint)),
    *(undocumented("POST", "/x", effect) for effect in Effect),
]
EVIDENCE = attrs.evolve(LIST_TRANSACTIONS, read=read_rows)
STATUSES = [200, 201, 400, 401, 403, 404, 409, 422, 429, 500, 503]

# Contract, section 7.
CODES: dict[str, type[APIError]] = {
    "TRANSACTION_NOT_FOUND": TransactionNotFound,
    "INVALID_TRANSACTION_ID": InvalidTransactionId,
    "RATE_LIMIT_EXCEEDED": RateLimitExceeded,
    "invalid_credentials": InvalidCredentials,
    "invalid_token": InvalidToken,
    "token_expired": TokenExpired,
    "insufficient_permissions": PermissionDenied,
}


def payment_shape(code: Any, **more: Any) -> dict[str, Any]:
    return {"status": "error", "message": "no", "error_code": code} | more


def auth_shape(code: Any, **more: Any) -> dict[str, Any]:
    return {"success": False, "error": code, "message": "no"} | more


SHAPES = {"payment": payment_shape, "auth": auth_shape}
# Without an error status: the code alone must do, except where a success could look the same.
BARE = {"payment": lambda code: {"error_code": code}, "auth": lambda code: {"error": code}}


def answer(
    body: Any, status: int = 200, *, content_type: str | None = "application/json", retry_after: str | None = None
) -> Answer:
    content = body if isinstance(body, bytes) else to_bytes(body)
    return Answer(status_code=status, content_type=content_type, retry_after=retry_after, body=content)


def refused(endpoint: Endpoint[Any], given: Answer) -> MobileMoneyError:
    with pytest.raises(MobileMoneyError) as caught:
        read_answer(endpoint, given)
    return caught.value


class TestDocumentedCodes:
    @pytest.mark.parametrize("status", STATUSES)
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("code", CODES)
    def test_a_code_is_its_class_in_either_shape_and_under_any_status(self, code: str, shape: str, status: int) -> None:
        """The contract leaves most statuses open: the code decides, also under 200 and 500.

        It proves the refusal, but not that of a create by a code about a lookup.
        """
        for endpoint in ENDPOINTS:
            error = refused(endpoint, answer(SHAPES[shape](code), status))
            if endpoint.effect is Effect.MONEY and status == 503:  # a proxy's
                assert (type(error), error.outcome) == (ServerError, "unknown")
                continue
            assert type(error) is CODES[code]
            assert error.code == code
            assert (error.status_code, error.message) == (status, "no")
            fits = not (endpoint.effect is Effect.MONEY and code.endswith(("_NOT_FOUND", "_TRANSACTION_ID")))
            assert (error.outcome, error.is_certain) == (("refused", True) if fits else ("unknown", False))
            assert str(error) == f"{code} (HTTP {status}): no"

    @pytest.mark.parametrize("status", [407, 502, 503, 504])
    @pytest.mark.parametrize("shape", [*SHAPES, *BARE])
    def test_no_body_of_a_proxy_proves_the_refusal_of_a_create(self, shape: str, status: int) -> None:
        """The service may have made the payment behind the proxy. The error shows the code, as far as it can."""
        for code in CODES:
            error = refused(CREATE_COLLECTION, answer((SHAPES | BARE)[shape](code), status))
            assert type(error) is (APIError if status == 407 else ServerError)
            assert (error.outcome, getattr(error, "is_certain", False)) == ("unknown", False)
            assert code in str(error)

    @pytest.mark.parametrize("status", [status for status in STATUSES if status >= 400])
    @pytest.mark.parametrize("shape", BARE)
    @pytest.mark.parametrize("code", CODES)
    def test_the_code_alone_is_enough(self, code: str, shape: str, status: int) -> None:
        """A service that forgets `status` or `success` is still understood."""
        error = refused(GET_TRANSACTION, answer(BARE[shape](code), status))
        assert type(error) is CODES[code]
        assert str(error) == f"{code} (HTTP {status})"

    @pytest.mark.parametrize("status", [200, 400, 429, 503])
    @pytest.mark.parametrize("claim", [{"status": "success"}, {"success": True}])
    def test_a_code_beside_a_success_is_no_error(self, claim: dict[str, Any], status: int) -> None:
        """An answer that claims both proves neither: a create is not sent again because of it."""
        for code in CODES:
            error = refused(CREATE_COLLECTION, answer({"error_code": code, **claim}, status))
            assert type(error) is (UnexpectedResponse if status < 500 else ServerError)
            assert error.outcome == "unknown"

    @pytest.mark.parametrize("endpoint", [GET_TRANSACTION, CREATE_COLLECTION, LIST_TRANSACTIONS, LOGIN])
    def test_the_code_alone_is_enough_under_200_where_a_success_looks_different(self, endpoint: Endpoint[Any]) -> None:
        assert isinstance(refused(endpoint, answer({"error_code": "RATE_LIMIT_EXCEEDED"})), RateLimitExceeded)

    def test_the_payment_slot_wins(self) -> None:
        """`error_code` is the service's word; `error` beside it may be prose."""
        error = refused(GET_TRANSACTION, answer(payment_shape("TRANSACTION_NOT_FOUND", error="not found at all"), 404))
        assert type(error) is TransactionNotFound

    @pytest.mark.parametrize(
        ("endpoint", "body"),
        [
            (GET_TRANSACTION, samples.found() | {"status": "error"}),
            (GET_TRANSACTION, samples.found() | {"success": False}),
            (FIND_TRANSACTION, samples.found(created_at=None) | {"success": False}),
            (CREATE_COLLECTION, samples.acknowledgement(status="error")),
            (CREATE_COLLECTION, samples.acknowledgement(success=False)),
            (LIST_TRANSACTIONS, samples.page() | {"status": "error"}),
            (LIST_TRANSACTIONS, samples.page() | {"success": False}),
            (LIST_TRANSACTIONS, samples.page(samples.transaction(id=7)) | {"success": False}),
            (EVIDENCE, samples.page({}) | {"success": False}),
            (LOGIN, samples.login(success=False)),
            (REQUEST_OTP, {"success": False}),
            (PROFILE, {"id": 7, "status": "error"}),
            (PROFILE, {"id": 7, "success": False}),
        ],
    )
    def test_a_whole_answer_that_says_error_is_an_error(self, endpoint: Endpoint[Any], body: dict[str, Any]) -> None:
        """However complete it looks, an answer with an error status is no success."""
        error = refused(endpoint, answer(body))
        assert type(error) is APIError
        assert error.code is None
        assert error.outcome == ("unknown" if endpoint.effect is Effect.MONEY else "refused")
        odd = refused(endpoint, answer(body | {"message": "\ud800"}))
        assert (type(odd), odd.outcome) == (UnexpectedResponse, "unknown")

    def test_an_acknowledgement_counts_though_another_field_of_it_cannot_be_read(self) -> None:
        """Such as a note that is no UTF-8, or of thousands of values; but not if it says error."""
        body = to_bytes(samples.acknowledgement())[:-1]
        for odd in (b', "note": "caf\xe9"', b', "note": [' + b"0," * 30_000 + b"0]"):
            said = read_answer(CREATE_COLLECTION, Answer(status_code=200, body=body + odd + b"}"))
            assert said.transaction_id == samples.acknowledgement()["transaction_id"]
        unread = refused(CREATE_COLLECTION, Answer(status_code=200, body=body + b', "note": "\xe9", "success": false}'))
        assert unread.outcome == "unknown"


class TestOtherCodes:
    @pytest.mark.parametrize("status", [status for status in STATUSES if status < 500 and status != 401])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_under_200_and_4xx_they_are_refusals(self, shape: str, status: int) -> None:
        """A code that the contract does not list is yours to read: the service refused.

        It is never proof, and of a create it is a refusal only under statuses that say so.
        """
        for endpoint in ENDPOINTS:
            error = refused(endpoint, answer(SHAPES[shape]("DAILY_LIMIT_EXCEEDED_FOR_MERCHANT"), status))
            assert type(error) is APIError
            assert error.code == "DAILY_LIMIT_EXCEEDED_FOR_MERCHANT"
            unclear = endpoint.effect is Effect.MONEY and status in {200, 201, 409}
            assert (error.outcome, error.is_certain) == ("unknown" if unclear else "refused", False)

    @pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_under_5xx_nobody_knows(self, shape: str, status: int) -> None:
        """A gateway that answers in JSON does not know the result of the request."""
        error = refused(CREATE_COLLECTION, answer(SHAPES[shape]("GATEWAY_TIMEOUT"), status, retry_after="7"))
        assert type(error) is ServerError
        assert (error.code, error.outcome, error.retry_after) == ("GATEWAY_TIMEOUT", "unknown", 7.0)
        assert str(error) == f"GATEWAY_TIMEOUT (HTTP {status}): no"

    @pytest.mark.parametrize("code", ["rate_limit_exceeded", "INVALID_TOKEN", "Token_Expired", " invalid_token"])
    def test_a_code_of_the_contract_in_another_spelling_is_another_code(self, code: str) -> None:
        """No create is sent again for a code that only looks like one that allows it."""
        for shape in SHAPES.values():
            error = refused(CREATE_COLLECTION, answer(shape(code), 400))
            assert type(error) is APIError
            assert not error.is_certain

    @pytest.mark.parametrize("status", [200, 400, 401, 429])
    @pytest.mark.parametrize("code", [*CODES, "TRANSACTION_TIMEOUT", None])
    @pytest.mark.parametrize(
        "named",
        [
            {"transaction_id": "tx-1"},
            {"transaction": {"id": "tx-1"}},
            {"data": {"transaction_id": "tx-1"}},
            {"errors": [{"transaction": {"id": "tx-1"}}]},
        ],
    )
    def test_an_error_that_names_a_transaction_does_not_refuse_a_create(
        self, named: dict[str, Any], code: str | None, status: int
    ) -> None:
        """Whatever the code, the payment may exist. A field without a value names none."""
        error = refused(CREATE_COLLECTION, answer(payment_shape(code, **named), status))
        assert isinstance(error, APIError)
        assert (error.outcome, error.is_certain) == ("unknown", False)
        empty = refused(CREATE_COLLECTION, answer(payment_shape("WRONG_NUMBER", **dict.fromkeys(named)), 400))
        assert empty.outcome == "refused"

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ("E42", "E42"),
            ("A" * 64, "A" * 64),
            ("A" * 65, "[redacted]"),
            ("no such user +255680000001", "no such user +25568…001"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOjF9", "[redacted]"),
            ("x1 " * 60, "x1 " * 21 + "…"),
        ],
    )
    def test_a_code_that_does_not_read_like_one_is_redacted(self, said: str, shown: str) -> None:
        error = refused(GET_TRANSACTION, answer(auth_shape(said), 400))
        assert isinstance(error, APIError)
        assert error.code == shown


class TestNoCode:
    @pytest.mark.parametrize("nothing", [None, "", 5, [], {}, True])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize(
        ("endpoint", "status", "kind"),
        [
            (GET_TRANSACTION, 401, InvalidToken),
            (CREATE_COLLECTION, 401, AuthenticationError),
            (CREATE_COLLECTION, 403, APIError),
            (CREATE_COLLECTION, 429, APIError),
            (REQUEST_OTP, 401, AuthenticationError),
            (LOGIN, 401, AuthenticationError),
            (PROFILE, 403, PermissionDenied),
            (PROFILE, 429, RateLimitExceeded),
            (GET_TRANSACTION, 404, APIError),
            (FIND_TRANSACTION, 404, APIError),
            (PROFILE, 404, APIError),
            (CREATE_COLLECTION, 404, APIError),
            (CREATE_COLLECTION, 400, APIError),
            (CREATE_COLLECTION, 200, APIError),
            (CREATE_COLLECTION, 500, ServerError),
        ],
    )
    def test_the_status_decides(
        self, endpoint: Endpoint[Any], status: int, kind: type[APIError], shape: str, nothing: Any
    ) -> None:
        """An error without a code, or with one that is no text, is known by its status, which proves nothing.

        No error of a create has a class that stands for a code which was not there.
        """
        error = refused(endpoint, answer(SHAPES[shape](nothing), status))
        assert type(error) is kind
        assert error.code is None
        assert not error.is_certain

    @pytest.mark.parametrize("body", [b"", b"Unauthorized", b"{}", b"[]", b"null"])
    def test_a_bare_401_renews_the_token_of_a_read_only(self, body: bytes) -> None:
        """Enough to try a read again, not to send money a second time: a create is refused as far as is known."""
        read = refused(GET_TRANSACTION, answer(body, 401))
        create = refused(CREATE_COLLECTION, answer(body, 401))
        assert type(read) is InvalidToken
        assert type(create) is AuthenticationError
        assert (create.outcome, create.is_certain, read.is_certain) == ("refused", False, False)
        assert (create.status_code, read.status_code) == (401, 401)
        assert type(refused(LOGIN, answer(body, 401))) is UnexpectedResponse

    def test_an_acknowledgement_under_401_refuses_nothing(self) -> None:
        """The payment that it names may be made."""
        assert refused(CREATE_COLLECTION, answer(samples.acknowledgement(), 401)).outcome == "unknown"


HTML = b"<html><body>\n <h1>Bad Gateway</h1></body></html>"
UNUSABLE = {
    "html": HTML,
    "empty": b"",
    "blank": b" \r\n",
    "truncated": to_bytes(samples.found())[:-9],
    "array": b"[1]",
    "null": b"null",
    "text": b'"ok"',
    "wrong shape": b'{"status": "success", "transaction": {"id": 5}}',
    "invalid utf-8": b'{"status": "\xff"}',
    "deep": b'{"a":' + b"[" * 100_000,
    "a number out of every range": b'{"a": 1e99999999999999999999}',
}


class TestUnusable:
    @pytest.mark.parametrize("status", [200, 204, 302, 400, 403, 404, 409, 422])
    @pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE)
    def test_below_500_it_is_an_unexpected_response(self, body: bytes, status: int) -> None:
        """The error holds status, content type and the beginning of the body."""
        for endpoint in (GET_TRANSACTION, CREATE_COLLECTION, LIST_TRANSACTIONS, LOGIN):
            error = refused(endpoint, answer(body, status, content_type="text/html"))
            assert type(error) is UnexpectedResponse
            assert (error.status_code, error.content_type, error.outcome) == (status, "text/html", "unknown")
            assert str(error).startswith(f"HTTP {status}, text/html: ")
            assert len(error.excerpt) <= 120
            assert error.excerpt in str(error)

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    @pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE)
    def test_from_500_on_it_is_a_server_error(self, body: bytes, status: int) -> None:
        error = refused(CREATE_COLLECTION, answer(body, status, content_type=None, retry_after="3"))
        assert type(error) is ServerError
        assert (error.status_code, error.code, error.content_type, error.retry_after) == (status, None, None, 3.0)
        html = refused(CREATE_COLLECTION, answer(body, status, content_type="text/html"))
        assert isinstance(html, ServerError)
        assert (html.content_type, html.excerpt) == ("text/html", error.excerpt)
        assert error.excerpt or not body.strip()

    def test_what_it_reads_like(self) -> None:
        assert str(refused(GET_TRANSACTION, answer(HTML, 302, content_type="text/html"))) == (
            "HTTP 302, text/html: not JSON: <html><body> <h1>Bad Gateway</h1></body></html>"
        )
        assert str(refused(GET_TRANSACTION, answer(b"", 200, content_type=None))) == (
            "HTTP 200, no content type: an empty body"
        )
        assert str(refused(GET_TRANSACTION, answer(b"{}", 404))) == (
            "HTTP 404, application/json: no answer of the contract: {}"
        )
        assert str(refused(CREATE_COLLECTION, answer(HTML, 502, content_type="text/html"))) == (
            "ServerError (HTTP 502): text/html: <html><body> <h1>Bad Gateway</h1></body></html>"
        )
        assert str(refused(CREATE_COLLECTION, answer(b"", 503, content_type=None))) == (
            "ServerError (HTTP 503): no content type: an empty body"
        )

    def test_it_says_where_the_json_broke(self) -> None:
        error = refused(GET_TRANSACTION, answer(samples.found(amount="ten")))
        assert isinstance(error, UnexpectedResponse)
        assert error.path == "$.transaction.amount"
        assert "expected a decimal string at $.transaction.amount" in str(error)

    @pytest.mark.parametrize("status", [200, 302, 404, 500, 502])
    def test_the_excerpt_is_short_and_redacted(self, status: int) -> None:
        """A proxy's echo of the request does not reach the logs."""
        body = b'{"phone_number": "+255680000001", "access_token": "eyJhbGciOiJIUzI1NiJ9", "x": "' + b"long " * 4000
        error = refused(CREATE_COLLECTION, answer(body, status))
        assert isinstance(error, UnexpectedResponse | ServerError)
        assert 0 < len(error.excerpt) <= 120
        for secret in ("+255680000001", "eyJhbGci"):
            assert secret not in f"{error!r} {vars(error)}"
        assert "+25568…001" in error.excerpt

    def test_the_service_s_text_is_redacted_too(self) -> None:
        body = payment_shape("RECIPIENT", message="no wallet for +255680000001, token=abc " + "word " * 100)
        error = refused(CREATE_COLLECTION, answer(body, 400))
        assert isinstance(error, APIError)
        assert error.message.startswith("no wallet for +25568…001, token=[redacted] word")
        assert len(error.message) <= 200

    def test_of_a_long_body_two_thousand_bytes_are_looked_at(self) -> None:
        """However much there is that cannot be shown."""
        hidden = "\U000e0001".encode() * 499
        error = refused(GET_TRANSACTION, answer(hidden + b"1234567", 404))
        assert isinstance(error, UnexpectedResponse)
        assert error.excerpt == "1234"


class TestEmpty:
    @pytest.mark.parametrize("status", [200, 201, 204])
    @pytest.mark.parametrize("body", [b"", b" \n"])
    def test_is_a_success_where_the_contract_shows_no_body(self, body: bytes, status: int) -> None:
        """An OTP request that is answered with nothing has worked."""
        assert read_answer(REQUEST_OTP, answer(body, status)) == {}

    def test_is_no_success_under_an_error_status(self) -> None:
        assert type(refused(REQUEST_OTP, answer(b"", 404))) is UnexpectedResponse


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("asked", "seconds"),
        [
            ("30", 30.0),
            ("0", 0.0),
            ('"30"', 30.0),
            ("1", 1.0),
            ("999999999", 999999999.0),
            ('"999999999"', 999999999.0),
            ('"000000030"', 30.0),
            ('"0000000030"', None),
            ("-1", None),
            ('"-1"', None),
            ("null", None),
            ("true", None),
            ("false", None),
            ('""', None),
            ('" 30"', None),
            ('"soon"', None),
            ('"\u0663\u0660"', None),
            ('"9999999999999999"', None),
            ('"Wed, 21 Oct 2025 07:28:00 GMT"', None),
            ("1000000000", None),
            ("1" + "0" * 400, None),
            ("[30]", None),
            ('{"seconds": 30}', None),
        ],
    )
    @pytest.mark.parametrize("where", ["body", "header"])
    def test_only_a_number_of_seconds_counts(self, asked: str, seconds: float | None, where: str) -> None:
        """An odd `retry_after` neither breaks the answer nor makes the client wait for years."""
        body = b'{"status": "error", "error_code": "RATE_LIMIT_EXCEEDED", "retry_after": %s}'
        if where == "body":
            given = answer(body % asked.encode(), 429)
        else:
            given = answer(body % b"null", 429, retry_after=asked.strip('"'))
        error = refused(GET_TRANSACTION, given)
        assert isinstance(error, RateLimitExceeded)
        assert error.retry_after == seconds

    @pytest.mark.parametrize(
        ("date", "seconds"),
        [
            ("Mon, 30 Nov 2026 23:59:30 GMT", 90),
            ("Tue, 01 Dec 2026 00:02:00 GMT", 0),
            ("Mon, 30 Nov 1926 23:59:30 GMT", None),
            ("noon", None),
            (None, None),
        ],
    )
    def test_a_header_may_name_a_time_by_the_clock_of_its_answer(self, date: str | None, seconds: float | None) -> None:
        """The other form of HTTP, which proxies send."""
        given = answer(payment_shape("RATE_LIMIT_EXCEEDED"), 429, retry_after="Tue, 01 Dec 2026 00:01:00 GMT")
        error = refused(GET_TRANSACTION, attrs.evolve(given, date=date))
        assert isinstance(error, RateLimitExceeded)
        assert error.retry_after == seconds

    def test_the_body_wins_over_the_header(self) -> None:
        """The contract documents the field; a proxy may add the header. Zero is an answer too."""
        for asked in (0, 30):
            given = answer(payment_shape("RATE_LIMIT_EXCEEDED", retry_after=asked), 429, retry_after="99")
            error = refused(GET_TRANSACTION, given)
            assert isinstance(error, RateLimitExceeded)
            assert error.retry_after == asked


def check_total(endpoint: Endpoint[Any], given: Answer) -> None:
    """Read an answer: a value or one of our errors, which holds no secret and is not endless."""
    try:
        value = read_answer(endpoint, given)
    except MobileMoneyError as error:
        text = f"{error} {vars(error)}"
        if not isinstance(error, APIError | UnexpectedResponse):
            raise
        shown = [str(error), *(each for each in vars(error).values() if isinstance(each, str))]
        assert all(each.isprintable() and len(each) <= 500 for each in shown)
        if len(text) > 2000 or re.search(r"\+[0-9]{8,15}", text):
            raise
    else:
        assert 200 <= given.status_code < 300
        assert value is not None


statuses = st.integers(min_value=100, max_value=599) | st.sampled_from(STATUSES)
headers = st.none() | st.text(max_size=20) | st.sampled_from(["30", "-1", "application/json", "text/html"])
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["error", "success", "RATE_LIMIT_EXCEEDED", "invalid_token", "+255680000001", "token", "2025-06-01", "10.5"]
)
FIELDS = ["status", "success", "error", "error_code", "message", "retry_after", "transaction", "transactions"]
names = (
    texts
    | st.sampled_from(FIELDS)
    | st.sampled_from([*samples.settled(), *samples.acknowledgement(), *samples.login()])
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.binary(), statuses, headers, headers)
def test_any_bytes_give_a_value_or_one_of_our_errors(
    body: bytes, status: int, content_type: str | None, retry_after: str | None
) -> None:
    """Whatever comes over the wire, a call ends in a value or in an error of this library, at every endpoint."""
    for endpoint in ENDPOINTS:
        check_total(endpoint, Answer(status_code=status, content_type=content_type, retry_after=retry_after, body=body))


@pytest.mark.slow
@given(json_values, statuses, headers)
@settings(max_examples=examples(100))
def test_any_json_gives_a_value_or_one_of_our_errors(body: Any, status: int, retry_after: str | None) -> None:
    """The same for well-formed JSON of any shape, with the contract's own names in the wrong places."""
    for endpoint in ENDPOINTS:
        check_total(endpoint, answer(body, status, retry_after=retry_after))


@pytest.mark.slow
@given(st.data(), statuses)
@settings(max_examples=examples(100))
def test_any_damage_to_a_good_answer_gives_a_value_or_one_of_our_errors(data: st.DataObject, status: int) -> None:
    """The same for an answer that lost bytes or had some changed on the way."""
    good = [samples.found(), samples.page(samples.settled()), samples.acknowledgement(), samples.login()]
    body = bytearray(to_bytes(data.draw(st.sampled_from(good))))
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        at = data.draw(st.integers(min_value=0, max_value=len(body)))
        body[at : at + data.draw(st.integers(min_value=0, max_value=3))] = data.draw(st.binary(max_size=3))
    for endpoint in ENDPOINTS:
        check_total(endpoint, answer(bytes(body), status))


@pytest.mark.parametrize("status", [200, 400, 401, 404, 429, 503])
@pytest.mark.parametrize(
    "hostile", ["\x1b]0;pwned\x07", "\u202e\u2066", "x" * 90_000, "+255.681.234.567 ", "a\r\nb", "\ud800"]
)
def test_texts_of_foreign_origin_are_short_and_printable(hostile: str, status: int) -> None:
    """No escape sequence, no bidi control, no endless content type or code reaches a log or a terminal."""
    body = json.dumps({"status": "error", "error_code": hostile, "message": hostile}).encode()
    for content in (body, hostile.encode("utf-8", "replace"), hostile.encode("utf-16", "replace")):
        for endpoint in ENDPOINTS:
            check_total(endpoint, Answer(status_code=status, content_type=hostile, retry_after=hostile, body=content))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["[]", "{}", "dict", "codes"])
def test_a_body_may_be_nested_as_deep_as_it_likes(kind: str) -> None:
    """Depth ends in one of our errors, not in a RecursionError."""
    for depth in (100, 400, 900, 100_000):
        body = {
            "[]": "[" * depth + "]" * depth,
            "{}": '{"a":' * depth + "1" + "}" * depth,
            "dict": '{"status":"error","a":' * depth + "1" + "}" * depth,
            "codes": '{"error_code":"X","a":' + "[" * depth + "]" * depth + "}",
        }[kind].encode()
        for endpoint in ENDPOINTS:
            for status in (200, 400, 502):
                check_total(endpoint, answer(body, status))


@pytest.mark.parametrize("row", ["{}", "[]", "1", '{"id":1}', '{"":{}}'])
def test_a_list_of_broken_rows_is_left_at_the_first(row: str) -> None:
    """Neither time nor memory grows with the number of rows that cannot be read; nor does the error keep the body."""
    body = b'{"status":"success","transactions":[%s]}' % ",".join([row] * 5_000).encode()
    refused(LIST_TRANSACTIONS, answer(b'{"transactions": [{}]}'))  # imports the converter
    tracemalloc.start()
    try:
        error = refused(LIST_TRANSACTIONS, answer(body))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(error, UnexpectedResponse)
    assert peak < 40 * len(body) + 1_000_000
    assert kept < 2 * len(body) + 500_000


def test_a_successful_page_may_mention_an_error() -> None:
    """`"error": null` beside a result is no error."""
    assert (
        read_answer(GET_TRANSACTION, answer(samples.found() | {"error": None, "success": True})).transaction.id == "t-1"
    )


def test_an_answer_s_repr_does_not_show_its_body() -> None:
    """A traceback with locals does not hold the service's answer."""
    assert "+255680000001" not in repr(answer(samples.found()))


@pytest.mark.parametrize("status", [199, 300, 301, 399])
def test_only_a_status_from_200_to_299_is_a_success(status: int) -> None:
    """A transaction that comes with another one may be a cache's or a proxy's."""
    for each in (200, 201, 202, 299):
        found = read_answer(GET_TRANSACTION, answer(samples.found(), each, content_type=None))
        assert isinstance(found, TransactionAnswer)
        assert found.transaction.id == "t-1"
    with pytest.raises(UnexpectedResponse):
        read_answer(GET_TRANSACTION, answer(samples.found(), status))


@pytest.mark.parametrize("effect", [Effect.READ, Effect.SESSION])
def test_no_content_is_an_answer_where_no_money_moves(effect: Effect) -> None:
    """An endpoint of yours may answer 204 without a body; under 200 or 205 an empty body is no answer."""
    endpoint = undocumented("DELETE", "/x", effect)
    assert read_answer(endpoint, Answer(status_code=204)) == {}
    for status in (200, 205):
        with pytest.raises(UnexpectedResponse):
            read_answer(endpoint, Answer(status_code=status))
