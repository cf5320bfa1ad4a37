"""A summary of one shard: its records, and everything that is odd about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Self, overload

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from dsort.containers.base import Container, oddities_in
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt64s
from dsort.data.members import MemberKind, MemberTable
from dsort.data.numbered import NumberedColumn, are_positions
from dsort.data.records import FormedRecords, form_records, split_name
from dsort.data.text_sets import first_equals
from dsort.naming.safe_names import UNSAFE_NAMES, new_safe_names, unsafe_links, unsafe_rows
from dsort.sizes import agreed

SAMPLES_MAX = 5
AT_ONCE: Final = 1 << 14
DUPLICATE_KEYS: Final = "[record|records] with the key of an earlier record"


class RecordSummary(Struct, frozen=True):
    """One record: its key, the extensions of its members in order, the bytes of their payload."""

    key: str
    extensions: tuple[str, ...]
    payload_bytes: int

    def to_dict(self) -> dict[str, object]:
        """The record in JSON types."""
        return {
            "key": self.key,
            "extensions": list(self.extensions),
            "payload_bytes": self.payload_bytes,
        }


class Oddity(Struct, frozen=True):
    """Something about a shard that a plain shard does not have. ``count`` is in members, pieces or
    bytes, as named in ``text``."""

    kind: str
    count: int
    text: str
    samples: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, count: int, text: str, samples: tuple[str, ...] = ()) -> Self:
        """An oddity. Where ``text`` has two forms, ``[one|many]``, ``count`` decides which form
        stays."""
        return cls(kind, count, agreed(text, count), samples)


class RecordSummaries(Sequence[RecordSummary], ABC):
    """The records of a shard in order. Each record is summarised only when it is requested, because
    millions of objects would take gigabytes."""

    @abstractmethod
    def some(self, first: int, stop: int) -> Iterator[RecordSummary]:
        """Records ``first`` to ``stop``."""

    @overload
    def __getitem__(self, at: int) -> RecordSummary: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[RecordSummary, ...]: ...

    def __getitem__(self, at: int | slice) -> RecordSummary | tuple[RecordSummary, ...]:
        if isinstance(at, int):
            number = range(len(self))[at]
            return next(self.some(number, number + 1))
        first, stop, step = at.indices(len(self))
        if step == 1:
            return tuple(self.some(first, stop))
        return tuple(self[number] for number in range(first, stop, step))

    def __iter__(self) -> Iterator[RecordSummary]:
        return self.some(0, len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(RecordSummary.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


class ShardSummary(Struct, frozen=True):
    """One shard. Names that are not UTF-8 have surrogate escapes. ``record_bytes``: the payload of
    the smallest record, of the largest, and of all."""

    shard: str
    file_bytes: int
    members: int
    payload_bytes: int
    records: Sequence[RecordSummary]
    record_bytes: tuple[int, int, int]
    extensions: dict[str, int]  # how many members have each extension; "" for those without one
    oddities: tuple[Oddity, ...]

    def to_dict(self, *, with_records: bool = True) -> dict[str, object]:
        """The summary in JSON types."""
        return {
            "shard": self.shard,
            "file_bytes": self.file_bytes,
            "members": self.members,
            "payload_bytes": self.payload_bytes,
            "records": [each.to_dict() for each in self.records] if with_records else [],
            "extensions": self.extensions,
            "oddities": [asdict(each) for each in self.oddities],
        }


def summarise(
    shard: str,
    container: Container,
    file_bytes: int,
    members: MemberTable,
    targets: Mapping[int, bytes],
) -> ShardSummary:
    """Summarise a shard, given its members and the ``targets`` of its symbolic links by row.
    Directories and devices are not records."""
    formed = form_records(members, "keep")
    is_stray = np.zeros(len(members), np.bool_)
    is_stray[list(formed.strays)] = True
    sizes = formed.payload_bytes
    ends = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    return ShardSummary(
        shard=shard,
        file_bytes=file_bytes,
        members=len(members),
        payload_bytes=int(members.payload_bytes.sum()),
        records=_MemberRecords(formed, members.names, is_stray),
        record_bytes=(*ends, int(sizes.sum())),
        extensions=_extension_counts(members.names, is_stray),
        oddities=(
            *_container_oddities(container, members),
            *_kind_oddities(members),
            *_unsafe_oddities(members, targets),
            *_record_oddities(formed, members),
        ),
    )


class _MemberRecords(RecordSummaries):
    """The records formed of members called ``names``."""

    def __init__(self, formed: FormedRecords, names: BytesColumn, is_stray: Bools) -> None:
        self._formed = formed
        self._names = names
        self._is_stray = is_stray

    def __len__(self) -> int:
        return len(self._formed)

    def some(self, first: int, stop: int) -> Iterator[RecordSummary]:
        """See :class:`RecordSummaries`."""
        for begin in range(first, stop, AT_ONCE):
            yield from self._few(begin, min(begin + AT_ONCE, stop))

    def _few(self, first: int, stop: int) -> Iterator[RecordSummary]:
        formed = self._formed
        bounds = formed.member_offsets[first : stop + 1]
        rows = formed.member_rows[bounds[0] : bounds[-1]]
        named = zip(self._names.take(rows).tolist(), self._is_stray[rows].tolist(), strict=True)
        extensions = ["" if is_stray else extension_of(name) for name, is_stray in named]
        keys = formed.keys.run(first, stop).tolist()
        sizes = formed.payload_bytes[first:stop].tolist()
        ends = (bounds - bounds[0]).tolist()
        for key, size_bytes, begin, end in zip(keys, sizes, ends, ends[1:], strict=False):
            yield RecordSummary(_text(key), tuple(extensions[begin:end]), size_bytes)


def _extension_counts(names: BytesColumn, is_stray: Bools) -> dict[str, int]:
    found: Counter[str] = Counter()
    if isinstance(names, NumberedColumn) and len(names):
        strays = int(np.count_nonzero(is_stray))
        found[extension_of(names[0])] += len(names) - strays
        found[""] += strays
        return {extension: count for extension, count in found.items() if count}
    for first in range(0, len(names), AT_ONCE):
        some = names.run(first, min(first + AT_ONCE, len(names))).tolist()
        strays_of = is_stray[first : first + AT_ONCE].tolist()
        found.update(
            "" if stray else extension_of(name) for name, stray in zip(some, strays_of, strict=True)
        )
    return dict(found)


def _container_oddities(container: Container, members: MemberTable) -> Iterable[Oddity]:
    """The oddities that the container has noted, one :class:`Oddity` for each note with a name in
    `dsort inspect`."""
    found: dict[str, Oddity] = {}
    notes = members.notes
    for oddity, count in oddities_in(container.oddities, notes):
        if oddity.inspected:
            before = found.get(oddity.inspected)
            rows = getattr(notes, oddity.note)
            found[oddity.inspected] = Oddity.of(
                oddity.inspected,
                count + (before.count if before else 0),
                oddity.text,
                _samples(members, rows) if isinstance(rows, tuple) else (),
            )
    return found.values()


def _kind_oddities(members: MemberTable) -> Iterable[Oddity]:
    texts = {
        MemberKind.SYMLINK: ("symlinks", "symbolic [link|links]"),
        MemberKind.DIRECTORY: ("directories", "[directory|directories]"),
        MemberKind.DEVICE: ("devices", "[device or fifo|devices or fifos]"),
        MemberKind.HARDLINK: (
            "broken_hard_links",
            "hard [link|links] to members that are not here",
        ),
    }
    for kind, (label, text) in texts.items():
        rows = np.flatnonzero(members.kind == kind).tolist()
        if rows:
            yield Oddity.of(label, len(rows), text, _samples(members, rows))


def _unsafe_oddities(members: MemberTable, targets: Mapping[int, bytes]) -> Iterable[Oddity]:
    numbered = isinstance(members.names, NumberedColumn)  # then one name shows the extension of all
    unsafe = unsafe_rows(members.names.run(0, 1) if numbered else members.names)
    if numbered and unsafe:
        unsafe = [*range(len(members))]
    if unsafe:
        yield Oddity.of("unsafe_names", len(unsafe), UNSAFE_NAMES, _samples(members, unsafe))
    safe = new_safe_names(members.names, unsafe) if targets else {}
    escaping = unsafe_links(
        [(row, safe.get(row, members.names[row]), target) for row, target in targets.items()]
    )
    if escaping:
        text = "symbolic [link that leads|links that lead] out of the archive"
        yield Oddity.of("unsafe_links", len(escaping), text, _samples(members, escaping))


def _record_oddities(formed: FormedRecords, members: MemberTable) -> Iterable[Oddity]:
    kinds = members.kind
    rows = [row for row in formed.strays if kinds[row] in (MemberKind.FILE, MemberKind.SYMLINK)]
    if rows:
        text = "[member that is|members that are] no part of a record (no extension, or hidden)"
        yield Oddity.of("stray_members", len(rows), text, _samples(members, rows))
    if formed.repeated:
        text = "[member that repeats|members that repeat] a name: another record begins there"
        samples = _samples(members, formed.repeated)
        yield Oddity.of("duplicated_records", len(formed.repeated), text, samples)
    again = repeated_keys(formed.keys, formed.key_hash)
    if len(again):
        samples = tuple(_text(formed.keys[row]) for row in again[:SAMPLES_MAX].tolist())
        yield Oddity.of("duplicate_keys", len(again), DUPLICATE_KEYS, samples)
    if formed.non_adjacent:
        text = "[piece of a record|pieces of records], apart from the rest of the record"
        yield Oddity.of("non_adjacent", formed.non_adjacent, text)


def repeated_keys(keys: BytesColumn, hashes: UInt64s) -> Int64s:
    """The records whose key an earlier record has, ascending."""
    if are_positions(keys):
        return np.zeros(0, np.int64)
    return np.flatnonzero(first_equals(keys, hashes) != np.arange(len(keys)))


def _samples(members: MemberTable, rows: Iterable[int]) -> tuple[str, ...]:
    return tuple(_text(members.names[row]) for row in islice(rows, SAMPLES_MAX))


def extension_of(name: bytes) -> str:
    """The extension of a member, with its dot; "" if it has none."""
    extension = split_name(name)[1]
    return "." + _text(extension) if extension else ""


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")
