"""One member of a tar by the book: its pax, long-name and main headers as one group."""

from __future__ import annotations

from dataclasses import dataclass

from dsort.containers.tar.global_headers import GlobalRecords
from dsort.containers.tar.headers import (
    BLOCK_BYTES,
    Header,
    PaxRecords,
    padded_bytes,
    parse_header,
    parse_pax,
    shown,
    unsafe_prefix,
    until_nul,
)
from dsort.containers.tar.numbers import odd_number, odd_numbers
from dsort.containers.tar.rewrite import mended
from dsort.containers.tar.window import Window
from dsort.data.members import MemberKind
from dsort.errors import CorruptShardError

__all__ = ["EXTENSION_BYTES_MAX", "TarMember", "extension_payload", "read_member", "read_records"]

EXTENSION_BYTES_MAX = 64 << 20
"""Most bytes of one pax or long-name header; a name or an attribute is never near it."""

_DIGITS_MAX = 20  # of a size; more are hostile

_PAX = b"xX"  # X: Solaris' own, older spelling
_EXTENSIONS = b"xXLK"
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


@dataclass(slots=True)
class TarMember:
    """One member: the row of a ``MemberTable``, and what hard links need to be resolved.

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
    unsafe_prefix: bool = False  # some readers put a prefix before the name that leads out
    link_target: bytes = b""
    link_headers: bytes = b""  # all header blocks of a hard link, with ``literal`` in front


@dataclass(slots=True)
class _Extensions:
    """What stands before a member's main header."""

    records: PaxRecords
    pax_span: tuple[int, int] | None = None
    long_name: bytes | None = None
    long_target: bytes | None = None
    long_name_repeated: bool = False
    odd_numbers: bool = False  # in some header so far


def read_member(window: Window, at: int, block: bytes, governing: GlobalRecords) -> TarMember:
    """The member whose headers begin at byte ``at`` with ``block``, which is no zero block, global
    header or volume label.

    Raises ``CorruptShardError``, and ``WindowEndError`` if the headers reach beyond the window.
    """
    header = parse_header(window.shard, at, block)
    odd = odd_numbers(block)
    if header.typeflag in _PLAIN_FILES and not (governing or odd or unsafe_prefix(block)):
        return _file(window, at, header, header.name, header.size_bytes)
    extensions, cursor = _Extensions([], odd_numbers=odd), at
    while header.typeflag in _EXTENSIONS:
        cursor = _read_extension(window, cursor, header, extensions)
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
    member = _assemble(window, cursor, header, extensions, dict(records))
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


def extension_payload(window: Window, at: int, header: Header) -> bytes:
    """The payload of the pax or long-name header ``header`` at byte ``at``."""
    size_bytes, shard = header.size_bytes, window.shard
    if size_bytes > EXTENSION_BYTES_MAX:
        limit = EXTENSION_BYTES_MAX >> 20
        reason = f"a pax or long-name header of {size_bytes} bytes; the limit is {limit} MiB"
        raise CorruptShardError(shard, at, reason)
    end = at + BLOCK_BYTES + padded_bytes(size_bytes)
    if end > window.size_bytes:
        raise CorruptShardError(shard, at, "the shard ends inside a pax or long-name header")
    window.need(min(end + BLOCK_BYTES, window.size_bytes))  # with the header that comes next
    blocks = window.take(at + BLOCK_BYTES, padded_bytes(size_bytes))
    payload, next_byte = blocks[:size_bytes], blocks[size_bytes : size_bytes + 1]
    if next_byte not in b"\0" and payload[-1:] != b"\0":
        # GNU tar reads as much as the header says, tarfile to the first NUL.
        raise CorruptShardError(shard, at, "a pax or long-name header goes on after its end")
    return payload


def read_records(window: Window, at: int, header: Header) -> PaxRecords:
    """The records of the pax header ``header`` at byte ``at``."""
    try:
        return parse_pax(extension_payload(window, at, header))
    except ValueError as problem:
        raise CorruptShardError(window.shard, at, f"a pax header has {problem}") from None


def _read_extension(window: Window, at: int, header: Header, into: _Extensions) -> int:
    """Read one header that belongs to the next member; the byte after it is returned.

    A pax header may stand there once: readers disagree on which of two would count. Of long names
    the last one counts, as for GNU tar and Go: Toybox's tar leaves those of files that it then
    could not open.
    """
    end = at + BLOCK_BYTES + padded_bytes(header.size_bytes)
    if header.typeflag in _PAX:
        if into.pax_span:
            raise CorruptShardError(window.shard, at, "two pax headers for one member")
        into.records, into.pax_span = read_records(window, at, header), (at, end)
        return end
    text = until_nul(extension_payload(window, at, header))
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
    window: Window, at: int, header: Header, extensions: _Extensions, said: dict[bytes, bytes]
) -> TarMember:
    """The member of the main header at byte ``at``, of which its pax records say ``said``."""
    name = _one_text(window, at, extensions.long_name, said.get(b"path"), header.name)
    sparse = any(keyword.startswith(b"GNU.sparse.") for keyword in said)
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
        if not pax_size.isdigit() or len(pax_size) > _DIGITS_MAX:
            raise CorruptShardError(window.shard, at, "the size in a pax header is unreadable")
        size_bytes = int(pax_size)
    member = _file(window, at, header, name, size_bytes)
    member.sparse = sparse or header.typeflag == b"S"
    return member


def _file(window: Window, at: int, header: Header, name: bytes, size_bytes: int) -> TarMember:
    """The member ``name`` with a payload, whose main header is at byte ``at``."""
    typeflag, payload_start, kind = header.typeflag, at + BLOCK_BYTES, MemberKind.FILE
    if typeflag == b"S":
        payload_start = _skip_sparse_maps(window, at)
    end = payload_start + padded_bytes(size_bytes)
    if end > window.size_bytes:
        reason = _past_the_end(window, name, payload_start, size_bytes)
        raise CorruptShardError(window.shard, at, reason)
    if typeflag == b"D":  # GNU: a directory with the list of what is in it
        kind = MemberKind.DIRECTORY
    elif name[-1:] == b"/" and typeflag in _PLAIN_FILES:  # how V7 tars wrote directories
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
    """A name or link target: from a long-name header, a pax record, or the main header."""
    if pax is not None and (not pax or 0 in pax):
        reason = f"a {what} holds a NUL byte" if pax else f"a pax header gives an empty {what}"
        raise CorruptShardError(window.shard, at, reason)
    if gnu is not None and pax is not None and gnu != pax:
        long = "long names" if what == "name" else "link targets"
        raise CorruptShardError(window.shard, at, f"two different {long} for one member")
    return gnu or pax or short


def _skip_sparse_maps(window: Window, at: int) -> int:
    """Where the payload of the old GNU sparse member at ``at`` begins: after its map blocks."""
    block = window.take(at, BLOCK_BYTES)
    _check_sparse_map(window, at, block[386:482] + block[483:495])
    more, cursor = block[482], at + BLOCK_BYTES
    while more:
        if cursor - at > EXTENSION_BYTES_MAX:
            raise CorruptShardError(window.shard, at, "the map of a sparse member has no end")
        block = window.header_block(cursor)
        _check_sparse_map(window, at, block[:504])
        more = block[504]
        cursor += BLOCK_BYTES
    return cursor


def _check_sparse_map(window: Window, at: int, fields: bytes) -> None:
    """Refuse what ``tarfile`` stops at."""
    if any(odd_number(fields[low : low + 12]) for low in range(0, len(fields), 12)):
        reason = "the map of a sparse member has an unreadable number"
        raise CorruptShardError(window.shard, at, reason)


def _check_sparse_records(
    window: Window, at: int, name: bytes, said: dict[bytes, bytes], *, bodiless: bool
) -> None:
    """Refuse sparse records that readers stop at, or that would tell them to read the data of a
    resolved hard link otherwise than its target's."""
    if bodiless:
        reason = f"{shown(name)} has a sparse map, but no data of its own"
        raise CorruptShardError(window.shard, at, reason)
    for keyword, value in said.items():
        if not keyword.startswith(b"GNU.sparse.") or keyword == b"GNU.sparse.name":
            continue
        numbers = value.split(b",") if keyword == b"GNU.sparse.map" and value else [value]
        if not all(number.isdigit() and len(number) <= _DIGITS_MAX for number in numbers):
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
    """Give ``member`` header blocks of its own that all readers read alike."""
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
    """Give ``member`` a pax header that holds ``records`` in place of its own; long-name headers
    stay. What a global header made larger than the shard is charged to it."""
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
