"""Jobs as the REST routes use them: submit, find, list, stop, remove; and their order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from dsort.errors import ConflictError, NotFoundError, TooManyRequestsError
from dsort.results.job_ids import new_job_id
from dsort.service.database.engine import Database
from dsort.service.database.tables import JobRow, events, jobs, labels, schedules, turns
from dsort.service.jobs.changes import change
from dsort.service.jobs.rows import EventRow, add_events
from dsort.service.jobs.states import ENDED, EXIT_STOPPED, QUEUED, RUNNING, Event, transition

OnInsert = Callable[[Connection, JobRow], None]
EVENTS_PAGE = 500
POSITIONS_MAX = 1000
QUEUE_FULL_RETRY_S = 30.0
TRIES_MAX = 10
_OF_AN_ATTEMPT = (
    *("stop_asked_at", "stop_reason", "phase", "progress", "ended_at", "error", "exit_code"),
    *("result", "pid", "pid_started", "heartbeat_at", "host"),
)
"""The columns that are empty until the job's next attempt."""
_LEFT_OUT: dict[str, Any] = {"spec": {}, "claims": None}
_SMALL = [column for column in jobs.c if column.name not in ("spec", "result", "claims")]

# Statements that each submission or each turn of the dispatcher executes. To make a statement takes
# two to four times as long as to execute it.
_INSERT = insert(jobs)
_LABELS_OF = (
    select(labels)
    .where(labels.c.job_id.in_(bindparam("ids", expanding=True)))
    .order_by(labels.c.label)
)
_RUNNING = select(*_SMALL).where(jobs.c.state == RUNNING)
_QUEUED_OF = select(func.count()).where(jobs.c.state == QUEUED, jobs.c.owner == bindparam("owner"))


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs to list. An empty field selects all jobs. A job has one of ``states``, and all of
    ``labels``. ``since``: the earliest submission, in seconds since 1970. ``visible``: a condition
    on ``tables.jobs`` that selects the jobs which may be shown."""

    states: Sequence[str] = ()
    kind: str | None = None
    owner: str | None = None
    labels: Sequence[str] = ()
    schedule: str | None = None
    text: str = ""
    since: float | None = None
    visible: ColumnElement[bool] | None = None


class JobPageOf(Struct, frozen=True):
    """Some jobs, newest first, without spec and result; ``next_number``: where the next page
    begins, None at the end."""

    rows: tuple[JobRow, ...]
    next_number: int | None


def insert_job(connection: Connection, new: JobRow, *, now_s: float) -> JobRow:
    """Put a job into the queue, as part of a transaction; returns its row."""
    row = replace(new, created_at=now_s, labels=tuple(sorted(set(new.labels))))
    key = connection.execute(_INSERT, row.values()).inserted_primary_key
    assert key is not None
    if row.labels:
        rows = [{"job_id": row.job_id, "label": label} for label in row.labels]
        connection.execute(insert(labels), rows)
    add_events(connection, row.job_id, [(now_s, "state", {"state": row.state, "attempt": 0})])
    return replace(row, number=key.number)


def job_rows(connection: Connection, query: Select[Any]) -> list[JobRow]:
    """The rows of a query on ``jobs``, with labels and the names of schedules. Columns that the
    query leaves out are empty."""
    result = connection.execute(query)
    columns, found = result.keys(), result.all()
    ids = [row.job_id for row in found]
    named: dict[str, list[str]] = {}
    if ids:
        for job_id, label in connection.execute(_LABELS_OF, {"ids": ids}):
            named.setdefault(job_id, []).append(label)
    wanted = {row.schedule_id for row in found if row.schedule_id}
    of_schedules: dict[str, str] = {}
    if wanted:
        asked = select(schedules.c.schedule_id, schedules.c.name).where(
            schedules.c.schedule_id.in_(wanted)
        )
        of_schedules = {row.schedule_id: row.name for row in connection.execute(asked)}
    return [
        JobRow(
            **_LEFT_OUT | dict(zip(columns, row, strict=True)),
            labels=tuple(named.get(row.job_id, ())),
            schedule_name=of_schedules.get(row.schedule_id),
        )
        for row in found
    ]


class JobStore:
    """The jobs of a service. Every method is a transaction of its own."""

    def __init__(
        self,
        database: Database,
        *,
        max_queued_per_owner: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._max_queued = max_queued_per_owner
        self._clock = clock

    def submit(
        self,
        new: JobRow,
        *,
        before: Callable[[Connection], None] | None = None,
        on_insert: OnInsert | None = None,
    ) -> tuple[JobRow, bool]:
        """Put a job into the queue: (the job's row, whether the job is new). If a job was made with
        the idempotency key before, the result is this job and False; ``ConflictError`` if the
        earlier request was another one.

        ``before`` raises an error if the job must be refused. ``before`` runs outside of the
        transaction, because it may take long. ``on_insert`` runs inside, and writes further rows of
        the job. ``TooManyRequestsError`` if the owner already has as many jobs in the queue as
        allowed.
        """
        for left in reversed(range(TRIES_MAX)):
            known = self._known(new)
            if known is not None:
                return known, False
            if before is not None:
                with self._database.reading() as connection:
                    before(connection)
            try:
                with self._database.writing() as connection:
                    self._refuse_many(connection, new.owner)
                    if on_insert is not None:
                        on_insert(connection, new)
                    return insert_job(connection, new, now_s=self._clock()), True
            except IntegrityError:
                # Two requests used the same key at the same moment, or an id was drawn twice in one
                # second.
                if not left:
                    raise
                new = replace(new, job_id=new_job_id())
        raise AssertionError("the last try returns or raises")

    def _rows(self, query: Select[Any]) -> list[JobRow]:
        with self._database.reading() as connection:
            return job_rows(connection, query)

    def _known(self, new: JobRow) -> JobRow | None:
        if new.idempotency_key is None:
            return None
        query = select(jobs).where(
            jobs.c.owner == new.owner, jobs.c.idempotency_key == new.idempotency_key
        )
        found = self._rows(query)
        if found and found[0].body_digest != new.body_digest:
            raise ConflictError(
                f"the Idempotency-Key was used for another request, which made job "
                f"{found[0].job_id}",
                hint="take a new key for each job",
            )
        return found[0] if found else None

    def _refuse_many(self, connection: Connection, owner: str) -> None:
        if self._max_queued is None:
            return
        if self._database.dialect == "postgresql":
            # Other transactions of the owner wait here until this transaction has ended, so they
            # count its job, too. Under SQLite all writing transactions exclude each other.
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(owner))))
        if connection.execute(_QUEUED_OF, {"owner": owner}).scalar_one() >= self._max_queued:
            raise TooManyRequestsError(
                f"{owner} has {self._max_queued} jobs in the queue, as many as anyone may have",
                retry_after_s=QUEUE_FULL_RETRY_S,
                hint="wait until some have begun, or stop them; the service's operator sets the "
                "limit: --max-queued-per-owner",
            )

    def get(self, job_id: str) -> JobRow | None:
        """The job, with all its columns."""
        found = self._rows(select(jobs).where(jobs.c.job_id == job_id))
        return found[0] if found else None

    def list(self, wanted: JobFilter, *, limit: int = 50, before: int | None = None) -> JobPageOf:
        """The newest jobs that fit, at most ``limit``, with numbers below ``before``."""
        # One job more than ``limit`` shows that there is a next page.
        query = select(*_SMALL).order_by(jobs.c.number.desc()).limit(limit + 1)
        for condition in _conditions(wanted):
            query = query.where(condition)
        if before is not None:
            query = query.where(jobs.c.number < before)
        found = self._rows(query)
        more = len(found) > limit
        return JobPageOf(tuple(found[:limit]), found[limit - 1].number if more else None)

    def position(self, row: JobRow) -> int | None:
        """The place of one job in the queue, from 1; None if the job is not in the queue, or is far
        behind. Each submission needs the place, so this method only counts rows; a list numbers the
        whole queue."""
        if row.state != QUEUED:
            return None
        running, higher, lines = Counter[str](), 0, []
        for each in self._database.rows(_GROUPS, {"number": row.number}):
            if each.state == RUNNING:
                running[each.owner] += each.length
            elif each.priority > row.priority:
                higher += each.length
            elif each.priority == row.priority:
                lines.append(each)
        turn_of = {each.owner: (running[each.owner], each.turn, each.first) for each in lines}
        nth = next((each.nth for each in lines if each.owner == row.owner), None)
        if nth is None:  # the job has begun meanwhile
            return None
        own = turn_of[row.owner]
        ahead = (min(each.length, nth - (turn_of[each.owner] > own)) for each in lines)
        place: int = higher + sum(ahead)
        return place if place <= POSITIONS_MAX else None

    def positions(self, numbers: Iterable[int]) -> dict[int, int]:
        """The places in the queue, from 1, of the jobs among the first thousand. Jobs start in this
        order if all take equally long."""
        wanted = set(numbers)
        if not wanted:
            return {}
        running = select(jobs.c.owner).where(jobs.c.state == RUNNING)
        with self._database.reading() as connection:
            places = queue_places(connection.execute(running).scalars()).subquery()
            query = select(places).where(places.c.place <= POSITIONS_MAX)
            found = connection.execute(query)
            return {row.number: row.place for row in found if row.number in wanted}

    def count_by_state(self) -> dict[str, int]:
        """The number of jobs in each state."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        return {row.state: row[1] for row in self._database.rows(query)}

    def running(self) -> Sequence[JobRow]:
        """All running jobs, on all replicas."""
        return self._rows(_RUNNING)

    def events_after(
        self, number: int, *, job_id: str | None = None, limit: int = EVENTS_PAGE
    ) -> Sequence[EventRow]:
        """The events, of one job or of all, after event ``number``, oldest first."""
        query = select(events).where(events.c.number > number).order_by(events.c.number)
        if job_id is not None:
            query = query.where(events.c.job_id == job_id)
        return [EventRow(*each) for each in self._database.rows(query.limit(limit))]

    def last_event(self) -> int:
        """The number of the newest event; 0 if there is none."""
        ((number,),) = self._database.rows(select(func.max(events.c.number)))
        return number or 0

    def ask_stop(self, job_id: str, reason: str = "", *, as_failure: bool = False) -> JobRow:
        """Stop a queued job at once. Request the stop of a running job, and of a job that was put
        back with work in its bucket: its next process cleans up. An ended job stays unchanged.
        ``as_failure``: the stop counts as a failure, so the job's ``on_failure`` is called.
        ``NotFoundError``."""
        with self._database.writing() as connection:
            row, now_s = _locked(connection, job_id), self._clock()
            asked: dict[str, Any] = {
                "stop_asked_at": row.stop_asked_at or now_s,
                "stop_reason": reason,
            }
            event: Event = "stop_asked"
            if row.ended or row.stopping:
                return row
            if row.state == QUEUED and row.kind == "run" and row.phase is not None:
                event = "discard_asked"
            elif row.state == QUEUED:
                asked |= {"ended_at": now_s, "exit_code": EXIT_STOPPED}
            else:
                hooks = spec_hooks(row.hooks)
                if as_failure and "on_failure" in hooks:
                    hooks["on_stop"] = hooks["on_failure"]
                asked["hooks"] = hooks or None
            change(connection, row, event, asked, now_s=now_s, reason=reason)
            return one_job(connection, job_id)

    def requeue(self, job_id: str) -> JobRow:
        """Put a failed or stopped job into the queue again, to be resumed from its finished work.
        ``ConflictError`` in any other state; ``TooManyRequestsError`` as for ``submit``."""
        with self._database.writing() as connection:
            row = _locked(connection, job_id)
            transition(row, "resumed")  # raises ``ConflictError`` even if the queue is full
            self._refuse_many(connection, row.owner)
            anew = {
                **dict.fromkeys(_OF_AN_ATTEMPT),
                "deaths": 0,
                "hooks": spec_hooks(row.hooks) or None,
            }
            change(connection, row, "resumed", anew, now_s=self._clock())
            return one_job(connection, job_id)

    def remove(self, job_id: str) -> None:
        """Remove a job that has ended; its outputs stay. ``NotFoundError``, ``ConflictError``."""
        with self._database.writing() as connection:
            # SQLite's and PostgreSQL's cascades remove its events and labels.
            ended = delete(jobs).where(jobs.c.job_id == job_id, jobs.c.state.in_(ENDED))
            if not connection.execute(ended).rowcount:
                row = one_job(connection, job_id)
                raise ConflictError(
                    f"job {job_id} is {row.state}", hint="stop it first, or wait until it has ended"
                )


def spec_hooks(hooks: Mapping[str, Any] | None) -> dict[str, Any]:
    """The hooks of the spec, without the hook that a limit added (see ``JobStore.ask_stop``)."""
    return {name: hook for name, hook in (hooks or {}).items() if name != "on_stop"}


def _locked(connection: Connection, job_id: str) -> JobRow:
    """The job, locked against other changes until the transaction ends."""
    connection.execute(select(jobs.c.number).where(jobs.c.job_id == job_id).with_for_update())
    return one_job(connection, job_id)


def one_job(connection: Connection, job_id: str) -> JobRow:
    """The job, with all its columns. ``NotFoundError``."""
    found = job_rows(connection, select(jobs).where(jobs.c.job_id == job_id))
    if not found:
        raise NotFoundError(f"there is no job {job_id}")
    return found[0]


def _conditions(wanted: JobFilter) -> Iterable[ColumnElement[bool]]:
    if wanted.states:
        yield jobs.c.state.in_(wanted.states)
    if wanted.kind is not None:
        yield jobs.c.kind == wanted.kind
    if wanted.owner is not None:
        yield jobs.c.owner == wanted.owner
    if wanted.since is not None:
        yield jobs.c.created_at >= wanted.since
    if wanted.schedule is not None:
        yield jobs.c.schedule_id.in_(
            select(schedules.c.schedule_id).where(schedules.c.name == wanted.schedule)
        )
    for label in wanted.labels:
        yield jobs.c.job_id.in_(select(labels.c.job_id).where(labels.c.label == label))
    if wanted.text:
        yield or_(
            jobs.c.job_id.startswith(wanted.text, autoescape=True),
            func.lower(jobs.c.description).contains(wanted.text.lower(), autoescape=True),
        )
    if wanted.visible is not None:
        yield wanted.visible


# -- turns ----------------------------------------------------------------------------------------

# The highest priority comes first; at equal priority the owner with the fewest running jobs, then
# the owner whose last start is the longest ago, then the job that was submitted first. So if one
# owner puts a thousand jobs into the queue, other owners wait for at most one of these jobs at a
# time. Turns are numbers, not times: clocks of replicas differ.


def fair_order(running_owners: Iterable[str]) -> Sequence[ColumnElement[int]]:
    """The sort keys of queued jobs; ``running_owners`` has the owner of each running job. For a
    query with :func:`~sqlalchemy.outerjoin` to ``turns``."""
    return (jobs.c.priority.desc(), _running(running_owners), _last_turn(), jobs.c.number)


def note_turn(connection: Connection, owner: str) -> None:
    """Record that a job of ``owner`` has begun. No other caller may decide at the same time which
    jobs begin."""
    turn = select(func.coalesce(func.max(turns.c.turn), 0) + 1).scalar_subquery()
    changed = connection.execute(update(turns).where(turns.c.owner == owner).values(turn=turn))
    if not changed.rowcount:
        connection.execute(insert(turns).values(owner=owner, turn=turn))


def queue_places(running_owners: Iterable[str]) -> Select[tuple[int, int]]:
    """The query for (number, place from 1) of all queued jobs. Jobs start in this order if all take
    equally long."""
    own = (jobs.c.priority, jobs.c.owner)
    nth = func.row_number().over(partition_by=own, order_by=jobs.c.number)
    first = func.min(jobs.c.number).over(partition_by=own)  # of owners who have had no turn
    queued = (
        select(
            jobs.c.number,
            jobs.c.priority,
            nth.label("nth"),
            _running(running_owners).label("running"),
            _last_turn().label("turn"),
            first.label("first"),
        )
        .select_from(jobs.outerjoin(turns, turns.c.owner == jobs.c.owner))
        .where(jobs.c.state == "queued")
        .subquery()
    )
    order = (
        queued.c.priority.desc(),
        queued.c.nth,
        queued.c.running,
        queued.c.turn,
        queued.c.first,
    )
    return select(queued.c.number, func.row_number().over(order_by=order).label("place"))


def _groups() -> Select[Any]:
    """For each state, priority and owner of queued and running jobs: the number of jobs, the first
    job, the number of jobs up to the job ``number``, and the owner's last turn. The index
    ``ix_jobs_queue`` has all of these columns."""
    own = (jobs.c.state, jobs.c.priority, jobs.c.owner)
    not_later = case((jobs.c.number <= bindparam("number"), 1), else_=0)
    counts = (
        func.count().label("length"),
        func.min(jobs.c.number).label("first"),
        func.sum(not_later).label("nth"),
    )
    waiting = select(*own, *counts).where(jobs.c.state.in_((QUEUED, RUNNING))).group_by(*own)
    found = waiting.subquery()
    joined = found.outerjoin(turns, turns.c.owner == found.c.owner)
    return select(found, _last_turn().label("turn")).select_from(joined)


def _running(running_owners: Iterable[str]) -> ColumnElement[int]:
    counts = Counter(running_owners)
    if not counts:
        return literal(0)
    return case(dict(counts), value=jobs.c.owner, else_=0)


def _last_turn() -> ColumnElement[int]:
    return func.coalesce(turns.c.turn, 0)


_GROUPS = _groups()  # made once, because each submission uses the query
