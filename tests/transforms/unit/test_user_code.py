"""What goes to processes of user code and comes back: headers, encodings, keys, frames."""

from __future__ import annotations

import io
import json
import random
import tarfile
from importlib import metadata
from typing import Any

import numpy as np
import pytest

from dsort.containers.tar.header import tar_header, tar_padding
from dsort.user_code.encoding import DECODERS, EncodingError, encoded
from dsort.user_code.frames import (
    NEW,
    SAME,
    Answer,
    BadResultError,
    Results,
    answer_pieces,
    check_extension,
    check_key,
    parse_results,
    said_briefly,
)
from dsort.user_code.functions import loaded_packages
from tests.support.refusals import raises


def test_headers_are_those_of_tarfile(rng: random.Random) -> None:
    names = [b"a.jpg", b"d/a.jpg", b"x" * 100, b"x" * 101, "ü.jpg".encode(), b"\xff.jpg", b"d/"]
    names += [
        bytes(rng.randrange(33, 127) for _ in range(rng.randrange(1, 100))) for _ in range(99)
    ]
    for name in names:
        for size in (0, 1, 511, 512, 8**11 - 1, 8**11, rng.randrange(1 << 40)):
            info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            info.size = size
            wanted = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            assert tar_header(name, size) == wanted, (name, size)
            assert (size + len(tar_padding(size))) % 512 == 0


@pytest.mark.parametrize(
    ("extension", "value", "wanted"),
    [
        ("jpg", b"abc", b"abc"),
        ("jpg", bytearray(b"abc"), b"abc"),
        ("jpg", memoryview(b"abc"), b"abc"),
        ("txt", "ü", "ü".encode()),
        ("cls", 17, b"17"),
        ("cls", np.int64(17), b"17"),
        ("json", {"a": [1, None]}, b'{"a": [1, null]}'),
        ("info.json", [1], b"[1]"),
    ],
)
def test_values_become_content_by_their_extension(
    extension: str, value: Any, wanted: bytes
) -> None:
    assert encoded(extension, value) == wanted


def test_arrays_and_images_become_files_that_are_read_back() -> None:
    array = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert (DECODERS["npy"](encoded("npy", array)) == array).all()
    assert (DECODERS["npz"](encoded("npz", {"a": array}))["a"] == array).all()
    assert encoded("npz", {"a": array}) == encoded("npz", {"a": array})
    assert (DECODERS["rgb8"](encoded("png", array)) == array).all()
    image = DECODERS["pil"](encoded("jpg", array))
    assert image.size == (2, 2)
    assert DECODERS["rgb"](encoded("jpeg", image)).dtype == np.float32
    assert DECODERS["pilrgb"](encoded("png", image.convert("L"))).mode == "RGB"


@pytest.mark.parametrize(
    ("extension", "value"),
    [
        ("jpg", object()),
        ("jpg", {"a": 1}),
        ("npy", np.array([object()])),
        ("npy", [1, 2]),
        ("txt", None),
        ("cls", True),
        ("cls", 1.5),
    ],
)
def test_what_no_member_can_be_is_refused_by_its_extension(extension: str, value: Any) -> None:
    with raises(EncodingError, f".{extension}"):
        encoded(extension, value)


def test_arrays_of_objects_are_not_unpickled() -> None:
    stored = io.BytesIO()
    np.save(stored, np.array([{}]))
    with pytest.raises(ValueError, match="pickle"):
        DECODERS["npy"](stored.getvalue())


@pytest.mark.parametrize("key", ["", "a/", "a.b", "/a", "../a", "a/../b", "a\0", "\ud800", 5, None])
def test_keys_that_would_be_read_otherwise_are_refused(key: Any) -> None:
    with raises(BadResultError):
        check_key(key)


@pytest.mark.parametrize("extension", ["", ".jpg", "a/b", "a\nb", "a\0", "\ud800", 5, None])
def test_extensions_that_are_none_are_refused(extension: Any) -> None:
    with raises(BadResultError):
        check_extension(extension)


def test_keys_and_extensions_that_names_are_made_of_are_taken() -> None:
    for key in ("a", "d.d/a", "ü", "\udcff"):
        check_key(key)
    for extension in ("jpg", "seg.png", "ü"):
        check_extension(extension)


def test_answers_say_what_was_gathered() -> None:
    answer = Answer()
    answer.counts.extend([1, 0, 2, SAME])
    answer.members.extend([2, 1, 1])
    answer.key_bytes.extend([3, 4, 4])
    answer.named.extend([NEW, 7, 1, NEW])
    answer.errors.append((1, "bad"))
    answer.tar, answer.tar_bytes = [b"xy", b"z"], 3
    _head, said, *tar = answer_pieces(answer)
    found = parse_results(4, said, b"".join(tar))
    assert isinstance(found, Results)
    assert [list(found.counts), list(found.members), list(found.key_bytes)] == [
        [1, 0, 2, SAME],
        [2, 1, 1],
        [3, 4, 4],
    ]
    assert list(found.named) == [NEW, 7, 1, NEW]
    assert (found.errors, found.tar) == ({1: "bad"}, b"xyz")
    for wrong in (said[:-9], said[:8], json.dumps([]).encode()):
        with pytest.raises(ValueError):
            parse_results(4, wrong, b"")


def test_texts_of_users_become_one_short_line() -> None:
    assert said_briefly("a\n b\t\tc") == "a b c"
    assert len(said_briefly("x" * 10_000)) <= 300


def test_versions_are_those_of_the_packages_that_are_loaded() -> None:
    found = loaded_packages(["PIL"])
    assert found["numpy"] == metadata.version("numpy")
    assert found["pillow"] == metadata.version("pillow")
    assert "tarfile" not in found
