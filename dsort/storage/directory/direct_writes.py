"""Writes of one file from its first byte to its last, past the page cache.

What is written once and not read through the page cache needs no pages: to take them, to copy into
them and to give them back costs more than the write. ``O_DIRECT`` wants whole blocks of the file
and, of memory, whole sectors: headers and payloads of a tar are that, wherever they lie in blocks
that were read directly. So what does not fill the last block is kept for the next write.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence

from dsort.closing import ClosesOnExit
from dsort.storage.bucket import StagedObject
from dsort.storage.directory.files import LocalStagedObject
from dsort.storage.directory.random_reads import ALIGNMENT_BYTES

__all__ = ["DirectWrites", "direct_writes"]

_SLICES_PER_CALL_MAX = 1023  # IOV_MAX of Linux, and one for what was kept


class DirectWrites(ClosesOnExit):
    """A staged file, open once more, that is written in order."""

    def __init__(self, fd: int) -> None:
        """``fd``: the file, open for direct writes; closed with this one."""
        self._fd = fd
        self._kept = memoryview(mmap.mmap(-1, ALIGNMENT_BYTES))  # begins where a page does
        self._kept_bytes = 0
        self.written_bytes = 0
        """So much of the file is written: whole blocks."""

    @property
    def kept(self) -> memoryview:
        """What was taken and is not written yet: it does not fill a block."""
        return self._kept[: self._kept_bytes]

    def write(self, slices: Sequence[memoryview]) -> int:
        """Write on as far as blocks are filled; how many slices were taken. Fewer than there are:
        this file system, or the disk, does not take them so, and somebody has to write ``kept`` and
        the others as usual."""
        for first in range(0, len(slices), _SLICES_PER_CALL_MAX):
            if not self._write_some(slices[first : first + _SLICES_PER_CALL_MAX]):
                return first
        return len(slices)

    def fill_block(self) -> bool:
        """Fill up with zeros what does not fill a block, and write that. False: it is not taken,
        and ``kept`` is a whole block."""
        self._keep(memoryview(bytes(ALIGNMENT_BYTES - self._kept_bytes)))
        return self._write_some(())

    def leave(self, file: StagedObject, slices: Sequence[memoryview] = ()) -> None:
        """Close it. What is kept, and ``slices`` behind that, goes to ``file`` as usual."""
        with self:
            left = [self.kept, *slices]
            if any(map(len, left)):
                file.write_at(self.written_bytes, left)

    def _write_some(self, slices: Sequence[memoryview]) -> bool:
        total = self._kept_bytes + sum(map(len, slices))
        rest = total % ALIGNMENT_BYTES
        if rest == total:
            for piece in slices:
                self._keep(piece)
            return True
        whole, ends = _parted(slices, rest)
        if self._kept_bytes:
            whole.insert(0, self.kept)
        try:
            if os.pwritev(self._fd, whole, self.written_bytes) != total - rest:
                return False  # a full disk, say: whoever writes it again is told
        except OSError:
            return False
        self.written_bytes += total - rest
        self._kept_bytes = 0
        for piece in ends:
            self._keep(piece)
        return True

    def _keep(self, piece: memoryview) -> None:
        end = self._kept_bytes + len(piece)
        self._kept[self._kept_bytes : end] = piece
        self._kept_bytes = end

    def close(self) -> None:
        """Release it. Closing again is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _parted(slices: Sequence[memoryview], rest: int) -> tuple[list[memoryview], list[memoryview]]:
    """(``slices`` without their last ``rest`` bytes, these)."""
    whole, ends = list(slices), []
    while rest:
        last = whole.pop()
        if len(last) > rest:
            whole.append(last[: len(last) - rest])
            last = last[len(last) - rest :]
        ends.append(last)
        rest -= len(last)
    return whole, ends[::-1]


def direct_writes(staged: object) -> DirectWrites | None:
    """Direct writes of a staged file; None where there are none, and for what is no file."""
    if isinstance(staged, LocalStagedObject):
        with contextlib.suppress(OSError):
            return DirectWrites(staged.open_again(os.O_WRONLY | os.O_DIRECT))
    return None
