"""Answers become values: typed, frozen, tolerant where the contract is open, and strict where it is not."""

import copy
import datetime as dt
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import (
    Acknowledgement,
    Fees,
    LoginResult,
    Network,
    Pagination,
    Secret,
    Settlement,
    Transaction,
    TransactionPage,
    TransactionStatus,
    TransactionType,
    User,
)
from mobilemoney_async.contract.codec import reader
from mobilemoney_async.contract.endpoints import read_rows
from mobilemoney_async.contract.models import PageAnswer, RowsAnswer, TransactionAnswer, UnreadableRow
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.events import TransactionUnclaimed
from tests.contract import samples
from tests.contract.samples import to_bytes

# Core texts of a transaction, but for its id.
TEXTS = ("currency", "phone_number", "status", "type")
read_found = reader(TransactionAnswer)
read_page = reader(PageAnswer)
read_acknowledgement = reader(Acknowledgement)
read_login = reader(LoginResult)


def read_transaction(body: dict[str, Any]) -> Transaction:
    return read_found(to_bytes({"status": "success", "transaction": body})).transaction


NOON = dt.datetime(2025, 6, 1, 12, tzinfo=dt.UTC)
PENDING = Transaction(
    id="t-1",
    reference="r-1",
    type=TransactionType.COLLECTION,
    amount=Decimal(1000),
    currency="TZS",
    phone_number="+255680000001",
    network=Network.AIRTEL_MONEY,
    status=TransactionStatus.PENDING,
    created_at=NOON,
)


class TestWhatTheContractShows:
    def test_a_pending_collection(self) -> None:
        """Money is Decimal, time is aware UTC, words are enums."""
        assert read_transaction(samples.transaction()) == PENDING

    def test_a_settled_collection(self) -> None:
        """Fees and settlement come with a success."""
        assert read_transaction(samples.settled()) == attrs.evolve(
            PENDING,
            status=TransactionStatus.SUCCESS,
            external_id="order-7",
            merchant_id="m-1",
            completed_at=NOON + dt.timedelta(seconds=30),
            fees=Fees(merchant_fee=Decimal("10.00"), customer_fee=Decimal("0.00"), total_fee=Decimal("10.00")),
            settlement=Settlement(
                net_amount=Decimal("990.00"),
                settled_at=dt.datetime(2025, 6, 2, tzinfo=dt.UTC),
                settlement_batch="b-1",
            ),
        )

    def test_a_failed_payment(self) -> None:
        row = read_transaction(
            samples.transaction(status="FAILED", failed_at="2025-06-01T12:01:00Z", failure_reason="RECIPIENT_NOT_FOUND")
        )
        assert (row.failed_at, row.failure_reason) == (NOON + dt.timedelta(minutes=1), "RECIPIENT_NOT_FOUND")
        assert (row.is_final, row.succeeded) == (True, False)

    def test_an_acknowledgement(self) -> None:
        """`transaction_id` is the transaction's `id`, and the payment's state is `status_code`, not `status`."""
        assert read_acknowledgement(to_bytes(samples.acknowledgement())) == Acknowledgement(
            transaction_id="t-1",
            reference="r-1",
            amount=Decimal(1000),
            currency="TZS",
            phone_number="+255680000001",
            status_code=TransactionStatus.PENDING,
            status="success",
            message="accepted",
        )

    @pytest.mark.parametrize("odd", ["", " tx", "tx\u00a0", "a\0b", "tx\x1b[31m", "\u202etx", ".", "..", "x" * 201])
    def test_an_acknowledgement_names_a_transaction_that_can_be_looked_up(self, odd: str) -> None:
        """An id that no URL, database or terminal bears is none: the payment is unknown rather than lost."""
        with pytest.raises(DecodeError):
            read_acknowledgement(to_bytes(samples.acknowledgement(transaction_id=odd)))

    def test_a_login(self) -> None:
        assert read_login(to_bytes(samples.login())) == LoginResult(
            access_token=Secret("header.payload.signature"),
            token_type="Bearer",
            expires_in=3600,
            user=User(
                id=7,
                email="a@b.example",
                first_name="Asha",
                last_name="Juma",
                user_type="Merchant",
                kyc_status="approved",
            ),
        )

    def test_a_page(self) -> None:
        answer = read_page(to_bytes(samples.page(samples.transaction(), samples.transaction(id="t-2"), total_count=2)))
        assert answer.transactions == (PENDING, attrs.evolve(PENDING, id="t-2"))
        shown = TransactionPage(transactions=answer.transactions, pagination=answer.pagination)
        assert ([*shown], len(shown)) == ([*answer.transactions], 2)
        assert answer.pagination == Pagination(current_page=1, total_pages=1, total_count=2, per_page=100)

    def test_an_empty_page(self) -> None:
        assert read_page(to_bytes(samples.page())).transactions == ()


OPTIONAL = [
    "reference",
    "network",
    "created_at",
    "external_id",
    "merchant_id",
    "completed_at",
    "failed_at",
    "failure_reason",
    "fees",
    "settlement",
]


class TestWhatMayBeMissing:
    @pytest.mark.parametrize("field", OPTIONAL)
    def test_absent_and_null_are_the_same(self, field: str) -> None:
        """A field that is present only sometimes is None where it is absent or null."""
        absent = samples.transaction()
        absent.pop(field, None)
        for body in (absent, samples.transaction(**{field: None})):
            assert getattr(read_transaction(body), field) is None

    def test_they_are_all_the_optional_fields(self) -> None:
        optional = [field.name for field in attrs.fields(Transaction) if field.default is not attrs.NOTHING]
        assert sorted(optional) == sorted(OPTIONAL)

    @pytest.mark.parametrize("field", sorted(samples.transaction().keys() - set(OPTIONAL)))
    @pytest.mark.parametrize("change", ["absent", "null"])
    def test_other_fields_must_be_there(self, field: str, change: str) -> None:
        """A transaction without its id, state or amount is no transaction."""
        body = samples.transaction(**{field: None})
        if change == "absent":
            del body[field]
        with pytest.raises(DecodeError) as caught:
            read_transaction(body)
        assert caught.value.path == f"$.transaction.{field}"

    @pytest.mark.parametrize("field", ["id", "email", "first_name", "last_name", "user_type", "kyc_status"])
    def test_a_user_may_be_known_by_little(self, field: str) -> None:
        user = samples.login()["user"] | {field: None}
        result = read_login(to_bytes(samples.login(user=user)))
        assert result.user is not None
        assert getattr(result.user, field) is None

    def test_a_login_needs_token_and_lifetime_only(self) -> None:
        result = read_login(b'{"access_token": "a.b.c", "expires_in": 60}')
        assert (result.access_token.reveal(), result.expires_in, result.token_type) == ("a.b.c", 60, "Bearer")
        assert (result.user, result.success) == (None, True)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=5,
)


class TestWhatTheServiceMayAdd:
    @pytest.mark.slow
    @given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])).map("x_{}".format), junk, max_size=4))
    def test_unknown_fields_are_ignored(self, extra: dict[str, Any]) -> None:
        """A field that the service adds tomorrow breaks nothing, whatever it holds."""
        body = samples.settled()
        body["fees"] |= extra
        body["settlement"] |= extra
        assert read_transaction(body | extra) == read_transaction(samples.settled())
        assert read_found(to_bytes(samples.found() | extra)).transaction == PENDING

    @pytest.mark.parametrize("status", ["REVERSED", "success", "", "ZZ-9"])
    def test_an_unknown_status_is_kept_and_never_final(self, status: str) -> None:
        """A new state keeps its text, and the payment goes on being followed."""
        row = read_transaction(samples.transaction(status=status))
        assert row.status == status
        assert isinstance(row.status, TransactionStatus)
        assert not row.status.is_known
        assert not row.is_final
        assert not row.succeeded
        assert pickle.loads(pickle.dumps(row)) == row

    def test_other_unknown_words_are_kept(self) -> None:
        """A new type, network or failure reason never breaks an answer."""
        row = read_transaction(samples.transaction(type="refund", network="m_pesa", failure_reason="NEW_REASON"))
        assert (row.type, row.network, row.failure_reason) == ("refund", "m_pesa", "NEW_REASON")
        assert read_acknowledgement(to_bytes(samples.acknowledgement(status_code="QUEUED"))).status_code == "QUEUED"


class TestTime:
    @pytest.mark.parametrize(
        ("text", "moment"),
        [
            ("2025-06-01T12:00:00Z", NOON),
            ("2025-06-01t12:00:00z", NOON),
            ("2025-06-01t15:00:00.0000005+03:00", NOON + dt.timedelta(microseconds=1)),
            ("2025-06-01 12:00:00Z", NOON),
            ("2025-06-01T12:00:00", NOON),
            ("2025-06-01T12:00:00.000Z", NOON),
            ("2025-06-01T12:00:00.250+00:00", NOON + dt.timedelta(milliseconds=250)),
            ("2025-06-01T12:00:00,25Z", NOON + dt.timedelta(milliseconds=250)),
            ("2025-06-01T12:00:00.123456789Z", NOON + dt.timedelta(microseconds=123457)),
            ("2025-06-01T15:00:00+03:00", NOON),
            ("2025-06-01T15:00:00+0300", NOON),
            ("2025-06-01T15:00+03", NOON),
            ("2025-05-31T22:00:00-14:00", NOON),
            ("20250601T120000Z", NOON),
            ("20250601T150000+0300", NOON),
            ("2025-06-01T12Z", NOON),
            ("2025-06-01", NOON - dt.timedelta(hours=12)),
            ("2025-W22-7T12:00:00Z", NOON),
            ("0001-01-01T00:00:00Z", dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
            ("9999-12-31T23:59:59Z", dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
        ],
    )
    def test_every_iso_8601_timestamp_becomes_utc(self, text: str, moment: dt.datetime) -> None:
        """Naive, with an offset or in another notation: it is the same aware UTC datetime, whatever is beside it."""
        row = read_transaction(samples.settled(created_at=text, completed_at=text, failed_at=text))
        assert row.created_at == row.completed_at == row.failed_at == moment
        assert read_transaction(samples.settled(created_at=text, reference="")).created_at == moment
        body = samples.settled()
        body["settlement"]["settled_at"] = text
        settlement = read_transaction(body).settlement
        assert settlement is not None
        for found in (row.created_at, row.completed_at, row.failed_at, settlement.settled_at):
            assert found is not None
            assert found == moment
            assert found.tzinfo is dt.UTC

    @given(
        st.datetimes(min_value=dt.datetime(2, 1, 1), max_value=dt.datetime(9998, 1, 1)),  # noqa: DTZ001 (naive on purpose)
        st.integers(min_value=-14 * 60, max_value=14 * 60),
    )
    def test_any_offset_names_the_same_moment(self, moment: dt.datetime, minutes: int) -> None:
        aware = moment.replace(tzinfo=dt.timezone(dt.timedelta(minutes=minutes)))
        row = read_transaction(samples.transaction(created_at=aware.isoformat()))
        assert row.created_at is not None
        assert row.created_at == aware
        assert row.created_at.tzinfo is dt.UTC

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "yesterday",
            "2025-13-01T00:00:00Z",
            "2025-02-30T00:00:00Z",
            "1748779200",
            "2025-06-01T12:00:00 EAT",
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-14:00",
        ],
    )
    def test_what_is_no_moment_is_none(self, text: str) -> None:
        """A text that is no timestamp, and one outside the calendar, is a missing time and hides nothing else."""
        row = read_transaction(samples.transaction(status="FAILED", created_at=text, failed_at=text))
        assert (row.created_at, row.failed_at, row.status) == (None, None, "FAILED")


def _escaped(row: dict[str, Any], field: str) -> bytes:
    """Return an answer that spells the name of a field with an escape."""
    text = to_bytes({"transaction": row})
    return text.replace(b'"%s"' % field.encode(), b'"\\u%04x%s"' % (ord(field[0]), field[1:].encode()))


class TestMoney:
    @given(st.decimals(min_value=0, max_value=10**15, allow_nan=False, allow_infinity=False, places=4))
    def test_amounts_are_exact(self, amount: Decimal) -> None:
        """You get the service's number as a Decimal, digit for digit, from text or from a number."""
        for body in (f'"{amount:f}"', f"{amount:f}"):
            text = to_bytes(samples.found(amount="@")).replace(b'"@"', body.encode())
            assert read_found(text).transaction.amount == amount

    @pytest.mark.parametrize("amount", ["0", "7", "00.50", "9" * 20, "9" * 17 + ".999", "1." + "0" * 19])
    def test_twenty_digits_are_read(self, amount: str) -> None:
        assert read_found(to_bytes(samples.found(amount=amount))).transaction.amount == Decimal(amount)

    def test_a_fraction_does_not_pass_through_a_float(self) -> None:
        """10.1 is 10.1, not 10.0999…"""
        text = to_bytes(samples.found(amount="@")).replace(b'"@"', b"10.1")
        assert str(read_found(text).transaction.amount) == "10.1"
        text = text.replace(b"10.1", b"123456789012345678.01")
        assert str(read_found(text).transaction.amount) == "123456789012345678.01"

    @pytest.mark.parametrize(
        "amount",
        [
            *("NaN", "sNaN", "Infinity", "-Infinity", "", "ten", "1,000", "1E+99999999999999999999", True, None, []),
            *("1e999999999", "1e3", "1e-2", "+1000", "-5", "1_000", " 1000", "1000 ", "1000\n", ".5", "5.", "5.0.0"),
            *("\u0661\u0660\u0660", "\uff11", "9" * 21, "9" * 18 + ".999", "1." + "0" * 20, -5, 10**20),
        ],
    )
    def test_what_is_no_amount_is_not_read(self, amount: Any) -> None:
        """Only digits with an optional fraction are money, at most twenty of them, and null is not zero."""
        body = samples.settled(amount=amount)
        with pytest.raises(DecodeError) as caught:
            read_transaction(body)
        assert caught.value.path == "$.transaction.amount"
        with pytest.raises(DecodeError):
            read_found(_escaped(body, "amount"))
        for part, name in (("fees", "merchant_fee"), ("fees", "total_fee"), ("settlement", "net_amount")):
            body = samples.settled()
            body[part][name] = amount
            for text in (to_bytes({"transaction": body}), _escaped(body, name)):
                row = read_found(text).transaction
                assert getattr(getattr(row, part), name) is None
                assert row.amount == 1000


class TestValues:
    VALUES: tuple[Any, ...] = (
        PENDING,
        read_transaction(samples.settled(status="NEW")),
        read_acknowledgement(to_bytes(samples.acknowledgement(status_code="NEW"))),
        read_page(to_bytes(samples.page(samples.settled()))),
        TransactionPage(transactions=(PENDING,), pagination=Pagination(**samples.pagination())),
        User(**samples.login()["user"]),
    )

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    @pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
    def test_they_copy_and_pickle(self, value: Any, way: Callable[[Any], Any]) -> None:
        """A value goes through a queue and comes out equal."""
        assert way(value) == value
        assert hash(way(value)) == hash(value)

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    def test_they_are_frozen_slotted_and_keyword_only(self, value: Any) -> None:
        """Nothing changes a value behind your back, and no typing error adds a field."""
        for field in attrs.fields(type(value)):
            assert field.kw_only
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(value, field.name, None)
        assert not hasattr(value, "__dict__")

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    def test_their_reprs_mask_the_phone_number(self, value: Any) -> None:
        assert "+255680000001" not in repr(value)

    def test_their_reprs_redact_what_the_service_says(self) -> None:
        """A code is shown as it is; a sentence may hold anything."""
        said = {"failure_reason": "no wallet for +255681234567", "external_id": "+255681234567"}
        failed = read_transaction(samples.transaction(status="FAILED", **said))
        answer = read_acknowledgement(to_bytes(samples.acknowledgement(message="sent to +255681234567")))
        odd = attrs.evolve(failed, id="255681234567", reference="0681234567", merchant_id="+255 681 234 567")
        event = TransactionUnclaimed(transaction_id=odd.id, type="collection", status=odd.id, fits_key=None)
        assert "1234567" not in f"{failed!r}{answer!r}{odd!r}{event!r}"
        assert failed.failure_reason == said["failure_reason"]
        code = attrs.evolve(failed, failure_reason="INSUFFICIENT_BALANCE_OF_PAYER")
        assert "failure_reason='INSUFFICIENT_BALANCE_OF_PAYER'" in repr(code)

    def test_a_login_result_hides_its_token_and_does_not_pickle_by_accident(self) -> None:
        """The bearer token neither shows nor leaves the process unasked."""
        result = read_login(to_bytes(samples.login()))
        assert "payload" not in repr(result)
        assert "payload" not in str(attrs.asdict(result))
        assert copy.deepcopy(result) == result
        with pytest.raises(TypeError, match="reveal"):
            pickle.dumps(result)

    def test_money_made_by_hand_must_be_finite_too(self) -> None:
        with pytest.raises(ValueError, match="finite"):
            attrs.evolve(PENDING, amount=Decimal("NaN"))


class TestRowsOneByOne:
    """For evidence, a row that breaks the contract must not hide the others of its page."""

    @pytest.mark.parametrize(
        ("name", "odd"),
        [*(("id", each) for each in ("t-\ud800", "\ud800", "t\0")), *((each, "TZS\ud800") for each in TEXTS)],
    )
    def test_a_core_text_that_no_database_can_keep_makes_its_row_unreadable(self, name: str, odd: str) -> None:
        """JSON can hold half of a surrogate pair, and a NUL: one in an id stopped each reconcile.

        A final state with one in its currency was recorded, and could not be read again.
        """
        rows = (samples.settled(**{name: odd}), samples.settled(id="t-3"))
        with pytest.raises(DecodeError, match=rf"surrogates at \$\.transaction\.{name}"):
            read_found(to_bytes({"transaction": rows[0]}))
        answer: Any = read_rows(to_bytes(samples.page(*rows)))
        assert [each.id for each in answer.transactions] == ["t-3"]
        assert len(answer.unreadable) == 1

    def test_a_good_page_is_read_as_ever(self) -> None:
        body = to_bytes(samples.page(samples.settled(), samples.transaction()))
        assert type(read_rows(body)) is PageAnswer
        assert read_rows(body) == read_page(body)

    @pytest.mark.parametrize(
        ("row", "kept"),
        [
            (samples.transaction(amount="many"), UnreadableRow(id="t-1", created_at=NOON)),
            (
                samples.transaction(status=5, created_at="20250601T150000+0300"),
                UnreadableRow(id="t-1", created_at=NOON),
            ),
            (samples.transaction(id=7.5), UnreadableRow(created_at=NOON)),
            (samples.transaction(type=5, created_at="0001-01-01T00:00:00+14:00"), UnreadableRow(id="t-1")),
            ({"created_at": None}, UnreadableRow()),
            (None, UnreadableRow()),
            ([], UnreadableRow()),
            ("t-1", UnreadableRow()),
        ],
    )
    def test_a_broken_row_is_kept_as_far_as_it_can_be_read(self, row: Any, kept: UnreadableRow) -> None:
        """Its id and its time are read as strictly as ever, each by itself."""
        answer = read_rows(to_bytes(samples.page(samples.transaction(id="t-2"), row, samples.settled(id="t-3"))))
        assert isinstance(answer, RowsAnswer)
        assert [each.id for each in answer.transactions] == ["t-2", "t-3"]
        assert answer.unreadable == (kept,)
        assert answer.unreadable[0].reason.rpartition(" at ")[2].startswith("$")
        assert answer.pagination == Pagination(**samples.pagination())

    @pytest.mark.parametrize(
        ("change", "path"),
        [
            ({"transactions": {}}, "$.transactions"),
            ({"transactions": None}, "$.transactions"),
            ({"transactions": None, "pagination": None}, "$.transactions"),
        ],
    )
    def test_a_page_that_is_none_is_refused(self, change: dict[str, Any], path: str) -> None:
        """Its array must fit, beside a broken row too."""
        with pytest.raises(DecodeError) as caught:
            read_rows(to_bytes(samples.page({}) | change))
        assert caught.value.path == path

    @pytest.mark.parametrize(
        "pagination", [None, [], {}, samples.pagination(total_count="7"), samples.pagination(total_pages=-1)]
    )
    def test_a_page_whose_counts_cannot_be_read_shows_its_rows(self, pagination: Any) -> None:
        """The counts are for completeness only: without them a listing is never complete."""
        answer = read_rows(to_bytes(samples.page(samples.transaction()) | {"pagination": pagination}))
        assert ([row.id for row in answer.transactions], answer.is_counted) == (["t-1"], False)

    def test_other_bodies_are_no_pages(self) -> None:
        for body in (b"", b"<html>", b"[]", b"null", b'{"status": "error", "error_code": "X"}'):
            with pytest.raises(DecodeError):
                read_rows(body)
