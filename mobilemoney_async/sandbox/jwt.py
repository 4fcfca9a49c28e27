"""JSON Web Tokens signed with HS256 (RFC 7519), as far as login tokens need them."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

_HEADER = {"alg": "HS256", "typ": "JWT"}


class NotOurTokenError(ValueError):
    """The text is no token, or was not signed with this key."""


def encode(claims: Mapping[str, Any], key: bytes) -> str:
    """Sign claims.

    Args:
        claims: A JSON object.
        key: The secret.
    """
    signed = f"{_base64url(_json(_HEADER))}.{_base64url(_json(claims))}"
    return f"{signed}.{_base64url(_signature(signed, key))}"


def decode(token: str, key: bytes) -> dict[str, Any]:
    """Give the claims of a token. Whether it has expired is for the caller to judge.

    Raises:
        NotOurTokenError: It is malformed, or its signature is wrong.
    """
    signed, _, signature = token.rpartition(".")
    # Compared as text: a token whose ignored trailing base64 bits were changed is not ours. What bears our signature
    # was written by `encode()`, so it needs no further checks.
    if not hmac.compare_digest(signature.encode(), _base64url(_signature(signed, key)).encode()):
        raise NotOurTokenError("the signature is wrong")
    payload = signed.partition(".")[2]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return claims


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _signature(signed: str, key: bytes) -> bytes:
    return hmac.digest(key, signed.encode(), hashlib.sha256)
