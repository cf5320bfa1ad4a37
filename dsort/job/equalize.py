"""Output shards with equal numbers of records: what is left over is not written.

The cut has shared the records out as evenly as it can, and has put what is left over behind the
last shard of each output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsort.data.index import ORDINAL, SHARD
from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.job.extraction import Extraction
from dsort.job.job import Job
from dsort.naming.names import readable
from dsort.order.cut import CutRule, Piece
from dsort.scratch.logs import reaction_line
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.requests import KeysAt, OrderedRowsOf

LEFT_OUT = "left_out_to_equalize"
NodeOf = Callable[[int], str]
"""Which node has a partition in order."""


@dataclass(frozen=True, slots=True)
class Equalized:
    """``pieces``: of all output shards, in their order. ``left_out``: how many records are in none
    of them; ``lines``: their names, for ``reactions.jsonl``."""

    pieces: list[Piece]
    left_out: int
    tally: Tally
    lines: tuple[bytes, ...]


def equal_pieces(
    job: Job, extraction: Extraction, node_of: NodeOf, pieces: Iterable[Piece], rule: CutRule
) -> Equalized:
    """The pieces so that all shards of an output have as many records."""
    # The names of what is left over stay few: fewer than there are shards.
    found: list[Piece] = []
    left: list[Piece] = []
    for piece in pieces:
        count = rule.of_group(piece.group).count or 0
        (found if piece.number < count else left).append(piece)
    names = [*_names(job, extraction, node_of, left)]
    tally = Tally()
    if names:
        samples = [f"{shard}: {key}" for shard, key in names[:SAMPLES_MAX]]
        tally.add(LEFT_OUT, len(names), samples)
    lines = tuple(reaction_line(LEFT_OUT, shard=shard, name=key) for shard, key in names)
    return Equalized(found, len(names), tally, lines)


def _rows(job: Job, node_of: NodeOf, piece: Piece) -> OrderedRows:
    request = OrderedRowsOf(piece.partition, piece.row_start, piece.row_stop)
    rows: OrderedRows = job.runtime.ask(node_of(piece.partition), request)
    return rows


def _names(
    job: Job, extraction: Extraction, node_of: NodeOf, pieces: Sequence[Piece]
) -> Iterator[tuple[str, str]]:
    """(input shard, key) of each record of ``pieces``."""
    parts = []
    for piece in pieces:
        ordered = _rows(job, node_of, piece)
        rows, offsets = ordered.rows, ordered.record_offsets
        first = slice(None) if offsets is None else offsets[:-1]
        pairs = zip(rows[SHARD][first].tolist(), rows[ORDINAL][first].tolist(), strict=True)
        parts += [*pairs]
    locations = extraction.shard_locations()
    by_shard: dict[int, list[int]] = {}
    for shard, ordinal in parts:
        by_shard.setdefault(shard, []).append(ordinal)
    keys: dict[tuple[int, int], bytes] = {}
    for shard, ordinals in by_shard.items():
        wanted = np.unique(np.array(ordinals, np.int64))
        file = int(locations.file_of[shard])
        node = locations.nodes[locations.node_of[file]]
        found = job.runtime.ask(node, KeysAt(extraction.stage.name, file, shard, wanted)).tolist()
        keys.update(zip(((shard, each) for each in wanted.tolist()), found, strict=True))
    for place in parts:
        yield job.inputs[place[0]].name, readable(keys[place])
