"""The least that a shuffle of Parquet takes with pyarrow: read all, take, write row groups.

No keys, no checksums, no bound on memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def main() -> None:
    """Arguments: directory of shards, output directory, output shards, bytes of memory."""
    source, target, shards = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    pa.set_cpu_count(2)
    tables = [pq.ParquetFile(path).read() for path in sorted(source.glob("*.parquet"))]
    table = pa.concat_tables(tables).combine_chunks()  # else each `take` joins them anew
    del tables
    order = np.random.default_rng(1).permutation(len(table))
    media = any(pa.types.is_struct(field.type) for field in table.schema)
    rows_a_group = 100 if media else 20_000
    bounds = np.linspace(0, len(table), shards + 1).astype(int)
    compression = {"id": "snappy", "text": "snappy", "image.bytes": "none", "image.path": "none"}
    for shard in range(shards):
        rows = order[bounds[shard] : bounds[shard + 1]]
        writer = pq.ParquetWriter(
            target / f"s-{shard}.parquet",
            table.schema,
            compression=compression if media else "snappy",
            use_dictionary=["id"],
            write_statistics=["id"],
            write_page_index=True,
        )
        for at in range(0, len(rows), rows_a_group):
            part = table.take(pa.array(rows[at : at + rows_a_group]))
            writer.write_table(part.combine_chunks(), row_group_size=rows_a_group)
        writer.close()


if __name__ == "__main__":
    main()
