"""Reads the keys of another result, whose order and cut a job takes over (``like`` of a spec)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dsort.errors import InputError
from dsort.options import RunOptions
from dsort.order.base import NO_PLACES, GivenPlaces
from dsort.order.like import KeyPlaces
from dsort.reading.places import ShardPlace, find_shards
from dsort.reading.results import find_result
from dsort.reading.shard import Shard
from dsort.spec.model import JobSpec

__all__ = ["load_places", "pinned"]

RECORDS_MAX: Final = 1 << 24
"""Each worker holds the keys and places of all records: about 24 bytes and the key for each."""
THREADS: Final = 8


def pinned(spec: JobSpec, options: RunOptions) -> JobSpec:
    """The spec with the manifest of the result that ``like`` names at this time. ``InputError`` if
    that result has no manifest, or if the spec came over the network."""
    if not spec.like:
        return spec
    if options.fetch:
        raise InputError(
            "like is not allowed in a spec that came over the network",
            hint="run the job on your machine: dsort start -f SPEC",
        )
    found = find_result(spec.like, options)
    uri = f"{found.bucket.uri.rstrip('/')}/{found.document}"
    return spec.model_copy(update={"like": uri})


def load_places(spec: JobSpec, options: RunOptions) -> GivenPlaces:
    """The places of the keys of the result that ``like`` names, if it names one. ``InputError``
    if it has too many records, or a key twice."""
    if not spec.like:
        return NO_PLACES
    shards = list(find_shards(spec.like, None, options))
    total = sum(place.records or 0 for place in shards)
    if not shards or total > RECORDS_MAX:
        raise InputError(
            f"{spec.like} has {len(shards):,} shards and {total:,} records: like takes a result of "
            f"at least one shard, and of up to {RECORDS_MAX:,} records",
            hint="name another result, or order both by the same seed, keys and shard names",
        )
    return KeyPlaces.of(f"the result {spec.like}", _keys_of(shards))


def _keys_of(shards: list[ShardPlace]) -> Iterator[tuple[str, list[bytes]]]:
    with ThreadPoolExecutor(THREADS, thread_name_prefix="dsort-like") as threads:
        names = (place.name for place in shards)
        yield from zip(names, threads.map(_keys, shards), strict=True)


def _keys(place: ShardPlace) -> list[bytes]:
    with Shard(place) as shard:  # it compares the number of keys with the manifest
        return [key.encode("utf-8", "surrogateescape") for key in shard.keys]
