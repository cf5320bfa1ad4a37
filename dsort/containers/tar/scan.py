"""The tar format: finds the members in a shard's bytes, without a copy of any payload.

The checksum of every header is verified, and every member ends where the next header begins. No
byte between members is skipped.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from dsort.containers.base import Need, Scanner, shortfall_in
from dsort.containers.tar.header import (
    BLOCK_BYTES,
    padded_bytes,
    parse_header,
    plain_payload,
    regular_file_headers,
)
from dsort.containers.tar.member import (
    EXTENSION_BYTES_MAX,
    GlobalRecords,
    TarMember,
    Window,
    WindowEndError,
    read_member,
    read_records,
    resolve_links,
)
from dsort.containers.tar.oddities import ODDITIES, TarNotes
from dsort.containers.tar.vector import (
    Blocks,
    HeaderRun,
    find_by_hopping,
    find_by_magic,
    read_headers,
)
from dsort.data.columns import BytesColumn, Int64s, UInt8s, UInt64s
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import CorruptShardError
from dsort.sizes import format_bytes

END_BYTES = 2 * BLOCK_BYTES
_USUAL_RECORD_BYTES = 20 * BLOCK_BYTES
_OTHER_RECORD_BYTES_MIN, _OTHER_RECORD_BYTES_MAX = 32 << 10, 1 << 20


class EndWatch:
    """Watches for the ends of archives in a shard of ``size_bytes``, and has the ends found so far.

    A torn write or a preallocated download leaves zeros in place of members, and two zero blocks
    are an end marker. The padding behind two zero blocks distinguishes these cases. GNU tar, Python
    and others pad an archive to a whole number of *records* of 10,240 bytes, so the padding is less
    than one record; Go, Rust and dsort do not pad. Other zeros are noted. Such zeros are unusual if
    ``tar -b`` (records of a power of two, up to 1 MiB) or ``tar -A`` (which copies a padded tar and
    pads the whole again) may have left them. Otherwise the zeros are unexplained. Zeros within the
    last record of a padded tar may also stand in place of members. The bytes do not show this,
    because a shorter tar would have the same zeros."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._start = 0  # of the current archive
        self._marker_at = 0  # of that archive
        self._holds_anything = False
        self.missing_end = True
        self.trailing_bytes = 0
        self.unexplained_zeros = 0
        self.concatenated = 0
        self.unusual_padding = 0

    @property
    def blank(self) -> bool:
        """Whether the shard has only zeros, but is longer or shorter than an end marker. An end
        marker alone is a whole tar without members, and too short to have had members."""
        return not self._holds_anything and self._size_bytes != END_BYTES

    def note_content(self) -> None:
        """Remember that the shard has bytes other than zeros."""
        self._holds_anything = True

    def note_marker(self, at: int, length: int) -> None:
        """Remember that ``length`` zero bytes at ``at`` end the archive; if they are enough, they
        are an end marker."""
        self._marker_at = at
        self.missing_end = length < END_BYTES

    def note_archive(self, at: int) -> None:
        """Remember that another archive begins at ``at``, after the zeros of the archive before
        it."""
        padding = at - self._marker_at - END_BYTES
        length = at - self._start
        if not self._holds_anything:  # a tar without members, as GNU tar and Python write it
            explained = length in (END_BYTES, _USUAL_RECORD_BYTES)
        else:
            # Both lengths must be whole numbers of unusual records: a hole may end at such a place
            # by chance, but it is unlikely that the file ends at such a place, too.
            both = length | (self._size_bytes - at)
            explained = padding < max(_USUAL_RECORD_BYTES, _other_record_bytes(both))
        if not explained:
            self.unexplained_zeros += padding
        self._start = at
        self.missing_end = True
        self.concatenated += 1

    def note_trailing(self, at: int) -> None:
        """Remember that the bytes from ``at`` on are not a tar."""
        self._holds_anything = True
        self.trailing_bytes = self._size_bytes - at

    def finish(self) -> None:
        """Remember that the shard has been read to its end."""
        if self.missing_end or self.trailing_bytes or self.blank:
            return
        padding = self._size_bytes - self._marker_at - END_BYTES
        # ``tar -A`` appends a tar to another one that is not a whole number of records.
        lengths = (self._size_bytes, self._size_bytes - self._start)
        usual = any(length % _USUAL_RECORD_BYTES == 0 for length in lengths)
        if padding == 0 or (usual and padding < _USUAL_RECORD_BYTES):
            return
        twice = usual and padding < 2 * _USUAL_RECORD_BYTES + END_BYTES
        if twice or padding < _other_record_bytes(lengths[1]):
            self.unusual_padding = padding
        else:
            self.unexplained_zeros += padding


def _other_record_bytes(length: int) -> int:
    """The largest power of two that may be the size of the records of an archive of ``length``
    bytes; 0 if there is none."""
    size_bytes = min(length & -length, _OTHER_RECORD_BYTES_MAX)
    return size_bytes if size_bytes >= _OTHER_RECORD_BYTES_MIN else 0


_NO_FILE = {
    MemberKind.SYMLINK: "is a symbolic link",
    MemberKind.DIRECTORY: "is a directory",
    MemberKind.DEVICE: "is a device",
}
_NUMBERS = 4  # range start, range end, payload start, payload bytes


class RowGatherer:
    """Gathers members in shard order; ``links_resolved`` and then ``table`` turn the members into a
    table."""

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
        """Add one member."""
        self._pending.append(member)
        self._keep_apart(self.count, member)
        self.count += 1

    def add_run(
        self, run: HeaderRun, base: int, one_by_one: dict[int, TarMember], count: int
    ) -> None:
        """Add the first ``count`` members of ``run``, whose block 0 is at byte ``base`` of the
        shard.

        ``one_by_one``: the members in some of these rows, which were read one by one and have the
        same extent as in ``run``.
        """
        self._flush()
        names, kind = run.names, run.kind[:count]
        numbers = np.empty((_NUMBERS, count), np.int64)
        for at, column in enumerate((run.start, run.after, run.main + 1)):
            np.multiply(column[:count], BLOCK_BYTES, out=numbers[at])
        numbers[:3] += base
        numbers[3] = run.payload_bytes[:count]
        if one_by_one:
            texts = names.tolist()[:count]
            for row, member in one_by_one.items():
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

    def links_resolved(self, shard: str, payload_max: float) -> int:
        """Turn hard links into the files that they mean; return how many there were.

        Raises ``CorruptShardError`` for a link to data outside the shard, and if all payloads, with
        a copy for each link, have more than ``payload_max`` bytes.
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
        self._check_payload(shard, meant, payload_max)
        for row in list(self._links):
            link, target = self._links.pop(row), meant[row]  # its headers are not held twice
            start, size_bytes = int(payload_start[target]), int(payload_bytes[target])
            self._literals[row] = regular_file_headers(link.link_headers, size_bytes)
            kind[row] = MemberKind.FILE
            range_start[row] = payload_start[row] = start
            range_end[row] = start + padded_bytes(size_bytes)
            payload_bytes[row] = size_bytes
        return len(meant)

    def _check_payload(self, shard: str, meant: dict[int, int], payload_max: float) -> None:
        sizes = self._numbers[0][_NUMBERS - 1].tolist()
        total = sum(sizes)
        for row, link in self._links.items():
            total += sizes[meant[row]]
            if total > payload_max:
                what = f"it is over {format_bytes(int(payload_max))} with copies for its hard links"
                hint = "it may be a bomb; if it is data, set a larger max_expansion"
                raise CorruptShardError(shard, link.range_start, what, hint=hint)

    def table(self, notes: TarNotes) -> MemberTable:
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

    def run(self, first: int) -> MemberTable:
        """The rows from ``first`` on, with names, kinds and payloads only."""
        self._join()
        range_start, range_end, payload_start, payload_bytes = self._numbers[0][:, first:]
        return MemberTable(
            self._names[0].run(first, self.count),
            self._kinds[0][first:],
            payload_start,
            payload_bytes,
            range_start,
            range_end - range_start,
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
        """Join all batches to one."""
        self._flush()
        # Without an empty batch, nothing could be joined for a tar without members.
        if len(self._kinds) != 1:
            self._append(BytesColumn.of([]), np.zeros(0, np.uint8), np.zeros((4, 0), np.int64))
        self._names = [BytesColumn.concat(self._names)]
        self._kinds = [np.concatenate(self._kinds)]
        self._numbers = [np.concatenate(self._numbers, axis=1)]


END_OF_ARCHIVE = bytes(END_BYTES)
"""The end of an output shard: two zero blocks, and nothing after them."""

_RUN_HEADERS_MAX = 3072  # 1.5 MiB, so that they stay in a second-level cache
_RUN_HEADERS_MIN = 256
_SMALL_BLOCKS_MAX = 40  # up to here, looking at every block costs less than a hop
_HOPS_AFTER_MAGIC = 8  # runs that are found by hopping, after payload that looked like headers
_WORTH_A_RUN = 32  # fewer members than that are faster to read one by one
_PENALTY_MAX = 1024  # maximum number of members read one by one because runs ended too soon
_TAIL_BYTES = 1 << 20


class TarScan:
    """The members of one shard found so far: of ustar, GNU, pax and old V7 archives. Plain headers
    are read many at a time (``vector``), the others one by one (``member``).

    A window may end anywhere. Headers that the end of a window cuts off are read from the next
    window, which then begins with them; payload is passed over. Nothing of a window is kept.

    ``shard``: its name in errors. ``size_bytes``: its whole length. If hard links copy payloads,
    all payloads together have ``payload_max`` bytes at most.
    """

    def __init__(self, shard: str, size_bytes: int, payload_max: float = math.inf) -> None:
        self._shard = shard
        self._payload_max = payload_max
        self._size_bytes = size_bytes
        self._at = 0
        self._rows = RowGatherer()
        self._scratch: UInt64s = np.empty((_RUN_HEADERS_MAX, BLOCK_BYTES // 8), np.uint64)
        self._governing = GlobalRecords(shard)
        self._ended = False
        self._run_headers = _RUN_HEADERS_MIN
        self._blocks_each = float(_SMALL_BLOCKS_MAX + 1)  # a guess until the first members are read
        self._hops_due = 0
        self._one_by_one_due = 0
        self._penalty = 1
        self._ends = EndWatch(size_bytes)
        self._labels_dropped = 0
        self._lone_zero_blocks = 0

    def scanner(self) -> Scanner:
        """See ``Container.scanner``. The scanner needs windows of 1 KiB, or less at the end of the
        shard, unless the headers of a member are longer.

        For longer headers, the scanner first needs the length known so far: each header shows the
        length of the next one. From the third window on, the scanner needs twice what the last
        window held of these headers, at most a little over 32 MiB, the limit for the headers of a
        member.
        """
        needed = 2 * BLOCK_BYTES
        short_at = -1  # where the last window began that was too short
        while self._at < self._size_bytes:
            need = Need(self._at, min(needed, self._size_bytes - self._at))
            window = Window(self._shard, self._size_bytes, (yield need), self._at)
            needed = 2 * BLOCK_BYTES
            try:
                self._read(window)
            except WindowEndError as short:
                needed = short.bytes_end - self._at
                if self._at == short_at:  # else each header of a chain would need one more window
                    twice = min(2 * (window.end - self._at), EXTENSION_BYTES_MAX)
                    needed = max(needed, twice)
                short_at = self._at
            finally:
                window.release()
        return self._table()

    def plain_payload(self, header: bytes) -> int | None:
        """The length of the payload after ``header``, the first block of an entry; None if this
        block alone does not decide it. The windows of the scan need not contain the payload."""
        return None if self._governing or self._ended else plain_payload(header)

    def found(self, first: int) -> MemberTable:
        """The members found so far, from number ``first`` on, with names, kinds, ranges and
        payloads only. Hard links are not resolved before the end of the shard, which may still turn
        out to be incomplete."""
        return self._rows.run(first)

    def _table(self) -> MemberTable:
        self._ends.finish()
        resolved = self._rows.links_resolved(self._shard, self._payload_max)
        notes = TarNotes(
            missing_end=self._ends.missing_end,
            trailing_bytes=self._ends.trailing_bytes,
            unexplained_zeros=self._ends.unexplained_zeros,
            blank=self._ends.blank,
            concatenated=self._ends.concatenated,
            unusual_padding=self._ends.unusual_padding,
            hardlinks_resolved=resolved,
            global_headers_folded=self._governing.folded,
            global_headers_dropped=self._governing.dropped,
            volume_labels_dropped=self._labels_dropped,
            lone_zero_blocks=self._lone_zero_blocks,
            mended=tuple(self._rows.mended),
            long_names_repeated=tuple(self._rows.long_names_repeated),
            unsafe_prefixes=tuple(self._rows.unsafe_prefixes),
        )
        shortfall = shortfall_in(ODDITIES, notes)
        return self._rows.table(replace(notes, shortfall=shortfall) if shortfall else notes)

    def _read(self, window: Window) -> None:
        base = window.start
        blocks = Blocks(window.bytes, self._scratch)
        try:
            while self._at < window.end:
                if self._ended:
                    self._read_tail(window)
                elif self._one_by_one_due or self._governing:
                    self._one_by_one_due = max(self._one_by_one_due - 1, 0)
                    self._read_entry(window)
                elif not self._read_run(window, blocks, base):
                    self._read_entry(window)
        finally:
            del blocks  # else an error's traceback would keep them, and with them a mapped file

    def _read_run(self, window: Window, blocks: Blocks, base: int) -> bool:
        """Read many members at once; False if the next member has to be read by itself."""
        first = (self._at - base) // BLOCK_BYTES
        if first >= blocks.count:
            return False
        found, by_magic = self._find(blocks, first)
        run = read_headers(blocks, found, (self._size_bytes - base) // BLOCK_BYTES)
        count = 0
        if run is not None:
            one_by_one, count = self._members_one_by_one(window, run, base)
        if run is None or count == 0:
            self._learn(len(found), 0, 0, by_magic)
            return False
        end = int(run.after[count - 1])
        self._rows.add_run(run, base, one_by_one, count)
        self._ends.note_content()
        self._at = base + end * BLOCK_BYTES
        self._learn(len(found), int(np.searchsorted(found, end)), end - first, by_magic)
        return True

    def _find(self, blocks: Blocks, first: int) -> tuple[Int64s, bool]:
        """Candidates for the next headers, and whether they were found by their magic."""
        if self._blocks_each <= _SMALL_BLOCKS_MAX and not self._hops_due:
            stop = first + int(self._blocks_each * self._run_headers) + 1
            found = find_by_magic(blocks, first, min(stop, blocks.count))
            if len(found) and found[0] == first:
                return found[:_RUN_HEADERS_MAX], True
            self._hops_due = _HOPS_AFTER_MAGIC  # V7 headers have no magic
        self._hops_due = max(self._hops_due - 1, 0)
        return find_by_hopping(blocks, first, self._run_headers), False

    def _learn(self, found: int, read: int, blocks_read: int, by_magic: bool) -> None:
        """Choose the next method from how many of the found headers were read."""
        if read:
            self._blocks_each = blocks_read / read
        if 2 * read >= found:
            self._run_headers = min(4 * self._run_headers, _RUN_HEADERS_MAX)
        else:
            self._run_headers = max(2 * read, _RUN_HEADERS_MIN)
            self._hops_due = _HOPS_AFTER_MAGIC if by_magic else self._hops_due
        if read >= _WORTH_A_RUN:
            self._penalty = 1
        else:
            self._one_by_one_due = self._penalty
            self._penalty = min(2 * self._penalty, _PENALTY_MAX)

    def _members_one_by_one(
        self, window: Window, run: HeaderRun, base: int
    ) -> tuple[dict[int, TarMember], int]:
        """The special members of ``run``, and how many of its members are valid.

        If a member that is read by itself has another extent than in the run, the run ends before
        this member.
        """
        one_by_one: dict[int, TarMember] = {}
        for row in np.flatnonzero(run.special).tolist():
            start, end = (
                int(column[row]) * BLOCK_BYTES + base for column in (run.start, run.after)
            )
            payload_start = (int(run.main[row]) + 1) * BLOCK_BYTES + base
            try:
                block = window.header_block(start)
                member = read_member(window, start, block, self._governing)
            except (CorruptShardError, WindowEndError):
                return one_by_one, row  # the member is read again, and the error is raised then
            if (member.payload_start, member.end) != (payload_start, end):
                return one_by_one, row
            one_by_one[row] = member
        return one_by_one, len(run.kind)

    def _read_entry(self, window: Window) -> None:
        """Read the next member, global header, volume label or zero block."""
        at = self._at
        block = window.header_block(at)
        if not any(block):
            self._read_zero_block(window)
            return
        self._ends.note_content()
        # g is a global pax header, V a volume label of GNU tar: neither belongs to a member.
        if block[156:157] not in (b"g", b"V"):
            member = read_member(window, at, block, self._governing)
            self._rows.add(member)
            self._at = member.end
            return
        header = parse_header(self._shard, at, block)
        end = at + BLOCK_BYTES + padded_bytes(header.size_bytes)
        if header.typeflag == b"g":
            self._governing.update(at, read_records(window, at, header, at))
        elif end > self._size_bytes:
            raise CorruptShardError(self._shard, at, "the shard ends inside a volume label")
        else:
            self._labels_dropped += 1
        self._at = end

    def _read_zero_block(self, window: Window) -> None:
        """Two zero blocks end the archive, and so do fewer zeros at the end of the shard. A single
        zero block before further members does not end the archive: to stop there, as GNU tar does,
        would lose these members."""
        at, length = self._at, min(END_BYTES, self._size_bytes - self._at)
        if any(window.take(at, length)):
            self._lone_zero_blocks += 1
            self._at = at + BLOCK_BYTES
            return
        self._ended = True
        self._ends.note_marker(at, length)
        self._at = at + length

    def _read_tail(self, window: Window) -> None:
        """Pass over zeros after the end of an archive, up to the next archive or up to bytes that
        are not a tar."""
        piece = window.bytes[self._at - window.start :][:_TAIL_BYTES]
        zeros = int((piece != 0).argmax()) if piece.any() else len(piece)
        at = self._at + zeros
        if at == self._size_bytes:
            self._at = at
            return
        self._at = at - at % BLOCK_BYTES  # a header that begins with a NUL begins there
        if zeros == len(piece):
            if at == window.end:  # and not only at the end of the piece
                window.need(min(self._at + BLOCK_BYTES, self._size_bytes))
        elif self._begins_archive(window):
            self._ends.note_archive(self._at)
            self._governing.forget()
            self._ended = False
        else:
            self._ends.note_trailing(at)
            self._at = self._size_bytes

    def _begins_archive(self, window: Window) -> bool:
        """Whether a header begins here. Data that only looks like a header has a wrong checksum."""
        if self._at + BLOCK_BYTES > self._size_bytes:
            return False
        try:
            parse_header(self._shard, self._at, window.take(self._at, BLOCK_BYTES))
        except CorruptShardError:
            return False
        return True
