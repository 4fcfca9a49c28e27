"""Encryption of the login token in the database, under the merchant's key, and names of credentials beside it.

With a key: scrypt stretches it once for a process; an AES-256-GCM key and an HMAC-SHA256 key are cut from the result.
A token is bound to its account and credentials as associated data, so that it cannot be moved to another row.
Credentials are named by their HMAC, from which the password cannot be guessed without the key.

Without a key the token is stored in clear text, and credentials are named by their scrypt digest, salted with the
account and the e-mail address: guessing a weak password from it costs 0.1 s of a processor for each try.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import os
from typing import Any

from mobilemoney_async.values import HiddenText, Secret, hide_text, missing_extra, refuse, require_bearer

_SHORTEST_KEY = 16
CLEAR, ENCRYPTED = "clear:", "aesgcm:"
"""Beginnings of a token in the database, without a key and under one."""

_NONCE = 12


class TokenCipher:
    """Cipher of one account's login tokens, which also names credentials without showing them.

    Args:
        account: The account of the store.
        key: The merchant's, of at least 16 characters or bytes, or None. The same in all processes.

    Raises:
        InvalidRequest: The key is not such a text, or needs the extra ``store``.
    """

    def __init__(self, account: str, key: str | bytes | Secret | None = None) -> None:
        key = hide_text(key)
        self._account = account
        self._key = None if key is None else _Key(_key_bytes(key))
        self._aead: Any = None if key is None else _aead()

    def __repr__(self) -> str:
        return f"<TokenCipher {'with' if self._key else 'without'} a key>"

    @property
    def has_key(self) -> bool:
        """Whether it encrypts."""
        return self._key is not None

    def for_account(self, account: str) -> TokenCipher:
        """Return the cipher of another account, with the same key."""
        other = TokenCipher(account)
        other._key, other._aead = self._key, self._aead
        return other

    def name(self, email: str, password: Secret) -> str:
        """Return the name of credentials, the same for the same key. Takes 0.1 s: call it in a thread, and once.

        With a key only the first call of all its accounts does.
        """
        keys = self._keys
        if keys is None:
            salt = _join("credentials", self._account, email)
            return "scrypt:" + _scrypt(password.reveal().encode("utf-8", "surrogatepass"), salt, 32).hex()
        message = _join("credentials", self._account, email, password.reveal())
        return "hmac:" + hmac.digest(keys[1], message, "sha256").hex()

    def name_token(self, token: Secret) -> str:
        """Return the name of an issued token, which no one guesses. With a key, the first call may take 0.1 s."""
        message = _join("issued token", self._account, token.reveal())
        if self._keys is None:
            return "sha256:" + hashlib.sha256(message).hexdigest()
        return "hmac:" + hmac.digest(self._keys[1], message, "sha256").hex()

    def encrypt(self, token: Secret, name: str) -> str:
        """Return a token as text for the row of these credentials."""
        if self._keys is None:
            return HiddenText(f"{CLEAR}{token.reveal()}")
        nonce = os.urandom(_NONCE)
        encrypted = self._keys[0].encrypt(nonce, token.reveal().encode(), self._row(name))
        return f"{ENCRYPTED}{base64.b64encode(nonce + encrypted).decode()}"

    def decrypt(self, text: str, name: str) -> Secret | None:
        """Return the token of a text; None if it was made with another key, for another row, or not by `encrypt`."""
        kind = CLEAR if self._keys is None else ENCRYPTED
        if not text.startswith(kind):
            return None
        rest = text.removeprefix(kind)
        try:
            if self._keys is not None:
                encrypted = base64.b64decode(rest, validate=True)
                rest = self._keys[0].decrypt(encrypted[:_NONCE], encrypted[_NONCE:], self._row(name)).decode()
            return require_bearer("token", rest)
        except Exception:  # noqa: BLE001 (an error of cryptography's, or ValueError: there is no token)
            return None

    @functools.cached_property
    def _keys(self) -> tuple[Any, bytes] | None:
        """AES-GCM under its key, and the key of HMAC."""
        if self._key is None:
            return None
        keys = hmac.digest(self._key.stretched, _join("key", self._account), "sha512")
        return self._aead(keys[:32]), keys[32:]

    def _row(self, name: str) -> bytes:
        return _join("token", self._account, name)


class _Key:
    """Key of the merchant's, which is stretched once for all its accounts: a platform has thousands."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    @functools.cached_property
    def stretched(self) -> bytes:
        return _scrypt(self._value, _join("key"), 64)


def _scrypt(password: bytes, salt: bytes, length: int) -> bytes:
    # 32 MiB and 0.1 s.
    return hashlib.scrypt(password, salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=length)


def _join(purpose: str, *texts: str) -> bytes:
    """Return bytes that no other purpose and texts give."""
    parts = (each.encode("utf-8", "surrogatepass") for each in ("mobilemoney-async", purpose, *texts))
    return b"".join(b"%d:%b" % (len(each), each) for each in parts)


def _key_bytes(key: object) -> bytes:
    key = HiddenText(key.reveal()) if isinstance(key, Secret) else hide_text(key)
    if not isinstance(key, str | bytes) or len(key) < _SHORTEST_KEY:
        raise refuse("key", f"a str or bytes of at least {_SHORTEST_KEY} characters")
    # The digits of bytes: every stored token was encrypted with these.
    return (key if isinstance(key, str) else key.hex()).encode("utf-8", "surrogatepass")


def _aead() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise missing_extra("key", "store", exc) from exc
    return AESGCM
