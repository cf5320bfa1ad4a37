"""The queue: how dispatchers and job processes claim, update, end and take over jobs. Each function
is one short transaction, for the attempt that the caller names: the function has no effect
(``False``, ``None``, a :class:`Beat` that is not ``ours``) once another attempt has begun or the
job has ended. One replica at a time decides which job runs (``alone="dispatch"``)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from sqlalchemy import Connection, Row, Select, delete, select

from dsort.errors import JobConflictError
from dsort.naming.overlap import first_conflict
from dsort.service.database.engine import Database
from dsort.service.database.tables import Claims, JobRow, events, jobs, turns
from dsort.service.jobs.changes import Attempt, change
from dsort.service.jobs.rows import NewEvent
from dsort.service.jobs.states import EXIT_STOPPED, QUEUED, RUNNING
from dsort.service.jobs.store import fair_order, note_turn, one_job

ALONE = "dispatch"
CANDIDATES_AT_A_TIME = 100
NO_PROCESS: Final = {"host": None, "heartbeat_at": None}

_Row: TypeAlias = Row[*tuple[Any, ...]]


class Limits(Struct, frozen=True):
    """The most jobs that may run at once: jobs of one replica, plans of one replica, and jobs and
    plans of one owner on all replicas."""

    running_jobs_max: int
    running_plans_max: int
    running_per_owner_max: int | None = None


class Beat(Struct, frozen=True):
    """The answer to the heartbeat of a job process. ``ours``: the job still belongs to this
    process."""

    ours: bool
    stop_asked: bool = False
    reason: str = ""


class ProgressUpdate(Struct, frozen=True):
    """A report of a job process: events since the last report, and the current progress. ``None``
    leaves a column unchanged."""

    events: Sequence[NewEvent] = ()
    phase: str | None = None
    progress: Mapping[str, Any] | None = None
    phases: Sequence[Mapping[str, Any]] | None = None
    warning_count: int | None = None

    def values(self) -> dict[str, Any]:
        """The columns that the update changes."""
        names = ("phase", "progress", "phases", "warning_count")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class Ending(Struct, frozen=True):
    """The outcome of a job. ``error``: a problem document."""

    state: Literal["finished", "failed", "stopped"]
    exit_code: int
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    reason: str = ""


# -- claiming jobs --------------------------------------------------------------------------------


def claim_next(
    database: Database, *, host: str, replica: str, limits: Limits, now_s: float
) -> JobRow | None:
    """Begin the next attempt of the first job in the queue that may run now; None if no job may
    run.

    The highest priority comes first, and at equal priority owners take turns. A job is passed over
    if its owner already has as many running jobs as allowed, or if it would write names that a
    running job may write.
    """
    with database.reading() as connection:
        if _next(connection, replica, limits) is None:
            return None  # the usual case, found without blocking other replicas
    with database.writing(alone=ALONE) as connection:
        # A comparison of templates may take a second. Other replicas must not wait for it.
        found = _next(connection, replica, limits, at_once=True)
        if found is None:
            return None
        begins = change(
            connection,
            Attempt(found.job_id, found.attempt, QUEUED),
            "begun",
            {
                "attempt": found.attempt + 1,
                "started_at": found.started_at or now_s,
                "begun_at": now_s,
                **_held_by(host, replica, now_s),
            },
            now_s=now_s,
        )
        if not begins:
            return None  # the job was stopped at this moment
        note_turn(connection, found.owner)
        return one_job(connection, found.job_id)


def take_over(
    database: Database,
    job_id: str,
    attempt: int,
    *,
    host: str,
    replica: str,
    limits: Limits,
    now_s: float,
    reason: str,
    died: bool = True,
    log: Mapping[str, str] | None = None,
) -> JobRow | None:
    """Begin the next attempt of a job whose process is gone; None if another replica has begun the
    attempt, or this replica has no room for the job.

    ``died``: whether the end of the process counts as a death. ``log``: the end of the process's
    log, as the data of an event.
    """
    with database.writing(alone=ALONE) as connection:
        found = _held(connection, job_id, attempt)
        if found is None or not _room(connection, replica, limits, found):
            return None
        taken = change(
            connection,
            Attempt(job_id, attempt),
            "taken_over",
            {
                "attempt": attempt + 1,
                "deaths": found.deaths + died,
                **_held_by(host, replica, now_s),
            },
            now_s=now_s,
            events=[] if log is None else [(now_s, "log", log)],
            reason=reason,
        )
        return one_job(connection, job_id) if taken else None


def hand_over(
    database: Database,
    job_id: str,
    attempt: int,
    *,
    now_s: float,
    reason: str,
    has_begun: bool = True,
) -> bool:
    """Put a job back into the queue because its process had to leave it, or (not ``has_begun``)
    could not be started. The next process resumes the job, or cleans up if its stop was requested;
    a job that has not begun is stopped at once."""
    with database.writing() as connection:
        found, job = _held(connection, job_id, attempt), Attempt(job_id, attempt)
        if found is None:
            return False
        if has_begun or found.stop_asked_at is None:
            return change(connection, job, "put_back", NO_PROCESS, now_s=now_s, reason=reason)
        end = {**NO_PROCESS, "ended_at": now_s, "exit_code": EXIT_STOPPED}
        return change(connection, job, "stopped", end, now_s=now_s, reason=reason)


def claim_outputs(
    database: Database, job_id: str, attempt: int, claims: Sequence[Sequence[str]]
) -> bool:
    """Store the names that a running job will write, if only its key map has these names.
    ``JobConflictError`` if a running job may write one of them."""
    with database.reading() as connection:
        for other in _running(connection):
            # Fills the cache that the transaction below needs: a comparison may take a second, if
            # there are ten thousand templates or they are made to be hard.
            conflict_of(claims, other.claims)
    with database.writing(alone=ALONE) as connection:
        for other in _running(connection):
            if other.job_id != job_id and conflict_of(claims, other.claims):
                raise JobConflictError(
                    f"job {other.job_id} of {other.owner} runs and may write the same names",
                    hint="resume this job when the other has ended, or give it other names",
                )
        kept = {"claims": [list(claim) for claim in claims]}
        return change(connection, Attempt(job_id, attempt), "reported", kept)


def _next(
    connection: Connection, replica: str, limits: Limits, *, at_once: bool = False
) -> _Row | None:
    """The first queued job that may run. ``at_once``: only jobs whose conflicts are already
    computed; other jobs are passed over."""
    running = _running(connection)
    kinds = [kind for kind in ("run", "plan") if _has_room(running, replica, limits, kind)]
    if not kinds:
        return None
    query = _candidates(
        tuple(kinds),
        tuple(_full_owners(running, limits)),
        tuple(sorted(row.owner for row in running)),
    )
    held = [row.claims for row in running if row.kind == "run" and row.claims]
    for found in connection.execute(query):
        if found.kind == "plan" or not any(
            (at_once and not is_known(found.claims, other)) or conflict_of(found.claims, other)
            for other in held
        ):
            return found
    return None


@lru_cache(maxsize=64)
def _candidates(
    kinds: Sequence[str], full_owners: Sequence[str], running_owners: Sequence[str]
) -> Select[Any]:
    """The query for the queued jobs, in order. The query is cached, because each submission uses it
    again."""
    return (
        select(
            jobs.c.job_id,
            jobs.c.kind,
            jobs.c.owner,
            jobs.c.claims,
            jobs.c.attempt,
            jobs.c.started_at,
        )
        .select_from(jobs.outerjoin(turns, turns.c.owner == jobs.c.owner))
        .where(
            jobs.c.state == QUEUED,
            jobs.c.kind.in_(kinds),
            jobs.c.owner.not_in(full_owners),
        )
        .order_by(*fair_order(running_owners))
        # Usually the first row is taken: the other rows of a long queue are not read.
        .execution_options(yield_per=CANDIDATES_AT_A_TIME)
    )


_RUNNING: Final = select(
    jobs.c.job_id, jobs.c.kind, jobs.c.owner, jobs.c.replica, jobs.c.claims
).where(jobs.c.state == RUNNING)


def _running(connection: Connection) -> Sequence[_Row]:
    return connection.execute(_RUNNING).all()


def _has_room(running: Iterable[_Row], replica: str, limits: Limits, kind: str) -> bool:
    here: int = sum(row.kind == kind and row.replica == replica for row in running)
    most = limits.running_jobs_max if kind == "run" else limits.running_plans_max
    return here < most


def _full_owners(running: Iterable[_Row], limits: Limits) -> list[str]:
    most = limits.running_per_owner_max
    if most is None:
        return []
    return [
        owner for owner, count in Counter(row.owner for row in running).items() if count >= most
    ]


def _room(connection: Connection, replica: str, limits: Limits, wanted: _Row) -> bool:
    others = [row for row in _running(connection) if row.job_id != wanted.job_id]
    return _has_room(others, replica, limits, wanted.kind)


# -- reports of job processes ---------------------------------------------------------------------


def note_process(
    database: Database, job_id: str, attempt: int, *, pid: int, started: float
) -> bool:
    """Store the process of the attempt."""
    with database.writing() as connection:
        process = {"pid": pid, "pid_started": started}
        return change(connection, Attempt(job_id, attempt), "reported", process)


def record(
    database: Database, job_id: str, attempt: int, latest: ProgressUpdate, *, now_s: float
) -> Beat:
    """Store a report of the attempt, which also counts as a heartbeat."""
    with database.writing() as connection:
        is_ours = change(
            connection,
            Attempt(job_id, attempt),
            "reported",
            {"heartbeat_at": now_s, **latest.values()},
            events=latest.events,
        )
        if not is_ours:
            return Beat(ours=False)
        query = select(jobs.c.stop_asked_at, jobs.c.stop_reason).where(jobs.c.job_id == job_id)
        row = connection.execute(query).one()
        return Beat(True, row.stop_asked_at is not None, row.stop_reason or "")


def finish(
    database: Database,
    job_id: str,
    attempt: int,
    ending: Ending,
    *,
    now_s: float,
    latest: ProgressUpdate | None = None,
    deaths: int | None = None,
) -> bool:
    """End the job, and store its last report."""
    latest = latest or ProgressUpdate()
    values = {
        **latest.values(),
        "result": ending.result,
        "error": ending.error,
        "exit_code": ending.exit_code,
        "ended_at": now_s,
        "heartbeat_at": now_s,
    }
    if deaths is not None:
        values["deaths"] = deaths
    with database.writing() as connection:
        return change(
            connection,
            Attempt(job_id, attempt),
            ending.state,
            values,
            now_s=now_s,
            events=latest.events,
            reason=ending.reason,
        )


def thin_progress(database: Database, job_id: str, *, keep: int) -> None:
    """Remove progress events of a job, so that at most ``keep`` remain, evenly spread, with the
    last one."""
    query = (
        select(events.c.number, events.c.at)
        .where(events.c.job_id == job_id, events.c.kind == "progress")
        .order_by(events.c.number)
    )
    with database.writing() as connection:
        found = connection.execute(query).all()
        if len(found) <= keep:
            return
        first, span_s = found[0].at, max(found[-1].at - found[0].at, 1e-9)
        # Of two events in a slot, the later event stays. The last event of all stays, too.
        by_slot = {int((row.at - first) / span_s * (keep - 1)): row.number for row in found}
        kept = set(by_slot.values())
        surplus = [row.number for row in found if row.number not in kept]
        connection.execute(delete(events).where(events.c.number.in_(surplus)))


def _held(connection: Connection, job_id: str, attempt: int) -> _Row | None:
    """The running job of the attempt, locked against other changes until the transaction ends."""
    query = select(jobs.c.job_id, jobs.c.kind, jobs.c.deaths, jobs.c.stop_asked_at).where(
        jobs.c.job_id == job_id, jobs.c.attempt == attempt, jobs.c.state == RUNNING
    )
    return connection.execute(query.with_for_update()).one_or_none()


def _held_by(host: str, replica: str, now_s: float) -> dict[str, Any]:
    return {
        "host": host,
        "replica": replica,
        "pid": None,
        "pid_started": None,
        "heartbeat_at": now_s,
    }


KNOWN_MAX: Final = 20_000

_known: OrderedDict[tuple[bytes, bytes], str | None] = OrderedDict()
_lock = threading.Lock()


def conflict_of(ours: Claims | None, theirs: Claims | None) -> str | None:
    """The first template of ``ours`` that could make a name which a template of ``theirs`` could
    also make; None if there is no such template. Texts that are not templates cause no conflict
    here: the engine refuses them."""
    if not ours or not theirs:
        return None
    pair = _pair(ours, theirs)
    with _lock:
        if pair in _known:
            _known.move_to_end(pair)
            return _known[pair]
    found: str | None = None
    with contextlib.suppress(ValueError):
        conflict = first_conflict(ours, theirs)
        found = None if conflict is None else conflict[0][1]
    with _lock:
        _known[pair] = found
        while len(_known) > KNOWN_MAX:
            _known.popitem(last=False)
    return found


def is_known(ours: Claims | None, theirs: Claims | None) -> bool:
    """Whether the result of ``conflict_of`` is cached."""
    if not ours or not theirs:
        return True
    pair = _pair(ours, theirs)
    with _lock:
        return pair in _known


def _pair(ours: Claims, theirs: Claims) -> tuple[bytes, bytes]:
    return _digest(ours), _digest(theirs)


def _digest(claims: Claims) -> bytes:
    return hashlib.sha256(json.dumps(claims).encode()).digest()
