"""A bucket's address is a URI or a directory under the data root; all else is a user's mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.errors import SpecError
from dsort.storage.addresses import open_bucket


@pytest.mark.parametrize(
    ("uri", "directory"),
    [
        ("images", "/root/images"),
        ("images/train", "/root/images/train"),
        ("./images/", "/root/images"),
        (".", "/root"),
        ("100%", "/root/100%"),
        ("file:///data/images", "/data/images"),
        ("file:///data/images/", "/data/images"),
        ("file://localhost/data", "/data"),
        ("file:///data/two%20words", "/data/two words"),
        ("file:///data/100%", "/data/100%"),
        ("file:///", "/"),
    ],
)
def test_addresses_of_directories(uri: str, directory: str) -> None:
    bucket = open_bucket(uri, root=Path("/root"))
    assert bucket.local_path("a") == Path(directory) / "a"
    assert open_bucket(bucket.uri, root=Path("/other")).uri == bucket.uri


def test_names_that_are_not_utf8_survive_the_uri() -> None:
    bucket = open_bucket("caf\udce9", root=Path("/root"))
    assert bucket.uri == "file:///root/caf%E9"
    again = open_bucket(bucket.uri, root=Path("/other"))
    assert again.local_path("a") == Path("/root/caf\udce9/a")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://images", "s3: is not supported yet"),
        ("gs://images/train", "gs: is not supported yet"),
        ("memory:", "memory: is not supported yet"),
        ("file:/data", "file: is not supported yet"),
        ("file://server/data", "absolute path"),
        ("file://", "absolute path"),
        ("", "not the name of a directory"),
        ("/data/images", "not the name of a directory"),
        ("../images", "not the name of a directory"),
        ("images/../..", "not the name of a directory"),
        ("a\0b", "zero byte"),
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(uri: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        open_bucket(uri, root=Path("/root"))
    assert "file:///" in caught.value.hint


def test_an_absolute_path_is_told_its_uri() -> None:
    with pytest.raises(SpecError) as caught:
        open_bucket("/data/images", root=Path("/root"))
    assert caught.value.hint == "write file:///data/images"
