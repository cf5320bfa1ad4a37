"""Reads one member of a tar strictly: its pax, long-name and main headers as one group."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from dsort.containers.tar.header import (
    BLOCK_BYTES,
    Header,
    PaxRecords,
    compression_of,
    extension_blocks,
    mended,
    odd_number,
    odd_numbers,
    padded_bytes,
    parse_header,
    parse_pax,
    pax_payload,
    shown,
    unsafe_prefix,
    until_nul,
)
from dsort.data.columns import UInt8s
from dsort.data.members import MemberKind
from dsort.errors import CorruptShardError


class WindowEndError(Exception):
    """The window ends before byte ``bytes_end`` of the shard, though the shard does not."""

    def __init__(self, bytes_end: int) -> None:
        super().__init__(bytes_end)
        self.bytes_end = bytes_end


class Window:
    """Bytes ``start`` to ``end`` of ``shard``, which is ``size_bytes`` long. Nothing is copied.

    ``release`` empties the window. Frames in the traceback of an error hold the window, and would
    otherwise keep a mapped file open.
    """

    __slots__ = ("_view", "bytes", "end", "shard", "size_bytes", "start")

    def __init__(
        self, shard: str, size_bytes: int, data: memoryview | bytes | UInt8s, start: int
    ) -> None:
        self.shard = shard
        self.size_bytes = size_bytes
        self.start = start
        self.bytes: UInt8s = np.frombuffer(data, np.uint8)[: size_bytes - start]
        self.end = start + len(self.bytes)
        self._view = self.bytes.data

    def release(self) -> None:
        """Release the memory."""
        self._view.release()
        self.bytes = np.zeros(0, np.uint8)

    def header_block(self, at: int) -> bytes:
        """The header block at byte ``at``, which must be in the window."""
        if at + BLOCK_BYTES > self.size_bytes:
            raise CorruptShardError(self.shard, at, self._cut_off(at))
        return self.take(at, BLOCK_BYTES)

    def need(self, bytes_end: int) -> None:
        """``WindowEndError`` unless the window reaches to byte ``bytes_end`` of the shard."""
        if bytes_end > self.end:
            raise WindowEndError(bytes_end)

    def take(self, at: int, length: int) -> bytes:
        """``length`` bytes from ``at``, both inside the shard; ``WindowEndError`` if the window
        does not have these bytes."""
        self.need(at + length)
        low = at - self.start
        return self._view[low : low + length].tobytes()

    def _cut_off(self, at: int) -> str:
        if at == 0 and (what := compression_of(self.take(0, self.size_bytes))):
            return f"this is {what} data, not a plain tar; unpack it first"
        rest = self.size_bytes - at
        if rest == 0:
            return "the shard ends where a header has to be"
        return f"the shard ends {rest} bytes into a header of {BLOCK_BYTES}"


FOLDED_BYTES_MAX = 256 << 20
"""The maximum memory for one shard's folded headers: bytes of a global header are repeated for
every member, so a hostile shard could take far more memory than its own size."""

_KEYWORDS_MAX = 256  # of global headers: for every member all of them are read
_GLOBAL_BYTES_MAX = 1 << 20  # of the values of these keywords
_GLOBAL_SPARSE_BYTES_MAX = 1 << 10  # of sparse maps in global headers, where writers put none

_SPARSE = b"GNU.sparse."
_NEEDED, _ALL = (b"path", b"linkpath", b"size", _SPARSE), (b"",)

_MATTERS_NOT = frozenset({b"comment", b"GNU.volume.label"})

_NUMBERS = frozenset({b"mtime", b"atime", b"ctime", b"uid", b"gid"})


class GlobalRecords:
    """The global records in force at one point of a shard. Global records apply to every later
    member, but members leave the shard one by one. So a member to which a relevant record applies
    gets a pax header of its own."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._records: dict[bytes, bytes] = {}
        self._alone: bytes | None = None
        self._folded_bytes = 0
        self.folded = 0
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._records)

    def update(self, at: int, records: PaxRecords) -> None:
        """Apply the global header at byte ``at``; later values override earlier ones.

        An empty value also removes the value in the member's own header, so empty values are folded
        like all others. Empty numbers are not, because readers do not accept them: an empty number
        only removes the value of an earlier global header."""
        if any(keyword == b"GNU.volume.filename" for keyword, _ in records):
            raise CorruptShardError(self._shard, at, "multi-volume archives are not supported")
        matter = [item for item in records if item[0] not in _MATTERS_NOT]
        self.folded += bool(matter)
        self.dropped += not matter
        self._alone = None
        for keyword, value in matter:
            if value or keyword not in _NUMBERS:
                self._records[keyword] = value
            else:
                self._records.pop(keyword, None)
        if len(self._records) > _KEYWORDS_MAX:
            reason = f"global pax headers with more than {_KEYWORDS_MAX} keywords"
            raise CorruptShardError(self._shard, at, reason)
        sizes = [(len(value), key.startswith(_SPARSE)) for key, value in self._records.items()]
        if sum(size for size, _ in sizes) > _GLOBAL_BYTES_MAX:
            reason = f"global pax headers with more than {_GLOBAL_BYTES_MAX >> 20} MiB of values"
            raise CorruptShardError(self._shard, at, reason)
        if sum(size for size, is_sparse in sizes if is_sparse) > _GLOBAL_SPARSE_BYTES_MAX:
            reason = (
                f"global pax headers with a sparse map of over {_GLOBAL_SPARSE_BYTES_MAX} bytes"
            )
            raise CorruptShardError(self._shard, at, reason)

    def forget(self) -> None:
        """Drop all records: they do not apply to the next archive of the shard, which begins
        here."""
        self._records.clear()
        self._alone = None

    def fold(self, own: PaxRecords, *, but: frozenset[bytes]) -> PaxRecords:
        """``own``, after the global records that ``own`` does not override and that are not in
        ``but``."""
        known = but.union(keyword for keyword, _ in own)
        return [item for item in self._records.items() if item[0] not in known] + own

    def header_for(self, at: int, own: PaxRecords, folded: PaxRecords) -> bytes:
        """The pax header blocks for ``folded``; shared by all members without records of their own.

        Raises ``CorruptShardError`` if the folded headers of the shard take more than
        ``FOLDED_BYTES_MAX``.
        """
        shared = not own and len(folded) == len(self._records)
        if shared and self._alone is not None:
            return self._alone
        blocks = extension_blocks(b"x", pax_payload(folded))
        self.charge(at, len(blocks))
        if shared:
            self._alone = blocks
        return blocks

    def charge(self, at: int, size_bytes: int) -> None:
        """Count ``size_bytes`` that a member costs because its headers have to be rewritten."""
        self._folded_bytes += size_bytes
        if self._folded_bytes > FOLDED_BYTES_MAX:
            raise CorruptShardError(
                self._shard,
                at,
                "folding the shard's global pax headers into its members, or mending its headers, "
                f"takes more than {FOLDED_BYTES_MAX >> 20} MiB",
            )


HardLinks = Mapping[int, tuple[bytes, int]]
"""Row of a hard link → (the name of its target, the offset of the link in the shard)."""


def resolve_links(
    shard: str, names: Sequence[bytes], links: HardLinks, unfit: Mapping[int, str]
) -> dict[int, int]:
    """A map from each hard link's row to the row of the file that it means, through chains of
    links.

    The target of a link is the last member with the target's name before the link, else the first
    one after the link, because an archive is unpacked in order. Names are compared without leading
    slashes, ``./`` and doubled slashes, because writers drop these from members and targets
    inconsistently. ``unfit`` has the reasons why links to some rows cannot be resolved. Raises
    ``CorruptShardError`` for a missing target, an unfit target or a cycle.
    """
    rows_of: dict[bytes, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(_plain(name), []).append(row)
    resolved: dict[int, int] = {}
    for link in links:
        chain: list[int] = []
        row = link
        while row in links and row not in resolved:
            target = links[row][0]
            chain.append(row)
            resolved[row] = row  # a step that returns here has closed a cycle
            row = _target(rows_of.get(_plain(target), []), row)
            if row < 0:
                _fail(shard, names, chain[-1], links, "is not in this shard")
        final = resolved.get(row, row)
        if final in links:
            _fail(shard, names, link, links, "leads back to the link itself")
        if final in unfit:
            _fail(shard, names, link, links, unfit[final])
        for step in chain:
            resolved[step] = final
    return resolved


def _plain(name: bytes) -> bytes:
    """``name`` without parts that do not change the path that it means."""
    if b"//" not in name and b"./" not in name and name[:1] != b"/" and name[-1:] not in b"/.":
        return name
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _target(rows: list[int], link: int) -> int:
    """The last of ``rows`` before ``link``, else the first after it, else -1."""
    at = bisect_left(rows, link)
    if at > 0:
        return rows[at - 1]
    later = rows[1:2] if rows[:1] == [link] else rows[:1]
    return later[0] if later else -1


def _fail(shard: str, names: Sequence[bytes], link: int, links: HardLinks, why: str) -> None:
    target, offset = links[link]
    what = f"the hard link {shown(names[link])} cannot be resolved"
    raise CorruptShardError(shard, offset, f"{what}: its target, {shown(target)}, {why}")


EXTENSION_BYTES_MAX = 32 << 20
"""The maximum size of a member's pax and long-name headers and of its sparse maps, all together: a
sparse map of a million holes fits. Headers that are written anew take eight times their size in
memory."""

_PATH_BYTES_MAX = 1 << 20  # no system has so long a path; its parts take 35 times its length
_DIGITS_MAX = 20  # of a size; more are hostile
_NUMBER = rb"[0-9]{1,%d}" % _DIGITS_MAX
_SPARSE_MAP = rb"(?:%b+,)*+%b" % (_NUMBER, _NUMBER)
"""A sparse map. With the possessive ``+``, the match does not store the place of each number."""

_PAX = b"xX"  # X: Solaris' own, older spelling
_EXTENSIONS = b"xXLK"
# NUL: as V7 tars have it. 7: a contiguous file, which POSIX lets readers treat as a plain one.
_PLAIN_FILES = b"0\x007"
_BODILESS = {
    b"1": MemberKind.HARDLINK,
    b"2": MemberKind.SYMLINK,
    b"3": MemberKind.DEVICE,
    b"4": MemberKind.DEVICE,
    b"5": MemberKind.DIRECTORY,
    b"6": MemberKind.DEVICE,
}
_NEVER_IN_A_GROUP = {
    b"g": "a global pax header stands between a member's headers",
    b"V": "a volume label stands between a member's headers",
}


class TarMember(Struct):
    """One member: a row of a ``MemberTable``, and the values from which hard links are resolved.

    ``literal`` replaces the header blocks before ``range_start`` (see ``MemberTable``).
    """

    name: bytes
    kind: MemberKind
    range_start: int
    payload_start: int
    payload_bytes: int
    end: int
    literal: bytes = b""
    sparse: bool = False
    mended: bool = False  # some number in its headers was odd
    long_name_repeated: bool = False
    unsafe_prefix: bool = False  # a prefix that only some readers use leads out
    link_target: bytes = b""
    link_headers: bytes = b""  # all header blocks of a hard link, with ``literal`` in front


class _Extensions(Struct):
    """The headers before a member's main header."""

    records: PaxRecords
    wanted: tuple[bytes, ...]  # the beginnings of keywords whose records are kept
    pax_span: tuple[int, int] | None = None
    long_name: bytes | None = None
    long_target: bytes | None = None
    long_name_repeated: bool = False
    odd_numbers: bool = False  # in any header so far


def read_member(window: Window, at: int, block: bytes, governing: GlobalRecords) -> TarMember:
    """The member whose headers begin at byte ``at`` with ``block``, which is no zero block, global
    header or volume label.

    Raises ``CorruptShardError``, and ``WindowEndError`` if the headers reach beyond the window.
    """
    header = parse_header(window.shard, at, block)
    odd = odd_numbers(block)
    if header.typeflag in _PLAIN_FILES and not (governing or odd or unsafe_prefix(block)):
        return _file(window, at, header, header.name, header.size_bytes, at)
    extensions, cursor = _Extensions([], _ALL if governing else _NEEDED, odd_numbers=odd), at
    while header.typeflag in _EXTENSIONS:
        cursor = _read_extension(window, at, cursor, header, extensions)
        block = window.header_block(cursor)
        if not any(block):
            raise CorruptShardError(window.shard, cursor, "a pax or long-name header has no member")
        header = parse_header(window.shard, cursor, block)
        extensions.odd_numbers |= odd_numbers(block)
    if header.typeflag in _NEVER_IN_A_GROUP:
        raise CorruptShardError(window.shard, cursor, _NEVER_IN_A_GROUP[header.typeflag])
    if header.typeflag == b"M":
        raise CorruptShardError(window.shard, cursor, "multi-volume archives are not supported")
    records = extensions.records
    if governing:
        but = frozenset() if extensions.long_name is None else frozenset({b"path"})
        records = governing.fold(records, but=but)
    member = _assemble(window, at, cursor, header, extensions, dict(records))
    member.range_start = at
    member.unsafe_prefix = member.name == header.name and unsafe_prefix(block)
    if len(records) != len(extensions.records):
        _fold(window, member, at, cursor, governing, extensions, records)
    if extensions.odd_numbers or extensions.long_name_repeated:
        _mend(window, member, extensions, governing)
    if member.kind == MemberKind.HARDLINK:
        rest = window.take(member.range_start, member.payload_start - member.range_start)
        member.link_headers = member.literal + rest
    return member


def extension_payload(window: Window, at: int, header: Header, first: int) -> bytes:
    """The payload of the pax or long-name header ``header`` at byte ``at``; the headers of its
    member begin at byte ``first``."""
    size_bytes, shard = header.size_bytes, window.shard
    if size_bytes > EXTENSION_BYTES_MAX:
        limit = EXTENSION_BYTES_MAX >> 20
        reason = f"a pax or long-name header of {size_bytes} bytes; the limit is {limit} MiB"
        raise CorruptShardError(shard, at, reason)
    end = at + BLOCK_BYTES + padded_bytes(size_bytes)
    if end > window.size_bytes:
        raise CorruptShardError(shard, at, "the shard ends inside a pax or long-name header")
    _check_headers(shard, first, end - BLOCK_BYTES)
    window.need(min(end + BLOCK_BYTES, window.size_bytes))  # with the next header
    payload = window.take(at + BLOCK_BYTES, size_bytes)
    next_byte = window.take(at + BLOCK_BYTES + size_bytes, min(-size_bytes % BLOCK_BYTES, 1))
    if next_byte not in b"\0" and payload[-1:] != b"\0":
        # GNU tar reads as much as the header's size, tarfile up to the first NUL.
        raise CorruptShardError(shard, at, "a pax or long-name header has text after its end")
    return payload


def _check_headers(shard: str, first: int, end: int) -> None:
    """Refuse a member if its headers, which begin at byte ``first`` and reach beyond byte ``end``,
    are too long."""
    if end - first > EXTENSION_BYTES_MAX:
        limit = EXTENSION_BYTES_MAX >> 20
        reason = f"the headers of one member take more than {limit} MiB, which is the limit"
        raise CorruptShardError(shard, first, reason)


def read_records(
    window: Window, at: int, header: Header, first: int, wanted: tuple[bytes, ...] = _ALL
) -> PaxRecords:
    """The records of the pax header ``header`` at byte ``at`` whose keywords begin like one of
    ``wanted``; the headers of its member begin at byte ``first``."""
    try:
        records = parse_pax(extension_payload(window, at, header, first))
        return [item for item in records if item[0].startswith(wanted)]
    except ValueError as problem:
        raise CorruptShardError(window.shard, at, f"a pax header has {problem}") from None


def _read_extension(window: Window, first: int, at: int, header: Header, into: _Extensions) -> int:
    """Read the extension header at byte ``at``; return the offset after it. The headers of its
    member begin at byte ``first``.

    One pax header is allowed: readers disagree on which of two would be used. Of several long names
    the last one is used, as in GNU tar and Go. A member may have several, because Toybox's tar
    writes the long name of a file before it opens the file, and keeps the name if it cannot open
    the file.
    """
    end = at + BLOCK_BYTES + padded_bytes(header.size_bytes)
    if header.typeflag in _PAX:
        if into.pax_span:
            raise CorruptShardError(window.shard, at, "two pax headers for one member")
        into.records = read_records(window, at, header, first, into.wanted)
        into.pax_span = at, end
        return end
    text = until_nul(extension_payload(window, at, header, first))
    if not text:
        raise CorruptShardError(window.shard, at, "an empty long name")
    known = into.long_name if header.typeflag == b"L" else into.long_target
    into.long_name_repeated |= known is not None
    if header.typeflag == b"L":
        into.long_name = text
    else:
        into.long_target = text
    return end


def _assemble(
    window: Window,
    first: int,
    at: int,
    header: Header,
    extensions: _Extensions,
    said: dict[bytes, bytes],
) -> TarMember:
    """The member with the main header at byte ``at``. ``said``: the values of the member's pax
    records. The headers of the member begin at byte ``first``."""
    name = _one_text(window, at, extensions.long_name, said.get(b"path"), header.name)
    sparse = any(keyword.startswith(_SPARSE) for keyword in said)
    kind = _BODILESS.get(header.typeflag)
    if sparse:
        name = _one_text(window, at, None, said.get(b"GNU.sparse.name"), name)
        _check_sparse_records(window, at, name, said, bodiless=kind is not None)
    if kind is not None:
        member = TarMember(name, kind, at, at + BLOCK_BYTES, 0, at + BLOCK_BYTES)
        if kind in (MemberKind.HARDLINK, MemberKind.SYMLINK):
            long, pax = extensions.long_target, said.get(b"linkpath")
            target = _one_text(window, at, long, pax, header.link_target, "link target")
        if kind == MemberKind.HARDLINK:
            if name[-1:] == b"/":
                reason = "a hard link to a directory (its name ends in '/')"
                raise CorruptShardError(window.shard, at, reason)
            member.link_target = target
        return member
    size_bytes, pax_size = header.size_bytes, said.get(b"size")
    if pax_size is not None:
        if not re.fullmatch(_NUMBER, pax_size):
            raise CorruptShardError(window.shard, at, "the size in a pax header is unreadable")
        size_bytes = int(pax_size)
    member = _file(window, at, header, name, size_bytes, first)
    member.sparse = sparse or header.typeflag == b"S"
    return member


def _file(
    window: Window, at: int, header: Header, name: bytes, size_bytes: int, first: int
) -> TarMember:
    """The member ``name``, which has a payload. The main header of the member is at byte ``at``,
    and its first header at byte ``first``."""
    typeflag, payload_start, kind = header.typeflag, at + BLOCK_BYTES, MemberKind.FILE
    if typeflag == b"S":
        payload_start = _skip_sparse_maps(window, at, first)
    end = payload_start + padded_bytes(size_bytes)
    if end > window.size_bytes:
        reason = _past_the_end(window, name, payload_start, size_bytes)
        raise CorruptShardError(window.shard, at, reason)
    if typeflag == b"D":  # GNU: a directory with the list of its contents
        kind = MemberKind.DIRECTORY
    elif name[-1:] == b"/" and typeflag in _PLAIN_FILES:  # directories as V7 tars wrote them
        if size_bytes:
            reason = "a directory (its name ends in '/') with a payload"
            raise CorruptShardError(window.shard, at, reason)
        kind = MemberKind.DIRECTORY
    return TarMember(name, kind, at, payload_start, size_bytes, end)


def _one_text(
    window: Window,
    at: int,
    gnu: bytes | None,
    pax: bytes | None,
    short: bytes,
    what: str = "name",
) -> bytes:
    """A name or link target: of a long-name header, a pax record, or the main header."""
    if pax is not None and (not pax or 0 in pax):
        reason = f"a {what} holds a NUL byte" if pax else f"a pax header gives an empty {what}"
        raise CorruptShardError(window.shard, at, reason)
    if gnu is not None and pax is not None and gnu != pax:
        long = "long names" if what == "name" else "link targets"
        raise CorruptShardError(window.shard, at, f"two different {long} for one member")
    if len(text := gnu or pax or short) > _PATH_BYTES_MAX:
        reason = f"a {what} of {len(text)} bytes; the limit is {_PATH_BYTES_MAX >> 20} MiB"
        raise CorruptShardError(window.shard, at, reason)
    return text


def _skip_sparse_maps(window: Window, at: int, first: int) -> int:
    """Where the payload of the old GNU sparse member at ``at`` begins: after its map blocks."""
    block = window.take(at, BLOCK_BYTES)
    _check_sparse_map(window, at, block[386:482] + block[483:495])
    more, cursor = block[482], at + BLOCK_BYTES
    while more:
        if cursor - first > EXTENSION_BYTES_MAX:
            raise CorruptShardError(window.shard, at, "the map of a sparse member has no end")
        block = window.header_block(cursor)
        _check_sparse_map(window, at, block[:504])
        more = block[504]
        cursor += BLOCK_BYTES
    return cursor


def _check_sparse_map(window: Window, at: int, fields: bytes) -> None:
    """Refuse a sparse map at which ``tarfile`` would stop."""
    if any(odd_number(fields[low : low + 12]) for low in range(0, len(fields), 12)):
        reason = "the map of a sparse member has an unreadable number"
        raise CorruptShardError(window.shard, at, reason)


def _check_sparse_records(
    window: Window, at: int, name: bytes, said: dict[bytes, bytes], *, bodiless: bool
) -> None:
    """Refuse sparse records at which readers stop, or which would make the data of a resolved hard
    link different from its target's."""
    if bodiless:
        reason = f"{shown(name)} has a sparse map, but no data of its own"
        raise CorruptShardError(window.shard, at, reason)
    for keyword, value in said.items():
        if not keyword.startswith(_SPARSE) or keyword == b"GNU.sparse.name":
            continue
        form = _SPARSE_MAP if keyword == b"GNU.sparse.map" else _NUMBER
        if not re.fullmatch(form, value):
            reason = f"{keyword.decode('ascii', 'replace')} of {shown(name)} is unreadable"
            raise CorruptShardError(window.shard, at, reason)


def _past_the_end(window: Window, name: bytes, payload_start: int, size_bytes: int) -> str:
    rest = window.size_bytes - payload_start
    if rest >= size_bytes:
        return f"the padding after {shown(name)} is cut off"
    return f"{shown(name)} has {size_bytes} payload bytes, of which the shard holds {rest}"


def _mend(
    window: Window, member: TarMember, extensions: _Extensions, governing: GlobalRecords
) -> None:
    """Give ``member`` its own header blocks, which all readers read alike."""
    raw = window.take(member.range_start, member.payload_start - member.range_start)
    member.literal = mended(member.literal + raw)
    member.range_start = member.payload_start
    member.mended = extensions.odd_numbers
    member.long_name_repeated = extensions.long_name_repeated
    governing.charge(member.payload_start, len(member.literal))


def _fold(
    window: Window,
    member: TarMember,
    at: int,
    main_at: int,
    governing: GlobalRecords,
    extensions: _Extensions,
    records: PaxRecords,
) -> None:
    """Replace the pax header of ``member`` by one with the pax records ``records``, and keep
    long-name headers. ``governing`` counts the bytes that the new headers take."""
    low, high = extensions.pax_span or (at, at)
    kept = window.take(at, low - at) + window.take(high, main_at - high)
    blocks = governing.header_for(at, extensions.records, records)
    member.literal = blocks + kept if kept else blocks
    member.range_start = main_at
    if kept:
        governing.charge(at, len(member.literal))
    if member.kind == MemberKind.HARDLINK:
        governing.charge(at, len(blocks) + len(member.link_target))
    if any(keyword == b"path" for keyword, _ in records):
        governing.charge(at, len(member.name))
