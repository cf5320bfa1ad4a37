"""Writes of one file from its first byte to its last, past the page cache.

For bytes that are written only once, cached pages cost more than the write itself. ``O_DIRECT``
requires whole blocks of the file and whole sectors of memory. Headers and payloads of a tar are
whole sectors; bytes that do not fill the last block wait for the next write.
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

_SLICES_PER_CALL_MAX = 1023  # IOV_MAX of Linux, less one for the kept bytes


class DirectWrites(ClosesOnExit):
    """A second descriptor of a staged file, which is written in order."""

    def __init__(self, fd: int) -> None:
        """``fd``: the file, open for direct writes; closed with this object."""
        self._fd = fd
        self._kept = memoryview(mmap.mmap(-1, ALIGNMENT_BYTES))  # mmap begins at a page boundary
        self._kept_bytes = 0
        self.written_bytes = 0
        """The number of bytes in the file: whole blocks."""

    @property
    def kept(self) -> memoryview:
        """The bytes that were taken and not written yet, because they do not fill a block."""
        return self._kept[: self._kept_bytes]

    def write(self, slices: Sequence[memoryview]) -> int:
        """Write all whole blocks. Returns how many slices were taken. If some slices were not
        taken, the file system or the disk refuses direct writes; then the caller writes ``kept``
        and these slices in the usual way."""
        for first in range(0, len(slices), _SLICES_PER_CALL_MAX):
            if not self._write_some(slices[first : first + _SLICES_PER_CALL_MAX]):
                return first
        return len(slices)

    def fill_block(self) -> bool:
        """Fill up the last block with zeros, and write it. Return False if the write was refused;
        then ``kept`` is a whole block."""
        self._keep(memoryview(bytes(ALIGNMENT_BYTES - self._kept_bytes)))
        return self._write_some(())

    def leave(self, file: StagedObject, slices: Sequence[memoryview] = ()) -> None:
        """Write the kept bytes, and ``slices`` after them, to ``file`` in the usual way; then close
        this object."""
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
                return False  # for example on a full disk: the usual write reports the error
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
        """Release it. Closing again has no effect."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _parted(slices: Sequence[memoryview], rest: int) -> tuple[list[memoryview], list[memoryview]]:
    """(``slices`` without their last ``rest`` bytes, these last bytes as slices)."""
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
    """Direct writes of a staged file; None where they are not supported, and for objects that are
    no files."""
    if isinstance(staged, LocalStagedObject):
        with contextlib.suppress(OSError):
            return DirectWrites(staged.open_again(os.O_WRONLY | os.O_DIRECT))
    return None
