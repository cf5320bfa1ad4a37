"""When a file counts as another one than before: its etag, and what older versions noted of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsort.storage.bucket import ObjectInfo
from dsort.storage.directory.bucket import LocalBucket

TOKEN = ".dsort/job1/staged/0"


@pytest.fixture
def bucket(tmp_path: Path) -> LocalBucket:
    bucket = LocalBucket(tmp_path)
    bucket.write("a", b"one")
    return bucket


def rewrite(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def link(path: Path) -> None:
    path.with_name("other").hardlink_to(path)


def change_mode(path: Path) -> None:
    path.chmod(0o600)


@pytest.mark.parametrize("change", [rewrite, link, change_mode], ids=lambda each: each.__name__)
def test_a_file_that_was_touched_is_another_one(
    change: Callable[[Path], None], bucket: LocalBucket, tmp_path: Path
) -> None:
    before = bucket.stat("a")
    assert bucket.stat("a").is_still(before.size_bytes, before.etag)
    change(tmp_path / "a")
    after = bucket.stat("a")
    assert (after.size_bytes, after.mtime_ns) == (before.size_bytes, before.mtime_ns)
    assert not after.is_still(before.size_bytes, before.etag)
    assert after.is_still(before.size_bytes, before.etag, any_ctime=True)


def test_what_an_older_version_noted_still_fits(bucket: LocalBucket, tmp_path: Path) -> None:
    now = bucket.stat("a")
    status = (tmp_path / "a").stat()
    older = f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
    assert now.is_still(3, older)
    assert not now.is_still(4, older)
    assert not now.is_still(3, older + "0")
    assert ObjectInfo("a", 3, 0, older).is_still(3, now.etag)


@pytest.mark.parametrize("etag", ['"0a-3"', "", "1-2-3-4", "x-c1"])
def test_etags_of_stores_are_compared_whole(etag: str) -> None:
    assert ObjectInfo("a", 3, 0, etag).is_still(3, etag)
    assert not ObjectInfo("a", 3, 0, etag).is_still(3, f"{etag}-c1")
    assert not ObjectInfo("a", 3, 0, etag).is_still(2, etag)


def test_a_staged_file_is_known_again_after_it_was_renamed(bucket: LocalBucket) -> None:
    with bucket.stage(TOKEN, name="b") as staged:
        staged.write_at(0, [b"abc"])
        receipt = staged.finish()
    before = bucket.stat(TOKEN).etag
    bucket.publish(TOKEN, "b", overwrite=False, receipt=receipt)
    assert bucket.stat("b").etag != before  # its ctime
    assert bucket.still_staged({TOKEN: ("b", receipt)}) == {TOKEN}
    bucket.publish(TOKEN, "b", overwrite=False, receipt=receipt)  # a call that did not return
