"""A bucket in a store that obstore speaks with: Google's, Microsoft's, a web server."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import obstore

from dsort.closing import Closing
from dsort.errors import (
    InvariantError,
    NamesTakenError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from dsort.storage.bucket import COPY, Buffer
from dsort.storage.limits import StoreLimits
from dsort.storage.object_bucket import ObjectBucket, check_copy, checked, checked_token
from dsort.storage.object_errors import PreconditionError
from dsort.storage.obstore_client import ObstoreClient, open_store
from dsort.storage.ref import BucketRef

if TYPE_CHECKING:
    from obstore import WritableFile

__all__ = ["ObstoreBucket"]

_GATHERED_BYTES = 1 << 20  # slices may be small, and each call of obstore's costs
_NO_RANGES = 1 << 62


class ObstoreBucket(ObjectBucket):
    """Objects of a store (see :class:`~dsort.storage.bucket.Bucket`).

    A staged object is an object that has its token for a name; ``publish`` has the store copy it.
    """

    def __init__(
        self, client: ObstoreClient, limits: StoreLimits, *, ref: BucketRef | None = None
    ) -> None:
        super().__init__(client.uri, client, limits)
        self._client = client
        self._ref = ref

    @classmethod
    def of(cls, ref: BucketRef, limits: StoreLimits) -> ObstoreBucket:
        """The bucket of a ``gs``, ``az``, ``http`` or ``https`` reference."""
        is_web = ref.scheme in ("http", "https")
        if is_web:  # its path is a part of the store's URL; and many servers know no ranges
            limits = replace(limits, range_bytes=_NO_RANGES)
        prefix = "" if is_web else ref.path.partition("/")[2]
        client = ObstoreClient(
            open_store(ref, limits), uri=ref.uri, scheme=ref.scheme, prefix=prefix
        )
        return cls(client, limits, ref=ref)

    def __reduce__(self) -> tuple[object, ...]:
        if self._ref is None:
            raise InvariantError(f"{self!r} cannot be opened anew elsewhere")
        return (ObstoreBucket.of, (self._ref, self._limits))

    def stage(
        self, token: str, *, name: str = "", size_bytes: int | None = None
    ) -> ObstoreStagedObject:
        """Prepare to store ``token``: nothing happens before there are bytes."""
        checked_token(token)
        self._client.need_writable(f"write {name or token}")
        return ObstoreStagedObject(self._client, token, self._limits)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        """Copy a staged object to ``name``, inside the store, and remove it.

        Without ``overwrite`` an existing ``name`` is a ``StorageError``, unless it has the staged
        object's size and is no older: then an earlier call has made it, and did not come to the
        end.
        """
        checked_token(token)
        checked(name)
        client = self._client
        if not receipt:
            raise ObjectNotFoundError(f"nothing was staged as {token} in bucket {self.uri}")
        size_bytes, stored_ns = _parsed(receipt)
        try:
            with client.doing(f"publish {name}"):
                obstore.copy(client.store, client.key(token), client.key(name), overwrite=overwrite)
        except (PreconditionError, ObjectNotFoundError) as error:
            is_gone = isinstance(error, ObjectNotFoundError)
            info = self._head_or_none(name)
            if isinstance(info, TransientStorageError):
                raise info from None
            if info is None and is_gone:
                raise
            if info is None or info.size_bytes != size_bytes or info.mtime_ns < stored_ns:
                raise NamesTakenError(
                    f"{name} in bucket {self.uri} exists already", hint="remove it or rename it"
                ) from None
        copied = self.stat(name).size_bytes
        if copied != size_bytes:
            raise StorageError(
                f"{name} in bucket {self.uri} has {copied:,} bytes after {size_bytes:,} were "
                "stored",
                hint="the store lost some, or somebody else wrote to it; remove it",
            )
        self.delete(token)

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The objects that are as long as they were when they were finished, under either name."""
        places = {place for token, (name, _) in tokens.items() for place in (token, name)}
        infos = self.stat_many(places)
        found = set()
        for token, (name, receipt) in tokens.items():
            size_bytes, stored_ns = _parsed(receipt) if receipt else (-1, 0)
            for info in (infos.get(token), infos.get(name)):
                if info and info.size_bytes == size_bytes and info.mtime_ns >= stored_ns:
                    found.add(token)
        return found

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The objects that have their names, as long as they were when they were finished."""
        infos = self.stat_many({name for name, _ in tokens.values()})
        found = set()
        for token, (name, receipt) in tokens.items():
            size_bytes, stored_ns = _parsed(receipt) if receipt else (-1, 0)
            info = infos.get(name)
            if info and info.size_bytes == size_bytes and info.mtime_ns >= stored_ns:
                found.add(token)
        return found

    def keep_aside(self, name: str, token: str) -> str:
        """Have the store copy ``name`` to ``token``; "" if there is no such object."""
        checked_token(token)
        info = self._head_or_none(checked(name))
        if isinstance(info, TransientStorageError):
            raise info
        if info is None:
            return ""
        self._copy(name, token, info.size_bytes, f"keep {name} while it is replaced")
        return COPY

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        """Have the store copy ``token`` to ``name``, and remove ``token``."""
        checked_token(token)
        self._copy(token, checked(name), self.stat(token).size_bytes, f"put back {name}")
        self.delete(token)

    def _copy(self, source: str, target: str, size_bytes: int, action: str) -> None:
        client = self._client
        with client.doing(action):
            obstore.copy(client.store, client.key(source), client.key(target), overwrite=True)
        check_copy(self.stat(target), size_bytes, self.uri)

    def discard(self, token_prefix: str, *, names: Collection[str] = ()) -> None:
        """Remove dsort's own objects under ``token_prefix``. (What was begun and never stored, the
        stores themselves remove, in days.)"""
        self._delete_internal(token_prefix)


class ObstoreStagedObject(Closing):
    """An object on its way to the store (see :class:`~dsort.storage.bucket.StagedObject`)."""

    def __init__(self, client: ObstoreClient, token: str, limits: StoreLimits) -> None:
        self._client = client
        self._token = token
        self._limits = limits
        self._writer: WritableFile | None = None
        self._buffer = bytearray()
        self._size_bytes = 0
        self._receipt = ""

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        """Take ``slices``. ``offset`` is where the last write ended."""
        if offset != self._size_bytes or self._receipt:
            raise InvariantError(
                f"{self._token} is written at byte {offset}; {self._size_bytes} bytes are there"
            )
        for piece in slices:
            self._buffer += piece
            self._size_bytes += len(piece)
            if len(self._buffer) >= _GATHERED_BYTES:
                self._flush()

    def start_sync(self, offset: int, size_bytes: int) -> None:
        """Parts are sent as they get full."""

    def sync(self) -> None:
        """``finish`` stores all."""

    def finish(self) -> str:
        """Store the rest: then the object is whole, under its token."""
        if not self._receipt:
            self._flush()
            assert self._writer is not None
            with self._client.doing(f"write {self._token}"):
                self._writer.close()
            info = self._client.head(self._token)
            if info.size_bytes != self._size_bytes:
                raise StorageError(
                    f"{self._token} in bucket {self._client.uri} has {info.size_bytes:,} bytes "
                    f"after {self._size_bytes:,} were stored"
                )
            self._receipt = json.dumps({"size_bytes": info.size_bytes, "stored_ns": info.mtime_ns})
        return self._receipt

    def size_bytes(self) -> int:
        """How much was written."""
        return self._size_bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Not before it is published."""
        raise InvariantError(f"{self._token} is read before it is published")

    def close(self) -> None:
        """Release it. What was not finished is never stored."""
        self._writer = None

    def _flush(self) -> None:
        with self._client.doing(f"write {self._token}"):
            if self._writer is None:
                self._writer = obstore.open_writer(
                    self._client.store,
                    self._client.key(self._token),
                    buffer_size=self._limits.part_bytes,
                    max_concurrency=self._limits.parts_in_flight_max,
                )
            if self._buffer:
                self._writer.write(self._buffer)
        self._buffer = bytearray()  # obstore may still look at the other one


def _parsed(receipt: str) -> tuple[int, int]:
    try:
        fields = json.loads(receipt)
        size_bytes, stored_ns = fields["size_bytes"], fields["stored_ns"]
        if type(size_bytes) is not int or type(stored_ns) is not int:
            raise TypeError("a number is none")
        return size_bytes, stored_ns
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(f"not a receipt: {receipt[:100]!r}") from error
