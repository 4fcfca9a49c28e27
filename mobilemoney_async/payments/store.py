"""The store as users make it. Imports SQLAlchemy only when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.payments.keyed_lock import KeyedLock
from mobilemoney_async.values import Secret, missing_extra, refuse, require_name, require_seconds

if TYPE_CHECKING:
    from mobilemoney_async.database.engine import Database
    from mobilemoney_async.payments.journal import JournalEntry


class SQLStore:
    """Remembers every payment in a database: what was sent, what came of it, and what nobody knows.

    Give it to ``AsyncClient(store=...)``. One store may serve several clients; any number of processes may share one
    database, and then share the rate limit, the login token and the poller too.

    SQLite serves the processes of one host, PostgreSQL any number of hosts. The tables, whose names begin with
    ``mobilemoney_``, are made on first use. Needs the extra ``store``, for PostgreSQL the extra ``postgres``.

    Args:
        url: An SQLAlchemy URL: ``sqlite:///payments.db`` or ``postgresql+psycopg://user:password@host/database``.
        account: Whose payments these are, where several merchants share a database; at most 200 characters.
        grace: For how long after its request a payment may exist that the service's list does not show, seconds, at
            least 0. Longer is safer and slower.
        key: Encrypts the login token in the database, at least 16 characters; without one it lies there in clear text.
        resend_absent_collections: Whether a *collection* that was found absent may be sent again under its key without
            a person's word (`confirm_absent`). A customer who is prompted twice can decline; a disbursement cannot be
            called back, and always needs the word.

    Raises:
        InvalidRequest: An argument is not what it accepts, or the extra is missing.
    """

    def __init__(
        self,
        url: str,
        account: str = "default",
        grace: float = 120.0,
        *,
        key: str | bytes | Secret | None = None,
        resend_absent_collections: bool = False,
    ) -> None:
        self.account: str = require_name("account", account)
        self.grace: float = require_seconds("grace", grace, allow_zero=True)
        if not isinstance(resend_absent_collections, bool):
            raise refuse("resend_absent_collections", "a bool", resend_absent_collections)
        self.resend_absent_collections: bool = resend_absent_collections
        self._key = _check_key(key)
        TokenCipher(self.account, self._key)  # asks for the extra where there is a key, rather than at the first login
        self._database = _open(url)
        self._clients = 0
        self._turns = KeyedLock()
        self._unsaved: dict[str, JournalEntry] = {}

    def __repr__(self) -> str:
        return f"<SQLStore {self._database!r} account={self.account!r}>"

    def close(self) -> None:
        """Close the idle connections to the database, as the last client that is closed does too.

        Nothing is lost without it, and whoever uses the store again opens new ones.
        """
        self._database.close()

    def _attach(self) -> None:
        """Count a client that uses this store."""
        self._clients += 1

    def _detach(self) -> None:
        """Count a client no longer."""
        self._clients -= 1
        if not self._clients:
            self.close()


def _check_key(key: str | bytes | Secret | None) -> Secret | None:
    if key is None:
        return None
    accepts = "a str or bytes of at least 16 characters"
    text = key.reveal() if isinstance(key, Secret) else key
    if not isinstance(text, str | bytes) or len(text) < 16:
        raise refuse("key", accepts)
    return Secret(text.hex() if isinstance(text, bytes) else text)


def _open(url: str) -> Database:
    try:
        import sqlalchemy  # noqa: F401 (here, since only who has a store needs it)
    except ImportError as exc:
        raise missing_extra("store", "store") from exc
    from mobilemoney_async.database.engine import Database

    return Database(url)
