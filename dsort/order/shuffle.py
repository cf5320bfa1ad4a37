"""The algorithm ``shuffle``: a permutation that depends on a seed, and is the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dsort.option_fields import Check, option
from dsort.order.base import Algorithm, seed_option
from dsort.order.placement import Batches, Interleave, Placement, is_expression

if TYPE_CHECKING:
    from dsort.data.columns import Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable


def _one_placement(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    batches, interleave = options["batches"], options["interleave"]
    for name, each, by in (
        ("interleave", interleave, interleave and interleave.by),
        ("batches", batches, batches and batches.similar),
    ):
        if each is None or not is_expression(by):
            continue
        for option_name, default in (("json_field", None), ("missing", "abort")):
            if getattr(each, option_name) != default:
                hint = "has(json.score) ? json.score : 0.0"
                yield f"{name}.{option_name}", "cannot be combined with an expression", hint
    if batches is None:
        return
    if options["interleave"] is not None:
        yield "batches", "cannot be combined with interleave", "each says alone where records go"
    if batches.window < batches.records:
        text = f"{batches.window:,} records are less than a batch of {batches.records:,}"
        yield "batches.window", text, "100000, the default, or some hundred batches"


class Shuffle(Algorithm, frozen=True):
    """By a hash of seed, shard name and record key. It includes the shard's name because many data
    sets number their keys anew in every shard. Records may be placed by their numbers instead."""

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
        "Of a shuffle: every stretch of an output has the classes of its records in the proportion "
        "that all of them have. Inputs are read once more before, to count.",
        examples=({"by": "cls"},),
    )
    batches: Batches | None = option(
        Batches | None,
        "Of a shuffle: batches of records that have about the same of a number, the batches in "
        "random order. Inputs are read once more before, to count.",
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
        """Its text in the summary of a job."""
        return f"{self.words}, {self.placement.in_words}" if self.placement else self.words

    @property
    def has_texts(self) -> bool:
        """False: hashes are words."""
        return False

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
