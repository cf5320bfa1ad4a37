"""What a job's workers may take for uploads follows from the memory that the job may use."""

from __future__ import annotations

import pytest

from dsort.storage.limit import StoreLimits
from tests.support.internals import with_part_sizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("memory_mib", "workers", "part_mib", "large_mib"),
    [
        (16_384, 4, 16, 64),
        (2048, 2, 16, 0),
        (512, 2, 16, 0),
        (256, 2, 8, 0),
        (100, 2, 5, 0),
        (16_384, 64, 16, 0),
    ],
)
def test_parts_take_an_eighth_of_the_memory_and_a_sixteenth_of_that_for_small_rests(
    memory_mib: int, workers: int, part_mib: int, large_mib: int
) -> None:
    limits = with_part_sizes(StoreLimits(), memory_mib * MIB, workers_a_node=workers)
    assert limits.part_bytes == part_mib * MIB
    assert limits.part_bytes_max == large_mib * MIB
    if part_mib > 5:
        assert limits.upload_bytes * 16 // 17 * workers * 8 <= memory_mib * MIB


def test_parts_that_were_set_smaller_stay_so() -> None:
    set_small = StoreLimits(part_bytes=6 * MIB)
    assert with_part_sizes(set_small, 512 * MIB, workers_a_node=2).part_bytes == 6 * MIB
