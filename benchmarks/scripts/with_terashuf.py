"""Shuffles lines in Python as terashuf does: permuted runs in temporary files, and draws from them.

Up to ``--memory-bytes`` of lines are read, permuted and written as a run, until all lines are
written. Then a run is drawn for each line of the output, in proportion to the lines that it has
left. Data that fits in memory is written at once, without a run.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO


def lines_of(shards: Iterable[str]) -> Iterator[bytes]:
    """All lines of all shards, in order."""
    for shard in shards:
        with open(shard, "rb") as file:
            yield from file


def runs_of(lines: Iterable[bytes], memory_bytes: int, rng: random.Random) -> Iterator[list[bytes]]:
    """Permuted lists of lines, none of much more than ``memory_bytes``."""
    held: list[bytes] = []
    held_bytes = 0
    for line in lines:
        held.append(line)
        held_bytes += len(line)
        if held_bytes >= memory_bytes:
            rng.shuffle(held)
            yield held
            held, held_bytes = [], 0
    rng.shuffle(held)
    yield held


def drawn(files: list[IO[bytes]], counts: list[int], rng: random.Random) -> Iterator[bytes]:
    """The lines of all runs. Each run keeps its order; all interleavings are equally probable."""
    left = sum(counts)
    while left:
        place = rng.randrange(left)
        run = 0
        while place >= counts[run]:
            place -= counts[run]
            run += 1
        counts[run] -= 1
        left -= 1
        yield files[run].readline()


def write_shards(lines: Iterable[bytes], output: Path, shard_bytes: int) -> int:
    """Write shards that end at ``shard_bytes``. Returns the number of lines."""
    file: IO[bytes] | None = None
    written = shards = count = 0
    for line in lines:
        if file is None:
            file = (output / f"out-{shards:05d}.jsonl").open("wb", buffering=1 << 20)
            shards += 1
        written += file.write(line)
        count += 1
        if written >= shard_bytes:
            file.close()
            file, written = None, 0
    if file is not None:
        file.close()
    return count


def shuffled(
    lines: Iterable[bytes], memory_bytes: int, scratch: Path, rng: random.Random
) -> Iterator[bytes]:
    """All lines, permuted, with at most about ``memory_bytes`` of lines in memory."""
    runs = runs_of(lines, memory_bytes, rng)
    first = next(runs)
    second = next(runs, None)
    if second is None:
        yield from first
        return
    counts = []
    with ExitStack() as stack:
        files: list[IO[bytes]] = []
        for run in (first, second, *runs):
            file = stack.enter_context(tempfile.TemporaryFile(dir=scratch))
            file.writelines(run)
            file.seek(0)
            files.append(file)
            counts.append(len(run))
        yield from drawn(files, counts, rng)


def main() -> None:
    """Read the given shards, and write shards of ``--shard-bytes`` to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shard-bytes", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()

    start = time.perf_counter()
    rng = random.Random(arguments.seed)
    lines = shuffled(lines_of(arguments.shards), arguments.memory_bytes, arguments.output, rng)
    count = write_shards(lines, arguments.output, arguments.shard_bytes)
    print(json.dumps({"work_seconds": time.perf_counter() - start, "records": count}))


if __name__ == "__main__":
    main()
