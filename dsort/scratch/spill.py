"""Spill files: the payload of a job's records, one file for each worker and partition.

Workers append to their files. Bytes that a dead worker appended stay in its files, but only ranges
in index files are read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from dsort.closing import ClosesOnExit
from dsort.data.columns import Int64s, offsets_of
from dsort.data.index import BLOCK_LENGTH, BLOCK_SHARD, BLOCK_START, BLOCK_WORKER
from dsort.data.table import Table
from dsort.errors import ObjectNotFoundError, ScratchLostError, StorageError
from dsort.scratch.directory import Scratch
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes, ShardLocations
from dsort.storage.directory.os_errors import StorageErrors
from dsort.storage.directory.random_reads import ALIGNMENT_BYTES


def spill_name(worker: int, partition: int) -> str:
    """The spill file of one worker and partition."""
    return f"spill-{worker}-{partition}"


class SpillFiles:
    """The spill files of one partition on one node, each opened when it is first needed."""

    def __init__(self, scratch: Scratch, partition: int) -> None:
        self._scratch = scratch
        self._partition = partition
        self._files: dict[tuple[int, bool], SpillFile] = {}

    def of(self, worker: int, *, direct: bool = False) -> SpillFile:
        """The file of a worker. ``direct``: past the page cache."""
        if (worker, direct) not in self._files:
            name = spill_name(worker, self._partition)
            fd = self._scratch.open_to_read(name)
            self._files[worker, direct] = SpillFile(fd, name, str(self._scratch), direct=direct)
        return self._files[worker, direct]

    def forget(self) -> None:
        """Release the pages of the files, whose bytes are in a buffer by now."""
        for file in self._files.values():
            file.forget()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


BLOCKS_IN_FLIGHT_MAX = 2


BLOCK_BYTES = 16 << 20
"""The most payload bytes in one answer. Two answers are in flight to a worker at a time, so the
answers take at most workers x 32 MiB of a node's share of Ray's object store, whatever the size of
the data."""


Payload = Sequence[NDArray[np.uint8]]
"""Bytes in pieces, one after the other."""


class SpillBlock(Struct, frozen=True):
    """Requests ranges of one partition's spill files, one after the other: ``sizes`` bytes from
    ``starts`` of the files of ``workers``. At most ``BLOCK_BYTES`` in total."""

    partition: int
    workers: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def answer(self, store: IndexStore) -> Payload:
        block = np.empty(sum(self.sizes), np.uint8)
        view, at = block.data, 0
        ranges = zip(self.workers, self.starts, self.sizes, strict=True)
        with contextlib.closing(SpillFiles(store.scratch, self.partition)) as files:
            for worker, start, size in ranges:
                files.of(worker).read(view[at : at + size], start, size)
                at += size
        return [block]


class RemoveSpill(Struct, frozen=True):
    """Requests to remove the spill of partitions whose records are written."""

    partitions: tuple[int, ...]
    workers: tuple[int, ...]

    def answer(self, store: IndexStore) -> None:
        for partition, worker in product(self.partitions, self.workers):
            store.scratch.unlink(spill_name(worker, partition))


class _Range(Struct, frozen=True):
    """``size`` bytes from ``start`` of a worker's file. Their destination is byte ``at`` of the
    buffer number ``buffer``."""

    worker: int
    start: int
    size: int
    buffer: int
    at: int


class _Batch(Struct):
    """Ranges that one node is requested to send together."""

    node: str
    ranges: list[_Range] = field(default_factory=list)
    size_bytes: int = 0

    def request(self, partition: int) -> SpillBlock:
        return SpillBlock(
            partition,
            tuple(each.worker for each in self.ranges),
            tuple(each.start for each in self.ranges),
            tuple(each.size for each in self.ranges),
        )

    def scatter(self, payload: Payload, buffers: Sequence[memoryview]) -> None:
        """Copy the answer to its places in ``buffers``."""
        pieces = iter(payload)
        source, used = memoryview(b""), 0
        for each in self.ranges:
            target = buffers[each.buffer]
            at, end = each.at, each.at + each.size
            while at < end:
                if used == len(source):
                    source, used = next(pieces).data, 0
                part = min(end - at, len(source) - used)
                target[at : at + part] = source[used : used + part]
                at += part
                used += part


class _Fetch(Struct, frozen=True):
    """Ranges on this node, and batches that were requested from other nodes."""

    here: list[_Range]
    batches: list[_Batch]
    blocks: Iterator[Payload]


# A partition is read as blocks, one for each shard with records in it, one after the other in shard
# order, as if they were one file. Blocks of this node are read from their files; blocks of other
# nodes arrive in large pieces.
class SpillReader:
    """Reads one partition's spill."""

    def __init__(
        self, nodes: ScratchNodes, locations: ShardLocations, partition: int, blocks: Table
    ) -> None:
        """``blocks``: all blocks of the partition, in reading order."""
        self._scratch_nodes = nodes
        self._partition = partition
        self._block_node = locations.node_of[blocks[BLOCK_SHARD]]
        self._names = locations.nodes
        self._worker: Int64s = blocks[BLOCK_WORKER]
        self._start: Int64s = blocks[BLOCK_START]
        self._offsets = offsets_of(blocks[BLOCK_LENGTH])
        self._files = SpillFiles(nodes.store.scratch, partition)
        self._ahead: _Fetch | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of all blocks together."""
        return int(self._offsets[-1])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        self.read_many([(buffer, offset)])

    @property
    def offsets(self) -> Int64s:
        """Where each block begins, and where the last one ends, as if the blocks followed one
        another."""
        return self._offsets

    def extents(self) -> SpillExtents | None:
        """The places of all blocks in the files of this node; None if other nodes have some."""
        here = [at for at, node in enumerate(self._names) if node == self._scratch_nodes.node]
        sizes = np.diff(self._offsets)
        if not np.isin(self._block_node[sizes > 0], here).all():
            return None
        return spill_extents(self._worker, self._start, sizes)

    def file(self, worker: int, *, direct: bool) -> SpillFile:
        """The file of a worker of this node. ``direct``: past the page cache."""
        with self._there(self._scratch_nodes.node):
            return self._files.of(worker, direct=direct)

    def mapped(self) -> tuple[dict[int, memoryview], Int64s]:
        """Map the files of this node, which has all blocks. Return read-only views by worker, and
        the shift of each block, shape ``(blocks,)``: its place in its file, minus its place if
        blocks followed one another."""
        sizes = np.diff(self._offsets)
        views = {}
        with self._there(self._scratch_nodes.node):
            # Not `np.unique`, which loads `numpy.ma` in each worker.
            for worker in sorted(set(self._worker[sizes > 0].tolist())):
                blocks = (self._worker == worker) & (sizes > 0)
                begin, end = self._start[blocks].min(), (self._start + sizes)[blocks].max()
                views[worker] = self._files.of(worker).mapping(int(begin), int(end))
        return views, self._start - self._offsets[:-1]

    def ask_ahead(self) -> None:
        """Request the first blocks of other nodes early, for a later ``read_many`` of all
        blocks."""
        self._ahead = self._fetch([(self.size_bytes, 0)])

    def read_many(self, wanted: Sequence[tuple[memoryview, int]]) -> None:
        """Fill each buffer in ``wanted`` from its offset."""
        sizes = [(len(buffer), offset) for buffer, offset in wanted]
        fetch, self._ahead = self._ahead, None
        if fetch is None or sizes != [(self.size_bytes, 0)]:
            fetch = self._fetch(sizes)
        buffers = [buffer for buffer, _ in wanted]
        with self._there(self._scratch_nodes.node):
            for each in fetch.here:
                target = buffers[each.buffer][each.at : each.at + each.size]
                self._files.of(each.worker).read(target, each.start, each.size)
        for batch in fetch.batches:
            with self._there(batch.node):
                batch.scatter(next(fetch.blocks), buffers)

    def forget(self) -> None:
        """Release the pages of the files, whose bytes are in a buffer by now."""
        self._files.forget()

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    @contextlib.contextmanager
    def _there(self, node: str) -> Iterator[None]:
        """If spill files are missing, raise the error for lost scratch, so that they are made
        again. Either they were removed after the partition was written (which the journal of a
        resumed attempt may not show), or a person has removed them."""
        try:
            yield
        except ObjectNotFoundError as error:
            raise ScratchLostError(node, error.message) from None

    def _fetch(self, wanted: Sequence[tuple[int, int]]) -> _Fetch:
        """Request the bytes for buffers with these (size, offset)."""
        here: list[_Range] = []
        batches: list[_Batch] = []
        last: dict[str, _Batch] = {}
        for number, (size, offset) in enumerate(wanted):
            for node, found in self._ranges(number, size, offset):
                if node == self._scratch_nodes.node:
                    here.append(found)
                    continue
                for at in range(0, found.size, BLOCK_BYTES):
                    piece = replace(
                        found,
                        start=found.start + at,
                        at=found.at + at,
                        size=min(BLOCK_BYTES, found.size - at),
                    )
                    if node not in last or last[node].size_bytes + piece.size > BLOCK_BYTES:
                        last[node] = _Batch(node)
                        batches.append(last[node])
                    last[node].ranges.append(piece)
                    last[node].size_bytes += piece.size
        asks = ((batch.node, batch.request(self._partition)) for batch in batches)
        blocks = self._scratch_nodes.ask_all(asks, in_flight_max=BLOCKS_IN_FLIGHT_MAX)
        return _Fetch(here, batches, blocks)

    def _ranges(self, buffer: int, size: int, offset: int) -> Iterator[tuple[str, _Range]]:
        """Yield (node, range) of the ranges that hold ``size`` bytes from ``offset`` on."""
        done = 0
        block = int(np.searchsorted(self._offsets, offset, side="right")) - 1
        while done < size:
            inside = offset + done - int(self._offsets[block])
            room = int(self._offsets[block + 1] - self._offsets[block]) - inside
            part = min(room, size - done)
            if part > 0:
                node = self._names[int(self._block_node[block])]
                start = int(self._start[block]) + inside
                yield node, _Range(int(self._worker[block]), start, part, buffer, done)
            done += part
            block += 1


class SpillExtents(Struct, frozen=True, eq=False):
    """Runs of bytes in spill files, shape ``(n,)``: bytes ``begin:end`` of the file of ``worker``
    go to ``place`` in a buffer of ``size_bytes``. ``begin`` and ``place`` are multiples of 4,096,
    and the buffer has room up to the next multiple behind ``end``.

    ``shift``, shape ``(blocks,)``: the place of each block in the buffer, minus its place if blocks
    followed one another.
    """

    worker: Int64s
    begin: Int64s
    end: Int64s
    place: Int64s
    size_bytes: int
    shift: Int64s

    def reads(self, step_bytes: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield (worker, offset in its file, place in the buffer, size, how many of these bytes
        must exist), at most ``step_bytes`` each."""
        columns = (each.tolist() for each in (self.worker, self.begin, self.end, self.place))
        for worker, begin, end, place in zip(*columns, strict=True):
            for at in range(begin, end, step_bytes):
                size = min(step_bytes, end + -end % ALIGNMENT_BYTES - at)
                yield worker, at, place + at - begin, size, min(size, end - at)


def spill_extents(worker: Int64s, start: Int64s, size_bytes: Int64s) -> SpillExtents:
    """The runs with the blocks of ``size_bytes`` from ``start`` of the files of ``worker``."""
    order = np.lexsort((start, worker))
    order = order[size_bytes[order] > 0]
    of, begin = worker[order], start[order] // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    end = start[order] + size_bytes[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (of[1:] != of[:-1]) | (begin[1:] > _aligned(end[:-1]))
    heads = np.flatnonzero(first)
    lasts = np.append(heads[1:], len(order)) - 1 if len(order) else heads
    lengths = _aligned(end[lasts]) - begin[heads]
    place = np.cumsum(lengths) - lengths
    run = np.cumsum(first) - 1
    shift = np.zeros(len(start), np.int64)
    in_order = np.cumsum(size_bytes) - size_bytes
    shift[order] = place[run] + start[order] - begin[heads][run] - in_order[order]
    total = int(lengths.sum())
    return SpillExtents(of[heads], begin[heads], end[lasts], place, total, shift)


def _aligned(size: Int64s) -> Int64s:
    return size + -size % ALIGNMENT_BYTES


class SpillFile(ClosesOnExit):
    """A spill file that is read once (see :class:`~dsort.storage.bucket.RandomReads`)."""

    def __init__(self, fd: int, name: str, where: str, *, direct: bool) -> None:
        """``fd``: the file, open for reading; it is closed with this object. ``direct``: read past
        the page cache, if the file system supports that."""
        self.fd = fd
        self._name = name
        self._where = where
        self._direct = -1
        if not direct:
            # With this advice, the kernel reads ahead twice as far.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            return
        # A second descriptor, because O_DIRECT is a property of the open file, not of a call.
        with contextlib.suppress(OSError):
            self._direct = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)

    @property
    def direct_fd(self) -> int:
        """The descriptor for direct reads; -1 if direct reads are impossible."""
        return self._direct

    def size_bytes(self) -> int:
        """The length of the file."""
        return os.fstat(self.fd).st_size

    def mapping(self, begin: int, end: int) -> memoryview:
        """The first ``end`` bytes of the file, mapped as long as the view exists. ``StorageError``
        unless the file has the bytes from ``begin`` to ``end``."""
        with StorageErrors(f"map {self._name}", self._where):
            have = self.size_bytes()
            # Reading a mapping behind the end of its file would kill the process (SIGBUS).
            if begin < 0 or have < end:
                raise StorageError(f"{self._name} in scratch ends at byte {have:,}")
            # From the beginning, as mappings begin at a page. Pages that are not read cost nothing.
            return memoryview(mmap.mmap(self.fd, end, prot=mmap.PROT_READ))

    def read(self, buffer: memoryview, offset: int, least_bytes: int) -> None:
        """Fill ``buffer`` from byte ``offset``. ``StorageError`` if there are fewer than
        ``least_bytes``."""
        done = 0
        with StorageErrors(f"read {self._name}", self._where):
            while done < least_bytes:
                # One call reads 2 GiB at most.
                got = self._read_some(buffer[done:], offset + done)
                if not got:
                    raise StorageError(f"{self._name} in scratch ends at byte {offset + done:,}")
                done += got

    def _read_some(self, buffer: memoryview, offset: int) -> int:
        # After a short read, the rest begins inside a block and goes through the page cache.
        if self._direct >= 0 and not offset % ALIGNMENT_BYTES:
            with contextlib.suppress(OSError):
                return os.preadv(self._direct, [buffer], offset)
        return os.preadv(self.fd, [buffer], offset)

    def forget(self) -> None:
        """Release the pages of the file, whose bytes are in a buffer by now."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file. Closing again is harmless."""
        fds, self.fd, self._direct = (self.fd, self._direct), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
