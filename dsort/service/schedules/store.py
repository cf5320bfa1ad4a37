"""Schedules as the REST routes use them: create, find, list, change, pause, remove."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from dsort.errors import ConflictError, NotFoundError, SpecError, SpecProblem
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs, schedule_runs, schedules
from dsort.service.schedules.create import JobMaker, LoadedDefinition, parse_definition
from dsort.service.schedules.definition import (
    RunRow,
    ScheduleDefinition,
    ScheduleRow,
    run_row,
    schedule_row,
)
from dsort.service.schedules.due import next_due
from dsort.service.security.tokens import Identity


class ScheduleStore:
    """The schedules of a service. Every method is a transaction of its own.

    ``on_change`` is called after each change, so that a keeper of this process can look again.
    """

    def __init__(
        self,
        database: Database,
        maker: JobMaker,
        *,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        self.database = database
        self.maker = maker
        self.on_change = on_change
        self._clock = clock

    def read(self, mapping: object, identity: Identity | None = None) -> LoadedDefinition:
        """The definition in ``mapping``; its spec is checked like the spec of a job of
        ``identity``. ``SpecError`` with all problems, ``ForbiddenError``."""
        return parse_definition(
            mapping, check=lambda spec: self.maker.submitter.check(spec, identity)
        )

    def add(self, definition: ScheduleDefinition, identity: Identity) -> ScheduleRow:
        """Add a schedule. ``ConflictError`` if another schedule has this name; ``ForbiddenError``
        if ``identity`` may not use the buckets of the new schedule."""
        input_uri, output_uri = self.maker.uris(definition, identity)
        now_s = self._clock()
        made = ScheduleRow(
            schedule_id=secrets.token_hex(8),
            name=definition.name,
            owner=identity.name,
            definition=definition,
            input_uri=input_uri,
            output_uri=output_uri,
            paused=definition.paused,
            created_at=now_s,
            changed_at=now_s,
            next_due_at=next_due(definition, anchor_s=now_s, after_s=now_s),
            run_count=0,
        )
        try:
            with self.database.writing() as connection:
                names = [name for name in ScheduleRow.__struct_fields__ if name in schedules.c]
                values = {name: getattr(made, name) for name in names}
                values["definition"] = definition.stored()
                connection.execute(insert(schedules).values(values))
        except IntegrityError:
            raise ConflictError(
                f"there is a schedule {definition.name} already",
                hint="take another name, or remove or replace that schedule (PUT; `dsort "
                "schedule add --replace`)",
            ) from None
        self.on_change()
        return made

    def change(self, name: str, definition: ScheduleDefinition, identity: Identity) -> ScheduleRow:
        """Give a schedule another definition; history, epochs and owner stay, and the owner must be
        allowed to use the buckets. If the due times change, new due times before this moment are
        left out."""
        if definition.name != name:
            raise SpecError([SpecProblem("name", f'must be "{name}", as in the address')])
        before = self.get(name)
        owner = None if before is None else self.maker.identity_of(before.owner)
        input_uri, output_uri = self.maker.uris(definition, owner or identity)

        def changed(row: ScheduleRow, now_s: float) -> ScheduleRow:
            next_due_at = row.next_due_at
            if definition.timing != row.definition.timing:
                next_due_at = next_due(definition, anchor_s=row.created_at, after_s=now_s)
            return replace(
                row,
                definition=definition,
                input_uri=input_uri,
                output_uri=output_uri,
                paused=definition.paused,
                next_due_at=next_due_at,
                unreadable="",
            )

        return self._change(name, changed)

    def pause(self, name: str) -> ScheduleRow:
        """Pause a schedule: a paused schedule is never due, and its waiting runs continue to
        wait."""
        return self._change(name, lambda row, now_s: replace(row, paused=True))

    def resume(self, name: str) -> ScheduleRow:
        """Resume a paused schedule. Its ``catch_up`` decides which missed due times get a job."""

        def resumed(row: ScheduleRow, now_s: float) -> ScheduleRow:
            next_due_at = row.next_due_at
            if row.paused and row.definition.catch_up == "none":
                definition = row.definition
                next_due_at = next_due(definition, anchor_s=row.created_at, after_s=now_s)
            return replace(row, paused=False, next_due_at=next_due_at)

        return self._change(name, resumed)

    def remove(self, name: str) -> None:
        """Remove a schedule and its history; its jobs and their results stay."""
        with self.database.writing() as connection:
            connection.execute(delete(schedules).where(schedules.c.name == name))
        self.on_change()

    def get(self, name: str) -> ScheduleRow | None:
        """The schedule ``name``; None if it does not exist."""
        found = self.database.rows(select(schedules).where(schedules.c.name == name))
        return schedule_row(found[0]) if found else None

    def list(self, *, visible: ColumnElement[bool] | None = None) -> Sequence[ScheduleRow]:
        """All schedules by name; ``visible``: a condition on the table that selects the schedules
        which may be shown."""
        query = select(schedules).order_by(schedules.c.name)
        if visible is not None:
            query = query.where(visible)
        return [schedule_row(each) for each in self.database.rows(query)]

    def runs(
        self, schedule_id: str, *, limit: int = 50, before: int | None = None
    ) -> Sequence[RunRow]:
        """The runs of a schedule, newest first: those with a number below ``before``."""
        table = schedule_runs
        query = _runs_with_jobs().where(table.c.schedule_id == schedule_id)
        if before is not None:
            query = query.where(table.c.number < before)
        query = query.order_by(table.c.number.desc()).limit(limit)
        return [run_row(each) for each in self.database.rows(query)]

    def last_runs(self, schedule_ids: Iterable[str]) -> dict[str, RunRow]:
        """The newest run of each schedule, by schedule id."""
        table = schedule_runs
        newest = (
            select(func.max(table.c.number))
            .where(table.c.schedule_id.in_(list(schedule_ids)))
            .group_by(table.c.schedule_id)
        )
        found = self.database.rows(_runs_with_jobs().where(table.c.number.in_(newest)))
        return {each.schedule_id: run_row(each) for each in found}

    def now_s(self) -> float:
        """The time by this store's clock."""
        return self._clock()

    def _change(
        self, name: str, changed: Callable[[ScheduleRow, float], ScheduleRow]
    ) -> ScheduleRow:
        with self.database.writing() as connection:
            row = _locked(connection, name)
            now_s = self._clock()
            # Later than any earlier change, so that a replica that fires the schedule notices the
            # change.
            after = replace(changed(row, now_s), changed_at=max(now_s, row.changed_at + 1e-3))
            after.check_readable()
            names = ("input_uri", "output_uri", "paused", "changed_at", "next_due_at")
            values = {name: getattr(after, name) for name in names}
            connection.execute(
                update(schedules)
                .where(schedules.c.schedule_id == row.schedule_id)
                .values(values | {"definition": after.definition.stored()})
            )
        self.on_change()
        return after


def _runs_with_jobs() -> Select[Any]:
    """The query for runs, each with the present state of its job, because the row of a run records
    only the submission."""
    jobs_state = (jobs.c.state.label("job_state"), jobs.c.error.label("job_error"))
    joined = schedule_runs.outerjoin(jobs, jobs.c.job_id == schedule_runs.c.job_id)
    return select(schedule_runs, *jobs_state).select_from(joined)


def _locked(connection: Connection, name: str) -> ScheduleRow:
    query = select(schedules).where(schedules.c.name == name).with_for_update()
    found = connection.execute(query).first()
    if found is None:
        raise NotFoundError(f"there is no schedule {name}")
    return schedule_row(found)
