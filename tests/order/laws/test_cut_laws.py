"""Laws of the cut: shards as a plain loop over records would fill them, whatever the partitions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.internals import (
    CutRule,
    OpenShard,
    OutputShard,
    Piece,
    cut_partition,
    merge_pieces,
)
from tests.support.record_tables import rows_to_cut, stored_only
from tests.support.sampling import examples

SETTINGS = settings(max_examples=examples(200))


@dataclass(frozen=True)
class Row:
    """A record as the cut sees it."""

    group: int
    payload: int
    stored: int
    members: int


ROWS = st.lists(
    st.builds(
        Row,
        group=st.integers(0, 2),
        payload=st.sampled_from([0, 0, 1, 5, 100, 2**33]),
        stored=st.sampled_from([512, 1024, 2**33 + 512]),
        members=st.integers(1, 3),
    ),
    max_size=25,
)
RULES = st.one_of(
    st.builds(CutRule, size_bytes=st.sampled_from([1, 5, 6, 100, 101, 2**33 + 1, 2**40])),
    st.builds(
        CutRule, size_bytes=st.sampled_from([1, 5, 100]), shards_max=st.sampled_from([1, 2, 5])
    ),
    st.builds(CutRule, records=st.integers(1, 8)),
    st.builds(
        CutRule,
        size_bytes=st.sampled_from([1, 5, 100, 1700, 3600, 2**33 + 1, 2**40]),
        records=st.none() | st.integers(1, 8),
        at_most=st.booleans(),
        counts_file=st.booleans(),
    ),
    st.builds(CutRule, count=st.integers(1, 9)),
)


def cut(
    rule: CutRule, rows: list[Row], borders: list[int], *, grouped: bool
) -> tuple[list[Piece], list[OutputShard]]:
    """The pieces and shards that partitions ending at ``borders`` are cut into."""
    pieces: list[Piece] = []
    state = OpenShard()
    bounds = [0, *sorted(borders), len(rows)]
    for partition in range(len(bounds) - 1):
        own = rows[bounds[partition] : bounds[partition + 1]]
        found, state = cut_partition(
            rule,
            partition,
            rows_to_cut(
                [row.payload for row in own],
                [row.stored for row in own],
                [row.members for row in own],
                groups=[row.group for row in own] if grouped else None,
                entries_bytes=[ENTRY_BYTES * row.members for row in own],
            ),
            state,
            file_bytes,
        )
        pieces += found
    return pieces, merge_pieces(pieces, rule=rule)


HEAD_BYTES, RECORD_BYTES, ENTRY_BYTES, END_BYTES = 8, 4, 46, 22


def file_bytes(records: int, members: int, entries: int, stored: int) -> int:
    """The size of a shard of a container that has both heads and ends."""
    return HEAD_BYTES + RECORD_BYTES * records + stored + entries + END_BYTES


def size_of(rule: CutRule, shard: list[Row]) -> int:
    """What the rule counts of a shard."""
    if not rule.counts_file:
        return sum(row.payload for row in shard)
    stored = sum(row.stored for row in shard)
    members = sum(row.members for row in shard)
    return (
        file_bytes(len(shard), members, ENTRY_BYTES * members, stored) if rule.at_most else stored
    )


def closes(rule: CutRule, shard: list[Row], following: Row) -> bool:
    """Whether a shard is closed by the time that one more record comes."""
    if rule.records is not None and len(shard) == rule.records:
        return True
    if rule.size_bytes is None:
        return False
    if rule.at_most:
        return size_of(rule, [*shard, following]) > rule.size_bytes
    return size_of(rule, shard) >= rule.size_bytes


def slow_cut(rule: CutRule, rows: list[Row]) -> list[list[Row]]:
    """One group's shards."""
    if rule.count is not None:
        even, more = divmod(len(rows), rule.count)
        sizes = [even + (number < more) for number in range(rule.count)]
        return [rows[sum(sizes[:n]) :][: sizes[n]] for n in range(rule.count)]
    shards: list[list[Row]] = []
    for row in rows:
        may_close = len(shards) != rule.shards_max
        if not shards or (may_close and closes(rule, shards[-1], row)):
            shards.append([])
        shards[-1].append(row)
    return shards


@SETTINGS
@given(RULES, ROWS, st.lists(st.integers(0, 25), max_size=6), st.booleans())
def test_shards_are_filled_as_a_plain_loop_fills_them(
    rule: CutRule, rows: list[Row], borders: list[int], grouped: bool
) -> None:
    if rule.count is not None:  # no groups: the whole job has so many
        rule, grouped = replace(rule, records_total=len(rows)), False
    if grouped:
        rows = sorted(rows, key=lambda row: row.group)
    borders = [min(border, len(rows)) for border in borders]
    pieces, shards = cut(rule, rows, borders, grouped=grouped)
    wanted = []
    for group in sorted({row.group for row in rows}) if grouped else [0]:
        own = [row for row in rows if row.group == group or not grouped]
        wanted += [(group, n, shard) for n, shard in enumerate(slow_cut(rule, own))]
    assert [(shard.group, shard.number, shard.records) for shard in shards] == [
        (group, number, len(shard)) for group, number, shard in wanted
    ]
    for shard, (_, _, own) in zip(shards, wanted, strict=True):
        assert shard.payload_bytes == sum(row.payload for row in own)
        assert shard.stored_bytes == sum(row.stored for row in own)
        assert shard.members == sum(row.members for row in own)
    assert [shard.ordinal for shard in shards] == [*range(len(shards))]
    check_pieces(pieces, rows, borders)


def check_pieces(pieces: list[Piece], rows: list[Row], borders: list[int]) -> None:
    """Every row is in one piece, in order, and pieces lie one after the other in their shards."""
    starts = [0, *sorted(borders)]
    at: dict[tuple[int, int], int] = {}
    covered = []
    for piece in pieces:
        first = starts[piece.partition]
        covered += range(first + piece.row_start, first + piece.row_stop)
        shard = piece.group, piece.number
        assert piece.offset == at.get(shard, 0)
        at[shard] = piece.offset + piece.stored_bytes
    assert covered == [*range(len(rows))]


@SETTINGS
@given(
    sources=st.lists(st.integers(0, 5), max_size=25).map(sorted),
    more=st.integers(0, 3),
    data=st.data(),
)
def test_shards_that_end_where_inputs_end_are_those_of_a_loop(
    sources: list[int], more: int, data: st.DataObject
) -> None:
    inputs = max(sources, default=0) + 1 + more
    rule, state, pieces = CutRule(inputs=inputs), OpenShard(), list[Piece]()
    borders = data.draw(st.lists(st.integers(0, len(sources)), max_size=4).map(sorted))
    for partition, (start, stop) in enumerate(pairwise([0, *borders, len(sources)])):
        ones = [1] * (stop - start)
        rows = rows_to_cut(ones, [512] * len(ones), ones, shards=sources[start:stop])
        found, state = cut_partition(rule, partition, rows, state, stored_only)
        pieces += found
    shards = merge_pieces(pieces, rule=rule)
    assert [shard.number for shard in shards] == [shard.ordinal for shard in shards]
    assert [shard.records for shard in shards] == [sources.count(n) for n in range(inputs)]
    for shard in shards:
        offsets = [piece.offset for piece in shard.pieces]
        assert (
            offsets
            == [*accumulate((p.stored_bytes for p in shard.pieces[:-1]), initial=0)][: len(offsets)]
        )
