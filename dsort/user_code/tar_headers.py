"""Headers of new members of a tar, the same as those of ``tarfile``, in a microsecond each."""

from __future__ import annotations

import tarfile

__all__ = ["tar_header", "tar_padding"]

_SIZE_MAX = 0o77777777777
_NAME_BYTES_MAX = 100
_ZEROS = bytes(tarfile.BLOCKSIZE)


def _made(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


_MODEL = _made("", 0)
_BEFORE_SIZE, _AFTER_SIZE, _REST = _MODEL[100:124], _MODEL[135:148], b"\0 " + _MODEL[156:]
# The checksum counts its own field as blanks, and every octal digit as its ASCII code.
_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + sum(_MODEL[156:]) + 8 * 0x20


def tar_header(name: bytes, size: int) -> bytes:
    """The header of a file ``name`` of ``size`` bytes; several blocks for long and other names."""
    if len(name) > _NAME_BYTES_MAX or size > _SIZE_MAX or not name.isascii() or name[-1:] == b"/":
        return _made(name.decode("utf-8", "surrogateescape"), size)
    octal = b"%011o" % size
    checksum = _SUM + sum(name) + sum(octal)
    return b"%b%b%b%b%06o%b" % (
        name.ljust(_NAME_BYTES_MAX, b"\0"),
        _BEFORE_SIZE,
        octal,
        _AFTER_SIZE,
        checksum,
        _REST,
    )


def tar_padding(size: int) -> bytes:
    """The padding after a payload of ``size`` bytes."""
    return _ZEROS[: -size % tarfile.BLOCKSIZE]
