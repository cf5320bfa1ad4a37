"""The contenders for records that are not in plain tars: dsort, parts of its work, and other
programs."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks.contenders import (
    SHARD_BYTES,
    Contender,
    Task,
    dsort_account,
    dsort_command,
    script_account,
    script_command,
)

__all__ = [
    "TABLE_KEY",
    "dsort_on",
    "duckdb",
    "part",
    "polars",
    "pyarrow",
    "terashuf",
    "webdataset_on",
]

TABLE_KEY = "id"
TEXT_PROFILES = ("3k",)
# terashuf is made for data that does not fit in memory.
RUNS_OF_LINES = 4


def dsort_on(
    name: str, shards: int, *, move: str = "", output_suffix: str = "", key_field: str = ""
) -> Contender:
    """A shuffle into as many shards as the input has, of the same suffix or of another."""
    fields = {
        "output_shard_size": None,
        "output_shard_count": shards,
        "output_extension": output_suffix or None,
        "key_field": key_field or None,
    }
    command = dsort_command(move or None, fields)
    return Contender(name, command, dsort_account, output_suffix=output_suffix)


def part(name: str, suffix: str, output_suffix: str) -> Contender:
    """``decode`` or ``encode`` alone, of shards that end in ``suffix``. Decoding writes nothing."""

    def command(task: Task) -> list[str]:
        line = [sys.executable, "-m", "benchmarks.scripts.recode", "--output", str(task.output)]
        line += ["--part", name, "--suffix", suffix, "--"]
        return line + [str(path) for path in task.data.paths]

    return Contender(name, command, script_account, output_suffix=output_suffix, is_part=True)


def webdataset_on(suffix: str) -> Contender:
    """webdataset's own pipeline of compressed shards."""

    def command(task: Task) -> list[str]:
        options = ["--shard-bytes", str(SHARD_BYTES), "--suffix", suffix]
        return script_command("with_webdataset.py", task, *options)

    return Contender("webdataset", command, script_account, is_slow=True, modules=("webdataset",))


def terashuf(name: str, *, is_in_memory: bool) -> Contender:
    """Lines in Python: in memory, or in runs of a quarter of the data."""

    def command(task: Task) -> list[str]:
        held_bytes = task.data.total_bytes * (2 if is_in_memory else 1)
        options = ["--shard-bytes", str(SHARD_BYTES)]
        options += ["--memory-bytes", str(held_bytes // (1 if is_in_memory else RUNS_OF_LINES))]
        return script_command("with_terashuf.py", task, *options)

    return Contender(name, command, script_account, is_slow=True)


def duckdb(kind: str, *, memory_bytes: int = 0) -> Contender:
    """``ORDER BY hash`` of ``lines`` or ``rows``, with at most ``memory_bytes`` of memory."""
    options = ["--memory-bytes", str(memory_bytes)] if memory_bytes else []
    command = _database("with_duckdb.py", kind, options)
    return Contender("duckdb", command, script_account, modules=("duckdb",))


def polars(kind: str, *, is_streaming: bool = False) -> Contender:
    """A sort by hash of ``lines`` or ``rows``, in memory or by the engine that can spill."""
    options = ["--engine", "streaming"] if is_streaming else []
    command = _database("with_polars.py", kind, options)
    return Contender("polars", command, script_account, modules=("polars",))


def _database(script: str, kind: str, options: list[str]) -> Callable[[Task], list[str]]:
    def command(task: Task) -> list[str]:
        more = [*options, "--kind", kind]
        if kind == "rows":
            more += ["--key", TABLE_KEY, "--compression", _compression_of(task)]
        return script_command(script, task, *more)

    return command


def pyarrow() -> Contender:
    """The least work of a shuffle of rows with pyarrow: read all, take, write row groups."""

    def command(task: Task) -> list[str]:
        options = ["--outputs", str(len(task.data.paths))]
        options += ["--compression", _compression_of(task)]
        return script_command("with_pyarrow.py", task, *options)

    return Contender("pyarrow", command, script_account, is_slow=True)


def _compression_of(task: Task) -> str:
    """The compression of outputs: none if the files in the records are compressed already."""
    return "snappy" if task.data.profile in TEXT_PROFILES else "uncompressed"
