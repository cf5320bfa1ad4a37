"""The algorithm ``shuffle``: a permutation that a seed decides, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from dsort.order.base import Algorithm, OptionError, option

if TYPE_CHECKING:
    from dsort.data.columns import UInt64s
    from dsort.data.index import SortKeys
    from dsort.order.table import RecordTable

__all__ = ["Shuffle"]

_SEED_SCHEMA: Final = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}


def _seed(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or isinstance(value, str):
        return value
    raise OptionError("must be a whole number or text", names_value=True)


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

    seed: str | None = option(
        str | None,
        "Of a shuffle: any whole number or text; 42 and '42' are the same seed. Absent: one is "
        "drawn, and recorded in the manifest.",
        check=_seed,
        before=True,
        json_schema=_SEED_SCHEMA,
        no_effect="{kind} is not random",
    )

    def keys(self, records: RecordTable) -> SortKeys:
        """The hashes."""
        from dsort.data.index import SortKeys

        return SortKeys(len(records), words=self.hashes(records.shard, records.key_hash))

    def hashes(self, shard: str, key_hash: UInt64s) -> UInt64s:
        """The hash of each record of an input shard."""
        from dsort.data.hashes import shard_seed, shuffle_words

        return shuffle_words(key_hash, shard_seed(self.seed or "", shard))
