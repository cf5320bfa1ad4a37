"""Shuffles shards of raw bytes with Ray Data: read_webdataset, random_shuffle, write_webdataset."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import ray
import ray.data


def main() -> None:
    """Read the given shards, and write shards to ``--output``, on a local Ray of ``--cores``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--blocks", type=int, default=0, help="0: as many as Ray Data likes")
    parser.add_argument("--scratch", type=Path, required=True, help="a short path, for sockets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()

    begin = time.perf_counter()
    ray.init(
        num_cpus=arguments.cores,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(arguments.scratch),
    )
    start = time.perf_counter()
    ray.data.DataContext.get_current().enable_progress_bars = False
    blocks = {"override_num_blocks": arguments.blocks} if arguments.blocks else {}
    records = ray.data.read_webdataset(arguments.shards, decoder=None, **blocks)
    shuffled = records.random_shuffle(seed=arguments.seed)
    shuffled.write_webdataset(str(arguments.output), encoder=None)
    end = time.perf_counter()
    print(json.dumps({"init_seconds": start - begin, "work_seconds": end - start}))
    ray.shutdown()


if __name__ == "__main__":
    main()
