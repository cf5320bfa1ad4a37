"""The algorithm ``keys``: several sort keys, each of which decides where the earlier ones tie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec.structs import replace

from dsort.option_fields import Check, OptionError, option
from dsort.order.base import Algorithm, Record, SortValue, seed_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsort.data.columns import Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable

_KEYS_MAX: Final = 16


def _some_keys(keys: Sequence[Any] | None) -> Sequence[Any] | None:
    if keys is not None and not 1 <= len(keys) <= _KEYS_MAX:
        raise OptionError(f"needs from 1 to {_KEYS_MAX} keys, not {len(keys)}")
    return keys


def _shuffle_is_last(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """A shuffle has to be the last key, because its hashes do not tie."""
    for number, key in enumerate((options["keys"] or ())[:-1]):
        if key.type.is_random:
            text = "leaves nothing to the keys behind it: no two hashes tie"
            yield f"keys[{number}]", f"{key.kind} {text}", "make it the last one"


class Keys(Algorithm, frozen=True):
    """By several sort keys, each of which is an algorithm: records that tie by one are ordered by
    the next. With ``shuffle`` as the last one, records that tie by all others are shuffled."""

    kind: ClassVar[str] = "keys"
    summary: ClassVar[str] = "by several sort keys"
    words: ClassVar[str] = "keys"
    checks: ClassVar[tuple[Check, ...]] = (Check(("keys",), _shuffle_is_last),)

    keys: tuple[Algorithm, ...] = option(
        tuple[Algorithm, ...] | None,
        "Of keys: the sort keys, the one first that decides first. Each is an algorithm with its "
        "options: alphanumeric, md5, content, and shuffle as the last one.",
        examples=(
            (
                {"kind": "content", "extension": ".cls", "content_key_type": "int"},
                {"kind": "shuffle"},
            ),
        ),
        check=_some_keys,
        is_sequence=True,
        required="what to sort by: [{kind: md5}, ...]",
    )
    seed: str | None = seed_option()

    @property
    def _parts(self) -> tuple[Algorithm, ...]:
        """The keys, with the seed."""
        return tuple(
            replace(each, seed=self.seed) if each.is_random else each for each in self.keys
        )

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of all keys, each once."""
        return tuple(dict.fromkeys(name for each in self.keys for name in each.extensions))

    @property
    def asks_for_keys(self) -> bool:
        """Whether some key orders by record keys."""
        return any(each.asks_for_keys for each in self.keys)

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job."""
        return "keys: " + "; then ".join(each.in_words for each in self.keys)

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The sort keys of all keys, as bytes side by side: some 50 ns a record in addition."""
        from dsort.order.sort import joined_keys

        return joined_keys(
            [each.sort_keys(records) for each in self._parts],
            decreasing=[each.decreasing for each in self._parts],
            has_texts=[each.has_texts for each in self._parts],
            count=len(records),
        )

    def expected(self, record: Record) -> SortValue | None:
        """The values of all keys. A shuffle at the end is compared by :meth:`hashes`."""
        values: list[_Value] = []
        for each in self.keys:
            if each.is_random:
                continue
            value = each.expected(record)
            if value is None:
                return None
            values.append(_Value(value, each.decreasing))
        return SortValue(1, tuple(values))

    def hashes(
        self,
        shard: str,
        key_hash: UInt64s,
        earlier: Int64s | None = None,
        *,
        are_distinct: bool = False,
    ) -> UInt64s | None:
        """The hashes that order the records that tie by all keys before a shuffle."""
        return self._parts[-1].hashes(shard, key_hash, earlier, are_distinct=are_distinct)


@total_ordering
@dataclass(frozen=True, slots=True)
class _Value:
    """The value of one key, in the order of that key."""

    value: SortValue
    decreasing: bool

    def __lt__(self, other: _Value) -> bool:
        return other.value.comes_after(self.value, decreasing=self.decreasing)
