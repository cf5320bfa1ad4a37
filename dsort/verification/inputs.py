"""The input side of a verification: which records the inputs give, by the reactions of the spec.

Worked out from the shards alone. Decisions of the job are not read, so that a wrong one shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.base import refusal
from dsort.containers.codecs.decoding import DecodingRules
from dsort.data.columns import Bools, BytesColumn, Int32s, Int64s, UInt64s
from dsort.data.hashes import hash_keys
from dsort.data.members import MemberTable
from dsort.data.numbered import are_positions
from dsort.data.record_table import RecordTable
from dsort.data.records import LAST_IS_KEPT, FormedRecords, form_records
from dsort.errors import CorruptShardError, ShardEndError, TransformError
from dsort.expressions.expression import text_of_value
from dsort.job.setup.user_code import CodeAgain
from dsort.keymap.match import KeyMap
from dsort.moves.input_shard import ShardBytes
from dsort.order.joining import JoinRule
from dsort.pipeline.compile import compile_pipeline
from dsort.reading.shard_reader import ShardReader
from dsort.results.manifest import ManifestInput
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.routed import input_of
from dsort.transforms.base import Step, apply_steps
from dsort.verification.by_output import as_compared, combined, digests_by_output, ways_of
from dsort.verification.findings import Findings, ProgressTeller
from dsort.verification.input_table import (
    InputTable,
    contents_of,
    free_keys,
    join_pieces,
    later_duplicates,
    members_that_stay,
    others_of,
)
from dsort.verification.order import PlaceFacts, records_read
from dsort.verification.plain import (
    copied,
    with_names_of_steps,
    with_new_keys,
    with_safe_names,
)
from dsort.verification.read import ComparedBytes, ShardRecords
from dsort.verification.rows_again import RowsAgain
from dsort.verification.shares import copies_asked_for, outputs_asked_for

Renames = dict[int, dict[int, bytes]]
"""Input ordinal → record ordinal → the record's new key."""


_NONE = np.zeros(0, np.int64)
_NO_RECORDS = ShardRecords(
    members=MemberTable(BytesColumn.of([]), np.zeros(0, np.uint8), _NONE, _NONE, _NONE, _NONE),
    member_digests=np.zeros((0, 2), np.uint64),
    member_rows=_NONE,
    member_offsets=np.zeros(1, np.int64),
    key_bytes=_NONE,
    keys=BytesColumn.of([]),
    key_hash=np.zeros(0, np.uint64),
    digests=np.zeros((0, 2), np.uint64),
)


class _Part(Struct, frozen=True, eq=False):
    """The records of one shard, shape ``(n,)``; see ``InputTable``. Where records are pieces of
    joined ones: ``of_members``, the digests of their members, and ``extensions``, the hashes of
    the extensions of these."""

    key_hash: UInt64s
    digests: UInt64s
    members: Int32s
    group: Int32s | None
    of_members: UInt64s | None = None
    extensions: UInt64s | None = None
    are_distinct: bool = False


class InputReader:
    """Reads the inputs of one job again."""

    def __init__(
        self,
        spec: JobSpec,
        keymap: KeyMap | None,
        steps: Sequence[Step],
        bucket: Bucket,
        reader: ShardReader,
        compared: Sequence[ComparedBytes],
        *,
        code: CodeAgain | None = None,
        rows: RowsAgain | None = None,
        max_expansion: float | None = None,
        known: UInt64s | None = None,
    ) -> None:
        """``compared``: what is compared of the records of each output. ``code``: the runner of the
        steps, where some of them run code; ``rows``: set where these steps make rows from rows.
        ``known``: the hashes of the keys of the result to which the records were added; None if
        these records are the first of the result."""
        self._rows = rows
        self._spec = spec
        self._known = known
        self._code = code
        self._keymap = keymap
        self._pipeline = pipeline = compile_pipeline(spec)
        self._division = pipeline.division
        self._bucket = bucket
        self._reader = reader
        self._renames: Renames = {}
        self._compared = compared
        self._steps = steps
        self._reached = (0,) * sum(step.needs_positions for step in steps)
        self._firsts: dict[int, tuple[int, ...]] = {}
        self._decoding = DecodingRules(max_expansion or spec.max_expansion, pipeline.reading.codec)
        self._copies: dict[str, Int64s] | None = None
        self._contents: dict[int, UInt64s] = {}
        self._outputs: dict[int, Int32s] = {}
        placement = spec.algorithm.build().placement
        self._facts = PlaceFacts(placement) if placement is not None else None

    @property
    def passes(self) -> int:
        """How often the inputs are read. New keys, the number of copies of each record and exact
        numbers of outputs need a pass of their own before bytes are compared."""
        renames = self._spec.config.duplicate_keys == "rename"
        return 1 + renames + self._spec.weighs_inputs + self._counts_outputs

    @property
    def _counts_outputs(self) -> bool:
        return self._division.is_counted

    def read(
        self, inputs: Sequence[ManifestInput], findings: Findings, progress: ProgressTeller
    ) -> InputTable | None:
        """The records of ``inputs``; None if one of them cannot be read, which is reported as a
        problem."""
        if self._spec.weighs_inputs:
            self._choose_copies(inputs, progress)
        if self._counts_outputs:
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
            placed = len(records) if group is None else int((group >= 0).sum())
            rule = self._pipeline.join
            if placed != shard.records and not rule.is_settled_first:
                text = f"input: {placed:,} records, the manifest says {shard.records:,}"
                findings.problem("counts", shard.name, "", text)
            members = np.diff(records.member_offsets).astype(np.int32)
            distinct = are_positions(records.keys)
            part = _Part(records.key_hash, records.digests, members, group, are_distinct=distinct)
            if self._spec.join is not None:
                of_members = records.member_digests[records.member_rows]
                part = replace(part, of_members=of_members, extensions=_extensions(records))
            parts.append(part)
            done = self._reader.bytes_read - before
            progress.advance(shards=1, records=len(records), bytes_done=done)
        return self._table([shard.name for shard in inputs], parts) if readable else None

    def shard(self, ordinal: int, name: str) -> tuple[ShardRecords, Int32s | None]:
        """(records, their outputs or templates by the key map) of one input shard.

        ``CorruptShardError`` if it is corrupt, unless the spec skips such shards: then it has no
        records. ``ShardEndError`` if it does not end as the spec requires.
        """
        found: ShardRecords | None = None
        group: Int32s | None = None
        for ways in ways_of(self._compared):
            with self._reader.open(self._bucket, name, self._decoding) as shard:
                formed = self._formed(ordinal, shard, ways[0])
                if formed is None:
                    return _NO_RECORDS, np.zeros(0, np.int32) if self._has_groups else None
                records, members, group = self._with_copies(shard, *formed)
                group = self._outputs.get(ordinal, group)
                if self._pipeline.compared is not None and found is None:
                    self._contents[ordinal] = self._compared_as(shard, records, members)
                new_keys = self._renames.get(ordinal, {})
                members, records = with_new_keys(shard, members, records, new_keys)
                for compared in ways:
                    own = as_compared(shard, members, records, compared)
                    if found is not None:
                        found = combined(found, own, self._compared, compared, group)
                        continue
                    found = own
                    if self._facts is not None:
                        self._facts.look(ordinal, records_read(shard, found, self._pipeline))
        assert found is not None
        return found, group

    def _formed(
        self, ordinal: int, shard: ShardBytes, compared: ComparedBytes | None = None
    ) -> tuple[FormedRecords, MemberTable] | None:
        """(records, members) of an opened shard; None if it is corrupt and to be skipped.
        ``compared``: what is compared of them; None: as for the first output. ``ShardEndError`` if
        the shard may not be whole and the spec says to abort."""
        compared = compared or self._compared[0]
        try:
            members = shard.members()
        except CorruptShardError:
            if self._spec.config.corrupt_shards == "skip":
                return None
            raise
        config = self._spec.config
        refused = refusal(
            shard.container.oddities,
            members.notes,
            config.incomplete_shards,
            config.concatenated_shards,
        )
        if refused:
            raise ShardEndError(refused[0], hint=refused[1])
        members = compared.members(shard, members, config.stray_members)
        if config.unsafe_names == "rename":
            members = with_safe_names(shard, members)
        records = form_records(
            members, config.stray_members, keep_last=config.duplicated_records in LAST_IS_KEPT
        )
        if self._steps:
            left = self._transformed(ordinal, shard, members, records)
            records = left.records
            members = with_names_of_steps(shard, members, left.members, records.member_rows)
            if self._rows is not None:
                members, records = self._rows.cells(shard, members, records)
        members, records = compared.records(members, records)
        return records, members

    def _transformed(
        self, ordinal: int, shard: ShardBytes, members: MemberTable, records: FormedRecords
    ) -> RecordTable:
        """The records after the steps of the job. In the first pass, shards are read in their
        order, from which the numbers of their records follow."""
        table = self._records_of(shard, members, records)
        firsts = self._firsts.get(ordinal, self._reached)
        if self._code is not None:
            left = self._code.run(shard, members, records, input_name=table.input, firsts=firsts)
            counts, table = left.counts, self._records_of(shard, left.named, left.records)
        else:
            applied = apply_steps(self._steps, table, firsts)
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

    @property
    def _has_groups(self) -> bool:
        """Whether each record has an output or a template of its own."""
        return self._keymap is not None or bool(self._division)

    def _groups(
        self, shard: ShardBytes, records: FormedRecords, members: MemberTable
    ) -> Int32s | None:
        if self._division:
            if self._division.is_counted:
                return None  # exact numbers depend on all records: see _choose_outputs
            table = self._records_of(shard, members, records)
            return self._division.numbers(table)
        if self._keymap is None:
            return None
        own, offsets = members.names.take(records.member_rows), records.member_offsets
        if self._spec.join is not None:
            own, offsets = records.keys, np.arange(len(records) + 1)
        return self._keymap.lookup(records.keys, own, offsets).groups

    def _table(self, shards: Sequence[str], parts: list[_Part]) -> InputTable:
        counts = [len(part.key_hash) for part in parts]
        key_hash = np.concatenate([np.zeros(0, np.uint64), *(part.key_hash for part in parts)])
        groups = [part.group for part in parts if part.group is not None]
        group = np.concatenate([np.zeros(0, np.int32), *groups]) if self._has_groups else None
        no_digests = np.zeros((0, 2), np.uint64)
        table = InputTable(
            shards=tuple(shards),
            first_rows=np.cumsum([0, *counts]),
            key_hash=key_hash,
            digests=np.concatenate([no_digests, *(part.digests for part in parts)]),
            members=np.concatenate([np.zeros(0, np.int32), *(part.members for part in parts)]),
            group=group,
            expected=self._expected(key_hash, group),
            facts=self._facts,
            are_distinct=tuple(part.are_distinct for part in parts),
        )
        rule = self._pipeline.join
        if not rule:
            return table
        of_members = [part.of_members for part in parts if part.of_members is not None]
        named = [part.extensions for part in parts if part.extensions is not None]
        extensions = np.concatenate([np.zeros(0, np.uint64), *named])
        return self._joined(rule, table, np.concatenate([no_digests, *of_members]), extensions)

    def _joined(
        self, rule: JoinRule, table: InputTable, digests: UInt64s, extensions: UInt64s
    ) -> InputTable:
        """The table of the joined records; the rows of ``table`` are their pieces. ``digests``,
        shape ``(m, 2)``, and ``extensions`` (hashes): of the members of all pieces."""
        numbers = {name: number for number, name in enumerate(rule.inputs)}
        inputs = np.array([numbers[input_of(name, rule.inputs)] for name in table.shards], np.int32)
        of_rows = np.repeat(inputs, np.diff(table.first_rows))
        pieces = join_pieces(
            rule, table.key_hash, of_rows, table.expected, np.asarray(table.first_rows)
        )
        ends = np.append(0, np.cumsum(table.members, dtype=np.int64))
        counts = table.members[pieces.rows].astype(np.int64)
        offsets = np.append(0, np.cumsum(counts))
        picked = np.arange(offsets[-1]) + np.repeat(ends[pieces.rows] - offsets[:-1], counts)
        bounds = offsets[pieces.offsets]
        record = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        stays = members_that_stay(rule.conflict, record, extensions[picked])
        picked = picked[stays]
        bounds = np.append(0, np.cumsum(np.bincount(record[stays], minlength=len(bounds) - 1)))
        first = pieces.rows[pieces.offsets[:-1]]
        group = None if table.group is None else table.group[first]
        return InputTable(
            shards=table.shards,
            first_rows=np.searchsorted(first, table.first_rows),
            key_hash=table.key_hash[first],
            digests=digests_by_output(self._compared, digests[picked], bounds, group),
            members=np.diff(bounds).astype(np.int32),
            group=group,
            expected=pieces.expected,
            pieces=pieces,
        )

    def _expected(self, key_hash: UInt64s, group: Int32s | None) -> Bools:
        """Which records have to be in the result after the reactions of the spec."""
        config = self._spec.config
        expected = np.ones(len(key_hash), np.bool_)
        if group is not None and config.ekm_missing_key != "abort":
            expected &= group >= 0
        self._leave_out_equal(key_hash, expected)
        if config.duplicate_keys == "drop" and self._spec.join is None:
            placed = np.flatnonzero(expected)
            expected[placed[later_duplicates(key_hash[placed])[0]]] = False
        if self._known is not None and config.duplicate_keys == "drop":
            expected &= ~np.isin(key_hash, self._known)
        return expected

    def _leave_out_equal(self, key_hash: UInt64s, expected: Bools) -> None:
        """Clear ``expected`` for the records that ``deduplicate`` leaves out."""
        wanted = self._spec.deduplicate
        if wanted is None:
            return
        same = key_hash
        if wanted.by != "key":
            parts = [self._contents[at] for at in sorted(self._contents)]
            same = np.concatenate([np.zeros(0, np.uint64), *parts])
        expected[others_of(same, expected, keep_last=wanted.keep == "last")] = False
        if self._known is not None and wanted.by == "key":
            expected &= ~np.isin(key_hash, self._known)

    # -- new keys --------------------------------------------------------------------------------

    def _choose_new_keys(self, inputs: Sequence[ManifestInput], progress: ProgressTeller) -> None:
        """Choose new keys for ``duplicate_keys: rename``, in input order: the second record of a
        key becomes ``key-1``, and so on; numbers that are taken are passed over."""
        keys, hashes, shards, ordinals = [], [], [], []
        for ordinal, shard in enumerate(inputs):
            found = self._placed_keys(ordinal, shard.name)
            progress.advance(shards=1, records=len(found[0]), bytes_done=0)
            keys.append(found[0])
            hashes.append(found[1])
            ordinals.append(found[2])
            shards.append(np.full(len(found[0]), ordinal, np.int64))
        if not keys:
            return
        key_hash = np.concatenate(hashes)
        rows, nth = later_duplicates(key_hash)
        old = BytesColumn.concat(keys).take(rows).tolist()
        new = free_keys(old, nth.tolist(), np.unique(key_hash))
        shard_of, ordinal_of = np.concatenate(shards)[rows], np.concatenate(ordinals)[rows]
        for at, record, key in zip(shard_of.tolist(), ordinal_of.tolist(), new, strict=True):
            self._renames.setdefault(at, {})[record] = key

    def _placed_keys(self, ordinal: int, name: str) -> tuple[BytesColumn, UInt64s, Int64s]:
        """(keys, their hashes, ordinals) of a shard's records that the key map does not drop."""
        with self._reader.open(self._bucket, name, self._decoding) as shard:
            formed = self._formed_or_none(ordinal, shard)
            if formed is None:
                return _NO_RECORDS.keys, _NO_RECORDS.key_hash, np.zeros(0, np.int64)
            records, _, group = self._with_copies(shard, *formed)
        rows = np.arange(len(records)) if group is None else np.flatnonzero(group >= 0)
        return records.keys.take(rows), records.key_hash[rows], rows

    def _formed_or_none(
        self, ordinal: int, shard: ShardBytes
    ) -> tuple[FormedRecords, MemberTable] | None:
        """The result of ``_formed``; None also if it fails: the pass that compares bytes meets the
        error again and reports it."""
        try:
            return self._formed(ordinal, shard)
        except (CorruptShardError, ShardEndError, TransformError):
            return None

    # -- weights ---------------------------------------------------------------------------------

    def _choose_copies(self, inputs: Sequence[ManifestInput], progress: ProgressTeller) -> None:
        """Set how often each record of each shard is written, by the spec: of those that have a
        place in an output, and that ``deduplicate`` leaves."""
        hashes, placed = [_NO_RECORDS.key_hash], [np.zeros(0, np.bool_)]
        for ordinal, each in enumerate(inputs):
            with self._reader.open(self._bucket, each.name, self._decoding) as shard:
                formed, group = self._formed_or_none(ordinal, shard), None
                if formed is not None and self._keymap is not None:
                    group = self._groups(shard, *formed)
                if formed is not None and self._pipeline.compared is not None:
                    self._contents[ordinal] = self._compared_as(shard, *formed)
            hashes.append(_NO_RECORDS.key_hash if formed is None else formed[0].key_hash)
            placed.append(np.ones(len(hashes[-1]), np.bool_) if group is None else group >= 0)
            progress.advance(shards=1, records=len(hashes[-1]), bytes_done=0)
        key_hash, left = np.concatenate(hashes), np.concatenate(placed)
        self._leave_out_equal(key_hash, left)
        parts = np.split(left, np.cumsum([len(own) for own in hashes[1:]])[:-1])
        rows = zip(inputs, hashes[1:], parts, strict=False)
        found = {each.name: (own, is_left) for each, own, is_left in rows}
        self._copies = copies_asked_for(self._spec, found)

    # -- exact numbers of several outputs ---------------------------------------------------------

    def _choose_outputs(self, inputs: Sequence[ManifestInput], progress: ProgressTeller) -> None:
        """Set the output of each record of each shard. (A lot is a random number that a record
        draws.)"""
        lots, hashes = [np.zeros((0, 2), np.uint64)], [np.zeros(0, np.uint64)]
        for ordinal, each in enumerate(inputs):
            with self._reader.open(self._bucket, each.name, self._decoding) as shard:
                formed = self._formed_or_none(ordinal, shard)
                if formed is None:
                    found, own = lots[0], hashes[0]
                else:
                    found, own = self._drawn(ordinal, shard, *formed)
            lots.append(found)
            hashes.append(own)
            progress.advance(shards=1, records=len(own), bytes_done=0)
        counting = self._expected(np.concatenate(hashes), None)
        outputs = outputs_asked_for(self._division, np.concatenate(lots), counting)
        parts = np.split(outputs, np.cumsum([len(own) for own in hashes[1:]])[:-1])
        self._outputs = dict(enumerate(parts))

    def _drawn(
        self, ordinal: int, shard: ShardBytes, records: FormedRecords, members: MemberTable
    ) -> tuple[UInt64s, UInt64s]:
        """(class and lot, hash of the key) of each record that is written."""
        are_rows = self._pipeline.moves_rows
        table = self._records_of(shard, members, records)
        found = self._division.lots(table, are_rows=are_rows)
        if self._copies is not None:
            found = np.repeat(found, self._copies[shard.name], axis=0)
        records, members, _ = self._with_copies(shard, records, members)
        if self._pipeline.compared is not None:
            self._contents[ordinal] = self._compared_as(shard, records, members)
        return found, records.key_hash

    def _compared_as(
        self, shard: ShardBytes, records: FormedRecords, members: MemberTable
    ) -> UInt64s:
        """For each record the number by which deduplication compares it."""
        compared = self._pipeline.compared
        assert compared is not None
        if compared.value is None:
            return contents_of(shard, records, members, compared.extensions)
        table = self._records_of(shard, members, records)
        values = compared.value.values_of(table, "deduplicate: by")
        return hash_keys(map(text_of_value, values), len(values))

    def _with_copies(
        self, shard: ShardBytes, records: FormedRecords, members: MemberTable
    ) -> tuple[FormedRecords, MemberTable, Int32s | None]:
        """(records, members, outputs or templates) with each record as often as it is written."""
        group = self._groups(shard, records, members)
        if self._copies is not None:
            counts = self._copies[shard.name]
            members, records = copied(shard, members, records, counts)
            group = None if group is None else np.repeat(group, counts)
        return records, members, group


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
