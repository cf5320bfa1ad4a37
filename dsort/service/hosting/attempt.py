"""One attempt at a job, in the job's process: begin it, resume it, or find that it is done.

The database decides which attempt runs a job; the lease in the output bucket only fences. The
bucket then shows how far the job is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dsort import api
from dsort.data.tally import Tally
from dsort.errors import JobConflictError, ObjectNotFoundError, SpecError
from dsort.job.amend import forget_removed
from dsort.job.resume import state_of
from dsort.job.setup.new_job import load_keymap, output_names
from dsort.job.setup.resources import store_limits
from dsort.log_lines import logger_of
from dsort.naming.overlap import final_templates
from dsort.options import RunOptions
from dsort.results.journal import discard_run
from dsort.results.layout import manifest_name, report_name
from dsort.results.lease import Lease, last_attempt, read_hold, stop_job
from dsort.results.lease_record import Standing
from dsort.results.manifest import Manifest, parse_manifest
from dsort.results.report import Event, JobReport, report_of_manifest
from dsort.service.database.tables import JobRow, main_uri
from dsort.service.security.guard import hidden_names
from dsort.settings import resolve_ref
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from dsort.storage.small_objects import read_small

LOOK_S = 1.0
MANIFEST_BYTES_MAX = 4 << 30

log = logger_of("service")


class JobAttempt(Struct, frozen=True):
    """How to do the job in ``row``. ``spec``: the row's."""

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
        """The attempt of ``row``. ``SpecError`` if the row's spec is invalid. Its code may run if
        the service recorded in the row who allowed it."""
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
        or the report of an aborted attempt is resumed; without these the job begins, with the id it
        has."""
        job_id, ref = self.row.job_id, self.spec.output_bck
        common: Any = {"options": self.options, "on_event": self.on_event, "stop": self.stop}
        # No earlier attempt can have left anything in the bucket.
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
        the lease, it was cut off from the database, and may even finish the job. So this attempt
        waits for it."""
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
                        with contextlib.suppress(JobConflictError):  # it has just ended by itself
                            stop_job(bucket, job_id)
                    else:
                        self.stop.pause(LOOK_S)

    def _leave(self, why: str) -> None:
        """``JobStoppedError`` if this process has to leave the job: then it does not watch a lease
        whose clock differs."""
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
        """Whether a manifest is one that the job would have written."""
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
    """The names that a job may write, if they depend on its key map: (bucket URI, template).
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
