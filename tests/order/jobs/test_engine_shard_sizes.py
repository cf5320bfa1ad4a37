"""What ``output_shard_size`` counts: payload, or the file with its headers and padding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort import api
from dsort.errors import NamesTakenError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import plan_local, refused, run_local, spec_of, verify_local

pytestmark = pytest.mark.usefixtures("workers_here")

RECORDS = 60
SIZE_BYTES = 10 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(3):
        members = [Member(f"{number}{i:03d}.cls", b"%d" % i) for i in range(RECORDS // 3)]
        write_shards(tmp_path / "in", {f"in-{number}.tar": Shard(tuple(members))})
    return tmp_path


@pytest.mark.parametrize("move", ["map", "spill"])
def test_file_counts_headers_and_padding(root: Path, move: str) -> None:
    fields = {"output_shard_size": SIZE_BYTES, "output_shard_size_counts": "file"}
    spec = spec_of(output_shard_records=None, **fields)
    planned = plan_local(root, spec, move=move)
    report = run_local(root, spec, move=move)
    sizes = {name: len(data) for name, data in files_of(root / "out").items()}
    assert sizes == {shard.name: shard.file_bytes for shard in planned.shards}
    assert sorted(sizes.values()) == [SIZE_BYTES + 1024] * 6
    assert report.warnings == ()
    checked = verify_local(root, report)
    assert checked.ok


def test_verify_sees_shards_that_were_cut_otherwise(root: Path) -> None:
    spec = spec_of(output_shard_records=None, output_shard_size=SIZE_BYTES)
    report = run_local(root, spec)
    manifest = (root / "out" / str(report.manifest_name)).read_bytes()
    lie = manifest.replace(
        b'"output_shard_size_counts": "payload"', b'"output_shard_size_counts": "file"'
    )
    assert lie != manifest
    checked = api.verify(lie, output_uri=(root / "out").as_uri(), options=RunOptions(root=root))
    assert [problem.kind for problem in checked.problems] == ["cut"]


def test_shards_far_larger_than_their_size_are_warned_of(root: Path) -> None:
    report = run_local(root, spec_of(output_shard_records=None, output_shard_size=SIZE_BYTES))
    (text,) = report.warnings
    assert "output_shard_size_counts: file" in text
    assert "60" in text.split("but their payload")[0]


def test_shards_of_a_few_blocks_are_not_warned_of(root: Path) -> None:
    report = run_local(root, spec_of(output_shard_records=None, output_shard_size=20))
    assert max(map(len, files_of(root / "out").values())) <= 40 * 1024
    assert report.warnings == ()


def test_an_even_share_is_one_of_what_is_counted(root: Path) -> None:
    fields = {"output_format": "out-{0..3}", "output_shard_size_counts": "file"}
    run_local(root, spec_of(output_shard_records=None, **fields))
    assert [len(data) for data in files_of(root / "out").values()] == [15 * 1024 + 1024] * 4


def test_what_sizes_count_has_no_effect_where_shards_end_otherwise() -> None:
    parsed = parse_spec(spec_of(output_shard_size_counts="file"))
    assert "output_shard_size_counts" in parsed.warnings[0]
    assert parsed.spec.output_shard_size_counts == "payload"


def sizes_out(root: Path) -> list[int]:
    """The sizes of the output shards, in the order of their names."""
    shards = files_of(root / "out")
    return [len(shards[name]) for name in sorted(shards)]


@pytest.mark.parametrize("move", ["map", "spill"])
def test_at_most_closes_a_shard_before_its_file_is_larger(root: Path, move: str) -> None:
    write_shards(root / "in", {"in-9.tar": Shard((Member("9.cls", bytes(SIZE_BYTES)),))})
    fields = {"output_shard_size": SIZE_BYTES, "output_shard_size_counts": "file"}
    spec = spec_of(output_shard_records=None, output_shard_size_is="at_most", **fields)
    report = run_local(root, spec, move=move)
    # Nine records of 1 KiB and the end of the archive; the large one is alone.
    assert sizes_out(root) == [SIZE_BYTES] * 6 + [6 * 1024 + 1024, SIZE_BYTES + 512 + 1024]
    (warning,) = report.warnings
    assert "1 record is larger than output_shard_size, 10 KiB" in warning
    assert "out-7.tar" in warning
    assert verify_local(root, report).problems == ()


def test_with_records_and_size_whichever_comes_first_closes_a_shard(root: Path) -> None:
    names = {"output_format": "{split}/s-{n:02d}-of-{total:03d}", "split": "train"}
    fields = {"output_shard_size": 8, "output_shard_records": 6}
    report = run_local(root, spec_of(**fields, **names))
    manifest = json.loads((root / "out" / str(report.manifest_name)).read_bytes())
    by_name = {shard["name"]: shard["records"] for shard in manifest["outputs"]}
    # Each input has ten records of one byte and ten of two: six of one, or four of two.
    assert set(by_name.values()) == {4, 6}
    assert {name.partition("-of-")[2] for name in by_name} == {f"{len(by_name):03d}.tar"}
    assert sum(by_name.values()) == RECORDS
    assert verify_local(root, report).problems == ()
    with refused(root, NamesTakenError, "s-00-of-"):
        run_local(root, spec_of(**fields, **names))
