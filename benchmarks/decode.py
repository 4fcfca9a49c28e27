"""Decoding a page of 100 transactions, CPU time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import openai
import pydantic
import stripe
from stripe._stripe_response import StripeResponse

from benchmarks.bodies import page_of_transactions
from benchmarks.common import MICRO, Row, at_least, at_most, interleave, repeated, size
from mobilemoney_async.contract.endpoints import LIST_TRANSACTIONS
from mobilemoney_async.contract.error_mapping import Answer, read_answer
from mobilemoney_async.contract.models import PageAnswer
from mobilemoney_async.contract.states import Network, TransactionStatus, TransactionType

_ROUNDS = size(41, 1)


class _PydanticFees(pydantic.BaseModel):
    merchant_fee: Decimal
    customer_fee: Decimal
    total_fee: Decimal


class _PydanticSettlement(pydantic.BaseModel):
    net_amount: Decimal
    settled_at: datetime
    settlement_batch: str


class _PydanticTransaction(pydantic.BaseModel):
    id: str
    reference: str
    type: TransactionType
    amount: Decimal
    currency: str
    phone_number: str
    network: Network
    status: TransactionStatus
    created_at: datetime
    external_id: str | None = None
    merchant_id: str | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    failure_reason: str | None = None
    fees: _PydanticFees | None = None
    settlement: _PydanticSettlement | None = None


class _PydanticPagination(pydantic.BaseModel):
    current_page: int
    total_pages: int
    total_count: int
    per_page: int


class _PydanticPage(pydantic.BaseModel):
    status: str
    transactions: list[_PydanticTransaction]
    pagination: _PydanticPagination


# As openai's own models are written: money, like every other text, stays a text.
class _OpenAIFees(openai.BaseModel):
    merchant_fee: str
    customer_fee: str
    total_fee: str


class _OpenAISettlement(openai.BaseModel):
    net_amount: str
    settled_at: datetime
    settlement_batch: str


class _OpenAITransaction(openai.BaseModel):
    id: str
    reference: str
    type: str
    amount: str
    currency: str
    phone_number: str
    network: str
    status: str
    created_at: datetime
    external_id: str | None = None
    merchant_id: str | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    failure_reason: str | None = None
    fees: _OpenAIFees | None = None
    settlement: _OpenAISettlement | None = None


class _OpenAIPagination(openai.BaseModel):
    current_page: int
    total_pages: int
    total_count: int
    per_page: int


class _OpenAIPage(openai.BaseModel):
    status: str
    transactions: list[_OpenAITransaction]
    pagination: _OpenAIPagination


def _openai(body: bytes) -> _OpenAIPage:
    return _OpenAIPage.construct(**json.loads(body))


def _stripe(body: bytes) -> stripe.StripeObject:
    data: Any = StripeResponse(body.decode(), 200, {}).data
    return stripe.StripeObject.construct_from(data, "sk_test_0")


def _ours(body: bytes) -> Callable[[], Any]:
    return partial(read_answer, LIST_TRANSACTIONS, Answer(status_code=200, content_type="application/json", body=body))


def run() -> list[Row]:
    """Compare the client's way of reading a page with other libraries' ways."""
    body = page_of_transactions()
    # As a page of a service that writes times in its own way: side fields, which are read as None.
    odd = re.sub(rb'"created_at": "[^"]*"', b'"created_at": "yesterday"', body)
    ways: dict[str, tuple[Callable[[], Any], int]] = {
        "ours": (_ours(body), 100),
        "ours, odd": (_ours(odd), 40),
        "msgspec": (partial(msgspec.json.Decoder(PageAnswer).decode, body), 100),
        "pydantic": (partial(_PydanticPage.model_validate_json, body), 60),
        "openai": (partial(_openai, body), 6),
        "stripe": (partial(_stripe, body), 6),
    }
    read = [way().transactions for way, _ in ways.values()]
    assert all(len(transactions) == 100 for transactions in read)
    assert all(each.created_at is None for each in read[1])
    assert read[3][7].created_at == read[0][7].created_at
    assert read[3][7].amount == read[0][7].amount

    figures = interleave({name: repeated(way, number) for name, (way, number) in ways.items()}, _ROUNDS)
    case, cost = f"decode a page of 100 transactions ({len(body) // 1000} kB)", f"{figures.cost('ours') * MICRO:.0f} µs"
    rows = [
        Row(
            case,
            cost,
            f"msgspec into the same classes, {figures.cost('msgspec') * MICRO:.0f} µs",
            "at most 1.12x",
            *at_most(figures.ratio("ours", "msgspec"), 1.12),
        )
    ]
    # msgspec alone is the limit: nothing that makes these classes is more times faster than it is.
    for name, limit in (("pydantic", 1.0), ("openai", 15), ("stripe", 15)):
        fastest = figures.ratio(name, "msgspec")
        against = f"{name}, {figures.cost(name) * MICRO:,.0f} µs; the limit, msgspec, is {fastest:.1f}x faster"
        faster = at_least(figures.ratio(name, "ours"), limit)
        rows.append(Row(case, cost, against, f"at least {limit:g}x faster", *faster))
    case, cost = "the same, `created_at` of each row unreadable", f"{figures.cost('ours, odd') * MICRO:.0f} µs"
    against = f"the page above, {figures.cost('ours') * MICRO:.0f} µs"
    return [*rows, Row(case, cost, against, "at most 3x", *at_most(figures.ratio("ours, odd", "ours"), 3))]
