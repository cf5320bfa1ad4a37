"""Make the tables, as the code has them.

No release has made a database yet. With the first change of the tables after a release, this file
needs the tables of that release, written out.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import insert

from dsort.service.database.tables import locks, metadata

# Until a release, a change of the tables gives this revision another id, so that a database with
# other tables is refused. The id must not begin with an older id, because Alembic would take the
# new id for the older one.
revision = "queue_index"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring an empty database to this revision."""
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.execute(insert(locks).values([{"name": "dispatch"}, {"name": "schedules"}]))
