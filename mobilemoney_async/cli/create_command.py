"""`mobilemoney collect` and `mobilemoney disburse`: ask for money, or send it, and follow the payment to its end."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated

import attrs
import typer

from mobilemoney_async.cli.board import exit_code
from mobilemoney_async.cli.failures import (
    ExitCode,
    Refused,
    confirm_money,
    require_phone_number,
    require_service,
    run,
    say,
)
from mobilemoney_async.cli.following import saying_warnings
from mobilemoney_async.cli.options import (
    AccountOption,
    BaseURLOption,
    ConfigOption,
    ProfileOption,
    StoreOption,
    Unmasked,
    Yes,
)
from mobilemoney_async.cli.paying import Order, Payment
from mobilemoney_async.cli.service import Service
from mobilemoney_async.cli.settings import open_client
from mobilemoney_async.cli.watch_command import check_timeout
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.values import normalise_amount, require_name

# How long a payment is followed where nobody says, seconds.
_PATIENCE = 300.0

PhoneNumber = Annotated[
    str, typer.Argument(metavar="PHONE", help="+ and 8 to 15 digits: +255681234567.", show_default=False)
]
Amount = Annotated[str, typer.Argument(metavar="AMOUNT", help="Whole TZS, in digits: 15000.", show_default=False)]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Your name for this payment, in the store: whatever happens, it is sent once under it. Needs a store.",
        show_default="with a store, one is made and printed",
    ),
]
Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Follow the payment to its final state, so that exit code 0 means paid."),
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long to follow it.")]
AsEvents = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each event, for programs.")]


def collect(
    phone_number: PhoneNumber,
    amount: Amount,
    *,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = _PATIENCE,
    yes: Yes = False,
    as_json: AsEvents = False,
    unmasked: Unmasked = False,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    store: StoreOption = None,
    account: AccountOption = None,
) -> None:
    """Ask a customer to pay, and follow the payment until it is made or not.

    With a store the payment is written down under its key before it is sent: the same command with the same key never
    sends it twice. Without one, never repeat the command before you have looked with list.

    Exit codes: 0 paid (with --no-wait: accepted), 5 not paid, 4 not final in time, 3 nobody knows whether the payment
    exists, 1 an error and no money moved, 2 wrong usage and nothing was sent, 130 Ctrl-C.
    """
    service = Service(profile=profile, config=config, base_url=base_url, store=store, account=account)
    order = Order(type=TransactionType.COLLECTION, phone_number=phone_number, amount=amount, key=key, unmasked=unmasked)
    _create(order, service, wait=wait, timeout=timeout, yes=yes, as_json=as_json)


def disburse(
    phone_number: PhoneNumber,
    amount: Amount,
    *,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = _PATIENCE,
    yes: Yes = False,
    as_json: AsEvents = False,
    unmasked: Unmasked = False,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    store: StoreOption = None,
    account: AccountOption = None,
) -> None:
    """Send money to a wallet, and follow the payment until it has arrived or not.

    With a store the payment is written down under its key before it is sent: the same command with the same key never
    sends it twice. Without one, never repeat the command before you have looked with list.

    Exit codes: 0 sent (with --no-wait: accepted), 5 not sent in the end, 4 not final in time, 3 nobody knows whether
    the payment exists, 1 an error and no money moved, 2 wrong usage and nothing was sent, 130 Ctrl-C.
    """
    service = Service(profile=profile, config=config, base_url=base_url, store=store, account=account)
    order = Order(
        type=TransactionType.DISBURSEMENT, phone_number=phone_number, amount=amount, key=key, unmasked=unmasked
    )
    _create(order, service, wait=wait, timeout=timeout, yes=yes, as_json=as_json)


def _create(order: Order, service: Service, *, wait: bool, timeout: float, yes: bool, as_json: bool) -> None:
    command, is_key_given = order.command, order.key is not None
    check_timeout(timeout)
    settings = service.settings()
    order = _check(order, has_store=settings.store is not None)
    if settings.store is not None:
        require_service(settings)
    confirm_money(settings, str(order), yes=yes)
    payment = Payment(order, settings, service, as_json=as_json)

    async def work() -> None:
        async with open_client(settings, on_event=payment.heard) as client:
            if not is_key_given:
                payment.tell_key()
            with saying_warnings(command):
                await payment.send(client)
                if wait:
                    await payment.follow(client, timeout)

    run(command, work, open_work=payment.still_open, settings=settings)
    if not wait or payment.board is None:
        return
    code = exit_code(payment.board)
    if code is ExitCode.NOT_FINAL:
        say(command, f"not final after {timeout:g} s")
        for line in payment.still_open():
            say(command, line)
    if code is not ExitCode.FINE:
        raise typer.Exit(code)


def _check(order: Order, *, has_store: bool) -> Order:
    """Return the order as it is sent, with a key where there is a store to keep it.

    Raises:
        Refused: An argument is not what it accepts.
    """
    number = require_phone_number(order.phone_number)
    try:
        amount = normalise_amount(order.amount)
    except ValueError:
        raise Refused("AMOUNT must be whole TZS, more than 0, in digits such as 15000", ExitCode.USAGE) from None
    if order.key is not None and not has_store:
        raise Refused(
            "--key needs a store: without one nobody remembers the key, and the same command again would be a second "
            "payment; give --store, or name a store in the profile",
            ExitCode.USAGE,
        )
    try:
        key = None if order.key is None else require_name("key", order.key)
    except ValueError:
        raise Refused("--key must be at most 200 characters, not blank", ExitCode.USAGE) from None
    if key is None and has_store:
        key = f"cli-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    return attrs.evolve(order, phone_number=number, amount=amount, key=key)
