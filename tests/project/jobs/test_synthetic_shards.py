"""Test shards of every container that can be written, as readers see them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest

import dsort
from dsort.errors import ConversionError
from dsort.options import RunOptions
from dsort.shard_contents import inspect_object
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import ShardRecipe, generate_shards
from tests.support.refusals import raises

SUFFIXES = [
    *(".tar", ".tgz", ".zip", ".tfrecord", ".jsonl", ".jsonl.zst", ".txt"),
    *(".msgpack", ".cbor", ".parquet", ".arrow", ".arrows"),
]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shards_of_each_suffix_hold_their_records(tmp_path: Path, suffix: str) -> None:
    names = [f"s-{number}{suffix}" for number in range(2)]
    found = []
    for again in ("a", "b"):
        bucket = LocalBucket(tmp_path / again)
        generate_shards(bucket, names, ShardRecipe(records=3, member_bytes=100))
        found.append([(tmp_path / again / name).read_bytes() for name in names])
        read = [*dsort.read_shards(tmp_path / again, options=RunOptions(root=tmp_path))]
        assert len({record.key for record in read}) == 6
        contents = {content for record in read for content in record.members.values()}
        assert len(contents) == 6
        assert min(map(len, contents)) >= 100
        assert len(inspect_object(bucket, names[1]).records) == 3
    assert found[0] == found[1]


@pytest.mark.parametrize("suffix", [".tfrecord", ".msgpack", ".parquet"])
def test_records_have_the_extensions_that_are_asked_for(tmp_path: Path, suffix: str) -> None:
    recipe = ShardRecipe(records=2, member_bytes=10, extensions=(".jpg", ".cls"))
    generate_shards(LocalBucket(tmp_path), [f"s{suffix}"], recipe)
    for record in dsort.read_shards(tmp_path / f"s{suffix}", options=RunOptions(root=tmp_path)):
        assert {Path(name).suffix for name in record.members} == {".jpg", ".cls"}
    if suffix == ".parquet":
        assert pyarrow.parquet.read_table(tmp_path / "s.parquet").num_rows == 2


def test_what_a_container_cannot_hold_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    recipe = ShardRecipe(extensions=(".json", ".txt"))
    with raises(ConversionError, "2 members"):
        generate_shards(LocalBucket(tmp_path), ["s.jsonl"], recipe)
    assert [*tmp_path.iterdir()] == []
