"""Placements: a shuffle that places records by their numbers among all records of a class.

A record's place in its class is a random permutation (``data.hashes.permuted``) of its number in
the class, which a survey counts (``class_numbers``). So its place in the output is known when it is
read, whatever other workers read.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from msgspec.structs import replace

from dsort.errors import ContentKeyError
from dsort.naming.names import readable, shortened
from dsort.option_fields import OptionError, OptionGroup, option
from dsort.order.base import Record, SortValue
from dsort.order.content import SCALAR, Content
from dsort.order.value import PlacedBy, checked_expression

if TYPE_CHECKING:
    from dsort.data.columns import BytesColumn, Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable
    from dsort.order.class_numbers import ClassPlaces

WORDS: Final = (1 << 64) - 1
"""The number of sort words that places are spread over."""


class Placement(OptionGroup, frozen=True):
    """The rule by which records are placed."""

    by_class: ClassVar[bool] = False
    """Whether records are numbered by class; else all records of an output are in one class."""

    @property
    def content(self) -> Content | PlacedBy:
        """The content of records that it reads."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """The text for the placement in the summary of a job, behind "shuffle"."""
        raise NotImplementedError

    def classes(self, records: RecordTable) -> BytesColumn:
        """The class of each record."""
        from dsort.data.columns import BytesColumn

        if not self.by_class:
            return BytesColumn.empty(len(records))
        return self.content.sort_keys(records).texts

    def sort_keys(self, records: RecordTable, found: ClassPlaces, hashes: UInt64s) -> SortKeys:
        """The sort keys of records whose places are known. ``hashes``: of the shuffle."""
        raise NotImplementedError

    def arranged(self, keys: SortKeys, order: Int64s, seed: str) -> Int64s:
        """The final order. ``order``: the rows of ``keys``, sorted by ``keys``."""
        return order

    def expected(self, record: Record) -> SortValue | None:
        """The value that it reads from a record, in plain Python: the class, or the number."""
        return self.content.expected(record)


_OF_EXPRESSIONS: Final = frozenset("()[]<>=!&|?+*'\"")


def is_expression(text: str) -> bool:
    """Whether a text in a spec is an expression, and not the name of a member and its field."""
    return not _OF_EXPRESSIONS.isdisjoint(text)


def member_and_field(text: str, json_field: str | None) -> tuple[str, str | None]:
    """Return (extension with its dot, field of its JSON) for a text in a spec, such as ``cls`` or
    ``json.length``. Without ``json_field``, the text has the field behind its first dot."""
    name = text.removeprefix(".")
    if json_field is not None:
        return f".{name}", json_field
    extension, _, field = name.partition(".")
    return f".{extension}", field or None


def checked_field(text: str) -> str:
    """``text`` itself; ``OptionError`` unless it names a member and its field, or is an
    expression."""
    if is_expression(text):
        return checked_expression(text)
    if not all(text.removeprefix(".").split(".")) or "/" in text.partition(".")[0]:
        raise OptionError(
            f'"{shortened(text)}" names no member', 'a member, or a field of its JSON: "json.label"'
        )
    return text


class Named(Content, frozen=True):
    """Content by a bare name (``json_field`` is None). In a record that consists of JSON only, it
    is the field of that name."""

    @property
    def _of_json(self) -> Content | None:
        """The content of records that are nothing but JSON, if that is a field."""
        if self.json_field is not None or self.extension == ".json":
            return None
        return replace(self, extension=".json", json_field=self.extension.removeprefix("."))

    def _values(self, records: RecordTable) -> list[int | float | bytes | None]:
        of_json = self._of_json
        are_fields = records.json_alone() >= 0
        if of_json is None or not are_fields.any():
            return super()._values(records)
        values = iter(super()._values(records.keeping(~are_fields)))
        fields = iter(of_json._values(records.keeping(are_fields)))
        return [next(fields if is_field else values) for is_field in are_fields.tolist()]

    def expected(self, record: Record) -> SortValue | None:
        """The value, computed for this record alone."""
        of_json = self._of_json
        if of_json is not None and record.is_json_alone:
            return of_json.expected(record)
        return super().expected(record)


def field_content(
    kind: type[Named], by: str, json_field: str | None, key_type: str, missing: str
) -> Content | PlacedBy:
    """The content that a placement reads."""
    if is_expression(by):
        return PlacedBy(by, kind.noun, is_number=key_type == "float")
    extension, field = member_and_field(by, json_field)
    return kind(
        extension=extension,
        json_field=field,
        content_key_type=key_type,
        content_key_missing=missing,
    )


CLASS_BYTES_MAX: Final = 4096
"""The longest name of a class: a longer value is no label."""


class _Class(Named, frozen=True):
    """The class of a record: any text, number or truth value."""

    noun: ClassVar[str] = "class"
    missing_hint: ClassVar[str] = "interleave.missing: keep makes such records a class of their own"
    wrong_hint: ClassVar[str] = "interleave.by must name a member or field with a text or a number"


# In each stretch of a shuffle, classes have the same proportions as overall. A class with N records
# is put in random order, and the n-th record gets a word somewhere in the n-th of N equal parts of
# all words. So below any word, the number of records of a class differs from its even share by at
# most one record. The end of a stretch depends on all classes, and each other class differs by at
# most one record, too. Of K classes, a class with the share p of all records has p n of the first n
# records, plus or minus 1 + (K - 2) p at most. Any stretch is the difference of two stretches that
# begin at the first record, so its bound is twice as large.
class Interleave(Placement, frozen=True):
    """Classes have the same proportions everywhere."""

    by_class: ClassVar[bool] = True

    by: str = option(
        str,
        "The class of a record: a member (`cls`), a field of its JSON (`json.label`), "
        "the column of a table or the field of a line (`label`), or an expression as in the step "
        "filter. Up to 65,536 classes.",
        examples=("cls", "json.label", "size(json.text) < 512"),
        check=checked_field,
        required="a member (cls) or a field of its JSON (json.label)",
    )
    json_field: str | None = option(
        str | None,
        "The field of the JSON, if `by` is a member whose extension has a dot: `by: info.json`, "
        "`json_field: label`.",
        examples=("label",),
    )
    missing: str = option(
        Literal["abort", "keep"],
        "For records without this member or field. abort: the job fails and names the record. "
        "keep: such records are a class of their own, that of the empty text.",
        default="abort",
    )

    @property
    def content(self) -> Content | PlacedBy:
        """The content with the class."""
        missing = "first" if self.missing == "keep" else "abort"
        return field_content(_Class, self.by, self.json_field, SCALAR, missing)

    @property
    def in_words(self) -> str:
        """The text for the placement in the summary of a job."""
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
        """Sort keys of 64 bits that are spread evenly within each class."""
        import numpy as np

        from dsort.data.index import SortKeys

        step = np.uint64(WORDS) // found.total.astype(np.uint64)
        return SortKeys(len(records), words=found.place.astype(np.uint64) * step + hashes % step)


def batch_hash(seed: str, group: int, word: int, batch: int) -> int:
    """The hash that orders the batches of a window. ``group`` and ``word``: the output and the sort
    word of the window."""
    import xxhash  # not loaded by help texts, which load this module

    outer = xxhash.xxh3_64_intdigest(f"batches {seed}".encode("utf-8", "surrogateescape"))
    return xxhash.xxh3_64_intdigest(b"%d %d %d" % (group, word, batch), seed=outer)


class _Similar(Named, frozen=True):
    """The number that is similar in all records of a batch."""

    noun: ClassVar[str] = "number to sort by"
    missing_hint: ClassVar[str] = "batches.missing: first or last keeps such records"
    wrong_hint: ClassVar[str] = "batches.similar must name a member or a field with a number"


def _positive(value: int) -> int:
    if value < 1:
        raise OptionError("must be at least 1", names_value=True)
    return value


# A shuffle in windows, in which similar records are side by side: the records of one window of the
# shuffled order are sorted by a number and cut into batches, and the batches are shuffled. Windows
# have whole batches, except the last one of an output, whose last batch may be smaller and comes
# last.
class Batches(Placement, frozen=True):
    """Similar records are side by side, in batches."""

    records: int = option(
        int,
        "How many records a batch has.",
        examples=(64,),
        check=_positive,
        required="how many records a batch has",
    )
    similar: str = option(
        str,
        "The number that is similar in all records of a batch: a member (`length`), a "
        "field of its JSON (`json.length`), the column of a table or the field of a line "
        "(`length`), or an expression as in the step filter (`size(json.text)`).",
        examples=("json.length", "size(json.text)"),
        check=checked_field,
        required="a member (length) or a field of its JSON (json.length)",
    )
    json_field: str | None = option(
        str | None,
        "The field of the JSON, if `similar` is a member whose extension has a dot.",
        examples=("length",),
    )
    window: int = option(
        int,
        "The number of records in a window of the shuffled order; rounded down to whole batches. "
        "Batches are made and shuffled within a window, which should fit in a worker's memory.",
        default=100_000,
        check=_positive,
    )
    missing: str = option(
        Literal["abort", "first", "last"],
        "For records without the number. abort: the job fails and names the record. first, last: "
        "the record comes first or last in its window, until batches are shuffled.",
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
        """The text for the placement in the summary of a job."""
        window = f"in windows of {self.window_records:,}"
        return f"in batches of {self.records:,} with about the same {self.similar}, {window}"

    def sort_keys(self, records: RecordTable, found: ClassPlaces, hashes: UInt64s) -> SortKeys:
        """Sort keys with the window as word, and with the number and the place in the window as
        text."""
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
        group = keys.groups[order]
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
