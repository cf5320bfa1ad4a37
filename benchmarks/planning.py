"""Planning alone: from the index files of synthetic shards to output shards, in one process.

Run as ``python -m benchmarks.planning --rows 10000000``; it prints one JSON object. The index files
are made first, in a temporary directory, as extractors write them. The time and the peak cover the
work that follows: looking for duplicate keys, ordering every partition, cutting.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.memory import own_bytes
from dsort.containers.registry import container_of
from dsort.data.columns import BytesColumn, Int64s, UInt64s
from dsort.data.hashes import shard_seed, shuffle_words
from dsort.data.index import KEY_HASH, SortKeys, record_index
from dsort.data.segments import Segments
from dsort.order.algorithms import Shuffle
from dsort.order.cut import CutRule, OpenShard, Piece
from dsort.order.mixing_counts import MixingTally
from dsort.order.output_shards import merge_pieces
from dsort.scratch.directory import Scratch
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import NoExchange, ScratchNodes, ShardLocations
from dsort.workers.orderer import Orderer
from dsort.workers.tasks import CutTask, DuplicatesTask, OrderTask, Search

__all__ = ["make_index", "plan_index"]

RECORDS_PER_SHARD = 10_000
SHARD_BYTES = 64 * 1024**2
PARTITIONS = 4
PARTS = 4
HOME, WHERE = "here", "where"


def make_index(store: IndexStore, rows: int, seed: int) -> int:
    """Write the index of ``rows`` records of about 100 KB. Returns the number of their shards."""
    stream = np.random.Generator(np.random.SFC64(seed))
    shards = -(-rows // RECORDS_PER_SHARD)
    for shard in range(shards):
        count = min(RECORDS_PER_SHARD, rows - shard * RECORDS_PER_SHARD)
        _write_shard(store, shard, count, stream)
    return shards


def _write_shard(store: IndexStore, shard: int, count: int, stream: np.random.Generator) -> None:
    key_hash: UInt64s = stream.integers(0, 1 << 64, count, np.uint64)
    stored: Int64s = stream.integers(178, 218, count, np.int64) * 512
    words = shuffle_words(key_hash, shard_seed("1", f"shard-{shard:06d}.tar"))
    partition = ((words >> np.uint64(32)) * np.uint64(PARTITIONS)) >> np.uint64(32)
    one_each = np.arange(count + 1, dtype=np.int64)
    digits = np.frombuffer(b"%09d" * count % tuple(range(count)), np.uint8)
    index = record_index(
        ordinal=one_each[:-1],
        keys=BytesColumn(one_each * 9, digits),
        sort=SortKeys(count, words=words),
        members=np.full(count, 2, np.int32),
        payload_bytes=stored - 1024,
        stored_bytes=stored,
        ranges=Segments(one_each, np.cumsum(stored) - stored, stored, np.zeros(0, np.uint8)),
    )
    index = index.with_(KEY_HASH, key_hash)
    order = np.argsort(partition, kind="stable")
    offsets = np.searchsorted(partition[order], np.arange(PARTITIONS + 1)).astype(np.int64)
    store.write_shard("index", shard, index.take(order), offsets, worker=0)


def plan_index(store: IndexStore, shards: int, shard_bytes: int) -> int:
    """Plan a shuffle of all records into shards of ``shard_bytes``. Returns the number of output
    shards."""
    store.write_file(
        WHERE,
        ShardLocations(
            (HOME,), np.zeros(shards, np.int32), np.arange(shards, dtype=np.int32)
        ).dump(),
    )
    nodes = ScratchNodes(HOME, store, NoExchange())
    orderer = Orderer(nodes, Shuffle(seed="1"), container_of(".tar"), spill=False)
    bounds = [part * (1 << 64) // PARTS for part in range(PARTS)] + [0]
    for part in range(PARTS):
        orderer.duplicates(
            DuplicatesTask(part, bounds[part], bounds[part + 1], WHERE, "index", Search("keys"))
        )
    pieces: list[Piece] = []
    state, mixing = OpenShard(), MixingTally(shards)
    for partition in range(PARTITIONS):
        orderer.order(OrderTask(partition, WHERE))
    for partition in range(PARTITIONS):
        rule = CutRule(size_bytes=shard_bytes)
        cut = orderer.cut(CutTask(partition, HOME, rule, state, mixing.grid(state)))
        pieces.extend(cut.pieces)
        mixing.add(cut.mixing)
        state = cut.state
    return len(merge_pieces(pieces))


def main() -> None:
    """Make the index, plan, print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsort-bench-") as directory:
        store = IndexStore(Scratch(Path(directory)))
        shards = make_index(store, arguments.rows, arguments.seed)
        # Reset the peak, so that it does not include the making of the index.
        Path("/proc/self/clear_refs").write_text("5")
        before_bytes = own_bytes("VmRSS")
        start = time.perf_counter()
        outputs = plan_index(store, shards, SHARD_BYTES)
        seconds = time.perf_counter() - start
    report = {
        "rows": arguments.rows,
        "shards": outputs,
        "plan_seconds": seconds,
        "before_bytes": before_bytes,
        "peak_bytes": own_bytes("VmHWM"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
