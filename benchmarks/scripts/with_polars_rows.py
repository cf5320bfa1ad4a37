"""Shuffle Parquet with Polars, by the hash of a column, as anyone would write it."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl


def main() -> None:
    """Arguments: directory of shards, output directory, output shards, bytes of memory."""
    source, target, shards = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    frame = pl.read_parquet(source / "*.parquet").sort(pl.col("id").hash(1))
    rows = -(-len(frame) // shards)
    compression = "uncompressed" if "image" in frame.columns else "snappy"
    for shard in range(shards):
        part = frame.slice(shard * rows, rows)
        part.write_parquet(target / f"s-{shard}.parquet", compression=compression)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
