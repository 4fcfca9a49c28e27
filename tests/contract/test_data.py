"""Values as data: each goes into plain JSON and comes back equal, also through pydantic; or is refused, unseen."""

import json
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import attrs
import httpx
import msgspec
import orjson
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import (
    Acknowledgement,
    APIError,
    HistoryEntry,
    InvalidRequest,
    LoginResult,
    MobileMoneyError,
    Outcome,
    PaymentChange,
    PaymentRecord,
    PaymentState,
    Secret,
    StoreError,
    Transaction,
    TransactionNotFound,
    TransactionPage,
    TransactionStatus,
    TransactionType,
    WaitTimeout,
    converter,
)
from mobilemoney_async.contract import endpoints
from mobilemoney_async.contract.data import Data
from mobilemoney_async.contract.models import PageAnswer, RowsAnswer, TransactionAnswer, UnreadableRow
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.contrib import orders
from mobilemoney_async.payments.audit import report as audit_report
from mobilemoney_async.payments.feed import consumers
from mobilemoney_async.payments.outbox import dispatcher
from mobilemoney_async.payments.payouts import batch as payout_batch
from mobilemoney_async.payments.records import queries
from mobilemoney_async.testing import acknowledgement_answer, login_answer, page_answer, transaction_answer
from mobilemoney_async.testing import answers as known
from mobilemoney_async.text import mask_phone_number
from tests.contract import samples
from tests.support.scale import examples
from tests.support.warm import run_without
from tests.test_errors import ERRORS

ROOT = Path(__file__).parents[2]
# Imported, so that their values are known here.
HOMES = (audit_report, consumers, dispatcher, orders, payout_batch, queries)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
PAID = Transaction.from_dict(samples.settled())


def classes(base: type[Any] = Data) -> Iterator[Any]:
    """Yield every class of values; attrs makes each twice, and only one of the two is in its module."""
    for each in base.__subclasses__():
        if getattr(sys.modules[each.__module__], each.__name__, None) is each:
            yield each
        yield from classes(each)


VALUES = sorted(
    {*classes(), TransactionAnswer, PageAnswer, RowsAnswer, UnreadableRow}, key=lambda each: str(each.__name__)
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(exclude_categories=["Cs"], exclude_characters="…"), max_size=20),
    int: st.integers(0, 10**9),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Decimal: st.builds(
        lambda digits, places: Decimal(digits).scaleb(-places), st.integers(0, 10**20 - 1), st.integers(0, 19)
    ),
    datetime: st.datetimes(
        min_value=datetime(1900, 1, 1),  # noqa: DTZ001 (hypothesis wants it so)
        max_value=datetime(9000, 1, 1),  # noqa: DTZ001
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=3))]),
    ),
    date: st.dates(),
    types.NoneType: st.none(),
    MobileMoneyError: st.sampled_from(ERRORS),
    Secret: st.just(Secret("header.payload.signature")),
}


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a field's type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin in {Union, types.UnionType}:
        return st.one_of(*map(any_of, args))
    if origin in {tuple, Sequence}:
        return st.lists(any_of(args[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(any_of(args[0]), any_of(args[1]), max_size=3)
    if issubclass(kind, Enum):
        odd = [kind("of a later contract")] if hasattr(kind, "is_known") else []
        return st.sampled_from([*kind, *odd])
    fields = {each.alias: each for each in attrs.fields(attrs.resolve_types(kind)) if not each.name.startswith("_")}
    ids = {"transaction_id": st.just("t-1"), "reference": st.just("r-1")} if kind is Acknowledgement else {}
    return st.builds(kind, **{name: any_of(each.type) for name, each in fields.items()} | ids)


def comparable(value: Any) -> Any:
    """Return a value with its errors as what two equal ones have in common."""
    if attrs.has(type(value)):
        return type(value), {
            each.name: comparable(getattr(value, each.name)) for each in attrs.fields(type(value)) if each.eq
        }
    if isinstance(value, tuple | list):
        return [comparable(each) for each in value]
    if isinstance(value, MobileMoneyError):
        return type(value), value.args, {**vars(value), "outcome": value.outcome}
    return value


def again(value: Any) -> Any:
    """Return a value that has been data and JSON text, with its token, which is in no data."""
    data = json.loads(json.dumps(converter.unstructure(value), allow_nan=False))
    if isinstance(value, LoginResult):
        assert "access_token" not in data
        data["access_token"] = value.access_token.reveal()
    return converter.structure(data, type(value))


@pytest.mark.costly("runs lines of contract/models.py that no quick test runs")
@pytest.mark.parametrize("cl", VALUES)
def test_every_value_comes_back_equal_from_json(cl: Any) -> None:
    """Each field comes back, to the last digit and microsecond, and so do values that the contract does not list."""

    @settings(max_examples=examples(20))
    @given(any_of(cl))
    def check(value: Any) -> None:
        assert comparable(again(value)) == comparable(value)

    check()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_comes_back_equal_from_json(error: MobileMoneyError) -> None:
    """By class, text and every attribute: another process can raise it again."""
    text = json.dumps(converter.unstructure(Outcome(transaction_id="t-1", error=error)))
    back = Outcome.from_dict(json.loads(text)).error
    assert comparable(back) == comparable(error)


def answers() -> Iterator[tuple[endpoints.Endpoint[Any], bytes]]:
    """Yield every answer that tests know, with each endpoint: samples, fixtures of merchants, the fuzzer's corpus."""
    made: list[httpx.Response] = [acknowledgement_answer(), login_answer(), page_answer(known.transaction_record())]
    made += [
        transaction_answer(status=str(each), type=str(kind)) for each in TransactionStatus for kind in TransactionType
    ]
    bodies = [each.content for each in made]
    bodies += map(
        samples.to_bytes, (samples.found(), samples.login(), samples.acknowledgement(), samples.page(samples.settled()))
    )
    bodies += [path.read_bytes()[2:] for path in sorted((ROOT / "tests" / "fuzz" / "corpus").iterdir())]
    for endpoint in (each for each in vars(endpoints).values() if isinstance(each, endpoints.Endpoint)):
        yield from ((endpoint, body) for body in bodies)


def test_every_answer_that_a_test_knows_comes_back_equal() -> None:
    """What the service answers can be queued and kept."""
    compared = 0
    for endpoint, body in answers():
        try:
            value = endpoint.read(body)
        except DecodeError:
            continue
        assert again(value) == value
        compared += attrs.has(type(value))
    assert compared > 25


def test_data_is_spelt_as_the_contract_spells_it() -> None:
    """Money and times are texts, and a body of the service is the data of its value."""
    for sample in (samples.settled(), samples.transaction(status="HELD", amount="0.0000001")):
        assert Transaction.from_dict(sample).to_dict() == sample
    sample = samples.acknowledgement(amount="1000.00")
    assert Acknowledgement.from_dict(sample).to_dict() == sample
    assert Acknowledgement.from_dict(sample).to_json().isascii()
    assert {type(each) for each in PAID.to_dict().values()} == {str, dict}


def record(**changes: Any) -> PaymentRecord:
    return PaymentRecord(
        key="k-1",
        type=TransactionType.COLLECTION,
        phone_number="+255680000001",
        amount=Decimal(1000),
        state=PaymentState.FINAL,
        attempt=1,
        created_at=NOON,
        changed_at=NOON,
        transaction=PAID,
        error="refused for 0680 000 001",
        external_id="order of +255680000001",
        history=(HistoryEntry(at=NOON, what="sent", source="caller", detail="asked by +255680000001"),),
        **changes,
    )


MASKED = [
    PAID,
    record(),
    PaymentChange(cursor="c", key="k-1", state=PaymentState.FINAL, status=None, at=NOON, record=record()),
    Outcome(transaction_id="t-1", error=WaitTimeout("late", transaction_id="t-1", transaction=PAID)),
    Acknowledgement.from_dict(samples.acknowledgement(message="sent to +255 680 000 001")),
    TransactionPage.from_dict(samples.page(samples.settled(failure_reason="none for 0680000001"))),
    Transaction.from_dict(samples.settled(status="SENT_TO_255680000001", type="for 0680000001")),
    *(
        Transaction.from_dict(samples.settled(failure_reason=word, external_id=word))
        for word in ["PAYER_255680000001_NOT_FOUND", "payer:0680000001", "0680_000_001-7", "00255680000001"]
    ),
]


@pytest.mark.parametrize("value", MASKED, ids=lambda each: type(each).__name__)
def test_masked_data_has_no_phone_number_and_is_not_taken_for_whole(value: Any) -> None:
    """A log or a web answer shows none, in any text; and what is masked never becomes a payment's value again."""
    text = value.to_json(mask=True)
    assert not re.search("680[ _]?000[ _]?001", text)
    assert json.loads(text) == value.to_dict(mask=True)
    assert comparable(type(value).from_dict(value.to_dict())) == comparable(value)
    with pytest.raises(
        InvalidRequest, match=rf"^data must be that of {type(value).__name__}: a masked phone number at \$"
    ) as caught:
        type(value).from_dict(json.loads(text))
    assert caught.value.argument == "data"


def test_ids_stay_readable_in_masked_data() -> None:
    """What support staff look for is in the log: ids, keys, codes of reasons."""
    name = "550e8400-e29b-41d4-a716-446655440000"
    history = (HistoryEntry(at=NOON, what="acknowledged", source="answer", detail=name),)
    reason = "no later payment to compare with"
    found = attrs.evolve(record(transaction_id="txn_00f3", reason=reason), history=history)
    data = found.to_dict(mask=True)
    assert data["history"][0]["detail"] == name
    assert name in repr(found)
    assert (data["key"], data["transaction_id"]) == ("k-1", "txn_00f3")
    assert data["reason"] == reason
    assert data["transaction"]["external_id"] == "order-7"


def test_ids_stay_readable_in_a_masked_audit() -> None:
    """An operator works with it: its reasons name transactions and keys that read like secrets."""
    name, key = "0b9c8f0e-5d0c-4d8e-9f43-2f6a1c7b9d10", "order-2026-11-28-000000017"
    reason = f"no payment claims transaction {name} (SUCCESS), which may be payment {key!r}: that is UNKNOWN"
    found = audit_report.difference(audit_report.DifferenceKind.UNCLAIMED, reason)
    total = audit_report.totals_of([Transaction.from_dict(samples.settled(status="SENT_TO_255680000001"))])
    days: dict[str, Any] = {"from_date": NOON.date(), "to_date": NOON.date()}
    report = audit_report.AuditReport(transactions=1, payments=1, differences=[found], totals=total, **days)
    assert json.loads(report.to_json(mask=True))["differences"][0]["reason"] == reason
    assert "680000001" not in report.to_json(mask=True) + repr(report)


WRONG: list[tuple[Any, str]] = [
    (None, "expected an object at $"),
    ([], "expected an object at $"),
    ("{}", "expected an object at $"),
    ({}, "a required field is missing at $.id"),
    (samples.transaction(amount="1e5"), "expected a decimal string at $.amount"),
    (samples.transaction(amount="1_000"), "expected a decimal string at $.amount"),
    (samples.transaction(amount=10.5), "expected a decimal string at $.amount"),
    (samples.transaction(amount="1" * 21), "expected a decimal string at $.amount"),
    (samples.transaction(amount=math.nan), "expected a decimal string at $.amount"),
    (samples.transaction(created_at="yesterday"), "expected an ISO 8601 timestamp at $.created_at"),
    (samples.transaction(reference=5), "expected str at $.reference"),
    (samples.settled(fees=[]), "expected an object at $.fees"),
    (samples.transaction(external_id="secret", currency=None), "expected str at $.currency"),
]


@pytest.mark.parametrize(("data", "problem"), WRONG)
def test_wrong_data_is_refused_with_its_place(data: Any, problem: str) -> None:
    """The error is ours, names the place, and shows nothing of the data, not even in its context."""
    with pytest.raises(InvalidRequest) as caught:
        Transaction.from_dict(data)
    assert str(caught.value) == f"data must be that of Transaction: {problem}"
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "error",
    [
        {},
        {"type": "TransactionNotFound"},
        {"type": "TransactionNotFound", "args": ["x"]},
        {"type": "TransactionNotFound", "args": ["x"], "status_code": "404"},
        {"type": "TransactionNotFound", "args": "x", "status_code": 404},
        {"type": "printable", "args": ["x"]},
        {"type": "MobileMoneyError", "args": ["x"], "outcome": "paid"},
        {"type": ["MobileMoneyError"], "args": ["x"]},
        "TransactionNotFound",
    ],
)
def test_wrong_data_of_an_error_is_refused(error: Any) -> None:
    """An error that comes back has its attributes, of their types."""
    with pytest.raises(InvalidRequest, match=r"^data must be that of Outcome: "):
        Outcome.from_dict({"transaction_id": "t-1", "error": error})


def test_an_error_of_another_release_comes_back_as_the_base() -> None:
    """What this release does not know is not taken for something else; what happened to the request stays."""
    data = Outcome(transaction_id="t-1", error=orders.TooManyOrders("full", idempotency_key="k-1")).to_dict()
    back = Outcome.from_dict(data).error
    assert type(back) is MobileMoneyError
    assert (str(back), back.outcome, back.idempotency_key) == ("full", "not_sent", "k-1")
    plain = {"type": "TransactionNotFound", "args": ["x"], "status_code": 404, "raise": 1, "with_traceback": 2}
    found = Outcome.from_dict({"transaction_id": "t-1", "error": plain}).error
    assert isinstance(found, TransactionNotFound)
    assert (found.code, found.message, found.retry_after) == (None, "", None)
    assert callable(found.with_traceback)


@attrs.frozen
class Order:
    """Class of a user's own."""

    name: str
    payment: Transaction
    more: list[Transaction] = attrs.field(factory=list)
    by_name: dict[str, Transaction] = attrs.field(factory=dict)
    place: tuple[int, str] = (1, "a")


def test_the_converter_takes_classes_of_one_s_own() -> None:
    """Lists and mappings of values, and attrs classes that hold them."""
    order = Order("o-1", PAID, [PAID], {"a": PAID}, (2, "b"))
    assert converter.structure(converter.unstructure(order), Order) == order
    assert converter.structure(converter.unstructure({"a": PAID}), dict[str, Transaction]) == {"a": PAID}
    assert converter.structure([PAID.to_dict()] * 300, list[Transaction]) == [PAID] * 300
    for wrong in [[1], [1, "a", 2], ["a", 1], "1a"]:
        with pytest.raises(InvalidRequest, match=r"^data must be that of tuple: expected .* at \$"):
            converter.structure(wrong, tuple[int, str])
    error = converter.unstructure(TransactionNotFound("no such payment", status_code=404))
    assert isinstance(converter.structure(error, APIError), TransactionNotFound)
    with pytest.raises(InvalidRequest, match=r"^data must be that of StoreError: expected StoreError at \$"):
        converter.structure(error, StoreError)
    with pytest.raises(InvalidRequest, match=r"^data must be that of list: a masked phone number at \$\[1\]"):
        converter.structure([PAID.to_dict(), PAID.to_dict(mask=True)], list[Transaction])


def test_a_copy_takes_hooks_of_one_s_own() -> None:
    """What a program registers on a copy changes nothing for the library."""
    own = converter.copy()
    own.register_unstructure_hook(Decimal, lambda amount: f"{amount} TZS")
    assert own.unstructure(PAID)["amount"] == "1000 TZS"
    assert own.unstructure(Order("o-1", PAID, by_name={"a": PAID}))["by_name"]["a"]["amount"] == "1000 TZS"
    late = WaitTimeout("late", transaction_id="t-1", transaction=PAID)
    assert own.unstructure(late)["transaction"]["amount"] == "1000 TZS"
    assert own.structure(converter.unstructure(PAID), Transaction) == PAID
    assert converter.unstructure(PAID)["amount"] == "1000"


def test_a_secret_is_not_written() -> None:
    """A token goes nowhere by accident."""
    login = LoginResult.from_dict(samples.login())
    assert "payload" not in login.to_json() + login.to_json(mask=True)
    with pytest.raises(InvalidRequest, match="without secrets"):
        converter.unstructure({"token": login.access_token})


def test_other_encoders_write_the_same() -> None:
    """As docs/data.md says: json and orjson by the converter, msgspec and aiohttp by the dict."""
    texts = [encode({"paid": PAID}, default=converter.unstructure) for encode in (json.dumps, orjson.dumps)]
    assert [json.loads(text)["paid"] for text in texts] == [PAID.to_dict()] * 2
    assert json.loads(msgspec.json.encode(PAID.to_dict())) == PAID.to_dict()
    assert json.loads(str(web.json_response(PAID.to_dict(mask=True)).text)) == PAID.to_dict(mask=True)


def test_masks_are_those_of_the_logs() -> None:
    """One way to mask a phone number."""
    assert PAID.to_dict(mask=True)["phone_number"] == mask_phone_number(PAID.phone_number)


@pytest.mark.once
def test_values_need_neither_pydantic_nor_the_converter() -> None:
    """Without pydantic installed, values are data as well; cattrs is imported when the first becomes data."""
    program = """
import sys
sys.modules["pydantic"] = sys.modules["pydantic_core"] = None
import mobilemoney_async
from mobilemoney_async import Transaction
Transaction
assert "cattrs" not in sys.modules
print(Transaction.from_dict(eval(sys.argv[1])).to_json())
"""
    ran = run_without(program, repr(samples.settled()))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == samples.settled()
