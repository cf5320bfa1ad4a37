"""The fields of many plain tar headers at once: sizes, checksums, other numbers and names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dsort.containers.tar.header import (
    BLOCK_BYTES,
    NAME_BYTES,
    POSIX_MAGIC,
    PREFIX,
    PREFIX_BYTES,
    until_nul,
)
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, UInt64s, offsets_of

_WORDS = BLOCK_BYTES // 8
_COMPARED_AT_ONCE = 32  # headers; the results are then rows of the length that NumPy joins fastest


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

_1, _48, _56 = (np.uint64(bits) for bits in (1, 48, 56))
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_TO_TOP = np.uint64(0x0001000100010001)
_WORDS_APART_MAX = 24  # a word adds 2,040 at most, so a sum fits in 16 bits
_SIZE_WORDS, _SUM_WORDS, _TYPE_WORD = (15, 16), (18, 19), 19
_PREFIX_WORD, _PREFIX_BYTE = 43, np.uint64(0xFF00)
_NUMBER_WORDS = [12, 13, 14, 15, 41, 42, 43]  # with bytes 100 to 123 and 329 to 344
_TIME_WORDS = (17, 18)
_TIME_END_MASK, _TIME_END = _words(b"\xf8" * 3 + b"\xdf", b"0" * 3)[:, 0]
_ZEROS, _NO_DIGIT = _words(b"0" * 8, b"\xf8" * 8)[:, 0]
_NO_BLANK, _LOW_BITS, _TOP_BITS = _words(b"\xdf" * 8, b"\x7f" * 8, b"\x80" * 8)[:, 0]
_ONES, _ALL = _words(b"\1" * 8, b"\xff" * 8)[:, 0]
_NAME_WORDS = NAME_BYTES // 8 + 1  # the name ends in the middle of the last word


def _octal(digits: UInt64s) -> UInt64s:
    """The value of eight octal digits, one a byte, most significant first: a digit is the low three
    bits of its byte, and shift-and-add steps join neighbours."""
    pairs = ((digits * _TO_PAIRS) >> _8) & _PAIRS
    quads = ((pairs * _TO_QUADS) >> _16) & _QUADS
    value: UInt64s = (quads * _TO_ALL) >> _32
    return value


def _alike(words: UInt64s) -> Bools:
    """Which words are the same in all headers, shape ``(64,)``. ``words``: the headers, one after
    the other. Each header is compared with the header before it, which is next to it in memory."""
    flat = words.reshape(-1)
    same = (flat[_WORDS:] == flat[:-_WORDS]).view(np.uint64)  # eight answers in each
    each = _WORDS // 8
    whole = len(same) // (_COMPARED_AT_ONCE * each) * _COMPARED_AT_ONCE * each
    found = np.bitwise_and.reduce(same[whole:].reshape(-1, each), axis=0)
    if whole:
        most = np.bitwise_and.reduce(same[:whole].reshape(-1, _COMPARED_AT_ONCE * each), axis=0)
        found &= np.bitwise_and.reduce(most.reshape(-1, each), axis=0)
    alike: Bools = found.view(np.uint8) != 0
    return alike


class HeaderFields:
    """The fields of one or more headers ``words``, shape ``(n, 64)``."""

    # Nearly all words are the same in all headers of a run: zeros, one owner, one time. Each
    # such word is read once for the run. The other words are copied to columns, each in one piece:
    # words that are 512 bytes apart have room in only an eighth of the processor's cache.

    def __init__(self, words: UInt64s) -> None:
        self._words = words
        self.raw: UInt8s = words.view(np.uint8)
        self._first: UInt64s = words[0].copy()
        others = np.flatnonzero(~_alike(words))
        self._others: list[int] = others.tolist()
        self._columns: UInt64s = np.ascontiguousarray(words.T[others])
        before, after = self._word(_SUM_WORDS[0]), self._word(_SUM_WORDS[1])
        self._checksum: UInt64s = (before >> _32) | (after << _32)
        for at, rest in zip(_SUM_WORDS, (_LOW_32, _HIGH_32), strict=True):  # count as blanks
            self._first[at] &= rest
            if at in self._others:
                self._columns[self._others.index(at)] &= rest

    def _word(self, at: int) -> UInt64s:
        """One word of each header, shape ``(n,)``; shape ``(1,)`` if it is the same in all
        headers."""
        own: UInt64s = self._first[at : at + 1]
        if at in self._others:
            own = self._columns[self._others.index(at)]
        return own

    def typeflags(self) -> UInt8s:
        """The byte with the kind of each member; shape ``(n,)`` or ``(1,)``."""
        return (self._word(_TYPE_WORD) >> _32).astype(np.uint8)

    def sizes(self) -> tuple[Int64s, Bools]:
        """The size fields, in bytes, and which headers are plain: size and checksum are in plain
        form, and the checksum holds. Shapes ``(n,)``.

        Headers that are not plain get some size from 0 to below 8 GiB.
        """
        fields = np.empty((2, len(self._words)), np.uint64)
        fields[0], fields[1] = self._word(_SIZE_WORDS[1]), self._checksum
        formed = (fields & _FORM_MASKS) == _FORMS
        size_bytes, checksum = _octal(fields & _DIGITS) >> _SPARE_BITS
        plain = formed[0] & formed[1] & (self._byte_sums() + _BLANK_FIELD == checksum)
        high = self._word(_SIZE_WORDS[0]) >> _32
        if (high != _HIGH).any():  # at least one member has 2 MiB or more
            plain &= (high & _HIGH_MASK) == _HIGH
            size_bytes += (_octal(high & _HIGH_DIGITS) >> _12) << _21
        return size_bytes.view(np.int64), plain

    def _byte_sums(self) -> UInt64s:
        """The sum of the bytes of each header, without its checksum."""
        if len(self._others) > _WORDS_APART_MAX:
            # Half a header adds up to 65280 at most, so 16 bits suffice (and are the fastest).
            halves = self.raw.reshape(-1, BLOCK_BYTES // 2).sum(axis=1, dtype=np.uint16)
            own = self._checksum.view(np.uint8).reshape(-1, 8).sum(axis=1, dtype=np.uint64)
            both: UInt64s = np.add(halves[0::2], halves[1::2], dtype=np.uint64) - own
            return both
        alike = self._first.copy()
        alike[self._others] = 0
        lanes = self._columns & _EVEN_BYTES  # four sums of 16 bits each
        lanes += (self._columns >> _8) & _EVEN_BYTES
        total: UInt64s = (np.add.reduce(lanes, axis=0) * _TO_TOP) >> _48
        total += alike.view(np.uint8).sum(dtype=np.uint64)
        return total

    def plain_numbers(self) -> Bools:
        """Which headers have a plain mode, owner, group, time and device: octal digits, followed by
        NUL or blanks, in each field. Shape ``(n,)`` or ``(1,)``."""
        times, ends = (self._word(at) for at in _TIME_WORDS)
        if not self._any_apart(_NUMBER_WORDS) and _are_digits(times, ends):
            return np.array([_are_plain(self._first[_NUMBER_WORDS].tobytes())])
        shape = len(_NUMBER_WORDS), len(self._words)
        numbers = np.empty(shape, np.uint64)
        for row, at in enumerate(_NUMBER_WORDS):
            numbers[row] = self._word(at)
        return _plain_numbers(numbers, times, ends)

    def _any_apart(self, words: Sequence[int]) -> bool:
        return not set(self._others).isdisjoint(words)

    def suspect_prefixes(self) -> Bools | None:
        """Which headers may have a prefix that is unsafe and is not read (``unsafe_prefix``): an
        absolute prefix, or one with two dots. Shape ``(n,)``; None if no header has a prefix."""
        if not self._have_prefixes():
            return None
        raw = self.raw
        stray: Bools = raw[:, PREFIX.start] != 0
        stray &= ~are_posix(raw)
        rows = np.flatnonzero(stray)
        prefix = raw[rows, PREFIX]
        dots = prefix == ord(".")
        stray[rows] = (prefix[:, 0] == ord("/")) | (dots[:, :-1] & dots[:, 1:]).any(axis=1)
        return stray

    def _have_prefixes(self) -> bool:
        return bool((self._word(_PREFIX_WORD) & _PREFIX_BYTE).any())

    def names(self, count: int) -> BytesColumn:
        """The member names in the first ``count`` headers, ustar prefixes applied; a copy."""
        length = 0 if self._have_prefixes() else self._name_length()
        if not length:
            return names(self.raw[:count])
        ends = np.arange(0, (count + 1) * length, length, dtype=np.int64)
        return BytesColumn(ends, self.raw[:count, :length].flatten())

    def _name_length(self) -> int:
        """The length of the name in each header if all have the same length; else 0."""
        first = self._first[:_NAME_WORDS].tobytes()[:NAME_BYTES]
        length = len(until_nul(first))
        last, rest = divmod(length, 8)
        for row, at in enumerate(self._others):
            if at > last:
                break
            word = self._columns[row]
            if at == last:
                spare = _ALL << np.uint64(8 * rest)
                if length < NAME_BYTES and (word & spare & ~(spare << _8)).any():
                    return 0
                word = word | spare
            if ((word - _ONES) & ~word & _TOP_BITS).any():  # some byte of it is zero
                return 0
        return length


def _are_digits(times: UInt64s, ends: UInt64s) -> bool:
    """Whether all times have eleven digits. ``times``: the words from byte 136 on. ``ends``: the
    words with the four bytes after these."""
    odd = ((times & _NO_DIGIT) != _ZEROS).any() or ((ends & _TIME_END_MASK) != _TIME_END).any()
    return not odd


@lru_cache(64)
def _are_plain(numbers: bytes) -> bool:
    """Whether all words with numbers in a header are plain; the word of the time does not matter.
    One header stands for all headers of a run, and usually for those of all shards."""
    words: UInt64s = np.frombuffer(numbers, np.uint64).reshape(-1, 1)
    return bool(_plain_numbers(words, _ZEROS.reshape(1), _TIME_END.reshape(1))[0])


def _plain_numbers(words: UInt64s, times: UInt64s, ends: UInt64s) -> Bools:
    """Which headers have plain numbers. ``words``: those of ``_NUMBER_WORDS``, shape ``(7, n)``."""
    fields = np.empty((7, words.shape[1]), np.uint64)
    np.right_shift(words[:3], _32, out=fields[:3])  # mode, owner, group: bytes 100, 108, 116
    fields[:3] |= words[1:4] << _32
    np.right_shift(words[4:6], _8, out=fields[3:5])  # device: bytes 329 and 337
    fields[3:5] |= words[5:] << _56
    fields[5], fields[6] = times, ends  # bytes 136 to 147
    odd = _odd_bytes(fields)
    # A digit in the second half of the time although the first half has ended.
    odd[6] |= (_no_digits(fields[5]) >> _56) & ~_no_digits(fields[6])
    plain: Bools = np.bitwise_or.reduce(odd) == 0
    return plain


def _no_digits(fields: UInt64s) -> UInt64s:
    """The top bit of each byte that is not an octal digit."""
    found: UInt64s = fields ^ _ZEROS
    found &= _NO_DIGIT
    found >>= _1
    found += _LOW_BITS
    found &= _TOP_BITS
    return found


def _odd_bytes(fields: UInt64s) -> UInt64s:
    """The top bit of each byte that is neither a digit nor NUL nor blank, and some bit of each
    digit after a NUL or blank."""
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
    prefixed = raw[:, PREFIX.start] != 0
    if prefixed.any():
        prefixed &= are_posix(raw)  # other tars have no prefix field
        if prefixed.any():
            return _prefixed_names(raw, field, lengths, prefixed)
    offsets = offsets_of(lengths)
    longest = int(lengths.max(initial=0))
    if offsets[-1] == longest * len(raw):
        return BytesColumn(offsets, field[:, :longest].flatten())
    inside = np.arange(longest, dtype=np.uint8) < lengths.astype(np.uint8)[:, np.newaxis]
    return BytesColumn(offsets, field[:, :longest][inside])


def are_posix(raw: UInt8s) -> Bools:
    """Which headers are POSIX headers: only POSIX headers have a prefix field."""
    posix: Bools = np.ones(len(raw), np.bool_)
    for at, byte in enumerate(POSIX_MAGIC):
        posix &= raw[:, 257 + at] == byte
    return posix


def _until_nul(field: UInt8s) -> Int64s:
    """The length of each row's text, which ends at its first NUL or at the field's width."""
    lengths: Int64s = (field == 0).argmax(axis=1)
    if not lengths.all():  # empty, or without a NUL
        lengths[(lengths == 0) & (field[:, 0] != 0)] = field.shape[1]
    return lengths


def _prefixed_names(raw: UInt8s, field: UInt8s, lengths: Int64s, prefixed: Bools) -> BytesColumn:
    """The names of the headers ``raw``, which are the first ``lengths`` bytes of ``field``. A name
    that is ``prefixed`` begins with the prefix in its header and a slash."""
    prefix = raw[:, PREFIX]
    prefix_lengths = np.where(prefixed, _until_nul(prefix), 0)
    slash = np.full((len(raw), 1), ord("/"), np.uint8)
    column = np.arange(PREFIX_BYTES)
    inside = np.concatenate(
        [
            column < prefix_lengths[:, np.newaxis],
            prefixed[:, np.newaxis],
            column[:NAME_BYTES] < lengths[:, np.newaxis],
        ],
        axis=1,
    )
    blob = np.concatenate([prefix, slash, field], axis=1)[inside]
    return BytesColumn(offsets_of(prefix_lengths + prefixed + lengths), blob)
