"""Reads and writes tar headers one at a time, with strict checks; ``vector`` reads many at once.

The layout is POSIX.1-1988 (ustar) with the GNU and POSIX.1-2001 (pax) extensions.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from dsort.containers.codecs.decoding import format_of
from dsort.containers.facets import Hop
from dsort.errors import CorruptShardError

BLOCK_BYTES = 512
NAME_BYTES, PREFIX_BYTES = 100, 155
POSIX_MAGIC = b"ustar\0"
GNU_MAGIC = b"ustar  \0"  # magic and version in one: old GNU headers have no version of their own
OCTAL_SIZE_MAX = 0o77777777777

PaxRecords = list[tuple[bytes, bytes]]
"""(keyword, value) in file order. Not a dict: GNU sparse 0.0 repeats its keywords."""

_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_MAGIC = slice(257, 263)
PREFIX = slice(345, 500)
TYPE_AT = 156
_PREFIXLESS = b"LKS"  # long names and sparse files: tarfile reads no prefix there, either
_OCTAL_DIGITS = b"01234567"
_SHOWN_MAX = 300
_RECORDS_MAX = 1 << 18
"""The maximum number of records in one pax header: a record of 5 bytes takes 150 bytes of memory.
Writers make two records at most for each hole of a sparse file."""


class Header(NamedTuple):
    """One 512-byte header whose checksum holds. ``name`` has the ustar prefix applied."""

    typeflag: bytes
    name: bytes
    link_target: bytes
    size_bytes: int
    block: bytes


def padded_bytes(size_bytes: int) -> int:
    """``size_bytes`` rounded up to whole blocks."""
    return (size_bytes + BLOCK_BYTES - 1) & -BLOCK_BYTES


def until_nul(field: bytes) -> bytes:
    """The text of a field that ends at its first NUL or at its width."""
    end = field.find(0)
    return field if end < 0 else field[:end]


def shown(name: bytes) -> str:
    """A member's name for an error message: quoted, and cut if it is long."""
    text = name.decode("utf-8", "replace")
    return f"member {text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + '…'!r}"


def compression_of(start: bytes) -> str | None:
    """The compression of a file that begins with ``start``; None if the file is not compressed."""
    found, _ = format_of(start)
    return None if found in ("", "tar", "Parquet") else found


def parse_header(shard: str, at: int, block: bytes) -> Header:
    """The header ``block`` (512 bytes at byte ``at`` of ``shard``).

    Forms that real tars use beyond the standards are read as GNU tar and Python's ``tarfile`` read
    them. Raises ``CorruptShardError`` if GNU tar and ``tarfile`` would end the member at different
    places, if the block is no header, or if it has a wrong checksum or an unreadable size.
    """
    if not _checksum_holds(block):
        raise CorruptShardError(shard, at, _what_else(at, block))
    name, _, _ = block[:100].partition(b"\0")
    if block[345] and block[_MAGIC] == POSIX_MAGIC:
        name = until_nul(block[PREFIX]) + b"/" + name
    try:
        size_bytes = _number(block[_SIZE])
    except ValueError as problem:
        raise CorruptShardError(shard, at, f"the size of {shown(name)} is {problem}") from None
    link_target = until_nul(block[157:257]) if block[157] else b""
    return Header(block[156:157], name, link_target, size_bytes, block)


def stray_prefix(block: bytes) -> bytes:
    """The text in the prefix field of a header that is not a POSIX header; b"" for all other
    headers.

    GNU tar, Go and dsort do not read this text: old GNU headers have times there. ``tarfile`` and
    libarchive put this text before the name.
    """
    if not block[345] or block[_MAGIC] == POSIX_MAGIC or block[156] in _PREFIXLESS:
        return b""
    return until_nul(block[PREFIX])


def unsafe_prefix(block: bytes) -> bool:
    """Whether the header has a stray prefix that turns a safe name into a path outside the
    directory where the tar is unpacked."""
    prefix = stray_prefix(block)
    return prefix[:1] == b"/" or b".." in prefix.split(b"/")


def _checksum_holds(block: bytes) -> bool:
    """Whether the stored checksum is right: the sum of all bytes, unsigned or (old Sun and BSD
    tars) signed, with blanks in place of the checksum field."""
    digits = block[_CHECKSUM].lstrip(b"\0 ").partition(b"\0")[0].rstrip(b" ")
    if not digits or digits.strip(_OCTAL_DIGITS):
        return False
    stored, unsigned = int(digits, 8), _sum(block)
    if stored == unsigned:
        return True
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return stored == unsigned - 256 * high


def _sum(block: bytes) -> int:
    """The sum of the bytes of a header, with blanks in place of its checksum field."""
    summed = b"%b        %b" % (block[:148], block[156:])
    # Adler-32's low half is 1 + the sum of the bytes mod 65521, which 256 bytes cannot reach.
    return (zlib.adler32(summed[:256]) & 0xFFFF) + (zlib.adler32(summed[256:]) & 0xFFFF) - 2


def _what_else(at: int, block: bytes) -> str:
    """Why ``block`` is not a header, in words."""
    if at == 0 and (what := compression_of(block)):
        return f"this is {what} data, not a plain tar; unpack it first"
    if block[257:262] == b"ustar":
        return "the header's checksum is wrong"
    return "this is not a tar" if at == 0 else "no header where the next member should begin"


def _number(field: bytes) -> int:
    """The number in a size field: octal text, or GNU's base-256. ``ValueError`` with the reason for
    an invalid number."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise ValueError("negative")
        return int.from_bytes(bytes([field[0] & 0x3F]) + field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.startswith(b"-"):
        raise ValueError("negative")
    if digits.strip(_OCTAL_DIGITS) or (not digits and field.strip(b"\0 ")):
        raise ValueError(f"unreadable ({field!r})")
    return int(digits or b"0", 8)


def size_field(size_bytes: int) -> bytes:
    """The 12 bytes of a size field: octal, or GNU's base-256 from 8 GiB on."""
    if size_bytes <= OCTAL_SIZE_MAX:
        return b"%011o\0" % size_bytes
    return b"\x80" + size_bytes.to_bytes(11, "big")


def checksummed(block: bytes) -> bytes:
    """The header ``block`` with a correct checksum field."""
    return b"%b%06o\0 %b" % (block[:148], _sum(block), block[156:])


def parse_pax(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records ``"<length> <keyword>=<value>\\n"`` of a pax header's payload.

    ``ValueError`` with the reason for invalid records. A payload with bytes after its last whole
    record is invalid, too; tarfile ignores some such bytes.
    """
    at = count = 0
    while at < len(payload):
        # The digits of any length, and the blank after them, are in 12 bytes.
        space = payload.find(b" ", at, at + 12)
        digits = payload[at:space]
        # Of bytes, isdigit accepts ASCII digits only: int() below gets no sign, blank or _.
        if space < 0 or not digits.isdigit():
            raise ValueError("a record without a length")
        end = at + int(digits)
        keyword, equals, value = payload[space + 1 : end - 1].partition(b"=")
        if end > len(payload) or payload[end - 1 : end] != b"\n" or not equals or not keyword:
            raise ValueError("a broken record")
        count += 1
        if count > _RECORDS_MAX:
            raise ValueError(f"more than {_RECORDS_MAX} records")
        yield keyword, value
        at = end


def pax_payload(records: PaxRecords) -> bytes:
    """The payload of a pax header that holds ``records``."""
    lines = []
    for keyword, value in records:
        bare = len(keyword) + len(value) + 3  # blank, equals sign, newline
        length = bare + len(str(bare))
        length = bare + len(str(length))  # the length counts its own digits, which may add a digit
        lines.append(b"%d %b=%b\n" % (length, keyword, value))
    return b"".join(lines)


def extension_blocks(typeflag: bytes, payload: bytes, like: bytes | None = None) -> bytes:
    """A pax (``x``) or GNU long-name (``L``, ``K``) header with ``payload`` and padding.

    ``like``: the header block that is replaced, if there is one; other fields of this block are
    kept.
    """
    if like is None:
        posix = typeflag in (b"x", b"g")
        name = b"././@PaxHeader" if posix else b"././@LongLink"
        magic = POSIX_MAGIC + b"00" if posix else GNU_MAGIC
        fields = _BEFORE_SIZE + b"0" * 11 + _AFTER_SIZE
        head = name.ljust(100, b"\0") + fields + bytes(8) + typeflag + bytes(100) + magic
        like = head.ljust(BLOCK_BYTES, b"\0")
    block = like[:124] + size_field(len(payload)) + like[136:]
    return checksummed(block) + payload + tar_padding(len(payload))


_FIELDS = (100, 108), (108, 116), (116, 124), (136, 148), (329, 337), (337, 345)
_MODE_AT, _DIRECTORY = 100, b"5"
_PLAIN = re.compile(rb" *[0-7]*[ \0]*")
_USUAL = re.compile(
    rb".{100}(?:[0-7]{7}[ \0]|[0-7]{6} \0){3}.{12}[0-7]{11}[ \0].{181}"
    rb"(?:\0{16}|(?:[0-7]{7}[ \0]|[0-7]{6} \0){2})",
    re.DOTALL,
)


def odd_numbers(block: bytes) -> bool:
    """Whether the header ``block`` has a number that some reader cannot read: mode, owner, group,
    time or device. A scan does not need these numbers, but ``tarfile`` and Go's ``archive/tar``
    stop at such a header, and would lose all members after it."""
    if _USUAL.match(block):
        return False
    return any(odd_number(block[low:high]) for low, high in _FIELDS)


def odd_number(field: bytes) -> bool:
    """Whether some reader cannot read the number in ``field``: it is neither an octal number nor
    one of 64 bits in GNU's base-256."""
    if field[0] in (0x80, 0xFF):
        value = _base_256(field)
        return not -(1 << 63) <= value < 1 << 63
    return _PLAIN.fullmatch(field) is None


def with_plain_numbers(block: bytes) -> bytes:
    """The header ``block`` with each odd number replaced by the value that some reader gives it. A
    number to which no reader gives a value becomes 0, or (a mode) the mode of an ordinary file or
    directory."""
    for low, high in _FIELDS:
        field = block[low:high]
        if odd_number(field):
            default = 0
            if low == _MODE_AT:
                default = 0o755 if block[156:157] == _DIRECTORY else 0o644
            block = block[:low] + _field(_meant(field, default), high - low) + block[high:]
    return checksummed(block)


def _base_256(field: bytes) -> int:
    return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)


def _meant(field: bytes, default: int) -> int:
    try:
        value = int(until_nul(field.lstrip(b"\0")).decode("ascii").strip(), 8)
    except ValueError:
        return default
    return value if abs(value) < 1 << 55 else default


def _field(value: int, width: int) -> bytes:
    if 0 <= value < 1 << 3 * (width - 1):
        return b"%0*o\0" % (width - 1, value)
    mark = b"\xff" if value < 0 else b"\x80"
    return mark + value.to_bytes(width, "big", signed=True)[1:]


_NAMES = (b"path", b"GNU.sparse.name")


class _Headers:
    """The header blocks of one member, split into pax records, GNU long names and the main header,
    so that one property can be changed. ``blocks`` puts the parts together again: first the pax
    header, then long link target and long name, then the main header."""

    def __init__(self, blocks: bytes) -> None:
        self.pax_block: bytes | None = None
        self.records: PaxRecords = []
        self.long_name: bytes | None = None
        self.long_target: bytes | None = None
        self._long_blocks: dict[bytes, bytes] = {}
        at = 0
        while True:
            header = parse_header("", at, blocks[at : at + BLOCK_BYTES])
            if header.typeflag not in (b"x", b"X", b"L", b"K"):
                break
            payload = blocks[at + BLOCK_BYTES : at + BLOCK_BYTES + header.size_bytes]
            if header.typeflag in (b"x", b"X"):
                self.pax_block, self.records = header.block, list(parse_pax(payload))
            elif header.typeflag == b"L":
                self.long_name = until_nul(payload)
                self._long_blocks[b"L"] = header.block
            else:
                self.long_target = until_nul(payload)
                self._long_blocks[b"K"] = header.block
            at += BLOCK_BYTES + padded_bytes(header.size_bytes)
        self.main = blocks[at : at + BLOCK_BYTES]
        self.rest = blocks[at + BLOCK_BYTES :]  # the map of an old GNU sparse member

    @property
    def posix(self) -> bool:
        """Whether the main header is a POSIX header (ustar or pax), which has a prefix field."""
        return self.main[257:263] == POSIX_MAGIC

    def mend_numbers(self) -> None:
        """Make the numbers of all headers plain."""
        self.main = with_plain_numbers(self.main)
        if self.pax_block is not None:
            self.pax_block = with_plain_numbers(self.pax_block)
        for typeflag, block in self._long_blocks.items():
            self._long_blocks[typeflag] = with_plain_numbers(block)

    def set_main(self, at: int, value: bytes, width: int) -> None:
        """Write a field of the main header, padded with NUL."""
        self.main = self.main[:at] + value.ljust(width, b"\0") + self.main[at + width :]

    def blocks(self) -> bytes:
        parts = []
        if self.records:
            parts.append(extension_blocks(b"x", pax_payload(self.records), self.pax_block))
        for typeflag, text in ((b"K", self.long_target), (b"L", self.long_name)):
            if text is not None:
                like = self._long_blocks.get(typeflag)
                # GNU tar ends a long name with a NUL, and counts it in the size.
                parts.append(extension_blocks(typeflag, text + b"\0", like))
        return b"".join([*parts, checksummed(self.main), self.rest])


def renamed(headers: bytes, new_name: bytes) -> bytes:
    """The header blocks ``headers`` of one member, for the name ``new_name``.

    ``headers`` are all bytes of the member before its payload; for a row of a table, these are
    ``literal + shard[range_start:payload_start]``. The name goes where readers of this member look
    for it: into the pax records if they have a name; else into the main header if it fits (100
    bytes, or 255 with the ustar prefix); else into a new pax record for POSIX headers, or into a
    GNU long name for others. ``ValueError`` if ``new_name`` is empty or holds a NUL byte.
    """
    if not new_name or 0 in new_name:
        raise ValueError(f"not a member name: {new_name!r}")
    parts = _Headers(headers)
    in_pax = any(keyword in _NAMES for keyword, _ in parts.records)
    short = _short_form(new_name, parts.posix)
    parts.long_name = None
    if in_pax:
        parts.records = [(k, new_name if k in _NAMES else value) for k, value in parts.records]
    elif short is None and (parts.posix or parts.records):
        parts.records = [*parts.records, (b"path", new_name)]
    elif short is None:
        parts.long_name = new_name
    prefix, name = short or (b"", new_name[:NAME_BYTES])
    parts.set_main(0, name, NAME_BYTES)
    if parts.posix:  # other tars have no prefix field
        parts.set_main(345, prefix, PREFIX_BYTES)
    elif unsafe_prefix(parts.main):
        parts.set_main(345, b"", PREFIX_BYTES)
    return parts.blocks()


def other_name(headers: bytes) -> bytes:
    """The other name that some readers see in the header blocks ``headers``, because of a prefix
    that dsort does not read (``stray_prefix``); b"" if all readers see the same name."""
    parts = _Headers(headers)
    prefix = stray_prefix(parts.main)
    if not prefix or parts.long_name or any(keyword in _NAMES for keyword, _ in parts.records):
        return b""
    return prefix + b"/" + until_nul(parts.main[:NAME_BYTES])


def link_target(headers: bytes) -> bytes:
    """The target of the link with the header blocks ``headers``."""
    parts = _Headers(headers)
    said = dict(parts.records).get(b"linkpath")
    return said or parts.long_target or until_nul(parts.main[157:257])


def retargeted(headers: bytes, target: bytes) -> bytes:
    """The header blocks ``headers`` of a link, with the target ``target``."""
    parts = _Headers(headers)
    in_pax = any(keyword == b"linkpath" for keyword, _ in parts.records)
    short = len(target) <= NAME_BYTES
    parts.records = [
        (keyword, target if keyword == b"linkpath" else value) for keyword, value in parts.records
    ]
    parts.long_target = None if short or in_pax else target
    parts.set_main(157, target[:NAME_BYTES], NAME_BYTES)
    return parts.blocks()


def mended(headers: bytes) -> bytes:
    """The header blocks ``headers`` of one member, in a form that all readers read: with plain
    numbers, and only the last of several long names (or targets)."""
    parts = _Headers(headers)
    parts.mend_numbers()
    return parts.blocks()


def regular_file_headers(link_headers: bytes, size_bytes: int) -> bytes:
    """The header blocks of a hard link, changed to header blocks of a file of ``size_bytes`` bytes.

    Name, mode, owner and times are those of the link.
    """
    parts = _Headers(link_headers)
    parts.long_target = None
    parts.records = [item for item in parts.records if item[0] not in (b"linkpath", b"size")]
    # POSIX readers need not support GNU's base 256; a pax record overrides the field.
    if size_bytes > OCTAL_SIZE_MAX and parts.posix:
        parts.records = [*parts.records, (b"size", b"%d" % size_bytes)]
    parts.set_main(124, size_field(size_bytes), 12)
    parts.set_main(156, b"0", 1)
    parts.set_main(157, b"", 100)
    return parts.blocks()


def _short_form(name: bytes, posix: bool) -> tuple[bytes, bytes] | None:
    """``name`` as (prefix, name) fields of a main header, or None if it does not fit."""
    if len(name) <= NAME_BYTES:
        return b"", name
    if posix:
        slash = name.rfind(b"/", 0, PREFIX_BYTES + 1)
        if slash > 0 and 0 < len(name) - slash - 1 <= NAME_BYTES:
            return name[:slash], name[slash + 1 :]
    return None


_MAGIC_FIELD = slice(257, 262)
_BELONGS_TO_NEXT = b"xXgLK"
_REGULAR_FILE = ord("0")


def hop(block: bytes, at: int) -> Hop | None:
    """What the header ``block``, at byte ``at``, shows. A call takes 1 µs, because nothing is
    checked. Sizes of 8 GiB and more, V7 headers and sparse maps are not supported here; the scan
    reads those."""
    if block[_MAGIC_FIELD] != b"ustar" or len(block) < BLOCK_BYTES:
        return None
    try:
        size_bytes = int(block[_SIZE].strip(b"\0 "), 8)
    except ValueError:
        return None
    name = b"" if block[TYPE_AT] in _BELONGS_TO_NEXT else until_nul(block[:100])
    return Hop(at + BLOCK_BYTES + padded_bytes(max(size_bytes, 0)), name)


def plain_payload(block: bytes) -> int | None:
    """The length in bytes of the payload after the header ``block`` of a regular file. None for
    other kinds, and for sizes that programs read differently."""
    if len(block) < BLOCK_BYTES or block[_MAGIC_FIELD] != b"ustar":
        return None
    if block[TYPE_AT] != _REGULAR_FILE:
        return None
    digits, end = block[_SIZE][:-1], block[_SIZE][-1:]
    if not digits.isdigit() or end not in b"\0 " or until_nul(block[:100]).endswith(b"/"):
        return None
    try:
        return int(digits, 8)
    except ValueError:
        return None


_ZEROS = bytes(BLOCK_BYTES)
_BEFORE_SIZE = b"0000644\0" + 2 * b"0000000\0"  # mode, user, group
_AFTER_SIZE = b"\0" + b"00000000000\0"  # time
_REST = b"\0 0" + bytes(100) + b"ustar\x0000" + bytes(247)  # kind, target, magic, other fields
# The checksum counts its own field as blanks, and every octal digit as its ASCII code.
_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + sum(_REST[2:]) + 8 * 0x20


def tar_header(name: bytes, size: int) -> bytes:
    """The header of a new file ``name`` of ``size`` bytes, equal to the header that ``tarfile``
    makes. A header takes a microsecond. Headers of long names, and of names that are not ASCII,
    take longer and have several blocks."""
    if len(name) > NAME_BYTES or size > OCTAL_SIZE_MAX or not name.isascii() or name[-1:] == b"/":
        import tarfile

        info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    octal = b"%011o" % size
    checksum = _SUM + sum(name) + sum(octal)
    return b"%b%b%b%b%06o%b" % (
        name.ljust(NAME_BYTES, b"\0"),
        _BEFORE_SIZE,
        octal,
        _AFTER_SIZE,
        checksum,
        _REST,
    )


def tar_padding(size: int) -> bytes:
    """The padding after a payload of ``size`` bytes."""
    return _ZEROS[: -size % BLOCK_BYTES]
