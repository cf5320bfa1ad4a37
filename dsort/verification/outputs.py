"""The output side of a verification: reads the output shards, compares them with the manifest, and
compares their names with the spec.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT, DecodingRules
from dsort.containers.registry import container_of
from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.data.hashes import digest_in
from dsort.data.members import MemberTable
from dsort.errors import CorruptShardError, ObjectNotFoundError
from dsort.job.output_names import OutputNames
from dsort.moves.input_shard import ShardBytes
from dsort.naming.names import readable, shortened
from dsort.naming.patterns import LinearRegex
from dsort.pipeline.pipeline import OutputForm
from dsort.reading.shard_reader import ShardReader
from dsort.results.manifest import Manifest, ManifestOutput, wids_index_bytes
from dsort.sizes import format_count
from dsort.storage.bucket import Bucket, MadeBucket
from dsort.verification.findings import Findings, ProgressTeller
from dsort.verification.input_table import InputTable, RecordRows
from dsort.verification.order import OrderWatch, Place, ShardFacts, Sizes
from dsort.verification.shards import (
    Checksums,
    ComparedBytes,
    ShardRecords,
    output_key_bytes,
    output_records,
)


def place_outputs(
    outputs: Sequence[ManifestOutput], names: OutputNames, findings: Findings
) -> list[Place]:
    """For the name of each output shard: its template and its number. Outputs have to use the names
    of a template from the first name on, and the templates one after the other. All else is a
    problem."""
    places: list[Place] = []
    following = Place(0, 0)
    for shard in outputs:
        later = (Place(each, 0) for each in range(following.group + 1, len(names.templates)))
        tried = chain([following], later)
        place = next((each for each in tried if _name(names, each) == shard.name), None)
        if not place:
            place = following
            wanted = _name(names, place) or "no further shard"
            text = f"the template {names.templates[place.group].text} gives {wanted} here"
            findings.problem("name", shard.name, "", text)
        places.append(place)
        following = Place(place.group, place.number + 1)
    return places


def check_output_names(
    outputs: Sequence[ManifestOutput],
    places: Sequence[Place],
    names: Sequence[str],
    findings: Findings,
) -> None:
    """If there are several outputs, called ``names``, check that the manifest gives each shard its
    right output."""
    for shard, place in zip(outputs, places, strict=True):
        wanted = names[place.group] if names else None
        if shard.output != wanted:
            text = f"it is of {shard.output} in the manifest, its name is one of {wanted}"
            findings.problem("manifest", shard.name, "", text)


def _name(names: OutputNames, place: Place) -> str:
    is_there = place.number < names.templates[place.group].limit
    return names.name(place.group, place.number) if is_there else ""


def find_strangers(
    outputs: Iterable[str], inputs: Iterable[str], names: OutputNames, bucket: Bucket
) -> list[str]:
    """Shards in the output bucket with names of the job's templates that the job did not write. A
    program that reads all names of a template reads these shards, too."""
    known = {*outputs, *inputs}
    patterns: dict[str, list[str]] = {}
    for group, template in enumerate(names.templates):
        numbers = "".join(r"[0-9]+" + re.escape(each.gap) for each in template.ranges)
        numbers += f"(?:{re.escape(names.extension_of(group))})?"
        patterns.setdefault(names.prefix(group), []).append(numbers)
    strangers: set[str] = set()
    for prefix, endings in patterns.items():
        any_ending = LinearRegex("|".join(endings))
        strangers.update(
            info.name
            for info in bucket.list(prefix)
            if info.name not in known and any_ending.fullmatch(info.name[len(prefix) :])
        )
    return sorted(strangers)


def check_totals(manifest: Manifest, findings: Findings) -> None:
    """Check that the totals of the manifest are the sums over its shards."""
    outputs = manifest.outputs
    sums = {
        "input_shards": len(manifest.inputs),
        "output_shards": len(outputs),
        "records": sum(shard.records for shard in outputs),
        "members": sum(shard.members for shard in outputs),
        "payload_bytes": sum(shard.payload_bytes for shard in outputs),
        "file_bytes": sum(shard.file_bytes for shard in outputs),
    }
    for name, value in sums.items():
        said = manifest.totals.get(name)
        if said != value:
            text = f"the manifest's totals have {said} {name}, its shards add up to {value:,}"
            findings.problem("manifest", "", "", text)


ROW_BYTES = 64
_NOTHING = (np.zeros(0, np.uint64), np.zeros((0, 2), np.uint64), np.zeros(0, np.bool_))


class OutputTable(Struct, frozen=True, eq=False):
    """All records of the outputs that could be read, in output order; columns have shape
    ``(n,)``."""

    facts: tuple[ShardFacts, ...]
    md5: Mapping[str, str]  # of each shard that was read, if it was wanted
    rows: RecordRows
    key_hash: UInt64s
    digests: UInt64s  # shape (n, 2)
    ties: Bools  # its sort key equals that of the record before it
    group: Int32s  # the template of its shard

    def __len__(self) -> int:
        return len(self.key_hash)


class OutputReader:
    """Reads the outputs of one job again. ``inputs``: its inputs."""

    def __init__(
        self,
        bucket: Bucket,
        reader: ShardReader,
        inputs: InputTable,
        findings: Findings,
        compared: Sequence[ComparedBytes],
        forms: Sequence[OutputForm],
        *,
        want_md5: bool,
        max_expansion: float | None,
    ) -> None:
        """``compared``: for each output, the part of its records that is compared; ``forms``: for
        each output, the form of its shards."""
        self._compared = compared
        self._forms = forms
        self._groups: dict[str, int] = {}
        self._bucket = bucket
        self._reader = reader
        self._inputs = inputs
        self._findings = findings
        self._want_md5 = want_md5
        self._max_expansion = max_expansion

    def read(
        self,
        outputs: Sequence[ManifestOutput],
        places: Sequence[Place],
        watch: OrderWatch,
        progress: ProgressTeller,
        *,
        drawn: Collection[str],
        may_merge: bool,
        on_shard: Callable[[int, ManifestOutput, MemberTable], None],
    ) -> OutputTable:
        """Read the ``drawn`` output shards, and check that the others exist. ``on_shard`` is called
        for each drawn shard that can be read. ``may_merge``: neighbours with one key look like a
        single record, so fewer records than in the manifest are no problem."""
        self._check_undrawn([shard for shard in outputs if shard.name not in drawn])
        facts: list[ShardFacts] = []
        parts: list[tuple[UInt64s, UInt64s, Bools]] = []  # key hashes, digests, ties
        md5: dict[str, str] = {}
        for ordinal, (shard, place) in enumerate(zip(outputs, places, strict=True)):
            before = self._reader.bytes_read
            self._groups[shard.name] = place.group
            found = self._shard(shard, place, watch, md5) if shard.name in drawn else None
            if not found:
                given = (shard.records, shard.members, shard.payload_bytes)
                whole = Sizes(*given, shard.container_bytes - _end_bytes(shard))
                facts.append(ShardFacts(shard.name, place, False, whole))
                parts.append(_NOTHING)
            else:
                records, ties, stored = found
                if self._forms[self._output_of(shard.name)].is_late:
                    # The job measured these records before it converted them.
                    stored = replace(stored, own=replace(stored.own, record_bytes=None))
                facts.append(_facts(shard.name, place, records, stored))
                on_shard(ordinal, shard, stored)
                self._compare_counts(shard, facts[-1], may_merge=may_merge)
                parts.append((records.key_hash, records.digests, ties))
            done = self._reader.bytes_read - before
            read = int(shard.name in drawn)
            progress.advance(shards=read, records=len(parts[-1][0]), bytes_done=done)
        counts = [len(part[0]) for part in parts]
        groups = [place.group for place in places]
        parts.append(_NOTHING)  # without any part, the columns would have no dtype
        return OutputTable(
            facts=tuple(facts),
            md5=md5,
            rows=RecordRows(np.cumsum([0, *counts])),
            key_hash=np.concatenate([part[0] for part in parts]),
            digests=np.concatenate([part[1] for part in parts]),
            ties=np.concatenate([part[2] for part in parts]),
            group=np.repeat(np.array(groups, np.int32), counts),
        )

    def _check_undrawn(self, outputs: Sequence[ManifestOutput]) -> None:
        """Check that shards which are not read are there, and have their sizes."""
        there = self._bucket.stat_many([shard.name for shard in outputs]) if outputs else {}
        for shard in outputs:
            if shard.name in there:
                self._has_size(shard, there[shard.name].size_bytes)
            else:
                self._tell_missing(shard)

    def _tell_missing(self, listed: ManifestOutput) -> None:
        text = f"is not there; it should have {format_count(listed.records, 'record')}"
        self._findings.problem("missing_shard", listed.name, "", text)

    def _has_size(self, listed: ManifestOutput, size_bytes: int) -> bool:
        """Whether a shard has the size in the manifest; else it is a problem."""
        if size_bytes == listed.file_bytes:
            return True
        text = f"has {size_bytes:,} bytes, the manifest has {listed.file_bytes:,}"
        self._findings.problem("size", listed.name, "", text)
        return False

    def _decoding(self, listed: ManifestOutput) -> DecodingRules:
        """The bound for decoding an output: ``max_expansion`` if it is set, else the size in the
        manifest, however large. Rows take some bytes more in memory than their values."""
        if self._max_expansion is not None:
            return DecodingRules(self._max_expansion)
        rows_bytes = 2 * listed.payload_bytes + ROW_BYTES * listed.records
        expansion = max(listed.container_bytes, rows_bytes) / max(listed.file_bytes, 1)
        return DecodingRules(max(expansion, EXPANSION_MAX_DEFAULT))

    def _output_of(self, name: str) -> int:
        """The output of a shard that was read; 0 if there is only one."""
        return min(self._groups[name], len(self._compared) - 1)

    def records(self, name: str) -> ShardRecords:
        """The records of one output shard that was read before without an error."""
        container = self._forms[self._output_of(name)].container
        with self._reader.open(self._bucket, name, DecodingRules(math.inf), container) as shard:
            return self._records(shard, shard.members())

    def _records(
        self,
        shard: ShardBytes,
        members: MemberTable,
        seen: Callable[[memoryview, int], None] = lambda view, base: None,
    ) -> ShardRecords:
        compared = self._compared[self._output_of(shard.name)]
        members = compared.members(shard, members, "drop")
        digests = compared.digests(shard, members, output_key_bytes(members)[0], seen)
        return output_records(members, digests, self._inputs, compared)

    def _shard(
        self, listed: ManifestOutput, place: Place, watch: OrderWatch, md5: dict[str, str]
    ) -> tuple[ShardRecords, Bools, MemberTable] | None:
        """(records, whether each ties with the record before, members as stored) of one shard; None
        for an unreadable shard."""
        name = listed.name
        try:
            container = self._forms[self._output_of(name)].container
            decoding = self._decoding(listed)
            with self._reader.open(self._bucket, name, decoding, container) as shard:
                wanted = ["md5"] * self._want_md5 + ["sha256"] * (listed.sha256 is not None)
                checksums = Checksums(shard, wanted)
                found = self._opened(shard, checksums, place, watch)
                xxh3, digests = checksums.finish()
                md5[name] = digest_in(digests, "md5")
                size_bytes = shard.file_bytes
        except ObjectNotFoundError:
            self._tell_missing(listed)
            return None
        sized = self._has_size(listed, size_bytes)
        if sized and xxh3 != listed.xxh3 and not isinstance(self._bucket, MadeBucket):
            text = f"has the XXH3 checksum {xxh3}, the manifest has {listed.xxh3}"
            self._findings.problem("checksum", name, "", text)
        sha256 = digest_in(digests, "sha256")
        if sized and sha256 != (listed.sha256 or ""):
            text = f"has the SHA-256 checksum {sha256}, the manifest has {listed.sha256}"
            self._findings.problem("checksum", name, "", text)
        return found

    def _opened(
        self, shard: ShardBytes, checksums: Checksums, place: Place, watch: OrderWatch
    ) -> tuple[ShardRecords, Bools, MemberTable] | None:
        try:
            members = shard.members()
            # The reader of a table checks its format; its cells are not stored as members.
            is_table = shard.container.is_columnar
            is_plain = is_table or _is_plain(shard.container, members, shard.size_bytes)
            records = self._records(shard, members, checksums.cover)
        except CorruptShardError as error:
            text = f"{error.reason}, at byte {error.offset:,}"
            self._findings.problem("corrupt_shard", shard.name, "", text)
            return None
        if not is_plain:
            text = "holds more than raw members and an end marker, or no end marker"
            self._findings.problem("format", shard.name, "", text)
        seen = watch.look(place.group, shard, records)
        for record in seen.backwards:
            key = readable(records.keys[record])
            text = "its sort key belongs before that of the record before it"
            self._findings.problem("order", shard.name, key, text)
        return records, seen.ties, members

    def _compare_counts(
        self, listed: ManifestOutput, found: ShardFacts, *, may_merge: bool
    ) -> None:
        is_table = container_of(listed.name).is_columnar  # a row is listed as one member
        counts = (
            ("records", "payload_bytes") if is_table else ("records", "members", "payload_bytes")
        )
        for what in counts:
            has, said = int(getattr(found.whole, what)), int(getattr(listed, what))
            if has != said and not (may_merge and what == "records" and has < said):
                text = f"has {has:,} {what}, the manifest has {said:,}"
                self._findings.problem("counts", listed.name, "", text)


def check_index(
    data: bytes,
    job_id: str,
    outputs: Sequence[ManifestOutput],
    md5: Mapping[str, str],
    name: str,
    findings: Findings,
) -> None:
    """Check that the wids index has all outputs of the job, sorted by name, with their checksums
    and sizes, and no other entries. ``md5``: the MD5 of each shard that could be read."""
    wanted = json.loads(
        wids_index_bytes(job_id, outputs, [md5.get(shard.name, "") for shard in outputs])
    )
    try:
        found = json.loads(data)
        rows = {row["url"]: row for row in found["shardlist"]}
        urls = [row["url"] for row in found["shardlist"]]
        others = _differing(found | {"shardlist": wanted["shardlist"]}, wanted)
    except (RecursionError, ValueError, KeyError, TypeError):
        findings.problem("index", name, "", "is no wids index")
        return
    if others:
        findings.problem("index", name, "", f"differs from the job in {', '.join(others)}")
    if urls != [row["url"] for row in wanted["shardlist"]]:
        findings.problem("index", name, "", "does not list the output shards, sorted by name")
    for row in wanted["shardlist"]:
        url = row["url"]
        wrong = _differing(rows[url], row) if url in rows and url in md5 else []
        if wrong:
            text = f"the index {name} differs from the shard in {', '.join(wrong)}"
            findings.problem("index", url, "", text)


def _differing(found: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """The names of fields that only one of two JSON objects has, or whose values differ."""
    texts = [{key: json.dumps(value) for key, value in each.items()} for each in (found, wanted)]
    fields = sorted(texts[0].keys() | texts[1].keys())
    return [shortened(key) for key in fields if texts[0].get(key) != texts[1].get(key)]


def _is_plain(container: Container, members: MemberTable, size_bytes: int) -> bool:
    """Whether a shard consists of the head of its container, members side by side, its end, and
    nothing else."""
    head = container.with_schema(members.own.schema).head
    head_bytes = 0 if head is None else head.size_bytes(len(members))
    ends = members.range_start + members.range_length
    stored_bytes = int(ends[-1]) if len(ends) else head_bytes
    entries_bytes = _entries_bytes(members, slice(None))
    end_bytes = container.end_bytes(len(members), entries_bytes, stored_bytes)
    starts = np.append(members.range_start, size_bytes - end_bytes)
    return (
        bool((starts == np.insert(ends, 0, head_bytes)).all())
        and not members.literals
        and not members.notes.shortfall
    )


def _entries_bytes(members: MemberTable, rows: slice | Int64s) -> int:
    """The length of the entries of some members, in a listing at the end of the shard."""
    return 0 if members.entries is None else int(members.entries.lengths[rows].sum())


def _end_bytes(listed: ManifestOutput) -> int:
    """The length of the end of a shard that cannot be read, if the manifest determines it."""
    return container_of(listed.name).end_bytes(listed.members, 0, listed.container_bytes)


def _facts(name: str, place: Place, records: ShardRecords, stored: MemberTable) -> ShardFacts:
    """``stored``: the members as they were scanned. A container that numbers its records stores one
    member for each record; it may hold several members of the record."""
    offsets, of_records = records.member_offsets, stored.own.record_bytes
    is_numbered = stored.own.record_of is not None

    def sizes(some: slice) -> Sizes:
        first, stop, _ = some.indices(len(records))
        rows = records.member_rows[offsets[first] : offsets[stop]]
        payload = records.members.payload_bytes[rows] if of_records is None else of_records[some]
        in_file = some if is_numbered else rows
        return Sizes(
            records=stop - first,
            members=len(rows),
            payload_bytes=int(payload.sum()),
            stored_bytes=int(stored.range_length[in_file].sum()),
            entries_bytes=_entries_bytes(stored, in_file),
        )

    whole, first, last = sizes(slice(None)), sizes(slice(1)), sizes(slice(-1, None))
    return ShardFacts(name, place, True, whole, first, last)
