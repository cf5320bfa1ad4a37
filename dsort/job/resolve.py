"""The resolve phase: find the inputs, refuse jobs that cannot work, start the workers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import to_builtins
from msgspec.structs import replace

from dsort.data.tally import Tally, tally_of, tally_rows
from dsort.errors import ChangedInputError, InputError, SpecError, SpecProblem, StorageError
from dsort.job.amend import claim_base, load_base, warn_of_old_keys
from dsort.job.job import Job, Resolved
from dsort.job.resume import RESOLVED_FILE, note_names, resolved_before
from dsort.job.setup.collisions import refuse_early_collisions, refuse_shards_twice
from dsort.job.setup.inputs import (
    refuse_absent,
    refuse_changed_files,
    refuse_changed_inputs,
    refuse_unreadable,
    resolve_inputs,
    warn_of_equal_numbers,
)
from dsort.job.setup.new_job import named_text, output_names
from dsort.job.setup.worker_setup import (
    bytes_to_move,
    check_directories,
    check_free_space,
    movement_for,
    start_workers,
)
from dsort.job.stale_outputs import refuse_taken_early
from dsort.log_lines import logger_of
from dsort.loose_files.bucket import LISTING_FILE, FilesBucket
from dsort.moves.input_shard import INPUTS_FILE, InputShard, inputs_bytes
from dsort.naming.names import directory_of, is_hidden, shortened
from dsort.naming.patterns import FileLocation
from dsort.options import RunOptions
from dsort.pipeline.movement import EVERY_WAY
from dsort.results.earlier_results import (
    KnownOutput,
    checksums,
    compare_sizes,
    count_read_again,
    known_outputs,
)
from dsort.results.journal import note_elsewhere
from dsort.results.journal_entries import InputRow, InputsResolved, JobAccepted, MovementChosen
from dsort.results.layout import report_name
from dsort.results.report import JobStarted
from dsort.scratch.columns import ColumnFile
from dsort.spec.inputs import InputFormat
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.routed import bucket_named, placed_at
from dsort.version import dsort_version
from dsort.workers.tasks import LONG_COLUMNS_FILE, READ_SCHEMA_FILE, SCHEMA_FILE

if TYPE_CHECKING:
    from dsort.loose_files.gather import WrittenBy
    from dsort.loose_files.listing import Listing

log = logger_of("job")


def resolve(job: Job, tally: Tally, *, dry: bool) -> None:
    """Find the inputs, choose the movement of payload, and start the workers."""
    with job.reporter.phase("resolve"):
        if job.attempt.is_resumed:
            note_names(job)
        if job.spec.amend:
            job.stop.wait_for(lambda: load_base(job))
            warn_of_old_keys(job)
        if job.attempt.is_resumed:
            _resolve_again(job)
        else:
            _resolve_first(job, tally, dry=dry)
        if job.amends and not dry:
            claim_base(job)
        total = sum(shard.size_bytes for shard in job.inputs)
        log.debug("%d input shards have %d bytes", len(job.inputs), total)
        check_directories(job, dry=dry)
        start_workers(job, dry=dry)
        check_free_space(job, bytes_to_move(job, total), dry=dry)
        job.runtime.share(INPUTS_FILE, inputs_bytes(job.inputs))
        if isinstance(job.buckets.inputs, FilesBucket):
            job.runtime.share(LISTING_FILE, job.buckets.inputs.listing.to_bytes())
        if job.pipeline.writes_rows:
            from dsort.job.setup.tables import (
                check_types_kept,
                first_schema,
                made_schema,
            )  # the readers of tables

            schema, long = job.stop.wait_for(lambda: first_schema(job))
            job.runtime.share(LONG_COLUMNS_FILE, json.dumps(long).encode())
            if job.pipeline.reads_rows:
                job.runtime.share(READ_SCHEMA_FILE, schema)
                schema = made_schema(job.pipeline.steps, job.spec.key_field, schema)
                check_types_kept(job, schema)
            job.runtime.share(SCHEMA_FILE, schema)
        job.reporter.advance(shards=len(job.inputs), bytes_done=total)
    movement, where = job.found.movement, job.runtime.where()
    job.reporter.on_event(
        JobStarted(job.job_id, movement.way.name, movement.workers, len(job.inputs), total, where)
    )


def _resolve_first(job: Job, tally: Tally, *, dry: bool) -> None:
    check = job.stop.raise_if_requested
    if job.pipeline.reading.makes_shards:
        from dsort.job.programs import opened_programs

        with opened_programs(job.spec, job.options) as written_by:
            job.stop.wait_for(lambda: list_files(job, tally, written_by))
    spec = _of_the_result(job)
    job.inputs = job.stop.wait_for(
        lambda: resolve_inputs(spec, job.buckets.inputs, tally, check=check)
    )
    _name_outputs(job)
    _compare_with_manifests(job, tally)
    job.reporter.note(tally)
    warn_of_equal_numbers(job)
    source, target = job.buckets.identities
    refuse_shards_twice(job.inputs, source)
    if not job.pipeline.placed_by.templates and not job.replaces_inputs:
        job.stop.wait_for(
            lambda: refuse_early_collisions(job.inputs, source, job.outcome.names, target)
        )
    job.stop.wait_for(lambda: refuse_unreadable(job.inputs, job.buckets.inputs))
    job.stop.wait_for(lambda: refuse_taken_early(job, dry=dry))
    job.found.movement = movement_for(job)
    if dry:
        return
    job.stop.wait_for(job.buckets.outputs.create)
    job.begin_attempt(1)
    note_elsewhere(job.buckets.outputs, job.job_id)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    job.found.resolved = Resolved(
        tally=tally_rows(tally),
        keymap=job.pipeline.placed_by.digest(),
        steps=_steps_digest(job),
        named=tally.named or {},
        move=job.options.move,
    )
    _record_inputs(job, JobAccepted(job.job_id, dsort_version(), job.spec.canonical(), created))
    _record_movement(job)


def _of_the_result(job: Job) -> JobSpec:
    """The job's spec. If the job removes keys from a result, and its spec does not name the shards
    with the keys, all shards of the result are added to the spec."""
    base = job.found.base
    if not job.replaces_inputs or job.spec.input_format != InputFormat():
        return job.spec
    names = tuple(shard.name for shard in base.outputs)
    return job.spec.model_copy(update={"input_format": InputFormat(objnames=names)})


def _resolve_again(job: Job) -> None:
    """Resolve as an earlier attempt did: the inputs have to be the same."""
    before = job.attempt.before
    job.inputs = [InputShard(*row) for row in before.inputs]
    _name_outputs(job)
    job.found.resolved = resolved_before(job)
    if job.options.move == "auto":  # as in the attempt that began the job
        job.options = replace(job.options, move=job.found.resolved.move)
    if job.pipeline.reading.makes_shards:
        job.stop.wait_for(lambda: list_files_again(job))
    job.stop.wait_for(lambda: refuse_changed_inputs(job))
    if job.found.resolved.keymap != job.pipeline.placed_by.digest():
        what = " ".join(filter(None, (job.pipeline.placed_by.words, job.spec.ekm_file)))
        raise ChangedInputError(
            f"{what} changed since the job began",
            hint="put it back, or start the job again",
        )
    if job.found.resolved.steps != _steps_digest(job):
        raise ChangedInputError(
            "the code or a list of keys that transform.steps names changed since the job began",
            hint="put it back, or start the job again",
        )
    _compare_with_manifests(job, Tally())  # the first attempt has noted this tally
    job.reporter.note(tally_of(job.found.resolved.tally))
    job.found.movement = chosen = movement_for(job)
    known = before.movement
    # An earlier attempt divided index and spill into these partitions. But inputs that were mapped
    # then are mapped again only if they still fit.
    if known:
        way = EVERY_WAY[known.movement]
        if chosen.way.keeps_mappings or not way.keeps_mappings:
            job.found.movement = replace(chosen, way=way, partitions=known.partitions)
    if not job.attempt.retained(RESOLVED_FILE):  # only the report of an aborted attempt is there
        _record_inputs(job, before.accepted)
    _record_movement(job)
    job.buckets.outputs.delete(report_name(job.job_id))  # from here on the journal has it all


def _name_outputs(job: Job) -> None:
    if job.spec.keep_shards:
        job.outcome.names = output_names(job.spec, inputs=[shard.name for shard in job.inputs])
        fetch = job.options.fetch
        if fetch and not fetch.own:  # the job's own directories may have hidden files
            hidden = next((shard.name for shard in job.inputs if is_hidden(shard.name)), "")
            if hidden:
                text = f'a part of "{shortened(hidden)}" begins with a dot: such files are hidden'
                hint = "choose the inputs by input_format"
                raise SpecError([SpecProblem("keep_shards", text, hint)])


def _known_outputs(job: Job, names: Sequence[str]) -> dict[str, KnownOutput]:
    """The entries about the inputs ``names`` in the manifests of the input buckets, by name."""
    source = job.buckets.identities[0]
    inside: dict[int, dict[str, str]] = {}
    buckets: dict[int, Bucket] = {}
    for name in names:
        found, object_name = source.found(name)
        buckets[id(found)] = found.bucket
        inside.setdefault(id(found), {})[object_name] = name
    known: dict[str, KnownOutput] = {}
    for number, bucket in buckets.items():
        by_object = known_outputs(bucket, inside[number])
        known |= {inside[number][name]: wrote for name, wrote in by_object.items()}
    return known


def _compare_with_manifests(job: Job, tally: Tally) -> None:
    """Compare the inputs with the manifests of the jobs that wrote them."""
    names = [shard.name for shard in job.inputs]
    known = job.stop.wait_for(lambda: _known_outputs(job, names))
    compare_sizes(job.inputs, known, job.spec.config.incomplete_shards, tally)
    count_read_again(job.inputs, known, tally)
    if job.pipeline.result.checks_content:
        job.found.input_checksums = checksums(job.inputs, known)


def _record_inputs(job: Job, accepted: JobAccepted) -> None:
    """Store the spec and the inputs of the job. The retained file is stored before the journal, so
    that it exists if the journal has the inputs."""
    if isinstance(job.buckets.inputs, FilesBucket):  # shows which files changed
        job.attempt.retain(LISTING_FILE, job.buckets.inputs.listing.to_bytes())
    job.attempt.retain(RESOLVED_FILE, json.dumps(to_builtins(job.found.resolved)).encode())
    job.attempt.journal.append(accepted)
    rows = (InputRow(s.name, s.size_bytes, s.mtime_ns, s.etag) for s in job.inputs)
    job.attempt.journal.append(InputsResolved(tuple(rows)))


def _record_movement(job: Job) -> None:
    movement = job.found.movement
    job.attempt.journal.append(
        MovementChosen(
            movement=movement.way.name,
            partitions=movement.partitions,
            workers=movement.workers,
            buffer_bytes=movement.buffer_bytes,
            memory_bytes=movement.sizes.memory_bytes,
            scratch_bytes=movement.sizes.scratch_bytes,
            reason=movement.reason,
        )
    )
    job.attempt.journal.flush()


def _steps_digest(job: Job) -> str:
    """A digest that is equal for steps that leave the same records; "" without steps."""
    text = " ".join(step.digest() for step in job.pipeline.steps)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


_NAMES = ("utf-8", "surrogateescape")


def files_of(
    spec: JobSpec,
    bucket: Bucket,
    options: RunOptions,
    tally: Tally,
    *,
    known_classes: Mapping[bytes, int] | None = None,
    check: Callable[[], None] = lambda: None,
    written_by: WrittenBy | None = None,
) -> FilesBucket:
    """The files that the ``ingest`` of a spec names, as a bucket of shards. ``bucket``: of the
    inputs. The files are listed once the bucket is used; ``known_classes``, ``written_by`` and
    errors: as for ``list_members``."""
    from dsort.keymap.fetch import TextKind
    from dsort.loose_files.gather import list_members  # jobs over shards load neither

    rules = spec.ingest
    assert rules is not None
    buckets = [bucket_named(bucket, source.name) for source in spec.sources]

    def read(location: FileLocation) -> bytes:
        text = named_text(location, TextKind("file", "the path", "copy it", InputError), options)
        return text.encode("utf-8", "surrogateescape")

    def listed() -> Listing:
        return list_members(
            rules,
            spec.sources,
            buckets,
            tally,
            read,
            known_classes=known_classes,
            check=check,
            written_by=written_by,
        )

    return FilesBucket(buckets, listed)


def list_files(job: Job, tally: Tally, written_by: WrittenBy | None = None) -> None:
    """List the files of the job and make them its shards. ``written_by``: as for
    ``list_members``."""
    for source in job.spec.sources:
        refuse_absent(source, bucket_named(job.buckets.inputs, source.name))
    _refuse_outputs_inside(job)
    check = job.stop.raise_if_requested
    known = _known_classes(job)
    files = files_of(
        job.spec,
        job.buckets.inputs,
        job.options,
        tally,
        known_classes=known,
        check=check,
        written_by=written_by,
    )
    job.buckets.inputs = files
    assert files.listing is not None


def list_files_again(job: Job) -> None:
    """List the files again, for a job that an earlier attempt began. ``ChangedInputError`` unless
    all files are as that attempt found them."""
    list_files(job, Tally())
    if resolve_inputs(job.spec, job.buckets.inputs, Tally()) == job.inputs:
        return
    assert isinstance(job.buckets.inputs, FilesBucket)
    kept = job.attempt.retained(LISTING_FILE)
    if kept:
        from dsort.loose_files.listing import Listing

        try:
            before = Listing.read(ColumnFile(kept, LISTING_FILE))
        except StorageError:
            before = job.buckets.inputs.listing
        refuse_changed_files(FilesBucket(job.buckets.inputs.buckets, lambda: before))
    raise ChangedInputError(
        "since the job began, files of the inputs or their metadata were added, removed or changed",
        hint="restore the files, or start the job again",
    )


def classes_of(job: Job) -> Mapping[str, int]:
    """The number of each class: of the job's files, or else of the result that the job amends."""
    base = job.found.base
    if isinstance(job.buckets.inputs, FilesBucket):
        found = job.buckets.inputs.listing.classes
        if found:
            return {name.decode(*_NAMES): number for name, number in found.items()}
    return base.classes


def _known_classes(job: Job) -> Mapping[bytes, int] | None:
    """The numbers of the classes of the result to which the job adds files; None if there is no
    such result, or if its classes have no numbers."""
    base = job.found.base
    if not job.amends:
        return None
    if not base.classes:
        own = [base.spec, *(part.spec for part in base.history.earlier)]
        rules = [each.ingest for each in own if each.ingest]
        if any(each.layout == "folders" and each.class_map is None for each in rules):
            raise InputError(
                f"the manifest of job {base.job_id} has no numbers of classes",
                hint="an earlier version of dsort wrote the manifest: ingest all files again",
            )
        return None
    return {name.encode(*_NAMES): number for name, number in base.classes.items()}


def _refuse_outputs_inside(job: Job) -> None:
    """``SpecError`` if outputs would lie among the input files: a later listing would contain
    them."""
    source, target = job.buckets.identities  # of the buckets: nothing is listed yet
    where = [target.identity(placed_at(place, "x")) for place in target.buckets]
    for each in job.spec.sources:
        bucket = source.buckets[each.name]
        inside = directory_of(each.format.prefix or "")
        start = bucket.identity(f"{inside}x").removesuffix("x")
        if any(name.startswith(start) for name in where):
            text = f"is inside the input {each.bucket.uri}: outputs would be listed as files"
            hint = "use another bucket, or an input_format.prefix that excludes the outputs"
            raise SpecError([SpecProblem("output_bck", text, hint)])
