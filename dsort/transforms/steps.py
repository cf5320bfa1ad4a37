"""All steps by their kind. This module has the steps that keep or drop whole records, by an
expression, a list of keys, a hash of their keys, or their place.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from annotated_types import Ge, Le, MinLen
from msgspec.structs import replace

from dsort.errors import InvariantError
from dsort.naming.patterns import FileLocation
from dsort.option_fields import Check, OptionError, option
from dsort.registry import Registry
from dsort.transforms.base import Needs, ReadText, Step
from dsort.transforms.fields import Fields, Require
from dsort.transforms.programs import Exec, FlatMap, Http, Map
from dsort.transforms.rekey import Rekey

if TYPE_CHECKING:
    from dsort.data.columns import Bools, BytesColumn
    from dsort.data.record_table import RecordTable
    from dsort.data.text_sets import KeySet
    from dsort.expressions.expression import Expression


def compiled(text: str) -> Expression:
    """The expression of a step or a rule. ``OptionError`` if ``text`` is no expression."""
    from dsort.expressions.expression import compiled_expression

    return compiled_expression(text)


def _checked(text: str) -> str:
    compiled(text)
    return text


class Filter(Step, frozen=True):
    """Keeps a record if ``condition`` is true for it. If the expression cannot be evaluated for a
    record, because it lacks a member or a field or has text for a number, an error names the
    record."""

    kind: ClassVar[str] = "filter"
    summary: ClassVar[str] = (
        "Keep the records for which an expression in CEL is true. It may use key, shard, input, "
        'ordinal, size("jpg"), has("cls"), and members: json.score, cls, txt, '
        'text("tag"), number("score"), json("meta").'
    )
    bare: ClassVar[str] = "condition"
    needs: ClassVar[Needs] = "member"
    is_for_rows: ClassVar[bool] = True

    condition: str = option(
        Annotated[str, MinLen(1)], "The expression.", check=_checked, required="json.score > 0.5"
    )

    @property
    def expression(self) -> Expression:
        """The condition, compiled."""
        return compiled(self.condition)

    @property
    def members_used(self) -> tuple[str, ...]:
        """The extensions that the expression uses."""
        return self.expression.extensions

    @property
    def members_read(self) -> tuple[str, ...]:
        """The extensions of members that the expression reads; members that it only tests for
        existence are left out."""
        return self.expression.extensions_read

    @property
    def refused_for_rows(self) -> str:
        """The part of the expression that does not work on rows: numbers of records in a shard, and
        sizes of whole rows."""
        return self.expression.refused_for_rows

    def apply(self, records: RecordTable) -> RecordTable:
        """The records for which the expression is true."""
        return records.keeping(self.expression.true_of(records, "filter"))


def _keys_or_file(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    keys, file = options["keys"], options["file"]
    if [keys, file].count(None) != 1:
        found = "has both" if keys is not None else "has neither"
        text = f"needs either keys or file, but {found}"
        yield "", text, "file: a path or URL, one key a line"


class _KeyList(Step, frozen=True):
    """A list of keys, from the spec or from a file. ``found``: the content of the file, once it is
    read."""

    options_summary: ClassVar[str] = "The options with the keys: exactly one of these."
    is_for_rows: ClassVar[bool] = True
    checks: ClassVar[tuple[Check, ...]] = (Check(("keys", "file"), _keys_or_file),)

    keys: tuple[str, ...] | None = option(
        list[str], "The keys themselves: whole record keys, as `dsort inspect` shows them."
    )
    file: FileLocation | None = option(
        FileLocation,
        "The file with the keys, one a line: a path (relative to the spec file, if the spec is "
        "one), an http(s) URL, or, in specs of your own machine, an object such as "
        "s3://bucket/keys.txt.",
    )
    found: bytes | None = None

    def loaded(self, read: ReadText) -> Self:
        """The same step with the keys of its file."""
        if self.file is None:
            return self
        return replace(self, found=read(self.file).encode("utf-8", "surrogateescape"))

    def digest(self) -> str:
        """A hash that covers the keys, also those in the file."""
        own = super().digest()
        return own if self.found is None else f"{own}/{hashlib.sha256(self.found).hexdigest()}"

    @property
    def listed(self) -> tuple[str, ...]:
        """One entry for the list as a whole."""
        return (f"{self.kind}: {'its keys' if self.file is None else f'the keys of {self.file}'}",)

    def listed_keys(self) -> BytesColumn:
        """The keys, in the order of ``KeySet``. The file has to be read before."""
        return _key_set(self.keys, self.found).keys

    def _listed(self, records: RecordTable) -> Bools:
        """Which records have a key of the list."""
        found = _key_set(self.keys, self.found).has(records.keys)
        records.fits(self.listed[0], bool(found.any()))
        return found


@lru_cache(maxsize=4)  # made once in a process instead of for each shard
def _key_set(keys: tuple[str, ...] | None, text: bytes | None) -> KeySet:
    from dsort.data.columns import BytesColumn
    from dsort.data.text_sets import KeySet, lines_of

    if keys is not None:
        texts = [key.encode("utf-8", "surrogateescape") for key in keys]
        return KeySet.of(BytesColumn.of(texts))
    if text is None:
        raise InvariantError("the file of a list of keys has not been read")
    return KeySet.of(lines_of(text))


class KeepKeys(_KeyList, frozen=True):
    """Keeps the records whose keys are listed."""

    kind: ClassVar[str] = "keep_keys"
    summary: ClassVar[str] = "Keep only the records whose keys are listed."

    def apply(self, records: RecordTable) -> RecordTable:
        """The records whose keys are listed."""
        return records.keeping(self._listed(records))


class DropKeys(_KeyList, frozen=True):
    """Leaves out the records whose keys are listed."""

    kind: ClassVar[str] = "drop_keys"
    summary: ClassVar[str] = "Leave out the records whose keys are listed."

    def apply(self, records: RecordTable) -> RecordTable:
        """The records whose keys are not listed."""
        return records.keeping(~self._listed(records))


class Sample(Step, frozen=True):
    """Keeps a record if the hash of its key is below ``fraction`` of the largest hash."""

    kind: ClassVar[str] = "sample"
    summary: ClassVar[str] = (
        "Keep a fraction of the records, chosen by a hash: the same records in every run."
    )
    is_for_rows: ClassVar[bool] = True

    fraction: float = option(
        Annotated[float, Ge(0), Le(1)],
        "The fraction of the records that stay, from 0 to 1. A larger fraction keeps all records "
        "that a smaller fraction keeps.",
        required="0.1 keeps a tenth",
    )
    by: str = option(
        Literal["key", "record"],
        "The unit of the draw. key (default): all records with one key stay or go together, in any "
        "shard. record: each record is drawn by its key and its shard.",
        default="key",
    )
    seed: str = option(
        str | int,
        "Another seed keeps other records. Default: 0. It is independent of a shuffle's seed.",
        default="0",
        check=str,
    )

    def apply(self, records: RecordTable) -> RecordTable:
        """The records that stay."""
        import numpy as np

        from dsort.data.hashes import mix, shard_seed

        lot_of = shard_seed(f"sample {self.seed}", records.shard if self.by == "record" else "")
        lots = mix(records.key_hash ^ np.uint64(lot_of))
        # Compared as integers: a fraction is a float, whose 53 bits set the border exactly.
        below = int(self.fraction * 2**64)
        kept = np.ones(len(lots), np.bool_) if below >= 2**64 else lots < np.uint64(below)
        return records.keeping(kept)


_SLICE = re.compile(r" *([0-9_]*) *: *([0-9_]*) *(?:: *([0-9_]*) *)?")
_NUMBER_MAX = 1 << 62


class _Range(NamedTuple):
    start: int
    stop: int | None
    step: int


def _range_of(text: str) -> _Range:
    """The numbers of a slice, written as in Python. ``OptionError`` if ``text`` is no slice."""
    match = _SLICE.fullmatch(text)
    if match is None:
        raise OptionError(
            f"{text!r} is no slice", "start:stop or start:stop:step, from 0 on: 0:1000000:2"
        )
    numbers = [_number(each) for each in match.groups()]
    if numbers[2] == 0:
        raise OptionError("has a step of 0", "1 keeps all between start and stop")
    return _Range(numbers[0] or 0, numbers[1], numbers[2] or 1)


def _written_out(text: str) -> str:
    """The same slice, with all three numbers."""
    start, stop, step = _range_of(text)
    return f"{start}:{'' if stop is None else stop}:{step}"


class Slice(Step, frozen=True):
    """Keeps the records whose numbers are in ``range(start, stop, step)``."""

    kind: ClassVar[str] = "slice"
    summary: ClassVar[str] = (
        "Keep the records whose numbers, in input order from 0 on, are in start:stop:step: "
        '"0:1000000", "1::2".'
    )
    bare: ClassVar[str] = "numbers"
    is_for_rows: ClassVar[bool] = True

    numbers: str = option(
        Annotated[str, MinLen(1)], "The slice.", check=_written_out, required="0:1000000"
    )

    @property
    def needs_positions(self) -> bool:
        """True: the numbers count all records."""
        return True

    def count_left(self, first: int, count: int) -> int:
        """The number of records in the range."""
        start, stop, step = _range_of(self.numbers)
        end = first + count if stop is None else min(first + count, stop)
        return len(range(start + -(-max(first - start, 0) // step) * step, end, step))

    def apply(self, records: RecordTable) -> RecordTable:
        """The records in the range."""
        import numpy as np

        start, stop, step = _range_of(self.numbers)
        behind = np.arange(len(records), dtype=np.int64) + (records.first - start)
        kept = (behind >= 0) & (behind % step == 0)
        if stop is not None:
            kept &= behind < stop - start
        return records.keeping(kept)


def _number(text: str | None) -> int | None:
    """A number in the notation of Python; None if ``text`` is empty. ``OptionError`` if it is no
    number, or too large."""
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{text!r} is no number", "as in 0:1_000_000:2") from None
    if number > _NUMBER_MAX:
        raise OptionError(f"{text} is too large", f"at most {_NUMBER_MAX}")
    return number


STEPS: Final[Registry[type[Step]]] = Registry(
    "dsort.steps",
    lambda step: (step.kind,),
    (
        Filter,
        KeepKeys,
        DropKeys,
        Sample,
        Slice,
        Require,
        Fields,
        Rekey,
        Map,
        FlatMap,
        Exec,
        Http,
    ),
)


def register(step: type[Step]) -> None:
    """Add a step: specs that are read from now on may name it. Worker processes have to load its
    module, too. ``ValueError`` if there is another step of this kind already. A package names its
    steps in the entry points ``dsort.steps`` instead."""
    STEPS.register(step)
