"""OpenAPI 3.1 document of the service's contract, made from the client's table of endpoints and its models.

`python docs/openapi.py` writes it to where the sandbox serves it from, as `/openapi.json`.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec

from mobilemoney_async.contract import endpoints, models, states

FILE = Path(__file__).parent.parent / "mobilemoney_async" / "sandbox" / "openapi.json"
REFERENCE = "#/components/schemas/"
# Fields of our models that the contract does not show.
OWN = {models.Acknowledgement: "idempotency_key", models.TransactionAnswer: "success", models.PageAnswer: "success"}

TEXT = {"type": "string", "minLength": 1}
PHONE = TEXT | {
    "pattern": r"^\+[0-9]+$",
    "description": "International format with a leading +.",
    "examples": ["+255681234567"],
}
AMOUNT = TEXT | {"pattern": "^[0-9]+$", "description": "Whole currency units.", "examples": ["15000"]}
EMAIL = TEXT | {"examples": ["merchant@example.com"]}
CREATE = {"phone_number": PHONE, "amount": AMOUNT}
OTP = {"phone_number": PHONE}
DATE = {"type": "string", "format": "date"}
TYPES = [each.value for each in states.TransactionType]
STATES = [each.value for each in states.TransactionStatus]

SCHEMAS: dict[str, Any] = {
    "PaymentError": {
        "description": "Error of the payment service (section 7).",
        "type": "object",
        "properties": {
            "status": {"const": "error"},
            "message": {"type": "string"},
            "error_code": {
                "type": "string",
                "examples": ["TRANSACTION_NOT_FOUND", "INVALID_TRANSACTION_ID", "RATE_LIMIT_EXCEEDED"],
            },
            "retry_after": {"description": "Seconds; only on rate-limit errors.", "type": "integer"},
        },
        "required": ["status", "message", "error_code"],
    },
    "AuthenticationError": {
        "description": "Error of the authentication (section 7).",
        "type": "object",
        "properties": {
            "success": {"const": False},
            "error": {
                "type": "string",
                "examples": ["invalid_credentials", "invalid_token", "token_expired", "insufficient_permissions"],
            },
            "message": {"type": "string"},
        },
        "required": ["success", "error", "message"],
    },
}


@attrs.frozen
class Operation:
    """What the table of endpoints does not say: summary, type of the answer, fields of the body, and of the query.

    An answer of None is one that the contract does not show.
    """

    summary: str
    answer: type | None = None
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] = {}


OPERATIONS = {
    "CREATE_COLLECTION": Operation("Ask a customer for a payment", models.Acknowledgement, CREATE),
    "CREATE_DISBURSEMENT": Operation("Send money to a recipient", models.Acknowledgement, CREATE),
    "GET_TRANSACTION": Operation("Fetch a transaction by its id", models.TransactionAnswer),
    "FIND_TRANSACTION": Operation(
        "Fetch a transaction by one of its references",
        models.TransactionAnswer,
        query={
            "reference": TEXT | {"description": "The service's reference."},
            "external_id": TEXT | {"description": "The merchant's reference."},
        },
    ),
    "LIST_TRANSACTIONS": Operation(
        "List transactions",
        models.PageAnswer,
        query={
            "page": {"type": "integer", "minimum": 1, "default": 1},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
            "status": {"type": "string", "examples": STATES},
            "type": {"type": "string", "enum": TYPES},
            "from": DATE | {"description": "Start date."},
            "to": DATE | {"description": "End date."},
        },
    ),
    "PROFILE": Operation("Fetch the user's profile", dict),
    "USERS_PROFILE": Operation("Fetch the user's profile, by its other path", dict),
    "LOGIN": Operation("Log in", models.LoginResult, {"email": EMAIL, "password": TEXT}),
    "REQUEST_OTP": Operation(
        "Request a one-time password", body=OTP | {"purpose": TEXT | {"examples": ["transaction_verification"]}}
    ),
    "VERIFY_OTP": Operation("Verify a one-time password", body=OTP | {"otp_code": TEXT}),
    "FORGOT_PASSWORD": Operation("Request a token to reset the password", body={"email": EMAIL}),
    "RESET_PASSWORD": Operation("Set a new password", body={"email": EMAIL, "reset_token": TEXT, "new_password": TEXT}),
}


def document() -> dict[str, Any]:
    """Return the document."""
    rows = {name: row for name, row in vars(endpoints).items() if isinstance(row, endpoints.Endpoint)}
    answers = {each.answer for each in OPERATIONS.values()} - {None, dict}
    classes = sorted(answers, key=lambda each: each.__name__)  # type: ignore[union-attr]
    schemas = msgspec.json.schema_components(
        classes, schema_hook=lambda _: {"type": "string"}, ref_template=f"{REFERENCE}{{name}}"
    )[1]
    paths: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(name, row, OPERATIONS[name])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mobile Money Payments Service",
            "version": "v1",
            "summary": "Collections, disbursements, transaction inquiry and authentication.",
            "description": "As documented by the service; sections are those of its contract. What it leaves open is "
            "open here: HTTP statuses of most errors, and values that are given as examples, not as enums.",
        },
        "servers": [{"url": "/v1", "description": "The sandbox; in production the base URL of the service."}],
        "paths": paths,
        "components": {
            "schemas": {name: _open(getattr(models, name, None), each) for name, each in schemas.items()} | SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


def _operation(name: str, row: endpoints.Endpoint[Any], operation: Operation) -> dict[str, Any]:
    parameters = [
        {"name": each, "in": "path", "required": True, "schema": TEXT} for each in re.findall(r"{(\w+)}", row.path)
    ] + [{"name": each, "in": "query", "schema": schema} for each, schema in operation.query.items()]
    success: dict[str, Any] = {"description": "Accepted." if operation.body else "Found."}
    if operation.answer is not None:
        shape = {"type": "object"} if operation.answer is dict else _ref(operation.answer.__name__)
        success["content"] = _json(shape)
    either = {"anyOf": [_ref("PaymentError"), _ref("AuthenticationError")]}
    refused = {"default": {"description": "Refused.", "content": _json(either)}}
    if operation.answer is models.TransactionAnswer:
        text = "TRANSACTION_NOT_FOUND: no transaction matches."
        refused["404"] = {"description": text, "content": _json(_ref("PaymentError"))}
    if row.bearer:
        text = "invalid_token or token_expired."
        refused["401"] = {"description": text, "content": _json(_ref("AuthenticationError"))}
    made: dict[str, Any] = {
        "operationId": name.lower(),
        "summary": operation.summary,
        "tags": [row.path.split("/")[1]],
        "parameters": parameters,
        "responses": {"2XX": success, **refused},
        "security": [{"bearer": []}] if row.bearer else [],
    }
    if operation.body is not None:
        body = {"type": "object", "properties": operation.body, "required": list(operation.body)}
        made["requestBody"] = {"required": True, "content": _json(body)}
    if not parameters:
        del made["parameters"]
    return made


def _open(model: type | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an answer: open enums, absent rather than null fields, and a line of text for each."""
    text, _, fields = str(inspect.getdoc(model) or schema["description"]).partition("\n")
    made = {**schema, "description": text}
    if "enum" in made:
        made |= {"type": "string", "examples": made.pop("enum")}
    if model in OWN:
        del made["properties"][OWN[model]]
    about = dict(_described(fields))
    kinds = {each.name: str(each.type) for each in attrs.fields(model)} if model and attrs.has(model) else {}
    for name, field in made.get("properties", {}).items():
        shape = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
        shape |= next((each for each in field.get("anyOf", ()) if each.get("type") != "null"), {})
        if datetime.__name__ in kinds.get(name, ""):
            shape["format"] = "date-time"
        made["properties"][name] = shape | ({"description": about[name]} if name in about else {})
    return made


def _described(fields: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of a docstring with their texts."""
    for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", fields, re.MULTILINE):
        yield name, " ".join(text.replace("``", "`").split())


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"{REFERENCE}{name}"}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def draw() -> str:
    """Return the text of the document."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(draw(), "utf-8")
