"""Single answers of the service for unit tests: httpx responses, and respx routes that give them.

For a test that needs one answer, and no service behind it. The bodies have the shapes of the contract (sections 2 and
7). Where a test takes more than one request, use the sandbox. respx is the test's own: this module only calls the
router that it is given.
"""

from __future__ import annotations

import itertools
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import httpx

from mobilemoney_async.contract import endpoints
from mobilemoney_async.contract.endpoints import Endpoint
from mobilemoney_async.errors import InvalidRequest
from mobilemoney_async.values import normalise_amount, refuse

if TYPE_CHECKING:
    import respx

_PHONE_NUMBER: Final = "+255780000789"
_AT: Final = "2026-01-02T12:00:00Z"
# The contract shows 404 and the 401 of tokens (section 7); the others are the usual ones.
_STATUS: Final = {
    "TRANSACTION_NOT_FOUND": 404,
    "INVALID_TRANSACTION_ID": 400,
    "RATE_LIMIT_EXCEEDED": 429,
    "invalid_credentials": 401,
    "invalid_token": 401,
    "token_expired": 401,
    "insufficient_permissions": 403,
}


def acknowledgement_answer(
    transaction_id: str = "tx-1",
    *,
    amount: int | Decimal | str = 1000,
    phone_number: str = _PHONE_NUMBER,
    status_code: str = "PENDING",
    **fields: Any,
) -> httpx.Response:
    """Return the answer to a create (section 2.2).

    Args:
        transaction_id: Of the new transaction.
        amount: Whole currency units.
        phone_number: International format.
        status_code: ``PENDING`` for a collection, ``PROCESSING`` for a disbursement.
        fields: Other fields of the body, or other values.

    Raises:
        InvalidRequest: The amount is invalid.
    """
    body = {
        "status": "success",
        "message": "Request accepted",
        "transaction_id": transaction_id,
        "reference": f"REF-{transaction_id}",
        "amount": normalise_amount(amount),
        "currency": "TZS",
        "phone_number": phone_number,
        "status_code": status_code,
    }
    return httpx.Response(200, json={**body, **fields})


def transaction_record(
    transaction_id: str = "tx-1",
    status: str = "SUCCESS",
    *,
    type: str = "collection",
    amount: int | Decimal | str = 1000,
    phone_number: str = _PHONE_NUMBER,
    **fields: Any,
) -> dict[str, Any]:
    """Return a transaction as the service shows it (section 2.1), with the fields of its state.

    Args:
        transaction_id: Its id.
        status: Its state.
        type: ``collection`` or ``disbursement``.
        amount: Whole currency units.
        phone_number: International format.
        fields: Other fields, or other values: ``failure_reason``, ``external_id``, ``created_at``.

    Raises:
        InvalidRequest: The amount is invalid.
    """
    units = normalise_amount(amount)
    record: dict[str, Any] = {
        "id": transaction_id,
        "reference": f"REF-{transaction_id}",
        "type": type,
        "amount": units,
        "currency": "TZS",
        "phone_number": phone_number,
        "network": "airtel_money",
        "status": status,
        "created_at": _AT,
        "merchant_id": "merchant-1",
    }
    if status == "SUCCESS":
        record["completed_at"] = _AT
        if type == "collection":
            record["fees"] = {"merchant_fee": "0.00", "customer_fee": "0.00", "total_fee": "0.00"}
            record["settlement"] = {"net_amount": f"{units}.00", "settled_at": _AT, "settlement_batch": "BATCH-1"}
    elif status == "FAILED":
        record |= {"failed_at": _AT, "failure_reason": "RECIPIENT_NOT_FOUND"}
    return {**record, **fields}


def transaction_answer(transaction_id: str = "tx-1", status: str = "SUCCESS", **fields: Any) -> httpx.Response:
    """Return the answer to a lookup (section 4.3).

    Args:
        transaction_id: Its id.
        status: Its state.
        fields: As for `transaction_record`.

    Raises:
        InvalidRequest: The amount is invalid.
    """
    record = transaction_record(transaction_id, status, **fields)
    return httpx.Response(200, json={"status": "success", "transaction": record})


def page_answer(*records: dict[str, Any], page: int = 1, total_pages: int = 1) -> httpx.Response:
    """Return one page of the history (section 4.4).

    Args:
        records: The transactions on it, each from `transaction_record`.
        page: Its number, from 1.
        total_pages: The number of pages.
    """
    counts = {"total_pages": total_pages, "total_count": len(records) * total_pages}
    pagination = {"current_page": page, **counts, "per_page": 100}
    return httpx.Response(200, json={"status": "success", "transactions": records, "pagination": pagination})


def login_answer(access_token: str = "token-of-a-login", expires_in: int = 3600) -> httpx.Response:  # noqa: S107
    """Return the answer to a login (section 2.3).

    Args:
        access_token: The bearer token.
        expires_in: Its lifetime, seconds.
    """
    user = {
        "id": 1,
        "email": "merchant@example.com",
        "first_name": "Asha",
        "last_name": "Mushi",
        "user_type": "Merchant",
        "kyc_status": "approved",
    }
    token = {"access_token": access_token, "token_type": "Bearer", "expires_in": expires_in}
    return httpx.Response(200, json={"success": True, **token, "user": user})


def error_answer(code: str, *, status: int | None = None, retry_after: int | None = None) -> httpx.Response:
    """Return an error (section 7): in the payment service's shape if its code is in upper case, else in the other.

    Args:
        code: Of the contract's table, or any other.
        status: HTTP status. By default that of the contract for the code, else the usual one.
        retry_after: Seconds, of `RATE_LIMIT_EXCEEDED`.

    Raises:
        InvalidRequest: The code is not in the contract's table, and there is no status.
    """
    status = _STATUS.get(code) if status is None else status
    if status is None:
        raise refuse("status", "an HTTP status, since the contract does not list this code")
    if not code.isupper():
        return httpx.Response(status, json={"success": False, "error": code, "message": "Refused by the test"})
    body: dict[str, Any] = {"status": "error", "message": "Refused by the test", "error_code": code}
    if retry_after is not None:
        body["retry_after"] = retry_after
    return httpx.Response(status, json=body)


class Routes:
    """Routes of the service's endpoints on a router of respx, at any base URL.

    Each method adds a route that gives its answers one after the other, the last one for ever, and returns it: ask it
    for ``called``, ``call_count`` and ``calls``. An answer is a response, or an exception of httpx's to be raised.

    Args:
        router: The fixture ``respx_mock``, ``respx.mock`` or a `respx.Router`.
    """

    def __init__(self, router: respx.Router) -> None:
        self._router = router

    def create_collection(self, *answers: httpx.Response | Exception) -> respx.Route:
        """Answer the creation of collections."""
        return self._add(endpoints.CREATE_COLLECTION, answers)

    def create_disbursement(self, *answers: httpx.Response | Exception) -> respx.Route:
        """Answer the creation of disbursements."""
        return self._add(endpoints.CREATE_DISBURSEMENT, answers)

    def get_transaction(self, *answers: httpx.Response | Exception, transaction_id: str | None = None) -> respx.Route:
        """Answer lookups by id: of one transaction, or of any."""
        return self._add(endpoints.GET_TRANSACTION, answers, transaction_id)

    def find_transaction(self, *answers: httpx.Response | Exception) -> respx.Route:
        """Answer lookups by reference and by external id."""
        return self._add(endpoints.FIND_TRANSACTION, answers)

    def list_transactions(self, *answers: httpx.Response | Exception) -> respx.Route:
        """Answer the history."""
        return self._add(endpoints.LIST_TRANSACTIONS, answers)

    def login(self, *answers: httpx.Response | Exception) -> respx.Route:
        """Answer logins."""
        return self._add(endpoints.LOGIN, answers)

    def _add(
        self, endpoint: Endpoint[Any], answers: tuple[httpx.Response | Exception, ...], identifier: str | None = None
    ) -> respx.Route:
        if not answers:
            raise InvalidRequest("answers are missing: give at least one", argument="answers")
        wanted = ".+" if identifier is None else re.escape(identifier)
        path = re.sub(r"\{.*?\}", lambda _: wanted, endpoint.path)
        route = self._router.route(method=endpoint.method, path__regex=f"^.*{path}$")
        return route.mock(side_effect=itertools.chain(answers, itertools.repeat(answers[-1])))
