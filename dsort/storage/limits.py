"""How much a process may ask of an object store at once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreLimits"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one process (one worker, or the coordinator).

    ``part_bytes``: of a multipart upload; ``part_bytes_max``, if that is more, where there would be
    over 64 parts; and as much as is needed where there would be over 10,000.
    ``parts_in_flight_max``: part buffers of each size, so uploads take ``upload_bytes`` of memory.
    ``range_bytes``: an object larger than this is fetched in parallel ranges of this
    size. ``bandwidth_max_bytes_per_s``: of reads and writes together; None: no limit.
    """

    requests_in_flight_max: int = 16
    part_bytes: int = 16 * MIB
    part_bytes_max: int = 0
    parts_in_flight_max: int = 2
    range_bytes: int = 64 * MIB
    bandwidth_max_bytes_per_s: float | None = None
    tries_max: int = 8
    retry_seconds_max: float = 120.0
    request_seconds_max: float = 300.0

    @property
    def upload_bytes(self) -> int:
        """The memory of all part buffers."""
        large = self.part_bytes_max if self.part_bytes_max > self.part_bytes else 0
        return (self.part_bytes + large) * self.parts_in_flight_max
