"""All records of the inputs of a verified job, as columns: whether each is left out, renamed,
joined or written several times, and its output.

All of this is computed from the spec and the keys alone, by other code than the job's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from typing import ClassVar

import numpy as np
import xxhash
from msgspec import Struct

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s, last_true, offsets_of, stable_argsort
from dsort.data.hashes import hash_keys
from dsort.data.members import MemberTable
from dsort.data.records import STRAY_SALT, FormedRecords
from dsort.errors import MixError
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import position_key
from dsort.order.base import Algorithm
from dsort.order.equal_keys import JoinRule, repeated_hashes
from dsort.pipeline.pipeline import Pipeline
from dsort.sizes import format_count
from dsort.spec.model import JobSpec
from dsort.storage.routed import parted
from dsort.transforms.outputs import Division, lots_of
from dsort.verification.order import HashPlaces
from dsort.verification.shards import RecordSizes


class InputTable(Struct, frozen=True, eq=False, dict=True):
    """All records of the inputs, in input order; columns have shape ``(n,)``.

    A record takes about 30 bytes: the table has no names and no sort keys.
    """

    shards: tuple[str, ...]
    rows: RecordRows
    key_hash: UInt64s  # of the new key, where a record was renamed
    digests: UInt64s  # shape (n, 2): of the bytes that the record takes in an output shard
    members: Int32s
    group: Int32s  # the output, or the template by the key map; -1: none
    expected: Bools  # False: the spec drops the record
    facts: HashPlaces = HashPlaces()  # where a shuffle places records
    are_distinct: tuple[bool, ...] = ()  # for each shard: certainly no two records have one key

    def __len__(self) -> int:
        return len(self.key_hash)

    @property
    def first_rows(self) -> Int64s:
        """The row of each shard's first record (if records are joined, of its first piece), and the
        number of rows at the end."""
        return self.rows.first_rows

    def shard_of(self, rows: Int64s) -> Int64s:
        """The input ordinals of ``rows``."""
        return self.rows.shard_of(self.rows.first_of(rows))

    @cached_property
    def repeated(self) -> UInt64s:
        """The key hashes that several expected records have, sorted."""
        return repeated_hashes(self.key_hash[self.expected])

    def has(self, digests: UInt64s) -> Bools:
        """Which of ``digests``, shape ``(n, 2)``, belong to an expected record."""
        known = self._digests_sorted
        if len(known) == 0:
            return np.zeros(len(digests), np.bool_)
        at = np.minimum(np.searchsorted(known, digests[:, 0]), len(known) - 1)
        found: Bools = known[at] == digests[:, 0]
        return found

    def of_key(self, key_hash: int) -> RecordSizes:
        """The numbers of members and the digests of the expected records with a key."""
        hashes, rows = self._by_key
        wanted = np.uint64(key_hash)
        low, high = (int(np.searchsorted(hashes, wanted, side)) for side in ("left", "right"))
        sizes: dict[int, set[tuple[int, int]]] = {}
        found = rows[low:high]
        digests = map(tuple, self.digests[found].tolist())
        for size, digest in zip(self.members[found].tolist(), digests, strict=True):
            sizes.setdefault(size, set()).add(digest)
        return {size: frozenset(digests) for size, digests in sizes.items()}

    def order(self, algorithm: Algorithm) -> Int64s:
        """The rows in the order of writing, if the inputs alone decide that; else in input
        order."""
        if not algorithm.has_hashes:
            return np.arange(len(self))
        if self.rows.are_joined:  # a joined record comes from several shards
            return stable_argsort(algorithm.hashes("", self.key_hash))
        words = np.empty(len(self), np.uint64)
        for ordinal, name in enumerate(self.shards):
            rows = slice(int(self.first_rows[ordinal]), int(self.first_rows[ordinal + 1]))
            distinct = self.are_distinct[ordinal]
            words[rows] = algorithm.hashes(name, self.key_hash[rows], are_distinct=distinct)
        return stable_argsort(self.facts.places(self.group, words, algorithm.seed_text))

    @cached_property
    def _digests_sorted(self) -> UInt64s:
        return np.sort(self.digests[self.expected, 0])

    @cached_property
    def _by_key(self) -> tuple[UInt64s, Int64s]:
        rows = np.flatnonzero(self.expected)
        rows = rows[stable_argsort(self.key_hash[rows])]
        return self.key_hash[rows], rows


def others_of(same: UInt64s, counting: Bools, *, keep_last: bool) -> Int64s:
    """The rows to leave out. Only rows for which ``counting`` is true are compared, by their
    numbers in ``same``: a row is left out if an earlier one (``keep_last``: a later one) has its
    number. The number 0 equals nothing, not even another 0."""
    rows = np.flatnonzero(counting & (same != 0))
    if keep_last:
        rows = rows[::-1]
    return rows[later_duplicates(same[rows])[0]]


def later_duplicates(key_hash: UInt64s) -> tuple[Int64s, Int64s]:
    """(rows with the key of an earlier row, in row order; for each, the number of such earlier
    rows)."""
    order = stable_argsort(key_hash)
    hashes = key_hash[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = hashes[1:] == hashes[:-1]
    first = last_true(~again)
    later = np.flatnonzero(again)
    by_row = np.argsort(order[later])
    return order[later][by_row], (later - first[later])[by_row]


def contents_of(
    shard: ShardBytes, records: FormedRecords, members: MemberTable, extensions: Sequence[str]
) -> UInt64s:
    """A number for each record, by the content of its members with ``extensions`` (none: of all
    members). Equal contents give equal numbers; 0: the record has no such member."""
    found = []
    for record in range(len(records)):
        own = {}
        for row in records.rows_of(record):
            name = members.names[row][int(records.key_bytes[row]) :].removeprefix(b".")
            own[name] = shard.content(members, row)
        named = {each.encode("utf-8", "surrogateescape") for each in extensions}
        parts = sorted(item for item in own.items() if not named or item[0] in named)
        text = b"".join(b"%d,%d,%b%b" % (len(n), len(data), n, data) for n, data in parts)
        found.append(xxhash.xxh3_64_intdigest(text) if parts else 0)
    return np.array(found, np.uint64)


def free_keys(keys: list[bytes], nth: list[int], taken: UInt64s) -> list[bytes]:
    """A new unique key for each of ``keys``: ``key-<nth>``, or with the next free number."""
    first = [key + b"-%d" % number for key, number in zip(keys, nth, strict=True)]
    clashes = _any_taken(first, taken).tolist()
    given: dict[bytes, None] = {}  # a dict, not a set, keeps the order
    for key, number, candidate, clash in zip(keys, nth, first, clashes, strict=True):
        while clash or candidate in given:
            number += 1
            candidate = key + b"-%d" % number
            clash = bool(_any_taken([candidate], taken)[0])
        given[candidate] = None
    return list(given)


def _any_taken(keys: list[bytes], taken: UInt64s) -> Bools:
    hashes = hash_keys(keys, len(keys))
    return np.isin(hashes, taken) | np.isin(hashes ^ STRAY_SALT, taken)


class RecordRows(Struct, frozen=True, eq=False):
    """The rows of a table of records, by shard: a row is a record of one shard. ``first_rows``: the
    first row of each shard, and the number of rows at the end."""

    first_rows: Int64s
    are_joined: ClassVar[bool] = False

    def shard_of(self, pieces: Int64s) -> Int64s:
        """The ordinals of the shards of ``pieces``."""
        return np.searchsorted(self.first_rows, pieces, side="right") - 1

    def pieces_of(self, row: int) -> list[int]:
        """The records of shards that a row consists of."""
        return [row]

    def first_of(self, rows: Int64s) -> Int64s:
        """The first piece of each of ``rows``."""
        return rows


class Pieces(RecordRows, frozen=True, eq=False):
    """Rows that are joined records, made of pieces, which are records of inputs. Row ``i`` has the
    pieces ``numbers[offsets[i]:offsets[i + 1]]``, in the order of the inputs. Pieces are numbered
    in input order; ``first_rows`` counts pieces. ``expected``: which joined records have to be in
    the result, shape ``(n,)``."""

    numbers: Int64s
    offsets: Int64s
    expected: Bools
    are_joined: ClassVar[bool] = True

    def pieces_of(self, row: int) -> list[int]:
        first, last = self.offsets[row : row + 2].tolist()
        found: list[int] = self.numbers[first:last].tolist()
        return found

    def first_of(self, rows: Int64s) -> Int64s:
        return self.numbers[self.offsets[rows]]


NOT_COMPARED = InputTable(
    shards=(),
    rows=RecordRows(np.zeros(1, np.int64)),
    key_hash=np.zeros(0, np.uint64),
    digests=np.zeros((0, 2), np.uint64),
    members=np.zeros(0, np.int32),
    group=np.zeros(0, np.int32),
    expected=np.zeros(0, np.bool_),
)
"""Stands for inputs that cannot be compared."""


def join_pieces(
    rule: JoinRule, key_hash: UInt64s, input_of: Int32s, placed: Bools, first_rows: Int64s
) -> Pieces:
    """The joined records, in the order of their first pieces. ``key_hash`` and ``input_of``: the
    key and the input of each piece, in input order; ``placed``: whether it has an output."""
    rows = np.flatnonzero(placed)
    order = rows[stable_argsort(key_hash[rows])]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = key_hash[order[1:]] != key_hash[order[:-1]]
    again = np.zeros(len(order), np.bool_)  # in input order, pieces of one input are side by side
    again[1:] = ~begins[1:] & (input_of[order[1:]] == input_of[order[:-1]])
    order, begins = order[~again], begins[~again]
    record = np.cumsum(begins) - 1
    count = int(begins.sum())
    expected = np.ones(count, np.bool_)
    for number, nonmatch in enumerate(rule.nonmatch):
        if nonmatch != "none":
            has = np.zeros(count, np.bool_)
            has[record[input_of[order] == number]] = True
            expected &= has
    by_first = np.argsort(order[begins], kind="stable")
    place = np.empty(count, np.int64)
    place[by_first] = np.arange(count)
    by_record = np.argsort(place[record], kind="stable")
    counts = np.bincount(place[record], minlength=count)
    offsets = offsets_of(counts)
    return Pieces(first_rows, order[by_record], offsets, expected[by_first])


def members_that_stay(conflict: str, record: Int64s, extensions: UInt64s) -> Bools:
    """Whether each member stays, shape ``(m,)``. If several members of a record have one extension,
    the ``first`` or the ``last`` of them stays (``conflict``). ``record``: the record of each
    member, record by record; ``extensions``: the hash of its extension; both have the shape
    ``(m,)``."""
    stays = np.ones(len(record), np.bool_)
    if conflict == "error":
        return stays
    order = np.lexsort((extensions, record))  # stable: equal ones keep their order in the record
    same = (record[order[1:]] == record[order[:-1]]) & (
        extensions[order[1:]] == extensions[order[:-1]]
    )
    goes = order[1:][same] if conflict == "first" else order[:-1][same]
    stays[goes] = False
    return stays


def copies_asked_for(
    spec: JobSpec, records: Mapping[str, tuple[UInt64s, Bools]]
) -> dict[str, Int64s]:
    """For each shard (by name): how often each of its records is written. ``records``: for each
    shard, in input order, the hashes of its records' keys, and which records are weighed; the
    others are not written. ``MixError`` if the inputs have too few records."""
    found = _copies_of_all(spec, {name: own[left] for name, (own, left) in records.items()})
    for name, (_, left) in records.items():
        counts = left.astype(np.int64)
        counts[left] = found[name]
        found[name] = counts
    return found


def keys_are_numbers(pipeline: Pipeline, shards: Sequence[str]) -> bool:
    """Whether all keys are positions in shards, all with different names. Then only a record and
    its copies have equal keys, and copies are no duplicates."""
    containers = (*pipeline.reading.containers, pipeline.carrier)
    names = {position_key(shard, 0) for shard in shards}
    return len(names) == len(shards) and all(each.numbers_records for each in containers)


def _copies_of_all(spec: JobSpec, hashes: Mapping[str, UInt64s]) -> dict[str, Int64s]:
    """For each shard: how often each record is written, if all records are weighed."""
    found: dict[str, Int64s] = {}
    shards: dict[str, list[str]] = {source.name: [] for source in spec.sources}
    for shard in hashes:
        shards[parted(shard)[0]].append(shard)
    records = {name: sum(len(hashes[shard]) for shard in names) for name, names in shards.items()}
    wanted = _wanted_records(spec, records)
    seed = spec.mix.seed if spec.mix else "0"
    for source in spec.sources:
        names = shards[source.name]
        sizes = [len(hashes[shard]) for shard in names]
        all_hashes = np.concatenate([np.zeros(0, np.uint64), *(hashes[shard] for shard in names)])
        lots = lots_of(all_hashes, seed, source.name)
        if source.name in wanted:
            least, more = divmod(wanted[source.name], max(len(lots), 1))
            once_more = np.argsort(lots, kind="stable")[:more]
        else:
            least, rest = divmod(source.weight, 1)
            once_more = np.flatnonzero(lots < np.uint64(ceil(rest * 2**64)))
        counts = np.full(len(lots), least, np.int64)
        counts[once_more] += 1
        parts = np.split(counts, np.cumsum(sizes)[:-1]) if names else []
        found.update(zip(names, parts, strict=True))
    return found


def _wanted_records(spec: JobSpec, records: Mapping[str, int]) -> dict[str, int]:
    """How many records of each input are written, by the name of the input. Inputs without an exact
    number are left out. ``records``: how many records each input has."""
    mix, weights = spec.mix, {source.name: source.weight for source in spec.sources}
    repeats = True
    if not mix:
        wanted = {each.name: each.records for each in spec.sources if each.records is not None}
    elif mix.records is not None:
        parts = dealt_out(mix.records, list(weights.values()))
        wanted, repeats = dict(zip(weights, parts, strict=True)), mix.replacement
    else:
        # In a round, each input gives as many records as its weight. ``rounds``: the number of
        # rounds that use up each input.
        rounds = [records[name] / weight for name, weight in weights.items()]
        if mix.stop == "first_exhausted":
            wanted = {name: floor(min(rounds) * weight) for name, weight in weights.items()}
        else:
            wanted = {name: ceil(max(rounds) * weight) for name, weight in weights.items()}
    for name, count in wanted.items():
        there = records[name]
        asked = format_count(count, "record is", "records are") + f" wanted of the input {name}"
        if count and not there:
            text = f"{asked}, which has none"
            raise MixError(text, hint="leave it out, or look at its input_format")
        if count > there and not repeats:
            raise MixError(
                f"{asked}, which has {there:,}",
                hint="mix.replacement: true takes them several times; or lower mix.records, or the "
                "weight of the input",
            )
    return wanted


def dealt_out(total: int, weights: Sequence[Fraction]) -> list[int]:
    """``total`` divided into whole parts in proportion to ``weights``. Each part is rounded down.
    The rest goes, one each, to the parts that lost most by rounding; among equal parts, to the
    first ones."""
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(each) for each in exact]
    lost = [each % 1 for each in exact]
    for _ in range(total - sum(parts)):
        at = lost.index(max(lost))
        parts[at] += 1
        lost[at] = Fraction(-1)
    return parts


def dealt_out_in_classes(totals: Sequence[int], weights: Sequence[Fraction]) -> list[list[int]]:
    """The parts of each of several ``totals``. Summed over the totals, they are the parts of the
    sum of all totals. Each part is rounded down. The rest of a total goes, one each, to the parts
    whose sums are furthest below their parts of the sum. Among equals, the parts that lost most by
    rounding down come first."""
    wanted = dealt_out(sum(totals), weights)
    shares = [weight / sum(weights) for weight in weights]
    parts = [[int(total * share) for share in shares] for total in totals]
    missing = [all_of_it - sum(own) for all_of_it, *own in zip(wanted, *parts, strict=True)]
    for total, own in zip(totals, parts, strict=True):
        lost = [total * share % 1 for share in shares]
        order = sorted(range(len(own)), key=lambda at: (missing[at], lost[at]), reverse=True)
        for at in order[: total - sum(own)]:
            own[at] += 1
            missing[at] -= 1
    return parts


def outputs_asked_for(division: Division, lots: UInt64s, counting: Bools) -> Int32s:
    """The output of each record, in input order. ``lots``: its class and its lot (a random number),
    shape ``(n, 2)``. Records that are not ``counting`` are not counted and get the first output."""
    outputs = np.zeros(len(lots), np.int32)
    rows = np.flatnonzero(counting)
    rows = rows[np.lexsort((lots[rows, 1], lots[rows, 0]))]  # ties stay in input order
    totals = np.unique(lots[rows, 0], return_counts=True)[1].tolist()
    # By its text, 0.1 is a tenth, as the user meant it; the float is a bit more.
    weights = [Fraction(str(each)) for each in division.fractions]
    if division.exact:
        parts = dealt_out_in_classes(totals, weights)
    else:
        parts = [dealt_out(total, weights) for total in totals]
    numbers = np.tile(np.arange(len(weights), dtype=np.int32), len(totals))
    outputs[rows] = np.repeat(numbers, np.array(parts, np.int64).reshape(-1))
    return outputs
