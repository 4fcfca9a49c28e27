"""OpenTelemetry (extra `otel`): spans and metrics of a client's events.

``AsyncClient(..., on_event=instrument(base_url=...))``, or ``Merchants(..., on_event=instrument_merchants())``. Needs
OpenTelemetry's API only; without an SDK it does nothing.

Events come when something has ended, in the task that waited for it. So each span is made then, with the time at which
it began, as a child of the span that is current there. Nothing recorded is secret or a phone number. Ids and keys are
on spans only: as attributes of metrics they would make a time series each. So are accounts, unless you choose them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider
    from opentelemetry.trace import SpanKind, StatusCode, Tracer, TracerProvider
except ModuleNotFoundError as _missing:
    raise ImportError(f'{__name__} needs an extra: pip install "mobilemoney-async[otel]"') from _missing

from mobilemoney_async._version import __version__
from mobilemoney_async.contract import endpoints
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
)
from mobilemoney_async.values import refuse

__all__ = ["instrument", "instrument_merchants"]

Attributes: TypeAlias = dict[str, str | int | float]

_SCOPE: Final = "mobilemoney_async"
# The paths of the contract. Any other was the caller's own, and may hold an id or a phone number.
_TEMPLATES: Final = frozenset(row.path for row in vars(endpoints).values() if isinstance(row, endpoints.Endpoint))
# The methods of the conventions. `client.request` takes any word, and each other one would be a time series.
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_PORTS: Final = {"http": 80, "https": 443}

# Spans of events that someone has to look at: their names, and the fields that are their attributes.
_ALERTS: Final[Mapping[type[Event], Sequence[str]]] = {
    StoreBehind: ("store.behind", "transactions"),
    AccountMismatch: ("account.mismatch", "account"),
    MerchantSuspended: ("merchant.suspended", "account"),
    FinalStateChanged: ("payment.changed", "transaction_id", "before", "status"),
    ChangeParked: ("change.parked", "consumer"),
    DispatcherPaused: ("dispatcher.paused", "reason"),
}

# Boundaries of the histograms, seconds: an attempt's are the conventions', up to the client's usual time-out.
_ATTEMPT_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30)
_WAIT_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)
_LAG_SECONDS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


def instrument(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    base_url: str | None = None,
) -> Handler:
    """Return a handler for ``AsyncClient(on_event=...)``; with one of your own: ``on_event=both(instrument(), mine)``.

    Make one for each client: the gauge of pending payments is that of one poller.

    Args:
        tracer_provider: By default the global one.
        meter_provider: By default the global one.
        base_url: The client's. It gives spans and metrics their ``server.address`` and ``server.port``.

    Raises:
        InvalidRequest: `base_url` is not a URL.
    """
    telemetry = _Telemetry(
        tracer=trace.get_tracer(_SCOPE, __version__, tracer_provider),
        meter=metrics.get_meter(_SCOPE, __version__, meter_provider),
        server={} if base_url is None else _server(base_url),
    )
    return partial(telemetry.record, None)


def instrument_merchants(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    account_on: Literal["spans", "failures"] = "spans",
) -> Callable[[str, Event], object]:
    """Return a handler for ``Merchants(on_event=...)``: a function of the account and one event.

    Metrics are the sums over all accounts of this process. Each span has the account as ``mobilemoney.account``.

    Args:
        tracer_provider: By default the global one.
        meter_provider: By default the global one.
        account_on: ``"spans"``: on spans alone. ``"failures"``: on the counters of failures too, which then are one
            time series more for each account that has failed: retries, failed logins, payments with an unknown result,
            unclaimed transactions, and payments that were given up.

    Raises:
        InvalidRequest: `account_on` is something else.
    """
    if account_on not in ("spans", "failures"):
        raise refuse("account_on", '"spans" or "failures"', account_on)
    return _Telemetry(
        tracer=trace.get_tracer(_SCOPE, __version__, tracer_provider),
        meter=metrics.get_meter(_SCOPE, __version__, meter_provider),
        server={},
        counts_by_account=account_on == "failures",
    ).record


def _server(base_url: str) -> Attributes:
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except (AttributeError, TypeError, ValueError) as exc:
        raise refuse("base_url", "the client's base URL") from exc
    if not host or port is None:
        raise refuse("base_url", "the client's base URL")
    return {"server.address": host, "server.port": port}


def _histogram(meter: Meter, name: str, description: str, boundaries: Sequence[float]) -> Histogram:
    return meter.create_histogram(
        name, unit="s", description=description, explicit_bucket_boundaries_advisory=boundaries
    )


def _counter(meter: Meter, name: str, unit: str, description: str) -> Counter:
    return meter.create_counter(name, unit=f"{{{unit}}}", description=description)


class _Telemetry:
    """Handler that turns events into spans and metrics. Its calls come from one event loop."""

    def __init__(
        self,
        *,
        tracer: Tracer,
        meter: Meter,
        server: Mapping[str, str | int | float],
        counts_by_account: bool = False,
    ) -> None:
        self._tracer = tracer
        self._server = server
        self._counts_by_account = counts_by_account
        self._followed: dict[str | None, int] = {}  # pending payments by account, and their sum
        self._following = 0
        self._counted: dict[str, Mapping[str, int]] = {}  # accounts that need someone, by database
        self._of_account: Attributes = {}  # of the event that is recorded now
        self._duration = _histogram(
            meter, "http.client.request.duration", "Duration of HTTP client requests.", _ATTEMPT_SECONDS
        )
        self._limiter_wait = _histogram(
            meter, "mobilemoney.limiter.wait", "Time that requests waited for the rate limit.", _WAIT_SECONDS
        )
        self._lag = _histogram(
            meter, "mobilemoney.poller.lag", "Time until a final state was seen, an estimate.", _LAG_SECONDS
        )
        self._retries = _counter(meter, "mobilemoney.retries", "retry", "Failed attempts that another one followed.")
        self._logins = _counter(meter, "mobilemoney.tokens.renewed", "login", "Logins; with an error.type: failed.")
        self._unknown = _counter(
            meter, "mobilemoney.payments.unknown", "payment", "Creates that ended with an unknown result."
        )
        self._unclaimed = _counter(
            meter, "mobilemoney.transactions.unclaimed", "transaction", "Transactions that no payment claims."
        )
        self._pending = meter.create_gauge(
            "mobilemoney.poller.pending", unit="{payment}", description="Payments that the poller follows."
        )
        self._asked = _counter(meter, "mobilemoney.poller.requests", "request", "Requests of the poller.")
        self._final = _counter(meter, "mobilemoney.payments.final", "payment", "Payments seen in their final state.")
        self._needing = meter.create_gauge(
            "mobilemoney.accounts.needing_attention",
            unit="{account}",
            description="Accounts of the store that need someone, as counted by this process.",
        )
        self._given_up = _counter(
            meter, "mobilemoney.payments.given_up", "payment", "Payments that the poller gave up on."
        )

    def record(self, account: str | None, event: Event) -> None:
        """Record an event, of an account if there are several."""
        self._of_account = {} if account is None else {"mobilemoney.account": account}
        match event:
            case AttemptEnded():
                self._attempt(event)
            case RetryScheduled():
                self._fail(self._retries, {**_request(event.method, event.path), "error.type": event.error})
            case LimiterWaited():
                lane: Attributes = {"mobilemoney.lane": event.lane}
                self._limiter_wait.record(event.waited, lane)
                self._span("mobilemoney.limiter.wait", lane, event.waited)
            case TokenRenewed():
                self._fail(self._logins, _error(event.error), is_failure=event.error is not None)
            case PaymentUnknown():
                error = _error(event.error)
                self._fail(self._unknown, error)
                key: Attributes = {"mobilemoney.idempotency_key": event.idempotency_key}
                sent_for = time.time() - event.sent_at.timestamp()
                self._span("mobilemoney.payment.unknown", {**error, **key}, max(0.0, sent_for))
            case TransactionUnclaimed():
                kind: Attributes = {"mobilemoney.type": event.type, "mobilemoney.fits": event.fits_key is not None}
                self._fail(self._unclaimed, kind)
                row: Attributes = {"mobilemoney.transaction_id": event.transaction_id}
                self._span("mobilemoney.transaction.unclaimed", {**kind, **row}, 0.0)
            case AccountsCounted():
                self._count_accounts(event)
            case (
                StoreBehind()
                | AccountMismatch()
                | ChangeParked()
                | DispatcherPaused()
                | FinalStateChanged()
                | MerchantSuspended()
            ):
                name, *fields = _ALERTS[type(event)]
                self._span(f"mobilemoney.{name}", {f"mobilemoney.{each}": getattr(event, each) for each in fields}, 0.0)
            case _:
                self._poller(account, event)

    def _fail(self, counter: Counter, attributes: Attributes, *, is_failure: bool = True) -> None:
        """Count a failure."""
        counter.add(1, {**attributes, **(self._of_account if self._counts_by_account and is_failure else {})})

    def _count_accounts(self, event: AccountsCounted) -> None:
        self._counted[event.database] = event.needing
        for reason in event.needing:
            count = sum(each[reason] for each in self._counted.values())
            self._needing.set(count, {"mobilemoney.reason": reason})

    def _attempt(self, event: AttemptEnded) -> None:
        # Each event loop names its cancellation otherwise.
        error = "cancelled" if event.outcome == "cancelled" else event.error
        attributes = {**self._server, **_request(event.method, event.path), **_error(error)}
        if event.status_code is not None:
            attributes["http.response.status_code"] = event.status_code
        self._duration.record(event.duration, attributes)
        details: Attributes = {"mobilemoney.outcome": event.outcome}
        if event.attempt > 1:
            details["http.request.resend_count"] = event.attempt - 1
        self._span(_name(attributes), {**attributes, **details}, event.duration, kind=SpanKind.CLIENT)

    def _poller(
        self,
        account: str | None,
        event: PaymentFollowed | PollerAsked | PaymentFinal | PaymentGivenUp | PollerClosed,
    ) -> None:
        pending = 0 if isinstance(event, PollerClosed) else event.pending
        self._following += pending - self._followed.pop(account, 0)
        if pending:
            self._followed[account] = pending
        self._pending.set(self._following)
        match event:
            case PollerAsked():
                self._asked.add(1, {"mobilemoney.kind": event.kind})
                if event.waited > 0:
                    self._limiter_wait.record(event.waited, {"mobilemoney.lane": "POLL"})
            case PaymentFinal():
                attributes: Attributes = {"mobilemoney.type": event.type, "mobilemoney.status": event.status}
                self._final.add(1, attributes)
                if event.lag is not None:
                    self._lag.record(event.lag, {"mobilemoney.type": event.type})
                which: Attributes = {"mobilemoney.transaction_id": event.transaction_id}
                self._span("mobilemoney.payment.final", {**attributes, **which}, event.lag or 0.0)
            case PaymentGivenUp():
                error = _error(event.error)
                self._fail(self._given_up, error)
                which = {"mobilemoney.transaction_id": event.transaction_id}
                self._span("mobilemoney.payment.given_up", {**error, **which}, 0.0)

    def _span(self, name: str, attributes: Attributes, duration: float, *, kind: SpanKind = SpanKind.INTERNAL) -> None:
        """Record a span that ends now and took so many seconds."""
        ended_at = time.time_ns()
        span = self._tracer.start_span(
            name,
            kind=kind,
            attributes={**self._of_account, **attributes},
            start_time=ended_at - int(duration * 1_000_000_000),
        )
        if "error.type" in attributes:
            span.set_status(StatusCode.ERROR)
        span.end(ended_at)


def _request(method: str, path: str) -> Attributes:
    attributes: Attributes = {"http.request.method": method if method in _METHODS else "_OTHER"}
    if path in _TEMPLATES:
        attributes["url.template"] = path
    return attributes


def _name(attributes: Attributes) -> str:
    method, template = str(attributes["http.request.method"]).replace("_OTHER", "HTTP"), attributes.get("url.template")
    return method if template is None else f"{method} {template}"


def _error(error: str | None) -> Attributes:
    return {} if error is None else {"error.type": error}
