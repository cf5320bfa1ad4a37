"""The rows of a ``MemberTable``, gathered run by run and member by member."""

from __future__ import annotations

import numpy as np

from dsort.containers.tar.headers import BLOCK_BYTES, padded_bytes
from dsort.containers.tar.links import resolve_links
from dsort.containers.tar.member import TarMember
from dsort.containers.tar.rewrite import regular_file_headers
from dsort.containers.tar.vector import HeaderRun
from dsort.data.columns import BytesColumn, Int64s, UInt8s
from dsort.data.members import MemberKind, MemberTable, ScanNotes

__all__ = ["RowGatherer"]

_NO_FILE = {
    MemberKind.SYMLINK: "is a symbolic link",
    MemberKind.DIRECTORY: "is a directory",
    MemberKind.DEVICE: "is a device",
}
_NUMBERS = 4  # range start, range end, payload start, payload bytes


class RowGatherer:
    """Members in shard order; ``links_resolved`` and then ``table`` turn them into a table."""

    def __init__(self) -> None:
        self.count = 0
        self._names: list[BytesColumn] = []
        self._kinds: list[UInt8s] = []
        self._numbers: list[Int64s] = []  # shape (4, n)
        self._pending: list[TarMember] = []
        self._literals: dict[int, bytes] = {}
        self._links: dict[int, TarMember] = {}
        self._sparse: set[int] = set()
        self.mended: list[int] = []
        self.long_names_repeated: list[int] = []
        self.unsafe_prefixes: list[int] = []

    def add(self, member: TarMember) -> None:
        """One more member."""
        self._pending.append(member)
        self._keep_apart(self.count, member)
        self.count += 1

    def add_run(self, run: HeaderRun, base: int, by_book: dict[int, TarMember], count: int) -> None:
        """The first ``count`` members of ``run``, whose block 0 is at byte ``base`` of the shard.

        ``by_book`` has those of these rows that were read one by one, the same in extent.
        """
        self._flush()
        names, kind = run.names, run.kind[:count]
        numbers = np.empty((_NUMBERS, count), np.int64)
        for at, column in enumerate((run.start, run.after, run.main + 1)):
            np.multiply(column[:count], BLOCK_BYTES, out=numbers[at])
        numbers[:3] += base
        numbers[3] = run.payload_bytes[:count]
        if by_book:
            texts = names.tolist()[:count]
            for row, member in by_book.items():
                texts[row] = member.name
                kind[row] = member.kind
                numbers[0, row] = member.range_start
                numbers[3, row] = member.payload_bytes
                self._keep_apart(self.count + row, member)
            names = BytesColumn.of(texts)
        elif count < len(names):
            names = BytesColumn(names.offsets[: count + 1], names.blob[: names.offsets[count]])
        self._append(names, kind, numbers)
        self.count += count

    def links_resolved(self, shard: str) -> int:
        """Turn hard links into the files that they mean; how many there were.

        Raises ``CorruptShardError`` for one whose data is not in the shard.
        """
        self._join()
        if not self._links:
            return 0
        kind, (range_start, range_end, payload_start, payload_bytes) = (
            self._kinds[0],
            self._numbers[0],
        )
        odd = np.flatnonzero((kind != MemberKind.FILE) & (kind != MemberKind.HARDLINK)).tolist()
        unfit = {row: _NO_FILE[MemberKind(kind[row])] for row in odd}
        unfit.update(dict.fromkeys(self._sparse, "is a sparse file"))
        links = {row: (link.link_target, link.range_start) for row, link in self._links.items()}
        meant = resolve_links(shard, self._names[0].tolist(), links, unfit)
        for row, link in self._links.items():
            target = meant[row]
            start, size_bytes = int(payload_start[target]), int(payload_bytes[target])
            self._literals[row] = regular_file_headers(link.link_headers, size_bytes)
            kind[row] = MemberKind.FILE
            range_start[row] = payload_start[row] = start
            range_end[row] = start + padded_bytes(size_bytes)
            payload_bytes[row] = size_bytes
        return len(self._links)

    def table(self, notes: ScanNotes) -> MemberTable:
        """All rows as a table."""
        self._join()
        range_start, range_end, payload_start, payload_bytes = self._numbers[0]
        return MemberTable(
            self._names[0],
            self._kinds[0],
            payload_start,
            payload_bytes,
            range_start,
            range_end - range_start,
            dict(self._literals),
            notes,
        )

    def _keep_apart(self, row: int, member: TarMember) -> None:
        if member.literal:
            self._literals[row] = member.literal
        if member.kind == MemberKind.HARDLINK:
            self._links[row] = member
        if member.sparse:
            self._sparse.add(row)
        if member.mended:
            self.mended.append(row)
        if member.long_name_repeated:
            self.long_names_repeated.append(row)
        if member.unsafe_prefix:
            self.unsafe_prefixes.append(row)

    def _append(self, names: BytesColumn, kind: UInt8s, numbers: Int64s) -> None:
        self._names.append(names)
        self._kinds.append(kind)
        self._numbers.append(numbers)

    def _flush(self) -> None:
        if not self._pending:
            return
        members, self._pending = self._pending, []
        numbers = [(m.range_start, m.end, m.payload_start, m.payload_bytes) for m in members]
        self._append(
            BytesColumn.of([member.name for member in members]),
            np.array([member.kind for member in members], np.uint8),
            np.array(numbers, np.int64).T,
        )

    def _join(self) -> None:
        """Make one batch of all."""
        self._flush()
        if len(self._kinds) != 1:
            self._append(BytesColumn.of([]), np.zeros(0, np.uint8), np.zeros((4, 0), np.int64))
        self._names = [BytesColumn.concat(self._names)]
        self._kinds = [np.concatenate(self._kinds)]
        self._numbers = [np.concatenate(self._numbers, axis=1)]
