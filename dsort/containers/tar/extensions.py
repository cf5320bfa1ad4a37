"""Extension headers of many members at once: the pax and GNU long-name headers that most writers
put there. Names that do not fit in a header, or are not ASCII, make one for every member.

What is not of these forms is told apart, not judged, and is read by the book (``tar_member``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsort.containers.tar.headers import BLOCK_BYTES
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, UInt64s

__all__ = ["LongNames", "gnu_names", "pax_names", "with_long_names"]

LONG_NAME_BYTES_MAX = BLOCK_BYTES
_PAX_RECORDS_MAX = 8
_KEYWORD_BYTES_MAX = 64
_PAX_BYTES_SMALL = 128  # three records of times with nanoseconds are 90 bytes


def _text(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text.ljust(8, b"\0"), "little"))


_TIME_MASK, _TIME = _text(b"\xff" * 6), _text(b"mtime=")  # by far the most frequent
_PATH_MASK, _PATH = _text(b"\xff" * 5), _text(b"path=")
_ZERO, _BLANK, _EQUALS, _NEWLINE = (np.uint8(ord(byte)) for byte in "0 =\n")


@dataclass(slots=True)
class LongNames:
    """What extension headers say of names; columns of shape ``(n,)``.

    ``start`` counts bytes from block 0. ``length`` is 0 where the header names nothing; where it
    is not ``plain``, the other two mean nothing.
    """

    plain: Bools
    start: Int64s
    length: Int64s


def gnu_names(flat: UInt8s, payload_block: Int64s, size_bytes: Int64s) -> LongNames:
    """The GNU long names whose payloads begin at blocks ``payload_block`` of ``flat``."""
    start, length = payload_block * BLOCK_BYTES, size_bytes - 1
    plain: Bools = (length > 0) & (length <= LONG_NAME_BYTES_MAX)
    plain &= flat[start + np.where(plain, length, 0)] == 0
    return LongNames(plain, start, length)


def pax_names(flat: UInt8s, payload_block: Int64s, size_bytes: Int64s) -> LongNames:
    """The names in the pax payloads that begin at blocks ``payload_block`` of ``flat``.

    Plain are payloads of one block that are well-formed and say nothing that matters but ``path``.
    """
    count = len(payload_block)
    width = _PAX_BYTES_SMALL if (size_bytes <= _PAX_BYTES_SMALL).all() else BLOCK_BYTES
    payload = np.zeros(count * width + _KEYWORD_BYTES_MAX, np.uint8)
    pieces = payload[: count * width].view(f"V{width}")
    flat.view(f"V{width}").take(payload_block * (BLOCK_BYTES // width), out=pieces, mode="clip")
    words: UInt64s = np.ndarray((len(payload) - 7,), "<u8", payload, strides=(1,))
    base = np.arange(0, count * width, width)
    at, end = base.copy(), base + size_bytes
    name_at, name_length = np.zeros(count, np.int64), np.zeros(count, np.int64)
    live = np.flatnonzero((size_bytes > 0) & (size_bytes <= width))
    for _ in range(_PAX_RECORDS_MAX):
        here = at[live]
        digits = [payload[here + i] - _ZERO for i in range(3)]
        tens = digits[0] * np.int64(10) + digits[1]
        wide = digits[2] <= 9
        keyword_at = here + 3 + wide
        after = here + np.where(wide, tens * 10 + digits[2], tens)
        good = (digits[0] <= 9) & (digits[1] <= 9) & (payload[keyword_at - 1] == _BLANK)
        good &= (after > keyword_at + 2) & (after <= end[live])
        good &= payload[np.where(good, after - 1, here)] == _NEWLINE
        live, keyword_at, after = live[good], keyword_at[good], after[good]
        word = words[keyword_at]
        path = ((word & _PATH_MASK) == _PATH) & (after > keyword_at + 6)
        good = path | ((word & _TIME_MASK) == _TIME)
        good[~good] = _matters_not(payload, keyword_at[~good], after[~good])
        named = live[path]
        name_at[named] = keyword_at[path] + 5
        name_length[named] = after[path] - keyword_at[path] - 6
        live = live[good]
        at[live] = after[good]
        live = live[at[live] < end[live]]
        if len(live) == 0:
            break
    plain: Bools = (at == end) & (size_bytes > 0)
    in_block = np.minimum(size_bytes, BLOCK_BYTES)
    padding = flat[payload_block * BLOCK_BYTES + in_block]
    plain &= (padding == 0) | (in_block == BLOCK_BYTES)  # else tarfile would read on there
    return LongNames(plain, name_at - base + payload_block * BLOCK_BYTES, name_length)


def _matters_not(payload: UInt8s, keyword_at: Int64s, after: Int64s) -> Bools:
    """Which pax records surely have a keyword, and none that a scan cares for: those begin with
    ``path``, ``linkpath``, ``size`` or ``GNU.``."""
    texts = np.ndarray(
        (len(payload) - _KEYWORD_BYTES_MAX + 1,), f"V{_KEYWORD_BYTES_MAX}", payload, strides=(1,)
    )
    text = texts[keyword_at].view(np.uint8).reshape(len(keyword_at), _KEYWORD_BYTES_MAX)
    equals_at = (text == ord("=")).argmax(axis=1)  # 0 if there is none
    surely: Bools = (equals_at > 0) & (keyword_at + equals_at < after - 1)
    surely &= ~np.isin(text[:, 0], np.frombuffer(b"plsG", np.uint8))
    return surely


def with_long_names(
    names: BytesColumn, flat: UInt8s, rows: Int64s, start: Int64s, length: Int64s
) -> BytesColumn | None:
    """``names`` with those of ``rows`` read from ``flat`` (``length`` bytes from ``start`` on).

    At least ``LONG_NAME_BYTES_MAX`` bytes follow each ``start``. None if one holds a NUL byte.
    """
    longest = int(length.max())
    texts: UInt8s = np.ndarray((len(flat) - longest + 1,), f"V{longest}", flat, strides=(1,))
    inside = np.arange(longest, dtype=np.int16) < length.astype(np.int16)[:, np.newaxis]
    blob = texts[start].view(np.uint8).reshape(len(rows), longest)[inside]
    if not blob.all():
        return None
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    long = BytesColumn(offsets, blob)
    if len(rows) == len(names):
        return long
    order = np.arange(len(names))
    order[rows] = np.arange(len(rows)) + len(names)
    return BytesColumn.concat([names, long]).take(order)
