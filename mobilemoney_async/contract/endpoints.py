"""Table of the contract's endpoints, each once (contract, section 4).

The pipeline knows an endpoint by its row alone. `Effect` decides which requests may be sent again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import attrs

from mobilemoney_async.contract.codec import JSONObject, parse_page, reader
from mobilemoney_async.contract.models import Acknowledgement, LoginResult, PageAnswer, TransactionAnswer, User
from mobilemoney_async.contract.plain import DecodeError
from mobilemoney_async.contract.states import TransactionType
from mobilemoney_async.values import require_identifier

T_co = TypeVar("T_co", covariant=True)

OTHER_USER = "$.user.email"
"""Place in the answer of a login that gives another user's token."""

# A part of a path that names an endpoint, and no user, payment or secret. The words of the contract are
# shorter, and tokens longer.
_PLAIN = re.compile(r"[A-Za-z_-]{0,32}|v\d")


class Effect(enum.Enum):
    """Effect of a call: it reads, acts on a session, or moves money. It decides whether the call may be sent again."""

    READ = "read"
    SESSION = "session"
    MONEY = "money"


class Priority(enum.IntEnum):
    """Lanes of the rate limiter, first served first."""

    PAYMENT = 0
    LOOKUP = 1
    POLL = 2
    BULK = 3


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Endpoint(Generic[T_co]):
    """Row of the table.

    Attributes:
        method: The HTTP method.
        path: The path below the base URL, with ``{name}`` for each identifier in it.
        bearer: Whether the call carries the bearer token.
        effect: Its effect.
        lane: Its lane in the rate limiter.
        read: From the body of a success to the answer; raises `DecodeError`.
        empty_is_success: Whether an empty body may be a success, where the contract shows no body at all.
        shown: The path as events and logs show it: without parts that may be an id or a phone number.
    """

    method: str
    path: str
    bearer: bool = True
    effect: Effect
    lane: Priority = Priority.LOOKUP
    read: Callable[[bytes], T_co]
    empty_is_success: bool = False
    shown: str = attrs.field(default=attrs.Factory(lambda self: self.path, takes_self=True))

    def target(self, identifiers: Mapping[str, str], query: Mapping[str, str | int]) -> str:
        """Return path and query, quoted.

        Raises:
            InvalidRequest: An identifier is blank, or would address another endpoint.
        """
        path = self.path
        if identifiers:
            quoted = {name: quote(require_identifier(name, value), safe="") for name, value in identifiers.items()}
            path = path.format(**quoted)
        return f"{path}?{urlencode(query, quote_via=quote, safe='')}" if query else path


_read_object: Callable[[bytes], JSONObject] = reader(dict[str, Any])
_read_transaction = reader(TransactionAnswer)
_read_acknowledgement = reader(Acknowledgement)

CREATE_COLLECTION = Endpoint(
    method="POST",
    path="/payment-service/airtel/c2b",
    effect=Effect.MONEY,
    lane=Priority.PAYMENT,
    read=_read_acknowledgement,
)
CREATE_DISBURSEMENT = Endpoint(
    method="POST",
    path="/payment-service/airtel/b2c",
    effect=Effect.MONEY,
    lane=Priority.PAYMENT,
    read=_read_acknowledgement,
)


def type_created(endpoint: Endpoint[Any]) -> TransactionType:
    """Return the type of the payments that a create makes."""
    return TransactionType.COLLECTION if endpoint is CREATE_COLLECTION else TransactionType.DISBURSEMENT


GET_TRANSACTION = Endpoint(
    method="GET", path="/payment-service/transaction/{transaction_id}", effect=Effect.READ, read=_read_transaction
)
FIND_TRANSACTION = Endpoint(
    method="GET", path="/payment-service/transaction", effect=Effect.READ, read=_read_transaction
)
LIST_TRANSACTIONS = Endpoint(
    method="GET", path="/payment-service/transactions", effect=Effect.READ, read=reader(PageAnswer)
)


def read_rows(body: bytes) -> PageAnswer:
    """Return a page of the list as evidence: one that cannot be read as a whole is read row by row, as `RowsAnswer`.

    Raises:
        DecodeError: It is no page: its rows are no array.
    """
    try:
        return LIST_TRANSACTIONS.read(body)
    except DecodeError:
        # Imported here: answers that need it are rare, and cattrs takes a third of the import.
        from mobilemoney_async.contract.rows import structure_page

        return structure_page(parse_page(body))


def other_than_asked(answer: object, endpoint: Endpoint[Any], asked: Mapping[str, object]) -> str | None:
    """Return the reason why an answer is the one to another request, or None if it shows nothing else.

    A connection that is kept alive may bring an answer too many, which shifts all that come after it.

    Args:
        answer: A lookup's, a page, a login's or an acknowledgement.
        endpoint: That of the request.
        asked: Identifiers, query and body of the request, by their names in the contract.
    """
    shown: dict[str, object]
    match answer:
        case TransactionAnswer(transaction=row):
            shown = {"transaction_id": row.id, "reference": row.reference, "external_id": row.external_id}
        case PageAnswer(pagination=counts):
            shown = {"page": counts.current_page or asked.get("page")}  # 0 where it is not shown
        case LoginResult(user=User(email=str() as email)):
            if _fits(email.strip().casefold(), str(asked["email"]).strip().casefold()):
                return None
            return "the login shows another e-mail: if auth has an alias, use the address that the account shows"
        case Acknowledgement():
            # Here: only creates need it.
            from mobilemoney_async.contract.comparison import contradiction

            request = {name: str(asked[name]) for name in ("phone_number", "amount")}
            return contradiction(answer, type=type_created(endpoint), **request)
        case _:
            return None
    different = [name for name, value in shown.items() if name in asked and value != asked[name]]
    return f"the answer is that to another request: its {different[0]} is not the one asked for" if different else None


def _fits(shown: str, text: str) -> bool:
    """Return whether a text is the one that is shown, perhaps with parts masked, as in ``j***@pay.example``."""
    first, *others = re.split("[*\u2022\u2026]+", shown)
    if not others or not text.startswith(first):
        return shown == text
    rest = text.removeprefix(first)
    for each in others[:-1]:
        _, found, rest = rest.partition(each)
        if not found:
            return False
    return rest.endswith(others[-1])


PROFILE = Endpoint(method="GET", path="/user-service/profile", effect=Effect.READ, read=_read_object)
USERS_PROFILE = Endpoint(method="GET", path="/user-service/users/profile", effect=Effect.READ, read=_read_object)
LOGIN = Endpoint(
    method="POST",
    path="/user-service/login",
    bearer=False,
    effect=Effect.SESSION,
    lane=Priority.PAYMENT,  # whatever waits, a payment included, waits for the token
    read=reader(LoginResult),
)


def _user_service(path: str, *, bearer: bool = True) -> Endpoint[JSONObject]:
    """Return the row of a call; the contract does not show its success: its body may be empty."""
    return Endpoint(
        method="POST",
        path=f"/user-service/{path}",
        bearer=bearer,
        effect=Effect.SESSION,
        read=_read_object,
        empty_is_success=True,
    )


REQUEST_OTP = _user_service("request-otp")
VERIFY_OTP = _user_service("verify-otp")
FORGOT_PASSWORD = _user_service("forgot-password", bearer=False)
RESET_PASSWORD = _user_service("reset-password", bearer=False)


def undocumented(method: str, path: str, effect: Effect) -> Endpoint[JSONObject]:
    """Return a row for an endpoint that the contract leaves out."""
    lane = Priority.PAYMENT if effect is Effect.MONEY else Priority.LOOKUP
    return Endpoint(
        method=method,
        path=path,
        effect=effect,
        lane=lane,
        read=_read_object,
        empty_is_success=method == "HEAD",
        shown="/".join(each if _PLAIN.fullmatch(each) else "{…}" for each in path.split("/")),
    )
