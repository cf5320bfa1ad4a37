"""What of a bucket goes in, and what does not, is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.errors import InputError
from tests.support.datasets import write_shards
from tests.support.engine import (
    count_of,
    plan_local,
    records_out,
    refused,
    run_local,
    shard_of,
    spec_of,
)

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "in", {"a.tar": shard_of("a"), "sub/b.tar": shard_of("b")})
    for name in ("a.zip", "sub/b.zip", "README"):
        (tmp_path / "in" / name).write_bytes(b"other")
    return tmp_path


@pytest.mark.parametrize(
    ("inputs", "passed_over"),
    [
        ({}, ["README", "a.zip", "sub/b.zip"]),
        ({"prefix": "sub/"}, ["sub/b.zip"]),
        ({"glob": "a*"}, ["a.zip"]),
        ({"glob": "*.tar"}, []),
        ({"objnames": ["a.tar"]}, []),
        ({"template": "a"}, []),
    ],
)
def test_objects_with_other_endings_are_counted_and_named(
    root: Path, inputs: dict[str, object], passed_over: list[str]
) -> None:
    if "template" in inputs:
        inputs = {"template": "{a..a}"}
    report = run_local(root, spec_of(input_format=inputs))
    assert count_of(report, "objects_passed_over") == (len(passed_over), tuple(passed_over))
    warned = [text for text in report.warnings if " passed over" in text]
    assert len(warned) == bool(passed_over)
    assert all(name in "".join(warned) for name in passed_over)
    assert count_of(plan_local(root, spec_of(input_format=inputs)), "objects_passed_over")[
        0
    ] == len(passed_over)


def test_a_file_without_a_size_but_with_content_is_refused(root: Path) -> None:
    (root / "in" / "proc.tar").symlink_to("/proc/version")
    assert (root / "in" / "proc.tar").stat().st_size == 0
    with refused(root, InputError, "proc.tar", "/proc"):
        run_local(root, spec_of())
    (root / "in" / "proc.tar").unlink()
    run_local(root, spec_of())
    assert records_out(root) == ["a.jpg", "b.jpg"]
