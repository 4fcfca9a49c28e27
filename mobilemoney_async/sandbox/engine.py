"""Engine of the sandbox: the whole service, pure and synchronous.

One call takes a request and the time, and returns the reply. Nothing here waits, reads a clock or rolls dice without a
seed, so every front (in process, ASGI, sockets) shows the same service, and a test can send any request at any time.
"""

import random
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from math import ceil

import attrs

from mobilemoney_async.sandbox import magic
from mobilemoney_async.sandbox.accounts import Account, Accounts
from mobilemoney_async.sandbox.behaviour import Choices, RateBudget, RateLimit
from mobilemoney_async.sandbox.endpoints import Call, Match, match, read_body
from mobilemoney_async.sandbox.faults import Fault, html_reply, rate_limit_reply
from mobilemoney_async.sandbox.messages import RefusedError, Reply, ReplyDelivery, Request, auth_error
from mobilemoney_async.sandbox.payments import PaymentService, TransactionBook
from mobilemoney_async.sandbox.records import LoggedRequest, RequestLog
from mobilemoney_async.sandbox.script import Script, SwitchBoard
from mobilemoney_async.sandbox.states import Kind
from mobilemoney_async.sandbox.user_service import UserService

_KINDS = {"c2b": Kind.COLLECTION, "b2c": Kind.DISBURSEMENT}


class Engine:
    """Engine of the service, with all its state; its arguments are those of `Sandbox`."""

    def __init__(
        self, *, start: datetime, speed: float, seed: int, balance: Decimal, choices: Choices, run: str = ""
    ) -> None:
        self.accounts: Accounts = Accounts(dice(seed, "secrets"))
        self.book: TransactionBook = TransactionBook(
            start=start, speed=speed, choices=choices, dice=dice(seed, f"payments{run}")
        )
        self.users: UserService = UserService(self.accounts, self.book, dice(seed, "one-time passwords"))
        self.script: Script = Script(dice(seed, "script"))
        self.switches: SwitchBoard = SwitchBoard()
        self.requests: RequestLog = RequestLog()
        self.payments: PaymentService = PaymentService(self.book, speed=speed)
        # Of the page, so that a program gets the same beside it.
        self._page_dice = dice(seed, f"page{run}")
        self._speed = speed
        self._balance = balance
        self._choices = choices
        self._limits: dict[str, RateLimit] = {}
        self._struck: set[tuple[str, ...]] = set()
        self._handlers: Mapping[str, Callable[[Call], Reply]] = {
            "c2b": partial(self.payments.create, Kind.COLLECTION),
            "b2c": partial(self.payments.create, Kind.DISBURSEMENT),
            "transaction": self.payments.by_id,
            "lookup": self.payments.lookup,
            "transactions": self.payments.list,
            "profile": self.users.profile,
            "users-profile": self.users.profile,
            "login": self.users.log_in,
            "request-otp": self.users.request_otp,
            "verify-otp": self.users.verify_otp,
            "forgot-password": self.users.forgot_password,
            "reset-password": self.users.reset_password,
        }

    def open_account(self, email: str) -> Account:
        """Open a merchant's account; see `Sandbox.add_account`."""
        account = self.accounts.open(email)
        self.book.ledger.open(account.merchant_id, self._balance)
        self._limits[account.merchant_id] = RateLimit(self._speed)
        return account

    def rate_budget(self, account: Account, unscaled_now: float) -> RateBudget:
        """Return the rest of a merchant's request limit."""
        return self._limits[account.merchant_id].budget(self._choices.rate_limit, unscaled_now)

    def handle(self, request: Request, now: float, unscaled_now: float | None = None) -> Reply:
        """Answer one request; every request gets a reply.

        Times are seconds since the start, and never less than in an earlier call: `now` by the service's time,
        `unscaled_now` (by default the same) for the request limit.
        """
        self.book.settle(now)
        found = match(request.method, request.path)
        endpoint = None if isinstance(found, RefusedError) else found[0].name
        faults = self.script.pick(request.method, endpoint) or self.switches.pick(request.method, endpoint)
        choices = self._choices
        for fault in faults:
            choices = attrs.evolve(choices, **fault.choices)

        def process() -> Reply:
            try:
                return self._process(request, found, choices, now, now if unscaled_now is None else unscaled_now)
            except RefusedError as refusal:
                return refusal.reply

        reply = _struck(faults, choices, process)
        reply = self._delayed(reply, choices.latency + sum(fault.latency for fault in faults), choices)
        reply = attrs.evolve(reply, at=self.book.datetime_at(now))
        self._log(request, endpoint, reply, now)
        return reply

    def ask(self, account: Account, fields: Mapping[str, str], now: float) -> Reply:
        """Create a collection for the page, and return the answer that a request would get; see `Sandbox.ask`.

        Raises `RefusedError` for a wrong phone number or amount, before a magic number's fault strikes.
        """
        self.book.settle(now)
        call = Call(
            parameters={}, query={}, body=fields, account=account, now=now, unscaled_now=now, choices=self._choices
        )
        self.payments.read(call)
        faults = self._magic_faults(Kind.COLLECTION, fields, "page")
        return _struck(faults, self._choices, lambda: self.payments.create(Kind.COLLECTION, call, self._page_dice))

    def _process(
        self, request: Request, found: Match | RefusedError, choices: Choices, now: float, unscaled_now: float
    ) -> Reply:
        """Check sender, body, magic number, limit and permission, in this order; then let the request take effect."""
        if isinstance(found, RefusedError):
            raise found
        route, parameters = found
        principal = None
        if route.bearer:
            authorization = request.headers.get("authorization", "")
            principal = self.accounts.authenticate(authorization, self.book.datetime_at(now))
        body = read_body(request)
        kind = _KINDS.get(route.name)
        faults = self._magic_faults(kind, body, principal.account.merchant_id) if kind and principal else ()
        call = Call(
            parameters=parameters,
            query=request.query,
            body=body,
            account=principal.account if principal else None,
            now=now,
            unscaled_now=unscaled_now,
            choices=choices,
        )

        def take_effect() -> Reply:
            account = principal.account if principal else self.accounts.find(str(body.get("email")))
            if account:
                self._count(account, choices, unscaled_now)
            if principal and route.permission and route.permission not in principal.permissions:
                status = choices.status_insufficient_permissions
                raise RefusedError(auth_error(status, "insufficient_permissions", "The token does not allow this"))
            return self._handlers[route.name](call)

        return _struck(faults, choices, take_effect)

    def _count(self, account: Account, choices: Choices, unscaled_now: float) -> None:
        """Count a request against the merchant's limit; a rejected one does not count."""
        limit = self._limits[account.merchant_id]
        wait = limit.wait(choices.rate_limit, unscaled_now)
        if wait:
            raise RefusedError(rate_limit_reply(choices, max(1, ceil(wait))))
        limit.use(unscaled_now)

    def _magic_faults(self, kind: Kind, body: Mapping[str, object], sender: str) -> tuple[Fault, ...]:
        row = magic.find(str(body.get("phone_number")), kind)
        if row is None or row.fault is None:
            return ()
        if row.alternates:
            payment = (sender, kind, row.suffix, str(body.get("amount")))
            if payment in self._struck:
                self._struck.remove(payment)
                return ()
            self._struck.add(payment)
        return (row.fault,)

    def _delayed(self, reply: Reply, latency: float, choices: Choices) -> Reply:
        if latency > choices.gateway_timeout and reply.wire is ReplyDelivery.ANSWERED:
            reply = attrs.evolve(html_reply(504), fault="latency")
        return attrs.evolve(reply, delay=min(latency, choices.gateway_timeout) / self._speed)

    def _log(self, request: Request, endpoint: str | None, reply: Reply, now: float) -> None:
        unanswered = reply.wire not in (ReplyDelivery.ANSWERED, ReplyDelivery.TRUNCATED)
        self.requests.add(
            LoggedRequest(
                method=request.method,
                path=request.path,
                endpoint=endpoint,
                status=None if unanswered else reply.status,
                code=None if unanswered else reply.code,
                fault=reply.fault,
                authorized="authorization" in request.headers,
                at=now,
            )
        )


def dice(seed: int, purpose: str) -> random.Random:
    """Make the random numbers of one purpose: an additional draw for one does not change the others."""
    return random.Random(f"{seed}/{purpose}")  # noqa: S311 - simulated secrets must repeat with the seed


def _struck(faults: tuple[Fault, ...], choices: Choices, process: Callable[[], Reply]) -> Reply:
    """Return the answer of a fault that comes instead of processing, or that of `process` as the faults change it."""
    for fault in faults:
        if fault.instead is not None:
            return attrs.evolve(fault.instead(choices), fault=fault.name)
    reply = process()
    for fault in faults:
        changed = reply if fault.change is None else fault.change(reply)
        reply = attrs.evolve(changed, fault=fault.name)
    return reply
