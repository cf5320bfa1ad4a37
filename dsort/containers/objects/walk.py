"""A walk over the items of objects, from header to header, without recursion. The first bytes of
most items show their length; many such items are passed over at a time.

A walk resumes where the last window ended, and passes over payload without reading it. The state
kept for an object is bounded: how deep it is nested, and its fields if it is a map.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from msgspec import Struct, field

from dsort.containers.objects.headers import (
    HEADER_BYTES_MAX,
    OPEN_LIST,
    OPEN_MAP,
    ItemSizes,
    Kind,
    ReadHeader,
)

DEPTH_MAX: Final = 512
FIELD_BYTES_MAX: Final = 4096
"""The maximum length of names of fields, and of keys of records."""
FIELDS_MAX: Final = 1 << 16
"""The maximum number of fields of an object that become members."""

BREAK: Final = 0xFF
"""The break of CBOR. In MessagePack this byte is a number."""
_ROOM_BYTES: Final = 2 * HEADER_BYTES_MAX + FIELD_BYTES_MAX
_ATTEMPT_BYTES: Final = 16 << 10
"""An object whose headers are within so many bytes is passed over at once."""
_PLAIN_BYTES_MAX: Final = 64
"""The maximum length of an item whose first byte shows its length."""
_PLAIN_ITEMS_MAX: Final = 16
_LIST_MIN: Final = OPEN_LIST >> 1
_MAP_MIN: Final = OPEN_MAP >> 1


class WalkError(ValueError):
    """What is wrong with an object, and at which ``offset`` of the file."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


class Field(NamedTuple):
    """One field of an object that is a map. ``start`` and ``size_bytes``: the place in the file of
    the payload, if the value is bytes or text; otherwise of the whole value. ``number``: the value
    of an integer. ``content``: the content of a value that is short, or was requested."""

    name: bytes
    kind: int
    start: int
    size_bytes: int
    number: int = 0
    content: bytes = b""


class _Open(Struct):
    """A list or a map that is being read. ``left``: how many items follow; -1: until a break."""

    left: int
    is_map: bool
    items: int = 0
    pieces: int = -1  # the kind of the pieces, of a string in pieces

    @classmethod
    def of(cls, left: int) -> _Open:
        """The list or map with ``left`` items left, as ``_skim`` counts them."""
        if left > _LIST_MIN:
            return cls(-1, False)
        return cls(-1, True, OPEN_MAP - left) if left > _MAP_MIN else cls(left, False)


class ObjectWalk(Struct):
    """Finds where the objects of a file of ``size_bytes`` end. ``keeps_all``: all fields are kept,
    and not only fields called ``wanted``."""

    read_header: ReadHeader
    sizes: ItemSizes
    size_bytes: int
    wanted: bytes = b""
    keeps_all: bool = False
    at: int = 0  # the offset of the next header in the file
    start: int = 0  # of the current object
    fields: list[Field] = field(default_factory=list)
    is_map: bool = False
    _open: list[_Open] = field(default_factory=list)
    _name: bytes | None = None  # of the field whose value comes next
    _value_start: int = 0
    _tagged: bool = False

    @property
    def needs_bytes(self) -> int:
        """The number of bytes that the next window must hold."""
        return min(HEADER_BYTES_MAX + FIELD_BYTES_MAX, self.size_bytes - self.at)

    def next_end(self, view: memoryview, base: int) -> int | None:
        """The end of the current object, if a header in ``view`` shows it; None if more of the file
        is needed. ``view`` begins at byte ``base``. ``WalkError``."""
        while True:
            if self.at >= self.size_bytes:
                raise WalkError(self.start, "an object is cut off")
            index = self.at - base
            if len(view) - index < self.needs_bytes:
                return None
            if self._open:
                if not self._tagged:
                    index += self._pass(view, index)
                    if len(view) - index < self.needs_bytes:
                        continue  # to the check above
            elif not self.keeps_all and not self._tagged and self._pass_object(view, index):
                return self.at
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

    def pass_plain(self, view: memoryview, base: int, ends: array[int]) -> None:
        """Pass over whole objects that are numbers, short texts, or short lists and maps of these,
        and add the end of each to ``ends``. Maps with the wanted field are not passed. Such an
        object takes a third of the time of others. ``view`` begins at byte ``base``."""
        if self._open or self._tagged:
            return
        at, stop = self.at - base, len(view) - _PLAIN_BYTES_MAX
        while at < stop and (end := self._plain_end(view, at, stop)):
            ends.append(base + end)
            at = end
        if base + at > self.at:
            self.at = base + at
            self.begin()

    def _plain_end(self, view: memoryview, at: int, stop: int) -> int:
        """The index after the object at index ``at``; 0 if :meth:`pass_plain` does not pass it."""
        sizes, items = self.sizes
        if size := sizes[view[at]]:
            return at + size
        end = at + 1
        inside = items[view[at]]
        if not 0 < inside <= _PLAIN_ITEMS_MAX:
            return 0
        for _ in range(inside):
            size = sizes[view[end]]
            end += size
            if not size or end >= stop:
                return 0
        return 0 if self.wanted in bytes(view[at:end]) else end

    def _pass_object(self, view: memoryview, index: int) -> bool:
        """Pass over an object if all its items are plain and its header has the number of its
        fields; return whether the object was passed over."""
        view = view[: index + _ATTEMPT_BYTES]
        if index >= len(view) - _ROOM_BYTES:
            return False
        try:
            kind, header_bytes, count = self.read_header(view, index)
        except (IndexError, ValueError):
            return False
        found: Field | None = None
        if kind == Kind.MAP and count >= 0:
            at = index + header_bytes
            for _ in range(count):
                value, end = self._field(view, at)
                if not end:
                    return False
                if self._is_wanted(view, at, value):
                    found = self._wanted_field(view, index, value)
                    if found is None:
                        return False
                at = end
        else:
            at, left, _ = self._skim(view, index, 1, depth=0)
            if left:
                return False
        if at - index > self.size_bytes - self.at:
            return False
        self.at += at - index
        self.is_map = kind == Kind.MAP
        if found is not None:
            self.fields.append(found)
        return True

    def _field(self, view: memoryview, at: int) -> tuple[int, int]:
        """The index of the value of the field at index ``at``, and the index after it; (0, 0)
        unless both name and value are plain."""
        stop = len(view) - _ROOM_BYTES
        if at >= stop:
            return 0, 0
        sizes = self.sizes[0]
        size = sizes[view[at]]
        if not size:
            size, inside = self._look(view, at)
            if inside or not size:
                return 0, 0
        value = at + size
        if value >= stop:
            return 0, 0
        size = sizes[view[value]]
        if size:
            return value, value + size
        end, left, _ = self._skim(view, value, 1, depth=1)
        return (0, 0) if left else (value, end)

    def _is_wanted(self, view: memoryview, at: int, value: int) -> bool:
        """Whether the name at index ``at``, whose value is at ``value``, is the wanted one."""
        if view[value - len(self.wanted) : value] != self.wanted:
            return False
        kind, _, argument = self.read_header(view, at)
        return kind in (Kind.TEXT, Kind.BYTES) and argument == len(self.wanted)

    def _wanted_field(self, view: memoryview, index: int, value: int) -> Field | None:
        """The wanted field of the object at ``index``; its value is at index ``value``. None if the
        value is not plain."""
        kind, header_bytes, argument = self.read_header(view, value)
        if kind > Kind.TEXT:
            return None
        body, size_bytes = value + header_bytes, 0 if kind == Kind.INTEGER else argument
        content = b""
        if size_bytes <= FIELD_BYTES_MAX:
            content = bytes(view[body : body + size_bytes])
        return Field(self.wanted, kind, self.at + body - index, size_bytes, argument, content)

    def _pass(self, view: memoryview, index: int) -> int:
        """Pass over items of the innermost list or map except the last one, over unwanted fields,
        or over pieces of a string; return the number of bytes. An item that is passed over takes
        a tenth of the time of one that is not."""
        top, here = self._open[-1], self.at
        if top.pieces >= 0:
            self.at += _pieces_end(view, index, top.pieces, self.sizes[0]) - index
        elif len(self._open) == DEPTH_MAX:
            return 0  # an item with items inside is too deep, and ``_begin`` refuses it
        elif len(self._open) > 1 or not top.is_map:
            before = top.left - 1 if top.left > 0 else len(view)
            end, left, around = self._skim(view, index, before, depth=len(self._open))
            self._count(top, before - (around[0] + 1 if around else left))
            self._open += [_Open.of(each + 1) for each in around[1:]]
            if around:
                self._open.append(_Open.of(left))
            self.at += end - index
        elif not self.keeps_all and top.items % 2 == 0:
            self.at += self._pass_fields(view, index)
        return self.at - here

    def _count(self, top: _Open, passed: int) -> None:
        top.items += passed
        top.left -= passed if top.left > 0 else 0

    def _skim(
        self, view: memoryview, at: int, left: int, *, depth: int
    ) -> tuple[int, int, list[int]]:
        """Pass over ``left`` items from index ``at`` on, inside ``depth`` lists and maps, as long
        as they are plain. Returns (index of the next header, items left in the innermost list or
        map, items left in each list and map around that one). The item that is being read is not
        counted. Counts of lists and maps that end at a break go down from ``OPEN_LIST`` or
        ``OPEN_MAP``."""
        sizes, items = self.sizes
        around: list[int] = []
        # No header is longer than HEADER_BYTES_MAX: none that begins before `stop` is cut off.
        room, stop = DEPTH_MAX - 1 - depth, len(view) - HEADER_BYTES_MAX
        while at < stop:
            if not left:
                if not around:
                    break
                left = around.pop()
                continue
            first = view[at]
            if size := sizes[first]:
                at += size
                left -= 1
                continue
            if first == BREAK and (left > _LIST_MIN or (left > _MAP_MIN and not left % 2)):
                left = around.pop()
                at += 1
                continue
            size, inside = (1, items[first]) if items[first] else self._look(view, at)
            if inside and len(around) < room:
                around.append(left - 1)
                left = inside
            elif size and not inside:
                left -= 1
            else:
                break
            at += size
        while around and not left:
            left = around.pop()
        return at, left, around

    def _look(self, view: memoryview, at: int) -> tuple[int, int]:
        """(bytes to pass over, number of items that follow inside) for the item at index ``at``;
        (0, 0) if it is not plain."""
        try:
            kind, size, argument = self.read_header(view, at)
        except (IndexError, ValueError):
            return 0, 0
        if kind <= Kind.TEXT:
            return size + (argument if kind != Kind.INTEGER else 0), 0
        if kind in (Kind.LIST, Kind.MAP) and argument <= self.size_bytes:
            if argument < 0:
                return size, OPEN_MAP if kind == Kind.MAP else OPEN_LIST
            return size, 2 * argument if kind == Kind.MAP else argument
        if kind == Kind.TAG:
            behind = self.sizes[0][view[at + size]]
            return (size + behind, 0) if behind else (0, 0)
        if kind == Kind.PIECES:
            end = _pieces_end(view, at + size, argument, self.sizes[0])
            if end < len(view) and view[end] == BREAK:
                return end + 1 - at, 0
        return 0, 0

    def _pass_fields(self, view: memoryview, index: int) -> int:
        """The length in bytes of the next unwanted fields, without the last field."""
        top, at, passed = self._open[0], index, 0
        most = top.left // 2 - 1 if top.left > 0 else len(view)
        while passed < most:
            value, end = self._field(view, at)
            if not end or self._is_wanted(view, at, value):
                break
            at = end
            passed += 1
        self._count(top, 2 * passed)
        return at - index

    def _take(
        self, view: memoryview, index: int, kind: int, header_bytes: int, argument: int
    ) -> bool:
        """Pass over one header, and the payload after it; return whether the object ends there."""
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
        if items or kind == Kind.PIECES:
            return False
        self._close()
        return self._item_ends()

    def _end_open(self, here: int, body: int) -> bool:
        if not self._open or self._open[-1].left >= 0 or self._tagged:
            raise WalkError(here, "a break is where no list, map or string can end")
        if self._open[-1].is_map and self._open[-1].items % 2:
            raise WalkError(here, "a map ends between a name and its value")
        self.at = body
        self._close()
        return self._item_ends()

    def _close(self) -> None:
        """End the innermost list, map or string in pieces, which may be a value of the object."""
        self._open.pop()
        if len(self._open) == 1 and self._open[0].is_map:
            start = self._value_start
            self._note(Kind.LIST, start, self.at - start, 0, b"")

    def _item_ends(self) -> bool:
        """Count an item, which may be the last one in the lists and maps around it; return whether
        the item ends the object."""
        self._tagged = False
        while self._open:
            top = self._open[-1]
            top.items += 1
            if top.left < 0:
                return False
            top.left -= 1
            if top.left:
                return False
            self._close()
        return True

    def _note(self, kind: int, start: int, size_bytes: int, number: int, content: bytes) -> None:
        """Note a name or a value of the object, which is a map."""
        if self._open[0].items % 2 == 0:
            is_name = kind in (Kind.TEXT, Kind.BYTES) and size_bytes <= FIELD_BYTES_MAX
            self._name = content if is_name and not self._tagged else None
            if self._name is None and self.keeps_all:
                self.is_map = False  # has names that are not texts
        elif self._name is not None and (self.keeps_all or self._name == self.wanted):
            if self._tagged and kind != Kind.LIST:
                kind, start, size_bytes = Kind.SCALAR, start, size_bytes
            if not self.keeps_all:
                self.fields.clear()  # the last one is used
            elif len(self.fields) > FIELDS_MAX:
                return
            self.fields.append(Field(self._name, kind, start, size_bytes, number, content))


def _pieces_end(view: memoryview, at: int, kind: int, sizes: tuple[int, ...]) -> int:
    """The index after the pieces of ``kind`` from index ``at`` on, or of the first piece whose
    length is not in its first byte."""
    major, stop = (2 if kind == Kind.BYTES else 3), len(view) - HEADER_BYTES_MAX
    while at < stop and view[at] >> 5 == major and sizes[view[at]]:
        at += sizes[view[at]]
    return at
