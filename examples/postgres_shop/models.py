"""The shop's own tables; the library's, in the same database, begin with `mobilemoney_`."""

import os
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# One address for both: the shop's own engine asks by asyncpg, the store by psycopg.
URL = sa.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str]
    price: Mapped[int]
    phone_number: Mapped[str] = mapped_column(index=True)
    created_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    state: Mapped[str] = mapped_column(server_default="open")  # then paid or unpaid


class Shipment(Base):
    """What the warehouse sends: its key is the order, so there is one at most."""

    __tablename__ = "shipments"

    order_id: Mapped[str] = mapped_column(sa.ForeignKey("orders.id"), primary_key=True)
    booked_by: Mapped[int]  # the worker's process


class Place(Base):
    """Place of the books in the feed of changes: one row, which its reader locks. The first worker makes it."""

    __tablename__ = "feed_place"

    name: Mapped[str] = mapped_column(primary_key=True)
    cursor: Mapped[str | None]
