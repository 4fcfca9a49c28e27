"""Texts that somebody may read otherwise: amounts, separators and keys are refused, everywhere alike."""

from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from mobilemoney_async import AsyncClient, InvalidRequest, PaymentState, SQLStore
from mobilemoney_async.payments.payouts.rows import read_rows
from mobilemoney_async.sandbox import Sandbox
from mobilemoney_async.values import normalise_amount, normalise_phone_number
from tests.payments.second_world import BOTH, Order, World, number

NUMBER = "+255681234567"
HEADER = "phone_number,amount,name"


def refused(rows: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_rows(rows)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("500.000", ("500000", "500")),
        ("15.000", ("15000", "15")),
        ("15,000", ("15000", "15")),
        ("1.500", ("1500", "1.5")),
        ("2,750", ("2750", "2.75")),
        ("500,00", ("50000", "500")),
        ("15000,0", ("150000", "15000")),
        ("5000.000", ("5000000", "5000")),
    ],
)
def test_an_amount_with_two_readings_is_refused_with_both(text: str, readings: tuple[str, str]) -> None:
    """The sentence shows both; nobody has to guess. In a file it names the line."""
    said = f"it may be read as {readings[0]} or as {readings[1]}: write digits alone"
    with pytest.raises(InvalidRequest) as caught:
        normalise_amount(text)
    assert str(caught.value).endswith(said)
    for rows in ([{"phone_number": NUMBER, "amount": text}], f"phone_number;amount\n{NUMBER};{text}\n"):
        assert said in refused(rows)
        assert "line " in refused(rows)


@pytest.mark.parametrize(("text", "amount"), [("5000", "5000"), ("5000.0", "5000"), ("5000.00", "5000"), ("007", "7")])
def test_digits_are_read(text: str, amount: str) -> None:
    """A dot and one or two zeros are the contract's own spelling of decimals."""
    assert normalise_amount(text) == normalise_amount(Decimal(text)) == amount


@pytest.mark.parametrize(
    "row",
    [
        f"{NUMBER},15,000,Asha",
        f"{NUMBER},15,000",
        f"{NUMBER},500,101",
        f'{NUMBER},"15","000"',
        f"{NUMBER},1,500,000",
    ],
)
def test_an_amount_that_its_comma_may_have_divided_is_refused(row: str) -> None:
    """The error names the line and the ways out; the file that follows them is read."""
    said = refused(f"{HEADER}\n{row}\n")
    assert "line 2: " in said
    assert "semicolons" in said
    assert read_rows(f"phone_number;amount;name\n{NUMBER};500;101\n")[0].info == {"name": "101"}
    assert read_rows(f"phone_number,amount,name,branch\n{NUMBER},500,Asha,101\n")[0].amount == "500"


@pytest.mark.parametrize(
    ("header", "row", "is_read"),
    [
        ("phone_number,amount", f"{NUMBER},1500,", False),
        ("phone_number,amount", f"{NUMBER},1500,,", False),
        ("phone_number,amount", f"{NUMBER},1500,x", False),
        ("phone_number,amount,", f"{NUMBER},1500,", True),
        ("phone_number,amount,", f"{NUMBER},1500,,", True),
        ("phone_number,amount,", f"{NUMBER},1500,x", False),
        ("phone_number,amount,,", f"{NUMBER},1500,x,", False),
        ("phone_number,amount,,", f"{NUMBER},1500,,,x", False),
        ("phone_number,amount,name", f"{NUMBER},1500", False),
    ],
)
def test_a_row_has_the_cells_of_its_header(header: str, row: str, *, is_read: bool) -> None:
    """Blank cells more are allowed only where the header's own last cells are blank; nothing is dropped."""
    if is_read:
        assert read_rows(f"{header}\n{row}\n")[0].amount == "1500"
    else:
        assert "another number of values" in refused(f"{header}\n{row}\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(
    "name", ['"name, first, last, and, more"', '"name; or; more; of; it"', '"na\tme\t\t\t\t"', "name"]
)
def test_the_delimiter_is_that_of_the_header(end: str, delimiter: str, name: str) -> None:
    """Other delimiters inside quotes count nothing, whatever ends the lines."""
    lines = [["phone_number", "amount", name], [NUMBER, "1500", '"a, b; c"'], [NUMBER, "2500", "d"]]
    text = end + end.join(delimiter.join(cells) for cells in lines)
    found = read_rows(text)
    assert [row.amount for row in found] == ["1500", "2500"]
    assert [*found[0].info.values()] == ["a, b; c"]


KEYS = [" order-9", "order-9 ", "order-9\n", "\torder-9", "order\r\n9", "order\x0b9", "order-9\u2028", "order\x009"]
KEYS += ["\ufefforder-9", "order-9\u200b", "order\u202e9", "\u00a0order-9", "order\x7f9", "order\x859"]
KEYS += ["order\u00a09", "order\u20079", "order-9\ufe0f", "order\u034f-9", "order-9\u3164"]


@BOTH
async def test_a_key_that_looks_like_another_is_refused_everywhere(world: World, client: AsyncClient) -> None:
    """White space around it, line ends, control characters and invisible marks would make a second payment."""
    await world.pay(client, [Order("order-9", "collections", number(1))])
    for key in KEYS:
        payment: dict[str, Any] = {"phone_number": number(1), "amount": 5000, "idempotency_key": key}
        with pytest.raises(InvalidRequest, match="idempotency_key must be"):
            await client.collections.create(**payment)
        with pytest.raises(InvalidRequest, match="idempotency_key must be"):
            await client.payments.enqueue(type="collection", **payment)
        with pytest.raises(InvalidRequest, match="key must be"):
            await client.payouts.propose(
                [{"phone_number": number(1), "amount": 5000, "key": key}], name="July", by="Asha"
            )
        with pytest.raises(InvalidRequest, match="keys must be"):
            await client.payments.recover({key: "t-1"}, note="from the books")
    assert world.service.posts == 1


def test_a_key_in_a_file_is_stripped_as_every_cell_is() -> None:
    """Blanks beside a delimiter belong to no cell; marks and line ends inside a cell do."""
    header = "phone_number,amount,key\n"
    assert read_rows(f"{header}{NUMBER},1500, order-9 \n")[0].key == "order-9"
    for key in ("order\u200b9", '"order\x859"', "order\x009"):
        assert "key must be" in refused(f"{header}{NUMBER},1500,{key}\n")


@pytest.mark.parametrize(
    ("one", "other"), [("Order-9", "order-9"), ("STRASSE", "straße"), ("é", "É"), ("é", "e\u0301"), ("A9", "A\uff19")]
)
def test_two_keys_that_look_alike_are_refused(one: str, other: str) -> None:
    """One of them was probably typed for the other."""
    rows = [{"phone_number": NUMBER, "amount": 1500, "key": key} for key in (one, "another", other)]
    said = refused(rows)
    assert f"line 3: key {other!r} looks like that of line 1" in said
    assert "too" not in said


def test_a_file_with_keys_has_no_blank_one() -> None:
    """The key that is made of the content is another one as soon as any other line is corrected, and pays again."""
    said = refused(f"phone_number,amount,key\n{NUMBER},1500,A1\n{NUMBER},1500,\n{NUMBER},1600,  \n{NUMBER},7,A2\n")
    assert "lines 3-4: key is blank, and other lines have one: fill in all, or none" in said
    mappings = [{"phone_number": NUMBER, "amount": 1500}, {"phone_number": NUMBER, "amount": 1500, "key": "A1"}]
    assert "line 1: key is blank" in refused(mappings)
    assert {row.key for row in read_rows(f"phone_number,amount,key\n{NUMBER},1500,\n{NUMBER},1600,\n")} == {None}


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        ("+2550681777888", "leave out the 0 after +255"),
        ("+255 0681-777-888", "leave out the 0 after +255"),
        ("+0681 777 888", "no country code begins with 0"),
        ("\u202a+255681777888\u202c", "invisible character"),
        ("+255681\u200b777888", "invisible character"),
        ("\ufeff+255681777888", "invisible character"),
        ("0681777888", "values.tanzanian()"),
        (None, "values.tanzanian()"),
    ],
)
def test_a_number_that_only_looks_right_is_refused_with_its_cause(number: Any, cause: str) -> None:
    """It would ask a stranger, or nobody, for money."""
    with pytest.raises(InvalidRequest) as caught:
        normalise_phone_number(number)
    assert cause in str(caught.value)
    assert "681777888" not in str(caught.value)
    if number is not None and "tanzanian" not in cause:
        assert cause in refused([{"phone_number": number, "amount": 1}])


class Text(str, Enum):
    """Texts whose ``str()`` is another text, unlike that of a `StrEnum`."""

    RENT, WAGE, SHOP, PHONE, AMOUNT, WORD = "rent-11", "wage-11", "shop-a", NUMBER, "5000", "word"


async def test_a_member_of_an_enumeration_is_its_value(store_url: str) -> None:
    """Also where a database would store its ``str()``: as another key or account, the payment would be made again."""
    sandbox = Sandbox()
    asked: dict[str, Any] = {"phone_number": Text.PHONE, "amount": Text.AMOUNT, "extra": {"external_id": Text.WORD}}
    async with sandbox.client(store=SQLStore(store_url, account=Text.SHOP)) as client:
        created = await client.disbursements.create(**asked, idempotency_key=Text.RENT)
        await client.payments.enqueue(type="disbursement", **asked, idempotency_key=Text.WAGE)
        assert (await client.payments.cancel(Text.WAGE, note=Text.WORD)).state is PaymentState.CANCELLED
    asked = {"phone_number": NUMBER, "amount": 5_000, "extra": {"external_id": "word"}}
    async with sandbox.client(store=SQLStore(store_url, account="shop-a")) as client:
        assert await client.disbursements.create(**asked, idempotency_key="rent-11") == created
        assert [each.key for each in await client.payments.list()] == ["rent-11", "wage-11"]
        assert [each.external_id for each in await client.payments.find("word")] == ["word", "word"]
    assert len(sandbox.transactions) == 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+asyncpg://me:secret@host/db", "postgresql+asyncpg://…"),
        ("mysql://host/db", "mysql://…"),
        ("me:secret@host://x", "str"),
        ("me:secret@host", "str"),
    ],
)
def test_a_stores_url_of_another_driver_is_named_by_its_scheme(url: str, shown: str) -> None:
    """The rest may hold a password."""
    with pytest.raises(InvalidRequest) as caught:
        SQLStore(url)
    assert str(caught.value).rpartition(", not ")[2].partition(";")[0].strip("'") == shown
    assert "secret" not in str(caught.value)
