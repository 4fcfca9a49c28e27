"""`Ask a phone to pay` on the phone page."""

import pytest

from mobilemoney_async.sandbox import MAGIC_NUMBERS, PIN, Sandbox
from tests.sandbox.page_user import WRITTEN, Elements, PageUser, only
from tests.sandbox.service import ORDINARY


async def test_the_page_alone_shows_a_payment(user: PageUser, sandbox: Sandbox) -> None:
    """Without any program a customer is asked on the page, pays there, and the merchant has the money."""
    await user.do("/phones/ask", phone_number=f" {WRITTEN}", amount="15 000", magic="")
    seen = await user.see()
    assert "Pay merchant@example.com TZS 15,000" in seen
    assert f"Asked {WRITTEN} to pay 15,000 TZS PENDING" in seen
    await user.do("/phones/pin", transaction_id=only(sandbox).id, pin=PIN)
    seen = await user.see()
    assert f"Asked {WRITTEN} to pay 15,000 TZS SUCCESS" in seen
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


async def test_the_asked_number_is_masked(user: PageUser, sandbox: Sandbox) -> None:
    """With phone numbers masked, the asked one is too."""
    await user.do("/mask", masked="yes")
    await user.do("/phones/ask", phone_number=ORDINARY, amount="10")
    source = await user.source()
    assert "Asked +255 ••• ••• 001" in Elements(source).text
    assert "681000001" not in source


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
