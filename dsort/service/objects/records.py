"""The shards of a bucket, and the records of a shard, for users who inspect data.

Names of shards come from a listing. All facts about the content of a shard come from a process of
its own, which writes the answer: the service sends the answer on, and parses no shard itself.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from msgspec import Struct

from dsort.containers.registry import is_supported
from dsort.errors import DsortError, SpecError, SpecProblem
from dsort.naming.names import is_internal
from dsort.service.objects.listing import Entry, Listings, PageAsked
from dsort.service.objects.places import ObjectPlace
from dsort.service.objects.processes import (
    Gone,
    MadeFile,
    ShardProblemError,
    ShardProcesses,
    Turns,
)
from dsort.service.objects.shard_main import MEMBERS_FILE
from dsort.spec.buckets import bucket_value
from dsort.storage.bucket import Bucket, ObjectInfo

__all__ = [
    "SHARDS_MAX",
    "MemberPart",
    "ShardRecords",
    "listed_shards",
    "random_shards",
]

SHARDS_MAX: Final = 200
NAMES_A_LISTING: Final = 1_000
LIST_S_MAX: Final = 10.0
LOOK_S_MAX: Final = 120.0
COUNTS_BYTES_MAX: Final = 4 << 20
HEAD_BYTES_MAX: Final = 512


def listed_shards(
    listings: Listings,
    place: ObjectPlace,
    *,
    text: str,
    cursor: str,
    limit: int,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Entry], str]:
    """(at least ``limit`` shards whose names contain ``text``, where the next page begins, or "" at
    the end). Fewer, if that takes long. ``SpecError``, ``StorageError``."""
    bucket, wanted, ends_at = place.opened(), text.lower(), clock() + LIST_S_MAX
    found: list[Entry] = []
    while True:
        size = NAMES_A_LISTING if wanted else max(limit - len(found), 1)
        page = listings.page(bucket, place.uri, place.client, PageAsked.at(cursor, size=size))
        found += [
            each for each in page.entries if is_supported(each.name) and wanted in each.name.lower()
        ]
        cursor = page.cursor
        if not cursor or len(found) >= limit or clock() > ends_at:
            return found, cursor


def random_shards(
    bucket: Bucket, count: int, seed: str, clock: Callable[[], float] = time.monotonic
) -> list[Entry]:
    """``count`` of the shards at random, each with equal probability, in the order of their names;
    chosen from those that are listed in ten seconds."""
    draw, ends_at, seen = random.Random(seed), clock() + LIST_S_MAX, 0
    kept: list[ObjectInfo] = []
    for info in bucket.list(""):
        if not is_supported(info.name) or is_internal(info.name):
            continue
        seen += 1
        if len(kept) < count:
            kept.append(info)
        elif (place := draw.randrange(seen)) < count:
            kept[place] = info
        if clock() > ends_at:
            break
    return [Entry(each.name, each.size_bytes) for each in sorted(kept, key=lambda one: one.name)]


def refuse_other_objects(name: str) -> None:
    """``SpecError`` if ``name`` is not the name of a shard."""
    if not is_supported(name):
        raise SpecError([SpecProblem("name", "is not that of a shard: only shards have records")])


class MemberPart(Struct, frozen=True):
    """Bytes ``start`` to ``stop`` of a member of ``size_bytes``; they begin at byte ``at`` of
    ``made``. ``status``: 200 all of it, 206 a range, 416 it has none of the range."""

    made: MadeFile
    at: int
    status: int
    size_bytes: int
    start: int

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response about ranges."""
        stop = self.start + self.made.size_bytes - self.at
        sent = {206: f"bytes {self.start}-{stop - 1}/", 416: "bytes */"}.get(self.status)
        ranges = {} if sent is None else {"Content-Range": f"{sent}{self.size_bytes}"}
        return {"Accept-Ranges": "bytes", **ranges}

    @classmethod
    def of(cls, made: MadeFile) -> MemberPart:
        """The part of a member that the process of the shard has written."""
        head = bytearray(min(made.size_bytes, HEAD_BYTES_MAX))
        made.read_into(memoryview(head), 0)
        line, _, _ = head.partition(b"\n")
        said = json.loads(line)
        status, size_bytes = int(said["status"]), int(said["size_bytes"])
        return cls(made, len(line) + 1, status, size_bytes, int(said.get("start", 0)))


class ShardRecords:
    """Reads shards for users who inspect data."""

    def __init__(self, processes: ShardProcesses) -> None:
        self._processes = processes
        self._turns = Turns()

    async def look(
        self,
        place: ObjectPlace,
        order: dict[str, Any],
        gone: Gone,
        *,
        seconds_max: float = LOOK_S_MAX,
    ) -> tuple[MadeFile, ExitStack]:
        """What the process has written about the shard, or about the bucket if the place is one,
        and what to close once it is sent. ``ShardProblemError``, ``DsortError``."""
        if place.name:
            refuse_other_objects(place.name)
        fetch = place.policy().to_json()
        bucket = {"bucket": bucket_value(place.ref), "uri": place.uri, "name": place.name}
        async with self._turns.one(place.client):
            return await self._processes.made(
                {**bucket, "fetch": fetch, **order}, MEMBERS_FILE, gone, seconds_max=seconds_max
            )

    async def counts(self, place: ObjectPlace, shards: list[Entry], gone: Gone) -> dict[str, int]:
        """The numbers of records by name, of those of these shards for which they are known."""
        sizes = [each.size_bytes for each in shards]
        order = {"look": "counts", "names": [each.name for each in shards], "sizes": sizes}
        try:
            made, ends = await self.look(place, order, gone)
        except (ShardProblemError, DsortError):
            return {}  # the shards are shown without their counts
        with ends:
            text = bytearray(min(made.size_bytes, COUNTS_BYTES_MAX))
            made.read_into(memoryview(text), 0)
        found: dict[str, int] = json.loads(text)["records"]
        return found
