"""Archive suffixes are known as wholes, and no name leaves its bucket or dsort's own corner."""

from __future__ import annotations

import pytest

from dsort.containers.registry import (
    SUPPORTED_EXTENSIONS,
    check_supported,
    codec_of,
    container_of,
    is_called,
)
from dsort.storage.bucket import INTERNAL_PREFIX
from tests.support.internals import (
    ARCHIVE_EXTENSIONS,
    CODEC_EXTENSIONS,
    INTERNAL_PART,
    SHORT_EXTENSIONS,
    archive_extension,
    check_object_name,
    check_output_name,
    first_few,
    names,
    normalize_extension,
    position_key,
    readable,
    with_extension,
)


@pytest.mark.parametrize(
    ("name", "extension"),
    [
        ("a.tar", ".tar"),
        ("dir.zip/a.tgz", ".tgz"),
        ("a.tar.gz", ".tar.gz"),
        ("a.tar.lz4", ".tar.lz4"),
        ("a.tar.zst", ".tar.zst"),
        ("a.jsonl.xz", ".jsonl.xz"),
        ("a.tgz.gz", None),
        ("a.tar.gz.gz", None),
        ("a.gz", None),
        ("a.TAR", None),
        ("tar", None),
        ("a.tar.part", None),
        ("a.tfrecord-00000-of-00010", ".tfrecord"),
        ("a.tfrecord.gz-3-of-4", ".tfrecord.gz"),
        ("a.tfrecord-{n:05d}-of-{total:05d}", ".tfrecord"),
        ("a.tfrecord-%05d-of-00010", ".tfrecord"),
        ("a-00000-of-00010", None),
        ("a-00000-of-00010.tfrecord", ".tfrecord"),
    ],
)
def test_the_suffix_of_a_name(name: str, extension: str | None) -> None:
    assert archive_extension(name) == extension


def test_numbers_behind_the_suffix_belong_to_the_name_and_the_keys() -> None:
    name = "d/a.tfrecord-00003-of-00010"
    assert with_extension(name, ".tar") == name
    assert container_of(name) == container_of(".tfrecord")
    assert is_called(name, ".tfrecord")
    assert not is_called(name, ".tar")
    assert codec_of("a.tfrecord.gz-00003-of-00010") == codec_of(".gz.tar.gz")
    assert position_key(name, 7) == b"d/a__tfrecord-00003-of-00010-000000007"


def test_the_extension_is_appended_only_where_there_is_none() -> None:
    assert with_extension("a-001", ".tar") == "a-001.tar"
    assert with_extension("a-001.tar", ".tar") == "a-001.tar"
    assert with_extension("a-001.tgz", ".tar") == "a-001.tgz"
    assert with_extension("a-0.5", ".tar") == "a-0.5.tar"


@pytest.mark.parametrize(
    ("name", "codec", "raw"),
    [
        ("a.tar", None, ".tar"),
        ("a.tgz", "gzip", ".tar"),
        (".tar.gz", "gzip", ".tar"),
        ("a.jsonl.zst", "zstd", ".jsonl"),
        ("a.tfrecord.bz2", "bzip2", ".tfrecord"),
        ("a.gz", None, ".tar"),
    ],
)
def test_a_name_says_what_its_shard_is_and_what_is_around_it(
    name: str, codec: str | None, raw: str
) -> None:
    found = codec_of(name)
    assert (found.name if found else None) == codec
    assert container_of(name) is container_of(raw)


@pytest.mark.parametrize(
    ("name", "extension", "expected"),
    [
        ("a.tar.gz", ".tgz", True),
        ("a.tgz", ".tar.gz", True),
        ("a.tar.zstd", ".tar.zst", True),
        ("a.tgz", ".tar", True),
        ("a.jsonl.gz", ".jsonl", True),
        ("a.ndjson.zst", ".jsonl", True),
        ("a.txt", ".jsonl", False),
        ("a.tar", ".tgz", False),
        ("a.jsonl.gz", ".tgz", False),
        ("a.gz", ".tgz", False),
    ],
)
def test_an_extension_covers_each_codec_unless_it_names_one(
    name: str, extension: str, expected: bool
) -> None:
    assert is_called(name, extension) == expected


@pytest.mark.parametrize(
    ("text", "extension"), [("tar", ".tar"), (" .tar ", ".tar"), ("tar.gz", ".tar.gz")]
)
def test_extensions_may_lack_their_dot(text: str, extension: str) -> None:
    assert normalize_extension(text) == extension


@pytest.mark.parametrize("text", [".jpg", ".tar.gz.old", "", "."])
def test_unknown_extensions_are_refused_and_never_guessed(text: str) -> None:
    with pytest.raises(ValueError) as error:
        normalize_extension(text)
    assert str(error.value) == (
        f"{text!r} is no archive extension (known ones: {' '.join(ARCHIVE_EXTENSIONS)}, also with "
        f"{' '.join(CODEC_EXTENSIONS)} behind)"
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (".TAR", "did you mean .tar?"),
        ("parqet", "did you mean .parquet?"),
        ("jsnol.gz", "did you mean .jsonl.gz?"),
        ("gzip", ".gz is how a shard is compressed, as in .tar.gz"),
        ("zst", ".zst is how a shard is compressed, as in .tar.zst"),
    ],
)
def test_of_extensions_that_are_mistyped_it_is_said_what_may_be_meant(
    text: str, meant: str
) -> None:
    with pytest.raises(ValueError) as error:
        normalize_extension(text)
    assert str(error.value) == f"{text!r} is no archive extension: {meant}"


def test_known_containers_that_cannot_be_used_are_distinguished_from_unknown_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "_added_extensions", {".other"})
    assert normalize_extension("other.gz") == ".other.gz"
    for extension in (".other", ".other.gz"):
        with pytest.raises(ValueError, match=r"shards are not yet supported \(usable now: \.tar"):
            check_supported(extension)
    for extension in (*SUPPORTED_EXTENSIONS, *SHORT_EXTENSIONS, *ARCHIVE_EXTENSIONS):
        check_supported(extension)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "a name must not be empty"),
        ("/etc/a.tar", "'/etc/a.tar' is absolute"),
        ("a/../b.tar", "has a '..' part"),
        ("..", "has a '..' part"),
        ("./a.tar", "has a '.' part"),
        ("a//b.tar", "has an empty part"),
        ("a/", "has an empty part"),
        ("a\0.tar", "contains a NUL character"),
        ("a\ud800.tar", "cannot be written as UTF-8"),
        ("x" * 256, "has a part of more than 255 bytes"),
        ("é" * 128, "has a part of more than 255 bytes"),
        (".dsort/a.tar", "is under .dsort/, where dsort keeps its own files"),
        (".dsort", "is under .dsort/"),
    ],
)
def test_names_that_leave_their_bucket_or_cannot_be_stored_are_refused(
    name: str, reason: str
) -> None:
    for check in (check_object_name, check_output_name):
        with pytest.raises(ValueError) as error:
            check(name)
        assert reason in str(error.value)


@pytest.mark.parametrize("name", ["a#1.tar", "a?b.tar", "dir?/a.tar"])
def test_outputs_have_no_sign_that_url_readers_cut_at_but_inputs_may(name: str) -> None:
    check_object_name(name)
    with pytest.raises(ValueError, match="which readers of URLs cut off"):
        check_output_name(name)


@pytest.mark.parametrize(
    "name",
    ["a.tar", "train/a-000.tar", "..a", "a..b.tar", "...", ".hidden/a", "é ü.tar", "x" * 255],
)
def test_ordinary_names_pass(name: str) -> None:
    check_object_name(name)
    check_output_name(name)


def test_the_internal_corner_is_the_one_that_storage_keeps() -> None:
    assert f"{INTERNAL_PART}/" == INTERNAL_PREFIX


@pytest.mark.parametrize(
    ("name", "text"), [(b"a/b.jpg", "a/b.jpg"), ("é".encode(), "é"), (b"a\xff", "a\\xff")]
)
def test_names_that_are_no_utf8_are_escaped_in_messages(name: bytes, text: str) -> None:
    assert readable(name) == text


def test_messages_name_the_first_few_and_say_that_there_are_more() -> None:
    assert first_few([]) == ""
    assert first_few(["a", "b", "c"]) == "a, b, c"
    assert first_few(["a", "b", "c", "d"]) == "a, b, c, …"
    assert first_few(["a", "b"], 1) == "a, …"


@pytest.mark.parametrize(
    ("shard", "key"),
    [
        ("a.jsonl", b"a-000000007"),
        ("v1.2/a.jsonl.gz", b"v1.2/a-000000007"),
        ("a.train.jsonl", b"a__train-000000007"),
        ("a.val.jsonl", b"a__val-000000007"),
        ("x.tfrecord-00000-of-00010", b"x__tfrecord-00000-of-00010-000000007"),
        (".jsonl", b"shard-000000007"),
    ],
)
def test_a_record_without_a_key_is_called_by_its_shard_and_its_position(
    shard: str, key: bytes
) -> None:
    assert position_key(shard, 7) == key
