"""Bodies as the contract shows them, to be changed where a test wants something else."""

import json
from typing import Any


def transaction(**changes: Any) -> dict[str, Any]:
    """Return a pending collection as JSON values (contract, section 2.1)."""
    return {
        "id": "t-1",
        "reference": "r-1",
        "type": "collection",
        "amount": "1000",
        "currency": "TZS",
        "phone_number": "+255680000001",
        "network": "airtel_money",
        "status": "PENDING",
        "created_at": "2025-06-01T12:00:00Z",
    } | changes


def settled(**changes: Any) -> dict[str, Any]:
    """Return a successful collection with everything that comes with one."""
    return (
        transaction(
            status="SUCCESS",
            external_id="order-7",
            merchant_id="m-1",
            completed_at="2025-06-01T12:00:30Z",
            fees={"merchant_fee": "10.00", "customer_fee": "0.00", "total_fee": "10.00"},
            settlement={"net_amount": "990.00", "settled_at": "2025-06-02T00:00:00Z", "settlement_batch": "b-1"},
        )
        | changes
    )


def acknowledgement(**changes: Any) -> dict[str, Any]:
    """Return the answer to a create (contract, section 2.2)."""
    return {
        "status": "success",
        "message": "accepted",
        "transaction_id": "t-1",
        "reference": "r-1",
        "amount": "1000",
        "currency": "TZS",
        "phone_number": "+255680000001",
        "status_code": "PENDING",
    } | changes


def login(**changes: Any) -> dict[str, Any]:
    """Return the answer to a login (contract, section 2.3)."""
    return {
        "success": True,
        "access_token": "header.payload.signature",
        "token_type": "Bearer",
        "expires_in": 3600,
        "user": {
            "id": 7,
            "email": "a@b.example",
            "first_name": "Asha",
            "last_name": "Juma",
            "user_type": "Merchant",
            "kyc_status": "approved",
        },
    } | changes


def pagination(**changes: Any) -> dict[str, Any]:
    """Return the position of a page (contract, section 2.4)."""
    return {"current_page": 1, "total_pages": 1, "total_count": 1, "per_page": 100} | changes


def found(**changes: Any) -> dict[str, Any]:
    """Return the answer to a lookup (contract, section 4.3)."""
    return {"status": "success", "transaction": transaction(**changes)}


def page(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the answer to a list request (contract, section 4.4)."""
    return {"status": "success", "transactions": list(rows), "pagination": pagination(**changes)}


def to_bytes(body: Any) -> bytes:
    """Return JSON values as a body."""
    return json.dumps(body).encode()
