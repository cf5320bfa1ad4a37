"""Sidecars of a whole result: sizes, the Hugging Face card, the files of Energon."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import xxhash

from dsort.sidecars.base import ResultShards
from dsort.sidecars.shard_index import EnergonSample

__all__ = ["card", "energon_file", "sizes", "write_energon_database"]

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
    """The content of a file of ``.nv-meta/``, for all but the database."""
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
