"""`Sandbox.ask`: a collection without a program."""

import json
from decimal import Decimal
from typing import Any

import pytest

from mobilemoney_async import MobileMoneyError
from mobilemoney_async.sandbox import Choices, Sandbox, faults
from mobilemoney_async.sandbox.messages import Wire
from tests.sandbox.page_user import only
from tests.sandbox.service import ORDINARY, Service


@pytest.mark.parametrize("suffix", ["789", "205", ""])
def test_a_program_gets_the_same_beside_the_page(suffix: str) -> None:
    """What the page asks for changes no id, delay, fault, limit or count of a program: its run stays byte for byte."""
    number = f"+255780000{suffix}" if suffix else ORDINARY
    alone, beside = Service(choices=Choices()), Service(choices=Choices())
    for service in (alone, beside):
        service.engine.script.add(Sandbox().script(faults.nulls(), on="c2b", times=2))
        service.engine.switches.turn_on("unknown-fields")
    for second in range(12):
        alone.now = beside.now = second
        beside.engine.ask(beside.account, {"phone_number": number, "amount": "10"}, beside.now)
        sent = [service.collect(number, "10") for service in (alone, beside)]
        assert sent[0].reply == sent[1].reply
        if suffix == "" or second % 2:
            transaction_id = sent[0].json.get("transaction_id", "txn_unknown")
            assert alone.get(transaction_id).reply == beside.get(transaction_id).reply
    assert list(alone.engine.requests) == list(beside.engine.requests)
    assert alone.engine.switches.states() == beside.engine.switches.states()
    budgets = [service.engine.rate_budget(service.account, 12.0) for service in (alone, beside)]
    assert budgets[0] == budgets[1]
    assert len(beside.engine.book.payments) > len(alone.engine.book.payments)


def test_a_sandbox_asks_without_a_page() -> None:
    """`Sandbox.ask` does the same from Python, and refuses what the service refuses with a sentence."""
    sandbox = Sandbox()
    assert sandbox.ask(ORDINARY, "10").status == 200
    assert only(sandbox).phone_number == ORDINARY
    assert sandbox.ask("+255780000202", "10").wire is Wire.LOST
    for phone_number, amount in (("0788", "10"), (ORDINARY, "ten"), ("", "10"), ("+255780000202", "")):
        with pytest.raises(ValueError, match=r"^(phone_number|amount) must be "):
            sandbox.ask(phone_number, amount)
    assert len(sandbox.transactions) == 1


NUMBERS = (ORDINARY, f" {ORDINARY[:4]} {ORDINARY[4:7]}-{ORDINARY[7:]} ", ORDINARY[1:], "0681000001", "", f"{ORDINARY}x")
AMOUNTS: tuple[Any, ...] = (15000, "15000", "015000", "15000.00", Decimal("15000.0"), 10**30, 0, -5, True, None)
AMOUNTS += ("1e3", "15,000", "15.000", "\u0661", " 15", 10.5, "", "0.00", Decimal("NaN"), Decimal("1E+3"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("number", "amount"), [*((each, 15000) for each in NUMBERS), *((ORDINARY, each) for each in AMOUNTS)]
)
async def test_it_answers_as_the_service_answers_a_client(number: str, amount: Any) -> None:
    """What `collections.create` takes it takes, with the answer that makes the acknowledgement; it refuses the rest."""
    asked, created = Sandbox(choices=Choices(rate_limit=None)), Sandbox(choices=Choices(rate_limit=None))
    async with created.client() as client:
        try:
            made = await client.collections.create(number, amount)
        except (MobileMoneyError, TypeError):
            with pytest.raises(ValueError, match=r"^(phone_number|amount) must be "):
                asked.ask(number, amount)
        else:
            shown = json.loads(asked.ask(number, amount).body)
            assert (Decimal(shown["amount"]), shown["phone_number"]) == (made.amount, made.phone_number)
            assert (shown["status_code"], shown["message"]) == (made.status_code, made.message)
    assert len(asked.transactions) == len(created.transactions)
