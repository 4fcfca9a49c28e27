"""Comparison of an answer with the payment that was asked for: by value, and no text is more than a text."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from mobilemoney_async import Acknowledgement, Transaction, TransactionStatus
from mobilemoney_async.contract.comparison import (
    contradiction,
    differences,
    international,
    local_digits,
    may_be_number,
    own_local_digits,
    same_number,
)
from mobilemoney_async.contract.endpoints import CREATE_COLLECTION, GET_TRANSACTION
from tests.contract import samples
from tests.contract.samples import to_bytes

OWN = "+255681234567"


def acknowledgement(**changes: Any) -> Acknowledgement:
    read: Acknowledgement = CREATE_COLLECTION.read(to_bytes(samples.acknowledgement(phone_number=OWN, amount="1000")))
    return attrs.evolve(read, **changes)


def transaction(**changes: Any) -> Transaction:
    read: Transaction = GET_TRANSACTION.read(to_bytes(samples.found(phone_number=OWN, amount="1000"))).transaction
    return attrs.evolve(read, **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"amount": Decimal("1000.00")}, None),
        ({"amount": Decimal(999)}, "amount"),
        ({"currency": " tzs"}, None),
        ({"currency": "USD"}, "currency"),
        ({"phone_number": "0681 234 567"}, None),
        ({"phone_number": "25568****567"}, None),
        ({"phone_number": "+255681234568"}, "phone number"),
        ({"phone_number": ""}, "phone number"),
        ({"amount": Decimal(1), "phone_number": "0"}, "amount and phone number"),
    ],
)
def test_an_answer_names_the_payment_that_was_asked_for(changes: dict[str, Any], reason: str | None) -> None:
    """In any spelling; each difference is named, and none is overlooked."""
    for kind, answer in (("acknowledgement", acknowledgement(**changes)), ("transaction", transaction(**changes))):
        expected = None if reason is None else f"the {kind} names another {reason}"
        assert contradiction(answer, type="collection", phone_number=OWN, amount="1000") == expected


@pytest.mark.parametrize(("status", "reason"), [(" Success", None), ("error", "status"), ("", "status")])
def test_an_acknowledgement_says_success(status: str, reason: str | None) -> None:
    """The status of a transaction is another matter."""
    expected = reason and f"the acknowledgement names another {reason}"
    answer = acknowledgement(status=status)
    assert contradiction(answer, type="collection", phone_number=OWN, amount="1000") == expected


@pytest.mark.parametrize("state", ["PENDING", "PROCESSING", "SUCCESS", "FAILED", "pending ", "", "QUEUED"])
@pytest.mark.parametrize(("kind", "first"), [("collection", "PENDING"), ("disbursement", "PROCESSING")])
def test_an_acknowledgement_shows_the_first_state_of_its_type(state: str, kind: str, first: str) -> None:
    """A collection begins PENDING, a disbursement PROCESSING (sections 3, 4.1 and 4.2)."""
    answer = acknowledgement(status_code=TransactionStatus(state))
    expected = None if state.strip().upper() == first else "the acknowledgement names another first state"
    assert contradiction(answer, type=kind, phone_number=OWN, amount="1000") == expected


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"type": "c2b"}, True),
        ({"type": " Disbursement"}, False),
        ({"amount": Decimal(1001)}, False),
        ({"currency": "USD"}, False),
        ({"currency": " tzs"}, True),
        ({"currency": "TSh"}, True),
        ({"currency": ""}, True),
        ({"phone_number": "********"}, True),
        ({"phone_number": "+255681234568"}, False),
    ],
)
def test_only_what_is_another_payment_s_contradicts_a_transaction_of_the_id(
    changes: dict[str, Any], is_same: bool
) -> None:
    """The contract's word for the other type, another amount or currency, the digits of another number."""
    shown = transaction(**{"type": "collection", **changes})
    asked = SimpleNamespace(type="collection", phone_number=OWN, amount="1000")
    assert is_same is not any(differences(shown, asked))


@pytest.mark.parametrize(
    "shown", [r"25568\d*4567", "[0-9]{5}*4567", "25568[12]*4567", "255|25568*4567", "2556812a*4567"]
)
def test_a_text_is_no_pattern(shown: str) -> None:
    """Digits that are not shown are not made up: such a text proves no number."""
    assert same_number(shown, OWN) is None


@pytest.mark.parametrize(("shown", "may_be"), [("0681xxx568", False), ("0681xxx567", True), ("0681yyy568", True)])
def test_an_x_hides_a_digit_in_either_case(shown: str, may_be: bool) -> None:
    """Other letters hide the whole number."""
    assert may_be_number(shown, OWN) is may_be


@pytest.mark.parametrize(
    ("shown", "digits"),
    [
        ("255681234567", "681234567"),
        ("+255681234567", "681234567"),
        (" +255681234567", "681234567"),
        ("2550681234567", "681234567"),
        ("0681234567", "681234567"),
        ("00255681234567", "681234567"),
        ("25568123456", None),
        ("681234567", None),
        ("068123456", None),
        ("0000681234567", "681234567"),
        ("0681 234 567", None),
        ("25568****567", None),
        ("\u0660\u0666\u0668\u0661\u0662\u0663\u0664\u0665\u0666\u0667", None),
        ("", None),
    ],
)
def test_a_whole_number_is_found_by_its_last_nine_digits(shown: str, digits: str | None) -> None:
    """One that may lack digits, at either end, is compared with all."""
    assert local_digits(shown) == digits


@pytest.mark.parametrize("length", range(7, 16))
def test_a_number_of_nine_to_twelve_digits_is_looked_for_by_the_last_nine(length: int) -> None:
    """A shorter one has no nine, and of a longer one a text may show twelve others."""
    own = "+" + "123456789012345"[:length]
    assert own_local_digits(own) == (own[-9:] if 9 <= length <= 12 else None)


@pytest.mark.parametrize(
    "shown", ["780000789", "0780 000 789", "+255 780-000-789", "255780000789", "00255780000789", "255.780.000.789"]
)
def test_a_whole_number_has_one_spelling(shown: str) -> None:
    """However the list writes it: national, with or without a zero, or international."""
    assert international(shown) == "+255780000789"


@pytest.mark.parametrize(("shown", "whole"), [("1780000789", "+1780000789"), ("78000078*", None), ("", None)])
def test_another_text_is_no_number_of_ours(shown: str, whole: str | None) -> None:
    """Ten digits without a leading zero are another country's."""
    assert international(shown) == whole
