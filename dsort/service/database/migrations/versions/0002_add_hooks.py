"""Add hooks of jobs, and the notices that are still to be given."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True)
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Bring a database of 0001 to 0002."""
    op.add_column("jobs", sa.Column("hooks", JSON, nullable=True))
    op.create_table(
        "notices",
        sa.Column("number", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("hook", JSON, nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("next_try_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_notices")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notices_next_try_at", "notices", ["next_try_at"], unique=False)
