"""A bucket without payload: it lists shards that do not exist, and counts requests.

It behaves as an object store: it has no local paths, and a staged object is sealed when it is
finished. Small objects (specs, leases, reports) are kept, because their writers may read them
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from dsort.errors import InvariantError, ObjectNotFoundError
from dsort.storage.bucket import INTERNAL_PREFIX, Buffer, ObjectInfo, ReadObject
from tests.support.memory_bucket import MemoryBucket, MemoryReadObject, MemoryStagedObject

LIST_PAGE = 1000
"""The number of objects in a page of a listing, in S3 and stores like it."""
KEPT_BYTES_MAX = 64 * 1024


class _NullStaged(MemoryStagedObject):
    """A staged object that counts the bytes written to it, and keeps none."""

    def __init__(self, bucket: NullBucket, token: str) -> None:
        super().__init__(token, bytearray(), bucket)
        self._nowhere = bucket
        self._size_bytes = 0

    def write_at(self, offset: int, slices: Sequence[Buffer]) -> None:
        if offset != self._size_bytes:
            raise InvariantError(f"{self._name} is written with a gap")
        self._size_bytes += sum(map(len, slices))

    def finish(self) -> str:
        self._nowhere.requests["put"] += 1
        self._nowhere.bytes_written += self._size_bytes
        return "receipt"

    def size_bytes(self) -> int:
        return self._size_bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        raise InvariantError("a staged object cannot be read")


class NullBucket(MemoryBucket):
    """``shards`` objects of ``shard_bytes`` each, named ``shard-0000000.tar`` and so on.

    ``requests`` counts the requests that this process would have sent to an object store, by kind:
    ``list`` (pages), ``head``, ``put``, ``complete`` (of an upload), ``delete``.
    """

    seals_on_finish = True

    def __init__(self, uri: str, *, shards: int = 0, shard_bytes: int = 0) -> None:
        super().__init__(uri)
        self.requests: Counter[str] = Counter()
        self.bytes_written = 0
        self._shards = shards
        self._shard_bytes = shard_bytes
        self._kept: dict[str, bytes] = {}

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        if prefix.startswith(INTERNAL_PREFIX):
            self.requests["list"] += 1
            for name in sorted(self._kept):
                if name.startswith(prefix):
                    yield self._info(name, len(self._kept[name]))
            return
        for number in range(self._shards):
            if number % LIST_PAGE == 0:
                self.requests["list"] += 1
            yield self._info(self._name(number), self._shard_bytes)

    def stat(self, name: str) -> ObjectInfo:
        self.requests["head"] += 1
        return self._look(name)

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        self.requests["list"] += -(-max(len(names), self._shards) // LIST_PAGE)
        found = {}
        for name in names:
            try:
                found[name] = self._look(name)
            except ObjectNotFoundError:
                continue
        return found

    def open(self, name: str) -> ReadObject:
        if not name.startswith(INTERNAL_PREFIX):
            raise InvariantError(f"no payload is read here, not even {name}")
        data = self.read(name)
        return MemoryReadObject(self._info(name, len(data)), data, self.uri)

    def read(self, name: str) -> bytes:
        self.requests["get"] += 1
        if name not in self._kept:
            raise ObjectNotFoundError(f"there is no {name}")
        return self._kept[name]

    def write(self, name: str, data: bytes) -> None:
        self.requests["put"] += 1
        self.bytes_written += len(data)
        if len(data) <= KEPT_BYTES_MAX:
            self._kept[name] = data

    def write_new(self, name: str, data: bytes) -> bool:
        if name in self._kept:
            self.requests["put"] += 1
            return False
        self.write(name, data)
        return True

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        self.requests["head"] += 1
        if name not in self._kept or self._look(name).etag != etag:
            return False
        self.write(name, data)
        return True

    def delete(self, name: str) -> None:
        self.requests["delete"] += 1
        self._kept.pop(name, None)

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> _NullStaged:
        return _NullStaged(self, token)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        self.requests["complete"] += 1

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set(tokens)

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        return set()

    def keep_aside(self, name: str, token: str) -> str:
        return ""

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        raise InvariantError(f"nothing is kept here, not even {name}")

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        self.requests["list"] += 1
        for name in [name for name in self._kept if name.startswith(token_prefixes)]:
            self.delete(name)

    def _name(self, number: int) -> str:
        return f"shard-{number:07d}.tar"

    def _look(self, name: str) -> ObjectInfo:
        if name in self._kept:
            return self._info(name, len(self._kept[name]))
        number = name.removeprefix("shard-").removesuffix(".tar")
        if number.isdecimal() and int(number) < self._shards and name == self._name(int(number)):
            return self._info(name, self._shard_bytes)
        raise ObjectNotFoundError(f"there is no {name}")

    @staticmethod
    def _info(name: str, size_bytes: int) -> ObjectInfo:
        """The info of an object as S3 returns it: its ETag has 32 hexadecimal digits in quotes."""
        return ObjectInfo(
            name, size_bytes, 1_700_000_000_000_000_000, f'"{hash(name) % 2**64:032x}"'
        )
