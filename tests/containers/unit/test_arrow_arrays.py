"""Arrow arrays that are made of buffers are those that pyarrow makes of the same values."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from tests.support.commands import ROOT
from tests.support.internals import arrow_bytes, arrow_numbers, arrow_structs

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 8, 21])
def test_numbers(kind: type[np.generic], count: int) -> None:
    values = np.arange(-3, count - 3).astype(kind)
    assert arrow_numbers(values).equals(pa.array(values))
    is_known = values % 3 != 0
    made = arrow_numbers(values[::-1], is_known)
    made.validate(full=True)
    assert made.equals(pa.array(values[::-1], mask=~is_known))
    assert made.null_count == np.count_nonzero(~is_known)


@pytest.mark.parametrize(
    "values", [[], [b""], [b"a", b"", b"bcd" * 100], [None, b"\xc3\xa9", None], [None] * 9]
)
def test_bytes_and_texts(values: list[bytes | None]) -> None:
    for kind in (pa.binary(), pa.string()):
        made = arrow_bytes(values, kind)
        made.validate(full=True)
        assert made.equals(pa.array(values, pa.binary()).cast(kind))


def test_structs() -> None:
    rows = [{"bytes": b"1", "path": "a"}, None, {"bytes": b"", "path": None}]
    fields = [
        arrow_bytes([b"1", None, b""], pa.binary()),
        arrow_bytes([b"a", None, None], pa.string()),
    ]
    made = arrow_structs(fields, MEDIA, np.array([True, False, True]))
    made.validate(full=True)
    assert made.equals(pa.array(rows, MEDIA))


def test_pandas_is_not_loaded_for_them() -> None:
    script = (
        "import sys, numpy as np, pyarrow as pa\n"
        "from dsort.data.arrow_arrays import arrow_bytes, arrow_numbers\n"
        "arrow_numbers(np.arange(3), np.arange(3) > 1), arrow_bytes([b'', None], pa.string())\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
