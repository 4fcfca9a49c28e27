"""Binding of an account to its merchant, by the host of the base URL and the credentials that know its transactions.

Others may be another merchant's, or a sandbox's: nothing is sent with them, and nothing is concluded from their list.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.calls.tokens import NamedSource
from mobilemoney_async.contract.comparison import NumberForm
from mobilemoney_async.contract.endpoints import GET_TRANSACTION
from mobilemoney_async.database.engine import timeline
from mobilemoney_async.database.schema import accounts, lock_row, payments
from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.errors import (
    InvalidCredentials,
    InvalidToken,
    InvalidTransactionId,
    MobileMoneyError,
    StoreError,
    TokenExpired,
    TransactionNotFound,
)
from mobilemoney_async.events import AccountMismatch, emit
from mobilemoney_async.payments.account_store import AccountStore
from mobilemoney_async.payments.gap import AccountFacts
from mobilemoney_async.payments.journal import CONFLICTS, Journal, to_record
from mobilemoney_async.payments.matching import Match, Spellings, match, query_for
from mobilemoney_async.payments.records import PaymentRecord, PaymentRequest

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Credentials that an account remembers.
_MOST_CREDENTIALS = 20


_here = payments.c.account == sa.bindparam("of_account")
NEWEST: sa.Select[Any] = (
    sa.select(payments.c.created_at).where(_here).order_by(payments.c.created_at.desc(), payments.c.key.desc())
)
"""Times of the payments of the account `of_account`, newest first."""
_FIELDS = [each for each in accounts.c if each.name in {field.name for field in attrs.fields(AccountFacts)}]
_one = sa.select(sa.literal(1).label("one")).subquery()
_FACTS = sa.select(NEWEST.limit(1).scalar_subquery().label("newest"), *_FIELDS).select_from(
    _one.outerjoin(accounts, accounts.c.account == sa.bindparam("of_account"))
)
_FACTS_AND_CONFLICTS = _FACTS.add_columns(*CONFLICTS)


class Binding:
    """Binding of one client's account to its merchant."""

    def __init__(self, store: AccountStore, pipeline: Pipeline) -> None:
        self._store = store
        self._pipeline = pipeline
        self._host = _host(pipeline.wire.base_url)
        self._credentials: str | None = None
        self._said: set[str] = set()

    def look(self, journal: Journal) -> AccountFacts:
        """Return the facts about the account."""
        return self._look(journal, _FACTS, {"of_account": journal.account})[0]

    def look_with_conflicts(self, journal: Journal, request: PaymentRequest) -> tuple[AccountFacts, bool]:
        """Return the facts, and whether a payment has the same key or may be a duplicate, by one statement.

        Most creates need no other one.
        """
        return self._look(journal, _FACTS_AND_CONFLICTS, journal.kind(request))

    def _look(
        self, journal: Journal, statement: sa.Select[Any], values: Mapping[str, str]
    ) -> tuple[AccountFacts, bool]:
        # Before the first statement of the transaction: SQLite shows what was committed by then, and a payment that is
        # noted later would seem to be lost.
        remembered = self._store.newest
        row = dict(journal.connection.execute(statement, values).mappings().one())
        has_conflicts = (row.pop("used", None), row.pop("duplicate", None)) != (None, None)
        if row["newest"] is not None:
            self._store.note_newest(row["newest"], is_own=False)
        facts = AccountFacts(
            remembered=remembered,
            unguarded_at=self._store.unguarded_at,
            timeline_now=timeline(journal.connection),
            **row,
        )
        return facts, has_conflicts

    async def require_bound(self, facts: AccountFacts | None = None, *, is_lenient: bool = False) -> None:
        """Raise `StoreError` if the account is not that of this client's host and credentials.

        Credentials that are new to the account have to look up one of its transactions first. If that fails, not
        because there is none, they are not used either, unless `is_lenient`.
        """
        if facts is None:
            facts = await self._store.read(self.look)
        name = self._credentials or await self._name_credentials()
        known = (facts.credentials or "").split()
        if facts.newest is None:
            if (facts.host, known) != (self._host, [name]):
                await self.save(host=self._host, credentials=name, merchant_id=None)
            return
        if facts.host not in {None, self._host}:
            raise self._foreign(f"is of {facts.host}, not of {self._host}")
        if facts.host is not None and name in known:
            return
        try:
            merchant_id = await self.look_up_own(facts)
        except (InvalidCredentials, InvalidToken, TokenExpired):
            return  # the payment is refused, too
        except MobileMoneyError as exc:
            if is_lenient and not isinstance(exc, StoreError):
                return
            raise wait(f"was never used with these credentials, which could not be checked: {exc}") from exc
        if merchant_id is not None:
            credentials = " ".join([*known, name][-_MOST_CREDENTIALS:])
            await self.save(host=self._host, credentials=credentials, merchant_id=merchant_id or facts.merchant_id)

    async def rebind(self, note: str) -> None:
        """Bind the account to this client's host and credentials."""
        await self._store.database.open()
        name = self._credentials or await self._name_credentials()
        await self.save(host=self._host, credentials=name, merchant_id=None, note=note)

    async def save(self, **values: Any) -> None:
        """Change the account's row."""

        def save(journal: Journal) -> None:
            lock_row(journal.connection, accounts, {"account": journal.account})
            journal.connection.execute(accounts.update().where(accounts.c.account == journal.account).values(values))

        await self._store.write(save)

    async def _name_credentials(self) -> str:
        tokens, cipher = self._pipeline.tokens, self._store.cipher
        if isinstance(tokens, NamedSource):
            self._credentials = await tokens.name_credentials()
        else:
            # Issued tokens; those of one source of your own count as the same credentials.
            token = await self._pipeline.token()
            self._credentials = await run_in_thread(lambda: cipher.name_token(token))
        return self._credentials

    async def look_up_own(self, facts: AccountFacts) -> str | None:
        """Look up the newest transaction that was acknowledged to us.

        Returns:
            Its merchant, empty if it shows none; None if the store knows no such transaction.

        Raises:
            StoreError: The service does not know it, or it is another payment: this is another merchant.
            MobileMoneyError: It could not be looked up.
        """
        record = await self._store.read(_find_own)
        if record is None or record.transaction_id is None:
            return None
        try:
            answer = await self._pipeline.call(GET_TRANSACTION, identifiers={"transaction_id": record.transaction_id})
        except (TransactionNotFound, InvalidTransactionId) as exc:
            raise self._foreign(f"has transaction {record.transaction_id}, which the service does not know") from exc
        found = answer.transaction
        fit = match(query_for(record), found, Spellings(forms=frozenset(NumberForm)))
        is_other = facts.merchant_id and found.merchant_id and found.merchant_id != facts.merchant_id
        if fit is Match.NONE or is_other:
            raise self._foreign(f"has transaction {record.transaction_id}, which is another one at the service")
        return found.merchant_id or ""

    def _foreign(self, reason: str) -> StoreError:
        """Return the error for a host or credentials of another merchant, and report them once."""
        said = f"account {self._store.account!r} of the store {reason}"
        if said not in self._said:
            self._said.add(said)
            emit(self._pipeline.on_event, AccountMismatch(account=self._store.account, reason=reason))
            logger.warning("%s: nothing is sent and nothing is concluded with these credentials", said)
        advice = "use a store or an account of its own, or, if it is the same merchant, mobilemoney payments rebind"
        return StoreError(f"{said}: these may be the credentials of another merchant; {advice}", outcome="not_sent")


def wait(reason: str) -> StoreError:
    """Return the error for a payment that has to wait, for a reason about the store."""
    return StoreError(f"the store {reason}; nothing was sent", outcome="not_sent")


def _host(base_url: str) -> str:
    """Return the host of a base URL; one name for all of loopback and the reserved domain of tests."""
    host = urlsplit(base_url).hostname or ""
    is_local = host in {"localhost", "::1"} or host.startswith("127.") or host.endswith((".localhost", ".test"))
    return "localhost" if is_local else host


def _find_own(journal: Journal) -> PaymentRecord | None:
    """Return the newest payment with a transaction that was acknowledged to us."""
    columns = payments.c
    statement = sa.select(payments).where(
        columns.account == journal.account, columns.transaction_id.is_not(None), columns.is_adopted.is_(False)
    )
    row = journal.connection.execute(statement.order_by(columns.created_at.desc()).limit(1)).one_or_none()
    return None if row is None else to_record(row)
