"""Weighed inputs beside all else that jobs do: other containers, key maps, new keys, plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import (
    count_of,
    plan_local,
    records_out,
    run_local,
    shard_of,
    spec_of,
)
from tests.support.verified import assert_verified, verify_result

pytestmark = pytest.mark.usefixtures("workers_here")


def of_one(**fields: Any) -> dict[str, Any]:
    """A spec whose one input, ``in``, has these fields that an input has."""
    given = {name: fields.pop(name) for name in ("weight", "repeat", "records") if name in fields}
    spec = {name: value for name, value in spec_of(**fields).items() if name != "input_bck"}
    return {**spec, "inputs": [{"name": "it", "input_bck": "in", **given}]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "in", {"s.tar": shard_of("a", "d/b", "c")})
    return tmp_path


def test_copies_follow_their_record_and_are_named_after_it(root: Path) -> None:
    report = run_local(root, of_one(repeat=3))
    names = ["a.jpg", "a~1.jpg", "a~2.jpg", "d/b.jpg", "d/b~1.jpg", "d/b~2.jpg"]
    assert records_out(root) == [*names, "c.jpg", "c~1.jpg", "c~2.jpg"]
    assert count_of(report, "copied_by_mix")[0] == 6
    assert report.warnings == ()
    assert_verified(root, report.job_id)


def test_what_is_left_out_is_counted(root: Path) -> None:
    report = run_local(root, of_one(records=1))
    assert report.records == 1
    assert count_of(report, "left_out_by_mix") == (2, ("2 in it/s.tar",))
    plan = plan_local(root, of_one(records=2, output_format="plan-%d"))
    assert plan.records == 2


@pytest.mark.parametrize("move", ["auto", "spill"])
def test_what_a_function_makes_is_weighed_and_compared(tmp_path: Path, move: str) -> None:
    write_shards(tmp_path / "in", {"s.tar": shard_of("a1", "b22", "c3", "d4")})
    code = {"map": {"python": "tests.support.user_functions:longer", "drop": ["jpg"]}}
    steps = {"steps": [code]}
    report = run_local(tmp_path, of_one(records=6, transform=steps), move=move)
    assert report.records == 6
    names = {name.partition("~")[0].partition(".")[0] for name in records_out(tmp_path)}
    assert names == {"b22", "c3", "d4"}
    assert verify_result(tmp_path, report.job_id).problems == ()
    spec = spec_of(transform=steps, deduplicate={"by": "content"}, output_format="one-%d")
    assert run_local(tmp_path, spec, move=move).records == 1


@pytest.mark.parametrize("deduplicate", [None, {"by": "content"}])
@pytest.mark.parametrize("given", [{"records": 3}, {"weight": 0.6}], ids=str)
def test_records_are_weighed_that_have_a_place_in_the_key_map(
    tmp_path: Path, given: dict[str, Any], deduplicate: dict[str, Any] | None
) -> None:
    keys = [f"k{number:02}" for number in range(20)]
    for at in range(2):
        own = [Member(f"{key}.x", b"%d" % (int(key[1:]) % 9)) for key in keys[at::2]]
        write_shards(tmp_path / "in", {f"s-{at}.tar": Shard(tuple(own))})
    key_map = {"ekm": {"o-%d.tar": keys[4:16]}, "ekm_missing_key": "ignore"}
    spec = of_one(**given, **key_map, output_format=None, deduplicate=deduplicate)
    report = run_local(tmp_path, spec, workers=2)
    assert report.records == 3 or "weight" in given
    assert_verified(tmp_path, report.job_id)
