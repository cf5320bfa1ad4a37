"""Many small shards, in and out, beside ``cp``: seconds, and processor seconds, of whole commands.

    python -m benchmarks.small_shards --directory DIR [--shards 1000] [--outputs 100000]

The first line is ``cp -r`` of 1 MB shards, the second dsort from them to as many, the third dsort
from large shards to ``--outputs`` of 100 KB (0: left out). Each round ends with ``sync``, on both
sides alike.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

RECORD = "100KB"
DSORT = (sys.executable, "-m", "dsort")


def measure(command: Sequence[str], directory: Path, written: Path) -> tuple[float, float]:
    """(seconds, processor seconds of the whole tree) of a command that makes ``written``, which is
    removed first."""
    shutil.rmtree(written, ignore_errors=True)
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    os.sync()
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make(directory: Path, bucket: str, shards: int, records: int) -> None:
    """Shards of ``records`` records each, unless they are there."""
    if (directory / bucket).is_dir():
        return
    names = f"{bucket}/s-{{000000..{shards - 1:06d}}}.tar"
    counts = ("--fcount", str(records), "--fsize", RECORD, "--fext", "jpg")
    command = (*DSORT, "gen-shards", "--root", ".", names, *counts)
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def shuffle(source: str, shard_size: str) -> list[str]:
    """The command that shuffles a bucket into ``out``."""
    spec = {
        "output_format": "o-%06d",
        "output_shard_size": shard_size,
        "algorithm": {"kind": "shuffle", "seed": "1"},
    }
    return [*DSORT, "start", source, "out", "-f", json.dumps(spec)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="where data and results go")
    parser.add_argument("--shards", type=int, default=1000, help="small input shards")
    parser.add_argument("--outputs", type=int, default=100_000, help="output shards of 100 KB")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    make(given.directory, "small", given.shards, 10)
    rows = [
        ("cp", ["cp", "-r", "small", "copy"], "copy"),
        (f"{given.shards} shards of 1 MB", shuffle("small", "1MB"), "out"),
    ]
    if given.outputs:
        make(given.directory, "large", max(1, given.outputs // 1000), 1000)
        rows.append((f"{given.outputs} outputs of 100 KB", shuffle("large", RECORD), "out"))
    for name, command, written in rows:
        place = given.directory / written
        found = [measure(command, given.directory, place) for _ in range(given.rounds)]
        seconds, cpu_seconds = min(found)
        print(f"{name:<32} {seconds:8.2f} s {cpu_seconds:8.2f} CPU s", flush=True)
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
