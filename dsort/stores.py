"""Buckets opened as a user's settings say: the one road from a text or a spec to a bucket."""

from __future__ import annotations

from pathlib import Path

from dsort.core.bucket_ref import BucketRef
from dsort.settings import Settings, resolve_ref
from dsort.storage.addresses import open_bucket, parse_address
from dsort.storage.base import Bucket

__all__ = ["open_with_settings"]


def open_with_settings(where: str | BucketRef, *, root: Path, settings: Settings) -> Bucket:
    """The bucket that ``where`` names, reached and limited as ``settings`` say; see
    :func:`~dsort.storage.addresses.open_bucket`."""
    ref = parse_address(where) if isinstance(where, str) else where
    ref = resolve_ref(ref, settings)
    return open_bucket(ref, root=root, limits=settings.limits(ref))
