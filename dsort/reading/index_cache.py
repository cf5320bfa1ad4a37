"""Record indexes that are kept on this machine, so that the headers of a shard are read once.

Each shard has a file, named by a hash of its place, size and etag, so that a changed shard has
another file. Files that cannot be read or written are ignored: this is only a cache.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

import xxhash

from dsort.errors import StorageError
from dsort.reading.record_index import RecordIndex
from dsort.storage.bucket import ObjectInfo

__all__ = ["IndexCache", "default_cache"]

INDEX_BYTES_MAX: Final = 1 << 30
FILE_BYTES: Final = 64
"""About the memory that it takes to write one file of a shard into an index."""
COUNTED_BYTES_MIN: Final = 64 << 10
"""Each index file counts at least this much against ``bytes_max``, so that there are few files to
look through."""


def default_cache() -> Path:
    """The default directory of indexes: ``$XDG_CACHE_HOME/dsort/indexes``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if base.startswith("/") else Path.home() / ".cache") / "dsort" / "indexes"


class IndexCache:
    """Indexes by shard. ``directory``: None to keep none. ``bytes_max``: the limit for all of them
    together, for which the least recently used are deleted; None: no limit."""

    def __init__(self, directory: Path | None, *, bytes_max: int | None = None) -> None:
        self._directory = directory
        self._bytes_max = bytes_max

    @property
    def is_on(self) -> bool:
        """Whether indexes are kept."""
        return self._directory is not None

    def find(self, bucket_uri: str, info: ObjectInfo) -> RecordIndex | None:
        """The index of the shard ``info``; None if none is kept."""
        path = self._path(bucket_uri, info)
        if path is None:
            return None
        with contextlib.suppress(OSError, StorageError, ValueError):
            with path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes > INDEX_BYTES_MAX:
                    return None
                data = file.read(size_bytes)  # Python allocates as many bytes as it may read
            if self._bytes_max is not None:
                os.utime(path)
            return RecordIndex.from_bytes(data, str(path), info.size_bytes)
        return None

    def keep(self, bucket_uri: str, info: ObjectInfo, index: RecordIndex) -> None:
        """Keep the index of the shard ``info``. Its file is complete from the moment it exists."""
        path = self._path(bucket_uri, info)
        if path is None:
            return
        most = INDEX_BYTES_MAX if self._bytes_max is None else self._bytes_max // 2
        if len(index.size) * FILE_BYTES > most:  # an estimate: the exact size takes that memory
            return
        data = index.to_bytes()
        if self._bytes_max is not None and len(data) > self._bytes_max // 2:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
            try:
                with open(fd, "wb") as file:
                    file.write(data)
                os.replace(part, path)  # noqa: PTH105
            except BaseException:
                os.unlink(part)  # noqa: PTH108
                raise
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if self._directory is None or self._bytes_max is None:
            return
        found = []
        for path in self._directory.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):  # another process may delete it meanwhile
                status = path.stat()
                found.append((status.st_mtime_ns, max(status.st_size, COUNTED_BYTES_MIN), path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left <= self._bytes_max:
                return
            path.unlink(missing_ok=True)
            left -= size

    def _path(self, bucket_uri: str, info: ObjectInfo) -> Path | None:
        if self._directory is None or not info.etag:
            return None
        text = f"{bucket_uri}\0{info.name}\0{info.size_bytes}\0{info.etag}"
        name = xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogateescape"))
        return self._directory / name[:2] / f"{name}.col"
