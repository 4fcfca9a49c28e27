"""`mobilemoney watch`: payments followed to their final states from a command line."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mobilemoney_async import AsyncClient, AuthenticationError, PaymentState, SQLStore, StoreError
from mobilemoney_async.cli.failures import ExitCode, printing_log, say
from mobilemoney_async.cli.following import (
    ChangeKind,
    Refusals,
    StatusChange,
    Watchlist,
    follow,
    look_up,
    still_open,
)
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.behaviour import Choices
from tests.support.commands import remembered, run, started
from tests.support.databases import sqlite_url
from tests.support.terminal import terminal

ORDINARY = "+255681234501"
SUCCEEDS, DECLINED, STAYS_OPEN, HIDDEN = "+255780000789", "+255780000039", "+255780000129", "+255780000304"


async def pay(client: AsyncClient, *phone_numbers: str) -> list[str]:
    """Ask these numbers for 1,000 TZS each, and return the transactions' ids."""
    created = [await client.collections.create(phone_number=number, amount=1_000) for number in phone_numbers]
    return [each.transaction_id for each in created]


class Followed:
    """Payments that are followed, and what was told of them."""

    def __init__(self, client: AsyncClient, refusals: Refusals) -> None:
        self.client = client
        self.reported: list[StatusChange] = []
        self.watchlist = Watchlist((), self.reported.append)
        self._refusals = refusals

    async def follow(self, *ids: str, timeout: float | None = None) -> None:
        self.watchlist = Watchlist(ids, self.reported.append)
        begin = look_up(self.client, self.watchlist, is_recorded=False)
        await follow(self.client, self.watchlist, begin, refusals=self._refusals, timeout=timeout)

    @property
    def changes(self) -> list[tuple[str, ChangeKind]]:
        return [(each.transaction_id, each.kind) for each in self.reported]


@asynccontextmanager
async def followed(sandbox: Sandbox, **options: Any) -> AsyncIterator[Followed]:
    refusals = Refusals()
    async with sandbox.client(on_event=refusals, **options) as client:
        yield Followed(client, refusals)


class TestFollowing:
    """In virtual time, on both loops."""

    async def test_each_payment_is_told_once_it_is_seen_and_once_it_ends(self) -> None:
        """What is open is told as open, then as final; what has ended is told once; nothing is told twice."""
        async with followed(Sandbox()) as case:
            (done,) = await pay(case.client, DECLINED)
            await case.client.transactions.wait(done)
            new, hidden = await pay(case.client, ORDINARY, HIDDEN)
            await case.follow(done, new, hidden, new)
            assert case.changes[:3] == [
                (new, ChangeKind.OPEN),
                (done, ChangeKind.FINAL),
                (hidden, ChangeKind.NOT_SHOWN),
            ]
            assert sorted(case.changes[3:]) == sorted([(new, ChangeKind.FINAL), (hidden, ChangeKind.FINAL)])
            assert case.watchlist.exit_code is ExitCode.NOT_SUCCESSFUL
            assert still_open(case.watchlist) == []

    async def test_a_hundred_payments_cost_few_requests(self) -> None:
        """A hundred payments that have ended are told from two pages of the list or fewer."""
        sandbox = Sandbox(choices=Choices(rate_limit=None))
        async with followed(sandbox) as case:
            ids = await pay(case.client, *[SUCCEEDS] * 100)
            sandbox.advance(60)
            before = sandbox.requests.total
            await case.follow(*ids)
            assert sandbox.requests.total - before <= 2
            assert case.watchlist.exit_code is ExitCode.FINE

    async def test_time_runs_out(self) -> None:
        """After its time-out the following ends, and what is still open is named with the command that goes on."""
        async with followed(Sandbox()) as case:
            done, stuck = await pay(case.client, SUCCEEDS, STAYS_OPEN)
            started_at = anyio.current_time()
            await case.follow(done, stuck, timeout=300)
            assert anyio.current_time() - started_at == pytest.approx(300, abs=1)
            assert case.watchlist.exit_code is ExitCode.NOT_FINAL
            assert still_open(case.watchlist, ["--profile", "my shop"]) == [
                f"1 payment is still open, and may end without us: {stuck}",
                f"to go on following: mobilemoney watch {stuck} --profile 'my shop'",
            ]

    async def test_an_id_that_nobody_knows_is_doubted_for_two_minutes(self) -> None:
        """An unknown id is told at once, given up after two minutes, and makes the exit code 1; a malformed one too."""
        async with followed(Sandbox()) as case:
            (done,) = await pay(case.client, SUCCEEDS)
            started_at = anyio.current_time()
            await case.follow("txn_unknown", done, "in two words")
            assert anyio.current_time() - started_at == pytest.approx(120, abs=31)
            assert ("txn_unknown", ChangeKind.NOT_SHOWN) in case.changes
            assert case.changes[-1] == ("txn_unknown", ChangeKind.NOT_KNOWN)
            assert ("in two words", ChangeKind.NOT_KNOWN) in case.changes
            assert case.watchlist.exit_code is ExitCode.ERROR

    async def test_an_outage_is_waited_out_and_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        """While the service fails the following goes on, and says why in one line, not once a second."""
        sandbox = Sandbox()
        async with followed(sandbox) as case:
            (new,) = await pay(case.client, ORDINARY)
            outage = sandbox.script(faults.refused(), on="GET", probability=1)
            async with anyio.create_task_group() as group:
                group.start_soon(case.follow, new)
                with printing_log(partial(say, "watch")):
                    await anyio.sleep(50)
                    outage.cancel()
                    await case.watchlist.wait_until_ended()
            assert case.watchlist.exit_code is ExitCode.FINE
            assert outage.fired > 5
        lines = capsys.readouterr().err.splitlines()
        assert 0 < len(lines) <= 3
        assert all(line.startswith("mobilemoney watch: ") for line in lines)

    @pytest.mark.parametrize("when", ["from the beginning", "after a while"])
    async def test_refused_credentials_are_an_error(self, when: str) -> None:
        """Where the service no longer takes the token, the following ends with that error instead of waiting on."""
        sandbox = Sandbox()
        async with followed(sandbox) as case:
            (stuck,) = await pay(case.client, STAYS_OPEN)
            refusal = faults.token_expired()
            if when == "from the beginning":
                sandbox.script(refusal, on="GET", probability=1)
            async with anyio.create_task_group() as group:
                group.start_soon(self._expire, sandbox, refusal)
                with pytest.raises(AuthenticationError):
                    await case.follow(stuck)
                group.cancel_scope.cancel()
            assert case.watchlist.open == [stuck]

    @staticmethod
    async def _expire(sandbox: Sandbox, refusal: faults.Fault) -> None:
        await anyio.sleep(100)
        sandbox.script(refusal, on="GET", probability=1)


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(speed=50, choices=Choices(rate_limit=None))


def paid(sandbox: Sandbox, *phone_numbers: str, store: SQLStore | None = None) -> list[str]:
    """Make payments, let a minute of the service's time pass, and return their ids."""

    async def create() -> list[str]:
        async with sandbox.client(store=store) as client:
            return await pay(client, *phone_numbers)

    ids = anyio.run(create)
    sandbox.advance(60)
    return ids


class TestCommand:
    def test_it_prints_a_line_for_each_change(self, sandbox: Sandbox, url: str) -> None:
        """Piped, each payment is a line with its masked number; the exit code says that not all succeeded."""
        done, declined = paid(sandbox, SUCCEEDS, DECLINED)
        result = run("watch", done, declined, "--base-url", url)
        assert (result.exit_code, result.stderr) == (5, "")
        assert sorted(result.stdout.splitlines()) == sorted(
            [
                f"{done}  collection of 1,000 TZS, +25578…789: SUCCESS",
                f"{declined}  collection of 1,000 TZS, +25578…039: FAILED PAYMENT_NOT_APPROVED",
            ]
        )
        assert run("watch", done, "--base-url", url).exit_code == 0

    def test_ids_come_from_a_pipe(self, sandbox: Sandbox, url: str) -> None:
        """`watch -` reads ids, or the JSON lines of list, collect and watch itself, and prints JSON lines itself."""
        first, second = paid(sandbox, SUCCEEDS, SUCCEEDS)
        listed = run("list", "--json", "--limit", "1", "--base-url", url).stdout
        followed = run("watch", "-", "--json", "--base-url", url, answer=f'\n{first}\n{{"event": "sending"}}\n{listed}')
        assert followed.exit_code == 0, followed.stderr
        lines = [json.loads(line) for line in followed.stdout.splitlines()]
        assert sorted(line["transaction_id"] for line in lines) == sorted([first, second])
        assert {(line["event"], line["transaction"]["status"]) for line in lines} == {("final", "SUCCESS")}
        assert run("watch", "-", "--base-url", url, answer=followed.stdout).exit_code == 0

    @pytest.mark.costly("runs lines of cli/following.py that no quick test runs")
    def test_patience_ends(self, sandbox: Sandbox, url: str) -> None:
        """What is not final in time exits 4, and is named with the command that goes on."""
        (stuck,) = paid(sandbox, STAYS_OPEN)
        result = run("watch", stuck, "--timeout", "0.5", "--base-url", url)
        assert result.exit_code == 4
        assert f"to go on following: mobilemoney watch {stuck} --base-url {url}" in result.stderr

    @pytest.mark.slow
    def test_a_store_learns_of_the_end(self, sandbox: Sandbox, url: str, folder: Path) -> None:
        """With a store the final state is written down, for a payment that somebody else created."""
        store = sqlite_url(folder)
        (done,) = paid(sandbox, SUCCEEDS, store=SQLStore(store))
        result = run("watch", done, "--base-url", url, "--store", store)
        assert result.exit_code == 0, result.stderr
        assert [(record.state, record.transaction_id) for record in remembered(store)] == [(PaymentState.FINAL, done)]

    def test_looking_makes_no_store(self, sandbox: Sandbox, url: str, folder: Path) -> None:
        """A store that does not exist yet is not made by a command that only looks."""
        (done,) = paid(sandbox, SUCCEEDS)
        for command in (["watch", done], ["get", done], ["list"]):
            assert run(*command, "--base-url", url, "--store", "sqlite:///new.db").exit_code == 0
        assert not (folder / "new.db").exists()

    @pytest.mark.parametrize(
        ("arguments", "answer", "said"),
        [
            ([], "", "ID"),
            ([" "], "", "ID must be"),
            ([".."], "", "ID must be"),
            (["-"], '{"amount": "1"}\n', "standard input must be"),
            (["-"], "{\n", "standard input must be"),
            (["-"], '{"a":' * 10_000, "standard input must be"),
            (["txn_1", "--timeout", "-1"], "", "--timeout must be"),
        ],
    )
    def test_bad_input_is_refused(self, arguments: list[str], answer: str, said: str, folder: Path) -> None:
        """What is not accepted exits 2, in one line that names it."""
        result = run("watch", *arguments, answer=answer)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1

    def test_nothing_to_watch_is_no_error(self, folder: Path) -> None:
        """A pipe without ids ends at once, with 0."""
        result = run("watch", "-", answer="\n")
        assert (result.exit_code, result.stdout) == (0, "")

    @pytest.mark.slow
    def test_ctrl_c_says_what_is_open(self, sandbox: Sandbox, url: str) -> None:
        """Ctrl-C ends the watching with 130 and names what is open, once it has shown what it knows."""
        done, stuck = paid(sandbox, SUCCEEDS, STAYS_OPEN)
        with started("watch", done, stuck, "--base-url", url) as process:
            shown = {process.read_line().split()[0] for _ in range(2)}
            process.interrupt()
            code, _, errors = process.end()
        assert (code, shown) == (130, {done, stuck})
        assert f"1 payment is still open, and may end without us: {stuck}\n" in errors

    @pytest.mark.slow
    def test_a_terminal_shows_a_table_that_moves(self, sandbox: Sandbox, url: str) -> None:
        """On a terminal the payments stand in a table that moves: what is open first, and all of them at the end."""
        *done, stuck = paid(sandbox, *[SUCCEEDS] * 40, STAYS_OPEN)
        with terminal("watch", *done, stuck, "--base-url", url) as shown:
            shown.wait_for("40 of 41 ended, ")
            shown.wait_for(" rows hidden; Ctrl-C ends the watching, not the payments")
            assert re.search(rf"{stuck} .* PENDING", shown.text)
            sandbox.approve(stuck)
            assert shown.end() == 0
            table = shown.text[shown.text.rindex("transaction ") :]
        rows = [line.split() for line in table.splitlines()[1:] if line.startswith("txn_")]
        assert [(row[0], row[-1]) for row in rows] == [(each, "SUCCESS") for each in (*done, stuck)]


def test_a_final_state_that_contradicts_the_store_is_named() -> None:
    """It is not reported as a transaction that the service does not know."""
    error = StoreError("payment 'order-1': transaction t-1 is another merchant's", outcome="unknown")
    change = StatusChange(transaction_id="t-1", kind=ChangeKind.NOT_KNOWN, at=datetime.now(UTC), error=error)
    assert change.describe(unmasked=False) == "payment 'order-1': transaction t-1 is another merchant's"
