"""INT96, the timestamps of old Parquet writers: a day, and nanoseconds within it.

pyarrow reads them as nanoseconds in 64 bits, which end in 1677 and 2262, and wraps other times
around: 9999-12-31 becomes 1816-03-29. Spark writes INT96, and such days are common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dsort.containers.columnar.schema import list_values
from dsort.containers.columnar.thrift import ThriftStruct
from dsort.naming.names import shortened

__all__ = ["int96_columns", "refuse_wrapped"]

_TYPE, _INT96 = 1, 3  # of an element of the schema
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def int96_columns(elements: Sequence[ThriftStruct]) -> set[int]:
    """The numbers of the columns that are INT96, among all stored columns."""
    stored = [each[_TYPE][1] for each in elements if _TYPE in each]
    return {at for at, kind in enumerate(stored) if kind == _INT96}


def refuse_wrapped(opened: Callable[..., Any], path: str, groups: Sequence[int], rows: int) -> None:
    """``NotImplementedError`` if pyarrow wraps a value of the column ``path`` around, in some row
    groups. To find out, the values are also read in seconds, ``rows`` at a time: these hold any
    INT96."""
    readers = (opened(), opened(coerce_int96_timestamp_unit="s"))
    batches = [
        each.iter_batches(rows, row_groups=list(groups), columns=[path], use_threads=False)
        for each in readers
    ]
    for fine, coarse in zip(*batches, strict=True):
        pairs = zip(_timestamps(fine.column(0)), _timestamps(coarse.column(0)), strict=True)
        if any(_differ(*pair) for pair in pairs):
            raise NotImplementedError(
                f"column {shortened(path)} is INT96 with timestamps before 1677-09-22 or after "
                "2262-04-10, which 64 bits of nanoseconds do not reach"
            )


def _timestamps(array: Any) -> Iterator[Any]:
    """The timestamps within a column, at any depth of nesting."""
    import pyarrow as pa

    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for at in range(array.type.num_fields):
            yield from _timestamps(array.field(at))
    elif pa.types.is_nested(array.type):
        yield from _timestamps(list_values(array))


def _differ(fine: Any, coarse: Any) -> bool:
    """Whether two arrays of timestamps are more than a rounded second apart."""
    import pyarrow as pa
    import pyarrow.compute as pc

    seconds = [pc.divide(each.cast(pa.int64()), _UNITS[each.type.unit]) for each in (fine, coarse)]
    apart = pc.max(pc.abs(pc.subtract(*seconds))).as_py()
    return apart is not None and apart > 1
