"""Fixtures for every test.

An async test runs twice, on asyncio and on trio, both in virtual time. To do otherwise:

- `@pytest.mark.real_time`, on a test, a class or (as `pytestmark`) a module: both loops on the real clock. For tests
  with a subprocess, or with a server in another thread.
- `@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)`: on one loop only.
- `@pytest.mark.asyncio`: pytest-asyncio runs the test, for what exists on asyncio only. Real time, no fixture of ours.

Marks of any test, which say where it runs (the table is in CONTRIBUTING.md):

- `slow`: takes more than 0.1 s of processor time (`tests/support/cost.py`): not in the fast lane, but in `nox -t full`.
- `costly("reason")`: takes more too, but the fast lane would miss a fault without it: the reason says which.
  On one loop and database, that is; on the others it is slow.
- `soak`: a long one, whose scale `tests.support.scale.soak` gives. It is `slow` too.
- `once`: about files, documents or figures, which are the same on every Python.
"""

import functools
import gc
import inspect
import itertools
import os
import random
import shutil
import sqlite3
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fasteners  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from hypothesis import settings

import mobilemoney_async
from mobilemoney_async.database import encryption
from mobilemoney_async.testing import virtual_backend
from tests.support import compiled, cost, watchdog
from tests.support.scale import examples, left_to_other_runs, repetitions_of_costly_ones, spread
from tests.support.wires import over_httpx2

if os.environ.get("MOBILEMONEY_TESTS_INSTALLED") and "site-packages" not in Path(mobilemoney_async.__file__).parts:
    pytest.exit("nox tests the installed wheel, but the package was imported from elsewhere", returncode=3)

if os.environ.get("MOBILEMONEY_TESTS_WIRE") == "httpx2":
    over_httpx2()

compiled.share()
# Stretch each key once for all tests.
encryption._scrypt = functools.cache(encryption._scrypt)
_finished = itertools.count(1)
_MEMORY = Path("/dev/shm")
_IS_LIMITED = bool(os.environ.get("MOBILEMONEY_TESTS_LIMIT"))

# A law holds or it does not: a busy machine must not fail a test, nor a new example a build that changed nothing.
# `nox -t nightly` searches with new examples, and a failure prints how to repeat it.
_SEARCHES = bool(os.environ.get("MOBILEMONEY_TESTS_SEARCH"))
settings.register_profile(
    "mobilemoney", deadline=None, derandomize=not _SEARCHES, max_examples=examples(100), print_blob=_SEARCHES
)
settings.load_profile("mobilemoney")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Return the loop that an `anyio` test runs on: on a fresh virtual clock, unless the test asks for the real one."""
    if request.node.get_closest_marker("real_time"):
        return request.param, {}
    return virtual_backend(request.param)


@sa.event.listens_for(sa.Engine, "connect")
def reverse_rows(connection: object, _: object) -> None:
    """In half of the tests, let SQLite reverse the rows that a query does not order: no order holds by chance."""
    if isinstance(connection, sqlite3.Connection):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        connection.execute(f"PRAGMA reverse_unordered_selects={zlib.crc32(test.encode()) % 2}").close()


@pytest.fixture(autouse=True)
def patient_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In real time, let a store wait for its database with patience: a machine may be late, and the test goes on."""
    if request.node.get_closest_marker("real_time"):
        for name in ("engine._QUEUE", "connections.PATIENCE"):
            monkeypatch.setattr(f"mobilemoney_async.database.{name}", 60)


def pytest_configure(config: pytest.Config) -> None:
    """Let all that the run starts end with it; its workers are a part of it."""
    if not hasattr(config, "workerinput"):
        watchdog.start()
        # SQLite waits for the disk at each commit. In memory it does not; a container may have too little for that.
        if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * 1024**3:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Let anyio run each async test, but for those that are pytest-asyncio's."""
    own = {mark.name for mark in getattr(obj, "pytestmark", ())}
    if inspect.iscoroutinefunction(obj) and collector.funcnamefilter(name) and "asyncio" not in own:
        pytest.mark.anyio(obj)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let the garbage collector pass over what stays until the end: modules, and thousands of tests."""
    gc.disable()
    try:
        with _first_alone(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _first_alone(config: pytest.Config) -> Iterator[None]:
    """Let one worker collect before the others, which then read the bytecode that it has written."""
    if not hasattr(config, "workerinput"):
        yield
        return
    lock = fasteners.InterProcessLock(Path(config.option.basetemp).parent / "bytecode.lock")
    is_first = lock.acquire(blocking=False)
    if not is_first:
        lock.acquire()
        lock.release()
    try:
        yield
    finally:
        if is_first:
            lock.release()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark the tests, leave some to other runs, and let each worker begin with long ones: none is left for the end."""
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker("slow")
    left = left_to_other_runs(items)
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]
    for item in repetitions_of_costly_ones(items):
        item.add_marker("slow")
    done = yield  # which leaves out what `-m` and `-k` do
    items[:] = spread(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let jitter and whatever else draws from the module `random` be the same in each run, unless it searches."""
    if not _SEARCHES:
        random.seed(item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Let the collector pass over what the tests until now have left for good: reports, imported modules.

    Else each full collection looks at all of that again, which takes three times as long as most tests do.
    """
    if next(_finished) % 100 == 0:
        gc.collect()
        gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Do once what would count against the limit of whichever test comes first."""
    if _IS_LIMITED:
        cost.prepare_properties()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that is dearer than its lane allows."""
    if not _IS_LIMITED:
        return (yield)
    with cost.limited(item):
        return (yield)
