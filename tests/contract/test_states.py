"""Final states, and values that the service may invent."""

import copy
import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import Network, TransactionStatus, TransactionType
from mobilemoney_async.contract.states import OpenEnum, is_final

ENUMS: list[type[OpenEnum]] = [TransactionStatus, TransactionType, Network]
UNKNOWN = "SOMETHING_NEW"

# The two tables of the contract, section 3: state -> final.
CONTRACT = {
    "collection": {"PENDING": False, "SUCCESS": True, "FAILED": True, "TIMEOUT": True},
    "disbursement": {"PROCESSING": False, "SUCCESS": True, "FAILED": True, "INSUFFICIENT_FUNDS": True},
}


@pytest.mark.parametrize("kind", [*TransactionType, UNKNOWN])
@pytest.mark.parametrize("status", [*TransactionStatus, UNKNOWN, "success", ""])
def test_final_is_what_the_contract_calls_final(kind: str, status: str) -> None:
    """Of every type and status: a payment is done only by the contract's table for its type."""
    if kind in CONTRACT:
        expected = CONTRACT[kind].get(status, False)
    else:
        expected = all(table.get(status, False) for table in CONTRACT.values())
    assert is_final(kind, status) is expected
    assert is_final(TransactionType(kind), TransactionStatus(status)) is expected


def test_the_enums_are_the_contract_s_words() -> None:
    assert {str(status) for status in TransactionStatus} == {*CONTRACT["collection"], *CONTRACT["disbursement"]}
    assert {str(kind) for kind in TransactionType} == {*CONTRACT}
    assert [str(network) for network in Network] == ["airtel_money"]


@pytest.mark.parametrize("cls", ENUMS)
@given(text=st.text())
def test_any_text_is_kept(cls: type[OpenEnum], text: str) -> None:
    """A value that the contract does not list keeps its text, and behaves as that text everywhere."""
    member = cls(text)
    assert isinstance(member, cls)
    assert member == text
    assert member == cls(text)
    assert hash(member) == hash(text)
    assert {text: 1}[member] == 1
    assert (str(member), member.value, f"{member}", f"{member:s}") == (text, text, text, text)
    assert json.loads(json.dumps(member)) == text
    assert member.is_known is (text in [known.value for known in cls])


@pytest.mark.parametrize("cls", ENUMS)
@given(text=st.text())
def test_any_value_travels(cls: type[OpenEnum], text: str) -> None:
    """Pickling and copying keep class and text, of known and unknown values."""
    member = cls(text)
    for again in (
        copy.copy(member),
        copy.deepcopy(member),
        *(pickle.loads(pickle.dumps(member, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    ):
        assert type(again) is cls
        assert again == member


@pytest.mark.parametrize("cls", ENUMS)
def test_known_values_are_single(cls: type[OpenEnum]) -> None:
    """`is` works for the values of the contract."""
    for member in cls:
        assert cls(member.value) is member
        assert pickle.loads(pickle.dumps(member)) is member
        assert member.is_known


def test_an_invented_value_is_not_remembered() -> None:
    """A service that invents values does not fill the memory, nor the list of known ones."""
    before = list(TransactionStatus)
    assert not TransactionStatus(UNKNOWN).is_known
    assert list(TransactionStatus) == before
    assert not TransactionStatus(UNKNOWN).is_known


def test_the_name_of_a_value_is_no_value() -> None:
    """The contract's `collection` is known; `COLLECTION`, as Python names it, is an invented value."""
    assert not TransactionType(TransactionType.COLLECTION.name).is_known


@pytest.mark.parametrize("cls", ENUMS)
@pytest.mark.parametrize("value", [None, 1, b"PENDING", ["PENDING"]])
def test_only_text_is_a_value(cls: type[OpenEnum], value: object) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        cls(value)


def test_an_unknown_value_shows_no_terminal_sequence() -> None:
    """Its text is as the service wrote it, its `repr` is printable."""
    status = TransactionStatus("\x1b[31m\u202e")
    assert str(status) == "\x1b[31m\u202e"
    assert repr(status).isprintable()
    assert repr(TransactionStatus("REVERSED")) == "<TransactionStatus.REVERSED: 'REVERSED'>"


@pytest.mark.parametrize("text", ["SENT_TO_255680000001", "0680000001", "sent to +255 680 000 001"])
def test_an_unknown_value_shows_no_phone_number(text: str) -> None:
    """Its `repr` and its name are masked: errors and logs hold them. Its text is as the service wrote it."""
    status = TransactionStatus(text)
    assert (str(status), status.value, status == text) == (text, text, True)
    assert not re.search(r"680\D?000\D?001", f"{status!r} {status.name} {[status]}")
