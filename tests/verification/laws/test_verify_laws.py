"""What ``dsort verify`` says of any job at all: that its result is right, and that it is wrong once
a single bit of it has changed, even if the manifest is made to agree."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsort import api
from dsort.errors import DsortError
from dsort.options import RunOptions
from tests.support.datasets import Shard, write_shards
from tests.support.inline_runtime import Moved, run_inline
from tests.support.job_cases import movements, shards, specs
from tests.support.sampling import examples

SETTINGS = settings(
    max_examples=examples(80),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@SETTINGS
@given(shards(), specs(), movements(), st.integers(0, 2**32), st.sampled_from([3000, 1 << 27]))
def test_a_result_is_right_until_a_bit_of_it_changes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inputs: dict[str, Shard],
    spec: dict[str, Any],
    moved: Moved,
    place: int,
    buffer_bytes: int,
) -> None:
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    (root / "in").mkdir()
    write_shards(root / "in", inputs)
    monkeypatch.setattr("dsort.verification.verify.BUFFER_BYTES_MAX", buffer_bytes)
    try:
        report = run_inline(spec, root, moved)
    except DsortError:
        return  # without a result there is nothing to verify
    bucket = root / spec.get("output_bck", "in")
    assert report.manifest_name is not None
    manifest = (bucket / report.manifest_name).read_bytes()
    options = RunOptions(root=root)
    verified = api.verify(manifest, options=options)
    assert (verified.problems, verified.records) == ((), report.records)

    written = sorted(path for path in bucket.glob("**/*.tar") if path.name not in inputs)
    if written:
        damaged = written[place % len(written)]
        data = bytearray(damaged.read_bytes())
        before = xxhash.xxh3_64_hexdigest(data)
        data[place // 8 % len(data)] ^= 1 << place % 8
        damaged.write_bytes(data)
        after = xxhash.xxh3_64_hexdigest(data)
        if before != after:
            manifest = manifest.replace(before.encode(), after.encode())
        assert not api.verify(manifest, options=options).ok, (damaged.name, place)
