"""Customers' phones, and payments that wait for a PIN."""

from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mobilemoney_async.sandbox import PIN, IllegalTransitionError, Phone, Sandbox
from mobilemoney_async.sandbox.phones import HISTORY_SHOWN, PHONES_SHOWN, PROMPTS_SHOWN
from tests.sandbox.service import ORDINARY, START, STUCK, SUCCEEDS, create

collect, disburse = partial(create, endpoint="c2b"), partial(create, endpoint="b2c")


def phone_of(sandbox: Sandbox, phone_number: str) -> Phone:
    return next(phone for phone in sandbox.phones() if phone.phone_number == phone_number)


async def test_by_hand_a_payment_waits_for_a_person_until_its_prompt_expires(sandbox: Sandbox) -> None:
    paid, left_alone = await collect(sandbox), await collect(sandbox)
    await anyio.sleep(119)
    assert sandbox.enter_pin(paid, PIN) is True
    assert [sandbox.transactions[each].status for each in (paid, left_alone)] == ["SUCCESS", "PENDING"]
    await anyio.sleep(1)
    assert sandbox.transactions[left_alone].status == "TIMEOUT"
    assert sandbox.ledger.collected == 1000


async def test_by_hand_magic_numbers_and_payouts_go_on_by_themselves(sandbox: Sandbox) -> None:
    magic, payout = await collect(sandbox, SUCCEEDS), await disburse(sandbox)
    await anyio.sleep(100)
    assert [sandbox.transactions[each].status for each in (magic, payout)] == ["SUCCESS", "SUCCESS"]


async def test_by_hand_can_be_switched_at_any_time(sandbox: Sandbox) -> None:
    """It decides about payments that are new, and leaves those that wait alone."""
    assert not Sandbox().by_hand
    first = await collect(sandbox)
    sandbox.by_hand = False
    second = await collect(sandbox)
    sandbox.by_hand = True
    third = await collect(sandbox)
    await anyio.sleep(110)
    statuses = [sandbox.transactions[each].status for each in (first, second, third)]
    assert (statuses, sandbox.by_hand) == (["PENDING", "SUCCESS", "PENDING"], True)


async def test_by_hand_is_yes_or_no() -> None:
    text: Any = "no"
    with pytest.raises(TypeError, match="by_hand must be True or False"):
        Sandbox(by_hand=text)


async def test_by_hand_changes_nothing_about_the_other_payments() -> None:
    """The same seed gives the same ids, and ordinary payments end when they would have."""
    ends = []
    for by_hand in (False, True):
        sandbox = Sandbox(now=START, by_hand=by_hand)
        await collect(sandbox)
        payout = await disburse(sandbox)
        sandbox.advance(100)
        ends.append((payout, sandbox.transactions[payout].ended_at))
    assert ends[0] == ends[1]


async def test_a_phone_shows_its_prompts(sandbox: Sandbox) -> None:
    sandbox.advance(10)
    transaction_id = await collect(sandbox, amount="2500")
    (phone,) = sandbox.phones()
    (prompt,) = phone.prompts
    assert (phone.phone_number, phone.history) == (ORDINARY, ())
    assert (prompt.transaction_id, prompt.amount, prompt.merchant) == (transaction_id, "2500", sandbox.email)
    assert prompt.reference == sandbox.transactions[transaction_id].reference
    assert prompt.created_at == START + timedelta(seconds=10)
    assert prompt.expires_at == START + timedelta(seconds=130)
    assert prompt.wrong_pins == 0
    assert ORDINARY not in repr(phone)


async def test_a_prompt_that_nothing_will_expire_says_so(sandbox: Sandbox) -> None:
    await collect(sandbox, STUCK)
    assert phone_of(sandbox, STUCK).prompts[0].expires_at is None


async def test_wrong_pins_are_counted_for_each_prompt(sandbox: Sandbox) -> None:
    first, second = await collect(sandbox), await collect(sandbox)
    sandbox.enter_pin(first, "0000")
    assert [prompt.wrong_pins for prompt in sandbox.phones()[0].prompts] == [0, 1]
    assert sandbox.enter_pin(first, PIN) is True
    assert sandbox.enter_pin(second, PIN) is True


async def test_only_an_open_prompt_takes_a_pin(sandbox: Sandbox) -> None:
    payout, prompt = await disburse(sandbox), await collect(sandbox)
    with pytest.raises(IllegalTransitionError, match="a disbursement in PROCESSING has no prompt"):
        sandbox.enter_pin(payout, PIN)
    with pytest.raises(KeyError):
        sandbox.enter_pin("txn_unknown", PIN)
    number: Any = 1234
    with pytest.raises(TypeError, match="pin must be a str"):
        sandbox.enter_pin(prompt, number)
    await anyio.sleep(120)
    with pytest.raises(IllegalTransitionError, match="a collection in TIMEOUT has no prompt"):
        sandbox.enter_pin(prompt, PIN)
    assert not sandbox.ledger.collected


async def test_history_has_the_last_to_end_first_and_payouts_too(sandbox: Sandbox) -> None:
    payout, first, second = await disburse(sandbox), await collect(sandbox), await collect(sandbox)
    assert sandbox.phones()[0].history == ()
    sandbox.decline(second)
    sandbox.approve(payout)
    sandbox.approve(first)
    assert [payment.id for payment in sandbox.phones()[0].history] == [first, payout, second]


async def test_phones_with_prompts_come_first_then_the_most_recently_used(sandbox: Sandbox) -> None:
    numbers = [f"+25568100000{digit}" for digit in range(4)]
    prompts = [await collect(sandbox, number) for number in numbers]
    assert [phone.phone_number for phone in sandbox.phones()] == [numbers[3], numbers[2], numbers[1], numbers[0]]
    sandbox.decline(prompts[3])
    sandbox.decline(prompts[2])
    assert [phone.phone_number for phone in sandbox.phones()] == [numbers[1], numbers[0], numbers[2], numbers[3]]
    await collect(sandbox, numbers[3])
    assert [phone.phone_number for phone in sandbox.phones()] == [numbers[3], numbers[1], numbers[0], numbers[2]]


async def test_the_number_of_phones_is_bounded(sandbox: Sandbox) -> None:
    """A flood of payments does not make the answer grow without end: the newest are shown."""
    prompts = [await collect(sandbox) for _ in range(PROMPTS_SHOWN + 5)]
    for number in range(PHONES_SHOWN + 5):
        await disburse(sandbox, f"+2556810001{number:02d}")
    phones = sandbox.phones()
    assert len(phones) == PHONES_SHOWN
    assert [prompt.transaction_id for prompt in phones[0].prompts] == prompts[: -PROMPTS_SHOWN - 1 : -1]
    for transaction_id in prompts:
        sandbox.decline(transaction_id)
    history = phone_of(sandbox, ORDINARY).history
    assert [payment.id for payment in history] == prompts[: -HISTORY_SHOWN - 1 : -1]


async def test_a_prompt_names_the_merchant_who_asks(sandbox: Sandbox) -> None:
    other = sandbox.add_account("other@example.com")
    await collect(sandbox)
    await collect(sandbox, token=other.token)
    assert [prompt.merchant for prompt in sandbox.phones()[0].prompts] == ["other@example.com", sandbox.email]
