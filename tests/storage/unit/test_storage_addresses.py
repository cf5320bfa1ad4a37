"""A bucket's address is a URI or a directory under the data root; archive suffixes are known as
wholes, and no name leaves its bucket or dsort's own corner."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.containers.registry import (
    check_supported,
    codec_of,
    container_of,
    is_called,
)
from dsort.errors import SpecError, StorageError
from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import INTERNAL_PREFIX
from dsort.storage.limit import StoreLimiter, StoreLimits
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from dsort.storage.registry import STORES, Store, parse_address
from dsort.storage.transport import Transport
from tests.support.internals import (
    ARCHIVE_EXTENSIONS,
    CODEC_EXTENSIONS,
    CONTAINERS,
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
from tests.support.memory_bucket import MemoryBucket
from tests.support.refusals import raises


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
    "uri",
    [
        *("memory:", "C:/data", "file://server/data", "file://", "", "/data/images"),
        *("../images", "images/../..", "a\0b"),
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(uri: str) -> None:
    with raises(SpecError, hint="file:///"):
        open_bucket(uri, root=Path("/root"))


def test_an_absolute_path_is_answered_with_its_uri() -> None:
    with pytest.raises(SpecError) as caught:
        open_bucket("/data/images", root=Path("/root"))
    assert caught.value.hint == "write file:///data/images"


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("file:/data", '"file:///data"'),
        ("s3:/images", '"s3://images"'),
        ("gs:images", '"gs://images"'),
        ("s3://", '"s3://bucket/prefix"'),
        ("S3://Images_", "S3 bucket names"),
        ("s4://images", "file:// s3://"),
        ("hf://images/a", "hf://datasets/USER/NAME"),
        ("hf://datasets/squad", "hf://datasets/USER/NAME"),
        ("hf://datasets/a/b@x..y", "hf://datasets/USER/NAME"),
        ("hf://datasets/a--b/c", "hf://datasets/USER/NAME"),
        ("hf://datasets/a/b/../c", "prefix"),
        ("hf://datasets/a/b@x%2Fy/c", "commit"),
        ("hf://buckets/team/images", "s3://BUCKET"),
        ("s3://images/a\0b", "file:///"),
        ("s3://images/\udce9", "file:///"),
    ],
)
def test_what_was_meant_as_a_uri_is_answered_with_the_right_one(uri: str, hint: str) -> None:
    with raises(SpecError, hint=hint):
        open_bucket(uri, root=Path("/root"))


@pytest.mark.parametrize(
    "uri",
    ["images", "images/train", ".", "file:///data/a b", "s3://images", "s3://images/a%20b/",
     "hf://datasets/a/b", "hf://datasets/a/b@v1.0/c%20d", "hf://datasets/a/b@refs/pr/7",
     "gs://images/x", "az://images", "ais://images/x", "https://host:80/images"],
)  # fmt: skip
def test_an_address_means_what_it_means_in_a_spec(uri: str) -> None:
    assert parse_address(uri) == parse_bucket(uri)


def test_a_reference_to_a_directory_is_that_directory() -> None:
    root = Path("/root")
    for ref, path in ((BucketRef("", "images"), "/root/images"), (BucketRef("", "."), "/root"),
                      (BucketRef("file", "/data/100%"), "/data/100%")):  # fmt: skip
        assert open_bucket(ref, root=root).local_path("a") == Path(path) / "a"


class OpenedBucket(MemoryBucket):
    """A bucket in memory, opened with ``transport``."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self.transport = transport


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[BucketRef, StoreLimits]]:
    """What the backend of object stores was asked to open; it gives buckets in memory."""
    asked: list[tuple[BucketRef, StoreLimits]] = []

    def open_object_bucket(
        ref: BucketRef, limits: StoreLimits, transport: Transport
    ) -> OpenedBucket:
        asked.append((ref, limits))
        return OpenedBucket(transport)

    monkeypatch.setattr("dsort.storage.open.open_object_bucket", open_object_bucket)
    return asked


@pytest.mark.parametrize("where", ["s3://images/train", "gs://images", "https://host/images"])
def test_object_stores_are_opened_with_their_transport(
    opened: list[tuple[BucketRef, StoreLimits]], where: str
) -> None:
    limits = StoreLimits(requests_in_flight_max=3, tries_max=5, retry_seconds_max=7.0)
    bucket = open_bucket(where, root=Path("/root"), limits=limits)
    assert opened == [(parse_address(where), limits)]
    assert isinstance(bucket, OpenedBucket)
    policy = bucket.transport.policy
    assert (policy.tries_max, policy.seconds_max) == (5, 7.0)


def test_buckets_of_one_process_may_share_a_limiter(
    opened: list[tuple[BucketRef, StoreLimits]],
) -> None:
    limiter = StoreLimiter(StoreLimits())
    ref = BucketRef("s3", "images", "http://10.0.0.1:8333", "eu-west-1", "lab")
    for _ in range(2):
        bucket = open_bucket(ref, root=Path("/root"), limiter=limiter)
        assert isinstance(bucket, OpenedBucket)
        assert bucket.transport.limiter is limiter
    assert opened == [(ref, StoreLimits())] * 2


def test_aistore_is_not_opened_without_its_endpoint(
    opened: list[tuple[BucketRef, StoreLimits]],
) -> None:
    with raises(SpecError, "ais://images", hint="AIS_ENDPOINT"):
        open_bucket("ais://images", root=Path("/root"))
    assert opened == []
    open_bucket(BucketRef("ais", "images", "http://host/s3"), root=Path("/root"))
    assert len(opened) == 1


def test_a_store_with_the_scheme_of_directories_is_refused() -> None:
    class Other(Store):
        schemes = ("other", "file")

    with pytest.raises(ValueError, match="'file'"):
        STORES.register(Other())
    assert "other" not in STORES


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
    known = (" ".join(ARCHIVE_EXTENSIONS), " ".join(CODEC_EXTENSIONS))
    with raises(ValueError, repr(text), *known):
        normalize_extension(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (".TAR", ".tar?"),
        ("parqet", ".parquet?"),
        ("jsnol.gz", ".jsonl.gz?"),
        ("gzip", ".tar.gz"),
        ("zst", ".tar.zst"),
    ],
)
def test_of_extensions_that_are_mistyped_it_is_said_what_may_be_meant(
    text: str, meant: str
) -> None:
    with raises(ValueError, repr(text), meant):
        normalize_extension(text)


def test_known_containers_that_cannot_be_used_are_distinguished_from_unknown_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "_added_extensions", {".other"})
    assert normalize_extension("other.gz") == ".other.gz"
    for extension in (".other", ".other.gz"):
        with raises(ValueError, ".tar"):
            check_supported(extension)
    for extension in (*CONTAINERS, *SHORT_EXTENSIONS, *ARCHIVE_EXTENSIONS):
        check_supported(extension)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("", ""),
        ("/etc/a.tar", "'/etc/a.tar'"),
        ("a/../b.tar", "'..'"),
        ("..", "'..'"),
        ("./a.tar", "'.'"),
        ("a//b.tar", "'a//b.tar'"),
        ("a/", "'a/'"),
        ("a\0.tar", "NUL"),
        ("a\ud800.tar", "UTF-8"),
        ("x" * 256, "255 bytes"),
        ("é" * 128, "255 bytes"),
        (".dsort/a.tar", ".dsort/"),
        (".dsort", ".dsort/"),
    ],
)
def test_names_that_leave_their_bucket_or_cannot_be_stored_are_refused(
    name: str, named: str
) -> None:
    for check in (check_object_name, check_output_name):
        with raises(ValueError, named):
            check(name)


@pytest.mark.parametrize("name", ["a#1.tar", "a?b.tar", "dir?/a.tar"])
def test_outputs_have_no_sign_that_url_readers_cut_at_but_inputs_may(name: str) -> None:
    check_object_name(name)
    with raises(ValueError):
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


@pytest.mark.parametrize(
    ("page", "dataset"),
    [
        ("datasets/lab/images", "hf://datasets/lab/images"),
        ("datasets/lab/images/tree/main", "hf://datasets/lab/images@main"),
        ("datasets/lab/images/tree/v1/train/a", "hf://datasets/lab/images@v1/train/a"),
        ("datasets/lab/images/resolve/main/a%23b", "hf://datasets/lab/images@main/a%23b"),
        ("datasets/lab/images/discussions/1", ""),
        ("datasets/lab/images/tree/refs/pr/1", ""),
        ("lab/model", ""),
        ("", ""),
    ],
)
def test_the_page_of_a_dataset_is_answered_with_its_address(page: str, dataset: str) -> None:
    ref = parse_address(f"https://huggingface.co/{page}".rstrip("/"))
    bucket = open_bucket(ref, root=Path(), limits=StoreLimits())
    hint = f'write "{dataset}"' if dataset else "template"
    with raises(StorageError, ref.uri, hint=hint):
        list(bucket.list())
    assert not dataset or parse_address(dataset).uri == dataset
