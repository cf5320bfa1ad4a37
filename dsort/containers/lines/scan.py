"""Scans lines in windows on a file: where each begins and ends, and its key.

A line ends in a line feed; a carriage return before it is part of the line. Line feeds are found by
vectorised steps (0.1 to 0.2 ns a byte), and a file whose records are numbered is read once, in
windows of any size. If the keys are in the lines, a window holds a line as a whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dsort.containers.bare_rows import joined_names, position_names
from dsort.containers.base import Need, Scanner
from dsort.data.columns import Bools, Int64s, UInt8s, UInt64s, row_numbers
from dsort.data.json_pointer import JsonNumber, JsonPointer, JsonSyntaxError, is_json
from dsort.data.members import MemberTable, OwnRecords, ScanNotes
from dsort.errors import ContentKeyError, CorruptShardError
from dsort.naming.names import shortened

BOM: Final = b"\xef\xbb\xbf"
KEYED_LINE_BYTES_MAX: Final = 256 << 20
"""The maximum length of a line whose key is read. Such a line is read whole, and a file without
line feeds must not fill memory."""

_BLOCK_BYTES: Final = 1 << 20
"""Bytes compared at once, which stay in the processor's cache. For smaller blocks, calls cost as
much as bytes: with lines of 3 KB, a byte takes 0.18 ns in blocks of 256 KiB, and 0.11 ns in blocks
of this size."""
_KEYS_BYTES: Final = 4 << 20
_ROUNDS: Final = 4
"""White space at the ends of lines is passed over in so many rounds, a byte of all lines in each;
most lines end in one or two such bytes."""
_HEAD_BYTES: Final = 8
_WORD_BYTES: Final = 8
_BYTE_NUMBERS: Final = np.uint64(0x0001_0203_0405_0607)
_LAST_LINE_BYTES_MAX: Final = 64 << 20
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_LINE_FEED, _RETURN, _SPACE, _TAB = b"\n\r \t"


class LineNotes(ScanNotes, frozen=True):
    """The oddities that a file of lines may have."""

    empty_lines: int = 0
    byte_order_mark: int = 0
    unended_line: int = 0  # the last line has no line feed


class LineScan:
    """The lines of one file found so far.

    ``extension``: the extension of members, after their keys. ``pointer``: where keys are; None:
    lines are numbered. ``is_json``: lines of white space are not records.
    """

    def __init__(
        self,
        shard: str,
        size_bytes: int,
        extension: bytes,
        pointer: JsonPointer | None,
        *,
        is_json: bool,
    ) -> None:
        self._shard = shard
        self._size_bytes = size_bytes
        self._extension = extension
        self._pointer = pointer
        self._is_json = is_json
        self._looked_at = 0  # all bytes before this one have been scanned
        self._line_start = 0  # where the line begins that this byte is in
        self._line_is_blank = True  # in the bytes scanned so far
        self._line_head = b""  # its first bytes, of those scanned so far
        self._bom = False
        self._lines = 0  # including empty ones
        self._starts: list[Int64s] = []
        self._ends: list[Int64s] = []
        self._keys: list[bytes] = []
        self._shortfall = ""

    def scanner(self) -> Scanner:
        """See ``Container.scanner``."""
        if self._size_bytes:
            head_bytes = min(_HEAD_BYTES, self._size_bytes)
            self._look_at_head(bytes((yield Need(0, head_bytes))[:head_bytes]))
        line_bytes_min = 1
        while self._looked_at < self._size_bytes:
            if self._pointer is None:
                self._read((yield Need(self._looked_at)), self._looked_at)
            else:
                self._read((yield Need(self._line_start, line_bytes_min)), self._line_start)
                line_bytes_min = self._line_bytes_min()
        return self._table()

    def _read(self, window: memoryview, offset: int) -> None:
        """Find the lines that end in ``window``, which begins at byte ``offset``."""
        array = np.frombuffer(window, np.uint8)
        end = offset + len(array)
        step = _BLOCK_BYTES if self._pointer is None else _KEYS_BYTES
        for at in range(self._looked_at, end, step):
            self._read_block(array, offset, at, min(at + step, end))
        if end == self._size_bytes:
            self._finish_last_line(array, offset)

    def _table(self) -> MemberTable:
        """All lines that are not empty, one in each row."""
        # Arrays of lines of two bytes are larger than the file: an array that is no longer needed
        # is freed before the next one is made.
        starts = np.concatenate([np.zeros(0, np.int64), *self._starts])
        self._starts.clear()
        lengths = np.concatenate([np.zeros(0, np.int64), *self._ends])
        self._ends.clear()
        unended = self._unended and len(starts) and int(lengths[-1]) == self._size_bytes
        lengths -= starts
        payload = lengths - 1  # without the line feed
        if unended:
            payload[-1] += 1
        numbers = row_numbers(len(starts) + 1)  # which readers need, too
        if self._pointer is None:
            names, key_bytes = position_names(self._shard, len(starts), self._extension)
        else:
            names, key_bytes = joined_names(self._keys, self._extension)
        return MemberTable(
            names=names,
            kind=np.broadcast_to(np.uint8(0), starts.shape),
            payload_start=starts,
            payload_bytes=payload,
            range_start=starts,
            range_length=lengths,
            tails={len(starts) - 1: b"\n"} if unended else {},
            notes=LineNotes(
                empty_lines=self._lines - len(starts),
                byte_order_mark=int(self._bom),
                unended_line=int(unended),
                shortfall=self._shortfall,
            ),
            own=OwnRecords(key_bytes, numbers[: len(starts)]),
        )

    def _look_at_head(self, head: bytes) -> None:
        """Check for bytes with which no file of lines begins."""
        if head.startswith(_UTF_16):
            raise CorruptShardError(
                self._shard,
                0,
                "it is UTF-16 text: lines must be in UTF-8, or another encoding with the line "
                "feeds of ASCII",
            )
        if head.startswith(BOM):
            self._bom = True
            self._looked_at = self._line_start = len(BOM)

    def _read_block(self, array: UInt8s, offset: int, start: int, end: int) -> None:
        """Add the lines that end in bytes ``start`` to ``end`` of the file; ``array`` begins at
        byte ``offset``."""
        block = array[start - offset : end - offset]
        ends = line_feeds(block) + (start + 1)
        if len(ends):
            starts = np.append(self._line_start, ends[:-1])
            self._take(array, offset, starts, ends, self._blank_lines(array, offset, starts, ends))
            self._line_start, self._line_is_blank = int(ends[-1]), True
        self._looked_at = end
        begin = self._line_start - offset
        if begin >= 0:
            self._line_head = array[begin : begin + len(BOM)].tobytes()
        else:
            self._line_head += array[: len(BOM) - len(self._line_head)].tobytes()
        if self._line_start < end and self._line_is_blank and self._pointer is None:
            part = block[max(self._line_start - start, 0) :]
            self._line_is_blank = not self._may_hold_text(part)

    def _take(
        self, array: UInt8s, offset: int, starts: Int64s, ends: Int64s, blank: Bools | None
    ) -> None:
        """Add lines, except those that are ``blank``. None: no line is blank, and none begins with
        a byte order mark."""
        first = self._lines
        if blank is not None:
            self._refuse_marks(array, offset, starts)
        self._lines += len(starts)
        rows = None
        if blank is not None and blank.any():
            rows = np.flatnonzero(~blank)
            starts, ends = starts[rows], ends[rows]
        self._starts.append(starts)
        self._ends.append(ends)
        if self._pointer is not None and len(starts):
            rows = np.arange(len(starts)) if rows is None else rows
            self._take_keys(array, offset, starts, ends, first + 1 + rows)

    def _refuse_marks(self, array: UInt8s, offset: int, starts: Int64s) -> None:
        """``CorruptShardError`` for a line that begins with a byte order mark, which would be lost
        in the first line of a shard."""
        head = (self._line_head + array[: len(BOM)].tobytes())[: len(BOM)]
        marked = starts[:1] if starts[0] < offset and head == BOM else starts[:0]
        inner = starts[starts >= offset] - offset
        inner = inner[array[inner] == BOM[0]]
        inner = inner[inner + len(BOM) <= len(array)]
        there = (array[inner + 1] == BOM[1]) & (array[inner + 2] == BOM[2])
        marked = np.append(marked, inner[there] + offset)
        if len(marked):
            raise CorruptShardError(
                self._shard,
                int(marked[0]),
                "a line begins with a byte order mark, which only a file may begin with",
                hint="concatenated files have such lines: remove the mark",
            )

    def _blank_lines(
        self, array: UInt8s, offset: int, starts: Int64s, ends: Int64s
    ) -> Bools | None:
        """Which lines are empty. If the first line began before the window, its bytes there count,
        too. None: all lines begin with a byte that begins neither white space nor a byte order
        mark."""
        if starts[0] >= offset:
            begins = array[starts - offset] - np.uint8(_SPACE + 1)  # smaller bytes wrap round
            if bool((begins < BOM[0] - _SPACE - 1).all()):
                return None
        blank = np.zeros(len(starts), np.bool_)
        inner = np.maximum(starts, offset) - offset
        stops = ends - offset - 1  # without the line feed
        lengths = stops - inner
        blank[lengths == 0] = True
        some = np.flatnonzero(lengths > 0)
        begins = array[inner[some]]
        odd = begins == _RETURN
        if self._is_json:
            odd |= (begins == _SPACE) | (begins == _TAB)
        for row in some[odd].tolist():
            blank[row] = not self._may_hold_text(array[inner[row] : stops[row]])
        blank[0] &= self._line_is_blank
        return blank

    def _may_hold_text(self, part: UInt8s) -> bool:
        white = b" \t\r" if self._is_json else b"\r"
        return bool(part.tobytes().strip(white))

    def _take_keys(
        self, array: UInt8s, offset: int, starts: Int64s, ends: Int64s, numbers: Int64s
    ) -> None:
        """Find the keys of lines. ``numbers``: their line numbers in the file, from 1 on."""
        assert self._pointer is not None
        base = int(starts[0])
        block = array[base - offset : int(ends[-1]) - offset].tobytes()
        starts, ends = starts - base, ends - base
        stops = _without_white_space(block, starts, ends)
        for row, token in enumerate(self._pointer.plain_tokens(block, starts, stops)):
            key = token.strip(b'"') if token else b""
            if not key:
                line = block[int(starts[row]) : int(stops[row])]
                key = self._key_of(line, int(numbers[row]), base + int(starts[row]))
            self._keys.append(key)

    def _key_of(self, line: bytes, number: int, offset: int) -> bytes:
        assert self._pointer is not None
        field = shortened(self._pointer.text)
        try:
            value = self._pointer.value(line)
        except KeyError:
            raise self._no_key(number, f"has no field {field}") from None
        except JsonSyntaxError as problem:
            raise CorruptShardError(
                self._shard,
                offset,
                f"line {number:,} is {problem}",
                hint="mend the line, or leave out key_field: lines are numbered then, and not read",
            ) from None
        if isinstance(value, JsonNumber):
            return value.encode()
        if not isinstance(value, str):
            kind = {dict: "an object", list: "a list", type(None): "null"}.get(
                type(value), "a bool"
            )
            raise self._no_key(number, f"has {kind} in its field {field}, which is no key")
        if not value:
            raise self._no_key(number, f"has an empty text in its field {field}, which is no key")
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise self._no_key(number, f"has half a character in its field {field}") from None

    def _no_key(self, number: int, what: str) -> ContentKeyError:
        return ContentKeyError(
            f"line {number:,} of shard {self._shard} {what}",
            hint="mend the line, choose another key_field, or leave it out: lines are numbered "
            "then",
        )

    @property
    def _unended(self) -> bool:
        return self._line_start < self._size_bytes

    def _finish_last_line(self, array: UInt8s, offset: int) -> None:
        """Add the last line of the file if it has no line feed."""
        if not self._unended:
            return
        start = max(self._line_start, offset) - offset
        rest = array[start:]
        blank = self._line_is_blank and not self._may_hold_text(rest)
        starts, ends = np.array([self._line_start]), np.array([self._size_bytes])
        if not blank and self._is_json and start == self._line_start - offset:
            self._look_for_cut(rest)
        if self._shortfall and self._pointer is not None:
            raise CorruptShardError(self._shard, self._line_start, self._shortfall)
        self._take(array, offset, starts, ends, np.array([blank]))

    def _look_for_cut(self, rest: UInt8s) -> None:
        """Check whether the last line, which has no line feed, is whole. A line of more than
        ``_LAST_LINE_BYTES_MAX`` is not checked."""
        if len(rest) > _LAST_LINE_BYTES_MAX:
            return
        if not is_json(rest.tobytes()):
            number = self._lines + 1
            self._shortfall = f"its last line, {number:,}, is cut off: it has no end and is no JSON"

    def _line_bytes_min(self) -> int:
        """How many bytes of the next line the next window must hold."""
        have = self._looked_at - self._line_start
        if have > KEYED_LINE_BYTES_MAX:
            raise CorruptShardError(
                self._shard,
                self._line_start,
                f"line {self._lines + 1:,} is longer than {KEYED_LINE_BYTES_MAX >> 20} MiB, too "
                "long to look for a key in it",
                hint="leave out key_field: lines are numbered then, and may have any length",
            )
        return min(max(2 * have, 1), self._size_bytes - self._line_start)


def line_feeds(block: UInt8s) -> Int64s:
    """Where ``block`` has line feeds. Lines are long compared with words of eight bytes: to search
    only the words with a line feed takes half the time of testing each byte."""
    there = block == _LINE_FEED
    words = len(block) // _WORD_BYTES
    eights: UInt64s = there[: words * _WORD_BYTES].view(np.uint64)
    at = _few_true(eights != 0)
    found = eights[at]
    if bool((found & (found - np.uint64(1))).any()):  # several in one word
        return np.flatnonzero(there)
    # Each word is a power of two now. A product with it is a shift, which moves the number of the
    # word's one byte to the highest byte.
    found *= _BYTE_NUMBERS
    found >>= np.uint64(56)
    ends: Int64s = at * _WORD_BYTES + found.view(np.int64)
    rest = np.flatnonzero(there[words * _WORD_BYTES :])
    return np.append(ends, rest + words * _WORD_BYTES) if len(rest) else ends


def _few_true(flags: Bools) -> Int64s:
    """Where ``flags`` are true; faster if few flags are true."""
    if len(flags) % _WORD_BYTES:
        return np.flatnonzero(flags)
    groups = flags.view(np.uint64) != 0
    if int(np.count_nonzero(groups)) > len(groups) // 4:
        return np.flatnonzero(flags)
    at = np.flatnonzero(groups)
    inside = np.flatnonzero(flags.reshape(-1, _WORD_BYTES)[at])
    return at[inside // _WORD_BYTES] * _WORD_BYTES + inside % _WORD_BYTES


def _without_white_space(block: bytes, starts: Int64s, ends: Int64s) -> Int64s:
    """Where each line ends without the line feed, carriage returns, spaces and tabs at its end."""
    array = np.frombuffer(block, np.uint8)
    stops = ends.copy()
    live = np.arange(len(stops))
    for _ in range(_ROUNDS):
        last = array[stops[live] - 1]
        white = (last == _LINE_FEED) | (last == _RETURN) | (last == _SPACE) | (last == _TAB)
        live = live[white & (stops[live] > starts[live] + 1)]
        stops[live] -= 1
    for row in live.tolist():
        start = int(starts[row])
        stops[row] = start + max(len(block[start : int(stops[row])].rstrip(b"\n\r \t")), 1)
    return stops
