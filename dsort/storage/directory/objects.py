"""Open files of a directory that is a bucket: one to read, one to fill."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence

from dsort.closing import Closing
from dsort.errors import InvariantError, ObjectNotFoundError, StorageError
from dsort.storage.bucket import Buffer, ObjectInfo
from dsort.storage.directory.linux import start_writeback
from dsort.storage.directory.listing import info_of, receipt_of
from dsort.storage.directory.os_errors import StorageErrors, storage_error_of

__all__ = ["LocalReadObject", "LocalStagedObject"]

_SLICES_PER_CALL_MAX = 1024  # IOV_MAX of Linux


class _OpenFile(Closing):
    """A file descriptor that is closed once, at the latest at the end of a ``with``."""

    __slots__ = ("_bucket", "_fd", "_name")

    def __init__(self, fd: int, name: str, bucket: str) -> None:
        self._fd = fd
        self._name = name
        self._bucket = bucket

    def close(self) -> None:
        """Release the file. Closing again is harmless."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _doing(self, verb: str) -> StorageErrors:
        return StorageErrors(f"{verb} {self._name}", self._bucket)

    def _fill(self, buffer: memoryview, offset: int) -> None:
        """Read from ``offset`` until ``buffer`` is full."""
        buffer = buffer.cast("B")
        done = 0
        with self._doing("read"):
            while done < len(buffer):
                got = os.preadv(self._fd, [buffer[done:]], offset + done)
                if not got:
                    raise StorageError(
                        f"{self._name} in bucket {self._bucket} ended at byte {offset + done:,}, "
                        f"{offset + len(buffer):,} expected"
                    )
                done += got


class LocalReadObject(_OpenFile):
    """A file open for reading (see :class:`~dsort.storage.bucket.ReadObject`)."""

    __slots__ = ("_is_streamed", "_view", "info")

    rereads_cheaply = True

    def __init__(self, fd: int, name: str, bucket: str) -> None:
        super().__init__(fd, name, bucket)
        self._view: memoryview | None = None
        self._is_streamed = False
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ObjectNotFoundError(f"{name} in bucket {bucket} is not a file")
        self.info: ObjectInfo = info_of(name, status)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``; ``StorageError`` if the file ends too soon."""
        if not self._is_streamed:
            # Measured from cold: 8 to 30 % faster. A mapping alone does not want it.
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self._is_streamed = True
        self._fill(buffer, offset)

    def forget(self) -> None:
        """Give the pages of the file back: under a memory limit they are in everybody's way."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def mapping(self) -> memoryview | None:
        """The whole file as a read-only view; None where the file system cannot map."""
        if self._view is None:
            if not self.info.size_bytes:
                return memoryview(b"")
            try:
                mapped = mmap.mmap(self._fd, self.info.size_bytes, prot=mmap.PROT_READ)
            except OSError:
                return None
            except ValueError:
                raise StorageError(
                    f"{self._name} in bucket {self._bucket} is shorter than the "
                    f"{self.info.size_bytes:,} bytes it had when it was opened"
                ) from None
            self._view = memoryview(mapped)
        return self._view

    def close(self) -> None:
        """Release the file. Views of its mapping that are still in use stay valid."""
        self._view = None  # the last view of it unmaps
        super().close()


class LocalStagedObject(_OpenFile):
    """A file that has no public name yet (see :class:`~dsort.storage.bucket.StagedObject`)."""

    __slots__ = ()

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        """Write ``slices`` (flat buffers of bytes) one after the other from byte ``offset`` on."""
        try:
            for first in range(0, len(slices), _SLICES_PER_CALL_MAX):
                batch = slices[first : first + _SLICES_PER_CALL_MAX]
                offset = self._write_batch(batch, offset)
        except OSError as error:
            raise storage_error_of(
                error,
                f"write {self._name}",
                self._bucket,
                needed_bytes=sum(map(len, slices)),
            ) from error

    def _write_batch(self, batch: Sequence[Buffer], offset: int) -> int:
        """Write ``batch`` whole; the offset behind it."""
        end = offset + sum(map(len, batch))
        offset += os.pwritev(self._fd, batch, offset)
        # Short at 2 GiB, by signals, and before the disk is full (then the next call says so).
        while offset < end:
            rest = _last_bytes(batch, end - offset)
            written = os.pwritev(self._fd, rest, offset)
            if not written:
                raise StorageError(
                    f"{self._name} in bucket {self._bucket} takes no more bytes at {offset:,}"
                )
            offset += written
        if offset > end:
            raise InvariantError("a slice to write is not a flat buffer of bytes")
        return offset

    def start_sync(self, offset: int, size_bytes: int) -> None:
        """Begin to write a range to the disk, without waiting for it."""
        start_writeback(self._fd, offset, size_bytes)

    def sync(self) -> None:
        """Return once what was written survives a power cut."""
        with self._doing("write to disk"):
            os.fdatasync(self._fd)

    def finish(self) -> str:
        """What of the file's etag is the same under another name."""
        return receipt_of(os.fstat(self._fd))

    def size_bytes(self) -> int:
        """How long the file is now."""
        return os.fstat(self._fd).st_size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset`` of what has been written."""
        self._fill(buffer, offset)


def _last_bytes(batch: Sequence[Buffer], count: int) -> list[Buffer]:
    """The last ``count`` > 0 bytes of ``batch``, as slices."""
    rest: list[Buffer] = []
    for piece in reversed(batch):
        if len(piece) >= count:
            rest.append(memoryview(piece)[len(piece) - count :])
            break
        rest.append(piece)
        count -= len(piece)
    rest.reverse()
    return rest
