"""The writing half of a bucket that is only read: :class:`OnlyRead`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, NoReturn

from dsort.errors import InvariantError
from dsort.storage.bucket import ObjectInfo, ReadObject, StagedObject

__all__ = ["OnlyRead"]


class OnlyRead:
    """The writing operations of a ``Bucket`` that is only read. It has no staged objects; all other
    operations raise ``InvariantError``. ``words``: its content, for that message."""

    words: ClassVar[str]
    seals_on_finish = True

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        return None

    def create(self) -> NoReturn:
        self._refuse("create")

    def write(self, name: str, data: bytes) -> NoReturn:
        self._refuse("write")

    def write_new(self, name: str, data: bytes) -> NoReturn:
        self._refuse("write_new")

    def write_over(self, name: str, data: bytes, etag: str) -> NoReturn:
        self._refuse("write_over")

    def delete(self, name: str) -> NoReturn:
        self._refuse("delete")

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        self._refuse("stage")

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> NoReturn:
        self._refuse("publish")

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set()

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set()

    def keep_aside(self, name: str, token: str) -> NoReturn:
        self._refuse("keep_aside")

    def put_back(self, token: str, name: str, *, receipt: str) -> NoReturn:
        self._refuse("put_back")

    def make_durable(self) -> NoReturn:
        self._refuse("make_durable")

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> NoReturn:
        self._refuse("discard")

    def free_bytes(self) -> int | None:
        return None

    def _refuse(self, operation: str) -> NoReturn:
        raise InvariantError(f"{operation} in {self.words}, which are only read")
