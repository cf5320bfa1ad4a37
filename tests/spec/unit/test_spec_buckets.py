"""Buckets: a bare name, a URI or an object; never outside the data root by a bare name, never with
a secret in them, and the same again once written back."""

from __future__ import annotations

import traceback

import pytest

from dsort.errors import SpecError
from dsort.spec.buckets import parse_bucket
from dsort.spec.load import parse_spec
from dsort.storage.ref import BucketRef
from tests.support.spec_cases import small


def test_buckets_of_provider_ais_are_directories_until_an_aistore_is_known() -> None:
    written = {"name": "images", "provider": "ais"}
    assert parse_bucket(written) == BucketRef("", "images")
    assert parse_bucket(written, ais_is_there=True) == BucketRef("ais", "images")
    for bare in ("images", {"name": "images"}, {"name": "images", "provider": ""}):
        assert parse_bucket(bare, ais_is_there=True) == BucketRef("", "images")
    loaded = parse_spec(small(input_bck=written), ais_is_there=True)
    assert loaded.spec.canonical()["input_bck"] == "ais://images"


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
