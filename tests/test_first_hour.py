"""What a newcomer types first works, or is answered with the right name."""

import json
from pathlib import Path
from typing import Any

import pytest

from mobilemoney_async import AsyncClient, InvalidRequest, TransactionStatus
from mobilemoney_async.sandbox import Sandbox
from tests.support.fakes import BASE_URL, PHONE_NUMBER, FakeTransport
from tests.support.warm import run_without


async def test_a_payment_is_followed_by_its_acknowledgement() -> None:
    """Every call that takes an id takes what has one, and the two positional arguments of a create are the obvious."""
    async with Sandbox(speed=600).client() as client:
        prompt = await client.collections.create(PHONE_NUMBER, 15_000)
        assert (await client.transactions.get(prompt)).id == prompt.id == prompt.transaction_id
        paid = await client.transactions.wait(prompt)
        assert (await client.transactions.get(paid)) == paid
        assert [each.transaction async for each in client.transactions.get_many([prompt, paid])] == [paid]
        async with client.poller() as poller:
            assert await poller.wait(prompt) == paid


async def test_create_does_not_take_its_arguments_in_the_other_order() -> None:
    """An amount is no phone number, so that a swap is refused."""
    sandbox = Sandbox()
    async with sandbox.client() as client:
        swapped: list[tuple[Any, Any]] = [(15_000, PHONE_NUMBER), ("15000", PHONE_NUMBER)]
        for first, second in swapped:
            with pytest.raises(InvalidRequest, match=r"^phone_number must be "):
                await client.collections.create(first, second)
    assert not sandbox.transactions


async def test_an_id_of_another_type_is_refused() -> None:
    async with Sandbox().client() as client:
        odd: Any = {"transaction_id": "tx-1"}
        with pytest.raises(InvalidRequest, match=r"^transaction_id must be a transaction id, an Ack.*, not dict$"):
            await client.transactions.get(odd)


async def test_the_list_can_be_awaited_and_filtered_in_any_case(caplog: pytest.LogCaptureFixture) -> None:
    """An empty list would look like a quiet day, so a type that there is not is refused, and a state reported."""
    async with Sandbox(speed=600).client() as client:
        paid = await client.transactions.wait(await client.collections.create(PHONE_NUMBER, 15_000))
        assert await client.transactions.list(status="success", type="Collection") == [paid]
        with pytest.raises(InvalidRequest, match=r"^type must be collection or disbursement, not 'collections'$"):
            client.transactions.list(type="collections")
        assert not caplog.records
        assert await client.transactions.list(status="sucess") == []
    assert "status 'sucess' is none of the contract's (PENDING, " in caplog.text
    assert TransactionStatus.SUCCESS.value in caplog.text


async def test_an_e_mail_address_and_a_password_are_a_login() -> None:
    service = FakeTransport()
    async with AsyncClient(BASE_URL, auth=("a@b.example", "secret"), transport=service) as client:
        await client.users.profile()
    login, profile = service.sent
    assert json.loads(login.body) == {"email": "a@b.example", "password": "secret"}
    assert profile.headers["authorization"] == "Bearer login-token-1"


@pytest.mark.parametrize(
    ("name", "right"),
    [("token", "auth="), ("api_key", "auth="), ("max_retries", "RetryPolicy(max_attempts=…)"), ("tiemout", "")],
)
def test_the_name_that_other_clients_use_is_answered_with_ours(name: str, right: str) -> None:
    """A wrong name is a TypeError, as for any function, and its value is not shown."""
    wrong: dict[str, Any] = {name: "hunter2"}
    with pytest.raises(TypeError, match=f"^AsyncClient has no argument '{name}'") as caught:
        AsyncClient(BASE_URL, auth="token", **wrong)
    assert right in str(caught.value)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(TypeError, match=f"^AsyncClient has no argument '{name}'"):
        AsyncClient(BASE_URL, **wrong)


def test_a_client_without_credentials_says_which_it_takes() -> None:
    """Also where the environment has no token: None is refused in the same words."""
    without: Any = AsyncClient
    for options in ({}, {"auth": None}):
        with pytest.raises(InvalidRequest, match=r"^auth must be a token, \(email, password\), .*, not None"):
            without(BASE_URL, **options)


def test_the_sandbox_is_answered_with_its_place() -> None:
    with pytest.raises(ImportError, match=r"from mobilemoney_async\.sandbox import Sandbox"):
        from mobilemoney_async import Sandbox  # type: ignore[attr-defined]  # noqa: F401


async def test_without_a_store_its_calls_ask_for_one() -> None:
    """Also where its extra is not installed, which they would import."""
    async with Sandbox().client() as client:
        for needs_store in (lambda: client.payouts, lambda: client.payments, client.dispatcher):
            with pytest.raises(InvalidRequest, match="store"):
                needs_store()


async def test_a_client_is_closed_by_the_name_of_old() -> None:
    client = Sandbox().client()
    await client.close()
    with pytest.raises(InvalidRequest, match="the client is closed"):
        await client.users.profile()


WITHOUT_EXTRAS = """
import sys
for name in ("sqlalchemy", "fastapi", "opentelemetry", "starlette"):
    sys.modules[name] = None
for line in sys.argv[1:]:
    try:
        exec(line)
    except (ImportError, ValueError) as exc:
        print(exc)
"""


@pytest.mark.once
def test_an_import_without_its_extra_names_the_extra() -> None:
    """No traceback of another library's missing module: what to install is said."""
    lines = {
        "import mobilemoney_async.contrib.fastapi": "fastapi",
        "import mobilemoney_async.contrib.otel": "otel",
        "import mobilemoney_async as m; m.Merchants('http://localhost', store='sqlite:///x.db', auth=id)": "store",
        "import mobilemoney_async as m; m.Merchants('http://localhost', store=id, auth=id)": "store",
        "import mobilemoney_async as m; m.AsyncClient('http://localhost', auth='x', store='sqlite:///x.db')": "store",
        "import mobilemoney_async.sandbox as s; s.Sandbox().app": "sandbox",
    }
    ran = run_without(WITHOUT_EXTRAS, *lines)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert [line.rpartition("pip install ")[2] for line in said] == [
        f'"mobilemoney-async[{extra}]"' for extra in lines.values()
    ]


@pytest.mark.real_time
async def test_a_store_may_outlive_the_sandbox(tmp_path: Path) -> None:
    """The morning after: another run of the sandbox has fresh ids, under the same token, so that payments are new."""
    for run in ("monday", "tuesday"):
        sandbox = Sandbox(run=run)
        assert sandbox.token == Sandbox().token
        async with sandbox.client(store=f"sqlite:///{tmp_path}/payments.db") as client:
            await client.collections.create(PHONE_NUMBER, 5_000, idempotency_key=run)
            assert [each.key for each in await client.payments.list(state="acknowledged")][-1] == run
