"""Pipeline of one call: limiter, token, send, read, decide; again where the retry table allows it.

Invariant: a MONEY request that may have reached the service is never sent a second time. If such a call ends without a
usable answer, by the deadline too, it ends as `OutcomeUnknown`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import attrs

from mobilemoney_async.calls.bodies import read_value
from mobilemoney_async.calls.collaborators import AccountClaim, Admission, AnswerFacts, AttemptRecorder, RowObserver
from mobilemoney_async.calls.limiter import Limiter
from mobilemoney_async.calls.options import Options
from mobilemoney_async.calls.retry import Action, Decision, RetryPolicy, decide
from mobilemoney_async.calls.tokens import Suspicions, TokenSource, source_failure
from mobilemoney_async.calls.transport import Wire
from mobilemoney_async.calls.transport_errors import Flight
from mobilemoney_async.contract.codec import Content, Fields, encode
from mobilemoney_async.contract.endpoints import LOGIN, OTHER_USER, Effect, Endpoint, Priority, other_than_asked
from mobilemoney_async.contract.error_mapping import Answer
from mobilemoney_async.contract.models import LoginResult, PageAnswer, RowsAnswer, TransactionAnswer
from mobilemoney_async.contract.plain import take_unsaid
from mobilemoney_async.errors import (
    APIError,
    CallOutcome,
    InvalidRequest,
    InvalidToken,
    MobileMoneyError,
    OutcomeUnknown,
    RequestTimeout,
    StoreError,
    TokenExpired,
    TransportError,
    UnexpectedResponse,
)
from mobilemoney_async.tasks import callers_code, loop_time, shielded
from mobilemoney_async.values import HiddenText, Secret, require_bearer

if TYPE_CHECKING:
    from mobilemoney_async.calls.instrumentation import Instrumentation
    from mobilemoney_async.events import Handler

logger: logging.Logger = logging.getLogger("mobilemoney_async")

T = TypeVar("T")

FRESH = 0.5
"""Time for which a place under the limit may lie unused, seconds: the limiter's default jitter absorbs it."""

_ONCE = RetryPolicy(max_attempts=1)
_REPEATING = {Action.RETRY, Action.HOLD_AND_RETRY, Action.RENEW_AND_REPLAY}


@attrs.define(eq=False, repr=False)
class _Call:
    """Call under way: its request, and its progress."""

    endpoint: Endpoint[Any]
    target: str
    content: Content | None
    lane: Priority
    asked: Mapping[str, object]
    idempotency_key: str | None = None
    recorder: AttemptRecorder | None = None
    facts: AnswerFacts | None = None
    granted_at: float | None = None
    front_of_lane: bool = False
    retry: RetryPolicy | None = None
    flight: Flight | None = None
    sent_at: datetime | None = None
    attempts: int = 0
    last_error: MobileMoneyError | None = None
    token: Secret | None = None
    other_page: int | None = None  # the number that the last page showed in place of the one asked for
    refused: Secret | None = None
    refusal: MobileMoneyError | None = None


@attrs.define(eq=False, repr=False)
class Pipeline:
    """Pipeline that makes the calls of one client."""

    wire: Wire
    limiter: Limiter
    tokens: TokenSource
    options: Options
    utcnow: Callable[[], datetime]  # aware UTC
    random: Callable[[], float]  # from 0 to 1
    on_event: Handler | None = None
    observer: RowObserver | None = None
    claim: AccountClaim | None = None  # of a worker's clients
    admission: Admission | None = None  # where a vault gives the token
    suspicions: Suspicions = attrs.field(factory=Suspicions)
    _instrumentation: Instrumentation | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        if self.on_event is not None:
            # Here: the events take a tenth of the import, and few programs handle them.
            from mobilemoney_async.calls.instrumentation import Instrumentation

            self._instrumentation = Instrumentation(self.on_event)

    @property
    def host(self) -> str | None:
        """Name of the host with the claim of the account that protects this client, if it is a worker's."""
        return None if self.claim is None else self.claim.host

    async def call(
        self,
        endpoint: Endpoint[T],
        *,
        identifiers: Mapping[str, str] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: dict[str, Any] | Fields | None = None,
        lane: Priority | None = None,
        idempotency_key: str | None = None,
        recorder: AttemptRecorder | None = None,
        facts: AnswerFacts | None = None,
        granted_at: float | None = None,
    ) -> T:
        """Make one call and return its answer.

        Args:
            endpoint: The row of the contract's table.
            identifiers: For the path.
            query: For the query string.
            body: The JSON body.
            lane: Instead of the endpoint's own.
            idempotency_key: Of a create, for its errors.
            recorder: Of a create: records each attempt.
            facts: Filled in with the last answer, also where the call then fails.
            granted_at: When the caller got a place under the limit for the first request, on the loop's clock.

        Raises:
            MobileMoneyError: By the retry table of `calls.retry`. If the call is cancelled, a request that was
                on its way may have been processed.
        """
        fields = None if body is None else Fields.of(body)
        del body  # it may hold a phone number, which a traceback with locals would show
        self.wire.check_open()
        self.wire.prepare()
        call = _Call(
            endpoint=endpoint,
            target=HiddenText(endpoint.target(identifiers or {}, query or {})),
            content=None if fields is None else encode("json", fields),
            lane=endpoint.lane if lane is None else lane,
            asked={**(identifiers or {}), **(query or {}), **({} if fields is None else fields.reveal())},
            idempotency_key=idempotency_key,
            recorder=recorder,
            facts=facts,
            granted_at=granted_at,
        )
        try:
            async with self.wire.in_use():
                answer: T = await self._within_deadline(call)
        except MobileMoneyError as exc:
            exc.idempotency_key = idempotency_key
            raise
        if self.observer is not None and isinstance(answer, PageAnswer | TransactionAnswer):
            unreadable = answer.unreadable if isinstance(answer, RowsAnswer) else ()
            await self.observer.observe(answer.transactions if isinstance(answer, PageAnswer) else (), unreadable)
        return answer

    async def stay_in_contact(self) -> None:
        """Show the observer once a minute that a poller or dispatcher runs, however quiet the business."""
        while self.observer is not None:
            await self.observer.observe(())
            await anyio.sleep(60)

    async def _within_deadline(self, call: _Call) -> Any:
        if self.options.deadline is None:
            return await self._run(call)
        with anyio.move_on_after(self.options.deadline):
            return await self._run(call)
        raise self._too_late(call)

    async def _run(self, call: _Call) -> Any:
        renewed = False
        while True:
            call.attempts += 1
            try:
                await self._prepare(call)
                return await self._attempt(call)
            except MobileMoneyError as exc:
                if exc is call.refusal:  # there is no other token
                    raise
                error = call.last_error = exc
                call.flight = None
            decision = decide(
                error,
                effect=call.endpoint.effect,
                bearer=call.endpoint.bearer,
                policy=call.retry or self.options.retry,
                attempt=call.attempts,
                renewed=renewed,
                chance=self.random(),
            )
            self._take_note(call, error, decision, renewed=renewed)
            match decision.action:
                case Action.HOLD_AND_RETRY if error.outcome == "not_sent":
                    # It was the login that was rejected, and a login comes before the limiter.
                    await anyio.sleep(decision.hold)
                case Action.HOLD_AND_RETRY:
                    call.front_of_lane = True  # its turn had come before that of the calls behind it
                case Action.RETRY:
                    await anyio.sleep(decision.pause)
                case Action.RENEW_AND_REPLAY:
                    # The login itself belongs to the next attempt, so that its failure is one that is retried.
                    renewed, call.refused, call.refusal = True, call.token, error
                    call.attempts -= 1
                    call.front_of_lane = True
                case _:
                    raise self._final(call, error, renewed=renewed)

    def _take_note(self, call: _Call, error: MobileMoneyError, decision: Decision, *, renewed: bool) -> None:
        """Report a refused token to its source and a rejection to the limiter, whether or not this call goes on."""
        if call.token is not None and decision.action in {Action.RENEW_AND_REPLAY, Action.RENEW_AND_RAISE}:
            try:
                with callers_code():
                    if decision.action is Action.RENEW_AND_RAISE and not renewed:
                        self.suspicions.report(self.tokens, call.token)
                    else:
                        self.tokens.rejected(call.token, replacement=renewed)
            except Exception as exc:  # noqa: BLE001 (a caller's own source may raise anything)
                # The call goes on: with another token it is sent, and else it ends by the refusal.
                logger.warning("a refused token could not be reported: %s", source_failure("auth", exc))
        if decision.hold:
            self.limiter.hold(decision.hold)
        if self._instrumentation is not None and decision.action in _REPEATING:
            self._instrumentation.retry_scheduled(call.endpoint, call.attempts, error, decision.hold or decision.pause)

    async def _prepare(self, call: _Call) -> None:
        """Wait for token and limiter, before anything is sent."""
        if call.endpoint.bearer:
            # Before the limiter: a place must be used when it is granted, not after a login.
            token = await self.token()
            if call.refusal is not None and token == call.refused:
                raise call.refusal
        asked_at, place = loop_time(), call.granted_at
        if place is None or asked_at > place + FRESH:
            # A place that lay unused during a login would come on top of those granted since.
            await self.limiter.acquire(call.lane, front_of_lane=call.front_of_lane or place is not None)
        call.granted_at = None
        if self._instrumentation is not None:
            self._instrumentation.waited(call.lane, loop_time() - asked_at)
        if call.endpoint.bearer:
            # After the limiter: it may have been a long wait.
            granted_at = loop_time()
            call.token = await self.token()
            if loop_time() > granted_at + FRESH:
                # There was a login to wait for: used now, the place would come on top of those granted since.
                await self.limiter.acquire(call.lane, front_of_lane=True)
        self.wire.check_open()

    async def _attempt(self, call: _Call) -> Any:
        recorder = call.recorder
        if recorder is None:
            return await self._exchange(call)
        asked_at, written_at = loop_time(), self.utcnow()
        patience = await recorder.sending(self.options.timeout)
        lives = patience + self.options.timeout

        def took() -> float:
            # By both clocks: the monotonic one stops while the machine sleeps.
            return max(loop_time() - asked_at, (self.utcnow() - written_at).total_seconds())

        def require_alive() -> None:
            # A process that was stopped while it connected wakes with the connection before it wakes with its time-out.
            if took() > lives:
                raise RequestTimeout(f"no connection within {lives:.0f} s; nothing was sent", outcome="not_sent")

        try:
            if took() > patience:
                # Another process may have recorded the attempt as lost by now, so it must not be sent any more.
                raise StoreError(f"the store took more than {patience:.0f} s", outcome="not_sent")
            answer = await self._exchange(call, require_alive)
        except BaseException as exc:
            error = exc if isinstance(exc, MobileMoneyError) else None
            lost: CallOutcome = "unknown" if call.flight is not None and call.flight.may_have_arrived else "not_sent"
            # Shielded, here and below: cancelled or not, the record learns the result of the attempt.
            await shielded(lambda: recorder.failed(lost if error is None else error.outcome, error))
            raise
        await shielded(lambda: recorder.answered(answer))
        return answer

    async def _exchange(self, call: _Call, *checks: Callable[[], None]) -> Any:
        """Send a request and return its answer; `checks` raise if it must not be sent any more."""
        endpoint, timeout = call.endpoint, self.options.timeout
        self.wire.check_open()  # the record of the attempt may have waited for the store
        if self.claim is not None:
            self.claim.require()
            checks = (self.claim.require, *checks)
        call.sent_at = self.utcnow()
        call.flight = flight = Flight(checks=checks)
        started, status, error = loop_time(), None, None

        def read(answer: Answer) -> Any:
            nonlocal status
            status = answer.status_code
            return _read(call, flight, answer)

        try:
            with anyio.move_on_after(timeout):
                return await self.wire.send(
                    endpoint.method,
                    call.target,
                    headers=self._headers(call),
                    content=call.content,
                    timeout=timeout,
                    flight=flight,
                    read=read,
                )
            raise RequestTimeout(
                f"no answer within {timeout:g} s", outcome="unknown" if flight.may_have_arrived else "not_sent"
            )
        except BaseException as exc:
            error = exc
            raise
        finally:
            self._report(call, status, error, loop_time() - started)

    def _report(self, call: _Call, status: int | None, error: BaseException | None, took: float) -> None:
        """Log an attempt, and report it as an event."""
        if logger.isEnabledFor(logging.DEBUG):
            method, path = call.endpoint.method, call.endpoint.shown
            shown = "no answer" if status is None else status
            logger.debug("%s %s: %s in %.3f s, attempt %d", method, path, shown, took, call.attempts)
        if self._instrumentation is not None:
            self._instrumentation.attempt_ended(
                call.endpoint, call.attempts, status_code=status, error=error, duration=took
            )

    def _headers(self, call: _Call) -> dict[str, str]:
        headers = dict(self.options.headers)
        if call.content is not None:
            headers["Content-Type"] = "application/json"
        if call.token is not None:
            headers["Authorization"] = HiddenText(f"Bearer {call.token.reveal()}")
        return headers

    def _too_late(self, call: _Call) -> MobileMoneyError:
        outcome: CallOutcome = "not_sent" if call.last_error is None else call.last_error.outcome
        if call.flight is not None:
            outcome = "unknown" if call.flight.may_have_arrived else "not_sent"
        late = RequestTimeout(f"the call's deadline of {self.options.deadline:g} s passed", outcome=outcome)
        late.__cause__ = call.last_error
        return self._unknown(call, late)

    def _final(self, call: _Call, error: MobileMoneyError, *, renewed: bool) -> MobileMoneyError:
        if renewed and isinstance(error, TokenExpired) and error.outcome == "refused":
            # A token that was fetched a moment ago has not expired: it is not accepted.
            invalid = InvalidToken(error.message, status_code=error.status_code, code=error.code)
            invalid.__cause__ = error
            return invalid
        if isinstance(error, TransportError) and error.outcome == "not_sent" and call.attempts > 1:
            error.args = (f"{error} ({call.attempts} attempts)",)
        return self._unknown(call, error)

    def _unknown(self, call: _Call, error: MobileMoneyError) -> MobileMoneyError:
        """Return the error to raise: `OutcomeUnknown` for money that may have been sent."""
        if call.endpoint.effect is not Effect.MONEY or error.outcome != "unknown":
            return error
        assert call.sent_at is not None
        said = f"the payment may or may not exist: {error}"
        return self.unknown(said, call.idempotency_key or "", call.sent_at, cause=error)

    def unknown(self, said: str, key: str, sent_at: datetime, *, cause: Exception | None = None) -> OutcomeUnknown:
        """Return the error of a create with an unknown result, for the caller to raise, and report it as an event."""
        unknown = OutcomeUnknown(said, idempotency_key=key, sent_at=sent_at)
        unknown.__cause__ = cause
        if self._instrumentation is not None:
            self._instrumentation.payment_unknown(unknown)
        return unknown

    async def token(self) -> Secret:
        """Return the token of the next request, after a login if need be.

        Raises:
            MobileMoneyError: There is none; nothing was sent but the login.
        """
        admission = self.admission
        try:
            while True:
                if admission is not None and not admission.is_current():
                    await admission.require_bound()  # first: a login with another merchant's password is a request, too
                with callers_code():
                    token = require_bearer("auth", await self.tokens.token(self._login))
                if admission is None or admission.is_current():  # else the vault gave others for that
                    return token
        except Exception as exc:  # a caller's own source may raise anything
            if isinstance(exc, InvalidRequest) and exc.argument == "client":  # it is closed, say
                raise
            failure = source_failure("auth", exc)
            # Sent or not, that was the login: the call that needed it was not sent.
            failure.outcome = "not_sent"
            if failure is exc:
                raise
            raise failure from exc

    async def _login(self, email: str, password: Secret) -> LoginResult:
        content = encode("password", {"email": email, "password": password})
        # Ahead of the payments in its lane: they need the token too. One attempt: the calls that wait for it try again,
        # each by its own policy, and the two must not multiply.
        call = _Call(LOGIN, LOGIN.path, content, LOGIN.lane, {"email": email}, front_of_lane=True, retry=_ONCE)
        asked_at, error = loop_time(), None
        try:
            result: LoginResult = await self._run(call)
        except BaseException as exc:  # a cancellation too: there is no token
            error = exc
            raise
        finally:
            if self._instrumentation is not None:
                self._instrumentation.token_renewed(error, loop_time() - asked_at)
        return result


def _read(call: _Call, flight: Flight, answer: Answer) -> Any:
    """Return the value of an answer, and note in `flight` whether it may be that to another request."""
    if call.facts is not None:
        call.facts.date = answer.date
    try:
        value = read_value(call.endpoint, answer, call.token, call.content)
        for said in take_unsaid():
            logger.warning(said)
    except UnexpectedResponse:
        flight.is_suspect = True
        raise
    except APIError as exc:
        if flight.is_suspect and call.endpoint.effect is Effect.MONEY:
            # More came with it: the refusal may be the answer to another request, and this payment be made.
            raise UnexpectedResponse("more than one answer came", status_code=answer.status_code) from exc
        raise
    problem = other_than_asked(value, call.endpoint, call.asked)
    if problem is not None and isinstance(value, PageAnswer):
        # Some lists show their last page in place of one beyond it. An answer too many does not come a second time.
        shown, call.other_page = call.other_page, value.pagination.current_page
        problem = None if shown == call.other_page else problem
    if problem is not None:
        flight.is_suspect = True
        if call.endpoint.effect is not Effect.MONEY:  # the caller finds out whether a payment is made after all
            place = OTHER_USER if call.endpoint is LOGIN else None
            raise UnexpectedResponse(problem, status_code=answer.status_code, path=place)
    return value
