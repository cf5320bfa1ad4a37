"""Keeping what is replaced, and putting it back: where there are no hard links, after a death
before anything was noted, and with links laid in the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from dsort.errors import StorageAccessError, StorageError
from dsort.storage.bucket import Bucket
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.small_objects import Staged
from tests.support.datasets import tree_of
from tests.support.internals import Transaction, read_kept, replaced_prefix
from tests.support.memory_bucket import MemoryBucket
from tests.support.refusals import raises

JOB = "20260131-000000-aaaaaa"
NAMES = ["out-0.tar", "d/out-1.tar", "out-2.tar"]


def staged(bucket: Bucket) -> list[Staged]:
    found = []
    for number, name in enumerate(NAMES):
        token = f".dsort/{JOB}/staged/{number}"
        with bucket.stage(token, name=name) as held:
            held.write_at(0, [b"new %d" % number])
            found.append(Staged(token, name, held.finish()))
    return found


def replaced(marked: list[Staged]) -> set[str]:
    return {each.name for each in marked if each.replaces}


@pytest.fixture(params=["directory", "no hard links", "memory"])
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    if request.param == "memory":
        return MemoryBucket()
    if request.param == "no hard links":

        def link(*args: object, **named: object) -> NoReturn:
            raise OSError(errno.EPERM, "no such thing on this file system")

        monkeypatch.setattr(os, "link", link)
    return LocalBucket(tmp_path)


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {info.name: bucket.read(info.name) for info in bucket.list()}


@pytest.mark.parametrize("published", [0, 1, 2, 3])
def test_whatever_was_published_all_is_put_back(published: int, bucket: Bucket) -> None:
    old = {"out-0.tar": b"old 0", "out-2.tar": b"old 2", "other": b"other"}
    for name, data in old.items():
        bucket.write(name, data)
    outputs = staged(bucket)
    assert replaced(Transaction(bucket, JOB).keep_replaced(outputs)) == {"out-0.tar", "out-2.tar"}
    for each in outputs[:published]:
        bucket.publish(each.token, each.name, overwrite=True, receipt=each.receipt)
    done = Transaction(bucket, JOB).put_back(NAMES)
    assert (sorted(done.names), done.lost) == (["out-0.tar", "out-2.tar"], {})
    assert done.was_noted
    new = {"d/out-1.tar": b"new 1"} if published > 1 else {}
    assert contents(bucket) == {**old, **new}  # what replaced nothing is the caller's to remove
    again = Transaction(bucket, JOB).put_back(NAMES)
    assert again.lost == {}
    assert contents(bucket) == {**old, **new}


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_death_before_anything_is_noted(dies_at: int, bucket: Bucket) -> None:
    old = {"out-0.tar": b"old 0", "out-2.tar": b"old 2"}
    for name, data in old.items():
        bucket.write(name, data)
    passed: list[None] = []

    def between() -> None:
        passed.append(None)
        if len(passed) > dies_at:
            raise KeyboardInterrupt

    outputs = staged(bucket)
    with pytest.raises(KeyboardInterrupt):
        Transaction(bucket, JOB, between=between).keep_replaced(outputs)
    assert not read_kept(bucket, JOB).kept
    done = Transaction(bucket, JOB).put_back(NAMES)
    assert not done.was_noted
    assert contents(bucket) == old
    # Or else it is resumed.
    assert replaced(Transaction(bucket, JOB).keep_replaced(outputs)) == set(old)
    assert Transaction(bucket, JOB).put_back(NAMES).lost == {}
    assert contents(bucket) == old


def test_in_a_resumed_job_published_objects_are_not_kept(bucket: Bucket) -> None:
    bucket.write("out-0.tar", b"old 0")
    outputs = staged(bucket)
    Transaction(bucket, JOB).keep_replaced(outputs)
    for each in outputs[:2]:
        bucket.publish(each.token, each.name, overwrite=True, receipt=each.receipt)
    assert replaced(Transaction(bucket, JOB).keep_replaced(outputs)) == {"out-0.tar"}
    Transaction(bucket, JOB).put_back(NAMES)
    assert contents(bucket)["out-0.tar"] == b"old 0"


def test_nothing_is_fetched_through_a_link(tmp_path: Path) -> None:
    bucket = LocalBucket(tmp_path / "out")
    bucket.create()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "0").write_bytes(b"secret")
    (tmp_path / "secrets" / "kept.json").write_text(
        '{"kept": 1, "objects": [[0, "out-0.tar", "", "copy", ""]]}'
    )
    prefix = tmp_path / "out" / replaced_prefix(JOB)
    prefix.parent.mkdir(parents=True)
    prefix.symlink_to(tmp_path / "secrets")
    before = tree_of(tmp_path / "secrets")
    done = Transaction(bucket, JOB).put_back(NAMES)
    assert "is a link" in done.lost["out-0.tar"]
    assert tree_of(tmp_path / "secrets") == before
    assert list((tmp_path / "out").glob("*.tar")) == []
    with pytest.raises(StorageAccessError):
        bucket.put_back(f"{replaced_prefix(JOB)}0", "out-0.tar", receipt="copy")


@pytest.mark.parametrize(
    "note",
    [
        b"\xff",
        b"[" * 100_000,
        b'{"kept": 1}',
        b'{"kept": 1, "objects": 5}',
        b'{"kept": 1, "objects": [[]]}',
        b'{"kept": 1, "objects": [[-1, "a.tar", "", "copy", ""]]}',
        b'{"kept": 1, "objects": [[true, "a.tar", "", "copy", ""]]}',
        b'{"kept": 1, "objects": [[0, "../../etc/passwd", "", "copy", ""]]}',
        b'{"kept": 1, "objects": [[0, ".dsort/x/manifest.json", "", "copy", ""]]}',
        b'{"kept": 1, "objects": [[0, "a.tar", "", "copy", "", 6]]}',
        b'{"kept": 1' + b"0" * 5000 + b"}",
    ],
)
def test_a_note_of_a_stranger_is_no_note(note: bytes, tmp_path: Path) -> None:
    bucket = LocalBucket(tmp_path)
    bucket.write(f"{replaced_prefix(JOB)}kept.json", note)
    with raises(StorageError, "kept.json"):
        Transaction(bucket, JOB).put_back(NAMES)
