"""The shop's own tables; the library's, in the same database, begin with `mobilemoney_`."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# What `Order.state` may be.
OPEN, PAID, UNPAID = "open", "paid", "unpaid"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    item: Mapped[str]
    price: Mapped[int]  # whole shillings
    # What paying adds to a table of orders. The number is hard to guess: in addresses, and the key of the payment.
    number: Mapped[str | None] = mapped_column(index=True, unique=True)
    phone_number: Mapped[str | None] = mapped_column(index=True)
    cart: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON)  # what the page sent, so that it stays the same
    created_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    state: Mapped[str] = mapped_column(server_default=OPEN)


class Shipment(Base):
    """What the warehouse sends: its key is the order, so there is one at most."""

    __tablename__ = "shipments"

    order_id: Mapped[int] = mapped_column(sa.ForeignKey(Order.id), primary_key=True)
    booked_by: Mapped[int]  # the worker's process


class Place(Base):
    """Copy it as it is: how far the books have read the payments' changes. One row, which its reader locks."""

    __tablename__ = "feed_place"

    name: Mapped[str] = mapped_column(primary_key=True)
    cursor: Mapped[str | None]
