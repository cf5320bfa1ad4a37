"""An algorithm from outside the package: records sorted by the size of their payload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from dsort.option_fields import Check, OptionError, option
from tests.support.internals import (
    Algorithm,
    Record,
    RecordTable,
    SortKeys,
    SortValue,
    decreasing_option,
    int_words,
)


def _at_least_one(value: int) -> int:
    if value < 1:
        raise OptionError(f"must be at least 1, not {value}", "1 compares sizes as they are")
    return value


def _steps_are_powers(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    step = options["step_bytes"]
    if step & (step - 1):
        yield "step_bytes", f"{step} is no power of two", "512 is one"


class BySize(Algorithm, frozen=True):
    """Smallest first; sizes within ``step_bytes`` of each other tie."""

    kind: ClassVar[str] = "size"
    summary: ClassVar[str] = "by the size of the payload"
    words: ClassVar[str] = "size: sorted by size"
    checks: ClassVar[tuple[Check, ...]] = (Check(("step_bytes",), _steps_are_powers),)

    decreasing: bool = decreasing_option()
    step_bytes: int = option(
        int, "Of size: how fine sizes are compared.", default=1, check=_at_least_one
    )

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The sizes in steps."""
        return SortKeys(len(records), words=int_words(records.payload_bytes // self.step_bytes))

    def expected(self, record: Record) -> SortValue:
        """The same for one record."""
        return SortValue(1, record.payload_bytes // self.step_bytes)
