"""Opens the buckets that users name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from dsort.errors import SpecError
from dsort.log_lines import logger_of
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.limit import StoreLimiter, StoreLimits
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.ref import AIS_ENDPOINT_HINT, BucketRef, BucketTextError, refuse_internal
from dsort.storage.registry import open_object_bucket, parse_address, store_of
from dsort.storage.routed import BucketPlace, open_inputs, open_outputs
from dsort.storage.transport import Transport, opened_together, retry_policy

log = logger_of("storage")


def open_bucket(
    where: str | BucketRef,
    *,
    root: Path,
    limits: StoreLimits | None = None,
    limiter: StoreLimiter | None = None,
    policy: FetchPolicy | None = None,
    pause: Callable[[float], None] | None = None,
) -> Bucket:
    """The bucket that ``where`` names; it need not exist yet.

    A bare name such as ``images`` or ``images/train`` is a directory under ``root``, the data root,
    and ``.`` is ``root`` itself. A bucket of an object store is reached by the endpoint, region and
    profile in its ``BucketRef`` (the caller has to resolve settings), with retries and within
    ``limits``. ``limiter``: the limits that the buckets of this process share, if any. ``policy``:
    the directories in which files may be, once links are resolved. ``pause``: waits for a number of
    seconds before a request is tried again. ``SpecError`` if ``where`` names no bucket.
    """
    ref = where if isinstance(where, BucketRef) else parse_address(where)
    if ref.is_directory:
        directory = root / ref.path if ref.scheme == "" else Path(ref.path)
        try:
            refuse_internal(os.path.realpath(directory), ref.uri)
        except BucketTextError as error:
            raise SpecError(f"bucket {error}", hint=error.hint) from None
        return LocalBucket(directory, policy=policy)
    if ref.scheme == "ais" and not ref.endpoint_url:
        raise SpecError(
            f"bucket {ref.uri}: the address of AIStore is not set", hint=AIS_ENDPOINT_HINT
        )
    limits = limits or StoreLimits()
    tries = retry_policy(limits, pause=pause)
    log.debug(
        "bucket %s is open: at most %s attempts for each request, within %.0f s",
        ref.uri,
        tries.tries_max,
        tries.seconds_max,
    )
    return open_object_bucket(ref, limits, Transport(limits, limiter=limiter, policy=tries))


def fixed_ref(
    ref: BucketRef, limits: StoreLimits, *, pause: Callable[[float], None] | None = None
) -> BucketRef:
    """A reference to the present state of the bucket ``ref``: see ``Store.fixed``."""
    store = store_of(ref.scheme)
    if store is None:
        return ref
    return store.fixed(ref, limits, Transport(limits, policy=retry_policy(limits, pause=pause)))


def open_pair(
    sources: Sequence[BucketPlace],
    targets: Sequence[BucketPlace],
    root: Path,
    policy: FetchPolicy | None,
) -> tuple[Bucket, Bucket]:
    """(bucket that is read, bucket that is written). They share one bandwidth: the smallest limit
    of all ``sources`` and ``targets``, or none if these have no limit. ``policy``: the policy of
    the job."""
    places = [*sources, *targets]
    rates = [each.limits.bandwidth_max_bytes_per_s for each in places]
    rate = min((each for each in rates if each is not None), default=None)
    limiter = None
    if rate is not None and not all(each.ref.is_directory for each in places):
        limiter = StoreLimiter(replace(targets[0].limits, bandwidth_max_bytes_per_s=rate))

    def opened(place: BucketPlace, policy: FetchPolicy | None) -> Bucket:
        return open_bucket(
            place.ref, root=root, limits=place.limits, limiter=limiter, policy=policy
        )

    writes = None if policy is None else policy.for_outputs()
    return open_both(
        sources, targets, partial(opened, policy=policy), partial(opened, policy=writes)
    )


def open_both(
    sources: Sequence[BucketPlace],
    targets: Sequence[BucketPlace],
    open_input: Callable[[BucketPlace], Bucket],
    open_output: Callable[[BucketPlace], Bucket],
) -> tuple[Bucket, Bucket]:
    """(bucket to read, bucket to write), which ``open_input`` and ``open_output`` open together
    (see ``opened_together``)."""
    with opened_together():
        return open_inputs(sources, open_input), open_outputs(targets, open_output)
