"""Buckets: a bare name, a file URI or an object; never outside the data root by a bare name."""

from __future__ import annotations

import pytest
from spec_cases import problem_of, spec_of

from dsort.spec import BucketRef, parse_bucket
from dsort.spec.hints import FieldError


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
    ],
)
def test_every_way_to_write_a_bucket_has_one_canonical_uri(written: object, uri: str) -> None:
    bucket = parse_bucket(written)
    assert bucket.uri == str(bucket) == uri
    assert parse_bucket(uri) == bucket == parse_bucket(bucket)


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
        ("file:/data", '"file:/data" is no bucket name', "file:///"),
        (".dsort", '".dsort" is reserved: bucket names do not begin with a dot', ""),
        ("file://data/images", "is not absolute", 'e.g. "file:///data/images"'),
        ("file:///", "names no directory", ""),
        ("file:///data?x=1", "has a query or a fragment", "%3F"),
        ("file:///%ff", "is not UTF-8", ""),
        ("a\nb", "cannot be printed", ""),
        ("foo://bar", "has an unknown scheme", 'e.g. "images"'),
        ({}, '"name" must be text, not nothing', ""),
        ({"name": 5}, '"name" must be text, not the number 5', ""),
        ({"name": "a", "provider": 5}, '"provider" must be text, not the number 5', ""),
        ({"name": "a", "provder": "ais"}, 'unknown field "provder"', 'did you mean "provider"?'),
        ({"name": "a", "provider": "fil"}, 'unknown provider "fil"', 'did you mean "file"?'),
        ({"name": "a", "provider": "xyz"}, 'unknown provider "xyz"', "known here: ais, file"),
        ({"name": "a", "namespace": "#ns"}, "namespaces of buckets are not supported", ""),
        (5, "must be a bucket, not the number 5", 'e.g. "images"'),
        (["images"], "must be a bucket, not a list", 'e.g. "images"'),
    ],
)
def test_what_is_no_bucket_says_why(written: object, message: str, hint: str) -> None:
    with pytest.raises(FieldError) as error:
        parse_bucket(written)
    assert message in str(error.value)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    "written",
    [
        "s3://images",
        "gs://images",
        "az://images",
        "ais://images",
        "http://host/images",
        {"name": "images", "provider": "aws"},
        {"name": "images", "provider": "gcp"},
        {"name": "images", "provider": "azure"},
    ],
)
@pytest.mark.parametrize("field", ["input_bck", "output_bck"])
def test_object_stores_are_refused_naming_the_field(field: str, written: object) -> None:
    problem = problem_of(**{field: written})
    assert problem.path == field
    assert "object stores are not supported yet by this version" in problem.message


def test_a_missing_bucket_is_said_with_an_example() -> None:
    for nothing in (..., None, ""):
        problem = problem_of(input_bck=nothing)
        assert (problem.path, problem.message) == ("input_bck", "is required")
        assert problem.hint == 'e.g. "images" or "file:///data/images"'


def test_the_output_goes_to_the_input_bucket_unless_said_otherwise() -> None:
    assert spec_of().output_bck == BucketRef("", "samples")
    assert spec_of(output_bck="sorted").output_bck == BucketRef("", "sorted")
