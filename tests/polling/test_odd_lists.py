"""The planner with lists that are behind, miscounted, out of order, or readable only in part."""

import itertools
import math
import statistics
from collections.abc import Callable
from datetime import datetime
from typing import Any

import attrs
import msgspec
import pytest

from mobilemoney_async import Schedule
from mobilemoney_async.contract.models import PageAnswer
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.contract.states import TransactionStatus
from mobilemoney_async.polling.list_model import ListModel
from mobilemoney_async.polling.planner import Planner
from mobilemoney_async.polling.requests import PageReader
from mobilemoney_async.polling.scoring import Page, SingleLookup
from mobilemoney_async.testing import page_answer, transaction_record
from tests.support.paper import LATENCY, Drive, ListOrder, Paper, PaperService, drive

ADVISED = Schedule()


def lags(done: Drive, service: PaperService, *, since: float) -> list[float]:
    """Return how late the endings after a time were seen, in the order of the payments."""
    seen = [(service.payments[name].ends_at, at) for name, (at, _) in done.endings.items()]
    return [at - ended for ended, at in seen if ended >= since]


def every(seconds: float) -> Callable[[int], tuple[float, float]]:
    """Return the times of payments at even distances: one in eight ends after 120 s, the others after 15 s."""
    return lambda number: (seconds * number, seconds * number + (15.0 if number % 8 else 120.0))


# How many rows there are


@attrs.define(kw_only=True)
class Miscounted(PaperService):
    """It says that there is nothing in it, that there are 10**400 rows, or how many rows are on the page."""

    count: str = "none"

    def page(self, number: int, now: float) -> PageAnswer:
        answer = super().page(number, now)
        rows, pages = len(answer.transactions), answer.pagination.total_pages
        counts = {"none": (0, 0), "of the page": (rows, pages), "too many": (10**400, 10**400)}
        total_count, total_pages = counts[self.count]
        pagination = attrs.evolve(answer.pagination, total_count=total_count, total_pages=total_pages)
        return attrs.evolve(answer, pagination=pagination)


@pytest.mark.parametrize(
    ("service", "most"),
    [
        pytest.param(Miscounted(count="none"), 22, id="count none"),
        pytest.param(Miscounted(count="of the page"), 22, id="count of the page"),
        pytest.param(PaperService(), 21, id="newest-first"),
        pytest.param(PaperService(order="oldest-first"), 21, id="oldest-first"),
    ],
)
def test_a_sweep_takes_every_page_once_in_either_order_and_whatever_the_list_counts(
    service: PaperService, most: int
) -> None:
    """After a restart, a thousand ids cost the twenty pages of the list, not a lookup each."""
    service.filled(2000, lambda number: (-4000.0 + number, -1000.0))
    wanted = {f"txn-{number}": 0.0 for number in range(0, 2000, 2)}
    done = drive(Planner(ADVISED), service, until=200.0, track=wanted, is_new=False)
    assert len(done.endings) == 1000
    assert len(done.asked) <= most


@pytest.mark.parametrize("count", ["none", "of the page"])
def test_a_wrong_count_does_not_hide_the_second_page(count: str) -> None:
    """Fifty-four payments a minute, of which some end on the second page, are confirmed as in any list."""
    service = Miscounted(count=count).filled(600, every(1 / 0.9))
    done = drive(Planner(ADVISED), service, until=660.0, interval=10.0)
    assert statistics.mean(lags(done, service, since=150.0)) < 12
    assert len(done.lookups()) < 5


@pytest.mark.parametrize("order", ["newest-first", "oldest-first"])
def test_a_count_of_400_digits_counts_as_none(order: ListOrder) -> None:
    """The poller follows what it had and what comes later, on both pages."""
    service = Miscounted(count="too many", order=order).filled(120, lambda number: (number - 119.0, number - 89.0))
    assert len(drive(Planner(ADVISED), service, until=60.0).endings) == 120


def test_a_page_that_cannot_be_taken_is_one_request_that_failed() -> None:
    """It is asked for again: no request counts as in flight for ever, and none twice as answered."""
    planner = Planner(ADVISED)
    planner.track("txn-0", 0.0, is_new=True, deadline=math.inf)
    nothing: Any = None
    odd = attrs.evolve(PaperService().page(1, 1.0), pagination=nothing)
    asked = planner.send(Page(1), 1.0)
    with pytest.raises(AttributeError):
        planner.take_page(asked, odd, 1.0)
    planner.fail(asked, 1.0, is_unreadable=False)
    assert planner.ready_at() == 2.0


# In which order they are


def test_a_few_rows_out_of_order_do_not_turn_the_list_round() -> None:
    """A list by the latest change, newest first, is not taken to be oldest first for a late ending at its head."""
    service = PaperService()
    for number in range(100):
        service.add(Paper(id=str(number), created_at=float(number)))
    answer = service.page(1, 1000.0)
    rows = (answer.transactions[-1], *answer.transactions[:-1])
    shuffled = tuple(sorted(rows, key=lambda row: row.id[::-1]))
    model, seen = ListModel(), []
    for shown in (rows, tuple(reversed(rows)), shuffled):
        model.observe(1, attrs.evolve(answer, transactions=shown), 1000.0)
        seen.append(model.newest_first)
    assert seen == [True, False, False], "no order is no news of one"


# How far they are behind


@pytest.mark.parametrize(
    ("service", "per_minute", "until", "interval", "mean"),
    [
        pytest.param(PaperService(stale=1e9), 6.0, 1200.0, 1.0, 30, id="lookups find what it never shows"),
        pytest.param(
            PaperService(list_lag=60.0, stale=60.0), 45.0, 900.0, 4.0, 75, id="it is used where lookups are too few"
        ),
    ],
)
def test_a_list_that_is_behind_is_used_as_far_as_it_serves(
    service: PaperService, per_minute: float, until: float, interval: float, mean: float
) -> None:
    """Six payments a minute are looked up; forty-five on fifteen requests are seen as the list shows them."""
    count = 80 if per_minute == 6 else 450
    service.filled(count, every(60 / per_minute))
    done = drive(Planner(ADVISED), service, until=until, interval=interval)
    assert len(done.endings) == count
    assert statistics.mean(lags(done, service, since=240.0)) < mean


# When all is away, or one


def test_after_an_outage_of_everything_the_list_is_asked_again_at_once() -> None:
    """Its long pause is for a list that fails alone: the first lookup that is answered ends it."""
    planner = Planner(ADVISED)
    service = PaperService().filled(30, lambda number: (0.0, 600.0))
    for number in range(30):
        planner.track(f"txn-{number}", 0.0, is_new=True, deadline=math.inf)
    now, kinds = 1.0, set()
    while now < 600:
        now = max(now + 1, planner.ready_at())
        request = planner.choose(now)
        assert request is not None
        kinds.add(type(request))
        now += 30  # each request hangs until its time-out
        planner.fail(planner.send(request, now - 30), now, is_unreadable=False)
    assert kinds == {Page, SingleLookup}
    done = drive(planner, service, until=now + 60, track={}, start=now)
    assert len(done.endings) == 30
    assert max(at for at, _ in done.endings.values()) < now + 40


@pytest.mark.parametrize("is_unreadable", [True, False])
def test_one_payment_whose_lookups_fail_does_not_hold_up_the_others(is_unreadable: bool) -> None:
    """They are seen all the same; and where it can not be read, it is asked for less and less."""
    planner = Planner(ADVISED)
    service = PaperService()
    service.add(Paper(id="good", created_at=-1000.0))
    for name in ("good", "odd"):
        planner.track(name, 0.0, is_new=False, deadline=math.inf)
    now, tried, seen = 0.0, [], []
    while now < 4000:
        now = max(now + 1, planner.ready_at())
        request = planner.choose(now)
        assert request is not None
        asked = planner.send(request, now)
        if request == SingleLookup("odd"):
            tried.append(now)
            planner.fail(asked, now + LATENCY, is_unreadable=is_unreadable)
            assert planner.ready_at() <= now + 31, "the other waits for its own looks only"
            continue
        seen.append(now)
        if isinstance(request, SingleLookup):
            row = service.get(request.transaction_id, now)
            planner.take_transaction(asked, row, now + LATENCY)
        else:
            page = service.page(request.number, now)
            planner.take_page(asked, page, now + LATENCY)
    assert max(after - before for before, after in itertools.pairwise(seen)) < 130
    if is_unreadable:
        assert tried[-1] - tried[-2] >= 590
        assert len(tried) <= 15


# Pages that can be read only in part


def body(*records: dict[str, Any], **pagination: Any) -> bytes:
    page = msgspec.json.decode(page_answer(*records).content)
    page["pagination"] |= pagination
    page["pagination"] = {name: value for name, value in page["pagination"].items() if value != "missing"}
    return msgspec.json.encode(page)


@pytest.mark.parametrize("value", ["missing", None, "12", -1, 1.5])
def test_a_count_that_is_missing_hides_no_row(value: Any) -> None:
    """The poller needs the rows of a page; it replaces wrong counts by itself."""
    page = PageReader()(body(transaction_record("tx-1"), transaction_record("tx-2", "PENDING"), total_count=value))
    assert [(row.id, row.is_final) for row in page.transactions] == [("tx-1", True), ("tx-2", False)]
    assert page.pagination.total_count in (0, -1)
    assert page.pagination.per_page == 100


def test_a_row_that_cannot_be_read_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """It is left out, and said once; the others are read as strictly as ever."""
    read = PageReader()
    odd = transaction_record("tx-2") | {"status": 5}
    coerced = transaction_record("tx-3") | {"phone_number": 255681234501.5}
    page = read(body(transaction_record("tx-1"), odd, coerced))
    assert [row.id for row in page.transactions] == ["tx-1"]
    assert isinstance(page.transactions[0].created_at, datetime)
    read(body(transaction_record("tx-1"), odd))
    assert len(caplog.records) == 1
    assert "255681" not in caplog.text
    read(body(transaction_record("tx-1")))
    read(body(transaction_record("tx-1"), odd))
    assert len(caplog.records) == 2


@attrs.define(kw_only=True)
class Torn(PaperService):
    """Each ended payment is twice on a page, the second time as FAILED."""

    def page(self, number: int, now: float) -> PageAnswer:
        answer = super().page(number, now)
        failed = (attrs.evolve(row, status=TransactionStatus.FAILED) for row in answer.transactions if row.is_final)
        return attrs.evolve(answer, transactions=(*answer.transactions, *failed))


def test_a_page_that_shows_a_payment_in_two_states_ends_it_in_neither() -> None:
    """The last of its rows counted, whichever that was: the payment is looked up instead."""
    done = drive(Planner(ADVISED), Torn().filled(10, every(5.0)), until=400.0)
    ends = [update.transaction for _, update in done.endings.values()]
    assert {each and each.status for each in ends} == {TransactionStatus.SUCCESS}
    assert len(done.endings) == 10
    assert all(map(done.lookups, done.endings))


@pytest.mark.parametrize(
    "broken", [b"<html>", b"[]", b"{}", b'{"transactions": 5}', body(transaction_record("tx-1") | {"status": 5})]
)
def test_a_body_that_is_no_page_is_an_error(broken: bytes) -> None:
    """Where nothing can be read nothing is made up."""
    with pytest.raises(DecodeError):
        PageReader()(broken)
