"""Reading shards again: once, in order, through one buffer that all of them share.

A shard that fits in the buffer is read in one piece. Of a larger one the headers are read first,
then its bytes, window by window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from dsort.closing import Closing
from dsort.data.columns import Int64s, UInt64s
from dsort.data.index import Segments
from dsort.data.members import MemberTable
from dsort.stopping import StopFlag
from dsort.storage.bucket import Bucket, ReadObject
from dsort.workers.shard_bytes import PayloadBuffer, ShardBytes
from dsort.workers.slices import slices_of

__all__ = [
    "DIGEST_BYTES",
    "Checksums",
    "ShardReader",
    "digest_of",
    "joined_digests",
    "member_digests",
]

DIGEST_BYTES = 16
_GAP_BYTES_MAX = 1 << 20


class ShardReader:
    """Opens shards for reading, counts the bytes, and stops where the user asks for it."""

    def __init__(self, buffer_bytes: int, stop: StopFlag | None) -> None:
        self._buffer = PayloadBuffer(buffer_bytes)
        self._stop = stop
        self.bytes_read = 0

    @contextmanager
    def open(self, bucket: Bucket, name: str) -> Iterator[ShardBytes]:
        """The bytes of one shard; those of one shard at a time."""
        self.heed_stop()
        with bucket.open(name) as source:
            shard = ShardBytes(name, _Counted(source, self), self._buffer, mapped=False)
            yield shard
            shard.whole = None

    def heed_stop(self) -> None:
        """``JobStoppedError`` if the user asked to stop."""
        if self._stop is not None:
            self._stop.raise_if_requested()


class _Counted(Closing):
    """A source that tells its reader what is read from it."""

    rereads_cheaply = True  # a verification has no scratch to spool it to

    def __init__(self, source: ReadObject, reader: ShardReader) -> None:
        self.info = source.info
        self._source = source
        self._reader = reader

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._reader.heed_stop()
        self._source.read_into(buffer, offset)
        self._reader.bytes_read += len(buffer)

    def forget(self) -> None:
        """Nothing is forgotten: a result that has been verified is likely to be used next."""

    def mapping(self) -> memoryview | None:
        return None

    def close(self) -> None:
        self._source.close()


class Checksums:
    """XXH3-64 (and MD5, if asked for) of a whole shard, taken while its bytes come by in order."""

    def __init__(self, shard: ShardBytes, *, want_md5: bool) -> None:
        self._shard = shard
        self._xxh3 = xxhash.xxh3_64()
        self._md5 = hashlib.md5(usedforsecurity=False) if want_md5 else None
        self._at = 0

    def cover(self, view: memoryview, base: int) -> None:
        """``view`` begins at byte ``base``; what came by before is left out, gaps are read."""
        if base > self._at:
            self._read_gap(base)
        self._take(view[self._at - base :])

    def finish(self) -> tuple[str, str]:
        """(XXH3-64, MD5 or "") in hexadecimal digits; reads what has not come by."""
        self._read_gap(self._shard.size_bytes)
        return self._xxh3.hexdigest(), self._md5.hexdigest() if self._md5 else ""

    def _take(self, view: memoryview) -> None:
        self._xxh3.update(view)
        if self._md5:
            self._md5.update(view)
        self._at += len(view)

    def _read_gap(self, end: int) -> None:
        while self._at < end:
            size = min(end - self._at, _GAP_BYTES_MAX)
            self._take(memoryview(self._shard.at(self._at, size)))


def member_digests(
    shard: ShardBytes,
    members: MemberTable,
    rows: Int64s | None = None,
    *,
    seen: Callable[[memoryview, int], None] = lambda view, base: None,
) -> UInt64s:
    """XXH3-128 of the bytes that each of ``rows`` (None: every member) takes in an output shard:
    headers, payload and padding; shape ``(n, 2)``. ``seen`` is called with what was read, and the
    byte it begins at."""
    rows = np.arange(len(members), dtype=np.int64) if rows is None else rows
    ranges = Segments(
        np.arange(len(rows) + 1, dtype=np.int64),
        members.range_start[rows],
        members.range_length[rows],
        np.zeros(0, np.uint8),
    )
    heads = [members.literals.get(row, b"") for row in rows.tolist()] if members.literals else []
    found: list[bytes] = []
    for window in shard.windows(ranges):
        if window.stop == window.row:
            state = xxhash.xxh3_128(heads[window.row] if heads else b"")
            at = int(ranges.start[window.row])
            for piece in shard.stream(ranges, window.row):
                seen(piece, at)
                state.update(piece)
                at += len(piece)
            found.append(state.digest())
            continue
        seen(window.view, window.base)
        slices = slices_of(window.view, ranges.run(window.row, window.stop), window.base)
        if heads:
            pairs = zip(heads[window.row : window.stop], slices, strict=True)
            found.extend(_digest_behind(head, piece) for head, piece in pairs)
        else:
            found.extend(map(xxhash.xxh3_128_digest, slices))
    return _columns(found)


def joined_digests(digests: UInt64s, offsets: Int64s) -> UInt64s:
    """One digest for each run ``digests[offsets[i]:offsets[i + 1]]``, shape ``(n, 2)``."""
    blob = digests.tobytes()
    bounds = (offsets * DIGEST_BYTES).tolist()
    return _columns([xxhash.xxh3_128_digest(blob[a:b]) for a, b in pairwise(bounds)])


def digest_of(digests: UInt64s) -> tuple[int, int]:
    """What ``joined_digests`` would give for all of ``digests`` as one run."""
    high, low = joined_digests(digests, np.array([0, len(digests)]))[0].tolist()
    return high, low


def _digest_behind(head: bytes, piece: memoryview) -> bytes:
    if not head:
        return bytes(xxhash.xxh3_128_digest(piece))
    state = xxhash.xxh3_128(head)
    state.update(piece)
    return bytes(state.digest())


def _columns(digests: list[bytes]) -> UInt64s:
    whole: NDArray[np.uint64] = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)
    return whole.reshape(-1, 2)
