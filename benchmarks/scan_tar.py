"""What it costs to find the members of a tar: microseconds a member, by size and by writer.

    python -m benchmarks.scan_tar [--rounds 9] [--json]

Each shard is written once, mapped, and scanned ``rounds`` times with its pages in the cache; the
best and the median round are printed. ``tarfile`` iterates over the same shard for comparison.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from dsort.containers.tar.container import TAR
from dsort.containers.tar.scan import END_OF_ARCHIVE

__all__ = ["main"]

TARFILE_MEMBERS_MAX = 5_000


@dataclass(frozen=True)
class Shard:
    """A shard to scan: who wrote it, and ``members`` payloads of ``member_bytes`` each."""

    name: str
    writer: str
    member_bytes: int
    members: int


SHARDS = (
    Shard("1 KB", "ustar", 1_000, 60_000),
    Shard("100 KB", "ustar", 100_000, 2_000),
    Shard("4 MB", "ustar", 4_000_000, 100),
    Shard("1 KB, webdataset (pax)", "webdataset", 1_000, 40_000),
    Shard("100 KB, webdataset (pax)", "webdataset", 100_000, 2_000),
    Shard("1 KB, GNU long names", "gnu-long", 1_000, 40_000),
    Shard("1 KB, V7", "v7", 1_000, 60_000),
)


@dataclass(frozen=True)
class Result:
    """Microseconds a member."""

    shard: str
    members: int
    best_us: float
    median_us: float
    tarfile_us: float


def _write_webdataset(file: BinaryIO, shard: Shard) -> None:
    import webdataset

    writer = webdataset.TarWriter(file)
    for number in range(shard.members):
        writer.write({"__key__": f"{number:09d}", "jpg": os.urandom(shard.member_bytes)})
    writer.close()


def _write_plain(file: BinaryIO, shard: Shard) -> None:
    for number in range(shard.members):
        info = tarfile.TarInfo(f"{number:09d}.jpg")
        if shard.writer == "gnu-long":
            info.name = "directory/" * 15 + info.name
        info.size, info.mtime = shard.member_bytes, 1_700_000_000
        head = info.tobuf(
            tarfile.GNU_FORMAT if shard.writer == "gnu-long" else tarfile.USTAR_FORMAT
        )
        file.write(_as_v7(head) if shard.writer == "v7" else head)
        file.write(os.urandom(shard.member_bytes) + bytes(-shard.member_bytes % 512))
    file.write(END_OF_ARCHIVE)


def _as_v7(head: bytes) -> bytes:
    """A header without magic, and what comes after it."""
    blank = head[:148] + b" " * 8 + head[156:257].ljust(356, b"\0")
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def _rounds_us(work: Callable[[], object], rounds: int, members: int) -> list[float]:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) / members * 1e6)
    return times


def _measure(directory: Path, shard: Shard, rounds: int) -> Result:
    path = directory / "shard.tar"
    with path.open("wb") as out:
        (_write_webdataset if shard.writer == "webdataset" else _write_plain)(out, shard)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        found = len(TAR.scan(shard.name, view))
        times = _rounds_us(lambda: TAR.scan(shard.name, view), rounds, shard.members)
    if found != shard.members:
        raise SystemExit(f"{shard.name}: found {found} members of {shard.members}")
    count = min(shard.members, TARFILE_MEMBERS_MAX)

    def iterate() -> None:
        with tarfile.open(path, "r:") as archive:
            for _ in range(count):
                archive.next()

    peer = _rounds_us(iterate, min(rounds, 3), count)
    path.unlink()
    return Result(shard.name, found, min(times), statistics.median(times), min(peer))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scan_tar", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="scans of each shard (9)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a shard")
    options = parser.parse_args(arguments)
    if not options.json:
        print(f"{'µs a member':<28}{'best':>9}{'median':>9}{'tarfile':>9}{'members':>10}")
    with tempfile.TemporaryDirectory() as directory:
        for shard in SHARDS:
            result = _measure(Path(directory), shard, options.rounds)
            if options.json:
                print(json.dumps(asdict(result)))
            else:
                figures = (result.best_us, result.median_us, result.tarfile_us)
                columns = "".join(f"{figure:9.2f}" for figure in figures)
                print(f"{result.shard:<28}{columns}{result.members:>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
