"""Several buckets that one job writes to, as one bucket: :class:`OutputBuckets`.

``val//a.tar`` is ``a.tar`` in the bucket of the output ``val``; no real object has a name with an
empty part. All other names belong to the main bucket, which has the files of the job itself: lease,
journal, manifest. Staged objects, and kept objects that are replaced, are in the bucket of their
name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from dsort.errors import ObjectNotFoundError
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo, ReadObject, StagedObject
from dsort.storage.several import BucketPlace

__all__ = ["APART", "OutputBuckets", "bucket_for", "open_outputs", "place_of", "placed_at"]

APART: Final = "//"
_OWN_DEPTH: Final = 3
"""Internal prefixes with this many parts, such as ``.dsort/<job>/staged/``, are those of objects
that wait for their names."""

Tokens = Mapping[str, tuple[str, str]]


def place_of(name: str) -> tuple[str, str]:
    """For a name: (output whose bucket has the object, "" for the main bucket; name of the object
    there)."""
    place, apart, inside = name.partition(APART)
    return (place, inside) if apart else ("", name)


def placed_at(place: str, name: str) -> str:
    """The full name of the object ``name`` in the bucket of the output ``place`` ("": the main
    bucket)."""
    return f"{place}{APART}{name}" if place else name


def bucket_for(bucket: Bucket, name: str) -> Bucket:
    """The single bucket that has, or will have, the object ``name`` of ``bucket``."""
    if not isinstance(bucket, OutputBuckets):
        return bucket
    return bucket.found(name)[0]


def open_outputs(places: Sequence[BucketPlace], opened: Callable[[BucketPlace], Bucket]) -> Bucket:
    """The one bucket of ``places``, or all of them as one bucket, with the first as the main
    one."""
    main, *others = places
    if not others:
        return opened(main)
    return OutputBuckets(opened(main), {each.name: opened(each) for each in others})


class OutputBuckets:
    """The buckets ``others``, by output, and ``main`` as one bucket."""

    def __init__(self, main: Bucket, others: Mapping[str, Bucket]) -> None:
        self.main = main
        self.others = dict(others)
        self.uri = main.uri
        self.seals_on_finish = all(each.seals_on_finish for each in self._all())

    def found(self, name: str) -> tuple[Bucket, str]:
        """For a name: (bucket, name of the object in it). ``ObjectNotFoundError`` for the place of
        no output, which a manifest that another program wrote may have."""
        place, inside = place_of(name)
        if place and place not in self.others:
            raise ObjectNotFoundError(f"{name} is in the bucket of no output")
        return (self.others[place] if place else self.main), inside

    def exists(self) -> bool:
        return any(each.exists() for each in self._all())

    def create(self) -> None:
        for each in self._all():
            each.create()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """For an empty prefix, the objects of all buckets, those of the main one first. For an
        internal prefix of a job, the objects that wait for their names in any bucket."""
        place, inside = place_of(prefix)
        if place:
            yield from self._listed(place, inside)
            return
        yield from self._listed("", prefix)
        if prefix.startswith(INTERNAL_PREFIX) and prefix.count("/") >= _OWN_DEPTH:
            for other in self.others.values():
                yield from _listed(other, prefix)
        elif not prefix:
            for name in self.others:
                yield from self._listed(name, "")

    def _listed(self, place: str, prefix: str) -> Iterator[ObjectInfo]:
        bucket = self.others[place] if place else self.main
        for info in _listed(bucket, prefix):
            yield replace(info, name=placed_at(place, info.name)) if place else info

    def stat(self, name: str) -> ObjectInfo:
        bucket, inside = self.found(name)
        return replace(bucket.stat(inside), name=name)

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        found: dict[str, ObjectInfo] = {}
        for place, inside in self._by_place(names).items():
            bucket = self.others[place] if place else self.main
            for name, info in bucket.stat_many(inside).items():
                full = placed_at(place, name)
                found[full] = replace(info, name=full)
        return found

    def open(self, name: str) -> ReadObject:
        bucket, inside = self.found(name)
        return bucket.open(inside)

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        bucket, inside = self.found(info.name)
        return bucket.pinned(replace(info, name=inside))

    def read(self, name: str) -> bytes:
        bucket, inside = self.found(name)
        return bucket.read(inside)

    def write(self, name: str, data: bytes) -> None:
        bucket, inside = self.found(name)
        bucket.write(inside, data)

    def write_new(self, name: str, data: bytes) -> bool:
        bucket, inside = self.found(name)
        return bucket.write_new(inside, data)

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        bucket, inside = self.found(name)
        return bucket.write_over(inside, data, etag)

    def delete(self, name: str) -> None:
        bucket, inside = self.found(name)
        bucket.delete(inside)

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        bucket, inside = self.found(name)
        return bucket.stage(token, name=inside, size_bytes=size_bytes)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        bucket, inside = self.found(name)
        bucket.publish(token, inside, overwrite=overwrite, receipt=receipt)

    def still_staged(self, tokens: Tokens) -> set[str]:
        parts = self._tokens_by_place(tokens)
        return {token for bucket, own in parts for token in bucket.still_staged(own)}

    def published(self, tokens: Tokens) -> set[str]:
        parts = self._tokens_by_place(tokens)
        return {token for bucket, own in parts for token in bucket.published(own)}

    def keep_aside(self, name: str, token: str) -> str:
        bucket, inside = self.found(name)
        return bucket.keep_aside(inside, token)

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        bucket, inside = self.found(name)
        bucket.put_back(token, inside, receipt=receipt)

    def make_durable(self) -> None:
        for each in self._all():
            each.make_durable()

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        """Discards in all buckets, in the main one last: while another bucket has files of a job,
        the main bucket still shows which job they belong to."""
        inside = self._by_place(names)
        for place, bucket in self.others.items():
            bucket.discard(*token_prefixes, names=inside.get(place, ()))
        self.main.discard(*token_prefixes, names=inside.get("", ()))

    def free_bytes(self) -> int | None:
        return self.main.free_bytes()

    def local_path(self, name: str) -> Path | None:
        bucket, inside = self.found(name)
        return bucket.local_path(inside)

    def _all(self) -> Sequence[Bucket]:
        return [*self.others.values(), self.main]

    def _by_place(self, names: Collection[str]) -> dict[str, dict[str, None]]:
        """The objects by place. Names of unknown places are left out."""
        found: dict[str, dict[str, None]] = {}
        for name in names:
            place, inside = place_of(name)
            if not place or place in self.others:
                found.setdefault(place, {})[inside] = None
        return found

    def _tokens_by_place(self, tokens: Tokens) -> Sequence[tuple[Bucket, Tokens]]:
        parts: dict[str, dict[str, tuple[str, str]]] = {}
        for token, (name, receipt) in tokens.items():
            place, inside = place_of(name)
            if not place or place in self.others:
                parts.setdefault(place, {})[token] = (inside, receipt)
        return [(self.others[at] if at else self.main, own) for at, own in parts.items()]


def _listed(bucket: Bucket, prefix: str) -> Iterator[ObjectInfo]:
    """The objects of a bucket; none if the bucket does not exist yet."""
    try:
        yield from bucket.list(prefix)
    except ObjectNotFoundError:
        return
