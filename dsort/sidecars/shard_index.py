"""Makes the sidecars of one output shard for DALI, Energon and Lhotse: where its records and
members begin. The module also makes the sidecars of a whole result: sizes, the Hugging Face card
and the files of Energon."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import xxhash

from dsort.data.columns import Int64s, offsets_of
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import InputError
from dsort.sidecars.base import ResultShards

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
    """The index of a tar for Energon: the offsets of all samples and the end of the last one, as
    little-endian numbers of 64 bits."""
    samples = list(energon_samples(members))
    end = samples[-1].offset + samples[-1].size_bytes if samples else 0
    return _numbers([*(each.offset for each in samples), end])


def lines_index(members: MemberTable, file_bytes: int) -> bytes:
    """Where the lines of a scanned shard begin, and the size of the file, as numbers in the format
    of both Energon and Lhotse for JSON lines."""
    return _numbers([*members.range_start.tolist(), file_bytes])


def lines_sidecar(stored_bytes: Int64s) -> bytes:
    """The sidecar of a shard whose lines take ``stored_bytes``, shape ``(n,)``. The bytes are those
    of ``lines_index``, without a scan."""
    return offsets_of(stored_bytes).astype("<u8").tobytes()


def dali_tar(shard: str, members: MemberTable) -> bytes:
    """The index of a tar for DALI: a line ``v1.2 <samples>``, then for each sample a line with
    extension, offset, size and name of its members."""
    lines = []
    for _, sample in groupby(_parts(members), lambda each: each[0]):
        parts = [part for _, part in sample]
        for part in parts:
            if re.search(rb"\s", part.name):
                name = part.name.decode("utf-8", "backslashreplace")
                raise InputError(
                    f"shard {shard}: {name!r} has white space, which the index of DALI cannot hold",
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
    """The index of TFRecords for DALI: offset and size of each."""
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
    """The index of a tar for Lhotse: where each pair of members begins, and the length of the
    file."""
    if len(members) % 2:
        raise InputError(
            f"shard {shard} has {len(members)} members; Lhotse's are pairs of data and metadata",
            hint="leave out index: lhotse",
        )
    return _numbers([*members.range_start[::2].tolist(), file_bytes])


def _numbers(values: list[int]) -> bytes:
    return np.array(values, "<u8").tobytes()


# --------------------------------------------------------------------------------------------------
# Sidecars of a whole result: sizes, the Hugging Face card, the files of Energon.


DEFAULT_SPLIT: Final = "train"
LISTED_MAX: Final = 1000
"""A card lists up to so many shards one by one; more are listed by the common parts of their
names."""

_TABLES: Final = """
CREATE TABLE samples (tar_file_id INTEGER, sample_key TEXT, sample_index INTEGER,
                      byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
                           content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_INDEXES: Final = """
CREATE INDEX idx_samples_sample_key ON samples(sample_key);
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq
    ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
    tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def sizes(result: ResultShards, directory: str) -> bytes:
    """The number of records of each shard, by its name in ``directory``."""
    pairs = result.records.items()
    return _json({shard.removeprefix(directory): count for shard, count in pairs})


def energon_file(name: str, result: ResultShards) -> bytes:
    """The content of a file in ``.nv-meta/``, except the database."""
    if name.endswith(".info.json"):
        return _json({"energon_version": None, "shard_counts": dict(result.records)})
    if name.endswith("split.yaml"):
        parts = ""
        for split, own in _splits(result).items():
            rows = "".join(f"  - {json.dumps(shard)}\n" for shard in own)
            parts += f"  {json.dumps(split)}:{_rows(rows)}"
        return f"exclude: []\nsplit_parts:\n{parts}".encode()
    if name.endswith("index.uuid"):
        return _identity(result.records, result.checksums)
    return b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def _splits(result: ResultShards) -> Mapping[str, Sequence[str]]:
    return {split or DEFAULT_SPLIT: own for split, own in result.splits.items()}


def _identity(shards: Iterable[str], checksums: Iterable[str]) -> bytes:
    """An identifier with which Energon's caches distinguish indexes: the same for the same
    shards."""
    state = xxhash.xxh3_128()
    for shard, checksum in zip(shards, checksums, strict=True):
        state.update(f"{shard}\0{checksum}\0".encode("utf-8", "surrogateescape"))
    return str(uuid.UUID(bytes=state.digest(), version=4)).encode()


def _rows(rows: str) -> str:
    return f"\n{rows}" if rows else " []\n"


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def card(result: ResultShards) -> bytes:
    """A dataset card by which ``datasets.load_dataset`` finds the shards."""
    files = "".join(
        f"  - split: {json.dumps(split)}\n    path:{_rows(_paths(shards))}"
        for split, shards in _splits(result).items()
    )
    return f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n".encode()


def _paths(shards: Sequence[str]) -> str:
    """The rows of a card that list ``shards``."""
    paths = [_escaped(shard) for shard in shards]
    if len(shards) > LISTED_MAX:
        first, last = min(shards), max(shards)
        same = next(at for at in range(len(first)) if first[at] != last[at : at + 1])
        turned = [shard[same:][::-1] for shard in shards]
        low, high = min(turned), max(turned)
        ends = next((at for at in range(len(low)) if low[at] != high[at : at + 1]), len(low))
        paths = [f"{_escaped(first[:same])}*{_escaped(first[len(first) - ends :])}"]
    return "".join(f"      - {json.dumps(path)}\n" for path in paths)


def _escaped(name: str) -> str:
    """A glob that matches only ``name``."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


def write_energon_database(path: Path, shards: Iterable[Iterable[EnergonSample]]) -> None:
    """Write ``index.sqlite``: samples and members of all shards, in output order, one at a time."""
    import sqlite3  # few jobs need it

    database = sqlite3.connect(path)
    try:
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _TABLES)
        for file_id, samples in enumerate(shards):
            for index, sample in enumerate(samples):
                key = sample.key.decode("utf-8", "replace")
                row = (file_id, key, index, sample.offset, sample.size_bytes)
                database.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", row)
                database.executemany(
                    "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                    [
                        (
                            file_id,
                            index,
                            part.extension.decode("utf-8", "replace"),
                            part.offset,
                            part.size_bytes,
                        )
                        for part in sample.parts
                    ],
                )
        database.commit()
        database.executescript(_INDEXES)
        database.commit()
    finally:
        database.close()
