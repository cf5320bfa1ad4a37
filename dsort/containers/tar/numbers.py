"""Numbers of a header besides its size: mode, owner, group, time and device.

A scan does not need them, but readers do: ``tarfile`` and Go's ``archive/tar`` end at a header with
one that they cannot read, and would lose all members after it. So it is told which headers have a
number in a form that not all readers share, and such a number is written anew.
"""

from __future__ import annotations

import re

from dsort.containers.tar.headers import checksummed, until_nul

__all__ = ["odd_number", "odd_numbers", "with_plain_numbers"]

_FIELDS = (100, 108), (108, 116), (116, 124), (136, 148), (329, 337), (337, 345)
_MODE_AT, _DIRECTORY = 100, b"5"
_PLAIN = re.compile(rb" *[0-7]*[ \0]*")
_USUAL = re.compile(
    rb".{100}(?:[0-7]{7}[ \0]|[0-7]{6} \0){3}.{12}[0-7]{11}[ \0].{181}"
    rb"(?:\0{16}|(?:[0-7]{7}[ \0]|[0-7]{6} \0){2})",
    re.DOTALL,
)


def odd_numbers(block: bytes) -> bool:
    """Whether the header ``block`` has a number that some reader cannot read."""
    if _USUAL.match(block):
        return False
    return any(odd_number(block[low:high]) for low, high in _FIELDS)


def odd_number(field: bytes) -> bool:
    """Whether some reader cannot read the number in ``field``: it is no octal number, nor one of
    64 bits in GNU's base-256."""
    if field[0] in (0x80, 0xFF):
        value = _base_256(field)
        return not -(1 << 63) <= value < 1 << 63
    return _PLAIN.fullmatch(field) is None


def with_plain_numbers(block: bytes) -> bytes:
    """The header ``block`` with what it means in place of each odd number: what some reader makes
    of it, else 0, or the mode of an ordinary file or directory."""
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
