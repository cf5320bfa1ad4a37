"""The bucket that a job of the service writes to, opened by the service itself."""

from __future__ import annotations

from dataclasses import replace

from dsort.options import RunOptions
from dsort.service.jobs.rows import JobRow
from dsort.service.security.uris import main_uri
from dsort.settings import resolve_ref
from dsort.spec.load import parse_spec
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket, parse_address

__all__ = ["open_output"]


def open_output(row: JobRow, run: RunOptions, policy: FetchPolicy) -> Bucket:
    """The bucket that a job writes to, as far as it is the one that tokens were held against: links
    that lead out of it are followed nowhere."""
    settings = run.settings
    ref = parse_spec(row.spec, ais_is_there=settings.ais_is_there).spec.output_bck
    if ref.is_directory:
        policy = replace(policy, roots=(parse_address(main_uri(row.output_uri)).path,), patterns=())
    ref = resolve_ref(ref, settings)
    return open_bucket(ref, root=run.root, limits=settings.limits(ref), policy=policy)
