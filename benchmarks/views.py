"""Compares reads of a view, in its order, with forward reads of the shards that it replaces.

Run it with ``python -m benchmarks.views --directory DIR``. Lines go to stderr, and one JSON object
to stdout: for each size of records, the medians of the rates in MB/s, and the median of the ratios
of the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import dsort
from dsort.loader import Loader

FILE_SIZES = {"10k": 10_000, "100k": 100_000, "4m": 4_000_000}
STORE_SIZES = {"1m": 1_000_000}
SHARD_BYTES = 64 << 20


def make(base: str, record_bytes: int, total: int) -> None:
    """Inputs, shuffled shards and a view of them, in buckets below ``base``."""
    records = max(SHARD_BYTES // record_bytes, 1)
    count = max(total // (records * record_bytes), 1)
    template = f"{base}/in/s-{{0000..{count - 1:04d}}}.tar"
    sizes = ["--fcount", str(records), "--fsize", str(record_bytes)]
    command = [sys.executable, "-m", "dsort", "gen-shards", template, *sizes]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    spec: dict[str, Any] = {
        "input_bck": f"{base}/in",
        "output_shard_records": records,
        "output_format": "o-%04d",
        "algorithm": {"kind": "shuffle", "seed": 1},
    }
    dsort.run({**spec, "output_bck": f"{base}/shards"})
    dsort.run({**spec, "output_bck": f"{base}/view", "output": "view"})


def read(where: str) -> tuple[float, float, int]:
    """(seconds, processor seconds, bytes) of one epoch in the order of the shards."""
    began, cpu = time.monotonic(), time.process_time()
    total = 0
    for sample in Loader(where, batch_size=None, order="sequential", cache=""):
        total += sum(map(len, sample.values()))
    return time.monotonic() - began, time.process_time() - cpu, total


def forget_pages(directory: Path) -> None:
    """Take all files below ``directory`` out of the page cache."""
    os.sync()  # dirty pages could not be dropped
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare(base: str, rounds: int, cold: Path | None) -> dict[str, float]:
    """The figures of one size of records: shards and view are read in pairs, without an index.
    ``cold``: the directory whose files are taken out of the page cache before each reading."""
    found: dict[str, list[tuple[float, float]]] = {"shards": [], "view": []}
    total = 0
    for turn in range(rounds + 1):
        for name in ("shards", "view") if turn % 2 else ("view", "shards"):
            if cold:
                forget_pages(cold)
            seconds, cpu, total = read(f"{base}/{name}")
            if turn:  # the first round warms the page cache
                found[name].append((seconds, cpu))
    pairs = zip(found["shards"], found["view"], strict=True)
    figures = {"ratio": median(one[0] / other[0] for one, other in pairs)}
    for name, each in found.items():
        figures[f"{name}_mb_s"] = total / 1e6 / median(seconds for seconds, _ in each)
        figures[f"{name}_cpu_s"] = median(cpu for _, cpu in each)
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--s3", action="store_true", help="in SeaweedFS instead of files")
    parser.add_argument("--cold", action="store_true", help="from the disk, not the page cache")
    parser.add_argument("--only", choices=[*FILE_SIZES, *STORE_SIZES])
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    if not given.s3:
        report(given, FILE_SIZES, given.directory.resolve().as_uri())
        return
    from benchmarks.seaweedfs import seaweedfs

    with seaweedfs(given.directory / "seaweedfs") as server:
        os.environ |= {**server.environment(), "AWS_ENDPOINT_URL": server.endpoint_url}
        report(given, STORE_SIZES, f"s3://{server.new_bucket_name()}")


def report(given: argparse.Namespace, sizes: dict[str, int], base: str) -> None:
    """Measure all sizes, and write the figures."""
    found = {}
    for name, size in sizes.items():
        if given.only in (None, name):
            make(f"{base}/{name}", size, given.megabytes << 20)
            found[name] = compare(
                f"{base}/{name}", given.rounds, given.directory if given.cold else None
            )
            print(name, found[name], file=sys.stderr)
    print(json.dumps({"load": os.getloadavg()[0], **found}))


if __name__ == "__main__":
    main()
