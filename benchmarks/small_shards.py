"""Many small shards, in and out, beside ``cp``: seconds, and processor seconds, of whole commands.

    python -m benchmarks.small_shards --directory DIR [--shards 1000] [--outputs 100000]

``cp -r`` of 1 MB shards and dsort from them to as many take turns; then comes dsort from large
shards to ``--outputs`` of 100 KB (0: left out). Each round ends with ``sync``, on both sides alike.
The least of the rounds counts. One JSON object on the last line.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "make", "measure", "shuffle"]

RECORD = "100KB"
DSORT = (sys.executable, "-m", "dsort")


def measure(command: Sequence[str], directory: Path, written: Path) -> tuple[float, float]:
    """(seconds, processor seconds of the whole tree) of a command that makes ``written``, which is
    removed first."""
    shutil.rmtree(written, ignore_errors=True)
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
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
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)


def shuffle(source: str, shard_size: str) -> list[str]:
    """The command that shuffles a bucket into ``out``."""
    spec = {
        "output_format": "o-%06d",
        "output_shard_size": shard_size,
        "algorithm": {"kind": "shuffle", "seed": "1"},
    }
    return [*DSORT, "start", source, "out", "--progress", "none", "-f", json.dumps(spec)]


def _least(
    directory: Path, commands: Mapping[str, tuple[Sequence[str], str]], rounds: int
) -> dict[str, dict[str, Any]]:
    """The best round of each command, which take turns; each is given with what it makes."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, (command, written) in commands.items():
            place = directory / written
            found.setdefault(name, []).append(measure(command, directory, place))
            seconds, cpu_s = found[name][-1]
            said = f"{name:<8} {seconds:8.2f} s {cpu_s:8.2f} CPU s"
            print(said, file=sys.stderr, flush=True)
            shutil.rmtree(place)
    return {
        name: {"seconds": min(each)[0], "cpu_s": min(each)[1], "rounds": rounds}
        for name, each in found.items()
    }


def main() -> None:
    """Make what is not there, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="where data and results go")
    parser.add_argument("--shards", type=int, default=1000, help="small input shards")
    parser.add_argument("--outputs", type=int, default=100_000, help="output shards of 100 KB")
    parser.add_argument("--rounds", type=int, default=3, help="of cp and of small input shards")
    parser.add_argument("--output-rounds", type=int, default=1, help="of many output shards")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    make(given.directory, "small", given.shards, 10)
    small = {
        "cp": (("cp", "-r", "small", "copy"), "copy"),
        "small": (shuffle("small", "1MB"), "out"),
    }
    jobs = _least(given.directory, small, given.rounds)
    if given.outputs:
        make(given.directory, "large", max(1, given.outputs // 1000), 1000)
        many = {"outputs": (shuffle("large", RECORD), "out")}
        jobs |= _least(given.directory, many, given.output_rounds)
    print(json.dumps({"shards": given.shards, "outputs": given.outputs, "jobs": jobs}))


if __name__ == "__main__":
    main()
