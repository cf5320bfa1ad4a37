"""Buckets opened as a user's settings say: the one road from a text or a spec to a bucket."""

from __future__ import annotations

import os
from pathlib import Path

from dsort.job.events import RunOptions
from dsort.settings import Settings, load_settings, resolve_ref
from dsort.storage.bucket import Bucket
from dsort.storage.open import open_bucket, parse_address
from dsort.storage.ref import BucketRef

__all__ = ["default_options", "open_with_settings"]


def default_options() -> RunOptions:
    """How a job is run where nobody says anything: as the user's settings say."""
    settings = load_settings(os.environ, Path.cwd(), Path.home())
    return RunOptions(
        root=settings.root or Path.cwd(),
        scratch=settings.scratch,
        memory_max_bytes=settings.memory_max_bytes,
        workers=settings.workers,
        bandwidth_max_bytes_per_s=settings.bandwidth_max_bytes_per_s,
        settings=settings,
    )


def open_with_settings(where: str | BucketRef, *, root: Path, settings: Settings) -> Bucket:
    """The bucket that ``where`` names, reached and limited as ``settings`` say; see
    :func:`~dsort.storage.open.open_bucket`."""
    ref = parse_address(where) if isinstance(where, str) else where
    ref = resolve_ref(ref, settings)
    return open_bucket(ref, root=root, limits=settings.limits(ref))
