"""Tar headers one at a time: fields to values and values to fields. Strict, and slow but sure.

The layout is POSIX.1-1988 (ustar) with the GNU and POSIX.1-2001 (pax) extensions. What real tars
do beyond those texts is read as GNU tar and Python's ``tarfile`` read it; where the two disagree
on where a member ends, the header is refused rather than guessed at.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from dsort.errors import CorruptShardError

__all__ = [
    "BLOCK_BYTES",
    "GNU_MAGIC",
    "OCTAL_SIZE_MAX",
    "POSIX_MAGIC",
    "Header",
    "PaxRecords",
    "checksummed",
    "compression_of",
    "extension_blocks",
    "padded_bytes",
    "parse_header",
    "parse_pax",
    "pax_payload",
    "shown",
    "size_field",
    "stray_prefix",
    "unsafe_prefix",
    "until_nul",
]

BLOCK_BYTES = 512
POSIX_MAGIC = b"ustar\0"
GNU_MAGIC = b"ustar  \0"  # magic and version in one: old GNU headers have no version of their own
OCTAL_SIZE_MAX = 0o77777777777

PaxRecords = list[tuple[bytes, bytes]]
"""(keyword, value) in file order. Not a dict: GNU sparse 0.0 repeats its keywords."""

_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)
_PREFIXLESS = b"LKS"  # for tarfile, too: names of names, and sparse maps
_OCTAL_DIGITS = b"01234567"
_SHOWN_MAX = 300
_COMPRESSIONS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
)


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
    """A member's name as an error message has it: quoted, and not endless."""
    text = name.decode("utf-8", "replace")
    return f"member {text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + '…'!r}"


def compression_of(start: bytes) -> str | None:
    """What a file that begins with ``start`` is compressed with, or None."""
    return next((what for magic, what in _COMPRESSIONS if start.startswith(magic)), None)


def parse_header(shard: str, at: int, block: bytes) -> Header:
    """The header ``block`` (512 bytes at byte ``at`` of ``shard``).

    Raises ``CorruptShardError``: no header at all, a wrong checksum, an unreadable size.
    """
    if not _checksum_holds(block):
        raise CorruptShardError(shard, at, _what_else(at, block))
    name, _, _ = block[:100].partition(b"\0")
    if block[345] and block[_MAGIC] == POSIX_MAGIC:
        name = until_nul(block[_PREFIX]) + b"/" + name
    try:
        size_bytes = _number(block[_SIZE])
    except ValueError as problem:
        raise CorruptShardError(shard, at, f"the size of {shown(name)} is {problem}") from None
    link_target = until_nul(block[157:257]) if block[157] else b""
    return Header(block[156:157], name, link_target, size_bytes, block)


def stray_prefix(block: bytes) -> bytes:
    """The text in the prefix field of a header that is not of the POSIX kind, or b"".

    GNU tar, Go and dsort do not read it: old GNU headers have times there. ``tarfile`` and
    libarchive put it before the name.
    """
    if not block[345] or block[_MAGIC] == POSIX_MAGIC or block[156] in _PREFIXLESS:
        return b""
    return until_nul(block[_PREFIX])


def unsafe_prefix(block: bytes) -> bool:
    """Whether the header has a stray prefix with which a safe name leads out of where it is
    unpacked."""
    prefix = stray_prefix(block)
    return prefix[:1] == b"/" or b".." in prefix.split(b"/")


def _checksum_holds(block: bytes) -> bool:
    """Whether the stored sum is that of all bytes, unsigned or (old Sun and BSD tars) signed, with
    the checksum field itself taken as blanks."""
    digits = block[_CHECKSUM].lstrip(b"\0 ").partition(b"\0")[0].rstrip(b" ")
    if not digits or digits.strip(_OCTAL_DIGITS):
        return False
    stored, unsigned = int(digits, 8), _sum(block)
    if stored == unsigned:
        return True
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return stored == unsigned - 256 * high


def _sum(block: bytes) -> int:
    """The sum of the bytes of a header, its checksum field taken as blanks."""
    summed = b"%b        %b" % (block[:148], block[156:])
    # Adler-32's low half is 1 + the sum of the bytes mod 65521, which 256 bytes cannot reach.
    return (zlib.adler32(summed[:256]) & 0xFFFF) + (zlib.adler32(summed[256:]) & 0xFFFF) - 2


def _what_else(at: int, block: bytes) -> str:
    """Why ``block`` is no header, in words."""
    if at == 0 and (what := compression_of(block)):
        return f"this is {what} data, not a plain tar; unpack it first"
    if block[257:262] == b"ustar":
        return "the header's checksum is wrong"
    return "this is not a tar" if at == 0 else "no header where the next member should begin"


def _number(field: bytes) -> int:
    """A size field: octal text, or GNU's base-256. ``ValueError`` says what is wrong with it."""
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
    """The header ``block`` with its checksum field made right."""
    return b"%b%06o\0 %b" % (block[:148], _sum(block), block[156:])


def parse_pax(payload: bytes) -> PaxRecords:
    """The records ``"<length> <keyword>=<value>\\n"`` of a pax header's payload.

    ``ValueError`` says what is wrong: unlike tarfile, nothing after a broken record is forgiven.
    """
    records: PaxRecords = []
    at = 0
    while at < len(payload):
        space = payload.find(b" ", at, at + 12)
        digits = payload[at:space]
        if space < 0 or not digits.isdigit():
            raise ValueError("a record without a length")
        end = at + int(digits)
        keyword, equals, value = payload[space + 1 : end - 1].partition(b"=")
        if end > len(payload) or payload[end - 1 : end] != b"\n" or not equals or not keyword:
            raise ValueError("a broken record")
        records.append((keyword, value))
        at = end
    return records


def pax_payload(records: PaxRecords) -> bytes:
    """The payload of a pax header that holds ``records``."""
    lines = []
    for keyword, value in records:
        bare = len(keyword) + len(value) + 3  # blank, equals sign, newline
        length = bare + len(str(bare))
        length = bare + len(str(length))  # the length counts its own digits, which may be one more
        lines.append(b"%d %b=%b\n" % (length, keyword, value))
    return b"".join(lines)


def extension_blocks(typeflag: bytes, payload: bytes, like: bytes | None = None) -> bytes:
    """A pax (``x``) or GNU long-name (``L``, ``K``) header with ``payload`` and padding.

    ``like`` is the header block that it replaces, if any, whose other fields are kept.
    """
    if like is None:
        posix = typeflag in (b"x", b"g")
        name = b"././@PaxHeader" if posix else b"././@LongLink"
        magic = POSIX_MAGIC + b"00" if posix else GNU_MAGIC
        fields = b"0000644\0" + b"0000000\0" * 2 + b"0" * 11 + b"\0" + b"0" * 11 + b"\0"
        head = name.ljust(100, b"\0") + fields + bytes(8) + typeflag + bytes(100) + magic
        like = head.ljust(BLOCK_BYTES, b"\0")
    block = like[:124] + size_field(len(payload)) + like[136:]
    return checksummed(block) + payload + bytes(-len(payload) % BLOCK_BYTES)
