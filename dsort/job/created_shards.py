"""The output shards that are staged, by ordinal: a million of them with the receipts of uploads."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from dsort.data.packed_texts import TextsByNumber
from dsort.scratch.logs import CreatedShard

__all__ = ["CreatedShards"]


class CreatedShards(MutableMapping[int, CreatedShard]):
    """As a dictionary, in a third of the memory: receipts are most of it."""

    def __init__(self) -> None:
        self._texts = TextsByNumber()

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __contains__(self, ordinal: object) -> bool:
        return ordinal in self._texts

    def __getitem__(self, ordinal: int) -> CreatedShard:
        checksum, md5, file_bytes, receipt = self._texts[ordinal].split("\0", 3)
        return CreatedShard(ordinal, checksum, receipt, md5, int(file_bytes))

    def __setitem__(self, ordinal: int, shard: CreatedShard) -> None:
        self._texts[ordinal] = f"{shard.checksum}\0{shard.md5}\0{shard.file_bytes}\0{shard.receipt}"

    def __delitem__(self, ordinal: int) -> None:
        del self._texts[ordinal]
