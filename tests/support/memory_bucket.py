"""A bucket in the memory of this process, for tests of code that works on buckets."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from dsort.closing import ClosesOnExit
from dsort.errors import (
    InvariantError,
    NamesTakenError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
)
from dsort.storage.bucket import (
    COPY,
    INTERNAL_PREFIX,
    Buffer,
    ObjectInfo,
    encoded_name,
    encoded_prefix,
    encoded_token,
)


class _Memory(ClosesOnExit):
    """The common base of readers and staged objects."""

    def __init__(self, name: str, bucket: str) -> None:
        self._name = name
        self._bucket = bucket

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _copy(self, data: bytes | bytearray, buffer: memoryview, offset: int) -> None:
        buffer = buffer.cast("B")
        piece = data[offset : offset + len(buffer)]
        if len(piece) < len(buffer):
            raise StorageError(
                f"{self._name} in bucket {self._bucket} ended at byte {len(data):,}; "
                f"{offset + len(buffer):,} bytes were expected"
            )
        buffer[:] = piece


class MemoryReadObject(_Memory):
    """Bytes as an object opened for reading; see :class:`~dsort.storage.bucket.ReadObject`."""

    rereads_cheaply = True

    def __init__(self, info: ObjectInfo, data: bytes, bucket: str) -> None:
        super().__init__(info.name, bucket)
        self.info: ObjectInfo = info
        self._data = data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._copy(self._data, buffer, offset)

    def forget(self) -> None:
        """Do nothing: there is no page cache."""

    def mapping(self) -> memoryview | None:
        return memoryview(self._data)

    def random_reads(self) -> None:
        return None


class MemoryStagedObject(_Memory):
    def __init__(self, token: str, data: bytearray, bucket: MemoryBucket) -> None:
        super().__init__(token, bucket.uri)
        self._data = data
        self._owner = bucket

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        joined = b"".join(slices)
        if joined:
            self._owner.need_room(max(0, offset + len(joined) - len(self._data)), self._name)
            self._data.extend(bytes(max(0, offset - len(self._data))))
            self._data[offset : offset + len(joined)] = joined

    def start_sync(self, offset: int, size_bytes: int) -> None:
        """Do nothing: there is no disk."""

    def sync(self) -> None:
        """Do nothing: memory never survives a power cut."""

    def finish(self) -> str:
        """Return an empty receipt: memory needs none."""
        return ""

    def size_bytes(self) -> int:
        return len(self._data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._copy(self._data, buffer, offset)


class MemoryBucket:
    """Objects in a dict (see :class:`~dsort.storage.bucket.Bucket`), for one process. Only
    ``write_new`` may be called by several threads at once.

    ``room_bytes``: how many bytes fit into the bucket (None: no limit). The bucket exists from the
    start unless ``exists=False``; as with directories, nothing can be stored before ``create``.
    """

    seals_on_finish = False

    def __init__(
        self,
        uri: str = "memory://test",
        *,
        room_bytes: int | None = None,
        exists: bool = True,
    ) -> None:
        self.uri: str = uri
        self._room_bytes = room_bytes
        self._exists = exists
        self._objects: dict[bytes, tuple[ObjectInfo, bytes]] = {}
        self._staged: dict[bytes, bytearray] = {}
        self._published: dict[bytes, bytes] = {}
        self._versions = itertools.count(1)
        self._lock = threading.RLock()

    def exists(self) -> bool:
        return self._exists

    def create(self) -> None:
        self._exists = True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose names begin with ``prefix``, in byte order; staged ones count."""
        wanted = encoded_prefix(prefix)
        internal = INTERNAL_PREFIX.encode()
        self._need_bucket()
        # The list is copied first: a test may store more objects while it lists.
        known = {name: info for name, (info, _) in list(self._objects.items())}
        for token, data in self._staged.items():
            known[token] = ObjectInfo(token.decode(), len(data), 0, "")
        for name in sorted(known):
            if name.startswith(wanted) and (
                wanted.startswith(internal) or not name.startswith(internal)
            ):
                yield known[name]

    def stat(self, name: str) -> ObjectInfo:
        return self._get(name)[0]

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        encoded = {name: encoded_name(name) for name in names}
        return {name: self._get(name)[0] for name, at in encoded.items() if at in self._objects}

    def open(self, name: str) -> MemoryReadObject:
        return MemoryReadObject(*self._get(name), self.uri)

    def pinned(self, info: ObjectInfo) -> None:
        """None: reads of memory need no pinned object."""

    def read(self, name: str) -> bytes:
        return self._get(name)[1]

    def write(self, name: str, data: bytes) -> None:
        encoded = encoded_name(name)
        self._need_bucket()
        self.need_room(len(data), name)
        self._put(encoded, bytes(data))

    def write_new(self, name: str, data: bytes) -> bool:
        encoded = encoded_name(name)
        self._need_bucket()
        with self._lock:
            if encoded in self._objects:
                return False
            self.write(name, data)
        return True

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        with self._lock:
            if name not in self.stat_many([name]) or self.stat(name).etag != etag:
                return False
            self.write(name, data)
        return True

    def delete(self, name: str) -> None:
        self._objects.pop(encoded_name(name), None)

    def stage(
        self, token: str, *, name: str = "", size_bytes: int | None = None
    ) -> MemoryStagedObject:
        encoded = encoded_token(token)
        self._need_bucket()
        self.need_room(size_bytes or 0, token)
        return MemoryStagedObject(token, self._staged.setdefault(encoded, bytearray()), self)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        source, target = encoded_token(token), encoded_name(name)
        if source not in self._staged and self._published.get(source) == target:
            return  # an earlier call has published it, and its reply was lost
        if source not in self._staged:
            raise ObjectNotFoundError(f"there is no {token} in bucket {self.uri}")
        if target in self._objects and not overwrite:
            raise NamesTakenError(f"{name} in bucket {self.uri} exists already")
        self._put(target, bytes(self._staged.pop(source)))
        self._published[source] = target

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return {token for token in tokens if encoded_token(token) in self._staged}

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return {
            token
            for token, (name, _) in tokens.items()
            if encoded_token(token) not in self._staged
            and self._published.get(encoded_token(token)) == encoded_name(name)
        }

    def keep_aside(self, name: str, token: str) -> str:
        encoded = encoded_token(token)
        held = self._objects.get(encoded_name(name))
        if held is None:
            return ""
        self.need_room(len(held[1]), token)
        self._put(encoded, held[1])
        return COPY

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        kept = self._get(token)[1]
        self._put(encoded_name(name), kept)
        del self._objects[encoded_token(token)]
        # The object that had replaced it is gone, and no longer counts as published.
        replaced = [token for token, at in self._published.items() if at == encoded_name(name)]
        for each in replaced:
            del self._published[each]

    def make_durable(self) -> None:
        """Do nothing: memory never survives a power cut."""

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        for prefix in token_prefixes:
            if not prefix.startswith(INTERNAL_PREFIX):
                raise InvariantError(f"discard of {prefix!r}, not under {INTERNAL_PREFIX}")
        wanted = tuple(map(encoded_prefix, token_prefixes))
        for held in (self._objects, self._staged):
            for name in [name for name in held if name.startswith(wanted)]:
                del held[name]

    def free_bytes(self) -> int | None:
        if self._room_bytes is None:
            return None
        used = sum(len(data) for _, data in self._objects.values())
        return self._room_bytes - used - sum(map(len, self._staged.values()))

    def local_path(self, name: str) -> Path | None:
        encoded_name(name)
        return None

    def need_room(self, size_bytes: int, name: str) -> None:
        """``StorageFullError`` if ``size_bytes`` more do not fit into the bucket."""
        free = self.free_bytes()
        if free is not None and size_bytes > free:
            raise StorageFullError(
                f"cannot write {name} in bucket {self.uri}: no room is left; "
                f"{size_bytes:,} bytes were needed"
            )

    def _need_bucket(self) -> None:
        if not self._exists:
            raise ObjectNotFoundError(f"there is no bucket {self.uri}")

    def _get(self, name: str) -> tuple[ObjectInfo, bytes]:
        try:
            return self._objects[encoded_name(name)]
        except KeyError:
            raise ObjectNotFoundError(f"there is no {name} in bucket {self.uri}") from None

    def _put(self, encoded: bytes, data: bytes) -> None:
        version = next(self._versions)
        name = encoded.decode("utf-8", "surrogateescape")
        self._objects[encoded] = (ObjectInfo(name, len(data), version, f"v{version}"), data)
