"""Interleaved classes: in each stretch of a shuffle, classes have the same proportions as overall.

A class with N records is put in random order, and the n-th record gets a word somewhere in the n-th
of N equal parts of all words. So below any word, a class is off by at most one record from its even
pace; and the sum of the others, which moves the end of a stretch, by one for each of them. Of K
classes, a class with the share p of all records has p n of the first n records, plus or minus
1 + (K - 2) p at most. Any stretch is the difference of two such, with twice that bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal

from dsort.errors import ContentKeyError
from dsort.naming.names import readable
from dsort.option_fields import option
from dsort.order.content import SCALAR, Content
from dsort.order.placement import WORDS, Named, Placement, checked_field, field_content
from dsort.order.value import PlacedBy

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable
    from dsort.order.class_numbers import ClassPlaces

CLASS_BYTES_MAX: Final = 4096
"""A longer value is no label."""


class _Class(Named, frozen=True):
    """The class of a record: any text, number or truth value."""

    noun: ClassVar[str] = "class"
    missing_hint: ClassVar[str] = "interleave.missing: keep makes them a class of their own"
    wrong_hint: ClassVar[str] = "interleave.by names a member or a field with a text or a number"


class Interleave(Placement, frozen=True):
    """Classes in proportion, everywhere."""

    by_class: ClassVar[bool] = True

    by: str = option(
        str,
        "What says the class of a record: a member (`cls`), a field of its JSON (`json.label`), "
        "the column of a table or the field of a line (`label`), or an expression as of the step "
        "filter. Up to 65,536 classes.",
        examples=("cls", "json.label", "size(json.text) < 512"),
        check=checked_field,
        required="a member (cls) or a field of its JSON (json.label)",
    )
    json_field: str | None = option(
        str | None,
        "The field, where `by` is a member whose extension has a dot: `by: info.json`, "
        "`json_field: label`.",
        examples=("label",),
    )
    missing: str = option(
        Literal["abort", "keep"],
        "Where a record has no such member or field. abort: the job fails and names it. keep: "
        "those are a class of their own, that of the empty text.",
        default="abort",
    )

    @property
    def content(self) -> Content | PlacedBy:
        """The content with the class."""
        missing = "first" if self.missing == "keep" else "abort"
        return field_content(_Class, self.by, self.json_field, SCALAR, missing)

    @property
    def in_words(self) -> str:
        """Its text in the summary of a job."""
        return f"interleaved by {self.by}"

    def classes(self, records: RecordTable) -> BytesColumn:
        """The class of each record. ``ContentKeyError`` for one that is too long."""
        import numpy as np

        found = Placement.classes(self, records)
        long = np.flatnonzero(found.lengths > CLASS_BYTES_MAX).tolist()
        if long:
            raise ContentKeyError(
                f"{self.by} of record {readable(records.keys[long[0]])} of shard {records.shard} "
                f"is no class: it has more than {CLASS_BYTES_MAX:,} bytes",
                hint=_Class.wrong_hint,
            )
        return found

    def sort_keys(self, records: RecordTable, found: ClassPlaces, hashes: UInt64s) -> SortKeys:
        """Words that are spread evenly within each class."""
        import numpy as np

        from dsort.data.index import SortKeys

        step = np.uint64(WORDS) // found.total.astype(np.uint64)
        return SortKeys(len(records), words=found.place.astype(np.uint64) * step + hashes % step)
