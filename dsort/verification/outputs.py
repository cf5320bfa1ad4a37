"""The output side of a verification: what the output shards hold, and whether that is what their
manifest says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.data.members import MemberTable
from dsort.errors import CorruptShardError, ObjectNotFoundError
from dsort.job.manifest import ManifestOutput
from dsort.storage.bucket import Bucket
from dsort.verification.cuts import Place, ShardFacts
from dsort.verification.findings import Findings, ProgressTeller
from dsort.verification.inputs import InputTable
from dsort.verification.order import OrderWatch
from dsort.verification.read import Checksums, ShardReader, member_digests
from dsort.verification.shard_records import ShardRecords, output_records
from dsort.workers.shard_bytes import ShardBytes

__all__ = ["OutputReader", "OutputTable", "check_index"]

END_BYTES = 1024
"""An output shard ends in two zero blocks and nothing else."""

_NOTHING = (np.zeros(0, np.uint64), np.zeros((0, 2), np.uint64), np.zeros(0, np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class OutputTable:
    """All records of the outputs that could be read, in output order; columns ``(n,)``."""

    facts: tuple[ShardFacts, ...]
    md5: Mapping[str, str]  # of each shard that was read, if it was wanted
    first_rows: Int64s  # row of each shard's first record, and n at the end
    key_hash: UInt64s
    digests: UInt64s  # shape (n, 2)
    ties: Bools  # its sort key equals that of the record before it
    group: Int32s  # the template of its shard

    def __len__(self) -> int:
        return len(self.key_hash)

    def shard_of(self, rows: Int64s) -> Int64s:
        """The output ordinals of ``rows``."""
        return np.searchsorted(self.first_rows, rows, side="right") - 1


class OutputReader:
    """Reads the outputs of one job again. ``inputs``: its inputs, if they can be compared."""

    def __init__(
        self,
        bucket: Bucket,
        reader: ShardReader,
        inputs: InputTable | None,
        findings: Findings,
        *,
        want_md5: bool,
    ) -> None:
        self._bucket = bucket
        self._reader = reader
        self._inputs = inputs
        self._findings = findings
        self._want_md5 = want_md5

    def read(
        self,
        outputs: Sequence[ManifestOutput],
        places: Sequence[Place],
        watch: OrderWatch,
        progress: ProgressTeller,
        *,
        may_merge: bool,
    ) -> OutputTable:
        """All output shards. ``may_merge``: records of one key may lie side by side and look like
        one, so that there may seem to be fewer than the manifest says."""
        facts: list[ShardFacts] = []
        parts: list[tuple[UInt64s, UInt64s, Bools]] = []  # key hashes, digests, ties
        md5: dict[str, str] = {}
        for shard, place in zip(outputs, places, strict=True):
            before = self._reader.bytes_read
            found = self._shard(shard, place, watch, md5)
            if found is None:
                given = (shard.records, shard.members, shard.payload_bytes)
                stored_bytes = shard.file_bytes - END_BYTES
                facts.append(ShardFacts(shard.name, place, False, *given, 0, stored_bytes))
                parts.append(_NOTHING)
            else:
                records, ties = found
                facts.append(_facts(shard.name, place, records))
                self._compare_counts(shard, facts[-1], may_merge=may_merge)
                parts.append((records.key_hash, records.digests, ties))
            done = self._reader.bytes_read - before
            progress.advance(shards=1, records=len(parts[-1][0]), bytes_done=done)
        counts = [len(part[0]) for part in parts]
        groups = [place.group for place in places]
        parts.append(_NOTHING)  # columns of no parts have no type
        return OutputTable(
            facts=tuple(facts),
            md5=md5,
            first_rows=np.cumsum([0, *counts]),
            key_hash=np.concatenate([part[0] for part in parts]),
            digests=np.concatenate([part[1] for part in parts]),
            ties=np.concatenate([part[2] for part in parts]),
            group=np.repeat(np.array(groups, np.int32), counts),
        )

    def records(self, name: str) -> ShardRecords:
        """The records of one output shard that is known to be readable."""
        with self._reader.open(self._bucket, name) as shard:
            members = shard.members()
            return output_records(members, member_digests(shard, members), self._inputs)

    def _shard(
        self, listed: ManifestOutput, place: Place, watch: OrderWatch, md5: dict[str, str]
    ) -> tuple[ShardRecords, Bools] | None:
        """(records, which tie with the one before) of one shard; None if it cannot be read."""
        name = listed.name
        try:
            with self._reader.open(self._bucket, name) as shard:
                checksums = Checksums(shard, want_md5=self._want_md5)
                found = self._opened(shard, checksums, place, watch)
                xxh3, md5[name] = checksums.finish()
                size_bytes = shard.size_bytes
        except ObjectNotFoundError:
            text = f"is not there; it should have {listed.records:,} records"
            self._findings.problem("missing_shard", name, "", text)
            return None
        if size_bytes != listed.file_bytes:
            text = f"has {size_bytes:,} bytes, the manifest says {listed.file_bytes:,}"
            self._findings.problem("size", name, "", text)
        elif xxh3 != listed.xxh3:
            text = f"has the XXH3 checksum {xxh3}, the manifest says {listed.xxh3}"
            self._findings.problem("checksum", name, "", text)
        return found

    def _opened(
        self, shard: ShardBytes, checksums: Checksums, place: Place, watch: OrderWatch
    ) -> tuple[ShardRecords, Bools] | None:
        try:
            members = shard.members()
        except CorruptShardError as error:
            text = f"{error.reason}, at byte {error.offset:,}"
            self._findings.problem("corrupt_shard", shard.name, "", text)
            return None
        digests = member_digests(shard, members, seen=checksums.cover)
        records = output_records(members, digests, self._inputs)
        if not _is_plain(members, shard.size_bytes):
            text = "holds more than raw members and an end marker, or no end marker"
            self._findings.problem("format", shard.name, "", text)
        seen = watch.look(place.group, shard, records)
        for record in seen.backwards:
            key = _shown(records.keys[record])
            text = "its sort key belongs before that of the record before it"
            self._findings.problem("order", shard.name, key, text)
        return records, seen.ties

    def _compare_counts(
        self, listed: ManifestOutput, found: ShardFacts, *, may_merge: bool
    ) -> None:
        for what in ("records", "members", "payload_bytes"):
            has, said = int(getattr(found, what)), int(getattr(listed, what))
            if has != said and not (may_merge and what == "records" and has < said):
                text = f"has {has:,} {what}, the manifest says {said:,}"
                self._findings.problem("counts", listed.name, "", text)


def check_index(
    data: bytes,
    outputs: Sequence[ManifestOutput],
    md5: Mapping[str, str],
    name: str,
    findings: Findings,
) -> None:
    """The wids index lists exactly the outputs, sorted by name, with their checksums and sizes.
    ``md5``: of the shards that could be read."""
    try:
        listed = json.loads(data)["shardlist"]
        rows = [(row["url"], row["nsamples"], row["filesize"], row["md5sum"]) for row in listed]
    except (RecursionError, ValueError, KeyError, TypeError):
        findings.problem("index", name, "", "is no wids index")
        return
    known = {row[0]: row for row in rows}
    wanted = sorted(outputs, key=lambda shard: shard.name.encode("utf-8", "surrogateescape"))
    if [row[0] for row in rows] != [shard.name for shard in wanted]:
        findings.problem("index", name, "", "does not list the output shards, sorted by name")
    for shard in wanted:
        row = known.get(shard.name)
        should = (shard.name, shard.records, shard.file_bytes, md5.get(shard.name))
        if row is not None and shard.name in md5 and row != should:
            text = f"the index {name} gives it other counts or another MD5 than it has"
            findings.problem("index", shard.name, "", text)


def _is_plain(members: MemberTable, size_bytes: int) -> bool:
    """Members side by side from the first byte on, two zero blocks, and nothing else."""
    ends = members.range_start + members.range_length
    starts = np.append(members.range_start, size_bytes - END_BYTES)
    notes = members.notes
    return (
        bool((starts == np.insert(ends, 0, 0)).all())
        and not members.literals
        and not notes.missing_end
        and not notes.trailing_bytes
        and not notes.blank
    )


def _facts(name: str, place: Place, records: ShardRecords) -> ShardFacts:
    payload, stored = records.members.payload_bytes, records.members.range_length
    last = records.rows_of(len(records) - 1) if len(records) else []
    return ShardFacts(
        name=name,
        place=place,
        readable=True,
        records=len(records),
        members=len(records.members),
        payload_bytes=int(payload.sum()),
        last_payload_bytes=int(payload[last].sum()),
        stored_bytes=int(stored.sum()),
        last_stored_bytes=int(stored[last].sum()),
    )


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
