"""Buckets: a bare name, a URI or an object; never outside the data root by a bare name, never with
a secret in them, and the same again once written back."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest

from dsort.errors import SpecError
from dsort.spec.buckets import BucketRef, bucket_value, parse_bucket
from dsort.spec.hints import FieldError
from dsort.spec.load import parse_spec
from tests.support.spec_cases import problem_of, problems_of, small, spec_of

HTTP = "http://10.0.0.1:8333"


@pytest.mark.parametrize(
    ("written", "uri"),
    [
        ("images", "images"),
        ("images/train/", "images/train"),
        (".", "."),
        ({"name": "images"}, "images"),
        ({"name": "images", "provider": ""}, "images"),
        ({"name": "images", "provider": "ais", "namespace": {"uuid": "", "name": ""}}, "images"),
        ("file:///data/images/", "file:///data/images"),
        ("FILE:///data//images", "file:///data/images"),
        ("file://localhost/data/images", "file:///data/images"),
        ({"name": "file:///data/images"}, "file:///data/images"),
        ({"name": "/data/images", "provider": "file"}, "file:///data/images"),
        ({"name": "file:///data/images", "provider": "file"}, "file:///data/images"),
        ("file:///my%20data/100%25", "file:///my data/100%25"),
        ({"name": "/data/100%", "provider": "file"}, "file:///data/100%25"),
        ({"name": "/data", "provider": "file", "prefix": "a/b"}, "file:///data/a/b"),
        ({"name": "images", "prefix": "/train/"}, "images/train"),
        ({"name": ".", "prefix": "train"}, "train"),
        ("s3://images", "s3://images"),
        ("S3://images/", "s3://images"),
        ("s3://images/train/2024/", "s3://images/train/2024"),
        ("s3://images/a b/%C3%BC+%25%23%3F", "s3://images/a b/ü+%25%23%3F"),
        ("aws://images", "s3://images"),
        ("gs://images_2/train", "gs://images_2/train"),
        ("gcp://images", "gs://images"),
        ("az://images/train", "az://images/train"),
        ("azure://$web", "az://$web"),
        ("ais://Images_1/train", "ais://Images_1/train"),
        ("https://Data.Example:8443/images", "https://data.example:8443/images"),
        ("http://[::1]:8080/images", "http://[::1]:8080/images"),
        ("http://10.0.0.1", "http://10.0.0.1"),
        ({"name": "images", "provider": "aws"}, "s3://images"),
        ({"name": "images/train", "provider": "S3"}, "s3://images/train"),
        ({"name": "images", "provider": "gcp", "prefix": "a%20b"}, "gs://images/a%2520b"),
        ({"name": "images", "provider": "azure"}, "az://images"),
        ({"name": "s3://images/train", "provider": "aws", "prefix": "x"}, "s3://images/train/x"),
        ({"name": "gs://images"}, "gs://images"),
        ({"name": "https://host/images", "provider": "ht"}, "https://host/images"),
        ({"name": "host/images", "provider": "https"}, "https://host/images"),
        ({"name": "ais://images", "provider": "ais"}, "ais://images"),
        ({"name": "images", "provider": "aws", "region": None, "profile": ""}, "s3://images"),
    ],
)
def test_every_way_to_write_a_bucket_has_one_canonical_uri(written: object, uri: str) -> None:
    bucket = parse_bucket(written)
    assert bucket.uri == str(bucket) == uri
    assert parse_bucket(uri) == bucket == parse_bucket(bucket)
    assert bucket_value(bucket) == uri


@pytest.mark.parametrize(
    ("written", "ref"),
    [
        ({"name": "images", "provider": "aws", "endpoint_url": "HTTP://10.0.0.1:8333/"},
         BucketRef("s3", "images", HTTP)),
        ({"name": "My_Images/a", "provider": "s3", "endpoint_url": HTTP, "prefix": "b c%"},
         BucketRef("s3", "My_Images/a/b c%", HTTP)),
        ({"name": "s3://My_Images/a%20b", "endpoint_url": HTTP},
         BucketRef("s3", "My_Images/a b", HTTP)),
        ({"name": "images", "provider": "aws", "region": "eu-west-1", "profile": "lab"},
         BucketRef("s3", "images", "", "eu-west-1", "lab")),
        ({"name": "images", "provider": "ais", "endpoint_url": "http://ais:51080"},
         BucketRef("ais", "images", "http://ais:51080")),
        ({"name": "images", "provider": "azure", "endpoint_url": "https://a.blob.core.windows.net"},
         BucketRef("az", "images", "https://a.blob.core.windows.net")),
        ({"name": "images", "provider": "gs", "endpoint_url": "http://[::1]:4443/gs"},
         BucketRef("gs", "images", "http://[::1]:4443/gs")),
    ],
)  # fmt: skip
def test_an_object_says_how_a_bucket_is_reached(written: dict[str, Any], ref: BucketRef) -> None:
    assert parse_bucket(written) == ref
    assert parse_bucket(json.loads(json.dumps(bucket_value(ref)))) == ref
    spec = spec_of(input_bck=written)
    assert spec.input_bck == spec.output_bck == ref
    assert parse_spec(spec.canonical()).spec == spec


def test_buckets_of_provider_ais_are_directories_until_an_aistore_is_known() -> None:
    written = {"name": "images", "provider": "ais"}
    assert parse_bucket(written) == BucketRef("", "images")
    assert parse_bucket(written, ais_is_there=True) == BucketRef("ais", "images")
    for bare in ("images", {"name": "images"}, {"name": "images", "provider": ""}):
        assert parse_bucket(bare, ais_is_there=True) == BucketRef("", "images")
    loaded = parse_spec(small(input_bck=written), ais_is_there=True)
    assert loaded.spec.canonical()["input_bck"] == "ais://images"


def test_the_path_of_a_bucket_is_as_on_disk() -> None:
    assert parse_bucket("file:///my%20data/100%25") == BucketRef("file", "/my data/100%")
    assert parse_bucket("my data/100%") == BucketRef("", "my data/100%")


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("/data/images", '"/data/images" is absolute', 'write "file:///data/images"'),
        ("../images", 'has a "." or ".." part', "under the data root"),
        ("a/../../b", 'has a "." or ".." part', "under the data root"),
        ("./images", 'has a "." or ".." part', "under the data root"),
        ("file:///data/../etc", 'has a "." or ".." part', "under the data root"),
        ("file:///data/%2e%2e/etc", 'has a "." or ".." part', "under the data root"),
        ("~/images", '"~/images" is no bucket name', "file:///"),
        ("file:/data", '"file:/data" is no bucket name', 'did you mean "file:///data"?'),
        ("s3:/images/a", '"s3:/images/a" is no bucket name', 'did you mean "s3://images/a"?'),
        ("gs:images", '"gs:images" is no bucket name', 'did you mean "gs://images"?'),
        ("s3//images", '"s3//images" is no bucket name', 'did you mean "s3://images"?'),
        ("s3:", '"s3:" is no bucket name', 'did you mean "s3://bucket/prefix"?'),
        ("az:host:80/x", '"az:host:80/x" is no bucket name', 'did you mean "az://host:80/x"?'),
        ("s3://", '"s3://" names no bucket', 'write "s3://bucket/prefix"'),
        ("s3:///images", '"s3:///images" names no bucket', 'write "s3://images"'),
        ("https://", '"https://" names no host', 'write "https://host/prefix"'),
        ("S3://Images_", 'no bucket can be called "Images_"', "3 to 63 characters: a-z, 0-9"),
        ("s3://ab", 'no bucket can be called "ab"', "3 to 63 characters"),
        ("s3://" + "a" * 64, "no bucket can be called", "3 to 63 characters"),
        ("s3://-images", "no bucket can be called", "at both ends"),
        ("s3://a..b", "no bucket can be called", "S3 bucket names"),
        ("gs://Images", 'no bucket can be called "Images"', "GCS bucket names"),
        ("az://images.2", 'no bucket can be called "images.2"', "AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://im--ages", 'no bucket can be called "im--ages"', "single hyphens"),
        ("ais://a b", 'no bucket can be called "a b"', "letters, digits"),
        ("s3://images/with/../", 'has a "." or ".." part', ""),
        ("s3://images/%2E%2e/x", 'has a "." or ".." part', ""),
        ("s3://images//x", "two slashes in a row", ""),
        ("s3://images/.dsort/x", ".dsort is dsort's own", ""),
        ("s3://images?x=1", "has a query or a fragment", "%3F"),
        ("https://host/images?x=1", "has a query or a fragment", "presigned"),
        ("s3://images/%ff", "is not UTF-8", ""),
        ("s3://images/a\nb", "cannot be printed", ""),
        ("https://ho st/x", "has no proper host", 'e.g. "https://host:8080"'),
        ("https://host:123456/x", "has no proper host", ""),
        ("s4://images", "has an unknown scheme", "known: file:// s3:// gs:// az://"),
        ("htps://host/images", "has an unknown scheme", 'did you mean "https://"?'),
        ("oci://images", "oci:// is not supported", "known: file://"),
        (".dsort", "\".dsort\": .dsort is dsort's own, and no bucket", ""),
        ("file://data/images", "is not absolute", 'e.g. "file:///data/images"'),
        ("file:///", "names no directory", ""),
        ("file:///data?x=1", "has a query or a fragment", "%3F"),
        ("file:///%ff", "is not UTF-8", ""),
        ("a\nb", "cannot be printed", ""),
        ("foo://bar", "has an unknown scheme", "known: file://"),
        ({}, "name: is required", 'e.g. "images"'),
        ({"name": 5}, "name: must be text, not the number 5", ""),
        ({"name": "a", "provider": 5}, "provider: must be text, not the number 5", ""),
        ({"name": "a", "provder": "ais"}, "provder: unknown field", 'did you mean "provider"?'),
        ({"name": "a", "xyz": "ais"}, "xyz: unknown field", "a bucket has name, provider, prefix"),
        ({"name": "a", "provider": "fil"}, 'unknown provider "fil"', 'did you mean "file"?'),
        ({"name": "a", "provider": "xyz"}, 'unknown provider "xyz"', "known here: aws, gcp"),
        ({"name": "a", "namespace": "#ns"}, "namespaces of buckets are not supported", ""),
        ({"name": "a", "namespace": {"name": "x"}}, "namespaces of buckets are not", ""),
        ({"name": "images", "provider": "file"}, "is not absolute", 'e.g. "file:///images"'),
        ({"name": "gs://images", "provider": "aws"}, "contradicts the provider", "leave"),
        ({"name": "host/x", "provider": "ht"}, "is no URL", 'write "https://host/prefix"'),
        ({"name": "images", "region": "eu"}, "cannot be combined with a directory", '"aws"'),
        ({"name": "images", "provider": "gcp", "region": "eu"}, "combined with gs://", ""),
        ({"name": "images", "provider": "az", "profile": "x"}, "cannot be combined with az://", ""),
        ({"name": "https://host/x", "endpoint_url": HTTP}, "cannot be combined with https://", ""),
        ({"name": "images", "provider": "aws", "prefix": "../x"}, 'has a "." or ".." part', ""),
        ({"name": "images", "provider": "aws", "endpoint_url": "10.0.0.1:8333"},
         "endpoint_url: ", 'write "http://10.0.0.1:8333" or'),
        ({"name": "images", "provider": "aws", "endpoint_url": "s3://host"},
         "endpoint_url: ", 'e.g. "https://s3.example.com"'),
        ({"name": "images", "provider": "aws", "endpoint_url": f"{HTTP}/?x=1"},
         "has a query", ""),
        (5, "must be a bucket, not the number 5", 'e.g. "images"'),
        (["images"], "must be a bucket, not a list", 'e.g. "images"'),
    ],
)  # fmt: skip
def test_what_is_no_bucket_says_why(written: object, message: str, hint: str) -> None:
    with pytest.raises(FieldError) as error:
        parse_bucket(written)
    assert message in str(error.value)
    assert hint in error.value.hint


def test_everything_wrong_with_a_bucket_is_said_at_once_by_its_path() -> None:
    bucket = {"nme": "images", "provider": "awz", "endpoint_url": "host", "region": 5}
    problems = problems_of(small(output_bck=bucket, output_shard_records=-1))
    assert {path: each.message for path, each in problems.items()} == {
        "output_bck.nme": "unknown field",
        "output_bck.name": "is required",
        "output_bck.provider": 'unknown provider "awz"',
        "output_bck.endpoint_url": '"host": it is no URL',
        "output_bck.region": "must be text, not the number 5",
        "output_shard_records": "must be at least 1, not -1",
    }
    assert problems["output_bck.nme"].hint == 'did you mean "name"?'


def test_a_part_of_a_bucket_is_called_as_it_was_written() -> None:
    spec = {"bck": {"name": "images", "regon": "x"}, "output_format": "a-%d",
            "output_shard_size": 1}  # fmt: skip
    assert list(problems_of(spec)) == ["bck.regon"]


@pytest.mark.parametrize(
    "written",
    [
        "s3://AKIAKEY:hunter2@images",
        "s3://AKIAKEY:hunt/er2@images/x",
        "https://AKIAKEY:hunter2@host/images",
        "https://AKIAKEY:hunt/er2@host/images",
        "https://host/images?X-Amz-Signature=hunter2&X-Amz-Credential=AKIAKEY",
        "s3:AKIAKEY:hunter2@images",
        "az://images?sig=hunter2",
        {"name": "images", "provider": "aws", "access_key": "AKIAKEY", "secret": "hunter2"},
        {"name": "images", "provider": "aws", "aws_secret_access_key": "hunter2"},
        {"name": "images", "provider": "aws", "sessionToken": "hunter2"},
        {"name": "images", "provider": "azure", "account-key": {"value": "hunter2"}},
        {"name": "images", "provider": "aws", "endpoint_url": "http://AKIAKEY:hunter2@host"},
        {"name": "images", "provider": "aws", "endpoint_url": "http://AKIAKEY:hunt/er2@host"},
        {"name": "images", "provider": "aws", "endpoint_url": "http://host/?key=hunter2"},
    ],
)
def test_secrets_are_refused_and_not_repeated(written: object) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(small(input_bck=written, output_bck="sorted"))
    text = "".join(traceback.format_exception(caught.value))
    for problem in caught.value.problems:
        assert problem.path.startswith("input_bck")
        text += f"{problem}{problem.hint}"
    assert "hunt" not in text
    assert "AKIAKEY" not in text


def test_credentials_belong_elsewhere_and_the_hint_says_where() -> None:
    bucket = {"name": "images", "provider": "aws", "secret_key": "x"}
    problem = problem_of(input_bck=bucket)
    assert (problem.path, problem.message) == ("input_bck.secret_key", "does not belong in a spec")
    assert problem.hint.startswith("credentials never go into a spec")
    assert "environment, a profile or a role" in problem.hint


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("https://images.s3.amazonaws.com/x", 'write "s3://images/x"'),
        ("https://images.s3.eu-west-1.amazonaws.com", 'write "s3://images"'),
        ("https://s3-eu-west-1.amazonaws.com/images/x", 'write "s3://images/x"'),
        ("https://storage.googleapis.com/images/x", 'write "gs://images/x"'),
        ("https://account.blob.core.windows.net/images/x", 'write "az://images/x"'),
        ("http://host/images", "to a directory, or s3://"),
    ],
)
def test_nothing_is_written_to_the_web(written: str, hint: str) -> None:
    problem = problem_of(output_bck=written)
    assert (problem.path, problem.message) == ("output_bck", f'"{written}" can only be read')
    assert problem.hint.startswith(hint)
    named = {"template": "a-{0..9}"}
    problem = problem_of(input_bck=written, input_format=named)
    assert problem.path == "output_bck"
    assert problem.message == "is required: the input bucket can only be read"
    assert spec_of(input_bck=written, input_format=named, output_bck="sorted")


def test_inputs_from_the_web_are_named() -> None:
    for inputs in ({}, {"prefix": "a"}, {"glob": "a*"}):
        web = {"input_bck": "https://host/images", "output_bck": "sorted"}
        problem = problem_of(**web, input_format=inputs)
        assert problem.path == "input_format"
        assert "a web server does not list them" in problem.message
        assert "input_format.template" in problem.hint
    assert spec_of(**web, input_format={"objnames": ["a.tar"]})


def test_a_missing_bucket_is_said_with_an_example() -> None:
    for nothing in (..., None, ""):
        problem = problem_of(input_bck=nothing)
        assert (problem.path, problem.message) == ("input_bck", "is required")
        assert problem.hint == 'e.g. "images", "file:///data/images" or "s3://bucket/images"'


def test_the_output_goes_to_the_input_bucket_unless_said_otherwise() -> None:
    assert spec_of().output_bck == BucketRef("", "samples")
    assert spec_of(output_bck="sorted").output_bck == BucketRef("", "sorted")


@pytest.mark.parametrize(
    "output",
    [{}, {"name": ""}, {"name": "", "provider": ""}, {"provider": "ais"}, {"name": None},
     {"name": "", "provider": "ais", "namespace": {"name": "", "uuid": ""}}, "", None],
)  # fmt: skip
def test_an_output_bucket_without_a_name_is_the_input_bucket(output: object) -> None:
    loaded = parse_spec(small(input_bck="s3://images/train", output_bck=output))
    assert loaded.spec.output_bck == loaded.spec.input_bck
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    "output", [{"prefix": "out"}, {"name": "", "provider": "aws"}, {"nam": "x"}, []]
)
def test_an_output_bucket_that_says_more_but_no_name_is_refused(output: object) -> None:
    assert any(path.startswith("output_bck") for path in problems_of(small(output_bck=output)))
    assert any(path.startswith("input_bck") for path in problems_of(small(input_bck={"name": ""})))
