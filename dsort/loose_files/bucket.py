"""Loose files as a bucket of tars: :class:`FilesBucket`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dsort.scratch.index import IndexStore
from dsort.storage.bucket import Bucket, MadeBucket, ObjectInfo
from dsort.storage.ref import BucketRef
from dsort.storage.routed import bucket_named

if TYPE_CHECKING:  # most jobs read shards, and need neither
    from dsort.loose_files.listing import FilesShard, Listing, Places

FILES_REF = BucketRef("files", "")
"""The reference of the runs of files, which are stored in no bucket. Only the job uses the names of
runs."""
LISTING_FILE = "files.col"
NAMES_A_BATCH = 10_000
Names = list[str]


class FilesBucket(MadeBucket):
    """Runs of files, each a tar that is not stored anywhere."""

    def __init__(self, buckets: Sequence[Bucket], listing: Callable[[], Listing]) -> None:
        """``buckets``: the buckets of the inputs, by the numbers of the inputs. ``listing`` is
        called when it is first needed."""
        self.buckets = tuple(buckets)
        self.uri = ", ".join(dict.fromkeys(each.uri for each in buckets))
        self._make = listing

    @cached_property
    def listing(self) -> Listing:
        """The listing of the runs in the bucket."""
        return self._make()

    @cached_property
    def _places(self) -> Places:
        from dsort.loose_files.listing import Places

        return Places(self.buckets)

    def exists(self) -> bool:
        return all(each.exists() for each in self.buckets)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The runs whose names begin with ``prefix``, in order."""
        return (info for info in self.listing.infos() if info.name.startswith(prefix))

    def stat(self, name: str) -> ObjectInfo:
        """A run as it was listed; ``ObjectNotFoundError`` if there is no such run."""
        return self.listing.info(self.listing.number_of(name))

    def open(self, name: str) -> FilesShard:
        """A run, readable as a tar; ``ObjectNotFoundError`` if there is no such run."""
        from dsort.loose_files.listing import FilesShard

        number = self.listing.number_of(name)
        return FilesShard(self.listing, number, self._places)

    def changes(self, count_max: int) -> Sequence[str]:
        """How files have changed since they were listed: up to ``count_max`` sentences."""
        found: Names = []
        listing = self.listing
        for number in range(len(self.buckets)):
            rows = np.flatnonzero(listing.inputs == number)
            if listing.starts.any():  # of an archive, one file is enough
                places = dict(zip(listing.paths.take(rows).tolist(), rows.tolist(), strict=True))
                rows = np.array([*places.values()], np.int64)
            for at in range(0, len(rows), NAMES_A_BATCH):
                some = rows[at : at + NAMES_A_BATCH]
                paths = listing.paths.take(some).tolist()
                stamps = self._places.stamps(number, paths)
                for path, was, now in zip(
                    paths, listing.stamps[some].tolist(), stamps, strict=True
                ):
                    if was != now:
                        gone = "is gone" if now is None else "changed"
                        found.append(f"{path.decode(*_NAMES)} {gone}")
                        if len(found) == count_max:
                            return found
        return found

    def first_files(self) -> Sequence[tuple[Bucket, str]]:
        """For each input with files, one file as (bucket, name in it)."""
        found = []
        for number, bucket in enumerate(self.buckets):
            rows = np.flatnonzero(self.listing.inputs == number)[:1]
            if len(rows):
                found.append((bucket, self.listing.paths[int(rows[0])].decode(*_NAMES)))
        return found


def of_shared_files(bucket: Bucket, inputs: Iterable[str], store: IndexStore) -> FilesBucket:
    """The runs of the listing; each node has a copy of it. ``bucket``: returns the bucket of one of
    the ``inputs``, by name."""
    from dsort.loose_files.listing import Listing

    buckets = [bucket_named(bucket, name) for name in inputs]
    return FilesBucket(buckets, lambda: Listing.read(store.columns(LISTING_FILE)))


_NAMES = ("utf-8", "surrogateescape")
