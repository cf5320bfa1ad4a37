"""The tables. Times are seconds since 1970 (UTC, float); JSON values are documents that dsort
defines.

One rule holds for all tables: a change of a running job's row names the attempt that makes it. So a
process that was given up cannot change the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

from msgspec import Struct
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
from dsort.service.jobs.states import ENDED, QUEUED
from dsort.storage.registry import parse_address


class AnyText(TypeDecorator[str]):
    """A column of text of at most ``length`` characters; None: of any length.

    Any text can be stored. Otherwise the end of a job could fail to be stored, because an error may
    hold a file name that is not UTF-8, or a NUL, which PostgreSQL refuses. Both are stored as
    escapes. Requests with such text are refused earlier."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length)
        self.length = length  # SQLAlchemy compares types by this field
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

Json: TypeAlias = Mapping[str, Any]
Claims: TypeAlias = Sequence[Sequence[str]]

_Json = JSON(none_as_null=True)  # through the serializer that ``engine.py`` gives to SQLAlchemy
# SQLite numbers rows only if the key is INTEGER, and uses no number twice only with
# sqlite_autoincrement.
_Serial = BigInteger().with_variant(Integer, "sqlite")


class JobRow(Struct, frozen=True, kw_only=True):
    """A job: a row of ``jobs``, from before it is in the queue to its end. The fields with a
    column are the columns of the table, in this order; the others come from other tables."""

    # -- the request --
    number: Annotated[int, Column(_Serial, primary_key=True, autoincrement=True)] = 0
    """The order of submission."""
    job_id: Annotated[str, Column(AnyText(64), unique=True)]
    kind: Annotated[str, Column(AnyText(8))]  # run | plan
    owner: Annotated[str, Column(AnyText(128))]
    priority: Annotated[int, Column(Integer)] = 0  # higher runs first
    description: Annotated[str, Column(AnyText())] = ""
    spec: Annotated[Json, Column(_Json)]  # canonical, checked, with its seed
    input_uri: Annotated[str, Column(AnyText())]  # as ``joined_uris`` joins them
    output_uri: Annotated[str, Column(AnyText())]
    claims: Annotated[Claims | None, Column(_Json)]
    """The names that the job writes: [[bucket URI, template], ...], as in ``naming.overlap``; None
    if the names are known only when the key map is read."""
    file_uris: Annotated[Sequence[str] | None, Column(_Json)] = ()
    """Files of this machine that the spec names, with links resolved; None: any allowed file."""
    schedule_id: Annotated[str | None, Column(AnyText(64))] = None
    due_at: Annotated[float | None, Column(Double)] = None  # of a schedule's run
    after_commit: Annotated[Json | None, Column(_Json)] = None
    """What a schedule requires after the commit: pointer, retention."""
    hooks: Annotated[Json | None, Column(_Json)] = None  # as in dsort.results.hooks.hooks_of
    idempotency_key: Annotated[str | None, Column(AnyText(255))] = None
    body_digest: Annotated[str | None, Column(AnyText(64))] = None
    created_at: Annotated[float, Column(Double)] = 0.0
    # -- progress --
    state: Annotated[str, Column(AnyText(16))] = QUEUED
    stop_asked_at: Annotated[float | None, Column(Double)] = None
    stop_reason: Annotated[str | None, Column(AnyText())] = None
    phase: Annotated[str | None, Column(AnyText(16))] = None
    progress: Annotated[Json | None, Column(_Json)] = None
    phases: Annotated[Sequence[Json] | None, Column(_Json)] = None
    """[{phase, seconds, shards, records, bytes}, ...]"""
    warning_count: Annotated[int, Column(Integer)] = 0
    begun_at: Annotated[float | None, Column(Double)] = None
    """When the job left the queue and began to run."""
    started_at: Annotated[float | None, Column(Double)] = None
    ended_at: Annotated[float | None, Column(Double)] = None
    # -- the process that runs it --
    attempt: Annotated[int, Column(Integer)] = 0  # of the service, not of the engine
    deaths: Annotated[int, Column(Integer)] = 0  # attempts whose process died
    host: Annotated[str | None, Column(AnyText(255))] = None
    """Machine and boot, as hosting/process.py names it."""
    replica: Annotated[str | None, Column(AnyText(64))] = None
    pid: Annotated[int | None, Column(Integer)] = None
    pid_started: Annotated[float | None, Column(Double)] = None
    heartbeat_at: Annotated[float | None, Column(Double)] = None
    # -- the outcome --
    result: Annotated[Json | None, Column(_Json)] = None  # JobReport
    error: Annotated[Json | None, Column(_Json)] = None  # problem document
    exit_code: Annotated[int | None, Column(Integer)] = None
    # -- from other tables --
    labels: tuple[str, ...] = ()
    schedule_name: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the job has ended; its state then changes only on request."""
        return self.state in ENDED

    @property
    def stopping(self) -> bool:
        """Whether the job has not ended, and a stop was requested."""
        return not self.ended and self.stop_asked_at is not None

    def values(self) -> dict[str, Any]:
        """The columns of a new row, without the number, which the table sets."""
        return {name: getattr(self, name) for name in jobs.c.keys() if name != "number"}  # noqa: SIM118


def _columns_of(row: type[Struct]) -> Iterator[Column[Any]]:
    """The columns of a row's fields. SQLAlchemy's mapped classes do the same, but cannot be frozen,
    and their import takes a tenth of the start of every job process."""
    for name, hint in get_type_hints(row, include_extras=True).items():
        for column in getattr(hint, "__metadata__", ()):
            column.name = column.key = name
            column.nullable = NoneType in get_args(hint.__origin__)
            yield column


jobs = Table(
    "jobs",
    metadata,
    *_columns_of(JobRow),
    UniqueConstraint("owner", "idempotency_key"),
    # All columns that the counting of places in the queue needs, so that it reads no long rows.
    Index("ix_jobs_queue", "state", "priority", "owner", "number", "kind"),
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
    Column("definition", _Json),  # as `transform` of a spec; null = the version was removed
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


# -- several buckets in one text of a row: canonical URIs, one in each line ------------------------

LINE_END = "\n"


def joined_uris(uris: Sequence[str]) -> str:
    """All of ``uris``, without duplicates. Line ends are encoded; with several URIs, so are all
    characters that cannot be printed."""
    return LINE_END.join(dict.fromkeys(_line(uri, alone=len(uris) == 1) for uri in uris))


def split_uris(text: str) -> list[str]:
    """The URIs in a text that ``joined_uris`` made."""
    return text.split(LINE_END)


def paths_of(uris: Iterable[str]) -> list[str]:
    """The paths of the URIs of directories and files; other URIs are left out."""
    return [parse_address(uri).path for uri in uris if uri.startswith("file://")]


def main_uri(text: str) -> str:
    """The first URI: for outputs, the bucket that has lease, journal and manifest."""
    return split_uris(text)[0]


def shown_uris(text: str) -> str:
    """The URIs side by side, for people to read."""
    return text.replace(LINE_END, ", ")


def _line(uri: str, *, alone: bool) -> str:
    if alone:
        return uri.replace(LINE_END, "%0A")
    return "".join(each if each.isprintable() else f"%{ord(each):02X}" for each in uri)
