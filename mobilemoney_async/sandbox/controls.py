"""What a person can do in the sandbox while it runs: play the customers, move the clock, let faults strike."""

from mobilemoney_async.sandbox.callbacks import CallbackSender
from mobilemoney_async.sandbox.clock import Clock
from mobilemoney_async.sandbox.engine import Engine
from mobilemoney_async.sandbox.fault_switches import SwitchBoard
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.phones import Phone, Phones
from mobilemoney_async.sandbox.script import Rule
from mobilemoney_async.sandbox.states import Event, Kind, Payment


class Controls:
    """The part of the `Sandbox` that a test or a person directs.

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
            on: Which requests: an HTTP method, an endpoint's name or both, as in `"POST c2b"`; None for every request.
                The names: `c2b`, `b2c`, `transaction` (by id), `lookup` (by reference), `transactions`, `profile`,
                `users-profile`, `login`, `request-otp`, `verify-otp`, `forgot-password`, `reset-password`; `*` and `?`
                stand for any letters and any one, as in file names.
            times: How often at most. None means once, or without end if a `probability` is given.
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
        """Forget all rules."""
        self._engine.script.clear()

    @property
    def switches(self) -> SwitchBoard:
        """Each of the faults, to be turned on and off by hand."""
        return self._engine.switches

    @property
    def by_hand(self) -> bool:
        """Whether a new collection from an ordinary number waits for a person, until its prompt expires.

        Magic numbers and disbursements go on by themselves. It can be changed at any time.
        """
        return self._engine.payments.by_hand

    @by_hand.setter
    def by_hand(self, by_hand: bool) -> None:
        if type(by_hand) is not bool:
            raise TypeError("by_hand must be True or False")
        self._engine.payments.by_hand = by_hand

    def advance(self, seconds: float) -> None:
        """Move the clock ahead: what would have happened meanwhile has happened.

        Args:
            seconds: Not negative.

        Raises:
            ValueError: It is negative or no number.
        """
        self._clock.advance(seconds)
        self.callbacks.wake()

    @property
    def clock_rate(self) -> float:
        """How many seconds of the service's time pass in one of the event loop's; 0 while the clock is paused."""
        return self._clock.rate

    def run_clock(self, rate: float) -> None:
        """Let the service's time pass faster or slower from now on.

        Pending payments, lags, `created_at`, and the lifetimes of tokens, prompts and one-time passwords follow it. The
        request limit, the lock after refused logins, latency and whatever else a client measures by its own clock do
        not: they keep to the event loop's time and to `speed`, also while the clock is paused.

        Args:
            rate: Seconds of the service's time for each second of the event loop's: 1 is normal, 0 pauses, 1000 is the
                most.

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
        self._engine.book.settle(self._clock.seconds())
        return self._phones.shown()

    def enter_pin(self, transaction_id: str, pin: str) -> bool:
        """Answer a customer's prompt with a PIN: `phones.PIN` pays, the third wrong one declines.

        The contract shows nothing of what a customer does: this is the sandbox's own stage setting.

        Returns:
            Whether the PIN was right, and the payment is made.

        Raises:
            TypeError: `pin` is no str.
            KeyError: There is no such transaction.
            IllegalTransitionError: It is a disbursement, or its state is final.
        """
        now = self._clock.seconds()
        self._engine.book.settle(now)
        return self._phones.enter_pin(transaction_id, pin, at=now)

    def decline(self, transaction_id: str, reason: str | None = None) -> Payment:
        """Let the payment fail now.

        Args:
            transaction_id: Which.
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
        now = self._clock.seconds()
        self._engine.book.settle(now)
        return self._engine.book.apply(transaction_id, event, at=now, reason=reason)
