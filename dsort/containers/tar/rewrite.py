"""A member's header blocks changed in one respect, with all its other metadata kept.

A group of headers is taken apart into pax records, GNU long names and the main header, changed,
and put together again: pax header first, then long link target and long name, then the main one.
"""

from __future__ import annotations

from dsort.containers.tar.headers import (
    BLOCK_BYTES,
    OCTAL_SIZE_MAX,
    POSIX_MAGIC,
    PaxRecords,
    checksummed,
    extension_blocks,
    padded_bytes,
    parse_header,
    parse_pax,
    pax_payload,
    size_field,
    stray_prefix,
    unsafe_prefix,
    until_nul,
)
from dsort.containers.tar.numbers import with_plain_numbers

__all__ = [
    "link_target",
    "mended",
    "other_name",
    "regular_file_headers",
    "renamed",
    "retargeted",
]

_NAME_BYTES, _PREFIX_BYTES = 100, 155
_NAMES = (b"path", b"GNU.sparse.name")


class _Headers:
    """The header blocks of one member, taken apart."""

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
            payload = blocks[at + BLOCK_BYTES :][: header.size_bytes]
            if header.typeflag in (b"x", b"X"):
                self.pax_block, self.records = header.block, parse_pax(payload)
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
        """Whether the main header is of the POSIX kind (ustar or pax), with a prefix field."""
        return self.main[257:263] == POSIX_MAGIC

    def mend_numbers(self) -> None:
        """Make the numbers of all headers plain."""
        self.main = with_plain_numbers(self.main)
        if self.pax_block is not None:
            self.pax_block = with_plain_numbers(self.pax_block)
        for typeflag, block in self._long_blocks.items():
            self._long_blocks[typeflag] = with_plain_numbers(block)

    def set_main(self, at: int, value: bytes, width: int) -> None:
        """Write a field of the main header, filled up with NUL."""
        self.main = self.main[:at] + value.ljust(width, b"\0") + self.main[at + width :]

    def blocks(self) -> bytes:
        parts = []
        if self.records:
            parts.append(extension_blocks(b"x", pax_payload(self.records), self.pax_block))
        for typeflag, text in ((b"K", self.long_target), (b"L", self.long_name)):
            if text is not None:
                like = self._long_blocks.get(typeflag)
                parts.append(extension_blocks(typeflag, text + b"\0", like))
        return b"".join([*parts, checksummed(self.main), self.rest])


def renamed(headers: bytes, new_name: bytes) -> bytes:
    """The header blocks ``headers`` of one member, for the name ``new_name``.

    ``headers`` is all that stands before the payload: of a row,
    ``literal + shard[range_start:payload_start]``. The name goes where the member's readers will
    look for it: into the pax records if those give the name; else into the main header if it fits
    there (100 bytes, or with the ustar prefix 255); else into a new pax record for POSIX headers,
    into a GNU long name for all others.
    ``ValueError`` if ``new_name`` is empty or holds a NUL byte.
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
    prefix, name = short or (b"", new_name[:_NAME_BYTES])
    parts.set_main(0, name, _NAME_BYTES)
    if parts.posix:  # other tars keep other things there
        parts.set_main(345, prefix, _PREFIX_BYTES)
    elif unsafe_prefix(parts.main):
        parts.set_main(345, b"", _PREFIX_BYTES)
    return parts.blocks()


def other_name(headers: bytes) -> bytes:
    """The name that some readers see in the header blocks ``headers``, with a prefix that dsort
    does not read (``stray_prefix``); b"" if all see the same."""
    parts = _Headers(headers)
    prefix = stray_prefix(parts.main)
    if not prefix or parts.long_name or any(keyword in _NAMES for keyword, _ in parts.records):
        return b""
    return prefix + b"/" + until_nul(parts.main[:_NAME_BYTES])


def link_target(headers: bytes) -> bytes:
    """Where the link with the header blocks ``headers`` leads."""
    parts = _Headers(headers)
    said = dict(parts.records).get(b"linkpath")
    return said or parts.long_target or until_nul(parts.main[157:257])


def retargeted(headers: bytes, target: bytes) -> bytes:
    """The header blocks ``headers`` of a link, leading to ``target``."""
    parts = _Headers(headers)
    in_pax = any(keyword == b"linkpath" for keyword, _ in parts.records)
    short = len(target) <= _NAME_BYTES
    parts.records = [
        (keyword, target if keyword == b"linkpath" else value) for keyword, value in parts.records
    ]
    parts.long_target = None if short or in_pax else target
    parts.set_main(157, target[:_NAME_BYTES], _NAME_BYTES)
    return parts.blocks()


def mended(headers: bytes) -> bytes:
    """The header blocks ``headers`` of one member as all readers read them: with plain numbers, and
    of several long names (or targets) with the last one alone."""
    parts = _Headers(headers)
    parts.mend_numbers()
    return parts.blocks()


def regular_file_headers(link_headers: bytes, size_bytes: int) -> bytes:
    """The header blocks of a hard link, turned into those of a file of ``size_bytes`` bytes.

    Name, mode, owner and times stay the link's own.
    """
    parts = _Headers(link_headers)
    parts.long_target = None
    parts.records = [item for item in parts.records if item[0] not in (b"linkpath", b"size")]
    if size_bytes > OCTAL_SIZE_MAX and parts.posix:
        parts.records = [*parts.records, (b"size", b"%d" % size_bytes)]
    parts.set_main(124, size_field(size_bytes), 12)
    parts.set_main(156, b"0", 1)
    parts.set_main(157, b"", 100)
    return parts.blocks()


def _short_form(name: bytes, posix: bool) -> tuple[bytes, bytes] | None:
    """``name`` as (prefix, name) fields of a main header, or None if it does not fit."""
    if len(name) <= _NAME_BYTES:
        return b"", name
    if posix:
        slash = name.rfind(b"/", 0, _PREFIX_BYTES + 1)
        if slash > 0 and 0 < len(name) - slash - 1 <= _NAME_BYTES:
            return name[:slash], name[slash + 1 :]
    return None
