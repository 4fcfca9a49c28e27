"""What OpenTelemetry's own exporters get to see of payments."""

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import anyio
import attrs
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mobilemoney_async import (
    DisbursementLimits,
    InvalidRequest,
    LimitExceeded,
    LoginAuth,
    Merchants,
    NoSuchMerchant,
    OutcomeUnknown,
    RateLimiter,
    RetryPolicy,
    TransactionNotFound,
)
from mobilemoney_async.callbacks import CallbackReceiver
from mobilemoney_async.contrib.otel import instrument, instrument_merchants
from mobilemoney_async.events import (
    AccountMismatch,
    AccountsCounted,
    AttemptEnded,
    ChangeParked,
    DispatcherPaused,
    Event,
    FinalStateChanged,
    Handler,
    LimiterWaited,
    MerchantSuspended,
    PaymentFinal,
    PaymentFollowed,
    PaymentGivenUp,
    PaymentUnknown,
    PollerAsked,
    PollerClosed,
    RetryScheduled,
    StoreBehind,
    TokenRenewed,
    TransactionUnclaimed,
    both,
)
from mobilemoney_async.sandbox import Sandbox, faults
from tests.support.fakes import (
    BASE_URL,
    EMAIL,
    PASSWORD,
    PHONE_NUMBER,
    TOKEN,
    FakeTransport,
    Hang,
    make_client,
    refusal,
    script,
)
from tests.support.server import Response

NEEDING = "mobilemoney.accounts.needing_attention"
GARBAGE = Response(status=502, body=b"<html>bad gateway</html>", headers={"content-type": "text/html"})
LOOKUP = "/payment-service/transaction/{transaction_id}"


@attrs.define
class Telemetry:
    """An SDK that keeps everything in memory."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    tracers: TracerProvider
    meters: MeterProvider

    def handler(self, **options: Any) -> Handler:
        return instrument(self.tracers, self.meters, **options)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if name in {None, span.name}]

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Return each metric's points: attributes, and the value or a histogram's sum."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: [
                (dict(point.attributes or {}), point.value if isinstance(point, NumberDataPoint) else point.sum)
                for point in metric.data.data_points
            ]
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    yield Telemetry(exporter, reader, tracers, meters)
    tracers.shutdown()
    meters.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


async def test_an_attempt_is_a_client_span_below_the_callers(telemetry: Telemetry) -> None:
    """A request is found in the trace of the checkout that made it, in the words of the HTTP conventions."""
    handler = telemetry.handler(base_url=BASE_URL)
    async with make_client(FakeTransport(), on_event=handler) as client:
        with telemetry.tracers.get_tracer("shop").start_as_current_span("checkout") as checkout:
            await client.transactions.get("tx-1")
    (span,) = telemetry.spans(f"GET {LOOKUP}")
    assert span.parent is not None and span.parent.span_id == checkout.get_span_context().span_id
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "http.request.method": "GET",
        "url.template": LOOKUP,
        "http.response.status_code": 200,
        "server.address": "payments.example",
        "server.port": 443,
        "mobilemoney.outcome": "answered",
    }


async def test_a_span_begins_when_the_attempt_did(telemetry: Telemetry) -> None:
    """The time that an answer took is the length of its span, and lies in the past."""

    async def slow(sent: object) -> Response:
        await anyio.sleep(3)
        return GARBAGE

    before = time.time_ns()
    async with make_client(FakeTransport(slow), on_event=telemetry.handler()) as client:
        with pytest.raises(OutcomeUnknown):
            await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
    (span,) = telemetry.spans("POST /payment-service/airtel/c2b")
    assert seconds(span) == pytest.approx(3)
    assert span.end_time is not None and before <= span.end_time <= time.time_ns()


async def test_retries_are_numbered_and_failures_are_errors(telemetry: Telemetry) -> None:
    """Each attempt is a span of its own; one that failed says why."""
    async with make_client(FakeTransport(script(GARBAGE)), on_event=telemetry.handler()) as client:
        await client.transactions.get("tx-1")
    first, second = telemetry.spans()
    assert attributes(first)["error.type"] == "ServerError"
    assert attributes(first)["http.response.status_code"] == 502
    assert first.status.status_code is StatusCode.ERROR
    assert "http.request.resend_count" not in attributes(first)
    assert attributes(second)["http.request.resend_count"] == 1
    assert second.status.status_code is StatusCode.UNSET
    request = {"http.request.method": "GET", "url.template": LOOKUP}
    assert telemetry.metrics()["mobilemoney.retries"] == [({**request, "error.type": "ServerError"}, 1)]


async def test_a_refusal_has_its_status_and_its_error(telemetry: Telemetry) -> None:
    """Metrics tell the service's no from a broken wire."""
    transport = FakeTransport(script(refusal("TRANSACTION_NOT_FOUND", 404)))
    async with make_client(transport, on_event=telemetry.handler()) as client:
        with pytest.raises(TransactionNotFound):
            await client.transactions.get("tx-1")
    ((labels, _),) = telemetry.metrics()["http.client.request.duration"]
    assert labels == {
        "http.request.method": "GET",
        "url.template": LOOKUP,
        "http.response.status_code": 404,
        "error.type": "TransactionNotFound",
    }


async def test_a_cancelled_attempt_is_called_the_same_on_both_loops(telemetry: Telemetry) -> None:
    """A caller who gives up leaves a span, with one name for it whichever loop runs."""
    async with make_client(FakeTransport(script(Hang())), on_event=telemetry.handler()) as client:
        with anyio.move_on_after(2):
            await client.transactions.get("tx-1")
    (span,) = telemetry.spans()
    assert (attributes(span)["error.type"], attributes(span)["mobilemoney.outcome"]) == ("cancelled", "cancelled")
    assert seconds(span) == pytest.approx(2)


async def test_waiting_for_the_limit_is_seen(telemetry: Telemetry) -> None:
    """A checkout that is slow because of the limit shows it in its trace, and the wait can be plotted by lane."""
    limiter = RateLimiter(per_minute=60, burst=1)
    async with make_client(FakeTransport(), rate_limiter=limiter, on_event=telemetry.handler()) as client:
        await client.transactions.get("tx-1")
        await client.transactions.get("tx-1")
    (span,) = telemetry.spans("mobilemoney.limiter.wait")
    assert attributes(span) == {"mobilemoney.lane": "LOOKUP"}
    ((labels, waited),) = telemetry.metrics()["mobilemoney.limiter.wait"]
    assert labels == {"mobilemoney.lane": "LOOKUP"}
    assert seconds(span) == pytest.approx(waited)
    assert 0.9 < waited < 1.2


async def test_logins_are_counted(telemetry: Telemetry) -> None:
    """A login that fails shows before payments do."""
    transport = FakeTransport(script(refusal("invalid_credentials", 401)))
    async with make_client(transport, auth=LoginAuth(EMAIL, PASSWORD), on_event=telemetry.handler()) as client:
        with pytest.raises(Exception, match="no"):
            await client.transactions.get("tx-1")
    assert telemetry.metrics()["mobilemoney.tokens.renewed"] == [({"error.type": "InvalidCredentials"}, 1)]


async def test_a_payment_of_which_nobody_knows_is_counted_and_named_on_a_span_only(telemetry: Telemetry) -> None:
    """The key of an unknown payment is found in the trace; it makes no time series."""
    async with make_client(FakeTransport(script(GARBAGE)), on_event=telemetry.handler()) as client:
        with telemetry.tracers.get_tracer("shop").start_as_current_span("checkout") as checkout:
            with pytest.raises(OutcomeUnknown) as caught:
                await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
    (span,) = telemetry.spans("mobilemoney.payment.unknown")
    key = caught.value.idempotency_key
    assert attributes(span) == {"mobilemoney.idempotency_key": key, "error.type": "ServerError"}
    assert span.parent is not None and span.parent.span_id == checkout.get_span_context().span_id
    assert telemetry.metrics()["mobilemoney.payments.unknown"] == [({"error.type": "ServerError"}, 1)]


async def test_the_poller_is_measured(telemetry: Telemetry) -> None:
    """Pending payments, requests, lag and final states can be plotted; nothing pending is zero, not the last number."""
    sandbox = Sandbox()
    async with sandbox.client(on_event=telemetry.handler()) as client, client.poller() as poller:
        for number in ("+255681234567", "+255681234568"):
            poller.track(await client.collections.create(phone_number=number, amount=1000))
        ended = {outcome.transaction_id: outcome.transaction async for outcome in poller.outcomes()}
    found = telemetry.metrics()
    finals = found["mobilemoney.payments.final"]
    assert sum(value for _, value in finals) == 2
    assert {labels["mobilemoney.type"] for labels, _ in finals} == {"collection"}
    assert {labels["mobilemoney.status"] for labels, _ in finals} == {
        transaction.status for transaction in ended.values() if transaction is not None
    }
    assert found["mobilemoney.poller.pending"] == [({}, 0)]
    assert sum(value for _, value in found["mobilemoney.poller.requests"]) == poller.stats.requests
    assert {labels["mobilemoney.kind"] for labels, _ in found["mobilemoney.poller.requests"]} <= {"page", "lookup"}
    assert [labels for labels, _ in found["mobilemoney.poller.lag"]] == [{"mobilemoney.type": "collection"}]
    spans = telemetry.spans("mobilemoney.payment.final")
    assert {attributes(span)["mobilemoney.transaction_id"] for span in spans} == set(ended)


async def test_a_callback_is_seen_as_a_request_of_the_poller(telemetry: Telemetry) -> None:
    """It is a hint and no event; what the poller then asks is counted, and a forged one asks nothing."""
    sandbox = Sandbox()
    async with sandbox.client(on_event=telemetry.handler()) as client, client.poller() as poller:
        receiver = CallbackReceiver(poller)
        made = await client.collections.create("+255780000129", 1000)
        receiver.track(made)
        await anyio.sleep(300)
        before = telemetry.metrics()["mobilemoney.poller.requests"]
        await receiver.receive(b"txn_forged")
        await anyio.sleep(0.1)
        assert telemetry.metrics()["mobilemoney.poller.requests"] == before
        await receiver.receive(made.transaction_id.encode())
        await anyio.sleep(2)
        after = telemetry.metrics()["mobilemoney.poller.requests"]
    assert sum(value for _, value in after) == sum(value for _, value in before) + 1


@pytest.mark.parametrize(("payment", "error"), [(None, "WaitTimeout"), ("txn_" + "0" * 20, "TransactionNotFound")])
async def test_a_payment_that_is_given_up_is_pending_no_longer(
    telemetry: Telemetry, payment: str | None, error: str
) -> None:
    """When the last payment ends without a final state, nothing is pending, and what was given up is counted."""
    sandbox = Sandbox()
    async with sandbox.client(on_event=telemetry.handler()) as client, client.poller(timeout=300) as poller:
        stuck = await client.collections.create(phone_number="+255780000129", amount=1000)
        poller.track(payment or stuck)
        assert telemetry.metrics()["mobilemoney.poller.pending"] == [({}, 1)]
        (outcome,) = [outcome async for outcome in poller.outcomes()]
        found = telemetry.metrics()
    assert found["mobilemoney.poller.pending"] == [({}, 0)]
    assert found["mobilemoney.payments.given_up"] == [({"error.type": error}, 1)]
    (span,) = telemetry.spans("mobilemoney.payment.given_up")
    assert attributes(span) == {"error.type": error, "mobilemoney.transaction_id": outcome.transaction_id}
    assert span.status.status_code is StatusCode.ERROR


EVENTS: list[Event] = [
    AttemptEnded(
        method="GET", path="/x", attempt=1, status_code=None, outcome="not_sent", error="ConnectionFailed", duration=1.0
    ),
    RetryScheduled(method="GET", path="/x", attempt=1, delay=1.0, error="ConnectionFailed"),
    LimiterWaited(lane="POLL", waited=1.0),
    TokenRenewed(error=None, duration=1.0),
    PaymentUnknown(idempotency_key="order-1", sent_at=datetime(2999, 1, 1, tzinfo=UTC), error="RequestTimeout"),
    PaymentFollowed(transaction_id="tx-1", pending=2),
    PollerAsked(kind="page", pending=2, waited=2.0),
    PaymentFinal(transaction_id="tx-1", type="disbursement", status="FAILED", lag=None, pending=1),
    PaymentGivenUp(transaction_id="tx-2", error="WaitTimeout", pending=1),
    PollerClosed(pending=1),
    TransactionUnclaimed(transaction_id="tx-3", type="collection", status="SUCCESS", fits_key="order-1"),
    AccountsCounted(database="sqlite:///p.db", accounts=3, needing={"unknown": 1, "suspended": 0}),
    FinalStateChanged(
        transaction_id="tx-4", idempotency_key="order-4", type="disbursement", before="FAILED", status="SUCCESS"
    ),
    StoreBehind(transactions=2, since=datetime(2026, 1, 2, tzinfo=UTC)),
    AccountMismatch(account="shop-1", reason="another merchant's"),
    MerchantSuspended(account="shop-1", reason="it has left"),
    DispatcherPaused(reason="no float"),
    ChangeParked(consumer="books", key="order-1", cursor="c-1"),
]


def test_every_event_is_taken(telemetry: Telemetry) -> None:
    """Whatever an event holds is recorded: a clock that is ahead, an unknown lag, a poller that was closed."""
    handler = telemetry.handler()
    for event in EVENTS:
        handler(event)
    found = telemetry.metrics()
    assert found["mobilemoney.limiter.wait"] == [({"mobilemoney.lane": "POLL"}, 3.0)]
    assert found["mobilemoney.poller.pending"] == [({}, 0)]
    needing = [({"mobilemoney.reason": "unknown"}, 1), ({"mobilemoney.reason": "suspended"}, 0)]
    assert found["mobilemoney.accounts.needing_attention"] == needing
    assert "mobilemoney.poller.lag" not in found
    assert min(seconds(span) for span in telemetry.spans()) == 0
    assert {span.name for span in telemetry.spans()} == {
        "GET",
        "mobilemoney.account.mismatch",
        "mobilemoney.change.parked",
        "mobilemoney.dispatcher.paused",
        "mobilemoney.limiter.wait",
        "mobilemoney.merchant.suspended",
        "mobilemoney.payment.changed",
        "mobilemoney.payment.unknown",
        "mobilemoney.payment.final",
        "mobilemoney.payment.given_up",
        "mobilemoney.store.behind",
        "mobilemoney.transaction.unclaimed",
    }
    kind = {"mobilemoney.type": "collection", "mobilemoney.fits": True}
    assert found["mobilemoney.transactions.unclaimed"] == [(kind, 1)]


def test_every_event_and_its_span_are_in_the_docs(telemetry: Telemetry) -> None:
    """With the others that a monitoring page is made of: none is left out, and every one of them was tried above."""
    assert {type(event) for event in EVENTS} == set(get_args(Event))
    handler, page = telemetry.handler(), Path("docs/observability.md").read_text(encoding="utf-8")
    for event in EVENTS:
        assert f"| `{type(event).__name__}` |" in page
        handler(event)
    assert [span.name for span in telemetry.spans() if span.name != "GET" and f"| `{span.name}` |" not in page] == []


async def test_nothing_secret_is_recorded(telemetry: Telemetry) -> None:
    """No token, no password and no phone number, not even where the caller put one into a path; no id in a metric."""
    async with make_client(FakeTransport(), auth=LoginAuth(EMAIL, PASSWORD), on_event=telemetry.handler()) as client:
        made = await client.collections.create(phone_number=PHONE_NUMBER, amount=1000)
        await client.transactions.get("tx-1")
        await client.request("PURGE", f"/customers/{PHONE_NUMBER}", effect="read")
    spans = " ".join(f"{span.name} {span.attributes} {span.events} {span.status}" for span in telemetry.spans())
    found = str(telemetry.metrics())
    for secret in (TOKEN, "login-token-1", PASSWORD, EMAIL, PHONE_NUMBER[1:]):
        assert secret not in spans + found
    assert "tx-1" not in found
    assert str(made.idempotency_key) not in found
    assert "HTTP" in {span.name for span in telemetry.spans()}
    assert "'_OTHER'" in found


async def test_it_stands_beside_a_handler_of_ones_own(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Two handlers get every event, also where the first of them fails."""
    events: list[Event] = []

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    on_event = both(fail, both(events.append, telemetry.handler()))
    async with make_client(FakeTransport(), on_event=on_event) as client:
        await client.transactions.get("tx-1")
    assert len(events) == len(telemetry.spans()) == 1
    assert "the handler of events failed" in caplog.text


def test_without_providers_it_takes_the_global_ones() -> None:
    """A program that sets up no SDK may be instrumented; it costs nothing and records nothing."""
    handler = instrument()
    for event in EVENTS:
        handler(event)


@pytest.mark.parametrize("base_url", ["", "payments.example/v1", "https://x:y/v1", "https:///v1", 7, b"https://x"])
def test_an_address_that_is_none_is_refused(base_url: Any) -> None:
    """A typing error shows at once, not in a dashboard."""
    with pytest.raises(InvalidRequest, match="base_url"):
        instrument(base_url=base_url)


def test_what_is_pending_is_the_sum_over_accounts(telemetry: Telemetry) -> None:
    """Three merchants with 2, 5 and 1 pending payments show 8, and a poller that closes takes its own away."""
    handler = instrument_merchants(telemetry.tracers, telemetry.meters)
    for account, pending in {"shop-1": 2, "shop-2": 4, "shop-3": 1}.items():
        handler(account, PollerAsked(kind="page", pending=pending, waited=0.0))
    handler("shop-2", PaymentFollowed(transaction_id="tx-1", pending=5))
    assert telemetry.metrics()["mobilemoney.poller.pending"] == [({}, 8)]
    handler("shop-2", PollerClosed(pending=5))
    assert telemetry.metrics()["mobilemoney.poller.pending"] == [({}, 3)]


def test_accounts_that_need_someone_are_the_sum_over_databases(telemetry: Telemetry) -> None:
    """A worker for each of two databases counts its own; a database that is counted again replaces what it had."""
    handler = instrument_merchants(telemetry.tracers, telemetry.meters)
    for database, unknown in [("one", 2), ("two", 5), ("one", 3)]:
        handler("", AccountsCounted(database=database, accounts=9, needing={"unknown": unknown}))
    assert telemetry.metrics()[NEEDING] == [({"mobilemoney.reason": "unknown"}, 8)]


@pytest.mark.parametrize("account_on", ["spans", "failures"])
def test_the_account_is_on_spans_and_by_choice_on_failures(telemetry: Telemetry, account_on: Any) -> None:
    """Every span names its merchant. Of the metrics only counters of failures do, and only if that was chosen."""
    handler = instrument_merchants(telemetry.tracers, telemetry.meters, account_on=account_on)
    failure = TokenRenewed(error="InvalidCredentials", duration=1.0)
    for event in (*EVENTS, failure):
        handler("shop-1", event)
    assert {attributes(span)["mobilemoney.account"] for span in telemetry.spans()} == {"shop-1"}
    named = {name for name, points in telemetry.metrics().items() for labels, _ in points if _names_account(labels)}
    failures = {"retries", "tokens.renewed", "payments.unknown", "transactions.unclaimed", "payments.given_up"}
    assert named == (set() if account_on == "spans" else {f"mobilemoney.{each}" for each in failures})
    assert ({}, 1) in telemetry.metrics()["mobilemoney.tokens.renewed"]  # the login that succeeded


def _names_account(labels: dict[str, Any]) -> bool:
    return "mobilemoney.account" in labels


def test_a_place_for_the_account_that_is_none_is_refused() -> None:
    """Three thousand accounts are on no metric because of a typing error."""
    with pytest.raises(InvalidRequest, match='account_on must be "spans" or "failures"'):
        instrument_merchants(account_on="metrics")  # type: ignore[arg-type]


async def test_what_needs_someone_in_an_account_is_a_span_with_its_name(telemetry: Telemetry, tmp_path: Path) -> None:
    """A queue that a limit holds back, a lost payment, a stranger and a merchant who left, as they come to pass."""
    sandbox = Sandbox(merchants=3)

    async def secret_of(account: str) -> str:
        if account == "shop-3":
            raise NoSuchMerchant("it has left")
        return sandbox.tokens[account]

    async with (
        Merchants(
            sandbox.base_url,
            store=f"sqlite:///{tmp_path}/payments.db",
            auth=secret_of,
            transport=lambda account: sandbox.transport(),
            utcnow=lambda: sandbox.now,
            retry=RetryPolicy(max_attempts=1),
            disbursement_limits=DisbursementLimits(per_day=2000),
            on_event=instrument_merchants(telemetry.tracers, telemetry.meters),
        ) as merchants,
        sandbox.client(auth=sandbox.tokens["shop-2"]) as other_system,
    ):
        one, two, three = [await merchants.client(account) for account in sandbox.tokens]
        await one.payments.enqueue(
            type="disbursement", phone_number=PHONE_NUMBER, amount=3000, idempotency_key="too-much"
        )
        async with one.dispatcher():
            await anyio.sleep(2)
        with pytest.raises(LimitExceeded):
            await one.disbursements.create(PHONE_NUMBER, 2500)
        await two.disbursements.create(PHONE_NUMBER, 1000, idempotency_key="order-1")
        sandbox.script(faults.drop(processed=True), on="c2b")
        with pytest.raises(OutcomeUnknown):
            await two.collections.create(PHONE_NUMBER, 1000, idempotency_key="lost")
        await other_system.disbursements.create(PHONE_NUMBER, 1000)
        await two.transactions.page()
        await anyio.sleep(200)
        assert [each.key for each in await two.payments.reconcile()] == ["lost"]
        await two.payments.audit(from_date=sandbox.now.date(), to_date=sandbox.now.date())
        with pytest.raises(NoSuchMerchant):
            await three.transactions.get("tx-1")
        needing = {status.account: [str(need) for need in status.needs] async for status in merchants.overview()}
    assert needing == {"shop-1": ["unknown"], "shop-2": ["unmatched"], "shop-3": ["suspended"]}
    spans = {
        (attributes(span)["mobilemoney.account"], span.name.removeprefix("mobilemoney.")) for span in telemetry.spans()
    }
    assert {each for each in spans if each[1].islower() and each[1] != "limiter.wait"} == {
        ("shop-1", "dispatcher.paused"),
        ("shop-2", "payment.unknown"),
        ("shop-2", "transaction.unclaimed"),
        ("shop-3", "merchant.suspended"),
    }
    # What a limit holds back makes no request; whoever reads the list makes one of its own account.
    assert {each for each in spans if "transactions" in each[1] or "b2c" in each[1]} == {
        ("shop-2", "GET /payment-service/transactions"),
        ("shop-2", "POST /payment-service/airtel/b2c"),
    }
    (paused,) = telemetry.spans("mobilemoney.dispatcher.paused")
    assert "exceeds per_day" in attributes(paused)["mobilemoney.reason"]
    counted = {labels["mobilemoney.reason"]: value for labels, value in telemetry.metrics()[NEEDING] if value}
    assert counted == {"unknown": 1, "unmatched": 1, "suspended": 1}


def test_the_dashboard_asks_for_metrics_and_labels_that_exist(telemetry: Telemetry) -> None:
    """Each query of the Grafana dashboard in the docs names only what `instrument_merchants` records."""
    handler = instrument_merchants(telemetry.tracers, telemetry.meters, account_on="failures")
    final = PaymentFinal(transaction_id="tx-1", type="collection", status="SUCCESS", lag=1.0, pending=1)
    for event in (*EVENTS, final, TokenRenewed(error="InvalidCredentials", duration=1.0)):
        handler("shop-1", event)
    names, labels = set[str](), {"le", "otel_scope_name", "url_template"}
    data = telemetry.reader.get_metrics_data()
    assert data is not None
    for metric in (each for one in data.resource_metrics for scope in one.scope_metrics for each in scope.metrics):
        # As Prometheus' exporters name them.
        name = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
        suffix = {"Histogram": ("_bucket", "_count"), "Sum": ("_total",), "Gauge": ("",)}[type(metric.data).__name__]
        names |= {name + each for each in suffix}
        labels |= {key.replace(".", "_") for point in metric.data.data_points for key in (point.attributes or {})}
    board = json.loads(Path("docs/static/grafana.json").read_text(encoding="utf-8"))
    places = [panel["gridPos"].values() for panel in board["panels"]]
    assert len({tuple(place) for place in places}) == len(places) >= 10
    asked = set[str]()
    for target in (each for panel in board["panels"] for each in panel["targets"]):
        words = set(re.findall(r"[a-z]+_[a-z_]+", re.sub(r'"[^"]*"', "", target["expr"])))
        words -= {"histogram_quantile"}
        assert words <= names | labels, target["expr"]
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= words
        asked |= words
    assert "mobilemoney_accounts_needing_attention" in asked
    ours = {each for each in names if each.startswith("mobilemoney_") and not each.endswith(("_bucket", "_count"))}
    assert ours <= asked  # no metric is left out
