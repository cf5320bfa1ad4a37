"""The keys of the records of one shard, as strings that are made when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any, Final, overload

import numpy as np
import xxhash

from dsort.data.columns import BytesColumn, Int64s, UInt64s
from dsort.data.numbered import DIGITS
from dsort.naming.names import position_key

__all__ = ["AT_ONCE", "KEYS_COMPARED_MAX", "KeySequence", "PositionKeys", "near_keys"]

AT_ONCE: Final = 1 << 16
NEAR_KEYS_MAX: Final = 3
KEYS_COMPARED_MAX: Final = 20_000
NUMBER_DIGITS_MAX: Final = 20
COMPARED_CHARACTERS_MAX: Final = 200
"""The time of a comparison grows with the square of this length."""


class KeySequence(Sequence[str]):
    """The key of each record, in order. Keys that are not UTF-8 are decoded with surrogate escapes.
    A list of strings would take a hundred bytes and more a record; the columns that find a key take
    16."""

    def __init__(
        self,
        count: int,
        one: Callable[[int], bytes],
        some: Callable[[int, int], Sequence[bytes]],
    ) -> None:
        """``one``: returns the key of a record by its number; ``some``: returns the keys of the
        records from one number up to another."""
        self._count = count
        self._one, self._some = one, some

    @classmethod
    def of_column(cls, column: BytesColumn) -> KeySequence:
        """The keys are the rows of ``column``."""
        return cls(len(column), column.__getitem__, lambda a, b: column.run(a, b).tolist())

    def some(self, first: int, stop: int) -> Sequence[bytes]:
        """The keys of the records from ``first`` up to ``stop``, as they are stored."""
        return self._some(first, stop)

    def repeated(self) -> Int64s:
        """The numbers of the records whose key an earlier record has, ascending. Compares hashes
        only."""
        hashes, order = self._order
        return np.sort(order[1:][hashes[1:] == hashes[:-1]])

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> list[str]: ...

    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[number] for number in range(self._count)[at]]
        return _text(self._one(range(self._count)[at]))

    def __iter__(self) -> Iterator[str]:
        for first in range(0, self._count, AT_ONCE):
            yield from map(_text, self._some(first, min(first + AT_ONCE, self._count)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.numbers_of(key))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, islice(self, NEAR_KEYS_MAX)))
        return f"<{self._count:,} keys: {shown}{', …' if self._count > NEAR_KEYS_MAX else ''}>"

    def numbers_of(self, key: str) -> list[int]:
        """The numbers of the records with ``key``."""
        wanted = key.encode("utf-8", "surrogateescape")
        hashes, order = self._order
        place = np.uint64(xxhash.xxh3_64_intdigest(wanted))
        first, stop = (int(np.searchsorted(hashes, place, side)) for side in ("left", "right"))
        return [number for number in order[first:stop].tolist() if self._one(number) == wanted]

    @cached_property
    def _order(self) -> tuple[UInt64s, Int64s]:
        """The hashes of the keys, sorted, and the number of each."""
        hashes = np.empty(self._count, np.uint64)
        for first in range(0, self._count, AT_ONCE):
            some = self._some(first, min(first + AT_ONCE, self._count))
            found = map(xxhash.xxh3_64_intdigest, some)
            hashes[first : first + len(some)] = np.fromiter(found, np.uint64, len(some))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order


class PositionKeys(KeySequence):
    """The keys of records without stored keys: their positions in ``shard``."""

    def __init__(self, shard: str, count: int) -> None:
        before = position_key(shard, 0)[:-DIGITS]
        super().__init__(
            count,
            lambda number: b"%b%09d" % (before, number),
            lambda a, b: [b"%b%09d" % (before, number) for number in range(a, b)],
        )

    def repeated(self) -> Int64s:
        """See :class:`KeySequence`."""
        return np.zeros(0, np.int64)

    def numbers_of(self, key: str) -> list[int]:
        """See :class:`KeySequence`."""
        _, _, digits = key.rpartition("-")
        is_number = len(digits) < NUMBER_DIGITS_MAX and digits.isascii() and digits.isdigit()
        number = int(digits) if is_number else -1  # int() refuses very long digit strings
        return [number] if 0 <= number < len(self) and self[number] == key else []


def near_keys(wanted: str, keys: Iterable[str]) -> str:
    """A hint with up to ``NEAR_KEYS_MAX`` of the first ``keys`` that are similar to ``wanted``; ""
    if there are none."""
    if len(wanted) > COMPARED_CHARACTERS_MAX:
        return ""
    known = (each for each in keys if len(each) <= COMPARED_CHARACTERS_MAX)
    some = dict.fromkeys(islice(known, 2 * KEYS_COMPARED_MAX))
    near = get_close_matches(wanted, some, NEAR_KEYS_MAX)
    return f"near: {', '.join(near)}" if near else ""


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
