"""Headers of new members of a tar, the same as those of ``tarfile``, in a microsecond each."""

from __future__ import annotations

from dsort.containers.tar.header import BLOCK_BYTES

_SIZE_MAX = 0o77777777777
_NAME_BYTES_MAX = 100
_ZEROS = bytes(BLOCK_BYTES)


_BEFORE_SIZE = b"0000644\0" + 2 * b"0000000\0"  # mode, user, group
_AFTER_SIZE = b"\0" + b"00000000000\0"  # time
_REST = b"\0 0" + bytes(100) + b"ustar\x0000" + bytes(247)  # kind, target, magic, other fields
# The checksum counts its own field as blanks, and every octal digit as its ASCII code.
_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + sum(_REST[2:]) + 8 * 0x20


def tar_header(name: bytes, size: int) -> bytes:
    """The header of a file ``name`` of ``size`` bytes; several blocks for long and other names."""
    if len(name) > _NAME_BYTES_MAX or size > _SIZE_MAX or not name.isascii() or name[-1:] == b"/":
        import tarfile

        info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
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
    return _ZEROS[: -size % BLOCK_BYTES]
