"""Many small staged files are synced by one call, where that can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsort.errors import StorageError
from dsort.storage.directory import files
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.directory.files import LocalStagedObject, sync_together
from tests.support.refusals import raises

KIND = "_SYNCED_AS_WHOLES"


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[list[LocalStagedObject]]:
    bucket = LocalBucket(tmp_path)
    with ExitStack() as stack:
        found = [stack.enter_context(bucket.stage(f".dsort/j/{n}")) for n in range(16)]
        for each in found:
            each.write_at(0, [b"x" * 1000])
        yield found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, staged: list[LocalStagedObject]) -> list[int]:
    """What was asked of the file system of the test, which is one that can be trusted."""
    calls: list[int] = []
    monkeypatch.setattr(files, "sync_file_system", calls.append)
    monkeypatch.setattr(files, KIND, {files._kind(staged[0]._fd)})
    return calls


def test_many_small_files_are_one_call(staged: list[LocalStagedObject], asked: list[int]) -> None:
    assert sync_together(staged)
    assert len(asked) == 1


def test_few_files_large_ones_and_others_are_synced_one_by_one(
    staged: list[LocalStagedObject], asked: list[int]
) -> None:
    assert not sync_together(staged[:15])
    assert not sync_together([*staged, object()])
    staged[3].write_at(80 << 20, [b"the end of a large one"])
    assert not sync_together(staged)
    assert not asked


@pytest.mark.parametrize(("name", "value"), [(KIND, ()), ("_KERNEL_THAT_REPORTS", (99, 0))])
def test_file_systems_and_kernels_that_may_keep_errors_to_themselves_are_not_trusted(
    staged: list[LocalStagedObject],
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: object,
) -> None:
    monkeypatch.setattr(files, name, value)
    assert not sync_together(staged)
    assert not asked


def test_an_error_names_file_and_bucket(
    staged: list[LocalStagedObject], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync_file_system", fail)
    with raises(StorageError, ".dsort/j/0"):
        sync_together(staged)


def test_a_file_tells_of_an_error_that_another_file_got_from_the_file_system(
    staged: list[LocalStagedObject], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        if fd == staged[5]._fd:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "wait_written", fail)
    with raises(StorageError, ".dsort/j/5"):
        sync_together(staged)
    assert len(asked) == 1
