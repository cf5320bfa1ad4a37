"""A second, slow dsort: the required result of a job over small shards, made by plain Python over
lists.

It shares only XXH3 with the engine. Tests compare its result with the result of a job, byte for
byte.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from dsort.errors import (
    ContentKeyError,
    CorruptShardError,
    DsortError,
    DuplicateError,
    KeyMapError,
    ShardEndError,
    SpecError,
    StrayMemberError,
)
from tests.support.datasets import END, Member, Shard

WORD = (1 << 64) - 1
STRAY_SALT = 0x5BD1E9955BD1E995


@dataclass
class Record:
    """A record of an input shard: ``members`` are (name, payload, kind, raw bytes or None)."""

    key: bytes
    stray: bool
    shard: int
    members: list[tuple[bytes, bytes, str, bytes | None]] = field(default_factory=list)
    group: int = 0
    at: int = 0  # its first member's row in the shard
    nth: int = 0  # how many earlier records of its shard have its key

    @property
    def identity(self) -> tuple[bool, bytes]:
        return self.stray, self.key

    @property
    def payload_bytes(self) -> int:
        return sum(len(payload) for _, payload, _, _ in self.members)


@dataclass
class Outcome:
    """The required outcome: name and records of each output shard, and the counts of the report; or
    the classes of errors with which the job may end."""

    shards: dict[str, list[Record]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    errors: set[type[DsortError]] = field(default_factory=set)


def expected(spec: Mapping[str, Any], shards: Mapping[str, Shard]) -> Outcome:
    """The required outcome of the job ``spec`` over ``shards``, which are in input order."""
    outcome = Outcome()
    config = spec.get("Config", {})
    records: list[Record] = []
    for ordinal, shard in enumerate(shards.values()):
        records += _extract(shard, ordinal, config, outcome)
    _check_content(spec, records, outcome)  # also of records that the key map leaves out
    every = records
    records = _place(spec, config, records, outcome)
    if outcome.errors:
        return outcome
    records = _settle_duplicates(config.get("duplicate_keys", "warn"), records, outcome)
    if outcome.errors:
        return outcome
    _count_repeats(every)
    records = _ordered(spec["algorithm"], list(shards), records)
    outcome.shards = _named(spec, records, outcome)
    return outcome


def _name(member: Member) -> bytes:
    name = member.name.encode("utf-8", "surrogateescape")
    return name + b"/" if member.kind == "directory" and not name.endswith(b"/") else name


def _split(name: bytes) -> tuple[bytes, bytes]:
    """(key, extension with its dot), an empty extension for strays."""
    directory, slash, base = name.rpartition(b"/")
    stem, dot, extension = base.partition(b".")
    return (directory + slash + stem, dot + extension) if stem and dot else (name, b"")


def _extract(
    shard: Shard, ordinal: int, config: Mapping[str, Any], outcome: Outcome
) -> list[Record]:
    if shard.end.strip(b"\0") and not shard.end.startswith(END):
        if config.get("corrupt_shards", "abort") == "abort":
            outcome.errors.add(CorruptShardError)
        outcome.counts["corrupt_shards"] += 1
        return []
    if not _is_whole(shard, outcome):
        outcome.counts["incomplete_shards"] += 1
        if config.get("incomplete_shards", "abort") == "abort":
            outcome.errors.add(ShardEndError)
    policy = config.get("stray_members", "keep")
    kept: list[tuple[bytes, bytes, bool, Member]] = []
    for member in shard.members:
        name = _name(member)
        key, extension = _split(name)
        special = member.kind in ("directory", "fifo")
        stray = special or not extension
        drop = special if policy == "keep" else stray or member.kind == "symlink"
        if policy == "abort" and drop:
            outcome.errors.add(StrayMemberError)
        outcome.counts["hardlinks_resolved"] += member.kind == "hardlink"
        outcome.counts["stray_members_dropped" if drop else "stray_members_kept"] += stray or drop
        if not drop:
            kept.append((name if stray else key, name, stray, member))
    return _group(shard, ordinal, kept, config, outcome)


def _is_whole(shard: Shard, outcome: Outcome) -> bool:
    size = len(shard.data)
    if not shard.data.strip(b"\0"):
        return size == len(END)
    padding = len(shard.end) - len(END)
    if padding <= 0 or shard.end.strip(b"\0"):
        return padding == 0
    records = [(10240, 21504), *((1 << power, 1 << power) for power in range(15, 21))]
    if any(size % each == 0 and padding < least for each, least in records):
        outcome.counts["unusual_padding"] += not (size % 10240 == 0 and padding < 10240)
        return True
    return False


def _group(
    shard: Shard,
    ordinal: int,
    kept: Sequence[tuple[bytes, bytes, bool, Member]],
    config: Mapping[str, Any],
    outcome: Outcome,
) -> list[Record]:
    pieces: list[list[int]] = []  # rows of ``kept``: side by side, of one key; strays alone
    groups: list[list[int]] = []  # the same with strays passed over
    current: tuple[bool, bytes] | None = None
    for row, (key, _, stray, _) in enumerate(kept):
        before = kept[row - 1] if row else None
        beside = before is not None and (before[2], before[0]) == (stray, key)
        pieces.append([row]) if stray or not beside else pieces[-1].append(row)
        if stray:
            own = next((g for g in groups if g[-1] == row - 1), None) if beside else None
        else:
            open_groups = [g for g in groups if not kept[g[0]][2]]
            own = open_groups[-1] if open_groups and current == (stray, key) else None
            current = (stray, key)
        groups.append([row]) if own is None else own.append(row)
    found: list[Record] = []
    for key, stray in dict.fromkeys((kept[group[0]][0], kept[group[0]][2]) for group in groups):
        own_groups = [g for g in groups if (kept[g[0]][0], kept[g[0]][2]) == (key, stray)]
        own_pieces = [p for p in pieces if (kept[p[0]][0], kept[p[0]][2]) == (key, stray)]
        joined = len(own_pieces) - len(own_groups)
        reaction = config.get("duplicated_records")
        if reaction is None or reaction == "abort":
            own_groups = [part for group in own_groups for part in _apart(group, kept)]
        names = [name for g in own_groups for name in {kept[row][1] for row in g}]
        if len(names) == len(set(names)):
            joined = len(own_pieces) - 1
            own_groups = [[row for g in own_groups for row in g]]
        elif reaction == "abort":
            outcome.errors.add(DuplicateError)
        outcome.counts["non_adjacent_records"] += joined
        for group in own_groups:
            found.append(Record(key, stray, ordinal, at=group[0]))
            for place, row in enumerate(group):
                if kept[row][1] in [kept[later][1] for later in group[place + 1 :]]:
                    outcome.counts["duplicated_records"] += 1
                else:
                    found[-1].members.append(_stored(shard, kept[row][1], kept[row][3]))
    return sorted(found, key=lambda record: record.at)


def _apart(
    group: Sequence[int], kept: Sequence[tuple[bytes, bytes, bool, Member]]
) -> list[list[int]]:
    """The members of a group by record: a repeated name begins another record."""
    parts: list[list[int]] = [[]]
    for row in group:
        if kept[row][1] in [kept[before][1] for before in parts[-1]]:
            parts.append([])
        parts[-1].append(row)
    return parts


def _stored(shard: Shard, name: bytes, member: Member) -> tuple[bytes, bytes, str, bytes | None]:
    if member.kind != "hardlink":
        return name, member.payload, member.kind, member.raw
    at = next(row for row, other in enumerate(shard.members) if other is member)
    targets = [row for row, other in enumerate(shard.members) if other.name == member.target]
    row = max((row for row in targets if row < at), default=min(targets))
    return name, shard.members[row].payload, "file", None


def _place(
    spec: Mapping[str, Any], config: Mapping[str, Any], records: list[Record], outcome: Outcome
) -> list[Record]:
    """Give each record its template by the external key map. Records without one are left out."""
    if "ekm" not in spec:
        return records
    templates = list(spec["ekm"])
    default = spec.get("ekm_default")
    if default is not None and default not in templates:
        templates.append(default)
    placed = []
    for record in records:
        names = [record.key, *(name for name, _, _, _ in record.members)]
        exact = {t for t, keys in spec["ekm"].items() for key in keys if key.encode() in names}
        first = (record.members[0][0], record.key)
        matched = exact or {
            template
            for template, keys in spec["ekm"].items()
            for key in keys
            for text in first
            if re.search(key.encode(), text)
        }
        if len(matched) == 1:
            record.group = templates.index(matched.pop())
        else:
            outcome.counts["ekm_missing_key"] += 1
            if config.get("ekm_missing_key", "abort") == "abort":
                outcome.errors.add(KeyMapError)
            if default is None:
                continue
            record.group = templates.index(default)
        placed.append(record)
    return placed


def _content(record: Record, algorithm: Mapping[str, Any]) -> int | float | bytes | None:
    text = None
    for name, payload, _, _ in record.members:
        if not record.stray and _split(name)[1] == algorithm["extension"].encode():
            text = payload.strip()
    if text is None:
        return None
    kind = algorithm["content_key_type"]
    return text if kind == "string" else int(text) if kind == "int" else float(text)


def _count_repeats(records: list[Record]) -> None:
    """Set ``nth``, for the shuffle; ``records`` have their new keys, and none is left out yet."""
    times: Counter[tuple[int, bool, bytes]] = Counter()
    for record in records:
        record.nth = times[record.shard, *record.identity]
        times[record.shard, *record.identity] += 1


def _check_content(spec: Mapping[str, Any], records: list[Record], outcome: Outcome) -> None:
    algorithm = spec["algorithm"]
    if algorithm["kind"] != "content":
        return
    missing = algorithm.get("content_key_missing", "abort")
    if missing == "abort" and any(_content(record, algorithm) is None for record in records):
        outcome.errors.add(ContentKeyError)


def _settle_duplicates(reaction: str, records: list[Record], outcome: Outcome) -> list[Record]:
    times: Counter[tuple[bool, bytes]] = Counter()
    taken = {record.key for record in records}
    kept = []
    for record in records:
        nth = times[record.identity]
        times[record.identity] += 1
        if nth == 0 or reaction == "ignore":
            kept.append(record)
            continue
        if reaction == "abort":
            outcome.errors.add(DuplicateError)
        said = {"drop": "_dropped", "rename": "_renamed"}.get(reaction, "")
        outcome.counts[f"duplicate_keys{said}"] += 1
        if reaction == "rename":
            while (key := record.key + b"-%d" % nth) in taken:
                nth += 1
            taken.add(key)
            _rename(record, key)
        if reaction != "drop":
            kept.append(record)
    return kept


def _rename(record: Record, key: bytes) -> None:
    old = len(record.key)
    record.members = [
        (key + name[old:], payload, kind, None) for name, payload, kind, _ in record.members
    ]
    record.key = key


def _ordered(
    algorithm: Mapping[str, Any], shard_names: list[str], records: list[Record]
) -> list[Record]:
    def sort_key(record: Record) -> Any:
        kind = algorithm["kind"]
        if kind == "shuffle":
            return _shuffle_word(str(algorithm["seed"]), shard_names[record.shard], record)
        if kind == "md5":
            return hashlib.md5(record.key).digest()
        if kind == "alphanumeric":
            return _natural(record.key) if algorithm.get("natural") else record.key
        if kind == "content":
            value = _content(record, algorithm)
            return (value is not None, value if value is not None else 0)
        return 0

    decreasing = algorithm.get("decreasing", False)
    records = sorted(records, key=sort_key, reverse=decreasing)
    if algorithm["kind"] == "content":
        last = algorithm.get("content_key_missing") == "last"
        records.sort(key=lambda record: (_content(record, algorithm) is None) == last)
    return sorted(records, key=lambda record: record.group)


def _natural(key: bytes) -> tuple[list[tuple[int, int]], bytes]:
    """The key for natural order: bytes, with runs of digits as numbers that sort where digits sort;
    then the key itself."""
    tokens = re.findall(rb"[0-9]+|[^0-9]", key, re.DOTALL)
    return [(48, int(t)) if t.isdigit() else (t[0], 0) for t in tokens], key


def _shuffle_word(seed: str, shard_name: str, record: Record) -> int:
    outer = xxhash.xxh3_64_intdigest(seed.encode())
    of_shard = xxhash.xxh3_64_intdigest(shard_name.encode(), seed=outer)
    word = xxhash.xxh3_64_intdigest(record.key) ^ (STRAY_SALT if record.stray else 0) ^ of_shard
    return _mixed(_mixed(word) ^ record.nth) if record.nth else _mixed(word)


def _mixed(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def _named(
    spec: Mapping[str, Any], records: list[Record], outcome: Outcome
) -> dict[str, list[Record]]:
    templates = list(spec.get("ekm") or [spec["output_format"]])
    if "ekm" in spec and spec.get("ekm_default") not in (None, *templates):
        templates.append(spec["ekm_default"])
    named: dict[str, list[Record]] = {}
    for group, template in enumerate(templates):
        own = [record for record in records if record.group == group]
        for number, shard in enumerate(_cut(spec, _bound(template), own)):
            named[_nth(template, number)] = shard
            if _bound(template) is not None and number >= (_bound(template) or 0):
                outcome.errors.add(SpecError)
    return named


def _bound(template: str) -> int | None:
    match = re.search(r"\{0\.\.([0-9]+)\}", template)
    return int(match[1]) + 1 if match else None


def _nth(template: str, number: int) -> str:
    return re.sub(r"%d|\{0\.\.[0-9]+\}", str(number), template) + ".tar"


def _cut(spec: Mapping[str, Any], names: int | None, records: list[Record]) -> list[list[Record]]:
    if count := spec.get("output_shard_count"):
        even, more = divmod(len(records), count)
        sizes = [even + (number < more) for number in range(count)]
        starts = [sum(sizes[:number]) for number in range(count)]
        return [records[a : a + n] for a, n in zip(starts, sizes, strict=True)]
    if count := spec.get("output_shard_records"):
        return [records[at : at + count] for at in range(0, len(records), count)]
    limit, shards_max = spec.get("output_shard_size"), None
    if limit is None:
        assert names is not None
        limit, shards_max = -(-sum(r.payload_bytes for r in records) // names), names
    shards: list[list[Record]] = []
    room = 0
    for record in records:
        if room <= 0 and len(shards) != shards_max:
            shards.append([])
            room = max(limit, 1)
        shards[-1].append(record)
        room -= record.payload_bytes
    return shards
