"""Comparison of the texts of answers with the request: by value, in any spelling (contract, section 4)."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

from mobilemoney_async.contract.models import Acknowledgement, Transaction
from mobilemoney_async.contract.states import TransactionType, initial_status
from mobilemoney_async.text import mask_phone_number, shown_text

CURRENCY = "TZS"

ERASED = "erased:"
"""Beginning of a number of ours that was erased: a digest follows, which proves nothing and contradicts nothing."""

# Digits of a number without its country code (Tanzania; most of its neighbours too).
_NATIONAL_DIGITS = 9
# Digits of the shortest number that is paid; fewer are a part of one.
_FEWEST_DIGITS = 8
# Digits of a number with its country code there; longer ones are rare.
_LONGEST_DIGITS = 12
# The country of the currency: a number without a country code is one of its own.
_COUNTRY = "255"
# Digits that a masked number must show.
_SHOWN_DIGITS = 4
# Characters of the longest text that is read as a number: patterns are made of it.
_LONGEST_TEXT = 64
_SEPARATORS = re.compile(r"[\s()/+\-\u2010-\u2015]+")
_MASK = re.compile(r"[*xX\u2022\u25cf#_.\u2026]+")
_INNER_MASK = re.compile(r"[0-9][*xX\u2022\u25cf#_\u2026]+[0-9]")


class NumberForm(enum.Enum):
    """Form in which a text shows a phone number."""

    EXACT = "international, with or without the plus"
    ZEROS = "international, with 00"
    NATIONAL = "a zero and the last nine digits"
    LOCAL = "the last nine digits"
    MASKED = "at least four digits, and a mask for the others"


def contradiction(answer: Acknowledgement | Transaction, *, type: str, phone_number: str, amount: str) -> str | None:
    """Return the reason why an answer does not name the payment that was asked for, or None if it does.

    Args:
        answer: An acknowledgement, or the transaction of its id.
        type: The payment's type. An acknowledgement shows it by the state in which it begins (section 3).
        phone_number: The number as it was sent, ``+`` and digits. The answer may show it national or masked.
        amount: The amount as it was sent, digits.
    """
    agrees = {
        "amount": answer.amount == Decimal(amount),
        "currency": answer.currency.strip().upper() == CURRENCY,
        "phone number": same_number(answer.phone_number, phone_number) is not None,
    }
    kind = "transaction"
    if isinstance(answer, Acknowledgement):
        kind, agrees["status"] = "acknowledgement", answer.status.strip().casefold() == "success"
        agrees["first state"] = answer.status_code.strip().upper() == initial_status(type)
    else:
        agrees["type"] = answer.type == type
    different = " and ".join(name for name, is_same in agrees.items() if not is_same)
    return f"the {kind} names another {different}" if different else None


def differences(transaction: Transaction, payment: Any) -> Iterator[tuple[str, str, str]]:
    """Yield what a transaction shows that contradicts the payment of its id: the name, our value and the shown one.

    A list may have its own word for the type: only the contract's word for the other one contradicts. A number that is
    masked, cut or missing does not.

    Args:
        transaction: The transaction.
        payment: A record, a row or a request: what has a type, a phone number and an amount.
    """
    if transaction.type.strip().casefold() in set(TransactionType) - {payment.type}:
        yield "type", str(payment.type), shown_text(transaction.type)
    if not may_be_number(transaction.phone_number, payment.phone_number):
        yield "phone number", mask_phone_number(payment.phone_number), mask_phone_number(transaction.phone_number)
    if transaction.amount != Decimal(payment.amount):
        yield "amount", f"{Decimal(payment.amount):f}", f"{transaction.amount:f}"
    if not may_be_shillings(transaction):
        yield "currency", CURRENCY, shown_text(transaction.currency)


def may_be_shillings(transaction: Transaction) -> bool:
    """Return whether a transaction shows TZS, the shilling's usual abbreviation, or no currency."""
    return transaction.currency.strip().upper() in {CURRENCY, "TSH", "TSHS", ""}


def read_date(header: str) -> datetime | None:
    """Return the time of a Date header, or None if it has none."""
    try:
        moment = parsedate_to_datetime(header)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter on the first and the last day of the calendar
        return None


def same_number(shown: str, own: str) -> NumberForm | None:
    """Return the form in which a text shows our number, ``+`` and digits, or None if it does not prove that number.

    Of a masked number the digits that are shown must agree, counted from both ends. Other numbers may show the same.
    """
    if own.startswith(ERASED):
        return None
    text, forms = _SEPARATORS.sub("", shown), _forms(own)
    # Dots are separators if the digits around them are a whole number, otherwise a mask.
    form = forms.get(text.replace(".", ""))
    if form is not None:
        return form
    parts = _MASK.split(text)
    digits = "".join(parts)
    if len(text) > _LONGEST_TEXT or len(parts) == 1 or len(digits) < _SHOWN_DIGITS:
        return None
    if not digits.isascii() or not digits.isdigit():
        return None
    pattern = "[0-9]+".join(parts)
    return NumberForm.MASKED if any(re.fullmatch(pattern, each) for each in forms) else None


def international(shown: str) -> str | None:
    """Return a whole number in our spelling, ``+`` and digits, or None for another text."""
    digits = _SEPARATORS.sub("", shown).replace(".", "")
    if len(digits) < _FEWEST_DIGITS or not digits.isascii() or not digits.isdigit():
        return None
    if len(digits) == _NATIONAL_DIGITS or (len(digits) == _NATIONAL_DIGITS + 1 and digits.startswith("0")):
        return f"+{_COUNTRY}{digits[-_NATIONAL_DIGITS:]}"
    return f"+{digits.removeprefix('00')}"


def local_digits(shown: str) -> str | None:
    """Return the last nine digits of all the numbers that a text may show, or None if they may differ.

    A text without them may be any number that begins or ends with it; see `may_be_number`.
    """
    digits = shown.lstrip("+ ")
    is_whole = digits.startswith("0") or len(digits) >= _LONGEST_DIGITS
    if not is_whole or not digits.isascii() or not digits.isdigit() or len(digits.lstrip("0")) < _NATIONAL_DIGITS:
        return None
    return digits[-_NATIONAL_DIGITS:]


def own_local_digits(own: str) -> str | None:
    """Return the last nine digits of our number, ``+`` and digits, or None if `local_digits` does not hold for it."""
    return own[-_NATIONAL_DIGITS:] if _NATIONAL_DIGITS < len(own) <= _LONGEST_DIGITS + 1 else None


def may_be_number(shown: str, own: str) -> bool:
    """Return whether a text may be our number cut, masked or misspelt, or shows no number at all."""
    if (
        own.startswith(ERASED)
        or len(shown) > _LONGEST_TEXT
        or any(character.isalpha() and character not in "xX" for character in shown)
    ):
        return True
    text, whole = shown.lstrip("+ "), own.lstrip("+")
    digits = re.sub("[^0-9]", "", text)
    ends = whole.endswith(digits.lstrip("0")), whole.startswith(digits), digits.endswith(whole[-_NATIONAL_DIGITS:])
    # Digits on both sides of a mask are no one end of a number.
    if any(ends) and not _INNER_MASK.search(_SEPARATORS.sub("", text)):
        return True
    pattern = re.sub("[^0-9]+", "[0-9]*", text)
    return pattern != digits and any(map(_compile(pattern).fullmatch, _forms(own)))


_compile = functools.lru_cache(4_096)(re.compile)  # a thousand masked rows are more than `re` remembers


def _forms(own: str) -> Mapping[str, NumberForm]:
    """Return the texts of a whole number, without separators, and their forms."""
    digits = own.lstrip("+")
    local = digits[-_NATIONAL_DIGITS:]
    short = {local: NumberForm.LOCAL, f"0{local}": NumberForm.NATIONAL} if local != digits else {}
    return {**short, f"00{digits}": NumberForm.ZEROS, digits: NumberForm.EXACT}


def shift(moment: datetime, by: timedelta) -> datetime:
    """Return a time moved by a difference, at most to the ends of the calendar: a service may show any date."""
    try:
        return moment + by
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if by < timedelta(0) else datetime.max.replace(tzinfo=UTC)
