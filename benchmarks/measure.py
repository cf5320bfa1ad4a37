"""One run of one contender, measured the same way for all of them."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.contenders import Account, Contender, Task
from benchmarks.data import Data, read_through, require_room
from benchmarks.memory import (
    LimitedSampler,
    MemoryLimit,
    TreeSampler,
    drop_caches,
    touch_memory,
)
from benchmarks.process import Finished, Sampler, run_tree
from benchmarks.results import Run

__all__ = ["REPOSITORY", "ROOM_FACTOR", "Bench", "round_robin", "tell"]

REPOSITORY = Path(__file__).parent.parent
NAMED_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
# Room for the output, for a spill of the same size, and a little more.
ROOM_FACTOR = 2.2
# Memory for the output in the page cache, and as much again for spill or buffers.
TOUCHED_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs contenders. ``workers``: the number of dsort's workers, and of ``cp`` processes."""

    workers: int
    timeout_seconds: float
    cp: tuple[str, ...]

    def run(
        self,
        contender: Contender,
        data: Data,
        *,
        suite: str,
        number: int,
        is_cold: bool = False,
        limit: MemoryLimit | None = None,
        sampler: Sampler | None = None,
        memory_bytes_max: int | None = None,
    ) -> Run:
        """Run ``contender`` once on ``data`` into a fresh directory, which is removed again.

        Before the run, the page cache holds all inputs (``is_cold``: none), and no dirty pages.
        Raises `NoRoomError`, `NotPermittedError`.
        """
        require_room(data.root, int(ROOM_FACTOR * data.total_bytes))
        output = Path(tempfile.mkdtemp(prefix="out-", dir=data.root))
        # In /tmp, because Ray's sockets need a short path.
        scratch = Path(tempfile.mkdtemp(prefix="dsb-"))
        task = Task(
            data, output, scratch, self.workers, machine.core_count(), self.cp, memory_bytes_max
        )
        try:
            if is_cold:
                drop_caches()
            else:
                os.sync()
            wanted_bytes = int(TOUCHED_FACTOR * data.total_bytes)
            touch_memory(min(wanted_bytes, limit.limit_bytes) if limit else wanted_bytes)
            if not is_cold:
                read_through(data)
            command = contender.command(task)
            finished = run_tree(
                limit.wrap(command) if limit else command,
                cwd=REPOSITORY,
                timeout_seconds=self.timeout_seconds,
                sampler=sampler,
            )
            sync_start = time.perf_counter()
            os.sync()
            sync_seconds = time.perf_counter() - sync_start
            account, failure = _account_of(contender, finished, task)
        finally:
            shutil.rmtree(output, ignore_errors=True)
            shutil.rmtree(scratch, ignore_errors=True)
        return Run(
            suite,
            data.profile,
            contender.name,
            number,
            data.total_bytes,
            account.work_seconds,
            finished.wall_seconds,
            sync_seconds,
            finished.cpu_seconds,
            finished.other_cpu_seconds,
            dict(account.details) | _seen_from_outside(finished, sampler),
            failure,
        )


def _seen_from_outside(finished: Finished, sampler: Sampler | None) -> dict[str, Any]:
    """Bytes between memory and disks, and the most memory that the tree had at one time."""
    seen: dict[str, Any] = {} if finished.disk is None else asdict(finished.disk)
    if isinstance(sampler, TreeSampler):
        seen["peak_bytes"] = sampler.own_bytes_sum
    elif isinstance(sampler, LimitedSampler):
        seen["peak_bytes"] = sampler.own_bytes_peak
    return seen


def _account_of(contender: Contender, finished: Finished, task: Task) -> tuple[Account, str]:
    """The contender's account, or why its run does not count."""
    nothing = Account(0.0)
    if finished.timed_out:
        return nothing, f"did not end in {finished.wall_seconds:.0f} s"
    if finished.exit_code < 0:
        return nothing, f"ended by {signal.Signals(-finished.exit_code).name}"
    if finished.exit_code != 0:
        # Results are published, so the path of the data on this machine is left out.
        reason = _reason_in(finished.stderr).replace(str(task.data.root.parent), "DATA")
        return nothing, f"exit code {finished.exit_code}: {reason}"
    suffix = contender.output_suffix or task.data.suffix
    files = [path for path in task.output.rglob("*") if path.name.endswith(suffix)]
    written_bytes = sum(path.stat().st_size for path in files)
    if written_bytes < task.data.member_bytes_min and not contender.is_part:
        return nothing, f"wrote {written_bytes} of {task.data.member_bytes_min} bytes"
    try:
        account = contender.account(finished)
    except (ValueError, KeyError) as error:
        return nothing, f"gave no account of itself: {error!r}"
    details: dict[str, Any] = dict(account.details)
    details |= {"output_files": len(files), "output_bytes": written_bytes}
    return Account(account.work_seconds, details), ""


def _reason_in(stderr: str) -> str:
    """The line that names an error, even if advice follows it; else the last one."""
    lines = stderr.strip().splitlines()
    named = [line for line in lines if NAMED_ERROR.match(line)]
    return (named or lines or [""])[-1]


def round_robin(
    entries: Sequence[tuple[Contender, int]],
    one: Callable[[Contender, int], Run],
    *,
    until_s: float = math.inf,
) -> Iterator[Run]:
    """Run each contender once a round, for its number of rounds. A contender that failed is left
    out. After ``until_s`` of ``time.monotonic``, only a first round begins.

    So slow changes of the machine's speed affect all contenders alike.
    """
    failed: set[str] = set()
    for number in range(max((rounds for _, rounds in entries), default=0)):
        if number and time.monotonic() > until_s:
            return
        for contender, rounds in entries:
            if number < rounds and contender.name not in failed:
                run = one(contender, number)
                tell(run)
                if run.failure:
                    failed.add(contender.name)
                yield run


def tell(run: Run) -> None:
    """One line about a run, for the terminal."""
    what = run.failure or (
        f"{run.megabytes_per_second:.0f} MB/s, work {run.work_seconds:.2f} s, "
        f"sync {run.sync_seconds:.2f} s, whole {run.whole_seconds:.2f} s"
    )
    line = f"{run.suite} {run.profile} round {run.round + 1} {run.contender}: {what}"
    print(line, file=sys.stderr, flush=True)
