"""Shuffles lines or rows of Parquet with Polars: sorts them by a hash of each."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Literal

import polars as pl


def main() -> None:
    """Read the given shards, and write one file to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=("lines", "rows"), required=True)
    parser.add_argument("--key", default="line", help="the column that is hashed, of rows")
    parser.add_argument("--compression", choices=("snappy", "uncompressed"), default="snappy")
    parser.add_argument("--engine", choices=("in-memory", "streaming"), default="in-memory")
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()

    start = time.perf_counter()
    engine: Literal["in-memory", "streaming"] = arguments.engine
    compression: Literal["snappy", "uncompressed"] = arguments.compression
    if arguments.kind == "lines":
        frame = pl.scan_lines(arguments.shards, name="line")
    else:
        frame = pl.scan_parquet(arguments.shards)
    ordered = frame.sort(pl.col(arguments.key).hash(arguments.seed))
    if arguments.kind == "lines":
        ordered.sink_csv(
            arguments.output / "out.jsonl",
            include_header=False,
            quote_style="never",
            check_extension=False,
            engine=engine,
        )
    else:
        ordered.sink_parquet(
            arguments.output / "out.parquet", compression=compression, engine=engine
        )
    print(json.dumps({"work_seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
