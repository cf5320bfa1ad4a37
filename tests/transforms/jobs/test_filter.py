"""The step ``filter`` as its users meet it: the example of its description, mistakes, records of
which it cannot be said, other containers, the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import TransformError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import count_of, records_out, refused, run_local, spec_of
from tests.support.internals import manifest_name

pytestmark = pytest.mark.usefixtures("workers_here")

EXAMPLE = 'ext("json").score > 0.5 && size("jpg") < 5_000_000'


def filtered(*texts: str, **fields: Any) -> dict[str, Any]:
    return spec_of(transform={"steps": [{"filter": text} for text in texts]}, **fields)


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Two shards of ten records, whose scores are 0.0 to 0.9, and 1 where a float is expected."""
    shards = {}
    for shard in (0, 1):
        members = []
        for number in range(10):
            score = json.dumps({"score": 1 if number == 9 else number / 10, "tags": ["a", "b"]})
            key = f"{shard}{number}"
            members += [Member(f"{key}.jpg", bytes(number)), Member(f"{key}.json", score.encode())]
            members += [Member(f"{key}.cls", b"%d\n" % number)]
        shards[f"in-{shard}.tar"] = Shard(tuple(members))
    write_shards(tmp_path / "in", shards)
    return tmp_path


def keys_out(root: Path) -> list[str]:
    return [name[:-4] for name in records_out(root) if name.endswith(".jpg")]


@pytest.mark.parametrize("move", ["map", "spill"])
def test_the_example_of_the_documentation_keeps_what_it_says(scored: Path, move: str) -> None:
    report = run_local(scored, filtered(EXAMPLE), move=move)
    assert keys_out(scored) == [f"{shard}{number}" for shard in (0, 1) for number in range(6, 10)]
    count, names = count_of(report, "left_out_by_steps")
    assert (count, sorted(names)) == (12, ["filter in in-0.tar", "filter in in-1.tar"])
    manifest = (scored / "out" / manifest_name(report.job_id)).read_bytes()
    assert json.loads(manifest)["spec"]["transform"] == {"steps": [{"filter": EXAMPLE}]}
    assert api.verify(manifest, options=RunOptions(root=scored)).problems == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ext("json").scor > 0.5', ["there is no field scor"]),
        ('ext("json").tags > 0.5', ["a list > a number cannot be compared", "double("]),
        ('size("png") > 5', ["there is no png member", 'has("png") asks']),
    ],
)
def test_a_record_of_which_it_cannot_be_said_ends_the_job(
    scored: Path, text: str, words: list[str]
) -> None:
    with refused(scored, TransformError, "record 00 of shard in-0.tar", text, "has(", *words):
        run_local(scored, filtered(text))


def test_a_job_warns_if_its_steps_leave_no_record(scored: Path) -> None:
    report = run_local(scored, filtered('size("jpg") > 1_000_000_000'))
    left_out = sum(each.count for each in report.reactions)
    assert (report.records, left_out > 0) == (0, True)
    assert f"no record is left: steps left out {left_out}" in report.warnings
