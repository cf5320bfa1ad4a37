"""Let owners take turns, and know since when a job runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring a database of 0002 to 0003."""
    op.create_table(
        "turns",
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_turns")),
    )
    op.add_column("jobs", sa.Column("begun_at", sa.Double()))
