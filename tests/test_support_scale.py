"""What a run leaves to other runs: repetitions, never a test, nor one of its cases."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.scale import crossed, left_to_other_runs, spread

pytestmark = pytest.mark.once

LOOPS, DATABASES, CASES = ("asyncio", "trio"), ("sqlite", "postgresql"), ("case0", "case1", "trio")


def collected() -> list[Any]:
    """Return what pytest makes of a test on loops and databases, of one on loops, and of one on neither."""
    items = []
    for case, loop, database in itertools.product(CASES, LOOPS, DATABASES):
        items.append(_item("both", anyio_backend=loop, store_url=database, case=case))
    items += [_item("loops", anyio_backend=loop, case=case) for loop in LOOPS for case in CASES]
    return [*items, *(_item("neither", case=case) for case in CASES), *map(_plain, ("quick", "slow", "once"))]


def _item(name: str, **params: object) -> SimpleNamespace:
    words = "-".join(str(value) for value in params.values())
    return SimpleNamespace(
        nodeid=f"{name}[{words}]",
        name=name,
        callspec=SimpleNamespace(params=params, id=words),
        get_closest_marker=lambda mark: None,
    )


def _plain(name: str) -> SimpleNamespace:
    return SimpleNamespace(nodeid=name, name=name, get_closest_marker=lambda mark: True if mark == name else None)


@pytest.mark.parametrize(("pairs", "kept"), [(None, (12, 6)), ("even", (6, 3)), ("odd", (6, 3)), ("one", (3, 3))])
def test_each_case_of_each_test_stays(
    pairs: str | None, kept: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOBILEMONEY_TESTS_PAIRS", raising=False)
    if pairs is not None:
        monkeypatch.setenv("MOBILEMONEY_TESTS_PAIRS", pairs)
    items = collected()
    left = left_to_other_runs(items)
    stay = [item for item in items if item not in left]
    assert tuple(sum(item.nodeid.startswith(name) for item in stay) for name in ("both", "loops")) == kept
    cases = {(item.name, item.callspec.params["case"]) for item in stay if hasattr(item, "callspec")}
    assert len(cases) == 3 * len(CASES)
    assert {"quick", "once"} <= {item.name for item in stay}


def test_quick_combinations_have_each_value_and_none_is_left_out() -> None:
    given = crossed("abcd", "xy", [True])
    assert {each.values for each in given} == set(itertools.product("abcd", "xy", [True]))
    quick = [each.values for each in given if not each.marks]
    assert ["".join(each[:2]) for each in quick] == ["ax", "by", "cx", "dy"]


def test_two_runs_have_all_pairs_and_all_slow_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `even` leaves out `odd` runs, and the other way round; each has the quick tests on neither."""
    items, left = collected(), []
    for pairs in ("even", "odd"):
        monkeypatch.setenv("MOBILEMONEY_TESTS_PAIRS", pairs)
        left += left_to_other_runs(items)
    halved = [item.nodeid for item in items if item.nodeid.startswith(("both", "loops")) or item.name == "slow"]
    assert sorted(item.nodeid for item in left) == sorted(halved)


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_each_share_of_a_run_begins_with_long_tests(workers: int) -> None:
    """And no test is lost, or runs twice, however many of them are long."""
    for quick, long in ((20, 0), (20, 2), (41, 7), (3, 20)):
        items: list[Any] = [*map(_plain, ["quick"] * quick), *map(_plain, ["soak"] * long)]
        ordered = spread(items, workers)
        assert len(ordered) == len(items)
        assert {*map(id, ordered)} == {*map(id, items)}
        begins = [ordered[len(items) * each // workers].name for each in range(workers)]
        assert begins.count("soak") >= min(long, workers)
