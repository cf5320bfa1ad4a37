"""Spill that is written past the page cache is what other spill is: the same job gives the same
bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dsort.storage.directory.direct_writes import DirectWrites
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import index_writer, worker_setup

pytestmark = pytest.mark.disk


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """However little it is, it is written directly where it can be: how many bytes, by call."""
    found: list[int] = []
    write = DirectWrites.write

    def counted(self: DirectWrites, slices: Sequence[memoryview]) -> int:
        before = self.written_bytes
        taken = write(self, slices)
        found.append(self.written_bytes - before)
        return taken

    monkeypatch.setattr(worker_setup, "PAST_CACHE_FACTOR", 0)
    monkeypatch.setattr(index_writer, "DIRECT_BYTES_MIN", 0)
    monkeypatch.setattr(DirectWrites, "write", counted)
    return found


@pytest.mark.parametrize(
    "moved",
    [
        Moved("spill", workers=2, partitions=3),
        Moved("spill", workers=3, partitions=4, nodes=3, losses=1, losses_in="CreateTask"),
        Moved("spill", workers=2, partitions=3, losses=2, losses_in="ExtractTask"),
        Moved("spill", workers=2, partitions=2, buffer_bytes=300_000),
    ],
    ids=["plain", "node lost", "worker lost", "small buffer"],
)
def test_the_bytes_are_those_of_a_job_without_spill(
    moved: Moved, tmp_path: Path, direct: list[int]
) -> None:
    write_shards(tmp_path / "in", small_dataset("direct", shards=5, records=400))
    spec = spec_of(
        algorithm={"kind": "shuffle", "seed": "7"}, output_shard_records=97, verify="content"
    )
    run_inline(spec, tmp_path, Moved())
    wanted = files_of(tmp_path / "out")
    assert not direct
    run_inline(spec, tmp_path, moved, overwrite=True)
    assert files_of(tmp_path / "out") == wanted
    assert any(direct)
