"""Decoding a page of 100 transactions, CPU time."""

from __future__ import annotations

import json
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


def run() -> list[Row]:
    """Compare the client's way of reading a page with other libraries' ways."""
    body = page_of_transactions()
    answer = Answer(status_code=200, content_type="application/json", body=body)
    ours = partial(read_answer, LIST_TRANSACTIONS, answer)
    ways: dict[str, tuple[Callable[[], Any], int]] = {
        "ours": (ours, 100),
        "msgspec": (partial(msgspec.json.Decoder(PageAnswer).decode, body), 100),
        "pydantic": (partial(_PydanticPage.model_validate_json, body), 60),
        "openai": (partial(_openai, body), 6),
        "stripe": (partial(_stripe, body), 6),
    }
    read = [way().transactions for way, _ in ways.values()]
    assert all(len(transactions) == 100 for transactions in read)
    assert read[2][7].created_at == read[0][7].created_at
    assert read[2][7].amount == read[0][7].amount

    figures = interleave({name: repeated(way, number) for name, (way, number) in ways.items()}, _ROUNDS)
    case, cost = f"decode a page of 100 transactions ({len(body) // 1000} kB)", f"{figures.cost('ours') * MICRO:.0f} µs"
    rows = [
        Row(
            case,
            cost,
            f"msgspec into the same classes, {figures.cost('msgspec') * MICRO:.0f} µs",
            "at most 1.15x",
            *at_most(figures.ratio("ours", "msgspec"), 1.15),
        )
    ]
    for name, limit in (("pydantic", 1.7), ("openai", 20), ("stripe", 20)):
        against = f"{name}, {figures.cost(name) * MICRO:,.0f} µs"
        faster = at_least(figures.ratio(name, "ours"), limit)
        rows.append(Row(case, cost, against, f"at least {limit}x faster", *faster))
    return rows
