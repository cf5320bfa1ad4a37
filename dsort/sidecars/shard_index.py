"""Sidecars of one output shard: where its records and members begin.

=========== ====================================================================================
``dali``    text. Of a tar: a line ``v1.2 <samples>``, then for each sample extension, offset,
            size and name of its members. Of TFRecords: offset and size of each
``energon`` where each sample begins, and where the last one ends: 64 bits, little-endian
``lhotse``  where each pair of members begins, and the size of the file: the same numbers
``lines``   where each line begins, and the size of the file: the same numbers, as Energon and
            Lhotse read them of JSON lines
=========== ====================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import InputError

__all__ = [
    "EnergonSample",
    "Part",
    "dali_records",
    "dali_tar",
    "energon_index",
    "energon_samples",
    "lhotse_index",
    "lines_index",
    "lines_sidecar",
]

_ENERGON_NAME = re.compile(rb"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_ENERGON_SKIPPED = re.compile(rb"__[^/]*__($|/)")


class Part(NamedTuple):
    """One member of a sample, with the offset and size of its payload, in bytes."""

    extension: bytes
    offset: int
    size_bytes: int
    name: bytes


class EnergonSample(NamedTuple):
    """A sample of a tar: its members, from the first header to the end of the last padding."""

    key: bytes
    offset: int
    size_bytes: int
    parts: tuple[Part, ...]


def energon_index(members: MemberTable) -> bytes:
    """The index of a tar for Energon."""
    samples = list(energon_samples(members))
    end = samples[-1].offset + samples[-1].size_bytes if samples else 0
    return _numbers([*(each.offset for each in samples), end])


def lines_index(members: MemberTable, file_bytes: int) -> bytes:
    """Where the lines of a scanned shard begin."""
    return _numbers([*members.range_start.tolist(), file_bytes])


def lines_sidecar(stored_bytes: Int64s) -> bytes:
    """The sidecar of a shard whose lines take ``stored_bytes``, shape ``(n,)``: the same as
    ``lines_index``, without a scan."""
    offsets = np.zeros(len(stored_bytes) + 1, "<u8")
    np.cumsum(stored_bytes, out=offsets[1:])
    return offsets.tobytes()


def dali_tar(shard: str, members: MemberTable) -> bytes:
    """The index of a tar for DALI."""
    lines = []
    for _, sample in groupby(_parts(members), lambda each: each[0]):
        parts = [part for _, part in sample]
        for part in parts:
            if re.search(rb"\s", part.name):
                name = part.name.decode("utf-8", "backslashreplace")
                raise InputError(
                    f"shard {shard}: {name!r} has white space, which the index of DALI cannot say",
                    hint="leave out index: dali",
                )
        lines.append(b" ".join(b"%b %d %d %b" % part for part in parts) + b"\n")
    return b"".join([b"v1.2 %d\n" % len(lines), *lines])


def _parts(members: MemberTable) -> Iterator[tuple[bytes, Part]]:
    """(key, member) of all files that have an extension and are not hidden."""
    for row in np.flatnonzero(members.kind == MemberKind.FILE).tolist():
        name = members.names[row]
        directory, slash, last = name.rpartition(b"/")
        stem, dot, extension = last.partition(b".")
        if stem and dot:
            start, size = int(members.payload_start[row]), int(members.payload_bytes[row])
            yield directory + slash + stem, Part(extension, start, size, name)


def dali_records(members: MemberTable) -> bytes:
    """The index of TFRecords for DALI."""
    starts, lengths = members.range_start.tolist(), members.range_length.tolist()
    return b"".join(b"%d %d\n" % each for each in zip(starts, lengths, strict=True))


def energon_samples(members: MemberTable) -> Iterator[EnergonSample]:
    """The samples of a tar, as ``energon prepare`` counts them."""
    ends = (members.range_start + members.range_length).tolist()
    rows = np.flatnonzero(members.kind == MemberKind.FILE).tolist()
    named = ((row, _ENERGON_NAME.fullmatch(members.names[row])) for row in rows)
    kept = (
        (row, match[1], match[2])
        for row, match in named
        if match is not None and not _ENERGON_SKIPPED.match(match[0])
    )
    for key, sample in groupby(kept, lambda each: each[1]):
        of_key = list(sample)
        offset = int(members.range_start[of_key[0][0]])
        parts = tuple(
            Part(
                extension,
                int(members.payload_start[row]),
                int(members.payload_bytes[row]),
                members.names[row],
            )
            for row, _, extension in of_key
        )
        yield EnergonSample(key, offset, ends[of_key[-1][0]] - offset, parts)


def lhotse_index(shard: str, members: MemberTable, file_bytes: int) -> bytes:
    """The index of a tar for Lhotse."""
    if len(members) % 2:
        raise InputError(
            f"shard {shard} has {len(members)} members; Lhotse's are pairs of data and metadata",
            hint="leave out index: lhotse",
        )
    return _numbers([*members.range_start[::2].tolist(), file_bytes])


def _numbers(values: list[int]) -> bytes:
    return np.array(values, "<u8").tobytes()
