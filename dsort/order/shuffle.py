"""The algorithm ``shuffle``: a permutation that a seed decides, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dsort.order.base import Algorithm, seed_option

if TYPE_CHECKING:
    from dsort.data.columns import UInt64s
    from dsort.data.index import SortKeys
    from dsort.order.table import RecordTable

__all__ = ["Shuffle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle(Algorithm):
    """By a hash of seed, shard name and record key. The shard's name is in it because many data
    sets number their keys anew in every shard."""

    kind: ClassVar[str] = "shuffle"
    summary: ClassVar[str] = "by a hash of seed, shard name and record key"
    words: ClassVar[str] = "shuffle"
    is_random: ClassVar[bool] = True
    spreads_evenly: ClassVar[bool] = True
    decided_by_inputs: ClassVar[bool] = True
    is_sort_key: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    seed: str | None = seed_option()

    @property
    def has_texts(self) -> bool:
        """None: hashes are words."""
        return False

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The hashes."""
        from dsort.data.index import SortKeys

        return SortKeys(len(records), words=self.hashes(records.shard, records.key_hash))

    def hashes(self, shard: str, key_hash: UInt64s) -> UInt64s:
        """The hash of each record of an input shard."""
        from dsort.data.hashes import shard_seed, shuffle_words

        return shuffle_words(key_hash, shard_seed(self.seed or "", shard))
