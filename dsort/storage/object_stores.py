"""Buckets in object stores, by their reference. The clients of stores are imported when one is
wanted: jobs on files never load them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsort.errors import InvariantError
from dsort.storage.bucket import Bucket
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef

if TYPE_CHECKING:
    from dsort.storage.retry import RetryPolicy

__all__ = ["open_object_bucket"]


def open_object_bucket(
    ref: BucketRef, limits: StoreLimits, *, retry: RetryPolicy | None = None
) -> Bucket:
    """The bucket that ``ref`` names; it need not exist. No request is made.

    ``ref.endpoint_url`` has to be there for ``ais``; ``ref.profile``, ``ref.region`` and
    ``ref.endpoint_url`` are for S3 (``az`` takes an endpoint, too). Credentials are found where
    each store's tools look for them. Whatever fails is raised at once, but for the parts of an
    upload, which are tried again by ``retry`` (None: as ``limits`` say). ``StorageAccessError`` for
    a profile that there is not.
    """
    if ref.scheme in ("s3", "ais"):
        from dsort.storage.s3.bucket import S3Bucket

        if ref.scheme == "ais" and not ref.endpoint_url:
            raise InvariantError(f"bucket {ref.uri} has no endpoint")
        return S3Bucket(ref, limits, retry=retry)
    if ref.scheme in ("gs", "az", "http", "https"):
        from dsort.storage.obstore import ObstoreBucket

        return ObstoreBucket.of(ref, limits)
    raise InvariantError(f"bucket {ref.uri} is not in an object store")
