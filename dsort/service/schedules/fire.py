"""Firing: submit the job of a due time exactly once, with any number of replicas, even if some die.

Firing is one transaction, which moves the schedule's row to its next due time: one of several
replicas wins. The other changes (the run's row, the job in the queue, the count of jobs) are
committed with this move, or not at all. The job is made before the transaction."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, insert, select, update

from dsort.errors import ConflictError, DsortError, NotFoundError
from dsort.log_lines import logger_of
from dsort.results.hooks import TEXT_CHARS_MAX
from dsort.service.database.tables import JobRow, jobs, schedule_runs, schedules, shown_uris
from dsort.service.jobs.changes import add_notices
from dsort.service.jobs.store import JobStore, insert_job
from dsort.service.jobs.submit import refuse_overlap
from dsort.service.schedules.definition import (
    REFUSED,
    SKIPPED,
    SUBMITTED,
    WAITING,
    RunRow,
    ScheduleRow,
    run_row,
    schedule_row,
)
from dsort.service.schedules.due import missed, next_due, run_id_of
from dsort.service.schedules.store import ScheduleStore
from dsort.service.threads import TurnThread

LATE_S_MAX: Final = 60.0
"""A job made within this time after its due time is on time. ``catch_up`` applies to older due
times."""
REASON_MAX: Final = 2000
_TRIES_MAX = 10
_STEPS_MAX: Final = 1000
LOOK_S: Final = 3.0

log = logger_of("service")


class Turn(Struct, frozen=True):
    """The step to take for a schedule that is due: make the job of ``due_s`` (None: make no job),
    then set the next due time ``next_due_at``. ``passed``: why due times before ``due_s`` are left
    out; "" if none is left out."""

    due_s: float | None
    next_due_at: float | None
    passed: str = ""


def turn_of(row: ScheduleRow, now_s: float) -> Turn:
    """The step to take for a schedule whose ``next_due_at`` has come."""
    assert row.next_due_at is not None
    found = missed(
        row.definition, anchor_s=row.created_at, after_s=row.next_due_at - 1, now_s=now_s
    )
    after = next_due(row.definition, anchor_s=row.created_at, after_s=now_s)
    due_s, passed, catch_up = found.newest_s, found.earlier, row.definition.catch_up
    if due_s is None:  # the schedule is not due (any more)
        return Turn(None, after)
    if catch_up == "none" and now_s - due_s > LATE_S_MAX:
        due_s, passed = None, passed + 1
    reason = ""
    if passed:
        least = "at least " if found.at_least else ""
        what = "1 due time was" if passed == 1 else f"{least}{passed} due times were"
        reason = f"{what} missed, from {run_id_of(row.next_due_at)} on; catch_up is {catch_up}"
    return Turn(due_s, after, reason)


class ScheduleKeeper(TurnThread):
    """Makes the jobs of schedules, on request, and in its thread when they are due.
    ``on_submitted`` is called when jobs were put into the queue. When the keeper is closed, another
    replica makes the jobs that are due, or a later keeper makes them.

    All state is in the database. The keeper reads it every few seconds, because another replica may
    have changed a schedule, or a job for which a run waits may have ended. (Scheduler libraries
    assume a single process, and record only after the fact that a time was due.)
    """

    def __init__(
        self,
        store: ScheduleStore,
        *,
        on_submitted: Callable[[], object] = lambda: None,
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__("dsort-schedules", look_s)
        self._store = store
        self._database = store.database
        self._jobs = JobStore(store.database)
        self._on_submitted = on_submitted
        store.on_change = self.wake

    def due(self) -> tuple[Sequence[str], float | None]:
        """(ids of the schedules that are due, time when the next other schedule will be due)."""
        table, now_s = schedules, self._store.now_s()
        query = (
            select(table.c.schedule_id, table.c.next_due_at)
            .where(table.c.paused.is_(False), table.c.next_due_at.is_not(None))
            .order_by(table.c.next_due_at)
        )
        later = query.where(table.c.next_due_at > now_s).limit(1)
        with self._database.reading() as connection:
            found = connection.execute(query.where(table.c.next_due_at <= now_s))
            ids = [each.schedule_id for each in found]
            first = connection.execute(later).first()
        return ids, None if first is None else first.next_due_at

    def waiting(self) -> Sequence[str]:
        """The schedules with a run that waits for the end of the job that it replaces."""
        query = select(schedule_runs.c.schedule_id).where(schedule_runs.c.outcome == WAITING)
        return [each.schedule_id for each in self._database.rows(query.distinct())]

    def fire(self, schedule_id: str) -> bool:
        """Take the next step of a schedule that is due. True if the schedule has changed meanwhile,
        so that the caller has to try again."""
        row, now_s = self._row(schedule_id), self._store.now_s()
        if row is None or row.paused or row.next_due_at is None or row.next_due_at > now_s:
            return False
        turn = turn_of(row, now_s)
        made = None if turn.due_s is None else self._make(row, turn.due_s)
        stop: Sequence[str] = ()
        with self._database.writing() as connection:
            if not _claim(connection, row, next_due_at=turn.next_due_at):
                return True
            if turn.passed and not _is_noted(connection, row, row.next_due_at):
                _add_run(connection, row, row.next_due_at, now_s, SKIPPED, turn.passed)
            # The due time may have a run already, if a replica whose clock is behind changed the
            # definition.
            noted = turn.due_s is not None and _is_noted(connection, row, turn.due_s)
            if turn.due_s is not None and made is not None and not noted:
                stop = self._settle(connection, row, turn.due_s, made, now_s, by_hand=False)
        outcome = turn.passed or "no job is due" if turn.due_s is None else "a job is made"
        log.debug("schedule %s: %s", row.name, outcome)
        self._stop(stop, row)
        return False

    def run_now(self, asked: ScheduleRow) -> RunRow:
        """Make a job of a schedule now, at any time, even if the schedule is paused. ``overlap``
        applies: with ``skip``, ``ConflictError`` if an earlier job has not ended. ``NotFoundError``
        if the schedule does not exist. Also raises the error of a job that cannot be made."""
        for _ in range(_TRIES_MAX):
            row, now_s = self._row(asked.schedule_id), self._store.now_s()
            if row is None:
                break
            due_s = self._free_moment(row, now_s)
            made = self._make(row, due_s)
            with self._database.writing() as connection:
                if not _claim(connection, row, next_due_at=row.next_due_at):
                    continue
                busy = _unfinished(connection, row.schedule_id)
                if busy and row.definition.overlap == "skip":
                    raise ConflictError(
                        f"job {busy[0]} of schedule {row.name} has not ended, and its overlap is "
                        "skip",
                        hint="wait for it, or stop it",
                    )
                if isinstance(made, DsortError):
                    raise made
                stop = self._settle(connection, row, due_s, made, now_s, by_hand=True)
                query = select(schedule_runs).where(_of_due(row, due_s, by_hand=True))
                run = run_row(connection.execute(query).one())
                if run.outcome == REFUSED:
                    raise ConflictError(run.reason)
            self._stop(stop, row)
            self._on_submitted()
            return run
        raise NotFoundError("there is no such schedule (any more)")

    def start_waiting(self, schedule_id: str) -> bool:
        """Make the job of the waiting run, unless another job still blocks the run. Return whether
        the job was made."""
        row, now_s = self._row(schedule_id), self._store.now_s()
        if row is None or row.paused:
            return False
        with self._database.reading() as connection:
            # In this order: under PostgreSQL each query reads the rows that are committed when the
            # query begins, and a job that another replica has just made for the run must not be
            # taken for an earlier job.
            busy = _unfinished(connection, schedule_id)
            run = _waiting(connection, schedule_id)
        if run is None:
            return False
        if busy:
            if row.definition.overlap == "replace":
                self._stop(busy, row)
            return False
        made = self._make(row, run.due_at)
        with self._database.writing() as connection:
            if not _claim(connection, row, next_due_at=row.next_due_at):
                return False
            if _waiting(connection, schedule_id) != run or _unfinished(connection, schedule_id):
                return False
            outcome, reason, job_id = self._take_in(connection, row, made, now_s)
            connection.execute(
                update(schedule_runs)
                .where(schedule_runs.c.number == run.number)
                .values(outcome=outcome, reason=reason, job_id=job_id, fired_at=now_s)
            )
        return True

    def _row(self, schedule_id: str) -> ScheduleRow | None:
        """The row of a schedule. ``ConflictError`` if its definition cannot be read."""
        query = select(schedules).where(schedules.c.schedule_id == schedule_id)
        found = self._database.rows(query)
        if not found:
            return None
        row = schedule_row(found[0])
        row.check_readable()
        return row

    def _make(self, row: ScheduleRow, due_s: float) -> JobRow | DsortError:
        try:
            made = self._store.maker.make(row, due_s)
        except DsortError as error:
            return error
        with self._database.reading() as connection, contextlib.suppress(ConflictError):
            # The transaction checks this again, and finds the comparisons of templates in a cache.
            refuse_overlap(connection, made)
        return made

    def _free_moment(self, row: ScheduleRow, now_s: float) -> float:
        """The first whole second, from now on, that is no due time and belongs to no other run. The
        id of the run is made from this second."""
        table, moment_s = schedule_runs, float(math.floor(now_s))
        query = select(table.c.due_at).where(
            table.c.schedule_id == row.schedule_id, table.c.due_at >= moment_s
        )
        taken = {each.due_at for each in self._database.rows(query)}
        anchor_s = row.created_at
        while moment_s in taken or moment_s == next_due(
            row.definition, anchor_s=anchor_s, after_s=moment_s - 1
        ):
            moment_s += 1
        return moment_s

    def _settle(
        self,
        connection: Connection,
        row: ScheduleRow,
        due_s: float,
        made: JobRow | DsortError,
        now_s: float,
        *,
        by_hand: bool,
    ) -> Sequence[str]:
        """Store the outcome of a due time, with its job. Returns the jobs to stop afterwards."""
        busy = _unfinished(connection, row.schedule_id)
        # A run whose job cannot be made is refused, whatever else runs, and stops no earlier job.
        cannot_be = isinstance(made, DsortError)
        replaces = row.definition.overlap == "replace" and not cannot_be
        blocking = f"job {busy[0]}" if busy else ""
        job_id = None
        if replaces:
            instead = f"the run of {run_id_of(due_s)} came in its place: overlap is replace"
            given_up = update(schedule_runs).where(_waiting_of(row.schedule_id))
            connection.execute(given_up.values(outcome=SKIPPED, reason=instead))
        elif not busy and _waiting(connection, row.schedule_id) is not None:
            blocking = "a run that waits"  # since overlap was replace
        if cannot_be or not blocking:
            outcome, reason, job_id = self._take_in(connection, row, made, now_s)
        elif replaces:
            outcome, reason = WAITING, f"for {blocking} to end"
        else:
            outcome, reason = SKIPPED, f"{blocking} has not ended: overlap is skip"
        _add_run(connection, row, due_s, now_s, outcome, reason, job_id=job_id, by_hand=by_hand)
        return busy if replaces else ()

    def _take_in(
        self, connection: Connection, row: ScheduleRow, made: JobRow | DsortError, now_s: float
    ) -> tuple[str, str, str | None]:
        """Put a job into the queue; return (outcome, reason, job id). A job that the queue refuses
        is not counted."""
        if not isinstance(made, DsortError):
            try:
                refuse_overlap(connection, made)
            except ConflictError as error:
                made = error
        if isinstance(made, DsortError):
            _tell_of_refusal(connection, row, str(made)[:REASON_MAX], now_s)
            return REFUSED, str(made)[:REASON_MAX], None
        insert_job(connection, made, now_s=now_s)
        connection.execute(
            update(schedules)
            .where(schedules.c.schedule_id == row.schedule_id)
            .values(run_count=row.run_count + 1)
        )
        return SUBMITTED, "", made.job_id

    def _stop(self, job_ids: Sequence[str], row: ScheduleRow) -> None:
        for job_id in job_ids:
            with contextlib.suppress(NotFoundError):  # the job was removed meanwhile
                self._jobs.ask_stop(job_id, f"schedule {row.name} is due again: overlap is replace")

    def _turn(self) -> float:
        due, next_due_at = self.due()
        failed = False
        for schedule_id in due:
            failed |= not self._all_of(self.fire, schedule_id)
        waiting = self.waiting()
        for schedule_id in waiting:
            failed |= not self._all_of(self.start_waiting, schedule_id)
        if due or waiting:
            self._on_submitted()
            due, next_due_at = self.due()
        if failed:
            return self._look_s
        if due:
            return 0.0
        left_s = self._look_s if next_due_at is None else next_due_at - self._store.now_s()
        return min(max(left_s, 0.0), self._look_s)

    def _all_of(self, step: Callable[[str], bool], schedule_id: str) -> bool:
        """Repeat a step until nothing is left to do. False if a step failed. The error is only
        logged, because it must not affect other schedules."""
        try:
            for _ in range(_STEPS_MAX):
                if not step(schedule_id):
                    break
        except Exception:
            log.exception("schedule %s", schedule_id)
            return False
        return True


def _tell_of_refusal(connection: Connection, row: ScheduleRow, reason: str, now_s: float) -> None:
    """Send a notice about a run without a job, because otherwise no hook would report the
    failure."""
    document = {
        "event": "run.refused",
        "schedule": row.name,
        "owner": row.owner,
        "state": "refused",
        "input": shown_uris(row.input_uri),
        "output": shown_uris(row.output_uri),
        "error": {"detail": reason, "hint": ""},
        "text": f"dsort schedule {row.name}: its job was refused: {reason}"[:TEXT_CHARS_MAX],
    }
    add_notices(connection, row.definition.hooks.get("on_failure"), document, now_s=now_s)


def _claim(connection: Connection, row: ScheduleRow, *, next_due_at: float | None) -> bool:
    """Lock the schedule's row and set its next due time, if the row has not been moved or changed
    since it was read."""
    table = schedules
    changed = connection.execute(
        update(table)
        .where(
            table.c.schedule_id == row.schedule_id,
            table.c.changed_at == row.changed_at,
            # A job that was made meanwhile has the epoch with which this job was rendered.
            table.c.run_count == row.run_count,
            table.c.next_due_at == row.next_due_at
            if row.next_due_at is not None
            else table.c.next_due_at.is_(None),
        )
        .values(next_due_at=next_due_at)
    )
    return changed.rowcount == 1


def _of_due(row: ScheduleRow, due_s: float, *, by_hand: bool) -> ColumnElement[bool]:
    """The condition that selects the run of a due time. A due time has at most one run."""
    table = schedule_runs
    return and_(
        table.c.schedule_id == row.schedule_id,
        table.c.due_at == due_s,
        table.c.by_hand.is_(by_hand),
    )


def _is_noted(connection: Connection, row: ScheduleRow, due_s: float) -> bool:
    query = select(schedule_runs.c.number).where(_of_due(row, due_s, by_hand=False))
    return connection.execute(query).first() is not None


def _unfinished(connection: Connection, schedule_id: str) -> Sequence[str]:
    query = select(jobs.c.job_id).where(
        jobs.c.schedule_id == schedule_id, jobs.c.state.in_(("queued", "running"))
    )
    return connection.execute(query.order_by(jobs.c.number)).scalars().all()


def _waiting_of(schedule_id: str) -> Any:
    table = schedule_runs
    return (table.c.schedule_id == schedule_id) & (table.c.outcome == WAITING)


def _waiting(connection: Connection, schedule_id: str) -> RunRow | None:
    found = connection.execute(select(schedule_runs).where(_waiting_of(schedule_id))).first()
    return None if found is None else run_row(found)


def _add_run(
    connection: Connection,
    row: ScheduleRow,
    due_s: float | None,
    now_s: float,
    outcome: str,
    reason: str,
    *,
    job_id: str | None = None,
    by_hand: bool = False,
) -> None:
    connection.execute(
        insert(schedule_runs).values(
            schedule_id=row.schedule_id,
            due_at=due_s,
            by_hand=by_hand,
            fired_at=now_s,
            outcome=outcome,
            reason=reason,
            job_id=job_id,
        )
    )
