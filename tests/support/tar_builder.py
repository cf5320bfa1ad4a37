"""Tars byte by byte, so that a test can set each field of a header."""

from __future__ import annotations

END = bytes(1024)
_MAGICS = {"posix": b"ustar\x0000", "gnu": b"ustar  \0", "v7": bytes(8)}


def header(
    name: bytes,
    size: int | bytes = 0,
    typeflag: bytes = b"0",
    *,
    link: bytes = b"",
    style: str = "posix",
    prefix: bytes = b"",
    mtime: int = 1_700_000_000,
    mode: int = 0o644,
    tail: bytes = b"",
) -> bytes:
    """One header block. ``size`` as bytes is the raw size field; ``tail`` is put at byte 345
    (where the prefix is in POSIX headers)."""
    size_field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = name.ljust(100, b"\0") + b"%07o\0%07o\0%07o\0" % (mode, 1000, 1000)
    block += size_field.ljust(12, b"\0") + b"%011o\0" % mtime + b" " * 8 + typeflag
    block += link.ljust(100, b"\0") + _MAGICS[style]
    if style != "v7":
        block += b"user".ljust(32, b"\0") + b"group".ljust(32, b"\0") + b"0000000\0" * 2
        block += tail or prefix
    return checksum(block.ljust(512, b"\0"))


def checksum(block: bytes, form: str = "%06o\0 ", *, signed: bool = False) -> bytes:
    """``block`` with its checksum, written in the printf form ``form``."""
    blank = block[:148] + b" " * 8 + block[156:]
    total = sum(blank) - (256 * sum(byte > 127 for byte in blank) if signed else 0)
    return block[:148] + (form % total).encode().ljust(8, b"\0") + block[156:]


def padded(payload: bytes) -> bytes:
    """``payload``, filled up to whole blocks."""
    return payload + bytes(-len(payload) % 512)


def member(name: bytes, payload: bytes = b"", typeflag: bytes = b"0", **fields: object) -> bytes:
    """A header and its payload; ``fields`` as for ``header``."""
    return header(name, len(payload), typeflag, **fields) + padded(payload)  # type: ignore[arg-type]


def pax_record(keyword: bytes, value: bytes) -> bytes:
    """``"<length> <keyword>=<value>\\n"``, where the length counts itself."""
    rest = b" %b=%b\n" % (keyword, value)
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def pax(records: dict[bytes, bytes] | bytes, typeflag: bytes = b"x") -> bytes:
    """A pax header; ``records`` as bytes is its raw payload."""
    if isinstance(records, dict):
        records = b"".join(pax_record(*item) for item in records.items())
    return member(b"PaxHeaders/x", records, typeflag)


def gnu_long(text: bytes, typeflag: bytes = b"L") -> bytes:
    """A GNU long-name (``L``) or long-link (``K``) header."""
    return member(b"././@LongLink", text + b"\0", typeflag, style="gnu")


def old_gnu_sparse(name: bytes, pieces: int) -> bytes:
    """An old GNU sparse member of ``pieces`` blocks of data, each before a hole of eight blocks,
    with the extension blocks that more than four pieces need."""
    maps = [b"%011o\0%011o\0" % (i * 9 * 512, 512) for i in range(pieces)]
    first, others = maps[:4], maps[4:]
    tail = bytes(41) + b"".join(first).ljust(96, b"\0") + bytes([bool(others)])
    tail += b"%011o\0" % (pieces * 9 * 512)
    stored = b"".join(bytes([65 + i % 26]) * 512 for i in range(pieces))
    blocks = [header(name, len(stored), b"S", style="gnu", tail=tail)]
    while others:
        here, others = others[:21], others[21:]
        blocks.append((b"".join(here).ljust(504, b"\0") + bytes([bool(others)])).ljust(512, b"\0"))
    return b"".join(blocks) + padded(stored)
