"""Laws of the columns that stand for lists: byte strings, ranges of a blob, segments of a shard."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.internals import BytesColumn, Segments, equal_ranges
from tests.support.sampling import examples

SETTINGS = settings(max_examples=examples(150))

TEXTS = st.one_of(
    st.binary(max_size=30),
    st.text("ab\0\xff", max_size=20).map(lambda text: text.encode("latin-1")),
    st.sampled_from(
        [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff" * 8, b"prefix/", b"prefix/long" * 9]
    ),
)

SOURCE = bytes(range(100))


@SETTINGS
@given(st.lists(TEXTS, max_size=20), st.data())
def test_a_bytes_column_is_a_list_of_bytes(values: list[bytes], data: st.DataObject) -> None:
    column = BytesColumn.of(values)
    assert len(column) == len(values)
    assert column.tolist() == values
    assert [column[row] for row in range(len(values))] == values
    assert column.lengths.tolist() == [*map(len, values)]
    rows = data.draw(st.lists(st.integers(0, len(values) - 1)) if values else st.just([]))
    taken = column.take(np.array(rows, np.int64))
    assert taken.tolist() == [values[row] for row in rows]
    assert taken.offsets[0] == 0


@SETTINGS
@given(st.lists(st.lists(TEXTS, max_size=5), max_size=5))
def test_bytes_columns_are_joined_in_order(parts: list[list[bytes]]) -> None:
    joined = BytesColumn.concat(BytesColumn.of(part) for part in parts)
    assert joined.tolist() == [value for part in parts for value in part]


@SETTINGS
@given(st.binary(min_size=1, max_size=200), st.data())
def test_equal_ranges_compares_as_slices_do(blob: bytes, data: st.DataObject) -> None:
    blob = blob + blob  # so that long ranges are equal, too
    place = st.integers(0, len(blob))
    pairs = data.draw(st.lists(st.tuples(place, place, st.integers(0, len(blob)), st.booleans())))
    half = len(blob) // 2
    triples = []
    for first, second, length, twin in pairs:
        second = (first + half) % len(blob) if twin else second
        triples.append((first, second, min(length, len(blob) - max(first, second))))
    first, second, lengths = (
        np.array(c, np.int64) for c in (zip(*triples, strict=True) if triples else ((), (), ()))
    )
    found = equal_ranges(np.frombuffer(blob, np.uint8), first, second, lengths)
    assert found.tolist() == [blob[a : a + n] == blob[b : b + n] for a, b, n in triples]


@st.composite
def segments(draw: st.DrawFn) -> tuple[Segments, list[bytes]]:
    """Segments over the source below, and the bytes that each record stands for."""
    literals, starts, lengths, offsets, meant = b"", [], [], [0], []
    for _ in range(draw(st.integers(0, 6))):
        record = b""
        for _ in range(draw(st.integers(1, 3))):
            if draw(st.booleans()):
                text = draw(st.binary(max_size=5))
                starts.append(-1 - len(literals))
                literals += text
                lengths.append(len(text))
                record += text
            else:
                start = draw(st.integers(0, 90))
                starts.append(start)
                lengths.append(draw(st.integers(0, 10)))
                record += SOURCE[start : start + lengths[-1]]
        offsets.append(len(starts))
        meant.append(record)
    columns = [np.array(values, np.int64) for values in (offsets, starts, lengths)]
    return Segments(*columns, np.frombuffer(literals, np.uint8)), meant


def bytes_of(found: Segments) -> list[bytes]:
    literals = found.literals.tobytes()
    pieces = [
        SOURCE[start : start + length] if start >= 0 else literals[-1 - start : -1 - start + length]
        for start, length in zip(found.start.tolist(), found.length.tolist(), strict=True)
    ]
    bounds = found.offsets.tolist()
    return [b"".join(pieces[a:b]) for a, b in pairwise(bounds)]


@SETTINGS
@given(st.lists(segments(), max_size=4), st.data())
def test_segments_keep_each_records_bytes(
    parts: list[tuple[Segments, list[bytes]]], data: st.DataObject
) -> None:
    joined = Segments.concat([part for part, _ in parts])
    meant = [record for _, records in parts for record in records]
    assert bytes_of(joined) == meant
    rows = data.draw(st.lists(st.integers(0, len(meant) - 1)) if meant else st.just([]))
    assert bytes_of(joined.take(np.array(rows, np.int64))) == [meant[row] for row in rows]
    start = data.draw(st.integers(0, len(meant)))
    stop = data.draw(st.integers(start, len(meant)))
    assert bytes_of(joined.run(start, stop)) == meant[start:stop]
