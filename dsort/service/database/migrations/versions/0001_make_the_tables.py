"""Make the tables, as the code has them.

No release has made a database yet. With the first change after one, this file needs the tables of
that release, written out."""

from __future__ import annotations

from alembic import op
from sqlalchemy import insert

from dsort.service.database.tables import locks, metadata

__all__ = ["upgrade"]

revision = "0.1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring an empty database to 0.1."""
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.execute(insert(locks).values([{"name": "dispatch"}, {"name": "schedules"}]))
