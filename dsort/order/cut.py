"""The cut: divides the single global order of records into output shards.

Partitions are cut one after the other. A shard that is open at the end of one partition continues
in the next partition, so the result does not depend on the number of partitions. Everything here is
a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import Int32s, Int64s, offsets_of
from dsort.data.index import (
    ENTRIES_BYTES,
    GROUP,
    MEMBERS,
    PAYLOAD_BYTES,
    SHARD,
    STORED_BYTES,
)
from dsort.data.table import Table

FileBytes = Callable[[int, int, int, int], int]
"""The size of an output shard. Arguments: the number of its records and members, the bytes of their
entries, and the stored bytes of the records. The size never falls when an argument grows."""


class EncodedSizes(Struct, frozen=True, eq=False):
    """The measured size of the encoded global order, in steps.

    ``stored``, ``encoded``: the first ``stored[i]`` bytes of records have ``encoded[i]`` bytes once
    encoded; shape ``(n,)``, ascending. Between two steps the size grows linearly. Without steps,
    the size was not measured.
    """

    stored: Int64s
    encoded: Int64s

    def __bool__(self) -> bool:
        return len(self.stored) > 0

    def at(self, stored: Int64s) -> Int64s:
        """The encoded size of the first ``stored`` bytes; shape as given. Computed with integers
        only, because floats would not be the same on every processor."""
        step = np.searchsorted(self.stored, stored, side="right") - 1
        step = np.clip(step, 0, max(len(self.stored) - 2, 0))
        if len(self.stored) < 2:
            return np.zeros(len(stored), np.int64)
        width, height = np.diff(self.stored)[step], np.diff(self.encoded)[step]
        # For steps of 2 GiB and more (with records of that size), the last bits are dropped:
        # products then fit in 64 bits.
        shift = np.maximum(np.frexp(np.maximum(width, height).astype(np.float64))[1] - 31, 0)
        within = np.minimum(stored - self.stored[step], width) >> shift
        part: Int64s = within * height // np.maximum(width >> shift, 1)
        return self.encoded[step] + part

    def between(self, start: int, stop: int) -> EncodedSizes:
        """The steps that cover bytes ``start:stop`` of the order."""
        first = max(int(np.searchsorted(self.stored, start, side="right")) - 1, 0)
        last = int(np.searchsorted(self.stored, stop, side="left")) + 1
        return EncodedSizes(self.stored[first:last], self.encoded[first:last])


NOT_MEASURED: Final = EncodedSizes(np.zeros(0, np.int64), np.zeros(0, np.int64))


class CutRule(Struct, frozen=True):
    """When an output shard closes: at ``size_bytes`` or ``records``, whichever comes first.

    ``size_bytes``: once the payload of the shard has this many bytes. With ``counts_file``, headers
    and padding count, too; if encoded sizes were measured, these count. With ``shards_max``, the
    last shard stays open for records without payload. ``at_most``: the shard closes before it would
    exceed the size (with ``counts_file``, the size of the whole file); a larger record has a shard
    of its own. ``records``: at that many records; the last shard of a group may have fewer.
    ``count``: so many shards in all, with numbers of records that differ by at most one (it needs
    ``records_total``, and excludes other limits).

    ``inputs``: the number of input shards. Output shard ``n`` has the records of input ``n`` and
    may be empty; records come in the order of the inputs.

    ``counts``: the number of records of each shard, which may be 0.

    ``header_bytes``: bytes that are counted for each member, besides its payload.

    ``is_plain``: these shards have no codec, so the sizes that were measured for other outputs do
    not apply.

    ``of_outputs``: the rules of several outputs, by group, if each has a separate rule.
    """

    size_bytes: int | None = None
    records: int | None = None
    count: int | None = None
    records_total: int = 0
    shards_max: int | None = None
    counts_file: bool = False
    at_most: bool = False
    header_bytes: int = 0
    is_plain: bool = False
    inputs: int = 0
    counts: tuple[int, ...] = ()
    of_outputs: tuple[CutRule, ...] = ()

    def of_group(self, group: int) -> CutRule:
        """The rule of the shards of ``group``."""
        return self.of_outputs[group] if self.of_outputs else self

    def records_in(self, number: int) -> int | None:
        """How many records shard ``number`` of a group has, if the rule fixes it. Records left over
        behind ``count`` shards (``records_total`` may be too small) go to one more shard."""
        if self.counts:
            return self.counts[number] if number < len(self.counts) else None
        if self.count is not None:
            if number >= self.count:
                return None
            even, more = divmod(self.records_total, self.count)
            return even + (1 if number < more else 0)
        return self.records


class OpenShard(Struct, frozen=True):
    """The state of the cut: ``number`` is the shard of ``group`` that takes the next record."""

    group: int = 0
    number: int = 0
    records: int = 0
    payload_bytes: int = 0
    stored_bytes: int = 0
    members: int = 0
    entries_bytes: int = 0
    encoded_bytes: int = 0


class Piece(NamedTuple):
    """Rows ``row_start:row_stop`` of one partition, which go to ``offset`` of one output shard."""

    group: int
    number: int
    partition: int
    row_start: int
    row_stop: int
    offset: int
    members: int
    payload_bytes: int
    stored_bytes: int
    entries_bytes: int = 0  # bytes of its members' entries, if the container lists members
    measured_bytes: int = -1  # about its encoded size; -1: not measured

    @property
    def records(self) -> int:
        return self.row_stop - self.row_start


class OutputShard(NamedTuple):
    """One planned output shard; ``ordinal`` counts over all groups. Sizes do not include the bytes
    that its container has before and behind the records: ``head_bytes`` and ``end_bytes``."""

    ordinal: int
    group: int
    number: int
    records: int
    members: int
    payload_bytes: int
    stored_bytes: int
    pieces: tuple[Piece, ...]
    entries_bytes: int = 0
    head_bytes: int = 0
    end_bytes: int = 0
    measured_bytes: int = -1  # of the written file, or about its encoded size; -1: as planned

    @property
    def file_bytes(self) -> int:
        """The size of the file. Before it is written, this is an estimate if a codec is around it,
        or if its container does not plan sizes."""
        return self.measured_bytes if self.measured_bytes >= 0 else self.container_bytes

    @property
    def container_bytes(self) -> int:
        """The size of the file without a codec around it."""
        return self.head_bytes + self.stored_bytes + self.end_bytes


def cut_partition(
    rule: CutRule,
    partition: int,
    rows: Table,
    state: OpenShard,
    file_bytes: FileBytes,
    encoded: EncodedSizes = NOT_MEASURED,
    stored_before: int = 0,
) -> tuple[list[Piece], OpenShard]:
    """Cut one partition's ``rows``, which are in output order. ``encoded``: the encoded size of the
    order, for rules about the encoded file; ``stored_before``: the bytes of the order before this
    partition.

    Returns the pieces, and the state of the cut after them.
    """
    payload = offsets_of(rows[PAYLOAD_BYTES])
    stored = offsets_of(rows[STORED_BYTES])
    member_count = offsets_of(rows[MEMBERS])
    entered = offsets_of(rows.filled(ENTRIES_BYTES))
    packed = encoded.at(stored + stored_before)
    running = _Running(payload, stored, member_count, entered, file_bytes, packed, bool(encoded))
    pieces: list[Piece] = []
    borders = rows[SHARD] if rule.inputs else rows.filled(GROUP)
    for run, start, stop in _runs(borders):
        if rule.inputs and run != state.number:
            state = OpenShard(number=run)
        elif not rule.inputs and run != state.group:
            state = OpenShard(group=run)
        group = state.group
        own, row = rule.of_group(group), start
        is_measured = running.is_measured and not own.is_plain
        while row < stop:
            until, closes = _close_at(own, state, running, row, stop)
            if until == row:  # the shard has records, and no room for the next one
                state = OpenShard(group=group, number=state.number + 1)
                continue
            piece = Piece(
                group=group,
                number=state.number,
                partition=partition,
                row_start=row,
                row_stop=until,
                offset=state.stored_bytes,
                members=int(member_count[until] - member_count[row]),
                payload_bytes=int(payload[until] - payload[row]),
                stored_bytes=int(stored[until] - stored[row]),
                entries_bytes=int(entered[until] - entered[row]),
                measured_bytes=int(packed[until] - packed[row]) if is_measured else -1,
            )
            pieces.append(piece)
            state = _advance(state, piece, closes)
            row = until
    return pieces, state


def _runs(borders: Int32s) -> Iterator[tuple[int, int, int]]:
    """Yield (group, first row, row after the last) for each run of rows of one group or input."""
    for start, stop in pairwise(
        [0, *(np.flatnonzero(np.diff(borders)) + 1).tolist(), len(borders)]
    ):
        if stop > start:
            yield int(borders[start]), start, stop


class _Running(Struct, frozen=True):
    """Sums over the first ``i`` rows of a partition, shape ``(n + 1,)``."""

    payload: Int64s
    stored: Int64s
    members: Int64s
    entries: Int64s
    file_bytes: FileBytes
    encoded: Int64s
    is_measured: bool

    def whole(self, state: OpenShard, row: int, until: int) -> int:
        """The file size of the open shard, once it has taken rows ``row:until``."""
        return self.file_bytes(
            state.records + until - row,
            state.members + int(self.members[until] - self.members[row]),
            state.entries_bytes + int(self.entries[until] - self.entries[row]),
            state.stored_bytes + int(self.stored[until] - self.stored[row]),
        )


def _close_at(
    rule: CutRule, state: OpenShard, running: _Running, row: int, stop: int
) -> tuple[int, bool]:
    """(the row after the last one for the open shard, or ``row`` if it gets none; whether the shard
    closes there)."""
    until, closes = stop, False
    if rule.size_bytes is not None:
        until, closes = _full_at(rule, rule.size_bytes, state, running, row, stop)
    records = rule.records_in(state.number)
    if records is not None:
        assert records > state.records or not records, (rule, state)
        until_counted = row + records - state.records
        if until_counted <= until:
            return until_counted, True
    return until, closes


def _full_at(
    rule: CutRule, size_bytes: int, state: OpenShard, running: _Running, row: int, stop: int
) -> tuple[int, bool]:
    """As ``_close_at``, by size alone."""
    if rule.shards_max is not None and state.number == rule.shards_max - 1:
        return stop, False
    counted, so_far = running.payload, state.payload_bytes
    if rule.header_bytes:
        counted = counted + rule.header_bytes * running.members
        so_far += rule.header_bytes * state.members
    if rule.counts_file:
        counted, so_far = running.stored, state.stored_bytes
    is_measured = running.is_measured and not rule.is_plain
    if rule.counts_file and is_measured:
        counted, so_far = running.encoded, state.encoded_bytes
    wanted = counted[row] + max(size_bytes, 1) - so_far
    if not rule.at_most:
        until = row + 1 + int(np.searchsorted(counted[row + 1 : stop + 1], wanted, side="left"))
        return (until, True) if until <= stop else (stop, False)
    until = row + int(np.searchsorted(counted[row + 1 : stop + 1], wanted, side="right"))
    if rule.counts_file and not is_measured:
        # The file is longer by head and end, so fewer rows may fit: a binary search.
        low, high = row, until
        while low < high:
            middle = (low + high + 1) // 2
            fits = running.whole(state, row, middle) <= size_bytes
            low, high = (middle, high) if fits else (low, middle - 1)
        until = low
    if until == row and not state.records:
        return row + 1, True
    return until, until < stop


def _advance(state: OpenShard, piece: Piece, closes: bool) -> OpenShard:
    if closes:
        return OpenShard(group=state.group, number=state.number + 1)
    return replace(
        state,
        records=state.records + piece.records,
        payload_bytes=state.payload_bytes + piece.payload_bytes,
        stored_bytes=state.stored_bytes + piece.stored_bytes,
        members=state.members + piece.members,
        entries_bytes=state.entries_bytes + piece.entries_bytes,
        encoded_bytes=state.encoded_bytes + max(piece.measured_bytes, 0),
    )
