"""`mobilemoney payments`: what a person sees of a store, and what they may say."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import attrs
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    AsyncClient,
    MobileMoneyError,
    PaymentRecord,
    PaymentState,
    RetryPolicy,
    SQLStore,
    StoreError,
    TransactionType,
)
from mobilemoney_async.cli import payments
from mobilemoney_async.cli.payments import needs_attention
from mobilemoney_async.database import schema
from mobilemoney_async.payments.ownership.duplicates import lost_payment_error
from mobilemoney_async.payments.records.next_steps import recover
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.messages import Reply
from mobilemoney_async.testing import run_virtual
from mobilemoney_async.text import mask_phone_number
from tests.payments.tables import insert_payment
from tests.support import commands
from tests.support.commands import run as mobilemoney
from tests.support.databases import execute, sqlite_url
from tests.support.sheets import xlsx

NUMBER = "+255681234501"
ESCAPE = "\x1b[2J[red]"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that does not exist yet."""
    return sqlite_url(tmp_path)


def run(*arguments: str, answer: str = "", **variables: str) -> Any:
    """Run `mobilemoney payments` with these arguments, standard input and environment variables."""
    return mobilemoney("payments", *arguments, answer=answer, **variables)


def run_json(*arguments: str, **variables: str) -> Any:
    result = run(*arguments, "--json", **variables)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def pay(
    sandbox: Sandbox,
    url: str,
    *keys: str,
    fault: faults.Fault | None = None,
    account: str = "default",
    amount: int = 1_000,
) -> None:
    """Make one collection for each key, of 1,000 TZS or another amount and more, all of which suffer the same fault."""

    async def create() -> None:
        store = SQLStore(url, account)
        async with sandbox.client(store=store, retry=RetryPolicy(max_attempts=1)) as client:
            for number, key in enumerate(keys):
                if fault is not None:
                    sandbox.script(fault, on="c2b")
                try:
                    await client.collections.create(phone_number=NUMBER, amount=amount + number, idempotency_key=key)
                except MobileMoneyError:
                    assert fault is not None

    anyio.run(create)


def insert(url: str, **values: Any) -> None:
    """Make one payment, past the store's code."""
    with sa.create_engine(url, poolclass=sa.pool.NullPool).begin() as connection:
        insert_payment(connection, **values)


@pytest.fixture
def served(sandbox: Sandbox) -> Iterator[dict[str, str]]:
    """The variables with which the sandbox is reached over a real socket."""
    with commands.served(sandbox) as base_url:
        yield {"MOBILEMONEY_BASE_URL": base_url, "MOBILEMONEY_TOKEN": sandbox.token}


class TestList:
    def test_it_shows_every_payment_with_its_number_masked(self, sandbox: Sandbox, url: str) -> None:
        """The list names each payment's key, amount, state and transaction, and no whole phone number."""
        pay(sandbox, url, "order-1", "order-2")
        pay(sandbox, url, "order-3", fault=faults.refused())
        result = run("list", "--store", url)
        assert result.exit_code == 0, result.stderr
        rows = result.stdout.splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["order-1", "order-2", "order-3"]
        assert "1,001" in rows[1]
        assert "ACKNOWLEDGED PENDING" in rows[1]
        assert list(sandbox.transactions)[1] in rows[1]
        assert "NOT_SENT" in rows[2]
        assert all(mask_phone_number(NUMBER) in row for row in rows)
        assert NUMBER not in result.output
        assert NUMBER in run("list", "--store", url, "--unmasked").stdout  # for who has to call the customer

    def test_states_can_be_chosen(self, sandbox: Sandbox, url: str) -> None:
        """`--state` takes one state or several, in either case; `--unresolved` those of which nobody knows."""
        pay(sandbox, url, "order-1", "order-2")
        pay(sandbox, url, "order-3", fault=faults.refused())
        pay(sandbox, url, "order-4", fault=faults.drop(processed=True))

        def keys(*options: str) -> list[str]:
            records = run_json("list", "--store", url, *options)
            return [record["key"] for record in records]

        assert keys("--state", "not_sent") == ["order-3"]
        assert keys("--state", "UNKNOWN", "--state", "Acknowledged") == ["order-1", "order-2", "order-4"]
        assert keys("--unresolved") == ["order-4"]

    def test_a_customers_payments_are_found_by_number(self, url: str, folder: Path) -> None:
        """In any spelling that the profile allows, together with a state; a wrong number is not quoted."""
        other = "+255681234502"
        for key, number, state in (("a", NUMBER, "FINAL"), ("b", NUMBER, "UNKNOWN"), ("c", other, "UNKNOWN")):
            insert(url, key=key, phone_number=number, state=state)
        (folder / "mobilemoney.toml").write_text(
            'profile = "shop"\n[profiles.shop]\nbase_url = "https://x.test/v1"\n'
            f'store = "{url}"\nlocal_numbers = true\n'
        )

        def keys(*options: str) -> list[str]:
            return [each["key"] for each in run_json("list", "--phone", *options)]

        assert keys("0681 234 501") == ["a", "b"]
        assert keys(NUMBER, "--state", "unknown") == keys("0681234501", "--unresolved") == ["b"]
        assert keys(NUMBER, "--limit", "1") == ["b"]
        wrong = run("list", "--phone", "68123450")
        assert (wrong.exit_code, "68123450" in wrong.output) == (2, False)

    def test_a_payment_is_shown_by_any_of_its_names(self, url: str) -> None:
        """By its transaction id or reference, with its key; several with one external id are named."""
        insert(url, key="order-1", state="FINAL", transaction_id="txn_1", reference="ref-1", external_id="cart")
        insert(url, key="order-2", state="FINAL", transaction_id="txn_2", external_id="cart")
        for name in ("txn_1", "ref-1"):
            shown = run("show", name, "--store", url)
            assert re.search(r"^key +order-1$", shown.stdout, re.MULTILINE)
            assert shown.stderr == f"mobilemoney payments: {name!r} is a name of the payment with the key 'order-1'\n"
        several = run("show", "cart", "--store", url)
        assert (several.exit_code, "'order-1', 'order-2'" in several.stderr) == (1, True)

    def test_the_newest_are_shown_and_the_rest_is_not_hidden(self, sandbox: Sandbox, url: str) -> None:
        """A limit shows the newest, oldest first, and says that there are more."""
        pay(sandbox, url, *(f"order-{number}" for number in range(4)))
        result = run("list", "--store", url, "--limit", "2")
        assert [row.split()[0] for row in result.stdout.splitlines()[1:]] == ["order-2", "order-3"]
        assert result.stderr == ("mobilemoney payments: these are the newest 2; there are more (--limit 0 shows all)\n")
        for limit in ("4", "0"):
            result = run("list", "--store", url, "--limit", limit)
            assert len(result.stdout.splitlines()) == 5
            assert not result.stderr

    def test_monitoring_sees_what_is_unresolved(self, sandbox: Sandbox, url: str) -> None:
        """With --exit-code the command ends with 3 where a payment is unknown, else with 0."""
        pay(sandbox, url, "order-1")
        assert run("list", "--store", url, "--unresolved", "--exit-code").exit_code == 0
        pay(sandbox, url, "order-2", fault=faults.drop(processed=False))
        assert run("list", "--store", url, "--unresolved", "--exit-code").exit_code == 3
        assert run("list", "--store", url, "--unresolved").exit_code == 0

    def test_monitoring_sees_what_the_queue_keeps(self, url: str) -> None:
        """Above a limit, or like an unknown one; not what waits for its turn or for the service to come back."""
        unresolved = ("list", "--store", url, "--unresolved")
        for key, cause in {"a": None, "b": "DELAYED", "c": "WAITS", "d": "HELD"}.items():
            insert(url, key=key, state="QUEUED", cause=cause, about=cause)
            assert run(*unresolved, "--exit-code").exit_code == (3 if key in "cd" else 0)
        assert [each["key"] for each in run_json(*unresolved)] == ["c", "d"]

    def test_accounts_are_apart(self, sandbox: Sandbox, url: str) -> None:
        """One merchant's payments are not shown among another's."""
        pay(sandbox, url, "order-1", account="shop")
        assert run_json("list", "--store", url, "--account", "shop") != []
        result = run("list", "--store", url)
        assert result.exit_code == 0
        assert not result.stdout
        assert result.stderr == "mobilemoney payments: no such payments of account 'default'\n"

    def test_json_holds_what_a_program_needs(self, sandbox: Sandbox, url: str) -> None:
        """Amounts and times are text, numbers are masked, unless they are asked for."""
        pay(sandbox, url, "order-1")
        (record,) = run_json("list", "--store", url)
        assert (record["key"], record["amount"], record["state"]) == ("order-1", "1000", "ACKNOWLEDGED")
        assert datetime.fromisoformat(record["sent_at"]).tzinfo is not None
        assert record["phone_number"] == mask_phone_number(NUMBER)
        (record,) = run_json("list", "--store", url, "--unmasked")
        assert record["phone_number"] == NUMBER


class TestShow:
    def test_it_shows_why_an_acknowledgement_was_not_believed(self, sandbox: Sandbox, url: str) -> None:
        """The history names what differs, and the transaction, also once the payment was found."""

        def change(reply: Reply) -> Reply:
            return attrs.evolve(reply, body=json.dumps({**json.loads(reply.body), "amount": "900"}).encode())

        pay(sandbox, url, "order-1", fault=faults.Fault(name="another amount", change=change))
        said = f"{next(iter(sandbox.transactions))}: the acknowledgement names another amount"
        record = run_json("show", "order-1", "--store", url, "--unmasked")
        assert [each["what"] for each in record["history"]] == ["sent", "unknown", "adopted"]
        assert record["history"][1]["detail"] == said
        assert said in " ".join(run("show", "order-1", "--store", url).stdout.split())

    def test_it_shows_the_history_and_what_to_do(self, sandbox: Sandbox, url: str) -> None:
        """One payment is shown with everything that happened to it, and the next step."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=True))
        result = run("show", "order-1", "--store", url)
        assert result.exit_code == 0, result.stderr
        assert re.search(r"^state +UNKNOWN$", result.stdout, re.MULTILINE)
        assert re.search(r"^.*\d\d:\d\d:\d\d +sent +answer ", result.stdout, re.MULTILINE)
        assert re.search(r"^.*\d\d:\d\d:\d\d +unknown +answer ", result.stdout, re.MULTILINE)
        assert "Look for it in the service's list. That may show it until" in result.stdout
        assert f"\n  mobilemoney payments reconcile --store {url}\n" in result.stdout
        assert NUMBER not in result.stdout
        assert "not called absent" not in result.stdout
        reason = "no later payment to compare with"
        execute(url, "UPDATE mobilemoney_payment_records SET cause = 'NO_LATER'")
        shown = run("show", "order-1", "--store", url).stdout
        assert re.search(rf"^not called absent because +{reason}$", shown, re.MULTILINE)
        assert re.search(
            r"^what to do +The list may show it until [\d-]* ?\d\d:\d\d UTC. Reconcile again at", shown, re.MULTILINE
        )
        record = run_json("show", "order-1", "--store", url)
        assert (record["reason"], record["cause"]) == (reason, "NO_LATER")
        assert [entry["what"] for entry in record["history"]] == ["sent", "unknown"]

    def test_it_shows_which_transaction_someone_has_named(self, sandbox: Sandbox, url: str) -> None:
        """The history has the id as it is, and the note without its secrets."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=True))
        (name,) = sandbox.transactions

        async def identify() -> None:
            async with sandbox.client(store=SQLStore(url)) as client:
                await client.payments.identify("order-1", name, note=f"Asha: books, PIN 4455, {NUMBER}")

        anyio.run(identify)
        shown = run("show", "order-1", "--store", url).stdout
        assert f"person  {name}: Asha: books" in shown
        assert "4455" not in shown and NUMBER not in shown

    def test_a_key_that_was_never_used_is_an_error(self, sandbox: Sandbox, url: str) -> None:
        pay(sandbox, url, "order-1")
        result = run("show", "order-2", "--store", url)
        assert result.exit_code == 1
        assert result.stderr == "mobilemoney payments: there is no payment 'order-2' of account 'default'\n"

    def test_no_text_commands_the_terminal(self, sandbox: Sandbox, url: str) -> None:
        """Keys and notes of anybody are shown as they are: neither as markup nor as a terminal's commands."""
        key = "order-[red]"
        pay(sandbox, url, key, fault=faults.drop(processed=True))
        age(url)
        assert run("confirm-absent", key, "--store", url, "--note", f"{ESCAPE} {NUMBER}", "--yes").exit_code == 0
        assert key in run("list", "--store", url).stdout
        shown = run("show", key, "--store", url).stdout
        assert "[2J[red] +25" in shown
        assert "\x1b[2J" not in shown and NUMBER not in shown
        assert NUMBER in run("show", key, "--store", url, "--unmasked").stdout


class TestUnclaimed:
    @pytest.fixture
    def paid_twice(self, sandbox: Sandbox, url: str) -> str:
        """The id of a transaction that another system has made, of the same kind as order-1."""

        async def work() -> str:
            order: dict[str, Any] = {"phone_number": NUMBER, "amount": 1_000}
            async with sandbox.client(store=SQLStore(url, grace=0), timeout=1) as client, sandbox.client() as other:
                await client.disbursements.create(**order, idempotency_key="order-1")
                made = await other.disbursements.create(**order)
                for _ in range(2):
                    await client.transactions.page()
                    await anyio.sleep(7)
                return made.transaction_id

        return run_virtual(work)

    def test_they_are_listed_and_explained(self, url: str, paid_twice: str) -> None:
        """An operator sees what a transaction may be, says what it is, and it is gone from the list."""
        (row,) = run_json("unclaimed", "--store", url)
        assert (row["transaction_id"], row["fits_key"], row["state"]) == (paid_twice, "order-1", "open")
        assert row["phone_number"] == mask_phone_number(NUMBER)
        shown = run("unclaimed", "--store", url)
        assert re.search(f"^{paid_twice} .*1,000 .*order-1 .*open", shown.stdout, re.MULTILINE)
        assert NUMBER not in shown.output
        explained = run("explain", paid_twice, "--note", f"Asha {ESCAPE} {NUMBER}", "--store", url)
        assert explained.exit_code == 0, explained.stderr
        assert f"{paid_twice}: explained" in explained.stdout
        assert run_json("unclaimed", "--store", url) == []
        everything = run("unclaimed", "--all", "--store", url)
        assert "explained: Asha" in everything.stdout
        assert ESCAPE not in everything.stdout and NUMBER not in everything.stdout
        assert NUMBER not in run("unclaimed", "--all", "--store", url, "--json").stdout
        assert "no such transactions" in run("unclaimed", "--store", url).stderr

    def test_several_are_explained_at_once(self, url: str, paid_twice: str) -> None:
        """Also one that no list has shown so far, which is said: it may be mistyped."""
        done = run("explain", paid_twice, "txn-0", "--note", "Asha", "--store", url)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.splitlines() == [
            f"{paid_twice}: explained. It stops no payment any more.",
            "txn-0: explained. No list has shown this id so far: check it.",
        ]

    def test_filters_explain_what_they_have_printed(self, url: str, paid_twice: str) -> None:
        """After an answer; another number, an earlier day, and ids beside a filter choose nothing."""
        command = ("explain", "--note", "Asha", "--store", url)
        assert "no such transactions" in run(*command, "--phone", "+255681999999").stderr
        assert "no such transactions" in run(*command, "--before", "2020-01-01").stderr
        for wrong in ((), ("--lost",), (paid_twice, "--phone", NUMBER), ("--before", "soon")):
            assert run(*command, *wrong).exit_code == 2
        left = run(*command, "--phone", NUMBER, answer="n\n")
        assert (left.exit_code, paid_twice in left.stdout) == (1, True)
        assert len(run_json("unclaimed", "--store", url)) == 1
        done = run(*command, "--phone", NUMBER, "--before", "2999-01-01", "--yes")
        assert done.exit_code == 0, done.stderr
        assert f"{paid_twice}: explained" in done.stdout
        assert run_json("unclaimed", "--store", url) == []

    @pytest.mark.parametrize("note", [(), ("--note", " ")])
    def test_an_explanation_needs_words(self, url: str, paid_twice: str, note: tuple[str, ...]) -> None:
        assert run("explain", paid_twice, *note, "--store", url).exit_code == 2
        assert len(run_json("unclaimed", "--store", url)) == 1

    def test_the_next_payment_of_its_kind_says_what_to_do(
        self, url: str, paid_twice: str, served: dict[str, str]
    ) -> None:
        """Nothing is sent, and the message names the commands."""
        order = ["disburse", NUMBER, "1000", "--key", "order-2", "--yes"]
        stopped = mobilemoney(*order, **served, MOBILEMONEY_STORE=url)
        assert stopped.exit_code == 1, stopped.output
        assert "nothing was sent" in stopped.stderr
        assert "mobilemoney payments unclaimed" in stopped.stderr
        assert stopped.stderr.count(f"mobilemoney payments explain {paid_twice} --note TEXT") == 1
        assert "payments.explain(" not in stopped.stderr


class TestReconcile:
    def test_a_queued_payment_that_could_not_be_sent_says_why(
        self, sandbox: Sandbox, url: str, served: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as one whose kind a forgotten transaction stops, wherever in the queue it is."""
        monkeypatch.setattr(payments, "_LIMIT", 1)
        pay(sandbox, url, "order-1")
        why = "the store has forgotten payments, and transaction tx-1 at the service may be this one"
        insert(url, key="order-0", state="QUEUED", attempt=0)
        insert(url, key="order-2", state="QUEUED", attempt=0, cause="WAITS", about=why)
        shown = run("reconcile", MOBILEMONEY_STORE=url, **served).stdout
        assert shown.count(f"order-2: QUEUED. It could not be sent: {why}.") == 1

    @pytest.mark.slow
    def test_a_payment_that_exists_is_found(self, sandbox: Sandbox, url: str, served: dict[str, str]) -> None:
        """A payment whose answer was lost is found in the service's list, and named with its transaction."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=True))
        result = run("reconcile", "--exit-code", MOBILEMONEY_STORE=url, **served)
        assert result.exit_code == 0, result.output
        (transaction_id,) = sandbox.transactions
        assert re.search(rf"^order-1 .*\b{transaction_id}\b", result.stdout, re.MULTILINE)
        assert "1 resolved, 0 still unresolved, 0 being sent." in result.stdout
        result = run("reconcile", MOBILEMONEY_STORE=url, **served)
        assert "No payment of account 'default' has an unknown result." in result.stdout

    @pytest.mark.slow
    def test_a_payment_that_is_not_there_becomes_absent(
        self, sandbox: Sandbox, url: str, served: dict[str, str]
    ) -> None:
        """Two runs after the grace period without it make a payment absent, and the command says what to do."""
        pay(sandbox, url, "before", amount=900)
        pay(sandbox, url, "order-1", fault=faults.drop(processed=False))
        pay(sandbox, url, "after", amount=901)
        first = run("reconcile", "--grace", "0", "--exit-code", MOBILEMONEY_STORE=url, **served)
        assert first.exit_code == 3, first.output
        assert "UNKNOWN" in first.stdout
        second = run("reconcile", "--grace", "0", MOBILEMONEY_STORE=url, **served)
        assert second.exit_code == 0, second.output
        assert "ABSENT" in second.stdout
        assert "\n  mobilemoney payments confirm-absent order-1 --note 'YOUR NAME: WHAT YOU SAW'\n" in second.stdout
        assert "0 resolved, 1 still unresolved" in second.stdout

    @pytest.mark.slow
    def test_a_payment_that_was_just_looked_for_has_a_time(
        self, sandbox: Sandbox, url: str, served: dict[str, str]
    ) -> None:
        """Right after reconcile it says when to reconcile again, with the options that were given."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=False))
        for _ in range(2):
            shown = run("reconcile", "--grace", "300", "--store", url, **served).stdout
            assert re.search(r"UNKNOWN[.] The list may show it until (.*UTC)[.] Reconcile again at \1[.]\n", shown)
            assert f"\n  mobilemoney payments reconcile --grace 300 --store {url}\n" in shown
            assert "has an unknown result" not in shown

    @pytest.mark.costly("runs lines of cli/payments.py that no quick test runs")
    def test_several_candidates_are_named(self, sandbox: Sandbox, url: str, served: dict[str, str]) -> None:
        """Where several transactions may be the payment, they are named, and a person decides."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=True))

        async def pay_elsewhere() -> None:
            async with sandbox.client() as client:
                await client.collections.create(phone_number=NUMBER, amount=1_000)

        anyio.run(pay_elsewhere)
        (record,) = run_json("reconcile", MOBILEMONEY_STORE=url, **served)
        assert sorted(record["candidates"]) == sorted(sandbox.transactions)
        result = run("show", "order-1", "--store", url)
        assert "UNKNOWN, ambiguous" in result.stdout
        assert all(each in result.stdout for each in sandbox.transactions)
        chosen = next(iter(sandbox.transactions))
        result = run("identify", "order-1", chosen, "--note", "it is ours", MOBILEMONEY_STORE=url, **served)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("order-1: ACKNOWLEDGED.") or result.stdout.startswith("order-1: FINAL.")
        assert "it is ours" in run("show", "order-1", "--store", url).stdout

    @pytest.mark.costly("runs lines of cli/payments.py that no quick test runs")
    def test_what_a_dead_process_left_is_taken_up(self, url: str, sandbox: Sandbox, served: dict[str, str]) -> None:
        """A payment that nobody sends any more counts as unknown with --stale-after 0."""
        pay(sandbox, url, "order-1")

        async def die() -> None:
            """Be killed between the request and its record."""
            from mobilemoney_async.payments.creates.attempts import Beginning
            from mobilemoney_async.payments.ownership.duplicates import DuplicateGuard
            from mobilemoney_async.payments.records.record import PaymentRequest
            from mobilemoney_async.payments.store import account_store

            order = PaymentRequest(key="order-2", type=TransactionType.COLLECTION, phone_number=NUMBER, amount="7")
            await account_store(SQLStore(url)).write(
                lambda journal: Beginning(DuplicateGuard(), order, None, 60).begin(journal, datetime.now(UTC))
            )

        anyio.run(die)
        assert "wait" in run("show", "order-2", "--store", url).stdout
        before = run("reconcile", "--exit-code", MOBILEMONEY_STORE=url, **served)
        assert before.exit_code == 0
        assert "0 resolved, 0 still unresolved, 1 being sent." in before.stdout
        after = run("reconcile", "--stale-after", "0", "--exit-code", MOBILEMONEY_STORE=url, **served)
        assert after.exit_code == 3
        assert re.search("^order-2 .*UNKNOWN", after.stdout, re.MULTILINE)

    def test_a_service_that_fails_is_one_line(self, sandbox: Sandbox, url: str, served: dict[str, str]) -> None:
        """Where the list cannot be read, nothing is recorded, and the command ends with 1."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=True))
        result = run("reconcile", MOBILEMONEY_STORE=url, **{**served, "MOBILEMONEY_TOKEN": "wrong"})
        assert result.exit_code == 1
        assert re.fullmatch(r"mobilemoney payments: invalid_token .*\n", result.stderr)
        assert not result.stdout

    @pytest.mark.slow
    def test_a_profile_has_it_all(
        self, sandbox: Sandbox, url: str, served: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Store, service and credentials of a profile serve every command; a flag names another store."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=True))
        config = tmp_path / "mobilemoney.toml"
        service = f'base_url = "{served["MOBILEMONEY_BASE_URL"]}"\ntoken = "{sandbox.token}"'
        config.write_text(f'profile = "shop"\n[profiles.shop]\n{service}\nstore = "{url}"\n', "utf-8")
        config.chmod(0o600)
        monkeypatch.chdir(tmp_path)
        assert "order-1" in run("list").stdout
        assert "UNKNOWN" in run("show", "order-1").stdout
        result = run("reconcile")
        assert result.exit_code == 0, result.stderr
        assert "1 resolved" in result.stdout
        assert run("list", "--profile", "sandbox").exit_code == 2
        assert "there is no file" in run("list", "--store", "sqlite:///other.db").stderr

    def test_each_command_of_an_advice_has_the_profile(
        self, url: str, served: dict[str, str], sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also in a text that knew nothing of the command line, such as a reason of the store: it can be copied."""
        pay(sandbox, url, "order-1")
        config, service = tmp_path / "mobilemoney.toml", f'base_url = "{served["MOBILEMONEY_BASE_URL"]}"'
        config.write_text(f'[profiles.shop]\n{service}\ntoken = "{sandbox.token}"\nstore = "{url}"\n', "utf-8")
        config.chmod(0o600)
        monkeypatch.chdir(tmp_path)
        with sa.create_engine(url, poolclass=sa.pool.NullPool).begin() as connection:
            why = str(lost_payment_error("tx-1", "order-2"))
            insert_payment(connection, key="order-2", state="QUEUED", attempt=0, cause="WAITS", about=why)
        shop = ("--profile", "shop")
        shown = run("show", "order-2", *shop, COLUMNS="80").stdout  # no command is broken
        assert "mobilemoney payments recover --profile shop order-2=tx-1 --note TEXT or" in shown
        assert "mobilemoney payments explain --profile shop tx-1 --note TEXT" in shown
        wrong = mobilemoney("accounts", "resume", "shop-2", *shop).stderr
        assert "mobilemoney accounts list --all --profile shop shows them" in wrong
        mobilemoney("accounts", "suspend", "default", "--note", "x", *shop)
        stopped = mobilemoney("collect", NUMBER, "1000", "--key", "order-3", *shop, "--account", "default").stderr
        assert "after mobilemoney accounts resume --profile shop default\n" in stopped

    @pytest.mark.parametrize("name", ["-1", "--store", "--", "it's $HOME"])
    def test_a_command_with_any_key_and_id_can_be_pasted(self, sandbox: Sandbox, url: str, name: str) -> None:
        """Neither is taken for an option, nor changed by the shell; also in a text that knew nothing of the options."""
        pay(sandbox, url, "order-1")
        insert(url, key=name, state="QUEUED", attempt=0, cause="WAITS", about=str(lost_payment_error(name, "order-2")))
        shown = run("show", "--store", url, "--", name).stdout
        (explain,) = re.findall(r"(?<=mobilemoney )payments explain .*?(?= \(if other)", shown)
        explained = mobilemoney(*shlex.split(explain))
        assert explained.stdout.startswith(f"{name}: explained."), explained.stderr
        (cancel,) = re.findall(r"(?<=  mobilemoney )payments cancel .*", shown)
        assert mobilemoney(*shlex.split(cancel), answer="y\n").exit_code == 0
        assert run("list", "--state", "CANCELLED", "--store", url, "--json").stdout.count('"key"') == 1
        execute(url, "UPDATE mobilemoney_payment_records SET state = 'RELEASED' WHERE state = 'CANCELLED'")
        (collect,) = re.findall("mobilemoney collect .*", run("show", "--store", url, "--", name).stdout)
        given = mobilemoney(*shlex.split(collect)[1:]).stderr
        assert "PHONE must be" in given or "no service is named" in given, given

    def test_the_service_must_be_named(
        self, sandbox: Sandbox, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sandbox that happens to run is not asked for payments that may be another service's."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        pay(sandbox, url, "order-1", fault=faults.drop(processed=True))
        for command in (["reconcile"], ["identify", "order-1", "txn_1", "--note", "x"]):
            result = run(*command, "--store", url)
            assert result.exit_code == 2
            assert "no service is named" in result.stderr and "MOBILEMONEY_TOKEN" in result.stderr
            assert run(*command, MOBILEMONEY_STORE=url).exit_code == 2


def age(url: str) -> None:
    """Let ten minutes pass since the requests of all payments."""
    table, past = schema.payments, timedelta(minutes=10)
    for row in execute(url, sa.select(table.c.key, table.c.sent_at, table.c.ended_at)):
        times = {"sent_at": row.sent_at - past, "ended_at": row.ended_at - past}
        execute(url, table.update().where(table.c.key == row.key).values(times))


def test_commands_keep_the_changes_that_the_program_keeps(sandbox: Sandbox, url: str, tmp_path: Path) -> None:
    """They remove none for their age, since a program may keep them for longer; only a profile may say for how long."""

    async def cancel() -> None:
        async with sandbox.client(store=SQLStore(url)) as client:
            given: dict[str, Any] = {"phone_number": NUMBER, "amount": 1000, "idempotency_key": "order-1"}
            await client.payments.enqueue(type="collection", **given)
            await client.payments.cancel("order-1", note="Asha: out of stock")

    anyio.run(cancel)
    past = timedelta(days=400)
    for table, column in ((schema.changes, "at"), (schema.payments, "changed_at")):
        for row in execute(url, sa.select(table)):
            execute(url, table.update().values({column: getattr(row, column) - past}))
    count = len(run_json("changes", "--store", url))
    assert len(run_json("changes", "--store", url)) == count > 0
    lines = [f'store = "{url}"', "store_options = { keep_changes = 365 }"]
    (tmp_path / "mobilemoney.toml").write_text(
        "\n".join(["[profiles.shop]", 'base_url = "https://pay.example"', *lines])
    )
    with_profile = ("changes", "--profile", "shop", "--config", str(tmp_path / "mobilemoney.toml"))
    run_json(*with_profile)
    assert run_json("changes", "--store", url) == []


class TestQueue:
    def test_list_and_show_say_why_a_queued_payment_waits(self, url: str) -> None:
        """No process dispatches, the queue is paused, or the payment itself is held."""
        insert(url, key="order-1")
        assert run("list", MOBILEMONEY_STORE=url).stderr == ""
        insert(url, key="order-2", state="QUEUED", attempt=0, cause="HELD", about="order-1")
        listed = run("list", MOBILEMONEY_STORE=url)
        assert re.search("^order-2 .* QUEUED, held", listed.stdout, re.MULTILINE)
        assert listed.stderr == run("show", "order-2", MOBILEMONEY_STORE=url).stderr != ""
        execute(url, "INSERT INTO mobilemoney_accounts (account, paused) VALUES ('default', 'the float is empty')")
        assert "the float is empty" in run("list", MOBILEMONEY_STORE=url).stderr


class TestCancel:
    def test_a_queued_payment_is_taken_out_after_a_yes(self, url: str) -> None:
        """`show` gives the command; the key is used up, unless it is to be used again."""
        for key in ("order-1", "order-2"):
            insert(url, key=key, state="QUEUED", attempt=0)
        command = "  mobilemoney payments cancel order-1 --note 'YOUR NAME: WHAT YOU SAW'"
        for columns in ("40", "80"):
            assert command in run("show", "order-1", MOBILEMONEY_STORE=url, COLUMNS=columns).stdout.splitlines()
        cancel = ("cancel", "order-1", "--note", "Asha", "--store", url)
        left = run(*cancel, answer="n\n")
        assert (left.exit_code, "nothing was changed" in left.stderr) == (1, True)
        done = run(*cancel, answer="y\n")
        assert done.stdout.splitlines()[-1].startswith("order-1: CANCELLED. It was cancelled, and its key is used up.")
        again = run("cancel", "order-2", "--note", "Asha", "--reusable", "--yes", "--store", url)
        assert again.stdout == "order-2: NOT_SENT. It never reached the service: its key may be used again.\n"

    def test_a_payment_that_is_not_queued_is_left_alone(self, url: str) -> None:
        insert(url, key="order-1")
        for options in ((), ("--yes",)):
            result = run("cancel", "order-1", "--note", "Asha", *options, "--store", url)
            assert result.exit_code == 1
            assert result.stderr.endswith("payment 'order-1' is UNKNOWN, not queued: nothing was changed\n")
        missing = run("cancel", "order-9", "--note", "Asha", "--yes", "--store", url)
        assert (missing.exit_code, "there is no payment 'order-9'" in missing.stderr) == (1, True)


class TestConfirmAbsent:
    @pytest.mark.costly("runs lines of cli/options.py that no quick test runs")
    def test_it_asks_back_and_says_what_it_means(self, sandbox: Sandbox, url: str) -> None:
        """Money may move again only after a yes; the note and the person's word stand in the history."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=False))
        age(url)
        command = ("confirm-absent", "order-1", "--note", "Asha asked the service", "--store", url)
        for answer in ("n\n", "\n", ""):
            result = run(*command, answer=answer)
            assert result.exit_code == 1
            assert "the payment is made twice" in result.stdout
            assert "nothing was changed" in result.stderr.splitlines()[-1]
            assert run_json("list", "--store", url, "--unresolved") != []
        result = run(*command, answer="y\n")
        assert result.exit_code == 0, result.stderr
        *_, last, command_line = result.stdout.splitlines()
        assert last.startswith("order-1: RELEASED. ") and "Nothing sends it again by itself" in last
        assert command_line == f"  mobilemoney collect PHONE 1000 --key order-1 --store {url}"
        history = run("show", "order-1", "--store", url).stdout
        assert re.search(r"confirmed +person +Asha asked the service$", history, re.MULTILINE)

    def test_the_command_for_a_key_like_an_option_works_as_it_is_printed(self, url: str) -> None:
        """It has the key behind --, and the rest in front. With --yes nothing is asked, and the next step is told."""
        insert(url, key="-5", state="ABSENT", sent_at="2026-01-02 12:00:00")
        shown = run("show", "--store", url, "--", "-5").stdout
        (line,) = re.findall("^ *mobilemoney payments (confirm-absent .*)$", shown, re.MULTILINE)
        assert line.endswith(f" --store {url} -- -5")
        name, *rest = shlex.split(line)
        done = run(name, "--yes", *rest)
        assert (done.exit_code, done.stdout.split()[:2]) == (0, ["-5:", "RELEASED."]), done.stderr
        assert len(done.stdout.splitlines()) == 2

    def test_the_profile_says_how_long_the_list_may_hide_a_payment(
        self, sandbox: Sandbox, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program with a longer grace period is not undercut by a command: the profile tells both."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=False))
        age(url)
        file = tmp_path / "mobilemoney.toml"
        lines = ['base_url = "https://pay.example/v1"', f'store = "{url}"', "store_options = { grace = 3600 }"]
        file.write_text("\n".join(["[profiles.shop]", *lines]))
        command = ("confirm-absent", "order-1", "--note", "Asha", "--yes")
        refused = run(*command, "--profile", "shop", "--config", str(file))
        assert "may exist without being in the list" in refused.stderr
        variables = {"MOBILEMONEY_CONFIG": str(file), "MOBILEMONEY_PROFILE": "shop", "MOBILEMONEY_STORE": url}
        refused = run(*command, **variables)
        assert "may exist without being in the list" in refused.stderr
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

        async def confirm() -> None:
            async with AsyncClient.from_env(auth="token") as client:
                with pytest.raises(StoreError, match="may exist without being in the list"):
                    await client.payments.confirm_absent("order-1", note="Asha")

        anyio.run(confirm)
        monkeypatch.undo()
        assert run(*command, "--store", url).exit_code == 0

    def test_nobody_is_asked_about_a_payment_that_exists(
        self, sandbox: Sandbox, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who gives the key of a payment that is known sees it, and is not asked for a word that would not count."""
        pay(sandbox, url, "order-1")
        monkeypatch.setattr("typer.confirm", lambda *args, **options: pytest.fail("somebody was asked"))
        result = run("confirm-absent", "order-1", "--note", "x", "--store", url)
        assert result.exit_code == 1
        assert "ACKNOWLEDGED" in result.stdout
        assert result.stderr.endswith("is ACKNOWLEDGED, not unknown or absent: nothing was changed\n")
        result = run("confirm-absent", "order-1", "--note", "x", "--yes", "--store", url)
        assert result.exit_code == 1
        assert result.stderr == "mobilemoney payments: payment 'order-1' is ACKNOWLEDGED, not unknown or absent\n"

    def test_an_unknown_key_and_a_blank_note_are_errors(self, sandbox: Sandbox, url: str) -> None:
        pay(sandbox, url, "order-1", fault=faults.drop(processed=False))
        assert run("confirm-absent", "order-9", "--note", "x", "--yes", "--store", url).exit_code == 1
        assert run("confirm-absent", "order-1", "--note", " ", "--yes", "--store", url).exit_code == 2
        assert run("confirm-absent", "order-1", "--yes", "--store", url).exit_code == 2

    @pytest.mark.costly("runs lines of cli/payments.py that no quick test runs")
    def test_a_payment_that_changed_while_the_person_thought_is_left_alone(
        self, sandbox: Sandbox, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A person's word is about what they were shown, not about a later attempt of the same key."""
        pay(sandbox, url, "order-1", fault=faults.drop(processed=False))
        age(url)

        def think(*args: object, **options: object) -> bool:
            run("confirm-absent", "order-1", "--note", "somebody else was faster", "--yes", "--store", url)
            pay(sandbox, url, "order-1", fault=faults.drop(processed=True))
            return True

        monkeypatch.setattr("typer.confirm", think)
        result = run("confirm-absent", "order-1", "--note", "x", "--store", url)
        assert result.exit_code == 1
        assert "has changed in the meantime" in result.stderr
        (record,) = run_json("list", "--store", url)
        assert (record["state"], record["attempt"]) == ("UNKNOWN", 2)


class TestUsage:
    def test_no_store_is_made_by_looking(self, tmp_path: Path) -> None:
        """A mistyped file is an error, not an empty store."""
        path = tmp_path / "payment.db"
        for command in (("list",), ("show", "order-1"), ("confirm-absent", "order-1", "--note", "x")):
            result = run(*command, "--store", f"sqlite:///{path}")
            assert result.exit_code == 1
            assert result.stderr.startswith(f"mobilemoney payments: there is no file {path}: check the name")
            assert result.stderr.count("\n") == 1
        assert not path.exists()

    def test_a_file_that_is_no_database_is_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database " * 100, encoding="utf-8")
        result = run("list", "--store", f"sqlite:///{path}")
        assert result.exit_code == 1
        assert result.stderr.startswith("mobilemoney payments: the store failed: ")
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql+psycopg://shop:hunter2@db.example/payments",
            "postgresql+psycopg://shop:hun/ter2@db.example/payments",
            "postgresql+psycopg://shop@db.example/payments?password=hunter2",
            "postgresql+psycopg://shop@db.example/payments?sslmode=require&sslpassword=hunter2",
        ],
    )
    def test_a_password_is_not_taken_from_an_argument(self, url: str) -> None:
        """Other users of the machine can read arguments: a URL with a password must come from the environment."""
        result = run("list", "--store", url)
        assert result.exit_code == 2
        assert "MOBILEMONEY_STORE" in result.stderr
        assert "ter2" not in result.output

    def test_a_password_is_taken_from_the_environment_and_not_shown(self) -> None:
        """There it is the right place; a database that cannot be reached is one line."""
        url = "postgresql+psycopg://shop:hunter2@127.0.0.1:9/payments"
        result = run("list", MOBILEMONEY_STORE=url)
        assert result.exit_code == 1
        assert result.stderr.startswith("mobilemoney payments: the store failed: ")
        assert "hunter2" not in result.output

    @pytest.mark.parametrize(
        "arguments",
        [
            ["list"],
            ["list", "--store", "mysql://host/database"],
            ["list", "--store", "sqlite://"],
            ["list", "--store", "nonsense"],
            ["list", "--store", "sqlite:///p.db", "--state", "lost"],
            ["list", "--store", "sqlite:///p.db", "--state", "unknown", "--unresolved"],
            ["list", "--store", "sqlite:///p.db", "--limit", "-1"],
            ["reconcile", "--store", "sqlite:///p.db", "--grace", "-1"],
            ["show", "--store", "sqlite:///p.db"],
        ],
        ids=" ".join,
    )
    def test_wrong_usage_ends_with_2(self, arguments: list[str]) -> None:
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output

    def test_without_the_extra_the_command_says_which_to_install(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without the extra `store` the command names it in one line."""
        Path(url.removeprefix("sqlite:///")).touch()
        monkeypatch.setitem(sys.modules, "sqlalchemy", None)
        result = run("list", "--store", url)
        assert result.exit_code == 2
        assert result.stderr == ('mobilemoney payments: store needs an extra: pip install "mobilemoney-async[store]"\n')

    @pytest.mark.parametrize(
        "command",
        [
            *("list", "show", "reconcile", "identify", "confirm-absent"),
            *("unclaimed", "explain", "recover", "restored", "rebind"),
        ],
    )
    def test_help_fits_what_a_person_wants_to_know(self, command: str) -> None:
        """Each command explains itself, and where the store and its password come from."""
        result = run(command, "--help", COLUMNS="120")
        assert result.exit_code == 0
        assert "MOBILEMONEY_STORE" in result.stdout


def make_record(state: PaymentState, **changes: object) -> PaymentRecord:
    fields: dict[str, object] = {
        "key": "order-1",
        "type": TransactionType.COLLECTION,
        "phone_number": NUMBER,
        "amount": 1,
        "state": state,
        "attempt": 1,
        "created_at": NOON,
        "changed_at": NOON,
        "stale_at": NOON,
    }
    return PaymentRecord(**{**fields, **changes})  # type: ignore[arg-type]


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("state", PaymentState)
def test_what_needs_attention(state: PaymentState) -> None:
    """Only payments of which nobody knows are worth an alarm."""
    alarming = {PaymentState.SENDING, PaymentState.UNKNOWN, PaymentState.ABSENT}
    assert needs_attention(make_record(state), NOON) == (state in alarming)
    early = NOON - timedelta(seconds=1)
    assert needs_attention(make_record(state), early) == (state in alarming - {PaymentState.SENDING})


class TestRecover:
    @pytest.fixture
    def forgotten(self, sandbox: Sandbox, url: str) -> dict[str, str]:
        """Payments that the store has forgotten, found by a payment ten minutes later: transactions by key."""
        pay(sandbox, url, "order-1", "order-2", "order-3")
        for table, key in (("payment_history", "key"), ("payment_records", "key"), ("changes", "name")):
            execute(url, f"DELETE FROM mobilemoney_{table} WHERE {key} <> 'order-1'")

        async def notice() -> None:
            later = timedelta(minutes=10)
            async with sandbox.client(store=SQLStore(url), utcnow=lambda: datetime.now(UTC) + later) as client:
                await client.collections.create(phone_number=NUMBER, amount=7, idempotency_key="order-4")

        anyio.run(notice)
        return dict(zip(("order-1", "order-2", "order-3"), sandbox.transactions, strict=False))

    def test_where_other_systems_pay_nothing_is_said_of_what_the_store_has_forgotten(
        self, url: str, tmp_path: Path
    ) -> None:
        """An empty list proves nothing there: the commands name the service's list instead."""
        pay(Sandbox(), url, "order-1")
        file = tmp_path / "mobilemoney.toml"
        for sole_writer in ("true", "false"):
            options = f'store = "{url}"\nstore_options = {{ sole_writer = {sole_writer} }}'
            file.write_text(f'[profiles.shop]\nbase_url = "https://pay.example"\n{options}\n')
            for command in ("recover", "unclaimed"):
                said = run(command, "--profile", "shop", "--config", str(file)).stderr
                assert ("in mobilemoney list --profile shop" in said) is (sole_writer == "false"), said

    def test_forgotten_transactions_are_listed_and_imported(
        self, forgotten: dict[str, str], url: str, served: dict[str, str], tmp_path: Path
    ) -> None:
        """Without arguments it lists them; pairs and files import them, each as the payment of a key."""
        assert {each["transaction_id"] for each in run_json("recover", "--store", url)} == {*forgotten.values()} - {
            forgotten["order-1"]
        }
        listed = run("recover", "--store", url)
        assert forgotten["order-2"] in listed.stdout
        assert "KEY=TRANSACTION_ID" in listed.stderr
        pair = f"order-2={forgotten['order-2']}"
        assert run("recover", pair, "--store", url, **served).exit_code == 2  # without a note
        result = run("recover", pair, "--note", "Asha", "--store", url, **served)
        assert result.exit_code == 0, result.stderr
        assert "order-2" in result.stdout
        file = tmp_path / "keys.csv"
        file.write_text(f"key,transaction_id\norder-3,{forgotten['order-3']}\n")
        result = run("recover", "--file", str(file), "--note", "Asha", "--store", url, **served)
        assert result.exit_code == 0, result.stderr
        assert run_json("recover", "--store", url) == []
        (entry,) = (
            each for each in run_json("show", "order-3", "--store", url)["history"] if each["what"] == "adopted"
        )
        assert entry["source"] == "person"

    def test_a_word_that_someone_has_compared_the_store(
        self, sandbox: Sandbox, url: str, served: dict[str, str]
    ) -> None:
        """After `grace` it ends the comparison that an earlier word has asked for; where none is due, it says that."""
        pay(sandbox, url, "order-1")
        compared = ["restored", "--compared", "--note", "Asha: on the dashboard", "--store", url]
        assert run(*compared, **served).exit_code == 1
        execute(url, "UPDATE mobilemoney_payment_records SET state = 'QUEUED', type = 'disbursement'")
        word = run("restored", "--note", "Asha: backup of Monday", "--store", url, **served)
        assert word.exit_code == 0, word.stderr
        assert f"mobilemoney payouts status --store {url} --resume" in word.stdout
        early = run(*compared, **served)
        assert (early.exit_code, "say so after" in early.stderr) == (1, True)
        execute(url, "UPDATE mobilemoney_accounts SET again_at = '2020-01-01 00:00:00'")  # once `grace` is over
        done = run(*compared, **served)
        assert done.exit_code == 0, done.stderr
        assert f"mobilemoney payments unclaimed --store {url}" in done.stdout
        assert run(*compared, **served).exit_code == 1

    def test_a_file_gives_the_numbers_that_the_service_hides(
        self, forgotten: dict[str, str], sandbox: Sandbox, url: str, served: dict[str, str], tmp_path: Path
    ) -> None:
        """Without the whole number, read as the profile says, nothing is imported; with it the payment has it."""
        config, service = tmp_path / "shop.toml", f'base_url = "{served["MOBILEMONEY_BASE_URL"]}"'
        config.write_text(f'[profiles.shop]\n{service}\ntoken = "{sandbox.token}"\nlocal_numbers = true\n')
        config.chmod(0o600)
        options = ("--profile", "shop", "--config", str(config), "--store", url)
        for name, payment in sandbox.transactions.items():
            sandbox._engine.book._payments[name] = attrs.evolve(payment, phone_number="25568***4501")
        file, columns = tmp_path / "keys.csv", "key,transaction_id,phone_number"
        for number, exit_code in (("", 1), ("681", 2), ("0681-234 501", 0), ("+255 681-234-501", 0)):
            # As spreadsheets write it.
            text = f"\ufeff{columns}\r\norder-2,{forgotten['order-2']},{number}\r\n"
            file.write_bytes(text.encode())
            result = run("recover", "--file", str(file), "--note", "Asha", *options)
            assert result.exit_code == exit_code, result.output
        assert run_json("show", "order-2", "--store", url, "--unmasked")["phone_number"] == NUMBER

    def test_a_number_that_contradicts_the_service_is_refused(
        self, forgotten: dict[str, str], url: str, served: dict[str, str], tmp_path: Path
    ) -> None:
        """A row that was mixed up in the file imports nothing."""
        file = tmp_path / "keys.csv"
        file.write_text(f"key,transaction_id,phone_number\norder-2,{forgotten['order-2']},+255681234599\n")
        result = run("recover", "--file", str(file), "--note", "Asha", "--store", url, **served)
        assert result.exit_code == 1
        assert "has another phone number (+25568…501, not +25568…599) than payment 'order-2'" in result.stderr
        assert run("show", "order-2", "--store", url).exit_code == 1

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"key,transaction_id\norder-2,tx-1\norder-2,tx-2\n", "a key is given twice"),
            (b"key,transaction_id\norder-1,tx-1\n", "a key is given twice"),
            (b"key,transaction\norder-2,tx-1\n", "a row with both columns"),
            (b"\xef\xbb\xbfkey;transaction_id\r\n\r\norder-2; tx-1\r\norder-2;tx-2;\r\n", "a key is given twice"),
            (b"key\ttransaction_id\norder-2\ttx-1\norder-2\ttx-2\n", "a key is given twice"),
            (b"PK\x03\x04key;transaction_id\n", "the file is no .xlsx that can be read"),
            (b"key,transaction_id\norder-2\n", "a row with both columns"),
            (b"key,transaction_id,phone_number\norder-2,tx-1,0681234501\n", "phone_number"),
            ("key,transaction_id\nMwanaidi é,tx-1\n".encode("latin-1"), "UTF-8"),
            (b"key,key,transaction_id\norder-2,order-3,tx-1\n", "a column twice"),
            (b"key,transaction_id\norder-2,tx-1,order-3\n", "more cells than the header"),
            (xlsx({1: ("key", "transaction_id"), 2: (20261128000000000017, "tx-1")}), "cell A2 is no text"),
            (b"", "names no payments"),
            (b"key,transaction_id\n", "names no payments"),
        ],
    )
    def test_files_are_checked(
        self, content: bytes, said: str, url: str, served: dict[str, str], tmp_path: Path
    ) -> None:
        """A file that does not say for each key which transaction it is changes nothing; an empty one is no import."""
        file = tmp_path / "keys.csv"
        file.write_bytes(content)
        pairs = [] if "names no" in said else ["order-1=tx-0"]
        result = run("recover", *pairs, "--file", str(file), "--note", "Asha", "--store", url, **served)
        assert result.exit_code == 2, result.output
        assert said in result.stderr

    def test_an_explanation_ends_the_stop_of_a_kind(self, forgotten: dict[str, str], url: str) -> None:
        """As an import does."""
        explained = run("explain", forgotten["order-2"], "--note", "Asha", "--store", url)
        assert "It stops no payment any more." in explained.stdout
        assert forgotten["order-2"] not in run("recover", "--store", url).stdout

    @pytest.mark.parametrize("arguments", [("order-2",), ("=x",), ("a=x", "a=y")])
    def test_pairs_are_checked(self, arguments: tuple[str, ...], url: str) -> None:
        """A key or a transaction that is missing, and a key that is given twice, are wrong usage."""
        assert run("recover", *arguments, "--note", "Asha", "--store", url).exit_code == 2

    @pytest.mark.parametrize(("key", "name"), [("k", "dHhuXzE="), ("a=b", "c"), ("-k=", "a=b=c"), ("=", "-=")])
    def test_the_command_that_is_shown_names_a_pair_that_holds_the_sign_between_them(
        self, key: str, name: str, url: str, served: dict[str, str]
    ) -> None:
        """The contract leaves the format of an id open: one may be base64."""
        result = run("recover", "--store", url, *recover(key, name)[2:], **served)
        assert f"this was {key!r}={name}" in result.stderr

    def test_another_key_is_refused(self, forgotten: dict[str, str], url: str, served: dict[str, str]) -> None:
        """A key of another payment keeps it."""
        result = run("recover", f"order-1={forgotten['order-2']}", "--note", "Asha", "--store", url, **served)
        assert result.exit_code == 1
        assert "order-1" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("payments reconcile", "payments audit --from today", "payouts status", "payouts status --resume"),
        *("payments restored --note Asha", "payments rebind --note Asha"),
    ],
)
def test_a_mistyped_account_is_named(command: str, sandbox: Sandbox, url: str, served: dict[str, str]) -> None:
    """All is well with an account that nobody has: so it is named, and a word for it says that it has no payment."""
    pay(sandbox, url, "order-1")
    for account in ("default", "defualt"):
        result = mobilemoney(*command.split(), "--store", url, "--account", account, **served)
        assert f"ccount {account!r}" in result.output
        assert ("if the name is wrong" in result.stderr) is (account == "defualt" and "--note" in command)


def test_an_account_is_bound_again(sandbox: Sandbox, url: str, served: dict[str, str]) -> None:
    """After the word of an operator the store serves other credentials."""
    pay(sandbox, url, "order-1")
    execute(url, "UPDATE mobilemoney_accounts SET host = 'elsewhere.example'")
    refused = run("reconcile", "--store", url, **served)
    assert refused.exit_code == 1
    assert "payments rebind" in refused.stderr
    for arguments in ((), ("--note", " ")):
        assert run("rebind", *arguments, "--store", url, **served).exit_code == 2
    assert run("reconcile", "--store", url, **served).exit_code == 1
    assert run("rebind", "--note", "Asha: the service has moved", "--store", url, **served).exit_code == 0
    assert run("reconcile", "--store", url, **served).exit_code == 0
