"""Make the first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True)
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Bring an empty database to 0001."""
    _jobs()
    _labels()
    _events()
    _schedules()
    _schedule_runs()
    _tokens()
    _audit()
    _locks()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("input_uri", sa.Text(), nullable=False),
        sa.Column("output_uri", sa.Text(), nullable=False),
        sa.Column("claims", JSON, nullable=True),
        sa.Column("schedule_id", sa.String(length=64), nullable=True),
        sa.Column("due_at", sa.Double(), nullable=True),
        sa.Column("after_commit", JSON, nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("body_digest", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stop_asked_at", sa.Double(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=True),
        sa.Column("progress", JSON, nullable=True),
        sa.Column("phases", JSON, nullable=True),
        sa.Column("warning_count", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("replica", sa.String(length=64), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("pid_started", sa.Double(), nullable=True),
        sa.Column("heartbeat_at", sa.Double(), nullable=True),
        sa.Column("result", JSON, nullable=True),
        sa.Column("error", JSON, nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
        sa.UniqueConstraint("job_id", name=op.f("uq_jobs_job_id")),
        sa.UniqueConstraint("owner", "idempotency_key", name=op.f("uq_jobs_owner_idempotency_key")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"], unique=False)
    op.create_index("ix_jobs_owner_number", "jobs", ["owner", "number"], unique=False)
    op.create_index("ix_jobs_schedule_number", "jobs", ["schedule_id", "number"], unique=False)
    op.create_index("ix_jobs_state_priority", "jobs", ["state", "priority", "number"], unique=False)


def _labels() -> None:
    op.create_table(
        "labels",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=63), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_labels_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "label", name=op.f("pk_labels")),
    )
    op.create_index("ix_labels_label", "labels", ["label"], unique=False)


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("number", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_number", "events", ["job_id", "number"], unique=False)


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("schedule_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("definition", JSON, nullable=False),
        sa.Column("input_uri", sa.Text(), nullable=False),
        sa.Column("output_uri", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("next_due_at", sa.Double(), nullable=True),
        sa.Column("run_count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("name", name=op.f("uq_schedules_name")),
    )
    op.create_index("ix_schedules_next_due_at", "schedules", ["next_due_at"], unique=False)


def _schedule_runs() -> None:
    op.create_table(
        "schedule_runs",
        sa.Column("number", SERIAL, autoincrement=True, nullable=False),
        sa.Column("schedule_id", sa.String(length=64), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("by_hand", sa.Boolean(), nullable=False),
        sa.Column("fired_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["schedules.schedule_id"],
            name=op.f("fk_schedule_runs_schedule_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_schedule_runs")),
        sa.UniqueConstraint(
            "schedule_id",
            "due_at",
            "by_hand",
            name=op.f("uq_schedule_runs_schedule_id_due_at_by_hand"),
        ),
        sqlite_autoincrement=True,
    )


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("input_globs", JSON, nullable=False),
        sa.Column("output_globs", JSON, nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("name", name=op.f("uq_tokens_name")),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("number", SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(length=128), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("target", sa.String(length=128), nullable=False),
        sa.Column("details", JSON, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"], unique=False)


def _locks() -> None:
    op.create_table(
        "locks",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_locks")),
    )
    rows = sa.table("locks", sa.column("name", sa.String))
    op.bulk_insert(rows, [{"name": "dispatch"}, {"name": "schedules"}])
