"""Finds the records and members that a join leaves out, if extraction needs them. Counts or refuses
what orderers find about joined records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from msgspec.structs import replace

from dsort.data.index import KEYS, ORDINAL
from dsort.data.table import Table
from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.errors import DuplicateError, JoinError
from dsort.job.extraction import Extraction, answers
from dsort.job.job import Fact, Facts, Job
from dsort.job.reactions import store_reactions
from dsort.job.surveys.survey import Survey
from dsort.order.equal_keys import JoinedKind, spread_places
from dsort.scratch.columns import columns_bytes
from dsort.scratch.requests import PositionsOf
from dsort.scratch.tables import (
    NTH,
    PLACE,
    POSITION_SHARD,
    POSITIONS,
    by_position,
    check_left_out,
    check_places,
)
from dsort.sizes import format_count
from dsort.workers.tasks import JoinFinding, OrderDone, OrderTask, Stage

LEFT_OUT_FILE = "left-out.col"
PLACES_FILE = "places.col"


class JoinedFirst(Survey[None]):
    """Two shared files: the records that a join leaves out, if several inputs have members with the
    same extension; and the places of the remaining pieces, if these are found first."""

    def fact(self) -> Fact[None]:
        shards = len(self.job.inputs)
        checks = {LEFT_OUT_FILE: partial(check_left_out, shards=shards)}
        if self.job.pipeline.join.is_ordered_first:
            checks[PLACES_FILE] = partial(check_places, shards=shards)
        return Fact("joins.json", None, checks=checks)

    def search(self, known: Facts) -> None:
        """``JoinError`` or ``DuplicateError`` if records cannot be joined."""
        found = self.read(Stage("join", self.job.found.movement.partitions), known, self._files)
        for name, data in found.items():
            self.job.attempt.retain_on_nodes(name, data)

    def facts(self, known: Facts, value: None) -> Facts:
        return replace(
            known,
            left_out=LEFT_OUT_FILE,
            places=PLACES_FILE * self.job.pipeline.join.is_ordered_first,
        )

    def _files(self, survey: Extraction) -> dict[str, bytes]:
        """The files, by name."""
        partitions = range(survey.stage.partitions)
        tasks = (OrderTask(partition, survey.locations, stage="join") for partition in partitions)
        done: dict[int, OrderDone] = {}
        for _, facts in answers(self.job, tasks, OrderDone):
            done[facts.partition] = facts
        ordered = [done[partition] for partition in partitions]
        for finding in _summed(ordered):
            _refuse(self.job, finding)
        parts: list[Table] = [
            self.job.runtime.ask(facts.node, PositionsOf(f"left-out-{facts.partition}.col"))
            for facts in ordered
            if facts.join.positions
        ]
        left_out = by_position(Table.concat(parts, (*POSITIONS, KEYS)))
        found = {LEFT_OUT_FILE: columns_bytes(left_out.arrays())}
        if self.job.pipeline.join.is_ordered_first:
            found[PLACES_FILE] = _places(self.job, ordered)
        return found


def _places(job: Job, ordered: Iterable[OrderDone]) -> bytes:
    """The file of the places of all pieces. It has some 50 bytes for each piece, and the keys that
    records are ordered by."""
    parts: list[Table] = [
        job.runtime.ask(facts.node, PositionsOf(f"said-{facts.partition}.col"))
        for facts in ordered
        if facts.join.pieces
    ]
    counts = [int(part[NTH][-1]) + 1 for part in parts]
    before = np.cumsum([0, *counts])[:-1].tolist()
    numbered = [part.with_(NTH, part[NTH] + at) for part, at in zip(parts, before, strict=True)]
    pieces = Table.concat(numbered, (*POSITIONS, KEYS))
    record = pieces[NTH]
    first = pieces.take(np.flatnonzero(np.diff(record, prepend=-1)))
    places = spread_places(first[KEYS], first[POSITION_SHARD], first[ORDINAL])[record]
    placed = by_position(pieces.without(NTH, KEYS).with_(PLACE, places))
    return columns_bytes(placed.arrays())


def settle_join(job: Job, extraction: Extraction, ordered: Iterable[OrderDone]) -> Tally:
    """The counts of the records and members that were left out; stores their names. ``ordered``:
    the facts of each partition, in order. ``JoinError`` or ``DuplicateError`` if records cannot be
    joined as in the spec."""
    known = list(ordered)
    tally = Tally()
    for found in _summed(known):
        _refuse(job, found)
        kind = "duplicate_keys_dropped" if found.kind == JoinedKind.DUPLICATE else found.kind
        tally.add(kind, found.count, found.samples)
    parts = [("join", facts.partition, facts.node) for facts in known]
    store_reactions(job, extraction, parts)
    return tally


def _summed(ordered: Iterable[OrderDone]) -> Iterator[JoinFinding]:
    """The findings of all partitions, summed by kind and input."""
    found: dict[tuple[str, str], tuple[int, list[str]]] = {}
    for facts in ordered:
        for each in facts.join.found:
            count, samples = found.get((each.kind, each.input_name), (0, []))
            found[each.kind, each.input_name] = count + each.count, [*samples, *each.samples]
    for (kind, input_name), (count, samples) in sorted(found.items()):
        yield JoinFinding(kind, count, input_name, tuple(samples[:SAMPLES_MAX]))


def _refuse(job: Job, found: JoinFinding) -> None:
    first = found.samples[0]
    records = format_count(found.count, "record has", "records have")
    if found.kind == JoinedKind.UNMATCHED:
        key = "its key" if found.count == 1 else "their key"
        raise JoinError(
            f"{records} none of {key} in the input {found.input_name}: {first}",
            hint="nonmatch: skip leaves such records out, nonmatch: none keeps them without that "
            "input; inputs[].join.nonmatch is for one input; by: stem ignores directories in keys",
        )
    if found.kind == JoinedKind.CONFLICT:
        raise JoinError(
            f"{records} members with the same extension in several inputs: {first}",
            hint="conflict: first, or conflict: last, decides which member stays",
        )
    if (
        found.kind == JoinedKind.DUPLICATE
        and job.pipeline.reading.policies.duplicate_keys != "drop"
    ):
        raise DuplicateError(
            f"{records} the key of an earlier record of the same input: {first}",
            hint="in a join, no two records of an input may have the same key: first run a job "
            "with duplicate_keys: rename over that input",
        )
