"""Shuffles lines or rows of Parquet with DuckDB: ``ORDER BY`` a hash of each."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import duckdb

# No line of JSON contains this separator, and quotes have no meaning: so a line is one column.
SEPARATOR, NO_QUOTE = "\x01", ""


def main() -> None:
    """Read the given shards, and write one file to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=("lines", "rows"), required=True)
    parser.add_argument("--key", default="", help="the column that is hashed, of rows")
    parser.add_argument("--compression", default="snappy", help="of rows")
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()

    start = time.perf_counter()
    connection = duckdb.connect()
    if arguments.memory_bytes:
        connection.execute(f"SET memory_limit = '{arguments.memory_bytes}B'")
        connection.execute(f"SET temp_directory = '{arguments.output}/spill'")
    if arguments.kind == "lines":
        lines = connection.read_csv(
            arguments.shards,
            header=False,
            columns={"line": "VARCHAR"},
            sep=SEPARATOR,
            quotechar=NO_QUOTE,
            escapechar=NO_QUOTE,
        )
        ordered = lines.order(f"hash(line, {arguments.seed})")
        ordered.to_csv(
            str(arguments.output / "out.jsonl"), header=False, sep=SEPARATOR, quotechar=NO_QUOTE
        )
    else:
        rows = connection.read_parquet(arguments.shards)
        ordered = rows.order(f"hash({arguments.key}, {arguments.seed})")
        ordered.to_parquet(str(arguments.output / "out.parquet"), compression=arguments.compression)
    print(json.dumps({"work_seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
