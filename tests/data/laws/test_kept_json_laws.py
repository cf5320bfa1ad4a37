"""JSON that dsort has kept may have been changed by others who can write there: reading it gives a
value of the right types or an error of dsort's, never another one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsort.errors import DsortError
from tests.support.internals import (
    INTEGER_MAX,
    Count,
    JobAccepted,
    Planned,
    PlannedRow,
    ShardCreated,
    ShardExtracted,
    checked,
    decode_lease,
    decode_segment,
    encode_segment,
    parse_manifest,
)

SEGMENT = json.loads(
    encode_segment(
        [
            JobAccepted("j", "1", {"input_bck": "in"}, "2026-01-01T00:00:00Z"),
            ShardExtracted(0, 0, "n", 1, 2, 3, 4),
            ShardExtracted(1, 0, "n", 1, 2, 3, 4),
            Planned("d", (PlannedRow("o", 1, 2, 3, 4),)),
            ShardCreated(0, "x", "r", "m", 3),
        ]
    )
)
LEASE = {
    "attempt": 1,
    "host": "h",
    "boot_id": "b",
    "pid": 3,
    "pid_start": 4,
    "token": "t",
    "renewed_at": "2026-01-01T00:00:00+00:00",
    "lapses_s": 30.0,
    "released": False,
}
SPEC = {"input_bck": "in", "output_format": "o-%d", "output_shard_size": "1MB"}
INPUT = {"name": "in-0.tar", "bytes": 1, "mtime_ns": -1, "etag": "e", "records": 1}
MANIFEST = {
    "manifest": 1,
    "job_id": "j",
    "created": "2026-01-01T00:00:00.000000Z",
    "spec": SPEC,
    "inputs": [INPUT],
    "outputs": [
        {
            "name": "o-0.tar",
            "records": 1,
            "members": 1,
            "payload_bytes": 1,
            "file_bytes": 1,
            "xxh3": "0" * 16,
        }
    ],
    "totals": {},
    "earlier": {"i": {"spec": SPEC, "inputs": [INPUT], "outputs": 0, "removed": []}},
}
WRONG = (None, True, -1, 1 << 70, 1.5, "", "\udcff", "2026-13-45", "../x", [], {}, [[]], {"a": 1})


def places(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values in ``content``."""
    inside = content.items() if isinstance(content, dict) else enumerate(content)
    found = []
    for key, value in inside:
        found += [(*at, key)]
        found += places(value, (*at, key)) if isinstance(value, dict | list) else []
    return found


@pytest.mark.parametrize(
    ("good", "read"),
    [(SEGMENT, decode_segment), (LEASE, decode_lease), (MANIFEST, parse_manifest)],
    ids=["journal", "lease", "manifest"],
)
@given(data=st.data())
def test_changed_json_is_read_or_refused(
    good: dict[str, Any], read: Callable[[bytes], object], data: st.DataObject
) -> None:
    content = deepcopy(good)
    read(json.dumps(content).encode())
    *way, last = data.draw(st.sampled_from(places(content)))
    holder: Any = content
    for key in way:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[last] = data.draw(st.sampled_from(WRONG))
    else:
        del holder[last]
    with contextlib.suppress(DsortError):
        read(json.dumps(content).encode())


@pytest.mark.parametrize("wrong", [-1, INTEGER_MAX + 1, True, 1.0, "1", None])
def test_a_count_is_a_whole_number_that_fits_in_a_column(wrong: object) -> None:
    assert checked({"a": [0, INTEGER_MAX]}, dict[str, list[Count]]) == {"a": [0, INTEGER_MAX]}
    with pytest.raises(ValueError, match=r"a\[1\]|\[1\]"):
        checked({"a": [0, wrong]}, dict[str, list[Count]])


def test_numbers_may_be_keys() -> None:
    assert checked({"7": 1}, dict[int, int]) == {7: 1}
    with pytest.raises(ValueError, match="int"):
        checked({"x": 1}, dict[int, int])
