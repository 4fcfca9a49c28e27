"""The store as users make it. Imports SQLAlchemy only when one is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from copy import copy
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import attrs

from mobilemoney_async.contract.codec import Content, Fields
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.errors import InvalidRequest, StoreError
from mobilemoney_async.values import (
    Secret,
    conceal,
    hide,
    hide_text,
    missing_extra,
    normalise_phone_number,
    refuse,
    require_days,
    require_name,
    require_seconds,
)

if TYPE_CHECKING:
    from mobilemoney_async.payments.records.account_status import Erasure
    from mobilemoney_async.payments.records.account_store import AccountStore
    from mobilemoney_async.payments.records.record import PaymentRecord

# Refusals that one error quotes.
_MOST_TOLD = 20


class SQLStore:
    """Store of every payment in a database: each request, its result, and the results that are unknown.

    Give it to ``AsyncClient(store=...)``. One store may serve several clients; any number of processes may share one
    database, and then share the rate limit, the login token and the poller too.

    SQLite serves the processes of one host, PostgreSQL any number of hosts. The tables are made on first
    use; their names begin with ``mobilemoney_``. Needs the extra ``store``, for PostgreSQL the extra ``postgres``.

    Args:
        url: An SQLAlchemy URL: ``sqlite:///payments.db`` or ``postgresql+psycopg://user:password@host/database``.
        account: Names the merchant, if several share a database; at most 200 characters.
        grace: Seconds after a request in which its payment may exist without being in the service's list, at least 0.
            Longer is safer and slower.
        key: Encrypts the login token in the database, at least 16 characters; without one it is stored in clear text.
        resend_absent_collections: Whether a *collection* that was found absent may be sent again under its key without
            `confirm_absent`. A customer who is prompted twice can decline; a disbursement cannot be called back, and
            always needs the confirmation.
        sole_writer: Whether every payment of the merchant is made through this store. None: transactions in the
            service's list that no payment here claims are reported (``client.payments.unclaimed``), and one that may be
            a payment of this store made twice keeps another of its kind from being sent for a while. True: any such
            transaction does. False, for merchants whose other systems pay too: nothing is reported or stopped, and a
            payment with an unknown result is never taken for a transaction in the list without someone's decision.
        keep_changes: Days, more than 0 and at most 36,500, for which changes of payments that have ended are kept for
            readers without a name; named consumers get theirs in any case.

    Raises:
        InvalidRequest: An argument has a wrong type or value, or the extra is missing.
    """

    def __init__(
        self,
        url: str,
        account: str = "default",
        grace: float = 120.0,
        *,
        key: str | bytes | Secret | None = None,
        resend_absent_collections: bool = False,
        sole_writer: bool | None = None,
        keep_changes: float = 90,
    ) -> None:
        url = hide_text(url)
        key = Content(key) if isinstance(key, bytes) else None if key is None else conceal(key)
        self.account: str = require_name("account", account)
        self.grace: float = require_seconds("grace", grace, allow_zero=True)
        if not isinstance(resend_absent_collections, bool):
            raise refuse("resend_absent_collections", "a bool", resend_absent_collections)
        self.resend_absent_collections: bool = resend_absent_collections
        if sole_writer is not None and not isinstance(sole_writer, bool):
            raise refuse("sole_writer", "a bool or None", sole_writer)
        self.sole_writer: bool | None = sole_writer
        kept = timedelta(days=require_days("keep_changes", keep_changes))
        cipher = TokenCipher(self.account, key)  # asks for its extra now, rather than at the first login
        try:
            import sqlalchemy  # noqa: F401 (here, since only a store needs it)
        except ImportError as exc:
            raise missing_extra("store", "store", exc) from exc
        from mobilemoney_async.database.engine import Database
        from mobilemoney_async.payments.records.account_store import AccountStore

        self._parts = AccountStore(
            Database(url), self.account, self.grace, cipher, resend_absent_collections, sole_writer, kept
        )
        # Shared by the stores of one database, as long as they are in use: a client uses the parts alone.
        self._accounts: MutableMapping[str, SQLStore] = WeakValueDictionary({self.account: self})
        self._used: MutableMapping[str, AccountStore] = WeakValueDictionary({self.account: self._parts})

    def __repr__(self) -> str:
        return f"<SQLStore {self._parts.database!r} account={self.account!r}>"

    def for_account(self, account: str) -> SQLStore:
        """Return the store of another merchant in the same database, with the same options.

        Payments, keys, rate limit, login and poller are the account's own. Connections, threads and the listener are
        shared by all accounts, so that a process with a thousand of them has ten connections. Asked twice, this
        returns the same store while it is in use.

        Args:
            account: Names the merchant, at most 200 characters.

        Raises:
            InvalidRequest: The name is invalid.
        """
        account = require_name("account", account)
        found = self._accounts.get(account)
        if found is None:
            found = copy(self)
            found.account = account
            made = attrs.evolve(self._parts, account=account, cipher=self._parts.cipher.for_account(account))
            found._parts = self._used.setdefault(account, made)
            # Of two threads that come here at once, both get the first one's.
            found = self._accounts.setdefault(account, found)
        return found

    def enqueue(
        self,
        connection: Any,
        *,
        type: str,
        phone_number: str,
        amount: int | Decimal | str,
        idempotency_key: str,
        extra: Mapping[str, Any] | None = None,
        not_before: datetime | timedelta | None = None,
        not_after: datetime | timedelta | None = None,
        priority: int = 0,
    ) -> PaymentRecord:
        """Record a payment in your own transaction, to be sent once that is committed. Never sent if it is rolled back.

        ``async with client.dispatcher()`` sends it, in any process of yours. This is a plain function, which waits for
        the database only, and neither commits nor rolls back. On SQLite, call it last: while your transaction is open
        nothing else can be written. A call of this library that you await in it, and that writes, raises `StoreError`.

        Args:
            connection: A connection in a transaction, to the database that holds the store's tables, which a client
                must have opened before: a ``Connection`` or ``Session`` of SQLAlchemy, with any of its drivers (of an
                ``AsyncSession`` through ``run_sync``), a connection of psycopg or sqlite3, or Django's.
            type: ``collection`` or ``disbursement``.
            phone_number: As for ``client.collections.create``.
            amount: As for ``client.collections.create``.
            idempotency_key: Your name for this payment, such as the order's, at most 200 characters.
            extra: As for ``client.collections.create``.
            not_before: The time before which it is not sent: an aware datetime, or a timedelta from now by the
                database's clock.
            not_after: The time from which no dispatcher sends it, given like `not_before`. It leaves the queue then, as
                ``NOT_SENT``, and its key may be used again.
            priority: Payments with a higher one are sent first; from -1,000,000 to 1,000,000.

        Returns:
            The payment, in the state ``QUEUED``. For a key that was used for the same payment, that payment; one that
            was not sent, or was refused, is queued again. In another state it is returned as it is, and not sent: one
            that is ``RELEASED`` or ``ABSENT`` is sent again by a create only, which looks for it in the list first.

        Raises:
            InvalidRequest: An argument is invalid.
            IdempotencyConflict: The key was used for another payment.
            StoreError: The database has no tables of ours, or those of another version. The error names the next step.
            Exception: Errors of the driver pass unchanged, such as serialization failures that your own code repeats.
        """
        from mobilemoney_async.database.guest import explained, guest_connection
        from mobilemoney_async.payments.outbox.outbox import enqueue, read_order
        from mobilemoney_async.payments.records.journal import Journal

        phone_number, amount = hide(phone_number), hide_text(amount)
        fields = None if extra is None else Fields.of(extra)
        del extra
        database = self._parts.database
        utcnow, guest = database.wall_clock.utcnow, guest_connection(connection, database.dialect)
        if isinstance(not_before, timedelta) or isinstance(not_after, timedelta):
            # This process may never have read the clock that decides here.
            with explained(guest):
                now = database.time_of_transaction(utcnow)(guest)
        else:
            now = utcnow()
        order = read_order(
            type=type,
            phone_number=phone_number,
            amount=amount,
            idempotency_key=idempotency_key,
            extra=fields,
            not_before=not_before,
            not_after=not_after,
            priority=priority,
            now=now,
        )
        journal = Journal(guest, self.account)
        with explained(guest):
            return enqueue(journal, *order, now)

    async def erase(self, *, phone_number: str) -> Erasure:
        """Erase a phone number from this account, for a customer who asks for it; see docs/privacy.md.

        Every payment with this number keeps its amount, key, id, state and times. Its number becomes a digest under the
        account's secret key, and what may name the customer goes: extra fields, errors, and notes of people. So its key
        still names the same payment. The erasure is listed.

        Args:
            phone_number: As for ``client.collections.create``.

        Returns:
            The erasure, with the rows that were changed, by table.

        Raises:
            InvalidRequest: It is no phone number.
            StoreError: A payment of it is unknown or open (pending for 30 days at most), or a batch with it waits for
                approval: the error names them, and nothing was erased. Or the account has no payment or transaction of
                it, or the database failed.
        """
        phone_number = hide(phone_number)
        from mobilemoney_async.payments.erasure import erase_number

        number = normalise_phone_number(phone_number)
        return await self._parts.decide(lambda journal, at: erase_number(journal, number, at))

    async def erase_account(self, account: str) -> Erasure:
        """Erase all phone numbers, notes and logins of an account of this database, and remove it.

        As `erase` does for each number. The secret key of the digests goes too: nothing compares with them any more.
        An account with very many payments is changed in one transaction, which takes its time.

        Args:
            account: Its name; not by default that of this store.

        Raises:
            InvalidRequest: The name is invalid.
            StoreError: A payment of it is unknown or open (pending for 30 days at most), or a batch waits for approval:
                the error names them, and nothing was erased. Or the store has nothing of the account, or the database
                failed.
        """
        from mobilemoney_async.payments.erasure import erase_account

        return await self.for_account(account)._parts.decide(erase_account)

    async def erasures(self) -> list[Erasure]:
        """Return the erasures of all accounts of this database, oldest first: keep them outside of its backups.

        Raises:
            StoreError: The database failed.
        """
        from mobilemoney_async.payments.erasure import list_erasures

        return await self._parts.database.read(list_erasures)

    async def repeat_erasures(self, erasures: Iterable[Erasure]) -> list[Erasure]:
        """Repeat the erasures of a list, after a backup from before them was restored.

        Args:
            erasures: Those that `erasures` has returned before the database was lost.

        Returns:
            Those that found something to erase, for each account in one transaction.

        Raises:
            InvalidRequest: They are something else; nothing was erased.
            StoreError: Some were refused, as of `erase`, or as the account has numbers and no key to compare them, or
                one that its first payment has made since; the error names payments and accounts, and all others are
                done.
        """
        from mobilemoney_async.payments.erasure import repeat
        from mobilemoney_async.payments.records.account_status import Erasure

        listed = list(erasures) if isinstance(erasures, Iterable) else [erasures]
        if not all(isinstance(each, Erasure) for each in listed):
            raise refuse("erasures", "those that store.erasures() has returned", type(erasures))
        by_account: dict[str, list[Erasure]] = {}
        for each in listed:
            by_account.setdefault(each.account, []).append(each)
        done: list[Erasure] = []
        refused: list[StoreError] = []
        for account, some in by_account.items():
            repeated = await self.for_account(account)._parts.decide(partial(repeat, listed=some))
            done, refused = done + repeated[0], refused + repeated[1]
        if refused:
            said = f"{len(done)} erasures were repeated, {len(refused)} refused: "
            said += "; ".join(map(str, refused[:_MOST_TOLD]))
            raise StoreError(f"{said}; end or decide open payments, then repeat the list", outcome="not_sent")
        return done

    def close(self) -> None:
        """Close the idle connections to the database, of all accounts, as the last client that is closed does too.

        Nothing is lost without it. A store that is used again opens new ones.
        """
        self._parts.database.close()


def as_store(store: SQLStore | str) -> SQLStore:
    """Return the store of an argument `store`, which may be its URL, or raise `InvalidRequest`."""
    store = hide_text(store)
    if not isinstance(store, SQLStore | str):
        raise refuse("store", 'an SQLStore or a URL such as "sqlite:///payments.db"', type(store))
    try:
        return SQLStore(store) if isinstance(store, str) else store
    except InvalidRequest as exc:
        raise InvalidRequest(f"store {exc.problem}", argument="store", problem=exc.problem) from None


def account_store(store: SQLStore) -> AccountStore:
    """Return the parts of a store that all its clients share."""
    return store._parts
