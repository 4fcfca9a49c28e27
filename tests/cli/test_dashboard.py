"""`mobilemoney dashboard`: the page of a store, read without a browser; tests/browser looks at it in one."""

import re
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    DisbursementLimits,
    Merchants,
    MobileMoneyError,
    RetryPolicy,
    SQLStore,
    TransactionStatus,
    TransactionType,
)
from mobilemoney_async.cli.options import Service
from mobilemoney_async.cli.views.dashboard import page
from mobilemoney_async.cli.views.dashboard.page import REGIONS, AccountsBoard, Board, axis_end, create_page
from mobilemoney_async.database.schema import accounts
from mobilemoney_async.payments.records.record import UnclaimedTransaction
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sharing.overview import LimitUse, MinuteCount, Overview, read_overview
from tests.payments.tables import insert_line, insert_payment
from tests.sandbox.page_user import Elements, check_that_all_is_its_own
from tests.support.commands import run, started
from tests.support.fakes import NOON
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.real_time

NUMBER = "+255681234501"
HOSTILE = f"\"><script>alert('1')</script>{{{{7*7}}}}{NUMBER}"


@attrs.define
class Reader:
    """Reader of a dashboard's page."""

    board: Board
    http: httpx.AsyncClient

    async def source(self) -> str:
        """Let the dashboard look at the store, and return the page."""
        await self.board.look_again()
        answer = await self.http.get("/")
        assert answer.status_code == 200
        return answer.text

    async def see(self) -> str:
        return Elements(await self.source()).text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "payments.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLStore]:
    store = SQLStore(f"sqlite:///{file}")
    yield store
    store.close()


@pytest.fixture
async def reader(store: SQLStore, file: Path) -> AsyncIterator[Reader]:
    board = Board(SQLStore(f"sqlite:///{file}"))  # its own, as in a process of its own
    transport = httpx.ASGITransport(create_page(board))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8766") as http:
        yield Reader(board, http)


async def pay(store: SQLStore, *keys: str, fault: faults.Fault | None = None) -> Sandbox:
    """Make a collection of 15,000 TZS or a little more for each key; they all suffer the same fault."""
    sandbox = Sandbox(run=str(keys), choices=Choices(rate_limit=None))
    async with sandbox.client(store=store, retry=RetryPolicy(max_attempts=1)) as client:
        for number, key in enumerate(keys):
            if fault is not None:
                sandbox.script(fault, on="c2b")
            try:
                await client.collections.create(NUMBER, 15_000 + number, idempotency_key=key)
            except MobileMoneyError:
                assert fault is not None
    return sandbox


async def test_the_page_shows_what_an_operator_asks(reader: Reader, store: SQLStore) -> None:
    """Sums by state, the oldest pending payment, unknown results with the next step, the queue and the limit."""
    sandbox = await pay(store, "order-1", "order-2")
    assert "No payment is unknown" in await reader.see()
    await pay(store, "order-3", fault=faults.drop(processed=True))
    async with sandbox.client(store=store) as client:
        await client.payments.enqueue(type="disbursement", phone_number=NUMBER, amount=900, idempotency_key="payout-1")
    shown = await reader.see()
    for text in (
        "Payments of default",
        "Payments that need you: 1 order-3 Copy the key order-3 15,000 TZS collection UNKNOWN",
        "What to do: Look for it in the service's list. That may show it until",
        "mobilemoney payments reconcile Copy the command mobilemoney payments reconcile",
        "No program follows the pending payments",
        "No program sends the queue",
        "Pending 2 the oldest for",
        "Queue 1 not being sent",
        "Rate limit 3 of 60 requests count now",
        "↑ made: 2",
        "Collections 3 45,001 UNKNOWN 1 15,000 PENDING 2 30,001 Disbursements 1 900 QUEUED 1 900",
    ):
        assert text in shown
    assert "order-1" in shown


async def test_a_transaction_that_no_payment_claims_is_shown_with_the_next_step(
    reader: Reader, store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named by its id, with the payment that it may be a second time."""
    await pay(store, "order-1")
    found = await read_overview(account_store(store))
    first = UnclaimedTransaction(
        transaction_id="txn-1",
        type=TransactionType.COLLECTION,
        amount=Decimal(15_000),
        phone_number="+25568…501",
        status=TransactionStatus.SUCCESS,
        created_at=found.at,
        first_seen_at=found.at,
        fits_key="order-1",
    )
    unclaimed = [first, attrs.evolve(first, transaction_id="txn-2", is_gap=True)]
    stub(monkeypatch, attrs.evolve(found, unclaimed=3, unclaimed_first=unclaimed, is_stopped=True, paused="no float"))
    shown = await reader.see()
    assert "Transactions that no payment claims: 3 txn-1 Copy the transaction id txn-1" in shown
    assert "It may be the payment order-1, made twice. If that has no transaction of its own, recover it; else" in shown
    assert "mobilemoney payments recover KEY=txn-2 --note 'YOUR NAME: WHAT YOU SAW' Copy" in shown
    assert "and 1 more: mobilemoney payments unclaimed" in shown
    assert "New payments may wait" in shown
    assert "The queue is paused : no float. Once the reason is gone" in shown
    stub(monkeypatch, attrs.evolve(found, paused="no float"))
    assert "No payment is unknown" not in await reader.see()


def tables(file: Path) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT name FROM sqlite_master").fetchall()


def stub(monkeypatch: pytest.MonkeyPatch, *overviews: Overview) -> None:
    """Let the dashboard read these overviews, one after another."""
    coming = iter(overviews)

    async def read(_: Any) -> Overview:
        return next(coming)

    monkeypatch.setattr(page, "read_overview", read)


async def test_the_plot_of_the_limit_holds_what_was_seen(
    reader: Reader, store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the most of each minute since the dashboard looks, of an hour at most, and says what it has not seen."""
    await pay(store, "order-1")
    found = await read_overview(account_store(store))
    noon = datetime(2026, 11, 23, 12, 0, 5, tzinfo=UTC)

    def at(minute: int, used: int | None, second: int = 0) -> Overview:
        now = noon + timedelta(minutes=minute, seconds=second)
        first = now.replace(second=0) - timedelta(minutes=59)
        minutes = [attrs.evolve(each, at=first + timedelta(minutes=i)) for i, each in enumerate(found.minutes)]
        requests = None if used is None else LimitUse(used=used, limit=60, per_minute=60)
        return attrs.evolve(found, at=now, minutes=minutes, requests=requests)

    stub(monkeypatch, at(0, None), at(0, 7), at(0, 31, 20), at(0, 4, 40), at(2, 12), at(61, 3))
    assert "Not seen yet: while this dashboard ran" in await reader.see()
    shown = [await reader.see() for _ in range(4)][-1]
    assert "Seen by this dashboard since 12:00 UTC; hatched: not seen" in shown
    assert "12:02 12 12:01 not seen 12:00 31 11:59 not seen" in shown
    later = await reader.see()
    assert "13:01 3 13:00 not seen" in later
    assert "since 12:02 UTC" in later


async def test_foreign_texts_are_escaped_and_numbers_are_not_shown(reader: Reader, store: SQLStore) -> None:
    """A hostile key is text, in its place, without a whole phone number; one that can be used can be copied."""
    await pay(store, HOSTILE, "order-1", fault=faults.drop(processed=True))
    source = await reader.source()
    elements = Elements(source)
    assert "\"><script>alert('1')</script>{{7*7}}+25568…501" in elements.text
    assert source.count("<script") == 3  # the page's own files
    assert NUMBER not in source and NUMBER[1:] not in source
    copied = elements.values("data-copy")
    assert len(copied) == 3  # a key, and two command lines without one
    assert copied <= set(elements.ids)
    assert len(elements.ids) == len(set(elements.ids))
    for names in elements.values("aria-labelledby"):
        assert set(names.split()) <= set(elements.ids)


async def test_a_number_in_a_key_is_not_shown_however_it_is_written(reader: Reader, store: SQLStore) -> None:
    """Staff write keys as they write numbers."""
    numbers = ("+255 681 234 501", "0681-234-501", "255.681.234.501", "(0681) 234501")
    await pay(store, *(f"tel {each}" for each in numbers), fault=faults.drop(processed=True))
    source = await reader.source()
    assert source.count("tel ") >= len(numbers)
    assert not [each for each in numbers if each in source]


async def test_the_store_stays_as_it_is(reader: Reader, store: SQLStore, file: Path) -> None:
    """However often it looks, the dashboard changes no row and takes no lease."""
    await pay(store, "order-1")
    await pay(store, "order-2", fault=faults.drop(processed=True))

    def rows() -> list[str]:
        with closing(sqlite3.connect(file)) as connection:
            return list(connection.iterdump())

    before = rows()
    for _ in range(3):
        assert "order-2" in await reader.see()
    assert rows() == before


async def test_another_website_can_read_nothing(reader: Reader, store: SQLStore) -> None:
    """The page answers only under a loopback name, takes no forms, and loads nothing from elsewhere."""
    await pay(store, "order-1")
    await reader.source()
    await check_that_all_is_its_own(reader.http)
    for headers in ({"host": "evil.example"}, {"host": "127.0.0.1.evil.example"}):
        for path in ("/", "/live"):
            answer = await reader.http.get(path, headers=headers)
            assert answer.status_code == 403
            assert "order" not in answer.text
    foreign = await reader.http.post("/", headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert (await reader.http.post("/")).status_code == 405
    assert (await reader.http.get("/static/page.py")).status_code == 404


@pytest.mark.slow
async def test_a_store_that_is_away_is_said_and_comes_back(reader: Reader, store: SQLStore, file: Path) -> None:
    """The last figures stay, with their time; a store without tables, or a missing file, is not made."""
    path = anyio.Path(file)
    assert "there is no file" in await reader.see()
    assert not await path.exists()
    await path.touch()
    assert "it has no tables yet" in await reader.see()
    assert tables(file) == []
    await pay(store, "order-1")
    assert "The store cannot be read" not in await reader.see()
    store.close()
    away = await path.rename(file.with_suffix(".away"))
    shown = await reader.see()
    assert "The store cannot be read. there is no file" in shown
    assert "The figures below are of" in shown and "Pending 1" in shown
    await away.rename(file)
    assert "Pending 1" in await reader.see()
    await away.write_bytes(await path.read_bytes())
    await pay(store, "order-2")
    store.close()
    assert "Pending 2" in await reader.see()
    await away.rename(file)  # a backup
    assert "Pending 1" in await reader.see()


async def test_a_file_that_goes_while_it_is_read_is_not_made(
    reader: Reader, store: SQLStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be moved away, by a backup say, after the dashboard has seen it and before SQLite opens it."""
    await pay(store, "order-1")
    store.close()
    assert "The store cannot be read" not in await reader.see()
    away = file.with_suffix(".away")

    def open_late(*arguments: Any, **options: Any) -> sqlite3.Connection:
        file.rename(away)
        return connect(*arguments, **options)

    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    monkeypatch.setattr(sqlite3.dbapi2, "connect", open_late)
    shown = await reader.see()
    monkeypatch.undo()
    assert "The store cannot be read. the store failed: OperationalError: unable to open" in shown
    assert "Pending 1" in shown
    assert not await anyio.Path(file).exists()
    assert "there is no file" in await reader.see()
    await anyio.Path(away).rename(file)
    assert "The store cannot be read" not in await reader.see()


async def test_each_part_is_sent_as_it_is_on_the_page(reader: Reader, store: SQLStore) -> None:
    """What the stream replaces is found on the page by its id, once."""
    await pay(store, "order-1")
    ids = Elements(await reader.source()).ids
    for name in REGIONS:
        (first, *_) = Elements(reader.board.parts[name]).ids
        assert ids.count(first) == 1


@pytest.mark.parametrize(("most", "end"), [(0, 5), (5, 5), (6, 10), (11, 20), (51, 100), (100, 100), (101, 200)])
def test_an_axis_ends_at_a_round_number(most: int, end: int) -> None:
    """No bar is higher than the plot."""
    assert axis_end([MinuteCount(at=datetime.now(UTC), succeeded=most - most // 2, failed=most // 2)]) == end


async def test_all_accounts_are_listed_by_need_and_one_is_opened(store: SQLStore, file: Path) -> None:
    """The most serious reason first; an account that is well can be opened by its name, and an unknown one cannot."""
    hostile = '<script>alert("1")</script>'
    await pay(store.for_account("shop-1"), "order-1")
    await pay(store.for_account(hostile), "order-2", fault=faults.drop(processed=True))
    board = AccountsBoard(SQLStore(f"sqlite:///{file}"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_page(board)), base_url="http://127.0.0.1:8766"
    ) as http:
        await board.look_again()
        answer = await http.get("/")
        assert f"1 of 2 accounts Unknown: 1 {hostile} 0 pending 1 unknown" in Elements(answer.text).text
        assert hostile not in answer.text
        (link,) = {each for each in Elements(answer.text).values("href") if each.startswith("/?account=")}
        opened = await http.get(link)
        assert "Payments that need you: 1 order-2" in Elements(opened.text).text
        (live,) = Elements(opened.text).values("hx-sse:connect")
        assert live == f"/live{link[1:]}" or live.startswith("/live?account=")
        assert "Pending 1" in Elements((await http.get("/?account=shop-1")).text).text
        for path in ("/?account=shop-2", "/live?account=shop-2"):
            assert (await http.get(path)).status_code == 404
        (first, *_) = Elements(board.parts["accounts"]).ids
        assert Elements(answer.text).ids.count(first) == 1
    await anyio.Path(file).unlink()
    await board.look_again()
    assert "The store cannot be read. there is no file" in Elements(board.parts["accounts"]).text


@pytest.mark.costly("no quick test opens an account twice at once")
async def test_pages_that_open_an_account_at_once_share_its_board(store: SQLStore, file: Path) -> None:
    """Only that one is read again: the page of another one would show old figures for ever."""
    await account_store(store).database.write(lambda each: each.execute(accounts.insert(), {"account": "shop-1"}))
    board, opened = AccountsBoard(SQLStore(f"sqlite:///{file}")), list[object]()
    await board.look_again()

    async def open_page() -> None:
        opened.append(await board.open("shop-1"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_page)
        tasks.start_soon(open_page)
    assert opened[0] is opened[1]


async def test_each_command_names_the_account_and_the_store(store: SQLStore, file: Path) -> None:
    """Also those for what the page has no room for: without them they would be about another account."""
    url = f"sqlite:///{file}"

    def fill(connection: sa.Connection) -> None:
        connection.execute(accounts.insert(), {"account": "shop-3", "due_since": NOON, "paused": "the treasurer"})
        for number in range(51):
            insert_payment(connection, account="shop-3", key=f"u{number}", amount=str(number + 1))
            insert_line(connection, account="shop-3", transaction_id=f"t{number}")

    await account_store(store).database.write(fill)
    board = Board(store.for_account("shop-3"), Service(store=url, account="shop-3"))
    await board.look_again()
    shown, options = Elements(board.write()).text, f"--store {url} --account shop-3"
    for command in ("list --unresolved", "unclaimed", "recover"):
        assert f"mobilemoney payments {command} {options}" in shown
    assert f"mobilemoney payouts status --resume {options}" in shown


async def test_who_may_not_pay_is_listed_with_the_reason(store: SQLStore, file: Path) -> None:
    """A suspended account, a paused queue, and what is left in the queue of a removed one."""
    sandbox, shops = Sandbox(merchants=3), {}

    async def secret_of(account: str) -> str:
        return sandbox.tokens[account]

    async with Merchants(
        sandbox.base_url, store=store, auth=secret_of, transport=lambda _: sandbox.transport()
    ) as merchants:
        for account in sandbox.tokens:
            shops[account] = client = await merchants.client(account)
            await client.payments.enqueue(type="collection", phone_number=NUMBER, amount=9, idempotency_key="order-1")
        await merchants.suspend("shop-1", note="its papers are late")
        await merchants.remove("shop-2", note="closed")
        async with shops["shop-3"].dispatcher() as dispatcher:
            dispatcher.pause("the treasurer is away")
    board = AccountsBoard(SQLStore(f"sqlite:///{file}"))
    await board.look_again()
    shown = Elements(board.parts["accounts"]).text
    assert "Suspended: 1 shop-1 0 pending 0 unknown 0 unmatched 1 queued suspended: its papers are late" in shown
    assert "Paused: 1 shop-3 0 pending 0 unknown 0 unmatched 1 queued paused: the treasurer is away" in shown
    assert "Queued: 1 shop-2 0 pending 0 unknown 0 unmatched 1 queued" in shown


@pytest.mark.costly("no quick test shows on a page what a limit holds back")
async def test_lines_of_a_batch_and_what_a_limit_holds_back_are_shown(reader: Reader, store: SQLStore) -> None:
    """Nothing of a batch before its approval; then its lines wait in the queue, with the reason why nothing is sent."""
    sandbox = Sandbox()
    async with sandbox.client(store=store, disbursement_limits=DisbursementLimits(per_day=1500)) as client:
        batch = await client.payouts.propose(f"phone_number,amount\n{NUMBER},900\n", name="wages", by="Asha")
        assert "Queue 0" in await reader.see()
        await client.payouts.approve(batch.id, by="Juma", digest=batch.digest)
        assert "Queue 1" in await reader.see()
        await client.disbursements.create("+255780000789", 600)
        await client.payments.enqueue(type="disbursement", phone_number=NUMBER, amount=999, idempotency_key="too-much")
        async with client.dispatcher():
            with anyio.fail_after(PATIENCE):
                while "is paused" not in (shown := await reader.see()):
                    await anyio.sleep(0.05)  # real time: it looks again until PATIENCE ends
    assert "Queue 1" in shown
    assert "The queue is paused : a disbursement of 999 TZS exceeds per_day of the disbursement limits" in shown
    assert "It goes on by itself at " in shown and "Once the reason is gone" not in shown
    assert [each.amount for each in sandbox.transactions.values()] == ["600", "900"]


async def test_a_platform_that_is_well_says_so(store: SQLStore, file: Path) -> None:
    """No list is no answer."""
    await pay(store.for_account("shop-1"), "order-1")
    board = AccountsBoard(SQLStore(f"sqlite:///{file}"))
    await board.look_again()
    assert "0 of 1 accounts No account needs anyone." in Elements(board.parts["accounts"]).text


class TestCommand:
    @pytest.mark.slow
    @pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
    async def test_it_serves_until_ctrl_c(self, store: SQLStore, file: Path) -> None:
        """It prints the address, serves the page there with its stream, and ends in order, with 0."""
        await pay(store, "order-1")
        store.close()
        with started("dashboard", "--port", "0", "--store", f"sqlite:///{file}") as command:
            line = command.read_line()
            found = re.fullmatch(r"dashboard of default: (http://127\.0\.0\.1:\d+/)\n", line)
            assert found, command.end()
            async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                assert "Pending" in (await http.get(found[1])).text
                async with http.stream("GET", f"{found[1]}live") as stream:
                    async for text in stream.aiter_text():
                        assert text.startswith("data: ") and 'hx-swap-oob="outerMorph"' in text
                        break
                    command.interrupt()
                    assert command.end() == (0, "stopped\n", "")

    def test_an_obstacle_is_one_line(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No store, no such file, a port in use and a missing extra are said with the next step."""
        assert "there is no file" in run("dashboard", "--store", f"sqlite:///{file}").stderr
        assert "has no store" in run("dashboard").stderr
        SQLStore(f"sqlite:///{file}")
        file.touch()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            ended = run("dashboard", "--port", port, "--store", f"sqlite:///{file}")
            assert "is a dashboard running there already? --port 0" in str(ended.exception or ended.stderr)
        monkeypatch.delitem(sys.modules, "mobilemoney_async.cli.views.dashboard.page", raising=False)
        monkeypatch.delattr("mobilemoney_async.cli.views.dashboard.page", raising=False)
        monkeypatch.setitem(sys.modules, "jinja2", None)
        missing = run("dashboard", "--store", f"sqlite:///{file}")
        assert "mobilemoney-async[sandbox]" in missing.stderr and missing.exit_code == 2
        assert tables(file) == []
