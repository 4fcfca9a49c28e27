"""Scripted faults, through the pure engine."""

import json
from decimal import Decimal
from typing import Any

import pytest

from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.messages import ReplyDelivery
from mobilemoney_async.sandbox.records import LoggedRequest
from mobilemoney_async.sandbox.script import Rule
from tests.sandbox.service import SUCCEEDS, Service

PROFILE = "/user-service/profile"


def script(
    service: Service, *scripted: Fault, on: str | None = None, times: int | None = 1, probability: float = 1.0
) -> Rule:
    return service.engine.script.add(Rule(faults=scripted, on=on, times=times, probability=probability))


@pytest.mark.parametrize(
    ("fault", "status", "content_type", "processed"),
    [
        (faults.server_error(processed=True), 500, "application/json", True),
        (faults.server_error(503, processed=False), 503, "application/json", False),
        (faults.html_page(), 502, "text/html", False),
        (faults.html_page(599, processed=True), 599, "text/html", True),
        (faults.empty_body(), 200, "application/json", True),
        (faults.empty_body(202, processed=False), 202, "application/json", False),
    ],
)
def test_answers_that_are_none(service: Service, fault: Fault, status: int, content_type: str, processed: bool) -> None:
    script(service, fault)
    reply = service.collect().reply
    assert (reply.status, reply.content_type) == (status, content_type)
    assert len(service.engine.book.payments) == processed


def test_what_is_no_fault_is_refused() -> None:
    with pytest.raises(TypeError, match="parentheses"):
        Sandbox().script(faults.token_expired, on="c2b")  # type: ignore[arg-type]


def test_documented_rejections_on_demand() -> None:
    service = Service(choices=Choices(status_rate_limit_exceeded=403))
    script(service, faults.rate_limited(retry_after=7))
    script(service, faults.token_expired())
    rejected = service.collect()
    assert rejected.error == (403, "RATE_LIMIT_EXCEEDED")
    assert rejected.json["retry_after"] == 7
    assert service.collect().error == (401, "token_expired")
    assert service.engine.requests.rejections == 0


def paid(service: Service) -> str:
    transaction_id = service.collect(SUCCEEDS).json["transaction_id"]
    service.now += 5
    return str(transaction_id)


def test_unknown_fields_are_added_everywhere(service: Service) -> None:
    transaction_id = paid(service)
    script(service, faults.unknown_fields(), times=3)
    for fields in (
        service.collect().json,
        service.get(transaction_id).json,
        service.get(transaction_id).json["transaction"],
    ):
        assert fields["x_note"]
    script(service, faults.unknown_fields())
    assert all("x_sandbox" in record for record in service.list().json["transactions"])


def test_unknown_statuses_replace_the_state_and_nothing_else(service: Service) -> None:
    transaction_id = paid(service)
    script(service, faults.unknown_status("ODD"), times=3)
    acknowledgement = service.collect().json
    assert (acknowledgement["status"], acknowledgement["status_code"]) == ("success", "ODD")
    found = service.get(transaction_id).json
    assert (found["status"], found["transaction"]["status"]) == ("success", "ODD")
    assert {record["status"] for record in service.list().json["transactions"]} == {"ODD"}
    assert service.engine.book.payments[transaction_id].status == "SUCCESS"


def test_absent_fields_become_null(service: Service) -> None:
    transaction_id = service.collect().json["transaction_id"]
    script(service, faults.nulls(), times=2)
    record = service.get(transaction_id).json["transaction"]
    absent = ("completed_at", "failed_at", "failure_reason", "fees", "settlement", "external_id")
    assert [record[name] for name in absent] == [None] * 6
    assert "id" not in service.collect().json


def test_edits_leave_other_bodies_than_json_objects_alone(service: Service) -> None:
    script(service, faults.empty_body(), faults.nulls())
    assert service.send("GET", PROFILE).reply.body == b""
    script(service, faults.html_page(processed=True), faults.nulls())
    assert b"Bad Gateway" in service.send("GET", PROFILE).reply.body


def test_the_order_and_lag_of_the_list_can_be_switched_for_a_while(service: Service) -> None:
    for amount in ("1", "2"):
        service.collect(amount=amount)
    normal = service.list().json["transactions"]
    script(service, faults.list_order("oldest-first"))
    script(service, faults.list_lag(10))
    assert service.list().json["transactions"] == normal[::-1]
    assert service.list().json["transactions"] == []
    assert service.list().json["transactions"] == normal
    with pytest.raises(ValueError, match="list_order"):
        faults.list_order("by amount")  # type: ignore[arg-type]


def test_latency_adds_up_and_shrinks_with_speed() -> None:
    service = Service(speed=2.0, choices=Choices(latency=1.0))
    assert service.send("GET", PROFILE).reply.delay == 0.5
    script(service, faults.latency(3.0), faults.latency(2.0))
    assert service.send("GET", PROFILE).reply.delay == 3.0


def test_a_slow_answer_becomes_a_504_although_it_was_processed() -> None:
    service = Service(choices=Choices(gateway_timeout=30.0))
    script(service, faults.latency(31.0))
    reply = service.collect().reply
    assert (reply.status, reply.delay, reply.fault) == (504, 30.0, "latency")
    assert len(service.engine.book.payments) == 1
    script(service, faults.latency(31.0), faults.drop(processed=True))
    assert service.collect().reply.wire is ReplyDelivery.CLOSED


def test_rules_are_a_sequence(service: Service) -> None:
    script(service, faults.server_error(500, processed=False), times=2)
    script(service, faults.server_error(503, processed=False))
    assert [service.send("GET", PROFILE).status for _ in range(4)] == [500, 500, 503, 200]


def test_rules_choose_their_requests(service: Service) -> None:
    script(service, faults.server_error(501, processed=False), on="POST c2b")
    script(service, faults.server_error(502, processed=False), on="GET")
    script(service, faults.server_error(503, processed=False), on="p*", times=None)
    script(service, faults.server_error(504, processed=False), on="*b*")
    assert service.send("GET", "/nowhere").status == 502
    assert service.send("GET", "/nowhere").status == 404
    assert [service.collect().status for _ in range(3)] == [501, 504, 200]


def test_rules_can_be_cancelled_and_forgotten(service: Service) -> None:
    always = script(service, faults.server_error(processed=False), times=None)
    assert [service.send("GET", PROFILE).status for _ in range(2)] == [500, 500]
    assert always.fired == 2
    always.cancel()
    assert always.spent
    assert service.send("GET", PROFILE).status == 200
    script(service, faults.server_error(processed=False), times=None)
    service.engine.script.clear()
    assert service.send("GET", PROFILE).status == 200


def test_probable_faults_follow_the_seed() -> None:
    def outcomes(seed: int) -> list[int]:
        service = Service(seed=seed)
        script(service, faults.server_error(processed=False), times=None, probability=0.3)
        return [service.send("GET", PROFILE).status for _ in range(300)]

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert 60 < outcomes(1).count(500) < 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "c3b"}, "c2b"),
        ({"on": "GET c2b"}, "GET c2b"),
        ({"on": "POST c2b now"}, "POST c2b now"),
        ({"times": 0}, "times"),
        ({"probability": 1.5}, "probability"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        script(Service(), faults.refused(), **arguments)


def test_a_rule_needs_a_fault() -> None:
    with pytest.raises(ValueError, match="fault"):
        script(Service())


def test_the_request_log_has_every_request(service: Service) -> None:
    service.login()
    service.now = 2.0
    script(service, faults.lost(processed=True))
    service.collect()
    service.send("GET", "/nowhere", query={"secret": "x"})
    log = service.engine.requests
    assert (len(log), log.total, log.logins, log.count("c2b"), log.count(None)) == (3, 3, 1, 1, 1)
    assert log[1] == LoggedRequest(
        method="POST",
        path="/v1/payment-service/airtel/c2b",
        endpoint="c2b",
        status=None,
        code=None,
        fault="lost",
        authorized=True,
        at=2.0,
    )
    assert [entry.code for entry in log] == [None, None, "NOT_FOUND"]
    assert log[-1:] == [log[2]]


def test_the_same_seed_gives_the_same_service() -> None:
    def history(seed: int) -> str:
        service = Service(seed=seed)
        for number in range(10):
            service.collect(f"+25568100{number:04d}")
        service.now = 20.0
        return json.dumps([service.list().json, service.login().json])

    assert history(3) == history(3) != history(4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("default_page_size", -1),
        ("median_delay", -1),
        ("status_rate_limit_exceeded", -1),
        ("list_lag", -1),
        ("merchant_fee_percent", 1.5),
        ("customer_fee_percent", Decimal(-1)),
    ],
)
def test_choices_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Choices(**{field: value})
    with pytest.raises(TypeError, match="choices"):
        Sandbox(choices={field: value})  # type: ignore[arg-type]
