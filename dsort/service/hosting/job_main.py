"""The process of one attempt at a job: ``python -m dsort.service.hosting.job_start JOB ATTEMPT``.
The process exits with 0 when the job has ended, with any outcome. After any other exit code the job
still counts as running, and the next process resumes the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy.exc import SQLAlchemyError

from dsort import api
from dsort.data.tally import Tally
from dsort.errors import (
    DsortError,
    ForbiddenError,
    InvariantError,
    JobConflictError,
    JobStoppedError,
    ObjectNotFoundError,
    SpecError,
    StorageFullError,
)
from dsort.job.amend import forget_removed
from dsort.job.resume import state_of
from dsort.job.setup.new_job import load_keymap, output_names
from dsort.job.setup.resources import store_limits
from dsort.log_lines import LineFormatter, log_to_stderr, logger_of, one_sentence
from dsort.naming.overlap import final_templates
from dsort.options import RunOptions
from dsort.results.journal import discard_run
from dsort.results.layout import manifest_name, report_name
from dsort.results.lease import Lease, last_attempt, read_hold, stop_job
from dsort.results.lease_record import Standing
from dsort.results.manifest import Manifest, parse_manifest
from dsort.results.report import Event, JobReport, report_of_manifest
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow, joined_uris, main_uri, shown_uris
from dsort.service.hosting.process import (
    SILENT_S_MAX,
    Host,
    JobEnvironment,
    log_event,
    log_path,
    offer_to_oom_killer,
    policy_of_job,
)
from dsort.service.hosting.reporter import Reporter, retry_while_database_is_away
from dsort.service.jobs.queue import Ending, claim_outputs, note_process
from dsort.service.jobs.store import JobStore
from dsort.service.problems import problem_of
from dsort.service.schedules.retention import run_after_commit
from dsort.service.security.guard import hidden_names, place_of
from dsort.settings import resolve_ref
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from dsort.storage.small_objects import read_small

NOT_OURS = 3
NOT_RECORDED = 4
PLANNED_SHARDS_MAX = 10_000
SILENCE_S_MAX = SILENT_S_MAX / 3
"""The longest silence of the database. A process that waits for a dead connection sends no
heartbeats, and would be taken for dead."""

LOOK_S = 1.0
MANIFEST_BYTES_MAX = 4 << 30

log = logger_of("service")


def main(arguments: list[str]) -> int:
    """Do the attempt that the command line names; returns the exit code of the process."""
    offer_to_oom_killer()
    job_id, attempt = arguments[0], int(arguments[1])
    job_environment = JobEnvironment.from_environment()
    url = job_environment.database_url  # the service has already updated the tables
    with (
        StopFlag() as stop,
        log_to_stderr(job_environment.log_level, "info", LineFormatter(is_of_attempt=True)),
        open_database(
            url, connections_max=2, migrate=False, silence_s_max=SILENCE_S_MAX
        ) as database,
    ):
        # SIGTERM and SIGINT are meant for the process and not for the job (a machine shuts down):
        # the engine keeps what is done, and the job goes back into the queue. If a user stops the
        # job, the process reads the request in the job's row.
        received: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, partial(_leave, stop, received))
        pid, started = Host().this_process()

        def begin() -> JobRow | None:
            is_ours = note_process(database, job_id, attempt, pid=pid, started=started)
            found = JobStore(database).get(job_id) if is_ours else None
            return found if found is not None and found.attempt == attempt else None

        row = retry_while_database_is_away(begin)
        if row is None:
            log.warning("attempt %d of job %s is not the current attempt", attempt, job_id)
            return NOT_OURS
        log.info("job %s, attempt %d, process %d", job_id, attempt, pid)
        return _attempt(database, row, job_environment, stop, received)


def _attempt(
    database: Database,
    row: JobRow,
    job_environment: JobEnvironment,
    stop: StopFlag,
    received: Sequence[int],
) -> int:
    reporter = Reporter(database, row.job_id, row.attempt, stop, _lost)
    # A stop that an earlier process of the job did not carry out.
    if row.stop_asked_at is not None:
        why = f"a request: {row.stop_reason or ''}".rstrip(": ")
        stop.request(signal.SIGTERM, why, discards=True)
    reporter.start()
    result: dict[str, Any] | None = None
    ended_with: Exception | None = None
    try:
        result = _do(database, row, job_environment, reporter, stop)
    except SQLAlchemyError as error:  # retries for ten minutes have failed
        log.error("the job is left for another process to resume: %s", error)
        return NOT_RECORDED
    except Exception as error:  # noqa: BLE001 - the error is stored as the outcome of the job
        ended_with = error
    ending = None
    if received and isinstance(ended_with, JobStoppedError):
        log.info("the job goes back into the queue: %s", ended_with)
    else:
        ending = _ending(row.job_id, ended_with, result)
        log.info("the job has %s", ending.state if ending.state != "stopped" else "been stopped")
    for stream in (sys.stderr, sys.stdout):
        # The job does not fail if its log cannot be written (full disk).
        with contextlib.suppress(OSError):
            stream.flush()
    reporter.note_log(log_event(log_path(job_environment.state_dir, row.job_id, row.attempt)))
    if ending is None:
        name = signal.Signals(received[0]).name
        return 0 if reporter.leave(f"its process {os.getpid()} received {name}") else NOT_RECORDED
    return 0 if reporter.end(ending) else NOT_RECORDED


def _do(
    database: Database,
    row: JobRow,
    job_environment: JobEnvironment,
    reporter: Reporter,
    stop: StopFlag,
) -> dict[str, Any]:
    """The report of the job, in JSON types."""
    options = job_environment.options()
    assert options.fetch is not None, "the service decides what its jobs may touch"
    options = replace(options, fetch=policy_of_job(options.fetch, row))
    job = JobAttempt.of(row, options, reporter, stop)
    _refuse_elsewhere(job, job_environment)
    if row.kind == "plan":
        return _shortened(job.plan().to_dict())
    if row.claims is None:
        claims = claims_of_keymap(job)
        if not retry_while_database_is_away(
            lambda: claim_outputs(database, row.job_id, row.attempt, claims)
        ):
            raise JobConflictError(f"attempt {row.attempt} of job {row.job_id} is not the last one")
    result = job.run().to_dict()
    if row.after_commit is not None:
        warnings = retry_while_database_is_away(
            lambda: run_after_commit(database, row.job_id, job_environment.open_alone)
        )
        for warning in warnings:
            reporter(warning)
    return result


def _refuse_elsewhere(job: JobAttempt, job_environment: JobEnvironment) -> None:
    """``ForbiddenError`` if the buckets of the spec are not the places that were allowed when the
    job was submitted: this replica has another root, or a link has changed."""
    root = job_environment.run.root
    inputs = joined_uris([place_of(source.bucket, root) for source in job.spec.sources])
    targets = (target.bucket for target in job.spec.targets if target.bucket is not None)
    outputs = joined_uris([place_of(ref, root) for ref in (job.spec.output_bck, *targets)])
    for place, allowed in (
        (inputs, job.row.input_uri),
        (outputs, job.row.output_uri),
    ):
        if place != allowed:
            raise ForbiddenError(
                f"the job was submitted for {shown_uris(allowed)}, but here its spec leads to "
                f"{shown_uris(place)}",
                hint="replicas need the same --root, and links within it that do not change",
            )


def _shortened(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan of a million shards is too long for the database; ``dsort plan`` lists it."""
    shards = plan["shards"]
    return {**plan, "shards_total": len(shards), "shards": shards[:PLANNED_SHARDS_MAX]}


def _ending(job_id: str, error: Exception | None, result: dict[str, Any] | None) -> Ending:
    if error is None:
        return Ending("finished", 0, result=result)
    if isinstance(error, DsortError) and not isinstance(error, InvariantError):
        log.error("%s%s", error, f"\nhint: {error.hint}" if error.hint else "")
    else:  # a bug: the log needs the traceback
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, MemoryError):
        error = StorageFullError(
            "the job ran out of memory", hint="give it more with --max-memory, or fewer --workers"
        )
    if not isinstance(error, DsortError):
        error = InvariantError(
            f"the job failed unexpectedly: {type(error).__name__}: {error}",
            hint="this is a bug of dsort: please report it, with the end of the job's log on disk",
        )
    problem = problem_of(error, job_id=job_id)
    return Ending(
        "stopped" if isinstance(error, JobStoppedError) else "failed",
        problem["exit_code"],
        error=problem,
        reason=one_sentence(str(error)),
    )


def _leave(stop: StopFlag, received: list[int], number: int, frame: FrameType | None) -> None:
    if stop.request(number):  # else the job is being stopped already
        received.append(number)


def _lost() -> None:
    """End this process at once, because another process has the job and its stored files."""
    with contextlib.suppress(OSError):  # the process ends even if the disk is full
        os.write(2, b"another process has the job: this process ends\n")
    os._exit(NOT_OURS)


# -- the attempt ----------------------------------------------------------------------------------

# The database decides which attempt runs a job. The lease in the output bucket only keeps earlier
# attempts out. Then the files of the bucket show how far the job is.


class JobAttempt(Struct, frozen=True):
    """How to do the job in ``row``. ``spec``: the spec of the row."""

    row: JobRow
    spec: JobSpec
    options: RunOptions
    on_event: Callable[[Event], None]
    stop: StopFlag

    @classmethod
    def of(
        cls,
        row: JobRow,
        options: RunOptions,
        on_event: Callable[[Event], None],
        stop: StopFlag,
    ) -> JobAttempt:
        """The attempt of ``row``. ``SpecError`` if the row's spec is invalid. The code of the spec
        may run if the service recorded in the row who allowed it."""
        spec = parse_spec(dict(row.spec)).spec
        allowed = {part.allowed_by for part in (spec.transform, spec.on_shard) if part is not None}
        options = replace(options, runs_code=bool(allowed - {""}))
        return cls(row, spec, options, on_event, stop)

    def plan(self) -> JobReport:
        """Plan the job without writing anything."""
        report = api.plan(self.spec, options=self.options, on_event=self.on_event, stop=self.stop)
        return replace(report, job_id=self.row.job_id)

    def run(self) -> JobReport:
        """Do the remaining work of the job. A manifest means that the result is complete; a journal
        or the report of an aborted attempt is resumed; without these the job begins, with the id of
        the row."""
        job_id, ref = self.row.job_id, self.spec.output_bck
        common: Any = {"options": self.options, "on_event": self.on_event, "stop": self.stop}
        if self.row.attempt == 1:
            self.stop.raise_if_requested()
            return api.run(self.spec, job_id=job_id, **common)
        bucket = self.open_bucket(ref)
        while True:
            self._fence(bucket)
            done = self._finished(bucket)
            if done is not None:
                return done
            try:
                if self._is_begun(bucket):
                    log.info("the job is resumed from what earlier attempts left")
                    return api.resume(job_id, ref, expected=self.spec, **common)
                self.stop.raise_if_requested()
                return api.run(self.spec, job_id=job_id, **common)
            except JobConflictError:
                # An earlier attempt was only slow, and has begun or finished the job meanwhile.
                name = manifest_name(job_id)
                if name not in bucket.stat_many([name]) and not read_hold(bucket, job_id).live:
                    raise

    def _fence(self, bucket: Bucket) -> None:
        """Take the lease from earlier attempts, and release it. If an earlier attempt still renews
        the lease, it was only cut off from the database, and may even finish the job. So this
        process waits for the end of the earlier attempt."""
        job_id, is_logged = self.row.job_id, False
        with contextlib.suppress(ObjectNotFoundError):  # not even the bucket exists
            while read_hold(bucket, job_id).standing in (Standing.LIVE, Standing.LAPSED):
                try:
                    attempt = last_attempt(bucket, job_id) + 1
                    Lease.take(bucket, job_id, attempt=attempt, waiting=self._leave).release()
                except JobConflictError as held:
                    if not is_logged:
                        log.warning("waiting for another process: %s", held.message)
                        is_logged = True
                    if self.stop.discards:
                        with contextlib.suppress(JobConflictError):  # the other has just ended
                            stop_job(bucket, job_id)
                    else:
                        self.stop.pause(LOOK_S)

    def _leave(self, why: str) -> None:
        """``JobStoppedError`` if this process has to leave the job. Then the process does not wait
        for a lease by another clock, which may take long."""
        if not self.stop.discards:
            self.stop.raise_if_requested()

    def _is_begun(self, bucket: Bucket) -> bool:
        """Whether the job can be resumed. A claim on a job that was not begun is removed, so that
        the job can be begun."""
        job_id = self.row.job_id
        try:
            state_of(bucket, job_id, report_name(job_id))
        except JobConflictError:
            log.info("nothing is left of earlier attempts: the job is begun anew")
            with contextlib.suppress(ObjectNotFoundError):
                if last_attempt(bucket, job_id):
                    discard_run(bucket, job_id)
            return False
        return True

    def _finished(self, bucket: Bucket) -> JobReport | None:
        """The report from the manifest, if there is one; all other remains of the job are
        removed."""
        job_id = self.row.job_id
        try:
            data = read_small(bucket, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX)
        except ObjectNotFoundError:
            return None
        stored = parse_manifest(data)
        if stored.job_id != job_id or not self._is_of_the_job(stored):
            # Every program with write access to the bucket could write a manifest.
            raise JobConflictError(
                f"the manifest of job {job_id} in {bucket.uri} is of another job",
                hint="check which program wrote it, and start the job again",
            )
        manifest = json.loads(data.decode("utf-8", "surrogateescape"))
        log.info("the job has finished already: its manifest is there")
        names = [str(shard["name"]) for shard in manifest["outputs"]]
        discard_run(bucket, job_id, names=names)
        if self.spec.amend is not None:
            forget_removed(bucket, job_id)
        if self.spec.on_shard is not None:
            api.resume_on_shard(
                job_id,
                self.spec.output_bck,
                options=self.options,
                on_event=self.on_event,
                stop=self.stop,
                expected=self.spec,
            )
        return report_of_manifest(manifest, bucket.uri)

    def _is_of_the_job(self, stored: Manifest) -> bool:
        """Whether the job would have written the manifest."""
        amend = self.spec.amend
        if amend is None or amend.by == "append":
            return stored.spec == self.spec
        return stored.history.amends == amend.job  # the history records how the result was made

    def open_bucket(self, ref: BucketRef) -> Bucket:
        """A bucket that the job writes to, as the job itself opens it."""
        options, ref = self.options, resolve_ref(ref, self.options.settings)
        limits = store_limits(ref, options)
        return open_bucket(ref, root=options.root, limits=limits, policy=options.output_fetch)


def claims_of_keymap(job: JobAttempt) -> list[tuple[str, str]]:
    """The names that a job with a key map may write: (bucket URI, template).
    ``SpecError`` for names that no job of a service may write."""
    # Nothing is begun yet: a stop need not wait for a server that does not respond.
    keymap = job.stop.wait_for(lambda: load_keymap(job.spec, Tally(), fetch=job.options.fetch))
    names = output_names(job.spec, keymap)
    problems = hidden_names("ekm_file", [each.text for each in names.templates])
    if problems:
        raise SpecError(problems)
    return [
        (main_uri(job.row.output_uri), f"{final}{names.suffix}")
        for group, template in enumerate(names.templates)
        for final in final_templates(template.text, names.extension_of(group))
    ]
