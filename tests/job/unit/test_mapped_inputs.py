"""What a worker has mapped to extract is there when it creates, if it is the same file still."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.errors import ChangedInputError
from dsort.storage.directory.bucket import LocalBucket
from tests.support.internals import (
    INPUTS_FILE,
    IndexStore,
    InputShard,
    MappedInputs,
    Scratch,
    inputs_bytes,
)


def mapped_inputs(directory: Path, open_max: int = 8) -> MappedInputs:
    """Of three shards, each of which holds its own name."""
    (directory / "scratch").mkdir(mode=0o700)
    store, bucket = IndexStore(Scratch(directory / "scratch")), LocalBucket(directory)
    shards = []
    for name in ("a.tar", "b.tar", "c.tar"):
        (directory / name).write_text(name)
        with bucket.open(name) as source:
            info = source.info
        shards.append(InputShard(name, info.size_bytes, info.mtime_ns, info.etag))
    store.write_file(INPUTS_FILE, inputs_bytes(shards))
    return MappedInputs(bucket, store, open_max=open_max)


def test_what_was_kept_is_not_mapped_again(tmp_path: Path) -> None:
    inputs, kept = mapped_inputs(tmp_path), memoryview(b"a.tar")
    inputs.keep(0, kept)
    views = inputs.views([0, 1])
    assert views[0] is kept
    assert [bytes(view) for view in views.values()] == [b"a.tar", b"b.tar"]
    assert inputs.views([1])[1] is views[1]


def test_what_was_kept_and_has_changed_since_is_refused(tmp_path: Path) -> None:
    inputs = mapped_inputs(tmp_path)
    inputs.keep(0, memoryview(b"a.tar"))
    (tmp_path / "a.tar").write_text("another")
    with pytest.raises(ChangedInputError, match=r"a\.tar"):
        inputs.views([0])


def test_the_least_recently_used_are_let_go(tmp_path: Path) -> None:
    inputs = mapped_inputs(tmp_path, open_max=2)
    first, second = memoryview(b"a.tar"), memoryview(b"b.tar")
    inputs.keep(0, first)
    inputs.keep(1, second)
    inputs.keep(2, memoryview(b"c.tar"))
    assert inputs.views([1])[1] is second
    assert inputs.views([0])[0] is not first
