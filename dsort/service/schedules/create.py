"""From a schedule's definition and a due time to a job for the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dsort.errors import ForbiddenError
from dsort.service.jobs.rows import NewJob
from dsort.service.jobs.submit import Asked, allow, allowed_priority
from dsort.service.schedules.definition import ScheduleDefinition
from dsort.service.schedules.due import date_of, run_id_of
from dsort.service.schedules.load import SAMPLE
from dsort.service.schedules.render import RunValues, render
from dsort.service.schedules.rows import ScheduleRow
from dsort.service.schedules.shared_buckets import pointer_name, with_shared_buckets
from dsort.service.security.identity import SUBMITTER
from dsort.spec.buckets import bucket_value
from dsort.spec.load import LoadedSpec

if TYPE_CHECKING:
    from dsort.service.security.identity import Identity
    from dsort.spec.model import JobSpec

__all__ = ["JobMaker", "Preparing"]


class Preparing(Protocol):
    """What of a service's submitter is needed here."""

    def check(self, spec: Mapping[str, Any]) -> LoadedSpec:
        """The spec, checked against what the service allows."""

    def prepare(self, spec: JobSpec, owner: str, asked: Asked) -> NewJob:
        """The job that it becomes."""


class JobMaker:
    """Makes the jobs of schedules as ``submitter`` makes everybody's.

    ``identity_of``: what the owner of a schedule may do today; None if its token is no more.
    """

    def __init__(self, submitter: Preparing, identity_of: Callable[[str], Identity | None]) -> None:
        self._submitter = submitter
        self._identity_of = identity_of

    def check(self, spec: Mapping[str, Any]) -> LoadedSpec:
        """A rendered spec, checked. ``SpecError``, ``ForbiddenError``."""
        return self._submitter.check(spec)

    def owner(self, name: str) -> Identity | None:
        """What the owner of a schedule may do today."""
        return self._identity_of(name)

    def uris(self, definition: ScheduleDefinition, identity: Identity) -> tuple[str, str]:
        """(input, output): as much of the buckets' URIs as all runs share. ``ForbiddenError`` if
        those, or those of a run, or its priority are not for ``identity``."""
        spec = definition.spec
        self._allowed(render(spec, SAMPLE), identity, priority=definition.priority)
        shared = self._allowed(render(with_shared_buckets(spec), SAMPLE), identity)
        return shared.input_uri, shared.output_uri

    def make(self, row: ScheduleRow, due_s: float) -> NewJob:
        """The job of the run that is due then. ``DsortError`` if the owner may not have it, or the
        spec is not right (any more)."""
        definition = row.definition
        identity = self.owner(row.owner)
        if identity is None:
            raise ForbiddenError(
                f"there is no token {row.owner} any more, which owns the schedule",
                hint="make the schedule again with another token",
            )
        if not identity.at_least(SUBMITTER):
            raise ForbiddenError(
                f"{row.owner}, which owns the schedule, is a {identity.role} by now",
                hint="make the schedule again with another token",
            )
        values = RunValues(date_of(definition, due_s), run_id_of(due_s), row.run_count)
        more = {
            "schedule_id": row.schedule_id,
            "due_at": due_s,
            "after_commit": self._after_commit(row, values, due_s),
        }
        return self._allowed(
            {**render(definition.spec, values), **definition.hooks},
            identity,
            owner=row.owner,
            priority=allowed_priority(identity, definition.priority),
            labels=definition.labels,
            more=more,
        )

    def _allowed(
        self, rendered: Mapping[str, Any], identity: Identity, *, owner: str = "", **asked: Any
    ) -> NewJob:
        spec = self._submitter.check(rendered).spec
        new = self._submitter.prepare(spec, owner or identity.name, Asked(**asked))
        allow(identity, new)
        return new

    def _after_commit(self, row: ScheduleRow, values: RunValues, due_s: float) -> dict[str, Any]:
        """What the job's process does once its result is there; see ``after_commit.py``."""
        definition = row.definition
        pointer = None
        name = pointer_name(definition)
        if name is not None:
            shared = self.check(render(with_shared_buckets(definition.spec), values)).spec
            pointer = {"bucket": bucket_value(shared.output_bck), "name": name}
        return {
            "schedule_id": row.schedule_id,
            "schedule": row.name,
            "due_at": due_s,
            "date": values.date,
            "run_id": values.run_id,
            "epoch": values.epoch,
            "retain": definition.retain,
            "pointer": pointer,
        }
