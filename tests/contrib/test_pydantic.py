"""What pydantic and FastAPI do with the values: fields, arguments, answers, schemas."""

import json
from functools import cache
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
from hypothesis import given, settings
from pydantic import BaseModel, TypeAdapter, ValidationError

from mobilemoney_async import Acknowledgement, LoginResult, Transaction, TransactionPage, TransactionType
from tests.contract import samples
from tests.contract.test_data import MASKED, PAID, VALUES, any_of, comparable
from tests.support.scale import examples

PUBLIC = [each for each in VALUES if hasattr(each, "to_dict")]
WHOLE = {"mask": False}


class Order(BaseModel):
    name: str
    payment: Transaction | None = None
    earlier: list[Transaction] = []


@pytest.mark.costly("runs lines of contract/json_schema.py, contract/converter.py that no quick test runs")
@pytest.mark.parametrize("cl", PUBLIC)
def test_the_schema_fits_the_data_of_every_value(cl: Any) -> None:
    """The JSON schema is valid, and so is all data, whole or masked, under it."""
    adapter = TypeAdapter(cl)
    schema = adapter.json_schema(mode="serialization")
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    @settings(max_examples=examples(10))
    @given(any_of(cl))
    def check(value: Any) -> None:
        whole = adapter.dump_json(value, context=WHOLE)
        for text in (whole, adapter.dump_json(value)):
            validator.validate(json.loads(text))
        if cl is not LoginResult:  # it writes no token
            assert comparable(adapter.validate_json(whole)) == comparable(value)

    check()


@pytest.mark.parametrize("value", MASKED, ids=lambda each: type(each).__name__)
def test_phone_numbers_are_masked_unless_the_context_says_otherwise(value: Any) -> None:
    """By default a web answer shows no phone number of a customer."""
    adapter = TypeAdapter[Any](type(value))
    assert adapter.dump_python(value) == value.to_dict(mask=True) == adapter.dump_python(value, context={"mask": True})
    assert adapter.dump_python(value, context=object()) == value.to_dict(mask=True)
    assert adapter.dump_python(value, context=WHOLE) == value.to_dict()


def test_a_model_of_pydantic_has_values_as_fields() -> None:
    """From values and from data; back from its own JSON, if that is whole."""
    order = Order(name="o-1", payment=PAID, earlier=[PAID])
    assert Order.model_validate({"name": "o-1", "payment": PAID.to_dict(), "earlier": [PAID]}) == order
    assert Order.model_validate_json(order.model_dump_json(context=WHOLE)) == order
    with pytest.raises(ValidationError, match="data must be that of Transaction: a masked phone number at") as caught:
        Order.model_validate(order.model_dump())
    assert caught.value.errors(include_input=False)[0]["loc"] == ("payment",)


def test_what_is_left_out_of_an_answer_is_not_in_it() -> None:
    """As in any model: by the name of a field, inside another one too."""
    order = Order(name="o-1", payment=PAID, earlier=[PAID])
    left = order.model_dump(exclude={"payment": {"fees": {"total_fee"}, "merchant_id": True}, "name": True})["payment"]
    masked = PAID.to_dict(mask=True)
    fees = {name: each for name, each in masked["fees"].items() if name != "total_fee"}
    assert left == {name: each for name, each in masked.items() if name != "merchant_id"} | {"fees": fees}
    some = order.model_dump_json(include={"earlier": {"__all__": {"id", "phone_number"}}}, context=WHOLE)
    assert json.loads(some) == {"earlier": [{"id": PAID.id, "phone_number": PAID.phone_number}]}


def test_wrong_data_is_a_validation_error() -> None:
    """With the place inside the value, and as strict as the client: no float, no masked number."""
    for change in ({"amount": 10.5}, {"amount": "1e5"}, {"amount": None}):
        with pytest.raises(ValidationError, match=r"data must be that of Transaction: expected a decimal string at \$"):
            TypeAdapter(Transaction).validate_json(json.dumps(samples.transaction(**change)))


def test_the_schema_says_what_the_contract_says() -> None:
    """Money is decimal text, names of enums are open, times and numbers have examples; texts are those of the docs."""
    schema = TypeAdapter(Transaction).json_schema()
    fields = schema["properties"]
    assert fields["amount"] == {
        "type": "string",
        "pattern": r"^[0-9]{1,20}(\.[0-9]{1,19})?$",
        "examples": ["15000"],
        "description": "Whole currency units.",
    }
    assert fields["type"]["anyOf"] == [{"enum": ["collection", "disbursement"]}, {}]
    assert TypeAdapter(TransactionType).json_schema()["anyOf"] == fields["type"]["anyOf"]
    assert fields["phone_number"]["examples"] == ["+255681234567", "+25568…567"]
    assert [each.get("format") for each in fields["created_at"]["anyOf"]] == ["date-time", None]
    assert fields["fees"]["anyOf"][0]["properties"]["total_fee"]["anyOf"][0]["type"] == "string"
    assert {*schema["required"]} == samples.transaction().keys() - {"created_at", "network", "reference"}
    assert "access_token" in TypeAdapter(LoginResult).json_schema()["properties"]
    assert "access_token" not in TypeAdapter(LoginResult).json_schema(mode="serialization")["properties"]


@cache
def make_app() -> Any:
    """Return an application whose routes take and answer values."""
    from fastapi import Body, FastAPI  # a fifth of all that a collection of tests would import

    app = FastAPI()

    @app.get("/payment")
    async def payment() -> Transaction:
        return PAID

    @app.get("/some", response_model_exclude={"fees", "settlement"})
    async def some() -> Transaction:
        return PAID

    @app.get("/page", response_model=TransactionPage)
    async def page() -> Any:
        return TransactionPage.from_dict(samples.page(samples.settled()))

    @app.get("/payments")
    async def payments() -> list[Transaction]:
        return [PAID, PAID]

    @app.get("/whole")
    async def whole() -> dict[str, Any]:
        return PAID.to_dict()

    @app.get("/none")
    async def none() -> Transaction | None:
        return None

    @app.post("/acknowledgements")
    async def take(acknowledgement: Annotated[Acknowledgement, Body()]) -> str:
        return f"{acknowledgement.amount!r} {acknowledgement.phone_number}"

    @app.post("/orders")
    async def keep(order: Order) -> Order:
        return order

    return app


async def test_fastapi_takes_and_answers_values() -> None:
    """As an argument, a field, a return type, a response_model; masked unless a route answers `to_dict()`."""
    masked = PAID.to_dict(mask=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app()), base_url="http://shop") as http:
        for path, expected in (
            ("/payment", masked),
            ("/some", {name: each for name, each in masked.items() if name not in {"fees", "settlement"}}),
            ("/payments", [masked, masked]),
            ("/whole", PAID.to_dict()),
            ("/none", None),
        ):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (200, expected)
        assert (await http.get("/page")).json()["transactions"] == [masked]
        answer = await http.post("/acknowledgements", json=samples.acknowledgement())
        assert answer.json() == "Decimal('1000') +255680000001"
        answer = await http.post("/acknowledgements", json=samples.acknowledgement(amount=1.5))
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["msg"] == (
            "data must be that of Acknowledgement: expected a decimal string at $.amount"
        )
        answer = await http.post("/orders", json={"name": "o-1", "payment": PAID.to_dict()})
        assert answer.json() == {"name": "o-1", "payment": masked, "earlier": []}


async def test_the_openapi_page_shows_the_schemas() -> None:
    """Each value is a component of its own name."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app()), base_url="http://shop") as http:
        shown = (await http.get("/openapi.json")).json()
    schemas = shown["components"]["schemas"]
    assert {"Transaction", "TransactionPage", "Acknowledgement", "Order"} <= schemas.keys()
    of_200 = shown["paths"]["/payment"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert of_200 == {"$ref": "#/components/schemas/Transaction"}
    body = shown["paths"]["/acknowledgements"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Acknowledgement"}
    assert schemas["Transaction"]["properties"]["amount"]["type"] == "string"
