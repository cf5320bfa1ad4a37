"""Shuffle Parquet with DuckDB: ORDER BY the hash of a column, as anyone would write it."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb


def main() -> None:
    """Arguments: directory of shards, output directory, output shards, bytes of memory."""
    source, target, memory_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[4])
    connection = duckdb.connect()
    connection.sql(f"SET temp_directory = '{target.parent / 'duckdb'}'")
    if memory_bytes:  # as its manual wants it: 80 % of what there is
        connection.sql(f"SET memory_limit = '{memory_bytes * 8 // 10} B'")
    columns = [row[0] for row in connection.sql(f"DESCRIBE FROM '{source}/*.parquet'").fetchall()]
    compression = "uncompressed" if "image" in columns else "snappy"
    connection.sql(
        f"COPY (SELECT * FROM '{source}/*.parquet' ORDER BY hash(id)) "
        f"TO '{target}/s.parquet' (FORMAT parquet, COMPRESSION {compression})"
    )


if __name__ == "__main__":
    main()
