"""Login token that all processes of a merchant share.

The row of the database holds the state that `calls.logins` would hold in one process, and the lease of the process that
is logging in. Every process keeps a copy in memory, in its own loop's time, and comes back to the row only if that copy
has no usable token, so that a call costs no query.

Critical sections:
- In a process, `LoginAuth` lets one task at a time visit the row or log in. The others wait, or use the old token.
- Between processes, no transaction is open during a login. The row is written before it and after it; in between the
  lease keeps the others off, and its holder renews it. If the lease is lost all the same, two logins are made.
- A login may be cancelled at any await. Its lease is given back, and a result saved, inside a shield of 5 s.
"""

from __future__ import annotations

import copy
import logging
import os
import uuid
from collections.abc import Callable
from functools import partial

import anyio
import attrs
import sqlalchemy as sa

from mobilemoney_async.calls.logins import LoginState
from mobilemoney_async.calls.tokens import Login, LoginAuth, TokenSource
from mobilemoney_async.database.encryption import TokenCipher
from mobilemoney_async.database.engine import Clock, Database
from mobilemoney_async.database.leases import renewed
from mobilemoney_async.database.threads import run_in_thread
from mobilemoney_async.errors import MobileMoneyError, StoreError, TransportError
from mobilemoney_async.payments.records.account_store import AccountStore
from mobilemoney_async.polling.sharing import warn_of_store
from mobilemoney_async.sharing.login_row import Change, LoginRow, LoginTable
from mobilemoney_async.tasks import loop_time, shielded
from mobilemoney_async.values import Secret

logger: logging.Logger = logging.getLogger("mobilemoney_async")

# All in seconds. A holder that died delays the others by a lease, so it is short; one that lives renews it in time.
_LEASE = 5.0
_FIRST_LOOK, _LONGEST_LOOK, _GROWTH = 0.05, 1.0, 1.5
# How soon a process with a valid token looks again: while another renews it, and while the database is away.
_LOOK_AGAIN, _DATABASE_AWAY = 0.5, 15.0
# The result of a login is saved even if the call that made it is cancelled.
_SHIELD = 5.0

_KEYLESS = (
    "other processes encrypt the login token in the store, and this one has no key: it logs in by itself, and keeps "
    "its token in memory; set MOBILEMONEY_STORE_KEY, the same for all processes"
)
_OTHERS = "the store holds a login token of this account under other credentials or another key, which is not used"


def share_tokens(store: AccountStore, tokens: TokenSource) -> TokenSource:
    """Return a source of the login token of all processes of a store. Issued tokens and other sources stay."""
    if type(tokens) is not LoginAuth:  # a subclass may get its tokens in another way
        return tokens
    return SharedLogin(tokens, store.database, store.account, store.cipher)


class SharedLogin(LoginAuth):
    """Login that shares its token through a database, with the credentials of a `LoginAuth`.

    Any number of processes make one login. One of them renews the token ahead of its end while the others go on with
    the old one; a token that the service refuses is discarded for all; a refused login begins the pause of `LoginAuth`
    for all, in which calls fail at once with the same error. A failure before the service, such as a connection that
    failed, stops only its own process from trying.

    Processes with other credentials, or another key, share nothing. While the database is away, a token in memory stays
    in use. The password is never stored; see `database.encryption`. Without a key, a reader of the database
    or its backups can move money until the token ends. So a process without a key beside others with one keeps its
    token in memory, and those delete what it has written before.

    The `LoginAuth` may serve other clients too: its own state is neither used nor changed. The others wait `lease`
    seconds for a process that died while it logged in. A call that has no token and cannot reach the store raises
    `StoreError`.
    """

    is_vault: bool = False

    def __init__(
        self,
        auth: LoginAuth,
        database: Database,
        account: str,
        cipher: TokenCipher,
        *,
        lease: float = _LEASE,
    ) -> None:
        super().__init__(*auth.credentials)
        self._database = database
        self._account = account
        self._cipher = cipher
        self._lease = lease
        self.name: str | None = None
        # Of failures that concern only this process.
        self._own = LoginState()
        # A token that was refused here, and what that makes of the row.
        self._refused: tuple[Secret, Change] | None = None
        self._warned: set[str] = set()
        self._id = uuid.uuid4().hex

    def __repr__(self) -> str:
        return f"<SharedLogin {self._database!r} account={self._account!r}>"

    async def name_credentials(self) -> str:
        """Return the name of the credentials, by which the processes that share them know each other."""
        if self.name is None:
            self.name = await run_in_thread(lambda: self._cipher.name(*self.credentials))
        return self.name

    def doubt(self) -> None:
        """Do nothing: there are no other credentials."""

    def rejected(self, token: Secret, *, replacement: bool) -> None:
        """Forget a token, unless a newer one has taken its place; other processes do so with the next login."""
        if token == self._state.token:
            self._state = attrs.evolve(self._state, token=None)
            self._refused = (token, lambda state, now: state.rejected(token, now, replacement=replacement))

    def suspected(self, token: Secret) -> None:
        """Forget a token, unless a newer one has taken its place, or that has not helped any process lately."""
        known, self._state = self._state, self._state.suspected(token, self._clock.now())
        if self._state is not known:
            self._refused = (token, lambda state, now: state.suspected(token, now))

    async def _renew(self, login: Login) -> Secret:
        """Return the token of all processes, in place of one that only this process has."""
        pause = _FIRST_LOOK
        while True:
            now = self._clock.now()
            if (token := self._state.fresh(now)) is not None:
                return token
            if (refusal := self._state.refusal(now)) is not None:
                raise refusal
            # The same for each login of this process, so that a lease left behind delays only other processes.
            me = f"{self._id}:{os.getpid()}"
            try:
                row, logs_in, clock_offset = await self._visit(me)
            except StoreError as exc:
                token = self._postpone(exc, self._clock.now() + _DATABASE_AWAY)
                warn_of_store("the login token is not shared", exc)
                return token
            if logs_in:
                return await self._log_in(login, me, clock_offset)
            if (token := self._use(row, me, clock_offset)) is not None:
                return token
            await anyio.sleep(pause)
            pause = min(_GROWTH * pause, _LONGEST_LOOK)

    def _use(self, row: LoginRow, me: str, clock_offset: float) -> Secret | None:
        """Return the token after a visit that did not take the lease, or None to wait.

        It waits for the process that has the lease, or until a login may be made after cancelled ones.

        Raises:
            MobileMoneyError: The login failed a moment ago, for all or for this process, and no token is left.
        """
        now = self._clock.now()
        if self._state.fresh(now) is not None:
            return self._state.token
        is_waiting = now < self._cancelled.until or row.is_busy(me, now - clock_offset)
        if self._state.refusal(now) is None and is_waiting:
            self._state = self._state.renewed_from(now + _LOOK_AGAIN)
            return self._state.valid(now)
        for state in (self._state, self._own):
            if state.pause is not None and now < state.pause.until:
                return self._postpone(state.refusal(now) or state.pause.error, state.pause.until)
        return None

    def _postpone(self, error: MobileMoneyError, until: float) -> Secret:
        """Return the token in memory, which is not renewed before a time, or raise a copy of the error."""
        token = self._state.valid(self._clock.now())
        if token is None:
            raise copy.copy(error) from error.__cause__
        self._state = self._state.renewed_from(until)
        return token

    async def _log_in(self, login: Login, me: str, clock_offset: float) -> Secret:
        """Log in as the holder of the lease, and save the result for the others; `clock_offset` is as in `_change`."""
        keep = partial(self._change, lambda row, now: (row.kept(me, now, ttl=self._lease), False))
        began = self._clock.now()
        try:
            async with renewed(keep, every=self._lease / 3):
                token, lifetime = await self.log_in(login)
        except MobileMoneyError as exc:
            self._cancelled.clear()
            return await self._fail(exc, me)
        except BaseException:
            self._cancelled.add(began, self._clock.now())
            await self._finish(me, lambda state, _: state)
            raise
        self._cancelled.clear()
        self._own = LoginState()
        self._state = self._state.logged_in(token, lifetime, began=began, now=self._clock.now())
        failure = await self._finish(
            me, lambda state, now: state.logged_in(token, lifetime, began=min(began - clock_offset, now), now=now)
        )
        if failure is not None:
            warn_of_store("the login token is not shared", failure)
        return self._state.fresh(self._clock.now()) or token

    async def _fail(self, error: MobileMoneyError, me: str) -> Secret:
        """Begin a pause, for all or for this process; return a token that is still valid, or raise the error."""
        is_own = isinstance(error, StoreError) or (isinstance(error, TransportError) and error.outcome == "not_sent")
        failure = await self._finish(me, lambda state, now: state if is_own else state.failed(error, now))
        is_own = is_own or failure is not None
        now = self._clock.now()
        if is_own:
            self._own = self._own.failed(error, now)
        if (token := self._state.fresh(now)) is None:
            pause = (self._own if is_own else self._state).pause
            token = self._postpone(error, now if pause is None else pause.until)
        logger.warning("the token could not be renewed ahead of its end: %s", error)
        return token

    async def _visit(self, me: str) -> tuple[LoginRow, bool, float]:
        refused = self._refused
        now = self._clock.now()
        may_log_in = self._own.refusal(now) is None and now >= self._cancelled.until
        visit = await self._change(
            lambda row, now: row.visited(
                me, now, ttl=self._lease, refused=None if refused is None else refused[1], may_log_in=may_log_in
            )
        )
        # During the transaction another token may have been refused, which the row does not know yet.
        if self._refused is refused:
            self._refused = None
        return visit

    async def _finish(self, me: str, change: Change) -> StoreError | None:
        """Save the result of a login and give the lease back, in a cancelled call too; return the store's failure."""
        save = partial(self._change, lambda row, now: (row.finished(me, now, change), False))
        try:
            await shielded(save, timeout=_SHIELD)
        except StoreError as exc:
            return exc
        return None

    def _learn(self, state: LoginState) -> None:
        """Take over the state of the row. A token that only this process has stays in use to its end."""
        mine = self._state
        if self._refused is not None and state.token == self._refused[0]:
            state = attrs.evolve(state, token=None)
        if state.token is None and mine.token is not None:
            state = attrs.evolve(state, token=mine.token, renew_at=mine.renew_at, expires_at=mine.expires_at)
        self._state = state

    async def _change(self, decide: Callable[[LoginRow, float], tuple[LoginRow, bool]]) -> tuple[LoginRow, bool, float]:
        """Change the row in one transaction, by `decide` at a time of the store, and take over its state.

        Returns what `decide` has returned, and the seconds to add to the store's time to get ours.

        Raises:
            StoreError: The database failed.
        """
        table = LoginTable(self._account, await self.name_credentials(), self._cipher)

        def work(connection: sa.Connection, clock: Clock) -> tuple[LoginRow, bool]:
            found = table.lock(connection)
            now = clock()
            row = table.read(found, now)
            changed, logs_in = decide(row, now)
            if changed != row:
                table.write(connection, changed, now)
            if logs_in and table.is_keyless(connection, now):
                self._warn(_KEYLESS)
            elif logs_in and table.has_others(connection, now):
                self._warn(_OTHERS)
            return changed, logs_in

        (row, logs_in), clock_offset = await self._database.timed(work)
        clock_offset += self._clock.now() - loop_time()
        self._learn(row.state.moved(clock_offset))
        return row, logs_in, clock_offset

    def _warn(self, message: str) -> None:
        """Log a warning once."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)
