"""The contract of a kind of sidecars: files beside the shards of a result, for their readers.

A kind has a file for each shard, files for the whole result, or both. Workers make the file of a
shard while they write the shard, and the job makes files for the whole result before it commits.
``dsort verify`` makes all these files again, from the shards, and compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

if TYPE_CHECKING:  # reading a spec must not load NumPy
    from dsort.data.members import MemberTable


class ResultShards(Struct, frozen=True):
    """The shards of a result, in output order. ``records``: the number of records of each shard, by
    the name of the shard. ``checksums``: the XXH3 of each shard, in hexadecimal digits. ``sha256``:
    the SHA-256 of each shard, in hexadecimal digits; "" if the job has none. ``file_bytes``: the
    size of each shard. ``splits``: the shards of each split, by its name in the spec ("": there is
    one split)."""

    records: Mapping[str, int]
    splits: Mapping[str, Sequence[str]]
    checksums: Sequence[str]
    sha256: Sequence[str] = ()
    file_bytes: Sequence[int] = ()


class Sidecar:
    """A kind of sidecars. The bytes of its files depend only on the arguments of its methods."""

    kind: ClassVar[str]
    """The name of the kind in the field ``index`` of a spec."""
    extensions: ClassVar[tuple[str, ...]] = ()
    """The extensions of shards that its readers can read; (): all. A kind with a file for each
    shard must name extensions: of containers of members or lines, without a codec."""
    has_shard_files: ClassVar[bool] = False
    lists_shards: ClassVar[bool] = False
    """Whether the kind has files for the whole result."""
    moves: ClassVar[bool] = False
    """Whether these files are in the directory of the shards, if the shards have one."""

    needs_sha256: ClassVar[bool] = False
    """Whether these files list the SHA-256 of shards."""

    def reads(self, extension: str) -> bool:
        """Whether readers of this kind can read shards of ``extension``."""
        return not self.extensions or extension in self.extensions

    def shard_file(self, shard: str) -> str:
        """The name of the file for ``shard``."""
        return f"{shard}.idx"

    def of_shard(self, shard: str, members: MemberTable, file_bytes: int) -> bytes:
        """The content of the file for ``shard``. ``members``: the members of the shard.
        ``file_bytes``: the size of the shard. ``InputError`` if this kind cannot describe its
        content."""
        raise NotImplementedError

    def result_files(self, shards: Sequence[str]) -> Sequence[str]:
        """The names of the files for the whole result, whose shards are called ``shards``."""
        return ()

    def of_result(self, name: str, result: ResultShards) -> bytes:
        """The content of the file ``name`` for the whole result."""
        raise NotImplementedError
