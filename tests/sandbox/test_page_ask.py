"""`Ask a phone to pay` on the phone page, and `Sandbox.ask`: a collection without a program."""

import json
from decimal import Decimal
from typing import Any

import pytest

from mobilemoney_async import MobileMoneyError
from mobilemoney_async.sandbox import MAGIC_NUMBERS, PIN, Choices, Sandbox, faults
from mobilemoney_async.sandbox.messages import ReplyDelivery
from tests.sandbox.page_user import WRITTEN, Elements, PageUser, only
from tests.sandbox.service import ORDINARY, Service


async def test_the_page_alone_shows_a_payment(user: PageUser, sandbox: Sandbox) -> None:
    """Without any program a customer is asked on the page, pays there, and the merchant has the money."""
    await user.do("/phones/ask", phone_number=f" {WRITTEN}", amount="15 000", magic="")
    seen = await user.see()
    assert "Pay merchant@example.com TZS 15,000" in seen
    assert f"Asked {WRITTEN} to pay 15,000 TZS PENDING" in seen
    await user.do("/phones/pin", transaction_id=only(sandbox).id, pin=PIN)
    seen = await user.see()
    assert f"Asked {WRITTEN} to pay 15,000 TZS SUCCESS" in seen
    assert "Paid" in seen and "2:00 left" not in seen
    assert "10,014,775.00" in seen


async def test_customers_asked_by_the_page_answer_as_others_do(user: PageUser, sandbox: Sandbox) -> None:
    """Where customers answer automatically, those that the page asks do too."""
    sandbox.by_hand = False
    await user.do("/phones/ask", phone_number=ORDINARY, amount="1")
    sandbox.advance(600)
    assert "TZS SUCCESS" in await user.see()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("phone_number", ""),
        ("phone_number", "0788 500 000"),
        ("phone_number", f"\u202a{ORDINARY}"),
        ("phone_number", f'"><script>{"7" * 10_000}'),
        ("amount", ""),
        ("amount", "0"),
        ("amount", "-1"),
        ("amount", "1.5"),
        ("amount", "15,000"),
        ("amount", "\u0661\u0665"),
        ("amount", "1" * 16),
        ("amount", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")),
    ],
    ids=lambda each: each[:20].encode("ascii", "backslashreplace").decode(),
)
async def test_wrong_input_is_explained_beside_its_field(
    user: PageUser, sandbox: Sandbox, field: str, value: str
) -> None:
    """One sentence with an example stands beside the field, which keeps what was typed; nobody is asked."""
    fields = {"phone_number": ORDINARY, "amount": "15000", field: value}
    if field == "amount":
        fields["magic"] = "+255780000202"  # its fault must not hide the refusal
    name, example = {"phone_number": ("ask-number", "+255681234567"), "amount": ("ask-amount", "15000")}[field]
    for headers in ({}, {"hx-request": "true"}):
        answer = await user.http.post("/phones/ask", data=fields, headers=headers)
        assert answer.status_code == 422
        elements = Elements(answer.text)
        (shown,) = (found for _, found in elements.attributes if found.get("id") == name)
        assert (shown["value"], shown["aria-invalid"]) == (value[:64], "true")
        assert f"{name}-error" in shown["aria-describedby"].split()
        assert f"{name}-error" in elements.ids
        assert f"such as {example}." in elements.text
        assert ("callback-form" in elements.ids) == (not headers)
    assert not sandbox.transactions
    assert "Asked" not in await user.see()


async def test_magic_numbers_are_picked_from_a_list(user: PageUser, sandbox: Sandbox) -> None:
    """Each magic number for collections is in the list with its meaning, and is asked in place of the typed number."""
    source = await user.source()
    for row in MAGIC_NUMBERS.values():
        assert (f"{row.meaning} ({row.phone_number})" in Elements(source).text) == (row.applies_to != "disbursement")
        if row.applies_to != "disbursement":
            await user.do("/phones/ask", phone_number=ORDINARY, amount="10", magic=row.phone_number)
    asked = {payment.phone_number for payment in sandbox.transactions.values()}
    unasked = {f"+255780000{suffix}" for suffix in ("089", "119", "202", "204", "205", "206")}
    assert asked == MAGIC_NUMBERS.keys() - unasked


@pytest.mark.parametrize(
    ("suffix", "shown"),
    [
        ("201", "PENDING A program would get: no answer."),
        ("202", "NO PAYMENT A program would get: no answer."),
        ("203", "PENDING A program would get: HTTP 500 INTERNAL_ERROR."),
        ("204", "NO PAYMENT A program would get: HTTP 504."),
        ("205", "NO PAYMENT A program would get: HTTP 429 RATE_LIMIT_EXCEEDED."),
        ("206", "NO PAYMENT A program would get: HTTP 401 token_expired."),
    ],
)
async def test_the_answer_that_a_program_would_get_is_shown(user: PageUser, suffix: str, shown: str) -> None:
    """Where a magic number damages the answer, the page shows both sides: the answer, and the payment."""
    await user.do("/phones/ask", phone_number="", amount="10", magic=f"+255780000{suffix}")
    assert f"to pay 10 TZS {shown}" in await user.see()
    await user.do("/phones/ask", phone_number="", amount="10", magic=f"+255780000{suffix}")
    assert ("to pay 10 TZS PENDING" in await user.see()) == (suffix not in ("202", "204"))


async def test_it_works_on_a_crowded_page(user: PageUser, sandbox: Sandbox) -> None:
    """Phones with a prompt come first and whole; the others are a row, the last used one first."""
    for last in "12345":
        await user.do("/phones/ask", phone_number=ORDINARY[:-1] + last, amount="10")
    for payment in list(sandbox.transactions)[:4]:
        sandbox.approve(payment)
    source = await user.source()
    assert source.count('class="phone"') == 1
    assert source.index(f"{WRITTEN[:-1]}5</h3>") < source.index(f"{WRITTEN[:-1]}4</h3>") < source.index("001</h3>")
    sandbox.approve(list(sandbox.transactions)[4])
    source = await user.source()
    assert (source.count('class="phone"'), source.count('class="line"')) == (1, 4)
    assert source.index('class="phone"') < source.index(f"{WRITTEN[:-1]}5</h3>") < source.index('class="line"')


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
    assert sandbox.ask("+255780000202", "10").wire is ReplyDelivery.LOST
    for phone_number, amount in (("0788", "10"), (ORDINARY, "ten"), ("", "10"), ("+255780000202", "")):
        with pytest.raises(ValueError, match=r"^(phone_number|amount) must be "):
            sandbox.ask(phone_number, amount)
    assert len(sandbox.transactions) == 1


NUMBERS = (ORDINARY, f" {ORDINARY[:4]} {ORDINARY[4:7]}-{ORDINARY[7:]} ", ORDINARY[1:], "0681000001", "", f"{ORDINARY}x")
AMOUNTS: tuple[Any, ...] = (15000, "15000", "015000", "15000.00", Decimal("15000.0"), 10**30, 0, -5, True, None)
AMOUNTS += ("1e3", "15,000", "15.000", "\u0661", " 15", 10.5, "", "0.00", Decimal("NaN"), Decimal("1E+3"))


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
