"""Serialization: a value comes back from its text as it was."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobilemoney_async import MobileMoneyError, StoreError
from mobilemoney_async.contract.codec import reader
from mobilemoney_async.contract.models import Acknowledgement, Fees, Settlement, Transaction
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.contract.states import Network, TransactionStatus, TransactionType
from mobilemoney_async.database.serialization import dump, load
from tests.contract import samples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# An id or a number with a NUL makes an answer unreadable. A side field without a text, or with a NUL, is None.
identifiers = texts.filter(lambda text: "\0" not in text)
sides = st.none() | identifiers.filter(bool)
money = st.builds(
    lambda digits, places: Decimal(digits).scaleb(-places), st.integers(0, 10**20 - 1), st.integers(0, 19)
)
times = st.datetimes(
    min_value=datetime(1900, 1, 1),  # noqa: DTZ001 (hypothesis wants it so)
    max_value=datetime(9000, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=3))]),
)
transactions = st.builds(
    Transaction,
    id=identifiers,
    reference=sides,
    type=st.sampled_from([*TransactionType, TransactionType("of another kind")]),
    amount=money,
    currency=texts,
    phone_number=identifiers,
    network=st.sampled_from([*Network, Network("another")]),
    status=st.sampled_from([*TransactionStatus, TransactionStatus("ODD")]),
    created_at=times,
    external_id=sides,
    merchant_id=sides,
    completed_at=st.none() | times,
    failed_at=st.none() | times,
    failure_reason=sides,
    fees=st.none() | st.builds(Fees, merchant_fee=money, customer_fee=money, total_fee=money),
    settlement=st.none() | st.builds(Settlement, net_amount=money, settled_at=times, settlement_batch=sides),
)


@pytest.mark.slow
@given(transactions)
def test_a_transaction_comes_back_as_it_was(transaction: Transaction) -> None:
    """Every field comes back, to the last digit and microsecond, also values that the contract does not list."""
    text = dump(transaction)
    assert load(Transaction, text) == transaction
    assert text.isascii()


@pytest.mark.parametrize("text", ["", "{}", '{"id": 1}', "[", "\ud800"])
def test_what_is_no_such_text_is_the_store_s_fault(text: str) -> None:
    """A row with foreign text is a StoreError, which does not quote it."""
    for kind in (Transaction, Acknowledgement, MobileMoneyError):
        with pytest.raises(StoreError, match="cannot be read"):
            load(kind, text)


@pytest.mark.parametrize("text", ["é" * 30_000 + "," * 20_001, "\u202e\x1b[31m\0", "\ud800" * 3], ids=ascii)
def test_whatever_is_read_is_read_back(text: str) -> None:
    """Any text that the service may show, also one that is longer in the store than it was in the answer."""
    row, read = samples.transaction(reference=text, failure_reason=text), reader(Transaction)
    for ensure_ascii in (True, False):
        body = json.dumps(row, ensure_ascii=ensure_ascii).encode(errors="surrogatepass")
        with suppress(DecodeError):
            transaction = read(body)
            assert load(Transaction, dump(transaction)) == transaction
    body = json.dumps(samples.acknowledgement(message=text), ensure_ascii=False).encode(errors="surrogatepass")
    with suppress(DecodeError):
        acknowledgement = reader(Acknowledgement)(body)
        assert load(Acknowledgement, dump(acknowledgement)) == acknowledgement
