"""Scans objects in windows on a file: where each begins and ends, and its key."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from dsort.containers.base import Need, Scanner
from dsort.containers.objects.headers import ItemSizes, Kind, ReadHeader
from dsort.containers.objects.walk import FIELD_BYTES_MAX, Field, ObjectWalk, WalkError
from dsort.containers.positions import record_table
from dsort.data.numbered import DIGITS
from dsort.errors import ContentKeyError, CorruptShardError
from dsort.naming.names import position_key

__all__ = ["KEY_FIELD", "ObjectScan", "key_in"]

KEY_FIELD: Final = b"__key__"
"""The field that holds the key of a record, as webdataset writes it."""


class ObjectScan:
    """The objects of one file found so far. ``key_field``: the field with the keys; b"":
    ``KEY_FIELD``, and records without it are numbered."""

    def __init__(
        self,
        shard: str,
        size_bytes: int,
        read_header: ReadHeader,
        sizes: ItemSizes,
        extension: bytes,
        key_field: bytes,
    ) -> None:
        self._shard = shard
        self._extension = extension
        self._is_required = bool(key_field)
        self._walk = ObjectWalk(read_header, sizes, size_bytes, wanted=key_field or KEY_FIELD)
        self._keys: dict[int, bytes] = {}  # of the objects with a key, by number
        self._ends = array("q")

    def scanner(self) -> Scanner:
        """See ``Container.scanner``. Returns a row for each object."""
        walk = self._walk
        while not self._is_done:
            self._read((yield Need(walk.at, walk.needs_bytes)), walk.at)
        ends = np.array(self._ends, np.int64)
        starts = np.zeros(len(ends), np.int64)
        starts[1:] = ends[:-1]
        return record_table(self._shard, self._extension, starts, ends - starts, self._all_keys())

    @property
    def _is_done(self) -> bool:
        return self._walk.at >= self._walk.size_bytes and self._walk.start == self._walk.at

    def _read(self, view: memoryview, offset: int) -> None:
        """Find the objects that end in ``view``, or whose payload extends beyond it. ``view``
        begins at byte ``offset``."""
        walk = self._walk
        try:
            while not self._is_done:
                if not self._is_required:
                    walk.pass_plain(view, offset, self._ends)
                end = walk.next_end(view, offset)
                if end is None:
                    break
                key = self._key()
                if key is not None:
                    self._keys[len(self._ends)] = key
                self._ends.append(end)
                walk.begin()
            if walk.at >= walk.size_bytes and not self._is_done:
                raise WalkError(walk.start, "an object is cut off")
        except WalkError as error:
            raise CorruptShardError(self._shard, error.offset, error.reason) from None

    def _all_keys(self) -> list[bytes] | None:
        """The keys of all objects; None if all keys are positions."""
        if not self._keys:
            return None
        prefix = position_key(self._shard, 0)[:-DIGITS]
        keys, count = self._keys, len(self._ends)
        return [keys.get(n) or prefix + b"%0*d" % (DIGITS, n) for n in range(count)]

    def _key(self) -> bytes | None:
        """The key in the object; None if its key is its position."""
        if not self._walk.fields:
            if self._is_required:
                raise self._no_key("has no field")
            return None
        key = key_in(self._walk.fields[-1])
        if key is None:
            raise self._no_key("has no text, bytes or integer of 1 to 4,096 bytes in its field")
        return key

    def _no_key(self, what: str) -> ContentKeyError:
        name = self._walk.wanted.decode("utf-8", "backslashreplace")
        return ContentKeyError(
            f"object {len(self._ends):,} of shard {self._shard}, at byte {self._walk.start:,}, "
            f"{what} {name}",
            hint="choose another key_field; without one, objects without __key__ are numbered",
        )


def key_in(field: Field) -> bytes | None:
    """The key in a field; None if it has none."""
    if field.kind == Kind.INTEGER:
        return b"%d" % field.number
    if field.kind in (Kind.TEXT, Kind.BYTES) and 0 < field.size_bytes <= FIELD_BYTES_MAX:
        return field.content
    return None
