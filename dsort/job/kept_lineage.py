"""The lineage of a result from which records are removed: that of before, without them, and with
the places that the others have now. Rows of a shard are side by side, in the order of its records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from dsort.data.arrow_arrays import arrow_numbers
from dsort.data.columns import Int64s
from dsort.errors import StorageError
from dsort.job.job import Job
from dsort.job.lineage import (
    LineageOfShard,
    damaged_lineage,
    key_strings,
    lineage_rows,
    lineage_schema,
    local_file,
    row_groups,
    stage_rows,
)
from dsort.job.manifest import StagedFile
from dsort.naming.names import readable
from dsort.storage.small_objects import parse_json

if TYPE_CHECKING:
    from dsort.job.plan import Plan

__all__ = ["stage_kept_lineage"]

LINE_BYTES_MAX: Final = 1 << 20

_Written = Mapping[str, Callable[[], LineageOfShard]]
"""Of each shard that is written again, by its name as a lineage has it: its rows now."""


def stage_kept_lineage(job: Job, plan: Plan) -> StagedFile | None:
    """Stage one lineage of the whole result from which the job removes records, in place of those
    that there are; None if there are none. ``StorageError`` if they are not of this result."""
    kind, base = job.spec.lineage, job.base
    if kind is None or base is None:
        return None
    written = {
        readable(name.encode("utf-8", "surrogateescape")): partial(lineage_rows, job, shard, name)
        for shard, name in zip(plan.shards, plan.names, strict=True)
    }
    names = [each.name for each in base.lineages]

    def write(file: IO[bytes]) -> None:
        if kind == "parquet":
            _write_parquet(file, job, names, written)
        else:
            _write_lines(file, job, names, written)

    return stage_rows(job, kind, write)


def _write_parquet(file: IO[bytes], job: Job, names: list[str], written: _Written) -> None:
    import pyarrow as pa  # few jobs need it
    import pyarrow.parquet as pq

    with pq.ParquetWriter(
        file, lineage_schema(), compression="zstd", write_statistics=True
    ) as writer:
        for name in names:
            what = f"{name} in {job.outputs_bucket.uri}"
            with local_file(job.outputs_bucket, name) as path:
                try:
                    for table in _kept_tables(path, written, what, job.stop.raise_if_requested):
                        writer.write_table(table)
                except (pa.ArrowException, OSError, ValueError, LookupError) as error:
                    raise damaged_lineage(what, str(error)) from None


def _kept_tables(
    path: Path, written: _Written, what: str, between: Callable[[], None]
) -> Iterator[Any]:
    """The rows of a lineage in tables: as they are, but for the shards that were written again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    held: list[Any] = []  # rows of a shard that was written again, up to its last
    with pq.ParquetFile(path) as file:
        for number in row_groups(file, what):
            between()
            table = file.read_row_group(number).cast(lineage_schema())
            for name, first, stop in _runs(table):
                if held and held[0]["output_shard"][0].as_py() != name:
                    yield _kept_table(pa.concat_tables(held), written, what)
                    held = []
                own = table.slice(first, stop - first)
                if name in written:
                    held.append(own)
                else:
                    yield own
    if held:
        yield _kept_table(pa.concat_tables(held), written, what)


def _runs(table: Any) -> Iterator[tuple[str, int, int]]:
    """(output shard, first row, row behind the last) of rows side by side."""
    names = table["output_shard"].to_pylist()
    first = 0
    for name, rows in groupby(names):
        stop = first + sum(1 for _ in rows)
        yield name, first, stop
        first = stop


def _kept_table(table: Any, written: _Written, what: str) -> Any:
    import pyarrow.compute as pc

    now = written[table["output_shard"][0].as_py()]()
    keys = key_strings(now.keys)
    kept = table.filter(pc.is_in(table["key"], value_set=keys))
    sizes = kept["output_bytes"].to_numpy()
    _refuse_other_rows(kept["key"].to_pylist(), sizes, keys.to_pylist(), now, what)
    offsets = _offsets(sizes, now)
    at = kept.schema.get_field_index("output_offset")
    return kept.set_column(at, kept.schema.field(at), arrow_numbers(offsets, offsets >= 0))


def _refuse_other_rows(
    known: list[str], sizes: Int64s, keys: list[str], now: LineageOfShard, what: str
) -> None:
    """``StorageError`` unless rows with the keys ``known`` and the ``sizes`` are those of the
    records that there are ``now``, each of which may have several: it was joined of as many."""
    ends = np.cumsum(sizes)
    last = np.searchsorted(ends, np.cumsum(now.output_bytes))
    first = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    is_whole = len(last) == 0 or (last[-1] == len(ends) - 1 and (first <= last).all())
    rows = zip(first.tolist(), last.tolist(), keys, strict=True)
    if not is_whole or any({*known[a : b + 1]} != {key} for a, b, key in rows):
        raise StorageError(
            f"{what} does not say what is in {now.output_shard}",
            hint="move it away and take lineage out of the manifest, or run the job again",
        )


def _offsets(sizes: Int64s, now: LineageOfShard) -> Int64s:
    """Where rows of these ``sizes`` are in the shard as it is ``now``; -1: nobody can say."""
    if not len(sizes) or now.output_offset[0] < 0:
        return np.full(len(sizes), -1, np.int64)
    first: int = now.output_offset[0]
    offsets: Int64s = np.cumsum(sizes) - sizes + first
    return offsets


def _write_lines(file: IO[bytes], job: Job, names: list[str], written: _Written) -> None:
    for name in names:
        what = f"{name} in {job.outputs_bucket.uri}"
        with local_file(job.outputs_bucket, name) as path, path.open("rb") as old:
            lines = (
                (line, _parsed(line, what))
                for line in iter(lambda: old.readline(LINE_BYTES_MAX), b"")
            )
            for shard, group in groupby(lines, key=lambda pair: pair[1]["output_shard"]):
                job.stop.raise_if_requested()
                if shard not in written:
                    file.writelines(line for line, _ in group)
                    continue
                rows = _kept_rows([row for _, row in group], written[shard](), what)
                for row in rows:
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _parsed(line: bytes, what: str) -> dict[str, Any]:
    row = parse_json(line, what)
    if not isinstance(row, dict) or type(row.get("output_bytes")) is not int:
        raise damaged_lineage(what, "a line is no row")
    if not (isinstance(row.get("key"), str) and isinstance(row.get("output_shard"), str)):
        raise damaged_lineage(what, "a line has no key, or no shard")
    return row


def _kept_rows(rows: list[dict[str, Any]], now: LineageOfShard, what: str) -> list[dict[str, Any]]:
    keys = [readable(key) for key in now.keys.tolist()]
    wanted = {*keys}
    kept = [row for row in rows if row["key"] in wanted]
    sizes = np.array([row["output_bytes"] for row in kept], np.int64)
    _refuse_other_rows([row["key"] for row in kept], sizes, keys, now, what)
    places = _offsets(sizes, now).tolist()
    return [
        {**row, "output_offset": None if at < 0 else at}
        for row, at in zip(kept, places, strict=True)
    ]
