"""dsort on Ray nodes whose disks are not shared, all of them on this machine.

Run as ``python -m benchmarks.scripts.on_ray_nodes``; the last line of its output is a JSON object.
Times cover the job alone, not the start of the cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.cluster_utils import Cluster

import dsort
from dsort.spec.load import parse_spec

__all__ = ["main"]

NODE_STORE_BYTES = 256 << 20
"""The size of each node's object store. Spill is exchanged in blocks, so this does not depend on
the size of the data."""


def main() -> None:
    """Start nodes, run a job, print its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--cpus", type=int, required=True, help="of each node")
    parser.add_argument("--spec", required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--max-memory", type=int, required=True)
    arguments = parser.parse_args()
    cluster = Cluster()
    for _ in range(arguments.nodes):
        cluster.add_node(num_cpus=arguments.cpus, object_store_memory=NODE_STORE_BYTES)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        cluster.wait_for_nodes()
        options = dsort.RunOptions(
            root=arguments.root,
            scratch=arguments.scratch,
            memory_max_bytes=arguments.memory_max,
            move="spill",
            runtime="ray",
            workers=arguments.nodes * arguments.cpus,
        )
        began = time.perf_counter()
        report = dsort.run(parse_spec(json.loads(arguments.spec)).spec, options=options)
        seconds = time.perf_counter() - began
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps({"work_seconds": seconds, **report.to_dict()}))


if __name__ == "__main__":
    main()
