"""Shards that are transformed while they are read, and files of shards by their paths.

Each request is one order for the process of shards. A job of one shard makes a transformed shard,
with the same bytes as ``dsort transform``.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any, Final

from msgspec import Struct

from dsort.errors import SpecError, SpecProblem, TooLargeError
from dsort.job.output_names import kept_name
from dsort.naming.names import archive_extension
from dsort.service.objects.places import Entry, ObjectPlace
from dsort.service.objects.processes import Gone, MadeFile, Turns
from dsort.service.service import Service
from dsort.sizes import format_bytes
from dsort.spec.buckets import bucket_value
from dsort.spec.model import JobSpec
from dsort.storage.network_policy import FetchPolicy

RUN_S_MAX: Final = 600.0
INLINE_BYTES_MAX: Final = 4 << 30
"""Larger shards need a job."""
LIST_BYTES_MAX: Final = 64 << 20
_CONTAINERS: Final = (".tar", ".tgz", ".zip")


def has_members(name: str) -> bool:
    """Whether an object of this name is an archive of files, and not a file of lines or rows."""
    extension = archive_extension(name)
    return extension is not None and extension.startswith(_CONTAINERS)


async def listed_members(service: Service, place: ObjectPlace, gone: Gone) -> list[Entry]:
    """The files in a shard, in its order, with the names that a list shows. ``ShardProblemError``,
    ``DsortError``."""
    made, ends = await read_member(service, place, None, gone)
    with ends:
        if made.size_bytes > LIST_BYTES_MAX:
            raise TooLargeError(
                f"the names in {place.name} have more than {format_bytes(LIST_BYTES_MAX)}",
                hint="`dsort inspect` lists them all",
            )
        text = bytearray(made.size_bytes)
        made.read_into(memoryview(text), 0)
    found = (json.loads(line) for line in text.splitlines())
    return [Entry(f"{place.name}/{name}", size, "member") for name, size in found]


async def read_member(
    service: Service, place: ObjectPlace, path: str | None, gone: Gone
) -> tuple[MadeFile, ExitStack]:
    """(the file ``path`` in a shard, or the list of its files for None; the object to close after
    sending). Errors as for ``listed_members``."""
    if not has_members(place.name):
        raise SpecError([SpecProblem("name", "is not that of a tar or a zip")])
    order = {"look": "list"} if path is None else {"look": "member", "member": path}
    return await service.shards.look(place, order, gone, seconds_max=RUN_S_MAX)


class InlineSpec(Struct, frozen=True):
    """The spec of a job that transforms one shard, and the places that the job may use."""

    spec: JobSpec
    fetch: FetchPolicy

    def order(self) -> dict[str, Any]:
        """The order for the process that does the job."""
        order = {"spec": self.spec.canonical(), "fetch": self.fetch.to_json()}
        return {"look": "transform", **order}


class InlineTransforms:
    """Transforms shards for requests."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turns = Turns()

    def spec(self, place: ObjectPlace, use: str) -> InlineSpec:
        """The checked spec of the job, without the place that it writes to. ``SpecError`` if the
        transform does not exist, ``ForbiddenError`` if the transform may not run, or reads files
        that the caller may not read."""
        extension = archive_extension(place.name)
        if extension is None:
            problem = SpecProblem("name", "is not that of a shard: only shards have records")
            raise SpecError([problem])
        written = {
            "input_bck": bucket_value(place.ref),
            "input_format": {"objnames": [place.name]},
            "input_extension": extension,
            "output_bck": "file:///unknown",
            "keep_shards": True,
            "algorithm": {"kind": "none"},
            "transform": {"use": use},
        }
        asked_by = place.asking.identity
        spec, file_uris = self._service.submitter.read_inline(written, asked_by)
        return InlineSpec(spec, place.policy(file_uris))

    async def run(
        self, inline: InlineSpec, place: ObjectPlace, size_bytes: int, gone: Gone
    ) -> tuple[MadeFile, ExitStack]:
        """(the transformed shard, the object to close after sending). The shard is complete before
        its first byte is sent, so no client gets a shard that ends too soon. ``ShardProblemError``,
        ``DsortError`` if the shard could not be made."""
        if size_bytes > INLINE_BYTES_MAX:
            raise TooLargeError(
                f"the shard has {format_bytes(size_bytes)}, over {format_bytes(INLINE_BYTES_MAX)}",
                hint="`dsort transform` makes all of a bucket's shards, of any size",
            )
        name = kept_name(place.name, inline.spec.output_extension)
        async with self._turns.one(place.client):
            return await self._service.shards.made(
                inline.order(), name, gone, seconds_max=RUN_S_MAX
            )
