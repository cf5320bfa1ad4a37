"""Each scheme gets its client, without a request and without loading those of others; jobs on files
load none; requests for Google's and Microsoft's stores go where they were said to."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from dsort.errors import InvariantError, ObjectNotFoundError, StorageAccessError, StorageError
from dsort.storage.limit import StoreLimits
from dsort.storage.obstore import ObstoreBucket
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from dsort.storage.registry import open_object_bucket
from dsort.storage.s3.bucket import S3Bucket
from dsort.storage.transport import opened_together
from tests.support.commands import ROOT
from tests.support.local_servers import LocalServer, QuietHandler, serving
from tests.support.refusals import raises

LIMITS = StoreLimits()


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "aws-config"
    config.write_text("[profile there]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)


REFS = [
    BucketRef("s3", "images/train", region="eu-central-1"),
    BucketRef("s3", "images", endpoint_url="http://127.0.0.1:9000"),
    BucketRef("ais", "images", endpoint_url="http://127.0.0.1:51080/s3"),
    BucketRef("gs", "images/train"),
    BucketRef("az", "images/train"),
    BucketRef("az", "images", endpoint_url="http://127.0.0.1:10000/account"),
    BucketRef("http", "127.0.0.1:9/some data"),
    BucketRef("https", "example.com/data"),
]


@pytest.mark.parametrize("ref", REFS, ids=str)
def test_a_bucket_is_opened_without_a_request_and_again_elsewhere(ref: BucketRef) -> None:
    bucket = open_object_bucket(ref, LIMITS)
    again = pickle.loads(pickle.dumps(bucket))
    assert again.uri == bucket.uri == ref.uri
    assert bucket.seals_on_finish
    assert bucket.free_bytes() is None
    assert isinstance(bucket, S3Bucket if ref.scheme in ("s3", "ais") else ObstoreBucket)


def test_the_region_is_that_of_the_reference_else_of_the_profile_else_the_usual_one() -> None:
    def region_of(**fields: str) -> str:
        return S3Bucket(BucketRef("s3", "images", **fields), LIMITS)._client.region

    assert region_of() == "us-east-1"
    assert region_of(profile="there") == "eu-west-3"
    assert region_of(profile="there", region="ap-south-1") == "ap-south-1"


def test_a_bucket_of_aws_is_a_host_and_one_elsewhere_is_a_path() -> None:
    def url_of(**fields: str) -> str:
        api = S3Bucket(BucketRef("s3", "images", **fields), LIMITS)._client.api
        return str(
            api.generate_presigned_url("get_object", Params={"Bucket": "images", "Key": "a"})
        ).partition("?")[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        assert url_of(region="eu-central-1").startswith("https://images.s3.")
        assert url_of(endpoint_url="https://store.example") == "https://store.example/images/a"


def test_forks_of_one_thread_use_the_client_that_was_made_before() -> None:
    script = """
import os, threading
from dsort.storage.limit import StoreLimits
from dsort.storage.ref import BucketRef
from dsort.storage.s3.bucket import S3Bucket

held = []

def opened(name="images", **fields):
    held.append(S3Bucket(BucketRef("s3", name, **fields), StoreLimits()))
    return held[-1]._client.api

def in_a_fork(look):
    child = os.fork()
    if child == 0:
        os._exit(not look())
    return os.waitpid(child, 0)[1] == 0

made = opened()
assert opened() is not made  # credentials are found anew
kept = opened()
assert in_a_fork(lambda: opened("other/place") is kept)
assert in_a_fork(lambda: opened(region="eu-west-1") is not kept)
os.environ["AWS_DEFAULT_REGION"] = "eu-west-2"
assert in_a_fork(lambda: opened() is not kept)
del os.environ["AWS_DEFAULT_REGION"]
ended = threading.Event()
threading.Thread(target=ended.wait).start()
assert in_a_fork(lambda: opened() is not kept)  # it may be locked there for ever
ended.set()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_buckets_that_are_opened_together_share_a_client() -> None:
    def opened(name: str, **fields: str) -> object:
        return S3Bucket(BucketRef("s3", name, **fields), StoreLimits())._client.api

    with opened_together():
        first = opened("images")
        assert opened("shuffled/train") is first
        assert opened("shuffled", region="eu-west-1") is not first
    with opened_together():
        assert opened("images") is not first  # credentials are found anew


def test_a_profile_that_there_is_not_is_an_access_error() -> None:
    with pytest.raises(StorageAccessError, match="absent") as caught:
        open_object_bucket(BucketRef("s3", "images", profile="absent"), LIMITS)
    assert caught.value.hint


def test_no_credentials_are_an_access_error_with_a_hint() -> None:
    bucket = open_object_bucket(
        BucketRef("s3", "images", endpoint_url="http://127.0.0.1:9"), LIMITS
    )
    with raises(StorageAccessError, "s3://images", hint="AWS_PROFILE"):
        bucket.read("a")


def test_a_web_server_is_not_listed_and_not_written_to() -> None:
    bucket = open_object_bucket(BucketRef("https", "example.com/data"), LIMITS)
    with raises(StorageError, "https://example.com/data", hint="template"):
        list(bucket.list())
    for write in (
        lambda: bucket.write("a", b""),
        lambda: bucket.write_new("a", b""),
        lambda: bucket.delete("a"),
        lambda: bucket.stage(".dsort/j/0", name="a"),
    ):
        with raises(StorageError, "https://example.com/data"):
            write()


@pytest.mark.parametrize("ref", [BucketRef("", "images"), BucketRef("ais", "images")], ids=str)
def test_what_is_no_reference_of_a_store_is_a_bug(ref: BucketRef) -> None:
    with pytest.raises(InvariantError):
        open_object_bucket(ref, LIMITS)


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import dsort.api", {"boto3", "botocore", "obstore", "urllib3"}),
        ("import dsort.storage.registry", {"boto3", "botocore", "obstore"}),
        ("import dsort.storage.s3.bucket", {"obstore"}),
        ("import dsort.storage.obstore", {"boto3", "botocore"}),
    ],
)
def test_clients_are_loaded_only_where_they_are_wanted(statement: str, unwanted: set[str]) -> None:
    script = f"import json, sys; {statement}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert unwanted.isdisjoint(json.loads(done.stdout))


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that has nothing, and the paths that it was asked for."""
    paths: list[str] = []

    class Nothing(QuietHandler):
        def do_GET(self) -> None:
            paths.append(unquote(self.path.partition("?")[0]))
            self.send_response(404)
            self.end_headers()

    with serving(LocalServer(Nothing)) as server:
        yield server.url, paths


def test_google_is_asked_at_its_endpoint(
    asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint_url, paths = asked
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    bucket = open_bucket(BucketRef("gs", "shards/train", endpoint_url=endpoint_url), root=Path())
    with pytest.raises(ObjectNotFoundError):
        bucket.stat("a b.tar")
    assert paths == ["/shards/train/a b.tar"]


def test_azure_is_asked_at_its_endpoint(
    asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint_url, paths = asked
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    bucket = open_bucket(BucketRef("az", "shards/train", endpoint_url=endpoint_url), root=Path())
    with pytest.raises(ObjectNotFoundError):
        bucket.stat("a.tar")
    assert paths == ["/shards/train/a.tar"]
