"""Writes the files of a tree as shards with webdataset's `ShardWriter`, in random order, as users
of webdataset do. The number of the directory is the class."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import webdataset  # type: ignore[import-untyped,import-not-found,unused-ignore]


def main() -> None:
    """Read the given tree, and write shards of at most ``--shard-bytes`` to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shard-bytes", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tree", type=Path)
    arguments = parser.parse_args()

    start = time.perf_counter()
    classes = sorted(path.name for path in arguments.tree.iterdir())
    files = [
        (number, name, path)
        for number, name in enumerate(classes)
        for path in sorted((arguments.tree / name).iterdir())
    ]
    random.Random(arguments.seed).shuffle(files)
    pattern = str(arguments.output / "out-%05d.tar")
    with webdataset.ShardWriter(
        pattern, maxcount=sys.maxsize, maxsize=arguments.shard_bytes, verbose=0
    ) as writer:
        for number, name, path in files:
            writer.write(
                {"__key__": f"{name}/{path.stem}", "jpg": path.read_bytes(), "cls": number}
            )
    print(json.dumps({"work_seconds": time.perf_counter() - start, "records": len(files)}))


if __name__ == "__main__":
    main()
