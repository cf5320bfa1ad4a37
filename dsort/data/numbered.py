"""Columns of texts that are a number between two fixed texts: keys of records without keys.

Such a column is converted to bytes only when bytes are needed. The XXH3 of such texts, and of other
texts of one length, is computed in vectorised steps. A text takes 25 ns; made and hashed one by
one, it takes 200.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeGuard

import numpy as np
import xxhash
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int64s, UInt8s, UInt64s, are_all_rows

DIGITS: Final = 9
_ZERO: Final = 0x30
_FOUR: Final = 10_000
_AT_ONCE: Final = 8192
"""Rows that are hashed at a time: this many stay in the processor's cache."""


class NumberedColumn(BytesColumn):
    """Row ``i`` is ``before``, ``numbers[i]`` with ``DIGITS`` digits, and ``after``. Numbers are
    below 10 ** ``DIGITS``."""

    __slots__ = ("_made", "after", "before", "numbers")

    before: bytes
    after: bytes
    numbers: Int64s
    _made: UInt8s | None

    def __init__(self, before: bytes, numbers: Int64s, after: bytes = b"") -> None:
        for name, value in (("before", before), ("numbers", numbers), ("after", after)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_made", None)

    def __reduce__(self) -> tuple[type[NumberedColumn], tuple[bytes, Int64s, bytes]]:
        return NumberedColumn, (self.before, self.numbers, self.after)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def row_bytes(self) -> int:
        """The length of each row in bytes."""
        return len(self.before) + DIGITS + len(self.after)

    @property
    def offsets(self) -> Int64s:
        """See :class:`BytesColumn`."""
        return np.arange(len(self) + 1, dtype=np.int64) * self.row_bytes

    @property
    def blob(self) -> UInt8s:
        """See :class:`BytesColumn`. Made once: about 30 ns a row."""
        if self._made is None:
            row = np.frombuffer(self.before + b"0" * DIGITS + self.after, np.uint8)
            rows = np.tile(row, (len(self), 1))
            rest = self.numbers
            for place in range(len(self.before) + DIGITS - 1, len(self.before) - 1, -1):
                rows[:, place] = _ZERO + rest % 10
                rest = rest // 10
            object.__setattr__(self, "_made", rows.reshape(-1))
        assert self._made is not None
        return self._made

    @property
    def lengths(self) -> Int64s:
        """The length of each row in bytes, shape ``(n,)``."""
        return np.full(len(self), self.row_bytes, np.int64)

    @property
    def width(self) -> int | None:
        """The length of each row in bytes; None without rows."""
        return self.row_bytes if len(self) else None

    def __getitem__(self, row: int) -> bytes:
        return b"%b%0*d%b" % (self.before, DIGITS, int(self.numbers[row]), self.after)

    def run(self, start: int, stop: int) -> NumberedColumn:
        """Rows ``start:stop``."""
        return NumberedColumn(self.before, self.numbers[start:stop], self.after)

    def take(self, rows: NDArray[np.integer]) -> NumberedColumn:
        """The rows ``rows`` in that order."""
        return NumberedColumn(self.before, self.numbers[rows], self.after)

    def without_end(self) -> NumberedColumn:
        """The same rows without ``after``."""
        return NumberedColumn(self.before, self.numbers)


def are_positions(texts: BytesColumn) -> TypeGuard[NumberedColumn]:
    """Whether the rows are the numbers from 0 on, in order, so that no two are equal."""
    return isinstance(texts, NumberedColumn) and are_all_rows(texts.numbers, len(texts))


def hash_column(texts: BytesColumn) -> UInt64s:
    """XXH3 (64 bits, seed 0) of each row, shape ``(n,)``."""
    if (
        isinstance(texts, NumberedColumn)
        and not texts.after
        and _HASHED_MIN <= texts.row_bytes <= _HASHED_MAX
    ):
        return numbered_hashes(texts.before, texts.numbers)
    width = texts.width
    if width is not None and _HASHED_ROWS_MIN <= width <= _HASHED_MAX:
        hashes = np.empty(len(texts), np.uint64)
        for at in range(0, len(texts), _AT_ONCE):
            rows = texts.blob[at * width : (at + _AT_ONCE) * width]
            hashes[at : at + _AT_ONCE] = _Rows(rows, width).hashes()
        return hashes
    return np.fromiter(map(xxhash.xxh3_64_intdigest, texts.tolist()), np.uint64, len(texts))


# -- XXH3 of 9 to 64 bytes ------------------------------------------------------------------------
# As in the specification of xxHash (sections on short inputs), with seed 0 and the default secret.
# ``tests/data/unit/test_numbered.py`` compares each length with the library.

_HASHED_ROWS_MIN, _HASHED_MIN, _HASHED_MAX = 9, 10, 64
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)
_PRIME: Final = 0x9E3779B185EBCA87
_AVALANCHE: Final = 0x165667919E3779F9
_LOW, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)
_ALL: Final = (1 << 64) - 1


@cache
def _four_digits() -> UInt64s:
    """The four digits of each number below ten thousand, as bytes of a little-endian word."""
    numbers = np.arange(_FOUR, dtype=np.uint64)
    word = np.zeros(_FOUR, np.uint64)
    for place, power in enumerate((1000, 100, 10, 1)):
        word |= (_ZERO + numbers // np.uint64(power) % np.uint64(10)) << np.uint64(8 * place)
    return word


def numbered_hashes(before: bytes, numbers: Int64s) -> UInt64s:
    """XXH3 of ``before`` followed by each number with ``DIGITS`` digits, shape ``(n,)``. The texts
    have 10 to 64 bytes."""
    digits = _four_digits()
    hashes = np.empty(len(numbers), np.uint64)
    if are_all_rows(numbers, len(numbers)):
        for at in range(0, len(numbers), _FOUR):  # such numbers differ only in four digits
            digit, four = divmod(at // _FOUR, _FOUR)
            first = np.full(1, _ZERO + digit, np.uint64)
            eight = digits[four] | (digits[: len(numbers) - at] << _HALF)
            hashes[at : at + _FOUR] = _Texts(before, first, eight).hashes()
        return hashes
    for at in range(0, len(numbers), _AT_ONCE):
        some = numbers[at : at + _AT_ONCE].astype(np.uint64)
        high = some // np.uint64(_FOUR)
        low = some - high * np.uint64(_FOUR)  # a remainder takes four times as long
        top = high // np.uint64(_FOUR)
        middle = high - top * np.uint64(_FOUR)
        last = digits[middle] | (digits[low] << _HALF)
        text = _Texts(before, np.uint64(_ZERO) + top, last)
        hashes[at : at + _AT_ONCE] = text.hashes()  # one value is broadcast to all
    return hashes


class _Texts:
    """Texts of ``before`` and nine digits: the ``first`` digit, and the ``last`` eight as words."""

    def __init__(self, before: bytes, first: UInt64s, last: UInt64s) -> None:
        self._fixed = before + bytes(DIGITS)
        self._digits_at = len(before)
        self._first, self._last = first, last

    def hashes(self) -> UInt64s:
        """The XXH3 of each text."""
        size = len(self._fixed)
        if size <= 16:
            return self._hashes_of_short(size)
        total = np.full(1, size * _PRIME & _ALL, np.uint64)
        for pair in range((size - 1) // 32 + 1):
            total = total + self._mixed(16 * pair, 32 * pair)
            total = total + self._mixed(size - 16 * (pair + 1), 32 * pair + 16)
        return _avalanche(total)

    def _hashes_of_short(self, size: int) -> UInt64s:
        low = self._word(0) ^ np.uint64(_secret(24) ^ _secret(32))
        high = self._word(size - 8) ^ np.uint64(_secret(40) ^ _secret(48))
        return _avalanche(np.uint64(size) + low.byteswap() + high + _folded(low, high))

    def _mixed(self, at: int, secret: int) -> UInt64s:
        low = self._word(at) ^ np.uint64(_secret(secret))
        return _folded(low, self._word(at + 8) ^ np.uint64(_secret(secret + 8)))

    def _word(self, at: int) -> UInt64s:
        """The eight bytes from ``at`` on of each text."""
        word = np.array([int.from_bytes(self._fixed[at : at + 8], "little")], np.uint64)
        first = self._digits_at - at  # offset of the digits in the word
        if -8 < first < 8:
            if first >= 0:
                word = word | (self._first << np.uint64(8 * first))
            if first < 7:
                shift = np.uint64(8 * abs(first + 1))
                word = word | (self._last << shift if first >= -1 else self._last >> shift)
            # The first digits of consecutive numbers are often the same.
            if bool((word == word[0]).all()):
                word = word[:1]
        return word


class _Rows(_Texts):
    """Texts of one length, 9 to 64 bytes, as rows of a table."""

    def __init__(self, blob: UInt8s, width: int) -> None:
        self._fixed = bytes(width)
        self._blob = np.ascontiguousarray(blob)

    def _word(self, at: int) -> UInt64s:
        """The eight bytes from ``at`` on of each text."""
        width = len(self._fixed)
        shape = (len(self._blob) // width,)
        return np.ndarray(shape, "<u8", self._blob.data, at, (width,)).astype(np.uint64)


def _secret(at: int) -> int:
    return int.from_bytes(_SECRET[at : at + 8], "little")


def _folded(one: UInt64s, other: UInt64s) -> UInt64s:
    """The XOR of both halves of the 128-bit product."""
    low, high = one & _LOW, one >> _HALF
    other_low, other_high = other & _LOW, other >> _HALF
    cross = high * other_low
    middle = ((low * other_low) >> _HALF) + (cross & _LOW) + low * other_high
    folded: UInt64s = (one * other) ^ ((cross >> _HALF) + (middle >> _HALF) + high * other_high)
    return folded


def _avalanche(words: UInt64s) -> UInt64s:
    words = (words ^ (words >> np.uint64(37))) * np.uint64(_AVALANCHE)
    avalanched: UInt64s = words ^ (words >> _HALF)
    return avalanched
