"""The commands that a job which is stopped names, for the user to copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.engine import spec_of
from tests.support.internals import gc_command, resume_command

HERE = RunOptions(root=Path())


@pytest.mark.parametrize(
    ("bucket", "options", "found", "place"),
    [
        ("shuffled", HERE, "", "shuffled"),
        ("a/b", replace(HERE, runtime="ray"), " --bucket a/b --ray", "a/b"),
        (
            "s3://bkt/p q",
            replace(HERE, runtime="ray", ray_address="auto"),
            " --bucket 's3://bkt/p q' --ray-address auto",
            "'s3://bkt/p q'",
        ),
        ("file:///data/a%20b", HERE, " --bucket '/data/a b'", "'/data/a b'"),
    ],
)
def test_commands_name_the_bucket_and_the_runtime(
    bucket: str, options: RunOptions, found: str, place: str
) -> None:
    spec = parse_spec(spec_of(output_bck=bucket)).spec
    assert resume_command("job-1", spec, options) == f"dsort resume job-1{found}"
    assert gc_command("job-1", spec, options) == f"dsort gc {place} --job job-1 --remove"


def test_both_commands_name_the_data_root_and_the_scratch_directory() -> None:
    spec = parse_spec(spec_of()).spec
    options = RunOptions(root=Path("/data"), scratch=Path("/fast disk"))
    ends = "--root /data --scratch '/fast disk'"
    assert resume_command("job-1", spec, options) == f"dsort resume job-1 {ends}"
    assert gc_command("job-1", spec, options) == f"dsort gc out --job job-1 --remove {ends}"


def test_a_program_of_the_spec_has_to_be_allowed_again() -> None:
    spec = parse_spec(spec_of(on_shard={"exec": ["cp", "{path}", "/x"]})).spec
    assert resume_command("job-1", spec, HERE) == "dsort resume job-1 --run-code"
