"""Makes the shards of a view: byte for byte the shards that its job would have written without a
view."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from msgspec.structs import replace

from dsort.containers.registry import container_of
from dsort.errors import InputError, NamesTakenError
from dsort.job.sidecars import containers_named, directory_file_names, directory_files
from dsort.naming.names import first_few
from dsort.options import RunOptions, open_with_settings
from dsort.reading.view import ViewBucket, open_view, refuse_changed
from dsort.results.earlier_results import later_than
from dsort.results.job_ids import new_job_id
from dsort.results.journal import (
    Journal,
    discard_run,
    journal_left,
    list_job_directories,
)
from dsort.results.journal_entries import (
    Committing,
    JobAccepted,
    JournalState,
    Planned,
    PlannedRow,
)
from dsort.results.layout import manifest_name, staged_prefix
from dsort.results.lease import Lease, read_hold
from dsort.results.manifest import Making, Manifest, ManifestOutput, write_manifest
from dsort.results.report import Event, JobReport, report_of_manifest
from dsort.results.reporter import Reporter
from dsort.results.transaction import Transaction
from dsort.scratch.logs import ShardCreated
from dsort.settings import resolve_ref
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef
from dsort.storage.small_objects import Staged, stage, stage_file
from dsort.version import dsort_version

__all__ = ["materialize_view"]

WINDOW_BYTES: Final = 8 << 20
AT_ONCE: Final = 4
"""The number of shards that are copied at once. Each takes a window of memory."""


def materialize_view(
    view: Manifest,
    files: Bucket,
    destination: BucketRef,
    *,
    options: RunOptions,
    on_event: Callable[[Event], None],
    stop: StopFlag,
) -> JobReport:
    """Write the shards of ``view``, whose files are in ``files``, into a bucket, and return the
    report. ``InputError`` if this is no view, ``NamesTakenError`` if an object has the name of a
    shard. Files that dead materializations have left in the bucket are removed first."""
    if view.spec.output != "view":
        text = f"the result of job {view.job_id} is no view: it has its shards"
        raise InputError(text, hint="output: view, or --view, makes a view")
    shards, source = open_view(view, files, options)
    target = resolve_ref(destination, options.settings)
    spec = {"output_bck": target, "overwrite": False, "remove_stale": False}
    wanted = replace(
        shards, job_id=new_job_id(), spec=shards.spec.model_copy(update=spec), totals={}
    )
    bucket = open_with_settings(target, root=options.root, settings=options.settings)
    bucket.create()
    done = _after_deaths(bucket, view.job_id)
    if done is not None:
        return done
    lease = Lease.take(bucket, wanted.job_id, attempt=1)
    lease.keep(on_lost=partial(_stop_for, stop), on_stop=partial(_stop_for, stop, "`dsort stop`"))
    try:
        copy = _Copy(wanted, source, bucket, on_event, stop)
        copy.begin(view.job_id)
        made = copy.staged()
        # Again: files are not pinned, so one may have changed while it was read.
        refuse_changed(view.inputs, source.inputs)
        lease.check()
        return copy.commit(made)
    finally:
        # If the lease is lost, another process removes what is left.
        lease.close() if lease.lost else discard_run(
            bucket, wanted.job_id, lease=lease, names=[x.name for x in wanted.outputs]
        )


def _stop_for(stop: StopFlag, why: str) -> None:
    stop.request(signal.SIGTERM, why)


def _after_deaths(bucket: Bucket, view_id: str) -> JobReport | None:
    """Remove the files that dead materializations have left in ``bucket``. If one of them had
    written the manifest for the view of job ``view_id``, return the report of that one."""
    report = None
    for each in list_job_directories(bucket):
        if not each.has_journal or read_hold(bucket, each.job_id).live:
            continue
        state = journal_left(bucket, each)  # empty if damaged: `dsort gc` removes it then
        if not state.materializes:
            continue
        is_whole = _end(bucket, each.job_id, state)
        if is_whole and state.planned.digest == view_id:
            report = _report(bucket, each.job_id)
    return report


def _end(bucket: Bucket, job_id: str, state: JournalState) -> bool:
    """Remove everything that a materialization left, except the shards of one that had written its
    manifest. Returns whether it had."""
    names = [row.name for row in state.planned.shards]
    prefix = staged_prefix(job_id)
    given = {f"{prefix}{at}": (names[at], each.receipt) for at, each in state.created.items()}
    lease = Lease.take(bucket, job_id, attempt=state.attempts + 1)
    lease.keep()
    try:
        is_whole = bool(bucket.stat_many([manifest_name(job_id)]))
        if not is_whole and state.committing:
            Transaction(bucket, job_id).roll_back(names, given, notes_replaced=False)
        lease.check()
        discard_run(bucket, job_id, lease=lease, names=names)
        return is_whole
    finally:
        lease.close()


def _report(bucket: Bucket, job_id: str) -> JobReport:
    return report_of_manifest(json.loads(bucket.read(manifest_name(job_id))), bucket.uri)


class _Copy:
    """One materialization, from the bytes of a view to a manifest."""

    def __init__(
        self,
        wanted: Manifest,
        source: ViewBucket,
        bucket: Bucket,
        on_event: Callable[[Event], None],
        stop: StopFlag,
    ) -> None:
        """``wanted``: the manifest, without checksums."""
        self._wanted = wanted
        self._source = source
        self._bucket = bucket
        self._stop = stop
        self._prefix = staged_prefix(wanted.job_id)
        self._journal = Journal(bucket, wanted.job_id, 1)
        inputs = [container_of(each.extension) for each in wanted.spec.sources]
        self._reporter = Reporter(wanted.job_id, wanted.spec, inputs, on_event)

    def begin(self, view_id: str) -> None:
        """Write the names that objects will get into the journal, which is read if this process
        dies."""
        job_id, spec, outputs = self._wanted.job_id, self._wanted.spec, self._wanted.outputs
        names = [each.name for each in outputs]
        beside = directory_file_names(containers_named(spec, names), names)
        self._refuse_taken([*names, *beside])
        rows = [PlannedRow(x.name, x.records, x.members, x.payload_bytes, 0) for x in outputs]
        rows += [PlannedRow(name, 0, 0, 0, 0) for name in beside]
        now = later_than(None)
        self._journal.append(JobAccepted(job_id, dsort_version(), spec.canonical(), now))
        self._journal.append(Planned(view_id, tuple(rows)))
        self._journal.flush()

    def staged(self) -> list[Staged]:
        """All shards, and the files that stand beside them, stored without names."""
        outputs = self._wanted.outputs
        total = sum(each.file_bytes for each in outputs)
        made: list[Staged] = []
        with (
            self._reporter.phase("create", shards=len(outputs), bytes_total=total),
            ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dsort-materialize") as threads,
        ):
            for output, each in zip(
                outputs, threads.map(self._copied, range(len(outputs))), strict=True
            ):
                made.append(each)
                size = output.file_bytes
                self._reporter.advance(shards=1, records=output.records, bytes_done=size)
        written = [replace(x, xxh3=y.xxh3) for x, y in zip(outputs, made, strict=True)]
        self._wanted = replace(self._wanted, outputs=written)
        return [*made, *self._beside(written)]

    def commit(self, made: Sequence[Staged]) -> JobReport:
        """Give everything its name, and write the manifest."""
        job_id, bucket = self._wanted.job_id, self._bucket
        names = [each.name for each in made]
        given = {each.token: (each.name, each.receipt) for each in made}
        for number, each in enumerate(made):
            shard = ShardCreated(number, each.xxh3, each.receipt, "", each.size_bytes)
            self._journal.append(shard)
        self._journal.append(Committing())
        self._journal.flush()
        transaction = Transaction(bucket, job_id, between=self._stop.raise_if_requested)
        try:
            transaction.publish(made, (), self._manifest)
        except BaseException:
            # Before the shards: no manifest may list shards that are gone.
            bucket.delete(manifest_name(job_id))
            transaction.roll_back(names, given, notes_replaced=False)
            raise
        return _report(bucket, job_id)

    def _refuse_taken(self, names: Sequence[str]) -> None:
        there = self._bucket.stat_many(names)
        if there:
            text = f"{self._bucket.uri} has objects of these names: {first_few(sorted(there))}"
            raise NamesTakenError(text, hint="name an empty bucket")

    def _copied(self, number: int) -> Staged:
        output = self._wanted.outputs[number]
        return stage(
            self._bucket,
            f"{self._prefix}{number}",
            output.name,
            output.file_bytes,
            self._pieces(output),
            may_exist=False,
        )

    def _pieces(self, output: ManifestOutput) -> Iterator[memoryview]:
        window = memoryview(bytearray(min(WINDOW_BYTES, output.file_bytes)))
        with self._source.open(output.name) as shard:
            for begin in range(0, output.file_bytes, WINDOW_BYTES):
                self._stop.raise_if_requested()
                piece = window[: min(WINDOW_BYTES, output.file_bytes - begin)]
                shard.read_into(piece, begin)
                yield piece

    def _beside(self, outputs: Sequence[ManifestOutput]) -> Iterator[Staged]:
        """The files that readers of the container need in each directory."""
        containers = containers_named(self._wanted.spec, [each.name for each in outputs])
        if not any(each.index for each in containers):
            return
        schemas = [self._source.extents(each.name).schema for each in outputs]
        described = [
            each.with_schema(schema) if schema else each
            for each, schema in zip(containers, schemas, strict=True)
        ]
        files = directory_files(described, outputs)
        for number, (name, data) in enumerate(files, len(outputs)):
            yield stage(self._bucket, f"{self._prefix}{number}", name, len(data), [data])

    def _manifest(self) -> Staged:
        job_id, phases = self._wanted.job_id, self._reporter.state.seconds()
        move = {"way": "view", "reason": "", "runtime": "local", "workers": AT_ONCE}
        name = manifest_name(job_id)
        with tempfile.TemporaryFile() as file:
            write_manifest(
                file, replace(self._wanted, created=later_than(None)), Making(move, phases)
            )
            return stage_file(self._bucket, f"{self._prefix}manifest", name, file)
