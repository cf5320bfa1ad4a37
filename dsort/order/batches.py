"""Batches of similar records: a shuffle in windows, in which similar records are side by side.

The records of one window of the shuffled order are sorted by a number and cut into batches, and the
batches are shuffled. Windows have whole batches, except the last one of an output, whose last batch
may be smaller and comes last.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from dsort.option_fields import OptionError, option
from dsort.order.content import Content
from dsort.order.placement import WORDS, Named, Placement, checked_field, field_content
from dsort.order.value import PlacedBy

if TYPE_CHECKING:
    from dsort.data.columns import Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable
    from dsort.order.class_numbers import ClassPlaces


def batch_hash(seed: str, group: int, word: int, batch: int) -> int:
    """The hash that orders the batches of one window: the window of the sort word ``word``, in one
    output."""
    import xxhash  # not loaded by help texts, which load this module

    outer = xxhash.xxh3_64_intdigest(f"batches {seed}".encode("utf-8", "surrogateescape"))
    return xxhash.xxh3_64_intdigest(b"%d %d %d" % (group, word, batch), seed=outer)


class _Similar(Named, frozen=True):
    """The number in which the records of a batch are similar."""

    noun: ClassVar[str] = "number to sort by"
    missing_hint: ClassVar[str] = "batches.missing: first or last keeps such records"
    wrong_hint: ClassVar[str] = "batches.similar names a member or a field with a number"


def _positive(value: int) -> int:
    if value < 1:
        raise OptionError("must be at least 1", names_value=True)
    return value


class Batches(Placement, frozen=True):
    """Records that are alike, together."""

    records: int = option(
        int,
        "How many records a batch has.",
        examples=(64,),
        check=_positive,
        required="how many records a batch has",
    )
    similar: str = option(
        str,
        "The number that the records of a batch have about the same of: a member (`length`), a "
        "field of its JSON (`json.length`), the column of a table or the field of a line "
        "(`length`), or an expression as of the step filter (`size(json.text)`).",
        examples=("json.length", "size(json.text)"),
        check=checked_field,
        required="a member (length) or a field of its JSON (json.length)",
    )
    json_field: str | None = option(
        str | None,
        "The field, where `similar` is a member whose extension has a dot.",
        examples=("length",),
    )
    window: int = option(
        int,
        "In so many records of the shuffled order batches are made and shuffled; rounded down to "
        "whole batches. A window should fit in the memory of a worker.",
        default=100_000,
        check=_positive,
    )
    missing: str = option(
        Literal["abort", "first", "last"],
        "Where a record without the number goes: abort fails the job and names it; first and last: "
        "before and behind all others of its window, before batches are shuffled.",
        default="abort",
    )

    @property
    def window_records(self) -> int:
        """The number of records in a window."""
        return self.window - self.window % self.records

    @property
    def content(self) -> Content | PlacedBy:
        """The content with that number."""
        return field_content(_Similar, self.similar, self.json_field, "float", self.missing)

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job."""
        window = f"in windows of {self.window_records:,}"
        return f"in batches of {self.records:,} with about the same {self.similar}, {window}"

    def sort_keys(self, records: RecordTable, found: ClassPlaces, hashes: UInt64s) -> SortKeys:
        """Words by window; texts with the number and the place within the window."""
        import numpy as np

        from dsort.data.index import SortKeys
        from dsort.order.sort import joined_keys

        count, window = len(records), self.window_records
        step = np.uint64(WORDS) // (-(-found.total // window)).astype(np.uint64)
        within = joined_keys(
            [
                self.content.sort_keys(records),
                SortKeys(count, words=found.place.astype(np.uint64)),
            ],
            decreasing=[False, False],
            has_texts=[False, False],
            count=count,
        )
        words = (found.place // window).astype(np.uint64) * step
        return SortKeys(count, words=words, text=within.text)

    def arranged(self, keys: SortKeys, order: Int64s, seed: str) -> Int64s:
        """``order`` with the batches of each window shuffled."""
        import numpy as np

        if not len(order):
            return order
        assert keys.words is not None, "windows are words"
        words = keys.words[order]
        group = np.zeros(len(order), np.int32) if keys.group is None else keys.group[order]
        begins = np.flatnonzero((words[1:] != words[:-1]) | (group[1:] != group[:-1])) + 1
        parts: list[Int64s] = []
        for start, stop in pairwise([0, *begins.tolist(), len(order)]):
            whole = (stop - start) // self.records
            at = (int(group[start]), int(words[start]))
            drawn = sorted(range(whole), key=lambda batch: batch_hash(seed, *at, batch))
            end = start + whole * self.records
            table = order[start:end].reshape(whole, self.records)
            parts += [table[drawn].reshape(-1), order[end:stop]]
        return np.concatenate(parts)
