"""How much a process may ask of an object store at once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreLimits"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one process (one worker, or the coordinator).

    ``part_bytes``: of a multipart upload, more where a shard would need over 10,000 parts.
    ``parts_in_flight_max``: part buffers, so an upload takes ``part_bytes * parts_in_flight_max``
    of memory. ``range_bytes``: an object larger than this is fetched in parallel ranges of this
    size. ``bandwidth_max_bytes_per_s``: of reads and writes together; None: no limit.
    """

    requests_in_flight_max: int = 16
    part_bytes: int = 16 * MIB
    parts_in_flight_max: int = 2
    range_bytes: int = 64 * MIB
    bandwidth_max_bytes_per_s: float | None = None
    tries_max: int = 8
    retry_seconds_max: float = 120.0
    request_seconds_max: float = 300.0
