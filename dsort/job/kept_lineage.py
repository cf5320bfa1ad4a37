"""The lineage of a result from which records are removed: that of before, without the rows of these
records. Rows of shards that were written again have no offset in the output any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


def stage_kept_lineage(job: Job, plan: Plan) -> StagedSidecar | None:
    """Stage one lineage of the whole result from which the job removes records, in place of those
    that there are; None if there are none. ``StorageError`` if they are no lineages."""
    kind, base = job.spec.lineage, job.base
    if kind is None or base is None:
        return None
    (step,) = job.pipeline.steps
    if not isinstance(step, DropKeys):
        raise InvariantError("keys are removed by drop_keys")
    removed = step.listed_keys()
    written = BytesColumn.of([name.encode("utf-8", "surrogateescape") for name in plan.names])
    names = [each.name for each in base.lineages]
    write = _write_parquet if kind == "parquet" else _write_lines
    return stage_rows(job, kind, lambda file: write(file, _files(job, names), removed, written))


def _files(job: Job, names: list[str]) -> Iterator[tuple[str, Path]]:
    """(what it is, path) of each lineage of before."""
    for name in names:
        job.stop.raise_if_requested()
        with local_file(job.outputs_bucket, name) as path:
            yield f"{name} in {job.outputs_bucket.uri}", path


def _write_parquet(
    file: IO[bytes], before: Iterator[tuple[str, Path]], removed: BytesColumn, written: BytesColumn
) -> None:
    import pyarrow as pa  # few jobs need it
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema, column = lineage_schema(), "output_offset"
    keys, shards = key_strings(removed), key_strings(written)
    with pq.ParquetWriter(file, schema, compression="zstd", write_statistics=True) as writer:
        for what, path in before:
            try:
                with pq.ParquetFile(path) as old:
                    for number in row_groups(old, what):
                        rows = old.read_row_group(number).cast(schema)
                        rows = rows.filter(pc.invert(pc.is_in(rows["key"], value_set=keys)))
                        is_known = pc.invert(pc.is_in(rows["output_shard"], value_set=shards))
                        offsets = pc.if_else(is_known, rows[column], None)
                        at = schema.get_field_index(column)
                        writer.write_table(rows.set_column(at, schema.field(at), offsets))
            except (pa.ArrowException, OSError, ValueError, LookupError) as error:
                raise damaged_lineage(what, str(error)) from None


def _write_lines(
    file: IO[bytes], before: Iterator[tuple[str, Path]], removed: BytesColumn, written: BytesColumn
) -> None:
    keys, shards = ({readable(each) for each in names.tolist()} for names in (removed, written))
    for what, path in before:
        with path.open("rb") as old:
            for line in iter(lambda: old.readline(LINE_BYTES_MAX), b""):
                row = parse_json(line, what)
                try:
                    if row["key"] in keys:
                        continue
                    if row["output_shard"] in shards:
                        row["output_offset"] = None
                        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
                except (LookupError, TypeError):
                    raise damaged_lineage(what, "a line is no row") from None
                file.write(line)
