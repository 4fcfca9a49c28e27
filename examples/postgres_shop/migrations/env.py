"""Alembic beside the library: it makes and changes the tables of `models`, and leaves all others alone."""

import sqlalchemy as sa
from alembic import context
from models import Base
from wiring import URL


def is_ours(name: str | None, kind: str, parents: object) -> bool:
    return kind != "table" or name in Base.metadata.tables


with sa.create_engine(URL, poolclass=sa.pool.NullPool).connect() as connection:
    context.configure(connection, target_metadata=Base.metadata, include_name=is_ours)
    with context.begin_transaction():
        context.run_migrations()
