"""Logging in from the command line, the token that is kept, the user behind it, and one-time passwords."""

import json
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from mobilemoney_async import InvalidToken, LoginAuth, Secret
from mobilemoney_async.cli.clients import (
    KeptFirst,
    KeptLogin,
    choose_auth,
    find_login,
    forget_login,
    keep_login,
    open_client,
)
from mobilemoney_async.configuration.settings import Settings, load_settings
from mobilemoney_async.sandbox import Sandbox
from tests.support.commands import run
from tests.support.terminal import terminal

EMAIL = "merchant@example.com"
NUMBER = "+255681234501"


@pytest.fixture
def state(folder: Path) -> Path:
    return folder / "state"


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox()


def log_in(sandbox: Sandbox, url: str, *options: str) -> Any:
    return run("login", "--base-url", url, "--email", EMAIL, *options, answer=f"{sandbox.password}\n")


class TestLogin:
    def test_the_token_is_kept_for_the_commands_that_follow(self, sandbox: Sandbox, url: str, state: Path) -> None:
        """After a login no command needs the password; the file is its owner's alone and holds no password."""
        result = log_in(sandbox, url)
        assert result.exit_code == 0, result.output
        assert f"logged in at {url} as Asha Mushi <m…@example.com>, until " in result.stdout
        assert not any(secret in result.output for secret in (sandbox.password, EMAIL))
        (file,) = (state / "mobilemoney" / "logins").iterdir()
        assert str(file) in result.stdout
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert sandbox.password not in file.read_text("utf-8")
        kept = find_login(load_settings(base_url=url))
        assert kept is not None
        assert run("profile", "--base-url", url).exit_code == 0
        assert sandbox.requests.logins == 1

    def test_logout_forgets_it(self, sandbox: Sandbox, url: str, state: Path) -> None:
        """Nothing is left of it, and a second logout is no error."""
        log_in(sandbox, url)
        assert run("logout", "--base-url", f"{url}/\udcff").exit_code == 0  # a byte that is no text
        assert run("logout", "--base-url", url).stdout == "deleted: the login of profile command line\n"
        assert list((state / "mobilemoney" / "logins").iterdir()) == []
        result = run("logout", "--base-url", url)
        assert (result.exit_code, result.stdout) == (0, "no login of profile command line was kept\n")

    def test_a_login_can_be_tried_without_keeping_it(self, sandbox: Sandbox, url: str, state: Path) -> None:
        """--no-save only checks e-mail and password; --json says the result to a program, without the token."""
        result = log_in(sandbox, url, "--no-save", "--json")
        assert result.exit_code == 0, result.output
        said = json.loads(result.stdout)
        assert (said["user_id"], said["email"], said["file"]) == (1, "m…@example.com", None)
        assert datetime.fromisoformat(said["expires_at"]) > datetime.now(UTC)
        assert not state.exists()

    def test_the_password_may_come_from_a_file_or_the_environment(
        self, sandbox: Sandbox, url: str, tmp_path: Path
    ) -> None:
        """Nobody has to type it, and no argument holds it."""
        file = tmp_path / "password"
        file.write_text(f"{sandbox.password}\n", encoding="utf-8")
        assert run("login", "--base-url", url, "--email", EMAIL, "--password-file", str(file)).exit_code == 0
        variables = {
            "MOBILEMONEY_BASE_URL": url,
            "MOBILEMONEY_EMAIL": EMAIL,
            "MOBILEMONEY_PASSWORD": sandbox.password,
        }
        assert run("login", **variables).exit_code == 0
        # Another person's password is asked for, rather than taken from there.
        result = run("login", "--email", "other@example.com", answer="", **variables)
        assert result.exit_code == 2
        assert "no password was given" in result.stderr

    def test_a_wrong_password_is_one_line_and_keeps_nothing(self, sandbox: Sandbox, url: str, state: Path) -> None:
        """It says what to do, is tried once, and leaves an earlier login alone."""
        log_in(sandbox, url)
        result = run("login", "--base-url", url, "--email", EMAIL, answer="wrong-password\n")
        assert result.exit_code == 1
        assert result.stderr.startswith("mobilemoney login: invalid_credentials")
        assert "do not guess" in result.stderr
        assert result.stderr.count("\n") == 1
        assert "wrong-password" not in result.output
        assert find_login(load_settings(base_url=url)) is not None

    def test_nothing_is_sent_without_a_password(self, url: str, sandbox: Sandbox) -> None:
        """Where nobody answers, the command says how else it can be given."""
        result = run("login", "--base-url", url)
        assert result.exit_code == 2
        assert result.stderr == "mobilemoney login: no e-mail was given; --email, or MOBILEMONEY_EMAIL\n"
        assert run("login", "--base-url", url, "--email", EMAIL).exit_code == 2
        assert sandbox.requests.total == 0

    def test_a_token_that_wins_is_mentioned(self, sandbox: Sandbox, url: str) -> None:
        """Whoever logs in to a profile with a token of its own is told that the token is used."""
        variables = {"MOBILEMONEY_BASE_URL": url, "MOBILEMONEY_TOKEN": "issued"}
        result = run("login", "--email", EMAIL, answer=f"{sandbox.password}\n", **variables)
        assert result.exit_code == 0, result.output
        assert "has a token of its own (environment), which wins" in result.stderr

    @pytest.mark.slow
    def test_on_a_terminal_it_asks_and_does_not_echo(self, sandbox: Sandbox, url: str, state: Path) -> None:
        """A person is asked for both; the password never shows. Ctrl-C or SIGTERM at the question sends nothing."""
        with terminal("login", "--base-url", url) as screen:
            screen.wait_for("E-mail")
            screen.type(f"{EMAIL}\n")
            screen.wait_for("Password: ")  # the blank is the hidden prompt's: what is typed before it is lost
            screen.type(f"{sandbox.password}\n")
            assert screen.end() == 0, screen.text
        assert "logged in at" in screen.text
        assert sandbox.password not in screen.text
        total = sandbox.requests.total
        for name in ("SIGINT", "SIGTERM"):
            with terminal("login", "--base-url", url, "--email", EMAIL) as screen:
                screen.wait_for("Password: ")
                screen.interrupt(name)
                assert screen.end() == 130, screen.text
            assert "mobilemoney login: interrupted" in screen.text
        assert sandbox.requests.total == total


class TestKept:
    """The file of a login, and what it is used for."""

    login = KeptLogin(email=EMAIL, token=Secret("kept-token"), expires_at=datetime(2030, 1, 1, tzinfo=UTC))
    place = Settings(profile="shop", base_url="https://pay.example/v1", is_production=True)

    def test_it_is_found_until_it_expires(self) -> None:
        """Half a minute before its end it counts as gone, since it may end on the way."""
        keep_login(self.place, self.login)
        end = self.login.expires_at
        assert find_login(self.place, now=end - timedelta(seconds=31)) == self.login
        assert find_login(self.place, now=end - timedelta(seconds=30)) is None
        assert forget_login(self.place)
        assert not forget_login(self.place)

    def test_it_goes_to_no_other_url_profile_or_person(self) -> None:
        """A login is for one profile at one URL, and for the address that the profile names."""
        keep_login(self.place, self.login)
        for other in (
            attrs.evolve(self.place, base_url="https://pay.example/v2"),
            attrs.evolve(self.place, profile="sh_op"),
        ):
            assert find_login(other) is None
        assert find_login(self.place, email="other@example.com") is None
        assert find_login(self.place, email=EMAIL) == self.login

    def test_two_profiles_whose_names_look_alike_do_not_share_it(self) -> None:
        """Whatever a profile is called, its file is its own and within its folder."""
        names = ("a/../b", "a_.._b", "..", "a" * 300, "a" * 301)
        files = {keep_login(attrs.evolve(self.place, profile=name), self.login) for name in names}
        assert len(files) == len(names)
        assert len({file.parent for file in files}) == 1

    @pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"email": 1, "token": null}', "\x00", "[" * 9999])
    def test_a_file_that_makes_no_sense_is_as_good_as_none(self, content: str) -> None:
        """The next login writes it anew."""
        file = keep_login(self.place, self.login)
        file.write_text(content, encoding="utf-8")
        assert find_login(self.place) is None
        keep_login(self.place, self.login)
        assert find_login(self.place) == self.login

    def test_a_write_that_fails_leaves_the_old_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No half file, and no stray one."""
        file = keep_login(self.place, self.login)

        def fail(*arguments: object) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr("json.dump", fail)
        with pytest.raises(OSError, match="full"):
            keep_login(self.place, attrs.evolve(self.login, token=Secret("new")))
        assert find_login(self.place) == self.login
        assert list(file.parent.iterdir()) == [file]

    def test_an_issued_token_wins_and_a_password_comes_last(self) -> None:
        """A login saves one, where logins are limited."""
        with_password = attrs.evolve(self.place, email=EMAIL, password=Secret("p"))
        assert isinstance(choose_auth(with_password), LoginAuth)
        keep_login(self.place, self.login)
        assert isinstance(choose_auth(with_password), KeptFirst)
        assert "kept-token" not in repr(choose_auth(with_password))
        assert choose_auth(attrs.evolve(self.place, token=Secret("issued"))).value == "issued"  # type: ignore[attr-defined]


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_kept_token_that_is_refused_is_replaced_by_a_login() -> None:
    """Where e-mail and password are at hand, a revoked token costs one more request, not the command."""
    sandbox = Sandbox()
    async with sandbox.serve() as url:
        place = Settings(profile="shop", base_url=url, is_production=True)
        expires_at = datetime.now(UTC) + timedelta(hours=1)
        keep_login(place, KeptLogin(email=EMAIL, token=Secret("revoked"), expires_at=expires_at))
        async with open_client(attrs.evolve(place, email=EMAIL, password=Secret(sandbox.password))) as client:
            assert (await client.users.profile())["success"] is True
            assert (await client.users.profile())["success"] is True
        assert sandbox.requests.logins == 1
        async with open_client(place) as client:
            with pytest.raises(InvalidToken):
                await client.users.profile()


class TestProfile:
    @pytest.mark.slow
    def test_it_shows_the_user(self, url: str) -> None:
        """A table for people, JSON for programs."""
        result = run("profile", "--base-url", url)
        assert result.exit_code == 0, result.output
        assert "user.email" in result.stdout
        assert json.loads(run("profile", "--base-url", url, "--json").stdout)["user"]["kyc_status"] == "approved"

    def test_what_is_undocumented_is_shown_with_care(
        self, url: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Numbers are masked, secrets left out, and no text is taken for a terminal's commands."""
        account = sandbox._account
        body = {
            "phone": NUMBER,
            "api_token": "s3cr3t",
            "note": "\x1b[2J[red]",
            "list": [1, True],
            "phone_number": NUMBER,
        }
        monkeypatch.setattr(type(account), "user", lambda self: body)
        shown = run("profile", "--base-url", url)
        assert "s3cr3t" not in shown.output
        assert NUMBER not in shown.output
        assert "\x1b" not in shown.output
        assert "[2J[red]" in shown.stdout
        assert "user.list.2" in shown.stdout
        assert "s3cr3t" not in run("profile", "--base-url", url, "--json").output
        assert NUMBER in run("profile", "--base-url", url, "--unmasked").stdout

    def test_numbers_and_secrets_of_any_spelling_are_not_shown(
        self, url: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Numbers without a plus, as JSON numbers, in texts and in names are masked; ids and times are not."""
        body = {
            "msisdn": "255681234501",
            "mobile": 255681234501,
            "spouse": {"0681-234-501": "0681 234 501"},
            "about": "call 0681234501, password: hunter2",
            "api_key": "hunter2",
            "authorization": "Bearer hunter2",
            "credentials": ["hunter2"],
            "pass_phrase": "hunter2",
            "jwt": "hunter2",
            "code": "hunter2",
            "project_id": "0f5e8a52-5b5e-4c3e-9d55-6d1f0e3a8a11",
            "created_at": "2026-01-31T10:00:00Z",
            "level": 3,
        }
        monkeypatch.setattr(type(sandbox._account), "user", lambda self: body)
        shown, unmasked = (run("profile", "--base-url", url, "--json", *more) for more in ((), ("--unmasked",)))
        assert not re.search(r"681\D?234\D?501|hunter2", shown.output)
        user = json.loads(shown.stdout)["user"]
        assert [user[name] for name in ("project_id", "created_at", "level")] == list(body.values())[-3:]
        assert "hunter2" not in unmasked.output
        assert json.loads(unmasked.stdout)["user"]["mobile"] == 255681234501

    def test_a_refused_token_is_one_line(self, url: str) -> None:
        """It says where a new one comes from."""
        result = run("profile", MOBILEMONEY_BASE_URL=url, MOBILEMONEY_TOKEN="wrong-token")
        assert result.exit_code == 1
        assert result.stderr.startswith("mobilemoney profile: invalid_token (HTTP 401)")
        assert "mobilemoney login" in result.stderr
        assert "wrong-token" not in result.output

    def test_no_sandbox_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without configuration and without a sandbox, the command says how to start one."""
        # The discard port, where nothing listens.
        monkeypatch.setattr("mobilemoney_async.configuration.settings.SANDBOX_URL", "http://127.0.0.1:9/v1")
        monkeypatch.setattr("mobilemoney_async.calls.retry.RetryPolicy.delay", lambda *_: 0.0, raising=False)
        result = run("profile")
        assert result.exit_code == 1
        assert "start one with mobilemoney sandbox" in result.stderr


class TestOTP:
    def test_a_code_is_requested_and_verified(self, url: str, sandbox: Sandbox) -> None:
        """The code comes on standard input or from a hidden prompt, and is good once."""
        result = run("otp", "request", "+255 681-234-501", "--base-url", url)
        assert result.exit_code == 0, result.output
        code = sandbox.last_otp(NUMBER)
        result = run("otp", "verify", NUMBER, "--base-url", url, "--json", answer=f"{code}\n")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["success"] is True
        assert code not in result.output
        again = run("otp", "verify", NUMBER, "--base-url", url, answer=f"{code}\n")
        assert again.exit_code == 1
        assert again.stderr.startswith("mobilemoney otp verify: invalid_otp")
        assert code not in again.output

    def test_bad_input_sends_nothing(self, url: str, sandbox: Sandbox) -> None:
        """A number or a purpose that is none is refused by name."""
        for arguments in (["request", "0681234501"], ["verify", "0681234501"]):
            result = run("otp", *arguments, "--base-url", url, answer="123456\n")
            assert result.exit_code == 2
            assert "PHONE must be + and 8 to 15 digits" in result.stderr
            assert "0681234501" not in result.output
        assert run("otp", "request", NUMBER, "--purpose", " ", "--base-url", url).exit_code == 2
        assert run("otp", "verify", NUMBER, "--base-url", url, answer="\n").exit_code == 2
        assert sandbox.requests.total == 0
