"""The algorithms that sort records by their keys, by nothing, or by several sort keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec.structs import replace

from dsort.option_fields import Check, OptionError, option
from dsort.order.base import (
    Algorithm,
    Record,
    SortValue,
    compare_option,
    decreasing_option,
    seed_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsort.data.columns import Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable


class InputOrder(Algorithm, frozen=True):
    """All sort keys are equal, and ties keep the order of the inputs."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "as they come in"
    words: ClassVar[str] = "none: as the records come in"
    decided_by_inputs: ClassVar[bool] = True
    joins_by_places: ClassVar[bool] = True

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """Sort keys without columns."""
        from dsort.data.index import SortKeys

        return SortKeys(len(records))


_TOKENS = re.compile(rb"([0-9]+)")


class Alphanumeric(Algorithm, frozen=True):
    """By the bytes of the record key; ``natural``: runs of digits compare as numbers."""

    kind: ClassVar[str] = "alphanumeric"
    summary: ClassVar[str] = "by record key"
    words: ClassVar[str] = "alphanumeric: sorted by name"
    needs_keys: ClassVar[bool] = True
    is_sort_key: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    decreasing: bool = decreasing_option()
    natural: bool = option(
        bool,
        "Of alphanumeric: runs of digits compare as numbers, so a9 comes before a10.",
        default=False,
    )
    compare: str | None = compare_option()

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job."""
        words = self.words + " of the first member" * (self.compare == "name")
        return words + ", numbers as numbers" * self.natural + ", decreasing" * self.decreasing

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The record keys, or the names of first members. Natural keys are rewritten, which takes
        1 µs a key."""
        from dsort.data.index import SortKeys
        from dsort.order.sort import natural_keys

        keys = records.first_names if self.compare == "name" else records.keys
        return SortKeys(len(records), text=natural_keys(keys.tolist()) if self.natural else keys)

    def expected(self, record: Record) -> SortValue:
        """The record key (or the name), or for ``natural`` a value that compares in that order."""
        key = record.first_name if self.compare == "name" else record.key
        return SortValue(1, natural_value(key) if self.natural else key)


def natural_value(key: bytes) -> tuple[object, ...]:
    """A value that compares like ``key`` if runs of digits count as numbers. A run sorts where the
    digit ``0`` would; keys that differ only in leading zeros compare by their bytes."""
    parts: list[tuple[int, int, bytes]] = []
    for position, part in enumerate(_TOKENS.split(key)):
        if position % 2:
            number = part.lstrip(b"0")  # numbers of equal length compare as their digits do
            parts.append((ord("0"), len(number), number))
        else:
            parts.extend((byte, 0, b"") for byte in part)
    return tuple(parts), key


_OF_NOTHING: Final = hashlib.md5(b"", usedforsecurity=False).digest()
"""AIStore hashes the empty text and appends the digest to the name: that is its key."""


class Md5(Algorithm, frozen=True):
    """By the MD5 digest of the record key. By name, as in AIStore: in the order of the names,
    except that a name that begins with another name mostly comes before it."""

    kind: ClassVar[str] = "md5"
    summary: ClassVar[str] = "by the MD5 digest of the record key"
    words: ClassVar[str] = "md5: sorted by the digest of the name"
    needs_keys: ClassVar[bool] = True
    is_sort_key: ClassVar[bool] = True
    spreads_evenly: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    decreasing: bool = decreasing_option()
    compare: str | None = compare_option()

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job."""
        by_name = "md5: sorted by name of the first member, as AIStore does"
        words = by_name if self.compare == "name" else self.words
        return words + ", decreasing" * self.decreasing

    @property
    def is_spread_evenly(self) -> bool:
        """True for digests, False for names."""
        return self.compare != "name"

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The digests: the first half as words, the rest as text. For names: all of it as text."""
        from dsort.data.columns import BytesColumn
        from dsort.data.hashes import md5_digests
        from dsort.data.index import SortKeys
        from dsort.data.row_bytes import side_by_side

        if self.compare == "name":
            behind = BytesColumn.of([_OF_NOTHING] * len(records))
            text = side_by_side([records.first_names, behind], len(records))
            return SortKeys(len(records), text=text)
        words, text = md5_digests(records.keys.tolist())
        return SortKeys(len(records), words=words, text=text)

    def expected(self, record: Record) -> SortValue:
        """The digest, or the value that AIStore compares."""
        if self.compare == "name":
            return SortValue(1, record.first_name + _OF_NOTHING)
        return SortValue(1, hashlib.md5(record.key, usedforsecurity=False).digest())


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
