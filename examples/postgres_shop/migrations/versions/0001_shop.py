"""The shop's tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "orders",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("item", sa.String(), nullable=False),
        sa.Column("price", sa.Integer(), nullable=False),
        sa.Column("number", sa.String()),
        sa.Column("phone_number", sa.String()),
        sa.Column("cart", sa.JSON()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("state", sa.String(), server_default="open", nullable=False),
    )
    op.create_index("ix_orders_number", "orders", ["number"], unique=True)
    op.create_index("ix_orders_phone_number", "orders", ["phone_number"])
    op.create_table(
        "shipments",
        sa.Column("order_id", sa.BigInteger(), sa.ForeignKey("orders.id"), primary_key=True),
        sa.Column("booked_by", sa.Integer(), nullable=False),
    )
    op.create_table("feed_place", sa.Column("name", sa.String(), primary_key=True), sa.Column("cursor", sa.String()))


def downgrade() -> None:
    for table in ("feed_place", "shipments", "orders"):
        op.drop_table(table)
