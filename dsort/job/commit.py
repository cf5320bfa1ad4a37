"""The commit: staged shards get their names, and then the manifest makes them the result.

Names appear last: until every output shard is stored and checked, nothing of the result is visible.
The manifest is written after all shards have their names; writing it is the commit.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from types import MappingProxyType
from typing import IO, Any, TypeVar, cast, overload

import numpy as np
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.containers.registry import codec_of
from dsort.data.hashes import digest_in
from dsort.errors import InvariantError
from dsort.job.amend import amended, known_md5, refuse_lost_claim, release_base, result_shards
from dsort.job.create import Created, keep_sealed
from dsort.job.extraction import answers
from dsort.job.job import Job
from dsort.job.plan import Plan
from dsort.job.resolve import classes_of
from dsort.job.setup.inputs import refuse_changed_inputs
from dsort.job.sidecars import (
    containers_named,
    directory_file_names,
    directory_files,
    noted_sidecars,
    replaceable_names,
    sidecars_written,
    stage_sidecars,
)
from dsort.results.earlier_results import Commit, commit_of, commits, later_than, manifests_in
from dsort.results.journal_entries import Committing
from dsort.results.layout import (
    index_name,
    job_of,
    lineage_names,
    manifest_name,
    reactions_name,
    rejects_name,
    staged_prefix,
)
from dsort.results.manifest import (
    Making,
    Manifest,
    ManifestInput,
    ManifestOutput,
    ManifestSidecar,
    StagedSidecar,
    wids_index_bytes,
    write_manifest,
)
from dsort.results.transaction import PutBack, Transaction
from dsort.storage.small_objects import Staged, stage, stage_file
from dsort.workers.tasks import PublishDone, PublishTask

PUBLISHED_BY_WORKERS_MIN = 1000
"""From this many shards on, workers publish the shards of an object store: each shard takes one to
three requests."""
PUBLISHED_A_TASK = 256
SHARDS_IN_MEMORY = 1000
"""A manifest with at most this many inputs and outputs is made in memory. With the longest possible
names it has 4 MB."""

Thing = TypeVar("Thing")


class _Made(Sequence[Thing]):
    """A sequence that makes each thing when it is read: a million outputs in memory would take 300
    MB."""

    def __init__(self, count: int, make: Callable[[int], Thing]) -> None:
        self._numbers, self._make = range(count), make

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Thing: ...
    @overload
    def __getitem__(self, at: slice) -> list[Thing]: ...
    def __getitem__(self, at: int | slice) -> Thing | list[Thing]:
        if isinstance(at, slice):
            return list(map(self._make, self._numbers[at]))
        return self._make(self._numbers[at])

    def __iter__(self) -> Iterator[Thing]:
        return map(self._make, self._numbers)


def outputs_of(
    plan: Plan,
    created: Created,
    *,
    encoded: Sequence[bool],
    names: Sequence[str] = (),
    digests: Mapping[int, str] = MappingProxyType({}),
) -> Sequence[ManifestOutput]:
    """The output shards as the manifest lists them. ``names``: the names of the outputs, if there
    are several; ``encoded``: for each output, whether a codec encodes it; ``digests``: the digests
    of the shards, by ordinal."""
    shards = plan.shards
    columns = [shards.column(name) for name in ("group", "records", "members", "payload_bytes")]
    columns += [shards.file_bytes, shards.container_bytes]
    group, records, members, payload_bytes, file_bytes, decoded_bytes = (
        np.ascontiguousarray(column, np.int64).data for column in columns
    )

    def make(at: int) -> ManifestOutput:
        return ManifestOutput(
            plan.names[at],
            records[at],
            members[at],
            payload_bytes[at],
            file_bytes[at],
            created.shards.checksum(at),
            decoded_bytes[at] if encoded[group[at] if names else 0] else None,
            names[group[at]] if names else None,
            digest_in(digests.get(at, ""), "sha256") or None,
        )

    return _Made(len(shards), make)


class _ShardsByToken(Mapping[str, tuple[str, str]]):
    """By token: (name, receipt) of each shard that may have its name already."""

    def __init__(self, prefix: str, shards: Sequence[Staged]) -> None:
        self._prefix, self._shards = prefix, shards

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[str]:
        return (each.token for each in self._shards)

    def __getitem__(self, token: str) -> tuple[str, str]:
        number = token.removeprefix(self._prefix)
        if number == token or not number.isdecimal() or int(number) >= len(self):
            raise KeyError(token)
        found = self._shards[int(number)]
        return found.name, found.receipt


def commit(job: Job, plan: Plan, created: Created, digests: Mapping[int, str]) -> str:
    """Name the shards and write the manifest. Returns the name of the manifest."""
    job.stop.wait_for(lambda: refuse_changed_inputs(job))  # they were read until now
    names = job.pipeline.output_names
    unlike = not job.found.movement.way.moves_payload  # a view has other bytes than its shards
    forms = job.pipeline.outputs
    encoded = [unlike or (bool(form.codec) and not form.is_late) for form in forms]
    outputs = outputs_of(plan, created, encoded=encoded, names=names, digests=digests)
    if plan.shards.total("records") != plan.records:
        raise InvariantError("the manifest would not list every record of the plan")
    bucket, prefix = job.buckets.outputs, staged_prefix(job.job_id)
    whole = result_shards(job, outputs) if job.amends else outputs
    index = index_name(job.job_id) if "wids" in job.pipeline.result.sidecars else ""
    before = noted_sidecars(bucket, job.job_id) if job.attempt.was_committing else []
    receipt, named = created.shards.receipt, list[Staged]()
    shards = _Made(len(plan.names), lambda at: Staged(f"{prefix}{at}", plan.names[at], receipt(at)))
    files = _directory_files(job, plan, outputs, whole)
    for number, (name, data) in enumerate(files, len(shards)):
        token = f"{prefix}{number}"  # after the shards: replaced files are kept by number, too
        replaces = job.attempt.was_committing
        named.append(stage(bucket, token, name, len(data), [data], replaces=replaces))
    sidecars = stage_sidecars(job, outputs, whole, first=len(shards) + len(named))
    named += [each.staged for each in sidecars]
    replaceable = len(named)
    # All that needs room is stored before the first name is given: if the disk is full, the user
    # must not lose the objects that have the names now.
    if index:
        own = (digest_in(digests[at], "md5") for at in range(len(plan.names)))
        known = known_md5(job) | dict(zip(plan.names, own, strict=True))
        data = wids_index_bytes(job.job_id, whole, [known[shard.name] for shard in whole])
        # The name belongs to this job: only an earlier attempt can have given it already.
        named.append(stage(bucket, f"{prefix}index", index, len(data), [data], replaces=True))
    lineage = _stage_lineage(job, plan)
    named += [each.staged._replace(replaces=True) for each in lineage]
    keep_sealed(job, created, digests)
    job.attempt.journal.append(Committing())  # from here on, existing names may be the job's own
    job.attempt.journal.flush()
    beside = [each.listed for each in sidecars]
    listed_lineage = lineage[0].listed if lineage else None
    content = partial(_manifest, job, outputs, index, beside, listed_lineage)
    moment = _moment(job)
    last = _stage_manifest(job, content(moment))
    if job.amends:
        refuse_lost_claim(job)
    job.attempt.lease.check()  # staging may take longer than the lease lasts
    job.stop.raise_if_requested()  # the lease also checks for a request to stop
    transaction, given = transaction_of(job), cast(Sequence[Staged], shards)
    if _notes_replaced(job):
        receipts = {each.token: each.receipt for each in before}
        renewed = frozenset[str]() if job.overwrite else replaceable_names(job)
        waiting = [*shards, *named[:replaceable]]
        kept = transaction.keep_replaced(
            waiting, lambda name: job.overwrite or name in renewed, receipts=receipts
        )
        given, named = kept[: len(shards)], kept[len(shards) :] + named[replaceable:]
        job.attempt.lease.check()  # keeping objects may take longer than the lease lasts
    ours = {each.token for each in before}  # an earlier attempt may have named these objects
    named = [each._replace(replaces=each.replaces or each.token in ours) for each in named]
    others = {each.token: (each.name, each.receipt) for each in named}
    job.outcome.naming = ChainMap(
        others, cast(Any, _ShardsByToken(prefix, shards)), job.outcome.naming
    )
    many = bucket.seals_on_finish and len(given) >= PUBLISHED_BY_WORKERS_MIN
    transaction.publish(
        given,
        named,
        lambda: _still_last(job, last, moment, content),
        publisher=partial(_publish_by_workers, job) if many else None,
    )
    return manifest_name(job.job_id)


def _stage_lineage(job: Job, plan: Plan) -> list[StagedSidecar]:
    """The staged lineage, if the job has one. A removal has no lineage, because it would name the
    removed records."""
    kind = job.pipeline.result.lineage
    if not kind or job.replaces_inputs:
        return []
    from dsort.job.lineage import stage_lineage  # loads PyArrow

    return [stage_lineage(job, plan, kind)]


def _directory_files(
    job: Job, plan: Plan, outputs: Sequence[ManifestOutput], whole: Sequence[ManifestOutput]
) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the files beside ``outputs`` that list all shards of their directory."""
    found = _containers(job, plan)
    numbers = {name: number for number, name in enumerate(job.pipeline.output_names)}
    if not job.found.movement.way.moves_payload or not any(each.index for each in found):
        return iter(())
    own = [found[job.output_of(group)] for group in plan.shards.column("group").tolist()]
    wanted = directory_file_names(own, plan.names)
    of_all = [found[numbers.get(shard.output or "", 0)] for shard in whole]
    return (each for each in directory_files(of_all, whole) if each[0] in wanted)


def transaction_of(job: Job) -> Transaction:
    """The transaction that gives the job's objects their names."""
    bucket = job.buckets.outputs
    return Transaction(bucket, job.job_id, between=job.stop.raise_if_requested)


def _publish_by_workers(job: Job, shards: Sequence[Staged]) -> None:
    starts = range(0, len(shards), PUBLISHED_A_TASK)
    tasks = (PublishTask(tuple(shards[at : at + PUBLISHED_A_TASK])) for at in starts)
    for _ in answers(job, tasks, PublishDone):
        job.stop.raise_if_requested()


def _containers(job: Job, plan: Plan) -> list[Container]:
    """The container of each output, with the schema of its records."""
    found = []
    for group, form in enumerate(job.pipeline.outputs):
        late = plan.late_schemas[group] if plan.late_schemas else ""
        schema = late if form.is_late else plan.schema
        found.append(form.container.with_schema(schema) if schema else form.container)
    return found


def names_stored(job: Job) -> list[str]:
    """All names under which the job has stored objects, or planned to store them."""
    own = (index_name, reactions_name, rejects_name, manifest_name)
    beside = (*(name(job.job_id) for name in own), *lineage_names(job.job_id))
    return [*_numbered_names(job), *beside]


def _numbered_names(job: Job) -> list[str]:
    """The names of the staged objects, by number: output shards, then the files that list the
    shards of a directory, then sidecars."""
    # `commit` numbers tokens in the same order; the kept objects have these numbers.
    containers = containers_named(job.spec, job.outcome.planned_names)
    beside = directory_file_names(containers, job.outcome.planned_names)
    sidecars = [each.name for each in sidecars_written(job, job.outcome.planned_names)]
    return [*job.outcome.planned_names, *beside, *sidecars]


def rollback(job: Job) -> PutBack:
    """Remove the objects that this attempt or an earlier one has staged or named: without a
    manifest they are no result. Objects that the job replaced are put back. Only the process that
    holds the job's lease may call this function, because otherwise another job's objects may have
    these names."""
    bucket = job.buckets.outputs
    if job.outcome.naming:
        # The manifest may exist although writing it failed; it must not list objects that are gone.
        bucket.delete(manifest_name(job.job_id))
    bucket.discard(staged_prefix(job.job_id), names=names_stored(job))
    bucket.delete(reactions_name(job.job_id))
    bucket.delete(rejects_name(job.job_id))
    if job.amends:
        release_base(job)
    names, notes = _numbered_names(job), _notes_replaced(job)
    done = transaction_of(job).roll_back(names, job.outcome.naming, notes_replaced=notes)
    if not done.gave_names:
        return done
    if "wids" in job.pipeline.result.sidecars:
        bucket.delete(index_name(job.job_id))
    for name in lineage_names(job.job_id):
        bucket.delete(name)
    return done


def take_names_back(job: Job) -> PutBack:
    """Turn output shards that have their names into staged ones again, for another attempt, and put
    back the objects that they replaced. Only for directories, where a file can have both names."""
    bucket = job.buckets.outputs
    bucket.delete(manifest_name(job.job_id))  # as in `rollback`; another attempt writes it again
    return transaction_of(job).take_back(_numbered_names(job), job.outcome.naming)


def _notes_replaced(job: Job) -> bool:
    """Whether the job lists the objects that it replaces before it gives the first name."""
    return job.overwrite or job.appends or job.replaces_inputs


def _moment(job: Job) -> str:
    """The time of the commit: later than all commits that it may replace."""
    if job.amends:
        return later_than(commit_of(job.found.base.created, job.found.base.job_id))
    return later_than(_newest(job) if job.overwrite else None)


def _newest(job: Job) -> Commit | None:
    """The last commit of another job in the bucket."""
    bucket = job.buckets.outputs
    jobs = (job_of(info.name) for info in manifests_in(bucket))
    return next(iter(commits(bucket, jobs)), None)


def _stage_manifest(job: Job, content: IO[bytes]) -> Staged:
    token, name = f"{staged_prefix(job.job_id)}manifest", manifest_name(job.job_id)
    with content:
        return stage_file(job.buckets.outputs, token, name, content)


def _still_last(
    job: Job, staged: Staged, moment: str, content: Callable[[str], IO[bytes]]
) -> Staged:
    """The staged manifest, of a commit at ``moment``. It is staged again, with a later moment, if
    another job was committed while this job gave its shards their names."""
    newest = _newest(job) if job.overwrite and not job.amends else None
    if not newest or newest < commit_of(moment, job.job_id):
        return staged
    return _stage_manifest(job, content(later_than(newest)))


def _manifest(
    job: Job,
    outputs: Sequence[ManifestOutput],
    index: str,
    sidecars: Sequence[ManifestSidecar],
    lineage: ManifestSidecar | None,
    created: str,
) -> IO[bytes]:
    """The manifest, in memory if it is short. For a million outputs it has 150 MB: then it is in a
    file without a name."""
    movement, codec = job.found.movement, codec_of(job.spec.output_extension)
    level = job.spec.output_compression_level
    inputs = [
        ManifestInput(
            shard.name,
            shard.size_bytes,
            shard.mtime_ns,
            shard.etag,
            job.outcome.input_records.get(ordinal, 0),
        )
        for ordinal, shard in enumerate(job.inputs)
    ]
    whole = Manifest(
        job_id=job.job_id,
        created=created,
        spec=job.spec,
        inputs=inputs,
        outputs=outputs,
        index=index or None,
        sidecars=sidecars,
        lineage=lineage,
        code=[
            {"step": number, "kind": step.kind, **json.loads(step.known)}
            for number, step in job.pipeline.code_steps.items()
            if step.known
        ],
        classes=classes_of(job),
    )
    if job.amends:
        whole = amended(job, whole)
    reactions = job.reporter.reactions()
    if job.replaces_inputs:  # samples would name removed keys
        reactions = tuple(replace(each, samples=()) for each in reactions)
    making = Making(
        move={
            "way": movement.way.name,
            "reason": movement.reason,
            "runtime": job.runtime.name,
            "workers": movement.workers,
            "buckets": movement.partitions,
            "memory_bytes": movement.sizes.memory_bytes,
        },
        phase_seconds=job.reporter.state.seconds(),
        reactions=reactions,
        reactions_file=job.outcome.reactions_file,
        rejects_file=job.outcome.rejects_file,
        codec=codec.description(codec.level_or_default(level)) if codec else None,
        mixing=job.outcome.mixing,
        timeline=job.reporter.timeline.samples(),
    )
    file: IO[bytes] = BytesIO()
    if len(inputs) + len(outputs) > SHARDS_IN_MEMORY:
        import tempfile  # loads five compressors, and the module `random`

        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    write_manifest(file, whole, making)
    return file
