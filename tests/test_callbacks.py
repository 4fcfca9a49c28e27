"""Callbacks: the payments they name are asked about soon, their content is never believed, and no body harms."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mobilemoney_async import Acknowledgement, AsyncClient, InvalidRequest, Secret, TransactionStatus
from mobilemoney_async.callbacks import (
    MAX_BODY,
    MAX_CANDIDATES,
    CallbackReceiver,
    CallbackResult,
    CallbackStatus,
    candidates,
)
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.testing import run_virtual
from tests.support.growth import is_linear
from tests.support.scale import examples

STUCK = "+255780000129"
SECRET = "a-path-nobody-can-guess"


class Listener:
    """A poller that only listens, and refuses as the real one does."""

    def __init__(self) -> None:
        self.tracked: list[str] = []
        self.hinted: list[str] = []
        self.is_open = True

    def track(self, payment: Acknowledgement | str, *, timeout: float | None = None) -> None:
        self.tracked.append(payment if isinstance(payment, str) else payment.transaction_id)

    def hint(self, transaction_id: str) -> bool:
        if not self.is_open:
            raise InvalidRequest("closed", argument="poller")
        if transaction_id in self.tracked:
            self.hinted.append(transaction_id)
        return transaction_id in self.tracked


async def pay(client: AsyncClient) -> Acknowledgement:
    return await client.collections.create(phone_number=STUCK, amount=1000)


# Hints


@pytest.mark.parametrize("name", ["transaction_id", "reference", "idempotency_key"])
async def test_a_callback_under_any_name_makes_the_poller_look_at_once(name: str) -> None:
    """A payment with its next look far away is seen to be final a second after a callback has named it."""
    sandbox = Sandbox()
    async with sandbox.client() as client, client.poller() as poller:
        receiver = CallbackReceiver(poller)
        payment = await pay(client)
        receiver.track(payment)
        await anyio.sleep(300)
        sandbox.approve(payment.transaction_id)
        result = await receiver.receive(json.dumps({"data": [{"which": getattr(payment, name)}]}).encode())
        called_at = anyio.current_time()
        assert result == CallbackResult(
            status=CallbackStatus.ACCEPTED,
            candidates=result.candidates,
            transaction_ids=(payment.transaction_id,),
        )
        assert (await poller.wait(payment.transaction_id)).succeeded
        assert anyio.current_time() - called_at <= 1.5


async def test_no_state_or_amount_is_taken_from_a_callback() -> None:
    """A callback that claims success leads to a look, which shows that nothing was paid."""
    sandbox = Sandbox()
    async with sandbox.client() as client, client.poller() as poller:
        receiver = CallbackReceiver(poller)
        payment = await pay(client)
        receiver.track(payment)
        claim = {"transaction_id": payment.transaction_id, "status": "SUCCESS", "amount": "999999"}
        assert (await receiver.receive(json.dumps(claim).encode())).accepted
        with anyio.move_on_after(20):
            await poller.wait(payment.transaction_id)
            pytest.fail("the payment is open")
        sandbox.decline(payment.transaction_id)
        await receiver.receive(json.dumps(claim).encode())
        assert (await poller.wait(payment.transaction_id)).status is TransactionStatus.FAILED


async def test_a_payment_that_the_poller_follows_by_itself_is_hinted_too() -> None:
    """Payments that were handed to the poller directly are found by their transaction id, without asking `find`."""

    async def find(names: Sequence[str]) -> list[str]:
        pytest.fail("the payment is known")

    sandbox = Sandbox()
    async with sandbox.client() as client, client.poller() as poller:
        receiver = CallbackReceiver(poller, find=find)
        payment = await pay(client)
        poller.track(payment)
        result = await receiver.receive(b"transaction %s has changed" % payment.transaction_id.encode())
        assert result.transaction_ids == (payment.transaction_id,)


async def test_a_callback_may_come_before_the_create_has_answered() -> None:
    """A payment that a callback named just before it was tracked is asked about at once, and not any time later."""
    poller = Listener()
    receiver = CallbackReceiver(poller)
    await receiver.receive(b'{"external_id": "order 7"}')
    assert not poller.hinted
    receiver.track("T-7", "order 7")
    assert poller.hinted == ["T-7"]
    await receiver.receive(b'{"external_id": "order 8"}')
    await anyio.sleep(61)
    receiver.track("T-8", "order 8")
    assert poller.hinted == ["T-7"]


async def test_another_process_may_know_the_payment() -> None:
    """A callback for a payment that only `find` knows is tracked here; a flood of them asks `find` a few times only."""
    asked: list[Sequence[str]] = []

    async def find(names: Sequence[str]) -> list[str]:
        asked.append(names)
        return ["T-9"] if "order-9" in names else []

    poller = Listener()
    receiver = CallbackReceiver(poller, find=find)
    result = await receiver.receive(b'{"external_id": "order-9"}')
    assert result.transaction_ids == ("T-9",)
    assert poller.tracked == poller.hinted == ["T-9"]
    for number in range(100):
        await receiver.receive(b"forged-%d" % number)
    assert len(asked) == 5
    await anyio.sleep(2)
    await receiver.receive(b"forged again")
    assert len(asked) == 6


@pytest.mark.parametrize("kind", [ConnectionError, asyncio.CancelledError])
async def test_a_find_that_fails_costs_only_the_hint(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """Where the database is away a callback is accepted, and the payment is found by polling."""

    async def find(names: Sequence[str]) -> list[str]:
        raise kind("password=hunter2")

    result = await CallbackReceiver(Listener(), find=find).receive(b"T-1234")
    assert result.accepted
    assert kind.__name__ in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_callback_whose_request_is_cancelled_is_read_when_it_comes_again() -> None:
    """The sender has left while the orders table was asked; its next try, and other callbacks, are read as ever."""
    hangs = True

    async def find(names: Sequence[str]) -> list[str]:
        if hangs:
            await anyio.sleep_forever()
        return [*names]

    poller = Listener()
    receiver = CallbackReceiver(poller, find=find)
    for _ in range(20):
        with anyio.move_on_after(1) as scope:
            await receiver.receive(b"T-9")
        assert scope.cancelled_caught
    hangs = False
    await anyio.sleep(5)
    assert (await receiver.receive(b"T-9")).transaction_ids == ("T-9",)
    assert {*poller.hinted} == {"T-9"}


# Forged, late, too many


async def test_forged_callbacks_make_no_request() -> None:
    """A thousand callbacks that name nothing we follow lead to no request to the service."""
    sandbox = Sandbox()
    async with sandbox.client() as client, client.poller() as poller:
        receiver = CallbackReceiver(poller)
        for number in range(1000):
            assert (await receiver.receive(b'{"transaction_id": "forged-%d"}' % number)).accepted
        await anyio.sleep(60)
        assert not list(sandbox.requests)


async def test_only_the_secret_address_is_listened_to() -> None:
    """With a secret, a callback without the right token leaves no trace."""
    poller = Listener()
    poller.track("T-1234")
    receiver = CallbackReceiver(poller, secret=SECRET)
    for wrong in (None, "", SECRET[:-1], SECRET + "x", "é" * 20, "\udc80"):
        assert (await receiver.receive(b"T-1234", token=wrong)).status is CallbackStatus.WRONG_TOKEN
    assert not poller.hinted
    assert not receiver.kept
    assert (await receiver.receive(b"T-1234", token=SECRET)).accepted
    assert poller.hinted == ["T-1234"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_signature_can_be_checked(is_async: bool) -> None:
    """`verify` sees the raw body and lower-case headers, and without its True nothing is read."""
    seen: list[tuple[bytes, Mapping[str, str]]] = []

    def verify(body: bytes, headers: Mapping[str, str]) -> Any:
        seen.append((body, headers))
        return headers.get("x-signature") == "good"

    async def verify_async(body: bytes, headers: Mapping[str, str]) -> Any:
        return verify(body, headers)

    poller = Listener()
    poller.track("T-1234")
    receiver = CallbackReceiver(poller, verify=verify_async if is_async else verify)
    assert (await receiver.receive(b"T-1234", {"X-Signature": "bad"})).status is CallbackStatus.NOT_VERIFIED
    assert not poller.hinted
    assert not receiver.kept
    assert (await receiver.receive(b"T-1234", [(b"X-Signature", b"good")])).accepted
    assert seen == [(b"T-1234", {"x-signature": "bad"}), (b"T-1234", {"x-signature": "good"})]


@pytest.mark.parametrize("said", ["yes", 1, None, ValueError("body: 12345"), asyncio.CancelledError("12345")])
async def test_a_check_that_does_not_say_true_says_no(said: object, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever `verify` returns or raises, only True lets a callback in, and its text is not logged."""

    def verify(body: bytes, headers: Mapping[str, str]) -> Any:
        if isinstance(said, BaseException):
            raise said
        return said

    assert not (await CallbackReceiver(Listener(), verify=verify).receive(b"T-1234")).accepted
    assert "12345" not in caplog.text


async def test_a_body_that_is_too_large_is_not_read() -> None:
    """A body longer than any sensible callback is refused unread."""
    poller = Listener()
    poller.track("T-1234")
    receiver = CallbackReceiver(poller)
    result = await receiver.receive(b"T-1234 ".ljust(MAX_BODY + 1))
    assert result.status is CallbackStatus.TOO_LARGE
    assert not poller.hinted
    assert not receiver.kept
    assert (await receiver.receive(b"T-1234 ".ljust(MAX_BODY))).accepted


async def test_a_closed_poller_is_no_error() -> None:
    """A callback that comes while the application shuts down is answered like any other."""
    poller = Listener()
    receiver = CallbackReceiver(poller)
    receiver.track("T-1234")
    poller.is_open = False
    assert (await receiver.receive(b"T-1234")).accepted


@pytest.mark.slow
def test_many_values_below_a_long_field_name_cost_little() -> None:
    """Strangers may send callbacks: the work grows with the body, whatever it is."""

    def find(size: int) -> None:
        half = size // 2
        names = candidates(b'{"%s":[%s]}' % (b"z" * half, b",".join([b'"a"'] * (half // 4))))
        assert names[0] == "a"

    assert is_linear(find, 4_000)


# Kept bodies


async def test_bodies_are_kept_redacted_for_who_wants_to_learn_the_format() -> None:
    """The latest bodies can be read, without phone numbers, tokens and credentials; a duplicate counts up."""
    receiver = CallbackReceiver(Listener(), keep=2)
    body = b'{"event": "paid", "phone_number": "+255681234567", "token": "abcdef", "amount": "15000"}'
    headers = {"X-Signature": "0123456789abcdef0123456789abcdef", "Cookie": "a=b", "Content-Type": "application/json"}
    first = await receiver.receive(body, headers)
    again = await receiver.receive(body, headers)
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    (kept,) = receiver.kept
    assert kept.times == 2
    assert kept.size == len(body)
    assert kept.body.startswith('{"event": "paid", "phone_number": "+25568…567"')
    assert "abcdef" not in kept.body
    assert kept.headers == {
        "x-signature": "[redacted]",
        "cookie": "[redacted]",
        "content-type": "application/json",
    }
    for each in (b"one", b"two"):
        await receiver.receive(each)
    assert [each.body for each in receiver.kept] == ["one", "two"]
    assert "one" not in repr(receiver)


async def test_nothing_is_kept_where_nothing_should_be() -> None:
    """`keep=0` keeps nothing, and works otherwise."""
    receiver = CallbackReceiver(Listener(), keep=0)
    assert not (await receiver.receive(b"one")).is_duplicate
    assert not (await receiver.receive(b"one")).is_duplicate
    assert receiver.kept == ()


# Where names are looked for


WHOLE = [
    b'{"transaction_id": "T/100 a"}',
    b'{"a": {"b": [1, null, true, {"c": ["x", "T/100 a"]}]}}',
    b'"T/100 a"',
    '\ufeff {"id": "T/100 \\u0061"}'.encode(),
    json.dumps({"payload": json.dumps({"id": "T/100 a"})}).encode(),
    b"id=T%2F100+a&x=1",
    urlencode({"payload": json.dumps({"id": "T/100 a"})}).encode(),
    json.dumps({f"k{n}": f"v{n}" for n in range(1000)} | {"reference": "T/100 a"}).encode(),
]
WORDS = [
    b"Payment T-100.7 was made",
    b"<xml><id>T-100.7</id></xml>",
    b'{"broken": "T-100.7"',
    b'--b\r\nContent-Disposition: form-data; name="id"\r\n\r\nT-100.7\r\n--b--',
    b'{"text": "your payment T-100.7 was made"}',
    b"https://example.com/payments/T-100.7?x=1",
    b"\xff\xfe T-100.7 \x00",
]


@pytest.mark.parametrize(
    ("name", "body"), [*(("T/100 a", body) for body in WHOLE), *(("T-100.7", body) for body in WORDS)]
)
def test_a_name_is_found_as_a_whole_value_and_without_blanks_in_any_text(name: str, body: bytes) -> None:
    """Of any characters as a value of JSON or of a form, however deep, likely fields first."""
    assert name in candidates(body)


def test_numbers_may_be_names() -> None:
    """An id may be a number, of any length."""
    assert candidates(b'{"id": 12345678901234567890123}')[0] == "12345678901234567890123"


def test_fields_that_tell_come_first() -> None:
    """A large callback does not hide its ids behind other text."""
    body = json.dumps({"text": [f"word{n}" for n in range(500)], "orderId": "T-1"}).encode()
    found = candidates(body)
    assert found[0] == "T-1"
    assert len(found) == MAX_CANDIDATES


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(st.binary(max_size=2000) | json_values.map(lambda value: json.dumps(value).encode()))
@example(b"[" * MAX_BODY)
@example(b"[" + b"1," * 30_000 + b"1]")
@example(b"a=%7B" * 13_000)
@example(b'{"id": "\\ud800"}')
@example(b'{"id": ".."}')
@example(b"[" + b"9" * 60_000 + b"]")
@settings(max_examples=examples(60))
def test_any_bytes_give_a_bounded_number_of_usable_names(body: bytes) -> None:
    """Whatever arrives, reading it ends, and gives few short names that could be sent over the wire."""
    found = candidates(body)
    assert len(found) <= MAX_CANDIDATES
    assert len(set(found)) == len(found)
    for name in found:
        assert 0 < len(name.encode()) <= 4 * 200
        assert name == name.strip()


@given(st.lists(st.binary(max_size=200), max_size=5), st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9))))
@settings(max_examples=examples(40))
def test_any_callback_is_answered(bodies: list[bytes], headers: list[tuple[bytes, bytes]]) -> None:
    """Any bytes under any headers are accepted without an exception."""

    async def main() -> None:
        sandbox = Sandbox()
        async with sandbox.client() as client, client.poller() as poller:
            receiver = CallbackReceiver(poller, keep=3)
            for body in bodies:
                assert (await receiver.receive(body, headers)).accepted
            assert len(receiver.kept) <= 3

    run_virtual(main)


@pytest.mark.slow
@given(st.text(min_size=1, max_size=200).filter(lambda text: bool(text.strip()) and "\x00" not in text), json_values)
@settings(max_examples=examples(60))
def test_any_name_is_found_in_json(name: str, rest: object) -> None:
    """Any id, within any other content, counts if the callback names it under a likely field."""
    assert name.strip() in candidates(json.dumps({"rest": rest, "transaction_id": name}).encode())


# Arguments


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "short"},
        {"secret": 12345678901234567},
        {"secret": "abcdefgh/ijklmnop+qrstuv=="},
        {"secret": Secret("sehr-geheim-über-alles")},
        {"secret": "a-path-nobody-can-guess\n"},
        {"keep": -1},
        {"keep": True},
        {"verify": "yes"},
        {"find": []},
    ],
)
def test_arguments_are_refused_by_name(options: dict[str, Any]) -> None:
    """A receiver that could not work is refused when it is made."""
    with pytest.raises(InvalidRequest) as raised:
        CallbackReceiver(Listener(), **options)
    assert raised.value.argument == next(iter(options))
    assert "abcdefgh" not in str(raised.value)


@pytest.mark.parametrize("body", ['{"id": "T-1234"}', {"id": "T-1234"}, memoryview(b"T-1234"), None], ids=[*"abcd"])
async def test_a_body_that_is_read_already_is_refused_by_name(body: Any) -> None:
    """What a framework has made of the body is no callback: its signature could not be checked."""
    with pytest.raises(InvalidRequest) as raised:
        await CallbackReceiver(Listener()).receive(body)
    assert raised.value.argument == "body"


def test_a_secret_may_be_a_secret() -> None:
    """The path token may be wrapped like any other secret."""
    assert "CallbackReceiver" in repr(CallbackReceiver(Listener(), secret=Secret(SECRET)))


def test_blank_names_are_refused() -> None:
    """A blank name is refused, before the payment is tracked."""
    poller = Listener()
    with pytest.raises(InvalidRequest):
        CallbackReceiver(poller).track("T-1", " ")
    assert not poller.tracked
