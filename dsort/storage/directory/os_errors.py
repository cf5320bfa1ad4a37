"""Translates ``OSError`` into ``StorageError``, with messages for the user."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from types import MappingProxyType, TracebackType

from dsort.errors import (
    NamesTakenError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from dsort.storage.bucket import Meaning

_FULL_HINT = "free some room there, or use a bucket on another file system"
_ACCESS_HINT = "check who owns it and its permissions"

_MEANINGS: Mapping[int, Meaning] = MappingProxyType(
    {
        errno.ENOSPC: Meaning(StorageFullError, "no room is left on its file system", _FULL_HINT),
        errno.EDQUOT: Meaning(StorageFullError, "the disk quota is used up", _FULL_HINT),
        errno.EACCES: Meaning(StorageAccessError, "permission denied", _ACCESS_HINT),
        errno.EPERM: Meaning(StorageAccessError, "operation not permitted", _ACCESS_HINT),
        errno.EROFS: Meaning(
            StorageAccessError,
            "its file system is mounted read-only",
            "mount it writable, or use another bucket",
        ),
        errno.ENOENT: Meaning(ObjectNotFoundError, "there is no such file"),
        errno.ENOTDIR: Meaning(ObjectNotFoundError, "a part of its path is not a directory"),
        errno.EEXIST: Meaning(NamesTakenError, "something else has that name"),
        errno.EISDIR: Meaning(NamesTakenError, "there is a directory of that name"),
        errno.EFBIG: Meaning(
            StorageError,
            "it would be larger than its file system or the process limit allows",
            "see ulimit -f, or ask for smaller shards",
        ),
        errno.EMFILE: Meaning(
            StorageError, "too many open files in this process", "raise the limit: ulimit -n"
        ),
        errno.ENFILE: Meaning(StorageError, "too many open files on this machine"),
        errno.ENAMETOOLONG: Meaning(StorageError, "the name is too long for its file system"),
        errno.EOPNOTSUPP: Meaning(StorageError, "its file system does not offer that"),
        errno.EXDEV: Meaning(
            StorageError,
            "it lies on another file system than the rest of the bucket",
            "make that directory a bucket of its own",
        ),
    }
)


def storage_error_of(
    error: OSError, action: str, bucket: str, *, needed_bytes: int | None = None
) -> StorageError:
    """The ``StorageError`` for ``error``.

    ``action`` completes "cannot ...", as in ``write a.tar``. ``bucket``: the URI of the bucket.
    ``needed_bytes``: the room that was needed, for the message about a full disk.
    """
    meaning = _MEANINGS.get(error.errno or 0)
    if meaning is None:
        reason = os.strerror(error.errno) if error.errno else str(error)
        meaning = Meaning(StorageError, reason)
    message = f"cannot {action} in bucket {bucket}: {meaning.reason}"
    if meaning.kind is StorageFullError and needed_bytes is not None:
        message += f"; {needed_bytes:,} bytes were needed"
    found = meaning.kind(message, hint=meaning.hint)
    if isinstance(found, StorageFullError):
        found.place = bucket
    return found


class StorageErrors:
    """A context that translates every ``OSError`` into ``StorageError``.

    Arguments as for :func:`storage_error_of`. Other exceptions are not changed. (Every write uses
    it, so it is a class and not a generator: a class costs only a third of a microsecond.)
    """

    __slots__ = ("_action", "_bucket", "_needed_bytes")

    def __init__(self, action: str, bucket: str, *, needed_bytes: int | None = None) -> None:
        self._action = action
        self._bucket = bucket
        self._needed_bytes = needed_bytes

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise storage_error_of(
                error, self._action, self._bucket, needed_bytes=self._needed_bytes
            ) from error
