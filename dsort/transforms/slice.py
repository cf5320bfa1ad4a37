"""The step ``slice``: keeps records by their number in input order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import MinLen

from dsort.order.base import OptionError
from dsort.transforms.base import Step

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable

__all__ = ["Slice"]

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
