"""The least work of a shuffle of Parquet with pyarrow: read all, take, write row groups.

The script compares no keys, makes no checksums, and has no bound on memory.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS_OF_FILES, GROUP_ROWS_OF_TEXT = 100, 10_000


def main() -> None:
    """Read the given shards, and write ``--outputs`` shards to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--outputs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compression", choices=("snappy", "uncompressed"), required=True)
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()

    start = time.perf_counter()
    # The chunks are joined once; otherwise each `take` would join them again.
    tables = [pq.ParquetFile(path).read() for path in arguments.shards]
    table = pa.concat_tables(tables).combine_chunks()
    del tables
    order = np.random.default_rng(arguments.seed).permutation(len(table))
    is_files = arguments.compression == "uncompressed"
    group_rows = GROUP_ROWS_OF_FILES if is_files else GROUP_ROWS_OF_TEXT
    for shard, rows in enumerate(np.array_split(order, arguments.outputs)):
        with pq.ParquetWriter(
            arguments.output / f"out-{shard:05d}.parquet",
            table.schema,
            compression="none" if is_files else "snappy",
            use_dictionary=["id"],
            write_statistics=["id"],
            write_page_index=True,
        ) as writer:
            for at in range(0, len(rows), group_rows):
                part = table.take(pa.array(rows[at : at + group_rows]))
                writer.write_table(part.combine_chunks(), row_group_size=group_rows)
    print(json.dumps({"work_seconds": time.perf_counter() - start, "records": len(table)}))


if __name__ == "__main__":
    main()
