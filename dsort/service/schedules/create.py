"""Schedules from requests, and jobs from schedules.

A request becomes a ``ScheduleDefinition``, or an error with all problems of the request. A
definition and a due time become a job for the queue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from dsort.data.json_values import to_json
from dsort.errors import DsortError, ForbiddenError, SpecError, SpecProblem
from dsort.job.setup.inputs import absent_inputs
from dsort.naming.names import closest
from dsort.options import RunOptions
from dsort.order.algorithms import takes_seed
from dsort.service.database.tables import JobRow
from dsort.service.jobs.submit import Asked, Submitter, allow, allowed_priority
from dsort.service.schedules.definition import CRON_HINT, ScheduleDefinition, ScheduleRow
from dsort.service.schedules.due import due_times, run_id_of
from dsort.service.schedules.render import (
    RunValues,
    has_placeholder,
    pointer_name,
    render,
    values_of,
    with_shared_buckets,
)
from dsort.service.security.guard import place_of
from dsort.service.security.tokens import SUBMITTER, Identity
from dsort.settings import resolve_ref
from dsort.spec.field_problems import plain_problems
from dsort.spec.load import LoadedSpec, parse_spec
from dsort.spec.model import JobSpec
from dsort.spec.part import describe
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.registry import parse_address
from dsort.storage.routed import BucketPlace, open_inputs


class JobMaker:
    """Makes the jobs of schedules with ``submitter``, like all other jobs.

    ``identity_of``: finds the present rights of the owner of a schedule; None if the token no
    longer exists.
    """

    def __init__(self, submitter: Submitter, identity_of: Callable[[str], Identity | None]) -> None:
        self.submitter = submitter
        self.identity_of = identity_of

    def uris(self, definition: ScheduleDefinition, identity: Identity) -> tuple[str, str]:
        """(input, output): the part of the buckets' URIs that all runs share. ``ForbiddenError`` if
        ``identity`` may not use the priority, the buckets of a sample run, or the shared part."""
        spec = definition.spec
        self._allowed(render(spec, SAMPLE), identity, priority=definition.priority)
        shared = self._allowed(render(with_shared_buckets(spec), SAMPLE), identity)
        return shared.input_uri, shared.output_uri

    def make(self, row: ScheduleRow, due_s: float) -> JobRow:
        """The job of the run that is due at ``due_s``. ``DsortError`` if the owner may not submit
        the job, or the spec is no longer valid."""
        definition = row.definition
        identity = self.identity_of(row.owner)
        if identity is None:
            raise ForbiddenError(
                f"there is no token {row.owner} any more, which owns the schedule",
                hint="make the schedule again with another token",
            )
        if not identity.at_least(SUBMITTER):
            raise ForbiddenError(
                f"{row.owner}, which owns the schedule, is now a {identity.role}",
                hint="make the schedule again with another token",
            )
        values = values_of(definition, due_s, row.run_count)
        new = self._allowed(
            {**render(definition.spec, values), **definition.hooks},
            identity,
            owner=row.owner,
            priority=allowed_priority(identity, definition.priority),
            labels=definition.labels,
            more={"schedule_id": row.schedule_id, "due_at": due_s},
        )
        return replace(new, after_commit=self._after_commit(row, values, new, identity))

    def _allowed(
        self, rendered: Mapping[str, Any], identity: Identity, *, owner: str = "", **asked: Any
    ) -> JobRow:
        checked = self.submitter.check(rendered, identity)
        for target in checked.spec.targets:
            if target.bucket is not None:
                text = "cannot be combined with schedules: their results are in one bucket"
                raise SpecError([SpecProblem(f"{target.path}output_bck", text)])
        new = self.submitter.prepare(checked, owner or identity.name, Asked(**asked))
        allow(identity, new)
        return new

    def _after_commit(
        self, row: ScheduleRow, values: RunValues, new: JobRow, identity: Identity
    ) -> dict[str, Any]:
        """The work that the job's process does after the commit of the result; see
        ``retention``."""
        definition = row.definition
        pointer = None
        name = pointer_name(definition)
        if name is not None:
            rendered = render(with_shared_buckets(definition.spec), values)
            is_own = rendered == render(definition.spec, values)
            shared = new if is_own else self._allowed(rendered, identity)
            pointer = {"bucket": shared.spec["output_bck"], "name": name}
        return {
            "schedule_id": row.schedule_id,
            "schedule": row.name,
            "due_at": new.due_at,
            "date": values.date,
            "run_id": values.run_id,
            "epoch": values.epoch,
            "retain": definition.retain,
            "pointer": pointer,
        }


SAMPLE: Final = RunValues(date="2026-01-31", run_id="20260131T020000Z", epoch=0)
"""The run for which a definition is rendered as a check."""
_SAMPLE_S: Final = 1_769_824_800.0
_RUNS_COMPARED: Final = 10
HOOKS: Final = ("on_success", "on_failure")
TIMING: Final = ("cron", "every", "timezone", "start_at", "end_at")
_NAMES: Final = ("output_bck", "output_format", "outputs", "ekm", "ekm_default")


class LoadedDefinition(Struct, frozen=True):
    """A definition, and the warnings for its writer."""

    definition: ScheduleDefinition
    warnings: tuple[str, ...]


def parse_definition(
    mapping: object, *, check: Callable[[Mapping[str, Any]], LoadedSpec] = parse_spec
) -> LoadedDefinition:
    """The definition in ``mapping`` (as from JSON). Its spec is rendered for a sample run and given
    to ``check``. ``SpecError`` lists every problem at once; problems of the spec have paths under
    ``spec.``. Other errors of ``check`` are passed on."""
    if not isinstance(mapping, Mapping):
        raise SpecError(f"a schedule is an object of fields, not {describe(mapping)}")
    definition, problems = _fields(mapping)
    problems += _when(mapping, definition)
    loaded: LoadedSpec | None = None
    if isinstance(mapping.get("spec"), Mapping):
        try:
            loaded = _try_out(
                mapping["spec"], check, {} if definition is None else definition.hooks
            )
        except SpecError as error:
            problems += [
                replace(each, path=_path_of(each.path, definition)) for each in error.problems
            ]
    if loaded is not None and loaded.spec.keep_shards and definition and definition.retain:
        text = "cannot be combined with keep_shards: any schedule may have made a shard of any name"
        problems.append(SpecProblem("retain", text, "give outputs a template: output_format"))
    if problems or definition is None or loaded is None:
        raise SpecError(list(dict.fromkeys(problems)))
    return LoadedDefinition(definition, (*loaded.warnings, *_warnings(definition)))


def parse_timing(mapping: object) -> ScheduleDefinition:
    """A definition with only those fields of ``mapping`` from which the due times follow.
    ``SpecError`` lists every problem at once."""
    if not isinstance(mapping, Mapping):
        raise SpecError(f"a schedule is an object of fields, not {describe(mapping)}")
    timing = {name: mapping[name] for name in TIMING if mapping.get(name) is not None}
    definition, problems = _fields({"name": "any", "spec": {}, **timing})
    problems += _when(timing, definition)
    if problems or definition is None:
        raise SpecError(problems)
    return definition


def _fields(mapping: Mapping[Any, Any]) -> tuple[ScheduleDefinition | None, list[SpecProblem]]:
    try:
        return ScheduleDefinition.model_validate(dict(mapping)), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    problems = []
    known = list(ScheduleDefinition.model_fields)
    for each in errors:
        for problem in plain_problems(each):
            if each["type"] == "extra_forbidden":
                near = closest(problem.path, known)
                problem = replace(problem, hint=f'did you mean "{near}"?' if near else "")
            elif each["type"] == "missing":
                problem = replace(problem, hint="")
            problems.append(problem)
    return None, problems


def _when(mapping: Mapping[str, Any], definition: ScheduleDefinition | None) -> list[SpecProblem]:
    problems = []
    given = [name for name in ("cron", "every") if mapping.get(name) is not None]
    if not given:
        problems.append(SpecProblem("cron", "is required, or every", CRON_HINT))
    elif len(given) == 2:
        problems.append(SpecProblem("every", "there is a cron, too: only one of them can be given"))
    if definition is not None:
        start_s, end_s = definition.start_s, definition.end_s
        if start_s is not None and end_s is not None and end_s < start_s:
            problems.append(SpecProblem("end_at", "lies before start_at"))
    return problems


def _path_of(path: str, definition: ScheduleDefinition | None) -> str:
    """The path, in the schedule, of a problem at ``path`` in the spec."""
    if definition is not None and path.partition(".")[0] in definition.hooks:
        return path
    return f"spec.{path}" if path else "spec"


def _try_out(
    spec: Mapping[str, Any],
    check: Callable[[Mapping[str, Any]], LoadedSpec],
    hooks: Mapping[str, Any],
) -> LoadedSpec:
    given = [name for name in HOOKS if spec.get(name) is not None]
    if given:
        hint = "set the field in the schedule, not in its spec"
        raise SpecError([SpecProblem(name, "belongs to the schedule", hint) for name in given])
    loaded = check({**render(spec, SAMPLE), **hooks})
    with_shared_buckets(spec)
    if loaded.spec.dry_run:
        raise SpecError([SpecProblem("dry_run", "a schedule makes no plans: leave the field out")])
    return loaded


def _warnings(definition: ScheduleDefinition) -> list[str]:
    warnings = []
    spec = definition.spec
    algorithm = spec.get("algorithm")
    if isinstance(algorithm, Mapping) and takes_seed(algorithm):
        seed = algorithm.get("seed")
        if seed not in (None, "") and not has_placeholder(seed):
            warnings.append(
                f"every run has the seed {seed}, and so the same order if its inputs are the same: "
                'leave the seed out, or write e.g. "{{run_id}}", for a fresh seed each time'
            )
    if not spec.get("overwrite"):
        named: dict[str, str] = {}
        due = due_times(definition, anchor_s=_SAMPLE_S, after_s=_SAMPLE_S)
        for epoch, due_s in enumerate(islice(due, _RUNS_COMPARED)):
            run_id = run_id_of(due_s)
            rendered = render(spec, values_of(definition, due_s, epoch))
            names = json.dumps([rendered.get(field) for field in _NAMES], sort_keys=True)
            if names in named:
                warnings.append(
                    f"the runs of {named[names]} and {run_id} would write the same names, so that "
                    "the later one is refused: put {{run_id}} into them, or set overwrite"
                )
                break
            named[names] = run_id
    return warnings


LOOK_S_MAX: Final = 5.0
_INPUT_FIELDS: Final = ("input_bck", "bck", "input_format", "inputs")


class _TookTooLongError(Exception):
    """The check took too long, and has found nothing about the inputs."""


def warnings_of_inputs(
    written: Mapping[str, Any], spec: JobSpec, run: RunOptions, policy: FetchPolicy
) -> tuple[str, ...]:
    """The problems of a schedule's inputs today, such as a prefix without any shard. Empty if each
    run has other inputs, or if the check takes too long. ``written``: the spec with its
    placeholders. ``spec``: this spec, rendered for a sample run."""
    if has_placeholder(to_json([written.get(name) for name in _INPUT_FIELDS])):
        return ()
    if spec.ingest is not None or spec.amend is not None:
        return ()
    ends_at = time.monotonic() + LOOK_S_MAX

    def check() -> None:
        if time.monotonic() > ends_at:
            raise _TookTooLongError

    def opened(place: BucketPlace) -> Bucket:
        ref = resolve_ref(place.ref, run.settings)
        limits = replace(run.settings.limits(ref), retry_seconds_max=LOOK_S_MAX)
        fetch = policy
        if ref.is_directory:  # tokens were checked against this path, so no link may lead out of it
            roots = (parse_address(place_of(ref, run.root)).path,)
            fetch = replace(policy, roots=roots, patterns=())
        return open_bucket(ref, root=run.root, limits=limits, policy=fetch)

    try:
        places = [BucketPlace(each.name, each.bucket) for each in spec.sources]
        absent = absent_inputs(spec, open_inputs(places, opened), check=check)
    except _TookTooLongError:
        return ()
    except DsortError as error:
        return (f"a run would fail today: {error.message}",)
    return (f"{absent}: a run fails until there is one",) if absent else ()
