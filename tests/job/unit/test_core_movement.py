"""How payload moves: ``map`` only where inputs surely fit in memory, and never more memory than
there is."""

from __future__ import annotations

from typing import get_args

import pytest

from dsort.cli.options import MoveChoice
from dsort.errors import SpecError
from tests.support.internals import (
    BUFFER_BYTES_MAX,
    BUFFER_BYTES_MIN,
    COORDINATOR_BYTES,
    MOVE_OF_WAY,
    PARTITIONS_MAX,
    WAYS,
    WORKER_BYTES,
    Load,
    Movement,
    NotMappableError,
    TooLittleMemoryError,
    WayName,
    choose_movement,
    least_memory_bytes,
    workers_that_fit,
)
from tests.support.refusals import raises

MB, GB = 1 << 20, 1 << 30


def choose(
    input_bytes: int,
    memory_bytes: int,
    *,
    workers: int = 2,
    mappable: bool = True,
    forced: str = "auto",
    no_range: str = "",
    range_suits: str = "",
) -> Movement:
    load = Load(
        input_bytes,
        memory_bytes,
        workers,
        unmappable="" if mappable else "in a store",
        no_range=no_range,
        range_suits=lambda: range_suits,
    )
    return choose_movement(load, forced)


def test_inputs_that_do_not_fit_are_read_by_range_where_that_suits() -> None:
    large = choose(3 * GB, 4 * GB, range_suits="records of 1 MiB")
    assert (large.way.name, large.sizes.scratch_bytes) == ("range", 3 * GB // 20)
    assert "records of 1 MiB" in large.reason
    assert large.sizes.needed_bytes <= large.sizes.memory_bytes
    assert (
        choose(3 * GB, 4 * GB, no_range="zips", range_suits="records of 1 MiB").way.name == "spill"
    )
    assert choose(1 * GB, 4 * GB, range_suits="records of 1 MiB").way.name == "map"
    assert choose(1, 4 * GB, forced="range").way.name == "range"
    with raises(NotMappableError, "zips"):
        choose(1, 4 * GB, forced="range", no_range="zips")


@pytest.mark.parametrize("memory_bytes", [120 * MB, 500 * MB, 3 * GB, 100 * GB, 2000 * GB])
@pytest.mark.parametrize("workers", [1, 2, 16, 200])
@pytest.mark.parametrize("input_bytes", [0, 1, 10 * GB, 50_000 * GB])
def test_the_job_stays_within_its_memory(memory_bytes: int, workers: int, input_bytes: int) -> None:
    chosen = choose(input_bytes, memory_bytes, workers=workers, forced="spill")
    assert 1 <= chosen.workers <= workers
    assert BUFFER_BYTES_MIN <= chosen.buffer_bytes <= BUFFER_BYTES_MAX
    needed = COORDINATOR_BYTES + chosen.workers * (WORKER_BYTES + chosen.buffer_bytes)
    assert needed <= memory_bytes
    assert 1 <= chosen.partitions <= max(PARTITIONS_MAX, chosen.workers)
    if chosen.partitions < PARTITIONS_MAX:
        assert input_bytes / chosen.partitions <= chosen.buffer_bytes
    assert chosen.sizes.scratch_bytes >= input_bytes


def test_too_little_memory_is_refused_with_what_is_needed() -> None:
    with raises(TooLittleMemoryError, "60 MiB") as refused:
        choose(1, 60 * MB)
    needed = int(str(refused.value).rsplit(maxsplit=2)[1])
    assert choose(1, needed * MB).workers == 1


@pytest.mark.parametrize("upload_bytes", [0, 10 * MB])
def test_the_least_is_enough_for_one_worker_and_a_byte_less_is_not(upload_bytes: int) -> None:
    def choose_with(memory_bytes: int) -> Movement:
        return choose_movement(Load(GB, memory_bytes, workers=8, upload_bytes=upload_bytes))

    least = least_memory_bytes(upload_bytes)
    assert choose_with(least).workers == 1
    assert choose_with(least).sizes.needed_bytes <= least < 120 * MB
    with pytest.raises(TooLittleMemoryError):
        choose_with(least - 1)


def test_no_more_workers_begin_than_have_room() -> None:
    assert workers_that_fit(1 << 10, 64) == 1
    assert workers_that_fit(least_memory_bytes(), 64) == 1
    assert workers_that_fit(100 * GB, 64) == 64
    for memory_bytes in range(90 * MB, GB, 7 * MB):
        assert workers_that_fit(memory_bytes, 64) >= choose(GB, max(memory_bytes, 91 * MB)).workers


def test_every_movement_can_be_asked_for_by_its_name() -> None:
    assert get_args(MoveChoice) == ("auto", *WAYS)
    assert tuple(WAYS) == get_args(WayName)
    assert tuple(MOVE_OF_WAY) == (*WAYS, "view")  # the output of the spec chooses that one


def test_an_unknown_movement_is_refused() -> None:
    with raises(SpecError, "bogus"):
        choose(1, 4 * GB, forced="bogus")
