"""Amounts, phone numbers, secrets and other arguments: normalise, or refuse with a clear error.

Refusals name the argument and the values that it accepts, and show the refused value, masked as `redact` does. Of one
that may be secret they show the type only.
"""

from __future__ import annotations

import hmac
import math
import re
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NoReturn, SupportsIndex, TypeVar

from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.text import mask_phone_number, redact

T = TypeVar("T")

# Of the national numbering plan: nine digits, of which those of mobile phones begin with 6 or 7.
_TANZANIAN = re.compile(r"(?:(?:\+|00)?255|0)?([67][0-9]{8})", re.ASCII)
# Some thirty years: a time so far ahead is one of the calendar still.
_MOST_SECONDS = 1e9
_AMOUNT = re.compile(r"[0-9]+(?:\.0{1,2})?", re.ASCII)
# A text that one convention reads as thousands, and another as a fraction. Longer digits might be a phone number.
_TWO_AMOUNTS = re.compile(r"([0-9]{1,12})[.,](0{1,3})|([0-9]{1,3})[.,]([0-9]{3})", re.ASCII)
_AMOUNT_DIGITS = 20
_ZERO_INSIDE = "+2550"
# Characters of a refused value in its error.
_MOST_SHOWN = 40
_PHONE_NUMBER = re.compile(r"\+[1-9][0-9]{7,14}", re.ASCII)
# What category "Cf" leaves out: marks and letters that are shown as nothing.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_QUOTES = frozenset("\"'`")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}", re.ASCII)
_HEADER_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)


class Secret:
    """Text that does not show itself: not in ``repr``, ``str``, tracebacks with locals, or a pickle.

    Compares equal to a secret or a ``str`` with the same text, in constant time.
    """

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError("a Secret holds a str")
        self.__text = str.__str__(text)  # as of `require_text`

    def reveal(self) -> str:
        """Return the text itself. Keep it out of logs."""
        return self.__text

    def __repr__(self) -> str:
        return "Secret('…')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Secret):
            other = other.reveal()
        if not isinstance(other, str):
            return NotImplemented
        return hmac.compare_digest(*(text.encode("utf-8", "surrogatepass") for text in (self.__text, other)))

    def __hash__(self) -> int:
        return hash(self.__text)

    def __bool__(self) -> bool:
        return bool(self.__text)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a Secret does not pickle: pass the text itself, by reveal(), where it must travel")


class HiddenText(str):
    """Text for the wire that does not show itself in a traceback with locals. All but its ``repr`` is a ``str``'s."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


class PhoneNumber(HiddenText):
    """Phone number that a traceback with locals shows masked."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{mask_phone_number(self)}'"


def hide(value: object) -> Any:
    """Return an argument that may be private for the locals of a frame: a text that hides itself, else its type.

    In the first statement of a function: whatever fails after it, a traceback with locals shows no argument.
    """
    return hide_text(value) if isinstance(value, str | type) else type(value)


def conceal(value: object) -> Any:
    """Return an argument that should be a secret as one, or the type of another value. Where to: see `hide`."""
    return value if isinstance(value, Secret) else Secret(value) if isinstance(value, str) else _kind(value)


def hide_text(value: T) -> T:
    """Return an argument of any type, a text as one that hides itself. Where to: see `hide`."""
    return HiddenText(str.__str__(value)) if isinstance(value, str) else value  # type: ignore[return-value]


_UNSHOWN: Final = object()


def _kind(value: object) -> type:
    """Return the type of an argument of `conceal`."""
    return value if isinstance(value, type) else str if isinstance(value, Secret) else type(value)


def refuse(argument: str, accepted: str, value: object = _UNSHOWN, advice: str = "") -> InvalidRequest:
    """Return the error for an argument: ``timeout must be seconds, more than 0, not 'x'``.

    Args:
        argument: Its name.
        accepted: The values that it takes, as they follow "must be".
        value: The refused value. Texts and numbers are shown, masked; of all others, the type. Give the type of one
            that may be a secret, and the mask of a phone number.
        advice: The next step.
    """
    shown = "" if value is _UNSHOWN else f", not {_shown(value)}"
    problem = f"must be {accepted}{shown}{advice and '; '}{advice}"
    return InvalidRequest(f"{argument} {problem}", argument=argument, problem=problem)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"'{redact(str(value), _MOST_SHOWN)}'"
    if isinstance(value, float | Decimal | bool) or (isinstance(value, int) and abs(value) < 10**_MOST_SHOWN):
        return redact(f"{value}", _MOST_SHOWN)
    kind = value if isinstance(value, type) else type(value)
    return "None" if kind is type(None) else kind.__name__


def url_shape(url: object) -> object:
    """Return the part of a refused URL that an error may show: the rest may hold a password."""
    if not isinstance(url, str):
        return type(url)
    scheme, separator, _ = url.partition("://")
    if separator and _SCHEME.fullmatch(scheme):
        return f"{scheme}://…"
    return str if separator or "@" in url else url


def missing_extra(argument: str, extra: str, cause: ImportError) -> InvalidRequest:
    """Return the error for an argument that needs an extra which is not installed, or cannot be imported."""
    problem = import_advice(extra, cause)
    return InvalidRequest(f"{argument} {problem}", argument=argument, problem=problem)


def import_advice(extra: str, cause: ImportError) -> str:
    """Return the next step after an import that failed: an extra that is there fails for another reason."""
    if isinstance(cause, ModuleNotFoundError):
        return f'needs an extra: pip install "mobilemoney-async[{extra}]"'
    return f"needs the extra {extra}, which is installed and cannot be imported: {cause}"


def normalise_amount(amount: int | Decimal | str) -> str:
    """Return an amount the way the service takes it: whole currency units, as digits (contract, sections 2.1 and 4.1).

    Args:
        amount: A positive ``int``, an integral ``Decimal``, or a ``str`` of ASCII digits, optionally with a dot and one
            or two zeros (``"1000.00"``). ``"500.000"`` and ``"15,000"`` are refused: people may read them otherwise.
            Never ``float`` or ``bool``. At most 20 digits; the service's own range is not documented.

    Raises:
        InvalidRequest: It is something else.
    """
    amount = hide_text(amount)  # it may be anything that a caller mixed up
    whole = _whole(amount)
    if whole is None:
        accepted = "a positive whole number of TZS as int, Decimal or str, such as 15000"
        # It would look like what is asked for.
        is_odd = isinstance(amount, str) and amount.strip().isdecimal() and not _AMOUNT.fullmatch(amount)
        raise refuse("amount", accepted, amount, "write the digits 0 to 9 alone" if is_odd else two_amounts(amount))
    return f"{whole:d}"


def two_amounts(text: object) -> str:
    """Return words for the two amounts that a text may mean, or nothing if it does not mean two."""
    found = _TWO_AMOUNTS.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return ""
    whole, rest = (found[1], found[2]) if found[1] else (found[3], found[4])
    decimal = whole if not rest.strip("0") else f"{whole}.{rest}".rstrip("0")
    joined = int(whole + rest)
    return f"it may be read as {joined} or as {decimal}: write digits alone" if joined else ""


def _whole(amount: object) -> int | None:
    if isinstance(amount, bool) or not isinstance(amount, int | Decimal | str):
        return None
    if isinstance(amount, str):
        if len(amount) > 2 * _AMOUNT_DIGITS or not _AMOUNT.fullmatch(amount):
            return None
        amount = Decimal(amount)
    if isinstance(amount, Decimal):
        if not amount.is_finite() or amount.adjusted() >= _AMOUNT_DIGITS or amount != amount.to_integral_value():
            return None
        amount = int(amount)
    return amount if 0 < amount < 10**_AMOUNT_DIGITS else None


def normalise_phone_number(phone_number: str) -> str:
    """Return a phone number in international format (contract, section 2.1).

    Args:
        phone_number: ``+`` and 8 to 15 digits, the first not 0; spaces and hyphens are dropped. No prefix or network
            is guessed.

    Raises:
        InvalidRequest: It is something else.
    """
    phone_number = hide(phone_number)
    shown: object = phone_number
    advice = ""
    if isinstance(phone_number, str):
        compact = PhoneNumber(phone_number.replace(" ", "").replace("-", ""))
        advice = number_advice(compact)
        if _PHONE_NUMBER.fullmatch(compact) and not advice:
            return compact
        shown = mask_phone_number(compact)
    raise refuse(
        "phone_number",
        "in international format, such as +255681234567",
        shown,
        advice or "values.tanzanian() reads local numbers",
    )


def number_advice(number: str) -> str:
    """Return the fault of a number that looks right, or nothing."""
    compact = number.replace(" ", "").replace("-", "")
    if compact.startswith(_ZERO_INSIDE):
        return "leave out the 0 after +255: it belongs to the national form"
    if compact.startswith("+0"):
        return "no country code begins with 0"
    if not number.isascii() and _has_unseen(number):
        return "it holds an invisible character, as pasted numbers may: type it again"
    return ""


def tanzanian(phone_number: str) -> str:
    """Return the number of a Tanzanian mobile phone in international format; it may lack its country code.

    Nothing calls this unless you do: without a country code, a number might be of any country. The operator is not
    guessed.

    Args:
        phone_number: ``0788 500 000``, ``788500000``, ``255788500000``, ``00255788500000`` or ``+255788500000``.
            Blanks, hyphens, parentheses and the invisible marks of pasted numbers are dropped.

    Raises:
        InvalidRequest: It is something else, such as a landline, or a number of another country.
    """
    phone_number = hide(phone_number)
    shown: object = phone_number
    advice = ""
    if isinstance(phone_number, str):
        compact = HiddenText(re.sub(r"[\s()-]", "", phone_number))
        if not compact.isascii():
            from unicodedata import category

            compact = HiddenText("".join(each for each in compact if category(each) != "Cf"))
        if found := _TANZANIAN.fullmatch(compact):
            return PhoneNumber(f"+255{found[1]}")
        shown, advice = mask_phone_number(compact), number_advice(compact)
    error = refuse("phone_number", 'a Tanzanian mobile number such as "0788 500 000" or "+255788500000"', shown, advice)
    error.local_numbers = True
    raise error


def require_text(argument: str, value: object) -> str:
    """Return a ``str`` that is not blank and can be encoded, or raise `InvalidRequest`.

    Of a member of an enumeration it is the value: a database may store its ``str()``, another text, and pay twice.
    """
    if not isinstance(value, str) or not value.strip():
        raise refuse(argument, "a str that is not blank", value if isinstance(value, str) else type(value))
    if not can_encode(value):
        raise refuse(argument, "a str without lone surrogates: UTF-8 has none")
    return str.__str__(value)


def require_secret(argument: str, value: object) -> Secret:
    """Return a text that is not blank and can be encoded as a secret, or raise `InvalidRequest`."""
    value = conceal(value)
    if not isinstance(value, Secret) or not value.reveal().strip():
        raise refuse(argument, "a str that is not blank", _UNSHOWN if isinstance(value, Secret) else _kind(value))
    if not can_encode(value.reveal()):
        raise refuse(argument, "a str without lone surrogates: UTF-8 has none")
    return value


def require_name(argument: str, value: object) -> str:
    """Return a text that any database can hold as a name, at most 200 characters, or raise `InvalidRequest`."""
    text = require_text(argument, value)
    if len(text) > 200 or "\0" in text:
        raise refuse(argument, f"a str of at most 200 characters, not blank, without NUL; this one has {len(text)}")
    return text


def require_key(argument: str, value: object) -> str:
    """Return an idempotency key, or raise `InvalidRequest`.

    Two keys that look alike would make two payments. So white space around a key, line ends, control characters,
    invisible marks, and blanks other than spaces are refused rather than dropped.
    """
    key = require_name(argument, value)
    if key != key.strip() or _UNSEEN.search(key) or (not key.isprintable() and _has_unseen(key)):
        unfit = "white space around it, line ends, control characters, invisible marks and blanks other than spaces"
        raise refuse(argument, f"a str without {unfit}")
    return key


def _has_unseen(text: str) -> bool:
    """Return whether a text has control characters, invisible marks, line ends or blanks that are no spaces."""
    from unicodedata import category

    return any(category(each) in {"Cc", "Cf", "Zl", "Zp", "Zs"} for each in text.replace(" ", ""))


def valid_name(text: object) -> str | None:
    """Return a text that is a valid name, as an idempotency key must be; otherwise None."""
    if text is None:  # most payments have no name of the merchant's
        return None
    try:
        return require_name("name", text)
    except InvalidRequest:
        return None


def require_identifier(argument: str, value: object) -> str:
    """Return an identifier fit for a URL path, or raise `InvalidRequest`.

    An empty id would address another endpoint, and so would ``.`` and ``..``, which URLs resolve away.
    """
    text = require_text(argument, value)
    if text in {".", ".."}:
        raise refuse(argument, "an id of the service", text)
    return text


def is_id(text: str) -> bool:
    """Return whether a text can be looked up as an id, and kept as one."""
    return valid_name(text) is not None and text.isprintable() and text.strip() == text and text not in {".", ".."}


def require_seconds(
    argument: str, value: object, *, allow_zero: bool = False, unit: str = "seconds", most: float = _MOST_SECONDS
) -> float:
    """Return a number of seconds, or of another unit, more than 0 (with `allow_zero`, 0 too) and `most` at most.

    Raises:
        InvalidRequest: It is none.
    """
    number = -1.0 if isinstance(value, bool) or not isinstance(value, int | float) else _as_float(value)
    is_over = most < number < math.inf
    if not 0 <= number <= most or (number == 0 and not allow_zero):
        span = f"{unit}, {'0 or more' if allow_zero else 'more than 0'}"
        raise refuse(argument, f"{span}, {most:,.0f} at most" if is_over else span, value)
    return number


def require_days(argument: str, value: object) -> float:
    """Return a number of days, more than 0 and at most a hundred years, or raise `InvalidRequest`."""
    return require_seconds(argument, value, unit="days", most=36_500)


def require_factor(argument: str, value: object) -> float:
    """Return a finite number of at least 1, or raise `InvalidRequest`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= (factor := _as_float(value)) < math.inf:
        return factor
    raise refuse(argument, "a number of at least 1", value)


def _as_float(value: float) -> float:
    """Return a number as a float; one that is too large for any is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def require_integer(argument: str, value: object, low: int, high: int | None = None) -> int:
    """Return an integer from `low` to `high`, or raise `InvalidRequest`."""
    span = f"an int of at least {low}" if high is None else f"an int from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise refuse(argument, span, value)
    return value


def require_date(argument: str, value: object) -> date:
    """Return a plain ``date``, or raise `InvalidRequest`: a ``datetime`` is refused rather than cut (section 4.4)."""
    if not isinstance(value, date) or isinstance(value, datetime):
        raise refuse(argument, "a datetime.date, such as date(2026, 1, 31)", type(value))
    return value


def require_moment(
    argument: str, value: object, accepted: str = "an aware datetime of UTC's years 1 to 9999"
) -> datetime:
    """Return an aware ``datetime`` in UTC, or raise `InvalidRequest`."""
    if isinstance(value, datetime):
        with suppress(OverflowError):  # the first and the last day of the calendar
            if value.utcoffset() is not None:
                return value.astimezone(UTC)
    raise refuse(argument, accepted, value)


def require_bearer(argument: str, value: object) -> Secret:
    """Return a token fit for the Authorization header, as a secret, or raise `InvalidRequest`."""
    value = conceal(value)
    if not isinstance(value, Secret):
        raise refuse(argument, "a token of visible ASCII characters, as a str", _kind(value))
    if not _HEADER_TOKEN.fullmatch(value.reveal()):
        raise refuse(argument, "a token of visible ASCII characters, without blanks and line ends")
    if value.reveal()[0] in _QUOTES or value.reveal()[-1] in _QUOTES:
        raise refuse(argument, "a token without the quotation marks around it")
    return value


def can_encode(text: str) -> bool:
    """Return whether a text can go over the wire: it holds no lone surrogate."""
    if text.isascii():  # nearly all are, and a page has thousands
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
