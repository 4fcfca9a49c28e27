"""Core fields decide; a side field that cannot be read hides nothing (`rules.md`: core and side fields)."""

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import Acknowledgement, LoginResult, OutcomeUnknown, Transaction
from mobilemoney_async.contract import plain
from mobilemoney_async.contract.codec import reader
from mobilemoney_async.contract.endpoints import read_rows
from mobilemoney_async.contract.models import PageAnswer, TransactionAnswer
from mobilemoney_async.contract.plain import DecodeError
from tests.contract import samples
from tests.contract.samples import to_bytes
from tests.support.fakes import acknowledgement, make_client, pay, replies
from tests.support.scale import examples
from tests.support.server import Response, serve

CORE = {"id", "type", "amount", "currency", "phone_number", "status"}
SIDE = sorted({each.name for each in attrs.fields(Transaction)} - CORE)
PARTS = [("fees", name) for name in samples.settled()["fees"]]
PARTS += [("settlement", name) for name in samples.settled()["settlement"]]

# JSON texts, since Python has no way to write 1E999999999, a lone surrogate and an endless integer as values.
ODD = st.sampled_from(
    [
        *("1e5", "5.0", "-5", "-0", "1E-999999999999999999999", "9" * 5000, "9" * 30, "18446744073709551616"),
        *('"\\ud800"', '"\\u0000"', '""', '" "', '"…"', '"2025-06-01"', '"9999-12-31T23:59:59-14:00"', '"1e5"'),
    ]
)
anything = ODD | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
).map(json.dumps)


def spelt(body: Any, text: str) -> bytes:
    """Return a body with a JSON text in place of the value "@"."""
    return to_bytes(body).replace(b'"@"', text.encode())


@pytest.fixture(autouse=True)
def _said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_noted", set())
    plain.take_unsaid()


@pytest.mark.slow
@given(st.sampled_from(SIDE), anything)
@settings(max_examples=examples(300))
def test_no_side_field_of_a_transaction_hides_its_core(field: str, text: str) -> None:
    """Whatever JSON stands in a side field, the transaction keeps its id, state and amount, and its other fields."""
    missing: dict[str, Any] = {field: None}
    whole = attrs.evolve(Transaction.from_dict(samples.settled()), **missing)
    row = samples.settled(**{field: "@"})
    reads: list[Callable[[], Transaction]] = [
        lambda: reader(TransactionAnswer)(spelt({"transaction": row}, text)).transaction,
        lambda: reader(PageAnswer)(spelt(samples.page(row), text)).transactions[0],
        lambda: read_rows(spelt(samples.page(row, {}), text)).transactions[0],
    ]
    for read in reads:
        assert attrs.evolve(read(), **missing) == whole


@given(st.sampled_from(PARTS), anything)
@settings(max_examples=examples(100))
def test_parts_of_fees_and_settlement_are_missing_one_by_one(place: tuple[str, str], text: str) -> None:
    """A settlement without a time keeps its net amount and its batch, and so on."""
    part, name = place
    row = samples.settled()
    row[part] = {**row[part], name: "@"}
    whole = getattr(Transaction.from_dict(samples.settled()), part)
    found = getattr(reader(TransactionAnswer)(spelt({"transaction": row}, text)).transaction, part)
    assert attrs.evolve(found, **{name: None}) == attrs.evolve(whole, **{name: None})


@given(st.sampled_from(["token_type", "success", "user", *samples.login()["user"]]), anything)
@settings(max_examples=examples(100))
def test_a_login_needs_nothing_but_its_token_and_lifetime(field: str, text: str) -> None:
    """A user with a text id, or without an e-mail, logs in."""
    body = samples.login()
    part = body["user"] if field in body["user"] else body
    part[field] = "@"
    if (field, text) == ("success", "false"):
        return
    answer = reader(LoginResult)(spelt(body, text))
    assert (answer.access_token.reveal(), answer.expires_in) == ("header.payload.signature", 3600)


@given(st.sampled_from(sorted(samples.acknowledgement().keys() - {"transaction_id"})), anything)
@settings(max_examples=examples(100))
def test_an_acknowledgement_needs_nothing_but_its_id(field: str, text: str) -> None:
    """One whose other fields cannot be read names the payment all the same: it is looked up by that id."""
    assert reader(Acknowledgement)(spelt(samples.acknowledgement(**{field: "@"}), text)).transaction_id == "t-1"
    body = samples.acknowledgement()
    del body[field]
    assert reader(Acknowledgement)(to_bytes(body)).transaction_id == "t-1"


@pytest.mark.parametrize("digits", ["0", "7", "9007199254740993", "18446744073709551617", "1" + "0" * 40, "7" * 5000])
def test_an_identifier_that_is_an_integer_is_its_digits(digits: str) -> None:
    """An id of any size is exact: no float rounds it."""
    row = samples.transaction(**dict.fromkeys(["id", "reference", "external_id", "merchant_id"], "@"))
    found = [
        reader(PageAnswer)(spelt(samples.page(row, row), digits)).transactions[1],
        read_rows(spelt(samples.page(row, {}), digits)).transactions[0],
        reader(TransactionAnswer)(spelt({"transaction": row}, digits)).transaction,
    ]
    for each in found:
        assert (each.id, each.reference, each.external_id, each.merchant_id) == (digits,) * 4
        assert type(each) is Transaction
    if len(digits) <= 200:
        assert (
            reader(Acknowledgement)(spelt(samples.acknowledgement(transaction_id="@"), digits)).transaction_id == digits
        )


@pytest.mark.parametrize("text", ["true", "5.0", "5.5", "1e5", "1E3", "-5", "null", "[5]"])
def test_nothing_else_is_an_identifier(text: str) -> None:
    """A fraction, an exponent or true for an id makes a row unreadable, also among rows with numbers."""
    for name in ("id", "phone_number"):
        body = spelt(samples.page(samples.transaction(id=1), samples.transaction(**{name: "@"})), text)
        with pytest.raises(DecodeError):
            reader(PageAnswer)(body)
    row = reader(PageAnswer)(spelt(samples.page(samples.transaction(id=1, external_id="@")), text)).transactions[0]
    assert (row.id, row.external_id) == ("1", None)


def test_a_phone_number_that_is_an_integer_is_its_digits() -> None:
    row = reader(PageAnswer)(to_bytes(samples.page(samples.transaction(phone_number=255680000001)))).transactions[0]
    assert row.phone_number == "255680000001"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("network", None, "missing or null"),
        ("reference", "", "an empty text"),
        ("created_at", "yesterday", "another text"),
        ("fees", [], "a list"),
        ("settlement", True, "true or false"),
        ("failed_at", 17, "a number"),
        ("failure_reason", {"secret": 1}, "an object"),
    ],
)
def test_it_is_said_once_which_field_cannot_be_read(field: str, value: Any, said: str) -> None:
    """One warning a process, field and kind of value, which does not show the value."""
    body = to_bytes(samples.page(*[samples.transaction(id=f"t-{number}", **{field: value}) for number in range(3)]))
    for _ in range(2):
        reader(PageAnswer)(body)
        read_rows(body)
    assert plain.take_unsaid() == [
        f"Transaction.{field} cannot be read in an answer of the service, and counts as missing: it is {said}"
    ]


def test_a_part_that_is_null_is_said_too() -> None:
    """A settlement without its time is no normal one."""
    row = samples.settled(settlement={**samples.settled()["settlement"], "settled_at": None})
    reader(PageAnswer)(to_bytes(samples.page(row)))
    assert [each.partition(" ")[0] for each in plain.take_unsaid()] == ["Settlement.settled_at"]


def test_a_part_that_is_none_costs_other_rows_nothing() -> None:
    """Each row is read as by the converter, whatever msgspec has refused in another one before."""
    late = {**samples.settled()["settlement"], "settled_at": "2025-01-01T10"}
    rows = [samples.settled(settlement=late), samples.settled(id="t-2", settlement=[])]
    page = reader(PageAnswer)(to_bytes(samples.page(*rows)))
    settled = page.transactions[0].settlement
    assert settled is not None and settled.settled_at is not None
    assert page.transactions[1].settlement is None


async def test_an_error_lacks_no_field_of_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Of an acknowledgement that there is none of, nothing is said to be missing."""
    said = {"status": "error", "error_code": "X", "message": "no"}
    steps = replies(Response.json(said), acknowledgement())
    async with serve(steps) as server, make_client(base_url=server.base_url) as client:
        with pytest.raises(OutcomeUnknown):
            await pay(client)
        await pay(client)
    assert not [each for each in caplog.messages if "counts as missing" in each]


def test_what_the_contract_shows_only_sometimes_is_missing_without_a_word() -> None:
    """A pending collection has no end, no reason and no settlement, absent or null."""
    names = ["external_id", "merchant_id", "completed_at", "failed_at", "failure_reason", "fees", "settlement"]
    changes: list[dict[str, Any]] = [{}, {"id": 5}, {"created_at": "20250601T120000Z"}]
    for row in (samples.transaction(), samples.transaction(**dict.fromkeys(names))):
        for change in changes:
            reader(PageAnswer)(to_bytes(samples.page(row | change)))
    assert plain.take_unsaid() == []
