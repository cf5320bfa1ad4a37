"""Map the records of shards with Ray Data's ``map_batches``, from shard to shard."""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import ray
import ray.data


def same(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch, as it is."""
    return batch


def main() -> None:
    """Map the shards given on a Ray of ``--workers`` CPUs. Its start is not timed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("shards", nargs="+")
    given = parser.parse_args()
    ray.init(
        num_cpus=given.workers,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    start = time.perf_counter()
    records = ray.data.read_webdataset(given.shards, decoder=None)
    records.map_batches(same, batch_size=256).write_webdataset(str(given.output), encoder=None)
    print(json.dumps({"work_seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
