"""All algorithms, by kind. This module has the shuffle, a permutation that depends on a seed and is
the same everywhere, and the algorithms that sort by record keys, by nothing, or by several sort
keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
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
from dsort.order.content import Content
from dsort.order.placement import Batches, Interleave, Placement, is_expression
from dsort.order.value import Value
from dsort.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsort.data.columns import Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable


def _one_placement(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    batches, interleave = options["batches"], options["interleave"]
    for name, each, by in (
        ("interleave", interleave, interleave and interleave.by),
        ("batches", batches, batches and batches.similar),
    ):
        if not (each and is_expression(by)):
            continue
        for option_name, default in (("json_field", None), ("missing", "abort")):
            if getattr(each, option_name) != default:
                hint = "has(json.score) ? json.score : 0.0"
                yield f"{name}.{option_name}", "cannot be combined with an expression", hint
    if batches and interleave:
        yield "batches", "cannot be combined with interleave", "each of them alone places records"
    if batches and batches.window < batches.records:
        text = f"{batches.window:,} records are less than a batch of {batches.records:,}"
        yield "batches.window", text, "use 100000, the default, or some hundred batches"


class Shuffle(Algorithm, frozen=True):
    """By a hash of seed, shard name and record key. The hash includes the shard's name because many
    data sets number their keys anew in every shard. With ``interleave`` or ``batches``, each record
    gets a number, and the numbers decide the order in place of the hash."""

    kind: ClassVar[str] = "shuffle"
    summary: ClassVar[str] = "by a hash of seed, shard name and record key"
    words: ClassVar[str] = "shuffle"
    is_random: ClassVar[bool] = True
    spreads_evenly: ClassVar[bool] = True
    decided_by_inputs: ClassVar[bool] = True
    is_sort_key: ClassVar[bool] = True
    joins: ClassVar[bool] = True
    checks: ClassVar[tuple[Check, ...]] = (Check(("interleave", "batches"), _one_placement),)

    seed: str | None = seed_option()
    interleave: Interleave | None = option(
        Interleave | None,
        "Of a shuffle: in every stretch of an output, the classes of records have the same "
        "proportions as in the whole output. Inputs are read once more, to count the classes.",
        examples=({"by": "cls"},),
    )
    batches: Batches | None = option(
        Batches | None,
        "Of a shuffle: the records of a batch have similar values of a number, and batches are in "
        "random order. Inputs are read once more, to count records.",
        examples=({"records": 64, "similar": "json.length"},),
    )

    @property
    def placement(self) -> Placement | None:
        """Interleaved classes, batches, or None."""
        return self.interleave or self.batches

    @property
    def seed_text(self) -> str:
        """The seed, which is set by the time a job begins."""
        return self.seed or ""

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that the placement reads."""
        return self.placement.content.extensions if self.placement is not None else ()

    @property
    def in_words(self) -> str:
        """The text for the algorithm in the summary of a job."""
        return f"{self.words}, {self.placement.in_words}" if self.placement else self.words

    @property
    def has_texts(self) -> bool:
        """False: hashes are words."""
        return False

    @property
    def has_hashes(self) -> bool:
        """True."""
        return True

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The hashes."""
        from dsort.data.index import SortKeys

        words = self.hashes(
            records.shard,
            records.key_hash,
            records.earlier,
            are_distinct=records.are_distinct,
        )
        return SortKeys(len(records), words=words)

    def hashes(
        self,
        shard: str,
        key_hash: UInt64s,
        earlier: Int64s | None = None,
        *,
        are_distinct: bool = False,
    ) -> UInt64s:
        """The hash of each record of an input shard."""
        from dsort.data.hashes import shard_seed, shuffle_words

        seed = shard_seed(self.seed_text, shard)
        return shuffle_words(key_hash, seed, earlier, are_distinct=are_distinct)


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
        """The text for the algorithm in the summary of a job."""
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
"""The digest of the empty text. The sort key of AIStore is the name, followed by this digest."""


class Md5(Algorithm, frozen=True):
    """By the MD5 digest of the record key. By name, as in AIStore: in the order of the names; but
    of two names, one of which begins with the other, the longer usually comes first."""

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
        """The text for the algorithm in the summary of a job."""
        by_name = "md5: sorted by name of the first member, as AIStore does"
        words = by_name if self.compare == "name" else self.words
        return words + ", decreasing" * self.decreasing

    @property
    def is_spread_evenly(self) -> bool:
        """True for digests, False for names."""
        return self.compare != "name"

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The digests: the first half as words, the rest as text. For names: the whole key as
        text."""
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


def _some_keys(keys: Sequence[Any]) -> Sequence[Any]:
    if not 1 <= len(keys) <= _KEYS_MAX:
        raise OptionError(f"needs from 1 to {_KEYS_MAX} keys, not {len(keys)}")
    return keys


def _shuffle_is_last(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """A shuffle has to be the last key, because its hashes do not tie."""
    for number, key in enumerate((options["keys"] or ())[:-1]):
        if key.type.is_random:
            text = "leaves nothing to the keys behind it: no two hashes tie"
            yield f"keys[{number}]", f"{key.kind} {text}", "make it the last key"


class Keys(Algorithm, frozen=True):
    """By several sort keys, each an algorithm: if records tie by one key, the next one orders them.
    With ``shuffle`` as the last key, records that tie by all other keys are shuffled."""

    kind: ClassVar[str] = "keys"
    summary: ClassVar[str] = "by several sort keys"
    words: ClassVar[str] = "keys"
    checks: ClassVar[tuple[Check, ...]] = (Check(("keys",), _shuffle_is_last),)

    keys: tuple[Algorithm, ...] = option(
        tuple[Algorithm, ...] | None,
        "Of keys: the sort keys. The first key decides first. Each is an algorithm with its "
        "options: alphanumeric, md5, content, and shuffle as the last key.",
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
        """The sort keys, with the seed."""
        return tuple(
            replace(each, seed=self.seed) if each.is_random else each for each in self.keys
        )

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that the sort keys read, each once."""
        return tuple(dict.fromkeys(name for each in self.keys for name in each.extensions))

    @property
    def has_hashes(self) -> bool:
        """Whether a shuffle is the last sort key."""
        return self._parts[-1].has_hashes

    @property
    def asks_for_keys(self) -> bool:
        """Whether some key orders by record keys."""
        return any(each.asks_for_keys for each in self.keys)

    @property
    def in_words(self) -> str:
        """The text for the algorithm in the summary of a job."""
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
    ) -> UInt64s:
        """The hashes of the shuffle that is the last key: they order records that tie by all other
        keys."""
        return self._parts[-1].hashes(shard, key_hash, earlier, are_distinct=are_distinct)


@total_ordering
class _Value:
    """The value of one key, which compares in the order of this key."""

    __slots__ = ("decreasing", "value")

    def __init__(self, value: SortValue, decreasing: bool) -> None:
        self.value = value
        self.decreasing = decreasing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: _Value) -> bool:
        return other.value.comes_after(self.value, decreasing=self.decreasing)


BUILT_IN: Final[tuple[type[Algorithm], ...]] = (
    InputOrder,
    Alphanumeric,
    Shuffle,
    Md5,
    Content,
    Keys,
    Value,
)

ALGORITHMS: Final[Registry[type[Algorithm]]] = Registry(
    "dsort.algorithms", lambda each: (each.kind,), BUILT_IN
)

DEFAULT_KIND: Final = Alphanumeric.kind


def register(algorithm: type[Algorithm]) -> None:
    """Add an algorithm. Specs that are read from now on may name it. Worker processes have to be
    able to import its module. ``ValueError`` if its kind exists already. A package names its
    algorithms in the entry points ``dsort.algorithms`` instead."""
    ALGORITHMS.register(algorithm)


def is_random(kind: object) -> bool:
    """Whether algorithms of this kind shuffle; False for an unknown kind."""
    known = ALGORITHMS.get(kind) if isinstance(kind, str) else None
    return known is not None and known.is_random


def takes_seed(algorithm: object) -> bool:
    """Whether the order depends on a seed. ``algorithm``: the fields of an algorithm in a spec;
    False if it is no algorithm at all."""
    if not isinstance(algorithm, Mapping):
        return False
    keys = algorithm.get("keys")
    among_keys = isinstance(keys, (list, tuple)) and any(map(takes_seed, keys))
    return among_keys or is_random(algorithm.get("kind"))
