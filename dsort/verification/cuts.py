"""Names and cuts: is every output shard called and cut as the spec says?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from dsort.job.manifest import ManifestOutput
from dsort.job.output_names import OutputNames
from dsort.naming.patterns import LinearRegex
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.verification.findings import Findings

__all__ = ["Place", "ShardFacts", "check_cuts", "find_strangers", "place_outputs"]


@dataclass(frozen=True, slots=True)
class Place:
    """The ``number``-th shard of the ``group``-th template."""

    group: int
    number: int


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What an output shard holds. ``last_payload_bytes``: of its last record. ``stored_bytes``:
    with headers and padding, but without the end marker."""

    name: str
    place: Place
    readable: bool
    records: int
    members: int
    payload_bytes: int
    last_payload_bytes: int
    stored_bytes: int = 0
    last_stored_bytes: int = 0

    def sized_bytes(self, counts: str) -> tuple[int, int]:
        """(bytes, those of the last record) of what ``output_shard_size_counts``."""
        if counts == "file":
            return self.stored_bytes, self.last_stored_bytes
        return self.payload_bytes, self.last_payload_bytes


def place_outputs(
    outputs: Sequence[ManifestOutput], names: OutputNames, findings: Findings
) -> list[Place]:
    """Which name of which template each output has: all names of a template from its first on, and
    the templates one after the other. Anything else is a problem."""
    places: list[Place] = []
    group, number = 0, 0
    for shard in outputs:
        found = _place_of(shard.name, names, group, number)
        if found is None:
            wanted = _name(names, group, number) or "no further shard"
            text = f"the template {names.templates[group].text} gives {wanted} here"
            findings.problem("name", shard.name, "", text)
            found = Place(group, number)
        places.append(found)
        group, number = found.group, found.number + 1
    return places


def _place_of(name: str, names: OutputNames, group: int, number: int) -> Place | None:
    if _name(names, group, number) == name:
        return Place(group, number)
    later = range(group + 1, len(names.templates))
    return next((Place(each, 0) for each in later if _name(names, each, 0) == name), None)


def _name(names: OutputNames, group: int, number: int) -> str | None:
    count = names.templates[group].count
    return names.name(group, number) if count is None or number < count else None


def find_strangers(
    outputs: Iterable[str], inputs: Iterable[str], names: OutputNames, bucket: Bucket
) -> list[str]:
    """Shards in the output bucket that have a name of the job's templates and are not the job's:
    who reads all names of a template reads them, too."""
    known = {*outputs, *inputs}
    patterns: dict[str, list[str]] = {}
    for template in names.templates:
        numbers = "".join(r"[0-9]+" + re.escape(each.gap) for each in template.ranges)
        patterns.setdefault(template.prefix, []).append(numbers)
    strangers: set[str] = set()
    for prefix, endings in patterns.items():
        any_ending = LinearRegex(f"(?:{'|'.join(endings)})(?:{re.escape(names.extension)})?")
        strangers.update(
            info.name
            for info in bucket.list(prefix)
            if info.name not in known and any_ending.fullmatch(info.name[len(prefix) :])
        )
    return sorted(strangers)


def check_cuts(
    facts: Sequence[ShardFacts], spec: JobSpec, names: OutputNames, findings: Findings
) -> None:
    """Every shard closes when the spec says so, and not before."""
    if spec.output_shard_count is not None:
        _check_count(facts, spec.output_shard_count, findings)
        return
    counts = spec.output_shard_size_counts
    size_bytes, shards_max = spec.output_shard_size or 0, None
    if not size_bytes:  # an even share for each name of the template
        shards_max = names.templates[0].count or 1
        size_bytes = max(-(-sum(shard.sized_bytes(counts)[0] for shard in facts) // shards_max), 1)
    for _, group in groupby(facts, key=lambda shard: shard.place.group):
        shards = list(group)
        for shard in shards:
            last = shard is shards[-1]
            if not shard.readable:
                continue
            if spec.output_shard_records is not None:
                text = _wrong_records(shard, spec.output_shard_records, last=last)
            else:
                # Where all payload is shared out, records without any may be left for the last.
                stays_open = shards_max is not None and shard.place.number == shards_max - 1
                text = _wrong_size(shard, size_bytes, counts, last=last, stays_open=stays_open)
            if text:
                findings.problem("cut", shard.name, "", text)


def _wrong_records(shard: ShardFacts, wanted: int, *, last: bool) -> str:
    if shard.records == wanted or (last and 0 < shard.records < wanted):
        return ""
    return f"has {shard.records:,} records, {wanted:,} go into a shard"


def _wrong_size(
    shard: ShardFacts, wanted: int, counts: str, *, last: bool, stays_open: bool
) -> str:
    if shard.records == 0:
        return "has no record"
    sized_bytes, last_bytes = shard.sized_bytes(counts)
    if sized_bytes - last_bytes >= wanted and not stays_open:
        return f"goes on after {wanted:,} bytes of {counts}, where a shard closes"
    if not last and sized_bytes < wanted:
        return f"closes with {sized_bytes:,} bytes of {counts}, before {wanted:,}"
    return ""


def _check_count(facts: Sequence[ShardFacts], wanted: int, findings: Findings) -> None:
    if len(facts) != wanted:
        text = f"there are {len(facts):,} output shards, output_shard_count is {wanted:,}"
        findings.problem("cut", "", "", text)
        return
    even, more = divmod(sum(shard.records for shard in facts), wanted)
    for shard in facts:
        if shard.readable and shard.records not in (even, even + bool(more)):
            text = f"has {shard.records:,} records, an even share is {even:,}"
            findings.problem("cut", shard.name, "", text)
