"""Members of shards for requests of AIStore's clients: their names, and one of them.

Each shard is read by a process of its own, because a shard may make its reader slow or crash it.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any, Final

from dsort.errors import SpecError, SpecProblem, TooLargeError
from dsort.naming.names import archive_extension
from dsort.service.config import ServiceConfig
from dsort.service.objects.listing import Entry
from dsort.service.objects.places import ObjectPlace
from dsort.service.objects.processes import Gone, MadeFile, ShardProcesses, Turns
from dsort.service.objects.shard_main import MEMBERS_FILE
from dsort.service.security.policy import SpecPolicy
from dsort.sizes import format_bytes
from dsort.spec.buckets import bucket_value

__all__ = ["LIST_BYTES_MAX", "ShardMembers", "has_members"]

LIST_BYTES_MAX: Final = 64 << 20
_CONTAINERS: Final = (".tar", ".tgz", ".zip")


def has_members(name: str) -> bool:
    """Whether an object of this name is an archive of files, and not a file of lines or rows."""
    extension = archive_extension(name)
    return extension is not None and extension.startswith(_CONTAINERS)


class ShardMembers:
    """Lists and reads the members of shards."""

    def __init__(self, processes: ShardProcesses, config: ServiceConfig) -> None:
        self._processes = processes
        self._config = config
        self._turns = Turns()

    async def listed(
        self, place: ObjectPlace, policy: SpecPolicy, client: str, gone: Gone
    ) -> list[Entry]:
        """The files in a shard, in its order, with the names that a list shows.
        ``ShardProblemError``, ``DsortError``."""
        made, ends = await self._made(place, policy, {"look": "list"}, client, gone)
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

    async def member(
        self, place: ObjectPlace, path: str, policy: SpecPolicy, client: str, gone: Gone
    ) -> tuple[MadeFile, ExitStack]:
        """The file ``path`` in a shard, and what to close once it is sent. Errors as for
        ``listed``."""
        return await self._made(place, policy, {"look": "member", "member": path}, client, gone)

    async def _made(
        self,
        place: ObjectPlace,
        policy: SpecPolicy,
        order: dict[str, Any],
        client: str,
        gone: Gone,
    ) -> tuple[MadeFile, ExitStack]:
        if not has_members(place.name):
            raise SpecError([SpecProblem("name", "is not that of a tar or a zip")])
        fetch = place.policy(policy).to_json()
        where = {"bucket": bucket_value(place.ref), "name": place.name, "fetch": fetch}
        async with self._turns.one(client):
            return await self._processes.made({**where, **order}, MEMBERS_FILE, gone)
