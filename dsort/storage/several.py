"""Several buckets that are read as one: :class:`SeveralBuckets`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dsort.errors import ObjectNotFoundError
from dsort.storage.bucket import Bucket, ObjectInfo, ReadObject
from dsort.storage.limit import StoreLimits
from dsort.storage.only_read import OnlyRead
from dsort.storage.ref import BucketRef

__all__ = ["BucketPlace", "SeveralBuckets", "bucket_named", "input_of", "parted"]


class BucketPlace(Struct, frozen=True):
    """The place of one of several buckets. ``name``: "" for a bucket that is the only one."""

    name: str
    ref: BucketRef
    limits: StoreLimits = field(default_factory=StoreLimits)


class SeveralBuckets(OnlyRead):
    """Buckets by name, as one that is only read: ``web/a.tar`` is ``a.tar`` of the bucket ``web``.

    Objects with other first parts do not exist.
    """

    words = "inputs"

    def __init__(self, buckets: Mapping[str, Bucket]) -> None:
        self.buckets = dict(buckets)
        self.uri = ", ".join(dict.fromkeys(each.uri for each in self.buckets.values()))

    def exists(self) -> bool:
        return all(each.exists() for each in self.buckets.values())

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """In the order of any bucket: the objects of one name after those of another."""
        for name in sorted(self.buckets, key=lambda name: f"{name}/".encode()):
            start = f"{name}/"
            if prefix.startswith(start) or start.startswith(prefix):
                for info in self.buckets[name].list(prefix[len(start) :]):
                    yield replace(info, name=start + info.name)

    def stat(self, name: str) -> ObjectInfo:
        bucket, inside = self._found(name)
        return replace(bucket.stat(inside), name=name)

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        inside: dict[str, dict[str, None]] = {}
        for name in names:
            at, rest = parted(name)
            inside.setdefault(at, {})[rest] = None
        return {
            f"{at}/{rest}": replace(info, name=f"{at}/{rest}")
            for at, rests in inside.items()
            if at in self.buckets
            for rest, info in self.buckets[at].stat_many(rests).items()
        }

    def open(self, name: str) -> ReadObject:
        bucket, inside = self._found(name)
        return bucket.open(inside)

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        bucket, inside = self._found(info.name)
        return bucket.pinned(replace(info, name=inside))

    def read(self, name: str) -> bytes:
        bucket, inside = self._found(name)
        return bucket.read(inside)

    def local_path(self, name: str) -> Path | None:
        bucket, inside = self._found(name)
        return bucket.local_path(inside)

    def _found(self, name: str) -> tuple[Bucket, str]:
        at, inside = parted(name)
        if at not in self.buckets:
            raise ObjectNotFoundError(f"{name} is in none of the inputs")
        return self.buckets[at], inside


def parted(name: str) -> tuple[str, str]:
    """For a name among several inputs: (input, name of the object in its bucket)."""
    at, _, inside = name.partition("/")
    return at, inside


def input_of(name: str, inputs: Iterable[str]) -> str:
    """The one of ``inputs`` that the shard ``name`` belongs to; "" if there is only one, without a
    name."""
    return parted(name)[0] if any(inputs) else ""


def bucket_named(bucket: Bucket, name: str) -> Bucket:
    """The bucket ``name`` of several; ``bucket`` itself for "", the name of an only bucket."""
    if not name:
        return bucket
    assert isinstance(bucket, SeveralBuckets)
    return bucket.buckets[name]
