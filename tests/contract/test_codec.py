"""The codec: strict about scalars, exact about numbers, and silent about the body."""

import contextlib
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mobilemoney_async import Acknowledgement, InvalidRequest, LoginResult, Secret, TransactionStatus
from mobilemoney_async.contract import codec
from mobilemoney_async.contract.codec import encode, parse_json, reader
from mobilemoney_async.contract.models import PageAnswer, TransactionAnswer
from mobilemoney_async.contract.plain import DecodeError
from tests.contract import samples
from tests.contract.samples import to_bytes
from tests.support.scale import examples

read_login = reader(LoginResult)

# A timestamp that msgspec refuses and ISO 8601 allows: with it, a body is read the second way.
SECOND = "20250601T120000Z"
RFC_3339 = "2025-06-01T12:00:00Z"

SAMPLES: list[tuple[type[Any], dict[str, Any]]] = [
    (TransactionAnswer, {"status": "success", "transaction": samples.settled()}),
    (PageAnswer, samples.page(samples.settled(), samples.transaction())),
    (Acknowledgement, samples.acknowledgement()),
    (LoginResult, samples.login()),
]

scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63) - 1])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(["1000", "10.10", "-0", "1e5", "NaN", "Infinity", "1_000", " 7 ", "\u0663", "true", "success"])
    | st.sampled_from([RFC_3339, "2025-06-01T12:00:00", "2025-06-01T12:00:00.5+03:00", "9999-12-31T23:59:59-14:00"])
    | st.builds(list)
    | st.builds(dict)
    | st.lists(st.integers(), max_size=2)
)
# As JSON text, since Python has no way to write 100.0, 1E+2 and 1.9 apart.
numbers = st.sampled_from(
    [
        "100.0",
        "1e2",
        "1.9",
        "-0.0",
        "1e16",
        "9007199254740993.0",
        "9007199254740992.0",
        "1e400",
        "1E999999",
        "1E-999999",
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value inside a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for name, inside in items:
        found += places(inside, (*path, name))
    return found


def change(body: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        body = body[step]
    body[path[-1]] = value


@st.composite
def changed_bodies(draw: st.DrawFn) -> tuple[type[Any], bytes]:
    """Return a class, and a body for it of which up to three places hold something else."""
    cls, sample = draw(st.sampled_from(SAMPLES))
    body = json.loads(json.dumps(sample))
    number = None
    for path in draw(st.lists(st.sampled_from(places(sample)), max_size=3)):
        value = draw(scalars | st.just("@number@"))
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change took the place away
            change(body, path, value)
    text = json.dumps(body)
    if "@number@" in text:
        number = draw(numbers)
        text = text.replace('"@number@"', number)
    return cls, text.encode()


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except DecodeError:
        return DecodeError


@pytest.mark.slow
@given(changed_bodies())
@settings(max_examples=examples(400))
def test_both_ways_of_reading_agree(sample: tuple[type[Any], bytes]) -> None:
    """A body means the same whether msgspec reads it or, for its timestamps, cattrs does: one value, or a refusal."""
    cls, body = sample
    fast = outcome(lambda: reader(cls)(body))
    again = outcome(lambda: codec._decode_by_converter(body, cls))
    assert fast == again
    assert repr(fast) == repr(again)


def test_the_second_way_is_taken_for_timestamps_that_are_not_rfc_3339() -> None:
    """The test above really compares the way that such a body goes."""
    body = to_bytes(samples.page(samples.settled(created_at=SECOND), samples.transaction()))
    plain = to_bytes(samples.page(samples.settled(created_at=RFC_3339), samples.transaction()))
    assert reader(PageAnswer)(body) == reader(PageAnswer)(plain)


WRONG: list[tuple[str, list[Any]]] = [
    ("access_token", [None, 5, True, ["a"], {"a": 1}]),
    ("expires_in", [None, "3600", True, 1.9, [3600], "1e3"]),
]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG for value in values])
def test_no_scalar_is_coerced(field: str, value: Any) -> None:
    """1.9 is not 1, null is not "None": a core field of a wrong type is an answer outside the contract."""
    with pytest.raises(DecodeError) as caught:
        read_login(to_bytes(samples.login(**{field: value})))
    assert caught.value.path == f"$.{field}"


def test_nor_is_one_in_the_converter() -> None:
    """Beside a timestamp in another notation, text stays text."""
    for change in ({"currency": None}, {"currency": 5}, {"status": None}, {"id": 5.5}, {"id": True}, {"type": 5}):
        with pytest.raises(DecodeError) as caught:
            reader(TransactionAnswer)(to_bytes(samples.found(created_at=SECOND, **change)))
        assert caught.value.path == f"$.transaction.{next(iter(change))}"


def test_an_integral_number_is_an_integer() -> None:
    """JSON knows one kind of number: 3600.0 is a lifetime, as 3600 is."""
    assert read_login(to_bytes(samples.login(expires_in=3600.0))).expires_in == 3600
    body = to_bytes(samples.page(samples.transaction(created_at=SECOND), per_page=20.0))
    assert reader(PageAnswer)(body).pagination.per_page == 20


def test_a_secret_is_read_as_text_only_in_both_ways() -> None:
    """The token is a secret from the first moment on."""
    body = to_bytes(samples.login())
    assert isinstance(read_login(body).access_token, Secret)
    assert codec._decode_by_converter(body, LoginResult) == read_login(body)
    with pytest.raises(DecodeError, match=r"\$\.access_token"):
        codec._decode_by_converter(to_bytes(samples.login(access_token=5)), LoginResult)


class TestWhereItBroke:
    @pytest.mark.parametrize(
        ("path", "value", "error"),
        [
            (("transactions", 1, "amount"), "secret", "expected a decimal string at $.transactions[1].amount"),
            (("transactions", 0, "status"), 5, "expected str at $.transactions[0].status"),
            (("transactions", 1), "secret", "expected an object at $.transactions[1]"),
            (("transactions",), "secret", "expected an array at $.transactions"),
            (("transactions",), "", "expected an array at $.transactions"),
            (("transactions",), {}, "expected an array at $.transactions"),
            (("transactions", 0, "id"), ["secret"], "expected str at $.transactions[0].id"),
            (("pagination", "per_page"), "secret", "expected int at $.pagination.per_page"),
            (("pagination",), None, "expected an object at $.pagination"),
        ],
    )
    def test_the_error_says_where_and_not_what(self, path: tuple[Any, ...], value: Any, error: str) -> None:
        """The path into the JSON is in the error, the value is not: it may be a token or a phone number."""
        body = samples.page(samples.settled(), samples.transaction())
        change(body, path, value)
        with pytest.raises(DecodeError) as caught:
            reader(PageAnswer)(to_bytes(body))
        assert str(caught.value).startswith(error)
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None

    def test_a_missing_field_is_named(self) -> None:
        body = samples.found()
        del body["transaction"]["currency"]
        with pytest.raises(DecodeError, match=r"^a required field is missing at \$\.transaction\.currency$"):
            reader(TransactionAnswer)(to_bytes(body))

    @pytest.mark.parametrize("body", [b"[]", b"5", b'"text"', b"null", b"true"])
    def test_the_whole_may_be_wrong(self, body: bytes) -> None:
        with pytest.raises(DecodeError) as caught:
            reader(TransactionAnswer)(body)
        assert caught.value.path == "$"


NOT_JSON = {
    "empty": b"",
    "blank": b" \n",
    "html": b"<html></html>",
    "truncated": b'{"status": "succ',
    "trailing": b"{} {}",
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "invalid utf-8": b'{"a": "\xff\xfe"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "lone surrogate": b'{"a": "\\ud800"}',
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a number out of every range": b'{"a": 1e99999999999999999999}',
    "an endless integer": b'{"a": ' + b"9" * 5000 + b"}",
    "nul": b"\x00",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
@pytest.mark.parametrize("cls", [dict[str, Any], TransactionAnswer, LoginResult])
def test_what_is_not_json_is_refused(cls: Any, body: bytes) -> None:
    """Whatever a proxy sends instead of JSON is one kind of error."""
    with pytest.raises(DecodeError):
        reader(cls)(body)
    with pytest.raises(DecodeError, match=r"^(not JSON|too many values)$"):
        parse_json(body)


def test_a_byte_order_mark_before_the_json_is_skipped() -> None:
    """A service behind a server that writes one is read as any other."""
    mark, body = b"\xef\xbb\xbf", to_bytes(samples.page(samples.settled(), samples.transaction(fees=[])))
    assert reader(PageAnswer)(mark + body) == reader(PageAnswer)(body)
    assert parse_json(mark + b'{"error_code": "X"}') == {"error_code": "X"}


def test_fractions_of_undocumented_bodies_are_decimals() -> None:
    """A balance in a profile is exact."""
    assert reader(dict[str, Any])(b'{"balance": 10.10, "n": 1e2, "i": 7}') == {
        "balance": Decimal("10.10"),
        "n": Decimal(100),
        "i": 7,
    }


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


class TestEncoding:
    @pytest.mark.slow
    @given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), plain))
    def test_plain_values_arrive_as_they_are(self, body: dict[str, Any]) -> None:
        """The service parses exactly the values that you put in."""
        assert json.loads(encode("extra", body)) == body

    def test_order_and_bytes_are_kept(self) -> None:
        body = {"b": "é", "a": [1, None, True, {"x": ()}], "s": TransactionStatus("NEW"), "d": Decimal("1.10")}
        assert encode("extra", body) == '{"b":"é","a":[1,null,true,{"x":[]}],"s":"NEW","d":"1.10"}'.encode()

    def test_a_secret_is_revealed_to_the_service_alone(self) -> None:
        """The body holds the password; its repr, in a traceback with locals, does not."""
        content = encode("password", {"password": Secret("hunter2")})
        assert content == b'{"password":"hunter2"}'
        assert repr(content) == "<22 bytes>"

    @pytest.mark.parametrize(
        "value",
        [
            1.0,
            float("nan"),
            [1.0],
            {"a": {"b": [(1.5,)]}},
            {1.5},
            {1: "int key"},
            {"a": {None: 1}},
            {1.5: "float key"},
            {"set"},
            frozenset(),
            b"bytes",
            bytearray(b"bytes"),
            dt.datetime(2025, 6, 1, tzinfo=dt.UTC),
            ...,
            complex(1),
            "\ud800",
            {"\ud800": 1},
            print,
        ],
        ids=repr,
    )
    def test_everything_else_is_refused(self, value: Any) -> None:
        """A float may be money, and a value that JSON does not have would be sent as another one."""
        with pytest.raises(InvalidRequest, match=r"^extra must ") as caught:
            encode("extra", {"field": value})
        assert caught.value.argument == "extra"

    def test_a_circle_is_refused(self) -> None:
        circle: dict[str, Any] = {}
        circle["again"] = circle
        with pytest.raises(InvalidRequest, match=r"nested 64 deep at most"):
            encode("extra", circle)

    def test_sixty_four_levels_are_plain_and_one_more_is_not(self) -> None:
        """The limit is exact: a body of 64 levels inside the field goes out, one of 65 is refused."""

        def nested(levels: int) -> dict[str, Any]:
            value: Any = 1
            for _ in range(levels):
                value = [value]
            return {"field": value}

        assert encode("extra", nested(63)).decode() == '{"field":' + "[" * 63 + "1" + "]" * 63 + "}"
        with pytest.raises(InvalidRequest, match=r"nested 64 deep at most"):
            encode("extra", nested(64))

    @pytest.mark.slow
    @given(st.dictionaries(st.text(), st.floats()))
    def test_no_float_gets_through(self, body: dict[str, Any]) -> None:
        assume(body)
        with pytest.raises(InvalidRequest):
            encode("extra", {"deep": [body]})
