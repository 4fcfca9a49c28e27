"""Alembic beside the library: it makes and changes the shop's tables, and leaves the library's alone."""

import sqlalchemy as sa
from alembic import context
from models import URL, Base


def is_ours(name: str | None, kind: str, parents: object) -> bool:
    return not (kind == "table" and (name or "").startswith("mobilemoney_"))


with sa.create_engine(URL, poolclass=sa.pool.NullPool).connect() as connection:
    context.configure(connection, target_metadata=Base.metadata, include_name=is_ours)
    with context.begin_transaction():
        context.run_migrations()
