"""Tables: rows are taken, joined and read back as plain lists would be."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsort.errors import InvariantError, StorageError
from tests.support.internals import (
    CONTENT_HASH,
    ENTRIES,
    KEYS,
    MEMBERS,
    NO_NEW_NAMES,
    ORDINAL,
    RANGES,
    RANK,
    STORED_BYTES,
    TEXT,
    BytesColumn,
    ColumnFile,
    NewNames,
    NumberedColumn,
    Scratch,
    Segments,
    SortKeys,
    Table,
    columns_bytes,
    record_index,
    row_numbers,
    write_columns,
)

ALL = (ORDINAL, KEYS, RANK, TEXT, MEMBERS, STORED_BYTES, RANGES, CONTENT_HASH, ENTRIES)


def table_of(rng: random.Random, count: int) -> Table:
    """Some rows with columns of each kind. Keys sort and are numbered, or neither."""
    is_single, has_names = rng.random() < 0.5, rng.random() < 0.5
    counts = [1] * count if is_single else [rng.randrange(4) for _ in range(count)]
    offsets = np.cumsum([0, *counts]).astype(np.int64)
    literals = np.frombuffer(rng.randbytes(50), np.uint8)
    starts = [rng.choice([-1 - rng.randrange(40), rng.randrange(1000)]) for _ in range(offsets[-1])]
    length = np.array([rng.randrange(10) for _ in starts], np.int64)
    names = NO_NEW_NAMES
    if has_names:
        texts = BytesColumn.of([rng.randbytes(rng.randrange(4)) for _ in range(count)])
        names = NewNames(row_numbers(count + 1), np.arange(count, dtype=np.int64), texts)
    ordinal = row_numbers(count)
    keys = NumberedColumn(b"shard/", ordinal)
    if rng.random() < 0.5:
        keys = BytesColumn.of([rng.randbytes(rng.randrange(5)) for _ in range(count)])  # type: ignore[assignment]
    rows = record_index(
        ordinal=ordinal,
        keys=keys,
        sort=SortKeys(count, rank=np.arange(count).astype(np.uint8), text=keys),
        members=np.broadcast_to(np.int32(3), (count,)),
        payload_bytes=np.arange(count, dtype=np.int64) * 100_000,
        stored_bytes=length if is_single else np.arange(count, dtype=np.int64),
        ranges=Segments(offsets, np.array(starts, np.int64), length, literals, names),
    )
    rows = rows.with_(CONTENT_HASH, np.array([rng.getrandbits(64) for _ in range(count)], "u8"))
    return rows.with_(ENTRIES, BytesColumn.of([rng.randbytes(2) for _ in range(count)]))


def values(table: Table) -> list[tuple[Any, ...]]:
    """What the rows say, literals as bytes."""
    return [
        (*(column[row] for column in plain), *ranges_of(table[RANGES], row))
        for plain in [[plain_column(table, name) for name in ALL if name != RANGES]]
        for row in range(len(table))
    ]


def plain_column(table: Table, name: Any) -> list[Any]:
    found: list[Any] = table[name].tolist()
    return found


def ranges_of(ranges: Segments, row: int) -> tuple[Any, ...]:
    found = []
    for at in range(*ranges.offsets[row : row + 2].tolist()):
        start, length = int(ranges.start[at]), int(ranges.length[at])
        literal = ranges.literals[-1 - start : -1 - start + length].tobytes()
        found.append(literal if start < 0 else (start, length))
    if not len(ranges.names):
        return tuple(found), None
    names = ranges.names
    own = range(*names.offsets[row : row + 2].tolist())
    return tuple(found), [(int(names.at[at]), names.names[at]) for at in own]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_rows_are_what_they_are_in_lists(count: int, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed * 1000 + count)  # both are in the name of the test
    table = table_of(rng, count)
    whole = values(table)
    rows = [rng.randrange(count) for _ in range(rng.randrange(2 * count + 1))]
    assert values(table.take(np.array(rows, np.int64))) == [whole[row] for row in rows]
    start, stop = sorted([rng.randrange(count + 1), rng.randrange(count + 1)])
    assert values(table.run(start, stop)) == whole[start:stop]
    parts = [table.run(0, start), table.run(start, stop), table.take(np.array(rows, np.int64))]
    assert values(Table.concat(parts)) == [*whole[:stop], *(whole[row] for row in rows)]
    assert values(pickle.loads(pickle.dumps(table))) == whole
    trimmed = table[RANGES].trimmed()
    assert values(table.with_(RANGES, trimmed)) == whole
    assert len(trimmed.literals) <= len(table[RANGES].literals)
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        write_columns(scratch, "a.col", table.arrays())
        file = ColumnFile.of(scratch, "a.col")
        read = Table.read(file, ALL, start, stop)
        assert values(read) == whole[start:stop]
        is_whole = table[RANGES].length is table[STORED_BYTES]
        assert (read[RANGES].length is read[STORED_BYTES]) == is_whole


def test_a_column_with_two_names_is_stored_and_taken_once() -> None:
    table = table_of(random.Random(1), 500)
    assert table[KEYS] is table[TEXT]
    taken = table.take(np.arange(499, -1, -1))
    assert taken[KEYS] is taken[TEXT]
    joined = Table.concat([taken, taken])
    assert joined[KEYS].tolist() == joined[TEXT].tolist()
    alone = len(columns_bytes(table.without(TEXT).arrays()))
    assert len(columns_bytes(table.arrays())) < alone + 200


def test_a_column_of_one_number_takes_no_room() -> None:
    table = table_of(random.Random(2), 500)
    for each in (table, table.take(np.arange(100)), Table.concat([table, table])):
        assert each[MEMBERS].strides == (0,)
    sent = pickle.dumps(table.only([MEMBERS]))
    assert len(sent) < 400
    assert pickle.loads(sent)[MEMBERS].tolist() == [3] * 500


def test_columns_that_only_some_parts_have_are_an_error_unless_texts() -> None:
    table = table_of(random.Random(3), 5)
    joined = Table.concat([table, table.without(TEXT)])
    assert joined[TEXT].tolist() == [*table[TEXT].tolist(), *[b""] * 5]
    with pytest.raises(InvariantError):
        Table.concat([table, table.without(CONTENT_HASH)])


def test_a_table_of_no_parts_has_the_columns_that_are_named() -> None:
    table = Table.concat([], ALL)
    assert len(table) == 0
    assert values(table) == []
    assert len(table[RANGES].offsets) == 1


def test_a_file_from_a_bucket_holds_all_the_bytes_of_its_texts() -> None:
    table = table_of(random.Random(4), 500).with_(
        KEYS, NumberedColumn(b"a" * 1000, row_numbers(500))
    )
    numbered = table.only([KEYS])
    with pytest.raises(StorageError):
        Table.read(ColumnFile(columns_bytes(numbered.arrays()), "a file"), [KEYS], 0, 500)
    plain = ColumnFile(columns_bytes(numbered.arrays(is_private=False)), "a file")
    assert Table.read(plain, [KEYS], 0, 500)[KEYS].tolist() == table[KEYS].tolist()
    ends = {"keys.offsets": np.array([0, 3, 1, 4], np.int64), "keys.blob": np.zeros(4, np.uint8)}
    with pytest.raises(StorageError):
        Table.read(ColumnFile(columns_bytes(ends), "a file"), [KEYS], 0, 3)


def test_a_second_name_of_an_array_has_a_type_of_its_own() -> None:
    same = np.zeros(3, np.uint64)
    file = ColumnFile(columns_bytes({"content_hash": same, "stored_bytes": same}), "a file")
    with pytest.raises(StorageError):
        Table.read(file, [CONTENT_HASH, STORED_BYTES], 0, 3)


def test_columns_have_as_many_rows_as_their_table() -> None:
    table = table_of(random.Random(5), 5)
    with pytest.raises(InvariantError):
        table.with_(STORED_BYTES, np.zeros(4, np.int64))
    with pytest.raises(InvariantError):
        table.beside(Table(4))


def test_a_file_with_a_column_of_another_type_is_refused() -> None:
    file = ColumnFile(columns_bytes({"ordinal": np.zeros(3, np.int32)}), "a file")
    with pytest.raises(StorageError):
        Table.read(file, [ORDINAL], 0, 3)
    with pytest.raises(StorageError):
        Table.read(file, [KEYS], 0, 3)
    with pytest.raises(StorageError):
        Table.read(file, [MEMBERS], 0, 3)
    assert len(Table.read(file, (), 0, 3, optional=[KEYS, MEMBERS])) == 3
