"""Many plain tar headers at once, as columns.

Two ways to find headers, one way to read them. Small members: every 512-byte block is looked at
for the magic (about 8 ns a block). Large ones: a plain loop hops from header to header (0.35 µs a
header) without judging them. Either way what was found are *candidates*: a data block may look
like a header (a tar inside a tar), and a hop may land anywhere. ``read_headers`` then takes the
longest run from the first candidate on in which each is a header whose checksum holds, in plain
form, and ends where the next begins. Whoever calls it deals with the rest, one member at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from dsort.containers.tar.extensions import gnu_names, pax_names, with_long_names
from dsort.containers.tar.fields import names, plain_numbers, sizes, suspect_prefixes
from dsort.containers.tar.headers import BLOCK_BYTES
from dsort.data.columns import Bools, BytesColumn, Int64s, UInt8s, UInt64s
from dsort.data.members import MemberKind

__all__ = ["Blocks", "HeaderRun", "find_by_hopping", "find_by_magic", "read_headers"]

_WORDS = BLOCK_BYTES // 8
_MAGIC_WORD = 32  # byte 256: the end of the link target, then the magic
_MAGIC = np.uint64(int.from_bytes(b"ustar", "little"))
_SIZE_UNPACK = struct.Struct("11s").unpack_from

# Codes next to MemberKind, of which FILE is 0 and HARDLINK the last. An extension (pax or long
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
    """Whole 512-byte blocks of a shard, one after the other; ``count`` of them, nothing copied.

    ``scratch`` has room for the headers of one run, shape ``(n, 64)``: a megabyte that is fresh
    for every run would cost more in page faults than in copying.
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
        # "clip" writes straight to ``out``; the blocks are all there.
        self._rows.take(at, out=copied.view(f"V{BLOCK_BYTES}")[:, 0], mode="clip")
        return copied


@dataclass(slots=True)
class HeaderRun:
    """Members whose headers were read together; columns of shape ``(n,)``, in blocks or bytes.

    Of rows that are ``special`` only the extent is right: the rest needs the book.
    """

    names: BytesColumn
    kind: UInt8s
    start: Int64s  # block of the member's first header
    main: Int64s  # block of its main header
    after: Int64s  # block after its padding
    payload_bytes: Int64s
    special: Bools


def find_by_magic(blocks: Blocks, first: int, stop: int) -> Int64s:
    """The blocks from ``first`` to before ``stop`` that hold the magic of a header."""
    words = blocks.words[first:stop, _MAGIC_WORD]
    # Shifts drop the last byte of the link target, and what follows "ustar".
    found = np.flatnonzero((words << np.uint64(16)) >> np.uint64(24) == _MAGIC)
    return found + first


def find_by_hopping(blocks: Blocks, first: int, count_max: int) -> Int64s:
    """The blocks of up to ``count_max`` headers, each where the one before it says it ends."""
    view, at, last = blocks.view, first * BLOCK_BYTES, (blocks.count - 1) * BLOCK_BYTES
    found: list[int] = []
    try:
        for _ in range(count_max):
            if at > last:
                break
            found.append(at)
            (digits,) = _SIZE_UNPACK(view, at + 124)
            at += (int(digits, 8) + 2 * BLOCK_BYTES - 1) & -BLOCK_BYTES
    except (ValueError, struct.error):
        pass  # no plain size: the last one found is none, which ``read_headers`` sees
    return np.array(found, np.int64) // BLOCK_BYTES


def read_headers(blocks: Blocks, found: Int64s, blocks_max: int) -> HeaderRun | None:
    """The members whose headers are the first of ``found``, as far as they are plain.

    ``blocks_max`` is where the shard ends, counted as ``found`` is. None if there is no member.
    """
    words = blocks.copies(found)
    raw: UInt8s = words.view(np.uint8)
    code: UInt8s = _CODES.take(raw[:, 156])
    odd = bool(code.any())
    size_bytes, plain = sizes(words)
    apart = ~plain_numbers(words)
    if (suspect := suspect_prefixes(raw)) is not None:
        apart |= suspect
    if odd:
        size_bytes[(code > 0) & (code <= MemberKind.HARDLINK)] = 0
        plain &= code != _OTHER
    after = found + 1 + ((size_bytes + (BLOCK_BYTES - 1)) >> 9)
    plain &= after <= blocks_max
    plain[1:] &= after[:-1] == found[1:]
    count = len(plain) if plain.all() else int(plain.argmin())
    if odd:
        run = _grouped(blocks, raw[:count], code[:count], found[:count], size_bytes, after)
        if run is not None and apart[:count].any():
            of_member = np.searchsorted(run.main, found[:count][apart[:count]])
            run.special[of_member[of_member < len(run.special)]] = True
        return run
    if count == 0:
        return None
    run = HeaderRun(
        names(raw[:count]),
        code[:count],
        found[:count],
        found[:count],
        after[:count],
        size_bytes[:count],
        apart[:count],
    )
    return _directories_apart(run)


def _grouped(
    blocks: Blocks, raw: UInt8s, code: UInt8s, found: Int64s, size_bytes: Int64s, after: Int64s
) -> HeaderRun | None:
    """The same where not every header is a file's: extensions go to the member after them."""
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
    """Apply the one extension header that each of ``rows`` has; special where it is not plain."""
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
    """``run`` with files whose names end in a slash marked special: V7 directories."""
    ends, blob = run.names.offsets[1:], run.names.blob
    # An empty name has the last byte of another's, which makes it special at worst.
    if len(blob) and (slashed := blob[ends - 1] == ord("/")).any():
        run.special |= slashed & (run.kind == MemberKind.FILE)
    return run
