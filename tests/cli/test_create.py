"""`mobilemoney collect` and `disburse`: money asked for and sent from a command line, whatever happens meanwhile."""

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from mobilemoney_async import AsyncClient, OutcomeUnknown, PaymentState, SQLStore, TransactionType
from mobilemoney_async.cli.create import PaymentArguments, PaymentRun
from mobilemoney_async.cli.failures import ExitCode, Refused
from mobilemoney_async.cli.options import Service
from mobilemoney_async.configuration.settings import Settings
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.messages import Reply
from tests.support.commands import remembered, run, started
from tests.support.databases import sqlite_url
from tests.support.patience import PATIENCE, wait_until
from tests.support.processes import environment
from tests.support.terminal import terminal

NUMBER = "+255681234501"
MASKED = "+25568…501"
SUCCEEDS, DECLINED, STAYS_OPEN = "+255780000789", "+255780000039", "+255780000129"
ANSWER_LOST = "+255780000201"
# Line of an interrupt while the request is on its way.
UNKNOWN = "it is unknown whether the payment exists"


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(speed=50, choices=Choices(rate_limit=None))


@pytest.fixture
def store(folder: Path) -> str:
    """The URL of a store that does not exist yet."""
    return sqlite_url(folder)


def write_profile(folder: Path, url: str, **settings: object) -> None:
    """Write a `mobilemoney.toml` with one profile, which is the default."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"base_url": url, **settings}.items()]
    text = "\n".join(['profile = "shop"', "[profiles.shop]", *lines])
    (folder / "mobilemoney.toml").write_text(text, encoding="utf-8")


class TestEndings:
    @pytest.mark.slow
    def test_a_customer_pays(self, sandbox: Sandbox, url: str) -> None:
        """`collect` exits 0 once the money has come, names the transaction at once, and shows no whole number."""
        result = run("collect", "+255 681-234-501", "15000", "--base-url", url)
        (payment,) = sandbox.transactions.values()
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines() == [
            f"{payment.id}  collection of 15,000 TZS, {MASKED}: PENDING",
            f"{payment.id}  collection of 15,000 TZS, {MASKED}: SUCCESS",
        ]
        assert sandbox.ledger.collected == Decimal(15_000)

    @pytest.mark.costly("runs lines of cli/create.py that no quick test runs")
    def test_a_payout_fails(self, url: str) -> None:
        """A payment that ends without success exits 5 and says why; programs read an event a line."""
        result = run("disburse", "+255780000089", "2500", "--json", "--unmasked", "--base-url", url)
        assert result.exit_code == 5, result.stderr
        first, last = map(json.loads, result.stdout.splitlines())
        assert (first["event"], last["event"]) == ("acknowledged", "final")
        assert first["acknowledgement"]["status_code"] == "PROCESSING"
        assert last["transaction"]["failure_reason"] == "RECIPIENT_NOT_FOUND"
        assert last["transaction"]["phone_number"] == "+255780000089"
        assert first["transaction_id"] == last["transaction_id"] == last["transaction"]["id"]

    def test_a_profile_reads_local_numbers(self, sandbox: Sandbox, url: str, folder: Path) -> None:
        """`local_numbers = true` reads them as Tanzanian; without it the command refuses them, and sends nothing."""
        write_profile(folder, url)
        refused = run("collect", "0681 234 501", "15000", "--no-wait")
        assert (refused.exit_code, "PHONE must be + and 8 to 15 digits" in refused.stderr) == (2, True)
        write_profile(folder, url, local_numbers=True)
        assert run("collect", "0681 234 501", "15000", "--no-wait").exit_code == 0
        assert "a Tanzanian mobile number" in run("collect", "+254681234501", "15000", "--no-wait").stderr
        (payment,) = sandbox.transactions.values()
        assert payment.phone_number == NUMBER

    def test_nobody_waits_who_does_not_want_to(self, sandbox: Sandbox, url: str) -> None:
        """With --no-wait the command ends with the acknowledgement, and exits 0."""
        result = run("collect", STAYS_OPEN, "100", "--no-wait", "--base-url", url)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == f"{next(iter(sandbox.transactions))}  collection of 100 TZS, +25578…129: PENDING\n"

    @pytest.mark.slow
    def test_patience_ends(self, sandbox: Sandbox, url: str) -> None:
        """A payment that is not final in time exits 4 and names the command that goes on following it."""
        result = run("collect", STAYS_OPEN, "100", "--timeout", "0.5", "--base-url", url)
        assert result.exit_code == 4
        again = f"mobilemoney watch {next(iter(sandbox.transactions))} --base-url {url}"
        assert result.stderr.splitlines()[-1] == f"mobilemoney collect: to go on following: {again}"

    @pytest.mark.slow
    def test_a_reader_that_leaves_changes_nothing(self, sandbox: Sandbox, url: str) -> None:
        """Where nobody reads the output any more, the payment goes on and the exit code still tells how it ended."""
        with started("collect", DECLINED, "100", "--base-url", url) as process:
            process.leave()
            code, _, errors = process.end()
        assert (code, errors) == (5, "")
        assert len(sandbox.transactions) == 1

    @pytest.mark.slow
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
    @pytest.mark.parametrize("command", ["collect", "profile"])
    @pytest.mark.parametrize("has_errors", [True, False])
    def test_a_full_disk(self, sandbox: Sandbox, url: str, command: str, has_errors: bool) -> None:
        """Where output cannot be written, the exit code still tells how a payment ended; other commands exit with 1."""
        words = (command, *((DECLINED, "100") if command == "collect" else ()), "--base-url", url)
        with Path("/dev/full").open("w") as full:
            ran = subprocess.run(
                [sys.executable, "-m", "mobilemoney_async", *words],
                stdout=full,
                stderr=subprocess.PIPE if has_errors else full,
                text=True,
                timeout=PATIENCE,
                env=environment(),
                check=False,
            )
        assert ran.returncode == (5 if command == "collect" else 1)
        assert len(sandbox.transactions) == (command == "collect")
        if has_errors:
            assert len(ran.stderr.splitlines()) == 1
            assert all(each in ran.stderr for each in sandbox.transactions)

    @pytest.mark.slow
    def test_any_encoding_will_do(self, sandbox: Sandbox, url: str) -> None:
        """A payment that was made is told where the output knows no dots either: escaped, and never a traceback."""
        ran = subprocess.run(
            [sys.executable, "-m", "mobilemoney_async", "collect", NUMBER, "100", "--base-url", url],
            capture_output=True,
            text=True,
            timeout=240,
            env=environment(PYTHONIOENCODING="ascii"),
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.splitlines()[-1] == (
            f"{next(iter(sandbox.transactions))}  collection of 100 TZS, +25568\\u2026501: SUCCESS"
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("closed", [(0, 1), (2,)])
    def test_streams_may_be_closed(self, sandbox: Sandbox, url: str, closed: tuple[int, ...]) -> None:
        """A payment is made and followed where nobody gave the program a standard stream, as some schedulers do."""
        close = f"import os, sys; [*map(os.close, {closed})]; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        command = ["-m", "mobilemoney_async", "collect", DECLINED, "100", "--base-url", url]
        ran = subprocess.run(
            [sys.executable, "-c", close, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment(),
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (5, "")
        assert len(sandbox.transactions) == 1

    def test_the_service_says_no(self, sandbox: Sandbox, url: str) -> None:
        """A refusal exits 1, in one line that says that no money moved."""
        sandbox.script(faults.token_expired(), on="c2b", times=2)
        result = run("collect", NUMBER, "100", "--base-url", url)
        assert (result.exit_code, result.stdout) == (1, "")
        assert re.fullmatch(r"mobilemoney collect: no money moved: .*mobilemoney login.*\n", result.stderr)
        assert not sandbox.transactions

    def test_a_refusal_that_is_not_certain(self, sandbox: Sandbox, url: str) -> None:
        """A refusal without a code of the contract does not promise that no money moved: it says how to find out."""
        refusal = Reply(
            status=400, body=b'{"status": "error", "error_code": "NOT_TODAY", "message": "no"}', code="NOT_TODAY"
        )
        sandbox.script(Fault(name="refused", instead=lambda choices: refusal), on="c2b")
        result = run("collect", NUMBER, "100", "--base-url", url)
        assert result.exit_code == 3
        assert result.stderr.startswith("mobilemoney collect: refused, as far as is known: NOT_TODAY")
        assert re.search(r"do not send it again before you have looked for it: mobilemoney list .*\n", result.stderr)
        assert "no money moved" not in result.stderr

    @pytest.mark.slow
    def test_nobody_answers(self) -> None:
        """Where no service is, nothing was sent, and the line says how to get one."""
        result = run("collect", NUMBER, "100", "--base-url", "http://127.0.0.1:9/v1")
        assert result.exit_code == 1
        assert re.fullmatch(r"mobilemoney collect: nothing was sent: .*\n", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["0681234567", "100"], "PHONE must be"),
        ([NUMBER, "1,000"], "AMOUNT must be"),
        ([NUMBER, "0"], "AMOUNT must be"),
        ([NUMBER, "1.5"], "AMOUNT must be"),
        ([NUMBER, "100", "--timeout", "0"], "--timeout must be"),
        ([NUMBER, "100", "--timeout", "nan"], "--timeout must be"),
        ([NUMBER, "100", "--key", " ", "--store", "sqlite:///payments.db"], "--key must be"),
        ([NUMBER, "100", "--key", "order-1"], "--key needs a store"),
        ([NUMBER, "100", "--store", "sqlite:///payments.db"], "no service is named"),
        ([NUMBER, "100", "--profile", "elsewhere"], "elsewhere"),
        ([NUMBER], "AMOUNT"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(arguments: list[str], said: str, folder: Path) -> None:
    """What is not accepted exits 2, in one line that names the argument; nothing was asked, sent or written."""
    result = run("collect", *arguments)
    assert result.exit_code == 2
    assert re.fullmatch(rf"mobilemoney collect: .*{re.escape(said)}.*\n", result.stderr)
    assert not any(number in result.stderr for number in (NUMBER, "0681234567"))
    assert list(folder.iterdir()) == []


class TestFollowing:
    """In virtual time, on both loops."""

    @staticmethod
    def payment(sandbox: Sandbox, phone_number: str) -> PaymentRun:
        request = PaymentArguments(TransactionType.COLLECTION, phone_number, "100")
        settings = Settings(profile="till", base_url=sandbox.base_url, is_production=False)
        return PaymentRun(request, settings, Service(profile="till"))

    async def test_refused_credentials_do_not_hide_a_payment(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Where the service stops accepting the token after the payment was sent, the command says that it is open."""
        sandbox = Sandbox()
        payment = self.payment(sandbox, STAYS_OPEN)
        async with sandbox.client(on_event=payment.note_event) as client:
            await payment.send(client)
            (transaction_id,) = sandbox.transactions
            assert capsys.readouterr().out == f"{transaction_id}  collection of 100 TZS, +25578…129: PENDING\n"
            sandbox.script(faults.token_expired(), on="GET", probability=1)
            with pytest.raises(Refused) as caught:
                await payment.follow(client, 300)
        assert caught.value.exit_code is ExitCode.NOT_FINAL
        assert str(caught.value).endswith(f"mobilemoney watch {transaction_id} --profile till")

    async def test_a_payment_that_the_service_forgets_is_not_called_failed(self) -> None:
        """Where the service accepts a payment and never shows it, nobody knows whether it exists, and that is said."""
        sandbox = Sandbox(choices=Choices(lookup_lag=10_000, list_lag=10_000))
        payment = self.payment(sandbox, SUCCEEDS)
        async with sandbox.client(on_event=payment.note_event) as client:
            await payment.send(client)
            with pytest.raises(Refused) as caught:
                await payment.follow(client, 300)
        assert caught.value.exit_code is ExitCode.UNRESOLVED
        assert "it is unknown whether it exists" in str(caught.value)

    @pytest.mark.costly("no quick test sends a queued payment from the command line")
    @pytest.mark.parametrize("is_refused", [True, False])
    async def test_a_queued_payment_that_cannot_be_sent_stays_in_the_queue(self, store: str, is_refused: bool) -> None:
        """A refusal and Ctrl-C say so, and how to take it out: it would be sent after it was paid in another way."""
        sandbox = Sandbox()
        request = PaymentArguments(TransactionType.COLLECTION, NUMBER, "100", "order-1")
        settings = Settings(profile="till", base_url=sandbox.base_url, is_production=False, store=store)
        payment = PaymentRun(request, settings, Service(profile="till"))
        async with sandbox.client(store=SQLStore(store), on_event=payment.note_event) as client:
            await client.payments.enqueue(type="collection", phone_number=NUMBER, amount=100, idempotency_key="order-1")
            fault = faults.token_expired() if is_refused else faults.lost(processed=False)
            sandbox.script(fault, on="c2b", times=2)
            if not is_refused:
                with pytest.raises(OutcomeUnknown):
                    await client.collections.create(NUMBER, 100)
            with pytest.raises(Refused) as caught:
                await payment.send(client)
        for line in (str(caught.value).split("; ")[-1], payment.still_open()[-1]):
            assert line.startswith("it stays in the queue, and a dispatcher sends it, unless you cancel it: ")
            assert "payments cancel order-1 --note" in line and line.endswith("--profile till")


class TestStore:
    @pytest.mark.costly("runs lines of cli/create.py that no quick test runs")
    def test_the_same_key_is_the_same_payment(self, sandbox: Sandbox, url: str, store: str) -> None:
        """The same command with the same key shows the payment again, sends nothing, and the store knows its end."""
        command = ["collect", SUCCEEDS, "1700", "--key", "order-8", "--base-url", url, "--store", store]
        first, second = run(*command), run(*command)
        assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
        assert first.stdout == second.stdout
        assert "used before" not in first.stderr
        assert "the store has no payment of account 'default' yet: it knows none under this key" in first.stderr
        assert second.stderr == (
            "mobilemoney collect: this key has been used before: nothing was sent, and this is that payment\n"
        )
        assert len(sandbox.transactions) == 1
        (record,) = remembered(store)
        assert (record.key, record.state) == ("order-8", PaymentState.FINAL)
        assert run(*command, "--no-wait").stdout == second.stdout.splitlines(keepends=True)[-1]
        declined = ["collect", DECLINED, *command[2:4], "order-9", *command[5:]]
        assert [run(*declined, *some).exit_code for some in ((), ("--no-wait",))] == [5, 5]
        other = run("collect", SUCCEEDS, "1800", *command[3:])
        assert other.exit_code == 1
        assert "the idempotency key was used for another payment: nothing was sent" in other.stderr
        assert f"mobilemoney payments show order-8 --store {store}; another payment needs another key" in other.stderr

    @pytest.mark.costly("no quick test asks for a payment that has extra fields from the command line")
    def test_a_payment_with_extra_fields_gets_no_other_key(self, sandbox: Sandbox, url: str, store: str) -> None:
        """A command has no extra fields: under another key it would pay beside the program that has them."""

        async def refund() -> None:
            async with AsyncClient(url, auth=sandbox.token, store=SQLStore(store)) as client:
                extra = {"reason": "R7"}
                await client.disbursements.create(SUCCEEDS, 1700, idempotency_key="refund-7", extra=extra)

        anyio.run(refund)
        command = ("disburse", SUCCEEDS, "1700", "--key", "refund-7", "--base-url", url, "--store", store)
        refused = run(*command)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.endswith("which this command has not: let your program create it, under its key\n")
        assert "another key" not in refused.stderr
        assert run(*command[:2], "1800", *command[3:]).stderr.endswith("; another payment needs another key\n")
        assert len(sandbox.transactions) == 1

    @pytest.mark.slow
    def test_one_that_has_turned_is_named(self, sandbox: Sandbox, url: str, store: str) -> None:
        """Where the service shows another final state than before, the table and the same command say so."""
        command = ["disburse", "+255780000089", "2500", "--key", "order-8", "--base-url", url, "--store", store]
        assert run(*command).exit_code == 5
        (payment,) = sandbox.transactions.values()
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as database, database:
            database.execute("UPDATE mobilemoney_payment_records SET cause = 'CHANGED', about = 'SUCCESS'")
        said = f"the service shows its final state as SUCCESS now: mobilemoney payments show order-8 --store {store}\n"
        for waits in ([], ["--no-wait"]):
            again = run(*command, *waits)
            assert again.exit_code == 5 and again.stderr.endswith(said), again.stderr
        assert "FINAL FAILED, changed" in run("payments", "list", "--store", store).stdout
        assert list(sandbox.transactions) == [payment.id]

    @pytest.mark.costly("runs lines of cli/create.py that no quick test runs")
    def test_a_lost_answer_is_found_under_its_key(self, sandbox: Sandbox, url: str, store: str, folder: Path) -> None:
        """Where no answer comes the command exits 3 and says what to do; done, that finds the one payment."""
        write_profile(folder, url, store=store)
        sandbox.script(faults.drop(processed=True), on="c2b")
        lost = run("collect", SUCCEEDS, "1600")
        assert (lost.exit_code, lost.stdout) == (3, "")
        told, advised = lost.stderr.splitlines()
        key = told.removeprefix("mobilemoney collect: the key of this payment is ")
        assert f"the same command with --key {key} looks for it first, and never sends it twice" in advised
        twin = run("collect", SUCCEEDS, "1600")
        assert twin.exit_code == 1, "a second payment of the same kind is not made while one is unknown"
        assert f"mobilemoney payments show {key}" in twin.stderr
        flagged = run("collect", SUCCEEDS, "1600", "--key", "order-2", "--profile", "shop")
        assert "mobilemoney payments reconcile --profile shop, or look at it" in flagged.stderr
        found = run("collect", SUCCEEDS, "1600", "--key", key)
        assert found.exit_code == 0, found.stderr
        assert found.stdout.endswith("SUCCESS\n")
        assert len(sandbox.transactions) == 1


def test_without_a_store_a_lost_answer_is_looked_for_by_the_person(sandbox: Sandbox, url: str, folder: Path) -> None:
    """Without a store the command exits 3 with the list to look at, which shows the payment."""
    write_profile(folder, url)
    sandbox.script(faults.drop(processed=True), on="c2b")
    lost = run("collect", SUCCEEDS, "1600")
    assert lost.exit_code == 3
    advised = re.fullmatch(
        r"mobilemoney collect: .*; do not send it again before .*: mobilemoney (list .*)\n", lost.stderr
    )
    assert advised is not None, lost.stderr
    shown = run(*advised[1].split())
    assert shown.exit_code == 0
    assert next(iter(sandbox.transactions)) in shown.stdout


class TestInterrupts:
    @pytest.mark.costly("runs lines of sharing/poller.py, cli/create.py that no quick test runs")
    @pytest.mark.parametrize("how", ["Ctrl-C", "killed"])
    def test_while_it_is_sent(self, how: str, sandbox: Sandbox, url: str, store: str) -> None:
        """The key is printed before the request is sent: after Ctrl-C, or a crash, it finds the one payment."""
        command = ["collect", ANSWER_LOST, "1600", "--base-url", url, "--store", store]
        with started(*command) as process:
            key = process.read_error().removeprefix("mobilemoney collect: the key of this payment is ").strip()
            wait_until(lambda: sandbox.transactions)
            if how == "Ctrl-C":
                process.interrupt()
                code, output, errors = process.end()
                assert (code, output) == (130, "")
                assert UNKNOWN in errors
                assert f"--key {key}" in errors
                assert [record.state for record in remembered(store)] == [PaymentState.UNKNOWN]
                again = run(*command, "--key", key)
                assert (again.exit_code, again.stdout[-8:]) == (0, "SUCCESS\n"), (again.stderr, repr(again.exception))
            else:
                process.kill()
                assert process.end()[1:] == ("", "")
                assert [(record.key, record.state) for record in remembered(store)] == [(key, PaymentState.SENDING)]
        assert len(sandbox.transactions) == 1

    @pytest.mark.slow
    def test_while_it_is_sent_without_a_store(self, sandbox: Sandbox, url: str) -> None:
        """Without a store Ctrl-C says that nobody knows, and which list shows it: never that it failed."""
        with started("disburse", ANSWER_LOST, "1600", "--base-url", url) as process:
            wait_until(lambda: sandbox.transactions)
            process.interrupt()
            code, output, errors = process.end()
        assert (code, output) == (130, "")
        assert UNKNOWN in errors
        assert "mobilemoney list --type disbursement --from " in errors

    @pytest.mark.slow
    def test_before_it_is_sent(self, sandbox: Sandbox, url: str) -> None:
        """Ctrl-C before the request says that nothing was sent, and nothing was."""
        sandbox.script(faults.lost(processed=False), on="login")
        password = {"MOBILEMONEY_BASE_URL": url, "MOBILEMONEY_EMAIL": sandbox.email}
        with started("collect", NUMBER, "1600", env={**password, "MOBILEMONEY_PASSWORD": sandbox.password}) as process:
            wait_until(lambda: sandbox.requests.total)
            process.interrupt()
            code, _, errors = process.end()
        assert code == 130
        assert errors.splitlines()[-1] == "mobilemoney collect: nothing was sent"
        assert not sandbox.transactions

    @pytest.mark.slow
    def test_while_it_is_followed(self, sandbox: Sandbox, url: str) -> None:
        """Ctrl-C while the payment is followed says which it is and how to go on; the payment goes on by itself."""
        with started("collect", STAYS_OPEN, "1600", "--base-url", url) as process:
            transaction_id = process.read_line().split()[0]
            process.interrupt()
            code, output, errors = process.end()
        assert (code, output) == (130, "")
        assert f"1 payment is still open, and may end without us: {transaction_id}" in errors
        assert f"mobilemoney watch {transaction_id} --base-url {url}" in errors
        assert [str(payment.status) for payment in sandbox.transactions.values()] == ["PENDING"]


class TestRealMoney:
    @pytest.fixture(autouse=True)
    def real(self, sandbox: Sandbox, url: str, folder: Path) -> None:
        """A profile that moves real money, as far as the command knows."""
        write_profile(folder, url, production=True)
        (folder / "token").write_text(sandbox.token, encoding="utf-8")
        with (folder / "mobilemoney.toml").open("a", encoding="utf-8") as file:
            file.write('\ntoken_file = "token"\n')

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("answer", "exit_code"),
        [("n\n", 1), ("\n", 1), ("\x04", 130), ("SIGTERM", 130)],
        ids=["no", "enter", "end", "ended"],
    )
    def test_a_person_is_asked(self, sandbox: Sandbox, url: str, answer: str, exit_code: int) -> None:
        """Before real money moves the person sees what would be done, without a whole number, and may say no."""
        with terminal("disburse", NUMBER, "5000") as shown:
            shown.wait_for("Go on?")
            assert f"This moves real money: send 5,000 TZS to {MASKED}" in shown.text
            assert f"profile shop, {url}" in shown.text
            assert not sandbox.requests.total
            (shown.interrupt if answer == "SIGTERM" else shown.type)(answer)
            assert shown.end() == exit_code
            assert "nothing was sent" in shown.text
            assert NUMBER not in shown.text
        assert not sandbox.requests.total

    @pytest.mark.slow
    def test_a_person_agrees(self, sandbox: Sandbox) -> None:
        """After a yes it is sent, a moving line shows what is waited for, and the end stays on the screen."""
        with terminal("collect", SUCCEEDS, "5000") as shown:
            shown.wait_for("Go on?")
            shown.type("y\n")
            shown.wait_for(": PENDING; Ctrl-C ends the watching")
            assert shown.end() == 0
            assert re.search(r"txn_\w+  collection of 5,000 TZS, \+25578…789: SUCCESS\n", shown.text)
        assert sandbox.ledger.collected == 5_000

    def test_a_script_has_to_say_so(self, sandbox: Sandbox) -> None:
        """Where nobody can be asked nothing is sent; --yes is the script's word."""
        refused = run("collect", SUCCEEDS, "5000")
        assert refused.exit_code == 2
        assert re.fullmatch(r"mobilemoney collect: .*nothing was sent: give --yes\n", refused.stderr)
        assert not sandbox.requests.total
        assert run("collect", SUCCEEDS, "5000", "--yes", "--no-wait").exit_code == 0
        assert len(sandbox.transactions) == 1
