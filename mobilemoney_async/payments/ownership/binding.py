"""Binding of an account to its merchant, by the host of the base URL and the credentials that know its transactions.

Others may be another merchant's, or a sandbox's: nothing is sent with them, and nothing is concluded from their list.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.calls.tokens import NamedSource
from mobilemoney_async.contract.endpoints import GET_TRANSACTION, Priority
from mobilemoney_async.contract.models import Transaction
from mobilemoney_async.database.engine import timeline
from mobilemoney_async.database.prepared import run
from mobilemoney_async.database.schema import IS_QUEUED, accounts, lives, payments
from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.errors import (
    InvalidCredentials,
    InvalidToken,
    InvalidTransactionId,
    MobileMoneyError,
    RequestTimeout,
    StoreError,
    TokenExpired,
    TransactionNotFound,
)
from mobilemoney_async.events import AccountMismatch, emit
from mobilemoney_async.payments.ownership.comparison import AccountFacts, must_compare
from mobilemoney_async.payments.ownership.matching import ANY_FORM, Match, match, query_for
from mobilemoney_async.payments.ownership.searches import go_on
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.payments.records.journal import Journal
from mobilemoney_async.payments.records.record import PaymentRecord, PaymentRequest
from mobilemoney_async.payments.records.statements import CONFLICTS, OF_ACCOUNT
from mobilemoney_async.payments.records.transaction_states import was_taken

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# Credentials that an account remembers.
_MOST_CREDENTIALS = 100
_LOCAL = "localhost"
# Seconds after which a difference is reported again.
_SAY_AGAIN = 60.0
# Seconds for which a look-up that failed counts; and one by which a vault gave another merchant's secret.
_CHECK_AGAIN, _CHECK_VAULT = 10.0, 3600.0
# Less of a life is not worth a write.
_CONTACT = timedelta(minutes=1)


_here = payments.c.account == OF_ACCOUNT
NEWEST: sa.Select[Any] = (
    sa.select(payments.c.sent_at).where(_here, payments.c.sent_at.is_not(None)).order_by(payments.c.sent_at.desc())
)
"""Times at which the payments of the account `of_account` were last sent, newest first. Queued ones may be old."""
_FIELDS = [each for each in accounts.c if each.name in {field.name for field in attrs.fields(AccountFacts)}]
_one = sa.select(sa.literal(1).label("one")).subquery()
_until = sa.select(lives.c.until).where(lives.c.account == OF_ACCOUNT).order_by(lives.c.began_at.desc())
_LATEST = [
    each.limit(1).scalar_subquery().label(name) for name, each in {"newest": NEWEST, "life_until": _until}.items()
]
_FACTS = sa.select(*_LATEST, *_FIELDS).select_from(_one.outerjoin(accounts, accounts.c.account == OF_ACCOUNT))
_QUEUED_SINCE = sa.select(sa.func.min(payments.c.created_at).label("since")).where(_here, IS_QUEUED)
_FACTS_AND_CONFLICTS = _FACTS.add_columns(*CONFLICTS)


class ForeignError(Exception):
    """Difference of the account from this client: another host, or a transaction that the service does not know so.

    Attributes:
        is_early: Whether the service may know the transaction soon.
    """

    def __init__(self, difference: str, *, is_early: bool = False) -> None:
        super().__init__(difference)
        self.is_early = is_early


@attrs.define(eq=False)
class Memory:
    """Memory of a client and of those that its `with_options` makes, perhaps one for each call.

    Attributes:
        credentials: The name of the client's credentials, once known.
        admitted: The name of the credentials that may pay.
        said_at: When a difference was last reported, on the loop's clock.
        refused: The name of credentials whose look-up failed, its error, until when that counts, and for whom: those
            that wait for an answer no longer than so many seconds.
        unreadable_until: The time before which the list is not asked for again, on the loop's clock.
        obstacle: The reason for that.
        in_question: Rows that may be forgotten payments; where nothing shows the service's clock, no machine can tell.
    """

    credentials: str | None = None
    admitted: str | None = None
    said_at: float = -math.inf
    refused: tuple[str, Exception, float, float] | None = None
    unreadable_until: float = -math.inf
    obstacle: str = ""
    in_question: Sequence[Transaction] = ()


class Binding:
    """Binding of one client's account to its merchant."""

    def __init__(self, store: AccountStore, pipeline: Pipeline, memory: Memory) -> None:
        self._store = store
        # Looked up once: Python before 3.12 takes longer for it than for the rest of a check.
        self._named = pipeline.tokens if isinstance(pipeline.tokens, NamedSource) else None
        self.has_vault: bool = self._named is not None and self._named.is_vault
        # Its own calls are what credentials are admitted by.
        self._pipeline = attrs.evolve(pipeline, admission=None)
        self._host = _host(pipeline.wire.base_url)
        self._memory = memory

    async def read(self) -> AccountFacts:
        """Return the facts about the account."""
        newest, values = self._store.newest, {"of_account": self._store.account}
        return await self._store.read(lambda journal: self._look(journal, _FACTS, values, newest)[0], share_key="")

    def look_with_conflicts(
        self, journal: Journal, request: PaymentRequest, remembered: datetime | None
    ) -> tuple[AccountFacts, bool]:
        """Return the facts, and whether a payment has the same key or may be a duplicate, by one statement.

        Most creates need no other one. `remembered` is the store's `newest` from before the transaction.
        """
        return self._look(journal, _FACTS_AND_CONFLICTS, journal.kind(request), remembered)

    def _look(
        self, journal: Journal, statement: sa.Select[Any], values: Mapping[str, str], remembered: datetime | None
    ) -> tuple[AccountFacts, bool]:
        # `remembered` is from before the first statement of the transaction: SQLite shows what was committed by then,
        # and a payment that is noted later would seem to be lost.
        row = vars(run(journal.connection, statement, values))
        has_conflicts = (row.pop("used", None), row.pop("duplicate", None)) != (None, None)
        if row["first_record_at"] is None:
            row["queued_since"] = run(journal.connection, _QUEUED_SINCE, {"of_account": journal.account}).since
        if row["newest"] is not None:
            self._store.note_newest(row["newest"])
        if self._store.sole_writer:  # the others that were found are gone
            row["others_until"] = None
        facts = AccountFacts(
            remembered=remembered,
            timeline_now=timeline(journal.connection),
            **row,
        )
        return facts, has_conflicts

    async def require_bound(self, facts: AccountFacts | None = None) -> None:
        """Raise `StoreError` if the account is not that of this client's host and credentials.

        Credentials that are new to the account have to look up one of its transactions first. If that fails, not
        because there is none, they are not used either: they may be another merchant's.
        """
        if facts is None:
            facts = await self.read()
        name = await self._name_credentials()
        if facts.newest is None and (facts.host, facts.credentials) != (self._host, name):
            await self.save(host=self._host, credentials=name, merchant_id=None)
        elif facts.newest is not None and not self.is_known(facts.host, facts.credentials):
            # One look-up at a time: those of the same client that wait for it find its result.
            async with self._store.locks.hold(("credentials", name)):
                await self._bind(name)
            if name != await self._name_credentials():  # replaced in between: are those the merchant's?
                await self.require_bound()
                return
        self._memory.admitted = name

    def is_current(self) -> bool:
        """Return whether the credentials in use now are those for which `require_bound` has last raised nothing."""
        return self._named is None or None is not self._named.name == self._memory.admitted

    async def _bind(self, name: str) -> None:
        """Bind the account to new credentials, if they know its transactions; see `require_bound`."""
        facts, known = await self.read(), self._memory.refused
        if facts.host not in {None, self._host}:
            foreign = ForeignError(f"is of {facts.host}, not of {self._host}")
            raise self._foreign(foreign) from foreign
        if name in (facts.credentials or "").split():
            return  # by now
        patience = min(self._pipeline.options.deadline or math.inf, self._pipeline.options.timeout)
        if known is None or known[0] != name or anyio.current_time() >= known[2] or patience > known[3]:
            try:
                merchant_id = await self.look_up_own(facts)
            except (StoreError, InvalidCredentials, InvalidToken, TokenExpired):
                raise  # with these a payment is refused, too
            except (ForeignError, MobileMoneyError) as exc:
                is_vaults = self.has_vault and isinstance(exc, ForeignError) and not exc.is_early
                until = anyio.current_time() + (_CHECK_VAULT if is_vaults else _CHECK_AGAIN)
                # Others may have more time for the look-up than this caller had.
                lasts = patience if isinstance(exc, RequestTimeout) else math.inf
                self._memory.refused = known = name, exc, until, lasts
            else:
                await self._learn(facts, name, merchant_id)
                return
        failure = known[1]
        if isinstance(failure, ForeignError):
            if self._named is not None:
                self._named.doubt()
            raise self._foreign(failure) from failure
        raise payment_delayed(
            f"was never used with these credentials, which could not be checked: {failure} (if they are of the same "
            "merchant, mobilemoney payments rebind accepts them)"
        ) from failure

    async def _learn(self, facts: AccountFacts, name: str, merchant_id: str | None) -> None:
        """Note that credentials know a transaction of the account, or that it has none, as of `look_up_own`."""
        if merchant_id is None:
            # Those of before need not be the first payment's either: once acknowledged, its transaction shows whose.
            if facts.credentials is not None:
                await self.save(credentials=None)
        elif name == await self._name_credentials():
            names = " ".join([*(facts.credentials or "").split(), name][-_MOST_CREDENTIALS:])
            await self.save(host=self._host, credentials=names, merchant_id=merchant_id or facts.merchant_id)

    async def require_not_foreign(self) -> None:
        """Raise `StoreError` if the account is another merchant's, but not if that cannot be found out now."""
        try:
            await self.require_bound()
        except Exception as exc:
            if isinstance(exc.__cause__, ForeignError):
                raise

    def is_known(self, host: str | None, credentials: str | None) -> bool:
        """Return whether the columns of an account name this client's host and credentials."""
        if self._named is not None:
            self._memory.credentials = self._named.name
        return host == self._host and self._memory.credentials in (credentials or "").split()

    async def rebind(self, note: str) -> None:
        """Bind the account to this client's host and credentials."""
        await self._store.database.open()
        name = await self._name_credentials()
        await self.save(host=self._host, credentials=name, merchant_id=None, note=note)

    async def keep_contact(self, facts: AccountFacts | None = None, *, after: timedelta = _CONTACT) -> None:
        """Write, at most once in a while, that the store's life goes on; not while it is to be compared."""
        facts, now = await self.read() if facts is None else facts, self._pipeline.utcnow()
        is_late = facts.life_until is not None and now - facts.life_until >= after
        if not is_late or must_compare(facts, now):
            return
        await self._store.write(lambda journal: go_on(journal, now), share_key="")
        if facts.timeline is None and facts.timeline_now is not None:  # PostgreSQL has hidden it until now
            await self.save(timeline=facts.timeline_now)

    async def save(self, **values: Any) -> None:
        """Change the account's row."""
        await self._store.write(lambda journal: journal.change_account(**values), share_key="")

    async def _name_credentials(self) -> str:
        if self._named is not None:
            return await self._named.name_credentials()
        cipher, name = self._store.cipher, self._memory.credentials
        if name is None:
            # Issued tokens; those of one source of your own count as the same credentials.
            token = await self._pipeline.token()
            name = await run_in_thread(lambda: cipher.name_token(token))
        self._memory.credentials = name
        return name

    async def look_up_own(self, facts: AccountFacts) -> str | None:
        """Look up a transaction of the account: the newest after `grace`, or else the oldest, as of `_find_own`.

        Returns:
            Its merchant, empty if it shows none or was adopted; None if the store knows no transaction.

        Raises:
            ForeignError: The service does not know it, or it is another payment: this is another merchant.
            MobileMoneyError: It could not be looked up.
        """
        settled_at = self._pipeline.utcnow() - timedelta(seconds=self._store.grace)
        record = await self._store.read(lambda journal: _find_own(journal, settled_at))
        if record is None or record.transaction_id is None:
            return None
        try:
            # As a login, in the payments' lane: since every payment of these credentials waits for it.
            identifiers = {"transaction_id": record.transaction_id}
            answer = await self._pipeline.call(GET_TRANSACTION, identifiers=identifiers, lane=Priority.PAYMENT)
        except (TransactionNotFound, InvalidTransactionId) as exc:
            is_early = record.sent_at is not None and record.sent_at > settled_at
            said = f"has transaction {record.transaction_id}, which the service does not know"
            raise ForeignError(said + (", perhaps not yet" if is_early else ""), is_early=is_early) from exc
        found = answer.transaction
        fit = match(query_for(record), found, ANY_FORM)
        is_other = facts.merchant_id and found.merchant_id and found.merchant_id != facts.merchant_id
        if (fit is Match.NONE and not was_taken(found, record.transaction)) or is_other:
            raise ForeignError(f"has transaction {record.transaction_id}, which is another one at the service")
        return "" if record.is_adopted else found.merchant_id or ""

    def _foreign(self, difference: ForeignError) -> StoreError:
        """Return the error for a host or credentials of another merchant, and report them once a minute."""
        reason, now = str(difference), anyio.current_time()
        said = f"account {self._store.account!r} of the store {reason}"
        if now >= self._memory.said_at + _SAY_AGAIN:
            self._memory.said_at = now
            emit(self._pipeline.on_event, AccountMismatch(account=self._store.account, reason=reason))
            logger.warning("%s: nothing is sent and nothing is concluded with these credentials", said)
        advice = (
            "use a store or an account of their own (a new one for a sandbox that was started again), or, if it is the "
            "same merchant, mobilemoney payments rebind; nothing was sent"
        )
        return StoreError(f"{said}: these may be the credentials of another merchant; {advice}", outcome="not_sent")


def payment_delayed(reason: str) -> StoreError:
    """Return the error for a payment that has to wait, for a reason about the store."""
    return StoreError(f"the store {reason}; nothing was sent", outcome="not_sent")


def service_address(base_url: str) -> str:
    """Return scheme, host and version prefix of a base URL, and its port, which does not count on loopback."""
    parts, host = urlsplit(base_url), _host(base_url)
    port = parts.port if host != _LOCAL and parts.port not in {None, 443} else None
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _host(base_url: str) -> str:
    """Return the host of a base URL; one name for all of loopback and the reserved domain of tests."""
    host = urlsplit(base_url).hostname or ""
    is_local = host in {_LOCAL, "::1"} or host.startswith("127.") or host.endswith((".localhost", ".test"))
    return _LOCAL if is_local else host


def _find_own(journal: Journal, settled_at: datetime) -> PaymentRecord | None:
    """Return the newest payment with a known transaction until a time, or else the oldest; if any, acknowledged to us.

    An adopted one shows no merchant, since it was found in a list. But a merchant that does not know it is another one.
    """
    sent_at, is_known = payments.c.sent_at, payments.c.transaction_id.is_not(None)
    for is_adopted in (False, True):
        own = (is_known, payments.c.is_adopted.is_(is_adopted))
        found = journal.records(*own, sent_at <= settled_at, order_by=[sent_at.desc()], limit=1)
        found = found or journal.records(*own, sent_at.is_not(None), order_by=[sent_at], limit=1)
        if found:
            return found[0]
    return None
