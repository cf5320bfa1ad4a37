"""The bytes that a creator stores for the sidecars of an output shard, which get names later.

The shard is scanned while it is written. Payload is skipped: from each megabyte, only the bytes
that the scanner needs are copied and scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import BytesColumn, Int64s
from dsort.data.members import MemberTable
from dsort.errors import InvariantError
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
        self._scanner = container.scanner(shard, size_bytes)
        self._at = 0  # offset of the next byte to be fed
        self._held: list[memoryview | bytes] = []  # the bytes before it, from _held_at on
        self._held_at = 0
        self._held_bytes = 0

    def feed(self, slices: Sequence[memoryview]) -> None:
        """Take the next bytes."""
        for piece in slices:
            rest = piece
            while len(rest):
                skipped = min(len(rest), max(self._scanner.next_offset - self._at, 0))
                if skipped and not self._held_bytes:
                    self._at += skipped
                    rest = rest[skipped:]
                    continue
                taken = rest[: max(self._wanted_bytes - self._held_bytes, 1)]
                if not self._held_bytes:
                    self._held_at = self._at
                self._held.append(bytes(taken))  # a copy: the caller's buffer is reused
                self._held_bytes += len(taken)
                self._at += len(taken)
                rest = rest[len(taken) :]
                if self._held_bytes >= self._wanted_bytes:
                    self._scan()

    def members(self) -> MemberTable:
        """The members, once all bytes were fed."""
        while not self._scanner.done:
            before = self._scanner.next_offset
            self._scan()
            if self._scanner.next_offset == before and not self._scanner.done:
                raise InvariantError("an output shard cannot be scanned")
        return self._scanner.finish()

    @property
    def _wanted_bytes(self) -> int:
        return max(HELD_BYTES, self._scanner.window_bytes_min)

    def _scan(self) -> None:
        """Scan the held bytes, and keep those that the scanner needs again."""
        data, scanner = b"".join(self._held), self._scanner
        first = scanner.next_offset - self._held_at
        if not scanner.done:
            scanner.feed(memoryview(data)[first:], scanner.next_offset)
        rest = data[max(scanner.next_offset - self._held_at, 0) :]
        self._held = [rest] if rest else []
        self._held_bytes = len(rest)
        self._held_at = self._at - len(rest)


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
