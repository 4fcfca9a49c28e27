"""Answers of the services: realistic, made from a fixed seed, the page about 47 kB."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

_SEED = 20260101
_START = datetime(2026, 1, 12, 8, 30, tzinfo=UTC)


def page_of_transactions(count: int = 100) -> bytes:
    """Return a page of distinct transactions in every state that the contract knows."""
    chance = random.Random(_SEED)
    transactions = [_transaction(chance, number) for number in range(count)]
    pagination = {"current_page": 1, "total_pages": 37, "total_count": 3640, "per_page": count}
    return _encode({"status": "success", "transactions": transactions, "pagination": pagination})


def one_transaction() -> bytes:
    """Return a lookup of a settled collection: 600 bytes."""
    return _encode({"status": "success", "transaction": _collection(random.Random(_SEED), 1, "SUCCESS")})


def openai_batch() -> bytes:
    """Return the answer of openai's ``GET /batches/{id}``."""
    return _encode(
        {
            "id": "batch_67f7bfc50b288190893e242d9fa93c52",
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "errors": None,
            "input_file_id": "file-U9mv2mAyEaPTHBkVEDWDUV",
            "completion_window": "24h",
            "status": "completed",
            "output_file_id": "file-cvaTdG5ZXg6yCwLrJCjHq4",
            "error_file_id": None,
            "created_at": 1711471533,
            "in_progress_at": 1711471538,
            "expires_at": 1711557933,
            "finalizing_at": 1711493133,
            "completed_at": 1711493163,
            "request_counts": {"total": 100, "completed": 95, "failed": 5},
            "metadata": {"customer_id": "user_123456789", "batch_description": "nightly evaluation"},
        }
    )


def anthropic_batch() -> bytes:
    """Return the answer of anthropic's ``GET /v1/messages/batches/{id}``."""
    return _encode(
        {
            "id": "msgbatch_013Zva2CMHLNnXjNJJKqJ2EF",
            "type": "message_batch",
            "processing_status": "ended",
            "request_counts": {"processing": 0, "succeeded": 95, "errored": 3, "canceled": 1, "expired": 1},
            "created_at": "2026-01-12T08:37:24.100435Z",
            "ended_at": "2026-01-12T09:02:51.662812Z",
            "expires_at": "2026-01-13T08:37:24.100435Z",
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": "https://api.anthropic.com/v1/messages/batches/msgbatch_013Zva2CMHLNnXjNJJKqJ2EF/results",
        }
    )


def stripe_refund() -> bytes:
    """Return the answer of stripe's ``GET /v1/refunds/{id}``."""
    return _encode(
        {
            "id": "re_1Nispe2eZvKYlo2Cd31jOCgZ",
            "object": "refund",
            "amount": 1000,
            "balance_transaction": "txn_1Nispe2eZvKYlo2CYezqFhEx",
            "charge": "ch_1NirD82eZvKYlo2CIvbtLWuY",
            "created": 1692942318,
            "currency": "usd",
            "destination_details": {
                "card": {"reference": "123456789012", "reference_status": "available", "type": "refund"},
                "type": "card",
            },
            "metadata": {"order_id": "6735"},
            "payment_intent": "pi_1GszsK2eZvKYlo2CfhZyoZLp",
            "reason": "requested_by_customer",
            "receipt_number": None,
            "source_transfer_reversal": None,
            "status": "succeeded",
            "transfer_reversal": None,
        }
    )


def _transaction(chance: random.Random, number: int) -> dict[str, Any]:
    if chance.random() < 0.8:
        states = ["SUCCESS", "FAILED", "TIMEOUT", "PENDING"]
        return _collection(chance, number, chance.choices(states, [80, 8, 4, 8])[0])
    states = ["SUCCESS", "FAILED", "INSUFFICIENT_FUNDS", "PROCESSING"]
    return _record(chance, number, "disbursement", chance.choices(states, [75, 10, 5, 10])[0])


def _collection(chance: random.Random, number: int, status: str) -> dict[str, Any]:
    record = _record(chance, number, "collection", status)
    if status == "SUCCESS":
        amount = int(record["amount"])
        fee, levy = amount * 15 // 10, amount * 5 // 10  # in hundredths
        record["fees"] = {
            "merchant_fee": _money(fee),
            "customer_fee": _money(levy),
            "total_fee": _money(fee + levy),
        }
        record["settlement"] = {
            "net_amount": _money(100 * amount - fee),
            "settled_at": _time(_START + timedelta(hours=number, minutes=30)),
            "settlement_batch": f"BATCH_202601{12 + number % 15}_{number % 4:03d}",
        }
    return record


def _record(chance: random.Random, number: int, kind: str, status: str) -> dict[str, Any]:
    created = _START + timedelta(seconds=97 * number + chance.random())
    moved = _time(created + timedelta(seconds=chance.uniform(4, 60)))
    record = {
        "id": f"txn_{chance.getrandbits(64):016x}",
        "reference": f"REF{20260112000000 + number}",
        "external_id": f"ORDER-{chance.randrange(10**6, 10**7)}",
        "type": kind,
        "amount": str(500 * chance.randint(1, 400)),
        "currency": "TZS",
        "phone_number": f"+25578{chance.randrange(10**7):07d}",
        "network": "airtel_money",
        "status": status,
        "created_at": _time(created),
        "merchant_id": "merch_8842",
    }
    if status == "SUCCESS":
        record["completed_at"] = moved
    if status == "FAILED":
        record["failed_at"] = moved
        record["failure_reason"] = "RECIPIENT_NOT_FOUND"
    return record


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _money(hundredths: int) -> str:
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def _encode(body: object) -> bytes:
    return json.dumps(body).encode()
