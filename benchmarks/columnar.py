"""Shuffles of Parquet: dsort, the least that pyarrow itself takes, Polars and DuckDB.

Run as ``python -m benchmarks.columnar --total 1100000000``; one JSON object on stdout. Rows hold a
key and a file of random bytes in Hugging Face's layout (``100k``, ``3k``), or a key and a text
(``3k-text``). All figures are seconds of processor time a GiB of input of a whole process tree,
less what the same takes for a few rows: they hold on a busy machine, too.

``floor`` is a script of pyarrow: read all row groups, take all rows in another order, write row
groups with the settings that dsort writes with. With ``--memory`` the contenders run in a cgroup
of so many bytes (root only), and what becomes of each is said instead: ``peak_mb`` is anonymous
memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.memory import LimitedSampler, MemoryLimit
from benchmarks.process import Finished, run_tree

__all__ = ["main", "make_shards", "measure"]

GIB = 1 << 30
SHARDS = 8
PROFILES = {"100k": 100_000, "3k": 3_000, "3k-text": 3_000}
WORDS = 4000
TIMEOUT_SECONDS = 3600
SCRIPTS = Path(__file__).parent / "scripts"
CONTENDERS = ("dsort", "floor", "polars", "duckdb")


def make_shards(directory: Path, profile: str, total_bytes: int) -> None:
    """``SHARDS`` Parquet files of ``total_bytes`` of values in all."""
    directory.mkdir(parents=True)
    source, row_bytes = np.random.default_rng(1), PROFILES[profile]
    words = [source.bytes(int(size)).hex() for size in source.integers(2, 9, WORDS)]
    for shard in range(SHARDS):
        rows = max(total_bytes // row_bytes // SHARDS, 1)
        sizes = source.integers(row_bytes // 2, 3 * row_bytes // 2, rows)
        keys = pa.array([f"{shard}-{row:08d}" for row in range(rows)])
        if profile.endswith("text"):
            texts = [" ".join(source.choice(words, int(size) // 12)) for size in sizes]
            table = pa.table({"id": keys, "text": texts})
            rows_a_group = 10_000
        else:
            files = pa.array([source.bytes(int(size)) for size in sizes], pa.binary())
            media = pa.StructArray.from_arrays([files, keys], ["bytes", "path"])
            table = pa.table({"id": keys, "image": media})
            rows_a_group = 100
        pq.write_table(
            table,
            directory / f"s-{shard}.parquet",
            row_group_size=rows_a_group,
            compression={name: "none" if "image" in name else "snappy" for name in _leaves(table)},
            use_dictionary=["id"],
            write_page_index=True,
        )


def _leaves(table: pa.Table) -> list[str]:
    return ["id", "text"] if "text" in table.column_names else ["id", "image.bytes", "image.path"]


def command_of(contender: str, root: Path, source: Path, memory_bytes: int) -> list[str]:
    """What shuffles the shards of ``source`` into ``root / "out"``."""
    target = root / "out"
    if contender != "dsort":
        script = {"floor": "pyarrow_rows", "polars": "polars_rows", "duckdb": "duckdb_rows"}
        line = [sys.executable, str(SCRIPTS / f"with_{script[contender]}.py")]
        return [*line, str(source), str(target), str(SHARDS), str(memory_bytes)]
    spec = {
        "input_bck": str(source),
        "output_bck": str(target),
        "input_format": {"template": f"s-{{0..{SHARDS - 1}}}"},
        "input_extension": ".parquet",
        "output_format": "s-%d",
        "output_shard_count": SHARDS,
        "algorithm": {"kind": "shuffle", "seed": "1"},
        "key_field": "id",
    }
    (root / "spec.json").write_text(json.dumps(spec))
    line = [sys.executable, "-m", "dsort", "start", "-f", str(root / "spec.json")]
    return [*line, "--root", "/", "--workers", "2", "--progress", "none"]


def run(
    contender: str, root: Path, source: Path, memory_bytes: int = 0
) -> tuple[Finished, dict[str, Any]]:
    """One run, and what it took of the memory it was given."""
    shutil.rmtree(root / "out", ignore_errors=True)
    (root / "out").mkdir()
    command = command_of(contender, root, source, memory_bytes)
    if not memory_bytes:
        return run_tree(command, cwd=root, timeout_seconds=TIMEOUT_SECONDS), {}
    with MemoryLimit(memory_bytes) as limit:
        sampler = LimitedSampler(limit)
        done = run_tree(
            limit.wrap(command), cwd=root, timeout_seconds=TIMEOUT_SECONDS, sampler=sampler
        )
        peak_mb = round(sampler.own_bytes_peak / 1e6)
        return done, {"peak_mb": peak_mb, "killed": limit.kill_count}


def measure(root: Path, profile: str, settings: argparse.Namespace) -> dict[str, Any]:
    """The figures of one profile."""
    few, source = root / "few", root / profile
    if not few.exists():
        make_shards(few, "3k", 3_000 * SHARDS)
    make_shards(source, profile, settings.total)
    stored = sum(path.stat().st_size for path in source.iterdir())
    figures: dict[str, Any] = {"input_bytes": stored}
    for contender in settings.contenders:
        if settings.memory:
            done, details = run(contender, root, source, settings.memory)
            figures[contender] = _outcome(done, details, root / "out", stored)
            continue
        start = min(run(contender, root, few)[0].cpu_seconds for _ in range(settings.rounds))
        runs = [run(contender, root, source)[0] for _ in range(settings.rounds)]
        if any(done.exit_code for done in runs):
            figures[contender] = "failed: " + runs[-1].stderr.strip()[-300:]
            continue
        used = min(done.cpu_seconds for done in runs)
        figures[contender] = round((used - start) * GIB / stored, 2)
    shutil.rmtree(source)
    return figures


def _outcome(done: Finished, details: dict[str, Any], out: Path, stored: int) -> dict[str, Any]:
    written = sum(path.stat().st_size for path in out.rglob("*.parquet"))
    if done.exit_code or written < stored * 0.9:
        last = " ".join(done.stderr.strip().splitlines()[-1:])[-300:]
        return details | {"failed": last or f"exit code {done.exit_code}"}
    return details | {"cpu_s_a_gib": round(done.cpu_seconds * GIB / stored, 2)}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total", type=int, default=1_100_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, default=0, help="bytes; 0: no limit")
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--data", type=Path, default=None, help="where data is made")
    settings = parser.parse_args()
    settings.contenders = settings.contenders.split(",")
    with tempfile.TemporaryDirectory(prefix="columnar-", dir=settings.data) as temporary:
        figures = {
            profile: measure(Path(temporary), profile, settings)
            for profile in settings.profiles.split(",")
        }
    print(json.dumps({"total_bytes": settings.total, "memory_bytes": settings.memory} | figures))


if __name__ == "__main__":
    main()
