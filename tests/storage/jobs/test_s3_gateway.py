"""Buckets behind a gateway as that of the Hugging Face Hub: a path in the endpoint, few conditions,
no versions, and readers who are sent on to a server of bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from urllib3.response import HTTPResponse

import dsort
from dsort.errors import (
    ChangedInputError,
    StorageAccessError,
    StorageError,
    TransientStorageError,
)
from dsort.storage.bucket import Bucket
from dsort.storage.redirects import Reply, RuledWeb
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket
from tests.support.bucket_suite import BucketSuite
from tests.support.datasets import small_dataset, write_shards
from tests.support.object_stores import MIB, SMALL, TOKEN, upload
from tests.support.refusals import raises
from tests.support.s3_gateway import KEY, SECRET, Gateway, s3_gateway
from tests.support.seaweedfs import S3Server


@pytest.fixture(scope="module")
def process(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with s3_gateway(tmp_path_factory.mktemp("gateway"), s3_server) as gateway:
        yield gateway


@pytest.fixture
def gateway(process: Gateway, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    for name, value in process.environment().items():
        monkeypatch.setenv(name, value)
    process.behave()
    process.forget_requests()
    return process


def bucket_of(gateway: Gateway, **limits: Any) -> S3Bucket:
    ref = BucketRef("s3", f"{gateway.new_bucket()}/some/prefix", gateway.endpoint_url)
    return S3Bucket(ref, replace(SMALL, **{"tries_max": 1, **limits}))


def operations(gateway: Gateway) -> list[str]:
    return [operation for operation, _ in gateway.requests()]


class TestBucketBehindAGateway(BucketSuite):
    """One that sends all its readers on: without that, it has fewer differences from AWS."""

    @pytest.fixture
    def bucket(self, gateway: Gateway) -> Bucket:
        gateway.behave(redirects_all=True)
        return bucket_of(gateway)


# --- reading --------------------------------------------------------------------------------------


def test_readers_are_not_sent_on_as_long_as_botocore_is_not(gateway: Gateway) -> None:
    bucket = bucket_of(gateway)
    bucket.write("a", b"one")
    gateway.forget_requests()
    assert bucket.read("a") == b"one"
    assert gateway.requests() == [("GetObject", 200)]


def test_a_reader_who_is_sent_on_reads_the_bytes_there(gateway: Gateway) -> None:
    gateway.behave(redirects_all=True)
    bucket, data = bucket_of(gateway), bytes(range(256)) * (40 << 10)
    bucket.write("a", data)
    bucket.write("empty", b"")
    gateway.forget_requests()
    info = bucket.stat("a")
    with bucket.open("a") as opened:
        assert opened.info == info
        for at in range(0, len(data), MIB):
            opened.read_into(window := memoryview(bytearray(MIB)), at)
            assert window == data[at : at + MIB]
    bucket.pinned(info).read_into(piece := memoryview(bytearray(100)), 1000)
    assert piece == data[1000:1100]
    assert bucket.read("empty") == b""
    made = Counter(operations(gateway))
    assert made.pop("HeadBucket") == made["GetObject"]  # botocore looks for another region
    assert made["data"] == made["GetObject"] - 1  # the gateway was not known to send readers on
    assert made["HeadObject"] == made["data"] + 3  # `stat`, and before each of two opened objects


def test_an_object_that_changes_is_noticed_on_both_ways(gateway: Gateway) -> None:
    for redirects_all in (False, True):
        gateway.behave(redirects_all=redirects_all)
        bucket = bucket_of(gateway)
        bucket.write("a", bytes(100))
        info = bucket.stat("a")
        bucket.write("a", b"x" * 100)
        with pytest.raises(ChangedInputError, match="a in bucket s3://"):
            bucket.pinned(info).read_into(memoryview(bytearray(10)), 5)


def test_an_object_that_is_replaced_while_it_is_opened_is_read_from_one_version(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.behave(redirects_all=True)
    bucket, other = bucket_of(gateway, tries_max=3), bytes(range(100)) * 2
    bucket.write("a", bytes(200))
    get, left = RuledWeb.body_sent_on, [other, b"x" * 200]

    def with_a_writer(self: RuledWeb, url: str, wanted: str, head: Any, action: str) -> Any:
        def replaced_before() -> Any:
            if left:
                bucket.write("a", left.pop())
            return head()

        return get(self, url, wanted, replaced_before, action)

    monkeypatch.setattr(RuledWeb, "body_sent_on", with_a_writer)
    with bucket.open("a") as opened:
        opened.read_into(whole := memoryview(bytearray(200)), 0)
        assert opened.info == bucket.stat("a")
        opened.read_into(again := memoryview(bytearray(200)), 0)
    assert whole == again == other


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": "bytes 0-4/5", "Content-Length": "5" * 5000},
        {"Content-Range": "bytes 0-4/5", "Content-Length": "-5"},
        {"Content-Range": "bytes 0-4/5", "Content-Length": ""},
        {"Content-Range": "bytes 0-4/6", "Content-Length": "5"},
    ],
)
def test_a_reply_without_its_length_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    raw = HTTPResponse(BytesIO(b"hello"), headers, 206, preload_content=False)
    monkeypatch.setattr(RuledWeb, "ask", lambda *_, **__: Reply(raw, {}, "", 60.0))
    with raises(TransientStorageError, "read a"):
        web = RuledWeb("http://host", SMALL, {})
        web.body_sent_on("x", "bytes=0-4", lambda: {"ContentLength": 5}, "read a")


@pytest.mark.parametrize(
    "moved_to", ["http://203.0.113.7/a?X-Sig=s", "ftp://127.0.0.1/a?X-Sig=s", "https://[/?X-Sig=s"]
)
def test_no_reader_goes_where_there_is_no_tls(gateway: Gateway, moved_to: str) -> None:
    bucket = bucket_of(gateway)
    bucket.write("a", b"one")
    gateway.behave(redirects_all=True, moved_to=moved_to)
    with pytest.raises(StorageError, match="a in bucket s3://") as caught:
        bucket.read("a")
    assert "X-Sig" not in str(caught.value)


def test_an_address_that_is_refused_is_an_error_with_the_name(gateway: Gateway) -> None:
    bucket = bucket_of(gateway)
    bucket.write("a", b"one")
    gateway.behave(redirects_all=True, moved_to=f"{gateway.data_url}/a?X-Sig=none")
    with pytest.raises(StorageAccessError, match="a in bucket s3://"):
        bucket.read("a")


# --- writing --------------------------------------------------------------------------------------


def test_objects_are_uploaded_without_chunks_and_trailers(gateway: Gateway) -> None:
    bucket, data = bucket_of(gateway), bytes(11 * MIB)
    receipt = upload(bucket, "train/a.tar", data)
    bucket.publish(TOKEN, "train/a.tar", overwrite=False, receipt=receipt)
    assert bucket.read("train/a.tar") == data
    assert all(status < 300 or op == "HeadObject" for op, status in gateway.requests())


def test_a_large_object_is_kept_by_one_copy_where_parts_cannot_be_copied(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.storage.s3.copies.COPIED_AT_ONCE_BYTES_MAX", 50)
    bucket = bucket_of(gateway)
    bucket.write("a", bytes(100))
    receipt = bucket.keep_aside("a", TOKEN)
    bucket.write("a", b"new")
    bucket.put_back(TOKEN, "a", receipt=receipt)
    assert bucket.read("a") == bytes(100)
    assert "CopyObject" in operations(gateway)
    assert list(bucket.unfinished_uploads()) == []


def test_uploads_that_expired_are_not_staged_any_more(gateway: Gateway) -> None:
    bucket = bucket_of(gateway)
    receipt = upload(bucket, "a", bytes(MIB))
    assert bucket.still_staged({TOKEN: ("a", receipt)}) == {TOKEN}
    for each in bucket.unfinished_uploads():
        bucket.abort_upload(each.name, each.upload_id)
    assert bucket.still_staged({TOKEN: ("a", receipt)}) == set()


def test_wrong_credentials_are_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageAccessError):
        list(bucket_of(gateway).list())


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_reads_and_writes_them(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    source, target = gateway.new_bucket(), gateway.new_bucket()
    for path in (tmp_path / "in").iterdir():
        gateway.server.client().upload_file(str(path), source, f"data/{path.name}")
    gateway.behave(redirects_all=True)
    spec = {
        "input_bck": f"s3://{source}/data",
        "output_bck": f"s3://{target}",
        "output_format": "out-%03d",
        "output_shard_records": 6,
        "algorithm": {"kind": "shuffle", "seed": 4},
    }
    dsort.run(spec)
    again = {**spec, "algorithm": {"kind": "shuffle", "seed": 5}, "overwrite": True}
    report = dsort.run(again)
    assert dsort.verify(report).ok
    dsort.run({**again, "input_bck": "in", "output_bck": "near"})
    near = {path.name: path.read_bytes() for path in (tmp_path / "near").glob("*.tar")}
    bucket = S3Bucket(BucketRef("s3", target, gateway.endpoint_url), SMALL)
    assert {name: bucket.read(name) for name in near} == near
    refused = {op for op, status in gateway.requests() if status >= 400}
    assert refused <= {"HeadObject", "GetObject"}  # objects that are not there


def makes_and_lists(cli: Any, bucket: str) -> None:
    made = cli("gen-shards", f"{bucket}/raw/a-{{0..1}}.tar", "--fcount", 3, "--progress", "none")
    assert (made.code, made.err) == (0, "")
    assert [line.split()[0] for line in cli("ls", bucket).out.splitlines()] == [
        "NAME", "raw/a-0.tar", "raw/a-1.tar",
    ]  # fmt: skip


def test_the_settings_of_a_bucket_reach_it(
    cli: Any, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    bucket = f"s3://{gateway.new_bucket()}"
    (tmp_path / "dsort.toml").write_text(
        f'[stores."{bucket}"]\nendpoint_url = "{gateway.endpoint_url}"\nregion = "us-east-1"\n'
    )
    makes_and_lists(cli, bucket)
    assert gateway.requests()


def test_the_profile_that_the_hub_documents_reaches_it(
    cli: Any, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in gateway.environment():
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        f"[profile hf]\nregion = us-east-1\nendpoint_url = {gateway.endpoint_url}\n"
        "s3 =\n    addressing_style = path\n    multipart_threshold = 2GB\n"
        "    multipart_chunksize = 2GB\n"
        "request_checksum_calculation = when_required\n"
        "response_checksum_validation = when_required\n"
    )
    (tmp_path / "credentials").write_text(
        f"[hf]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    (tmp_path / "dsort.toml").write_text('[stores.s3]\nprofile = "hf"\n')
    makes_and_lists(cli, f"s3://{gateway.new_bucket()}")
    assert gateway.requests()
