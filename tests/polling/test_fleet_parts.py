"""The parts of a shared poller: local payments, subscriptions, and taking over from another process."""

import json
import math
from datetime import UTC, datetime, timedelta

import pytest

from mobilemoney_async import Schedule, Transaction, WaitTimeout
from mobilemoney_async.contract.codec import reader
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.scoring import Page, SingleLookup
from mobilemoney_async.polling.sharing import StatusUpdate, Subscription, Subscriptions
from mobilemoney_async.polling.tracked import TrackedPayment, TrackedPayments
from tests.contract import samples

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def row(number: str = "x", status: str = "PENDING") -> Transaction:
    return reader(Transaction)(json.dumps(samples.transaction(id=number, status=status)).encode())


def followed(
    number: str = "x", follower: str = "a", seconds: float = 60, *, has_deadline: bool = False
) -> Subscription:
    return Subscription(
        transaction_id=number,
        follower=follower,
        is_new=True,
        tracked_at=NOON,
        until=NOON + timedelta(seconds=seconds),
        has_deadline=has_deadline,
    )


def test_a_payment_is_tracked_until_the_last_poller_has_given_it_up() -> None:
    """Each poller's word counts for itself."""
    subscriptions = Subscriptions()
    assert subscriptions.take(followed(follower="a"), NOON)
    assert subscriptions.take(followed(follower="b"), NOON)
    assert subscriptions.take(followed(follower="a", seconds=-1), NOON)
    assert list(subscriptions) == ["x"]
    assert not subscriptions.take(followed(follower="b", seconds=0), NOON)
    assert list(subscriptions) == []
    assert not subscriptions.take(followed(seconds=-1), NOON)


def test_subscriptions_of_dead_processes_expire() -> None:
    """A subscription that is not renewed expires."""
    subscriptions = Subscriptions()
    subscriptions.take(followed("x", "a", 10), NOON)
    subscriptions.take(followed("x", "b", 20), NOON)
    subscriptions.take(followed("y", "a", 10), NOON)
    assert subscriptions.expired(NOON + timedelta(seconds=10)) == ["y"]
    assert subscriptions.expired(NOON + timedelta(seconds=20)) == ["x"]
    assert len(subscriptions) == 0


def test_an_open_state_is_sent_once_for_a_poller_with_a_deadline() -> None:
    """It costs a row of the database, so it is written only when it is new and a poller with a deadline needs it."""
    pending = StatusUpdate(transaction_id="x", transaction=row())
    odd = StatusUpdate(transaction_id="x", transaction=row(status="ODD"))
    subscriptions = Subscriptions()
    subscriptions.take(followed(), NOON)
    assert not subscriptions.is_wanted(pending)
    subscriptions.take(followed(has_deadline=True), NOON)
    assert [subscriptions.is_wanted(each) for each in (pending, pending, odd, odd)] == [True, False, True, False]
    subscriptions.end("x")
    assert not subscriptions.is_wanted(pending)


def test_one_s_own_payments_are_given_up_in_time() -> None:
    """Those that ended before, or were tracked again since, are not."""
    local = TrackedPayments()

    def add(number: str, now: float, deadline: float) -> TrackedPayment:
        payment = TrackedPayment(number, tracked_at=now, due=math.inf, deadline=deadline, is_new=False)
        local.add(payment)
        return payment

    payments = {each: add(each, 0.0, at) for each, at in (("late", 30.0), ("early", 10.0), ("ended", 5.0))}
    never = add("never", 0.0, math.inf)
    local.remove(payments["ended"])
    assert local.deadlines.first() == 10
    local.remove(payments["early"])
    assert not local.has(payments["early"])
    early = add("early", 8.0, 20.0)
    assert (local.has(payments["early"]), local.has(early)) == (False, True)
    assert local.give_up(19.0) == []
    shown = row("early")
    for payment in (early, never):
        payment.keep(shown)
    assert never.transaction is None, "kept only where it is needed"
    (ending,) = local.give_up(20.0)
    assert isinstance(ending.error, WaitTimeout)
    assert (ending.transaction_id, ending.error.transaction) == ("early", shown)
    assert str(ending.error) == "not final after 12 s: PENDING"
    assert {each.id for each in local} == {"late", "never"}


@pytest.mark.parametrize(
    ("schedule", "age", "is_new", "due"),
    [
        *(
            (Schedule(), age, True, due)
            for age, due in ((0.0, 1.0), (0.9, 0.1), (2.0, 0.0), (4.0, 0.0), (60.0, 14.887))
        ),
        pytest.param(Schedule(), 0.01, False, 0.0, id="just tracked elsewhere"),
        pytest.param(Schedule(first=20, factor=1, cap=20), 4e7, False, 0.0, id="a year of constant pauses"),
    ],
)
def test_the_schedule_goes_on_from_another_process(schedule: Schedule, age: float, is_new: bool, due: float) -> None:
    """A payment of a certain age has the looks and pauses of its age; looks of the last seconds are made up for.

    The time that it took to hear of an id does not put off its first look.
    """
    planner = Planner(schedule)
    planner.track("x", 4e7, is_new=is_new, deadline=math.inf, tracked_at=4e7 - age)
    assert max(0.0, planner.ready_at() - 4e7) == pytest.approx(due, abs=0.001 if age < 100 else 20)


def test_a_forgotten_payment_costs_no_more_requests() -> None:
    """Also while a request for it is in flight: its answer then means nothing."""
    planner = Planner(Schedule())
    planner.track("x", 0.0, is_new=False, deadline=math.inf)
    assert planner.choose(0.0) == Page(1)
    asked = planner.send(SingleLookup("x"), 0.0)
    planner.forget("x")
    planner.forget("x")
    assert len(planner) == 0
    assert planner.choose(1.0) is None
    assert planner.take_transaction(asked, row(), 1.0) == []
    assert planner.track("x", 2.0, is_new=False, deadline=math.inf)
