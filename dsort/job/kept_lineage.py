"""The lineage of a result from which records are removed: the earlier lineage without the rows of
these records. Rows of shards that were written again no longer have an offset in the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from dsort.data.columns import BytesColumn
from dsort.errors import InvariantError
from dsort.job.job import Job
from dsort.job.lineage import (
    damaged_lineage,
    key_strings,
    lineage_schema,
    local_file,
    row_groups,
    stage_rows,
)
from dsort.job.manifest import StagedSidecar
from dsort.naming.names import readable
from dsort.storage.small_objects import parse_json
from dsort.transforms.key_lists import DropKeys

if TYPE_CHECKING:
    from dsort.job.plan import Plan

LINE_BYTES_MAX: Final = 1 << 20
_OTHER: Final = "it does not say what is in the shards from which records are removed"
"""The lineage is of another result; or it writes two keys that are not UTF-8 alike, so that it is
unknown whose row it is."""


def stage_kept_lineage(job: Job, plan: Plan) -> StagedSidecar | None:
    """Stage one lineage of the whole result from which the job removes records, in place of the
    existing ones; None if there are none. ``StorageError`` if these are no lineages."""
    kind, base = job.pipeline.lineage, job.base
    if kind is None or base is None:
        return None
    (step,) = job.pipeline.steps
    if not isinstance(step, DropKeys):
        raise InvariantError("keys are removed by drop_keys")
    removed = step.listed_keys()
    names = [each.name for each in base.lineages]
    what = f"the lineage of job {base.job_id}"
    is_joined = any(part.spec.join is not None for part in base.parts())
    reads_alike = any("\\x" in readable(key) for key in removed.tolist())
    records = Counter(
        {_shown(name): each.records for name, each in zip(plan.names, plan.shards, strict=True)}
    )

    def write(file: IO[bytes]) -> None:
        write_rows = _write_parquet if kind == "parquet" else _write_lines
        kept = write_rows(file, _files(job, names), removed, plan.names)
        # A joined record has a row for each of its pieces.
        if kept != records and (not is_joined or reads_alike):
            raise damaged_lineage(what, _OTHER)

    return stage_rows(job, kind, write)


def _files(job: Job, names: list[str]) -> Iterator[tuple[str, Path]]:
    """(description, path) of each earlier lineage."""
    for name in names:
        job.stop.raise_if_requested()
        with local_file(job.outputs_bucket, name) as path:
            yield f"{name} in {job.outputs_bucket.uri}", path


def _write_parquet(
    file: IO[bytes],
    before: Iterator[tuple[str, Path]],
    removed: BytesColumn,
    written: Collection[str],
) -> Counter[str]:
    """Write the rows that stay; returns how many rows of each of the shards ``written`` stay."""
    import pyarrow as pa  # few jobs need it
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema, column = lineage_schema(), "output_offset"
    keys, shards = key_strings(removed), pa.array(map(_shown, written), pa.string())
    kept: Counter[str] = Counter()
    with pq.ParquetWriter(file, schema, compression="zstd", write_statistics=True) as writer:
        for what, path in before:
            try:
                with pq.ParquetFile(path) as old:
                    for number in row_groups(old, what):
                        rows = old.read_row_group(number).cast(schema)
                        gone = pc.is_in(rows["key"], value_set=keys)
                        moved = pc.is_in(rows["output_shard"], value_set=shards)
                        if pc.any(pc.and_not(gone, moved)).as_py():
                            raise damaged_lineage(what, _OTHER)
                        rows, moved = rows.filter(pc.invert(gone)), moved.filter(pc.invert(gone))
                        counts = pc.value_counts(
                            rows["output_shard"].filter(moved).cast(pa.string())
                        )
                        kept.update({each["values"]: each["counts"] for each in counts.to_pylist()})
                        offsets = pc.if_else(moved, None, rows[column])
                        at = schema.get_field_index(column)
                        writer.write_table(rows.set_column(at, schema.field(at), offsets))
            except (pa.ArrowException, OSError, ValueError, LookupError) as error:
                raise damaged_lineage(what, str(error)) from None
    return kept


def _write_lines(
    file: IO[bytes],
    before: Iterator[tuple[str, Path]],
    removed: BytesColumn,
    written: Collection[str],
) -> Counter[str]:
    keys, shards = {readable(each) for each in removed.tolist()}, {*map(_shown, written)}
    kept: Counter[str] = Counter()
    for what, path in before:
        with path.open("rb") as old:
            for line in iter(lambda: old.readline(LINE_BYTES_MAX), b""):
                row = parse_json(line, what)
                try:
                    gone, shard = row["key"] in keys, row["output_shard"]
                    if gone and shard not in shards:
                        raise damaged_lineage(what, _OTHER)
                    if gone:
                        continue
                    if shard in shards:
                        kept[shard] += 1
                        row["output_offset"] = None
                        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
                except (LookupError, TypeError, ValueError):
                    raise damaged_lineage(what, "a line is no row") from None
                file.write(line)
    return kept


def _shown(name: str) -> str:
    """The name of a shard as in lineages."""
    return readable(name.encode("utf-8", "surrogateescape"))
