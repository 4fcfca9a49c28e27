"""The endpoint table is the contract's, and a target addresses its endpoint."""

from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import Effect, InvalidRequest, Priority
from mobilemoney_async.contract import endpoints
from mobilemoney_async.contract.endpoints import FIND_TRANSACTION, GET_TRANSACTION, Endpoint, undocumented

# Contract, section 4: method, path, whether the bearer token is required, and our effect and lane.
CONTRACT = [
    ("POST", "/payment-service/airtel/c2b", True, Effect.MONEY, Priority.PAYMENT),
    ("POST", "/payment-service/airtel/b2c", True, Effect.MONEY, Priority.PAYMENT),
    ("GET", "/payment-service/transaction/{transaction_id}", True, Effect.READ, Priority.LOOKUP),
    ("GET", "/payment-service/transaction", True, Effect.READ, Priority.LOOKUP),
    ("GET", "/payment-service/transactions", True, Effect.READ, Priority.LOOKUP),
    ("GET", "/user-service/profile", True, Effect.READ, Priority.LOOKUP),
    ("GET", "/user-service/users/profile", True, Effect.READ, Priority.LOOKUP),
    ("POST", "/user-service/login", False, Effect.SESSION, Priority.PAYMENT),
    ("POST", "/user-service/request-otp", True, Effect.SESSION, Priority.LOOKUP),
    ("POST", "/user-service/verify-otp", True, Effect.SESSION, Priority.LOOKUP),
    ("POST", "/user-service/forgot-password", False, Effect.SESSION, Priority.LOOKUP),
    ("POST", "/user-service/reset-password", False, Effect.SESSION, Priority.LOOKUP),
]

TABLE: list[Endpoint[Any]] = [value for value in vars(endpoints).values() if isinstance(value, Endpoint)]


def test_the_table_is_the_contract_s_list() -> None:
    """Every endpoint of the contract, once, and no other."""
    rows = [(row.method, row.path, row.bearer, row.effect, row.lane) for row in TABLE]
    assert sorted(rows, key=str) == sorted(CONTRACT, key=str)


def test_only_answers_that_the_contract_does_not_show_may_be_empty() -> None:
    """An empty answer to a payment or a lookup is no answer."""
    assert {row.path.rpartition("/")[2] for row in TABLE if row.empty_is_success} == {
        "request-otp",
        "verify-otp",
        "forgot-password",
        "reset-password",
    }


@pytest.mark.parametrize(
    ("effect", "lane"),
    [(Effect.READ, Priority.LOOKUP), (Effect.SESSION, Priority.LOOKUP), (Effect.MONEY, Priority.PAYMENT)],
)
def test_an_undocumented_endpoint_goes_in_the_lane_of_its_effect(effect: Effect, lane: Priority) -> None:
    row = undocumented("PUT", "/x", effect)
    assert (row.method, row.path, row.bearer, row.effect, row.lane) == ("PUT", "/x", True, effect, lane)
    assert row.read(b'{"a": 1.10}') == {"a": Decimal("1.10")}


identifiers = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: bool(text.strip()))


@given(identifiers.filter(lambda text: text not in {".", ".."}))
def test_an_id_is_one_segment_of_the_path(identifier: str) -> None:
    """Whatever the id, the request goes to the lookup by id, and the service sees the id as it was given."""
    target = GET_TRANSACTION.target({"transaction_id": identifier}, {})
    before, _, segment = target.rpartition("/")
    assert before == "/payment-service/transaction"
    assert target.isascii()
    assert not set(segment) & set("?#/ ;{}")
    assert segment not in {"", ".", ".."}
    assert unquote(segment) == identifier


@pytest.mark.slow
@given(st.dictionaries(identifiers, st.one_of(identifiers, st.integers()), min_size=1))
def test_a_query_arrives_as_it_was_given(query: dict[str, str | int]) -> None:
    """Plus signs, ampersands and other scripts survive the query string."""
    target = FIND_TRANSACTION.target({}, query)
    assert target.isascii()
    parts = urlsplit(target)
    assert parts.path == FIND_TRANSACTION.path
    assert "+" not in parts.query
    assert dict(parse_qsl(parts.query, keep_blank_values=True)) == {name: str(value) for name, value in query.items()}


@pytest.mark.parametrize(
    ("identifier", "segment"),
    [
        ("a/b", "a%2Fb"),
        ("a+b", "a%2Bb"),
        ("100%", "100%25"),
        ("%2e%2e", "%252e%252e"),
        ("../x", "..%2Fx"),
        ("a?b#c", "a%3Fb%23c"),
        ("{transaction_id}", "%7Btransaction_id%7D"),
        ("ñ€😀", "%C3%B1%E2%82%AC%F0%9F%98%80"),
        ("A-z_0.9~", "A-z_0.9~"),
        (" x", "%20x"),
    ],
)
def test_quoting_of_ids(identifier: str, segment: str) -> None:
    assert GET_TRANSACTION.target({"transaction_id": identifier}, {}) == f"/payment-service/transaction/{segment}"


@pytest.mark.parametrize("identifier", ["", " ", ".", "..", "\ud800", None, 5])
def test_an_id_that_addresses_another_endpoint_is_refused(identifier: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^transaction_id must be "):
        GET_TRANSACTION.target({"transaction_id": identifier}, {})
