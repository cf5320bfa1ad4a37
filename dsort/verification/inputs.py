"""The input side of a verification: which records the inputs give, by the policies of the spec.

All of this is computed from the shards alone. The module does not read the job's decisions, so that
wrong decisions are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.base import refusal
from dsort.containers.codecs.decoding import DecodingRules
from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s, offsets_of, rows_of_runs
from dsort.data.hashes import hash_keys
from dsort.data.members import MemberTable
from dsort.data.numbered import NumberedColumn, are_positions
from dsort.data.record_table import RecordTable
from dsort.data.records import LAST_IS_KEPT, FormedRecords, form_records
from dsort.errors import CorruptShardError, ShardEndError, TransformError
from dsort.expressions.expression import text_of_value
from dsort.job.setup.user_code import CodeAgain
from dsort.moves.input_shard import ShardBytes
from dsort.order.equal_keys import JoinRule
from dsort.pipeline.pipeline import DeduplicationByField, Pipeline
from dsort.reading.shard_reader import ShardReader
from dsort.results.manifest import ManifestInput
from dsort.sizes import format_count
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.routed import input_of
from dsort.transforms.base import apply_steps
from dsort.verification.findings import Findings, ProgressTeller
from dsort.verification.input_table import (
    NOT_COMPARED,
    InputTable,
    RecordRows,
    contents_of,
    copies_asked_for,
    free_keys,
    join_pieces,
    keys_are_numbers,
    later_duplicates,
    members_that_stay,
    others_of,
    outputs_asked_for,
)
from dsort.verification.order import HashPlaces, PlaceFacts, records_read
from dsort.verification.plain import (
    RowsAsTheyAre,
    copied,
    with_names_of_steps,
    with_new_keys,
    with_safe_names,
)
from dsort.verification.shards import (
    ComparedBytes,
    ShardRecords,
    as_compared,
    combined,
    digests_by_output,
    ways_of,
)

Renames = dict[int, dict[int, bytes]]
"""Input ordinal → record ordinal → the record's new key."""


_NONE = np.zeros(0, np.int64)
_NO_HASHES = np.zeros(0, np.uint64)
_NO_DIGESTS = np.zeros((0, 2), np.uint64)


class _Part(Struct, frozen=True, eq=False):
    """The records of one shard, shape ``(n,)``; see ``InputTable``. If records are pieces of joined
    records, ``of_members`` are the digests of their members, and ``extensions`` the hashes of the
    members' extensions."""

    key_hash: UInt64s
    digests: UInt64s
    members: Int32s
    group: Int32s
    are_distinct: bool
    of_members: UInt64s = _NO_DIGESTS
    extensions: UInt64s = _NO_HASHES


class InputReader:
    """Reads the inputs of one job again."""

    def __init__(
        self,
        spec: JobSpec,
        pipeline: Pipeline,
        bucket: Bucket,
        reader: ShardReader,
        compared: Sequence[ComparedBytes],
        *,
        code: CodeAgain | None,
        rows: RowsAsTheyAre,
        max_expansion: float | None,
        known: UInt64s,
    ) -> None:
        """``compared``: for each output, the part of its records that is compared. ``code``: runs
        the steps, if some of them run code; ``rows``: makes the rows of these steps again.
        ``known``: the hashes of the keys of the result to which the records were added."""
        self._rows = rows
        self._spec = spec
        self._known = known
        self._code = code
        self._pipeline = pipeline
        self._division = pipeline.division
        self._bucket = bucket
        self._reader = reader
        self._renames: Renames = {}
        self._compared = compared
        self._reached = (0,) * sum(step.needs_positions for step in pipeline.steps)
        self._firsts: dict[int, tuple[int, ...]] = {}
        self._decoding = DecodingRules(max_expansion or spec.max_expansion, pipeline.reading.codec)
        self._copies: dict[str, Int64s] = {}
        self._copies_have_numbers = False
        self._contents: dict[int, UInt64s] = {}
        self._outputs: dict[int, Int32s] = {}
        placement = spec.algorithm.build().placement
        self._facts = PlaceFacts(placement) if placement else HashPlaces()

    @property
    def passes(self) -> int:
        """How often the inputs are read. New keys, the number of copies of each record, and exact
        shares of several outputs each need a pass of their own before bytes are compared."""
        renames = self._spec.config.duplicate_keys == "rename"
        return 1 + renames + self._spec.weighs_inputs + self._division.is_counted

    def read(
        self, inputs: Sequence[ManifestInput], findings: Findings, progress: ProgressTeller
    ) -> InputTable:
        """The records of ``inputs``; ``NOT_COMPARED`` if one of them cannot be read, which is
        reported as a problem."""
        if self._spec.weighs_inputs:
            self._choose_copies(inputs, progress)
            names = [shard.name for shard in inputs]
            self._copies_have_numbers = keys_are_numbers(self._pipeline, names)
        if self._division.is_counted:
            self._choose_outputs(inputs, progress)
        if self._spec.config.duplicate_keys == "rename":
            self._choose_new_keys(inputs, progress)
        parts: list[_Part] = []
        readable = True
        for ordinal, shard in enumerate(inputs):
            before = self._reader.bytes_read
            try:
                records, group = self.shard(ordinal, shard.name)
            except (CorruptShardError, ShardEndError, TransformError) as error:
                readable = False
                if isinstance(error, TransformError):
                    findings.problem("code", shard.name, "", f"run again, {error.message}")
                else:
                    _tell_unreadable(shard.name, error, findings)
                progress.advance(shards=1, records=0, bytes_done=self._reader.bytes_read - before)
                continue
            placed = int((group >= 0).sum())
            rule = self._pipeline.join
            if placed != shard.records and not rule.is_settled_first:
                text = (
                    f"input: {format_count(placed, 'record')}, the manifest has {shard.records:,}"
                )
                findings.problem("counts", shard.name, "", text)
            members = np.diff(records.member_offsets).astype(np.int32)
            if len(records) and not isinstance(records.keys, NumberedColumn):
                self._copies_have_numbers = False
            distinct = are_positions(records.keys)
            part = _Part(records.key_hash, records.digests, members, group, distinct)
            if rule:
                of_members = records.member_digests[records.member_rows]
                part = replace(part, of_members=of_members, extensions=_extensions(records))
            parts.append(part)
            done = self._reader.bytes_read - before
            progress.advance(shards=1, records=len(records), bytes_done=done)
        return self._table([shard.name for shard in inputs], parts) if readable else NOT_COMPARED

    def shard(self, ordinal: int, name: str) -> tuple[ShardRecords, Int32s]:
        """(records, their outputs or templates by the key map) of one input shard.

        ``CorruptShardError`` if it is corrupt, unless the spec skips such shards: then it has no
        records. ``ShardEndError`` if it does not end as the spec requires.
        """
        each_way: list[tuple[ComparedBytes, ShardRecords]] = []
        for ways in ways_of(self._compared):
            with self._reader.open(self._bucket, name, self._decoding) as shard:
                formed = self._formed(ordinal, shard, ways[0])
                records, members, group = self._with_copies(shard, *formed)
                if not each_way:
                    self._note_contents(ordinal, shard, records, members)
                new_keys = self._renames.get(ordinal, {})
                members, records = with_new_keys(shard, members, records, new_keys)
                own = [(way, as_compared(shard, members, records, way)) for way in ways]
                if not each_way:
                    self._facts.look(ordinal, records_read(shard, own[0][1], self._pipeline))
                each_way += own
        group = self._outputs.get(ordinal, group)
        (_, found), *others = each_way
        for way, other in others:
            found = combined(found, other, self._compared, way, group)
        return found, group

    def _formed(
        self, ordinal: int, shard: ShardBytes, compared: ComparedBytes
    ) -> tuple[FormedRecords, MemberTable]:
        """(records, members) of an opened shard; none if the shard is corrupt and the spec skips
        such shards. ``compared``: the parts that are compared. ``ShardEndError`` if the shard may
        not be whole and the spec says to abort."""
        config = self._spec.config
        try:
            scanned, oddities = shard.members(), shard.container.oddities
            if config.corrupt_shards == "skip":
                shard.check_payloads(scanned)
            members = compared.members(shard, scanned, config.stray_members)
        except CorruptShardError:
            if config.corrupt_shards == "skip":
                return _no_records()
            raise
        notes = scanned.notes
        refused = refusal(oddities, notes, config.incomplete_shards, config.concatenated_shards)
        if refused:
            raise ShardEndError(refused[0], hint=refused[1])
        if config.unsafe_names == "rename":
            members = with_safe_names(shard, members)
        records = form_records(
            members, config.stray_members, keep_last=config.duplicated_records in LAST_IS_KEPT
        )
        if self._pipeline.steps:
            left = self._transformed(ordinal, shard, members, records)
            records = left.records
            members = with_names_of_steps(shard, members, left.members, records.member_rows)
            members, records = self._rows.cells(shard, members, records)
        members, records = compared.records(members, records)
        return records, members

    def _transformed(
        self, ordinal: int, shard: ShardBytes, members: MemberTable, records: FormedRecords
    ) -> RecordTable:
        """The records after the steps of the job. In the first pass, shards are read in their
        order, because the numbers of their records follow from it."""
        table = self._records_of(shard, members, records)
        firsts = self._firsts.get(ordinal, self._reached)
        if self._code is not None:
            left = self._code.run(shard, members, records, input_name=table.input, firsts=firsts)
            counts, table = left.counts, self._records_of(shard, left.named, left.records)
        else:
            applied = apply_steps(self._pipeline.steps, table, firsts)
            counts, table = applied.counts, applied.records
        if ordinal not in self._firsts:
            self._firsts[ordinal] = firsts
            pairs = zip(firsts, counts, strict=True)
            self._reached = tuple(first + count for first, count in pairs)
        return table

    def _records_of(
        self, shard: ShardBytes, members: MemberTable, records: FormedRecords
    ) -> RecordTable:
        named = input_of(shard.name, (source.name for source in self._spec.sources))
        are_rows = shard.container.is_columnar
        return RecordTable(
            shard.name, members, records, shard.content, input=named, are_rows=are_rows
        )

    def _groups(self, shard: ShardBytes, records: FormedRecords, members: MemberTable) -> Int32s:
        """The output or the template of each record. Exact shares of outputs depend on all records:
        see ``_choose_outputs``."""
        if self._division and not self._division.is_counted:
            return self._division.numbers(self._records_of(shard, members, records))
        return self._templates(records, members)

    def _templates(self, records: FormedRecords, members: MemberTable) -> Int32s:
        """The template of each record by the key map, -1 if it has none; 0 without a key map."""
        given, are_joined = self._pipeline.placed_by, self._spec.join is not None
        if not given:
            return np.zeros(len(records), np.int32)
        return given.expected(records, members, are_joined=are_joined)

    def _table(self, shards: Sequence[str], parts: list[_Part]) -> InputTable:
        counts = [len(part.key_hash) for part in parts]
        key_hash = np.concatenate([_NO_HASHES, *(part.key_hash for part in parts)])
        group = np.concatenate([np.zeros(0, np.int32), *(part.group for part in parts)])
        table = InputTable(
            shards=tuple(shards),
            rows=RecordRows(np.cumsum([0, *counts])),
            key_hash=key_hash,
            digests=np.concatenate([_NO_DIGESTS, *(part.digests for part in parts)]),
            members=np.concatenate([np.zeros(0, np.int32), *(part.members for part in parts)]),
            group=group,
            expected=self._expected(key_hash, group),
            facts=self._facts,
            are_distinct=tuple(part.are_distinct for part in parts),
        )
        rule = self._pipeline.join
        if not rule:
            return table
        of_members = np.concatenate([_NO_DIGESTS, *(part.of_members for part in parts)])
        extensions = np.concatenate([_NO_HASHES, *(part.extensions for part in parts)])
        return self._joined(rule, table, of_members, extensions)

    def _joined(
        self, rule: JoinRule, table: InputTable, digests: UInt64s, extensions: UInt64s
    ) -> InputTable:
        """The table of the joined records; the rows of ``table`` are their pieces. ``digests``,
        shape ``(m, 2)``, and ``extensions``: the digests and the hashes of the extensions of all
        pieces' members."""
        numbers = {name: number for number, name in enumerate(rule.inputs)}
        inputs = np.array([numbers[input_of(name, rule.inputs)] for name in table.shards], np.int32)
        of_rows = np.repeat(inputs, np.diff(table.first_rows))
        pieces = join_pieces(rule, table.key_hash, of_rows, table.expected, table.first_rows)
        first_members = offsets_of(table.members)[pieces.numbers]
        picked, offsets = rows_of_runs(first_members, table.members[pieces.numbers])
        bounds = offsets[pieces.offsets]
        record = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        stays = members_that_stay(rule.conflict, record, extensions[picked])
        picked = picked[stays]
        bounds = offsets_of(np.bincount(record[stays], minlength=len(bounds) - 1))
        first = pieces.numbers[pieces.offsets[:-1]]
        group = table.group[first]
        return InputTable(
            shards=table.shards,
            rows=pieces,
            key_hash=table.key_hash[first],
            digests=digests_by_output(self._compared, digests[picked], bounds, group),
            members=np.diff(bounds).astype(np.int32),
            group=group,
            expected=pieces.expected,
        )

    def _expected(self, key_hash: UInt64s, group: Int32s) -> Bools:
        """Which records have to be in the result by the policies of the spec."""
        config = self._spec.config
        expected = np.ones(len(key_hash), np.bool_)
        if config.ekm_missing_key != "abort":
            expected &= group >= 0
        self._leave_out_equal(key_hash, expected)
        if config.duplicate_keys == "drop" and not (
            self._pipeline.join or self._copies_have_numbers
        ):
            placed = np.flatnonzero(expected)
            expected[placed[later_duplicates(key_hash[placed])[0]]] = False
        if config.duplicate_keys == "drop":
            expected &= ~np.isin(key_hash, self._known)
        return expected

    def _leave_out_equal(self, key_hash: UInt64s, expected: Bools) -> None:
        """Clear ``expected`` for the records that ``deduplicate`` leaves out."""
        wanted = self._spec.deduplicate
        if not wanted:
            return
        same = key_hash
        if wanted.by != "key":
            parts = [self._contents[at] for at in sorted(self._contents)]
            same = np.concatenate([_NO_HASHES, *parts])
        expected[others_of(same, expected, keep_last=wanted.keep == "last")] = False
        if wanted.by == "key":
            expected &= ~np.isin(key_hash, self._known)

    # -- new keys --------------------------------------------------------------------------------

    def _choose_new_keys(self, inputs: Sequence[ManifestInput], progress: ProgressTeller) -> None:
        """Choose new keys for ``duplicate_keys: rename``, in input order: the second record of a
        key becomes ``key-1``, and so on; numbers that are taken are passed over."""
        keys, hashes, shards, ordinals = [BytesColumn.empty(0)], [_NO_HASHES], [_NONE], [_NONE]
        for ordinal, shard, formed, unplaced in self._each(inputs):
            records, _, group = self._with_copies(shard, formed, unplaced)
            placed = np.flatnonzero(group >= 0)  # the key map has no output for the others
            progress.advance(shards=1, records=len(placed), bytes_done=0)
            keys.append(records.keys.take(placed))
            hashes.append(records.key_hash[placed])
            ordinals.append(placed)
            shards.append(np.full(len(placed), ordinal, np.int64))
        key_hash = np.concatenate(hashes)
        rows, nth = later_duplicates(key_hash)
        old = BytesColumn.concat(keys).take(rows).tolist()
        new = free_keys(old, nth.tolist(), np.unique(key_hash))
        shard_of, ordinal_of = np.concatenate(shards)[rows], np.concatenate(ordinals)[rows]
        for at, record, key in zip(shard_of.tolist(), ordinal_of.tolist(), new, strict=True):
            self._renames.setdefault(at, {})[record] = key

    def _each(
        self, inputs: Sequence[ManifestInput]
    ) -> Iterator[tuple[int, ShardBytes, FormedRecords, MemberTable]]:
        """(ordinal, opened shard, records, members) of each input, for the passes before bytes are
        compared. A shard that cannot be read has no records here; the later comparison reports its
        error."""
        for ordinal, each in enumerate(inputs):
            with self._reader.open(self._bucket, each.name, self._decoding) as shard:
                try:
                    formed = self._formed(ordinal, shard, self._compared[0])
                except (CorruptShardError, ShardEndError, TransformError):
                    formed = _no_records()
                yield ordinal, shard, *formed

    # -- weights ---------------------------------------------------------------------------------

    def _choose_copies(self, inputs: Sequence[ManifestInput], progress: ProgressTeller) -> None:
        """Set how often each record is written, by the spec. Only records that have an output, and
        that ``deduplicate`` does not leave out, are written."""
        hashes, placed = [_NO_HASHES], [np.zeros(0, np.bool_)]
        for ordinal, shard, records, members in self._each(inputs):
            self._note_contents(ordinal, shard, records, members)
            hashes.append(records.key_hash)
            placed.append(self._templates(records, members) >= 0)
            progress.advance(shards=1, records=len(hashes[-1]), bytes_done=0)
        key_hash, left = np.concatenate(hashes), np.concatenate(placed)
        self._leave_out_equal(key_hash, left)
        parts = np.split(left, np.cumsum([len(own) for own in hashes[1:]])[:-1])
        rows = zip(inputs, hashes[1:], parts, strict=False)
        found = {each.name: (own, is_left) for each, own, is_left in rows}
        self._copies = copies_asked_for(self._spec, found)

    # -- exact shares of several outputs ----------------------------------------------------------

    def _choose_outputs(self, inputs: Sequence[ManifestInput], progress: ProgressTeller) -> None:
        """Set the output of each record of each shard. (A lot is a random number that a record
        draws.)"""
        lots, hashes = [_NO_DIGESTS], [_NO_HASHES]
        for ordinal, shard, records, members in self._each(inputs):
            found, own = self._drawn(ordinal, shard, records, members)
            lots.append(found)
            hashes.append(own)
            progress.advance(shards=1, records=len(own), bytes_done=0)
        key_hash = np.concatenate(hashes)
        counting = self._expected(key_hash, np.zeros(len(key_hash), np.int32))
        outputs = outputs_asked_for(self._division, np.concatenate(lots), counting)
        parts = np.split(outputs, np.cumsum([len(own) for own in hashes[1:]])[:-1])
        self._outputs = dict(enumerate(parts))

    def _drawn(
        self, ordinal: int, shard: ShardBytes, records: FormedRecords, members: MemberTable
    ) -> tuple[UInt64s, UInt64s]:
        """For each record that is written: (class and lot, hash of the key)."""
        are_rows = self._pipeline.moves_rows
        table = self._records_of(shard, members, records)
        found = self._division.lots(table, are_rows=are_rows)
        if self._copies:
            found = np.repeat(found, self._copies[shard.name], axis=0)
        records, members, _ = self._with_copies(shard, records, members)
        self._note_contents(ordinal, shard, records, members)
        return found, records.key_hash

    def _note_contents(
        self, ordinal: int, shard: ShardBytes, records: FormedRecords, members: MemberTable
    ) -> None:
        """Keep the number by which deduplication compares each record, if it compares more than
        keys."""
        compared = self._pipeline.compared
        if not compared:
            return
        if isinstance(compared, DeduplicationByField):
            table = self._records_of(shard, members, records)
            values = compared.value.values_of(table, "deduplicate: by")
            found = hash_keys(map(text_of_value, values), len(values))
        else:
            found = contents_of(shard, records, members, compared.extensions)
        self._contents[ordinal] = found

    def _with_copies(
        self, shard: ShardBytes, records: FormedRecords, members: MemberTable
    ) -> tuple[FormedRecords, MemberTable, Int32s]:
        """(records, members, outputs or templates), with every record repeated as often as it is
        written."""
        group = self._groups(shard, records, members)
        if self._copies:
            counts = self._copies[shard.name]
            members, records = copied(shard, members, records, counts)
            group = np.repeat(group, counts)
        return records, members, group


def _no_records() -> tuple[FormedRecords, MemberTable]:
    none = MemberTable.empty()
    return form_records(none, "keep"), none


def _extensions(records: ShardRecords) -> UInt64s:
    """The hashes of the extensions of all members of the records, in their order."""
    names, key_bytes = records.members.names, records.key_bytes
    found = [names[row][int(key_bytes[row]) :] for row in records.member_rows.tolist()]
    return hash_keys(found, len(found))


def _tell_unreadable(
    shard: str, error: CorruptShardError | ShardEndError, findings: Findings
) -> None:
    if isinstance(error, CorruptShardError):
        text = f"input: {error.reason}, at byte {error.offset:,}"
        findings.problem("corrupt_shard", shard, "", text)
    else:
        findings.problem("incomplete_shard", shard, "", f"input: {error.message}")
