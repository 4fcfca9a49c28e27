"""Merchants' accounts, and the two kinds of access token (`contract.md` section 5)."""

import base64
import enum
import random
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import inf

import attrs

from mobilemoney_async.sandbox.faults import token_expired_reply
from mobilemoney_async.sandbox.messages import RefusedError, auth_error, encode

TOKEN_LIFETIME = 3600
"""Seconds, whatever the sandbox's speed: the contract documents this number and `expires_in` reports it."""


class Permission(enum.StrEnum):
    """Permission of an issued token. A login token has all of them."""

    READ = "read"
    COLLECT = "collect"
    DISBURSE = "disburse"


@attrs.define(eq=False, kw_only=True)
class Account:
    """Account of one merchant and its only user.

    Attributes:
        user_id: The `id` of the user.
        merchant_id: Owns transactions, a balance and a request limit.
        email: The login, together with `password`.
        password: Changes when it is reset.
        token: An issued token that allows everything and never expires.
        failed_logins: Refused logins since the last accepted one.
        locked_until: Unscaled seconds since the sandbox's start, until which logins are refused.
    """

    user_id: int
    merchant_id: str
    email: str
    password: str = attrs.field(repr=False)
    token: str = attrs.field(repr=False)
    first_name: str = "Asha"
    last_name: str = "Mushi"
    failed_logins: int = 0
    locked_until: float = 0.0

    @property
    def name(self) -> str:
        """The name under which a platform may keep the merchant: ``shop-1`` is the first one."""
        return f"shop-{self.user_id}"

    def user(self) -> dict[str, object]:
        """The `user` object of the login result (section 2.3)."""
        return {
            "id": self.user_id,
            "email": self.email,
            "first_name": self.first_name,
            "last_name": self.last_name,
            "user_type": "Merchant",
            "kyc_status": "approved",
        }


@attrs.frozen
class Principal:
    """Sender of a request, the permissions of its token, and the time at which that expires, as a POSIX timestamp."""

    account: Account
    permissions: frozenset[Permission] = frozenset(Permission)
    expires_at: float = inf


class Accounts:
    """All accounts and their tokens, which are the same for the same seed."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._by_email: dict[str, Account] = {}
        self._by_merchant: dict[str, Account] = {}
        self._senders: dict[str, Principal] = {}

    def open(self, email: str) -> Account:
        """Open an account with a password and a token of its own; see `Sandbox.add_account`."""
        if email in self._by_email:
            raise ValueError("there is an account with this e-mail already")
        number = len(self._by_email) + 1
        password = self.secret("pw")
        account = Account(
            user_id=number, merchant_id=f"mer_{number:04d}", email=email, password=password, token=self.secret("sbx")
        )
        self._by_email[email] = account
        self._by_merchant[account.merchant_id] = account
        self._senders[account.token] = Principal(account)
        return account

    @property
    def by_name(self) -> Mapping[str, Account]:
        """All accounts by `Account.name`, the first one first."""
        return {account.name: account for account in self._by_email.values()}

    def find(self, email: str) -> Account | None:
        """Return the account with this e-mail, if there is one."""
        return self._by_email.get(email)

    def of_merchant(self, merchant_id: str) -> Account:
        """Return a merchant's account."""
        return self._by_merchant[merchant_id]

    def secret(self, prefix: str) -> str:
        """Make a new unguessable text."""
        return f"{prefix}_{self._dice.randbytes(18).hex()}"

    def issue(self, account: Account, permissions: Iterable[Permission | str]) -> str:
        """Issue a token with these permissions that never expires; see `Sandbox.issue_token`."""
        token = self.secret("sbx")
        self._senders[token] = Principal(account, frozenset(map(Permission, permissions)))
        return token

    def log_in(self, account: Account, at: datetime) -> str:
        """Make a JWT that expires `TOKEN_LIFETIME` seconds after the whole second before `at`."""
        issued_at = int(at.timestamp())
        claims = {
            "sub": str(account.user_id),
            "email": account.email,
            "merchant_id": account.merchant_id,
            "iat": issued_at,
            "exp": issued_at + TOKEN_LIFETIME,
            "jti": self._dice.randbytes(8).hex(),
        }
        # The signature is made up: a token is known by its whole text.
        parts = (encode({"alg": "HS256", "typ": "JWT"}), encode(claims), self._dice.randbytes(32))
        token = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
        self._senders[token] = Principal(account, expires_at=issued_at + TOKEN_LIFETIME)
        return token

    def authenticate(self, authorization: str, at: datetime) -> Principal:
        """Return the sender with this Authorization header; refuse invalid_token or token_expired."""
        scheme, _, token = authorization.partition(" ")
        sender = self._senders.get(token) if scheme.lower() == "bearer" else None
        if sender is None:
            raise RefusedError(auth_error(401, "invalid_token", "The access token is missing or malformed"))
        if at.timestamp() >= sender.expires_at:
            raise RefusedError(token_expired_reply())
        return sender
