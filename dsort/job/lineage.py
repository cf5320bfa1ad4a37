"""The lineage of a job: for each record of the result, the input shard and the record that it came
from.

It is one file in the job's directory, with a row for each record in output order. Workers store the
rows of each output shard when they write the shard; this module joins the rows for the commit.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from dsort.data.arrow_arrays import arrow_bytes, arrow_numbers
from dsort.data.columns import BytesColumn, Int64s
from dsort.data.index import CONTENT_HASH, KEYS, ORIGIN_BYTES, ORIGIN_START, SHARD, STORED_BYTES
from dsort.data.table import Name, Numbers, Table
from dsort.errors import StorageError
from dsort.job.job import Job
from dsort.naming.names import readable
from dsort.results.layout import lineage_name, sidecars_prefix, staged_prefix
from dsort.results.manifest import StagedSidecar
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import parse_json, read_blocks, read_small, stage_file
from dsort.workers.companions import LINEAGE, lineage_of, staged_sidecar

if TYPE_CHECKING:
    from dsort.job.plan import Plan

STORED_BYTES_MAX: Final = 4 << 30
ROWS_A_GROUP: Final = 1 << 18
GROUP_ROWS_MAX: Final = 1 << 26
GROUP_BYTES_MAX: Final = 4 << 30
LINE_BYTES_MAX: Final = 1 << 20


OUTPUT_START: Final = Numbers("output_start", "<i8")
"""Where a record begins in its output shard; -1: unknown."""
Rows = tuple[str, Table]
"""(name of an output shard, its rows)"""


def stage_lineage(job: Job, plan: Plan, kind: str) -> StagedSidecar:
    """Stage the lineage of a job whose output shards are all written. ``kind``: ``parquet`` or
    ``jsonl``."""
    write = _write_parquet if kind == "parquet" else _write_lines
    inputs = [_text(shard.name) for shard in job.inputs]
    name, token = lineage_name(job.job_id, kind), f"{staged_prefix(job.job_id)}lineage"
    with tempfile.TemporaryDirectory(prefix="dsort-lineage-") as directory:
        path = Path(directory) / "lineage"
        with path.open("wb") as file:
            write(file, _rows(job, plan), inputs)
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            return StagedSidecar(kind, stage_file(job.buckets.outputs, token, name, file))


# key            of the record in the output
# input_shard    name of its input shard
# input_offset   where the record begins in the input shard without its codec, in bytes; null if it
#                is not in one place
# input_bytes    bytes from there to the end of its last member
# output_shard   name of its output shard
# output_offset  where the record begins in the output shard without its codec, in bytes; null if
#                its columns are apart, or records were removed from the shard since
# output_bytes   bytes of the record in the output shard, headers and padding included
# xxh3           XXH3 (64 bits) of these bytes, as 16 hexadecimal digits; for rows of tables, of
#                their values
_COLUMNS: Final[Mapping[str, type]] = {
    "key": str,
    "input_shard": str,
    "input_offset": int,
    "input_bytes": int,
    "output_shard": str,
    "output_offset": int,
    "output_bytes": int,
    "xxh3": str,
}


def find_in_lineage(bucket: Bucket, name: str, keys: Collection[str]) -> Iterator[dict[str, Any]]:
    """The rows of the lineage ``name`` whose key is one of ``keys``. ``StorageError`` if the file
    is no lineage: others may have written it."""
    with local_file(bucket, name) as path:
        find = _find_in_parquet if name.endswith(".parquet") else _find_in_lines
        for row in find(path, frozenset(keys), f"{name} in {bucket.uri}"):
            known = {column: row.get(column) for column in _COLUMNS}
            for column, kind in _COLUMNS.items():
                kinds = (kind, type(None)) if column.endswith("_offset") else (kind,)
                if type(known[column]) not in kinds:
                    raise damaged_lineage(
                        f"{name} in {bucket.uri}", f"{column} is {known[column]!r:.40}"
                    )
            yield known


@contextmanager
def local_file(bucket: Bucket, name: str) -> Iterator[Path]:
    """The object ``name`` as a file of this machine."""
    path = bucket.local_path(name)
    if path:
        yield path
        return
    with (
        tempfile.TemporaryDirectory(prefix="dsort-lineage-") as directory,
        bucket.open(name) as opened,
    ):
        path = Path(directory) / "lineage"
        with path.open("wb") as file:
            file.writelines(read_blocks(opened))
        yield path


def row_groups(file: Any, what: str) -> Iterator[int]:
    """The numbers of the row groups of a ``ParquetFile``; ``StorageError`` if a group is larger
    than the groups that dsort writes."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        if group.total_byte_size > GROUP_BYTES_MAX or group.num_rows > GROUP_ROWS_MAX:
            raise damaged_lineage(what, f"row group {number} has the length {group.num_rows}")
        yield number


def _find_in_parquet(path: Path, keys: frozenset[str], what: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            wanted = _texts(sorted(keys))
            for number in row_groups(file, what):
                found = file.read_row_group(number, columns=["key"])["key"]
                is_wanted = pc.is_in(found, value_set=wanted)
                if pc.any(is_wanted).as_py():
                    yield from file.read_row_group(number).filter(is_wanted).to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        raise damaged_lineage(what, str(error)) from None


def _find_in_lines(path: Path, keys: frozenset[str], what: str) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(LINE_BYTES_MAX), b""):
            row = parse_json(line, what)
            if not isinstance(row, dict):
                raise damaged_lineage(what, "a line is no object")
            if row.get("key") in keys:
                yield row


def damaged_lineage(what: str, reason: str) -> StorageError:
    """The error for the damaged file ``what``."""
    return StorageError(f"{what} is damaged: {reason}", hint="dsort did not write this file")


def _rows(job: Job, plan: Plan) -> Iterator[Rows]:
    """The rows of each output shard, as the worker that wrote the shard stored them."""
    for shard, name in zip(plan.shards, plan.names, strict=True):
        job.stop.raise_if_requested()
        place = staged_sidecar(sidecars_prefix(job.job_id), shard.ordinal, LINEAGE)
        data = read_small(job.buckets.outputs, place, bytes_max=STORED_BYTES_MAX)
        rows = lineage_of(
            data, f"the lineage of output shard {shard.ordinal}", inputs=len(job.inputs)
        )
        starts = np.cumsum(rows[STORED_BYTES]) + shard.head_bytes - rows[STORED_BYTES]
        if job.pipeline.carrier.is_columnar or job.pipeline.output(shard.group).is_late:
            starts = np.full(len(starts), -1)
        yield name, rows.with_(OUTPUT_START, starts)


def lineage_schema() -> Any:
    """The pyarrow schema of lineages of the kind ``parquet``."""
    import pyarrow as pa

    names = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        {
            "key": pa.string(),
            "input_shard": names,
            "input_offset": pa.int64(),
            "input_bytes": pa.int64(),
            "output_shard": names,
            "output_offset": pa.int64(),
            "output_bytes": pa.int64(),
            "xxh3": pa.string(),
        }
    )


def _write_parquet(file: IO[bytes], shards: Iterator[Rows], inputs: Sequence[str]) -> None:
    import pyarrow as pa  # few jobs need it
    import pyarrow.parquet as pq

    schema = lineage_schema()

    def named(numbers: np.ndarray[Any, Any], known: Sequence[str]) -> Any:
        used, places = np.unique(numbers, return_inverse=True)
        texts = _texts([known[number] for number in used.tolist()])
        return pa.DictionaryArray.from_arrays(arrow_numbers(places.astype(np.int32)), texts)

    def offsets(values: Int64s) -> Any:
        return arrow_numbers(values, values >= 0)

    with pq.ParquetWriter(file, schema, compression="zstd", write_statistics=True) as writer:
        for group in _groups(shards):
            outputs, counts = [_text(name) for name, _ in group], [len(own) for _, own in group]
            rows = Table.concat([own for _, own in group])
            columns = [
                key_strings(rows[KEYS]),
                named(rows[SHARD], inputs),
                offsets(rows[ORIGIN_START]),
                arrow_numbers(rows[ORIGIN_BYTES]),
                named(np.repeat(np.arange(len(group)), counts), outputs),
                offsets(rows[OUTPUT_START]),
                arrow_numbers(rows[STORED_BYTES]),
                _hash_strings(rows[CONTENT_HASH]),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _groups(shards: Iterator[Rows]) -> Iterator[list[Rows]]:
    """Groups of shards, each for a row group of about ``ROWS_A_GROUP`` rows."""
    group: list[Rows] = []
    for each in shards:
        group.append(each)
        if sum(len(own) for _, own in group) >= ROWS_A_GROUP:
            yield group
            group = []
    if group:
        yield group


def key_strings(keys: BytesColumn) -> Any:
    """The keys as a column of text. A key that is not UTF-8 has the same form as in messages."""
    import pyarrow as pa

    offsets, blob = pa.py_buffer(keys.offsets), pa.py_buffer(keys.blob)
    column = pa.LargeStringArray.from_buffers(len(keys), offsets, blob)
    try:
        column.validate(full=True)
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return _texts([readable(key) for key in keys.tolist()])


def _texts(texts: Sequence[str]) -> Any:
    import pyarrow as pa

    return arrow_bytes([text.encode() for text in texts], pa.string())


def _hash_strings(hashes: np.ndarray[Any, Any]) -> Any:
    """The hashes as text, 16 hexadecimal digits each."""
    import pyarrow as pa

    digits = np.frombuffer(hashes.astype(">u8").tobytes().hex().encode(), np.uint8)
    ends = np.arange(len(hashes) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(len(hashes), pa.py_buffer(ends), pa.py_buffer(digits))


def _write_lines(file: IO[bytes], shards: Iterator[Rows], inputs: Sequence[str]) -> None:
    names: tuple[Name[Any], ...] = (
        *(KEYS, SHARD, ORIGIN_START, ORIGIN_BYTES),
        *(OUTPUT_START, STORED_BYTES, CONTENT_HASH),
    )
    for name, own in shards:
        output = _text(name)
        rows = zip(*(own[column].tolist() for column in names), strict=True)
        for key, shard, start, size_bytes, at, stored_bytes, digest in rows:
            row = {
                "key": readable(key),
                "input_shard": inputs[shard],
                "input_offset": None if start < 0 else start,
                "input_bytes": size_bytes,
                "output_shard": output,
                "output_offset": None if at < 0 else at,
                "output_bytes": stored_bytes,
                "xxh3": f"{digest:016x}",
            }
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _text(name: str) -> str:
    """A shard's name as in messages: it may not be UTF-8."""
    return readable(name.encode("utf-8", "surrogateescape"))
