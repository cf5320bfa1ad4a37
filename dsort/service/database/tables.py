"""The tables. Times are seconds since 1970 (UTC, float); JSON values are documents of our own.

One rule holds for all tables: a change of a running job's row names the attempt that makes it. So a
process that was given up can change nothing.

Any text can be stored and read again (``data.total_json``). A file name in an error may hold bytes
that are not UTF-8, and PostgreSQL has no NUL. What users send is refused earlier, with its field
named; the rest is stored as an escape, so it never prevents the end of a job from being stored.
JSON columns pass through the serializer that ``engine.py`` gives to SQLAlchemy.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from dsort.data.json_values import encodable

__all__ = [
    "AnyText",
    "audit",
    "events",
    "jobs",
    "labels",
    "locks",
    "metadata",
    "notices",
    "schedule_runs",
    "schedules",
    "token_buckets",
    "tokens",
    "transforms",
    "turns",
]


class AnyText(TypeDecorator[str]):
    """A column of text of at most ``length`` characters; None: of any length."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length)
        self.length = length  # SQLAlchemy compares types by this
        if length is None:
            self.impl = Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text in a form that any database accepts."""
        return None if value is None else encodable(value).replace("\0", "\\x00")


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Json = JSON(none_as_null=True)
# SQLite numbers rows by itself only where the key is INTEGER, and avoids numbers that were used
# before only with sqlite_autoincrement.
_Serial = BigInteger().with_variant(Integer, "sqlite")

jobs = Table(
    "jobs",
    metadata,
    # -- the request --
    Column("number", _Serial, primary_key=True, autoincrement=True),  # order of submission
    Column("job_id", AnyText(64), nullable=False, unique=True),
    Column("kind", AnyText(8), nullable=False),  # run | plan
    Column("owner", AnyText(128), nullable=False),
    Column("priority", Integer, nullable=False, default=0),  # higher runs first
    Column("description", AnyText(), nullable=False, default=""),
    Column("spec", _Json, nullable=False),  # canonical, with its seed
    Column("input_uri", AnyText(), nullable=False),
    Column("output_uri", AnyText(), nullable=False),
    Column("claims", _Json),  # [[bucket URI, template], ...]; null = known once the key map is read
    Column("file_uris", _Json),  # files that the spec names, with links resolved
    Column("schedule_id", AnyText(64)),
    Column("due_at", Double),  # of a schedule's run
    Column("after_commit", _Json),  # what a schedule requires after the commit: pointer, retention
    Column("hooks", _Json),  # {"on_success": {"webhook": ..., "command": ...}, "on_failure": ...}
    Column("idempotency_key", AnyText(255)),
    Column("body_digest", AnyText(64)),
    Column("created_at", Double, nullable=False),
    # -- progress --
    Column("state", AnyText(16), nullable=False),  # queued|running|finished|failed|stopped
    Column("stop_asked_at", Double),
    Column("stop_reason", AnyText()),
    Column("phase", AnyText(16)),
    Column("progress", _Json),
    Column("phases", _Json),  # [{phase, seconds, shards, records, bytes}, ...]
    Column("warning_count", Integer, nullable=False, default=0),
    Column("begun_at", Double),  # when it was taken from the queue: it runs since then
    Column("started_at", Double),
    Column("ended_at", Double),
    # -- the process that runs it --
    Column("attempt", Integer, nullable=False, default=0),  # of the service, not of the engine
    Column("deaths", Integer, nullable=False, default=0),  # attempts whose process died
    Column("host", AnyText(255)),  # machine and boot, as hosting/process.py names it
    Column("replica", AnyText(64)),
    Column("pid", Integer),
    Column("pid_started", Double),
    Column("heartbeat_at", Double),
    # -- the outcome --
    Column("result", _Json),  # JobReport
    Column("error", _Json),  # problem document
    Column("exit_code", Integer),
    UniqueConstraint("owner", "idempotency_key"),
    Index("ix_jobs_state_priority", "state", "priority", "number"),
    Index("ix_jobs_owner_number", "owner", "number"),
    Index("ix_jobs_schedule_number", "schedule_id", "number"),
    Index("ix_jobs_created_at", "created_at"),
    sqlite_autoincrement=True,
)

labels = Table(
    "labels",
    metadata,
    Column("job_id", ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True),
    Column("label", AnyText(63), primary_key=True),
    Index("ix_labels_label", "label"),
)

events = Table(
    "events",
    metadata,
    Column("number", _Serial, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("at", Double, nullable=False),
    Column("kind", AnyText(16), nullable=False),  # state|started|phase|progress|warning|log
    Column("data", _Json, nullable=False),
    Index("ix_events_job_number", "job_id", "number"),
    sqlite_autoincrement=True,
)

schedules = Table(
    "schedules",
    metadata,
    Column("schedule_id", AnyText(64), primary_key=True),
    Column("name", AnyText(128), nullable=False, unique=True),
    Column("owner", AnyText(128), nullable=False),
    Column("definition", _Json, nullable=False),  # ScheduleDefinition
    Column("input_uri", AnyText(), nullable=False),
    Column("output_uri", AnyText(), nullable=False),
    Column("paused", Boolean, nullable=False, default=False),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("next_due_at", Double),  # null = never again
    Column("run_count", Integer, nullable=False, default=0),  # the next run's {{epoch}}
    Index("ix_schedules_next_due_at", "next_due_at"),
)

schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("number", _Serial, primary_key=True, autoincrement=True),
    Column("schedule_id", ForeignKey("schedules.schedule_id", ondelete="CASCADE"), nullable=False),
    Column("due_at", Double, nullable=False),
    Column("by_hand", Boolean, nullable=False, default=False),
    Column("fired_at", Double, nullable=False),
    Column("outcome", AnyText(16), nullable=False),  # submitted | skipped | refused | waiting
    Column("reason", AnyText(), nullable=False, default=""),
    Column("job_id", AnyText(64)),
    Column("removed_at", Double),  # when retention removed its outputs
    UniqueConstraint("schedule_id", "due_at", "by_hand"),
    sqlite_autoincrement=True,
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", AnyText(32), primary_key=True),
    Column("name", AnyText(128), nullable=False, unique=True),
    Column("role", AnyText(16), nullable=False),  # viewer | submitter | admin
    Column("digest", LargeBinary, nullable=False),  # SHA-256 of the secret
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
)

token_buckets = Table(
    "token_buckets",
    metadata,
    Column("token_id", ForeignKey("tokens.token_id", ondelete="CASCADE"), primary_key=True),
    Column("side", AnyText(8), primary_key=True),  # input | output
    Column("place", Integer, primary_key=True),  # as the user ordered them
    Column("prefix", AnyText(512), nullable=False),
    Column("is_whole", Boolean, nullable=False),  # a URI, and not the beginning of URIs
)

audit = Table(
    "audit",
    metadata,
    Column("number", _Serial, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("who", AnyText(128), nullable=False),
    Column("address", AnyText(64), nullable=False),
    Column("action", AnyText(32), nullable=False),  # job.submit, job.stop, schedule.add, ...
    Column("target", AnyText(128), nullable=False),
    Column("details", _Json, nullable=False),
    Index("ix_audit_at", "at"),
    sqlite_autoincrement=True,
)

notices = Table(  # hooks that still have to be called
    "notices",
    metadata,
    Column("number", _Serial, primary_key=True, autoincrement=True),
    Column("job_id", AnyText(64)),  # null: of a schedule's run that became no job
    Column("hook", _Json, nullable=False),  # {"webhook": URL} or {"command": name}
    Column("document", _Json, nullable=False),
    Column("next_try_at", Double, nullable=False),
    Column("tries", Integer, nullable=False, default=0),
    Index("ix_notices_next_try_at", "next_try_at"),
    sqlite_autoincrement=True,
)

transforms = Table(  # one row for each version; versions never change
    "transforms",
    metadata,
    Column("number", _Serial, primary_key=True, autoincrement=True),
    Column("name", AnyText(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("digest", AnyText(64), nullable=False),
    Column("definition", _Json),  # as `transform` of a spec; null = it was removed
    Column("created_at", Double, nullable=False),
    Column("created_by", AnyText(128), nullable=False),
    Column("removed_at", Double),
    UniqueConstraint("name", "version"),
    sqlite_autoincrement=True,
)

turns = Table(
    "turns",
    metadata,
    Column("owner", AnyText(128), primary_key=True),
    Column("turn", BigInteger, nullable=False),
)
"""For each owner, the number of the owner's last start of a job, among all starts: the owner with
the lowest number is next."""

locks = Table("locks", metadata, Column("name", AnyText(32), primary_key=True))
"""Rows to lock for work that only one replica may do at a time: ``dispatch``."""
