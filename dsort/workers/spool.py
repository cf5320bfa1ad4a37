"""An input shard that is fetched once and read as often as need be, from a file in scratch.

For shards larger than a worker's buffer in stores where each reading is paid for.
"""

from __future__ import annotations

from dsort.errors import StorageError
from dsort.scratch.directory import Scratch
from dsort.storage.bucket import ReadObject
from dsort.storage.directory.files import LocalStagedObject, StorageErrors

__all__ = ["Spool"]

GAP_BYTES = 1 << 20


class Spool:
    """Reads of ``source`` that pass by a file without a name, which is gone with ``close``."""

    def __init__(self, source: ReadObject, scratch: Scratch) -> None:
        self._source = source
        self._scratch = str(scratch)
        self._have = 0
        with StorageErrors(f"spool {source.info.name}", self._scratch):
            fd = scratch.open_nameless()
        self._file = LocalStagedObject(fd, f"spool of {source.info.name}", self._scratch)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of the shard."""
        end = offset + len(buffer)
        if end > self._source.info.size_bytes:
            raise StorageError(
                f"{self._source.info.name} ended at byte {self._source.info.size_bytes:,}, "
                f"{end:,} expected"
            )
        if offset > self._have:
            self._catch_up(offset)
        known = max(min(self._have, end) - offset, 0)
        if known:
            self._file.read_into(buffer[:known], offset)
        if known < len(buffer):
            self._fetch(buffer[known:])

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _catch_up(self, offset: int) -> None:
        """Fetch all up to ``offset``: sources like this are read in order."""
        gap = memoryview(bytearray(min(GAP_BYTES, offset - self._have)))
        while self._have < offset:
            self._fetch(gap[: min(len(gap), offset - self._have)])

    def _fetch(self, buffer: memoryview) -> None:
        self._source.read_into(buffer, self._have)
        self._file.write_at(self._have, [buffer])
        self._have += len(buffer)
