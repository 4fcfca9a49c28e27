"""Collections, disbursements, inquiry and history, through the pure engine."""

from decimal import Decimal
from typing import Any

import pytest

from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.states import Event
from tests.sandbox.service import ORDINARY, START, STUCK, SUCCEEDS, Service

CREATES = ("/payment-service/airtel/c2b", "/payment-service/airtel/b2c")


def test_a_collection_is_acknowledged_then_pending_then_settled(service: Service) -> None:
    acknowledgement = service.collect(SUCCEEDS, "12345").json
    assert acknowledgement == {
        "status": "success",
        "message": "Payment request sent to the customer",
        "transaction_id": acknowledgement["transaction_id"],
        "reference": acknowledgement["reference"],
        "amount": "12345",
        "currency": "TZS",
        "phone_number": SUCCEEDS,
        "status_code": "PENDING",
    }
    common = {
        "id": acknowledgement["transaction_id"],
        "reference": acknowledgement["reference"],
        "type": "collection",
        "amount": "12345",
        "currency": "TZS",
        "phone_number": SUCCEEDS,
        "network": "airtel_money",
        "created_at": "2025-03-31T23:59:00.000Z",
        "merchant_id": "mer_0001",
    }
    assert service.get(common["id"]).json == {"status": "success", "transaction": {**common, "status": "PENDING"}}
    service.now = 5.0
    assert service.get(common["id"]).json["transaction"] == {
        **common,
        "status": "SUCCESS",
        "completed_at": "2025-03-31T23:59:05.000Z",
        "fees": {"merchant_fee": "185.18", "customer_fee": "61.73", "total_fee": "246.91"},
        "settlement": {
            "net_amount": "12159.82",
            "settled_at": "2025-03-31T23:59:05.000Z",
            "settlement_batch": "BATCH-20250331",
        },
    }


def test_a_disbursement_is_processing_then_paid_without_fees(service: Service) -> None:
    acknowledgement = service.disburse(SUCCEEDS, "700").json
    assert acknowledgement["status_code"] == "PROCESSING"
    service.now = 5.0
    record = service.get(acknowledgement["transaction_id"]).json["transaction"]
    assert (record["type"], record["status"]) == ("disbursement", "SUCCESS")
    assert record["completed_at"] == "2025-03-31T23:59:05.000Z"
    assert "fees" not in record
    assert "settlement" not in record


def test_the_ledger_holds_moved_money_and_nothing_else() -> None:
    service = Service(balance=1000)
    book = service.engine.book
    collected = service.collect(SUCCEEDS, "10000").json["transaction_id"]
    service.collect("+255780000039", "5000")
    service.now = 10.0
    paid = service.disburse(SUCCEEDS, "10850").json["transaction_id"]
    too_much = service.disburse(SUCCEEDS, "1").json["transaction_id"]
    service.now = 20.0
    book.settle(service.now)
    ledger = book.ledger
    assert [(entry.transaction_id, entry.change, entry.at) for entry in ledger] == [
        (collected, Decimal(9850), 5.0),
        (paid, Decimal(-10850), 15.0),
    ]
    assert service.get(too_much).json["transaction"]["status"] == "INSUFFICIENT_FUNDS"
    assert (ledger.collected, ledger.disbursed) == (Decimal(10000), Decimal(10850))
    assert ledger.balance("mer_0001") == 0
    assert ledger.balance("somebody else") == 0
    assert len(ledger) == 2
    assert ledger[0] == ledger[:1][0] == next(iter(ledger))
    assert SUCCEEDS not in repr(list(ledger))


def test_a_payout_over_the_balance_runs_short() -> None:
    service = Service(balance=999)
    transaction_id = service.disburse(amount="1000").json["transaction_id"]
    service.now = 1000.0
    record = service.get(transaction_id).json["transaction"]
    assert record["status"] == "INSUFFICIENT_FUNDS"
    assert not {"completed_at", "failed_at", "failure_reason"} & record.keys()


def test_the_outcome_does_not_depend_on_requests() -> None:
    """Asking every second and asking once at the end see the same history."""
    curious, patient = Service(balance=5000), Service(balance=5000)
    for service in (curious, patient):
        for number in range(20):
            service.now = number * 0.5
            service.disburse(f"+2556810000{number:02d}", "900")
            service.collect(f"+2556810000{number:02d}", "500")
    for second in range(10, 200):
        curious.now = float(second)
        curious.list()
    curious.now = patient.now = 200.0
    assert curious.list(limit="100").json == patient.list(limit="100").json
    assert list(curious.engine.book.ledger) == list(patient.engine.book.ledger)


@pytest.mark.slow
def test_ordinary_payments_take_a_realistic_and_repeatable_time() -> None:
    def delays(seed: int, speed: float = 1.0) -> list[float]:
        service = Service(seed=seed, speed=speed)
        for number in range(400):
            service.collect(f"+255681{number:06d}")
        service.engine.book.settle(1000.0)
        return [payment.ended_at or 0 for payment in service.engine.book.payments.values()]

    seconds = sorted(delays(1))
    assert 13 < seconds[200] < 17
    assert 1 < seconds[0] < 8
    assert 30 < seconds[-1] <= 100
    assert delays(1) == delays(1) != delays(2)
    assert delays(1, speed=20.0) == pytest.approx([delay / 20 for delay in delays(1)])


def test_the_three_lookups_find_the_same_transaction(service: Service) -> None:
    acknowledgement = service.collect(external_id="order 7").json
    path = "/payment-service/transaction"
    by_id = service.get(acknowledgement["transaction_id"]).json
    assert by_id["transaction"]["external_id"] == "order 7"
    assert service.send("GET", path, query={"reference": acknowledgement["reference"]}).json == by_id
    assert service.send("GET", path, query={"external_id": "order 7"}).json == by_id


def test_an_external_id_used_twice_finds_the_newest(service: Service) -> None:
    service.collect(external_id="order 7")
    second = service.collect(external_id="order 7").json
    found = service.send("GET", "/payment-service/transaction", query={"external_id": "order 7"}).json
    assert found["transaction"]["id"] == second["transaction_id"]


@pytest.mark.parametrize("query", [{"reference": "REF0"}, {"external_id": "x"}])
def test_unknown_references_are_not_found(query: dict[str, str]) -> None:
    answer = Service().send("GET", "/payment-service/transaction", query=query)
    assert answer.error == (404, "TRANSACTION_NOT_FOUND")


def test_lookup_errors(service: Service) -> None:
    assert service.get("txn_unknown").error == (404, "TRANSACTION_NOT_FOUND")
    assert service.get("not%20an%20id").error == (400, "INVALID_TRANSACTION_ID")
    assert service.get("a%2Fb").error == (400, "INVALID_TRANSACTION_ID")
    assert service.get("").error == (404, "NOT_FOUND")
    assert service.send("GET", "/payment-service/transaction").error == (400, "INVALID_REQUEST")
    choosy = Service(choices=Choices(status_invalid_transaction_id=422, transaction_id_pattern="txn_[0-9a-f]{20}"))
    assert choosy.get("txn_unknown").error == (422, "INVALID_TRANSACTION_ID")


def test_merchants_do_not_see_each_other(service: Service) -> None:
    other = service.engine.open_account("other@example.com")
    acknowledgement = service.collect(external_id="mine").json
    path = "/payment-service/transaction"
    for sent in (
        service.send("GET", f"{path}/{acknowledgement['transaction_id']}", token=other.token),
        service.send("GET", path, query={"reference": acknowledgement["reference"]}, token=other.token),
        service.send("GET", path, query={"external_id": "mine"}, token=other.token),
    ):
        assert sent.error == (404, "TRANSACTION_NOT_FOUND")
    assert service.send("GET", "/payment-service/transactions", token=other.token).json["transactions"] == []


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "INVALID_REQUEST"),
        ({"phone_number": 255681000001, "amount": "1"}, "INVALID_REQUEST"),
        ({"phone_number": "255681000001", "amount": "1"}, "INVALID_PHONE_NUMBER"),
        ({"phone_number": "+25568", "amount": "1"}, "INVALID_PHONE_NUMBER"),
        ({"phone_number": ORDINARY}, "INVALID_REQUEST"),
        ({"phone_number": ORDINARY, "amount": 1000}, "INVALID_REQUEST"),
        ({"phone_number": ORDINARY, "amount": "0"}, "INVALID_AMOUNT"),
        ({"phone_number": ORDINARY, "amount": "-5"}, "INVALID_AMOUNT"),
        ({"phone_number": ORDINARY, "amount": "10.5"}, "INVALID_AMOUNT"),
        ({"phone_number": ORDINARY, "amount": "1000", "external_id": 7}, "INVALID_REQUEST"),
        ({"phone_number": ORDINARY, "amount": "1000", "external_id": "\ud800"}, "INVALID_REQUEST"),
        (b"{", "INVALID_JSON"),
        (b"[]", "INVALID_JSON"),
        (b"[" * 100_000, "INVALID_JSON"),
        (b"\xff\xfe\xfa", "INVALID_JSON"),
    ],
)
def test_a_bad_create_is_refused_and_creates_nothing(service: Service, path: str, body: Any, code: str) -> None:
    assert service.send("POST", path, body).error == (400, code)
    assert not service.engine.book.payments


def test_a_body_must_be_declared_as_json(service: Service) -> None:
    body = b'{"phone_number":"+255681000001","amount":"1"}'
    sent = service.send("POST", CREATES[0], body, headers={"content-type": "text/plain"})
    assert sent.error == (415, "UNSUPPORTED_MEDIA_TYPE")
    sent = service.send("POST", CREATES[0], body, headers={"content-type": "Application/JSON; charset=utf-8"})
    assert sent.status == 200


def test_unknown_routes_and_methods(service: Service) -> None:
    assert service.send("GET", "/payment-service/airtel/c2b").error == (405, "METHOD_NOT_ALLOWED")
    assert service.send("GET", "/payment-service/nothing").error == (404, "NOT_FOUND")
    assert service.send("DELETE", "/payment-service/transactions").error == (405, "METHOD_NOT_ALLOWED")


def listed(answer: Any) -> list[str]:
    return [record["amount"] for record in answer["transactions"]]


def test_pages_cover_the_history_once(service: Service) -> None:
    for number in range(1, 46):
        service.collect(STUCK, str(number))
    pages = [service.list(page=str(page)).json for page in (1, 2, 3, 4)]
    assert [amount for page in pages for amount in listed(page)] == [str(number) for number in range(45, 0, -1)]
    assert [len(page["transactions"]) for page in pages] == [20, 20, 5, 0]
    assert [page["pagination"] for page in pages] == [
        {"current_page": page, "total_pages": 3, "total_count": 45, "per_page": 20} for page in (1, 2, 3, 4)
    ]


def test_an_empty_history_has_no_pages() -> None:
    assert Service().list().json == {
        "status": "success",
        "transactions": [],
        "pagination": {"current_page": 1, "total_pages": 0, "total_count": 0, "per_page": 20},
    }


def test_the_list_filters(service: Service) -> None:
    service.collect(SUCCEEDS, "1")
    service.collect(STUCK, "2")
    service.disburse(SUCCEEDS, "3")
    service.now = 60.0  # midnight: the first of April
    service.collect(STUCK, "4")
    assert listed(service.list(status="SUCCESS").json) == ["3", "1"]
    assert listed(service.list(status="PENDING").json) == ["4", "2"]
    assert listed(service.list(status="NEWFANGLED").json) == []
    assert listed(service.list(type="disbursement").json) == ["3"]
    assert listed(service.list(type="collection", status="SUCCESS").json) == ["1"]
    assert listed(service.list(from_="2025-04-01").json) == ["4"]
    assert listed(service.list(to="2025-03-31").json) == ["3", "2", "1"]
    assert listed(service.list(from_="2025-03-31", to="2025-04-01").json) == ["4", "3", "2", "1"]
    assert listed(service.list(from_="2025-04-01", to="2025-03-31").json) == []


@pytest.mark.parametrize(
    "query",
    [
        {"page": "0"},
        {"page": "two"},
        {"page": "²"},
        {"limit": "-1"},
        {"limit": "9" * 30},
        {"from": "20250331"},
        {"from": "2025-02-30"},
        {"to": "2025-W14-1"},
    ],
)
def test_bad_list_parameters_are_refused(query: dict[str, str]) -> None:
    assert Service().list(**query).error == (400, "INVALID_PARAMETER")


def test_choices_of_the_list() -> None:
    choices = Choices(
        rate_limit=None, default_page_size=2, list_order="oldest-first", oversized_limit="refuse", list_lag=3.0
    )
    service = Service(choices=choices)
    for number in range(1, 4):
        service.collect(STUCK, str(number))
    assert listed(service.list().json) == []
    service.now = 3.0
    assert listed(service.list().json) == ["1", "2"]
    assert service.list(limit="101").error == (400, "INVALID_PARAMETER")
    assert Service().list(limit="101").json["pagination"]["per_page"] == 100


def test_lookups_can_lag() -> None:
    service = Service(speed=2.0, choices=Choices(rate_limit=None, lookup_lag=4.0))
    transaction_id = service.collect(STUCK).json["transaction_id"]
    assert service.get(transaction_id).error == (404, "TRANSACTION_NOT_FOUND")
    assert len(service.list().json["transactions"]) == 1
    service.now = 2.0
    assert service.get(transaction_id).status == 200


def test_a_decision_by_hand_beats_the_planned_one(service: Service) -> None:
    transaction_id = service.collect(SUCCEEDS).json["transaction_id"]
    service.engine.book.apply(transaction_id, Event.EXPIRE, at=1.0)
    service.now = 100.0
    assert service.get(transaction_id).json["transaction"]["status"] == "TIMEOUT"
    assert not list(service.engine.book.ledger)


def test_the_time_is_rendered_in_utc() -> None:
    assert Service().engine.book.timestamp(0.25) == START.strftime("%Y-%m-%dT%H:%M:%S") + ".250Z"
