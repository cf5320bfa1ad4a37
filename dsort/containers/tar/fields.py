"""Fields of many tar headers at once, read from their 64-bit little-endian words.

A number is read eight characters at a time: an octal digit is the low three bits of its byte, and
shift-and-add steps join neighbours. Only the plain forms that writers use today are read here;
whatever else a header may hold is told apart, not judged.
"""

from __future__ import annotations

import numpy as np

from dsort.containers.tar.headers import BLOCK_BYTES, POSIX_MAGIC
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, UInt64s

__all__ = ["names", "plain_numbers", "sizes", "suspect_prefixes"]

NAME_BYTES = 100
_PREFIX_AT, _PREFIX_BYTES = 345, 155


def _words(*texts: bytes) -> UInt64s:
    """Texts of up to eight bytes as little-endian words, shape ``(n, 1)``."""
    words: UInt64s = np.frombuffer(b"".join(text.ljust(8, b"\0") for text in texts), "<u8")
    return words.reshape(-1, 1)


# Two numbers are read together, row by row of a (2, n) array: bytes 4 to 11 of the size field (in
# plain form 7 digits, then NUL or blank) and the checksum (6 digits, then two of NUL or blank).
_FORM_MASKS = _words(b"\xf8" * 7 + b"\xdf", b"\xf8" * 6 + b"\xdf" * 2)
_FORMS = _words(b"0" * 7, b"0" * 6)
_DIGITS = _words(b"\7" * 7, b"\7" * 6)
_SPARE_BITS = np.array([[3], [6]], np.uint64)
_HIGH_MASK, _HIGH = _words(b"\xf8" * 4, b"0" * 4)[:, 0]  # bytes 0 to 3 of the size field
_HIGH_DIGITS, _LOW_32, _HIGH_32 = _words(b"\7" * 4, b"\xff" * 4, b"\0" * 4 + b"\xff" * 4)[:, 0]
_PAIRS, _QUADS = _words(b"\xff\0" * 4, b"\xff\xff\0\0" * 2)[:, 0]
_8, _12, _16, _21, _32 = (np.uint64(bits) for bits in (8, 12, 16, 21, 32))
_TO_PAIRS, _TO_QUADS, _TO_ALL = (np.uint64(1 + (8**digits << 8 * digits)) for digits in (1, 2, 4))
_BLANK_FIELD = np.uint64(8 * ord(" "))

_1, _56 = np.uint64(1), np.uint64(56)
_NUMBER_WORDS = (13, 14, 12, 15, 42, 41, 43)  # bytes 100 to 123 and 329 to 344 are in these
_TIME_END_MASK, _TIME_END = _words(b"\xf8" * 3 + b"\xdf", b"0" * 3)[:, 0]
_ZEROS, _NO_DIGIT = _words(b"0" * 8, b"\xf8" * 8)[:, 0]
_NO_BLANK, _LOW_BITS, _TOP_BITS = _words(b"\xdf" * 8, b"\x7f" * 8, b"\x80" * 8)[:, 0]


def _octal(digits: UInt64s) -> UInt64s:
    """The value of eight octal digits, one a byte, most significant first."""
    pairs = ((digits * _TO_PAIRS) >> _8) & _PAIRS
    quads = ((pairs * _TO_QUADS) >> _16) & _QUADS
    value: UInt64s = (quads * _TO_ALL) >> _32
    return value


def sizes(words: UInt64s) -> tuple[Int64s, Bools]:
    """The size fields of headers ``words`` (shape ``(n, 64)``), in bytes, and which headers are
    plain: size and checksum are in plain form, and the checksum holds.

    What is not plain has some size from 0 to below 8 GiB. Blanks the checksums in ``words``.
    """
    fields = np.empty((2, len(words)), np.uint64)
    fields[0] = words[:, 16]
    before, after = words[:, 18], words[:, 19]
    np.right_shift(before, _32, out=fields[1])
    fields[1] |= after << _32
    before &= _LOW_32
    after &= _HIGH_32
    formed = (fields & _FORM_MASKS) == _FORMS
    size_bytes, checksum = _octal(fields & _DIGITS) >> _SPARE_BITS
    # Half a header sums up to 65280 at most, so that 16 bits do (and are the fastest).
    halves = words.view(np.uint8).reshape(-1, BLOCK_BYTES // 2).sum(axis=1, dtype=np.uint16)
    total = np.add(halves[0::2], halves[1::2], dtype=np.uint64)
    plain = formed[0] & formed[1] & (total + _BLANK_FIELD == checksum)
    high = words[:, 15] >> _32
    if (high != _HIGH).any():  # some member of 2 MiB or more
        plain &= (high & _HIGH_MASK) == _HIGH
        size_bytes += (_octal(high & _HIGH_DIGITS) >> _12) << _21
    return size_bytes.view(np.int64), plain


def plain_numbers(words: UInt64s) -> Bools:
    """Which headers ``words`` (shape ``(n, 64)``) have a plain mode, owner, group, time and device:
    octal digits and then NUL or blanks, in each field. Shape ``(n,)``."""
    # Nearly all shards have one owner, and so on: then one header stands for all.
    if len(words) and _numbers_alike(words):
        return np.repeat(_plain_numbers(words[:1]), len(words))
    return _plain_numbers(words)


def _numbers_alike(words: UInt64s) -> bool:
    """Whether the words that hold numbers are the same in all headers, but for their times, and
    these have eleven digits."""
    times, ends = words[:, 17], words[:, 18]
    if ((times & _NO_DIGIT) != _ZEROS).any() or ((ends & _TIME_END_MASK) != _TIME_END).any():
        return False
    return all((words[:, at] == words[0, at]).all() for at in _NUMBER_WORDS)


def _plain_numbers(words: UInt64s) -> Bools:
    head, tail = words[:, 12:19].T, words[:, 41:44].T
    fields = np.empty((7, len(words)), np.uint64)
    np.right_shift(head[:3], _32, out=fields[:3])  # mode, owner, group: bytes 100, 108, 116
    fields[:3] |= head[1:4] << _32
    np.right_shift(tail[:2], _8, out=fields[3:5])  # device: bytes 329 and 337
    fields[3:5] |= tail[1:] << _56
    fields[5] = head[5]  # time: bytes 136 to 147
    np.bitwise_and(head[6], _LOW_32, out=fields[6])
    odd = _odd_bytes(fields)
    # A digit that goes on where the first half of the time has ended.
    odd[6] |= (_no_digits(fields[5]) >> _56) & ~_no_digits(fields[6])
    plain: Bools = np.bitwise_or.reduce(odd) == 0
    return plain


def _no_digits(fields: UInt64s) -> UInt64s:
    """The top bit of each byte that is no octal digit."""
    found: UInt64s = fields ^ _ZEROS
    found &= _NO_DIGIT
    found >>= _1
    found += _LOW_BITS
    found &= _TOP_BITS
    return found


def _odd_bytes(fields: UInt64s) -> UInt64s:
    """The top bit of each byte that is no digit, NUL or blank, and some bit of each digit that
    comes after a NUL or blank."""
    no_digit, no_blank = _no_digits(fields), fields & _NO_BLANK
    odd: UInt64s = no_blank & _LOW_BITS
    odd += _LOW_BITS
    odd |= no_blank
    odd &= no_digit
    odd |= (no_digit << _8) & ~no_digit
    return odd


def names(raw: UInt8s) -> BytesColumn:
    """The member names in headers ``raw`` (shape ``(n, 512)``), ustar prefixes applied; a copy."""
    field = raw[:, :NAME_BYTES]
    lengths = _until_nul(field)
    prefixed = raw[:, _PREFIX_AT] != 0
    if prefixed.any():
        prefixed &= _posix(raw)  # other tars keep other things there
        if prefixed.any():
            return _prefixed_names(raw, field, lengths, prefixed)
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    longest = int(lengths.max(initial=0))
    if offsets[-1] == longest * len(raw):
        return BytesColumn(offsets, field[:, :longest].flatten())
    inside = np.arange(longest, dtype=np.uint8) < lengths.astype(np.uint8)[:, np.newaxis]
    return BytesColumn(offsets, field[:, :longest][inside])


def suspect_prefixes(raw: UInt8s) -> Bools | None:
    """Which headers ``raw`` may have a prefix that is unsafe and is not read (``unsafe_prefix``):
    an absolute one, or one with two dots. Shape ``(n,)``; None if no header has any prefix."""
    stray: Bools = raw[:, _PREFIX_AT] != 0
    if not stray.any():
        return None
    stray &= ~_posix(raw)
    rows = np.flatnonzero(stray)
    prefix = raw[rows, _PREFIX_AT : _PREFIX_AT + _PREFIX_BYTES]
    dots = prefix == ord(".")
    stray[rows] = (prefix[:, 0] == ord("/")) | (dots[:, :-1] & dots[:, 1:]).any(axis=1)
    return stray


def _posix(raw: UInt8s) -> Bools:
    """Which headers are of the POSIX kind, with a prefix field."""
    posix: Bools = np.ones(len(raw), np.bool_)
    for at, byte in enumerate(POSIX_MAGIC):
        posix &= raw[:, 257 + at] == byte
    return posix


def _until_nul(field: UInt8s) -> Int64s:
    """The length of each row's text, which ends at its first NUL or at the field's width."""
    lengths: Int64s = (field == 0).argmax(axis=1)
    if not lengths.all():  # empty, or no NUL at all
        lengths[(lengths == 0) & (field[:, 0] != 0)] = field.shape[1]
    return lengths


def _prefixed_names(raw: UInt8s, field: UInt8s, lengths: Int64s, prefixed: Bools) -> BytesColumn:
    """Names of which those that are ``prefixed`` begin with a prefix and a slash."""
    prefix = raw[:, _PREFIX_AT : _PREFIX_AT + _PREFIX_BYTES]
    prefix_lengths = np.where(prefixed, _until_nul(prefix), 0)
    slash = np.full((len(raw), 1), ord("/"), np.uint8)
    column = np.arange(_PREFIX_BYTES)
    inside = np.concatenate(
        [
            column < prefix_lengths[:, np.newaxis],
            prefixed[:, np.newaxis],
            column[:NAME_BYTES] < lengths[:, np.newaxis],
        ],
        axis=1,
    )
    blob = np.concatenate([prefix, slash, field], axis=1)[inside]
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum(prefix_lengths + prefixed + lengths, out=offsets[1:])
    return BytesColumn(offsets, blob)
