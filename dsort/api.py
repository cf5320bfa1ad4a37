"""dsort from Python: ``run``, ``plan`` or ``resume`` a job, ``verify`` its result."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dsort.errors import (
    CodeRefusedError,
    DsortError,
    InputError,
    InvariantError,
    JobConflictError,
    JobStoppedError,
    SpecError,
)
from dsort.job.coordinator import plan_job, run_job
from dsort.job.job import Job
from dsort.job.resume import state_of
from dsort.opened_job import Listener, open_place, opened_job
from dsort.options import RunOptions, default_options
from dsort.results.job_ids import later_job_id, new_job_id
from dsort.results.journal import discard_run, refuse_unnoted
from dsort.results.journal_entries import JournalState
from dsort.results.layout import manifest_name, report_name
from dsort.results.lease import Lease, last_attempt
from dsort.results.manifest import parse_manifest, read_manifest
from dsort.results.report import Event, JobReport, JobWarning, Progress
from dsort.settings import find_transform, resolve_ref
from dsort.spec.load import load_spec as read_spec
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef
from dsort.storage.registry import parse_address

if TYPE_CHECKING:
    from dsort.amendments import Removal
    from dsort.job.streams import Streams
    from dsort.reading.results import Result
    from dsort.spec.outputs import Hook
    from dsort.verification.findings import VerifyReport

__all__ = [
    "append",
    "load_spec",
    "materialize",
    "plan",
    "remove",
    "resume",
    "resume_on_shard",
    "run",
    "verify",
]


def load_spec(source: str | Path | Mapping[str, Any]) -> JobSpec:
    """The spec in a file (JSON or YAML), in a text (likewise), or in a mapping.

    Older names and fields without effect give a ``UserWarning``. ``SpecError`` has all problems.
    """
    return _spec(source, default_options())


def _spec(source: object, options: RunOptions) -> JobSpec:
    """``source`` as a spec. Warnings name the line that called the caller of this function."""
    if isinstance(source, JobSpec):
        return source
    if not isinstance(source, (Mapping, str, Path)):
        kind = type(source).__name__
        raise SpecError(f"a spec is a JobSpec, a mapping, a path or a text, not {kind}")
    how: Any = {"ais_is_there": options.settings.ais_is_there, "transforms": find_transform}
    loaded = parse_spec(source, **how) if isinstance(source, Mapping) else read_spec(source, **how)
    for text in loaded.warnings:
        warnings.warn(text, UserWarning, stacklevel=3)
    return loaded.spec


def run(
    spec: JobSpec | Mapping[str, Any],
    *,
    runtime: str | None = None,
    options: RunOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
    job_id: str = "",
) -> JobReport:
    """Run a job to its end and return its report. A spec with ``dry_run`` is only planned; a
    mapping is read as :func:`load_spec` reads it.

    ``job_id``: an id from ``new_job_id``, if the caller needs the id before the job runs.
    ``runtime``: ``local`` or ``ray``, in place of the runtime of ``options``. ``on_progress`` is
    called in this thread with every :class:`~dsort.results.report.Progress`, ``on_event`` with
    every :data:`~dsort.results.report.Event` (phases, warnings, progress). A signal handler or
    another thread ends the job by ``stop``. Raises ``DsortError``; no part of the result is visible
    then. A job that a signal, Ctrl-C or a full disk has stopped can be continued with
    :func:`resume`; any other failed job leaves a report in the bucket at most. ``on_success`` or
    ``on_failure`` of the spec is called at the end; a call that fails is a warning.
    """
    options = options or default_options()
    if runtime is not None:
        options = replace(options, runtime=runtime)
    spec = _spec(spec, options)
    if options.overwrite and not spec.overwrite:
        spec = spec.model_copy(update={"overwrite": True})  # for later attempts, too
    _refuse_unknown_commands(spec, options)
    listener = _listener(on_progress, on_event)
    job_id = job_id or new_job_id()
    job: Job | None = None
    try:
        with opened_job(spec, options, listener, stop, job_id=job_id) as (job, tally):
            if spec.dry_run:
                planned = plan_job(job, tally)
                return replace(planned, output_uri=job.buckets.outputs.uri, plan=None)
            report = run_job(job, tally)
            if job.buckets.streams is not None and job.buckets.streams.output is not None:
                report = _delivered(job, job.buckets.streams, report)
    except JobStoppedError as stopped:
        if job is None or not job.attempt.has_begun:
            stopped.hint = "nothing is left of the job: it had written no file yet"
        raise
    except DsortError as error:
        if not spec.dry_run:
            _tell(spec.on_failure, spec, job_id, error, options, listener, stop)
        raise
    _tell(spec.on_success, spec, job_id, report, options, listener, stop)
    return report


def _delivered(job: Job, streams: Streams, report: JobReport) -> JobReport:
    """Write the only output shard to standard output, and return the report."""
    if not job.outcome.planned_names:
        raise InputError(
            "no record is left for standard output, and a shard needs at least one record",
            hint="look at the steps of the spec, and at its inputs",
        )
    streams.deliver(job.outcome.planned_names[0], job.stop)
    return replace(report, output_uri=job.spec.output_bck.uri, manifest_name=None)


def _refuse_unknown_commands(spec: JobSpec, options: RunOptions) -> None:
    if spec.on_success is None and spec.on_failure is None:
        return
    from dsort.results.hooks import unknown_commands

    problems = unknown_commands(spec, dict(options.settings.commands))
    if problems:
        raise SpecError(problems)


def _tell(
    hook: Hook | None,
    spec: JobSpec,
    job_id: str,
    end: JobReport | DsortError,
    options: RunOptions,
    listener: Listener,
    stop: StopFlag | None,
) -> None:
    """Call a hook. A failed call, or a stop during it, does not change how the job ended."""
    if hook is None:
        return
    from dsort.results.hooks import call_hook, job_notice  # loads an HTTP client

    notice, commands = job_notice(spec, job_id, end), dict(options.settings.commands)
    call = partial(call_hook, hook.called, notice, commands=commands, policy=options.fetch)
    try:
        failures = call() if stop is None else stop.wait_for(call)
    except JobStoppedError:
        failures = ["a hook may not have received its notice: the job did not wait for it"]
    for failure in failures:
        listener(JobWarning(job_id, "hook", failure))


def resume(
    job_id: str,
    bucket: str | BucketRef,
    *,
    options: RunOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
    expected: JobSpec | None = None,
) -> JobReport:
    """Continue a job that died or was stopped, from its files in the output bucket.

    ``options``: how to run the rest; the spec stays that of the job. ``JobConflictError`` if the
    job is running, has left no files, or has left files with another spec than ``expected``: a
    stranger with write access to the bucket can write such files. ``ChangedInputError`` if its
    inputs have changed.
    """
    options = options or default_options()
    held = _opened(bucket, options, stop)
    known = state_of(held, job_id, report_name(job_id))
    spec = parse_spec(dict(known.accepted.spec)).spec
    _refuse_streams(spec, job_id)
    if spec.on_shard is not None:
        _refuse_unasked_program(options)
    named = _opened(spec.output_bck, options, stop)
    _refuse_another_place(job_id, held, named)
    if expected is not None and spec != expected:
        raise JobConflictError(
            f"the files of job {job_id} in {held.uri} have another spec than the job",
            hint="another process writes there; begin the job again, with a new id",
        )
    listener = _listener(on_progress, on_event)
    with opened_job(spec, options, listener, stop, job_id=job_id, before=known) as (job, tally):
        refuse_unnoted(job.buckets.outputs, job_id)  # before anything is undone there
        job.begin_attempt(last_attempt(held, job_id) + 1)
        job.attempt.before = _state_now(job, held)
        return run_job(job, tally)


def _opened(bucket: str | BucketRef, options: RunOptions, stop: StopFlag | None) -> Bucket:
    ref = parse_address(bucket) if isinstance(bucket, str) else bucket
    return open_place(resolve_ref(ref, options.settings), options, stop)


def _stored(result: Result, options: RunOptions, place: str | None) -> tuple[bytes, str | None]:
    """(manifest of ``result`` in bytes; its bucket: ``place``, or where it was found)."""
    from dsort.reading.results import read_result  # no job that runs needs it

    return read_result(result, options, place)


def remove(
    result: Result,
    keys: str | Path,
    *,
    place: str | None = None,
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> Removal:
    """Remove records from a result. Each shard with such records is written again without them.

    ``result``: the newest version, in any form that :func:`verify` takes, in the bucket ``place``
    (None: the bucket of the manifest). ``keys``: a file with one record key a line. All shards
    change in one commit, and are searched for the keys afterwards. Raises ``DsortError``; the
    result is unchanged then.
    """
    from dsort.amendments import Removal, find_keys, read_keys, remove_fields

    options = options or default_options()
    manifest, place = _stored(result, options, place)
    base, wanted = parse_manifest(manifest), read_keys(Path(keys))
    place = place or base.spec.output_bck.uri
    with contextlib.ExitStack() as stack:
        flag = stop or stack.enter_context(StopFlag())
        bucket = _opened(place, options, flag)
        found = find_keys(base, bucket, wanted, stop=flag)
        if not found.shards:
            return Removal(found, None)
        spec = _spec(remove_fields(base, place, found.shards, Path(keys)), options)
        job_id = later_job_id(base.job_id)
        report = run(spec, options=options, on_event=on_event, stop=flag, job_id=job_id)
        made = read_manifest(bucket, report.job_id)
        left = find_keys(made, bucket, wanted, names=found.shards, stop=flag)
        if left.records:
            raise InvariantError(f"{left.records:,} records have keys that were removed")
    return Removal(found, report)


def append(
    result: Result,
    source: str | BucketRef | Mapping[str, str],
    *,
    place: str | None = None,
    template: str | None = None,
    output_format: str | None = None,
    duplicate_keys: str | None = None,
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> JobReport:
    """Add the shards of the bucket ``source`` to a result, in the order and sizes of its spec.

    ``result``: the newest version, in any form that :func:`verify` takes, in the bucket ``place``
    (None: the bucket of the manifest). ``source``: for a result of a join, a bucket for each input,
    by name. ``template``: the names of the shards to add; None: all shards. ``output_format``: the
    template of new names; None: the names of the result continue. ``duplicate_keys``: as in a spec,
    and also about keys that the result already has; None: as in the spec of the result. All shards
    are added in one commit. Raises ``DsortError``; the result is unchanged then.
    """
    from dsort.amendments import append_fields

    options = options or default_options()
    manifest, place = _stored(result, options, place)
    base = parse_manifest(manifest)
    fields = append_fields(
        base,
        place or base.spec.output_bck.uri,
        source,
        template=template,
        output_format=output_format,
        duplicate_keys=duplicate_keys,
    )
    spec, job_id = _spec(fields, options), later_job_id(base.job_id)
    return run(spec, options=options, on_event=on_event, stop=stop, job_id=job_id)


def materialize(
    result: Result,
    destination: str | BucketRef,
    *,
    place: str | None = None,
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> JobReport:
    """Write the shards of a view into the bucket ``destination``, byte for byte as the same job
    without a view would have written them.

    ``result``: the view, in any form that :func:`verify` takes, in the bucket ``place`` (None: the
    bucket of the manifest). Raises ``DsortError``; ``destination`` is as before then.
    """
    from dsort.materialization import materialize_view

    options = options or default_options()
    manifest, place = _stored(result, options, place)
    view = parse_manifest(manifest)
    with contextlib.ExitStack() as stack:
        flag = stop or stack.enter_context(StopFlag())
        files = _opened(place or view.spec.output_bck, options, flag)
        target = parse_address(destination) if isinstance(destination, str) else destination
        return materialize_view(
            *(view, files, target), options=options, on_event=_listener(None, on_event), stop=flag
        )


def resume_on_shard(
    job_id: str,
    bucket: str | BucketRef,
    *,
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
    expected: JobSpec | None = None,
) -> int:
    """Run ``on_shard`` of a finished job for the output shards for which it did not run; returns
    the number of these shards. ``expected``: the spec that the manifest must have; None: any.
    ``ForbiddenError`` unless ``options`` allow programs that are named by a bucket;
    ``ShardCommandError`` if the program fails; ``JobConflictError`` while the job runs the program
    itself."""
    from dsort.job.amend import is_removal
    from dsort.job.programs import run_on_shards, shards_left

    options = options or default_options()
    held = _opened(bucket, options, stop)
    manifest = read_manifest(held, job_id)
    if expected is not None and manifest.spec != expected:
        raise JobConflictError(f"the manifest of job {job_id} in {held.uri} is of another job")
    wanted = manifest.spec.on_shard
    if is_removal(manifest) or wanted is None:
        return 0
    outputs = manifest.parts()[-1].outputs  # earlier parts were there already
    left = shards_left(held, job_id, len(outputs))
    if not left:
        return 0
    _refuse_unasked_program(options)
    listener = _listener(None, on_event)
    with contextlib.ExitStack() as stack:
        flag = stop or stack.enter_context(StopFlag())
        lease = Lease.take(held, job_id, attempt=last_attempt(held, job_id) + 1)
        stack.callback(discard_run, held, job_id, lease=lease)

        def end(why: str) -> None:
            flag.request(signal.SIGTERM, why)

        lease.keep(
            on_lost=lambda why: end(f"the loss of its lease: {why}"),
            on_stop=lambda: end("`dsort stop`"),
        )
        run_on_shards(
            wanted,
            job_id,
            held,
            outputs,
            stop=flag,
            warn=lambda text: listener(JobWarning(job_id, "on_shard", text)),
        )
    return len(left)


def _refuse_unasked_program(options: RunOptions) -> None:
    if not options.may_run_code:
        raise CodeRefusedError(
            "on_shard of the job runs a program that the bucket names",
            hint="--run-code allows it, for a job that is yours",
        )


def _refuse_streams(spec: JobSpec, job_id: str) -> None:
    if spec.reads_streams:
        raise InputError(
            f"job {job_id} read a stream or the output of programs, now gone: {spec.input_uri}",
            hint="start the job again, with the stream from its beginning",
        )


def _refuse_another_place(job_id: str, held: Bucket, named: Bucket) -> None:
    """A stranger with write access to ``held`` can leave a job there that writes elsewhere."""
    places = [bucket.local_path("x") for bucket in (held, named)]
    here, there = (place and os.path.realpath(place) for place in places)
    if held.uri != named.uri and (here is None or here != there):
        raise JobConflictError(
            f"the files of job {job_id} in {held.uri} are of a job that writes to {named.uri}",
            hint="name the data root that the job was started with: --root",
        )


def _state_now(job: Job, held: Bucket) -> JournalState:
    """The state of a job, read after this process took the lease: another process may have changed
    the job before."""
    with contextlib.ExitStack() as stack:
        stack.callback(job.attempt.lease.release)
        if not held.stat_many([manifest_name(job.job_id)]):
            known = state_of(held, job.job_id, report_name(job.job_id))
            stack.pop_all()
            return known
    discard_run(held, job.job_id)  # our claim, which a finished job does not need
    raise JobConflictError(
        f"job {job.job_id} has finished meanwhile", hint=f"dsort show {job.job_id}"
    )


def plan(
    spec: JobSpec | Mapping[str, Any],
    *,
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> JobReport:
    """Plan a job, without a write to any bucket. ``spec``: as in :func:`run`."""
    options = options or default_options()
    spec = _spec(spec, options)
    with opened_job(spec, options, _listener(None, on_event), stop) as (job, tally):
        return plan_job(job, tally)


def verify(
    result: Result,
    *,
    output_uri: str | None = None,
    max_expansion: float | None = None,
    run_code: bool = False,
    sample: float | None = None,
    seed: str = "",
    options: RunOptions | None = None,
    on_event: Listener | None = None,
    stop: StopFlag | None = None,
) -> VerifyReport:
    """Read a result and its inputs again, and compare the result with its manifest and its spec.

    ``result``: the report that :func:`run` returned, the path or URI of a manifest or of a job's
    directory, a bucket (its newest result), a job id, or the bytes of a manifest. ``output_uri``:
    the bucket of the result, if neither the place of the manifest nor the spec shows it.
    ``max_expansion``: the maximum length of a decoded shard, as a multiple of its stored length;
    None: inputs have the limit of the job, outputs the limit in the manifest. ``run_code``: steps
    run the code in the manifest once more, and their records are compared. ``sample``: only this
    part of the output shards is read, and no input; ``seed`` chooses these shards ("": the job's
    id). The report lists differences. Raises ``DsortError`` if the result cannot be read.
    """
    from dsort.verification.verify import verify_result  # loads as much again as a job

    options = options or default_options()
    manifest, output_uri = _stored(result, options, output_uri)
    return verify_result(
        manifest,
        options,
        output_uri=output_uri,
        max_expansion=max_expansion,
        run_code=run_code,
        sample=sample,
        seed=seed,
        on_event=_listener(None, on_event),
        stop=stop,
    )


def _listener(
    on_progress: Callable[[Progress], None] | None, on_event: Listener | None
) -> Listener:
    def listen(event: Event) -> None:
        if on_event is not None:
            on_event(event)
        if on_progress is not None and isinstance(event, Progress):
            on_progress(event)

    return listen
