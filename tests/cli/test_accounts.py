"""`mobilemoney accounts`: an operator finds the merchant that needs someone, and decides whether one may pay."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from mobilemoney_async import AccountSuspended, OutcomeUnknown, PaymentState, RetryPolicy, SQLStore
from mobilemoney_async.database.schema import accounts
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.testing import run_virtual
from mobilemoney_async.text import mask_phone_number
from tests.support.commands import run as mobilemoney
from tests.support.databases import execute, sqlite_url

NUMBER, SUCCEEDS = "+255681234501", "+255780000789"


def run(*arguments: str, **variables: str) -> Any:
    return mobilemoney("accounts", *arguments, **variables)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with three accounts, of which `shop-2` has a payment with an unknown result."""
    url, sandbox = sqlite_url(tmp_path), Sandbox(merchants=3)

    async def pay() -> None:
        for account, token in sandbox.tokens.items():
            given = {"auth": token, "store": SQLStore(url, account), "retry": RetryPolicy(max_attempts=1)}
            async with sandbox.client(**given) as client:
                await client.collections.create(NUMBER, 1_000, idempotency_key="order-1")
                if account == "shop-2":
                    sandbox.script(faults.drop(processed=False), on="c2b")
                    with pytest.raises(OutcomeUnknown):
                        await client.collections.create(NUMBER, 2_000, idempotency_key="lost")

    run_virtual(pay)
    return url


def create(url: str, account: str, type: str = "collection") -> PaymentState:
    async def work() -> PaymentState:
        async with Sandbox().client(store=SQLStore(url, account)) as client:
            record = await client.payments.enqueue(
                type=type, phone_number=NUMBER, amount=3_000, idempotency_key=f"new {type}"
            )
            return record.state

    return run_virtual(work)


def test_the_list_names_who_needs_someone_and_why(url: str) -> None:
    """One call for all accounts, for people and for programs."""
    result = run("list", "--store", url)
    assert result.exit_code == 0, result.stderr
    assert [line.split()[:5] for line in result.stdout.splitlines()[1:]] == [["shop-2", "unknown", "1", "1", "0"]]
    everything = run("list", "--all", "--store", url).stdout
    assert [line.split()[0] for line in everything.splitlines()[1:]] == ["shop-1", "shop-2", "shop-3"]
    (row,) = json.loads(run("list", "--json", "--store", url).stdout)
    assert (row["account"], row["needs"], row["state"], row["unknown"]) == ("shop-2", ["unknown"], "ACTIVE", 1)


def test_the_list_says_when_a_paused_queue_goes_on(url: str) -> None:
    """By itself; without a time someone has to resume it, once for each reason."""
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    execute(url, accounts.update().values(paused="no float", paused_until=until))
    assert f"paused until {until:%H:%M:%S} UTC: no float" in run("list", "--store", url, COLUMNS="200").stdout
    shown = json.loads(run("list", "--json", "--store", url).stdout)
    assert {datetime.fromisoformat(row["paused_until"]) for row in shown} == {until}
    execute(url, accounts.update().values(paused="no float", paused_until=None, payouts_wait=True))
    listed = run("list", "--store", url, COLUMNS="600").stdout
    assert "paused: no float; the store was restored" in listed
    assert f"mobilemoney payouts status --store {url} --resume --account shop-2" in listed


def test_suspend_resume_and_remove_decide_who_pays(url: str) -> None:
    """Each is kept with its note; what is said twice changes nothing."""
    done = run("suspend", "shop-1", "--note", "asha: papers are late", "--store", url)
    assert (done.exit_code, done.stdout) == (0, "shop-1: SUSPENDED\n")
    with pytest.raises(AccountSuspended, match="asha: papers are late"):
        create(url, "shop-1")
    listed = run("list", "--store", url).stdout
    assert "suspended: asha: papers are late" in listed
    assert run("suspend", "shop-2", "--note", "asha: call 0680 000 001", "--store", url).exit_code == 0
    with pytest.raises(AccountSuspended) as caught:
        create(url, "shop-2")
    assert "680 000 001" not in f"{caught.value} {caught.value.note}"
    assert run("resume", "shop-2", "--note", "asha: called", "--store", url).exit_code == 0
    again = run("suspend", "shop-1", "--note", "x", "--store", url)
    assert (again.exit_code, again.stdout) == (0, "")
    assert "account 'shop-1' is suspended already" in again.stderr
    assert run("resume", "shop-1", "--note", "asha: papers came", "--store", url).exit_code == 0
    assert "active: asha: papers came" in run("list", "--all", "--store", url).stdout
    assert create(url, "shop-1") is PaymentState.QUEUED
    assert run("remove", "shop-3", "--note", "closed", "--store", url).stdout == "shop-3: REMOVED\n"
    with pytest.raises(AccountSuspended, match="removed: closed"):
        create(url, "shop-3")


def test_an_account_is_suspended_before_its_first_payment(url: str) -> None:
    """A wrong name would suspend nobody, and look done: so the command says that the account is new."""
    result = run("suspend", "shop-11", "--note", "x", "--store", url)
    assert (result.exit_code, result.stdout) == (0, "shop-11: SUSPENDED\n")
    assert "account 'shop-11' is new: the store has nothing of it yet" in result.stderr
    with pytest.raises(AccountSuspended):
        create(url, "shop-11")
    assert "is new" not in run("resume", "shop-11", "--store", url).stderr
    assert create(url, "shop-11") is PaymentState.QUEUED


@pytest.mark.parametrize("command", [("resume",), ("remove", "--note", "x")])
def test_an_account_that_the_store_does_not_know_is_refused(url: str, command: tuple[str, ...]) -> None:
    """Such as a wrong name."""
    result = run(*command, "shop-11", "--store", url)
    assert result.exit_code == 1
    shown = f"mobilemoney accounts list --all --store {url} shows them"
    assert f"the store knows no account 'shop-11'; {shown}" in result.stderr


def test_unresolved_payments_of_all_accounts_are_listed_at_once(url: str) -> None:
    """For people by account, for programs as one list; and the exit code counts all of them."""
    result = mobilemoney("payments", "list", "--unresolved", "--all-accounts", "--exit-code", "--store", url)
    assert result.exit_code == 3
    first, header, row = result.stdout.splitlines()
    assert (first, header.split()[0], row.split()[0]) == ("account shop-2", "key", "lost")
    (data,) = json.loads(
        mobilemoney("payments", "list", "--unresolved", "--all-accounts", "--json", "--store", url).stdout
    )
    assert (data["account"], data["key"], data["state"]) == ("shop-2", "lost", "UNKNOWN")
    unclaimed = mobilemoney("payments", "unclaimed", "--all-accounts", "--store", url)
    assert (unclaimed.exit_code, unclaimed.stdout) == (0, "")
    assert "no account of the store has any" in unclaimed.stderr
    for wrong in (["--all-accounts"], ["--unresolved", "--all-accounts", "--account", "shop-1"]):
        assert mobilemoney("payments", "list", *wrong, "--store", url).exit_code == 2
    wrong = ["--all-accounts", "--all"]
    assert mobilemoney("payments", "unclaimed", *wrong, "--store", url).exit_code == 2


def test_doctor_counts_the_accounts_that_need_someone(url: str) -> None:
    """A platform's check says how many, by reason, and where to look."""
    result = mobilemoney("doctor", "--all-accounts", "--store", url, "--json")
    found = [each for each in json.loads(result.stdout)["findings"] if each["check"] == "accounts"]
    assert [(each["level"], each["text"]) for each in found] == [("warning", "1 need someone (unknown: 1)")]


@pytest.mark.real_time
def test_a_platform_can_be_watched(url: str) -> None:
    """Without a terminal, a line for each account whose needs have changed."""
    result = mobilemoney("watch", "--all-accounts", "--timeout", "0.5", "--store", url)
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert line.endswith("UTC  shop-2: unknown")
    data = json.loads(mobilemoney("watch", "--all-accounts", "--timeout", "0.5", "--json", "--store", url).stdout)
    assert (data["account"], data["needs"]) == ("shop-2", ["unknown"])
    assert mobilemoney("watch", "txn-1", "--all-accounts", "--store", url).exit_code == 2


def test_a_number_is_erased_and_erased_again_from_a_list(url: str, tmp_path: Path) -> None:
    """It is refused while a payment is open, asked for, and said with the rows; the list repeats it."""
    refused = run("erase", "shop-1", "--phone", NUMBER, "--yes", "--store", url)
    assert refused.exit_code == 1
    assert "payments 'order-1' of account 'shop-1' are open" in refused.stderr

    async def settle() -> None:
        async with Sandbox(merchants=3).client(store=SQLStore(url, "shop-4")) as client:
            await client.collections.create(SUCCEEDS, 1_000, idempotency_key="order-1")
            async with client.poller(resume=True) as poller:
                _ = [outcome async for outcome in poller.outcomes()]

    run_virtual(settle)
    asked = mobilemoney("accounts", "erase", "shop-4", "--phone", SUCCEEDS, "--store", url, answer="n\n")
    assert (asked.exit_code, "nothing was erased" in asked.stderr) == (1, True)
    assert f"Erase the number {mask_phone_number(SUCCEEDS)} of account 'shop-4' for ever?" in asked.stderr
    done = run("erase", "shop-4", "--phone", SUCCEEDS, "--yes", "--store", url)
    assert (done.exit_code, done.stdout) == (0, "shop-4: erased 1 of payment_records, 1 of subscriptions\n"), (
        done.stderr
    )
    listed = run("erasures", "--json", "--store", url).stdout
    file = tmp_path / "erasures.json"
    file.write_text(listed, "utf-8")
    assert SUCCEEDS[1:] not in listed
    assert "shop-4" in run("erasures", "--store", url).stdout
    again = run("erase", "--repeat", str(file), "--store", url)
    assert (again.exit_code, again.stdout) == (0, "nothing is left to erase\n")  # no backup was restored
    for text in ("no list", "[" * 10_000):
        file.write_text(text, "utf-8")
        assert run("erase", "--repeat", str(file), "--store", url).exit_code == 2
    for wrong in ([], ["shop-1", "--repeat", str(file)], ["--phone", NUMBER]):
        assert run("erase", *wrong, "--store", url).exit_code == 2
    whole = run("erase", "shop-4", "--yes", "--store", url)
    assert whole.exit_code == 0, whole.stderr
    assert "was erased" in run("resume", "shop-4", "--store", url).stderr


def test_a_restored_database_is_compared_before_it_pays(url: str) -> None:
    """One line for all accounts, also of one that has only queued; each says so until it is compared."""
    create(url, "shop-4")
    create(url, "shop-4", "disbursement")
    done = run("restored", "--note", "asha: backup of Monday", "--store", url)
    assert done.exit_code == 0, done.stderr
    said, of_others, of_queue = done.stdout.splitlines()
    assert "3,000 TZS" in of_queue and f"mobilemoney payouts status --store {url} --resume" in of_queue
    assert (done.exit_code, said) == (0, "4 accounts are compared with the service before their next payments.")
    # The store cannot know one whose first payment is younger than the backup.
    assert f"mobilemoney payments restored --store {url} --account NAME" in of_others
    columns = accounts.c
    found = execute(url, sa.select(columns.went_backwards, columns.due_since, columns.known_until))
    assert [row.went_backwards for row in found] == [True] * 4
    assert None not in [each for row in found for each in row]  # as of now, not of the comparison
    assert run("list", "--store", url).stdout.count("behind") == 4  # at once
    # Compared once, and to be compared again: disbursements still wait.
    execute(url, sa.update(accounts).values(due_since=None, again_at=found[0].due_since))
    assert run("list", "--store", url).stdout.count("behind") == 4
    assert run("restored", "--note", "", "--store", url).exit_code == 2
