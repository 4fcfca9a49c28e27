"""Requests of the planner, and its results from the answers: against a service on paper, in no time."""

import math
import statistics

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobilemoney_async import Schedule, TransactionNotFound, TransactionStatus
from mobilemoney_async.errors import InvalidTransactionId
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.scoring import Page, SingleLookup
from tests.support.paper import ListOrder, Paper, PaperService, drive
from tests.support.scale import examples

ADVISED = Schedule()
LOOKS = [sum(ADVISED.delay(look) for look in range(number + 1)) for number in range(60)]


def stuck(number: int, created_at: float = 0.0) -> Paper:
    return Paper(id=f"txn-{number}", created_at=created_at)


def test_a_payment_alone_has_the_advised_schedule() -> None:
    """One payment costs the requests of the contract's schedule: looks after 1 s, 2.5 s, 4.75 s, …, then every 30 s."""
    service = PaperService()
    service.add(stuck(1))
    asked = drive(Planner(ADVISED), service, until=300.0, interval=0.0).asked
    assert [at for at, _ in asked] == pytest.approx([look for look in LOOKS if look <= 300], abs=0.01)


def test_a_page_answers_for_all_that_it_shows() -> None:
    """Thirty payments created together cost hardly more than one."""
    service = PaperService()
    for number in range(30):
        service.add(attrs.evolve(stuck(number), ends_at=20.0))
    done = drive(Planner(ADVISED), service, until=60.0)
    assert len(done.endings) == 30
    assert len(done.asked) <= len([look for look in LOOKS if look <= 60])


def test_a_look_is_saved_until_it_tells_something() -> None:
    """Once endings are known to come at one age, few looks come before it and many at it, no more than advised."""
    service = PaperService().filled(40, lambda number: (50.0 * number, 50.0 * number + 31))
    done = drive(Planner(ADVISED), service, until=3000.0)
    asked = [at % 50 for at, _ in done.asked if at > 1000]
    lags = [at - service.payments[name].ends_at for name, (at, _) in done.endings.items() if at > 1000]
    assert len(lags) == 20
    assert sum(lags) / len(lags) < 2, "as advised: 1.2 s by luck, 9 s at the worst age"
    for look, allowed in enumerate(LOOKS[:7]):
        assert sum(at < allowed - 0.01 for at in asked) <= 20 * look, "ahead of the schedule"
    assert len(asked) <= 20 * 7


@pytest.mark.parametrize("order", ["newest-first", "oldest-first"])
def test_the_order_of_the_list_is_noticed(order: ListOrder) -> None:
    """In either order, payments at the end of a long list cost pages, not a lookup each."""
    service = PaperService(order=order).filled(950, lambda number: (-10_000.0 + number, -9_000.0), "old")
    service.filled(40, lambda number: (float(number), number + 15.0))
    track = {f"txn-{number}": float(number) for number in range(40)}
    done = drive(Planner(ADVISED), service, until=120.0, track=track)
    assert len(done.endings) == 40
    assert max(at - service.payments[name].ends_at for name, (at, _) in done.endings.items()) < 12
    assert len(done.lookups()) <= 5


def test_a_shuffled_list_loses_nothing() -> None:
    """A list in no order at all is no help, and no harm."""
    service = PaperService(order="none", page_size=10).filled(50, lambda number: (float(number), number + 15.0))
    done = drive(Planner(ADVISED), service, until=300.0)
    assert len(done.endings) == 50


def test_a_list_that_lags_is_passed_over() -> None:
    """Payments that the list does not show yet are asked for by their ids."""
    service = PaperService(list_lag=60.0).filled(20, lambda number: (3.0 * number, 3.0 * number + 15))
    done = drive(Planner(ADVISED), service, until=300.0)
    lags = [at - service.payments[name].ends_at for name, (at, _) in done.endings.items()]
    assert len(lags) == 20
    assert sum(lags) / len(lags) < 10


@pytest.mark.parametrize(("stale", "bearable"), [(20.0, 15.0), (60.0, 30.0), (1e9, 120.0)])
def test_a_list_with_old_states_is_found_out(stale: float, bearable: float) -> None:
    """That a page shows a payment as open may be old news: lookups tell, also where pages never show an ending."""
    service = PaperService(stale=stale).filled(40, lambda number: (5.0 * number, 5.0 * number + 15))
    done = drive(Planner(ADVISED), service, until=900.0)
    assert len(done.endings) == 40
    late = [done.endings[f"txn-{number}"][0] - service.payments[f"txn-{number}"].ends_at for number in range(20, 40)]
    assert sum(late) / len(late) < bearable


def test_a_few_ids_in_a_long_list_are_looked_up() -> None:
    """Where pages would show little, the sweep ends, and each id costs one lookup."""
    service = PaperService().filled(5000, lambda number: (-9000.0 + number, -1000.0))
    wanted = {f"txn-{number}": 0.0 for number in range(0, 1000, 100)}
    done = drive(Planner(ADVISED), service, until=1000.0, track=wanted, is_new=False)
    assert len(done.endings) == 10
    assert len(done.asked) <= 15


@pytest.mark.parametrize(
    ("newer", "until", "looks", "late"),
    [([-1.0], 125.0, [0, 30, 60, 90, 120], 0.5), ([], 22.0, [0, 1.5, 3.75, 7.1, 12.2, 19.8], 0.1)],
    ids=["an hour old by a newer row", "of an age that nothing tells"],
)
def test_a_payment_has_the_pauses_of_its_age(newer: list[float], until: float, looks: list[float], late: float) -> None:
    """An old one is asked about every half minute; the pauses of an unknown age begin when it is tracked."""
    service = PaperService()
    for number, created_at in enumerate([-3600.0, *newer], 1):
        service.add(stuck(number, created_at=created_at))
    done = drive(Planner(ADVISED), service, until=until, track={"txn-1": 0.0}, is_new=False)
    assert [at for at, _ in done.asked] == pytest.approx(looks, abs=late)


@pytest.mark.slow
def test_ids_of_new_payments_are_tracked_as_closely_as_acknowledgements() -> None:
    """Ids that are tracked at once end as early: they are expected at the end of the list."""
    late = {}
    for is_new in (False, True):
        service = PaperService()
        for number in range(150):  # at distances that are no multiple of the planner's
            created_at, age = 2.037 * number, 10 + number * 0.61 % 10
            service.add(Paper(id=f"txn-{number}", created_at=created_at, ends_at=created_at + age))
        done = drive(Planner(ADVISED), service, until=400.0, is_new=is_new)
        assert len(done.endings) == 150
        late[is_new] = statistics.mean(at - service.payments[name].ends_at for name, (at, _) in done.endings.items())
    assert late[False] <= 1.1 * late[True]


def test_old_ids_among_new_ones_are_still_found_by_pages() -> None:
    """Also a thousand at once, where every id before was that of a new payment."""
    service, planner = PaperService(), Planner(ADVISED)
    service.filled(2000, lambda number: (-4000.0 + number, -1000.0), "old")
    new = {f"new-{number}": 2.0 * number for number in range(30)}
    for name, at in new.items():
        service.add(Paper(id=name, created_at=at, ends_at=at + 5))
    old = {f"old-{number}": 70.0 for number in range(0, 2000, 2)}
    done = drive(planner, service, until=400.0, track={**new, **old}, is_new=False)
    assert len(done.endings) == 1030
    assert sum(at >= 70 for at, _ in done.asked) <= 40


def test_a_payment_that_was_shown_is_never_not_found() -> None:
    """A lookup that denies a payment which a page has shown is not believed."""
    planner = Planner(ADVISED)
    service = PaperService()
    service.add(stuck(1))
    drive(planner, service, until=10.0)
    sent = planner.send(SingleLookup("txn-1"), 500.0)
    assert planner.refuse(sent, TransactionNotFound("no", status_code=404), 500.0) == []
    assert planner.refuse(sent, InvalidTransactionId("no", status_code=400), 500.0) == []
    assert "txn-1" in planner


def test_a_payment_that_was_given_up_may_be_tracked_again() -> None:
    """An answer in flight for the first tracking does not harm the second."""
    planner = Planner(ADVISED)
    planner.track("txn-1", 0.0, is_new=True, deadline=2.0)
    sent = planner.send(Page(1), 1.5)
    planner.give_up(2.0)
    planner.track("txn-1", 2.0, is_new=False, deadline=math.inf)
    service = PaperService()
    service.add(stuck(1))
    assert planner.take_page(sent, service.page(1, 1.5), 2.1) == []
    assert "txn-1" in planner
    planner.fail(planner.send(Page(1), 3.0), 4.0, is_unreadable=False)
    assert planner.ready_at() == 5.0


def test_faults_are_followed_by_growing_pauses() -> None:
    """A service in trouble is asked less and less, and at full speed again once it answers."""
    planner = Planner(ADVISED)
    planner.track("txn-1", 0.0, is_new=True, deadline=math.inf)
    now, pauses = 1.0, []
    for number in range(8):
        request = planner.choose(now)
        assert isinstance(request, SingleLookup if number % 2 else Page), "the trouble may be the list's alone"
        planner.fail(planner.send(request, now), now, is_unreadable=False)
        pauses.append(planner.ready_at() - now)
        now = planner.ready_at()
    assert pauses[:3] == pytest.approx([1, 2.25, 4], rel=0.5)
    assert max(pauses) <= 60
    service = PaperService()
    service.add(Paper(id="txn-1", created_at=0.0, ends_at=2.0))
    assert len(drive(planner, service, until=now + 60, start=now).endings) == 1


def test_four_requests_that_fail_together_are_one_fault() -> None:
    """Requests that were in flight when the trouble began do not lengthen the pause."""
    planner = Planner(ADVISED)
    for number in range(4):
        planner.track(f"txn-{number}", 0.0, is_new=True, deadline=math.inf)
    for sent in [planner.send(SingleLookup(f"txn-{number}"), 1.0) for number in range(4)]:
        planner.fail(sent, 2.0, is_unreadable=False)
    assert planner.ready_at() == 3.0


def test_without_a_list_ids_do() -> None:
    """Where the list always fails, payments are looked up by their ids at once, and the list is tried less and less."""
    planner = Planner(ADVISED)
    service = PaperService()
    now, pages, late = 0.0, 0, []
    while now < 600:
        if now % 10 == 0 and now < 300:
            service.add(Paper(id=f"txn-{now}", created_at=now, ends_at=now + 20))
            planner.track(f"txn-{now}", now, is_new=True, deadline=math.inf)
        request = planner.choose(now)
        if isinstance(request, Page):
            pages += 1
            planner.fail(planner.send(request, now), now, is_unreadable=False)
        elif request is not None:
            sent = planner.send(request, now)
            row = service.get(request.transaction_id, now)
            late += [now - service.payments[row.id].ends_at for _ in planner.take_transaction(sent, row, now)]
        now += 1
    assert len(late) == 30
    assert max(late) < 12, "the first one too: no later than its schedule alone would make it"
    assert pages <= 15


def test_a_list_that_has_answered_again_is_away_for_a_second_after_its_next_fault() -> None:
    """Faults of this morning do not keep it away in the afternoon."""
    planner, now = Planner(ADVISED), 1.0
    service = PaperService().filled(40, lambda number: (0.0, math.inf))
    for number in range(40):
        planner.track(f"txn-{number}", 0.0, is_new=True, deadline=math.inf)
    for _ in range(6):
        planner.fail(planner.send(Page(1), now), now, is_unreadable=False)
        now += 400
    planner.take_page(planner.send(Page(1), now), service.page(1, now), now)
    now += 60
    planner.fail(planner.send(Page(1), now), now, is_unreadable=False)
    assert planner.choose(now + 1) == SingleLookup("txn-0")
    planner.take_transaction(planner.send(SingleLookup("txn-0"), now + 1), service.get("txn-0", now + 1), now + 1)
    assert planner.choose(now + 2) == Page(1)


def test_without_lookups_the_list_does() -> None:
    """Where lookups always fail, pages show the payments all the same."""
    planner = Planner(ADVISED)
    service = PaperService().filled(5, lambda number: (0.0, 30.0))
    for number in range(5):
        planner.track(f"txn-{number}", 0.0, is_new=False, deadline=math.inf)
    planner.fail(planner.send(SingleLookup("txn-0"), 0.0), 0.1, is_unreadable=False)
    now, ended = 1.0, 0
    while now < 200 and len(planner):
        request = planner.choose(now)
        if isinstance(request, Page):
            ended += len(planner.take_page(planner.send(request, now), service.page(request.number, now), now))
        elif request is not None:
            planner.fail(planner.send(request, now), now, is_unreadable=False)
        now += 1
    assert ended == 5
    assert now < 60


def test_a_page_that_cannot_be_read_does_not_hold_up_its_payments() -> None:
    """One malformed row can spoil a page for good: its payments are looked up."""
    planner = Planner(ADVISED)
    service = PaperService().filled(5, lambda number: (0.0, 30.0))
    drive(planner, service, until=5.0)
    now, ended = 6.0, 0
    while now < 200 and len(planner):
        request = planner.choose(now)
        if isinstance(request, Page):
            planner.fail(planner.send(request, now), now, is_unreadable=True)
        elif request is not None:
            sent = planner.send(request, now)
            row = service.get(request.transaction_id, now)
            ended += len(planner.take_transaction(sent, row, now))
        now += 1
    assert ended == 5
    assert now < 90


def test_one_page_answers_all_hints() -> None:
    """Five payments that end together and are hinted at cost one page, not a lookup each."""
    planner = Planner(ADVISED)
    service = PaperService().filled(5, lambda number: (float(number), 70.0))
    drive(planner, service, until=69.5)
    for number in range(5):
        assert planner.hint(f"txn-{number}", 70.3)
    assert not planner.hint("txn-1", 72.0), "it is on the list already, and takes no place of the allowance"
    done = drive(planner, service, until=71.0, start=70.3)
    assert [request for _, request in done.asked] == [Page(1)]
    assert len(done.endings) == 5


@pytest.mark.slow
def test_where_callbacks_arrive_looks_are_saved() -> None:
    """Once hints announce the endings, payments cost fewer requests; without hints again, they are still found."""
    planner, service = Planner(ADVISED), PaperService()
    requests, lags = [], []
    for number in range(120):
        name, now = f"txn-{number}", 100.0 * number
        service.add(Paper(id=name, created_at=now, ends_at=now + 20 + number % 7))
        done = drive(planner, service, until=service.payments[name].ends_at + 0.3, track={name: now}, start=now)
        at = service.payments[name].ends_at + 0.3
        if number < 80:
            planner.hint(name, at)
        later = drive(planner, service, until=now + 95, track={}, start=at)
        requests.append(len(done.asked) + len(later.asked))
        lags.append((done.endings | later.endings)[name][0] - service.payments[name].ends_at)
    assert statistics.mean(requests[60:80]) < 0.7 * statistics.mean(requests[:10])
    assert max(lags[60:80]) < 1.5
    assert max(lags[80:]) <= 31, "no payment is left alone for longer than the longest pause"
    assert statistics.mean(lags[110:]) < 5


def test_forged_hints_cost_little() -> None:
    """A thousand hints in ten seconds cost as many requests as five at once and one a second, and unknown ids none."""
    planner = Planner(ADVISED)
    service = PaperService(page_size=1)  # the worst case: no page shows two of them
    for number in range(1000):
        service.add(stuck(number, created_at=float(number) / 100))
    drive(planner, service, until=20.0, interval=0.005)
    believed = 0
    for tick in range(1000):
        assert not planner.hint(f"forged-{tick}", 30 + tick / 100)
        believed += planner.hint(f"txn-{tick}", 30 + tick / 100)
    assert believed == 5 + 9


def test_hints_of_one_payment_leave_the_allowance_to_others() -> None:
    """A customer who does not approve, and sends callbacks about himself, holds up nobody's outcome."""
    planner, service = Planner(ADVISED), PaperService().filled(2, lambda number: (float(number), math.inf))
    drive(planner, service, until=20.0)
    believed = []
    for tick in range(40):
        at = 20 + tick / 2
        believed += [at] if planner.hint("txn-0", at) else []
        drive(planner, service, until=at + 0.5, start=at, track={})
    assert believed == [20.0, 30.0]
    assert all(planner.hint(f"txn-{number}", 40.0) for number in range(2))


def test_requests_on_their_way_are_not_made_again() -> None:
    """While an answer is awaited, another request asks for something else."""
    planner = Planner(ADVISED)
    for number in range(3):
        planner.track(f"txn-{number}", 0.0, is_new=True, deadline=math.inf)
    assert planner.choose(1.0) == Page(1)
    sent = planner.send(Page(1), 1.0)
    assert planner.ready_at() == math.inf, "the first page of an unknown list"
    service = PaperService()
    for number in range(3):
        service.add(stuck(number))
    planner.take_page(sent, service.page(1, 1.0), 1.1)
    assert planner.choose(2.5) == Page(1)
    planner.send(Page(1), 2.5)
    assert planner.choose(2.6) is None


def test_a_list_without_an_order_is_not_searched_on_one_page_for_ever() -> None:
    """Each page of such a list may seem to turn it: the search for bare ids goes on all the same."""
    service = PaperService(order="none", page_size=3)
    times = [(12.0, 12.0), (0.0, 0.0), (0.0, 0.0), (1.0, 5.0), (6.0, 7.0), (0.0, 0.0)]
    for number, (created_at, ends_at) in enumerate(times):
        service.add(Paper(id=f"txn-{number}", created_at=created_at, ends_at=ends_at, status=TransactionStatus.SUCCESS))
    for number, created_at in enumerate([0.0, 0.0, 0.0, 1.0]):
        service.add(Paper(id=f"stranger-{number}", created_at=created_at))
    track = {f"txn-{number}": created_at for number, (created_at, _) in enumerate(times)}
    done = drive(Planner(ADVISED), service, until=436.0, track=track, is_new=False, interval=0.1)
    assert done.endings.keys() == track.keys()
    assert len(done.asked) <= 20


@st.composite
def services(draw: st.DrawFn) -> PaperService:
    service = PaperService(
        order=draw(st.sampled_from(["newest-first", "oldest-first", "none"])),
        list_lag=draw(st.sampled_from([0.0, 0.0, 5.0, 60.0])),
        stale=draw(st.sampled_from([0.0, 0.0, 20.0])),
        page_size=draw(st.sampled_from([100, 10, 3])),
    )
    for number in range(draw(st.integers(1, 25))):
        created_at = draw(st.floats(0.0, 60.0))
        ends_at = created_at + draw(st.floats(0.0, 200.0))
        status = draw(st.sampled_from(list(TransactionStatus)[2:5]))
        service.add(Paper(id=f"txn-{number}", created_at=created_at, ends_at=ends_at, status=status))
    for number in range(draw(st.integers(0, 40))):
        service.add(Paper(id=f"stranger-{number}", created_at=draw(st.floats(-100.0, 100.0))))
    return service


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(services(), st.booleans(), st.sampled_from([0.1, 1.0, 10.0]))
def test_nothing_is_lost_and_nothing_asked_too_often(service: PaperService, is_new: bool, interval: float) -> None:
    """Whatever the list is like, every payment ends once, truly, in bounded time, at no more than the advised rate."""
    followed = {name: each for name, each in service.payments.items() if name.startswith("txn")}
    track = {name: each.created_at for name, each in followed.items()}
    until = 400.0 + 60 * interval * len(followed)
    done = drive(Planner(ADVISED), service, until=until, track=track, is_new=is_new, interval=interval)

    assert done.endings.keys() == followed.keys()
    for name, (at, ending) in done.endings.items():
        assert ending.transaction is not None
        assert ending.transaction.status == followed[name].status
        assert at >= followed[name].ends_at
    for name, each in followed.items():
        lookups = done.lookups(name)
        first = 0.0 if is_new else -LOOKS[0]
        for look, at in enumerate(lookups):
            assert at >= each.created_at + first + LOOKS[look] - 0.5, "asked for by id ahead of its schedule"
    last = max(at for at, _ in done.endings.values())
    assert all(at <= last for at, _ in done.asked), "asked although nothing was pending"
    # Each request is somebody's look; a look may cost two: a page that did not show it, then its id.
    looks = sum(1 + sum(at >= each.created_at + look for look in LOOKS) for each in followed.values() for at in [last])
    assert len(done.asked) <= 2 * looks + len(followed)
