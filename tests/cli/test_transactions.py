"""`mobilemoney get` and `list`: transactions looked at from a command line."""

import csv
import io
import json
from datetime import UTC, datetime

import anyio
import attrs
import pytest

from mobilemoney_async import RateLimiter
from mobilemoney_async.cli.transactions import CSV_HEADER
from mobilemoney_async.sandbox import Sandbox, faults
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.messages import Reply
from tests.support.commands import run, started
from tests.support.terminal import terminal

NUMBER, MASKED = "+255681234501", "+25568…501"
# What a spreadsheet, rich and a terminal would each take for an order, were they let.
HOSTILE = '=HYPERLINK("https://evil.example")[red]\x1b[2J'


def paid(sandbox: Sandbox, count: int = 1, *, external_id: str | None = None) -> list[str]:
    """Make collections of 15,000 TZS, and return their ids."""
    extra = None if external_id is None else {"external_id": external_id}

    async def create() -> list[str]:
        async with sandbox.client(rate_limiter=RateLimiter(per_minute=60_000, burst=1_000)) as client:
            collect = client.collections.create
            made = [await collect(phone_number=NUMBER, amount=15_000, extra=extra) for _ in range(count)]
            return [each.transaction_id for each in made]

    return anyio.run(create)


class TestGet:
    def test_by_each_of_its_names(self, sandbox: Sandbox, url: str) -> None:
        """A transaction is found by its id, the service's reference and the merchant's; its number is masked."""
        (paid_one,) = paid(sandbox, external_id="order-7")
        sandbox.approve(paid_one)
        reference = sandbox.transactions[paid_one].reference
        by_id, *others = (
            run("get", *names, "--base-url", url)
            for names in ([paid_one], ["--reference", reference], ["--external-id", "order-7"])
        )
        assert (by_id.exit_code, by_id.stderr) == (0, "")
        assert [other.stdout for other in others] == [by_id.stdout, by_id.stdout]
        facts = dict(line.split("  ", 1) for line in by_id.stdout.splitlines())
        facts = {name: value.strip() for name, value in facts.items()}
        assert (facts["transaction"], facts["state"], facts["amount"]) == (paid_one, "SUCCESS", "15,000 TZS")
        assert (facts["phone number"], facts["external id"]) == (MASKED, "order-7")
        assert facts["fees"] == "300.00 TZS: merchant 225.00, customer 75.00"

    def test_as_json(self, sandbox: Sandbox, url: str) -> None:
        """Programs read one line of JSON in the contract's words; money is text, and what is not known is left out."""
        (paid_one,) = paid(sandbox)
        result = run("get", paid_one, "--json", "--unmasked", "--base-url", url)
        assert len(result.stdout.splitlines()) == 1
        shown = json.loads(result.stdout)
        assert (shown["id"], shown["amount"], shown["phone_number"]) == (paid_one, "15000", NUMBER)
        assert "completed_at" not in shown

    def test_it_is_not_there(self, url: str) -> None:
        """An unknown id exits 1, in one line that says what to check."""
        result = run("get", "txn_unknown", "--base-url", url)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("mobilemoney get: TRANSACTION_NOT_FOUND")
        assert len(result.stderr.splitlines()) == 1

    @pytest.mark.parametrize("names", [[], ["txn_1", "--reference", "REF1"], [" "], ["--external-id", ""]])
    def test_one_name_is_needed(self, names: list[str]) -> None:
        """None, two, or a blank one exits 2, before anything is asked."""
        result = run("get", *names)
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1


class TestList:
    def test_filters_reach_the_service(self, sandbox: Sandbox, url: str) -> None:
        """State, type and days choose what is listed; a day may be called today."""
        first, second = paid(sandbox, 2)
        sandbox.approve(first)

        def listed(*options: str) -> list[str]:
            result = run("list", "--json", *options, "--base-url", url)
            assert result.exit_code == 0, result.stderr
            return sorted(json.loads(line)["id"] for line in result.stdout.splitlines())

        today = f"{datetime.now(UTC):%Y-%m-%d}"
        assert listed() == listed("--type", "Collection") == listed("--from", "yesterday") == sorted([first, second])
        assert listed("--status", "success") == [first]
        assert listed("--status", "PENDING", "--from", today, "--to", "today") == [second]
        assert listed("--type", "disbursement") == listed("--from", "2020-01-01", "--to", "2020-01-31") == []

    @pytest.mark.slow
    def test_a_table(self, sandbox: Sandbox, url: str) -> None:
        """The table has a line for each, with masked numbers, and standard error says whether there is more."""
        paid(sandbox, 3)
        result = run("list", "--limit", "2", "--base-url", url)
        assert result.exit_code == 0
        rows = result.stdout.splitlines()[1:]
        assert [row.split()[1:5] for row in rows] == [["collection", "15,000", MASKED, "PENDING"]] * 2
        assert result.stderr == "mobilemoney list: these are 2 of 3; --limit 0 shows all\n"
        assert NUMBER not in result.output

    def test_csv(self, sandbox: Sandbox, url: str) -> None:
        """CSV has a header, amounts as plain digits, and nothing that a spreadsheet takes for a formula."""
        successful, failed = paid(sandbox, 2, external_id="@SUM(1)")
        sandbox.approve(successful)
        sandbox.decline(failed, HOSTILE)
        result = run("list", "--csv", "--unmasked", "--base-url", url)
        assert (result.exit_code, result.stderr) == (0, "")
        header, *rows = csv.reader(io.StringIO(result.stdout))
        assert header == CSV_HEADER.split(",")
        by_id = {row["id"]: row for row in (dict(zip(header, row, strict=True)) for row in rows)}
        assert by_id[successful]["amount"] == "15000"
        assert by_id[successful]["phone_number"] == NUMBER
        assert by_id[successful]["net_amount"] == "14775.00"
        assert by_id[successful]["external_id"] == "'@SUM(1)"
        assert by_id[failed]["failure_reason"].startswith("'=HYPERLINK(")
        assert not any(cell.startswith(("=", "@", "-")) for row in rows for cell in row)
        assert "\x1b" not in result.stdout
        assert len(result.stdout.splitlines()) == 3

    def test_anybodys_text_is_only_text(self, sandbox: Sandbox, url: str) -> None:
        """What the service's texts say is neither markup nor a command to the terminal."""
        (failed,) = paid(sandbox)
        sandbox.decline(failed, HOSTILE)
        for command in (["list"], ["get", failed], ["watch", failed]):
            shown = run(*command, "--base-url", url).stdout
            assert "[red][2J" in "".join(shown.split()) and "\x1b" not in shown

    @pytest.mark.slow
    def test_long_lists(self, sandbox: Sandbox, url: str) -> None:
        """A list of several pages comes whole, each transaction once; on a terminal it says how far it is."""
        ids = paid(sandbox, 250)
        result = run("list", "--json", "--limit", "0", "--base-url", url)
        assert sorted(json.loads(line)["id"] for line in result.stdout.splitlines()) == sorted(ids)
        with terminal("list", "--limit", "0", "--base-url", url) as shown:
            shown.wait_for("100 of 250 read")
            assert shown.end() == 0
        assert all(each in shown.text for each in ids)

    def test_a_walk_that_fails_is_no_success(self, sandbox: Sandbox, url: str) -> None:
        """Where a later page fails, what was printed stands, and the exit code is not 0."""
        paid(sandbox, 150)
        sandbox.script(faults.latency(0), on="transactions", times=1)
        sandbox.script(faults.token_expired(), on="transactions", probability=1)
        result = run("list", "--json", "--limit", "0", "--base-url", url)
        assert (result.exit_code, len(result.stdout.splitlines())) == (1, 100)
        assert len(result.stderr.splitlines()) == 1

    @pytest.mark.slow
    def test_a_reader_that_has_enough_ends_it(self, sandbox: Sandbox, url: str) -> None:
        """`list --json | head -1` is no error: where nobody reads on, the list ends with 0 and without a message."""
        paid(sandbox, 3)
        for form in ("--json", "--csv"):
            with started("list", form, "--base-url", url) as process:
                process.leave()
                code, _, errors = process.end()
            assert (code, errors) == (0, "")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--csv", "--json"], "either --csv or --json"),
            (["--status", " "], "--status must be"),
            (["--type", "refund"], "--type must be"),
            (["--from", "2026-02-30"], "--from must be"),
            (["--to", "2026-W09-1"], "--to must be"),
            (["--from", "2026-02-02", "--to", "2026-02-01"], "--from must be no later"),
            (["--limit", "-1"], "--limit"),
        ],
    )
    def test_bad_input_is_refused(self, options: list[str], said: str) -> None:
        """What is not accepted exits 2, in one line that names the option."""
        result = run("list", *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1

    def test_a_state_that_the_contract_does_not_list_is_said(self, url: str) -> None:
        """A state may have been added since, or mistyped: it is asked for, and said."""
        result = run("list", "--status", "sucess", "--base-url", url)
        assert (result.exit_code, result.stdout) == (0, "")
        warned, _ = result.stderr.splitlines()
        assert warned.startswith("mobilemoney list: status 'sucess' is none of the contract's (PENDING, ")

    def test_a_list_that_is_short_is_not_called_cut(self, sandbox: Sandbox, url: str) -> None:
        """Where all were asked for, only the service can show more."""
        paid(sandbox, 2)

        def count_more(reply: Reply) -> Reply:
            return attrs.evolve(reply, body=reply.body.replace(b'"total_count":2', b'"total_count":5'))

        sandbox.script(Fault(name="more", change=count_more), on="GET transactions", times=10)
        result = run("list", "--limit", "0", "--base-url", url)
        assert len(result.stdout.splitlines()) == 3
        assert "the service counts 5, and has shown 2 transactions" in result.stderr and "--limit" not in result.stderr
