"""Checks the order of the outputs and the ends of shards: no sort key is smaller than the one
before it, shuffled records are in their places, and every shard ends where the spec says.

All code is plain and slow on purpose (a microsecond a record), without the words and partitions by
which a job sorts.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct, field
from msgspec.structs import astuple

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.data.hashes import permuted
from dsort.job.output_names import OutputNames
from dsort.moves.input_shard import ShardBytes
from dsort.order.base import NO_PLACES, Algorithm, GivenPlaces, Record, SortValue
from dsort.order.class_numbers import class_seed
from dsort.order.placement import WORDS, Batches, Placement, batch_hash
from dsort.pipeline.compile import written_container
from dsort.pipeline.pipeline import Pipeline
from dsort.sizes import format_count
from dsort.spec.model import JobSpec
from dsort.spec.target import Target
from dsort.verification.findings import Findings
from dsort.verification.shards import ShardRecords


class _Record(Struct, frozen=True):
    """One record of an output shard, as algorithms read it."""

    shard: ShardBytes
    records: ShardRecords
    row: int
    key: bytes
    are_rows: bool

    @property
    def first_name(self) -> bytes:
        """The name of its first member."""
        return self.records.members.names[int(self.records.rows_of(self.row)[0])]

    @property
    def payload_bytes(self) -> int:
        """The total size of its members, without headers and padding."""
        return int(self.records.members.payload_bytes[self.records.rows_of(self.row)].sum())

    @property
    def is_json_alone(self) -> bool:
        """Whether the record is a ``.json`` member, and nothing else."""
        rows, records = self.records.rows_of(self.row), self.records
        if len(rows) > 1 or self.are_rows:
            return False
        return records.members.names[rows[0]][int(records.key_bytes[rows[0]]) :] == b".json"

    def content(self, extension: str) -> bytes | None:
        """The content of the last member with this whole extension; None if it has none."""
        wanted = extension.encode("utf-8", "surrogateescape")
        members, found = self.records.members, -1
        for row in self.records.rows_of(self.row):
            if members.names[row][int(self.records.key_bytes[row]) :] == wanted:
                found = row
        if found < 0:
            return None
        return self.shard.content(members, found)


def records_read(shard: ShardBytes, records: ShardRecords, pipeline: Pipeline) -> Iterator[Record]:
    """The records of an opened shard, as algorithms read them."""
    for row, key in enumerate(records.keys.tolist()):
        yield _Record(shard, records, row, key, pipeline.moves_rows)


class OrderSeen(Struct, frozen=True, eq=False):
    """``ties``: which records have the same sort key as the record before; ``backwards``: the rows
    of records whose sort key is smaller than that of the record before."""

    ties: Bools
    backwards: list[int]


class OrderWatch:
    """Checks the order of the records of all outputs, shard by shard, each template by itself."""

    def __init__(self, pipeline: Pipeline, algorithm: Algorithm, *, has_keys: bool) -> None:
        """``has_keys``: whether the outputs hold the keys of their records."""
        self._pipeline = pipeline
        self._algorithm = algorithm
        self._unknown = algorithm.decided_by_inputs or (algorithm.asks_for_keys and not has_keys)
        self._last: dict[int, SortValue | None] = {}

    def look(self, group: int, shard: ShardBytes, records: ShardRecords) -> OrderSeen:
        """Check the next shard of a template."""
        ties = np.zeros(len(records), np.bool_)
        backwards: list[int] = []
        if self._unknown:
            return OrderSeen(ties, backwards)
        last = self._last.get(group)
        for record, each in enumerate(records_read(shard, records, self._pipeline)):
            value = self._algorithm.expected(each)
            if last is not None and value is not None:
                if last.comes_after(value, decreasing=self._algorithm.decreasing):
                    backwards.append(record)
                elif last == value:
                    ties[record] = True
            last = value
        self._last[group] = last
        return OrderSeen(ties, backwards)


class HashPlaces(Struct, frozen=True):
    """The places of records that are ordered by their hashes alone."""

    def look(self, shard: int, records: Iterable[Record]) -> None:
        """Read the facts of the ``records`` of the input shard with this ordinal."""

    def places(self, group: Int32s, hashes: UInt64s, seed: str) -> UInt64s:
        """A number for each record, in input order, by which the records of each output are
        ordered. ``group``: the output of each record; ``hashes``: its hash in the shuffle."""
        return hashes


class PlaceFacts(HashPlaces, frozen=True):
    """The places of records, computed from the facts that the placement reads of each record, shard
    by shard."""

    placement: Placement
    _names: dict[bytes, int] = field(default_factory=dict)
    _classes: dict[int, array[int]] = field(default_factory=dict)
    _ranks: dict[int, array[int]] = field(default_factory=dict)
    _values: dict[int, array[float]] = field(default_factory=dict)

    def look(self, shard: int, records: Iterable[Record]) -> None:
        classes, ranks, values = array("i"), array("b"), array("d")
        for record in records:
            found = self.placement.expected(record) or SortValue(1, None)
            ranks.append(found.rank)
            name = found.value if isinstance(found.value, bytes) else b""
            classes.append(self._names.setdefault(name, len(self._names)))
            values.append(found.value if isinstance(found.value, (int, float)) else 0.0)
        self._classes[shard], self._ranks[shard], self._values[shard] = classes, ranks, values

    def places(self, group: Int32s, hashes: UInt64s, seed: str) -> UInt64s:
        classes = [each for shard in sorted(self._classes) for each in self._classes[shard]]
        groups = group.tolist()
        place, total = self._drawn([*zip(groups, classes, strict=True)], seed)
        if not isinstance(self.placement, Batches):
            step = np.uint64(WORDS) // total.astype(np.uint64)
            return place.astype(np.uint64) * step + hashes % step
        return self._in_batches(groups, place.tolist(), total.tolist(), seed)

    def _drawn(self, classes: list[tuple[int, int]], seed: str) -> tuple[Int64s, Int64s]:
        """For each record: (its place in its class, number of places in the class)."""
        names = [*self._names]
        seen: dict[tuple[int, int], int] = {}
        numbers = []
        for each in classes:
            number = seen.get(each, 0)
            seen[each] = number + 1
            numbers.append(number)
        seeds = {each: class_seed(seed, each[0], names[each[1]]) for each in seen}
        total = np.array([seen[each] for each in classes], np.int64)
        drawn = np.array([seeds[each] for each in classes], np.uint64)
        return permuted(np.array(numbers, np.int64), total, drawn), total

    def _in_batches(
        self, groups: list[int], place: list[int], total: list[int], seed: str
    ) -> UInt64s:
        placement = self.placement
        assert isinstance(placement, Batches), "no other placement has batches"
        ranks = [each for shard in sorted(self._ranks) for each in self._ranks[shard]]
        values = [each for shard in sorted(self._values) for each in self._values[shard]]
        window, size = placement.window_records, placement.records
        windows: dict[tuple[int, int], list[int]] = {}
        for row, (group, at) in enumerate(zip(groups, place, strict=True)):
            windows.setdefault((group, at // window), []).append(row)
        places = np.zeros(len(place), np.uint64)
        for (group, number), rows in windows.items():
            rows.sort(key=lambda row: (ranks[row], values[row], place[row]))
            word = number * (WORDS // -(-total[rows[0]] // window))
            whole = len(rows) // size
            drawn = sorted(range(whole), key=_hashes(seed, group, word, whole).__getitem__)
            for turn, batch in enumerate([*drawn, whole]):
                own = rows[batch * size : (batch + 1) * size]
                for within, row in enumerate(own):
                    places[row] = number * window + turn * size + within
        return places


def _hashes(seed: str, group: int, word: int, count: int) -> Mapping[int, int]:
    return {batch: batch_hash(seed, group, word, batch) for batch in range(count)}


class Place(Struct, frozen=True):
    """The ``number``-th shard of the ``group``-th template."""

    group: int
    number: int


class Sizes(Struct, frozen=True):
    """Counts and sizes of records of an output shard. ``stored_bytes``: with headers and padding,
    but without the end marker."""

    records: int = 0
    members: int = 0
    payload_bytes: int = 0
    stored_bytes: int = 0
    entries_bytes: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(*map(operator.add, astuple(self), astuple(other)))

    def counted_bytes(self, target: Target) -> int:
        """The size of the records, as ``target`` counts it."""
        if target.counts_file:
            return self.stored_bytes
        return self.payload_bytes + target.header_bytes * self.members

    def limited_bytes(self, spec: JobSpec, target: Target) -> int:
        """The size of a shard with these records, as ``target`` limits it."""
        if not target.counts_file:
            return self.payload_bytes
        return written_container(spec, target.extension).file_bytes(
            self.records, self.members, self.entries_bytes, self.stored_bytes
        )


class ShardFacts(Struct, frozen=True):
    """The sizes of all records of an output shard, of its first one (which did not fit in the shard
    before it), and of its last one."""

    name: str
    place: Place
    readable: bool
    whole: Sizes
    first: Sizes = Sizes()
    last: Sizes = Sizes()

    @property
    def records(self) -> int:
        """The number of its records."""
        return self.whole.records


def check_cuts(
    facts: Sequence[ShardFacts],
    spec: JobSpec,
    names: OutputNames,
    findings: Findings,
    placed_by: GivenPlaces = NO_PLACES,
) -> None:
    """Check that every shard ends where the spec sets its end, neither before nor after.
    ``placed_by``: may set the number of records of each shard."""
    targets = spec.targets
    if placed_by.counts:
        if [shard.records for shard in facts] != [*placed_by.counts]:
            text = f"the shards have other numbers of records than in {placed_by.words}"
            findings.problem("cut", "", "", text)
        return
    if spec.keep_shards:
        if len(facts) != names.templates[0].count:
            text = f"there are {len(facts):,} output shards, the spec asks for one for each input"
            findings.problem("cut", "", "", text)
        return
    for group, target in enumerate(targets):
        own = [shard for shard in facts if len(targets) == 1 or shard.place.group == group]
        _check_target(own, target, spec, names.templates[group].count, findings)


def _check_target(
    facts: Sequence[ShardFacts],
    target: Target,
    spec: JobSpec,
    names_count: int | None,
    findings: Findings,
) -> None:
    """``check_cuts`` for one output. ``names_count``: how many names its template makes."""
    if target.asked_count is not None:
        wanted, is_equal = target.count, spec.equalize is not None
        if wanted is None:
            _check_multiple(facts, target, findings, is_equal=is_equal)
            wanted = len(facts)
        _check_count(facts, wanted, findings, is_equal=is_equal)
        return
    size_bytes, shards_max = target.size_bytes or 0, None
    if not target.ends:  # an even share for each name of the template
        shards_max = names_count or 1
        size_bytes = max(
            -(-sum(shard.whole.counted_bytes(target) for shard in facts) // shards_max), 1
        )
    by_count = target.records is not None and not target.size_bytes
    for _, group in groupby(facts, key=lambda shard: shard.place.group):
        shards = list(group)
        for number, shard in enumerate(shards, start=1):
            last, following = number == len(shards), shards[number : number + 1]
            if not shard.readable and not by_count:
                continue
            records_max = target.records
            if target.is_measured and (records_max is None or shard.records < records_max):
                continue  # the job measured the shard before encoding: about 1 % off
            if records_max is not None and (by_count or shard.records >= records_max):
                text = _wrong_records(shard, records_max, last=last)
            elif target.is_at_most:
                first = [each.first for each in following if each.readable]
                text = _too_large(shard, first, spec, target)
            else:
                # Records without payload may be left when all payload has been shared out: they go
                # into the last shard.
                stays_open = shards_max is not None and shard.place.number == shards_max - 1
                text = _wrong_size(shard, size_bytes, target, last=last, stays_open=stays_open)
            if text:
                findings.problem("cut", shard.name, "", text)


def _check_multiple(
    facts: Sequence[ShardFacts], target: Target, findings: Findings, *, is_equal: bool
) -> None:
    """Check that the number of shards is what ``multiple_of`` requires."""
    records = sum(shard.records for shard in facts)
    sized = sum(shard.whole.counted_bytes(target) for shard in facts)
    least = target.count_for(records, 0 if target.is_measured else sized) or 0
    most = least
    if is_equal or target.is_measured:  # the job counted records that it then left out or encoded
        most = target.count_for(records + len(facts), 2 * sized) or 0
    if is_equal and target.size_bytes:  # the records that were left out may have any size
        most = len(facts)
    step = target.count_for(0, 0) or 1
    if not least <= len(facts) <= most or len(facts) % step:
        text = f"there are {len(facts):,} output shards, the spec asks for a multiple of {step:,}"
        findings.problem("cut", "", "", f"{text}: {least:,}")


def _wrong_records(shard: ShardFacts, wanted: int, *, last: bool) -> str:
    if shard.records == wanted or (last and 0 < shard.records < wanted):
        return ""
    return f"has {format_count(shard.records, 'record')}, {wanted:,} go into a shard"


def _wrong_size(
    shard: ShardFacts, wanted: int, target: Target, *, last: bool, stays_open: bool
) -> str:
    if shard.records == 0:
        return "has no record"
    counts = target.size_counts + " and headers" * bool(target.header_bytes)
    sized_bytes, last_bytes = (each.counted_bytes(target) for each in (shard.whole, shard.last))
    if sized_bytes - last_bytes >= wanted and not stays_open:
        return f"continues after {wanted:,} bytes of {counts}, where the spec ends a shard"
    if not last and sized_bytes < wanted:
        return f"closes with {sized_bytes:,} bytes of {counts}, fewer than {wanted:,}"
    return ""


def _too_large(shard: ShardFacts, following: Sequence[Sizes], spec: JobSpec, target: Target) -> str:
    """``following``: the next record, if it exists and can be read."""
    counts, size_max = target.size_counts, target.size_bytes or 0
    if shard.records == 0:
        return "has no record"
    has_bytes = shard.whole.limited_bytes(spec, target)
    if has_bytes > size_max and shard.records > 1:
        return f"has {has_bytes:,} bytes of {counts}, more than {size_max:,}"
    if any((shard.whole + each).limited_bytes(spec, target) <= size_max for each in following):
        return f"closes with {has_bytes:,} bytes of {counts}, though the next record fits, too"
    return ""


def _check_count(
    facts: Sequence[ShardFacts], wanted: int, findings: Findings, *, is_equal: bool
) -> None:
    if len(facts) != wanted:
        text = f"there are {len(facts):,} output shards, output_shard_count is {wanted:,}"
        findings.problem("cut", "", "", text)
        return
    even, more = divmod(sum(shard.records for shard in facts), max(wanted, 1))
    if is_equal and more:
        text = "the shards do not all have the same number of records, which equalize asks for"
        findings.problem("cut", "", "", text)
    for shard in facts:
        if shard.readable and shard.records not in (even, even + bool(more)):
            text = f"has {format_count(shard.records, 'record')}, an even share is {even:,}"
            findings.problem("cut", shard.name, "", text)
