"""Output shards with equal numbers of records: what is left over goes, or some records come again.

The cut has shared the records out as evenly as it can. ``drop``: what is left over behind the last
shard is not written. ``repeat``: each shard that has one record less than others begins with the
last record of the shard before it. So no shard has a record twice, the order stays one, and each
partition is still read once, from its first row to its last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from dsort.data.index import ENTRIES_BYTES, MEMBERS, ORDINAL, PAYLOAD_BYTES, SHARD, STORED_BYTES
from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.job.extract import Extraction
from dsort.job.job import Job
from dsort.naming.names import readable
from dsort.order.cut import CutRule, Piece
from dsort.scratch.logs import reaction_line
from dsort.scratch.ordered import OrderedRows
from dsort.scratch.requests import KeysAt, OrderedRowsOf

__all__ = ["Equalized", "equal_pieces"]

LEFT_OUT = "left_out_to_equalize"
REPEATED = "repeated_to_equalize"
NodeOf = Callable[[int], str]
"""Which node has a partition in order."""


@dataclass(frozen=True, slots=True)
class Equalized:
    """``pieces``: of all output shards, in their order. ``records``: how many come out more (or
    less, below 0) than went in; ``lines``: their names, for ``reactions.jsonl``."""

    pieces: list[Piece]
    records: int
    tally: Tally
    lines: tuple[bytes, ...]


def equal_pieces(
    job: Job, extraction: Extraction, node_of: NodeOf, pieces: list[Piece], rule: CutRule
) -> Equalized:
    """The pieces so that all shards of an output have as many records."""
    # The names of what is left over stay few: fewer than there are shards.
    is_drop = job.spec.equalize == "drop"
    found: list[Piece] = []
    changed: list[Piece] = []
    for group, own in groupby(pieces, key=lambda piece: piece.group):
        count, run = rule.of_group(group).count or 0, list(own)
        if is_drop:
            changed += [piece for piece in run if piece.number >= count]
            found += [piece for piece in run if piece.number < count]
        else:
            whole, repeated = _with_repeats(job, node_of, run, count)
            changed += repeated
            found += whole
    kind = LEFT_OUT if is_drop else REPEATED
    names = [*_names(job, extraction, node_of, changed)]
    tally = Tally()
    tally.add(kind, len(names), [f"{shard}: {key}" for shard, key in names[:SAMPLES_MAX]])
    lines = tuple(reaction_line(kind, shard=shard, name=key) for shard, key in names)
    more = -len(names) if is_drop else len(names)
    return Equalized(found, more, tally if names else Tally(), lines)


def _with_repeats(
    job: Job, node_of: NodeOf, run: Sequence[Piece], count: int
) -> tuple[list[Piece], list[Piece]]:
    """(the pieces of one output where each shard that has one record less than others begins with
    the record before its first one; these records, each as a piece)."""
    total = sum(piece.records for piece in run)
    short = range(total % count, count) if total % count else range(0)
    by_number = {number: [*own] for number, own in groupby(run, key=lambda each: each.number)}
    found: list[Piece] = []
    repeated: list[Piece] = []
    for number in range(count):
        own = by_number.get(number, [])
        if number in short:
            first = _record_before(job, node_of, found[-1], number)
            repeated.append(first)
            moved = (each._replace(offset=each.offset + first.stored_bytes) for each in own)
            own = [first, *moved]
        found += own
    return found, repeated


def _record_before(job: Job, node_of: NodeOf, before: Piece, number: int) -> Piece:
    """The last record of the piece ``before``, as one that shard ``number`` begins with."""
    piece = before._replace(number=number, row_start=before.row_stop - 1, offset=0)
    rows = _rows(job, node_of, piece).by_record()
    stored = int(rows[STORED_BYTES][0])
    return piece._replace(
        members=int(rows[MEMBERS][0]),
        payload_bytes=int(rows[PAYLOAD_BYTES][0]),
        stored_bytes=stored,
        entries_bytes=int(rows[ENTRIES_BYTES][0]) if ENTRIES_BYTES in rows else 0,
        encoded_bytes=piece.encoded_bytes if piece.encoded_bytes < 0 else stored,
    )


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
