"""The creator writes output shards, still without names, from the payload of their pieces. The
sealer checks a staged shard and makes it durable, before it gets its name."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cached_property, partial
from importlib import import_module
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import xxhash

from dsort.containers.base import Container
from dsort.data.columns import Int64s
from dsort.data.hashes import FileDigests
from dsort.data.index import STORED_BYTES
from dsort.data.table import Table
from dsort.errors import InvariantError, StorageError
from dsort.moves.base import Move, RowRun, WorkerParts
from dsort.moves.payload_files import ForwardReader, Readable
from dsort.scratch.logs import CreatedLog
from dsort.scratch.requests import LineageOf, OrderedRowsOf, StoredBytesOf
from dsort.storage.bucket import Bucket, StagedObject
from dsort.storage.directory.files import sync_together
from dsort.storage.process_limits import is_no_thread
from dsort.storage.routed import bucket_for
from dsort.storage.small_objects import give_name
from dsort.workers.companions import (
    LINEAGE,
    MemberWatch,
    lineage_bytes,
    staged_sidecar,
    write_sidecars,
)
from dsort.workers.encoder import ENCODING_BYTES, EncoderThreads, NoEncoder
from dsort.workers.sinks import (
    ContentCheck,
    CountingSink,
    FileSink,
    FinishedShard,
    RawSink,
    Sink,
    StagedFile,
    Writeback,
)
from dsort.workers.tasks import (
    CreateDone,
    CreateTask,
    MeasureDone,
    MeasureTask,
    OutputPiece,
    PublishDone,
    PublishTask,
    SealDone,
    SealTask,
    StagedShard,
    WorkerSetup,
)

if TYPE_CHECKING:
    from dsort.workers.row_sink import RowsForm

PAST_CACHE_BYTES_MIN = 1 << 20
"""Shorter output shards go through the page cache, because the kernel writes many of them to the
disk together."""
LINES = "lines"
"""The kind of sidecar that needs only the sizes of records. Other kinds need a scan of the
shard."""
AnySink = TypeVar("AnySink", bound=Sink)


class Creator:
    """Writes output shards for one job, in one worker."""

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        outputs: Bucket,
        parts: WorkerParts,
    ) -> None:
        self._setup, self._pipeline = setup, setup.pipeline
        self._outputs, self._nodes = outputs, parts.nodes
        self._log = CreatedLog(parts.nodes.store.scratch, worker)
        self._writeback = Writeback()
        self._encoders = [
            EncoderThreads(each.codec, each.level) if each.codec else NoEncoder()
            for each in setup.pipeline.outputs
        ]
        self._move = _move_of(setup.movement.way.name, parts)

    def close(self) -> None:
        """Wait for writes to the disk that have begun, and release payload."""
        for threads in self._encoders:
            threads.close()
        self._writeback.close()
        self._move.close()

    def create(self, task: CreateTask) -> CreateDone:
        """Write the output shards of a task, one after the other."""
        finished: list[FinishedShard] = []
        carrier = self._pipeline.carrier.with_schema(task.schema)
        try:
            with closing(self._filled(task, partial(self._sink, task, carrier))) as filled:
                for piece, sink in filled:
                    sink.file.end()
                    self._write_sidecars(task, piece, sink.file)
                    receipt = sink.file.finish()
                    finished.append(FinishedShard(piece.ordinal, sink.file, receipt, self._log))
                    receipt.add_done_callback(finished[-1].record)
            shards = tuple(shard.done() for shard in finished)
            # Else some small files would stay open, and unwritten, until the next task.
            self._writeback.close_small()
        finally:
            self._log.flush()
        return CreateDone(
            shards=shards,
            records=sum(piece.row_stop - piece.row_start for piece in task.pieces),
            bytes_written=sum(piece.stored_bytes for piece in task.pieces),
        )

    def measure(self, task: MeasureTask) -> MeasureDone:
        """Encode the runs of a task, and keep only the length of the result."""
        with closing(
            self._filled(task, lambda piece: CountingSink(self._encoders[piece.output].encoder()))
        ) as filled:
            return MeasureDone(tuple(sink.size_bytes for _, sink in filled))

    def _filled(
        self, task: CreateTask | MeasureTask, new_sink: Callable[[OutputPiece], AnySink]
    ) -> Generator[tuple[OutputPiece, AnySink], None, None]:
        """Yield the last piece of each shard, and the sink with all its pieces. ``new_sink`` makes
        a sink for the shard that begins with a piece."""
        runs = [
            RowRun(piece.partition, piece.row_start, piece.row_stop)
            for piece in task.pieces
            if piece.partition >= 0
        ]
        payload: Any = None
        partition = -1  # of the payload
        with closing(self._move.payloads(runs, dict(task.nodes), task.locations)) as payloads:
            for _, pieces in groupby(task.pieces, attrgetter("ordinal")):
                first = next(pieces)
                sink = new_sink(first)
                try:
                    for piece in chain((first,), pieces):
                        # A shard without records has one piece, of partition -1.
                        if piece.partition not in (-1, partition):
                            payload, partition = next(payloads), piece.partition
                        sink.write_piece(piece, payload)
                    yield piece, sink
                # Also if the consumer fails, or stops: it closes this generator at the yield.
                except BaseException:
                    sink.abandon()
                    raise

    def _sink(self, task: CreateTask, carrier: Container, piece: OutputPiece) -> FileSink:
        """Make the sink for the output shard that begins with a piece. ``carrier``: the container
        that its records travel in."""
        form = self._pipeline.outputs[piece.output]
        watched = not (carrier.is_columnar or form.is_late) and {*task.sidecars} - {LINES, LINEAGE}
        watch = MemberWatch(carrier, piece.name, piece.shard_bytes) if watched else None
        file = self._staged_file(task, piece, watch)
        # The sealer reads staged files back; unfinished uploads can only be checked as they are
        # written.
        checks = task.check_content and bucket_for(self._outputs, piece.name).seals_on_finish
        if carrier.is_columnar:
            return self._row_sink(file, piece, checks=checks)
        if form.is_late:
            from dsort.workers.converted_sink import ConvertedSink  # few jobs convert like this

            schema = task.late_schemas[piece.output] if task.late_schemas else ""
            return ConvertedSink(file, piece, self._setup, schema, self._nodes.store)
        out = self._raw_sink(file, carrier, task.schema, checks=checks)
        if (head := carrier.head) is not None:
            out.write_head(head.of(self._record_sizes(task, piece.ordinal)))
        return out

    def _raw_sink(
        self, file: StagedFile, carrier: Container, schema: str, *, checks: bool
    ) -> RawSink:
        if self._setup.movement.way.moves_payload:
            return RawSink(file, carrier, checks=checks)
        from dsort.workers.view import ViewSink  # loads PyArrow

        return ViewSink(file, carrier, schema)

    @cached_property
    def _rows(self) -> RowsForm:
        from dsort.workers.row_sink import RowsForm

        return RowsForm(self._nodes.store)

    def _row_sink(self, file: StagedFile, piece: OutputPiece, *, checks: bool) -> FileSink:
        # Imported only where rows are moved, so that other jobs start faster.
        from dsort.containers.columnar.container import Columnar
        from dsort.workers.row_sink import RowSink

        container = self._pipeline.outputs[piece.output].container
        assert isinstance(container, Columnar)
        return RowSink(file, piece.ordinal, container, self._rows, checks=checks)

    def _staged_file(
        self, task: CreateTask, piece: OutputPiece, watch: MemberWatch | None
    ) -> StagedFile:
        expected = self._expected_bytes(piece)
        staged = self._outputs.stage(piece.token, name=piece.name, size_bytes=expected)
        return StagedFile(
            staged,
            self._writeback,
            digests=task.digests,
            seals_on_finish=bucket_for(self._outputs, piece.name).seals_on_finish,
            past_cache=self._move.skips_cache and piece.shard_bytes >= PAST_CACHE_BYTES_MIN,
            encoder=self._encoders[piece.output].encoder(),
            watch=watch,
        )

    def _write_sidecars(self, task: CreateTask, piece: OutputPiece, file: StagedFile) -> None:
        """Write sidecars before the shard is finished: a resumed job that finds the shard needs
        them."""
        if LINES in task.sidecars:
            from dsort.sidecars.shard_index import lines_sidecar

            place = staged_sidecar(task.sidecars_prefix, piece.ordinal, LINES)
            self._outputs.write(place, lines_sidecar(self._record_sizes(task, piece.ordinal)))
        if LINEAGE in task.sidecars:
            place = staged_sidecar(task.sidecars_prefix, piece.ordinal, LINEAGE)
            self._outputs.write(place, lineage_bytes(self._asked(task, piece.ordinal, LineageOf)))
        if file.watch is not None:
            write_sidecars(
                self._outputs,
                task.sidecars_prefix,
                [kind for kind in task.sidecars if kind not in (LINES, LINEAGE)],
                ordinal=piece.ordinal,
                shard=piece.name,
                members=file.watch.members(),
                file_bytes=file.written_bytes,
            )

    def _record_sizes(self, task: CreateTask, ordinal: int) -> Int64s:
        """The stored bytes of each record of an output shard, over all its partitions."""
        return np.concatenate([np.zeros(0, np.int64), *self._asked(task, ordinal, StoredBytesOf)])

    def _asked(
        self, task: CreateTask, ordinal: int, request: type[StoredBytesOf | LineageOf]
    ) -> list[Any]:
        """The answers to ``request`` for all pieces of an output shard of ``task``."""
        nodes = dict(task.nodes)
        return [
            self._nodes.ask(
                nodes[piece.partition], request(piece.partition, piece.row_start, piece.row_stop)
            )
            for piece in task.pieces
            if piece.ordinal == ordinal and piece.partition >= 0
        ]

    def _expected_bytes(self, piece: OutputPiece) -> int | None:
        """The length of the file of a piece's shard, or an upper bound; None: unknown."""
        if piece.shard_bytes < 0:
            return None
        if self._pipeline.outputs[piece.output].codec is None:
            return piece.shard_bytes
        # The bound is for uploads, which choose the size of their parts by it. A file would reserve
        # too much room.
        longest = piece.shard_bytes + piece.shard_bytes // 100 + ENCODING_BYTES
        return longest if bucket_for(self._outputs, piece.name).seals_on_finish else None


MOVE_OF_WAY: Final = {
    "map": "dsort.moves.map:MapMove",
    "range": "dsort.moves.range:RangeMove",
    "spill": "dsort.moves.spill:SpillMove",
    "view": "dsort.workers.view:ViewMove",
}
"""The module and the class of each move, by the names of the ways in
``dsort.pipeline.movement``."""
MOVE_OF_ROWS: Final = "dsort.moves.spilled_rows:RowMove"


def _move_of(way: str, parts: WorkerParts) -> Move:
    """The move of ``way`` with which the worker with ``parts`` reads payload back. A job imports
    only the move that it needs."""
    place = MOVE_OF_ROWS if parts.carrier.is_columnar else MOVE_OF_WAY[way]
    module, _, name = place.partition(":")
    move: Move = getattr(import_module(module), name)(parts)
    return move


WINDOW_BYTES = 8 << 20
SYNCS_AT_ONCE_MAX = 8
NAMES_AT_ONCE_MAX = 16
"""Each name is a request that takes a store 50 to 200 ms."""


class Sealer:
    """Seals output shards for one job, in one worker."""

    def __init__(
        self,
        setup: WorkerSetup,
        outputs: Bucket,
        parts: WorkerParts,
    ) -> None:
        self._pipeline, self._scratch_nodes = setup.pipeline, parts.nodes
        self._outputs, self._buffer = outputs, parts.buffer

    def seal(self, task: SealTask) -> SealDone:
        """Check length, and checksum and content if the task requires it; then sync."""
        digests: dict[int, str] = {}
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
                if task.digests or shard.reread:
                    digests[shard.ordinal] = self._digests(staged, shard, task.digests)
                if shard.pieces:
                    self._check_content(shard, staged, nodes)
            if not sync_together(opened):
                _sync_each(opened)
        return SealDone(digests)

    def _digests(self, staged: StagedObject, shard: StagedShard, wanted: Sequence[str]) -> str:
        """The ``wanted`` digests, such as the MD5 of a wids index. The bytes that are read for them
        are compared with the checksum of the shard, too."""
        state, digests = xxhash.xxh3_64(), FileDigests(wanted)
        for window in self._buffer.windows(staged, 0, shard.shard_bytes, WINDOW_BYTES):
            state.update(window)
            digests.update(window)
        if state.hexdigest() != shard.checksum:
            raise StorageError(
                f"output shard {shard.ordinal} has other bytes than were written",
                hint="check the disk and its file system",
            )
        return digests.text()

    def _check_content(
        self, shard: StagedShard, staged: StagedObject, nodes: dict[int, str]
    ) -> None:
        """Compare the hash of each record with the hash from its extraction."""
        if self._pipeline.carrier.is_columnar:
            self._check_rows(shard, staged, nodes)
            return
        stored: Readable = staged
        codec = self._pipeline.outputs[shard.output].codec
        if codec is not None:
            stored = ForwardReader(f"number {shard.ordinal}", codec, staged)
        at = shard.head_bytes
        for partition, start, stop in shard.pieces:
            rows = self._rows(nodes[partition], partition, start, stop)
            check, size_bytes = ContentCheck(rows, shard.ordinal), int(rows[STORED_BYTES].sum())
            for window in self._buffer.windows(stored, at, size_bytes, WINDOW_BYTES):
                check.feed(window)
            at += size_bytes

    def _check_rows(self, shard: StagedShard, staged: StagedObject, nodes: dict[int, str]) -> None:
        # Imported only where rows are moved, so that other jobs start faster.
        from dsort.workers.row_sink import check_staged_rows

        asks = (
            self._rows(nodes[partition], partition, start, stop)
            for partition, start, stop in shard.pieces
        )
        check_staged_rows(shard.ordinal, staged, asks, self._buffer.size_bytes)

    def _rows(self, node: str, partition: int, start: int, stop: int) -> Table:
        return self._scratch_nodes.ask(node, OrderedRowsOf(partition, start, stop)).rows


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
    """Give each object its name. The bucket repeats failed requests. Giving an object its name
    twice changes nothing."""
    with ThreadPoolExecutor(NAMES_AT_ONCE_MAX) as threads:
        for _ in threads.map(partial(give_name, outputs), task.objects):
            pass
    return PublishDone(len(task.objects))
