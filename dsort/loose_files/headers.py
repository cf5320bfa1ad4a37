"""Headers of many members of a tar at once, for members with one block as the header: the same as
those of ``tar_header``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int64s
from dsort.user_code.tar_headers import tar_header

__all__ = ["plain_headers"]

BLOCK_BYTES = 512
_NAME, _SIZE, _CHECKSUM = slice(0, 100), slice(124, 135), slice(148, 154)
_MODEL = np.frombuffer(tar_header(b"", 0), np.uint8)
_SUM = int(_MODEL.sum()) - int(_MODEL[_CHECKSUM].sum()) - 11 * 0x30 + 6 * 0x20 + 0x20
# The checksum counts its own field as blanks; the byte after its digits is a zero.


def plain_headers(names: BytesColumn, sizes: Int64s) -> NDArray[np.uint8]:
    """A block for each member, shape ``(n, 512)``. ``names``: ASCII, up to 100 bytes. ``sizes``: up
    to 8 GiB."""
    blocks = np.tile(_MODEL, (len(names), 1))
    lengths = names.lengths
    inside = np.arange(100) < lengths[:, np.newaxis]
    blocks[:, _NAME][inside] = names.blob
    shifts = np.arange(30, -1, -3)
    digits = (sizes[:, np.newaxis] >> shifts & 7) + 0x30
    blocks[:, _SIZE] = digits
    sums = _SUM + blocks[:, _NAME].sum(axis=1, dtype=np.int64) + digits.sum(axis=1)
    blocks[:, _CHECKSUM] = (sums[:, np.newaxis] >> np.arange(15, -1, -3) & 7) + 0x30
    return blocks
