"""Column files: what is written is read back, in slices, and what is broken is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsort.core.columns import BytesColumn
from dsort.errors import InvariantError, ObjectNotFoundError, StorageError
from dsort.workers.column_file import ColumnFile, write_columns

TEXTS = [b"", b"a", b"\0" * 70, b"\xff", b"", b"last"]


def test_arrays_of_every_kind_come_back(tmp_path: Path) -> None:
    arrays = {
        "int64": np.array([-(2**63), 0, 2**63 - 1], np.int64),
        "int32": np.arange(100, dtype=np.int32),
        "uint64": np.array([2**64 - 1], np.uint64),
        "uint8": np.arange(7, dtype=np.uint8),
        "empty": np.zeros(0, np.int64),
        "strided": np.arange(10, dtype=np.int64)[::3],
    }
    path = tmp_path / "x.col"
    size_bytes = write_columns(path, {**arrays, "absent": None})
    assert path.stat().st_size == size_bytes
    file = ColumnFile(path)
    for name, array in arrays.items():
        found = file.array(name)
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()
        assert name in file
    assert "absent" not in file


def test_rows_are_read_by_slices(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    write_columns(path, {"n": np.arange(50, dtype=np.int64), "t": BytesColumn.of(TEXTS)})
    file = ColumnFile(path)
    assert file.array("n", 3, 6).tolist() == [3, 4, 5]
    assert file.array("n", 50).tolist() == []
    assert "t" in file
    assert file.bytes_column("t").tolist() == TEXTS
    for start in range(len(TEXTS) + 1):
        for stop in range(start, len(TEXTS) + 1):
            part = file.bytes_column("t", start, stop)
            assert part.tolist() == TEXTS[start:stop]
            assert part.offsets[0] == 0


def test_empty_columns_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    write_columns(path, {"t": BytesColumn.of([]), "n": np.zeros(0, np.int32)})
    assert ColumnFile(path).bytes_column("t").tolist() == []
    assert len(ColumnFile(path).array("n")) == 0
    write_columns(path, {})
    assert "t" not in ColumnFile(path)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 51), (4, 3), (51, 51)])
def test_rows_that_are_not_there_are_a_bug(start: int, stop: int, tmp_path: Path) -> None:
    write_columns(tmp_path / "x.col", {"n": np.arange(50, dtype=np.int64)})
    with pytest.raises(InvariantError, match="outside 0:50"):
        ColumnFile(tmp_path / "x.col").array("n", start, stop)


def test_what_is_read_cannot_be_written(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.col", {"n": np.arange(5, dtype=np.int64)})
    with pytest.raises(ValueError, match="read-only"):
        ColumnFile(tmp_path / "x.col").array("n")[0] = 9


def test_arrays_outlive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    write_columns(path, {"n": np.arange(5, dtype=np.int64)})
    array = ColumnFile(path).array("n")
    path.unlink()
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_another_file_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    path.write_bytes(b"something else" * 10)
    with pytest.raises(InvariantError, match="not a column file"):
        ColumnFile(path)


def test_a_missing_file_and_a_missing_directory_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        ColumnFile(tmp_path / "x.col")
    with pytest.raises(StorageError):
        write_columns(tmp_path / "none" / "x.col", {})


def test_writing_again_replaces_everything(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    write_columns(path, {"n": np.arange(5000, dtype=np.int64)})
    size_bytes = write_columns(path, {"m": np.arange(3, dtype=np.int64)})
    assert path.stat().st_size == size_bytes < 1000
    assert "n" not in ColumnFile(path)
