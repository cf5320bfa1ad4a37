"""Checks where output shards end: every shard has to end where the spec sets its end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct

from dsort.job.output_names import OutputNames
from dsort.pipeline.compile import written_container
from dsort.spec.model import JobSpec
from dsort.spec.target import Target
from dsort.verification.findings import Findings


class Place(Struct, frozen=True):
    """The ``number``-th shard of the ``group``-th template."""

    group: int
    number: int


class FirstRecord(Struct, frozen=True):
    """Sizes of the first record of a shard: the record that did not fit in the shard before it."""

    records: int = 0
    members: int = 0
    payload_bytes: int = 0
    stored_bytes: int = 0
    entries_bytes: int = 0


class ShardFacts(Struct, frozen=True):
    """Counts and sizes of the content of an output shard. ``last_payload_bytes``: the payload of
    its last record. ``stored_bytes``: with headers and padding, but without the end marker."""

    name: str
    place: Place
    readable: bool
    records: int
    members: int
    payload_bytes: int
    last_payload_bytes: int
    stored_bytes: int = 0
    last_stored_bytes: int = 0
    entries_bytes: int = 0
    first: FirstRecord = FirstRecord()
    last_members: int = 0

    def sized_bytes(self, target: Target) -> tuple[int, int]:
        """(bytes of the shard, bytes of its last record), as the size of ``target`` counts them."""
        if target.counts_file:
            return self.stored_bytes, self.last_stored_bytes
        return (
            self.payload_bytes + target.header_bytes * self.members,
            self.last_payload_bytes + target.header_bytes * self.last_members,
        )

    def grown_bytes(self, spec: JobSpec, target: Target, record: FirstRecord) -> int:
        """The size of the shard with ``record`` added, as ``target`` counts it."""
        if not target.counts_file:
            return self.payload_bytes + record.payload_bytes
        return written_container(spec, target.extension).file_bytes(
            self.records + record.records,
            self.members + record.members,
            self.entries_bytes + record.entries_bytes,
            self.stored_bytes + record.stored_bytes,
        )


def check_cuts(
    facts: Sequence[ShardFacts], spec: JobSpec, names: OutputNames, findings: Findings
) -> None:
    """Check that every shard ends where the spec sets its end, neither before nor after."""
    targets = spec.targets
    if spec.keep_shards:
        if len(facts) != names.templates[0].count:
            text = f"there are {len(facts):,} output shards, one for each input was asked for"
            findings.problem("cut", "", "", text)
        return
    if len(targets) == 1:
        _check_target(facts, targets[0], spec, names.templates[0].count, findings)
        return
    for group, target in enumerate(targets):
        own = [shard for shard in facts if shard.place.group == group]
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
        if target.count is None:
            _check_multiple(facts, target, findings, is_equal=spec.equalize is not None)
        wanted = len(facts) if target.count is None else target.count
        _check_count(facts, wanted, findings, is_equal=spec.equalize is not None)
        return
    size_bytes, shards_max = target.size_bytes or 0, None
    if not target.ends:  # an even share for each name of the template
        shards_max = names_count or 1
        size_bytes = max(-(-sum(shard.sized_bytes(target)[0] for shard in facts) // shards_max), 1)
    by_count = target.records is not None and not target.size_bytes
    for _, group in groupby(facts, key=lambda shard: shard.place.group):
        shards = list(group)
        for shard, following in zip(shards, [*shards[1:], None], strict=True):
            last = following is None
            if not shard.readable:
                continue
            records_max = target.records
            if target.is_measured and (records_max is None or shard.records < records_max):
                continue  # the job measured it before it was encoded, about 1 % off
            if records_max is not None and (by_count or shard.records >= records_max):
                text = _wrong_records(shard, records_max, last=last)
            elif target.is_at_most:
                text = _too_large(shard, following, spec, target)
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
    sized = sum(shard.sized_bytes(target)[0] for shard in facts)
    least = target.count_for(records, 0 if target.is_measured else sized) or 0
    most = least
    if is_equal or target.is_measured:  # the job counted before it left out or encoded records
        most = target.count_for(records + len(facts), 2 * sized) or 0
    step = target.count_for(0, 0) or 1
    if not least <= len(facts) <= most or len(facts) % step:
        text = f"there are {len(facts):,} output shards, a multiple of {step:,} was asked for"
        findings.problem("cut", "", "", f"{text}: {least:,}")


def _wrong_records(shard: ShardFacts, wanted: int, *, last: bool) -> str:
    if shard.records == wanted or (last and 0 < shard.records < wanted):
        return ""
    return f"has {shard.records:,} records, {wanted:,} go into a shard"


def _wrong_size(
    shard: ShardFacts, wanted: int, target: Target, *, last: bool, stays_open: bool
) -> str:
    if shard.records == 0:
        return "has no record"
    counts = target.size_counts + " and headers" * bool(target.header_bytes)
    sized_bytes, last_bytes = shard.sized_bytes(target)
    if sized_bytes - last_bytes >= wanted and not stays_open:
        return f"goes on after {wanted:,} bytes of {counts}, where a shard closes"
    if not last and sized_bytes < wanted:
        return f"closes with {sized_bytes:,} bytes of {counts}, before {wanted:,}"
    return ""


def _too_large(
    shard: ShardFacts, following: ShardFacts | None, spec: JobSpec, target: Target
) -> str:
    counts, size_max = target.size_counts, target.size_bytes or 0
    if shard.records == 0:
        return "has no record"
    has_bytes = shard.grown_bytes(spec, target, FirstRecord())
    if has_bytes > size_max and shard.records > 1:
        return f"has {has_bytes:,} bytes of {counts}, more than {size_max:,}"
    if following is None or not following.readable:
        return ""
    if shard.grown_bytes(spec, target, following.first) <= size_max:
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
        text = "the shards have not all the same number of records, as equalize asks for"
        findings.problem("cut", "", "", text)
    for shard in facts:
        if shard.readable and shard.records not in (even, even + bool(more)):
            text = f"has {shard.records:,} records, an even share is {even:,}"
            findings.problem("cut", shard.name, "", text)
