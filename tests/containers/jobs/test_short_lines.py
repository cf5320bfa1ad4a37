"""Jobs of many short lines, through buffers that hold few of them."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import DuplicateError, SpecError
from tests.support.datasets import files_of
from tests.support.engine import count_of, plan_local, refused, run_local, spec_of
from tests.support.inline_runtime import InlineRuntime, Moved, run_inline
from tests.support.internals import (
    DuplicatesTask,
    SpillReader,
    columns,
    index_writer,
    slices,
)
from tests.support.refusals import raises

LINES: dict[str, Any] = {
    "input_format": {"template": "s-{0..2}"},
    "input_extension": ".txt",
    "output_format": "out-%05d",
    "output_shard_records": 200,
    "algorithm": {"kind": "shuffle", "seed": 7},
}
MOVES = (
    Moved("map", workers=2, partitions=3),
    Moved("spill", partitions=2),
    Moved("spill", workers=3, partitions=7, buffer_bytes=4096, order_seed=1),
    Moved("spill", workers=2, nodes=2, partitions=2, buffer_bytes=300),
)


def some_lines(directory: Path, *, long: bool = False) -> Counter[bytes]:
    """Three files of some hundreds of short lines; one line of the second may be long."""
    directory.mkdir()
    source, everything = random.Random(3), Counter[bytes]()
    for shard in range(3):
        lines = [b"x" * source.randrange(1, 90) + b"\n" for _ in range(300 + 50 * shard)]
        if long and shard == 1:
            lines[77] = b"y" * 9000 + b"\n"
        (directory / f"s-{shard}.txt").write_bytes(b"".join(lines))
        everything.update(lines)
    return everything


def test_a_partition_larger_than_the_buffer_is_read_in_long_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read_many = SpillReader.read_many

    def noted(reader: SpillReader, wanted: Sequence[tuple[memoryview, int]]) -> None:
        reads.extend(len(buffer) for buffer, _ in wanted)
        read_many(reader, wanted)

    monkeypatch.setattr(SpillReader, "read_many", noted)
    some_lines(tmp_path / "in")
    run_inline(spec_of(**LINES), tmp_path, Moved("spill", partitions=2, buffer_bytes=2000))
    assert min(reads) < 2000
    assert sum(reads) > 1500 * len(reads)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("long", [False, True])
def test_short_lines_come_out_the_same_whatever_the_movement_and_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    for module in (slices, index_writer):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 50)
    everything = some_lines(tmp_path / "in", long=long)
    outputs = []
    for number, moved in enumerate(MOVES):
        run_inline(spec_of(**LINES) | {"output_bck": f"out{number}"}, tmp_path, moved)
        outputs.append(files_of(tmp_path / f"out{number}", "*.txt"))
    assert all(each == outputs[0] for each in outputs)
    data = b"".join(outputs[0][name] for name in sorted(outputs[0]))
    assert Counter(data.splitlines(keepends=True)) == everything


def test_the_room_that_columns_take_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_lines(tmp_path / "in")
    outputs = []
    for rows_min in (1, 1 << 30):
        monkeypatch.setattr(columns, "_PACKED_ROWS_MIN", rows_min)
        spec = spec_of(**LINES) | {"output_bck": f"out{rows_min}"}
        run_inline(spec, tmp_path, Moved("spill", partitions=4))
        outputs.append(files_of(tmp_path / f"out{rows_min}", "*.txt"))
    assert outputs[0] == outputs[1]


def searches(monkeypatch: pytest.MonkeyPatch) -> list[DuplicatesTask]:
    """The searches for duplicate keys of the jobs to come."""
    found: list[DuplicatesTask] = []
    run = InlineRuntime.run

    def noted(runtime: InlineRuntime, tasks: Any, **options: Any) -> Any:
        yield from run(runtime, tasks, **options)
        found.extend(task for task in runtime.tasks if isinstance(task, DuplicatesTask))
        runtime.tasks.clear()

    monkeypatch.setattr(InlineRuntime, "run", noted)
    return found


@pytest.mark.parametrize("reaction", ["warn", "rename", "abort"])
def test_positions_are_not_searched_for_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaction: str
) -> None:
    found = searches(monkeypatch)
    some_lines(tmp_path / "in")
    run_inline(spec_of(**LINES, duplicate_keys=reaction), tmp_path, Moved())
    assert not found


def test_positions_in_shards_of_one_name_are_found_to_be_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searches(monkeypatch)
    some_lines(tmp_path / "in")
    (tmp_path / "in" / "s.0.txt").write_bytes(b"one\ntwo\n")
    (tmp_path / "in" / "s__0.txt").write_bytes(b"three\nfour\nfive\n")
    spec = spec_of(**LINES | {"input_format": {"objnames": ["s.0.txt", "s__0.txt"]}})
    report = run_inline(spec, tmp_path, Moved("spill", partitions=2))
    assert count_of(report, "duplicate_keys")[0] == 2
    assert found
    with raises(DuplicateError, "2 records"):
        run_inline(spec | {"duplicate_keys": "abort", "output_bck": "x"}, tmp_path, Moved())


def lines_in(directory: Path, name: str, data: bytes) -> None:
    """A bucket of one file."""
    directory.mkdir()
    (directory / name).write_bytes(data)


@pytest.mark.parametrize("name", ["s-0.txt", "s-0.txt.gz"])
def test_a_shard_of_more_lines_than_memory_has_room_for_is_refused(
    tmp_path: Path, name: str
) -> None:
    data = b"1\n" * 3_000_000
    lines_in(tmp_path / "in", name, gzip.compress(data, 1) if name.endswith("gz") else data)
    (tmp_path / "out").mkdir()
    spec = spec_of(input_extension=name.removeprefix("s-0"))
    words = ("128 MiB of memory are too little", f"the table of {name}, about 3,0", "smaller input")
    with refused(tmp_path, SpecError, *words):
        run_local(tmp_path, spec, memory_max_bytes=128 << 20)


def test_where_tables_of_lines_take_much_there_are_fewer_workers(tmp_path: Path) -> None:
    for line, workers in ((b"1", 1), (b"1" * 99, 2)):
        root = tmp_path / str(workers)
        root.mkdir()
        lines_in(root / "in", "s-0.txt", (line + b"\n") * (800_000 // (len(line) + 1)))
        spec = spec_of(input_extension=".txt", output_shard_records=100_000)
        planned = plan_local(root, spec, workers=2, memory_max_bytes=200 << 20)
        assert planned.run.workers == workers
        assert planned.plan.memory_bytes <= 200 << 20


def test_more_memory_lets_as_many_workers_hold_tables_of_lines(tmp_path: Path) -> None:
    lines_in(tmp_path / "in", "s-0.txt", b"1\n" * 400_000)
    spec = spec_of(input_extension=".txt", output_shard_records=100_000)
    assert plan_local(tmp_path, spec, workers=2, memory_max_bytes=400 << 20).run.workers == 2
