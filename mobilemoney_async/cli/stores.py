"""Store of a command, from its options, and work that needs it alone or with the service."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from mobilemoney_async.cli.clients import missing_file, open_client, open_store
from mobilemoney_async.cli.failures import Refused, WrongUsage, copyable, run, say
from mobilemoney_async.cli.options import Service, require_service
from mobilemoney_async.configuration.settings import Settings, names_service, read_store_key

if TYPE_CHECKING:
    from mobilemoney_async.client import AsyncClient
    from mobilemoney_async.payments.book import PaymentBook
    from mobilemoney_async.payments.records.account_store import AccountStore
    from mobilemoney_async.payments.records.record import PaymentRecord
    from mobilemoney_async.payments.store import SQLStore
    from mobilemoney_async.sharing.overview import Overview

T = TypeVar("T")

OF_THE_STORE = ("store", "account", "profile", "config")
"""Options of a command that reads the store of one account."""


def find_store(service: Service) -> Settings:
    """Return the settings of a command that needs no service: without a profile, a store is enough."""
    url = service.store or os.environ.get("MOBILEMONEY_STORE", "").strip()
    if not url or names_settings(service):
        return _require_store(service.settings())
    account = "default" if service.account is None else service.account
    return Settings(profile="", base_url="", is_production=True, store=url, account=account, store_key=read_store_key())


def names_settings(service: Service) -> bool:
    """Return whether a profile or a service is named, whose settings count for a command that needs no service."""
    return service.profile is not None or names_service(service.config)


def _require_store(settings: Settings) -> Settings:
    if settings.store is None:
        advice = "name one with --store, MOBILEMONEY_STORE or in the profile"
        raise WrongUsage(f"profile {settings.profile} has no store: {advice}")
    return settings


def open_store_of(settings: Settings, **options: Any) -> SQLStore:
    """Return the store of a command, with options of `SQLStore`; a new file would be a wrong name."""
    file = missing_file(settings)
    if file is not None:
        # A new database has no payments to show: the name must be wrong.
        raise Refused(f"there is no file {file}: check the name of the store; the first payment with it makes one")
    return open_store(settings, **options)


def run_with_store(work: Callable[[PaymentBook], Awaitable[T]], settings: Settings) -> T:
    """Run work that needs the payments of the store alone."""

    async def with_book(store: AccountStore) -> T:
        from mobilemoney_async.payments.book import PaymentBook

        return await work(PaymentBook(store))

    return run_with_account("payments", with_book, settings)


def run_with_account(
    command: str, work: Callable[[AccountStore], Awaitable[T]], settings: Settings, *, makes_file: bool = False
) -> T:
    """Run work of a command that needs one account of the store alone; `makes_file` as for `run_with_sql_store`."""

    async def with_account(store: SQLStore) -> T:
        from mobilemoney_async.payments.store import account_store  # needs the extra, which opening a store checks

        return await work(account_store(store))

    return run_with_sql_store(command, with_account, settings, makes_file=makes_file)


def run_with_sql_store(
    command: str, work: Callable[[SQLStore], Awaitable[T]], settings: Settings, *, makes_file: bool = False
) -> T:
    """Run work of a command that needs the store alone; `makes_file` says whether a new one may be made for it."""

    async def with_store() -> T:
        store = open_store(settings) if makes_file else open_store_of(settings)
        try:
            return await work(store)
        finally:
            store.close()

    return run(command, with_store)


async def require_tables(store: AccountStore) -> None:
    """Refuse a store without tables, or with those of another release: a view makes none."""
    from mobilemoney_async.database.schema import find_version, require_known

    found = await store.database.peek(find_version)
    if found is None:
        raise Refused("the store has no tables yet: the first payment with it makes them")
    require_known(found)


def queue_warnings(found: Overview) -> Iterator[str]:
    """Yield why nothing is sent from the queue, if a change of an operator's is needed."""
    if found.paused is not None:
        until = "" if found.paused_until is None else f" until {found.paused_until:%H:%M:%S} UTC"
        yield f"the queue is paused{until}: {copyable(found.paused)}"
    elif found.queued and not found.has_dispatcher:
        yield "no process sends the queued payments"


def say_of_queue(records: Iterable[PaymentRecord], store: Settings) -> None:
    """Say why nothing is sent from the queue, if one of some payments is in it."""
    if any(each.state == "QUEUED" for each in records):
        from mobilemoney_async.sharing.overview import read_overview

        for each in queue_warnings(run_with_account("payments", read_overview, store)):
            say("payments", each)


def run_with_service(
    work: Callable[[AsyncClient], Awaitable[T]],
    service: Service,
    *,
    command: str = "payments",
    open_work: Callable[[], Iterable[str]] | None = None,
    **options: Any,
) -> T:
    """Run work that needs the service too, which the user must have named; with options of `SQLStore`."""
    settings = require_service(service.settings())

    async def with_client() -> T:
        async with open_client(settings, store=open_store_of(_require_store(settings), **options)) as client:
            return await work(client)

    return run(command, with_client, open_work=open_work, settings=settings)
