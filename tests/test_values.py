"""Arguments are normalised, or refused by name, with the accepted values and what may be shown of theirs."""

import copy
import datetime as dt
import enum
import json
import pickle
import re
import traceback
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import InvalidRequest, Secret
from mobilemoney_async.text import csv_cell, mask_phone_number, redact, shown_id
from mobilemoney_async.values import (
    HiddenText,
    can_encode,
    normalise_amount,
    normalise_phone_number,
    require_bearer,
    require_date,
    require_days,
    require_identifier,
    require_integer,
    require_name,
    require_seconds,
    require_secret,
    require_text,
    tanzanian,
    url_shape,
    valid_name,
)
from tests.support.growth import is_linear

MOST = 10**20 - 1
whole_amounts = st.integers(min_value=1, max_value=MOST)
phone_numbers = st.from_regex(r"\A\+[1-9][0-9]{7,14}\Z", alphabet=st.characters(codec="ascii"))


class Tariff(enum.IntEnum):
    SMALL = 500


class TestAmounts:
    @given(whole_amounts)
    def test_a_whole_amount_survives_in_every_form(self, amount: int) -> None:
        """The same amount as int, Decimal or text goes out as the same digits, exactly."""
        digits = str(amount)
        forms: list[int | Decimal | str] = [
            amount,
            Decimal(amount),
            digits,
            f"{digits}.00",
            f"000{digits}" if amount < 10**20 else digits,
        ]
        assert {normalise_amount(form) for form in forms} == {digits}
        assert normalise_amount(Decimal(f"{digits}.000")) == digits

    @given(st.integers(1, 9), st.integers(0, 19))
    def test_a_decimal_with_an_exponent_is_written_out(self, digit: int, exponent: int) -> None:
        """`Decimal("1E+3")` is 1000, not a text that the service may read differently."""
        assert normalise_amount(Decimal(f"{digit}E+{exponent}")) == str(digit * 10**exponent)

    def test_an_int_enum_is_its_number(self) -> None:
        assert normalise_amount(Tariff.SMALL) == "500"

    @pytest.mark.parametrize(
        "amount",
        [
            1000.0,
            True,
            False,
            None,
            b"1000",
            ["1000"],
            0,
            -1,
            10**20,
            -(10**40),
            "",
            "0",
            "0.00",
            "-5",
            "+5",
            "1000.5",
            "1000.",
            ".5",
            "1e3",
            "1_000",
            "1,000",
            " 1000",
            *("1000 ", "1000\u00a0", "15\u0661", "500.50", "1.234.567", "15 000", "15'000"),
            "1000\n",
            "NaN",
            "Infinity",
            "\u0661\u0660\u0660\u0660",  # Arabic-Indic digits, which int() and Decimal() would take
            "\uff11\uff10\uff10\uff10",  # full-width digits
            "1\u00b2",
            "9" * 10_000,
            Decimal(0),
            Decimal(-1),
            Decimal("1000.5"),
            Decimal("NaN"),
            Decimal("sNaN"),
            Decimal("Infinity"),
            Decimal("-Infinity"),
            Decimal("1E+28"),
            Decimal("1E+999999"),
            Decimal("1E-999999"),
        ],
        ids=lambda value: f"{type(value).__name__}:{str(value)[:12]!r}",
    )
    def test_everything_else_is_refused_by_name(self, amount: Any) -> None:
        """Anything but a positive whole number is refused before it can become money."""
        with pytest.raises(InvalidRequest) as caught:
            normalise_amount(amount)
        assert caught.value.argument == "amount"
        assert str(caught.value).startswith("amount must be a positive whole number of TZS")

    @given(st.one_of(st.text(), st.decimals(), st.integers()))
    def test_any_value_is_taken_exactly_or_refused(self, amount: str | Decimal | int) -> None:
        """No value is rounded: the number is taken as it was given."""
        try:
            digits = normalise_amount(amount)
        except InvalidRequest:
            return
        assert digits.isascii()
        assert digits.isdigit()
        assert Decimal(digits) == Decimal(amount) > 0

    @pytest.mark.parametrize("amount", ["12345678.5", -12345678, Decimal("12345678.5")])
    def test_the_error_does_not_quote_the_amount(self, amount: Any) -> None:
        with pytest.raises(InvalidRequest) as caught:
            normalise_amount(amount)
        assert "12345678" not in "".join(traceback.format_exception_only(caught.value))


class TestPhoneNumbers:
    @pytest.mark.slow
    @given(phone_numbers, st.data())
    def test_spaces_and_hyphens_are_dropped_and_nothing_else_changes(self, number: str, data: st.DataObject) -> None:
        """A number as people write it goes out in international format."""
        written = "".join(char + data.draw(st.sampled_from(["", " ", "-", " - "])) for char in number)
        assert normalise_phone_number(written) == number

    @pytest.mark.parametrize(
        "number",
        [
            "",
            "+",
            "255680000001",
            "0680000001",
            "00255680000001",
            "+0680000001",
            "+0255680000001",
            "+00255680000001",
            "+2556800",
            "+2556800000010000",
            "+25568000000x",
            "+255680000001\n",
            "+255\t680000001",
            "+255.680.000.001",
            "++255680000001",
            "+\u0662\u0665\u0665\u0666\u0668\u0660\u0660\u0660\u0660",
            b"+255680000001",
            255680000001,
            None,
        ],
    )
    def test_everything_else_is_refused_without_guessing(self, number: Any) -> None:
        """No prefix is added and no digit dropped: money must not go to a number that you did not write."""
        with pytest.raises(InvalidRequest, match=r"^phone_number must be ") as caught:
            normalise_phone_number(number)
        assert "68000" not in str(caught.value)

    def test_the_mask_shows_network_and_last_digits(self) -> None:
        """In a log line, different known numbers still look different."""
        assert mask_phone_number("+255680000001") == "+25568…001"
        assert mask_phone_number("+12345678") == "+12…78"
        assert mask_phone_number("123456") == "…"
        assert mask_phone_number("+25568***1001") == "+25568…001"
        for text in ("\x1b[31m\u202e00000000", "eyJhbGciOiJIUzI1NiJ9", "+255681\n234567"):
            assert mask_phone_number(text) == "…"

    @pytest.mark.parametrize(
        "written",
        [
            "0788 500 000",
            "0788-500-000",
            "(0)788500000",
            "788500000",
            "255 788 500 000",
            "+255788500000",
            "0788\xa0500000",
            "00255 788 500 000",
            "\u2068\u200e0788 500 000\u2069",  # pasted: marks of direction that nobody sees
        ],
    )
    def test_a_tanzanian_number_may_lack_its_country_code(self, written: str) -> None:
        """Only where you ask for it: `normalise_phone_number` refuses all others."""
        assert tanzanian(written) == "+255788500000"
        if not written.startswith("+"):
            with pytest.raises(InvalidRequest):
                normalise_phone_number(written)

    @pytest.mark.parametrize("first", range(10))
    def test_only_mobile_numbers_of_the_numbering_plan_are_read(self, first: int) -> None:
        """Those with nine digits that begin with 6 or 7, of any operator."""
        written = f"0{first}88500000"
        if first in {6, 7}:
            assert tanzanian(written) == f"+255{first}88500000"
        else:
            with pytest.raises(InvalidRequest, match="a Tanzanian mobile number"):
                tanzanian(written)

    @pytest.mark.parametrize(
        "written",
        ["", "0788", "07885000000", "0255788500", "255788500", "+2550788500000", "+254788500000", "00254788500000",
         "+255 255 788 500", "078850000O", "\u0660788500000", "2.55788E+11", "0788.500.000", 788500000, None],
    )  # fmt: skip
    def test_what_is_cut_or_foreign_is_not_completed(self, written: Any) -> None:
        with pytest.raises(InvalidRequest, match=r"^phone_number must be "):
            tanzanian(written)

    @pytest.mark.parametrize(
        ("text", "cell"),
        [
            ("plain", "plain"),
            ("+255788500000", "+255788500000"),
            ("-12.50", "-12.50"),
            ("=1+1", "'=1+1"),
            ("  @SUM", "'  @SUM"),
            ("-2+3", "'-2+3"),
            ("\uff1d1", "'\uff1d1"),
            ("\t=1", "\\t=1"),
            ("\r=1", "\\r=1"),
            ("a\nb", "a\\nb"),
            ("a;=1+1", "a;'=1+1"),
            (';" =1;+2;b;-', """;'" =1;'+2;b;'-"""),
        ],
    )
    def test_a_cell_of_a_csv_is_no_formula(self, text: str, cell: str) -> None:
        assert csv_cell(text) == cell

    @pytest.mark.slow
    @given(phone_numbers)
    def test_the_mask_hides_at_least_three_digits(self, number: str) -> None:
        """No mask lets a whole number through, however short it is."""
        shown = mask_phone_number(number)
        assert number not in shown
        assert len(shown.replace("…", "")) <= len(number) - 3


class TestRedaction:
    def test_an_ellipsis_hides_no_number(self) -> None:
        """A whole number before one is masked; what is masked already stays as it is."""
        assert redact("+255681234567… 0681234567…") == "+25568…567… 068…67…"
        for masked in ("+25568…567", "255681…567"):
            assert redact(masked) == masked

    @pytest.mark.slow
    @given(st.text(max_size=40), phone_numbers, st.text(max_size=40), st.sampled_from(["", " ", "-"]))
    def test_a_whole_phone_number_never_survives(self, before: str, number: str, after: str, between: str) -> None:
        """In any text of the service around a number, its digits do not come through whole."""
        written = number[:4] + between + number[4:7] + between + number[7:]
        shown = redact(before + written + after, 1000)
        assert number[1:] not in re.sub("[ -]", "", shown)

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ("no such recipient +255680000001.", "no such recipient +25568…001."),
            ("for table mobilemoney_payment_history.", "for table mobilemoney_payment_history."),
            ("mobilemoney_payment_historyX mobilemoney_token_1", "[redacted] mobilemoney_token_1"),
            ('{"phone_number":"+255680000001"}', '{"phone_number":"+25568…001"}'),
            ("call 0680 000 001 now", "call 068…01 now"),
            ("your code is 493817", "your code is …"),
            ("your code is 493 817", "your code is …"),
            ("otp 4938 sent", "otp [redacted] sent"),
            ('{"otp_code": "4938"}', '{"otp_code": [redacted]}'),
            ('{"password":"correct horse, battery"}', '{"password":[redacted]}'),
            ("password=hunter2&email=a@b.example", "password=[redacted]&email=a@b.example"),
            (
                "new_password => hunter2 and pwd=hunter2, passwd: hunter2",
                "new_password => [redacted] and pwd=[redacted], passwd: [redacted]",
            ),
            ("<password>hunter2</password>", "<password>[redacted]</password>"),
            ("the password is hunter2", "the password is [redacted]"),
            ("the password is wrong, the token is expired", "the password is wrong, the token is expired"),
            ("\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1d\uff48\uff55\uff4e\uff54", "password=[redacted]"),
            ("it begins with eyJhbGciOiJIUzI1", "it begins with [redacted]"),
            ('{"access_token": "eyJhbGciOi.eyJzdWIi.c2ln"}', '{"access_token": [redacted]}'),
            ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOjF9.c2lnbmF0dXJl back", "got [redacted] back"),
            ("<p>Bad\n\n  Gateway</p>", "<p>Bad Gateway</p>"),
            ("the transaction is not known", "the transaction is not known"),
            ("", ""),
            ("call +255.681.234.567 now", "call +25568…567 now"),
            ("call +255 (0) 681/234/567", "call +25506…567"),
            ("call +255\u200b681\u00a0234\u2013567", "call +25568…567"),
            ("call \u0662\u0665\u0665\u0666\u0668\u0661\u0662\u0663\u0664\u0665\u0666\u0667", "call 255681…567"),
            ("call \u00b2\u2075\u2075\u2076\u2078\u00b9 \u2461\u2462\u2463\u2464\u2465\u2466", "call 255681…567"),
            (r'{"to":"\u002b255\u0036\u00381234567"}', '{"to":"+25568…567"}'),
            ("?to=%2B25568%31234567", "?to=+25568…567"),
            (r"\x2b255\x36\x38\x31234567 or \u00b2\u2075\u2075\u2076\u2078\u00b9234567", "+25568…567 or 255681…567"),
            ("&#43;255&#54;&#x38;1234567", "+25568…567"),
            (
                b"\xff\xfe".decode(errors="replace") + "+255681234567".encode("utf-16-le").decode(),
                "\ufffd\ufffd+25568…567",
            ),
            (r'{"password":"correct \" horse"}', '{"password":[redacted]}'),
            (r'{"password":"correct \u0022 horse"}', '{"password":[redacted]}'),
            (r'{"body":"{\"password\":\"correct horse\"}"}', r'{"body":"{\"password\":[redacted]}"}'),
            ("no\x1b[31m red\x07 \u202eesrever\x9b0m", "no[31m red esrever0m"),
            ("a 1 kB\r\nlog: line", "a 1 kB log: line"),
        ],
    )
    def test_what_may_be_secret_goes_and_the_rest_stays(self, said: str, shown: str) -> None:
        """An error text stays useful without its secrets."""
        assert redact(said) == shown

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "hostile",
        [
            "pin",
            "pin-",
            "pin ",
            "pin is ",
            "eyJ",
            "\u0301\u0327",
            "\ufdfa",
            "1",
            "1-",
            "1 ",
            "+",
            "+1 ",
            "1…",
            "a.",
            "aA0_",
            "'",
            '"',
            '\\"',
            'pin:"',
            r"pin\":\"",
            "x=",
        ],
    )
    def test_the_work_grows_with_the_text_alone(self, hostile: str) -> None:
        """Sixteen times the text takes some sixteen times the work, whatever it is."""
        assert is_linear(lambda size: redact(hostile * (size // len(hostile)) + "!", size))

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ("tx-0001", "tx-0001"),
            ("550e8400-e29b-41d4-a716-446655440000", "550e8400-e29b-41d4-a716-446655440000"),
            ("202611221934412345", "202611221934412345"),
            ("255681234567", "255681…567"),
            ("0681234567", "068…67"),
            ("+255681234567", "+25568…567"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOjF9.c2lnbmF0dXJl", "[redacted]"),
            ('{"password":"correct horse"}', '{"password":[redacted]}'),
            ("tx\x1b[31m\u202e", "tx[31m"),
            ("x" * 65, "[redacted]"),
            ("t/1 é?#%2F+&=;1", "t/1 é?#%2F+&=;1"),  # decoded, it would be another one
            ("tx%2f&#49;", "tx%2f&#49;"),
            ("tx%2F25568123%34567", "tx/255681…567"),
            ("\ufdfa" * 4 + "%32%35%35681234567", normalize("NFKC", "\ufdfa" * 4)[:63] + "…"),  # decoded it is longer
            ("%25" * 4 + "1", "%252…51"),
            ("tx&#255681;234567", "tx…"),
            ('{"pin%22:"4711"}', '{"pin":[redacted]}'),
        ],
    )
    def test_an_id_stays_as_it_is_if_it_reads_like_one(self, said: str, shown: str) -> None:
        """You find the transaction that an error names; a number, a token or a text in place of an id is hidden."""
        assert shown_id(said) == shown

    @given(st.text(), st.integers(min_value=1, max_value=300))
    def test_the_result_is_one_line_of_at_most_the_limit(self, text: str, limit: int) -> None:
        shown = redact(text, limit)
        assert len(shown) <= limit
        assert shown == " ".join(shown.split(" "))
        assert "\n" not in shown

    def test_a_cut_is_marked(self) -> None:
        assert redact("word " * 100, 20) == "word word word word…"


class TestSecrets:
    def test_it_does_not_show_itself(self) -> None:
        """A token in a log line, an f-string or a dict's repr is an ellipsis."""
        secret = Secret("hunter2-hunter2")
        for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>30}", "%s" % secret, repr({"a": [secret]})):  # noqa: UP031
            assert "hunter2" not in shown
        assert secret.reveal() == "hunter2-hunter2"

    def test_it_does_not_pickle_by_accident(self) -> None:
        """A job queue refuses it instead of storing it."""
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="reveal"):
                pickle.dumps(Secret("hunter2"), protocol)

    def test_it_is_not_json(self) -> None:
        with pytest.raises(TypeError):
            json.dumps({"token": Secret("hunter2")})

    def test_copies_are_the_secret_itself(self) -> None:
        secret = Secret("hunter2")
        assert copy.copy(secret) is secret
        assert copy.deepcopy([secret])[0] is secret

    @given(st.text(), st.text())
    def test_it_equals_its_text_and_nothing_else(self, one: str, other: str) -> None:
        """Comparing and hashing agree with those of the text, in either direction."""
        assert (Secret(one) == Secret(other)) is (one == other)
        assert (Secret(one) == other) is (one == other)
        assert (one == Secret(other)) is (one == other)
        assert hash(Secret(one)) == hash(one)
        assert bool(Secret(one)) is bool(one)

    def test_lone_surrogates_are_told_apart(self) -> None:
        """Even texts that cannot be encoded compare by their characters."""
        assert Secret("\ud800") == Secret("\ud800")
        assert Secret("\ud800") != Secret("\ud801")
        assert Secret("\ud800") != "?"

    def test_it_compares_with_nothing_but_text(self) -> None:
        assert Secret("1") != 1
        assert Secret("1") != b"1"

    def test_it_holds_text_only(self) -> None:
        with pytest.raises(TypeError):
            Secret(b"hunter2")  # type: ignore[arg-type]

    def test_it_has_no_attributes_to_look_into(self) -> None:
        """A dump of an object's attributes finds nothing."""
        with pytest.raises(TypeError):
            vars(Secret("hunter2"))

    def test_hidden_text_is_text_that_reprs_as_nothing(self) -> None:
        """A header goes over the wire as it is, and into a traceback with locals as an ellipsis."""
        hidden = HiddenText("Bearer hunter2")
        assert hidden == "Bearer hunter2"
        assert hidden.encode() == b"Bearer hunter2"
        assert repr({"Authorization": hidden}) == "{'Authorization': '…'}"


class TestTexts:
    @pytest.mark.parametrize("value", ["", " ", "\t\n", "\u00a0", "\ud800", "id\udfff", None, 5, b"id"])
    def test_blank_and_unsendable_texts_are_refused(self, value: Any) -> None:
        with pytest.raises(InvalidRequest) as caught:
            require_text("reference", value)
        assert caught.value.argument == "reference"

    def test_a_text_that_utf_8_cannot_hold_is_not_called_blank(self) -> None:
        with pytest.raises(InvalidRequest, match="surrogates"):
            require_text("reference", "id\udfff")

    @pytest.mark.parametrize("value", [".", "..", "", " ", "\ud800", None, 7])
    def test_an_id_that_addresses_something_else_is_refused(self, value: Any) -> None:
        """No id turns one endpoint into another."""
        with pytest.raises(InvalidRequest) as caught:
            require_identifier("transaction_id", value)
        assert caught.value.argument == "transaction_id"

    @pytest.mark.parametrize("value", ["...", "a/b", "..a", "%2e%2e", "é", " x "])
    def test_other_ids_stay_as_they_are(self, value: str) -> None:
        assert require_identifier("transaction_id", value) == value

    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def test_text_without_surrogates_can_be_encoded(self, text: str) -> None:
        assert can_encode(text)

    @pytest.mark.parametrize(
        "value", ["", "a b", "a\n", "tökén", "a\x7f", None, 5, b"token", Secret(""), Secret("a b")]
    )
    def test_a_token_that_breaks_the_header_is_refused(self, value: Any) -> None:
        """A pasted line break cannot smuggle a header in."""
        with pytest.raises(InvalidRequest, match=r"^auth must be a token of visible ASCII characters"):
            require_bearer("auth", value)

    def test_a_token_becomes_a_secret_once(self) -> None:
        secret = Secret("a.b-c_d~e+f/g=")
        assert require_bearer("auth", secret) is secret
        assert require_bearer("auth", "abc") == "abc"


class TestNumbersAndDates:
    @pytest.mark.parametrize("value", [1, 0.5, 1e9])
    def test_seconds_become_a_float(self, value: float) -> None:
        assert require_seconds("timeout", value) == value
        assert isinstance(require_seconds("timeout", value), float)

    @pytest.mark.parametrize(
        "value",
        [
            0,
            -1,
            float("nan"),
            float("inf"),
            pytest.param(10**400, id="huge"),
            True,
            "5",
            None,
            Decimal(5),
            dt.timedelta(5),
        ],
    )
    def test_what_is_no_time_to_wait_is_refused(self, value: Any) -> None:
        with pytest.raises(InvalidRequest, match=r"^timeout must be seconds, more than 0, not "):
            require_seconds("timeout", value)

    def test_zero_seconds_where_they_make_sense(self) -> None:
        assert require_seconds("hold", 0, allow_zero=True) == 0
        with pytest.raises(InvalidRequest, match="0 or more"):
            require_seconds("hold", -1, allow_zero=True)

    @pytest.mark.parametrize("value", [0, 101, True, 5.0, "5", None])
    def test_integers_keep_their_range(self, value: Any) -> None:
        with pytest.raises(InvalidRequest, match=r"^limit must be an int from 1 to 100, not "):
            require_integer("limit", value, 1, 100)
        assert require_integer("limit", 100, 1, 100) == 100
        assert require_integer("page", 10**9, 1) == 10**9

    @pytest.mark.parametrize("value", [dt.datetime(2025, 1, 1, tzinfo=dt.UTC), "2025-01-01", 20250101, None])
    def test_only_plain_dates_are_dates(self, value: Any) -> None:
        """A datetime is refused rather than cut: which day it is depends on the zone."""
        with pytest.raises(
            InvalidRequest,
            match=r"^from_date must be a datetime.date, such as .*, not [a-zN]+$",
        ):
            require_date("from_date", value)
        assert require_date("from_date", dt.date(2025, 1, 1)) == dt.date(2025, 1, 1)


@pytest.mark.parametrize(("length", "is_taken"), [(1, True), (199, True), (200, True), (201, False), (5000, False)])
@pytest.mark.parametrize("letter", ["k", "é", "\U0001f4b0"])
def test_a_name_has_at_most_two_hundred_characters(letter: str, length: int, is_taken: bool) -> None:
    """Characters, not bytes; exactly 200 are taken, one more is refused by name and without its value."""
    text = letter * length
    assert valid_name(text) == (text if is_taken else None)
    if is_taken:
        assert require_name("idempotency_key", text) == text
        return
    with pytest.raises(InvalidRequest, match=r"^idempotency_key must be a str of at most 200 characters") as caught:
        require_name("idempotency_key", text)
    assert letter * 2 not in str(caught.value)


@pytest.mark.parametrize("limit", [1, 2, 64, 200])
def test_a_text_of_exactly_the_limit_is_whole(limit: int) -> None:
    """Redacted texts are cut where they are longer than the limit, and nowhere else; the mark of the cut counts."""
    text = ("word " * 50)[:limit].rstrip().ljust(limit, ".")
    assert redact(text, limit) == text
    assert redact(text + ".", limit) == text[:-1] + "…"


@given(st.text(min_size=6, alphabet="0123456789+.,- "))
def test_no_refusal_quotes_a_number_of_six_digits(value: str) -> None:
    """A refused argument may be a phone number or a one-time password in the wrong place: it is masked in the error."""
    for check in (normalise_amount, normalise_phone_number):
        errors: list[InvalidRequest] = []
        try:
            check(value)
        except InvalidRequest as exc:
            errors.append(exc)
        shown = "".join(f"{error!r} {vars(error)}" for error in errors).replace("+255681234567", "")
        assert not any(digits in shown for digits in re.findall("[0-9]{7,}|^[0-9]{6}$", re.sub("[ -]", "", value)))


NO_COUNTRY_CODE = (
    "phone_number must be in international format, such as +255681234567, not '078…89'; "
    "values.tanzanian() reads local numbers"
)
AMOUNT_MUST_BE = "amount must be a positive whole number of TZS as int, Decimal or str, such as 15000"
REFUSALS: list[tuple[Callable[[], object], str]] = [
    (lambda: require_seconds("timeout", "x"), "timeout must be seconds, more than 0, not 'x'"),
    (lambda: require_seconds("timeout", -1), "timeout must be seconds, more than 0, not -1"),
    (lambda: require_seconds("timeout", dt.timedelta(1)), "timeout must be seconds, more than 0, not timedelta"),
    (
        lambda: require_seconds("grace", 1_000_000_001),
        "grace must be seconds, more than 0, 1,000,000,000 at most, not 100…01",
    ),
    (lambda: require_days("keep_changes", "90"), "keep_changes must be days, more than 0, not '90'"),
    (lambda: require_days("keep_changes", 40_000), "keep_changes must be days, more than 0, 36,500 at most, not 40000"),
    (lambda: normalise_phone_number("0788 500 789"), NO_COUNTRY_CODE),
    (
        lambda: normalise_amount("1,000"),
        f"{AMOUNT_MUST_BE}, not '1,000'; it may be read as 1000 or as 1: write digits alone",
    ),
    (
        lambda: normalise_amount("\u0661\u0660\u0660\u0660"),
        f"{AMOUNT_MUST_BE}, not '1000'; write the digits 0 to 9 alone",
    ),
    (lambda: normalise_amount("0.00"), f"{AMOUNT_MUST_BE}, not '0.00'"),
    (
        lambda: normalise_amount(15000.0),  # type: ignore[arg-type]
        "amount must be a positive whole number of TZS as int, Decimal or str, such as 15000, not 15000.0",
    ),
    (lambda: require_integer("page", 10**5000, 1, 9), "page must be an int from 1 to 9, not int"),
    (lambda: require_bearer("auth", 5), "auth must be a token of visible ASCII characters, as a str, not int"),
    (
        lambda: require_bearer("auth", "hunter2\n"),
        "auth must be a token of visible ASCII characters, without blanks and line ends",
    ),
    (lambda: require_text("password", 12345), "password must be a str that is not blank, not int"),
    (lambda: require_secret("password", 12345), "password must be a str that is not blank, not int"),
    (lambda: require_secret("password", " "), "password must be a str that is not blank"),
    (lambda: require_identifier("id", ".."), "id must be an id of the service, not '..'"),
    (lambda: require_integer("page", "token=hunter2", 1), "page must be an int of at least 1, not 'token=[redacted]'"),
]


@pytest.mark.parametrize(("refused", "text"), REFUSALS, ids=[text[:24] for _, text in REFUSALS])
def test_a_refusal_shows_the_accepted_and_the_given_value(refused: Callable[[], object], text: str) -> None:
    """The error of a wrong argument says what to write instead; of what may be secret it shows the type only."""
    with pytest.raises(InvalidRequest) as caught:
        refused()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("payments.db", "payments.db"),
        ("mysql://root:secret", "mysql://…"),
        ("postgresql://me:secret@host/db", "postgresql://…"),
        ("me:secret@host://x", str),
        ("me:secret@host", str),
        (None, type(None)),
    ],
)
def test_of_a_refused_url_nothing_is_shown_that_may_be_a_password(url: object, shown: object) -> None:
    assert url_shape(url) == shown
