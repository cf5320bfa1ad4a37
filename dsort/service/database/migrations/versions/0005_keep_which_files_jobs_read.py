"""Keep which files the spec of a job may have read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring a database of 0004 to 0005."""
    op.add_column("jobs", sa.Column("file_uris", sa.JSON(none_as_null=True)))
