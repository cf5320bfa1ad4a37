"""Shards are read from a plain web server that knows neither ranges nor ETags."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort.errors import (
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    TransientStorageError,
)
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef
from dsort.storage.registry import open_object_bucket
from tests.support.object_stores import MIB, SMALL
from tests.support.refusals import raises
from tests.support.web_server import WebServer, web_server

ONCE = replace(SMALL, tries_max=1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    with web_server(tmp_path) as server:
        yield server


@pytest.fixture
def bucket(server: WebServer, tmp_path: Path) -> Bucket:
    (tmp_path / "some data").mkdir()
    return open_object_bucket(BucketRef("http", f"{server.host}/some data"), ONCE)


@pytest.mark.parametrize("name", ["a.tar", "train/b c+%41#1?.tar", "日本.tar"])
def test_a_file_is_one_request(
    bucket: Bucket, server: WebServer, tmp_path: Path, rng: random.Random, name: str
) -> None:
    path = tmp_path / "some data" / name
    path.parent.mkdir(exist_ok=True)
    data = rng.randbytes(9 * MIB)
    path.write_bytes(data)
    assert bucket.read(name) == data
    assert [request.split()[0] for request in server.requests] == ["GET"]
    info = bucket.stat(name)
    assert (info.name, info.size_bytes) == (name, len(data))
    assert bucket.stat_many([name, "none"]) == {name: info}
    window = memoryview(bytearray(MIB))
    with bucket.open(name) as opened:
        assert opened.info == info
        for at in range(0, len(data), MIB):
            opened.read_into(window, at)
            assert window == data[at : at + MIB]
    os.utime(path, (1, 1))
    assert bucket.stat(name).etag != info.etag


def test_an_empty_file_is_read(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "some data" / "empty").touch()
    assert bucket.read("empty") == b""


def test_a_server_without_ranges_is_reported(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "some data" / "a").write_bytes(bytes(1000))
    with bucket.open("a") as opened, raises(StorageError, "bucket http://"):
        opened.read_into(memoryview(bytearray(10)), 500)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (503, TransientStorageError),
        (500, TransientStorageError),
        (429, TransientStorageError),
        (403, StorageAccessError),
        (401, StorageAccessError),
        (404, ObjectNotFoundError),
    ],
)
def test_a_status_has_its_meaning(
    bucket: Bucket, server: WebServer, tmp_path: Path, status: int, kind: type[StorageError]
) -> None:
    (tmp_path / "some data" / "a").touch()
    server.statuses.append(status)
    with pytest.raises(StorageError, match="a in bucket http://") as caught:
        bucket.open("a")
    passes = kind is TransientStorageError
    assert type(caught.value.__cause__ if passes else caught.value) is kind
    assert len(server.requests) == 1


def test_a_server_that_is_gone_is_transient() -> None:
    bucket = open_object_bucket(BucketRef("http", "127.0.0.1:9"), ONCE)
    with raises(StorageError, "http://127.0.0.1:9") as caught:
        bucket.read("a")
    assert isinstance(caught.value.__cause__, TransientStorageError)
