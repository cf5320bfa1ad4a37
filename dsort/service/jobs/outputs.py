"""The fetch policy of a job of the service, and the bucket that the job writes to."""

from __future__ import annotations

from dsort.errors import SpecError, SpecProblem
from dsort.options import RunOptions
from dsort.service.jobs.rows import JobRow
from dsort.service.security.uris import paths_of, split_uris
from dsort.settings import resolve_ref
from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket

__all__ = ["open_output", "policy_of_job"]


def policy_of_job(policy: FetchPolicy, row: JobRow) -> FetchPolicy:
    """The service's ``policy`` for one job: of directories and files, only those that tokens were
    checked against when the job was submitted. Links that lead out of them are never followed."""
    files = None if row.file_uris is None else paths_of(row.file_uris)
    return policy.of_job(
        paths_of(split_uris(row.input_uri)), paths_of(split_uris(row.output_uri)), files
    )


def open_output(row: JobRow, run: RunOptions, policy: FetchPolicy) -> Bucket:
    """The bucket that a job writes to. ``policy``: the service's."""
    settings = run.settings
    try:
        ref = parse_bucket(row.spec.get("output_bck"), ais_is_there=settings.ais_is_there)
    except ValueError as error:  # another program wrote the row
        raise SpecError([SpecProblem("output_bck", str(error))]) from error
    own = policy_of_job(policy, row).for_outputs()
    ref = resolve_ref(ref, settings)
    return open_bucket(ref, root=run.root, limits=settings.limits(ref), policy=own)
