"""`mobilemoney watch` without ids: the whole store, as an operator leaves it open all day."""

import fcntl
import json
import re
import struct
import termios
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from rich.console import Console

from mobilemoney_async.cli.views import overview
from mobilemoney_async.cli.views.overview import View, age, warnings
from mobilemoney_async.contract.states import TransactionStatus, TransactionType
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentState, UnclaimedTransaction
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sharing.overview import DayTotal, LimitUse, MinuteCount, Overview, read_overview
from tests.payments.service import ORDER, Outage, make_world, on_asyncio
from tests.payments.tables import insert_payment
from tests.support.commands import run, started
from tests.support.databases import execute, sqlite_url
from tests.support.terminal import terminal

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
NUMBER = "+255780000789"
KEY = "order/2026-11-23/till-7/0000000000000000001"
STRANGER = "txn_0123456789abcdef0123456789abcdef"


def payment(key: str, **changes: Any) -> PaymentRecord:
    at = NOON - timedelta(minutes=12)
    values: dict[str, Any] = {"type": TransactionType.COLLECTION, "phone_number": NUMBER, "amount": Decimal(15_000)}
    values |= {"state": PaymentState.UNKNOWN, "attempt": 1, "created_at": at, "changed_at": at}
    return PaymentRecord(key=key, **(values | changes))


def overview_of(**changes: Any) -> Overview:
    """Return the overview of a busy store."""
    stranger = UnclaimedTransaction(
        transaction_id=STRANGER,
        type=TransactionType.COLLECTION,
        amount=Decimal(15_000),
        phone_number="+25578…789",
        status=TransactionStatus.SUCCESS,
        created_at=NOON,
        first_seen_at=NOON - timedelta(hours=3, minutes=5),
        fits_key=KEY,
    )
    total: dict[str, Any] = {
        "type": TransactionType.COLLECTION,
        "state": PaymentState.FINAL,
        "status": TransactionStatus.SUCCESS,
    }
    values: dict[str, Any] = {
        "at": NOON,
        "grace": 120.0,
        "day_began_at": NOON.replace(hour=0) - timedelta(hours=3),
        "today": [DayTotal(**total, count=1_234, amount=Decimal(18_510_000))],
        "minutes": [
            MinuteCount(at=NOON + timedelta(minutes=number - 59), made=45, succeeded=number, failed=1)
            for number in range(60)
        ],
        "sending": 1,
        "pending": 3,
        "oldest_pending": [payment("oldest")],
        "unknown": 70,
        "needs_attention": [payment(KEY), *(payment(f"k{number}") for number in range(49))],
        "unclaimed": 1,
        "unclaimed_first": [stranger],
        "queued": 90,
        "kept": 0,
        "queue_done_at": NOON + timedelta(minutes=90),
        "has_poller": True,
        "has_dispatcher": True,
        "paused": None,
        "paused_until": None,
        "is_stopped": False,
        "lag": 3.2,
        "requests": LimitUse(used=57, limit=60, per_minute=60.0),
    }
    return Overview(**(values | changes))


def drawn(found: Overview, width: int, height: int | None = None) -> list[str]:
    """Return the lines of a view as they are printed in the end, or on a screen of some lines."""
    console = Console(width=width, highlight=False, force_terminal=True, color_system=None)
    view = View("default", unmasked=False, latest=found)
    if height is None:
        with console.capture() as shown:
            console.print(view, crop=False)
        return [line.rstrip() for line in shown.get().splitlines()]
    lines = console.render_lines(view, console.options.update(height=height), pad=False)
    return ["".join(each.text for each in line).rstrip() for line in lines]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_any_terminal_no_id_is_broken(width: int) -> None:
    """Each figure is there, nothing is wider than the terminal, and a key can be copied."""
    lines = drawn(overview_of(), width)
    text = " ".join(" ".join(lines).split())
    commands = [
        line
        for line in lines
        if line.startswith(("  mobilemoney payments recover ", "  mobilemoney payments explain "))
    ]
    assert [line.split()[3] for line in commands] == [f"{KEY}={STRANGER}", STRANGER]
    lines = [line for line in lines if line not in commands]
    assert all(len(line) <= max(width, len(KEY) + 2 + len(STRANGER)) for line in lines)
    assert sum(len(line) > width for line in lines) <= 2  # ids that are longer than the terminal is wide
    assert any(KEY in line for line in lines)
    assert any(STRANGER in line for line in lines)
    for said in (
        "15:00:00 in Tanzania",
        "3, the oldest for 12 min",
        "done in 1 h 30 min at the earliest",
        "45 made, 58 succeeded, 1 failed",
        "57 of 60 requests used",
        "the first 5 of 70; all: mobilemoney payments list --unresolved",
        "18,510,000",
        "3 h 5 min",
        "→ UNKNOWN: Look for it in the service's list.",
        "→ It may be the payment",
    ):
        assert said in text, said
    assert "780000789" not in text


def test_a_low_window_says_what_it_hides() -> None:
    """The first lines are shown, with the number of the others."""
    lines = drawn(overview_of(), 80, 12)
    assert len(lines) == 12
    assert re.fullmatch(r"… \d+ more lines: make the window taller", lines[-1])
    hidden = int(lines[-1].split()[1])
    assert hidden + 11 == len(drawn(overview_of(), 80))


def test_what_keeps_payments_from_going_on_is_said() -> None:
    """Nobody follows, nobody sends, or the store waits for a comparison; and nothing of that where all is well."""
    assert list(warnings(overview_of())) == []
    said = list(warnings(overview_of(has_poller=False, has_dispatcher=False, is_stopped=True)))
    assert [each.split(":")[0] for each in said] == [
        "no process follows the pending payments",
        "no process sends the queued payments",
        "new payments may wait",
    ]
    for until, when in ((None, ""), (NOON, " until 12:00:00 UTC")):
        paused = overview_of(has_dispatcher=False, paused="no float", paused_until=until)
        assert list(warnings(paused)) == [f"the queue is paused{when}: no float"]
    idle = overview_of(has_poller=False, has_dispatcher=False, pending=0, queued=0)
    assert list(warnings(idle)) == []


def test_ages_are_short() -> None:
    """In the two largest units; a clock that is behind shows no negative ones."""
    spans = [-5, 45, 60, 12 * 60 + 5, 3 * 3600 + 300, 2 * 86_400 + 4 * 3600]
    assert [age(timedelta(seconds=each)) for each in spans] == [
        "0 s",
        "45 s",
        "1 min",
        "12 min",
        "3 h 5 min",
        "2 d 4 h",
    ]


@pytest.mark.costly("runs lines of cli/views/overview.py that no quick test runs")
@on_asyncio
async def test_a_store_that_is_away_for_a_while_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines come on changes only; an outage is said once, and so is its end; at midnight the day is a new one."""
    world = make_world(sqlite_url(tmp_path))
    own = account_store(world.store())
    outage = Outage(own.database)
    view = View("default", unmasked=False)
    own.database.wall_clock.host = lambda: world.utcnow().timestamp()

    async def said() -> tuple[list[str], list[str]]:
        await anyio.sleep(60)
        shown = capsys.readouterr()
        return shown.out.splitlines(), shown.err.splitlines()

    async with world.client() as client, anyio.create_task_group() as tasks:
        tasks.start_soon(overview.follow, own, view, read_overview, overview._Lines(view, as_json=False))
        (first,), problems = await said()
        assert "pending: 0" in first
        assert problems == []
        assert await said() == ([], [])
        await client.collections.create(**ORDER, idempotency_key="k")
        lines, problems = await said()
        assert any("pending: 1" in line for line in lines)
        outage.away = True
        lines, problems = await said()
        assert (lines, len(problems)) == ([], 1)
        assert "the store does not answer" in problems[0]
        outage.away = False
        assert await said() == ([], ["mobilemoney watch: the store is back"])
        own.database.wall_clock.host = lambda: world.utcnow().timestamp() + 86_400
        lines, problems = await said()
        assert any("pending: 1" in line for line in lines)
        assert problems == []
        assert view.latest is not None
        assert view.latest.today == []
        tasks.cancel_scope.cancel()
    own.database.close()


def test_lines_say_once_why_payments_do_not_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal, too: a pause, say, and again if it ends and comes again."""
    view = View("default", unmasked=False)
    show = overview._Lines(view, as_json=False)
    counts = list[int]()
    for pending, paused in enumerate(["no float", "no float", None, "no float"]):
        view.latest = overview_of(pending=pending, paused=paused)
        show()
        counts.append(capsys.readouterr().out.count("! the queue is paused: no float"))
    assert counts == [1, 0, 0, 1]


class TestCommand:
    """As a program."""

    def store(self, folder: Path) -> str:
        """Return a store with a payment that needs attention."""
        url = sqlite_url(folder)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            insert_payment(connection, key=KEY, phone_number=NUMBER)
        engine.dispose()
        return url

    def test_without_a_terminal_it_prints_lines(self, tmp_path: Path) -> None:
        """What the store has, and what to do for each payment; as JSON with every figure. Its end is no error."""
        url = self.store(tmp_path)
        shown = run("watch", "--store", url, "--timeout", "0.1")
        assert shown.exit_code == 0, shown.output
        assert "need you: 1" in shown.stdout
        assert f"{KEY}: UNKNOWN. Look for it in the service's list." in shown.stdout
        assert "780000789" not in shown.output
        data = json.loads(run("watch", "--store", url, "--timeout", "0.1", "--json").stdout)
        assert (data["unknown"], data["pending"], len(data["minutes"])) == (1, 0, 60)
        assert "780000789" not in json.dumps(data)

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [(), ("--json",), ("--all-accounts",)])
    def test_a_reader_that_has_enough_ends_it(self, tmp_path: Path, options: Sequence[str]) -> None:
        """`watch | head` is no error: where nobody reads on, the next line ends it with 0 and without a message."""
        with started("watch", "--store", self.store(tmp_path), *options) as process:
            process.leave()
            assert process.end() == (0, "", "")

    def test_a_store_that_is_not_ready_is_left_alone(self, tmp_path: Path) -> None:
        """No file and no table is made, and tables of another version are refused."""
        missing = tmp_path / "none.db"
        result = run("watch", "--store", f"sqlite:///{missing}")
        assert (result.exit_code, missing.exists()) == (1, False)
        assert "there is no file" in result.stderr
        url = sqlite_url(tmp_path)
        for version, said in ((1, "then use a new database"), (99, "update mobilemoney-async")):
            execute(url, f"UPDATE mobilemoney_schema SET version = {version}")
            result = run("watch", "--store", url)
            assert result.exit_code == 1
            assert said in result.stderr
        assert run("watch").exit_code == 2
        empty = tmp_path / "empty.db"
        empty.touch()
        assert "no tables yet" in run("watch", "--store", f"sqlite:///{empty}").stderr
        engine = sa.create_engine(f"sqlite:///{empty}")
        assert sa.inspect(engine).get_table_names() == []
        engine.dispose()

    @pytest.mark.slow
    def test_on_a_terminal_it_is_a_view_until_ctrl_c(self, tmp_path: Path) -> None:
        """It draws itself anew in a resized window, ends with 130, and leaves its last state, with every id whole."""
        with terminal("watch", "--store", self.store(tmp_path), width=60) as shown:
            shown.wait_for("\x1b[?1049h")
            shown.wait_for(KEY)
            fcntl.ioctl(shown._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            shown.interrupt("SIGWINCH")
            shown.wait_for(f"{KEY}  collection")
            shown.interrupt()
            assert shown.end() == 130
            _, last = shown.text.split("\x1b[?1049l")
        assert any(KEY in line and "UNKNOWN" in line for line in last.splitlines())  # on one line, at 120 columns
        assert last.endswith("mobilemoney watch: interrupted\n")
        assert "Traceback" not in shown.text
        assert "780000789" not in shown.text
