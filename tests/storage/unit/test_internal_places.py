"""Nothing of a job is read from, or written to, where dsort keeps its own files: ``.dsort``,
anywhere in the name of a bucket or of an object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsort.errors import SpecError
from dsort.spec.load import parse_spec
from dsort.storage.directory.bucket import LocalBucket
from dsort.storage.open import open_bucket
from tests.support.commands import CommandLine
from tests.support.engine import spec_of
from tests.support.internals import Machine, find_garbage, remove_garbage
from tests.support.refusals import raises

BUCKETS: list[Any] = [
    "in/.dsort",
    "in/.dsort/",
    "in/.dsort/job",
    "file:///data/.dsort",
    "file:///data/.dsort/x",
    "file:///data/%2edsort",
    "s3://bucket/x/.dsort",
    "s3://bucket/%2Edsort/y",
    "gs://bucket/.dsort",
    "https://host/.dsort/x",
    {"name": "in/.dsort"},
    {"name": "in", "prefix": ".dsort"},
    {"name": "bucket", "provider": "aws", "prefix": "a/.dsort"},
    {"name": "/data/.dsort", "provider": "file"},
]


@pytest.mark.parametrize("bucket", BUCKETS, ids=str)
@pytest.mark.parametrize("field", ["input_bck", "output_bck"])
def test_a_bucket_inside_is_refused(field: str, bucket: Any) -> None:
    with raises(SpecError, ".dsort") as refused:
        parse_spec(spec_of(**{field: bucket}))
    assert refused.value.problems[0].path.startswith(field)


@pytest.mark.parametrize("bucket", [each for each in BUCKETS if isinstance(each, str)])
@pytest.mark.parametrize(
    "command", [["ls"], ["gc"], ["show", "--bucket"], ["verify", "x", "--bucket"]]
)
def test_commands_refuse_it(command: list[str], bucket: str, cli: CommandLine) -> None:
    if bucket.startswith("gs"):
        pytest.skip("one store is enough")
    (Path("in") / ".dsort" / "job").mkdir(parents=True)
    ended = cli(*command, bucket, *(["x"] if command[0] == "show" else []))
    assert ended.code == 2, ended.err
    assert ".dsort is dsort's own" in ended.err


@pytest.mark.parametrize("where", ["in/.dsort", "linked"])
def test_a_directory_that_really_is_inside_is_refused(where: str, tmp_path: Path) -> None:
    (tmp_path / "in" / ".dsort" / "x").mkdir(parents=True)
    (tmp_path / "linked").symlink_to("in/.dsort")
    with raises(SpecError, ".dsort"):
        open_bucket(where, root=tmp_path)
    with raises(SpecError, ".dsort"):
        open_bucket("x", root=tmp_path / where)


NAMES: list[dict[str, Any]] = [
    {"output_format": "x/.dsort/y-%d"},
    {"output_format": ".dsort/y-%d"},
    {"output_format": "a/{0..3}/.dsort/x"},
    {"output_format": None, "ekm": {"x/.dsort/y-%d": ["a"]}},
    {"ekm": {"y-%d": ["a"]}, "output_format": None, "ekm_default": "x/.dsort/@9"},
    {"input_format": {"template": "x/.dsort/a-{0..3}"}},
    {"input_format": {"objnames": ["x/.dsort/a.tar"]}},
    {"input_format": {"prefix": "x/.dsort/"}},
    {"input_format": {"glob": "x/.dsort/*"}},
]


@pytest.mark.parametrize("fields", NAMES, ids=str)
def test_a_name_inside_is_refused(fields: dict[str, Any]) -> None:
    spec = {name: value for name, value in spec_of(**fields).items() if value is not None}
    with raises(SpecError, ".dsort/"):
        parse_spec(spec)


def test_a_committed_manifest_is_never_garbage(tmp_path: Path) -> None:
    """As older versions could write one, for a bucket or a template inside."""
    nested = [
        ".dsort/.dsort/20260101-000000-aaaaaa/manifest.json",
        ".dsort/x/.dsort/20260101-000000-aaaaaa/manifest.json",
    ]
    bucket = LocalBucket(tmp_path)
    for name in nested:
        bucket.write(name, b"{}")
    bucket.write(".dsort/.dsort/20260101-000000-aaaaaa/staged/0", b"x")
    bucket.write(".dsort/dead/staged/0", b"x")
    found = find_garbage(bucket)
    assert [each.job_id for each in found] == ["dead"]
    for each in found:
        remove_garbage(bucket, each, machine=Machine())
    assert [info.name for info in bucket.list(".dsort/") if "manifest" in info.name] == nested
