"""`mobilemoney payouts` and `payments audit`: two people, a file, and an accountant."""

import csv
import io
import json
import os
import re
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from mobilemoney_async import SQLStore
from mobilemoney_async.cli import payout_queue, payouts
from mobilemoney_async.configuration.settings import Settings
from mobilemoney_async.payments.outbox import pauses
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.rows import digest
from mobilemoney_async.sandbox import Choices, Sandbox, faults
from mobilemoney_async.testing import run_virtual
from tests.payments.tables import insert_line
from tests.support.commands import Command, run, started
from tests.support.databases import execute

FILE = "phone_number,amount,employee\n+255780000789,850000,E1\n0681 234 502,620000,E2\n+255780000089,700000,E3\n"


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(speed=20, balance=10**9, choices=Choices(rate_limit=None))


@pytest.fixture
def shop(folder: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, url: str) -> Path:
    """A folder with a file of salaries, and an environment with the service and a store that does not exist yet."""
    monkeypatch.setenv("MOBILEMONEY_BASE_URL", url)
    monkeypatch.setenv("MOBILEMONEY_TOKEN", sandbox.token)
    monkeypatch.setenv("MOBILEMONEY_STORE", f"sqlite:///{folder}/payroll.db")
    monkeypatch.setattr(payouts, "_LOOK", 0.1)
    (folder / "salaries.csv").write_text(FILE, "utf-8")
    return folder


def propose(*arguments: str) -> str:
    """Propose the file as Asha, and return the id of the batch."""
    ran = run("payouts", "propose", "salaries.csv", "--local-numbers", "--by", "Asha", "--json", *arguments)
    assert ran.exit_code == 0, ran.stderr
    return str(json.loads(ran.stdout)["id"])


def approved() -> str:
    """Propose the file, and approve it as Juma; return the id of the batch."""
    batch = propose()
    run("payouts", "approve", batch, "--by", "Juma", answer="y\n")
    return batch


def change(folder: Path, statement: str) -> None:
    """Change the store of a folder, past its code."""
    execute(f"sqlite:///{next(folder.glob('*.db'))}", statement)


def test_a_file_may_have_columns_of_its_own_names(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--columns` names them; what it cannot read, it refuses. Neither needs a service, also beside a store."""
    monkeypatch.delenv("MOBILEMONEY_BASE_URL")
    (shop / "list.csv").write_text("Namba,Kiasi\n+255681234567,1500\n", encoding="utf-8")
    checked = run("payouts", "check", "list.csv", "--columns", "phone_number=Namba, amount=Kiasi")
    assert (checked.exit_code, "1,500 TZS" in checked.stdout) == (0, True)
    assert "it lacks phone_number and amount" in run("payouts", "check", "list.csv").stderr
    for wrong in ("Namba", "amount=", "amount=Kiasi,amount=Namba", "sum=Kiasi"):
        assert run("payouts", "check", "list.csv", "--columns", wrong).exit_code == 2


def test_a_check_reads_local_numbers_as_the_profile_says(shop: Path) -> None:
    """So it shows the same lines as `propose` with that profile."""
    assert "local_numbers" in run("payouts", "check", "salaries.csv").stderr
    profile = '[profiles.p]\nbase_url = "http://127.0.0.1:1/v1"\nlocal_numbers = true\n'
    (shop / "mobilemoney.toml").write_text(profile, encoding="utf-8")
    assert "2,170,000 TZS" in run("payouts", "check", "salaries.csv", "--profile", "p").stdout


@pytest.mark.costly("runs lines of cli/payouts.py, cli/unclaimed.py that no quick test runs")
def test_one_proposes_another_approves_and_all_are_paid_or_explained(shop: Path, sandbox: Sandbox) -> None:
    """From the file to the report; the exit code says that one has failed."""
    checked = run("payouts", "check", "salaries.csv", "--local-numbers")
    assert "2,170,000 TZS" in checked.stdout and checked.exit_code == 0
    proposed = run("payouts", "propose", "salaries.csv", "--local-numbers", "--by", "Asha")
    assert "is a new store" in proposed.stderr and "payouts approve" in proposed.stderr
    batch = re.findall(r"^batch +(\w+)$", proposed.stdout, re.MULTILINE)[0]
    own = run("payouts", "approve", batch, "--by", "ASHA", answer="y\n")
    assert (own.exit_code, own.stdout, own.stderr.count("\n")) == (1, "", 1)
    assert "someone else has to approve it" in own.stderr and "Do you approve" not in own.stderr
    early = run("payouts", "status", batch, "--send")
    assert (early.exit_code, early.stdout) == (1, "")
    assert (
        f"is proposed, not approved: nothing is sent; another person approves it: mobilemoney payouts approve {batch}"
        in early.stderr
    )
    declined = run("payouts", "approve", batch, "--by", "Juma", answer="n\n")
    assert declined.exit_code == 1 and "nothing was queued" in declined.stderr
    assert not sandbox.transactions
    sent = run("payouts", "approve", batch, "--by", "Juma", "--send", answer="y\n")
    assert sent.exit_code == 5, sent.stderr
    assert re.search(r"payments +2 paid, 1 failed", sent.stdout)
    assert "mobilemoney payouts: " in sent.stderr and "mobilemoney payments" not in sent.stderr
    assert "failed: RECIPIENT_NOT_FOUND (1); once the reason is gone" in sent.stderr
    rows = list(csv.DictReader(io.StringIO(run("payouts", "report", batch).stdout)))
    assert [(row["employee"], row["state"], row["reason"]) for row in rows] == [
        ("E1", "SUCCESS", ""),
        ("E2", "SUCCESS", ""),
        ("E3", "FAILED", "RECIPIENT_NOT_FOUND"),
    ]
    assert "approved: 2 paid, 1 failed" in run("payouts", "status").stdout
    again = run("payouts", "status", batch, "--send")
    assert (again.exit_code, len(sandbox.transactions)) == (5, 3)
    assert run("payouts", "cancel", batch, "--by", "Asha").exit_code == 1
    clean = run("payments", "audit", "--from", "yesterday", "--to", "today")
    assert clean.exit_code == 0 and "nothing differs" in clean.stdout


@pytest.mark.costly("no quick test retries a batch from the command line")
def test_what_failed_goes_again_once_another_person_approves_it(
    shop: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says what is left out; asked again, it shows the same retry, and the first batch its result."""
    batch = propose()
    sent = run("payouts", "approve", batch, "--by", "Juma", "--send", answer="y\n")
    assert f"mobilemoney payouts retry {batch} --by NAME" in sent.stderr
    shown = run("payouts", "retry", batch, "--by", "Asha")
    assert shown.exit_code == 0, shown.stderr
    assert re.search(f"^retry of +{batch}$", shown.stdout, re.MULTILINE) and "payouts approve" in shown.stderr
    again = json.loads(run("payouts", "retry", batch, "--by", "Neema", "--json").stdout)
    assert (again["retry_of"], again["lines"], again["proposed_by"]) == (batch, 1, "Asha")
    with monkeypatch.context() as patch:
        patch.delenv("MOBILEMONEY_BASE_URL")  # approving a retry looks transactions up
        alone = run("payouts", "approve", again["id"], "--by", "Juma", answer="y\n")
    assert (alone.exit_code, alone.stdout) == (2, "") and "no service is named" in alone.stderr
    monkeypatch.setattr("mobilemoney_async.sandbox.magic.MAGIC_NUMBERS", {})  # the recipient is found now
    assert run("payouts", "approve", again["id"], "--by", "Juma", "--send", answer="y\n").exit_code == 0
    assert len(sandbox.transactions) == 4
    whole = run("payouts", "status", batch, "--send")
    assert (whole.exit_code, bool(re.search("^payments +3 paid$", whole.stdout, re.MULTILINE))) == (0, True)
    said = f"RECIPIENT_NOT_FOUND; tried again under the key '{batch}-retry-1-4': paid"
    assert said in run("payouts", "report", batch).stdout
    unsent = run("payouts", "retry", propose("--name", "x"), "--by", "Asha")
    assert (unsent.exit_code, unsent.stderr.count("\n")) == (1, 1) and "was not approved" in unsent.stderr


@pytest.mark.costly("no quick test approves a batch under the limits of a profile")
def test_the_limits_of_a_profile_hold_for_batches_and_single_payouts(shop: Path, sandbox: Sandbox) -> None:
    """Nothing is queued or sent; a limit that is none is an error of the file."""
    (shop / "mobilemoney.toml").write_text(
        "[profiles.sandbox]\ndisbursement_limits = {per_payment = 800000}\n", "utf-8"
    )
    named = ("--profile", "sandbox", "--store", "sqlite:///payroll.db")
    batch = propose(*named)
    seen = run("payouts", "status", batch, *named).stdout
    assert "cannot be approved now: line 2 of batch" in " ".join(seen.split())
    approved = run("payouts", "approve", batch, "--by", "Juma", *named, answer="y\n")
    assert approved.exit_code == 1
    assert f"line 2 of batch '{batch}' exceeds per_payment of the disbursement limits" in approved.stderr
    assert re.search("^state +proposed$", run("payouts", "status", batch, *named).stdout, re.MULTILINE)
    (shop / "mobilemoney.toml").write_text("[profiles.sandbox]\ndisbursement_limits = {per_day = 0}\n", "utf-8")
    wrong = run("payouts", "status", *named)
    assert wrong.exit_code == 2
    assert "profiles.sandbox.disbursement_limits.per_day must be whole TZS above 0" in wrong.stderr
    (shop / "mobilemoney.toml").write_text("[profiles.sandbox]\ndisbursement_limits = {day = 5}\n", "utf-8")
    assert "must be a table of per_payment, per_recipient_a_day, per_day" in run("payouts", "status", *named).stderr


@pytest.mark.costly("runs lines of cli/payouts.py that no quick test runs")
def test_the_approver_sees_what_is_large_and_new_before_the_digest(
    shop: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And pages through the lines, the largest first if asked for."""
    batch = propose()
    shown = run("payouts", "approve", batch, "--by", "Juma", answer="n\n").stdout
    assert re.search(r"^total +2,170,000 TZS$", shown, re.MULTILINE)
    assert re.search(r"^largest +line 2, 850,000 TZS to \+25578…789; line 4, 700,000", shown, re.MULTILINE)
    assert re.search("^never paid +all 3$", shown, re.MULTILINE)
    names = re.findall("^[a-z]+", shown, re.MULTILINE)
    assert names.index("largest") < names.index("never") < names.index("digest")
    run("payouts", "approve", batch, "--by", "Juma", "--send", answer="y\n")
    (shop / "salaries.csv").write_text(FILE.replace("620000", "720000").replace("E1", "E5"), "utf-8")
    later = run("payouts", "propose", "salaries.csv", "--local-numbers", "--by", "Asha").stdout
    assert "2,270,000 TZS, 100,000 TZS more than the last batch of this name" in later
    assert re.search("^never paid +line 4$", later, re.MULTILINE)
    monkeypatch.setattr(payouts, "_PAGE", 2)
    first = run("payouts", "show", batch)
    assert [line.split()[:4] for line in first.stdout.splitlines()] == [
        ["line", "TZS", "phone", "state"],
        ["2", "850,000", "+25578…789", "SUCCESS"],
        ["3", "620,000", "+25568…502", "SUCCESS"],
    ]
    assert f"page 1 of 2; the next one: mobilemoney payouts show {batch} --page 2" in first.stderr
    assert "RECIPIENT_NOT_FOUND" in run("payouts", "show", batch, "--page", "2").stdout
    assert run("payouts", "show", batch, "--page", "3").exit_code == 2
    largest = run("payouts", "show", batch, "--largest", "--unmasked", "--json").stdout.splitlines()
    assert [json.loads(line)["phone_number"] for line in largest] == ["+255780000789", "+255780000089"]


@pytest.mark.slow
def test_lines_to_look_at_are_shown_by_each_step(shop: Path) -> None:
    """One number in two lines, whatever the amounts, and one that a spreadsheet has rounded."""
    file = FILE + "+255780000789,1,E4\n+255681000000,2,E5\n"
    (shop / "salaries.csv").write_text(file, "utf-8")
    twice = "line 5 +paid twice[?] line 2 pays another amount to the same number; 2 lines pay this number: lines 2, 5$"
    batch = propose()
    for step in (("propose", "salaries.csv", "--by", "Asha", "--local-numbers"), ("approve", batch, "--by", "Juma")):
        shown = run("payouts", *step).stdout
        assert re.search(f"^{twice}", shown, re.MULTILINE)
        assert re.search("^line 2 +2 lines pay this number: lines 2, 5$", shown, re.MULTILINE)
    checked = run("payouts", "check", "salaries.csv", "--local-numbers").stdout
    assert re.search("^line 6 +the number ends in 000000: a spreadsheet may have rounded it$", checked, re.MULTILINE)
    (shop / "salaries.csv").write_text(file.replace("E1", "E9"), "utf-8")
    other = propose()
    both = " ".join(run("payouts", "approve", batch, "--by", "Juma", answer="y\n").stdout.split())
    times = both.count(f"paid twice? line 3 of batch {other}, which is to be approved")
    assert times == 2  # before the question, and after
    assert "warnings" in json.loads(run("payouts", "check", "salaries.csv", "--local-numbers", "--json").stdout)


@pytest.mark.costly("runs lines of cli/payouts.py, contract/converter.py that no quick test runs")
def test_a_batch_is_cancelled_before_or_after_its_approval(shop: Path, sandbox: Sandbox) -> None:
    """--yes takes the digest that was seen; a script gets JSON."""
    batch = propose()
    digest = json.loads(run("payouts", "status", batch, "--json").stdout)["digest"]
    assert run("payouts", "approve", batch, "--by", "Juma", "--yes").exit_code == 2
    assert run("payouts", "approve", batch, "--by", "Juma", "--yes", "--digest", "0" * 64).exit_code == 1
    approved = run("payouts", "approve", batch, "--by", "Juma", "--yes", "--digest", digest, "--json")
    assert json.loads(approved.stdout)["states"] == {"QUEUED": 3}
    cancelled = run("payouts", "cancel", batch, "--by", "Neema")
    assert "3 cancelled" in cancelled.stdout and "by Juma" in cancelled.stdout and "by Neema" in cancelled.stdout
    assert not sandbox.transactions


@pytest.mark.slow
def test_a_wrong_file_or_batch_is_one_line_and_makes_no_store(shop: Path) -> None:
    """With the lines of the file, and without its numbers."""
    wrong = run("payouts", "propose", "salaries.csv", "--by", "Asha")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert "line 3: phone_number does not begin with +" in wrong.stderr and "--local-numbers" in wrong.stderr
    assert run("payouts", "check", "none.csv").exit_code == 2
    (shop / "latin.csv").write_bytes(b"phone_number,amount,n\n+255780000789,1,Zo\xeb\n")
    assert "not UTF-8" in run("payouts", "check", "latin.csv").stderr
    status = run("payouts", "status")
    assert status.exit_code == 1 and "there is no file" in status.stderr
    assert not list(shop.glob("*.db"))
    propose()
    missing = run("payouts", "report", "nothing")
    assert (missing.exit_code, missing.stderr) == (
        1,
        "mobilemoney payouts: there is no batch 'nothing': nothing was changed\n",
    )


@pytest.mark.costly("runs lines of cli/payouts.py that no quick test runs")
def test_an_unknown_payout_ends_with_3_and_the_next_step(
    shop: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are paid."""
    monkeypatch.setattr(payouts, "_PATIENCE_UNKNOWN", 0.0)
    sandbox.script(faults.drop(processed=False), on="b2c")
    ran = run("payouts", "approve", propose(), "--by", "Juma", "--send", answer="y\n")
    assert ran.exit_code == 3, ran.stderr
    assert "1 unknown" in ran.stdout and "do not pay them in another way" in ran.stderr


def test_a_script_sends_a_batch_of_real_money_with_its_yes(
    shop: Path, sandbox: Sandbox, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal nobody can be asked; --yes goes with --send alone."""
    batch, sent = approved(), list[str]()
    monkeypatch.delenv("MOBILEMONEY_BASE_URL")
    profile = f'profile = "p"\n[profiles.p]\nbase_url = "{url}"\nproduction = true\n'
    (shop / "mobilemoney.toml").write_text(profile, encoding="utf-8")
    monkeypatch.setattr(payouts, "_send", lambda name, *_, **options: sent.append(name))
    assert run("payouts", "status", batch, "--send").exit_code == 2
    assert run("payouts", "status", batch, "--yes").exit_code == 2
    assert not sent
    assert run("payouts", "status", batch, "--send", "--yes").exit_code == 0
    assert sent == [batch]


@pytest.mark.costly("runs lines of cli/payouts.py that no quick test runs")
def test_interrupted_or_killed_it_goes_on_where_it_was(shop: Path, sandbox: Sandbox) -> None:
    """Ctrl-C says how; nothing is sent twice."""
    batch = approved()
    with _sending(batch) as first:
        assert "0 of 3 sent" in first.read_error()
        first.interrupt()
        code, _, said = first.end()
    assert code == 130 and f"payouts status {batch} --send" in said
    with _sending(batch) as second:
        second.read_error()
        second.kill()
        second.end()
    change(shop, "UPDATE mobilemoney_leases SET until = 0")  # as after its time
    ran = run("payouts", "status", batch, "--send")
    assert "2 paid, 1 failed" in ran.stdout, ran.stderr
    assert len(sandbox.transactions) == 3


@pytest.mark.costly("no quick test sends a batch while the queue is paused")
def test_a_failure_that_passes_does_not_end_the_sending(
    shop: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher goes on by itself, and so does the command, at night too."""
    monkeypatch.setattr(pauses, "FIRST_PAUSE", 0.2)
    batch = approved()
    sandbox.script(faults.token_expired(), on="b2c", times=2)
    ran = run("payouts", "status", batch, "--send")
    assert "the dispatcher pauses for 0 s" in ran.stderr and "2 paid, 1 failed" in ran.stdout, ran.stderr


@pytest.mark.costly("no quick test sends a batch while the queue is paused")
def test_a_paused_queue_is_sent_only_with_resume(shop: Path, sandbox: Sandbox) -> None:
    """Whichever process has paused it: the reason is shown, and how to go on."""
    batch = approved()
    change(shop, "UPDATE mobilemoney_accounts SET paused = 'the float is empty'")
    ran = run("payouts", "status", batch, "--send")
    assert (ran.exit_code, len(sandbox.transactions)) == (4, 0), ran.stderr
    assert "stopped: the float is empty; nothing is lost; to go on: mobilemoney payouts status" in ran.stderr
    assert ran.stderr.rstrip().endswith("--resume")
    run("accounts", "suspend", "default", "--note", "papers are late")
    suspended = run("payouts", "status", batch, "--send").stderr.rstrip()
    assert "papers are late; it pays again after mobilemoney accounts resume default; nothing is lost" in suspended
    assert not suspended.endswith("--resume")
    run("accounts", "resume", "default")
    assert "2 paid, 1 failed" in run("payouts", "status", batch, "--send", "--resume").stdout
    assert run("payouts", "status", batch, "--resume").exit_code == 2


def test_payouts_of_a_restored_store_go_on_once_someone_was_shown_why_they_wait(shop: Path, sandbox: Sandbox) -> None:
    """Also with --send: they may have been cancelled since the backup."""
    batch = approved()
    change(shop, "UPDATE mobilemoney_accounts SET payouts_wait = TRUE")
    asked = run("payouts", "status", batch, "--send", "--resume", answer="n\n")
    assert "cancel again what was cancelled since" in asked.stderr
    assert (asked.exit_code, len(sandbox.transactions)) == (1, 0), asked.stderr
    assert "2 paid, 1 failed" in run("payouts", "status", batch, "--send", "--resume", "--yes").stdout


def test_a_queue_without_a_batch_goes_on_too(folder: Path) -> None:
    """Once somebody has said yes to what is queued; a program's dispatcher sends it, this command nothing."""
    url, sandbox, flags = f"sqlite:///{folder}/queue.db", Sandbox(), ("--store", f"sqlite:///{folder}/queue.db")

    async def dispatch(*, pause: bool) -> None:
        async with sandbox.client(store=SQLStore(url)) as client, client.dispatcher() as dispatcher:
            if pause:
                dispatcher.pause("the float is empty")
                await client.payments.enqueue(
                    type="collection", phone_number="+255681234501", amount=9_000, idempotency_key="order-1"
                )
            await anyio.sleep(5)

    run_virtual(partial(dispatch, pause=True))
    assert run("payouts", "status", "--resume", *flags).exit_code == 1  # no answer
    run_virtual(partial(dispatch, pause=False))
    assert not sandbox.transactions
    ran = run("payouts", "status", "--resume", *flags, answer="y\n")
    assert (ran.exit_code, "1 queued payment of 9,000 TZS" in ran.stderr) == (0, True), ran.stderr
    assert "the float is empty" in ran.stderr
    run_virtual(partial(dispatch, pause=False))
    assert len(sandbox.transactions) == 1
    for year, said in (("2026", "is not paused"), ("2999", "goes on by itself at 12:05:30 UTC")):
        execute(url, f"UPDATE mobilemoney_accounts SET paused = 'per_day', paused_until = '{year}-01-01 12:05:30'")
        assert said in run("payouts", "status", "--resume", *flags).stderr
    run("accounts", "suspend", "default", "--note", "papers are late", *flags)
    suspended = run("payouts", "status", "--resume", "--yes", *flags)
    assert (suspended.exit_code, "accounts resume" in suspended.stderr) == (1, True)


@pytest.mark.costly("no quick test confirms from the command line that a payout is absent")
def test_what_sends_a_payout_that_was_confirmed_absent_is_said_by_each_step(
    shop: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of a batch sends it: not another approval of the same file, and no retry. A create with its key does."""
    monkeypatch.setattr(payouts, "_PATIENCE_UNKNOWN", 0.0)
    (shop / "salaries.csv").write_text("phone_number,amount\n+255780000789,700\n", encoding="utf-8")
    sandbox.script(faults.drop(processed=False), on="b2c")
    batch = propose()
    assert run("payouts", "approve", batch, "--by", "Juma", "--send", answer="y\n").exit_code == 3
    key = json.loads(run("payouts", "report", batch, "--json").stdout)[0]["key"]
    change(shop, "UPDATE mobilemoney_payment_records SET ended_at = '2026-01-02 12:00:00'")  # before the grace
    assert run("payments", "confirm-absent", key, "--note", "Asha: looked", "--yes").exit_code == 0
    create = f"mobilemoney disburse PHONE 700 --key {key}"
    said = f"mobilemoney payouts: payment {key!r} was confirmed absent, and nothing sends it: {create}\n"
    sent = run("payouts", "status", batch, "--send")
    assert (sent.exit_code, said in sent.stderr) == (4, True)
    assert run("payouts", "status", batch).stderr == said
    again, store = propose(), f"sqlite:///{shop}/payroll.db"
    reviewed = run("payouts", "show", again, "--store", store).stdout
    assert create.replace("PHONE", f"--store {store} PHONE") in reviewed
    approved = run("payouts", "approve", again, "--by", "Juma", answer="y\n")
    assert approved.stderr.endswith(said) and "nothing is left to send" not in approved.stderr
    assert "Nothing sends it again by itself" in " ".join(approved.stdout.split())
    assert create in run("payouts", "retry", batch, "--by", "Asha").stderr
    assert not sandbox.transactions
    assert run("disburse", "+255780000789", "700", "--key", key, "--no-wait").exit_code == 0
    assert len(sandbox.transactions) == 1


@pytest.mark.costly("no quick test sends a batch beside another one")
def test_what_else_the_queue_has_is_in_the_question_and_at_the_end(
    shop: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that sends one batch sends the whole queue of its account; with nothing queued, nothing is asked."""
    questions = list[str]()

    def agree(settings: Settings, text: str, *, yes: bool = False) -> None:
        questions.append(text)

    monkeypatch.setattr(payout_queue, "confirm_money", agree)
    big = approved()
    (shop / "salaries.csv").write_text("phone_number,amount\n+255780000790,1000\n", encoding="utf-8")
    small = propose()
    change(shop, "UPDATE mobilemoney_payment_records SET not_before = '2999-01-01 00:00:00.000000'")
    sent = run("payouts", "approve", small, "--by", "Juma", "--send", answer="y\n")
    assert (sent.exit_code, len(sandbox.transactions)) == (0, 1), sent.stderr
    others = "3 other queued payments of 2,170,000 TZS"
    assert questions == [f"1 payout of 1,000 TZS, and {others} of this account"]
    left = f"not followed, and still in the queue: {others}; see mobilemoney payments list --state queued"
    assert left in sent.stderr
    run("payouts", "status", small, "--send")
    assert questions.pop() == f"none of this batch, but {others} of this account"
    run("payouts", "cancel", big, "--by", "Juma")
    again = run("payouts", "status", small, "--send")
    assert (again.exit_code, "queue" in again.stderr, len(questions)) == (0, False, 1)


@pytest.mark.costly("no quick test sends a batch with a line that a forgotten transaction stops")
def test_what_stops_a_line_is_said_while_the_command_waits(shop: Path) -> None:
    """With the commands that end it."""
    batch = approved()
    with sa.create_engine(f"sqlite:///{next(shop.glob('*.db'))}", poolclass=sa.pool.NullPool).begin() as connection:
        key = Journal(connection, "default").number_key()
        of = {"type": "disbursement", "amount": "850000", "number_digest": digest(key, "+255780000789")}
        insert_line(connection, is_lost=True, **of)
    with _sending(batch) as sending:
        said = "".join(sending.read_error() for _ in range(2))
        sending.interrupt()
        sending.end()
    assert re.search(
        r"payouts: payment '[\w-]+-1' waits: at .* UTC, transaction tx-1 .* The store has forgotten it", said
    )
    assert "mobilemoney payments explain tx-1" in said


@pytest.mark.costly("runs lines of cli/unclaimed.py that no quick test runs")
def test_an_audit_is_a_mail_for_an_accountant(shop: Path, sandbox: Sandbox) -> None:
    """Exit code 1 and a reason where something differs; CSV and JSON have the totals, too."""
    stranger = ("collect", "+255780000789", "15000", "--store", "sqlite:///other.db")
    run(*stranger)
    sandbox.advance(200)
    run("payouts", "approve", propose(), "--by", "Juma", "--send", answer="y\n")
    days = ("payments", "audit", "--from", "today")
    shown = run(*days)
    assert shown.exit_code == 1, shown.stderr
    assert re.search(r"^unclaimed, 15,000 TZS: no payment claims", shown.stdout, re.MULTILINE)
    assert re.search(r"\n  mobilemoney payments explain \w+ --note 'YOUR NAME: WHAT YOU SAW'\n", shown.stdout)
    assert re.search(r"^disbursement +SUCCESS +2 +1,470,000 +not shown +not shown$", shown.stdout, re.MULTILINE)
    rows = list(csv.DictReader(io.StringIO(run(*days, "--csv").stdout)))
    assert [row["kind"] for row in rows] == ["total"] * 3 + ["unclaimed"]
    assert (rows[0]["amount"], rows[0]["settlement_batch"][:6]) == ("15000", "BATCH-")
    assert {row[name] for row in rows[1:3] for name in ("settlement_batch", "fees", "net")} == {""}
    report = json.loads(run(*days, "--json").stdout)
    (difference,) = report["differences"]
    assert (len(report["totals"]), difference["kind"]) == (3, "unclaimed")
    for each in (difference, rows[3]):  # ids are whole, as on the screen
        assert f"no payment claims transaction {each['transaction_id']} (SUCCESS)" in each["reason"]
    assert run(*days, "--others-pay").exit_code == 0
    run(*stranger)
    assert "on their way: 1 transaction that no payment claims yet" in run(*days).stdout
    for wrong in ((*days, "--csv", "--json"), (*days[:3], "today", "--to", "yesterday"), (*days[:5], "May")):
        assert run(*wrong).exit_code == 2


def _sending(batch: str) -> AbstractContextManager[Command]:
    env = {name: value for name, value in os.environ.items() if name.startswith("MOBILEMONEY_")}
    return started("payouts", "status", batch, "--send", env=env)
