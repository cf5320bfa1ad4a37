"""Makes Arrow arrays from their buffers, and reads them.

``pyarrow.array``, ``pyarrow.scalar`` and ``fill_null`` import pandas, if it is installed, to check
their arguments for pandas values. That takes 0.23 s of processor time in each worker of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dsort.data.columns import Bools

LENGTH_MAX: Final = (1 << 31) - 1
ALL_KNOWN: Final = np.ones(1, np.bool_)


def arrow_numbers(values: np.ndarray[Any, Any], is_known: Bools = ALL_KNOWN) -> Any:
    """Integers of 32 or 64 bits; null where ``is_known`` is False."""
    import pyarrow as pa

    kinds = {"int32": pa.int32(), "int64": pa.int64()}
    kind, data = kinds[values.dtype.name], pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity_of(is_known), data])


def numbers_in(array: Any) -> tuple[np.ndarray[Any, Any], Bools]:
    """(the values of a valid array of integers, with 0 in place of nulls; which values are not
    null)."""
    first, stop = array.offset, array.offset + len(array)
    validity, data = array.buffers()
    is_known = np.ones(len(array), np.bool_)
    if validity is not None:
        bits = np.frombuffer(validity, np.uint8)
        is_known = np.unpackbits(bits, count=stop, bitorder="little")[first:].astype(np.bool_)
    kind = np.dtype(f"int{array.type.bit_width}")
    values = np.zeros(0, kind) if data is None else np.frombuffer(data, kind, stop)[first:]
    return np.where(is_known, values, kind.type(0)), is_known


def arrow_bytes(values: Sequence[bytes | None], kind: Any) -> Any:
    """An array of values, null where a value is None. ``kind``: ``pyarrow.binary()``, or
    ``pyarrow.string()`` for UTF-8. ``pyarrow.ArrowException`` if the values have 2 GiB or more."""
    import pyarrow as pa

    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value or b"") for value in values], out=ends[1:])
    if ends[-1] > LENGTH_MAX:
        raise pa.ArrowCapacityError(f"{ends[-1]} bytes are too many for one array")
    buffers = [ends.astype(np.int32), b"".join(value or b"" for value in values)]
    is_known = np.fromiter((value is not None for value in values), np.bool_, len(values))
    validity = validity_of(is_known)
    return pa.Array.from_buffers(kind, len(values), [validity, *map(pa.py_buffer, buffers)])


def arrow_structs(fields: Sequence[Any], kind: Any, is_known: Bools) -> Any:
    """Structs of the type ``kind``, from one array for each field; null where ``is_known`` is
    False."""
    import pyarrow as pa

    validity = validity_of(is_known)
    return pa.Array.from_buffers(kind, len(is_known), [validity], children=list(fields))


def validity_of(is_known: Bools) -> Any:
    """The buffer of bits that marks the values that are not null; None if no value is null."""
    import pyarrow as pa

    return None if is_known.all() else pa.py_buffer(np.packbits(is_known, bitorder="little"))
