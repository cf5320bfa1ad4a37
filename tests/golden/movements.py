"""The movement that is chosen for sizes and memory: a table of today's choices, which a change of
how movements are written must not change. ``python -m tests.golden.movements`` writes it."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.internals import (
    Load,
    NotMappableError,
    TooLittleMemoryError,
    choose_movement,
)

__all__ = ["FILE", "HEAD", "rows"]

FILE = Path(__file__).with_suffix(".csv")
MB, GB = 1 << 20, 1 << 30
SIZES = (1 * MB, 900 * MB, 11 * GB, 3000 * GB)
MEMORIES = (120 * MB, 1200 * MB, 20 * GB)
HEAD = (
    *("input_bytes", "memory_bytes", "workers", "nodes", "inputs", "forced"),
    *("kind", "workers_used", "partitions", "buffer_bytes", "needed_bytes", "scratch_bytes"),
)
INPUTS = {
    "files": {},
    "large records": {"range_suits": lambda: "records are large"},
    "encoded": {"encoded": True},
    "store": {"unmappable": "in a store", "upload_bytes": 32 * MB},
    "short lines": {"short_records": True, "table_bytes": 40 * MB},
    "tables": {"unmappable": "rows of tables", "turns_a_buffer": 4, "upload_bytes": 96 * MB},
}


def rows() -> Iterator[tuple[str, ...]]:
    """The rows of the table as texts, without its head."""
    machines = ((2, 1), (16, 4))
    forced = ("auto", "map", "range", "spill")
    for size, memory, (workers, nodes), inputs, move in itertools.product(
        SIZES, MEMORIES, machines, INPUTS, forced
    ):
        given = (size, memory, workers, nodes, inputs, move)
        yield tuple(map(str, (*given, *_chosen(*given))))


def _chosen(
    size: int, memory: int, workers: int, nodes: int, inputs: str, move: str
) -> tuple[object, ...]:
    try:
        load = Load(size, memory, workers, nodes, **INPUTS[inputs])  # type: ignore[arg-type]
        chosen = choose_movement(load, move)
    except (NotMappableError, TooLittleMemoryError) as error:
        return (type(error).__name__, "", "", "", "", "")
    sizes = (chosen.sizes.needed_bytes, chosen.sizes.scratch_bytes)
    return (chosen.way.name, chosen.workers, chosen.partitions, chosen.buffer_bytes, *sizes)


if __name__ == "__main__":
    with FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows()])
    sys.stdout.write(f"{FILE} is written\n")
