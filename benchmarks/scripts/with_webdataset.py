"""Shuffles shards as users of webdataset do: with a shuffle buffer and a `ShardWriter`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import webdataset  # type: ignore[import-untyped,import-not-found,unused-ignore]

BUFFER_RECORDS = 5_000


def main() -> None:
    """Read the given shards, and write shards of at most ``--shard-bytes`` to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shard-bytes", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suffix", default=".tar", help="of outputs; .tgz compresses them")
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()

    start = time.perf_counter()
    records = webdataset.WebDataset(
        arguments.shards, shardshuffle=len(arguments.shards), seed=arguments.seed, empty_check=False
    ).shuffle(BUFFER_RECORDS, rng=random.Random(arguments.seed))
    count = 0
    writer = webdataset.ShardWriter(
        str(arguments.output / f"out-%05d{arguments.suffix}"),
        maxcount=sys.maxsize,
        maxsize=arguments.shard_bytes,
        verbose=0,
    )
    with writer:
        for record in records:
            writer.write(
                {
                    name: value
                    for name, value in record.items()
                    if name == "__key__" or not name.startswith("__")
                }
            )
            count += 1
    print(json.dumps({"work_seconds": time.perf_counter() - start, "records": count}))


if __name__ == "__main__":
    main()
