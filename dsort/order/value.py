"""The algorithm ``value``: records are sorted by the value of an expression.

Numbers compare as 64-bit floats and come before texts, which compare by their bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from dsort.errors import ContentKeyError
from dsort.naming.names import readable
from dsort.option_fields import OptionError, option
from dsort.order.base import Algorithm, Record, SortValue, decreasing_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression
    from dsort.expressions.parser import Leaf

_OF_INPUTS: Final = frozenset({"shard", "input", "ordinal"})


@lru_cache(maxsize=64)  # of the specs that a service has read last
def _compiled(text: str) -> Expression:
    from dsort.expressions.expression import Expression

    return Expression.of(text, wanted="")


def checked_expression(text: str) -> str:
    """``text``, if an output record shows the value of this expression; else ``OptionError``."""
    from dsort.expressions.parser import ExpressionError

    try:
        asked = _compiled(text).asks & _OF_INPUTS
    except ExpressionError as error:
        raise OptionError(str(error), error.hint) from None
    if asked:
        hint = 'key, json.score, txt, size(json.text), size("jpg"), ...'
        raise OptionError(f"uses {min(asked)}, which an output does not show", hint)
    return text


class Value(Algorithm, frozen=True):
    """By the value of an expression: a field, a number, the length of a text."""

    kind: ClassVar[str] = "value"
    summary: ClassVar[str] = "by the value of a field"
    words: ClassVar[str] = "value"
    is_sort_key: ClassVar[bool] = True

    decreasing: bool = decreasing_option()
    value: str = option(
        str | None,
        "Of value: the field, or another expression as in the step filter. Numbers compare as "
        "64-bit floats and come before texts, which compare by their bytes. A record without the "
        "field fails the job; has(json.score) ? json.score : 0 gives such records a value.",
        examples=("json.score", "size(json.text)"),
        check=lambda text: checked_expression(text),
        required="what to sort by: json.score, or size(json.text)",
    )

    @property
    def extensions(self) -> tuple[str, ...]:
        """The members that the expression uses."""
        return tuple(f".{name}" for name in _compiled(self.value).extensions)

    @property
    def asks_for_keys(self) -> bool:
        """Whether the expression uses the record key."""
        return "key" in _compiled(self.value).asks

    @property
    def in_words(self) -> str:
        """The text for the algorithm in the summary of a job."""
        return f"value: sorted by {self.value}" + ", decreasing" * self.decreasing

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The values: some µs a record."""
        import numpy as np

        from dsort.data.columns import BytesColumn
        from dsort.data.index import SortKeys
        from dsort.order.sort import float_words

        values = _compiled(self.value).values_of(records, "algorithm: value")
        _refuse_odd(records, self.value, values)
        are_texts = np.fromiter((isinstance(each, str) for each in values), np.uint8, len(values))
        numbers = [0.0 if isinstance(each, str) else float(each) for each in values]
        texts = [_bytes(each) if isinstance(each, str) else b"" for each in values]
        words = float_words(np.array(numbers, np.float64))
        return SortKeys(len(values), rank=are_texts, words=words, text=BytesColumn.of(texts))

    def expected(self, record: Record) -> SortValue | None:
        """The value, computed for this record alone; None if the output lacks the field."""
        value = _value_of(record, self.value)
        if value is None:
            return None
        return SortValue(1, _bytes(value)) if isinstance(value, str) else SortValue(0, float(value))


class PlacedBy(Struct, frozen=True):
    """An expression whose value is the class of a record, or, if ``is_number``, a number that is
    close for similar records. A placement uses it. ``owner``: the option, for messages."""

    text: str
    owner: str
    is_number: bool

    @property
    def extensions(self) -> tuple[str, ...]:
        """The members that the expression uses."""
        return tuple(f".{name}" for name in _compiled(self.text).extensions)

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The numbers as words, or the classes as texts."""
        import numpy as np

        from dsort.data.columns import BytesColumn
        from dsort.data.index import SortKeys
        from dsort.expressions.expression import text_of_value
        from dsort.order.sort import float_words

        values = _compiled(self.text).values_of(records, self.owner)
        if not self.is_number:
            return SortKeys(len(values), text=BytesColumn.of([*map(text_of_value, values)]))
        _refuse_odd(records, self.text, values, is_number=True)
        return SortKeys(len(values), words=float_words(np.array(values, np.float64)))

    def expected(self, record: Record) -> SortValue | None:
        """The value, computed for this record alone."""
        from dsort.expressions.expression import text_of_value

        value = _value_of(record, self.text)
        if value is None:
            return None
        return SortValue(1, float(value) if self.is_number else text_of_value(value))


def _refuse_odd(
    records: RecordTable, text: str, values: Sequence[Any], *, is_number: bool = False
) -> None:
    for row, each in enumerate(values):
        if each != each or (is_number and isinstance(each, str)):  # only NaN differs from itself
            shown = "a text, not a number" if isinstance(each, str) else "NaN"
            raise ContentKeyError(
                f"record {readable(records.keys[row])} of shard {records.shard}: the value of "
                f"{text} is {shown}, which has no place in this order",
                hint="double(...) makes a number of a text",
            )


def _value_of(record: Record, text: str) -> str | int | float | bool | None:
    return _compiled(text).value_with(lambda leaf: _fact(record, leaf))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _fact(record: Record, leaf: Leaf) -> Any:
    """One value that an expression reads from a record: a fact of the index, or the content of a
    member."""
    from dsort.expressions.reading import parsed

    if leaf.kind == "key":
        return record.key.decode("utf-8", "surrogateescape")
    if leaf.kind == "total":
        return record.payload_bytes
    contents = (record.content(f".{name}") for name in leaf.extensions)
    content = next((each for each in contents if each is not None), None)
    if leaf.kind == "has":
        return content is not None
    if leaf.kind == "size":
        return len(content or b"")
    if content is None and record.is_json_alone:
        return parsed(leaf, record.content(".json"), is_field=True)
    return parsed(leaf, content)
