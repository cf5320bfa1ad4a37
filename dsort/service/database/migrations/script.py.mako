"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = ${repr(up_revision)}
down___all__ = ["upgrade"]

revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the tables from ${repr(down_revision)} to ${repr(up_revision)}."""
    ${upgrades if upgrades else "pass"}
