"""The steps that keep or drop whole records: by an expression, a list of keys, a random number, or
their place.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired, Self

from annotated_types import Ge, Le, MinLen
from typing_extensions import TypedDict

from dsort.errors import InvariantError
from dsort.naming.patterns import FileLocation
from dsort.order.base import OptionError
from dsort.transforms.base import OPTIONS_CONFIG, ReadText, Step

if TYPE_CHECKING:
    from dsort.data.columns import Bools, BytesColumn
    from dsort.data.key_set import KeySet
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression


__all__ = ["DropKeys", "Filter", "KeepKeys", "Sample", "Slice"]


@dataclass(frozen=True, slots=True)
class Filter(Step):
    """Keeps a record if ``expression`` is true for it. If the expression cannot be evaluated for a
    record, because it lacks a member or a field or has text for a number, an error names the
    record."""

    expression: Expression

    kind: ClassVar[str] = "filter"
    summary: ClassVar[str] = (
        "Keep the records of which an expression is true, in CEL: of key, shard, input, ordinal, "
        'size("jpg"), has("cls"), and of members: json.score, cls, txt, '
        'text("tag"), number("score"), json("meta").'
    )
    options_type: ClassVar[Any] = Annotated[str, MinLen(1)]
    needs = "member"
    is_for_rows = True

    @classmethod
    def of(cls, options: str) -> Filter:
        """The step with this expression."""
        from dsort.expressions.expression import Expression
        from dsort.expressions.nodes import ExpressionError

        try:
            return cls(Expression.of(options))
        except ExpressionError as error:
            raise OptionError(str(error), error.hint) from None

    @property
    def options(self) -> str:
        """The expression."""
        return self.expression.text

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that the expression uses."""
        return self.expression.extensions

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """The extensions of which the expression uses more than whether the member exists."""
        return self.expression.extensions_read

    @property
    def refused_for_rows(self) -> str:
        """The part of the expression that does not work on rows: numbers of records in a shard, and
        sizes of whole rows."""
        return self.expression.refused_for_rows

    def apply(self, records: RecordTable) -> RecordTable:
        """The records for which the expression is true."""
        return records.keeping(self.expression.true_of(records, "filter"))


class KeyListOptions(TypedDict):
    """Which keys: exactly one of these."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    keys: NotRequired[list[str]]
    """The keys themselves: whole record keys, as `dsort inspect` shows them."""
    file: NotRequired[FileLocation]
    """Where they are, one a line: a path (relative to the spec file, if the spec is one), an
    http(s) URL, or, in specs of your own machine, an object such as s3://bucket/keys.txt."""


@dataclass(frozen=True, slots=True)
class _KeyList(Step):
    """A list of keys, from the spec or from a file. ``found``: the content of the file, once it is
    read."""

    keys: tuple[str, ...] | None
    file: FileLocation | None
    found: bytes | None = field(default=None, repr=False)

    options_type: ClassVar[Any] = KeyListOptions
    is_for_rows = True

    @classmethod
    def of(cls, options: KeyListOptions) -> Self:
        """The step with these options."""
        keys, file = options.get("keys"), options.get("file")
        if (keys is None) == (file is None):
            found = "has both" if keys is not None else "has neither"
            raise OptionError(
                f"needs either keys or file, but {found}", "file: a path or URL, one key a line"
            )
        return cls(None if keys is None else tuple(keys), file)

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        return {"file": self.file} if self.keys is None else {"keys": list(self.keys)}

    def loaded(self, read: ReadText) -> Self:
        """The same step with the keys of its file."""
        if self.file is None:
            return self
        return replace(self, found=read(self.file).encode("utf-8", "surrogateescape"))

    def digest(self) -> str:
        """A hash that covers the keys, also those in the file."""
        own = super(_KeyList, self).digest()
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
    from dsort.data.key_set import KeySet, lines_of

    if keys is not None:
        texts = [key.encode("utf-8", "surrogateescape") for key in keys]
        return KeySet.of(BytesColumn.of(texts))
    if text is None:
        raise InvariantError("the file of a list of keys has not been read")
    return KeySet.of(lines_of(text))


class KeepKeys(_KeyList):
    """Keeps the records whose keys are listed."""

    __slots__ = ()

    kind: ClassVar[str] = "keep_keys"
    summary: ClassVar[str] = "Keep only the records whose keys are listed."

    def apply(self, records: RecordTable) -> RecordTable:
        """The records whose keys are listed."""
        return records.keeping(self._listed(records))


class DropKeys(_KeyList):
    """Leaves out the records whose keys are listed."""

    __slots__ = ()

    kind: ClassVar[str] = "drop_keys"
    summary: ClassVar[str] = "Leave out the records whose keys are listed."

    def apply(self, records: RecordTable) -> RecordTable:
        """The records whose keys are not listed."""
        return records.keeping(~self._listed(records))


class SampleOptions(TypedDict):
    """What a spec gives for ``sample``."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    fraction: Annotated[float, Ge(0), Le(1)]
    """Of the records, from 0 to 1. A smaller fraction keeps some of those that a larger keeps."""
    by: NotRequired[Literal["key", "record"]]
    """What is drawn by lot. key (default): records of one key stay or go together, whatever shard
    they are in. record: each record, by its key and its shard."""
    seed: NotRequired[str | int]
    """Another seed keeps other records. Default: 0. It has nothing to do with a shuffle's."""


@dataclass(frozen=True, slots=True)
class Sample(Step):
    """Keeps a record if the hash of its key, as a fraction of all hashes, is below ``fraction``."""

    fraction: float
    by: str = "key"
    seed: str = "0"

    kind: ClassVar[str] = "sample"
    summary: ClassVar[str] = (
        "Keep a fraction of the records, chosen by a hash: the same ones on every run."
    )
    options_type: ClassVar[Any] = SampleOptions
    is_for_rows = True

    @classmethod
    def of(cls, options: SampleOptions) -> Sample:
        """The step with these options."""
        return cls(options["fraction"], options.get("by", "key"), str(options.get("seed", 0)))

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        return {"fraction": self.fraction, "by": self.by, "seed": self.seed}

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


@dataclass(frozen=True, slots=True)
class Slice(Step):
    """Keeps the records whose numbers are in ``range(start, stop, step)``; ``stop`` None: up to the
    end."""

    start: int
    stop: int | None
    step: int

    kind: ClassVar[str] = "slice"
    summary: ClassVar[str] = (
        "Keep the records start:stop:step of all, by their number in input order from 0 on: "
        '"0:1000000", "1::2".'
    )
    options_type: ClassVar[Any] = Annotated[str, MinLen(1)]
    is_for_rows = True

    @classmethod
    def of(cls, options: str) -> Slice:
        """The step with this slice, written as in Python."""
        match = _SLICE.fullmatch(options)
        if match is None:
            raise OptionError(
                f"{options!r} is no slice", "start:stop or start:stop:step, from 0 on: 0:1000000:2"
            )
        numbers = [_number(text) for text in match.groups()]
        if numbers[2] == 0:
            raise OptionError("has a step of 0", "1 keeps all between start and stop")
        return cls(numbers[0] or 0, numbers[1], numbers[2] or 1)

    @property
    def options(self) -> str:
        """The slice, with all three numbers."""
        stop = "" if self.stop is None else str(self.stop)
        return f"{self.start}:{stop}:{self.step}"

    @property
    def needs_positions(self) -> bool:
        """True: the numbers count all records."""
        return True

    def count_left(self, first: int, count: int) -> int:
        """The number of records in the range."""
        stop = first + count if self.stop is None else min(first + count, self.stop)
        behind = max(first - self.start, 0)
        start = self.start + -(-behind // self.step) * self.step
        return len(range(start, stop, self.step))

    def apply(self, records: RecordTable) -> RecordTable:
        """The records in the range."""
        import numpy as np

        behind = np.arange(len(records), dtype=np.int64) + (records.first - self.start)
        kept = (behind >= 0) & (behind % self.step == 0)
        if self.stop is not None:
            kept &= behind < self.stop - self.start
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
