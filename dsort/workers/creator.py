"""The creator: gathers the records of output shards in order and writes them, unseen by anybody.

``map``: slices of the mapped inputs. ``range``: ranges of the inputs, read into the worker's buffer
many at a time, while what came before them is written. ``spill``: the partition is read into the
worker's buffer, in the order it was written, and written again in output order. A partition larger
than the buffer is spilled once more if its records are small; else several turns are taken over its
spill, each for the next run of records that fits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from typing import Protocol

import numpy as np

from dsort.containers.base import Container
from dsort.data.columns import Int32s, Int64s
from dsort.data.index import BLOCK_LENGTH, RANGES, SHARD, STORED_BYTES
from dsort.scratch.logs import CreatedLog
from dsort.scratch.moved_blocks import ordered_rows
from dsort.scratch.narrowing import narrowed
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.requests import OrderedRowsOf, StoredBytesOf
from dsort.scratch.spill import SpillReader
from dsort.sidecars.shard_index import lines_sidecar
from dsort.storage.bucket import Bucket
from dsort.storage.output_buckets import bucket_for
from dsort.workers.encoded import ENCODING_BYTES, EncoderThreads, ShardEncoder
from dsort.workers.gathering import Gatherer, are_short, rows_at_once
from dsort.workers.late_writer import LateWriter, late_format
from dsort.workers.lineage import LINEAGE, write_lineage
from dsort.workers.literals import slices_with_literals
from dsort.workers.mapped_inputs import MappedInputs
from dsort.workers.member_watch import MemberWatch
from dsort.workers.payload_files import PayloadBuffer
from dsort.workers.range_buffer import RangeBuffer
from dsort.workers.range_queue import RangeQueue
from dsort.workers.ranged import ALIGNMENT_BYTES, RangedInputs, RangedRecords
from dsort.workers.renaming import renamed_slices
from dsort.workers.shard_writer import (
    ContentCheck,
    FinishedShard,
    ShardWriter,
    StagedFile,
    Writeback,
)
from dsort.workers.sidecars import staged_sidecar, write_sidecars
from dsort.workers.source import slices_of_sources
from dsort.workers.spilled import ROWS_AT_ONCE_MAX, SpilledPayload
from dsort.workers.tasks import (
    CreateDone,
    CreateTask,
    MeasureDone,
    MeasureTask,
    OutputPiece,
    WorkerSetup,
)

READS_AT_ONCE = 32
"""Of 1.1 GB in 16 cold files, direct reads of 100 KB in any order came at 347 MB/s with 8 threads,
1050 with 32; ``cat`` of the files gave 530."""
SPILL_READS_AT_ONCE = 2
"""Of one partition in sequence: the disk is busy writing, too."""
PAST_CACHE_BYTES_MIN = 1 << 20
"""Shorter output shards are written by the kernel, many together."""
LINES = "lines"
"""The kind of sidecar that sizes of records suffice for: other kinds cost a scan of the shard."""
ROWS_KEPT_MAX = 1 << 16
"""Rows of the shards that one task writes, read at once: to read those of each shard took a third
of the time of 1 KB shards."""
FEW_ROWS_MAX = 256
WITH_LITERALS_AT_ONCE = 8192
"""Records with literals are looked at by more vectorised steps, which cost 0.1 µs a record where
2,048 are taken at a time."""
SliceLists = Iterator[Sequence[memoryview]]


class Creator:
    """Writes output shards for one job, in one worker."""

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        inputs: Bucket,
        outputs: Bucket,
        buffer: PayloadBuffer,
        nodes: ScratchNodes,
        mapped: MappedInputs,
    ) -> None:
        """``mapped``: what the extractor of this worker leaves."""
        self._spilled = setup.movement.kind == "spill"
        self._ranged = setup.movement.kind == "range"
        self._forgets = setup.movement.to_disk
        self._setup = setup
        self._pipeline = setup.pipeline
        self._container = setup.pipeline.carrier
        self._outputs = outputs
        self._buffer = buffer
        self._scratch_nodes = nodes
        self._log = CreatedLog(nodes.store.scratch, worker)
        self._writeback = Writeback()
        self._encoders = [
            None if each.codec is None else EncoderThreads(each.codec, each.level)
            for each in setup.pipeline.outputs
        ]
        self._inputs = mapped
        self._ranged_inputs = RangedInputs(inputs, nodes.store, open_max=mapped.open_max)
        depth = READS_AT_ONCE if self._ranged else SPILL_READS_AT_ONCE
        self._reads = RangeQueue(depth, by_kernel=self._ranged)
        self._room: RangeBuffer | None = None
        self._seals = setup.seals_later

    def close(self) -> None:
        """Let go of the mapped inputs."""
        for threads in self._encoders:
            if threads is not None:
                threads.close()
        self._writeback.close()
        self._inputs.close()
        self._reads.close()
        self._ranged_inputs.close()

    def create(self, task: CreateTask) -> CreateDone:
        """Write the pieces of a task, all of a shard's through one open output."""
        finished: list[FinishedShard] = []
        container = self._container.with_schema(task.schema)
        payloads = self._payloads(task)
        payload: _Payload | None = None
        out: ShardWriter | LateWriter | None = None
        try:
            for piece in task.pieces:
                if out is None or out.ordinal != piece.ordinal:
                    staged = self._outputs.stage(
                        piece.token,
                        name=piece.name,
                        size_bytes=self._expected_bytes(piece),
                    )
                    file = StagedFile(
                        staged,
                        self._writeback,
                        want_md5=task.want_md5,
                        seals_on_finish=bucket_for(self._outputs, piece.name).seals_on_finish,
                        past_cache=self._ranged and piece.shard_bytes >= PAST_CACHE_BYTES_MIN,
                    )
                    out = self._writer(task, piece, file, container)
                if piece.partition >= 0 and (
                    payload is None or payload.partition != piece.partition
                ):
                    if payload is not None:
                        payload.close()
                    payload = next(payloads)
                check = payload.check(piece) if payload and self._is_checked(task, piece) else None
                out.write_piece(piece, payload, check)
                if piece.last:
                    self._write_sidecars(task, piece, out)
                    finished.append(FinishedShard(out.ordinal, out.file, out.finish(), self._log))
                    finished[-1].receipt.add_done_callback(finished[-1].record)
                    out = None
            shards = tuple(shard.done() for shard in finished)
            self._writeback.close_small()
        finally:
            if out is not None:
                out.abandon()
            if payload is not None:
                payload.close()
            payloads.close()
            self._log.flush()
        return CreateDone(
            shards=shards,
            records=sum(piece.row_stop - piece.row_start for piece in task.pieces),
            bytes_written=sum(piece.stored_bytes for piece in task.pieces),
        )

    def _writer(
        self, task: CreateTask, piece: OutputPiece, file: StagedFile, container: Container
    ) -> ShardWriter | LateWriter:
        """What writes the output shard that begins with a piece. ``container``: what its records
        travel in."""
        form = self._pipeline.outputs[piece.output]
        if form.is_late:
            schema = task.late_schemas[piece.output] if task.late_schemas else ""
            late = late_format(self._setup, form.container, schema, self._scratch_nodes.store)
            scratch = self._scratch_nodes.store.scratch
            return LateWriter(file, piece.ordinal, piece.name, late, scratch, self._encoder(piece))
        watched = {*task.sidecars} - {LINES, LINEAGE}
        out = ShardWriter(
            file,
            piece.ordinal,
            container,
            encoder=self._encoder(piece),
            watch=MemberWatch(container, piece.name, piece.shard_bytes) if watched else None,
        )
        if container.has_head:
            out.write_head(container.head(self._record_sizes(task, piece.ordinal)))
        return out

    def _is_checked(self, task: CreateTask, piece: OutputPiece) -> bool:
        if self._pipeline.outputs[piece.output].is_late:  # nobody can when it is written
            return self._pipeline.checks_content
        return task.check_content and bucket_for(self._outputs, piece.name).seals_on_finish

    def measure(self, task: MeasureTask) -> MeasureDone:
        """Encode the runs of a task, and forget what comes out but its length."""
        found: list[int] = []
        payloads = self._payloads(task)
        payload: _Payload | None = None
        encoder: ShardEncoder | None = None
        begins = True
        try:
            for piece in task.pieces:
                if payload is None or payload.partition != piece.partition:
                    if payload is not None:
                        payload.close()
                    payload = next(payloads)
                if begins:
                    encoder = self._encoder(piece)
                    found.append(0)
                for slices in payload.slices(piece.row_start, piece.row_stop):
                    found[-1] += sum(map(len, encoder.feed(slices) if encoder else slices))
                if piece.last and encoder is not None:
                    found[-1] += sum(map(len, encoder.finish()))
                    encoder = None
                begins = piece.last
        finally:
            if encoder is not None:
                encoder.abandon()
            if payload is not None:
                payload.close()
            payloads.close()
        return MeasureDone(tuple(found))

    def _encoder(self, piece: OutputPiece) -> ShardEncoder | None:
        """What encodes a piece's shard; None if nothing does."""
        threads = self._encoders[piece.output]
        return None if threads is None else threads.encoder()

    def _write_sidecars(
        self, task: CreateTask, piece: OutputPiece, out: ShardWriter | LateWriter
    ) -> None:
        """Before the shard is finished: whoever knows of it finds them, too."""
        if LINES in task.sidecars:
            place = staged_sidecar(task.sidecars_prefix, piece.ordinal, LINES)
            self._outputs.write(place, lines_sidecar(self._record_sizes(task, piece.ordinal)))
        if LINEAGE in task.sidecars:
            write_lineage(self._outputs, self._scratch_nodes, task, piece.ordinal)
        if out.watch is not None:
            write_sidecars(
                self._outputs,
                task.sidecars_prefix,
                [kind for kind in task.sidecars if kind not in (LINES, LINEAGE)],
                ordinal=piece.ordinal,
                shard=piece.name,
                members=out.watch.members(),
                file_bytes=out.file.written_bytes,
            )

    def _record_sizes(self, task: CreateTask, ordinal: int) -> Int64s:
        """How much each record of an output shard takes in it, whatever partitions they are of."""
        nodes = dict(task.nodes)
        sizes = [
            self._scratch_nodes.ask(
                nodes[piece.partition],
                StoredBytesOf(piece.partition, piece.row_start, piece.row_stop),
            )
            for piece in task.pieces
            if piece.ordinal == ordinal and piece.partition >= 0
        ]
        return np.concatenate([np.zeros(0, np.int64), *sizes])

    def _expected_bytes(self, piece: OutputPiece) -> int | None:
        """How long the file of a piece's shard will be, as far as that is known."""
        if piece.shard_bytes < 0:
            return None
        if self._encoders[piece.output] is None:
            return piece.shard_bytes
        # An upload needs to know how large its parts have to be. A file would have room reserved.
        longest = piece.shard_bytes + piece.shard_bytes // 100 + ENCODING_BYTES
        return longest if bucket_for(self._outputs, piece.name).seals_on_finish else None

    def _payloads(self, task: CreateTask | MeasureTask) -> Generator[_Payload, None, None]:
        """The payload of one partition after the other. While one is written, the next one's first
        blocks come from other nodes."""
        nodes = dict(task.nodes)
        wanted: list[tuple[int, tuple[int, int]]] = []
        # Shards without records may stand between two of one partition, which is loaded once.
        stored = [piece for piece in task.pieces if piece.partition >= 0]
        for partition, pieces in groupby(stored, key=lambda piece: piece.partition):
            rows = [(piece.row_start, piece.row_stop) for piece in pieces]
            span = min(start for start, _ in rows), max(stop for _, stop in rows)
            wanted.append((partition, span))
        if self._ranged:
            yield from self._ranged_payloads(task, [partition for partition, _ in wanted], nodes)
            return
        ahead: SpilledPayload | None = None
        try:
            for number, (partition, span) in enumerate(wanted):
                if not self._spilled:
                    yield _MappedPayload(
                        self._scratch_nodes,
                        nodes[partition],
                        partition,
                        span,
                        self._inputs,
                        self._container,
                        seals=self._seals,
                    )
                    continue
                payload = ahead or self._spilled_payload(
                    partition, nodes[partition], task.locations, span
                )
                ahead = None
                try:
                    payload.load()
                    if number + 1 < len(wanted):
                        following, its_span = wanted[number + 1]
                        ahead = self._spilled_payload(
                            following, nodes[following], task.locations, its_span
                        )
                        ahead.ask_ahead()
                except BaseException:
                    payload.close()
                    raise
                yield payload
        finally:
            if ahead is not None:
                ahead.close()

    def _ranged_payloads(
        self, task: CreateTask | MeasureTask, partitions: Sequence[int], nodes: dict[int, str]
    ) -> Iterator[_RangedPayload]:
        records = RangedRecords(
            [
                each
                for each in task.pieces
                if each.partition >= 0 and each.row_stop > each.row_start
            ],
            nodes,
            self._scratch_nodes,
            self._ranged_inputs,
            self._reads,
            self._buffer,
        )
        try:
            for partition in partitions:
                yield _RangedPayload(partition, records)
        finally:
            records.close()

    def _spilled_payload(
        self, partition: int, node: str, locations: str, span: tuple[int, int]
    ) -> SpilledPayload:
        where = self._scratch_nodes.locations(locations)
        ordered = ordered_rows(self._scratch_nodes, node, partition, where)
        # What is mapped is not read where nobody looks.
        is_read = self._forgets or not self._scratch_nodes.alone
        if is_read and int(ordered.blocks[BLOCK_LENGTH].sum()) <= self._buffer.size_bytes:
            ordered = narrowed(ordered, *ordered.rows_of(*span))
        reader = SpillReader(self._scratch_nodes, where, partition, ordered.blocks)
        if self._room is None:
            self._room = RangeBuffer(self._buffer, ALIGNMENT_BYTES)
        return SpilledPayload(
            partition,
            ordered,
            span,
            reader,
            self._buffer,
            self._room,
            self._reads,
            self._scratch_nodes.store.scratch,
            forgets=self._forgets,
            direct=self._setup.movement.past_cache,
        )


class _Payload(Protocol):
    """Where the records of one partition come from."""

    partition: int

    def slices(self, start: int, stop: int) -> SliceLists:
        """The slices of records ``start:stop``, some at a time; valid until the next step."""

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """Records ``start:stop``."""

    def check(self, piece: OutputPiece) -> ContentCheck:
        """What the content of a piece's rows is checked with."""

    def close(self) -> None:
        """Release files."""


class _MappedPayload:
    """Records as slices of the mapped input shards."""

    def __init__(
        self,
        nodes: ScratchNodes,
        node: str,
        partition: int,
        span: tuple[int, int],
        inputs: MappedInputs,
        container: Container,
        *,
        seals: bool,
    ) -> None:
        """``span``: the first and the last record that will be asked for."""
        self._seals = seals
        self.partition = partition
        self._span = span
        self._whole: OrderedRows | None = None
        self._container = container
        self._scratch_nodes = nodes
        self._node = node
        self._inputs = inputs

    def close(self) -> None:
        """The mappings stay for the next partition."""

    def check(self, piece: OutputPiece) -> ContentCheck:
        """See :class:`_Payload`."""
        return ContentCheck(self.ordered(piece.row_start, piece.row_stop).rows, piece.ordinal)

    def slices(self, start: int, stop: int) -> SliceLists:
        """The slices of records ``start:stop``, some rows at a time."""
        rows = self.ordered(start, stop).rows
        count, ranges = len(rows), rows[RANGES]
        sources = len(_numbers_in(rows[SHARD]))
        step = min(ROWS_AT_ONCE_MAX, self._inputs.open_max)
        if are_short(ranges) and sources <= self._inputs.open_max:
            step = rows_at_once(ranges, sources)
        elif len(ranges.literals):
            step = min(WITH_LITERALS_AT_ONCE, self._inputs.open_max)
        gatherer = Gatherer()
        for at in range(0, count, step):
            some = slice(at, min(at + step, count))
            source = rows[SHARD][some]
            views = self._inputs.views(_numbers_in(source))
            segments = ranges if count <= step else ranges.run(some.start, some.stop)
            if segments.names is not None and len(segments.names.at):
                stored = rows[STORED_BYTES][some]
                yield from renamed_slices(self._container, views, source, segments, stored)
            elif are_short(segments):
                yield [gatherer.gathered(views, source, segments)]
            elif len(segments.literals):
                stored = rows[STORED_BYTES][some]
                yield from slices_with_literals(
                    self._container, views, source, segments, stored, seals=self._seals
                )
            else:
                yield slices_of_sources(views, source, segments)

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """See :class:`_Payload`."""
        first, last = self._span
        if last - first > ROWS_KEPT_MAX:
            return self._asked(start, stop)
        if self._whole is None:
            self._whole = self._asked(first, last)
        return self._whole.run(start - first, stop - first)

    def _asked(self, start: int, stop: int) -> OrderedRows:
        ordered: OrderedRows = self._scratch_nodes.ask(
            self._node, OrderedRowsOf(self.partition, start, stop)
        )
        return ordered


def _numbers_in(source: Int32s) -> list[int]:
    """The numbers that are in a column, each once, in order. To count all up to the largest would
    take longer than to write a shard of few records."""
    if len(source) <= FEW_ROWS_MAX:
        return sorted(set(source.tolist()))
    return np.flatnonzero(np.bincount(source)).tolist()


class _RangedPayload:
    """Records of one partition, read by range from their input shards."""

    def __init__(self, partition: int, records: RangedRecords) -> None:
        self.partition = partition
        self._records = records

    def close(self) -> None:
        """The reads of the next partition may have begun."""

    def check(self, piece: OutputPiece) -> ContentCheck:
        """See :class:`_Payload`."""
        return ContentCheck(self.ordered(piece.row_start, piece.row_stop).rows, piece.ordinal)

    def ordered(self, start: int, stop: int) -> OrderedRows:
        """See :class:`_Payload`."""
        return self._records.ordered(self.partition, start, stop)

    def slices(self, start: int, stop: int) -> SliceLists:
        """See :class:`_Payload`."""
        return self._records.slices(self.partition, start, stop)
