"""Compares inputs with outputs: whether every record is there once, in its place, and in order.

Input and output records are matched by key and by content. Records that stay unmatched on either
side are lost, doubled or changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s, places_in, stable_argsort
from dsort.data.hashes import mix
from dsort.naming.names import first_few, readable
from dsort.order.base import Algorithm
from dsort.pipeline.pipeline import Pipeline
from dsort.sizes import format_count
from dsort.spec.model import JobSpec
from dsort.verification.findings import Findings
from dsort.verification.input_table import InputTable, RecordRows, later_duplicates
from dsort.verification.inputs import InputReader
from dsort.verification.order import ShardFacts
from dsort.verification.outputs import OutputReader, OutputTable
from dsort.verification.shards import ShardRecords


def match_records(inputs: InputTable, digests: UInt64s, order: Int64s, group: Int32s) -> Int64s:
    """For each output record (``digests``, shape ``(n, 2)``) the row of the matching expected input
    record, or -1. No input row appears twice.

    Several records may be equal to the last byte. Of equal input records, the records that belong
    to the output of the output record (``group``) are taken first. Equal output rows, in output
    order, are matched with equal input rows, in the ``order`` in which the job should write these.
    If any assignment keeps the order, this assignment keeps it.
    """
    rows = order[inputs.expected[order]]
    source = np.full(len(digests), -1, np.int64)
    if inputs.group.any() or group.any():
        there = np.column_stack([inputs.digests[rows], inputs.group[rows].astype(np.uint64)])
        here = np.column_stack([digests, group.astype(np.uint64)])
        at = _partners(there, here)
        source[at >= 0] = rows[at[at >= 0]]
        is_free = np.ones(len(rows), np.bool_)
        is_free[at[at >= 0]] = False
        rows = rows[is_free]
    left = np.flatnonzero(source < 0)
    at = _partners(inputs.digests[rows], digests[left])
    source[left[at >= 0]] = rows[at[at >= 0]]
    return source


def _partners(there: UInt64s, here: UInt64s) -> Int64s:
    """For each row of ``here`` the number of an equal row of ``there``, or -1. No row is used
    twice; several equal rows are used in their order. Shapes: ``there`` ``(m, k)``, ``here``
    ``(n, k)``."""
    found = np.full(len(here), -1, np.int64)
    if not len(there) or not len(here):
        return found
    left, right = (_folded(columns) for columns in (there, here))
    rows, order = stable_argsort(left), stable_argsort(right)
    values = right[order]
    at = np.searchsorted(left[rows], values) + occurrences(values)
    nearest = np.minimum(at, len(rows) - 1)
    same = (at < len(rows)) & (there[rows[nearest]] == here[order]).all(axis=1)
    found[order[same]] = rows[nearest[same]]
    return found


def _folded(columns: UInt64s) -> UInt64s:
    """One number for each row: the first column, mixed with all columns after the second. (The
    first two columns are the digest.)"""
    words = columns[:, 0].copy()
    for column in range(2, columns.shape[1]):
        words ^= mix(columns[:, column])
    return words


def occurrences(ordered: UInt64s) -> Int64s:
    """The number of equal values before each value of a sorted column."""
    return np.arange(len(ordered)) - np.searchsorted(ordered, ordered)


class Leftovers(Struct, frozen=True, eq=False):
    """Records without a partner. ``missing`` and ``changed_from`` are input rows; all other arrays
    have output rows, each row in one array."""

    missing: Int64s  # input rows: no unmatched output record is left for their key
    changed: Int64s  # the input record with that key has other bytes
    changed_from: Int64s  # the input row that each of ``changed`` should be
    split: Int64s  # there are more records of that key than in the inputs, each with other bytes
    doubled: Int64s  # the same record is in the outputs once more
    dropped: Int64s  # the same record is in the inputs, but should have been dropped
    foreign: Int64s  # the inputs have no such record


def sort_out(inputs: InputTable, key_hash: UInt64s, digests: UInt64s, source: Int64s) -> Leftovers:
    """Find what is wrong with each record for which ``match_records`` found no match."""
    used = np.zeros(len(inputs), np.bool_)
    used[source[source >= 0]] = True
    lost = np.flatnonzero(inputs.expected & ~used)
    extra = np.flatnonzero(source == -1)
    lost = lost[stable_argsort(inputs.key_hash[lost])]
    lost_keys = inputs.key_hash[lost]
    extra_keys = np.sort(key_hash[extra])

    lost_of_key = _count(lost_keys, key_hash[extra])
    extra_of_key = _count(extra_keys, key_hash[extra])
    paired = lost_of_key > 0
    split = paired & (extra_of_key > lost_of_key)
    changed = extra[paired & ~split]
    again, earlier = later_duplicates(key_hash[changed])
    nth = np.zeros(len(changed), np.int64)
    nth[again] = earlier
    partner = lost[np.searchsorted(lost_keys, key_hash[changed]) + nth]
    missing = lost[occurrences(lost_keys) >= _count(extra_keys, lost_keys)]

    alone = extra[~paired]
    known_expected = _among(digests[alone], inputs.digests[inputs.expected])
    known_dropped = _among(digests[alone], inputs.digests[~inputs.expected])
    return Leftovers(
        missing=np.sort(missing),
        changed=changed,
        changed_from=partner,
        split=extra[split],
        doubled=alone[known_expected],
        dropped=alone[known_dropped & ~known_expected],
        foreign=alone[~known_expected & ~known_dropped],
    )


def _count(ordered: UInt64s, wanted: UInt64s) -> Int64s:
    """How often each of ``wanted`` is in the sorted column ``ordered``."""
    return np.searchsorted(ordered, wanted, "right") - np.searchsorted(ordered, wanted, "left")


def _among(digests: UInt64s, known: UInt64s) -> Bools:
    """Which of ``digests`` (few) are in ``known`` (many)."""
    hits = np.isin(known[:, 0], digests[:, 0])
    both = {tuple(row) for row in known[hits].tolist()}
    return np.array([tuple(row) in both for row in digests.tolist()], np.bool_)


class Comparison(Struct, frozen=True):
    """Compares the inputs with the outputs, both already read. Shards are read again only to name
    the records of a problem."""

    spec: JobSpec
    pipeline: Pipeline
    algorithm: Algorithm
    inputs: InputTable
    input_reader: InputReader
    named: NamedOutputs
    findings: Findings

    @property
    def outputs(self) -> OutputTable:
        """All records of the outputs."""
        return self.named.outputs

    def check(self) -> None:
        """Check everything about the outputs that follows from the inputs."""
        order = self.inputs.order(self.algorithm)
        if self.spec.equalize is not None:
            inputs = without_last(self.inputs, self.outputs, self.algorithm, order)
            return replace(self, inputs=inputs)._check(order)
        return self._check(order)

    def _check(self, order: Int64s) -> None:
        source = match_records(self.inputs, self.outputs.digests, order, self.outputs.group)
        if self.spec.equalize is not None and not self.algorithm.decided_by_inputs:
            inputs = without_unmatched(self.inputs, self.outputs, source)
            return replace(self, inputs=inputs)._tell_all(source, order)
        return self._tell_all(source, order)

    def _tell_all(self, source: Int64s, order: Int64s) -> None:
        left = sort_out(self.inputs, self.outputs.key_hash, self.outputs.digests, source)
        self._tell_leftovers(left)
        self._check_places(source)
        self._check_order(source, order)
        if self.spec.keys_are_unique:
            self.named.check_unique_keys(np.flatnonzero(source >= 0))

    # -- every record once -----------------------------------------------------------------------

    def _tell_leftovers(self, left: Leftovers) -> None:
        partners = dict(zip(left.changed.tolist(), left.changed_from.tolist(), strict=True))
        shards, read = self.inputs.shards, self.input_reader.shard
        inputs = _NamedRows(
            self.inputs.rows, shards, lambda at: read(at, shards[at])[0], self.findings
        )
        inputs.prepare(left.changed_from[: self.findings.room])
        outputs = self.named

        def changed(row: int) -> str:
            partner = partners[row]
            here, there = outputs.record(row), inputs.record(partner)
            return f"{_difference(here, there)} in the input shard {inputs.shard_of(partner)}"

        outputs.tell(left.changed, "changed_bytes", changed)
        for rows, kind, text in (
            (left.split, "split_record", "a piece of a record: its members are not side by side"),
            (left.doubled, "doubled_record", "the same record is in the result already"),
            (
                left.dropped,
                "undropped_record",
                "the spec leaves it out: an earlier record has its key, the key map has no place "
                "for it, or its key was removed",
            ),
            (left.foreign, "foreign_record", "no input shard has such a record"),
        ):
            outputs.tell(rows, kind, text)
        self._tell_missing(left.missing, inputs)

    def _tell_missing(self, missing: Int64s, inputs: _NamedRows) -> None:
        """Report the ``missing`` records, except those that may be in unreadable shards."""
        unreadable = sum(shard.records for shard in self.outputs.facts if not shard.readable)
        if unreadable:
            if len(missing) > unreadable:
                lost = format_count(
                    len(missing), "record of the inputs is", "records of the inputs are"
                )
                text = (
                    f"{lost} in no output shard that can be read, and the unreadable shards "
                    f"should have {unreadable:,}"
                )
                self.findings.problem("missing_record", "", "", text)
            return
        text = "input: this record is in no output shard"
        inputs.tell(missing, "missing_record", text)

    # -- where they belong -----------------------------------------------------------------------

    def _check_places(self, source: Int64s) -> None:
        """Check that every record is in a shard of its template."""
        rows = np.flatnonzero(source >= 0)
        if self.spec.keep_shards:
            self._check_shards(source, rows)
        wrong = rows[self.inputs.group[source[rows]] != self.outputs.group[rows]]
        who, outputs = "the spec", [target.name for target in self.spec.targets]
        if given := self.pipeline.placed_by:
            outputs = list(given.templates) or outputs
            who = f"{given.words}, as it is now,"

        def text(row: int) -> str:
            group = int(self.inputs.group[source[row]])
            place = outputs[group] if group >= 0 else "no template"
            return f"{who} gives it {place}"

        self.named.tell(wrong, "misplaced_record", text)

    def _check_shards(self, source: Int64s, rows: Int64s) -> None:
        """Check that every record is in the output shard of its input shard."""
        shards = self.inputs.shard_of(source[rows])
        wrong = rows[shards != self.outputs.rows.shard_of(rows)]

        def text(row: int) -> str:
            (shard,) = self.inputs.shard_of(source[row : row + 1]).tolist()
            return f"it is in the input {self.inputs.shards[shard]}, which has another output shard"

        self.named.tell(wrong, "misplaced_record", text)

    def _check_order(self, source: Int64s, order: Int64s) -> None:
        """Check that records are in the order of the inputs, or of the shuffle. In both cases,
        records with equal sort keys have to be in the order of the inputs."""
        rows = np.flatnonzero(source >= 0)
        before, after = rows[:-1], rows[1:]
        same_group = self.outputs.group[before] == self.outputs.group[after]
        place = places_in(order)
        behind = place[source[after]] < place[source[before]]
        text = "it ties with the record before it, which comes later in the inputs"
        if self.algorithm.has_hashes:
            text = "by the shuffle's hash, it belongs before the record that precedes it"
        elif self.algorithm.decided_by_inputs:
            text = "in the inputs, it comes before the record that precedes it here"
        if not self.algorithm.decided_by_inputs:
            if self.inputs.rows.are_joined and self.algorithm.joins:
                return  # the keys of joined records all differ, so no two records tie
            behind &= self.outputs.ties[after] & (after == before + 1)
        wrong = after[behind & same_group]
        self.named.tell(wrong, "order", text)


class _Detail(Struct, frozen=True):
    """One record in full: its key, and the name and digest of each of its members."""

    key: str
    members: tuple[tuple[str, tuple[int, ...]], ...]


class _NamedRows:
    """Keys and members of a few rows, read from their shards once more."""

    def __init__(
        self,
        rows: RecordRows,
        shards: Sequence[str],
        read: Callable[[int], ShardRecords],
        findings: Findings,
    ) -> None:
        """``shards``: the names of the shards of ``rows``; ``read`` reads one, by its ordinal."""
        self._rows = rows
        self._shards = shards
        self._read = read
        self._findings = findings
        self._details: dict[int, _Detail] = {}

    def prepare(self, rows: Int64s) -> None:
        """Read the shards that are needed to name ``rows``, each once."""
        pieces = [each for row in rows.tolist() for each in self._rows.pieces_of(row)]
        by_shard: dict[int, list[int]] = defaultdict(list)
        shards = self._rows.shard_of(np.array(pieces, np.int64))
        for row, shard in zip(pieces, shards.tolist(), strict=True):
            if row not in self._details:
                by_shard[shard].append(row)
        for shard, wanted in sorted(by_shard.items()):
            records = self._read(shard)
            first = int(self._rows.first_rows[shard])
            self._details.update((row, _detail(records, row - first)) for row in wanted)

    def record(self, row: int) -> _Detail:
        """The details of a row that ``prepare`` has read."""
        parts = [self._details[each] for each in self._rows.pieces_of(row)]
        return _Detail(parts[0].key, tuple(each for part in parts for each in part.members))

    def shard_of(self, row: int) -> str:
        """The name of the shard in which a row begins."""
        first = np.array(self._rows.pieces_of(row)[:1])
        return self._shards[int(self._rows.shard_of(first)[0])]

    def tell(self, rows: Int64s, kind: str, text: str | Callable[[int], str]) -> None:
        """Report a problem for each of ``rows``. If there is no room for more names, the rows are
        only counted."""
        shown = rows[: self._findings.room]
        self.prepare(shown)
        for row in shown.tolist():
            said = text if isinstance(text, str) else text(row)
            self._findings.problem(kind, self.shard_of(row), self.record(row).key, said)
        self._findings.unnamed(len(rows) - len(shown))


class NamedOutputs(_NamedRows):
    """Names records of the outputs that have a problem."""

    def __init__(self, outputs: OutputTable, reader: OutputReader, findings: Findings) -> None:
        names = [shard.name for shard in outputs.facts]
        super().__init__(outputs.rows, names, lambda at: reader.records(names[at]), findings)
        self.outputs = outputs

    def check_unique_keys(self, rows: Int64s) -> None:
        """Check that no two of the output ``rows`` have the same key."""
        again = rows[later_duplicates(self.outputs.key_hash[rows])[0]]
        self.tell(again, "duplicate_key", "an earlier record of the result has its key")

    def check_known_keys(self, known: UInt64s) -> None:
        """Check that no record has a key that the result had before. ``known``: the hashes of
        these keys."""
        again = np.flatnonzero(np.isin(self.outputs.key_hash, known))
        text = "a record of the result had its key before it was added"
        self.tell(again, "duplicate_key", text)

    def check_removed(self, removed: UInt64s) -> None:
        """Check that no record has a key that was removed (``removed``: their hashes)."""
        rows = np.flatnonzero(np.isin(self.outputs.key_hash, removed))
        self.tell(rows, "undropped_record", "its key was removed")


def _detail(records: ShardRecords, record: int) -> _Detail:
    members = tuple(
        (readable(records.members.names[row]), tuple(records.member_digests[row].tolist()))
        for row in records.rows_of(record)
    )
    return _Detail(readable(records.keys[record]), members)


def _difference(here: _Detail, there: _Detail) -> str:
    """In words, the difference between an output record and the input record to which it should be
    equal."""
    names_here, names_there = ([name for name, _ in each.members] for each in (here, there))
    if names_here == names_there:
        pairs = zip(here.members, there.members, strict=True)
        differing = [name for (name, one), (_, other) in pairs if one != other]
        return f"{first_few(differing, 5)} has other bytes than"
    here_are, there_are = first_few(names_here, 5), first_few(names_there, 5)
    return f"has the members {here_are} in place of {there_are}"


def _groups(
    inputs: InputTable, outputs: OutputTable, order: Int64s
) -> list[tuple[Int64s, list[ShardFacts]]]:
    """For each output: (the input rows that belong there, in ``order``; the shards of the
    output)."""
    found = []
    for group in sorted({shard.place.group for shard in outputs.facts}):
        is_own = inputs.expected & (inputs.group == group)
        own = [shard for shard in outputs.facts if shard.place.group == group]
        found.append((order[is_own[order]], own))
    return found


def without_last(
    inputs: InputTable, outputs: OutputTable, algorithm: Algorithm, order: Int64s
) -> InputTable:
    """``inputs`` without the records that are left over after the last shard. If the order of the
    outputs depends on more than the inputs, no record is left out."""
    if not algorithm.decided_by_inputs:
        return inputs
    expected = inputs.expected.copy()
    for rows, shards in _groups(inputs, outputs, order):
        left = len(rows) % len(shards)
        expected[rows[len(rows) - left :]] = False
    return replace(inputs, expected=expected)


def without_unmatched(inputs: InputTable, outputs: OutputTable, source: Int64s) -> InputTable:
    """``inputs`` without the records that equal shards leave out: for each output, the remainder of
    its number of records divided by its number of shards. These are taken from the unmatched
    records. ``source``: the input row of each output row, or -1."""
    used = np.zeros(len(inputs), np.bool_)
    used[source[source >= 0]] = True
    expected = inputs.expected.copy()
    for rows, shards in _groups(inputs, outputs, np.arange(len(inputs))):
        there = sum(shard.records for shard in shards)
        unused = rows[~used[rows]]
        if len(rows) - there == len(rows) % len(shards):
            expected[unused[: len(rows) % len(shards)]] = False
    return replace(inputs, expected=expected)
