"""TFRecord and MDS: shuffles of the same records beside a shuffle of tars, and conversions.

Run as ``python -m benchmarks.frames``; one JSON object on stdout. All figures are seconds of
processor time of a whole job in memory, less what a job of one record takes: they hold on a busy
machine, too. ``same``: from the container to itself; ``from_tar``: a shuffle of tars, written
as the container. ``same_ratio`` is tar's shuffle over ``same``, ``from_tar_ratio`` is ``same``
over ``from_tar``; both are to be 0.8 or more.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dsort.containers.tar.container import Tar
from dsort.data.entries import PlacedEntries

__all__ = ["main", "measure"]

SHARDS = 4
RECORD_BYTES = (100_000, 3_000)
SUFFIXES = (".tfrecord", ".mds")


def make_tars(directory: Path, record_bytes: int, records: int) -> None:
    """``SHARDS`` tars of records of one member."""
    directory.mkdir()
    source, tar = random.Random(1), Tar()
    for shard in range(SHARDS):
        with (directory / f"s-{shard}.tar").open("wb") as file:
            stored = 0
            for number in range(-(-records // SHARDS)):
                name = f"{shard}-{number:07d}.jpg".encode()
                payload = source.randbytes(
                    source.randrange(record_bytes // 2, 3 * record_bytes // 2)
                )
                for piece in tar.encode(name, payload)[0]:
                    stored += file.write(piece)
            file.write(tar.end(PlacedEntries.concat([]), stored))


def shuffle_seconds(root: Path, source: str, suffix: str, target: str, rounds: int) -> float:
    """The least that a shuffle of the shards in ``source`` takes of the processors, written as
    ``target``; the last result stays as the bucket ``target``, without its dot."""
    spec = {
        "input_bck": source,
        "output_bck": f"to{target}",
        "input_format": {"template": f"s-{{0..{SHARDS - 1}}}"},
        "input_extension": suffix,
        "output_extension": target,
        "output_format": "s-%d",
        "output_shard_count": SHARDS,
        "algorithm": {"kind": "shuffle", "seed": "1"},
    }
    file = root / "spec.json"
    file.write_text(json.dumps(spec))
    line = [sys.executable, "-m", "dsort", "start", "-f", str(file), "--root", str(root)]
    options = ["--move", "map", "--workers", "2", "--progress", "none"]
    found = []
    for _ in range(rounds):
        shutil.rmtree(root / f"to{target}", ignore_errors=True)
        before = _used()
        subprocess.run([*line, *options], check=True, stdout=subprocess.DEVNULL)
        found.append(_used() - before)
    return min(found)


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(root: Path, record_bytes: int, total_bytes: int, rounds: int) -> dict[str, object]:
    """The figures of records of about ``record_bytes``."""
    make_tars(root / "few", 100, SHARDS)
    start = shuffle_seconds(root, "few", ".tar", ".tar", rounds)
    make_tars(root / "tar", record_bytes, total_bytes // record_bytes)
    tar = shuffle_seconds(root, "tar", ".tar", ".tar", rounds) - start
    figures: dict[str, object] = {"start": start, "tar": tar}
    for suffix in SUFFIXES:
        from_tar = shuffle_seconds(root, "tar", ".tar", suffix, rounds) - start
        shutil.move(root / f"to{suffix}", root / suffix[1:])
        same = shuffle_seconds(root, suffix[1:], suffix, suffix, rounds) - start
        figures[suffix] = {
            "same": same,
            "same_ratio": tar / same,
            "from_tar": from_tar,
            "from_tar_ratio": same / from_tar,
        }
    return figures


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total", type=int, default=600_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    figures = {}
    for record_bytes in RECORD_BYTES:
        with tempfile.TemporaryDirectory(prefix="frames-") as temporary:
            figures[record_bytes] = measure(
                Path(temporary), record_bytes, arguments.total, arguments.rounds
            )
    print(json.dumps({"total_bytes": arguments.total, "cpu_seconds": figures}))


if __name__ == "__main__":
    main()
