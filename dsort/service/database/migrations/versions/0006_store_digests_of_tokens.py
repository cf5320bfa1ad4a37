"""Store a SHA-256 digest of the secret of each token.

Digests of earlier versions stay: the service names their tokens, and refuses them."""

from __future__ import annotations

from alembic import op

__all__ = ["upgrade"]

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring a database of 0005 to 0006."""
    op.execute("ALTER TABLE tokens RENAME COLUMN hash TO digest")
    op.drop_column("tokens", "salt")
