"""Controls of a running sandbox: the customers' answers, the clock, and faults."""

from mobilemoney_async.sandbox.callbacks import CallbackSender
from mobilemoney_async.sandbox.clock import Clock
from mobilemoney_async.sandbox.engine import Engine
from mobilemoney_async.sandbox.fault_switches import SwitchBoard
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.phones import Phone, Phones
from mobilemoney_async.sandbox.script import Rule
from mobilemoney_async.sandbox.states import Event, Kind, Payment


class Controls:
    """Base of `Sandbox`: all that a test or an operator controls.

    Args:
        engine: The service.
        clock: Its clock.
        callbacks: Its callback sender.

    Attributes:
        callbacks: Reports status changes to a URL, while `serve()` runs.
    """

    def __init__(self, engine: Engine, clock: Clock, callbacks: CallbackSender) -> None:
        self.callbacks: CallbackSender = callbacks
        self._engine = engine
        self._clock = clock
        self._phones = Phones(engine.book, engine.accounts)

    def script(
        self, *faults: Fault, on: str | None = None, times: int | None = None, probability: float | None = None
    ) -> Rule:
        """Let faults strike coming requests.

        Rules form a sequence: a request meets the first rule that strikes it, and no other.

        Args:
            *faults: From `mobilemoney_async.sandbox.faults`; they strike together.
            on: The requests: an HTTP method, an endpoint's name or both, as in `"POST c2b"`; None for every request.
                The names: `c2b`, `b2c`, `transaction` (by id), `lookup` (by reference), `transactions`, `profile`,
                `users-profile`, `login`, `request-otp`, `verify-otp`, `forgot-password`, `reset-password`; `*` and `?`
                match as in file names.
            times: The most strikes. None means once, or without end if a `probability` is given.
            probability: Of striking a matching request, 0 to 1. None means always, the same as 1.

        Returns:
            The rule: `.fired` counts, `.cancel()` ends it.

        Raises:
            ValueError: No fault, an `on` that no request can match, or a number out of range.
        """
        if times is None and probability is None:
            times = 1
        return self._engine.script.add(
            faults, on=on, times=times, probability=1.0 if probability is None else probability
        )

    def clear_script(self) -> None:
        """Remove all rules."""
        self._engine.script.clear()

    @property
    def switches(self) -> SwitchBoard:
        """Switches that turn each fault on and off."""
        return self._engine.switches

    @property
    def by_hand(self) -> bool:
        """True if new collections from ordinary numbers wait for your answer, until their prompts expire.

        Magic numbers and disbursements end automatically. You can change it at any time.
        """
        return self._engine.payments.by_hand

    @by_hand.setter
    def by_hand(self, by_hand: bool) -> None:
        if type(by_hand) is not bool:
            raise TypeError("by_hand must be True or False")
        self._engine.payments.by_hand = by_hand

    def advance(self, seconds: float) -> None:
        """Move the clock ahead; all events of that time happen.

        Args:
            seconds: Not negative.

        Raises:
            ValueError: It is negative or not a number.
        """
        self._clock.advance(seconds)
        self.callbacks.wake()

    @property
    def clock_rate(self) -> float:
        """Seconds of the service's time in one second of the event loop's; 0 while the clock is paused."""
        return self._clock.rate

    def run_clock(self, rate: float) -> None:
        """Let the service's time pass faster or slower from now on.

        Pending payments, lags, `created_at`, and the lifetimes of tokens, prompts and one-time passwords follow it. The
        request limit, the lock after refused logins, latency and other times that a client measures by its own clock do
        not: they follow the event loop's time and `speed`, also while the clock is paused.

        Args:
            rate: Seconds of the service's time for each second of the event loop's, 0 to 1000: 1 is normal, 0 pauses.

        Raises:
            ValueError: `rate` is out of its range.
        """
        self._clock.run(rate)
        self.callbacks.wake()

    def approve(self, transaction_id: str) -> Payment:
        """Let the customer pay, or the recipient be paid, now. A payout over the balance ends in INSUFFICIENT_FUNDS.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: Its state is final.
        """
        return self._decide(transaction_id, Event.APPROVE)

    def phones(self) -> tuple[Phone, ...]:
        """The customers' phones: those with open prompts first, then the most recently used; 50 at most."""
        self._settle()
        return self._phones.shown()

    def enter_pin(self, transaction_id: str, pin: str) -> bool:
        """Answer a customer's prompt with a PIN: `phones.PIN` pays, the third wrong one declines.

        PINs are an invention of this sandbox; the service does not document them.

        Returns:
            True if the PIN was right and the payment is made.

        Raises:
            TypeError: `pin` is not a str.
            KeyError: There is no such transaction.
            IllegalTransitionError: It is a disbursement, or its state is final.
        """
        return self._phones.enter_pin(transaction_id, pin, at=self._settle())

    def decline(self, transaction_id: str, reason: str | None = None) -> Payment:
        """Let the payment fail now.

        Args:
            transaction_id: The payment.
            reason: Its `failure_reason`; None for the usual one of its kind.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: Its state is final.
        """
        if reason is None:
            kind = self._engine.book.payments[transaction_id].kind
            reason = "PAYMENT_NOT_APPROVED" if kind is Kind.COLLECTION else "UNSPECIFIED_FAILURE"
        return self._decide(transaction_id, Event.DECLINE, reason)

    def expire(self, transaction_id: str) -> Payment:
        """Let the customer's prompt expire now.

        Raises:
            KeyError: There is no such transaction.
            IllegalTransitionError: Its state is final, or it is a disbursement.
        """
        return self._decide(transaction_id, Event.EXPIRE)

    def _decide(self, transaction_id: str, event: Event, reason: str | None = None) -> Payment:
        return self._engine.book.apply(transaction_id, event, at=self._settle(), reason=reason)

    def _settle(self) -> float:
        """Let all events happen that are due, and return the service's time."""
        now = self._clock.seconds()
        self._engine.book.settle(now)
        return now
