"""Nothing refused, absent or paid without evidence, whatever the service answers to a create and shows in its list.

Two tables. One has the answers to a create while the payment is made or not, the other the ways in which a list that
the contract allows may behave. Both are gone through with collections and disbursements, on both databases, and with
`resend_absent_collections` on and off. The laws are those of `second_world`.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import attrs
import httpx
import pytest

from mobilemoney_async import Acknowledgement, APIError, AsyncClient, OutcomeUnknown, PaymentState
from tests.payments.second_world import (
    DAY,
    GRACE,
    HOUR,
    KINDS,
    MINUTE,
    RESEND,
    TYPES,
    Order,
    World,
    last_again,
    make_world,
    masked,
    national,
    number,
    outcome,
    reshuffled,
)
from tests.payments.service import on_sqlite
from tests.support.scale import soak
from tests.support.second_service import ListBehaviour, Row, error


def around(name: str, count: int = 2, *, kinds: Sequence[str] = KINDS) -> list[Order]:
    """Return orders that meet no fault, whose numbers and amounts are their own."""
    first = {"before": 100, "between": 200, "after": 300}[name]
    return [
        Order(f"{name} {kind} {each}", kind, number(first + 10 * place + each), 1000 + first + each)
        for place, kind in enumerate(kinds)
        for each in range(count)
    ]


# Answers to a create


def body(status: int, content: str) -> httpx.Response:
    return httpx.Response(status, text=content)


PAGE = "<html><body>Forbidden</body></html>"
# Some of each verdict: which status and body has which one, `tests/calls/test_refusals.py` shows of all.
SOFT: dict[str, Callable[[], httpx.Response]] = {
    "400 TRANSACTION_TIMEOUT": partial(error, 400, "TRANSACTION_TIMEOUT"),
    "403 without a code": partial(error, 403, None),
    "429 with an unknown code": partial(error, 429, "SOMETHING_ELSE"),
    "401 of a proxy": partial(body, 401, PAGE),
}
UNKNOWN: dict[str, Callable[[], httpx.Response]] = {
    "200 with an unknown code": partial(error, 200, "SOMETHING_ELSE"),
    "409 with an error body": partial(error, 409, "SOMETHING_ELSE"),
    "404 TRANSACTION_NOT_FOUND": partial(error, 404, "TRANSACTION_NOT_FOUND"),
    "502 page": partial(body, 502, PAGE),
    "200 cut off": partial(body, 200, '{"status": "success", "transaction_id": "t-0'),
    "302": lambda: httpx.Response(302, headers={"location": "https://second.example/login"}),
}
CERTAIN: dict[str, Callable[[], httpx.Response]] = {
    "RATE_LIMIT_EXCEEDED": partial(error, 429, "RATE_LIMIT_EXCEEDED", retry_after=1),
    "insufficient_permissions": partial(error, 403, "insufficient_permissions"),
}
ANSWERS = {**SOFT, **UNKNOWN}


@attrs.frozen(kw_only=True)
class Asked:
    """Order that met an answer of the table."""

    answer: str
    order: Order
    made: bool


def asked() -> list[Asked]:
    """Return an order of each kind for each answer that was made, and one for each answer that was not made."""
    cases = [(answer, kind, True) for answer in ANSWERS for kind in KINDS]
    cases += [(answer, KINDS[place % 2], False) for place, answer in enumerate(ANSWERS)]
    return [
        Asked(
            answer=answer,
            order=Order(f"{answer}, {kind}, {'made' if made else 'not made'}", kind, number(400 + each), 5000),
            made=made,
        )
        for each, (answer, kind, made) in enumerate(cases)
    ]


@pytest.mark.slow
@RESEND
async def test_no_answer_to_a_create_makes_a_payment_twice(store_url: str, resend: bool) -> None:
    """Whatever the answer to a create was, a payment that was made is found, and one that was not can be made.

    Some are tried again at once and later, the others only later.
    """
    world = make_world(store_url, resend=resend)
    wrong: list[str] = []
    async with world.client() as client:
        await world.pay(client, around("before"))
        await anyio.sleep(5 * MINUTE)
        for place, each in enumerate(asked()):
            make = ANSWERS[each.answer]
            said = await world.answered(client, each.order, lambda request, payment: make(), made=each.made)  # noqa: B023
            expected = APIError if each.answer in SOFT else OutcomeUnknown
            if not isinstance(said, expected):
                wrong.append(f"{each.order.key}: {said!r}")
            if each.made and place % 3 == resend:
                await world.attempt(client, each.order)
            await anyio.sleep(MINUTE)
        await world.hold(client)
        assert not wrong
        await world.pay(client, around("after"))
        await world.reconcile(client, GRACE + MINUTE, GRACE + MINUTE)
        for each in asked():
            await _try_again(world, client, each, wrong)
        assert not wrong, "\n".join(wrong)
        await world.come_to_rest(client)
        await world.hold(client, at_end=True)


async def _try_again(world: World, client: AsyncClient, each: Asked, wrong: list[str]) -> None:
    key, again = each.order.key, await world.attempt(client, each.order)
    sends = each.answer in SOFT or (world.resend and each.order.kind == "collections")
    if each.made or sends:
        ids = [again.transaction_id] if isinstance(again, Acknowledgement) else []
        if len(ids) != 1 or world.made(key) != ids or world.posts(key) != (1 if each.made else 2):
            wrong.append(f"{key}: sent {world.posts(key)} times, is {world.made(key)}, now {again!r}")
    elif not isinstance(again, OutcomeUnknown) or world.posts(key) != 1:
        wrong.append(f"{key}: sent {world.posts(key)} times, now {again!r}")
    elif outcome(await world.get(client, key)) != "absent":
        wrong.append(f"{key}: is {(await world.get(client, key)).state}, not absent")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@on_sqlite
async def test_a_refusal_of_section_7_is_certain(world: World, client: AsyncClient, kind: str) -> None:
    """After a code that the contract shows for a refusal, the key is used again at once, without a look."""
    for place, (name, make) in enumerate(CERTAIN.items()):
        order = Order(name, kind, number(place))
        refused = await world.answered(client, order, lambda request, payment: make(), made=False)  # noqa: B023
        assert isinstance(refused, APIError), name
        assert refused.outcome == "refused"
        assert (await world.get(client, name)).state is PaymentState.REFUSED
        await anyio.sleep(MINUTE)
        again = await world.attempt(client, order)
        assert isinstance(again, Acknowledgement), name
    assert world.service.lists == 0
    await world.hold(client, at_end=True)


# Lists

Spelling = Callable[[Row], Any]


_TYPES = {"collection": "c2b", "disbursement": "b2c"}
# Of numbers; what is the same value is no other spelling.
SPELLINGS: dict[str, Spelling] = {
    "phones national": national,
    "phones masked": masked,
    "amounts with decimals, and other letters": lambda row: {**row, "amount": f"{row['amount']}.00", "currency": "tzs"},
}
FOUND, OPEN, ABSENT = "found", "open", "absent"


@attrs.frozen(kw_only=True)
class Case:
    """Way in which a list behaves, while lost payments are looked for.

    Attributes:
        behaviour: The list, made when the search begins.
        made: How payments that exist may be seen then; empty for a service that has none.
        missing: How payments that do not exist may be seen then.
        known: The kinds of which the store knows payments around them.
        age: Their age in seconds when the search begins.
        pauses: Seconds before each search.
    """

    behaviour: Callable[[World], ListBehaviour]
    made: set[str]
    missing: set[str]
    known: Sequence[str] = tuple(KINDS)
    age: float = HOUR
    pauses: tuple[float, ...] = (0.0, 2.0, GRACE + 1, HOUR)


def case(made: str, missing: str, /, **options: Any) -> Case:
    """Return a case by the words for its results, and by the options of the list and of the case."""
    own = {name: options.pop(name) for name in ("known", "age", "pauses") if name in options}
    behaviour = options.pop("behaviour", lambda world: ListBehaviour(**options))
    return Case(behaviour=behaviour, made={*made.split()}, missing={*missing.split()}, **own)


def three_payments(world: World) -> ListBehaviour:
    """Return a list that shows the newest three payments alone, on whatever page is asked for."""
    service = world.service
    return ListBehaviour(
        page_size=3, beyond=last_again, hide=lambda payment: payment.number <= len(service.payments) - 3
    )


def refuse_page(page: int, last: int) -> int:
    raise LookupError


def stranger(created_at: str = "2026-01-02T12:05:00Z") -> Row:
    """Return a row of the list that is nothing of ours, and cannot be read."""
    return {"id": "x-1", "type": "collection", "amount": "abc", "created_at": created_at}


def spoil(row: Row) -> Any:
    """Make the rows unreadable that a search is about."""
    return {**row, "amount": "five thousand"} if row["amount"].startswith("5") else row


LISTS: dict[str, Case] = {
    "pages of three": case(FOUND, ABSENT, page_size=3),
    "pages of three, oldest first": case(FOUND, ABSENT, page_size=3, newest_first=False),
    "by number": case(FOUND, "absent open", page_size=3, order=lambda payment: payment.phone_number),
    # No comparison is made with this list, and before one no payment is looked for: it says no reason either.
    "in another order on each page": case("found open UNKNOWN", "absent open UNKNOWN", page_size=3, **reshuffled()),
    "last page shown again": case(FOUND, "absent open", page_size=3, beyond=last_again),
    "the newest three on each page": case("found open", "absent open", behaviour=three_payments),
    "no page behind the last": case(FOUND, "absent open", page_size=4, beyond=refuse_page),
    "total_count 0": case("found open", "absent open", page_size=3, total_count=lambda count: 0),
    "total_count capped": case("found open", "absent open", page_size=3, total_count=lambda count: min(count, 3)),
    "total_count too large": case("found open", "absent open", page_size=3, total_count=lambda count: count + 50),
    "empty for ten seconds": case(
        OPEN,
        OPEN,
        pauses=(0.0, 2.0),
        behaviour=lambda world: ListBehaviour(empty_until=world.utcnow() + timedelta(seconds=10)),
    ),
    "empty for ten seconds, nothing known": case(
        OPEN,
        OPEN,
        known=(),
        pauses=(0.0, 2.0),
        behaviour=lambda world: ListBehaviour(empty_until=world.utcnow() + timedelta(seconds=10)),
    ),
    "empty for hours": case(
        OPEN, OPEN, behaviour=lambda world: ListBehaviour(empty_until=world.utcnow() + timedelta(hours=9))
    ),
    "a day where no from is sent, after three days": case(FOUND, ABSENT, age=3 * DAY, default_days=1),
    "a day whatever is sent, after three days": case(OPEN, OPEN, age=3 * DAY, most_days=1),
    "ten minutes behind": case(OPEN, OPEN, age=GRACE + 1, pauses=(0.0, 2.0, 80.0), lag=timedelta(minutes=10)),
    "a day behind": case(OPEN, OPEN, lag=timedelta(days=1)),
    "collections alone": case("found open", "absent open", hide=lambda payment: payment.type != "collection"),
    "disbursements alone": case("found open", "absent open", hide=lambda payment: payment.type == "collection"),
    **{
        f"{kind} alone, and nothing else is known": case(
            "found open", "absent open", known=(kind,), hide=lambda payment, shown=kind: payment.type != TYPES[shown]
        )
        for kind in KINDS
    },
    **{f"{name}, taught": case(FOUND, "absent open", spell=spell) for name, spell in SPELLINGS.items()},
    "phones masked, not taught": case("found open", OPEN, known=(), spell=masked),
    "types c2b and b2c": case(OPEN, OPEN, spell=lambda row: {**row, "type": _TYPES[row["type"]]}),
    "phones hidden": case(OPEN, OPEN, spell=lambda row: {**row, "phone_number": "***"}),
    "every other phone national": case(
        "found open", "absent open", spell=lambda row: national(row) if row["id"][-1] in "02468" else row
    ),
    # A new life of the store, in which nothing was made yet, remembers nothing: a disbursement is then an operator's.
    "nothing known": case("found open", OPEN, known=()),
    "nothing there": case("", OPEN, known=()),
    "a stranger's row that cannot be read": case(FOUND, OPEN, extra=[stranger()]),
    "a stranger's row that is no object": case(FOUND, OPEN, extra=[None, 7]),
    "a stranger's row from long ago": case(FOUND, "absent open", extra=[stranger(created_at="2025-11-02T12:05:00Z")]),
    "the payments' own rows cannot be read": case(OPEN, OPEN, spell=spoil),
    "rows of another merchant": case(FOUND, "absent open", all_merchants=True),
}


def lost(kind: str, *, made: bool) -> Order:
    """Return the order of a case whose answer is lost."""
    place = KINDS.index(kind) + (0 if made else 2)
    amount = 5000 + 100 * place if made else 7000 + 100 * place
    return Order(f"lost {kind} {'made' if made else 'missing'}", kind, number(700 + 50 * place), amount)


# Each list in all four worlds at full scale; by default in one that sends again, every fourth on PostgreSQL.
_WORLDS = [
    *(("trio", store, True) for store in ("sqlite", "postgresql")),
    *(("asyncio", store, False) for store in ("sqlite", "postgresql")),
]
EACH_LIST = pytest.mark.parametrize(
    ("anyio_backend", "store_url", "resend", "name"),
    [
        pytest.param(
            *each, name, id=f"{name}-{each[1]}{'-resend' * each[2]}", marks=[pytest.mark.soak] * (not is_usual)
        )
        for number, name in enumerate(LISTS)
        for place, each in enumerate(_WORLDS)
        if (is_usual := place == (number % 4 == 1)) or soak(4) >= 4
    ],
    indirect=["anyio_backend", "store_url"],
)


@pytest.mark.slow
@EACH_LIST
async def test_no_list_makes_a_payment_absent_that_exists(store_url: str, resend: bool, name: str) -> None:
    """However the list behaves, what exists is found or stays openly unknown, and is never sent again."""
    world, case = make_world(store_url, resend=resend), LISTS[name]
    world.service.make("collection", number(800), "900", merchant_id="merchant-2")
    orders = {made: [lost(kind, made=made) for kind in KINDS if case.made or not made] for made in (True, False)}
    async with world.client() as client:
        await world.pay(client, around("before", kinds=case.known))
        await anyio.sleep(4 * MINUTE)  # in one life of the store, which remembers what was made in it
        for made, some in orders.items():
            for order in some:
                await world.lose(client, order, made=made)
                await anyio.sleep(10)
        await anyio.sleep(4 * MINUTE)
        await world.pay(client, around("after", kinds=case.known))
        await anyio.sleep(case.age)
        world.service.list = case.behaviour(world)
        with anyio.fail_after(30 * DAY):
            await world.reconcile(client, *case.pauses)
        for made, allowed in ((True, case.made), (False, case.missing)):
            for order in orders[made]:
                assert outcome(await world.get(client, order.key)) in allowed, order.key
        await world.hold(client)
        for order in [*orders[True], *orders[False]]:
            await world.attempt(client, order)
        await world.hold(client)
        await world.come_to_rest(client)
        await world.hold(client, at_end=True)
        for order in orders[True]:
            await _is_found_in_the_end(world, client, order)
        for order in orders[False]:
            await _is_made_in_the_end(world, client, order)
        await world.hold(client, at_end=True)


@pytest.mark.slow
@RESEND
async def test_a_list_that_hides_one_payment_may_hide_another(store_url: str, resend: bool) -> None:
    """All payments near the lost one are shown, as by a list in another order that is cut, but not one of that day."""
    world, kind = make_world(store_url, resend=resend), KINDS[resend]
    order = lost(kind, made=True)
    async with world.client() as client:
        far = Order("far", kind, number(650), 650)
        await world.pay(client, [far])
        await anyio.sleep(5 * MINUTE)
        await world.pay(client, around("before", count=4, kinds=[kind]))
        await world.lose(client, order, made=True)
        await anyio.sleep(5 * MINUTE)
        await world.pay(client, around("after", count=4, kinds=[kind]))
        await anyio.sleep(HOUR)
        world.service.list = ListBehaviour(hide=lambda payment: payment.owner in {order.key, far.key})
        await world.reconcile(client, 0.0, GRACE + 1, HOUR)
        record = await world.get(client, order.key)
        assert (record.state, record.reason) == (PaymentState.UNKNOWN, "the list does not show payment 'far'")
        assert isinstance(await world.attempt(client, order), OutcomeUnknown)
        await world.come_to_rest(client)
        await world.hold(client, at_end=True)
        await _is_found_in_the_end(world, client, order)


async def _is_found_in_the_end(world: World, client: AsyncClient, order: Order) -> None:
    """Check that the next create under the key returns the payment, or that an operator can decide."""
    again = await world.attempt(client, order)
    if not isinstance(again, Acknowledgement):
        record = await world.get(client, order.key)
        assert world.made(order.key)[0] in record.candidates, record
        await client.payments.identify(order.key, world.made(order.key)[0], note="Asha compared the receipts")
        again = await world.attempt(client, order)
    assert isinstance(again, Acknowledgement)
    assert world.made(order.key) == [again.transaction_id]
    assert world.posts(order.key) == 1


async def _is_made_in_the_end(world: World, client: AsyncClient, order: Order) -> None:
    """Check that a payment which was never made can be made, after an operator's word if that is needed."""
    again = await world.attempt(client, order)
    if not isinstance(again, Acknowledgement):
        assert isinstance(again, OutcomeUnknown)
        await anyio.sleep(1)
        await world.confirm(client, order.key)
        await anyio.sleep(1)
        again = await world.attempt(client, order)
    assert isinstance(again, Acknowledgement), again
    assert world.made(order.key) == [again.transaction_id]
    assert world.posts(order.key) == 2
