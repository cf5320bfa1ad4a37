"""Sorts rows: one vectorised sort of columns, total and stable; and splits an order in partitions.

Ties break by input position: callers pass rows in input order, and every sort here is stable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int32s, Int64s, UInt64s, stable_argsort
from dsort.data.index import SortKeys
from dsort.data.row_bytes import side_by_side

_SIGN = np.uint64(1 << 63)
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_COMPLEMENT = bytes(range(255, -1, -1))
PADDED_BYTES_MAX = 128
"""Keys are padded to the length of the longest key if it has at most this many bytes, because each
byte takes a step over all rows. If a key is longer, comparing keys one by one is faster, and takes
less memory."""
text_end = b"\0\0"
"""The end of a text. A zero byte in a text is followed by 255."""


def order_rows(keys: SortKeys, *, decreasing: bool = False) -> Int64s:
    """The row numbers in output order, shape ``(n,)``: ascending group, rank, then the sort key.

    ``decreasing`` reverses the sort key, not groups, ranks or ties.
    """
    words = _comparable_words(keys, decreasing)
    if not words:
        return np.arange(keys.count, dtype=np.int64)
    # Least significant first: each stable sort keeps the order of the ones before it.
    order = stable_argsort(words.pop())
    for word in reversed(words):
        order = order[stable_argsort(word[order])]
    return order


def _comparable_words(keys: SortKeys, decreasing: bool) -> list[UInt64s]:
    """Columns of unsigned words, most significant first, that compare as the sort keys do."""
    words: list[UInt64s] = []
    if keys.group is not None or keys.rank is not None:
        group = np.zeros(keys.count, np.uint64)
        # Ranks are below 4, and dropped records are in group -1: one word, and one sort, has both.
        if keys.group is not None:
            group = (keys.group.astype(np.int64) + 1).astype(np.uint64) << np.uint64(2)
        if keys.rank is not None:
            group = group | keys.rank
        words.append(group)
    own: list[UInt64s] = [] if keys.words is None else [keys.words]
    if keys.text is not None:
        own += _text_words(keys.text)
    if decreasing:
        own = [word ^ _ALL for word in own]
    return words + own


def _text_words(text: BytesColumn) -> list[UInt64s]:
    """Big-endian 8-byte words of each row, most significant first, then the row's length.

    Shorter rows are padded with zeros; the length at the end puts ``a`` before ``a\\0``. A prefix
    that all rows share is left out, and so are words that are equal in all rows. If rows are long,
    the result is one word: the row's rank.
    """
    count = len(text)
    lengths = text.lengths
    if count == 0:
        return []
    shared = _shared_prefix_bytes(text)
    longest = int(lengths.max())
    if longest - shared > PADDED_BYTES_MAX:
        return [_ranks(text)]
    words = []
    for at in range(shared, longest, 8):
        word = np.zeros(count, np.uint64)
        for byte in range(at, min(at + 8, longest)):
            has = lengths > byte
            position = np.minimum(text.offsets[:-1] + byte, max(len(text.blob) - 1, 0))
            value = np.where(has, text.blob[position], 0).astype(np.uint64)
            word |= value << np.uint64(8 * (7 - (byte - at)))
        if word.min() != word.max():
            words.append(word)
    if lengths.min() != lengths.max():
        words.append(lengths.astype(np.uint64))
    return words


def _ranks(text: BytesColumn) -> UInt64s:
    """Numbers that compare like the rows: about 1 µs a row."""
    rows = text.tolist()
    order = sorted(range(len(rows)), key=rows.__getitem__)
    steps = (rows[a] != rows[b] for a, b in pairwise(order))
    ranks = np.zeros(len(rows), np.uint64)
    ranks[order[1:]] = np.cumsum(np.fromiter(steps, np.uint64, len(rows) - 1))
    return ranks


def _shared_prefix_bytes(text: BytesColumn) -> int:
    """The number of leading bytes that all rows have in common."""
    shortest = int(text.lengths.min())
    starts = text.offsets[:-1]
    for byte in range(shortest):
        column = text.blob[starts + byte]
        if (column != column[0]).any():
            return byte
    return shortest


def int_words(values: Int64s) -> UInt64s:
    """Words that compare like the signed integers."""
    return values.astype(np.int64).view(np.uint64) ^ _SIGN


def big_int_words(values: Sequence[int]) -> tuple[UInt64s, BytesColumn | None]:
    """Words, and texts to break their ties, that compare like integers of any size.

    Texts are None if no word needs one. The least and the greatest word also stand for all integers
    beyond them: these have their length and bytes as text, inverted for negative integers. Only the
    integer that equals the greatest word has an empty text.
    """
    try:
        words = np.array(values, np.int64)
    except OverflowError:
        words = np.array([min(max(value, _INT_MIN), _INT_MAX) for value in values], np.int64)
    else:
        if not (words == _INT_MIN).any():
            return int_words(words), None
    texts = [
        b"" if _INT_MIN < value <= _INT_MAX else _size_and_bytes(value, below=value < 0)
        for value in values
    ]
    return int_words(words), BytesColumn.of(texts)


def _size_and_bytes(value: int, *, below: bool) -> bytes:
    size = (value.bit_length() + 7) // 8
    text = size.to_bytes(4, "big") + abs(value).to_bytes(size, "big")
    return text.translate(_COMPLEMENT) if below else text


def float_words(values: NDArray[np.float64]) -> UInt64s:
    """Words that compare like the floats; -0.0 equals 0.0. There must be no NaN."""
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def natural_keys(keys: list[bytes]) -> BytesColumn:
    """Keys rewritten so that their byte order compares runs of digits as numbers.

    A run becomes ``0``, the length of the number without leading zeros (preceded by the length of
    that length, so that all lengths compare), and its digits. Keys that are equal then (``a1``,
    ``a01``) keep the order of their bytes: the key itself follows, after a zero byte.
    """

    def number(match: re.Match[bytes]) -> bytes:
        digits = match.group().lstrip(b"0")
        size = b"%d" % len(digits)
        return b"0%c%b%b" % (48 + len(size), size, digits)

    digits_of = re.compile(rb"[0-9]+")
    return BytesColumn.of([digits_of.sub(number, key) + b"\0" + key for key in keys])


def joined_keys(
    keys: Sequence[SortKeys], *, decreasing: Sequence[bool], has_texts: Sequence[bool], count: int
) -> SortKeys:
    """Combine the ``keys`` of ``count`` records into one sort key; the first one decides first.

    ``decreasing``: which keys are reversed; ranks never are. ``has_texts``: which keys may have
    texts in any record of the job; so it is the same for all records.
    """
    parts: list[BytesColumn | bytes] = []
    for each, turned, with_text in zip(keys, decreasing, has_texts, strict=True):
        if each.rank is not None:
            parts.append(BytesColumn.of_table(each.rank.reshape(-1, 1)))
        own: list[BytesColumn | bytes] = []
        if each.words is not None:
            own.append(BytesColumn.of_table(each.words.astype(">u8").view(np.uint8).reshape(-1, 8)))
        if with_text:
            own += [] if each.text is None else [_escaped(each.text)]
            own.append(text_end)
        parts += map(_turned, own) if turned else own
    return SortKeys(count, text=side_by_side(parts, count))


def _escaped(text: BytesColumn) -> BytesColumn:
    if not len(text.blob) or bool(text.blob.all()):
        return text
    return BytesColumn.of([row.replace(b"\0", b"\0\xff") for row in text.tolist()])


def _turned(part: BytesColumn | bytes) -> BytesColumn | bytes:
    """The same values, inverted so that they compare in reverse order."""
    if isinstance(part, bytes):
        return bytes(255 - byte for byte in part)
    return BytesColumn(part.offsets, ~part.blob)


class Splitters(Struct, frozen=True, eq=False):
    """Records at which partitions begin: their sort keys, and their input positions to break ties.

    Rows are in output order. ``shard`` and ``ordinal``: the position, shapes ``(count - 1,)``.
    """

    keys: SortKeys
    shard: Int64s
    ordinal: Int64s


class Partitioning(Struct, frozen=True, eq=False):
    """The partition of a record: a monotone function of its place in the output order.

    The number of a record's partition is the number of splitters that do not come after the record.
    Without splitters, the sort keys are hashes, which are split evenly by their top bits.

    ``weights``: the share of all records that each of several outputs may have; an output gets
    about the same share of the partitions. The outputs follow one another in the order. The sum of
    ``weights`` is 1.
    """

    count: int
    decreasing: bool = False
    splitters: Splitters | None = None
    weights: tuple[float, ...] = ()

    def assign(self, keys: SortKeys, shard: int | Int32s, ordinal: Int64s) -> Int32s:
        """The partition of each record, shape ``(n,)``. ``shard``: the shard of all records, or of
        each."""
        if self.count == 1:
            return np.zeros(keys.count, np.int32)
        if self.splitters is None:
            assert keys.words is not None, "only hashed keys split evenly"
            if self.weights:
                return self._within_outputs(keys, keys.words >> np.uint64(32))
            return self._even(keys.words >> np.uint64(32), np.uint64(self.count))
        splitters = self.splitters
        both = SortKeys.concat([splitters.keys, keys])
        position = np.concatenate([splitters.ordinal, ordinal])
        shards = np.concatenate([splitters.shard, np.broadcast_to(shard, (keys.count,))])
        by_position = np.lexsort((position, shards))  # stable: a splitter precedes its own record
        merged = by_position[order_rows(both.take(by_position), decreasing=self.decreasing)]
        partitions = np.empty(len(merged), np.int32)
        partitions[merged] = np.cumsum(merged < splitters.keys.count)
        return partitions[splitters.keys.count :]

    def _even(self, high: UInt64s, counts: UInt64s | np.uint64) -> Int32s:
        """The partition of each record, of ``counts`` partitions, by the top half of the hash."""
        partitions = ((high * counts) >> np.uint64(32)).astype(np.int32)
        return (counts.astype(np.int32) - 1 - partitions) if self.decreasing else partitions

    def _within_outputs(self, keys: SortKeys, high: UInt64s) -> Int32s:
        """Like ``_even``, but each output has partitions of its own."""
        assert keys.group is not None, "records were dealt out to outputs"
        left = max(self.count - len(self.weights), 0)
        counts = np.array([1 + int(left * weight) for weight in self.weights], np.uint64)
        firsts = np.cumsum(counts) - counts
        group = np.maximum(keys.group, 0)
        found = firsts[group].astype(np.int32) + self._even(high, counts[group])
        partitions: Int32s = np.minimum(found, np.int32(self.count - 1))
        return partitions


def pick_splitters(
    sample: SortKeys,
    shard: Int64s,
    ordinal: Int64s,
    weights_bytes: Int64s,
    count: int,
    *,
    decreasing: bool,
    between_keys: bool = False,
) -> Splitters:
    """The splitters that divide a sample's total weight into ``count`` about equal partitions.

    The sample's rows are in input order; ``shard`` and ``ordinal`` are their positions.
    ``between_keys``: rows with equal sort keys go to the same partition.
    """
    order = order_rows(sample, decreasing=decreasing)
    reached = np.cumsum(weights_bytes[order])
    total = int(reached[-1]) if len(reached) else 0
    targets = np.array([total * part // count for part in range(1, count)], np.int64)
    places = np.unique(np.searchsorted(reached, targets, side="right"))
    rows = order[places[places < len(order)]]
    if between_keys:  # position 0 is before all records with the sort key, wherever these are
        none = np.zeros(len(rows), np.int64)
        return Splitters(sample.take(rows), none, none)
    return Splitters(sample.take(rows), shard[rows], ordinal[rows])
