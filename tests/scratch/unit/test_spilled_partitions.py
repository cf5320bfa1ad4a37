"""Partitions come out of spill files whole, one while another is written, however blocks lie."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dsort.errors import InvariantError, ScratchLostError, StorageError
from tests.support.internals import (
    BLOCK_LENGTH,
    BLOCK_SHARD,
    BLOCK_START,
    BLOCK_WORKER,
    SHARD,
    BytesColumn,
    IndexStore,
    NoExchange,
    OrderedRows,
    PayloadBuffer,
    RangeBuffer,
    RangeQueue,
    Scratch,
    ScratchNodes,
    Segments,
    ShardLocations,
    SortKeys,
    SpilledPayload,
    SpillFile,
    SpillReader,
    Table,
    narrowed,
    record_index,
    spill_extents,
    spill_name,
)
from tests.support.refusals import raises

PAGE = 4096
NODE = "here"


@dataclass
class Node:
    """A node with spill files of partitions, of which each block is one record."""

    nodes: ScratchNodes
    queue: RangeQueue
    buffer: PayloadBuffer
    room: RangeBuffer

    def spill(self, partition: int, sizes: list[int], seed: int) -> tuple[list[bytes], OrderedRows]:
        """Blocks of ``sizes``, dealt to two workers, with bytes between them that do not count;
        the records in output order, which is another one, and their columns."""
        rng = random.Random(seed)
        files: dict[int, bytearray] = {3: bytearray(), 8: bytearray()}
        blocks, worker, start = [], [], []
        for size in sizes:
            mine = rng.choice(sorted(files))
            files[mine] += rng.randbytes(rng.choice([0, 0, 1, 3 * PAGE]))
            worker.append(mine)
            start.append(len(files[mine]))
            blocks.append(rng.randbytes(size))
            files[mine] += blocks[-1]
        for mine, data in files.items():
            self.nodes.store.scratch.write(spill_name(mine, partition), bytes(data))
        order = rng.sample(range(len(sizes)), len(sizes))
        length = np.array(sizes, np.int64)
        places = np.cumsum(length) - length
        segments = Segments(
            np.arange(len(sizes) + 1), places[order], length[order], np.zeros(0, np.uint8)
        )
        zeros = np.zeros(len(sizes), np.int32)
        rows = record_index(
            ordinal=zeros.astype(np.int64),
            keys=BytesColumn.empty(len(sizes)),
            sort=SortKeys(len(sizes)),
            members=zeros,
            payload_bytes=length[order],
            stored_bytes=length[order],
            ranges=segments,
        )
        columns = {
            BLOCK_SHARD.text: np.arange(len(sizes), dtype=np.int64),
            BLOCK_WORKER.text: np.array(worker, np.int64),
            BLOCK_START.text: np.array(start, np.int64),
            BLOCK_LENGTH.text: length,
        }
        rows = rows.with_(SHARD, np.array(order, np.int32))
        return [blocks[at] for at in order], OrderedRows(rows, Table(len(sizes), columns))

    def payload(
        self,
        partition: int,
        rows: OrderedRows,
        *,
        direct: bool,
        span: tuple[int, int] | None = None,
    ) -> SpilledPayload:
        count = len(rows.rows)
        locations = ShardLocations(
            (NODE,), np.zeros(count, np.int32), np.arange(count, dtype=np.int32)
        )
        reader = SpillReader(self.nodes, locations, partition, rows.blocks)
        return SpilledPayload(
            partition,
            rows,
            span or (0, count),
            reader,
            self.buffer,
            self.room,
            self.queue,
            self.nodes.store.scratch,
            forgets=direct,
            direct=direct,
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        queue, buffer = RangeQueue(2), PayloadBuffer(64 * PAGE)
        nodes = ScratchNodes(NODE, IndexStore(scratch), NoExchange())
        yield Node(nodes, queue, buffer, RangeBuffer(buffer, PAGE))
        queue.close()


def records_of(payload: SpilledPayload, count: int) -> bytes:
    return b"".join(bytes(each) for some in payload.slices(0, count) for each in some)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("longest", [40, 300, 3 * PAGE])
def test_records_are_those_that_were_spilled_while_the_next_are_read(
    node: Node, longest: int, direct: bool
) -> None:
    rng = random.Random(longest)
    ahead: SpilledPayload | None = None
    spilled = []
    for partition in range(5):
        sizes = [rng.randint(1, longest) for _ in range(rng.randint(1, 12))]
        spilled.append(node.spill(partition, [*sizes, 0], partition))
    for partition, (blocks, rows) in enumerate(spilled):
        payload = ahead or node.payload(partition, rows, direct=direct)
        payload.load()
        ahead = None
        if partition + 1 < len(spilled):
            ahead = node.payload(partition + 1, spilled[partition + 1][1], direct=direct)
            ahead.ask_ahead()
        assert records_of(payload, len(blocks)) == b"".join(blocks)
        payload.close()
    assert node.room.has_room(node.room.size_bytes), "all room was given back"


def test_a_partition_that_leaves_no_room_is_followed_by_the_next(node: Node) -> None:
    large, large_rows = node.spill(0, [20 * PAGE, 20 * PAGE], 1)
    small, small_rows = node.spill(1, [30 * PAGE], 2)
    first = node.payload(0, large_rows, direct=True)
    first.load()
    second = node.payload(1, small_rows, direct=True)
    second.ask_ahead()
    assert records_of(first, 2) == b"".join(large)
    first.close()
    second.load()
    assert records_of(second, 1) == small[0]
    second.close()


def test_a_partition_that_is_larger_than_the_buffer_is_read_alone(node: Node) -> None:
    sizes = [40 * PAGE, 40 * PAGE, 70 * PAGE]
    blocks, rows = node.spill(0, sizes, 3)
    payload = node.payload(0, rows, direct=True)
    payload.load()
    following, following_rows = node.spill(1, [100], 4)
    ahead = node.payload(1, following_rows, direct=True)
    ahead.ask_ahead()
    assert records_of(payload, 3) == b"".join(blocks)
    payload.close()
    ahead.load()
    assert records_of(ahead, 1) == following[0]
    ahead.close()


def test_a_partition_in_the_page_cache_takes_no_room_in_the_buffer(node: Node) -> None:
    sizes = [40 * PAGE, 1, 70 * PAGE]
    blocks, rows = node.spill(0, sizes, 3)
    node.room.take(node.room.size_bytes)
    payload = node.payload(0, rows, direct=False)
    payload.load()
    assert records_of(payload, 3) == b"".join(blocks)
    payload.close()


def test_a_partition_without_bytes_needs_no_room(node: Node) -> None:
    _, rows = node.spill(0, [0], 3)
    node.room.take(node.room.size_bytes)
    payload = node.payload(0, rows, direct=False)
    payload.load()
    assert records_of(payload, 1) == b""
    payload.close()


def test_a_file_that_is_too_short_to_map_is_named(node: Node) -> None:
    _, rows = node.spill(0, [PAGE] * 6, 5)
    node.nodes.store.scratch.write(spill_name(8, 0), bytes(5))
    payload = node.payload(0, rows, direct=False)
    with raises(StorageError, "spill-8-0", "byte 5"):
        payload.load()
    payload.close()


@pytest.mark.parametrize("direct", [False, True])
def test_files_that_are_gone_are_lost_scratch_and_leave_the_buffer_free(
    node: Node, direct: bool
) -> None:
    _, rows = node.spill(0, [PAGE] * 6, 5)
    for worker in (3, 8):
        node.nodes.store.scratch.unlink(spill_name(worker, 0))
    payload = node.payload(0, rows, direct=direct)
    with pytest.raises(ScratchLostError):
        payload.load()
    payload.close()
    assert node.room.take(node.room.size_bytes) is not None


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_was_cut_is_named(node: Node, direct: bool) -> None:
    scratch = node.nodes.store.scratch
    scratch.write("spill-3-0", bytes(PAGE + 5))
    room = node.room.take(2 * PAGE)
    with SpillFile(scratch.open_to_read("spill-3-0"), "spill-3-0", "x", direct=direct) as file:
        file.read(room, 0, PAGE + 5)
        with raises(StorageError, "spill-3-0", "byte 4,101"):
            file.read(room, 0, PAGE + 6)


@pytest.mark.parametrize("direct", [False, True])
def test_who_shares_a_partition_reads_his_own_long_records_and_no_others(
    node: Node, direct: bool
) -> None:
    sizes = [random.Random(at).randint(12 * PAGE, 12 * PAGE + 999) for at in range(5)]
    blocks, rows = node.spill(0, [*sizes[:3], 0, *sizes[3:]], 6)
    for span in ((0, 3), (3, 6), (5, 5)):
        own = narrowed(rows, *span)
        assert int(own.blocks[BLOCK_LENGTH].sum()) == sum(map(len, blocks[slice(*span)]))
        payload = node.payload(0, own, direct=direct, span=span)
        payload.load()
        found = b"".join(bytes(each) for some in payload.slices(*span) for each in some)
        assert found == b"".join(blocks[slice(*span)])
        with raises(InvariantError, "partition 0"):
            next(payload.slices(0, 6))
        payload.close()


def test_short_records_are_read_with_all_that_lies_between_them(node: Node) -> None:
    _, short = node.spill(0, [PAGE] * 6, 1)
    assert narrowed(short, 0, 2) is short
    _, long = node.spill(1, [9 * PAGE] * 6, 1)
    assert narrowed(long, 0, 6) is long


def test_blocks_of_one_worker_that_lie_side_by_side_are_one_read() -> None:
    worker = np.array([7, 9, 7, 9], np.int64)
    size_bytes = np.array([5000, 100, 3000, 100], np.int64)
    start = np.array([0, 0, 5000, 9 * PAGE], np.int64)
    extents = spill_extents(worker, start, size_bytes)
    assert list(extents.reads(1 << 20)) == [
        (7, 0, 0, 2 * PAGE, 8000),
        (9, 0, 2 * PAGE, PAGE, 100),
        (9, 9 * PAGE, 3 * PAGE, PAGE, 100),
    ]
