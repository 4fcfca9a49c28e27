"""Phone page over HTTP: its content, and the effect of each form."""

import html
import re
import socket
from decimal import Decimal

import anyio
import anyio.to_thread
import httpx
import pytest

from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.sandbox.callbacks import CallbackMode
from mobilemoney_async.sandbox.endpoints import ROUTES
from mobilemoney_async.sandbox.page import snapshot
from mobilemoney_async.sandbox.script import SWITCHES
from tests.sandbox.page_user import ADDRESS, WRITTEN, Elements, PageUser, ask, only
from tests.sandbox.service import ORDINARY, START, STUCK, http
from tests.support.patience import until

# Phones


async def test_an_empty_page_shows_how_to_begin(user: PageUser, sandbox: Sandbox) -> None:
    """An empty page shows the base URL, the token and the lines that create a collection."""
    seen = await user.see()
    assert "No phone has been asked to pay yet" in seen
    assert f"{ADDRESS}/v1" in seen
    assert sandbox.token in seen
    assert "mobilemoney collect" in seen


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.real_time
async def test_the_program_on_the_page_runs_as_it_is_copied(capsys: pytest.CaptureFixture[str]) -> None:
    """The Python program needs nothing else: pasted into a file, it asks a customer, waits and prints the end."""
    sandbox = Sandbox(speed=1000)
    async with sandbox.serve() as base_url, httpx.AsyncClient(base_url=base_url.removesuffix("/v1")) as client:
        found = re.search(r'<code id="python">(.*?)</code>', (await client.get("/")).text, re.DOTALL)
        assert found is not None
        program = compile(html.unescape(found[1]), "copied.py", "exec")
        await anyio.to_thread.run_sync(exec, program, {})
    assert "success" in capsys.readouterr().out.lower()


async def test_the_contract_is_beside_it(user: PageUser) -> None:
    """Other languages' tools find the OpenAPI document at its usual place."""
    answer = await user.http.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["openapi"] == "3.1.0"


async def test_a_prompt_is_shown_with_its_details(user: PageUser, sandbox: Sandbox) -> None:
    """A prompt names the merchant, the amount, the reference and the time left."""
    await ask(sandbox, ORDINARY)
    sandbox.advance(17)
    seen = await user.see()
    for part in (WRITTEN, "Pay merchant@example.com TZS 15,000", only(sandbox).reference, "1:43 left"):
        assert part in seen


@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_phone_shows_its_one_time_password(user: PageUser, sandbox: Sandbox, *, is_asked: bool) -> None:
    """As the customer gets it, until it is used: whatever language the program is written in."""
    if is_asked:
        await ask(sandbox, ORDINARY)
    async with sandbox.client() as client:
        await client.users.request_otp(ORDINARY)
        code = sandbox.last_otp(ORDINARY)
        assert f"One-time password {code}" in await user.see()
        await client.users.verify_otp(ORDINARY, code)
    assert "One-time password" not in await user.see()


async def test_the_merchant_s_mailbox_shows_its_reset_token(user: PageUser, sandbox: Sandbox) -> None:
    """As its e-mail has it, until it is used."""
    assert "reset token" not in await user.see()
    async with sandbox.client() as client:
        await client.users.forgot_password(sandbox.email)
        token = sandbox.last_reset_token(sandbox.email)
        assert f"reset token {token}" in await user.see()
        await client.users.reset_password(email=sandbox.email, reset_token=token, new_password="new")
    assert "reset token" not in await user.see()


async def test_a_wrong_pin_is_shown_with_the_tries_left_until_the_last_declines(
    user: PageUser, sandbox: Sandbox
) -> None:
    """The first two wrong PINs leave tries, the third declines the payment."""
    payment = await ask(sandbox, ORDINARY)
    for left in ("2 tries", "1 try"):
        await user.do("/phones/pin", transaction_id=payment, pin="0000")
        assert f"Wrong PIN: {left} left" in await user.see()
    await user.do("/phones/pin", transaction_id=payment, pin="0000")
    assert (only(sandbox).status, only(sandbox).failure_reason) == ("FAILED", "PAYMENT_NOT_APPROVED")
    assert "Not paid" in await user.see()


@pytest.mark.parametrize("pin", ["", "12", "12345", "12a4", "１２３４"])  # noqa: RUF001 - full-width digits are none
async def test_a_malformed_pin_is_not_counted_as_a_wrong_one(user: PageUser, sandbox: Sandbox, pin: str) -> None:
    """A PIN that is not four digits is refused, and costs no try."""
    payment = await ask(sandbox, ORDINARY)
    answer = await user.post("/phones/pin", transaction_id=payment, pin=pin)
    assert answer.status_code == 422
    assert "A PIN has 4 digits" in answer.text
    assert sandbox.phones()[0].prompts[0].wrong_pins == 0


@pytest.mark.parametrize(
    ("control", "status", "shown"), [("decline", "FAILED", "Not paid"), ("expire", "TIMEOUT", "Expired")]
)
async def test_a_prompt_can_be_declined_or_left_to_expire(
    user: PageUser, sandbox: Sandbox, control: str, status: str, shown: str
) -> None:
    """Each way in which a customer does not pay has its button, and shows in the phone's history."""
    payment = await ask(sandbox, ORDINARY)
    await user.do(f"/phones/{control}", transaction_id=payment)
    assert only(sandbox).status == status
    assert shown in await user.see()


@pytest.mark.parametrize(
    ("amount", "reason", "shown"),
    [
        (500, "RECIPIENT_NOT_FOUND", "Not received: recipient not found"),
        (500, None, "Not received: unspecified failure"),
        (10**9, None, "Not received: the balance of the merchant was too low"),
    ],
)
async def test_a_payout_that_was_not_received_says_why(
    user: PageUser, sandbox: Sandbox, amount: int, reason: str | None, shown: str
) -> None:
    """In the history of the recipient's phone."""
    async with sandbox.client() as client:
        made = await client.disbursements.create(ORDINARY, amount)
    if amount < 1_000:
        sandbox.decline(made.transaction_id, reason)
    sandbox.advance(120)
    assert shown in await user.see()


@pytest.mark.parametrize("control", ["pin", "decline", "expire"])
async def test_a_late_decision_is_refused(user: PageUser, sandbox: Sandbox, control: str) -> None:
    """A final payment does not change, and the page says why."""
    payment = await ask(sandbox, ORDINARY)
    sandbox.advance(120)
    answer = await user.post(f"/phones/{control}", transaction_id=payment, pin="1234")
    assert answer.status_code == 409
    assert "Too late" in answer.text
    assert only(sandbox).status == "TIMEOUT"
    answer = await user.post(f"/phones/{control}", transaction_id="txn_of_yesterday", pin="1234")
    assert answer.status_code == 404
    assert "knows no such payment" in answer.text


async def test_customers_answer_by_hand_or_automatically(user: PageUser, sandbox: Sandbox) -> None:
    """The switch decides about prompts that come after it."""
    switched = [sandbox.by_hand]
    await user.do("/phones/by-hand", by_hand="no")
    switched.append(sandbox.by_hand)
    await ask(sandbox, ORDINARY)
    assert "Answers automatically, unless you do first" in await user.see()
    await user.do("/phones/by-hand", by_hand="yes")
    assert [*switched, sandbox.by_hand] == [True, False, True]
    assert (await user.post("/phones/by-hand", by_hand="maybe")).status_code == 422


async def test_a_new_prompt_does_not_move_the_other_phones(user: PageUser, sandbox: Sandbox) -> None:
    """Phones with prompts keep their places: the one that was asked first comes first."""
    for last in "123":
        await ask(sandbox, ORDINARY[:-1] + last)
        sandbox.advance(1)
    seen = await user.see()
    assert seen.index(f"{WRITTEN[:-1]}1") < seen.index(f"{WRITTEN[:-1]}2") < seen.index(f"{WRITTEN[:-1]}3")


async def test_a_crowd_of_phones_is_bounded(user: PageUser, sandbox: Sandbox) -> None:
    """Many phones and prompts do not make the page endless, and it says how many it leaves out."""
    for number in range(snapshot.PHONES + 3):
        await ask(sandbox, f"+2556810000{number:02}")
    for _ in range(snapshot.PROMPTS + 1):
        await ask(sandbox, ORDINARY)
    source = await user.source()
    assert source.count('class="phone"') == snapshot.PHONES
    assert "and 3 more phones" in source
    assert "and 2 older" in Elements(source).text  # one of the first prompts, too
    for _ in range(snapshot.TRANSACTIONS):
        await ask(sandbox, STUCK)
    assert f"and {snapshot.PHONES + 3 + snapshot.PROMPTS + 1} older" in await user.see()


# The merchant


async def test_the_merchant_sees_transactions_requests_and_the_limit(sandbox: Sandbox) -> None:
    """Transactions and requests come newest first, with states in words; the limit shows its used part."""
    sandbox = Sandbox(now=START, by_hand=True)
    user = PageUser(sandbox)
    first = await ask(sandbox, ORDINARY, 1_000)
    await ask(sandbox, STUCK, 2_000)
    sandbox.decline(first)
    seen = await user.see()
    assert re.search(r"2,000 TZS PENDING .* 1,000 TZS FAILED .* PAYMENT_NOT_APPROVED", seen)
    assert "POST /v1/payment-service/airtel/c2b 200" in seen
    assert "8 of 10" in seen
    assert "2 of 60" in seen
    assert "10,000,000" in seen


# The clock


async def test_the_clock_runs_pauses_and_jumps(user: PageUser, sandbox: Sandbox) -> None:
    """Speed, pause, resume at the speed before, and jumps ahead."""
    await user.do("/clock", rate="20")
    assert sandbox.clock_rate == 20
    assert "20 times as fast as real time" in await user.see()
    await user.do("/clock", rate="0")
    await user.do("/clock", rate="0")
    assert sandbox.clock_rate == 0
    before = sandbox.now
    await anyio.sleep(10)
    assert "Paused" in await user.see()
    assert sandbox.now == before
    await user.do("/clock", rate="resume")
    assert sandbox.clock_rate == 20
    for seconds in (10, 60, 600, 3600):
        assert f'value="{seconds}"' in await user.source()
        before = sandbox.now
        await user.do("/clock/jump", seconds=str(seconds))
        assert (sandbox.now - before).total_seconds() == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/clock", {"rate": "-1"}),
        ("/clock", {"rate": "nan"}),
        ("/clock", {"rate": "fast"}),
        ("/clock", {"speed": "5"}),
        ("/clock/jump", {"seconds": "-1"}),
        ("/clock/jump", {"seconds": "inf"}),
        ("/clock/jump", {"seconds": "86401"}),
        ("/clock/jump", {"seconds": ""}),
    ],
    ids=str,
)
async def test_a_clock_that_cannot_be_is_refused(
    user: PageUser, sandbox: Sandbox, path: str, fields: dict[str, str]
) -> None:
    """A speed or a jump out of range changes nothing, and the page names the range."""
    before = sandbox.now
    answer = await user.post(path, **fields)
    assert answer.status_code == 422
    assert "must be a number" in answer.text
    assert (sandbox.clock_rate, sandbox.now) == (1, before)


# Faults


@pytest.mark.slow
async def test_every_fault_has_its_switch(user: PageUser, sandbox: Sandbox) -> None:
    """Each of the sandbox's faults can be switched on for one request, on for good, and off again."""
    states = sandbox.switches.states
    for index, switch in enumerate(SWITCHES):
        await user.do("/faults", once=switch.slug)
        assert (states()[index].is_on, states()[index].once) == (True, True)
        await user.do("/faults", keep=switch.slug)
        assert (states()[index].is_on, states()[index].once) == (True, False)
        await user.do("/faults", off=switch.slug)
        assert not states()[index].is_on
        assert switch.description in await user.see()


async def test_a_fault_strikes_where_it_should_and_is_counted(user: PageUser, sandbox: Sandbox) -> None:
    """A fault for one endpoint spares the others; the page counts, and says that it is on."""
    await user.do("/faults", keep="error-500-before", on="profile")
    assert "On until you switch it off, on profile" in await user.see()
    async with http(sandbox) as client:
        statuses = [(await client.get(f"/user-service/{path}")).status_code for path in ("profile", "users/profile")]
    assert statuses == [500, 200]
    seen = await user.see()
    assert "struck 1×" in seen  # noqa: RUF001 - a multiplication sign
    assert "fault: server error" in seen
    await user.do("/faults", keep="slow")
    await user.do("/faults", all_off="yes")
    assert not any(state.is_on for state in sandbox.switches.states())
    assert "None: every request is answered normally" in await user.see()


async def test_the_endpoint_of_a_fault_is_any_the_service_has(user: PageUser, sandbox: Sandbox) -> None:
    """Every endpoint can be chosen, or none in particular."""
    choices = Elements(await user.source()).values("value")
    for name in ("", *(route.name for route in ROUTES)):
        assert name in choices
        await user.do("/faults", once="slow", on=name)


@pytest.mark.parametrize(
    "fields", [{"once": "meteorite"}, {"off": "meteorite"}, {"keep": "slow", "on": "nowhere"}, {"on": "c2b"}], ids=str
)
async def test_a_fault_that_does_not_exist_is_refused(user: PageUser, sandbox: Sandbox, fields: dict[str, str]) -> None:
    """An unknown fault or endpoint switches nothing on."""
    assert (await user.post("/faults", **fields)).status_code == 422
    assert not any(state.is_on for state in sandbox.switches.states())


# Callbacks


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.real_time
async def test_a_forged_callback_is_sent_and_listed() -> None:
    """Sent callbacks are listed with the answer, or the reason why there was none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    sandbox = Sandbox()
    async with sandbox.serve() as base_url, httpx.AsyncClient(base_url=base_url.removesuffix("/v1")) as client:
        answer = await client.post("/callbacks", data={"url": closed, "forge": "yes"})
        assert answer.status_code == 303
        await until(lambda: sandbox.callbacks.sent)
        seen = Elements((await client.get("/")).text).text
    assert "forged cannot connect" in seen
    assert closed in seen


async def test_callbacks_are_set_up(user: PageUser, sandbox: Sandbox) -> None:
    """URL and mode can be set and cleared; the page says that the body is the sandbox's invention."""
    for mode in CallbackMode:
        await user.do("/callbacks", url=" http://127.0.0.1:9/hook ", mode=mode)
        assert (sandbox.callbacks.url, sandbox.callbacks.mode) == ("http://127.0.0.1:9/hook", mode)
    assert set(CallbackMode) <= Elements(await user.source()).values("value")
    seen = await user.see()
    assert "documents neither payload nor signature" in seen
    assert "Callbacks go to http://127.0.0.1:9/…" in seen
    await user.do("/callbacks", url="", mode="once")
    assert sandbox.callbacks.url is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": "ftp://example.com", "mode": "once"}, "url"),
        ({"url": "no url", "mode": "once"}, "url"),
        ({"url": "", "forge": "yes"}, "url"),
        ({"url": "http://127.0.0.1:9", "mode": "often"}, "mode"),
    ],
    ids=str,
)
async def test_callbacks_that_cannot_be_sent_are_refused(
    user: PageUser, sandbox: Sandbox, fields: dict[str, str], field: str
) -> None:
    """A wrong URL is explained beside its field, which keeps the typed text; nothing changes."""
    answer = await user.post("/callbacks", **fields)
    assert answer.status_code == 422
    assert ("URL" if field == "url" else "mode must be one of") in Elements(answer.text).text
    assert sandbox.callbacks.url is None
    if field == "url":
        shown = [found for tag, found in Elements(answer.text).attributes if found.get("id") == "callback-url"]
        assert shown[0]["value"] == fields["url"]
        assert shown[0]["aria-invalid"] == "true"
        assert "callback-url-error" in shown[0]["aria-describedby"]
        assert "callback-url-error" in Elements(answer.text).ids


async def test_htmx_gets_only_the_parts_that_the_stream_leaves_out(user: PageUser, sandbox: Sandbox) -> None:
    """With htmx only the stream shows the effect of a form; the answer holds its refusal, or none."""
    payment = await ask(sandbox, ORDINARY)
    headers = {"hx-request": "true"}
    refused = await user.http.post("/callbacks", data={"url": "x", "mode": "once"}, headers=headers)
    assert refused.status_code == 422
    assert {"notice", "callback-form", "callback-url-error"} <= set(Elements(refused.text).ids)
    assert refused.text.count('hx-swap-oob="outerMorph"') == 2
    paid = await user.http.post("/phones/pin", data={"transaction_id": payment, "pin": "1234"}, headers=headers)
    assert paid.status_code == 200
    assert "callback-url-error" not in paid.text
    assert only(sandbox).id not in paid.text
    assert only(sandbox).status == "SUCCESS"


def test_a_receiver_is_named_without_its_secrets() -> None:
    """The receiver of callbacks is shown without user, path and query, which may hold a secret."""
    shown = [snapshot.receiver(url) for url in ("http://u:p@host:1/hook/s3cret?k=v", "https://host", "http://[::1]:2/")]
    assert shown == ["http://host:1/…", "https://host/", "http://[::1]:2/"]


def test_money_and_times_are_readable() -> None:
    """Thousands are separated; the time left is rounded up."""
    assert [snapshot.money(each) for each in ("15000", Decimal("1234567.50"), "odd")] == [
        "15,000",
        "1,234,567.50",
        "odd",
    ]
    assert [snapshot.duration(each) for each in (0, 0.2, 59.5, 103, 3599.1, 7260, -5)] == [
        "0:00", "0:01", "1:00", "1:43", "1 h 00 min", "2 h 01 min", "0:00",
    ]  # fmt: skip


async def test_a_switch_shows_one_of_many_merchants() -> None:
    """The page shows one merchant's payments, balance and token; the switch chooses another one, in this browser."""
    sandbox = Sandbox(merchants=3)
    user, other = PageUser(sandbox), PageUser(sandbox)
    await user.do("/merchant", merchant="shop-2")
    await user.do("/phones/ask", phone_number=ORDINARY, amount="12345", merchant="shop-2")
    assert only(sandbox).merchant_id == sandbox.merchants["shop-2"].merchant_id
    seen, first = await user.source(), await other.source()
    assert "12,345" in Elements(seen).text.partition("The merchant")[2]
    assert sandbox.tokens["shop-2"] in seen and sandbox.token not in seen
    assert "12,345" not in Elements(first).text.partition("The merchant")[2]
    assert sandbox.token in first
    refused = await user.post("/merchant", merchant="shop-4")
    assert (refused.status_code, "merchant must be one of" in refused.text) == (422, True)


async def test_a_browser_that_knows_another_sandbox_sees_the_first_merchant() -> None:
    """A choice from an earlier run, with more merchants, is no obstacle; and one merchant needs no switch."""
    user = PageUser(Sandbox(merchants=1))
    user.http.cookies.set("mobilemoney_merchant", "shop-40")
    assert 'action="/merchant"' not in await user.source()


async def test_a_platform_reads_the_tokens_of_its_merchants() -> None:
    """One address gives the token of each account, and only to programs and to the page's own origin."""
    sandbox = Sandbox(merchants=2)
    user = PageUser(sandbox)
    assert (await user.http.get("/merchants.json")).json() == sandbox.tokens
    foreign = await user.http.get("/merchants.json", headers={"host": "evil.example"})
    assert foreign.status_code == 403
