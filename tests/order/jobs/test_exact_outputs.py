"""Outputs that get exact numbers of records, of all or of each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsort.errors import TransformError
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import refused, run_local, spec_of
from tests.support.internals import exact_outputs
from tests.support.verified import assert_verified

pytestmark = pytest.mark.usefixtures("workers_here")

PARTS = [{"name": name, "fraction": part} for name, part in (("a", 0.7), ("b", 0.2), ("c", 0.1))]


def dealt(**fields: Any) -> dict[str, Any]:
    shuffled = {"output_format": "{split}-%d", "algorithm": {"kind": "shuffle", "seed": 3}}
    return spec_of(**{**shuffled, "outputs": PARTS, **fields})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """97 records in three shards; their classes are 0 to 6."""
    keys = [f"{number:03d}" for number in range(97)]
    shards = {}
    for shard in range(3):
        members = []
        for key in keys[shard::3]:
            members.append(Member(f"{key}.cls", b" %d\n" % (int(key) % 7)))
            members.append(Member(f"{key}.json", b'{"at": {"place": "p%d"}}' % (int(key) % 2)))
        shards[f"in-{shard}.tar"] = Shard(tuple(members))
    write_shards(tmp_path / "in", shards)
    return tmp_path


def test_ties_are_parted_in_input_order(tmp_path: Path) -> None:
    shards = {f"in-{at}.tar": Shard((Member("same.txt", b"%d" % at),)) for at in range(10)}
    write_shards(tmp_path / "in", shards)
    spec = dealt(
        exact=True, duplicate_keys="ignore", algorithm={"kind": "none"}, output_shard_records=10
    )
    report = run_local(tmp_path, spec)
    held = {
        name[0]: b"".join(member.payload for member in read_shard(content))
        for name, content in files_of(tmp_path / "out").items()
    }
    assert held == {"a": b"0123456", "b": b"78", "c": b"9"}
    assert_verified(tmp_path, report.job_id)


def test_records_of_the_same_bytes_in_two_outputs_are_where_they_belong(tmp_path: Path) -> None:
    same = Shard(tuple(Member(f"{number}.txt", b"same") for number in range(9)))
    write_shards(tmp_path / "in", {"in-0.tar": same, "in-1.tar": same, "in-2.tar": same})
    outputs = [{"name": "a", "when": 'shard == "in-1.tar"'}, {"name": "b", "when": True}]
    spec = dealt(outputs=outputs, duplicate_keys="ignore")
    report = run_local(tmp_path, spec)
    assert [each.records for each in report.outputs] == [9, 18]
    assert_verified(tmp_path, report.job_id)


def test_an_output_of_no_records_is_no_problem(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": Shard((Member("a.txt", b""),))})
    spec = dealt(exact=True, stratify="txt")
    report = run_local(tmp_path, spec)
    assert [each.records for each in report.outputs] == [1, 0, 0]
    spec["transform"] = {"steps": [{"drop_keys": {"keys": ["a"]}}]}
    report = run_local(tmp_path, spec, overwrite=True)
    assert report.records == 0
    assert_verified(tmp_path, report.job_id)


def test_a_record_without_a_class_ends_the_job(data: Path) -> None:
    write_shards(data / "in", {"in-9.tar": Shard((Member("x.txt", b"x"),))})
    with refused(data, TransformError, "record x of shard in-9.tar", "require"):
        run_local(data, dealt(stratify="cls"))


def test_too_many_classes_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_outputs, "BORDERS_MAX", 12)
    with refused(data, TransformError, "6 classes"):
        run_local(data, dealt(stratify="cls"))
