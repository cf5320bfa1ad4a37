"""What a directory does beyond the law of all buckets: modes, races, full disks, short reads."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import (
    InvariantError,
    NamesTakenError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from dsort.storage.directory import files as linux
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


def failing(code: int) -> Callable[..., int]:
    def fail(*arguments: object, **named: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


# --- writing -----------------------------------------------------------------------------------


def test_nothing_is_left_of_writing_but_the_object(bucket: LocalBucket, directory: Path) -> None:
    bucket.write("a", b"x")
    assert entries_of(directory) == ["a"]
    (directory / "taken").mkdir()
    with pytest.raises(StorageError):
        bucket.write("taken", b"x")
    assert entries_of(directory) == ["a", "taken"]


def test_what_a_killed_write_leaves_lies_where_discard_finds_it(
    bucket: LocalBucket, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []
    real = os.pwritev

    def noting(fd: int, slices: Sequence[bytes], offset: int) -> int:
        left.append(Path(f"/proc/self/fd/{fd}").readlink().relative_to(directory).parent)
        return real(fd, slices, offset)

    monkeypatch.setattr(os, "pwritev", noting)
    bucket.write(".dsort/job1/manifest.json", b"x")
    bucket.write("train/wids.json", b"x")
    assert left == [Path(".dsort/job1"), Path(".dsort")]


def test_a_file_in_the_way_of_a_directory_is_named(bucket: LocalBucket) -> None:
    bucket.write("a", b"x")
    with bucket.stage(TOKEN):
        pass
    for use in (
        lambda: bucket.write("a/b/c", b""),
        lambda: bucket.publish(TOKEN, "a/b/c", overwrite=True),
    ):
        with raises(NamesTakenError, "/data/a"):
            use()
    assert bucket.read("a") == b"x"


def test_new_files_have_the_mode_that_the_user_asked_for(
    bucket: LocalBucket, directory: Path
) -> None:
    before = os.umask(0o027)
    try:
        bucket.write("a", b"")
        bucket.stage(TOKEN).close()
        bucket.publish(TOKEN, "b/c", overwrite=False)
    finally:
        os.umask(before)
    modes = {name: (directory / name).stat().st_mode & 0o777 for name in ("a", "b", "b/c")}
    assert modes == {"a": 0o640, "b": 0o750, "b/c": 0o640}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_with_what_was_needed(
    bucket: LocalBucket, monkeypatch: pytest.MonkeyPatch, directory: Path, code: int
) -> None:
    with bucket.stage(TOKEN) as staged, monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(code))
        with raises(StorageFullError, "/data", "5,000 bytes"):
            staged.write_at(0, [bytes(2_000), bytes(3_000)])
        with raises(StorageFullError, "7 bytes"):
            bucket.write("a", bytes(7))
    assert not (directory / "a").exists()
    assert names_of(bucket, ".dsort/") == [TOKEN]


def test_room_that_is_not_there_is_reported_before_any_is_taken(
    bucket: LocalBucket, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    class NoSuchCall:
        def fallocate(self, *arguments: object) -> int:
            raise AssertionError("taking room would fill the disk")

    class Room:
        f_bavail = 10
        f_frsize = 4096

    monkeypatch.setattr(linux, "_libc", NoSuchCall())
    monkeypatch.setattr(os, "fstatvfs", lambda fd: Room)
    with raises(StorageFullError, "1,048,576 bytes"):
        bucket.stage(TOKEN, size_bytes=1 << 20)
    assert (directory / TOKEN).stat().st_blocks == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EIO, StorageError),
        (errno.EOPNOTSUPP, None),
    ],
)
def test_room_is_reserved_where_the_file_system_can(
    bucket: LocalBucket,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[StorageError] | None,
) -> None:
    class Libc:
        calls = 0

        def fallocate(self, *arguments: object) -> int:
            self.calls += 1
            ctypes.set_errno(errno.EINTR if self.calls == 1 else code)
            return -1

    libc = Libc()
    monkeypatch.setattr(linux, "_libc", libc)
    if kind is None:
        bucket.stage(TOKEN, size_bytes=1 << 20).close()
    else:
        with pytest.raises(kind):
            bucket.stage(TOKEN, size_bytes=1 << 20)
    assert libc.calls == 2


def test_a_file_larger_than_the_process_may_write_is_an_error(bucket: LocalBucket) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with bucket.stage(TOKEN) as staged:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
        try:
            with raises(StorageError, TOKEN, hint="ulimit -f"):
                staged.write_at(0, [bytes(3_000), bytes(3_000)])  # the first write is short
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_short_writes_are_continued_inside_slices(
    bucket: LocalBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    sizes = iter([1, 4096, 2, 7, 1000, 3, *[977] * 1000])

    def short(fd: int, slices: Sequence[bytes], offset: int) -> int:
        return real(fd, [b"".join(slices)[: next(sizes)]], offset)

    pieces = [os.urandom(n) for n in (0, 1, 10_000, 0, 5, 4_096, 30_000)]
    with bucket.stage(TOKEN) as staged:
        monkeypatch.setattr(os, "pwritev", short)
        staged.write_at(3, pieces)
        monkeypatch.setattr(os, "pwritev", lambda *_: 0)
        with raises(StorageError, TOKEN):
            staged.write_at(0, pieces)
    bucket.publish(TOKEN, "a", overwrite=False)
    assert bucket.read("a") == bytes(3) + b"".join(pieces)


def test_slices_that_are_not_flat_bytes_are_a_bug(bucket: LocalBucket) -> None:
    with bucket.stage(TOKEN) as staged, pytest.raises(InvariantError):
        staged.write_at(0, [memoryview(bytes(80)).cast("q")])


def test_a_directory_that_another_process_removes_meanwhile_is_made_again(
    bucket: LocalBucket, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    removed = []

    def racing(path: Path, flags: int, *rest: int) -> int:
        if not removed and Path(path).name == "0":
            (directory / ".dsort/job1").rmdir()
            (directory / ".dsort").rmdir()
            removed.append(path)
        return real(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", racing)
        bucket.stage(TOKEN).close()
    assert removed
    assert names_of(bucket, ".dsort/") == [TOKEN]


# --- publishing --------------------------------------------------------------------------------


def test_publishing_again_ends_what_a_killed_process_began(
    bucket: LocalBucket, directory: Path
) -> None:
    with bucket.stage(TOKEN) as staged:
        staged.write_at(0, [b"abc"])
    os.link(directory / TOKEN, directory / "a")  # killed between the two steps
    bucket.publish(TOKEN, "a", overwrite=False)
    assert bucket.read("a") == b"abc"
    assert names_of(bucket, ".dsort/") == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_file_systems_without_such_a_rename_do_not_clobber_either(
    bucket: LocalBucket, directory: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(linux, "_libc", object())  # a libc without renameat2: hard links do
    with bucket.stage(TOKEN) as staged:
        staged.write_at(0, [b"new"])
    bucket.write("a", b"old")
    with raises(NamesTakenError, directory.as_uri()):
        bucket.publish(TOKEN, "a", overwrite=False)
    bucket.publish(TOKEN, "b", overwrite=False)
    assert (bucket.read("a"), bucket.read("b")) == (b"old", b"new")
    bucket.stage(TOKEN).close()
    os.link(directory / TOKEN, directory / "c")  # killed between the two steps
    bucket.publish(TOKEN, "c", overwrite=False)
    assert names_of(bucket, ".dsort/") == []
    monkeypatch.setattr(os, "link", failing(code))
    bucket.stage(TOKEN).close()
    with raises(StorageError, directory.as_uri()):
        bucket.publish(TOKEN, "d", overwrite=False)


def test_a_directory_that_goes_while_names_are_given_is_made_again(
    bucket: LocalBucket, directory: Path
) -> None:
    for name in ("sub/a", "sub/b"):
        bucket.stage(TOKEN).close()
        bucket.publish(TOKEN, name, overwrite=False)
        bucket.delete(name)
        (directory / "sub").rmdir()


def test_make_durable_syncs_every_directory_that_got_a_name(
    bucket: LocalBucket, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    bucket.make_durable()
    assert synced == []
    for name in ("top", "x/y/z"):
        bucket.stage(TOKEN).close()
        bucket.publish(TOKEN, name, overwrite=False)
    bucket.make_durable()
    assert sorted(synced) == [directory, directory / "x", directory / "x" / "y"]
    bucket.make_durable()
    assert len(synced) == 3
    synced.clear()
    bucket.write("x/w/v", b"")
    assert directory / "x" / "w" in synced


# --- reading -----------------------------------------------------------------------------------


def test_a_file_that_shrank_is_no_short_read(bucket: LocalBucket, directory: Path) -> None:
    bucket.write("a", bytes(10_000))
    with bucket.open("a") as opened:
        os.truncate(directory / "a", 4_000)
        with raises(StorageError, "byte 4,000", "10,000"):
            opened.read_into(memoryview(bytearray(10_000)), 0)
        with raises(StorageError, "10,000 bytes"):
            opened.mapping()


def test_a_file_that_may_not_be_read_says_so(
    bucket: LocalBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("a", b"")
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with raises(StorageAccessError, "bucket file://"):
        bucket.open("a")


def test_a_directory_that_others_make_and_remove_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers of public names share ``.dsort``, and a writer that finds it empty removes it."""
    make, met = os.mkdir, list[str]()

    def mkdir(path: str, *given: Any, **named: Any) -> None:
        if not met:
            met.append(str(path))
            raise FileExistsError(errno.EEXIST, "made by another, and removed again", str(path))
        make(path, *given, **named)

    monkeypatch.setattr(os, "mkdir", mkdir)
    bucket = LocalBucket(tmp_path)
    bucket.write("a", b"1")
    assert met == [str(tmp_path / ".dsort")]
    assert bucket.read("a") == b"1"
