"""Reads many plain tar headers at once, as columns.

Headers are found by their magic or by hopping, and read by ``read_headers``. Only the plain forms
that writers use today are read here: other forms are flagged, and ``member`` reads them.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.containers.tar.fields import HeaderFields, names
from dsort.containers.tar.header import BLOCK_BYTES
from dsort.data.columns import (
    Bools,
    BytesColumn,
    Int64s,
    UInt8s,
    UInt64s,
    cut_rows,
    rows_at_each,
)
from dsort.data.members import MemberKind

_Value = TypeVar("_Value", bound=np.generic)

LONG_NAME_BYTES_MAX = BLOCK_BYTES
_PAX_RECORDS_MAX = 8
_KEYWORD_BYTES_MAX = 64
_PAX_BYTES_SMALL = 128  # three records of times with nanoseconds are 90 bytes


def _text(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text.ljust(8, b"\0"), "little"))


_TIME_MASK, _TIME = _text(b"\xff" * 6), _text(b"mtime=")  # by far the most frequent
_PATH_MASK, _PATH = _text(b"\xff" * 5), _text(b"path=")
_ZERO, _BLANK, _NEWLINE = (np.uint8(ord(byte)) for byte in "0 \n")


class LongNames(Struct):
    """The names in extension headers; columns of shape ``(n,)``. Where names are too long for a
    header, or not ASCII, every member has an extension header.

    ``start`` counts bytes from block 0. ``length`` is 0 if the header has no name. In rows that are
    not ``plain``, both are undefined.
    """

    plain: Bools
    start: Int64s
    length: Int64s


def gnu_names(flat: UInt8s, payload_block: Int64s, size_bytes: Int64s) -> LongNames:
    """The GNU long names whose payloads begin at blocks ``payload_block`` of ``flat``."""
    start, length = payload_block * BLOCK_BYTES, size_bytes - 1
    plain: Bools = (length > 0) & (length <= LONG_NAME_BYTES_MAX)
    # The size counts a NUL at the end; a name without this NUL is read by itself.
    plain &= flat[start + np.where(plain, length, 0)] == 0
    return LongNames(plain, start, length)


def pax_names(flat: UInt8s, payload_block: Int64s, size_bytes: Int64s) -> LongNames:
    """The names in the pax payloads that begin at blocks ``payload_block`` of ``flat``.

    A payload is plain if it is one block long and well-formed, and has no relevant keyword but
    ``path``.
    """
    count = len(payload_block)
    width = _PAX_BYTES_SMALL if (size_bytes <= _PAX_BYTES_SMALL).all() else BLOCK_BYTES
    # The bytes behind the last payload keep reads of its words and keywords inside the array.
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
    plain &= (padding == 0) | (in_block == BLOCK_BYTES)  # else tarfile would read further there
    return LongNames(plain, name_at - base + payload_block * BLOCK_BYTES, name_length)


def _matters_not(payload: UInt8s, keyword_at: Int64s, after: Int64s) -> Bools:
    """Which pax records surely do not matter to a scan. A scan needs keywords that begin with
    ``path``, ``linkpath``, ``size`` or ``GNU.``."""
    texts = rows_at_each(payload, _KEYWORD_BYTES_MAX)[keyword_at]
    text = texts.view(np.uint8).reshape(len(keyword_at), _KEYWORD_BYTES_MAX)
    equals_at = (text == ord("=")).argmax(axis=1)  # 0 if there is none
    surely: Bools = (equals_at > 0) & (keyword_at + equals_at < after - 1)
    surely &= ~np.isin(text[:, 0], np.frombuffer(b"plsG", np.uint8))
    return surely


def with_long_names(
    names: BytesColumn, flat: UInt8s, rows: Int64s, start: Int64s, length: Int64s
) -> BytesColumn | None:
    """``names``, where each of ``rows`` gets the name in ``flat`` (``length`` bytes from ``start``
    on). None if a name holds a NUL byte."""
    long = cut_rows(flat, start, length)
    if not long.blob.all():
        return None
    if len(rows) == len(names):
        return BytesColumn(long.offsets, long.blob.copy())  # it may be a view of the window
    return names.replaced(rows, long)


_WORDS = BLOCK_BYTES // 8
_MAGIC_WORD = 32  # byte 256: the end of the link target, then the magic
_MAGIC_MASK, _MAGIC = _text(b"\0" + b"\xff" * 5), _text(b"\0ustar")
_SIZE_UNPACK = struct.Struct("11s").unpack_from

# Codes besides those of MemberKind (FILE is 0, HARDLINK the last). An extension (pax or long
# name) belongs to the member after it; OTHER ends the run.
_SPARSE, _PAX, _LONG_NAME, _LONG_TARGET, _OTHER = 100, 200, 201, 202, 255
_CODES = np.full(256, _OTHER, np.uint8)
_CODES[np.frombuffer(b"0\x007", np.uint8)] = MemberKind.FILE
_CODES[np.frombuffer(b"S", np.uint8)] = _SPARSE
_CODES[np.frombuffer(b"1", np.uint8)] = MemberKind.HARDLINK
_CODES[np.frombuffer(b"2", np.uint8)] = MemberKind.SYMLINK
_CODES[np.frombuffer(b"346", np.uint8)] = MemberKind.DEVICE
_CODES[np.frombuffer(b"5", np.uint8)] = MemberKind.DIRECTORY
_CODES[np.frombuffer(b"xX", np.uint8)] = _PAX
_CODES[np.frombuffer(b"L", np.uint8)] = _LONG_NAME
_CODES[np.frombuffer(b"K", np.uint8)] = _LONG_TARGET


class Blocks:
    """``count`` whole 512-byte blocks of a shard, one after the other, without a copy.

    ``scratch`` has room for the headers of one run, shape ``(n, 64)``, because page faults of new
    memory for each run would cost more than the copy.
    """

    __slots__ = ("_rows", "_scratch", "count", "flat", "view", "words")

    def __init__(self, data: UInt8s, scratch: UInt64s) -> None:
        self.count = len(data) // BLOCK_BYTES
        self.flat: UInt8s = data[: self.count * BLOCK_BYTES]
        self.view = self.flat.data
        self.words: UInt64s = self.flat.view("<u8").reshape(self.count, _WORDS)
        # A dtype that needs no alignment: else ``take`` would first copy a whole unaligned window.
        self._rows = self.flat.view(f"V{BLOCK_BYTES}")
        self._scratch = scratch

    def copies(self, at: Int64s) -> UInt64s:
        """The blocks ``at`` as words of shape ``(n, 64)``, copied to the scratch."""
        copied = self._scratch[: len(at)]
        # "clip" writes directly to ``out``; all blocks are in range.
        self._rows.take(at, out=copied.view(f"V{BLOCK_BYTES}")[:, 0], mode="clip")
        return copied


class HeaderRun(Struct):
    """Members whose headers were read together; columns of shape ``(n,)``, in blocks or bytes.

    Of rows that are ``special`` only the extent is valid: the rest has to be read from their
    headers.
    """

    names: BytesColumn
    kind: UInt8s
    start: Int64s  # block of the member's first header
    main: Int64s  # block of its main header
    after: Int64s  # block after its padding
    payload_bytes: Int64s
    special: Bools


def find_by_magic(blocks: Blocks, first: int, stop: int) -> Int64s:
    """The blocks from ``first`` to before ``stop`` that hold the magic of a header. The search
    takes about 8 ns a block, and is the faster way where members are small. The blocks found are
    *candidates*: a data block may look like a header (a tar inside a tar)."""
    words = blocks.words[first:stop, _MAGIC_WORD]
    found = np.flatnonzero((words & _MAGIC_MASK) == _MAGIC)
    return found + first


def find_by_hopping(blocks: Blocks, first: int, count_max: int) -> Int64s:
    """The blocks of up to ``count_max`` headers: each begins at the end of the member before it,
    which the header of that member shows. A hop takes 0.35 µs; hops are the faster way where
    members are large. The blocks found are *candidates*: nothing is checked, and a hop may land
    anywhere."""
    view, at, last = blocks.view, first * BLOCK_BYTES, (blocks.count - 1) * BLOCK_BYTES
    found: list[int] = []
    try:
        for _ in range(count_max):
            if at > last:
                break
            found.append(at)
            (digits,) = _SIZE_UNPACK(view, at + 124)
            # The header block, and the payload rounded up to whole blocks.
            at += (int(digits, 8) + 2 * BLOCK_BYTES - 1) & -BLOCK_BYTES
    except (ValueError, struct.error):
        pass  # no plain size: the last one found is not a header, which ``read_headers`` detects
    return np.array(found, np.int64) // BLOCK_BYTES


def read_headers(blocks: Blocks, found: Int64s, blocks_max: int) -> HeaderRun | None:
    """The members whose headers are the first of ``found``, up to the first header that is not
    plain. Each header of this run has a right checksum, and its member ends where the next one
    begins. The caller reads the rest, one member at a time.

    ``blocks_max``: the end of the shard, counted as in ``found``. None if there is no member.
    """
    fields = HeaderFields(blocks.copies(found))
    code: UInt8s = _of_each(_CODES.take(fields.typeflags()), len(found))
    odd = bool(code.any())
    size_bytes, plain = fields.sizes()
    apart = ~_of_each(fields.plain_numbers(), len(found))
    if (suspect := fields.suspect_prefixes()) is not None:
        apart |= suspect
    if odd:
        size_bytes[(code > 0) & (code <= MemberKind.HARDLINK)] = 0
        plain &= code != _OTHER
    after = found + 1 + ((size_bytes + (BLOCK_BYTES - 1)) >> 9)
    plain &= after <= blocks_max
    plain[1:] &= after[:-1] == found[1:]
    count = len(plain) if plain.all() else int(plain.argmin())
    if odd:
        run = _grouped(blocks, fields.raw[:count], code[:count], found[:count], size_bytes, after)
        if run is not None and apart[:count].any():
            of_member = np.searchsorted(run.main, found[:count][apart[:count]])
            run.special[of_member[of_member < len(run.special)]] = True
        return run
    if count == 0:
        return None
    run = HeaderRun(
        fields.names(count),
        code[:count],
        found[:count],
        found[:count],
        after[:count],
        size_bytes[:count],
        apart[:count],
    )
    return _directories_apart(run)


def _of_each(values: NDArray[_Value], count: int) -> NDArray[_Value]:
    """``values`` of each of ``count`` headers; one value may stand for all."""
    return values if len(values) == count else np.repeat(values, count)


def _grouped(
    blocks: Blocks, raw: UInt8s, code: UInt8s, found: Int64s, size_bytes: Int64s, after: Int64s
) -> HeaderRun | None:
    """The members where some headers are extensions, which belong to the member after them."""
    mains = np.flatnonzero(code < _PAX)
    if len(mains) == 0:
        return None
    headers = np.diff(mains, prepend=-1)
    kind, each = code[mains], int(headers[0])
    same = (headers == each).all()  # then the main headers need no copy
    run = HeaderRun(
        names(raw[each - 1 :: each][: len(mains)] if same else raw.take(mains, axis=0)),
        kind,
        found[mains + 1 - headers],
        found[mains],
        after[mains],
        size_bytes[mains],
        (headers > 2) | (kind == MemberKind.HARDLINK) | (kind == _SPARSE),
    )
    extended = np.flatnonzero(headers == 2)
    if len(extended):
        before = mains[extended] - 1
        _extend(blocks, run, extended, code[before], size_bytes[before])
    return _directories_apart(run)


def _extend(blocks: Blocks, run: HeaderRun, rows: Int64s, code: UInt8s, size_bytes: Int64s) -> None:
    """Apply the extension headers of ``rows``, one for each; a row with an extension that is not
    plain becomes special."""
    plain = np.zeros(len(rows), np.bool_)
    start, length = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for sort, read in ((_PAX, pax_names), (_LONG_NAME, gnu_names)):
        these = np.flatnonzero(code == sort)
        if len(these):
            said = read(blocks.flat, run.start[rows[these]] + 1, size_bytes[these])
            plain[these], start[these], length[these] = said.plain, said.start, said.length
    named = np.flatnonzero(plain & (length > 0))
    if len(named):
        column = with_long_names(run.names, blocks.flat, rows[named], start[named], length[named])
        if column is None:
            plain[named] = False
        else:
            run.names = column
    run.special[rows] |= ~plain


def _directories_apart(run: HeaderRun) -> HeaderRun:
    """``run``, in which files whose names end in a slash (V7 directories) are special."""
    ends, blob = run.names.offsets[1:], run.names.blob
    if not (blob == ord("/")).any():  # quicker than the steps below
        return run
    # For an empty name this is the last byte of another name, which can only make it special.
    if (slashed := blob[ends - 1] == ord("/")).any():
        run.special |= slashed & (run.kind == MemberKind.FILE)
    return run
