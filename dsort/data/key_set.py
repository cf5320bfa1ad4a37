"""A set of record keys in columns: millions of keys, looked up for a whole shard at once."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dsort.data.columns import Bools, BytesColumn, Int64s, UInt64s, cut_rows, equal_rows
from dsort.data.numbered import hash_column


class KeySet(Struct, frozen=True, eq=False):
    """Keys in the order of their hashes (XXH3, 64 bits). ``twins``: the keys whose hash another key
    of the set has, too."""

    hashes: UInt64s
    keys: BytesColumn
    twins: frozenset[bytes]

    @classmethod
    def of(cls, keys: BytesColumn) -> KeySet:
        """The set of ``keys``, in which a key may be repeated."""
        hashes = hash_column(keys)
        order = np.argsort(hashes, kind="stable")
        hashes, keys = hashes[order], keys.take(order)
        again = np.flatnonzero(hashes[1:] == hashes[:-1])
        differ = again[~equal_rows(keys.take(again), keys.take(again + 1))]
        twins = {keys[row] for row in [*differ.tolist(), *(differ + 1).tolist()]}
        return cls(hashes, keys, frozenset(twins))

    def __len__(self) -> int:
        return len(self.hashes)

    def has(self, keys: BytesColumn) -> Bools:
        """Whether each of ``keys`` is in the set; shape ``(n,)``. 0.8 µs a key in a set of a
        million."""
        found = np.zeros(len(keys), np.bool_)
        if not len(self):
            return found
        hashes = hash_column(keys)
        at: Int64s = np.minimum(np.searchsorted(self.hashes, hashes), len(self) - 1)
        rows = np.flatnonzero(self.hashes[at] == hashes)
        found[rows] = equal_rows(keys.take(rows), self.keys.take(at[rows]))
        if self.twins:
            for row in rows[~found[rows]].tolist():
                found[row] = keys[row] in self.twins
        return found


def lines_of(text: bytes) -> BytesColumn:
    """The lines of a text that are not empty, without their ends (LF or CR LF). A byte order mark
    before the first line is skipped."""
    blob = np.frombuffer(text.removeprefix(b"\xef\xbb\xbf"), np.uint8)
    ends = np.flatnonzero(blob == 0x0A)
    if len(blob) and (not len(ends) or ends[-1] != len(blob) - 1):
        ends = np.append(ends, len(blob))
    starts = np.append(0, ends + 1)[: len(ends)]
    with_cr = (ends > starts) & (blob[ends - 1] == 0x0D)
    stops = ends - with_cr
    some = np.flatnonzero(stops > starts)
    starts, lengths = starts[some], (stops - starts)[some]
    return cut_rows(blob, starts, lengths)
