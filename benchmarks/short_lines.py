"""Short lines: what a shuffle of files of lines of 66 bytes costs, phase by phase.

Run as ``python -m benchmarks.short_lines``; one JSON object on stdout. Figures are seconds of
processor time of the whole tree, so they hold on a busy machine, too; ``cpu_s_a_gb`` is over 10^9
bytes of input, start and end of the processes included, and ``ns_a_line`` is the same by line.
``map`` and ``spill`` are told apart; ``--limit`` runs ``spill`` alone, in a cgroup of so many
bytes, page cache included (needs root). By hand, 10^8 lines in 2 GB (20 GB of room)::

    python -m benchmarks.short_lines --lines 100000000 --limit 2GB --data DIRECTORY
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import dsort
from benchmarks.memory import LimitedSampler, MemoryLimit, TreeSampler
from benchmarks.process import run_tree
from dsort.job.events import Event, PhaseDone
from dsort.options import RunOptions
from dsort.sizes import parse_size_bytes

__all__ = ["main", "make_lines", "measure"]

REPOSITORY = Path(__file__).resolve().parent.parent
LINES_A_SHARD = 1_000_000
LINE_BYTES_MIN, LINE_BYTES_MAX = 36, 96
HEAD, TAIL = b'{"text": "', b'"}\n'
SPILL_MEMORY = "400MB"
TIMEOUT_S = 3600.0


def make_lines(file: Path, lines: int, seed: int) -> None:
    """A file of JSON lines of 36 to 96 bytes of random letters."""
    random = np.random.Generator(np.random.SFC64(seed))
    lengths = random.integers(LINE_BYTES_MIN, LINE_BYTES_MAX + 1, lines)
    ends = np.cumsum(lengths)
    data = random.integers(ord("a"), ord("z") + 1, int(ends[-1]), np.uint8)
    for at, byte in enumerate(HEAD):
        data[ends - lengths + at] = byte
    for at, byte in enumerate(TAIL):
        data[ends - len(TAIL) + at] = byte
    file.write_bytes(data.data)


def spec_of(root: Path, shards: int) -> dict[str, Any]:
    """The shuffle of all shards into as many."""
    return {
        "input_bck": "lines",
        "output_bck": "shuffled",
        "input_format": {"template": f"s-{{00000..{shards - 1:05d}}}"},
        "input_extension": ".jsonl",
        "output_format": "o-%05d",
        "output_shard_count": shards,
        "algorithm": {"kind": "shuffle", "seed": "1"},
    }


def run_job(root: Path, shards: int, move: str, memory: str) -> dict[str, float]:
    """Run the shuffle from this process; seconds of processor time of it and its workers by
    phase."""
    seconds: dict[str, float] = {}
    used = 0.0

    def note(event: Event) -> None:
        nonlocal used
        if isinstance(event, PhaseDone):
            now = _used()
            seconds[event.phase], used = now - used, now

    options = RunOptions(
        root, move=move, workers=2, memory_max_bytes=parse_size_bytes(memory) if memory else None
    )
    dsort.run(spec_of(root, shards), options=options, on_event=note)
    return seconds


def _used() -> float:
    found = 0.0
    for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        each = resource.getrusage(kind)
        found += each.ru_utime + each.ru_stime
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        found += times.user + times.system
    return found


def measure(root: Path, shards: int, lines: int, move: str, limit: MemoryLimit | None) -> Any:
    """The figures of one shuffle of the lines in ``root``."""
    shutil.rmtree(root / "shuffled", ignore_errors=True)
    size = sum(file.stat().st_size for file in (root / "lines").iterdir())
    command = [sys.executable, "-m", "benchmarks.short_lines", "--job", str(root), move]
    command += ["--lines", str(lines)]
    if move == "spill" and limit is None:
        command += ["--memory", SPILL_MEMORY]
    tree = TreeSampler(0.1)
    group = LimitedSampler(limit) if limit else None
    finished = run_tree(
        limit.wrap(command) if limit else command,
        cwd=REPOSITORY,
        timeout_seconds=TIMEOUT_S,
        sampler=group or tree,
    )
    if finished.exit_code:
        raise SystemExit(f"{move}: {finished.stderr}")
    figures = {
        "cpu_s_a_gb": finished.cpu_seconds / size * 1e9,
        "ns_a_line": finished.cpu_seconds / lines * 1e9,
        "wall_s": finished.wall_seconds,
        "cpu_s_by_phase": json.loads(finished.stdout),
        "size_bytes": size,
    }
    if group is not None and limit is not None:
        figures["group_peak_bytes"] = limit.peak_bytes
        figures["kill_count"] = limit.kill_count
        figures["own_peak_bytes"] = group.own_bytes_peak
    else:
        figures["own_peak_bytes"] = tree.own_bytes_sum
    return figures


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lines", type=int, default=10 * LINES_A_SHARD)
    parser.add_argument("--data", type=Path, help="where the lines are made, and kept")
    parser.add_argument("--limit", type=parse_size_bytes, help="spill in a cgroup of so many bytes")
    parser.add_argument("--moves", default="map,spill")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--memory", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shards = max(arguments.lines // LINES_A_SHARD, 1)
    if arguments.job:
        root, move = arguments.job
        print(json.dumps(run_job(Path(root), shards, move, arguments.memory)))
        return
    with tempfile.TemporaryDirectory(prefix="short-lines-") as temporary:
        root = (arguments.data or Path(temporary)).resolve()
        (root / "lines").mkdir(parents=True, exist_ok=True)
        for shard in range(shards):
            file = root / "lines" / f"s-{shard:05d}.jsonl"
            if not file.exists():
                make_lines(file, arguments.lines // shards, shard)
        figures = {}
        if arguments.limit:
            with MemoryLimit(arguments.limit) as limit:
                figures["spill"] = measure(root, shards, arguments.lines, "spill", limit)
        else:
            for move in arguments.moves.split(","):
                figures[move] = measure(root, shards, arguments.lines, move, None)
        shutil.rmtree(root / "shuffled", ignore_errors=True)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
