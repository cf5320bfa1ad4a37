"""Counts the requests that shards take in a store, and the parts of uploads. Pure arithmetic.

The requests that an S3 store bills are counted: each part of an upload is a request, and so is each
page of a listing. Repeated requests are not counted, because failures are not known beforehand.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from dsort.data.columns import Int64s
from dsort.storage.limit import MIB, TAIL_SHARE, StoreLimits

REQUEST_KINDS = ("get", "head", "list", "put", "create", "part", "complete", "delete")
"""The kinds of requests. ``create``, ``part`` and ``complete`` are those of a multipart upload."""
PROBED_AFTER = 8
"""See ``CompletionCondition`` of :mod:`dsort.storage.s3.bucket`."""
_PROBE = Counter(put=1, create=1, part=1, complete=1, head=1, delete=2)
LISTED_MIN = 100
"""From this number on, names are searched in a listing; fewer are requested one by one."""
PAGE_NAMES = 1000
PARTS_MAX = 10_000  # of one upload, a limit of the API
PARTS_WANTED_MAX = 64  # stores bill each part as a request
ETAGS_KEPT_MAX = 16
"""A receipt keeps the ETags of at most this many parts. With more parts, the ETags are requested
when the upload is completed, one request for each thousand: the coordinator holds all receipts at
once, and with 36 bytes for each part of 16 MiB, the ETags of a petabyte would take 2 GB."""


def requests_of_reads(sizes: Int64s, limits: StoreLimits, *, buffer_bytes: int) -> Counter[str]:
    """The requests for reading objects of ``sizes`` once, shape ``(n,)``. An object that fits in
    the buffer is read in parallel ranges, a larger object in order, by a single request."""
    ranges = -(-sizes // limits.range_bytes)
    ranges = np.where(sizes > buffer_bytes, 1, np.maximum(ranges, 1))
    return Counter(get=int(ranges.sum()))


def requests_of_uploads(sizes: Int64s, limits: StoreLimits) -> Counter[str]:
    """The requests for storing objects of ``sizes`` under new names in a store that supports
    ``If-None-Match`` and checks whole objects, as AWS does."""
    part_bytes = _part_bytes(sizes, limits)
    parts, rests = np.divmod(sizes, part_bytes)
    parts = np.maximum(parts + (rests > part_bytes // TAIL_SHARE), 1)
    listed = np.where(parts > ETAGS_KEPT_MAX, -(-parts // PAGE_NAMES), 0)
    count = len(sizes)
    return Counter(
        create=count,
        part=int(parts.sum()),
        complete=count,
        list=int(listed.sum()),
    )


def requests_of_doubts(count: int) -> Counter[str]:
    """The most requests that ``count`` objects add if the store may lack ``If-None-Match`` and
    checks of whole objects: two lookups for each object, before and after its upload is completed,
    and one probe of the store."""
    looks = Counter(head=2 * count)
    if count > PROBED_AFTER:
        looks.update(_PROBE)
    return looks


def requests_of_lookups(names: int) -> Counter[str]:
    """The requests for finding out which of ``names`` names are taken."""
    if names < LISTED_MIN:
        return Counter(head=names)
    return Counter(list=-(-names // PAGE_NAMES))


def _part_bytes(sizes: Int64s, limits: StoreLimits) -> Int64s:
    """The size of the parts of uploads of ``sizes``: ``limits.part_bytes``;
    ``limits.part_bytes_max`` where that would make more than 64 parts; as large as needed where
    there would be too many parts for the API. There are few different sizes, because the buffers of
    each size are kept."""
    many = sizes > PARTS_WANTED_MAX * limits.part_bytes
    wanted = np.where(many, max(limits.part_bytes, limits.part_bytes_max), limits.part_bytes)
    needed = -(-sizes // PARTS_MAX)
    most: Int64s = np.maximum(wanted, -(-needed // MIB) * MIB)
    return most


def part_bytes_for(size_bytes: int | None, limits: StoreLimits) -> int:
    """The size of the parts of one upload."""
    return int(_part_bytes(np.array(size_bytes or 0, np.int64), limits))
