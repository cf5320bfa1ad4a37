"""Column files: what is written is read back, in slices, and what is broken is reported."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsort.errors import ObjectNotFoundError, StorageError
from tests.support.internals import (
    KEPT_FILES_MAX,
    BytesColumn,
    Column,
    ColumnFile,
    KeptColumns,
    Scratch,
    columns_bytes,
    write_columns,
)
from tests.support.refusals import raises

TEXTS = [b"", b"a", b"\0" * 70, b"\xff", b"", b"last"]


def written(path: Path, columns: Mapping[str, Column]) -> int:
    with Scratch(path.parent) as scratch:
        return write_columns(scratch, path.name, columns)


def opened(path: Path) -> ColumnFile:
    with Scratch(path.parent) as scratch:
        return ColumnFile.of(scratch, path.name)


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
    size_bytes = written(path, arrays)
    assert path.stat().st_size == size_bytes
    file = opened(path)
    for name, array in arrays.items():
        found = file.array(name)
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()
        assert name in file
    assert "absent" not in file


def test_rows_are_read_by_slices(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    written(path, {"n": np.arange(50, dtype=np.int64), "t": BytesColumn.of(TEXTS)})
    file = opened(path)
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
    written(path, {"t": BytesColumn.of([]), "n": np.zeros(0, np.int32)})
    assert opened(path).bytes_column("t").tolist() == []
    assert len(opened(path).array("n")) == 0
    written(path, {})
    assert "t" not in opened(path)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 51), (4, 3), (51, 51)])
def test_rows_that_are_not_there_are_reported(start: int, stop: int, tmp_path: Path) -> None:
    written(tmp_path / "x.col", {"n": np.arange(50, dtype=np.int64)})
    with raises(StorageError, "x.col", "0:50"):
        opened(tmp_path / "x.col").array("n", start, stop)


def test_what_is_read_cannot_be_written(tmp_path: Path) -> None:
    written(tmp_path / "x.col", {"n": np.arange(5, dtype=np.int64)})
    with raises(ValueError):
        opened(tmp_path / "x.col").array("n")[0] = 9


def test_arrays_outlive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    written(path, {"n": np.arange(5, dtype=np.int64)})
    array = opened(path).array("n")
    path.unlink()
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_another_file_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    path.write_bytes(b"something else" * 10)
    with raises(StorageError, "x.col"):
        opened(path)


def test_a_missing_file_and_a_missing_directory_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        opened(tmp_path / "x.col")
    with pytest.raises(StorageError):
        written(tmp_path / "none" / "x.col", {})


def test_writing_again_replaces_everything(tmp_path: Path) -> None:
    path = tmp_path / "x.col"
    written(path, {"n": np.arange(5000, dtype=np.int64)})
    size_bytes = written(path, {"m": np.arange(3, dtype=np.int64)})
    assert path.stat().st_size == size_bytes < 1000
    assert "n" not in opened(path)


def stored(header: Any, body: bytes = bytes(256)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = b"dsortcol" + len(text).to_bytes(8, "little") + text
    return head + bytes(-len(head) % 64) + body


HOSTILE = {
    "empty": b"",
    "cut off in the magic": b"dsortc",
    "cut off in the length": b"dsortcol\x10\0",
    "a header longer than the file": b"dsortcol" + (1 << 40).to_bytes(8, "little") + b"{}",
    "no JSON": stored(b"\xff\xfe{"),
    "nested without end": stored(b"[" * 60_000),
    "a list": stored([["|u1", 1, 0]]),
    "objects": stored({"n": ["|O", 4, 0]}),
    "a record of objects": stored({"n": ["O,O", 4, 0]}),
    "texts": stored({"n": ["<U9", 4, 0]}),
    "times": stored({"n": ["<M8[ns]", 4, 0]}),
    "nothing": stored({"n": ["|V0", 4, 0]}),
    "an unknown dtype": stored({"n": [["x", 7], 4, 0]}),
    "a negative count": stored({"n": ["<i8", -4, 0]}),
    "a negative offset": stored({"n": ["<i8", 4, -64]}),
    "off its border": stored({"n": ["<i8", 4, 3]}),
    "too many rows": stored({"n": ["<i8", 33, 0]}),
    "far too many rows": stored({"n": ["<i8", 1 << 62, 0]}),
    "numbers that are texts": stored({"n": ["<i8", "4", "0"]}),
    "another column": stored({"m": ["<i8", 4, 0]}),
    "fields that are left out": stored({"n": ["<i8", 4]}),
    "null": stored({"n": None}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "x.col").write_bytes(HOSTILE[what])
    with raises(StorageError, "x.col"):
        opened(tmp_path / "x.col").array("n")
    with raises(StorageError, "mine"):
        ColumnFile(HOSTILE[what], "mine").array("n")


def test_texts_that_are_not_in_their_blob_are_refused() -> None:
    for offsets in ([0, 300], [-3, 4], [7, 4], []):
        data = columns_bytes(
            {"t.offsets": np.array(offsets, np.int64), "t.blob": np.zeros(256, np.uint8)}
        )
        with raises(StorageError, "mine", "t.blob"):
            ColumnFile(data, "mine").bytes_column("t")


def test_mutated_files_are_read_or_refused(rng: random.Random) -> None:
    whole = columns_bytes(
        {"n": np.arange(20, dtype=np.int64), "t": BytesColumn.of(TEXTS), "u": np.zeros(3, np.uint8)}
    )
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(min(len(data), 200))] = rng.randrange(256)
        del data[rng.choice([len(data), len(data), rng.randrange(len(data))]) :]
        try:
            file = ColumnFile(bytes(data), "mine")
            file.array("n"), file.bytes_column("t"), file.array("u", 1, 2)
        except StorageError:
            refused += 1
    assert refused > 1000


ROWS = 200
PACKED = {
    "one": np.full(ROWS, 2**40, np.int64),
    "all_zero": np.zeros(ROWS, np.int32),
    "byte": np.arange(ROWS, dtype=np.int64),
    "two": np.arange(ROWS, dtype=np.int64) * 300,
    "four": np.arange(ROWS, dtype=np.uint64) * np.uint64(2**24 - 1),
    "below": np.arange(ROWS, dtype=np.int64) - 1,
    "words": np.arange(ROWS, dtype=np.uint64) << np.uint64(56),
    "texts": BytesColumn.of([b"x" * (row % 5) for row in range(ROWS)]),
}


def test_numbers_come_back_from_less_room_as_they_were(tmp_path: Path) -> None:
    file = opened_after(tmp_path / "packed", PACKED)
    for name, column in PACKED.items():
        if isinstance(column, BytesColumn):
            assert file.bytes_column(name, 3, 77).tolist() == column.tolist()[3:77]
            continue
        for start, stop in ((0, ROWS), (7, 130), (5, 5)):
            rows = file.array(name, start, stop)
            assert (rows.dtype, rows.tolist()) == (column.dtype, column[start:stop].tolist())
    plain = sum(column.nbytes for column in PACKED.values() if not isinstance(column, BytesColumn))
    assert (tmp_path / "packed").stat().st_size < plain


def opened_after(path: Path, columns: Mapping[str, Column]) -> ColumnFile:
    written(path, columns)
    return opened(path)


def test_packed_columns_are_not_believed_beyond_the_file(tmp_path: Path) -> None:
    written(tmp_path / "packed", {"one": PACKED["one"], "byte": PACKED["byte"]})
    data = (tmp_path / "packed").read_bytes()
    with raises(StorageError, "column one"):
        ColumnFile(data, "from a bucket").array("one")  # it is written plain there
    for name, old, new in (
        ("one", b"200", b"999"),
        ("byte", b"|u1", b"|O8"),
        ("one", b'"one"]', b'"two"]'),
    ):
        (tmp_path / "broken").write_bytes(data.replace(old, new))
        broken = opened(tmp_path / "broken")
        with raises(StorageError, "broken", "column "):
            broken.array(name)


def test_a_file_that_is_kept_is_opened_once_and_one_in_its_place_is_another(tmp_path: Path) -> None:
    kept = KeptColumns()
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        names = [f"index-{number}.col" for number in range(KEPT_FILES_MAX + 1)]
        for number, name in enumerate(names):
            write_columns(scratch, name, {"a": np.array([number], np.int64)})
        files = [ColumnFile.of(scratch, name, kept) for name in names]
        again = [
            ColumnFile.of(scratch, name, kept) is file
            for name, file in zip(names, files, strict=True)
        ]
        assert again == [True] * KEPT_FILES_MAX + [False]
        write_columns(scratch, names[0], {"a": np.array([77], np.int64)})
        assert ColumnFile.of(scratch, names[0], kept).array("a").tolist() == [77]
        assert files[0].array("a").tolist() == [0]
        write_columns(scratch, "survey-0.col", {"a": np.array([5], np.int64)})
        assert ColumnFile.of(scratch, "survey-0.col", kept).array("a").tolist() == [5]
        assert ColumnFile.of(scratch, names[1], kept) is not files[1]
