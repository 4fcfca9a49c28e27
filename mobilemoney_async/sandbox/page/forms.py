"""Forms of the page: reading them, and the action of each.

An action does everything that was asked for, or raises `RefusedForm` and does nothing.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from urllib.parse import parse_qsl

import attrs
from starlette.requests import Request

from mobilemoney_async.sandbox.accounts import Account
from mobilemoney_async.sandbox.callbacks import CallbackMode
from mobilemoney_async.sandbox.controls import Controls
from mobilemoney_async.sandbox.page.snapshot import Asked
from mobilemoney_async.sandbox.phones import PIN
from mobilemoney_async.sandbox.states import IllegalTransitionError

Form = Mapping[str, str]
_PIN = re.compile(rf"[0-9]{{{len(PIN)}}}")
_DAY = 86_400
_PAYMENT_FIELDS = {
    "phone_number": "Enter a number in international format, such as +255681234567.",
    "amount": "Enter whole TZS, digits only, such as 15000.",
}

MAX_BYTES = 20_000
_MAX_FIELDS = 20


@attrs.frozen
class RefusedForm(Exception):
    """Refusal of a form: the reason and the remedy for the page, an HTTP status, and the wrong field."""

    notice: str
    status: int = 422
    field: str | None = None


async def read_body(request: Request, most: int) -> bytes | None:
    """Return a request's body, or None as soon as it has more than so many bytes."""
    body = bytearray()
    async with aclosing(request.stream()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > most:
                return None
    return bytes(body)


async def read(request: Request) -> Mapping[str, str]:
    """Read the fields of a form, the last of two with one name; refuse one that is too long or no form of the page."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise RefusedForm("Send a form: application/x-www-form-urlencoded.", 415)
    body = await read_body(request, MAX_BYTES)
    if body is None:
        raise RefusedForm(f"A form has at most {MAX_BYTES:,} bytes.", 413)
    try:
        fields = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError as exc:
        raise RefusedForm("This is not a form of the page.", 400) from exc
    return dict(fields)


def one_of(form: Mapping[str, str], field: str, *choices: str) -> str:
    """Return the value of a field with a few possible values; refuse another."""
    value = form.get(field)
    if value not in choices:
        raise RefusedForm(f"{field} must be one of: {', '.join(choices)}.")
    return value


def number(form: Mapping[str, str], field: str) -> float:
    """Return the value of a field that is a number; refuse another."""
    try:
        return float(form.get(field, ""))
    except ValueError:
        raise RefusedForm(f"{field} must be a number.") from None


def account_of(sandbox: Controls, name: str | None) -> Account:
    """Return the merchant's account with a name; the first one for another name."""
    accounts = sandbox.merchants
    return accounts.get(name or "") or next(iter(accounts.values()))


@attrs.define(eq=False)
class Actions:
    """Actions of the forms on one sandbox."""

    _sandbox: Controls
    asked: Asked | None = attrs.field(default=None, init=False)
    _rate_before_pause: float = attrs.field(default=1.0, init=False)

    def ask(self, form: Form) -> None:
        """Ask a customer to pay; a number that was picked goes before one that was typed."""
        typed = (form.get("magic") or form.get("phone_number", ""), form.get("amount", ""))
        phone_number, amount = ("".join(text.split()) for text in typed)
        payments = self._sandbox.transactions
        known = len(payments)
        try:
            reply = self._sandbox.ask(phone_number, amount, account=account_of(self._sandbox, form.get("merchant")))
        except ValueError as exc:
            field = str(exc).split()[0]  # how each of the service's own refusals begins
            raise RefusedForm(_PAYMENT_FIELDS[field], field=field) from exc
        self.asked = Asked(phone_number, amount, reply, next(reversed(payments)) if len(payments) > known else None)

    def enter_pin(self, form: Form) -> None:
        """Answer a prompt with a PIN. A text that is not four digits does not count as a wrong PIN."""
        pin = form.get("pin", "")
        if not _PIN.fullmatch(pin):
            raise RefusedForm(f"A PIN has {len(PIN)} digits.")
        self._decide(form, lambda transaction_id: self._sandbox.enter_pin(transaction_id, pin))

    def decline(self, form: Form) -> None:
        """Decline a prompt."""
        self._decide(form, self._sandbox.decline)

    def expire(self, form: Form) -> None:
        """Let a prompt expire."""
        self._decide(form, self._sandbox.expire)

    def answer_by_hand(self, form: Form) -> None:
        """Choose whether you answer new prompts, or the sandbox does."""
        self._sandbox.by_hand = one_of(form, "by_hand", "yes", "no") == "yes"

    def run_clock(self, form: Form) -> None:
        """Pause the clock, or choose its speed; `resume` restores the speed before the pause."""
        rate = self._rate_before_pause if form.get("rate") == "resume" else number(form, "rate")
        before = self._sandbox.clock_rate
        try:
            self._sandbox.run_clock(rate)
        except ValueError as exc:
            raise RefusedForm(_sentence(exc)) from exc
        if before and not rate:
            self._rate_before_pause = before

    def jump(self, form: Form) -> None:
        """Move the clock ahead, by a day at most."""
        seconds = number(form, "seconds")
        if not 0 <= seconds <= _DAY:
            raise RefusedForm(f"seconds must be a number from 0 to {_DAY}.")
        self._sandbox.advance(seconds)

    def switch_faults(self, form: Form) -> None:
        """Turn one fault on, for one request or until it is turned off, or one or all of them off."""
        switches = self._sandbox.switches
        try:
            match form:
                case {"all_off": _}:
                    switches.all_off()
                case {"off": slug}:
                    switches.turn_off(slug)
                case {"once": slug} | {"keep": slug}:
                    switches.turn_on(slug, once="once" in form, on=form.get("on") or None)
                case _:
                    raise RefusedForm("Choose a fault.")
        except ValueError as exc:
            raise RefusedForm(_sentence(exc)) from exc

    def send_callbacks(self, form: Form) -> None:
        """Set the receiver of callbacks and their mode, or send a forged one there."""
        url = form.get("url", "").strip() or None
        callbacks = self._sandbox.callbacks
        try:
            if "forge" in form:
                callbacks.forge(url)
            else:
                callbacks.configure(url, one_of(form, "mode", *CallbackMode))
        except ValueError as exc:
            raise RefusedForm("Enter a URL with http:// or https:// and a host.", field="url") from exc

    def _decide(self, form: Form, decide: Callable[[str], object]) -> None:
        try:
            decide(form.get("transaction_id", ""))
        except KeyError as exc:
            raise RefusedForm("This sandbox knows no such payment. Was it restarted?", 404) from exc
        except IllegalTransitionError as exc:
            raise RefusedForm("Too late: this payment is final, see the history of the phone.", 409) from exc


def _sentence(error: ValueError) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
