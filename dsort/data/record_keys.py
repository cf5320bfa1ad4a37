"""Member name → record key: everything up to the first dot of the name's last component.

The rule is WebDataset's (``base_plus_ext``) and AIStore's. The directory part belongs to the key;
dots in directories are harmless. A name without such a dot, or whose last component begins with it
(a hidden file), has no extension: it is a *stray*, and its key is the whole name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int64s

__all__ = ["SplitNames", "split_name", "split_names"]

_SLASH, _DOT = 0x2F, 0x2E


@dataclass(frozen=True, slots=True, eq=False)
class SplitNames:
    """For each member name: how many of its bytes are the record key; whether it is a stray.

    The extension is ``name[key_bytes + 1:]``, empty for strays. Shapes ``(n,)``.
    """

    key_bytes: Int64s
    stray: NDArray[np.bool_]


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """(record key, extension without its dot) of one name; the extension of a stray is empty."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot <= base:  # none, or the first character: a hidden file
        return name, b""
    return name[:dot], name[dot + 1 :]


def split_names(names: BytesColumn) -> SplitNames:
    """:func:`split_name` over a column, vectorised."""
    starts, ends = names.offsets[:-1], names.offsets[1:]
    slashes = np.flatnonzero(names.blob == _SLASH)
    dots = np.flatnonzero(names.blob == _DOT)
    base = starts
    if len(slashes):
        last = np.searchsorted(slashes, ends) - 1
        slash = slashes[np.maximum(last, 0)]
        base = np.where((last >= 0) & (slash >= starts), slash + 1, starts)
    if len(dots) == 0:
        return SplitNames(ends - starts, np.ones(len(names), np.bool_))
    at = np.searchsorted(dots, base)
    dot = dots[np.minimum(at, len(dots) - 1)]
    stray = (at == len(dots)) | (dot >= ends) | (dot == base)
    return SplitNames(np.where(stray, ends, dot) - starts, stray)
