"""Resize the JPEGs of shards with a bare loop over Pillow, in some processes. Nothing is written,
and only the loop is timed: reading the shards is not."""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from multiprocessing import Barrier, Process, SimpleQueue
from pathlib import Path
from typing import Any

from PIL import Image

SIDE = 256
QUALITY = 95


def work(shards: list[str], ready: Any, spans: Any) -> None:
    """Resize the pictures of ``shards``; say from when to when, by the monotonic clock."""
    pictures = []
    for shard in shards:
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if member.name.endswith(".jpg") and file is not None:
                    pictures.append(file.read())
    ready.wait()
    start = time.monotonic()
    for data in pictures:
        image = Image.open(io.BytesIO(data)).resize((SIDE, SIDE))
        image.save(io.BytesIO(), "JPEG", quality=QUALITY)
    spans.put((start, time.monotonic()))


def main() -> None:
    """Resize the pictures in the shards given, dealt out to ``--workers`` processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="nothing is written to it")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("shards", nargs="+")
    given = parser.parse_args()
    ready = Barrier(given.workers)
    spans: SimpleQueue[tuple[float, float]] = SimpleQueue()
    processes = [
        Process(target=work, args=(given.shards[n :: given.workers], ready, spans))
        for n in range(given.workers)
    ]
    for process in processes:
        process.start()
    found = [spans.get() for _ in processes]
    for process in processes:
        process.join()
    seconds = max(end for _, end in found) - min(start for start, _ in found)
    print(json.dumps({"work_seconds": seconds}))


if __name__ == "__main__":
    main()
