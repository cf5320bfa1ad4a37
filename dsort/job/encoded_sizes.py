"""What records come to behind a codec, for shards that end by the size of their encoded file.

Where such shards end is decided before they are written, because the same job has to give the same
bytes whoever writes them. So all records are encoded once before that, in the output order and in
runs of about a piece of the codec; what comes out is forgotten but for its length. The runs depend
on the order alone, and so do the sizes. A shard's own pieces begin elsewhere than the runs do. That
changes little as long as it has many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dsort.errors import InvariantError
from dsort.job.extraction import answers
from dsort.job.facts import json_fact
from dsort.job.job import Job
from dsort.order.cut import CutRule, EncodedSizes, OutputShard
from dsort.workers.tasks import MeasureDone, MeasureTask, OutputPiece

SIZES_FILE = "encoded-sizes.json"
RUNS_MAX = 16384
RUNS_A_SHARD = 16
"""So many runs at least for each output shard, where there are more shards than ``RUNS_MAX``."""
TASKS_A_WORKER = 4


def run_rule(job: Job, stored_bytes: int) -> CutRule:
    """Where the runs end that are encoded together, of records of ``stored_bytes`` in all."""
    encoders = [
        target.codec.encoder(target.codec_level)
        for target in job.spec.targets
        if target.codec is not None
    ]
    piece_bytes = max(encoder.piece_bytes for encoder in encoders)
    sizes = [target.size_bytes or stored_bytes for target in job.spec.targets]
    shards = stored_bytes // max(min(sizes), 1)
    runs = max(RUNS_MAX, RUNS_A_SHARD * shards)
    pieces = max(-(-stored_bytes // (piece_bytes * runs)), 1)
    return CutRule(size_bytes=piece_bytes * pieces, counts_file=True, at_most=True)


def encoded_sizes(job: Job, stored_bytes: int, measure: Callable[[], EncodedSizes]) -> EncodedSizes:
    """What an earlier attempt measured, else what ``measure`` gives: the plan has to be the same,
    and part of the records may be written and gone from scratch. ``StorageError`` if that is
    damaged."""

    def rows(sizes: EncodedSizes) -> dict[str, Any]:
        return {"stored": sizes.stored.tolist(), "encoded": sizes.encoded.tolist()}

    def of_rows(content: Any) -> EncodedSizes:
        rows = [content[name] for name in ("stored", "encoded")]
        if not all(type(each) is int for row in rows for each in row):
            raise ValueError("it has a size that is none")
        stored, encoded = (np.array(row, np.int64) for row in rows)
        if stored.ndim != 1 or stored.shape != encoded.shape or int(stored[-1]) != stored_bytes:
            raise ValueError("it is about other records")
        if stored[0] or encoded[0] or (np.diff(stored) < 0).any() or (np.diff(encoded) < 0).any():
            raise ValueError("its numbers do not ascend from 0 on")
        return EncodedSizes(stored, encoded)

    return json_fact(SIZES_FILE, rows, of_rows).settle(job, measure)


def measured_sizes(
    job: Job, runs: Sequence[OutputShard], locations: str, node_of: Callable[[int], str]
) -> EncodedSizes:
    """What all ``runs`` come to, encoded. ``locations``: the shared file that says
    which node has which shard; ``node_of``: which one has a partition in order."""
    found = np.zeros(len(runs), np.int64)
    for task, done in answers(job, _tasks(job, runs, locations, node_of)):
        assert isinstance(task, MeasureTask)
        assert isinstance(done, MeasureDone)
        ordinals = list(dict.fromkeys(piece.ordinal for piece in task.pieces))
        if len(ordinals) != len(done.encoded_bytes):
            raise InvariantError("a worker measured other runs than it was asked for")
        found[ordinals] = done.encoded_bytes
    stored = np.zeros(len(runs) + 1, np.int64)
    np.cumsum([run.stored_bytes for run in runs], out=stored[1:])
    encoded = np.zeros(len(runs) + 1, np.int64)
    np.cumsum(found, out=encoded[1:])
    return EncodedSizes(stored, encoded)


def _tasks(
    job: Job, runs: Sequence[OutputShard], locations: str, node_of: Callable[[int], str]
) -> Iterator[MeasureTask]:
    """Neighbours go to one worker, for they share partitions."""
    total = sum(run.stored_bytes for run in runs)
    share = max(total // (job.movement.workers * TASKS_A_WORKER), 1)
    begin, taken = 0, 0
    for at, run in enumerate(runs):
        taken += run.stored_bytes
        if taken >= share or at == len(runs) - 1:
            yield _task(job, runs[begin : at + 1], locations, node_of)
            begin, taken = at + 1, 0


def _task(
    job: Job, runs: Sequence[OutputShard], locations: str, node_of: Callable[[int], str]
) -> MeasureTask:
    weights: Counter[str] = Counter()
    pieces = []
    for run in runs:
        for part in run.pieces:
            weights[node_of(part.partition)] += part.stored_bytes
            pieces.append(
                OutputPiece(
                    token="",
                    name="",
                    ordinal=run.ordinal,
                    shard_bytes=-1,
                    partition=part.partition,
                    row_start=part.row_start,
                    row_stop=part.row_stop,
                    offset=part.offset,
                    stored_bytes=part.stored_bytes,
                    last=part is run.pieces[-1],
                    output=job.output_of(run.group),
                )
            )
    partitions = dict.fromkeys(piece.partition for piece in pieces)
    nodes = tuple((partition, node_of(partition)) for partition in partitions)
    return MeasureTask(tuple(pieces), locations, nodes, weights.most_common(1)[0][0])
