"""What is in one shard: its records, and whatever is odd about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from dsort.containers.base import Container, oddities_in
from dsort.data.members import MemberKind, MemberTable, ScanNotes
from dsort.data.records import FormedRecords, form_records, split_name
from dsort.naming.safe_names import new_safe_names, unsafe_links, unsafe_rows

__all__ = ["Oddity", "RecordSummary", "ShardSummary", "summarise"]

SAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """One record: its key, the extensions of its members in order, the bytes of their payload."""

    key: str
    extensions: tuple[str, ...]
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something about a shard that a plain one does not have. ``count`` is members, pieces or
    bytes, as ``text`` says."""

    kind: str
    count: int
    text: str
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """One shard. Names that are not UTF-8 carry surrogate escapes."""

    shard: str
    file_bytes: int
    members: int
    payload_bytes: int
    records: tuple[RecordSummary, ...]
    extensions: dict[str, int]  # how many members have each; "" are those without one
    oddities: tuple[Oddity, ...]

    def to_dict(self) -> dict[str, object]:
        """The summary in JSON types."""
        return asdict(self)


def summarise(
    shard: str,
    container: Container,
    file_bytes: int,
    members: MemberTable,
    targets: Mapping[int, bytes],
) -> ShardSummary:
    """Summarise a shard whose members are known, and the ``targets`` of its symbolic links by row.
    Directories and devices are no records."""
    formed = form_records(members, "keep")
    names = [_text(name) for name in members.names.tolist()]
    extensions = [_extension(name) for name in names]
    strays = set(formed.strays)
    rows = formed.member_rows.tolist()
    bounds = formed.member_offsets.tolist()
    sizes = formed.payload_bytes.tolist()
    records = tuple(
        RecordSummary(
            _text(key),
            tuple("" if row in strays else extensions[row] for row in rows[first:last]),
            payload,
        )
        for key, first, last, payload in zip(
            formed.keys.tolist(), bounds, bounds[1:], sizes, strict=False
        )
    )
    return ShardSummary(
        shard=shard,
        file_bytes=file_bytes,
        members=len(members),
        payload_bytes=int(members.payload_bytes.sum()),
        records=records,
        extensions=dict(
            Counter("" if row in strays else extensions[row] for row in range(len(members)))
        ),
        oddities=(
            *_container_oddities(container, members.notes, names),
            *_kind_oddities(members, names),
            *_unsafe_oddities(members, names, targets),
            *_record_oddities(formed, members, names),
        ),
    )


def _container_oddities(
    container: Container, notes: ScanNotes, names: list[str]
) -> Iterable[Oddity]:
    """What the container has noted, as one oddity for each thing that has a name of its own."""
    found: dict[str, Oddity] = {}
    for oddity, count in oddities_in(container.oddities, notes):
        if oddity.inspected:
            before = found.get(oddity.inspected)
            rows = getattr(notes, oddity.note)
            found[oddity.inspected] = Oddity(
                oddity.inspected,
                count + (before.count if before else 0),
                oddity.text,
                _samples(names, rows) if isinstance(rows, tuple) else (),
            )
    return found.values()


def _kind_oddities(members: MemberTable, names: list[str]) -> Iterable[Oddity]:
    texts = {
        MemberKind.SYMLINK: ("symlinks", "symbolic links"),
        MemberKind.DIRECTORY: ("directories", "directories"),
        MemberKind.DEVICE: ("devices", "devices or fifos"),
        MemberKind.HARDLINK: ("broken_hard_links", "hard links to members that are not here"),
    }
    kinds = members.kind.tolist()
    for kind, (label, text) in texts.items():
        rows = [row for row, value in enumerate(kinds) if value == kind]
        if rows:
            yield Oddity(label, len(rows), text, _samples(names, rows))


def _unsafe_oddities(
    members: MemberTable, names: list[str], targets: Mapping[int, bytes]
) -> Iterable[Oddity]:
    unsafe = unsafe_rows(members.names)
    if unsafe:
        text = "members with absolute names, or '..' in them"
        yield Oddity("unsafe_names", len(unsafe), text, _samples(names, unsafe))
    safe = new_safe_names(members.names, unsafe) if targets else {}
    escaping = unsafe_links(
        [(row, safe.get(row, members.names[row]), target) for row, target in targets.items()]
    )
    if escaping:
        text = "symbolic links that lead out of the archive"
        yield Oddity("unsafe_links", len(escaping), text, _samples(names, escaping))


def _record_oddities(
    formed: FormedRecords, members: MemberTable, names: list[str]
) -> Iterable[Oddity]:
    kinds = members.kind
    rows = [row for row in formed.strays if kinds[row] in (MemberKind.FILE, MemberKind.SYMLINK)]
    if rows:
        text = "members that are no part of a record (no extension, or a hidden file)"
        yield Oddity("stray_members", len(rows), text, _samples(names, rows))
    if formed.repeated:
        text = "members that a later one of the same record and name replaces"
        samples = _samples(names, formed.repeated)
        yield Oddity("duplicated_records", len(formed.repeated), text, samples)
    seen: set[tuple[int, bytes]] = set()
    again = []
    for identity in zip(formed.key_hash.tolist(), formed.keys.tolist(), strict=True):
        if identity in seen:
            again.append(_text(identity[1]))
        seen.add(identity)
    if again:
        text = "records with the key of an earlier record, from which they lie apart"
        yield Oddity("duplicate_keys", len(again), text, tuple(again[:SAMPLES_MAX]))
    if formed.non_adjacent:
        text = "pieces of records that are apart from the rest of their record"
        yield Oddity("non_adjacent", formed.non_adjacent, text)


def _samples(names: list[str], rows: Iterable[int]) -> tuple[str, ...]:
    return tuple(names[row] for row, _ in zip(rows, range(SAMPLES_MAX), strict=False))


def _extension(name: str) -> str:
    extension = split_name(name.encode(errors="surrogateescape"))[1]
    return "." + _text(extension) if extension else ""


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")
