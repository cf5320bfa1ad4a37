"""A kind of sidecars from outside the package: the names in each shard, and how many records all
shards have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dsort.sidecars.base import ResultShards, Sidecar
from tests.support.internals import MemberTable


class ContentsList(Sidecar):
    """``s.tar.contents``, a name a line; and ``contents.total``."""

    kind: ClassVar[str] = "contents"
    extensions: ClassVar[tuple[str, ...]] = (".tar", ".jsonl")
    has_shard_files: ClassVar[bool] = True
    lists_shards: ClassVar[bool] = True

    def shard_file(self, shard: str) -> str:
        return f"{shard}.contents"

    def of_shard(self, shard: str, members: MemberTable, file_bytes: int) -> bytes:
        return b"".join(name + b"\n" for name in members.names.tolist())

    def result_files(self, shards: Sequence[str]) -> Sequence[str]:
        return ["contents.total"]

    def of_result(self, name: str, result: ResultShards) -> bytes:
        return b"%d\n" % sum(result.records.values())
