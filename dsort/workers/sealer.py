"""The sealer: checks a staged output shard and makes it durable, before it gets its name. Workers
also give the objects in object stores their names, many at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import xxhash

from dsort.containers.codecs.base import Codec
from dsort.data.columns import Int64s
from dsort.data.index import CONTENT_HASH, ORDINAL, SHARD, STORED_BYTES
from dsort.data.table import Table
from dsort.errors import InvariantError, StorageError
from dsort.moves.payload_files import ForwardReader, PayloadBuffer, Readable
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.requests import OrderedRowsOf
from dsort.storage.bucket import Bucket, StagedObject
from dsort.storage.directory.files import sync_together
from dsort.storage.process_limits import is_no_thread
from dsort.storage.staging import give_name
from dsort.workers.tasks import PublishDone, PublishTask, SealDone, SealTask, StagedShard

WINDOW_BYTES = 8 << 20
ROWS_AT_ONCE_MAX = 65536
SYNCS_AT_ONCE_MAX = 8
NAMES_AT_ONCE_MAX = 16
"""Each name is a request that takes a store 50 to 200 ms."""


class Sealer:
    """Seals output shards for one job, in one worker."""

    def __init__(
        self,
        nodes: ScratchNodes,
        outputs: Bucket,
        buffer: PayloadBuffer,
        codecs: Sequence[Codec | None] = (None,),
        *,
        has_rows: bool = False,
    ) -> None:
        """``codecs``: one for each output. ``has_rows``: output shards are tables."""
        self._has_rows = has_rows
        self._codecs = codecs
        self._scratch_nodes = nodes
        self._outputs = outputs
        self._buffer = buffer

    def seal(self, task: SealTask) -> SealDone:
        """Check length, and checksum and content if the task requires it; then sync."""
        md5: dict[int, str] = {}
        nodes = dict(task.nodes)
        with ExitStack() as stack:
            opened = []
            for shard in task.shards:
                staged = stack.enter_context(self._outputs.stage(shard.token, name=shard.name))
                opened.append(staged)
                size = staged.size_bytes()
                if size != shard.shard_bytes:
                    raise InvariantError(
                        f"output shard {shard.ordinal} has {size} bytes, {shard.shard_bytes} were "
                        "planned"
                    )
                # Read back before the sync, while the pages are still in memory.
                if task.want_md5 or shard.reread:
                    md5[shard.ordinal] = self._md5(staged, shard)
                if shard.pieces:
                    self._check_content(shard, staged, nodes)
            if not sync_together(opened):
                _sync_each(opened)
        return SealDone(md5)

    def _md5(self, staged: StagedObject, shard: StagedShard) -> str:
        """The MD5 that a wids index needs. Checks the checksum of the bytes read for it."""
        state, md5 = xxhash.xxh3_64(), hashlib.md5(usedforsecurity=False)
        for window in self._buffer.windows(staged, 0, shard.shard_bytes, WINDOW_BYTES):
            state.update(window)
            md5.update(window)
        if state.hexdigest() != shard.checksum:
            raise StorageError(
                f"output shard {shard.ordinal} reads back other bytes than were written",
                hint="check the disk and its file system",
            )
        return md5.hexdigest()

    def _check_content(
        self, shard: StagedShard, staged: StagedObject, nodes: dict[int, str]
    ) -> None:
        """Compare the hash of each record with the hash from its extraction."""
        if self._has_rows:
            self._check_rows(shard, staged, nodes)
            return
        stored: Readable = staged
        codec = self._codecs[shard.output]
        if codec is not None:
            stored = ForwardReader(f"number {shard.ordinal}", codec, staged)
        at = shard.head_bytes
        for partition, start, stop in shard.pieces:
            rows = self._rows(nodes[partition], partition, start, stop)
            if CONTENT_HASH not in rows:
                raise InvariantError("the index has no content hashes to verify against")
            found = self._record_hashes(stored, at, rows[STORED_BYTES])
            wrong = np.flatnonzero(found != rows[CONTENT_HASH])
            if len(wrong):
                row = int(wrong[0])
                raise StorageError(
                    f"record {int(rows[ORDINAL][row])} of input shard number "
                    f"{int(rows[SHARD][row])} does not read back as it was read, in output shard "
                    f"number {shard.ordinal}",
                    hint="check memory and disks; nothing was published",
                )
            at += int(rows[STORED_BYTES].sum())

    def _check_rows(self, shard: StagedShard, staged: StagedObject, nodes: dict[int, str]) -> None:
        # Imported only where rows are moved, so that other jobs start faster.
        from dsort.workers.row_sink import check_staged_rows

        asks = (
            self._rows(nodes[partition], partition, start, stop)
            for partition, start, stop in shard.pieces
        )
        check_staged_rows(shard.ordinal, staged, asks, self._buffer.size_bytes)

    def _rows(self, node: str, partition: int, start: int, stop: int) -> Table:
        rows: Table = self._scratch_nodes.ask(node, OrderedRowsOf(partition, start, stop)).rows
        return rows

    def _record_hashes(
        self, staged: Readable, offset: int, stored_bytes: Int64s
    ) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        hashes = np.zeros(len(stored_bytes), np.uint64)
        row = 0
        while row < len(stored_bytes):
            span = np.cumsum(stored_bytes[row : row + ROWS_AT_ONCE_MAX])
            run = int(np.searchsorted(span, self._buffer.size_bytes, side="right"))
            if run == 0:
                hashes[row] = self._large_record_hash(staged, offset, int(stored_bytes[row]))
                offset += int(stored_bytes[row])
                row += 1
                continue
            window = self._buffer.view(int(span[run - 1]))
            staged.read_into(window, offset)
            ends = span[:run].tolist()
            starts = [0, *ends[:-1]]
            hashes[row : row + run] = np.fromiter(
                (xxhash.xxh3_64_intdigest(window[a:b]) for a, b in zip(starts, ends, strict=True)),
                np.uint64,
                run,
            )
            offset += ends[-1]
            row += run
        return hashes

    def _large_record_hash(self, staged: Readable, offset: int, size: int) -> int:
        state = xxhash.xxh3_64()
        for window in self._buffer.windows(staged, offset, size):
            state.update(window)
        return state.intdigest()


def _sync_each(opened: Sequence[StagedObject]) -> None:
    try:
        with ThreadPoolExecutor(SYNCS_AT_ONCE_MAX) as threads:
            for _ in threads.map(_sync, opened):
                pass
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        for each in opened:  # without threads, one after the other; some may be synced already
            _sync(each)


def _sync(staged: StagedObject) -> None:
    staged.sync()


def publish_all(task: PublishTask, outputs: Bucket) -> PublishDone:
    """Give each object its name. Its bucket retries; a second call for it changes nothing."""
    with ThreadPoolExecutor(NAMES_AT_ONCE_MAX) as threads:
        for _ in threads.map(partial(give_name, outputs), task.objects):
            pass
    return PublishDone(len(task.objects))
