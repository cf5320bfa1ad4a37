"""A walk over the items of objects, from header to header, without recursion.

A walk goes on where the last window ended, and passes over payload without looking at it. What it
keeps of an object is bounded: how deep it is, and the fields of the map that it is, if it is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dsort.containers.objects.headers import HEADER_BYTES_MAX, Kind, ReadHeader

__all__ = ["FIELD_BYTES_MAX", "Field", "ObjectWalk", "WalkError"]

DEPTH_MAX: Final = 512
FIELD_BYTES_MAX: Final = 4096
"""Names of fields, and keys of records, are no longer."""


class WalkError(ValueError):
    """What is wrong with an object, and at which ``offset`` of the file."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the map that an object is. ``start`` and ``size_bytes``: of the payload of a
    value that is bytes or text, in the file; else of the value as a whole. ``number``: of an
    integer. ``content``: of a value that is short, or was asked for."""

    name: bytes
    kind: int
    start: int
    size_bytes: int
    number: int = 0
    content: bytes = b""


@dataclass(slots=True)
class _Open:
    """A list or a map that is being read. ``left``: how many items follow; -1: up to a break."""

    left: int
    is_map: bool
    items: int = 0
    pieces: int = -1  # the kind of the pieces, of a string in pieces


@dataclass(slots=True)
class ObjectWalk:
    """Where the objects of a file of ``size_bytes`` end. ``keeps_all``: all fields are kept, else
    only those called ``wanted``."""

    read_header: ReadHeader
    size_bytes: int
    wanted: bytes = b""
    keeps_all: bool = False
    at: int = 0  # the next header, as an offset of the file
    start: int = 0  # of the object that is being read
    fields: list[Field] = field(default_factory=list)
    is_map: bool = False
    _open: list[_Open] = field(default_factory=list)
    _name: bytes | None = None  # of the field whose value is next
    _value_start: int = 0
    _tagged: bool = False

    @property
    def needs_bytes(self) -> int:
        """How many bytes the next window must hold, at most."""
        return min(HEADER_BYTES_MAX + FIELD_BYTES_MAX, self.size_bytes - self.at)

    def next_end(self, view: memoryview, base: int) -> int | None:
        """Where the object ends that is being read, if a header in ``view`` says so; None if more
        of the file is needed. ``view`` begins at byte ``base``. ``WalkError``."""
        while True:
            if self.at >= self.size_bytes:
                raise WalkError(self.start, "an object is cut off")
            index = self.at - base
            if len(view) - index < self.needs_bytes:
                return None
            try:
                kind, header_bytes, argument = self.read_header(view, index)
            except ValueError as error:
                raise WalkError(self.at, str(error)) from None
            except IndexError:
                raise WalkError(self.start, "an object is cut off") from None
            if self._take(view, index, kind, header_bytes, argument):
                end, self._tagged = self.at, False
                return end

    def begin(self) -> None:
        """Begin the next object."""
        self.start, self.fields, self.is_map, self._name = self.at, [], False, None

    def _take(
        self, view: memoryview, index: int, kind: int, header_bytes: int, argument: int
    ) -> bool:
        """Pass over one header, and payload behind it; whether the object ends there."""
        here, body = self.at, self.at + header_bytes
        top = self._open[-1] if self._open else None
        if top is not None and top.pieces >= 0 and kind not in (top.pieces, Kind.BREAK):
            raise WalkError(here, "a string in pieces has a piece of another kind")
        if kind == Kind.TAG:
            self.at, self._tagged = body, True
            return False
        if kind == Kind.BREAK:
            return self._end_open(here, body)
        if kind in (Kind.LIST, Kind.MAP, Kind.PIECES):
            return self._begin(kind, argument, here, body)
        size_bytes = 0 if kind == Kind.INTEGER else argument
        if size_bytes > self.size_bytes - body:
            raise WalkError(self.start, "an object is cut off")
        if len(self._open) == 1 and self._open[0].is_map:
            content = b""
            if size_bytes <= FIELD_BYTES_MAX:
                content = bytes(view[index + header_bytes : index + header_bytes + size_bytes])
            self._note(kind, body, size_bytes, argument, content)
        self.at = body + size_bytes
        return self._item_ends()

    def _begin(self, kind: int, count: int, here: int, body: int) -> bool:
        if len(self._open) >= DEPTH_MAX:
            raise WalkError(here, f"an object is nested more than {DEPTH_MAX} deep")
        is_map = kind == Kind.MAP
        items = 2 * count if is_map else count
        if kind == Kind.PIECES:
            self._open.append(_Open(-1, False, pieces=count))
        else:
            if items > self.size_bytes - body:  # each item takes a byte
                raise WalkError(self.start, "an object is cut off")
            self._open.append(_Open(max(items, -1), is_map))
        if len(self._open) == 1:
            self.is_map = is_map and not self._tagged
        elif len(self._open) == 2 and self._open[0].is_map:
            self._value_start = here
        self.at = body
        self._tagged = False
        return items == 0 and kind != Kind.PIECES and self._close()

    def _end_open(self, here: int, body: int) -> bool:
        if not self._open or self._open[-1].left >= 0 or self._tagged:
            raise WalkError(here, "a break stands where nothing can end")
        if self._open[-1].is_map and self._open[-1].items % 2:
            raise WalkError(here, "a map ends between a name and its value")
        self.at = body
        return self._close()

    def _close(self) -> bool:
        """End the innermost list, map or string in pieces."""
        self._open.pop()
        if len(self._open) == 1 and self._open[0].is_map:
            start = self._value_start
            self._note(Kind.LIST, start, self.at - start, 0, b"")
        return self._item_ends()

    def _item_ends(self) -> bool:
        """Count an item; whether the object ends with it."""
        self._tagged = False
        if not self._open:
            return True
        top = self._open[-1]
        top.items += 1
        if top.left < 0:
            return False
        top.left -= 1
        return top.left == 0 and self._close()

    def _note(self, kind: int, start: int, size_bytes: int, number: int, content: bytes) -> None:
        """Note a name or a value of the map that the object is."""
        if self._open[0].items % 2 == 0:
            is_name = kind in (Kind.TEXT, Kind.BYTES) and size_bytes <= FIELD_BYTES_MAX
            self._name = content if is_name and not self._tagged else None
            if self._name is None and self.keeps_all:
                self.is_map = False  # with names that are no texts
        elif self._name is not None and (self.keeps_all or self._name == self.wanted):
            if self._tagged and kind != Kind.LIST:
                kind, start, size_bytes = Kind.SCALAR, start, size_bytes
            if not self.keeps_all:
                self.fields.clear()  # the last one counts
            self.fields.append(Field(self._name, kind, start, size_bytes, number, content))
