"""`mobilemoney doctor`: what is wrong with a configuration, and what to do about it."""

import contextlib
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
import sqlalchemy as sa

from mobilemoney_async import (
    InvalidCredentials,
    LoginAuth,
    MobileMoneyError,
    OutcomeUnknown,
    PermissionDenied,
    RateLimitExceeded,
    RequestTimeout,
    RetryPolicy,
    ServerError,
    SQLStore,
    TokenExpired,
    UnexpectedResponse,
)
from mobilemoney_async.calls import transport_pool
from mobilemoney_async.cli import doctor
from mobilemoney_async.cli.doctor import Level
from mobilemoney_async.database.schema import VERSION
from mobilemoney_async.payments.ownership.matching import Skew
from mobilemoney_async.payments.records.queries import StoreHealth, check_health
from mobilemoney_async.payments.store import account_store
from mobilemoney_async.sandbox import Sandbox, faults
from tests.support.certificates import certificate, serve
from tests.support.commands import run as mobilemoney
from tests.support.databases import sqlite_url

NUMBER = "+255681234501"


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox()


def run(*arguments: str, **variables: str) -> Any:
    """Run `mobilemoney doctor` with these arguments and environment variables."""
    return mobilemoney("doctor", *arguments, **variables)


def findings(*arguments: str, **variables: str) -> dict[str, dict[str, str]]:
    """Return what the command found, by check; of two with one name the worse, or the latter."""
    result = run(*arguments, "--json", **variables)
    said: dict[str, Any] = json.loads(result.stdout)
    order = [level.value for level in (Level.SKIPPED, Level.OK, Level.WARNING, Level.PROBLEM)]
    found: dict[str, dict[str, str]] = {}
    for each in said["findings"]:
        before = found.get(each["check"])
        if before is None or order.index(each["level"]) >= order.index(before["level"]):
            found[each["check"]] = each
    assert result.exit_code == (1 if said["worst"] == "problem" else 0), result.output
    return found


def levels(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: each["level"] for name, each in found.items()}


class TestService:
    def test_a_sandbox_is_sound(self, sandbox: Sandbox, url: str) -> None:
        """Everything that can be checked of a sandbox is fine, at the price of one request and no money."""
        result = run("--base-url", url)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert {line.split()[0] for line in lines} <= {"ok", "skipped"}
        assert "\x1b" not in result.stdout
        assert sandbox.requests.total == 1
        assert not sandbox.transactions

    def test_nothing_listens(self, url: str) -> None:
        """Where the port is closed, the rest is skipped rather than guessed, and starting a sandbox is proposed."""
        found = findings("--base-url", "http://127.0.0.1:9/v1")  # the discard port
        assert levels(found) == {
            "configuration": "ok",
            "url": "ok",
            "connection": "problem",
            "rate limit": "ok",
            "credentials": "skipped",
            "store": "ok",
        }
        assert found["connection"]["text"] == "127.0.0.1:9 does not answer: Connection refused"
        assert "mobilemoney sandbox" in found["connection"]["advice"]

    def test_a_host_that_does_not_exist(self) -> None:
        """The name is what is wrong, and nothing else is claimed."""
        found = findings("--base-url", "https://nowhere.invalid/v1", MOBILEMONEY_TOKEN="tok")
        assert levels(found)["dns"] == "problem"
        assert levels(found)["credentials"] == "skipped"

    @pytest.mark.parametrize("base_url", ["http://pay.example/v1", "ftp://127.0.0.1/v1", "pay.example/v1", "https://"])
    def test_a_url_that_cannot_be_the_services(self, base_url: str) -> None:
        """It is refused with what is accepted, before anything is sent there."""
        found = findings("--base-url", base_url, MOBILEMONEY_TOKEN="tok")
        assert levels(found)["url"] == "problem"
        assert "https, or http on loopback only" in found["url"]["text"]
        assert "credentials" not in found

    def test_a_token_that_is_refused(self, url: str) -> None:
        """The finding says which token, where it came from, and what the service said; never the token."""
        result = run(MOBILEMONEY_BASE_URL=url, MOBILEMONEY_TOKEN="wrong-token")
        assert result.exit_code == 1
        assert "problem  credentials" in result.stdout
        assert "token from environment: invalid_token" in result.stdout
        assert "wrong-token" not in result.output

    def test_credentials_that_are_missing(self, tmp_path: Path) -> None:
        """A production profile without credentials is told where to put them, and where payments are remembered."""
        config = tmp_path / "mobilemoney.toml"
        config.write_text('[profiles.till]\nbase_url = "http://127.0.0.1:9/v1"\nproduction = true\n', "utf-8")
        found = findings("--profile", "till")
        assert levels(found)["credentials"] == "problem"
        assert "mobilemoney login" in found["credentials"]["advice"]
        assert levels(found)["store"] == "warning"

    @pytest.mark.parametrize(
        "proxy", ["ftp://me:hunter2@127.0.0.1:9", "http://me:hunter2@[::1", "http://127.0.0.1:99999"]
    )
    def test_a_proxy_that_makes_no_sense(self, proxy: str) -> None:
        """It is named as the problem, without its password, as every command's error names it."""
        result = run("--json", "--base-url", "https://pay.example/v1", MOBILEMONEY_TOKEN="tok", HTTPS_PROXY=proxy)
        assert result.exit_code == 1
        assert "hunter2" not in result.output
        found = {each["check"]: each for each in json.loads(result.stdout)["findings"]}
        assert found["connection"]["level"] == "problem"
        assert found["connection"]["text"].startswith("cannot connect to pay.example: HTTPS_PROXY (")

    def test_a_password_is_tried_with_one_login(self, sandbox: Sandbox, url: str) -> None:
        """With e-mail and password there is one login beside the one request; a wrong one is tried once."""
        variables = {"MOBILEMONEY_BASE_URL": url, "MOBILEMONEY_EMAIL": sandbox.email}
        assert levels(findings(MOBILEMONEY_PASSWORD=sandbox.password, **variables))["credentials"] == "ok"
        assert (sandbox.requests.logins, sandbox.requests.total) == (1, 2)
        found = findings(MOBILEMONEY_PASSWORD="wrong-password", **variables)
        assert "do not guess" in found["credentials"]["advice"]
        assert (sandbox.requests.logins, sandbox.requests.total) == (2, 3)

    def test_the_rate_limit_is_used_up(self, sandbox: Sandbox, url: str) -> None:
        """A rejected request is a problem of the rate budget, and says nothing about the credentials."""
        sandbox.script(faults.rate_limited(retry_after=7))
        found = findings("--base-url", url)
        assert levels(found)["rate limit"] == "problem"
        assert "for 7 s more" in found["rate limit"]["text"]
        assert levels(found)["credentials"] == "skipped"

    def test_a_secret_that_others_can_read(self, url: str, tmp_path: Path, sandbox: Sandbox) -> None:
        """A token file with loose permissions is found."""
        file = tmp_path / "token"
        file.write_text(sandbox.token, "utf-8")
        file.chmod(0o644)
        variables = {"MOBILEMONEY_BASE_URL": url, "MOBILEMONEY_TOKEN_FILE": str(file)}
        found = findings(**variables)
        assert (levels(found)["secrets"], levels(found)["credentials"]) == ("warning", "ok")
        file.chmod(0o600)
        assert "secrets" not in findings(**variables)

    def test_a_configuration_that_cannot_be_read(self, tmp_path: Path) -> None:
        """It is named in one line, with exit code 2, as for every command."""
        (tmp_path / "mobilemoney.toml").write_text("[profiles.p]\nbase_ulr = 5\n", "utf-8")
        result = run()
        assert result.exit_code == 2
        assert "profiles.p.base_ulr: there is no such key" in result.stderr
        assert result.stderr.count("\n") == 1


@contextlib.contextmanager
def answering(file: Path, ahead: timedelta) -> Iterator[str]:
    """Serve one answer to everything over TLS, by a clock that is so far ahead."""

    def answer() -> bytes:
        date = format_datetime(datetime.now(UTC) + ahead, usegmt=True)
        head = f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n"
        return head.encode() + b'{"success":true}'

    with anyio.from_thread.start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(serve(file, answer)) as port:
            yield f"https://localhost:{port}/v1"


class TestTLS:
    @pytest.fixture(autouse=True)
    def fresh_trust(self) -> Iterator[None]:
        """Let the clients of this test read anew what they trust."""
        transport_pool.ssl_context.cache_clear()
        yield
        transport_pool.ssl_context.cache_clear()

    def test_a_certificate_that_is_trusted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The days that are left are counted, and few of them are a warning; a clock that is off is seen."""
        file = certificate(tmp_path, days=3)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        with answering(file, timedelta(hours=3)) as base_url:
            found = findings("--base-url", base_url, MOBILEMONEY_TOKEN="tok")
        assert found["tls"]["level"] == "warning"
        assert ": 3 days" in found["tls"]["text"]
        assert levels(found)["credentials"] == "ok"
        assert found["clock"]["level"] == "problem"
        assert "behind the service's" in found["clock"]["text"]

    def test_a_certificate_that_is_not(self, tmp_path: Path) -> None:
        """No token goes to a service that cannot prove who it is, and the reason is told."""
        file = certificate(tmp_path, days=90)
        with answering(file, timedelta(0)) as base_url:
            found = findings("--base-url", base_url, MOBILEMONEY_TOKEN="tok")
        assert found["tls"]["level"] == "problem"
        assert "self-signed certificate" in found["tls"]["text"]
        assert levels(found)["credentials"] == "skipped"

    def test_a_port_that_speaks_no_tls(self, url: str) -> None:
        """https to a port of plain http says so."""
        found = findings("--base-url", url.replace("http", "https"), MOBILEMONEY_TOKEN="tok")
        assert found["tls"]["level"] == "problem"
        assert "is this a port for https?" in found["tls"]["advice"]


class TestStore:
    @pytest.mark.parametrize(
        ("store", "level"),
        [
            ("sqlite:///new.db", "ok"),
            ("sqlite:///nowhere/x.db", "problem"),
            ("sqlite:///text.db", "problem"),
            ("mysql://x", "problem"),
        ],
    )
    def test_it_makes_nothing(self, url: str, folder: Path, store: str, level: str) -> None:
        """A database, or its folder, that does not exist is not made by looking; what is none is a problem."""
        (folder / "text.db").write_text("no database " * 100, "utf-8")
        before = {*folder.rglob("*")}
        assert findings("--base-url", url, "--store", store)["store"]["level"] == level
        assert {*folder.rglob("*")} == before

    @pytest.mark.slow
    def test_payments_that_nobody_knows_about(self, sandbox: Sandbox, url: str, tmp_path: Path) -> None:
        """Unknown payments are counted, a token in clear text is found, and what to do about them is said."""
        store_url = sqlite_url(tmp_path)

        async def pay() -> None:
            store = SQLStore(store_url)
            auth = LoginAuth(sandbox.email, sandbox.password)
            async with sandbox.client(store=store, auth=auth, retry=RetryPolicy(max_attempts=1)) as client:
                sandbox.script(faults.drop(processed=True), on="c2b")
                with pytest.raises(OutcomeUnknown):
                    await client.collections.create(phone_number=NUMBER, amount=100)

        anyio.run(pay)
        found = findings("--base-url", url, "--store", store_url)
        assert (found["store"]["level"], found["payments"]["level"], found["store key"]["level"]) == (
            "ok",
            "warning",
            "warning",
        )
        assert "reconcile" in found["payments"]["advice"]
        found = findings("--base-url", url, "--store", store_url, "--account", "another")
        assert found["payments"]["level"] == "ok"
        assert "store key" not in found

    @pytest.mark.slow
    def test_a_database_that_others_can_read(self, url: str, tmp_path: Path) -> None:
        """A file that an earlier release made readable is found, and the command that is proposed helps."""
        store_url = sqlite_url(tmp_path)
        file = tmp_path / Path(store_url).name
        file.chmod(0o644)
        found = findings("--base-url", url, "--store", store_url)
        assert (found["store file"]["level"], found["store"]["level"]) == ("warning", "ok")
        assert found["store file"]["advice"] == f"chmod 600 {file}"
        subprocess.run(found["store file"]["advice"], shell=True, check=True)
        assert "store file" not in findings("--base-url", url, "--store", store_url)

    @pytest.mark.real_time
    async def test_looking_changes_nothing(self, tmp_path: Path) -> None:
        """Tables are not made, and those of another version are left alone, with the sentence that says what to do."""
        store = SQLStore(sqlite_url(tmp_path, has_tables=False))
        database = account_store(store).database
        look = partial(check_health, account=store.account, now=datetime.now(UTC))
        for _ in range(2):
            assert (await database.peek(look)).version is None
        await database.write(lambda connection: None)
        known = await database.peek(look)
        assert (known.version, known.cannot_write, known.refusal) == (VERSION, None, None)
        assert database.file is not None
        with contextlib.closing(sqlite3.connect(database.file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await database.peek(look) == known  # it can be written, by another one right now
        for version, said in ((99, "update mobilemoney-async"), (VERSION - 1, "then use a new database")):
            setting = sa.text(f"UPDATE mobilemoney_schema SET version = {version}")
            await database.write(partial(sa.Connection.execute, statement=setting))
            found = await database.peek(look)
            assert found.version == version
            assert said in str(found.refusal)
        store.close()


class TestJudgements:
    """What is said of what was seen."""

    @pytest.mark.parametrize(
        ("low", "high", "level", "text"),
        [
            (-0.5, 0.7, Level.OK, "agrees"),
            (1.5, 2.7, Level.OK, "agrees"),
            (20, 21, Level.OK, "20 s behind the service's: reconcile allows for that"),
            (-21, -20, Level.OK, "20 s ahead of the service's"),
            (-100, -90, Level.WARNING, "90 s ahead of the service's"),
            (7200, 7201, Level.PROBLEM, "7200 s behind the service's"),
        ],
    )
    def test_the_clock(self, low: float, high: float, level: Level, text: str) -> None:
        """A difference matters from a minute on; the uncertainty of the measurement counts for the clock."""
        found = doctor.judge_clock(Skew(low=timedelta(seconds=low), high=timedelta(seconds=high)))
        assert found.level is level
        assert text in found.text
        assert (found.advice is not None) == (level is not Level.OK)

    def test_a_clock_that_is_not_shown(self) -> None:
        """Without a Date header, the difference is unknown, and it is said what that means."""
        assert doctor.judge_clock(None).level is Level.WARNING

    @pytest.mark.parametrize(
        ("failure", "advice"),
        [
            (InvalidCredentials("x", status_code=401), "do not guess"),
            (TokenExpired("x", status_code=401), "has expired"),
            (ServerError("x", status_code=500), "try again later"),
            (UnexpectedResponse("x", status_code=200), "check the base URL"),
            (RequestTimeout("x"), "longer --timeout"),
            (MobileMoneyError("x"), "read the error"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
    )
    def test_a_call_that_failed(self, failure: MobileMoneyError, advice: str) -> None:
        """Each kind of failure has its own cure."""
        (credentials,) = doctor.judge_call(failure, "token from flag", "mobilemoney login --profile shop")
        assert credentials.level is Level.PROBLEM
        assert advice in str(credentials.advice)
        assert str(credentials.advice).count("--profile") == str(credentials.advice).count("mobilemoney login")

    def test_a_call_that_tells_something(self) -> None:
        """A missing permission proves the token; a rate-limit rejection proves nothing about it."""
        found = doctor.judge_call(PermissionDenied("x", status_code=403), "token")
        assert [each.level for each in found] == [Level.WARNING]
        found = doctor.judge_call(RateLimitExceeded("x", status_code=429), "token")
        assert [each.level for each in found] == [Level.SKIPPED, Level.PROBLEM]
        assert "merchant" in found[1].text

    def test_a_rejection_that_is_not_the_service_s(self) -> None:
        """A 429 without the service's code says nothing about the merchant's limit: a gateway has its own."""
        failure = RateLimitExceeded("x", status_code=429, retry_after=20, is_certain=False)
        _, found = doctor.judge_call(failure, "token")
        assert (found.level, "for 20 s more" in found.text) == (Level.PROBLEM, True)
        assert "merchant" not in f"{found.text} {found.advice}"
        assert "gateway" in str(found.advice)

    def test_a_url_without_its_version(self) -> None:
        """The version prefix is part of the base URL (contract, section 9)."""
        assert doctor.judge_url("https://pay.example", is_production=True).level is Level.WARNING
        assert doctor.judge_url("https://pay.example/api/v1/", is_production=True).level is Level.OK

    def test_a_certificate_that_ends_soon(self) -> None:
        """Less than two weeks are a warning."""
        judge = partial(doctor.judge_certificate, version="TLSv1.3", now=datetime(2030, 1, 1, tzinfo=UTC))
        assert judge(datetime(2030, 1, 16, tzinfo=UTC)).level is Level.OK
        assert judge(datetime(2030, 1, 14, tzinfo=UTC)).level is Level.WARNING

    def test_stores(self) -> None:
        """Tables of another version are a problem, and so is a database that cannot be written."""

        def judge(**seen: Any) -> list[Level]:
            return [each.level for each in doctor.judge_store(StoreHealth(**seen), has_key=True)]

        assert judge(version=3) == [Level.OK, Level.OK]
        assert judge(version=4, refusal="update mobilemoney-async") == [Level.PROBLEM]
        assert judge(version=3, cannot_write="OperationalError") == [Level.PROBLEM, Level.OK]
        assert judge(version=3, clear_tokens=1) == [Level.OK, Level.OK, Level.WARNING]
        assert judge(version=3, encrypted_tokens=1) == [Level.OK, Level.OK]
        keyless = doctor.judge_store(StoreHealth(version=3, encrypted_tokens=1), has_key=False)
        assert [(each.level, each.check) for each in keyless[2:]] == [(Level.WARNING, "store key")]
