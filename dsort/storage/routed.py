"""Several buckets as one bucket: the inputs of a job, or the buckets of its outputs.

``web/a.tar`` is ``a.tar`` of the input ``web``. ``val//a.tar`` is ``a.tar`` in the bucket of the
output ``val`` (no real object has a name with an empty part), and all other names belong to the
main bucket, which has the files of the job itself: lease, journal, manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dsort.errors import InvariantError, ObjectNotFoundError
from dsort.storage.bucket import INTERNAL_PREFIX, Bucket, ObjectInfo, ReadObject, StagedObject
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef

APART: Final = "//"
_OWN_DEPTH: Final = 3
"""Internal prefixes with at least this many slashes, such as ``.dsort/<job>/staged/``, are prefixes
of objects that wait for their names."""

Tokens = Mapping[str, tuple[str, str]]


class BucketPlace(Struct, frozen=True):
    """The place of one of several buckets. ``name``: "" for a single bucket, and for the main
    bucket of outputs."""

    name: str
    ref: BucketRef
    limits: StoreLimits = field(default_factory=StoreLimits)


# --- names ---------------------------------------------------------------------------------------


def parted(name: str) -> tuple[str, str]:
    """For a name among several inputs: (input, name of the object in its bucket)."""
    at, _, inside = name.partition("/")
    return at, inside


def input_of(name: str, inputs: Iterable[str]) -> str:
    """The input, among ``inputs``, to which the shard ``name`` belongs; "" for a single input
    without a name."""
    return parted(name)[0] if any(inputs) else ""


def place_of(name: str) -> tuple[str, str]:
    """For a name among outputs: (output that has the bucket of the object, "" for the main bucket;
    name of the object there)."""
    place, apart, inside = name.partition(APART)
    return (place, inside) if apart else ("", name)


def placed_at(place: str, name: str) -> str:
    """The full name of the object ``name`` in the bucket of the output ``place`` ("": the main
    bucket)."""
    return f"{place}{APART}{name}" if place else name


# --- buckets -------------------------------------------------------------------------------------


def open_inputs(places: Sequence[BucketPlace], opened: Callable[[BucketPlace], Bucket]) -> Bucket:
    """The one bucket of ``places``, or all of them as one bucket. ``opened`` opens each."""
    if [place.name for place in places] == [""]:
        return opened(places[0])
    return routed_inputs({place.name: opened(place) for place in places})


def open_outputs(places: Sequence[BucketPlace], opened: Callable[[BucketPlace], Bucket]) -> Bucket:
    """The one bucket of ``places``, or all of them as one bucket, with the first as the main
    bucket."""
    main, *others = places
    if not others:
        return opened(main)
    return routed_outputs(opened(main), {each.name: opened(each) for each in others})


def routed_inputs(buckets: Mapping[str, Bucket]) -> Routed:
    """The inputs ``buckets``, by name, as one bucket that is only read."""
    return Routed(buckets, parted, "/")


def routed_outputs(main: Bucket, others: Mapping[str, Bucket]) -> Routed:
    """The bucket ``main``, and other buckets by output, as one bucket."""
    return Routed({**others, "": main}, place_of, APART)


def bucket_named(bucket: Bucket, name: str) -> Bucket:
    """The bucket ``name`` among several buckets; ``bucket`` itself if it is a single bucket, with
    the name ""."""
    if isinstance(bucket, Routed):
        return bucket.buckets[name]
    assert not name
    return bucket


def bucket_for(bucket: Bucket, name: str) -> Bucket:
    """The single bucket that has, or will have, the object ``name`` of ``bucket``."""
    return bucket.route(name)[0] if isinstance(bucket, Routed) else bucket


class Routed:
    """Several ``buckets``, by name, as one bucket. The bucket with the name "" is the main bucket,
    and comes last. Without a main bucket, all are only read."""

    def __init__(
        self,
        buckets: Mapping[str, Bucket],
        split: Callable[[str], tuple[str, str]],
        apart: str,
    ) -> None:
        """``split`` divides a name into (bucket, object in it); in the name, ``apart`` is between
        the two."""
        self.buckets = dict(buckets)
        self.main = self.buckets.get("")
        self._split = split
        self._apart = apart
        each = self.buckets.values()
        uris = dict.fromkeys(bucket.uri for bucket in each)
        self.uri = ", ".join(uris) if self.main is None else self.main.uri
        self.seals_on_finish = all(bucket.seals_on_finish for bucket in each)

    @property
    def others(self) -> Mapping[str, Bucket]:
        """The buckets other than the main bucket, by name."""
        return {name: bucket for name, bucket in self.buckets.items() if name}

    def route(self, name: str) -> tuple[Bucket, str]:
        """For a name: (bucket, name of the object in it). ``ObjectNotFoundError`` for an unknown
        bucket, which a manifest of another program may name."""
        at, inside = self._split(name)
        if at not in self.buckets:
            whose = "none of the inputs" if self.main is None else "none of the outputs' buckets"
            raise ObjectNotFoundError(f"{name} is in {whose}")
        return self.buckets[at], inside

    def exists(self) -> bool:
        found = (each.exists() for each in self.buckets.values())
        return all(found) if self.main is None else any(found)

    def create(self) -> None:
        self._check_writable()
        for each in self.buckets.values():
            each.create()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The buckets are listed one after the other, so only the objects of one bucket are in
        order. Inputs are listed in the order of their names. For outputs, an empty prefix lists the
        objects of all buckets, the main bucket first; an internal prefix of a job lists the objects
        that wait for their names in any bucket."""
        if self.main is None:
            for name in sorted(self.buckets, key=lambda name: f"{name}/".encode()):
                start = f"{name}/"
                if prefix.startswith(start) or start.startswith(prefix):
                    yield from self._listed(name, prefix[len(start) :])
            return
        at, inside = self._split(prefix)
        if at:
            yield from _if_there(self._listed(at, inside))
            return
        yield from _if_there(self.main.list(prefix))
        if prefix.startswith(INTERNAL_PREFIX) and prefix.count("/") >= _OWN_DEPTH:
            for other in self.others.values():
                yield from _if_there(other.list(prefix))
        elif not prefix:
            for name in self.others:
                yield from _if_there(self._listed(name, ""))

    def stat(self, name: str) -> ObjectInfo:
        bucket, inside = self.route(name)
        return replace(bucket.stat(inside), name=name)

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        return {
            self._full(at, name): replace(info, name=self._full(at, name))
            for at, inside in self._by_bucket(names).items()
            for name, info in self.buckets[at].stat_many(inside).items()
        }

    def open(self, name: str) -> ReadObject:
        bucket, inside = self.route(name)
        return bucket.open(inside)

    def pinned(self, info: ObjectInfo) -> ReadObject | None:
        bucket, inside = self.route(info.name)
        return bucket.pinned(replace(info, name=inside))

    def read(self, name: str) -> bytes:
        bucket, inside = self.route(name)
        return bucket.read(inside)

    def local_path(self, name: str) -> Path | None:
        bucket, inside = self.route(name)
        return bucket.local_path(inside)

    def write(self, name: str, data: bytes) -> None:
        bucket, inside = self._route_to_write(name)
        bucket.write(inside, data)

    def write_new(self, name: str, data: bytes) -> bool:
        bucket, inside = self._route_to_write(name)
        return bucket.write_new(inside, data)

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        bucket, inside = self._route_to_write(name)
        return bucket.write_over(inside, data, etag)

    def delete(self, name: str) -> None:
        bucket, inside = self._route_to_write(name)
        bucket.delete(inside)

    def stage(self, token: str, *, name: str = "", size_bytes: int | None = None) -> StagedObject:
        """Staged objects, and replaced objects that are kept, are in the bucket to which ``name``
        belongs."""
        bucket, inside = self._route_to_write(name)
        return bucket.stage(token, name=inside, size_bytes=size_bytes)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        bucket, inside = self._route_to_write(name)
        bucket.publish(token, inside, overwrite=overwrite, receipt=receipt)

    def still_staged(self, tokens: Tokens) -> set[str]:
        parts = self._tokens_by_bucket(tokens)
        return {token for bucket, own in parts for token in bucket.still_staged(own)}

    def published(self, tokens: Tokens) -> set[str]:
        parts = self._tokens_by_bucket(tokens)
        return {token for bucket, own in parts for token in bucket.published(own)}

    def keep_aside(self, name: str, token: str) -> str:
        bucket, inside = self._route_to_write(name)
        return bucket.keep_aside(inside, token)

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        bucket, inside = self._route_to_write(name)
        bucket.put_back(token, inside, receipt=receipt)

    def make_durable(self) -> None:
        self._check_writable()
        for each in self.buckets.values():
            each.make_durable()

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        """Discards in all buckets, in the main bucket last: while another bucket has files of a
        job, the main bucket still shows to which job they belong."""
        self._check_writable()
        inside = self._by_bucket(names)
        for name, bucket in self.buckets.items():
            bucket.discard(*token_prefixes, names=inside.get(name, ()))

    def free_bytes(self) -> int | None:
        return None if self.main is None else self.main.free_bytes()

    def _route_to_write(self, name: str) -> tuple[Bucket, str]:
        self._check_writable()
        return self.route(name)

    def _check_writable(self) -> None:
        if self.main is None:
            raise InvariantError("inputs are only read")

    def _full(self, at: str, inside: str) -> str:
        return f"{at}{self._apart}{inside}" if at else inside

    def _listed(self, at: str, prefix: str) -> Iterator[ObjectInfo]:
        for info in self.buckets[at].list(prefix):
            yield replace(info, name=self._full(at, info.name))

    def _by_bucket(self, names: Collection[str]) -> dict[str, dict[str, None]]:
        """The objects by bucket. Names of unknown buckets are left out."""
        found: dict[str, dict[str, None]] = {}
        for name in names:
            at, inside = self._split(name)
            if at in self.buckets:
                found.setdefault(at, {})[inside] = None
        return found

    def _tokens_by_bucket(self, tokens: Tokens) -> Sequence[tuple[Bucket, Tokens]]:
        parts: dict[str, dict[str, tuple[str, str]]] = {}
        for token, (name, receipt) in tokens.items():
            at, inside = self._split(name)
            if at in self.buckets:
                parts.setdefault(at, {})[token] = (inside, receipt)
        return [(self.buckets[at], own) for at, own in parts.items()]


def _if_there(listing: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    """The objects of a bucket; none if the bucket does not exist yet."""
    try:
        yield from listing
    except ObjectNotFoundError:
        return
