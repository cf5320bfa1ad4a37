"""Compares the processor time of dsort with that of an earlier commit:
``python -m benchmarks.gate BASE [--pairs 10] [--only map-100k,spill-1k] [--data DIR]``.

Whole commands of both run in turn, with compiled bytecode and the same libraries. The gate holds
(exit code 0) if the upper 90 % bound of each median ratio is at most ``RATIO_MAX``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from typing import Any, Final

from benchmarks.data import Request, make_data
from benchmarks.process import run_tree
from benchmarks.seaweedfs import S3Server, seaweedfs

__all__ = ["Workload", "main", "upper_bound"]

RATIO_MAX: Final = 1.03
CONFIDENCE: Final = 0.9
ROOT: Final = Path(__file__).resolve().parents[1]
TIMEOUT_S: Final = 600.0
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Workload:
    """A job over tars of ``profile``. ``fields`` of its spec, and ``options`` of its command."""

    profile: str
    total_bytes: int
    shards: int = 8
    fields: Mapping[str, Any] = field(default_factory=dict)
    options: Sequence[str] = ()
    is_stored: bool = False
    is_table: bool = False


_SPILL: Final = ("--move", "spill", "--max-memory", "160MB")
WORKLOADS: Final[Mapping[str, Workload]] = {
    "map-100k": Workload("100k", 512 * MIB, options=("--move", "map")),
    "map-1k": Workload("1k", 128 * MIB, options=("--move", "map")),
    "spill-100k": Workload("100k", 512 * MIB, options=_SPILL),
    "spill-1k": Workload("1k", 128 * MIB, options=_SPILL),
    "range-100k": Workload("100k", 512 * MIB, options=("--move", "range")),
    "small-shards": Workload("100k", 256 * MIB, shards=1000, fields={"output_shard_size": "300KB"}),
    "parquet-rows": Workload("1k", 64 * MIB, is_table=True),
    "s3": Workload("100k", 256 * MIB, is_stored=True),
}


def upper_bound(ratios: Sequence[float]) -> float:
    """The upper bound of the median with ``CONFIDENCE``. It is one of ``ratios``, by the binomial
    distribution of the number of ratios above the median."""
    count = len(ratios)
    for above in range(count):
        chance = sum(comb(count, each) for each in range(above + 1)) / 2**count
        if chance > 1 - CONFIDENCE:
            return sorted(ratios)[count - above] if above else float("inf")
    return max(ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a line for each workload, and return 1 if one of them takes longer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--data", type=Path, default=ROOT / "bench-data")
    given = parser.parse_args(arguments)
    names = given.only.split(",")
    if unknown := set(names) - set(WORKLOADS):
        parser.error(f"no workload {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    given.data.mkdir(parents=True, exist_ok=True)
    is_slower = False
    with _checkout(given.base, given.data.absolute() / "gate-base") as base:
        for name in names:
            ratios = _ratios(WORKLOADS[name], (base, ROOT), given.data.absolute(), given.pairs)
            median, bound = statistics.median(ratios), upper_bound(ratios)
            is_slower |= bound > RATIO_MAX
            verdict = "slower" if bound > RATIO_MAX else "holds"
            print(f"{name:13} {median:.3f}, at most {bound:.3f}: {verdict}", flush=True)
    return int(is_slower)


@contextlib.contextmanager
def _checkout(revision: str, directory: Path) -> Iterator[Path]:
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run((*git, "add", "--force", "--detach", str(directory), revision), check=True)
    try:
        yield directory
    finally:
        subprocess.run((*git, "remove", "--force", str(directory)), check=True)


def _ratios(workload: Workload, trees: Sequence[Path], directory: Path, pairs: int) -> list[float]:
    """For each pair of runs: the time of the second of ``trees`` divided by that of the first."""
    with contextlib.ExitStack() as ends:
        spec, root, server = _inputs(workload, directory, ends)
        for tree in trees:  # compiles, and warms caches
            _run(tree, workload, spec, root, server)
        found = []
        for turn in range(pairs):
            order = trees if turn % 2 else [*reversed(trees)]
            seconds = {tree: _run(tree, workload, spec, root, server) for tree in order}
            found.append(seconds[trees[1]] / seconds[trees[0]])
    return found


def _inputs(
    workload: Workload, directory: Path, ends: contextlib.ExitStack
) -> tuple[dict[str, Any], Path, S3Server | None]:
    data = make_data(directory, Request(workload.profile, workload.total_bytes, workload.shards))
    spec: dict[str, Any] = {
        "input_bck": "shards",
        "input_format": {"template": data.template},
        "input_extension": ".tar",
        "output_bck": "gate-out",
        "output_format": "out-%06d",
        "output_shard_size": "64MB",
        "algorithm": {"kind": "shuffle", "seed": 1},
        **workload.fields,
    }
    if workload.is_table:
        table = data.root / "table"
        if not table.is_dir():
            _run_one(
                ROOT, {**spec, "output_bck": "table", "output_extension": ".parquet"}, data.root
            )
        shutil.rmtree(table / ".dsort", ignore_errors=True)
        spec |= {"input_bck": "table", "input_format": {"glob": "*"}, "input_extension": ".parquet"}
    if not workload.is_stored:
        return spec, data.root, None
    server = ends.enter_context(seaweedfs(directory / "gate-s3"))
    ends.callback(shutil.rmtree, directory / "gate-s3", ignore_errors=True)
    client, bucket = server.client(), server.new_bucket_name()
    client.create_bucket(Bucket=bucket)
    for path in data.paths:
        client.upload_file(str(path), bucket, f"in/{path.name}")
    spec |= {"input_bck": f"s3://{bucket}/in", "output_bck": f"s3://{bucket}/out"}
    return spec | {"overwrite": True}, data.root, server


def _run(
    tree: Path, workload: Workload, spec: Mapping[str, Any], root: Path, server: S3Server | None
) -> float:
    environment = {}
    if server is not None:
        environment = {**server.environment(), "AWS_ENDPOINT_URL": server.endpoint_url}
    return _run_one(tree, spec, root, workload.options, environment)


def _run_one(
    tree: Path,
    spec: Mapping[str, Any],
    root: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> float:
    """The processor seconds of a job by the dsort in ``tree``."""
    shutil.rmtree(root / "gate-out", ignore_errors=True)
    os.sync()
    command = [sys.executable, "-m", "dsort", "start", "-f", json.dumps(spec), "--root", str(root)]
    more = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", **(environment or {})}
    ended = run_tree(
        [*command, "--workers", "2", "--progress", "none", *options],
        cwd=tree,
        timeout_seconds=TIMEOUT_S,
        environment=more,
    )
    if ended.exit_code:
        raise SystemExit(f"the job failed in {tree}: {ended.stderr}")
    shutil.rmtree(root / "gate-out", ignore_errors=True)
    return ended.cpu_seconds


if __name__ == "__main__":
    sys.exit(main())
