"""Buckets whose objects are made of others while they are read: :class:`MadeBucket`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from dsort.errors import InvariantError, ObjectNotFoundError
from dsort.storage.bucket import ObjectInfo, ReadObject


class MadeBucket:
    """A bucket that is only read, and whose objects are no files. See
    :class:`~dsort.storage.bucket.Bucket`."""

    uri: str
    seals_on_finish = True

    @property
    def are_files(self) -> bool:
        """Whether the bytes of its objects are in local files."""
        return False

    def exists(self) -> bool:
        return True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        raise NotImplementedError

    def stat(self, name: str) -> ObjectInfo:
        raise NotImplementedError

    def open(self, name: str) -> ReadObject:
        raise NotImplementedError

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        found = {}
        for name in names:
            try:
                found[name] = self.stat(name)
            except ObjectNotFoundError:
                continue
        return found

    def read(self, name: str) -> bytes:
        with self.open(name) as opened:
            data = bytearray(opened.info.size_bytes)
            opened.read_into(memoryview(data), 0)
            return bytes(data)

    def local_path(self, name: str) -> Path | None:
        """None: no object is a file."""
        return None

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        return None

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set()

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set()

    def free_bytes(self) -> int | None:
        return None

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvariantError(f"{self.uri} is written, which is only read")

    create = write = write_new = write_over = delete = stage = publish = _refuse
    keep_aside = put_back = make_durable = discard = _refuse
