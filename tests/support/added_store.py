"""A store from outside the package (`shelf://`): its buckets are folders of the directory that the
environment variable ``SHELVES`` names, read and written as objects."""

from __future__ import annotations

import os
from pathlib import Path

from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.registry import Store
from dsort.storage.transport import Transport


class Shelf(LocalBucket):
    def __init__(self, ref: BucketRef) -> None:
        super().__init__(Path(os.environ["SHELVES"], *ref.path.split("/")))
        self.uri = ref.uri

    def local_path(self, name: str) -> None:  # type: ignore[override]
        super().local_path(name)  # refuses invalid names


class ShelfStore(Store):
    schemes = ("shelf",)
    provider = "carpenter"
    aliases = ("board",)
    reach = ("region",)

    def open(self, ref: BucketRef, limits: StoreLimits, transport: Transport) -> Shelf:
        return Shelf(ref)
