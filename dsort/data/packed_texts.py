"""Many short texts that are rarely read: names, receipts. As strings, each takes 50 to 100 bytes
more."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import pairwise
from typing import overload

import numpy as np

CHUNK_BYTES = 4 << 20
AT_ONCE = 4096
_ERRORS = "surrogateescape"  # names need not be UTF-8


class PackedTexts(Sequence[str]):
    """A sequence of strings, stored as one bytes object."""

    def __init__(self, texts: Iterable[str]) -> None:
        blob, ends = bytearray(), array("q", [0])
        for text in texts:
            blob += text.encode("utf-8", _ERRORS)
            ends.append(len(blob))
        self._blob = bytes(blob)
        self._ends = np.frombuffer(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        return self._text(int(self._ends[place]), int(self._ends[place + 1]))

    def __iter__(self) -> Iterator[str]:
        for begin in range(0, len(self), AT_ONCE):
            for start, stop in pairwise(self._ends[begin : begin + AT_ONCE + 1].tolist()):
                yield self._text(start, stop)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _text(self, start: int, stop: int) -> str:
        return self._blob[start:stop].decode("utf-8", _ERRORS)


class TextsByNumber(MutableMapping[int, str]):
    """Texts by numbers from 0 on, most of which are used in the end. Replaced and removed texts
    still take memory."""

    def __init__(self) -> None:
        self._chunks: list[bytearray] = []
        self._places = array("q")  # chunk and place in it, as one number; -1: no text
        self._lengths = array("i")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (number for number, place in enumerate(self._places) if place >= 0)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._place(number) >= 0

    def __getitem__(self, number: int) -> str:
        place = self._place(number)
        if place < 0:
            raise KeyError(number)
        chunk, start = divmod(place, CHUNK_BYTES)
        data = self._chunks[chunk][start : start + self._lengths[number]]
        return data.decode("utf-8", _ERRORS)

    def __setitem__(self, number: int, text: str) -> None:
        data = text.encode("utf-8", _ERRORS)
        if number >= len(self._places):
            more = number + 1 - len(self._places)
            self._places.extend([-1] * more)
            self._lengths.extend([0] * more)
        if not self._chunks or len(self._chunks[-1]) + len(data) > CHUNK_BYTES:
            self._chunks.append(bytearray())
        self._count += self._places[number] < 0
        self._places[number] = (len(self._chunks) - 1) * CHUNK_BYTES + len(self._chunks[-1])
        self._lengths[number] = len(data)
        self._chunks[-1] += data

    def __delitem__(self, number: int) -> None:
        if self._place(number) < 0:
            raise KeyError(number)
        self._places[number] = -1
        self._count -= 1

    def _place(self, number: int) -> int:
        return self._places[number] if 0 <= number < len(self._places) else -1
