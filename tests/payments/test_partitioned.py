"""Tables of PostgreSQL that are partitioned by account, as docs/platform.md shows: the store works on them unchanged.

A selection of the other tests, on such tables. `nox -s soak` runs all tests of `tests/payments` on them.
"""
# ruff: noqa: F401 (imported tests)

import anyio.to_thread
import pytest
import sqlalchemy as sa

from mobilemoney_async import PaymentState, SQLStore
from mobilemoney_async.database import schema
from mobilemoney_async.sandbox import Sandbox
from tests.payments.test_changes import (
    test_a_change_that_commits_late_is_never_passed,
    test_a_consumer_goes_on_behind_the_last_change_that_is_done,
)
from tests.payments.test_creates import (
    test_a_key_is_of_its_account,
    test_a_record_of_a_process_that_died_blocks_until_it_is_found_out,
    test_duplicates_of_two_processes_race,
    test_many_callers_of_one_key,
    test_the_record_is_on_disk_before_the_socket_is_touched,
)
from tests.payments.test_dispatcher import test_a_dispatcher_that_is_left_hands_over_within_two_seconds
from tests.payments.test_fleet_poller import (
    test_an_ending_reaches_the_record_the_feed_and_all_pollers_or_none,
    test_the_store_s_payments_are_resumed_and_their_ends_recorded,
)
from tests.payments.test_group_commit import (
    database,
    test_writes_that_wait_together_are_committed_together,
)
from tests.payments.test_many_accounts import test_accounts_of_one_store_share_nothing_but_the_database
from tests.payments.test_outbox import test_a_create_sends_a_queued_payment_now
from tests.payments.test_payouts import test_a_batch_is_sent_only_after_another_person_has_approved_what_was_shown
from tests.payments.test_reconciler import test_one_match_is_adopted, test_someone_may_release_a_key
from tests.payments.test_schema import test_what_the_database_itself_forbids_and_allows
from tests.payments.test_unclaimed_transactions import test_the_list_of_unclaimed_transactions
from tests.support.databases import Postgres, partition

# Small and the same for all accounts, or of one account and in one row: not partitioned.
PLAIN = {f"mobilemoney_{name}" for name in ("schema", "leases", "hosts", "account_claims", "budgets", "logins")}


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    """A database with empty tables that are partitioned."""
    return postgres_server.shared_database(partitioned=True)


@pytest.fixture
def store_url(postgres_url: str) -> str:
    """The same."""
    return postgres_url


def test_every_table_of_merchants_data_is_partitioned(postgres_url: str) -> None:
    """A table that is added later is partitioned too, or is named as one that need not be."""
    query = "SELECT relname FROM pg_partitioned_table JOIN pg_class ON pg_class.oid = partrelid"
    engine = sa.create_engine(postgres_url)
    with engine.connect() as connection:
        found = set(connection.scalars(sa.text(query)))
        expected = {
            (each.name, index.name)
            for each in schema.METADATA.tables.values()
            for index in each.indexes
            if each.name not in PLAIN
        }
        indexes = {(name, each["name"]) for name in found for each in sa.inspect(connection).get_indexes(name)}
        keys = {name: sa.inspect(connection).get_pk_constraint(name)["constrained_columns"] for name in found}
    engine.dispose()
    assert found == {*schema.METADATA.tables} - PLAIN
    assert expected == indexes
    assert keys == {name: [*schema.METADATA.tables[name].primary_key.columns.keys()] for name in found}


@pytest.mark.slow
async def test_payments_that_are_there_already_are_kept(postgres_server: Postgres) -> None:
    """The statement moves the rows, and their keys stay used."""
    url, sandbox = postgres_server.new_database(), Sandbox()

    async def pay() -> str:
        async with sandbox.client(store=SQLStore(url)) as client:
            made = await client.collections.create("+255681234567", 1000, idempotency_key="order-1")
            (record,) = await client.payments.list()
            assert record.state is PaymentState.ACKNOWLEDGED
            return made.transaction_id

    first = await pay()
    await anyio.to_thread.run_sync(partition, url)
    assert await pay() == first
    assert [*sandbox.transactions] == [first]
