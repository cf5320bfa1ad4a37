"""Map the records of shards with webdataset, from shard to shard, in some processes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from multiprocessing import Process
from pathlib import Path
from typing import Any

import webdataset  # type: ignore[import-untyped,import-not-found,unused-ignore]

SHARD_BYTES = 64 << 20


def same(record: dict[str, Any]) -> dict[str, Any]:
    """The record, as it is."""
    return record


def work(shards: list[str], output: Path, number: int) -> None:
    """Map ``shards``."""
    writer = webdataset.ShardWriter(
        str(output / f"out-{number}-%05d.tar"),
        maxcount=sys.maxsize,
        maxsize=SHARD_BYTES,
        verbose=0,
    )
    records = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).map(same)
    with writer:
        for record in records:
            kept = {n: v for n, v in record.items() if n == "__key__" or not n.startswith("__")}
            writer.write(kept)


def main() -> None:
    """Map the shards given, dealt out to ``--workers`` processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("shards", nargs="+")
    given = parser.parse_args()
    start = time.perf_counter()
    processes = [
        Process(target=work, args=(given.shards[n :: given.workers], given.output, n))
        for n in range(given.workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a worker ended with {process.exitcode}")
    print(json.dumps({"work_seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
