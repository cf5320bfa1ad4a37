"""Columns of the bytes around members: what is put side by side, and where."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dsort.containers.tfrecord.frames import bytes_features, varints
from tests.support.internals import (
    BytesColumn,
    RowBytes,
    column_of,
    distinct_rows,
    side_by_side,
    spread,
)
from tests.support.tfrecords import example_bytes


def column(*values: bytes) -> BytesColumn:
    return BytesColumn.of(list(values))


def test_a_column_is_a_mapping_of_the_rows_that_have_bytes() -> None:
    mapping = RowBytes(column(b"a", b"", b"cc"))
    assert dict(mapping) == {0: b"a", 2: b"cc"}
    assert (len(mapping), mapping.get(1), mapping.get(7), 2 in mapping) == (2, None, None, True)
    with pytest.raises(KeyError):
        mapping[-1]


def test_a_mapping_becomes_the_column_that_it_is() -> None:
    assert column_of({2: b"cc", 0: b"a"}, 4).tolist() == [b"a", b"", b"cc", b""]
    assert column_of({}, 2).tolist() == [b"", b""]


@pytest.mark.parametrize("rows", [[0, 1, 2], [1, 3, 4], [4, 0, 3]])
def test_rows_go_where_they_are_to_be(rows: list[int]) -> None:
    values = [b"x", b"", b"long one"]
    found = spread(column(*values), np.array(rows), 5 if max(rows) > 2 else 3).tolist()
    assert [found[row] for row in rows] == values
    assert sum(map(len, found)) == sum(map(len, values))


@pytest.mark.parametrize("longest", [0, 1, 70])
def test_parts_of_any_length_are_put_side_by_side(longest: int) -> None:
    source = random.Random(longest)

    def values(fixed: bool) -> list[bytes]:
        return [source.randbytes(3 if fixed else source.randrange(longest + 1)) for _ in range(40)]

    parts = [values(fixed=True), values(fixed=False), values(fixed=True), values(fixed=False)]
    columns: list[BytesColumn | bytes] = [BytesColumn.of(part) for part in parts]
    found = side_by_side([*columns, b"end"], 40).tolist()
    assert found == [b"".join(row) + b"end" for row in zip(*parts, strict=True)]


def test_no_rows_are_put_side_by_side() -> None:
    assert len(side_by_side([BytesColumn.empty(0), b"x"], 0)) == 0


def test_rows_of_few_values_are_distinguished_and_so_are_those_of_many() -> None:
    for values in ([b".jpg", b".cls", b".jpg", b""], [b"%d" % (n % 90) for n in range(300)]):
        rows = BytesColumn.of(values)
        value_of, first = distinct_rows(rows.blob, rows.offsets[:-1], rows.lengths)
        assert [values[first[each]] for each in value_of.tolist()] == values
        assert len(first) == len(set(values))
        assert all(values.index(values[row]) == row for row in first.tolist())


def test_numbers_are_stored_as_protobuf_stores_them() -> None:
    known = {0: "00", 127: "7f", 128: "8001", 300: "ac02", 16384: "808001", 2**40: "808080808020"}
    assert [each.hex() for each in varints(np.array([*known])).tolist()] == [*known.values()]


def test_features_of_any_size_are_stored_as_protobuf_stores_them() -> None:
    sizes = [0, 1, 100, 127, 128, 16_000, 70_000]
    heads = bytes_features(b"jpg", np.array(sizes)).tolist()
    for size, head in zip(sizes, heads, strict=True):
        example = example_bytes({"jpg": ("byte", b"v" * size)})
        assert example.endswith(head + b"v" * size)
