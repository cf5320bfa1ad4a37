"""Listing and discarding in a directory, links and what is no file among it; when a file counts as
another one than before."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsort.errors import (
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from dsort.storage.bucket import ObjectInfo
from dsort.storage.directory.bucket import LocalBucket
from tests.support.refusals import raises

TOKEN = ".dsort/job1/0"


@pytest.fixture
def bucket(tmp_path: Path) -> LocalBucket:
    bucket = LocalBucket(tmp_path / "data")
    bucket.create()
    return bucket


@pytest.fixture
def directory(bucket: LocalBucket) -> Path:
    return bucket.local_path("x").parent


def names_of(bucket: LocalBucket, prefix: str = "") -> list[str]:
    return [info.name for info in bucket.list(prefix)]


def entries_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# --- listing -----------------------------------------------------------------------------------


def test_links_count_as_what_they_lead_to_but_not_in_circles(
    bucket: LocalBucket, directory: Path, tmp_path: Path
) -> None:
    bucket.write("a/1", b"one")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "2").write_bytes(b"two!")
    (directory / "away").symlink_to(tmp_path / "elsewhere")
    (directory / "file").symlink_to("a/1")
    (directory / "nowhere").symlink_to("nothing")
    (directory / "self").symlink_to("self")
    (directory / "a" / "up").symlink_to("..")
    (directory / "a" / "here").symlink_to(".")
    (tmp_path / "elsewhere" / "back").symlink_to(directory)
    assert names_of(bucket) == ["a/1", "away/2", "file"]
    assert names_of(bucket, "a/up/") == []
    assert names_of(bucket, "away/") == ["away/2"]
    assert {info.name: info.size_bytes for info in bucket.list()} == {
        "a/1": 3,
        "away/2": 4,
        "file": 3,
    }


def test_what_is_no_file_is_no_object(bucket: LocalBucket, directory: Path) -> None:
    os.mkfifo(directory / "pipe")
    (directory / "empty").mkdir()
    assert names_of(bucket) == []
    for name in ("pipe", "empty"):
        with raises(ObjectNotFoundError, name):
            bucket.stat(name)
        with raises(ObjectNotFoundError, name):
            bucket.open(name)  # and does not wait for a writer


def test_only_directories_that_can_match_are_read(
    bucket: LocalBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train/shards/a/1", "train/shallow/1", "train/other/1", "val/1", "1"):
        bucket.write(name, b"")
    read = []
    scandir = os.scandir

    def noting(path: bytes) -> object:
        read.append(os.fsdecode(path).partition("/data/")[2])
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noting)
    assert names_of(bucket, "train/sha") == ["train/shallow/1", "train/shards/a/1"]
    assert read == ["train/", "train/shallow/", "train/shards/", "train/shards/a/"]


def test_names_that_are_not_utf8_are_carried(bucket: LocalBucket, directory: Path) -> None:
    raw = b"caf\xe9.tar"
    with open(os.fsencode(directory) + b"/" + raw, "wb") as file:
        file.write(b"x")
    bucket.write("café.tar", b"yy")
    names = names_of(bucket)
    assert [os.fsencode(name) for name in names] == ["café.tar".encode(), raw]
    assert [bucket.read(name) for name in names] == [b"yy", b"x"]
    assert bucket.stat(names[1]).name == names[1]
    with raises(StorageError, repr("\ud800")):
        bucket.stat("\ud800")


@pytest.mark.exhaustive
def test_many_files_are_listed_quickly(bucket: LocalBucket, directory: Path) -> None:
    for number in range(50):
        (directory / f"d{number:02}").mkdir()
    for number in range(20_000):
        os.mknod(directory / (f"d{number % 50:02}" if number % 5 else "") / f"f{number}.tar")
    started = time.process_time()
    count = sum(1 for _ in bucket.list())
    seconds = time.process_time() - started
    shutil.rmtree(directory)
    assert count == 20_000
    assert seconds < 1.5  # 0.12 when nothing else runs


def test_files_that_vanish_meanwhile_are_left_out(bucket: LocalBucket, directory: Path) -> None:
    for name in ("a", "b", "c/1", "d"):
        bucket.write(name, b"")
    found = []
    for info in bucket.list():
        found.append(info.name)
        if info.name == "a":
            (directory / "b").unlink()
            (directory / "c" / "1").unlink()
            (directory / "c").rmdir()
    assert found == ["a", "d"]


def test_a_bucket_that_is_not_there_says_so(tmp_path: Path) -> None:
    bucket = LocalBucket(tmp_path / "no" / "where")
    assert not bucket.exists()
    assert (bucket.free_bytes() or 0) > 0  # of the file system that will hold it
    for use in (
        lambda: list(bucket.list()),
        lambda: bucket.write("a", b""),
        lambda: bucket.stage(TOKEN),
    ):
        with raises(ObjectNotFoundError, "no/where"):
            use()
    assert list(tmp_path.iterdir()) == []
    bucket.discard(".dsort/")
    bucket.create()
    assert bucket.exists()


# --- discarding --------------------------------------------------------------------------------


def test_discard_does_not_follow_links(
    bucket: LocalBucket, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"x")
    bucket.stage(TOKEN).close()
    (directory / ".dsort/job1/dir-link").symlink_to(tmp_path / "precious")
    (directory / ".dsort/job1/file-link").symlink_to(tmp_path / "precious" / "file")
    bucket.discard(".dsort/job1/")
    assert entries_of(directory) == []
    assert (tmp_path / "precious" / "file").read_bytes() == b"x"


def test_an_internal_directory_that_is_a_link_is_refused_at_once(
    bucket: LocalBucket, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"x")
    (directory / ".dsort").symlink_to(tmp_path / "precious")
    for use in (
        lambda: bucket.stage(TOKEN),
        lambda: bucket.write("a", b""),
        lambda: bucket.discard(".dsort/"),
    ):
        with pytest.raises(StorageAccessError, match="link"):
            use()
    assert entries_of(tmp_path / "precious") == ["file"]


def test_discard_goes_as_deep_as_names_can(bucket: LocalBucket, directory: Path) -> None:
    bucket.stage(".dsort/" + "d/" * 200 + "end").close()
    bucket.discard(".dsort/d/")
    assert entries_of(directory) == []


def test_an_empty_internal_directory_goes_with_what_was_never_there(
    bucket: LocalBucket, directory: Path
) -> None:
    (directory / ".dsort").mkdir()
    bucket.discard(".dsort/job1/")
    assert entries_of(directory) == []


@pytest.fixture
def noted(tmp_path: Path) -> LocalBucket:
    noted = LocalBucket(tmp_path)
    noted.write("a", b"one")
    return noted


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
    change: Callable[[Path], None], noted: LocalBucket, tmp_path: Path
) -> None:
    before = noted.stat("a")
    assert noted.stat("a").is_still(before.size_bytes, before.etag)
    change(tmp_path / "a")
    after = noted.stat("a")
    assert (after.size_bytes, after.mtime_ns) == (before.size_bytes, before.mtime_ns)
    assert not after.is_still(before.size_bytes, before.etag)
    assert after.is_still(before.size_bytes, before.etag, any_ctime=True)


def test_what_an_older_version_noted_still_fits(noted: LocalBucket, tmp_path: Path) -> None:
    now = noted.stat("a")
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


def test_a_staged_file_is_known_again_after_it_was_renamed(
    noted: LocalBucket,
) -> None:
    with noted.stage(TOKEN, name="b") as staged:
        staged.write_at(0, [b"abc"])
        receipt = staged.finish()
    before = noted.stat(TOKEN).etag
    noted.publish(TOKEN, "b", overwrite=False, receipt=receipt)
    assert noted.stat("b").etag != before  # its ctime
    assert noted.still_staged({TOKEN: ("b", receipt)}) == {TOKEN}
    noted.publish(TOKEN, "b", overwrite=False, receipt=receipt)  # a call that did not return
