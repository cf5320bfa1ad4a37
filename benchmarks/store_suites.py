"""Suites on object stores and on several nodes."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.contenders import Contender, Task, dsort_account, spec_of
from benchmarks.data import require_room
from benchmarks.measure import ROOM_FACTOR, Bench, round_robin, tell
from benchmarks.object_store import (
    STORE_CONTENDERS,
    StoreContender,
    missing,
    nodes_contender,
    open_store,
    run_on_store,
)
from benchmarks.results import Run, Skip
from benchmarks.settings import Measured, Settings, data_of

__all__ = ["nodes", "nodes_files", "s3", "s3_flat", "turns"]

PROFILE = "100k"
SHARD_DATA_BYTES = 64_000_000
SMALL_BYTES, SMALL_SHARDS = 10_000_000, 2
"""With so little data, a run consists of its start: interpreters, imports, clients."""
MEMORY_BYTES_MAX = 512 << 20
"""The memory of workers in the suite that measures whether their peak depends on the data."""
GIB = 1 << 30
FLAT_BYTES = (GIB, 8 * GIB)
FLAT_ROOM_FACTOR = 3.3
"""Room for the server's copies of inputs and outputs, for the spill, and a little more."""
S3_ROUNDS = (3, 5)
"""The number of rounds at least, and if there is time: rates of a server vary much."""
NODE_COUNTS = (1, 3)
NODE_MEMORY_BYTES_MAX = 1 << 30


def _shards_of(total_bytes: int) -> int:
    return max(1, round(total_bytes / SHARD_DATA_BYTES))


def s3(bench: Bench, settings: Settings) -> Measured:
    """dsort between two buckets of a real server, in turn with its floor."""
    if reason := missing():
        return Measured([], [Skip("s3", "all", reason)])
    data = data_of(settings, PROFILE, settings.total_bytes, _shards_of(settings.total_bytes))
    # The server keeps the inputs and an output, and deleted objects for a while.
    require_room(settings.directory, int(2 * ROOM_FACTOR * data.total_bytes))
    measured = Measured([], [])
    small = data_of(settings, PROFILE, SMALL_BYTES, SMALL_SHARDS)
    with open_store(settings.directory) as store:
        failed: set[str] = set()
        # Further rounds are made only if the user did not ask for fewer rounds than usual.
        usual = settings.rounds >= S3_ROUNDS[0] and not settings.is_quick
        rounds = max(settings.rounds, S3_ROUNDS[1]) if usual else settings.rounds
        sizes = (
            ("s3-start", small, 2, 2),
            ("s3", data, rounds, min(S3_ROUNDS[0], settings.rounds)),
        )
        for suite, of, most, least in sizes:
            for number, contender in turns(most, least, settings.until_s):
                if contender.name in failed:
                    continue
                run = run_on_store(
                    store,
                    contender,
                    of,
                    suite=suite,
                    number=number,
                    workers=bench.workers,
                    timeout_seconds=bench.timeout_seconds,
                )
                tell(run)
                measured.runs.append(run)
                if run.failure:
                    failed.add(contender.name)
    return measured


def turns(
    rounds: int, rounds_min: int = 1, until_s: float = math.inf
) -> Iterator[tuple[int, StoreContender]]:
    """Round after round, each in the reverse order of the round before: the first contender of a
    round has an advantage, because the server had time to clean up. After ``rounds_min``, no round
    begins after ``until_s`` of ``time.monotonic``."""
    contenders = list(STORE_CONTENDERS.values())
    for number in range(rounds):
        if number >= rounds_min and time.monotonic() > until_s:
            return
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            yield number, contender


def s3_flat(bench: Bench, settings: Settings) -> Measured:
    """Peak memory of dsort's workers between buckets, on little data and on much data."""
    if reason := missing():
        return Measured([], [Skip("s3-flat", "all", reason)])
    if settings.is_quick:
        return Measured([], [Skip("s3-flat", "all", "left out of --quick")])
    measured = Measured([], [])
    is_toy = settings.total_bytes < GIB  # small test data stays small
    sizes = (settings.total_bytes // 4, settings.total_bytes) if is_toy else FLAT_BYTES
    require_room(settings.directory, int(FLAT_ROOM_FACTOR * max(sizes)))
    with open_store(settings.directory) as store:
        for total_bytes in sizes:
            data = data_of(settings, PROFILE, total_bytes, _shards_of(total_bytes))
            store.fill(data)
            if total_bytes != settings.total_bytes:  # no other suite reads it
                shutil.rmtree(data.root)
            run = run_on_store(
                store,
                STORE_CONTENDERS["dsort"],
                data,
                suite="s3-flat",
                number=0,
                workers=bench.workers,
                timeout_seconds=2 * bench.timeout_seconds,
                memory_bytes_max=MEMORY_BYTES_MAX,
            )
            run.details["profile"] = PROFILE
            run.details["scale"] = total_bytes
            tell(run)
            measured.runs.append(run)
            store.drop_data(data)
    return measured


def nodes(bench: Bench, settings: Settings) -> Measured:
    """From S3 to S3: three Ray nodes of one CPU each, without shared disks, beside one node of
    three CPUs."""
    if settings.is_quick:
        return Measured([], [Skip("nodes", "all", "left out of --quick")])
    if reason := missing():
        return Measured([], [Skip("nodes", "all", reason)])
    data = data_of(settings, PROFILE, settings.total_bytes, _shards_of(settings.total_bytes))
    require_room(settings.directory, int(3 * ROOM_FACTOR * data.total_bytes))
    measured = Measured([], [])
    with open_store(settings.directory) as store:
        for number in range(settings.slow_rounds):
            if number and time.monotonic() > settings.until_s:
                break
            for count in NODE_COUNTS:
                run = run_on_store(
                    store,
                    nodes_contender(count, max(NODE_COUNTS) // count),
                    data,
                    suite="nodes",
                    number=number,
                    workers=max(NODE_COUNTS),
                    timeout_seconds=bench.timeout_seconds,
                    memory_bytes_max=NODE_MEMORY_BYTES_MAX,
                )
                if not run.failure:  # extract to commit: without the start of the cluster
                    phases_seconds = float(run.details["phases_total_seconds"])
                    run = replace(run, work_seconds=phases_seconds)
                tell(run)
                measured.runs.append(run)
                if run.failure:
                    return measured
    return measured


def nodes_files(bench: Bench, settings: Settings) -> Measured:
    """The same nodes, from files to files, in a directory that all nodes share."""
    if settings.is_quick:
        return Measured([], [Skip("nodes-files", "all", "left out of --quick")])
    data = data_of(settings, PROFILE, settings.total_bytes, _shards_of(settings.total_bytes))
    bench = replace(bench, workers=max(NODE_COUNTS))

    def one(contender: Contender, number: int) -> Run:
        run = bench.run(
            contender,
            data,
            suite="nodes-files",
            number=number,
            memory_bytes_max=NODE_MEMORY_BYTES_MAX,
        )
        return replace(run, profile=PROFILE)

    turns = [(_on_nodes(count), settings.slow_rounds) for count in NODE_COUNTS]
    return Measured(list(round_robin(turns, one, until_s=settings.until_s)), [])


def _on_nodes(count: int) -> Contender:
    def command(task: Task) -> list[str]:
        cpus = str(max(NODE_COUNTS) // count)
        line = [sys.executable, "-m", "benchmarks.scripts.on_ray_nodes", "--nodes", str(count)]
        line += ["--cpus", cpus, "--spec", json.dumps(spec_of(task)), "--root", str(task.data.root)]
        return [*line, "--scratch", str(task.scratch), "--max-memory", str(NODE_MEMORY_BYTES_MAX)]

    return Contender(f"nodes-{count}", command, dsort_account, is_slow=True, modules=("ray",))
