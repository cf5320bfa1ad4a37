"""The bytes that a creator stores for the sidecars of an output shard, which get names later.

The shard is scanned while it is written. Payload is skipped: from each megabyte, only the bytes
that the scanner needs are copied and scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from dsort.containers.base import Container, Scan
from dsort.data.columns import BytesColumn, Int64s
from dsort.data.members import MemberTable
from dsort.scratch.columns import Column, ColumnFile, columns_bytes
from dsort.storage.bucket import Bucket

if TYPE_CHECKING:
    from dsort.sidecars.shard_index import EnergonSample

SAMPLES: Final = "samples"
"""Used like a kind of sidecar: the rows that an output shard adds to the database of Energon."""
HELD_BYTES = 1 << 20


class MemberWatch:
    """Finds the members of one output shard in its bytes, fed from the first to the last."""

    def __init__(self, container: Container, shard: str, size_bytes: int) -> None:
        self._scan = Scan(container.scanner(shard, size_bytes))
        self._at = 0  # offset of the next byte to be fed
        self._held = bytearray()  # the bytes before it, from the first that the scan needs on

    def feed(self, slices: Sequence[memoryview]) -> None:
        """Take the next bytes."""
        for piece in slices:
            self._take(piece)
            self._at += len(piece)

    def _take(self, piece: memoryview) -> None:
        while (need := self._scan.need) is not None:
            first = need.offset + len(self._held) - self._at
            if first >= len(piece):
                return
            missing = max(HELD_BYTES, need.at_least) - len(self._held)
            self._held += piece[first : first + missing]
            if len(piece) - first >= missing:
                self._scan_held(need.offset)

    def members(self) -> MemberTable:
        """The members, once all bytes were fed."""
        while (need := self._scan.need) is not None and len(self._held) >= need.at_least:
            self._scan_held(need.offset)
        return self._scan.table

    def _scan_held(self, offset: int) -> None:
        """Scan the held bytes, and keep those that the scan needs again."""
        self._scan.feed(self._held, offset)
        need = self._scan.need
        self._held = bytearray() if need is None else self._held[need.offset - offset :]


def staged_sidecar(prefix: str, ordinal: int, kind: str) -> str:
    """The place where the bytes of a sidecar of output shard ``ordinal`` wait for their name."""
    return f"{prefix}{ordinal}.{kind}"


def write_sidecars(
    bucket: Bucket,
    prefix: str,
    kinds: Sequence[str],
    *,
    ordinal: int,
    shard: str,
    members: MemberTable,
    file_bytes: int,
) -> None:
    """Store the sidecars of one output shard that is written."""
    from dsort.sidecars.kinds import kinds_of
    from dsort.sidecars.shard_index import energon_samples

    for each in kinds_of(kinds):
        data = each.of_shard(shard, members, file_bytes)
        bucket.write(staged_sidecar(prefix, ordinal, each.kind), data)
    if "energon" in kinds:
        data = _samples_bytes(list(energon_samples(members)))
        bucket.write(staged_sidecar(prefix, ordinal, SAMPLES), data)


def _samples_bytes(samples: Sequence[EnergonSample]) -> bytes:
    parts = [part for sample in samples for part in sample.parts]
    columns: dict[str, Column | None] = {
        "keys": BytesColumn.of([sample.key for sample in samples]),
        "offset": _numbers(sample.offset for sample in samples),
        "size_bytes": _numbers(sample.size_bytes for sample in samples),
        "parts": _numbers(len(sample.parts) for sample in samples),
        "extensions": BytesColumn.of([part.extension for part in parts]),
        "part_offset": _numbers(part.offset for part in parts),
        "part_bytes": _numbers(part.size_bytes for part in parts),
    }
    return columns_bytes(columns)


def _numbers(values: Iterator[int]) -> Int64s:
    return np.fromiter(values, np.int64)


def samples_of(data: bytes, what: str) -> Iterator[EnergonSample]:
    """The samples that ``write_sidecars`` stored. ``StorageError`` if they are damaged."""
    from dsort.sidecars.shard_index import EnergonSample, Part

    file = ColumnFile(data, what)
    bounds = [0, *np.cumsum(file.array("parts")).tolist()]
    extensions = file.bytes_column("extensions").tolist()
    starts, sizes = file.array("part_offset").tolist(), file.array("part_bytes").tolist()
    rows = zip(
        file.bytes_column("keys").tolist(),
        file.array("offset").tolist(),
        file.array("size_bytes").tolist(),
        pairwise(bounds),
        strict=True,
    )
    for key, offset, size_bytes, (first, last) in rows:
        parts = zip(extensions[first:last], starts[first:last], sizes[first:last], strict=True)
        yield EnergonSample(key, offset, size_bytes, tuple(Part(*each, b"") for each in parts))
