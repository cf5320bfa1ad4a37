"""Planning alone: orders and cuts synthetic index rows, and prints seconds and peak memory.

Run as ``python -m benchmarks.planning --rows 10000000``; one JSON object on stdout. Nothing is
read or written. The clock and the peak cover planning only, the memory of the rows included.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsort.core.columns import Int64s, UInt64s

__all__ = ["IndexRows", "make_rows", "plan_rows"]

RECORDS_PER_SHARD = 1_000
SHARD_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class IndexRows:
    """What extract would give for ``n`` records of about 100 KB, as columns of shape ``(n,)``.

    ``sort_keys`` and ``key_hashes`` are even over 64 bits, as hashes are; ``shards`` is the
    ordinal of each record's input shard, ``record_bytes`` its range there.
    """

    sort_keys: UInt64s
    key_hashes: UInt64s
    shards: Int64s
    offsets: Int64s
    record_bytes: Int64s


def make_rows(rows: int, seed: int) -> IndexRows:
    """Seeded rows; 40 bytes each."""
    stream = np.random.SFC64(seed)
    blocks = (178 + stream.random_raw(rows) % 40).astype(np.int64)
    record_bytes = blocks * 512
    ordinals = np.arange(rows, dtype=np.int64)
    shards = ordinals // RECORDS_PER_SHARD
    offsets = np.cumsum(record_bytes)
    offsets -= record_bytes
    offsets -= offsets[shards * RECORDS_PER_SHARD]
    keys, hashes = stream.random_raw(rows), stream.random_raw(rows)
    return IndexRows(keys, hashes, shards, offsets, record_bytes)


def plan_rows(rows: IndexRows, shard_bytes: int) -> int:
    """Plan a shuffle of ``rows`` into shards of ``shard_bytes``; the number of output shards."""
    raise NotImplementedError("dsort.core has no planner yet")


def _memory_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def main() -> None:
    """Make the rows, plan them, print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    rows = make_rows(arguments.rows, arguments.seed)
    # Forget the peak of making the rows: what follows is planning's own.
    Path("/proc/self/clear_refs").write_text("5")
    before_bytes = _memory_bytes("VmRSS")
    start = time.perf_counter()
    shards = plan_rows(rows, SHARD_BYTES)
    seconds = time.perf_counter() - start
    report = {
        "rows": arguments.rows,
        "shards": shards,
        "plan_seconds": seconds,
        "before_bytes": before_bytes,
        "peak_bytes": _memory_bytes("VmHWM"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
