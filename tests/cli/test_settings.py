"""Which service, credentials and store a command uses: flags, environment, file, and what is never mixed."""

import itertools
import os
import stat
from pathlib import Path

import anyio
import pytest

from mobilemoney_async import InvalidRequest, OutcomeUnknown, SQLStore
from mobilemoney_async.cli.clients import (
    KeptFirst,
    choose_auth,
    find_login,
    forget_login,
    open_client,
    sandbox_token,
)
from mobilemoney_async.configuration.profiles import read_profiles
from mobilemoney_async.configuration.settings import (
    SANDBOX_URL,
    Settings,
    load_settings,
    profile_names,
)
from mobilemoney_async.sandbox import Sandbox
from tests.support.fakes import PHONE_NUMBER, FakeTransport, Hang

SHOP, OTHER, LOCAL = "https://pay.example/v1", "https://other.example/v1", "http://127.0.0.1:9000/v1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def load(folder: Path, *, flags: dict[str, str] | None = None, **variables: str) -> Settings:
    """Load settings by these flags, and these variables without their prefix."""
    environ = {f"MOBILEMONEY_{name}": value for name, value in variables.items()}
    environ["XDG_CONFIG_HOME"] = str(folder.parent / "config")
    return load_settings(**(flags or {}), environ=environ)


def write(path: Path, text: str, *, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


TWO = f"""
[profiles.shop]
base_url = "{SHOP}"
token = "shop-token"
store = "sqlite:///shop.db"

[profiles.other]
base_url = "{OTHER}"
email = "asha@example.com"
password = " starts with a blank"
account = "second"
timeout = 5
production = false
"""


_SERVICE = f'[profiles.shop]\nbase_url = "{SHOP}"\n'


class TestHostileFiles:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a = " + "[" * 30_000 + "]" * 30_000, "not TOML: it is nested too deeply"),
            ("a = " + "{a=" * 15_000, "not TOML: it is nested too deeply"),
            (f"{_SERVICE}timeout = {'9' * 50_000}", "has too long a number"),
            (f"{_SERVICE}timeout = 0x{'f' * 50_000}", "timeout must be seconds, more than 0, not "),
            (f"{_SERVICE}timeout = 1e999999", "timeout must be seconds, more than 0, not "),
            ("a" + ".a" * 100_000 + " = 1", "too large for profiles"),
            ("a" + ".a" * 30_000 + " = 1", "at most 65,536 bytes, and 100 dots in a line"),
            ("[" + "a." * 101 + "a]", "at most 65,536 bytes, and 100 dots in a line"),
            ("#" * 65_537, "at most 65,536 bytes, and 100 dots in a line"),
            ("a" + ".a" * 100 + " = 1", "there is no such key"),
            ("a = 1\n" + "#" * 65_530, "there is no such key"),
        ],
        ids=range(11),
    )
    def test_it_is_refused_in_one_line(self, folder: Path, text: str, said: str) -> None:
        """A file that is deep, long or with huge numbers is refused by name, before it takes long to read."""
        write(folder / "mobilemoney.toml", text)
        with pytest.raises(InvalidRequest) as refused:
            load(folder)
        assert said in str(refused.value)
        assert str(folder / "mobilemoney.toml") in str(refused.value)

    def test_a_home_that_does_not_exist_is_a_missing_file(self, folder: Path) -> None:
        """A file of an unknown user, or with an impossible name, is reported as any other that cannot be read."""
        write(folder / "mobilemoney.toml", f'{_SERVICE}token_file = "~no-such-user/token"')
        with pytest.raises(FileNotFoundError):
            load(folder, flags={"profile": "shop"})
        write(folder / "mobilemoney.toml", f'{_SERVICE}token_file = "a\\u0000b"')
        with pytest.raises(InvalidRequest):
            load(folder, flags={"profile": "shop"})

    def test_a_file_without_end_is_not_read_to_its_end(self, folder: Path) -> None:
        """A device as the file ends in the same line."""
        with pytest.raises(InvalidRequest, match="too large for profiles"):
            load(folder, CONFIG="/dev/zero")


class TestBuiltIn:
    def test_without_configuration_the_sandbox_is_used(self, folder: Path) -> None:
        """`mobilemoney sandbox` in one terminal and a payment in another need no configuration."""
        settings = load(folder)
        assert (settings.profile, settings.base_url, settings.is_production) == ("sandbox", SANDBOX_URL, False)
        assert (settings.is_built_in, settings.is_chosen, settings.token) == (True, False, None)
        assert repr(open_client(settings)) == f"<AsyncClient {SANDBOX_URL}>"

    def test_its_token_is_that_of_a_sandbox_of_the_same_seed(self) -> None:
        """The token is the one that `mobilemoney sandbox` prints."""
        assert sandbox_token() == Sandbox(seed=0).token

    def test_a_profile_of_that_name_takes_its_place(self, folder: Path) -> None:
        """A file may say where the sandbox is."""
        write(folder / "mobilemoney.toml", f'[profiles.sandbox]\nbase_url = "{LOCAL}"\n')
        settings = load(folder)
        assert (settings.base_url, settings.is_built_in) == (LOCAL, False)

    def test_it_can_be_asked_for_by_name_at_another_port(self, folder: Path) -> None:
        """`--profile sandbox --base-url` reaches a sandbox that serves elsewhere, with its token."""
        settings = load(folder, flags={"profile": "sandbox", "base_url": LOCAL})
        assert (settings.base_url, settings.is_chosen) == (LOCAL, True)
        choose_auth(settings)

    def test_its_token_goes_nowhere_else(self, folder: Path) -> None:
        """A service that is not on loopback, or moves real money, needs credentials of its own."""
        write(folder / "mobilemoney.toml", f'[profiles.till]\nbase_url = "{LOCAL}"\nproduction = true\n')
        for flags, login in (({"base_url": SHOP}, f"--base-url {SHOP}"), ({"profile": "till"}, "--profile till")):
            with pytest.raises(InvalidRequest, match=f"no credentials are known for .*: mobilemoney login {login}, or"):
                choose_auth(load(folder, flags=flags))

    def test_a_url_that_takes_no_credentials_is_refused_itself(self, folder: Path) -> None:
        """Nobody is sent to log in where tokens would travel in the clear."""
        with pytest.raises(InvalidRequest, match="base_url must be https, or http on loopback only"):
            choose_auth(load(folder, flags={"base_url": "http://pay.example/v1"}))


class TestPrecedence:
    def test_flags_win_over_the_environment_and_that_over_the_file(self, folder: Path) -> None:
        """The nearer to the command, the stronger."""
        write(folder / "mobilemoney.toml", f'profile = "shop"\n{TWO}')
        assert load(folder).profile == "shop"
        assert load(folder, PROFILE="other").profile == "other"
        assert load(folder, flags={"profile": "shop"}, PROFILE="other").profile == "shop"
        settings = load(folder, PROFILE="shop", TOKEN="mine", STORE="sqlite:////env.db")
        assert settings.token == "mine"
        assert settings.store == "sqlite:////env.db"
        settings = load(folder, flags={"store": "sqlite:////flag.db"}, PROFILE="shop", STORE="sqlite:////env.db")
        assert settings.store == "sqlite:////flag.db"
        assert load(folder, flags={"account": "third"}, PROFILE="other").account == "third"

    def test_a_profile_holds_all_of_it(self, folder: Path) -> None:
        """Everything that a profile may say arrives."""
        write(folder / "mobilemoney.toml", TWO)
        settings = load(folder, flags={"profile": "other"})
        assert (settings.base_url, settings.email, settings.account) == (OTHER, "asha@example.com", "second")
        assert settings.password == " starts with a blank"
        assert (settings.timeout, settings.is_production) == (5.0, False)
        assert settings.sources["email"] == str(folder / "mobilemoney.toml")

    def test_the_file_is_looked_for_upwards_and_then_at_home(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The nearest file is used, and the user's own where a project has none."""
        home = write(folder.parent / "config" / "mobilemoney" / "mobilemoney.toml", TWO)
        assert load(folder, flags={"profile": "shop"}).config == home
        project = write(folder / "mobilemoney.toml", f'[profiles.local]\nbase_url = "{LOCAL}"\n')
        below = folder / "a" / "b"
        below.mkdir(parents=True)
        monkeypatch.chdir(below)
        assert load(folder, flags={"profile": "local"}).config == project
        elsewhere = write(folder.parent / "named.toml", TWO)
        assert load(folder, flags={"profile": "shop", "config": str(elsewhere)}).config == elsewhere
        assert load(folder, PROFILE="shop", CONFIG=str(elsewhere)).config == elsewhere
        assert load(folder, flags={"profile": "local"}, CONFIG=" ").config == project

    def test_a_store_is_the_same_wherever_the_command_is_run(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A relative path of a file counts from that file: another database would not know what was sent."""
        write(folder / "mobilemoney.toml", TWO)
        below = folder / "below"
        below.mkdir()
        monkeypatch.chdir(below)
        assert load(folder, flags={"profile": "shop"}).store == f"sqlite:///{folder}/shop.db"

    def test_secrets_come_from_files_too(self, folder: Path) -> None:
        """A token file, relative to the configuration, and variables that name files."""
        write(folder / "secret", " tok\n")
        write(folder / "mobilemoney.toml", f'[profiles.p]\nbase_url = "{SHOP}"\ntoken_file = "secret"\n')
        settings = load(folder, flags={"profile": "p"})
        assert settings.token == "tok"
        assert settings.secret_files == (folder / "secret",)
        password = write(folder / "password", " pass word \n")
        settings = load(folder, BASE_URL=SHOP, EMAIL="a@b.example", PASSWORD_FILE=str(password))
        assert settings.password == " pass word "

    def test_money_is_real_unless_the_service_is_on_this_machine(self, folder: Path) -> None:
        """What is not on loopback counts as production, unless its profile says otherwise."""
        write(folder / "mobilemoney.toml", f'{TWO}\n[profiles.till]\nbase_url = "{LOCAL}"\nproduction = true\n')
        assert load(folder, flags={"base_url": SHOP}).is_production
        assert load(folder, flags={"profile": "shop"}).is_production
        assert load(folder, flags={"profile": "till"}).is_production
        assert not load(folder, flags={"profile": "other"}).is_production
        assert not load(folder, flags={"base_url": "http://[::1]:80/v1"}).is_production
        assert load(folder, flags={"base_url": "https://127.0.0.1.example/v1"}).is_production


class TestNeverMixed:
    """Credentials go to one service only, and payments into one store only."""

    def test_no_combination_sends_a_secret_to_another_url(self, folder: Path) -> None:
        """Whatever flags, variables and file say, a token reaches only the URL that it was given with."""
        write(folder / "mobilemoney.toml", f'profile = "shop"\n{TWO}')
        homes = {"shop-token": SHOP, "environment-token": LOCAL}
        urls: list[str | None] = [None, SHOP, OTHER, LOCAL]
        names: list[str | None] = [None, "shop", "other", "sandbox"]
        used = 0
        for flag_url, flag_name, variable_name in itertools.product(urls, names, names):
            flags = {k: v for k, v in (("base_url", flag_url), ("profile", flag_name)) if v is not None}
            named = {} if variable_name is None else {"PROFILE": variable_name}
            variables = {"BASE_URL": LOCAL, "TOKEN": "environment-token", **named}
            try:
                settings = load(folder, flags=flags, **variables)
            except InvalidRequest:
                continue
            if settings.token is not None:
                used += 1
                assert homes[settings.token.reveal()] == settings.base_url, (flags, named)
            if settings.email is not None:
                assert settings.base_url == OTHER
        assert used > 10

    def test_another_url_for_a_profile_is_refused(self, folder: Path) -> None:
        """A profile is one service: its token is not taken along to another."""
        write(folder / "mobilemoney.toml", TWO)
        with pytest.raises(InvalidRequest, match="--base-url: not the base_url of profile shop"):
            load(folder, flags={"profile": "shop", "base_url": OTHER})
        with pytest.raises(InvalidRequest, match="MOBILEMONEY_BASE_URL: not the base_url of profile shop"):
            load(folder, PROFILE="shop", BASE_URL=OTHER)
        same = f"{SHOP.upper().replace('HTTPS', 'https').replace('/V1', '/v1')}/"
        assert load(folder, flags={"profile": "shop", "base_url": same}).token == "shop-token"

    @pytest.mark.parametrize("variables", [{}, {"PROFILE": "shop"}])
    def test_a_url_of_the_command_uses_nothing_of_the_default_profile(
        self, folder: Path, variables: dict[str, str]
    ) -> None:
        """It is a service of its own, without credentials and store, unless it is that profile's own URL."""
        write(folder / "mobilemoney.toml", f'profile = "shop"\n{TWO}')
        for url in (OTHER, LOCAL):
            settings = load(folder, flags={"base_url": url}, **variables)
            assert (settings.base_url, settings.profile) == (url, "command line")
            assert (settings.token, settings.email, settings.password, settings.store) == (None,) * 4
        assert load(folder, flags={"base_url": SHOP}, **variables).token == "shop-token"
        variable = load(folder, BASE_URL=OTHER)
        assert (variable.base_url, variable.token, variable.store) == (OTHER, None, None)

    def test_a_profile_of_a_flag_uses_nothing_of_an_environment_for_another(self, folder: Path) -> None:
        """An exported production token stays at home when another profile is asked for."""
        write(folder / "mobilemoney.toml", TWO)
        environ = {"PROFILE": "shop", "TOKEN": "exported", "STORE": "sqlite:////production.db", "STORE_KEY": "k" * 16}
        settings = load(folder, flags={"profile": "sandbox"}, **environ)
        assert (settings.token, settings.store, settings.store_key) == (None, None, None)
        settings = load(folder, flags={"base_url": LOCAL}, BASE_URL=SHOP, TOKEN="exported", STORE="sqlite:////p.db")
        assert (settings.token, settings.store, settings.profile) == (None, None, "command line")

    @pytest.mark.parametrize("name", ["TOKEN", "PASSWORD", "TOKEN_FILE", "EMAIL", "STORE", "STORE_KEY"])
    def test_what_belongs_to_no_service_is_refused(self, folder: Path, name: str) -> None:
        """A token or a store in the environment, and nothing that says for which service: nobody guesses."""
        write(folder / "mobilemoney.toml", TWO)
        for flags in ({}, {"profile": "shop"}):
            with pytest.raises(InvalidRequest, match=f"MOBILEMONEY_{name}: no service is named for it"):
                load(folder, flags=flags, **{name: "sqlite:////x.db"})

    def test_a_url_of_the_command_is_where_they_go(self, folder: Path) -> None:
        """With --base-url, the environment's token goes there, where it has no other home."""
        assert load(folder, flags={"base_url": SHOP}, TOKEN="mine").token == "mine"

    def test_one_persons_password_does_not_go_with_anothers_address(self, folder: Path) -> None:
        """An address of the environment takes the place of all the credentials of the profile."""
        write(folder / "mobilemoney.toml", TWO)
        settings = load(folder, PROFILE="other", EMAIL="juma@example.com")
        assert (settings.email, settings.password) == ("juma@example.com", None)
        settings = load(folder, PROFILE="other", PASSWORD="new")
        assert settings.email == "asha@example.com"
        assert settings.password == "new"
        settings = load(folder, PROFILE="other", TOKEN="tok")
        assert settings.token == "tok"
        assert (settings.email, settings.password) == (None, None)


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('[profiles.p]\ntokn = "x"', r"profiles\.p\.tokn: there is no such key; known are base_url, email, token"),
            ('profiles = "x"', "profiles must be tables"),
            ('color = "x"', "color: there is no such key; known are profile, profiles"),
            ("[profiles]\np = 1", r"profiles\.p must be a table"),
            ('[profiles.p]\ntimeout = "5"', r"profiles\.p\.timeout must be seconds, more than 0, not '5'"),
            ("[profiles.p]\ntimeout = 0", r"profiles\.p\.timeout must be seconds, more than 0, not 0"),
            ('[profiles.p]\nproduction = "no"', r"profiles\.p\.production must be true or false"),
            (
                "[profiles.p]\nstore_options = 1",
                r"profiles\.p\.store_options must be a table of grace, keep_changes, s",
            ),
            ("[profiles.p]\nstore_options = { graze = 1 }", r"profiles\.p\.store_options must be a table of grace"),
            (
                "[profiles.p]\nstore_options = { grace = -1 }",
                r"store_options\.grace must be seconds, 0 or more, not -1",
            ),
            ("[profiles.p]\nstore_options = { keep_changes = 0 }", r"keep_changes must be days, more than 0, not 0"),
            ("[profiles.p]\nstore_options = { keep_changes = 40_000 }", r"must be days, more than 0, 36,500 at most"),
            ("[profiles.p]\nstore_options = { sole_writer = 1 }", r"store_options\.sole_writer must be true or false"),
            ("[profiles.p]\nlocal_numbers = 1", r"profiles\.p\.local_numbers must be true or false"),
            ("[profiles.p]\nbase_url = 5", r"profiles\.p\.base_url\b.* a str that is not blank"),
            ('[profiles.p]\ntoken = "x"\nemail = "y"', r"profiles\.p\.token and profiles\.p\.email are both set"),
            ('profile = "q"\n[profiles.p]', "profile must be one of p, sandbox"),
            ('[profiles.p]\ntoken = "s3cr3t\n', "not TOML at line 2"),
        ],
    )
    def test_a_file_that_says_something_else(self, folder: Path, text: str, message: str) -> None:
        """The file, the key and what it accepts are named, and no secret is."""
        path = write(folder / "mobilemoney.toml", text)
        with pytest.raises(InvalidRequest, match=message) as refused:
            load(folder)
        assert str(path) in str(refused.value)
        assert "s3cr3t" not in str(refused.value)

    def test_a_secret_in_a_file_that_others_can_read(self, folder: Path) -> None:
        """A token in the file itself needs a file that its owner alone can read."""
        path = write(folder / "mobilemoney.toml", TWO, mode=0o640)
        with pytest.raises(InvalidRequest, match=r"profiles\.shop\.token: .*chmod 600 it, or use token_file"):
            load(folder, flags={"profile": "shop"})
        path.chmod(0o600)
        assert load(folder, flags={"profile": "shop"}).token == "shop-token"

    def test_a_store_with_a_password_in_such_a_file(self, folder: Path) -> None:
        """So does a password in the URL of a store, which is not repeated."""
        store = "postgresql+psycopg://shop:s3cr3t@db/payments"
        path = write(
            folder / "mobilemoney.toml", f'[profiles.shop]\nbase_url = "{SHOP}"\nstore = "{store}"\n', mode=0o644
        )
        with pytest.raises(InvalidRequest, match=r"profiles\.shop\.store: .*chmod 600 it") as refused:
            load(folder, flags={"profile": "shop"})
        assert "s3cr3t" not in str(refused.value)
        path.chmod(0o600)
        assert load(folder, flags={"profile": "shop"}).store == store

    def test_a_file_that_a_stranger_may_have_written(self, folder: Path) -> None:
        """A file that was found, not named, says where tokens go: whoever may write it may take them."""
        path = write(folder / "mobilemoney.toml", TWO, mode=0o602)
        with pytest.raises(InvalidRequest, match="another user of this machine may have written it"):
            load(folder)
        path.chmod(0o600)
        if os.getuid() == 0:
            os.chown(path, 12345, -1)
            with pytest.raises(InvalidRequest, match="another user"):
                load(folder)
            os.chown(path, 0, -1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_a_profile_that_is_not_there(self, folder: Path) -> None:
        """The known profiles are named."""
        write(folder / "mobilemoney.toml", TWO)
        known = r"there is no profile 'shp' \(in .*mobilemoney.toml\); known are other, sandbox, shop"
        with pytest.raises(InvalidRequest, match=known):
            load(folder, flags={"profile": "shp"})

    def test_a_profile_without_a_url(self, folder: Path) -> None:
        """Nothing is guessed about where it goes; a flag may say it."""
        write(folder / "mobilemoney.toml", '[profiles.p]\ntoken = "x"\n')
        with pytest.raises(InvalidRequest, match=r"profiles\.p\.base_url: missing"):
            load(folder, flags={"profile": "p"})
        for flags in ({"profile": "p", "base_url": SHOP}, {"base_url": SHOP}):
            assert load(folder, flags=flags, PROFILE="p").token == "x"

    def test_a_store_that_is_none(self, folder: Path) -> None:
        """What is wrong is named as it is called on the command line."""
        for flags, variables, message in (
            ({"store": "mysql://x"}, {}, "^store must be "),
            ({}, {"STORE": "sqlite:////x.db", "STORE_KEY": "short", "PROFILE": "sandbox"}, "^store key must be "),
        ):
            with pytest.raises(InvalidRequest, match=message):
                open_client(load(folder, flags=flags, **variables))

    def test_two_answers_to_one_question(self, folder: Path) -> None:
        """A token and an address, a password and its file: one is enough."""
        with pytest.raises(InvalidRequest, match="MOBILEMONEY_TOKEN and MOBILEMONEY_EMAIL are both set: unset one"):
            load(folder, BASE_URL=SHOP, TOKEN="t", EMAIL="a@b.example")
        with pytest.raises(
            InvalidRequest, match="MOBILEMONEY_PASSWORD and MOBILEMONEY_PASSWORD_FILE are both set: unset one"
        ):
            load(folder, BASE_URL=SHOP, EMAIL="a@b.example", PASSWORD="p", PASSWORD_FILE="/x")

    @pytest.mark.parametrize("url", ["http://[", "https://user:hunter2@[::1", "http://127.0.0.1:99999/v1"])
    def test_a_url_that_is_none(self, folder: Path, url: str) -> None:
        """Of the file or of the command line, it is refused in one line, without the URL."""
        (folder / "mobilemoney.toml").write_text(f"[profiles.odd]\nbase_url = '{url}'\n")
        for flags in ({"profile": "odd"}, {"base_url": url}):
            with pytest.raises(InvalidRequest, match=r"^base_url must be an absolute URL, such as [^@]*$"):
                load(folder, flags=flags)

    @pytest.mark.parametrize(
        "url",
        [
            "https://asha:s3cr3t@pay.example/v1",
            "asha:s3cr3t@pay.example/v1",
            "https://pay.example/v1?key=s3cr3t",
            "https://pay.example/v1#s3cr3t",
        ],
    )
    def test_a_url_with_a_password(self, folder: Path, url: str) -> None:
        """A URL is shown to people, so that it must not hold a secret; and this one is not shown either."""
        with pytest.raises(InvalidRequest, match="without user, password, query and fragment") as refused:
            load(folder, flags={"base_url": url})
        assert "s3cr3t" not in str(refused.value)

    def test_a_file_that_is_not_there(self, folder: Path) -> None:
        """A file that was named must exist."""
        with pytest.raises(FileNotFoundError):
            load(folder, flags={"config": "nowhere.toml"})
        write(folder / "mobilemoney.toml", f'[profiles.p]\nbase_url = "{SHOP}"\ntoken_file = "nowhere"\n')
        with pytest.raises(FileNotFoundError):
            load(folder, flags={"profile": "p"})

    @pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
    def test_a_secret_file_without_a_secret(self, folder: Path, content: bytes) -> None:
        """It is named, and nothing of it shown."""
        (folder / "secret").write_bytes(content)
        with pytest.raises(InvalidRequest, match=r"secret (must be|is empty)"):
            load(folder, BASE_URL=SHOP, TOKEN_FILE=str(folder / "secret"))


def test_no_secret_shows_itself(folder: Path) -> None:
    """Neither settings nor profiles show a secret, nor the password of a store."""
    write(folder / "mobilemoney.toml", TWO.replace("sqlite:///shop.db", "postgresql+psycopg://u:s3cr3t@h/d"))
    for profile in ("shop", "other"):
        shown = repr(load(folder, flags={"profile": profile}))
        assert "shop-token" not in shown
        assert "s3cr3t" not in shown
        assert "blank" not in shown
    profiles = repr(read_profiles(folder / "mobilemoney.toml", {}))
    assert not any(secret in profiles for secret in ("shop-token", "s3cr3t", "blank"))


async def test_the_settings_reach_the_client(folder: Path) -> None:
    """URL, time-out, store and account are those of the profile; what a command says itself wins."""
    write(folder / "mobilemoney.toml", f'{TWO}store = "sqlite:///second.db"\n')
    settings, service = load(folder, flags={"profile": "other"}), FakeTransport(lambda sent: Hang())
    for timeout, given in ((5.0, {}), (200.0, {"timeout": 200.0, "store": None})):
        async with open_client(settings, auth="token", transport=service, **given) as client:
            with pytest.raises(OutcomeUnknown):
                await client.collections.create(PHONE_NUMBER, 1000, idempotency_key=None if given else "order-1")
        (sent,), service.sent = service.sent, []
        assert str(sent.url).startswith(OTHER)
        assert anyio.current_time() - sent.at == pytest.approx(timeout)
    async with open_client(settings, auth="token", store=SQLStore("sqlite:///second.db", account="second")) as client:
        assert [record.key for record in await client.payments.list()] == ["order-1"]
    assert not isinstance(choose_auth(settings), KeptFirst)


def test_names_are_completed_from_the_file(folder: Path) -> None:
    """Completion knows the profiles; a broken file has none, and does not break the shell."""
    environ = {"XDG_CONFIG_HOME": str(folder.parent / "config")}
    assert profile_names(environ) == ["sandbox"]
    write(folder / "mobilemoney.toml", TWO)
    assert profile_names(environ) == ["other", "sandbox", "shop"]
    write(folder / "mobilemoney.toml", "nonsense")
    assert profile_names(environ) == ["sandbox"]


def test_a_user_without_a_home_has_no_kept_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in many containers: nothing is found, and keeping a login is refused by what is missing."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    settings = load_settings(environ={"MOBILEMONEY_BASE_URL": SHOP})
    assert find_login(settings) is None
    with pytest.raises(InvalidRequest, match="HOME must be set, or XDG_STATE_HOME"):
        forget_login(settings)
