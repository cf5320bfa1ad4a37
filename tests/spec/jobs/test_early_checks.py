"""What can be known before a byte is read is reported then: the inputs of these jobs are no shards,
and no phase gets so far as to find that out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import CorruptShardError, NamesTakenError, StorageAccessError
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import plan_local, refused, run_local, shard_of, spec_of
from tests.support.internals import Tally, refuse_unreadable, resolve_inputs
from tests.support.object_stores import answer, new_s3_bucket
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

NO_SHARDS = {f"in-{number}.tar": b"this is no tar" * 1000 for number in range(3)}
SIZED = {"output_shard_records": None, "output_shard_size": "10KB"}
KEY_MAP = {"output_format": None, "ekm": {"low-%02d": ["^0"], "high-%02d": ["^1"]}}


def spec_with(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in spec_of(**fields).items() if value is not None}


@pytest.mark.parametrize(
    ("taken", "fields"),
    [
        ("out-0.tar", {}),
        ("out-12.tar", SIZED),
        ("out-2.tar", {"output_shard_records": None, "output_shard_count": 3}),
        ("out-7.tar", {**SIZED, "output_format": "out-{2..9}"}),
        ("out-1-3.tar", {**SIZED, "output_format": "out-{0..2}-{0..5}"}),
        ("d/out-5.tar", {"output_format": "d/out-@9"}),
        ("high-07.tar", KEY_MAP),
    ],
)
def test_a_name_that_is_taken_is_reported_before_a_byte_is_read(
    taken: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", NO_SHARDS)
    write_shards(tmp_path / "out", {taken: b"mine", "other.tar": b"mine, too"})
    with refused(tmp_path, NamesTakenError, taken, "1 object has", "--overwrite"):
        run_local(tmp_path, spec_with(**fields))
    assert not (tmp_path / "out" / ".dsort").exists()
    with pytest.raises(CorruptShardError):
        run_local(tmp_path, spec_with(**fields), overwrite=True)


@pytest.mark.parametrize(
    "there", ["out-3.tar", "out-07.tar", "out-x.tar", "out-1", "sub/out-0.tar", "out-0.tar.old"]
)
def test_other_objects_of_the_bucket_stop_no_job(there: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("a", "b", "c", "d")})
    write_shards(tmp_path / "out", {there: b"mine"})
    run_local(tmp_path, spec_with(output_shard_records=None, output_shard_count=3))
    assert (tmp_path / "out" / there).read_bytes() == b"mine"


def test_inputs_are_reported_as_inputs(tmp_path: Path) -> None:
    """Which have names that the template makes, in numbers that the job does not come to."""
    dataset = small_dataset("early", shards=2, records=4)
    names = {f"s-{20_000 + at}.tar": shard for at, shard in enumerate(dataset.values())}
    write_shards(tmp_path / "in", names)
    report = run_local(tmp_path, spec_with(output_bck="in", output_format="s-%d"))
    assert report.records == 8
    assert set(names) < set(files_of(tmp_path / "in"))


def test_a_plan_warns_of_names_that_are_taken(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("a")})
    write_shards(tmp_path / "out", {"out-0.tar": b"mine"})
    report = plan_local(tmp_path, spec_with())
    assert any("output names are taken" in text for text in report.warnings)


def test_a_name_that_is_taken_in_a_store_is_reported_before_a_byte_is_read(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    write_shards(tmp_path / "in", NO_SHARDS)
    bucket = new_s3_bucket(s3)
    bucket.write("out-12.tar", b"mine")
    spec = spec_with(output_bck={"name": bucket.uri, "endpoint_url": s3.endpoint_url}, **SIZED)
    with pytest.raises(NamesTakenError, match=r"out-12\.tar"):
        run_local(tmp_path, spec)
    assert [info.name for info in bucket.list()] == ["out-12.tar"]


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that any user may look into, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="dsort-test-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
def test_inputs_that_may_not_be_read_are_all_named(open_to_all: Path) -> None:
    write_shards(open_to_all / "in", NO_SHARDS)
    for name in ("in-0.tar", "in-2.tar"):
        (open_to_all / "in" / name).chmod(0o600)
    bucket = LocalBucket(open_to_all / "in")
    inputs = resolve_inputs(parse_spec(spec_with()).spec, bucket, Tally())
    refuse_unreadable(inputs, bucket)
    os.seteuid(65534)
    try:
        with raises(StorageAccessError, "2 of 3", "in-0.tar, in-2.tar"):
            refuse_unreadable(inputs, bucket)
    finally:
        os.seteuid(0)


def test_a_store_that_lists_and_does_not_let_read_is_reported(s3: S3Server) -> None:
    bucket = new_s3_bucket(s3)
    for name, data in NO_SHARDS.items():
        bucket.write(name, data)
    inputs = resolve_inputs(parse_spec(spec_with()).spec, bucket, Tally())
    answer(bucket, "HeadObject", [403])
    with raises(StorageAccessError, "shard in-0.tar"):
        refuse_unreadable(inputs, bucket)
