"""Buckets: a bare name, a URI or an object; never outside the data root by a bare name, never with
a secret in them, and the same again once written back."""

from __future__ import annotations

import traceback

import pytest

from dsort.errors import SpecError
from dsort.spec.buckets import parse_bucket
from dsort.spec.load import parse_spec
from dsort.storage.ref import BucketRef
from tests.support.spec_cases import problem_of, problems_of, small, spec_of


def test_buckets_of_provider_ais_are_directories_until_an_aistore_is_known() -> None:
    written = {"name": "images", "provider": "ais"}
    assert parse_bucket(written) == BucketRef("", "images")
    assert parse_bucket(written, ais_is_there=True) == BucketRef("ais", "images")
    for bare in ("images", {"name": "images"}, {"name": "images", "provider": ""}):
        assert parse_bucket(bare, ais_is_there=True) == BucketRef("", "images")
    loaded = parse_spec(small(input_bck=written), ais_is_there=True)
    assert loaded.spec.canonical()["input_bck"] == "ais://images"


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
