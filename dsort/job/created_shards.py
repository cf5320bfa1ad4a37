"""The output shards that are staged, by ordinal: a million of them with the receipts of uploads."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableMapping

import numpy as np

from dsort.data.columns import Int64s
from dsort.data.packed_texts import TextsByNumber
from dsort.scratch.logs import ShardCreated


class CreatedShards(MutableMapping[int, ShardCreated]):
    """As a dictionary, in a third of the memory: receipts are most of it."""

    def __init__(self) -> None:
        self._texts = TextsByNumber()
        self._file_bytes = array("q")

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __contains__(self, ordinal: object) -> bool:
        return ordinal in self._texts

    def __getitem__(self, ordinal: int) -> ShardCreated:
        checksum, md5, receipt = self._texts[ordinal].split("\0", 2)
        return ShardCreated(ordinal, checksum, receipt, md5, self._file_bytes[ordinal])

    def __setitem__(self, ordinal: int, shard: ShardCreated) -> None:
        self._texts[ordinal] = f"{shard.xxh3}\0{shard.md5}\0{shard.receipt}"
        more = ordinal + 1 - len(self._file_bytes)
        if more > 0:
            self._file_bytes.extend([-1] * more)
        self._file_bytes[ordinal] = shard.file_bytes

    def __delitem__(self, ordinal: int) -> None:
        del self._texts[ordinal]

    def checksum(self, ordinal: int) -> str:
        """XXH3 of one of them. Each commit needs all checksums and receipts, and nothing else."""
        return self._texts[ordinal].partition("\0")[0]

    def receipt(self, ordinal: int) -> str:
        """What publishing one of them needs."""
        return self._texts[ordinal].split("\0", 2)[2]

    def file_bytes(self) -> Int64s:
        """How long each is, shape ``(n,)``, if none is missing; -1 where that is not known."""
        return np.array(self._file_bytes, np.int64)
