"""Shards that are transformed while they are read: each is a job of one shard, in a process of its
own.

The result is what ``dsort transform`` would have written, byte for byte. It is complete before its
first byte is sent: so if a step fails at a record, the client gets an error, and not a shard that
ends too soon.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dsort.errors import SpecError, SpecProblem, TooLargeError
from dsort.job.output_names import kept_name
from dsort.naming.names import archive_extension
from dsort.service.jobs.submit import Submitter
from dsort.service.objects.places import ObjectPlace
from dsort.service.objects.processes import Gone, MadeFile, ShardProcesses, Turns
from dsort.service.security.tokens import Identity
from dsort.sizes import format_bytes
from dsort.spec.buckets import bucket_value
from dsort.spec.model import JobSpec
from dsort.storage.network_policy import FetchPolicy

__all__ = ["INLINE_BYTES_MAX", "InlineSpec", "InlineTransforms", "inline_spec"]

INLINE_BYTES_MAX: Final = 4 << 30
"""Larger shards need a job."""


def inline_spec(place: ObjectPlace, use: str, directory: Path) -> dict[str, Any]:
    """The spec of the job that transforms one shard. ``SpecError`` if the object is not a shard."""
    extension = archive_extension(place.name)
    if extension is None:
        raise SpecError([SpecProblem("name", "is not that of a shard: only shards have records")])
    return {
        "input_bck": bucket_value(place.ref),
        "input_format": {"objnames": [place.name]},
        "input_extension": extension,
        "output_bck": f"file://{directory}",
        "keep_shards": True,
        "algorithm": {"kind": "none"},
        "transform": {"use": use},
    }


class InlineSpec(Struct, frozen=True):
    """The spec of such a job, and the places that the job may use."""

    spec: JobSpec
    fetch: FetchPolicy

    def order(self) -> dict[str, Any]:
        """The same as an order for the process that does the job."""
        return {"spec": self.spec.canonical(), "fetch": self.fetch.to_json()}


class InlineTransforms:
    """Transforms shards for requests."""

    def __init__(self, processes: ShardProcesses, submitter: Submitter) -> None:
        self._processes = processes
        self._submitter = submitter
        self.turns = Turns()

    def spec(self, place: ObjectPlace, use: str, identity: Identity) -> InlineSpec:
        """The checked spec of the job, without the place that it writes to. ``SpecError`` if there
        is no such transform, ``ForbiddenError`` if it may not run, or reads files that ``identity``
        may not read."""
        written = inline_spec(place, use, Path("/unknown"))
        spec, file_uris = self._submitter.read_inline(written, identity)
        return InlineSpec(spec, place.policy(self._submitter.policy, file_uris))

    async def run(
        self, inline: InlineSpec, size_bytes: int, client: str, gone: Gone
    ) -> tuple[MadeFile, ExitStack]:
        """The transformed shard, and what to close once it is sent. ``ShardProblemError``,
        ``DsortError`` if it could not be made."""
        if size_bytes > INLINE_BYTES_MAX:
            raise TooLargeError(
                f"the shard has {format_bytes(size_bytes)}, over {format_bytes(INLINE_BYTES_MAX)}",
                hint="`dsort transform` makes all of a bucket's shards, of any size",
            )
        (shard,) = inline.spec.sources[0].format.objnames or ("",)
        name = kept_name(shard, inline.spec.output_extension)
        async with self.turns.one(client):
            return await self._processes.made(inline.order(), name, gone)
